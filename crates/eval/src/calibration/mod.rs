//! Calibration of methods: reading texts, fitting artefacts, and the calibrations that papers' items compare.
//!
//! This is the top module of `eval`: it uses all others.

pub mod calibrate;
pub mod capture;
