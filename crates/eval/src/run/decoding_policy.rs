//! What differs between generating an answer and scoring given text: which tokens a sequence is fed, and what is made of
//! the logits. Everything else of an example is in `example_runner` and `decode_loop`.

/// Tokens that a sequence is fed behind the prefix: the rest of the prompt, then tokens of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    tokens: Vec<u32>,
    prompt_tokens: usize,
    fed: usize,
}

impl Feed {
    /// The tokens of the prompt behind the prefix, and the tokens of the answer as far as they are known.
    pub fn new(unread: &[u32], known: &[u32]) -> Self {
        Self { tokens: [unread, known].concat(), prompt_tokens: unread.len(), fed: 0 }
    }

    /// All tokens: those fed already, and those to be fed.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of the tokens, from the first on, belong to the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// How many of the tokens were fed.
    pub fn fed(&self) -> usize {
        self.fed
    }

    /// Whether all tokens were fed. A sequence ends when its policy then adds none.
    pub fn is_drained(&self) -> bool {
        self.fed == self.tokens.len()
    }

    /// The next tokens to be fed, at most `most`.
    pub fn next(&self, most: usize) -> &[u32] {
        &self.tokens[self.fed..self.tokens.len().min(self.fed + most)]
    }

    /// Notes that the next `tokens` tokens were fed.
    pub fn advance(&mut self, tokens: usize) {
        self.fed += tokens;
        debug_assert!(self.fed <= self.tokens.len());
    }

    /// Adds a token of the answer.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Which token of the answer each of `rows` rows of logits predicts, counted from 0; `None` where it predicts a token
    /// of the prompt. The rows are those of the last tokens fed; where none was fed, the row of the prefix's last token.
    pub fn predicted(&self, rows: usize) -> impl Iterator<Item = Option<usize>> {
        let (first, prompt_tokens) = (self.fed + 1 - rows, self.prompt_tokens);
        (first..first + rows).map(move |at| at.checked_sub(prompt_tokens))
    }
}

/// How the sequences of an example go on behind the prefix.
///
/// The order of calls for one sequence: [`begin`](Self::begin); [`take_logits`](Self::take_logits) with the logits of the
/// prefix's last token, if no token of the prompt is unread; then `take_logits` after each step, until the feed is drained.
/// Sequences of `full` that are a [reference](Self::has_reference) take each step before the others.
pub trait DecodingPolicy: Sync {
    /// What becomes of one sequence.
    type Answer: Send;
    /// What a reference sequence of `full` predicted in a step.
    type Prediction: Send + Sync;

    /// Whether each token that is fed is scored. Then [`take_logits`](Self::take_logits) gets the logits behind every
    /// token of a step, its time is kept apart from that of the steps, and the time of products with the weights is split
    /// by tokens over all sequences, since those of `full` may take their steps alone. Otherwise it gets the logits behind
    /// the last token of a step.
    const SCORES_EACH_TOKEN: bool;

    /// Number of answers of each method, each a sequence of its own; at least 1.
    fn answers(&self) -> usize;

    /// Tokens of the longest answer, at most.
    fn longest_answer(&self) -> usize;

    /// Tokens of an answer that are known to be fed, mean over the answers.
    fn known_tokens(&self) -> usize;

    /// Whether the answers of all methods are compared with those of `full`, which then runs whether it is among the
    /// methods or not: no record may depend on the methods beside it.
    fn has_reference(&self) -> bool;

    /// How many tokens each of `sequences` sequences is fed in a step at most, where a token has `vocab_size` logits.
    fn tokens_per_step(&self, sequences: usize, vocab_size: usize) -> usize;

    /// Begins the answer of a number (from 0), where `unread` tokens of the prompt have to be fed first.
    fn begin(&self, number: usize, unread: &[u32]) -> (Feed, Self::Answer);

    /// Whether the next step of a sequence is answered by its likeliest token ([`take_argmax`](Self::take_argmax)), so that nobody
    /// needs the logits. Default false.
    fn needs_only_argmax(&self, _answer: &Self::Answer) -> bool {
        false
    }

    /// As [`take_logits`](Self::take_logits), with the likeliest token behind the last one fed, the first of equally likely ones. Called
    /// only after steps that [need no more](Self::needs_only_argmax).
    fn take_argmax(&self, _number: usize, _feed: &mut Feed, _answer: &mut Self::Answer, _token: u32) {
        unreachable!("a policy that needs no more than the likeliest token takes it")
    }

    /// What a sequence of `full` predicts, of `rows` of logits `[vocab_size]` as in [`take_logits`](Self::take_logits).
    fn predict(&self, number: usize, feed: &Feed, rows: &[&[f32]]) -> Self::Prediction;

    /// Takes the logits behind tokens that were fed, one row `[vocab_size]` for each, and adds to `feed` what is to be fed
    /// next. `reference` is what `full` predicted at the same tokens, where the policy [has one](Self::has_reference).
    fn take_logits(
        &self,
        number: usize,
        feed: &mut Feed,
        answer: &mut Self::Answer,
        rows: &[&[f32]],
        reference: Option<&Self::Prediction>,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_gives_each_token_once_and_in_order() {
        let mut feed = Feed::new(&[1, 2, 3], &[4]);
        let mut given = Vec::new();
        for most in [2, 1, 5] {
            let next = feed.next(most).to_vec();
            feed.advance(next.len());
            given.push(next);
        }
        assert_eq!(given, [vec![1, 2], vec![3], vec![4]]);
        assert!(feed.is_drained() && feed.next(5).is_empty());
        feed.push(9);
        assert_eq!((feed.is_drained(), feed.next(5), feed.prompt_tokens(), feed.fed()), (false, &[9][..], 3, 4));
    }

    #[test]
    fn rows_predict_the_token_after_their_own() {
        let predicted = |feed: &Feed, rows| feed.predicted(rows).collect::<Vec<_>>();
        let mut feed = Feed::new(&[1, 2, 3], &[4, 5]);
        feed.advance(2);
        assert_eq!(predicted(&feed, 2), [None, None], "the second and third token of the prompt");
        feed.advance(3);
        assert_eq!(predicted(&feed, 3), [Some(0), Some(1), Some(2)]);
        assert_eq!(predicted(&feed, 1), [Some(2)]);
        assert_eq!(predicted(&Feed::new(&[], &[4]), 1), [Some(0)], "the row of the prefix");
    }
}
