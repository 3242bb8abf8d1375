//! Tests of LaTeX tables.

use std::ops::Range;

use super::*;
use crate::report::tabular::{Height, NARROW, escaped, mark, pages, text_widths};
use spattn_eval::records::costs::KvTokens;
use spattn_eval::records::fidelity::Fidelity;
use spattn_eval::records::record::Record;
use spattn_eval::records::testing::record;

/// Twenty examples of dense attention, of an equally good method, and of a worse one.
fn records() -> Vec<Record> {
    let of = |sample: usize| {
        let params = |params: &str, method: &str, score: f64| Record {
            params: params.into(),
            ..record("ruler/vt", method, sample, score)
        };
        let right = |wrong: usize| f64::from(u8::from(sample >= wrong));
        [
            params("", "full", right(0)),
            params("density=0.0625,per=kv_head", "loki", right(2)),
            // Better than all, but never bold: an oracle.
            params("k=64", "topk", right(0)),
            params("density=0.0625", "streaming_llm", right(18)),
        ]
    };
    (0..20).flat_map(of).collect()
}

#[test]
fn numbers_are_aligned_and_the_best_within_noise_bold() {
    let records = records();
    let report = Report::new(&records, &[]);
    let text = summary(&report, false);
    for part in [
        "array,booktabs,siunitx}",
        "\\caption{builtin, sparse from question: ruler/\\allowbreak{}vt, 4K tokens, n~=~20}\n\\label{tab:builtin-question-ruler-vt-4k}",
        "S[table-format=3.1]lS[table-format=+2.1]lS[table-format=1.3]",
        "setting & \\multicolumn{2}{c}{score \\%} & \\multicolumn{2}{c}{$\\Delta$ full} & {density} & ",
        "full & 100.0 & [$83$, $100$] &  &  & ",
        "loki (density=0.0625, per=kv\\_\\allowbreak{}head) & \\bfseries 90.0 & [$68$, $99$] & -10.0 & ",
        " & 10.0 & [$1$, $32$] & -90.0 & [$-97$, $-59$]",
        "topk (k=64) & 100.0 & ",
        "\\par Bold: the best score of a method (no oracle",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let plain = summary(&report, true);
    assert!(plain.contains("& \\bfseries 90.0 & -10.0 &") && !plain.contains("[$70"), "{plain}");
}

#[test]
fn what_does_not_fit_a_page_is_named() {
    let (output_error, recall, dropped_mass) = (vec![0.12], vec![0.9], vec![0.1]);
    let fidelity = Fidelity { output_error, recall, dropped_mass, spread: None, heads: None };
    let long = |method: &str, sample: usize| Record {
        kv_tokens: Some(KvTokens { held: 790.5, context: 4060 }),
        fidelity: Some(fidelity.clone().into()),
        params: "a=1,b=2,c=3,a_long_name=of_a_long_value".into(),
        ..record("ruler/vt", method, sample, 1.0)
    };
    let records: Vec<Record> =
        (0..3).flat_map(|i| [record("ruler/vt", "full", i, 1.0), long("topk", i), long("quest", i)]).collect();
    let text = summary(&Report::new(&records, &[]), false);
    assert!(text.contains("Not shown: read \\%"), "{text}");
}

#[test]
fn warnings_have_marks_and_text_is_escaped() {
    let empty =
        |sample| Record { prediction: "".into(), params: "per=kv_head".into(), ..record("vt", "topk", sample, 0.0) };
    let records = [record("vt", "full", 0, 1.0), empty(0), empty(1)];
    let text = summary(&Report::new(&records, &[]), false);
    for part in [
        "most.\n\n\\begin{table}",
        "\\par Only 1 example: on one task no loss can be detected",
        "topk (per=kv\\_\\allowbreak{}head)\\textsuperscript{a} & 2 & 0.0 & [$0$, $84$] & -100.0 &",
        "\\bottomrule\n\\end{tabular}\n\\par\\smallskip\\raggedright\n\\par \\textsuperscript{a} 2 of 2 predictions are empty.\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert_eq!(escaped("give --tail"), "give -{}-tail", "no dash of words");
    assert_eq!(without_code("`†` It is.; and 3 more that are `†`"), "It is; and 3 more of this kind");
    assert_eq!(escaped("b^c\\{50 %}"), "b\\textasciicircum{}c\\textbackslash{}\\{50 \\%\\}");
}

#[test]
fn a_pivot_goes_on_in_further_columns_and_marks_are_no_part_of_numbers() {
    let of = |task: usize, sample: usize| {
        let task = format!("a_task_with_a_long_name_{task}");
        let empty = Record { prediction: "".into(), ..record(&task, "loki", sample, 0.0) };
        [record(&task, "full", sample, 1.0), empty, record(&task, "quest", sample, 1.0)]
    };
    let records: Vec<Record> = (0..6).flat_map(|task| (0..6).flat_map(move |sample| of(task, sample))).collect();
    let report = Report::new(&records, &[]);
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let layout =
        crate::report::pivot::Layout::parse(&names(&["method"]), &names(&["task"]), &names(&["score"]), &report.rows);
    let text = pivot(&crate::report::pivot::tables(&report, &layout.unwrap()), false);
    assert!(text.matches("\\begin{table}").count() > 1 && text.contains("(further columns)}"), "{text}");
    assert!(
        text.contains("-columns-2}") && text.contains("0.0{\\mdseries\\textsuperscript{a}} & [$0.0$, $45.9$]"),
        "{text}"
    );
    assert!(text.contains("\nquest & \\bfseries 100.0 & ") && text.contains("\nfull & 100.0 & "), "{text}");
    let tables = text.matches("\\begin{table}").count();
    assert_eq!(text.matches("n~=~6 examples in each cell.").count(), tables, "{text}");
    let warning = report.warnings.iter().find(|warning| warning.is_general()).expect("six examples are few");
    assert!(text.contains("Only 6 examples: on one task no loss below"), "{}: {text}", warning.message);
    let labels: Vec<&str> = text.lines().filter(|line| line.starts_with("\\label")).collect();
    let distinct: std::collections::BTreeSet<&&str> = labels.iter().collect();
    assert_eq!(labels.len(), distinct.len(), "{labels:?}");
    // A single word may be longer than a column of text.
    assert!(text_widths(&["aparameterwithaverylongname"], &[vec!["1".to_owned()]], NARROW)[0] > NARROW);
    assert!(text_widths(&["a_parameter_with_a_very_long_name"], &[vec!["1".to_owned()]], NARROW)[0] <= NARROW);
}

#[test]
fn what_is_no_plain_number_is_set_by_itself() {
    let cells = ["0.0312 (0.0625)", "4e-5", "8.33*", "", "-12.5 [-30 +2]"].map(str::to_owned).to_vec();
    let numbers = Numbers::new("value", cells, false);
    let shown: Vec<String> = (0..5).map(|line| numbers.cell(line)).collect();
    assert_eq!(shown, ["0.0312 (0.0625) & ", "4e-5 & ", "8.33* & ", " & ", "-12.5 & [$-30$, $+2$]"]);
    assert_eq!(numbers.format(), "r", "a star is no number");
    let mut marked = Numbers::new("x", vec!["1.5".into(), "2".into()], false);
    marked.marks[1] = mark(3);
    assert_eq!(marked.format(), "S[table-format=1.1, table-space-text-post={\\textsuperscript{c}}]");
    assert_eq!(marked.cell(1), "2{\\mdseries\\textsuperscript{c}}");
    let density = Numbers::new("density", vec!["0.0312 (0.0625)".into()], false);
    assert_eq!((density.cell(0), density.format()), ("0.0312".to_owned(), "S[table-format=1.4]".to_owned()));
    assert_eq!(
        Numbers::new("x", vec!["-12.5".into(), String::new(), "3".into()], false).format(),
        "S[table-format=+2.1]"
    );
}

#[test]
fn many_tables_are_not_more_than_latex_holds() {
    let table = "\\begin{table}\n\\end{table}\n";
    let of = |tables: usize| with_breaks(&format!("% head\n{}", table.repeat(tables)));
    assert_eq!([1, 5, 6, 7, 12, 13].map(|n| of(n).matches("\\clearpage").count()), [0, 0, 1, 2, 2, 3]);
    // Several files, one after another.
    let text = of(20) + &of(5) + &of(5) + &of(7);
    let held = text.split("\\clearpage").map(|part| part.matches("\\begin{table}").count());
    assert_eq!(held.max(), Some(16), "below 18");
}

#[test]
fn a_long_table_goes_on_in_another_with_the_notes_of_its_lines() {
    let setting = |k: usize, sample: usize| Record {
        params: format!("k={k}").into(),
        prediction: if k == 35 { "".into() } else { "x".into() },
        ..record("vt", "topk", sample, if k == 35 { 0.0 } else { 1.0 })
    };
    let records: Vec<Record> = (0..60).flat_map(|k| [setting(k, 0), setting(k, 1)]).collect();
    let text = summary(&Report::new(&records, &[]), false);
    let (first, second) = text.split_at(text.find("(continued)}").unwrap());
    assert!(first.contains("(k=0)") && second.contains("(k=59)") && second.contains("-2}"), "{text}");
    let note = "\\par \\textsuperscript{a} 2 of 2 predictions are empty.";
    let (with, without) = if first.contains("(k=35)") { (first, second) } else { (second, first) };
    assert!(with.contains(note) && !without.contains(note), "{text}");
    let of = |own: &[usize]| own.iter().map(|own| Height { own: *own, notes: Vec::new() }).collect::<Vec<_>>();
    assert_eq!(pages(&of(&[20, 20, 20, 50, 1]), &[]), [0..2, 2..3, 3..4, 4..5], "a page has one line at least");
    assert!(pages(&of(&[]), &[]).iter().all(Range::is_empty), "no lines");
    // Each page has a note once, however many of its lines are marked with it.
    let noted = vec![Height { own: 1, notes: vec![0] }; 90];
    assert_eq!(pages(&noted, &[6]), [0..40, 40..80, 80..90]);
}
