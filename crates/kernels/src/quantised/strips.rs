//! Interleaved blocks of several rows.
//!
//! A strip is as many rows as a vector has lanes. For each block column it has a cell: the blocks of all its rows, rearranged, in the same
//! number of bytes. Each lane belongs to one row, so scales need no spreading. A code stays in its place in the word: it is a power of two
//! times as large, and the scale is smaller by the same factor, which changes no bit.
//!
//! A cell starts with the heads, field by field, each field row by row. Bundles of words follow, each with codes of one row: code `i` of
//! bundle `j` of a set of eight bundles is that of column `8 · i + j` of the set. So a lane meets the columns in the same order as in a row
//! of blocks. A bundle's words follow each other, each for all rows.

use super::formats::{Format, Q4K, Q5K, Q6K};
use super::lanes::Lanes;

/// Number of elements of a block.
pub(super) const BLOCK: usize = 256;
/// Number of bundles in a set.
pub(super) const BUNDLES: usize = 8;
/// Number of bytes of a word.
const WORD: usize = 4;

/// What the groups of the blocks in a cell share, with a lane for each row.
pub(super) struct StripScales<S: Lanes> {
    /// The scale of each group.
    pub(super) scales: [S::V; 16],
    /// The offset of each group, added to a scale times a code.
    pub(super) offsets: [S::V; 16],
}

/// Part of a code that did not fit in one word: `(word >> shift) & mask` moves its bits to their place in the code.
pub(super) struct Piece {
    word: usize,
    shift: u32,
    mask: u32,
}

const fn piece(word: usize, shift: u32, mask: u32) -> Piece {
    Piece { word, shift, mask }
}

/// A layout of blocks that can be interleaved.
pub(super) trait StripFormat: Format {
    /// Number of words in a bundle.
    const WORDS: usize;
    /// Number of codes in a bundle.
    const CODES: usize;
    /// Number of elements that share a scale.
    const GROUP: usize;
    /// Number of bytes of each field of a head.
    const FIELDS: [usize; 5];
    /// The pieces of the last codes of a bundle.
    const IN_PIECES: &'static [[Piece; 3]];

    /// Number of bits of a code.
    const BITS: usize = 8 * WORD * Self::WORDS / Self::CODES;
    /// Number of whole codes in a word.
    const WHOLE: usize = 8 * WORD / Self::BITS;
    /// Number of bytes of a head.
    const HEAD: usize = Self::BYTES - BLOCK * Self::BITS / 8;

    /// Returns the head of a block, in the order of fields.
    fn head(block: &[u8]) -> [u8; 18];
    /// Returns the codes of a block.
    fn codes(block: &[u8]) -> [u8; BLOCK];
    /// Returns scales and offsets of `LANES` rows from row `first` on, of the `rows` of a cell.
    ///
    /// # Safety
    /// The cell is readable and has these rows; the CPU supports `S`.
    unsafe fn strip_scales<S: Lanes>(cell: *const u8, rows: usize, first: usize) -> StripScales<S>;
}

/// Number of bits by which code `i` of a bundle is shifted to the left when [`code`] returns it.
#[inline(always)]
pub(super) fn code_shift<F: StripFormat>(i: usize) -> u32 {
    let shift = F::BITS * (i % F::WHOLE);
    if i >= F::WORDS * F::WHOLE || shift + F::BITS == 8 * WORD { 0 } else { shift as u32 }
}

/// Returns code `i` of a bundle for all lanes, shifted to the left by [`code_shift`]; the bundle's words are `stride` bytes apart.
///
/// # Safety
/// The words are readable; the CPU supports `S`.
#[inline(always)]
pub(super) unsafe fn code<S: Lanes, F: StripFormat>(words: *const u8, stride: usize, i: usize) -> S::Codes {
    // SAFETY: upheld by the caller.
    unsafe {
        if i >= F::WORDS * F::WHOLE {
            let [a, b, c] = &F::IN_PIECES[i - F::WORDS * F::WHOLE];
            let (a, b, c) =
                (in_place::<S>(words, stride, a), in_place::<S>(words, stride, b), in_place::<S>(words, stride, c));
            return S::or(S::or(a, b), c);
        }
        let word = S::load_words(words.add(i / F::WHOLE * stride));
        let shift = (F::BITS * (i % F::WHOLE)) as u32;
        match code_shift::<F>(i) == shift {
            true => S::and(word, ((1 << F::BITS) - 1) << shift),
            // Shift the highest bits: in their place, they would make the number negative.
            false => S::shift_right(word, shift),
        }
    }
}

#[inline(always)]
unsafe fn in_place<S: Lanes>(words: *const u8, stride: usize, piece: &Piece) -> S::Codes {
    // SAFETY: upheld by the caller.
    unsafe { S::and(S::shift_right(S::load_words(words.add(piece.word * stride)), piece.shift), piece.mask) }
}

/// Returns word `w` of each of the eight bundles of a set with these codes.
fn words_of<F: StripFormat>(codes: &[u8], w: usize) -> [u32; BUNDLES] {
    let mut words = [0; BUNDLES];
    let mut add = |code: usize, mask: u32, shift: usize| {
        for (word, code) in words.iter_mut().zip(&codes[BUNDLES * code..][..BUNDLES]) {
            *word |= (u32::from(*code) & mask) << shift;
        }
    };
    for i in 0..F::WHOLE {
        add(w * F::WHOLE + i, u32::MAX, F::BITS * i);
    }
    for (i, pieces) in F::IN_PIECES.iter().enumerate() {
        for piece in pieces.iter().filter(|piece| piece.word == w) {
            add(F::WORDS * F::WHOLE + i, piece.mask, piece.shift as usize);
        }
    }
    words
}

/// Writes the cells of a strip; `blocks` are the blocks of its `rows`, row by row.
pub(super) fn write_strip<F: StripFormat>(blocks: &[u8], rows: usize, strip: &mut [u8]) {
    let row_bytes = blocks.len() / rows;
    for (r, row) in blocks.chunks_exact(row_bytes).enumerate() {
        for (block, cell) in row.chunks_exact(F::BYTES).zip(strip.chunks_exact_mut(rows * F::BYTES)) {
            write_block::<F>(block, rows, r, cell);
        }
    }
}

/// Writes a block as row `r` of a cell of `rows`.
fn write_block<F: StripFormat>(block: &[u8], rows: usize, r: usize, cell: &mut [u8]) {
    let (head, codes) = (F::head(block), F::codes(block));
    let mut begin = 0;
    for bytes in F::FIELDS {
        cell[rows * begin + bytes * r..][..bytes].copy_from_slice(&head[begin..begin + bytes]);
        begin += bytes;
    }
    let sets = cell[rows * F::HEAD..].chunks_exact_mut(BUNDLES * F::WORDS * rows * WORD);
    for (set, codes) in sets.zip(codes.chunks_exact(BUNDLES * F::CODES)) {
        for w in 0..F::WORDS {
            for (bundle, word) in words_of::<F>(codes, w).into_iter().enumerate() {
                let at = ((bundle * F::WORDS + w) * rows + r) * WORD;
                set[at..at + WORD].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Reads eight scales and eight offsets of each row, from heads as in [`Lanes::scales`].
///
/// # Safety
/// Like [`StripFormat::strip_scales`].
#[inline(always)]
unsafe fn scales_of_six_bits<S: Lanes>(cell: *const u8, rows: usize, first: usize) -> StripScales<S> {
    // SAFETY: upheld by the caller; fields of two and four bytes of all rows are read.
    unsafe {
        let of_scales = S::load_f16(cell.add(2 * first).cast());
        let of_offsets = S::mul(S::load_f16(cell.add(2 * (rows + first)).cast()), S::splat(-1.0));
        let words = cell.add(WORD * (rows + first));
        let (a, b) = (S::load_words(words), S::load_words(words.add(WORD * rows)));
        let c = S::load_words(words.add(2 * WORD * rows));
        let mut out = StripScales { scales: [of_scales; 16], offsets: [of_offsets; 16] };
        for i in 0..4 {
            let byte = 8 * i as u32;
            let (low, high) = (S::and(S::shift_right(a, byte), 63), S::and(S::shift_right(a, byte + 2), 48));
            out.scales[i] = S::mul(S::to_f32(low), of_scales);
            let code = S::or(S::and(S::shift_right(c, byte), 15), high);
            out.scales[4 + i] = S::mul(S::to_f32(code), of_scales);
            let (low, high) = (S::and(S::shift_right(b, byte), 63), S::and(S::shift_right(b, byte + 2), 48));
            out.offsets[i] = S::mul(S::to_f32(low), of_offsets);
            let code = S::or(S::and(S::shift_right(c, byte + 4), 15), high);
            out.offsets[4 + i] = S::mul(S::to_f32(code), of_offsets);
        }
        out
    }
}

/// Unpacks 4-bit codes: 64 in each 32 bytes, the first 32 in the lower halves.
fn four_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (codes, bytes) in codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        let (lower, upper) = codes.split_at_mut(32);
        for ((lower, upper), byte) in lower.iter_mut().zip(upper).zip(bytes) {
            (*lower, *upper) = (byte & 15, byte >> 4);
        }
    }
    codes
}

fn head_of_six_bits(block: &[u8]) -> [u8; 18] {
    std::array::from_fn(|i| if i < 16 { block[i] } else { 0 })
}

impl StripFormat for Q4K {
    const WORDS: usize = 1;
    const CODES: usize = 8;
    const GROUP: usize = 32;
    const FIELDS: [usize; 5] = [2, 2, 4, 4, 4];
    const IN_PIECES: &'static [[Piece; 3]] = &[];

    fn head(block: &[u8]) -> [u8; 18] {
        head_of_six_bits(block)
    }

    fn codes(block: &[u8]) -> [u8; BLOCK] {
        four_bits(&block[16..])
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Lanes>(cell: *const u8, rows: usize, first: usize) -> StripScales<S> {
        // SAFETY: upheld by the caller.
        unsafe { scales_of_six_bits(cell, rows, first) }
    }
}

impl StripFormat for Q5K {
    const WORDS: usize = 5;
    const CODES: usize = 32;
    const GROUP: usize = 32;
    const FIELDS: [usize; 5] = [2, 2, 4, 4, 4];
    const IN_PIECES: &'static [[Piece; 3]] =
        &[[piece(0, 30, 3), piece(1, 28, 12), piece(2, 26, 16)], [piece(3, 30, 3), piece(4, 28, 12), piece(2, 27, 16)]];

    fn head(block: &[u8]) -> [u8; 18] {
        head_of_six_bits(block)
    }

    fn codes(block: &[u8]) -> [u8; BLOCK] {
        let mut codes = four_bits(&block[48..]);
        for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, fifths) in codes.iter_mut().zip(&block[16..48]) {
                *code |= (fifths >> group & 1) << 4;
            }
        }
        codes
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Lanes>(cell: *const u8, rows: usize, first: usize) -> StripScales<S> {
        // SAFETY: upheld by the caller.
        unsafe { scales_of_six_bits(cell, rows, first) }
    }
}

impl StripFormat for Q6K {
    const WORDS: usize = 3;
    const CODES: usize = 16;
    const GROUP: usize = 16;
    const FIELDS: [usize; 5] = [4, 4, 4, 4, 2];
    const IN_PIECES: &'static [[Piece; 3]] = &[[piece(0, 30, 3), piece(1, 28, 12), piece(2, 26, 48)]];

    /// Scales are stored plus 128, which makes them unsigned.
    fn head(block: &[u8]) -> [u8; 18] {
        std::array::from_fn(|i| if i < 16 { block[192 + i] ^ 128 } else { block[192 + i] })
    }

    fn codes(block: &[u8]) -> [u8; BLOCK] {
        let mut codes = [0; BLOCK];
        for (at, codes) in codes.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (at / 4, at % 4);
            let (lower, higher) = (&block[64 * half + 32 * (quarter % 2)..], &block[128 + 32 * half..]);
            for ((code, lower), higher) in codes.iter_mut().zip(lower).zip(higher) {
                *code = lower >> (quarter / 2 * 4) & 15 | (higher >> (2 * quarter) & 3) << 4;
            }
        }
        codes
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Lanes>(cell: *const u8, rows: usize, first: usize) -> StripScales<S> {
        // SAFETY: upheld by the caller; four words and two bytes of all rows are read.
        unsafe {
            let of_scales = S::load_f16(cell.add(16 * rows + 2 * first).cast());
            let mut out = StripScales { scales: [of_scales; 16], offsets: [of_scales; 16] };
            for i in 0..16 {
                let word = S::load_words(cell.add(WORD * (i / 4 * rows + first)));
                let own = S::and(S::shift_right(word, 8 * (i % 4) as u32), 255);
                out.scales[i] = S::mul(S::to_f32(S::subtract(own, 128)), of_scales);
                // Codes are centred on 32: (code - 32) · scale has at most 24 significant bits, as has each part.
                out.offsets[i] = S::mul(out.scales[i], S::splat(-32.0));
            }
            out
        }
    }
}
