//! Tasks that are data: each row of a published set becomes a prompt by Jinja templates.
//!
//! `tasks/multiple_choice.toml` and `tasks/generation.toml` define such tasks. They share a [`Definition`](definition::Definition) (name,
//! files, where the set is published), the reading of rows (`reading.rs`), the templates (`fields.rs`, `filters.rs`) and solved examples
//! before a question (`examples.rs`, `shots.rs`). They differ in the kind of answer:
//!
//! - `choice.rs`: compares the model's likelihood of each given option (`mcq/...`);
//! - `generation.rs`: the model generates a text, which a metric scores (`gen/...`).
//!
//! `long_sets.rs` uses the templates too, for rows that are too long to keep in memory.

pub(crate) mod choice;
mod definition;
mod examples;
mod fields;
mod filters;
pub(crate) mod generation;
mod hub;
mod reading;
mod shots;

pub(crate) use fields::Fields;
