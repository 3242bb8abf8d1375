//! Numbers as texts show them.

/// A number with a readable number of digits.
pub fn short(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 100.0 || x == 0.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.01 => 4,
        _ => 6,
    };
    let text = format!("{x:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A number with 15 significant digits, with which JSON readers give back the same number.
pub(super) fn stored(x: f64) -> f64 {
    format!("{x:.14e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::{short, stored};

    #[test]
    fn stored_numbers_are_read_back_as_they_were() {
        for x in [0.1 + 0.2, 91.190_269_712_120_07, 100.0 / 3.0, 1e-5 / 7.0, -0.0, 54_321.123_456_789_01] {
            let text = serde_json::to_string(&stored(x)).unwrap();
            let read: f64 = serde_json::from_str(&text).unwrap();
            assert_eq!((read, stored(read)), (stored(x), stored(x)), "{text}");
            assert!((read - x).abs() <= 1e-14 * x.abs());
        }
    }

    #[test]
    fn digits_are_as_many_as_are_read() {
        let all = [123.456, 12.345, 0.123_456, 0.000_123_4, 0.0, -0.000_000_01, 100.0];
        assert_eq!(all.map(short), ["123.5", "12.35", "0.1235", "0.000123", "0", "0", "100"]);
    }
}
