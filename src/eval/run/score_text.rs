//! One passage under many methods: prefill once, fork, and read the continuations with every method live.
//!
//! What is scored is what decoding would see: each token is attended by its method, one after the other, over the
//! keys that the method itself left behind. Only the weights are shared by several tokens at a time, which changes
//! no bit. Where distributions are compared with those of `full`, a lane of `full` runs ahead of the others, asked
//! for or not, so that no record depends on what ran beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rayon::prelude::*;

use super::generate::lanes_together;
use super::method_result::MethodResult;
use super::prefix_reuse::{PreparedPrefix, ReusablePrefix, SharedPrefix};
use super::shared_prefill;
use super::solo::{self, Script};
use super::stopwatch::{PhaseTimes, Stopwatch};
use super::time_attribution::{Clock, Piece, Step, pool_weights, share_out};
use crate::eval::records::fidelity::four_digits;
use crate::eval::records::record::REFERENCE;
use crate::eval::records::timing::StepTime;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, IndexCache, Policy, Sequence, SparsePrefill, expand_grid};
use spattn_base::error::UsageError;
use spattn_kernels::topk::argmax;
use spattn_model::decoder::Decoder;
use spattn_model::engine::{EngineError, READ_AT_ONCE, Stream};
use spattn_tasks::likelihood::Continuation;

/// Bytes of logits that are there at a time, about.
const LOGIT_BYTES: usize = 64 << 20;

/// What to run a passage with.
#[derive(Debug, Clone, Copy)]
pub struct ScoringRequest<'a> {
    /// All tokens before the continuations.
    pub prompt: &'a [u32],
    /// How many of its tokens are the dense prefix.
    pub prefix_tokens: usize,
    /// Tokens of the prefixes that begin with this one and are run next, one going on from the other; ascending.
    pub longer: &'a [usize],
    /// What is scored, each after the prompt.
    pub continuations: &'a [TextToScore<'a>],
    /// Methods to run, all from the same prefix.
    pub methods: &'a [Configured],
    /// Seed of the example.
    pub seed: u64,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
    /// Whether to compare each distribution with that of `full`.
    pub compare: bool,
    /// Whether to time each method alone as well, when all are done.
    pub solo: bool,
}

/// A continuation of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct TextToScore<'a> {
    /// Its tokens; at least one more than are given.
    pub tokens: &'a [u32],
    /// How many of the first are read and not scored; at least one if the prompt is empty.
    pub given: usize,
}

impl<'a> From<&'a [u32]> for TextToScore<'a> {
    /// All of it is scored.
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, given: 0 }
    }
}

impl<'a> From<&'a Continuation> for TextToScore<'a> {
    fn from(continuation: &'a Continuation) -> Self {
        Self { tokens: &continuation.tokens, given: continuation.given }
    }
}

/// What a passage gave.
pub struct ScoringResult {
    /// Time of the shared prefill; of tokens that were read for a passage before, the time that took.
    pub prefill: Duration,
    /// How much of it was spent for a passage before.
    pub reused: Duration,
    /// Tokens that were not read again.
    pub reused_tokens: usize,
    /// Where the time went.
    pub spent: PhaseTimes,
    /// One for each method, in their order.
    pub runs: Vec<TextResult>,
}

/// What one method gave.
pub struct TextResult {
    /// What it cost, over all continuations.
    pub run: MethodResult,
    /// One for each continuation, in their order.
    pub sums: Vec<Sums>,
}

/// What a method made of a continuation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// Negative log-likelihood of its tokens, in nats.
    pub nll: f64,
    /// Tokens at which the most probable one is that of `full`; 0 if that was not compared.
    pub same_top: usize,
    /// Sum over tokens of `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The same at every token, to four digits; empty if it was not compared.
    pub kl: Vec<f64>,
}

impl Sums {
    /// Takes in the distribution at one token, and that of `full` there if they are to be compared.
    fn take(&mut self, logits: &[f32], target: u32, full: Option<&Distribution>) {
        let log_z = log_sum_exp(logits);
        self.nll += log_z - f64::from(logits[target as usize]);
        let Some(full) = full else { return };
        let kl = full.divergence(logits, log_z);
        self.same_top += usize::from(argmax(logits) == full.top);
        self.kl_sum += kl;
        self.kl.push(four_digits(kl));
    }
}

/// What `full` makes of the next token.
struct Distribution {
    logits: Vec<f32>,
    log_z: f64,
    probabilities: Vec<f64>,
    top: usize,
}

impl Distribution {
    fn new(logits: &[f32]) -> Self {
        let log_z = log_sum_exp(logits);
        let probabilities = logits.iter().map(|l| (f64::from(*l) - log_z).exp()).collect();
        Self { logits: logits.to_vec(), log_z, probabilities, top: argmax(logits) }
    }

    /// `KL(self ‖ other)` in nats; at least 0, whatever is lost to rounding.
    fn divergence(&self, other: &[f32], log_z: f64) -> f64 {
        let shift = log_z - self.log_z;
        let terms = self.probabilities.iter().zip(&self.logits).zip(other);
        terms.map(|((p, a), b)| p * (f64::from(*a) - f64::from(*b) + shift)).sum::<f64>().max(0.0)
    }
}

/// `ln Σ exp(logit)`, summed in 64 bits in the order of the vocabulary.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|l| (f64::from(*l) - max).exp()).sum::<f64>().ln()
}

/// Runs a passage with its methods live; `None` if `stop` was raised meanwhile. `held` is what the passage before left,
/// and then what this one leaves.
///
/// # Errors
/// [`EngineError`]; of the prompt that methods share, it says that none of them is at fault.
pub fn run_passage(
    decoder: &Decoder,
    request: ScoringRequest<'_>,
    held: &mut Option<ReusablePrefix>,
    stop: &AtomicBool,
) -> Result<Option<ScoringResult>> {
    let ScoringRequest { prompt, prefix_tokens, longer, continuations, methods, seed, .. } = request;
    let longest = prompt.len() + continuations.iter().map(|c| c.tokens.len()).max().unwrap_or(0);
    // The last token of a continuation is predicted, and not read.
    let read: usize = continuations.iter().map(|c| c.tokens.len().saturating_sub(1)).sum();
    let (given, reader, step_seed) = (read / continuations.len().max(1), None, seed);
    let shared =
        SharedPrefix { prompt, tokens: prefix_tokens, longer, longest, given, methods, reader, seed, step_seed };
    let (mut laps, mut spent) = (Stopwatch::start(), PhaseTimes::default());
    let mut prepared = shared.prepared(decoder, held.take())?;
    spent.prefill = laps.lap();
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut lanes: Vec<ScoringRun> = methods.iter().flat_map(|m| lanes_of(m, prepared.held.cache(), request)).collect();
    // Each continuation's lane of `full`: one that was asked for, or one more.
    let mut reference = Vec::new();
    let own = methods.iter().position(|m| m.name == REFERENCE);
    if request.compare {
        reference = match own {
            Some(at) => lanes.drain(at * continuations.len()..(at + 1) * continuations.len()).collect(),
            None => {
                lanes_of(&reference_method()?, prepared.held.cache(), ScoringRequest { fidelity: false, ..request })
            }
        };
    }
    spent.index = laps.lap();
    let prefill = prepared.prefill();
    let PreparedPrefix { held: read, reused, reused_tokens } = prepared;
    let read = held.insert(read);
    let streams = lanes.len() + reference.len();
    read_all(decoder, &mut lanes, &mut reference, read.logits(), prompt.len(), stop)?;
    spent.steps = laps.lap();
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut all: Vec<(&mut StepTime, usize)> =
        lanes.iter_mut().chain(&mut reference).map(|lane| (&mut lane.parts, lane.read)).collect();
    pool_weights(&mut all);
    share_out(all.into_iter().map(|(parts, _)| parts), spent.steps);
    if let Some(at) = own.filter(|_| request.compare) {
        let place = at * continuations.len();
        lanes.splice(place..place, reference);
    }
    let mut alone = Vec::new();
    if request.solo {
        let scripts: Vec<Script> = lanes.chunks(continuations.len()).map(|lanes| lanes[0].script()).collect();
        let times = solo::time(decoder, read.cache(), &scripts, prompt.len(), stop)?;
        let Some(times) = times else { return Ok(None) };
        alone = times;
        spent.solo = laps.lap();
    }
    let (mut lanes, mut alone) = (lanes.into_iter(), alone.into_iter());
    let mut of_method = |lanes: Vec<ScoringRun<'_>>| {
        let scored = finish(lanes);
        TextResult { run: MethodResult { together: streams, solo: alone.next().flatten(), ..scored.run }, ..scored }
    };
    let runs = methods.iter().map(|_| of_method(lanes.by_ref().take(continuations.len()).collect())).collect();
    Ok(Some(ScoringResult { prefill, reused, reused_tokens, spent, runs }))
}

/// Runs a passage in one pass over all tokens for each method, by its prefill pattern, as the papers measure
/// perplexity: what a run is that is sparse from the first token, and for `full` the check on [`run_passage`]. `None` if
/// `stop` was raised meanwhile.
///
/// # Errors
/// As [`run_passage`].
pub fn run_in_parallel(
    decoder: &Decoder,
    request: ScoringRequest<'_>,
    stop: &AtomicBool,
) -> Result<Option<ScoringResult>> {
    let ScoringRequest { methods, compare, .. } = request;
    let dense = match compare || methods.iter().any(|m| !m.masks_prefill()) {
        true => shared_prefill::shared(true, || Ok(Pass::read_all(decoder, request, None, stop)?))?,
        false => Some(Vec::new()),
    };
    let Some(mut dense) = dense else { return Ok(None) };
    let time = |passes: &[Pass]| passes.iter().map(|pass| pass.time).sum::<Duration>();
    let (prefill, mut spent, mut runs) = (time(&dense), PhaseTimes::default(), Vec::new());
    for method in methods {
        let mut own = match method.masks_prefill() {
            true => match Pass::read_all(decoder, request, Some(method.reads()), stop)? {
                None => return Ok(None),
                read => read,
            },
            false => None,
        };
        let forks = own.as_mut().unwrap_or(&mut dense).iter_mut().map(|pass| pass.cache.fork(method, false)).collect();
        let passes = own.as_ref().unwrap_or(&dense);
        let sums = passes.iter().enumerate().map(|(i, pass)| pass.sums(decoder, dense.get(i).filter(|_| compare)));
        let sums = sums.collect::<Result<_, _>>()?;
        let own_time = own.as_deref().map(time);
        spent.prefill += own_time.unwrap_or_default();
        runs.push(TextResult {
            run: MethodResult { prefill: own_time, ..together(forks, 0, StepTime::default()) },
            sums,
        });
    }
    spent.prefill += prefill;
    Ok(Some(ScoringResult { prefill, reused: Duration::ZERO, reused_tokens: 0, spent, runs }))
}

/// A prompt with one continuation, read in one pass.
struct Pass<'a> {
    cache: IndexCache,
    /// `[token][hidden]` behind the last layer, of the tokens that predict what is scored.
    rows: Vec<f32>,
    /// Position of the first of these.
    from: usize,
    scored: &'a [u32],
    time: Duration,
}

impl<'a> Pass<'a> {
    /// A pass for each continuation, by a method that masks its prefill or densely; `None` if `stop` was raised.
    fn read_all(
        decoder: &Decoder,
        request: ScoringRequest<'a>,
        method: Option<&Configured>,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Self>>, EngineError> {
        let read = |continuation: &TextToScore<'a>| {
            (!stop.load(Ordering::Relaxed)).then(|| Self::read(decoder, request, *continuation, method)).transpose()
        };
        let passes: Vec<Option<Self>> = request.continuations.iter().map(read).collect::<Result<_, _>>()?;
        Ok(passes.into_iter().collect())
    }

    fn read(
        decoder: &Decoder,
        request: ScoringRequest<'_>,
        continuation: TextToScore<'a>,
        method: Option<&Configured>,
    ) -> Result<Self, EngineError> {
        let start = Instant::now();
        // The last token predicts nothing that is scored.
        let read = [request.prompt, &continuation.tokens[..continuation.tokens.len() - 1]].concat();
        let from = request.prompt.len() + continuation.given - 1;
        let sparse = method.and_then(|m| SparsePrefill::new(m, decoder.layer_specs(), request.seed));
        let mut sparse = sparse.map(|sparse| sparse.with_rotation(decoder.rotation(read.len())));
        let (prefill, rows) = decoder.prefill_rows(&read, from, sparse.as_mut())?;
        let cache = IndexCache::new(prefill.prefix, decoder.dtype(), request.seed);
        let cache = match sparse {
            Some(sparse) => cache.with_reading(sparse.into_costs()),
            None => cache,
        };
        Ok(Self { cache, rows, from, scored: &continuation.tokens[continuation.given..], time: start.elapsed() })
    }

    /// What its distributions make of the scored tokens, compared with those of a pass of `full` if there is one.
    fn sums(&self, decoder: &Decoder, full: Option<&Pass<'_>>) -> Result<Sums, EngineError> {
        /// Tokens whose logits are there at a time.
        const AT_ONCE: usize = 64;
        let (hidden, vocab) = (decoder.config().hidden_size, decoder.config().vocab_size);
        let logits_of = |pass: &Pass<'_>, block: usize, tokens: usize| {
            let first = block * AT_ONCE;
            decoder.logits(&pass.rows[first * hidden..(first + tokens) * hidden], |row| pass.from + first + row)
        };
        let mut sums = Sums::default();
        for (block, scored) in self.scored.chunks(AT_ONCE).enumerate() {
            let full = full.map(|full| logits_of(full, block, scored.len())).transpose()?;
            let full: Option<Vec<Distribution>> =
                full.map(|logits| logits.par_chunks_exact(vocab).map(Distribution::new).collect());
            let logits = logits_of(self, block, scored.len())?;
            for (i, (logits, token)) in logits.chunks_exact(vocab).zip(scored).enumerate() {
                sums.take(logits, *token, full.as_ref().map(|full| &full[i]));
            }
        }
        Ok(sums)
    }
}

fn reference_method() -> Result<Configured, UsageError> {
    let specs = expand_grid(REFERENCE)?;
    configure(&specs[0], &Policy::default())
}

/// One continuation under one method.
struct ScoringRun<'a> {
    fork: Sequence,
    /// Prompt tokens still to be read when it starts.
    unread: &'a [u32],
    continuation: TextToScore<'a>,
    /// Which continuation of the passage this is.
    number: usize,
    /// Tokens read so far.
    read: usize,
    sums: Sums,
    parts: StepTime,
}

/// A lane for each continuation, on one index.
fn lanes_of<'a>(method: &Configured, cache: &mut IndexCache, request: ScoringRequest<'a>) -> Vec<ScoringRun<'a>> {
    let mut lanes: Vec<ScoringRun> = Vec::new();
    for (number, continuation) in request.continuations.iter().enumerate() {
        // What had to be solved for a density is solved once.
        let method = lanes.first().map_or(method, |first| first.fork.method()).clone();
        lanes.push(ScoringRun {
            fork: cache.fork(&method, request.fidelity),
            unread: &request.prompt[request.prefix_tokens..],
            continuation: *continuation,
            number,
            read: 0,
            sums: Sums::default(),
            parts: StepTime::default(),
        });
    }
    lanes
}

/// The lanes of one method, of which there is at least one, as one run.
fn finish(mut lanes: Vec<ScoringRun<'_>>) -> TextResult {
    let sums = lanes.iter_mut().map(|lane| std::mem::take(&mut lane.sums)).collect();
    let (steps, mut parts) = (lanes.iter().map(|lane| lane.read).sum(), StepTime::default());
    lanes.iter().for_each(|lane| parts += lane.parts);
    TextResult { run: together(lanes.into_iter().map(|lane| lane.fork).collect(), steps, parts), sums }
}

/// The forks of one method, of which there is at least one, as one run.
fn together(mut forks: Vec<Sequence>, steps: usize, parts: StepTime) -> MethodResult {
    let solved = forks[0].solved().map(str::to_owned);
    // What has to be kept in the end is what the longest needs.
    let longest = argmax(&forks.iter().map(|fork| fork.tokens() as f32).collect::<Vec<_>>());
    let mut fork = forks.swap_remove(longest);
    forks.iter().for_each(|other| fork.merge_counters(other));
    MethodResult { solved, ..MethodResult::of(&fork, steps, parts) }
}

impl ScoringRun<'_> {
    /// The token at a place of what is read: the rest of the prompt, then the continuation but for its last token.
    fn token(&self, at: usize) -> u32 {
        match at.checked_sub(self.unread.len()) {
            None => self.unread[at],
            Some(at) => self.continuation.tokens[at],
        }
    }

    /// Tokens to be read in all.
    fn length(&self) -> usize {
        self.unread.len() + self.continuation.tokens.len() - 1
    }

    /// What it read.
    fn script(&self) -> Script {
        let tokens = (0..self.length()).map(|at| self.token(at)).collect();
        Script { method: self.fork.method().clone(), of_prompt: self.unread.len(), tokens }
    }

    /// The next tokens, `most` at most; none when all is read.
    fn next(&self, most: usize) -> Vec<u32> {
        (self.read..self.length().min(self.read + most)).map(|at| self.token(at)).collect()
    }

    /// What `full` makes of those of the next tokens that are scored, from their logits.
    fn distributions(&self, logits: &[f32], vocab: usize) -> Vec<Option<Distribution>> {
        let first = (self.unread.len() + self.continuation.given).saturating_sub(self.read + 1);
        let scored = |i: usize| i >= first;
        let rows = logits.par_chunks_exact(vocab).enumerate();
        rows.map(|(i, logits)| scored(i).then(|| Distribution::new(logits))).collect()
    }

    /// Takes in the logits after the next tokens, and what `full` makes of the same.
    fn take(&mut self, logits: &[f32], vocab: usize, full: &[Option<Distribution>]) {
        for (i, logits) in logits.chunks_exact(vocab).enumerate() {
            // The logits after the last prompt token are those of the continuation's first.
            let target = (self.read + 1).checked_sub(self.unread.len()).filter(|at| *at >= self.continuation.given);
            if let Some(target) = target {
                self.sums.take(logits, self.continuation.tokens[target], full.get(i).and_then(Option::as_ref));
            }
            self.read += 1;
        }
    }
}

/// Reads all lanes to their end, in lock-step, those of `full` before the others.
fn read_all<'a>(
    decoder: &Decoder,
    lanes: &mut [ScoringRun<'a>],
    reference: &mut [ScoringRun<'a>],
    prefix_logits: &[f32],
    prompt_tokens: usize,
    stop: &AtomicBool,
) -> Result<(), EngineError> {
    let vocab = decoder.config().vocab_size;
    let count = lanes.len() + reference.len();
    let most = (LOGIT_BYTES / (4 * vocab * count.max(1))).clamp(1, READ_AT_ONCE);
    let compare = !reference.is_empty();
    // Where the whole prompt is the prefix, its last logits are the same for all.
    let at_start = |lane: &&mut ScoringRun| lane.unread.is_empty() && lane.continuation.given == 0;
    for lane in lanes.iter_mut().chain(reference.iter_mut()).filter(at_start) {
        let full = compare.then(|| Distribution::new(prefix_logits));
        lane.sums.take(prefix_logits, lane.continuation.tokens[0], full.as_ref());
    }
    let together = lanes_together(decoder, lanes.len());
    let clock = Clock::of_groups(lanes.len(), together);
    while !stop.load(Ordering::Relaxed) && lanes.iter().chain(reference.iter()).any(|l| l.read < l.length()) {
        let mut round = || -> Result<(), EngineError> {
            let full = read_ahead(decoder, reference, most, prompt_tokens, clock)?;
            lanes.par_chunks_mut(together).try_for_each(|lanes| {
                let logits = step(decoder, lanes, most, prompt_tokens, clock)?;
                for (lane, logits) in lanes.iter_mut().zip(&logits) {
                    let scoring = Piece::begin(clock);
                    lane.take(logits, vocab, full.get(lane.number).map_or(&[], Vec::as_slice));
                    lane.parts.beside += scoring.end().as_secs_f64();
                }
                Ok(())
            })
        };
        // The processor's clock is that of one thread, which then has to take part in the work.
        match clock {
            Clock::Wall => round(),
            Clock::Processor => rayon::scope(|_| round()),
        }?;
    }
    decoder.collect_device_counters(lanes.iter_mut().chain(reference).map(|lane| &mut lane.fork))
}

/// Feeds lanes of `full` their next tokens, one lane after the other; what each makes of those that are scored.
fn read_ahead(
    decoder: &Decoder,
    reference: &mut [ScoringRun<'_>],
    most: usize,
    prompt_tokens: usize,
    clock: Clock,
) -> Result<Vec<Vec<Option<Distribution>>>, EngineError> {
    let vocab = decoder.config().vocab_size;
    let read = |lane: &mut ScoringRun<'_>| {
        let logits = step(decoder, std::slice::from_mut(lane), most, prompt_tokens, clock)?.concat();
        let scoring = Piece::begin(clock);
        let full = lane.distributions(&logits, vocab);
        lane.take(&logits, vocab, &full);
        lane.parts.beside += scoring.end().as_secs_f64();
        Ok(full)
    };
    reference.iter_mut().map(read).collect()
}

/// Feeds each lane its next tokens, `most` at most; the logits `[token][vocab_size]` after each, none for a lane that is
/// through.
fn step(
    decoder: &Decoder,
    lanes: &mut [ScoringRun<'_>],
    most: usize,
    prompt_tokens: usize,
    clock: Clock,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let measured = Step::begin(clock, lanes.iter().map(|lane| &lane.fork));
    let tokens: Vec<Vec<u32>> = lanes.iter().map(|lane| lane.next(most)).collect();
    let busy = lanes.iter_mut().zip(&tokens).filter(|(_, tokens)| !tokens.is_empty());
    let mut streams: Vec<Stream> = busy.map(|(lane, tokens)| Stream { fork: &mut lane.fork, tokens }).collect();
    let mut logits = match streams.is_empty() {
        true => Vec::new(),
        false => decoder.step_all(&mut streams, prompt_tokens)?,
    }
    .into_iter();
    let rows: Vec<usize> = tokens.iter().map(Vec::len).collect();
    let parts = measured.end(lanes.iter().map(|lane| &lane.fork), &rows);
    lanes.iter_mut().zip(parts).for_each(|(lane, parts)| lane.parts += parts);
    Ok(tokens.iter().map(|t| if t.is_empty() { Vec::new() } else { logits.next().unwrap_or_default() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_model::Model;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn logits_become_probabilities_and_a_divergence() {
        let (full, ours): ([f64; 3], [f64; 3]) = ([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]);
        // Logits are probabilities' logarithms up to what is added to all, large enough to be beyond `exp`.
        let logits = |p: [f64; 3], shift: f64| p.map(|p| (p.ln() + shift) as f32);
        let (dense, sparse) = (logits(full, 1000.0), logits(ours, -5.0));
        assert!((log_sum_exp(&dense) - 1000.0).abs() < 1e-3 && (log_sum_exp(&sparse) + 5.0).abs() < 1e-5);
        let of_full = Distribution::new(&dense);
        assert_eq!(of_full.top, 0);
        assert!(of_full.probabilities.iter().zip(full).all(|(found, p)| (found - p).abs() < 1e-3));
        let divergence: f64 = full.iter().zip(ours).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((of_full.divergence(&sparse, log_sum_exp(&sparse)) - divergence).abs() < 1e-3);
        assert_eq!(of_full.divergence(&dense, log_sum_exp(&dense)), 0.0);

        let mut sums = Sums::default();
        sums.take(&sparse, 1, None);
        assert!((sums.nll + 0.3f64.ln()).abs() < 1e-5);
        assert_eq!(sums, Sums { nll: sums.nll, ..Sums::default() }, "nothing was compared");
        sums.take(&sparse, 2, Some(&of_full));
        sums.take(&dense, 0, Some(&of_full));
        assert!((sums.nll + (0.3f64 * 0.6 * 0.5).ln()).abs() < 1e-3);
        assert!((sums.kl_sum - divergence).abs() < 1e-3 && (sums.kl[0] - divergence).abs() < 1e-3);
        assert_eq!((sums.same_top, sums.kl.len(), sums.kl[1]), (1, 2, 0.0));
    }

    fn model() -> (Model, Vec<u32>) {
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let text: String = (0..24).map(|i| format!("The door of room {i} opens with key {}. ", 7 * i % 23)).collect();
        let ids = model.tokenizer.encode_text(&text, true).unwrap();
        assert!(ids.len() > 200, "{}", ids.len());
        (model, ids)
    }

    fn methods(specs: &[&str]) -> Vec<Configured> {
        let policy = Policy { sink: 1, local: 4, ..Policy::default() };
        specs.iter().map(|spec| configure(&expand_grid(spec).unwrap()[0], &policy).unwrap()).collect()
    }

    fn run(model: &Model, request: ScoringRequest<'_>) -> ScoringResult {
        run_passage(&model.decoder, request, &mut None, &AtomicBool::new(false)).unwrap().unwrap()
    }

    /// Negative log-likelihood of `ids` after those before `from`, of one dense pass.
    fn in_one_pass(model: &Model, ids: &[u32], from: usize) -> f64 {
        let (_, rows) = model.decoder.prefill_rows(&ids[..ids.len() - 1], from - 1, None).unwrap();
        let logits = model.decoder.logits(&rows, |row| row).unwrap();
        let rows = logits.chunks_exact(model.decoder.config().vocab_size);
        rows.zip(&ids[from..]).map(|(row, id)| log_sum_exp(row) - f64::from(row[*id as usize])).sum()
    }

    #[test]
    fn what_decoding_sees_is_scored_wherever_the_prefix_ends() {
        let (model, ids) = model();
        let prompt = 150;
        // More than one step's tokens, and none that goes on from the other.
        let texts = [
            TextToScore { tokens: &ids[prompt..], given: 0 },
            TextToScore { tokens: &ids[prompt..prompt + 9], given: 4 },
        ];
        let methods = methods(&["topk:k=4", "full"]);
        for prefix_tokens in [prompt, prompt - 1] {
            let request = ScoringRequest {
                prompt: &ids[..prompt],
                prefix_tokens,
                longer: &[],
                continuations: &texts,
                methods: &methods,
                seed: 1,
                fidelity: false,
                compare: true,
                solo: false,
            };
            let outcome = run(&model, request);
            assert_eq!((outcome.reused_tokens, outcome.runs.len()), (0, 2));
            let [topk, full] = [&outcome.runs[0], &outcome.runs[1]];
            let dense = [in_one_pass(&model, &ids, prompt), in_one_pass(&model, &ids[..prompt + 9], prompt + 4)];
            let scored = [ids.len() - prompt, 5];
            for at in 0..2 {
                assert!((full.sums[at].nll - dense[at]).abs() < 1e-2 * dense[at], "{:?}, {dense:?}", full.sums[at].nll);
                assert_eq!((full.sums[at].kl_sum, full.sums[at].same_top), (0.0, scored[at]), "of itself");
                assert_eq!(topk.sums[at].kl.len(), scored[at]);
                let listed: f64 = topk.sums[at].kl.iter().sum();
                assert!((listed - topk.sums[at].kl_sum).abs() < 1e-3 * listed && listed > 0.0);
            }
            // Each continuation is fed what is left of the prompt and all of its tokens but the last.
            let left = prompt - prefix_tokens;
            assert_eq!((full.run.steps, topk.run.steps), (2 * left + scored[0] + 9 - 2, full.run.steps));
            assert_eq!((full.run.density, full.run.together), (1.0, 4));
            assert!(topk.run.density < 1.0 && topk.run.decode > Duration::ZERO);
            assert_eq!(full.run.kv_tokens.context, ids.len() - 1, "the longest");

            let alone = run(&model, ScoringRequest { methods: &methods[..1], ..request });
            assert_eq!(alone.runs[0].sums, topk.sums, "the lane of `full` is there, asked for or not");
            assert_eq!(alone.runs[0].run.together, 4);
            let plain = run(&model, ScoringRequest { compare: false, ..request });
            assert!(plain.runs[0].sums[0].kl.is_empty() && plain.runs[0].sums[0].nll == topk.sums[0].nll);
            assert_eq!((plain.runs[1].sums[0].same_top, plain.runs[1].sums[0].nll), (0, full.sums[0].nll));
        }
    }

    #[test]
    fn a_prefix_that_the_budget_covers_is_attended_whole() {
        let (model, ids) = model();
        let methods = methods(&["topk:k=4", "full"]);
        // What is left of the longer prompt is read in two steps.
        for prompt in [60, 150] {
            let texts = [TextToScore { tokens: &ids[prompt..prompt + 9], given: 4 }];
            let request = ScoringRequest {
                prompt: &ids[..prompt],
                prefix_tokens: 7,
                longer: &[],
                continuations: &texts,
                methods: &methods,
                seed: 1,
                fidelity: false,
                compare: true,
                solo: false,
            };
            let outcome = run(&model, request);
            let [topk, full] = [&outcome.runs[0], &outcome.runs[1]];
            // Picks are summed up behind the rest, and rounding differs.
            assert_eq!((topk.run.density, topk.sums[0].kl.len()), (1.0, 5));
            assert!(topk.sums[0].kl_sum < 1e-2, "{}", topk.sums[0].kl_sum);
            let near = |nll: f64, other: f64| (nll - other).abs() < 1e-2 * other;
            let dense = in_one_pass(&model, &ids[..prompt + 9], prompt + 4);
            assert!(near(full.sums[0].nll, dense) && near(topk.sums[0].nll, dense), "{dense}");
        }
    }

    #[test]
    fn one_pass_gives_what_decoding_gives() {
        let (model, ids) = model();
        let texts = [TextToScore::from(&ids[90..]), TextToScore { tokens: &ids[90..99], given: 2 }];
        let methods = methods(&["full", "streaming_llm:window=16"]);
        let request = ScoringRequest {
            prompt: &ids[..90],
            prefix_tokens: 90,
            longer: &[],
            continuations: &texts,
            methods: &methods,
            seed: 1,
            fidelity: false,
            compare: true,
            solo: false,
        };
        let never = AtomicBool::new(false);
        let outcome = run_in_parallel(&model.decoder, request, &never).unwrap().unwrap();
        let dense = [in_one_pass(&model, &ids, 90), in_one_pass(&model, &ids[..99], 92)];
        let [full, window] = [&outcome.runs[0], &outcome.runs[1]];
        for (at, scored) in [ids.len() - 90, 7].into_iter().enumerate() {
            assert!((full.sums[at].nll - dense[at]).abs() < 1e-3 * dense[at]);
            assert_eq!((full.sums[at].same_top, full.sums[at].kl_sum), (scored, 0.0));
            assert!(window.sums[at].kl_sum > 0.0 && window.sums[at].kl.len() == scored);
        }
        assert!(full.run.prefill.is_none() && window.run.prefill.is_some_and(|time| time > Duration::ZERO));
        assert_eq!((full.run.steps, outcome.reused_tokens), (0, 0));
        assert_eq!(outcome.spent.prefill, outcome.prefill + window.run.prefill.unwrap());
        let plain =
            run_in_parallel(&model.decoder, ScoringRequest { compare: false, ..request }, &never).unwrap().unwrap();
        assert_eq!(plain.runs[1].sums[0].nll, window.sums[0].nll);
        assert!(plain.runs[1].sums[0].kl.is_empty());
    }

    #[test]
    fn a_run_that_is_stopped_gives_nothing() {
        let (model, ids) = model();
        let texts = [TextToScore::from(&ids[60..70])];
        let methods = methods(&["full"]);
        let request = ScoringRequest {
            prompt: &ids[..60],
            prefix_tokens: 60,
            longer: &[],
            continuations: &texts,
            methods: &methods,
            seed: 1,
            fidelity: false,
            compare: false,
            solo: false,
        };
        let raised = AtomicBool::new(true);
        assert!(run_passage(&model.decoder, request, &mut None, &raised).unwrap().is_none());
        assert!(run_in_parallel(&model.decoder, request, &raised).unwrap().is_none());
    }
}
