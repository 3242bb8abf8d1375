//! What differs between generating an answer and scoring given text: which tokens a sequence is fed, and what is made of
//! the logits. Everything else of an example is in `example_runner` and `decode_loop`.

use spattn_model::token_scores::TokenScore;

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
/// prefix's last token, if no token of the prompt is unread; then `take_logits` after each step, until the feed is drained. A policy that
/// [scores each token](Self::SCORES_EACH_TOKEN) gets [scores](Self::take_scores) in place of logits.
/// Sequences of `full` that are a [reference](Self::has_reference) take each step before the others.
pub trait DecodingPolicy: Sync {
    /// What becomes of one sequence.
    type Answer: Send;

    /// Whether each token that is fed is scored. Then [`take_scores`](Self::take_scores) gets the scores of every
    /// token of a step, the time of scoring is kept apart from that of the steps, and the time of products with the weights is split
    /// by tokens over all sequences, since those of `full` may take their steps alone. Otherwise [`take_logits`](Self::take_logits)
    /// gets the logits behind the last token of a step.
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

    /// How many tokens each of `sequences` sequences is fed in a step at most.
    fn tokens_per_step(&self, sequences: usize) -> usize;

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

    /// The token that each of the last `rows` rows is scored by; `None` where nothing is scored. Called only of a policy that
    /// [scores each token](Self::SCORES_EACH_TOKEN).
    fn targets(&self, _number: usize, _feed: &Feed, _rows: usize) -> Vec<Option<u32>> {
        unreachable!("a policy that scores each token has targets")
    }

    /// Takes the scores of the [targets](Self::targets) in their order, compared with `full` where the policy [has a reference](Self::has_reference).
    /// Called only of a policy that [scores each token](Self::SCORES_EACH_TOKEN).
    fn take_scores(&self, _answer: &mut Self::Answer, _scores: &[TokenScore]) {
        unreachable!("a policy that scores each token takes the scores")
    }

    /// Takes the logits `[vocab_size]` behind the last token that was fed, and adds to `feed` what is to be fed next. Called only of a policy
    /// that does not [score each token](Self::SCORES_EACH_TOKEN).
    fn take_logits(&self, _number: usize, _feed: &mut Feed, _answer: &mut Self::Answer, _logits: &[f32]) {
        unreachable!("a policy that chooses tokens takes logits")
    }
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
