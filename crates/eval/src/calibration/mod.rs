//! Calibration of methods: reading texts, making artefacts, and finding them for a run.
//!
//! This is the top module of `eval`: it may use all others.

pub mod calibrate;
pub mod capture;
pub mod checkpoints;
pub mod supply;
