//! The calibrations that an item measures. They differ only in what is compared, and are measured on held-out text.
//!
//! The measurements by layer become [`AnalysisTables`], with each layer as a unit, so that differences are paired by layer. Nothing here
//! trains: that is done in [`calibrations`](super::calibrations).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::seen::{AnalysisTables, SeenTable};
use spattn_base::error::UsageError;

/// The calibrations of an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learning {
    /// The model.
    pub model: String,
    /// Calibrations in the notation of `spattn calibrate`.
    pub calibrations: Vec<String>,
    /// Tokens to read for each calibration.
    pub tokens: usize,
    /// The most tokens of a block.
    pub length: usize,
    /// The seed of the text and of random numbers.
    #[serde(default)]
    pub seed: u64,
}

/// The measurements of a calibration, as stored in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// Everything that determines the numbers.
    pub identity: Json,
    /// The program that learned it.
    pub program: Json,
    /// The model.
    pub model: String,
    /// The calibration, as written in the item.
    pub calibration: String,
    /// The most tokens of a block.
    pub length: usize,
    /// The number of held-out blocks.
    pub held_out: usize,
    /// The measurements on these blocks: a CSV table with the columns `layer`, `nets` and `bits`, and numbers.
    pub csv: String,
}

/// The name of the table, which `found` selects.
const TABLE: &str = "held_out";
/// The key columns of a row, besides the calibration and the layer.
const NAMES: [&str; 2] = ["nets", "bits"];
/// The text's name in place of a task's.
const TEXT: &str = "held-out text";

impl Learning {
    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is empty or 0, which the error names.
    pub fn check(&self) -> Result<(), UsageError> {
        let empty = |key: &str| Err(UsageError::new(format!("`{key}` is empty")).hint("name one or more"));
        match (self.calibrations.is_empty(), self.tokens == 0 || self.length == 0) {
            (true, _) => empty("calibrations"),
            (_, true) => Err(UsageError::new("`tokens` and `length` take numbers from 1")),
            _ => Ok(()),
        }
    }
}

/// Returns the measurements of all calibrations, by layer.
///
/// # Errors
/// If a table has another form, or other layers than the first one.
pub fn by_layer(all: &[Learned]) -> Result<Vec<AnalysisTables>, UsageError> {
    let mut layers: Vec<(usize, SeenTable)> = Vec::new();
    for one in all {
        for row in rows(one)? {
            let table = match layers.iter_mut().find(|(layer, _)| *layer == row.layer) {
                Some((_, table)) => table,
                None => {
                    let keys = [&["calibration"][..], &NAMES].concat().into_iter().map(str::to_owned).collect();
                    let table = SeenTable {
                        name: TABLE.to_owned(),
                        keys,
                        columns: row.columns,
                        rows: Vec::new(),
                        drawn: BTreeMap::new(),
                    };
                    layers.push((row.layer, table));
                    &mut layers.last_mut().expect("one was pushed").1
                }
            };
            table.rows.push((row.names, row.numbers));
        }
    }
    let Some(first) = all.first() else { return Ok(Vec::new()) };
    let seen = |(layer, table): (usize, SeenTable)| AnalysisTables {
        identity: Json::Array(all.iter().map(|one| one.identity.clone()).collect()),
        program: first.program.clone(),
        model: first.model.clone(),
        task: TEXT.to_owned(),
        length: first.length,
        unit: layer,
        documents: first.held_out,
        tables: vec![table],
    };
    Ok(layers.into_iter().map(seen).collect())
}

struct Row {
    layer: usize,
    names: Vec<String>,
    columns: Vec<String>,
    numbers: Vec<Option<f64>>,
}

fn rows(learned: &Learned) -> Result<Vec<Row>, UsageError> {
    let wrong =
        |what: &str| UsageError::new(format!("the measurements of `{}` are not a table: {what}", learned.calibration));
    let mut reader = csv::Reader::from_reader(learned.csv.as_bytes());
    let header: Vec<String> = reader.headers().map_err(|e| wrong(&e.to_string()))?.iter().map(str::to_owned).collect();
    let is_name = |column: &String| column == "layer" || NAMES.contains(&column.as_str());
    let columns: Vec<String> = header.iter().filter(|column| !is_name(column)).cloned().collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| wrong(&e.to_string()))?;
        let field = |name: &str| {
            let at = header.iter().position(|column| column == name);
            at.and_then(|at| record.get(at)).ok_or_else(|| wrong(&format!("there is no `{name}`")))
        };
        let mut names = vec![learned.calibration.clone()];
        for name in NAMES {
            names.push(field(name)?.to_owned());
        }
        let layer = field("layer")?.parse().map_err(|_| wrong("a layer is not a number"))?;
        let number = |(column, text): (&String, &str)| (!is_name(column)).then(|| text.parse().ok());
        let numbers = header.iter().zip(&record).filter_map(number).collect();
        rows.push(Row { layer, names, columns: columns.clone(), numbers });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::seen::{TableSelection, Units};
    use super::*;

    fn learned(bits: usize, losses: &[f64]) -> Learned {
        let rows = losses.iter().enumerate().map(|(layer, loss)| format!("learned,{bits},{layer},7,{loss},\n"));
        Learned {
            identity: Json::from(bits),
            program: Json::Null,
            model: "builtin".to_owned(),
            calibration: format!("hash_attention:bits={bits}"),
            length: 1024,
            held_out: 8,
            csv: format!("nets,bits,layer,queries,loss,cosine\n{}", rows.collect::<String>()),
        }
    }

    #[test]
    fn layers_are_units_and_calibrations_rows() {
        let seen = by_layer(&[learned(16, &[0.5, 0.7]), learned(32, &[0.4, 0.5])]).unwrap();
        assert_eq!(seen.iter().map(|one| one.unit).collect::<Vec<_>>(), [0, 1]);
        let of = |bits: usize| {
            let found: TableSelection =
                toml::from_str(&format!("table = 'held_out'\ncolumn = 'loss'\nkeys = {{ bits = '{bits}' }}")).unwrap();
            Units::new(&found, &seen, None, None).unwrap().unwrap()
        };
        assert!((of(16).estimate().unwrap().mean - 0.6).abs() < 1e-12);
        assert!((of(32).less(1.0, &of(16)).unwrap().estimate().unwrap().mean + 0.15).abs() < 1e-12);
        let missing: TableSelection =
            toml::from_str("table = 'held_out'\ncolumn = 'cosine'\nkeys = { bits = '16' }").unwrap();
        assert_eq!(missing.of(&seen[0]).unwrap(), None, "what was not measured is no number");
        assert_eq!(by_layer(&[]).unwrap(), []);
    }

    #[test]
    fn what_is_no_such_table_is_refused() {
        for csv in ["nets,bits\nx,1\n", "nets,bits,layer\nx,1,first\n", "nets,bits,layer\nx,1\n"] {
            let wrong = Learned { csv: csv.to_owned(), ..learned(16, &[]) };
            assert!(by_layer(&[wrong]).unwrap_err().what.contains("are not a table"), "{csv}");
        }
    }
}
