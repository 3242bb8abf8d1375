//! Filters: `value|name`.
//!
//! The file is long because there are many filters, each a short function of its own.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::Operator;
use super::filter_names;
use super::format::{percent, truncated};
use super::json::to_json;
use super::limits::{Budget, Fault, unsupported};
use super::lookup;
use super::numbers;
use super::passed::{Passed, int_of, int_or, optional_text, text_of};
use super::predicates;
use super::strings::{self, Place};
use super::value::{Dict, Items, Value};

/// Applies the filter `value|name(...)`.
///
/// # Errors
/// An unknown or unsupported filter, or a value that it cannot be applied to.
pub fn call(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    budget.work(1)?;
    match name {
        "upper" | "lower" | "capitalize" | "title" | "trim" | "center" | "wordcount" | "truncate" | "indent"
        | "replace" | "urlencode" | "escape" | "e" | "safe" | "forceescape" | "string" | "format" => {
            of_text(name, value, passed, budget)
        }
        "abs" | "int" | "float" | "round" | "sum" | "min" | "max" => of_numbers(name, value, passed, budget),
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => of_each(name, value, passed, budget),
        "tojson" => to_json(value, passed, budget),
        "default" | "d" => {
            let [default, boolean] = passed.bind(name, ["default_value", "boolean"], 0)?;
            let given = match boolean.is_some_and(|boolean| boolean.truth()) {
                true => value.truth(),
                false => !matches!(value, Value::Undefined(_)),
            };
            Ok(if given { value.clone() } else { default.unwrap_or_else(|| Value::text("")) })
        }
        "attr" => {
            let [attribute] = passed.bind(name, ["name"], 1)?;
            let attribute = text_of("the name of an attribute", &attribute.unwrap_or(Value::None))?;
            match value {
                // The items of a dict are not its attributes.
                Value::Dict(_) => lookup::item(&Value::Dict(Rc::default()), &Value::Text(attribute), budget),
                other => lookup::attribute(other, &attribute),
            }
        }
        _ => of_sequence(name, value, passed, budget),
    }
}

// --- Strings ---

fn of_text(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    if matches!(value, Value::Safe(_)) {
        return match name {
            "escape" | "e" | "safe" | "string" => Ok(value.clone()),
            _ => Err(unsupported(&format!("the filter `{name}` on a text that is marked as safe"))),
        };
    }
    match name {
        "indent" => return indent(value, passed, budget),
        "truncate" => return truncate(value, passed, budget),
        _ => {}
    }
    let text = value.to_text(budget)?;
    budget.make(2 * text.len())?;
    Ok(Value::text(&match name {
        "trim" => {
            let [chars] = passed.bind(name, ["chars"], 0)?;
            let chars = optional_text("the characters to trim", chars.as_ref())?;
            budget.work(text.len().saturating_mul(chars.as_ref().map_or(1, |chars| chars.len())) / 64)?;
            strings::strip(&text, chars.as_deref(), true, true).to_owned()
        }
        "center" => {
            let [width] = passed.bind(name, ["width"], 0)?;
            strings::pad(&text, int_or(width.as_ref(), 80)?, ' ', Place::Center, budget)?
        }
        "replace" => {
            let [old, new, count] = passed.bind(name, ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None).to_text(budget)?, new.unwrap_or(Value::None).to_text(budget)?);
            let count = match count {
                None | Some(Value::None) => -1,
                Some(count) => int_of(&count)?,
            };
            strings::replace(&text, &old, &new, count, budget)?
        }
        "format" => {
            let given = match (passed.positional.is_empty(), passed.named.is_empty()) {
                (false, false) => {
                    return Err(Fault::new("can't handle positional and keyword arguments at the same time"));
                }
                (true, false) => {
                    let pairs = passed.named.into_iter().map(|(name, value)| (Value::Text(name), value));
                    Value::Dict(Rc::new(lookup::dict_of(pairs, budget)?))
                }
                _ => Value::tuple(passed.positional, budget)?,
            };
            return percent(&text, &given, budget);
        }
        _ => {
            let [] = passed.bind(name, [], 0)?;
            match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "capitalize" => strings::capitalized(&text)?,
                "title" => strings::titled_words(&text),
                "wordcount" => return word_count(&text),
                "urlencode" => url_encoded(value, &text)?,
                "escape" | "e" | "forceescape" => return Ok(Value::Safe(escaped(&text, budget)?.into())),
                "safe" => return Ok(Value::Safe(text)),
                _ => return Ok(Value::Text(text)),
            }
        }
    }))
}

fn indent(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [width, first, blank] = passed.bind("indent", ["width", "first", "blank"], 0)?;
    let text = text_of("the text to indent", value)?;
    let indention = match width {
        None => "    ".into(),
        Some(Value::Text(text)) => text,
        Some(width) => strings::repeated(" ", int_of(&width)?, budget)?.into(),
    };
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let (first, blank) = (truth(first), truth(blank));
    let with_end = format!("{text}\n");
    let lines = strings::lines(&with_end, false);
    budget.make(lines.len().saturating_mul(indention.len() + 1).saturating_add(text.len()))?;
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(Value::text(&out))
}

fn truncate(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [length, kill, end, leeway] = passed.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let text = text_of("the text to truncate", value)?;
    let length = int_or(length.as_ref(), 255)?;
    let end = optional_text("the end", end.as_ref())?.unwrap_or_else(|| "...".into());
    let leeway = match leeway {
        None | Some(Value::None) => 5,
        Some(leeway) => int_of(&leeway)?,
    };
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return Err(Fault::new(format!("truncate: expected a length of {end_length} or more and no negative leeway")));
    }
    budget.make(text.len())?;
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let kept = usize::try_from(length - end_length).unwrap_or(usize::MAX);
    let cut = text.char_indices().nth(kept).map_or(&*text, |(at, _)| &text[..at]);
    let cut = match kill.is_some_and(|kill| kill.truth()) {
        true => cut,
        false => cut.rsplit_once(' ').map_or(cut, |(before, _)| before),
    };
    Ok(Value::text(&format!("{cut}{end}")))
}

fn word_count(text: &str) -> Result<Value, Fault> {
    let mut words = 0;
    let mut inside = false;
    for c in text.chars() {
        let part = c == '_' || strings::is_of(c, "isalnum")?;
        words += i128::from(part && !inside);
        inside = part;
    }
    Ok(Value::Int(words))
}

fn url_encoded(value: &Value, text: &str) -> Result<String, Fault> {
    if !matches!(value, Value::Text(_)) {
        return Err(unsupported("the filter `urlencode` of a value that is not a string"));
    }
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

fn escaped(text: &str, budget: &Budget) -> Result<String, Fault> {
    budget.make(5 * text.len())?;
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

// --- Numbers ---

fn of_numbers(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    match name {
        "abs" => {
            let [] = passed.bind(name, [], 0)?;
            match value.used()? {
                Value::Float(number) => Ok(Value::Float(number.abs())),
                other => match other.as_int().map(i128::checked_abs) {
                    Some(Some(size)) => Ok(Value::Int(size)),
                    Some(None) => Err(unsupported("an integer of more than 127 bits")),
                    None => Err(Fault::new(format!("bad operand type for abs(): '{}'", other.type_name()))),
                },
            }
        }
        "int" => to_int(value, passed),
        "float" => {
            let [default] = passed.bind(name, ["default"], 0)?;
            let found = match value.used()? {
                Value::Text(text) => numbers::parse_float(text)?,
                other => other.as_float(),
            };
            Ok(found.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let [precision, method] = passed.bind(name, ["precision", "method"], 0)?;
            let digits = int_or(precision.as_ref(), 0)?;
            match optional_text("the method", method.as_ref())?.as_deref() {
                None | Some("common") => numbers::round(value, digits),
                Some(way @ ("ceil" | "floor")) => round_to(value, digits, way == "ceil"),
                Some(_) => Err(Fault::new("method must be common, ceil or floor")),
            }
        }
        "sum" => {
            let [attribute, start] = passed.bind(name, ["attribute", "start"], 0)?;
            let path = Path::of(attribute)?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if matches!(sum, Value::Text(_)) {
                return Err(Fault::new("sum() can't sum strings [use ''.join(seq) instead]"));
            }
            for item in value.items(budget)? {
                sum = numbers::arithmetic(Operator::Add, &sum, &path.value(item, None, budget)?, budget)?;
            }
            Ok(sum)
        }
        _ => {
            let [sensitive, attribute] = passed.bind(name, ["case_sensitive", "attribute"], 0)?;
            let path = Path::of(attribute)?.folding(!sensitive.is_some_and(|sensitive| sensitive.truth()));
            best(value, &path, name == "min", budget)
        }
    }
}

fn to_int(value: &Value, passed: Passed) -> Result<Value, Fault> {
    let [default, base] = passed.bind("int", ["default", "base"], 0)?;
    if int_or(base.as_ref(), 10)? != 10 {
        return Err(unsupported("the filter `int` with a base"));
    }
    let found = match value.used()? {
        Value::Text(text) => match numbers::parse_int(text)? {
            Some(found) => Some(found),
            None => match numbers::parse_float(text)?.filter(|number| number.is_finite()) {
                Some(number) => Some(truncated(number)?),
                None => None,
            },
        },
        Value::Float(number) if number.is_nan() => None,
        Value::Float(number) => Some(truncated(*number)?),
        other => other.as_int(),
    };
    Ok(found.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

fn round_to(value: &Value, digits: i128, up: bool) -> Result<Value, Fault> {
    let number = value.used()?.as_float().ok_or_else(|| Fault::new("must be real number"))?;
    if !(0..=15).contains(&digits) || number.abs() > 1e15 {
        return Err(unsupported("rounding of so large numbers or to so many digits"));
    }
    let scale = 10f64.powi(digits as i32);
    let scaled = number * scale;
    Ok(Value::Float(if up { scaled.ceil() } else { scaled.floor() } / scale))
}

fn best(value: &Value, path: &Path, least: bool, budget: &Budget) -> Result<Value, Fault> {
    let mut best: Option<(Value, Value)> = None;
    let symbol = if least { "<" } else { ">" };
    for item in value.items(budget)? {
        let key = path.value(item.clone(), None, budget)?;
        let better = match &best {
            Some((_, other)) => predicates::compare(symbol, &key, other, budget)?,
            None => true,
        };
        if better {
            best = Some((item, key));
        }
    }
    Ok(best.map_or_else(|| Value::Undefined("No aggregated item, sequence was empty.".into()), |(item, _)| item))
}

// --- Each item ---

/// The attribute of each item that a filter uses, such as `function.name`.
#[derive(Debug, Default)]
struct Path {
    parts: Vec<Value>,
    fold: bool,
}

impl Path {
    fn of(attribute: Option<Value>) -> Result<Self, Fault> {
        let parts = match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Text(text)) => text.split('.').map(part).collect(),
            Some(index @ Value::Int(_)) => vec![index],
            Some(other) => return Err(Fault::new(format!("an attribute cannot be a {}", other.type_name()))),
        };
        Ok(Self { parts, fold: false })
    }

    /// The same path; if `fold`, its strings are compared in lower case.
    fn folding(self, fold: bool) -> Self {
        Self { fold, ..self }
    }

    fn value(&self, item: Value, default: Option<&Value>, budget: &Budget) -> Result<Value, Fault> {
        let mut item = item;
        for part in &self.parts {
            item = lookup::item(&item, part, budget)?;
            if let (Value::Undefined(_), Some(default)) = (&item, default) {
                item = default.clone();
            }
        }
        match &item {
            Value::Text(text) if self.fold => {
                budget.make(text.len())?;
                Ok(Value::text(&text.to_lowercase()))
            }
            _ => Ok(item),
        }
    }
}

fn part(text: &str) -> Value {
    match !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().map_or_else(|_| Value::text(text), Value::Int),
        false => Value::text(text),
    }
}

fn of_each(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    if !value.truth() {
        return Value::generator(Vec::new(), budget);
    }
    let all = match name {
        "map" => mapped(value, passed, budget)?,
        _ => selected(name, value, passed, budget)?,
    };
    Value::generator(all, budget)
}

fn mapped(value: &Value, passed: Passed, budget: &Budget) -> Result<Vec<Value>, Fault> {
    let mut passed = passed;
    if passed.positional.is_empty() {
        let [attribute, default] = passed.bind("map", ["attribute", "default"], 0)?;
        let attribute = attribute.ok_or_else(|| Fault::new("map requires a filter argument"))?;
        let path = Path::of(Some(attribute))?;
        let default = default.filter(|default| !matches!(default, Value::None));
        return value.items(budget)?.into_iter().map(|item| path.value(item, default.as_ref(), budget)).collect();
    }
    let filter = text_of("the name of a filter", &passed.positional.remove(0))?;
    if !filter_names::is_known(&filter) || matches!(&*filter, "map" | "select" | "reject" | "selectattr" | "rejectattr")
    {
        return Err(unsupported(&format!("`map` with the filter '{}'", super::value::shortened(&filter))));
    }
    value.items(budget)?.iter().map(|item| call(&filter, item, passed.clone(), budget)).collect()
}

fn selected(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Vec<Value>, Fault> {
    let mut passed = passed;
    let path = match name.ends_with("attr") {
        true if passed.positional.is_empty() => return Err(Fault::new("Missing parameter for attribute name")),
        true => Path::of(Some(passed.positional.remove(0)))?,
        false => Path::default(),
    };
    let test = match passed.positional.is_empty() {
        true => None,
        false => Some(text_of("the name of a test", &passed.positional.remove(0))?),
    };
    if let Some(unknown) = test.as_ref().filter(|test| !predicates::is_known(test)) {
        return Err(Fault::new(format!("no test named '{}'", super::value::shortened(unknown))));
    }
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    for item in value.items(budget)? {
        let looked_at = path.value(item.clone(), None, budget)?;
        let holds = match &test {
            Some(test) => predicates::call(test, &looked_at, passed.clone(), budget)?,
            None => looked_at.truth(),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Ok(kept)
}

// --- Sequences ---

fn of_sequence(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    match name {
        "join" => join(value, passed, budget),
        "sort" => sort(value, passed, budget),
        "dictsort" => sort_dict(value, passed, budget),
        "unique" => unique(value, passed, budget),
        "groupby" => group(value, passed, budget),
        "batch" => batches(value, passed, budget),
        "slice" => slices(value, passed, budget),
        "length" | "count" | "first" | "last" | "list" | "reverse" | "items" => {
            let [] = passed.bind(name, [], 0)?;
            simple(name, value, budget)
        }
        other => Err(unsupported(&format!("the filter `{other}`"))),
    }
}

fn simple(name: &str, value: &Value, budget: &Budget) -> Result<Value, Fault> {
    let empty = |which: &str| Value::Undefined(format!("No {which} item, sequence was empty.").into());
    match name {
        "length" | "count" => Ok(Value::Int(value.length(budget)? as i128)),
        "list" => Value::list(value.items(budget)?, budget),
        "first" => match value {
            Value::Generator(generator) => Ok(generator.left.borrow_mut().pop_front()),
            Value::Text(text) => Ok(text.chars().next().map(|c| Value::text(c.encode_utf8(&mut [0; 4])))),
            other => other.items(budget).map(|all| all.into_iter().next()),
        }
        .map(|first| first.unwrap_or_else(|| empty("first"))),
        "last" => match reversible(value)? {
            Value::Text(text) => Ok(text.chars().next_back().map(|c| Value::text(c.encode_utf8(&mut [0; 4])))),
            other => other.items(budget).map(|all| all.into_iter().next_back()),
        }
        .map(|last| last.unwrap_or_else(|| empty("last"))),
        "reverse" => match value {
            Value::Text(text) => {
                budget.make(text.len())?;
                Ok(Value::text(&text.chars().rev().collect::<String>()))
            }
            // Python returns a list if it cannot iterate backwards, and an iterator otherwise.
            Value::Generator(_) => Value::list(value.items(budget)?.into_iter().rev().collect(), budget),
            other => Value::generator(other.items(budget)?.into_iter().rev().collect(), budget),
        },
        _ => match value {
            Value::Undefined(_) => Value::generator(Vec::new(), budget),
            Value::Dict(dict) => Value::generator(pairs(dict, budget)?, budget),
            _ => Err(Fault::new("Can only get item pairs from a mapping.")),
        },
    }
}

fn reversible(value: &Value) -> Result<&Value, Fault> {
    match value {
        Value::Generator(_) => Err(Fault::new("'generator' object is not reversible")),
        other => Ok(other),
    }
}

/// The key-value pairs of a dict as tuples.
///
/// # Errors
/// If there are too many.
pub fn pairs(dict: &Dict, budget: &Budget) -> Result<Vec<Value>, Fault> {
    dict.pairs.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()], budget)).collect()
}

fn join(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [separator, attribute] = passed.bind("join", ["d", "attribute"], 0)?;
    let path = Path::of(attribute)?;
    let separator = separator.map_or_else(|| Ok(Arc::from("")), |separator| separator.to_text(budget))?;
    let mut parts = Vec::new();
    for item in value.items(budget)? {
        parts.push(path.value(item, None, budget)?.to_text(budget)?);
    }
    Ok(Value::text(&strings::join(&separator, &parts, budget)?))
}

/// An item with the keys it is sorted by.
type Keyed = (Vec<Value>, Value);

/// Sorts by keys, stably. The standard library's sort may panic if a comparison fails midway.
fn sorted(keyed: Vec<Keyed>, order: KeyOrder, reverse: bool, budget: &Budget) -> Result<Vec<Value>, Fault> {
    let first = |a: &Keyed, b: &Keyed| {
        let order = order(&a.0, &b.0, budget)?;
        Ok::<_, Fault>(order != if reverse { Ordering::Less } else { Ordering::Greater })
    };
    Ok(merge_sorted(keyed, &first)?.into_iter().map(|(_, item)| item).collect())
}

fn merge_sorted(all: Vec<Keyed>, first: &dyn Fn(&Keyed, &Keyed) -> Result<bool, Fault>) -> Result<Vec<Keyed>, Fault> {
    if all.len() < 2 {
        return Ok(all);
    }
    let mut left = all;
    let right = left.split_off(left.len() / 2);
    let mut left = merge_sorted(left, first)?.into_iter().peekable();
    let mut right = merge_sorted(right, first)?.into_iter().peekable();
    let mut merged = Vec::new();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if first(a, b)? { left.next() } else { right.next() };
        merged.extend(next);
    }
    merged.extend(left.chain(right));
    Ok(merged)
}

type KeyOrder = fn(&[Value], &[Value], &Budget) -> Result<Ordering, Fault>;

fn order_of(a: &Value, b: &Value, budget: &Budget) -> Result<Ordering, Fault> {
    a.order(b, "<", budget)?.ok_or_else(|| unsupported("sorting values that have no order"))
}

/// Compares lists of keys as Python compares lists: the first unequal keys decide.
fn of_lists(a: &[Value], b: &[Value], budget: &Budget) -> Result<Ordering, Fault> {
    for (x, y) in a.iter().zip(b) {
        if !x.equals(y, budget)? {
            return order_of(x, y, budget);
        }
    }
    Ok(a.len().cmp(&b.len()))
}

/// Compares single keys: values without an order are an error even if they are equal.
fn of_single(a: &[Value], b: &[Value], budget: &Budget) -> Result<Ordering, Fault> {
    match (a, b) {
        ([x], [y]) => order_of(x, y, budget),
        _ => of_lists(a, b, budget),
    }
}

fn sort(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [reverse, sensitive, attribute] = passed.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let fold = !sensitive.is_some_and(|sensitive| sensitive.truth());
    let paths = match attribute {
        Some(Value::Text(all)) => {
            all.split(',').map(|one| Path::of(Some(Value::text(one)))).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![Path::of(other)?],
    };
    let paths: Vec<Path> = paths.into_iter().map(|path| path.folding(fold)).collect();
    let mut keyed = Vec::new();
    for item in value.items(budget)? {
        let keys = paths.iter().map(|path| path.value(item.clone(), None, budget)).collect::<Result<_, _>>()?;
        keyed.push((keys, item));
    }
    Value::list(sorted(keyed, of_lists, reverse.is_some_and(|reverse| reverse.truth()), budget)?, budget)
}

fn sort_dict(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [sensitive, by, reverse] = passed.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let Value::Dict(dict) = value.used()? else {
        return Err(Fault::new(format!("'{}' object has no attribute 'items'", value.type_name())));
    };
    let by_value = match optional_text("`by`", by.as_ref())?.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(Fault::new("You can only sort by either \"key\" or \"value\"")),
    };
    let path = Path::default().folding(!sensitive.is_some_and(|sensitive| sensitive.truth()));
    let mut keyed = Vec::new();
    for ((key, value), pair) in dict.pairs.iter().zip(pairs(dict, budget)?) {
        let by = if by_value { value } else { key };
        keyed.push((vec![path.value(by.clone(), None, budget)?], pair));
    }
    Value::list(sorted(keyed, of_single, reverse.is_some_and(|reverse| reverse.truth()), budget)?, budget)
}

fn unique(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [sensitive, attribute] = passed.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let path = Path::of(attribute)?.folding(!sensitive.is_some_and(|sensitive| sensitive.truth()));
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in value.items(budget)? {
        if seen.insert(path.value(item.clone(), None, budget)?.key(budget)?) {
            kept.push(item);
        }
    }
    Value::generator(kept, budget)
}

fn group(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [attribute, default, sensitive] = passed.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let default = default.filter(|default| !matches!(default, Value::None));
    let fold = !sensitive.is_some_and(|sensitive| sensitive.truth());
    let path = Path::of(attribute)?.folding(fold);
    let mut keyed = Vec::new();
    for item in value.items(budget)? {
        keyed.push((vec![path.value(item.clone(), default.as_ref(), budget)?], item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for item in sorted(keyed, of_single, false, budget)? {
        let key = path.value(item.clone(), default.as_ref(), budget)?;
        match groups.last_mut() {
            Some((last, items)) if last.equals(&key, budget)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let plain = path.folding(false);
    let mut all = Vec::new();
    for (_, items) in groups {
        let grouper = plain.value(items[0].clone(), default.as_ref(), budget)?;
        let mut pair = Items::new(vec![grouper, Value::list(items, budget)?], budget)?;
        pair.group = true;
        all.push(Value::Tuple(Rc::new(pair)));
    }
    Value::list(all, budget)
}

fn batches(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [size, fill] = passed.bind("batch", ["linecount", "fill_with"], 1)?;
    let size = int_of(&size.unwrap_or(Value::None))?;
    let size = usize::try_from(size).ok().filter(|size| *size > 0);
    let size = size.ok_or_else(|| unsupported("the filter `batch` with a size below 1"))?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let mut all = Vec::new();
    for chunk in value.items(budget)?.chunks(size) {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = &fill {
            budget.make((size - chunk.len()).saturating_mul(64))?;
            chunk.resize(size, fill.clone());
        }
        all.push(Value::list(chunk, budget)?);
    }
    Value::generator(all, budget)
}

fn slices(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [count, fill] = passed.bind("slice", ["slices", "fill_with"], 1)?;
    let count = int_of(&count.unwrap_or(Value::None))?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| unsupported("the filter `slice` with fewer than 1 slice"))?;
    budget.make(count.saturating_mul(64))?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let items = value.items(budget)?;
    let (each, extra) = (items.len() / count, items.len() % count);
    let mut all = Vec::new();
    let mut start = 0;
    for i in 0..count {
        let end = start + each + usize::from(i < extra);
        let mut slice = items[start..end].to_vec();
        if i >= extra {
            slice.extend(fill.clone());
        }
        all.push(Value::list(slice, budget)?);
        start = end;
    }
    Value::generator(all, budget)
}
