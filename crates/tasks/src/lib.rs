//! Tasks: the questions, the right answers, and how a prediction is scored.
//!
//! Prompts and parameters are data, in the repository's `tasks/*.toml`. No code here depends on a model or an attention method:
//! to a task, a model is only a [`PromptCounter`], which counts the tokens of a prompt, or a
//! [`TextEncoder`](likelihood::TextEncoder).
//!
//! | where | what |
//! |---|---|
//! | `task.rs`, `likelihood.rs` | what a task is: one of generated answers, or one of given text |
//! | `registry.rs` | all families of tasks, and which tasks a name stands for |
//! | `ruler/`, `grid/`, `templated/`, `long_sets.rs`, `longbench.rs`, `perplexity.rs`, `jsonl/` | the families |
//! | `kv_retrieval.rs`, `longeval.rs`, `kvpress.rs`, `turns.rs`, `summary.rs` | kinds of rows in prepared files |
//! | `rows/`, `table/`, `question_places.rs` | reading files of rows |
//! | `answers.rs`, `metrics/` | checking reference answers, scoring predictions |
//! | `text/`, `seed.rs` | texts, words and random draws for generated examples |
//! | `training_rows/` | rows to train models on: made from the same templates, and never evaluated |
//! | `assets.rs`, `data_files.rs`, `published.rs` | files in the user's data folder, and whether they are the published ones |
//!
//! To add a family, write one file that implements [`Family`], and add one line to `FAMILIES` in `registry.rs`.

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
mod ruler;
pub mod seed;
mod summary;
mod table;
mod task;
mod templated;
pub mod text;
pub mod training_rows;
mod turns;

pub use registry::{Named, catalog, check_names, groups, resolve, resolve_each, stand_ins};
pub use task::{Cut, Example, Family, Positions, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, ended};
