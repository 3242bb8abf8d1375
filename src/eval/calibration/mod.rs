//! Calibration of methods: reading texts, fitting artefacts, and the calibrations that papers' items compare.
//!
//! The highest room of `eval`: it uses all others.

pub mod calibrate;
pub mod capture;
pub mod paper_calibrations;
