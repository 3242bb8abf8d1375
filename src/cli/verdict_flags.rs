//! `--safe-within` and `--confidence`: what methods are held to, and how the command ends.

use super::exit::Done;
use crate::report::verdict::asked::{SafetyAnswer, answer};
use spattn_eval::summary::verdicts::{VerdictRule, VerdictTable};

/// What methods are held to, and whether the exit status depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SafetyDemand {
    /// The rule of the verdict.
    pub rule: VerdictRule,
    /// Whether the user asked for a safe method.
    pub is_asked: bool,
}

impl SafetyDemand {
    /// From the two flags.
    pub(super) fn new(safe_within: Option<f64>, confidence: Option<f64>) -> Self {
        let usual = VerdictRule::default();
        let rule = VerdictRule {
            limit: safe_within.unwrap_or(usual.limit),
            confidence: confidence.unwrap_or(usual.confidence),
        };
        Self { rule, is_asked: safe_within.is_some() }
    }

    /// How the command ends after everything was done. If the user asked, a line on standard error says why.
    pub(super) fn end(self, verdicts: &[VerdictTable]) -> Done {
        if !self.is_asked {
            return Done::Completed;
        }
        let SafetyAnswer { is_safe, line } = answer(verdicts);
        eprintln!("{line}");
        if is_safe { Done::Completed } else { Done::NotSafe }
    }
}
