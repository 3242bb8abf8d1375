//! What methods learn about a model before any run: collectors, which observe the prefill of prompts, and the artefacts they make.

pub mod artefact;
pub(crate) mod collector;
pub(crate) mod sums;

pub use collector::{
    Assignment, Calibration, Collected, Collector, DeviceChunk, HostChunk, Import, ObserveChunk, PrefillChunk, Reading,
    ReadingText, StartCollector, TextBySettings, TextKind,
};
