//! Attributes and items of values, looked up in jinja2's order and within its sandbox.

use std::rc::Rc;

use super::limits::{Budget, Fault, unsupported};
use super::value::{Dict, Loop, Value, range_length};

const TEXT: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const LIST: [&str; 11] =
    ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];
const INT: [&str; 10] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "imag",
    "numerator",
    "real",
    "to_bytes",
];
const FLOAT: [&str; 7] = ["as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"];
const VIEW: [&str; 2] = ["isdisjoint", "mapping"];
const LOOP: [&str; 2] = ["cycle", "changed"];
const CYCLER: [&str; 4] = ["next", "reset", "items", "pos"];
const OTHER: [&str; 12] = [
    "name",
    "arguments",
    "catch_kwargs",
    "catch_varargs",
    "caller",
    "explicit_caller",
    "sep",
    "used",
    "close",
    "send",
    "throw",
    "count",
];

/// Methods that change a list or dict. The sandbox refuses them.
const CHANGING: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
    "popitem",
    "setdefault",
    "update",
    "add",
];

fn methods(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Text(_) | Value::Safe(_) => &TEXT,
        Value::List(_) => &LIST,
        Value::Tuple(_) | Value::Range(..) => &TUPLE,
        Value::Dict(_) => &DICT,
        Value::Int(_) | Value::Bool(_) => &INT,
        Value::Float(_) => &FLOAT,
        Value::View(..) => &VIEW,
        Value::Loop(_) => &LOOP,
        Value::Cycler(_) => &CYCLER,
        Value::Macro(..) | Value::Joiner(_) | Value::Generator(_) => &OTHER,
        _ => &[],
    }
}

/// `value.name`.
///
/// # Errors
/// An attribute of an undefined value, or one that is not supported.
pub fn attribute(value: &Value, name: &str) -> Result<Value, Fault> {
    if let Some(found) = own_attribute(value.used()?, name)? {
        return Ok(found);
    }
    Ok(match value {
        Value::Dict(dict) => dict.get_text(name).cloned(),
        _ => None,
    }
    .unwrap_or_else(|| value.no_attribute(name)))
}

/// Like Python's `getattr`. For a dict these are its methods, not its items.
fn own_attribute(value: &Value, name: &str) -> Result<Option<Value>, Fault> {
    // The value is undefined: it can be printed and tested, and any other use is an
    // error.
    let unsafe_attribute = || {
        let what = format!("access to attribute '{name}' of '{}' object is unsafe.", value.type_name());
        Ok(Some(Value::Undefined(what.into())))
    };
    if name.starts_with("__") {
        return match value {
            Value::Dict(dict) if dict.get_text(name).is_some() => Err(unsupported(&format!("the key `{name}`"))),
            _ => unsafe_attribute(),
        };
    }
    let found = match value {
        Value::Namespace(dict) => return Ok(dict.borrow().get_text(name).cloned()),
        Value::Loop(state) => loop_attribute(state, name),
        Value::Tuple(items) if items.group && name == "grouper" => items.all.first().cloned(),
        Value::Tuple(items) if items.group && name == "list" => items.all.get(1).cloned(),
        Value::Range(start, _, _) if name == "start" => Some(Value::Int(*start)),
        Value::Range(_, stop, _) if name == "stop" => Some(Value::Int(*stop)),
        Value::Range(_, _, step) if name == "step" => Some(Value::Int(*step)),
        Value::Cycler(cycler) if name == "current" => cycler.0.all.get(cycler.1.get()).cloned(),
        _ => None,
    };
    if found.is_some() {
        return Ok(found);
    }
    let Some(method) = methods(value).iter().find(|method| **method == name) else { return Ok(None) };
    if matches!(value, Value::List(_) | Value::Dict(_)) && CHANGING.contains(method) {
        return unsafe_attribute();
    }
    match value {
        Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Loop(_) | Value::Cycler(_) => {
            Ok(Some(Value::Method(Rc::new((value.clone(), method)))))
        }
        other => Err(unsupported(&format!("the attribute `{name}` of the type {}", other.type_name()))),
    }
}

fn loop_attribute(state: &Loop, name: &str) -> Option<Value> {
    let (at, length) = (state.at.get(), state.items.len());
    let missing = |what: &str| Value::Undefined(what.into());
    Some(match name {
        "index" => Value::Int(at as i128 + 1),
        "index0" => Value::Int(at as i128),
        "revindex" => Value::Int((length - at) as i128),
        "revindex0" => Value::Int((length - at) as i128 - 1),
        "first" => Value::Bool(at == 0),
        "last" => Value::Bool(at + 1 == length),
        "length" => Value::Int(length as i128),
        "depth" => Value::Int(state.depth as i128 + 1),
        "depth0" => Value::Int(state.depth as i128),
        "previtem" if at == 0 => missing("there is no previous item"),
        "previtem" => state.items.get(at - 1)?.clone(),
        "nextitem" => state.items.get(at + 1).cloned().unwrap_or_else(|| missing("there is no next item")),
        _ => return None,
    })
}

/// `value[key]`.
///
/// # Errors
/// Those of [`attribute`].
pub fn item(value: &Value, key: &Value, budget: &Budget) -> Result<Value, Fault> {
    if let Some(found) = subscript(value.used()?, key, budget)? {
        return Ok(found);
    }
    if let Value::Text(name) = key {
        return Ok(match own_attribute(value, name)? {
            Some(found) => found,
            None => value.no_attribute(name),
        });
    }
    let mut shown = String::new();
    match key {
        Value::Int(_) | Value::Bool(_) | Value::Float(_) | Value::None => key.represent(&mut shown, budget)?,
        other => shown.push_str(other.type_name()),
    }
    Ok(Value::Undefined(format!("{} object has no element {shown}", value.type_name()).into()))
}

fn subscript(value: &Value, key: &Value, budget: &Budget) -> Result<Option<Value>, Fault> {
    Ok(match value {
        Value::Dict(dict) => match key {
            // These values cannot be hashed; jinja2 treats them as missing keys.
            Value::List(_) | Value::Dict(_) => None,
            key => dict.get(&key.key(budget)?).cloned(),
        },
        Value::List(items) | Value::Tuple(items) => {
            place(key, items.all.len()).and_then(|at| items.all.get(at).cloned())
        }
        Value::Text(text) => match key.as_int() {
            Some(_) => {
                budget.work(text.len() / 32)?;
                let at = place(key, text.chars().count());
                at.and_then(|at| text.chars().nth(at)).map(|c| Value::text(c.encode_utf8(&mut [0; 4])))
            }
            None => None,
        },
        Value::Range(start, stop, step) => {
            place(key, range_length(*start, *stop, *step)).map(|at| Value::Int(start + at as i128 * step))
        }
        Value::Safe(_) => return Err(unsupported("a character of a text that is marked as safe")),
        _ => None,
    })
}

fn place(key: &Value, length: usize) -> Option<usize> {
    let index = key.as_int()?;
    let from_start = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(from_start).ok().filter(|at| *at < length)
}

/// `value[from:to:step]`.
///
/// # Errors
/// A value without slices, or bounds that are not integers.
pub fn slice(value: &Value, bounds: [Value; 3], budget: &Budget) -> Result<Value, Fault> {
    match value.used()? {
        Value::Text(text) => {
            budget.make(4 * text.len())?;
            let chars: Vec<char> = text.chars().collect();
            let kept: String = places(&bounds, chars.len())?.map(|at| chars[at]).collect();
            Ok(Value::text(&kept))
        }
        Value::List(items) => {
            Value::list(places(&bounds, items.all.len())?.map(|at| items.all[at].clone()).collect(), budget)
        }
        Value::Tuple(items) => {
            Value::tuple(places(&bounds, items.all.len())?.map(|at| items.all[at].clone()).collect(), budget)
        }
        other => Err(unsupported(&format!("a slice of a {}", other.type_name()))),
    }
}

/// The indices of a slice, as in Python's `slice.indices`.
fn places(bounds: &[Value; 3], length: usize) -> Result<impl Iterator<Item = usize>, Fault> {
    let bound = |value: &Value| match value.used()? {
        Value::None => Ok(None),
        other => other.as_int().map(Some).ok_or_else(|| unsupported(&format!("a slice by a {}", other.type_name()))),
    };
    let step = bound(&bounds[2])?.unwrap_or(1);
    if step == 0 {
        return Err(Fault::new("slice step cannot be zero"));
    }
    let length = length as i128;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clip = |at: i128| if at < 0 { at.saturating_add(length).max(low) } else { at.min(high) };
    let start = bound(&bounds[0])?.map_or(if step > 0 { low } else { high }, clip);
    let stop = bound(&bounds[1])?.map_or(if step > 0 { high } else { low }, clip);
    let count = range_length(start, stop, step);
    Ok((0..count as i128).filter_map(move |i| usize::try_from(start + i * step).ok()))
}

/// Makes a dict of these pairs.
///
/// # Errors
/// If it is too large.
pub fn dict_of(pairs: impl IntoIterator<Item = (Value, Value)>, budget: &Budget) -> Result<Dict, Fault> {
    let mut dict = Dict::default();
    for (name, value) in pairs {
        dict.set(name, value, budget)?;
    }
    Ok(dict)
}
