//! One table or figure of a paper, as a TOML file has it: what to run, the published numbers, and what they are to show.
//!
//! `[run]` and `[builtin]` are settings as configs have them: the run at the paper's own setting, and one nearest to it that
//! needs no download. `[[row]]` and `[[column]]` say which records a cell is made of; methods, tasks and lengths that the
//! settings do not list are those that rows and columns name. What is no score of a run is taken from what analyses found
//! (`[analyze.run]`, `[analyze.builtin]`), from what calibrations learned (`[learn.run]`, `[learn.builtin]`) or from a table of
//! times (`[bench]`), or derived of other cells. `[[published]]` are
//! facts, `[[claim]]` tests on cells.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::claims::Test;
use super::derived::{Correlation, Reaching};
use super::learning::Learning;
use super::seen::{Found, Observing};
use super::times::{Bench, Timed};
use super::values::Value;
use crate::eval::config::file::parse_toml;
use crate::eval::config::methods::only_policy;
use crate::eval::config::run_config::RunConfig;
use crate::eval::config::settings::{InvalidValue, Settings};
use spattn_attention::methods::configure;
use spattn_attention::{Configured, expand_grid};
use spattn_base::error::UsageError;

/// One table or figure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// What it measures, in a line.
    pub title: String,
    /// What of it cannot be run here by any means, and why.
    pub missing: Option<String>,
    /// The command that comes nearest to what cannot be run.
    pub nearest: Option<String>,
    /// What a reader has to know about the runs or the numbers.
    pub note: Option<String>,
    /// The run at the paper's own setting.
    pub run: Option<Settings>,
    /// A run on the built-in model, nearest to it in spirit.
    pub builtin: Option<Settings>,
    /// What is looked at where the measurement is of attention itself.
    #[serde(default)]
    pub analyze: Analyze,
    /// What is learned where the measurement is of what a calibration learned.
    #[serde(default)]
    pub learn: Learn,
    /// Tables of times, where the measurement is a latency.
    pub bench: Option<Bench>,
    /// Rows, in the paper's order.
    #[serde(default, rename = "row")]
    pub rows: Vec<Line>,
    /// Columns, in the paper's order.
    #[serde(default, rename = "column")]
    pub columns: Vec<Line>,
    /// The paper's numbers.
    #[serde(default)]
    pub published: Vec<Published>,
    /// What the numbers are to show.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    /// What is drawn; all columns of the first one's value if not given.
    pub plot: Option<Plot>,
}

/// What is looked at: at the paper's own setting, and on the built-in model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Analyze {
    /// At the paper's own setting.
    pub run: Option<Observing>,
    /// On the built-in model.
    pub builtin: Option<Observing>,
}

/// What is learned: at the paper's own setting, and on the built-in model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learn {
    /// At the paper's own setting.
    pub run: Option<Learning>,
    /// On the built-in model.
    pub builtin: Option<Learning>,
}

/// A row or a column: a name, and what is in it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// As the paper names it; claims and published numbers refer to it.
    pub name: String,
    /// What a cell of it is; the score where neither its row nor its column says so.
    pub value: Option<Value>,
    /// Whether a share is shown in percent.
    #[serde(default)]
    pub percent: bool,
    /// What numbers are multiplied by to be in the paper's unit.
    pub times: Option<f64>,
    /// Why nothing is measured for it.
    pub missing: Option<String>,
    /// The model's id, where the run has several.
    pub model: Option<String>,
    /// Spec of one method.
    pub method: Option<String>,
    /// Tasks or groups; all of the run if not given. A cell is the mean over them.
    pub tasks: Option<Vec<String>>,
    /// Length; all of the run if not given.
    pub length: Option<usize>,
    /// Protocol, where the run has several.
    pub sparse_from: Option<String>,
    /// What analyses found that is in it.
    pub found: Option<Found>,
    /// Which times are in it; a cell is a time where its column says so.
    pub time: Option<Timed>,
    /// The least of some columns at which a score is reached; of a column alone.
    pub reaches: Option<Reaching>,
    /// The correlation of two columns over rows; of a row alone.
    pub correlation: Option<Correlation>,
    /// What is taken in its place on the built-in model.
    pub builtin: Option<Select>,
}

/// Which records are in a row or a column.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Select {
    /// The model's id.
    pub model: Option<String>,
    /// Spec of one method.
    pub method: Option<String>,
    /// Tasks or groups.
    pub tasks: Option<Vec<String>>,
    /// Length.
    pub length: Option<usize>,
    /// Protocol.
    pub sparse_from: Option<String>,
    /// What analyses found that is in it; what it does not say is as in the line.
    pub found: Option<Found>,
    /// Why nothing is measured for it on the built-in model.
    pub missing: Option<String>,
}

/// Published numbers of a row.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The row's name.
    pub row: String,
    /// Numbers by the column's name.
    pub values: BTreeMap<String, f64>,
}

/// Something that a paper says of the numbers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// In our words.
    pub says: String,
    /// How it is tested.
    pub test: Option<Test>,
    /// What is missing to test it.
    pub missing: Option<String>,
    /// Why it is as it is on the built-in model, once that was looked into.
    pub because: Option<String>,
}

/// What is drawn of an item.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// Columns, from left to right, or those of which each is drawn over the rows.
    pub columns: Vec<String>,
    /// Whether rows run from left to right instead.
    #[serde(default)]
    pub over_rows: bool,
}

/// Which of an item's two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The paper's own setting.
    Paper,
    /// On the built-in model.
    Builtin,
}

impl Variant {
    /// Its name, as folders have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Builtin => "builtin",
        }
    }
}

impl Line {
    /// Which records are in it under a variant.
    pub fn select(&self, variant: Variant) -> Select {
        let Self { model, method, tasks, length, sparse_from, found, missing, .. } = self.clone();
        let own = Select { model, method, tasks, length, sparse_from, found, missing };
        match (variant, self.builtin.clone()) {
            (Variant::Builtin, Some(other)) => Select {
                model: other.model.or(own.model),
                method: other.method.or(own.method),
                tasks: other.tasks.or(own.tasks),
                length: other.length.or(own.length),
                sparse_from: other.sparse_from.or(own.sparse_from),
                found: Found::over(other.found, own.found),
                missing: other.missing.or(own.missing),
            },
            // Models of the paper have no part in it.
            (Variant::Builtin, None) => Select { model: None, ..own },
            (Variant::Paper, _) => own,
        }
    }
}

impl Item {
    /// Reads an item's text and checks all of it; `file` names it in errors.
    ///
    /// # Errors
    /// `FILE:LINE: KEY: what`, for text that is no TOML, keys that are none and values that cannot be meant; `FILE: what`
    /// for names that are none of the item's rows or columns, and for what is neither run nor missing.
    pub fn parse(text: &str, file: &str) -> Result<Self, UsageError> {
        let item: Self = parse_toml(text, file)?;
        item.check().map_err(|e| UsageError { what: format!("{file}: {}", e.what), ..e })?;
        Ok(item)
    }

    /// The settings of a variant, with the methods, tasks and lengths that rows and columns name; `None` if it has none.
    pub fn settings(&self, variant: Variant) -> Option<Settings> {
        let mut settings = match variant {
            Variant::Paper => self.run.clone(),
            Variant::Builtin => self.builtin.clone(),
        }?;
        let lines = self.lines().map(|line| line.select(variant)).filter(|select| select.missing.is_none());
        let named: Vec<Select> = lines.collect();
        let mut methods = settings.methods.take().unwrap_or_default();
        for method in named.iter().filter_map(|select| select.method.clone()) {
            if method != "full" && !methods.contains(&method) {
                methods.push(method);
            }
        }
        settings.methods = Some(methods);
        if settings.tasks.is_none() {
            let tasks: BTreeSet<String> =
                named.iter().flat_map(|select| select.tasks.clone().unwrap_or_default()).collect();
            settings.tasks = (!tasks.is_empty()).then(|| tasks.into_iter().collect());
        }
        if settings.lengths.is_none() {
            let lengths: BTreeSet<usize> = named.iter().filter_map(|select| select.length).collect();
            settings.lengths = (!lengths.is_empty()).then(|| lengths.into_iter().collect());
        }
        settings.about = Some(self.title.clone());
        Some(settings)
    }

    /// What is looked at under a variant; `None` if nothing is.
    pub fn observing(&self, variant: Variant) -> Option<&Observing> {
        match variant {
            Variant::Paper => self.analyze.run.as_ref(),
            Variant::Builtin => self.analyze.builtin.as_ref(),
        }
    }

    /// What is learned under a variant; `None` if nothing is.
    pub fn learning(&self, variant: Variant) -> Option<&Learning> {
        match variant {
            Variant::Paper => self.learn.run.as_ref(),
            Variant::Builtin => self.learn.builtin.as_ref(),
        }
    }

    /// Whether there is anything to run under a variant.
    pub fn is_run(&self, variant: Variant) -> bool {
        self.settings(variant).is_some() || self.observing(variant).is_some() || self.learning(variant).is_some()
    }

    /// The method of a spec as it is configured under a variant's settings.
    ///
    /// # Errors
    /// If the spec is wrong, or stands for several methods.
    pub fn method(spec: &str, settings: &Settings) -> Result<Configured, UsageError> {
        let specs = expand_grid(spec)?;
        let [one] = specs.as_slice() else {
            return Err(UsageError::new(format!("`{spec}` stands for {} methods", specs.len()))
                .hint("a row or column is of one method; write a row for each"));
        };
        configure(one, &only_policy(settings)?)
    }

    /// The number that the paper has in a cell.
    pub fn published(&self, row: &str, column: &str) -> Option<f64> {
        self.published.iter().find(|p| p.row == row).and_then(|p| p.values.get(column).copied())
    }

    /// What a cell is.
    pub fn value(&self, row: &Line, column: &Line) -> Value {
        column.value.or(row.value).unwrap_or(Value::Score)
    }

    /// Rows and columns.
    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.rows.iter().chain(&self.columns)
    }

    fn check(&self) -> Result<(), UsageError> {
        let is_measured = [Variant::Paper, Variant::Builtin].into_iter().any(|variant| self.is_run(variant));
        if !is_measured && self.bench.is_none() && self.missing.is_none() {
            return Err(UsageError::new("nothing is run, and nothing says why")
                .hint("give [run] and [builtin], or say with `missing` what it would take"));
        }
        distinct("row", &self.rows)?;
        distinct("column", &self.columns)?;
        for published in &self.published {
            self.known("row", &self.rows, &published.row)?;
            published.values.keys().try_for_each(|column| self.known("column", &self.columns, column))?;
            if let Some((column, _)) = published.values.iter().find(|(_, value)| !value.is_finite()) {
                return Err(UsageError::new(format!(
                    "the published number of `{}`, `{column}` is none",
                    published.row
                )));
            }
        }
        for claim in &self.claims {
            match (&claim.test, &claim.missing) {
                (None, None) => {
                    return Err(UsageError::new(format!("the claim `{}` has no `test`", claim.says))
                        .hint("say with `missing` what it would take, if it cannot be tested"));
                }
                (Some(_), Some(_)) => {
                    return Err(UsageError::new(format!(
                        "the claim `{}` has a `test` and says that it is `missing`",
                        claim.says
                    ))
                    .hint("give one of them"));
                }
                _ => {}
            }
            if let Some(test) = &claim.test {
                test.check()
                    .map_err(|e| UsageError { what: format!("the claim `{}`: {}", claim.says, e.what), ..e })?;
                test.rows().try_for_each(|row| self.known("row", &self.rows, row))?;
                test.columns().try_for_each(|column| self.known("column", &self.columns, column))?;
            }
        }
        self.check_lines()?;
        if let Some(plot) = &self.plot {
            plot.columns.iter().try_for_each(|column| self.known("column", &self.columns, column))?;
        }
        [Variant::Paper, Variant::Builtin].into_iter().try_for_each(|variant| self.check_run(variant))
    }

    /// Makes sure that the settings of a variant can be run, and that rows and columns name one method each.
    fn check_run(&self, variant: Variant) -> Result<(), UsageError> {
        let Some(settings) = self.settings(variant) else { return Ok(()) };
        let table = if variant == Variant::Paper { "run" } else { "builtin" };
        let within = |e: UsageError| UsageError { what: format!("[{table}]: {}", e.what), ..e };
        settings.check_values().map_err(|InvalidValue { key, error, .. }| {
            within(UsageError { what: format!("`{key}`: {}", error.what), ..error })
        })?;
        for line in self.lines() {
            if let Some(spec) = line.select(variant).method {
                Self::method(&spec, &settings)
                    .map_err(|e| within(UsageError { what: format!("`{}`: {}", line.name, e.what), ..e }))?;
            }
        }
        RunConfig::resolve(settings).map(drop).map_err(within)
    }

    /// That what is looked at, timed or derived can be.
    fn check_lines(&self) -> Result<(), UsageError> {
        for (table, observing) in [("analyze.run", &self.analyze.run), ("analyze.builtin", &self.analyze.builtin)] {
            let Some(observing) = observing else { continue };
            observing.check().map_err(|e| UsageError { what: format!("[{table}]: {}", e.what), ..e })?;
        }
        for (table, learning) in [("learn.run", &self.learn.run), ("learn.builtin", &self.learn.builtin)] {
            let Some(learning) = learning else { continue };
            learning.check().map_err(|e| UsageError { what: format!("[{table}]: {}", e.what), ..e })?;
        }
        let table = self.bench.as_ref().map(Bench::read).transpose()?;
        for line in self.lines() {
            if line.time.is_some() && table.is_none() {
                return Err(UsageError::new(format!("`{}` is a time, and there is no [bench]", line.name))
                    .hint("name tables of times: [bench] with `tables`"));
            }
            if let Some(reaching) = &line.reaches {
                reaching.columns().try_for_each(|column| self.known("column", &self.columns, column))?;
                reaching.check().map_err(|e| UsageError { what: format!("`{}`: {}", line.name, e.what), ..e })?;
            }
            if let Some(Correlation { x, y, rows }) = &line.correlation {
                [x, y].into_iter().try_for_each(|column| self.known("column", &self.columns, column))?;
                rows.iter().try_for_each(|row| self.known("row", &self.rows, row))?;
            }
        }
        Ok(())
    }

    fn known(&self, what: &str, lines: &[Line], name: &str) -> Result<(), UsageError> {
        match lines.iter().any(|line| line.name == name) {
            true => Ok(()),
            false => Err(UsageError::unknown(what, name, lines.iter().map(|line| line.name.as_str()))),
        }
    }
}

fn distinct(what: &str, lines: &[Line]) -> Result<(), UsageError> {
    let mut names = BTreeSet::new();
    match lines.iter().find(|line| !names.insert(&line.name)) {
        None => Ok(()),
        Some(line) => Err(UsageError::new(format!("there are two {what}s `{}`", line.name))
            .hint("claims and published numbers refer to rows and columns by name")),
    }
}
