//! Tasks scored by teacher forcing: the model reads given text, and what counts is the probability it gave to it.
//!
//! Nothing is generated. A [`Passage`] is a prompt in tokens and one or more continuations of it; perplexity has
//! one continuation, a multiple-choice question has one for each option.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Splits text into the evaluated model's tokens; neither chat template nor BOS are added.
pub trait TextEncoder: Sync {
    /// The tokens of a text.
    ///
    /// # Errors
    /// If the tokenizer cannot split it.
    fn encode(&self, text: &str) -> Result<TextTokens>;

    /// What the tokenizer puts in front of a text: a BOS, for most models.
    fn front(&self) -> &[u32];
}

/// A text in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextTokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte of the text where each token ends.
    pub ends: Vec<usize>,
}

/// A prompt and what may follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// Full task name as recorded.
    pub task: String,
    /// The length asked for in tokens; 0 if a file fixes it.
    pub length: usize,
    /// Position of the example in its task, from 0.
    pub index: usize,
    /// Where the text came from.
    pub source: String,
    /// All tokens before the continuations, BOS included; empty only if every continuation has tokens that are given.
    pub prompt: Vec<u32>,
    /// What follows the prompt, each on its own; never empty.
    pub continuations: Vec<Continuation>,
    /// How the probabilities become a score.
    pub scoring: Scoring,
}

/// A text whose probability after the prompt is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// Token ids; at least one more than are given.
    pub tokens: Vec<u32>,
    /// How many of the first are read like the prompt and not scored.
    pub given: usize,
    /// The text, where someone may want to read it in the record.
    pub text: String,
    /// Words, split at white space, that begin in what is scored.
    pub words: usize,
    /// Bytes of the text that is scored.
    pub bytes: usize,
}

/// How probabilities become a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Perplexity of the only continuation; every token is compared with what `full` makes of it.
    Perplexity,
    /// One of the continuations is right.
    Choice {
        /// Index of the right one.
        right: usize,
        /// Whether the score is the accuracy by log-likelihood over characters (lm-eval's `acc_norm`) rather
        /// than by log-likelihood (`acc`).
        normalised: bool,
    },
}

impl Scoring {
    /// What the score is.
    pub fn measure(self) -> Measure {
        match self {
            Self::Perplexity => Measure::Perplexity,
            Self::Choice { .. } => Measure::Score,
        }
    }
}

/// What a task's score is, and which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A share of what can be reached, averaged over examples, shown in percent: higher is better.
    #[default]
    Score,
    /// Exponential of the mean negative log-likelihood over the scored tokens of all examples: lower is better.
    Perplexity,
}

impl Measure {
    /// Whether this is the ordinary score, which records leave unsaid.
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
    /// What the score of its passages is.
    fn measure(&self) -> Measure {
        Measure::Score
    }

    /// Number of passages of `length` tokens.
    ///
    /// # Errors
    /// If the text cannot be split, or has none.
    fn available(&self, length: usize, encoder: &dyn TextEncoder) -> Result<usize>;

    /// The passage at `index`; for tasks that are not sized, `length` is 0.
    ///
    /// # Errors
    /// If there is none, or the task's data is malformed.
    fn passage(&self, length: usize, index: usize, seed: u64, encoder: &dyn TextEncoder) -> Result<Passage>;
}
