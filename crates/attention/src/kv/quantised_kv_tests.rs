//! Compares a quantised prefix with its codes' definition, and with itself read in other ways.

use super::*;
use crate::kv::KvDtype;

const D: usize = 40;
const TOKENS: usize = 5 * GROUP + 7;

fn layers(dtype: KvDtype) -> Vec<LayerKv> {
    let noise = |at: usize| ((at * 7919 % 10_007) as f32 / 997.0 - 5.0).sin() * (1 + at % 3) as f32;
    let layer = |layer: usize| {
        let mut kv = LayerKv::new(dtype, 2, D, TOKENS);
        for token in 0..TOKENS {
            let row = |part: usize| (0..2 * D).map(move |i| noise(((layer * 2 + part) * TOKENS + token) * 2 * D + i));
            kv.append(&row(0).collect::<Vec<_>>(), &row(1).collect::<Vec<_>>());
        }
        kv
    };
    (0..2).map(layer).collect()
}

const CODED: [PrefixDtype; 4] = [PrefixDtype::F8, PrefixDtype::Q8, PrefixDtype::Q4, PrefixDtype::Q2];

fn quantised(layers: &[LayerKv], dtype: PrefixDtype) -> QuantisedKv {
    QuantisedKv::new(&Prefix::new(layers.to_vec()), dtype).unwrap()
}

/// Scans the keys and values of consecutive tokens.
fn scanned(kv: &QuantisedKv, at: KvPlace, tokens: Range<usize>) -> [Vec<f32>; 2] {
    let mut seen = [Vec::new(), Vec::new()];
    kv.scan(at, tokens, &mut |keys, values| {
        seen[0].extend(keys.to_f32());
        seen[1].extend(values.to_f32());
    })
    .unwrap();
    seen
}

/// Whether `got` is within half a step of `x`, apart from the rounding of 16-bit scales; the step is that of `bits` bits over the
/// group's range.
fn close_to_a_step(x: f32, got: f32, group: &[f32], bits: i32) -> bool {
    let ends = (group.iter().copied().fold(f32::MAX, f32::min), group.iter().copied().fold(f32::MIN, f32::max));
    let step = (ends.1 - ends.0) / (2f32.powi(bits) - 1.0);
    (x - got).abs() <= 0.52 * step + 0.003 * x.abs()
}

#[test]
fn keys_have_ranges_by_channel_and_values_by_token_and_the_rest_is_exact() {
    let layers = layers(KvDtype::F32);
    for (dtype, bits) in [(PrefixDtype::Q8, 8), (PrefixDtype::Q4, 4), (PrefixDtype::Q2, 2)] {
        let kv = quantised(&layers, dtype);
        for (layer, kv_head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let [keys, values] = scanned(&kv, KvPlace { layer, kv_head }, 0..TOKENS);
            let exact = [&layers[layer].keys, &layers[layer].values].map(|store| store.head(kv_head).to_f32());
            let coded = 5 * GROUP * D;
            assert_eq!(
                (&keys[coded..], &values[coded..]),
                (&exact[0][coded..], &exact[1][coded..]),
                "the last 7 tokens"
            );
            assert_ne!((&keys[..coded], &values[..coded]), (&exact[0][..coded], &exact[1][..coded]));
            for at in 0..coded {
                let (token, channel) = (at / D, at % D);
                let of_key: Vec<f32> =
                    (0..GROUP).map(|t| exact[0][(token / GROUP * GROUP + t) * D + channel]).collect();
                assert!(close_to_a_step(exact[0][at], keys[at], &of_key, bits), "{dtype}: key at {at}");
                let first = channel / GROUP * GROUP;
                let of_value = &exact[1][token * D..][first..D.min(first + GROUP)];
                assert!(close_to_a_step(exact[1][at], values[at], of_value, bits), "{dtype}: value at {at}");
            }
        }
    }
}

#[test]
fn tokens_are_the_same_however_they_are_read() {
    for (dtype, storage) in CODED.into_iter().zip([KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::F16]) {
        let kv = quantised(&layers(storage), dtype);
        let at = KvPlace { layer: 1, kv_head: 1 };
        let all = scanned(&kv, at, 0..TOKENS);
        for tokens in [0..1, 30..34, 7..7, 158..TOKENS, 161..164, 3..TOKENS] {
            let expected = [0, 1].map(|part| all[part][tokens.start * D..tokens.end * D].to_vec());
            assert_eq!(scanned(&kv, at, tokens.clone()), expected, "{dtype}, {tokens:?}");
        }
        let (some, mut out) = ([166, 0, 31, 32, 160, 0], LayerKv::new(storage, 1, D, 6));
        kv.gather(at, &some, &mut out).unwrap();
        for (place, token) in some.into_iter().enumerate() {
            for (store, all) in [&out.keys, &out.values].into_iter().zip(&all) {
                assert_eq!(store.head(0).slice(place..place + 1, D).to_f32(), all[token as usize * D..][..D]);
            }
        }
        let whole: Box<dyn KvSource> = Box::new(quantised(&layers(storage), dtype));
        let whole = whole.into_layers().unwrap();
        assert_eq!([&whole[1].keys, &whole[1].values].map(|store| store.head(1).to_f32()), all, "{dtype}");
    }
}

/// Whole groups have the same codes in a shorter prefix as in a longer one. A scale over all tokens (f8) differs between prefixes.
#[test]
fn codes_of_a_group_depend_on_its_tokens_alone() {
    let all = layers(KvDtype::F16);
    for dtype in [PrefixDtype::Q8, PrefixDtype::Q4, PrefixDtype::Q2] {
        let mut short = all.clone();
        short.iter_mut().for_each(|kv| kv.truncate(3 * GROUP + 5, 0));
        let at = KvPlace { layer: 0, kv_head: 1 };
        let of = |layers: &[LayerKv]| scanned(&quantised(layers, dtype), at, 0..3 * GROUP);
        assert_eq!(of(&short), of(&all), "{dtype}");
    }
}

#[test]
fn threads_change_no_number() {
    let layers = layers(KvDtype::F16);
    for dtype in CODED {
        let of = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let kv = pool.install(|| quantised(&layers, dtype));
            [0, 1].map(|kv_head| scanned(&kv, KvPlace { layer: 0, kv_head }, 0..TOKENS))
        };
        assert_eq!(of(1), of(3), "{dtype}");
    }
}

#[test]
fn the_memory_that_it_holds_is_the_memory_that_is_counted() {
    for storage in [KvDtype::F32, KvDtype::Bf16] {
        let layers = layers(storage);
        for dtype in CODED {
            let kv = quantised(&layers, dtype);
            let (shape, rows) = (kv.shape(), kv.row_bytes());
            assert_eq!(kv.bytes(), dtype.bytes_of_copy(shape, 2, TOKENS), "{dtype}");
            let scales = if dtype == PrefixDtype::F8 { 4 * 8 } else { 0 };
            assert_eq!(kv.bytes(), 4 * rows.both(0..TOKENS) + scales, "{dtype}");
        }
    }
}
