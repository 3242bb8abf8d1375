//! `results_*.json`: means by task and metric, with the other fields that lm-eval's tools read.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::names::{self, MetricName, NO_FILTER};
use super::samples::{generation, scores};
use crate::report::by_method::{MethodRecords, OfModel};
use crate::version::PROGRAM;
use spattn_eval::records::record::Record;
use spattn_model::checksum::sha256_hex;

/// A task of a group, with what its files need.
pub(super) struct TaskFile<'a> {
    /// The task's name in lm-eval.
    pub name: String,
    /// Our name.
    pub ours: &'a str,
    /// Its records.
    pub records: &'a [&'a Record],
    /// All metrics of the records.
    pub metrics: Vec<MetricName>,
    /// The hash over the hashes of all samples.
    pub hash: String,
}

/// What is known of the model besides its records.
pub(super) struct ModelFacts<'a> {
    /// The model's name, with the method.
    pub name: &'a str,
    /// The model's folder.
    pub folder: &'a str,
    /// What the manifest states about the model.
    pub of_model: Option<&'a OfModel<'a>>,
}

/// The metrics of records, in order of first appearance.
pub(super) fn metrics(records: &[&Record]) -> Vec<MetricName> {
    let mut all: Vec<MetricName> = Vec::new();
    for (name, _) in records.iter().flat_map(|record| scores(record)) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The text of the file.
pub(super) fn text(group: &MethodRecords<'_>, tasks: &[TaskFile<'_>], facts: &ModelFacts<'_>) -> String {
    let by_task = |value: &dyn Fn(&TaskFile<'_>) -> Value| -> Value {
        Value::Object(tasks.iter().map(|task| (task.name.clone(), value(task))).collect())
    };
    let manifest = |key: &str| facts.of_model.map_or(&Value::Null, |found| &found.manifest[key]);
    let identity = |key: &str| facts.of_model.map_or(&Value::Null, |found| &found.identity[key]);
    let seconds: f64 = group
        .records()
        .map(|r| (r.prefill_s - r.prefill_reused_s).max(0.0) + (r.index_s - r.index_reused_s).max(0.0) + r.decode_s)
        .sum();
    let head = group.head;
    let whole = json!({
        "results": by_task(&result),
        "group_subtasks": {},
        "configs": by_task(&config),
        "versions": by_task(&|_| json!(format!("spattn {}", PROGRAM.version))),
        "n-shot": by_task(&|task| json!(names::shots(task.ours))),
        "higher_is_better": by_task(&higher_is_better),
        "n-samples": by_task(&|task| json!({ "original": task.records.len(), "effective": task.records.len() })),
        "config": {
            "model": "spattn",
            "model_args": {
                "pretrained": &*head.model,
                "method": &*head.method,
                "params": &*head.params,
                "sparse_from": &*head.protocol,
            },
            "model_dtype": identity("dtype"),
            "model_revision": manifest("model")["revision"],
            "model_sha": identity("weights_sha256"),
            "batch_size": null,
            "batch_sizes": [],
            "device": identity("engine"),
            "use_cache": null,
            "limit": null,
            "bootstrap_iters": 0,
            "gen_kwargs": null,
            "random_seed": head.seed,
            "numpy_seed": head.seed,
            "torch_seed": head.seed,
            "fewshot_seed": head.seed,
        },
        "git_hash": manifest("program")["commit"],
        "date": facts.of_model.map_or(0, OfModel::seconds),
        "spattn_version": manifest("program")["version"],
        "eot_token_id": null,
        "max_length": manifest("model")["context_limit"],
        "task_hashes": by_task(&|task| json!(task.hash)),
        "model_source": "spattn",
        "model_name": facts.name,
        "model_name_sanitized": facts.folder,
        "system_instruction": null,
        "system_instruction_sha": system_prompt_hash(identity("system_prompt")),
        "fewshot_as_multiturn": false,
        "chat_template": null,
        "chat_template_sha": identity("tokens")["chat_template_sha256"],
        "total_evaluation_time_seconds": seconds.to_string(),
    });
    let text = serde_json::to_string_pretty(&whole).unwrap_or_default();
    text + "\n"
}

/// The hash of a system prompt. Identities hold either the prompt or its hash.
fn system_prompt_hash(identity: &Value) -> Value {
    match identity.as_str() {
        None => Value::Null,
        Some(text) if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) => json!(text),
        Some(text) => json!(sha256_hex(text.as_bytes())),
    }
}

/// The means and standard errors of a task, under the keys `METRIC,FILTER` and `METRIC_stderr,FILTER`.
fn result(task: &TaskFile<'_>) -> Value {
    let mut all = Map::new();
    all.insert("name".to_owned(), json!(task.name));
    all.insert("alias".to_owned(), json!(task.name));
    all.insert("sample_len".to_owned(), json!(task.records.len()));
    let mut values: BTreeMap<MetricName, Vec<Value>> = BTreeMap::new();
    for (name, value) in task.records.iter().flat_map(|record| scores(record)) {
        values.entry(name).or_default().push(value);
    }
    for name in &task.metrics {
        let of_metric = &values[name];
        let (value, error) = match of_metric[0].is_array() {
            true => (over_text(&name.0, of_metric), None),
            false => {
                let numbers: Vec<f64> = of_metric.iter().filter_map(Value::as_f64).collect();
                (spattn_stats::mean(&numbers), standard_error(&numbers))
            }
        };
        all.insert(format!("{},{}", name.0, name.1), json!(value));
        all.insert(format!("{}_stderr,{}", name.0, name.1), error.map_or(json!("N/A"), |error| json!(error)));
    }
    Value::Object(all)
}

/// A measure over the text of all examples, from pairs of log-likelihood and number of units (words or bytes).
fn over_text(metric: &str, pairs: &[Value]) -> f64 {
    let sum = |at: usize| pairs.iter().filter_map(|pair| pair[at].as_f64()).sum::<f64>();
    let mean = -sum(0) / sum(1);
    match metric {
        "bits_per_byte" => mean / std::f64::consts::LN_2,
        _ => mean.exp(),
    }
}

/// The standard error of a mean, computed as lm-eval's `mean_stderr`; `None` for a single value.
fn standard_error(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = spattn_stats::mean(values);
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt() / n.sqrt())
}

/// The configuration of a task, as far as records state it.
fn config(task: &TaskFile<'_>) -> Value {
    let head = task.records[0];
    let kind = match () {
        () if head.likelihood.is_some() => "loglikelihood_rolling",
        () if head.choice.is_some() => "multiple_choice",
        () => "generate_until",
    };
    let is_better = higher_is_better(task);
    let metrics: Vec<Value> = task
        .metrics
        .iter()
        .map(|(name, _)| {
            let aggregation = match (kind, name.as_str()) {
                ("loglikelihood_rolling", "bits_per_byte") => "bits_per_byte",
                ("loglikelihood_rolling", _) => "weighted_perplexity",
                _ => "mean",
            };
            json!({ "metric": name, "aggregation": aggregation, "higher_is_better": is_better[name] })
        })
        .collect();
    let mut config = json!({
        "task": task.name,
        "spattn_task": task.ours,
        "dataset_path": &*head.source,
        "output_type": kind,
        "num_fewshot": names::shots(task.ours),
        "metric_list": metrics,
        "repeats": head.repeats.len().max(1),
        "should_decontaminate": false,
        "metadata": { "version": format!("spattn {}", PROGRAM.version) },
    });
    if kind == "generate_until" {
        config["generation_kwargs"] = generation(head);
    }
    let filters: Vec<&str> =
        task.metrics.iter().map(|(_, filter)| *filter).filter(|filter| *filter != NO_FILTER).collect();
    if !filters.is_empty() {
        config["filter_list"] = filters.iter().map(|filter| json!({ "name": filter })).collect();
    }
    config
}

fn higher_is_better(task: &TaskFile<'_>) -> Value {
    let is_text = task.records[0].likelihood.is_some();
    Value::Object(task.metrics.iter().map(|(name, _)| (name.clone(), json!(!is_text))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;
    use spattn_eval::records::text_scores::Likelihood;
    use spattn_tasks::metrics::Metric;

    fn of_task<'a>(ours: &'a str, records: &'a [&'a Record]) -> Value {
        let metrics = metrics(records);
        result(&TaskFile { name: names::task(ours), ours, records, metrics, hash: String::new() })
    }

    #[test]
    fn means_and_errors_are_those_of_lm_eval() {
        let of = |sample: usize, score: f64, length: usize| Record {
            metric: Some(Metric::StringMatchAll),
            length,
            ..record("ruler/vt", "full", sample, score)
        };
        let all = [of(0, 1.0, 1024), of(1, 0.0, 1024), of(2, 0.5, 1024), of(0, 0.25, 2048)];
        let result = of_task("ruler/vt", &all.iter().collect::<Vec<_>>());
        assert_eq!((&result["1024,none"], &result["2048,none"]), (&json!(0.5), &json!(0.25)));
        // statistics.stdev([1, 0, .5]) / sqrt(3) = 0.5 / 1.7320508
        let error = result["1024_stderr,none"].as_f64().unwrap();
        assert!((error - 0.288_675_134_594_813).abs() < 1e-12, "{error}");
        assert_eq!(
            (&result["2048_stderr,none"], &result["sample_len"], &result["alias"]),
            (&json!("N/A"), &json!(4), &json!("ruler_vt"))
        );
    }

    #[test]
    fn perplexity_is_over_all_words() {
        let of = |nll: f64, words: usize| Record {
            likelihood: Some(Box::new(Likelihood {
                nll,
                tokens: 9,
                words,
                bytes: 4 * words,
                same_top: 0,
                kl_sum: 0.0,
                kl: Vec::new(),
            })),
            ..record("ppl/wikitext2", "full", 0, 1.0)
        };
        let all = [of(3.0, 2), of(1.0, 2)];
        let result = of_task("ppl/wikitext2", &all.iter().collect::<Vec<_>>());
        let near = |key: &str, expected: f64| (result[key].as_f64().unwrap() - expected).abs() < 1e-12;
        assert!(
            near("word_perplexity,none", 1.0_f64.exp()) && near("byte_perplexity,none", 0.25_f64.exp()),
            "{result}"
        );
        assert!(near("bits_per_byte,none", 0.25 / std::f64::consts::LN_2));
    }
}
