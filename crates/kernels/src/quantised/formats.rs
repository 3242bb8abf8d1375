//! The layouts of blocks, and code to read their numbers in order.
//!
//! Scales are f16, or f16 times integers of up to 8 bits. So a scale times a code has at most 24 significant bits: it is exact in f32,
//! and a number is rounded at most once, when its offset is added. Whether that is done by a fused multiply-add, a table or two
//! operations does not change a bit.

use super::lanes::{GroupScales, Lanes};

/// Receives the numbers of a block, some lanes at a time.
pub(super) trait Sink<S: Lanes> {
    /// Receives the numbers from `at` on, counted from the start of the block. They come in order.
    ///
    /// # Safety
    /// The CPU supports `S`; the memory that the sink reads or writes for these numbers exists.
    unsafe fn take(&mut self, at: usize, numbers: S::V);
}

/// The layout of a block.
pub(super) trait Format: Send + Sync + 'static {
    /// Number of elements in a block.
    const NUMBERS: usize;
    /// Number of bytes of a block.
    const BYTES: usize;
    /// Number of elements read at a time.
    const PART: usize;
    /// What all elements of a block share.
    type Scales<S: Lanes>: Copy;

    /// Reads what all elements share.
    ///
    /// # Safety
    /// A block is readable at `block`; the CPU supports `S`.
    unsafe fn scales<S: Lanes>(block: *const u8) -> Self::Scales<S>;

    /// Reads the [`scales`](Self::scales) of several blocks.
    ///
    /// # Safety
    /// Like [`scales`](Self::scales), for each block.
    #[inline(always)]
    unsafe fn scales_of_each<S: Lanes, const N: usize>(blocks: [*const u8; N]) -> [Self::Scales<S>; N] {
        // SAFETY: upheld by the caller: each block is readable, and the CPU supports `S`.
        unsafe {
            let mut scales = [Self::scales::<S>(blocks[0]); N];
            for j in 1..N {
                scales[j] = Self::scales::<S>(blocks[j]);
            }
            scales
        }
    }

    /// Passes the numbers of part `part` to `sink`.
    ///
    /// # Safety
    /// A block is readable at `block`, and it has such a part; the sink may take all numbers of the block; the CPU supports `S`.
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &Self::Scales<S>, part: usize, sink: &mut K);
}

/// Tables that turn 4-bit codes into numbers: those in the lower halves of bytes, and those in the upper halves.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<S: Lanes> {
    lower: S::Table,
    upper: S::Table,
}

impl<S: Lanes> Nibbles<S> {
    /// # Safety
    /// The CPU supports `S`.
    #[inline(always)]
    unsafe fn new(scale: S::V, offset: S::V) -> Self {
        // SAFETY: value operations only (caller).
        unsafe { Self { lower: S::table(scale, offset), upper: S::upper_table(scale, offset) } }
    }
}

/// Passes on 4-bit codes: those in the lower halves of `BYTES` bytes, then those in the upper halves.
///
/// # Safety
/// `BYTES` bytes are readable at `codes`; otherwise like [`Format::part`].
#[inline(always)]
unsafe fn nibbles<const BYTES: usize, S: Lanes, K: Sink<S>>(
    codes: *const u8,
    of: &Nibbles<S>,
    at: usize,
    sink: &mut K,
) {
    // SAFETY: every load ends within the bytes, whose number is a multiple of any number of lanes; the caller upholds the rest.
    unsafe {
        for first in (0..BYTES).step_by(S::LANES) {
            sink.take(at + first, S::look_up(of.lower, S::load_u8(codes.add(first))));
        }
        for first in (0..BYTES).step_by(S::LANES) {
            sink.take(at + BYTES + first, S::look_up_upper(of.upper, S::load_u8(codes.add(first))));
        }
    }
}

/// Layout of [`BlockType::Q4_0`](super::BlockType::Q4_0): scale; codes, the first 16 in the lower halves of bytes.
pub(super) enum Q4x0 {}

impl Format for Q4x0 {
    const NUMBERS: usize = 32;
    const BYTES: usize = 18;
    const PART: usize = 32;
    type Scales<S: Lanes> = Nibbles<S>;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> Nibbles<S> {
        // SAFETY: upheld by the caller; the scale is the first two bytes.
        unsafe {
            let scale = S::splat_f16(block);
            Nibbles::new(scale, S::mul(scale, S::splat(-8.0)))
        }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &Nibbles<S>, _: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; 16 bytes of codes follow the scale.
        unsafe { nibbles::<16, S, K>(block.add(2), scales, 0, sink) }
    }
}

/// Layout of [`BlockType::Q4_1`](super::BlockType::Q4_1): scale; offset; codes, the first 16 in the lower halves of bytes.
pub(super) enum Q4x1 {}

impl Format for Q4x1 {
    const NUMBERS: usize = 32;
    const BYTES: usize = 20;
    const PART: usize = 32;
    type Scales<S: Lanes> = Nibbles<S>;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> Nibbles<S> {
        // SAFETY: upheld by the caller; scale and offset are the first four bytes.
        unsafe { Nibbles::new(S::splat_f16(block), S::splat_f16(block.add(2))) }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &Nibbles<S>, _: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; 16 bytes of codes follow scale and offset.
        unsafe { nibbles::<16, S, K>(block.add(4), scales, 0, sink) }
    }
}

/// Passes on 32 five-bit codes: their lower four bits are stored as in 4-bit blocks, the highest bit of each in the four bytes at
/// `fifths`.
///
/// # Safety
/// Four bytes are readable at `fifths`, 16 at `codes`; otherwise like [`Format::part`].
#[inline(always)]
unsafe fn five_bits<S: Lanes, K: Sink<S>>(
    fifths: *const u8,
    codes: *const u8,
    (scale, offset): (S::V, S::V),
    sink: &mut K,
) {
    // SAFETY: every load ends within the bytes that are readable according to the caller, who upholds the rest.
    unsafe {
        let fifths = u32::from_le_bytes(fifths.cast::<[u8; 4]>().read_unaligned());
        for at in (0..32).step_by(S::LANES) {
            let halves = S::shift_right(S::load_u8(codes.add(at % 16)), if at < 16 { 0 } else { 4 });
            let whole = S::or(S::and(halves, 15), S::spread(fifths >> at, 16));
            sink.take(at, S::fma(S::to_f32(whole), scale, offset));
        }
    }
}

/// Layout of [`BlockType::Q5_0`](super::BlockType::Q5_0): scale; highest bits; lower four bits as in [`Q4x0`].
pub(super) enum Q5x0 {}

impl Format for Q5x0 {
    const NUMBERS: usize = 32;
    const BYTES: usize = 22;
    const PART: usize = 32;
    type Scales<S: Lanes> = (S::V, S::V);

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> (S::V, S::V) {
        // SAFETY: upheld by the caller; the scale is the first two bytes.
        unsafe {
            let scale = S::splat_f16(block);
            (scale, S::mul(scale, S::splat(-16.0)))
        }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &(S::V, S::V), _: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; four bytes of highest bits and 16 of codes follow the scale.
        unsafe { five_bits(block.add(2), block.add(6), *scales, sink) }
    }
}

/// Layout of [`BlockType::Q5_1`](super::BlockType::Q5_1): scale; offset; highest bits; lower four bits as in [`Q4x0`].
pub(super) enum Q5x1 {}

impl Format for Q5x1 {
    const NUMBERS: usize = 32;
    const BYTES: usize = 24;
    const PART: usize = 32;
    type Scales<S: Lanes> = (S::V, S::V);

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> (S::V, S::V) {
        // SAFETY: upheld by the caller; scale and offset are the first four bytes.
        unsafe { (S::splat_f16(block), S::splat_f16(block.add(2))) }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &(S::V, S::V), _: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; four bytes of highest bits and 16 of codes follow scale and offset.
        unsafe { five_bits(block.add(4), block.add(8), *scales, sink) }
    }
}

/// Layout of [`BlockType::Q8_0`](super::BlockType::Q8_0): scale; signed codes.
pub(super) enum Q8x0 {}

impl Format for Q8x0 {
    const NUMBERS: usize = 32;
    const BYTES: usize = 34;
    const PART: usize = 32;
    type Scales<S: Lanes> = S::V;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> S::V {
        // SAFETY: upheld by the caller; the scale is the first two bytes.
        unsafe { S::splat_f16(block) }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scale: &S::V, _: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; 32 bytes of codes follow the scale.
        unsafe {
            for at in (0..32).step_by(S::LANES) {
                sink.take(at, S::mul(S::to_f32(S::load_i8(block.add(2 + at))), *scale));
            }
        }
    }
}

/// Layout of [`BlockType::Q4K`](super::BlockType::Q4K): scales and offsets; codes, 64 in each 32 bytes.
pub(super) enum Q4K {}

impl Format for Q4K {
    const NUMBERS: usize = 256;
    const BYTES: usize = 144;
    const PART: usize = 64;
    type Scales<S: Lanes> = GroupScales;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> GroupScales {
        // SAFETY: upheld by the caller; scales and offsets are in the first 16 bytes.
        unsafe { S::scales_of_one(block) }
    }

    #[inline(always)]
    unsafe fn scales_of_each<S: Lanes, const N: usize>(blocks: [*const u8; N]) -> [GroupScales; N] {
        // SAFETY: upheld by the caller, for each block; scales and offsets are in its first 16 bytes.
        unsafe { S::scales(blocks) }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &GroupScales, part: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; 32 bytes of codes for each part follow 16 of scales and offsets.
        unsafe {
            let group = 2 * part;
            let both = Nibbles {
                lower: S::table(S::splat(scales.0[group]), S::splat(scales.0[8 + group])),
                upper: S::upper_table(S::splat(scales.0[group + 1]), S::splat(scales.0[9 + group])),
            };
            nibbles::<32, S, K>(block.add(16 + 32 * part), &both, 64 * part, sink);
        }
    }
}

/// Layout of [`BlockType::Q5K`](super::BlockType::Q5K): scales and offsets; 32 bytes of highest bits, of which byte `i` has those of the
/// numbers `i` of all groups; lower four bits as in [`Q4K`].
pub(super) enum Q5K {}

impl Format for Q5K {
    const NUMBERS: usize = 256;
    const BYTES: usize = 176;
    const PART: usize = 64;
    type Scales<S: Lanes> = GroupScales;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> GroupScales {
        // SAFETY: upheld by the caller; scales and offsets are in the first 16 bytes.
        unsafe { S::scales_of_one(block) }
    }

    #[inline(always)]
    unsafe fn scales_of_each<S: Lanes, const N: usize>(blocks: [*const u8; N]) -> [GroupScales; N] {
        // SAFETY: upheld by the caller, for each block; scales and offsets are in its first 16 bytes.
        unsafe { S::scales(blocks) }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &GroupScales, part: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; 16 bytes of scales and offsets are followed by 32 of highest bits, and by 32 of codes for each
        // part.
        unsafe {
            let (fifths, codes) = (block.add(16), block.add(48 + 32 * part));
            for half in 0..2 {
                let group = 2 * part + half;
                let (scale, offset) = (S::splat(scales.0[group]), S::splat(scales.0[8 + group]));
                for first in (0..32).step_by(S::LANES) {
                    let four = S::and(S::shift_right(S::load_u8(codes.add(first)), 4 * half as u32), 15);
                    let fifth = S::and(S::shift_right(S::load_u8(fifths.add(first)), group as u32), 1);
                    let whole = S::or(four, S::shift_left(fifth, 4));
                    sink.take(64 * part + 32 * half + first, S::fma(S::to_f32(whole), scale, offset));
                }
            }
        }
    }
}

/// Layout of [`BlockType::Q6K`](super::BlockType::Q6K): for each half of 128 numbers, 64 bytes with the lower four bits of codes; for
/// each half, 32 bytes with the higher two; 16 signed scales; the scale of the scales.
pub(super) enum Q6K {}

impl Format for Q6K {
    const NUMBERS: usize = 256;
    const BYTES: usize = 210;
    const PART: usize = 128;
    type Scales<S: Lanes> = GroupScales;

    #[inline(always)]
    unsafe fn scales<S: Lanes>(block: *const u8) -> GroupScales {
        // SAFETY: upheld by the caller; 16 bytes of scales are at 192, and two of their scale at 208.
        unsafe {
            let scale = S::splat_f16(block.add(208));
            let mut scales = GroupScales([0.0; 16]);
            for first in (0..16).step_by(S::LANES) {
                let own = S::to_f32(S::load_i8(block.add(192 + first)));
                S::store(scales.0.as_mut_ptr().add(first), S::mul(own, scale));
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn part<S: Lanes, K: Sink<S>>(block: *const u8, scales: &GroupScales, part: usize, sink: &mut K) {
        // SAFETY: upheld by the caller; each part has 64 bytes of lower bits, and 32 of higher bits from 128 on.
        unsafe {
            let (lower, higher) = (block.add(64 * part), block.add(128 + 32 * part));
            for quarter in 0..4 {
                for first in (0..32).step_by(S::LANES) {
                    let four = S::load_u8(lower.add(32 * (quarter % 2) + first));
                    let four = S::and(S::shift_right(four, if quarter < 2 { 0 } else { 4 }), 15);
                    let two = S::and(S::shift_right(S::load_u8(higher.add(first)), 2 * quarter as u32), 3);
                    let code = S::subtract(S::or(four, S::shift_left(two, 4)), 32);
                    let scale = S::splat(scales.0[8 * part + 2 * quarter + first / 16]);
                    sink.take(128 * part + 32 * quarter + first, S::mul(S::to_f32(code), scale));
                }
            }
        }
    }
}
