//! Keys and values that a device works with, in its memory or in the host's, as the host knows them.

use std::any::Any;
use std::fmt;

use crate::backend::active::KvHandle;
use crate::kv::layer::LayerKv;
use crate::kv::shape::KvShape;
use crate::kv::tier::Tier;
use spattn_kernels::Rows;

/// Keys and values of a prefix that a device works with.
pub trait DeviceKv: Any + Send + Sync + fmt::Debug {
    /// What its layers have in common.
    fn shape(&self) -> KvShape;

    /// Where they are: in the device's memory, or in host memory that the device reads over the bus.
    fn tier(&self) -> Tier {
        Tier::Device
    }

    /// Copies one layer to memory of the host that others can read.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure>;

    /// Keys and values `[token][d]` of the first tokens of a KV head, if they are in host memory that the host can read; else `None`.
    fn on_host(&self, _layer: usize, _kv_head: usize, _tokens: usize) -> Option<Result<[Rows<'_>; 2], DeviceFailure>> {
        None
    }

    /// One layer where it is, if a GPU's kernels reach it.
    fn on_gpu(&self, _layer: usize) -> Option<KvHandle<'_>> {
        None
    }
}

/// A device that did not do what it was asked for: one line that says what and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DeviceFailure {
    why: String,
    is_fatal: bool,
}

impl DeviceFailure {
    /// A failure after which other work may succeed.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_fatal: false }
    }

    /// A failure after which the device computes nothing more in this process: CUDA calls such errors sticky.
    pub fn fatal(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_fatal: true }
    }

    /// Whether everything else on the device would fail, too.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }
}
