//! Sums over rows of logits that stand for distributions over the vocabulary, so that the logits need not be copied to the host. Sums have
//! the bits of those that the host computes in `spattn_kernels::distribution`.

use cudarc::driver::LaunchConfig;

use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a block.
const THREADS: u32 = 1024;
/// Words of a row's result.
const WORDS: usize = 6;

/// The result for a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSum {
    /// The largest logit.
    pub largest: f32,
    /// The first column that has it.
    pub top: u32,
    /// Sum of `exp(logit - largest)`.
    pub sum: f64,
    /// The logit of the row's target.
    pub of_target: f32,
}

impl RowSum {
    /// `ln Σ exp(logit)`.
    pub fn log_sum_exp(&self) -> f64 {
        f64::from(self.largest) + self.sum.ln()
    }
}

/// Rows of logits with the logarithms of their sums of exponentials.
#[derive(Debug, Clone, Copy)]
pub struct NormalizedRows<'a> {
    /// `[row][columns]`.
    pub logits: &'a Buffer,
    /// The first row that is used.
    pub first: usize,
    /// `ln Σ exp(logit)` of each row from `first` on.
    pub log_z: &'a [f64],
}

impl NormalizedRows<'_> {
    fn address(&self, columns: usize) -> u64 {
        let bytes = size_of::<f32>() * columns;
        self.logits.address(self.first * bytes, self.log_z.len() * bytes)
    }
}

fn a_block_for_each(rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

impl Gpu {
    /// Returns the sums of each row of `logits` `[row][columns]` f32, or `None` for a row with a number that is not finite. `targets` has a
    /// column for each row. Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the buffer is too small, or a target is not a column.
    pub fn row_sums(&self, logits: &Buffer, columns: usize, targets: &[u32]) -> Result<Vec<Option<RowSum>>, GpuError> {
        assert!(targets.iter().all(|target| (*target as usize) < columns), "a target is not a column");
        let rows = targets.len();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let (sent, found) = (self.upload(targets)?, self.alloc(size_of::<u32>() * WORDS * rows)?);
        let from = logits.address(0, size_of::<f32>() * rows * columns);
        let (of_targets, to) =
            (sent.address(0, size_of_val(targets)), found.address(0, size_of::<u32>() * WORDS * rows));
        let columns = columns as u32;
        let function = self.function("distributions", "row_sums")?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&columns).arg(&of_targets).arg(&to);
        // SAFETY: logits, targets and results are as long as checked above, and targets are columns.
        unsafe { launch.launch(a_block_for_each(rows)) }.map_err(failed("summing probabilities"))?;
        let mut words = vec![0u32; WORDS * rows];
        self.download(&found, 0, &mut words)?;
        let row = |[low, high, largest, of_target, top, finite]: &[u32; WORDS]| {
            (*finite != 0).then(|| RowSum {
                largest: f32::from_bits(*largest),
                top: *top,
                sum: f64::from_bits(u64::from(*high) << 32 | u64::from(*low)),
                of_target: f32::from_bits(*of_target),
            })
        };
        Ok(words.as_chunks::<WORDS>().0.iter().map(row).collect())
    }

    /// Returns the divergence `Σ p·(ln p - ln q)` of each row, with p from `rows` and q from `others`. Rounding may make it less than 0.
    /// Waits for the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the numbers of rows differ.
    pub fn row_divergences(
        &self,
        rows: NormalizedRows<'_>,
        others: NormalizedRows<'_>,
        columns: usize,
    ) -> Result<Vec<f64>, GpuError> {
        let count = rows.log_z.len();
        assert_eq!(count, others.log_z.len(), "two distributions of each row");
        if count == 0 {
            return Ok(Vec::new());
        }
        let (of_rows, of_others) = (self.upload(rows.log_z)?, self.upload(others.log_z)?);
        let bytes = size_of_val(rows.log_z);
        let found = self.alloc(bytes)?;
        let [log_z, other_log_z, to] = [&of_rows, &of_others, &found].map(|buffer| buffer.address(0, bytes));
        let (own, other, width) = (rows.address(columns), others.address(columns), columns as u32);
        let function = self.function("distributions", "row_divergences")?;
        let mut launch = self.launch(&function);
        launch.arg(&own).arg(&log_z).arg(&other).arg(&other_log_z).arg(&width).arg(&to);
        // SAFETY: logits, sums and results are as long as checked above.
        unsafe { launch.launch(a_block_for_each(count)) }.map_err(failed("comparing distributions"))?;
        let mut divergences = vec![0.0; count];
        self.download(&found, 0, &mut divergences)?;
        Ok(divergences)
    }
}
