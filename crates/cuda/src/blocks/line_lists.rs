//! Lists of blocks of a prompt's rows that are joined from what a search found and from vertical lines.

use cudarc::driver::LaunchConfig;

use super::{BlockLists, OWN_SHARED, WORD_BITS};
use crate::{Buffer, Gpu, GpuError, HostDeviceVec, failed};

/// Threads of a block that joins a list.
const JOINERS: u32 = 256;

/// Tokens that all later rows of a prompt attend, for each list.
#[derive(Debug, Default)]
pub struct VerticalLines {
    /// The tokens of all lists, one list after the other.
    tokens: HostDeviceVec<u32>,
    /// Where the tokens of each list begin, and where the last ones end.
    begins: HostDeviceVec<u32>,
    /// The number of tokens of the longest list.
    longest: usize,
}

impl VerticalLines {
    /// Sets the tokens of each list.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn set(&mut self, gpu: &Gpu, lists: &[&[u32]]) -> Result<(), GpuError> {
        let ends = lists.iter().scan(0, |sum, tokens| {
            *sum += tokens.len() as u32;
            Some(*sum)
        });
        self.begins.set(gpu, std::iter::once(0).chain(ends).collect())?;
        self.longest = lists.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        // An empty buffer has no address.
        let nothing = [0];
        let all = lists.concat();
        self.tokens.set_to(gpu, if all.is_empty() { &nothing } else { &all })
    }

    /// Returns the number of lists.
    fn lists(&self) -> usize {
        self.begins.numbers().len().saturating_sub(1)
    }
}

impl Gpu {
    /// Whether lists of a prompt of this many tokens can be joined: a bit for each token must fit into shared memory.
    pub fn joins_lines(&self, tokens: usize) -> bool {
        size_of::<u32>() * tokens.div_ceil(WORD_BITS) + OWN_SHARED <= self.most_shared
    }

    /// Writes to `to` the tokens of each block before the last start of its rows that were found or are on a vertical line, ascending. `to`
    /// has starts and diagonals, and `first` is the position of its first row. Adds one number for each list to `attended`, u64 from byte
    /// `attended_at` on: the listed tokens times the rows that attend them because they are listed, and not by a diagonal.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If shapes differ, lists have starts of their own or starts that descend, a list may be longer than its memory, or the device [cannot
    /// join](Self::joins_lines) lists of as many tokens.
    pub fn join_lines(
        &self,
        first: usize,
        found: Option<&BlockLists>,
        lines: &VerticalLines,
        to: &mut BlockLists,
        (attended, attended_at): (&mut Buffer, usize),
    ) -> Result<(), GpuError> {
        let (shape, starts) = (to.shape, to.starts.numbers());
        assert!(
            starts.len() == shape.rows && starts.is_sorted(),
            "all lists have the same starts, one for each row, ascending"
        );
        assert_eq!(lines.lists(), shape.lists, "vertical lines for each list");
        assert!(found.is_none_or(|found| found.shape == shape), "found and joined lists have the same shape");
        let end = starts.last().map_or(0, |start| *start as usize);
        let longest = found.map_or(0, |found| found.most) + lines.longest;
        assert!(longest.min(end) <= to.most, "a list may have {} tokens, and memory for {}", longest.min(end), to.most);
        assert!(self.joins_lines(end), "{end} bits do not fit into shared memory");
        to.end = end;
        let [tokens, counts] = to.addresses();
        let [found_tokens, found_counts] = found.map_or([0; 2], BlockLists::addresses);
        let found_most = found.map_or(0, |found| found.most) as u32;
        let verticals = lines.tokens.address(0..lines.tokens.numbers().len());
        let begins = lines.begins.address(0..shape.lists + 1);
        let starts = to.starts.address(0..starts.len());
        let words = to.distance_words;
        let distances = if words > 0 { to.distances.address(0..shape.lists * words) } else { 0 };
        let attended = attended.address(attended_at, size_of::<u64>() * shape.lists);
        let (words, most) = (words as u32, to.most as u32);
        let (block_rows, rows, first) = (shape.block_rows as u32, shape.rows as u32, first as u32);
        let shared_mem_bytes = (size_of::<u32>() * end.div_ceil(WORD_BITS)) as u32;
        let function = self.with_shared("line_lists", "join_lines", shared_mem_bytes)?;
        let mut launch = self.launch(&function);
        launch.arg(&found_tokens).arg(&found_counts).arg(&found_most).arg(&verticals).arg(&begins);
        launch.arg(&starts).arg(&distances).arg(&words).arg(&block_rows).arg(&rows).arg(&first);
        launch.arg(&tokens).arg(&most).arg(&counts).arg(&attended);
        let grid = LaunchConfig {
            grid_dim: (shape.blocks() as u32, shape.lists as u32, 1),
            block_dim: (JOINERS, 1, 1),
            shared_mem_bytes,
        };
        // SAFETY: found lists have the shape of those that are written. A list has no more than `most` tokens, which are distinct, below
        // `end`, and each found or on a vertical line. Shared memory has a bit for each token below `end`, and diagonals have one for each
        // distance up to the last row.
        unsafe { launch.launch(grid) }.map_err(failed("joining lists with lines"))
    }
}
