//! Facts about an item's run that its page lists: models, tasks, lengths, numbers of examples.

use std::collections::BTreeSet;

use serde_json::Value;

use spattn_eval::records::record::Record;
use spattn_eval::records::timing::TimingConditions;
use spattn_lab::papers::learning::Learning;
use spattn_lab::papers::seen::AnalysisTables;

/// What was run, from its records.
pub(super) fn facts_of_records(records: &[Record]) -> Vec<(String, String)> {
    if records.is_empty() {
        return Vec::new();
    }
    let list = |of: &dyn Fn(&Record) -> String| {
        let all: BTreeSet<String> = records.iter().map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    let lengths: BTreeSet<usize> = records.iter().map(|r| r.length).collect();
    let lengths: Vec<String> = lengths.into_iter().filter(|length| *length > 0).map(|n| n.to_string()).collect();
    let examples: BTreeSet<_> = records.iter().map(|r| (&r.task, r.length, r.seed, r.sample)).collect();
    let mut facts =
        vec![("model".to_owned(), list(&|r| r.model.to_string())), ("tasks".to_owned(), list(&|r| r.task.to_string()))];
    // Prompts that are not cut to a length are recorded with length 0.
    facts.extend((!lengths.is_empty()).then(|| ("lengths".to_owned(), lengths.join(", "))));
    facts.extend([
        ("sparse from".to_owned(), list(&|r| r.protocol.to_string())),
        ("examples".to_owned(), format!("{}, {} records", examples.len(), records.len())),
    ]);
    facts
}

/// What was timed alone, from its records, and which methods have no time (tokens selected on the host).
pub(super) fn facts_of_latency(alone: &[Record]) -> Vec<(String, String)> {
    let of_the_host = |record: &&Record| record.conditions.as_deref().is_some_and(TimingConditions::is_of_the_host);
    let (host, own): (Vec<&Record>, Vec<&Record>) = alone.iter().partition(of_the_host);
    let Some(first) = own.first() else { return Vec::new() };
    let tasks: BTreeSet<&str> = own.iter().map(|r| &*r.task).collect();
    let lengths: BTreeSet<usize> = own.iter().map(|r| r.length).collect();
    let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    let examples: BTreeSet<_> = own.iter().map(|r| (&r.task, r.length, r.seed, r.sample)).collect();
    let tasks = tasks.into_iter().collect::<Vec<_>>().join(", ");
    let on = first.conditions.as_deref().map_or(String::new(), |conditions| format!("; {conditions}"));
    let timed = format!("{tasks} at {}, {} examples{on}", lengths.join(", "), examples.len());
    let mut facts = vec![("steps timed alone".to_owned(), timed)];
    let methods: BTreeSet<String> = host.iter().map(|r| format!("{}:{}", r.method, r.params)).collect();
    if !methods.is_empty() {
        let methods: Vec<String> = methods.into_iter().collect();
        let why = "tokens are selected on the host, so a step's time is not the method's";
        facts.push(("steps without a time".to_owned(), format!("{}: {why}", methods.join("; "))));
    }
    facts
}

/// What was learned, from the stored units.
pub(super) fn facts_of_learning(seen: &[AnalysisTables], learning: &Learning) -> Vec<(String, String)> {
    let Some(first) = seen.first() else { return Vec::new() };
    let Learning { calibrations, tokens, length, .. } = learning;
    vec![
        ("learned".to_owned(), calibrations.join("; ")),
        ("model".to_owned(), first.model.clone()),
        ("of".to_owned(), format!("{tokens} tokens in blocks of up to {length}")),
        (
            "measured on".to_owned(),
            format!("{} blocks of held-out text, by layer: {} layers", first.documents, seen.len()),
        ),
    ]
}

/// What was analysed, from the stored units.
pub(super) fn facts_of_analyses(seen: &[AnalysisTables]) -> Vec<(String, String)> {
    let Some(first) = seen.first() else { return Vec::new() };
    let list = |of: &dyn Fn(&AnalysisTables) -> String| {
        let all: BTreeSet<String> = seen.iter().map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    };
    let lengths: BTreeSet<usize> = seen.iter().map(|one| one.length).collect();
    let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    let words = |key: &str| {
        let all = first.identity[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        all.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let queries = match first.identity["queries"].as_u64() {
        Some(n) if n > 1 => format!("queries of the last {n} tokens"),
        _ => "queries of the last token".to_owned(),
    };
    let documents: usize = seen.iter().map(|one| one.documents).sum();
    let units = match documents == seen.len() {
        true => format!("{documents}, each by itself"),
        false => format!("{documents}, {} at a time", first.documents),
    };
    vec![
        ("analyses".to_owned(), words("analyses")),
        ("model".to_owned(), list(&|one| one.model.clone())),
        ("prompts of".to_owned(), list(&|one| one.task.clone())),
        ("lengths".to_owned(), lengths.join(", ")),
        ("prompts".to_owned(), format!("{units}; {queries}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;

    #[test]
    fn a_run_without_lengths_states_none() {
        let of = |length: usize| {
            let facts = facts_of_records(&[Record { length, ..record("gen/mmlu_flan_cot", "full", 0, 1.0) }]);
            facts.into_iter().map(|(what, _)| what).collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["model", "tasks", "sparse from", "examples"]);
        assert_eq!(of(1024), ["model", "tasks", "lengths", "sparse from", "examples"]);
    }
}
