//! Vectors of codes, in addition to the vectors of f32 of [`Simd`]: loading bytes, extracting bits, and turning codes into numbers.

use half::f16;

use crate::simd::{Portable, PortableLanes, Simd};

/// What the groups of a larger block share: eight scales and eight offsets, or sixteen scales. They are in one cache line, from which each
/// is loaded into all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct GroupScales(pub(super) [f32; 16]);

/// Operations on vectors of `LANES` 32-bit codes.
///
/// # Safety
/// Like [`Simd`]: the CPU supports the implementing type's instructions, and pointers are readable for as many bytes as are loaded.
pub(super) trait Lanes: Simd {
    /// A vector of `LANES` codes.
    type Codes: Copy;
    /// A table that turns 4-bit codes into numbers.
    type Table: Copy;
    /// The eight-lane version of the same instructions.
    type Eight: Lanes;

    /// Loads `LANES` codes of 32 bits, the lowest byte first.
    unsafe fn load_words(ptr: *const u8) -> Self::Codes;

    /// Loads `LANES` unsigned bytes.
    unsafe fn load_u8(ptr: *const u8) -> Self::Codes;
    /// Loads `LANES` signed bytes.
    unsafe fn load_i8(ptr: *const u8) -> Self::Codes;
    /// Shifts all codes to the right; bits that come in are zero.
    unsafe fn shift_right(codes: Self::Codes, bits: u32) -> Self::Codes;
    unsafe fn shift_left(codes: Self::Codes, bits: u32) -> Self::Codes;
    unsafe fn and(codes: Self::Codes, mask: u32) -> Self::Codes;
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes;
    unsafe fn subtract(codes: Self::Codes, number: i32) -> Self::Codes;
    /// Returns `value` in the lanes whose bit of `bits` is set, the first lane's lowest; 0 in the others.
    unsafe fn spread(bits: u32, value: u32) -> Self::Codes;
    /// Converts codes as signed numbers.
    unsafe fn to_f32(codes: Self::Codes) -> Self::V;
    /// Loads the f16 at `ptr`, two bytes that need not be aligned, into all lanes.
    unsafe fn splat_f16(ptr: *const u8) -> Self::V;
    /// Makes a table that turns a 4-bit code into `scale · code + offset`.
    unsafe fn table(scale: Self::V, offset: Self::V) -> Self::Table;
    /// Like [`table`](Self::table), for codes in the upper halves of bytes.
    unsafe fn upper_table(scale: Self::V, offset: Self::V) -> Self::Table;
    /// Returns the numbers of the lowest four bits of `codes`; higher bits do not matter.
    unsafe fn look_up(table: Self::Table, codes: Self::Codes) -> Self::V;
    /// Returns the numbers of the upper four bits of `codes`, which are bytes; `table` is an [`upper_table`](Self::upper_table).
    unsafe fn look_up_upper(table: Self::Table, codes: Self::Codes) -> Self::V;
    /// Reads the scales and offsets in the heads of `N` blocks, 16 bytes each. Offsets are returned negative, so that they can be added.
    ///
    /// A head starts with two f16, the scale of scales and that of offsets. 12 bytes follow. The lower six bits of bytes 0 to 3 are the
    /// first four scales, those of bytes 4 to 7 the first four offsets. Halves of bytes 8 to 11 are the lower four bits of the other scales
    /// and offsets, whose higher two bits are the remaining bits of bytes 0 to 7.
    #[inline(always)]
    unsafe fn scales<const N: usize>(heads: [*const u8; N]) -> [GroupScales; N] {
        let mut scales = [GroupScales([0.0; 16]); N];
        for (scales, head) in scales.iter_mut().zip(heads) {
            // SAFETY: upheld by the caller, for each head.
            *scales = unsafe { Self::scales_of_one(head) };
        }
        scales
    }
    /// Reads the [`scales`](Self::scales) of one block.
    unsafe fn scales_of_one(head: *const u8) -> GroupScales;
}

/// Returns the codes of eight scales, and those of eight offsets, in byte order, from a head as in [`Lanes::scales`].
///
/// # Safety
/// 16 bytes are readable at `head`.
#[inline(always)]
unsafe fn scale_codes(head: *const u8) -> [u64; 2] {
    // SAFETY: bytes 4 to 15 are read (caller).
    let [a, b, c] = unsafe { head.add(4).cast::<[[u8; 4]; 3]>().read_unaligned() }.map(u32::from_le_bytes);
    let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let scales = word(a & SIX_BITS, c & FOUR_BITS | a >> 2 & NEXT_BITS);
    let offsets = word(b & SIX_BITS, c >> 4 & FOUR_BITS | b >> 2 & NEXT_BITS);
    [scales, offsets]
}

/// Masks of the lower six bits of each byte of a word, of the lower four, and of the two above these.
const SIX_BITS: u32 = 0x3F3F_3F3F;
const FOUR_BITS: u32 = 0x0F0F_0F0F;
const NEXT_BITS: u32 = 0x3030_3030;

impl<const N: usize> Lanes for PortableLanes<N> {
    type Codes = [u32; N];
    type Table = (Self::V, Self::V);
    type Eight = Portable;

    #[inline(always)]
    unsafe fn load_words(ptr: *const u8) -> Self::Codes {
        // SAFETY: caller's contract: `N` readable words.
        unsafe { ptr.cast::<[[u8; 4]; N]>().read_unaligned() }.map(u32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn load_u8(ptr: *const u8) -> Self::Codes {
        // SAFETY: caller's contract: `N` readable bytes.
        unsafe { ptr.cast::<[u8; N]>().read_unaligned() }.map(u32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(ptr: *const u8) -> Self::Codes {
        // SAFETY: caller's contract: `N` readable bytes.
        unsafe { ptr.cast::<[i8; N]>().read_unaligned() }.map(|byte| i32::from(byte).cast_unsigned())
    }
    #[inline(always)]
    unsafe fn shift_right(codes: Self::Codes, bits: u32) -> Self::Codes {
        codes.map(|code| code >> bits)
    }
    #[inline(always)]
    unsafe fn shift_left(codes: Self::Codes, bits: u32) -> Self::Codes {
        codes.map(|code| code << bits)
    }
    #[inline(always)]
    unsafe fn and(codes: Self::Codes, mask: u32) -> Self::Codes {
        codes.map(|code| code & mask)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn subtract(codes: Self::Codes, number: i32) -> Self::Codes {
        codes.map(|code| code.wrapping_sub(number.cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn spread(bits: u32, value: u32) -> Self::Codes {
        std::array::from_fn(|i| (bits >> i & 1) * value)
    }
    #[inline(always)]
    unsafe fn to_f32(codes: Self::Codes) -> Self::V {
        codes.map(|code| code.cast_signed() as f32)
    }
    #[inline(always)]
    unsafe fn splat_f16(ptr: *const u8) -> Self::V {
        // SAFETY: caller's contract: 2 readable bytes.
        let bytes = unsafe { ptr.cast::<[u8; 2]>().read_unaligned() };
        [f16::from_le_bytes(bytes).to_f32(); N]
    }
    #[inline(always)]
    unsafe fn table(scale: Self::V, offset: Self::V) -> Self::Table {
        (scale, offset)
    }
    #[inline(always)]
    unsafe fn upper_table(scale: Self::V, offset: Self::V) -> Self::Table {
        // Upper halves are not shifted, so they are 16 times as large.
        (scale.map(|scale| scale * (1.0 / 16.0)), offset)
    }
    #[inline(always)]
    unsafe fn look_up((scale, offset): Self::Table, codes: Self::Codes) -> Self::V {
        // SAFETY: value operations only (caller's contract).
        unsafe { Self::fma(Self::to_f32(Self::and(codes, 15)), scale, offset) }
    }
    #[inline(always)]
    unsafe fn look_up_upper((scale, offset): Self::Table, codes: Self::Codes) -> Self::V {
        // SAFETY: value operations only (caller's contract).
        unsafe { Self::fma(Self::to_f32(Self::and(codes, 0xF0)), scale, offset) }
    }
    #[inline(always)]
    unsafe fn scales_of_one(head: *const u8) -> GroupScales {
        // SAFETY: caller's contract: 16 readable bytes.
        let (codes, of) = unsafe { (scale_codes(head), [Self::splat_f16(head)[0], -Self::splat_f16(head.add(2))[0]]) };
        GroupScales(std::array::from_fn(|i| (codes[i / 8] >> (8 * (i % 8)) & 0xFF) as f32 * of[i / 8]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use crate::quantised::lanes::{FOUR_BITS, GroupScales, Lanes, NEXT_BITS, SIX_BITS, scale_codes};
    use crate::simd::{Avx2, Avx512, Simd};

    // SAFETY of every block below: register-only intrinsics of AVX-512F, or unaligned loads of as many bytes as the vector has lanes
    // (or of those of one f16) through a pointer the caller vouches for (trait contract); stores go to local arrays of their size.
    impl Lanes for Avx512 {
        type Codes = __m512i;
        /// The numbers of all sixteen codes.
        type Table = __m512;
        type Eight = Avx2;

        #[inline(always)]
        unsafe fn load_words(ptr: *const u8) -> __m512i {
            unsafe { _mm512_loadu_si512(ptr.cast()) }
        }
        #[inline(always)]
        unsafe fn load_u8(ptr: *const u8) -> __m512i {
            unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn load_i8(ptr: *const u8) -> __m512i {
            unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn shift_right(codes: __m512i, bits: u32) -> __m512i {
            unsafe { _mm512_srl_epi32(codes, _mm_cvtsi32_si128(bits.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn shift_left(codes: __m512i, bits: u32) -> __m512i {
            unsafe { _mm512_sll_epi32(codes, _mm_cvtsi32_si128(bits.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn and(codes: __m512i, mask: u32) -> __m512i {
            unsafe { _mm512_and_si512(codes, _mm512_set1_epi32(mask.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
            unsafe { _mm512_or_si512(a, b) }
        }
        #[inline(always)]
        unsafe fn subtract(codes: __m512i, number: i32) -> __m512i {
            unsafe { _mm512_sub_epi32(codes, _mm512_set1_epi32(number)) }
        }
        #[inline(always)]
        unsafe fn spread(bits: u32, value: u32) -> __m512i {
            unsafe { _mm512_maskz_mov_epi32(bits as u16, _mm512_set1_epi32(value.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn to_f32(codes: __m512i) -> __m512 {
            unsafe { _mm512_cvtepi32_ps(codes) }
        }
        #[inline(always)]
        unsafe fn splat_f16(ptr: *const u8) -> __m512 {
            unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(ptr.cast::<i16>().read_unaligned())) }
        }
        #[inline(always)]
        unsafe fn table(scale: __m512, offset: __m512) -> __m512 {
            unsafe {
                let all = _mm512_setr_ps(
                    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
                );
                Self::fma(all, scale, offset)
            }
        }
        #[inline(always)]
        unsafe fn upper_table(scale: __m512, offset: __m512) -> __m512 {
            unsafe { Self::table(scale, offset) }
        }
        #[inline(always)]
        unsafe fn look_up(table: __m512, codes: __m512i) -> __m512 {
            // The instruction uses the lowest four bits of each lane.
            unsafe { _mm512_permutexvar_ps(codes, table) }
        }
        #[inline(always)]
        unsafe fn look_up_upper(table: __m512, codes: __m512i) -> __m512 {
            // Hide the codes from the compiler, which would otherwise shift bytes and widen them a second time.
            unsafe { _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(held(codes)), table) }
        }
        #[inline(always)]
        unsafe fn scales<const N: usize>(heads: [*const u8; N]) -> [GroupScales; N] {
            let mut out = [GroupScales([0.0; 16]); N];
            for first in (0..N).step_by(4) {
                let head = |i: usize| heads[(first + i).min(N - 1)];
                let four = unsafe { scales_of_four([head(0), head(1), head(2), head(3)]) };
                for (out, scales) in out[first..].iter_mut().zip(four) {
                    unsafe { Self::store(out.0.as_mut_ptr(), scales) };
                }
            }
            out
        }
        #[inline(always)]
        unsafe fn scales_of_one(head: *const u8) -> GroupScales {
            let [scales] = unsafe { Self::scales([head]) };
            scales
        }
    }

    /// [`Lanes::scales`] of four blocks: moves the bits of all codes at the same time.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn scales_of_four(heads: [*const u8; 4]) -> [__m512; 4] {
        // SAFETY: 16 bytes are readable at each head (caller).
        unsafe {
            let heads = heads.map(|head| _mm_loadu_si128(head.cast()));
            let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(heads[0]), heads[1]);
            let all = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, heads[2]), heads[3]);
            // Of the words a, b and c after the two f16: a and c have the lower six or four bits of scales, b and c those of offsets.
            let lower = _mm512_srlv_epi32(_mm512_shuffle_epi32::<0b11_10_11_01>(all), each(0, 0, 0, 4));
            let lower = _mm512_and_si512(lower, each(SIX_BITS, FOUR_BITS, SIX_BITS, FOUR_BITS));
            // The remaining bits of a and b.
            let higher = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(all));
            /// The truth table of `a | b & c`.
            const OR_AND: i32 = 0b1111_1000;
            let codes = _mm512_ternarylogic_epi32::<OR_AND>(lower, higher, each(0, NEXT_BITS, 0, NEXT_BITS));
            // The two f16 of each head, one after the other; the second of each negated.
            let halves =
                _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), all);
            let halves = _mm512_xor_si512(halves, _mm512_set1_epi32(i32::MIN));
            let of = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
            let eight = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let number = |codes: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
            let of_block = |two: i32| _mm512_permutexvar_ps(_mm512_add_epi32(eight, _mm512_set1_epi32(two)), of);
            [
                _mm512_mul_ps(number(_mm512_castsi512_si128(codes)), of_block(0)),
                _mm512_mul_ps(number(_mm512_extracti32x4_epi32::<1>(codes)), of_block(2)),
                _mm512_mul_ps(number(_mm512_extracti32x4_epi32::<2>(codes)), of_block(4)),
                _mm512_mul_ps(number(_mm512_extracti32x4_epi32::<3>(codes)), of_block(6)),
            ]
        }
    }

    /// Repeats four words in each 16 bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn each(a: u32, b: u32, c: u32, d: u32) -> __m512i {
        _mm512_set4_epi32(d.cast_signed(), c.cast_signed(), b.cast_signed(), a.cast_signed())
    }

    /// Returns the same vector, which the compiler must assume to have changed.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn held(codes: __m512i) -> __m512i {
        let out;
        // SAFETY: the assembly is a comment, without instructions.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(zmm_reg) codes => out, options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    // SAFETY of every block below: as for `Avx512`, with AVX2, FMA and F16C.
    impl Lanes for Avx2 {
        type Codes = __m256i;
        type Table = (__m256, __m256);
        type Eight = Self;

        #[inline(always)]
        unsafe fn load_words(ptr: *const u8) -> __m256i {
            unsafe { _mm256_loadu_si256(ptr.cast()) }
        }
        #[inline(always)]
        unsafe fn load_u8(ptr: *const u8) -> __m256i {
            unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn load_i8(ptr: *const u8) -> __m256i {
            unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn shift_right(codes: __m256i, bits: u32) -> __m256i {
            unsafe { _mm256_srl_epi32(codes, _mm_cvtsi32_si128(bits.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn shift_left(codes: __m256i, bits: u32) -> __m256i {
            unsafe { _mm256_sll_epi32(codes, _mm_cvtsi32_si128(bits.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn and(codes: __m256i, mask: u32) -> __m256i {
            unsafe { _mm256_and_si256(codes, _mm256_set1_epi32(mask.cast_signed())) }
        }
        #[inline(always)]
        unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_or_si256(a, b) }
        }
        #[inline(always)]
        unsafe fn subtract(codes: __m256i, number: i32) -> __m256i {
            unsafe { _mm256_sub_epi32(codes, _mm256_set1_epi32(number)) }
        }
        #[inline(always)]
        unsafe fn spread(bits: u32, value: u32) -> __m256i {
            unsafe {
                let own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                let set = _mm256_and_si256(_mm256_set1_epi32(bits.cast_signed()), own);
                _mm256_and_si256(_mm256_cmpeq_epi32(set, own), _mm256_set1_epi32(value.cast_signed()))
            }
        }
        #[inline(always)]
        unsafe fn to_f32(codes: __m256i) -> __m256 {
            unsafe { _mm256_cvtepi32_ps(codes) }
        }
        #[inline(always)]
        unsafe fn splat_f16(ptr: *const u8) -> __m256 {
            unsafe { _mm256_cvtph_ps(_mm_set1_epi16(ptr.cast::<i16>().read_unaligned())) }
        }
        #[inline(always)]
        unsafe fn table(scale: __m256, offset: __m256) -> Self::Table {
            (scale, offset)
        }
        #[inline(always)]
        unsafe fn upper_table(scale: __m256, offset: __m256) -> Self::Table {
            // Upper halves are not shifted, so they are 16 times as large.
            unsafe { (Self::mul(scale, Self::splat(1.0 / 16.0)), offset) }
        }
        #[inline(always)]
        unsafe fn look_up((scale, offset): Self::Table, codes: __m256i) -> __m256 {
            unsafe { Self::fma(Self::to_f32(Self::and(codes, 15)), scale, offset) }
        }
        #[inline(always)]
        unsafe fn look_up_upper((scale, offset): Self::Table, codes: __m256i) -> __m256 {
            unsafe { Self::fma(Self::to_f32(Self::and(codes, 0xF0)), scale, offset) }
        }
        #[inline(always)]
        unsafe fn scales_of_one(head: *const u8) -> GroupScales {
            unsafe {
                let [scales, offsets] = scale_codes(head);
                let scales = Self::to_f32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(scales.cast_signed())));
                let offsets = Self::to_f32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(offsets.cast_signed())));
                let of_offsets = _mm256_xor_ps(Self::splat_f16(head.add(2)), Self::splat(-0.0));
                let mut out = GroupScales([0.0; 16]);
                Self::store(out.0.as_mut_ptr(), Self::mul(scales, Self::splat_f16(head)));
                Self::store(out.0.as_mut_ptr().add(Self::LANES), Self::mul(offsets, of_offsets));
                out
            }
        }
    }
}
