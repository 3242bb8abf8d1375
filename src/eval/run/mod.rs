//! Running examples: the loop over a plan, generation, scoring of given text, estimates, and the records of results.

pub mod estimate;
pub mod generate;
pub mod method_result;
pub mod prefix_reuse;
mod record_of;
pub(crate) mod recorded;
pub mod runner;
pub mod score_text;
pub(crate) mod shared_prefill;
pub(crate) mod solo;
pub mod stopwatch;
pub(crate) mod time_attribution;
