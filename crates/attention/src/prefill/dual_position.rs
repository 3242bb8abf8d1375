//! Rows whose queries have two positions: one for far tokens, one for near tokens.

use crate::types::positions::Grouped;
use spattn_kernels::Rows;
use spattn_kernels::prefill::{PackedHead, RowVisibility, ScatteredToken};

/// The union of the tokens that rows of a block attend, and which of them each row sees.
pub(super) struct VisibleTokens<'a> {
    /// Keys `[token][d]` of the whole context.
    pub(super) keys: Rows<'a>,
    pub(super) values: Rows<'a>,
    pub(super) d: usize,
    pub(super) tokens: &'a [u32],
    pub(super) visibility: &'a [RowVisibility],
}

/// Keys and values for rows whose queries have two positions: one for the first packed tokens, one for the others.
///
/// Each key has twice the head's width, with zeros in the half of the other query. So one product with both queries
/// side by side gives the right logit for either kind of token, and one softmax covers all.
pub(super) struct DualPositionHead {
    pub(super) packed: PackedHead,
    pub(super) visibility: Vec<RowVisibility>,
    /// For each row, the distance by which its query is moved back for the first tokens.
    pub(super) shifts: Vec<usize>,
    pub(super) d: usize,
}

impl DualPositionHead {
    /// Builds it from keys and values `[token][d]`; the first `split` tokens use the first query.
    fn new(
        keys: &[f32],
        values: &[f32],
        d: usize,
        split: usize,
        visibility: Vec<RowVisibility>,
        shifts: Vec<usize>,
    ) -> Self {
        let widened = |rows: &[f32], side: fn(usize, usize) -> usize| -> Vec<f32> {
            let mut wide = vec![0.0; 2 * rows.len()];
            for (at, (wide, row)) in wide.chunks_exact_mut(2 * d).zip(rows.chunks_exact(d)).enumerate() {
                wide[side(at, split) * d..][..d].copy_from_slice(row);
            }
            wide
        };
        let keys = widened(keys, |at, split| usize::from(at >= split));
        let values = widened(values, |_, _| 0);
        let packed = PackedHead::new(Rows::F32(&keys), Rows::F32(&values), 2 * d);
        Self { packed, visibility, shifts, d }
    }

    /// Positions within each row's cache: the row's query is moved towards the first `sinks` tokens by the number of
    /// tokens between them and the window that it does not see.
    pub(super) fn within_cache(seen: &VisibleTokens<'_>, sinks: usize) -> Self {
        let VisibleTokens { keys, values, d, tokens, visibility } = *seen;
        let gap = |sight: &RowVisibility| match sight.stretch.is_empty() {
            true => 0,
            false => tokens[sight.stretch.start] as usize - sight.common,
        };
        let shifts = visibility.iter().map(gap).collect();
        Self::new(&keys.gather(tokens, d), &values.gather(tokens, d), d, sinks, visibility.to_vec(), shifts)
    }

    /// Grouped positions; the first row is at `first`. Tokens that are far for some rows and neighbours for others are
    /// packed twice.
    pub(super) fn grouped(seen: &VisibleTokens<'_>, grouped: Grouped<'_>, first: usize) -> Self {
        let VisibleTokens { keys, values, d, tokens, visibility } = *seen;
        let positions = first..first + visibility.len();
        let far_of = |position: usize| grouped.grouping.far(position);
        let (far, far_places) = numbered(tokens, |token| token < far_of(positions.end - 1));
        let (near, near_places) = numbered(tokens, |token| token >= far_of(first));
        let sight = |(position, sight): (usize, &RowVisibility)| {
            let is_far = |single: &ScatteredToken| (tokens[single.place] as usize) < far_of(position);
            let moved = |single: ScatteredToken| match is_far(&single) {
                true => ScatteredToken { place: far_places[single.place], ..single },
                false => ScatteredToken { place: far.len() + near_places[single.place], ..single },
            };
            let (front, back): (Vec<ScatteredToken>, Vec<ScatteredToken>) = sight.each().partition(is_far);
            RowVisibility::of(&front.into_iter().chain(back).map(moved).collect::<Vec<ScatteredToken>>())
        };
        let visibility = positions.clone().zip(visibility).map(sight).collect();
        let shifts = positions.map(|position| grouped.grouping.query_shift(position)).collect();
        let packed = [&far[..], &near[..]].concat();
        let (mut keys, values) = (keys.gather(&packed, d), values.gather(&packed, d));
        grouped.turn_keys(&mut keys[..far.len() * d], d, &far);
        Self::new(&keys, &values, d, far.len(), visibility, shifts)
    }
}

/// Returns the tokens that satisfy `is_one`, and for each of `tokens` the number of these before it.
fn numbered(tokens: &[u32], is_one: impl Fn(usize) -> bool) -> (Vec<u32>, Vec<usize>) {
    let (mut ones, mut places) = (Vec::new(), Vec::with_capacity(tokens.len()));
    for token in tokens {
        places.push(ones.len());
        if is_one(*token as usize) {
            ones.push(*token);
        }
    }
    (ones, places)
}
