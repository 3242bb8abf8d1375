//! Attention by scores that selecting computed, compared with attention that reads the keys.

use super::*;
use crate::kv::KvDtype;
use crate::types::scores::score_some_in_context;

const D: usize = 12;
const PREFIX: usize = 300;
const TAIL: usize = 9;

fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin() * 1.5).collect()
}

fn layer(tokens: usize, seed: usize) -> LayerKv {
    let mut kv = LayerKv::new(KvDtype::Bf16, 2, D, tokens);
    kv.append_rows(&noise(2 * tokens * D, seed), &noise(2 * tokens * D, seed + 1));
    kv
}

/// Bits of the partial softmax of picks, for the second query head of the second KV head.
fn partial(kv: &HeadKv<'_>, queries: &Queries<'_>, picks: &SelectedTokens) -> Vec<u32> {
    let mut partial = vec![f32::NAN; 2 + D];
    let selection = Selection::PerHead(vec![SelectedTokens::softmax(Vec::new()), picks.clone()]);
    kv.attend_picked(queries, 1, Some(&selection), &mut partial).unwrap();
    partial.iter().map(|x| x.to_bits()).collect()
}

/// Tokens of the prefix alone, and of prefix and tail in any order, under each weighting of logits, with and without a soft cap.
#[test]
fn scores_of_a_selection_give_the_bits_that_reading_keys_gives() {
    let (prefix, tail) = (Prefix::new(vec![layer(PREFIX, 1)]), layer(TAIL, 3));
    let queries = Queries::new(&noise(2 * D, 5), SoftmaxScale::inverse_root(D));
    let in_prefix: Vec<u32> = (0..PREFIX as u32).filter(|t| t % 7 != 2).collect();
    let in_both: Vec<u32> = in_prefix.iter().copied().chain(PREFIX as u32..(PREFIX + TAIL) as u32).rev().collect();
    for (tokens, soft_cap) in [(&in_prefix, None), (&in_both, None), (&in_both, Some(0.7)), (&in_prefix, Some(0.7))] {
        let mut kv = HeadKv::new(&prefix, &tail, 0, 1).unwrap();
        kv.spec.soft_cap = soft_cap;
        let mut scores = vec![f32::NAN; tokens.len()];
        score_some_in_context(&queries.scaled[D..], kv.keys(), tokens, &mut scores).unwrap();
        let log_u = tokens.iter().map(|t| -(*t as f32 * 0.3).sin().abs()).collect();
        let remainder = Weighting::Remainder { shares: vec![0.25], value: noise(D, 6) };
        for weighting in [Weighting::Softmax, Weighting::LogBias(log_u), remainder] {
            let unscored = SelectedTokens::weighted(tokens.clone(), weighting);
            let scored = SelectedTokens { scores: scores.clone(), ..unscored.clone() };
            let read = partial(&kv, &queries, &unscored);
            assert_eq!(partial(&kv, &queries, &scored), read, "{:?}", scored.weighting);
            for place in [0, tokens.len() - 1] {
                let mut wrong = scored.clone();
                wrong.scores[place] += 1.0;
                assert_ne!(partial(&kv, &queries, &wrong), read, "the score of token {place} is used");
            }
        }
    }
}

/// Seen from another position, tokens have other scores than those by which they were selected.
#[test]
fn scores_are_not_used_for_queries_at_another_position() {
    let (prefix, tail) = (Prefix::new(vec![layer(PREFIX, 1)]), layer(TAIL, 3));
    let kv = HeadKv::new(&prefix, &tail, 0, 1).unwrap();
    let scaled = noise(2 * D, 5);
    let far = Some(Far { turned: noise(2 * D, 9), tokens: 40, keys: None });
    let queries = Queries { scaled, far };
    let unscored = SelectedTokens::softmax((0..PREFIX as u32).step_by(3).collect());
    let scores = vec![0.5; unscored.tokens.len()];
    let scored = SelectedTokens { scores, ..unscored.clone() };
    assert_eq!(partial(&kv, &queries, &scored), partial(&kv, &queries, &unscored));
}

#[test]
fn tokens_that_a_layer_hides_take_their_scores_and_biases_with_them() {
    let mut selection = Selection::PerHead(vec![SelectedTokens {
        tokens: vec![7, 2, 9, 3],
        weighting: Weighting::LogBias(vec![0.7, 0.2, 0.9, 0.3]),
        scores: vec![70.0, 20.0, 90.0, 30.0],
    }]);
    selection.leave_out_before(3);
    let left = SelectedTokens {
        tokens: vec![7, 9, 3],
        weighting: Weighting::LogBias(vec![0.7, 0.9, 0.3]),
        scores: vec![70.0, 90.0, 30.0],
    };
    assert_eq!(selection, Selection::PerHead(vec![left]));
}
