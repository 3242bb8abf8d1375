//! Tests of pivots: their tables, means and notes.

use super::layout::shown_values;
use super::*;
use crate::report::Report;
use spattn_base::error::UsageError;
use spattn_eval::records::record::Record;
use spattn_eval::records::testing::{perplexity, record};
use spattn_eval::summary::columns::COLUMNS;
use std::collections::BTreeMap;

fn at(task: &str, length: usize, method: &str, params: &str, sample: usize, score: f64) -> Record {
    let key = format!("{task}{length}{method}{params}{sample}");
    // With no limit on generated tokens, no length has to be filled.
    Record { length, params: params.into(), key, max_new_tokens: 0, ..record(task, method, sample, score) }
}

fn records() -> Vec<Record> {
    let mut records = Vec::new();
    for task in ["ruler/vt", "ruler/cwe"] {
        for length in [1024, 16384, 4096] {
            records.push(at(task, length, "full", "", 0, 1.0));
            for (params, score) in [("K=10,L=75,sink=4", 0.5), ("K=8,L=75,sink=4", 0.75)] {
                records.push(at(task, length, "magicpig", params, 0, score));
            }
        }
    }
    records
}

fn layout(rows: &[&str], columns: &[&str], value: &str, report: &Report) -> Result<Layout, UsageError> {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    Layout::parse(&owned(rows), &owned(columns), &[value.to_owned()], &report.rows)
}

fn made(records: &[Record], rows: &[&str], columns: &[&str], value: &str) -> Vec<PivotTable> {
    let report = Report::new(records, &[]);
    tables(&report, &layout(rows, columns, value, &report).unwrap())
}

fn texts(table: &PivotTable) -> Vec<Vec<String>> {
    let text = |e: &Option<Entry>| e.as_ref().map_or(String::new(), |e| table.text(e));
    table.cells.iter().map(|line| line.iter().map(text).collect()).collect()
}

#[test]
fn many_notes_of_a_kind_are_shown_as_one() {
    let notes: Vec<String> =
        ["`a` 1", "`b` 1", "`a` 2", "one of its own", "`a` 3", "`b` 2", "`a` 4"].map(str::to_owned).to_vec();
    let shown = ShownNotes::of(&notes);
    assert_eq!(shown.texts, ["`a` 1; and 3 more that are `a`", "`b` 1", "one of its own", "`b` 2"]);
    assert_eq!(shown.numbers(&[1, 2, 7]), [1, 2]);
    assert_eq!(shown.numbers(&[4, 6, 5]), [1, 3, 4]);
    assert_eq!(ShownNotes::of(&notes[..4]).texts, notes[..4], "two of a kind are told apart");
}

#[test]
fn values_are_the_numbers_of_the_summary() {
    let shown: Vec<&str> = shown_values().collect();
    for known in ["n", "score", "delta_full", "density", "dropped_mass_max", "kl_mean", "acc_norm", "delta"] {
        assert!(shown.contains(&known), "{known}");
    }
    assert!(!shown.contains(&"ci_low") && !shown.contains(&"delta_high") && !shown.contains(&"method"));
    assert_eq!(shown.len(), COLUMNS.len() - 9 - 6 + 1, "but nine of text and lengths, and six ends; and delta");
}

#[test]
fn methods_by_lengths_are_means_over_tasks_in_order_of_size() {
    let tables = made(&records(), &["method"], &["length"], "delta");
    assert_eq!(tables.len(), 1);
    assert_eq!(tables[0].headings(), ["method", "1K", "4K", "16K"]);
    assert_eq!(tables[0].rows, [["magicpig K=8,L=75,sink=4"], ["magicpig K=10,L=75,sink=4"]]);
    let cell = "-25.0";
    assert_eq!(texts(&tables[0])[0], vec![cell.to_owned(); 3]);
    assert!(tables[0].caption.contains("builtin, sparse from question, mean over 2 tasks"), "{}", tables[0].caption);
}

#[test]
fn a_mean_says_which_of_its_tasks_are_stand_ins() {
    let records = ["ruler/vt", "ruler/qa_synth_hop2"].map(|task| at(task, 1024, "full", "", 0, 1.0));
    let mean = made(&records, &["method"], &["length"], "score").remove(0).caption;
    assert!(mean.ends_with("for a published one (ruler/qa_synth_hop2 for ruler/qa_2)"), "{mean}");
    let by_task = made(&records, &["method"], &["task"], "score").remove(0).caption;
    assert!(!by_task.contains("stand-in"), "{by_task}");
}

#[test]
fn parameters_make_tables_of_the_methods_that_have_them() {
    let tables = made(&records(), &["K"], &["L"], "score");
    assert_eq!(tables.len(), 1, "full has no K");
    assert_eq!(
        (&tables[0].rows, texts(&tables[0])),
        (&vec![vec!["8".to_owned()], vec!["10".to_owned()]], vec![vec!["75.0".to_owned()], vec!["50.0".to_owned()]],)
    );
    assert!(tables[0].caption.contains("magicpig sink=4"), "{}", tables[0].caption);
}

#[test]
fn models_and_perplexities_are_not_averaged() {
    let mut records = records();
    records.push(Record { model: "other".into(), ..at("ruler/vt", 1024, "full", "", 0, 0.0) });
    records.extend([perplexity("full", 0, 1.0), Record { task: "ppl/b".into(), ..perplexity("full", 0, 2.0) }]);
    let tables = made(&records, &["method"], &["length"], "score");
    let captions: Vec<&str> = tables.iter().map(|t| t.caption.as_str()).collect();
    assert_eq!(captions.len(), 4, "{captions:?}");
    assert!(captions[1].contains("perplexity") && captions[1].contains("ppl/"), "{captions:?}");
}

#[test]
fn what_is_suspect_is_marked() {
    let mut records = records();
    records[1].prediction = "".into();
    let table = made(&records, &["method"], &["length"], "score").remove(0);
    let noted: Vec<&str> = table.notes.iter().map(String::as_str).collect();
    assert!(noted[0].contains("`empty_predictions` ruler/vt at 1024, magicpig:K=10,L=75,sink=4"), "{noted:?}");
    let line = table.rows.iter().position(|r| r[0].starts_with("magicpig K=10")).unwrap();
    assert_eq!(table.cells[line][0].as_ref().unwrap().notes, [1]);
    let text = csv(&[table]).unwrap();
    assert!(text.starts_with("model,protocol,measure,method,length,name,value,low,high,n,averaged,notes\n"), "{text}");
}

#[test]
fn means_over_other_tasks_have_tables_of_their_own() {
    let mut records = records();
    records.push(at("ruler/vt", 1024, "quest", "", 0, 1.0));
    let tables = made(&records, &["method"], &["length"], "score");
    let seen: Vec<_> = tables.iter().map(|t| (t.rows.len(), t.columns.len(), t.caption.as_str())).collect();
    assert_eq!(
        seen,
        [
            (3, 3, "score in % by method and length: builtin, sparse from question, mean over 2 tasks"),
            (4, 3, "score in % by method and length: builtin, sparse from question, ruler/vt only"),
        ]
    );
    // Means over different lengths can be compared no more than means over different tasks.
    let of = |method: &str, lengths: [usize; 2], score| {
        lengths.map(|length| at("ruler/vt", length, method, "", 0, score)).to_vec()
    };
    let records = [of("full", [1024, 2048], 1.0), of("full", [4096, 8192], 1.0), of("topk", [1024, 2048], 1.0)];
    let mut records = records.concat();
    records.extend(of("quest", [4096, 8192], 0.5));
    let tables = made(&records, &["method"], &[], "score");
    let seen: Vec<_> = tables.iter().map(|t| (t.caption.clone(), t.rows.concat().join(" "))).collect();
    let caption = |lengths| {
        format!(
            "score in % by method: builtin, sparse from question, mean over 2 of 4 cells of task and length: {lengths}"
        )
    };
    assert_eq!(
        seen,
        [(caption("ruler/vt, 1K, 2K"), "full topk".to_owned()), (caption("ruler/vt, 4K, 8K"), "full quest".to_owned())]
    );
}

#[test]
fn parameters_at_their_default_are_dimensions_too() {
    let hip = |b_k: &str, b_q: &str| {
        let params = [("b_k", b_k, "2"), ("b_q", b_q, "32")];
        let named: Vec<String> =
            params.iter().filter(|(_, value, default)| value != default).map(|(k, v, _)| format!("{k}={v}")).collect();
        let settings: BTreeMap<_, _> = params.iter().map(|(k, v, _)| ((*k).to_owned(), (*v).to_owned())).collect();
        Record { settings: settings.into(), ..at("ruler/vt", 1024, "hip", &named.join(","), 0, 1.0) }
    };
    let mut records: Vec<Record> =
        ["2", "4", "8"].iter().flat_map(|b_k| ["16", "32"].map(|b_q| hip(b_k, b_q))).collect();
    let tables = made(&records, &["b_k"], &["b_q"], "score");
    assert_eq!(tables.len(), 1);
    let cells = tables[0].cells.iter().flatten().flatten().count();
    assert_eq!((cells, &tables[0].rows.concat().join(" ")), (6, &"2 4 8".to_owned()));
    assert_eq!(tables[0].headings(), ["b_k", "b_q=16", "b_q=32"], "a number alone says little");
    assert!(tables[0].notes.is_empty());
    // An old record does not have these parameters: it is left out, and a note says so.
    records.push(at("ruler/vt", 1024, "hip", "k=64", 0, 0.0));
    let notes = made(&records, &["b_k"], &["b_q"], "score").remove(0).notes;
    assert!(notes[0] == "1 row is not shown: without b_k or b_q", "{notes:?}");
}

#[test]
fn seeds_of_a_run_are_a_dimension() {
    let mut records = Vec::new();
    for (seed, score) in [(1, 1.0), (2, 0.5), (10, 0.0)] {
        for (method, score) in [("full", 1.0), ("quest", score)] {
            let key = format!("{method}{seed}");
            records.push(Record { seed, key, ..at("ruler/vt", 1024, method, "", 0, score) });
        }
    }
    let table = made(&records, &["method"], &["run_seed"], "delta").remove(0);
    assert_eq!(table.columns.concat(), ["1", "2", "10"]);
    let values: Vec<f64> = table.cells[0].iter().flatten().map(|e| e.value).collect();
    assert_eq!((table.rows.concat(), values), (vec!["quest".to_owned()], vec![0.0, -50.0, -100.0]));
    let report = Report::new(&records, &[]);
    assert!(layout(&["seed"], &[], "score", &report).unwrap_err().hint.unwrap().contains("`run_seed`"));
}

#[test]
fn unknown_names_are_mistakes() {
    let made = records();
    let report = Report::new(&made, &[]);
    let message = |rows: &[&str], columns: &[&str], value| layout(rows, columns, value, &report).unwrap_err();
    assert!(message(&["taks"], &[], "score").hint.unwrap().contains("task"));
    assert!(message(&["task"], &["task"], "score").what.contains("twice"));
    assert!(message(&["task"], &[], "scores").hint.unwrap().contains("score"));
}
