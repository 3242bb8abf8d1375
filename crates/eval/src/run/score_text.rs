//! Scores given text: every token is fed through the model, and the logits before it give its likelihood.
//!
//! The scores are those that decoding would give: each token attends under its method, one after the other, over the keys and values that
//! the method has kept. Only products with the weights are computed for several tokens at a time, which changes no bit.

use super::decoding_policy::{DecodingPolicy, Feed};
use crate::records::fidelity::four_digits;
use spattn_model::engine::READ_AT_ONCE;
use spattn_model::token_scores::{Compared, TokenScore};
use spattn_tasks::likelihood::Continuation;

/// About the most tokens of all sequences in a step: enough that weights are read seldom, and no more than the step of a decoded prompt
/// with ten methods.
const MOST_ROWS: usize = 1024;

/// Feeds and scores continuations of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct GivenText<'a> {
    /// The texts to score, each after the prompt.
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
    /// A continuation that is scored as a whole.
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, given: 0 }
    }
}

impl<'a> From<&'a Continuation> for TextToScore<'a> {
    fn from(continuation: &'a Continuation) -> Self {
        Self { tokens: &continuation.tokens, given: continuation.given }
    }
}

/// A method's results on a continuation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums {
    /// The negative log-likelihood of its tokens, in nats.
    pub nll: f64,
    /// The number of tokens at which the most probable token is the same as under `full`; 0 without a comparison.
    pub same_top: usize,
    /// The sum over tokens of `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The divergence at every token, with four significant digits; empty without a comparison.
    pub kl: Vec<f64>,
}

impl Sums {
    /// Adds the score of one token. Tokens come in the order of the text.
    pub(super) fn take(&mut self, token: &TokenScore) {
        self.nll += token.nll;
        let Some(Compared { kl, same_top }) = token.compared else { return };
        self.same_top += usize::from(same_top);
        self.kl_sum += kl;
        self.kl.push(four_digits(kl));
    }
}

impl DecodingPolicy for GivenText<'_> {
    type Answer = Sums;

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

    fn tokens_per_step(&self, sequences: usize) -> usize {
        (MOST_ROWS / sequences.max(1)).clamp(1, READ_AT_ONCE)
    }

    fn begin(&self, number: usize, unread: &[u32]) -> (Feed, Sums) {
        (Feed::new(unread, self.texts[number].fed()), Sums::default())
    }

    fn targets(&self, number: usize, feed: &Feed, rows: usize) -> Vec<Option<u32>> {
        let TextToScore { tokens, given } = self.texts[number];
        feed.predicted(rows).map(|at| at.filter(|at| *at >= given).map(|at| tokens[at])).collect()
    }

    fn take_scores(&self, sums: &mut Sums, scores: &[TokenScore]) {
        scores.iter().for_each(|token| sums.take(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_tokens_and_comparisons_over_those_that_were_compared() {
        let mut sums = Sums::default();
        sums.take(&TokenScore { nll: 1.5, compared: None });
        assert_eq!(sums, Sums { nll: 1.5, ..Sums::default() }, "nothing was compared");
        sums.take(&TokenScore { nll: 0.25, compared: Some(Compared { kl: 0.123_456, same_top: false }) });
        sums.take(&TokenScore { nll: 1.0, compared: Some(Compared { kl: 0.0, same_top: true }) });
        assert_eq!((sums.nll, sums.same_top, sums.kl_sum), (2.75, 1, 0.123_456));
        assert_eq!(sums.kl, [four_digits(0.123_456), 0.0]);
    }
}
