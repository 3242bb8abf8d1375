//! `lsh_bits`: selects by the Hamming distance of random-projection signatures (the LSH baseline of HashAttention §4.3
//! and Table 8; Gionis et al. 1999).
//!
//! A signature of `bits` bits is stored for each candidate. A decode step signs the query and compares the signatures.
//!
//! Selection by `q·k` is a search by inner product. It becomes a search by angle if a further coordinate lengthens all
//! keys to the norm `M` of the longest one (Neyshabur and Srebro 2015; §4.3):
//!
//! ```text
//! label=a     ψ_k = [k, √(M² − ‖k‖²)]                             ψ_q = [q, 0]
//! label=av    ψ_k = [k, √d·ln‖v‖, √(M² − ‖k, √d·ln‖v‖‖²)]         ψ_q = [q, 1, 0]
//! ```
//!
//! Then the cosine is `q·k`, or the logarithm of `a·‖v‖` (Lemma 4.2), up to a factor that depends on the query only.
//! The paper prints a 1 as the query's last coordinate, which would favour short keys, and its `ln‖v‖` leaves out that
//! logits are scaled by `1/√d`; both follow the lemma here. Each bit says on which side of a random hyperplane a vector
//! lies: two vectors at an angle `θ` agree in a share `1 − θ/π` of the bits. Hyperplanes are drawn from the parameter `seed`
//! and shared by all heads, so they are counted apart from the index (`shared_bytes`).
//!
//! `center` first subtracts the candidates' mean key, which changes all inner products of a query by the same amount;
//! the paper does not.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::sync::Arc;

use rayon::prelude::*;

use super::ParamInfo;
use super::planes::RandomPlanes;
use super::signatures::{Signatures, Ties, halves, words_of};
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::entry::{MethodEntry, Preset, SEED};
use crate::scored::granularity::{Granularity, Reduce};
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
use crate::types::attention_spec::SoftmaxScale;
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, Role};
use spattn_kernels::hyperplanes::Hyperplanes;

/// Largest number of bits: more than the paper uses, and more would cost more than exact scores.
const MOST_BITS: usize = 4096;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "lsh_bits",
    role: Role::Method,
    reference: "the LSH baseline of HashAttention (Desai et al. 2024, arXiv:2412.14468)",
    about: "top-k by Hamming distance of random projections' signs",
    params: &[
        ParamInfo { key: "bits", default: "32", about: "bits of a token's signature, 1 to 4096; kept in words of 32" },
        ParamInfo {
            key: "label",
            default: "a",
            about: "a | av: search by attention score, or by it times the value's norm",
        },
        ParamInfo { key: "center", default: "false", about: "false | true: subtract the candidates' mean key" },
        ParamInfo { key: "seed", default: "1", about: "draw of the hyperplanes, which all heads share" },
        Ties::INFO,
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK_BY_ORDER,
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
        name: "paper",
        values: &[
            ("bits", "32"),
            ("label", "av"),
            ("ratio", "0.0625"),
            ("sink", "128"),
            ("local", "128"),
            ("tail", "indexed"),
        ],
        source: "HashAttention Table 8 and §5: 32 bits (also 256 to 1024), 1/16 of the tokens, first and last 128 kept",
    }],
    build: |params| {
        let bits = params.get_within("bits", 32, 1..=MOST_BITS)?;
        let by_norm = params.choice("label", &["a", "av"])? == "av";
        let center = params.choice("center", &["false", "true"])? == "true";
        let seed = params.get_minor_as("seed", 1u64, SEED)?;
        let ties = Ties::read(params, seed)?;
        let planes = Arc::new(RandomPlanes::new(bits, seed));
        let random = RandomSignatures { bits, by_norm, center, seed, ties, planes };
        Ok(Scored::read(params, random, Choice::by_order(Budget::Tokens(64)))?.method())
    },
};

/// Scores candidates by minus the Hamming distance of their signatures to the query's.
#[derive(Clone)]
struct RandomSignatures {
    bits: usize,
    by_norm: bool,
    center: bool,
    seed: u64,
    ties: Ties,
    planes: Arc<RandomPlanes>,
}

/// Signatures, and the statistics with which further keys are signed.
struct Signed {
    signatures: Signatures,
    learned: LearnedNorms,
}

/// Statistics of a prefix's keys and values.
#[derive(Clone, Default)]
struct LearnedNorms {
    /// Mean key, if it is subtracted.
    mean: Option<Vec<f32>>,
    /// Norm of the shortest value that is not zero; zero values count as that long.
    shortest: f64,
    /// Norm of the longest key, with its `√d·ln‖v‖` if values count. All keys are lengthened to it.
    longest: f64,
}

impl Scorer for RandomSignatures {
    type Index = Signed;

    /// Leaves out the order of ties, which only concerns queries, and the planes, which follow from bits and seed.
    fn index_key(&self) -> IndexKey {
        let Self { bits, by_norm, center, seed, ties: _, planes: _ } = self;
        IndexKey::new((*bits, *by_norm, *center, *seed))
    }

    /// Needs all keys and values at once: each signature depends on their mean and on the longest of them.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Signed, KvError> {
        let (keys, values) = (prefix.candidate_keys().to_f32()?, prefix.candidate_values().to_f32()?);
        let learned = self.learn(&keys, &values, (prefix.d, prefix.scale));
        let signatures = self.signatures(&learned, &keys, &values, (prefix.d, prefix.scale));
        let signatures = Signatures::new(&signatures, words_of(self.bits));
        Ok(Signed { signatures, learned })
    }

    fn growth(&self) -> Growth {
        Growth::OfPrefix(
            "signatures of new keys are appended; a key longer than the prefix's longest counts as that long",
        )
    }

    fn empty(&self, _: KvHeadId, like: Option<&Signed>) -> Signed {
        let learned = like.map_or_else(LearnedNorms::default, |like| like.learned.clone());
        let before = like.map(|like| &like.signatures);
        Signed { signatures: Signatures::empty_behind(before, words_of(self.bits)), learned }
    }

    fn append(&self, index: &mut Signed, kept: usize, new: &NewTokens<'_>) {
        let signatures = self.signatures(&index.learned, new.keys, new.values, (new.place.d, new.place.scale));
        index.signatures.replace_from(kept, &signatures);
    }

    fn index_bytes(&self, index: &Signed) -> usize {
        index.signatures.bytes()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Signed>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let signatures = self.query_signatures(queries, cost);
        Ok(segment.index.signatures.counted_scores(&signatures, queries.group(), self.ties, cost))
    }

    /// With a single row, distances are summed over the group before scores are written.
    fn sums(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Signed>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let signatures = self.query_signatures(queries, cost);
        let of_keys = &segment.index.signatures;
        Ok(match queries.rows {
            1 => of_keys.counted_sums(&signatures, self.ties, cost),
            rows => {
                let scores = of_keys.counted_scores(&signatures, queries.group(), self.ties, cost);
                Reduce::Sum.apply(&scores, rows * of_keys.candidates())
            }
        })
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl RandomSignatures {
    /// Signatures of all queries, `[head][row][word]`, with their cost.
    fn query_signatures(&self, queries: &GroupQueries<'_>, cost: &mut Cost) -> Vec<u32> {
        let planes = self.planes.of_width(self.width(queries.d));
        let augmented = self.augment_queries(queries.queries, queries.d);
        let flops = 2 * (augmented.len() * planes.count()) as u64;
        cost.score_flops += flops;
        cost.projection_flops += flops;
        cost.shared_bytes += planes.bytes() as u64;
        cost.shared_uses += 1;
        side_signatures(&planes, &augmented)
    }

    /// Computes the statistics of `keys` and `values`, `[token][d]`.
    fn learn(&self, keys: &[f32], values: &[f32], (d, scale): (usize, SoftmaxScale)) -> LearnedNorms {
        let mean = self.center.then(|| mean_row(keys, d));
        let shortest = values.chunks_exact(d).map(norm).filter(|n| *n > 0.0).fold(f64::INFINITY, f64::min);
        let mut learned =
            LearnedNorms { mean, shortest: if shortest.is_finite() { shortest } else { 1.0 }, longest: 0.0 };
        let further = self.further(&learned, values, (d, scale));
        learned.longest = longest(&learned.centred(keys, d), d, further.as_deref());
        learned
    }

    /// The further coordinate of each token, if values count: `ln‖v‖` times the divisor of the logits.
    fn further(&self, learned: &LearnedNorms, values: &[f32], (d, scale): (usize, SoftmaxScale)) -> Option<Vec<f32>> {
        let of = |v: &[f32]| (scale.divisor() * norm(v).max(learned.shortest).ln()) as f32;
        self.by_norm.then(|| values.chunks_exact(d).map(of).collect())
    }

    /// Packed signatures of tokens, `[token][word]`.
    fn signatures(
        &self,
        learned: &LearnedNorms,
        keys: &[f32],
        values: &[f32],
        (d, scale): (usize, SoftmaxScale),
    ) -> Vec<u32> {
        let further = self.further(learned, values, (d, scale));
        let augmented = augment_to(learned.longest, &learned.centred(keys, d), d, further.as_deref());
        side_signatures(&self.planes.of_width(self.width(d)), &augmented)
    }

    /// Number of coordinates of an augmented vector.
    fn width(&self, d: usize) -> usize {
        d + 1 + usize::from(self.by_norm)
    }

    /// `ψ_q` of `queries: [query][d]`.
    fn augment_queries(&self, queries: &[f32], d: usize) -> Vec<f32> {
        let further: &[f32] = if self.by_norm { &[1.0, 0.0] } else { &[0.0] };
        queries.chunks_exact(d).flat_map(|q| q.iter().chain(further)).copied().collect()
    }
}

impl LearnedNorms {
    /// `rows: [token][d]` less the mean, if it is subtracted.
    fn centred(&self, rows: &[f32], d: usize) -> Vec<f32> {
        let mut rows = rows.to_vec();
        if let Some(mean) = &self.mean {
            rows.chunks_exact_mut(d).for_each(|row| row.iter_mut().zip(mean).for_each(|(x, m)| *x -= m));
        }
        rows
    }
}

fn mean_row(rows: &[f32], d: usize) -> Vec<f32> {
    let count = (rows.len() / d) as f64;
    let mut sums = vec![0.0f64; d];
    for row in rows.chunks_exact(d) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// `ψ_k` of `keys: [token][d]`: each with its coordinate in `with`, if given, and lengthened to the longest of them.
pub(super) fn augment_keys(keys: &[f32], d: usize, with: Option<&[f32]>) -> Vec<f32> {
    augment_to(longest(keys, d, with), keys, d, with)
}

/// Norm of the longest key, with its coordinate in `with`.
fn longest(keys: &[f32], d: usize, with: Option<&[f32]>) -> f64 {
    let length = |(t, key): (usize, &[f32])| norm(key).hypot(with.map_or(0.0, |with| f64::from(with[t])));
    keys.chunks_exact(d).enumerate().map(length).fold(0.0, f64::max)
}

/// `ψ_k` of `keys: [token][d]`, lengthened to the norm `longest`; a longer key keeps its length.
fn augment_to(longest: f64, keys: &[f32], d: usize, with: Option<&[f32]>) -> Vec<f32> {
    let row = |(t, key): (usize, &[f32])| -> Vec<f32> {
        let further = with.map(|with| with[t]);
        let length = norm(key).hypot(f64::from(further.unwrap_or(0.0)));
        let lengthening = (longest * longest - length * length).max(0.0).sqrt() as f32;
        key.iter().copied().chain(further).chain([lengthening]).collect()
    };
    keys.chunks_exact(d).enumerate().flat_map(row).collect()
}

/// Packed signatures of `vectors`, `[row][word]`.
pub(super) fn side_signatures(planes: &Hyperplanes, vectors: &[f32]) -> Vec<u32> {
    const ROWS: usize = 1024;
    let words = words_of(planes.count());
    let of_block = |vectors: &[f32]| {
        let mut sides = vec![0; vectors.len() / planes.d() * planes.words()];
        planes.side_bits(vectors, &mut sides);
        sides.chunks_exact(planes.words()).flat_map(|row| halves(row, words)).collect::<Vec<u32>>()
    };
    vectors.par_chunks(ROWS * planes.d()).flat_map_iter(of_block).collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::planes::gaussians;
    use super::super::tests::{noise, none, prefix, random_kv, run, select};
    use super::*;
    use crate::kv::{KvDtype, LayerKv};
    use crate::{SelectedTokens, Selection};

    /// A head width with its default scale.
    fn width_of(d: usize) -> (usize, SoftmaxScale) {
        (d, SoftmaxScale::inverse_root(d))
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    /// The tokens with the smallest Hamming distances, computed bit by bit from `f64` projections.
    fn naive_picks(kv: &LayerKv, query: &[f32], candidates: std::ops::Range<usize>, bits: usize, k: usize) -> Vec<u32> {
        let d = query.len();
        let (keys, values) = (kv.keys.head(0).to_f32(), kv.values.head(0).to_f32());
        let extended: Vec<Vec<f32>> = candidates
            .clone()
            .map(|t| {
                let mut key = keys[t * d..][..d].to_vec();
                key.push(((d as f64).sqrt() * norm(&values[t * d..][..d]).ln()) as f32);
                key
            })
            .collect();
        let longest = extended.iter().map(|k| norm(k)).fold(0.0, f64::max);
        let normals = gaussians(bits * (d + 2), 1);
        let side = |x: &[f32], bit: usize| dot(x, &normals[bit * (d + 2)..][..d + 2]) > 0.0;
        let of_query: Vec<f32> = query.iter().copied().chain([1.0, 0.0]).collect();
        let distance = |token: &usize| {
            let mut key = extended[*token].clone();
            key.push((longest * longest - norm(&key).powi(2)).max(0.0).sqrt() as f32);
            (0..bits).filter(|b| side(&key, *b) != side(&of_query, *b)).count()
        };
        let mut order: Vec<usize> = (0..extended.len()).collect();
        order.sort_by_key(|t| (distance(t), *t));
        order.truncate(k);
        order.sort_unstable();
        order.into_iter().map(|t| (t + candidates.start) as u32).collect()
    }

    #[test]
    fn equals_a_naive_reference() {
        let (d, n, k) = (32, 300, 20);
        let kv = random_kv(KvDtype::F32, 1, n, d, 4);
        let queries = noise(2 * d, 6);
        for bits in [5, 32, 100] {
            let picks = queries.chunks(d).map(|q| SelectedTokens::softmax(naive_picks(&kv, q, 10..290, bits, k)));
            let expected = Selection::PerHead(picks.collect());
            let spec = format!("lsh_bits:bits={bits},label=av,ties=first,k={k}");
            assert_eq!(select(&spec, &kv, &queries, 10..290).0, expected, "{spec}");
        }
    }

    /// Equal keys have equal distances from any query.
    #[test]
    fn equal_keys_are_picked_by_the_seed_and_not_by_position() {
        let mut kv = LayerKv::new(KvDtype::F32, 1, 8, 1000);
        (0..1000).for_each(|_| kv.append(&noise(8, 3), &noise(8, 4)));
        let picks = |spec: &str| match select(spec, &kv, &noise(2 * 8, 5), 10..1000).0 {
            Selection::PerHead(picks) => picks.into_iter().map(|p| p.tokens).collect(),
            Selection::Shared(picks) => vec![picks.tokens],
        };
        assert_eq!(picks("lsh_bits:ties=first,k=4"), [[10, 11, 12, 13], [10, 11, 12, 13]]);
        let seeded = picks("lsh_bits:k=60");
        assert_eq!(seeded[0], seeded[1], "one order for all heads");
        assert_eq!(seeded[..1], picks("lsh_bits:k=60,per=kv_head"), "and for their sum");
        assert_ne!(seeded, picks("lsh_bits:k=60,seed=2"));
        // Of 60 selected tokens, 30 are expected in each half, with a deviation of 3.8.
        let early = seeded[0].iter().filter(|t| **t < 505).count();
        assert!((15..=45).contains(&early), "{early} of 60 in the first half");
    }

    #[test]
    fn augmented_cosines_are_in_the_order_of_inner_products() {
        let d = 24;
        let (keys, values, query) = (noise(200 * d, 1), noise(200 * d, 2), noise(d, 3));
        for by_norm in [false, true] {
            let planes = RandomPlanes::new(8, 1).into();
            let scorer = RandomSignatures { bits: 8, by_norm, center: false, seed: 1, ties: Ties::First, planes };
            let norms = scorer.further(&scorer.learn(&keys, &values, width_of(d)), &values, width_of(d));
            let augmented = augment_keys(&keys, d, norms.as_deref());
            let width = d + 1 + usize::from(by_norm);
            let longest = norm(&augmented[..width]);
            let asked: Vec<f32> = query.iter().copied().chain(by_norm.then_some(1.0)).chain([0.0]).collect();
            for (t, row) in augmented.chunks(width).enumerate() {
                assert!((norm(row) - longest).abs() < 1e-3, "one length");
                let wanted = dot(&query, &keys[t * d..][..d]) + norms.as_ref().map_or(0.0, |n| f64::from(n[t]));
                assert!((dot(&asked, row) - wanted).abs() < 1e-3);
            }
        }
    }

    #[test]
    fn bits_agree_as_often_as_the_angle_says() {
        const BITS: usize = 1 << 14;
        let d = 16;
        let planes = RandomPlanes::new(BITS, 7).of_width(d);
        let (mut x, mut y) = (vec![0.0f32; d], vec![0.0f32; d]);
        x[3] = 2.0;
        let mut chi_square = 0.0;
        const ANGLES: usize = 20;
        for i in 1..=ANGLES {
            let angle = std::f64::consts::PI * i as f64 / (ANGLES + 1) as f64;
            (y[3], y[8]) = (0.5 * angle.cos() as f32, 0.5 * angle.sin() as f32);
            let both = side_signatures(&planes, &[x.clone(), y.clone()].concat());
            let (a, b) = both.split_at(words_of(BITS));
            let differ: u32 = a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum();
            let p = angle / std::f64::consts::PI;
            let expected = p * BITS as f64;
            chi_square += (f64::from(differ) - expected).powi(2) / (expected * (1.0 - p));
        }
        // All angles share one draw of planes, so squares are dependent: their sum has mean 20, far below that of a wrong law.
        assert!(chi_square < 60.0, "chi-square {chi_square} of {ANGLES} angles");
    }

    #[test]
    fn more_bits_find_more_of_the_largest_scores() {
        let kv = random_kv(KvDtype::F32, 1, 2000, 32, 5);
        let query = noise(32, 7);
        let tokens = |spec: &str| match select(spec, &kv, &query, 0..2000).0 {
            Selection::PerHead(mut picks) => picks.remove(0).tokens,
            Selection::Shared(picks) => picks.tokens,
        };
        let best = tokens("topk:k=100");
        let found = |bits: usize| {
            let picks = tokens(&format!("lsh_bits:bits={bits},k=100"));
            picks.iter().filter(|t| best.contains(t)).count()
        };
        let found = [8, 64, 512, 4096].map(found);
        assert!(found.is_sorted() && found[0] > 5 && found[3] > 70, "{found:?} of 100");
    }

    #[test]
    fn signatures_and_planes_are_counted_as_stored_and_read() {
        let prefix = prefix(1, 1, 1000, 32);
        let (_, fork) = run(&prefix, "lsh_bits:bits=40,k=10", &none(), 4, 1);
        let cost = fork.costs().total(|_| true);
        assert_eq!(fork.aux_bits(), 64.0, "two words of 32 bits");
        assert_eq!(cost.aux_bytes, 1000 * 8, "signatures, once for the group");
        assert_eq!(cost.shared_bytes, 40 * 33 * 4, "planes, once for the group");
        assert_eq!(cost.score_flops, 2 * 4 * 40 * 33);
    }

    #[test]
    fn values_of_no_length_and_keys_of_no_length_have_signatures() {
        let planes = Arc::new(RandomPlanes::new(8, 1));
        let scorer = RandomSignatures { bits: 8, by_norm: true, center: false, seed: 1, ties: Ties::First, planes };
        let further =
            |values: &[f32]| scorer.further(&scorer.learn(values, values, width_of(2)), values, width_of(2)).unwrap();
        let norms = further(&[0.0, 0.0, 0.6, 0.8, 3.0, 4.0]);
        assert_eq!(norms[0], norms[1]);
        assert!((norms[2] - 2f32.sqrt() * 5f32.ln()).abs() < 1e-5);
        assert_eq!(further(&[0.0; 4]), [0.0, 0.0]);
        assert_eq!(augment_keys(&[0.0; 4], 2, None), [0.0; 6]);
    }
}
