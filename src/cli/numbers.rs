//! Numbers on the command line, parsed with their bounds, so that errors say what is allowed.
//!
//! The argument parser puts the flag and the value in front of the messages here.

use std::ops::RangeInclusive;

use crate::eval::config::settings::MOST_SAMPLES;
use crate::eval::plan::sharding::MOST_SHARDS;
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;

/// Examples for each task and length.
pub(super) fn samples(text: &str) -> Result<usize, String> {
    within(text, 1..=MOST_SAMPLES)
}

/// First or last tokens that are always attended.
pub(super) fn static_tokens(text: &str) -> Result<usize, String> {
    within(text, 0..=MOST_TOKENS)
}

/// A seed: any 64-bit number.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it should be a whole number from 0 to {}", u64::MAX))
}

/// The number of a batch.
pub(super) fn batch(text: &str) -> Result<usize, String> {
    within(text, 0..=usize::MAX)
}

/// Threads to use. Far more threads than cores would only wait for each other.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    const LEAST_ALLOWED: usize = 64;
    const OF_A_CORE: usize = 4;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (OF_A_CORE * cores).max(LEAST_ALLOWED);
    within(text, 1..=most).map_err(|what| format!("{what} on this machine, which has {cores} cores"))
}

/// Checks `RAYON_NUM_THREADS`, which applies if `--threads` is not given.
pub(super) fn check_threads_variable() -> Result<(), UsageError> {
    const NAME: &str = "RAYON_NUM_THREADS";
    let said = std::env::var_os(NAME).map(|said| said.to_string_lossy().into_owned());
    // 0 and an empty value leave the number to the machine.
    match said.filter(|said| !["", "0"].contains(&said.as_str())) {
        None => Ok(()),
        Some(said) => match threads(&said) {
            Ok(_) => Ok(()),
            Err(what) => Err(UsageError::new(format!("{NAME}={said}: {what}")).hint("leave it out, or use --threads")),
        },
    }
}

/// Shards of a sweep.
pub(super) fn shards(text: &str) -> Result<usize, String> {
    within(text, 1..=MOST_SHARDS)
}

/// Sequences that step together.
pub(super) fn sequences(text: &str) -> Result<usize, String> {
    within(text, 1..=4096)
}

/// Layers that are timed together.
pub(super) fn layers(text: &str) -> Result<usize, String> {
    within(text, 1..=1024)
}

/// Last tokens of a prompt whose queries are examined.
pub(super) fn queries(text: &str) -> Result<usize, String> {
    within(text, 1..=65_536)
}

/// The number of a layer.
pub(super) fn layer(text: &str) -> Result<usize, String> {
    within(text, 0..=1023)
}

/// Prompts of each task that are analysed.
pub(super) fn documents(text: &str) -> Result<usize, String> {
    within(text, 1..=100_000)
}

/// Random draws.
pub(super) fn draws(text: &str) -> Result<usize, String> {
    within(text, 1..=10_000)
}

/// Points of a score, at most 100.
pub(super) fn points(text: &str) -> Result<f64, String> {
    number_within(text, 0.01..=100.0)
}

/// The probability of being right.
pub(super) fn confidence(text: &str) -> Result<f64, String> {
    number_within(text, 0.5..=0.9999)
}

/// Candidates to choose from.
pub(super) fn candidates(text: &str) -> Result<usize, String> {
    within(text, 2..=64)
}

/// Turns of a benchmark that count.
pub(super) fn rounds(text: &str) -> Result<usize, String> {
    within(text, 1..=10_000)
}

/// A number of tokens: `4096`, `4K`, or `1M`.
pub(super) fn tokens(text: &str) -> Result<usize, String> {
    let unit = match text.as_bytes().last() {
        Some(b'k' | b'K') => 1 << 10,
        Some(b'm' | b'M') => 1 << 20,
        _ => 1,
    };
    let digits = if unit > 1 { &text[..text.len() - 1] } else { text };
    let count = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n <= MOST_TOKENS);
    count.ok_or_else(|| format!("it should be a whole number of tokens up to {MOST_TOKENS}, such as 4096 or 4K"))
}

fn number_within(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a number from {} to {}", range.start(), range.end()))
}

fn within(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a whole number from {} to {}", range.start(), range.end()))
}

/// A duration in seconds, minutes or hours.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A size in megabytes.
pub(super) fn megabytes(bytes: usize) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
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
        assert_eq!(samples("1000000000000"), Ok(1_000_000_000_000));
        for text in ["", "x", "-1", "1.5", "0", "1000000000001", "99999999999999999999"] {
            assert!(samples(text).unwrap_err().contains("from 1 to 1000000000000"), "{text}");
        }
        assert_eq!((seed("18446744073709551615"), threads("1")), (Ok(u64::MAX), Ok(1)));
        assert!(seed("18446744073709551616").unwrap_err().contains("from 0 to 18446744073709551615"));
        assert!(threads("100000").unwrap_err().contains("cores") && threads("0").is_err());
    }
}
