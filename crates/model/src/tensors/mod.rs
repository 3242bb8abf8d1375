//! Tensors by name: where they are read from ([`TensorSource`]), how they are stored there ([`StoredTensor`]; [`quantised`] if in
//! several parts), and the types in which engines keep them ([`WeightDtype`]).
//!
//! The decoder's families, not this module, know which tensors a model has and what they mean.

mod dtype;
mod error;
mod part;
pub mod quantised;
mod random;
mod safetensors;
mod source;
mod stored;
mod weights;

pub use crate::files::{INDEX_FILE, SINGLE_FILE};
pub use dtype::{StorageTypes, WeightDtype};
pub use error::WeightsError;
pub use part::{MXFP4_BLOCK, PartForm};
pub use random::RandomTensors;
pub(crate) use safetensors::sha256_of_part;
pub use safetensors::{SafetensorsFiles, shard_names};
pub use source::{StoredFormat, TensorInfo, TensorSource};
pub use stored::{StoredTensor, StoredType};
pub use weights::Weights;
