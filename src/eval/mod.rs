//! Running a matrix: settings, one example under many methods, records, store and statistics.

pub mod calibration;
pub mod capture;
pub mod cells;
pub mod checks;
pub mod config;
pub mod estimate;
pub mod examples;
pub mod folder;
pub mod generate;
pub mod learned;
pub mod likelihood;
pub mod paired;
pub mod papers;
pub mod plan;
mod reading;
mod recorded;
pub mod records;
pub mod run;
pub mod scores;
mod shares;
pub mod sharing;
mod solo;
pub mod summary;
pub mod times;
