//! The selection of a decode step against naive references: plain loops in `f64`, written from the methods' definitions.
//!
//! A row of [`table`] is a spec and a naive score of every page of candidates. The harness reduces the scores by `per`
//! and `reduce`, takes the best, and compares with the method's selection for two layers of two KV heads with two query
//! heads each, all with data of their own, on noise and on keys with a structure. The engine's output has to be
//! attention over just these tokens. To test another method this way, add a row.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use half::f16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::planes::gaussians;
use super::tests::{configured, noise, none, random_artefact};
use super::*;
use crate::SoftmaxScale;
use crate::calibration::artefact::{Artefact, ModelShape};
use crate::calibration::collector::PrefillChunk;
use crate::cost::Cost;
use crate::index::kmeans::kmeans;
use crate::kv::{KvDtype, KvRows, LayerKv, Prefix};
use crate::types::seed::head_seed;
use crate::{
    Configured, Context, HeadPrefix, IndexCache, LayerShare, Policy, PromptShape, PromptStats, SelectedTokens,
    Selection, SparseLayerRank, Step, Weighting, mix_seed,
};
use spattn_kernels::Rows;

const D: usize = 16;
const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const GROUP: usize = HEADS / KV_HEADS;
/// More than two groups of 128 candidates; the last group is not whole.
const TOKENS: usize = 300;
const SINK: usize = 3;
const LOCAL: usize = 8;
const SEED: u64 = 5;

type Vector = Vec<f64>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

fn wide(rows: &[f32]) -> Vec<Vector> {
    rows.chunks(D).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
}

fn scale() -> f64 {
    1.0 / (D as f64).sqrt()
}

// ---- scenes ----

/// A prefix and one step after it; every layer and head has numbers of its own.
struct Scene {
    name: &'static str,
    prefix: Arc<Prefix>,
    /// Queries of the prefix, `[layer]`, each `[token][head][D]`.
    prompt: Vec<Vec<f32>>,
    /// Queries of the step, `[layer]`, each `[head][D]`.
    queries: Vec<Vec<f32>>,
    /// Key and value of the step's token, `[layer]`, each `[kv_head][D]`.
    own: Vec<[Vec<f32>; 2]>,
}

impl Scene {
    /// `key(layer, kv_head, token, noise)` and `query(layer, head, noise)` turn noise into keys and queries.
    fn new(
        name: &'static str,
        key: impl Fn(usize, usize, usize, &mut [f32]),
        query: impl Fn(usize, usize, &mut [f32]),
    ) -> Self {
        let layer = |l: usize| {
            let mut kv = LayerKv::new(KvDtype::F32, KV_HEADS, D, TOKENS);
            for t in 0..TOKENS {
                let mut keys = noise(KV_HEADS * D, (l * 10_000 + t) as u64);
                keys.chunks_mut(D).enumerate().for_each(|(h, k)| key(l, h, t, k));
                // Values of many norms, so that norms matter.
                let long = 3f32.powi((t * 7 % 5) as i32 - 2);
                let values: Vec<f32> =
                    noise(KV_HEADS * D, (l * 10_000 + t + 77_777) as u64).iter().map(|x| long * x).collect();
                kv.append(&keys, &values);
            }
            kv
        };
        let asked = |l: usize, seed: u64, count: usize| {
            let mut queries = noise(count * HEADS * D, seed + l as u64);
            queries.chunks_mut(D).enumerate().for_each(|(i, q)| query(l, i % HEADS, q));
            queries
        };
        let own = |l: usize| [noise(KV_HEADS * D, 910 + l as u64), noise(KV_HEADS * D, 920 + l as u64)];
        Self {
            name,
            prefix: Prefix::new((0..LAYERS).map(layer).collect()),
            prompt: (0..LAYERS).map(|l| asked(l, 31, TOKENS)).collect(),
            queries: (0..LAYERS).map(|l| asked(l, 901, 1)).collect(),
            own: (0..LAYERS).map(own).collect(),
        }
    }

    fn noise() -> Self {
        Self::new("noise", |_, _, _, _| {}, |_, _, _| {})
    }

    /// Position of the needle of a KV head.
    fn needle(layer: usize, kv_head: usize) -> usize {
        41 + 31 * layer + 97 * kv_head
    }

    fn direction(layer: usize, kv_head: usize) -> Vec<f32> {
        noise(D, 700 + (2 * layer + kv_head) as u64)
    }

    /// All queries of a group ask for one key; the other keys are short.
    fn with_needle() -> Self {
        Self::new(
            "needle",
            |l, h, t, key| {
                let direction = Self::direction(l, h);
                let (needle, own) = if t == Self::needle(l, h) { (2.0, 0.1) } else { (0.0, 0.4) };
                key.iter_mut().zip(direction).for_each(|(x, c)| *x = needle * c + own * *x);
            },
            |l, head, query| {
                let direction = Self::direction(l, head / GROUP);
                query.iter_mut().zip(direction).for_each(|(x, c)| *x = 1.5 * c + 0.4 * *x);
            },
        )
    }

    /// Keys lie around two centres in turn; each query head of a group asks for one of the two.
    fn with_clusters() -> Self {
        Self::new(
            "clusters",
            |l, h, t, key| {
                let side = if t / 13 % 2 == 0 { 1.2 } else { -1.2 };
                key.iter_mut().zip(Self::direction(l, h)).for_each(|(x, c)| *x = side * c + 0.5 * *x);
            },
            |l, head, query| {
                let side = if head % GROUP == 0 { 1.0 } else { -0.8 };
                query.iter_mut().zip(Self::direction(l, head / GROUP)).for_each(|(x, c)| *x = side * c + 0.6 * *x);
            },
        )
    }

    /// One channel of all keys is far from 0, a different one at every head, as in real keys.
    fn with_a_large_channel() -> Self {
        Self::new(
            "large channel",
            |l, h, _, key| key[3 + 5 * l + 2 * h] = 15.0 + 2.0 * key[3 + 5 * l + 2 * h],
            |_, _, _| {},
        )
    }

    fn all() -> Vec<Self> {
        vec![Self::noise(), Self::with_needle(), Self::with_clusters(), Self::with_a_large_channel()]
    }

    fn model() -> ModelShape {
        ModelShape { weights_sha256: "random".into(), layers: LAYERS, heads: HEADS, kv_heads: KV_HEADS, head_dim: D }
    }

    /// The method, with an artefact made from noise if it needs one.
    fn method(spec: &str, policy: &Policy) -> Configured {
        let method = configured(spec, policy);
        match method.method.calibration() {
            Some(kind) => method.calibrated(artefact(kind)).unwrap(),
            None => method,
        }
    }

    fn stats(&self, method: &Configured) -> PromptStats {
        let needs = method.method.prompt_needs().into_iter().collect();
        let shape = PromptShape { layers: LAYERS, heads: HEADS, kv_heads: KV_HEADS, d: D, tokens: TOKENS };
        let mut stats = PromptStats::new(&needs, shape);
        for (layer, queries) in self.prompt.iter().enumerate().filter(|_| !needs.is_empty()) {
            stats.observe(&PrefillChunk::new(layer, 0, queries, HEADS, self.prefix.layer(layer).unwrap())).unwrap();
        }
        stats
    }

    /// Selection of a step at one KV head from `candidates`, in a run with this seed.
    fn picks(
        &self,
        method: &Configured,
        stats: &PromptStats,
        (layer, kv_head): (usize, usize),
        candidates: &Range<usize>,
        seed: u64,
    ) -> Selection {
        self.counted_picks(method, stats, (layer, kv_head), candidates, seed).0
    }

    /// The selection of [`picks`](Self::picks), with its cost.
    fn counted_picks(
        &self,
        method: &Configured,
        stats: &PromptStats,
        (layer, kv_head): (usize, usize),
        candidates: &Range<usize>,
        seed: u64,
    ) -> (Selection, Cost) {
        let kv = self.prefix.layer(layer).unwrap();
        let (keys, values) = (kv.keys.head(kv_head), kv.values.head(kv_head));
        let indexed = method.method.exact(&method.policy, TOKENS, TOKENS).candidates(TOKENS);
        let seed = head_seed(seed, layer, kv_head);
        let index = method
            .method
            .build(&HeadPrefix {
                layer,
                depth: SparseLayerRank { rank: layer, of: LAYERS, share: LayerShare::default() },
                rotation: None,
                kv_head,
                keys: KvRows::lent(keys, D),
                values: KvRows::lent(values, D),
                d: D,
                scale: SoftmaxScale::inverse_root(D),
                dtype: KvDtype::F32,
                candidates: indexed.clone(),
                prompt: stats.head(layer, kv_head),
                seed,
            })
            .unwrap();
        let [key, value] = &self.own[layer];
        let step = Step {
            layer,
            depth: SparseLayerRank { rank: layer, of: LAYERS, share: LayerShare::default() },
            kv_head,
            queries: &self.queries[layer][kv_head * GROUP * D..][..GROUP * D],
            d: D,
            scale: SoftmaxScale::inverse_root(D),
            keys: KvRows::lent(keys, D),
            values: KvRows::lent(values, D),
            tail_keys: Rows::F32(&key[kv_head * D..][..D]),
            tail_values: Rows::F32(&value[kv_head * D..][..D]),
            dtype: KvDtype::F32,
            indexed,
            context: Context::new(TOKENS + 1, candidates),
            candidates: candidates.clone(),
            grouped: None,
            has_moving_candidates: false,
            generated: 0,
            seed: mix_seed(seed, TOKENS as u64 + 1),
        };
        let mut state = method.method.start(index.as_ref());
        let mut cost = Cost::default();
        let selection = method.method.select(&step, index.as_ref(), state.as_mut(), &mut cost).unwrap();
        (selection, cost)
    }

    /// Outputs `[layer][head]` of one step by the engine.
    fn outputs(&self, method: &Configured) -> Vec<Vec<Vector>> {
        let cache = IndexCache::new(self.prefix.clone(), KvDtype::F32, SEED);
        let mut fork = cache.with_stats(self.stats(method)).fork(method, false).unwrap();
        let of_layer = |layer: usize| {
            let mut out = vec![f32::NAN; HEADS * D];
            let [key, value] = &self.own[layer];
            fork.step(layer, &self.queries[layer], key, value, &mut out).unwrap();
            wide(&out)
        };
        (0..LAYERS).map(of_layer).collect()
    }

    fn head(&self, layer: usize, kv_head: usize, candidates: Range<usize>) -> Head<'_> {
        let kv = self.prefix.layer(layer).unwrap();
        let rows = |rows: Rows<'_>, own: &Vec<f32>| {
            let mut rows = wide(&rows.to_f32());
            rows.extend(wide(&own[kv_head * D..][..D]));
            rows
        };
        let [key, value] = &self.own[layer];
        Head {
            scene: self,
            layer,
            kv_head,
            keys: rows(kv.keys.head(kv_head), key),
            values: rows(kv.values.head(kv_head), value),
            queries: wide(&self.queries[layer][kv_head * GROUP * D..][..GROUP * D]),
            candidates,
        }
    }
}

/// One artefact of each kind, made from noise.
fn artefact(kind: &str) -> &'static Artefact {
    static MADE: LazyLock<HashMap<&str, Artefact>> =
        LazyLock::new(|| CALIBRATIONS.iter().map(|c| (c.kind, random_artefact(c.kind, &Scene::model()))).collect());
    &MADE[kind]
}

/// One KV head of a scene in `f64`, the step's own token last.
struct Head<'a> {
    scene: &'a Scene,
    layer: usize,
    kv_head: usize,
    keys: Vec<Vector>,
    values: Vec<Vector>,
    /// `[query head of the group][D]`.
    queries: Vec<Vector>,
    candidates: Range<usize>,
}

impl Head<'_> {
    /// `score(query head of the group, token)` for all candidates.
    fn by_token(&self, score: impl Fn(usize, usize) -> f64) -> Vec<Vector> {
        (0..GROUP).map(|h| self.candidates.clone().map(|t| score(h, t)).collect()).collect()
    }

    fn dot(&self, h: usize, token: usize) -> f64 {
        dot(&self.queries[h], &self.keys[token])
    }

    /// Scaled `q·k` of the query of a prefix token.
    fn prompt_logit(&self, query_token: usize, h: usize, key_token: usize) -> f64 {
        let head = self.kv_head * GROUP + h;
        let query = &self.scene.prompt[self.layer][(query_token * HEADS + head) * D..][..D];
        scale() * query.iter().zip(&self.keys[key_token]).map(|(q, k)| f64::from(*q) * k).sum::<f64>()
    }

    /// Softmax weights of the prompt's query at a token over all tokens up to it.
    fn prompt_weights(&self, query_token: usize, h: usize) -> Vector {
        let weights: Vector = (0..=query_token).map(|k| self.prompt_logit(query_token, h, k).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / sum).collect()
    }

    fn tensor(&self, kind: &str, name: &str, shape: &[usize]) -> Vector {
        let name = format!("layers.{}.{name}", self.layer);
        artefact(kind).read(&name, shape).unwrap().into_iter().map(f64::from).collect()
    }

    /// Keys of the candidates as stored, `[candidate][D]`.
    fn stored_keys(&self) -> Vec<f32> {
        self.scene.prefix.layer(self.layer).unwrap().keys.head(self.kv_head).slice(self.candidates.clone(), D).to_f32()
    }

    /// Attention of one query head over static and `picked` tokens, and over a vector that gets a share of the candidates' mass.
    fn attend(&self, h: usize, picked: &[u32], rest: Option<(f64, &[f32])>) -> Vector {
        let weight = |t: usize| (scale() * self.dot(h, t)).exp();
        let is_exact = |t: &usize| !self.candidates.contains(t);
        let exact = (0..TOKENS + 1).filter(is_exact).map(|t| (weight(t), self.values[t].clone()));
        let of_picks: Vec<(f64, Vector)> =
            picked.iter().map(|t| (weight(*t as usize), self.values[*t as usize].clone())).collect();
        let mass: f64 = of_picks.iter().map(|(w, _)| w).sum();
        let rest =
            rest.map(|(share, value)| (mass * share / (1.0 - share), value.iter().map(|x| f64::from(*x)).collect()));
        let all: Vec<(f64, Vector)> = exact.chain(of_picks).chain(rest).collect();
        let total: f64 = all.iter().map(|(w, _)| w).sum();
        (0..D).map(|c| all.iter().map(|(w, v)| w * v[c]).sum::<f64>() / total).collect()
    }
}

// ---- rows of the table ----

/// The heads for which a selection is made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Per {
    QueryHead,
    Sum,
    Max,
}

impl Per {
    const ALL: [Self; 3] = [Self::QueryHead, Self::Sum, Self::Max];

    fn params(self) -> &'static str {
        match self {
            Self::QueryHead => "per=query_head",
            Self::Sum => "per=kv_head",
            Self::Max => "per=kv_head,reduce=max",
        }
    }

    fn reduce(self, heads: Vec<Vector>) -> Vec<Vector> {
        let column = |i: usize| heads.iter().map(|head| head[i]).collect::<Vector>();
        match self {
            Self::QueryHead => heads,
            Self::Sum => vec![(0..heads[0].len()).map(|i| column(i).iter().sum()).collect()],
            Self::Max => {
                vec![(0..heads[0].len()).map(|i| column(i).into_iter().fold(f64::MIN, f64::max)).collect()]
            }
        }
    }
}

/// Number of pages to take, the best first.
#[derive(Debug, Clone, Copy)]
enum Take {
    Pages(usize),
    /// A number for each layer.
    Layers([usize; LAYERS]),
    /// The fewest that cover this share of the mass, scores being unscaled logits; and at least this many.
    Share(f64, usize),
}

type Scores = Box<dyn Fn(&Head<'_>, Per) -> Vec<Vector>>;

/// A method, and what it has to select.
struct Row {
    spec: String,
    /// The settings of `per` and `reduce` that the method accepts.
    per: &'static [Per],
    take: Take,
    page: usize,
    candidates: Range<usize>,
    /// Scores closer than this share of the largest may swap ranks; 0 for whole numbers.
    tolerance: f64,
    /// Whether `scores` already reduces the group if `per` asks for it.
    is_reduced: bool,
    scores: Scores,
}

fn row(spec: &str, take: Take, scores: impl Fn(&Head<'_>, Per) -> Vec<Vector> + 'static) -> Row {
    Row {
        spec: spec.to_owned(),
        per: &Per::ALL,
        take,
        page: 1,
        candidates: SINK..TOKENS - LOCAL,
        tolerance: 1e-5,
        is_reduced: false,
        scores: Box::new(scores),
    }
}

impl Row {
    fn by_query(self) -> Self {
        Self { per: &[Per::QueryHead], ..self }
    }

    fn summing(self) -> Self {
        Self { per: &[Per::QueryHead, Per::Sum], ..self }
    }

    fn pages(self, page: usize) -> Self {
        Self { page, ..self }
    }

    fn exactly(self) -> Self {
        Self { tolerance: 0.0, ..self }
    }

    fn reduced(self) -> Self {
        Self { is_reduced: true, ..self }
    }

    /// A method that selects for each KV head.
    fn of_group(self) -> Self {
        Self { per: &[Per::Sum], is_reduced: true, ..self }
    }

    /// The pages that a layer takes by these scores, and the score of the last one.
    fn taken(&self, layer: usize, scores: &[f64]) -> (BTreeSet<usize>, f64) {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let count = match self.take {
            Take::Pages(pages) => pages,
            Take::Layers(pages) => pages[layer],
            Take::Share(p, least) => {
                let weight = |page: usize| (scale() * (scores[page] - scores[order[0]])).exp();
                let total: f64 = order.iter().map(|page| weight(*page)).sum();
                let mut covered = 0.0;
                let needed = order.iter().take_while(|page| {
                    let goes_on = covered < p * total;
                    covered += weight(**page);
                    goes_on
                });
                needed.count().max(least)
            }
        };
        order.truncate(count);
        let last = scores[*order.last().unwrap()];
        (order.into_iter().collect(), last)
    }

    fn check_tokens(&self, layer: usize, tokens: &[u32], scores: &[f64], what: &str) {
        let page = |t: usize| (t - self.candidates.start) / self.page;
        let picked: BTreeSet<usize> = tokens.iter().map(|t| page(*t as usize)).collect();
        let whole: Vec<u32> =
            self.candidates.clone().filter(|t| picked.contains(&page(*t))).map(|t| t as u32).collect();
        assert_eq!(tokens, whole, "{what}: whole pages, ascending");
        let (expected, last) = self.taken(layer, scores);
        assert_eq!(picked.len(), expected.len(), "{what}");
        let largest = scores.iter().filter(|s| s.is_finite()).fold(0.0f64, |m, s| m.max(s.abs()));
        for other in picked.symmetric_difference(&expected) {
            let off = (scores[*other] - last).abs();
            assert!(self.tolerance > 0.0 && off <= self.tolerance * largest, "{what}: {picked:?}, not {expected:?}");
        }
    }

    fn check(&self, scene: &Scene, per: Per) {
        let spec = match self.per.len() {
            1 => self.spec.clone(),
            _ => format!("{},{}", self.spec, per.params()),
        };
        let method = Scene::method(&spec, &Policy { sink: SINK, local: LOCAL, ..none() });
        let (stats, outputs) = (scene.stats(&method), scene.outputs(&method));
        for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
            let what = format!("{spec} on {}, layer {layer}, KV head {kv_head}", scene.name);
            let head = scene.head(layer, kv_head, self.candidates.clone());
            let scores = (self.scores)(&head, per);
            let scores = if self.is_reduced { scores } else { per.reduce(scores) };
            let selection = scene.picks(&method, &stats, (layer, kv_head), &self.candidates, SEED);
            let picks: Vec<&SelectedTokens> = match (&selection, per) {
                (Selection::PerHead(heads), Per::QueryHead) => heads.iter().collect(),
                (Selection::Shared(picks), Per::Sum | Per::Max) => vec![picks],
                other => panic!("{what}: {other:?}"),
            };
            assert_eq!(picks.len(), scores.len(), "{what}");
            for (picks, scores) in picks.iter().zip(&scores) {
                self.check_tokens(layer, &picks.tokens, scores, &what);
            }
            for h in 0..GROUP {
                let picks = picks[if picks.len() == 1 { 0 } else { h }];
                let rest = match &picks.weighting {
                    Weighting::Softmax => None,
                    Weighting::Remainder { shares, value } => {
                        let share = shares[if shares.len() == 1 { 0 } else { h }];
                        Some((f64::from(share), value.as_slice()))
                    }
                    other => panic!("{what}: {other:?}"),
                };
                let expected = head.attend(h, &picks.tokens, rest);
                for (ours, exact) in outputs[layer][kv_head * GROUP + h].iter().zip(&expected) {
                    assert!((ours - exact).abs() < 1e-4, "{what}, query head {h}: output {ours}, not {exact}");
                }
            }
        }
    }
}

fn check_table(name: &str) {
    let mut rows = table();
    rows.retain(|row| row.spec.split(':').next() == Some(name));
    assert!(!rows.is_empty(), "{name}");
    let scenes = Scene::all();
    for row in &rows {
        for scene in &scenes {
            row.per.iter().for_each(|per| row.check(scene, *per));
        }
    }
}

// ---- naive scores ----

fn exact_scores(head: &Head<'_>) -> Vec<Vector> {
    head.by_token(|h, t| head.dot(h, t))
}

#[derive(Clone, Copy, PartialEq)]
enum Round {
    Nearest,
    Down,
    Up,
}

/// A column quantised to `bits` bits and back, with ranges over 128 rows; in single precision, as the format is.
fn quantised(column: &[f32], bits: usize, round: Round) -> Vec<f32> {
    let top = ((1 << bits) - 1) as f32;
    let mut back = Vec::new();
    for part in column.chunks(128) {
        let (min, max) = part.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        let mut step = (max - min) / top;
        while round == Round::Up && min + step * top < max {
            step = step.next_up();
        }
        back.extend(part.iter().map(|x| {
            let value = |code: f32| min + step * code;
            let place = (x - min) / step;
            // The quotient may be rounded to the wrong side.
            match round {
                Round::Nearest => value(place.round()),
                Round::Down if value(place.floor()) > *x => value(place.floor() - 1.0),
                Round::Down => value(place.floor()),
                Round::Up if value(place.ceil()) < *x => value(place.ceil() + 1.0),
                Round::Up => value(place.ceil().min(top)),
            }
        }));
    }
    back
}

/// Quest, eq. 1: the bound of each channel by the sign of the query.
fn page_bounds(head: &Head<'_>, page: usize, bits: Option<usize>) -> Vec<Vector> {
    let keys = head.stored_keys();
    let pages: Vec<&[f32]> = keys.chunks(page * D).collect();
    let column = |c: usize, fold: fn(f32, f32) -> f32| -> Vec<f32> {
        pages.iter().map(|page| page.iter().skip(c).step_by(D).copied().reduce(fold).unwrap()).collect()
    };
    let bounds: Vec<(Vec<f32>, Vec<f32>)> = (0..D)
        .map(|c| (column(c, f32::min), column(c, f32::max)))
        .map(|(min, max)| match bits {
            None => (min, max),
            Some(bits) => (quantised(&min, bits, Round::Down), quantised(&max, bits, Round::Up)),
        })
        .collect();
    let bound = |q: &Vector, p: usize| -> f64 {
        (0..D).map(|c| (q[c] * f64::from(bounds[c].0[p])).max(q[c] * f64::from(bounds[c].1[p]))).sum()
    };
    head.queries.iter().map(|q| (0..pages.len()).map(|p| bound(q, p)).collect()).collect()
}

/// Double Sparsity: products on the channels with the group's largest means, in `bits` bits.
fn label_scores(head: &Head<'_>, channels: usize, bits: usize, measure: &str) -> Vec<Vector> {
    let is_key = measure.starts_with('k');
    let means = head.tensor("double_sparsity", measure, &[if is_key { KV_HEADS } else { HEADS }, D]);
    let heads = if is_key { head.kv_head..head.kv_head + 1 } else { head.kv_head * GROUP..(head.kv_head + 1) * GROUP };
    let importance = |c: usize| heads.clone().map(|h| means[h * D + c]).sum::<f64>();
    let mut order: Vec<usize> = (0..D).collect();
    order.sort_by(|a, b| importance(*b).total_cmp(&importance(*a)));
    order.truncate(channels);
    let keys = head.stored_keys();
    let columns: Vec<Vec<f32>> = order
        .iter()
        .map(|c| keys.iter().skip(*c).step_by(D).copied().collect::<Vec<f32>>())
        .map(|column| match bits {
            16 => column.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            bits => quantised(&column, bits, Round::Nearest),
        })
        .collect();
    head.by_token(|h, t| {
        let label = columns.iter().map(|column| f64::from(column[t - head.candidates.start]));
        order.iter().zip(label).map(|(c, x)| head.queries[h][*c] * x).sum()
    })
}

/// Loki: products on the first components of the KV head's basis.
fn component_scores(head: &Head<'_>, rank: usize) -> Vec<Vector> {
    let basis = head.tensor("loki", "basis", &[KV_HEADS, D, D]);
    let on = |x: &[f64], r: usize| dot(x, &basis[(head.kv_head * D + r) * D..][..D]);
    head.by_token(|h, t| (0..rank).map(|r| on(&head.queries[h], r) * on(&head.keys[t], r)).sum())
}

/// SparQ, Algorithm 1: products on the largest channels of the query, or of the group's queries together.
fn sparq_scores(head: &Head<'_>, r: usize, per: Per) -> Vec<Vector> {
    let channels = |heads: Range<usize>| {
        let magnitude = |c: usize| heads.clone().map(|h| head.queries[h][c].abs()).sum::<f64>();
        let mut order: Vec<usize> = (0..D).collect();
        order.sort_by(|a, b| magnitude(*b).total_cmp(&magnitude(*a)));
        order.truncate(r);
        order
    };
    head.by_token(|h, t| {
        let query = &head.queries[h];
        let channels = channels(if per == Per::QueryHead { h..h + 1 } else { 0..GROUP });
        let all: f64 = query.iter().map(|q| q.abs()).sum();
        let covered: f64 = channels.iter().map(|c| query[*c].abs()).sum();
        let tau = (D as f64 * covered / all).sqrt();
        channels.iter().map(|c| query[*c] * head.keys[t][*c]).sum::<f64>() / tau
    })
}

/// Minus the number of bits that differ between signs of projections on Gaussian directions.
fn lsh_scores(head: &Head<'_>, bits: usize, by_norm: bool, center: bool) -> Vec<Vector> {
    let of: Vec<usize> = head.candidates.clone().collect();
    let mean: Vector = (0..D).map(|c| of.iter().map(|t| head.keys[*t][c]).sum::<f64>() / of.len() as f64).collect();
    let key = |t: usize| -> Vector {
        let mut key: Vector = (0..D).map(|c| head.keys[t][c] - if center { mean[c] } else { 0.0 }).collect();
        key.extend(by_norm.then(|| (D as f64).sqrt() * norm(&head.values[t]).ln()));
        key
    };
    let longest = of.iter().map(|t| norm(&key(*t))).fold(0.0, f64::max);
    let width = D + 1 + usize::from(by_norm);
    let normals: Vector = gaussians(bits * width, 1).into_iter().map(f64::from).collect();
    let signs = |x: &[f64]| -> Vec<bool> { normals.chunks(width).map(|normal| dot(x, normal) > 0.0).collect() };
    let of_keys: Vec<Vec<bool>> = of
        .iter()
        .map(|t| {
            let mut key = key(*t);
            key.push((longest * longest - norm(&key).powi(2)).max(0.0).sqrt());
            signs(&key)
        })
        .collect();
    let of_queries = head.queries.iter().map(|query| {
        let mut query = query.clone();
        query.extend(by_norm.then_some(1.0));
        query.push(0.0);
        signs(&query)
    });
    of_queries.map(|query| of_keys.iter().map(|key| -differing(&query, key)).collect()).collect()
}

fn differing(a: &[bool], b: &[bool]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a != b).count() as f64
}

/// HashAttention: minus the number of bits that differ between the outputs of the head's two nets.
fn learned_scores(head: &Head<'_>, bits: usize) -> Vec<Vector> {
    // Weights and biases of the layers of one head's net.
    let net = |side: &str, heads: usize, of: usize| -> Vec<(Vector, Vector)> {
        let layer = |(part, outputs): (usize, usize)| {
            let weights = head.tensor("hash_attention", &format!("{side}.{part}.weight"), &[heads, outputs, D]);
            let biases = head.tensor("hash_attention", &format!("{side}.{part}.bias"), &[heads, outputs]);
            (weights[of * outputs * D..][..outputs * D].to_vec(), biases[of * outputs..][..outputs].to_vec())
        };
        [D, D, bits].into_iter().enumerate().map(layer).collect()
    };
    let signs = |net: &[(Vector, Vector)], x: &[f64]| -> Vec<bool> {
        let mut x = x.to_vec();
        for (part, (weights, biases)) in net.iter().enumerate() {
            let z = weights.chunks(D).zip(biases).map(|(w, b)| dot(w, &x) + b);
            x = if part == 2 { z.collect() } else { z.map(|z| z / (1.0 + (-z).exp())).collect() };
        }
        x.iter().map(|z| *z > 0.0).collect()
    };
    let of_keys = net("key", KV_HEADS, head.kv_head);
    let keys: Vec<Vec<bool>> = head.candidates.clone().map(|t| signs(&of_keys, &head.keys[t])).collect();
    let of_head = |(h, query): (usize, &Vector)| {
        let query = signs(&net("query", HEADS, head.kv_head * GROUP + h), query);
        keys.iter().map(|key| -differing(&query, key)).collect()
    };
    head.queries.iter().enumerate().map(of_head).collect()
}

/// Indexes of the best scores, ascending; of equal ones the earlier.
fn best(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// InfLLM: the tokens that the following queries score highest represent their block.
fn block_scores(head: &Head<'_>, page: usize, representatives: usize, window: usize) -> Vec<Vector> {
    let weight = |t: usize| -> f64 {
        let followers: Vec<usize> = (t + 1..(t + 1 + window).min(TOKENS)).collect();
        let logit = |f: &usize| (0..GROUP).map(|h| head.prompt_logit(*f, h, t)).sum::<f64>();
        followers.iter().map(logit).sum::<f64>() / followers.len() as f64
    };
    let tokens: Vec<usize> = head.candidates.clone().collect();
    let stand: Vec<Vec<usize>> = tokens
        .chunks(page)
        .map(|block| {
            let weights: Vector = block.iter().map(|t| weight(*t)).collect();
            best(&weights, representatives).into_iter().map(|i| block[i]).collect()
        })
        .collect();
    let score = |h: usize, stand: &Vec<usize>| {
        // A block with fewer representatives is scaled as if it had all.
        stand.iter().map(|t| head.dot(h, *t)).sum::<f64>() * representatives as f64 / stand.len() as f64
    };
    (0..GROUP).map(|h| stand.iter().map(|stand| score(h, stand)).collect()).collect()
}

/// PQCache: each part of a key is replaced by its nearest centroid.
fn product_scores(head: &Head<'_>, subspaces: usize, bits: usize) -> Vec<Vector> {
    let mut rng = ChaCha8Rng::seed_from_u64(head_seed(SEED, head.layer, head.kv_head));
    let keys = head.stored_keys();
    let mut decoded = vec![Vec::new(); head.candidates.len()];
    for part in 0..subspaces {
        let channels = part * D / subspaces..(part + 1) * D / subspaces;
        let width = channels.len();
        let points: Vec<f32> = keys.chunks(D).flat_map(|key| &key[channels.clone()]).copied().collect();
        let centroids = kmeans(&points, width, 1 << bits, 10, &mut rng).centroids;
        for (point, decoded) in points.chunks(width).zip(&mut decoded) {
            let square = |c: &&[f32]| c.iter().zip(point).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let nearest = centroids.chunks(width).min_by(|a, b| square(a).total_cmp(&square(b))).unwrap();
            decoded.extend(nearest.iter().map(|x| f64::from(*x)));
        }
    }
    head.by_token(|h, t| dot(&head.queries[h], &decoded[t - head.candidates.start]))
}

/// SnapKV: softmax weights of the window's queries for each token before it, summed over the group if it chooses together, then pooled.
fn pooled_votes(head: &Head<'_>, window: usize, kernel: usize, max: bool, per: Per) -> Vec<Vector> {
    let first = TOKENS - window;
    let votes = |h: usize| {
        let mut votes = vec![0.0; first];
        for t in first..TOKENS {
            votes.iter_mut().zip(head.prompt_weights(t, h)).for_each(|(v, w)| *v += w);
        }
        votes
    };
    let pool = |votes: &Vector| -> Vector {
        let at = |i: isize| if (0..first as isize).contains(&i) { votes[i as usize] } else { 0.0 };
        let reach = kernel as isize / 2;
        head.candidates
            .clone()
            .map(|t| {
                let near = (t as isize - reach..=t as isize + reach).map(at);
                if max { near.fold(0.0, f64::max) } else { near.sum::<f64>() / kernel as f64 }
            })
            .collect()
    };
    per.reduce((0..GROUP).map(votes).collect()).iter().map(pool).collect()
}

/// H2O: attention that the prefix's tokens received from all its queries; tokens that leave the window compete by it.
fn masses(head: &Head<'_>) -> Vec<Vector> {
    let of_head = |h: usize| {
        let mut masses = vec![0.0; TOKENS];
        for t in 0..TOKENS {
            masses.iter_mut().zip(head.prompt_weights(t, h)).for_each(|(m, w)| *m += w);
        }
        masses[head.candidates.clone()].to_vec()
    };
    (0..GROUP).map(of_head).collect()
}

/// Twilight: tokens of the pages that a first score selects are scored again by their keys, or by 4-bit keys; all others are excluded.
fn scored_again(
    head: &Head<'_>,
    per: Per,
    first: Vec<Vector>,
    (pages, page): (usize, usize),
    is_coded: bool,
) -> Vec<Vector> {
    let keys = head.stored_keys();
    let column = |c: usize| -> Vec<f32> {
        let column: Vec<f32> = keys.iter().skip(c).step_by(D).copied().collect();
        if is_coded { quantised(&column, 4, Round::Nearest) } else { column }
    };
    let columns: Vec<Vec<f32>> = (0..D).map(column).collect();
    let again = head
        .by_token(|h, t| (0..D).map(|c| head.queries[h][c] * f64::from(columns[c][t - head.candidates.start])).sum());
    let of_one = |(first, again): (Vector, Vector)| {
        let left = best(&first, pages);
        let score = |(i, score): (usize, f64)| if left.contains(&(i / page)) { score } else { f64::NEG_INFINITY };
        again.into_iter().enumerate().map(score).collect()
    };
    per.reduce(first).into_iter().zip(per.reduce(again)).map(of_one).collect()
}

/// Expected Attention: expected attention of normal queries with the mean and covariance of the prompt's, averaged over
/// the group, times the norms of values. Without a known rotation, future queries are distributed as those of the prompt.
fn expected_scores(head: &Head<'_>, covariance: bool, by_norm: bool) -> Vec<Vector> {
    let of_head = |h: usize| -> Vector {
        let of = head.kv_head * GROUP + h;
        let prompt = &head.scene.prompt[head.layer];
        let queries: Vec<Vector> = (SINK..TOKENS).flat_map(|t| wide(&prompt[(t * HEADS + of) * D..][..D])).collect();
        let mean_of = |f: &dyn Fn(&Vector) -> f64| queries.iter().map(f).sum::<f64>() / queries.len() as f64;
        let mean: Vector = (0..D).map(|c| mean_of(&|q| q[c])).collect();
        let weight = |t: usize| {
            let key = &head.keys[t];
            // The variance of k·q is kᵀΣk.
            let variance = mean_of(&|q| dot(q, key).powi(2)) - dot(&mean, key).powi(2);
            (scale() * dot(&mean, key) + if covariance { variance / (2 * D) as f64 } else { 0.0 }).exp()
        };
        let weights: Vector = head.candidates.clone().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / sum).collect()
    };
    let heads: Vec<Vector> = (0..GROUP).map(of_head).collect();
    let score = |(i, t): (usize, usize)| {
        let mean = heads.iter().map(|head| head[i]).sum::<f64>() / GROUP as f64;
        mean * if by_norm { norm(&head.values[t]) } else { 1.0 }
    };
    vec![head.candidates.clone().enumerate().map(score).collect()]
}

/// First scores: a spec, the number of tokens it takes, the page size, and the naive score.
fn first_scores() -> Vec<(&'static str, usize, usize, Scores)> {
    vec![
        ("topk:k=40", 40, 1, Box::new(|head, _| exact_scores(head))),
        (
            "topk_norm:k=40",
            40,
            1,
            Box::new(|head, _| head.by_token(|h, t| scale() * head.dot(h, t) + norm(&head.values[t]).ln())),
        ),
        ("quest:page=7,k=60", 9, 7, Box::new(|head, _| page_bounds(head, 7, None))),
        ("quest:page=7,k=60,summary_bits=2", 9, 7, Box::new(|head, _| page_bounds(head, 7, Some(2)))),
        ("double_sparsity:channels=4,label_bits=4,k=40", 40, 1, Box::new(|head, _| label_scores(head, 4, 4, "qk"))),
        ("loki:rank=5,k=40", 40, 1, Box::new(|head, _| component_scores(head, 5))),
        ("lsh_bits:bits=40,center=true,ties=first,k=40", 40, 1, Box::new(|head, _| lsh_scores(head, 40, false, true))),
        // Only 30: one bit of a key is within rounding of 0 and would change the first 40.
        ("hash_attention:ties=first,k=30", 30, 1, Box::new(|head, _| learned_scores(head, 32))),
        ("pqcache:subspaces=2,bits=4,k=40", 40, 1, Box::new(|head, _| product_scores(head, 2, 4))),
        ("infllm:page=8,representatives=3,window=10,k=64", 8, 8, Box::new(|head, _| block_scores(head, 8, 3, 10))),
    ]
}

/// Every deterministic method that selects, in several settings.
fn table() -> Vec<Row> {
    let exact = |spec: &str, take: Take| row(spec, take, |head, _| exact_scores(head));
    let mut rows = vec![
        exact("topk:k=17", Take::Pages(17)),
        // 5 % of 301 tokens, rounded up; then 10 % of them, 30, less the 12 static ones.
        exact("topk:ratio=0.05", Take::Pages(16)),
        exact("topk:density=0.1", Take::Pages(18)),
        exact("topk:pick=topp,p=0.6", Take::Share(0.6, 1)),
        exact("topp:p=0.8", Take::Share(0.8, 1)).by_query(),
        exact("topp:p=0.05", Take::Share(0.05, 1)).by_query(),
        exact("knn:index=flat,k=17", Take::Pages(17)).summing(),
        exact("knn:index=hnsw,k=17,ef=1000", Take::Pages(17)).summing(),
        exact("retrieval_attention:k=17,ef=1000", Take::Pages(17)).summing(),
        row("topk_norm:k=17", Take::Pages(17), |head, _| {
            head.by_token(|h, t| scale() * head.dot(h, t) + norm(&head.values[t]).ln())
        }),
        row("h2o:k=17,recent=8", Take::Pages(17), |head, _| masses(head)),
    ];
    let h2o = rows.last_mut().unwrap();
    h2o.candidates = SINK..TOKENS + 1 - 8;
    // 289 candidates: 41 pages of 7 and one of 2.
    for (params, take) in [
        ("k=30", Take::Pages(5)),
        ("k=1,min_pages=4", Take::Pages(4)),
        ("k=290", Take::Pages(42)),
        ("density=0.2", Take::Pages(7)),
        ("pick=topp,p=0.5", Take::Share(0.5, 1)),
        ("pick=topp,p=0.01,min_pages=3", Take::Share(0.01, 3)),
    ] {
        for (bits, summary) in [(None, ""), (Some(4), ",summary_bits=4"), (Some(2), ",summary_bits=2")] {
            let spec = format!("quest:page=7,{params}{summary}");
            rows.push(row(&spec, take, move |head, _| page_bounds(head, 7, bits)).pages(7));
        }
    }
    // More pages than one range covers.
    rows.push(row("quest:page=1,k=20,summary_bits=4", Take::Pages(20), |head, _| page_bounds(head, 1, Some(4))));
    for (channels, bits) in [(4, 16), (6, 4), (16, 2)] {
        for measure in ["qk", "q", "k", "q_pre", "k_pre"] {
            let kind = measure.split('_').next().unwrap();
            let rope = if measure.contains("pre") || kind == "qk" { "" } else { ",rope=post" };
            let spec = format!("double_sparsity:channels={channels},label_bits={bits},kind={kind}{rope},k=17");
            rows.push(row(&spec, Take::Pages(17), move |head, _| label_scores(head, channels, bits, measure)));
        }
    }
    let share = Take::Share(0.6, 1);
    rows.push(row("double_sparsity:channels=4,label_bits=4,pick=topp,p=0.6", share, |head, _| {
        label_scores(head, 4, 4, "qk")
    }));
    for (take, params) in [(Take::Pages(17), "k=17"), (share, "pick=topp,p=0.6")] {
        rows.push(row(&format!("loki:rank=5,{params}"), take, |head, _| component_scores(head, 5)));
    }
    for storage in ["2xK", "1xK"] {
        let spec = format!("sparq:r=5,k=17,storage={storage}");
        rows.push(row(&spec, Take::Pages(17), |head, per| sparq_scores(head, 5, per)));
    }
    for (bits, label, center) in [(5, "a", false), (40, "a", true), (32, "av", false), (70, "av", true)] {
        let spec = format!("lsh_bits:bits={bits},label={label},center={center},ties=first,k=17");
        let scores = move |head: &Head<'_>, _| lsh_scores(head, bits, label == "av", center);
        rows.push(row(&spec, Take::Pages(17), scores).exactly());
    }
    rows.push(row("hash_attention:ties=first,k=17", Take::Pages(17), |head, _| learned_scores(head, 32)).exactly());
    for (page, count, window) in [(8, 3, 10), (25, 4, 1)] {
        for (take, params) in [(Take::Pages(64usize.div_ceil(page)), "k=64"), (share, "pick=topp,p=0.6")] {
            let spec = format!("infllm:page={page},representatives={count},window={window},{params}");
            let scores = move |head: &Head<'_>, _| block_scores(head, page, count, window);
            rows.push(row(&spec, take, scores).pages(page));
        }
    }
    for (take, params) in [(Take::Pages(17), "k=17"), (share, "pick=topp,p=0.6")] {
        for (subspaces, bits) in [(2, 4), (3, 3)] {
            let spec = format!("pqcache:subspaces={subspaces},bits={bits},{params}");
            rows.push(row(&spec, take, move |head, _| product_scores(head, subspaces, bits)));
        }
    }
    for (kernel, pool) in [(1, "max"), (5, "max"), (5, "avg")] {
        let spec = format!("snapkv:k=17,window=8,kernel={kernel},pool={pool}");
        let scores = move |head: &Head<'_>, per| pooled_votes(head, 8, kernel, pool == "max", per);
        rows.push(row(&spec, Take::Pages(17), scores).reduced());
        // With a mean of 20, budgets fall from 2·20 − 20/4 to 20/4.
        let spec = format!("pyramid_kv:k=20,beta=4,window=8,kernel={kernel},pool={pool}");
        rows.push(row(&spec, Take::Layers([35, 5]), scores).reduced());
    }
    for (covariance, norm) in [(true, true), (true, false), (false, true)] {
        let spec = format!("expected_attention:k=17,queries=1000,covariance={covariance},norm={norm}");
        let scores = move |head: &Head<'_>, _| expected_scores(head, covariance, norm);
        rows.push(row(&spec, Take::Pages(17), scores).of_group());
    }
    for (take, then) in [(Take::Pages(9), "k2=9"), (Take::Share(0.7, 0), "p=0.7")] {
        for (rescore, is_coded) in [("exact", false), ("int4", true)] {
            for (first, pages, page, scores) in first_scores() {
                let again = move |head: &Head<'_>, per: Per| {
                    scored_again(head, per, scores(head, per), (pages, page), is_coded)
                };
                rows.push(row(&format!("{first},rescore={rescore},{then}"), take, again).reduced());
            }
        }
        for (page, k) in [(7, 60usize), (16, 96)] {
            let again = move |head: &Head<'_>, per: Per| {
                scored_again(head, per, page_bounds(head, page, None), (k.div_ceil(page), page), true)
            };
            rows.push(row(&format!("twilight:page={page},k={k},{then}"), take, again).reduced());
        }
    }
    rows
}

/// One test for each method of the table, so that they run in parallel.
macro_rules! oracles {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                check_table(stringify!($name));
            }
        )+

        #[test]
        fn every_row_is_checked() {
            let names = [$(stringify!($name)),+];
            for row in table() {
                let name = row.spec.split(':').next().unwrap();
                assert!(names.contains(&name), "`{name}` has rows in `table`, and is not in `oracles!`");
            }
        }

        #[test]
        fn every_method_is_compared_with_a_naive_reference() {
            let known = [&[$(stringify!($name)),+], COMPARED_ELSEWHERE].concat();
            for method in METHODS {
                let count = known.iter().filter(|name| **name == method.name).count();
                assert_eq!(
                    count, 1,
                    "`{}` belongs in `oracles!`, with a row in `table`, or in COMPARED_ELSEWHERE",
                    method.name
                );
            }
        }
    };
}

oracles!(
    topk,
    topk_norm,
    topp,
    quest,
    double_sparsity,
    loki,
    sparq,
    lsh_bits,
    hash_attention,
    infllm,
    pqcache,
    snapkv,
    pyramid_kv,
    expected_attention,
    twilight,
    h2o,
    knn,
    retrieval_attention,
);

/// Methods whose selection is not the best by a score of each candidate. They are compared with a naive reference below in this file,
/// in the tests of their own files, or, of those that read prompts sparsely, in `prefill/`. `full` is the reference itself.
const COMPARED_ELSEWHERE: &[&str] = &[
    "full",
    "oracle_sampling",
    "vattention",
    "random",
    "streaming_llm",
    "a_shape",
    "bigbird",
    "vertical_slash",
    "minference",
    "flexprefill",
    "hyper_attention",
    "reformer",
    "tova",
    "ada_kv",
    "rocketkv",
    "duo_attention",
    "magicpig",
    "hip",
];

// ---- methods whose heads choose together, or in stages ----

/// Outputs of one step have to be attention over the tokens that `kept` returns for each query head of a layer, and
/// over all tokens that are not candidates.
fn check_outputs(spec: &str, candidates: Range<usize>, kept: impl Fn(&[Head<'_>]) -> Vec<Vec<usize>>) {
    let method = Scene::method(spec, &Policy { sink: SINK, local: LOCAL, ..none() });
    for scene in Scene::all() {
        let outputs = scene.outputs(&method);
        for (layer, outputs) in outputs.iter().enumerate() {
            let heads: Vec<Head<'_>> = (0..KV_HEADS).map(|h| scene.head(layer, h, candidates.clone())).collect();
            for (head, kept) in kept(&heads).iter().enumerate() {
                let kept: Vec<u32> = kept.iter().map(|t| *t as u32).collect();
                let expected = heads[head / GROUP].attend(head % GROUP, &kept, None);
                for (ours, exact) in outputs[head].iter().zip(&expected) {
                    let what = format!("{spec} on {}, layer {layer}, head {head}", scene.name);
                    assert!((ours - exact).abs() < 1e-4, "{what}: {ours}, not {exact}");
                }
            }
        }
    }
}

/// TOVA: the prompt's last query chooses for all heads of a layer, by its mean weights.
#[test]
fn tova() {
    for k in [1, 20, 250] {
        check_outputs(&format!("tova:k={k}"), SINK..TOKENS, |heads| {
            let mut sums = vec![0.0; TOKENS - SINK];
            for (head, h) in heads.iter().flat_map(|head| (0..GROUP).map(move |h| (head, h))) {
                sums.iter_mut().zip(&head.prompt_weights(TOKENS - 1, h)[SINK..]).for_each(|(sum, w)| *sum += w);
            }
            let kept: Vec<usize> = best(&sums, k).into_iter().map(|i| SINK + i).collect();
            vec![kept; HEADS]
        });
    }
}

/// Ada-KV, Algorithm 1: the largest votes of all selections of a layer give the number of tokens that each one keeps.
#[test]
fn ada_kv() {
    const K: usize = 20;
    for ((kernel, pool), floor) in [((1, "max"), 0.0), ((5, "max"), 0.2), ((5, "avg"), 0.5), ((3, "max"), 1.0)] {
        for per in Per::ALL {
            let spec = format!("ada_kv:k={K},window=8,kernel={kernel},pool={pool},floor={floor},{}", per.params());
            check_outputs(&spec, SINK..TOKENS - LOCAL, |heads| {
                let votes: Vec<Vector> =
                    heads.iter().flat_map(|head| pooled_votes(head, 8, kernel, pool == "max", per)).collect();
                let width = votes[0].len();
                let largest = best(&votes.concat(), K * votes.len());
                let keeps = |selection: usize| -> Vec<usize> {
                    let count = largest.iter().filter(|i| **i / width == selection).count();
                    let share = ((1.0 - floor) * count as f64 + floor * K as f64).round() as usize;
                    best(&votes[selection], share).into_iter().map(|i| SINK + i).collect()
                };
                (0..HEADS).map(|head| keeps(head * votes.len() / HEADS)).collect()
            });
        }
    }
}

/// RocketKV: the window's queries vote for tokens, which form pages; of these the best are taken by bounds on few channels.
#[test]
fn rocketkv() {
    const WINDOW: usize = 12;
    // The geometric mean of 20 and 289 candidates, rounded up.
    for (params, keep, page, r) in [("keep=auto,page=4,r=5", 77, 4, 5), ("keep=50,page=7,r=16", 50, 7, 16)] {
        let spec = format!("rocketkv:k=20,window={WINDOW},kernel=5,{params}");
        check_outputs(&spec, SINK..TOKENS - LOCAL, |heads| {
            let of_head = |head: &Head<'_>| {
                let before = head.scene.head(head.layer, head.kv_head, SINK..TOKENS - WINDOW);
                let votes = pooled_votes(&before, WINDOW, 5, true, Per::Sum).remove(0);
                let mut kept: Vec<usize> = best(&votes, keep).into_iter().map(|i| SINK + i).collect();
                kept.extend(TOKENS - WINDOW..TOKENS - LOCAL);
                let pages: Vec<&[usize]> = kept.chunks(page).collect();
                let weights = hybrid_weights(head, &pages, r);
                best(&weights, 20usize.div_ceil(page)).into_iter().flat_map(|p| pages[p].to_vec()).collect::<Vec<_>>()
            };
            heads.iter().flat_map(|head| vec![of_head(head); GROUP]).collect()
        });
    }
}

/// Weight of each page for the group: softmax over all tokens by one bound a channel, on the queries' largest channels.
fn hybrid_weights(head: &Head<'_>, pages: &[&[usize]], r: usize) -> Vector {
    let sum = |c: usize, f: fn(f64) -> f64| head.queries.iter().map(|q| f(q[c])).sum::<f64>();
    let channels = best(&(0..D).map(|c| sum(c, f64::abs)).collect::<Vec<_>>(), r);
    let bound = |page: &[usize], c: usize| {
        let column = page.iter().map(|t| head.keys[*t][c]);
        if sum(c, |q| q) > 0.0 { column.fold(f64::MIN, f64::max) } else { column.fold(f64::MAX, f64::min) }
    };
    let mut weights = vec![0.0; pages.len()];
    for query in &head.queries {
        let share = channels.iter().map(|c| query[*c].abs()).sum::<f64>() / query.iter().map(|q| q.abs()).sum::<f64>();
        let score = |page: &&[usize]| {
            let product: f64 = channels.iter().map(|c| query[*c] * bound(page, *c)).sum();
            (product / (D as f64 * share).sqrt()).exp()
        };
        let scores: Vector = pages.iter().map(score).collect();
        let total: f64 = scores.iter().zip(pages).map(|(score, page)| score * page.len() as f64).sum();
        weights.iter_mut().zip(scores).for_each(|(weight, score)| *weight += score / total);
    }
    weights
}

// ---- samples ----

/// A sample to check against the base sample of the same generator.
struct Sampled<'a> {
    head: &'a Head<'a>,
    /// Query heads that select together.
    heads: Vec<usize>,
    best: usize,
    epsilon: f64,
    base: f64,
    /// Seed of the generator, which draws the base sample first.
    seed: u64,
}

/// The normal quantile of 1 − 0.1/2.
const QUANTILE: f64 = 1.644_853_627;

impl Sampled<'_> {
    /// Checks sizes and weights; returns the weight of each token, or `None` if all of the rest was taken.
    fn check(&self, picks: &SelectedTokens, what: &str) -> Option<Vec<(u32, f64)>> {
        let all = self.head.candidates.len();
        let distinct: BTreeSet<u32> = picks.tokens.iter().copied().collect();
        assert_eq!(distinct.len(), picks.tokens.len(), "{what}: no token twice");
        assert!(distinct.iter().all(|t| self.head.candidates.contains(&(*t as usize))), "{what}");
        let Weighting::LogBias(log_u) = &picks.weighting else {
            assert_eq!((&picks.weighting, distinct.len()), (&Weighting::Softmax, all), "{what}: all of the rest");
            return None;
        };
        let (exact, sampled) = picks.tokens.split_at(self.best);
        let rest: Vec<usize> = self.head.candidates.clone().filter(|t| !exact.contains(&(*t as u32))).collect();
        let size = self.size(exact, &rest);
        assert!(sampled.len().abs_diff(size) <= 1, "{what}: {} drawn, not {size}", sampled.len());
        let u = sampled.len() as f64 / rest.len() as f64;
        let expected = exact.iter().map(|_| 1.0).chain(sampled.iter().map(|_| u));
        for (ours, u) in log_u.iter().zip(expected) {
            assert!((f64::from(*ours) - u.ln()).abs() < 1e-5, "{what}: ln u {ours}, not {}", u.ln());
        }
        Some(picks.tokens.iter().zip(log_u).map(|(t, u)| (*t, (-f64::from(*u)).exp())).collect())
    }

    /// Sample size by vAttention's bound on the denominator, from the base sample, for the most demanding head.
    fn size(&self, best: &[u32], rest: &[usize]) -> usize {
        let n = rest.len() as f64;
        let base = ((self.base * n).ceil() as usize).max(2);
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let looked_at: Vec<usize> =
            rand::seq::index::sample(&mut rng, rest.len(), base).iter().map(|i| rest[i]).collect();
        let of_head = |h: &usize| {
            let e = |t: usize| (scale() * self.head.dot(*h, t)).exp();
            let drawn: Vector = looked_at.iter().map(|t| e(*t)).collect();
            let mean = drawn.iter().sum::<f64>() / base as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (base - 1) as f64;
            let fixed = (0..TOKENS + 1).filter(|t| !self.head.candidates.contains(t));
            let summed = fixed.chain(best.iter().map(|t| *t as usize)).map(e).sum::<f64>();
            let needed = QUANTILE * n * variance.sqrt() / (self.epsilon * (summed + n * mean));
            needed.powi(2).ceil() as usize
        };
        self.heads.iter().map(of_head).max().unwrap().clamp(base, rest.len())
    }
}

/// Attention with weighted tokens, and with each token that is not a candidate once.
fn weighted_attention(head: &Head<'_>, h: usize, picks: &[(u32, f64)]) -> Vector {
    let exact = (0..TOKENS + 1).filter(|t| !head.candidates.contains(t)).map(|t| (t, 1.0));
    let all = exact.chain(picks.iter().map(|(t, factor)| (*t as usize, *factor)));
    let weights: Vec<(usize, f64)> = all.map(|(t, factor)| (t, factor * (scale() * head.dot(h, t)).exp())).collect();
    let total: f64 = weights.iter().map(|(_, w)| w).sum();
    (0..D).map(|c| weights.iter().map(|(t, w)| w * head.values[*t][c]).sum::<f64>() / total).collect()
}

/// `pick=sample` with any scorer, and `vattention`: the best by score, and a sample of the rest, as large as the bound
/// requires by a base sample, weighted to stand for all of the rest.
#[test]
fn samples_are_as_large_as_the_bound_asks_and_count_for_the_rest() {
    const BASE: f64 = 0.06;
    let mut first = first_scores();
    first.push(("vattention:k=17", 17, 1, Box::new(|head, _| exact_scores(head))));
    for (spec, pages, page, scores) in first {
        let pick = if spec.starts_with("vattention") { "" } else { ",pick=sample" };
        let mut samples = 0;
        for (per, epsilon) in Per::ALL.into_iter().flat_map(|per| [0.1, 0.3].map(|epsilon| (per, epsilon))) {
            let spec = format!("{spec}{pick},epsilon={epsilon},delta=0.1,base={BASE},{}", per.params());
            let row = row(&spec, Take::Pages(pages), |_, _| Vec::new()).pages(page);
            let method = Scene::method(&spec, &Policy { sink: SINK, local: LOCAL, ..none() });
            for scene in Scene::all() {
                let (stats, outputs) = (scene.stats(&method), scene.outputs(&method));
                for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
                    let what = format!("{spec} on {}, layer {layer}, KV head {kv_head}", scene.name);
                    let head = scene.head(layer, kv_head, row.candidates.clone());
                    let picks = match scene.picks(&method, &stats, (layer, kv_head), &row.candidates, SEED) {
                        Selection::PerHead(heads) => heads,
                        Selection::Shared(picks) => vec![picks],
                    };
                    let scores = per.reduce(scores(&head, per));
                    assert_eq!(picks.len(), scores.len(), "{what}");
                    for (i, (picks, scores)) in picks.iter().zip(&scores).enumerate() {
                        let heads = if per == Per::QueryHead { vec![i] } else { (0..GROUP).collect() };
                        let of_page = |p: &usize| page.min(row.candidates.len() - p * page);
                        let best: usize = row.taken(layer, scores).0.iter().map(of_page).sum();
                        let of_step = mix_seed(head_seed(SEED, layer, kv_head), TOKENS as u64 + 1);
                        let seed = mix_seed(of_step, i as u64);
                        let sampled = Sampled { head: &head, heads: heads.clone(), best, epsilon, base: BASE, seed };
                        let Some(weighted) = sampled.check(picks, &what) else { continue };
                        row.check_tokens(layer, &picks.tokens[..best], scores, &what);
                        samples += 1;
                        for h in heads {
                            let expected = weighted_attention(&head, h, &weighted);
                            for (ours, exact) in outputs[layer][kv_head * GROUP + h].iter().zip(&expected) {
                                assert!((ours - exact).abs() < 1e-4, "{what}, query head {h}: {ours}, not {exact}");
                            }
                        }
                    }
                }
            }
        }
        assert!(samples >= 20, "{spec}: {samples} samples");
    }
}

// ---- cost of scoring ----

/// If scoring computes the exact product of each query head with each candidate, those with tokens that the head attends
/// count as attention: each counts once. Keys are read once for the group; attention counts those that any head attends.
#[test]
fn a_product_that_attention_needs_counts_once() {
    /// What scoring computes beside products of single heads: products of the group's sum only, norms of values, or two FLOPs a score.
    #[derive(PartialEq)]
    enum Takes {
        Each,
        OfSums,
        Norms,
        TwoMore,
    }
    let policy = Policy { sink: SINK, local: LOCAL, ..none() };
    for (spec, takes) in [
        ("topk:k=17", Takes::Each),
        ("topk:k=17,per=kv_head,reduce=max", Takes::Each),
        ("topk:k=17,per=kv_head", Takes::OfSums),
        ("topk:pick=topp,p=0.4", Takes::Each),
        ("topk:k=60,rescore=exact,k2=9", Takes::Each),
        ("topp:p=0.5", Takes::Each),
        ("topk_norm:k=17", Takes::TwoMore),
        ("vattention:k=9,epsilon=0.3,base=0.03", Takes::Each),
        ("oracle_sampling:budget=20", Takes::Each),
        ("oracle_sampling:budget=20,proposal=value_norm", Takes::Norms),
        ("knn:index=flat,k=17", Takes::Each),
        ("knn:index=flat,k=17,per=kv_head", Takes::OfSums),
    ] {
        let method = Scene::method(spec, &policy);
        for scene in Scene::all() {
            let stats = scene.stats(&method);
            for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
                let candidates = SINK..TOKENS - LOCAL;
                let (selection, cost) = scene.counted_picks(&method, &stats, (layer, kv_head), &candidates, SEED);
                let heads: Vec<Vec<u32>> = match selection {
                    Selection::PerHead(heads) => heads.into_iter().map(|picks| picks.tokens).collect(),
                    Selection::Shared(picks) => vec![picks.tokens; GROUP],
                };
                let (n, union) = (candidates.len(), heads.concat().into_iter().collect::<BTreeSet<u32>>().len());
                let mut missed = 0;
                for picked in &heads {
                    missed += candidates.clone().filter(|t| !picked.contains(&(*t as u32))).count();
                }
                let (products, keys) = if takes == Takes::OfSums { (n, n) } else { (missed, n - union) };
                let more = match takes {
                    Takes::Each | Takes::OfSums => 0,
                    Takes::Norms => 2 * n * D,
                    Takes::TwoMore => 2 * GROUP * n,
                };
                // Values whose norms are computed are read like keys.
                let rows = if takes == Takes::Norms { 2 * keys } else { keys };
                let what = format!("{spec} on {}, layer {layer}, KV head {kv_head}", scene.name);
                assert_eq!(cost.score_flops as usize, 2 * D * products + more, "{what}");
                assert_eq!(cost.kv_bytes as usize, 4 * D * rows, "{what}");
            }
        }
    }
}

// ---- methods without scores, and methods that draw ----

/// Methods that select nothing: attention over sink and last tokens, at every head of every layer.
#[test]
fn windows_attend_sinks_and_the_last_tokens() {
    for (spec, first) in [
        ("a_shape:window=40", TOKENS + 1 - 40),
        ("streaming_llm:window=40", TOKENS + 1 - 40),
        ("streaming_llm:window=40,slide=false", TOKENS - 40),
        ("snapkv:k=0,window=12", TOKENS - 12),
        ("h2o:k=0,recent=12", TOKENS + 1 - 12),
    ] {
        for scene in Scene::all() {
            let method = Scene::method(spec, &Policy { sink: SINK, ..none() });
            let outputs = scene.outputs(&method);
            for (layer, head) in (0..LAYERS).flat_map(|l| (0..HEADS).map(move |h| (l, h))) {
                let of = scene.head(layer, head / GROUP, SINK..first);
                for (ours, exact) in outputs[layer][head].iter().zip(of.attend(head % GROUP, &[], None)) {
                    let what = format!("{spec} on {}, layer {layer}, head {head}", scene.name);
                    assert!((ours - exact).abs() < 1e-4, "{what}: {ours}, not {exact}");
                }
            }
        }
    }
}

/// P[at least `least` of `tables` trials that succeed with probability `c`].
fn binomial_tail(tables: usize, c: f64, least: usize) -> f64 {
    let mut choose = 1.0;
    let mut missed = 0.0;
    for j in 0..least {
        missed += choose * c.powi(j as i32) * (1.0 - c).powi((tables - j) as i32);
        choose *= (tables - j) as f64 / (j + 1) as f64;
    }
    1.0 - missed
}

/// MagicPIG samples the keys that share the query's code in enough tables, found one by one, each with the probability
/// that follows from its angle.
#[test]
fn magicpig_samples_what_collides() {
    const BITS: usize = 3;
    const TABLES: usize = 9;
    for (center, simple_lsh) in [(true, false), (false, false), (false, true), (true, true)] {
        for least in [1, 2] {
            let spec =
                format!("magicpig:K={BITS},L={TABLES},min_collisions={least},center={center},simple_lsh={simple_lsh}");
            let method = Scene::method(&spec, &Policy { sink: SINK, local: LOCAL, ..none() });
            for scene in Scene::all() {
                for (layer, kv_head) in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
                    let head = scene.head(layer, kv_head, SINK..TOKENS - LOCAL);
                    let stats = scene.stats(&method);
                    let selection = scene.picks(&method, &stats, (layer, kv_head), &head.candidates, SEED);
                    let Selection::PerHead(picks) = selection else { panic!("a sample for each query head") };
                    for (h, picks) in picks.iter().enumerate() {
                        let what = format!("{spec} on {}, layer {layer}, KV head {kv_head}, {h}", scene.name);
                        let Weighting::LogBias(log_u) = &picks.weighting else { panic!("{what}") };
                        let expected = colliding(&head, h, (BITS, TABLES), least, center, simple_lsh);
                        let tokens: Vec<u32> = expected.iter().map(|(t, _)| *t as u32).collect();
                        assert_eq!(picks.tokens, tokens, "{what}");
                        for (ours, (token, u)) in log_u.iter().zip(&expected) {
                            let off = (f64::from(*ours) - u.ln()).abs();
                            assert!(off < 1e-3, "{what}, token {token}: ln u {ours}, not {}", u.ln());
                        }
                    }
                }
            }
        }
    }
}

/// Tokens that collide with a query often enough, with their sampling probability.
fn colliding(
    head: &Head<'_>,
    h: usize,
    (bits, tables): (usize, usize),
    least: usize,
    center: bool,
    simple_lsh: bool,
) -> Vec<(usize, f64)> {
    let of: Vec<usize> = head.candidates.clone().collect();
    let mean: Vector = (0..D).map(|c| of.iter().map(|t| head.keys[*t][c]).sum::<f64>() / of.len() as f64).collect();
    let key = |t: usize| -> Vector { (0..D).map(|c| head.keys[t][c] - if center { mean[c] } else { 0.0 }).collect() };
    let longest = of.iter().map(|t| norm(&key(*t))).fold(0.0, f64::max);
    let lengthened = |t: usize| -> Vector {
        let mut key = key(t);
        let length = norm(&key);
        key.extend(simple_lsh.then(|| (longest * longest - length * length).max(0.0).sqrt()));
        key
    };
    let mut query = head.queries[h].clone();
    query.extend(simple_lsh.then_some(0.0));
    let normals: Vector = gaussians(bits * tables * query.len(), 1).into_iter().map(f64::from).collect();
    let normals: Vec<&[f64]> = normals.chunks(query.len()).collect();
    let side = |x: &[f64], plane: usize| dot(x, normals[plane]) > 0.0;
    let of_token = |t: usize| {
        let key = lengthened(t);
        let agrees = |table: usize| (table * bits..(table + 1) * bits).all(|p| side(&key, p) == side(&query, p));
        let collisions = (0..tables).filter(|table| agrees(*table)).count();
        let cosine = dot(&key, &query) / (norm(&key) * norm(&query));
        let p = 1.0 - cosine.acos() / std::f64::consts::PI;
        (collisions >= least).then(|| (t, binomial_tail(tables, p.powi(bits as i32), least)))
    };
    of.into_iter().filter_map(of_token).collect()
}

/// Pearson's statistic of counts against expected ones.
fn chi_square(counts: &[f64], expected: &[f64]) -> f64 {
    counts.iter().zip(expected).map(|(n, e)| (n - e).powi(2) / e).sum()
}

/// The 0.9999 quantile of the χ² distribution (Wilson and Hilferty).
fn quantile(degrees: f64) -> f64 {
    let a = 2.0 / (9.0 * degrees);
    degrees * (1.0 - a + 3.719 * a.sqrt()).powi(3)
}

/// `oracle_sampling` draws by the candidates' softmax of each head: counts over many seeds fit this head's
/// probabilities, and no other head's.
#[test]
fn oracle_sampling_draws_by_the_softmax_of_each_head() {
    const SEEDS: u64 = 40;
    const BUDGET: usize = 64;
    let scene = Scene::with_clusters();
    let method =
        Scene::method(&format!("oracle_sampling:budget={BUDGET}"), &Policy { sink: SINK, local: LOCAL, ..none() });
    let stats = scene.stats(&method);
    let places: Vec<(usize, usize)> = (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))).collect();
    let draws = SEEDS as f64 * BUDGET as f64;
    let (mut counts, mut probabilities) = (Vec::new(), Vec::new());
    for place in &places {
        let head = scene.head(place.0, place.1, SINK..TOKENS - LOCAL);
        let mut drawn = vec![vec![0.0; TOKENS]; GROUP];
        for seed in 0..SEEDS {
            let Selection::PerHead(picks) = scene.picks(&method, &stats, *place, &head.candidates, seed) else {
                panic!("draws for each query head")
            };
            for (h, (picks, drawn)) in picks.iter().zip(&mut drawn).enumerate() {
                let Weighting::Direct { weights, log_mass } = &picks.weighting else { panic!("given weights") };
                let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
                assert!((total - 1.0).abs() < 1e-5, "{total}");
                let mass: f64 = head.candidates.clone().map(|t| (scale() * head.dot(h, t)).exp()).sum();
                assert!((f64::from(*log_mass) - mass.ln()).abs() < 1e-4, "{log_mass} for {}", mass.ln());
                picks.tokens.iter().zip(weights).for_each(|(t, w)| drawn[*t as usize] += f64::from(*w) * BUDGET as f64);
            }
        }
        for (h, drawn) in drawn.into_iter().enumerate() {
            let weight = |t: usize| if head.candidates.contains(&t) { (scale() * head.dot(h, t)).exp() } else { 0.0 };
            let total: f64 = (0..TOKENS).map(weight).sum();
            counts.push(drawn);
            probabilities.push((0..TOKENS).map(|t| weight(t) / total).collect::<Vector>());
        }
    }
    for (i, counts) in counts.iter().enumerate() {
        for (j, probabilities) in probabilities.iter().enumerate() {
            // Tokens with at least 5 expected draws; all others are pooled.
            let often = |t: &usize| draws * probabilities[*t] >= 5.0;
            let pooled = |of: &[f64], factor: f64| -> Vector {
                let mut cells: Vector = (0..TOKENS).filter(often).map(|t| of[t] * factor).collect();
                cells.push((0..TOKENS).filter(|t| !often(t)).map(|t| of[t] * factor).sum());
                cells
            };
            let (counts, expected) = (pooled(counts, 1.0), pooled(probabilities, draws));
            let (statistic, degrees) = (chi_square(&counts, &expected), counts.len() as f64 - 1.0);
            assert!(degrees > 50.0, "{degrees} tokens to judge by");
            let fits = statistic < quantile(degrees);
            assert_eq!(
                fits,
                i == j,
                "head {i} by the softmax of {j}: χ² = {statistic} at {degrees} degrees of freedom"
            );
        }
    }
}

/// With `proposal=value_norm` tokens are drawn in proportion to `w‖v‖`, and weigh `w/u` times their share of the draws.
#[test]
fn value_norms_are_part_of_what_is_drawn_by_and_taken_out_again() {
    const SEEDS: u64 = 60;
    const BUDGET: usize = 64;
    let scene = Scene::with_clusters();
    let spec = format!("oracle_sampling:budget={BUDGET},proposal=value_norm");
    let method = Scene::method(&spec, &Policy { sink: SINK, local: LOCAL, ..none() });
    let stats = scene.stats(&method);
    for place in [(0, 1), (1, 0)] {
        let head = scene.head(place.0, place.1, SINK..TOKENS - LOCAL);
        for h in 0..GROUP {
            let weight = |t: usize| if head.candidates.contains(&t) { (scale() * head.dot(h, t)).exp() } else { 0.0 };
            let mass: f64 = (0..TOKENS).map(weight).sum();
            let proposed: Vector = (0..TOKENS).map(|t| weight(t) * norm(&head.values[t])).collect();
            let all: f64 = proposed.iter().sum();
            let mut drawn = vec![0.0; TOKENS];
            for seed in 0..SEEDS {
                let Selection::PerHead(picks) = scene.picks(&method, &stats, place, &head.candidates, seed) else {
                    panic!("draws for each query head")
                };
                let Weighting::Direct { weights, log_mass } = &picks[h].weighting else { panic!("given weights") };
                assert!((f64::from(*log_mass) - mass.ln()).abs() < 1e-4, "{log_mass} for {}", mass.ln());
                let mut draws = 0.0;
                for (t, given) in picks[h].tokens.iter().map(|t| *t as usize).zip(weights) {
                    let times = f64::from(*given) * BUDGET as f64 * (proposed[t] / all) / (weight(t) / mass);
                    assert!((times - times.round()).abs() < 1e-3 && times > 0.5, "token {t}: {times} draws");
                    drawn[t] += times.round();
                    draws += times.round();
                }
                assert_eq!(draws, BUDGET as f64);
            }
            let total = (SEEDS * BUDGET as u64) as f64;
            let fits = |probabilities: &[f64]| {
                let often = |t: &usize| total * probabilities[*t] >= 5.0;
                let pooled = |of: &[f64], factor: f64| -> Vector {
                    let mut cells: Vector = (0..TOKENS).filter(often).map(|t| of[t] * factor).collect();
                    cells.push((0..TOKENS).filter(|t| !often(t)).map(|t| of[t] * factor).sum());
                    cells
                };
                let (counts, expected) = (pooled(&drawn, 1.0), pooled(probabilities, total));
                chi_square(&counts, &expected) < quantile(counts.len() as f64 - 1.0)
            };
            assert!(fits(&proposed.iter().map(|u| u / all).collect::<Vector>()), "{place:?}, head {h}");
            let by_weight: Vector = (0..TOKENS).map(|t| weight(t) / mass).collect();
            assert!(!fits(&by_weight), "the test can tell them apart: {place:?}, head {h}");
        }
    }
}

/// With `draw_from=all` no token is static: outputs are means of values drawn from the whole softmax (Definition 3.1), and their mean
/// over seeds is exact attention. The same holds for draws by value norms, and beside static tokens.
#[test]
fn draws_from_all_tokens_have_exact_attention_as_their_mean() {
    const SEEDS: u64 = 600;
    let scene = Scene::with_clusters();
    let policy = Policy { sink: SINK, local: LOCAL, ..none() };
    let exact = scene.outputs(&Scene::method("full", &policy));
    for (spec, is_all) in [
        ("oracle_sampling:budget=40,draw_from=all", true),
        ("oracle_sampling:budget=40,draw_from=all,proposal=value_norm", true),
        ("oracle_sampling:budget=40,proposal=value_norm", false),
        ("oracle_sampling:budget=40", false),
    ] {
        let method = Scene::method(spec, &policy);
        let mut outputs: Vec<Vec<Vector>> = Vec::new();
        let mut attended_last = 0;
        for seed in 0..SEEDS {
            let mut fork = IndexCache::new(scene.prefix.clone(), KvDtype::F32, seed).fork(&method, false).unwrap();
            let [key, value] = &scene.own[0];
            let mut out = vec![f32::NAN; HEADS * D];
            let picked = {
                let mut other = IndexCache::new(scene.prefix.clone(), KvDtype::F32, seed).fork(&method, false).unwrap();
                other.select(0, &scene.queries[0], key, value).unwrap()
            };
            fork.step(0, &scene.queries[0], key, value, &mut out).unwrap();
            outputs.push(vec![wide(&out).concat()]);
            for picked in &picked {
                assert_eq!(picked.exact.tokens(TOKENS + 1) == 0, is_all, "{spec}");
                let Some(Selection::PerHead(heads)) = &picked.selection else { panic!("{spec}: draws for each head") };
                attended_last += heads.iter().filter(|p| p.tokens.contains(&(TOKENS as u32))).count();
                if is_all && !spec.contains("value_norm") {
                    // The output depends on the weights only.
                    let Weighting::Direct { weights, .. } = &heads[0].weighting else { panic!("given weights") };
                    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5 && heads[0].tokens.len() <= 40);
                }
            }
        }
        assert_eq!(attended_last > 0, is_all, "{spec}: the current token is drawn like any other");
        let expected = exact[0].concat();
        let mut distance = 0.0;
        for (c, expected) in expected.iter().enumerate() {
            let values: Vector = outputs.iter().map(|out| out[0][c]).collect();
            let mean = values.iter().sum::<f64>() / SEEDS as f64;
            let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (SEEDS - 1) as f64).sqrt();
            let error = deviation / (SEEDS as f64).sqrt();
            assert!(error > 0.0, "{spec}: it is drawn");
            distance += ((mean - expected) / error).powi(2);
        }
        // For independent numbers this would be χ² with as many degrees of freedom; those of one head are dependent.
        assert!(distance < 2.0 * expected.len() as f64, "{spec}: {distance} for {}", expected.len());
    }
}

/// `random` draws distinct candidates with equal probability, anew for each head, step and layer.
#[test]
fn random_draws_every_candidate_alike() {
    const SEEDS: u64 = 400;
    const K: usize = 30;
    let scene = Scene::noise();
    for per in ["query_head", "kv_head"] {
        let method = Scene::method(&format!("random:k={K},per={per}"), &Policy { sink: SINK, local: LOCAL, ..none() });
        let stats = scene.stats(&method);
        let candidates = SINK..TOKENS - LOCAL;
        let (mut counts, mut distinct) = (vec![0.0; candidates.len()], BTreeSet::new());
        let mut sets = 0;
        for seed in 0..SEEDS {
            for place in (0..LAYERS).flat_map(|l| (0..KV_HEADS).map(move |h| (l, h))) {
                let heads = match scene.picks(&method, &stats, place, &candidates, seed) {
                    Selection::PerHead(heads) => heads,
                    Selection::Shared(picks) => vec![picks],
                };
                assert_eq!(heads.len(), if per == "kv_head" { 1 } else { GROUP });
                for picks in heads {
                    assert_eq!(picks.tokens.iter().collect::<BTreeSet<_>>().len(), K, "no token twice");
                    picks.tokens.iter().for_each(|t| counts[*t as usize - candidates.start] += 1.0);
                    sets += 1;
                    distinct.insert(picks.tokens);
                }
            }
        }
        assert_eq!(distinct.len(), sets, "no two heads, layers or seeds draw alike");
        let p = K as f64 / candidates.len() as f64;
        let expected = vec![sets as f64 * p; counts.len()];
        // Counts drawn without replacement vary less than Poisson counts, by a factor 1 − p.
        let statistic = chi_square(&counts, &expected) / (1.0 - p);
        let degrees = counts.len() as f64 - 1.0;
        assert!(statistic < quantile(degrees), "{per}: χ² = {statistic} at {degrees} degrees of freedom");
    }
}

/// With `weights=inverse`, the exponentials of drawn tokens divided by their sampling probabilities sum on average to
/// those of all candidates; unweighted, they sum to a share of that.
#[test]
fn random_tokens_by_inverse_probability_have_the_mass_of_all() {
    const DRAWS: u64 = 4000;
    let scene = Scene::noise();
    let candidates = SINK..TOKENS - LOCAL;
    let exponential = |token: u32| (f64::from(token) * 0.7).sin().exp();
    let all: f64 = candidates.clone().map(|t| exponential(t as u32)).sum();
    for (weights, share) in [("inverse", 1.0), ("one", 40.0 / candidates.len() as f64)] {
        let spec = format!("random:k=40,weights={weights},per=kv_head");
        let method = Scene::method(&spec, &Policy { sink: SINK, local: LOCAL, ..none() });
        let stats = scene.stats(&method);
        let mass = |seed: u64| -> f64 {
            let Selection::Shared(picks) = scene.picks(&method, &stats, (0, 0), &candidates, seed) else {
                panic!("one set for the group")
            };
            let bias = match &picks.weighting {
                Weighting::LogBias(bias) => bias.clone(),
                _ => vec![0.0; picks.tokens.len()],
            };
            picks.tokens.iter().zip(bias).map(|(t, log_u)| exponential(*t) / f64::from(log_u).exp()).sum()
        };
        let masses: Vec<f64> = (0..DRAWS).map(mass).collect();
        let mean = masses.iter().sum::<f64>() / DRAWS as f64;
        let deviation = (masses.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (DRAWS - 1) as f64).sqrt();
        let error = deviation / (DRAWS as f64).sqrt();
        assert!((mean - share * all).abs() < 4.0 * error, "{weights}: {mean} ± {error} for {}", share * all);
        assert!(error < 0.01 * share * all, "{error} tells something");
    }
}

/// Every pass over scores is counted, 4 bytes a score: top-k takes two passes, draws take three. A share is found by sorting short
/// rows, whose weights are written and read too.
#[test]
fn passes_over_scores_are_counted() {
    let scene = Scene::noise();
    let (candidates, policy) = (SINK..TOKENS - LOCAL, Policy { sink: SINK, local: LOCAL, ..none() });
    // 289 scores, or those of 42 pages, are sorted in 9 and 6 rounds of merging.
    for (spec, scores, passes) in [
        ("topk:k=17", GROUP * 289, 2),
        ("topk:k=17,per=kv_head", 289, 2),
        ("topk:k=0", 0, 2),
        ("topp:p=0.5", GROUP * 289, 7 + 9),
        ("quest:page=7,k=30", GROUP * 42, 2),
        ("quest:page=7,pick=topp,per=kv_head", 42, 7 + 6),
        ("oracle_sampling:budget=9", GROUP * 289, 3),
    ] {
        let method = Scene::method(spec, &policy);
        let (_, cost) = scene.counted_picks(&method, &scene.stats(&method), (1, 1), &candidates, SEED);
        assert_eq!(cost.select_bytes as usize, 4 * scores * passes, "{spec}");
    }
}
