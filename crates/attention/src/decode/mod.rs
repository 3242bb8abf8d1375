//! Decoding from a shared prefix: one [`Sequence`](crate::Sequence) for each method, all over the same keys, values and indexes.
//!
//! [`IndexCache`](crate::IndexCache) builds each index once for all methods that can share it, and starts sequences. A sequence owns
//! its tail of keys and values and the method's state, attends what the method selects, and counts the cost. No code here depends on
//! a method's name.

mod ahead;
#[cfg(test)]
mod ahead_tests;
pub mod fidelity;
pub(crate) mod head_kv;
pub(crate) mod index_cache;
pub(crate) mod layer_step;
mod queries_ahead;
pub(crate) mod sequence;
pub(crate) mod sequence_costs;
#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod spec_tests;
pub(crate) mod start;
pub(crate) mod timing;
