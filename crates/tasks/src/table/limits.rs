//! What a table may give at most, and the error of one that would give more.

/// Bytes of a line at most: an archive of a few kilobytes may hold one that no memory does.
pub(crate) const LONGEST_LINE: u64 = 64 << 20;

/// The table gives more than it may.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TooLarge(pub(super) String);

/// What a table may give.
pub(super) struct Limits {
    /// Bytes of a row's texts, and of its line.
    pub row: u64,
    /// Values in lists that are held at once: each takes more memory than it has bytes in a file.
    pub held: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of all lines.
    pub bytes: u64,
}

impl Limits {
    /// Of a file of so many bytes. Equal rows and equal texts take next to no bytes, so small files may give much more
    /// than they have; in large ones, a row that differs from the one before takes a bit at least.
    pub fn of_file(bytes: u64) -> Self {
        Self {
            row: LONGEST_LINE,
            held: 4 << 20,
            rows: (1 << 16) + bytes.saturating_mul(8),
            bytes: (256 << 20).max(bytes.saturating_mul(32)),
        }
    }
}
