//! What the numbers of an outcome are based on: how many examples of which tasks, or how many prompts, layers, rounds or rows.
//!
//! A cell's `n` is the least number over its tasks and lengths. A result has the greatest number as well. Older results do not: theirs is
//! derived from the item's settings and the number of all examples, if these leave no doubt.

use std::collections::BTreeSet;

use super::claims::CellName;
use super::item::{Item, Line};
use super::outcome::{ItemOutcome, Number, TIMES};
use super::values::Value;

/// How many things of a kind cells are based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The least number; if there are tasks, the least of one task.
    pub least: usize,
    /// The greatest number; `None` if it is not known.
    pub most: Option<usize>,
    /// What is counted.
    pub of: CountedThing,
}

/// The kind of thing that is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountedThing {
    /// Examples of tasks that were scored. The set is empty if the tasks are not known.
    Examples(BTreeSet<String>),
    /// Prompts of tasks that were analysed, and how many of them are analysed together.
    Prompts(BTreeSet<String>, usize),
    /// Layers, each of which is a unit.
    Layers,
    /// Rounds of a timing.
    Rounds,
    /// Rows that are correlated.
    Rows,
    /// Things that an item names: `drawn tokens`.
    Named(String),
}

/// Returns what a comparison of cells is based on: the numbers common to them. `None` if a cell was not measured or does not tell.
pub fn counted(item: &Item, outcome: &ItemOutcome, cells: &[CellName<'_>]) -> Option<Counted> {
    let of_cell = |cell: &CellName<'_>| OfCell::new(item, outcome, *cell)?.counted();
    let mut all = cells.iter().map(of_cell);
    let first = all.next()??;
    all.try_fold(first, |known, other| Some(known.common(other?)))
}

/// Merges counts of the same kind.
pub fn together(all: impl IntoIterator<Item = Counted>) -> Vec<Counted> {
    let mut kinds: Vec<Counted> = Vec::new();
    for one in all {
        match kinds.iter_mut().find(|known| known.of.is_like(&one.of)) {
            Some(known) => known.add(one),
            None => kinds.push(one),
        }
    }
    kinds
}

impl Counted {
    /// Returns what both cells of a comparison have.
    fn common(self, other: Self) -> Self {
        let most = [self.most, other.most].into_iter().flatten().min();
        let mut common = Self { least: self.least.min(other.least), most, of: self.of };
        common.of.add_tasks(&other.of);
        common
    }

    /// Merges another count of the same kind.
    fn add(&mut self, other: Self) {
        self.least = self.least.min(other.least);
        self.most = self.most.zip(other.most).map(|(own, other)| own.max(other));
        self.of.add_tasks(&other.of);
    }
}

impl CountedThing {
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Examples(_), Self::Examples(_)) => true,
            (Self::Prompts(_, own), Self::Prompts(_, other)) => own == other,
            _ => self == other,
        }
    }

    fn add_tasks(&mut self, other: &Self) {
        if let (Self::Examples(own) | Self::Prompts(own, _), Self::Examples(more) | Self::Prompts(more, _)) =
            (self, other)
        {
            own.extend(more.iter().cloned());
        }
    }
}

/// A measured cell with its row and column.
struct OfCell<'a> {
    item: &'a Item,
    outcome: &'a ItemOutcome,
    row: &'a Line,
    column: &'a Line,
    number: Number,
}

impl<'a> OfCell<'a> {
    fn new(item: &'a Item, outcome: &'a ItemOutcome, (row, column): CellName<'_>) -> Option<Self> {
        let find = |lines: &'a [Line], name: &str| lines.iter().find(|line| line.name == name);
        let (row, named) = (find(&item.rows, row)?, find(&item.columns, column)?);
        let (number, _) = outcome.number(&row.name, column)?;
        // A column that is computed from other columns has their tasks.
        let of = named.reaches.as_ref().and_then(|reaching| find(&item.columns, &reaching.of));
        Some(Self { item, outcome, row, column: of.unwrap_or(named), number })
    }

    fn counted(&self) -> Option<Counted> {
        let n = self.number.n;
        let exactly = |n: usize, of: CountedThing| Some(Counted { least: n, most: Some(n), of });
        let lines = [self.row, self.column];
        if self.outcome.variant == TIMES {
            return exactly(n, CountedThing::Rounds);
        }
        if lines.iter().any(|line| line.correlation.is_some()) {
            return exactly(n, CountedThing::Rows);
        }
        if let Some(name) = lines.iter().find_map(|line| line.counts.clone()) {
            return if self.number.is_named { exactly(n, CountedThing::Named(name)) } else { None };
        }
        let is_found = self.is_found();
        if is_found && self.outcome.fact("learned").is_some() {
            return exactly(n, CountedThing::Layers);
        }
        let (tasks, most) = (self.tasks(), self.most());
        let size = if is_found { self.outcome.at_a_time() } else { 1 };
        let of = if is_found { CountedThing::Prompts(tasks, size) } else { CountedThing::Examples(tasks) };
        Some(Counted { least: n * size, most: most.map(|most| most * size), of })
    }

    fn is_found(&self) -> bool {
        let variant = self.outcome.run().variant;
        [self.row, self.column].iter().any(|line| line.select(variant).found.is_some())
    }

    /// Returns the tasks of the run that measured the cell.
    fn all_tasks(&self) -> Vec<&'a str> {
        let fact = if self.is_found() {
            "prompts of"
        } else if self.item.value(self.row, self.column) == Value::StepMs {
            "steps timed alone"
        } else {
            "tasks"
        };
        let list = self.outcome.fact(fact).unwrap_or_default();
        // The fact about timed steps has the form `TASKS at LENGTHS`.
        let list = list.split(" at ").next().unwrap_or_default();
        list.split(", ").filter(|name| !name.trim().is_empty()).collect()
    }

    /// Returns the tasks that the cell's row and column select.
    fn tasks(&self) -> BTreeSet<String> {
        let variant = self.outcome.run().variant;
        let all = self.all_tasks();
        let selected = self.column.select(variant).tasks.or(self.row.select(variant).tasks);
        let is_own = |task: &&&str| {
            let is_of = |wanted: &String| {
                task.strip_prefix(wanted.as_str()).is_some_and(|t| t.is_empty() || t.starts_with('/'))
            };
            selected.as_ref().is_none_or(|selected| selected.iter().any(is_of))
        };
        all.iter().filter(is_own).map(|task| (*task).to_owned()).collect()
    }

    /// Returns the greatest number of a task and length; `None` if the result does not tell.
    fn most(&self) -> Option<usize> {
        let n = self.number.n;
        let (own, all) = (self.tasks().len(), self.all_tasks().len());
        if self.number.most.is_some() || own <= 1 {
            return self.number.most.or(Some(n));
        }
        let lengths = self.outcome.lengths().len().max(1);
        let total = self.outcome.total(if self.is_found() { "prompts" } else { "examples" });
        let of_all = |each: usize| total == Some(each * all * lengths);
        if of_all(n * if self.is_found() { self.outcome.at_a_time() } else { 1 }) {
            return Some(n);
        }
        let planned = self.planned()?;
        let most = planned.iter().copied().max()?;
        if most <= n {
            return Some(n);
        }
        // The total fits if all tasks and lengths have the planned number, except perhaps the one with the least.
        let sum: usize = planned.iter().sum();
        let is_whole = planned.len() == all * lengths;
        let but_one = planned.iter().filter(|one| **one >= n).any(|one| total == Some(sum - one + n));
        (is_whole && but_one).then_some(most)
    }

    /// Returns the number of examples that the item plans for each of the cell's tasks and lengths; `None` if it is not known.
    fn planned(&self) -> Option<Vec<usize>> {
        let variant = self.outcome.run().variant;
        let samples = self.outcome.samples.or_else(|| self.item.settings(variant)?.samples)?;
        // If the user chose the number, there are no further examples.
        let more = self.item.more.of(variant).filter(|_| self.outcome.samples.is_none());
        let more = || {
            more.into_iter()
                .flatten()
                .filter(|more| more.of.iter().any(|name| *name == self.row.name || *name == self.column.name))
        };
        let length = self.column.select(variant).length.or(self.row.select(variant).length);
        let lengths: Vec<usize> =
            self.outcome.lengths().into_iter().filter(|own| length.is_none_or(|l| l == *own)).collect();
        let of = |task: &String, length: Option<usize>| {
            let has = more().filter(|more| more.is_of(task, length)).map(|more| more.samples);
            has.fold(samples, usize::max)
        };
        let places = |task: &String| -> Vec<usize> {
            if lengths.is_empty() {
                vec![of(task, None)]
            } else {
                lengths.iter().map(|length| of(task, Some(*length))).collect()
            }
        };
        Some(self.tasks().iter().flat_map(places).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Variant;
    use super::super::judging::judge;
    use super::super::measure::Evidence;
    use super::super::run_of::RunOf;
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;

    const ITEM: &str = "
title = 'a'
[builtin]
tasks = ['ruler/vt', 'ruler/cwe', 'ruler/fwe']
samples = 8
[[more.builtin]]
of = ['Top']
tasks = ['ruler/vt']
samples = 12
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=8'
[[column]]
name = 'VT'
tasks = ['ruler/vt']
[[column]]
name = 'Words'
tasks = ['ruler/cwe', 'ruler/fwe']
[[column]]
name = 'All'
";

    /// Returns an outcome with these numbers of examples of each task.
    fn of(item: &Item, counts: [usize; 3]) -> ItemOutcome {
        let tasks = ["ruler/vt", "ruler/cwe", "ruler/fwe"].into_iter().zip(counts);
        let one = |task: &str, i: usize| {
            [record(task, "full", i, 1.0), Record { params: "k=8".into(), ..record(task, "topk", i, 0.5) }]
        };
        let records: Vec<Record> = tasks.flat_map(|(task, n)| (0..n).flat_map(move |i| one(task, i))).collect();
        let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
        let judged = judge("p/t", item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
        let fact = |what: &str, value: String| (what.to_owned(), value);
        let total: usize = counts.iter().sum();
        let ran = vec![
            fact("tasks", "ruler/cwe, ruler/fwe, ruler/vt".to_owned()),
            fact("lengths", "1024".to_owned()),
            fact("examples", format!("{total}, {} records", 2 * total)),
        ];
        ItemOutcome { ran, ..judged }
    }

    /// Returns the outcome as older versions stored it: without the greatest number.
    fn older(mut outcome: ItemOutcome) -> ItemOutcome {
        let cells = outcome.rows.iter_mut().flat_map(|row| &mut row.cells);
        cells.filter_map(|cell| cell.measured.as_mut()).for_each(|number| number.most = None);
        outcome
    }

    fn told(item: &Item, outcome: &ItemOutcome, cells: &[CellName<'_>]) -> (usize, Option<usize>, usize) {
        let Counted { least, most, of } = counted(item, outcome, cells).unwrap();
        let CountedThing::Examples(tasks) = of else { panic!("{of:?}") };
        (least, most, tasks.len())
    }

    #[test]
    fn a_cell_is_of_its_own_tasks_from_the_least_number_to_the_greatest() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let outcome = of(&item, [8, 5, 7]);
        assert_eq!(told(&item, &outcome, &[("Full", "VT")]), (8, Some(8), 1));
        assert_eq!(told(&item, &outcome, &[("Full", "Words")]), (5, Some(7), 2));
        assert_eq!(told(&item, &outcome, &[("Full", "All"), ("Top", "All")]), (5, Some(8), 3));
        let both = [("Full", "VT"), ("Full", "Words")].map(|cell| counted(&item, &outcome, &[cell]).unwrap());
        let [one] = together(both).try_into().unwrap();
        assert_eq!((one.least, one.most), (5, Some(8)));
        let CountedThing::Examples(tasks) = one.of else { panic!() };
        assert_eq!(tasks.len(), 3);
        assert_eq!(counted(&item, &outcome, &[("Full", "None")]), None);
    }

    #[test]
    fn an_older_result_says_no_more_than_its_settings_and_total_leave_certain() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let all = |counts: [usize; 3], row: &'static str| told(&item, &older(of(&item, counts)), &[(row, "All")]);
        assert_eq!(all([6, 6, 6], "Full"), (6, Some(6), 3), "all examples are as many of each");
        assert_eq!(all([8, 5, 8], "Full"), (5, Some(8), 3), "one task has fewer than planned");
        assert_eq!(all([12, 8, 8], "Top"), (8, Some(12), 3), "as planned");
        assert_eq!(all([7, 5, 6], "Full"), (5, None, 3));
        assert_eq!(told(&item, &older(of(&item, [7, 5, 5])), &[("Full", "Words")]), (5, None, 2));
        assert_eq!(told(&item, &older(of(&item, [7, 8, 8])), &[("Full", "Words")]), (8, Some(8), 2), "none has more");
    }
}
