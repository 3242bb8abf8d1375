//! Tests of scoring given text, decoded token by token and in one pass.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::example_request::ExampleRequest;
use super::example_runner::{ExampleResult, ExampleRunner};
use super::score_text::{GivenText, Sums, TextToScore};
use spattn_attention::methods::configure;
use spattn_attention::{Configured, Policy, expand_grid};
use spattn_kernels::distribution::log_sum_exp;
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;

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

static NEVER: AtomicBool = AtomicBool::new(false);

/// A prompt to be scored under `methods`, with a prefix of `prefix_tokens` tokens.
fn example<'a>(prompt: &'a [u32], prefix_tokens: usize, methods: &'a [Configured]) -> ExampleRequest<'a> {
    let (index_seed, step_seed) = (1, 1);
    ExampleRequest { prompt, prefix_tokens, longer: &[], methods, index_seed, step_seed, fidelity: false, solo: false }
}

fn run(model: &Model, example: ExampleRequest<'_>, texts: &[TextToScore<'_>], compare: bool) -> ExampleResult<Sums> {
    ExampleRunner::new(&model.decoder, &NEVER).run(example, &GivenText { texts, compare }).unwrap().unwrap()
}

/// The negative log-likelihood of `ids` from index `from` on, by one dense pass.
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
    // Texts of more than one step, of which none continues the other.
    let texts =
        [TextToScore { tokens: &ids[prompt..], given: 0 }, TextToScore { tokens: &ids[prompt..prompt + 9], given: 4 }];
    let methods = methods(&["topk:k=4", "full"]);
    for prefix_tokens in [prompt, prompt - 1] {
        let request = example(&ids[..prompt], prefix_tokens, &methods);
        let outcome = run(&model, request, &texts, true);
        assert_eq!((outcome.prefill.reused_tokens, outcome.runs.len()), (0, 2));
        let [topk, full] = [&outcome.runs[0], &outcome.runs[1]];
        let dense = [in_one_pass(&model, &ids, prompt), in_one_pass(&model, &ids[..prompt + 9], prompt + 4)];
        let scored = [ids.len() - prompt, 5];
        for at in 0..2 {
            assert!(
                (full.answers[at].nll - dense[at]).abs() < 1e-2 * dense[at],
                "{:?}, {dense:?}",
                full.answers[at].nll
            );
            assert_eq!((full.answers[at].kl_sum, full.answers[at].same_top), (0.0, scored[at]), "of itself");
            assert_eq!(topk.answers[at].kl.len(), scored[at]);
            let listed: f64 = topk.answers[at].kl.iter().sum();
            assert!((listed - topk.answers[at].kl_sum).abs() < 1e-3 * listed && listed > 0.0);
        }
        // Each sequence is fed the rest of the prompt and all tokens of its text but the last.
        let left = prompt - prefix_tokens;
        assert_eq!((full.costs.steps, topk.costs.steps), (2 * left + scored[0] + 9 - 2, full.costs.steps));
        assert_eq!((full.costs.density, full.costs.streams), (1.0, 4));
        assert!(topk.costs.density < 1.0 && topk.costs.step_time.steps() > 0.0);
        assert_eq!(full.costs.kv_tokens.context, ids.len() - 1, "the longest");

        let alone = run(&model, ExampleRequest { methods: &methods[..1], ..request }, &texts, true);
        assert_eq!(alone.runs[0].answers, topk.answers, "the sequence of `full` is there, asked for or not");
        assert_eq!(alone.runs[0].costs.streams, 4);
        let plain = run(&model, request, &texts, false);
        assert!(plain.runs[0].answers[0].kl.is_empty() && plain.runs[0].answers[0].nll == topk.answers[0].nll);
        assert_eq!((plain.runs[1].answers[0].same_top, plain.runs[1].answers[0].nll), (0, full.answers[0].nll));
    }
}

#[test]
fn a_prefix_that_the_budget_covers_is_attended_whole() {
    let (model, ids) = model();
    let methods = methods(&["topk:k=4", "full"]);
    // The rest of the longer prompt is read in two steps.
    for prompt in [60, 150] {
        let texts = [TextToScore { tokens: &ids[prompt..prompt + 9], given: 4 }];
        let request = example(&ids[..prompt], 7, &methods);
        let outcome = run(&model, request, &texts, true);
        let [topk, full] = [&outcome.runs[0], &outcome.runs[1]];
        // Selected tokens are added up after the static ones, so that rounding differs.
        assert_eq!((topk.costs.density, topk.answers[0].kl.len()), (1.0, 5));
        assert!(topk.answers[0].kl_sum < 1e-2, "{}", topk.answers[0].kl_sum);
        let near = |nll: f64, other: f64| (nll - other).abs() < 1e-2 * other;
        let dense = in_one_pass(&model, &ids[..prompt + 9], prompt + 4);
        assert!(near(full.answers[0].nll, dense) && near(topk.answers[0].nll, dense), "{dense}");
    }
}

#[test]
fn a_run_that_is_stopped_gives_nothing() {
    let (model, ids) = model();
    let texts = [TextToScore::from(&ids[60..70])];
    let methods = methods(&["full"]);
    let request = example(&ids[..60], 60, &methods);
    let raised = AtomicBool::new(true);
    let mut runner = ExampleRunner::new(&model.decoder, &raised);
    let text = GivenText { texts: &texts, compare: false };
    assert!(runner.run(request, &text).unwrap().is_none());
    assert!(runner.score_in_one_pass(request, &text).unwrap().is_none());
}

#[test]
fn one_pass_gives_what_decoding_gives() {
    let (model, ids) = model();
    let texts = [TextToScore::from(&ids[90..]), TextToScore { tokens: &ids[90..99], given: 2 }];
    let methods = methods(&["full", "streaming_llm:window=16"]);
    let request = example(&ids[..90], 90, &methods);
    let in_one_pass_of_all = |compare: bool| {
        let mut runner = ExampleRunner::new(&model.decoder, &NEVER);
        runner.score_in_one_pass(request, &GivenText { texts: &texts, compare }).unwrap().unwrap()
    };
    let outcome = in_one_pass_of_all(true);
    let dense = [in_one_pass(&model, &ids, 90), in_one_pass(&model, &ids[..99], 92)];
    let [full, window] = [&outcome.runs[0], &outcome.runs[1]];
    for (at, scored) in [ids.len() - 90, 7].into_iter().enumerate() {
        assert!((full.answers[at].nll - dense[at]).abs() < 1e-3 * dense[at]);
        assert_eq!((full.answers[at].same_top, full.answers[at].kl_sum), (scored, 0.0));
        assert!(window.answers[at].kl_sum > 0.0 && window.answers[at].kl.len() == scored);
    }
    assert!(full.costs.prefill.is_none() && window.costs.prefill.is_some_and(|time| time > Duration::ZERO));
    assert_eq!((full.costs.steps, outcome.prefill.reused_tokens), (0, 0));
    assert_eq!(outcome.spent.prefill, outcome.prefill.whole + window.costs.prefill.unwrap());
    let plain = in_one_pass_of_all(false);
    assert_eq!(plain.runs[1].answers[0].nll, window.answers[0].nll);
    assert!(plain.runs[1].answers[0].kl.is_empty());
}

#[test]
fn methods_that_are_scored_in_groups_get_what_they_get_together() {
    let (model, ids) = model();
    let texts = [TextToScore::from(&ids[90..]), TextToScore { tokens: &ids[90..99], given: 2 }];
    let methods =
        methods(&["streaming_llm:window=16", "full", "bigbird:window=8,blocks=1,block=8", "a_shape:window=32"]);
    let request = example(&ids[..90], 90, &methods);
    let scored = |most_waiting: usize| {
        let mut runner = ExampleRunner::new(&model.decoder, &NEVER);
        let text = GivenText { texts: &texts, compare: true };
        let outcome = runner.score_in_groups(request, &text, most_waiting).unwrap().unwrap();
        outcome.runs.into_iter().map(|run| (run.answers, run.costs.prefill.is_some())).collect::<Vec<_>>()
    };
    let together = scored(usize::MAX);
    assert_eq!(together.len(), 4);
    let different: Vec<f64> = together.iter().map(|(answers, _)| answers[0].nll).collect();
    assert!(different.windows(2).all(|pair| pair[0] != pair[1]), "{different:?}");
    // Each method alone, and groups of several.
    let rows = size_of::<f32>() * model.decoder.config().hidden_size * (ids.len() - 90);
    for most_waiting in [0, 2 * rows] {
        assert_eq!(scored(most_waiting), together, "{most_waiting} bytes");
    }
}

#[test]
fn each_continuation_is_compared_with_full_on_its_own_text() {
    let (model, ids) = model();
    // Neither text is the beginning of the other.
    let texts = [TextToScore::from(&ids[150..180]), TextToScore { tokens: &ids[60..85], given: 3 }];
    let methods = methods(&["topk:k=4", "streaming_llm:window=8"]);
    let request = example(&ids[..60], 50, &methods);
    type Score = fn(&Model, ExampleRequest<'_>, &GivenText<'_>) -> ExampleResult<Sums>;
    let decoded: Score =
        |model, request, text| ExampleRunner::new(&model.decoder, &NEVER).run(request, text).unwrap().unwrap();
    let in_one_pass: Score = |model, request, text| {
        ExampleRunner::new(&model.decoder, &NEVER).score_in_one_pass(request, text).unwrap().unwrap()
    };
    for score in [decoded, in_one_pass] {
        let scored = |texts: &[TextToScore<'_>]| -> Vec<Vec<Sums>> {
            let outcome = score(&model, request, &GivenText { texts, compare: true });
            outcome.runs.into_iter().map(|run| run.answers).collect()
        };
        let (both, first, second) = (scored(&texts), scored(&texts[..1]), scored(&texts[1..]));
        for method in 0..methods.len() {
            assert_eq!(both[method], [first[method][0].clone(), second[method][0].clone()], "method {method}");
            assert!(both[method].iter().all(|sums| sums.kl_sum > 0.0));
        }
    }
}
