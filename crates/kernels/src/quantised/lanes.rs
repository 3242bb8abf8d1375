//! Vectors of codes, beside the vectors of f32 of [`Simd`]: loading bytes, taking bits out of them, and turning codes into numbers.

use half::f16;

use crate::simd::{Portable, Simd};

/// What the groups of a larger block share: eight scales and eight offsets, or sixteen scales. They are in one line of the cache, from where
/// each is read into all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct GroupScales(pub(super) [f32; 16]);

/// Operations on vectors of `LANES` codes of 32 bits.
///
/// # Safety
/// As for [`Simd`]: the CPU supports the implementing type's instructions, and pointers are readable for as many bytes as are loaded.
pub(super) trait Lanes: Simd {
    /// A vector of `LANES` codes.
    type Codes: Copy;
    /// What turns codes of four bits into numbers.
    type Table: Copy;

    /// `LANES` unsigned bytes.
    unsafe fn load_u8(ptr: *const u8) -> Self::Codes;
    /// `LANES` signed bytes.
    unsafe fn load_i8(ptr: *const u8) -> Self::Codes;
    /// The codes, of which the compiler is to know nothing: it would widen bytes a second time to take out other bits of them.
    #[inline(always)]
    unsafe fn held(codes: Self::Codes) -> Self::Codes {
        codes
    }
    /// Shifts all codes; bits that come in are zero.
    unsafe fn shift_right(codes: Self::Codes, bits: u32) -> Self::Codes;
    unsafe fn shift_left(codes: Self::Codes, bits: u32) -> Self::Codes;
    unsafe fn and(codes: Self::Codes, mask: u32) -> Self::Codes;
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes;
    unsafe fn subtract(codes: Self::Codes, number: i32) -> Self::Codes;
    /// `value` in the lanes whose bit of `bits` is set, the first lane's lowest; 0 in the others.
    unsafe fn spread(bits: u32, value: u32) -> Self::Codes;
    /// Codes as signed numbers.
    unsafe fn to_f32(codes: Self::Codes) -> Self::V;
    /// The f16 at `ptr`, two bytes that need not be aligned, in all lanes.
    unsafe fn splat_f16(ptr: *const u8) -> Self::V;
    /// Of codes that stand for `scale · code + offset`.
    unsafe fn table(scale: Self::V, offset: Self::V) -> Self::Table;
    /// The numbers of the lowest four bits of `codes`; higher bits do not matter.
    unsafe fn look_up(table: Self::Table, codes: Self::Codes) -> Self::V;
    /// Unsigned bytes as numbers, the first half times `first`, the others times `second`.
    unsafe fn scales(bytes: [u8; 16], first: Self::V, second: Self::V) -> GroupScales;
}

impl Lanes for Portable {
    type Codes = [u32; 8];
    type Table = (Self::V, Self::V);

    #[inline(always)]
    unsafe fn load_u8(ptr: *const u8) -> Self::Codes {
        // SAFETY: caller's contract: 8 readable bytes.
        unsafe { ptr.cast::<[u8; 8]>().read_unaligned() }.map(u32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(ptr: *const u8) -> Self::Codes {
        // SAFETY: caller's contract: 8 readable bytes.
        unsafe { ptr.cast::<[i8; 8]>().read_unaligned() }.map(|byte| i32::from(byte).cast_unsigned())
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
        [f16::from_le_bytes(bytes).to_f32(); 8]
    }
    #[inline(always)]
    unsafe fn table(scale: Self::V, offset: Self::V) -> Self::Table {
        (scale, offset)
    }
    #[inline(always)]
    unsafe fn look_up((scale, offset): Self::Table, codes: Self::Codes) -> Self::V {
        // SAFETY: value operations only (caller's contract).
        unsafe { Self::fma(Self::to_f32(Self::and(codes, 15)), scale, offset) }
    }
    #[inline(always)]
    unsafe fn scales(bytes: [u8; 16], first: Self::V, second: Self::V) -> GroupScales {
        GroupScales(std::array::from_fn(|i| f32::from(bytes[i]) * if i < 8 { first[0] } else { second[0] }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use crate::quantised::lanes::{GroupScales, Lanes};
    use crate::simd::{Avx2, Avx512, Simd};

    // SAFETY of every block below: register-only intrinsics of AVX-512F, or unaligned loads of as many bytes as the vector has lanes
    // (or of those of one f16) through a pointer the caller vouches for (trait contract); stores go to local arrays of their size.
    impl Lanes for Avx512 {
        type Codes = __m512i;
        /// The numbers of all sixteen codes.
        type Table = __m512;

        #[inline(always)]
        unsafe fn load_u8(ptr: *const u8) -> __m512i {
            unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn load_i8(ptr: *const u8) -> __m512i {
            unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn held(codes: __m512i) -> __m512i {
            unsafe { held(codes) }
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
        unsafe fn look_up(table: __m512, codes: __m512i) -> __m512 {
            // The instruction takes the lowest four bits of each lane.
            unsafe { _mm512_permutexvar_ps(codes, table) }
        }
        #[inline(always)]
        unsafe fn scales(bytes: [u8; 16], first: __m512, second: __m512) -> GroupScales {
            unsafe {
                let factors = _mm512_mask_blend_ps(0xFF00, first, second);
                let mut out = GroupScales([0.0; 16]);
                Self::store(out.0.as_mut_ptr(), Self::mul(Self::to_f32(Self::load_u8(bytes.as_ptr())), factors));
                out
            }
        }
    }

    /// A vector that an instruction may have changed, for all that the compiler knows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn held(codes: __m512i) -> __m512i {
        let out;
        // SAFETY: there is no instruction.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(zmm_reg) codes => out, options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    // SAFETY of every block below: as above, with AVX2, FMA and F16C.
    impl Lanes for Avx2 {
        type Codes = __m256i;
        type Table = (__m256, __m256);

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
        unsafe fn look_up((scale, offset): Self::Table, codes: __m256i) -> __m256 {
            unsafe { Self::fma(Self::to_f32(Self::and(codes, 15)), scale, offset) }
        }
        #[inline(always)]
        unsafe fn scales(bytes: [u8; 16], first: __m256, second: __m256) -> GroupScales {
            unsafe {
                let mut out = GroupScales([0.0; 16]);
                let (low, high) = (bytes.as_ptr(), bytes.as_ptr().add(Self::LANES));
                Self::store(out.0.as_mut_ptr(), Self::mul(Self::to_f32(Self::load_u8(low)), first));
                Self::store(out.0.as_mut_ptr().add(Self::LANES), Self::mul(Self::to_f32(Self::load_u8(high)), second));
                out
            }
        }
    }
}
