//! Timing attention, prefill, indexes, whole steps and single kernels (`spattn bench`), and the rows that store the results.
//!
//! Methods run in the same engine as in an evaluation. These modules decide the inputs, the order of turns and the limits that times
//! are compared with; other modules lay out the results.

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
