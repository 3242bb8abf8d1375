//! Checks that need no reference: whether the program agrees with itself, and whether texts come back from their tokens.

use std::sync::Arc;

use anyhow::{Context, Result};
use rayon::ThreadPoolBuilder;

use super::check::{Check, first_few};
use super::dense::dense_sequences;
use super::numbers::{argmax, tolerance};
use super::texts::shown;
use spattn_attention::kv::Prefix;
use spattn_model::decoder::Decoder;
use spattn_model::device::Device;
use spattn_model::engine::Stream;
use spattn_model::tokenizer::Tokenizer;

/// Texts that tokenizers split in different ways.
const LINES: &[&str] = &[
    "Hello world",
    "def f(a, b):\n    return a  + b  # why?\n\n\tx[i] += 1",
    "数字と漢字、そして仮名。中文没有空格。",
    "Привет, мир! naïve café – Ünïcödé",
    "emoji 🙂👩\u{200d}👩\u{200d}👧 and a flag 🇪🇺",
    "two  spaces, three   spaces\t\ttabs\r\n\r\nlines",
    "1234567890 12 345 6789 0.001 1e-5 2026-11-26",
];
/// The user's turn that the chat template renders.
const USER: &str = "What is the pass key? Answer with the number only: 4820117 or 9?";
/// The most tokens of the text that is read.
const TOKENS: usize = 192;
/// The number of tokens that are decoded one by one.
const STEPS: usize = 8;
/// The fewest tokens with which the decoder can be checked against itself.
pub(super) const LEAST_TOKENS: usize = 2 * STEPS;

/// Checks that texts come back from their tokens, and that the model has all of these tokens.
pub(super) fn tokens_round_trip(tokenizer: &Tokenizer, vocab_size: usize) -> Result<Check> {
    const NAME: &str = "tokens to text";
    let mut faults = Vec::new();
    for line in LINES {
        let ids = tokenizer.encode_text(line, false)?;
        let back = tokenizer.decode(&ids)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
            faults.push(format!("{} has token {id}, the model knows {vocab_size}", shown(line)));
        } else if back != *line {
            faults.push(format!("{} comes back as {}", shown(line), shown(&back)));
        }
    }
    let count = LINES.len();
    Ok(match faults.is_empty() {
        true => Check::pass(NAME, format!("{count} texts come back")).measured(0.0, 0.0),
        false => Check::fail(
            NAME,
            first_few(&faults),
            "tokenizer.json was cut or is of another model; a tokenizer that changes texts on purpose fails here too",
        )
        .measured(faults.len() as f64, 0.0),
    })
}

/// Checks that the chat template renders a conversation.
pub(super) fn chat_renders(tokenizer: &Tokenizer) -> Check {
    const NAME: &str = "chat template";
    if !tokenizer.has_chat() {
        return Check::skipped(NAME, "the model has none");
    }
    match tokenizer.encode_prompt(USER, "") {
        Ok(prompt) => Check::pass(NAME, format!("one turn, {} tokens", prompt.ids.len())),
        Err(error) => Check::fail(NAME, error.what, error.hint.unwrap_or_default()),
    }
}

/// Returns a text in tokens, as long as the model may read and at most [`TOKENS`].
pub(super) fn text(tokenizer: &Tokenizer, context: usize) -> Result<Vec<u32>> {
    let line = "On the third day the river stood high, and the keeper of the lock wrote: 12 boats passed before noon. ";
    let mut ids = tokenizer.encode_text(&line.repeat(TOKENS), true)?;
    ids.truncate(TOKENS.min(context));
    Ok(ids)
}

/// Measures the mean surprise at each token of the text, for the user to judge: an untrained or broken model guesses.
pub(super) fn surprise(decoder: &Decoder, ids: &[u32]) -> Result<Check> {
    let vocab = decoder.config().vocab_size;
    let logits = decoder.all_logits(ids)?;
    let rows = logits.chunks_exact(vocab).zip(&ids[1..]);
    let nats: f64 = rows.map(|(row, next)| surprise_at(row, *next as usize)).sum::<f64>() / (ids.len() - 1) as f64;
    let guess = (vocab as f64).ln();
    Ok(Check::note("plain English", format!("{nats:.2} nats a token: {}; a guess has {guess:.2}", usual(nats, guess))))
}

/// Says what such a mean surprise tells about a model.
fn usual(nats: f64, guess: f64) -> &'static str {
    match nats {
        nats if nats < 4.0 => "usual, a trained model has less than 4",
        nats if nats < guess - 1.0 => "much: a trained model has less than 4",
        nats if nats.is_finite() => "no better than a guess: untrained, or computed wrong",
        _ => "no number",
    }
}

fn surprise_at(row: &[f32], next: usize) -> f64 {
    let top = f64::from(row[argmax(row)]);
    let sum: f64 = row.iter().map(|x| (f64::from(*x) - top).exp()).sum();
    top + sum.ln() - f64::from(row[next])
}

/// Checks of a decoder against itself, on one text.
pub(super) struct Itself<'a> {
    decoder: &'a Decoder,
    ids: &'a [u32],
    /// Logits of the last token, after one prefill of the whole text.
    whole: Vec<f32>,
    /// The device that computes. On a GPU the order of sums depends on how many rows are computed at once.
    device: Device,
}

impl<'a> Itself<'a> {
    /// Reads the text.
    pub(super) fn read(decoder: &'a Decoder, ids: &'a [u32], device: Device) -> Result<Self> {
        Ok(Self { decoder, ids, whole: decoder.prefill(ids, ids.len())?.logits, device })
    }

    /// Checks that rows computed beside others are the same: to the bit on a CPU, except for rounding on a GPU.
    fn alike(&self, name: &'static str, what: &str, one: &[f32], other: &[f32]) -> Check {
        match self.device {
            Device::Cpu => equal(name, what, one, other),
            _ => close(name, what, one, other, tolerance(&[self.decoder.dtype()])),
        }
    }

    /// Checks that reading on after a kept prefix gives the same as reading everything.
    pub(super) fn keeps_prefixes(&self) -> Result<Check> {
        let (all, kept) = (self.ids.len(), self.ids.len() / 2);
        let prefix = self.prefix(kept)?;
        let prefix = Arc::into_inner(prefix).context("the prefix is in use")?;
        let logits = self.decoder.prefill_after(prefix, kept, self.ids, all, &mut |_| Ok(()))?.logits;
        Ok(self.alike("kept prefix", &format!("{kept} of {all} tokens read before"), &logits, &self.whole))
    }

    /// Checks that decoding gives the same as prefill.
    pub(super) fn decodes(&self) -> Result<Check> {
        let logits = self.steps(1)?.remove(0);
        let limit = tolerance(&[self.decoder.dtype()]);
        let what = format!("the last {STEPS} of {} tokens one by one", self.ids.len());
        Ok(close("decoding", &what, &logits, &self.whole, limit))
    }

    /// Checks that a sequence decoded together with others gives the same as alone.
    pub(super) fn ignores_the_batch(&self) -> Result<Check> {
        let (alone, together) = (self.steps(1)?, self.steps(3)?);
        let differs = together.iter().find(|logits| **logits != alone[0]).unwrap_or(&together[0]);
        Ok(self.alike("batch", "one sequence and three", differs, &alone[0]))
    }

    /// Checks that one thread gives the same as all threads.
    pub(super) fn ignores_threads(&self) -> Result<Check> {
        let pool = ThreadPoolBuilder::new().num_threads(1).build()?;
        let (read, stepped) = pool.install(|| -> Result<_> {
            Ok((self.decoder.prefill(self.ids, self.ids.len())?.logits, self.steps(1)?.remove(0)))
        })?;
        let all = self.steps(1)?.remove(0);
        let what = format!("1 and {}", rayon::current_num_threads());
        Ok(equal("threads", &what, &[read, stepped].concat(), &[self.whole.clone(), all].concat()))
    }

    /// Checks that another decoder of the same weights gives the same.
    pub(super) fn agrees_with(&self, other: &Decoder) -> Result<Check> {
        let theirs = other.prefill(self.ids, self.ids.len())?.logits;
        let limit = tolerance(&[self.decoder.dtype(), other.dtype()]);
        Ok(close("GPU and CPU", "the same text", &self.whole, &theirs, limit))
    }

    fn prefix(&self, tokens: usize) -> Result<Arc<Prefix>> {
        Ok(self.decoder.prefill(&self.ids[..tokens], self.ids.len())?.prefix)
    }

    /// Returns the logits of the last token of `sequences` equal sequences that decode the last tokens in lock-step.
    fn steps(&self, sequences: usize) -> Result<Vec<Vec<f32>>> {
        let start = self.ids.len() - STEPS;
        let mut forks = dense_sequences(self.prefix(start)?, self.decoder.dtype(), sequences)?;
        let mut logits = Vec::new();
        for token in &self.ids[start..] {
            let tokens = [*token];
            let mut streams: Vec<Stream<'_>> = forks.iter_mut().map(|fork| Stream { fork, tokens: &tokens }).collect();
            logits = self.decoder.step(&mut streams, self.ids.len())?;
        }
        Ok(logits)
    }
}

/// Checks that two computations give the same bits.
fn equal(name: &'static str, what: &str, one: &[f32], other: &[f32]) -> Check {
    let largest = difference(one, other);
    match one == other {
        true => Check::pass(name, format!("{what}: the same logits")).measured(0.0, 0.0),
        false => {
            Check::fail(name, format!("{what}: logits differ by {largest:.2e}"), "report this: it is a fault of spattn")
                .measured(largest, 0.0)
        }
    }
}

/// Checks that two computations give the same except for rounding, relative to the size of the logits.
fn close(name: &'static str, what: &str, one: &[f32], other: &[f32], limit: f64) -> Check {
    let size = other.iter().map(|x| f64::from(x.abs())).fold(f64::MIN_POSITIVE, f64::max);
    let relative = difference(one, other) / size;
    match relative <= limit {
        true => Check::pass(name, format!("{what}: logits equal to {relative:.1e}")),
        false => Check::fail(
            name,
            format!("{what}: logits differ by {relative:.1e}"),
            "report this: it is a fault of spattn",
        ),
    }
    .measured(relative, limit)
}

fn difference(one: &[f32], other: &[f32]) -> f64 {
    let differ = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    one.iter().zip(other).map(differ).fold(0.0, |largest, d| if d.is_nan() { f64::INFINITY } else { largest.max(d) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_rounding_are_told_apart() {
        let (one, other) = ([1.0, 2.0], [1.0, 2.000_001]);
        assert!(equal("x", "y", &one, &other).is_failure() && !equal("x", "y", &one, &one).is_failure());
        assert!(!close("x", "y", &one, &other, 1e-3).is_failure());
        assert!(close("x", "y", &one, &[1.0, 2.1], 1e-3).is_failure());
        assert!(close("x", "y", &[f32::NAN, 2.0], &[1.0, f32::NAN], 1e-3).is_failure(), "NaN is no agreement");
    }

    #[test]
    fn a_guess_is_as_surprised_as_there_are_tokens() {
        assert!((surprise_at(&[0.5; 8], 3) - 8.0_f64.ln()).abs() < 1e-12);
        assert!(surprise_at(&[0.0, 9.0], 1) < 0.001);
    }
}
