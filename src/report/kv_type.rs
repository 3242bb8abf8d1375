//! The type of keys and values, from the runs' manifests. Shares of the KV cache are relative to it.
//!
//! On a CPU, a GGUF file runs with a KV cache in f32, whatever its weights' type. An index with bits of its own, such as codes or
//! signatures, is twice the share of a KV cache of half the size, so a share says little about another deployment without the type.

use serde_json::Value;

use super::Report;
use super::format::distinct;
use super::heading::identities;
use spattn_eval::records::stored_manifest::is_of;
use spattn_eval::summary::columns::SummaryRow;

/// The type of keys and values in a model's runs, in `--dtype`'s notation; several types are joined. `None` if no manifest states it.
pub fn of_model(report: &Report, model: &str) -> Option<String> {
    let full = report.full_models.and_then(|names| names.iter().find(|(short, _)| short.as_str() == model));
    let full = full.map_or(model, |(_, full)| full.as_str());
    named(report, |identity| identity["model"].as_str().is_some_and(|id| is_of(full, id)))
}

/// The type of keys and values of all models in a report.
pub fn of_all(report: &Report) -> Option<String> {
    named(report, |_| true)
}

fn named(report: &Report, is_own: impl Fn(&Value) -> bool) -> Option<String> {
    let all = report.sources.iter().flat_map(|source| identities(&source.manifest));
    let of_own = |identity: &Value| identity["dtype"].as_str().filter(|_| is_own(identity)).map(str::to_owned);
    let types = distinct(all.filter_map(of_own));
    (!types.is_empty()).then(|| types.join(" or "))
}

/// The line below a table of one model's rows, if they have costs of sparse methods and the type is known; otherwise `None`.
pub fn line(report: &Report, rows: &[SummaryRow]) -> Option<String> {
    let has_share = |row: &SummaryRow| !row.is_reference() && (row.index_share.is_some() || row.bytes_share.is_some());
    let row = rows.iter().find(|row| has_share(row))?;
    let of = of_model(report, &row.model)?;
    let in_half = match of.as_str() {
        "f32" => {
            "; of a 16-bit cache an index with bits of its own (codes, labels, signatures) is twice the share, and one in the type of the keys \
             (bounds, copies) the same"
        }
        _ => "",
    };
    Some(format!("keys and values in {of}: memory, index % and read % are shares of these{in_half}"))
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::json;

    use crate::report::merge::Source;

    /// Runs of `builtin` whose manifests name these types.
    pub fn sources(types: &[&str]) -> Vec<Source> {
        let of = |dtype: &&str| Source {
            name: (*dtype).to_owned(),
            dir: (*dtype).into(),
            manifest: json!({ "identity": { "model": "builtin", "dtype": dtype } }),
            records: 2,
        };
        types.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::sources;
    use super::*;
    use crate::report::plots::Figures;
    use crate::report::{json, markdown, table, verdict};
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;

    fn records() -> Vec<Record> {
        ["full", "quest"]
            .into_iter()
            .flat_map(|method| {
                (0..3).map(move |i| Record { kv_bytes_per_token: Some(10.0), ..record("ruler/vt", method, i, 1.0) })
            })
            .collect()
    }

    #[test]
    fn the_type_is_on_the_first_line_below_tables_and_in_json() {
        let (records, of) = (records(), sources(&["f32"]));
        let report = Report { sources: &of, ..Report::new(&records, &[]) };
        let text = table::render(&report, table::Form::default());
        let below = text.lines().skip_while(|line| !line.trim_start().starts_with("quest")).nth(1).unwrap();
        assert!(below.starts_with("keys and values in f32: memory, index % and read %"), "{text}");
        assert!(below.contains("of a 16-bit cache an index with bits of its own"), "{below}");
        let page = markdown::render(&report, &[], &Figures::default());
        assert!(page.contains("\n- keys and values: f32\n"), "{page}");
        let (_, tables) = page.split_once("\n## builtin").unwrap();
        let mut below = tables.lines().skip_while(|line| !line.starts_with("| quest"));
        let below = below.find(|line| !line.starts_with('|') && !line.is_empty()).unwrap();
        assert!(below.starts_with("Keys and values in f32: memory"), "{page}");
        let rows: Value = serde_json::from_str(&json::summary(&report).unwrap()).unwrap();
        assert!(rows.as_array().unwrap().iter().all(|row| row["kv_dtype"] == "f32"), "{rows}");
        let verdicts: Value =
            serde_json::from_str(&verdict::json(&report.verdicts, |model| of_model(&report, model))).unwrap();
        assert_eq!(verdicts["verdicts"][0]["kv_dtype"], "f32", "{verdicts}");
    }

    #[test]
    fn the_type_is_that_of_the_run_whatever_name_a_table_gives_its_model() {
        let (records, of) = (records(), sources(&["f16"]));
        let names = [("short", "builtin"), ("other", "builtin (revision b)"), ("unknown", "another")];
        let names = names.map(|(short, full)| (short.to_owned().into(), full.to_owned().into())).into();
        let report = Report { sources: &of, full_models: Some(&names), ..Report::new(&records, &[]) };
        let types = ["short", "other", "builtin", "unknown", "built"].map(|model| of_model(&report, model));
        assert_eq!(types.map(|of| of.is_some()), [true, true, true, false, false]);
    }

    #[test]
    fn a_cache_of_16_bits_and_an_unknown_one_say_no_more_than_is_known() {
        let records = records();
        let told = |types: &[&str]| {
            let of = sources(types);
            let report = Report { sources: &of, ..Report::new(&records, &[]) };
            line(&report, &report.rows)
        };
        assert_eq!(told(&["bf16"]).unwrap(), "keys and values in bf16: memory, index % and read % are shares of these");
        assert!(told(&["bf16", "f32"]).unwrap().starts_with("keys and values in bf16 or f32: "));
        assert_eq!(told(&[]), None);
        let dense = Report::new(&records[..3], &[]);
        assert_eq!(
            line(&Report { sources: &sources(&["f32"]), ..dense.clone() }, &dense.rows),
            None,
            "nothing is shared"
        );
    }
}
