//! The plan of a run, made before any weights are read: cells and their contexts, shards, memory, and the manifest.
//!
//! Nothing here runs a model.

pub mod contexts;
pub(crate) mod given_prompts;
pub mod gpu_memory;
pub mod manifest;
pub mod memory;
pub mod planner;
pub mod renamed;
pub mod shard_statement;
pub mod sharding;
pub(crate) mod work;
