//! Tables of times as `spattn bench` writes them, and the selection of their rows by a cell of an item.
//!
//! The papers' GPU timings were repeated on a GPU with this program. The tables are part of the program, so that a reader needs no GPU to
//! compare published and measured numbers. Other tables are named by their folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use spattn_attention::split_params;
use spattn_base::error::UsageError;
use spattn_base::text::of_cell;
use spattn_stats::Estimate;

/// The folder that the tables of the program come from.
pub const MEASURED_AT: &str = "results/reference/h200/bench";

macro_rules! measured {
    ($($name:literal,)*) => {
        [$(($name, include_str!(concat!("../../reference/", $name, "/bench.csv"))),)*]
    };
}

/// The names and texts of the tables that are part of the program.
const MEASURED: [(&str, &str); 18] = measured![
    "context",
    "ds_figure5",
    "ds_figure6",
    "ds_offload",
    "hash_figure4",
    "hash_figure4_steps",
    "hash_table6",
    "hip_decoding",
    "hip_table14",
    "hip_table15",
    "hip_table17",
    "hip_table5",
    "hip_table6",
    "hip_table6_host",
    "hip_table6_kept",
    "magicpig_figure7",
    "magicpig_host",
    "magicpig_table6",
];

/// The tables of times that an item is judged by.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceBench {
    /// Names of tables that are part of the program, or folders of others (with a `/`).
    pub tables: Vec<String>,
    /// The commands that make such tables.
    pub commands: Vec<String>,
}

/// Which times a row, a column or a cell selects.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timed {
    /// The table, as [`ReferenceBench::tables`] names it, if the same row is in several.
    pub table: Option<String>,
    /// The operation, if the tables have several: `attention`, `decode`.
    pub op: Option<String>,
    /// Tokens in context.
    pub context: Option<usize>,
    /// The number of sequences.
    pub batch: Option<usize>,
    /// The method, or another program, by its name in the table.
    pub method: Option<String>,
    /// Its parameters as in the table, if there are several rows of it.
    pub params: Option<String>,
    /// The method to compare with, by its name in the table. The value is then how many times as long that method takes.
    pub against: Option<String>,
    /// The table's column; by default `time_us`.
    pub column: Option<String>,
}

impl Timed {
    /// Returns the fields of `first`, and of `second` where `first` lacks them. The parameters of both are joined.
    pub fn over(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (first, second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return first.or(second),
        };
        Some(Self {
            table: first.table.or(second.table),
            op: first.op.or(second.op),
            context: first.context.or(second.context),
            batch: first.batch.or(second.batch),
            method: first.method.or(second.method),
            params: match (first.params, second.params) {
                (Some(first), Some(second)) => Some(format!("{first},{second}")),
                (first, second) => first.or(second),
            },
            against: first.against.or(second.against),
            column: first.column.or(second.column),
        })
    }
}

/// The times of one or more tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Where the tables come from.
    pub places: Vec<String>,
    rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    /// The table, as [`ReferenceBench::tables`] names it.
    table: String,
    /// The cells, by column name.
    cells: BTreeMap<String, String>,
}

/// The column of medians, and those of the ends of their 95 % intervals.
const TIME: [&str; 3] = ["time_us", "time_low_us", "time_high_us"];
/// The same columns for each part of a time.
const PARTS: [[&str; 3]; 4] = [
    ["score_us", "score_low_us", "score_high_us"],
    ["select_us", "select_low_us", "select_high_us"],
    ["attend_us", "attend_low_us", "attend_high_us"],
    ["weights_us", "weights_low_us", "weights_high_us"],
];

impl ReferenceBench {
    /// Reads all tables as one.
    ///
    /// # Errors
    /// If a name is unknown, a folder's table cannot be read, or the tables have no rows.
    pub fn read(&self) -> Result<Times, UsageError> {
        let mut all = Times { places: Vec::new(), rows: Vec::new() };
        for table in &self.tables {
            let Times { places, rows } = self.one(table)?;
            all.places.extend(places);
            all.rows.extend(rows);
        }
        match all.rows.is_empty() {
            false => Ok(all),
            true => Err(UsageError::new("[bench]: its tables have no times").hint("name one in `tables`")),
        }
    }

    /// Checks that the table that a line selects is one of these.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, timed: &Timed) -> Result<(), UsageError> {
        match &timed.table {
            Some(table) if !self.tables.contains(table) => {
                Err(UsageError::unknown("table of [bench]", table, &self.tables))
            }
            _ => Ok(()),
        }
    }

    fn one(&self, table: &str) -> Result<Times, UsageError> {
        if let Some((name, text)) = MEASURED.iter().find(|(name, _)| *name == table) {
            return Times::parse(text, name, &format!("{MEASURED_AT}/{name}"));
        }
        if !table.contains('/') {
            let known = MEASURED.iter().map(|(name, _)| *name);
            return Err(UsageError::unknown("table of times", table, known));
        }
        let path = Path::new(table).join("bench.csv");
        let text = std::fs::read_to_string(&path).map_err(|e| {
            UsageError::new(format!("[bench]: cannot read {}: {e}", path.display()))
                .hint("`spattn bench --out DIR` writes one")
        })?;
        Times::parse(&text, table, table)
    }
}

impl Times {
    fn parse(text: &str, table: &str, place: &str) -> Result<Self, UsageError> {
        let wrong = |e: csv::Error| {
            UsageError::new(format!("[bench]: {place} is not a table of times: {e}"))
                .hint("`spattn bench --out` writes one")
        };
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let rows = reader.deserialize().collect::<Result<Vec<BTreeMap<String, String>>, _>>().map_err(wrong)?;
        let plain = |row: BTreeMap<String, String>| row.into_iter().map(|(key, cell)| (key, of_cell(&cell).to_owned()));
        let row = |cells: BTreeMap<String, String>| Row { table: table.to_owned(), cells: plain(cells).collect() };
        let rows = rows.into_iter().map(row).collect();
        Ok(Self { places: vec![place.to_owned()], rows })
    }

    /// The machine that the times were taken on.
    pub fn machine(&self) -> &str {
        self.rows.first().and_then(|row| row.cell("device")).unwrap_or("unknown machine")
    }

    /// Returns the selected time or ratio of times with its 95 % interval, and the number of turns (of a ratio, the smaller one). `None` if
    /// the table has no such row or number, or no method is named. Whole times have intervals, and so do parts whose turns were timed.
    ///
    /// # Errors
    /// If several rows are selected.
    pub fn of(&self, timed: &Timed) -> Result<Option<(Estimate, usize)>, UsageError> {
        let Some(method) = &timed.method else { return Ok(None) };
        let Some(row) = self.row(timed, method, timed.params.as_deref())? else { return Ok(None) };
        let Some(against) = &timed.against else {
            let column = timed.column.as_deref().unwrap_or(TIME[0]);
            let of_column = [TIME].into_iter().chain(PARTS).find(|columns| columns[0] == column);
            let columns = of_column.unwrap_or([column, "", ""]);
            return Ok(number(row, columns).map(|estimate| (estimate, turns(row))));
        };
        let Some(other) = self.row(timed, against, None)? else { return Ok(None) };
        let ratio = number(other, TIME).zip(number(row, TIME)).map(|(other, own)| {
            let ends = other.ends.zip(own.ends).map(|(o, m)| (o.0 / m.1, o.1 / m.0));
            Estimate { mean: other.mean / own.mean, ends }
        });
        Ok(ratio.map(|ratio| (ratio, turns(row).min(turns(other)))))
    }

    fn row(&self, timed: &Timed, method: &str, params: Option<&str>) -> Result<Option<&Row>, UsageError> {
        let found: Vec<_> = self.rows.iter().filter(|row| row.is_of(timed, method, params)).collect();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            many => Err(UsageError::new(format!(
                "{} has {} times of `{method}` for one cell",
                self.places.join(", "),
                many.len()
            ))
            .hint("say which with `table`, `op`, `context`, `batch` and `params`")),
        }
    }
}

impl Row {
    fn cell(&self, column: &str) -> Option<&str> {
        self.cells.get(column).map(String::as_str)
    }

    /// Whether it is a time of a method at the selected place.
    fn is_of(&self, timed: &Timed, method: &str, params: Option<&str>) -> bool {
        let has = |column: &str, wanted: Option<&str>| wanted.is_none_or(|wanted| self.cell(column) == Some(wanted));
        let has_number = |column: &str, wanted: Option<usize>| has(column, wanted.map(|n| n.to_string()).as_deref());
        timed.table.as_ref().is_none_or(|table| *table == self.table)
            && has("op", timed.op.as_deref())
            && has_number("context", timed.context)
            && has_number("batch", timed.batch)
            && has("method", Some(method))
            && params.is_none_or(|params| self.cell("params").is_some_and(|own| parts(own) == parts(params)))
    }
}

/// Splits the parameters of `key=value,...`, whose order does not matter.
fn parts(params: &str) -> BTreeSet<&str> {
    split_params(params).into_iter().filter(|part| !part.is_empty()).collect()
}

/// Reads a number, with the ends of its interval from two further columns.
fn number(row: &Row, [column, low, high]: [&str; 3]) -> Option<Estimate> {
    let of = |column: &str| row.cell(column)?.parse::<f64>().ok();
    Some(Estimate { mean: of(column)?, ends: of(low).zip(of(high)) })
}

fn turns(row: &Row) -> usize {
    row.cell("rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "device,context,batch,method,params,time_us,time_low_us,time_high_us,rounds,attend_us,score_us,score_low_us,score_high_us,attend_low_us,attend_high_us\n\
         GPU X,1024,4,full,,20,19,22,9,20,,,,,\n\
         GPU X,1024,4,hip,k=8,10,9.5,10.5,7,4,,,,3.5,4.5\n\
         GPU X,1024,4,hip,\"k=8,r_m=1\",16,15,17,7,,5,4,6.5,,\n\
         GPU X,2048,4,hip,k=8,12,11,13,7,6,3,,,,\n";

    fn timed(text: &str) -> Timed {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_cell_is_a_time_or_how_many_times_as_long_another_takes() {
        let times = Times::parse(TABLE, "t", "t").unwrap();
        let of = |text: &str| times.of(&timed(text));
        let (time, turns) = of("context = 1024\nmethod = 'hip'\nparams = 'k=8'").unwrap().unwrap();
        assert_eq!((time.mean, time.ends, turns), (10.0, Some((9.5, 10.5)), 7));
        let ratio = of("context = 1024\nmethod = 'hip'\nparams = 'k=8,r_m=1'\nagainst = 'full'").unwrap().unwrap().0;
        // The ratio is 20/16, between 19/17 and 22/15.
        assert_eq!((ratio.mean, ratio.ends), (1.25, Some((19.0 / 17.0, 22.0 / 15.0))));
        let attend = of("context = 2048\nmethod = 'hip'\ncolumn = 'attend_us'").unwrap().unwrap().0;
        assert_eq!((attend.mean, attend.ends), (6.0, None));
        let attend = of("context = 1024\nmethod = 'hip'\nparams = 'k=8'\ncolumn = 'attend_us'").unwrap().unwrap().0;
        assert_eq!((attend.mean, attend.ends), (4.0, Some((3.5, 4.5))));
        let score = |place: &str| of(&format!("{place}\nmethod = 'hip'\ncolumn = 'score_us'")).unwrap().unwrap().0;
        assert_eq!(score("context = 1024\nparams = 'k=8,r_m=1'").ends, Some((4.0, 6.5)));
        assert_eq!(
            (score("context = 2048").mean, score("context = 2048").ends),
            (3.0, None),
            "it was not timed by itself"
        );
        let whole = of("context = 2048\nmethod = 'hip'\ncolumn = 'time_us'").unwrap().unwrap().0;
        assert_eq!((whole.mean, whole.ends), (12.0, Some((11.0, 13.0))));
        // Without a row or a number, nothing was measured.
        assert_eq!(of("context = 4096\nmethod = 'hip'").unwrap(), None);
        assert_eq!(of("context = 2048\nmethod = 'hip'\nagainst = 'full'").unwrap(), None);
        assert_eq!(of("context = 1024\nmethod = 'hip'\nparams = 'k=8,r_m=1'\ncolumn = 'attend_us'").unwrap(), None);
        assert!(of("context = 1024\nmethod = 'hip'").unwrap_err().what.contains("2 times of `hip`"));
        assert_eq!(of("context = 1024").unwrap(), None);
        assert_eq!(times.machine(), "GPU X");
    }

    #[test]
    fn tables_are_those_of_the_program_or_in_a_folder() {
        let read = |table: &str| ReferenceBench { tables: vec![table.to_owned()], commands: Vec::new() }.read();
        for (name, _) in MEASURED {
            assert!(read(name).unwrap().machine().contains("H200"), "{name}");
        }
        let both = ReferenceBench {
            tables: ["hash_figure4", "hash_figure4_steps"].map(str::to_owned).to_vec(),
            commands: Vec::new(),
        };
        let both = both.read().unwrap();
        let time = |op: &str| {
            let row = format!("op = '{op}'\ncontext = 32768\nmethod = 'hash_attention'\nparams = 'density=0.03125'");
            both.of(&timed(&row)).unwrap().unwrap().0.mean
        };
        assert!(time("decode") > 50.0 * time("attention"));
        assert_eq!(read("ds_figure").unwrap_err().hint.unwrap(), "did you mean `ds_figure5`?");
        assert!(read("./nowhere").unwrap_err().what.contains("cannot read ./nowhere/bench.csv"));
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("bench.csv"), TABLE).unwrap();
        assert_eq!(read(temp.path().to_str().unwrap()).unwrap().rows.len(), 4);
    }

    #[test]
    fn a_table_is_named_where_several_have_the_same_row() {
        let temp = tempfile::tempdir().unwrap();
        let folder = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
        let (gpu, host) = (folder("gpu"), folder("host"));
        let host_table = TABLE.replace(",20,19,22,", ",60,59,61,").replace(",10,9.5,10.5,", ",15,14,16,");
        for (folder, table) in [(&gpu, TABLE), (&host, &host_table)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(Path::new(folder).join("bench.csv"), table).unwrap();
        }
        let bench = ReferenceBench { tables: vec![gpu.clone(), host.clone()], commands: Vec::new() };
        let times = bench.read().unwrap();
        let row = timed("context = 1024\nmethod = 'hip'\nparams = 'k=8'");
        let several = times.of(&row).unwrap_err();
        assert!(several.what.contains("2 times of `hip`") && several.hint.unwrap().contains("`table`"));
        let of = |table: &str, against: Option<&str>| {
            let place = Timed { table: Some(table.to_owned()), against: against.map(str::to_owned), ..row.clone() };
            bench.check(&place).unwrap();
            times.of(&place).unwrap().unwrap().0.mean
        };
        assert_eq!((of(&gpu, None), of(&host, None)), (10.0, 15.0));
        assert_eq!((of(&gpu, Some("full")), of(&host, Some("full"))), (2.0, 4.0), "both times are of the same table");
        assert!(bench.check(&row).is_ok());
        let unknown = Timed { table: Some(format!("{host}s")), ..row };
        assert_eq!(bench.check(&unknown).unwrap_err().hint, Some(format!("did you mean `{host}`?")));
    }

    #[test]
    fn what_a_line_says_goes_before_what_it_stands_for() {
        let both = Timed::over(Some(timed("context = 1")), Some(timed("context = 2\nmethod = 'full'")));
        assert_eq!(both, Some(timed("context = 1\nmethod = 'full'")));
        let both = Timed::over(Some(timed("table = 'a'")), Some(timed("table = 'b'\nbatch = 4")));
        assert_eq!(both, Some(timed("table = 'a'\nbatch = 4")));
        let params = |first: &str, second: &str| {
            Timed::over(Some(timed(&format!("params = '{first}'"))), Some(timed(&format!("params = '{second}'"))))
        };
        assert_eq!(params("r_m=1", "k=8").unwrap().params.unwrap(), "r_m=1,k=8");
        // The parameters of row and column are joined in any order; empty ones add nothing.
        let times = Times::parse(TABLE, "t", "t").unwrap();
        let of = |params: Option<Timed>| {
            let place = timed("context = 1024\nmethod = 'hip'");
            times.of(&Timed::over(Some(place), params).unwrap()).unwrap().unwrap().0.mean
        };
        assert_eq!((of(params("r_m=1", "k=8")), of(params("", "k=8"))), (16.0, 10.0));
    }
}
