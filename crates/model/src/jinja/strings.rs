//! Python's string functions, where Rust's differ.

use std::sync::Arc;

use super::lexer::is_space;
use super::limits::{Budget, Fault, unsupported};
use super::value::Value;

/// Whether Python's `splitlines` ends a line at this character.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `splitlines`.
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends_line).unwrap_or(rest.len());
        let ending = match &rest[end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        all.push(&rest[..if keep_ends { end + ending } else { end }]);
        rest = &rest[end + ending..];
    }
    all
}

/// `split` without a separator.
pub fn split_words(text: &str, most: Option<usize>) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if Some(all.len()) == most {
            all.push(rest);
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        all.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    all
}

/// `rsplit` without a separator.
pub fn split_words_from_end(text: &str, most: Option<usize>) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if Some(all.len()) == most {
            all.push(rest);
            break;
        }
        let start = rest.char_indices().rfind(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
        all.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    all.reverse();
    all
}

/// `strip`, `lstrip` or `rstrip`: removes white space, or the given characters.
pub fn strip<'t>(text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

/// Pads a text to a width.
///
/// # Errors
/// If the width is too large.
pub fn pad(text: &str, width: i128, fill: char, place: Place, budget: &Budget) -> Result<String, Fault> {
    let length = text.chars().count() as i128;
    let missing = width.saturating_sub(length).max(0);
    let left = match place {
        Place::Left => 0,
        Place::Right => missing,
        Place::Center => missing / 2 + (missing & width & 1),
    };
    let mut out = repeated(fill.encode_utf8(&mut [0; 4]), left, budget)?;
    budget.make(text.len())?;
    out.push_str(text);
    out.push_str(&repeated(fill.encode_utf8(&mut [0; 4]), missing - left, budget)?);
    Ok(out)
}

/// Where a text is placed within its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the left.
    Left,
    /// At the right.
    Right,
    /// In the middle.
    Center,
}

/// Repeats a text.
///
/// # Errors
/// If the result is too long.
pub fn repeated(text: &str, times: i128, budget: &Budget) -> Result<String, Fault> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    budget.make(text.len().saturating_mul(times))?;
    Ok(if text.is_empty() { String::new() } else { text.repeat(times) })
}

/// `replace`, at most `most` times unless that is negative.
///
/// # Errors
/// If the result is too long.
pub fn replace(text: &str, old: &str, new: &str, most: i128, budget: &Budget) -> Result<String, Fault> {
    let most = usize::try_from(most).ok();
    budget.work(text.len() / 16)?;
    let found = match most {
        Some(most) => text.matches(old).take(most).count(),
        None => text.matches(old).count(),
    };
    budget.make(found.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(text.replacen(old, new, found))
}

/// Joins texts.
///
/// # Errors
/// If the result is too long.
pub fn join(separator: &str, all: &[Arc<str>], budget: &Budget) -> Result<String, Fault> {
    let parts: usize = all.iter().map(|part| part.len()).sum();
    budget.make(parts.saturating_add(separator.len().saturating_mul(all.len())))?;
    Ok(all.join(separator))
}

/// The first letter of a word, in title case.
fn title_letter(c: char) -> Result<String, Fault> {
    let upper: String = c.to_uppercase().collect();
    let has_own_form = upper.chars().count() > 1
        || matches!(c, 'Ǆ'..='ǌ' | 'Ǳ'..='ǳ' | '\u{10d0}'..='\u{10ff}' | '\u{1f80}'..='\u{1faf}')
        || matches!(c, '\u{1fb3}' | '\u{1fbc}' | '\u{1fc3}' | '\u{1fcc}' | '\u{1ff3}' | '\u{1ffc}');
    if has_own_form { Err(unsupported(&format!("the title form of '{c}'"))) } else { Ok(upper) }
}

/// `capitalize`.
///
/// # Errors
/// A letter whose title case is not known.
pub fn capitalized(text: &str) -> Result<String, Fault> {
    let Some(first) = text.chars().next() else { return Ok(String::new()) };
    let lower = text.to_lowercase();
    let of_first: usize = first.to_lowercase().map(char::len_utf8).sum();
    Ok(title_letter(first)? + lower.get(of_first..).unwrap_or(""))
}

/// The method `title`.
///
/// # Errors
/// A letter whose title case is not known.
pub fn titled(text: &str) -> Result<String, Fault> {
    no_sigma(text)?;
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        let cased = c.is_lowercase() || c.is_uppercase();
        match inside {
            true => out.extend(c.to_lowercase()),
            false if cased => out.push_str(&title_letter(c)?),
            false => out.push(c),
        }
        inside = cased;
    }
    Ok(out)
}

/// The filter `title`: words begin after white space, brackets and hyphens.
pub fn titled_words(text: &str) -> String {
    let splits = |c: char| is_space(c) || "-({[<".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| splits(c) != splits(first)).unwrap_or(rest.len());
        out.extend(first.to_uppercase());
        out.push_str(&rest[first.len_utf8()..end].to_lowercase());
        rest = &rest[end..];
    }
    out
}

/// `swapcase`.
///
/// # Errors
/// A capital sigma, whose lower case depends on its place in the word.
pub fn swapped(text: &str) -> Result<String, Fault> {
    no_sigma(text)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else if c.is_lowercase() {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    Ok(out)
}

fn no_sigma(text: &str) -> Result<(), Fault> {
    if text.contains('Σ') { Err(unsupported("this method on a text with 'Σ'")) } else { Ok(()) }
}

/// `expandtabs`.
///
/// # Errors
/// If the result is too long.
pub fn expand_tabs(text: &str, width: i128, budget: &Budget) -> Result<String, Fault> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        if c == '\t' {
            let blanks = if width > 0 { width - column % width } else { 0 };
            out.push_str(&repeated(" ", blanks, budget)?);
            column += blanks;
        } else {
            budget.make(c.len_utf8())?;
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(out)
}

/// `isalpha`, `isdigit` and similar methods.
///
/// # Errors
/// Characters beyond ASCII for which Rust cannot tell what Python says.
pub fn is_all(text: &str, method: &str) -> Result<Value, Fault> {
    let mut any = false;
    for c in text.chars() {
        any = true;
        if !is_of(c, method)? {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(any))
}

/// Like [`is_all`], for one character.
///
/// # Errors
/// Those of [`is_all`].
pub fn is_of(c: char, method: &str) -> Result<bool, Fault> {
    let unsure = || unsupported(&format!("`{method}` of the character U+{:04X}", u32::from(c)));
    match method {
        "isspace" => Ok(is_space(c)),
        "isalpha" if c.is_ascii() => Ok(c.is_ascii_alphabetic()),
        "isalnum" if c.is_ascii() => Ok(c.is_ascii_alphanumeric()),
        "isalpha" | "isalnum" => {
            let letter = c.is_lowercase() || c.is_uppercase() || is_plain_letter(c);
            match letter || !(c.is_alphabetic() || c.is_numeric()) {
                true => Ok(letter),
                false => Err(unsure()),
            }
        }
        _ if c.is_ascii() => Ok(c.is_ascii_digit()),
        "isnumeric" if c.is_alphabetic() => Err(unsure()),
        _ if c.is_numeric() => Err(unsure()),
        _ => Ok(false),
    }
}

/// Letters of scripts without case (Japanese, Chinese, Korean, Hebrew, Arabic), which Python counts as letters too.
fn is_plain_letter(c: char) -> bool {
    matches!(c, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}')
        || matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{5d0}'..='\u{5ea}' | '\u{621}'..='\u{63a}')
}

/// Whether a character is upper case, or lower case.
type IsCase = fn(char) -> bool;

/// `isupper` (or `islower`): some characters are of this case, and none of the other.
pub fn is_case(text: &str, upper: bool) -> bool {
    let (this, other): (IsCase, IsCase) =
        if upper { (char::is_uppercase, char::is_lowercase) } else { (char::is_lowercase, char::is_uppercase) };
    text.chars().any(this) && !text.chars().any(|c| other(c) || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ'))
}
