//! A method's results on given text: the likelihood of a text, or of a question's options.

use serde::{Deserialize, Serialize};

/// The results on a scored text. They are sums, so that means over examples are exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// The negative log-likelihood of all scored tokens, in nats.
    pub nll: f64,
    /// The number of scored tokens.
    pub tokens: usize,
    /// The number of words, split at white space, that begin in the scored text.
    pub words: usize,
    /// The number of bytes of the scored text.
    pub bytes: usize,
    /// The number of tokens at which the most probable token is the same as under `full`.
    pub same_top: usize,
    /// The sum over tokens of the divergence from `full`'s distribution, `KL(full ‖ method)`, in nats.
    pub kl_sum: f64,
    /// The divergence at every token, with four significant digits; empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kl: Vec<f64>,
}

/// The results on the options of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The log-likelihood of each option after the question, in nats.
    pub log_likelihoods: Vec<f64>,
    /// The number of characters of each option.
    pub characters: Vec<usize>,
    /// The index of the right option.
    pub right: usize,
    /// The index of the most likely option.
    pub most_likely: usize,
    /// The index of the option with the greatest log-likelihood per character.
    pub most_likely_by_length: usize,
}

impl Choice {
    /// Makes the results from log-likelihoods and characters by option. Of equally likely options, the
    /// first one counts.
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
