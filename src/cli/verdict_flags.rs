//! `--safe-within`, `--confidence` and the bounds of `--until-certain`: what methods are held to, when no more examples are added, and
//! which exit status the command ends with.

use std::time::Duration;

use super::exit::Done;
use crate::report::verdict::asked::{SafetyAnswer, answer};
use spattn_base::error::UsageError;
use spattn_eval::summary::demand::Demand;
use spattn_eval::summary::verdicts::VerdictTable;

/// What methods are held to, and whether the exit status depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SafetyDemand {
    /// The rule that the flags give, or that the folder's run was given.
    pub asked: Demand,
    /// Whether the user asked for a safe method, so that the exit status depends on it.
    pub is_asked: bool,
}

impl SafetyDemand {
    /// Takes the values of the two flags.
    pub(super) fn new(safe_within: Option<f64>, confidence: Option<f64>) -> Self {
        Self { asked: Demand { safe_within, confidence }, is_asked: safe_within.is_some() }
    }

    /// Fills what is not given now with what a resumed run was given before.
    pub(super) fn or(self, before: Demand) -> Self {
        Self { asked: self.asked.or(before), ..self }
    }

    /// How a command ends that has done everything. If the user asked for a safe method, prints the answer on standard error.
    pub(super) fn end(self, verdicts: &[VerdictTable]) -> Done {
        if !self.is_asked {
            return Done::Completed;
        }
        let SafetyAnswer { is_safe, line } = answer(verdicts);
        eprintln!("{line}");
        if is_safe { Done::Completed } else { Done::NotSafe }
    }
}

/// When to stop adding examples. At least one bound is set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LookBounds {
    /// The most examples of each task and length.
    pub samples: Option<usize>,
    /// The most time.
    pub time: Option<Duration>,
}

impl LookBounds {
    /// Takes the values of the flags.
    ///
    /// # Errors
    /// If neither bound is given, or the first look exceeds one.
    pub(super) fn new(samples: Option<usize>, time: Option<&str>, first: usize) -> Result<Self, UsageError> {
        let time = time.map(parse_time).transpose()?;
        if samples.is_none() && time.is_none() {
            return Err(UsageError::new("--until-certain needs a bound")
                .hint("add --max-samples 400, or --max-time 30m, or both"));
        }
        match samples.filter(|most| *most < first) {
            Some(most) => {
                Err(UsageError::new(format!("--max-samples {most} is less than the {first} of the first look"))
                    .hint(format!("give a smaller -n, or --max-samples from {first}")))
            }
            None => Ok(Self { samples, time }),
        }
    }
}

/// Parses a duration such as `90s`, `30m` or `2h`.
///
/// # Errors
/// If it is not one, or is longer than a year.
fn parse_time(text: &str) -> Result<Duration, UsageError> {
    const UNITS: [(char, f64); 3] = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    /// A leap year.
    const MOST: f64 = 366.0 * 24.0 * 3600.0;
    let of_unit = |(unit, seconds): (char, f64)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds);
    let seconds = UNITS.into_iter().find_map(of_unit).filter(|seconds| *seconds > 0.0 && *seconds <= MOST);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| UsageError::new(format!("--max-time: `{text}` is no time")).hint("give it as 90s, 30m or 2h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let seconds = |text: &str| parse_time(text).map(|time| time.as_secs_f64()).ok();
        assert_eq!(["90s", "30m", "1.5h"].map(seconds), [Some(90.0), Some(1800.0), Some(5400.0)]);
        assert_eq!(["", "30", "0m", "-1m", "m", "1e9h", "NaNm", "30 min"].map(seconds), [None; 8]);
        assert!(LookBounds::new(None, None, 10).is_err() && LookBounds::new(Some(5), None, 10).is_err());
        assert!(LookBounds::new(Some(10), None, 10).is_ok());
    }
}
