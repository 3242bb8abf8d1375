//! Compares decoding and prefill in layers with a cap, a window and sinks of their own with naive attention in double precision.

use std::sync::Arc;

use super::sequence::Sequence;
use crate::calibration::collector::PrefillChunk;
use crate::kv::{KvDtype, LayerKv, Prefix};
use crate::methods::configure;
use crate::{
    AttentionSpec, Configured, IndexCache, LayerSpecs, LocalLayers, Policy, Rotation, SoftmaxScale, SparsePrefill,
    SpecReason, Tail, attend_densely, expand_grid,
};

const D: usize = 8;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const PREFIX: usize = 60;
const STEPS: usize = 7;

fn configured(spec: &str) -> Configured {
    configure(&expand_grid(spec).unwrap()[0], &Policy { sink: 2, local: 3, ..Policy::default() }).unwrap()
}

/// One spec for each feature, and one with all of them.
fn specs() -> Vec<AttentionSpec> {
    let plain = AttentionSpec::of_width(D);
    let sinks = Some([0.5, -2.0, 3.0, 1.0].into());
    vec![
        plain.clone(),
        AttentionSpec { scale: SoftmaxScale::inverse_root(3), ..plain.clone() },
        AttentionSpec { soft_cap: Some(0.8), ..plain.clone() },
        AttentionSpec { window: Some(9), ..plain.clone() },
        AttentionSpec { window: Some(1), ..plain.clone() },
        AttentionSpec { sinks: sinks.clone(), ..plain },
        AttentionSpec { scale: SoftmaxScale::of_factor(0.6), soft_cap: Some(1.2), window: Some(64), sinks },
    ]
}

fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin() * 1.5).collect()
}

/// Keys and values of all tokens at a layer, and the queries of all of them, `[token][heads][D]`.
fn layer(number: usize) -> (LayerKv, Vec<f32>) {
    let (tokens, width) = (PREFIX + STEPS, KV_HEADS * D);
    let mut kv = LayerKv::new(KvDtype::F32, KV_HEADS, D, tokens);
    kv.append_rows(&noise(tokens * width, 3 * number), &noise(tokens * width, 3 * number + 1));
    (kv, noise(tokens * HEADS * D, 3 * number + 2))
}

/// Returns the attention output of the token at `position`, `[heads][D]`.
fn naive(kv: &LayerKv, queries: &[f32], position: usize, spec: &AttentionSpec) -> Vec<f32> {
    naive_of(kv, queries, position, spec, &|_, _| true)
}

/// The product of a query head of the token at `position` with the key of `token`.
fn product(kv: &LayerKv, queries: &[f32], position: usize, head: usize, token: usize) -> f64 {
    let query = &queries[(position * HEADS + head) * D..][..D];
    let keys = kv.keys.head(head / (HEADS / KV_HEADS)).to_f32();
    query.iter().zip(&keys[token * D..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
}

/// Like [`naive`], over the tokens for which `keeps` is true, by query head.
fn naive_of(
    kv: &LayerKv,
    queries: &[f32],
    position: usize,
    spec: &AttentionSpec,
    keeps: &dyn Fn(usize, usize) -> bool,
) -> Vec<f32> {
    let of_head = |head: usize| {
        let query = &queries[(position * HEADS + head) * D..][..D];
        let own = |store: &crate::kv::KvStore| store.head(head / (HEADS / KV_HEADS)).to_f32();
        let (keys, values) = (own(&kv.keys), own(&kv.values));
        let sees = |token: &usize| spec.window.is_none_or(|window| position - token < window);
        let weight = |token: usize| {
            let pairs = query.iter().zip(&keys[token * D..]);
            let logit = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / spec.scale.divisor();
            spec.soft_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh()).exp()
        };
        let attended = (0..=position).filter(sees).filter(|token| keeps(head, *token));
        let weights: Vec<(usize, f64)> = attended.map(|token| (token, weight(token))).collect();
        let sink = spec.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let sum = weights.iter().map(|(_, weight)| weight).sum::<f64>() + sink;
        let channel = |c: usize| weights.iter().map(|(t, w)| w * f64::from(values[t * D + c])).sum::<f64>() / sum;
        (0..D).map(|c| channel(c) as f32).collect::<Vec<f32>>()
    };
    (0..HEADS).flat_map(of_head).collect()
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 2e-5, "{what}: {a} against {b}"));
}

/// Returns a sequence after a prefix whose layers attend by [`specs`], and the outputs of each of its steps, by layer.
fn decode(method: &str) -> (Sequence, Vec<Vec<Vec<f32>>>) {
    decode_by(&configured(method))
}

fn decode_by(method: &Configured) -> (Sequence, Vec<Vec<Vec<f32>>>) {
    let specs: LayerSpecs = specs().into();
    let layers: Vec<(LayerKv, Vec<f32>)> = (0..specs.layers()).map(layer).collect();
    let cut = |(kv, _): &(LayerKv, Vec<f32>)| {
        let mut kv = kv.clone();
        kv.truncate(PREFIX, PREFIX);
        kv
    };
    let prefix = Prefix::with_specs(layers.iter().map(cut).collect(), specs);
    let mut sequence = IndexCache::new(prefix, KvDtype::F32, 1).fork(method, true).unwrap();
    let step = |at: usize, number: usize, sequence: &mut Sequence| {
        let (kv, queries) = &layers[number];
        let row = |store: &crate::kv::KvStore| -> Vec<f32> {
            (0..KV_HEADS).flat_map(|head| store.head(head).slice(at..at + 1, D).to_f32()).collect()
        };
        let mut out = vec![f32::NAN; HEADS * D];
        sequence
            .step(number, &queries[at * HEADS * D..][..HEADS * D], &row(&kv.keys), &row(&kv.values), &mut out)
            .unwrap();
        out
    };
    let outputs = (PREFIX..PREFIX + STEPS)
        .map(|at| (0..layers.len()).map(|number| step(at, number, &mut sequence)).collect::<Vec<_>>());
    let outputs = outputs.collect();
    (sequence, outputs)
}

#[test]
fn decoding_honours_the_spec_of_each_layer() {
    for method in ["full", "topk:k=500", "quest:page=4,k=500"] {
        let (sequence, outputs) = decode(method);
        for (at, outputs) in (PREFIX..).zip(outputs) {
            for (number, (out, spec)) in outputs.iter().zip(specs()).enumerate() {
                let (kv, queries) = layer(number);
                assert_close(out, &naive(&kv, &queries, at, &spec), &format!("{method}, {spec:?}"));
            }
        }
        let fidelity = sequence.fidelity().unwrap();
        let all = |measured: Vec<Vec<f64>>| measured.concat();
        assert!(all(fidelity.output_error()).iter().all(|error| *error < 1e-5), "{method}");
        assert!(all(fidelity.recall()).iter().all(|recall| *recall == 1.0), "{method}");
        assert!(all(fidelity.dropped_mass()).iter().all(|mass| *mass == 0.0), "{method}");
    }
}

/// Methods select nothing in a layer that has a window of its own: it attends its whole window, and no more is counted or held.
#[test]
fn layers_with_a_window_attend_it_in_full_whatever_the_method() {
    let (sequence, outputs) = decode("topk:k=1");
    for (number, spec) in specs().iter().enumerate() {
        let (kv, queries) = layer(number);
        let costs = sequence.costs().total(|layer| layer == number);
        match spec.window {
            None => assert!(costs.attended_tokens < costs.context_tokens, "{spec:?}"),
            Some(window) => {
                (PREFIX..).zip(&outputs).for_each(|(at, outputs)| {
                    assert_close(&outputs[number], &naive(&kv, &queries, at, spec), &format!("{spec:?}"));
                });
                let seen: usize = (PREFIX + 1..=PREFIX + STEPS).map(|total| total.min(window)).sum();
                assert_eq!(
                    (costs.attended_tokens, costs.context_tokens),
                    ((HEADS * seen) as u64, (HEADS * seen) as u64)
                );
            }
        }
    }
    let (total, windows) = (PREFIX + STEPS, [9, 1, 64]);
    let expected = (4 * total + windows.iter().sum::<usize>()) as f64 / 7.0;
    assert!((sequence.kv_tokens_held() - expected).abs() < 1e-9, "{} tokens held", sequence.kv_tokens_held());
}

/// Returns the `k` tokens with the largest logits that each query head of the token at `position` selects within a window: among those that
/// were in the window when the prefix was read, except the last three.
fn selected_in_window(
    kv: &LayerKv,
    queries: &[f32],
    position: usize,
    spec: &AttentionSpec,
    k: usize,
) -> Vec<Vec<usize>> {
    let of_head = |head: usize| {
        let mut candidates: Vec<usize> = (spec.first_visible(PREFIX + 1)..PREFIX - 3).collect();
        let logit = |token: &usize| product(kv, queries, position, head, *token);
        candidates.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
        candidates.truncate(k);
        candidates
    };
    (0..HEADS).map(of_head).collect()
}

/// With `--local-layers sparse`, the last tokens of the prefix and all tokens after it are static. The others that were in the window when
/// the prefix was read are candidates. Tokens that the window hides are not attended.
#[test]
fn methods_select_within_windows_where_they_are_told_to() {
    let policy = Policy { sink: 0, local: 3, local_layers: LocalLayers::Sparse, ..Policy::default() };
    for (k, attends_all) in [(2, false), (500, true)] {
        let method = configure(&expand_grid(&format!("topk:k={k}")).unwrap()[0], &policy).unwrap();
        let (sequence, outputs) = decode_by(&method);
        let (mut attended, mut seen) = (0, 0);
        let windowed = specs().into_iter().enumerate().filter(|(_, spec)| spec.window.is_some());
        for (number, spec) in windowed.clone() {
            let (kv, queries) = layer(number);
            for (at, outputs) in (PREFIX..).zip(&outputs) {
                let first = spec.first_visible(at + 1);
                let selected = selected_in_window(&kv, &queries, at, &spec, k);
                let keeps = |head: usize, token: usize| token >= PREFIX - 3 || selected[head].contains(&token);
                let expected = naive_of(&kv, &queries, at, &spec, &keeps);
                assert_close(&outputs[number], &expected, &format!("k={k}, {spec:?}, at {at}"));
                let count = |head: usize| (first..=at).filter(|token| keeps(head, *token)).count() as u64;
                attended += (0..HEADS).map(count).sum::<u64>();
                seen += (HEADS * (at + 1 - first)) as u64;
            }
        }
        let costs = sequence.costs().total(|layer| specs()[layer].window.is_some());
        assert_eq!((costs.attended_tokens, costs.context_tokens), (attended, seen), "k={k}");
        assert_eq!(attended == seen, attends_all, "k={k}");
    }
}

#[test]
fn a_budget_in_a_window_is_a_share_of_the_window() {
    let policy = Policy { sink: 0, local: 0, local_layers: LocalLayers::Sparse, ..Policy::default() };
    let method = configure(&expand_grid("topk:ratio=0.5").unwrap()[0], &policy).unwrap();
    let (sequence, _) = decode_by(&method);
    // A window of nine tokens has a budget of five. Selected tokens that have left the window are not attended; tokens after the prefix
    // are.
    let costs = sequence.costs().total(|layer| specs()[layer].window == Some(9));
    assert!(costs.attended_tokens <= (HEADS * (1..=STEPS).map(|tail| (5 + tail).min(9)).sum::<usize>()) as u64);
    assert!(costs.attended_tokens > (HEADS * (1..=STEPS).sum::<usize>()) as u64);
}

#[test]
fn what_weighs_all_candidates_or_has_moving_ones_does_not_select_in_windows() {
    let specs: LayerSpecs = vec![AttentionSpec { window: Some(9), ..AttentionSpec::of_width(D) }].into();
    let policy = Policy { local_layers: LocalLayers::Sparse, ..Policy::default() };
    let said = |method: &str, policy: &Policy| {
        let method = configure(&expand_grid(method).unwrap()[0], policy).unwrap();
        method.unsupported(&specs).into_iter().collect::<Vec<_>>()
    };
    for method in ["full", "topk:k=9", "quest:k=32", "random:k=9", "streaming_llm:window=9"] {
        assert_eq!(said(method, &policy), [], "{method}");
    }
    let moving = Policy { tail: Tail::Indexed, ..policy.clone() };
    for (method, policy) in [
        ("topp:p=0.9", &policy),
        ("oracle_sampling:budget=16", &policy),
        ("sparq:k=9,r=3", &policy),
        ("snapkv:k=9", &policy),
        ("topk:k=9", &moving),
    ] {
        assert_eq!(said(method, policy), [SpecReason::Selection], "{method}");
        let dense = Policy { local_layers: LocalLayers::Dense, ..policy.clone() };
        assert_eq!(said(method, &dense), [], "{method}");
    }
}

/// The share of the softmax of a query head of the token at `position` that goes to the tokens for which `counts` is true: the attention
/// output if their values are 1 and all others 0.
fn share(
    kv: &LayerKv,
    queries: &[f32],
    position: usize,
    head: usize,
    spec: &AttentionSpec,
    counts: &dyn Fn(usize) -> bool,
) -> f64 {
    let tokens = 0..=position;
    let key = |token: usize, head: usize| kv.keys.head(head).to_f32()[token * D..][..D].to_vec();
    let keys: Vec<f32> =
        tokens.clone().flat_map(|token| (0..KV_HEADS).flat_map(move |head| key(token, head))).collect();
    let values: Vec<f32> = tokens.flat_map(|token| [f32::from(u8::from(counts(token))); KV_HEADS * D]).collect();
    let mut marked = LayerKv::new(KvDtype::F32, KV_HEADS, D, position + 1);
    marked.append_rows(&keys, &values);
    f64::from(naive(&marked, queries, position, spec)[head * D])
}

/// The dropped share of the softmax includes the sink in its denominator, and uses the capped logits.
#[test]
fn dropped_mass_is_of_the_layers_own_softmax() {
    let (sequence, _) = decode("streaming_llm:window=5");
    let dropped = sequence.fidelity().unwrap().dropped_mass();
    for (number, spec) in specs().iter().enumerate().filter(|(_, spec)| spec.window.is_none()) {
        let (kv, queries) = layer(number);
        for (head, dropped) in dropped[number].iter().enumerate() {
            let of_step = |at: usize| share(&kv, &queries, at, head, spec, &|token| token >= 2 && token + 5 <= at);
            let expected = (PREFIX..PREFIX + STEPS).map(of_step).sum::<f64>() / STEPS as f64;
            assert!((dropped - expected).abs() < 1e-5, "{spec:?}: {dropped} against {expected}");
        }
    }
}

/// Tokens that a window hides have no share of the softmax, and are not among the tokens with the largest logits.
#[test]
fn fidelity_in_windows_leaves_out_hidden_tokens() {
    let policy = Policy { sink: 0, local: 3, local_layers: LocalLayers::Sparse, ..Policy::default() };
    let (sequence, _) = decode_by(&configure(&expand_grid("topk:k=2").unwrap()[0], &policy).unwrap());
    let fidelity = sequence.fidelity().unwrap();
    let (recall, dropped) = (fidelity.recall(), fidelity.dropped_mass());
    for (number, spec) in specs().iter().enumerate().filter(|(_, spec)| spec.window.is_some()) {
        let (kv, queries) = layer(number);
        for head in 0..HEADS {
            let (mut expected_recall, mut expected_dropped) = (0.0, 0.0);
            for at in PREFIX..PREFIX + STEPS {
                let selected = &selected_in_window(&kv, &queries, at, spec, 2)[head];
                let attended = |token: usize| token >= PREFIX - 3 || selected.contains(&token);
                let mut visible: Vec<usize> = (spec.first_visible(at + 1)..=at).collect();
                let count = visible.iter().filter(|token| attended(**token)).count();
                let logit = |token: &usize| product(&kv, &queries, at, head, *token);
                visible.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
                let found = visible[..count].iter().filter(|token| attended(**token)).count();
                expected_recall += found as f64 / count as f64 / STEPS as f64;
                expected_dropped += share(&kv, &queries, at, head, spec, &|token| !attended(token)) / STEPS as f64;
            }
            let (recall, dropped) = (recall[number][head], dropped[number][head]);
            assert!((recall - expected_recall).abs() < 1e-9, "{spec:?}: {recall} against {expected_recall}");
            assert!((dropped - expected_dropped).abs() < 1e-5, "{spec:?}: {dropped} against {expected_dropped}");
        }
    }
}

/// A rotation that changes nothing, so a token moved to another position keeps its logit.
struct NoTurn;

impl Rotation for NoTurn {
    fn turn_back(&self, _: &mut [f32], _: usize) {}
}

/// Reads all tokens of a layer in chunks of `rows`.
fn read(sparse: &mut Option<SparsePrefill<'_>>, number: usize, spec: &AttentionSpec, rows: usize) -> Vec<f32> {
    let ((kv, queries), width) = (layer(number), HEADS * D);
    let mut out = vec![f32::NAN; queries.len()];
    for (first, out) in (0..).step_by(rows).zip(out.chunks_mut(rows * width)) {
        let end = first + out.len() / width;
        let mut before = kv.clone();
        before.truncate(end, end);
        let queries = &queries[first * width..end * width];
        let chunk = PrefillChunk::new(number, first, queries, HEADS, &before).with_spec(spec);
        match sparse {
            Some(sparse) => sparse.attend(&chunk, out),
            None => attend_densely(&chunk, out),
        }
        .unwrap();
    }
    out
}

/// Reads in one chunk, and in chunks shorter than a window, which then reaches back before the start of its chunk. Methods select all
/// tokens; some attend them at other positions.
#[test]
fn prefill_honours_the_spec_of_its_layer() {
    let (layer_specs, tokens): (LayerSpecs, usize) = (specs().into(), PREFIX + STEPS);
    let methods = ["topk:k=500", "a_shape:window=500", "quest:page=4,k=500", "streaming_llm:window=500,rolling=true"];
    for method in [None].into_iter().chain(methods.map(Some)) {
        let method = method.map(configured);
        for rows in [tokens, 7] {
            let new =
                |method| SparsePrefill::new(method, &layer_specs, 1).unwrap().with_rotation(Some(Arc::new(NoTurn)));
            let mut sparse = method.as_ref().map(new);
            for (number, spec) in layer_specs.iter().enumerate() {
                let ((kv, queries), out) = (layer(number), read(&mut sparse, number, spec, rows));
                for (at, out) in out.chunks_exact(HEADS * D).enumerate() {
                    let what = format!("{method:?}, {spec:?}, row {at} in chunks of {rows}");
                    assert_close(out, &naive(&kv, &queries, at, spec), &what);
                }
            }
            let Some(sparse) = sparse else { continue };
            let costs = sparse.into_costs();
            for (number, spec) in layer_specs.iter().enumerate() {
                let seen = |position: usize| spec.window.map_or(position + 1, |window| window.min(position + 1));
                let seen = (HEADS * (0..tokens).map(seen).sum::<usize>()) as u64;
                let cost = costs.total(|layer| layer == number);
                assert_eq!((cost.attended_tokens, cost.context_tokens), (seen, seen), "{method:?}, {spec:?}");
            }
        }
    }
}

#[test]
fn methods_say_what_of_a_spec_they_cannot_honour() {
    use SpecReason::{Sinks, SoftCap, Window};
    let all = specs().pop().unwrap();
    let plain = AttentionSpec::of_width(D);
    for (method, reasons) in [
        ("full", &[][..]),
        ("topk:k=9", &[]),
        ("quest:k=32", &[]),
        ("a_shape:window=9", &[]),
        ("random:k=9", &[]),
        ("streaming_llm:window=9", &[]),
        ("streaming_llm:window=9,rolling=true", &[Window]),
        ("topp:p=0.9", &[SoftCap, Sinks]),
        ("topk_norm:k=9", &[SoftCap, Sinks]),
        ("lsh_bits:k=9", &[SoftCap, Sinks]),
        ("magicpig:K=3,L=9", &[SoftCap, Sinks]),
        ("snapkv:k=9", &[SoftCap, Sinks]),
        ("vertical_slash", &[SoftCap, Sinks]),
    ] {
        let configured = configured(method);
        let said = configured.unsupported(&vec![plain.clone(), all.clone(), all.clone()].into());
        assert_eq!(said.into_iter().collect::<Vec<_>>(), reasons, "{method}");
        let scaled = AttentionSpec { scale: SoftmaxScale::inverse_root(77), ..plain.clone() };
        assert!(configured.unsupported(&vec![plain.clone(), scaled].into()).is_empty(), "{method}: any scale will do");
    }
}
