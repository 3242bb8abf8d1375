//! Views of `[token][d]` rows in any storage type: kernels take keys and values in this form.

use half::{bf16, f16};

use super::simd::{Simd, dispatch};

/// A storage type for keys, values and weights; arithmetic happens in f32.
pub trait Elem: Copy + Default + Send + Sync + 'static {
    /// Number of bytes of one element.
    const BYTES: usize;
    /// Widens to f32 exactly.
    fn to_f32(self) -> f32;
    /// Rounds from f32 to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
    /// Loads `S::LANES` consecutive elements, widened to f32.
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

/// Contiguous rows `[token][d]` of one KV head, in their storage type.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

/// Evaluates `$body` with `$data` bound to the typed slice of a [`Rows`].
#[macro_export]
macro_rules! with_rows {
    ($rows:expr, $data:ident => $body:expr) => {
        match $rows {
            $crate::Rows::F32($data) => $body,
            $crate::Rows::F16($data) => $body,
            $crate::Rows::Bf16($data) => $body,
        }
    };
}
pub use with_rows;

impl<'a> Rows<'a> {
    /// Number of elements (tokens × d).
    pub fn elements(&self) -> usize {
        with_rows!(self, data => data.len())
    }

    /// Number of bytes of one element.
    pub fn elem_bytes(&self) -> usize {
        match self {
            Rows::F32(_) => 4,
            Rows::F16(_) | Rows::Bf16(_) => 2,
        }
    }

    /// Returns the rows of tokens `range`, each `d` wide.
    pub fn slice(&self, range: std::ops::Range<usize>, d: usize) -> Rows<'a> {
        let elements = range.start * d..range.end * d;
        match *self {
            Rows::F32(data) => Rows::F32(&data[elements]),
            Rows::F16(data) => Rows::F16(&data[elements]),
            Rows::Bf16(data) => Rows::Bf16(&data[elements]),
        }
    }

    /// Writes the row of `token` to `out` as f32; a row is `out.len()` wide.
    pub fn read(&self, token: usize, out: &mut [f32]) {
        let d = out.len();
        with_rows!(self, data => {
            for (o, x) in out.iter_mut().zip(&data[token * d..(token + 1) * d]) {
                *o = x.to_f32();
            }
        })
    }

    /// Returns the rows of `tokens`, each `d` wide, one after the other as f32.
    ///
    /// # Panics
    /// If a token is out of range.
    pub fn gather(&self, tokens: &[u32], d: usize) -> Vec<f32> {
        let mut gathered = vec![0.0; tokens.len() * d];
        with_rows!(self, data => gather_rows(data, tokens, d, &mut gathered));
        gathered
    }

    /// Returns all rows as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        with_rows!(self, data => data.iter().map(|x| x.to_f32()).collect())
    }
}

/// Rows of two slices, viewed as one sequence: first those of the front, then those of the back.
#[derive(Debug, Clone, Copy)]
pub struct Joined<'a> {
    front: Rows<'a>,
    back: Rows<'a>,
    d: usize,
}

impl<'a> Joined<'a> {
    /// Joins rows that are `d` wide.
    pub fn new(front: Rows<'a>, back: Rows<'a>, d: usize) -> Self {
        Self { front, back, d }
    }

    /// Views the rows of a single slice.
    pub fn one(rows: Rows<'a>, d: usize) -> Self {
        Self { front: rows, back: rows.slice(0..0, d), d }
    }

    /// Returns the front if it holds all of `tokens`.
    pub fn holding(&self, tokens: &[u32]) -> Option<Rows<'a>> {
        let front = (self.front.elements() / self.d) as u32;
        tokens.iter().all(|token| *token < front).then_some(self.front)
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.front.elements() / self.d + self.back.elements() / self.d
    }

    /// Number of bytes of one element.
    pub fn elem_bytes(&self) -> usize {
        self.front.elem_bytes()
    }

    /// Returns the rows of tokens `range`.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Joined<'a> {
        let front = self.front.elements() / self.d;
        let within =
            |start: usize, end: usize| range.start.clamp(start, end) - start..range.end.clamp(start, end) - start;
        Self {
            front: self.front.slice(within(0, front), self.d),
            back: self.back.slice(within(front, self.tokens()), self.d),
            d: self.d,
        }
    }

    /// Returns front and back.
    pub fn pieces(&self) -> [Rows<'a>; 2] {
        [self.front, self.back]
    }

    /// Writes the row of `token` as f32.
    pub fn read(&self, token: usize, out: &mut [f32]) {
        match token.checked_sub(self.front.elements() / self.d) {
            None => self.front.read(token, out),
            Some(behind) => self.back.read(behind, out),
        }
    }

    /// Returns the rows of `tokens`, one after the other as f32.
    ///
    /// # Panics
    /// If a token is out of range.
    pub fn gather(&self, tokens: &[u32]) -> Vec<f32> {
        if let Some(front) = self.holding(tokens) {
            return front.gather(tokens, self.d);
        }
        let mut gathered = vec![0.0; tokens.len() * self.d];
        tokens.iter().zip(gathered.chunks_exact_mut(self.d)).for_each(|(token, row)| self.read(*token as usize, row));
        gathered
    }

    /// Returns all rows as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut rows = self.front.to_f32();
        rows.extend(self.back.to_f32());
        rows
    }
}

dispatch! {
    fn gather_rows[T: Elem](data: &[T], tokens: &[u32], d: usize, out: &mut [f32]) = gather_rows_kernel
}

#[inline(always)]
unsafe fn gather_rows_kernel<S: Simd, T: Elem>(data: &[T], tokens: &[u32], d: usize, out: &mut [f32]) {
    let whole = d / S::LANES * S::LANES;
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(d)) {
        let row = &data[*token as usize * d..][..d];
        for first in (0..whole).step_by(S::LANES) {
            // SAFETY: `row` and `out` are `d` long and contain the lanes from `first` on; the CPU supports `S`
            // (caller).
            unsafe { S::store(out.as_mut_ptr().add(first), T::load::<S>(row.as_ptr().add(first))) };
        }
        out[whole..].iter_mut().zip(&row[whole..]).for_each(|(o, x)| *o = x.to_f32());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_rows_are_those_that_are_read_one_by_one() {
        for d in [1, 7, 16, 50, 64] {
            let numbers: Vec<f32> = (0..20 * d).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
            let (f16s, bf16s): (Vec<f16>, Vec<bf16>) =
                numbers.iter().map(|x| (f16::from_f32(*x), bf16::from_f32(*x))).unzip();
            for rows in [Rows::F32(&numbers), Rows::F16(&f16s), Rows::Bf16(&bf16s)] {
                let tokens = [3, 19, 0, 3];
                let mut expected = vec![0.0; tokens.len() * d];
                tokens.iter().zip(expected.chunks_mut(d)).for_each(|(t, out)| rows.read(*t as usize, out));
                assert_eq!(rows.gather(&tokens, d), expected);
            }
        }
    }

    #[test]
    fn joined_rows_are_those_of_one_place() {
        let numbers: Vec<f32> = (0..60).map(|i| i as f32).collect();
        for split in [0, 3, 10, 20] {
            let (front, back) = numbers.split_at(split * 3);
            let joined = Joined::new(Rows::F32(front), Rows::F32(back), 3);
            assert_eq!((joined.tokens(), joined.to_f32()), (20, numbers.clone()));
            for (start, end) in [(0, 20), (2, 2), (1, 9), (3, 11), (15, 20), (0, 3)] {
                let part = joined.slice(start..end);
                assert_eq!((part.tokens(), part.to_f32()), (end - start, numbers[start * 3..end * 3].to_vec()));
            }
            assert_eq!(joined.gather(&[19, 0, 3]), [57.0, 58.0, 59.0, 0.0, 1.0, 2.0, 9.0, 10.0, 11.0]);
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn rows_that_are_not_there_are_not_read() {
        Rows::F32(&[0.0; 32]).gather(&[1, 2], 16);
    }
}
