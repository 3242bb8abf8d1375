//! JSON values as text.

use serde_json::Value;

/// The text of an answer that is a text or a number; `None` for anything else, and for numbers whose digits were lost in
/// parsing.
pub fn text_or_number(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        // A whole number of more than 64 bits loses digits when it is parsed.
        Value::Number(number) if number.as_f64().is_none_or(|x| number.is_f64() && x.abs() >= 1e15) => None,
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that was parsed as floating point may not have the digits that were written.
    #[test]
    fn numbers_that_lose_digits_are_no_answers() {
        let text = |json: &str| text_or_number(&serde_json::from_str(json).unwrap());
        for (json, expected) in [
            ("12", "12"),
            ("-3.5", "-3.5"),
            ("18446744073709551615", "18446744073709551615"),
            ("\"12345678901234567890123\"", "12345678901234567890123"),
        ] {
            assert_eq!(text(json).as_deref(), Some(expected));
        }
        assert_eq!((text("12345678901234567890123"), text("1e300"), text("true")), (None, None, None));
    }
}
