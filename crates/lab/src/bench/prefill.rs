//! Times attention over a whole prompt at one or more layers, dense or by a method's mask, and whole forward passes.

#[cfg(feature = "cuda")]
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::row::BenchRow;
use super::turns::{Runs, Turn};
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::cost::Cost;
use spattn_attention::kv::LayerKv;
use spattn_attention::{Configured, LayerSpecs, PrefillPattern, SparsePrefill, attend_densely};
#[cfg(feature = "cuda")]
use spattn_model::cuda::PromptAlone;
use spattn_model::decoder::Decoder;

/// A prompt at one layer: queries `[row][head][d]`, keys and values.
pub struct Prompt {
    /// The rows' queries, rotated, unscaled.
    pub queries: Vec<f32>,
    /// Query heads.
    pub heads: usize,
    /// Keys and values of all tokens.
    pub kv: LayerKv,
    /// The position of the first row: 0 if the whole prompt is read.
    pub first: usize,
}

impl Prompt {
    /// Returns whether the rows can be read without the earlier ones: the first row begins a block of `method`'s mask, and the mask does
    /// not depend on all rows.
    pub fn begins_block(&self, method: &Configured) -> bool {
        self.first == 0
            || match method.reads().method.prefill_pattern() {
                Some(PrefillPattern::Blocks(mask)) => self.first.is_multiple_of(mask.query_rows()),
                Some(PrefillPattern::Whole(_)) => false,
                _ => true,
            }
    }
}

/// A method that reads a prompt.
pub struct Attending<'p> {
    prompt: &'p Prompt,
    method: &'p Configured,
    seed: u64,
    out: Vec<f32>,
    cost: Cost,
}

impl<'p> Attending<'p> {
    /// Prepares to read `prompt`; `seed` is that of its context.
    pub fn new(prompt: &'p Prompt, method: &'p Configured, seed: u64) -> Self {
        Self { prompt, method, seed, out: vec![0.0; prompt.queries.len()], cost: Cost::default() }
    }

    /// The cost of exact attention: every token attends itself and all tokens before it.
    fn dense_cost(&self) -> Cost {
        let Prompt { heads, kv, first, .. } = self.prompt;
        let seen = |tokens: usize| tokens * (tokens + 1) / 2;
        let pairs = (heads * (seen(kv.tokens()) - seen(*first))) as u64;
        let flops = 4 * kv.keys.d() as u64 * pairs;
        let (attended_tokens, context_tokens) = (pairs, pairs);
        Cost { attended_tokens, context_tokens, attend_flops: flops, full_flops: flops, ..Cost::default() }
    }
}

impl Runs for Attending<'_> {
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let Prompt { queries, heads, kv, first } = self.prompt;
        let chunk = PrefillChunk::new(0, *first, queries, *heads, kv);
        let start = Instant::now();
        match SparsePrefill::new(self.method, &LayerSpecs::uniform(1, chunk.spec()), self.seed) {
            Some(mut sparse) => {
                sparse.attend(&chunk, &mut self.out)?;
                self.cost = sparse.into_costs().total(|_| true);
            }
            None => {
                attend_densely(&chunk, &mut self.out)?;
                self.cost = self.dense_cost();
            }
        }
        let time = start.elapsed();
        std::hint::black_box(&self.out);
        Ok(Turn::of(time))
    }

    fn count(&self, row: &mut BenchRow) {
        let kv = &self.prompt.kv;
        let rows = size_of_val(&self.prompt.queries[..]) + size_of_val(&self.out[..]);
        row.density = self.cost.density();
        row.limit_bytes = (kv.keys.stored_bytes() + kv.values.stored_bytes() + rows) as u64;
        row.bytes = row.limit_bytes;
        row.flops = self.cost.attend_flops + self.cost.score_flops;
    }
}

/// A method that reads a prompt on a GPU.
#[cfg(feature = "cuda")]
pub struct AttendingThere<'p> {
    here: Attending<'p>,
    there: Arc<Mutex<PromptAlone>>,
    batch: usize,
}

#[cfg(feature = "cuda")]
impl<'p> AttendingThere<'p> {
    /// Prepares to read `prompt`, which `there` holds on the device for each of `batch` sequences; `None` if its attention needs the
    /// host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(
        prompt: &'p Prompt,
        there: Arc<Mutex<PromptAlone>>,
        method: &'p Configured,
        seed: u64,
        batch: usize,
    ) -> Result<Option<Self>> {
        let cost = Cost::default();
        let mut reading = Self { here: Attending { prompt, method, seed, out: Vec::new(), cost }, there, batch };
        Ok(reading.read()?.is_some().then_some(reading))
    }

    fn read(&mut self) -> Result<Option<Turn>> {
        let start = Instant::now();
        let Prompt { queries, heads, kv, first } = self.here.prompt;
        let prompt = PrefillChunk::new(0, *first, queries, *heads, kv);
        let specs = LayerSpecs::uniform(1, prompt.spec());
        let mut sparse = SparsePrefill::new(self.here.method, &specs, self.here.seed);
        let times = self.there.lock().unwrap_or_else(PoisonError::into_inner).read(&prompt, sparse.as_mut())?;
        let time = start.elapsed();
        self.here.cost = match sparse {
            Some(sparse) => sparse.into_costs().total(|_| true),
            None => {
                let mut all = Cost::default();
                (0..self.batch).for_each(|_| all += self.here.dense_cost());
                all
            }
        };
        Ok(times.map(|times| Turn { select: times.select, attend: times.attend, ..Turn::of(time) }))
    }
}

#[cfg(feature = "cuda")]
impl Runs for AttendingThere<'_> {
    fn turn(&mut self, _: usize) -> Result<Turn> {
        self.read()?.ok_or_else(|| anyhow!("a prompt that was read on the GPU is not on it any more"))
    }

    fn count(&self, row: &mut BenchRow) {
        self.here.count(row);
        let (kv, width) = (&self.here.prompt.kv, self.here.prompt.queries.len());
        let of_one = kv.keys.stored_bytes() + kv.values.stored_bytes() + 2 * width * kv.keys.dtype().bytes();
        row.limit_bytes = (self.batch * of_one) as u64;
        row.bytes = row.limit_bytes;
    }
}

/// A model that reads a prompt densely, through all of its layers.
pub struct Reading<'m> {
    /// The model.
    pub decoder: &'m Decoder,
    /// The prompt.
    pub tokens: Vec<u32>,
}

impl Runs for Reading<'_> {
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let start = Instant::now();
        let prefill = self.decoder.prefill(&self.tokens, self.tokens.len()).map_err(|e| anyhow!(e))?;
        let time = start.elapsed();
        std::hint::black_box(&prefill.logits);
        Ok(Turn::of(time))
    }

    fn count(&self, row: &mut BenchRow) {
        let (c, tokens) = (self.decoder.config(), self.tokens.len() as u64);
        let width = (2 * c.heads + 2 * c.kv_heads) * c.head_dim + 3 * c.intermediate_size;
        let products = 2 * tokens * (c.layers * c.hidden_size * width) as u64;
        let pairs = (c.layers * c.heads * c.head_dim) as u64 * tokens * (tokens + 1) / 2;
        row.flops = products + 4 * pairs;
        row.limit_bytes = self.decoder.weight_bytes() as u64 + tokens * self.decoder.kv_bytes_per_token() as u64;
        row.bytes = row.limit_bytes;
    }
}
