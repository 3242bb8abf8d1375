//! Finds the most likely token of each row of logits on the device, so that the logits need not be copied to the host.

use cudarc::driver::LaunchConfig;

use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: u32 = 1024;
/// Words of a row's result: the token, and whether all logits are finite.
const WORDS: usize = 2;

impl Gpu {
    /// Returns, for each of `rows` rows of `logits` `[row][columns]` f32, the first column with the greatest logit, or `None` if the row
    /// has a number that is not finite. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the buffer is too small, or rows have no columns.
    pub fn argmax(
        &self,
        logits: &Buffer,
        (rows, columns): (usize, usize),
        found: &mut Option<Buffer>,
    ) -> Result<Vec<Option<u32>>, GpuError> {
        assert!(columns > 0, "rows without logits have no likeliest token");
        let bytes = size_of::<u32>() * WORDS * rows;
        let found = self.reserved(found, bytes)?;
        if rows > 0 {
            let (from, to) = (logits.address(0, size_of::<f32>() * rows * columns), found.address(0, bytes));
            let columns = columns as u32;
            let function = self.function("argmax", "argmax")?;
            let mut launch = self.launch(&function);
            launch.arg(&from).arg(&columns).arg(&to);
            let grid = LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: logits and results are as long as checked above.
            unsafe { launch.launch(grid) }.map_err(failed("choosing tokens"))?;
        }
        let mut words = vec![0u32; WORDS * rows];
        self.download(found, 0, &mut words)?;
        Ok(words.as_chunks::<WORDS>().0.iter().map(|[token, finite]| (*finite != 0).then_some(*token)).collect())
    }
}
