//! Progress of the analyses and calibrations of a paper's item: what is reported after each part.

/// A part that is done and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoneUnit<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// The number of all parts.
    pub of: usize,
    /// How many were stored by an earlier run.
    pub found: usize,
    /// What it is.
    pub what: &'a str,
}
