//! The nets against plain arithmetic, their derivatives against finite differences, training on queries and keys with a
//! known relation, and checkpoints.

use std::collections::BTreeMap;

use half::f16;

use super::super::tests::{noise, none, prefix, random_artefact, random_kv, run, select};
use super::net::LAYERS;
use super::training::{Adam, Batch, GroupNets, LossMean, LossRule, Shape, SoftNet, Wanted};
use super::*;
use crate::calibration::artefact::{Artefact, ArtefactError, ArtefactInfo, FORMAT, ModelShape, write};
use crate::calibration::collector::{Collected, Collector, PrefillChunk};
use crate::cost::Cost;
use crate::kv::{KvDtype, KvRows, LayerKv};
use crate::methods::hash_attention::kind::in_blocks;
use crate::methods::hash_attention::net::SignNet;
use crate::scored::scorer::{NewTokens, Scorer, Segment};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{SelectedTokens, Selection, SoftmaxScale};

// ---- the nets as the method uses them ----

fn model(d: usize) -> ModelShape {
    ModelShape { weights_sha256: "random".into(), layers: 1, heads: 2, kv_heads: 1, head_dim: d }
}

/// Outputs of an artefact's net for one head, in double precision.
fn naive_outputs(artefact: &Artefact, side: &str, heads: usize, head: usize, x: &[f32], bits: usize) -> Vec<f64> {
    let d = x.len();
    let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for part in 0..LAYERS {
        let outputs = [d, d, bits][part];
        let weights = artefact.read(&format!("layers.0.{side}.{part}.weight"), &[heads, outputs, d]).unwrap();
        let biases = artefact.read(&format!("layers.0.{side}.{part}.bias"), &[heads, outputs]).unwrap();
        let row = |o: usize| {
            let weights = &weights[(head * outputs + o) * d..][..d];
            let sum: f64 = weights.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum();
            sum + f64::from(biases[head * outputs + o])
        };
        let z = (0..outputs).map(row);
        x = if part + 1 == LAYERS { z.collect() } else { z.map(|z| z / (1.0 + (-z).exp())).collect() };
    }
    x
}

#[test]
fn equals_a_naive_reference() {
    let (d, n, k, bits) = (32, 300, 17, 32);
    let kv = random_kv(KvDtype::F32, 1, n, d, 4);
    let (keys, queries) = (kv.keys.head(0).to_f32(), noise(2 * d, 6));
    let artefact = random_artefact(NAME, &model(d));
    let net = |side, heads, head: usize| SignNet::read(&artefact, 0, side, heads, d, bits).unwrap().remove(head);
    let signs = |side, heads, head, rows: &[f32]| -> Vec<Vec<bool>> {
        let outputs = net(side, heads, head).outputs(rows);
        let checked = rows.chunks(d).zip(outputs.chunks(bits)).map(|(x, outputs)| {
            for (output, exact) in outputs.iter().zip(naive_outputs(&artefact, side, heads, head, x, bits)) {
                assert!((f64::from(*output) - exact).abs() < 1e-4, "{side} {head}: {output} against {exact}");
            }
            outputs.iter().map(|o| *o > 0.0).collect()
        });
        checked.collect()
    };
    let of_keys = signs("key", 1, 0, &keys);
    let expected = queries.chunks(d).enumerate().map(|(head, query)| {
        let of_query = &signs("query", 2, head, query)[0];
        let distance = |t: u32| of_keys[t as usize].iter().zip(of_query).filter(|(a, b)| a != b).count();
        let mut order: Vec<u32> = (10..290).collect();
        order.sort_by_key(|t| (distance(*t), *t));
        order.truncate(k);
        order.sort_unstable();
        SelectedTokens::softmax(order)
    });
    let expected = Selection::PerHead(expected.collect());
    assert_eq!(select(&format!("hash_attention:ties=first,k={k}"), &kv, &queries, 10..290).0, expected);
}

#[test]
fn signatures_and_query_nets_are_counted_as_stored_and_read() {
    let (d, prefix) = (32, prefix(1, 1, 1000, 32));
    let (_, fork) = run(&prefix, "hash_attention:k=10", &none(), 4, 1);
    let cost = fork.costs().total(|_| true);
    assert_eq!(fork.aux_bits(), 32.0, "one word a token, whatever the group");
    let weights = 2 * d * d + 32 * d;
    assert_eq!(cost.score_flops as usize, 4 * 2 * weights, "a net for each query head");
    assert_eq!(cost.aux_bytes as usize, 1000 * 4 + 4 * (2 * weights + 4 * (2 * d + 32)));
    let (Selection::PerHead(picks), _) =
        select("hash_attention:k=10", prefix.layer(0).unwrap(), &noise(4 * d, 0), 0..1000)
    else {
        panic!("picks of each query head");
    };
    let read: std::collections::BTreeSet<u32> = picks.iter().flat_map(|picks| &picks.tokens).copied().collect();
    assert!(read.len() < 40, "some are picked by several heads");
    assert_eq!(cost.kv_bytes as usize, 2 * 4 * d * (read.len() + 1), "what any head picked is read once for the group");
}

/// An artefact of a collector that read nothing: its nets are as initialised.
fn untrained(spec: &str, model: &ModelShape) -> Artefact {
    let collected = trainer(model, spec).finish();
    Artefact::parse("untrained", write(&artefact_info(NAME, model, &collected), &collected.tensors)).unwrap()
}

fn scorer(key_nets: bool, ties: Ties) -> LearnedSignatures {
    let kind = NetKind { bits: 32, by_norm: false, by_query_head: key_nets };
    LearnedSignatures { kind, trained: "any", text: "any", ties, nets: None }
}

#[test]
fn every_query_head_may_have_a_key_net_of_its_own() {
    let (d, n, group, bits) = (16, 120, 3, 32);
    let model = ModelShape { weights_sha256: "random".into(), layers: 1, heads: 6, kv_heads: 2, head_dim: d };
    let artefact = untrained("hash_attention:key_nets=query_head", &model);
    let (keys, queries) = (noise(n * d, 4), noise(group * 2 * d, 6));
    let signs = |side, head, x: &[f32]| -> Vec<bool> {
        naive_outputs(&artefact, side, 6, head, x, bits).into_iter().map(|z| z > 0.0).collect()
    };
    for kv_head in 0..2 {
        let scorer = scorer(true, Ties::First).with_nets(&artefact).unwrap();
        let place = KvHeadId { layer: 0, kv_head, d, scale: SoftmaxScale::inverse_root(d), dtype: KvDtype::F32 };
        let mut index = scorer.empty(place, None);
        for (kept, end) in [(0, 70), (70, n)] {
            scorer.append(&mut index, kept, &NewTokens { place, keys: &keys[kept * d..end * d], values: &[] });
        }
        assert_eq!(scorer.index_bytes(&index), n * group * 4, "a word a token for each query head");
        let rows = kv(&keys, d);
        let keys_of_index = KvRows::lent(rows.keys.head(0), d);
        let asked = GroupQueries { layer: 0, kv_head, queries: &queries, rows: 2, d, scale: place.scale };
        let scores =
            scorer.scores(&asked, &Segment { index: &index, keys: keys_of_index }, &mut Cost::default()).unwrap();
        for (q, query) in queries.chunks(d).enumerate() {
            let head = kv_head * group + q / 2;
            let of_query = signs("query", head, query);
            for (t, key) in keys.chunks(d).enumerate() {
                let differ = signs("key", head, key).iter().zip(&of_query).filter(|(a, b)| a != b).count();
                assert_eq!(scores[q * n + t], -(differ as f32), "KV head {kv_head}, query {q}, token {t}");
            }
        }
    }
}

fn kv(keys: &[f32], d: usize) -> LayerKv {
    let mut kv = LayerKv::new(KvDtype::F32, 1, d, keys.len() / d);
    keys.chunks(d).for_each(|key| kv.append(key, key));
    kv
}

#[test]
fn tokens_at_one_distance_are_picked_by_the_seed_and_not_by_position() {
    let kv = kv(&vec![0.5; 16 * 800], 16);
    let picks = |spec: &str| match select(spec, &kv, &noise(2 * 16, 5), 0..800).0 {
        Selection::PerHead(picks) => picks.into_iter().map(|p| p.tokens).collect(),
        Selection::Shared(picks) => vec![picks.tokens],
    };
    assert_eq!(picks("hash_attention:ties=first,k=3"), [[0, 1, 2], [0, 1, 2]]);
    let seeded = picks("hash_attention:k=64");
    assert_eq!(seeded[0], seeded[1], "one order for all heads");
    assert_eq!(seeded[..1], picks("hash_attention:k=64,per=kv_head"), "and for their sum");
    assert_ne!(seeded, picks("hash_attention:k=64,seed=2"));
    let fewer = picks("hash_attention:k=20");
    assert!(fewer[0].iter().all(|t| seeded[0].contains(t)));
    // Of 64 selected tokens, 32 are expected in each half, with a deviation of 3.8.
    let early = seeded[0].iter().filter(|t| **t < 400).count();
    assert!((17..=47).contains(&early), "{early} of 64 in the first half");
}

#[test]
fn a_row_has_the_same_bits_in_any_batch() {
    let artefact = random_artefact(NAME, &model(64));
    let net = SignNet::read(&artefact, 0, "key", 1, 64, 32).unwrap().remove(0);
    let rows = noise(700 * 64, 3);
    let together = in_blocks(&net, &rows, 64);
    assert_eq!(together, rows.chunks(64).flat_map(|row| net.signatures(row)).collect::<Vec<u32>>());
}

#[test]
fn nets_of_other_bits_labels_models_or_kinds_are_refused() {
    let artefact = random_artefact(NAME, &model(32));
    let load = |spec: &str| super::super::tests::configured(spec, &none()).calibrated(&artefact);
    assert!(load("hash_attention").is_ok());
    let says = |spec: &str| load(spec).unwrap_err().to_string();
    assert_eq!(says("hash_attention:bits=64"), "random: made with nets `bits=32,label=a`, not `bits=64,label=a`");
    assert_eq!(says("hash_attention:label=av"), "random: made with nets `bits=32,label=a`, not `bits=32,label=av`");
    assert_eq!(
        says("hash_attention:key_nets=query_head"),
        "random: made with nets `bits=32,label=a`, not `bits=32,label=a,key_nets=query_head`"
    );
    assert_eq!(
        says("hash_attention:preset=paper"),
        "random: made with nets `bits=32,label=a`, not `preset=paper,bits=32,label=av,key_nets=query_head`"
    );
    assert_eq!(
        says("hash_attention:trained=paper"),
        format!("random: made with training `{BUILT_IN}`, not `preset=paper,bits=32,label=a,key_nets=kv_head`")
    );
    assert!(load("hash_attention:trained=tuned").is_ok());
    let other = ModelShape { weights_sha256: "another".into(), ..model(32) };
    assert!(matches!(artefact.check(NAME, &other), Err(ArtefactError::OtherWeights { .. })));
    assert!(matches!(artefact.check("loki", &model(32)), Err(ArtefactError::OtherKind { .. })));
}

/// The training setting of the built-in model's nets, which were made before there were presets.
const BUILT_IN: &str = "steps=16,queries=64,top=64,rate=0.004,alpha=20,beta=0,mass=0.8,scale=0.3; Adam, rate falling \
                        linearly to 0";

#[test]
fn a_preset_of_the_method_takes_nets_that_the_training_of_its_name_made() {
    let model = model(32);
    let made = |spec: &str| untrained(spec, &model);
    let loads = |spec: &str, artefact: &Artefact| {
        super::super::tests::configured(spec, &none()).calibrated(artefact).map(|_| ()).map_err(|e| e.to_string())
    };
    for preset in ["paper", "repo"] {
        let artefact = made(&format!("hash_attention:preset={preset}"));
        loads(&format!("hash_attention:preset={preset}"), &artefact).unwrap();
        // The static tokens of training are those of the method's preset.
        let training = artefact.setting("training").unwrap();
        assert!(training.contains(",sink=128,local=128"), "{training}");
        assert!(training.contains("steps=1,") && training.ends_with("; Adam, rate as it is"), "{training}");
        assert!(training.contains(",rate=0.001,alpha=20,beta=0,mass=0,scale=1,mean=pairs,standardise=false"));
        assert!(training.contains(if preset == "paper" { "top=64" } else { "top=32" }), "{training}");
        assert!(loads("hash_attention", &artefact).is_err());
    }
    let wide = made("hash_attention:preset=paper,bits=64");
    loads("hash_attention:preset=paper,bits=64", &wide).unwrap();
    assert!(loads("hash_attention:preset=paper", &wide).is_err());
    for other in [
        "steps=2",
        "rate=0.002",
        "decay=linear",
        "standardise=true",
        "scale=2",
        "mean=weights",
        "sink=4",
        "local=64",
        "top=32",
        "queries=64",
        "alpha=19",
        "beta=1",
        "mass=0.5",
    ] {
        let artefact = made(&format!("hash_attention:preset=paper,{other}"));
        assert!(loads("hash_attention:preset=paper", &artefact).is_err(), "{other}");
    }
    assert_eq!(made("hash_attention").setting("training").unwrap(), BUILT_IN);
}

// ---- derivatives and steps ----

fn soft_net(shape: Shape, seed: u64) -> SoftNet {
    let mut numbers = noise(shape.parameters(), seed).into_iter().map(|x| (x + 1.5) / 3.0);
    SoftNet::new(shape, || numbers.next().unwrap())
}

fn small_problem(key_nets: u64) -> (GroupNets, Batch<'static>) {
    let shape = Shape { d: 6, bits: 5 };
    let keys = (0..key_nets).map(|net| soft_net(shape, 1 + 10 * net)).collect();
    let mut nets = GroupNets { keys, queries: vec![soft_net(shape, 2), soft_net(shape, 3)] };
    let keys = noise(9 * 6, 4);
    nets.keys[0].standardise(&keys);
    let queries = vec![noise(3 * 6, 5), noise(3 * 6, 6)];
    let wanted = |keys: &[u32], weight: f32| -> Vec<Wanted> {
        keys.iter().map(|key| Wanted { key: *key, weight: weight + *key as f32 }).collect()
    };
    let wanted = vec![
        vec![wanted(&[0, 3], 3.0), wanted(&[2], 5.0), wanted(&[4, 8], 7.0)],
        vec![wanted(&[1], 3.0), wanted(&[0, 1, 2], 5.0), wanted(&[5], 0.5)],
    ];
    (nets, Batch { keys: keys.into(), queries, seen: vec![4, 6, 9], wanted })
}

/// `tanh` of three layers with SiLU between them, from the net's parameters.
fn naive_signature(net: &SoftNet, x: &[f32]) -> Vec<f64> {
    let (d, bits) = (net.shape.d, net.shape.bits);
    let mut x: Vec<f64> = (0..d).map(|c| f64::from(x[c] - net.mean[c]) * f64::from(net.factor[c])).collect();
    let mut at = 0;
    for layer in 0..LAYERS {
        let outputs = [d, d, bits][layer];
        let numbers = &net.parameters[at..at + (d + 1) * outputs];
        let z = (0..outputs).map(|o| {
            let products: f64 = (0..d).map(|i| x[i] * f64::from(numbers[i * outputs + o])).sum();
            products + f64::from(numbers[d * outputs + o])
        });
        x = match layer + 1 == LAYERS {
            true => z.map(f64::tanh).collect(),
            false => z.map(|z| z / (1.0 + (-z).exp())).collect(),
        };
        at += (d + 1) * outputs;
    }
    x
}

/// Weighted binary cross-entropy pair by pair: its sum, the sum of weights, and the number of pairs.
fn naive_loss(nets: &GroupNets, batch: &Batch<'_>, scale: f64) -> (f64, f64, f64) {
    let (mut sum, mut weights, mut pairs) = (0.0, 0.0, 0.0);
    for (head, net) in nets.queries.iter().enumerate() {
        let key_net = &nets.keys[if nets.keys.len() > 1 { head } else { 0 }];
        for (q, seen) in batch.seen.iter().enumerate() {
            let query = naive_signature(net, &batch.queries[head][q * 6..][..6]);
            for k in 0..*seen {
                let key = naive_signature(key_net, &batch.keys[k * 6..][..6]);
                let inner: f64 = query.iter().zip(&key).map(|(a, b)| a * b).sum();
                let p = 1.0 / (1.0 + (-scale * inner).exp());
                let wanted = batch.wanted[head][q].iter().find(|w| w.key == k as u32);
                let weight = wanted.map_or(1.0, |w| f64::from(w.weight));
                sum -= weight * if wanted.is_some() { p.ln() } else { (1.0 - p).ln() };
                weights += weight;
                pairs += 1.0;
            }
        }
    }
    (sum, weights, pairs)
}

#[test]
fn the_loss_is_the_weighted_cross_entropy() {
    for key_nets in [1, 2] {
        let (nets, batch) = small_problem(key_nets);
        for scale in [0.7, 1.0] {
            let (sum, weights, pairs) = naive_loss(&nets, &batch, f64::from(scale));
            assert!(weights > 1.5 * pairs, "the two means are told apart");
            for (mean, expected) in [(LossMean::Weights, sum / weights), (LossMean::Pairs, sum / pairs)] {
                let (loss, _) = nets.loss(&batch, LossRule { scale, mean });
                assert!((loss - expected).abs() < 1e-5, "{key_nets} nets, {mean:?}: {loss} against {expected}");
            }
        }
        // Logits at which single precision cannot tell a probability from 0 or 1 give a finite, positive loss.
        let (extreme, gradients) = nets.loss(&batch, LossRule { scale: 1e4, mean: LossMean::Weights });
        assert!(extreme.is_finite() && extreme > 0.0);
        assert!(gradients.keys.iter().flatten().all(|g| g.is_finite()));
    }
}

#[test]
fn derivatives_equal_finite_differences_of_a_naive_loss() {
    const STEP: f32 = 1.0 / 128.0;
    for (key_nets, mean) in [(1, LossMean::Weights), (2, LossMean::Pairs)] {
        let (nets, batch) = small_problem(key_nets);
        let (_, gradients) = nets.loss(&batch, LossRule { scale: 0.7, mean });
        let all: Vec<&Vec<f32>> = gradients.keys.iter().chain(&gradients.queries).collect();
        assert_eq!(all.len() as u64, key_nets + 2);
        let largest = all.iter().flat_map(|g| g.iter()).fold(0.0f32, |m, g| m.max(g.abs()));
        assert!(largest > 0.01, "a flat loss would prove nothing: {largest}");
        for (net, gradient) in all.iter().enumerate() {
            for (i, expected) in gradient.iter().enumerate() {
                let at = |offset: f32| {
                    let mut nets = nets.clone();
                    let moved = nets.keys.iter_mut().chain(&mut nets.queries).nth(net).unwrap();
                    // The offset may be rounded, so the actual difference is used.
                    let before = moved.parameters[i];
                    moved.parameters[i] += offset;
                    let moved_by = f64::from(moved.parameters[i]) - f64::from(before);
                    let (sum, weights, pairs) = naive_loss(&nets, &batch, 0.7);
                    (moved_by, sum / if mean == LossMean::Pairs { pairs } else { weights })
                };
                let (up, down) = (at(STEP), at(-STEP));
                let difference = (up.1 - down.1) / (up.0 - down.0);
                let error = (difference - f64::from(*expected)).abs();
                assert!(error < 2e-3 * f64::from(largest), "net {net}, parameter {i}: {expected} against {difference}");
            }
        }
    }
}

/// Algorithm 1 of Kingma and Ba (2015), with the paper's constants: parameter and moments after a step.
fn naive_adam(p: f64, m: f64, v: f64, g: f64, steps: i32, rate: f64) -> [f64; 3] {
    let (m, v) = (0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g);
    let (m_hat, v_hat) = (m / (1.0 - 0.9f64.powi(steps)), v / (1.0 - 0.999f64.powi(steps)));
    [p - rate * m_hat / (v_hat.sqrt() + 1e-8), m, v]
}

#[test]
fn steps_are_those_of_adam_by_hand() {
    let mut adam = Adam::new(4);
    let mut parameters = [0.3, -0.2, 0.0, 1.0];
    let mut expected: Vec<[f64; 3]> = parameters.iter().map(|p| [f64::from(*p), 0.0, 0.0]).collect();
    for (step, rate) in [(1, 0.001), (2, 0.001), (3, 0.01), (4, 0.001)] {
        let gradient = [0.5 * step as f32, -3e-4, 1e-9, if step % 2 == 0 { 2.0 } else { -1.0 }];
        adam.step(&mut parameters, &gradient, rate);
        for (at, g) in expected.iter_mut().zip(gradient) {
            *at = naive_adam(at[0], at[1], at[2], f64::from(g), step, f64::from(rate));
        }
        for (p, [by_hand, ..]) in parameters.iter().zip(&expected) {
            assert!((f64::from(*p) - by_hand).abs() < 2e-7, "step {step}: {parameters:?} against {expected:?}");
        }
    }
    assert!((expected[0][0] - 0.3).abs() > 0.01, "it moved");
}

/// Training as published: the states before and after prompts show which steps were made.
#[test]
fn the_papers_training_makes_one_step_of_adam_a_chunk_at_a_constant_rate() {
    let model = small_model();
    let mut collector = trainer(&model, "hash_attention:preset=paper,bits=16,sink=16,local=16");
    let state = |collector: &dyn Collector| collector.checkpoint();
    let tensor = |state: &Collected, net: usize, what: &str| -> Vec<f32> {
        let name = format!("layers.1.1.{net}.{what}");
        state.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}")).values.clone()
    };
    let mut states = vec![state(collector.as_ref())];
    for prompt in 0..3 {
        read(collector.as_mut(), &model, prompt, true);
        states.push(state(collector.as_ref()));
    }
    let steps: Vec<&str> = states.iter().map(|s| s.settings["steps"].as_str()).collect();
    assert_eq!(steps, ["0", "1", "2", "3"], "one a chunk");
    for net in 0..4 {
        assert_eq!(tensor(&states[3], net, "mean"), [0.0; 16], "inputs as they are");
        assert_eq!(tensor(&states[3], net, "factor"), [1.0; 16]);
        for (step, pair) in (1..).zip(states.windows(2)) {
            let [before, after] = [&pair[0], &pair[1]]
                .map(|state| ["parameters", "first_moment", "second_moment"].map(|what| tensor(state, net, what)));
            let mut moved = 0.0f64;
            for i in 0..before[0].len() {
                let [p, m, v] = [0, 1, 2].map(|what: usize| f64::from(before[what][i]));
                // The gradient, from the change of the first moment.
                let gradient = (f64::from(after[1][i]) - 0.9 * m) / 0.1;
                let [by_hand, _, second] = naive_adam(p, m, v, gradient, step, 0.001);
                assert!((f64::from(after[0][i]) - by_hand).abs() < 1e-6, "net {net}, step {step}, parameter {i}");
                assert!((f64::from(after[2][i]) - second).abs() < 1e-4 * second + 1e-12, "net {net}, step {step}");
                moved = moved.max((by_hand - p).abs());
            }
            // At a rate of 1e-3 a steady gradient moves a parameter by 1e-3; a decay over 40 prompts would show.
            assert!(moved > 0.9e-3, "net {net}, step {step}: {moved}");
        }
    }
    assert!(!states[3].tensors.iter().any(|t| t.name.starts_with("layers.1.1.4.")), "two nets of keys, two of queries");
}

#[test]
fn adam_moves_by_the_rate_at_first_and_towards_the_mean_gradient_later() {
    let mut adam = Adam::new(3);
    let mut parameters = [1.0, 1.0, 1.0];
    adam.step(&mut parameters, &[0.5, -2e-3, 0.0], 0.1);
    for (p, expected) in parameters.iter().zip([0.9, 1.1, 1.0]) {
        assert!((p - expected).abs() < 1e-4, "{parameters:?}");
    }
    // A gradient that alternates in sign has a mean of nearly zero.
    let before = parameters[0];
    (0..2000).for_each(|i| adam.step(&mut parameters, &[if i % 2 == 0 { -1.0 } else { 1.0 }, 0.0, 0.0], 0.1));
    assert!((parameters[0] - before).abs() < 1.0, "2,000 steps of one sign would move it by 200: {parameters:?}");
}

#[test]
fn rounding_and_standardising_leave_the_signs() {
    let shape = Shape { d: 16, bits: 24 };
    let mut soft = soft_net(shape, 7);
    let rows: Vec<f32> = noise(400 * 16, 8).iter().enumerate().map(|(i, x)| x * (1 + i % 16) as f32 + 5.0).collect();
    soft.standardise(&rows);
    let signature = soft.forward(&rows).signature;
    let outputs = soft.to_sign_net().outputs(&rows);
    let near = |y: &f32| y.abs() < 0.02;
    let differ = signature.iter().zip(&outputs).filter(|(y, z)| !near(y) && (**y > 0.0) != (**z > 0.0)).count();
    assert_eq!(differ, 0, "of {}", outputs.len());
    assert!(signature.iter().filter(|y| near(y)).count() < outputs.len() / 10);
}

#[test]
fn what_is_written_is_read() {
    let shape = Shape { d: 8, bits: 40 };
    let nets: Vec<SignNet> = (0..3).map(|seed| soft_net(shape, seed).to_sign_net()).collect();
    let info = artefact_info(
        NAME,
        &model(8),
        &Collected { tensors: vec![], settings: BTreeMap::new(), notes: vec![], held_out: None },
    );
    let artefact = Artefact::parse("x", write(&info, &SignNet::tensors(&nets, 5, "query"))).unwrap();
    assert_eq!(SignNet::read(&artefact, 5, "query", 3, 8, 40).unwrap(), nets);
    assert!(SignNet::read(&artefact, 5, "query", 3, 8, 32).is_err());
    assert!(f16::from_f32(1.0).to_f32() == 1.0 && nets[0].bytes() == 2 * (64 + 64 + 320) + 4 * (8 + 8 + 40));
}

// ---- training ----

fn artefact_info(kind: &str, model: &ModelShape, collected: &Collected) -> ArtefactInfo {
    ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model: model.clone(),
        data: "law".into(),
        seed: 0,
        blocks: 0,
        tokens: 0,
        settings: collected.settings.clone(),
    }
}

const PROMPT: usize = 600;
const PLANNED: usize = 40 * PROMPT;

fn trainer(model: &ModelShape, spec: &str) -> Box<dyn Collector> {
    super::super::tests::collector(spec, model, PLANNED)
}

/// Keys and queries of a prompt. A token's key and a query's wish are a few numbers each, mixed into all channels by a
/// matrix for each of the two; all keys also share a large part that no query asks for.
fn law(model: &ModelShape, prompt: u64) -> Vec<(LayerKv, Vec<f32>)> {
    const WISHES: usize = 4;
    let d = model.head_dim;
    let mix = |numbers: &[f32], matrix: &[f32]| -> Vec<f32> {
        (0..d).map(|c| numbers.iter().enumerate().map(|(i, x)| x * matrix[i * d + c]).sum()).collect()
    };
    let layer = |layer: u64| {
        let matrix = noise(WISHES * d, 1000 + layer);
        let common: Vec<f32> = noise(d, 2000 + layer).iter().map(|x| 4.0 * x).collect();
        let mut kv = LayerKv::new(KvDtype::F32, model.kv_heads, d, PROMPT);
        let mut queries = Vec::new();
        for token in 0..PROMPT as u64 {
            let seed = (prompt * 10 + layer) * 100_000 + token;
            let row = |h: usize, key: bool| {
                let own = mix(&noise(WISHES, seed + 10_000 * h as u64 + if key { 0 } else { 5_000 }), &matrix);
                let add = if key { 1.0 } else { -0.2 };
                own.iter().zip(&common).map(|(x, c)| x + add * c).collect::<Vec<f32>>()
            };
            let keys: Vec<f32> = (0..model.kv_heads).flat_map(|h| row(h, true)).collect();
            kv.append(&keys, &noise(model.kv_heads * d, seed + 7));
            queries.extend((0..model.heads).flat_map(|h| row(h, false)));
        }
        (kv, queries)
    };
    (0..model.layers as u64).map(layer).collect()
}

/// Reads a prompt, to train on it or to examine it.
fn read(collector: &mut dyn Collector, model: &ModelShape, prompt: u64, learns: bool) {
    for (layer, (kv, queries)) in law(model, prompt).iter().enumerate() {
        let chunk = PrefillChunk::new(layer, 0, queries, model.heads, kv);
        if learns { collector.observe(&chunk) } else { collector.examine(&chunk) }.unwrap();
    }
    collector.end_prompt(PROMPT);
}

fn small_model() -> ModelShape {
    ModelShape { weights_sha256: "law".into(), layers: 2, heads: 4, kv_heads: 2, head_dim: 16 }
}

/// The numbers in a note, in order.
fn numbers(note: &str) -> Vec<f64> {
    note.split([' ', ',', ';', ':']).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn training_lowers_the_loss_and_finds_more_than_random_planes() {
    let model = small_model();
    for kind in ["label=a", "label=av", "label=a,key_nets=query_head,mean=pairs,against=16+256"] {
        let settings = "bits=16,top=16,steps=4,queries=32,rate=0.01,scale=1";
        let mut collector = trainer(&model, &format!("hash_attention:{settings},{kind}"));
        (0..40).for_each(|prompt| read(collector.as_mut(), &model, prompt, true));
        (90..94).for_each(|prompt| read(collector.as_mut(), &model, prompt, false));
        let notes = collector.finish().notes;
        assert_eq!(numbers(&notes[0])[0], 160.0, "{notes:?}");
        // Numbers of a note: token, loss, recall, share of attention.
        let (first, last) = (numbers(&notes[1]), numbers(&notes[8]));
        assert!(last[1] < 0.8 * first[1] && last[2] > first[2] + 0.1, "{notes:?}");
        // Numbers of a note: bits, recall, recall by layer.
        let (learned, random) = (numbers(&notes[10])[1], numbers(&notes[12])[1]);
        assert!(learned > 1.3 * random && learned > 0.5, "{notes:?}");
        if kind.contains("against") {
            let wide = numbers(&notes[14]);
            assert!(notes[14].contains("random 256") && wide[1] > 1.2 * random, "{notes:?}");
        }
    }
}

#[test]
fn going_on_from_a_checkpoint_gives_the_same_nets() {
    let model = small_model();
    let start = || trainer(&model, "hash_attention:bits=16,top=16,steps=4,queries=8");
    let mut whole = start();
    (0..6).for_each(|prompt| read(whole.as_mut(), &model, prompt, true));
    let mut stopped = start();
    (0..3).for_each(|prompt| read(stopped.as_mut(), &model, prompt, true));
    let state = stopped.checkpoint();
    let info = ArtefactInfo { tokens: 3 * PROMPT, blocks: 3, ..artefact_info("checkpoint", &model, &state) };
    let file = Artefact::parse("checkpoint", write(&info, &state.tensors)).unwrap();
    let mut resumed = start();
    resumed.restore(&file).unwrap();
    assert_eq!(resumed.checkpoint(), state);
    (3..6).for_each(|prompt| read(resumed.as_mut(), &model, prompt, true));
    for collector in [&mut whole, &mut resumed] {
        read(collector.as_mut(), &model, 90, false);
    }
    let (whole, resumed) = (whole.finish(), resumed.finish());
    assert_eq!(whole, resumed, "tensors, settings, learning curve and recall");
    assert_ne!(whole.tensors, stopped.finish().tensors);
    let error = trainer(&model, "hash_attention:bits=16,top=16,steps=4,queries=9").restore(&file).unwrap_err();
    assert!(error.to_string().starts_with("checkpoint: made with training `"), "{error}");
}

#[test]
fn prompts_too_short_to_learn_from_are_said() {
    let notes = trainer(&small_model(), "hash_attention").finish().notes;
    assert_eq!(notes, ["nothing was learned: no prompt is longer than 196 tokens"]);
}
