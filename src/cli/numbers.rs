//! Numbers on the command line, parsed with their bounds, so that errors say what is allowed.
//!
//! The argument parser puts the flag and the value in front of the messages here.

use std::ops::RangeInclusive;

use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;
use spattn_eval::config::bounds::{MOST_SAMPLES, whole};
pub(super) use spattn_eval::config::bounds::{seed, threads, tokens};
use spattn_eval::config::kv_tier::KvMemory;
use spattn_eval::plan::sharding::MOST_SHARDS;

/// The number of examples for each task and length.
pub(super) fn samples(text: &str) -> Result<usize, String> {
    whole(text, 1..=MOST_SAMPLES)
}

/// The number of first or last tokens that are always attended.
pub(super) fn static_tokens(text: &str) -> Result<usize, String> {
    whole(text, 0..=MOST_TOKENS)
}

/// Checks `RAYON_NUM_THREADS`, which applies if `--threads` is not given.
pub(super) fn check_threads_variable() -> Result<(), UsageError> {
    const NAME: &str = "RAYON_NUM_THREADS";
    let said = std::env::var_os(NAME).map(|said| said.to_string_lossy().into_owned());
    // With 0 or an empty value, the machine decides.
    match said.filter(|said| !["", "0"].contains(&said.as_str())) {
        None => Ok(()),
        Some(said) => match threads(&said) {
            Ok(_) => Ok(()),
            Err(what) => Err(UsageError::new(format!("{NAME}={said}: {what}")).hint("leave it out, or use --threads")),
        },
    }
}

/// The memory for what a GPU keeps of a KV cache in host memory.
pub(super) fn kv_memory(text: &str) -> Result<KvMemory, String> {
    text.parse().map_err(|error: UsageError| error.hint.unwrap_or(error.what))
}

/// The number of shards of a sweep.
pub(super) fn shards(text: &str) -> Result<usize, String> {
    whole(text, 1..=MOST_SHARDS)
}

/// The number of sequences that step together.
pub(super) fn sequences(text: &str) -> Result<usize, String> {
    whole(text, 1..=4096)
}

/// The number of layers that are timed together.
pub(super) fn layers(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

/// The number of last tokens of a prompt whose queries are examined.
pub(super) fn queries(text: &str) -> Result<usize, String> {
    whole(text, 1..=65_536)
}

/// The index of a layer.
pub(super) fn layer(text: &str) -> Result<usize, String> {
    whole(text, 0..=1023)
}

/// The number of prompts of each task that are analysed.
pub(super) fn documents(text: &str) -> Result<usize, String> {
    whole(text, 1..=100_000)
}

/// The number of random draws.
pub(super) fn draws(text: &str) -> Result<usize, String> {
    whole(text, 1..=10_000)
}

/// A difference in score of at most 100 points.
pub(super) fn points(text: &str) -> Result<f64, String> {
    number_within(text, 0.01..=100.0)
}

/// The probability that verdicts are right.
pub(super) fn confidence(text: &str) -> Result<f64, String> {
    number_within(text, 0.5..=0.9999)
}

/// The number of candidates to choose from.
pub(super) fn candidates(text: &str) -> Result<usize, String> {
    whole(text, 2..=64)
}

/// The number of timed turns of a benchmark.
pub(super) fn rounds(text: &str) -> Result<usize, String> {
    whole(text, 1..=10_000)
}

fn number_within(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it should be a number from {} to {}", range.start(), range.end()))
}

/// A duration in seconds, minutes or hours, for people.
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
