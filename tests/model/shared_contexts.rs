//! Examples that begin alike are read once, and give the same bits as if each was read alone.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use spattn::attention::methods::configure;
use spattn::attention::{Configured, IndexTime, Policy, RecentQueries, expand_grid};
use spattn::eval::run::example_request::ExampleRequest;
use spattn::eval::run::example_runner::{ExampleResult, ExampleRunner, MethodResult};
use spattn::eval::run::generate::{GeneratedAnswer, Generation};
use spattn::eval::run::sampling::Sampling;
use spattn::kv::KvDtype;
use spattn::model::Model;
use spattn::model::source::ModelSource;
use spattn::model::tokenizer::TokenizerOptions;
use spattn::tasks::text::essays::Essays;

fn load(dtype: KvDtype) -> Model {
    Model::load(&ModelSource::Builtin, Some(dtype), TokenizerOptions::default()).unwrap()
}

/// The number of last tokens of a prefix that are read again, because their queries are needed.
const LAST: usize = RecentQueries::COUNT;

static MODEL: LazyLock<Model> = LazyLock::new(|| load(KvDtype::F16));

/// Text that differs for each seed.
fn tokens(model: &Model, seed: u64, count: usize) -> Vec<u32> {
    let text = Essays::Grammar.reader(seed, 3).text(count);
    let mut ids = model.tokenizer.encode_text(&text, true).unwrap();
    ids.truncate(count);
    ids
}

fn methods(specs: &[&str]) -> Vec<Configured> {
    specs.iter().map(|spec| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap()).collect()
}

/// A prompt, the number of its tokens in the prefix, the seed of its context and its own seed.
struct Prompt(Vec<u32>, usize, u64, u64);

fn run(
    model: &Model,
    prompt: &Prompt,
    methods: &[Configured],
    runner: &mut ExampleRunner<'_>,
) -> ExampleResult<GeneratedAnswer> {
    run_before(model, prompt, &[], methods, runner)
}

/// Runs a prompt that is followed by prefixes of the `longer` lengths.
fn run_before(
    model: &Model,
    prompt: &Prompt,
    longer: &[usize],
    methods: &[Configured],
    runner: &mut ExampleRunner<'_>,
) -> ExampleResult<GeneratedAnswer> {
    let Prompt(ids, prefix_tokens, seed, step_seed) = prompt;
    let example = ExampleRequest {
        prompt: ids,
        prefix_tokens: *prefix_tokens,
        longer,
        methods,
        index_seed: *seed,
        step_seed: *step_seed,
        fidelity: true,
        solo: false,
    };
    let policy = Generation {
        tokenizer: &model.tokenizer,
        max_new_tokens: 6,
        line_end: None,
        until: &[],
        sampling: Sampling::GREEDY,
        repeats: 1,
        thoughts: None,
    };
    runner.run(example, &policy).unwrap().unwrap()
}

static NEVER: AtomicBool = AtomicBool::new(false);

/// A runner that has read nothing yet.
fn runner(model: &Model) -> ExampleRunner<'_> {
    ExampleRunner::new(&model.decoder, &NEVER)
}

/// All of a result except times.
fn bits(outcome: &ExampleResult<GeneratedAnswer>) -> Vec<String> {
    let of = |r: &MethodResult<GeneratedAnswer>| {
        format!(
            "{:?} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {} {:?}",
            r.answers[0].tokens,
            r.answers[0].stopped,
            r.costs.steps,
            r.costs.density,
            r.costs.density_sparse_layers,
            r.costs.cost1,
            r.costs.cost2,
            r.costs.aux_bits,
            r.costs.bytes.map(|bytes| bytes.read.to_bits()),
            r.costs.kv_bytes_held,
            r.costs.fidelity
        )
    };
    outcome.runs.iter().map(of).collect()
}

/// Runs prompts one after another, and each alone. Returns how many tokens of each were reused.
fn compare(model: &Model, prompts: &[Prompt], specs: &[&str]) -> Vec<usize> {
    let methods = methods(specs);
    let mut in_turn = runner(model);
    let compare = |prompt: &Prompt| {
        let after_others = run(model, prompt, &methods, &mut in_turn);
        let alone = run(model, prompt, &methods, &mut runner(model));
        assert_eq!(bits(&after_others), bits(&alone));
        assert_eq!((alone.prefill.reused_tokens, alone.prefill.reused.as_nanos()), (0, 0));
        assert!(after_others.prefill.reused <= after_others.prefill.whole);
        after_others.prefill.reused_tokens
    };
    prompts.iter().map(compare).collect()
}

#[test]
fn a_common_beginning_of_any_length_is_read_once() {
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let model = load(dtype);
        let all = tokens(&model, 1, 2700);
        let changed = |at: usize, end: usize| -> Vec<u32> {
            let other = tokens(&model, 2, 900);
            [&all[..at], &other[1..1 + end - at]].concat()
        };
        // Prompts longer and shorter than the stored prefix, that share more and fewer tokens than a chunk, and too few.
        let prompts = [
            Prompt(all[..700].to_vec(), 690, 1, 1),
            Prompt(changed(333, 800), 790, 2, 2),
            Prompt(all[..2700].to_vec(), 2600, 3, 3),
            Prompt(changed(2101, 2500), 2450, 4, 4),
            Prompt(all[..2111].to_vec(), 2105, 5, 5),
            Prompt(changed(50, 400), 390, 6, 6),
        ];
        let reused = compare(&model, &prompts, &["full", "topk:k=16", "random:ratio=0.1", "bigbird"]);
        assert!(reused[0] == 0 && reused[5] == 0, "{reused:?}");
        assert_eq!((reused[1], reused[2], reused[3]), (333, 333, 2101));
        assert_eq!(reused[4], 2105 - LAST, "the last queries are always seen");
    }
}

#[test]
fn the_same_prefix_keeps_its_indexes() {
    let context = tokens(&MODEL, 3, 600);
    let ask = |seed| Prompt([&context[..], &tokens(&MODEL, seed, 30)[1..]].concat(), 600, 9, seed);
    // Methods with random choices for the prefix, with an index over it, and with its last queries.
    let specs = ["full", "bigbird", "magicpig:K=6,L=20", "quest:page=16,ratio=0.1", "snapkv:k=32", "h2o:k=32"];
    assert_eq!(compare(&MODEL, &[ask(10), ask(11), ask(12)], &specs), [0, 600, 600]);
    let methods = methods(&specs);
    let mut in_turn = runner(&MODEL);
    let mut index_times = |prompt: &Prompt| -> Vec<IndexTime> {
        run(&MODEL, prompt, &methods, &mut in_turn).runs.iter().map(|r| r.costs.index).collect()
    };
    let (first, second) = (index_times(&ask(10)), index_times(&ask(11)));
    assert!(first.iter().any(|time| !time.whole.is_zero()) && first.iter().all(|time| time.reused.is_zero()));
    for (first, second) in first.iter().zip(&second) {
        assert_eq!((second.whole, second.reused), (first.whole, first.whole));
    }
}

#[test]
fn what_is_gathered_of_a_prompt_is_gathered_over_all_of_it() {
    let all = tokens(&MODEL, 4, 900);
    let prompts = [
        Prompt(all[..500].to_vec(), 490, 1, 1),
        Prompt(all.clone(), 800, 2, 2),
        Prompt(all.clone(), 800, 2, 3),
        Prompt(all.clone(), 800, 7, 7),
    ];
    // Reuse that was not foreseen reads the beginning again, but not the whole prefix, even if the random choices differ.
    assert_eq!(compare(&MODEL, &prompts, &["full", "h2o:k=32"]), [0, 0, 800, 800 - LAST]);
    assert_eq!(compare(&MODEL, &prompts, &["full", "bigbird"]), [0, 490, 800, 800 - LAST]);
}

#[test]
fn prefixes_that_are_foreseen_share_what_is_gathered() {
    let all = tokens(&MODEL, 6, 2600);
    let specs = ["full", "snapkv:k=32", "h2o:k=32", "infllm:k=32", "quest:ratio=0.1", "retrieval_attention:k=32"];
    let methods = methods(&specs);
    // Lengths within and across blocks of sums, with fewer and with more tokens between them than there are last queries.
    for lengths in [[500, 508, 590], [1900, 2048, 2300], [2400, 2401, 2590]] {
        let mut in_turn = runner(&MODEL);
        // Graphs over long prefixes would take most of the time.
        let methods = if lengths[2] < 1000 { &methods[..] } else { &methods[..5] };
        for (at, length) in lengths.into_iter().enumerate() {
            let prompt = Prompt(all[..lengths[2] + 10].to_vec(), length, 1, 1);
            let shared = run_before(&MODEL, &prompt, &lengths[at + 1..], methods, &mut in_turn);
            assert_eq!(
                bits(&shared),
                bits(&run(&MODEL, &prompt, methods, &mut runner(&MODEL))),
                "{length} of {lengths:?}"
            );
            let kept = if at == 0 { 0 } else { lengths[at - 1].min(length - LAST) };
            assert_eq!(shared.prefill.reused_tokens, kept, "{length} of {lengths:?}");
        }
    }
}

#[test]
fn a_whole_prompt_that_is_dense_is_read_once_too() {
    let all = tokens(&MODEL, 5, 400);
    let prompts =
        [Prompt(all.clone(), 400, 1, 1), Prompt(all.clone(), 400, 1, 2), Prompt(all[..300].to_vec(), 300, 1, 3)];
    assert_eq!(compare(&MODEL, &prompts, &["full", "topk:k=16"]), [0, 400, 300 - LAST]);
}
