//! Counts the tokens of prompts for tasks, with a model's tokenizer.

use anyhow::Result;

use spattn_model::tokenizer::Tokenizer;
use spattn_tasks::PromptCounter;
use spattn_tasks::likelihood::{TextEncoder, TextTokens};

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

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_model::OpenModel;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn tasks_count_the_tokens_that_the_model_reads() {
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let (tokenizer, counter) = (&model.tokenizer, Counter(&model.tokenizer));
        let (user, prefix) = ("Which key opens the door?", "It is");
        let prompt = tokenizer.encode_prompt(user, prefix).unwrap().ids;
        assert_eq!(counter.prompt_tokens(user, prefix).unwrap(), prompt.len());
        let TextTokens { ids, ends } = counter.encode(user).unwrap();
        assert_eq!(ids, tokenizer.encode_text(user, false).unwrap());
        let until = |count: usize| tokenizer.decode(&ids[..count]).unwrap().len();
        assert_eq!(ends, (1..=ids.len()).map(until).collect::<Vec<_>>());
        assert_eq!(counter.front(), tokenizer.encode_text("", true).unwrap());
    }
}
