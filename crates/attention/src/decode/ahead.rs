//! The queries by which a sequence selects ahead ([`Method::selects_ahead`](crate::Method::selects_ahead)): an engine computes them from the
//! input of the layer before, for all rows of a step, and each row takes its own.

use std::collections::VecDeque;

use crate::decode::sequence::Sequence;
use crate::kv::KvError;

/// Queries of the rows of a step at a layer, in their order.
#[derive(Debug, Default)]
pub(super) struct QueriesAhead {
    layer: usize,
    rows: VecDeque<Vec<f32>>,
}

impl Sequence {
    /// Whether tokens of a layer are selected by queries that are [set](Self::set_queries_ahead) while the layer before computes.
    pub fn selects_ahead_at(&self, layer: usize) -> bool {
        layer > 0 && self.method.method.selects_ahead() && self.selects_at(layer)
    }

    /// Sets the queries of the next rows at a layer, each `[heads][d]`, rotated and unscaled: what the layer would make of the input of the
    /// layer before.
    pub fn set_queries_ahead(&mut self, layer: usize, rows: impl IntoIterator<Item = Vec<f32>>) {
        self.ahead = QueriesAhead { layer, rows: rows.into_iter().collect() };
    }

    /// The queries by which the next row selects at a layer; `None` if these are its own.
    ///
    /// # Errors
    /// If they were not set: the engine does not compute them.
    pub(super) fn take_queries_ahead(&mut self, layer: usize) -> Result<Option<Vec<f32>>, KvError> {
        if !self.selects_ahead_at(layer) {
            return Ok(None);
        }
        let of_layer = Some(&mut self.ahead).filter(|ahead| ahead.layer == layer);
        match of_layer.and_then(|ahead| ahead.rows.pop_front()) {
            Some(queries) => Ok(Some(queries)),
            None => Err(KvError::Method(format!(
                "method `{}` selects tokens of layer {layer} by queries that this run does not compute ahead",
                self.method.label()
            ))),
        }
    }
}
