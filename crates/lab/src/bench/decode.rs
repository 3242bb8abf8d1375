//! A whole decode step of a model with random weights, with a method's attention on random keys and values.

use std::time::Instant;

use anyhow::Result;

use super::attention::{count_steps, shared_out, worked};
use super::row::BenchRow;
use super::turns::{Runs, Turn};
use spattn_attention::{Configured, IndexCache, Sequence, StartError};
use spattn_model::decoder::Decoder;
use spattn_model::engine::Stream;

/// Sequences of one method, one for each context, that are decoded together.
pub struct Decoding<'m> {
    decoder: &'m Decoder,
    sequences: Vec<Sequence>,
    prompt_tokens: usize,
}

impl<'m> Decoding<'m> {
    /// Builds the indexes of `method` on each sequence, or takes those that earlier methods left in `caches`.
    pub fn new(
        decoder: &'m Decoder,
        method: &Configured,
        caches: &mut [IndexCache],
        prompt_tokens: usize,
    ) -> Result<Self, StartError> {
        let start = |cache: &mut IndexCache| -> Result<Sequence, StartError> {
            Ok(cache.fork(method, false)?.with_selection_breakdown())
        };
        Ok(Self { decoder, sequences: caches.iter_mut().map(start).collect::<Result<_, _>>()?, prompt_tokens })
    }
}

impl Runs for Decoding<'_> {
    fn turn(&mut self, number: usize) -> Result<Turn> {
        let before = worked(&self.sequences);
        // Any token will do, as long as all methods get the same one.
        let tokens = [number as u32 % self.decoder.config().vocab_size as u32];
        let start = Instant::now();
        let mut streams: Vec<Stream<'_>> =
            self.sequences.iter_mut().map(|sequence| Stream { fork: sequence, tokens: &tokens }).collect();
        let logits = self.decoder.step(&mut streams, self.prompt_tokens)?;
        let time = start.elapsed();
        std::hint::black_box(&logits);
        let attention = worked(&self.sequences) - before;
        Ok(shared_out(time, attention.elapsed, attention))
    }

    fn count(&self, row: &mut BenchRow) {
        let numbers = self.decoder.step_weight_numbers();
        row.limit_bytes = self.decoder.step_weight_bytes() as u64;
        row.flops = 2 * self.sequences.len() as u64 * numbers as u64;
        count_steps(&self.sequences, row);
    }
}
