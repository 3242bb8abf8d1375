//! Sparse prefill: blocks of query rows attend the tokens that a method's mask allows.
//!
//! A [`BlockMask`](crate::BlockMask) gives the tokens that the rows of a block attend at one KV head. A [`PromptMask`](crate::PromptMask)
//! does so after it has seen the whole prompt at that head. A [`RowMask`](mask::RowMask) selects for each row.
//! [`SparsePrefill`](crate::SparsePrefill) gathers the keys and values of these tokens, attends them and counts the cost. The resulting
//! prefix depends on the method, so no other method shares it.

pub(crate) mod cost;
pub(crate) mod dual_position;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
#[cfg(feature = "cuda")]
mod gpu_lines;
pub(crate) mod gpu_memory;
#[cfg(feature = "cuda")]
mod gpu_rows;
pub(crate) mod lines;
pub(crate) mod mask;
pub(crate) mod rows;
pub(crate) mod shared_tokens;
pub(crate) mod sparse_prefill;
#[cfg(test)]
pub(crate) mod testing;
