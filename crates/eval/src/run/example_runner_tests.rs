//! Tests of generated answers: what is generated, what is read again, and where the time goes.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::decode_loop::DecodeLoop;
use super::example_request::ExampleRequest;
use super::example_runner::{ExampleResult, ExampleRunner, fork_sequences};
use super::generate::{GeneratedAnswer, Generation};
use super::prefix_cache::PrefixCache;
use super::prefix_reading::{LEAST_SHARED, PrefixReader};
use super::sampling::Sampling;
use super::time_attribution::Clock;
use crate::records::timing::StepTime;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, Policy, RecentQueries, expand_grid};
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;

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

/// An example, and what ends its answers.
#[derive(Clone, Copy)]
struct Asked<'a> {
    example: ExampleRequest<'a>,
    max_new_tokens: usize,
    line_end: Option<u32>,
    until: &'a [String],
}

fn request<'a>(prompt: &'a [u32], prefix_tokens: usize, methods: &'a [Configured]) -> Asked<'a> {
    let (index_seed, step_seed) = (1, 2);
    let example = ExampleRequest {
        prompt,
        prefix_tokens,
        longer: &[],
        methods,
        index_seed,
        step_seed,
        fidelity: true,
        solo: false,
    };
    Asked { example, max_new_tokens: 6, line_end: None, until: &[] }
}

static NEVER: AtomicBool = AtomicBool::new(false);

fn runner(model: &Model) -> ExampleRunner<'_> {
    ExampleRunner::new(&model.decoder, &NEVER)
}

fn policy<'a>(model: &'a Model, asked: &Asked<'a>) -> Generation<'a> {
    let Asked { max_new_tokens, line_end, until, .. } = *asked;
    Generation {
        tokenizer: &model.tokenizer,
        max_new_tokens,
        line_end,
        until,
        sampling: Sampling::GREEDY,
        repeats: 1,
        thoughts: None,
    }
}

/// Runs an example on a runner that may have run others before.
fn run_after(model: &Model, asked: Asked<'_>, runner: &mut ExampleRunner<'_>) -> ExampleResult<GeneratedAnswer> {
    runner.run(asked.example, &policy(model, &asked)).unwrap().unwrap()
}

/// Runs an example on a new runner.
fn run_on(model: &Model, asked: Asked<'_>) -> ExampleResult<GeneratedAnswer> {
    run_after(model, asked, &mut runner(model))
}

/// The likeliest tokens, one after the other. Each is predicted by a dense prefill of all tokens before it.
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
        let outcome = run_on(&model, request(prompt, prefix_tokens, &methods));
        let [topk, full] = &outcome.runs[..] else { panic!("two runs") };
        let answer = &full.answers[0];
        assert_eq!(answer.tokens, expected, "after {prefix_tokens}");
        let is_end = model.tokenizer.eos_ids().contains(expected.last().unwrap());
        assert_eq!(answer.stopped, is_end);
        let [topk, full] = [&topk.costs, &full.costs];
        // The last token is not fed again.
        assert_eq!(full.steps, prompt.len() - prefix_tokens + expected.len() - 1);
        assert_eq!((full.streams, full.density, full.density_sparse_layers), (2, 1.0, 1.0));
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
fn drawn_tokens_are_those_that_the_logits_of_each_step_give() {
    let (model, ids) = model();
    let prompt = &ids[..170];
    let methods = methods(&["full"]);
    let asked = request(prompt, 20, &methods);
    let sampling = Sampling { temperature: 3.0, top_p: 1.0, seed: 5 };
    let drawn = Generation { sampling, repeats: 2, ..policy(&model, &asked) };
    let outcome = runner(&model).run(asked.example, &drawn).unwrap().unwrap();
    for (repeat, answer) in outcome.runs[0].answers.iter().enumerate() {
        let mut ids = prompt.to_vec();
        for (place, token) in answer.tokens.iter().enumerate() {
            let logits = model.decoder.prefill(&ids, ids.len()).unwrap().logits;
            assert_eq!(*token, sampling.choose(&logits, repeat, place), "draw {place} of repeat {repeat}");
            ids.push(*token);
        }
        assert_ne!(answer.tokens, greedy(&model, prompt, 6), "repeat {repeat} was not drawn");
    }
}

#[test]
fn the_first_token_of_a_line_does_not_end_it() {
    let (model, ids) = model();
    let prompt = &ids[..170];
    let methods = methods(&["full"]);
    let logits = model.decoder.prefill(prompt, prompt.len()).unwrap().logits;
    let mut likeliest: Vec<u32> = (0..logits.len() as u32).collect();
    likeliest.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    let line_end = Some(likeliest[0]);
    let expected = likeliest[1..].iter().find(|token| !model.tokenizer.eos_ids().contains(token));
    let outcome = run_on(&model, Asked { line_end, ..request(prompt, 20, &methods) });
    assert_eq!(outcome.runs[0].answers[0].tokens.first(), expected);
}

#[test]
fn a_prefix_that_begins_alike_is_not_read_again_and_changes_nothing() {
    let (model, ids) = model();
    let methods = methods(&["full", "topk:k=4"]);
    let other: Vec<u32> = ids[..120].iter().chain(&ids[20..70]).copied().collect();
    let mut held = runner(&model);
    let first = run_after(&model, request(&ids[..170], 170, &methods), &mut held);
    assert_eq!((first.prefill.reused_tokens, first.prefill.reused), (0, Duration::ZERO));
    let common = ids.iter().zip(&other).take_while(|(a, b)| a == b).count();
    // The same prompt, a longer one, one with another text from the 120th token on, and a shorter one.
    let last = RecentQueries::COUNT;
    let cases = [(&ids[..170], 170), (&ids[..200], 170), (&other[..], common), (&ids[..90], 90 - last)];
    for (prompt, reused) in cases {
        let again = run_after(&model, request(prompt, prompt.len(), &methods), &mut held);
        let fresh = run_on(&model, request(prompt, prompt.len(), &methods));
        assert_eq!(again.prefill.reused_tokens, reused, "of {}", prompt.len());
        assert!(again.prefill.reused > Duration::ZERO && again.prefill.reused <= again.prefill.whole);
        for (again, fresh) in again.runs.iter().zip(&fresh.runs) {
            assert_eq!(again.answers, fresh.answers);
            assert_eq!((again.costs.steps, again.costs.density), (fresh.costs.steps, fresh.costs.density));
        }
        held = runner(&model);
        run_after(&model, request(&ids[..170], 170, &methods), &mut held);
    }
    let short = run_after(&model, request(&ids[..LEAST_SHARED - 1], LEAST_SHARED - 1, &methods), &mut held);
    assert_eq!(short.prefill.reused_tokens, 0, "a template's first words");
}

#[test]
fn gathering_for_indexes_is_no_part_of_reading_a_prefix() {
    let (model, ids) = model();
    let long: Vec<u32> = ids.iter().copied().cycle().take(900).collect();
    let (methods, mut held) = (methods(&["h2o"]), runner(&model));
    let mut first = request(&long[..860], 860, &methods);
    first.example.longer = &[900];
    assert!(run_after(&model, first, &mut held).runs[0].costs.index.whole > Duration::ZERO);
    // Reading the other 40 tokens takes time, besides that of the first 860.
    let again = run_after(&model, request(&long, 900, &methods), &mut held);
    assert_eq!(again.prefill.reused_tokens, 860);
    assert!(Duration::ZERO < again.prefill.reused && again.prefill.reused < again.prefill.whole, "{:?}", again.prefill);
    let fresh = run_on(&model, request(&long, 900, &methods));
    let [again, fresh] = [&again.runs[0], &fresh.runs[0]];
    assert_eq!((&again.answers, again.costs.density), (&fresh.answers, fresh.costs.density));
}

#[test]
fn an_answer_ends_at_a_line_a_text_or_its_limit() {
    let (model, ids) = model();
    let methods = methods(&["full"]);
    let prompt = &ids[..170];
    let of = |change: &dyn Fn(&mut Asked<'_>)| {
        let mut asked = request(prompt, prompt.len(), &methods);
        change(&mut asked);
        let run = run_on(&model, asked).runs.remove(0);
        (run.answers[0].tokens.clone(), run.answers[0].stopped, run.costs.steps)
    };
    let free = greedy(&model, prompt, 6);
    assert!(free.len() > 3, "{free:?}");
    assert_eq!(of(&|r| r.max_new_tokens = 2), (free[..2].to_vec(), false, 1));
    assert_eq!(of(&|r| r.max_new_tokens = 0), (vec![], false, 0));
    let one = run_on(&model, Asked { max_new_tokens: 1, ..request(prompt, prompt.len(), &methods) });
    assert_eq!((one.runs[0].costs.steps, one.runs[0].costs.bytes), (0, None), "no step has no bytes");
    // A line end that comes later ends the answer there. As the first token, it is ruled out.
    let at = (1..free.len()).find(|at| !free[..*at].contains(&free[*at])).unwrap();
    assert_eq!(of(&|r| r.line_end = Some(free[at])), (free[..=at].to_vec(), true, at));
    let (passed, ..) = of(&|r| (r.line_end, r.max_new_tokens) = (Some(free[0]), 1));
    assert!(passed.len() == 1 && passed[0] != free[0]);
    let until: &'static [String] = Box::leak(Box::new(["no such text".to_owned()]));
    assert_eq!(of(&|r| r.until = until).0, free, "a text that does not come up");
    let raised = AtomicBool::new(true);
    let mut stopped = ExampleRunner::new(&model.decoder, &raised);
    let asked = request(prompt, 170, &methods);
    assert!(stopped.run(asked.example, &policy(&model, &asked)).unwrap().is_none());
}

const LIVE: [&str; 6] = ["full", "topk:k=4", "quest", "streaming_llm:window=16", "random", "topp"];

fn on_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

#[test]
fn shares_add_up_to_the_time_that_passed_on_any_number_of_threads() {
    let (model, ids) = model();
    let methods = methods(&LIVE);
    let mut request = request(&ids[..170], 160, &methods);
    request.example.fidelity = false;
    for threads in [1, 2, 8] {
        let outcome = on_threads(threads, || run_on(&model, request));
        let passed = outcome.spent.steps.as_secs_f64();
        let sum: f64 = outcome.runs.iter().map(|run| run.costs.step_time.steps()).sum();
        assert!((sum - passed).abs() < 1e-6, "{threads} threads: {sum} s of {passed}");
        for run in &outcome.runs {
            assert!(run.costs.is_time_split);
            let StepTime { select, attend, weights, beside } = run.costs.step_time;
            assert!(select > 0.0 && attend > 0.0 && weights > 0.0 && beside == 0.0, "{:?}", run.costs.step_time);
        }
    }
    // The comparison with exact attention takes time beside the steps, not in them.
    request.example.fidelity = true;
    let outcome = run_on(&model, request);
    let parts: Vec<StepTime> = outcome.runs.iter().map(|run| run.costs.step_time).collect();
    let (steps, all): (f64, f64) = (parts.iter().map(StepTime::steps).sum(), parts.iter().map(StepTime::all).sum());
    assert!(parts.iter().all(|p| p.beside > 0.0) && steps < all);
    assert!((all - outcome.spent.steps.as_secs_f64()).abs() < 1e-6);
}

/// The times that sequences measure, before they are scaled, on `threads` threads with `together` sequences in a group. Returns their sum,
/// the time that passed, and the time that the threads worked.
fn measured(threads: usize, together: Option<usize>) -> (f64, f64, f64) {
    let (model, ids) = model();
    let ids: Vec<u32> = ids.iter().copied().cycle().take(1200).collect();
    let methods = methods(&LIVE);
    let asked = Asked { max_new_tokens: 12, ..request(&ids, 1195, &methods) };
    let example = ExampleRequest { fidelity: false, ..asked.example };
    let (decoder, policy) = (&model.decoder, policy(&model, &asked));
    let stop = AtomicBool::new(false);
    let reader =
        PrefixReader { decoder, example: &example, longest_answer: 100, known_tokens: 1, mask: None, stop: &stop };
    let (mut read, _) = reader.read(&mut PrefixCache::new(1)).unwrap();
    let (mut batch, _) = fork_sequences(&example, &mut read.indexes, &policy).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let worked = || pool.broadcast(|_| spattn_base::clock::processor_time().as_secs_f64()).iter().sum::<f64>();
    let (before, start) = (worked(), Instant::now());
    pool.install(|| {
        let mut steps = DecodeLoop::new(decoder, &policy, methods.len(), 0, ids.len(), &NEVER);
        if let Some(together) = together {
            (steps.together, steps.clock) = (together, Clock::of_groups(methods.len(), together));
        }
        steps.run(&mut batch, &read.logits).unwrap();
    });
    let (passed, worked) = (start.elapsed().as_secs_f64(), worked() - before);
    (batch.sequences.iter().map(|running| running.time.all()).sum(), passed, worked)
}

#[test]
fn what_sequences_measure_is_what_was_worked_and_no_more() {
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

/// Examples that begin alike are read from the token where they differ: inside a page, and after pages of the earlier one were in memory.
/// Some methods need statistics of the whole prompt.
#[test]
fn a_cache_on_disk_changes_no_answer_and_no_count_whatever_was_read_before() {
    let (model, ids) = model();
    let mut other = ids.clone();
    other[99..].reverse();
    let (plain, gathering) = (["full", "topk:k=9", "quest:k=32", "topp:density=0.2"], ["snapkv:k=12", "h2o:k=9"]);
    for (specs, reuses) in [(&plain[..], true), (&gathering[..], false)] {
        let (mut on_disk, folder) = (self::model().0, tempfile::tempdir().unwrap());
        on_disk.decoder.keep_kv_on_disk(folder.path(), 40_000);
        let (methods, mut reused) = (methods(specs), 0);
        let (mut here, mut there) = (runner(&model), runner(&on_disk));
        let prompts =
            [(&ids[..200], 190), (&ids[..200], 200), (&ids[..230], 203), (&other[..210], 197), (&ids[..190], 170)];
        for (prompt, prefix_tokens) in prompts {
            let asked = request(prompt, prefix_tokens, &methods);
            let [expected, got] =
                [(&model, &mut here), (&on_disk, &mut there)].map(|(model, runner)| run_after(model, asked, runner));
            assert_eq!(got.prefill.reused_tokens, expected.prefill.reused_tokens);
            reused += got.prefill.reused_tokens;
            for (expected, got) in expected.runs.iter().zip(&got.runs) {
                assert_eq!(got.answers[0].tokens, expected.answers[0].tokens);
                let counts = |costs: &super::method_costs::MethodCosts| {
                    let counted = (costs.cost1, costs.cost2, costs.bytes, costs.aux_bits);
                    (costs.density_by_layer.clone(), costs.solved.clone(), counted)
                };
                assert_eq!(counts(&got.costs), counts(&expected.costs));
                let [of_memory, of_disk] = [expected, got].map(|run| run.costs.fidelity.clone().unwrap().output_error);
                assert_eq!(of_disk, of_memory);
                assert_eq!(expected.costs.fetched, None);
                assert!(got.costs.fetched.unwrap().disk > 0.0);
            }
        }
        let used = on_disk.decoder.disk_use().unwrap();
        assert!(used.written > 0 && used.pages > used.hits && used.hits > 0, "{used:?}");
        assert!(!reuses || (reused > 300 && used.read_back > 0), "{reused} tokens, {used:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files have no name");
    }
}

#[test]
fn misses_are_counted_where_tokens_are_picked_ahead() {
    let (model, ids) = model();
    let methods = methods(&["double_sparsity:kind=random,k=8,offload=true", "double_sparsity:kind=random,k=8", "full"]);
    let outcome = run_on(&model, request(&ids[..170], 140, &methods));
    let [ahead, own, full] = &outcome.runs[..] else { panic!("three runs") };
    let missed = ahead.costs.missed_share.unwrap();
    assert!(missed > 0.0 && missed < 1.0, "{missed}");
    assert_eq!((own.costs.missed_share, full.costs.missed_share), (None, None));
}
