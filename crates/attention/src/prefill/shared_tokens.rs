//! Weighted tokens, and tokens that the rows of a prompt attend in slices of lists that they share: a row costs a few numbers, however many
//! tokens it attends.
//!
//! A method that draws tokens once for many rows, or sorts tokens into blocks, makes such lists once for a prompt. Masks name slices of
//! them.

use std::ops::Range;
use std::sync::Arc;

/// A token that may represent several tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedToken {
    /// Position of the token.
    pub token: u32,
    /// The bias on its scaled logit: the logarithm of the number of tokens that it represents; 0 if it represents only
    /// itself. Ignored if another part of the mask names the token.
    pub log_weight: f32,
}

impl WeightedToken {
    /// A token that represents only itself.
    pub fn plain(token: u32) -> Self {
        Self { token, log_weight: 0.0 }
    }
}

/// Lists of tokens, one behind the other, for all rows of a prompt at one query head.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SharedTokens {
    /// Ascending within a list.
    tokens: Vec<u32>,
    /// The bias on each token's scaled logit.
    log_weights: Vec<f32>,
    /// The group of each token; a slice may leave out one group.
    groups: Vec<u32>,
}

/// A stretch of one list, without the tokens of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenSlice {
    /// Where the stretch lies in the [shared tokens](SharedTokens).
    pub range: Range<u32>,
    /// The group that is left out.
    pub without: Option<u32>,
}

/// The slices of each row of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSlices {
    /// The tokens that all slices are of; the same for all blocks of a query head.
    pub of: Arc<SharedTokens>,
    /// For each row, slices that do not have a token in common.
    pub rows: Vec<Vec<TokenSlice>>,
}

/// Bounds of what slices take in a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SliceBounds {
    /// Largest number of shared tokens of a query head.
    pub tokens: usize,
    /// Largest number of slices of a row.
    pub slices: usize,
}

impl SharedTokens {
    /// The group of tokens that no slice leaves out.
    pub const NO_GROUP: u32 = u32::MAX - 1;

    /// Appends a list of ascending tokens, each with its group, and returns its place.
    pub fn push(&mut self, list: impl Iterator<Item = (WeightedToken, u32)>) -> Range<u32> {
        let first = self.tokens.len();
        for (WeightedToken { token, log_weight }, group) in list {
            self.tokens.push(token);
            self.log_weights.push(log_weight);
            self.groups.push(group);
        }
        debug_assert!(self.tokens[first..].is_sorted(), "a list of shared tokens ascends");
        first as u32..self.tokens.len() as u32
    }

    /// All tokens, list after list.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The biases of [all tokens](Self::tokens).
    pub fn log_weights(&self) -> &[f32] {
        &self.log_weights
    }

    /// The groups of [all tokens](Self::tokens).
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Returns the tokens of a slice, ascending.
    pub fn of<'a>(&'a self, slice: &TokenSlice) -> impl Iterator<Item = WeightedToken> + use<'a> {
        let without = slice.without;
        let stays = move |i: &usize| Some(self.groups[*i]) != without;
        let token = |i: usize| WeightedToken { token: self.tokens[i], log_weight: self.log_weights[i] };
        (slice.range.start as usize..slice.range.end as usize).filter(stays).map(token)
    }

    /// Returns the part of a slice with the tokens of a range.
    pub fn clipped(&self, slice: &TokenSlice, tokens: Range<u32>) -> TokenSlice {
        let list = &self.tokens[slice.range.start as usize..slice.range.end as usize];
        let place = |token: u32| slice.range.start + list.partition_point(|own| *own < token) as u32;
        let first = place(tokens.start);
        TokenSlice { range: first..place(tokens.end).max(first), without: slice.without }
    }

    /// Number of tokens of a slice.
    pub fn count(&self, slice: &TokenSlice) -> usize {
        let groups = &self.groups[slice.range.start as usize..slice.range.end as usize];
        let left_out = |without: u32| groups.iter().filter(|group| **group == without).count();
        groups.len() - slice.without.map_or(0, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::{Range, SharedTokens, TokenSlice, WeightedToken};

    #[test]
    fn a_slice_has_the_tokens_of_its_stretch_that_are_of_other_groups() {
        let mut shared = SharedTokens::default();
        let list = |tokens: &[(u32, u32)]| -> Vec<(WeightedToken, u32)> {
            let weighted = |(token, group): &(u32, u32)| (WeightedToken { token: *token, log_weight: 0.5 }, *group);
            tokens.iter().map(weighted).collect()
        };
        let first = shared.push(list(&[(3, 0), (8, 1), (9, 0)]).into_iter());
        let second = shared.push(list(&[(1, 1), (4, SharedTokens::NO_GROUP), (5, 1), (7, 2)]).into_iter());
        assert_eq!((first.clone(), second.clone()), (0..3, 3..7));
        for (range, without, tokens, expected) in [
            (first.clone(), None, 0..100, vec![3, 8, 9]),
            (first.clone(), Some(0), 0..100, vec![8]),
            (first, Some(1), 4..9, vec![]),
            (second.clone(), Some(1), 0..100, vec![4, 7]),
            (second.clone(), None, 4..7, vec![4, 5]),
            (second.clone(), Some(2), 2..6, vec![4, 5]),
            (second, None, Range { start: 6, end: 2 }, vec![]),
        ] {
            let slice = shared.clipped(&TokenSlice { range, without }, tokens);
            let found: Vec<u32> = shared.of(&slice).map(|own| own.token).collect();
            assert_eq!(found, expected, "{slice:?}");
            assert_eq!(shared.count(&slice), expected.len(), "{slice:?}");
            assert!(shared.of(&slice).all(|own| own.log_weight == 0.5));
        }
    }
}
