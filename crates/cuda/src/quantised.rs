//! Launchers for matrices in quantised blocks: products with a few rows, and rows as plain numbers.

use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use spattn_kernels::quantised::BlockType;

use super::{Buffer, Columns, Gpu, GpuError, Into, Storage, failed};

/// Threads of a block, as in the kernels, and the outputs that it computes.
const THREADS: u32 = 512;
const OUTPUTS: usize = 32;
/// Bytes of shared memory for a row of activations: numbers of 128 units in 8 parts that are 129 long, and the sums of their halves.
const ROW_SHARED: usize = 8 * 129 * 16 + 2 * 128 * 4;
/// Numbers of a unit, which a thread reads at a time.
const UNIT: usize = 32;
/// For one row of activations, as in the kernels: outputs that a warp computes at a time, units of a row that are its share, and warps of a
/// block.
const TILE: usize = 2;
const SPAN: usize = 64;
const BLOCK_WARPS: usize = 4;
const MOST_WARPS: usize = 8;
/// Such warps that a multiprocessor has at once.
const RESIDENT_WARPS: usize = 16;
/// Fields of a block at most.
const FIELDS: usize = 4;

/// A matrix in quantised blocks on the device.
///
/// Fields of blocks are apart: first those of the first field of all blocks, then those of the next, each at a multiple of 16 bytes.
#[derive(Debug)]
pub struct QuantisedMatrix {
    block_type: BlockType,
    fields: Buffer,
    outputs: usize,
    inputs: usize,
}

/// Bytes of the fields of a block, in order; 0 where there are fewer.
fn fields(block_type: BlockType) -> [usize; FIELDS] {
    match block_type {
        BlockType::Q4_0 => [2, 16, 0, 0],
        BlockType::Q4_1 => [4, 16, 0, 0],
        BlockType::Q5_0 => [2, 4, 16, 0],
        BlockType::Q5_1 => [4, 4, 16, 0],
        BlockType::Q8_0 => [2, 32, 0, 0],
        BlockType::Q4K => [16, 128, 0, 0],
        BlockType::Q5K => [16, 32, 128, 0],
        BlockType::Q6K => [128, 64, 16, 2],
    }
}

/// Where the fields of so many blocks begin, and where the last one ends.
fn offsets(block_type: BlockType, blocks: usize) -> ([usize; FIELDS], usize) {
    let mut end = 0;
    let starts = fields(block_type).map(|bytes| {
        let start = end;
        end = (start + bytes * blocks).next_multiple_of(16);
        start
    });
    (starts, end)
}

/// Takes the fields of blocks apart.
fn taken_apart(block_type: BlockType, blocks: &[u8]) -> Vec<u8> {
    let (starts, end) = offsets(block_type, blocks.len() / block_type.bytes());
    let mut apart = vec![0; end];
    let mut within = 0;
    for (bytes, start) in fields(block_type).into_iter().zip(starts).filter(|(bytes, _)| *bytes > 0) {
        let of_blocks = blocks.chunks_exact(block_type.bytes());
        for (to, block) in apart[start..].chunks_exact_mut(bytes).zip(of_blocks) {
            to.copy_from_slice(&block[within..within + bytes]);
        }
        within += bytes;
    }
    apart
}

impl QuantisedMatrix {
    /// Number of rows.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Width of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The addresses of its fields.
    fn addresses(&self) -> [u64; FIELDS] {
        let blocks = self.outputs * self.inputs / self.block_type.numbers();
        let (starts, end) = offsets(self.block_type, blocks);
        let first = self.fields.address(0, end);
        starts.map(|start| first + start as u64)
    }

    fn units(&self) -> usize {
        self.inputs / UNIT
    }
}

/// As kernels number storage types.
fn number_of(storage: Storage) -> i32 {
    match storage {
        Storage::F32 => 0,
        Storage::F16 => 1,
        Storage::Bf16 => 2,
    }
}

/// As kernels number ways of writing.
fn way_of(into: Into) -> i32 {
    match into {
        Into::Narrow => 0,
        Into::Wide => 1,
        Into::Add => 2,
    }
}

/// The fields' addresses as kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fields([u64; FIELDS]);

// SAFETY: it is what kernels declare: four addresses.
unsafe impl DeviceRepr for Fields {}

impl Gpu {
    /// Takes rows of `inputs` numbers in blocks to the device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If these are no whole rows of whole blocks.
    pub fn upload_blocks(
        &self,
        block_type: BlockType,
        blocks: &[u8],
        inputs: usize,
    ) -> Result<QuantisedMatrix, GpuError> {
        assert!(inputs.is_multiple_of(block_type.numbers()), "rows are not whole blocks");
        let row = block_type.bytes_of(inputs);
        assert!(blocks.len().is_multiple_of(row), "blocks are not whole rows");
        let apart = taken_apart(block_type, blocks);
        let fields = self.upload(&apart)?;
        // The copy reads what is freed when this ends.
        self.synchronize()?;
        Ok(QuantisedMatrix { block_type, fields, outputs: blocks.len() / row, inputs })
    }

    /// `x · wᵀ` for `rows` rows of `x`, into some columns of `out`. `w` is read once for each four rows. Sums are f32.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the columns do not lie within a row, or a buffer is too small for the arguments.
    pub fn multiply_quantised(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        x: &Buffer,
        rows: usize,
        (out, columns): (&mut Buffer, Columns),
        into: Into,
    ) -> Result<(), GpuError> {
        let wide = if into == Into::Narrow { storage } else { Storage::F32 };
        assert!(columns.first + w.outputs <= columns.stride, "columns lie within a row");
        let shares = w.units().div_ceil(SPAN);
        if rows == 1 && shares <= MOST_WARPS {
            let x = x.address(0, w.inputs * storage.bytes());
            let out = out.address(columns.first * wide.bytes(), w.outputs * wide.bytes());
            return self.multiply_one(storage, w, [x, out], into, shares);
        }
        let mut done = 0;
        while done < rows {
            let now = match rows - done {
                4.. => 4,
                left => left,
            };
            let x = x.address(done * w.inputs * storage.bytes(), now * w.inputs * storage.bytes());
            let written = ((now - 1) * columns.stride + w.outputs) * wide.bytes();
            let out = out.address((done * columns.stride + columns.first) * wide.bytes(), written);
            self.multiply_few(storage, w, [x, out], (now, columns.stride), into)?;
            done += now;
        }
        Ok(())
    }

    /// [`multiply_quantised`](Self::multiply_quantised) for one row, of which `shares` warps have a part each, at checked addresses.
    fn multiply_one(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        [x, out]: [u64; 2],
        into: Into,
        shares: usize,
    ) -> Result<(), GpuError> {
        let function = self.function("quantised", &format!("gemv_one_{}", w.block_type.name()))?;
        let groups = (BLOCK_WARPS / shares).max(1);
        let warps = groups * shares;
        let blocks = w.outputs.div_ceil(TILE).div_ceil(groups).min(self.processors * (RESIDENT_WARPS / warps));
        let (fields, stored, into) = (Fields(w.addresses()), number_of(storage), way_of(into));
        let [outputs, units, shares] = [w.outputs, w.units(), shares].map(|number| number as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&fields).arg(&x).arg(&stored).arg(&out).arg(&into).arg(&outputs).arg(&units).arg(&shares);
        let grid =
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (32 * warps as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: fields, x and out are as long as the caller and `addresses` have checked; rows are whole units.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("multiplying by blocks"))
    }

    /// [`multiply_quantised`](Self::multiply_quantised) for up to four rows at checked addresses; rows of `out` are `stride` numbers apart.
    fn multiply_few(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        [x, out]: [u64; 2],
        (rows, stride): (usize, usize),
        into: Into,
    ) -> Result<(), GpuError> {
        let most = rows.next_power_of_two();
        let shared = (most * ROW_SHARED) as u32;
        let function = self.with_shared("quantised", &format!("gemv_{}_{most}", w.block_type.name()), shared)?;
        let (fields, stored, into) = (Fields(w.addresses()), number_of(storage), way_of(into));
        let [rows, outputs, units, stride] = [rows, w.outputs, w.units(), stride].map(|number| number as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&fields).arg(&x).arg(&stored).arg(&rows).arg(&out).arg(&into);
        launch.arg(&outputs).arg(&units).arg(&stride);
        let grid = LaunchConfig {
            grid_dim: (w.outputs.div_ceil(OUTPUTS) as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: shared,
        };
        // SAFETY: fields, x and out are as long as the caller and `addresses` have checked; rows are whole units.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("multiplying by blocks"))
    }

    /// Writes rows `first..first + count` of `w` to `out` in a storage type.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn dequantise(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        first: usize,
        count: usize,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(first + count <= w.outputs, "rows up to {} of {}", first + count, w.outputs);
        let out = out.address(0, count * w.inputs * storage.bytes());
        self.dequantise_to(storage, w, (0, first, count), 1.0, out)
    }

    /// [`embed`](Self::embed) with a table in blocks: rows are multiplied by `scale`. The caller has checked that ids are below the number
    /// of rows of the table.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn embed_quantised(
        &self,
        table: &QuantisedMatrix,
        tokens: &Buffer,
        rows: usize,
        x: &mut Buffer,
        scale: f32,
    ) -> Result<(), GpuError> {
        let (tokens, x) = (tokens.address(0, 4 * rows), x.address(0, 4 * rows * table.inputs));
        self.dequantise_to(Storage::F32, table, (tokens, 0, rows), scale, x)
    }

    /// Writes `count` rows times `scale` to a checked address: from row `first` on, or, if `rows` is not 0, those whose numbers are at the
    /// address `rows`.
    fn dequantise_to(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        (rows, first, count): (u64, usize, usize),
        scale: f32,
        out: u64,
    ) -> Result<(), GpuError> {
        const BLOCK: usize = 256;
        let function = self.function("quantised", &format!("dequantise_{}", w.block_type.name()))?;
        let (fields, stored) = (Fields(w.addresses()), number_of(storage));
        let [first, number, units] = [first, count, w.units()].map(|number| number as i32);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&fields).arg(&rows).arg(&first).arg(&number).arg(&units).arg(&scale);
        launch.arg(&out).arg(&stored);
        let blocks = (count * w.units()).div_ceil(BLOCK);
        let grid =
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (BLOCK as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows and out are as long as the callers have checked; numbers of rows are checked there, too.
        unsafe { launch.launch(grid) }.map(drop).map_err(failed("dequantising"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_the_same_constants() {
        let kernels = include_str!("../kernels/quantised.cu");
        let line = format!("constexpr int SPAN = {SPAN}, TILE = {TILE}, MOST_WARPS = {MOST_WARPS};");
        assert!(kernels.contains(&line), "no such line: {line}");
    }

    #[test]
    fn fields_make_up_blocks() {
        for block_type in BlockType::ALL {
            assert_eq!(fields(block_type).iter().sum::<usize>(), block_type.bytes(), "{}", block_type.name());
        }
    }

    #[test]
    fn fields_of_all_blocks_are_together() {
        let bytes: Vec<u8> = (0..3 * 22).map(|i| i as u8).collect();
        let apart = taken_apart(BlockType::Q5_0, &bytes);
        assert_eq!(offsets(BlockType::Q5_0, 3), ([0, 16, 32, 80], 80));
        assert_eq!(&apart[..6], [0, 1, 22, 23, 44, 45]);
        assert_eq!(&apart[16..28], [2, 3, 4, 5, 24, 25, 26, 27, 46, 47, 48, 49]);
        assert_eq!(apart[32..48], bytes[6..22]);
        assert_eq!(apart[64..80], bytes[50..66]);
    }
}
