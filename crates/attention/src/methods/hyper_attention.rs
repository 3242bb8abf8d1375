//! `hyper_attention`: prefill by sorted LSH blocks and uniformly sampled tokens, in a causal recursion (HyperAttention,
//! Han et al. 2023).
//!
//! The causal map is halved recursively (Algorithm 4): the earlier and the later half of a stretch of tokens attend
//! within themselves, and the queries of the later half attend the keys of the earlier one without a mask, by Algorithm
//! 3. That algorithm sorts queries and keys by a hash; the queries of the `i`-th block of the sorted order attend the
//! keys of the `i`-th block (Algorithm 1, sortLSH). It draws `sample` other keys uniformly, each with the weight of the
//! keys that it stands for. Stretches of up to `min_seq_len` tokens attend exactly. Nothing is stored: decoding is dense.
//!
//! The hash takes the signs of a vector's products with `lsh_num_projs` random directions, drawn once for all layers
//! and heads. Its number is the rank of these signs in the Gray code, so that adjacent buckets differ in one sign
//! (Definition 1 of the paper). The authors' code applies the code itself instead of its inverse; with three or more
//! directions, adjacent buckets then differ in several signs.
//!
//! Decisions where the paper leaves room, most of them as in the authors' code:
//! - Draws are with replacement, one set for all queries of a half. A key drawn `c` times in `m` draws from `n` keys
//!   has the weight `c·n/m`, added to its logit as a logarithm; draws within the query's own block are left out.
//! - A half no longer than a block has no draws. A half with fewer than `min_seq_len` queries is attended in full. Of
//!   an odd number of tokens the earlier half has one more; the code pads with a zero.
//! - A density is met by the number of draws. Blocks and exact stretches are its floor; smaller ones lower it.
//! - Sink and window are exact for every row. A drawn static token then has weight 1, so that no token counts twice.
//!   Few of the tokens that a draw stands for are static, so weights are not changed.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::ParamInfo;
use super::lines::{Static, all_pairs, of_each_head};
use super::planes::RandomPlanes;
use super::prefill_only::PrefillOnly;
use crate::cost::Cost;
use crate::methods::entry::{MethodEntry, Preset, SEED};
use crate::{
    Mask, Masks, PromptMask, PromptPlan, QueryBlock, Role, RowSlices, SharedTokens, SliceBounds, TokenSlice, Tuned,
    WeightedToken, least_reaching, mix_seed,
};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "hyper_attention",
    role: Role::Method,
    about: "blocks of queries and keys sorted by a hash, and uniformly sampled tokens",
    reference: "HyperAttention (Han et al. 2023, arXiv:2310.05869)",
    params: &[
        ParamInfo { key: "sample", default: "256", about: "draws from each half that is attended without a mask" },
        ParamInfo { key: "block", default: "64", about: "tokens a block of the sorted order" },
        ParamInfo { key: "lsh_num_projs", default: "7", about: "directions of the hash, 1 to 16" },
        ParamInfo { key: "min_seq_len", default: "32", about: "tokens up to which a stretch is attended exactly" },
        ParamInfo { key: "seed", default: "1", about: "of the directions, which all layers and heads share" },
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sample", "1024"), ("block", "64"), ("lsh_num_projs", "7"), ("min_seq_len", "32")],
            source: "HiP appendix D: lsh_num_projs 7, block_size 64, sample_size 1024, min_seq_len 32",
        },
        Preset {
            name: "repo",
            values: &[("sample", "256"), ("block", "256"), ("lsh_num_projs", "7"), ("min_seq_len", "4096")],
            source: "HyperAttention's code, models/attention/hyper_attn.py: its defaults",
        },
    ],
    build: |params| {
        let sample = params.tuned_within("sample", 256, 0..=MOST_DRAWS)?;
        let block = params.get_minor("block", 64)?;
        let directions = params.get_minor_within("lsh_num_projs", 7, 1..=16)?;
        let least = params.get_minor("min_seq_len", 32)?;
        let planes = RandomPlanes::new(directions, params.get_minor_as("seed", 1, SEED)?);
        Ok(Arc::new(PrefillOnly(HyperAttention { sample, block, least, planes })))
    },
};

/// Largest number of draws from a half; a prompt has many halves. Published settings have up to 1,024.
const MOST_DRAWS: usize = 1 << 16;

/// Sparse prefill by the recursion; holds the hyperplanes of its hash.
struct HyperAttention {
    sample: Tuned<usize>,
    block: usize,
    /// `min_seq_len`.
    least: usize,
    planes: RandomPlanes,
}

/// Two halves of a stretch of tokens: the later queries attend the earlier keys without a mask.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Halves {
    keys: Range<usize>,
    queries: Range<usize>,
}

/// Two halves, sorted and sampled.
struct Sorted {
    queries: Range<usize>,
    /// Block of each query in the order of the queries' hashes.
    query_blocks: Vec<u32>,
    /// Place of the keys among the shared tokens: block after block of the order by hash.
    keys: Range<u32>,
    /// Place of the draws, each in the group of its block.
    draws: Range<u32>,
}

/// All halves of a prompt at one query head.
struct Head {
    shared: Arc<SharedTokens>,
    halves: Vec<Sorted>,
}

/// Returns the halves that are sorted and sampled, in any order, and for each token the start of the stretch that it attends exactly.
fn recursion(tokens: usize, least: usize) -> (Vec<Halves>, Vec<usize>) {
    let (mut sorted, mut starts) = (Vec::new(), vec![0; tokens]);
    let mut stretches = vec![(0, tokens)];
    while let Some((first, end)) = stretches.pop() {
        let stretch = first..end;
        match halves_of(&stretch, least) {
            Some(halves) => {
                stretches.extend([(first, halves.keys.end), (halves.keys.end, end)]);
                sorted.push(halves);
            }
            None => starts[stretch].fill(first),
        }
    }
    (sorted, starts)
}

/// The halves of a stretch; `None` if the stretch attends exactly within itself.
fn halves_of(stretch: &Range<usize>, least: usize) -> Option<Halves> {
    let middle = stretch.start + stretch.len().div_ceil(2);
    let halves = Halves { keys: stretch.start..middle, queries: middle..stretch.end };
    (stretch.len() > least && halves.queries.len() >= least).then_some(halves)
}

/// Rank of a code in the Gray sequence, in which adjacent codes differ in one bit.
fn gray_rank(code: u64) -> u64 {
    let mut rank = code;
    for shift in [1, 2, 4, 8, 16, 32] {
        rank ^= rank >> shift;
    }
    rank
}

/// Sorts the items of `range` by hash. Returns the number of each item's block of `size` items, and the sorted items.
fn sorted_blocks(hashes: &[u64], range: Range<usize>, size: usize) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (range.start as u32..range.end as u32).collect();
    order.sort_by_key(|item| hashes[*item as usize]);
    let mut blocks = vec![0; range.len()];
    order.iter().enumerate().for_each(|(rank, item)| blocks[*item as usize - range.start] = (rank / size) as u32);
    (blocks, order)
}

impl HyperAttention {
    /// Hashes of vectors `[row][d]`.
    fn hashes(&self, vectors: &[f32], d: usize, cost: &mut Cost) -> Vec<u64> {
        let planes = self.planes.of_width(d);
        let mut bits = vec![0; vectors.len() / d * planes.words()];
        planes.side_bits(vectors, &mut bits);
        cost.score_flops += 2 * (vectors.len() * planes.count()) as u64;
        bits.chunks_exact(planes.words()).map(|words| gray_rank(words[0])).collect()
    }

    /// Largest number of draws from the keys of two halves that differ; `sample` is the number asked for.
    fn draws(&self, Halves { keys, queries }: &Halves, sample: usize) -> usize {
        match self.sample {
            _ if queries.len() <= self.block => 0,
            Tuned::Value(_) => sample,
            // At 8 draws per key, all but 0.03 % of the keys are drawn.
            Tuned::Density(_) => sample.min(8 * keys.len()),
        }
    }

    /// Sorts the keys and queries of two halves and draws from the keys. Adds the keys and the draws to `shared`.
    fn sorted(
        &self,
        halves: &Halves,
        (keys, queries): (&[u64], &[u64]),
        (sample, seed): (usize, u64),
        shared: &mut SharedTokens,
    ) -> Sorted {
        let (key_blocks, mut order) = sorted_blocks(keys, halves.keys.clone(), self.block);
        let (query_blocks, _) = sorted_blocks(queries, halves.queries.clone(), self.block);
        let mut places = order.chunks_mut(self.block).map(|block| {
            block.sort_unstable();
            shared.push(block.iter().map(|token| (WeightedToken::plain(*token), SharedTokens::NO_GROUP)))
        });
        let first = places.next().map_or(0, |place| place.start);
        let keys = first..first + halves.keys.len() as u32;
        places.for_each(drop);
        let draws = draw(halves.keys.clone(), self.draws(halves, sample), mix_seed(seed, halves.queries.start as u64));
        let group = |drawn: &WeightedToken| key_blocks[drawn.token as usize - halves.keys.start];
        let draws = shared.push(draws.into_iter().map(|drawn| (drawn, group(&drawn))));
        Sorted { queries: halves.queries.clone(), query_blocks, keys, draws }
    }

    /// Number of draws that meets a density. A row attends its exact tokens, its blocks, and the expected number of
    /// distinct tokens among the draws.
    fn solved(&self, density: f64, tokens: usize, fixed: Static) -> usize {
        let (halves, starts) = recursion(tokens, self.least);
        let exact = |position: usize| exact_start(&starts, fixed, position);
        let (mut always, mut sampled) = (0.0, Vec::new());
        for position in 0..tokens {
            always += (fixed.sink.min(exact(position)) + position + 1 - exact(position)) as f64;
        }
        for Halves { keys, queries } in &halves {
            let picked: usize = queries
                .clone()
                .map(|query| keys.end.min(exact(query)).saturating_sub(keys.start.max(fixed.sink)))
                .sum();
            let in_block = self.block.min(keys.len()) as f64 / keys.len() as f64;
            always += picked as f64 * in_block;
            if queries.len() > self.block {
                sampled.push((picked as f64 * (1.0 - in_block), keys.len() as f64));
            }
        }
        let met = |draws: usize| {
            sampled.iter().map(|(pairs, keys)| pairs * (1.0 - (1.0 - 1.0 / keys).powf(draws as f64))).sum::<f64>()
        };
        least_reaching(0..=8 * tokens, density.min(0.999) * all_pairs(tokens) as f64 - always, met)
    }
}

/// Draws `count` tokens from a range with replacement; returns the distinct ones with the logarithms of their weights.
fn draw(range: Range<usize>, count: usize, seed: u64) -> Vec<WeightedToken> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens: Vec<u32> = (0..count).map(|_| rng.random_range(range.start as u32..range.end as u32)).collect();
    tokens.sort_unstable();
    let weight = |drawn: &[u32]| WeightedToken {
        token: drawn[0],
        log_weight: (drawn.len() as f64 * range.len() as f64 / count as f64).ln() as f32,
    };
    tokens.chunk_by(|a, b| a == b).map(weight).collect()
}

/// First token of the stretch that a row attends exactly, by the recursion or by its window; it never decreases from row to row.
fn exact_start(starts: &[usize], fixed: Static, position: usize) -> usize {
    starts[position].min(fixed.start(position))
}

impl Sorted {
    /// The tokens of the earlier half that a query of the later half attends: its block, and the draws from others.
    fn slices(&self, query: usize, size: usize) -> [TokenSlice; 2] {
        let block = self.query_blocks[query - self.queries.start];
        let place = |block: usize| (self.keys.start as usize + block * size).min(self.keys.end as usize) as u32;
        let own = place(block as usize)..place(block as usize + 1);
        [TokenSlice { range: own, without: None }, TokenSlice { range: self.draws.clone(), without: Some(block) }]
    }
}

impl Head {
    /// The mask of some rows, each of which attends its stretch from `starts` on.
    fn mask(&self, rows: &Range<usize>, sink: usize, starts: Vec<usize>, size: usize) -> Mask {
        let meets = |sorted: &&Sorted| sorted.queries.start < rows.end && rows.start < sorted.queries.end;
        let here: Vec<&Sorted> = self.halves.iter().filter(meets).collect();
        let of_row = |row: usize| {
            let of_halves = here.iter().filter(|sorted| sorted.queries.contains(&row));
            of_halves.flat_map(|sorted| sorted.slices(row, size)).filter(|slice| !slice.range.is_empty()).collect()
        };
        Mask::sliced(sink, starts, RowSlices { of: self.shared.clone(), rows: rows.clone().map(of_row).collect() })
    }
}

impl PromptMask for HyperAttention {
    fn query_rows(&self) -> usize {
        64
    }

    /// A row has most slices if it is the last, which is in the later half at each level of the recursion.
    fn slice_bounds(&self, tokens: usize) -> SliceBounds {
        let (halves, _) = recursion(tokens, self.least);
        let sample = match self.sample {
            Tuned::Value(sample) => sample,
            Tuned::Density(_) => usize::MAX,
        };
        let of_halves = |halves: &Halves| halves.keys.len() + self.draws(halves, sample).min(halves.keys.len());
        let of_last = halves.iter().filter(|halves| halves.queries.end == tokens).count();
        SliceBounds { tokens: halves.iter().map(of_halves).sum(), slices: 2 * of_last }
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let (d, tokens) = (prompt.d, prompt.rows);
        let fixed = Static::new(prompt.policy, tokens);
        let sample = match self.sample {
            Tuned::Value(sample) => sample,
            Tuned::Density(density) => self.solved(density, tokens, fixed),
        };
        let (halves, starts) = recursion(tokens, self.least);
        let keys = self.hashes(&prompt.keys.slice(0..tokens, d).to_f32(), d, cost);
        let heads = of_each_head(prompt.group, cost, |head, cost| {
            let queries = self.hashes(prompt.head(head), d, cost);
            let seed = mix_seed(prompt.seed, head as u64);
            let mut shared = SharedTokens::default();
            let sorted = |halves| self.sorted(halves, (&keys, &queries), (sample, seed), &mut shared);
            let halves = halves.iter().map(sorted).collect();
            Head { shared: Arc::new(shared), halves }
        });
        Box::new(move |block| {
            let rows = block.first..block.first + block.rows;
            let exact: Vec<usize> = rows.clone().map(|position| exact_start(&starts, fixed, position)).collect();
            let mask = |head: &Head| head.mask(&rows, fixed.sink.min(rows.end), exact.clone(), self.block);
            Masks::PerHead(heads.iter().map(mask).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::planes::gaussians;
    use super::{draw, gray_rank};
    use crate::prefill::testing::{D, Layer, is_static, method, score_flops};
    use crate::{Policy, PrefillPattern};
    use std::collections::{BTreeMap, BTreeSet};

    /// All codes in the order of the reflected Gray code, by its definition.
    fn gray_codes(bits: usize) -> Vec<u64> {
        let mut codes = vec![0];
        for bit in 0..bits {
            let reflected: Vec<u64> = codes.iter().rev().map(|code| code + (1 << bit)).collect();
            codes.extend(reflected);
        }
        codes
    }

    #[test]
    fn neighbouring_buckets_differ_in_one_sign() {
        let codes = gray_codes(7);
        assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), 128);
        for (place, code) in codes.iter().enumerate() {
            assert_eq!(gray_rank(*code), place as u64);
        }
        assert!(codes.windows(2).all(|pair| (pair[0] ^ pair[1]).count_ones() == 1));
    }

    /// The halves `[first, middle, end]` that meet without a mask, and the stretches that attend exactly, by recursion.
    fn halves(first: usize, end: usize, least: usize, sorted: &mut Vec<[usize; 3]>, exact: &mut Vec<(usize, usize)>) {
        let (tokens, queries) = (end - first, (end - first) / 2);
        if tokens <= least || queries < least {
            exact.push((first, end));
            return;
        }
        let middle = end - queries;
        sorted.push([first, middle, end]);
        halves(first, middle, least, sorted, exact);
        halves(middle, end, least, sorted, exact);
    }

    /// The block of each item of a range in the order by hash.
    fn blocks(vector: impl Fn(usize) -> Vec<f32>, first: usize, end: usize, size: usize) -> BTreeMap<usize, usize> {
        let (normals, codes) = (gaussians(7 * D, 1), gray_codes(7));
        let hash = |item: usize| {
            let x = vector(item);
            let dot = |normal: &[f32]| normal.iter().zip(&x).map(|(n, x)| f64::from(*n) * f64::from(*x)).sum::<f64>();
            let signs = normals.chunks(D).enumerate().map(|(bit, normal)| u64::from(dot(normal) > 0.0) << bit);
            let code: u64 = signs.sum();
            codes.iter().position(|known| *known == code).unwrap()
        };
        let mut order: Vec<(usize, usize)> = (first..end).map(|item| (hash(item), item)).collect();
        order.sort_unstable();
        order.iter().enumerate().map(|(rank, (_, item))| (*item, rank / size)).collect()
    }

    #[test]
    fn slices_and_shared_tokens_are_no_more_than_their_bounds() {
        let policy = Policy { sink: 0, local: 0, ..Policy::default() };
        for (sample, block, least) in [(0, 8, 1), (5, 2, 3), (1000, 16, 10), (7, 64, 32)] {
            let spec = format!("hyper_attention:sample={sample},block={block},min_seq_len={least}");
            for tokens in [1, 2, 31, 64, 65, 200, 231] {
                let method = method(&spec, &policy);
                let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else {
                    panic!("a planned mask")
                };
                let (masks, _) = Layer::new(tokens, 4, 2).masks(&method);
                let slices: Vec<_> = masks.iter().flatten().filter_map(|mask| mask.slices.as_ref()).collect();
                let bounds = mask.slice_bounds(tokens);
                let most = slices.iter().map(|slices| slices.of.tokens().len()).max().unwrap();
                assert!(most <= bounds.tokens, "{spec}, {tokens} tokens: {most} of {bounds:?}");
                assert!(sample > 0 || most == bounds.tokens, "{spec}, {tokens} tokens: {most} of {bounds:?}");
                let most = slices.iter().flat_map(|slices| &slices.rows).map(Vec::len).max().unwrap();
                assert!(most <= bounds.slices, "{spec}, {tokens} tokens: {most} of {bounds:?}");
                let levels = (0..).scan(tokens, |left, _| (*left > least && *left / 2 >= least).then(|| *left /= 2));
                assert_eq!(bounds.slices, 2 * levels.count(), "{spec}, {tokens} tokens");
            }
        }
    }

    #[test]
    fn rows_see_their_block_of_the_order_and_draws_that_stand_for_the_rest() {
        for (tokens, heads, kv_heads) in [(300, 4, 2), (129, 1, 1), (20, 2, 1)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            // Numbers of draws are prime, so no drawn token has weight 1: an attended token with weight 1 was not drawn.
            for (size, sample, least, (sink, local)) in [
                (8, 13, 32, (0, 0)),
                (8, 197, 10, (0, 0)),
                (16, 31, 20, (5, 25)),
                (64, 41, 32, (0, 0)),
                (8, 0, 8, (2, 2)),
            ] {
                let policy = Policy { sink, local, ..Policy::default() };
                let spec = format!("hyper_attention:sample={sample},block={size},min_seq_len={least}");
                let seen = layer.seen(&method(&spec, &policy));
                let (mut sorted, mut exact) = (Vec::new(), Vec::new());
                halves(0, tokens, least, &mut sorted, &mut exact);
                for head in 0..heads {
                    let keys = layer.keys(head);
                    // For each row, the tokens with a weight other than 1.
                    let mut drawn: Vec<BTreeMap<usize, f32>> = Vec::new();
                    for (position, seen) in seen[head].iter().enumerate() {
                        drawn.push(seen.iter().filter(|(_, bias)| *bias != 0.0).copied().collect());
                        for (first, end) in exact.iter().filter(|(first, end)| (*first..*end).contains(&position)) {
                            let here = |token: &usize| (*first..*end).contains(token);
                            let seen: Vec<usize> = seen.iter().map(|(token, _)| *token).filter(here).collect();
                            assert_eq!(seen, (*first..=position).collect::<Vec<_>>(), "{spec}: row {position}");
                        }
                    }
                    for [first, middle, end] in &sorted {
                        let of_keys = blocks(|token| keys[token].clone(), *first, *middle, size);
                        let of_queries = blocks(|t| layer.query(t, head).to_vec(), *middle, *end, size);
                        let is_drawn_from = end - middle > size && sample > 0;
                        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
                        for position in *middle..*end {
                            let plain = seen[head][position].iter().filter(|(_, bias)| *bias == 0.0);
                            let plain: BTreeSet<usize> =
                                plain.map(|(token, _)| *token).filter(|t| (*first..*middle).contains(t)).collect();
                            let own = |token: &usize| {
                                of_keys[token] == of_queries[&position] || is_static(&policy, position, *token)
                            };
                            let expected: BTreeSet<usize> = (*first..*middle).filter(own).collect();
                            assert_eq!(plain, expected, "{spec}: head {head}, row {position}");
                            for (token, bias) in drawn[position].range(*first..*middle) {
                                let count = f64::from(bias.exp()) * sample as f64 / (middle - first) as f64;
                                assert!((count - count.round()).abs() < 1e-3 && count > 0.5, "{count} draws");
                                let known = *counts.entry(*token).or_insert(count.round() as usize);
                                assert_eq!(known, count.round() as usize, "one set of draws for all queries");
                            }
                        }
                        for position in *middle..*end {
                            let is_seen = |token: &usize| {
                                of_keys[token] != of_queries[&position] && !is_static(&policy, position, *token)
                            };
                            let expected: Vec<usize> = counts.keys().copied().filter(is_seen).collect();
                            let seen: Vec<usize> = drawn[position].range(*first..*middle).map(|(t, _)| *t).collect();
                            assert_eq!(seen, expected, "{spec}: row {position} leaves out draws of its block alone");
                        }
                        if sink == 0 {
                            assert_eq!(
                                counts.values().sum::<usize>(),
                                if is_drawn_from { sample } else { 0 },
                                "{spec}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn draws_are_uniform_and_stand_for_all() {
        let (mut counts, draws) = (vec![0.0; 50], 40);
        for seed in 0..2000 {
            let drawn = draw(100..150, draws, seed);
            assert!(drawn.is_sorted_by(|a, b| a.token < b.token));
            let mut sum = 0.0;
            for single in drawn {
                let stands_for = f64::from(single.log_weight.exp());
                counts[single.token as usize - 100] += stands_for;
                sum += stands_for;
            }
            assert!((sum - 50.0).abs() < 1e-3);
        }
        // 2000 · 40 / 50 draws of each token, each with weight 50 / 40: 2000, with a standard deviation of about 50.
        assert!(counts.iter().all(|count| (1750.0..2250.0).contains(count)), "{counts:?}");
    }

    #[test]
    fn hashing_queries_and_keys_is_paid_for() {
        let layer = Layer::new(150, 4, 2);
        for (directions, spec) in [(7, "hyper_attention"), (3, "hyper_attention:lsh_num_projs=3,sample=5")] {
            assert_eq!(score_flops(&layer, spec, &Policy::default()), (4 + 2) * 150 * directions * 2 * D, "{spec}");
        }
    }
}
