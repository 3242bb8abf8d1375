//! Running a matrix: plan, runner, records, store and statistics.

pub mod record;
