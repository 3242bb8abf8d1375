//! Methods of strings, lists and dicts.

use std::rc::Rc;
use std::sync::Arc;

use super::filters::pairs;
use super::format;
use super::limits::{Budget, Fault, unsupported};
use super::passed::{Passed, int_of, int_or, optional_text, text_of};
use super::strings::{self, Place};
use super::value::{Dict, Items, Value};

/// Calls the method `value.name(...)`.
///
/// # Errors
/// An unsupported method, or arguments that do not match.
pub fn call(value: &Value, name: &'static str, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    budget.work(1)?;
    match value {
        Value::Text(text) => of_text(text, name, passed, budget),
        Value::Dict(dict) => of_dict(dict, name, passed, budget),
        Value::List(items) if name == "copy" => {
            let [] = passed.bind(name, [], 0)?;
            Value::list(items.all.clone(), budget)
        }
        Value::List(items) | Value::Tuple(items) => of_items(items, name, passed, budget),
        Value::Loop(state) if name == "cycle" => {
            let choices = positional(name, passed)?;
            match choices.len() {
                0 => Err(Fault::new("no items for cycling given")),
                count => Ok(choices[state.at.get() % count].clone()),
            }
        }
        Value::Loop(state) => {
            let now = positional(name, passed)?;
            if now.iter().any(Value::changes) {
                return Err(unsupported("`loop.changed` of a value that may change"));
            }
            let now = Items::new(now, budget)?.all;
            let mut same = state.seen.borrow().as_ref().is_some_and(|seen| seen.len() == now.len());
            if same {
                let seen = state.seen.borrow();
                for (a, b) in seen.iter().flatten().zip(&now) {
                    same &= a.equals(b, budget)?;
                }
            }
            state.seen.replace(Some(now));
            Ok(Value::Bool(!same))
        }
        Value::Cycler(cycler) => {
            let [] = passed.bind(name, [], 0)?;
            match name {
                "next" => {
                    let at = cycler.1.get();
                    cycler.1.set((at + 1) % cycler.0.all.len());
                    Ok(cycler.0.all[at].clone())
                }
                "reset" => {
                    cycler.1.set(0);
                    Ok(Value::None)
                }
                other => Err(unsupported(&format!("the attribute `{other}` of a cycler"))),
            }
        }
        other => Err(unsupported(&format!("the method `{name}` of a {}", other.type_name()))),
    }
}

fn positional(name: &str, passed: Passed) -> Result<Vec<Value>, Fault> {
    match passed.named.first() {
        Some((named, _)) => Err(Fault::new(format!("{name}() got an unexpected keyword argument '{named}'"))),
        None => Ok(passed.positional),
    }
}

fn of_items(items: &Items, name: &str, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [wanted] = passed.bind(name, [""], 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    let mut count = 0;
    for (i, item) in items.all.iter().enumerate() {
        if item.equals(&wanted, budget)? {
            if name == "index" {
                return Ok(Value::Int(i as i128));
            }
            count += 1;
        }
    }
    match name {
        "count" => Ok(Value::Int(count)),
        "index" => Err(Fault::new("the value is not in the list")),
        other => Err(unsupported(&format!("the method `{other}` of a list"))),
    }
}

fn of_dict(dict: &Rc<Dict>, name: &'static str, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    if name == "get" {
        let [key, default] = passed.bind(name, ["", ""], 1)?;
        let found = dict.get(&key.unwrap_or(Value::None).key(budget)?).cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    let [] = passed.bind(name, [], 0)?;
    let all = |all| Ok::<_, Fault>(Rc::new(Items::new(all, budget)?));
    match name {
        "keys" => Ok(Value::View("dict_keys", all(dict.pairs.iter().map(|(key, _)| key.clone()).collect())?)),
        "values" => Ok(Value::View("dict_values", all(dict.pairs.iter().map(|(_, value)| value.clone()).collect())?)),
        "items" => Ok(Value::View("dict_items", all(pairs(dict, budget)?)?)),
        "copy" => Ok(Value::Dict(Rc::clone(dict))),
        other => Err(unsupported(&format!("the method `{other}` of a dict"))),
    }
}

fn of_text(text: &Arc<str>, name: &'static str, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    budget.make(2 * text.len() + 64)?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = passed.bind(name, [""], 0)?;
            let chars = optional_text("the characters to strip", chars.as_ref())?;
            budget.work(text.len().saturating_mul(chars.as_ref().map_or(1, |chars| chars.len())) / 64)?;
            Ok(Value::text(strings::strip(text, chars.as_deref(), name != "rstrip", name != "lstrip")))
        }
        "split" | "rsplit" => split(text, name == "rsplit", passed, budget),
        "splitlines" => {
            let [keep] = passed.bind(name, ["keepends"], 0)?;
            texts(&strings::lines(text, keep.is_some_and(|keep| keep.truth())), budget)
        }
        "partition" | "rpartition" => partition(text, name == "rpartition", passed, budget),
        "replace" => {
            let [old, new, count] = passed.bind(name, ["", "", ""], 2)?;
            let old = text_of("the text to replace", &old.unwrap_or(Value::None))?;
            let new = text_of("the replacement", &new.unwrap_or(Value::None))?;
            Ok(Value::text(&strings::replace(text, &old, &new, int_or(count.as_ref(), -1)?, budget)?))
        }
        "startswith" | "endswith" => affix(text, name == "startswith", passed, budget),
        "removeprefix" | "removesuffix" => {
            let [affix] = passed.bind(name, [""], 1)?;
            let affix = text_of("the text to remove", &affix.unwrap_or(Value::None))?;
            let left = if name == "removeprefix" { text.strip_prefix(&*affix) } else { text.strip_suffix(&*affix) };
            Ok(Value::text(left.unwrap_or(text)))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => find(text, name, passed, budget),
        "join" => {
            let [all] = passed.bind(name, [""], 1)?;
            let mut parts = Vec::new();
            for (i, item) in all.unwrap_or(Value::None).items(budget)?.iter().enumerate() {
                parts.push(item.as_text().cloned().ok_or_else(|| {
                    Fault::new(format!("sequence item {i}: expected str instance, {} found", item.type_name()))
                })?);
            }
            Ok(Value::text(&strings::join(text, &parts, budget)?))
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = passed.bind(name, ["", ""], 1)?;
            let fill = optional_text("the fill character", fill.as_ref())?;
            let mut fill = fill.as_deref().unwrap_or(" ").chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return Err(Fault::new("The fill character must be exactly one character long"));
            };
            let place = match name {
                "center" => Place::Center,
                "ljust" => Place::Left,
                _ => Place::Right,
            };
            Ok(Value::text(&strings::pad(text, int_of(&width.unwrap_or(Value::None))?, fill, place, budget)?))
        }
        "zfill" => {
            let [width] = passed.bind(name, [""], 1)?;
            let sign = usize::from(text.starts_with(['+', '-']));
            let width = int_of(&width.unwrap_or(Value::None))?.saturating_sub(sign as i128);
            let digits = strings::pad(&text[sign..], width, '0', Place::Right, budget)?;
            Ok(Value::text(&format!("{}{digits}", &text[..sign])))
        }
        "expandtabs" => {
            let [width] = passed.bind(name, ["tabsize"], 0)?;
            Ok(Value::text(&strings::expand_tabs(text, int_or(width.as_ref(), 8)?, budget)?))
        }
        "format" => format::format(text, &passed, budget),
        "encode" | "format_map" | "maketrans" | "translate" => Err(unsupported(&format!("the method `{name}`"))),
        _ => {
            let [] = passed.bind(name, [], 0)?;
            without_arguments(text, name)
        }
    }
}

fn without_arguments(text: &str, name: &str) -> Result<Value, Fault> {
    Ok(match name {
        "upper" => Value::text(&text.to_uppercase()),
        "lower" => Value::text(&text.to_lowercase()),
        "title" => Value::text(&strings::titled(text)?),
        "capitalize" => Value::text(&strings::capitalized(text)?),
        "swapcase" => Value::text(&strings::swapped(text)?),
        "casefold" if text.is_ascii() => Value::text(&text.to_ascii_lowercase()),
        "isupper" | "islower" => Value::Bool(strings::is_case(text, name == "isupper")),
        "isascii" => Value::Bool(text.is_ascii()),
        "isalpha" | "isalnum" | "isdigit" | "isdecimal" | "isnumeric" | "isspace" => strings::is_all(text, name)?,
        other => return Err(unsupported(&format!("the method `{other}` of this string"))),
    })
}

fn texts(all: &[&str], budget: &Budget) -> Result<Value, Fault> {
    budget.make(all.len() * 64)?;
    Value::list(all.iter().map(|part| Value::text(part)).collect(), budget)
}

fn split(text: &str, from_end: bool, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [separator, most] = passed.bind("split", ["sep", "maxsplit"], 0)?;
    let most = usize::try_from(int_or(most.as_ref(), -1)?).ok();
    // Each part becomes a value, however short it is.
    budget.make(text.len().saturating_mul(16))?;
    let Some(separator) = optional_text("a separator", separator.as_ref())? else {
        let split = if from_end { strings::split_words_from_end } else { strings::split_words };
        return texts(&split(text, most), budget);
    };
    if separator.is_empty() {
        return Err(Fault::new("empty separator"));
    }
    let parts = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut all: Vec<&str> = match from_end {
        false => text.splitn(parts, &*separator).collect(),
        true => text.rsplitn(parts, &*separator).collect(),
    };
    if from_end {
        all.reverse();
    }
    texts(&all, budget)
}

fn partition(text: &str, from_end: bool, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [separator] = passed.bind("partition", [""], 1)?;
    let separator = text_of("a separator", &separator.unwrap_or(Value::None))?;
    if separator.is_empty() {
        return Err(Fault::new("empty separator"));
    }
    let found = if from_end { text.rsplit_once(&*separator) } else { text.split_once(&*separator) };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Value::tuple(parts.iter().map(|part| Value::text(part)).collect(), budget)
}

/// The part of a text between two optional positions in characters, and the number of characters before it.
fn between<'t>(text: &'t str, start: Option<&Value>, end: Option<&Value>) -> Result<Option<(&'t str, usize)>, Fault> {
    let given = |value: Option<&Value>| match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => int_of(value).map(Some),
    };
    let (start, end) = (given(start)?, given(end)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let length = text.chars().count() as i128;
    let place = |at: i128| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)).min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i128| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((&text[byte(start)..byte(end)], start as usize)))
}

fn find(text: &str, name: &str, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [wanted, start, end] = passed.bind(name, ["", "", ""], 1)?;
    let wanted = text_of("the text to search for", &wanted.unwrap_or(Value::None))?;
    budget.work(text.len() / 16)?;
    let within = between(text, start.as_ref(), end.as_ref())?;
    if name == "count" {
        return Ok(Value::Int(within.map_or(0, |(part, _)| part.matches(&*wanted).count()) as i128));
    }
    let found = within.and_then(|(part, before)| {
        let at = if name.starts_with('r') { part.rfind(&*wanted) } else { part.find(&*wanted) };
        at.map(|at| (before + part[..at].chars().count()) as i128)
    });
    match found {
        Some(at) => Ok(Value::Int(at)),
        None if name.ends_with("index") => Err(Fault::new("substring not found")),
        None => Ok(Value::Int(-1)),
    }
}

fn affix(text: &str, at_start: bool, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [affix, start, end] = passed.bind("startswith", ["", "", ""], 1)?;
    let wanted = match affix.unwrap_or(Value::None) {
        Value::Tuple(items) => items.all.iter().map(|item| text_of("a prefix", item)).collect::<Result<Vec<_>, _>>()?,
        Value::Text(text) => vec![text],
        other => {
            let kind = other.type_name();
            return Err(Fault::new(format!("first arg must be str or a tuple of str, not {kind}")));
        }
    };
    budget.work(wanted.len())?;
    let Some((part, _)) = between(text, start.as_ref(), end.as_ref())? else { return Ok(Value::Bool(false)) };
    let holds = |affix: &Arc<str>| if at_start { part.starts_with(&**affix) } else { part.ends_with(&**affix) };
    Ok(Value::Bool(wanted.iter().any(holds)))
}
