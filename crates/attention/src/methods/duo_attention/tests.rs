use super::super::tests::{assert_close, configured, noise, none, random_kv};
use super::*;
use crate::calibration::artefact::{ArtefactInfo, FORMAT, write};
use crate::kv::{KvDtype, Prefix};
use crate::prefill::testing::{D, Layer};
use crate::{Configured, DenseLayers, IndexCache};

const KV_HEADS: usize = 3;
const GROUP: usize = 2;
const HEADS: usize = KV_HEADS * GROUP;

/// An artefact with the given errors, `[layer][kv_head]`.
fn artefact(errors: &[Vec<f32>], kv_heads: usize) -> Result<Artefact, ArtefactError> {
    let (layers, heads) = (errors.len(), kv_heads * GROUP);
    let model = ModelShape { weights_sha256: "given".into(), layers, heads, kv_heads, head_dim: D };
    let info = ArtefactInfo {
        format: FORMAT,
        kind: NAME.into(),
        model,
        data: "given".into(),
        seed: 0,
        blocks: 1,
        tokens: 1,
        settings: BTreeMap::new(),
    };
    let tensor = |(layer, values): (usize, &Vec<f32>)| NamedTensor {
        name: format!("layers.{layer}.error"),
        shape: vec![values.len()],
        values: values.clone(),
        precision: Precision::F32,
    };
    let tensors: Vec<NamedTensor> = errors.iter().enumerate().map(tensor).collect();
    Artefact::parse("given", write(&info, &tensors))
}

fn method(spec: &str, policy: &Policy, errors: &[Vec<f32>]) -> Configured {
    configured(spec, policy).calibrated(&artefact(errors, errors[0].len()).unwrap()).unwrap()
}

/// Errors of two layers; from the largest: (1, 2), (0, 1), (1, 0), (0, 0), (0, 2), (1, 1).
fn two_layers() -> Vec<Vec<f32>> {
    vec![vec![0.3, 0.8, 0.2], vec![0.5, 0.1, 0.9]]
}

/// The `count` retrieval heads of [`two_layers`], as (layer, KV head).
fn retrieving(count: usize) -> Vec<(usize, usize)> {
    [(1, 2), (0, 1), (1, 0), (0, 0), (0, 2), (1, 1)][..count].to_vec()
}

/// Steps after a prefix: a retrieval head attends all tokens, a streaming head the first `sink` and last `local` ones.
#[test]
fn equals_a_naive_reference_while_the_window_moves_on() {
    for (spec, count) in [
        ("duo_attention", 3),
        ("duo_attention:retrieval=0.16", 1),
        ("duo_attention:retrieval=0.001", 1),
        ("duo_attention:retrieval=0.66", 4),
        ("duo_attention:retrieval=1", 6),
    ] {
        for (tokens, sink, local) in [(40, 3, 7), (5, 2, 9), (0, 2, 1), (30, 0, 0), (20, 25, 4)] {
            let policy = Policy { sink, local, ..none() };
            let layers: Vec<_> = (0..2).map(|l| random_kv(KvDtype::F32, KV_HEADS, tokens, D, 3 + l)).collect();
            let rows = |rows: spattn_kernels::Rows<'_>| -> Vec<Vec<f32>> {
                rows.to_f32().chunks(D).map(<[f32]>::to_vec).collect()
            };
            let mut stored: Vec<Vec<[Vec<Vec<f32>>; 2]>> = layers
                .iter()
                .map(|kv| (0..KV_HEADS).map(|h| [rows(kv.keys.head(h)), rows(kv.values.head(h))]).collect())
                .collect();
            let cache = IndexCache::new(Prefix::new(layers), KvDtype::F32, 1);
            let mut fork = { cache }.fork(&method(spec, &policy, &two_layers()), false).unwrap();
            let mut attended = 0;
            for step in 0..14u64 {
                for (layer, stored) in stored.iter_mut().enumerate() {
                    let seed = 100 * step + 10 * layer as u64;
                    let queries = noise(HEADS * D, seed);
                    let (key, value) = (noise(KV_HEADS * D, seed + 1), noise(KV_HEADS * D, seed + 2));
                    let mut out = vec![f32::NAN; HEADS * D];
                    fork.step(layer, &queries, &key, &value, &mut out).unwrap();
                    for head in 0..HEADS {
                        let kv_head = head / GROUP;
                        let [keys, values] = &mut stored[kv_head];
                        if head % GROUP == 0 {
                            keys.push(key[kv_head * D..][..D].to_vec());
                            values.push(value[kv_head * D..][..D].to_vec());
                        }
                        let all = retrieving(count).contains(&(layer, kv_head));
                        let total = keys.len();
                        let sees = |t: &usize| all || *t < sink || *t + local.max(1) >= total;
                        let seen: Vec<usize> = (0..total).filter(sees).collect();
                        attended += seen.len();
                        let query = &queries[head * D..][..D];
                        let logit = |t: &usize| {
                            let pairs = query.iter().zip(&keys[*t]);
                            pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()
                        };
                        let weights: Vec<f64> = seen.iter().map(|t| logit(t).exp()).collect();
                        let sum: f64 = weights.iter().sum();
                        let channel = |c: usize| {
                            let of = seen.iter().zip(&weights).map(|(t, w)| w * f64::from(values[*t][c]));
                            (of.sum::<f64>() / sum) as f32
                        };
                        let expected: Vec<f32> = (0..D).map(channel).collect();
                        let what = format!("{spec}, {tokens} tokens, step {step}, layer {layer}, head {head}");
                        assert_close(&out[head * D..][..D], &expected, 1e-5, &what);
                    }
                }
            }
            let cost = fork.costs().total(|_| true);
            assert_eq!(cost.attended_tokens as usize, attended, "{spec}, {tokens} tokens");
            assert_eq!((cost.score_flops, cost.select_bytes, cost.aux_bytes, fork.aux_bits()), (0, 0, 0, 0.0));
            let total = tokens + 14;
            let held = count * total + (6 - count) * (sink + local.max(1)).min(total);
            assert_eq!(fork.kv_bytes_held() as usize, held * 2 * D * 4, "{spec}, {tokens} tokens");
        }
    }
}

/// Rows of a prompt that is read in chunks; also with a density, which is solved for the whole prompt.
#[test]
fn a_prompt_is_read_by_the_same_classes() {
    let errors = vec![vec![0.2f32, 0.9, 0.4]];
    let streaming =
        |position: usize, token: usize, sink: usize, local: usize| token < sink || token + local.max(1) > position;
    for (spec, retrieving) in [
        ("duo_attention:retrieval=0.34", vec![1]),
        ("duo_attention:retrieval=0.6", vec![1, 2]),
        ("duo_attention:retrieval=1", vec![0, 1, 2]),
        // In 150 rows, 4 sink tokens and a window of 20 are 29 % of all pairs.
        ("duo_attention:density=0.5", vec![1]),
        ("duo_attention:density=0.75", vec![1, 2]),
        ("duo_attention:density=0.01", vec![1]),
    ] {
        let (sink, local) = (4, 20);
        let layer = Layer::new(150, HEADS, KV_HEADS);
        let method = method(spec, &Policy { sink, local, ..none() }, &errors);
        let sees = |position: usize, head: usize, token: usize| {
            let all = retrieving.contains(&(head / GROUP));
            (all || streaming(position, token, sink, local)).then_some(0.0)
        };
        let expected = layer.reference(sees);
        for most in [64, 100, 1000] {
            let (out, costs) = layer.attend(&method, most);
            assert_close(&out, &expected, 1e-4, spec);
            let pairs = (0..150).flat_map(|p| (0..=p).flat_map(move |t| (0..HEADS).map(move |h| (p, h, t))));
            let attended = pairs.filter(|(p, h, t)| sees(*p, *h, *t).is_some()).count();
            assert_eq!(costs.total(|_| true).attended_tokens as usize, attended, "{spec}");
        }
    }
}

/// A density is met to within half a KV head of the sparse layers.
#[test]
fn a_density_is_met_by_the_nearest_number_of_heads() {
    let (tokens, kv_heads, sink, local) = (600, 8, 4, 30);
    let errors: Vec<Vec<f32>> = (0..3).map(|l| noise(kv_heads, l).iter().map(|x| x.abs()).collect()).collect();
    let prefix = Prefix::new((0..3).map(|l| random_kv(KvDtype::F32, kv_heads, tokens, D, 3 + l)).collect::<Vec<_>>());
    for dense in ["none", "1", "0+2"] {
        let dense_layers = DenseLayers::parse(dense).unwrap();
        let policy = Policy { sink, local, dense_layers, ..none() };
        for density in [0.15, 0.3, 0.55, 0.8, 1.0] {
            let method = method(&format!("duo_attention:density={density}"), &policy, &errors);
            let run = |method: &Configured| {
                let mut fork = IndexCache::new(prefix.clone(), KvDtype::F32, 1).fork(method, false).unwrap();
                let mut outputs = Vec::new();
                for layer in 0..3 {
                    let mut out = vec![0.0; 2 * kv_heads * D];
                    let own = noise(kv_heads * D, 50 + layer as u64);
                    fork.step(layer, &noise(2 * kv_heads * D, 9 + layer as u64), &own, &own, &mut out).unwrap();
                    outputs.extend(out);
                }
                (outputs, fork)
            };
            let (out, fork) = run(&method);
            let achieved = fork.costs().total(|layer| !fork.is_dense(layer)).density();
            let heads = (0..3).filter(|layer| !fork.is_dense(*layer)).count() * kv_heads;
            let streamed = (sink + local) as f64 / (tokens + 1) as f64;
            let step = (1.0 - streamed) / heads as f64;
            assert!((achieved - density).abs() <= step / 2.0 + 1e-9, "dense {dense}, {density}: {achieved}");
            let solved = fork.solved().unwrap().to_owned();
            let same = self::method(&format!("duo_attention:{solved}"), &policy, &errors);
            assert!(run(&same).0 == out, "{solved} says what was solved");
        }
    }
}

#[test]
fn equal_errors_rank_by_number_and_an_artefact_of_nothing_is_refused() {
    let heads = Heads::new(&[vec![0.5, 0.7], vec![0.7, 0.5]], "");
    assert_eq!(*heads.ranks, [[2, 0], [1, 3]]);
    let load = |errors: &[Vec<f32>]| {
        let method = DuoAttention { retrieval: Tuned::Value(0.5), heads: None };
        method.with_errors(&artefact(errors, 2).unwrap()).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(load(&[vec![0.5, 0.0], vec![0.1, 0.2]]), Ok(()));
    assert!(load(&[vec![0.5, 0.1], vec![0.0, 0.0]]).unwrap_err().contains("only zeros"));
    assert!(load(&[vec![0.5], vec![0.1]]).unwrap_err().contains("shape"));
}
