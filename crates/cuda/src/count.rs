//! Counts the selected tokens.

use std::ops::Range;

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::host_device_vec::HostDeviceVec;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block that counts.
const THREADS: u32 = 1024;
/// The most lists that one launch counts; the kernel has the same constant.
const MOST_COUNTED: usize = 16;

/// Lists whose tokens are counted ([`count_all_picks`](Gpu::count_all_picks)).
pub struct CountedLists<'a> {
    /// Lists by KV head or by query head.
    pub lists: &'a TokenLists,
    /// The range of their tokens.
    pub tokens: Range<usize>,
    /// For each row, its counters, and the factor of what is added to them.
    pub counters: Vec<(&'a Buffer, u64)>,
    /// Room for the addresses of the counters.
    pub workspace: &'a mut HostDeviceVec<u64>,
}

/// Mirrors the kernel's struct `Counted`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceCounted {
    tokens: u64,
    counts: u64,
    entries: u64,
    counters: u64,
    most: u32,
    lists: u32,
    first: u32,
    end: u32,
    rows: u32,
    padding: u32,
}

/// Mirrors the kernel's struct `AllCounted`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct AllCounted {
    of: [DeviceCounted; MOST_COUNTED],
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for AllCounted {}

impl CountedLists<'_> {
    /// Returns the lists as the kernel reads them; `needed` is how many bytes the counters of a row have at least.
    fn on_device(
        &mut self,
        gpu: &Gpu,
        (kv_heads, heads): (usize, usize),
        needed: usize,
    ) -> Result<DeviceCounted, GpuError> {
        let (lists, count) = (self.lists, self.lists.lists());
        assert!(
            count == heads || count == kv_heads,
            "{count} lists in a row do not fit {heads} query heads and {kv_heads} KV heads"
        );
        assert_eq!(self.counters.len(), lists.rows(), "one set of counters for each row");
        let counters = self.counters.iter().flat_map(|(buffer, times)| [buffer.address(0, needed), *times]);
        self.workspace.set(gpu, counters.collect())?;
        let [tokens, counts] = lists.addresses(0);
        Ok(DeviceCounted {
            tokens,
            counts,
            entries: if lists.is_counted() { lists.entries(0) } else { 0 },
            counters: self.workspace.address(0..2 * lists.rows()),
            most: lists.most() as u32,
            lists: (count / kv_heads) as u32,
            first: self.tokens.start as u32,
            end: self.tokens.end as u32,
            rows: lists.rows() as u32,
            padding: 0,
        })
    }
}

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
        let lists = CountedLists { lists, tokens, counters: counters.to_vec(), workspace };
        self.count_all_picks(vec![lists], (kv_heads, heads), offset)
    }

    /// Like [`count_picks`](Self::count_picks), of the lists of several selections, which are counted side by side.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn count_all_picks(
        &self,
        mut counted: Vec<CountedLists<'_>>,
        (kv_heads, heads): (usize, usize),
        offset: usize,
    ) -> Result<(), GpuError> {
        counted.retain(|counted| counted.lists.rows() > 0);
        let needed = 8 * (offset + kv_heads + heads + 1);
        let (group, offset) = ((heads / kv_heads) as u32, offset as u64);
        for counted in counted.chunks_mut(MOST_COUNTED) {
            let mut all = AllCounted { of: [DeviceCounted::default(); MOST_COUNTED] };
            for (own, to) in counted.iter_mut().zip(&mut all.of) {
                *to = own.on_device(self, (kv_heads, heads), needed)?;
            }
            let function = self.function("count_picks", "count_picks")?;
            let rows = all.of.iter().map(|own| own.rows).max().unwrap_or(0);
            let mut launch = self.launch(&function);
            launch.arg(&all).arg(&group).arg(&offset);
            let grid = (kv_heads as u32, rows, counted.len() as u32);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: lists and counters are as long as `on_device` checks. A token outside of the range is not counted, and read nowhere.
            unsafe { launch.launch(grid) }.map_err(failed("counting selected tokens"))?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_as_many_lists_as_a_launch_gives_it() {
        let kernel = include_str!("../kernels/count_picks.cu");
        assert!(kernel.contains(&format!("constexpr int MOST_COUNTED = {MOST_COUNTED};")));
        assert_eq!(size_of::<AllCounted>(), MOST_COUNTED * 56, "four addresses and six numbers each");
    }
}
