//! Independent draws of candidates from the softmax of their scores.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::buffer::reserved;
use super::host_device_vec::HostDeviceVec;
use super::scores::Scores;
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: u32 = 1024;
/// Words of a ChaCha key.
pub const DRAW_KEY: usize = 8;

/// Keys of the random draws, and memory for intermediate results.
#[derive(Debug, Default)]
pub struct DrawWorkspace {
    /// A ChaCha key for each list of each row, `[row][list]` of [`DRAW_KEY`] words.
    pub keys: HostDeviceVec<u32>,
    /// `[row][list][stride]` u64, inclusive prefix sums of the candidates' masses.
    sums: Option<Buffer>,
    /// `[row][list][stride]` u32, how often each candidate was drawn.
    drawn: Option<Buffer>,
}

impl Gpu {
    /// Draws `draws` candidates, with replacement, from the distribution of each list of scores: a candidate's probability is
    /// `exp(scale * score)` over the sum of these. Writes the drawn tokens in ascending order to rows of `lists` from `first` on, which
    /// must have [room](crate::TokenListLayout::weighted) for them. Each logit is lowered so that its exponential is the token's share
    /// of the draws times that sum. Draws are those of `ChaCha8Rng` with the key of the list.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If `lists` has too little room, or there are too few keys.
    pub fn draw_tokens(
        &self,
        scores: &Scores,
        (draws, scale): (usize, f32),
        first: usize,
        candidates: Range<usize>,
        lists: &mut TokenLists,
        workspace: &mut DrawWorkspace,
    ) -> Result<(), GpuError> {
        let columns = candidates.len();
        let (rows, in_row) = scores.shape(columns);
        let most = lists.most();
        assert!(
            lists.lists() == in_row && most >= draws.min(columns),
            "{} lists of {most} tokens do not fit {in_row} lists of scores and {draws} draws",
            lists.lists()
        );
        if rows == 0 || in_row == 0 || columns == 0 {
            return Ok(());
        }
        let numbers = rows * in_row * scores.stride();
        self.reserve(&mut workspace.sums, 8 * numbers)?;
        self.reserve(&mut workspace.drawn, 4 * numbers)?;
        let sums = reserved(&workspace.sums, "sums of weights").address(0, 8 * numbers);
        let drawn = reserved(&workspace.drawn, "drawn tokens").address(0, 4 * numbers);
        let keys = workspace.keys.address(DRAW_KEY * first * in_row..DRAW_KEY * (first + rows) * in_row);
        let (from, stride) = (scores.address(), scores.stride() as u64);
        let ([tokens, counts], weights, entries) = (lists.addresses(first), lists.weights(first), lists.entries(first));
        let [columns, draws, begin, most] = [columns, draws, candidates.start, most].map(|n| n as u32);
        let function = self.function("draws", "draw_tokens")?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&columns).arg(&keys).arg(&draws).arg(&scale).arg(&begin).arg(&sums);
        launch.arg(&drawn).arg(&tokens).arg(&weights).arg(&most).arg(&counts).arg(&entries);
        let grid =
            LaunchConfig { grid_dim: (in_row as u32, rows as u32, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: scores, keys, sums, counts and lists are as long as checked and made above.
        unsafe { launch.launch(grid) }.map_err(failed("drawing tokens"))
    }
}
