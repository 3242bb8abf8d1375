//! What scoring kernels read: queries of a step, rows and bounds of an index, and how tokens are cut into pages.

use std::ops::Range;

use super::host_device_vec::HostDeviceVec;
use super::{Buffer, Storage};

/// Queries of some rows in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated queries `[row][stride]`, head `h` at `h * d`.
    pub queries: &'a Buffer,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Indices of the rows in the buffer.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Channel-wise bounds of pages of keys, each `[kv_head][page][d]`.
#[derive(Debug, Clone, Copy)]
pub struct PageBounds<'a> {
    /// Minima.
    pub lower: &'a Buffer,
    /// Maxima.
    pub upper: &'a Buffer,
    /// Number of pages of a KV head.
    pub pages: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl PageBounds<'_> {
    /// Bytes of `lower`, or of `upper`.
    pub fn bytes(&self) -> usize {
        self.kv_heads * self.pages * self.d * self.storage.bytes()
    }
}

impl Queries<'_> {
    /// Returns the address of row 0, after checking that all of `rows` lie inside the buffer.
    ///
    /// # Panics
    /// If one does not lie inside.
    pub(super) fn address(&self, rows: Range<usize>, d: usize, storage: Storage) -> u64 {
        let last = self.rows.numbers()[rows].iter().max().map_or(0, |row| *row as usize);
        self.queries.address(0, (last * self.stride + self.heads * d) * storage.bytes())
    }

    /// Address of the row indices for a range of rows.
    pub(super) fn list(&self, rows: Range<usize>) -> u64 {
        self.rows.address(rows)
    }
}

/// Projected queries `[row][head][width]`, each number as the sum of a high and a low part.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedQueries<'a> {
    /// The numbers, rounded to their storage type.
    pub high: &'a Buffer,
    /// What rounding left over, if it is kept.
    pub low: Option<&'a Buffer>,
    /// Number of query heads.
    pub heads: usize,
    /// Numbers of a projected query.
    pub width: usize,
    /// Indices of the rows: 0, 1, 2 and so on.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Rows `[kv_head][row][width]` of an index.
#[derive(Debug, Clone, Copy)]
pub struct IndexRows<'a> {
    /// The numbers.
    pub rows: &'a Buffer,
    /// Number of rows of each KV head.
    pub count: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

/// Pages of equal size over a range of tokens; the last page may be shorter.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The range of tokens.
    pub tokens: Range<usize>,
    /// Number of tokens of a page.
    pub size: usize,
}

impl Pages {
    /// Number of pages.
    pub fn count(&self) -> usize {
        self.tokens.len().div_ceil(self.size)
    }
}
