//! Tasks: what is asked, what the right answer is, and how a prediction is scored.
//!
//! A family of tasks is one folder or file (`ruler/`, `jsonl.rs`); prompts and parameters live as
//! data in the repository's `tasks/*.toml`. Nothing here knows a model or an attention method:
//! a task sees a model only as a [`PromptCounter`].

pub mod jsonl;
pub mod metrics;
pub mod ruler;

use anyhow::Result;
use metrics::Metric;

/// Counts tokens of a whole prompt as the evaluated model will see it:
/// BOS, chat template, user turn and the opened answer included.
pub trait PromptCounter: Sync {
    /// Tokens of the prompt made of the user's text and the start of the answer.
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize>;
}

/// One prompt with its answer key.
///
/// The user's turn is `context + question`, byte for byte; `answer_prefix` opens the answer
/// (after the assistant header, where the model has a chat template).
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Full task name as recorded, such as `ruler/vt`; synthetic stand-ins carry their own name.
    pub task: String,
    /// The length asked for in tokens, prompt and answer together; 0 if a file fixes it.
    pub length: usize,
    /// Position of the example in its task, from 0.
    pub index: usize,
    /// Text up to the question.
    pub context: String,
    /// Text from the first character of the question to the end of the user's turn.
    pub question: String,
    /// Start of the answer that the model continues; may be empty.
    pub answer_prefix: String,
    /// Acceptable answers, or all parts of the answer, as the metric reads them.
    pub references: Vec<String>,
    /// Class names for classification metrics; empty otherwise.
    pub all_classes: Vec<String>,
    /// How a prediction is scored.
    pub metric: Metric,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// Where text and words came from, such as `grammar` or `essays`; part of the record.
    pub source: String,
}

impl Example {
    /// The user's turn.
    pub fn user_turn(&self) -> String {
        format!("{}{}", self.context, self.question)
    }
}

/// One task that can make examples.
pub trait Task: Send + Sync {
    /// Full name as recorded, such as `ruler/vt`.
    fn name(&self) -> &str;
    /// Number of examples if a file fixes it; `None` if examples are generated.
    fn available(&self) -> Option<usize>;
    /// Whether examples are generated to a length (then `example` fills `length` tokens).
    fn is_sized(&self) -> bool;
    /// The example at `index`. `seed` is the run's seed: the same `(seed, length, index)` gives the
    /// same example for the same tokenizer, whatever was generated before.
    ///
    /// # Errors
    /// If the task cannot fit `length` tokens, or its data is malformed.
    fn example(&self, length: usize, index: usize, seed: u64, counter: &dyn PromptCounter) -> Result<Example>;
}
