//! The vector types that kernels are generic over, and the choice of one at run time.
//!
//! A kernel is one generic `#[inline(always)]` function over [`Simd`]. [`dispatch!`] compiles it for AVX-512, for AVX2 + FMA + F16C, and as
//! portable code, and calls the best one that the CPU supports.
//!
//! The file is long because the versions of each operation for all instruction sets are in one place, where they can be compared.

use std::sync::OnceLock;

use spattn_base::error::UsageError;

/// Vectors of f32, and of f64, with the operations that kernels need.
///
/// # Safety
/// All functions may be called only on a CPU that supports the implementing type's instructions;
/// those that take pointers need `LANES` readable (or writable) elements there.
pub trait Simd: Copy + 'static {
    /// A vector of `LANES` f32.
    type V: Copy;
    /// A vector of `LANES / 2` f64.
    type W: Copy;
    const LANES: usize;
    /// Number of rows of A in the register tile of the blocked product.
    const TILE_ROWS: usize;
    /// Number of rows multiplied with four others at once: as many as registers allow for sums and factors.
    const DOT_ROWS: usize;
    /// Like `DOT_ROWS`, if the four others need not be widened, so that a factor is read from memory where it is used.
    const PANEL_ROWS: usize;
    /// Number of vectors across B in the register tile.
    const TILE_VECTORS: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(ptr: *const f32) -> Self::V;
    unsafe fn load_f16(ptr: *const u16) -> Self::V;
    unsafe fn load_bf16(ptr: *const u16) -> Self::V;
    /// Loads `LANES` bytes of codes of `8 / PER_BYTE` bits, lowest bits first. Vector `i` holds the `i`-th code of each byte.
    unsafe fn load_codes<const PER_BYTE: usize>(ptr: *const u8) -> [Self::V; PER_BYTE];
    /// Interleaves two vectors: first their lower halves, then their upper halves.
    unsafe fn interleave(a: Self::V, b: Self::V) -> [Self::V; 2];
    unsafe fn store(ptr: *mut f32, v: Self::V);
    /// Computes `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn splat_wide(x: f64) -> Self::W;
    /// Loads `LANES / 2` f64.
    unsafe fn load_wide(ptr: *const f64) -> Self::W;
    /// Stores `LANES / 2` f64.
    unsafe fn store_wide(ptr: *mut f64, w: Self::W);
    unsafe fn add_wide(a: Self::W, b: Self::W) -> Self::W;
    unsafe fn mul_wide(a: Self::W, b: Self::W) -> Self::W;
    unsafe fn sum(v: Self::V) -> f32;
    /// Returns the sums of four vectors, with the same bits as [`sum`](Self::sum).
    #[inline(always)]
    unsafe fn sum_each(v: [Self::V; 4]) -> [f32; 4] {
        // No closures: a closure that is not inlined would be compiled without these instructions.
        // SAFETY: value operations only (caller's contract).
        unsafe { [Self::sum(v[0]), Self::sum(v[1]), Self::sum(v[2]), Self::sum(v[3])] }
    }
    /// Returns the sums of sixteen vectors, with the same bits as [`sum`](Self::sum).
    #[inline(always)]
    unsafe fn sum_all(v: [[Self::V; 4]; 4]) -> [[f32; 4]; 4] {
        // SAFETY: value operations only (caller's contract).
        unsafe { [Self::sum_each(v[0]), Self::sum_each(v[1]), Self::sum_each(v[2]), Self::sum_each(v[3])] }
    }
    /// Writes the lanes of `v` whose bit in `mask` is set to `kept`, without gaps, and their lane numbers plus `first` to `places`.
    ///
    /// # Safety
    /// `LANES` elements are writable at both pointers, whatever the mask.
    #[inline(always)]
    unsafe fn keep(mask: u32, v: Self::V, first: u32, kept: *mut f32, places: *mut u32) {
        let mut lanes = [0.0f32; 16];
        // SAFETY: there are at most sixteen lanes, and one element is written for each bit set (caller).
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            let (mut left, mut at) = (mask, 0);
            while left != 0 {
                let lane = left.trailing_zeros();
                *kept.add(at) = lanes[lane as usize & 15];
                *places.add(at) = first + lane;
                (left, at) = (left & (left - 1), at + 1);
            }
        }
    }
    /// Prefetches the cache line at `ptr`, which may be invalid, to the second-level cache. The first level's few pending requests stay
    /// free for the reads themselves.
    #[inline(always)]
    unsafe fn prefetch<T>(_ptr: *const T) {}
    unsafe fn maximum(v: Self::V) -> f32;
    /// Returns `2^n · p`, for integral `n` in -126..=127.
    unsafe fn scale_by_power_of_two(p: Self::V, n: Self::V) -> Self::V;
    /// Rounds to the nearest integer.
    unsafe fn round(v: Self::V) -> Self::V;

    /// Returns `e^x` for `x <= 88`, to about 2 units in the last place; 0 below -87.3 (so for `-inf`).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // SAFETY: value operations only, on a CPU that supports `Self` (caller's contract).
        unsafe {
            const LOWEST: f32 = -87.3;
            let clamped = Self::max(x, Self::splat(LOWEST));
            let n = Self::round(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, to keep the reduced argument precise.
            let r = Self::fma(n, Self::splat(-0.693_359_4), clamped);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = Self::fma(p, r, Self::splat(c));
            }
            let r2 = Self::mul(r, r);
            let e = Self::add(Self::fma(p, r2, r), Self::splat(1.0));
            let e = Self::scale_by_power_of_two(e, n);
            Self::zero_below(x, Self::splat(LOWEST), e)
        }
    }
    /// Returns `2^x` for `x <= 127`, with a relative error below 3e-6; 0 below -126 (so for `-inf`).
    #[inline(always)]
    unsafe fn exp2_rough(x: Self::V) -> Self::V {
        // SAFETY: value operations only, on a CPU that supports `Self` (caller's contract).
        unsafe {
            let lowest = Self::splat(-126.0);
            let clamped = Self::max(x, lowest);
            let n = Self::round(clamped);
            let r = Self::fma(n, Self::splat(-1.0), clamped);
            // The fourth-degree polynomial with the smallest maximum relative error on [-1/2, 1/2].
            let mut p = Self::splat(9.570_099e-3);
            for c in [5.591_786e-2, 0.240_247_44, 0.693_121_8, 0.999_999_3] {
                p = Self::fma(p, r, Self::splat(c));
            }
            Self::zero_below(x, lowest, Self::scale_by_power_of_two(p, n))
        }
    }
    /// Returns `v` where `x >= bound`, else 0.
    unsafe fn zero_below(x: Self::V, bound: Self::V, v: Self::V) -> Self::V;
    /// Returns one bit for each lane, the first lane's bit lowest: 1 where `v > 0`.
    unsafe fn positive(v: Self::V) -> u32;
}

/// Portable fallback, vectorised by the compiler where it can. With a number of lanes other than eight, tests sum in the same order as
/// processors with vectors of that width.
#[derive(Clone, Copy)]
pub struct PortableLanes<const N: usize>;

/// The portable fallback with its eight lanes.
pub type Portable = PortableLanes<8>;

impl<const N: usize> Simd for PortableLanes<N> {
    type V = [f32; N];
    /// Only half of the array is used, because an array's length cannot be computed from `N`.
    type W = [f64; N];
    const LANES: usize = N;
    const TILE_ROWS: usize = 4;
    const DOT_ROWS: usize = 4;
    const PANEL_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(ptr: *const f32) -> Self::V {
        // SAFETY: caller's contract: `N` readable elements; the read is unaligned.
        unsafe { ptr.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(ptr: *const u16) -> Self::V {
        // SAFETY: caller's contract: `N` readable elements; the read is unaligned.
        let raw = unsafe { ptr.cast::<[u16; N]>().read_unaligned() };
        raw.map(|x| half::f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u16) -> Self::V {
        // SAFETY: caller's contract: `N` readable elements; the read is unaligned.
        let raw = unsafe { ptr.cast::<[u16; N]>().read_unaligned() };
        raw.map(|x| f32::from_bits((x as u32) << 16))
    }
    #[inline(always)]
    unsafe fn load_codes<const PER_BYTE: usize>(ptr: *const u8) -> [Self::V; PER_BYTE] {
        // SAFETY: caller's contract: `N` readable bytes; the read is unaligned.
        let bytes = unsafe { ptr.cast::<[u8; N]>().read_unaligned() };
        let bits = 8 / PER_BYTE;
        std::array::from_fn(|i| bytes.map(|byte| f32::from(byte >> (i * bits) & ((1 << bits) - 1))))
    }
    #[inline(always)]
    unsafe fn interleave(a: Self::V, b: Self::V) -> [Self::V; 2] {
        let pair = |i: usize| if i.is_multiple_of(2) { a[i / 2] } else { b[i / 2] };
        [std::array::from_fn(pair), std::array::from_fn(|i| pair(N + i))]
    }
    #[inline(always)]
    unsafe fn store(ptr: *mut f32, v: Self::V) {
        // SAFETY: caller's contract: `N` writable elements; the write is unaligned.
        unsafe { ptr.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn splat_wide(x: f64) -> Self::W {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load_wide(ptr: *const f64) -> Self::W {
        // SAFETY: caller's contract: `N / 2` readable elements; the reads are unaligned.
        std::array::from_fn(|i| if i < N / 2 { unsafe { ptr.add(i).read_unaligned() } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_wide(ptr: *mut f64, w: Self::W) {
        for (i, x) in w.into_iter().take(N / 2).enumerate() {
            // SAFETY: caller's contract: `N / 2` writable elements; the writes are unaligned.
            unsafe { ptr.add(i).write_unaligned(x) };
        }
    }
    #[inline(always)]
    unsafe fn add_wide(a: Self::W, b: Self::W) -> Self::W {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul_wide(a: Self::W, b: Self::W) -> Self::W {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn sum(mut v: Self::V) -> f32 {
        let mut half = N / 2;
        while half > 0 {
            for i in 0..half {
                v[i] += v[i + half];
            }
            half /= 2;
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn maximum(v: Self::V) -> f32 {
        v.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x))
    }
    #[inline(always)]
    unsafe fn scale_by_power_of_two(p: Self::V, n: Self::V) -> Self::V {
        std::array::from_fn(|i| p[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        v.map(f32::round)
    }
    #[inline(always)]
    unsafe fn zero_below(x: Self::V, bound: Self::V, v: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] >= bound[i] { v[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn positive(v: Self::V) -> u32 {
        v.iter().enumerate().fold(0, |bits, (i, x)| bits | u32::from(*x > 0.0) << i)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// 16 lanes; needs AVX-512F.
    #[derive(Clone, Copy)]
    pub struct Avx512;

    // SAFETY of every block below: register-only intrinsics of AVX-512F, or unaligned loads and
    // stores of one vector through a pointer the caller vouches for (trait contract).
    impl Simd for Avx512 {
        type V = __m512;
        type W = __m512d;
        const LANES: usize = 16;
        const TILE_ROWS: usize = 6;
        const DOT_ROWS: usize = 4;
        const PANEL_ROWS: usize = 4;
        const TILE_VECTORS: usize = 4;

        #[inline(always)]
        unsafe fn splat_wide(x: f64) -> __m512d {
            unsafe { _mm512_set1_pd(x) }
        }
        #[inline(always)]
        unsafe fn load_wide(ptr: *const f64) -> __m512d {
            unsafe { _mm512_loadu_pd(ptr) }
        }
        #[inline(always)]
        unsafe fn store_wide(ptr: *mut f64, w: __m512d) {
            unsafe { _mm512_storeu_pd(ptr, w) }
        }
        #[inline(always)]
        unsafe fn add_wide(a: __m512d, b: __m512d) -> __m512d {
            unsafe { _mm512_add_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_wide(a: __m512d, b: __m512d) -> __m512d {
            unsafe { _mm512_mul_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(ptr: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(ptr) }
        }
        #[inline(always)]
        unsafe fn load_f16(ptr: *const u16) -> __m512 {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(ptr: *const u16) -> __m512 {
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(ptr.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_codes<const PER_BYTE: usize>(ptr: *const u8) -> [__m512; PER_BYTE] {
            unsafe {
                let bits = 8 / PER_BYTE as i32;
                let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(ptr.cast()));
                let mut codes = [_mm512_setzero_ps(); PER_BYTE];
                for (i, codes) in codes.iter_mut().enumerate() {
                    let own = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(i as i32 * bits));
                    *codes = _mm512_cvtepi32_ps(_mm512_and_si512(own, _mm512_set1_epi32((1 << bits) - 1)));
                }
                codes
            }
        }
        #[inline(always)]
        unsafe fn interleave(a: __m512, b: __m512) -> [__m512; 2] {
            unsafe {
                let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
                [_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b)]
            }
        }
        #[inline(always)]
        unsafe fn store(ptr: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(ptr, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sum(v: __m512) -> f32 {
            unsafe { _mm512_reduce_add_ps(v) }
        }
        #[inline(always)]
        unsafe fn sum_each(v: [__m512; 4]) -> [f32; 4] {
            unsafe {
                let quads = quarters(halves(v[0], v[1]), halves(v[2], v[3]));
                // Within each 128-bit lane, add the number two positions further, then the adjacent one.
                let pairs = _mm512_add_ps(quads, _mm512_permute_ps::<0b01_00_11_10>(quads));
                let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
                let first_of_each = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, sums);
                let mut out = [0.0; 4];
                _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(first_of_each));
                out
            }
        }
        #[inline(always)]
        unsafe fn sum_all(v: [[__m512; 4]; 4]) -> [[f32; 4]; 4] {
            unsafe {
                // No closures: a closure that is not inlined would be compiled without these instructions.
                let first = quarters(halves(v[0][0], v[0][1]), halves(v[0][2], v[0][3]));
                let second = quarters(halves(v[1][0], v[1][1]), halves(v[1][2], v[1][3]));
                let third = quarters(halves(v[2][0], v[2][1]), halves(v[2][2], v[2][3]));
                let fourth = quarters(halves(v[3][0], v[3][1]), halves(v[3][2], v[3][3]));
                // 128-bit lane `j` holds four numbers of `v[i][j]`; they are paired over two rows, then over four.
                let (even, odd) = (eighths(first, second), eighths(third, fourth));
                let low = _mm512_shuffle_ps::<0b10_00_10_00>(even, odd);
                let high = _mm512_shuffle_ps::<0b11_01_11_01>(even, odd);
                // Sums `[j][i]`.
                let sums = _mm512_add_ps(low, high);
                let by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let mut out = [[0.0; 4]; 4];
                _mm512_storeu_ps(out.as_mut_ptr().cast(), _mm512_permutexvar_ps(by_row, sums));
                out
            }
        }
        #[inline(always)]
        unsafe fn keep(mask: u32, v: __m512, first: u32, kept: *mut f32, places: *mut u32) {
            unsafe {
                let mask = mask as u16;
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let own = _mm512_add_epi32(lanes, _mm512_set1_epi32(first.cast_signed()));
                _mm512_storeu_ps(kept, _mm512_maskz_compress_ps(mask, v));
                _mm512_storeu_si512(places.cast(), _mm512_maskz_compress_epi32(mask, own));
            }
        }
        #[inline(always)]
        unsafe fn prefetch<T>(ptr: *const T) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(ptr.cast()) }
        }
        #[inline(always)]
        unsafe fn maximum(v: __m512) -> f32 {
            unsafe { _mm512_reduce_max_ps(v) }
        }
        #[inline(always)]
        unsafe fn scale_by_power_of_two(p: __m512, n: __m512) -> __m512 {
            unsafe { _mm512_scalef_ps(p, n) }
        }
        #[inline(always)]
        unsafe fn round(v: __m512) -> __m512 {
            unsafe { _mm512_roundscale_ps::<0>(v) }
        }
        #[inline(always)]
        unsafe fn zero_below(x: __m512, bound: __m512, v: __m512) -> __m512 {
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound), v) }
        }
        #[inline(always)]
        unsafe fn positive(v: __m512) -> u32 {
            unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_setzero_ps())) }
        }
    }

    /// Adds the upper half of each vector to its lower half: returns eight numbers for `a`, then eight for `b`.
    ///
    /// # Safety
    /// The CPU has AVX-512F.
    #[inline(always)]
    unsafe fn halves(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
            let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b);
            _mm512_add_ps(low, high)
        }
    }

    /// Adds the halves of the results of [`halves`]: returns four numbers for each of four vectors.
    ///
    /// # Safety
    /// The CPU has AVX-512F.
    #[inline(always)]
    unsafe fn quarters(ab: __m512, cd: __m512) -> __m512 {
        unsafe {
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
            _mm512_add_ps(low, high)
        }
    }

    /// Adds the halves of the results of [`quarters`]: returns two numbers for each of eight vectors.
    ///
    /// # Safety
    /// The CPU has AVX-512F.
    #[inline(always)]
    unsafe fn eighths(first: __m512, second: __m512) -> __m512 {
        unsafe {
            let (first, second) = (_mm512_castps_pd(first), _mm512_castps_pd(second));
            let (low, high) = (_mm512_unpacklo_pd(first, second), _mm512_unpackhi_pd(first, second));
            _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
        }
    }

    /// Adds the halves of each vector: returns four numbers for `a`, then four for `b`.
    ///
    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn half_sums(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(_mm256_blend_ps::<0b1111_0000>(a, b), _mm256_permute2f128_ps::<0x21>(a, b)) }
    }

    /// 8 lanes; needs AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub struct Avx2;

    // SAFETY of every block below: register-only intrinsics of AVX2, FMA or F16C, or unaligned loads
    // and stores of one vector through a pointer the caller vouches for (trait contract).
    impl Simd for Avx2 {
        type V = __m256;
        type W = __m256d;
        const LANES: usize = 8;
        const TILE_ROWS: usize = 6;
        const DOT_ROWS: usize = 2;
        const PANEL_ROWS: usize = 3;
        const TILE_VECTORS: usize = 2;

        #[inline(always)]
        unsafe fn splat_wide(x: f64) -> __m256d {
            unsafe { _mm256_set1_pd(x) }
        }
        #[inline(always)]
        unsafe fn load_wide(ptr: *const f64) -> __m256d {
            unsafe { _mm256_loadu_pd(ptr) }
        }
        #[inline(always)]
        unsafe fn store_wide(ptr: *mut f64, w: __m256d) {
            unsafe { _mm256_storeu_pd(ptr, w) }
        }
        #[inline(always)]
        unsafe fn add_wide(a: __m256d, b: __m256d) -> __m256d {
            unsafe { _mm256_add_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_wide(a: __m256d, b: __m256d) -> __m256d {
            unsafe { _mm256_mul_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(ptr: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(ptr) }
        }
        #[inline(always)]
        unsafe fn load_f16(ptr: *const u16) -> __m256 {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(ptr.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(ptr: *const u16) -> __m256 {
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(ptr.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_codes<const PER_BYTE: usize>(ptr: *const u8) -> [__m256; PER_BYTE] {
            unsafe {
                let bits = 8 / PER_BYTE as i32;
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(ptr.cast()));
                let mut codes = [_mm256_setzero_ps(); PER_BYTE];
                for (i, codes) in codes.iter_mut().enumerate() {
                    let own = _mm256_srl_epi32(bytes, _mm_cvtsi32_si128(i as i32 * bits));
                    *codes = _mm256_cvtepi32_ps(_mm256_and_si256(own, _mm256_set1_epi32((1 << bits) - 1)));
                }
                codes
            }
        }
        #[inline(always)]
        unsafe fn interleave(a: __m256, b: __m256) -> [__m256; 2] {
            unsafe {
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
            }
        }
        #[inline(always)]
        unsafe fn store(ptr: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(ptr, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sum(v: __m256) -> f32 {
            unsafe {
                let quad = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
                _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
            }
        }
        #[inline(always)]
        unsafe fn sum_each(v: [__m256; 4]) -> [f32; 4] {
            unsafe {
                // Four numbers each of two vectors, then two each of four vectors, in the order of `sum`.
                let (even, odd) = (half_sums(v[0], v[2]), half_sums(v[1], v[3]));
                let (low, high) =
                    (_mm256_shuffle_ps::<0b01_00_01_00>(even, odd), _mm256_shuffle_ps::<0b11_10_11_10>(even, odd));
                let pairs = _mm256_add_ps(low, high);
                let sums = _mm256_add_ps(pairs, _mm256_permute_ps::<0b10_11_00_01>(pairs));
                let (first, second) = (_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
                let mut out = [0.0; 4];
                _mm_storeu_ps(out.as_mut_ptr(), _mm_shuffle_ps::<0b10_00_10_00>(first, second));
                out
            }
        }
        #[inline(always)]
        unsafe fn prefetch<T>(ptr: *const T) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(ptr.cast()) }
        }
        #[inline(always)]
        unsafe fn maximum(v: __m256) -> f32 {
            unsafe {
                let quad = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
                _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
            }
        }
        #[inline(always)]
        unsafe fn scale_by_power_of_two(p: __m256, n: __m256) -> __m256 {
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            }
        }
        #[inline(always)]
        unsafe fn round(v: __m256) -> __m256 {
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
        }
        #[inline(always)]
        unsafe fn zero_below(x: __m256, bound: __m256, v: __m256) -> __m256 {
            unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x, bound), v) }
        }
        #[inline(always)]
        unsafe fn positive(v: __m256) -> u32 {
            unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_setzero_ps())) as u32 }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// Environment variable that limits the instruction set.
const ISA_VARIABLE: &str = "SPATTN_ISA";

/// The instruction sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// Returns the best instruction set of this CPU, detected once.
///
/// `SPATTN_ISA=avx2|portable` chooses a lower one, to test or compare the other code paths.
pub(super) fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| detect(std::env::var(ISA_VARIABLE).ok().as_deref()))
}

#[cfg(target_arch = "x86_64")]
fn detect(limit: Option<&str>) -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2 && is_x86_feature_detected!("avx512f");
    match limit {
        Some("portable") => Isa::Portable,
        Some("avx2") if avx2 => Isa::Avx2,
        _ if avx512 => Isa::Avx512,
        _ if avx2 => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect(_limit: Option<&str>) -> Isa {
    Isa::Portable
}

/// Whether kernels run on AVX-512.
pub(super) fn is_avx512() -> bool {
    isa_name() == "avx512"
}

/// Whether the environment variable names an instruction set.
pub(super) fn is_lowered() -> bool {
    std::env::var_os(ISA_VARIABLE).is_some_and(|asked| !asked.is_empty())
}

/// Returns the name of the instruction set in use, for manifests: `avx512`, `avx2` or `portable`.
pub fn isa_name() -> &'static str {
    name_of(isa())
}

fn name_of(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "avx512",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "avx2",
        Isa::Portable => "portable",
    }
}

/// Checks that `SPATTN_ISA` is unset, empty, or an instruction set of this CPU.
///
/// # Errors
/// A [`UsageError`] that lists the valid values. An invalid value never falls back to another set silently.
pub fn check_isa() -> Result<(), UsageError> {
    let asked = std::env::var_os(ISA_VARIABLE).filter(|asked| !asked.is_empty());
    let available = available();
    match asked.filter(|asked| !available.iter().any(|name| asked == name)) {
        None => Ok(()),
        Some(asked) => Err(UsageError::new(format!(
            "{ISA_VARIABLE}={}: this machine does not have that instruction set",
            asked.to_string_lossy()
        ))
        .hint(format!("available: {}; without the variable the first is used", available.join(", ")))),
    }
}

/// Returns the instruction sets of this CPU, best first.
fn available() -> Vec<&'static str> {
    let all = ["avx512", "avx2", "portable"];
    let is_here = |name: &&str| name_of(detect(Some(name))) == *name;
    all.into_iter().filter(is_here).collect()
}

/// Defines a safe function `$name` that runs the generic kernel `$kernel::<S, ..>` with the best `S`.
///
/// The kernel must be an `#[inline(always)] unsafe fn` whose only safety requirement is that the CPU supports `S`; it checks its slices
/// itself.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident [$($g:ident : $bound:path),*] ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? = $kernel:ident) => {
        $(#[$doc])*
        $vis fn $name<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            fn on_avx512<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the enabled features are those `Avx512` needs.
                unsafe { $kernel::<$crate::simd::Avx512, $($g),*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn on_avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the enabled features are those `Avx2` needs.
                unsafe { $kernel::<$crate::simd::Avx2, $($g),*>($($arg),*) }
            }
            match $crate::simd::isa() {
                // SAFETY: `isa` returned this only after detecting the features on this CPU.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { on_avx512::<$($g),*>($($arg),*) },
                // SAFETY: `isa` returned this only after detecting the features on this CPU.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { on_avx2::<$($g),*>($($arg),*) },
                // SAFETY: portable code runs on every CPU.
                $crate::simd::Isa::Portable => unsafe {
                    $kernel::<$crate::simd::Portable, $($g),*>($($arg),*)
                },
            }
        }
    };
}
pub(super) use dispatch;

#[cfg(test)]
mod tests;
