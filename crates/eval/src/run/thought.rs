//! The thought that a model writes before its answer, and where it ends.

use spattn_base::error::UsageError;
use spattn_model::tokenizer::Tokenizer;

/// The text with which a thought begins, in the generated text or at the end of the prompt.
const BEGIN: &str = "<think>";
/// The text that ends a thought.
const END: &str = "</think>";

/// Finds where thoughts end in the answers of a model that thinks.
#[derive(Debug, Clone, Copy)]
pub struct Thoughts<'a> {
    tokenizer: &'a Tokenizer,
    /// The token that ends a thought, if the vocabulary has one.
    end: Option<u32>,
    /// Whether the prompt has already begun the thought.
    is_open: bool,
}

/// A generated text, split into thought and answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// The thought, including its begin and end marks; empty if there is none.
    pub thought: String,
    /// The text after the thought; empty while the thought is not ended.
    pub answer: String,
    /// Whether the thought has not ended.
    pub is_thinking: bool,
}

impl<'a> Thoughts<'a> {
    /// Makes it for the answers to a prompt.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &str) -> Self {
        Self { tokenizer, end: tokenizer.id_of(END), is_open: is_opened_by(prompt) }
    }

    /// Splits generated tokens after the last end of a thought.
    ///
    /// # Errors
    /// If the tokenizer cannot decode them.
    pub fn split(&self, tokens: &[u32]) -> Result<Said, UsageError> {
        let end = self.end.and_then(|end| tokens.iter().rposition(|token| *token == end));
        if let Some(end) = end {
            let (thought, answer) = tokens.split_at(end + 1);
            let (thought, answer) = (self.tokenizer.spell(thought)?, self.tokenizer.decode(answer)?);
            return Ok(Said { thought, answer: answer.trim_start().to_owned(), is_thinking: false });
        }
        // The begin mark may be a special token, which decoded text lacks.
        let is_open = self.is_open || self.tokenizer.spell(tokens)?.trim_start().starts_with(BEGIN);
        Ok(split(&self.tokenizer.decode(tokens)?, is_open))
    }

    /// Whether the last thought of generated tokens has not ended. Decodes nothing if they have the end token.
    pub(super) fn is_thinking(&self, tokens: &[u32]) -> bool {
        match self.end {
            Some(end) if tokens.contains(&end) => false,
            _ => self.split(tokens).is_ok_and(|said| said.is_thinking),
        }
    }
}

/// Whether a prompt leaves a thought open, because some templates write the begin mark themselves.
fn is_opened_by(prompt: &str) -> bool {
    prompt.rfind(BEGIN).is_some_and(|begin| !prompt[begin..].contains(END))
}

fn split(text: &str, is_open: bool) -> Said {
    if let Some(end) = text.rfind(END) {
        let (thought, answer) = text.split_at(end + END.len());
        return Said { thought: thought.to_owned(), answer: answer.trim_start().to_owned(), is_thinking: false };
    }
    match is_open {
        true => Said { thought: text.to_owned(), answer: String::new(), is_thinking: true },
        false => Said { thought: String::new(), answer: text.to_owned(), is_thinking: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_follows_the_last_end_of_a_thought() {
        let parts = |text, is_open| {
            let said = split(text, is_open);
            (said.thought, said.answer, said.is_thinking)
        };
        let expected = |thought: &str, answer: &str, is_thinking| (thought.to_owned(), answer.to_owned(), is_thinking);
        assert_eq!(parts("<think>\na</think>\n\n42", false), expected("<think>\na</think>", "42", false));
        assert_eq!(parts("a</think> b</think> 42", true), expected("a</think> b</think>", "42", false));
        assert_eq!(parts("a, and", true), expected("a, and", "", true));
        assert_eq!(parts("42", false), expected("", "42", false));
        assert_eq!(parts("", true), expected("", "", true));
    }

    #[test]
    fn a_prompt_may_leave_a_thought_open() {
        assert!(is_opened_by("<|assistant|>\n<think>\n"));
        assert!(!is_opened_by("<|assistant|>\n<think>\n\n</think>\n\n"));
        assert!(!is_opened_by("<|assistant|>"));
        assert!(is_opened_by("say <think></think><think>"));
    }
}
