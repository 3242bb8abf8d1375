//! Any value of the summary in a table of any rows and columns.
//!
//! What is neither row nor column is averaged over if it is task or length (each of the same weight, perplexities never),
//! and has a table of its own otherwise: models, protocols and settings are never mixed. All means of a table are over the
//! same tasks and lengths: where cells have different ones, there is a table for each set of them.

mod layout;
mod make;
mod table;

pub use self::layout::{Dimension, Layout};
pub use self::make::tables;
pub use self::table::{Entry, PivotTable, ShownNotes, csv, json};

#[cfg(test)]
mod tests;
