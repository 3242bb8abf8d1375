//! A prefix in host memory, which kernels read over the bus, gives the same bits as one in GPU memory.

use spattn::attention::{Configured, Sequence, SparsePrefill};
use spattn::cost::{Cost, LayerCosts};
use spattn::kv::{KvDtype, Tier, TierBytes};
use spattn::model::config::ModelConfig;
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::tensors::Weights;

use super::golden_model::{Golden, load};
use super::several::{assert_same, bits, check_gone_on, small, tokens, with_prompt};
use super::{CUDA, PICKING, SPECS, THERE, gpu, learned, method, run_methods, run_some};

/// Loads a golden checkpoint that keeps keys and values in GPU memory, and one that keeps them in host memory.
pub(super) fn both(name: &str) -> [Golden; 2] {
    let mut below = load(name, CUDA);
    below.decoder.keep_kv_on_host(None);
    [load(name, CUDA), below]
}

/// Makes the same pair of a small random model with heads for tensor cores; see [`both`].
pub(super) fn both_random(change: impl Fn(&mut ModelConfig) + Copy) -> [Golden; 2] {
    let dimensions = Dimensions::new(&small("llama-3.1-8b", change), KvDtype::Bf16);
    let load = || Decoder::load(&dimensions, &Weights::random(3), CUDA).unwrap();
    let mut below = load();
    below.keep_kv_on_host(None);
    [with_prompt(load()), with_prompt(below)]
}

/// Returns the costs of a sequence without the bytes that crossed the bus.
pub(super) fn without_bus(costs: &LayerCosts) -> Vec<Cost> {
    costs.layers().iter().map(|cost| Cost { fetched: TierBytes::default(), ..*cost }).collect()
}

/// Checks results, costs, and the bytes that crossed the bus: those of all keys and values read, less those of the tail.
fn check_alike(what: &str, [one, below]: &[Golden; 2], methods: &[Configured], fidelity: bool) {
    let (expected, others) = run_methods(one, one, methods, fidelity, false);
    let (ours, forks) = run_methods(below, below, methods, fidelity, false);
    for ((fork, other), method) in forks.iter().zip(&others).zip(methods) {
        let what = format!("{what}, {}, fidelity {fidelity}", method.label());
        assert_eq!(fork.prefix().source().tier(0), Tier::Host, "{what}");
        assert_eq!(without_bus(fork.costs()), without_bus(other.costs()), "{what}");
        assert_eq!((fork.aux_bits(), fork.kv_bytes_held()), (other.aux_bits(), other.kv_bytes_held()), "{what}");
        assert!(!other.crosses_bus() && fork.crosses_bus() != method.has_moving_candidates(), "{what}");
        assert_eq!(other.costs().total(|_| true).fetched, TierBytes::default(), "{what}");
        check_bus(&what, fork, method);
    }
    for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        for ((ours, expected), method) in ours.iter().zip(expected).zip(methods) {
            assert_same(ours, expected, &format!("{what}, {}, step {step}, fidelity {fidelity}", method.label()));
        }
    }
}

fn check_bus(what: &str, fork: &Sequence, method: &Configured) {
    let (cost, shape) = (fork.costs().total(|_| true), fork.prefix().shape());
    if !fork.crosses_bus() {
        return assert_eq!(cost.fetched, TierBytes::default(), "{what}");
    }
    // The tokens of the tail that each step attends: all, or as many as a sliding window has.
    let prefix = fork.prefix().tokens();
    let attended = |total: usize| total - method.method.exact(&method.policy, prefix, total).recent.max(prefix);
    let behind: usize = (prefix + 1..=fork.tokens()).map(attended).sum();
    let tail = (behind * fork.prefix().layers() * shape.kv_heads * shape.row_bytes()) as u64;
    let TierBytes { device, host, disk } = cost.fetched;
    assert_eq!((device, disk), (0, 0), "{what}");
    match fork.selects_on_device() || cost.score_flops == 0 {
        true => assert_eq!(host + tail, cost.kv_bytes, "{what}"),
        // What the host scores does not cross the bus.
        false => assert!(host > 0 && host + tail <= cost.kv_bytes, "{what}: {host} and {tail} of {}", cost.kv_bytes),
    }
}

#[test]
#[ignore = "needs a GPU"]
fn pinned_memory_is_read_and_written_as_that_of_the_gpu() {
    let gpu = gpu();
    let numbers: Vec<u32> = (0..3_000_000).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
    let bytes = size_of_val(&numbers[..]);
    let most = gpu.most_bytes();
    let mut pinned = gpu.alloc_on_host(bytes).unwrap();
    let mut got = vec![1u32; numbers.len()];
    gpu.download(&pinned, 0, &mut got).unwrap();
    assert!(got.iter().all(|x| *x == 0), "new memory is zero");
    gpu.upload_to(&mut pinned, 0, &numbers).unwrap();
    gpu.upload_to(&mut pinned, 8, &[7u32]).unwrap();
    assert_eq!(gpu.most_bytes(), most, "it is no memory of the GPU");
    let mut there = gpu.alloc(bytes).unwrap();
    gpu.copy(&pinned, 0, &mut there, 0, bytes).unwrap();
    // Freed while the copy may still be running.
    drop(pinned);
    gpu.download(&there, 0, &mut got).unwrap();
    assert!((got[0], got[1], got[2]) == (numbers[0], numbers[1], 7) && got[3..] == numbers[3..]);
    // Pieces of rows: every second one, to places three apart.
    let mut pieces = gpu.alloc_on_host(40).unwrap();
    gpu.copy_pieces((&there, 12, 8), (&mut pieces, 0, 12), 3, 4).unwrap();
    let mut got = [9u32; 10];
    gpu.download(&pieces, 0, &mut got).unwrap();
    assert_eq!(got, [numbers[3], 0, 0, numbers[5], 0, 0, numbers[7], 0, 0, 0]);
    let error = gpu.alloc_on_host(1 << 50).unwrap_err().to_string();
    assert!(error.contains("the host has no"), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn every_way_to_pick_gives_what_it_gives_in_the_memory_of_the_gpu() {
    for name in PICKING {
        let both = both(name);
        for fidelity in [false, true] {
            let methods: Vec<Configured> = SPECS.iter().chain(&THERE).map(|spec| method(spec)).collect();
            check_alike(name, &both, &methods, fidelity);
        }
    }
    let specs = ["full", "topk:k=16", "quest:k=32", "h2o:k=16,recent=8", "snapkv:k=16", "lsh_bits:k=16", "hip:k=64"];
    let methods = specs.map(method);
    check_alike("wide heads", &both_random(|_| {}), &methods, false);
}

#[test]
#[ignore = "needs a GPU"]
fn methods_that_have_learned_pick_alike_from_host_memory() {
    let both = both("llama3");
    let kinds =
        [("hash_attention", "hash_attention:k=16"), ("loki", "loki:k=16"), ("double_sparsity", "double_sparsity:k=16")];
    let methods = kinds.map(|(kind, spec)| method(spec).calibrated(&learned(&both[0], kind)).unwrap());
    check_alike("learned", &both, &methods, false);
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_are_read_by_masks_into_host_memory_alike() {
    let text = tokens(3000, 2);
    let [one, below] = both_random(|_| {});
    for spec in ["streaming_llm:window=200", "hip:k=128,window=block", "minference", "flexprefill", "hyper_attention"] {
        let configured = method(spec);
        let read = |decoder: &Decoder| {
            let mut sparse = SparsePrefill::new(&configured, decoder.layer_specs(), 7)?
                .with_rotation(decoder.rotation(text.len(), text.len()));
            let (_, rows) = decoder.prefill_rows(&text, 0, Some(&mut sparse)).unwrap();
            Some((bits(&rows), sparse.into_costs()))
        };
        let (ours, expected) = (read(&below.decoder), read(&one.decoder));
        assert!(expected.is_some() && ours == expected, "{spec}");
    }
}

/// Prompts may have several chunks, for which a layer is brought back with its known tokens.
#[test]
#[ignore = "needs a GPU"]
fn a_prefix_in_host_memory_is_gone_on_with() {
    let text = tokens(20_000, 3);
    let n = text.len();
    let [one, below] = both_random(|config| config.keep_layers(&[0, 1]));
    for part in [(n - 200, n - 200), (n - 100, n - 333), (n, 50), (9000, 8999)] {
        check_gone_on("host memory", [&one.decoder, &below.decoder], &text, part);
    }
}

/// Steps of one row are recorded and launched again.
#[test]
#[ignore = "needs a GPU"]
fn steps_of_one_row_are_those_of_the_memory_of_the_gpu() {
    let [one, below] = both_random(|_| {});
    for spec in ["full", "quest:k=32"] {
        let of = |golden: &Golden| run_some(golden, golden, &[spec], false, false).0.concat().concat();
        for _ in 0..2 {
            assert_same(&of(&below), &of(&one), spec);
        }
    }
}
