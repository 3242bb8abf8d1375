//! Sparse attention while a prompt is read: blocks of query rows attend what a method's mask leaves them.
//!
//! A [`BlockMask`] says what the rows of a block attend at one KV head; [`SparsePrefill`] gathers those keys and values,
//! attends and counts. What is read so becomes a prefix like any other, only that its keys and values are those that
//! the method itself led to, so no other method shares it.

use std::ops::Range;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::budget::Context;
use super::calibration::PrefillChunk;
use super::engine::head_seed;
use super::method::Exact;
use super::policy::Policy;
use super::prefill_rows::{RowMask, RowReader};
use super::{Configured, mix_seed};
use crate::cost::{Cost, LayerCosts};
use crate::kernels::cpu::Rows;
use crate::kernels::cpu::prefill::{PackedHead, Sight, block_attention, causal_attention};

/// How a method attends during prefill.
#[derive(Clone, Copy)]
pub enum PrefillPattern<'a> {
    /// Every token attends every earlier one.
    Dense,
    /// Blocks of query rows attend what the method picks for them.
    Blocks(&'a dyn BlockMask),
    /// Every row attends its own picks.
    #[allow(private_interfaces)]
    Rows(&'a dyn RowMask),
}

/// What blocks of query rows attend.
pub trait BlockMask: Send + Sync {
    /// Query rows of a block; blocks are counted from the first token. At least 1.
    fn query_rows(&self) -> usize;

    /// What the rows of a block attend. Adds what scoring cost (`score_flops`) to `cost`; attending is counted by the
    /// caller.
    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks;
}

/// The query rows of one KV head's group in a block of tokens, and what they may look at.
#[derive(Debug, Clone)]
pub struct QueryBlock<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Rotated, unscaled queries `[group][row][d]`.
    pub queries: &'a [f32],
    /// Rows of each head.
    pub rows: usize,
    /// Position of the first row.
    pub first: usize,
    /// Width of a head.
    pub d: usize,
    /// Rotated keys `[token][d]` of all tokens read so far; those behind a row are not for it.
    pub keys: Rows<'a>,
    /// Sinks and window.
    pub policy: &'a Policy,
    /// Seed of this example, layer and KV head.
    pub seed: u64,
}

impl QueryBlock<'_> {
    /// Rows `[row][head][d]` of some heads as `[head][row][d]`.
    pub(super) fn group_major(rows: &[f32], (heads, d): (usize, usize), some: Range<usize>) -> Vec<f32> {
        some.flat_map(|head| rows.chunks_exact(heads * d).flat_map(move |row| &row[head * d..][..d])).copied().collect()
    }

    /// Query heads in the group.
    pub fn group(&self) -> usize {
        self.queries.len() / (self.rows * self.d)
    }

    /// The rows `[row][d]` of one head of the group.
    pub fn head(&self, head: usize) -> &[f32] {
        &self.queries[head * self.rows * self.d..][..self.rows * self.d]
    }

    /// What `exact` leaves to pick of the tokens before the first row, which so every row may see, and the context of
    /// that row.
    pub fn candidates(&self, exact: Exact) -> (Range<usize>, Context) {
        let candidates = exact.candidates(self.first);
        let context = Context::new(self.first + 1, &candidates);
        (candidates, context)
    }

    /// The mask of rows that attend `picks` of the candidates, ascending, and all that is no candidate: the tokens before
    /// those, and from their end on. So nothing falls between what may be picked and a window.
    pub fn mask(&self, candidates: &Range<usize>, picks: impl IntoIterator<Item = u32>) -> Mask {
        Mask { common: (0..candidates.start as u32).chain(picks).collect(), starts: vec![candidates.end; self.rows] }
    }

    /// A generator for one head of the group, the same whenever this block is read.
    pub fn rng(&self, head: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(mix_seed(self.seed, self.first as u64), head as u64))
    }
}

/// The masks of a block at one KV head.
#[derive(Debug, Clone, PartialEq)]
pub enum Masks {
    /// One for the whole group: keys and values are gathered once.
    Shared(Mask),
    /// One for each query head of the group.
    PerHead(Vec<Mask>),
}

/// What the rows of a block attend: causal whatever it says, and always the row's own token.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Tokens that all rows attend as far as they may see them, ascending. They lie before all of `starts`, or make up
    /// all tokens from the first start to their last.
    pub common: Vec<u32>,
    /// For each row the first token of a stretch that it attends up to its own; ascending.
    pub starts: Vec<usize>,
}

impl Mask {
    /// The tokens that some row attends, ascending, and what each row sees of these. `first` is the first row's position.
    fn resolve(&self, first: usize) -> (Vec<u32>, Vec<Sight>) {
        let (front, end) = (self.common.len(), first + self.starts.len());
        let behind_front = self.common.last().map_or(0, |last| *last as usize + 1);
        let begin = self.starts.first().map_or(end, |start| behind_front.max(*start));
        let tokens = self.common.iter().copied().chain(begin as u32..end as u32).collect();
        let sight = |(row, start): (usize, &usize)| {
            let position = first + row;
            let place = |token: usize| front + token.saturating_sub(begin);
            Sight {
                common: self.common.partition_point(|token| *token as usize <= position),
                stretch: place((*start).min(position))..place(position + 1),
            }
        };
        let sights = self.starts.iter().enumerate().map(sight).collect();
        (tokens, sights)
    }
}

/// A method that reads a prompt by its mask.
pub struct SparsePrefill<'a> {
    reader: Reader<'a>,
    policy: &'a Policy,
    /// By layer: whether it attends everything by policy.
    dense: Vec<bool>,
    seed: u64,
    costs: LayerCosts,
}

/// How it is read.
enum Reader<'a> {
    Blocks(&'a dyn BlockMask),
    Rows(RowReader<'a>),
}

/// What a block cost at one layer, and what each query head attended of `context` tokens, summed over rows.
pub(super) struct BlockCost {
    cost: Cost,
    attended: Vec<usize>,
    context: usize,
}

impl<'a> SparsePrefill<'a> {
    /// For a method with a mask, in a model of so many layers; `seed` is the context's. `None` if the method reads
    /// densely or has no prefill pattern.
    pub fn new(method: &'a Configured, layers: usize, seed: u64) -> Option<Self> {
        let reader = match method.method.prefill_pattern()? {
            PrefillPattern::Dense => return None,
            PrefillPattern::Blocks(mask) => Reader::Blocks(mask),
            PrefillPattern::Rows(mask) => Reader::Rows(RowReader::new(mask, method, layers, seed)),
        };
        let dense = (0..layers).map(|layer| method.policy.dense_layers.contains(layer, layers)).collect();
        Some(Self { reader, policy: &method.policy, dense, seed, costs: LayerCosts::new(layers) })
    }

    /// Whole blocks of rows, about `most` rows together, but at least one block.
    pub fn chunk_rows(&self, most: usize) -> usize {
        let rows = match &self.reader {
            Reader::Blocks(mask) => mask.query_rows(),
            Reader::Rows(_) => RowReader::ROWS,
        };
        (most / rows).max(1) * rows
    }

    /// Attends a chunk, which begins with a block, into `out: [token][head][d]`.
    pub fn attend(&mut self, chunk: &PrefillChunk<'_>, out: &mut [f32]) {
        let counted: Vec<BlockCost> = match (self.dense[chunk.layer], &mut self.reader) {
            (true, _) => vec![attend_all(chunk, out)],
            (false, Reader::Rows(reader)) => reader.attend(chunk, out),
            (false, Reader::Blocks(mask)) => {
                let (mask, rows) = (*mask, mask.query_rows());
                debug_assert!(chunk.first.is_multiple_of(rows), "blocks are counted from the first token");
                let blocks = out.par_chunks_mut(rows * chunk.heads * chunk.d()).enumerate().with_max_len(1);
                blocks.map(|(block, out)| self.attend_block(mask, chunk, block * rows, out)).collect()
            }
        };
        for BlockCost { cost, attended, context } in counted {
            // Bytes are those of a decoding step: here many rows share what is read.
            *self.costs.layer_mut(chunk.layer) += Cost { kv_bytes: 0, aux_bytes: 0, ..cost };
            self.costs.count_heads(chunk.layer, 0, &attended, context);
        }
    }

    /// The block whose first row is the chunk's `skipped`-th.
    fn attend_block(
        &self,
        mask: &dyn BlockMask,
        chunk: &PrefillChunk<'_>,
        skipped: usize,
        out: &mut [f32],
    ) -> BlockCost {
        let (d, heads, kv_heads) = (chunk.d(), chunk.heads, chunk.kv.keys.kv_heads());
        let (width, group) = (heads * d, heads / kv_heads);
        let (rows, first) = (out.len() / width, chunk.first + skipped);
        let queries = &chunk.queries[skipped * width..][..out.len()];
        let (mut cost, mut attended) = (Cost::default(), vec![0; heads]);
        for kv_head in 0..kv_heads {
            let own = QueryBlock::group_major(queries, (heads, d), kv_head * group..(kv_head + 1) * group);
            let (keys, values) = (chunk.kv.keys.head(kv_head), chunk.kv.values.head(kv_head));
            let block = QueryBlock {
                layer: chunk.layer,
                kv_head,
                queries: &own,
                rows,
                first,
                d,
                keys,
                policy: self.policy,
                seed: head_seed(self.seed, chunk.layer, kv_head),
            };
            let (masks, sharing) = match mask.masks(&block, &mut cost) {
                Masks::Shared(mask) => (vec![mask], group),
                Masks::PerHead(masks) => (masks, 1),
            };
            for (first_head, mask) in (kv_head * group..).step_by(sharing).zip(&masks) {
                let (tokens, sights) = mask.resolve(first);
                let packed = PackedHead::gathered(keys, values, d, &tokens);
                let seen = sights.iter().map(Sight::tokens).sum();
                attended[first_head..first_head + sharing].fill(seen);
                for head in first_head..first_head + sharing {
                    block_attention(queries, (head, heads), &packed, &sights, scale(d), out);
                }
            }
        }
        let context = (first..first + rows).map(|position| position + 1).sum();
        BlockCost::new(attended, context, rows, d).with(cost)
    }

    /// What was counted.
    pub fn into_costs(self) -> LayerCosts {
        self.costs
    }
}

/// A layer that is dense by policy.
fn attend_all(chunk: &PrefillChunk<'_>, out: &mut [f32]) -> BlockCost {
    attend_densely(chunk, out);
    let context = (chunk.first..chunk.first + chunk.tokens()).map(|position| position + 1).sum();
    BlockCost::new(vec![context; chunk.heads], context, chunk.tokens(), chunk.d())
}

impl BlockCost {
    /// With what scoring cost.
    pub(super) fn with(mut self, scoring: Cost) -> Self {
        self.cost += scoring;
        self
    }

    /// Attending alone, of `rows` rows; no bytes yet.
    pub(super) fn new(attended: Vec<usize>, context: usize, rows: usize, d: usize) -> Self {
        let (all, of_full) = (attended.iter().sum::<usize>() as u64, (attended.len() * context) as u64);
        let cost = Cost {
            steps: (attended.len() * rows) as u64,
            context_tokens: of_full,
            attended_tokens: all,
            attend_flops: 4 * d as u64 * all,
            full_flops: 4 * d as u64 * of_full,
            ..Cost::default()
        };
        Self { cost, attended, context }
    }
}

/// Exact attention of a chunk over all tokens up to each of its own, into `out: [token][head][d]`.
pub fn attend_densely(chunk: &PrefillChunk<'_>, out: &mut [f32]) {
    let (d, kv_heads) = (chunk.d(), chunk.kv.keys.kv_heads());
    let pack = |head: usize| PackedHead::new(chunk.kv.keys.head(head), chunk.kv.values.head(head), d);
    let packed: Vec<PackedHead> = (0..kv_heads).into_par_iter().map(pack).collect();
    causal_attention(chunk.queries, &packed, chunk.heads, scale(d), out);
}

fn scale(d: usize) -> f32 {
    1.0 / (d as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::methods::configure;
    use crate::attention::{Picks, expand_grid};
    use crate::kv::{KvDtype, LayerKv};
    use rand::RngExt;

    const D: usize = 16;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.5..1.5)).collect()
    }

    fn method(spec: &str, policy: &Policy) -> Configured {
        configure(&expand_grid(spec).unwrap()[0], policy).unwrap()
    }

    /// Tokens at one layer.
    struct Layer {
        kv: LayerKv,
        queries: Vec<f32>,
        heads: usize,
    }

    impl Layer {
        fn new(tokens: usize, heads: usize, kv_heads: usize) -> Self {
            let mut kv = LayerKv::new(KvDtype::F32, kv_heads, D, tokens);
            (0..tokens as u64).for_each(|t| kv.append(&noise(kv_heads * D, t), &noise(kv_heads * D, 50_000 + t)));
            Self { kv, queries: noise(tokens * heads * D, 99), heads }
        }

        fn tokens(&self) -> usize {
            self.kv.tokens()
        }

        /// Attends all tokens in chunks of about `most` rows; output and what was counted.
        fn attend(&self, method: &Configured, most: usize) -> (Vec<f32>, LayerCosts) {
            let mut sparse = SparsePrefill::new(method, 1, 3).unwrap();
            let (width, mut out) = (self.heads * D, Vec::new());
            for (i, queries) in self.queries.chunks(sparse.chunk_rows(most) * width).enumerate() {
                let first = i * sparse.chunk_rows(most);
                let mut kv = self.kv.clone();
                kv.truncate(first + queries.len() / width, self.tokens());
                let mut attended = vec![f32::NAN; queries.len()];
                let chunk = PrefillChunk { layer: 0, first, queries, heads: self.heads, kv: &kv };
                sparse.attend(&chunk, &mut attended);
                out.extend(attended);
            }
            (out, sparse.into_costs())
        }

        /// Softmax over the tokens that `sees` leaves a row (position, head), computed one by one.
        fn reference(&self, sees: impl Fn(usize, usize, usize) -> bool) -> Vec<f32> {
            let (group, mut out) = (self.heads / self.kv.keys.kv_heads(), Vec::new());
            for (at, query) in self.queries.chunks_exact(D).enumerate() {
                let (position, head) = (at / self.heads, at % self.heads);
                let rows = [&self.kv.keys, &self.kv.values].map(|store| store.head(head / group).to_f32());
                let row = |of: &[f32], token: usize| of[token * D..][..D].to_vec();
                let logit = |token: usize| -> f64 {
                    query.iter().zip(row(&rows[0], token)).map(|(q, k)| f64::from(q * k)).sum::<f64>()
                        / (D as f64).sqrt()
                };
                let seen: Vec<usize> = (0..=position).filter(|token| sees(position, head, *token)).collect();
                let weights: Vec<f64> = seen.iter().map(|token| logit(*token).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let channel = |c: usize| {
                    let values = seen.iter().zip(&weights).map(|(token, w)| w * f64::from(row(&rows[1], *token)[c]));
                    (values.sum::<f64>() / sum) as f32
                };
                out.extend((0..D).map(channel));
            }
            out
        }

        /// The masks of the block with this position, as the method gives them for each query head.
        fn masks(&self, method: &Configured) -> Vec<Vec<Mask>> {
            let Some(PrefillPattern::Blocks(mask)) = method.method.prefill_pattern() else { panic!("no mask") };
            let (kv_heads, rows) = (self.kv.keys.kv_heads(), mask.query_rows());
            let group = self.heads / kv_heads;
            let of_block = |first: usize| {
                let rows = rows.min(self.tokens() - first);
                (0..kv_heads).flat_map(move |kv_head| {
                    let of_head = |head: usize| {
                        let row = move |row: usize| &self.queries[((first + row) * self.heads + head) * D..][..D];
                        (0..rows).flat_map(row).copied().collect::<Vec<f32>>()
                    };
                    let queries: Vec<f32> = (kv_head * group..(kv_head + 1) * group).flat_map(of_head).collect();
                    let block = QueryBlock {
                        layer: 0,
                        kv_head,
                        queries: &queries,
                        rows,
                        first,
                        d: D,
                        keys: self.kv.keys.head(kv_head).slice(0..first + rows, D),
                        policy: &method.policy,
                        seed: head_seed(3, 0, kv_head),
                    };
                    match mask.masks(&block, &mut Cost::default()) {
                        Masks::Shared(mask) => vec![mask; group],
                        Masks::PerHead(masks) => masks,
                    }
                })
            };
            (0..self.tokens()).step_by(rows).map(|first| of_block(first).collect()).collect()
        }
    }

    fn assert_close(ours: &[f32], expected: &[f32], what: &str) {
        assert_eq!(ours.len(), expected.len());
        let worst = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{what}: off by {worst}");
    }

    const SPECS: [&str; 9] = [
        "streaming_llm:window=37",
        "a_shape:density=0.3",
        "bigbird:window=10,blocks=3,block=8",
        "bigbird:density=0.4,block=12,per=kv_head",
        "hip:k=24",
        "hip:k=40,b_q=10,b_k=3,b_sq=3,per=kv_head",
        "hip:density=0.25,b_q=64",
        "hip:ratio=0.1,b_q=1,b_k=1,b_sq=1",
        "hip:k=16,n_e=3,top_r=4",
    ];

    #[test]
    fn rows_attend_what_the_mask_says_and_nothing_behind_them() {
        for (tokens, heads, kv_heads) in [(1, 2, 1), (70, 4, 2), (230, 4, 2), (150, 3, 3)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (spec, policy) in SPECS.iter().flat_map(|spec| {
                [(4, 20), (0, 0), (90, 5)].map(|(sink, local)| (spec, Policy { sink, local, ..Policy::default() }))
            }) {
                let method = method(spec, &policy);
                let (masks, rows) = (layer.masks(&method), SparsePrefill::new(&method, 1, 3).unwrap().chunk_rows(1));
                let sees = |position: usize, head: usize, token: usize| {
                    let Mask { common, starts } = &masks[position / rows][head];
                    token >= starts[position % rows] || common.contains(&(token as u32))
                };
                let what = format!("{spec} with {policy:?} on {tokens} tokens");
                assert!((0..tokens).all(|at| (0..heads).all(|head| sees(at, head, at))), "{what}: the own token");
                let (out, costs) = layer.attend(&method, tokens);
                assert_close(&out, &layer.reference(sees), &what);
                let count = |head: usize, position: usize| (0..=position).filter(|t| sees(position, head, *t)).count();
                let all = (0..heads).flat_map(|head| (0..tokens).map(move |position| (head, position)));
                let attended: usize = all.map(|(head, position)| count(head, position)).sum();
                let total = costs.total(|_| true);
                assert_eq!(total.attended_tokens, attended as u64, "{what}");
                assert_eq!(total.context_tokens, (heads * tokens * (tokens + 1) / 2) as u64);
                assert_eq!(
                    (total.steps, total.full_flops),
                    ((heads * tokens) as u64, 4 * D as u64 * total.context_tokens)
                );
                let densities = costs.head_densities(0);
                assert!((densities.iter().sum::<f64>() / heads as f64 - total.density()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn chunks_and_threads_do_not_change_a_bit() {
        let layer = Layer::new(200, 4, 2);
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let on = |threads: usize, most: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| layer.attend(&method, most))
            };
            let once = on(1, 200);
            assert!(once == on(3, 200) && once == on(2, 1) && once == on(1, 77), "{spec}");
        }
    }

    #[test]
    fn with_all_tokens_left_it_is_exact_attention() {
        let layer = Layer::new(170, 4, 2);
        let full = layer.reference(|_, _, _| true);
        let dense = Policy { dense_layers: crate::attention::DenseLayers::parse("0").unwrap(), ..Policy::default() };
        for (spec, policy) in [
            ("a_shape:window=170", Policy::default()),
            ("bigbird:window=5,blocks=100,block=16", Policy::default()),
            ("hip:k=200", Policy::default()),
            ("hip:ratio=1,b_k=7,per=kv_head", Policy::default()),
            ("streaming_llm:window=3", dense.clone()),
            ("hip:k=2", dense),
        ] {
            let (out, costs) = layer.attend(&method(spec, &policy), 64);
            assert_close(&out, &full, spec);
            assert_eq!((costs.total(|_| true).density(), costs.total(|_| true).cost2()), (1.0, 1.0), "{spec}");
        }
    }

    #[test]
    fn a_block_of_one_row_is_searched_as_a_decoding_step_is() {
        // The last token as a step over a prefix of all others, and as the last row of a prompt.
        let layer = Layer::new(161, 2, 1);
        for spec in
            ["hip:k=24,b_q=1,b_sq=1", "hip:k=30,b_q=1,b_sq=1,b_k=3,per=kv_head", "hip:k=10,b_q=1,b_sq=1,top_r=3"]
        {
            let method = method(spec, &Policy { sink: 4, local: 11, ..Policy::default() });
            let masks = layer.masks(&method);
            let found = |head: usize| {
                let Mask { common, starts } = &masks[160][head];
                assert_eq!((common[..4].to_vec(), starts[0]), (vec![0, 1, 2, 3], 150), "ten before it, and itself");
                common[4..].to_vec()
            };
            let keys = layer.kv.keys.head(0);
            let step = crate::attention::Step {
                layer: 0,
                depth: crate::attention::Depth::default(),
                kv_head: 0,
                queries: &layer.queries[160 * 2 * D..],
                d: D,
                scale: 0.25,
                keys: keys.slice(0..160, D),
                values: keys.slice(0..160, D),
                tail_keys: keys.slice(160..161, D),
                tail_values: Rows::F32(&[]),
                dtype: KvDtype::F32,
                indexed: 4..150,
                candidates: 4..150,
                context: Context::new(161, &(4..150)),
                generated: 0,
                seed: 1,
            };
            let mut state = method.method.start(&());
            let picked = match method.method.select(&step, &(), state.as_mut(), &mut Cost::default()) {
                crate::attention::Selection::Shared(picks) => vec![picks.clone(), picks],
                crate::attention::Selection::PerHead(heads) => heads,
            };
            assert_eq!(picked, [0, 1].map(|head| Picks::softmax(found(head))), "{spec}");
        }
    }
}
