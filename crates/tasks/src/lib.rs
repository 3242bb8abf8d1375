//! Tasks: what is asked, what the right answer is, and how a prediction is scored.
//!
//! A family of tasks is one folder or file (`ruler/`, `kv_retrieval.rs`); prompts and parameters live as
//! data in the repository's `tasks/*.toml`. Nothing here knows a model or an attention method:
//! a task sees a model only as a [`PromptCounter`].
//!
//! `task.rs` says what a task is, `registry.rs` which families there are.
//!
//! Adding a family: one file that implements [`Family`], and one line in `FAMILIES`.

pub mod answers;
pub mod assets;
pub mod data_files;
pub mod digest;
#[cfg(test)]
mod fuzz;
mod grid;
pub mod jsonl;
mod kv_retrieval;
mod kvpress;
pub mod likelihood;
mod long_sets;
pub mod longbench;
mod longeval;
pub mod metrics;
mod options;
mod perplexity;
pub mod published;
mod question_places;
mod registry;
pub mod rows;
pub mod ruler;
pub mod seed;
mod summary;
mod table;
mod task;
mod templated;
pub mod text;
mod turns;

pub use registry::{Named, catalog, check_names, groups, resolve, resolve_each, stand_ins};
pub use task::{Cut, Example, Family, Positions, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, ended};
