//! One example before it is run: its tokens, how it is truncated, the digest of what it asks; and who is told of examples that are done.

pub(crate) mod example_input;
pub mod observer;
pub(crate) mod question_digest;
pub mod token_counter;
pub mod truncate;
