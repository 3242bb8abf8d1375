//! The forward pass against Hugging Face transformers, on tiny random checkpoints of every supported
//! architecture and RoPE variant, at positions beyond 1,000 (`scripts/make_golden_models.py`).

use super::golden_model::{self, Golden, names, names_on_gpus};
use spattn::attention::calibration::PrefillChunk;
use spattn::attention::methods::configure;
use spattn::attention::{Configured, IndexCache, Policy, Sequence, SparsePrefill, expand_grid};
use spattn::kv::{KvDtype, KvError, Tier};
use spattn::model::device::Device;
use spattn::model::engine::{EngineError, Prefill, Stream};

fn load(name: &str) -> Golden {
    golden_model::load(name, Device::Cpu)
}

fn method(spec: &str) -> Configured {
    configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap()
}

fn full_fork(prefill: &Prefill) -> Sequence {
    IndexCache::new(prefill.prefix.clone(), KvDtype::F32, 0).fork(&method("full"), false).unwrap()
}

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{what}: off by {worst}");
}

#[test]
fn logits_equal_the_reference_at_positions_beyond_1000() {
    for name in &names() {
        let g = load(name);
        let all = g.decoder.all_logits(&g.prompt).unwrap();
        let vocab = g.decoder.config().vocab_size;
        for (position, expected) in g.positions.iter().zip(&g.logits) {
            assert_close(&all[position * vocab..][..vocab], expected, &format!("{name} at {position}"));
        }
    }
}

/// A checkpoint that the GPU kernels cannot take would have to be left out here by name.
#[test]
fn kernels_for_gpus_take_every_checkpoint() {
    assert_eq!(names_on_gpus(), names());
}

#[test]
fn greedy_continuations_are_identical_from_any_split_of_the_prompt() {
    for name in &names() {
        let g = load(name);
        let n = g.prompt.len();
        for prefix in [n, n - 40, 3] {
            let (continuation, logits) = g.continues(prefix);
            assert_eq!(continuation, g.continuation, "{name} from a prefix of {prefix}");
            assert_close(&logits, &g.last_logits, &format!("{name}, last step, prefix of {prefix}"));
        }
    }
}

#[test]
fn an_error_of_an_observer_ends_the_prefill() {
    let g = load("qwen3");
    let error = KvError::Unread { layer: 1, tier: Tier::Device, why: "the device is gone".to_owned() };
    let mut seen = Vec::new();
    let observe = &mut |chunk: &PrefillChunk<'_>| {
        seen.push(chunk.layer);
        if chunk.layer == 1 { Err(error.clone()) } else { Ok(()) }
    };
    let read = g.decoder.prefill_observed(&g.prompt, g.prompt.len(), observe);
    assert_eq!(read.err(), Some(EngineError::Kv(error)));
    assert_eq!(seen, [0, 1]);
}

#[test]
fn a_prompt_that_a_mask_has_to_see_as_a_whole_passes_each_layer_in_one_piece() {
    let g = load("qwen3");
    let layers = g.decoder.config().layers;
    let tokens: Vec<u32> = g.prompt.iter().copied().cycle().take(2300).collect();
    let dense = g.decoder.prefill(&tokens, tokens.len()).unwrap();
    let pieces =
        |layer: usize, bounds: &[usize]| bounds.windows(2).map(|w| (layer, w[0], w[1] - w[0])).collect::<Vec<_>>();
    // Every token is in a vertical or in the window, so sparse prefill must equal dense prefill.
    for (spec, bounds) in [("vertical_slash:vertical=2300", &[0, 2300][..]), ("a_shape:window=2300", &[0, 2048, 2300])]
    {
        let method = method(spec);
        let (mut sparse, mut seen) = (SparsePrefill::new(&method, g.decoder.layer_specs(), 1).unwrap(), Vec::new());
        let observe = &mut |chunk: &PrefillChunk<'_>| {
            seen.push((chunk.layer, chunk.first, chunk.tokens()));
            Ok(())
        };
        let read = g.decoder.prefill_sparse(&tokens, tokens.len(), &mut sparse, observe).unwrap();
        assert_close(&read.logits, &dense.logits, spec);
        seen.sort_unstable();
        assert_eq!(seen, (0..layers).flat_map(|layer| pieces(layer, bounds)).collect::<Vec<_>>(), "{spec}");
    }
}

#[test]
fn a_stream_gets_the_same_bits_alone_and_beside_others() {
    let g = load("qwen3");
    let n = g.prompt.len();
    let prefill = g.decoder.prefill(&g.prompt[..n - 9], n).unwrap();
    let alone = {
        let mut fork = full_fork(&prefill);
        g.decoder.step(&mut [Stream { fork: &mut fork, tokens: &g.prompt[n - 9..] }], n).unwrap().remove(0)
    };
    let mut forks: Vec<Sequence> = (0..5).map(|_| full_fork(&prefill)).collect();
    let mut streams: Vec<Stream> = forks
        .iter_mut()
        .enumerate()
        .map(|(i, fork)| Stream { fork, tokens: if i % 2 == 0 { &g.prompt[n - 9..] } else { &g.prompt[..4] } })
        .collect();
    let together = g.decoder.step(&mut streams, n).unwrap();
    for i in [0, 2, 4] {
        assert_eq!(together[i], alone);
    }
}

#[test]
fn sixteen_bit_storage_stays_near() {
    let prompt = load("qwen2").prompt;
    let last =
        |dtype| golden_model::decoder("qwen2", dtype, Device::Cpu).prefill(&prompt, prompt.len()).unwrap().logits;
    let exact = last(KvDtype::F32);
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let near = last(dtype);
        let worst = near.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < 0.25, "{dtype:?}: off by {worst}");
    }
}
