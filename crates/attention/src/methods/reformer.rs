//! `reformer`: prefill in which tokens sorted by hash bucket attend their own chunk and the one before (Reformer,
//! Kitaev et al. 2020, §2).
//!
//! The bucket of a vector is the argument of the maximum of `[xR; -xR]` with a random `R`; there are about as many buckets as
//! stretches of `bucket` tokens in the prompt. Tokens are sorted by bucket, then by position, and cut into chunks of `bucket` tokens.
//! A query attends the tokens of its chunk and of the one before, up to its own position. Nothing is stored: decoding is dense.
//!
//! Decisions where the papers leave room:
//! - Reformer shares queries and keys. If they differ, keys are sorted, and a query belongs to the chunk in which a key
//!   with its bucket and position would be. For equal queries and keys this is Reformer's rule. Each query head hashes
//!   its own queries against the keys of its group.
//! - Chunks are attended across buckets; the paper masks other buckets. HiP (§C.3) gives only the size of a bucket:
//!   512, with the first three layers dense.
//! - With several rounds (`hashes`), a query attends the tokens that any round finds, each once.
//! - In Reformer a token does not attend itself; here all rows attend sink and window, as with every method.

use std::ops::Range;
use std::sync::Arc;

use super::ParamInfo;
use super::lines::Static;
use super::planes::gaussians;
use super::prefill_only::PrefillOnly;
use crate::cost::Cost;
use crate::kv::MOST_TOKENS;
use crate::methods::entry::{MethodEntry, Preset, SEED};
use crate::types::scores::score_into;
use crate::{
    Mask, Masks, PromptMask, PromptPlan, QueryBlock, Role, RowSlices, SharedTokens, SliceBounds, TokenSlice, Tuned,
    WeightedToken, mix_seed,
};
use spattn_kernels::Rows;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "reformer",
    role: Role::Method,
    about: "tokens in the same or the previous chunk of an order by hash buckets",
    reference: "Reformer (Kitaev et al. 2020, arXiv:2001.04451), as a baseline of HiP (arXiv:2406.09827)",
    params: &[
        ParamInfo { key: "bucket", default: "512", about: "tokens of a bucket on average, and of a chunk" },
        ParamInfo {
            key: "hashes",
            default: "1",
            about: "rounds of hashing, up to 16; a token found by any is attended",
        },
        ParamInfo { key: "seed", default: "1", about: "of the rotations, which all layers and heads share" },
    ],
    presets: &[Preset {
        name: "paper",
        values: &[("bucket", "512"), ("dense_layers", "0-2")],
        source: "HiP §C.3: bucket size 512, all layers but the first three; fine-tuned there, as it is here not",
    }],
    build: |params| {
        let bucket = params.tuned_within("bucket", 512, 1..=MOST_TOKENS)?;
        let hashes = params.get_minor_within("hashes", 1, 1..=16)?;
        let seed = params.get_minor_as("seed", 1, SEED)?;
        Ok(Arc::new(PrefillOnly(Reformer { bucket, hashes, seed })))
    },
};

/// Sparse prefill by chunks of tokens sorted by hash.
struct Reformer {
    bucket: Tuned<usize>,
    hashes: usize,
    seed: u64,
}

/// One round of hashing, with the sorted keys.
struct Round {
    /// The random `R`, `[row][d]`; it has half as many rows as there are buckets, and its negative gives the others.
    rotation: Vec<f32>,
    /// Bucket and token of each key, ascending.
    keys: Vec<(u32, u32)>,
    /// Tokens of a chunk.
    size: usize,
    /// The tokens of the sorted keys, chunk after chunk; those of a chunk ascend.
    chunks: Arc<SharedTokens>,
}

impl Round {
    fn new(keys: Rows<'_>, d: usize, size: usize, seed: u64, cost: &mut Cost) -> Self {
        let tokens = keys.elements() / d;
        // The number of buckets is even: each row of the rotation makes two.
        let half = ((tokens + size) / (2 * size)).max(1);
        let rotation = gaussians(half * d, seed);
        let mut keys: Vec<(u32, u32)> = buckets(&keys.to_f32(), &rotation, d, cost).into_iter().zip(0..).collect();
        keys.sort_unstable();
        let mut chunks = SharedTokens::default();
        for chunk in keys.chunks(size) {
            let mut tokens: Vec<u32> = chunk.iter().map(|(_, token)| *token).collect();
            tokens.sort_unstable();
            chunks.push(tokens.into_iter().map(|token| (WeightedToken::plain(token), SharedTokens::NO_GROUP)));
        }
        Self { rotation, keys, size, chunks: Arc::new(chunks) }
    }

    /// The chunk of a query with this bucket, and the one before if there is one; later tokens are among theirs.
    fn slices(&self, bucket: u32, position: usize) -> Vec<TokenSlice> {
        let rank = self.keys.partition_point(|key| *key < (bucket, position as u32));
        // A query that sorts after all keys belongs to the last chunk.
        let chunk = rank.min(self.keys.len() - 1) / self.size;
        let place = |chunk: usize| (chunk * self.size).min(self.keys.len()) as u32;
        let slice = |chunk: usize| TokenSlice { range: place(chunk)..place(chunk + 1), without: None };
        (chunk.saturating_sub(1)..chunk + 1).map(slice).collect()
    }
}

/// Buckets of vectors `[row][d]`: the argument of the maximum over the rotation's rows and their negatives.
fn buckets(vectors: &[f32], rotation: &[f32], d: usize, cost: &mut Cost) -> Vec<u32> {
    let half = rotation.len() / d;
    cost.score_flops += 2 * (vectors.len() * half) as u64;
    // Hashes a few vectors at a time: with small buckets, each vector has up to half as many products as there are tokens.
    let of_some = |vectors: &[f32]| {
        let mut products = vec![0.0; vectors.len() / d * half];
        score_into(vectors, Rows::F32(rotation), d, &mut products);
        products.chunks_exact(half).map(largest).collect::<Vec<u32>>()
    };
    vectors.chunks(64 * d).flat_map(of_some).collect()
}

/// Index of the largest number in `[x; -x]`; of equal numbers the first.
fn largest(x: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (sign, offset) in [(1.0, 0), (-1.0, x.len())] {
        for (at, x) in x.iter().enumerate() {
            if sign * x > best.0 {
                best = (sign * x, offset + at);
            }
        }
    }
    best.1 as u32
}

/// The chunks that one query head attends.
struct Chunks {
    rounds: Arc<Vec<Round>>,
    /// Buckets of the queries, for each round.
    queries: Vec<Vec<u32>>,
    fixed: Static,
}

impl Chunks {
    /// Tokens up to a row that any round gives it; some may be listed twice.
    fn tokens(&self, position: usize) -> Vec<WeightedToken> {
        let of_round = |(round, queries): (&Round, &Vec<u32>)| {
            let slices = round.slices(queries[position], position);
            let tokens = slices.iter().flat_map(|slice| round.chunks.of(slice));
            tokens.filter(|own| own.token as usize <= position).collect::<Vec<WeightedToken>>()
        };
        self.rounds.iter().zip(&self.queries).flat_map(of_round).collect()
    }

    fn mask(&self, rows: Range<usize>) -> Mask {
        let sink = self.fixed.sink.min(rows.end);
        let starts = rows.clone().map(|position| self.fixed.start(position)).collect();
        match (&self.rounds[..], &self.queries[..]) {
            ([round], [queries]) => {
                let rows = rows.map(|position| round.slices(queries[position], position)).collect();
                Mask::sliced(sink, starts, RowSlices { of: round.chunks.clone(), rows })
            }
            // Chunks of several rounds may have tokens in common.
            _ => Mask {
                own: rows.map(|position| self.tokens(position)).collect(),
                ..Mask::new((0..sink as u32).collect(), starts)
            },
        }
    }
}

impl Reformer {
    /// The chunks of each query head, with `size` tokens a chunk.
    fn chunks(&self, prompt: &QueryBlock<'_>, size: usize, cost: &mut Cost) -> Vec<Chunks> {
        let (d, fixed) = (prompt.d, Static::new(prompt.policy, prompt.rows));
        let keys = prompt.keys.slice(0..prompt.rows, d);
        let round = |number: usize| Round::new(keys, d, size, mix_seed(self.seed, number as u64), cost);
        let rounds: Arc<Vec<Round>> = Arc::new((0..self.hashes).map(round).collect());
        let of_head = |head: usize| {
            let queries = rounds.iter().map(|round| buckets(prompt.head(head), &round.rotation, d, cost)).collect();
            Chunks { rounds: rounds.clone(), queries, fixed }
        };
        (0..prompt.group).map(of_head).collect()
    }

    /// The chunk size whose share of attended pairs is nearest to the density, by a sample of the rows.
    fn solved(&self, density: f64, prompt: &QueryBlock<'_>, cost: &mut Cost) -> usize {
        /// Number of rows in the sample, at most.
        const SAMPLED: usize = 200;
        let tokens = prompt.rows;
        let step = tokens.div_ceil(SAMPLED);
        let sampled = || (step / 2..tokens).step_by(step);
        let all: usize = sampled().map(|position| position + 1).sum();
        let mut share = |size: usize| {
            let heads = self.chunks(prompt, size, cost);
            let of_row = |position: usize| {
                let of_head = |head: &Chunks| head.mask(position..position + 1).row_tokens(position, position).len();
                heads.iter().map(of_head).sum::<usize>()
            };
            sampled().map(of_row).sum::<usize>() as f64 / (all * heads.len()) as f64
        };
        let mut nearest = (1, f64::INFINITY);
        let (mut low, mut high) = (1, tokens);
        while low <= high {
            let middle = low + (high - low) / 2;
            let off = share(middle) - density;
            if off.abs() < nearest.1 {
                nearest = (middle, off.abs());
            }
            match off < 0.0 {
                true => low = middle + 1,
                false => high = middle - 1,
            }
        }
        nearest.0
    }
}

impl PromptMask for Reformer {
    fn query_rows(&self) -> usize {
        64
    }

    fn own_tokens(&self, tokens: usize) -> usize {
        match self.bucket {
            _ if self.hashes == 1 => 0,
            Tuned::Value(bucket) => (self.hashes * 2 * bucket).min(tokens),
            Tuned::Density(_) => tokens,
        }
    }

    fn slice_bounds(&self, tokens: usize) -> SliceBounds {
        match self.hashes {
            1 => SliceBounds { tokens, slices: 2 },
            _ => SliceBounds::default(),
        }
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let size = match self.bucket {
            Tuned::Value(bucket) => bucket,
            Tuned::Density(density) => self.solved(density, prompt, &mut Cost::default()),
        };
        let heads = self.chunks(prompt, size, cost);
        Box::new(move |block| {
            let rows = block.first..block.first + block.rows;
            Masks::PerHead(heads.iter().map(|chunks| chunks.mask(rows.clone())).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{buckets, gaussians};
    use crate::Policy;
    use crate::cost::Cost;
    use crate::mix_seed;
    use crate::prefill::testing::{D, Layer, assert_sees, is_static, noise, plain, score_flops};

    /// Bucket of a vector: the argument of the maximum of its products with the rotation and with its negative.
    fn bucket(x: &[f32], rotation: &[f32]) -> usize {
        let products: Vec<f64> = rotation
            .chunks(x.len())
            .map(|r| r.iter().zip(x).map(|(r, x)| f64::from(*r) * f64::from(*x)).sum())
            .collect();
        let both: Vec<f64> = products.iter().copied().chain(products.iter().map(|x| -x)).collect();
        (0..both.len()).fold(0, |best, at| if both[at] > both[best] { at } else { best })
    }

    /// A rotation for an even number of buckets of about `size` tokens: half as many rows.
    fn rotation(tokens: usize, size: usize, round: u64) -> Vec<f32> {
        let half = (tokens as f64 / (2.0 * size as f64)).round().max(1.0) as usize;
        gaussians(half * D, mix_seed(1, round))
    }

    /// The chunk of each query and of each key in one round.
    struct Chunks {
        queries: Vec<usize>,
        keys: Vec<usize>,
    }

    /// Chunks by counting, for each query and key, the keys before it by bucket and position.
    fn chunks(layer: &Layer, head: usize, size: usize, round: u64) -> Chunks {
        let tokens = layer.tokens();
        let rotation = rotation(tokens, size, round);
        let places = |x: &[f32], at: usize| (bucket(x, &rotation), at);
        let keys = layer.keys(head);
        let of_keys: Vec<(usize, usize)> = (0..tokens).map(|at| places(&keys[at], at)).collect();
        let of_queries = (0..tokens).map(|at| places(layer.query(at, head), at));
        let chunk = |place: (usize, usize)| {
            let before = of_keys.iter().filter(|key| **key < place).count();
            before.min(tokens - 1) / size
        };
        Chunks { queries: of_queries.map(chunk).collect(), keys: of_keys.iter().map(|key| chunk(*key)).collect() }
    }

    #[test]
    fn a_query_sees_its_chunk_of_the_sorted_keys_and_the_one_before() {
        for (tokens, heads, kv_heads) in [(200, 4, 2), (31, 2, 1), (1, 1, 1)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (size, rounds, (sink, local)) in [(20, 1, (4, 8)), (7, 2, (0, 0)), (32, 3, (2, 1)), (500, 1, (1, 1))] {
                let policy = Policy { sink, local, ..Policy::default() };
                let spec = format!("reformer:bucket={size},hashes={rounds}");
                let by_head: Vec<Vec<Chunks>> = (0..heads)
                    .map(|head| (0..rounds).map(|round| chunks(&layer, head, size, round)).collect())
                    .collect();
                assert_sees(&layer, &spec, &policy, |head, position| {
                    let is_found = |token: usize| {
                        by_head[head].iter().any(|Chunks { queries, keys }| {
                            keys[token] == queries[position] || keys[token] + 1 == queries[position]
                        })
                    };
                    plain((0..=position).filter(|token| is_static(&policy, position, *token) || is_found(*token)))
                });
            }
        }
    }

    #[test]
    fn with_shared_queries_and_keys_it_is_the_published_neighbourhood() {
        let (n, size) = (160, 16);
        let vectors: Vec<Vec<f32>> = (0..n).map(|t| noise(D, t as u64)).collect();
        let layer = Layer::of(&vectors, &vectors);
        let rotation = rotation(n, size, 0);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|t| (bucket(&vectors[*t], &rotation), *t));
        let place = |token: usize| order.iter().position(|t| *t == token).unwrap() / size;
        let policy = Policy { sink: 0, local: 0, ..Policy::default() };
        assert_sees(&layer, &format!("reformer:bucket={size}"), &policy, |_, position| {
            plain((0..=position).filter(|token| {
                let (query, key) = (place(position), place(*token));
                key <= query && query <= key + 1
            }))
        });
    }

    #[test]
    fn hashing_queries_and_keys_is_paid_for() {
        let layer = Layer::new(150, 4, 2);
        for (size, half) in [(10, 8), (512, 1)] {
            let spec = format!("reformer:bucket={size},hashes=3");
            assert_eq!(score_flops(&layer, &spec, &Policy::default()), 3 * (4 + 2) * 150 * half * 2 * D);
        }
    }

    #[test]
    fn buckets_are_those_of_one_vector_at_a_time_for_any_width() {
        for d in [D, 80, 128] {
            let (vectors, rotation) = (gaussians(150 * d, 3), gaussians(5 * d, 4));
            let mut cost = Cost::default();
            let found = buckets(&vectors, &rotation, d, &mut cost);
            let expected: Vec<u32> = vectors.chunks(d).map(|x| bucket(x, &rotation) as u32).collect();
            assert_eq!(found, expected, "{d} wide");
            assert_eq!(cost.score_flops, 2 * 150 * 5 * d as u64);
        }
    }
}
