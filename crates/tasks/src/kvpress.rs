//! Rows in kvpress' format (github.com/NVIDIA/kvpress, its data sets `simonjegou/ruler` and others): `context`, `question`,
//! `answer_prefix`, `answer` (`answers` for LongBench), `task`, `max_new_tokens`.
//!
//! Context and question, with nothing between them, are the user's turn; the answer begins with the answer prefix. For a model without a
//! chat template, kvpress' pipeline puts a line break before the answer prefix. RULER does not, so rows of RULER's tasks have none unless
//! `layout=kvpress` asks for it; other rows do.
//!
//! `task` decides how a row is scored, as in kvpress' evaluation (`evaluate_registry.py`): a task of RULER, a set of LongBench, or a task
//! of InfiniteBench or LooGLE. Rows of LongBench v2 name no task and have the fields of its four options. The user has to give a metric
//! for rows that kvpress does not score (ZeroSCROLLS, whose answers are secret), or scores by a metric that does not exist here.

use serde_json::Value;

use super::metrics::Metric;
use super::metrics::datasets::Dataset;
use super::rows::Row;
use super::{long_sets, longbench, ruler};
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;

const TASK: &str = "task";
const TOKENS: &str = "max_new_tokens";
const PREFIX: &str = "answer_prefix";
/// The field that kvpress needs in every row.
const PREFIX_HINT: &str = "rows of kvpress need it, if empty as \"answer_prefix\": \"\"; for rows of another kind, remove `task` and `max_new_tokens`";
/// The fields that identify a row with context and question as one of kvpress.
const OWN: [&str; 2] = [TASK, TOKENS];

/// A row's prompt in parts, with its answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The text up to the question.
    pub context: String,
    /// The question.
    pub question: String,
    /// Start of the answer.
    pub answer_prefix: String,
    /// Acceptable answers, or all parts of the answer.
    pub references: Vec<String>,
}

/// Whether a row is one of kvpress, by its fields.
pub fn is_row(row: &Row) -> bool {
    let has = |name: &str| row.fields.contains_key(name);
    has("context") && has("question") && OWN.iter().any(|name| has(name))
}

/// Reads a row.
///
/// # Errors
/// If a field is missing or of another type.
pub fn question(row: &Row) -> Result<Question, UsageError> {
    Ok(Question {
        context: row.required("context")?.to_owned(),
        question: row.text("question")?.unwrap_or_default().to_owned(),
        answer_prefix: row.required(PREFIX).map_err(|e| e.hint(PREFIX_HINT))?.to_owned(),
        references: row.answers()?,
    })
}

/// Tasks of InfiniteBench that kvpress scores as this crate does.
const INFINITEBENCH: [&str; 6] =
    ["passkey", "number_string", "kv_retrieval", "longbook_qa_eng", "longbook_qa_chn", "longbook_choice_eng"];
/// A task of InfiniteBench for which kvpress also accepts an answer that is part of a word.
const DIALOGUE: &str = "longdialogue_qa_eng";
/// Tasks of LooGLE that kvpress scores by ROUGE and BLEU.
const LOOGLE: [&str; 3] = ["shortdep_qa", "longdep_qa", "longdep_summarization"];
/// Fields that identify rows of LongBench v2, which name no task.
const LONGBENCH_V2: [&str; 5] = ["difficulty", "choice_A", "choice_B", "choice_C", "choice_D"];

/// How kvpress scores the rows of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// The metric of a row.
    pub metric: Metric,
    /// Metrics that are recorded in addition.
    pub also: Vec<Metric>,
    /// Whether only the first line of a prediction is scored.
    pub first_line: bool,
    /// Whether it is a task of RULER; its joined parts are RULER's prompt.
    pub is_rulers: bool,
    /// Tokens to generate for a row that does not state the number.
    max_new_tokens: Option<usize>,
}

impl Known {
    fn new((metric, also): (Metric, Vec<Metric>)) -> Self {
        Self { metric, also, first_line: false, is_rulers: false, max_new_tokens: None }
    }

    /// The scoring of the task with this name.
    fn of(task: &str) -> Option<Self> {
        let of_set = |name: String| long_sets::scoring(&name).map(Self::new);
        let name = format!("ruler/{task}");
        if let Ok(dataset) = Dataset::parse(&name) {
            let max_new_tokens = ruler::max_new_tokens(&name);
            return Some(Self { is_rulers: true, max_new_tokens, ..Self::new((dataset.metric, Vec::new())) });
        }
        // LongBench-E is scored the same way; kvpress writes its sets with a hyphen.
        if let Some(set) = longbench::Set::find(task.strip_suffix("-e").unwrap_or(task)) {
            let scoring = set.scoring();
            return Some(Self { first_line: scoring.first_line, ..Self::new((scoring.metric, scoring.also.to_vec())) });
        }
        match task {
            DIALOGUE => Some(Self::new((Metric::ContainsInCapitals, Vec::new()))),
            _ if INFINITEBENCH.contains(&task) => of_set(format!("infinitebench/{task}")),
            _ if LOOGLE.contains(&task) => of_set(format!("loogle/{task}")),
            _ => None,
        }
    }
}

/// How a row is scored, by the task that it names or, for LongBench v2, by its fields; `None` if the task is not known.
///
/// # Errors
/// If the field is not a text.
pub fn known(row: &Row) -> Result<Option<Known>, UsageError> {
    match row.text(TASK)? {
        Some(task) => Ok(Known::of(task)),
        None if LONGBENCH_V2.iter().all(|name| row.fields.contains_key(*name)) => {
            Ok(long_sets::scoring("longbench_v2").map(Known::new))
        }
        None => Ok(None),
    }
}

/// The error for a row whose metric is not known.
///
/// # Errors
/// If the task's name is not a text.
pub fn unscored(row: &Row) -> Result<UsageError, UsageError> {
    let named = row.text(TASK)?.map_or("is missing".to_owned(), |name| {
        format!("is `{name}`, which kvpress scores in a way that is not known here")
    });
    Ok(row.wrong(format!("the field `{TASK}` {named}: the metric of the row is unknown")))
}

/// Tokens to generate, as stated by the row or else by its task.
///
/// # Errors
/// If neither states it, or the row's value is not a number of tokens.
pub fn max_new_tokens(row: &Row, known: Option<&Known>) -> Result<usize, UsageError> {
    match row.fields.get(TOKENS) {
        None | Some(Value::Null) => known
            .and_then(|known| known.max_new_tokens)
            .ok_or_else(|| row.wrong(format!("the field `{TOKENS}` is missing"))),
        Some(value) => tokens(value)
            .ok_or_else(|| row.wrong(format!("the field `{TOKENS}` is not a whole number from 1 to {MOST_TOKENS}"))),
    }
}

/// Reads a number of tokens; tables with gaps write whole numbers as `128.0`.
fn tokens(value: &Value) -> Option<usize> {
    let whole = |number: f64| (number.fract() == 0.0 && (1.0..=MOST_TOKENS as f64).contains(&number)).then_some(number);
    value.as_f64().and_then(whole).map(|number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(fields: Value) -> Row {
        let Value::Object(fields) = fields else { panic!("{fields}") };
        Row { fields, place: "f.jsonl:3".to_owned(), number: 3 }
    }

    #[test]
    fn tasks_are_scored_and_end_as_rulers_do() {
        // Metric and number of tokens of each kind of task, from kvpress' evaluation/benchmarks/ruler.
        for (kind, metric_name, count) in [
            ("niah_single_1", "string_match_all", 128),
            ("niah_multivalue", "string_match_all", 128),
            ("vt", "string_match_all", 30),
            ("cwe", "string_match_all", 120),
            ("fwe", "string_match_all", 50),
            ("qa_1", "string_match_part", 32),
            ("qa_2", "string_match_part", 32),
        ] {
            let of = row(json!({"context": "c", "question": "q", "answer": ["a"], "task": kind}));
            assert!(is_row(&of));
            let known = known(&of).unwrap().unwrap();
            assert_eq!(
                (known.metric.name(), max_new_tokens(&of, Some(&known)).unwrap()),
                (metric_name, count),
                "{kind}"
            );
            assert!(known.is_rulers);
        }
    }

    /// The scorers of kvpress' `evaluation/benchmarks/*/calculate_metrics.py`, by the task names in its rows.
    #[test]
    fn tasks_beyond_ruler_are_scored_as_kvpress_does() {
        for (task, metric, first_line, also) in [
            ("qasper", "qa_f1", false, 0),
            ("hotpotqa-e", "qa_f1", false, 0),
            ("trec", "classification", true, 0),
            ("triviaqa", "qa_f1", true, 0),
            ("gov_report", "rouge_l", false, 0),
            ("passage_count", "count", false, 0),
            ("lcc", "code_sim", false, 1),
            ("kv_retrieval", "word", false, 0),
            ("passkey", "first_digits", false, 0),
            ("longbook_choice_eng", "choice", false, 0),
            ("longdialogue_qa_eng", "contains_in_capitals", false, 0),
            ("shortdep_qa", "rouge_l_recall", false, 4),
        ] {
            let known = Known::of(task).unwrap_or_else(|| panic!("{task}"));
            let found = (known.metric.name(), known.first_line, known.also.len(), known.is_rulers);
            assert_eq!(found, (metric, first_line, also, false), "{task}");
        }
        // kvpress scores these against labels of another type, by evaluating Python, or not at all.
        for task in
            ["code_run", "math_find", "code_debug", "longbook_sum_eng", "shortdep_cloze", "space_digest", "squality"]
        {
            assert_eq!(Known::of(task), None, "{task}");
        }
        let v2 = json!({"context": "c", "question": "q", "answer_prefix": "", "answer": "B", "max_new_tokens": 16, "difficulty": "hard",
            "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d"});
        assert_eq!(known(&row(v2)).unwrap().unwrap().metric.name(), "correct_letter");
    }

    /// kvpress reads every row's answer prefix, and every element of its list of answers.
    #[test]
    fn a_row_has_an_answer_prefix_and_a_list_that_is_one() {
        let base = json!({"context": "c", "question": "q", "answer_prefix": "", "answer": ["a"], "task": "vt"});
        let with = |name: &str, value: Value| {
            let mut fields = base.clone();
            fields[name] = value;
            question(&row(fields))
        };
        let mut without = base.clone();
        without.as_object_mut().unwrap().remove(PREFIX);
        let told =
            |read: Result<Question, UsageError>| read.map_err(|e| (e.what, e.hint.unwrap_or_default())).unwrap_err();
        let (what, hint) = told(question(&row(without)));
        assert_eq!(what, "f.jsonl:3: the field `answer_prefix` is missing");
        assert!(hint.contains("\"answer_prefix\": \"\""), "{hint}");
        assert_eq!(told(with(PREFIX, Value::Null)).0, "f.jsonl:3: the field `answer_prefix` is null");
        for list in ["['a', 'b']", "['a' 'b']", "[\"a\"]"] {
            assert!(told(with("answer", list.into())).0.contains("an answer is a list written as text"));
        }
        assert_eq!(told(with("answer", Value::Null)).0, "f.jsonl:3: the field `answer` is null");
        assert_eq!(with("answer", "a".into()).unwrap().references, ["a"]);
    }

    #[test]
    fn what_a_row_does_not_say_is_named() {
        let base = json!({"context": "c", "question": "q", "answer": "a"});
        let with = |name: &str, value: Value| {
            let mut fields = base.clone();
            fields[name] = value;
            row(fields)
        };
        assert!(!is_row(&row(base.clone())) && is_row(&with(TASK, json!(null))));
        let unknown = |row: &Row| unscored(row).unwrap_or_else(|e| e).what;
        assert_eq!(
            unknown(&with(TASK, json!("mine"))),
            "f.jsonl:3: the field `task` is `mine`, which kvpress scores in a way that is not known here: the metric of the row is unknown"
        );
        assert!(unknown(&with(TOKENS, json!(3))).contains("the field `task` is missing"));
        assert!(known(&with(TASK, json!(3))).unwrap_err().what.contains("the field `task` is not text"));
        assert!(
            max_new_tokens(&with(TASK, json!("passkey")), None)
                .unwrap_err()
                .what
                .contains("`max_new_tokens` is missing")
        );
        for (value, tokens) in [(json!(3), Some(3)), (json!(128.0), Some(128)), (json!(MOST_TOKENS), Some(MOST_TOKENS))]
        {
            assert_eq!(max_new_tokens(&with(TOKENS, value), None).ok(), tokens);
        }
        for value in [json!(0), json!(-1), json!(2.5), json!("64"), json!(1e300), json!(MOST_TOKENS + 1), json!([3])] {
            assert!(
                max_new_tokens(&with(TOKENS, value), None).unwrap_err().what.contains("is not a whole number from 1")
            );
        }
    }
}
