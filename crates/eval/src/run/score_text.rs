//! Scoring text that is given: every token is fed through the model, and the logits before it say how likely it was.
//!
//! What is scored is what decoding would see: each token is attended by its method, one after the other, over the keys and
//! values that the method itself has kept. Only the products with the weights are shared by several tokens at a time, which
//! changes no bit.

use rayon::prelude::*;

use super::decoding_policy::{DecodingPolicy, Feed};
use crate::records::fidelity::four_digits;
use spattn_kernels::distribution::{divergence, log_sum_exp};
use spattn_kernels::topk::argmax;
use spattn_model::engine::READ_AT_ONCE;
use spattn_tasks::likelihood::Continuation;

/// Bytes of logits that are in memory at a time, about.
const LOGIT_BYTES: usize = 64 << 20;

/// Feeding and scoring continuations of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct GivenText<'a> {
    /// What is scored, each after the prompt.
    pub texts: &'a [TextToScore<'a>],
    /// Whether to compare each distribution with that of `full`.
    pub compare: bool,
}

/// A continuation of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct TextToScore<'a> {
    /// Its tokens; at least one more than `given`.
    pub tokens: &'a [u32],
    /// The number of first tokens that are read but not scored; at least one if the prompt is empty.
    pub given: usize,
}

impl<'a> TextToScore<'a> {
    /// The tokens that are fed: all but the last, which is only predicted.
    fn fed(&self) -> &'a [u32] {
        &self.tokens[..self.tokens.len().saturating_sub(1)]
    }
}

impl<'a> From<&'a [u32]> for TextToScore<'a> {
    /// All of it is scored.
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, given: 0 }
    }
}

impl<'a> From<&'a Continuation> for TextToScore<'a> {
    fn from(continuation: &'a Continuation) -> Self {
        Self { tokens: &continuation.tokens, given: continuation.given }
    }
}

/// What a method made of a continuation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// Negative log-likelihood of its tokens, in nats.
    pub nll: f64,
    /// Tokens at which the most probable token is also that of `full`; 0 without a comparison.
    pub same_top: usize,
    /// Sum over tokens of `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The divergence at every token, to four digits; empty without a comparison.
    pub kl: Vec<f64>,
}

impl Sums {
    /// Takes in what was made of one token, in the order of the text.
    pub(super) fn take(&mut self, token: &ScoredToken) {
        self.nll += token.nll;
        let Some(Compared { kl, same_top }) = token.compared else { return };
        self.same_top += usize::from(same_top);
        self.kl_sum += kl;
        self.kl.push(four_digits(kl));
    }
}

/// What a method made of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScoredToken {
    /// Negative log-likelihood, in nats.
    nll: f64,
    compared: Option<Compared>,
}

/// A distribution beside that of `full`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Compared {
    /// `KL(full ‖ method)`, in nats.
    kl: f64,
    /// Whether both have the same most probable token.
    same_top: bool,
}

impl ScoredToken {
    /// Scores token `target` by the logits before it, and compares them with those of `full` if these are given.
    pub(super) fn new(logits: &[f32], target: u32, full: Option<&Distribution>) -> Self {
        let log_z = log_sum_exp(logits);
        let compare =
            |full: &Distribution| Compared { kl: full.divergence(logits, log_z), same_top: argmax(logits) == full.top };
        Self { nll: log_z - f64::from(logits[target as usize]), compared: full.map(compare) }
    }
}

/// What `full` makes of the next token, of a vocabulary.
pub struct Distribution {
    logits: Vec<f32>,
    log_z: f64,
    top: usize,
}

impl Distribution {
    pub(super) fn new(logits: &[f32]) -> Self {
        Self { logits: logits.to_vec(), log_z: log_sum_exp(logits), top: argmax(logits) }
    }

    /// `KL(self ‖ other)` in nats. Rounding errors below 0 count as 0.
    fn divergence(&self, other: &[f32], log_z: f64) -> f64 {
        divergence(&self.logits, self.log_z, other, log_z).max(0.0)
    }
}

impl DecodingPolicy for GivenText<'_> {
    type Answer = Sums;
    /// What `full` makes of each token that is scored.
    type Prediction = Vec<Option<Distribution>>;

    const SCORES_EACH_TOKEN: bool = true;

    fn answers(&self) -> usize {
        self.texts.len()
    }

    fn longest_answer(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0)
    }

    fn known_tokens(&self) -> usize {
        let fed: usize = self.texts.iter().map(|text| text.fed().len()).sum();
        fed / self.texts.len().max(1)
    }

    fn has_reference(&self) -> bool {
        self.compare
    }

    fn tokens_per_step(&self, sequences: usize, vocab_size: usize) -> usize {
        (LOGIT_BYTES / (4 * vocab_size * sequences.max(1))).clamp(1, READ_AT_ONCE)
    }

    fn begin(&self, number: usize, unread: &[u32]) -> (Feed, Sums) {
        (Feed::new(unread, self.texts[number].fed()), Sums::default())
    }

    fn predict(&self, number: usize, feed: &Feed, rows: &[&[f32]]) -> Self::Prediction {
        let targets: Vec<Option<u32>> = self.targets(number, feed, rows.len()).collect();
        let rows = rows.par_iter().zip(targets);
        rows.map(|(logits, target)| target.map(|_| Distribution::new(logits))).collect()
    }

    fn take_logits(
        &self,
        number: usize,
        feed: &mut Feed,
        sums: &mut Sums,
        rows: &[&[f32]],
        reference: Option<&Self::Prediction>,
    ) {
        let targets: Vec<Option<u32>> = self.targets(number, feed, rows.len()).collect();
        let full = |i: usize| reference.and_then(|full| full.get(i)?.as_ref());
        let rows = rows.par_iter().zip(targets).enumerate();
        let scored: Vec<Option<ScoredToken>> =
            rows.map(|(i, (logits, target))| target.map(|target| ScoredToken::new(logits, target, full(i)))).collect();
        scored.iter().flatten().for_each(|token| sums.take(token));
    }
}

impl GivenText<'_> {
    /// The token that each of the last rows of logits is scored by; `None` where nothing is scored.
    fn targets(&self, number: usize, feed: &Feed, rows: usize) -> impl Iterator<Item = Option<u32>> {
        let TextToScore { tokens, given } = self.texts[number];
        feed.predicted(rows).map(move |at| at.filter(|at| *at >= given).map(|at| tokens[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities_and_a_divergence() {
        let (full, ours): ([f64; 3], [f64; 3]) = ([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]);
        // Logits are log-probabilities plus a constant; here it is too large for `exp`.
        let logits = |p: [f64; 3], shift: f64| p.map(|p| (p.ln() + shift) as f32);
        let (dense, sparse) = (logits(full, 1000.0), logits(ours, -5.0));
        assert!((log_sum_exp(&dense) - 1000.0).abs() < 1e-3 && (log_sum_exp(&sparse) + 5.0).abs() < 1e-5);
        let of_full = Distribution::new(&dense);
        assert_eq!(of_full.top, 0);
        let divergence: f64 = full.iter().zip(ours).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((of_full.divergence(&sparse, log_sum_exp(&sparse)) - divergence).abs() < 1e-3);
        assert_eq!(of_full.divergence(&dense, log_sum_exp(&dense)), 0.0);

        let mut sums = Sums::default();
        sums.take(&ScoredToken::new(&sparse, 1, None));
        assert!((sums.nll + 0.3f64.ln()).abs() < 1e-5);
        assert_eq!(sums, Sums { nll: sums.nll, ..Sums::default() }, "nothing was compared");
        sums.take(&ScoredToken::new(&sparse, 2, Some(&of_full)));
        sums.take(&ScoredToken::new(&dense, 0, Some(&of_full)));
        assert!((sums.nll + (0.3f64 * 0.6 * 0.5).ln()).abs() < 1e-3);
        assert!((sums.kl_sum - divergence).abs() < 1e-3 && (sums.kl[0] - divergence).abs() < 1e-3);
        assert_eq!((sums.same_top, sums.kl.len(), sums.kl[1]), (1, 2, 0.0));
    }
}
