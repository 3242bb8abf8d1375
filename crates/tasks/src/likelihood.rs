//! Tasks that are scored by teacher forcing: the model reads given text, and its probability of that text is measured. Nothing is
//! generated.
//!
//! A [`Passage`] is a prompt in tokens with one or more continuations: perplexity has one, a multiple-choice question has one for
//! each option.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Splits text into the tokens of the evaluated model, without chat template and BOS.
pub trait TextEncoder: Sync {
    /// The tokens of a text.
    ///
    /// # Errors
    /// If the tokenizer fails.
    fn encode(&self, text: &str) -> Result<TextTokens>;

    /// The tokens that the tokenizer puts in front of a text; for most models a BOS.
    fn front(&self) -> &[u32];
}

/// A text in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextTokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, the byte offset in the text at which it ends (exclusive).
    pub ends: Vec<usize>,
}

/// A prompt and its possible continuations.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// Full task name as recorded.
    pub task: String,
    /// The requested length in tokens; 0 if a file fixes it.
    pub length: usize,
    /// Position of the example in its task, from 0.
    pub index: usize,
    /// Where the text came from.
    pub source: String,
    /// All tokens before the continuations, BOS included. It may be empty only if every continuation has tokens that are not
    /// scored ([`Continuation::given`]).
    pub prompt: Vec<u32>,
    /// The continuations, each of which follows the prompt on its own; at least one.
    pub continuations: Vec<Continuation>,
    /// How the probabilities become a score.
    pub scoring: Scoring,
}

/// A continuation of the prompt, whose probability is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// Token ids; at least one of them is scored.
    pub tokens: Vec<u32>,
    /// How many of the first tokens belong to the prompt, and so are not scored.
    pub given: usize,
    /// The text for the record; empty for perplexity.
    pub text: String,
    /// Number of words that begin in the scored text; words are separated by white space.
    pub words: usize,
    /// Bytes of the text that is scored.
    pub bytes: usize,
}

/// How probabilities become a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Perplexity of the only continuation. Each token's likelihood is also compared with that under full attention.
    Perplexity,
    /// One of the continuations is right.
    Choice {
        /// Index of the right continuation.
        right: usize,
        /// Whether options are compared by log-likelihood per character (lm-eval's `acc_norm`) instead of log-likelihood (`acc`).
        normalised: bool,
    },
}

impl Scoring {
    /// The measure of a passage scored like this.
    pub fn measure(self) -> Measure {
        match self {
            Self::Perplexity => Measure::Perplexity,
            Self::Choice { .. } => Measure::Score,
        }
    }
}

/// What the score of a task is, and whether higher or lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A number in 0..=1, averaged over examples and shown in percent; higher is better.
    #[default]
    Score,
    /// Exponential of the mean negative log-likelihood over the scored tokens of all examples; lower is better.
    Perplexity,
}

impl Measure {
    /// Whether it is the usual score, which records do not name.
    pub fn is_score(&self) -> bool {
        *self == Self::Score
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Perplexity => "perplexity",
        }
    }
}

/// A task of passages.
pub trait LikelihoodTask: Sync {
    /// The measure of its passages.
    fn measure(&self) -> Measure {
        Measure::Score
    }

    /// Number of passages of `length` tokens.
    ///
    /// # Errors
    /// If the tokenizer fails on the text, or the text is empty.
    fn available(&self, length: usize, encoder: &dyn TextEncoder) -> Result<usize>;

    /// The passage at `index`; `length` is 0 for tasks that are not sized.
    ///
    /// # Errors
    /// If there is no such passage, or the task's data is malformed.
    fn passage(&self, length: usize, index: usize, seed: u64, encoder: &dyn TextEncoder) -> Result<Passage>;
}
