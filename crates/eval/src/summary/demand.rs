//! What a run was asked to hold methods to, as its manifest keeps it: a report that is not told otherwise judges by the same.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::verdicts::VerdictRule;
use crate::records::manifest_keys::HELD_TO;

/// The parts of a [`VerdictRule`] that a user gave. A part that was not given is that of the default rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// `--safe-within`: the largest loss that counts as none, in points, or in percent of a perplexity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe_within: Option<f64>,
    /// `--confidence`: a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

impl Demand {
    /// What `manifest` keeps; nothing if the run was asked for nothing. Numbers that no flag takes count as not given.
    pub fn of_manifest(manifest: &Value) -> Self {
        let stored = Self::deserialize(&manifest[HELD_TO]).unwrap_or_default();
        Self {
            safe_within: stored.safe_within.filter(|points| (0.01..=100.0).contains(points)),
            confidence: stored.confidence.filter(|share| (0.5..=0.9999).contains(share)),
        }
    }

    /// Writes it into a manifest, if anything was asked.
    pub fn put(self, manifest: &mut Value) {
        if self != Self::default() {
            manifest[HELD_TO] = json!(self);
        }
    }

    /// Each part as given here, else as in `other`.
    pub fn or(self, other: Self) -> Self {
        Self { safe_within: self.safe_within.or(other.safe_within), confidence: self.confidence.or(other.confidence) }
    }

    /// The rule that it makes.
    pub fn rule(self) -> VerdictRule {
        let usual = VerdictRule::default();
        VerdictRule {
            limit: self.safe_within.unwrap_or(usual.limit),
            confidence: self.confidence.unwrap_or(usual.confidence),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_keeps_what_was_asked_and_nothing_else() {
        let mut manifest = json!({});
        Demand::default().put(&mut manifest);
        assert_eq!(manifest, json!({}));
        let asked = Demand { safe_within: Some(5.0), confidence: None };
        asked.put(&mut manifest);
        assert_eq!(manifest, json!({ HELD_TO: { "safe_within": 5.0 } }));
        assert_eq!(Demand::of_manifest(&manifest), asked);
        assert_eq!(asked.rule(), VerdictRule { limit: 5.0, ..VerdictRule::default() });
    }

    #[test]
    fn a_flag_goes_before_what_is_kept_part_by_part() {
        let kept = Demand { safe_within: Some(5.0), confidence: Some(0.9) };
        let given = Demand { safe_within: Some(2.0), confidence: None };
        assert_eq!(given.or(kept), Demand { safe_within: Some(2.0), confidence: Some(0.9) });
        assert_eq!(Demand::default().or(kept), kept);
    }

    #[test]
    fn a_manifest_that_was_edited_is_not_trusted() {
        for stored in [json!(7), json!("5"), json!({"safe_within": "5"}), json!({"safe_within": -1.0, "confidence": 2})]
        {
            assert_eq!(Demand::of_manifest(&json!({ HELD_TO: stored })), Demand::default());
        }
        assert_eq!(Demand::of_manifest(&Value::Null), Demand::default());
    }
}
