//! One example under many methods: prefill once, fork, read the rest of the prompt and generate greedily.
//!
//! `prefix_reuse` reads the prefix; the results are in `method_result`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rayon::prelude::*;

use super::method_result::MethodResult;
use super::prefix_reuse::{PreparedPrefix, ReusablePrefix, SharedPrefix};
use super::solo::{self, Script};
use super::stopwatch::{PhaseTimes, Stopwatch};
use super::time_attribution::{Clock, Step, share_out};
use crate::eval::records::timing::StepTime;
use spattn_attention::{Configured, Sequence};
use spattn_kernels::topk::argmax;
use spattn_model::Model;
use spattn_model::decoder::Decoder;
use spattn_model::engine::{EngineError, READ_AT_ONCE, Stream};
use spattn_model::tokenizer::Tokenizer;
use spattn_tasks::ended;

/// The inputs of an example's run.
#[derive(Debug, Clone, Copy)]
pub struct GenerationRequest<'a> {
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// How many of its tokens are the dense prefix.
    pub prefix_tokens: usize,
    /// Lengths of the next examples' prefixes that begin with this one, each continuing the one before; ascending.
    pub longer: &'a [usize],
    /// Methods to run, all from the same prefix.
    pub methods: &'a [Configured],
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// A token that ends the answer besides EOS; the first token is then neither of them.
    pub line_end: Option<u32>,
    /// Texts that end the answer when it contains them.
    pub until: &'static [String],
    /// Seed of the context, for random choices when indexes are built: the same for all examples on one context.
    pub seed: u64,
    /// Seed of the example, for random choices in its steps.
    pub step_seed: u64,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
    /// Whether each method is also timed alone afterwards.
    pub solo: bool,
}

/// The results of an example.
#[derive(Default)]
pub struct GenerationResult {
    /// Time of the shared prefill. Tokens that were read for an earlier example count with the time that took.
    pub prefill: Duration,
    /// The part that was spent for an earlier example.
    pub reused: Duration,
    /// The number of reused tokens.
    pub reused_tokens: usize,
    /// Where the time went.
    pub spent: PhaseTimes,
    /// The results of each method, in their order.
    pub runs: Vec<MethodResult>,
}

/// The number of lanes that share each step: all of them, unless threads work on separate groups of lanes.
pub(crate) fn lanes_together(decoder: &Decoder, lanes: usize) -> usize {
    lanes.div_ceil(decoder.groups(lanes).max(1)).max(1)
}

/// Runs an example; `None` if `stop` was raised in the meantime. `held` is the prefix left by the example before, and is replaced by this
/// one's.
///
/// # Errors
/// [`EngineError`]. If the shared prompt cannot be read, the error says that no single method is at fault.
pub fn run_example(
    model: &Model,
    request: GenerationRequest<'_>,
    held: &mut Option<ReusablePrefix>,
    stop: &AtomicBool,
) -> Result<Option<GenerationResult>> {
    run_from(model, request, None, held, stop)
}

/// As [`run_example`], but each method reads the prefix from the first token with its own prefill pattern. Methods with the same pattern
/// share the reading.
///
/// # Errors
/// As [`run_example`].
pub fn run_from_first_token(
    model: &Model,
    request: GenerationRequest<'_>,
    held: &mut Option<ReusablePrefix>,
    stop: &AtomicBool,
) -> Result<Option<GenerationResult>> {
    let mut whole = GenerationResult::default();
    let mut runs: Vec<Option<MethodResult>> = request.methods.iter().map(|_| None).collect();
    for first in request.methods.iter() {
        let alike = |(i, other): (usize, &Configured)| (runs[i].is_none() && first.reads_as(other)).then_some(i);
        let places: Vec<usize> = request.methods.iter().enumerate().filter_map(alike).collect();
        if places.is_empty() {
            continue;
        }
        let methods: Vec<Configured> = places.iter().map(|i| request.methods[*i].clone()).collect();
        let request = GenerationRequest { methods: &methods, ..request };
        let reader = first.masks_prefill().then(|| first.reads());
        let held = if reader.is_none() { &mut *held } else { &mut None };
        let Some(read) = run_from(model, request, reader, held, stop)? else { return Ok(None) };
        whole.spent += read.spent;
        if reader.is_none() {
            (whole.prefill, whole.reused, whole.reused_tokens) = (read.prefill, read.reused, read.reused_tokens);
        }
        let prefill = reader.map(|_| read.prefill);
        places.into_iter().zip(read.runs).for_each(|(i, run)| runs[i] = Some(MethodResult { prefill, ..run }));
    }
    whole.runs = runs.into_iter().flatten().collect();
    Ok(Some(whole))
}

/// Runs methods from a shared prefix, which was read densely or by a reader's mask.
fn run_from(
    model: &Model,
    request: GenerationRequest<'_>,
    reader: Option<&Configured>,
    held: &mut Option<ReusablePrefix>,
    stop: &AtomicBool,
) -> Result<Option<GenerationResult>> {
    let GenerationRequest { prompt, prefix_tokens, longer, methods, max_new_tokens, seed, step_seed, fidelity, .. } =
        request;
    let decoder = &model.decoder;
    let longest = prompt.len() + max_new_tokens;
    // All that is known about the answer is that it has a first token.
    let given = 1;
    let shared =
        SharedPrefix { prompt, tokens: prefix_tokens, longer, longest, given, methods, reader, seed, step_seed };
    let (mut laps, mut spent) = (Stopwatch::start(), PhaseTimes::default());
    let mut prepared = shared.prepared(decoder, held.take())?;
    spent.prefill = laps.lap();
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let unread = &prompt[prefix_tokens..];
    let ReusablePrefix { cache, logits, .. } = &mut prepared.held;
    let mut lanes: Vec<GenerationRun> =
        methods.iter().map(|m| GenerationRun::new(cache.fork(m, fidelity), unread, logits, &request, model)).collect();
    spent.index = laps.lap();
    let prefill = prepared.prefill();
    let PreparedPrefix { held: read, reused, reused_tokens } = prepared;
    let read = held.insert(read);
    let together = lanes_together(decoder, lanes.len());
    run_groups(decoder, &mut lanes, together, prompt.len(), stop)?;
    spent.steps = laps.lap();
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    share_out(lanes.iter_mut().map(|lane| &mut lane.parts), spent.steps);
    let mut alone = Vec::new();
    if request.solo {
        let scripts: Vec<Script> = lanes.iter().map(|lane| lane.script(unread)).collect();
        let Some(times) = solo::time(decoder, read.cache(), &scripts, prompt.len(), stop)? else { return Ok(None) };
        alone = times;
        spent.solo = laps.lap();
    }
    let mut alone = alone.into_iter();
    let finish = |lane: GenerationRun<'_>| MethodResult {
        together: methods.len(),
        solo: alone.next().flatten(),
        ..lane.finish()
    };
    let runs = lanes.into_iter().map(finish).collect();
    Ok(Some(GenerationResult { prefill, reused, reused_tokens, spent, runs }))
}

/// The run of one method on an example.
struct GenerationRun<'a> {
    fork: Sequence,
    /// Prompt tokens still to be read.
    unread: &'a [u32],
    tokens: Vec<u32>,
    done: bool,
    stopped: bool,
    steps: usize,
    parts: StepTime,
    tokenizer: &'a Tokenizer,
    until: &'static [String],
    line_end: Option<u32>,
    max_new_tokens: usize,
}

impl<'a> GenerationRun<'a> {
    fn new(
        fork: Sequence,
        unread: &'a [u32],
        logits: &[f32],
        request: &GenerationRequest<'_>,
        model: &'a Model,
    ) -> Self {
        let max_new_tokens = request.max_new_tokens;
        let mut lane = Self {
            fork,
            unread,
            tokens: Vec::new(),
            done: max_new_tokens == 0,
            stopped: false,
            steps: 0,
            parts: StepTime::default(),
            tokenizer: &model.tokenizer,
            until: request.until,
            line_end: request.line_end,
            max_new_tokens,
        };
        if unread.is_empty() {
            lane.take(logits);
        }
        lane
    }

    /// The tokens to read next: a piece of the prompt, or the last generated token.
    fn next(&self) -> Vec<u32> {
        match self.unread.is_empty() {
            false => self.unread[..self.unread.len().min(READ_AT_ONCE)].to_vec(),
            true => self.tokens[self.tokens.len() - 1..].to_vec(),
        }
    }

    /// Records that `fed` tokens were read, and chooses the next token if the prompt is finished.
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
        self.stopped = self.is_end(token) || self.has_ended();
        self.done = self.stopped || self.tokens.len() >= self.max_new_tokens;
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.eos_ids().contains(&token) || self.line_end == Some(token)
    }

    /// Whether the answer contains a text that ends it.
    fn has_ended(&self) -> bool {
        if self.until.is_empty() {
            return false;
        }
        let text = self.tokenizer.decode(&self.tokens).unwrap_or_default();
        ended(&text, self.until).len() < text.len()
    }

    /// The most probable token that does not end the answer.
    fn first_of_line(&self, logits: &[f32]) -> u32 {
        let mut logits = logits.to_vec();
        let ends = (0..logits.len() as u32).filter(|token| self.is_end(*token));
        ends.for_each(|token| logits[token as usize] = f32::NEG_INFINITY);
        argmax(&logits) as u32
    }

    /// All tokens that it read after the prefix. `unread` is the rest of the prompt.
    fn script(&self, unread: &[u32]) -> Script {
        let fed = &self.tokens[..self.tokens.len().saturating_sub(1)];
        let tokens: Vec<u32> = unread.iter().chain(fed).copied().collect();
        debug_assert_eq!(tokens.len(), self.steps, "the last token is not read");
        Script { method: self.fork.method().clone(), of_prompt: unread.len(), tokens }
    }

    fn finish(self) -> MethodResult {
        let run = MethodResult::of(&self.fork, self.steps, self.parts);
        MethodResult { tokens: self.tokens, stopped: self.stopped, ..run }
    }
}

/// Runs lanes until all are done, in groups of `together` that run in parallel.
fn run_groups(
    decoder: &Decoder,
    lanes: &mut [GenerationRun<'_>],
    together: usize,
    prompt_tokens: usize,
    stop: &AtomicBool,
) -> Result<(), EngineError> {
    let clock = Clock::of_groups(lanes.len(), together);
    lanes.par_chunks_mut(together).try_for_each(|lanes| run_lanes(decoder, lanes, prompt_tokens, clock, stop))
}

/// Runs a group of lanes, which share each step, until all are done.
fn run_lanes(
    decoder: &Decoder,
    lanes: &mut [GenerationRun<'_>],
    prompt_tokens: usize,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<(), EngineError> {
    while !stop.load(Ordering::Relaxed) {
        let mut active: Vec<&mut GenerationRun> = lanes.iter_mut().filter(|l| !l.done).collect();
        if active.is_empty() {
            return decoder.collect_device_counters(lanes.iter_mut().map(|lane| &mut lane.fork));
        }
        let step = Step::begin(clock, active.iter().map(|lane| &lane.fork));
        let tokens: Vec<Vec<u32>> = active.iter().map(|l| l.next()).collect();
        let mut streams: Vec<Stream> =
            active.iter_mut().zip(&tokens).map(|(l, tokens)| Stream { fork: &mut l.fork, tokens }).collect();
        let logits = decoder.step(&mut streams, prompt_tokens)?;
        let rows: Vec<usize> = tokens.iter().map(Vec::len).collect();
        let parts = step.end(active.iter().map(|lane| &lane.fork), &rows);
        for (((lane, logits), rows), parts) in active.into_iter().zip(&logits).zip(rows).zip(parts) {
            lane.parts += parts;
            lane.advance(rows, logits);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::prefix_reuse::LEAST_SHARED;
    use super::*;
    use spattn_attention::methods::configure;
    use spattn_attention::{Policy, RecentQueries, expand_grid};
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;
    use std::time::Instant;

    fn model() -> (Model, Vec<u32>) {
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let text: String = (0..30).map(|i| format!("The door of room {i} opens with key {}. ", 7 * i % 23)).collect();
        let ids = model.tokenizer.encode_text(&text, true).unwrap();
        (model, ids)
    }

    fn methods(specs: &[&str]) -> Vec<Configured> {
        let policy = Policy { sink: 1, local: 4, ..Policy::default() };
        specs.iter().map(|spec| configure(&expand_grid(spec).unwrap()[0], &policy).unwrap()).collect()
    }

    fn request<'a>(prompt: &'a [u32], prefix_tokens: usize, methods: &'a [Configured]) -> GenerationRequest<'a> {
        GenerationRequest {
            prompt,
            prefix_tokens,
            longer: &[],
            methods,
            max_new_tokens: 6,
            line_end: None,
            until: &[],
            seed: 1,
            step_seed: 2,
            fidelity: true,
            solo: false,
        }
    }

    fn run_on(model: &Model, request: GenerationRequest<'_>, held: &mut Option<ReusablePrefix>) -> GenerationResult {
        run_example(model, request, held, &AtomicBool::new(false)).unwrap().unwrap()
    }

    /// Greedy tokens, each read densely with all tokens before it.
    fn greedy(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        for _ in 0..count {
            let logits = model.decoder.prefill(&ids, ids.len()).unwrap().logits;
            let top = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
            ids.push(top as u32);
            if model.tokenizer.eos_ids().contains(&(top as u32)) {
                break;
            }
        }
        ids.split_off(prompt.len())
    }

    #[test]
    fn full_takes_the_likeliest_token_wherever_the_prefix_ends() {
        let (model, ids) = model();
        let prompt = &ids[..170];
        let expected = greedy(&model, prompt, 6);
        let methods = methods(&["topk:k=4", "full"]);
        for prefix_tokens in [prompt.len(), prompt.len() - 1, 20] {
            let outcome = run_on(&model, request(prompt, prefix_tokens, &methods), &mut None);
            let [topk, full] = &outcome.runs[..] else { panic!("two runs") };
            assert_eq!(full.tokens, expected, "after {prefix_tokens}");
            let is_end = model.tokenizer.eos_ids().contains(expected.last().unwrap());
            assert_eq!(full.stopped, is_end);
            // The last token is not read.
            assert_eq!(full.steps, prompt.len() - prefix_tokens + expected.len() - 1);
            assert_eq!((full.together, full.density, full.density_sparse_layers), (2, 1.0, 1.0));
            assert!(topk.density < 0.9 && topk.bytes.unwrap().read < full.bytes.unwrap().read);
            let (layers, heads) = (model.decoder.config().layers, model.decoder.config().heads);
            assert_eq!((full.density_by_layer.len(), full.density_by_layer[0]), (layers, 1.0));
            let fidelity = full.fidelity.as_ref().unwrap();
            assert!(fidelity.output_error.iter().all(|error| *error < 1e-3));
            assert!(fidelity.recall.iter().all(|recall| *recall == 1.0) && fidelity.recall.len() == layers);
            let missed = topk.fidelity.as_ref().unwrap();
            assert!(missed.dropped_mass.iter().sum::<f64>() > 0.0 && missed.output_error.iter().sum::<f64>() > 0.0);
            let of_heads = missed.heads.as_ref().unwrap();
            assert_eq!((of_heads.density.len(), of_heads.density[0].len()), (layers, heads));
            let spread = missed.spread.unwrap().recall;
            let all = of_heads.recall.iter().flatten();
            assert_eq!(all.clone().copied().fold(f64::INFINITY, f64::min), spread.min);
            assert_eq!(all.copied().fold(0.0, f64::max), spread.max);
            let mean = of_heads.recall[3].iter().sum::<f64>() / heads as f64;
            assert!((missed.recall[3] - mean).abs() < 1e-3);
        }
    }

    #[test]
    fn a_prefix_that_begins_alike_is_not_read_again_and_changes_nothing() {
        let (model, ids) = model();
        let methods = methods(&["full", "topk:k=4"]);
        let other: Vec<u32> = ids[..120].iter().chain(&ids[20..70]).copied().collect();
        let mut held = None;
        let first = run_on(&model, request(&ids[..170], 170, &methods), &mut held);
        assert_eq!((first.reused_tokens, first.reused), (0, Duration::ZERO));
        let common = ids.iter().zip(&other).take_while(|(a, b)| a == b).count();
        // All of it, a longer prompt, and a text that differs from the 120th token on.
        let last = RecentQueries::COUNT;
        let cases = [(&ids[..170], 170), (&ids[..200], 170), (&other[..], common), (&ids[..90], 90 - last)];
        for (prompt, reused) in cases {
            let again = run_on(&model, request(prompt, prompt.len(), &methods), &mut held);
            let fresh = run_on(&model, request(prompt, prompt.len(), &methods), &mut None);
            assert_eq!(again.reused_tokens, reused, "of {}", prompt.len());
            assert!(again.reused > Duration::ZERO && again.reused <= again.prefill);
            for (again, fresh) in again.runs.iter().zip(&fresh.runs) {
                assert_eq!((&again.tokens, again.steps, again.density), (&fresh.tokens, fresh.steps, fresh.density));
            }
            held = None;
            run_on(&model, request(&ids[..170], 170, &methods), &mut held);
        }
        let short = run_on(&model, request(&ids[..LEAST_SHARED - 1], LEAST_SHARED - 1, &methods), &mut held);
        assert_eq!(short.reused_tokens, 0, "a template's first words");
    }

    #[test]
    fn gathering_for_indexes_is_no_part_of_reading_a_prefix() {
        let (model, ids) = model();
        let long: Vec<u32> = ids.iter().copied().cycle().take(900).collect();
        let (methods, mut held) = (methods(&["h2o"]), None);
        let first = GenerationRequest { longer: &[900], ..request(&long[..860], 860, &methods) };
        assert!(run_on(&model, first, &mut held).runs[0].index.whole > Duration::ZERO);
        // Newly read tokens take time in addition to the reused ones.
        let again = run_on(&model, request(&long, 900, &methods), &mut held);
        assert_eq!(again.reused_tokens, 860);
        assert!(Duration::ZERO < again.reused && again.reused < again.prefill, "{:?}", again.prefill);
        let fresh = run_on(&model, request(&long, 900, &methods), &mut None);
        assert_eq!((&again.runs[0].tokens, again.runs[0].density), (&fresh.runs[0].tokens, fresh.runs[0].density));
    }

    #[test]
    fn an_answer_ends_at_a_line_a_text_or_its_limit() {
        let (model, ids) = model();
        let methods = methods(&["full"]);
        let prompt = &ids[..170];
        let of = |change: &dyn Fn(&mut GenerationRequest<'_>)| {
            let mut request = request(prompt, prompt.len(), &methods);
            change(&mut request);
            let run = run_on(&model, request, &mut None).runs.remove(0);
            (run.tokens, run.stopped, run.steps)
        };
        let free = greedy(&model, prompt, 6);
        assert!(free.len() > 3, "{free:?}");
        assert_eq!(of(&|r| r.max_new_tokens = 2), (free[..2].to_vec(), false, 1));
        assert_eq!(of(&|r| r.max_new_tokens = 0), (vec![], false, 0));
        let one = run_on(
            &model,
            GenerationRequest { max_new_tokens: 1, ..request(prompt, prompt.len(), &methods) },
            &mut None,
        );
        assert_eq!((one.runs[0].steps, one.runs[0].bytes), (0, None), "no step has no bytes");
        // A later token ends the answer; as the first token it is skipped.
        let at = (1..free.len()).find(|at| !free[..*at].contains(&free[*at])).unwrap();
        assert_eq!(of(&|r| r.line_end = Some(free[at])), (free[..=at].to_vec(), true, at));
        let (passed, ..) = of(&|r| (r.line_end, r.max_new_tokens) = (Some(free[0]), 1));
        assert!(passed.len() == 1 && passed[0] != free[0]);
        let until: &'static [String] = Box::leak(Box::new(["no such text".to_owned()]));
        assert_eq!(of(&|r| r.until = until).0, free, "a text that does not come up");
        let raised = AtomicBool::new(true);
        assert!(run_example(&model, request(prompt, 170, &methods), &mut None, &raised).unwrap().is_none());
    }

    const LIVE: [&str; 6] = ["full", "topk:k=4", "quest", "streaming_llm:window=16", "random", "topp"];

    fn on_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
    }

    #[test]
    fn shares_add_up_to_the_time_that_passed_on_any_number_of_threads() {
        let (model, ids) = model();
        let methods = methods(&LIVE);
        let request = GenerationRequest { fidelity: false, ..request(&ids[..170], 160, &methods) };
        for threads in [1, 2, 8] {
            let outcome = on_threads(threads, || run_on(&model, request, &mut None));
            let passed = outcome.spent.steps.as_secs_f64();
            let sum: f64 = outcome.runs.iter().map(|run| run.decode.as_secs_f64()).sum();
            assert!((sum - passed).abs() < 1e-6, "{threads} threads: {sum} s of {passed}");
            for run in &outcome.runs {
                let StepTime { select, attend, weights, beside } = run.parts.unwrap();
                assert!(select > 0.0 && attend > 0.0 && weights > 0.0 && beside == 0.0, "{:?}", run.parts);
                assert!((select + attend + weights - run.decode.as_secs_f64()).abs() < 1e-8);
            }
        }
        // The comparison with exact attention is not part of the steps' time.
        let outcome = run_on(&model, GenerationRequest { fidelity: true, ..request }, &mut None);
        let parts: Vec<StepTime> = outcome.runs.iter().map(|run| run.parts.unwrap()).collect();
        let (steps, all): (f64, f64) = (parts.iter().map(StepTime::steps).sum(), parts.iter().map(StepTime::all).sum());
        assert!(parts.iter().all(|p| p.beside > 0.0) && steps < all);
        assert!((all - outcome.spent.steps.as_secs_f64()).abs() < 1e-6);
    }

    /// The unscaled measurements of lanes, with the given threads and lanes `together`; and the time that passed and the work of the
    /// threads.
    fn measured(threads: usize, together: Option<usize>) -> (f64, f64, f64) {
        let (model, ids) = model();
        let ids: Vec<u32> = ids.iter().copied().cycle().take(1200).collect();
        let methods = methods(&LIVE);
        let request = GenerationRequest { fidelity: false, max_new_tokens: 12, ..request(&ids, 1195, &methods) };
        let GenerationRequest { prompt, prefix_tokens, longer, methods, seed, step_seed, .. } = request;
        let shared = SharedPrefix {
            prompt,
            tokens: prefix_tokens,
            longer,
            longest: 1300,
            given: 1,
            methods,
            reader: None,
            seed,
            step_seed,
        };
        let decoder = &model.decoder;
        let ReusablePrefix { mut cache, logits, .. } = PreparedPrefix::new(decoder, &shared, None).unwrap().held;
        let lane = |m| GenerationRun::new(cache.fork(m, false), &prompt[prefix_tokens..], &logits, &request, &model);
        let mut lanes: Vec<GenerationRun> = methods.iter().map(lane).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let worked = || pool.broadcast(|_| spattn_base::clock::processor_time().as_secs_f64()).iter().sum::<f64>();
        let (before, start) = (worked(), Instant::now());
        pool.install(|| {
            let together = together.unwrap_or_else(|| lanes_together(decoder, lanes.len()));
            run_groups(decoder, &mut lanes, together, prompt.len(), &AtomicBool::new(false)).unwrap();
        });
        let (passed, worked) = (start.elapsed().as_secs_f64(), worked() - before);
        (lanes.iter().map(|lane| lane.parts.all()).sum(), passed, worked)
    }

    #[test]
    fn what_lanes_measure_is_what_was_worked_and_no_more() {
        for threads in [2, 8] {
            let (sum, passed, worked) = measured(threads, None);
            assert!(sum <= worked && sum > 0.5 * worked, "{threads} threads: {sum} s of {worked} worked in {passed}");
        }
    }

    #[test]
    fn a_group_that_is_alone_measures_the_time_that_passed() {
        for threads in [1, 2] {
            let (sum, passed, _) = measured(threads, Some(LIVE.len()));
            assert!(sum <= passed && sum > 0.8 * passed, "{threads} threads: {sum} s of {passed}");
        }
    }
}
