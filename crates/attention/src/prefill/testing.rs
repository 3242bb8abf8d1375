//! Layers of random numbers, and the tokens that methods attend in them.

use crate::SoftmaxScale;
use crate::calibration::collector::PrefillChunk;
use crate::cost::{Cost, LayerCosts};
use crate::kv::{KvDtype, LayerKv};
use crate::methods::{METHODS, configure};
use crate::prefill::cost::by_head;
use crate::types::seed::head_seed;
use crate::{AttentionSpec, LayerSpecs};
use crate::{
    Configured, LayerShare, Mask, Masks, Policy, PrefillPattern, PromptPlan, QueryBlock, Rotation, RowSlices,
    SharedTokens, SparsePrefill, TokenSlice, WeightedToken, expand_grid,
};
use proptest::prelude::*;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use spattn_kernels::prefill::RowVisibility;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Width of a head.
pub(crate) const D: usize = 16;

pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.5..1.5)).collect()
}

pub(crate) fn method(spec: &str, policy: &Policy) -> Configured {
    configure(&expand_grid(spec).unwrap()[0], policy).unwrap()
}

/// The methods that read prompts by such a pattern, need no artefact, and appear in none of the specs.
pub(crate) fn missing(specs: &[&str], is_meant: fn(&PrefillPattern<'_>) -> bool) -> Vec<&'static str> {
    let reads = |name: &str| {
        let method = method(name, &Policy::default()).method;
        method.calibration().is_none() && method.prefill_pattern().is_some_and(|pattern| is_meant(&pattern))
    };
    let is_named = |name: &str| specs.iter().any(|spec| spec.split(':').next() == Some(name));
    METHODS.iter().map(|entry| entry.name).filter(|name| reads(name) && !is_named(name)).collect()
}

pub(crate) fn assert_close(ours: &[f32], expected: &[f32], what: &str) {
    assert_eq!(ours.len(), expected.len());
    let worst = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{what}: off by {worst}");
}

/// The queries, keys and values of one layer.
pub(crate) struct Layer {
    pub(crate) kv: LayerKv,
    /// Queries `[token][head][D]`.
    pub(crate) queries: Vec<f32>,
    pub(crate) heads: usize,
}

/// Seed of the context.
pub(crate) const SEED: u64 = 3;

impl Layer {
    /// A layer of random numbers.
    pub(crate) fn new(tokens: usize, heads: usize, kv_heads: usize) -> Self {
        let mut kv = LayerKv::new(KvDtype::F32, kv_heads, D, tokens);
        (0..tokens as u64).for_each(|t| kv.append(&noise(kv_heads * D, t), &noise(kv_heads * D, 50_000 + t)));
        Self { kv, queries: noise(tokens * heads * D, 99), heads }
    }

    /// A layer with one KV head of these keys, one query head of these queries, and random values.
    pub(crate) fn of(keys: &[Vec<f32>], queries: &[Vec<f32>]) -> Self {
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, keys.len());
        (0..).zip(keys).for_each(|(t, key)| kv.append(key, &noise(D, 50_000 + t)));
        Self { kv, queries: queries.concat(), heads: 1 }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.kv.tokens()
    }

    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv.keys.kv_heads()
    }

    /// Returns the query `[D]`.
    pub(crate) fn query(&self, position: usize, head: usize) -> &[f32] {
        &self.queries[(position * self.heads + head) * D..][..D]
    }

    /// Returns the keys `[token][D]` that a query head reads.
    pub(crate) fn keys(&self, head: usize) -> Vec<Vec<f32>> {
        self.kv.keys.head(head / self.group()).to_f32().chunks(D).map(<[f32]>::to_vec).collect()
    }

    /// Returns the scaled `q·k`.
    pub(crate) fn logit(&self, position: usize, head: usize, key: &[f32]) -> f64 {
        let pairs = self.query(position, head).iter().zip(key);
        pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()
    }

    /// Attends all tokens in chunks of about `most` rows; returns the output and the costs.
    pub(crate) fn attend(&self, method: &Configured, most: usize) -> (Vec<f32>, LayerCosts) {
        self.attend_moved(method, most, None)
    }

    /// Like [`attend`](Self::attend), with the model's rotation.
    pub(crate) fn attend_moved(
        &self,
        method: &Configured,
        most: usize,
        rotation: Option<Arc<dyn Rotation>>,
    ) -> (Vec<f32>, LayerCosts) {
        let mut sparse = SparsePrefill::new(method, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), SEED)
            .unwrap()
            .with_rotation(rotation);
        let (width, mut out) = (self.heads * D, Vec::new());
        for (i, queries) in self.queries.chunks(sparse.chunk_rows(most) * width).enumerate() {
            let first = i * sparse.chunk_rows(most);
            let mut kv = self.kv.clone();
            kv.truncate(first + queries.len() / width, self.tokens());
            let mut attended = vec![f32::NAN; queries.len()];
            let chunk = PrefillChunk::new(0, first, queries, self.heads, &kv);
            sparse.attend(&chunk, &mut attended).unwrap();
            out.extend(attended);
        }
        (out, sparse.into_costs())
    }

    /// Computes, token by token, the softmax over the tokens for which `sees(position, head, token)` gives a bias on
    /// the logit.
    pub(crate) fn reference(&self, sees: impl Fn(usize, usize, usize) -> Option<f32>) -> Vec<f32> {
        let by_head = |head: usize| (self.keys(head), self.kv.values.head(head / self.group()).to_f32());
        let (stored, mut out): (Vec<_>, _) = ((0..self.heads).map(by_head).collect(), Vec::new());
        for (position, head) in (0..self.tokens()).flat_map(|position| (0..self.heads).map(move |h| (position, h))) {
            let (keys, values) = &stored[head];
            let seen = (0..=position).filter_map(|token| Some((token, sees(position, head, token)?)));
            let weighted = |(token, bias): (usize, f32)| {
                (token, (self.logit(position, head, &keys[token]) + f64::from(bias)).exp())
            };
            let weights: Vec<(usize, f64)> = seen.map(weighted).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            let channel = |c: usize| {
                let values = weights.iter().map(|(token, weight)| weight * f64::from(values[token * D + c]));
                (values.sum::<f64>() / sum) as f32
            };
            out.extend((0..D).map(channel));
        }
        out
    }

    fn block<'b>(
        &'b self,
        method: &'b Configured,
        kv_head: usize,
        (first, rows): (usize, usize),
        queries: &'b [f32],
    ) -> QueryBlock<'b> {
        QueryBlock {
            layer: 0,
            kv_head,
            group: self.group(),
            queries,
            rows,
            first,
            d: D,
            scale: SoftmaxScale::inverse_root(D),
            keys: self.kv.keys.head(kv_head),
            grouped: None,
            policy: &method.policy,
            share: LayerShare::default(),
            seed: head_seed(SEED, 0, kv_head),
        }
    }

    /// Returns the masks of each block for each query head, and the cost of computing them.
    pub(crate) fn masks(&self, method: &Configured) -> (Vec<Vec<Mask>>, Cost) {
        let pattern = method.method.prefill_pattern().expect("a mask");
        let (kv_heads, tokens, mut cost) = (self.kv.keys.kv_heads(), self.tokens(), Cost::default());
        let group = self.group();
        let of = |kv_head: usize, first: usize, rows: usize| {
            let queries = &self.queries[first * self.heads * D..][..rows * self.heads * D];
            by_head(queries, self.heads, D, kv_head * group..(kv_head + 1) * group)
        };
        let prompts: Vec<Vec<f32>> = (0..kv_heads).map(|kv_head| of(kv_head, 0, tokens)).collect();
        let mut plans: Vec<PromptPlan> = Vec::new();
        if let PrefillPattern::Whole(mask) = pattern {
            for (kv_head, queries) in prompts.iter().enumerate() {
                plans.push(mask.plan(&self.block(method, kv_head, (0, tokens), queries), &mut cost));
            }
        }
        let mut all = Vec::new();
        for first in (0..tokens).step_by(pattern.query_rows()) {
            let rows = pattern.query_rows().min(tokens - first);
            let mut of_block = Vec::new();
            for kv_head in 0..kv_heads {
                let queries = of(kv_head, first, rows);
                let block = self.block(method, kv_head, (first, rows), &queries);
                let masks = match pattern {
                    PrefillPattern::Blocks(mask) => mask.masks(&block, &mut cost),
                    _ => plans[block.kv_head](&block),
                };
                match masks {
                    Masks::Shared(mask) => of_block.extend(vec![mask; group]),
                    Masks::PerHead(masks) => of_block.extend(masks),
                }
            }
            all.push(of_block);
        }
        (all, cost)
    }

    /// Returns what each row of each query head sees, `[head][position]`: tokens, ascending, and the biases on their
    /// logits.
    pub(crate) fn seen(&self, method: &Configured) -> Vec<Vec<Vec<(usize, f32)>>> {
        let rows = method.method.prefill_pattern().expect("a mask").query_rows();
        let mut seen = vec![Vec::new(); self.heads];
        for (block, masks) in self.masks(method).0.iter().enumerate() {
            for (seen, mask) in seen.iter_mut().zip(masks) {
                seen.extend(resolved(mask, block * rows));
            }
        }
        seen
    }
}

/// Checks that each row sees what `expected(head, position)` returns: tokens, with the biases on their logits.
pub(crate) fn assert_sees(
    layer: &Layer,
    spec: &str,
    policy: &Policy,
    expected: impl Fn(usize, usize) -> BTreeMap<usize, f32>,
) {
    for (head, rows) in layer.seen(&method(spec, policy)).iter().enumerate() {
        assert_eq!(rows.len(), layer.tokens());
        for (position, seen) in rows.iter().enumerate() {
            let (seen, expected) = (seen.iter().copied().collect::<BTreeMap<_, _>>(), expected(head, position));
            let tokens = |seen: &BTreeMap<usize, f32>| seen.keys().copied().collect::<Vec<_>>();
            assert_eq!(tokens(&seen), tokens(&expected), "{spec} with {policy:?}: head {head}, row {position}");
            let off = seen.values().zip(expected.values()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-5, "{spec}: head {head}, row {position}: biases are off by {off}");
        }
    }
}

/// Tokens that represent only themselves.
pub(crate) fn plain(tokens: impl Iterator<Item = usize>) -> BTreeMap<usize, f32> {
    tokens.map(|token| (token, 0.0)).collect()
}

/// Whether a row sees a token as part of the sink or of the window, which contains at least the row itself.
pub(crate) fn is_static(policy: &Policy, position: usize, token: usize) -> bool {
    token < policy.sink || token + policy.local.max(1) > position
}

/// Computes in `f64` the softmax over the tokens up to a row.
pub(crate) fn softmax_up_to(layer: &Layer, position: usize, head: usize) -> Vec<f64> {
    let keys = layer.keys(head);
    let weights: Vec<f64> = keys[..=position].iter().map(|key| layer.logit(position, head, key).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// FLOPs of scoring that a method counts for the prefill of a layer.
pub(crate) fn score_flops(layer: &Layer, spec: &str, policy: &Policy) -> usize {
    layer.attend(&method(spec, policy), 64).1.total(|_| true).score_flops as usize
}

/// The tokens that each row of a mask attends, with the biases on their logits.
pub(crate) fn resolved(mask: &Mask, first: usize) -> Vec<Vec<(usize, f32)>> {
    let (tokens, visibility) = mask.resolve(first);
    let of_row = |sight: &RowVisibility| {
        let plain = (0..sight.common).chain(sight.stretch.clone()).map(|place| (place, 0.0));
        let all = plain.chain(sight.singles.iter().map(|single| (single.place, single.log_weight)));
        let mut seen: Vec<(usize, f32)> = all.map(|(place, bias)| (tokens[place] as usize, bias)).collect();
        seen.sort_by_key(|(token, _)| *token);
        seen
    };
    visibility.iter().map(of_row).collect()
}

/// Masks with arbitrary parts, which may overlap and may lie after the rows; some have slices of shared tokens.
pub(crate) fn any_mask() -> impl Strategy<Value = (usize, Mask)> {
    prop_oneof![mask_of_tokens(), mask_of_slices()]
}

/// Masks with slices of shared tokens, among which are tokens of the sink, of the bands and after the rows.
fn mask_of_slices() -> impl Strategy<Value = (usize, Mask)> {
    const LISTS: usize = 3;
    (0usize..90, 1usize..40, 0usize..60).prop_flat_map(|(first, rows, sink)| {
        let end = first + rows;
        let starts = proptest::collection::vec(0..end + 3, rows);
        // The list of each token, or none; its weight and its group.
        let token = (0..LISTS + 1, -2.0f32..2.0, prop_oneof![0u32..3, Just(SharedTokens::NO_GROUP)]);
        let tokens = proptest::collection::vec(token, end);
        let slice = (0.0..1.0, 0.0..1.0, proptest::option::of(0u32..3));
        let rows = proptest::collection::vec(proptest::collection::vec(slice, LISTS), rows);
        (Just(first), starts, tokens, rows).prop_map(move |(first, mut starts, tokens, rows)| {
            starts.sort_unstable();
            let mut shared = SharedTokens::default();
            let lists: Vec<_> = (0..LISTS)
                .map(|list| {
                    let own = tokens.iter().zip(0u32..).filter(|((of, ..), _)| *of == list);
                    shared.push(own.map(|((_, log_weight, group), token)| {
                        (WeightedToken { token, log_weight: *log_weight }, *group)
                    }))
                })
                .collect();
            let slice = |(list, (a, b, without)): (&std::ops::Range<u32>, (f64, f64, Option<u32>))| {
                let place = |share: f64| list.start + (share * (list.len() + 1) as f64) as u32;
                TokenSlice { range: place(a).min(place(b))..place(a).max(place(b)), without }
            };
            let rows = rows.into_iter().map(|row| lists.iter().zip(row).map(slice).collect()).collect();
            (first, Mask::sliced(sink.min(end) / 2, starts, RowSlices { of: Arc::new(shared), rows }))
        })
    })
}

fn mask_of_tokens() -> impl Strategy<Value = (usize, Mask)> {
    (0usize..90, 1usize..40).prop_flat_map(|(first, rows)| {
        let end = first + rows;
        let starts = proptest::collection::vec(0..end + 3, rows);
        let set = |most: usize| proptest::collection::btree_set(0..end, 0..most);
        let own = move || proptest::collection::btree_map(0..end as u32, -2.0f32..2.0, 0..12);
        let own = prop_oneof![Just(0), Just(rows)].prop_flat_map(move |rows| proptest::collection::vec(own(), rows));
        (Just(first), starts, set(30), set(20), own, 0usize..60).prop_map(
            |(first, starts, common, slashes, own, sinks)| {
                let (end, mut starts) = (first + starts.len(), starts);
                starts.sort_unstable();
                let mut common: std::collections::BTreeSet<usize> = common;
                common.extend(0..sinks.min(end) / 2);
                let own = own.into_iter().map(|row| {
                    row.into_iter().map(|(token, log_weight)| WeightedToken { token, log_weight }).collect()
                });
                let common = common.into_iter().map(|token| token as u32).collect();
                (
                    first,
                    Mask { common, starts, slashes: slashes.into_iter().collect(), own: own.collect(), slices: None },
                )
            },
        )
    })
}
