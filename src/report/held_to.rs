//! The rule that the verdicts of merged runs are held to: what the user gives now, or else what the runs were given.

use super::merge::Merged;
use spattn_eval::summary::demand::Demand;
use spattn_eval::summary::verdicts::VerdictRule;

impl Merged {
    /// Returns the rule of the verdicts. If the runs had different rules, the strictest is used, and a note says so.
    pub fn held_to(&mut self, asked: Demand) -> VerdictRule {
        let kept: Vec<(&str, VerdictRule)> = self
            .sources
            .iter()
            .filter(|source| source.records > 0)
            .map(|source| (source.name.as_str(), asked.or(Demand::of_manifest(&source.manifest)).rule()))
            .collect();
        let Some(strictest) = kept.iter().map(|(_, rule)| *rule).reduce(stricter) else { return asked.rule() };
        if kept.iter().any(|(_, rule)| *rule != strictest) {
            let each: Vec<String> = kept.iter().map(|(name, rule)| format!("{name} to {}", worded(*rule))).collect();
            self.notes.push(format!(
                "the runs were held to different limits ({}): the verdicts here are held to {}; --safe-within and --confidence choose others",
                each.join(", "),
                worded(strictest)
            ));
        }
        strictest
    }
}

fn worded(rule: VerdictRule) -> String {
    let points = if rule.limit == 1.0 { "1 point".to_owned() } else { format!("{} points", rule.limit) };
    format!("{points} at {} %", (1e4 * rule.confidence).round() / 100.0)
}

/// The smaller limit and the greater confidence. A method that is safe by this rule is safe by both.
fn stricter(a: VerdictRule, b: VerdictRule) -> VerdictRule {
    VerdictRule { limit: a.limit.min(b.limit), confidence: a.confidence.max(b.confidence), ..a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::merge::Source;
    use serde_json::{Value, json};
    use spattn_eval::records::manifest_keys::HELD_TO;

    fn merged(held_to: &[Value]) -> Merged {
        let source = |(at, held_to): (usize, &Value)| Source {
            name: format!("run-{at}"),
            dir: Default::default(),
            manifest: json!({ HELD_TO: held_to }),
            records: 3,
        };
        Merged { sources: held_to.iter().enumerate().map(source).collect(), ..Merged::default() }
    }

    #[test]
    fn a_run_is_judged_by_what_it_was_asked_unless_told_otherwise() {
        let mut one = merged(&[json!({"safe_within": 5.0, "confidence": 0.9})]);
        let kept = one.held_to(Demand::default());
        assert_eq!((kept.limit, kept.confidence), (5.0, 0.9));
        let told = one.held_to(Demand { safe_within: Some(2.0), confidence: None });
        assert_eq!((told.limit, told.confidence), (2.0, 0.9), "the part that is not given is the run's");
        assert_eq!(merged(&[Value::Null]).held_to(Demand::default()), VerdictRule::default());
        assert_eq!(Merged::default().held_to(Demand::default()), VerdictRule::default());
        assert!(one.notes.is_empty());
    }

    #[test]
    fn runs_with_other_limits_are_held_to_the_strictest_and_a_note_says_so() {
        let mut two = merged(&[json!({"safe_within": 5.0}), json!({"safe_within": 2.0, "confidence": 0.8})]);
        let rule = two.held_to(Demand::default());
        assert_eq!((rule.limit, rule.confidence), (2.0, 0.95));
        let told = "the runs were held to different limits (run-0 to 5 points at 95 %, run-1 to 2 points at 80 %): the verdicts here are held to 2 points at 95 %; --safe-within and --confidence choose others";
        assert_eq!(two.notes, [told]);
        let mut same = merged(&[json!({"safe_within": 5.0}), json!({"safe_within": 5.0})]);
        assert_eq!((same.held_to(Demand::default()).limit, same.notes.len()), (5.0, 0));
        let mut told = merged(&[json!({"safe_within": 5.0}), json!({"safe_within": 2.0})]);
        let given = Demand { safe_within: Some(3.0), confidence: None };
        assert_eq!((told.held_to(given).limit, told.notes.len()), (3.0, 0), "the user's own limit is for all");
        let mut empty = merged(&[json!({"safe_within": 5.0}), json!({"safe_within": 2.0})]);
        empty.sources[1].records = 0;
        assert_eq!((empty.held_to(Demand::default()).limit, empty.notes.len()), (5.0, 0), "nothing is judged of it");
    }
}
