//! One LaTeX table: numbers aligned at their decimal points, widths, pages, marks of notes, and escaped text.

use std::collections::BTreeSet;
use std::ops::Range;

use super::format::without_interval;
use spattn_base::text::in_line;

/// The mark of a note, numbered from 1: a letter, because several marks may be side by side; a number from 27 on.
pub(super) fn mark(note: usize) -> String {
    match u8::try_from(note).ok().filter(|note| (1..=26).contains(note)) {
        Some(letter) => format!("\\textsuperscript{{{}}}", char::from(b'a' + letter - 1)),
        None => format!("\\textsuperscript{{({note})}}"),
    }
}

pub(super) fn marked(notes: &[usize]) -> String {
    notes.iter().map(|note| mark(*note)).collect()
}

/// The width of an article's text in points, with letters of ten points.
pub(super) const TEXT_WIDTH: f64 = 345.0;
/// The width of a note's mark in points.
const MARK: f64 = 4.3;
/// The space between two columns in points.
const BETWEEN: f64 = 6.0;
/// The least and the greatest width in points of a column of text, whose lines may break.
pub(super) const NARROW: f64 = 84.0;
const WIDE: f64 = 150.0;

/// Widths of characters in Computer Modern at eight points (`\footnotesize` of an article), in hundredths of a point. The
/// minus is the one of formulas. A character that is not listed counts as the widest.
const WIDTHS: &[(&str, u32)] = &[
    ("il.,:;'!|[]", 236),
    ("fj", 260),
    ("\u{a0}  ", 283),
    ("_", 310),
    ("t()", 331),
    ("rs", 336),
    ("I", 307),
    ("cez", 378),
    ("0123456789ago*/", 426),
    ("kqvxyJ", 449),
    ("bdhnpuS", 473),
    ("Z", 520),
    ("L", 532),
    ("F", 555),
    ("EP", 579),
    ("B", 603),
    ("CTwR", 626),
    ("ADHNUVXYDGKOQ+-=<>~^×Δ‖†‡", 668),
    ("m%#&", 709),
    ("M", 780),
];
const WIDEST: u32 = 874;

fn points(text: &str) -> f64 {
    let of = |c: char| WIDTHS.iter().find(|(these, _)| these.contains(c)).map_or(WIDEST, |(_, width)| *width);
    text.chars().map(|c| f64::from(of(c))).sum::<f64>() / 100.0
}

/// The width in points of a text's widest unbreakable part. [`escaped`] text can break at spaces and after `_` and `/`.
fn unbroken(text: &str) -> f64 {
    text.split(' ').flat_map(|word| word.split_inclusive(['_', '/'])).map(points).fold(0.0, f64::max)
}

/// The widths in points of a table's text columns: that of the longest cell, within bounds.
pub(super) fn text_widths(headings: &[&str], texts: &[Vec<String>], most: f64) -> Vec<f64> {
    let longest = |(at, heading): (usize, &&str)| {
        let cells = || texts.iter().map(|line| &line[at]);
        let least = cells().map(|cell| unbroken(cell)).fold(unbroken(heading), f64::max);
        texts.iter().map(|line| points(&line[at])).fold(least, f64::max).min(most.max(least))
    };
    headings.iter().enumerate().map(longest).collect()
}

/// The least width of a whole table in points.
pub(super) fn width(headings: &[&str], texts: &[Vec<String>], columns: &[Numbers]) -> f64 {
    let of_texts: f64 = text_widths(headings, texts, NARROW).iter().sum();
    let of_numbers: f64 = columns.iter().map(Numbers::width).sum();
    let gaps = headings.len() + columns.iter().map(|c| 1 + usize::from(c.has_ends())).sum::<usize>();
    of_texts + of_numbers + BETWEEN * gaps as f64
}

/// A column of numbers, followed by a column of intervals if there are any.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub(super) heading: String,
    /// The text of each line: a number, or something else.
    pub(super) values: Vec<String>,
    /// The interval of each line, in brackets.
    pub(super) ends: Vec<String>,
    pub(super) marks: Vec<String>,
    /// The lines that are bold.
    pub(super) bold: Vec<usize>,
}

impl Numbers {
    pub(super) fn new(heading: &str, cells: Vec<String>, no_intervals: bool) -> Self {
        let ends = |cell: &String| {
            let found = cell.find(" [").zip(cell.find(']')).filter(|_| !no_intervals);
            found.map_or(String::new(), |(from, to)| cell[from + 1..=to].replace(' ', ", "))
        };
        // The requested density is left out, because it is among the parameters.
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

    pub(super) fn has_ends(&self) -> bool {
        self.ends.iter().any(|ends| !ends.is_empty())
    }

    fn width(&self) -> f64 {
        const BOLD: f64 = 1.12;
        let widest = |texts: &[String]| texts.iter().map(|text| points(text)).fold(0.0, f64::max);
        let bold = self.bold.iter().map(|line| BOLD * points(&self.values[*line])).fold(0.0, f64::max);
        // Headings break between words.
        let heading = self.heading.split(' ').map(points).fold(0.0, f64::max);
        let marked =
            self.marks.iter().map(|mark| mark.matches("superscript").count() as f64 * MARK).fold(0.0, f64::max);
        // The heading spans numbers and intervals.
        (widest(&self.values).max(bold) + marked + widest(&self.ends)).max(heading)
    }

    /// Whether all values are numbers.
    fn is_plain(&self) -> bool {
        self.values.iter().all(|value| value.is_empty() || is_number(value))
    }

    /// The format of the column: the digits before and after the decimal point, and room for a sign. A column that has other
    /// values is right-aligned.
    pub(super) fn format(&self) -> String {
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
        // Marks come after the space for numbers.
        let marks = match self.marks.iter().max_by_key(|mark| mark.len()).filter(|mark| !mark.is_empty()) {
            Some(widest) => format!(", table-space-text-post={{{widest}}}"),
            None => String::new(),
        };
        format!("S[table-format={sign}{before}.{behind}{marks}]")
    }

    pub(super) fn cell(&self, line: usize) -> String {
        let value = &self.values[line];
        let bold = if self.bold.contains(&line) { "\\bfseries " } else { "" };
        let value = match value.is_empty() {
            true => String::new(),
            // Text that is not part of a number is in braces.
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

    /// The lines of the heading, none longer than its longest word or the cells.
    fn heading_lines(&self) -> Vec<String> {
        let longest = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let word = self.heading.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let available = word.max(longest(&self.values) + longest(&self.ends));
        let mut lines: Vec<String> = Vec::new();
        for word in self.heading.split(' ') {
            match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= available) {
                Some(line) => *line = format!("{line} {word}"),
                None => lines.push(word.to_owned()),
            }
        }
        lines.iter().map(|line| escaped(line)).collect()
    }

    /// The heading, over one column or two.
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

/// An interval with minus signs in math mode.
fn in_math(ends: &str) -> String {
    match ends.strip_prefix('[').and_then(|ends| ends.strip_suffix(']')).and_then(|ends| ends.split_once(", ")) {
        Some((low, high)) => format!("[${low}$, ${high}$]"),
        None => ends.to_owned(),
    }
}

/// Whether `siunitx` takes a text for a number. Numbers with a power of ten are typeset without it.
fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite) && !text.contains(['e', 'E'])
}

/// The contents of a table.
pub(super) struct Tabular {
    pub(super) caption: String,
    pub(super) label: String,
    pub(super) text_headings: Vec<String>,
    pub(super) texts: Vec<Vec<String>>,
    /// The marks after the text of each line.
    pub(super) marks: Vec<String>,
    pub(super) columns: Vec<Numbers>,
    pub(super) notes: Vec<String>,
    /// Notes that are not about a single line.
    pub(super) general: Vec<String>,
}

impl Tabular {
    pub(super) fn text(&self) -> String {
        let headings: Vec<&str> = self.text_headings.iter().map(String::as_str).collect();
        let available = TEXT_WIDTH
            - (width(&headings, &self.texts, &self.columns)
                - text_widths(&headings, &self.texts, NARROW).iter().sum::<f64>());
        let most = (available / headings.len().max(1) as f64).clamp(NARROW, WIDE);
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

    /// The space that a line of the table takes: that of its longest text, and the notes that it is marked with.
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

/// The number of printed lines on a page, besides caption and heading.
const MOST_LINES: usize = 46;

/// The space that a line of a table takes on a page.
#[derive(Debug, Clone)]
pub(super) struct Height {
    /// The number of its own printed lines.
    pub(super) own: usize,
    /// The indices of the notes that must be on its page.
    pub(super) notes: Vec<usize>,
}

/// The number of printed lines of a text that is broken at a width in points.
fn printed_lines(text: &str, width: f64) -> usize {
    (points(text) / width).ceil().max(1.0) as usize
}

/// Divides a table's lines into pages of at least one line. Each page has a note once. `of_notes` are the notes' printed
/// lines.
pub(super) fn pages(heights: &[Height], of_notes: &[usize]) -> Vec<Range<usize>> {
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

/// A text, escaped for LaTeX.
pub(super) fn escaped(text: &str) -> String {
    in_line(text)
        .chars()
        .map(|c| match c {
            // Long names may be broken after it.
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
            '†' => "\\dag{}".to_owned(),
            '‡' => "\\ddag{}".to_owned(),
            '‖' => "$\\|$".to_owned(),
            '×' => "$\\times$".to_owned(),
            '`' => "'".to_owned(),
            c => c.to_string(),
        })
        .collect::<String>()
        // Two hyphens would become a dash.
        .replace("--", "-{}-")
}
