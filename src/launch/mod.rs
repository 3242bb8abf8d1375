//! A sweep on many machines: the plan of its shards, the batch script that a scheduler runs them by, and how far they are.
//!
//! All of it is files in one folder that the machines share; nothing here runs an example, and nothing needs a server.
//! What a task of the scheduler runs is `spattn sweep --shard I/N` on a folder of its own.

pub mod plan;
pub mod script;
pub mod slurm;
pub mod status;

use std::path::{Path, PathBuf};

/// The matrix as it was planned, within a sweep's folder.
pub const MATRIX: &str = "matrix.toml";
/// The batch script within a sweep's folder.
pub const SCRIPT: &str = "sweep.sbatch";
/// The folder of the scheduler's logs.
pub const LOGS: &str = "logs";
/// The folder of the shards' folders.
pub const SHARDS: &str = "shards";

/// The folder of a shard, numbered from 1.
pub fn shard_folder(sweep: &Path, shard: usize) -> PathBuf {
    sweep.join(SHARDS).join(shard.to_string())
}
