//! One table or figure of a paper, as a TOML file describes it: what to run, the published numbers, and the claims.
//!
//! `[run]`, `[builtin]` and `[real]` are settings as in configs: the paper's own setting, the nearest one on the built-in model, and one on
//! a small pretrained model. `[[row]]` and `[[column]]` say which records a cell is made from; they also name the methods, tasks and
//! lengths that the settings lack. A cell that is not a score comes from analyses (`[analyze.run]` and so on), from calibrations
//! (`[learn.run]` and so on) or from a table of times (`[bench]`), or is computed from other cells. `[[published]]` holds the paper's
//! numbers, `[[claim]]` tests on cells, and `[[differs]]` the settings that are not the paper's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::claim::{Claim, Differs, Measuring};
use super::claims::{CellName, ShareOf, Test};
use super::derived::{Correlation, Reaching};
use super::equal::EqualCost;
use super::floor::RANDOM;
use super::learning::Learning;
use super::more::MoreExamples;
use super::real_models::{REAL_MODELS, RealModel};
use super::seen::{Observing, TableSelection};
use super::times::{ReferenceBench, Timed};
use super::values::Value;
pub use super::variant::Variant;
use spattn_attention::kv::KvDtype;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, expand_grid};
use spattn_base::error::UsageError;
use spattn_eval::config::file::parse_toml;
use spattn_eval::config::methods::only_policy;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::{InvalidValue, Settings};
use spattn_eval::config::value::Given;
use spattn_eval::records::record::REFERENCE;
use spattn_eval::records::timing::Latency;

/// One table or figure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// What it measures, in one line.
    pub title: String,
    /// What cannot be run here at all, and why.
    pub missing: Option<String>,
    /// The command that comes nearest to running it.
    pub nearest: Option<String>,
    /// Notes for the reader about the runs or the numbers.
    pub note: Option<String>,
    /// The run at the paper's own setting.
    pub run: Option<Settings>,
    /// The nearest run on the built-in model.
    pub builtin: Option<Settings>,
    /// The run on a small pretrained model; `model` is a name of [`REAL_MODELS`], by default the first.
    pub real: Option<Settings>,
    /// The settings that differ from the paper's.
    #[serde(default)]
    pub differs: Vec<Differs>,
    /// Slips of the paper in this table or figure.
    pub slip: Option<String>,
    /// The analyses, if attention itself is measured.
    #[serde(default)]
    pub analyze: ByVariant<Observing>,
    /// The calibrations, if what they learn is measured.
    #[serde(default)]
    pub learn: ByVariant<Learning>,
    /// The tables of times, if latencies are measured.
    pub bench: Option<ReferenceBench>,
    /// Rows, in the paper's order.
    #[serde(default, rename = "row")]
    pub rows: Vec<Line>,
    /// Columns, in the paper's order.
    #[serde(default, rename = "column")]
    pub columns: Vec<Line>,
    /// The paper's numbers.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The settings that change in the run that times each method's steps alone, if latencies are measured beside scores: mostly tasks,
    /// lengths and the number of samples. Settings not given here are those of the variant's run.
    #[serde(default)]
    pub latency: ByVariant<Settings>,
    /// The method of random tokens that determines the [floor](super::floor) of a run's scores, if no row has it. It runs on the first
    /// [`FLOOR_SAMPLES`](super::floor::FLOOR_SAMPLES) examples of each task.
    #[serde(default)]
    pub floor: ByVariant<String>,
    /// Further examples of some rows or columns, where a claim about them needs more than the table has.
    #[serde(default)]
    pub more: ByVariant<Vec<MoreExamples>>,
    /// Comparisons of methods at equal costs, if the item has several budgets of each method.
    #[serde(default, rename = "equal")]
    pub equal: Vec<EqualCost>,
    /// The paper's claims about the numbers.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    /// What is plotted; by default all columns with the first column's value.
    pub plot: Option<Plot>,
}

/// What an item has for each variant, under `run`, `builtin` and `real` in its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByVariant<T> {
    /// At the paper's own setting.
    pub run: Option<T>,
    /// On the built-in model.
    pub builtin: Option<T>,
    /// On a small pretrained model.
    pub real: Option<T>,
}

impl<T> Default for ByVariant<T> {
    fn default() -> Self {
        Self { run: None, builtin: None, real: None }
    }
}

impl<T> ByVariant<T> {
    /// Returns the part for a variant; `None` if there is none.
    pub fn of(&self, variant: Variant) -> Option<&T> {
        match variant {
            Variant::Paper => self.run.as_ref(),
            Variant::Builtin => self.builtin.as_ref(),
            Variant::Real => self.real.as_ref(),
        }
    }
}

/// Defines [`Line`] and [`Select`], which share the keys of `keys`: TOML has them flat in a row or column and in its `builtin` and `real`.
/// A flattened struct would lose the line of an error and the key that was meant.
macro_rules! selecting {
    (keys { $($(#[$doc:meta])* $key:ident: $type:ty,)* }) => {
        /// A row or column: its name and what it selects.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Line {
            /// The paper's name for it, by which claims and published numbers refer to it.
            pub name: String,
            /// Its name if another model than the paper's is run in its place; by default its method. For rows with a `model`.
            pub label: Option<String>,
            /// The method whose budget it is, in comparisons at equal costs; for a row only.
            pub group: Option<String>,
            /// The value of its cells; the score if neither row nor column sets one.
            pub value: Option<Value>,
            /// Whether a share is shown in percent.
            #[serde(default)]
            pub percent: bool,
            /// A factor that converts numbers to the paper's unit.
            pub times: Option<f64>,
            $($(#[$doc])* pub $key: $type,)*
            /// What its numbers are averaged over, if the analysis draws that itself instead of reading prompts: `drawn tokens`.
            pub counts: Option<String>,
            /// The times that it selects. A cell is a time if its column has this.
            pub time: Option<Timed>,
            /// The smallest of some columns at which a score is reached; for a column only.
            pub reaches: Option<Reaching>,
            /// The correlation of two columns over rows; for a row only.
            pub correlation: Option<Correlation>,
            /// What it selects instead on the built-in model. Keys not given here are those of the line.
            pub builtin: Option<Select>,
            /// What it selects instead on a small pretrained model. Keys not given here are those of the line.
            pub real: Option<Select>,
        }

        /// Which records, or numbers of analyses, a row or column selects.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Select {
            $($(#[$doc])* pub $key: $type,)*
        }

        impl Line {
            /// What the line selects at the paper's own setting.
            fn own(&self) -> Select {
                Select { $($key: self.$key.clone(),)* }
            }
        }
    };
}

selecting! { keys {
    /// Why nothing is measured for it.
    missing: Option<String>,
    /// The model's id, if the run has several.
    model: Option<String>,
    /// The spec of one method.
    method: Option<String>,
    /// Tasks or groups; all of the run if not given. A cell is the mean over them.
    tasks: Option<Vec<String>>,
    /// The length; all of the run if not given.
    length: Option<usize>,
    /// The protocol, if the run has several.
    sparse_from: Option<String>,
    /// The numbers of analyses that it selects.
    found: Option<TableSelection>,
} }

/// Published numbers of a row.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The row's name.
    pub row: String,
    /// Numbers by the column's name.
    pub values: BTreeMap<String, f64>,
}

/// What is plotted of an item.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The columns, from left to right; or, with `over_rows`, the columns plotted over the rows.
    pub columns: Vec<String>,
    /// Whether rows run from left to right instead.
    #[serde(default)]
    pub over_rows: bool,
    /// The axes of a heat map of the first column; the rows' names are its places: `(8,75)`, `DS 1/4`.
    pub grid: Option<GridAxes>,
}

/// The axes of a heat map.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridAxes {
    /// What the first part of a row's name is.
    pub down: String,
    /// What its second part is.
    pub across: String,
    /// What the numbers are, with their unit.
    pub of: String,
}

impl Line {
    /// Returns what the line selects under a variant.
    pub fn select(&self, variant: Variant) -> Select {
        let instead = match variant {
            Variant::Paper => return self.own(),
            Variant::Builtin => &self.builtin,
            Variant::Real => &self.real,
        };
        match instead.clone() {
            Some(instead) => instead.over(self.own()),
            // The models that the paper ran do not apply.
            None => Select { model: None, ..self.own() },
        }
    }
}

impl Select {
    /// Returns these keys, with those of `base` where these lack one.
    fn over(self, base: Self) -> Self {
        Self {
            missing: self.missing.or(base.missing),
            model: self.model.or(base.model),
            method: self.method.or(base.method),
            tasks: self.tasks.or(base.tasks),
            length: self.length.or(base.length),
            sparse_from: self.sparse_from.or(base.sparse_from),
            found: TableSelection::over(self.found, base.found),
        }
    }
}

/// Names the key of an invalid value.
fn invalid(InvalidValue { key, error, .. }: InvalidValue) -> UsageError {
    UsageError { what: format!("`{key}`: {}", error.what), ..error }
}

impl Item {
    /// Reads and checks an item's text. `file` is its name in errors.
    ///
    /// # Errors
    /// `FILE:LINE: KEY: what` for invalid TOML, unknown keys and invalid values; `FILE: what` for names that are not the item's rows or
    /// columns, and for an item that is neither run nor missing.
    pub fn parse(text: &str, file: &str) -> Result<Self, UsageError> {
        let item: Self = parse_toml(text, file)?;
        item.check().map_err(|e| UsageError { what: format!("{file}: {}", e.what), ..e })?;
        Ok(item)
    }

    /// Returns the settings of a variant, with the methods, tasks and lengths that rows and columns name; `None` if it has none.
    pub fn settings(&self, variant: Variant) -> Option<Settings> {
        let mut settings = match variant {
            Variant::Paper => self.run.clone(),
            Variant::Builtin => self.builtin.clone(),
            Variant::Real => self.real.clone().map(with_default_model),
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

    /// Returns the settings of a variant's run that times each method's steps alone; `None` if it has none.
    pub fn latency_settings(&self, variant: Variant) -> Option<Settings> {
        let own = Settings { latency: Some(Latency::Solo), ..self.latency.of(variant)?.clone() };
        Some(own.over(self.settings(variant)?))
    }

    /// Returns the settings of a variant's run of random tokens alone; `None` if it has none. The number of samples is that of the
    /// variant's run, and still has to be [limited](super::floor::FLOOR_SAMPLES).
    pub fn floor_settings(&self, variant: Variant) -> Option<Settings> {
        Some(Settings { methods: Some(vec![self.floor.of(variant)?.clone()]), ..self.settings(variant)? })
    }

    /// Returns the settings of a variant's runs of [further examples](MoreExamples) of some rows or columns.
    pub fn more_settings(&self, variant: Variant) -> Vec<Settings> {
        let more = self.more.of(variant).into_iter().flatten();
        let methods = |more: &MoreExamples| more.of.iter().filter_map(|name| self.method_of(name, variant)).collect();
        more.filter_map(|more| Some(more.settings(methods(more), self.settings(variant)?))).collect()
    }

    /// Returns the method's spec of a row or column under a variant; `None` if it has none, or is not measured.
    fn method_of(&self, name: &str, variant: Variant) -> Option<String> {
        let mut named = self.lines().filter(|line| line.name == name).map(|line| line.select(variant));
        named.find_map(|select| select.method.filter(|_| select.missing.is_none()))
    }

    /// Returns the most examples of a task and length that a variant's runs have for any method; `None` if nothing is run.
    pub fn most_samples(&self, variant: Variant) -> Option<usize> {
        let of_all = self.settings(variant)?.samples?;
        Some(self.more.of(variant).into_iter().flatten().map(|more| more.samples).fold(of_all, usize::max))
    }

    /// The analyses under a variant; `None` if there are none.
    pub fn observing(&self, variant: Variant) -> Option<&Observing> {
        self.analyze.of(variant)
    }

    /// The calibrations under a variant; `None` if there are none.
    pub fn learning(&self, variant: Variant) -> Option<&Learning> {
        self.learn.of(variant)
    }

    /// Whether there is anything to run under a variant.
    pub fn is_run(&self, variant: Variant) -> bool {
        self.settings(variant).is_some() || self.observing(variant).is_some() || self.learning(variant).is_some()
    }

    /// Returns the length at which a cell is measured under a variant; `None` if there are several or none.
    pub fn length_of(&self, (row, column): CellName<'_>, variant: Variant) -> Option<usize> {
        let line = |lines: &[Line], name: &str| lines.iter().find(|line| line.name == name)?.select(variant).length;
        let own = line(&self.columns, column).or_else(|| line(&self.rows, row));
        own.or_else(|| match self.lengths(variant).as_slice() {
            [one] => Some(*one),
            _ => None,
        })
    }

    /// Returns the lengths that a variant runs: its analyses' lengths if it has analyses.
    fn lengths(&self, variant: Variant) -> Vec<usize> {
        match self.observing(variant) {
            Some(observing) => observing.lengths.clone(),
            None => self.settings(variant).and_then(|settings| settings.lengths).unwrap_or_default(),
        }
    }

    /// Configures the method of a spec with a variant's settings.
    ///
    /// # Errors
    /// If the spec is wrong, or is a grid of several methods.
    pub fn method(spec: &str, settings: &Settings) -> Result<Configured, UsageError> {
        let specs = expand_grid(spec)?;
        let [one] = specs.as_slice() else {
            return Err(UsageError::new(format!("`{spec}` expands to {} methods", specs.len()))
                .hint("a row or column is of one method; write a row for each"));
        };
        configure(one, &only_policy(settings)?)
    }

    /// Returns the published number of a cell.
    pub fn published(&self, row: &str, column: &str) -> Option<f64> {
        self.published.iter().find(|p| p.row == row).and_then(|p| p.values.get(column).copied())
    }

    /// Returns the value that a cell shows.
    pub fn value(&self, row: &Line, column: &Line) -> Value {
        column.value.or(row.value).unwrap_or(Value::Score)
    }

    /// Whether the cells of a column are times, or computed from times.
    pub fn is_time(&self, column: &Line) -> bool {
        let is_timed = |name: &String| self.columns.iter().any(|other| other.name == *name && other.time.is_some());
        column.time.is_some() || column.reaches.as_ref().is_some_and(|reaching| reaching.columns().all(is_timed))
    }

    /// Returns rows and columns.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.rows.iter().chain(&self.columns)
    }

    /// Returns whether a variant's run has no cells for a row or for a column, by their names. A row and a column may share a name.
    pub fn is_missing(&self, row: &str, column: &str, variant: Variant) -> bool {
        let is_missing = |lines: &[Line], name: &str| {
            lines.iter().any(|line| line.name == name && line.select(variant).missing.is_some())
        };
        is_missing(&self.rows, row) || is_missing(&self.columns, column)
    }

    fn check(&self) -> Result<(), UsageError> {
        let is_measured = Variant::ALL.into_iter().any(|variant| self.is_run(variant));
        if !is_measured && self.bench.is_none() && self.missing.is_none() {
            return Err(UsageError::new("the item has no [run], [builtin], [real], [bench] or `missing`")
                .hint("give [run] and [builtin], or say with `missing` what it would take"));
        }
        distinct("row", &self.rows)?;
        distinct("column", &self.columns)?;
        for published in &self.published {
            self.known("row", &self.rows, &published.row)?;
            published.values.keys().try_for_each(|column| self.known("column", &self.columns, column))?;
            if let Some((column, _)) = published.values.iter().find(|(_, value)| !value.is_finite()) {
                return Err(UsageError::new(format!(
                    "the published number of `{}`, `{column}` is not finite",
                    published.row
                )));
            }
        }
        for claim in &self.claims {
            claim.check()?;
            for test in claim.tests() {
                test.rows().try_for_each(|row| self.known("row", &self.rows, row))?;
                test.columns().try_for_each(|column| self.known("column", &self.columns, column))?;
            }
        }
        self.check_lines()?;
        self.check_bounds()?;
        self.equal.iter().try_for_each(|equal| self.check_equal(equal))?;
        if let Some(plot) = &self.plot {
            plot.columns.iter().try_for_each(|column| self.known("column", &self.columns, column))?;
        }
        self.differs.iter().try_for_each(|differs| self.check_differs(differs))?;
        self.check_real_models()?;
        Variant::ALL.into_iter().try_for_each(|variant| self.check_run(variant))
    }

    /// Checks that the settings of a variant can be run, and that rows and columns name one method each.
    fn check_run(&self, variant: Variant) -> Result<(), UsageError> {
        let Some(settings) = self.settings(variant) else { return self.check_more(variant) };
        let within = |e: UsageError| UsageError { what: format!("[{}]: {}", variant.table(), e.what), ..e };
        settings.check_values().map_err(invalid).map_err(within)?;
        for line in self.lines() {
            if let Some(spec) = line.select(variant).method {
                Self::method(&spec, &settings)
                    .map_err(|e| within(UsageError { what: format!("`{}`: {}", line.name, e.what), ..e }))?;
            }
        }
        RunConfig::resolve(settings).map(drop).map_err(within)?;
        if let Some(floor) = self.floor_settings(variant) {
            let within =
                |e: UsageError| UsageError { what: format!("[floor]: `{}`: {}", variant.table(), e.what), ..e };
            let methods = RunConfig::resolve(floor).map_err(within)?;
            let is_floor = |method: &Configured| method.name == RANDOM || method.name == REFERENCE;
            if !methods.iter().flat_map(|config| &config.methods).all(is_floor) {
                return Err(within(UsageError::new("it is not the method `random`")));
            }
        }
        self.check_more(variant)?;
        let Some(alone) = self.latency_settings(variant) else { return Ok(()) };
        let within = |e: UsageError| UsageError { what: format!("[latency.{}]: {}", variant.table(), e.what), ..e };
        RunConfig::resolve(alone).map(drop).map_err(within)
    }

    /// Checks the further examples of a variant.
    fn check_more(&self, variant: Variant) -> Result<(), UsageError> {
        let within = |e: UsageError| UsageError { what: format!("[more.{}]: {}", variant.table(), e.what), ..e };
        let Some(more) = self.more.of(variant) else { return Ok(()) };
        let Some(run) = self.settings(variant) else {
            return Err(within(
                UsageError::new(format!("there is no [{}]", variant.table()))
                    .hint("further examples are those of a run"),
            ));
        };
        let has_method = |name: &str| self.method_of(name, variant).is_some();
        more.iter().try_for_each(|more| more.check(has_method, &run)).map_err(within)?;
        let resolve = |more: Settings| {
            more.check_values().map_err(invalid)?;
            RunConfig::resolve(more).map(drop)
        };
        self.more_settings(variant).into_iter().try_for_each(resolve).map_err(within)
    }

    /// Checks that each run on pretrained models names one of them.
    fn check_real_models(&self) -> Result<(), UsageError> {
        let of_run = self.real.as_ref().and_then(|settings| settings.model.as_ref());
        if of_run.is_some_and(|models| models.0.len() > 1) {
            return Err(UsageError::new("[real]: `model` has several models")
                .hint("name one; `spattn reproduce --real=NAME` runs another"));
        }
        let named = [
            ("real", of_run.and_then(|models| models.0.first())),
            ("analyze.real", self.analyze.real.as_ref().map(|observing| &observing.model)),
            ("learn.real", self.learn.real.as_ref().map(|learning| &learning.model)),
        ];
        for (table, name) in named {
            let Some(name) = name else { continue };
            RealModel::find(name).map_err(|e| UsageError { what: format!("[{table}]: `model`: {}", e.what), ..e })?;
        }
        Ok(())
    }

    /// Checks the settings of analyses, calibrations, times and derived cells.
    fn check_lines(&self) -> Result<(), UsageError> {
        for variant in Variant::ALL {
            let within = |kind: &str, e: UsageError| UsageError {
                what: format!("[{kind}.{}]: {}", variant.table(), e.what),
                ..e
            };
            self.observing(variant).map_or(Ok(()), Observing::check).map_err(|e| within("analyze", e))?;
            self.learning(variant).map_or(Ok(()), Learning::check).map_err(|e| within("learn", e))?;
        }
        self.bench.as_ref().map(ReferenceBench::read).transpose()?;
        for line in self.lines() {
            self.check_time(line)?;
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

    /// Checks that the tables that a line's time is taken from are there.
    fn check_time(&self, line: &Line) -> Result<(), UsageError> {
        let Some(timed) = &line.time else { return Ok(()) };
        let Some(bench) = &self.bench else {
            return Err(UsageError::new(format!("`{}` is a time, and there is no [bench]", line.name))
                .hint("name tables of times: [bench] with `tables`"));
        };
        bench.check(timed).map_err(|e| UsageError { what: format!("`{}`: {}", line.name, e.what), ..e })
    }

    /// Checks that bounds fit the lengths that are run. Nats and tokens grow with the length: their bound may be a number only if all runs
    /// have the same length, and a share of the entropy of even weights only if each run has a single length.
    fn check_bounds(&self) -> Result<(), UsageError> {
        let runs = Variant::ALL.into_iter().filter(|variant| self.is_run(*variant));
        let lengths: BTreeSet<usize> = runs.clone().flat_map(|variant| self.lengths(variant)).collect();
        for claim in &self.claims {
            for comparison in claim.tests().flat_map(Test::comparisons) {
                let within =
                    |e: UsageError| UsageError { what: format!("the claim `{}`: {}", claim.says, e.what), ..e };
                let cell = comparison.left;
                let is_share = comparison.share == ShareOf::EvenWeights;
                if is_share && runs.clone().any(|variant| self.length_of(cell, variant).is_none()) {
                    let what = format!("`{}` has no one length, and its bound is a share of even weights", cell.1);
                    return Err(within(UsageError::new(what).hint("run one length, or select one in the column")));
                }
                if !is_share && comparison.right.is_none() && lengths.len() > 1 && self.grows_with_length(cell) {
                    let what =
                        format!("`{}` grows with the length, runs have several, and its bound is a number", cell.1);
                    return Err(within(UsageError::new(what).hint(
                        "give a bound in nats as { of_even_weights = SHARE }, and of tokens select their share of the context",
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether a cell is an entropy or a number of tokens that analyses found.
    fn grows_with_length(&self, (row, column): CellName<'_>) -> bool {
        let find = |lines: &'_ [Line], name: &str| lines.iter().find(|line| line.name == name).cloned();
        let (row, column) = (find(&self.rows, row), find(&self.columns, column));
        // A correlation has no unit.
        if [&row, &column].into_iter().flatten().any(|line| line.correlation.is_some()) {
            return false;
        }
        let named = [column, row].into_iter().flatten().find_map(|line| line.found?.column);
        named.is_some_and(|name| name == "entropy (nats)" || name.starts_with("tokens for"))
    }

    /// Checks a comparison at equal costs, and that some row is a budget of a method.
    fn check_equal(&self, equal: &EqualCost) -> Result<(), UsageError> {
        let within = |e: UsageError| UsageError { what: format!("[[equal]]: {}", e.what), ..e };
        self.known("row", &self.rows, &equal.dense).map_err(within)?;
        equal.columns().try_for_each(|column| self.known("column", &self.columns, column)).map_err(within)?;
        if self.rows.iter().all(|row| row.group.is_none()) {
            return Err(
                UsageError::new("[[equal]]: no row has a `group`").hint("name the method that a row is a budget of")
            );
        }
        equal.check()
    }

    /// Checks a difference, and that the item has times if the difference is about them.
    fn check_differs(&self, differs: &Differs) -> Result<(), UsageError> {
        if differs.variant == Some(Measuring::Times) && self.bench.is_none() {
            let what = format!("[[differs]] `{}` is about times, and there is no [bench]", differs.setting);
            return Err(UsageError::new(what).hint("name tables of times: [bench] with `tables`"));
        }
        differs.check()
    }

    fn known(&self, what: &str, lines: &[Line], name: &str) -> Result<(), UsageError> {
        match lines.iter().any(|line| line.name == name) {
            true => Ok(()),
            false => Err(UsageError::unknown(what, name, lines.iter().map(|line| line.name.as_str()))),
        }
    }
}

/// Adds the default model and storage type to the settings of a run on a pretrained model.
fn with_default_model(settings: Settings) -> Settings {
    let model = settings.model.clone().unwrap_or_else(|| REAL_MODELS[0].name.to_owned().into());
    Settings {
        model: Some(model),
        dtype: settings.dtype.or(Some(Given::new(REAL_DTYPE.name().to_owned()))),
        ..settings
    }
}

/// The storage type of keys, values and activations, unless an item sets one. Files of quantised weights name no type of their own, and
/// GPUs multiply 32-bit numbers at a tenth of the speed.
const REAL_DTYPE: KvDtype = KvDtype::Bf16;

fn distinct(what: &str, lines: &[Line]) -> Result<(), UsageError> {
    let mut names = BTreeSet::new();
    match lines.iter().find(|line| !names.insert(&line.name)) {
        None => Ok(()),
        Some(line) => Err(UsageError::new(format!("two {what}s have the name `{}`", line.name))
            .hint("claims and published numbers refer to rows and columns by name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = "
title = 'a'
slip = 'the unit of the last column'
[run]
model = 'x/y'
tasks = ['ruler/vt']
lengths = [16384]
[builtin]
lengths = [1024]
[real]
lengths = [4096, 8192]
samples = 100
[[row]]
name = 'Top'
method = 'topk:k=512'
model = 'x/y'
builtin = { method = 'topk:k=32' }
real = { method = 'topk:k=128' }
[[row]]
name = 'Gone'
method = 'quest'
real = { missing = 'a model with more channels' }
[[column]]
name = 'VT'
tasks = ['ruler/vt']
real = { length = 4096 }
[[differs]]
setting = 'local'
paper = '24'
here = '64'
because = 'as in its other tables'
variant = 'real'
";

    #[test]
    fn a_time_is_of_a_table_that_the_item_names() {
        let parse = |table: &str| {
            let column = format!("[[column]]\nname = 'a'\ntime = {{ table = '{table}', method = 'full' }}");
            let bench = "[bench]\ntables = ['hip_table5', 'hip_table14']\ncommands = []";
            Item::parse(&format!("title = 'a'\nmissing = 'x'\n{bench}\n{column}"), "item.toml")
        };
        assert!(parse("hip_table14").is_ok());
        // It is a table of the program, but not one of the item's.
        let e = parse("hip_table15").unwrap_err();
        assert_eq!(e.what, "item.toml: `a`: unknown table of [bench] `hip_table15`");
        assert!(e.hint.unwrap().contains("hip_table"));
    }

    #[test]
    fn the_real_run_has_its_own_settings_and_selections() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let settings = item.settings(Variant::Real).unwrap();
        assert_eq!(settings.model.unwrap().0, [REAL_MODELS[0].name]);
        assert_eq!(settings.lengths, Some(vec![4096, 8192]));
        assert_eq!(settings.methods, Some(vec!["topk:k=128".to_owned()]), "a missing row runs nothing");
        let (row, column) = (item.rows[0].select(Variant::Real), item.columns[0].select(Variant::Real));
        assert_eq!((row.method.as_deref(), column.length), (Some("topk:k=128"), Some(4096)));
        assert_eq!(column.tasks, Some(vec!["ruler/vt".to_owned()]), "as in the line");
        assert_eq!(item.columns[0].select(Variant::Builtin).length, None);
        assert!(item.is_run(Variant::Real) && item.differs[0].is_about(Variant::Real));
        assert_eq!(item.slip.as_deref(), Some("the unit of the last column"));
    }

    #[test]
    fn bounds_on_what_grows_with_the_length_are_of_the_length_that_is_run() {
        let item = "
title = 'a'
[analyze.run]
model = 'x/y'
analyses = ['entropy']
tasks = ['ruler/vt']
lengths = [4096]
samples = 5
[analyze.builtin]
model = 'builtin'
analyses = ['entropy']
tasks = ['ruler/vt']
lengths = [2048]
samples = 5
[[row]]
name = 'first'
found = { keys = { layer = '0' } }
[[column]]
name = 'Entropy'
found = { table = 'entropy_by_layer', column = 'entropy (nats)' }
[[claim]]
says = 'it is low'
test = { between = { rows = ['first'], columns = ['Entropy'], at_most = { of_even_weights = 0.5 } } }
";
        let parsed = |text: &str| Item::parse(text, "item.toml").map_err(|error| error.what);
        let of = parsed(item).unwrap();
        let length = |variant| of.length_of(("first", "Entropy"), variant);
        assert_eq!([Variant::Paper, Variant::Builtin].map(length), [Some(4096), Some(2048)]);
        assert_eq!(length(Variant::Real), None, "nothing is run");
        let number = item.replace("{ of_even_weights = 0.5 }", "4.16");
        let error = parsed(&number).unwrap_err();
        assert!(error.contains("`Entropy` grows with the length") && error.contains("it is low"), "{error}");
        assert!(parsed(&number.replace("2048", "4096")).is_ok(), "one length");
        assert!(parsed(&number.replace("entropy (nats)", "share for 75 %")).is_ok(), "a share of the context");
        let tokens = number.replace("entropy (nats)", "tokens for 75 %");
        assert!(parsed(&tokens).unwrap_err().contains("grows with the length"));
        let several = parsed(&item.replace("[2048]", "[1024, 2048]")).unwrap_err();
        assert!(several.contains("has no one length"), "{several}");
    }

    #[test]
    fn the_real_run_names_one_known_model() {
        let with = |model: &str| Item::parse(&ITEM.replace("[real]", &format!("[real]\nmodel = {model}")), "item.toml");
        assert!(with("'smollm2-135m'").is_ok());
        let error = with("'smollm'").unwrap_err();
        assert!(error.what.starts_with("item.toml: [real]: `model`: unknown pretrained model"), "{}", error.what);
        let several = with("['smollm2-135m', 'qwen2.5-coder-0.5b']").unwrap_err();
        assert!(several.what.contains("several models"), "{}", several.what);
        let analysis = "[analyze.real]\nmodel = 'builtin'\nanalyses = ['mass']\ntasks = ['ruler/vt']\nlengths = [1024]\nsamples = 1\n";
        let error = Item::parse(&format!("title = 'a'\n{analysis}"), "item.toml").unwrap_err();
        assert!(error.what.contains("[analyze.real]: `model`: unknown"), "{}", error.what);
        let known = analysis.replace("'builtin'", "'qwen2.5-coder-0.5b'");
        let item = Item::parse(&format!("title = 'a'\n{known}"), "item.toml").unwrap();
        assert!(item.is_run(Variant::Real) && !item.is_run(Variant::Paper));
    }

    const WITH_MORE: &str = "
title = 'a'
[real]
tasks = ['ruler/vt', 'ruler/fwe']
lengths = [4096, 8192]
samples = 40
[[row]]
name = 'Score'
[[column]]
name = 'Top'
method = 'topk:k=64'
[[column]]
name = 'Quest'
method = 'quest:k=64'
[[column]]
name = 'Other'
missing = 'not here'
[[more.real]]
of = ['Quest']
samples = 100
lengths = [8192]
";

    #[test]
    fn the_named_methods_get_more_examples() {
        let item = Item::parse(WITH_MORE, "item.toml").unwrap();
        assert!(item.more_settings(Variant::Builtin).is_empty());
        let [more] = &item.more_settings(Variant::Real)[..] else { panic!("one run") };
        assert_eq!(more.methods.as_deref(), Some(&["quest:k=64".to_owned()][..]));
        assert_eq!((more.samples, more.lengths.as_deref()), (Some(100), Some(&[8192][..])));
        assert_eq!(more.tasks, item.settings(Variant::Real).unwrap().tasks);
        assert_eq!(item.most_samples(Variant::Real), Some(100));
        assert_eq!(item.most_samples(Variant::Builtin), None);
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let error = |from: &str, to: &str| Item::parse(&WITH_MORE.replace(from, to), "item.toml").unwrap_err().what;
        let unknown = error("['Quest']", "['Quests']");
        assert_eq!(unknown, "item.toml: [more.real]: `Quests` is no row or column with a method in this run");
        assert!(error("['Quest']", "['Other']").contains("`Other` is no row or column with a method"));
        assert!(error("['Quest']", "['Score']").contains("`Score` is no row"));
        assert!(error("['Quest']", "[]").contains("it names nothing"));
        assert!(error("samples = 100", "samples = 40").contains("`samples` = 40 is no more than the run has"));
        assert!(error("lengths = [8192]", "lengths = []").contains("`tasks` or `lengths` is empty"));
        assert!(error("[[more.real]]", "[[more.builtin]]").contains("[more.builtin]: there is no [builtin]"));
    }
}
