//! Running a matrix: plan, runner, records, store and statistics.

pub mod checks;
pub mod record;
pub mod stats;
pub mod store;
pub mod summary;
