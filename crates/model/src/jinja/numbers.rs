//! Python's arithmetic.

use super::ast::Operator;
use super::format::percent;
use super::limits::{Budget, Fault, unsupported};
use super::strings::repeated;
use super::value::Value;

/// Not all integers beyond this are exact as floats.
const EXACT: u128 = 1 << 53;

fn symbol(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "** or pow()",
    }
}

/// `a operator b`.
///
/// # Errors
/// Operands that do not match, or a result that is not supported.
pub fn arithmetic(operator: Operator, a: &Value, b: &Value, budget: &Budget) -> Result<Value, Fault> {
    if let (Operator::Remainder, Value::Text(text)) = (operator, a) {
        return percent(text, b, budget);
    }
    a.used()?;
    b.used()?;
    match operator {
        Operator::Add => {
            if let Some(joined) = add(a, b, budget)? {
                return Ok(joined);
            }
        }
        Operator::Multiply => {
            if let Some(times) = multiply(a, b, budget)? {
                return Ok(times);
            }
        }
        _ => {}
    }
    match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
        (Some(a), Some(b), _, _) => of_integers(operator, a, b),
        (_, _, Some(a), Some(b)) => of_floats(operator, a, b).map(Value::Float),
        _ if matches!((a, b), (Value::Safe(_), _) | (_, Value::Safe(_))) => {
            Err(unsupported("an operator on a text that is marked as safe"))
        }
        _ => Err(mismatch(operator, a, b)),
    }
}

fn mismatch(operator: Operator, a: &Value, b: &Value) -> Fault {
    if let (Operator::Add, Value::Text(_) | Value::List(_) | Value::Tuple(_)) = (operator, a) {
        let kind = a.type_name();
        return Fault::new(format!("can only concatenate {kind} (not \"{}\") to {kind}", b.type_name()));
    }
    Fault::new(format!(
        "unsupported operand type(s) for {}: '{}' and '{}'",
        symbol(operator),
        a.type_name(),
        b.type_name()
    ))
}

fn add(a: &Value, b: &Value, budget: &Budget) -> Result<Option<Value>, Fault> {
    Ok(Some(match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            budget.make(a.len() + b.len())?;
            Value::Text([&**a, &**b].concat().into())
        }
        (Value::List(a), Value::List(b)) => {
            budget.make((a.all.len() + b.all.len()) * 64)?;
            Value::list([a.all.as_slice(), b.all.as_slice()].concat(), budget)?
        }
        (Value::Tuple(a), Value::Tuple(b)) => {
            budget.make((a.all.len() + b.all.len()) * 64)?;
            Value::tuple([a.all.as_slice(), b.all.as_slice()].concat(), budget)?
        }
        _ => return Ok(None),
    }))
}

fn multiply(a: &Value, b: &Value, budget: &Budget) -> Result<Option<Value>, Fault> {
    let (of, times) = match (a.as_int(), b.as_int()) {
        (None, Some(times)) => (a, times),
        (Some(times), None) => (b, times),
        _ => return Ok(None),
    };
    let items = |all: &[Value]| {
        let count = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        budget.make(all.len().saturating_mul(64).saturating_mul(count))?;
        Ok(if all.is_empty() { Vec::new() } else { (0..count).flat_map(|_| all.to_vec()).collect() })
    };
    Ok(Some(match of {
        Value::Text(text) => Value::Text(repeated(text, times, budget)?.into()),
        Value::List(list) => Value::list(items(&list.all)?, budget)?,
        Value::Tuple(tuple) => Value::tuple(items(&tuple.all)?, budget)?,
        _ => return Ok(None),
    }))
}

fn too_large() -> Fault {
    unsupported("an integer of more than 127 bits")
}

fn by_zero() -> Fault {
    Fault::new("division by zero")
}

fn of_integers(operator: Operator, a: i128, b: i128) -> Result<Value, Fault> {
    if b == 0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        return Err(by_zero());
    }
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide if a.unsigned_abs() <= EXACT && b.unsigned_abs() <= EXACT => {
            return Ok(Value::Float(a as f64 / b as f64));
        }
        Operator::Divide => return Err(unsupported("dividing integers beyond 2^53")),
        Operator::FloorDivide => floor_division(a, b).map(|(quotient, _)| quotient),
        Operator::Remainder => floor_division(a, b).map(|(_, rest)| rest),
        Operator::Power if b < 0 => return power(a as f64, b as f64).map(Value::Float),
        Operator::Power => power_of_integers(a, b),
    };
    result.map(Value::Int).ok_or_else(too_large)
}

fn floor_division(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    match rest != 0 && (rest < 0) != (b < 0) {
        true => Some((quotient - 1, rest + b)),
        false => Some((quotient, rest)),
    }
}

fn power_of_integers(a: i128, b: i128) -> Option<i128> {
    match a {
        0 | 1 => Some(if b == 0 { 1 } else { a }),
        -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
        _ => a.checked_pow(u32::try_from(b).ok()?),
    }
}

fn of_floats(operator: Operator, a: f64, b: f64) -> Result<f64, Fault> {
    if b == 0.0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        return Err(by_zero());
    }
    Ok(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => float_floor_division(a, b).0,
        Operator::Remainder => float_floor_division(a, b).1,
        Operator::Power => power(a, b)?,
    })
}

/// Quotient and remainder, computed as in CPython.
fn float_floor_division(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0f64.copysign(a / b), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

fn power(a: f64, b: f64) -> Result<f64, Fault> {
    if a == 0.0 && b < 0.0 {
        return Err(Fault::new("0.0 cannot be raised to a negative power"));
    }
    if a < 0.0 && b.fract() != 0.0 {
        return Err(unsupported("a root of a negative number"));
    }
    let result = a.powf(b);
    match result.is_infinite() && a.is_finite() && b.is_finite() {
        true => Err(Fault::new("Result too large")),
        false => Ok(result),
    }
}

/// `int(...)` of a decimal string; `None` if it is not a number.
pub fn parse_int(text: &str) -> Result<Option<i128>, Fault> {
    let Some(digits) = plain_digits(text)? else { return Ok(None) };
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(&digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| too_large())
}

/// `float(...)` of a string; `None` if it is not a number.
pub fn parse_float(text: &str) -> Result<Option<f64>, Fault> {
    let Some(digits) = plain_digits(text)? else { return Ok(None) };
    Ok(digits.parse().ok())
}

/// A number's text without surrounding white space and without underscores; `None` if an underscore is not between digits.
fn plain_digits(text: &str) -> Result<Option<String>, Fault> {
    let text = text.trim_matches(super::lexer::is_space);
    if text.chars().any(|c| !c.is_ascii() && c.is_numeric()) {
        return Err(unsupported("a number of digits that are not ASCII"));
    }
    let bytes = text.as_bytes();
    let between = |at: usize| {
        let digit = |place: Option<usize>| place.and_then(|p| bytes.get(p)).is_some_and(u8::is_ascii_digit);
        digit(at.checked_sub(1)) && digit(Some(at + 1))
    };
    let placed = bytes.iter().enumerate().all(|(at, b)| *b != b'_' || between(at));
    Ok(placed.then(|| text.replace('_', "")))
}

/// `round(value, digits)`: halves go to the even neighbour of the exact decimal value.
///
/// # Errors
/// A value that is not a number.
pub fn round(value: &Value, digits: i128) -> Result<Value, Fault> {
    match value.used()? {
        Value::Int(_) | Value::Bool(_) if digits >= 0 => Ok(Value::Int(value.as_int().unwrap_or(0))),
        Value::Float(number) if !number.is_finite() || digits > 320 => Ok(Value::Float(*number)),
        Value::Float(number) if digits >= 0 => {
            let places = usize::try_from(digits).unwrap_or(0);
            Ok(Value::Float(format!("{number:.places$}").parse().unwrap_or(*number)))
        }
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => Err(unsupported("rounding to tens or more")),
        other => Err(Fault::new(format!("type {} doesn't define __round__ method", other.type_name()))),
    }
}
