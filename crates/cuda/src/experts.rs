//! Launchers for mixture-of-experts layers: routing, products for few rows, and gathering and adding rows when there are many.

use cudarc::driver::LaunchConfig;

use super::{Buffer, Gpu, GpuError, Storage, failed};

/// The most experts that a layer can have.
pub const MOST_EXPERTS: usize = 512;
/// The most experts that a row can use.
pub const MOST_USED_EXPERTS: usize = 32;
/// Outputs that one block of a product computes.
const OUTPUTS: usize = 4;

/// The addresses of the matrices of all experts of a layer, `[outputs][inputs]` each, and of their biases, if they have them.
pub struct ExpertMatrices {
    table: Buffer,
    biases: Option<Buffer>,
    experts: usize,
    outputs: usize,
    inputs: usize,
    storage: Storage,
}

/// The experts that each row uses: `used` slots for each row, in the order of the experts.
pub struct Routes<'a> {
    /// The experts, a u32 for each slot.
    pub chosen: &'a Buffer,
    /// Their weights, f32.
    pub weights: &'a Buffer,
    /// Number of experts that a row uses.
    pub used: usize,
}

impl ExpertMatrices {
    /// Addresses of both tables; 0 for the biases if there are none.
    fn tables(&self) -> [u64; 2] {
        let bytes = size_of::<u64>() * self.experts;
        [self.table.address(0, bytes), self.biases.as_ref().map_or(0, |biases| biases.address(0, bytes))]
    }
}

/// Rows of activations in device memory, `[rows][width]`.
#[derive(Debug, Clone, Copy)]
pub struct RowMatrix<'a> {
    /// The numbers.
    pub numbers: &'a Buffer,
    /// Their type.
    pub storage: Storage,
    /// Number of rows.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl Gpu {
    /// Notes the addresses of the experts' matrices, and of their biases, `[outputs]` f32 each: one for each matrix, or none at all. The
    /// caller must keep these buffers until the last use of what is returned.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a matrix or a bias is smaller than stated, some have a bias and others not, or `inputs` is not a multiple of 8.
    pub fn expert_matrices(
        &self,
        matrices: &[&Buffer],
        biases: &[&Buffer],
        (outputs, inputs, storage): (usize, usize, Storage),
    ) -> Result<ExpertMatrices, GpuError> {
        let experts = matrices.len();
        assert!(inputs.is_multiple_of(8), "inputs in steps of 8");
        assert!(biases.is_empty() || biases.len() == experts, "{} biases of {experts} experts", biases.len());
        let addresses =
            |of: &[&Buffer], bytes: usize| -> Vec<u64> { of.iter().map(|buffer| buffer.address(0, bytes)).collect() };
        let table = self.upload(&addresses(matrices, outputs * inputs * storage.bytes()))?;
        let biases = match biases.is_empty() {
            true => None,
            false => Some(self.upload(&addresses(biases, size_of::<f32>() * outputs))?),
        };
        Ok(ExpertMatrices { table, biases, experts, outputs, inputs, storage })
    }

    /// Chooses, for each row of `logits` `[rows][count]` f32, the `used` experts with the largest logits, and weights them by a softmax
    /// over all experts or, if `among_used`, over the chosen ones. `chosen` (u32) and `weights` (f32) have `rows · used` slots.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there are more experts than [`MOST_EXPERTS`], or more are used than [`MOST_USED_EXPERTS`] or than there are.
    pub fn route(
        &self,
        logits: &Buffer,
        rows: usize,
        (count, used): (usize, usize),
        among_used: bool,
        chosen: &mut Buffer,
        weights: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(count <= MOST_EXPERTS && used <= count.min(MOST_USED_EXPERTS), "{used} of {count} experts");
        let function = self.function("experts", "route")?;
        let logits = logits.address(0, 4 * rows * count);
        let (chosen, weights) = (chosen.address(0, 4 * rows * used), weights.address(0, 4 * rows * used));
        let (count, used, among_used) = (count as i32, used as i32, i32::from(among_used));
        let mut launch = self.launch(&function);
        launch.arg(&logits).arg(&count).arg(&used).arg(&among_used).arg(&chosen).arg(&weights);
        let grid = LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: all buffers are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("routing"))
    }

    /// Multiplies each slot's row of `x`, `[rows][inputs]`, by the slot's expert, into `out`, `[slot][outputs]`; for few rows.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small for the arguments.
    pub fn expert_rows(
        &self,
        matrices: &ExpertMatrices,
        routes: &Routes<'_>,
        rows: usize,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let &ExpertMatrices { outputs, inputs, storage, .. } = matrices;
        let slots = rows * routes.used;
        let function = self.function("experts", &format!("expert_rows_{}", storage.name()))?;
        let ([table, biases], chosen) = (matrices.tables(), routes.chosen.address(0, 4 * slots));
        let x = x.address(0, rows * inputs * storage.bytes());
        let out = out.address(0, slots * outputs * storage.bytes());
        let (used, outs, inputs) = (routes.used as i32, outputs as i32, inputs as i32);
        let mut launch = self.launch(&function);
        launch.arg(&table).arg(&biases).arg(&chosen).arg(&x).arg(&out).arg(&used).arg(&outs).arg(&inputs);
        // SAFETY: all buffers are as long as checked above; chosen experts are below their number, as `route` ensures, and their matrices
        // and biases still exist, as the caller of `expert_matrices` has agreed to.
        unsafe { launch.launch(by_output(outputs, slots)) }.map_err(failed("multiplying with experts"))
    }

    /// Adds to each row of `out`, `[rows][outputs]` f32, the products of its experts with its slots of `x`, `[slot][inputs]`, weighted; for
    /// few rows.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small for the arguments.
    pub fn expert_sums(
        &self,
        matrices: &ExpertMatrices,
        routes: &Routes<'_>,
        rows: usize,
        x: &Buffer,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let &ExpertMatrices { outputs, inputs, storage, .. } = matrices;
        let slots = rows * routes.used;
        let function = self.function("experts", &format!("expert_sums_{}", storage.name()))?;
        let ([table, biases], chosen) = (matrices.tables(), routes.chosen.address(0, 4 * slots));
        let (weights, x) = (routes.weights.address(0, 4 * slots), x.address(0, slots * inputs * storage.bytes()));
        let out = out.address(0, 4 * rows * outputs);
        let (used, outs, inputs) = (routes.used as i32, outputs as i32, inputs as i32);
        let mut launch = self.launch(&function);
        launch.arg(&table).arg(&biases).arg(&chosen).arg(&weights).arg(&x).arg(&out);
        launch.arg(&used).arg(&outs).arg(&inputs);
        // SAFETY: as in `expert_rows`.
        unsafe { launch.launch(by_output(outputs, rows)) }.map_err(failed("adding experts"))
    }

    /// Copies rows of `from` to the rows of `out`. Their indices are the `count` u32 of `list` from number `first` on; the caller has
    /// checked that they are below `from.rows`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small for the arguments.
    pub fn gather_rows(
        &self,
        from: RowMatrix<'_>,
        list: &Buffer,
        (first, count): (usize, usize),
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let RowMatrix { numbers: x, storage, rows: x_rows, width } = from;
        let function = self.function("experts", &format!("gather_rows_{}", storage.name()))?;
        let x = x.address(0, x_rows * width * storage.bytes());
        let (rows, out) = (list.address(4 * first, 4 * count), out.address(0, count * width * storage.bytes()));
        let width = width as i32;
        let mut launch = self.launch(&function);
        launch.arg(&x).arg(&rows).arg(&out).arg(&width);
        // SAFETY: x and out are as long as checked above; row indices are below `x_rows`, as the caller has checked.
        unsafe { launch.launch(by_row(count)) }.map_err(failed("gathering rows"))
    }

    /// Adds the rows `[width]` f32 of `y`, weighted, to rows of `out`. The indices of these, distinct and below `out_rows`, and the weights
    /// are the `count` u32 of `rows` and f32 of `weights` from number `first` on.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small for the arguments.
    pub fn add_weighted(
        &self,
        y: &Buffer,
        [rows, weights]: [&Buffer; 2],
        (first, count): (usize, usize),
        out: &mut Buffer,
        out_rows: usize,
        width: usize,
    ) -> Result<(), GpuError> {
        let function = self.function("experts", "add_weighted")?;
        let (y, out) = (y.address(0, 4 * count * width), out.address(0, 4 * out_rows * width));
        let [rows, weights] = [rows, weights].map(|list| list.address(4 * first, 4 * count));
        let width = width as i32;
        let mut launch = self.launch(&function);
        launch.arg(&y).arg(&rows).arg(&weights).arg(&out).arg(&width);
        // SAFETY: as in `gather_rows`.
        unsafe { launch.launch(by_row(count)) }.map_err(failed("adding rows"))
    }
}

/// A grid of one block for every `OUTPUTS` outputs of each row.
fn by_output(outputs: usize, rows: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (outputs.div_ceil(OUTPUTS) as u32, rows as u32, 1),
        block_dim: (32 * OUTPUTS as u32, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// A grid of one block for each row.
fn by_row(rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}
