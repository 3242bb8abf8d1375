//! The lines of `samples_TASK_*.jsonl`, one for each example and filter, with the request, the response and its scores.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::names::{self, MetricName, NO_FILTER};
use crate::report::by_method::python_list;
use spattn_eval::records::record::Record;
use spattn_eval::records::text_scores::{Choice, Likelihood};
use spattn_model::checksum::sha256_hex;
use spattn_tasks::metrics::Metric;

/// The scores of an example, by metric and filter. For perplexity, a score is a pair of log-likelihood and number of words or bytes.
pub(super) type Scores = Vec<(MetricName, Value)>;

/// The scores of a record.
pub(super) fn scores(record: &Record) -> Scores {
    if let Some(likelihood) = &record.likelihood {
        return of_text(likelihood);
    }
    if let Some(choice) = &record.choice {
        return of_options(choice);
    }
    let own = record.metric.map_or_else(|| ("score".to_owned(), NO_FILTER), |metric| names::metric(record, metric));
    let mut all = vec![(own, json!(record.score))];
    for (name, score) in &record.other_scores {
        let name =
            Metric::parse(name).map_or_else(|_| (name.clone(), NO_FILTER), |metric| names::metric(record, metric));
        if all.iter().all(|(known, _)| *known != name) {
            all.push((name, json!(score)));
        }
    }
    all
}

fn of_text(likelihood: &Likelihood) -> Scores {
    let Likelihood { nll, words, bytes, .. } = likelihood;
    [("word_perplexity", words), ("byte_perplexity", bytes), ("bits_per_byte", bytes)]
        .map(|(name, units)| ((name.to_owned(), NO_FILTER), json!([-nll, units])))
        .to_vec()
}

fn of_options(choice: &Choice) -> Scores {
    let is_right = |chosen: usize| json!(if chosen == choice.right { 1.0 } else { 0.0 });
    [("acc", choice.most_likely), ("acc_norm", choice.most_likely_by_length)]
        .map(|(name, chosen)| ((name.to_owned(), NO_FILTER), is_right(chosen)))
        .to_vec()
}

/// A line of the file, with the hashes that lm-eval's `task_hashes` are computed over.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampleLine {
    /// The line.
    pub line: Value,
    /// The hashes of document, prompt and target, joined.
    pub hashes: String,
}

/// The lines of a record, one for each filter. `doc_id` is the record's place in the file, `prompt` the prompt as the model read it, if it
/// was stored. `metrics` are all metrics of the file; those that the record lacks, such as RULER's of other lengths, are -1.
pub(super) fn lines(record: &Record, doc_id: usize, prompt: Option<&str>, metrics: &[MetricName]) -> Vec<SampleLine> {
    let doc = doc(record);
    let target = match &record.choice {
        Some(choice) => choice.right.to_string(),
        None => python_list(&record.references),
    };
    let hash = |text: &str| sha256_hex(text.as_bytes());
    let doc_hash = hash(&serde_json::to_string_pretty(&doc).unwrap_or_default());
    let prompt_hash = match (prompt, &record.example_sha256) {
        (Some(prompt), _) => hash(prompt),
        // A digest of the prompt's tokens.
        (None, Some(digest)) => digest.to_string(),
        (None, None) => hash(&record.question),
    };
    let target_hash = hash(&target);
    let mut by_filter: BTreeMap<&str, Scores> = BTreeMap::new();
    for (name, score) in scores(record) {
        by_filter.entry(name.1).or_default().push((name, score));
    }
    let mut all = Vec::new();
    for (filter, own) in by_filter {
        let mut scored = own;
        let others = metrics.iter().filter(|name| name.1 == filter);
        let missing: Vec<MetricName> =
            others.filter(|name| scored.iter().all(|(known, _)| known != *name)).cloned().collect();
        scored.extend(missing.into_iter().map(|name| (name, json!(-1.0))));
        let mut line = json!({
            "doc_id": doc_id,
            "doc": doc,
            "target": target,
            "arguments": arguments(record, prompt),
            "resps": responses(record),
            "filtered_resps": filtered(record),
            "filter": filter,
            "metrics": scored.iter().map(|(name, _)| name.0.as_str()).collect::<Vec<_>>(),
            "doc_hash": doc_hash,
            "prompt_hash": prompt_hash,
            "target_hash": target_hash,
        });
        if let Value::Object(fields) = &mut line {
            fields.extend(scored.into_iter().map(|(name, score)| (name.0, score)));
        }
        all.push(SampleLine { line, hashes: format!("{doc_hash}{prompt_hash}{target_hash}") });
    }
    all
}

/// The example, as far as the record holds it.
fn doc(record: &Record) -> Value {
    let mut doc = Map::new();
    let mut set = |name: &str, value: Value| doc.insert(name.to_owned(), value);
    set("question", json!(&*record.question));
    set("outputs", json!(*record.references));
    set("max_length", json!(record.length));
    set("prompt_tokens", json!(record.prompt_tokens));
    set("seed", json!(record.seed));
    set("sample", json!(record.sample));
    set("context", json!(record.context));
    set("depth", json!(record.depth));
    set("source", json!(&*record.source));
    Value::Object(doc)
}

/// What the model was given: the prompt if it was stored, otherwise the question; and how the answer was generated.
fn arguments(record: &Record, prompt: Option<&str>) -> Value {
    let context = prompt.unwrap_or(&record.question);
    match &record.choice {
        Some(choice) => {
            let options = choice.log_likelihoods.iter().enumerate();
            // Records do not hold the texts of the options.
            Value::Object(
                options.map(|(i, _)| (format!("gen_args_{i}"), json!({"arg_0": context, "arg_1": ""}))).collect(),
            )
        }
        None if record.likelihood.is_some() => json!({"gen_args_0": {"arg_0": context}}),
        None => json!({"gen_args_0": {"arg_0": context, "arg_1": generation(record)}}),
    }
}

/// How the answer of a record was generated, as `gen_kwargs`.
pub(super) fn generation(record: &Record) -> Value {
    json!({ "max_gen_toks": record.max_new_tokens, "do_sample": !record.repeats.is_empty(), "until": [] })
}

/// The responses to each request, one for each repeat. lm-eval writes all of them as text.
fn responses(record: &Record) -> Value {
    if let Some(likelihood) = &record.likelihood {
        return json!([[(-likelihood.nll).to_string()]]);
    }
    if let Some(choice) = &record.choice {
        return choice.log_likelihoods.iter().map(|option| json!([[option.to_string(), "None"]])).collect();
    }
    match record.repeats.is_empty() {
        true => json!([[&*record.prediction]]),
        false => json!([record.repeats.iter().map(|answer| &*answer.prediction).collect::<Vec<_>>()]),
    }
}

/// The response to each request that was scored.
fn filtered(record: &Record) -> Value {
    if let Some(likelihood) = &record.likelihood {
        return json!([(-likelihood.nll).to_string()]);
    }
    if let Some(choice) = &record.choice {
        return choice.log_likelihoods.iter().map(|option| json!([option.to_string(), "None"])).collect();
    }
    json!([&*record.prediction])
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;

    fn first(record: &Record) -> Value {
        lines(record, 7, None, &[]).remove(0).line
    }

    #[test]
    fn a_line_has_the_fields_of_lm_eval() {
        let mut r = Record { metric: Some(Metric::StringMatchAll), length: 4096, ..record("ruler/vt", "full", 3, 0.5) };
        r.references = vec!["a".to_owned(), "b".to_owned()].into();
        r.prediction = "a only".into();
        let line = first(&r);
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "doc_id",
                "doc",
                "target",
                "arguments",
                "resps",
                "filtered_resps",
                "filter",
                "metrics",
                "doc_hash",
                "prompt_hash",
                "target_hash",
                "4096"
            ]
        );
        assert_eq!((&line["doc_id"], &line["target"], &line["4096"]), (&json!(7), &json!("['a', 'b']"), &json!(0.5)));
        assert_eq!((&line["resps"], &line["filtered_resps"]), (&json!([["a only"]]), &json!(["a only"])));
        // sha256sum of "['a', 'b']", the hash of lm-eval's `hash_string`.
        assert_eq!(line["target_hash"], "d26dae360fbeede3ae287f208ab879bce83f31c43218c75cd09e6a408f84a755");
    }

    #[test]
    fn a_prompt_that_was_stored_is_the_argument() {
        let r = Record { question: "q?".into(), ..record("jsonl:a", "full", 0, 1.0) };
        let with = lines(&r, 0, Some("the whole prompt"), &[]).remove(0).line;
        assert_eq!(with["arguments"]["gen_args_0"]["arg_0"], "the whole prompt");
        assert_eq!(with["prompt_hash"], sha256_hex(b"the whole prompt"));
        assert_eq!(first(&r)["arguments"]["gen_args_0"]["arg_0"], "q?");
    }

    #[test]
    fn filters_have_lines_of_their_own_and_missing_metrics_are_marked() {
        let mut r = Record { metric: Some(Metric::Gsm8kStrict), ..record("gen/gsm8k_cot", "full", 0, 1.0) };
        r.other_scores.insert("gsm8k_flexible".to_owned(), 0.0);
        let both: Vec<Value> = lines(&r, 0, None, &[]).into_iter().map(|line| line.line).collect();
        let of = |line: &Value| (line["filter"].clone(), line["exact_match"].clone());
        assert_eq!(
            both.iter().map(of).collect::<Vec<_>>(),
            [(json!("flexible-extract"), json!(0.0)), (json!("strict-match"), json!(1.0))]
        );
        let r = Record { metric: Some(Metric::StringMatchAll), length: 1024, ..record("ruler/vt", "full", 0, 1.0) };
        let all = [("1024".to_owned(), NO_FILTER), ("2048".to_owned(), NO_FILTER)];
        let line = lines(&r, 0, None, &all).remove(0).line;
        assert_eq!(
            (&line["1024"], &line["2048"], &line["metrics"]),
            (&json!(1.0), &json!(-1.0), &json!(["1024", "2048"]))
        );
    }

    #[test]
    fn options_and_texts_are_scored_by_likelihood() {
        let choice = Choice::new(vec![-4.0, -3.0], vec![8, 2], 0);
        let r = Record { choice: Some(Box::new(choice)), ..record("mcq/piqa", "full", 0, 0.0) };
        let line = first(&r);
        assert_eq!((&line["acc"], &line["acc_norm"], &line["target"]), (&json!(0.0), &json!(1.0), &json!("0")));
        assert_eq!(line["resps"], json!([[["-4", "None"]], [["-3", "None"]]]));
        assert_eq!(line["arguments"].as_object().unwrap().len(), 2);
        let text = Likelihood { nll: 2.5, tokens: 4, words: 3, bytes: 12, same_top: 4, kl_sum: 0.0, kl: Vec::new() };
        let r = Record { likelihood: Some(Box::new(text)), ..record("ppl/wikitext2", "full", 0, 2.0) };
        let line = first(&r);
        assert_eq!((&line["word_perplexity"], &line["resps"]), (&json!([-2.5, 3]), &json!([["-2.5"]])));
    }
}
