//! What calibrations learn, and from which vectors. Every layer and head has data of its own; each row of a tensor must
//! depend on the vectors of its own head and layer, and on no others.

use std::collections::BTreeSet;

use super::tests::{angle, collector, noise, random_kv};
use crate::calibration::artefact::{self, Artefact, ArtefactInfo, FORMAT, ModelShape, NamedTensor};
use crate::calibration::collector::{Collector, PrefillChunk};
use crate::kv::{KvDtype, LayerKv};

const D: usize = 8;
const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const GROUP: usize = HEADS / KV_HEADS;
/// Tokens of a prompt, which is read in two chunks.
const TOKENS: usize = 120;
const CHUNK: usize = 90;

fn model() -> ModelShape {
    ModelShape { weights_sha256: "data".into(), layers: LAYERS, heads: HEADS, kv_heads: KV_HEADS, head_dim: D }
}

/// The vectors of one head of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Queries { layer: usize, head: usize },
    Keys { layer: usize, kv_head: usize },
    Values { layer: usize, kv_head: usize },
}

impl Of {
    fn all() -> Vec<Self> {
        let layers = 0..LAYERS;
        let of_layer = |layer: usize| {
            let queries = (0..HEADS).map(move |head| Self::Queries { layer, head });
            let keys = (0..KV_HEADS).map(move |kv_head| Self::Keys { layer, kv_head });
            queries.chain(keys).chain((0..KV_HEADS).map(move |kv_head| Self::Values { layer, kv_head }))
        };
        layers.flat_map(of_layer).collect()
    }

    /// Vectors `[token][D]`, whose channels differ in size from head to head.
    fn rows(self, is_altered: bool) -> Vec<f32> {
        let place = Self::all().iter().position(|of| *of == self).unwrap();
        let mut rows = noise(TOKENS * D, 40 + place as u64 + if is_altered { 1000 } else { 0 });
        let size = |c: usize| 0.3 + ((c * 5 + place * 3) % 7) as f32;
        rows.chunks_mut(D).for_each(|row| row.iter_mut().enumerate().for_each(|(c, x)| *x = *x * size(c) + 0.2));
        rows
    }
}

/// Vectors of `heads` heads, `[token][head][D]`.
fn interleaved(heads: Vec<Vec<f32>>) -> Vec<f32> {
    (0..TOKENS).flat_map(|t| heads.iter().flat_map(move |rows| rows[t * D..][..D].to_vec())).collect()
}

/// Tensors of a calibration on this data, in which the vectors of `altered` are replaced.
fn tensors(spec: &str, altered: Option<Of>) -> Vec<NamedTensor> {
    let mut collector = collector(spec, &model(), TOKENS);
    read(collector.as_mut(), altered);
    collector.finish().tensors
}

/// Shows a collector a prompt of this data, in which the vectors of `altered` are replaced.
fn read(collector: &mut dyn Collector, altered: Option<Of>) {
    let rows = |of: Of| of.rows(altered == Some(of));
    for layer in 0..LAYERS {
        let queries = interleaved((0..HEADS).map(|head| rows(Of::Queries { layer, head })).collect());
        let keys = interleaved((0..KV_HEADS).map(|kv_head| rows(Of::Keys { layer, kv_head })).collect());
        let values = interleaved((0..KV_HEADS).map(|kv_head| rows(Of::Values { layer, kv_head })).collect());
        let mut kv = LayerKv::new(KvDtype::F32, KV_HEADS, D, TOKENS);
        for first in (0..TOKENS).step_by(CHUNK) {
            let end = (first + CHUNK).min(TOKENS);
            let width = KV_HEADS * D;
            let rows = keys[first * width..end * width].chunks(width).zip(values[first * width..].chunks(width));
            rows.for_each(|(key, value)| kv.append(key, value));
            let queries = &queries[first * HEADS * D..end * HEADS * D];
            collector.observe(&PrefillChunk::new(layer, first, queries, HEADS, &kv)).unwrap();
        }
    }
    collector.end_prompt(TOKENS);
}

#[test]
fn going_on_from_a_checkpoint_gives_the_same_bits() {
    for spec in ["double_sparsity", "loki", "duo_attention:sink=4,recent=16,last=50"] {
        let start = || collector(spec, &model(), TOKENS);
        let second = Some(Of::Keys { layer: 0, kv_head: 0 });
        let (mut whole, mut stopped, mut resumed) = (start(), start(), start());
        read(whole.as_mut(), None);
        read(stopped.as_mut(), None);
        let state = stopped.checkpoint();
        let info = ArtefactInfo {
            format: FORMAT,
            kind: "checkpoint".to_owned(),
            model: model(),
            data: "data".to_owned(),
            seed: 3,
            blocks: 1,
            tokens: TOKENS,
            settings: state.settings.clone(),
        };
        let file = Artefact::parse("checkpoint", artefact::write(&info, &state.tensors)).unwrap();
        resumed.restore(&file).unwrap();
        assert_eq!(resumed.checkpoint(), state, "{spec}");
        for collector in [&mut whole, &mut resumed] {
            read(collector.as_mut(), second);
        }
        let whole = whole.finish();
        assert_eq!(resumed.finish(), whole, "{spec}");
        assert_ne!(stopped.finish().tensors, whole.tensors, "{spec}: the second prompt counts");
    }
    let state = collector("duo_attention:sink=4,recent=16,last=50", &model(), TOKENS).checkpoint();
    assert_eq!(state.settings["recent"], "16");
}

/// Rows of tensors that differ, as `(name, row)`.
fn differing(a: &[NamedTensor], b: &[NamedTensor]) -> BTreeSet<(String, usize)> {
    let mut rows = BTreeSet::new();
    for (a, b) in a.iter().zip(b) {
        assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
        let row = a.values.len() / a.shape[0];
        let pairs = a.values.chunks(row).zip(b.values.chunks(row)).enumerate();
        rows.extend(pairs.filter(|(_, (a, b))| a != b).map(|(i, _)| (a.name.clone(), i)));
    }
    rows
}

fn named(layer: usize, names: &[&str], rows: impl IntoIterator<Item = usize> + Clone) -> BTreeSet<(String, usize)> {
    let of = |name: &&str| {
        let name = format!("layers.{layer}.{name}");
        rows.clone().into_iter().map(move |row| (name.clone(), row))
    };
    names.iter().flat_map(of).collect()
}

fn group(kv_head: usize) -> std::ops::Range<usize> {
    kv_head * GROUP..(kv_head + 1) * GROUP
}

fn check(spec: &str, expected: impl Fn(Of) -> BTreeSet<(String, usize)>) {
    let plain = tensors(spec, None);
    assert!(differing(&plain, &tensors(spec, None)).is_empty(), "{spec}: the same data, the same bits");
    for of in Of::all() {
        assert_eq!(differing(&plain, &tensors(spec, Some(of))), expected(of), "{spec}: {of:?} altered");
    }
}

#[test]
fn channel_means_are_those_of_their_own_head_and_layer() {
    check("double_sparsity", |of| match of {
        Of::Queries { layer, head } => named(layer, &["qk", "q", "q_pre"], [head]),
        Of::Keys { layer, kv_head } => {
            let mut rows = named(layer, &["k", "k_pre"], [kv_head]);
            rows.extend(named(layer, &["qk"], group(kv_head)));
            rows
        }
        Of::Values { .. } => BTreeSet::new(),
    });
}

#[test]
fn components_are_those_of_their_own_head_and_layer() {
    check("loki", |of| match of {
        Of::Keys { layer, kv_head } => named(layer, &["basis", "variance"], [kv_head]),
        _ => BTreeSet::new(),
    });
}

const STREAMING: &str = "duo_attention:sink=3,recent=20,last=50";

#[test]
fn errors_of_streaming_are_those_of_their_own_group_and_layer() {
    check(STREAMING, |of| match of {
        Of::Queries { layer, head } => named(layer, &["error"], [head / GROUP]),
        Of::Keys { layer, kv_head } | Of::Values { layer, kv_head } => named(layer, &["error"], [kv_head]),
    });
}

/// A group's nets learn from its keys and all of its queries; from values only if their norms count.
#[test]
fn nets_learn_from_their_own_group_and_layer() {
    for label in ["a", "av"] {
        let spec = format!("hash_attention:bits=8,label={label},steps=3,queries=6,top=4,rate=0.05");
        let side = |side: &str, layer: usize, heads: std::ops::Range<usize>| {
            let names: Vec<String> =
                (0..3).flat_map(|part| ["weight", "bias"].map(|what| format!("{side}.{part}.{what}"))).collect();
            named(layer, &names.iter().map(String::as_str).collect::<Vec<_>>(), heads)
        };
        let nets = |layer: usize, kv_head: usize| {
            let mut rows = side("key", layer, kv_head..kv_head + 1);
            rows.extend(side("query", layer, group(kv_head)));
            rows
        };
        check(&spec, |of| match of {
            Of::Queries { layer, head } => nets(layer, head / GROUP),
            Of::Keys { layer, kv_head } => nets(layer, kv_head),
            Of::Values { layer, kv_head } if label == "av" => nets(layer, kv_head),
            Of::Values { .. } => BTreeSet::new(),
        });
    }
}

fn values<'a>(tensors: &'a [NamedTensor], layer: usize, name: &str, row: usize, width: usize) -> &'a [f32] {
    let name = format!("layers.{layer}.{name}");
    &tensors.iter().find(|t| t.name == name).unwrap().values[row * width..][..width]
}

/// Means of `|q_c·k_c|`, `|q_c|` and `|k_c|` in plain loops, after RoPE and before it.
#[test]
fn channel_means_are_those_of_the_definitions() {
    let tensors = tensors("double_sparsity", None);
    let before_rope = |rows: &[f32]| -> Vec<f64> {
        let mut out = vec![0.0; rows.len()];
        for (position, (row, out)) in rows.chunks(D).zip(out.chunks_mut(D)).enumerate() {
            for pair in 0..D / 2 {
                let (sin, cos) = angle(pair, D, position).sin_cos();
                let (a, b) = (f64::from(row[pair]), f64::from(row[pair + D / 2]));
                (out[pair], out[pair + D / 2]) = (a * cos + b * sin, b * cos - a * sin);
            }
        }
        out
    };
    let as_cached = |rows: &[f32]| rows.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let mean =
        |of: &dyn Fn(usize) -> f64, c: usize| (0..TOKENS).map(|t| of(t * D + c).abs()).sum::<f64>() / TOKENS as f64;
    let close = |ours: &[f32], of: &dyn Fn(usize) -> f64, what: &str| {
        for (c, ours) in ours.iter().enumerate() {
            let exact = mean(of, c);
            assert!(
                (f64::from(*ours) - exact).abs() < 1e-4 * (1.0 + exact),
                "{what}, channel {c}: {ours}, not {exact}"
            );
        }
    };
    for (layer, head) in (0..LAYERS).flat_map(|l| (0..HEADS).map(move |h| (l, h))) {
        let kv_head = head / GROUP;
        let query = Of::Queries { layer, head }.rows(false);
        let key = Of::Keys { layer, kv_head }.rows(false);
        let (q, k, q_pre, k_pre) = (as_cached(&query), as_cached(&key), before_rope(&query), before_rope(&key));
        let what = format!("layer {layer}, head {head}");
        close(values(&tensors, layer, "qk", head, D), &|i| q[i] * k[i], &format!("qk, {what}"));
        close(values(&tensors, layer, "q", head, D), &|i| q[i], &format!("q, {what}"));
        close(values(&tensors, layer, "k", kv_head, D), &|i| k[i], &format!("k, {what}"));
        close(values(&tensors, layer, "q_pre", head, D), &|i| q_pre[i], &format!("q_pre, {what}"));
        close(values(&tensors, layer, "k_pre", kv_head, D), &|i| k_pre[i], &format!("k_pre, {what}"));
    }
}

/// On its basis a head's keys are uncorrelated, with the variances stated, which are descending.
#[test]
fn components_make_the_covariance_of_their_own_keys_diagonal() {
    let tensors = tensors("loki", None);
    for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
        let rows = Of::Keys { layer, kv_head }.rows(false);
        let basis = values(&tensors, layer, "basis", kv_head, D * D);
        let variances = values(&tensors, layer, "variance", kv_head, D);
        let on = |t: usize, r: usize| -> f64 {
            (0..D).map(|c| f64::from(rows[t * D + c]) * f64::from(basis[r * D + c])).sum()
        };
        let projected: Vec<Vec<f64>> = (0..D).map(|r| (0..TOKENS).map(|t| on(t, r)).collect()).collect();
        let mean = |x: &[f64]| x.iter().sum::<f64>() / TOKENS as f64;
        for a in 0..D {
            for b in 0..D {
                let (ma, mb) = (mean(&projected[a]), mean(&projected[b]));
                let products: Vec<f64> =
                    projected[a].iter().zip(&projected[b]).map(|(x, y)| (x - ma) * (y - mb)).collect();
                let expected = if a == b { f64::from(variances[a]) } else { 0.0 };
                let off = (mean(&products) - expected).abs();
                assert!(off < 1e-3, "layer {layer}, KV head {kv_head}, components {a} and {b}: off by {off}");
            }
        }
        assert!(variances.is_sorted_by(|a, b| a >= b) && variances[0] > 4.0 * variances[D - 1], "{variances:?}");
    }
}

/// Squared distances and norms of the two attentions in plain loops, over the last tokens and both query heads of a group.
#[test]
fn errors_of_streaming_are_those_of_the_definition() {
    let tensors = tensors(STREAMING, None);
    for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
        let (keys, values) = (Of::Keys { layer, kv_head }.rows(false), Of::Values { layer, kv_head }.rows(false));
        let (mut distance, mut norm) = (0.0, 0.0);
        for head in group(kv_head) {
            let queries = Of::Queries { layer, head }.rows(false);
            for position in TOKENS - 50..TOKENS {
                let output = |tokens: Vec<usize>| -> Vec<f64> {
                    let logit = |t: usize| -> f64 {
                        (0..D).map(|c| f64::from(queries[position * D + c]) * f64::from(keys[t * D + c])).sum()
                    };
                    let weights: Vec<f64> = tokens.iter().map(|t| (logit(*t) / (D as f64).sqrt()).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    let channel = |c: usize| {
                        tokens.iter().zip(&weights).map(|(t, w)| w / sum * f64::from(values[t * D + c])).sum()
                    };
                    (0..D).map(channel).collect()
                };
                let full = output((0..=position).collect());
                let streaming = output((0..=position).filter(|t| *t < 3 || *t + 20 > position).collect());
                distance += full.iter().zip(streaming).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                norm += full.iter().map(|x| x * x).sum::<f64>();
            }
        }
        let ours = f64::from(values_of_error(&tensors, layer)[kv_head]);
        let expected = distance / norm;
        assert!((ours / expected - 1.0).abs() < 1e-4, "layer {layer}, KV head {kv_head}: {ours}, not {expected}");
        assert!(expected > 0.05, "{expected}: something to measure");
    }
}

fn values_of_error(tensors: &[NamedTensor], layer: usize) -> &[f32] {
    values(tensors, layer, "error", 0, KV_HEADS)
}

/// The last tokens of each prompt count, not only of the last one, and only where streaming leaves tokens out.
#[test]
fn errors_of_streaming_are_summed_over_prompts() {
    let read = |prompts: &[(u64, usize)]| {
        let mut collector = collector("duo_attention:sink=2,recent=10,last=5", &model(), TOKENS);
        for (seed, tokens) in prompts {
            for layer in 0..LAYERS {
                let kv = random_kv(KvDtype::F32, KV_HEADS, *tokens, D, seed + layer as u64);
                let queries = noise(tokens * HEADS * D, 7 * seed + layer as u64);
                collector.observe(&PrefillChunk::new(layer, 0, &queries, HEADS, &kv)).unwrap();
            }
            collector.end_prompt(*tokens);
        }
        collector.finish()
    };
    let (a, b) = ((11, 60), (23, 40));
    let [one, other, both] = [&[a][..], &[b], &[a, b]].map(read);
    assert_eq!([&one, &both].map(|c| c.settings["positions"].as_str()), ["5", "10"]);
    for layer in 0..LAYERS {
        for kv_head in 0..KV_HEADS {
            let [one, other, both] = [&one, &other, &both].map(|c| values_of_error(&c.tensors, layer)[kv_head]);
            assert!(one.min(other) < both && both < one.max(other), "{one}, {other}, together {both}");
        }
    }
    assert_eq!(read(&[a, (5, 12)]).tensors, one.tensors, "all 12 tokens are sinks and recent ones");
    let nothing = read(&[(5, 12)]);
    assert!(nothing.notes[0].starts_with("nothing was measured"), "{:?}", nothing.notes);
    assert_eq!(values_of_error(&nothing.tensors, 0), [0.0, 0.0]);
}
