//! Limits on what is read from a table.

/// The most bytes of a line in a file of rows: an archive of a few kilobytes may unpack to a line that exceeds the memory.
pub(crate) const LONGEST_LINE: u64 = 64 << 20;

/// The error for a table that exceeds a limit, which the text names.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TooLarge(pub(super) String);

/// Limits on a table.
pub(super) struct Limits {
    /// Bytes of all texts in a row, and of the row as a line of JSON.
    pub row: u64,
    /// Values in lists that are in memory at the same time; each takes more bytes there than in the file.
    pub list_values: u64,
    /// Number of rows of the table.
    pub rows: u64,
    /// Total bytes of all lines.
    pub bytes: u64,
}

impl Limits {
    /// The limits for a file of `bytes` bytes. Equal rows and texts take almost no bytes, so a small file may hold much more than its
    /// size. In a large one, a row that differs from the previous one takes at least one bit.
    pub fn of_file(bytes: u64) -> Self {
        Self {
            row: LONGEST_LINE,
            list_values: 4 << 20,
            rows: (1 << 16) + bytes.saturating_mul(8),
            bytes: (256 << 20).max(bytes.saturating_mul(32)),
        }
    }
}
