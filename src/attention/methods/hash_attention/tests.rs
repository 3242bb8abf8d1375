//! The nets against plain arithmetic, their derivatives against finite differences, training on queries
//! and keys whose law is known, and checkpoints.

use std::collections::BTreeMap;

use half::f16;

use super::super::tests::{noise, none, prefix, random_artefact, random_kv, run, select};
use super::net::LAYERS;
use super::training::{Adam, Batch, GroupNets, Shape, SoftNet, Wanted};
use super::*;
use crate::attention::artefact::{ArtefactInfo, FORMAT, write};
use crate::attention::calibration::{Collected, Collector, PrefillChunk};
use crate::attention::{Picks, Selection};
use crate::kv::{KvDtype, LayerKv};

// ---- the nets as they are used ----

fn model(d: usize) -> ModelShape {
    ModelShape { weights_sha256: "random".into(), layers: 1, heads: 2, kv_heads: 1, head_dim: d }
}

/// Outputs of the net that an artefact holds for one head, in double precision.
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
        Picks::softmax(order)
    });
    let expected = Selection::PerHead(expected.collect());
    assert_eq!(select(&format!("hash_attention:k={k}"), &kv, &queries, 10..290).0, expected);
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
    let (Selection::PerHead(picks), _) = select("hash_attention:k=10", prefix.layer(0), &noise(4 * d, 0), 0..1000)
    else {
        panic!("picks of each query head");
    };
    let read: std::collections::BTreeSet<u32> = picks.iter().flat_map(|picks| &picks.tokens).copied().collect();
    assert!(read.len() < 40, "some are picked by several heads");
    assert_eq!(cost.kv_bytes as usize, 2 * 4 * d * (read.len() + 1), "what any head picked is read once for the group");
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
    let other = ModelShape { weights_sha256: "another".into(), ..model(32) };
    assert!(matches!(artefact.check(NAME, &other), Err(ArtefactError::OtherWeights { .. })));
    assert!(matches!(artefact.check("loki", &model(32)), Err(ArtefactError::OtherKind { .. })));
}

// ---- derivatives and steps ----

fn soft_net(shape: Shape, seed: u64) -> SoftNet {
    let mut numbers = noise(shape.parameters(), seed).into_iter().map(|x| (x + 1.5) / 3.0);
    SoftNet::new(shape, || numbers.next().unwrap())
}

fn small_problem() -> (GroupNets, Batch) {
    let shape = Shape { d: 6, bits: 5 };
    let mut nets = GroupNets { key: soft_net(shape, 1), queries: vec![soft_net(shape, 2), soft_net(shape, 3)] };
    let keys = noise(9 * 6, 4);
    nets.key.standardise(&keys);
    let queries = vec![noise(3 * 6, 5), noise(3 * 6, 6)];
    let wanted = |keys: &[u32], weight: f32| -> Vec<Wanted> {
        keys.iter().map(|key| Wanted { key: *key, weight: weight + *key as f32 }).collect()
    };
    let wanted = vec![
        vec![wanted(&[0, 3], 3.0), wanted(&[2], 5.0), wanted(&[4, 8], 7.0)],
        vec![wanted(&[1], 3.0), wanted(&[0, 1, 2], 5.0), wanted(&[5], 0.5)],
    ];
    (nets, Batch { keys, queries, seen: vec![4, 6, 9], wanted })
}

#[test]
fn the_loss_is_the_weighted_cross_entropy() {
    let (nets, batch) = small_problem();
    let keys = nets.key.forward(&batch.keys).signature;
    let (mut sum, mut total) = (0.0, 0.0);
    for (head, net) in nets.queries.iter().enumerate() {
        let queries = net.forward(&batch.queries[head]).signature;
        for (q, seen) in batch.seen.iter().enumerate() {
            for k in 0..*seen {
                let inner: f64 = (0..5).map(|b| f64::from(queries[q * 5 + b]) * f64::from(keys[k * 5 + b])).sum();
                let p = 1.0 / (1.0 + (-0.7 * inner).exp());
                let wanted = batch.wanted[head][q].iter().find(|w| w.key == k as u32);
                let weight = wanted.map_or(1.0, |w| f64::from(w.weight));
                sum -= weight * if wanted.is_some() { p.ln() } else { (1.0 - p).ln() };
                total += weight;
            }
        }
    }
    let (loss, _) = nets.loss(&batch, 0.7);
    assert!((loss - sum / total).abs() < 1e-5, "{loss} against {}", sum / total);
    // Logits beyond what single precision can tell from certainty are neither infinite nor rewarded.
    let (extreme, gradients) = nets.loss(&batch, 1e4);
    assert!(extreme.is_finite() && extreme > 0.0 && gradients.key.iter().all(|g| g.is_finite()));
}

#[test]
fn derivatives_equal_finite_differences() {
    const STEP: f32 = 1e-2;
    let (nets, batch) = small_problem();
    let (_, gradients) = nets.loss(&batch, 0.7);
    let all: Vec<&Vec<f32>> = [&gradients.key].into_iter().chain(&gradients.queries).collect();
    let largest = all.iter().flat_map(|g| g.iter()).fold(0.0f32, |m, g| m.max(g.abs()));
    assert!(largest > 0.01, "a flat loss would prove nothing: {largest}");
    for (net, gradient) in all.iter().enumerate() {
        for (i, expected) in gradient.iter().enumerate() {
            let at = |offset: f32| {
                let mut nets = nets.clone();
                let moved = if net == 0 { &mut nets.key } else { &mut nets.queries[net - 1] };
                moved.parameters[i] += offset;
                nets.loss(&batch, 0.7).0
            };
            // Of fourth order, so that the step may be large beside rounding.
            let near = 8.0 * (at(STEP) - at(-STEP));
            let difference = (near - (at(2.0 * STEP) - at(-2.0 * STEP))) / (12.0 * f64::from(STEP));
            let error = (difference - f64::from(*expected)).abs();
            assert!(error < 2e-3 * f64::from(largest), "net {net}, parameter {i}: {expected} against {difference}");
        }
    }
}

#[test]
fn adam_moves_by_the_rate_at_first_and_towards_the_mean_gradient_later() {
    let mut adam = Adam::new(3);
    let mut parameters = [1.0, 1.0, 1.0];
    adam.step(&mut parameters, &[0.5, -2e-3, 0.0], 0.1);
    for (p, expected) in parameters.iter().zip([0.9, 1.1, 1.0]) {
        assert!((p - expected).abs() < 1e-4, "{parameters:?}");
    }
    // A gradient that keeps turning over has a mean of nearly nothing.
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
    let info = artefact_info(NAME, &model(8), &Collected { tensors: vec![], settings: BTreeMap::new(), notes: vec![] });
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

/// Keys and queries of a prompt. A token's key and a query's wish are few numbers, mixed into all channels
/// by matrices of their own; every key also has a large part in common that no query asks for.
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

/// Shows a prompt, to learn from or not.
fn read(collector: &mut dyn Collector, model: &ModelShape, prompt: u64, learns: bool) {
    for (layer, (kv, queries)) in law(model, prompt).iter().enumerate() {
        let chunk = PrefillChunk { layer, first: 0, queries, heads: model.heads, kv };
        if learns { collector.observe(&chunk) } else { collector.examine(&chunk) }
    }
    collector.end_prompt(PROMPT);
}

fn small_model() -> ModelShape {
    ModelShape { weights_sha256: "law".into(), layers: 2, heads: 4, kv_heads: 2, head_dim: 16 }
}

/// The numbers of a note, in order.
fn numbers(note: &str) -> Vec<f64> {
    note.split([' ', ',', ';', ':']).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn training_lowers_the_loss_and_finds_more_than_random_planes() {
    let model = small_model();
    for label in ["a", "av"] {
        let settings = "bits=16,top=16,steps=4,queries=32,rate=0.01,scale=1";
        let mut collector = trainer(&model, &format!("hash_attention:{settings},label={label}"));
        (0..40).for_each(|prompt| read(collector.as_mut(), &model, prompt, true));
        (90..94).for_each(|prompt| read(collector.as_mut(), &model, prompt, false));
        let notes = collector.finish().notes;
        assert_eq!(numbers(&notes[0])[0], 160.0, "{notes:?}");
        // From token, loss, recall, share of attention.
        let (first, last) = (numbers(&notes[1]), numbers(&notes[8]));
        assert!(last[1] < 0.8 * first[1] && last[2] > first[2] + 0.1, "{notes:?}");
        let (learned, random) = (numbers(&notes[10])[0], numbers(&notes[12])[0]);
        assert!(learned > 1.3 * random && learned > 0.5, "{notes:?}");
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
    let state = stopped.checkpoint().unwrap();
    let info = ArtefactInfo { tokens: 3 * PROMPT, blocks: 3, ..artefact_info("checkpoint", &model, &state) };
    let file = Artefact::parse("checkpoint", write(&info, &state.tensors)).unwrap();
    let mut resumed = start();
    resumed.restore(&file).unwrap();
    assert_eq!(resumed.checkpoint().unwrap(), state);
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
