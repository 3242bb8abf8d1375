//! `pqcache`: selects by scores of product-quantised keys (PQCache, Zhang et al. 2024).
//!
//! A head's `d` channels are cut into `subspaces` runs. In each, k-means over the candidates' keys finds `2^bits` centroids;
//! the index holds them and, for each key, the number of its nearest one. A decode step multiplies the query with all
//! centroids, which gives a small table; the score of a key is the sum of its table entries, one for each sub-space.
//!
//! Clustering runs for a fixed number of iterations, from a seed of each head (the authors fit the number to the time that
//! prefill leaves). A code takes one byte, whatever `bits` is; centroids have the type of the keys. With `--tail`, a token that
//! leaves the window takes the nearest centroids of the prefix, as in the authors' code; otherwise generated tokens stay static.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::ops::Range;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::index::kmeans::kmeans;
use crate::kv::{KvError, KvStore};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::{GroupQueries, dots};
use crate::{Budget, HeadPrefix, Role};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "pqcache",
    role: Role::Method,
    reference: "PQCache (Zhang et al. 2024, arXiv:2407.12820)",
    about: "top-k by scores from product-quantised keys",
    params: &[
        ParamInfo { key: "subspaces", default: "2", about: "parts that a key is cut into, each with its code" },
        ParamInfo {
            key: "bits",
            default: "6",
            about: "bits of a code, 1 to 8: 2^bits centroids a part; each code is kept in a byte",
        },
        ParamInfo {
            key: "ratio",
            default: "0.05",
            about: "share of the context picked beyond the static tokens, above 0 to 1",
        },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens picked" },
        ParamInfo { key: "iterations", default: "10", about: "iterations of k-means at most" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("subspaces", "2"),
            ("bits", "6"),
            ("ratio", "0.05"),
            ("sink", "32"),
            ("per", "kv_head"),
            ("tail", "indexed"),
        ],
        source: "PQCache's code, run_llama.sh: 2 sub-spaces of 6 bits, 32 sink tokens, half of a budget of 0.1 picked \
                 for each KV head (by softmax scores; here by plain ones); its window, the other half, is a share \
                 of the context, which `local` cannot be",
    }],
    build: |params| {
        let subspaces = params.get_positive("subspaces", 2)?;
        let bits = params.get_within("bits", 6, 1..=8)?;
        let picker = Choice::by_logits(Budget::Ratio(0.05)).read(params)?;
        let iterations = params.get_minor_within("iterations", 10, 1..=1000)?;
        let codes = ProductCodes { subspaces, bits, iterations };
        Ok(Scored::with(codes, picker, Granularity::read(params)?).method())
    },
};

/// `q·k` of product-quantised keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ProductCodes {
    subspaces: usize,
    bits: usize,
    iterations: usize,
}

/// The index of one run of channels.
struct Subspace {
    channels: Range<usize>,
    /// `[centroid][channels]`, in the storage type of the keys.
    centroids: KvStore,
    /// Number of each candidate's centroid.
    codes: Vec<u8>,
}

impl Scorer for ProductCodes {
    type Index = Vec<Subspace>;

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        Some(("subspaces", self.subspaces))
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new(self.clone())
    }

    /// Needs all keys at once: each round of k-means goes through all of them.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<Subspace>, KvError> {
        let keys = prefix.candidate_keys().to_f32()?;
        let mut rng = ChaCha8Rng::seed_from_u64(prefix.seed);
        let parts = self.subspaces.min(prefix.d);
        let channels = (0..parts).map(|i| i * prefix.d / parts..(i + 1) * prefix.d / parts);
        Ok(channels.map(|channels| self.quantise(&keys, prefix, channels, &mut rng)).collect())
    }

    fn growth(&self) -> Growth {
        Growth::OfPrefix("new keys take the nearest centroids of the prefix")
    }

    fn empty(&self, _: KvHeadId, like: Option<&Vec<Subspace>>) -> Vec<Subspace> {
        let bare =
            |s: &Subspace| Subspace { channels: s.channels.clone(), centroids: s.centroids.clone(), codes: vec![] };
        like.map_or_else(Vec::new, |like| like.iter().map(bare).collect())
    }

    fn append(&self, subspaces: &mut Vec<Subspace>, kept: usize, new: &NewTokens<'_>) {
        for subspace in subspaces {
            let nearest = |key: &[f32]| subspace.nearest(&key[subspace.channels.clone()]);
            let codes: Vec<u8> = new.keys.chunks_exact(new.place.d).map(nearest).collect();
            subspace.codes.truncate(kept);
            subspace.codes.extend(codes);
        }
    }

    fn index_bytes(&self, subspaces: &Vec<Subspace>) -> usize {
        subspaces.iter().map(|s| s.centroids.bytes() + s.codes.len()).sum()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Vec<Subspace>>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        Ok(approximate_scores(queries, segment.index, cost))
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl Subspace {
    /// The centroid nearest to a key on these channels; of equally near ones the first.
    fn nearest(&self, key: &[f32]) -> u8 {
        let centroids = self.centroids.head(0).to_f32();
        let distance = |c: &[f32]| c.iter().zip(key).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
        let distances: Vec<f32> = centroids.chunks_exact(key.len()).map(distance).collect();
        let less = |a: usize, b: usize| if distances[b] < distances[a] { b } else { a };
        (0..distances.len()).reduce(less).unwrap_or(0) as u8
    }
}

impl ProductCodes {
    fn quantise(
        &self,
        keys: &[f32],
        prefix: &HeadPrefix<'_>,
        channels: Range<usize>,
        rng: &mut ChaCha8Rng,
    ) -> Subspace {
        let width = channels.len();
        let points: Vec<f32> = keys.chunks_exact(prefix.d).flat_map(|key| &key[channels.clone()]).copied().collect();
        let clusters = kmeans(&points, width, 1 << self.bits, self.iterations, rng);
        let mut centroids = KvStore::new(prefix.dtype, 1, width, clusters.centroids.len() / width);
        clusters.centroids.chunks_exact(width).for_each(|c| centroids.append(c));
        // At most 2^8 centroids, so a code fits into a byte.
        let codes = clusters.nearest.iter().map(|&code| code as u8).collect();
        Subspace { channels, centroids, codes }
    }
}

/// Scores `[query][candidate]` as sums of table entries. Codes are read once for all queries.
fn approximate_scores(queries: &GroupQueries<'_>, subspaces: &[Subspace], cost: &mut Cost) -> Vec<f32> {
    let n = subspaces.first().map_or(0, |s| s.codes.len());
    let mut scores = vec![0.0f32; queries.count() * n];
    for subspace in subspaces {
        let part = |query: &[f32]| query[subspace.channels.clone()].to_vec();
        let parts: Vec<f32> = queries.queries.chunks_exact(queries.d).flat_map(part).collect();
        let centroids = subspace.centroids.head(0);
        let products = dots(&parts, centroids, subspace.channels.len(), cost);
        let count = subspace.centroids.tokens();
        for (products, scores) in products.chunks_exact(count).zip(scores.chunks_exact_mut(n.max(1))) {
            // One entry for each value that a code can have, so that look-ups need no bounds check.
            let mut table = [0.0f32; 1 << u8::BITS];
            table[..count].copy_from_slice(products);
            scores.iter_mut().zip(&subspace.codes).for_each(|(s, &code)| *s += table[usize::from(code)]);
        }
        cost.score_flops += scores.len() as u64;
        cost.aux_bytes += (centroids.elements() * centroids.elem_bytes() + subspace.codes.len()) as u64;
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, none, prefix, random_kv, run, select};
    use super::*;
    use crate::kv::{KvDtype, KvRows};
    use crate::{PromptHead, SelectedTokens, Selection, SoftmaxScale, SparseLayerRank};
    use spattn_kernels::Rows;

    const N: usize = 700;
    const D: usize = 32;

    fn keys() -> Vec<f32> {
        let (centres, mut keys) = (noise(50 * D, 1), noise(N * D, 2));
        keys.chunks_mut(D).enumerate().for_each(|(i, key)| {
            key.iter_mut().zip(&centres[i % 50 * D..]).for_each(|(x, c)| *x = 0.6 * *x + 2.0 * c);
        });
        keys
    }

    #[test]
    fn keys_that_follow_take_the_nearest_centroid_of_each_subspace() {
        let (keys, new) = (keys(), noise(40 * D, 77));
        let rows = Rows::F32(&keys);
        let (layer, kv_head, dtype, prompt) = (0, 0, KvDtype::F32, PromptHead::default());
        let head = HeadPrefix {
            layer,
            depth: SparseLayerRank::default(),
            rotation: None,
            kv_head,
            keys: KvRows::lent(rows, D),
            values: KvRows::lent(rows, D),
            d: D,
            scale: SoftmaxScale::inverse_root(D),
            dtype,
            candidates: 0..N,
            prompt,
            seed: 9,
        };
        let scorer = ProductCodes { subspaces: 3, bits: 5, iterations: 10 };
        let built = scorer.build(&head).unwrap();
        let mut tail = scorer.empty(KvHeadId::from(&head), Some(&built));
        for (kept, part) in [(0, &new[..15 * D]), (10, &new[10 * D..])] {
            let tokens = NewTokens { place: KvHeadId::from(&head), keys: part, values: part };
            scorer.append(&mut tail, kept, &tokens);
        }
        for (ours, learned) in tail.iter().zip(&built) {
            let centroids = learned.centroids.head(0).to_f32();
            assert_eq!((ours.codes.len(), ours.centroids.head(0).to_f32()), (40, centroids.clone()));
            for (code, key) in ours.codes.iter().zip(new.chunks(D)) {
                let key = &key[learned.channels.clone()];
                let square = |c: &[f32]| c.iter().zip(key).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                let least = centroids.chunks(key.len()).map(square).fold(f64::INFINITY, f64::min);
                let own = square(&centroids[usize::from(*code) * key.len()..][..key.len()]);
                assert!(own <= least + 1e-5, "{own} where {least} can be had");
            }
        }
    }

    /// For two queries: approximate scores `[2][N]`, the same computed from the decoded keys, and the cost.
    fn scores(subspaces: usize, bits: usize) -> (Vec<f32>, Vec<f32>, Cost) {
        let (keys, queries) = (keys(), noise(2 * D, 3));
        let rows = Rows::F32(&keys);
        let (layer, kv_head, dtype, prompt) = (0, 0, KvDtype::F32, PromptHead::default());
        let candidates = 0..N;
        let head = HeadPrefix {
            layer,
            depth: SparseLayerRank::default(),
            rotation: None,
            kv_head,
            keys: KvRows::lent(rows, D),
            values: KvRows::lent(rows, D),
            d: D,
            scale: SoftmaxScale::inverse_root(D),
            dtype,
            candidates,
            prompt,
            seed: 9,
        };
        let asked = GroupQueries { layer, kv_head, queries: &queries, rows: 1, d: D, scale: head.scale };
        let index = ProductCodes { subspaces, bits, iterations: 10 }.build(&head).unwrap();
        let mut cost = Cost::default();
        let scores = approximate_scores(&asked, &index, &mut cost);
        let decoded = |t: usize| {
            index.iter().flat_map(move |s| {
                let code = usize::from(s.codes[t]);
                s.centroids.head(0).slice(code..code + 1, s.channels.len()).to_f32()
            })
        };
        let of_query =
            |query: &[f32]| -> Vec<f32> { (0..N).map(|t| decoded(t).zip(query).map(|(k, q)| k * q).sum()).collect() };
        let naive = queries.chunks(D).flat_map(of_query).collect();
        (scores, naive, cost)
    }

    fn exact_scores() -> Vec<f32> {
        let (keys, queries) = (keys(), noise(2 * D, 3));
        let dot = |q: &[f32], k: &[f32]| -> f32 { q.iter().zip(k).map(|(q, k)| q * k).sum() };
        queries.chunks(D).flat_map(|q| keys.chunks(D).map(|k| dot(q, k)).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn scores_are_those_of_the_keys_that_the_codes_stand_for() {
        for (subspaces, bits) in [(1, 1), (2, 6), (5, 4), (32, 3), (100, 2)] {
            let (scores, naive, cost) = scores(subspaces, bits);
            for (a, b) in scores.iter().zip(&naive) {
                assert!((a - b).abs() < 1e-3, "{subspaces} sub-spaces of {bits} bits: {a} against {b}");
            }
            let (parts, count) = (subspaces.min(D) as u64, 1 << bits);
            assert_eq!(cost.score_flops, 2 * 2 * count * D as u64 + 2 * parts * N as u64);
            assert_eq!(cost.aux_bytes, 4 * count * D as u64 + parts * N as u64);
            assert_eq!(cost.kv_bytes, 0);
        }
    }

    #[test]
    fn more_bits_and_more_subspaces_come_nearer_to_exact_scores() {
        let exact = exact_scores();
        let error = |subspaces, bits| -> f64 {
            let approximate = scores(subspaces, bits).0;
            approximate.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2)).sum()
        };
        let by_bits = [1, 2, 4, 6, 8].map(|bits| error(4, bits));
        assert!(by_bits.windows(2).all(|e| e[1] < e[0]), "{by_bits:?}");
        let by_subspaces = [2, 4, 8, 16, 32].map(|subspaces| error(subspaces, 5));
        assert!(by_subspaces.windows(2).all(|e| e[1] < e[0]), "{by_subspaces:?}");
        assert!(error(32, 8) < 1e-3 * error(1, 1));
    }

    #[test]
    fn a_centroid_for_every_key_picks_what_topk_picks() {
        let kv = random_kv(KvDtype::Bf16, 1, 200, 64, 5);
        let queries = noise(3 * 64, 7);
        for per in ["query_head", "kv_head"] {
            let exact = select(&format!("topk:k=25,per={per}"), &kv, &queries, 3..190).0;
            // A whole key in one sub-space: the order of summation differs only across sub-spaces.
            assert_eq!(select(&format!("pqcache:k=25,bits=8,subspaces=1,per={per}"), &kv, &queries, 3..190).0, exact);
        }
    }

    #[test]
    fn the_largest_scores_are_picked() {
        let kv = random_kv(KvDtype::F32, 1, 400, D, 5);
        let queries = noise(D, 7);
        let Selection::PerHead(picks) = select("pqcache:k=40,subspaces=8,bits=8", &kv, &queries, 0..400).0 else {
            panic!("a set for each query head")
        };
        let Selection::PerHead(exact) = select("topk:k=40", &kv, &queries, 0..400).0 else { panic!() };
        let SelectedTokens { tokens, .. } = &picks[0];
        let hits = tokens.iter().filter(|t| exact[0].tokens.contains(t)).count();
        assert!(tokens.len() == 40 && hits >= 32, "{hits} of 40");
    }

    #[test]
    fn codes_and_centroids_are_counted_as_stored() {
        let prefix = prefix(1, 1, 1000, D);
        let (_, fork) = run(&prefix, "pqcache:k=10", &none(), 4, 1);
        assert_eq!(fork.aux_bits(), 8.0 * (2.0 * 1000.0 + 4.0 * 64.0 * D as f64) / 1000.0);
    }
}
