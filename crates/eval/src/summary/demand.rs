//! What a run was asked to hold methods to. Its manifest has it, so that reports judge by the same by default.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::verdicts::VerdictRule;
use crate::records::manifest_keys::HELD_TO;

/// The parts of a [`VerdictRule`] that a user gave. The default rule has the other parts.
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
    /// Reads it from `manifest`; empty if the run was asked for nothing. Numbers that no flag accepts count as not given.
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

    /// Fills the parts that are not given here from `other`.
    pub fn or(self, other: Self) -> Self {
        Self { safe_within: self.safe_within.or(other.safe_within), confidence: self.confidence.or(other.confidence) }
    }

    /// The rule with these parts.
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
