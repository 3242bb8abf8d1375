//! Tables of any value of the summary, with any rows and columns.
//!
//! A task or length that is neither row nor column is averaged over (with equal weights; perplexities never). Other
//! dimensions that are neither get a table for each value: models, protocols and settings are never mixed. All means in a
//! table are over the same tasks and lengths: if cells have different ones, there is a table for each set of them.

mod layout;
mod make;
mod table;

pub use self::layout::{Dimension, Layout};
pub use self::make::tables;
pub use self::table::{Entry, PivotTable, ShownNotes, csv, json};

#[cfg(test)]
mod tests;
