//! The search against a naive reading of Algorithm 1; mask cache, ensemble and top-r.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use proptest::prelude::*;

use super::super::tests::{configured, noise, none, prefix};
use super::reference::{Ensemble, Keys, Listing, Row};
use crate::SoftmaxScale;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvRows};
use crate::{
    AnyMethod, Context, HeadPrefix, IndexCache, PromptHead, SelectedTokens, Selection, SparseLayerRank, Step, Weighting,
};
use spattn_kernels::Rows;

/// Keys of one KV head, and the candidates among them.
struct Head {
    keys: Vec<f32>,
    d: usize,
    candidates: Range<usize>,
}

impl Head {
    /// Random keys of small whole numbers: products are exact in any order of summation, and often equal.
    fn whole_numbers(candidates: Range<usize>, behind: usize, d: usize, seed: u64) -> Self {
        Self { keys: whole_numbers((candidates.end + behind) * d, seed), d, candidates }
    }

    /// A random walk: neighbouring keys are alike (`ρ = 0.97`), distant ones are not.
    fn random_walk(tokens: usize, d: usize, seed: u64) -> Self {
        let steps = noise(tokens * d, seed);
        let mut keys = steps[..d].to_vec();
        for i in d..tokens * d {
            keys.push(0.97 * keys[i - d] + 0.243 * steps[i]);
        }
        Self { keys, d, candidates: 0..tokens }
    }

    fn step<'a>(&'a self, queries: &'a [f32], seed: u64) -> Step<'a> {
        Step {
            layer: 0,
            depth: SparseLayerRank::default(),
            kv_head: 0,
            queries,
            d: self.d,
            scale: SoftmaxScale::inverse_root(self.d),
            keys: KvRows::lent(Rows::F32(&self.keys), self.d),
            values: KvRows::lent(Rows::F32(&self.keys), self.d),
            tail_keys: Rows::F32(&[]),
            tail_values: Rows::F32(&[]),
            dtype: KvDtype::F32,
            indexed: self.candidates.clone(),
            candidates: self.candidates.clone(),
            context: Context::new(self.keys.len() / self.d + 1, &self.candidates),
            grouped: None,
            has_moving_candidates: false,
            generated: 0,
            seed,
        }
    }

    fn score(&self, query: &[f32], token: usize) -> f32 {
        query.iter().zip(&self.keys[token * self.d..]).map(|(a, b)| a * b).sum()
    }
}

/// Structure of the keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// Random whole numbers without structure.
    Random,
    /// One key whose product with every query is far the largest.
    Needle,
    /// Stretches of 16 tokens with keys of one direction.
    Clusters,
    /// Keys and queries of arbitrary numbers, so that no two sums are equal.
    Noise,
}

impl Shape {
    /// The shapes of small whole numbers: products are exact in any order of summation, and often equal.
    pub(super) const OF_WHOLE_NUMBERS: [Self; 3] = [Self::Random, Self::Needle, Self::Clusters];

    /// `[token][d]`.
    pub(super) fn keys(self, tokens: usize, d: usize, seed: u64) -> Vec<f32> {
        let mut keys = whole_numbers(tokens * d, seed);
        match self {
            Self::Random => {}
            Self::Noise => keys = noise(tokens * d, seed),
            Self::Needle => keys[seed as usize % tokens * d] = 40.0,
            Self::Clusters => {
                for (cluster, keys) in keys.chunks_mut(16 * d).enumerate() {
                    let centre = whole_numbers(d, seed + 77 * cluster as u64);
                    keys.iter_mut().enumerate().for_each(|(i, x)| *x += 4.0 * centre[i % d]);
                }
            }
        }
        keys
    }

    /// Queries `[row][d]`; with a needle they all point along the first channel, where only the needle is large.
    pub(super) fn queries(self, rows: usize, d: usize, seed: u64) -> Vec<f32> {
        let mut queries = whole_numbers(rows * d, seed);
        match self {
            Self::Random | Self::Clusters => {}
            Self::Noise => queries = noise(rows * d, seed),
            Self::Needle => queries.chunks_exact_mut(d).for_each(|query| query[0] = 3.0),
        }
        queries
    }
}

/// Noise of whole numbers from -3 to 3.
pub(super) fn whole_numbers(n: usize, seed: u64) -> Vec<f32> {
    noise(n, seed).iter().map(|x| (x * 2.0).round()).collect()
}

/// A method with its state, stepped by hand.
struct Run {
    method: Arc<dyn AnyMethod>,
    state: Option<Box<dyn Any + Send>>,
}

impl Run {
    fn new(spec: &str) -> Self {
        let method = configured(spec, &none()).method;
        Self { method, state: None }
    }

    /// Tokens of each mask (one if it is shared), and the cost of finding them.
    fn step(&mut self, step: &Step<'_>) -> (Vec<Vec<u32>>, Cost) {
        let mut cost = Cost::default();
        let index = self
            .method
            .build(&HeadPrefix {
                layer: step.layer,
                depth: step.depth,
                rotation: None,
                kv_head: step.kv_head,
                keys: step.keys,
                values: step.values,
                d: step.d,
                scale: step.scale,
                dtype: step.dtype,
                candidates: step.candidates.clone(),
                prompt: PromptHead::default(),
                seed: step.seed,
            })
            .unwrap();
        self.state.get_or_insert_with(|| self.method.start(index.as_ref()));
        let state = self.state.as_mut().expect("just made");
        let masks = match self.method.select(step, index.as_ref(), state.as_mut(), &mut cost).unwrap() {
            Selection::Shared(picks) => vec![picks],
            Selection::PerHead(heads) => heads,
        };
        let tokens = |picks: SelectedTokens| {
            assert_eq!(picks.weighting, Weighting::Softmax);
            picks.tokens
        };
        (masks.into_iter().map(tokens).collect(), cost)
    }
}

fn picks(spec: &str, step: &Step<'_>) -> Vec<Vec<u32>> {
    Run::new(spec).step(step).0
}

fn cost(spec: &str, step: &Step<'_>) -> Cost {
    Run::new(spec).step(step).1
}

/// Tokens that Algorithm 1 selects for rows that share a mask.
fn listing(head: &Head, rows: &[&[f32]], k: usize, listing: &Listing) -> Vec<u32> {
    let keys = Keys { keys: &head.keys, d: head.d, candidates: head.candidates.clone() };
    let rows: Vec<Row> = rows.iter().copied().map(Row::all_seeing).collect();
    let found = listing.search(&keys, &rows, k.div_ceil(listing.b_k));
    found.blocks.into_iter().flat_map(|block| listing.tokens(&keys, block)).map(|token| token as u32).collect()
}

/// The positions of the representative in Table 16.
pub(super) const PLACES: [(&str, f64); 7] =
    [("first", 0.0), ("0.2", 0.2), ("0.4", 0.4), ("middle", 0.5), ("0.6", 0.6), ("0.8", 0.8), ("last", 1.0)];

/// Ensembles; half of them are plain HiP.
pub(super) fn ensembles() -> impl Strategy<Value = Ensemble> {
    let ensemble = (2usize..5).prop_flat_map(|n_e| (Just(n_e), 1..=n_e, 0u8..20, any::<bool>()));
    let ensemble =
        ensemble.prop_map(|(n_e, theta_vote, r_e, tau)| Ensemble { n_e, theta_vote, r_e: f32::from(r_e) / 2.0, tau });
    prop_oneof![Just(Ensemble::NONE), ensemble]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn equals_the_listing(
        (b_k, b_sk) in (1usize..6).prop_flat_map(|b_k| (Just(b_k), 1..=b_k)),
        candidates in 1usize..260, sink in 0usize..5, k in 1usize..300,
        group in 1usize..4, place in 0usize..7, (last_keys, aligned) in any::<(bool, bool)>(),
        shape in prop::sample::select(&Shape::OF_WHOLE_NUMBERS), seed in 0u64..1 << 40,
    ) {
        // Small budgets, with a deep tree, as often as large ones.
        let k = if seed % 2 == 0 { k % 24 + 1 } else { k };
        let keys = shape.keys(sink + candidates + 3, 8, seed);
        let head = Head { keys, d: 8, candidates: sink..sink + candidates };
        let queries = shape.queries(group, 8, seed + 1);
        let step = head.step(&queries, seed);
        let (name, place) = PLACES[place];
        let offset = if last_keys { "last" } else { "first" };
        let chunks = if aligned { "aligned" } else { "equal" };
        let spec =
            format!("hip:k={k},b_k={b_k},b_sk={b_sk},key_offset={offset},representative={name},chunks={chunks}");
        let search = Listing { b_k, b_sk, place, top_r: None, last_keys, aligned };
        let rows: Vec<&[f32]> = queries.chunks(8).collect();
        let each: Vec<Vec<u32>> = rows.iter().map(|row| listing(&head, &[row], k, &search)).collect();
        prop_assert_eq!(picks(&spec, &step), each);
        let together = listing(&head, &rows, k, &search);
        prop_assert_eq!(picks(&format!("{spec},per=kv_head"), &step), [together]);
    }

    #[test]
    fn picks_are_distinct_candidates_within_the_budget(
        candidates in 1usize..300, sink in 0usize..5, k in 1usize..320, b_k in 1usize..9, seed in 0u64..1 << 40,
    ) {
        let head = Head { keys: noise((sink + candidates + 20) * 8, seed), d: 8, candidates: sink..sink + candidates };
        let queries = noise(2 * 8, seed + 1);
        let step = head.step(&queries, seed);
        for more in ["", "per=kv_head", "top_r=2", "n_e=4,tau=1", "n_e=4", "n_e=3,theta_vote=3", "representative=0.8"] {
            let spec = format!("hip:k={k},b_k={b_k},{more}");
            let blocks = k.div_ceil(b_k).min(candidates.div_ceil(b_k));
            for picked in picks(spec.trim_end_matches(','), &step) {
                prop_assert!(picked.is_sorted_by(|a, b| a < b), "ascending, so distinct");
                prop_assert!(picked.iter().all(|t| head.candidates.contains(&(*t as usize))));
                let of_block = |t: &u32| (*t as usize - sink) / b_k;
                let mut chosen: Vec<usize> = picked.iter().map(of_block).collect();
                chosen.dedup();
                let whole: usize = chosen.iter().map(|b| b_k.min(candidates - b * b_k)).sum();
                prop_assert_eq!(whole, picked.len(), "whole blocks");
                match more {
                    "n_e=4" => prop_assert!((blocks..=4 * blocks).contains(&chosen.len())),
                    "n_e=3,theta_vote=3" => prop_assert!(chosen.len() <= blocks),
                    _ => prop_assert_eq!(chosen.len(), blocks),
                }
            }
        }
    }

    #[test]
    fn one_mask_or_no_randomness_is_no_ensemble(tokens in 1usize..200, k in 1usize..40, seed in 0u64..1 << 40) {
        let head = Head { keys: noise(tokens * 8, seed), d: 8, candidates: 0..tokens };
        let queries = noise(8, seed + 1);
        let step = head.step(&queries, seed);
        let plain = picks(&format!("hip:k={k}"), &step);
        for ensemble in ["n_e=1,r_e=50,tau=1", "n_e=4,r_e=0", "n_e=4,r_e=0,theta_vote=4", "n_e=4,r_e=9,tau=1,l_e=1"] {
            // The ensemble of the last one applies to the first layer only, and this step is of the second.
            let step = Step { layer: usize::from(ensemble.ends_with("l_e=1")), ..step.clone() };
            prop_assert_eq!(&picks(&format!("hip:k={k},{ensemble}"), &step), &plain, "{}", ensemble);
        }
    }

    #[test]
    fn ensembles_elect_as_the_listing_does(
        candidates in 1usize..200, k in 1usize..40, b_k in 1usize..4, group in 1usize..4,
        ensemble in ensembles(), seed in 0u64..1 << 40,
    ) {
        let head = Head::whole_numbers(3..3 + candidates, 3, 4, seed);
        let queries = whole_numbers(group * 4, seed + 1);
        let step = head.step(&queries, seed);
        let search = Listing { b_k, ..Listing::ordinary() };
        let keys = Keys { keys: &head.keys, d: 4, candidates: head.candidates.clone() };
        let elected = |(head, query): (usize, &[f32])| -> Vec<u32> {
            let found = search.elect(&keys, &[Row::all_seeing(query)], k.div_ceil(b_k), &ensemble, &mut step.rng(head));
            found.blocks.into_iter().flat_map(|block| search.tokens(&keys, block)).map(|token| token as u32).collect()
        };
        let expected: Vec<Vec<u32>> = queries.chunks(4).enumerate().map(elected).collect();
        prop_assert_eq!(picks(&format!("hip:k={k},b_k={b_k}{}", ensemble.spec()), &step), expected);
    }

    #[test]
    fn votes_nest_from_union_to_intersection(tokens in 100usize..400, k in 2usize..60, seed in 0u64..1 << 40) {
        let head = Head { keys: noise(tokens * 8, seed), d: 8, candidates: 0..tokens };
        let queries = noise(8, seed + 1);
        let step = head.step(&queries, seed);
        let with = |rest: &str| -> Vec<u32> { picks(&format!("hip:k={k},b_k=1,n_e=5,{rest}"), &step).remove(0) };
        let within = |a: &[u32], b: &[u32]| a.iter().all(|t| b.contains(t));
        let by_votes: Vec<Vec<u32>> = (1..=5).map(|v| with(&format!("theta_vote={v}"))).collect();
        prop_assert!(by_votes.windows(2).all(|w| within(&w[1], &w[0])));
        // Truncation keeps the k tokens with most votes.
        let truncated = with("tau=1");
        prop_assert_eq!(truncated.len(), k.min(tokens));
        for elected in &by_votes {
            prop_assert!(within(elected, &truncated) || within(&truncated, elected));
        }
    }

    #[test]
    fn top_r_scores_the_channels_where_the_query_is_largest(
        tokens in 1usize..200, k in 1usize..40, r in 1usize..9, seed in 0u64..1 << 40,
    ) {
        let head = Head::whole_numbers(0..tokens, 0, 8, seed);
        // Distinct magnitudes, so that the largest channels are unambiguous.
        let mut query: Vec<f32> = (1..=8).map(|x| x as f32 * if seed >> x & 1 == 0 { 1.0 } else { -1.0 }).collect();
        query.rotate_left((seed % 8) as usize);
        let masked: Vec<f32> = query.iter().map(|q| if q.abs() > (8 - r) as f32 { *q } else { 0.0 }).collect();
        let approximated = picks(&format!("hip:k={k},top_r={r}"), &head.step(&query, seed));
        prop_assert_eq!(approximated, picks(&format!("hip:k={k}"), &head.step(&masked, seed)));
    }
}

/// Eight tokens with one nonzero channel, given as logits. One is selected, in three rounds: they compare token 2 with
/// 6, then 1 with 3 or 5 with 7, then the two of a pair.
fn tournament(logits: [f32; 8]) -> Head {
    let keys = logits.iter().flat_map(|logit| [logit * 2.0, 0.0, 0.0, 0.0]).collect();
    Head { keys, d: 4, candidates: 0..8 }
}

const QUERY: [f32; 4] = [1.0, 0.0, 0.0, 0.0];

#[test]
fn only_the_middle_round_is_decided_with_randomness() {
    // Scores differ by 1 in the first and last round, by 100 in the middle one.
    let head = tournament([0.0, 0.0, 100.0, 101.0, 0.0, 0.0, 99.0, 100.0]);
    for seed in 0..200 {
        let step = head.step(&QUERY, seed);
        assert_eq!(picks("hip:k=1,b_k=1,n_e=4,r_e=5", &step), [[3]], "seed {seed}");
    }
}

#[test]
fn randomness_is_uniform_in_logits() {
    const SEEDS: u64 = 4000;
    for (gap, r_e) in [(1.0f32, 5.0f64), (3.0, 5.0), (0.5, 1.0)] {
        // Far apart except in the middle round, where token 1 is `gap` below token 3.
        let head = tournament([0.0, 100.0 - gap, 0.0, 100.0, -1000.0, -1000.0, -1000.0, -1000.0]);
        let all_of_two = |seed: &u64| {
            let picked = picks(&format!("hip:k=1,b_k=1,n_e=2,theta_vote=2,r_e={r_e}"), &head.step(&QUERY, *seed));
            picked == [[3]]
        };
        let share = (0..SEEDS).filter(all_of_two).count() as f64 / SEEDS as f64;
        // The difference of two uniform draws exceeds the gap with probability (1 - gap/r_e)²/2; both searches draw.
        let expected = (1.0 - (1.0 - f64::from(gap) / r_e).powi(2) / 2.0).powi(2);
        let deviation = (expected * (1.0 - expected) / SEEDS as f64).sqrt();
        assert!((share - expected).abs() < 4.0 * deviation, "gap {gap} of {r_e}: {share} instead of {expected}");
    }
}

#[test]
fn randomness_finds_other_blocks() {
    let head = Head { keys: noise(400 * 8, 1), d: 8, candidates: 0..400 };
    let queries = noise(8, 2);
    let found = |spec: &str, seed: u64| picks(spec, &head.step(&queries, seed)).remove(0);
    let plain = found("hip:k=32", 1);
    assert!(found("hip:k=32,n_e=4", 1).len() > plain.len());
    assert_ne!(found("hip:k=32,n_e=4", 1), found("hip:k=32,n_e=4", 2), "drawn anew");
    assert!(found("hip:k=32,n_e=4,theta_vote=4", 1).len() < plain.len());
}

#[test]
fn all_channels_are_no_approximation() {
    let head = Head { keys: noise(300 * 32, 3), d: 32, candidates: 0..300 };
    let queries = noise(4 * 32, 4);
    let step = head.step(&queries, 0);
    for per in ["query_head", "kv_head"] {
        let plain = Run::new(&format!("hip:k=40,per={per}")).step(&step);
        for r in ["32", "1000", "all"] {
            assert_eq!(Run::new(&format!("hip:k=40,per={per},top_r={r}")).step(&step), plain);
        }
    }
}

#[test]
fn the_storage_type_of_the_keys_changes_nothing_but_bytes() {
    let head = Head::whole_numbers(2..150, 0, 16, 7);
    let queries = whole_numbers(16, 8);
    let half: Vec<f16> = head.keys.iter().map(|x| f16::from_f32(*x)).collect();
    let brain: Vec<bf16> = head.keys.iter().map(|x| bf16::from_f32(*x)).collect();
    for spec in ["hip:k=20", "hip:k=20,top_r=3"] {
        let step = head.step(&queries, 0);
        let (picked, wide) = Run::new(spec).step(&step);
        for keys in [Rows::F16(&half), Rows::Bf16(&brain)] {
            let keys = KvRows::lent(keys, 16);
            let (same, narrow) = Run::new(spec).step(&Step { keys, ..step.clone() });
            assert_eq!(same, picked);
            assert_eq!((2 * narrow.kv_bytes, narrow.score_flops), (wide.kv_bytes, wide.score_flops));
        }
    }
}

/// Share of the attention mass of the exact top `k` tokens that `picked` holds.
fn mass_recall(head: &Head, query: &[f32], picked: &[u32], k: usize) -> f64 {
    let scale = 1.0 / (head.d as f32).sqrt();
    let weight = |t: usize| f64::from((scale * head.score(query, t)).exp());
    let mut all: Vec<f64> = (0..head.keys.len() / head.d).map(weight).collect();
    let found: f64 = picked.iter().map(|t| weight(*t as usize)).sum();
    all.sort_by(|a, b| b.total_cmp(a));
    found / all[..k].iter().sum::<f64>()
}

/// Mean over heads with random-walk keys.
fn mean_mass_recall(spec: &str, tokens: usize, k: usize) -> f64 {
    const HEADS: u64 = 60;
    let one = |seed: u64| {
        let head = Head::random_walk(tokens, 32, 3 * seed);
        let query: Vec<f32> = noise(32, 3 * seed + 1).iter().map(|q| q * 3.0).collect();
        let picked = picks(spec, &head.step(&query, seed)).remove(0);
        assert_eq!(picked.len(), k, "equal budgets");
        mass_recall(&head, &query, &picked, k)
    };
    (0..HEADS).map(one).sum::<f64>() / HEADS as f64
}

#[test]
fn finds_far_more_of_the_top_mass_than_random_picks_where_keys_are_local() {
    for (tokens, k) in [(1024, 64), (4096, 64), (4096, 256)] {
        let recall = |spec: &str| mean_mass_recall(&format!("{spec}k={k}"), tokens, k);
        let (hip, random, exact) = (recall("hip:"), recall("random:"), recall("topk:"));
        println!("{k} of {tokens}: hip {hip:.3}, random {random:.3}");
        assert!((exact - 1.0).abs() < 1e-6);
        assert!(hip > 0.9 && hip > 8.0 * random, "{k} of {tokens}: hip {hip}, random {random}");
    }
}

#[test]
fn the_middle_represents_a_branch_better_than_its_ends() {
    let recall = |place: &str| mean_mass_recall(&format!("hip:k=64,representative={place}"), 4096, 64);
    let (first, middle, last) = (recall("first"), recall("middle"), recall("last"));
    println!("first {first:.3}, middle {middle:.3}, last {last:.3}");
    assert!(middle > first && middle > last, "first {first}, middle {middle}, last {last} (Table 16)");
}

#[test]
fn a_mask_is_kept_until_the_next_is_due() {
    let head = Head::whole_numbers(4..480, 20, 16, 11);
    let search = Listing::ordinary();
    for r_m in [1, 3, 8] {
        let mut run = Run::new(&format!("hip:k=32,r_m={r_m}"));
        let queries_of = |t: usize| whole_numbers(2 * 16, 100 + t as u64);
        for t in 0..20 {
            let queries = queries_of(t);
            let (masks, cost) = run.step(&Step { generated: t, ..head.step(&queries, t as u64) });
            // Algorithm 2, line 7: a mask is estimated when the generated length is divisible by the period.
            let estimated = queries_of(t - t % r_m);
            let expected: Vec<Vec<u32>> = estimated.chunks(16).map(|row| listing(&head, &[row], 32, &search)).collect();
            assert_eq!(masks, expected, "r_m={r_m}, step {t}");
            assert_eq!(cost != Cost::default(), t % r_m == 0, "r_m={r_m}, step {t}: a kept mask costs nothing");
        }
    }
}

#[test]
fn the_prompt_is_read_with_a_mask_for_each_token() {
    // The first chunks have a power of two blocks, so every search has equally many rounds.
    let prefix = prefix(1, 1, 512, 32);
    let searches = |spec: &str, prompt: usize| -> Vec<u64> {
        let cache = IndexCache::new(prefix.clone(), KvDtype::F32, 5);
        let mut fork = cache.with_prompt(prompt).fork(&configured(spec, &none()), false).unwrap();
        let count = |t: usize| {
            let (seed, mut out) = (10 * t as u64, vec![0.0; 2 * 32]);
            fork.step(0, &noise(2 * 32, seed), &noise(32, seed + 1), &noise(32, seed + 2), &mut out).unwrap();
            fork.costs().total(|_| true).score_flops
        };
        let flops: Vec<u64> = (0..12).map(count).collect();
        flops.iter().map(|f| f / flops[0]).collect()
    };
    assert_eq!(searches("hip:k=32,r_m=1", 512), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(searches("hip:k=32,r_m=4", 512), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    assert_eq!(searches("hip:k=32,r_m=4", 517), [1, 2, 3, 4, 5, 6, 6, 6, 6, 7, 7, 7]);
}

#[test]
fn scoring_grows_with_the_logarithm_of_the_context() {
    let queries = noise(64, 1);
    let scored = |tokens: usize, spec: &str| {
        let head = Head { keys: noise(tokens * 64, 2), d: 64, candidates: 0..tokens };
        cost(spec, &head.step(&queries, 0))
    };
    // 32 blocks of 2 are kept; each doubling of the context adds a round of 64 branches of 2 keys.
    for (tokens, rounds) in [(64, 0), (128, 1), (1024, 4), (2048, 5), (8192, 7)] {
        let keys = rounds * 64 * 2;
        let cost = scored(tokens, "hip:k=64");
        assert_eq!((cost.score_flops, cost.kv_bytes, cost.aux_bytes), (keys * 2 * 64, keys * 64 * 4, 0), "{tokens}");
    }
    let keys = 4 * 64 * 2;
    let strided = scored(1024, "hip:k=64,b_sk=2");
    assert_eq!((strided.score_flops, strided.kv_bytes), (keys / 2 * 2 * 64, keys / 2 * 64 * 4));
    let reduced = scored(1024, "hip:k=64,top_r=16");
    assert_eq!((reduced.score_flops, reduced.kv_bytes), (keys * 2 * 16, keys * 16 * 4));
    let ensemble = scored(1024, "hip:k=64,n_e=3");
    assert_eq!((ensemble.score_flops, ensemble.kv_bytes), (3 * keys * 2 * 64, 3 * keys * 64 * 4));
}

#[test]
fn a_mask_of_the_group_reads_each_scored_key_once() {
    let head = Head { keys: noise(1024 * 64, 2), d: 64, candidates: 0..1024 };
    let queries = noise(4 * 64, 1);
    let step = head.step(&queries, 0);
    let (each, group) = (cost("hip:k=64", &step), cost("hip:k=64,per=kv_head", &step));
    assert_eq!(each.score_flops, group.score_flops);
    assert_eq!(each.kv_bytes, 4 * group.kv_bytes);
}

#[test]
fn what_shapes_masks_of_prefill_changes_nothing_while_decoding() {
    let head = Head { keys: noise(300 * 16, 2), d: 16, candidates: 0..300 };
    let queries = noise(2 * 16, 1);
    let step = head.step(&queries, 0);
    let plain = Run::new("hip:k=20").step(&step);
    assert_eq!(Run::new("hip:k=20,b_q=1").step(&step), plain);
    for spec in ["hip:k=20,b_q=64,b_sq=4", "hip:k=20,query_offset=last,window=row", "hip:k=20,vd=true"] {
        assert_eq!(Run::new(spec).step(&step), plain, "{spec}");
    }
}
