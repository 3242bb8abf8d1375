//! A method's results on given text: the likelihood of a text, or of the options of a question.

use serde::{Deserialize, Serialize};

/// The results on a scored text, as sums, so that means over examples are exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Negative log-likelihood of all tokens, in nats.
    pub nll: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Words, split at white space, that begin in the scored text.
    pub words: usize,
    /// Bytes of the scored text.
    pub bytes: usize,
    /// Tokens at which the most probable token is also that of `full`.
    pub same_top: usize,
    /// Sum over tokens of the divergence from `full`'s distribution, `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The divergence at every token, to four digits; empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kl: Vec<f64>,
}

/// The results on the options of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Log-likelihood of each option after the question, in nats.
    pub log_likelihoods: Vec<f64>,
    /// Characters of each option.
    pub characters: Vec<usize>,
    /// Index of the right option.
    pub right: usize,
    /// Index of the most likely option.
    pub most_likely: usize,
    /// Index of the most likely option by log-likelihood over characters.
    pub most_likely_by_length: usize,
}

impl Choice {
    /// From log-likelihoods and characters by option. Of equally likely options, the first one counts.
    pub fn new(log_likelihoods: Vec<f64>, characters: Vec<usize>, right: usize) -> Self {
        let first_greatest = |of: &dyn Fn(usize) -> f64| {
            (0..log_likelihoods.len()).fold(0, |best, i| if of(i) > of(best) { i } else { best })
        };
        let most_likely = first_greatest(&|i| log_likelihoods[i]);
        let most_likely_by_length = first_greatest(&|i| log_likelihoods[i] / characters[i].max(1) as f64);
        Self { log_likelihoods, characters, right, most_likely, most_likely_by_length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_option_wins_by_length_only() {
        let choice = Choice::new(vec![-4.0, -3.0, -3.0], vec![8, 2, 3], 0);
        assert_eq!((choice.most_likely, choice.most_likely_by_length), (1, 0));
    }
}
