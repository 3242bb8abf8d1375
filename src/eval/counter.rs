//! Counting tokens for tasks.

use anyhow::Result;

use crate::model::tokenizer::Tokenizer;
use crate::tasks::PromptCounter;
use crate::tasks::likelihood::{TextEncoder, TextTokens};

/// Counts with a model's tokenizer and chat template.
pub struct Counter<'a>(pub &'a Tokenizer);

impl PromptCounter for Counter<'_> {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        Ok(self.0.count_prompt(user, answer_prefix)?)
    }
}

impl TextEncoder for Counter<'_> {
    fn encode(&self, text: &str) -> Result<TextTokens> {
        let (ids, ends) = self.0.encode_with_ends(text)?;
        Ok(TextTokens { ids, ends })
    }

    fn front(&self) -> &[u32] {
        self.0.front()
    }
}
