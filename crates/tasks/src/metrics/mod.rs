//! Scorers, which turn a prediction and its references into a number in 0..=1.
//!
//! Each family of metrics has a file, `registry.rs` lists all metrics, and [`datasets`] says how each published data set is scored.
//! Every metric reproduces the published scorer with its quirks, since scores are only comparable with those of other tools if they
//! are computed alike. Nothing here reads files or depends on where a prediction came from.

pub mod datasets;

mod aime;
mod chinese;
mod classification;
mod code_sim;
mod infinitebench;
pub(crate) mod lm_eval;
mod loogle;
mod numbers;
pub(crate) mod python;
pub(crate) mod python_literal;
mod qa_f1;
mod registry;
mod rouge;
mod rouge_sum;
mod string_match;
mod zeroscrolls;

pub use self::registry::Metric;
use self::registry::{RULES, Rule};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// Why a prediction cannot be scored against some reference answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// A reference is empty or white space.
    Blank,
    /// The metric compares nothing in any of the references.
    Nothing {
        /// The first such reference.
        reference: String,
    },
}

impl Metric {
    /// The metric with this name.
    ///
    /// # Errors
    /// If no metric has this name; the hint suggests the nearest one.
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

    /// A one-line description of what it measures.
    pub fn about(self) -> &'static str {
        self.rule().about
    }

    /// Every metric, in the order in which users see them.
    pub fn all() -> impl Iterator<Item = Metric> {
        RULES.iter().map(|rule| rule.metric)
    }

    /// Whether [`score`](Self::score) needs the list of class names.
    pub fn needs_classes(self) -> bool {
        self.rule().needs_classes
    }

    /// The flaw that makes reference answers useless for scoring; `None` if they can be used.
    ///
    /// A blank reference is found in any prediction, or equals an empty one. There may also be nothing in a reference that the
    /// metric compares, such as `the` for a metric that drops articles. By most metrics no prediction matches it, which does no
    /// harm if there are other references. By some (`Rule::nothing_is_right`) an empty prediction matches it.
    pub fn flaw(self, references: &[String]) -> Option<Flaw> {
        let Rule { compares, nothing_is_right, .. } = self.rule();
        if references.iter().any(|reference| is_blank(reference)) {
            return Some(Flaw::Blank);
        }
        let mut flawed = references.iter().filter(|reference| !compares(reference));
        let first = flawed.next()?;
        let is_flawed = *nothing_is_right || 1 + flawed.count() == references.len();
        is_flawed.then(|| Flaw::Nothing { reference: first.clone() })
    }

    /// Cleans a prediction as the published evaluation does before it computes this metric.
    ///
    /// RULER strips it, turns each control character into a newline and strips it again; LongBench leaves it unchanged (cutting it
    /// to the [`first_line`] belongs to the data set, see [`datasets`]).
    pub fn postprocess(self, prediction: &str) -> String {
        (self.rule().postprocess)(prediction)
    }

    /// The score of one prediction in 0..=1. Most metrics take the best score over the references. Without references the score is
    /// 0.
    ///
    /// Only `classification` reads `all_classes`, the names of all classes.
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

/// The first line of a prediction, after any line breaks at its start: what LongBench's `eval.py` keeps for some data sets.
pub fn first_line(prediction: &str) -> &str {
    prediction.trim_start_matches('\n').split('\n').next().unwrap_or("")
}

#[cfg(test)]
mod tests;
