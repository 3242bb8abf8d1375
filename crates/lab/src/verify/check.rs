//! A check: its result, what was found, and what the user can do about it.

use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    /// All is as it should be.
    Pass,
    /// The program or the files are wrong.
    Fail,
    /// Nothing is judged; the user should know.
    Note,
    /// The check does not apply, or needs something that is missing.
    Skipped,
}

impl CheckResult {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Note => "note",
            Self::Skipped => "skipped",
        }
    }
}

/// A check with its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// What was checked, in one or two words.
    pub name: &'static str,
    /// How it ended.
    pub result: CheckResult,
    /// What was found, in one line that names faults.
    pub found: String,
    /// The number that was judged, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The largest value that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// What to do, or where to look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn new(name: &'static str, result: CheckResult, found: impl Into<String>) -> Self {
        Self { name, result, found: found.into(), value: None, limit: None, advice: None }
    }

    /// Creates a check that passed.
    pub(super) fn pass(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, CheckResult::Pass, found)
    }

    /// Creates a check that failed.
    pub(super) fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(name, CheckResult::Fail, found) }
    }

    /// Creates a note, which is not judged.
    pub(super) fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, CheckResult::Note, found)
    }

    /// Creates a check that could not be made.
    pub(super) fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, CheckResult::Skipped, why)
    }

    /// Adds the number that decided the check, and its limit.
    pub(super) fn measured(self, value: f64, limit: f64) -> Self {
        Self { value: Some(value), limit: Some(limit), ..self }
    }

    /// Whether it failed.
    pub fn is_failure(&self) -> bool {
        self.result == CheckResult::Fail
    }
}

/// Lists the first few names, and says how many more there are.
pub(super) fn first_few(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        let names: Vec<String> = (0..6).map(|i| i.to_string()).collect();
        assert_eq!(first_few(&names), "0, 1, 2, 3 and 2 more");
        assert_eq!(first_few(&names[..4]), "0, 1, 2, 3");
    }
}
