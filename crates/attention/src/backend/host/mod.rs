//! The backend of a build that computes only on the CPU: it defines a backend's names and launches
//! nothing.

mod launch;
mod memory;

pub use launch::{BuilderLaunch, DeviceLaunch, MaskLaunch};
pub(crate) use launch::{PickerLaunch, ScorerLaunch, build_heads, build_index, finish};
pub use memory::KvHandle;

/// Whether this build can select on a device.
pub(crate) const HAS_DEVICE: bool = false;
