//! [`IndexBuilder`]: how the index of a method that selects on the host is built on the device that holds the prefix, so that the host need not
//! read keys and values.

use crate::backend::active::BuilderLaunch;
use crate::kv::{KvDtype, KvShape};
use crate::types::prompt_shape::PromptShape;

/// Builds the indexes of a layer's KV heads on a device: those that [`Method::build`](crate::Method::build) builds, up to rounding.
pub trait IndexBuilder: BuilderLaunch + Send + Sync {
    /// Whether its kernels take keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Upper bound of the device memory that building takes at a time, in bytes.
    fn bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;
}
