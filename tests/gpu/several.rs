//! A model whose layers are divided among GPUs gives the same bits as on one.
//!
//! Every test divides layers between two segments on the first GPU, each with its own CUDA stream, and, on a machine with two GPUs, between
//! both; a line says where that is left out.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use spattn::attention::{Configured, IndexCache, Sequence, SparsePrefill};
use spattn::kernels::cpu::quantised::BlockType;
use spattn::kernels::cpu::topk::argmax;
use spattn::kernels::cuda::{Gpu, count};
use spattn::kv::KvDtype;
use spattn::model::GpuShare;
use spattn::model::config::ModelConfig;
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::{CopiesPerGpu, Device, Gpus};
use spattn::model::engine::{Prefill, Stream};
use spattn::model::source::ModelSource;
use spattn::model::tensors::Weights;

use super::golden_model::{Golden, load, names_on_gpus, opened};
use super::{CUDA, SPECS, THERE, learned, method, run_methods, run_some};

/// Returns the GPUs of two segments: the first one twice, and, if there are two, the first two in either order.
fn pairs() -> Vec<[usize; 2]> {
    match count().unwrap() {
        0 | 1 => {
            eprintln!("SKIPPED: two GPUs; this machine has one, which holds both segments");
            vec![[0, 0]]
        }
        _ => vec![[0, 0], [0, 1], [1, 0]],
    }
}

/// Gives layers `..split` to the first of a pair, and the others to the second.
fn shares([first, second]: [usize; 2], layers: usize, split: usize) -> Vec<GpuShare> {
    let share = |ordinal: usize, layers: Range<usize>| GpuShare { ordinal, free: None, layers };
    vec![share(first, 0..split), share(second, split..layers)]
}

/// Loads a golden checkpoint with its layers divided.
fn divided(name: &str, pair: [usize; 2], split: usize) -> Golden {
    let (dimensions, weights) = opened(name, KvDtype::F32);
    let parts = shares(pair, dimensions.config().layers, split);
    let decoder = Decoder::load_divided(&dimensions, &weights, parts).unwrap();
    Golden { decoder, ..load(name, Device::Cpu) }
}

/// Returns numbers as bits, so that all differences count.
pub(super) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[track_caller]
pub(super) fn assert_same(ours: &[f32], expected: &[f32], what: &str) {
    let differing = ours.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(ours.len() == expected.len() && differing == 0, "{what}: {differing} of {} numbers differ", expected.len());
}

#[test]
#[ignore = "needs a GPU"]
fn what_one_gpu_sends_arrives_at_another_in_the_order_of_both_streams() {
    for [first, second] in pairs() {
        let (one, other) = (Gpu::open(first).unwrap(), Gpu::open(second).unwrap());
        let link = one.link(&other).unwrap();
        eprintln!("GPUs {first} and {second}: {link}");
        let numbers: Vec<u32> = (0..3_000_000).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
        let bytes = size_of_val(&numbers[..]);
        let (mut from, mut to) = (one.alloc(bytes).unwrap(), other.alloc(bytes).unwrap());
        let mut sums = Vec::new();
        for turn in 0..20u32 {
            let sent: Vec<u32> = numbers.iter().map(|number| number ^ turn).collect();
            // Nothing waits on the host: the source is overwritten while the copy of the turn before may still be running.
            one.upload_to(&mut from, 0, &sent).unwrap();
            other.receive(&mut to, &one, &from, bytes).unwrap();
            let mut kept = other.alloc(bytes).unwrap();
            other.copy(&to, 0, &mut kept, 0, bytes).unwrap();
            sums.push((sent, kept));
        }
        for (turn, (sent, kept)) in sums.iter().enumerate() {
            let mut got = vec![0u32; sent.len()];
            other.download(kept, 0, &mut got).unwrap();
            assert!(got == *sent, "turn {turn}");
        }
        // A part of a buffer, and nothing.
        one.upload_to(&mut from, 0, &[7u32, 8, 9]).unwrap();
        other.receive(&mut to, &one, &from, 8).unwrap();
        other.receive(&mut to, &one, &from, 0).unwrap();
        let mut got = [0u32; 3];
        other.download(&to, 0, &mut got).unwrap();
        assert_eq!(got, [7, 8, sums[19].0[2]]);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn layers_may_be_divided_anywhere() {
    for name in &names_on_gpus() {
        let one = load(name, CUDA);
        let (layers, n) = (one.decoder.config().layers, one.prompt.len());
        let expected = one.decoder.all_logits(&one.prompt).unwrap();
        let again = one.decoder.all_logits(&one.prompt).unwrap();
        assert_same(&again, &expected, &format!("{name}, one GPU twice"));
        let (text, last) = one.continues(n - 40);
        for (pair, split) in pairs().into_iter().flat_map(|pair| (1..layers).map(move |split| (pair, split))) {
            let what = format!("{name} on {pair:?}, divided before layer {split}");
            let two = divided(name, pair, split);
            assert_same(&two.decoder.all_logits(&two.prompt).unwrap(), &expected, &what);
            let (ours, logits) = two.continues(n - 40);
            assert_eq!(ours, text, "{what}");
            assert_same(&logits, &last, &what);
        }
    }
}

/// Returns a small model of a published shape.
pub(super) fn small(shape: &str, change: impl FnOnce(&mut ModelConfig)) -> ModelConfig {
    let texts = ModelSource::parse(&format!("random:{shape}")).unwrap().resolve_texts().unwrap();
    let mut config = texts.config().unwrap();
    (config.vocab_size, config.hidden_size, config.intermediate_size) = (300, 256, 512);
    (config.heads, config.kv_heads, config.head_dim) = (4, 2, 64);
    config.keep_layers(&[0, 1, 2, 3, 4]);
    change(&mut config);
    config
}

pub(super) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(0..300)).collect()
}

/// Returns models to run on one GPU and on two: with heads for tensor cores, their own or shared tables, experts, and quantised blocks.
pub(super) fn small_models() -> Vec<(&'static str, Dimensions, Weights)> {
    let experts = |config: &mut ModelConfig| {
        let experts = config.block.experts.as_mut().unwrap();
        (experts.count, experts.used, experts.width) = (6, 2, 96);
    };
    let of = |config: &ModelConfig| Dimensions::new(config, KvDtype::Bf16);
    let dense = small("llama-3.1-8b", |_| {});
    let blocks = Weights::random_in(4, BlockType::Q4K);
    vec![
        ("dense", of(&dense), Weights::random(3)),
        ("with one table at both ends", of(&small("llama-3.2-1b", |_| {})), Weights::random(5)),
        ("with experts", of(&small("qwen3-30b-a3b", experts)), Weights::random(6)),
        ("in quantised blocks", of(&dense).keeping_blocks(&blocks), blocks),
    ]
}

/// Gives a decoder a prompt of random tokens.
pub(super) fn with_prompt(decoder: Decoder) -> Golden {
    Golden {
        decoder,
        prompt: tokens(700, 1),
        positions: Vec::new(),
        logits: Vec::new(),
        continuation: Vec::new(),
        last_logits: Vec::new(),
    }
}

/// Calls `check` with a description and with each model on one GPU and divided before each of its layers.
fn for_each_division(check: impl Fn(&str, &Golden, &Golden)) {
    for (kind, dimensions, weights) in small_models() {
        let one = with_prompt(Decoder::load(&dimensions, &weights, CUDA).unwrap());
        let layers = dimensions.config().layers;
        for (pair, split) in pairs().into_iter().flat_map(|pair| (1..layers).map(move |split| (pair, split))) {
            let two = Decoder::load_divided(&dimensions, &weights, shares(pair, layers, split)).unwrap();
            let what = format!("a model {kind} on {pair:?}, divided before layer {split}");
            check(&what, &one, &with_prompt(two));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn divided_models_of_all_kinds_read_and_decode_alike() {
    let specs = ["full", "topk:k=16", "quest:k=32", "h2o:k=16,recent=8", "snapkv:k=16", "tova:k=16", "lsh_bits:k=16"];
    for_each_division(|what, one, two| {
        let ((ours, forks), (expected, others)) =
            (run_some(two, two, &specs, false, false), run_some(one, one, &specs, false, false));
        let (ours, expected) = (ours.concat().concat(), expected.concat().concat());
        assert!(expected.iter().any(|logit| logit.abs() > 1e-3), "{what}");
        assert_same(&ours, &expected, what);
        for ((fork, other), spec) in forks.iter().zip(&others).zip(specs) {
            assert_eq!(fork.costs(), other.costs(), "{what}: {spec}");
            let held = |fork: &Sequence| (fork.aux_bits(), fork.kv_bytes_held());
            assert_eq!(held(fork), held(other), "{what}: {spec}");
        }
    });
}

/// Steps of one row are recorded when their shape comes up again, until tails have grown twice.
#[test]
#[ignore = "needs a GPU"]
fn recorded_steps_of_divided_models_are_those_of_one_gpu() {
    for_each_division(|what, one, two| {
        let n = one.prompt.len();
        let decode = |golden: &Golden| {
            let prefill = golden.decoder.prefill(&golden.prompt, n).unwrap();
            let mut fork = IndexCache::new(prefill.prefix, KvDtype::Bf16, 0).fork(&method("full"), false).unwrap();
            let mut all = vec![prefill.logits];
            for _ in 0..150 {
                let next = argmax(&all[all.len() - 1]) as u32;
                all.push(golden.decoder.step(&mut [Stream { fork: &mut fork, tokens: &[next] }], n).unwrap().remove(0));
            }
            all.concat()
        };
        assert_same(&decode(two), &decode(one), what);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn every_way_to_pick_gives_what_it_gives_on_one_gpu() {
    for name in ["llama3", "qwen2"] {
        let one = load(name, CUDA);
        let layers = one.decoder.config().layers;
        for specs in [&SPECS[..], &THERE[..]] {
            for fidelity in [false, true] {
                let (expected, others) = run_some(&one, &one, specs, fidelity, false);
                for (pair, split) in pairs().into_iter().flat_map(|pair| (1..layers).map(move |split| (pair, split))) {
                    let two = divided(name, pair, split);
                    let (ours, forks) = run_some(&two, &two, specs, fidelity, false);
                    for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                        for ((ours, expected), spec) in ours.iter().zip(expected).zip(specs) {
                            let what = format!("{name} on {pair:?} {spec}, step {step}, fidelity {fidelity}");
                            assert_same(ours, expected, &what);
                        }
                    }
                    for ((fork, other), spec) in forks.iter().zip(&others).zip(specs) {
                        assert_eq!(fork.costs(), other.costs(), "{name} on {pair:?} {spec}");
                        let held = |fork: &Sequence| (fork.tokens(), fork.aux_bits(), fork.kv_bytes_held());
                        assert_eq!(held(fork), held(other), "{name} on {pair:?} {spec}");
                        assert_eq!(fork.selects_on_device(), other.selects_on_device(), "{name} {spec}");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn methods_that_have_learned_pick_alike() {
    let one = load("llama3", CUDA);
    let kinds =
        [("hash_attention", "hash_attention:k=16"), ("loki", "loki:k=16"), ("double_sparsity", "double_sparsity:k=16")];
    let methods: Vec<Configured> =
        kinds.iter().map(|(kind, spec)| method(spec).calibrated(&learned(&one, kind)).unwrap()).collect();
    let (expected, others) = run_methods(&one, &one, &methods, false, false);
    for pair in pairs() {
        let two = divided("llama3", pair, 1);
        let (ours, forks) = run_methods(&two, &two, &methods, false, false);
        assert_same(&ours.concat().concat(), &expected.concat().concat(), &format!("{pair:?}"));
        for (fork, other) in forks.iter().zip(&others) {
            assert_eq!(fork.costs(), other.costs(), "{pair:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_that_are_read_by_masks_are_read_alike() {
    let text = tokens(3000, 2);
    let specs = [
        "streaming_llm:window=200",
        "bigbird:window=48,blocks=3,block=16",
        "hip:k=128,window=block",
        "minference",
        "flexprefill",
        "hyper_attention",
    ];
    for_each_division(|what, one, two| {
        let (one, two) = (&one.decoder, &two.decoder);
        for spec in specs {
            let configured = method(spec);
            let read = |decoder: &Decoder| {
                let mut sparse = SparsePrefill::new(&configured, decoder.layer_specs(), 7)?
                    .with_rotation(decoder.rotation(text.len(), text.len()));
                let (_, rows) = decoder.prefill_rows(&text, 0, Some(&mut sparse)).unwrap();
                Some((bits(&rows), sparse.into_costs()))
            };
            let (ours, expected) = (read(two), read(one));
            assert!(expected.is_some(), "{spec} reads prompts by a mask");
            assert!(ours == expected, "{what}: {spec}");
        }
    });
}

/// Checks that two decoders continue alike from the first `kept` of `read` tokens of a text: the same logits, keys and values.
pub(super) fn check_gone_on(what: &str, [one, other]: [&Decoder; 2], text: &[u32], (read, kept): (usize, usize)) {
    let n = text.len();
    let gone_on = |decoder: &Decoder| {
        let prefix = Arc::into_inner(decoder.prefill(&text[..read], n).unwrap().prefix).unwrap();
        decoder.prefill_after(prefix, kept, text, n, &mut |_| Ok(())).unwrap()
    };
    let (ours, expected) = (gone_on(other), gone_on(one));
    let what = format!("{what}: {kept} of {read} kept");
    assert_same(&ours.logits, &expected.logits, &what);
    for layer in 0..expected.prefix.layers() {
        let numbers = |prefill: &Prefill| {
            let kv = prefill.prefix.layer(layer).unwrap();
            [kv.keys.head(1).to_f32(), kv.values.head(1).to_f32()].concat()
        };
        assert_same(&numbers(&ours), &numbers(&expected), &format!("{what}, layer {layer}"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_prefix_on_two_gpus_is_gone_on_with() {
    let text = tokens(900, 3);
    let n = text.len();
    for_each_division(|what, one, two| {
        for part in [(n - 200, n - 200), (n - 100, n - 333), (n, 50)] {
            check_gone_on(what, [&one.decoder, &two.decoder], &text, part);
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn devices_that_are_not_there_are_usage_errors() {
    let there = count().unwrap();
    let error = Device::Cuda(Gpus::in_order(&[0, there])).check(80).unwrap_err();
    assert!(error.what.contains(&format!("no GPU number {there}")) && error.hint.is_some(), "{}", error.what);
    assert!(Device::cuda(0).check(1).is_ok());
    let all = Device::EachGpu(CopiesPerGpu::ONE);
    assert_eq!(all.copies().unwrap(), (0..there).map(Device::cuda).collect::<Vec<_>>());
    let twice = Device::EachGpu(CopiesPerGpu::new(2).unwrap()).copies().unwrap();
    assert_eq!(twice, (0..there).chain(0..there).map(Device::cuda).collect::<Vec<_>>());
    let (dimensions, weights) = opened("llama3", KvDtype::F32);
    assert!(Decoder::load(&dimensions, &weights, all).is_err(), "a decoder is one copy");
    assert!(Decoder::load(&dimensions, &weights, Device::cuda(there)).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn layers_are_divided_by_free_memory() {
    let (_, dimensions, weights) = small_models().swap_remove(0);
    if count().unwrap() < 2 {
        eprintln!("SKIPPED: a division by free memory needs two GPUs");
        return;
    }
    let device = Device::Cuda(Gpus::in_order(&[0, 1]));
    let shares = dimensions.divide(device, 1000).unwrap();
    assert!(shares.iter().all(|share| share.free.is_some() && !share.layers.is_empty()), "{shares:?}");
    let (one, two) =
        (Decoder::load(&dimensions, &weights, CUDA).unwrap(), Decoder::load(&dimensions, &weights, device).unwrap());
    let text = tokens(100, 4);
    assert_same(&two.all_logits(&text).unwrap(), &one.all_logits(&text).unwrap(), "as --device cuda:0,1 loads it");
    assert!(two.gpu().unwrap().contains("2 x") || two.gpu().unwrap().contains(" + "), "{:?}", two.gpu());
    assert_eq!((one.gpu_use().unwrap().gpus, two.gpu_use().unwrap().gpus), (1, 2));
}
