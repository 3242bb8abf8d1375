//! The queries by which a sequence selects ahead ([`Method::selects_ahead`](crate::Method::selects_ahead)). An engine computes them from
//! the input of the previous layer, for all rows of a step, and each row takes its own. If misses are counted, the result is compared with
//! what the row's own queries would have selected.

use std::time::Duration;

use crate::decode::queries_ahead::QueriesAhead;
use crate::decode::sequence::Sequence;
use crate::kv::KvError;
use crate::types::selection::AttendedTokens;

impl Sequence {
    /// Whether a layer selects tokens by queries that are [set](Self::set_queries_ahead) while the previous layer computes.
    pub fn selects_ahead_at(&self, layer: usize) -> bool {
        layer > 0 && self.method.method.selects_ahead() && self.selects_at(layer)
    }

    /// Sets the queries of the next rows at a layer, each `[heads][d]`, rotated and unscaled: the queries that the layer would compute from
    /// the input of the previous layer.
    pub fn set_queries_ahead(&mut self, layer: usize, rows: impl IntoIterator<Item = Vec<f32>>) {
        self.ahead = QueriesAhead::new(layer, rows);
    }

    /// Takes the queries by which the next row selects at a layer; `None` if these are its own queries.
    ///
    /// # Errors
    /// If they were not set because the engine does not compute them.
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

    /// Counts misses of selections ahead from now on, in [steps](Self::step) and in those of an engine that selects on a device. Does
    /// nothing for methods that do not select ahead. Each token is selected for a second time, by its own queries.
    pub fn counting_misses(self) -> Self {
        Self { counts_misses: true, ..self }
    }

    /// Whether misses of a layer are counted.
    pub fn counts_misses_at(&self, layer: usize) -> bool {
        self.counts_misses && self.selects_ahead_at(layer)
    }

    /// Adds the misses that a device counted since the last call: for each layer, the number of tokens that own queries would have
    /// selected, and how many of these were not selected ahead.
    pub fn collect_device_misses(&mut self, counters: &[[u64; 2]]) {
        for (layer, [wanted, missed]) in counters.iter().enumerate() {
            let cost = self.costs.layer_mut(layer);
            cost.wanted_tokens += wanted;
            cost.missed_tokens += missed;
        }
    }

    /// Counts the tokens that the own queries of the last token would have selected at a layer, and those of them that were not `picked`
    /// ahead. The second selection is not part of the method: its costs and pages are not counted. Returns the time spent on other threads.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read.
    pub(super) fn count_misses(
        &mut self,
        layer: usize,
        queries: &[f32],
        picked: &[AttendedTokens],
    ) -> Result<Duration, KvError> {
        let (total, group) = (self.total(layer), queries.len() / (picked.len() * self.prefix.shape().d));
        let wanted = self.selected_by(layer, Some(queries), group)?;
        for (wanted, picked) in wanted.iter().zip(picked) {
            let (Some(wanted), Some(picked)) = (&wanted.selection, &picked.selection) else { continue };
            let (all, missed) = wanted.missing_in(picked, total);
            let cost = self.costs.layer_mut(layer);
            cost.wanted_tokens += all as u64;
            cost.missed_tokens += missed as u64;
        }
        Ok(wanted.iter().map(|wanted| wanted.apart.select).sum())
    }
}
