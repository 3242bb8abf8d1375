//! The cells of an item as they were measured: means with intervals, and differences of two cells on common examples.

use std::collections::BTreeSet;

use super::item::{Item, Line, Select, Variant};
use super::values::Value;
use crate::error::UsageError;
use crate::eval::cells::{Cell, group};
use crate::eval::config::Settings;
use crate::eval::record::Record;
use crate::eval::stats::several::mean_of;
use crate::eval::stats::{self, Estimate, Sample, mean_interval};
use crate::eval::summary;
use crate::tasks::likelihood::Measure;

/// The records of a run, seen by the rows and columns of an item.
pub struct Measured<'a> {
    item: &'a Item,
    variant: Variant,
    settings: Settings,
    cells: Vec<Cell<'a>>,
}

/// What a cell of the table is made of.
pub struct Spot<'s, 'a> {
    parts: Vec<&'s Cell<'a>>,
    value: Value,
    scale: f64,
}

impl<'a> Measured<'a> {
    /// The records of a run of `item`; `None` if it has no such run.
    pub fn new(item: &'a Item, variant: Variant, records: &'a [Record]) -> Option<Self> {
        let settings = item.settings(variant)?;
        Some(Self { item, variant, settings, cells: group(records, &[]) })
    }

    /// The cell of a row and a column by their names; `None` where it is not measured, or not on all of its tasks.
    ///
    /// # Errors
    /// A method's spec that is wrong: none in an item that was checked.
    pub fn spot(&self, row: &str, column: &str) -> Result<Option<Spot<'_, 'a>>, UsageError> {
        let find = |lines: &'a [Line], name: &str| lines.iter().find(|line| line.name == name);
        let (Some(row), Some(column)) = (find(&self.item.rows, row), find(&self.item.columns, column)) else {
            return Ok(None);
        };
        let (first, second) = (row.select(self.variant), column.select(self.variant));
        if first.missing.is_some() || second.missing.is_some() {
            return Ok(None);
        }
        let select = Select {
            model: first.model.or(second.model),
            method: first.method.or(second.method),
            tasks: second.tasks.or(first.tasks),
            length: second.length.or(first.length),
            sparse_from: first.sparse_from.or(second.sparse_from),
            missing: None,
        };
        let Some(spec) = &select.method else { return Ok(None) };
        let method = Item::method(spec, &self.settings)?;
        let here: Vec<&Cell<'a>> = self.cells.iter().filter(|cell| is_of(&select, cell.head())).collect();
        let is_method = |cell: &&&Cell<'a>| cell.head().method == method.name && cell.head().params == method.params;
        let parts: Vec<&Cell<'a>> = here.iter().filter(is_method).copied().collect();
        let places = |cells: &[&Cell<'a>]| cells.iter().map(|cell| place(cell.head())).collect::<BTreeSet<_>>();
        let is_whole = !parts.is_empty() && places(&parts) == places(&here);
        let value = self.item.value(row, column);
        let times = row.times.unwrap_or(1.0) * column.times.unwrap_or(1.0);
        let scale = value.scale(row.percent || column.percent) * times;
        Ok(is_whole.then_some(Spot { parts, value, scale }))
    }
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
    /// Least number of independent examples of a task and length.
    pub fn contexts(&self) -> usize {
        self.parts.iter().map(|cell| cell.sample(|r| r.score).contexts()).min().unwrap_or(0)
    }

    /// Whether it is a perplexity.
    fn is_perplexity(&self) -> bool {
        self.value.is_score() && self.parts.iter().any(|cell| cell.measure() == Measure::Perplexity)
    }

    /// The mean over tasks and lengths with its 95 % interval; `None` where it was not measured.
    pub fn estimate(&self) -> Option<Estimate> {
        let of_part = |cell: &&Cell<'_>| match (self.is_perplexity(), self.value.is_score()) {
            (true, _) => summary::perplexity_estimate(cell),
            (_, true) => stats::score(&cell.sample(|r| r.score)),
            _ => mean_interval(&of_cell(cell, self.value)?),
        };
        let parts: Option<Vec<Estimate>> = self.parts.iter().map(of_part).collect();
        Some(mean_of(&parts?)?.scaled(if self.is_perplexity() { 1.0 } else { self.scale }))
    }

    /// This cell less `factor` times another one, with its 95 % interval: on common examples where both are of the same
    /// model, protocol, tasks and lengths; `None` where either was not measured.
    pub fn less(&self, factor: f64, other: &Self) -> Option<Estimate> {
        let pair = |cell: &Cell<'_>| other.parts.iter().find(|o| place(o.head()) == place(cell.head())).copied();
        let pairs: Option<Vec<_>> = self.parts.iter().map(|cell| Some((*cell, pair(cell)?))).collect();
        let is_paired = self.value == other.value && self.parts.len() == other.parts.len();
        let difference = match pairs.filter(|_| is_paired) {
            Some(pairs) if self.is_perplexity() && factor == 1.0 => {
                mean_of(&pairs.iter().map(|(a, b)| summary::delta(a, b)).collect::<Option<Vec<_>>>()?)
            }
            Some(pairs) if !self.is_perplexity() => {
                let each = pairs.iter().map(|(a, b)| paired(a, b, self.value, factor));
                mean_of(&each.collect::<Option<Vec<_>>>()?).map(|e| e.scaled(self.scale))
            }
            _ => None,
        };
        difference.or_else(|| Some(apart(self.estimate()?, factor, other.estimate()?)))
    }
}

/// The value of every record of a cell; `None` if one lacks it.
fn of_cell(cell: &Cell<'_>, value: Value) -> Option<Sample> {
    cell.records.iter().all(|r| value.of(r).is_some()).then(|| cell.sample(|r| value.of(r).unwrap_or(0.0)))
}

/// Mean of `a − factor·b` on common examples.
fn paired(a: &Cell<'_>, b: &Cell<'_>, value: Value, factor: f64) -> Option<Estimate> {
    let pairs = a.pairs(b);
    let each = pairs.into_iter().map(|(context, a, b)| Some((context, value.of(a)? - factor * value.of(b)?)));
    let sample = Sample::new(each.collect::<Option<Vec<_>>>()?);
    // The interval for scores is for differences between −1 and 1.
    if value.is_score() && factor <= 1.0 { stats::difference(&sample) } else { mean_interval(&sample) }
}

/// `a − factor·b` of independent examples.
fn apart(a: Estimate, factor: f64, b: Estimate) -> Estimate {
    let mean = a.mean - factor * b.mean;
    let ends = a.ends.zip(b.ends).map(|((a_low, a_high), (b_low, b_high))| {
        let down = (a.mean - a_low).hypot(factor * (b_high - b.mean));
        let up = (a_high - a.mean).hypot(factor * (b.mean - b_low));
        (mean - down, mean + up)
    });
    Estimate { mean, ends }
}
