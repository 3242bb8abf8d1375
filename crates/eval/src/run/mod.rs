//! Runs examples, from one sequence's feed up to the loop over a plan; estimates runs; makes records of results.
//!
//! `example_runner` runs an example and knows nothing of tasks and records. `runner` and the files above it know both.

pub(crate) mod attempt;
#[cfg(test)]
mod attempt_tests;
pub(crate) mod decode_loop;
pub mod decoding_policy;
pub mod density_floor;
pub mod estimate;
pub mod example_request;
pub mod example_runner;
#[cfg(test)]
mod example_runner_tests;
pub mod generate;
pub(crate) mod inputs_ahead;
pub(crate) mod job_queue;
pub mod method_costs;
pub mod one_pass;
pub mod prefix_cache;
pub mod prefix_reading;
pub(crate) mod prepared_example;
pub(crate) mod record_key;
pub(crate) mod recorded;
pub(crate) mod records_of_example;
#[cfg(test)]
mod records_of_example_tests;
pub mod run_plan;
#[cfg(test)]
mod run_plan_tests;
pub mod runner;
pub mod sampling;
pub mod score_text;
#[cfg(test)]
mod score_text_tests;
pub(crate) mod shared_prefill;
pub(crate) mod side_by_side;
#[cfg(test)]
mod side_by_side_tests;
pub(crate) mod solo;
pub mod stopwatch;
#[cfg(test)]
mod testing;
pub mod thought;
pub(crate) mod time_attribution;
