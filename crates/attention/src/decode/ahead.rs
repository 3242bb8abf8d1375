//! The queries by which a sequence selects ahead ([`Method::selects_ahead`](crate::Method::selects_ahead)): an engine computes them from the
//! input of the layer before, for all rows of a step, and each row takes its own.

use crate::decode::queries_ahead::QueriesAhead;
use crate::decode::sequence::Sequence;
use crate::kv::KvError;

impl Sequence {
    /// Whether tokens of a layer are selected by queries that are [set](Self::set_queries_ahead) while the layer before computes.
    pub fn selects_ahead_at(&self, layer: usize) -> bool {
        layer > 0 && self.method.method.selects_ahead() && self.selects_at(layer)
    }

    /// Sets the queries of the next rows at a layer, each `[heads][d]`, rotated and unscaled: what the layer would make of the input of the
    /// layer before.
    pub fn set_queries_ahead(&mut self, layer: usize, rows: impl IntoIterator<Item = Vec<f32>>) {
        self.ahead = QueriesAhead::new(layer, rows);
    }

    /// The queries by which the next row selects at a layer; `None` if these are its own.
    ///
    /// # Errors
    /// If they were not set: the engine does not compute them.
    pub(super) fn take_queries_ahead(&mut self, layer: usize) -> Result<Option<Vec<f32>>, KvError> {
        if !self.selects_ahead_at(layer) {
            return Ok(None);
        }
        self.ahead.take(layer).map(Some).ok_or_else(|| {
            let method = self.method.label();
            KvError::Method(format!(
                "method `{method}` selects tokens of layer {layer} by queries that this run does not compute ahead"
            ))
        })
    }
}
