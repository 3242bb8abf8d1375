//! What scoring kernels read: queries of a step, rows and bounds of an index, and how tokens are cut into pages.

use std::ops::Range;

use super::host_device_vec::HostDeviceVec;
use super::{Buffer, Storage};

/// Queries of some rows of a step.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated queries `[row][stride]`, head `h` at `h * d`.
    pub queries: &'a Buffer,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Query heads.
    pub heads: usize,
    /// The rows.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Channel-wise bounds of pages of keys, `[kv_head][page][d]` each.
#[derive(Debug, Clone, Copy)]
pub struct PageBounds<'a> {
    /// Minima.
    pub lower: &'a Buffer,
    /// Maxima.
    pub upper: &'a Buffer,
    /// Pages of a KV head.
    pub pages: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub d: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

impl PageBounds<'_> {
    /// Bytes of either bounds.
    pub fn bytes(&self) -> usize {
        self.kv_heads * self.pages * self.d * self.storage.bytes()
    }
}

impl Queries<'_> {
    /// The address of row 0, of which the largest of `rows` lies inside the buffer.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn address(&self, rows: Range<usize>, d: usize, storage: Storage) -> u64 {
        let last = self.rows.numbers()[rows].iter().max().map_or(0, |row| *row as usize);
        self.queries.address(0, (last * self.stride + self.heads * d) * storage.bytes())
    }

    /// The address of the numbers of some rows.
    pub(super) fn list(&self, rows: Range<usize>) -> u64 {
        self.rows.address(rows)
    }
}

/// Queries that were made of others, `[row][head][width]`, each as the sum of two numbers.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedQueries<'a> {
    /// The numbers as they are stored.
    pub high: &'a Buffer,
    /// What that leaves of them, if it is anything.
    pub low: Option<&'a Buffer>,
    /// Query heads.
    pub heads: usize,
    /// Width.
    pub width: usize,
    /// The numbers 0, 1, 2 and on, for each row.
    pub rows: &'a HostDeviceVec<u32>,
}

/// Rows `[kv_head][row][width]` that an index holds.
#[derive(Debug, Clone, Copy)]
pub struct IndexRows<'a> {
    /// The numbers.
    pub rows: &'a Buffer,
    /// Rows of a KV head.
    pub count: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Type of the numbers.
    pub storage: Storage,
}

/// Pages of equal size, cut over some tokens; the last one may be shorter.
#[derive(Debug, Clone)]
pub struct Pages {
    /// All tokens.
    pub tokens: Range<usize>,
    /// Tokens a page.
    pub size: usize,
}

impl Pages {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.tokens.len().div_ceil(self.size)
    }
}
