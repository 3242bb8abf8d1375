//! What `eval`, `sweep` and `tune` do with a matrix: it is prepared, run or described, and what was recorded is drawn.
//!
//! A [`RunRequest`] says what is asked for. `prepare` opens models and tasks and plans, `orchestrate` runs, `shards` deals
//! without running, `describe` prints the plan.

mod adaptive;
mod describe;
mod orchestrate;
mod plan_text;
mod prepare;
mod reporter;
mod request;
mod run_timing;
mod shards;

pub(super) use self::adaptive::AdaptiveSource;
pub(super) use self::request::{OnFailure, RunRequest};
pub(super) use self::shards::ShardPlan;
