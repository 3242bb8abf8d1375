//! Building a method's indexes over a prefix, anew in every turn.

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
    /// What it is built over.
    pub sequence: &'s BenchSequence,
    /// The method.
    pub method: &'s Configured,
    /// Of the model.
    pub dimensions: &'s Dimensions,
    /// How its positions are moved.
    pub rotation: Option<Arc<dyn Rotation>>,
    /// Bits a token and KV head, once one was built.
    pub aux_bits: f64,
}

impl Runs for Building<'_> {
    /// What gathering about the prompt takes is part of the time: it is as long in every turn, since it was done once.
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let mut cache = self.sequence.cache(self.dimensions, self.rotation.clone());
        let fork = cache.fork(self.method, false);
        self.aux_bits = fork.aux_bits();
        Ok(Turn::of(fork.index_time().whole))
    }

    fn count(&self, row: &mut BenchRow) {
        count_index(&self.sequence.prefix, self.aux_bits, row);
    }
}

/// An index of `aux_bits` a token and KV head: keys and values read once, and what is written.
pub(super) fn count_index(prefix: &Prefix, aux_bits: f64, row: &mut BenchRow) {
    let shape = prefix.shape();
    let rows = prefix.tokens() * shape.kv_heads * prefix.layers();
    let own = aux_bytes(prefix, aux_bits);
    row.limit_bytes = (rows * shape.row_bytes()) as u64 + own;
    row.bytes = row.limit_bytes;
    (row.aux_bits, row.aux_bytes) = (Some(aux_bits), Some(own));
    row.density = 1.0;
}
