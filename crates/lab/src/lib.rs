//! Studies on top of runs: what attention looks like, how fast it is, which budget is enough, and what papers claim.
//!
//! - [`analyze`]: observations of attention on densely read prompts;
//! - [`mod@bench`]: what `spattn bench` times;
//! - [`tune`]: the smallest budget of a method that is good enough;
//! - [`verify`]: whether the program computes a model right;
//! - [`papers`]: the papers' tables and figures, and whether their claims hold in measured numbers.
//!
//! Other modules draw the results.

#[macro_use]
extern crate spattn_base;

pub mod analyze;
pub mod bench;
pub mod papers;
pub mod tune;
pub mod verify;
