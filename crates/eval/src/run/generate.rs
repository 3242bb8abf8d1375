//! Generates answers until the model ends them or they reach their limit.

use std::borrow::Cow;

use super::decoding_policy::{DecodingPolicy, Feed};
use super::sampling::Sampling;
use super::thought::Thoughts;
use spattn_model::engine::READ_AT_ONCE;
use spattn_model::tokenizer::Tokenizer;
use spattn_tasks::ended;

/// Generates text: the logits of the last token choose the next one, which is then fed.
#[derive(Debug, Clone, Copy)]
pub struct Generation<'a> {
    /// The model's tokenizer, for its EOS tokens and for the text of an answer.
    pub tokenizer: &'a Tokenizer,
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// A token besides EOS that ends the answer. If there is one, the first token is neither of them.
    pub line_end: Option<u32>,
    /// Texts that end the answer where they occur.
    pub until: &'a [String],
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The number of answers to generate, each with its own random draws; at least 1.
    pub repeats: usize,
    /// Where thoughts end, if the model thinks before it answers. Inside a thought, only EOS ends the answer.
    pub thoughts: Option<Thoughts<'a>>,
}

/// An answer that was generated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GeneratedAnswer {
    /// Its tokens, including the one that ended it.
    pub tokens: Vec<u32>,
    /// Whether a token or a text ended it, rather than the token limit.
    pub stopped: bool,
}

impl DecodingPolicy for Generation<'_> {
    type Answer = GeneratedAnswer;

    const SCORES_EACH_TOKEN: bool = false;

    fn answers(&self) -> usize {
        self.repeats
    }

    fn longest_answer(&self) -> usize {
        self.max_new_tokens
    }

    fn known_tokens(&self) -> usize {
        // It is only known that an answer has a first token.
        1
    }

    fn has_reference(&self) -> bool {
        false
    }

    fn tokens_per_step(&self, _: usize) -> usize {
        READ_AT_ONCE
    }

    fn begin(&self, _: usize, unread: &[u32]) -> (Feed, GeneratedAnswer) {
        // If no answer is wanted, the rest of the prompt need not be read either.
        let unread = if self.max_new_tokens == 0 { &[] } else { unread };
        (Feed::new(unread, &[]), GeneratedAnswer::default())
    }

    fn take_logits(&self, repeat: usize, feed: &mut Feed, answer: &mut GeneratedAnswer, logits: &[f32]) {
        if self.is_asked(feed, answer) {
            let token = self.choose(logits, repeat, answer.tokens.len());
            self.add(token, feed, answer);
        }
    }

    fn needs_only_argmax(&self, answer: &GeneratedAnswer) -> bool {
        self.sampling.is_greedy() && !self.is_masked(answer.tokens.len())
    }

    fn take_argmax(&self, _: usize, feed: &mut Feed, answer: &mut GeneratedAnswer, token: u32) {
        if self.is_asked(feed, answer) {
            self.add(token, feed, answer);
        }
    }
}

impl Generation<'_> {
    /// Whether a token of the answer has to follow the tokens fed so far.
    fn is_asked(&self, feed: &Feed, answer: &GeneratedAnswer) -> bool {
        feed.is_drained() && answer.tokens.len() < self.max_new_tokens
    }

    /// Adds a token to the answer, and to the feed unless it ends the answer.
    fn add(&self, token: u32, feed: &mut Feed, answer: &mut GeneratedAnswer) {
        answer.tokens.push(token);
        answer.stopped = self.is_eos(token) || self.has_ended(&answer.tokens);
        if !answer.stopped && self.is_asked(feed, answer) {
            feed.push(token);
        }
    }

    /// Whether some tokens are ruled out at index `place` of an answer.
    fn is_masked(&self, place: usize) -> bool {
        place == 0 && self.line_end.is_some()
    }

    /// Chooses the token at index `place` of an answer. If a line break ends answers, the first token is neither
    /// that nor EOS.
    fn choose(&self, logits: &[f32], repeat: usize, place: usize) -> u32 {
        let mut logits = Cow::Borrowed(logits);
        if self.is_masked(place) {
            let ends = (0..logits.len() as u32).filter(|token| self.is_eos(*token) || self.line_end == Some(*token));
            let ends: Vec<u32> = ends.collect();
            ends.into_iter().for_each(|token| logits.to_mut()[token as usize] = f32::NEG_INFINITY);
        }
        self.sampling.choose(&logits, repeat, place)
    }

    fn is_eos(&self, token: u32) -> bool {
        self.tokenizer.eos_ids().contains(&token)
    }

    /// Whether the last token, or a text that occurs, ends the answer.
    fn has_ended(&self, tokens: &[u32]) -> bool {
        if self.line_end.is_none() && self.until.is_empty() {
            return false;
        }
        if self.thoughts.is_some_and(|thoughts| thoughts.is_thinking(tokens)) {
            return false;
        }
        let is_line = self.line_end.is_some() && tokens.last().copied() == self.line_end;
        is_line || (!self.until.is_empty() && self.has_ended_by_text(tokens))
    }

    fn has_ended_by_text(&self, tokens: &[u32]) -> bool {
        let text = match self.thoughts {
            Some(thoughts) => thoughts.split(tokens).map(|said| said.answer),
            None => self.tokenizer.decode(tokens),
        };
        let text = text.unwrap_or_default();
        ended(&text, self.until).len() < text.len()
    }
}
