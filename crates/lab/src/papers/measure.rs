//! The measured cells of an item: means with intervals, and differences of two cells on common examples. A cell comes from a run's records,
//! from analyses, from times, or from other cells.

use std::collections::BTreeSet;

use super::derived::{Correlation, Reaching};
use super::floor::{RANDOM, why_at_floor};
use super::item::{Item, Line, Select};
use super::run_of::RunOf;
use super::seen::{AnalysisTables, TableSelection, Units};
use super::times::{Timed, Times};
use super::values::Value;
use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;
use spattn_eval::records::record::{REFERENCE, Record};
use spattn_eval::summary::cells::{SummaryCell, group};
use spattn_eval::summary::summarize;
use spattn_stats::several::mean_of;
use spattn_stats::{Estimate, Sample, correlation, mean_interval, median_interval};
use spattn_tasks::likelihood::Measure;

/// The measurements for an item.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The records of its run.
    pub records: &'a [Record],
    /// The records of its run in which each method's steps were timed alone.
    pub alone: &'a [Record],
    /// The results of its analyses and calibrations.
    pub seen: &'a [AnalysisTables],
}

/// The measurements of a run, or the times of an item, by the item's rows and columns.
pub struct MeasuredItem<'a> {
    item: &'a Item,
    run: RunOf<'a>,
    /// The settings of the run; `None` if nothing is run.
    settings: Option<Settings>,
    cells: Vec<SummaryCell<'a>>,
    alone: Vec<SummaryCell<'a>>,
    seen: &'a [AnalysisTables],
    times: Option<Times>,
}

/// The content of a measured cell.
pub enum Spot<'s, 'a> {
    /// Records.
    Records(Scored<'s, 'a>),
    /// Numbers of units of documents, in the paper's unit.
    Units(Units),
    /// A number with its interval and its count: a time, or a number computed from other cells.
    Number(Estimate, usize),
}

/// Records of a cell.
pub struct Scored<'s, 'a> {
    parts: Vec<&'s SummaryCell<'a>>,
    value: Value,
    scale: f64,
    at_floor: Option<String>,
}

impl<'a> MeasuredItem<'a> {
    /// Takes the measurements of a run; `None` if there are none.
    pub fn of_run(item: &'a Item, run: RunOf<'a>, evidence: Evidence<'a>) -> Option<Self> {
        let Evidence { records, alone, seen } = evidence;
        let is_empty = records.is_empty() && alone.is_empty() && seen.is_empty();
        let settings = item.settings(run.variant);
        let (cells, alone) = (group(records, &[]), group(alone, &[]));
        (!is_empty).then(|| Self { item, run, settings, cells, alone, seen, times: None })
    }

    /// Reads the times of an item; `None` if it has none.
    ///
    /// # Errors
    /// If a table of times cannot be read.
    pub fn of_times(item: &'a Item) -> Result<Option<Self>, UsageError> {
        let Some(bench) = &item.bench else { return Ok(None) };
        let times = Some(bench.read()?);
        let (cells, alone) = (Vec::new(), Vec::new());
        Ok(Some(Self { item, run: RunOf::AS_NAMED, settings: None, cells, alone, seen: &[], times }))
    }

    /// Returns the cell of a row and a column, by name; `None` if it is not measured, or not on all of its tasks.
    ///
    /// # Errors
    /// If the cell selects a table, column or key that does not exist, or selects several times; if a method's spec is wrong, which a
    /// checked item rules out.
    pub fn spot(&self, row: &str, column: &str) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let (Some(row), Some(column)) = (find(&self.item.rows, row), find(&self.item.columns, column)) else {
            return Ok(None);
        };
        if self.item.is_time(column) != self.times.is_some() || !self.run.measures(self.item, row, column) {
            return Ok(None);
        }
        let (first, second) = (row.select(self.run.variant), column.select(self.run.variant));
        if first.missing.is_some() || second.missing.is_some() {
            return Ok(None);
        }
        let within = |e: UsageError| UsageError { what: format!("`{}`, `{}`: {}", row.name, column.name, e.what), ..e };
        if let Some(timed) = &column.time {
            let timed = Timed::over(Some(timed.clone()), row.time.clone()).unwrap_or_default();
            return self.time(&timed, times_of(row, column)).map_err(within);
        }
        if let Some(correlation) = &row.correlation {
            // As in the paper's table, the correlation stands below one of its two columns.
            return if correlation.y == column.name { self.correlated(correlation) } else { Ok(None) };
        }
        if let Some(reaching) = &column.reaches {
            return self.reached(&row.name, reaching, times_of(row, column));
        }
        let select = Select {
            // All records of a run on one model belong to that model.
            model: first.model.or(second.model).filter(|_| self.run.model.is_none()),
            method: first.method.or(second.method),
            tasks: second.tasks.or(first.tasks),
            length: second.length.or(first.length),
            sparse_from: first.sparse_from.or(second.sparse_from),
            found: TableSelection::over(second.found, first.found),
            missing: None,
        };
        if let Some(found) = &select.found {
            let units = Units::new(found, self.seen, select.tasks.as_ref(), select.length).map_err(within)?;
            let scale = times_of(row, column) * if row.percent || column.percent { 100.0 } else { 1.0 };
            return Ok(units.map(|units| Spot::Units(units.scaled(scale))));
        }
        let value = self.item.value(row, column);
        let scale = value.scale(row.percent || column.percent) * times_of(row, column);
        self.scored(&select, value, scale)
    }

    /// Returns the records of a method, if it has some at every task and length where other methods have some.
    fn scored(&self, select: &Select, value: Value, scale: f64) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let (Some(spec), Some(settings)) = (&select.method, &self.settings) else { return Ok(None) };
        let method = Item::method(spec, settings)?;
        let cells = if value == Value::StepMs { &self.alone } else { &self.cells };
        let here: Vec<&SummaryCell<'a>> = cells.iter().filter(|cell| is_of(select, cell.head())).collect();
        let is_method =
            |cell: &&&SummaryCell<'a>| cell.head().method == method.name && cell.head().params == method.params;
        let parts: Vec<&SummaryCell<'a>> = here.iter().filter(is_method).copied().collect();
        let places = |cells: &[&SummaryCell<'a>]| cells.iter().map(|cell| place(cell.head())).collect::<BTreeSet<_>>();
        let is_whole = |cells: &[&SummaryCell<'a>]| !cells.is_empty() && places(cells) == places(&here);
        if !is_whole(&parts) {
            return Ok(None);
        }
        let of = |name: &str| -> Vec<&SummaryCell<'a>> {
            let cells: Vec<_> = here.iter().filter(|cell| cell.head().method == name).copied().collect();
            if is_whole(&cells) { cells } else { Vec::new() }
        };
        let mut scored = Scored { parts, value, scale, at_floor: None };
        if value.is_score() && !scored.is_perplexity() {
            scored.at_floor = why_at_floor(&of(REFERENCE), &of(RANDOM));
        }
        Ok(Some(Spot::Records(scored)))
    }

    fn time(&self, timed: &Timed, scale: f64) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let Some(times) = &self.times else { return Ok(None) };
        Ok(times.of(timed)?.map(|(estimate, turns)| Spot::Number(estimate.scaled(scale), turns)))
    }

    /// Returns the smallest amount at which a row reaches the requested share.
    fn reached(&self, row: &str, reaching: &Reaching, scale: f64) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let Some(dense) = self.spot(row, &reaching.of)? else { return Ok(None) };
        let short = |(column, _): &(String, f64)| -> Result<Option<Estimate>, UsageError> {
            Ok(self.spot(row, column)?.and_then(|spot| spot.less(reaching.share, &dense)))
        };
        let short = reaching.steps.iter().map(short).collect::<Result<Vec<_>, _>>()?;
        Ok(reaching.of(&short).map(|estimate| Spot::Number(estimate.scaled(scale), dense.contexts().0)))
    }

    fn correlated(&self, Correlation { x, y, rows }: &Correlation) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let number = |row: &String, column: &String| -> Result<Option<f64>, UsageError> {
            Ok(self.spot(row, column)?.and_then(|spot| spot.estimate()).map(|estimate| estimate.mean))
        };
        let mut pairs = Vec::new();
        for row in rows {
            let (Some(x), Some(y)) = (number(row, x)?, number(row, y)?) else { return Ok(None) };
            pairs.push((x, y));
        }
        Ok(correlation(&pairs).map(|estimate| Spot::Number(estimate, pairs.len())))
    }
}

fn find<'a>(lines: &'a [Line], name: &str) -> Option<&'a Line> {
    lines.iter().find(|line| line.name == name)
}

/// Returns the factor that converts a cell's numbers to the paper's unit.
fn times_of(row: &Line, column: &Line) -> f64 {
    row.times.unwrap_or(1.0) * column.times.unwrap_or(1.0)
}

fn is_of(select: &Select, r: &Record) -> bool {
    let of_task =
        |task: &String| r.task == *task || r.task.strip_prefix(task.as_str()).is_some_and(|t| t.starts_with('/'));
    select.tasks.as_ref().is_none_or(|tasks| tasks.iter().any(of_task))
        && select.length.is_none_or(|length| r.length == length)
        && select.model.as_ref().is_none_or(|model| r.model == *model)
        && select.sparse_from.as_ref().is_none_or(|protocol| r.protocol == *protocol)
}

fn place(r: &Record) -> (&str, &str, &str, usize) {
    (&r.model, &r.protocol, &r.task, r.length)
}

impl Spot<'_, '_> {
    /// Returns the smallest and the greatest number of independent examples of a task and length, or of units of documents; for a time, the
    /// number of turns alone.
    pub fn contexts(&self) -> (usize, Option<usize>) {
        let both = |(least, most)| (least, Some(most));
        match self {
            Self::Records(scored) => both(scored.contexts()),
            Self::Units(units) => both(units.counts()),
            Self::Number(_, n) => (*n, None),
        }
    }

    /// Whether [`contexts`](Self::contexts) counts things that an analysis drew itself, instead of documents.
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Units(units) if units.drawn().is_some())
    }

    /// Why the cell is not judged, if dense attention is at the floor.
    pub fn at_floor(&self) -> Option<&str> {
        match self {
            Self::Records(scored) => scored.at_floor.as_deref(),
            _ => None,
        }
    }

    /// Returns the mean with its 95 % interval; `None` if it was not measured.
    pub fn estimate(&self) -> Option<Estimate> {
        match self {
            Self::Records(scored) => scored.estimate(),
            Self::Units(units) => units.estimate(),
            Self::Number(estimate, _) => Some(*estimate),
        }
    }

    /// Returns this cell less `factor` times another one, with its 95 % interval, on common examples if both cells have the same ones.
    /// `None` if one was not measured.
    pub fn less(&self, factor: f64, other: &Self) -> Option<Estimate> {
        let common = match (self, other) {
            (Self::Records(own), Self::Records(other)) => own.less(factor, other),
            (Self::Units(own), Self::Units(other)) => own.less(factor, other).and_then(|units| units.estimate()),
            _ => None,
        };
        common.or_else(|| Some(apart(self.estimate()?, factor, other.estimate()?)))
    }
}

impl Scored<'_, '_> {
    fn contexts(&self) -> (usize, usize) {
        let of = || self.parts.iter().map(|cell| cell.sample(|r| r.score).contexts());
        (of().min().unwrap_or(0), of().max().unwrap_or(0))
    }

    /// Whether it is a perplexity.
    fn is_perplexity(&self) -> bool {
        self.value.is_score() && self.parts.iter().any(|cell| cell.measure() == Measure::Perplexity)
    }

    /// Returns the mean over tasks and lengths, with its 95 % interval; `None` if it was not measured.
    fn estimate(&self) -> Option<Estimate> {
        let of_part = |cell: &&SummaryCell<'_>| match (self.is_perplexity(), self.value.is_score()) {
            (true, _) => summarize::perplexity_estimate(cell),
            (_, true) => spattn_stats::score(&cell.sample(|r| r.score)),
            _ if self.value == Value::StepMs => median_interval(&of_cell(cell, self.value)?),
            _ => mean_interval(&of_cell(cell, self.value)?),
        };
        let parts: Option<Vec<Estimate>> = self.parts.iter().map(of_part).collect();
        Some(mean_of(&parts?)?.scaled(if self.is_perplexity() { 1.0 } else { self.scale }))
    }

    /// Returns the difference on common examples; `None` unless both have the same model, protocol, tasks and lengths.
    fn less(&self, factor: f64, other: &Self) -> Option<Estimate> {
        let pair = |cell: &SummaryCell<'_>| other.parts.iter().find(|o| place(o.head()) == place(cell.head())).copied();
        let pairs: Option<Vec<_>> = self.parts.iter().map(|cell| Some((*cell, pair(cell)?))).collect();
        let is_paired = self.value == other.value && self.parts.len() == other.parts.len();
        match pairs.filter(|_| is_paired) {
            Some(pairs) if self.is_perplexity() && factor > 0.0 => {
                let each = pairs.iter().map(|(a, b)| summarize::perplexity_less(a, factor, b));
                mean_of(&each.collect::<Option<Vec<_>>>()?)
            }
            Some(pairs) if !self.is_perplexity() => {
                let each = pairs.iter().map(|(a, b)| paired(a, b, self.value, factor));
                mean_of(&each.collect::<Option<Vec<_>>>()?).map(|e| e.scaled(self.scale))
            }
            _ => None,
        }
    }
}

/// Returns the value of every record of a cell; `None` if one record lacks it.
fn of_cell(cell: &SummaryCell<'_>, value: Value) -> Option<Sample> {
    cell.records.iter().all(|r| value.of(r).is_some()).then(|| cell.sample(|r| value.of(r).unwrap_or(0.0)))
}

/// Returns the mean of `a − factor·b` on common examples.
fn paired(a: &SummaryCell<'_>, b: &SummaryCell<'_>, value: Value, factor: f64) -> Option<Estimate> {
    let pairs = a.pairs(b);
    let each = pairs.into_iter().map(|(context, a, b)| Some((context, value.of(a)? - factor * value.of(b)?)));
    let sample = Sample::new(each.collect::<Option<Vec<_>>>()?);
    // The interval for scores assumes differences between −1 and 1.
    if value.is_score() && factor <= 1.0 { spattn_stats::difference(&sample) } else { mean_interval(&sample) }
}

/// Returns `a − factor·b` for independent examples.
pub(super) fn apart(a: Estimate, factor: f64, b: Estimate) -> Estimate {
    let mean = a.mean - factor * b.mean;
    let ends = a.ends.zip(b.ends).map(|((a_low, a_high), (b_low, b_high))| {
        let down = (a.mean - a_low).hypot(factor * (b_high - b.mean));
        let up = (a_high - a.mean).hypot(factor * (b.mean - b_low));
        (mean - down, mean + up)
    });
    Estimate { mean, ends }
}
