//! Errors a user can cause and act on, and the "did you mean" search they share.
//!
//! Every floor may return a [`UsageError`]; the command line turns it into exit status 2.
//! Failures of a run (a truncated file, a full disk) stay ordinary `anyhow` errors: exit status 1.

use std::fmt;

/// A mistake in the arguments, a config or a spec: what is wrong, and what to do about it.
///
/// Displayed as one line; the hint is printed on a line of its own by the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct UsageError {
    /// What is wrong and where, in one line.
    pub what: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl UsageError {
    /// An error without a hint.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    /// The same error with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// "unknown {kind} `name`", with the nearest of `known` or, if none is near, all of them as the hint.
    pub fn unknown<S: AsRef<str>>(kind: &str, name: &str, known: impl IntoIterator<Item = S>) -> Self {
        let known: Vec<String> = known.into_iter().map(|k| k.as_ref().to_owned()).collect();
        let hint = match nearest(name, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => format!("there is no {kind} to choose from"),
            None => format!("known: {}", Joined(&known)),
        };
        Self::new(format!("unknown {kind} `{name}`")).hint(hint)
    }
}

/// The entry of `known` that `name` was most likely meant to be, if any is close enough.
pub fn nearest<'a, S: AsRef<str>>(name: &str, known: &'a [S]) -> Option<&'a str> {
    const CLOSE_ENOUGH: f64 = 0.7;
    known
        .iter()
        .map(|k| (strsim::jaro_winkler(name, k.as_ref()), k.as_ref()))
        .filter(|(similarity, _)| *similarity >= CLOSE_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
}

struct Joined<'a>(&'a [String]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_suggest_the_nearest() {
        let e = UsageError::unknown("method", "topkk", ["full", "topk", "quest"]);
        assert_eq!(e.to_string(), "unknown method `topkk`");
        assert_eq!(e.hint.as_deref(), Some("did you mean `topk`?"));
    }

    #[test]
    fn far_names_list_what_there_is() {
        let e = UsageError::unknown("method", "zzz", ["full", "topk"]);
        assert_eq!(e.hint.as_deref(), Some("known: full, topk"));
    }
}
