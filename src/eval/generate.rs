//! One example under many methods: prefill once, fork, read the rest of the prompt and generate greedily.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::record::Fidelity;
use crate::attention::{Configured, Fork, IndexCache, PromptStats};
use crate::kernels::cpu::topk::argmax;
use crate::model::Model;
use crate::model::decoder::{Decoder, Stream};

/// Prompt tokens that a stream reads in one step; bounds the memory of a step.
const READ_AT_ONCE: usize = 128;

/// What to run an example with.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// How many of its tokens are the dense prefix.
    pub prefix_tokens: usize,
    /// Methods to run, all from the same prefix.
    pub methods: &'a [Configured],
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// A token that ends the answer besides EOS; the first token is then neither of them.
    pub line_end: Option<u32>,
    /// Seed of the example.
    pub seed: u64,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
}

/// What an example gave.
pub struct Outcome {
    /// Time of the shared prefill.
    pub prefill: Duration,
    /// One for each method, in their order.
    pub runs: Vec<Run>,
}

/// What one method gave.
pub struct Run {
    /// Generated tokens, a final EOS included.
    pub tokens: Vec<u32>,
    /// Whether an EOS ended the generation.
    pub stopped: bool,
    /// Tokens read or generated after the prefix and fed through the model.
    pub steps: usize,
    /// Time of those steps: own attention, and a share of the rest by rows.
    pub decode: Duration,
    /// Time of building the method's index; zero where it was shared.
    pub index: Duration,
    /// Density over all layers, over the layers not dense by policy, and the two costs.
    pub density: f64,
    /// See `density`.
    pub density_sparse_layers: f64,
    /// Scoring FLOPs over full attention's.
    pub cost1: f64,
    /// Attention FLOPs over full attention's.
    pub cost2: f64,
    /// Bits per prefix token per KV head.
    pub aux_bits: f64,
    /// Bytes of K, V and auxiliary data read per step, all layers.
    pub kv_bytes_per_step: f64,
    /// Bytes of K and V that the method alone would have to keep in the end.
    pub kv_bytes_held: u64,
    /// Closeness to exact attention, if asked for.
    pub fidelity: Option<Fidelity>,
}

/// Runs an example; `None` if `stop` was raised meanwhile.
pub fn run_example(model: &Model, request: Request<'_>, stop: &AtomicBool) -> Option<Outcome> {
    let decoder = &model.decoder;
    let start = Instant::now();
    let needs = request.methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
    let mut stats = PromptStats::new(&needs, decoder.prompt_shape(request.prefix_tokens));
    let prefix = &request.prompt[..request.prefix_tokens];
    let prefill = decoder.prefill_observed(prefix, request.prompt.len(), &mut |chunk| stats.observe(chunk));
    // What was gathered is part of the indexes that are built on it.
    let prefill_time = start.elapsed().saturating_sub(stats.total_time());
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    let mut cache = IndexCache::new(prefill.prefix, decoder.dtype(), request.seed)
        .with_prompt(request.prompt.len())
        .with_stats(stats);
    if let Some(rotation) = decoder.rotation(request.prompt.len() + request.max_new_tokens) {
        cache = cache.with_rotation(rotation);
    }
    let unread = &request.prompt[request.prefix_tokens..];
    let mut lanes: Vec<Lane> = request
        .methods
        .iter()
        .map(|m| Lane::new(cache.fork(m, request.fidelity), unread, &prefill.logits, &request, model))
        .collect();
    drop(cache);
    let groups = if decoder.is_small() { rayon::current_num_threads().min(lanes.len()) } else { 1 };
    let group = lanes.len().div_ceil(groups.max(1)).max(1);
    lanes.par_chunks_mut(group).for_each(|lanes| run_lanes(decoder, lanes, request.prompt.len(), stop));
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    Some(Outcome { prefill: prefill_time, runs: lanes.into_iter().map(Lane::finish).collect() })
}

/// One method on its way through an example.
struct Lane<'a> {
    fork: Fork,
    /// Prompt tokens still to be read.
    unread: &'a [u32],
    tokens: Vec<u32>,
    done: bool,
    stopped: bool,
    steps: usize,
    decode: Duration,
    eos: &'a [u32],
    line_end: Option<u32>,
    max_new_tokens: usize,
}

impl<'a> Lane<'a> {
    fn new(fork: Fork, unread: &'a [u32], logits: &[f32], request: &Request<'_>, model: &'a Model) -> Self {
        let max_new_tokens = request.max_new_tokens;
        let mut lane = Self {
            fork,
            unread,
            tokens: Vec::new(),
            done: max_new_tokens == 0,
            stopped: false,
            steps: 0,
            decode: Duration::ZERO,
            eos: model.tokenizer.eos_ids(),
            line_end: request.line_end,
            max_new_tokens,
        };
        if unread.is_empty() {
            lane.take(logits);
        }
        lane
    }

    /// Tokens to feed next: a piece of the prompt, or the last generated token.
    fn next(&self) -> Vec<u32> {
        match self.unread.is_empty() {
            false => self.unread[..self.unread.len().min(READ_AT_ONCE)].to_vec(),
            true => self.tokens[self.tokens.len() - 1..].to_vec(),
        }
    }

    /// Notes that `fed` tokens were read and, if the prompt is through, takes the next token.
    fn advance(&mut self, fed: usize, logits: &[f32]) {
        self.steps += fed;
        self.unread = &self.unread[fed.min(self.unread.len())..];
        if self.unread.is_empty() {
            self.take(logits);
        }
    }

    fn take(&mut self, logits: &[f32]) {
        if self.done {
            return;
        }
        let token = match self.line_end {
            Some(_) if self.tokens.is_empty() => self.first_of_line(logits),
            _ => argmax(logits) as u32,
        };
        self.tokens.push(token);
        self.stopped = self.is_end(token);
        self.done = self.stopped || self.tokens.len() >= self.max_new_tokens;
    }

    fn is_end(&self, token: u32) -> bool {
        self.eos.contains(&token) || self.line_end == Some(token)
    }

    /// The likeliest token that does not end the answer.
    fn first_of_line(&self, logits: &[f32]) -> u32 {
        let mut logits = logits.to_vec();
        let ends = (0..logits.len() as u32).filter(|token| self.is_end(*token));
        ends.for_each(|token| logits[token as usize] = f32::NEG_INFINITY);
        argmax(&logits) as u32
    }

    fn finish(self) -> Run {
        let all = self.fork.costs().total(|_| true);
        let sparse = self.fork.costs().total(|layer| !self.fork.is_dense(layer));
        Run {
            stopped: self.stopped,
            steps: self.steps,
            decode: self.decode,
            index: self.fork.index_time(),
            density: all.density(),
            density_sparse_layers: sparse.density(),
            cost1: all.cost1(),
            cost2: all.cost2(),
            aux_bits: self.fork.aux_bits(),
            kv_bytes_per_step: (all.kv_bytes + all.aux_bytes) as f64 / self.steps.max(1) as f64,
            kv_bytes_held: self.fork.kv_bytes_held(),
            fidelity: self.fork.fidelity().map(|f| Fidelity { output_error: f.output_error(), recall: f.recall() }),
            tokens: self.tokens,
        }
    }
}

/// Steps a group of lanes together until all are done.
fn run_lanes(decoder: &Decoder, lanes: &mut [Lane<'_>], prompt_tokens: usize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut active: Vec<&mut Lane> = lanes.iter_mut().filter(|l| !l.done).collect();
        if active.is_empty() {
            return;
        }
        let start = Instant::now();
        let tokens: Vec<Vec<u32>> = active.iter().map(|l| l.next()).collect();
        let before: Vec<Duration> = active.iter().map(|l| l.fork.attend_time()).collect();
        let mut streams: Vec<Stream> =
            active.iter_mut().zip(&tokens).map(|(l, tokens)| Stream { fork: &mut l.fork, tokens }).collect();
        let logits = decoder.step(&mut streams, prompt_tokens);
        let attended: Vec<Duration> = active.iter().zip(before).map(|(l, b)| l.fork.attend_time() - b).collect();
        let rows: usize = tokens.iter().map(Vec::len).sum();
        let rest = start.elapsed().saturating_sub(attended.iter().sum());
        for (((lane, logits), tokens), attended) in active.into_iter().zip(&logits).zip(&tokens).zip(attended) {
            lane.decode += attended + rest.mul_f64(tokens.len() as f64 / rows as f64);
            lane.advance(tokens.len(), logits);
        }
    }
}
