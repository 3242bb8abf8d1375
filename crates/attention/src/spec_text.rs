//! How values are written in specs: text between double quotes is one value, with commas, blanks and braces taken literally.
//!
//! This module splits the text of a spec; `spec` interprets the parts.

use std::borrow::Cow;

/// The parameter set by a first part without a key, if it is a [command](command_of): `external:my.py`.
pub(crate) const COMMAND: &str = "cmd";

/// Splits at commas outside braces and quotes; returns nothing for an empty text. `None` if braces or quotes do not match.
pub(crate) fn split_at_commas(text: &str) -> Option<Vec<&str>> {
    let (mut depth, mut is_quoted, mut start, mut parts) = (0usize, false, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(&text[start..]);
    }
    (depth == 0 && !is_quoted).then_some(parts)
}

/// Splits a method's canonical parameters, as in records, into parts `key=value`.
pub fn split_params(params: &str) -> Vec<&str> {
    split_at_commas(params).unwrap_or_else(|| params.split(',').collect())
}

/// Iterates over the characters outside quotes, with their byte positions.
pub(crate) fn outside_quotes(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut is_quoted = false;
    text.char_indices().filter(move |(_, c)| {
        is_quoted ^= *c == '"';
        !is_quoted && *c != '"'
    })
}

/// Returns the text between the quotes of a value that is quoted as a whole.
pub fn unquoted(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"').filter(|inner| !inner.contains('"'))
}

/// Returns a value as a spec must contain it: in quotes if it would have another meaning without them.
pub(crate) fn quoted(value: &str) -> Cow<'_, str> {
    let is_special = |c: char| c.is_whitespace() || matches!(c, ',' | '=' | '{' | '}' | '>');
    let is_range = value.match_indices("..").any(|(at, _)| !value[at + 2..].starts_with('/'));
    let splits = value.match_indices('+').any(|(at, _)| begins_method(&value[at + 1..]));
    match value.contains(is_special) || is_range || splits {
        true => Cow::Owned(format!("\"{value}\"")),
        false => Cow::Borrowed(value),
    }
}

/// Whether a method's name may start here: names start with two letters.
pub(crate) fn begins_method(text: &str) -> bool {
    text.bytes().take(2).filter(u8::is_ascii_alphabetic).count() == 2
}

/// Returns the command in a part without a key: a quoted text, or a file name, which contains a `/` or ends in letters after a
/// dot.
pub(crate) fn command_of(part: &str) -> Option<&str> {
    let is_extension = |end: &str| !end.is_empty() && end.bytes().all(|b| b.is_ascii_alphabetic());
    let has_extension = || part.rsplit_once('.').is_some_and(|(stem, end)| !stem.is_empty() && is_extension(end));
    let is_file = || !part.contains(['=', '"', '{', '}']) && (part.contains('/') || has_extension());
    unquoted(part).or_else(|| is_file().then_some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_and_braces_belong_to_a_value() {
        let split = |text| split_at_commas(text);
        assert_eq!(split(r#"cmd="a, {b",k={1,2}"#), Some(vec![r#"cmd="a, {b""#, "k={1,2}"]));
        assert_eq!(split(""), Some(vec![]));
        assert_eq!(split("a,"), Some(vec!["a", ""]));
        for text in [r#"cmd="a,k=1"#, "k={1,2", "k=1}"] {
            assert_eq!(split(text), None, "{text}");
        }
        assert_eq!(split_params(r#"k=1,x="y"#), ["k=1", r#"x="y"#], "what is not well formed is split at each comma");
    }

    #[test]
    fn only_values_that_would_mean_something_else_are_quoted() {
        for plain in ["16", "0+50%", "0-48/16", "1+3+2", "../my.py", "dir/my.py", "query_head", "../../x/y.py"] {
            assert_eq!(quoted(plain), plain);
        }
        for special in ["python3 my.py", "a,b", "x=1", "{a}", "1..5", "c+py/x", "a>b"] {
            assert_eq!(quoted(special), format!("\"{special}\""));
        }
    }

    #[test]
    fn a_part_without_a_key_is_a_command_if_it_names_a_file_or_is_quoted() {
        for (part, command) in [
            ("my.py", Some("my.py")),
            ("../bin/my-method", Some("../bin/my-method")),
            (r#""python3 -u x""#, Some("python3 -u x")),
            (r#""python3 x --n=1""#, Some("python3 x --n=1")),
            ("python3", None),
            ("k", None),
            ("0.05", None),
            ("density=a/b", None),
            (r#""a"b"#, None),
        ] {
            assert_eq!(command_of(part), command, "{part}");
        }
    }
}
