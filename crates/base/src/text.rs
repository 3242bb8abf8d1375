//! Safe output of foreign text: to a terminal or a log, and in drawings, pages, Markdown and CSV.
//!
//! Names come from model files, rows, records and hubs. They must not act as terminal commands, as markup, or as spreadsheet formulas.
//! Files for programs (JSON, records) contain names unchanged.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Largest number of characters in a line of an error or a note; the middle of a longer line is left out.
pub const LONGEST_LINE: usize = 1000;

/// Whether a character must be escaped: control characters, some of which terminals obey; characters that reverse the order of letters
/// (bidirectional overrides, embeddings and isolates); line separators; and characters that XML forbids.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{fffe}' | '\u{ffff}')
}

/// Whether a text shows nothing: only white space, and characters that Unicode leaves invisible (zero-width spaces and joiners,
/// directional and byte order marks, fillers, variation selectors, tags).
pub fn is_blank(text: &str) -> bool {
    let is_unseen = |c: char| {
        matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
    };
    // Python also counts four separators as white space.
    text.chars().all(|c| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}') || is_unseen(c))
}

/// Returns text for people, with line ends and tabs kept; other hidden characters are escaped as `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(
        text,
        |c| is_hidden(c) && !matches!(c, '\n' | '\t'),
        |out, c| {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        },
    )
}

/// Like [`shown`], in one line: line ends and tabs become blanks.
pub fn in_line(text: &str) -> Cow<'_, str> {
    match shown(text) {
        text if text.contains(['\n', '\t']) => Cow::Owned(text.replace(['\n', '\t'], " ")),
        text => text,
    }
}

/// Returns JSON for people: the same data, with hidden characters escaped as `\u009b`. They occur only in strings, and those that JSON
/// itself escapes are already escaped.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    escaped(
        json,
        |c| is_hidden(c) && !c.is_ascii_whitespace(),
        |out, c| {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        },
    )
}

/// Like [`shown`], with lines cut to [`LONGEST_LINE`].
pub fn for_log(text: &str) -> String {
    let lines: Vec<Cow<str>> = text.split('\n').map(|line| cut(line, LONGEST_LINE)).collect();
    let lines: Vec<Cow<str>> = lines.iter().map(|line| shown(line)).collect();
    lines.join("\n")
}

/// Returns the start and the end of a text with `…` between them, if it has more than `most` characters.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    // A text has at least as many bytes as characters.
    if text.len() <= most || text.chars().nth(most).is_none() {
        return Cow::Borrowed(text);
    }
    let (before, after) = (most.saturating_sub(1) * 2 / 3, most.saturating_sub(1).div_ceil(3));
    let start = text.char_indices().nth(before).map_or(text.len(), |(at, _)| at);
    let end = match after {
        0 => text.len(),
        after => text.char_indices().rev().nth(after - 1).map_or(0, |(at, _)| at),
    };
    Cow::Owned(format!("{}…{}", &text[..start], &text[end..]))
}

fn escaped(text: &str, is_meant: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_meant(c) { escape(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Returns a name for use within Markdown, in one line: it cannot be HTML, an image, a link or a reference to one, or the end of a cell.
/// Text that cannot be mistaken for these stays unchanged: `[12.5 30.1]`, `p < 0.05`, `a_b`.
pub fn in_markdown(text: &str) -> Cow<'_, str> {
    let line = in_line(text);
    if !line.contains(['\\', '<', ']', '|', '&', ':', 'w', 'W']) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 8);
    let mut rest = line.as_ref();
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let next = after.chars().next();
        let is_markup = match c {
            '\\' | '|' => true,
            '<' => next.is_none_or(|n| n.is_ascii_alphabetic() || matches!(n, '/' | '!' | '?')),
            // An address or a reference would follow the bracket.
            ']' => next.is_some_and(|n| matches!(n, '(' | ':' | '[')),
            '&' => next.is_some_and(|n| n.is_ascii_alphanumeric() || n == '#'),
            // Addresses would become links.
            ':' => after.starts_with("//"),
            '.' => out.len() >= 3 && out.as_bytes()[out.len() - 3..].eq_ignore_ascii_case(b"www"),
            _ => false,
        };
        if is_markup {
            out.push('\\');
        }
        out.push(c);
        rest = after;
    }
    Cow::Owned(out)
}

/// Returns a table cell for spreadsheets: a leading apostrophe makes a formula text, and hidden characters are escaped. Numbers stay
/// unchanged, with a sign or without.
pub fn in_cell(text: &str) -> Cow<'_, str> {
    match is_formula(text.trim_start_matches('\'')) {
        true => Cow::Owned(format!("'{}", shown(text))),
        false => shown(text),
    }
}

/// Returns a cell for a column of names, none of which is a number: text that a spreadsheet would take for a number, a date or a time
/// also gets an apostrophe.
pub fn in_name_cell(name: &str) -> Cow<'_, str> {
    match is_like_number(name.trim_start_matches('\'')) {
        true => Cow::Owned(format!("'{}", shown(name))),
        false => in_cell(name),
    }
}

/// Returns the text of a cell that [`in_cell`] or [`in_name_cell`] wrote.
pub fn of_cell(cell: &str) -> &str {
    let is_meant = |text: &str| is_formula(text) || is_like_number(text);
    match cell.strip_prefix('\'') {
        Some(text) if is_meant(text.trim_start_matches('\'')) => text,
        _ => cell,
    }
}

/// Whether a text consists only of digits and the characters of numbers, dates and times.
fn is_like_number(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_digit() || "+-.,:/%eE ".contains(c);
    text.contains(|c: char| c.is_ascii_digit()) && text.chars().all(is_part)
}

fn is_formula(text: &str) -> bool {
    match text.chars().next() {
        Some('=' | '@' | '\t' | '\r' | '\n' | '＝' | '＋' | '－' | '＠') => true,
        Some('+' | '-') => text.parse::<f64>().is_err(),
        _ => false,
    }
}

/// Formats a number of bytes with few digits: `55 KB`, `4.4 MB`, `1.2 GB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 MB".to_owned(),
        b if b < 999_500 => format!("{:.0} KB", (b as f64 / 1e3).max(1.0)),
        b if b < 999_950_000 => format!("{:.1} MB", b as f64 / 1e6),
        b => format!("{:.1} GB", b as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let osc = "a\u{1b}]52;c;aGk=\u{7}b\u{9b}31mc\u{202e}d\u{2066}e\r\u{7f}\u{85}\u{ffff}";
        let safe = "a\\u{1b}]52;c;aGk=\\u{7}b\\u{9b}31mc\\u{202e}d\\u{2066}e\\u{d}\\u{7f}\\u{85}\\u{ffff}";
        assert_eq!(shown(osc), safe);
        assert!(matches!(shown("naïve 漢字 Δ\n\tשלום"), Cow::Borrowed("naïve 漢字 Δ\n\tשלום")));
        assert_eq!(in_line("a\n\tb\u{2028}"), "a  b\\u{2028}");
    }

    #[test]
    fn json_says_the_same_when_it_is_shown() {
        let text = "a\u{1b}\u{9b}\u{7f}\u{202e}\u{2028}\n\"";
        let json = serde_json::to_string_pretty(&serde_json::json!({ "x": text })).unwrap();
        let safe = shown_json(&json);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap()["x"], text);
        assert!(!safe.contains(|c| is_hidden(c) && c != '\n'), "{safe:?}");
    }

    #[test]
    fn long_lines_lose_their_middle() {
        let long = format!("{}é{}", "a".repeat(50_000_000), "z".repeat(900));
        let log = for_log(&format!("error: {long}\nhint"));
        let line = log.strip_suffix("\nhint").unwrap();
        assert_eq!(line.chars().count(), LONGEST_LINE);
        assert!(line.starts_with("error: aaa") && line.ends_with("zzz") && line.contains("a…z"), "{line}");
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(
            ["", "…", "…ü", "ä…ü"].map(|want| cut("äöüü", want.chars().count()) == want),
            [false, true, true, true]
        );
    }

    #[test]
    fn names_are_no_markdown() {
        for (name, safe) in [
            ("<img src=x>", "\\<img src=x>"),
            ("![x](http://a.b/c.png)", "![x\\](http\\://a.b/c.png)"),
            ("[x][y] [x]: y", "[x\\][y] [x\\]: y"),
            ("a|b\\|c", "a\\|b\\\\\\|c"),
            ("&lt;script", "\\&lt;script"),
            ("www.evil.org", "www\\.evil.org"),
            ("a\n# b\u{202e}", "a # b\\\\u{202e}"),
            ("x<", "x\\<"),
            ("éaa.b [漢](x)", "éaa.b [漢\\](x)"),
        ] {
            assert_eq!(in_markdown(name), safe);
        }
        for plain in
            ["12.5 [10.0 15.0]", "p < 0.05", "ruler/niah_single_2", "hip>topk:k=8", "a & b", "Full *", "1:2", "word"]
        {
            assert_eq!(in_markdown(plain), plain);
        }
    }

    #[test]
    fn formulas_are_text_and_numbers_stay_numbers() {
        for formula in ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "-", "＝1"] {
            assert_eq!(in_cell(formula), format!("'{formula}"));
        }
        assert_eq!(in_cell("\r=1"), "'\\u{d}=1", "a terminal goes back to the line's beginning");
        for plain in ["", "-3.5", "+1", "-1e-9", "1-2", "a=b", "'", "'a", "k=8"] {
            assert_eq!(in_cell(plain), plain);
        }
        for text in ["=1", "'=1", "''=1", "'", "'a", "-3.5", "-x", "x"] {
            assert_eq!(of_cell(&in_cell(text)), text);
        }
        for name in ["+1", "-5", "007", "1e5", "1-2", "2024-01-01", "12:30", "3.10", "'5", "=1", "@a", "-x"] {
            assert_eq!(in_name_cell(name), format!("'{name}"));
            assert_eq!(of_cell(&in_name_cell(name)), name);
        }
        for plain in ["", "gpt-2", "k=8", "4-8k", "last:32", "e", "-e".trim_start_matches('-'), "'a"] {
            assert_eq!(in_name_cell(plain), plain);
            assert_eq!(of_cell(&in_name_cell(plain)), plain);
        }
    }

    #[test]
    fn what_cannot_be_seen_is_blank() {
        for blank in
            ["", " \n\u{a0}\u{3000}", "\u{200b}", "\u{ad}\u{feff}\u{2800}", "\u{3164}\u{fe0f}\u{e0020}", "\u{1c}"]
        {
            assert!(is_blank(blank), "{blank:?}");
        }
        for seen in ["x", "\u{200b}x", "é", "段", "-", "\u{1f600}"] {
            assert!(!is_blank(seen), "{seen:?}");
        }
    }

    #[test]
    fn a_cell_has_no_command_of_a_terminal() {
        assert_eq!(in_cell("a\u{1b}]0;t\u{7}"), "a\\u{1b}]0;t\\u{7}");
        assert_eq!(in_cell("=a\u{1b}"), "'=a\\u{1b}");
    }

    #[test]
    fn sizes_have_few_digits() {
        for (bytes, text) in [
            (0, "0 MB"),
            (20, "1 KB"),
            (54_752, "55 KB"),
            (999_600, "1.0 MB"),
            (4_370_528, "4.4 MB"),
            (113_932_529, "113.9 MB"),
            (999_999_999, "1.0 GB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
