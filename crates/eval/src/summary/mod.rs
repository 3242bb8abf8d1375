//! What is computed from records: cells, means, paired differences, times, verdicts and self-checks.
//!
//! No model is run here, and nothing is drawn.

pub mod cells;
pub mod column_value;
pub mod columns;
pub mod demand;
pub mod outlook;
pub mod over_tasks;
pub mod paired;
pub mod prefill_savings;
pub mod running_scores;
pub mod self_checks;
pub mod summarize;
pub mod times;
pub mod verdicts;
pub mod warnings;

mod comparisons;
