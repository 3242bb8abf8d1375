//! Where keys and values of a prefix are, and what it means that they could not be read.

use std::fmt;

/// Where keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// The memory of a device, such as a GPU.
    Device,
    /// The memory of the host.
    Host,
    /// A file.
    Disk,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Device => "the device's memory",
            Tier::Host => "host memory",
            Tier::Disk => "disk",
        })
    }
}

/// Keys and values that could not be read: nothing that would follow from them exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache of layer {layer} could not be read from {tier}: {why}")]
pub struct KvError {
    /// The layer, from 0.
    pub layer: usize,
    /// Where its keys and values are.
    pub tier: Tier,
    /// What went wrong, in one line.
    pub why: String,
}
