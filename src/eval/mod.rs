//! Running a matrix: settings, one example under many methods, records, store and statistics.

pub mod calibration;
pub mod cells;
pub mod checks;
pub mod config;
mod config_file;
pub mod contexts;
pub mod counter;
pub mod cut;
pub mod estimate;
pub mod generate;
pub mod likelihood;
pub mod manifest;
pub mod memory;
pub mod order;
pub mod plan;
pub mod protocol;
pub mod record;
pub mod run;
mod shares;
pub mod sharing;
mod solo;
pub mod stats;
pub mod store;
pub mod summary;
pub mod times;
mod validity;
pub mod watch;
