//! Generating an answer greedily, until the model ends it or it is as long as it may be.

use super::decoding_policy::{DecodingPolicy, Feed};
use spattn_kernels::topk::argmax;
use spattn_model::engine::READ_AT_ONCE;
use spattn_model::tokenizer::Tokenizer;
use spattn_tasks::ended;

/// Greedy decoding: the likeliest token is fed next.
#[derive(Debug, Clone, Copy)]
pub struct Generation<'a> {
    /// The model's tokenizer, for its EOS tokens and to see what the answer says.
    pub tokenizer: &'a Tokenizer,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// A token that ends the answer besides EOS; the first token is then neither of them.
    pub line_end: Option<u32>,
    /// Texts that end the answer where they come up in it.
    pub until: &'a [String],
}

/// An answer that was generated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GeneratedAnswer {
    /// Its tokens, with the one that ended it.
    pub tokens: Vec<u32>,
    /// Whether a token or a text ended it, rather than the limit of tokens.
    pub stopped: bool,
}

impl DecodingPolicy for Generation<'_> {
    type Answer = GeneratedAnswer;
    type Prediction = ();

    const SCORES_EACH_TOKEN: bool = false;

    fn answers(&self) -> usize {
        1
    }

    fn longest_answer(&self) -> usize {
        self.max_new_tokens
    }

    fn known_tokens(&self) -> usize {
        // Of an answer no more is known than that it has a first token.
        1
    }

    fn has_reference(&self) -> bool {
        false
    }

    fn tokens_per_step(&self, _: usize, _: usize) -> usize {
        READ_AT_ONCE
    }

    fn begin(&self, _: usize, unread: &[u32]) -> (Feed, GeneratedAnswer) {
        // Where there is no answer, the prompt need not be read either.
        let unread = if self.max_new_tokens == 0 { &[] } else { unread };
        (Feed::new(unread, &[]), GeneratedAnswer::default())
    }

    fn predict(&self, _: usize, _: &Feed, _: &[&[f32]]) {}

    fn take_logits(
        &self,
        _: usize,
        feed: &mut Feed,
        answer: &mut GeneratedAnswer,
        rows: &[&[f32]],
        _: Option<&Self::Prediction>,
    ) {
        let is_full = |answer: &GeneratedAnswer| answer.tokens.len() >= self.max_new_tokens;
        let Some(logits) = rows.last().filter(|_| feed.is_drained() && !is_full(answer)) else { return };
        let token = self.choose(logits, answer.tokens.is_empty());
        answer.tokens.push(token);
        answer.stopped = self.is_end(token) || self.has_ended(&answer.tokens);
        if !answer.stopped && !is_full(answer) {
            feed.push(token);
        }
    }
}

impl Generation<'_> {
    /// The likeliest token; of a line that may not be empty, the first is the likeliest that does not end it.
    fn choose(&self, logits: &[f32], is_first: bool) -> u32 {
        if !is_first || self.line_end.is_none() {
            return argmax(logits) as u32;
        }
        let mut logits = logits.to_vec();
        let ends = (0..logits.len() as u32).filter(|token| self.is_end(*token));
        ends.for_each(|token| logits[token as usize] = f32::NEG_INFINITY);
        argmax(&logits) as u32
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.eos_ids().contains(&token) || self.line_end == Some(token)
    }

    /// Whether a text has come up that ends the answer.
    fn has_ended(&self, tokens: &[u32]) -> bool {
        if self.until.is_empty() {
            return false;
        }
        let text = self.tokenizer.decode(tokens).unwrap_or_default();
        ended(&text, self.until).len() < text.len()
    }
}
