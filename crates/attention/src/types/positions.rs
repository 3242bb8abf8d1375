//! The positions at which tokens are attended: their own, those within a cache, or grouped ones. Grouped positions let a model read
//! contexts longer than it was trained on: Self-Extend (Jin et al. 2024, "LLM Maybe LongLM", §3.2).
//!
//! A query at position `p` attends its neighbours, the tokens at a distance below `w`, at their own positions. Tokens further away are
//! far tokens. They are attended at position `⌊position/g⌋`, by the query at position `⌊p/g⌋ + w − ⌊w/g⌋`. So their distances continue
//! where those of the neighbours end, and grow by one every `g` tokens. All tokens enter one softmax.
//!
//! Keys are stored rotated, so a far key is rotated back to its group's position when it is read. The angle depends only on the key's
//! position. A query is rotated back in the same way.

use std::fmt;

/// Which tokens are grouped, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Number of far tokens in a group, which share a position (`g`); at least 1.
    pub group: usize,
    /// Number of last tokens, the query's own included, that a query attends at their own positions (`w`); at least 1.
    pub neighbours: usize,
}

impl Grouping {
    /// Number of far tokens for a query at `position`; they are the first tokens of the context.
    pub fn far(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.neighbours)
    }

    /// Distance by which a query at `position` is moved back for its far tokens; 0 if it has none.
    pub fn query_shift(self, position: usize) -> usize {
        self.key_shift(position).saturating_sub(self.key_shift(self.neighbours))
    }

    /// Distance by which a far token at `position` is moved back.
    fn key_shift(self, position: usize) -> usize {
        position - position / self.group
    }
}

/// Grouped positions, with the rotation of the model.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'a> {
    /// Which tokens are grouped.
    pub grouping: Grouping,
    /// Moves rotated vectors to other positions.
    pub rotation: &'a dyn Rotation,
}

impl Grouped<'_> {
    /// Rotates the queries `[query][d]` of a token at `position` to their position for far tokens.
    pub fn turn_queries(&self, queries: &mut [f32], d: usize, position: usize) {
        let shift = self.grouping.query_shift(position);
        self.rotation.turn_rows_back(queries, d, shift);
    }

    /// Rotates the keys `[token][d]` of `tokens` to their positions as far tokens.
    pub fn turn_keys(&self, keys: &mut [f32], d: usize, tokens: &[u32]) {
        for (key, token) in keys.chunks_exact_mut(d).zip(tokens) {
            self.rotation.turn_back(key, self.grouping.key_shift(*token as usize));
        }
    }
}

/// The positions that RoPE assigns to the tokens in context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Their positions in the text.
    Original,
    /// Positions within a cache that holds only the static tokens: the sink directly precedes the recent tokens, however far apart
    /// they are in the text. For methods that select nothing.
    WithinCache,
    /// Positions of Self-Extend, also in layers that are dense by policy: tokens far from a query share positions in
    /// groups.
    Grouped(Grouping),
}

impl Positions {
    /// The grouped positions of a model with this rotation; `None` for the other variants.
    ///
    /// # Panics
    /// If there is no rotation.
    pub(crate) fn grouped(self, rotation: Option<&dyn Rotation>) -> Option<Grouped<'_>> {
        let Self::Grouped(grouping) = self else { return None };
        Some(Grouped { grouping, rotation: rotation.expect(GIVEN_ROTATION) })
    }
}

/// Panic message; the planner rejects such methods for models whose positions cannot be moved.
pub(crate) const GIVEN_ROTATION: &str = "the model gives its RoPE rotation to methods that move positions";

/// Moves rotated vectors to other positions; only the model knows its frequencies.
pub trait Rotation: Send + Sync {
    /// Rotates `x: [d]` as if its token stood `positions` earlier.
    fn turn_back(&self, x: &mut [f32], positions: usize);

    /// Rotates each of `rows: [row][d]` with the same result, to the bit, as [`turn_back`](Self::turn_back). Angles can be computed
    /// once for all rows.
    fn turn_rows_back(&self, rows: &mut [f32], d: usize, positions: usize) {
        rows.chunks_exact_mut(d).for_each(|row| self.turn_back(row, positions));
    }
}

impl fmt::Debug for dyn Rotation + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rotation")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_self_extend() {
        for (group, neighbours) in [(1, 1), (1, 5), (2, 1), (2, 4), (3, 4), (4, 7), (8, 8), (5, 16), (100, 10)] {
            let grouping = Grouping { group, neighbours };
            for query in 0..150 {
                for key in 0..=query {
                    let is_far = query - key >= neighbours;
                    assert_eq!(key < grouping.far(query), is_far, "{grouping:?}, {query} and {key}");
                    if is_far {
                        let published = query / group + neighbours - neighbours / group - key / group;
                        let ours = query - grouping.query_shift(query) - (key - grouping.key_shift(key));
                        assert_eq!(ours, published, "{grouping:?}, {query} and {key}");
                    }
                }
            }
        }
    }
}
