//! Tests: `value is name`.

use std::cmp::Ordering;

use super::ast::Operator;
use super::filter_names;
use super::limits::{Budget, Fault, unsupported};
use super::numbers;
use super::passed::{Passed, text_of};
use super::strings;
use super::value::Value;

const KNOWN: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

/// Whether there is a test with this name.
pub fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// Applies the test `value is name(...)`.
///
/// # Errors
/// An unknown test, or a value that it cannot be applied to.
pub fn call(name: &str, value: &Value, passed: Passed, budget: &Budget) -> Result<bool, Fault> {
    if let Some(symbol) = comparison(name) {
        let [other] = passed.bind(name, [""], 1)?;
        let other = other.unwrap_or(Value::None);
        return compare(symbol, value, &other, budget);
    }
    match name {
        "divisibleby" => {
            let [by] = passed.bind(name, ["num"], 1)?;
            let rest = numbers::arithmetic(Operator::Remainder, value, &by.unwrap_or(Value::None), budget)?;
            return rest.equals(&Value::Int(0), budget);
        }
        "in" => {
            let [container] = passed.bind(name, ["seq"], 1)?;
            return value.is_in(&container.unwrap_or(Value::None), budget);
        }
        "sameas" => {
            let [other] = passed.bind(name, ["other"], 1)?;
            return same(value, &other.unwrap_or(Value::None));
        }
        _ => {
            let [] = passed.bind(name, [], 0)?;
        }
    }
    Ok(match name {
        "odd" | "even" => {
            let rest = numbers::arithmetic(Operator::Remainder, value, &Value::Int(2), budget)?;
            rest.equals(&Value::Int(i128::from(name == "odd")), budget)?
        }
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "filter" => filter_names::is_known(&text_of("the name of a filter", value)?),
        "test" => is_known(&text_of("the name of a test", value)?),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "lower" | "upper" => strings::is_case(&value.to_text(budget)?, name == "upper"),
        "string" => matches!(value, Value::Text(_) | Value::Safe(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "number" => value.as_float().is_some(),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Safe(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
        ),
        "iterable" => value.is_iterable(),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Macro(..)
                | Value::Loop(_)
                | Value::Joiner(_)
        ),
        "escaped" => matches!(value, Value::Safe(_)),
        other => return Err(unsupported(&format!("the test `{other}`"))),
    })
}

fn comparison(name: &str) -> Option<&'static str> {
    Some(match name {
        "==" | "eq" | "equalto" => "==",
        "!=" | "ne" => "!=",
        ">" | "gt" | "greaterthan" => ">",
        ">=" | "ge" => ">=",
        "<" | "lt" | "lessthan" => "<",
        "<=" | "le" => "<=",
        _ => return None,
    })
}

/// A comparison by its symbol.
///
/// # Errors
/// If the values have no order.
pub fn compare(symbol: &str, a: &Value, b: &Value, budget: &Budget) -> Result<bool, Fault> {
    Ok(match symbol {
        "==" => a.equals(b, budget)?,
        "!=" => !a.equals(b, budget)?,
        ">" => a.order(b, symbol, budget)? == Some(Ordering::Greater),
        ">=" => matches!(a.order(b, symbol, budget)?, Some(Ordering::Greater | Ordering::Equal)),
        "<" => a.order(b, symbol, budget)? == Some(Ordering::Less),
        _ => matches!(a.order(b, symbol, budget)?, Some(Ordering::Less | Ordering::Equal)),
    })
}

/// Python's `is`, where the result does not depend on how Python shares objects.
fn same(a: &Value, b: &Value) -> Result<bool, Fault> {
    let small = |value: i128| (-5..=256).contains(&value);
    match (a, b) {
        (Value::None, Value::None) => Ok(true),
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        (Value::Int(a), Value::Int(b)) if a != b || small(*a) => Ok(a == b),
        _ if a.type_name() != b.type_name() => Ok(false),
        _ => Err(unsupported(&format!("the test `sameas` of a {}", a.type_name()))),
    }
}
