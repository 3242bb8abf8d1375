//! What methods learn about a model offline: collectors that watch prompts being read, and the artefacts that they leave.

pub mod artefact;
pub(crate) mod collector;

pub use collector::{
    Assignment, Calibration, Collected, Collector, DeviceChunk, Import, PrefillChunk, Reading, ReadingText,
    StartCollector, TextBySettings, TextKind,
};
