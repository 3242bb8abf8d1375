//! The outcome of an item's run, as stored: its cells, published and measured, and its claims with verdicts. All drawings are made from it.
//!
//! An outcome belongs to one run: of the paper's models, the built-in model, a pretrained model, or the times that were taken on a GPU.
//! [`judging`](super::judging) makes outcomes, and judges stored ones again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::claims::ClaimVerdict;
use super::experiment::Tried;
use super::numbers::stored;
use super::run_of::{BUILTIN, RunOf};
use super::variant::Variant;

/// The name that outcomes of times have in place of a variant's.
pub const TIMES: &str = "times";

/// The outcome of an item, as stored in `result.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ItemOutcome {
    /// `PAPER/ITEM`.
    pub name: String,
    /// What it measures.
    pub title: String,
    /// `paper`, `builtin`, `real` or `times`; empty if nothing was run.
    #[serde(default)]
    pub variant: String,
    /// The only model that was run, by its name in tables; empty if there are several or none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The command that makes this outcome.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The number of examples of each task and length that were run, if it is not the item's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// What was run.
    #[serde(default)]
    pub ran: Vec<(String, String)>,
    /// What cannot be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The command that comes nearest to running it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Notes for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows of the table: the paper's, then those of the model that was run in place of the paper's.
    pub rows: Vec<OutcomeRow>,
    /// The claims.
    pub claims: Vec<Judged>,
    /// Every comparison of the claims that could be measured, on common examples if there are some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Compared>,
    /// Why scores are not judged: what dense attention scores at each place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floors: Vec<String>,
    /// Rows and columns for which the run's analyses or calibrations have no numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<String>,
    /// Further files of the plot, in results of older versions.
    #[serde(default, skip_serializing)]
    pub more_plots: Vec<String>,
    /// The error of the run, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A row of the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OutcomeRow {
    /// Its name.
    pub name: String,
    /// The method that was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The rows of the paper's models for which this row stands in, if it belongs to another model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stands_for: Vec<String>,
    /// A cell for each column.
    pub cells: Vec<CellOutcome>,
}

/// A cell of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// The paper's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// The measured number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Number>,
    /// Whether it is a score where dense attention is at the floor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_floor: bool,
}

/// A number with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Number {
    /// The mean.
    pub mean: f64,
    /// Both ends of the 95 % interval, if there is one.
    pub ends: Option<(f64, f64)>,
    /// The smallest number of independent examples of a task and length, or of units of documents; for a time, the number of turns.
    pub n: usize,
    /// The greatest number of them; `None` for times and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Whether `n` counts what the item's row or column names ([`counts`](super::item::Line::counts)), which an analysis drew itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_named: bool,
}

/// A measured comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// What was compared: a cell, or the difference of two cells.
    pub what: String,
    /// The mean.
    pub mean: f64,
    /// Both ends of the 95 % interval, if there is one.
    pub ends: Option<(f64, f64)>,
}

impl Number {
    /// Rounds to the digits that are stored.
    pub(super) fn stored(self) -> Self {
        Self { mean: stored(self.mean), ends: self.ends.map(|(low, high)| (stored(low), stored(high))), ..self }
    }
}

impl Compared {
    /// Rounds to the digits that are stored.
    pub(super) fn stored(self) -> Self {
        Self { mean: stored(self.mean), ends: self.ends.map(|(low, high)| (stored(low), stored(high))), ..self }
    }
}

/// Why measured scores say nothing about a claim, however many examples there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unjudged {
    /// Dense attention is [at the floor](super::floor).
    DenseAtFloor,
    /// The comparison asks which method is higher, and both have all points.
    BothAtCeiling,
}

/// A claim with its verdicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The claim.
    pub says: String,
    /// The verdict on the published numbers; not tested if some of them are missing.
    pub published: ClaimVerdict,
    /// The verdict on the measured numbers.
    pub measured: ClaimVerdict,
    /// Why the claim is not judged, if scores were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unjudged: Option<Unjudged>,
    /// The smallest number of examples, documents or turns of the cells that were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// What was compared, or what is missing.
    pub why: Vec<String>,
    /// The reason, if it was investigated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// What was tried to find the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
}

/// A cell's number, and whether it is a score at the floor.
pub type Cell = (Number, bool);

/// A model's name in tables and plots.
pub fn model_title(model: &str) -> String {
    match model {
        BUILTIN => "built-in 11M".to_owned(),
        _ => model.rsplit('/').next().unwrap_or(model).to_owned(),
    }
}

impl ItemOutcome {
    /// Returns the run that the outcome belongs to.
    pub fn run(&self) -> RunOf<'_> {
        let named = Variant::ALL.into_iter().find(|variant| variant.name() == self.variant);
        let model = Some(self.model.as_str()).filter(|model| !model.is_empty());
        RunOf { variant: named.unwrap_or(Variant::Paper), model }
    }

    /// Whether anything was measured.
    pub fn is_measured(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.measured.is_some())
    }

    /// Returns the value of a fact about the run: `tasks`, `lengths`.
    pub fn fact(&self, what: &str) -> Option<&str> {
        self.ran.iter().find(|(known, _)| known == what).map(|(_, value)| value.as_str())
    }

    /// The lengths that were run.
    pub fn lengths(&self) -> BTreeSet<usize> {
        let lengths = self.fact("lengths").unwrap_or_default().split(',');
        lengths.filter_map(|length| length.trim().parse().ok()).collect()
    }

    /// Returns the number with which a fact begins: of all `examples`, or of all `prompts`.
    pub fn total(&self, what: &str) -> Option<usize> {
        self.fact(what)?.split(',').next()?.trim().parse().ok()
    }

    /// The number of prompts that an analysis takes together.
    pub fn at_a_time(&self) -> usize {
        let units = self.fact("prompts").and_then(|text| text.split(';').next());
        let size = units.and_then(|text| text.split_once(", ")?.1.strip_suffix(" at a time")?.parse().ok());
        size.unwrap_or(1)
    }

    /// Returns the measured number of a row and column of the item, and whether it is a score at the floor.
    pub fn number(&self, row: &str, column: &str) -> Option<Cell> {
        self.measured(row, column).map(|(_, cell)| cell)
    }

    /// Returns the name of the outcome's row that has the measured number of a row and column of the item: it names the model that was run
    /// if that is not the model of the item's row. The item's own name if nothing was measured.
    pub fn shown_row<'a>(&'a self, row: &'a str, column: &str) -> &'a str {
        self.measured(row, column).map_or(row, |(own, _)| &own.name)
    }

    /// Returns the outcome's row that has the measured number of a row and column of the item, with the number.
    fn measured(&self, row: &str, column: &str) -> Option<(&OutcomeRow, Cell)> {
        let at = self.columns.iter().position(|name| name == column)?;
        let is_of = |own: &&OutcomeRow| own.name == row || own.stands_for.iter().any(|name| name == row);
        let cell = |own: &OutcomeRow| own.cells.get(at).and_then(|cell| Some((cell.measured?, cell.at_floor)));
        self.rows.iter().filter(is_of).find_map(|own| Some((own, cell(own)?)))
    }
}
