//! Models and what is read with them, through the library: files, downloads, the forward pass, calibrations, indexes.
//!
//! One binary, for the same reasons as `commands`. `cargo test --test model decoder::` runs the tests of
//! `decoder.rs`.

#[path = "../golden_model/mod.rs"]
mod golden_model;

mod calibration;
mod decoder;
mod downloads;
mod indexes;
mod likelihood;
mod model_files;
mod shared_contexts;
