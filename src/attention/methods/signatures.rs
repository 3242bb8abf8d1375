//! Packed bit signatures of the candidates, searched by Hamming distance.

use crate::cost::Cost;
use crate::kernels::cpu::hamming::hamming_scores;

/// Words of 32 bits that hold a signature.
pub(super) fn words_of(bits: usize) -> usize {
    bits.div_ceil(32)
}

/// One bit a number, 1 where it is positive: the first number is the lowest bit of the first word.
pub(super) fn pack_signs(numbers: &[f32]) -> impl Iterator<Item = u32> {
    let word = |part: &[f32]| part.iter().enumerate().fold(0, |word, (i, x)| word | u32::from(*x > 0.0) << i);
    numbers.chunks(32).map(word)
}

/// The first `words` words of 32 bits of some of 64, in order of their bits.
pub(super) fn halves(wide: &[u64], words: usize) -> impl Iterator<Item = u32> {
    wide.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).take(words)
}

/// Signatures of the candidates of one KV head, as [`hamming_scores`] reads them: `[word][candidate]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signatures {
    planes: Vec<u32>,
    words: usize,
}

impl Signatures {
    /// From `[candidate][word]`.
    pub(super) fn new(by_candidate: &[u32], words: usize) -> Self {
        let candidates = by_candidate.len() / words;
        let plane = |w: usize| (0..candidates).map(move |c| by_candidate[c * words + w]);
        Self { planes: (0..words).flat_map(plane).collect(), words }
    }

    /// Bytes as stored.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.planes.as_slice())
    }

    /// Minus the Hamming distances of `queries: [group][word]`: `[group][candidate]`.
    pub(super) fn scores(&self, queries: &[u32]) -> Vec<f32> {
        let mut scores = vec![0.0; queries.len() / self.words * (self.planes.len() / self.words)];
        hamming_scores(queries, &self.planes, self.words, &mut scores);
        scores
    }

    /// Candidates.
    pub(super) fn candidates(&self) -> usize {
        self.planes.len() / self.words
    }

    /// Keeps the first `kept` candidates, and adds `[candidate][word]` behind them.
    pub(super) fn replace_from(&mut self, kept: usize, by_candidate: &[u32]) {
        let (had, new) = (self.candidates(), by_candidate.len() / self.words);
        let mut planes = Vec::with_capacity(self.words * (kept + new));
        for word in 0..self.words {
            planes.extend_from_slice(&self.planes[word * had..][..kept]);
            planes.extend((0..new).map(|c| by_candidate[c * self.words + word]));
        }
        self.planes = planes;
    }

    /// As [`scores`](Self::scores); counts the signatures read, once for all queries. Comparing bits takes no
    /// floating-point operation.
    pub(super) fn counted_scores(&self, queries: &[u32], cost: &mut Cost) -> Vec<f32> {
        cost.aux_bytes += self.bytes() as u64;
        self.scores(queries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(signatures.scores(&[0, 0, 0b1, 0b1]), [-2.0, -3.0, 0.0, 0.0, -3.0, -2.0]);
        assert_eq!(signatures.bytes(), 24);
    }
}
