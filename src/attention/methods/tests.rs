//! What every method must satisfy, checked through the engine on small random caches, and what each
//! one computes, checked against naive references.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::attention::artefact::{Artefact, ArtefactInfo, FORMAT, ModelShape, write};
use crate::attention::calibration::PrefillChunk;
use crate::attention::{
    Depth, Fork, HeadPrefix, IndexCache, PromptHead, PromptShape, PromptStats, Selection, Step, expand_grid,
};
use crate::cost::Cost;
use crate::kernels::cpu::Rows;
use crate::kv::{KvDtype, LayerKv, Prefix};

const D: usize = 32;

pub(super) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.5..1.5)).collect()
}

pub(super) fn prefix(layers: usize, kv_heads: usize, tokens: usize, d: usize) -> Arc<Prefix> {
    let layer = |l: usize| {
        let mut kv = LayerKv::new(KvDtype::F32, kv_heads, d, tokens);
        for t in 0..tokens {
            let seed = (l * 10_000 + t) as u64;
            kv.append(&noise(kv_heads * d, seed), &noise(kv_heads * d, seed + 77_777));
        }
        kv
    };
    Prefix::new((0..layers).map(layer).collect())
}

pub(super) fn configured(spec: &str, policy: &Policy) -> Configured {
    configure(&expand_grid(spec).unwrap()[0], policy).unwrap()
}

/// An artefact of `kind` that was made from random queries and keys.
pub(super) fn random_artefact(kind: &str, model: &ModelShape) -> Artefact {
    const TOKENS: usize = 60;
    let mut collector = (CALIBRATIONS.iter().find(|c| c.kind == kind).unwrap().start)(model, 0);
    for layer in 0..model.layers {
        let kv = random_kv(KvDtype::F32, model.kv_heads, TOKENS, model.head_dim, layer as u64);
        let queries = noise(TOKENS * model.heads * model.head_dim, 99 + layer as u64);
        collector.observe(&PrefillChunk { layer, first: 0, queries: &queries, heads: model.heads, kv: &kv });
    }
    let collected = collector.finish();
    let info = ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model: model.clone(),
        data: "noise".into(),
        seed: 0,
        blocks: 1,
        tokens: TOKENS,
        settings: collected.settings,
    };
    Artefact::parse("random", write(&info, &collected.tensors)).unwrap()
}

pub(super) fn random_kv(dtype: KvDtype, kv_heads: usize, tokens: usize, d: usize, seed: u64) -> LayerKv {
    let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
    let (keys, values) = (noise(tokens * kv_heads * d, 2 * seed), noise(tokens * kv_heads * d, 2 * seed + 1));
    keys.chunks(kv_heads * d).zip(values.chunks(kv_heads * d)).for_each(|(k, v)| kv.append(k, v));
    kv
}

/// The method with a random artefact, if it needs one.
fn calibrated(method: Configured, layers: usize, heads: usize, kv_heads: usize, d: usize) -> Configured {
    static MADE: LazyLock<Mutex<HashMap<String, Artefact>>> = LazyLock::new(Mutex::default);
    let Some(kind) = method.method.calibration() else { return method };
    let model = ModelShape { weights_sha256: "random".into(), layers, heads, kv_heads, head_dim: d };
    let mut made = MADE.lock().unwrap();
    let artefact = made.entry(format!("{kind}: {model}")).or_insert_with(|| random_artefact(kind, &model));
    method.calibrated(artefact).unwrap()
}

/// What `method` asks for of a prefix whose queries were random.
pub(super) fn random_stats(method: &Arc<dyn AnyMethod>, prefix: &Prefix, heads: usize) -> PromptStats {
    let keys = &prefix.layer(0).keys;
    let (layers, kv_heads, d, tokens) = (prefix.layers(), keys.kv_heads(), keys.d(), prefix.tokens());
    let needs = method.prompt_needs().into_iter().collect();
    let mut stats = PromptStats::new(&needs, PromptShape { layers, heads, kv_heads, d, tokens });
    for layer in (0..layers).filter(|_| !needs.is_empty()) {
        let queries = noise(tokens * heads * d, 31 + layer as u64);
        stats.observe(&PrefillChunk { layer, first: 0, queries: &queries, heads, kv: prefix.layer(layer) });
    }
    stats
}

/// What a step of `queries: [group][d]` picks from the candidates of one KV head, and its cost.
pub(super) fn select(
    spec: &str,
    kv: &LayerKv,
    queries: &[f32],
    candidates: std::ops::Range<usize>,
) -> (Selection, Cost) {
    let (d, keys, values) = (kv.keys.d(), kv.keys.head(0), kv.values.head(0));
    let method = calibrated(configured(spec, &none()), 1, queries.len() / d, 1, d).method;
    let stats = random_stats(&method, &Prefix::new(vec![kv.clone()]), queries.len() / d);
    let (layer, kv_head, seed, scale, context) = (0, 0, 0, 1.0 / (d as f32).sqrt(), kv.tokens() + 1);
    let dtype = match keys {
        Rows::F32(_) => KvDtype::F32,
        Rows::F16(_) => KvDtype::F16,
        Rows::Bf16(_) => KvDtype::Bf16,
    };
    let prompt = stats.head(layer, kv_head);
    let prefix = HeadPrefix { layer, kv_head, keys, values, d, dtype, candidates: candidates.clone(), prompt, seed };
    let index = method.build(&prefix);
    let tail_keys = Rows::F32(&[]);
    let step = Step {
        layer,
        depth: Depth::default(),
        kv_head,
        queries,
        d,
        scale,
        keys,
        values,
        tail_keys,
        candidates,
        context,
        generated: 0,
        seed,
    };
    let mut cost = Cost::default();
    let selection = method.select(&step, index.as_ref(), method.start(index.as_ref()).as_mut(), &mut cost);
    (selection, cost)
}

pub(super) fn run(prefix: &Arc<Prefix>, spec: &str, policy: &Policy, heads: usize, steps: usize) -> (Vec<f32>, Fork) {
    run_seeded(prefix, spec, policy, heads, steps, 5)
}

fn run_seeded(
    prefix: &Arc<Prefix>,
    spec: &str,
    policy: &Policy,
    heads: usize,
    steps: usize,
    seed: u64,
) -> (Vec<f32>, Fork) {
    let (kv_heads, d) = (prefix.layer(0).keys.kv_heads(), prefix.layer(0).keys.d());
    let method = calibrated(configured(spec, policy), prefix.layers(), heads, kv_heads, d);
    let stats = random_stats(&method.method, prefix, heads);
    let mut fork = IndexCache::new(prefix.clone(), KvDtype::F32, seed).with_stats(stats).fork(&method, true);
    let mut outputs = Vec::new();
    for t in 0..steps {
        for layer in 0..prefix.layers() {
            let s = (t * 100 + layer) as u64;
            let mut out = vec![f32::NAN; heads * d];
            let (q, k, v) = (noise(heads * d, s), noise(kv_heads * d, s + 1_000), noise(kv_heads * d, s + 2_000));
            fork.step(layer, &q, &k, &v, &mut out);
            outputs.extend(out);
        }
    }
    (outputs, fork)
}

pub(super) fn none() -> Policy {
    Policy { sink: 0, local: 0, dense_layers: DenseLayers::default() }
}

pub(super) fn assert_close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= tolerance, "{what}: {a} against {b}");
    }
}

/// Specs that select everything, so that they must equal `full`.
const SELECT_ALL: &[&str] = &[
    "topk:k=100000",
    "topk:ratio=1",
    "topk:k=100000,per=kv_head",
    "topk_norm:ratio=1",
    "topk_norm:k=100000,per=kv_head",
    "topp:p=1",
    "random:ratio=1",
    "quest:ratio=1",
    "quest:k=100000,page=7,per=kv_head",
    "streaming_llm:window=100000",
    "magicpig:K=1,L=500",
    "magicpig:K=1,L=500,min_collisions=1,center=false",
    "magicpig:K=1,L=500,simple_lsh=true",
    "double_sparsity:k=100000",
    "double_sparsity:ratio=1,label_bits=2,kind=random,per=kv_head",
    "loki:ratio=1",
    "loki:k=100000,rank=d/8,per=kv_head",
    "sparq:k=100000",
    "sparq:ratio=1,storage=1xK,per=kv_head",
    "hip:k=100000",
    "hip:ratio=1,r_m=1",
    "hip:k=100000,b_k=7,per=kv_head,n_e=3,theta_vote=3",
    "knn:index=flat,k=100000",
    "knn:index=flat,ratio=1,per=kv_head",
    "knn:index=flat,k=100000,schedule=linear",
    "knn:k=100000",
    "knn:ratio=1,M=2,ef_construction=1,ef=1,per=kv_head",
    "pqcache:ratio=1",
    "pqcache:k=100000,subspaces=3,bits=8,per=kv_head",
    "retrieval_attention:k=100000",
    "retrieval_attention:ratio=1,per=kv_head",
];

/// Specs with ordinary budgets.
const ORDINARY: &[&str] = &[
    "full",
    "topk:k=8",
    "topk:ratio=0.1,per=kv_head",
    "topk_norm:k=8",
    "topk_norm:ratio=0.1,per=kv_head",
    "topp:p=0.5",
    "random:k=8",
    "oracle_sampling:budget=16",
    "streaming_llm:window=16",
    "quest:page=8,k=16",
    "quest:page=8,ratio=0.05,per=kv_head",
    "magicpig:K=6,L=20",
    "magicpig:K=16,L=2,min_collisions=1,center=false",
    "magicpig:K=4,L=10,simple_lsh=true,u_floor=1e-4",
    "double_sparsity:k=8",
    "double_sparsity:channels=d/16,label_bits=2,kind=q,k=8,per=kv_head",
    "double_sparsity:channels=3,label_bits=16,kind=k,k=8",
    "double_sparsity:kind=random,ratio=0.1",
    "loki:k=8",
    "loki:rank=d/4,per=kv_head",
    "sparq:k=8",
    "sparq:r=d/4,k=8,storage=1xK",
    "sparq:r=1,ratio=0.1,per=kv_head",
    "hip:k=16",
    "hip:k=9,b_k=4,b_sk=2,representative=last,r_m=1",
    "hip:ratio=0.1,per=kv_head,top_r=8",
    "hip:k=16,n_e=3",
    "knn:index=flat,k=8",
    "knn:index=flat,k=8,schedule=linear",
    "knn:k=8",
    "knn:ratio=0.1,ef=1k,M=2,ef_construction=2,per=kv_head",
    "knn:k=5,ef=100,schedule=linear",
    "pqcache:k=8",
    "pqcache:ratio=0.1,subspaces=5,bits=8,per=kv_head",
    "pqcache:k=8,subspaces=1000,bits=1,iterations=1",
    "retrieval_attention:k=8",
    "retrieval_attention:ratio=0.1,queries=1,nearest=1,M=1,ef=1k,ef_construction=1,per=kv_head",
];

/// How the specs begin whose picks are drawn at random.
const DRAWING: &[&str] = &["random", "oracle_sampling", "hip:k=16,n_e=3", "knn:ratio=0.1", "pqcache:k=8"];

#[test]
fn selecting_everything_equals_full() {
    for (kv_heads, heads, d, tokens) in [(2, 4, 32, 150), (1, 8, 64, 90), (1, 1, 128, 40)] {
        let prefix = prefix(2, kv_heads, tokens, d);
        for policy in [none(), Policy::default(), Policy { sink: 3, local: 10, ..none() }] {
            let (full, _) = run(&prefix, "full", &policy, heads, 3);
            for spec in SELECT_ALL {
                let (out, fork) = run(&prefix, spec, &policy, heads, 3);
                assert_close(&out, &full, 1e-4, spec);
                assert!((fork.costs().total(|_| true).density() - 1.0).abs() < 1e-9, "{spec}");
            }
        }
    }
}

#[test]
fn every_method_survives_every_shape() {
    for tokens in [0, 1, 2, 5, 70, 140] {
        for (kv_heads, heads, d) in [(1, 1, 32), (2, 4, 32), (1, 8, 64), (1, 2, 128)] {
            let prefix = prefix(1, kv_heads, tokens, d);
            for policy in [none(), Policy::default(), Policy { sink: 100, local: 100, ..none() }] {
                for spec in ORDINARY {
                    let (out, fork) = run(&prefix, spec, &policy, heads, 2);
                    assert!(out.iter().all(|x| x.is_finite()), "{spec} on {tokens} tokens");
                    let density = fork.costs().total(|_| true).density();
                    assert!(density > 0.0 && density <= 1.0 + 1e-9, "{spec} on {tokens}: density {density}");
                }
            }
        }
    }
}

#[test]
fn identical_zero_and_huge_keys_never_give_nan() {
    for fill in [0.0f32, 1.0, 300.0] {
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, 100);
        for _ in 0..100 {
            kv.append(&[fill; D], &noise(D, 1));
        }
        let prefix = Prefix::new(vec![kv]);
        for spec in ORDINARY {
            let (out, _) = run(&prefix, spec, &none(), 2, 2);
            assert!(out.iter().all(|x| x.is_finite()), "{spec}, fill {fill}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_does_not() {
    let prefix = prefix(2, 2, 200, D);
    for spec in ORDINARY {
        let once = run_seeded(&prefix, spec, &none(), 4, 3, 1).0;
        assert_eq!(once, run_seeded(&prefix, spec, &none(), 4, 3, 1).0, "{spec}");
        let is_random = DRAWING.iter().any(|drawing| spec.starts_with(drawing));
        assert_eq!(once != run_seeded(&prefix, spec, &none(), 4, 3, 2).0, is_random, "{spec}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let prefix = prefix(3, 2, 250, D);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let outcome = |spec: &&str| {
            let (outputs, fork) = run(&prefix, spec, &Policy { sink: 4, local: 16, ..none() }, 4, 2);
            (outputs, fork.costs().total(|_| true), fork.aux_bits())
        };
        pool.install(|| ORDINARY.iter().map(outcome).collect::<Vec<_>>())
    };
    let (one, two) = (on(1), on(2));
    for (spec, (one, two)) in ORDINARY.iter().zip(one.iter().zip(&two)) {
        assert_eq!(one, two, "{spec}");
    }
}

#[test]
fn density_is_what_the_budget_says() {
    let prefix = prefix(1, 1, 1000, D);
    let policy = Policy { sink: 4, local: 16, ..none() };
    let expect = [
        ("topk:k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("random:ratio=0.1", (101.0 + 20.0 + 1.0) / 1001.0),
        ("streaming_llm:window=96", (4.0 + 96.0) / 1001.0),
        ("quest:page=16,k=64", (64.0 + 20.0 + 1.0) / 1001.0),
        ("double_sparsity:k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("loki:ratio=0.03", (31.0 + 20.0 + 1.0) / 1001.0),
        ("sparq:k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("knn:index=flat,k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("knn:k=50,M=2,ef_construction=2,ef=1k", (50.0 + 20.0 + 1.0) / 1001.0),
        ("pqcache:k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("retrieval_attention:k=50", (50.0 + 20.0 + 1.0) / 1001.0),
        ("hip:k=49,b_k=7", (49.0 + 20.0 + 1.0) / 1001.0),
    ];
    for (spec, density) in expect {
        let (_, fork) = run(&prefix, spec, &policy, 2, 1);
        let measured = fork.costs().total(|_| true).density();
        assert!((measured - density).abs() < 1e-9, "{spec}: {measured} instead of {density}");
    }
}

#[test]
fn dense_layers_attend_everything_and_the_others_do_not() {
    let prefix = prefix(3, 1, 300, D);
    let policy = Policy { dense_layers: DenseLayers::parse("0+2").unwrap(), ..none() };
    let (_, fork) = run(&prefix, "topk:k=10", &policy, 2, 1);
    let density: Vec<f64> = fork.costs().layers().iter().map(|c| c.density()).collect();
    assert_eq!((density[0], density[2]), (1.0, 1.0));
    assert!((density[1] - 11.0 / 301.0).abs() < 1e-9);
    assert!(fork.is_dense(0) && !fork.is_dense(1));
}

#[test]
fn quest_counts_one_page_bound_as_its_scoring_cost() {
    let prefix = prefix(1, 1, 1600, D);
    let (_, fork) = run(&prefix, "quest:page=16,ratio=0.0625", &none(), 1, 1);
    let cost = fork.costs().total(|_| true);
    assert!((cost.cost1() - 1.0 / 16.0).abs() < 1e-3, "{}", cost.cost1());
    assert!((fork.aux_bits() - 2.0 * D as f64 * 32.0 / 16.0).abs() < 1e-9, "two f32 vectors a page of 16");
}

#[test]
fn a_shared_selection_reads_each_key_once_for_its_group() {
    let prefix = prefix(1, 1, 500, D);
    let bytes = |spec: &str| run(&prefix, spec, &none(), 4, 1).1.costs().total(|_| true).kv_bytes;
    let scoring = 500 * D * 4;
    let row = 2 * D * 4;
    assert_eq!(bytes("topk:k=32,per=kv_head") as usize, scoring + 33 * row);
    assert_eq!(bytes("topk:k=32") as usize, scoring + (4 * 32 + 1) * row);
}

#[test]
fn topk_has_recall_one_where_only_picks_count() {
    let prefix = prefix(1, 1, 400, D);
    let (_, fork) = run(&prefix, "topk:k=400", &none(), 1, 1);
    assert_eq!(fork.fidelity().unwrap().recall(), [1.0]);
    let error = |spec: &str| run(&prefix, spec, &none(), 4, 4).1.fidelity().unwrap().output_error()[0];
    assert!(error("full") < 1e-6);
    assert!(error("topk:k=200") < error("topk:k=20"));
    assert!(error("topk:k=40") < error("random:k=40"));
}

#[test]
fn indexes_are_shared_between_budgets() {
    let prefix = prefix(1, 1, 3000, D);
    let mut cache = IndexCache::new(prefix, KvDtype::F32, 1);
    let fork = |cache: &mut IndexCache, spec| cache.fork(&configured(spec, &none()), false).index_time();
    assert!(!fork(&mut cache, "quest:ratio=0.1").is_zero());
    assert!(fork(&mut cache, "quest:ratio=0.2").is_zero());
    assert!(!fork(&mut cache, "quest:ratio=0.2,page=32").is_zero());
}

proptest! {
    #[test]
    fn quest_bounds_are_upper_bounds(seed in 0u64..1000, tokens in 1usize..90, page in 1usize..20) {
        let keys = noise(tokens * D, seed);
        let queries = noise(2 * D, seed + 1);
        let step = Step {
            layer: 0, depth: Depth::default(), kv_head: 0, queries: &queries, d: D, scale: 1.0,
            keys: Rows::F32(&keys), values: Rows::F32(&keys), tail_keys: Rows::F32(&[]), candidates: 0..tokens,
            context: tokens + 1, generated: 0, seed,
        };
        let prefix = HeadPrefix {
            layer: 0, kv_head: 0, keys: Rows::F32(&keys), values: Rows::F32(&keys), d: D,
            dtype: KvDtype::F32, candidates: 0..tokens, prompt: PromptHead::default(), seed,
        };
        let bounds = quest::bounds_for_test(&step, &prefix, page);
        let pages = tokens.div_ceil(page);
        for h in 0..2 {
            for (t, key) in keys.chunks(D).enumerate() {
                let dot: f32 = step.query(h).iter().zip(key).map(|(a, b)| a * b).sum();
                prop_assert!(bounds[h * pages + t / page] >= dot - 1e-4);
            }
        }
    }
}

#[test]
fn topk_picks_the_largest_scores() {
    let prefix = prefix(1, 1, 120, D);
    let keys = prefix.layer(0).keys.head(0);
    let queries = noise(D, 9);
    let step = Step {
        layer: 0,
        depth: Depth::default(),
        kv_head: 0,
        queries: &queries,
        d: D,
        scale: 1.0,
        keys,
        values: keys,
        tail_keys: Rows::F32(&[]),
        candidates: 10..100,
        context: 121,
        generated: 0,
        seed: 0,
    };
    let method = configured("topk:k=5", &none()).method;
    let index = method.build(&HeadPrefix {
        layer: 0,
        kv_head: 0,
        keys,
        values: keys,
        d: D,
        dtype: KvDtype::F32,
        candidates: 10..100,
        prompt: PromptHead::default(),
        seed: 0,
    });
    let mut state = method.start(index.as_ref());
    let picked = method.select(&step, index.as_ref(), state.as_mut(), &mut crate::cost::Cost::default());
    let rows = keys.to_f32();
    let score = |t: usize| -> f32 { queries.iter().zip(&rows[t * D..]).map(|(a, b)| a * b).sum() };
    let mut order: Vec<u32> = (10..100).collect();
    order.sort_by(|a, b| score(*b as usize).total_cmp(&score(*a as usize)));
    let mut best = order[..5].to_vec();
    best.sort_unstable();
    assert_eq!(picked, crate::attention::Selection::PerHead(vec![crate::attention::Picks::softmax(best)]));
}

/// Means over many seeds: the estimator of MagicPIG's Definition 3.1 and its theorems.
mod oracle_sampling_estimator {
    use super::*;

    const SEEDS: u64 = 400;

    fn outputs(prefix: &Arc<Prefix>, budget: usize) -> Vec<Vec<f32>> {
        let spec = format!("oracle_sampling:budget={budget}");
        (0..SEEDS).map(|seed| run_seeded(prefix, &spec, &none(), 1, 1, seed).0).collect()
    }

    fn mean_square_error(outputs: &[Vec<f32>], exact: &[f32]) -> f64 {
        let error = |o: &Vec<f32>| o.iter().zip(exact).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>();
        outputs.iter().map(error).sum::<f64>() / outputs.len() as f64
    }

    #[test]
    fn is_unbiased_and_its_error_falls_as_one_over_the_budget() {
        let prefix = prefix(1, 1, 300, D);
        let exact = run(&prefix, "full", &none(), 1, 1).0;
        let (small, large) = (outputs(&prefix, 16), outputs(&prefix, 256));
        let (error_small, error_large) = (mean_square_error(&small, &exact), mean_square_error(&large, &exact));
        let ratio = error_small / error_large;
        assert!((11.0..23.0).contains(&ratio), "16 times the draws, {ratio} times less squared error");
        let mean: Vec<f32> = (0..D).map(|c| small.iter().map(|o| o[c]).sum::<f32>() / SEEDS as f32).collect();
        let bias: f64 = mean.iter().zip(&exact).map(|(a, b)| ((a - b) as f64).powi(2)).sum();
        assert!(
            bias < 3.0 * error_small / SEEDS as f64,
            "bias² {bias}, variance of the mean {}",
            error_small / SEEDS as f64
        );
    }

    #[test]
    fn distinct_draws_obey_the_bound() {
        let prefix = prefix(1, 1, 300, D);
        let q = noise(D, 0);
        let keys = prefix.layer(0).keys.head(0).to_f32();
        let logits: Vec<f64> = keys
            .chunks(D)
            .map(|k| q.iter().zip(k).map(|(a, b)| (a * b) as f64).sum::<f64>() / (D as f64).sqrt())
            .collect();
        let total: f64 = logits.iter().map(|l| l.exp()).sum();
        let largest = logits.iter().map(|l| l.exp() / total).fold(0.0, f64::max);
        for budget in [8, 64, 512] {
            let spec = format!("oracle_sampling:budget={budget}");
            let distinct: f64 = (0..SEEDS)
                .map(|s| {
                    run_seeded(&prefix, &spec, &none(), 1, 1, s).1.costs().total(|_| true).attended_tokens as f64 - 1.0
                })
                .sum::<f64>()
                / SEEDS as f64;
            assert!(distinct <= 1.0 + budget as f64 * (1.0 - largest), "{budget}: {distinct}");
        }
    }
}

/// Means over many draws of the hyperplanes: MagicPIG's estimator (its eq. 11) is consistent.
mod magicpig_estimator {
    use super::*;

    const DRAWS: usize = 200;

    /// Mean squared error of one draw, and squared error of the mean output, against exact attention.
    fn errors(prefix: &Arc<Prefix>, spec: &str) -> (f64, f64) {
        let exact = run(prefix, "full", &none(), 2, 1).0;
        let square = |o: &[f32]| o.iter().zip(&exact).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>();
        let outputs: Vec<Vec<f32>> =
            (0..DRAWS).map(|seed| run(prefix, &format!("{spec},seed={seed}"), &none(), 2, 1).0).collect();
        let mean: Vec<f32> =
            (0..exact.len()).map(|c| outputs.iter().map(|o| o[c]).sum::<f32>() / DRAWS as f32).collect();
        (outputs.iter().map(|o| square(o)).sum::<f64>() / DRAWS as f64, square(&mean))
    }

    #[test]
    fn its_error_falls_as_tables_are_added_and_its_mean_is_exact_attention() {
        let prefix = prefix(1, 1, 300, D);
        for spec in ["magicpig:K=6", "magicpig:K=6,min_collisions=1,center=false", "magicpig:K=6,simple_lsh=true"] {
            let by_tables = [20, 60, 180, 540].map(|tables| errors(&prefix, &format!("{spec},L={tables}")));
            for pair in by_tables.windows(2) {
                assert!(pair[1].0 < 0.6 * pair[0].0, "{spec}: squared errors {by_tables:?}");
            }
            // Half of the tokens or more: what is left of the mean is little beside one draw's error.
            for (error, of_mean) in &by_tables[2..] {
                assert!(*of_mean < 0.05 * error, "{spec}: bias² {of_mean}, error² {error}");
            }
        }
    }
}

#[test]
fn specs_are_checked_and_canonical() {
    let label = |spec| configured(spec, &Policy::default()).label();
    assert_eq!(label("full"), "full");
    assert_eq!(label("topk"), "topk:k=64");
    assert_eq!(label("topk:per=kv_head,ratio=0.05"), "topk:ratio=0.05,per=kv_head");
    assert_eq!(label("topk:sink=8"), "topk:k=64,sink=8");
    assert_eq!(label("hip:b_k=2,representative=0.5,top_r=all,l_e=all"), "hip:k=512");
    assert_eq!(label("hip:representative=1,r_e=2.5,l_e=3,n_e=2"), "hip:k=512,representative=last,n_e=2,r_e=2.5,l_e=3");
    assert_eq!(label("quest:preset=repo,k=512"), "quest:page=16,k=512,min_pages=3,sink=0,local=0,dense_layers=0+1");
    assert_eq!(label("magicpig"), "magicpig:K=10,L=150");
    assert_eq!(label("magicpig:center=true,L=75,K=8,seed=1"), "magicpig:K=8,L=75");
    assert_eq!(label("magicpig:preset=repo,seed=2"), "magicpig:K=10,L=150,u_floor=0.0001,seed=2,dense_layers=0+50%");
    assert_eq!(label("double_sparsity"), "double_sparsity:channels=d/8,label_bits=4,k=64");
    assert_eq!(label("double_sparsity:channels=08,kind=q,k=1"), "double_sparsity:channels=8,label_bits=4,kind=q,k=1");
    assert_eq!(label("loki:rank=d"), "loki:rank=d,ratio=0.03");
    assert_eq!(label("knn"), "knn:index=hnsw,k=64");
    assert_eq!(label("knn:M=16,ef=4k,ef_construction=8"), "knn:index=hnsw,ef_construction=8,k=64");
    assert_eq!(label("knn:index=flat,schedule=linear,ratio=0.1"), "knn:index=flat,ratio=0.1,schedule=linear");
    assert_eq!(label("pqcache:iterations=10"), "pqcache:subspaces=2,bits=6,ratio=0.05");
    assert_eq!(label("retrieval_attention:ef=300"), "retrieval_attention:ef=300,k=100");
    let bad = [
        "topkk",
        "topk:kk=3",
        "topk:k=0",
        "topk:k=3,ratio=0.1",
        "topk:ratio=1.5",
        "topk:per=head",
        "random:preset=paper",
        "quest:page=0",
        "topk:sink=-1",
        "topp:p=0",
        "topp:p=1.1",
        "topp:p=NaN",
        "magicpig:K=0",
        "magicpig:K=17",
        "magicpig:L=1",
        "magicpig:min_collisions=3",
        "magicpig:center=yes",
        "magicpig:u_floor=-0.1",
        "magicpig:u_floor=NaN",
        "magicpig:seed=-1",
        "double_sparsity:channels=0",
        "double_sparsity:channels=d/0",
        "double_sparsity:label_bits=8",
        "double_sparsity:kind=v",
        "loki:rank=x",
        "sparq:storage=3xK",
        "hip:b_sk=3",
        "hip:b_q=4,b_sq=5",
        "hip:representative=centre",
        "hip:representative=1.5",
        "hip:top_r=0",
        "hip:n_e=2,theta_vote=3",
        "hip:r_e=-1",
        "hip:r_e=inf",
        "hip:tau=2",
        "knn:index=ivf",
        "knn:index=flat,M=8",
        "knn:M=1",
        "knn:ef=0",
        "knn:ef=k",
        "knn:ef=0k",
        "knn:ef_construction=0",
        "knn:schedule=adaptive",
        "pqcache:bits=9",
        "pqcache:bits=0",
        "pqcache:subspaces=0",
        "retrieval_attention:queries=0",
        "retrieval_attention:M=0",
    ];
    for spec in bad {
        let e = configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap_err();
        assert!(!e.what.contains('\n'), "{spec}");
    }
}

#[test]
fn every_method_documents_its_parameters_and_presets_apply() {
    for entry in METHODS {
        let spec = MethodSpec { name: entry.name.to_owned(), params: Vec::new() };
        configure(&spec, &Policy::default()).unwrap();
        for preset in entry.presets {
            let spec = MethodSpec { name: entry.name.to_owned(), params: vec![("preset".into(), preset.name.into())] };
            configure(&spec, &Policy::default()).unwrap();
            assert!(preset.source.len() > 20, "{}: presets cite their source", entry.name);
        }
    }
}

#[test]
fn topk_norm_ranks_by_what_a_token_alone_adds_to_the_output() {
    let mut kv = LayerKv::new(KvDtype::F32, 1, D, 300);
    let mut values = Vec::new();
    for t in 0..300 {
        // Norms over two orders of magnitude, so that they matter.
        let value: Vec<f32> = noise(D, 9_000 + t).iter().map(|x| x * 10f32.powi((t % 5) as i32 - 2)).collect();
        kv.append(&noise(D, t), &value);
        values.push(value);
    }
    let query = noise(D, 77);
    let (selection, _) = select("topk_norm:k=20", &kv, &query, 0..300);
    let Selection::PerHead(picks) = selection else { panic!("one set a head") };
    let contribution = |t: usize| {
        let dot: f64 = noise(D, t as u64).iter().zip(&query).map(|(k, q)| f64::from(k * q)).sum();
        let norm = values[t].iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        (dot / f64::from(D as u32).sqrt()).exp() * norm
    };
    let mut expected: Vec<u32> = (0..300).collect();
    expected.sort_by(|a, b| contribution(*b as usize).total_cmp(&contribution(*a as usize)));
    let mut picked = picks[0].tokens.clone();
    picked.sort_unstable();
    expected.truncate(20);
    expected.sort_unstable();
    assert_eq!(picked, expected);
    let (plain, _) = select("topk:k=20", &kv, &query, 0..300);
    assert_ne!(plain, Selection::PerHead(picks));
}
