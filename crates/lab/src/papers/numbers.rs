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

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn digits_are_as_many_as_are_read() {
        let all = [123.456, 12.345, 0.123_456, 0.000_123_4, 0.0, -0.000_000_01, 100.0];
        assert_eq!(all.map(short), ["123.5", "12.35", "0.1235", "0.000123", "0", "0", "100"]);
    }
}
