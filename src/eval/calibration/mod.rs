//! Calibrating methods: reading texts, fitting artefacts, and those that a paper's items ask for.

pub mod calibrate;
pub mod capture;
pub mod paper_calibrations;
