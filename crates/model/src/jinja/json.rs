//! The filter `tojson` of transformers: Python's `json.dumps`, which by default keeps characters beyond ASCII.

use super::limits::{Budget, Fault};
use super::passed::{Passed, text_of};
use super::strings::repeated;
use super::value::{Dict, Value, float_text};

struct Style {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
}

/// `value|tojson(...)`.
///
/// # Errors
/// A value that JSON cannot represent, or a text that is too long.
pub fn to_json(value: &Value, passed: Passed, budget: &Budget) -> Result<Value, Fault> {
    let [ascii, indent, separators, sorted] =
        passed.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match indent.as_ref() {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text.to_string()),
        Some(other) => match other.used()?.as_int() {
            Some(width) => Some(repeated(" ", width, budget)?),
            None => return Err(Fault::new("tojson: `indent` is neither a number nor a string")),
        },
    };
    let (between, after_key) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match pair.items(budget)?.as_slice() {
            [between, after_key] => {
                (text_of("a separator", between)?.to_string(), text_of("a separator", after_key)?.to_string())
            }
            _ => return Err(Fault::new("tojson: `separators` has to be two strings")),
        },
    };
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let style = Style { ascii: truth(ascii), sorted: truth(sorted), indent, between, after_key };
    let mut out = String::new();
    style.write(value, 0, &mut out, budget)?;
    Ok(Value::text(&out))
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        budget.work(1)?;
        match value {
            Value::None => put("null", out, budget),
            Value::Bool(value) => put(if *value { "true" } else { "false" }, out, budget),
            Value::Int(value) => put(&value.to_string(), out, budget),
            Value::Float(value) => put(&number(*value), out, budget),
            Value::Text(text) => self.write_text(text, out, budget),
            Value::List(items) | Value::Tuple(items) => {
                self.write_all(('[', ']'), items.all.len(), depth, out, budget, &mut |i, out| {
                    self.write(&items.all[i], depth + 1, out, budget)
                })
            }
            Value::Dict(dict) => self.write_dict(dict, depth, out, budget),
            other => Err(Fault::new(format!("tojson: Object of type {} is not JSON serializable", other.type_name()))),
        }
    }

    fn write_dict(&self, dict: &Dict, depth: usize, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        let mut pairs: Vec<&(Value, Value)> = dict.pairs.iter().collect();
        if self.sorted {
            if pairs.iter().any(|(key, _)| key.as_text().is_none()) {
                return Err(Fault::new("tojson: sorting keys that are not strings is not supported"));
            }
            budget.work(pairs.len() * 16)?;
            pairs.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
        }
        self.write_all(('{', '}'), pairs.len(), depth, out, budget, &mut |i, out| {
            let (key, value) = pairs[i];
            self.write_key(key, out, budget)?;
            put(&self.after_key, out, budget)?;
            self.write(value, depth + 1, out, budget)
        })
    }

    fn write_key(&self, key: &Value, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        let text = match key {
            Value::Text(text) => return self.write_text(text, out, budget),
            Value::None => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => number(*value),
            other => {
                return Err(Fault::new(format!(
                    "tojson: keys must be str, int, float, bool or None, not {}",
                    other.type_name()
                )));
            }
        };
        self.write_text(&text, out, budget)
    }

    fn write_all(
        &self,
        (open, close): (char, char),
        count: usize,
        depth: usize,
        out: &mut String,
        budget: &Budget,
        write: &mut dyn FnMut(usize, &mut String) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        out.push(open);
        for i in 0..count {
            if i > 0 {
                put(&self.between, out, budget)?;
            }
            self.new_line(depth + 1, out, budget)?;
            write(i, out)?;
        }
        if count > 0 {
            self.new_line(depth, out, budget)?;
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        let Some(indent) = &self.indent else { return Ok(()) };
        put("\n", out, budget)?;
        out.push_str(&repeated(indent, depth as i128, budget)?);
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        budget.make(6 * text.len() + 2)?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn put(text: &str, out: &mut String, budget: &Budget) -> Result<(), Fault> {
    budget.make(text.len())?;
    out.push_str(text);
    Ok(())
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        value => float_text(value),
    }
}
