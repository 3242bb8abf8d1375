//! The verdict of a report: which methods are safe at which budgets, as a sentence and a table.
//!
//! [`spattn_eval::summary::verdicts`] draws the conclusions; this module words them. [`words`] has the words of a cell and of a number,
//! [`sentence`] the sentence above a table, [`matrix`] the table of methods by budgets in Markdown and on the page, [`terminal`] the list
//! on a terminal, and [`asked`] the answer to `--safe-within`. A cell always contains a word, because colour alone says nothing.

pub mod asked;
pub mod html;
pub mod markdown;
pub mod matrix;
pub mod sentence;
pub mod terminal;
pub mod words;

use serde_json::{Value, json};

use spattn_eval::summary::verdicts::VerdictTable;

/// The most tables that are shown. `verdict.json` has all.
const MOST: usize = 6;

/// The tables that are shown, and a line about those that are not.
pub fn shown(tables: &[VerdictTable]) -> (&[VerdictTable], Option<String>) {
    let more = tables.len().saturating_sub(MOST);
    let line = match more {
        0 => None,
        1 => Some("1 more verdict is in verdict.json.".to_owned()),
        more => Some(format!("{more} more verdicts are in verdict.json.")),
    };
    (&tables[..tables.len() - more], line)
}

/// Renders `verdict.json`: all tables with title, sentence and the type of a model's keys and values, which memory and reads are shares of.
pub fn json(tables: &[VerdictTable], kv_dtype: impl Fn(&str) -> Option<String>) -> String {
    let of_table = |table: &VerdictTable| -> Value {
        let mut value = json!(table);
        value["title"] = words::title(table, tables).into();
        value["sentence"] = sentence::sentence(table).into();
        value["kv_dtype"] = kv_dtype(&table.model).into();
        value
    };
    format!("{:#}\n", json!({ "verdicts": tables.iter().map(of_table).collect::<Vec<_>>() }))
}

#[cfg(test)]
pub(super) mod testing {
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::cells::group;
    use spattn_eval::summary::summarize;
    use spattn_eval::summary::verdicts::{KvBits, VerdictRule, VerdictTable, judge};

    /// Records of a method on `n` examples of a task, of which the first `lost` are wrong. The method reads 1,000 bytes for a token at
    /// density 1, and has 32 bits of index for 256 bits of key and value.
    pub fn run(task: &str, method: &str, params: &str, lost: usize, n: usize) -> Vec<Record> {
        let density = if method == "full" { 1.0 } else { 0.1 };
        let asked = params.split(['=', ',']).skip_while(|key| *key != "density" && *key != "ratio").nth(1);
        let met = asked.and_then(|share| share.parse().ok()).unwrap_or(density);
        let of = |i: usize| Record {
            params: params.into(),
            density_sparse_layers: met,
            key: format!("{task}/{method}/{params}/{i}"),
            density,
            kv_bytes_per_token: Some(1000.0 * density),
            ..record(task, method, i, f64::from(u8::from(i >= lost)))
        };
        (0..n).map(of).collect()
    }

    /// The verdict tables of some runs, at a limit in points.
    pub fn tables(runs: &[Vec<Record>], limit: f64) -> Vec<VerdictTable> {
        let records = runs.concat();
        let cells = group(&records, &[]);
        let kv_bits = KvBits::from([("builtin".to_owned(), 256.0)]);
        judge(&summarize::rows(&cells), &cells, VerdictRule { limit, ..VerdictRule::default() }, &kv_bits)
    }

    /// The only verdict table of some runs.
    pub fn table(runs: &[Vec<Record>], limit: f64) -> VerdictTable {
        let mut tables = tables(runs, limit);
        assert_eq!(tables.len(), 1, "{tables:?}");
        tables.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{run, tables};
    use super::*;

    #[test]
    fn the_file_has_every_table_with_its_sentence() {
        let of = |length: usize| -> Vec<spattn_eval::records::record::Record> {
            let all = [run("vt", "full", "", 0, 20), run("vt", "quest", "density=0.05", 15, 20)].concat();
            all.into_iter().map(|r| spattn_eval::records::record::Record { length, ..r }).collect()
        };
        let made = tables(&(1..=8).map(|k| of(1024 * k)).collect::<Vec<_>>(), 1.0);
        let (first, line) = shown(&made);
        assert_eq!((first.len(), line.as_deref()), (6, Some("2 more verdicts are in verdict.json.")));
        let stored: Value = serde_json::from_str(&json(&made, |_| Some("bf16".to_owned()))).unwrap();
        let verdicts = stored["verdicts"].as_array().unwrap();
        assert_eq!((verdicts.len(), verdicts[7]["length"].as_u64()), (8, Some(8192)));
        let quest = &verdicts[0]["settings"][0];
        assert_eq!(
            (&quest["verdict"], &quest["budget"], &quest["role"]),
            (&json!("not_safe"), &json!("5 %"), &json!("method"))
        );
        assert!(quest["loss_at_least"].as_f64() > Some(40.0), "{quest}");
        assert!(verdicts[0]["sentence"].as_str().unwrap().contains("quest 5 %"), "{}", verdicts[0]["sentence"]);
    }
}
