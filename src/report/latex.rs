//! LaTeX tables for a paper, with the rules of `booktabs` and numbers aligned by `siunitx`, at most as wide as an article's text.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Report;
use super::best;
use super::format::{Column, capital, columns, fitting, setting, tokens, without_interval};
use super::pivot::{ShownNotes, Table, is_about};
use crate::eval::summary::cells::Cell;
use crate::eval::summary::self_checks::Warning;
use crate::eval::summary::summary_row::SummaryRow;
use spattn_base::text::in_line;

/// The packages that a document needs.
const NEEDS: &str =
    "% Needs \\usepackage{array,booktabs,siunitx}. Each table is as wide as the text of the class article at most.\n";

/// The note below a table with bold numbers.
const BOLD: &str = "Bold: the best score of a method that is no oracle and no floor, and all that noise does not tell from it. Each is \
    compared with the best on the same examples, at 2.5 % over the number of comparisons.";

/// `summary.tex`: a table for each task and length, with as many columns of `summary.md` as fit. Warnings stand below the rows that they
/// concern.
pub fn summary(report: &Report, no_intervals: bool) -> String {
    let mut text = NEEDS.to_owned();
    // General warnings stand below the first table.
    let mut general: Vec<String> =
        report.warnings.iter().filter(|w| w.is_general()).map(|warning| warning.to_string()).collect();
    let place = |r: &SummaryRow| (setting(r), r.task.clone(), r.length);
    let mut cells = report.cells.as_slice();
    for rows in report.rows.chunk_by(|a, b| place(a) == place(b)) {
        let (of_rows, rest) = cells.split_at(rows.len().min(cells.len()));
        text.push_str(&of_place(report, rows, of_rows, std::mem::take(&mut general), no_intervals));
        cells = rest;
    }
    with_breaks(&text)
}

/// The text with page breaks: LaTeX holds tables without text between them until the end of a page, at most 52 of them (18 before 2015). A
/// long file ends with a break, so that it leaves none to the next file.
fn with_breaks(text: &str) -> String {
    const HELD: usize = 6;
    const END: &str = "\\end{table}\n";
    let mut parts: Vec<String> = text.split_inclusive(END).map(str::to_owned).collect();
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.iter_mut().enumerate() {
        if (at + 1) % HELD == 0 || (at == last && at >= HELD) {
            part.push_str("\\clearpage\n");
        }
    }
    parts.concat()
}

/// The table of one task and length. `cells` are those of `rows`.
fn of_place(report: &Report, rows: &[SummaryRow], cells: &[Cell], of_all: Vec<String>, no_intervals: bool) -> String {
    let length = if rows[0].length > 0 { format!(", {} tokens", tokens(rows[0].length)) } else { String::new() };
    let shared_n = rows.iter().all(|r| (r.n, r.contexts) == (rows[0].n, rows[0].contexts));
    let names: Vec<Vec<String>> = rows.iter().map(|r| vec![name(&r.method, &r.params)]).collect();
    let shown = |columns: &[&Column]| columns.iter().map(|c| numbers(c, rows, no_intervals)).collect::<Vec<_>>();
    let all: Vec<&Column> = columns(rows).into_iter().filter(|c| !(shared_n && c.heading == "n")).collect();
    let (columns, left_out) = fitting(all, |columns| width(&["setting"], &names, &shown(columns)) <= TEXT_WIDTH);
    let mut columns = shown(&columns);
    let best = best::of_rows(rows, cells);
    if let Some(score) = columns.iter_mut().find(|c| c.heading != "n") {
        score.bold.clone_from(&best);
    }
    let about = |row: &SummaryRow| report.warnings.iter().filter(|w| w.method.is_some() && is_about(w, row)).collect();
    let about: Vec<Vec<&Warning>> = rows.iter().map(about).collect();
    let notes: Vec<String> = about.iter().flatten().map(|warning| format!("`{}` {warning}", warning.code)).collect();
    let shown = ShownNotes::of(&notes);
    let mut before = 0;
    let marks = about.iter().map(|warnings| {
        let numbers: Vec<usize> = (before + 1..=before + warnings.len()).collect();
        before += warnings.len();
        marked(&shown.numbers(&numbers))
    });
    let marks = marks.collect();
    let mut general: Vec<String> = if best.is_empty() { Vec::new() } else { vec![BOLD.to_owned()] };
    general.extend((!left_out.is_empty()).then(|| format!("Not shown: {}.", left_out.join(", "))));
    general.extend(
        report.warnings.iter().filter(|w| w.method.is_none() && is_about(w, &rows[0])).map(ToString::to_string),
    );
    general.extend(of_all);
    let n = if shared_n { format!(", n\u{a0}=\u{a0}{}", rows[0].n) } else { String::new() };
    Tabular {
        caption: format!("{}: {}{length}{n}", setting(&rows[0]), rows[0].task),
        label: slug(&[&rows[0].model, &rows[0].protocol.to_string(), &rows[0].task, &tokens(rows[0].length)]),
        text_headings: vec!["setting".to_owned()],
        texts: names,
        marks,
        columns,
        notes: shown.texts,
        general,
    }
    .text()
}

/// A method and its parameters, with spaces at which a line may break.
fn name(method: &str, params: &str) -> String {
    let params = params.replace(',', ", ");
    if params.is_empty() { method.to_owned() } else { format!("{method} ({params})") }
}

/// The cells of a column of the summary.
fn numbers(column: &Column, rows: &[SummaryRow], no_intervals: bool) -> Numbers {
    Numbers::new(column.heading, rows.iter().map(|r| (column.brief)(r)).collect(), no_intervals)
}

/// The tables of a pivot. Columns that do not fit continue in a further table.
pub fn pivot(tables: &[Table], no_intervals: bool) -> String {
    with_breaks(&(NEEDS.to_owned() + &tables.iter().map(|table| of_pivot(table, no_intervals)).collect::<String>()))
}

fn of_pivot(table: &Table, no_intervals: bool) -> String {
    let shown = ShownNotes::of(&table.notes);
    let entries = |at: usize| table.cells.iter().map(move |line| line[at].as_ref());
    let names = table.headings();
    let column = |at: usize| {
        let texts = entries(at).map(|entry| entry.map_or(String::new(), |e| table.text(e)));
        let mut numbers = Numbers::new(&names[table.row_names.len() + at], texts.collect(), no_intervals);
        numbers.marks = entries(at).map(|e| e.map_or(String::new(), |e| marked(&shown.numbers(&e.notes)))).collect();
        numbers.bold = table.best_lines(at);
        numbers
    };
    let all: Vec<Numbers> = (0..table.columns.len()).map(column).collect();
    let headings: Vec<&str> = table.row_names.iter().map(String::as_str).collect();
    let spaced = |row: &Vec<String>| row.iter().map(|name| name.replace(',', ", ")).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = table.rows.iter().map(spaced).collect();
    let (mut text, mut first, mut part) = (String::new(), 0, 1);
    while first < all.len() {
        let fits = |end: &usize| width(&headings, &rows, &all[first..*end]) <= TEXT_WIDTH;
        // Adding columns never makes the table narrower.
        let end = (first + 1..=all.len()).take_while(fits).last().unwrap_or(first + 1);
        let continued = if part > 1 { " (further columns)" } else { "" };
        let bold = all[first..end].iter().any(|c| !c.bold.is_empty());
        text += &Tabular {
            caption: format!("{}{continued}", capital(&table.caption)),
            label: slug(&[&table.caption, &if part > 1 { format!("columns {part}") } else { String::new() }]),
            text_headings: table.row_names.clone(),
            texts: rows.clone(),
            marks: vec![String::new(); table.rows.len()],
            columns: all[first..end].to_vec(),
            notes: shown.texts.clone(),
            general: if bold { vec![BOLD.to_owned()] } else { Vec::new() },
        }
        .text();
        (first, part) = (end, part + 1);
    }
    text
}

/// The mark of a note, counted from 1: a letter, or a number in brackets after the 26th.
fn mark(note: usize) -> String {
    match u8::try_from(note).ok().filter(|note| (1..=26).contains(note)) {
        Some(letter) => format!("\\textsuperscript{{{}}}", char::from(b'a' + letter - 1)),
        None => format!("\\textsuperscript{{({note})}}"),
    }
}

fn marked(notes: &[usize]) -> String {
    notes.iter().map(|note| mark(*note)).collect()
}

/// The label of a table, for `\ref`.
fn slug(parts: &[&str]) -> String {
    let text: String =
        parts.join(" ").chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
    format!("tab:{}", text.split_whitespace().collect::<Vec<_>>().join("-"))
}

// ---- widths ----

/// The text width of an article set in 10 pt, in points.
const TEXT_WIDTH: f64 = 345.0;
/// The width of a character in `\footnotesize`, in points: an upper bound on the mean over digits or words.
const CHARACTER: f64 = 4.3;
/// The gap between two columns, in points.
const BETWEEN: f64 = 6.0;
/// The least and the greatest width of a text column, in points. Its lines break.
const NARROW: f64 = 84.0;
const WIDE: f64 = 150.0;

fn points(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// The widths of a table's text columns, in points: that of the longest cell, within bounds.
fn text_widths(headings: &[&str], texts: &[Vec<String>], most: f64) -> Vec<f64> {
    let longest = |(at, heading): (usize, &&str)| {
        // A heading is one word, which cannot be broken.
        let least = points(heading);
        texts.iter().map(|line| points(&line[at])).fold(least, f64::max).min(most.max(least))
    };
    headings.iter().enumerate().map(longest).collect()
}

/// The least width of a whole table, in points.
fn width(headings: &[&str], texts: &[Vec<String>], columns: &[Numbers]) -> f64 {
    let of_texts: f64 = text_widths(headings, texts, NARROW).iter().sum();
    let of_numbers: f64 = columns.iter().map(Numbers::width).sum();
    let gaps = headings.len() + columns.iter().map(|c| 1 + usize::from(c.has_ends())).sum::<usize>();
    of_texts + of_numbers + BETWEEN * gaps as f64
}

// ---- parts of a table ----

/// A column of numbers, followed by a column of their intervals if there are any.
#[derive(Debug, Clone)]
struct Numbers {
    heading: String,
    /// The text of each line, mostly numbers.
    values: Vec<String>,
    /// The intervals, in brackets.
    ends: Vec<String>,
    marks: Vec<String>,
    /// The lines set in bold.
    bold: Vec<usize>,
}

impl Numbers {
    fn new(heading: &str, cells: Vec<String>, no_intervals: bool) -> Self {
        let ends = |cell: &String| {
            let found = cell.find(" [").zip(cell.find(']')).filter(|_| !no_intervals);
            found.map_or(String::new(), |(from, to)| cell[from + 1..=to].replace(' ', ", "))
        };
        // The requested density in brackets is left out, because the parameters have it.
        let value = |cell: &String| match heading {
            "density" => cell.split(" (").next().unwrap_or_default().to_owned(),
            _ => without_interval(cell),
        };
        Self {
            heading: heading.to_owned(),
            ends: cells.iter().map(ends).collect(),
            marks: vec![String::new(); cells.len()],
            values: cells.iter().map(value).collect(),
            bold: Vec::new(),
        }
    }

    fn has_ends(&self) -> bool {
        self.ends.iter().any(|ends| !ends.is_empty())
    }

    fn width(&self) -> f64 {
        let widest = |texts: &[String]| texts.iter().map(|text| points(text)).fold(0.0, f64::max);
        // Headings may break between words.
        let heading = self.heading.split(' ').map(points).fold(0.0, f64::max);
        let marked =
            self.marks.iter().map(|mark| mark.matches("superscript").count() as f64 * CHARACTER).fold(0.0, f64::max);
        // A heading spans numbers and intervals.
        (widest(&self.values) + marked + widest(&self.ends)).max(heading)
    }

    /// Whether all values are numbers.
    fn is_plain(&self) -> bool {
        self.values.iter().all(|value| value.is_empty() || is_number(value))
    }

    /// The column's type for `siunitx`: digits before and after the point, and space for a sign; `r` if some values are not numbers.
    fn format(&self) -> String {
        if !self.is_plain() {
            return "r".to_owned();
        }
        let numbers = self.values.iter().filter(|v| is_number(v));
        let (mut sign, mut before, mut behind) = ("", 1, 0);
        for number in numbers {
            let digits = number.trim_start_matches(['+', '-']);
            sign = if digits.len() < number.len() { "+" } else { sign };
            let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
            (before, behind) = (before.max(whole.len()), behind.max(part.len()));
        }
        // Marks stand after the space for numbers.
        let marks = match self.marks.iter().max_by_key(|mark| mark.len()).filter(|mark| !mark.is_empty()) {
            Some(widest) => format!(", table-space-text-post={{{widest}}}"),
            None => String::new(),
        };
        format!("S[table-format={sign}{before}.{behind}{marks}]")
    }

    fn cell(&self, line: usize) -> String {
        let value = &self.values[line];
        let bold = if self.bold.contains(&line) { "\\bfseries " } else { "" };
        let value = match value.is_empty() {
            true => String::new(),
            // Braces keep `siunitx` from parsing what is not a number.
            false if !self.marks[line].is_empty() => {
                format!("{bold}{}{{\\mdseries{}}}", escaped(value), self.marks[line])
            }
            false => format!("{bold}{}", escaped(value)),
        };
        match self.has_ends() {
            true => format!("{value} & {}", in_math(&self.ends[line])),
            false => value,
        }
    }

    /// The heading broken into lines, as wide as its longest word or its cells.
    fn heading_lines(&self) -> Vec<String> {
        let longest = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let word = self.heading.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let room = word.max(longest(&self.values) + longest(&self.ends));
        let mut lines: Vec<String> = Vec::new();
        for word in self.heading.split(' ') {
            match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= room) {
                Some(line) => *line = format!("{line} {word}"),
                None => lines.push(word.to_owned()),
            }
        }
        lines.iter().map(|line| escaped(line)).collect()
    }

    /// The heading's cell, which spans one column or two.
    fn heading(&self) -> String {
        let lines = self.heading_lines();
        let stacked = match lines.as_slice() {
            [one] => one.clone(),
            several => format!("\\shortstack{{{}}}", several.join("\\\\")),
        };
        match self.has_ends() {
            true => format!("\\multicolumn{{2}}{{c}}{{{stacked}}}"),
            false => format!("{{{stacked}}}"),
        }
    }
}

/// An interval in math mode, for proper signs.
fn in_math(ends: &str) -> String {
    match ends.strip_prefix('[').and_then(|ends| ends.strip_suffix(']')).and_then(|ends| ends.split_once(", ")) {
        Some((low, high)) => format!("[${low}$, ${high}$]"),
        None => ends.to_owned(),
    }
}

/// Whether `siunitx` can align it as a number. Numbers with a power of ten are set as text.
fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite) && !text.contains(['e', 'E'])
}

/// A table under construction.
struct Tabular {
    caption: String,
    label: String,
    text_headings: Vec<String>,
    texts: Vec<Vec<String>>,
    /// The marks after each line's text.
    marks: Vec<String>,
    columns: Vec<Numbers>,
    notes: Vec<String>,
    /// Notes that concern no single line.
    general: Vec<String>,
}

impl Tabular {
    fn text(&self) -> String {
        let headings: Vec<&str> = self.text_headings.iter().map(String::as_str).collect();
        let room = TEXT_WIDTH
            - (width(&headings, &self.texts, &self.columns)
                - text_widths(&headings, &self.texts, NARROW).iter().sum::<f64>());
        let most = (room / headings.len().max(1) as f64).clamp(NARROW, WIDE);
        let widths = text_widths(&headings, &self.texts, most);
        let left = widths.iter().map(|points| format!(">{{\\raggedright\\arraybackslash}}p{{{points:.0}pt}}"));
        let right = self.columns.iter().map(|c| c.format() + if c.has_ends() { "l" } else { "" });
        let alignment: String = left.chain(right).collect();
        let heading: Vec<String> =
            self.text_headings.iter().map(|h| escaped(h)).chain(self.columns.iter().map(Numbers::heading)).collect();
        let lines: Vec<String> = (0..self.texts.len()).map(|line| self.line(line)).collect();
        let heights = lines.iter().zip(&self.texts).map(|(line, texts)| self.height(line, texts, &widths));
        let of_notes: Vec<usize> = self.notes.iter().map(|note| printed_lines(note, TEXT_WIDTH)).collect();
        let pages = pages(&heights.collect::<Vec<_>>(), &of_notes);
        let mut text = String::new();
        for (at, page) in pages.iter().enumerate() {
            let lines = &lines[page.clone()];
            let (caption, label) = match at {
                0 => (escaped(&self.caption), self.label.clone()),
                at => (format!("{} (continued)", escaped(&self.caption)), format!("{}-{}", self.label, at + 1)),
            };
            text.push_str(&format!(
                "\n\\begin{{table}}\n\\centering\n\\footnotesize\n\\setlength{{\\tabcolsep}}{{3pt}}\n\
                 \\sisetup{{detect-weight=true}}\n\\caption{{{caption}}}\n\\label{{{label}}}\n\
                 \\begin{{tabular}}{{@{{}}{alignment}@{{}}}}\n\\toprule\n{} \\\\\n\\midrule\n{}\\bottomrule\n\\end{{tabular}}\n\\par\\smallskip\\raggedright\n",
                heading.join(" & "),
                lines.concat(),
            ));
            for (mark, note) in (1..).map(mark).zip(&self.notes) {
                if lines.iter().any(|line| line.contains(&mark)) {
                    text.push_str(&format!("\\par {mark} {}\n", escaped(note)));
                }
            }
            let is_last = at + 1 == pages.len();
            text.extend(self.general.iter().filter(|_| is_last).map(|note| format!("\\par {}\n", escaped(note))));
            text.push_str("\\end{table}\n");
        }
        text
    }

    /// The space that a line takes: the longest of its texts, and the notes that it refers to.
    fn height(&self, line: &str, texts: &[String], widths: &[f64]) -> Height {
        let own = texts.iter().zip(widths).map(|(text, width)| printed_lines(text, *width)).max().unwrap_or(1);
        let notes = (0..self.notes.len()).filter(|note| line.contains(&mark(note + 1)));
        Height { own, notes: notes.collect() }
    }

    fn line(&self, line: usize) -> String {
        let mut cells: Vec<String> = self.texts[line].iter().map(|text| escaped(text)).collect();
        if let Some(last) = cells.last_mut() {
            last.push_str(&self.marks[line]);
        }
        cells.extend(self.columns.iter().map(|c| c.cell(line)));
        format!("{} \\\\\n", cells.join(" & "))
    }
}

/// The printed lines that fit on a page below a caption and a heading.
const MOST_LINES: usize = 46;

/// The space that a line of a table takes on a page.
#[derive(Debug, Clone)]
struct Height {
    /// Its own printed lines.
    own: usize,
    /// The notes that must be on the same page, counted from 0.
    notes: Vec<usize>,
}

/// The number of printed lines of a text, at a width in points.
fn printed_lines(text: &str, width: f64) -> usize {
    (points(text) / width).ceil().max(1.0) as usize
}

/// The lines of a table by page. A note takes its printed lines once on each page that refers to it. Each page has at least one line.
fn pages(heights: &[Height], of_notes: &[usize]) -> Vec<Range<usize>> {
    let (mut pages, mut first, mut used, mut noted) = (Vec::new(), 0, 0, BTreeSet::new());
    for (line, height) in heights.iter().enumerate() {
        let taken = |noted: &BTreeSet<usize>| {
            height.own
                + height.notes.iter().filter(|note| !noted.contains(note)).map(|note| of_notes[*note]).sum::<usize>()
        };
        if used + taken(&noted) > MOST_LINES && line > first {
            pages.push(first..line);
            (first, used) = (line, 0);
            noted.clear();
        }
        used += taken(&noted);
        noted.extend(&height.notes);
    }
    pages.push(first..heights.len());
    pages
}

/// Text escaped for LaTeX.
fn escaped(text: &str) -> String {
    in_line(text)
        .chars()
        .map(|c| match c {
            // Long names may break after an underscore.
            '_' => "\\_\\allowbreak{}".to_owned(),
            '/' => "/\\allowbreak{}".to_owned(),
            '&' | '%' | '$' | '#' | '{' | '}' => format!("\\{c}"),
            '~' => "\\textasciitilde{}".to_owned(),
            '^' => "\\textasciicircum{}".to_owned(),
            '\\' => "\\textbackslash{}".to_owned(),
            '<' => "\\textless{}".to_owned(),
            '>' => "\\textgreater{}".to_owned(),
            '|' => "\\textbar{}".to_owned(),
            '\u{a0}' => "~".to_owned(),
            'Δ' => "$\\Delta$".to_owned(),
            '‖' => "$\\|$".to_owned(),
            '×' => "$\\times$".to_owned(),
            '`' => "'".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::records::costs::KvTokens;
    use crate::eval::records::record::Record;
    use crate::eval::records::record::tests::record;

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
                // Better, but never bold, because it is an oracle.
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
            "p{114pt}S[table-format=3.1]lS[table-format=+2.1]lS[table-format=1.3]",
            "setting & \\multicolumn{2}{c}{score \\%} & \\multicolumn{2}{c}{$\\Delta$ full} & {density}",
            "full & 100.0 & [$83$, $100$] &  &  & ",
            "loki (density=0.0625, per=kv\\_\\allowbreak{}head) & \\bfseries 90.0 & [$68$, $99$] & -10.0 & ",
            " & 10.0 & [$1$, $32$] & -90.0 & [$-97$, $-59$]",
            "topk (k=64) & 100.0 & ",
            "\\par Bold: the best score of a method that is no oracle",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let plain = summary(&report, true);
        assert!(plain.contains("& \\bfseries 90.0 & -10.0 &") && !plain.contains("[$70"), "{plain}");
    }

    #[test]
    fn what_does_not_fit_a_page_is_named() {
        let long = |method: &str, sample: usize| Record {
            kv_tokens: Some(KvTokens { held: 790.5, context: 4060 }),
            params: "a=1,b=2,c=3,a_long_name=of_a_long_value".into(),
            ..record("ruler/vt", method, sample, 1.0)
        };
        let records: Vec<Record> =
            (0..3).flat_map(|i| [record("ruler/vt", "full", i, 1.0), long("topk", i), long("quest", i)]).collect();
        let text = summary(&Report::new(&records, &[]), false);
        assert!(text.contains("Not shown: aux bits, cost2, cost1"), "{text}");
    }

    #[test]
    fn warnings_have_marks_and_text_is_escaped() {
        let empty = |sample| Record {
            prediction: "".into(),
            params: "per=kv_head".into(),
            ..record("vt", "topk", sample, 0.0)
        };
        let records = [record("vt", "full", 0, 1.0), empty(0), empty(1)];
        let text = summary(&Report::new(&records, &[]), false);
        for part in [
            "most.\n\n\\begin{table}",
            "\\par n = 1: on one task no difference can be told",
            "topk (per=kv\\_\\allowbreak{}head)\\textsuperscript{a} & 2 & 0.0 & [$0$, $84$] & -100.0 &",
            "\\bottomrule\n\\end{tabular}\n\\par\\smallskip\\raggedright\n\\par \\textsuperscript{a} 'empty\\_\\allowbreak{}predictions' vt at 4096, topk:per=kv",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
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
        let layout = crate::report::pivot::Layout::parse(
            &names(&["method"]),
            &names(&["task"]),
            &names(&["score"]),
            &report.rows,
        );
        let text = pivot(&crate::report::pivot::tables(&report, &layout.unwrap()), false);
        assert!(text.matches("\\begin{table}").count() > 1 && text.contains("(further columns)}"), "{text}");
        assert!(
            text.contains("-columns-2}") && text.contains("0.0{\\mdseries\\textsuperscript{a}} & [$0.0$, $45.9$]"),
            "{text}"
        );
        assert!(text.contains("\nquest & \\bfseries 100.0 & ") && text.contains("\nfull & 100.0 & "), "{text}");
        let labels: Vec<&str> = text.lines().filter(|line| line.starts_with("\\label")).collect();
        let distinct: std::collections::BTreeSet<&&str> = labels.iter().collect();
        assert_eq!(labels.len(), distinct.len(), "{labels:?}");
        // Only a name that is longer than a text column may make it wider.
        assert!(text_widths(&["a_parameter_with_a_very_long_name"], &[vec!["1".to_owned()]], NARROW)[0] > NARROW);
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
        // Files that follow each other in a document.
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
        let note = "\\par \\textsuperscript{a} 'empty\\_\\allowbreak{}predictions' vt at 4096, topk:k=35";
        let (with, without) = if first.contains("(k=35)") { (first, second) } else { (second, first) };
        assert!(with.contains(note) && !without.contains(note), "{text}");
        let of = |own: &[usize]| own.iter().map(|own| Height { own: *own, notes: Vec::new() }).collect::<Vec<_>>();
        assert_eq!(pages(&of(&[20, 20, 20, 50, 1]), &[]), [0..2, 2..3, 3..4, 4..5], "a page has one line at least");
        assert!(pages(&of(&[]), &[]).iter().all(Range::is_empty), "no lines");
        // A note is on each page once, however many of its lines refer to it.
        let noted = vec![Height { own: 1, notes: vec![0] }; 90];
        assert_eq!(pages(&noted, &[6]), [0..40, 40..80, 80..90]);
    }
}
