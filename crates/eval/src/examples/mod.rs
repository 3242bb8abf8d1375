//! An example before it is run: its input, truncation, token counts, and the digest of its question.
//!
//! The observer of a run is here too, because both planning and running report to it.

pub(crate) mod example_input;
pub mod observer;
pub(crate) mod question_digest;
pub mod token_counter;
pub mod truncate;
