//! Launchers for matrices in quantised blocks: products with a few rows, and dequantised rows.

use cudarc::driver::{DeviceRepr, LaunchConfig};
use spattn_kernels::quantised::BlockType;

use super::{Buffer, Columns, Gpu, GpuError, Into, Storage, failed};

/// Threads of a block, as in the kernels, and the outputs that it computes.
const THREADS: u32 = 512;
const OUTPUTS: usize = 32;
/// Bytes of shared memory for a row of activations: numbers of 128 units in 8 parts that are 129 long, and the sums of their halves.
const ROW_SHARED: usize = 8 * 129 * 16 + 2 * 128 * 4;
/// Numbers of a unit, which a thread reads at a time.
const UNIT: usize = 32;
/// For one row of activations, as in the kernels: outputs that a warp computes at a time, units of a row that are its share, and the warps
/// that a block should have, and has at most.
const TILE: usize = 2;
const SPAN: usize = 64;
const BLOCK_WARPS: usize = 4;
const MOST_WARPS: usize = 8;
/// Warps of that kernel that a multiprocessor runs at once.
const RESIDENT_WARPS: usize = 16;
/// The most fields of a quantised block.
const FIELDS: usize = 4;
/// For one row of activations on tensor cores, as in the kernels: rows of a tile, numbers of a row that a warp takes at a time, the most
/// warps of a block, and tiles after which their sums are added up.
const MMA_ROWS: usize = 16;
const MMA_CHUNK: usize = 256;
const MMA_WARPS: usize = 16;
const MMA_FLUSH: usize = 4;
/// Bytes of a block's sums, in shared memory of fixed size.
const MMA_SUMS: usize = 2 * MMA_FLUSH * MMA_WARPS * MMA_ROWS * 4;
/// Bytes of shared memory that the blocks of a Hopper multiprocessor have together, and that each of them takes besides its own.
const PROCESSOR_SHARED: usize = 228 << 10;
const BLOCK_SHARED: usize = 1 << 10;

/// A matrix in quantised blocks on the device.
///
/// The fields of blocks are stored apart: first the first field of all blocks, then the next, each at a multiple of 16 bytes.
#[derive(Debug)]
pub struct QuantisedMatrix {
    block_type: BlockType,
    fields: Buffer,
    outputs: usize,
    inputs: usize,
}

/// Returns the bytes of the fields of a block, in order; 0 where there are fewer.
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

/// How the kernel on tensor cores copies blocks of a type: chunks that a warp has in shared memory, bytes of a chunk of 16 rows there, and
/// scales of a chunk for each of eight columns. Two chunks were the fastest of 2, 3, 4 and 6 (Q4_K on an H100).
struct MmaRing {
    stages: usize,
    bytes: usize,
    scales: usize,
}

fn mma_ring(block_type: BlockType) -> MmaRing {
    // All fields are copied, except the scale of Q6_K: threads read it themselves.
    let (row, scales) = match block_type {
        BlockType::Q4_0 => (16 + 128, 1),
        BlockType::Q4_1 => (32 + 128, 1),
        BlockType::Q5_0 => (16 + 32 + 128, 1),
        BlockType::Q5_1 => (32 + 32 + 128, 1),
        BlockType::Q8_0 => (16 + 256, 1),
        BlockType::Q4K => (16 + 128, 1),
        BlockType::Q5K => (16 + 32 + 128, 1),
        BlockType::Q6K => (128 + 64 + 16, 2),
    };
    MmaRing { stages: 2, bytes: MMA_ROWS * row, scales }
}

/// How a product of one row runs on tensor cores.
#[derive(Debug, PartialEq, Eq)]
struct MmaShape {
    warps: usize,
    /// Bytes of dynamic shared memory.
    shared: usize,
    /// Blocks that a multiprocessor runs at once.
    resident: usize,
}

/// Returns the shape for a matrix and activations of a type, which depends on the arguments alone; `None` if the kernel does not fit them.
/// The warps of a block share the chunks of a row: of the numbers of warps from the most down to half of it, the one that leaves the fewest
/// idle in the last round is taken.
fn mma_shape(
    block_type: BlockType,
    storage: Storage,
    outputs: usize,
    inputs: usize,
    most_shared: usize,
) -> Option<MmaShape> {
    if outputs < MMA_ROWS || !inputs.is_multiple_of(MMA_CHUNK) {
        return None;
    }
    let (chunks, MmaRing { stages, bytes, scales }) = (inputs / MMA_CHUNK, mma_ring(block_type));
    let parts = if storage == Storage::F32 { 3 } else { 1 };
    // A chunk of x: its parts, zeros, sums of groups, and a factor.
    let of_x = chunks * (parts * 2 * MMA_CHUNK + 16 + 8 * 4 * scales + 16);
    let shared_of = |warps: usize| warps * stages * bytes + of_x;
    let most = MMA_WARPS.min(chunks);
    let fits = |warps: &usize| shared_of(*warps) + MMA_SUMS <= most_shared;
    let idle = |warps: &usize| chunks.next_multiple_of(*warps) - chunks;
    let warps = (chunks.min(MMA_WARPS / 2)..=most).rev().filter(fits).min_by_key(idle)?;
    let shared = shared_of(warps);
    let resident = (PROCESSOR_SHARED / (shared + MMA_SUMS + BLOCK_SHARED)).clamp(1, MMA_WARPS / warps);
    // Exactly `resident` blocks fit a multiprocessor: otherwise, blocks that start early would crowd onto the first ones with room. With
    // MMA_WARPS warps, registers limit it to one block.
    let least = PROCESSOR_SHARED / (resident + 1) + 1 - MMA_SUMS - BLOCK_SHARED;
    Some(MmaShape { warps, shared: if warps < MMA_WARPS { shared.max(least) } else { shared }, resident })
}

/// Returns where the fields of `blocks` blocks begin, and where the last one ends.
fn offsets(block_type: BlockType, blocks: usize) -> ([usize; FIELDS], usize) {
    let mut end = 0;
    let starts = fields(block_type).map(|bytes| {
        let start = end;
        end = (start + bytes * blocks).next_multiple_of(16);
        start
    });
    (starts, end)
}

/// Stores the fields of blocks apart: each field of all blocks together.
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

    /// Returns the addresses of its fields.
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

/// The kernels' number for a storage type.
fn number_of(storage: Storage) -> i32 {
    match storage {
        Storage::F32 => 0,
        Storage::F16 => 1,
        Storage::Bf16 => 2,
    }
}

/// The kernels' number for a way of writing.
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
    /// Uploads rows of `inputs` numbers, given in quantised blocks.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the bytes are not whole rows of whole blocks.
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
        // Wait for the copy before `apart`, which it reads, is freed.
        self.synchronize()?;
        Ok(QuantisedMatrix { block_type, fields, outputs: blocks.len() / row, inputs })
    }

    /// Computes `x · wᵀ` for `rows` rows of `x`, into some columns of `out`. `w` is read once for every four rows. Sums are f32.
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
        if rows == 1
            && self.is_hopper
            && let Some(shape) = mma_shape(w.block_type, storage, w.outputs, w.inputs, self.most_shared)
        {
            let x = x.address(0, w.inputs * storage.bytes());
            let out = out.address(columns.first * wide.bytes(), w.outputs * wide.bytes());
            return self.multiply_by_mma(storage, w, [x, out], into, &shape);
        }
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

    /// Like [`multiply_quantised`](Self::multiply_quantised), for one row on tensor cores, at checked addresses.
    fn multiply_by_mma(
        &self,
        storage: Storage,
        w: &QuantisedMatrix,
        [x, out]: [u64; 2],
        into: Into,
        shape: &MmaShape,
    ) -> Result<(), GpuError> {
        let name = format!("gemv_mma_{}_{}", w.block_type.name(), 8 * storage.bytes());
        let function = self.with_shared("quantised_mma", &name, shape.shared as u32)?;
        let blocks = w.outputs.div_ceil(MMA_ROWS).min(self.processors * shape.resident);
        let (fields, stored, into) = (Fields(w.addresses()), number_of(storage), way_of(into));
        let [outputs, chunks] = [w.outputs, w.inputs / MMA_CHUNK].map(|number| number as i32);
        let mut launch = self.launch(&function);
        launch.arg(&fields).arg(&x).arg(&stored).arg(&out).arg(&into).arg(&outputs).arg(&chunks);
        let grid = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (32 * shape.warps as u32, 1, 1),
            shared_mem_bytes: shape.shared as u32,
        };
        // SAFETY: fields, x and out are as long as the caller and `addresses` have checked; rows are whole chunks, and there are at least
        // as many as a tile has.
        unsafe { launch.launch(grid) }.map_err(failed("multiplying by blocks"))
    }

    /// Like [`multiply_quantised`](Self::multiply_quantised), for one row, shared by `shares` warps, at checked addresses.
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
        let mut launch = self.launch(&function);
        launch.arg(&fields).arg(&x).arg(&stored).arg(&out).arg(&into).arg(&outputs).arg(&units).arg(&shares);
        let grid =
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (32 * warps as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: fields, x and out are as long as the caller and `addresses` have checked; rows are whole units.
        unsafe { launch.launch(grid) }.map_err(failed("multiplying by blocks"))
    }

    /// Like [`multiply_quantised`](Self::multiply_quantised), for up to four rows at checked addresses, in `out` `stride` numbers apart.
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
        let mut launch = self.launch(&function);
        launch.arg(&fields).arg(&x).arg(&stored).arg(&rows).arg(&out).arg(&into);
        launch.arg(&outputs).arg(&units).arg(&stride);
        let grid = LaunchConfig {
            grid_dim: (w.outputs.div_ceil(OUTPUTS) as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: shared,
        };
        // SAFETY: fields, x and out are as long as the caller and `addresses` have checked; rows are whole units.
        unsafe { launch.launch(grid) }.map_err(failed("multiplying by blocks"))
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

    /// Like [`embed`](Self::embed), with a quantised table: rows are multiplied by `scale`. The caller has checked that ids are below the
    /// number of rows of the table.
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

    /// Writes `count` rows times `scale` to a checked address: from row `first` on, or, if `rows` is not 0, those with the indices at
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
        let mut launch = self.launch(&function);
        launch.arg(&fields).arg(&rows).arg(&first).arg(&number).arg(&units).arg(&scale);
        launch.arg(&out).arg(&stored);
        let blocks = (count * w.units()).div_ceil(BLOCK);
        let grid =
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (BLOCK as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: rows and out are as long as the callers have checked; they have also checked the indices of rows.
        unsafe { launch.launch(grid) }.map_err(failed("dequantising"))
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
    fn kernels_on_tensor_cores_have_the_same_constants() {
        let kernels = include_str!("../kernels/quantised_mma.cu");
        let has = |line: &str| assert!(kernels.contains(line), "no such line: {line}");
        has(&format!("constexpr int ROWS = {MMA_ROWS}, CHUNK = {MMA_CHUNK}, MOST_WARPS = {MMA_WARPS};"));
        has(&format!("constexpr int FLUSH = {MMA_FLUSH};"));
        // Maps each struct's name to the text after it. `Q4_1 : FourBits<32>` takes its values from the text of FourBits, with HEAD = 32.
        let texts: std::collections::HashMap<&str, &str> =
            kernels.split("\nstruct ").skip(1).chain(kernels.split("> struct ").skip(1)).filter_map(named).collect();
        for block_type in BlockType::ALL {
            let MmaRing { stages, bytes, scales } = mma_ring(block_type);
            let own = texts[block_type.name().to_uppercase().as_str()];
            let base = own
                .strip_prefix(" : ")
                .and_then(|rest| rest.split_once('<'))
                .filter(|(base, _)| texts.contains_key(base));
            let (text, head) = match base {
                Some((base, rest)) => (texts[base], rest.split_once('>').unwrap().0),
                None => (own, ""),
            };
            let value = |before: &str, behind: char| text.split_once(before).unwrap().1.split_once(behind).unwrap().0;
            assert_eq!(value("STAGES = ", ';'), stages.to_string(), "{}", block_type.name());
            let copied = value("Copied<", '>').replace("HEAD", head);
            let row: usize = copied.split(", ").map(|bytes| bytes.parse::<usize>().unwrap()).sum();
            assert_eq!(MMA_ROWS * row, bytes, "{}", block_type.name());
            let kept = if value("LAYOUT = ", ';') == "SIXTEENTHS" { 2 } else { 1 };
            assert_eq!(kept, scales, "{}", block_type.name());
        }
    }

    /// Splits a text into a struct's name and what follows it.
    fn named(text: &str) -> Option<(&str, &str)> {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        Some(text.split_at(end))
    }

    #[test]
    fn warps_share_the_chunks_of_a_row_and_fit_a_multiprocessor() {
        // The driver reports this for an H100.
        const MOST: usize = 227 << 10;
        let shape = |outputs, inputs| mma_shape(BlockType::Q4K, Storage::Bf16, outputs, inputs, MOST);
        let ring = 2 * 16 * 144;
        let of_x = |chunks: usize| chunks * (512 + 16 + 32 + 16);
        let expected = |warps, chunks, resident| MmaShape { warps, shared: warps * ring + of_x(chunks), resident };
        let padded = |warps, resident, shared| Some(MmaShape { warps, shared, resident });
        assert_eq!(shape(4096, 4096), Some(expected(16, 16, 1)));
        assert_eq!(shape(4096, 14336), padded(14, 1, 107_521), "four rounds without an idle warp");
        assert_eq!(shape(16, 256), Some(expected(1, 1, 16)));
        assert_eq!(shape(16, 2048), padded(8, 2, 68_609));
        assert_eq!(shape(15, 4096), None, "no whole tile");
        assert_eq!(shape(4096, 4000), None, "no whole chunks");
        assert_eq!(shape(4096, 1 << 20), None, "x does not fit");
        for block_type in BlockType::ALL {
            for (storage, inputs) in
                [(Storage::F32, 14336), (Storage::F16, 28672), (Storage::F32, 256), (Storage::Bf16, 3072)]
            {
                let found = mma_shape(block_type, storage, 4096, inputs, MOST).unwrap();
                assert!(found.shared + MMA_SUMS <= MOST, "{} {found:?}", block_type.name());
                assert!(found.warps * found.resident <= MMA_WARPS, "{} {found:?}", block_type.name());
                let at_once = PROCESSOR_SHARED / (found.shared + MMA_SUMS + BLOCK_SHARED);
                assert!(at_once == found.resident || found.warps == MMA_WARPS, "{} {found:?}", block_type.name());
            }
        }
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
