//! Warnings: what self-checks find, and how it is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::cells::SummaryCell;
use super::columns::SummaryRow;
use crate::records::record::Record;

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The weights are random, so the scores mean nothing.
    RandomWeights,
    /// There are too few examples to compare methods on a task.
    FewExamples,
    /// Prompts do not begin with exactly one BOS token, although the model's tokenizer or template puts one there.
    Bos,
    /// Examples fill less than 95 % of the requested length, or more than all of it.
    Length,
    /// Some samples were recorded more than once, by different runs.
    RepeatedSamples,
    /// Predictions are empty.
    EmptyPredictions,
    /// The dense score is too low to tell methods apart.
    LowReference,
    /// A sparse method is better than dense beyond noise.
    AboveReference,
    /// A larger budget scores worse beyond noise.
    NotMonotone,
    /// A requested density was missed by more than a quarter.
    DensityMissed,
    /// Prompts were cut.
    Cut,
    /// Rows were timed under other conditions than most rows around them.
    TimedApart,
    /// Generations reach the token limit where dense ones stop.
    Truncated,
    /// Models that were asked to think did not come to an answer.
    UnfinishedThoughts,
    /// Most of what was attended was not selected, but followed the prefix.
    FreeTokens,
    /// No layer was dense, for a method that all of its publications run with dense layers.
    NoDenseLayers,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::RandomWeights => "random_weights",
            Check::FewExamples => "few_examples",
            Check::Bos => "bos",
            Check::Length => "length",
            Check::RepeatedSamples => "repeated_samples",
            Check::EmptyPredictions => "empty_predictions",
            Check::LowReference => "low_reference",
            Check::AboveReference => "above_reference",
            Check::NotMonotone => "not_monotone",
            Check::DensityMissed => "density_missed",
            Check::Cut => "cut",
            Check::TimedApart => "timed_apart",
            Check::Truncated => "truncated",
            Check::UnfinishedThoughts => "unfinished_thoughts",
            Check::FreeTokens => "free_tokens",
            Check::NoDenseLayers => "no_dense_layers",
        })
    }
}

/// A warning: one thing to look at before believing a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// What it is about.
    pub code: Check,
    /// The model id; empty if it is about all models.
    pub model: String,
    /// The protocol; empty, like the task, if it is about all records of a model or of all models.
    pub protocol: String,
    /// The full task name.
    pub task: String,
    /// The requested length in tokens; 0 if a file determines it.
    pub length: usize,
    /// The method's name, if it is about one method.
    pub method: Option<String>,
    /// The canonical parameters, if it is about one setting.
    pub params: Option<String>,
    /// One readable line with the numbers, without place and method.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_general() {
            return f.write_str(&self.message);
        }
        f.write_str(&self.task)?;
        if self.length > 0 {
            write!(f, " at {}", self.length)?;
        }
        if let Some(method) = &self.method {
            write!(f, ", {method}")?;
        }
        if let Some(params) = self.params.as_deref().filter(|params| !params.is_empty()) {
            write!(f, ":{params}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Warning {
    /// Whether it is about all records of a model or of all models, rather than about one task.
    pub fn is_general(&self) -> bool {
        self.task.is_empty()
    }
}

/// From this number on, warnings of one kind are reported together.
pub const MANY: usize = 4;

/// The warnings for readers, in short: each by itself, but of many of a kind only the first, with their number.
pub fn in_short(warnings: &[Warning]) -> Vec<(Check, String)> {
    let (mut of_kind, mut seen, mut told) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    warnings.iter().for_each(|warning| *of_kind.entry(warning.code).or_insert(0) += 1);
    for warning in warnings {
        let (all, is_first) = (of_kind[&warning.code], seen.insert(warning.code));
        if all < MANY {
            told.push((warning.code, warning.to_string()));
        } else if is_first {
            told.push((warning.code, format!("{warning}; and {} more that are `{}`", all - 1, warning.code)));
        }
    }
    told
}

impl Warning {
    /// Whether it concerns a row.
    pub fn is_about(&self, row: &SummaryRow) -> bool {
        (&self.model, &self.protocol, &self.task, self.length) == (&row.model, &row.protocol, &row.task, row.length)
            && self.method.as_ref().is_none_or(|method| *method == row.method)
            && self.params.as_ref().is_none_or(|params| *params == row.params)
    }

    /// Makes a warning about a task at a length, of which `r` is a record.
    pub(super) fn of_task(code: Check, r: &Record, message: String) -> Self {
        let [model, protocol, task] = [&r.model, &r.protocol, &r.task].map(|text| text.as_str().to_owned());
        Self { code, model, protocol, task, length: r.length, method: None, params: None, message }
    }

    /// Makes a warning about a method's setting on a task.
    pub(super) fn of_cell(code: Check, cell: &SummaryCell, message: String) -> Self {
        let r = cell.head();
        let (method, params) = (Some(r.method.to_string()), Some(r.params.to_string()));
        Self { method, params, ..Self::of_task(code, r, message) }
    }

    /// Makes a warning about all records of a model; of all models if `model` is empty.
    pub(super) fn general(code: Check, model: String, message: String) -> Self {
        let [protocol, task] = [const { String::new() }; 2];
        Self { code, model, protocol, task, length: 0, method: None, params: None, message }
    }
}
