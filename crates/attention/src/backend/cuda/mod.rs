//! The backend for NVIDIA GPUs: the inputs of device forms, and the traits by which they launch kernels.

mod launch;
mod layer;
mod memory;
mod projection;

pub use launch::{BuilderLaunch, Built, CudaBuilder, CudaForm, DeviceLaunch, MaskLaunch, MaterializesScores};
pub(crate) use launch::{
    CudaScorer, FusedTopK, PickRequest, PickerLaunch, ScoreRequest, ScorerLaunch, TailPlaces, build_heads, build_index,
    finish,
};
pub(crate) use layer::build_on_host;
pub use layer::{DeviceLayer, DeviceSequence, DeviceStep};
pub use memory::{DeviceScratch, DeviceWorkspace, KvHandle};
pub(crate) use projection::ProjectionWorkspace;

/// Whether this build can select on a device.
pub(crate) const HAS_DEVICE: bool = true;

/// Panic message of launches for a shape that the form does not fit.
pub(crate) const FITS: &str = "`fits` was not checked before a launch";
