//! Where sparse attention starts. Every record has it, because it changes scores more than most methods do.

use std::fmt;
use std::str::FromStr;

use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;
use spattn_model::tokenizer::PromptTokens;

/// Where sparse attention starts, which decides which tokens of a prompt are the prefix. The prefix is read densely and shared by all
/// methods, except under `Prefill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// From the first generated token: the whole prompt is dense. The first answer token then comes from dense attention, which flatters
    /// every method.
    Decode,
    /// From the first token of the question.
    Question,
    /// From the last `n` tokens of the prompt.
    Last(usize),
    /// From the first token: the prefix is the whole prompt, which each method reads with its own prefill pattern.
    Prefill,
}

impl Protocol {
    /// The number of prompt tokens in the prefix. `context_bytes` is the byte offset of the question in the user's turn.
    pub fn prefix_tokens(self, prompt: &PromptTokens, context_bytes: usize) -> usize {
        let all = prompt.ids.len();
        match self {
            Protocol::Decode | Protocol::Prefill => all,
            // At least one token stays outside the prefix: its step gives the first logits.
            Protocol::Question => prompt.token_of_user_byte(context_bytes).min(all - 1),
            Protocol::Last(n) => all.saturating_sub(n),
        }
    }

    /// [`prefix_tokens`](Self::prefix_tokens) for a prompt of `prompt_tokens` tokens with scored continuations. The continuations take the
    /// place of the question, so that `Question` leaves only the prompt's last token outside the prefix.
    pub fn prefix_before_answer(self, prompt_tokens: usize) -> usize {
        match self {
            Protocol::Decode | Protocol::Prefill => prompt_tokens,
            Protocol::Question => prompt_tokens.saturating_sub(1),
            Protocol::Last(n) => prompt_tokens.saturating_sub(n),
        }
    }
}

impl FromStr for Protocol {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        match text {
            "decode" => Ok(Self::Decode),
            "question" => Ok(Self::Question),
            "prefill" => Ok(Self::Prefill),
            _ => match text.strip_prefix("last:").and_then(|n| n.parse().ok()) {
                Some(n) if (1..=MOST_TOKENS).contains(&n) => Ok(Self::Last(n)),
                _ => Err(UsageError::new(format!("unknown start of sparse attention `{text}`"))
                    .hint(format!("use decode, question, last:N (N from 1 to {MOST_TOKENS}) or prefill"))),
            },
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Decode => f.write_str("decode"),
            Protocol::Question => f.write_str("question"),
            Protocol::Last(n) => write!(f, "last:{n}"),
            Protocol::Prefill => f.write_str("prefill"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_model::OpenModel;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn the_prefix_ends_where_sparse_attention_starts() {
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let (context, question) = ("The red door opens with key 4711. ", "What opens the red door?");
        let prompt = model.tokenizer.encode_prompt(&format!("{context}{question}"), "It is").unwrap();
        let all = prompt.ids.len();
        let of = |protocol: Protocol| protocol.prefix_tokens(&prompt, context.len());
        let whole_or_last = [Protocol::Decode, Protocol::Prefill, Protocol::Last(3), Protocol::Last(all + 1)];
        assert_eq!(whole_or_last.map(of), [all, all, all - 3, 0]);
        let (before, after) = prompt.ids.split_at(of(Protocol::Question));
        let text = |ids: &[u32]| model.tokenizer.decode(ids).unwrap();
        assert!(text(before).trim_end().ends_with("4711.") && text(after).trim_start().starts_with("What opens"));
        // Without a question, the prefix leaves out the last token only.
        let statement = model.tokenizer.encode_plain(context.trim_end(), "").unwrap();
        let prefix = Protocol::Question.prefix_tokens(&statement, context.len());
        assert_eq!(prefix, statement.ids.len() - 1);

        let scored = [Protocol::Decode, Protocol::Prefill, Protocol::Question, Protocol::Last(3), Protocol::Last(9)];
        assert_eq!(scored.map(|protocol| protocol.prefix_before_answer(5)), [5, 5, 4, 2, 0]);
        assert_eq!(Protocol::Question.prefix_before_answer(0), 0);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["decode", "question", "last:32", "prefill"] {
            assert_eq!(name.parse::<Protocol>().unwrap().to_string(), name);
        }
        for name in ["", "last", "last:0", "last:x", "last:18446744073709551615", "Question"] {
            assert!(name.parse::<Protocol>().unwrap_err().hint.is_some(), "{name}");
        }
    }
}
