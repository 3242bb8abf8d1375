//! Scorers: a prediction and its references in, a number in 0..=1 out.
//!
//! One file per family of metrics, one table (`RULES`) that names them all, and [`datasets`], which
//! says how each published data set is scored. Every rule reproduces the published scorer, its
//! quirks included: numbers are only comparable with those of other tools if they are computed alike.
//! Nothing here reads files or knows where a prediction came from.

pub mod datasets;

mod chinese;
mod classification;
mod code_sim;
mod lm_eval;
mod numbers;
mod python;
mod qa_f1;
mod rouge;
mod string_match;

use crate::error::UsageError;
use serde::{Deserialize, Serialize};

/// How a prediction is scored; names are those of the command line (`--metric`) and of task files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Metric {
    /// RULER: share of the references found in the prediction, case-insensitively.
    StringMatchAll,
    /// RULER: 1 if any reference is found in the prediction, case-insensitively.
    StringMatchPart,
    /// SQuAD: 1 if the prediction equals a reference after both are normalised.
    ExactMatch,
    /// LongBench `qa_f1_score`: F1 of the bags of normalised words.
    QaF1,
    /// LongBench `qa_f1_zh_score`: the same of the words of Chinese text.
    QaF1Zh,
    /// LongBench `rouge_score`: F of the summary-level ROUGE-L of the Python package `rouge` 1.0.1.
    RougeL,
    /// LongBench `rouge_zh_score`: the same of the words of Chinese text.
    RougeLZh,
    /// F of ROUGE-1 of the same package.
    Rouge1,
    /// F of ROUGE-2 of the same package.
    Rouge2,
    /// LongBench `classification_score`: 1 over the number of class names left in the prediction.
    Classification,
    /// LongBench `retrieval_score`: share of the numbers in the prediction that name the right paragraph.
    Retrieval,
    /// LongBench `retrieval_zh_score`: the same with the Chinese word for paragraph.
    RetrievalZh,
    /// LongBench `count_score`: share of the numbers in the prediction that are the right one.
    Count,
    /// LongBench `code_sim_score`: edit similarity of the first line of code.
    CodeSim,
    /// Passkey (landmark attention, Quest): 1 if the first number in the prediction is the reference.
    FirstNumber,
    /// LongEval lines: 1 if the last number in the prediction is the reference.
    LastNumber,
    /// HiP's passkey: share of the reference's digits that the prediction's digits equal, place by place.
    DigitMatch,
    /// lm-eval's GSM8K, `strict-match`: 1 if the number after "The answer is" is the reference.
    Gsm8kStrict,
    /// lm-eval's GSM8K, `flexible-extract`: 1 if the last number is the reference.
    Gsm8kFlexible,
    /// lm-eval's CoQA: F1 of the first line, each of several answers left out in turn.
    CoqaF1,
    /// The same of exact matches.
    CoqaEm,
}

type Scorer = fn(prediction: &str, references: &[String], all_classes: &[String]) -> f64;

/// All that is registered of a metric.
struct Rule {
    metric: Metric,
    name: &'static str,
    score: Scorer,
    postprocess: fn(&str) -> String,
    needs_classes: bool,
}

const fn rule(metric: Metric, name: &'static str, score: Scorer) -> Rule {
    Rule { metric, name, score, postprocess: unchanged, needs_classes: false }
}

/// The one place where a metric is registered, in the order of the enum.
static RULES: [Rule; 21] = [
    Rule {
        postprocess: string_match::postprocess,
        ..rule(Metric::StringMatchAll, "string_match_all", |p, r, _| string_match::all(p, r))
    },
    Rule {
        postprocess: string_match::postprocess,
        ..rule(Metric::StringMatchPart, "string_match_part", |p, r, _| string_match::part(p, r))
    },
    rule(Metric::ExactMatch, "exact_match", |p, r, _| best(r, |r| qa_f1::exact_match(p, r))),
    rule(Metric::QaF1, "qa_f1", |p, r, _| best(r, |r| qa_f1::qa_f1(p, r))),
    rule(Metric::QaF1Zh, "qa_f1_zh", |p, r, _| best(r, |r| chinese::qa_f1_zh(p, r))),
    rule(Metric::RougeL, "rouge_l", |p, r, _| best(r, |r| rouge::rouge_l(p, r))),
    rule(Metric::RougeLZh, "rouge_l_zh", |p, r, _| best(r, |r| chinese::rouge_l_zh(p, r))),
    rule(Metric::Rouge1, "rouge_1", |p, r, _| best(r, |r| rouge::rouge_n(1, p, r))),
    rule(Metric::Rouge2, "rouge_2", |p, r, _| best(r, |r| rouge::rouge_n(2, p, r))),
    Rule {
        needs_classes: true,
        ..rule(Metric::Classification, "classification", |p, r, classes| {
            best(r, |r| classification::classification(p, r, classes))
        })
    },
    rule(Metric::Retrieval, "retrieval", |p, r, _| best(r, |r| numbers::retrieval("Paragraph ", p, r))),
    rule(Metric::RetrievalZh, "retrieval_zh", |p, r, _| best(r, |r| numbers::retrieval("段落", p, r))),
    rule(Metric::Count, "count", |p, r, _| best(r, |r| numbers::count(p, r))),
    rule(Metric::CodeSim, "code_sim", |p, r, _| best(r, |r| code_sim::code_sim(p, r))),
    rule(Metric::FirstNumber, "first_number", |p, r, _| best(r, |r| numbers::first(p, r))),
    rule(Metric::LastNumber, "last_number", |p, r, _| best(r, |r| numbers::last(p, r))),
    rule(Metric::DigitMatch, "digit_match", |p, r, _| best(r, |r| numbers::digit_match(p, r))),
    rule(Metric::Gsm8kStrict, "gsm8k_strict", |p, r, _| best(r, |r| lm_eval::gsm8k_strict(p, r))),
    rule(Metric::Gsm8kFlexible, "gsm8k_flexible", |p, r, _| best(r, |r| lm_eval::gsm8k_flexible(p, r))),
    rule(Metric::CoqaF1, "coqa_f1", |p, r, _| lm_eval::coqa_f1(p, r)),
    rule(Metric::CoqaEm, "coqa_em", |p, r, _| lm_eval::coqa_em(p, r)),
];

impl Metric {
    /// The metric of that name.
    ///
    /// # Errors
    /// If there is none; the hint names the nearest.
    pub fn parse(name: &str) -> Result<Self, UsageError> {
        RULES
            .iter()
            .find(|rule| rule.name == name)
            .map(|rule| rule.metric)
            .ok_or_else(|| UsageError::unknown("metric", name, RULES.iter().map(|rule| rule.name)))
    }

    /// The name used on the command line and in files.
    pub fn name(self) -> &'static str {
        self.rule().name
    }

    /// Every metric, in the order in which they are listed to users.
    pub fn all() -> impl Iterator<Item = Metric> {
        RULES.iter().map(|rule| rule.metric)
    }

    /// Whether [`score`](Self::score) needs the list of class names.
    pub fn needs_classes(self) -> bool {
        self.rule().needs_classes
    }

    /// The prediction as the published evaluation cleans it before this metric.
    ///
    /// RULER strips it, turns each control character into a newline and strips again; LongBench leaves
    /// it alone (its cut to the [`first_line`] belongs to the data set, see [`datasets`]).
    pub fn postprocess(self, prediction: &str) -> String {
        (self.rule().postprocess)(prediction)
    }

    /// The score of one prediction in 0..=1 by the published rule, the best over the references where
    /// that takes the best. Without references the score is 0.
    ///
    /// `all_classes` is read by `classification` only.
    pub fn score(self, prediction: &str, references: &[String], all_classes: &[String]) -> f64 {
        (self.rule().score)(prediction, references, all_classes)
    }

    fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<String> for Metric {
    type Error = UsageError;

    fn try_from(name: String) -> Result<Self, UsageError> {
        Self::parse(&name)
    }
}

impl From<Metric> for &'static str {
    fn from(metric: Metric) -> Self {
        metric.name()
    }
}

/// What LongBench's `eval.py` keeps of a prediction for some data sets: the first line, after any line
/// breaks at the start.
pub fn first_line(prediction: &str) -> &str {
    prediction.trim_start_matches('\n').split('\n').next().unwrap_or("")
}

fn unchanged(prediction: &str) -> String {
    prediction.to_owned()
}

/// LongBench's way over several answers: the best, and at least 0.
fn best(references: &[String], score: impl Fn(&str) -> f64) -> f64 {
    references.iter().map(|reference| score(reference)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (i, metric) in Metric::all().enumerate() {
            assert_eq!(metric as usize, i);
            assert_eq!(Metric::parse(metric.name()), Ok(metric));
        }
    }

    #[test]
    fn names_survive_serde() {
        for metric in Metric::all() {
            let json = serde_json::to_string(&metric).unwrap();
            assert_eq!(json, format!("\"{}\"", metric.name()));
            assert_eq!(serde_json::from_str::<Metric>(&json).unwrap(), metric);
        }
    }

    #[test]
    fn unknown_metrics_suggest_the_nearest() {
        assert_eq!(Metric::parse("rougel").unwrap_err().hint.as_deref(), Some("did you mean `rouge_l`?"));
    }

    #[test]
    fn without_references_nothing_is_right() {
        for metric in Metric::all() {
            assert_eq!(metric.score("anything 1", &[], &[]), 0.0, "{metric}");
        }
    }
}
