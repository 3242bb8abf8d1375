//! Sparse prefill: blocks of query rows attend the tokens that a method's mask allows.
//!
//! A [`BlockMask`](crate::BlockMask) says what the rows of a block attend at one KV head; a [`PromptMask`](crate::PromptMask) says it when it
//! has seen all of the prompt at that head, so that a layer is read as a whole; a [`RowMask`](mask::RowMask) selects for each row.
//! [`SparsePrefill`](crate::SparsePrefill) gathers those keys and values, attends and counts. The prefix that results holds the keys and
//! values that the method itself led to, so no other method shares it.

pub(crate) mod cost;
pub(crate) mod dual_position;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod gpu_memory;
pub(crate) mod mask;
pub(crate) mod rows;
pub(crate) mod sparse_prefill;
#[cfg(test)]
pub(crate) mod testing;
