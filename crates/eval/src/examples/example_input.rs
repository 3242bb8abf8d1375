//! The input of an example, the same under every protocol: a prompt to answer, or a passage to score.

use anyhow::Result;

use super::token_counter::Counter;
use super::truncate::{TruncatedExample, check_bytes, check_said, fit};
use crate::config::protocol::Protocol;
use spattn_model::OpenModel;
use spattn_model::tokenizer::Tokenizer;
use spattn_tasks::likelihood::{Passage, TextEncoder, TextTokens};
use spattn_tasks::{Cut, Example, Task};

/// The content of an example.
pub(crate) enum ExampleInput {
    Prompt(Box<TruncatedExample>),
    Passage(Passage),
}

/// Token counts of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens after the prefix, each of which takes a step, summed over all protocols. Answers count as long as their references.
    pub steps: usize,
}

/// Makes an example of a task for a model that reads at most `most` tokens and may think for `thought_tokens` tokens before it answers, if
/// its chat template asks it to. Does not check whether the example fits exactly, nor whether the model knows all tokens.
///
/// # Errors
/// If the task cannot make the example, it cannot be cut to its length, it is far longer than `most`, or [`check_said`] fails.
pub(crate) fn make(
    task: &dyn Task,
    length: usize,
    index: usize,
    seed: u64,
    model: &OpenModel,
    most: usize,
    thought_tokens: usize,
) -> Result<ExampleInput> {
    let counter = Counter(&model.tokenizer);
    match task.likelihood() {
        Some(text) if task.is_sized() => Ok(ExampleInput::Passage(text.passage(length, index, seed, &counter)?)),
        Some(rows) => Ok(ExampleInput::Passage(rows.passage(length, index, seed, &Bounded { model, most })?)),
        None => {
            let mut example = task.example(length, index, seed, &counter)?;
            if thinks(&example, &model.tokenizer) {
                example.max_new_tokens += thought_tokens;
            }
            let context = model.dimensions.config().context_limit();
            if example.rules.cut == Cut::Nothing {
                check_bytes(&example.user_turn(), model, most)?;
            }
            let fitted = fit(example, context, &model.tokenizer)?;
            check_said(&fitted.example, &fitted.prompt, &model.tokenizer)?;
            Ok(ExampleInput::Prompt(Box::new(fitted)))
        }
    }
}

/// Whether a chat template asks the example, so that the model may think.
pub(crate) fn thinks(example: &Example, tokenizer: &Tokenizer) -> bool {
    !example.rules.plain && tokenizer.has_chat()
}

/// Tokenizes the texts of rows up to a limit.
struct Bounded<'a> {
    model: &'a OpenModel,
    most: usize,
}

impl TextEncoder for Bounded<'_> {
    fn encode(&self, text: &str) -> Result<TextTokens> {
        check_bytes(text, self.model, self.most)?;
        Counter(&self.model.tokenizer).encode(text)
    }

    fn front(&self) -> &[u32] {
        self.model.tokenizer.front()
    }
}

impl ExampleInput {
    /// The tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        match self {
            Self::Prompt(fitted) => &fitted.prompt.ids,
            Self::Passage(passage) => &passage.prompt,
        }
    }

    /// The number of prompt tokens in the prefix.
    pub fn prefix_tokens(&self, protocol: Protocol) -> usize {
        match self {
            Self::Prompt(fitted) => protocol.prefix_tokens(&fitted.prompt, fitted.example.context.len()),
            Self::Passage(passage) => protocol.prefix_before_answer(passage.prompt.len()),
        }
    }

    /// The number of tokens to generate, taking the answer to be as long as its references, or the number of scored tokens; `None` if the
    /// references cannot be tokenized.
    pub fn answer_tokens(&self, tokenizer: &Tokenizer) -> Option<usize> {
        let most = self.most_answer_tokens();
        match self {
            Self::Passage(_) => Some(most),
            Self::Prompt(fitted) => {
                let key = tokenizer.count_past(&fitted.example.references.join(", "), most).ok()?;
                Some((key + 1).min(most))
            }
        }
    }

    /// The most tokens to generate, or the number of scored tokens.
    pub fn most_answer_tokens(&self) -> usize {
        match self {
            Self::Passage(passage) => passage.continuations.iter().map(|c| c.tokens.len()).sum(),
            Self::Prompt(fitted) => fitted.example.max_new_tokens,
        }
    }

    /// The token counts; `None` if [`answer_tokens`](Self::answer_tokens) is.
    pub fn size(&self, protocols: &[Protocol], tokenizer: &Tokenizer) -> Option<Size> {
        let (prompt, answer) = (self.prompt().len(), self.answer_tokens(tokenizer)?);
        let steps = protocols.iter().map(|protocol| prompt - self.prefix_tokens(*protocol) + answer).sum();
        Some(Size { prompt, steps })
    }
}
