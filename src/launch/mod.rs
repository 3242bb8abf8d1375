//! A sweep on many machines: the plan of its shards, the scheduler's batch script, and the status.
//!
//! All state is in one folder that the machines share. No server is needed, and nothing here runs examples: each task of the
//! scheduler runs `spattn sweep --shard I/N` in its own folder.

pub mod plan;
pub mod script;
pub mod slurm;
pub mod status;

use std::path::{Path, PathBuf};

/// The planned matrix in a sweep's folder.
pub const MATRIX: &str = "matrix.toml";
/// The batch script in a sweep's folder.
pub const SCRIPT: &str = "sweep.sbatch";
/// The subfolder of the scheduler's logs.
pub const LOGS: &str = "logs";
/// The subfolder of the shards' folders.
pub const SHARDS: &str = "shards";

/// The folder of a shard, numbered from 1.
pub fn shard_folder(sweep: &Path, shard: usize) -> PathBuf {
    sweep.join(SHARDS).join(shard.to_string())
}
