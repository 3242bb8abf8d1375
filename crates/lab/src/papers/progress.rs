//! Progress of the analyses and calibrations of a paper's item, reported after each part.

/// A part that is done and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoneUnit<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// The total number of parts.
    pub of: usize,
    /// The number of parts that an earlier run stored.
    pub found: usize,
    /// What it is.
    pub what: &'a str,
}
