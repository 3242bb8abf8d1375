//! The table on the terminal.

use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};

use super::format::{
    TableColumn, about_latency, columns, detectable, direction, distinct, fitting, mean_columns, setting, tokens,
    without_interval,
};
use super::parameters::ShownParams;
use super::pivot::ShownNotes;
use super::{MeanTable, Report, excess, kv_type, pivot, sampling};
use spattn_eval::summary::columns::SummaryRow;

/// The style of tables: only a rule under the headings.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '));

/// The number of leading text columns.
const TEXT_COLUMNS: usize = 2;

/// The format of a printed table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Form {
    /// The most characters of a line; `None` for no limit.
    pub width: Option<usize>,
    /// Whether intervals are left out.
    pub no_intervals: bool,
}

impl Form {
    /// By how many characters the longest line is too long. Line breaks at the end do not count.
    fn over(self, lines: &[String]) -> usize {
        let longest = || lines.iter().map(|line| line.trim_end().chars().count()).max().unwrap_or(0);
        self.width.map_or(0, |width| longest().saturating_sub(width))
    }

    fn holds(self, lines: &[String]) -> bool {
        self.over(lines) == 0
    }

    /// A line of words, wrapped at the width. Continuation lines are indented.
    fn wrapped(self, line: &str) -> String {
        const SET_IN: &str = "\n  ";
        let Some(width) = self.width else { return format!("{line}\n") };
        let (mut text, mut used) = (String::new(), 0);
        for word in line.split(' ') {
            let length = word.chars().count();
            match used {
                0 => used = length,
                used_before if used_before + 1 + length <= width => {
                    text.push(' ');
                    used += 1 + length;
                }
                _ => {
                    text.push_str(SET_IN);
                    used = SET_IN.len() - 1 + length;
                }
            }
            text.push_str(word);
        }
        text + "\n"
    }

    fn cell(self, text: String) -> String {
        if self.no_intervals { without_interval(&text) } else { text }
    }
}

/// Renders the rows as aligned tables, one for each model, protocol and measure. Each task and length has a line above its methods.
///
/// Parameters that settings share are stated above the rows. If lines are too long, columns are left out, which a note lists, and then long
/// parameters are stated above too. No parameter is ever cut, so no two settings look alike. Rows are in the given order, which is the
/// summary's. Intervals are rounded to whole points; the files have all digits. If there are no rows, the text says so.
pub fn render(report: &Report, form: Form) -> String {
    if report.rows.is_empty() {
        return "no results\n".to_owned();
    }
    let mut text = sampling::line(report).map_or(String::new(), |line| form.wrapped(&line) + "\n");
    let mut left_out = Vec::new();
    for of_setting in report.rows.chunk_by(|a, b| setting(a) == setting(b)) {
        for rows in of_setting.chunk_by(|a, b| a.measure == b.measure) {
            let table = one_table(rows, form);
            let shared = said(form, table.names.line());
            text.push_str(&format!("{}\n{shared}\n{}", setting(&rows[0]), table.text));
            text.push_str(&said(form, kv_type::line(report, rows)));
            excess::lines(rows, &table.names).iter().for_each(|line| text.push_str(&form.wrapped(line)));
            let has_latency = !table.left_out.iter().any(|heading| heading.starts_with("latency"));
            text.push_str(&said(form, about_latency(rows).filter(|_| has_latency).map(str::to_owned)));
            text.push_str(&said(form, detectable(rows.iter().map(|r| (r.contexts, r.detectable)))));
            left_out.extend(table.left_out);
        }
        text.extend(report.means_of(&of_setting[0]).map(|table| {
            let (table, without) = means(table, form);
            left_out.extend(without);
            table
        }));
    }
    if let Some(width) = form.width.filter(|_| !left_out.is_empty()) {
        let names = distinct(left_out).join(", ");
        let line = format!("left out in {width} columns: {names} (summary.md has all)");
        text.push_str(&format!("\n{}", form.wrapped(&line)));
    }
    text
}

/// A line above or below a table, wrapped.
fn said(form: Form, line: Option<String>) -> String {
    line.map_or(String::new(), |line| form.wrapped(&line))
}

/// The tables of a pivot, each with its caption and notes. If lines are too long, columns are continued below.
pub fn pivot(tables: &[pivot::PivotTable], form: Form) -> String {
    let one = |table: &pivot::PivotTable| {
        let shown = ShownNotes::of(&table.notes);
        let cell = |entry: &Option<pivot::Entry>| {
            let Some(entry) = entry else { return String::new() };
            let marks: Vec<String> = shown.numbers(&entry.notes).iter().map(usize::to_string).collect();
            let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(",")) };
            form.cell(table.text(entry)) + &marks
        };
        let names = table.row_names.len();
        let rows = table.rows.iter().zip(&table.cells);
        let rows: Vec<Vec<String>> =
            rows.map(|(row, cells)| row.iter().cloned().chain(cells.iter().map(cell)).collect()).collect();
        let part = |columns: Range<usize>| {
            let some = |line: &[String]| [&line[..names], &line[names + columns.start..names + columns.end]].concat();
            lines(some(&table.headings()), rows.iter().map(|row| some(row)).collect(), names)
        };
        let lines = parts(table.columns.len(), |columns| form.holds(&part(columns))).into_iter().map(part);
        let lines = lines.map(|lines| lines.concat()).collect::<Vec<_>>().join("\n");
        let notes: String = (1..).zip(&shown.texts).map(|(i, note)| form.wrapped(&format!("({i}) {note}"))).collect();
        format!("{}\n{lines}{notes}", form.wrapped(&table.caption))
    };
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// Divides the columns `0..count` into ranges that fit, of at least one column each.
fn parts(count: usize, fits: impl Fn(Range<usize>) -> bool) -> Vec<Range<usize>> {
    let (mut parts, mut first) = (Vec::new(), 0);
    while first < count {
        let end = (first + 1..=count).rev().find(|end| fits(first..*end)).unwrap_or(first + 1);
        parts.push(first..end);
        first = end;
    }
    parts
}

/// A table that fits its width.
struct FittedTable {
    /// The text of its lines.
    text: String,
    /// The parameters that its rows show.
    names: ShownParams,
    /// The headings of the columns that do not fit.
    left_out: Vec<&'static str>,
}

fn one_table(rows: &[SummaryRow], form: Form) -> FittedTable {
    let fitted = fitted(rows, columns(rows), form, broken);
    let groups = rows.chunk_by(|a, b| (&a.task, a.length) == (&b.task, b.length));
    let groups: Vec<(String, usize)> = groups.map(|rows| (place(&rows[0]), rows.len())).collect();
    FittedTable { text: grouped(&fitted.lines, &groups), names: fitted.names, left_out: fitted.left_out }
}

/// The lines of a table, and what had to be left out.
struct FittedLines {
    /// The lines of the heading and of all rows.
    lines: Vec<String>,
    names: ShownParams,
    left_out: Vec<&'static str>,
}

/// The lines of a table, with as many columns as fit.
fn fitted(rows: &[SummaryRow], columns: Vec<TableColumn>, form: Form, heading: fn(&str) -> String) -> FittedLines {
    let with = |columns: &[TableColumn], names: &ShownParams| {
        let headings =
            ["method", "params"].into_iter().map(str::to_owned).chain(columns.iter().map(|c| heading(c.heading)));
        lines(headings.collect(), rows.iter().map(|row| cells(row, columns, form, names)).collect(), TEXT_COLUMNS)
    };
    let whole = ShownParams::of_rows(rows);
    let (columns, left_out) = fitting(columns, |columns| form.holds(&with(columns, &whole)));
    // If leaving out columns is not enough, parameters leave the rows, but no more of them than needed.
    let names = match form.over(&with(&columns, &whole)) {
        0 => whole,
        over => ShownParams::of(settings(rows), whole.longest().saturating_sub(over).max(HEADING)),
    };
    FittedLines { lines: with(&columns, &names), names, left_out }
}

/// The width of the heading of parameters, which their column always has.
const HEADING: usize = "params".len();

fn settings(rows: &[SummaryRow]) -> impl Iterator<Item = (&str, &str)> {
    rows.iter().map(|row| (row.method.as_str(), row.params.as_str()))
}

/// The lines of a table with grouped rows. Each group is given by the line above it and its number of rows.
pub(super) fn grouped(lines: &[String], groups: &[(String, usize)]) -> String {
    let rows: usize = groups.iter().map(|(_, rows)| rows).sum();
    // Rows are never wrapped, so each line after the heading is one row.
    let (heading, body) = lines.split_at(lines.len().saturating_sub(rows));
    let mut text: String = heading.concat();
    let mut body = body.iter();
    for (at, (above, rows)) in groups.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        text.push_str(above);
        text.extend(body.by_ref().take(*rows).map(String::as_str));
    }
    text
}

/// The line with task and length above their rows.
fn place(row: &SummaryRow) -> String {
    format!("{}{}{}\n", row.task, at(row), direction(row))
}

/// The means over tasks, which are below the tasks, and the headings of columns left out of them.
fn means(table: &MeanTable, form: Form) -> (String, Vec<&'static str>) {
    let FittedLines { lines, names, left_out } = fitted(&table.rows, mean_columns(&table.rows), form, str::to_owned);
    let notes: String = table.notes.iter().map(|note| form.wrapped(&format!("note: {note}"))).collect();
    let title = form.wrapped(&format!("{}{}", table.title(), at(&table.rows[0])));
    let (shared, told) = (said(form, names.line()), said(form, table.detectable()));
    (format!("\n{title}{shared}{notes}{}{told}", lines.concat()), left_out)
}

/// The length of a row as text to append.
fn at(row: &SummaryRow) -> String {
    if row.length > 0 { format!(", {} tokens", tokens(row.length)) } else { String::new() }
}

/// A heading, with line breaks if it is longer than its numbers.
fn broken(heading: &str) -> String {
    match heading {
        "score %" | "Δ full" | "FLOPs %" | "read %" | "index %" | "KL p99" => heading.to_owned(),
        _ => heading.replace(' ', "\n").replace('/', "/\n"),
    }
}

/// Aligned lines: first `text_columns` columns of text, then right-aligned numbers.
pub(super) fn lines(headings: Vec<String>, rows: Vec<Vec<String>>, text_columns: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if at >= text_columns {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The cells of a row.
fn cells(row: &SummaryRow, columns: &[TableColumn], form: Form, names: &ShownParams) -> Vec<String> {
    let method = row.method.clone() + &excess::marks(row);
    let params = names.in_row(&row.method, &row.params).to_owned();
    [method, params].into_iter().chain(columns.iter().map(|c| form.cell(c.brief(row)))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;
    use spattn_eval::records::costs::KvTokens;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;

    #[test]
    fn tasks_are_named_once_and_kept_apart() {
        let records = [("ruler/vt", "full"), ("ruler/vt", "topk"), ("ruler/cwe", "full"), ("ruler/cwe", "topk")]
            .map(|(task, method)| record(task, method, 0, 1.0));
        let text = render(&Report::new(&records, &[]), Form::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "builtin, sparse from question");
        assert!(lines[2].starts_with("method") && lines[3].starts_with("───"), "{text}");
        assert_eq!((lines[4], lines[7], lines[8]), ("ruler/vt, 4K tokens", "", "ruler/cwe, 4K tokens"), "{text}");
        assert!(lines[5].starts_with("full ") && lines[6].contains("100.0     0.0    0.100"), "{text}");
    }

    #[test]
    fn no_line_of_words_is_longer_than_it_may_be() {
        let form = Form { width: Some(20), no_intervals: false };
        let line = "with 20 examples, a true loss of 10 points would be missed in one of five such runs";
        assert_eq!(
            form.wrapped(line),
            "with 20 examples, a\n  true loss of 10\n  points would be\n  missed in one of\n  five such runs\n"
        );
        assert_eq!(form.wrapped("a_word_that_is_longer_than_a_line x"), "a_word_that_is_longer_than_a_line\n  x\n");
        assert_eq!(Form::default().wrapped(line), format!("{line}\n"));
        let records: Vec<_> = ["ruler/vt", "ruler/cwe"]
            .iter()
            .flat_map(|task| (0..20).flat_map(move |i| ["full", "topk"].map(|method| record(task, method, i, 1.0))))
            .collect();
        let report = Report::new(&records, &[]);
        for width in [60, 80, 100] {
            let text = render(&report, Form { width: Some(width), no_intervals: false });
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            assert!(text.replace("\n  ", " ").contains("points would be missed in one of five such runs"), "{text}");
        }
    }

    #[test]
    fn tables_end_with_what_they_can_tell() {
        let table = |n: usize| {
            let records: Vec<_> = ["ruler/vt", "ruler/cwe"]
                .iter()
                .flat_map(|task| (0..n).flat_map(move |i| ["full", "topk"].map(|method| record(task, method, i, 1.0))))
                .collect();
            render(&Report::new(&records, &[]), Form::default())
        };
        let text = table(20);
        assert!(text.contains("100.0 [83 100]") && text.contains("0.0 [-16 +16]"), "{text}");
        let told = |n, points| {
            format!(
                "\nwith {n} independent examples, a true loss of {points} points would be missed in one of five such runs\n"
            )
        };
        assert!(text.contains(&told(20, 26)) && text.ends_with(&told(40, 18)), "{text}");
        assert!(!table(9).contains("with 9 independent"), "that is for the self-check to say");
    }

    #[test]
    fn examples_that_share_contexts_are_counted_with_them() {
        let records: Vec<_> = (0..20)
            .map(|i| spattn_eval::records::record::Record {
                context: Some(i / 5 * 5),
                ..record("needle/number", "full", i, 1.0)
            })
            .collect();
        let text = render(&Report::new(&records, &[]), Form::default());
        assert!(text.contains("20 (4)  100.0 [40 100]"), "{text}");
    }

    #[test]
    fn a_mean_says_which_of_its_tasks_are_stand_ins() {
        let text = |second: &str| {
            let records = ["ruler/vt", second].map(|task| record(task, "full", 0, 1.0));
            render(&Report::new(&records, &[]), Form::default())
        };
        let said = "mean over 2 tasks, 4K tokens\nnote: 1 of 2 tasks is a synthetic stand-in for a published one \
                    (ruler/qa_synth for ruler/qa_1)\nmethod";
        assert!(text("ruler/qa_synth").contains(said), "{}", text("ruler/qa_synth"));
        assert!(text("ruler/qa_1").contains("mean over 2 tasks, 4K tokens\nmethod"), "{}", text("ruler/qa_1"));
    }

    #[test]
    fn what_is_held_has_a_column_where_something_was_let_go() {
        let with = |method: &str, held: f64| Record {
            kv_tokens: Some(KvTokens { held, context: 4060 }),
            ..record("ruler/vt", method, 0, 1.0)
        };
        let text = render(&Report::new(&[with("full", 4060.0), with("snapkv", 790.0)], &[]), Form::default());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].ends_with("tokens") && lines[3].ends_with("held"), "{text}");
        assert!(lines[6].ends_with("1.56") && lines[7].ends_with("790"), "empty for who holds everything: {text}");
        assert!(!render(&Report::new(&[with("full", 4060.0)], &[]), Form::default()).contains("held"));
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(render(&Report::new(&[], &[]), Form::default()), "no results\n");
    }

    /// Records of two tasks and three settings, one of them with long parameters.
    fn wide() -> Vec<Record> {
        ["ruler/vt", "ruler/cwe"]
            .iter()
            .flat_map(|task| {
                (0..20).flat_map(move |i| {
                    ["full", "topk", "double_sparsity"].map(|method| Record {
                        params: match method {
                            "full" => "",
                            "topk" => "density=0.0625,bits=4,channels=0.5,per=kv_head",
                            _ => "density=0.0625,bits=4,channels=0.25,per=kv_head",
                        }
                        .into(),
                        ..record(task, method, i, f64::from(u8::from(i % 3 > 0)))
                    })
                })
            })
            .collect()
    }

    #[test]
    fn lines_keep_to_the_width_and_it_is_said_what_that_cost() {
        let records = wide();
        let report = Report::new(&records, &[]);
        let whole = render(&report, Form::default());
        // Sentences are not lines of the table, and may be longer.
        let is_sentence = |line: &&str| ["independent examples", "left out in"].iter().any(|part| line.contains(part));
        let longest =
            |text: &str| text.lines().filter(|line| !is_sentence(line)).map(|line| line.chars().count()).max().unwrap();
        assert!(longest(&whole) > 90 && !whole.contains("left out"), "{whole}");
        assert!(whole.contains("\nall rows but full: density=0.0625, bits=4, per=kv_head\n"), "{whole}");
        for (width, said) in [
            (100, "\nleft out in 100 columns: read % (summary.md has all)\n"),
            (70, "left out in 70 columns: read %, FLOPs %, index %, n (summary.md has all)\n"),
        ] {
            let text = render(&report, Form { width: Some(width), ..Form::default() });
            assert!(longest(&text) <= width && text.replace("\n  ", " ").contains(said), "{width}\n{text}");
            for part in ["score %", "Δ full", "density", "double_sparsity", "mean over 2 tasks", "channels=0.25"] {
                assert!(text.contains(part), "{part} is missing in\n{text}");
            }
        }
        // A narrower width shows less, but never nothing.
        assert!(render(&report, Form { width: Some(20), ..Form::default() }).contains("65.0 ["));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_row_of_a_table_looks_like_another(
            params in prop::collection::btree_set(
                prop::collection::btree_map("[a-c]{1,8}", "[0-2]|[a-z_]{1,12}", 0..5), 1..6),
            width in 60usize..160,
        ) {
            let joined = |map: &BTreeMap<String, String>| {
                map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
            };
            let of = |method: &'static str, params: &str, sample: usize| {
                let key = format!("{method}{params}{sample}");
                Record { params: params.into(), key, ..record("ruler/vt", method, sample, 1.0) }
            };
            let settings: Vec<String> = params.iter().map(joined).collect();
            let both = |sample| settings.iter().flat_map(move |p| ["quest", "magicpig"].map(|method| of(method, p, sample)));
            let records: Vec<Record> = (0..20).flat_map(both).collect();
            let text = render(&Report::new(&records, &[]), Form { width: Some(width), ..Form::default() });
            // All rows have the same scores and costs, so only their parameters tell them apart.
            let rows: Vec<&str> = text.lines().filter(|line| line.contains("100.0 [83 100]")).collect();
            prop_assert_eq!(rows.len(), 2 * settings.len(), "{}", text);
            prop_assert_eq!(distinct(rows.iter()).len(), rows.len(), "{}", text);
            prop_assert!(text.lines().all(|line| line.chars().count() <= width), "{}", text);
        }
    }

    #[test]
    fn rows_that_cost_more_than_dense_attention_are_marked() {
        let large =
            Record { aux_bits: Some(3293.0), params: "K=10,L=161".into(), ..record("ruler/vt", "magicpig", 0, 1.0) };
        let text = render(&Report::new(&[record("ruler/vt", "full", 0, 1.0), large], &[]), Form::default());
        assert!(text.contains("\nmagicpig†  K=10,L=161 "), "{text}");
        let said = "\n† the index is larger than the keys and values: magicpig K=10,L=161 (1.61 ×)\n";
        assert!(text.contains(said) && text.contains(" 161\n"), "{text}");
    }

    #[test]
    fn intervals_are_left_out_where_nobody_wants_them() {
        let records = wide();
        let text = render(&Report::new(&records, &[]), Form { no_intervals: true, ..Form::default() });
        assert!(text.contains("65.0") && !text.contains('['), "{text}");
    }

    #[test]
    fn columns_of_a_pivot_go_on_below_where_a_line_is_full() {
        let records = wide();
        let report = Report::new(&records, &[]);
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let layout =
            pivot::Layout::parse(&names(&["method"]), &names(&["task"]), &names(&["score"]), &report.rows).unwrap();
        let tables = pivot::tables(&report, &layout);
        let whole = pivot(&tables, Form::default());
        assert_eq!(whole.matches("double_sparsity").count(), 1, "{whole}");
        let text = pivot(&tables, Form { width: Some(90), ..Form::default() });
        assert_eq!(text.matches("double_sparsity").count(), 2, "{text}");
        let (vt, cwe) = (text.find("ruler/vt").unwrap(), text.find("ruler/cwe").unwrap());
        assert!(text[vt..cwe].contains("full") && text[cwe..].contains("full"), "{text}");
    }

    #[test]
    fn perplexities_and_scores_have_tables_of_their_own() {
        let records = [record("ruler/vt", "full", 0, 1.0), spattn_eval::records::testing::perplexity("full", 0, 2.0)];
        let text = render(&Report::new(&records, &[]), Form::default());
        assert_eq!(text.matches("method  params").count(), 2, "{text}");
        assert!(text.contains("n  score %") && text.contains("n  perplexity"), "{text}");
    }
}
