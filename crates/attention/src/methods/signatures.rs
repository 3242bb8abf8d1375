//! Packed bit signatures of candidates, searched by Hamming distance.
//!
//! Signatures of `b` bits have only `b + 1` distances, so many candidates tie, and the order among them ([`Ties`])
//! decides much of the selection. Papers leave it to their top-k routine. Order by position would favour the earliest
//! tokens; here the order is a random permutation, fixed by a seed and a token's place.

#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::ParamInfo;
use crate::cost::Cost;
use crate::{Params, mix_seed};
use spattn_base::error::UsageError;
use spattn_kernels::hamming::{TieBreakOffsets, hamming_scores, hamming_sums};

/// Number of 32-bit words of a signature.
pub(crate) fn words_of(bits: usize) -> usize {
    bits.div_ceil(32)
}

/// Bytes of the signatures of `sets` sets of `tokens` keys each on a device, which stores planes of 4 tokens.
pub(super) fn device_bytes(sets: usize, bits: usize, tokens: usize) -> usize {
    size_of::<u32>() * sets * words_of(bits) * tokens.next_multiple_of(4)
}

/// Packs one bit for each number, 1 where it is positive; the first number is the lowest bit of the first word.
pub(super) fn pack_signs(numbers: &[f32]) -> impl Iterator<Item = u32> {
    let word = |part: &[f32]| part.iter().enumerate().fold(0, |word, (i, x)| word | u32::from(*x > 0.0) << i);
    numbers.chunks(32).map(word)
}

/// Splits 64-bit words into 32-bit words, low half first, and returns the first `words` of them.
pub(super) fn halves(wide: &[u64], words: usize) -> impl Iterator<Item = u32> {
    wide.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).take(words)
}

/// The order of candidates at equal distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ties {
    /// The earliest first.
    First,
    /// By a permutation of places from this seed: the same for all queries, heads, layers and examples.
    Seeded(u64),
}

impl Ties {
    /// The parameter that [`read`](Self::read) reads.
    pub(super) const INFO: ParamInfo = ParamInfo {
        key: "ties",
        default: "seeded",
        about: "seeded | first: tokens at one distance in a drawn order, or the earliest first",
    };

    /// Reads the parameter; `seed` is the method's.
    ///
    /// # Errors
    /// If it has another value.
    pub(super) fn read(params: &mut Params, seed: u64) -> Result<Self, UsageError> {
        Ok(match params.choice(Self::INFO.key, &["seeded", "first"])? {
            "first" => Self::First,
            _ => Self::Seeded(mix_seed(seed, u64::from_le_bytes(*b"hamming "))),
        })
    }

    /// Offsets that order ties in the scores of signatures of `bits` bits, for groups of `group` heads; `place` is that
    /// of the first candidate.
    fn raises(self, bits: usize, group: usize, place: usize) -> TieBreakOffsets {
        let Self::Seeded(seed) = self else { return TieBreakOffsets::default() };
        let steps = Steps::new(bits, group);
        TieBreakOffsets { seed, place: place as u32, levels: steps.levels, unit: steps.unit() }
    }
}

/// The resolution of offsets that order ties by place. All scores stay exact in single precision, and so does their sum
/// over a group, whose offsets must not reach the next distance: a group of `2^group` heads leaves `2^levels` levels
/// (2^15 for 32 bits and four heads). Places of one level are ordered by position.
#[derive(Debug, Clone, Copy)]
struct Steps {
    levels: u32,
    group: u32,
}

impl Steps {
    fn new(bits: usize, group: usize) -> Self {
        const PRECISION: u32 = f32::MANTISSA_DIGITS;
        let [bits, group] = [bits, group].map(|n| n.next_power_of_two().trailing_zeros());
        Self { levels: PRECISION.saturating_sub(bits + 2 * group).min(16), group }
    }

    /// Offset of one level.
    fn unit(self) -> f32 {
        1.0 / (1u64 << (self.levels + self.group)) as f32
    }
}

/// Signatures of the candidates of one KV head, `[word][candidate]` as [`hamming_scores`] reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signatures {
    planes: Vec<u32>,
    words: usize,
    /// Place of the first candidate: its position, counted from the end of the sink.
    place: usize,
}

impl Signatures {
    /// Signatures from `[candidate][word]`; the first candidate is the first token after the sink.
    pub(super) fn new(by_candidate: &[u32], words: usize) -> Self {
        let candidates = by_candidate.len() / words;
        let plane = |w: usize| (0..candidates).map(move |c| by_candidate[c * words + w]);
        Self { planes: (0..words).flat_map(plane).collect(), words, place: 0 }
    }

    /// An empty set of signatures, whose places continue those of `before`, or begin after the sink.
    pub(super) fn empty_behind(before: Option<&Self>, words: usize) -> Self {
        let place = before.map_or(0, |before| before.place + before.candidates());
        Self { planes: Vec::new(), words, place }
    }

    /// Bytes as stored.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.planes.as_slice())
    }

    /// Minus the Hamming distances to `queries: [query][word]`, plus offsets below 1 that order ties:
    /// `[query][candidate]`. The offsets of `group` queries add up to less than 1 as well.
    pub(super) fn scores(&self, queries: &[u32], group: usize, ties: Ties) -> Vec<f32> {
        let candidates = self.candidates();
        let mut scores = vec![0.0; queries.len() / self.words * candidates];
        let raises = ties.raises(32 * self.words, group, self.place);
        hamming_scores(queries, &self.planes, self.words, raises, &mut scores);
        scores
    }

    /// The sums of [`counted_scores`](Self::counted_scores) over the `queries` of a group, `[candidate]`.
    pub(super) fn counted_sums(&self, queries: &[u32], ties: Ties, cost: &mut Cost) -> Vec<f32> {
        cost.aux_bytes += self.bytes() as u64;
        let mut sums = vec![0.0; self.candidates()];
        let raises = ties.raises(32 * self.words, queries.len() / self.words, self.place);
        hamming_sums(queries, &self.planes, self.words, raises, &mut sums);
        sums
    }

    /// Number of candidates.
    pub(super) fn candidates(&self) -> usize {
        self.planes.len() / self.words
    }

    /// Keeps the first `kept` candidates and appends those of `by_candidate: [candidate][word]`.
    pub(super) fn replace_from(&mut self, kept: usize, by_candidate: &[u32]) {
        let (had, new) = (self.candidates(), by_candidate.len() / self.words);
        let mut planes = Vec::with_capacity(self.words * (kept + new));
        for word in 0..self.words {
            planes.extend_from_slice(&self.planes[word * had..][..kept]);
            planes.extend((0..new).map(|c| by_candidate[c * self.words + word]));
        }
        self.planes = planes;
    }

    /// Returns [`scores`](Self::scores) and counts the bytes of the signatures once for all queries. Comparing bits takes
    /// no floating-point operations.
    pub(super) fn counted_scores(&self, queries: &[u32], group: usize, ties: Ties, cost: &mut Cost) -> Vec<f32> {
        cost.aux_bytes += self.bytes() as u64;
        self.scores(queries, group, ties)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_kernels::topk::top_k;

    /// This also holds with a random order among ties: the offsets of a group's heads add up to less than one bit.
    #[test]
    fn sums_of_a_group_are_its_scores_added_and_in_the_order_of_distances() {
        let word = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) ^ (i as u32 + 7).wrapping_mul(0x85eb_ca6b);
        for (words, group) in [(1, 4), (2, 3), (1, 8), (4, 1)] {
            let by_candidate: Vec<u32> = (0..500 * words).map(word).collect();
            let queries: Vec<u32> = (0..group * words).map(|i| word(i + 10_000)).collect();
            let signatures = Signatures::new(&by_candidate, words);
            for ties in [Ties::First, Ties::Seeded(5)] {
                let each = signatures.counted_scores(&queries, group, ties, &mut Cost::default());
                let sums = signatures.counted_sums(&queries, ties, &mut Cost::default());
                for (candidate, sum) in sums.iter().enumerate() {
                    let added: f32 = each.iter().skip(candidate).step_by(500).sum();
                    assert_eq!(*sum, added, "{group} queries of {words} words, {ties:?}, candidate {candidate}");
                    let own = &by_candidate[candidate * words..][..words];
                    let apart = |query: &[u32]| query.iter().zip(own).map(|(q, k)| (q ^ k).count_ones()).sum::<u32>();
                    let distance: u32 = queries.chunks(words).map(apart).sum();
                    assert!((0.0..1.0).contains(&(sum + distance as f32)), "{sum} for {distance}");
                }
            }
        }
    }

    #[test]
    fn signs_are_packed_from_the_lowest_bit_and_cut_words_keep_their_order() {
        let numbers: Vec<f32> = (0..40).map(|i| if i % 3 == 0 { 1.0 } else { -(i as f32) }).collect();
        let packed: Vec<u32> = pack_signs(&numbers).collect();
        assert_eq!(packed.len(), words_of(40));
        for (i, x) in numbers.iter().enumerate() {
            assert_eq!(packed[i / 32] >> (i % 32) & 1 == 1, *x > 0.0);
        }
        assert_eq!(pack_signs(&[0.0, -0.0, f32::NAN]).collect::<Vec<_>>(), [0]);
        assert_eq!(halves(&[0x2_0000_0001, 0x4_0000_0003], 3).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn scores_are_distances_of_the_candidates_in_order() {
        let signatures = Signatures::new(&[0b1, 0b1, 0b111, 0, 0, 0], 2);
        assert_eq!(signatures.scores(&[0, 0, 0b1, 0b1], 2, Ties::First), [-2.0, -3.0, 0.0, 0.0, -3.0, -2.0]);
        assert_eq!(signatures.bytes(), 24);
    }

    /// Words that look random, unrelated to the permutation.
    fn words(count: usize, seed: u64) -> Vec<u32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 ^ (state >> 11) as u32
        };
        (0..count).map(|_| next()).collect()
    }

    fn distance(a: &[u32], b: &[u32]) -> i64 {
        let differ = |(a, b): (&u32, &u32)| (0..32).filter(|bit| a >> bit & 1 != b >> bit & 1).count() as i64;
        a.iter().zip(b).map(differ).sum()
    }

    #[test]
    fn ties_never_lift_a_candidate_to_the_next_distance_alone_or_summed_over_a_group() {
        for (wide, group) in [(1, 1), (1, 4), (1, 7), (32, 4), (128, 8)] {
            let (of_keys, of_queries) = (words(500 * wide, 3), words(group * wide, 4));
            let scores = Signatures::new(&of_keys, wide).scores(&of_queries, group, Ties::Seeded(9));
            let mut summed = vec![0.0f32; 500];
            let mut expected = vec![0; 500];
            for (row, query) in scores.chunks(500).zip(of_queries.chunks(wide)) {
                for (t, key) in of_keys.chunks(wide).enumerate() {
                    assert_eq!(row[t].floor() as i64, -distance(key, query), "{wide} words, {group} heads");
                    summed[t] += row[t];
                    expected[t] -= distance(key, query);
                }
            }
            let floors: Vec<i64> = summed.iter().map(|s| s.floor() as i64).collect();
            assert_eq!(floors, expected, "{wide} words, {group} heads");
            // Sums are exact, so the order within a distance is that of a single head.
            for (t, sum) in summed.iter().enumerate() {
                let exact: f64 = scores.chunks(500).map(|row| f64::from(row[t])).sum();
                assert_eq!(f64::from(*sum), exact, "{wide} words, {group} heads");
            }
        }
    }

    #[test]
    fn picks_among_equals_are_spread_nested_and_the_same_again() {
        const TOKENS: usize = 8192;
        const BINS: usize = 32;
        let same = Signatures::new(&vec![0xdead_beef; TOKENS], 1);
        let picks = |k: usize, ties: Ties| top_k(&same.scores(&[7], 1, ties), k);
        assert_eq!(picks(5, Ties::First), [0, 1, 2, 3, 4]);
        let (mut chi_square, seeds) = (0.0, 40);
        for seed in 0..seeds {
            let spec = Ties::Seeded(mix_seed(seed, 1));
            let all = [1, 10, 100, 512, 2000].map(|k| picks(k, spec));
            for (fewer, more) in all.iter().zip(&all[1..]) {
                assert!(fewer.iter().all(|t| more.contains(t)), "the best of fewer are among the best of more");
            }
            assert_eq!(all[3], picks(512, spec));
            let mut bins = [0.0f64; BINS];
            all[3].iter().for_each(|t| bins[*t as usize * BINS / TOKENS] += 1.0);
            let expected = 512.0 / BINS as f64;
            // Drawn without replacement, counts vary less, by the share that is left.
            let share_left = 1.0 - 512.0 / TOKENS as f64;
            chi_square += bins.iter().map(|n| (n - expected).powi(2) / expected).sum::<f64>() / share_left;
        }
        // 31 degrees of freedom for each seed: mean 1240, deviation 50. Order by position gives 15 × 512 for every seed.
        let (mean, deviation) = (31.0 * seeds as f64, (62.0 * seeds as f64).sqrt());
        assert!((chi_square - mean).abs() < 4.0 * deviation, "chi-square {chi_square}, not about {mean}");
        assert_ne!(picks(512, Ties::Seeded(1)), picks(512, Ties::Seeded(2)));
    }

    #[test]
    fn an_order_among_equals_depends_on_the_place_however_a_token_came() {
        let ties = Ties::Seeded(77);
        let (keys, query) = (words(900, 5), words(1, 6));
        let whole = Signatures::new(&keys, 1).scores(&query, 2, ties);
        for cut in [0, 1, 300, 899] {
            let front = Signatures::new(&keys[..cut], 1);
            let mut behind = Signatures::empty_behind(Some(&front), 1);
            for end in [cut + 1, 899.max(cut + 1), 900] {
                let kept = behind.candidates();
                behind.replace_from(kept, &keys[cut + kept..end]);
            }
            let joined = [front.scores(&query, 2, ties), behind.scores(&query, 2, ties)].concat();
            assert_eq!(joined, whole, "cut at {cut}");
        }
        let others = Signatures::new(&words(900, 8), 1).scores(&query, 2, ties);
        let fractions = |scores: &[f32]| -> Vec<f32> { scores.iter().map(|s| s - s.floor()).collect() };
        assert_eq!(fractions(&others), fractions(&whole), "of the place alone, not of bits");
    }
}
