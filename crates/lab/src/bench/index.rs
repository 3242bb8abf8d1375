//! Times how long a method takes to build its indexes over a prefix. Every turn builds them again.

use std::sync::Arc;

use anyhow::Result;

use super::attention::aux_bytes;
use super::row::BenchRow;
use super::sequence::BenchSequence;
use super::turns::{Runs, Turn};
use spattn_attention::kv::Prefix;
use spattn_attention::{Configured, Rotation};
use spattn_model::dimensions::Dimensions;

/// A method that builds its index of one sequence.
pub struct Building<'s> {
    /// The sequence that is indexed.
    pub sequence: &'s BenchSequence,
    /// The method.
    pub method: &'s Configured,
    /// The model's dimensions.
    pub dimensions: &'s Dimensions,
    /// How the method moves positions, if it does.
    pub rotation: Option<Arc<dyn Rotation>>,
    /// Bits of auxiliary memory for each token and KV head, set by the first build.
    pub aux_bits: f64,
}

impl Runs for Building<'_> {
    /// Includes the time to gather the prompt statistics. They were gathered once, so it is the same in every turn.
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let mut cache = self.sequence.cache(self.dimensions, self.rotation.clone());
        let sequence = cache.fork(self.method, false)?;
        self.aux_bits = sequence.aux_bits();
        Ok(Turn::of(sequence.index_time().whole))
    }

    fn count(&self, row: &mut BenchRow) {
        count_index(&self.sequence.prefix, self.aux_bits, row);
    }
}

/// Counts an index of `aux_bits` for each token and KV head: keys and values are read once, the index is written.
pub(super) fn count_index(prefix: &Prefix, aux_bits: f64, row: &mut BenchRow) {
    let shape = prefix.shape();
    let rows = prefix.tokens() * shape.kv_heads * prefix.layers();
    let own = aux_bytes(prefix, aux_bits);
    row.limit_bytes = (rows * shape.row_bytes()) as u64 + own;
    row.bytes = row.limit_bytes;
    (row.aux_bits, row.aux_bytes) = (Some(aux_bits), Some(own));
    row.density = 1.0;
}
