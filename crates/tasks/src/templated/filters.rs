//! Filters for templates besides Jinja's own, and how values are written into a text.
//!
//! A filter that cannot be applied fails with [`ErrorKind::InvalidOperation`] and a message for the user.

use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Filled};
use regex::Regex;

use crate::metrics::{python, python_literal};
use spattn_base::text::is_blank;

/// Adds all filters to an environment, and makes it an error to write a value that [`is_text`] rejects.
pub(super) fn add_to(env: &mut Environment<'static>) {
    env.set_formatter(written_out);
    env.add_filter("without_markup", without_markup);
    env.add_filter("stripped", stripped);
    env.add_filter("found", found_in);
    env.add_filter("holding", holding);
    env.add_filter("four", four);
    env.add_filter("said", said);
    env.add_filter("with_letter", with_letter);
    env.add_filter("number_list", number_list);
    env.add_filter("literal", literal);
}

/// Whether a value can be written into a prompt: a text, a number or a boolean.
pub(super) fn is_text(value: &Filled) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Number | ValueKind::Bool)
}

/// Writes a value into a text. Values other than texts, numbers and booleans are errors, since they would be written in a program's
/// notation: `none`, or a list in brackets.
fn written_out(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Filled) -> Result<(), Error> {
    if is_text(value) || value.is_undefined() {
        return minijinja::escape_formatter(out, state, value);
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a field is {}, not text", value.kind())))
}

/// The text of a field.
fn text_of(field: &Filled) -> Result<&str, Error> {
    match field.as_str() {
        Some(text) => Ok(text),
        None if field.is_undefined() => Err(Error::from(ErrorKind::UndefinedError)),
        None => Err(Error::new(ErrorKind::InvalidOperation, "a field is not text")),
    }
}

/// Filter `stripped`: the text without white space at its ends, like Python's `str.strip`.
fn stripped(field: &Filled) -> Result<String, Error> {
    Ok(python::strip(text_of(field)?).to_owned())
}

/// Filter `found(pattern)`: the first match of a regular expression.
fn found_in(field: &Filled, pattern: &str) -> Result<String, Error> {
    let text = text_of(field)?;
    let failed = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    let pattern = Regex::new(pattern).map_err(|e| failed(e.to_string()))?;
    let found = pattern.find(text).ok_or_else(|| failed(format!("the text does not match `{pattern}`")))?;
    Ok(found.as_str().to_owned())
}

/// Filter `holding(mark)`: the text unchanged; an error if it does not contain the mark.
fn holding(field: &Filled, mark: &str) -> Result<String, Error> {
    let text = text_of(field)?;
    let none = || Error::new(ErrorKind::InvalidOperation, format!("there is no `{mark}` in the text"));
    if text.contains(mark) { Ok(text.to_owned()) } else { Err(none()) }
}

/// Filter `said`: the text unchanged; an error if it is blank.
fn said(field: &Filled) -> Result<String, Error> {
    match text_of(field)? {
        text if is_blank(text) => Err(Error::new(ErrorKind::InvalidOperation, "a field is empty or white space")),
        text => Ok(text.to_owned()),
    }
}

/// Filter `four`: true; an error if the list does not have four items, the number of options in the prompt.
fn four(choices: &Filled) -> Result<bool, Error> {
    match choices.len() {
        Some(4) => Ok(true),
        count => {
            let what = format!("{} choices, not 4", count.unwrap_or(0));
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

/// Filter `with_letter(options)`: an answer and its letter. The answer is a text, a list of the text, or a list of the text and its
/// letter.
fn with_letter(answer: &Filled, options: Vec<String>) -> Result<Vec<String>, Error> {
    const LETTERS: [&str; 4] = ["A", "B", "C", "D"];
    let answer: Vec<String> = match answer.as_str() {
        Some(text) => vec![text.to_owned()],
        None => answer.try_iter()?.map(|item| item.to_string()).collect(),
    };
    match answer.as_slice() {
        [_, letter] if LETTERS.contains(&letter.as_str()) => Ok(answer),
        [text] => {
            let at = options.iter().position(|option| option == text).and_then(|at| LETTERS.get(at));
            let none = || Error::new(ErrorKind::InvalidOperation, "the answer is none of the options");
            Ok(vec![text.clone(), (*at.ok_or_else(none)?).to_owned()])
        }
        _ => Err(Error::new(ErrorKind::InvalidOperation, "an answer is a text, or a text and its letter")),
    }
}

/// Filter `literal`: the value of a Python literal that is given as a text; other values are left unchanged.
fn literal(field: Filled) -> Result<Filled, Error> {
    let Some(text) = field.as_str() else { return Ok(field) };
    let value = python_literal::parse(text);
    let value = value.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a field is not a literal of Python"))?;
    Ok(Filled::from(Serde(value)))
}

/// Filter `number_list`: all numbers of a list and its nested lists, as one text with commas.
fn number_list(numbers: Filled) -> Result<String, Error> {
    if let Some(text) = numbers.as_str() {
        return Ok(text.to_owned());
    }
    if numbers.is_number() {
        return Ok(numbers.to_string());
    }
    let all: Vec<String> = numbers.try_iter()?.map(number_list).collect::<Result<_, _>>()?;
    Ok(all.join(", "))
}

/// Filter `without_markup`: a text of HellaSwag without WikiHow's titles and notes in brackets, as lm-eval cleans it.
fn without_markup(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some((before, inside)) = rest.split_once('[') {
        // A bracket that is not closed on its line is ordinary text.
        match inside.split_once(']').filter(|(note, _)| !note.contains('\n')) {
            Some((_, after)) => {
                kept.push_str(before);
                rest = after;
            }
            None => {
                kept.push_str(before);
                kept.push('[');
                rest = inside;
            }
        }
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}
