//! Views of `[token][d]` rows in any storage type, the form in which kernels take keys and values.

use half::{bf16, f16};

use super::simd::Simd;

/// A storage type for keys, values and weights; arithmetic happens in f32.
pub trait Elem: Copy + Default + Send + Sync + 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// Widens to f32 exactly.
    fn to_f32(self) -> f32;
    /// Rounds from f32 to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
    /// Loads `S::LANES` consecutive elements, widened.
    ///
    /// # Safety
    /// `ptr` must be valid for reading `S::LANES` elements, and the CPU must support `S`.
    #[doc(hidden)]
    unsafe fn load<S: Simd>(ptr: *const Self) -> S::V;
}

impl Elem for f32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const Self) -> S::V {
        // SAFETY: forwarded from the caller.
        unsafe { S::load(ptr) }
    }
}

impl Elem for f16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const Self) -> S::V {
        // SAFETY: forwarded from the caller; `f16` is a transparent `u16`.
        unsafe { S::load_f16(ptr.cast()) }
    }
}

impl Elem for bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(ptr: *const Self) -> S::V {
        // SAFETY: forwarded from the caller; `bf16` is a transparent `u16`.
        unsafe { S::load_bf16(ptr.cast()) }
    }
}

/// Rows `[token][d]`, contiguous, of one KV head, in the type they are stored in.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

/// Runs `$body` with `$data` bound to the typed slice of a [`Rows`].
macro_rules! with_rows {
    ($rows:expr, $data:ident => $body:expr) => {
        match $rows {
            $crate::kernels::cpu::Rows::F32($data) => $body,
            $crate::kernels::cpu::Rows::F16($data) => $body,
            $crate::kernels::cpu::Rows::Bf16($data) => $body,
        }
    };
}
pub(crate) use with_rows;

impl<'a> Rows<'a> {
    /// Number of elements (tokens × d).
    pub fn elements(&self) -> usize {
        with_rows!(self, data => data.len())
    }

    /// Bytes of one element.
    pub fn elem_bytes(&self) -> usize {
        match self {
            Rows::F32(_) => 4,
            Rows::F16(_) | Rows::Bf16(_) => 2,
        }
    }

    /// The rows of tokens `range`, each `d` wide.
    pub fn slice(&self, range: std::ops::Range<usize>, d: usize) -> Rows<'a> {
        let elements = range.start * d..range.end * d;
        match *self {
            Rows::F32(data) => Rows::F32(&data[elements]),
            Rows::F16(data) => Rows::F16(&data[elements]),
            Rows::Bf16(data) => Rows::Bf16(&data[elements]),
        }
    }

    /// Writes the row of `token`, `out.len()` wide, as f32.
    pub fn read(&self, token: usize, out: &mut [f32]) {
        let d = out.len();
        with_rows!(self, data => {
            for (o, x) in out.iter_mut().zip(&data[token * d..(token + 1) * d]) {
                *o = x.to_f32();
            }
        })
    }

    /// All rows as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        with_rows!(self, data => data.iter().map(|x| x.to_f32()).collect())
    }
}
