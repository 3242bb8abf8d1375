//! One example under many methods: prefill once, fork, read the rest of the prompt and generate greedily.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::record::{Fidelity, FidelitySpread, HeadFidelity, Spread, four_digits};
use super::stats;
use crate::attention::{Configured, Fork, IndexCache, PromptStats, RecentQueries};
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
    /// Density over all layers.
    pub density: f64,
    /// Density over the layers not dense by policy.
    pub density_sparse_layers: f64,
    /// Density of each layer.
    pub density_by_layer: Vec<f64>,
    /// Density over the query heads of the layers not dense by policy.
    pub density_spread: Option<Spread>,
    /// What was solved for the density asked for.
    pub solved: Option<String>,
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

/// The shared prefix of an example, read and ready to be forked.
pub(super) struct Prepared {
    /// Time of reading it.
    pub prefill: Duration,
    /// The prefix with what methods may ask of it.
    pub cache: IndexCache,
    /// Logits of the last token of the prefix; empty if the prefix is.
    pub logits: Vec<f32>,
}

impl Prepared {
    /// Reads the first `prefix_tokens` of `prompt` densely; at most `longest` tokens will be in context.
    pub fn new(
        decoder: &Decoder,
        prompt: &[u32],
        prefix_tokens: usize,
        longest: usize,
        methods: &[Configured],
        seed: u64,
    ) -> Self {
        let start = Instant::now();
        let needs = methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
        let mut stats = PromptStats::new(&needs, decoder.prompt_shape(prefix_tokens));
        let mut queries = RecentQueries::default();
        let prefill = decoder.prefill_observed(&prompt[..prefix_tokens], prompt.len(), &mut |chunk| {
            stats.observe(chunk);
            queries.observe(chunk);
        });
        // What was gathered is part of the indexes that are built on it.
        let time = start.elapsed().saturating_sub(stats.total_time());
        let mut cache = IndexCache::new(prefill.prefix, decoder.dtype(), seed)
            .with_prompt(prompt.len())
            .with_stats(stats)
            .with_queries(queries);
        if let Some(rotation) = decoder.rotation(longest) {
            cache = cache.with_rotation(rotation);
        }
        Self { prefill: time, cache, logits: prefill.logits }
    }
}

/// How many lanes share each step: all of them, unless threads work on lanes of their own.
pub(super) fn lanes_together(decoder: &Decoder, lanes: usize) -> usize {
    let groups = if decoder.is_small() { rayon::current_num_threads().min(lanes) } else { 1 };
    lanes.div_ceil(groups.max(1)).max(1)
}

/// Runs an example; `None` if `stop` was raised meanwhile.
pub fn run_example(model: &Model, request: Request<'_>, stop: &AtomicBool) -> Option<Outcome> {
    let Request { prompt, prefix_tokens, methods, max_new_tokens, seed, fidelity } = request;
    let decoder = &model.decoder;
    let Prepared { prefill, mut cache, logits } =
        Prepared::new(decoder, prompt, prefix_tokens, prompt.len() + max_new_tokens, methods, seed);
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    let unread = &prompt[prefix_tokens..];
    let mut lanes: Vec<Lane> =
        methods.iter().map(|m| Lane::new(cache.fork(m, fidelity), unread, &logits, max_new_tokens, model)).collect();
    drop(cache);
    let together = lanes_together(decoder, lanes.len());
    lanes.par_chunks_mut(together).for_each(|lanes| run_lanes(decoder, lanes, prompt.len(), stop));
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    Some(Outcome { prefill, runs: lanes.into_iter().map(Lane::finish).collect() })
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
    max_new_tokens: usize,
}

impl<'a> Lane<'a> {
    fn new(fork: Fork, unread: &'a [u32], logits: &[f32], max_new_tokens: usize, model: &'a Model) -> Self {
        let mut lane = Self {
            fork,
            unread,
            tokens: Vec::new(),
            done: max_new_tokens == 0,
            stopped: false,
            steps: 0,
            decode: Duration::ZERO,
            eos: model.tokenizer.eos_ids(),
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
        let token = argmax(logits) as u32;
        self.tokens.push(token);
        self.stopped = self.eos.contains(&token);
        self.done = self.stopped || self.tokens.len() >= self.max_new_tokens;
    }

    fn finish(self) -> Run {
        let run = Run::of(&self.fork, self.steps, self.decode);
        Run { tokens: self.tokens, stopped: self.stopped, ..run }
    }
}

impl Run {
    /// What `fork` counted over so many steps; nothing was generated.
    pub(super) fn of(fork: &Fork, steps: usize, decode: Duration) -> Self {
        let all = fork.costs().total(|_| true);
        let sparse = fork.costs().total(|layer| !fork.is_dense(layer));
        Self {
            tokens: Vec::new(),
            stopped: false,
            steps,
            decode,
            index: fork.index_time(),
            density: all.density(),
            density_sparse_layers: sparse.density(),
            cost1: all.cost1(),
            cost2: all.cost2(),
            aux_bits: fork.aux_bits(),
            kv_bytes_per_step: (all.kv_bytes + all.aux_bytes) as f64 / steps.max(1) as f64,
            kv_bytes_held: fork.kv_bytes_held(),
            density_by_layer: fork.costs().layers().iter().map(|cost| four_digits(cost.density())).collect(),
            density_spread: spread(fork, &densities(fork)),
            solved: fork.solved().map(str::to_owned),
            fidelity: fidelity(fork),
        }
    }
}

/// Density `[layer][query head]`.
fn densities(fork: &Fork) -> Vec<Vec<f64>> {
    let costs = fork.costs();
    (0..costs.layers().len()).map(|layer| costs.head_densities(layer)).collect()
}

/// Over the heads of the layers that are not dense by policy, of numbers `[layer][query head]`.
fn spread(fork: &Fork, by_head: &[Vec<f64>]) -> Option<Spread> {
    let sparse = by_head.iter().enumerate().filter(|(layer, _)| !fork.is_dense(*layer));
    Spread::of(sparse.flat_map(|(_, heads)| heads.iter().copied()))
}

fn fidelity(fork: &Fork) -> Option<Fidelity> {
    let meter = fork.fidelity()?;
    let (error, recall, dropped) = (meter.output_error(), meter.recall(), meter.dropped_mass());
    // A layer that never attended has missed nothing.
    let by_layer = |heads: &[Vec<f64>], of_none: f64| -> Vec<f64> {
        heads.iter().map(|layer| if layer.is_empty() { of_none } else { stats::mean(layer) }).collect()
    };
    let spread = match (spread(fork, &error), spread(fork, &recall), spread(fork, &dropped)) {
        (Some(output_error), Some(recall), Some(dropped_mass)) => {
            Some(FidelitySpread { output_error, recall, dropped_mass })
        }
        _ => None,
    };
    let short = |heads: &[Vec<f64>]| -> Vec<Vec<f64>> {
        heads.iter().map(|layer| layer.iter().copied().map(four_digits).collect()).collect()
    };
    Some(Fidelity {
        output_error: by_layer(&error, 0.0),
        recall: by_layer(&recall, 1.0),
        dropped_mass: by_layer(&dropped, 0.0),
        spread,
        heads: Some(HeadFidelity {
            density: short(&densities(fork)),
            output_error: short(&error),
            recall: short(&recall),
            dropped_mass: short(&dropped),
        }),
    })
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
