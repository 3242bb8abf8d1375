//! The line that says how answers were sampled, from the manifests of the runs. If all answers are greedy, there is none.

use serde_json::Value;

use super::Report;
use super::format::distinct;
use super::heading::{counted, identities};

/// "Answers are sampled: temperature 0.7, top-p 0.95, seed 42, 4 answers to each example. ..."; `None` if all answers are greedy, or if
/// no manifest is known.
pub fn line(report: &Report) -> Option<String> {
    let identities: Vec<&Value> = report.sources.iter().flat_map(|source| identities(&source.manifest)).collect();
    let ways = distinct(identities.iter().filter_map(|identity| way(identity)));
    if ways.is_empty() {
        return None;
    }
    let is_all = identities.iter().all(|identity| way(identity).is_some());
    let what = if is_all { "Answers" } else { "Some answers" };
    let has_repeats = identities.iter().any(|identity| repeats(identity) > 1);
    let score = if has_repeats { "An example's score is the mean of its answers" } else { "Each answer has a score" };
    Some(format!(
        "{what} are sampled: {}{}. {score}; intervals are over these scores, so they contain the chance of sampling.",
        ways.join("; or "),
        seeds(report)
    ))
}

/// How answers were sampled under an identity; `None` if they were not.
fn way(identity: &Value) -> Option<String> {
    let temperature = identity["temperature"].as_f64()?;
    let top_p = identity["top_p"].as_f64().map_or(String::new(), |p| format!("top-p {p}, "));
    Some(format!("temperature {temperature}, {top_p}{} to each example", counted(repeats(identity), "answer")))
}

/// The number of answers to each example.
fn repeats(identity: &Value) -> usize {
    identity["repeats"].as_u64().map_or(1, |repeats| repeats as usize)
}

fn seeds(report: &Report) -> String {
    let mut seeds: Vec<u64> = report.records.iter().map(|record| record.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let list = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match seeds.len() {
        0 => String::new(),
        1 => format!(", seed {list}"),
        _ => format!(", seeds {list}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::merge::Source;
    use spattn_eval::records::testing::record;

    fn told(identity: Value) -> Option<String> {
        let manifest = json!({ "identity": identity });
        let sources = [Source { name: "run".into(), dir: "run".into(), manifest, records: 2 }];
        let records = [record("ruler/vt", "full", 0, 1.0), record("ruler/vt", "full", 1, 1.0)];
        line(&Report { sources: &sources, ..Report::new(&records, &[]) })
    }

    #[test]
    fn sampled_answers_are_told_with_how_they_were_drawn() {
        let sampled = json!({ "seed": 1, "temperature": 0.7, "top_p": 0.95, "repeats": 4 });
        let seed = record("ruler/vt", "full", 0, 1.0).seed;
        assert_eq!(
            told(sampled.clone()).unwrap(),
            format!(
                "Answers are sampled: temperature 0.7, top-p 0.95, 4 answers to each example, seed {seed}. An example's score is the mean of \
                 its answers; intervals are over these scores, so they contain the chance of sampling."
            )
        );
        let once = told(json!([{ "temperature": 1.0 }])).unwrap();
        assert!(once.starts_with("Answers are sampled: temperature 1, 1 answer to each example, seed"), "{once}");
        assert!(once.contains("Each answer has a score; intervals"), "{once}");
        let both = told(json!([sampled, { "seed": 1 }])).unwrap();
        assert!(both.starts_with("Some answers are sampled: temperature 0.7"), "{both}");
    }

    #[test]
    fn nothing_is_said_of_greedy_answers() {
        assert_eq!(told(json!({ "seed": 1 })), None);
        assert_eq!(line(&Report::new(&[], &[])), None);
    }
}
