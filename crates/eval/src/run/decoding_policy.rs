//! What differs between generating an answer and scoring given text: the tokens that a sequence is fed, and the use of the logits.
//! Everything else about an example is in `example_runner` and `decode_loop`.

use spattn_model::token_scores::TokenScore;

/// The tokens that a sequence is fed after the prefix: the rest of the prompt, then tokens of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    tokens: Vec<u32>,
    prompt_tokens: usize,
    fed: usize,
}

impl Feed {
    /// Makes a feed of the prompt's tokens after the prefix, and of the tokens of the answer that are known already.
    pub fn new(unread: &[u32], known: &[u32]) -> Self {
        Self { tokens: [unread, known].concat(), prompt_tokens: unread.len(), fed: 0 }
    }

    /// All tokens, those already fed and those still to be fed.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The number of tokens that belong to the prompt; they come first.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The number of tokens already fed.
    pub fn fed(&self) -> usize {
        self.fed
    }

    /// Whether all tokens were fed. The sequence is at its end if its policy then adds no token.
    pub fn is_drained(&self) -> bool {
        self.fed == self.tokens.len()
    }

    /// The next tokens to feed, at most `most`.
    pub fn next(&self, most: usize) -> &[u32] {
        &self.tokens[self.fed..self.tokens.len().min(self.fed + most)]
    }

    /// Counts the next `tokens` tokens as fed.
    pub fn advance(&mut self, tokens: usize) {
        self.fed += tokens;
        debug_assert!(self.fed <= self.tokens.len());
    }

    /// Appends a token of the answer.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// The index (from 0) of the answer token that each of `rows` rows of logits predicts; `None` if it predicts a token of the prompt. The
    /// rows are of the last tokens fed; if none was fed, the one row is of the prefix's last token.
    pub fn predicted(&self, rows: usize) -> impl Iterator<Item = Option<usize>> {
        let (first, prompt_tokens) = (self.fed + 1 - rows, self.prompt_tokens);
        (first..first + rows).map(move |at| at.checked_sub(prompt_tokens))
    }
}

/// How the sequences of an example continue after the prefix.
///
/// The calls for one sequence, in order: [`begin`](Self::begin); [`take_logits`](Self::take_logits) with the logits of the prefix's last
/// token, if no token of the prompt is left to be fed; then `take_logits` after each step, until the feed is drained. A policy that
/// [scores each token](Self::SCORES_EACH_TOKEN) gets [scores](Self::take_scores) instead of logits. Sequences of `full` that are a
/// [reference](Self::has_reference) take each step before the others.
pub trait DecodingPolicy: Sync {
    /// The result of one sequence.
    type Answer: Send;

    /// Whether every token that is fed is scored. If so, [`take_scores`](Self::take_scores) gets the scores of all tokens of a step, the
    /// time of scoring is kept apart from that of the steps, and the time of products with the weights is divided over all sequences by
    /// their tokens, because sequences of `full` may step alone. If not, [`take_logits`](Self::take_logits) gets the logits of the last
    /// token of a step.
    const SCORES_EACH_TOKEN: bool;

    /// The number of answers per method, each a sequence of its own; at least 1.
    fn answers(&self) -> usize;

    /// The most tokens of an answer.
    fn longest_answer(&self) -> usize;

    /// The number of tokens of an answer that are certain to be fed, as a mean over the answers.
    fn known_tokens(&self) -> usize;

    /// Whether the answers of all methods are compared with those of `full`. If so, `full` always runs, even if it is not among the
    /// methods, because no record may depend on which other methods run.
    fn has_reference(&self) -> bool;

    /// The most tokens that each of `sequences` sequences is fed in a step.
    fn tokens_per_step(&self, sequences: usize) -> usize;

    /// Begins answer `number` (from 0), for which the tokens `unread` of the prompt have to be fed first.
    fn begin(&self, number: usize, unread: &[u32]) -> (Feed, Self::Answer);

    /// Whether the next step of a sequence needs only the likeliest token ([`take_argmax`](Self::take_argmax)). Default: false.
    fn needs_only_argmax(&self, _answer: &Self::Answer) -> bool {
        false
    }

    /// [`take_logits`](Self::take_logits) for the likeliest token after the last one fed; of equally likely tokens, the first. Called only
    /// after steps that [need no more](Self::needs_only_argmax).
    fn take_argmax(&self, _number: usize, _feed: &mut Feed, _answer: &mut Self::Answer, _token: u32) {
        unreachable!("a policy that needs no more than the likeliest token takes it")
    }

    /// The token by which each of the last `rows` rows is scored; `None` if a row is not scored. Called only if the policy
    /// [scores each token](Self::SCORES_EACH_TOKEN).
    fn targets(&self, _number: usize, _feed: &Feed, _rows: usize) -> Vec<Option<u32>> {
        unreachable!("a policy that scores each token has targets")
    }

    /// Takes the scores of the [targets](Self::targets) in order; they are compared with `full` if the policy
    /// [has a reference](Self::has_reference). Called only if the policy [scores each token](Self::SCORES_EACH_TOKEN).
    fn take_scores(&self, _answer: &mut Self::Answer, _scores: &[TokenScore]) {
        unreachable!("a policy that scores each token takes the scores")
    }

    /// Takes the logits `[vocab_size]` after the last token that was fed, and adds to `feed` the tokens to be fed next. Called only if the
    /// policy does not [score each token](Self::SCORES_EACH_TOKEN).
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
