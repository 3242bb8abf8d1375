//! Timing attention, prefill, indexes, whole steps and single kernels: what `spattn bench` measures, and what one
//! measurement is kept as.
//!
//! Methods run through the same engine as in an evaluation. What they are given to read, how their turns are interleaved
//! and which limits they are held to is decided here; how results are drawn is not.

mod row;

pub use row::{Bench, BenchRow, Roof};
