//! Parsers of numbers as users write them. Their errors say what is allowed.
//!
//! The parser of arguments puts the flag and the value in front of these errors.

use std::ops::RangeInclusive;

use spattn_attention::kv::MOST_TOKENS;

/// The most examples per task and length: more than anybody can run, and far below an overflow of sums.
pub const MOST_SAMPLES: usize = 1_000_000_000_000;

/// The most answers per example.
pub(super) const MOST_REPEATS: usize = 1000;

/// The most methods of a run, counting every combination of grid values, sinks, windows and dense layers.
pub(super) const MOST_METHODS: usize = 10_000;

/// The most values in the list of any other key, and the most combinations of model, seed and protocol in a sweep.
pub(super) const MOST_VALUES: usize = 10_000;

/// Parses a whole number within `range`.
///
/// # Errors
/// A message that says which numbers are allowed.
pub fn whole(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a whole number from {} to {}", range.start(), range.end()))
}

/// Parses a number within `range`.
///
/// # Errors
/// A message that says which numbers are allowed.
pub fn decimal(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a number from {} to {}", range.start(), range.end()))
}

/// Parses a seed: any 64-bit number.
///
/// # Errors
/// A message that says which numbers are allowed.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it should be a whole number from 0 to {}", u64::MAX))
}

/// Parses a number of threads. The limit is a few for each core, because more would only wait for each other.
///
/// # Errors
/// A message that says which numbers are allowed on this machine.
pub fn threads(text: &str) -> Result<usize, String> {
    const LEAST_ALLOWED: usize = 64;
    const OF_A_CORE: usize = 4;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (OF_A_CORE * cores).max(LEAST_ALLOWED);
    whole(text, 1..=most).map_err(|what| format!("{what} on this machine, which has {cores} cores"))
}

/// Parses a number of tokens, also in the forms that tables show: `4096`, `4K`, or `1M`. It accepts 0; settings that need
/// at least one token check that themselves.
///
/// # Errors
/// A message that says which numbers are allowed.
pub fn tokens(text: &str) -> Result<usize, String> {
    let unit = match text.as_bytes().last() {
        Some(b'k' | b'K') => 1 << 10,
        Some(b'm' | b'M') => 1 << 20,
        _ => 1,
    };
    let digits = if unit > 1 { &text[..text.len() - 1] } else { text };
    let count = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n <= MOST_TOKENS);
    count.ok_or_else(|| format!("it should be a whole number of tokens up to {MOST_TOKENS}, such as 4096 or 4K"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_may_be_counted_in_thousands() {
        let read = ["4096", "4K", "32k", "0", "1M", "16m"].map(|text| tokens(text).unwrap());
        assert_eq!(read, [4096, 4096, 32_768, 0, 1 << 20, 1 << 24]);
        for text in [
            "",
            "K",
            "M",
            "4G",
            "17M",
            "4KM",
            "4é",
            "4.5K",
            "-4K",
            "99999999999999999999K",
            "4294967296",
            "18014398509481984K",
        ] {
            assert!(tokens(text).unwrap_err().contains("such as 4096 or 4K"), "{text}");
        }
    }

    #[test]
    fn numbers_out_of_bounds_say_what_is_allowed() {
        assert_eq!(whole("1000000000000", 1..=MOST_SAMPLES), Ok(1_000_000_000_000));
        for text in ["", "x", "-1", "1.5", "0", "1000000000001", "99999999999999999999"] {
            assert!(whole(text, 1..=MOST_SAMPLES).unwrap_err().contains("from 1 to 1000000000000"), "{text}");
        }
        assert_eq!((decimal("0.6", 0.0..=1.0), decimal("1", 0.0..=1.0)), (Ok(0.6), Ok(1.0)));
        for text in ["", "x", "-0.1", "1.1", "NaN", "inf"] {
            assert!(decimal(text, 0.0..=1.0).unwrap_err().contains("from 0 to 1"), "{text}");
        }
        assert_eq!((seed("18446744073709551615"), threads("1")), (Ok(u64::MAX), Ok(1)));
        assert!(seed("18446744073709551616").unwrap_err().contains("from 0 to 18446744073709551615"));
        assert!(threads("100000").unwrap_err().contains("cores") && threads("0").is_err());
    }
}
