//! [`IndexBuilder`]: how the device that holds the prefix builds the index of a method that selects on the host, so that the host need not
//! read keys and values; and how it hashes queries for the host.

use crate::backend::active::BuilderLaunch;
use crate::kv::{KvDtype, KvShape};
use crate::types::prompt_shape::PromptShape;

/// Builds the indexes of a layer's KV heads on a device, equal to those of [`Method::build`](crate::Method::build) up to rounding. A
/// backend's launches may also hash the queries of steps, for [`Method::take_codes`](crate::Method::take_codes).
pub trait IndexBuilder: BuilderLaunch + Send + Sync {
    /// Whether its kernels take keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Upper bound of the device memory that building takes at a time, in bytes.
    fn bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;

    /// Upper bound of the host memory of the indexes of all layers of a prefix, in bytes, if it is known before a run; 0 by default.
    fn host_bytes(&self, _prefix: &PromptShape) -> usize {
        0
    }
}
