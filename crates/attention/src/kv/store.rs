//! A growable `[kv_head][token][d]` store in one storage type.

use std::ops::Range;

use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::kv::shape::{KvDtype, KvShape};
use spattn_kernels::memory::{AlignedVec, in_large_pages};
use spattn_kernels::{Elem, Rows};

#[derive(Debug, Clone)]
enum Data {
    F32(AlignedVec<f32>),
    F16(AlignedVec<f16>),
    Bf16(AlignedVec<bf16>),
}

/// Evaluates `$body` with `$v` bound to the typed vector.
macro_rules! with_data {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F32($v) => $body,
            Data::F16($v) => $body,
            Data::Bf16($v) => $body,
        }
    };
}

impl Data {
    /// Allocates `n` zeros, in memory that has not been written to yet.
    fn zeros(dtype: KvDtype, n: usize) -> Self {
        let mut data = match dtype {
            KvDtype::F32 => Self::F32(AlignedVec::zeros(n, |n| vec![0.0; n])),
            KvDtype::F16 => Self::F16(AlignedVec::zeros(n, |n| vec![0u16; n].reinterpret_into())),
            KvDtype::Bf16 => Self::Bf16(AlignedVec::zeros(n, |n| vec![0u16; n].reinterpret_into())),
        };
        // Large pages help because selected rows are far apart.
        with_data!(&mut data, v => in_large_pages(v));
        data
    }
}

/// Writable rows in their storage type.
pub enum RowsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// IEEE half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
}

/// Rows of all KV heads, growing token by token.
#[derive(Debug, Clone)]
pub struct KvStore {
    data: Data,
    kv_heads: usize,
    d: usize,
    capacity: usize,
    tokens: usize,
}

impl KvStore {
    /// An empty store with room for `capacity` tokens.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { data: Data::zeros(dtype, kv_heads * capacity * d), kv_heads, d, capacity, tokens: 0 }
    }

    /// A store of `tokens` tokens, all zeros.
    pub fn zeros(shape: KvShape, tokens: usize) -> Self {
        Self { tokens, ..Self::new(shape.dtype, shape.kv_heads, shape.d, tokens) }
    }

    /// A store of `tokens` tokens; `fill` writes the rows `[token][d]` of each KV head.
    ///
    /// # Errors
    /// If `fill` fails.
    pub fn filled<E>(
        shape: KvShape,
        tokens: usize,
        fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::zeros(shape, tokens).refilled(shape, tokens, fill)
    }

    /// Like [`filled`](Self::filled), but reuses the memory of this store, because the first write to new memory is slow.
    ///
    /// # Errors
    /// If `fill` fails.
    pub fn refilled<E>(
        self,
        shape: KvShape,
        tokens: usize,
        mut fill: impl FnMut(usize, RowsMut<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let KvShape { kv_heads, d, dtype } = shape;
        let n = kv_heads * tokens * d;
        let mut store = match self.dtype() == dtype && with_data!(&self.data, v => v.capacity() >= n) {
            true => Self { kv_heads, d, capacity: tokens, tokens, ..self },
            false => {
                drop(self);
                Self::zeros(shape, tokens)
            }
        };
        with_data!(&mut store.data, v => v.set_len(n));
        for head in 0..kv_heads {
            let range = head * tokens * d..(head + 1) * tokens * d;
            fill(
                head,
                match &mut store.data {
                    Data::F32(v) => RowsMut::F32(&mut v[range]),
                    Data::F16(v) => RowsMut::F16(&mut v[range]),
                    Data::Bf16(v) => RowsMut::Bf16(&mut v[range]),
                },
            )?;
        }
        Ok(store)
    }

    /// Appends one token given as `[kv_heads][d]`, rounded to the storage type.
    pub fn append(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.kv_heads * self.d, "one row a KV head");
        if self.tokens == self.capacity {
            self.grow((2 * self.capacity).max(64));
        }
        let (d, capacity, token) = (self.d, self.capacity, self.tokens);
        with_data!(&mut self.data, v => {
            for (h, row) in row.chunks_exact(d).enumerate() {
                write(&mut v[(h * capacity + token) * d..][..d], row);
            }
        });
        self.tokens += 1;
    }

    /// Appends tokens given as `[token][kv_heads][d]`, with heads in parallel; the result is the same as with [`append`](Self::append)
    /// for each token.
    pub fn append_rows(&mut self, rows: &[f32]) {
        let (d, width) = (self.d, self.kv_heads * self.d);
        let (first, tokens) = (self.tokens, self.tokens + rows.len() / width);
        assert_eq!(rows.len() % width, 0, "one row a KV head");
        if rows.is_empty() {
            return;
        }
        if tokens > self.capacity {
            self.grow(tokens.max(2 * self.capacity));
        }
        with_data!(&mut self.data, v => {
            v.par_chunks_exact_mut(self.capacity * d).enumerate().for_each(|(head, own)| {
                let own = own[first * d..tokens * d].chunks_exact_mut(d);
                own.zip(rows.chunks_exact(width)).for_each(|(out, row)| write(out, &row[head * d..][..d]));
            });
        });
        self.tokens = tokens;
    }

    /// Appends rows `[token][d]`, in the storage type, to a store with one KV head.
    ///
    /// # Panics
    /// If the store has several KV heads, or the rows have another type.
    pub fn extend(&mut self, rows: Rows<'_>) {
        assert_eq!(self.kv_heads, 1, "rows of one KV head");
        let (from, tokens) = (self.tokens * self.d, self.tokens + rows.elements() / self.d);
        if tokens > self.capacity {
            self.grow(tokens.max(2 * self.capacity));
        }
        match (&mut self.data, rows) {
            (Data::F32(data), Rows::F32(rows)) => data[from..][..rows.len()].copy_from_slice(rows),
            (Data::F16(data), Rows::F16(rows)) => data[from..][..rows.len()].copy_from_slice(rows),
            (Data::Bf16(data), Rows::Bf16(rows)) => data[from..][..rows.len()].copy_from_slice(rows),
            _ => panic!("the rows are not of the store's type"),
        }
        self.tokens = tokens;
    }

    /// Sets the number of tokens. The rows of new tokens hold old values until they are [written](Self::rows_mut).
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn lengthen(&mut self, tokens: usize) {
        assert!(tokens <= self.capacity, "no room for {tokens} tokens");
        self.tokens = tokens;
    }

    /// Returns the rows of some tokens of a KV head for writing.
    pub(super) fn rows_mut(&mut self, kv_head: usize, tokens: Range<usize>) -> RowsMut<'_> {
        assert!(tokens.end <= self.tokens, "tokens {tokens:?} of {}", self.tokens);
        let first = kv_head * self.capacity;
        let range = (first + tokens.start) * self.d..(first + tokens.end) * self.d;
        match &mut self.data {
            Data::F32(v) => RowsMut::F32(&mut v[range]),
            Data::F16(v) => RowsMut::F16(&mut v[range]),
            Data::Bf16(v) => RowsMut::Bf16(&mut v[range]),
        }
    }

    /// Keeps the first `tokens` tokens, and reserves room for `capacity` tokens.
    ///
    /// # Panics
    /// If fewer tokens are stored.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        assert!(tokens <= self.tokens, "cannot keep more tokens than there are");
        self.tokens = tokens;
        if capacity > self.capacity {
            self.grow(capacity);
        }
    }

    fn grow(&mut self, capacity: usize) {
        let (old, d, heads) = (self.capacity, self.d, self.kv_heads);
        let mut grown = Self::new(self.dtype(), heads, d, capacity);
        for head in 0..heads {
            let (from, to) = (head * old * d, head * capacity * d);
            match (&mut grown.data, &self.data) {
                (Data::F32(new), Data::F32(v)) => new[to..][..old * d].copy_from_slice(&v[from..][..old * d]),
                (Data::F16(new), Data::F16(v)) => new[to..][..old * d].copy_from_slice(&v[from..][..old * d]),
                (Data::Bf16(new), Data::Bf16(v)) => new[to..][..old * d].copy_from_slice(&v[from..][..old * d]),
                _ => unreachable!("the copy has the store's type"),
            }
        }
        *self = Self { tokens: self.tokens, ..grown };
    }

    /// Returns the rows `[token][d]` of one KV head.
    pub fn head(&self, kv_head: usize) -> Rows<'_> {
        let range = kv_head * self.capacity * self.d..(kv_head * self.capacity + self.tokens) * self.d;
        match &self.data {
            Data::F32(v) => Rows::F32(&v[range]),
            Data::F16(v) => Rows::F16(&v[range]),
            Data::Bf16(v) => Rows::Bf16(&v[range]),
        }
    }

    /// Number of tokens stored.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of KV heads stored.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Width of a row.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Storage type.
    pub fn dtype(&self) -> KvDtype {
        match self.data {
            Data::F32(_) => KvDtype::F32,
            Data::F16(_) => KvDtype::F16,
            Data::Bf16(_) => KvDtype::Bf16,
        }
    }

    /// Bytes of the stored rows, without spare room.
    pub fn stored_bytes(&self) -> usize {
        self.kv_heads * self.tokens * self.d * self.dtype().bytes()
    }

    /// Number of bytes allocated.
    pub fn bytes(&self) -> usize {
        with_data!(&self.data, v => std::mem::size_of_val(&**v))
    }
}

fn write<T: Elem>(out: &mut [T], row: &[f32]) {
    for (o, x) in out.iter_mut().zip(row) {
        *o = T::from_f32(*x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_written_anew() {
        let mut store = KvStore::new(KvDtype::F32, 2, 1, 3);
        (0..3).for_each(|t| store.append(&[t as f32, 10.0 + t as f32]));
        store.truncate(2, 5);
        store.append(&[7.0, 17.0]);
        assert_eq!(store.head(0).to_f32(), [0.0, 1.0, 7.0]);
        assert_eq!(store.head(1).to_f32(), [10.0, 11.0, 17.0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_stores_lie_in_large_pages_from_the_first_on_and_when_they_grow() {
        use spattn_kernels::memory::is_asked_for;
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let mut store = KvStore::new(dtype, 1, 64, 1 << 17);
            assert!(with_data!(&store.data, v => is_asked_for(v)), "{dtype:?}");
            store.truncate(0, 1 << 18);
            assert!(with_data!(&store.data, v => is_asked_for(v)), "{dtype:?}, grown");
        }
    }

    /// Rows of whole lines lie in as many: in stores large and small, new, grown, filled again and copied.
    #[test]
    fn rows_begin_with_a_line_of_the_cache() {
        let is_aligned = |store: &KvStore| {
            with_data!(&store.data, v => v.as_ptr().addr().is_multiple_of(64))
                && store.head(1).elements() == 64 * store.tokens
        };
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            for tokens in [1, 3, 100, 5000, 1 << 16] {
                let mut store = KvStore::zeros(KvShape { kv_heads: 2, d: 64, dtype }, tokens);
                assert!(is_aligned(&store) && is_aligned(&store.clone()), "{dtype:?}, {tokens}");
                store.append(&[1.0; 128]);
                assert!(is_aligned(&store), "{dtype:?}, {tokens}, grown");
                let again = |tokens| {
                    move |store: KvStore| {
                        let shape = KvShape { kv_heads: 2, d: 64, dtype };
                        store.refilled(shape, tokens, |_, _| Ok::<_, ()>(())).unwrap()
                    }
                };
                let (fewer, more) = (again(1)(store.clone()), again(4 * tokens + 64)(store));
                assert!(is_aligned(&fewer) && is_aligned(&more), "{dtype:?}, {tokens}, filled again");
            }
        }
    }

    #[test]
    fn many_tokens_are_appended_as_each_by_itself() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let rows: Vec<f32> = (0..3 * 2 * 9).map(|i| (i as f32 * 0.7).sin()).collect();
            let (mut one, mut many) = (KvStore::new(dtype, 3, 2, 4), KvStore::new(dtype, 3, 2, 4));
            rows.chunks(6).for_each(|row| one.append(row));
            [&rows[..12], &[], &rows[12..48], &rows[48..]].iter().for_each(|rows| many.append_rows(rows));
            assert_eq!((one.tokens(), many.tokens()), (9, 9));
            (0..3).for_each(|head| assert_eq!(one.head(head).to_f32(), many.head(head).to_f32()));
        }
    }

    #[test]
    fn growing_keeps_every_head_in_order() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let (heads, d) = (3, 4);
            let mut store = KvStore::new(dtype, heads, d, 2);
            for t in 0..200 {
                let row: Vec<f32> = (0..heads * d).map(|i| (t % 100 + i) as f32).collect();
                store.append(&row);
            }
            for h in 0..heads {
                let rows = store.head(h).to_f32();
                assert_eq!(rows.len(), 200 * d);
                for t in 0..200 {
                    assert_eq!(rows[t * d], (t % 100 + h * d) as f32);
                }
            }
        }
    }
}
