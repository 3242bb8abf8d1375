//! Projections of keys and queries on a few directions, their signatures by small nets or hyperplanes, and Hamming distances between
//! signatures.

use std::ops::Range;

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::launch::Cache;
use super::queries::Queries;
use super::scores::{Reduction, ScoreWorkspace};
use super::{Buffer, Gpu, GpuError, Plain, Storage, failed};
use spattn_kernels::GPU_WIDEST;

/// Threads of a block that maps keys, and the keys that it maps.
const THREADS: u32 = 256;
const ROWS: usize = 64;
/// Threads of a block that computes the signature of a query.
const SIGNERS: u32 = 512;
/// The most channels that `sign_sides` supports, and hyperplanes for each block.
const WIDEST_SIDES: usize = 256;
const SIDES_AT_ONCE: usize = 64;
/// Candidates of a block that compares signatures, and the most KV heads that it compares one after the other.
const COMPARED: usize = 1024;
const COMPARED_HEADS: usize = 8;
/// The distance between planes of signatures, in words, is a multiple of this.
const WIDE: usize = 4;
/// Layers of a net.
const LAYERS: usize = 3;

/// Whether the kernels can map heads of `d` channels to `outputs` numbers.
pub fn maps_fit(d: usize, outputs: usize) -> bool {
    d.is_multiple_of(8) && (8..=GPU_WIDEST).contains(&d) && (1..=GPU_WIDEST).contains(&outputs)
}

/// Directions of each KV head of a model, `[kv_head][count][d]` f32. A cache of more KV heads starts over with the first ones.
#[derive(Debug, Clone, Copy)]
pub struct Directions<'a> {
    /// The numbers.
    pub buffer: &'a Buffer,
    /// Number of KV heads.
    pub heads: usize,
    /// Number of directions of each KV head.
    pub count: usize,
    /// Channels of a head.
    pub d: usize,
}

impl Directions<'_> {
    fn address(&self) -> u64 {
        self.buffer.address(0, 4 * self.heads * self.count * self.d)
    }
}

/// Mirrors the kernels' struct `Net`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceNet {
    layers: [[u64; 2]; LAYERS],
}

// SAFETY: integers of eight bytes, for which any bits are valid. Only `Nets::new` makes useful ones.
unsafe impl Plain for DeviceNet {}

/// Nets of three layers with SiLU between them, from `d` to `d`, `d` and `bits` numbers. The signs of the outputs are the signature.
#[derive(Debug)]
pub struct Nets {
    /// Weights and biases, which `table` points to.
    layers: Vec<[Buffer; 2]>,
    table: Buffer,
    nets: usize,
    d: usize,
    bits: usize,
}

impl Nets {
    /// Uploads nets. Each layer has the weights of all nets `[net][output][d]` and their biases `[net][output]`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lengths of a layer do not match `nets`, `d` and `bits`.
    pub fn new(
        gpu: &Gpu,
        nets: usize,
        (d, bits): (usize, usize),
        layers: [(Vec<half::f16>, Vec<f32>); LAYERS],
    ) -> Result<Self, GpuError> {
        let mut table = vec![DeviceNet::default(); nets];
        let mut buffers = Vec::new();
        for (i, (weights, biases)) in layers.into_iter().enumerate() {
            let outputs = if i + 1 < LAYERS { d } else { bits };
            assert!(
                weights.len() == nets * outputs * d && biases.len() == nets * outputs,
                "layer {i} has {} weights and {} biases, not those of {nets} networks",
                weights.len(),
                biases.len()
            );
            let own = [gpu.upload(&weights)?, gpu.upload(&biases)?];
            for (net, of_net) in table.iter_mut().enumerate() {
                let weights = own[0].address(2 * net * outputs * d, 2 * outputs * d);
                of_net.layers[i] = [weights, own[1].address(4 * net * outputs, 4 * outputs)];
            }
            // Wait for the copies before the memory that they read is freed.
            gpu.synchronize()?;
            buffers.push(own);
        }
        let table = gpu.upload(&table)?;
        Ok(Self { layers: buffers, table, nets, d, bits })
    }

    /// Number of 32-bit words of a signature.
    pub fn words(&self) -> usize {
        self.bits.div_ceil(32)
    }

    /// Bytes of all weights and biases.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(Buffer::bytes).sum()
    }

    fn address(&self) -> u64 {
        self.table.address(0, self.nets * size_of::<DeviceNet>())
    }
}

/// Signatures of the keys of all KV heads of a layer, `[kv_head][net][word][token]`.
#[derive(Debug, Clone, Copy)]
pub struct Signatures<'a> {
    /// The words.
    pub buffer: &'a Buffer,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Number of nets of each KV head: one for its group, or one for each query head.
    pub nets: usize,
    /// Number of words of a signature.
    pub words: usize,
    /// Number of tokens.
    pub tokens: usize,
}

impl Signatures<'_> {
    /// Words from one plane (one word of all tokens) to the next.
    pub(super) fn stride(tokens: usize) -> usize {
        tokens.next_multiple_of(WIDE)
    }

    /// Bytes of the signatures of `tokens` keys by `nets` nets in all, of `words` words each.
    pub fn bytes_of(nets: usize, words: usize, tokens: usize) -> usize {
        4 * nets * words * Self::stride(tokens)
    }
}

/// The order of tokens at equal distance, drawn with a seed: each score is raised by a random rank of `levels` bits times `unit`. With 0
/// levels nothing is added.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TieOrder {
    /// Lower and higher half of the seed.
    pub seed: [u32; 2],
    /// Bits of a rank.
    pub levels: u32,
    /// What one step of the rank adds to a score.
    pub unit: f32,
    /// A token's rank depends on its column or, if there is a period, on `first` plus its column modulo the period. Only
    /// [`score_signatures`](Gpu::score_signatures) heeds a period.
    pub first: u32,
    /// The period, or 0 for none: see [`first`](Self::first).
    pub period: u32,
}

// SAFETY: laid out as the kernel's struct `Ties`.
unsafe impl DeviceRepr for TieOrder {}

/// Returns how many KV heads a block compares one after the other. The order among equals is computed once for all of them, so more heads
/// are cheaper, but at least `processors` blocks should remain. `blocks` is the number of blocks for one KV head.
fn heads_a_block(blocks: usize, kv_heads: usize, processors: usize) -> usize {
    let mut taken = COMPARED_HEADS;
    while taken > 1 && blocks * kv_heads.div_ceil(taken) < processors {
        taken /= 2;
    }
    taken
}

impl Gpu {
    /// Projects the keys of a range of tokens on the directions of their KV head, into `[kv_head][token][padded]` in the type of the keys.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or heads are wider than the kernels support.
    pub fn project_keys(
        &self,
        keys: &Cache<'_>,
        tokens: Range<usize>,
        directions: &Directions<'_>,
        padded: usize,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let (d, storage) = (keys.d, keys.storage);
        assert!(
            maps_fit(d, padded) && directions.d == d && directions.count <= padded,
            "the kernel does not support {} directions padded to {padded}, of heads of {d} channels",
            directions.count
        );
        assert!(tokens.end <= keys.capacity, "tokens {tokens:?} do not lie in a cache of {}", keys.capacity);
        let out = out.address(0, keys.kv_heads * tokens.len() * padded * storage.bytes());
        if tokens.is_empty() {
            return Ok(());
        }
        let shared = 4 * (ROWS * d + directions.count * (d + 1)) as u32;
        let function = self.with_shared("maps", &format!("project_keys_{}", storage.name()), shared)?;
        let (from, stride, own) = (keys.key(0, tokens.start), keys.head_stride(), directions.address());
        let grid = (tokens.len().div_ceil(ROWS) as u32, keys.kv_heads as u32, 1);
        let (count, heads) = (tokens.len() as u32, directions.heads as u32);
        let [d, directions, padded] = [d, directions.count, padded].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&count).arg(&d).arg(&own).arg(&heads).arg(&directions).arg(&padded);
        launch.arg(&out);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: shared };
        // SAFETY: keys, directions and the output are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("projecting keys"))
    }

    /// Projects queries on the directions of their KV head, into `[row][head][padded]`: each number as the sum of two numbers of the keys'
    /// type. If `summed`, the projected queries of each group are added up, into `[row][kv_head][padded]`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn project_queries(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        (kv_heads, storage): (usize, Storage),
        directions: &Directions<'_>,
        (padded, summed): (usize, bool),
        [most, rest]: [&mut Buffer; 2],
    ) -> Result<(), GpuError> {
        assert!(directions.d <= GPU_WIDEST, "the kernel does not support heads of {} channels", directions.d);
        let made = if summed { kv_heads } else { queries.heads };
        let bytes = rows.len() * made * padded * storage.bytes();
        let (most, rest) = (most.address(0, bytes), rest.address(0, bytes));
        if rows.is_empty() {
            return Ok(());
        }
        let function = self.function("maps", &format!("project_queries_{}", storage.name()))?;
        let (from, list) = (queries.address(rows.clone(), directions.d, storage), queries.list(rows.clone()));
        let (stride, own, heads) = (queries.stride as u64, directions.address(), directions.heads as u32);
        let grid = (made as u32, rows.len() as u32, 1);
        let (group, summed) = (queries.heads / kv_heads, i32::from(summed));
        let [d, group, count, padded] = [directions.d, group, directions.count, padded].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&stride).arg(&d).arg(&group).arg(&own).arg(&heads).arg(&count).arg(&padded);
        launch.arg(&summed).arg(&most).arg(&rest);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, directions and both outputs are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("projecting queries"))
    }

    /// Computes signatures of the keys of a range of tokens by the `each` nets of their KV head. The output takes the
    /// [bytes](Signatures::bytes_of) of `kv_heads * each` nets.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or heads are wider than the kernels support.
    pub fn sign_keys(
        &self,
        keys: &Cache<'_>,
        tokens: Range<usize>,
        nets: &Nets,
        each: usize,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        let (d, all) = (keys.d, keys.kv_heads * each);
        assert!(
            maps_fit(d, nets.bits) && nets.d == d && nets.nets.is_multiple_of(each),
            "the kernel does not support {} hash networks of {} channels and {} bits",
            nets.nets,
            nets.d,
            nets.bits
        );
        assert!(tokens.end <= keys.capacity, "tokens {tokens:?} do not lie in a cache of {}", keys.capacity);
        let out = out.address(0, Signatures::bytes_of(all, nets.words(), tokens.len()));
        if tokens.is_empty() {
            return Ok(());
        }
        let shared = (4 * ROWS * d + 2 * GPU_WIDEST * (d + 2)) as u32;
        let function = self.with_shared("maps", &format!("sign_keys_{}", keys.storage.name()), shared)?;
        let (from, stride, table) = (keys.key(0, tokens.start), keys.head_stride(), nets.address());
        let grid = (tokens.len().div_ceil(ROWS) as u32, all as u32, 1);
        let (count, known, planes) = (tokens.len() as u32, nets.nets as u32, Signatures::stride(tokens.len()) as u64);
        let [d, each, bits] = [d, each, nets.bits].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&count).arg(&d).arg(&table).arg(&known).arg(&each).arg(&bits).arg(&out);
        launch.arg(&planes);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: shared };
        // SAFETY: keys, nets and signatures are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing signatures of keys"))
    }

    /// Computes signatures of queries by the nets of their query heads, `[row][head][word]`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn sign_queries(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        storage: Storage,
        nets: &Nets,
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(
            maps_fit(nets.d, nets.bits),
            "the kernel does not support {} hash networks of {} channels and {} bits",
            nets.nets,
            nets.d,
            nets.bits
        );
        let out = out.address(0, 4 * rows.len() * queries.heads * nets.words());
        if rows.is_empty() {
            return Ok(());
        }
        let function = self.function("maps", &format!("sign_queries_{}", storage.name()))?;
        let (from, list) = (queries.address(rows.clone(), nets.d, storage), queries.list(rows.clone()));
        let (stride, table, known) = (queries.stride as u64, nets.address(), nets.nets as u32);
        let grid = (queries.heads as u32, rows.len() as u32, 1);
        let [d, bits] = [nets.d, nets.bits].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&stride).arg(&d).arg(&table).arg(&known).arg(&bits).arg(&out);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (SIGNERS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, nets and signatures are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing signatures of queries"))
    }

    /// Computes signatures of queries, `[row][head][word]`: on which sides of `bits` hyperplanes they lie. `sides` has the normals
    /// `[bits][d]`, then for each an offset that is added to the product.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or hyperplanes are wider than the kernels support.
    pub fn sign_sides(
        &self,
        (queries, rows): (&Queries<'_>, Range<usize>),
        storage: Storage,
        sides: &Buffer,
        (d, bits): (usize, usize),
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        assert!(d <= WIDEST_SIDES, "the kernel supports hyperplanes of up to {WIDEST_SIDES} channels, not {d}");
        let out = out.address(0, 4 * rows.len() * queries.heads * bits.div_ceil(32));
        let sides = sides.address(0, size_of::<f32>() * bits * (d + 1));
        if rows.is_empty() {
            return Ok(());
        }
        let function = self.function("maps", &format!("sign_sides_{}", storage.name()))?;
        let (from, list) = (queries.address(rows.clone(), d, storage), queries.list(rows.clone()));
        let runs = bits.div_ceil(SIDES_AT_ONCE) as u32;
        let (stride, grid) = (queries.stride as u64, (queries.heads as u32, rows.len() as u32, runs));
        let [d, bits] = [d, bits].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&list).arg(&from).arg(&stride).arg(&d).arg(&sides).arg(&bits).arg(&out);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (SIGNERS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: queries, hyperplanes and signatures are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing signatures of queries"))
    }

    /// Scores keys by minus the Hamming distances of their signatures to those of `rows` rows of queries `[row][head][word]`, with ranks
    /// added as in `ties`; into lists by query head, or by KV head if they are reduced. Scores have the same bits on every device.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_signatures(
        &self,
        (queries, rows, heads): (&Buffer, usize, usize),
        keys: &Signatures<'_>,
        ties: TieOrder,
        reduction: Option<Reduction>,
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let Signatures { buffer, kv_heads, nets, words, tokens } = *keys;
        assert!(heads.is_multiple_of(kv_heads), "{heads} query heads are no multiple of {kv_heads} KV heads");
        let group = heads / kv_heads;
        assert!(nets == 1 || nets == group, "{nets} hash networks for a GQA group of {group} query heads");
        let out = workspace.resized(self, rows, (heads, kv_heads), tokens, reduction)?;
        let from = queries.address(0, 4 * rows * heads * words);
        let of_keys = buffer.address(0, Signatures::bytes_of(kv_heads * nets, words, tokens));
        if rows == 0 || tokens == 0 {
            return Ok(());
        }
        let name = if words == 1 { "hamming_scores" } else { "hamming_scores_long" };
        let function = self.function("hamming_scores", name)?;
        let taken = heads_a_block(tokens.div_ceil(COMPARED) * rows, kv_heads, self.processors());
        let grid = (tokens.div_ceil(COMPARED) as u32, kv_heads.div_ceil(taken) as u32, rows as u32);
        let (planes, columns, reduction) =
            (Signatures::stride(tokens) as u64, tokens as u32, Reduction::number(reduction));
        let (to, stride) = (out.address(), out.stride() as u64);
        let [words, heads, group, nets, taken] = [words, heads, group, nets, taken].map(|n| n as i32);
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&words).arg(&heads).arg(&group).arg(&of_keys).arg(&nets).arg(&planes).arg(&columns);
        launch.arg(&taken).arg(&ties).arg(&reduction).arg(&to).arg(&stride);
        let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: signatures of both and scores, whose lists end at a multiple of four, are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("comparing signatures"))
    }
}

#[cfg(test)]
mod tests {
    use super::heads_a_block;

    #[test]
    fn few_candidates_are_compared_by_as_many_blocks_as_there_can_be() {
        // 32 heads of 8K to 256K candidates, and 8 of 8K and 128K.
        let of_many = [8, 16, 32, 64, 256].map(|blocks| heads_a_block(blocks, 32, 132));
        assert_eq!(of_many, [1, 2, 4, 8, 8]);
        assert_eq!([8, 128].map(|blocks| heads_a_block(blocks, 8, 132)), [1, 4]);
    }
}
