//! Running a matrix: settings, one example under many methods, records, store and statistics.

pub mod calibration;
pub mod config;
pub mod examples;
pub mod folder;
pub mod papers;
pub mod plan;
pub mod records;
pub mod run;
pub mod summary;
