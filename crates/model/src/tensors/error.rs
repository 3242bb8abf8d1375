//! Errors in weights.

use std::io;
use std::path::PathBuf;

use crate::files::{INDEX_FILE, SINGLE_FILE};

/// An error in weights; each is one line that names the file.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A folder holds neither a single file nor an index.
    #[error("{}: no {SINGLE_FILE} and no {INDEX_FILE} in this folder", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A shard that the index names is missing.
    #[error("{}: missing; {} lists it as a shard", shard.display(), index.display())]
    MissingShard {
        /// Where the shard should be.
        shard: PathBuf,
        /// The index that names it.
        index: PathBuf,
    },
    /// A file could not be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file ends earlier than its header states.
    #[error("{file}: truncated: {missing} bytes are missing")]
    Truncated {
        /// The file.
        file: String,
        /// The least number of missing bytes.
        missing: u64,
    },
    /// A file of the hub's cache, where file names are hashes, has another hash.
    #[error("{file}: damaged: its SHA-256 is {got}, that of the published file {expected}")]
    Damaged {
        /// The file.
        file: String,
        /// Its hash.
        got: String,
        /// The hash in its name.
        expected: String,
        /// The path that the link leads to.
        blob: PathBuf,
    },
    /// A file or index is not what its name says.
    #[error("{file}: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The checkpoint does not have a tensor.
    #[error("{file}: no tensor `{name}`")]
    MissingTensor {
        /// The file, or the index of the shards.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A tensor's shape is not what the config implies.
    #[error("{file}: tensor `{name}` has shape {got:?}, expected {expected:?}")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Shape by the config.
        expected: Vec<usize>,
    },
    /// A tensor holds numbers that are not read, such as quantised ones.
    #[error("{file}: tensor `{name}` holds {dtype}; only F32, F16 and BF16 can be read")]
    UnsupportedType {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The name of its type in the file's format.
        dtype: String,
    },
    /// A part of a quantised tensor is missing, wrong, or differs from the config.
    #[error("{file}: the quantised tensor `{name}`: {what}")]
    Quantised {
        /// The file.
        file: String,
        /// The part, or the one with the numbers if another is missing.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor holds a NaN or an infinite number.
    #[error("{file}: tensor `{name}` holds {value} at {at:?}: the checkpoint is broken")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// Its index on each axis.
        at: Vec<usize>,
    },
    /// A tensor holds a number that is too large for the type in which it would be
    /// kept.
    #[error("{file}: tensor `{name}` holds {value}, beyond what {dtype} can hold; take --dtype bf16 or f32")]
    TooLarge {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// The type.
        dtype: &'static str,
    },
}
