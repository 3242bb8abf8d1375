//! The results of analyses as plain data: numbers by table, row and column, for each unit of documents. Other modules run the analyses;
//! nothing here depends on any of them.
//!
//! A unit is one document, or several documents that are observed together (`together`). Units are observed independently, so intervals are
//! over units. A cell of an item has one number for each unit, made from all numbers that its row and column select.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use spattn_base::error::UsageError;
use spattn_stats::several::mean_of;
use spattn_stats::{Estimate, Sample, mean_interval};

/// The settings of an analysis, as in `spattn analyze`: prompts that are read densely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observing {
    /// The model.
    pub model: String,
    /// Names of the analyses.
    pub analyses: Vec<String>,
    /// Tasks whose prompts are read.
    pub tasks: Vec<String>,
    /// The lengths of prompts in tokens.
    pub lengths: Vec<usize>,
    /// The number of prompts of each task and length.
    pub samples: usize,
    /// The number of prompts in one observation.
    #[serde(default = "one")]
    pub together: usize,
    /// The number of last tokens of each prompt whose queries are examined.
    #[serde(default = "queries")]
    pub queries: usize,
    /// Layers to examine; all if empty.
    #[serde(default)]
    pub layers: Vec<usize>,
    /// Methods to examine; the analysis's default ones if empty.
    #[serde(default)]
    pub methods: Vec<String>,
}

fn one() -> usize {
    1
}

fn queries() -> usize {
    16
}

impl Observing {
    /// The limits of `spattn analyze` on the prompts of a task and on queries.
    const MOST_SAMPLES: usize = 100_000;
    const MOST_QUERIES: usize = 65_536;

    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is missing or out of bounds, which the error names.
    pub fn check(&self) -> Result<(), UsageError> {
        let lists = [("analyses", self.analyses.len()), ("tasks", self.tasks.len()), ("lengths", self.lengths.len())];
        if let Some((key, _)) = lists.iter().find(|(_, count)| *count == 0) {
            return Err(UsageError::new(format!("`{key}` is empty")).hint("name one or more"));
        }
        let within = |key: &str, value: usize, most: usize| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(UsageError::new(format!("`{key}`: {value} is not from 1 to {most}"))),
        };
        within("samples", self.samples, Self::MOST_SAMPLES)?;
        within("queries", self.queries, Self::MOST_QUERIES)?;
        within("together", self.together, self.samples)?;
        match self.samples % self.together {
            0 => Ok(()),
            _ => Err(UsageError::new(format!(
                "`samples` is {}, which is not a multiple of `together`, {}",
                self.samples, self.together
            ))
            .hint("use a multiple of `together`")),
        }
    }

    /// The number of units of each task and length.
    pub fn units(&self) -> usize {
        self.samples / self.together
    }
}

/// The results of one unit, as stored in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnalysisTables {
    /// Everything that determines the numbers.
    pub identity: Json,
    /// The program that computed the tables.
    pub program: Json,
    /// The model.
    pub model: String,
    /// The task whose prompts were read.
    pub task: String,
    /// The requested length in tokens.
    pub length: usize,
    /// The unit's index within the task and length, from 0.
    pub unit: usize,
    /// The number of prompts in it.
    pub documents: usize,
    /// The tables.
    pub tables: Vec<SeenTable>,
}

/// Describes the first unit with an empty table that has rows in other units; `None` if there is none. Such a unit leaves all cells of the
/// table without a number, since a mean over the other units would be a mean over other prompts.
pub fn unit_without_rows(seen: &[AnalysisTables]) -> Option<String> {
    let has_rows = |name: &str| {
        seen.iter().flat_map(|unit| &unit.tables).any(|table| table.name == name && !table.rows.is_empty())
    };
    let empty = |unit: &AnalysisTables| {
        let table = unit.tables.iter().find(|table| table.rows.is_empty() && has_rows(&table.name))?;
        Some(format!("{} at {}, unit {}, has no row in `{}`", unit.task, unit.length, unit.unit, table.name))
    };
    seen.iter().find_map(empty)
}

/// A table of numbers with named rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeenTable {
    /// Its name.
    pub name: String,
    /// The headings of the names.
    pub keys: Vec<String>,
    /// The headings of the numbers.
    pub columns: Vec<String>,
    /// The names and numbers of each row; missing numbers are `None`.
    pub rows: Vec<(Vec<String>, Vec<Option<f64>>)>,
    /// For each column that is averaged over things that the analysis drew itself, not over the unit's prompts: how many it drew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drawn: BTreeMap<String, usize>,
}

/// The numbers that a row, a column or a cell selects, and what is computed from them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableSelection {
    /// The table's name.
    pub table: Option<String>,
    /// The selected rows by key: a name, or a range of numbers `0..3`, both included. Instead of a number, `last` is the largest that the
    /// table has, `last-2` two below it, and `middle` half of it, rounded up. Without keys, all rows.
    pub keys: BTreeMap<String, String>,
    /// The column's name.
    pub column: Option<String>,
    /// What is computed from several numbers of a unit; by default their mean.
    pub over: Option<Over>,
}

/// What is computed from several numbers.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Their mean.
    Mean,
    /// The least.
    Least,
    /// The greatest.
    Greatest,
    /// The share of them below this.
    Below(f64),
    /// The share of them above this.
    Above(f64),
}

impl Over {
    /// Computes the result from some numbers; `None` if there are none.
    fn of(self, numbers: &[f64]) -> Option<f64> {
        let share =
            |holds: &dyn Fn(f64) -> bool| numbers.iter().filter(|x| holds(**x)).count() as f64 / numbers.len() as f64;
        let made = match self {
            Self::Mean => numbers.iter().sum::<f64>() / numbers.len() as f64,
            Self::Least => numbers.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Greatest => numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Self::Below(bound) => share(&|x| x < bound),
            Self::Above(bound) => share(&|x| x > bound),
        };
        (!numbers.is_empty()).then_some(made)
    }
}

impl TableSelection {
    /// Returns the fields of `first`, and of `second` where `first` lacks them.
    pub fn over(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (first, mut second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return first.or(second),
        };
        second.keys.extend(first.keys);
        Some(Self {
            table: first.table.or(second.table),
            keys: second.keys,
            column: first.column.or(second.column),
            over: first.over.or(second.over),
        })
    }

    /// Returns the number of a unit; `None` if all selected numbers are missing.
    ///
    /// # Errors
    /// If table or column are not named, the unit has no such table, key or column, or the keys select no row of a table with rows.
    pub fn of(&self, seen: &AnalysisTables) -> Result<Option<f64>, UsageError> {
        let unknown = |what: &str, name: &str, known: Vec<&str>| Err(UsageError::unknown(what, name, known));
        let (Some(name), Some(column)) = (&self.table, &self.column) else {
            return Err(UsageError::new("a measured cell needs a table and a column")
                .hint("give `found` with `table` and `column` in its row, its column, or each in one of them"));
        };
        let Some(table) = seen.tables.iter().find(|table| table.name == *name) else {
            return unknown("table", name, seen.tables.iter().map(|table| table.name.as_str()).collect());
        };
        let Some(at) = table.columns.iter().position(|other| other == column) else {
            return unknown("column of a table", column, table.columns.iter().map(String::as_str).collect());
        };
        let mut selects = Vec::new();
        for (key, wanted) in &self.keys {
            match table.keys.iter().position(|other| other == key) {
                Some(place) => selects.push((place, wanted.as_str())),
                None => return unknown("key of a table", key, table.keys.iter().map(String::as_str).collect()),
            }
        }
        let last = |place: usize| table.rows.iter().filter_map(|(keys, _)| keys[place].parse().ok()).max();
        let is_selected =
            |keys: &[String]| selects.iter().all(|(place, wanted)| is_named(&keys[*place], wanted, || last(*place)));
        let rows: Vec<&Vec<Option<f64>>> =
            table.rows.iter().filter(|(keys, _)| is_selected(keys)).map(|(_, numbers)| numbers).collect();
        if rows.is_empty() && !table.rows.is_empty() {
            let keys: Vec<String> = self.keys.iter().map(|(key, wanted)| format!("{key} = {wanted}")).collect();
            return Err(UsageError::new(format!("no row of the table `{name}` has {}", keys.join(", ")))
                .hint("`spattn analyze` prints the tables, and writes them all"));
        }
        let numbers: Vec<f64> = rows.iter().filter_map(|numbers| numbers[at]).collect();
        Ok(self.over.unwrap_or(Over::Mean).of(&numbers))
    }

    /// Returns how many things drawn by the analysis the selected column is averaged over; `None` if it is averaged over the unit's
    /// prompts.
    fn drawn(&self, seen: &AnalysisTables) -> Option<usize> {
        let table = seen.tables.iter().find(|table| Some(&table.name) == self.table.as_ref())?;
        table.drawn.get(self.column.as_ref()?).copied()
    }
}

/// Whether a row's name is `wanted`, or is that number, or lies in that range of numbers. `last` returns the largest number of the table.
fn is_named(name: &str, wanted: &str, last: impl Fn() -> Option<usize>) -> bool {
    let number = |text: &str| match text.split_once('-').unwrap_or((text, "0")) {
        ("last", before) => last()?.checked_sub(before.parse().ok()?),
        ("middle", "0") => last().map(|last| last.div_ceil(2)),
        _ => text.parse().ok(),
    };
    let is_number = |wanted: Option<usize>| wanted.is_some() && name.parse().ok() == wanted;
    match wanted.split_once("..").and_then(|(first, last)| Some((number(first)?, number(last)?))) {
        Some((first, last)) => name.parse().is_ok_and(|n| (first..=last).contains(&n)),
        None => name == wanted || is_number(number(wanted)),
    }
}

/// The numbers of a cell: for each task and length, one for each unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Units {
    places: BTreeMap<(String, usize), BTreeMap<usize, f64>>,
    /// How many things each number is averaged over, if these are not the unit's prompts.
    drawn: Option<usize>,
}

impl Units {
    /// Takes the numbers that `found` selects, for some tasks or all, and one length or all; `None` if a unit has none or there is no unit.
    ///
    /// # Errors
    /// As [`TableSelection::of`].
    pub fn new(
        found: &TableSelection,
        seen: &[AnalysisTables],
        tasks: Option<&Vec<String>>,
        length: Option<usize>,
    ) -> Result<Option<Self>, UsageError> {
        let mut units = Self::default();
        for one in seen {
            // An entry of `tasks` is a task or a group of tasks.
            let is_of = |task: &String| one.task == *task || one.task.starts_with(&format!("{task}/"));
            let is_of_task = tasks.is_none_or(|tasks| tasks.iter().any(is_of));
            if !is_of_task || length.is_some_and(|length| length != one.length) {
                continue;
            }
            let Some(number) = found.of(one)? else { return Ok(None) };
            units.drawn = found.drawn(one);
            units.places.entry((one.task.clone(), one.length)).or_default().insert(one.unit, number);
        }
        Ok((!units.places.is_empty()).then_some(units))
    }

    /// Returns how many things that the analysis drew itself each number is averaged over; `None` if it is averaged over prompts.
    pub fn drawn(&self) -> Option<usize> {
        self.drawn
    }

    /// Returns the smallest and the greatest number of units of a task and length; if the analysis drew things, both count those.
    pub fn counts(&self) -> (usize, usize) {
        let of = || self.places.values().map(BTreeMap::len);
        self.drawn.map_or((of().min().unwrap_or(0), of().max().unwrap_or(0)), |drawn| (drawn, drawn))
    }

    /// Returns the mean over tasks and lengths, with its interval over units.
    pub fn estimate(&self) -> Option<Estimate> {
        let of_place = |units: &BTreeMap<usize, f64>| {
            mean_interval(&Sample::independent(&units.values().copied().collect::<Vec<_>>()))
        };
        mean_of(&self.places.values().map(of_place).collect::<Option<Vec<_>>>()?)
    }

    /// Subtracts `factor` times the numbers of `other`, unit by unit; `None` if the units differ.
    pub fn less(&self, factor: f64, other: &Self) -> Option<Self> {
        let same = |(place, units): (&(String, usize), &BTreeMap<usize, f64>)| {
            let others = other.places.get(place)?;
            let pair = |(unit, number): (&usize, &f64)| Some((*unit, number - factor * others.get(unit)?));
            let pairs: BTreeMap<usize, f64> = units.iter().map(pair).collect::<Option<_>>()?;
            (pairs.len() == others.len()).then(|| (place.clone(), pairs))
        };
        let places: BTreeMap<_, _> = self.places.iter().map(same).collect::<Option<_>>()?;
        (places.len() == other.places.len()).then_some(Self { places, drawn: self.drawn })
    }

    /// Multiplies every number by `factor`.
    pub fn scaled(mut self, factor: f64) -> Self {
        self.places.values_mut().flat_map(BTreeMap::values_mut).for_each(|number| *number *= factor);
        self
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a unit with a table by layer, whose column `x` is `numbers` and whose column `y` is a tenth of them.
    pub fn unit(task: &str, unit: usize, numbers: &[f64]) -> AnalysisTables {
        let row = |(layer, x): (usize, &f64)| (vec![layer.to_string()], vec![Some(*x), Some(x / 10.0)]);
        let mut rows: Vec<_> = numbers.iter().enumerate().map(row).collect();
        rows.push((vec!["all".to_owned()], vec![Some(99.0), None]));
        let columns = vec!["x".to_owned(), "y".to_owned()];
        let table = SeenTable {
            name: "by_layer".to_owned(),
            keys: vec!["layer".to_owned()],
            columns,
            rows,
            drawn: BTreeMap::new(),
        };
        AnalysisTables {
            identity: Json::Null,
            program: Json::Null,
            model: "builtin".to_owned(),
            task: task.to_owned(),
            length: 1024,
            unit,
            documents: 1,
            tables: vec![table],
        }
    }

    fn found(text: &str) -> TableSelection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_cell_is_what_is_made_of_the_rows_that_are_selected() {
        let seen = unit("t", 0, &[1.0, 2.0, 6.0]);
        let rows = [
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '1' }", Some(2.0)),
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '0..2' }", Some(3.0)),
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '1..2' }\nover = 'least'", Some(2.0)),
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '0..2' }\nover = 'greatest'", Some(6.0)),
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '0..2' }\nover = { below = 2 }", Some(1.0 / 3.0)),
            ("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '0..2' }\nover = { above = 1 }", Some(2.0 / 3.0)),
            // Without keys, the row "all" counts too.
            ("table = 'by_layer'\ncolumn = 'x'\nover = 'greatest'", Some(99.0)),
            ("table = 'by_layer'\ncolumn = 'y'\nkeys = { layer = 'all' }", None),
        ];
        for (text, expected) in rows {
            assert_eq!(found(text).of(&seen).unwrap(), expected, "{text}");
        }
        let refused = |text: &str| found(text).of(&seen).unwrap_err();
        assert!(refused("column = 'x'").what.contains("needs a table and a column"));
        assert_eq!(refused("table = 'by_lair'\ncolumn = 'x'").hint.unwrap(), "did you mean `by_layer`?");
        assert!(refused("table = 'by_layer'\ncolumn = 'z'").what.contains("`z`"));
        assert!(refused("table = 'by_layer'\ncolumn = 'x'\nkeys = { head = '1' }").what.contains("`head`"));
        let none = refused("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '7' }").what;
        assert!(none.contains("no row of the table `by_layer` has layer = 7"), "{none}");
    }

    #[test]
    fn a_unit_without_rows_is_named() {
        let mut units = [unit("t", 0, &[1.0]), unit("t", 1, &[2.0]), unit("t", 2, &[2.0])];
        assert_eq!(unit_without_rows(&units), None);
        units[1].tables[0].rows.clear();
        assert_eq!(unit_without_rows(&units).unwrap(), "t at 1024, unit 1, has no row in `by_layer`");
        let selection = found("table = 'by_layer'\ncolumn = 'x'");
        assert_eq!(
            Units::new(&selection, &units, None, None).unwrap(),
            None,
            "nothing is measured by the others alone"
        );
        units.iter_mut().for_each(|unit| unit.tables[0].rows.clear());
        assert_eq!(unit_without_rows(&units), None, "what no unit has is the matter of none");
    }

    #[test]
    fn what_a_line_says_goes_before_what_it_stands_for() {
        let both = TableSelection::over(
            Some(found("column = 'y'\nkeys = { layer = '3' }")),
            Some(found("table = 't'\ncolumn = 'x'\nkeys = { layer = '1', head = '2' }\nover = 'least'")),
        );
        assert_eq!(
            both.unwrap(),
            found("table = 't'\ncolumn = 'y'\nkeys = { layer = '3', head = '2' }\nover = 'least'")
        );
        assert_eq!(TableSelection::over(None, None), None);
    }

    #[test]
    fn intervals_are_over_units_and_differences_within_them() {
        let seen: Vec<AnalysisTables> =
            [1.0, 2.0, 6.0].iter().enumerate().map(|(i, x)| unit("t", i, &[*x, x + 1.0])).collect();
        let of = |layer: &str| {
            let found = found(&format!("table = 'by_layer'\ncolumn = 'x'\nkeys = {{ layer = '{layer}' }}"));
            Units::new(&found, &seen, None, None).unwrap().unwrap()
        };
        let (first, second) = (of("0"), of("1"));
        // The mean is 3, the standard deviation √7, and Student's t with two degrees of freedom 4.302653.
        let estimate = first.estimate().unwrap();
        let half = 4.302_653 * (7.0f64 / 3.0).sqrt();
        assert!((estimate.mean - 3.0).abs() < 1e-12);
        assert!((estimate.ends.unwrap().1 - 3.0 - half).abs() < 1e-5, "{estimate:?}");
        // Every unit differs by 1, so the interval has no width.
        let difference = second.less(1.0, &first).unwrap().estimate().unwrap();
        assert_eq!((difference.mean, difference.ends), (1.0, Some((1.0, 1.0))));
        assert_eq!(second.less(2.0, &first).unwrap().estimate().unwrap().mean, 1.0 - 3.0);
        assert_eq!(first.counts(), (3, 3));
        let fewer = Units::new(&found("table = 'by_layer'\ncolumn = 'x'"), &seen[..2], None, None).unwrap().unwrap();
        assert_eq!(first.less(1.0, &fewer), None);
    }

    #[test]
    fn layers_are_counted_from_the_end_or_to_the_middle() {
        let seen = unit("t", 0, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let of = |layer: &str| {
            let found = found(&format!("table = 'by_layer'\ncolumn = 'x'\nkeys = {{ layer = '{layer}' }}"));
            found.of(&seen).map(Option::unwrap).map_err(|error| error.what)
        };
        for (layer, mean) in [
            ("last", 5.0),
            ("last-1", 4.0),
            ("middle", 3.0),
            ("1..last", 3.0),
            ("2..last-2", 2.5),
            ("middle..last", 4.0),
            ("all", 99.0),
        ] {
            assert_eq!(of(layer), Ok(mean), "{layer}");
        }
        for layer in ["last-6", "last-x", "lasts", "middle-1", "6"] {
            assert_eq!(of(layer), Err(format!("no row of the table `by_layer` has layer = {layer}")));
        }
    }

    #[test]
    fn tasks_weigh_the_same_and_are_selected() {
        let seen = [unit("a", 0, &[1.0]), unit("a", 1, &[1.0]), unit("b", 0, &[4.0])];
        let found = found("table = 'by_layer'\ncolumn = 'x'\nkeys = { layer = '0' }");
        let mean = |tasks: Option<&Vec<String>>| {
            Units::new(&found, &seen, tasks, None).unwrap().map(|units| units.estimate().unwrap().mean)
        };
        assert_eq!(mean(None), Some(2.5));
        assert_eq!(mean(Some(&vec!["a".to_owned()])), Some(1.0));
        assert_eq!(mean(Some(&vec!["c".to_owned()])), None);
        assert_eq!(Units::new(&found, &seen, None, Some(2048)).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_looked_at_is_refused() {
        let text = "model = 'builtin'\nanalyses = ['mass']\ntasks = ['ruler/vt']\nlengths = [1024]\n";
        let check = |more: &str| toml::from_str::<Observing>(&format!("{text}{more}")).unwrap().check();
        assert!(check("samples = 6\ntogether = 3").is_ok());
        assert!(check("samples = 0").unwrap_err().what.contains("`samples`: 0"));
        assert!(check("samples = 5\ntogether = 2").unwrap_err().what.contains("not a multiple of `together`"));
        assert!(check("samples = 5\ntogether = 6").unwrap_err().what.contains("`together`: 6"));
        assert!(check("samples = 5\nqueries = 0").unwrap_err().what.contains("`queries`"));
        let empty =
            toml::from_str::<Observing>(&text.replace("['mass']", "[]").replace("[1024]", "[1024]\nsamples = 1"));
        assert!(empty.unwrap().check().unwrap_err().what.contains("`analyses` is empty"));
    }
}
