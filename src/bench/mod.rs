//! Timing attention, prefill, indexes, whole steps and single kernels: what `spattn bench` measures, and what one
//! measurement is kept as.
//!
//! Methods run through the same engine as in an evaluation. What they are given to read, how their turns are interleaved
//! and which limits they are held to is decided here; how results are drawn is not.

mod attention;
mod capture;
mod decode;
mod drawn;
#[cfg(feature = "cuda")]
mod gpu;
mod index;
mod kernels;
mod learned;
mod peers;
mod place;
mod plan;
mod prefill;
mod row;
mod sequence;
mod turns;

pub use capture::{Capture, Reader};
pub use peers::Peers;
pub use plan::{Op, Plan, Progress, check_memory, steps};
pub use row::{Bench, BenchRow, Roof};
