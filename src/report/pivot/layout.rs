//! The layout of a pivot: the dimensions of rows and columns, and the values.

use std::collections::BTreeSet;

use spattn_base::error::UsageError;
use spattn_eval::summary::columns::{COLUMNS, SummaryRow};

/// A property in which rows of the summary differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// The model's id.
    Model,
    /// Where sparse attention starts.
    Protocol,
    /// The task's full name.
    Task,
    /// The requested length.
    Length,
    /// The method, with its parameters that are not dimensions themselves.
    Method,
    /// The run's seed. If it is not a dimension, examples of all seeds are pooled.
    RunSeed,
    /// One parameter of methods, whether given or a default. Rows of methods without it are left out.
    Param(String),
}

/// The names of dimensions that are not parameters.
pub(super) const NAMES: [&str; 6] = ["model", "protocol", "task", "length", "method", RUN_SEED];
const RUN_SEED: &str = "run_seed";

impl Dimension {
    /// Reads a name. A name that is not a field of the summary is a method's parameter.
    pub fn parse(name: &str) -> Self {
        match name {
            "model" => Self::Model,
            "protocol" => Self::Protocol,
            "task" => Self::Task,
            "length" => Self::Length,
            "method" => Self::Method,
            RUN_SEED => Self::RunSeed,
            param => Self::Param(param.to_owned()),
        }
    }

    /// The name, as it is parsed.
    pub fn name(&self) -> &str {
        match self {
            Self::Model => "model",
            Self::Protocol => "protocol",
            Self::Task => "task",
            Self::Length => "length",
            Self::Method => "method",
            Self::RunSeed => RUN_SEED,
            Self::Param(name) => name,
        }
    }

    pub(super) fn is_param(&self) -> bool {
        matches!(self, Self::Param(_))
    }
}

/// Which tables to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The dimensions of rows.
    pub rows: Vec<Dimension>,
    /// The dimensions of columns.
    pub columns: Vec<Dimension>,
    /// The columns of `summary.csv` to show, each in its own table.
    pub values: Vec<String>,
}

impl Layout {
    /// Reads the names of the rows' dimensions, the columns' dimensions and the values.
    ///
    /// # Errors
    /// Unknown or repeated names. `known` are the rows to be shown.
    pub fn parse(
        rows: &[String],
        columns: &[String],
        values: &[String],
        known: &[SummaryRow],
    ) -> Result<Self, UsageError> {
        let parse = |names: &[String]| names.iter().map(|name| Dimension::parse(name)).collect::<Vec<_>>();
        let layout =
            Self { rows: parse(rows), columns: parse(columns), values: values.iter().map(|v| value_name(v)).collect() };
        let all: Vec<&Dimension> = layout.dimensions().collect();
        let params: BTreeSet<&str> = known.iter().flat_map(|r| r.settings.keys().map(String::as_str)).collect();
        for (i, dimension) in all.iter().enumerate() {
            if all[..i].contains(dimension) {
                return Err(UsageError::new(format!("`{}` is given twice among rows and columns", dimension.name()))
                    .hint(format!("each of {} or a parameter can be used once", NAMES.join(", "))));
            }
            if dimension.is_param() && !params.contains(dimension.name()) {
                let unknown = UsageError::unknown("dimension", dimension.name(), NAMES.into_iter().chain(params));
                return Err(match dimension.name() {
                    "seed" => {
                        unknown.hint(format!("no method here has a parameter `seed`; a run's own is `{RUN_SEED}`"))
                    }
                    _ => unknown,
                });
            }
        }
        for value in &layout.values {
            if !shown_values().any(|known| known == value) {
                return Err(UsageError::unknown("value", value, shown_values()));
            }
        }
        Ok(layout)
    }

    pub(super) fn dimensions(&self) -> impl Iterator<Item = &Dimension> {
        self.rows.iter().chain(&self.columns)
    }

    pub(super) fn has(&self, dimension: &Dimension) -> bool {
        self.dimensions().any(|d| d == dimension)
    }
}

/// The values that a table can show: the summary's numbers, except ends of intervals, which are shown with their
/// means; and `delta`, short for `delta_full`.
pub(super) fn shown_values() -> impl Iterator<Item = &'static str> {
    let numbers =
        COLUMNS.iter().filter(|column| !column.is_text() && !column.is_end() && !NAMES.contains(&column.name));
    numbers.map(|column| column.name).chain(["delta"])
}

fn value_name(name: &str) -> String {
    if name == "delta" { "delta_full".to_owned() } else { name.to_owned() }
}
