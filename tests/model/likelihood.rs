//! Likelihoods of given text, compared with those of Hugging Face transformers (`scripts/make_golden_models.py likelihood`), and token by
//! token with one pass over all tokens.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use spattn::attention::methods::configure;
use spattn::attention::{Configured, Policy, expand_grid};
use spattn::eval::run::example_request::ExampleRequest;
use spattn::eval::run::example_runner::{ExampleResult, ExampleRunner};
use spattn::eval::run::score_text::{GivenText, Sums, TextToScore};
use spattn::kv::KvDtype;
use spattn::model::Model;
use spattn::model::config::ModelConfig;
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::Device;
use spattn::model::source::ModelSource;
use spattn::model::tensors::Weights;
use spattn::model::tokenizer::TokenizerOptions;

fn golden(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn methods(specs: &[&str]) -> Vec<Configured> {
    let one = |spec: &&str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
    specs.iter().map(one).collect()
}

/// The checkpoint of the golden likelihoods, and its prompt.
fn checkpoint() -> (Decoder, Vec<u32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/llama-bias");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = ModelConfig::parse(&config, "config.json").unwrap();
    let decoder =
        Decoder::load(&Dimensions::new(&config, KvDtype::F32), &Weights::open_folder(&folder).unwrap(), Device::Cpu)
            .unwrap();
    let prompt = numbers(&golden("models/llama-bias/golden.json")["prompt"]);
    (decoder, prompt.into_iter().map(|id| id as u32).collect())
}

/// An example, and the text after it that is scored.
#[derive(Clone, Copy)]
struct Asked<'a>(ExampleRequest<'a>, GivenText<'a>);

impl Asked<'_> {
    /// The same example, not compared with `full`.
    fn not_compared(self) -> Self {
        Self(self.0, GivenText { compare: false, ..self.1 })
    }
}

fn request<'a>(
    prompt: &'a [u32],
    prefix_tokens: usize,
    texts: &'a [TextToScore<'a>],
    methods: &'a [Configured],
) -> Asked<'a> {
    let example = ExampleRequest {
        prompt,
        prefix_tokens,
        longer: &[],
        methods,
        index_seed: 7,
        step_seed: 7,
        fidelity: false,
        solo: false,
    };
    Asked(example, GivenText { texts, compare: true })
}

static NEVER: AtomicBool = AtomicBool::new(false);

fn run(decoder: &Decoder, Asked(example, text): Asked<'_>) -> ExampleResult<Sums> {
    ExampleRunner::new(decoder, &NEVER).run(example, &text).unwrap().unwrap()
}

fn parallel(decoder: &Decoder, Asked(example, text): Asked<'_>) -> ExampleResult<Sums> {
    ExampleRunner::new(decoder, &NEVER).score_in_one_pass(example, &text).unwrap().unwrap()
}

#[test]
fn windowed_perplexity_is_that_of_transformers() {
    let (golden, (decoder, text)) = (golden("likelihood.json"), checkpoint());
    let [window, scored] = ["window", "scored"].map(|key| golden[key].as_u64().unwrap() as usize);
    let (full, mut total, expected) = (methods(&["full"]), 0.0, numbers(&golden["nll"]));
    assert_eq!(expected.len(), text.len() / window);
    for (tokens, nll) in text.chunks_exact(window).zip(&expected) {
        let (prompt, scored) = tokens.split_at(window - scored);
        // The prefix ends before the last prompt token, after the first token, and after the whole prompt.
        for prefix in [prompt.len() - 1, 1, prompt.len()] {
            let ours = run(&decoder, request(prompt, prefix, &[scored.into()], &full)).runs[0].answers[0].nll;
            assert!((ours - nll).abs() < 1e-3, "{ours} for {nll} from a prefix of {prefix}");
        }
        let ours = parallel(&decoder, request(prompt, prompt.len(), &[scored.into()], &full)).runs[0].answers[0].nll;
        assert!((ours - nll).abs() < 1e-3, "{ours} for {nll} in parallel");
        total += ours;
    }
    let perplexity = (total / (scored * expected.len()) as f64).exp();
    assert!((perplexity - golden["perplexity"].as_f64().unwrap()).abs() < 1e-3 * perplexity);
}

#[test]
fn likelihoods_of_options_are_those_of_transformers() {
    let (golden, (decoder, text)) = (golden("likelihood.json"), checkpoint());
    let prompt = &text[..golden["context"].as_u64().unwrap() as usize];
    let options: Vec<TextToScore> = golden["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|option| {
            TextToScore::from(&text[option[0].as_u64().unwrap() as usize..option[1].as_u64().unwrap() as usize])
        })
        .collect();
    // A method whose index is shared by all options is exact too if it selects all tokens.
    let all = methods(&["full", "topk:k=4096", "quest:page=16,k=4096"]);
    let outcomes = [
        run(&decoder, request(prompt, prompt.len() - 1, &options, &all).not_compared()),
        parallel(&decoder, request(prompt, prompt.len(), &options, &all[..1]).not_compared()),
    ];
    for scored in outcomes.iter().flat_map(|o| &o.runs) {
        for (sums, expected) in scored.answers.iter().zip(numbers(&golden["log_likelihoods"])) {
            assert!((-sums.nll - expected).abs() < 1e-3, "{} for {expected}", -sums.nll);
        }
    }
    let live = &outcomes[0].runs[1].costs;
    assert_eq!(
        live.steps,
        options.iter().map(|o| o.tokens.len()).sum::<usize>(),
        "the last prompt token counts once an option"
    );
    assert!((live.density - 1.0).abs() < 1e-9);
    // `topk` shares its inner products with attention; `quest`, which scores by bounds, shares none.
    assert!(live.cost1 == Some(0.0) && outcomes[0].runs[2].costs.cost1 > Some(0.0));
}

/// A window of English text for the built-in model: prompt and scored part.
fn builtin() -> (Model, Vec<u32>) {
    let model = Model::load(&ModelSource::Builtin, Some(KvDtype::F32), TokenizerOptions::default()).unwrap();
    let text = include_str!("../golden/prose.txt");
    let tokens = model.tokenizer.encode_text(text, true).unwrap()[..700].to_vec();
    (model, tokens)
}

#[test]
fn windows_in_one_pass_are_those_of_decoding_from_the_first_token() {
    let (model, tokens) = builtin();
    let (prompt, scored) = tokens.split_at(500);
    let all = methods(&["full", "streaming_llm:window=100", "a_shape:density=0.3", "streaming_llm:window=700"]);
    let live = run(&model.decoder, request(prompt, 0, &[scored.into()], &all)).runs;
    let whole = parallel(&model.decoder, request(prompt, prompt.len(), &[scored.into()], &all)).runs;
    for ((method, live), whole) in all.iter().zip(&live).zip(&whole) {
        let (a, b) = (&live.answers[0], &whole.answers[0]);
        assert!((a.nll / b.nll - 1.0).abs() < 1e-4, "{}: {} for {}", method.label(), a.nll, b.nll);
        assert!(
            (a.kl_sum - b.kl_sum).abs() < 1e-3 * (1.0 + b.kl_sum),
            "{}: {} for {}",
            method.label(),
            a.kl_sum,
            b.kl_sum
        );
        assert!((live.costs.density - whole.costs.density).abs() < 1e-9, "{}", method.label());
        assert_eq!(whole.costs.prefill.is_some(), method.name != "full", "its own reading");
    }
    assert!(whole[1].answers[0].kl_sum > 1.0 && whole[3].answers[0].kl_sum < 1e-3, "a window, and one over everything");
}

#[test]
fn a_mask_reads_options_alone_and_together_alike() {
    let (model, tokens) = builtin();
    let (prompt, rest) = tokens.split_at(300);
    let all = methods(&[
        "hip:k=32",
        "bigbird:window=40,blocks=2,block=16,block_q=8",
        "vertical_slash:vertical=20,slash=20",
        "streaming_llm:window=60,rolling=true",
    ]);
    let options = [TextToScore::from(&rest[..7]), TextToScore::from(&rest[20..60]), TextToScore::from(&rest[9..10])];
    let together = parallel(&model.decoder, request(prompt, 300, &options, &all).not_compared()).runs;
    for (i, option) in options.iter().enumerate() {
        let alone = parallel(&model.decoder, request(prompt, 300, &[*option], &all)).runs;
        for (together, alone) in together.iter().zip(&alone) {
            assert_eq!(together.answers[i].nll, alone.answers[0].nll);
            assert!(
                alone.answers[0].kl_sum > 0.0 && together.answers[i].kl_sum == 0.0,
                "compared only where that is asked"
            );
        }
    }
}

#[test]
fn perplexity_token_by_token_is_that_in_parallel() {
    let (model, tokens) = builtin();
    let (prompt, scored) = tokens.split_at(500);
    let all = methods(&["full", "topk:k=700", "topk:k=16", "random:k=16"]);
    let live = run(&model.decoder, request(prompt, prompt.len() - 1, &[scored.into()], &all)).runs;
    let whole = parallel(&model.decoder, request(prompt, prompt.len(), &[scored.into()], &all[..1])).runs;
    let perplexity = |nll: f64| (nll / scored.len() as f64).exp();
    let [full, exact, few, chance] = [0, 1, 2, 3].map(|i| &live[i].answers[0]);
    let expected = perplexity(whole[0].answers[0].nll);
    assert!((perplexity(full.nll) / expected - 1.0).abs() < 1e-4, "{} for {expected}", perplexity(full.nll));
    assert_eq!((full.kl_sum, full.same_top), (0.0, scored.len()));
    assert!((perplexity(exact.nll) / expected - 1.0).abs() < 1e-4 && exact.same_top == scored.len());
    let mean_kl = |kl: f64| kl / scored.len() as f64;
    assert!(mean_kl(exact.kl_sum) < 1e-6, "all tokens picked: {}", mean_kl(exact.kl_sum));
    assert!(mean_kl(few.kl_sum) > 1e-4 && few.kl_sum < chance.kl_sum, "{} and {}", few.kl_sum, chance.kl_sum);
    assert!(few.kl.len() == scored.len() && few.same_top < scored.len());
}

#[test]
fn no_method_depends_on_what_runs_beside_it() {
    let (model, tokens) = builtin();
    let (prompt, scored) = tokens[..400].split_at(300);
    let all = methods(&["topk:k=16", "full", "magicpig", "h2o:k=32"]);
    let together = run(&model.decoder, request(prompt, prompt.len() - 1, &[scored.into()], &all)).runs;
    for (i, scored_together) in together.iter().enumerate() {
        let alone = run(&model.decoder, request(prompt, prompt.len() - 1, &[scored.into()], &all[i..=i])).runs;
        assert_eq!(alone[0].answers, scored_together.answers, "{}", all[i].label());
        assert_eq!(
            (alone[0].costs.density, alone[0].costs.cost1),
            (scored_together.costs.density, scored_together.costs.cost1)
        );
    }
}

#[test]
fn tokens_that_are_given_are_as_if_they_were_the_prompts() {
    let (model, tokens) = builtin();
    let (prompt, rest) = tokens[..300].split_at(260);
    let all = methods(&["full", "topk:k=300", "random:k=16"]);
    let compared = |prompt: &[u32], text: TextToScore<'_>| {
        let outcome = run(&model.decoder, request(prompt, prompt.len().saturating_sub(1), &[text], &all));
        outcome.runs.into_iter().map(|r| r.answers[0].clone()).collect::<Vec<_>>()
    };
    let longer = compared(&tokens[..275], rest[15..].into());
    let given = compared(prompt, TextToScore { tokens: rest, given: 15 });
    let from_nothing = compared(&[], TextToScore { tokens: &tokens[..300], given: 275 });
    for (i, same) in [0, 1].into_iter().flat_map(|i| [(i, &given[i]), (i, &from_nothing[i])]) {
        assert!((same.nll - longer[i].nll).abs() < 1e-3, "{} for {}", same.nll, longer[i].nll);
    }
    assert!(given.iter().all(|sums| sums.kl.is_empty() || sums.kl.len() == 25));
    assert_ne!(given[2].nll, longer[2].nll, "what is given is attended by the method");
    let text = TextToScore { tokens: rest, given: 15 };
    let whole = parallel(&model.decoder, request(prompt, prompt.len(), &[text], &all[..1])).runs;
    assert!((whole[0].answers[0].nll - longer[0].nll).abs() < 1e-3);
}
