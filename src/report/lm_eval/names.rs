//! The names that lm-evaluation-harness gives to tasks, metrics, filters, models and files.

use spattn_eval::records::record::Record;
use spattn_model::checksum::sha256_hex;
use spattn_tasks::metrics::Metric;

/// Tasks whose names in lm-eval do not follow from ours.
const TASKS: [(&str, &str); 13] = [
    ("ruler/vt", "ruler_vt"),
    ("ruler/cwe", "ruler_cwe"),
    ("ruler/fwe", "ruler_fwe"),
    ("ruler/qa_1", "ruler_qa_squad"),
    ("ruler/qa_2", "ruler_qa_hotpot"),
    ("ppl/wikitext2", "wikitext"),
    ("gen/gsm8k", "gsm8k"),
    ("gen/gsm8k_cot", "gsm8k_cot"),
    ("gen/coqa", "coqa"),
    ("gen/mmlu_flan_cot", "mmlu_flan_cot_fewshot"),
    ("gen/aime24", "aime24"),
    ("gen/aime25", "aime25"),
    ("gen/aime", "aime"),
];

/// The name of a task. Options that lm-eval states elsewhere (`shots`) are left out; others stay, as they make another task.
pub(super) fn task(ours: &str) -> String {
    let (bare, options) = ours.split_once(':').filter(|(family, _)| *family != "jsonl").unwrap_or((ours, ""));
    let options: Vec<&str> =
        options.split(',').filter(|option| !option.is_empty() && !option.starts_with("shots")).collect();
    let known = TASKS.iter().find(|(name, _)| *name == bare).map(|(_, theirs)| (*theirs).to_owned());
    let bare = known.unwrap_or_else(|| match bare.split_once('/') {
        Some(("ruler", name)) if name.starts_with("niah_") => name.to_owned(),
        Some(("mcq", name)) => name.to_owned(),
        // lm-eval drops the g.
        Some(("infinitebench", name)) => format!("infinitebench_{}", name.replace("_eng", "_en")),
        Some(("longbench_e", name)) => {
            let (set, range) = name.split_once('/').unwrap_or((name, ""));
            format!("longbench_{set}_e{}{range}", if range.is_empty() { "" } else { "_" })
        }
        _ => bare.to_owned(),
    });
    let whole = [&[bare.as_str()], &options[..]].concat().join("_");
    whole.chars().map(|c| if c.is_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

/// The number of worked examples of a task.
pub(super) fn shots(ours: &str) -> usize {
    let given = ours.split([':', ',']).find_map(|option| option.strip_prefix("shots=")?.parse().ok());
    let bare = ours.split(':').next().unwrap_or_default();
    given.unwrap_or(match bare {
        "gen/gsm8k_cot" => 8,
        "gen/gsm8k" => 5,
        "gen/mmlu_flan_cot" => 4,
        _ => 0,
    })
}

/// The name of a metric, and of the filter that predictions go through first.
pub(super) type MetricName = (String, &'static str);

/// The filter of metrics that score predictions unchanged.
pub(super) const NO_FILTER: &str = "none";

/// The name of a record's metric. In lm-eval, RULER's metrics are named by length.
pub(super) fn metric(record: &Record, metric: Metric) -> MetricName {
    if record.task.starts_with("ruler/") && record.length > 0 {
        return (record.length.to_string(), NO_FILTER);
    }
    let (name, filter) = match metric {
        Metric::Gsm8kStrict | Metric::Gsm8kHashes => ("exact_match", "strict-match"),
        Metric::Gsm8kFlexible => ("exact_match", "flexible-extract"),
        Metric::AnswerIs => ("exact_match", "get-answer"),
        Metric::Aime => ("exact_match", NO_FILTER),
        Metric::CoqaF1 => ("f1", NO_FILTER),
        Metric::CoqaEm => ("em", NO_FILTER),
        Metric::QaF1 => ("qa_f1_score", NO_FILTER),
        Metric::QaF1Zh => ("qa_f1_zh_score", NO_FILTER),
        Metric::RougeL => ("rouge_score", NO_FILTER),
        Metric::RougeLZh => ("rouge_zh_score", NO_FILTER),
        Metric::Classification => ("classification_score", NO_FILTER),
        Metric::Retrieval => ("retrieval_score", NO_FILTER),
        Metric::RetrievalZh => ("retrieval_zh_score", NO_FILTER),
        Metric::Count => ("count_score", NO_FILTER),
        Metric::CodeSim => ("code_sim_score", NO_FILTER),
        other => (other.name(), NO_FILTER),
    };
    (name.to_owned(), filter)
}

/// The name of a model with a method, as lm-eval's tools list it.
pub(super) fn model(model: &str, label: &str, protocol: Option<&str>) -> String {
    let protocol = protocol.map_or(String::new(), |protocol| format!(",sparse_from={protocol}"));
    let separator = if label.contains(':') || protocol.is_empty() { "" } else { ":" };
    let protocol = if separator == ":" { protocol.trim_start_matches(',') } else { &protocol };
    format!("{model}+{label}{separator}{protocol}")
}

/// The name of a model's folder, by lm-eval's `sanitize_model_name`. A name that is too long is cut and ends in a hash.
pub(super) fn folder(model: &str) -> String {
    const LONGEST: usize = 180;
    let is_replaced = |c: char| "\"<>:/|\\?*[]".contains(c) || c.is_control();
    let mut name = String::new();
    let mut is_in_run = false;
    for c in model.chars() {
        match is_replaced(c) {
            true if is_in_run => {}
            true => name.push_str("__"),
            false => name.push(c),
        }
        is_in_run = is_replaced(c);
    }
    match name.char_indices().nth(LONGEST) {
        None => name,
        Some((end, _)) => format!("{}-{}", &name[..end], &sha256_hex(model.as_bytes())[..8]),
    }
}

/// The time in names of files: Python's `isoformat` with `-` instead of `:`.
pub(super) fn time(created: &str) -> String {
    format!("{}.000000", created.trim_end_matches('Z').replace(':', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;

    #[test]
    fn tasks_have_the_names_of_lm_eval() {
        for (ours, theirs) in [
            ("ruler/niah_single_1", "niah_single_1"),
            ("ruler/vt", "ruler_vt"),
            ("ruler/qa_1", "ruler_qa_squad"),
            ("ruler/qa_synth", "ruler_qa_synth"),
            ("longbench/qasper", "longbench_qasper"),
            ("longbench_e/qasper/0-4k", "longbench_qasper_e_0-4k"),
            ("mcq/mmlu:shots=5", "mmlu"),
            ("mcq/mmlu:shots=5,shots_seed=1234", "mmlu"),
            ("gen/gsm8k_cot", "gsm8k_cot"),
            ("ppl/wikitext2", "wikitext"),
            ("ppl/wikitext2:detokenize=true", "wikitext_detokenize_true"),
            ("infinitebench/longbook_qa_eng", "infinitebench_longbook_qa_en"),
            ("jsonl:my questions", "jsonl_my_questions"),
            ("needle/number:steps=3", "needle_number_steps_3"),
        ] {
            assert_eq!(task(ours), theirs, "{ours}");
        }
        assert_eq!((shots("mcq/mmlu:shots=5"), shots("gen/gsm8k_cot"), shots("ruler/vt")), (5, 8, 0));
    }

    #[test]
    fn rulers_metric_is_the_length() {
        let of =
            |task: &str, length| metric(&Record { length, ..record(task, "full", 0, 1.0) }, Metric::StringMatchAll);
        assert_eq!(of("ruler/vt", 4096), ("4096".to_owned(), "none"));
        assert_eq!(of("jsonl:a", 0), ("string_match_all".to_owned(), "none"));
        let r = record("gen/gsm8k_cot", "full", 0, 1.0);
        assert_eq!(metric(&r, Metric::Gsm8kFlexible), ("exact_match".to_owned(), "flexible-extract"));
    }

    #[test]
    fn models_and_folders_are_written_as_lm_eval_does() {
        assert_eq!(model("builtin", "full", None), "builtin+full");
        assert_eq!(model("a/b", "quest:page=16", Some("decode")), "a/b+quest:page=16,sparse_from=decode");
        assert_eq!(model("a/b", "full", Some("decode")), "a/b+full:sparse_from=decode");
        // re.sub(r"[\"<>:/|\\?*\[\]]+", "__", name)
        assert_eq!(folder("a/b+quest:page=16"), "a__b+quest__page=16");
        assert_eq!(folder("hip:k=512>topk<<x"), "hip__k=512__topk__x");
        let long = folder(&"x".repeat(400));
        assert!(long.len() < 200 && long != folder(&"x".repeat(401)));
        assert_eq!(time("2026-11-22T15:39:07Z"), "2026-11-22T15-39-07.000000");
    }
}
