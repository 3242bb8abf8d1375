//! What an example is made of, the same under every protocol: a prompt to answer, or a passage to be scored.

use anyhow::Result;

use super::counter::Counter;
use super::cut::{Fitted, fit};
use super::protocol::Protocol;
use crate::model::OpenModel;
use crate::model::tokenizer::Tokenizer;
use crate::tasks::Task;
use crate::tasks::likelihood::Passage;

/// What an example is made of.
pub(super) enum Material {
    Prompt(Box<Fitted>),
    Passage(Passage),
}

/// Tokens of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Of its prompt.
    pub prompt: usize,
    /// Steps after the prefix, under all protocols together, if answers are as long as their keys.
    pub steps: usize,
}

/// Makes an example of a task, as it is read by a model; it is not checked against the model's vocabulary and context.
///
/// # Errors
/// If the task cannot make it, or it cannot be cut to its length.
pub(super) fn make(task: &dyn Task, length: usize, index: usize, seed: u64, model: &OpenModel) -> Result<Material> {
    let counter = Counter(&model.tokenizer);
    match task.likelihood() {
        Some(task) => Ok(Material::Passage(task.passage(length, index, seed, &counter)?)),
        None => {
            let example = task.example(length, index, seed, &counter)?;
            let context = model.dimensions.config().context_limit();
            Ok(Material::Prompt(Box::new(fit(example, context, &model.tokenizer)?)))
        }
    }
}

impl Material {
    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        match self {
            Self::Prompt(fitted) => &fitted.prompt.ids,
            Self::Passage(passage) => &passage.prompt,
        }
    }

    /// How many of them are the prefix.
    pub fn prefix_tokens(&self, protocol: Protocol) -> usize {
        match self {
            Self::Prompt(fitted) => protocol.prefix_tokens(&fitted.prompt, fitted.example.context.len()),
            Self::Passage(passage) => protocol.prefix_before_answer(passage.prompt.len()),
        }
    }

    /// Tokens that are generated, if the answer is as long as its key, or scored; `None` if the key is no text to the
    /// tokenizer.
    pub fn answer_tokens(&self, tokenizer: &Tokenizer) -> Option<usize> {
        match self {
            Self::Passage(passage) => Some(passage.continuations.iter().map(|c| c.tokens.len()).sum()),
            Self::Prompt(fitted) => {
                let key = tokenizer.encode_text(&fitted.example.references.join(", "), false).ok()?;
                Some((key.len() + 1).min(fitted.example.max_new_tokens))
            }
        }
    }

    /// How many tokens there are; `None` as for [`answer_tokens`](Self::answer_tokens).
    pub fn size(&self, protocols: &[Protocol], tokenizer: &Tokenizer) -> Option<Size> {
        let (prompt, answer) = (self.prompt().len(), self.answer_tokens(tokenizer)?);
        let steps = protocols.iter().map(|protocol| prompt - self.prefix_tokens(*protocol) + answer).sum();
        Some(Size { prompt, steps })
    }
}
