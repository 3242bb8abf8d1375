//! Numbers on the command line, parsed with their bounds, so that errors say what is allowed.
//!
//! The argument parser puts the flag and the value in front of the messages here.

use std::ops::RangeInclusive;

use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;
use spattn_eval::config::bounds::{MOST_SAMPLES, whole};
pub(super) use spattn_eval::config::bounds::{seed, threads, tokens};
use spattn_eval::plan::sharding::MOST_SHARDS;

/// Examples for each task and length.
pub(super) fn samples(text: &str) -> Result<usize, String> {
    whole(text, 1..=MOST_SAMPLES)
}

/// First or last tokens that are always attended.
pub(super) fn static_tokens(text: &str) -> Result<usize, String> {
    whole(text, 0..=MOST_TOKENS)
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
    whole(text, 1..=MOST_SHARDS)
}

/// Sequences that step together.
pub(super) fn sequences(text: &str) -> Result<usize, String> {
    whole(text, 1..=4096)
}

/// Layers that are timed together.
pub(super) fn layers(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

/// Last tokens of a prompt whose queries are examined.
pub(super) fn queries(text: &str) -> Result<usize, String> {
    whole(text, 1..=65_536)
}

/// The number of a layer.
pub(super) fn layer(text: &str) -> Result<usize, String> {
    whole(text, 0..=1023)
}

/// Prompts of each task that are analysed.
pub(super) fn documents(text: &str) -> Result<usize, String> {
    whole(text, 1..=100_000)
}

/// Random draws.
pub(super) fn draws(text: &str) -> Result<usize, String> {
    whole(text, 1..=10_000)
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
    whole(text, 2..=64)
}

/// Turns of a benchmark that count.
pub(super) fn rounds(text: &str) -> Result<usize, String> {
    whole(text, 1..=10_000)
}

fn number_within(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a number from {} to {}", range.start(), range.end()))
}

/// Seconds, minutes or hours, for people.
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
