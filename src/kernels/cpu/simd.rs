//! The vector types kernels are written over, and the choice among them at run time.
//!
//! A kernel is one generic `#[inline(always)]` function over [`Simd`]; [`dispatch!`] instantiates it
//! for AVX-512, AVX2 + FMA + F16C and portable code, and picks by what the CPU has.

use std::sync::OnceLock;

use crate::error::UsageError;

/// Vectors of f32 and the operations kernels need on them.
///
/// # Safety
/// All functions may be called only on a CPU that supports the implementing type's instructions;
/// those that take pointers need `LANES` readable (or writable) elements there.
pub trait Simd: Copy + 'static {
    /// A vector of `LANES` f32.
    type V: Copy;
    const LANES: usize;
    /// Rows of A in the register tile of the blocked product.
    const TILE_ROWS: usize;
    /// Vectors across B in the register tile.
    const TILE_VECTORS: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(ptr: *const f32) -> Self::V;
    unsafe fn load_f16(ptr: *const u16) -> Self::V;
    unsafe fn load_bf16(ptr: *const u16) -> Self::V;
    unsafe fn store(ptr: *mut f32, v: Self::V);
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sum(v: Self::V) -> f32;
    unsafe fn maximum(v: Self::V) -> f32;
    /// `2^n` for integral `n` in -126..=127, times `p`.
    unsafe fn scale_by_power_of_two(p: Self::V, n: Self::V) -> Self::V;
    /// To the nearest integer.
    unsafe fn round(v: Self::V) -> Self::V;

    /// `e^x` for `x <= 88`, to about 2 units in the last place; 0 below -87.3 (so for `-inf`).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // SAFETY: value operations only, on a CPU that supports `Self` (caller's contract).
        unsafe {
            const LOWEST: f32 = -87.3;
            let clamped = Self::max(x, Self::splat(LOWEST));
            let n = Self::round(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, so that the reduced argument is exact.
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
    /// `v` where `x >= bound`, else 0.
    unsafe fn zero_below(x: Self::V, bound: Self::V, v: Self::V) -> Self::V;
    /// One bit a lane, the first lowest: 1 where `v > 0`.
    unsafe fn positive(v: Self::V) -> u32;
}

/// Portable fallback: eight lanes that the compiler vectorises as it can.
#[derive(Clone, Copy)]
pub struct Portable;

impl Simd for Portable {
    type V = [f32; 8];
    const LANES: usize = 8;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(ptr: *const f32) -> Self::V {
        // SAFETY: caller's contract: 8 readable elements; the read is unaligned.
        unsafe { ptr.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(ptr: *const u16) -> Self::V {
        // SAFETY: caller's contract: 8 readable elements; the read is unaligned.
        let raw = unsafe { ptr.cast::<[u16; 8]>().read_unaligned() };
        raw.map(|x| half::f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u16) -> Self::V {
        // SAFETY: caller's contract: 8 readable elements; the read is unaligned.
        let raw = unsafe { ptr.cast::<[u16; 8]>().read_unaligned() };
        raw.map(|x| f32::from_bits((x as u32) << 16))
    }
    #[inline(always)]
    unsafe fn store(ptr: *mut f32, v: Self::V) {
        // SAFETY: caller's contract: 8 writable elements; the write is unaligned.
        unsafe { ptr.cast::<[f32; 8]>().write_unaligned(v) }
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
    unsafe fn sum(v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
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
        const LANES: usize = 16;
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 4;

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

    /// 8 lanes; needs AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub struct Avx2;

    // SAFETY of every block below: register-only intrinsics of AVX2, FMA or F16C, or unaligned loads
    // and stores of one vector through a pointer the caller vouches for (trait contract).
    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;
        const TILE_ROWS: usize = 4;
        const TILE_VECTORS: usize = 2;

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

/// Lowers the choice of the instruction set.
const ISA_VARIABLE: &str = "SPATTN_ISA";

/// The instruction sets kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// The best instruction set of this CPU, looked up once.
///
/// `SPATTN_ISA=avx2|portable` lowers the choice, to test or compare the other paths.
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

/// The instruction set in use, for manifests: `avx512`, `avx2` or `portable`.
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

/// Makes sure that `SPATTN_ISA` is left out, empty, or an instruction set of this CPU.
///
/// # Errors
/// A [`UsageError`] with what it may be; it is never a reason to fall back to another set in silence.
pub fn check_isa() -> Result<(), UsageError> {
    let asked = std::env::var_os(ISA_VARIABLE).filter(|asked| !asked.is_empty());
    let available = available();
    match asked.filter(|asked| !available.iter().any(|name| asked == name)) {
        None => Ok(()),
        Some(asked) => Err(UsageError::new(format!(
            "{ISA_VARIABLE}={}: this machine has no such instruction set",
            asked.to_string_lossy()
        ))
        .hint(format!("it has {}; without the variable the first is used", available.join(", ")))),
    }
}

/// The instruction sets of this CPU, the best first.
fn available() -> Vec<&'static str> {
    let all = ["avx512", "avx2", "portable"];
    let is_here = |name: &&str| name_of(detect(Some(name))) == *name;
    all.into_iter().filter(is_here).collect()
}

/// Defines a safe function `$name` that runs the generic kernel `$kernel::<S, ..>` with the best `S`.
///
/// The kernel must be `#[inline(always)] unsafe fn` whose only safety requirement is that the CPU
/// supports `S`; it checks its slices itself.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident [$($g:ident : $bound:path),*] ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? = $kernel:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn on_avx512<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the enabled features are those `Avx512` needs.
                unsafe { $kernel::<$crate::kernels::cpu::simd::Avx512, $($g),*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn on_avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the enabled features are those `Avx2` needs.
                unsafe { $kernel::<$crate::kernels::cpu::simd::Avx2, $($g),*>($($arg),*) }
            }
            match $crate::kernels::cpu::simd::isa() {
                // SAFETY: `isa` returned this only after detecting the features on this CPU.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::simd::Isa::Avx512 => unsafe { on_avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::simd::Isa::Avx2 => unsafe { on_avx2($($arg),*) },
                // SAFETY: portable code runs on every CPU.
                $crate::kernels::cpu::simd::Isa::Portable => unsafe {
                    $kernel::<$crate::kernels::cpu::simd::Portable, $($g),*>($($arg),*)
                },
            }
        }
    };
}
pub(super) use dispatch;
