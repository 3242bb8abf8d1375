//! One example before it is run: its input, truncation, token counts, and the digest of what it asks.
//!
//! The observer of a run is here as well, as planning and running both report to it.

pub(crate) mod example_input;
pub mod observer;
pub(crate) mod question_digest;
pub mod token_counter;
pub mod truncate;
