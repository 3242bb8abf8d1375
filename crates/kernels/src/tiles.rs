//! Matrix products in bf16 with sums in f32, using the processor's tile or vector instructions.
//!
//! Both factors are packed into tiles of [`ROWS`] rows and [`DEPTH`] columns, padded with zeros: the left factor row by row, the right
//! factor (whose rows are the outputs) by pairs of columns. The product of two tiles takes one instruction with AMX, 128 with `vdpbf16ps`,
//! and elsewhere a loop, which is slower than products in f32.
//!
//! An output is one sum over all columns, in an order that does not depend on its position: neither batching nor threads change a bit.
//! Results do depend on the [`Unit`], as those of other kernels depend on the instruction set.
//!
//! The file is long because the versions of one product for all three units are in one place, where they can be compared.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;
use rayon::prelude::*;

use super::rows::Elem;
use super::simd::{self, Simd, dispatch};

/// Number of rows of a left tile, and of outputs of a right tile.
pub const ROWS: usize = 16;
/// Number of columns of a tile.
pub const DEPTH: usize = 32;
/// Number of elements in a tile.
const TILE: usize = ROWS * DEPTH;
/// Number of output tiles multiplied together; right factors are padded to a multiple of this.
const PAIR: usize = 2;
/// Number of outputs of a pair of tiles.
pub const PAIR_OUTPUTS: usize = PAIR * ROWS;
/// Number of column tiles after which sums are stored, so that the factors stay in the cache: with a pair of tiles on each side, 64 KiB.
const SPAN: usize = 16;
/// Number of rows and of outputs in a block whose sums stay in the second-level cache while they are stored and reloaded.
const NEAR: (usize, usize) = (512, 8 * PAIR_OUTPUTS);
/// Products with fewer multiply-adds are not split over threads.
const PARALLEL_WORK: usize = 1 << 22;

/// The unit that multiplies tiles: an instruction set, or a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Intel's matrix extensions: a product of two tiles is one instruction.
    Amx,
    /// `vdpbf16ps`: an instruction multiplies sixteen pairs.
    Avx512Bf16,
    /// A loop that runs on every processor.
    Loop,
}

impl Unit {
    /// Returns its name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx_bf16",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Loop => "portable",
        }
    }
}

/// Returns the best unit of this processor. `SPATTN_ISA` limits it as it limits other kernels; `avx512` allows `vdpbf16ps`.
pub fn unit() -> Unit {
    units()[0]
}

/// Returns the units of this processor, best first, detected once.
fn units() -> &'static [Unit] {
    static UNITS: OnceLock<Vec<Unit>> = OnceLock::new();
    UNITS.get_or_init(|| {
        let vectors = if simd::is_avx512() && x86::has_avx512_bf16() { Some(Unit::Avx512Bf16) } else { None };
        let amx = if vectors.is_some() && !simd::is_lowered() && x86::take_amx() { Some(Unit::Amx) } else { None };
        amx.into_iter().chain(vectors).chain([Unit::Loop]).collect()
    })
}

/// The left factor: rows of activations, rounded to bf16. `[row tile][column tile][ROWS][DEPTH]`.
#[derive(Debug, Default)]
pub struct LeftTiles {
    data: Vec<u16>,
    rows: usize,
    columns: usize,
}

impl LeftTiles {
    /// A factor of this shape, all zero.
    pub fn zeros(rows: usize, columns: usize) -> Self {
        Self { data: vec![0; rows.div_ceil(ROWS) * columns.div_ceil(DEPTH) * TILE], rows, columns }
    }

    /// Packs the rows of `x: [rows][columns]`.
    pub fn new(x: &[f32], columns: usize) -> Self {
        let mut tiles = Self::zeros(x.len() / columns, columns);
        let of_tile = tiles.row_tile_len();
        if x.len() * DEPTH < PARALLEL_WORK {
            tiles.data.chunks_mut(of_tile).zip(x.chunks(ROWS * columns)).for_each(|(to, x)| put_rows(x, columns, to));
        } else {
            tiles.data.par_chunks_mut(of_tile).zip(x.par_chunks(ROWS * columns)).for_each(|(to, x)| {
                put_rows(x, columns, to);
            });
        }
        tiles
    }

    /// Copies the first `rows` rows of `x`, `stride` apart, into the factor's first rows.
    pub fn put(&mut self, x: &[f32], stride: usize, rows: usize) {
        (0..rows).for_each(|row| self.put_row(row, &x[row * stride..][..self.columns]));
    }

    /// Copies numbers into the first columns of a row.
    pub fn put_row(&mut self, row: usize, x: &[f32]) {
        assert!(
            row < self.rows && x.len() <= self.columns,
            "row {row} of {}, {} of {} columns",
            self.rows,
            x.len(),
            self.columns
        );
        let of_tile = self.row_tile_len();
        put_row(x, &mut self.data[row / ROWS * of_tile..][..of_tile], row % ROWS);
    }

    fn row_tile_len(&self) -> usize {
        (self.columns.div_ceil(DEPTH) * TILE).max(1)
    }
}

fn put_rows(x: &[f32], columns: usize, to: &mut [u16]) {
    x.chunks(columns).enumerate().for_each(|(row, x)| put_row(x, to, row));
}

/// Rounds numbers and writes them to one row of a tile of rows.
fn put_row(x: &[f32], to: &mut [u16], row: usize) {
    assert!(x.len().div_ceil(DEPTH) * TILE <= to.len() && row < ROWS, "the row does not fit the tile");
    let mut done = 0;
    if unit() != Unit::Loop {
        done = x.len() / DEPTH;
        // SAFETY: every unit but the loop has these instructions; `done` whole lines are in `x`, and their tiles in `to`.
        unsafe { x86::round_lines(x.as_ptr(), to[row * DEPTH..].as_mut_ptr(), done) };
    }
    for (x, tile) in x[done * DEPTH..].chunks(DEPTH).zip(to[done * TILE..].chunks_exact_mut(TILE)) {
        tile[row * DEPTH..][..DEPTH].iter_mut().zip(x).for_each(|(to, x)| *to = rounded(*x));
    }
}

/// Returns the bits of the nearest bf16, ties to even; NaN stays NaN. Same as `bf16::from_f32`, in a form that compilers vectorise.
#[inline(always)]
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { bits >> 16 | 0x40 } else { nearest }) as u16
}

/// The right factor: rows of weights, or keys, or columns of values. `[output tile][column tile][DEPTH / 2][ROWS][2]`.
#[derive(Debug, Clone)]
pub struct RightTiles {
    data: Vec<u16>,
    outputs: usize,
    columns: usize,
}

impl RightTiles {
    /// Packs the rows of `w: [outputs][columns]`, rounded to bf16.
    pub fn of_rows<T: Elem>(w: &[T], columns: usize) -> Self {
        let mut tiles = Self::zeros(w.len() / columns, columns);
        let of_tile = tiles.output_tile_len();
        tiles.data.par_chunks_mut(of_tile).zip(w.par_chunks(ROWS * columns)).for_each(|(to, w)| {
            for (output, row) in w.chunks_exact(columns).enumerate() {
                for (row, tile) in row.chunks(DEPTH).zip(to.chunks_exact_mut(TILE)) {
                    for (pair, places) in row.chunks(2).zip(tile.chunks_exact_mut(2 * ROWS)) {
                        let places = places[2 * output..][..2].iter_mut();
                        pair.iter().zip(places).for_each(|(x, place)| *place = rounded(x.to_f32()));
                    }
                }
            }
        });
        tiles
    }

    /// Packs the columns of `x: [columns][outputs]`, rounded to bf16: the transpose of [`of_rows`](Self::of_rows). Pads with columns of
    /// zeros to a multiple of `whole`.
    pub fn of_columns<T: Elem>(x: &[T], outputs: usize, whole: usize) -> Self {
        let mut tiles = Self::zeros(outputs, (x.len() / outputs).next_multiple_of(whole));
        let of_tile = tiles.output_tile_len();
        for (pair, rows) in x.chunks(2 * outputs).enumerate() {
            let (even, odd) = rows.split_at(outputs);
            for (tile, even) in even.chunks(ROWS).enumerate() {
                let places = &mut tiles.data[tile * of_tile + place(0, 2 * pair)..][..2 * ROWS];
                places.chunks_exact_mut(2).zip(even).for_each(|(place, x)| place[0] = rounded(x.to_f32()));
                let odd = odd.chunks(ROWS).nth(tile).unwrap_or(&[]);
                places.chunks_exact_mut(2).zip(odd).for_each(|(place, x)| place[1] = rounded(x.to_f32()));
            }
        }
        tiles
    }

    fn zeros(outputs: usize, columns: usize) -> Self {
        let tiles = outputs.div_ceil(PAIR_OUTPUTS) * PAIR * columns.div_ceil(DEPTH);
        Self { data: vec![0; tiles * TILE], outputs, columns }
    }

    /// Number of outputs, without padding.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of columns, without padding.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of bytes stored, with padding.
    pub fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Reads one row as f32.
    ///
    /// # Panics
    /// If `output` is out of range, or `out` is not as long as a row.
    pub fn read_row(&self, output: usize, out: &mut [f32]) {
        assert!(
            output < self.outputs && out.len() == self.columns,
            "row {output} of {}, {} of {} columns",
            self.outputs,
            out.len(),
            self.columns
        );
        let of_tile = &self.data[output / ROWS * self.output_tile_len()..];
        for (column, out) in out.iter_mut().enumerate() {
            *out = bf16::from_bits(of_tile[place(output % ROWS, column)]).to_f32();
        }
    }

    fn output_tile_len(&self) -> usize {
        (self.columns.div_ceil(DEPTH) * TILE).max(1)
    }
}

/// Returns the position of an output's column within the tiles of 16 outputs.
#[inline(always)]
fn place(output: usize, column: usize) -> usize {
    let (tile, within) = (column / DEPTH, column % DEPTH);
    tile * TILE + within / 2 * (2 * ROWS) + output * 2 + within % 2
}

/// Sums in row-major order.
#[derive(Clone, Copy)]
struct Sums {
    ptr: *mut f32,
    /// Distance between rows, in elements.
    stride: usize,
}

// SAFETY: `multiply` hands each thread a disjoint set of columns of one exclusively borrowed slice.
unsafe impl Send for Sums {}
// SAFETY: each thread has a disjoint set of columns, as for `Send`; the value itself is only read.
unsafe impl Sync for Sums {}

/// Computes `out[r][o] = Σ_c x[r][c] · w[o][c]`, for `out: [rows][outputs]`, on all threads.
///
/// # Panics
/// If factors have different columns, or `out` another shape.
pub fn multiply(x: &LeftTiles, w: &RightTiles, out: &mut [f32]) {
    multiply_by(unit(), x, w, out);
}

fn multiply_by(unit: Unit, x: &LeftTiles, w: &RightTiles, out: &mut [f32]) {
    assert_eq!(x.columns, w.columns, "the factors differ in columns");
    assert_eq!(out.len(), x.rows * w.outputs, "the output is not `[rows][outputs]`");
    let sums = Sums { ptr: out.as_mut_ptr(), stride: w.outputs };
    let depth = w.columns.div_ceil(DEPTH);
    let of = |outputs: Range<usize>| {
        let multiplier = Multiplier::of(unit);
        let product =
            Product { unit: multiplier.unit, x, rows: x.rows, w, outputs, first: 0, depth, sums, adds: false };
        // SAFETY: `out` has this shape, and is borrowed exclusively; no two products have an output in common.
        unsafe { product.run() };
    };
    let (pairs, threads) = (w.outputs.div_ceil(PAIR_OUTPUTS), rayon::current_num_threads());
    if threads == 1 || x.rows * w.outputs * w.columns < PARALLEL_WORK {
        return of(0..w.outputs);
    }
    // A few chunks per thread balance the load.
    let chunk = pairs.div_ceil(threads * 4) * PAIR_OUTPUTS;
    (0..w.outputs.div_ceil(chunk)).into_par_iter().for_each(|i| of(i * chunk..((i + 1) * chunk).min(w.outputs)));
}

/// A part of a product: the first `rows` rows and `depth` columns of `x`, times the given `outputs` of `w` and its columns from `first` on.
#[derive(Debug)]
pub struct Part<'a> {
    /// The left factor.
    pub x: &'a LeftTiles,
    /// Number of its rows to multiply.
    pub rows: usize,
    /// The right factor.
    pub w: &'a RightTiles,
    /// The range of its outputs to multiply; may include padding.
    pub outputs: Range<usize>,
    /// The first of its columns to multiply.
    pub first: usize,
    /// Number of columns to multiply, rounded up to whole tiles.
    pub depth: usize,
    /// Whether products are added to the sums in `out`.
    pub adds: bool,
}

/// A permission to multiply on this thread. It configures AMX, and releases it when dropped.
#[derive(Debug)]
pub struct Multiplier {
    unit: Unit,
    /// Keeps the type on its thread: raw pointers are not `Send`.
    _here: PhantomData<*const ()>,
}

thread_local! {
    /// Number of multipliers of this thread that use AMX.
    static USERS: Cell<usize> = const { Cell::new(0) };
}

impl Multiplier {
    /// Creates a multiplier with the best [`unit()`].
    #[expect(clippy::new_without_default, reason = "it sets up the processor")]
    pub fn new() -> Self {
        Self::of(unit())
    }

    /// # Panics
    /// If the processor does not have the unit.
    fn of(unit: Unit) -> Self {
        assert!(units().contains(&unit), "this processor does not have {unit:?}");
        if unit == Unit::Amx {
            if USERS.get() == 0 {
                // SAFETY: AMX is among the units, so this process may use it.
                unsafe { x86::configure() };
            }
            USERS.set(USERS.get() + 1);
        }
        Self { unit, _here: PhantomData }
    }

    /// Multiplies on this thread. Row `r` of the part is written to `out`, starting at `r · stride`.
    ///
    /// # Panics
    /// If the factors do not have these rows, outputs and columns, if `outputs` does not start at a pair of tiles or `first` at a tile, or
    /// if `out` is too short.
    pub fn multiply(&self, part: &Part, out: &mut [f32], stride: usize) {
        let Part { x, rows, w, ref outputs, first, depth, adds } = *part;
        let (depth, padded) = (depth.div_ceil(DEPTH), w.outputs.next_multiple_of(PAIR_OUTPUTS));
        assert!(
            rows > 0 && rows <= x.rows && outputs.end <= padded,
            "{rows} of {} rows, outputs {outputs:?} of {padded}",
            x.rows
        );
        assert!(depth <= x.columns.div_ceil(DEPTH), "{depth} tiles of {} columns", x.columns);
        assert!(
            first / DEPTH + depth <= w.columns.div_ceil(DEPTH),
            "{depth} tiles from column {first} on of {}",
            w.columns
        );
        assert!(
            outputs.start.is_multiple_of(PAIR_OUTPUTS) && first.is_multiple_of(DEPTH),
            "outputs {outputs:?} or column {first} do not begin a tile"
        );
        assert!(
            out.len() >= (rows - 1) * stride + outputs.len(),
            "{} numbers of output for {rows} rows {stride} apart",
            out.len()
        );
        let sums = Sums { ptr: out.as_mut_ptr().wrapping_sub(outputs.start), stride };
        let (unit, outputs, first) = (self.unit, outputs.clone(), first / DEPTH);
        // SAFETY: all of this was asserted, and `out` is borrowed exclusively; the unit stays configured while `self` lives.
        unsafe { Product { unit, x, rows, w, outputs, first, depth, sums, adds }.run() };
    }
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        if self.unit != Unit::Amx {
            return;
        }
        USERS.set(USERS.get() - 1);
        if USERS.get() == 0 {
            // SAFETY: this process may use AMX, or it would not have been set up.
            unsafe { x86::release() };
        }
    }
}

/// Rows of the left factor times some outputs of the right one.
struct Product<'a> {
    unit: Unit,
    x: &'a LeftTiles,
    rows: usize,
    w: &'a RightTiles,
    /// Range of outputs; starts at a pair of tiles.
    outputs: Range<usize>,
    /// The first column tile of `w`; it is multiplied with column tile 0 of `x`.
    first: usize,
    /// Number of column tiles.
    depth: usize,
    /// The sums: output `o` of row `r` is at `r · stride + o`.
    sums: Sums,
    adds: bool,
}

impl Product<'_> {
    /// # Safety
    /// The factors have these rows, outputs and column tiles, and `sums` has the rows and outputs; a [`Multiplier`] of the unit exists.
    unsafe fn run(&self) {
        for first_row in (0..self.rows).step_by(NEAR.0) {
            for first_output in self.outputs.clone().step_by(NEAR.1) {
                // SAFETY: forwarded from the caller.
                unsafe { self.near(first_row, first_output) };
            }
        }
    }

    /// Multiplies the block of rows and outputs that starts here; its sums stay in the cache.
    ///
    /// # Safety
    /// Like [`run`](Self::run).
    #[inline(always)]
    unsafe fn near(&self, first_row: usize, first_output: usize) {
        let rows = first_row..(first_row + NEAR.0).min(self.rows);
        let outputs = first_output..(first_output + NEAR.1).min(self.outputs.end);
        for span in (0..self.depth).step_by(SPAN) {
            for output in outputs.clone().step_by(PAIR_OUTPUTS) {
                for row in rows.clone().step_by(2 * ROWS) {
                    // SAFETY: forwarded from the caller.
                    unsafe { self.block(span, output, row) };
                }
            }
        }
    }

    /// Multiplies two tiles of rows, or the last one, with a pair of tiles of outputs, over a span of columns.
    ///
    /// # Safety
    /// Like [`run`](Self::run); `span`, `output` and `row` are within the product.
    unsafe fn block(&self, span: usize, output: usize, row: usize) {
        let (of_rows, of_outputs) = (self.x.row_tile_len(), self.w.output_tile_len());
        let (rows, outputs) = ((self.rows - row).min(2 * ROWS), (self.outputs.end - output).min(PAIR_OUTPUTS));
        let tall = rows > ROWS;
        let adds = self.adds || span > 0;
        let left = &self.x.data[row / ROWS * of_rows + span * TILE..];
        let right = &self.w.data[output / ROWS * of_outputs + (self.first + span) * TILE..];
        let tiles = Tiles {
            left: left.as_ptr(),
            left_stride: of_rows,
            right: right.as_ptr(),
            right_stride: of_outputs,
            depth: (self.depth - span).min(SPAN),
        };
        let sums = self.sums.ptr.wrapping_add(row * self.sums.stride + output);
        let whole = outputs == PAIR_OUTPUTS && rows.is_multiple_of(ROWS);
        // SAFETY: the tiles are in both factors, because rows, outputs and columns are (caller); sums are either whole blocks of the
        // caller's sums, or go through a separate block.
        unsafe {
            if whole {
                return tiles.multiply(self.unit, tall, Sums { ptr: sums, stride: self.sums.stride }, adds);
            }
            let mut block = [0.0f32; 2 * ROWS * PAIR_OUTPUTS];
            if adds {
                for r in 0..rows {
                    let from = sums.add(r * self.sums.stride);
                    std::ptr::copy_nonoverlapping(from, block[r * PAIR_OUTPUTS..].as_mut_ptr(), outputs);
                }
            }
            tiles.multiply(self.unit, tall, Sums { ptr: block.as_mut_ptr(), stride: PAIR_OUTPUTS }, adds);
            for r in 0..rows {
                let to = sums.add(r * self.sums.stride);
                std::ptr::copy_nonoverlapping(block[r * PAIR_OUTPUTS..].as_ptr(), to, outputs);
            }
        }
    }
}

/// One or two tiles of rows and a pair of tiles of outputs, with equally many column tiles.
#[derive(Clone, Copy)]
struct Tiles {
    left: *const u16,
    /// Distance between tiles of rows, in elements.
    left_stride: usize,
    right: *const u16,
    /// Distance between tiles of outputs, in elements.
    right_stride: usize,
    depth: usize,
}

impl Tiles {
    /// # Safety
    /// The tiles exist, and so do the sums: 16 rows, or 32 if `tall`, of 32 numbers. The processor has the unit, which was configured.
    unsafe fn multiply(self, unit: Unit, tall: bool, sums: Sums, adds: bool) {
        // SAFETY: forwarded from the caller.
        unsafe {
            match (unit, tall) {
                (Unit::Amx, true) => x86::amx_tall(self, sums, adds),
                (Unit::Amx, false) => x86::amx_flat(self, sums, adds),
                (Unit::Avx512Bf16, _) => {
                    (0..=usize::from(tall)).for_each(|i| x86::vectors(self.row(i), sums.row(i), adds))
                }
                (Unit::Loop, _) => (0..=usize::from(tall)).for_each(|i| looped(self.row(i), sums.row(i), adds)),
            }
        }
    }

    /// Returns tile `i` of rows.
    fn row(self, i: usize) -> Self {
        Self { left: self.left.wrapping_add(i * self.left_stride), ..self }
    }
}

impl Sums {
    /// Returns the sums of tile `i` of rows.
    fn row(self, i: usize) -> Self {
        Self { ptr: self.ptr.wrapping_add(i * ROWS * self.stride), ..self }
    }
}

dispatch! {
    /// Multiplies one tile of rows, column pair by column pair.
    fn looped[](tiles: Tiles, sums: Sums, adds: bool) = looped_kernel
}

#[inline(always)]
unsafe fn looped_kernel<S: Simd>(tiles: Tiles, sums: Sums, adds: bool) {
    for row in 0..ROWS {
        for side in 0..PAIR {
            // SAFETY: the sums exist, and no other reference to them does (caller of `Tiles::multiply`).
            let out = unsafe { &mut *sums.ptr.add(row * sums.stride + side * ROWS).cast::<[f32; ROWS]>() };
            let mut acc = if adds { *out } else { [0.0; ROWS] };
            for tile in 0..tiles.depth {
                // SAFETY: the tiles exist (caller of `Tiles::multiply`), and nothing writes to them.
                let (left, right) = unsafe {
                    let left = tiles.left.add(tile * TILE + row * DEPTH).cast::<[u16; DEPTH]>();
                    let right = tiles.right.add(side * tiles.right_stride + tile * TILE).cast::<[u16; TILE]>();
                    (&*left, &*right)
                };
                for (x, pairs) in left.chunks_exact(2).zip(right.chunks_exact(2 * ROWS)) {
                    let [first, second] = [widened(x[0]), widened(x[1])];
                    for (acc, w) in acc.iter_mut().zip(pairs.chunks_exact(2)) {
                        *acc += first * widened(w[0]);
                        *acc += second * widened(w[1]);
                    }
                }
            }
            *out = acc;
        }
    }
}

#[inline(always)]
fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::{DEPTH, ROWS, Sums, TILE, Tiles};

    /// Number of bytes of a tile's row.
    const LINE: usize = 64;
    /// Number of rows whose sums are in registers at a time.
    const HIGH: usize = 8;

    pub fn has_avx512_bf16() -> bool {
        is_x86_feature_detected!("avx512bf16")
    }

    /// Whether the processor has AMX for bf16 and the operating system lets this process use it.
    #[cfg(target_os = "linux")]
    pub fn take_amx() -> bool {
        const BF16: u32 = 1 << 22;
        const TILES: u32 = 1 << 24;
        /// Linux's numbers of the system call, its request, and the tile state.
        const ARCH_PRCTL: usize = 158;
        const REQUEST_PERMISSION: usize = 0x1023;
        const TILE_DATA: usize = 18;
        let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES;
        if !has {
            return false;
        }
        let mut result = ARCH_PRCTL;
        // SAFETY: the call takes only numbers, and changes only whether this process may use tiles.
        unsafe {
            asm!("syscall", inlateout("rax") result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result == 0
    }

    #[cfg(not(target_os = "linux"))]
    pub fn take_amx() -> bool {
        false
    }

    /// The shapes of the tile registers, in the format of `ldtilecfg`.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Configures all tile registers with 16 rows of 64 bytes.
    ///
    /// # Safety
    /// The process may use AMX ([`take_amx`]).
    pub unsafe fn configure() {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(LINE as u16);
        rows[..8].fill(ROWS as u8);
        let shapes = Shapes { palette: 1, start: 0, reserved: [0; 14], row_bytes, rows };
        // SAFETY: reads 64 bytes. No code that a compiler generates uses these registers.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    }

    /// Releases the tile registers, so that they need not be saved when threads are switched.
    ///
    /// # Safety
    /// The process may use AMX.
    pub unsafe fn release() {
        // SAFETY: the process may use AMX (caller); compilers generate no code that uses these registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Prefetches the 16 lines of the tile after the next to the first-level cache; the address may be invalid. Only rows need this: they
    /// come from the second level, while outputs are still in the first.
    macro_rules! ahead {
        ($tile:literal) => {
            concat!(
                ".irp line, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960\n",
                "prefetcht0 [{",
                $tile,
                "} + 2048 + \\line]\n",
                ".endr"
            )
        };
    }

    /// Multiplies two tiles of rows.
    ///
    /// # Safety
    /// Like [`Tiles::multiply`].
    pub unsafe fn amx_tall(tiles: Tiles, sums: Sums, adds: bool) {
        // SAFETY: reads `depth` tiles of 1 KiB from four places (prefetches beyond them read nothing), and reads and writes four blocks of
        // 16 rows of 64 bytes. All of these exist (caller).
        unsafe {
            asm!(
                "test {adds:e}, {adds:e}",
                "jz 2f",
                "tileloadd tmm0, [{c0} + {stride}]",
                "tileloadd tmm1, [{c0} + {stride} + 64]",
                "tileloadd tmm2, [{c1} + {stride}]",
                "tileloadd tmm3, [{c1} + {stride} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{a0} + {line}]",
                "tileloadd tmm6, [{b0} + {line}]",
                ahead!("a0"),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {line}]",
                ahead!("a1"),
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, 1024",
                "add {a1}, 1024",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {depth}",
                "jnz 3b",
                "tilestored [{c0} + {stride}], tmm0",
                "tilestored [{c0} + {stride} + 64], tmm1",
                "tilestored [{c1} + {stride}], tmm2",
                "tilestored [{c1} + {stride} + 64], tmm3",
                adds = in(reg) u64::from(adds),
                a0 = inout(reg) tiles.left => _,
                a1 = inout(reg) tiles.left.wrapping_add(tiles.left_stride) => _,
                b0 = inout(reg) tiles.right => _,
                b1 = inout(reg) tiles.right.wrapping_add(tiles.right_stride) => _,
                depth = inout(reg) tiles.depth => _,
                c0 = in(reg) sums.ptr,
                c1 = in(reg) sums.ptr.wrapping_add(ROWS * sums.stride),
                stride = in(reg) sums.stride * size_of::<f32>(),
                line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// Multiplies one tile of rows.
    ///
    /// # Safety
    /// Like [`Tiles::multiply`].
    pub unsafe fn amx_flat(tiles: Tiles, sums: Sums, adds: bool) {
        // SAFETY: as in `amx_tall`, but with three places and two blocks.
        unsafe {
            asm!(
                "test {adds:e}, {adds:e}",
                "jz 2f",
                "tileloadd tmm0, [{c0} + {stride}]",
                "tileloadd tmm1, [{c0} + {stride} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "3:",
                "tileloadd tmm4, [{a0} + {line}]",
                "tileloadd tmm6, [{b0} + {line}]",
                "tileloadd tmm7, [{b1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a0}, 1024",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {depth}",
                "jnz 3b",
                "tilestored [{c0} + {stride}], tmm0",
                "tilestored [{c0} + {stride} + 64], tmm1",
                adds = in(reg) u64::from(adds),
                a0 = inout(reg) tiles.left => _,
                b0 = inout(reg) tiles.right => _,
                b1 = inout(reg) tiles.right.wrapping_add(tiles.right_stride) => _,
                depth = inout(reg) tiles.depth => _,
                c0 = in(reg) sums.ptr,
                stride = in(reg) sums.stride * size_of::<f32>(),
                line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// Rounds `lines` lines of [`DEPTH`] numbers to one row of consecutive tiles.
    ///
    /// # Safety
    /// The numbers and the rows exist.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn round_lines(from: *const f32, to: *mut u16, lines: usize) {
        for line in 0..lines {
            // SAFETY: reads 32 numbers of a line and writes as many (caller).
            unsafe {
                let from = from.add(line * DEPTH);
                let both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(DEPTH / 2)), _mm512_loadu_ps(from));
                _mm512_storeu_si512(to.add(line * TILE).cast(), transmute::<__m512bh, __m512i>(both));
            }
        }
    }

    /// Multiplies one tile of rows with vector instructions.
    ///
    /// # Safety
    /// Like [`Tiles::multiply`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn vectors(tiles: Tiles, sums: Sums, adds: bool) {
        for first in (0..ROWS).step_by(HIGH) {
            // SAFETY: all accesses are within the tiles and the sums (caller).
            unsafe {
                let at = |row: usize, side: usize| sums.ptr.add((first + row) * sums.stride + side * ROWS);
                let mut acc = [[_mm512_setzero_ps(); 2]; HIGH];
                if adds {
                    for (row, acc) in acc.iter_mut().enumerate() {
                        *acc = [_mm512_loadu_ps(at(row, 0)), _mm512_loadu_ps(at(row, 1))];
                    }
                }
                for tile in 0..tiles.depth {
                    let left = tiles.left.add(tile * TILE + first * DEPTH).cast::<i32>();
                    let right = tiles.right.add(tile * TILE);
                    for pair in 0..DEPTH / 2 {
                        let side = |side: usize| -> __m512bh {
                            transmute(_mm512_loadu_si512(right.add(side * tiles.right_stride + pair * 2 * ROWS).cast()))
                        };
                        let w = [side(0), side(1)];
                        for (row, acc) in acc.iter_mut().enumerate() {
                            let x = _mm512_set1_epi32(left.add(row * (DEPTH / 2) + pair).read_unaligned());
                            let x: __m512bh = transmute(x);
                            acc[0] = _mm512_dpbf16_ps(acc[0], x, w[0]);
                            acc[1] = _mm512_dpbf16_ps(acc[1], x, w[1]);
                        }
                    }
                }
                for (row, acc) in acc.iter().enumerate() {
                    _mm512_storeu_ps(at(row, 0), acc[0]);
                    _mm512_storeu_ps(at(row, 1), acc[1]);
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    use super::{Sums, Tiles};

    pub fn has_avx512_bf16() -> bool {
        false
    }

    pub fn take_amx() -> bool {
        false
    }

    pub unsafe fn round_lines(_: *const f32, _: *mut u16, _: usize) {}

    pub unsafe fn configure() {}

    pub unsafe fn release() {}

    pub unsafe fn amx_tall(_: Tiles, _: Sums, _: bool) {}

    pub unsafe fn amx_flat(_: Tiles, _: Sums, _: bool) {}

    pub unsafe fn vectors(_: Tiles, _: Sums, _: bool) {}
}

#[cfg(test)]
mod tests;
