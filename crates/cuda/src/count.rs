//! Counts the selected tokens.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::host_device_vec::HostDeviceVec;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block that counts.
const THREADS: u32 = 1024;

impl Gpu {
    /// Adds to each row's counters how many distinct tokens the lists of each KV head have together, how many tokens each query head
    /// attends, and how many index entries were read for all lists. Counters are u64 `[kv_head]`, `[head]` and one more, from number
    /// `offset` on. Lists are by KV head or by query head, with tokens in the range `tokens`. Both counts of tokens are multiplied by the
    /// factor that `counters` gives for the row.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn count_picks(
        &self,
        lists: &TokenLists,
        (kv_heads, heads): (usize, usize),
        tokens: Range<usize>,
        counters: &[(&Buffer, u64)],
        offset: usize,
        workspace: &mut HostDeviceVec<u64>,
    ) -> Result<(), GpuError> {
        assert!(
            lists.lists() == heads || lists.lists() == kv_heads,
            "{} lists in a row do not fit {heads} query heads and {kv_heads} KV heads",
            lists.lists()
        );
        assert_eq!(counters.len(), lists.rows(), "one set of counters for each row");
        if lists.rows() == 0 {
            return Ok(());
        }
        let needed = 8 * (offset + kv_heads + heads + 1);
        workspace
            .set(self, counters.iter().flat_map(|(buffer, times)| [buffer.address(0, needed), *times]).collect())?;
        let function = self.function("count_picks", "count_picks")?;
        let [from, counts] = lists.addresses(0);
        let to = workspace.address(0..2 * lists.rows());
        let entries = if lists.is_counted() { lists.entries(0) } else { 0 };
        let grid = (kv_heads as u32, lists.rows() as u32, 1);
        let (most, group, offset) = (lists.most() as u32, (heads / kv_heads) as u32, offset as u64);
        let of_group = (lists.lists() / kv_heads) as u32;
        let (first, end) = (tokens.start as u32, tokens.end as u32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&most).arg(&counts).arg(&entries).arg(&of_group).arg(&group).arg(&first).arg(&end);
        launch.arg(&to).arg(&offset);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: lists and counters are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("counting selected tokens"))
    }

    /// Adds to each row's counters how many tokens the lists of `wanted` have, and how many of these the same lists of `picked` lack. The
    /// counters are two u64 from number `offset` on. Both have equally many lists, with tokens in the range `tokens`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists differ in number, or a buffer is too small.
    pub fn count_missing(
        &self,
        [wanted, picked]: [&TokenLists; 2],
        tokens: Range<usize>,
        counters: &[&Buffer],
        offset: usize,
        workspace: &mut HostDeviceVec<u64>,
    ) -> Result<(), GpuError> {
        assert!(
            wanted.lists() == picked.lists() && wanted.rows() == picked.rows() && wanted.rows() == counters.len(),
            "lists of {} and {} rows are compared, for counters of {}",
            wanted.rows(),
            picked.rows(),
            counters.len()
        );
        if wanted.rows() == 0 {
            return Ok(());
        }
        workspace.set(self, counters.iter().map(|buffer| buffer.address(0, 8 * (offset + 2))).collect())?;
        let function = self.function("count_picks", "count_missing")?;
        let ([asked, asked_counts], [held, held_counts]) = (wanted.addresses(0), picked.addresses(0));
        let [asked_most, held_most] = [wanted, picked].map(|lists| lists.most() as u32);
        let (to, offset) = (workspace.address(0..wanted.rows()), offset as u64);
        let (first, end) = (tokens.start as u32, tokens.end as u32);
        let mut launch = self.launch(&function);
        launch.arg(&asked).arg(&asked_most).arg(&asked_counts).arg(&held).arg(&held_most).arg(&held_counts);
        launch.arg(&first).arg(&end).arg(&to).arg(&offset);
        let blocks = (wanted.lists() as u32, wanted.rows() as u32, 1);
        let grid = LaunchConfig { grid_dim: blocks, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: lists and counters are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("counting tokens that are missing"))
    }
}
