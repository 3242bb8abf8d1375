//! Numbers as texts show them.

/// Returns the number of decimals with which a number is readable.
fn digits(x: f64) -> usize {
    match x.abs() {
        x if x >= 100.0 || x == 0.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.01 => 4,
        _ => 6,
    }
}

/// Formats a number that is exact or stands alone: with a readable number of digits, without zeros at its end.
pub fn short(x: f64) -> String {
    let text = format!("{x:.*}", digits(x));
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Formats a measured number and the ends of its interval, all with the decimals of the greatest of them. Zeros at the end stay, since they
/// show how exact the number is. `None` if both ends read the same.
pub fn with_interval(mean: f64, (low, high): (f64, f64)) -> (String, Option<(String, String)>) {
    let greatest = [mean, low, high].into_iter().fold(0.0, |greatest: f64, x| greatest.max(x.abs()));
    let digits = digits(greatest);
    let text = |x: f64| {
        let text = format!("{x:.digits$}");
        let is_zero = text.bytes().all(|b| matches!(b, b'-' | b'0' | b'.'));
        if is_zero { text.trim_start_matches('-').to_owned() } else { text }
    };
    match text(low) == text(high) {
        true => (short(mean), None),
        false => (text(mean), Some((text(low), text(high)))),
    }
}

/// Rounds a number to 15 significant digits, which JSON readers give back unchanged.
pub(super) fn stored(x: f64) -> f64 {
    format!("{x:.14e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::{short, stored, with_interval};

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
    fn a_number_and_its_interval_have_the_same_digits() {
        let text = |mean, ends| match with_interval(mean, ends) {
            (mean, Some((low, high))) => format!("{mean} [{low} {high}]"),
            (mean, None) => mean,
        };
        assert_eq!(text(3.218, (2.65, 3.8)), "3.22 [2.65 3.80]");
        assert_eq!(text(4.1, (4.0, 4.204)), "4.10 [4.00 4.20]");
        assert_eq!(text(97.5, (91.188, 100.0)), "97.5 [91.2 100.0]");
        assert_eq!(text(0.0, (-0.25, 0.0000001)), "0.0000 [-0.2500 0.0000]");
        assert_eq!(text(-0.5, (-1.5, 0.25)), "-0.50 [-1.50 0.25]");
        assert_eq!(text(100.0, (100.0, 100.0)), "100", "an exact number has none");
        assert_eq!(text(0.001, (0.0009, 0.0011)), "0.001000 [0.000900 0.001100]");
    }

    #[test]
    fn digits_are_as_many_as_are_read() {
        let all = [123.456, 12.345, 0.123_456, 0.000_123_4, 0.0, -0.000_000_01, 100.0];
        assert_eq!(all.map(short), ["123.5", "12.35", "0.1235", "0.000123", "0", "0", "100"]);
    }
}
