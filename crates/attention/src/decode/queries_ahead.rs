//! Queries by which a sequence selects ahead, held until its rows take
//! them.

use std::collections::VecDeque;

/// Queries of the rows of a step at a layer, in their order.
#[derive(Debug, Default)]
pub(super) struct QueriesAhead {
    layer: usize,
    rows: VecDeque<Vec<f32>>,
}

impl QueriesAhead {
    /// Holds the queries of the rows of a step at a layer.
    pub(super) fn new(layer: usize, rows: impl IntoIterator<Item = Vec<f32>>) -> Self {
        Self { layer, rows: rows.into_iter().collect() }
    }

    /// Takes the queries of the next row, if they are of this layer.
    pub(super) fn take(&mut self, layer: usize) -> Option<Vec<f32>> {
        if self.layer == layer { self.rows.pop_front() } else { None }
    }
}
