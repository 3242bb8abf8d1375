//! Launches that select the pages with the largest scores: a number of them, or those that cover a share of the mass.

use cudarc::driver::LaunchConfig;

use super::host_device_vec::HostDeviceVec;
use super::queries::Pages;
use super::scores::Scores;
use super::token_lists::TokenLists;
use super::{Gpu, GpuError, failed};

/// Threads of a block that selects from a list alone.
const THREADS: u32 = 1024;
/// The fewest scores of a list for which a cluster of blocks selects from it.
const CLUSTERED: usize = 4096;
/// The most lists for which clusters are larger, so that all multiprocessors have work.
const FEW_LISTS: usize = 32;
/// Threads of a block of a cluster.
const CLUSTER_THREADS: u32 = 512;
/// Bytes of shared memory of a block of a cluster, besides two bits for each of its scores.
const CLUSTER_SHARED: usize = 66 << 10;
/// The number of scores of a block of a cluster is a multiple of this.
const CHUNK: usize = 128;
/// The most scores of a block of a cluster.
const LARGEST_CHUNK: usize = 1 << 19;

/// Returns the size of the cluster of blocks that selects from each of `lists` lists of `columns` scores: as few blocks as hold all
/// candidates of the selection, but more where there are few lists.
fn cluster_of(lists: usize, columns: usize) -> usize {
    match (lists <= FEW_LISTS, columns) {
        (false, ..=0x1_0000) => 2,
        (true, ..=0x1_0000) | (false, ..=0x4_0000) => 4,
        _ => 8,
    }
}

impl Gpu {
    /// Selects the tokens of the pages with the largest scores, in ascending order; of equal scores the earlier page. For each row of
    /// `lists`, `chosen` has the number of pages, and `ends` the end of the candidates; `None` if they all end with the pages. The scores
    /// are those of the rows from `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` have no memory for them, or scores and pages do not match.
    pub fn top_pages(
        &self,
        scores: &Scores,
        (chosen, ends): (&HostDeviceVec<u32>, Option<&HostDeviceVec<u32>>),
        first: usize,
        pages: &Pages,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        let rows = first..first + scores.rows;
        let ends_there = ends.map_or(&[][..], |ends| &ends.numbers()[rows.clone()]);
        assert!(
            ends_there.iter().all(|end| pages.tokens.contains(&(*end as usize - 1))),
            "the candidates of a row end outside of the pages, {:?}",
            pages.tokens
        );
        assert!(
            pages.count() == scores.columns && lists.lists() == scores.lists,
            "{} pages and {} lists do not match the scores",
            pages.count(),
            lists.lists()
        );
        assert!(
            rows.end <= lists.rows() && pages.tokens.end <= lists.end(),
            "lists of {} rows and tokens below {} do not match the scores",
            lists.rows(),
            lists.end()
        );
        let most = chosen.numbers()[rows.clone()].iter().max().map_or(0, |most| *most as usize);
        assert!(
            lists.most() >= most.saturating_mul(pages.size).min(pages.tokens.len()),
            "lists hold {} tokens, fewer than the selected pages have",
            lists.most()
        );
        if scores.rows == 0 || scores.lists == 0 {
            return Ok(());
        }
        let (from, stride, columns) = (scores.address(), scores.stride() as u64, scores.columns as u32);
        let (chosen, ends) = (chosen.address(rows.clone()), ends.map_or(0, |ends| ends.address(rows)));
        let [tokens, counts] = lists.addresses(first);
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (begin, end, most) = (pages.tokens.start as u32, pages.tokens.end as u32, lists.most() as u32);
        let cluster = cluster_of(scores.rows * scores.lists, scores.columns);
        let chunk = scores.columns.div_ceil(cluster).next_multiple_of(CHUNK);
        let clustered = self.is_hopper && scores.columns >= CLUSTERED && chunk <= LARGEST_CHUNK;
        let (blocks, threads, shared) = match clustered {
            true => (cluster * scores.lists, CLUSTER_THREADS, (CLUSTER_SHARED + chunk / 4) as u32),
            false => (scores.lists, THREADS, 0),
        };
        let function = match clustered {
            true => self.with_shared("top_pages_hopper", &format!("top_pages_hopper_{cluster}"), shared),
            false => self.function("top_pages", "top_pages"),
        }?;
        let chunk = chunk as u32;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&columns);
        if clustered {
            launch.arg(&chunk);
        }
        launch.arg(&chosen).arg(&size).arg(&begin).arg(&end).arg(&ends).arg(&tokens).arg(&most).arg(&counts);
        let grid = (blocks as u32, scores.rows as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (threads, 1, 1), shared_mem_bytes: shared };
        // SAFETY: scores, numbers of pages and lists are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("selecting pages"))
    }

    /// Selects, in ascending order, the tokens of the fewest pages with the largest scores that hold a share of the mass of all pages, but
    /// of at least `least` pages; of equal scores the earlier page. A page's mass is `exp(scale * score)`. The scores are those of the rows
    /// of `lists` from `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` have no memory for all tokens, or scores and pages do not match.
    pub fn top_share(
        &self,
        scores: &Scores,
        (share, scale, least): (f64, f32, usize),
        first: usize,
        pages: &Pages,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        assert!(
            pages.count() == scores.columns && lists.lists() == scores.lists,
            "{} pages and {} lists do not match the scores",
            pages.count(),
            lists.lists()
        );
        assert!(
            first + scores.rows <= lists.rows() && pages.tokens.end <= lists.end(),
            "lists of {} rows and tokens below {} do not match the scores",
            lists.rows(),
            lists.end()
        );
        assert!(lists.most() >= pages.tokens.len(), "lists hold {} of {} tokens", lists.most(), pages.tokens.len());
        if scores.rows == 0 || scores.lists == 0 {
            return Ok(());
        }
        let (from, stride, columns) = (scores.address(), scores.stride() as u64, scores.columns as u32);
        let [tokens, counts] = lists.addresses(first);
        let size = pages.size.min(pages.tokens.len()) as u32;
        let (begin, end, most) = (pages.tokens.start as u32, pages.tokens.end as u32, lists.most() as u32);
        let least = least.min(scores.columns) as u32;
        let function = self.function("top_share", "top_share")?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&columns).arg(&share).arg(&scale).arg(&least);
        launch.arg(&size).arg(&begin).arg(&end).arg(&tokens).arg(&most).arg(&counts);
        let grid = (scores.lists as u32, scores.rows as u32, 1);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: scores and lists are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("selecting a share of the attention mass"))
    }
}
