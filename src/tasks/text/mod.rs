//! Text to hide things in: word lists, the house grammar and essays from a folder.
//!
//! What is built from it (needles, lists, documents) belongs to the task families.

pub mod essays;
pub mod grammar;
pub mod words;
