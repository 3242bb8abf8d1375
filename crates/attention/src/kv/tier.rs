//! The storage tiers of keys and values, bytes read by tier, and the error when reading, writing or selecting fails.

use std::fmt;
use std::ops::AddAssign;

/// Where keys and values are stored.
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

/// Why an index could not be built or a step not be taken; there is no result then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Keys and values could not be read.
    #[error("the KV cache of layer {layer} could not be read from {tier}: {why}")]
    Unread {
        /// The layer, from 0.
        layer: usize,
        /// Where its keys and values are stored.
        tier: Tier,
        /// What went wrong, in one line.
        why: String,
    },
    /// Keys and values could not be written.
    #[error("the KV cache of layer {layer} could not be written to {tier}: {why}")]
    Unwritten {
        /// The layer, from 0.
        layer: usize,
        /// Where its keys and values were to be stored.
        tier: Tier,
        /// What went wrong, in one line.
        why: String,
    },
    /// The method itself failed, such as one that calls another process; says what went wrong, in one line.
    #[error("{0}")]
    Method(String),
}

impl KvError {
    /// The tier that failed, if one did.
    pub fn tier(&self) -> Option<Tier> {
        match self {
            Self::Unread { tier, .. } | Self::Unwritten { tier, .. } => Some(*tier),
            Self::Method(_) => None,
        }
    }
}

/// Bytes of keys and values that were read, by the tier that they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierBytes {
    /// From the memory of a device.
    pub device: u64,
    /// From host memory, if they were copied and not borrowed.
    pub host: u64,
    /// From files.
    pub disk: u64,
}

impl TierBytes {
    /// `bytes` bytes of one tier.
    pub fn of(tier: Tier, bytes: u64) -> Self {
        match tier {
            Tier::Device => Self { device: bytes, ..Self::default() },
            Tier::Host => Self { host: bytes, ..Self::default() },
            Tier::Disk => Self { disk: bytes, ..Self::default() },
        }
    }

    /// Sum over all tiers.
    pub fn sum(&self) -> u64 {
        self.device + self.host + self.disk
    }
}

impl AddAssign for TierBytes {
    fn add_assign(&mut self, other: Self) {
        self.device += other.device;
        self.host += other.host;
        self.disk += other.disk;
    }
}
