//! What `eval`, `sweep` and `tune` do with a matrix: they prepare it, run or describe it, and draw its records.
//!
//! A [`RunRequest`] holds the arguments. `prepare` opens models and tasks and makes the plan, `orchestrate` runs it, `shards` divides it
//! without running, `describe` prints it.

mod adaptive;
mod describe;
mod orchestrate;
mod outlook;
mod plan_text;
mod prepare;
mod reporter;
mod request;
mod run_timing;
mod shards;
mod until_certain;

pub(super) use self::adaptive::AdaptiveSource;
pub(super) use self::plan_text::this_machine;
pub(super) use self::request::{OnFailure, RunRequest};
pub(super) use self::shards::ShardPlan;
