//! Keys and values in a device's memory, as the host knows them.

use std::any::Any;
use std::fmt;

use crate::backend::active::KvHandle;
use crate::kv::layer::LayerKv;
use crate::kv::shape::KvShape;

/// Keys and values of a prefix in a device's memory.
pub trait DeviceKv: Any + Send + Sync + fmt::Debug {
    /// What its layers have in common.
    fn shape(&self) -> KvShape;

    /// Copies one layer to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure>;

    /// One layer where it is, if that is in a GPU's memory.
    fn on_gpu(&self, _layer: usize) -> Option<KvHandle<'_>> {
        None
    }
}

/// A device that did not do what it was asked for: one line that says what and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFailure(pub String);
