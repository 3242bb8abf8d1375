//! Keys, or values, of consecutive tokens in context, as methods read them: in order, or token by token.
//!
//! Rows in host memory are lent: nothing is copied, and a scan gives them in one piece. Rows of another source are read on
//! demand, and each read can fail. This module only reads; scoring is in `types/scores.rs`.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::kv::head::{HeadRows, KvHead};
use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::{KvDtype, KvPart, KvShape};
use crate::kv::source::Fetched;
use crate::kv::store::KvStore;
use crate::kv::tier::{KvError, TierBytes};
use spattn_kernels::{Joined, Rows};

/// Counts reads from sources that do not lend their rows, and the largest buffer filled at once.
#[derive(Debug, Default)]
pub struct ReadCounter(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    reads: KvReads,
    /// The requested pages, in the order of the requests.
    pages: Vec<Range<u32>>,
}

/// The cost of reading keys and values that are not lent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvReads {
    /// Bytes read, by tier; without pages, which are counted separately.
    pub fetched: TierBytes,
    /// Bytes of the largest buffer that held rows of the source at one time.
    pub workspace: usize,
}

impl KvReads {
    /// Adds the reads of another KV head: the sum of the bytes, and the maximum of the buffers.
    pub fn add(&mut self, other: KvReads) {
        self.fetched += other.fetched;
        self.workspace = self.workspace.max(other.workspace);
    }
}

impl ReadCounter {
    /// Returns what was read so far.
    pub fn reads(&self) -> KvReads {
        self.lock().reads
    }

    /// Takes the pages requested since the last call, if the source reads pages; in the order of the requests if one thread
    /// made them.
    pub(crate) fn take_pages(&self) -> Vec<Range<u32>> {
        std::mem::take(&mut self.lock().pages)
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts rows that were read.
    pub(crate) fn note(&self, rows: &HeadRows<'_>) {
        if let Some(fetched) = rows.fetched() {
            self.count(fetched, rows.buffered());
        }
    }

    fn count(&self, fetched: &Fetched, workspace: usize) {
        let mut counted = self.lock();
        counted.reads.add(KvReads { fetched: fetched.bytes, workspace });
        counted.pages.extend_from_slice(&fetched.pages);
    }
}

/// Keys, or values, `[token][d]` of consecutive tokens of one KV head: first tokens of the prefix, wherever they are stored,
/// then later tokens, in host memory. Tokens are numbered from the first of these rows.
#[derive(Debug, Clone, Copy)]
pub struct KvRows<'a> {
    front: Front<'a>,
    back: Rows<'a>,
    d: usize,
}

/// The rows of the prefix.
#[derive(Debug, Clone, Copy)]
enum Front<'a> {
    /// In host memory.
    Lent(Rows<'a>),
    /// To be read on demand.
    Apart(Apart<'a>),
}

/// Tokens from `start` to `end` of a head that is not lent.
#[derive(Debug, Clone, Copy)]
struct Apart<'a> {
    head: KvHead<'a>,
    part: KvPart,
    start: usize,
    end: usize,
    counter: &'a ReadCounter,
}

impl Apart<'_> {
    /// Calls `visit` with the rows of all tokens in order, in pieces, each with the number of its first token.
    fn scan(&self, visit: &mut dyn FnMut(usize, Rows<'_>)) -> Result<(), KvError> {
        let mut first = 0;
        let fetched = self.head.scan(self.start..self.end, &mut |keys, values| {
            let rows = self.part.of(keys, values);
            visit(first, rows);
            first += rows.elements() / self.head.d();
        })?;
        debug_assert_eq!(first, self.end - self.start, "a source shows all tokens");
        self.counter.count(&fetched, 0);
        Ok(())
    }

    /// Reads the rows of some tokens, in their order.
    fn gather(&self, tokens: &[u32]) -> Result<HeadRows<'_>, KvError> {
        let tokens: Vec<u32> = tokens.iter().map(|token| token + self.start as u32).collect();
        let (rows, _) = self.head.gather(&tokens)?;
        self.counter.note(&rows);
        Ok(rows)
    }
}

/// Rows that contain those of some tokens, in the storage type.
#[derive(Debug)]
pub struct StoredRows<'r, 't> {
    rows: Stored<'r>,
    places: Cow<'t, [u32]>,
}

#[derive(Debug)]
enum Stored<'r> {
    Lent(Rows<'r>),
    Read(HeadRows<'r>, KvPart),
}

impl StoredRows<'_, '_> {
    /// Returns the rows.
    pub fn rows(&self) -> Rows<'_> {
        match &self.rows {
            Stored::Lent(rows) => *rows,
            Stored::Read(rows, part) => part.of(rows.keys(), rows.values()),
        }
    }

    /// The row number of each token, in the order in which the tokens were requested.
    pub fn places(&self) -> &[u32] {
        &self.places
    }
}

/// All rows in one slice, in the storage type.
#[derive(Debug)]
pub struct CollectedRows<'a>(Collected<'a>);

#[derive(Debug)]
enum Collected<'a> {
    Lent(Rows<'a>),
    Read(Box<KvStore>),
}

impl CollectedRows<'_> {
    /// Returns the rows.
    pub fn rows(&self) -> Rows<'_> {
        match &self.0 {
            Collected::Lent(rows) => *rows,
            Collected::Read(store) => store.head(0),
        }
    }
}

impl<'a> KvRows<'a> {
    /// Rows `[token][d]` in host memory.
    pub fn lent(rows: Rows<'a>, d: usize) -> Self {
        Self { front: Front::Lent(rows), back: rows.slice(0..0, d), d }
    }

    /// Makes an empty value.
    pub fn none(d: usize) -> Self {
        Self::lent(Rows::F32(&[]), d)
    }

    /// Keys or values of the first `tokens` tokens of a head; `counter` counts reads if they are not lent.
    pub fn of_head(head: KvHead<'a>, part: KvPart, tokens: usize, counter: &'a ReadCounter) -> Self {
        let front = match head.in_memory() {
            Some([keys, values]) => Front::Lent(part.of(keys, values).slice(0..tokens, head.d())),
            None => Front::Apart(Apart { head, part, start: 0, end: tokens, counter }),
        };
        Self { front, back: Rows::F32(&[]), d: head.d() }
    }

    /// The same rows, followed by rows in host memory, which replace any that followed before.
    pub fn followed_by(self, back: Rows<'a>) -> Self {
        Self { back, ..self }
    }

    fn front_tokens(&self) -> usize {
        match self.front {
            Front::Lent(rows) => rows.elements() / self.d,
            Front::Apart(Apart { start, end, .. }) => end - start,
        }
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.front_tokens() + self.back.elements() / self.d
    }

    /// Number of elements of a row.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Storage type.
    pub fn dtype(&self) -> KvDtype {
        match self.front {
            Front::Lent(Rows::F32(_)) => KvDtype::F32,
            Front::Lent(Rows::F16(_)) => KvDtype::F16,
            Front::Lent(Rows::Bf16(_)) => KvDtype::Bf16,
            Front::Apart(apart) => apart.head.dtype(),
        }
    }

    /// Bytes of a row as stored, with tokens numbered as these rows are.
    pub fn row_bytes(&self) -> RowBytes {
        match self.front {
            Front::Lent(_) => RowBytes::plain(KvShape { kv_heads: 1, d: self.d, dtype: self.dtype() }),
            // If the front is empty, no row is coded.
            Front::Apart(Apart { head, start, end, .. }) => head.row_bytes().numbered_from(start).up_to(end - start),
        }
    }

    /// Bytes of all rows as stored; a read of all rows counts this many.
    pub fn bytes(&self) -> usize {
        self.row_bytes().of_range(self.part(), 0..self.tokens())
    }

    /// Bytes of the rows of some tokens as stored.
    pub fn bytes_of(&self, tokens: &[u32]) -> usize {
        self.row_bytes().of_tokens(self.part(), tokens)
    }

    /// Whether these are keys or values. Lent rows take the same bytes either way.
    fn part(&self) -> KvPart {
        match self.front {
            Front::Lent(_) => KvPart::Keys,
            Front::Apart(apart) => apart.part,
        }
    }

    /// Returns the rows of tokens `range`.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let (front, all) = (self.front_tokens(), self.tokens());
        assert!(range.start <= range.end && range.end <= all, "tokens {range:?} of {all}");
        let within =
            |first: usize, end: usize| range.start.clamp(first, end) - first..range.end.clamp(first, end) - first;
        let own = within(0, front);
        let sliced = match self.front {
            Front::Lent(rows) => Front::Lent(rows.slice(own, self.d)),
            Front::Apart(apart) => {
                Front::Apart(Apart { start: apart.start + own.start, end: apart.start + own.end, ..apart })
            }
        };
        Self { front: sliced, back: self.back.slice(within(front, all), self.d), d: self.d }
    }

    /// Returns all rows if they are in host memory: those of the prefix, and those after it.
    pub fn in_memory(&self) -> Option<[Rows<'a>; 2]> {
        match self.front {
            Front::Lent(rows) => Some([rows, self.back]),
            Front::Apart(Apart { start, end, .. }) if start == end => Some([self.back.slice(0..0, self.d), self.back]),
            Front::Apart(_) => None,
        }
    }

    /// Calls `visit` with all rows in order, in pieces, each with the number of its first token. Rows in host memory are one
    /// piece for the prefix and one for the rows after it; other sources determine the length of their pieces.
    ///
    /// # Errors
    /// If some rows cannot be read. `visit` may have seen earlier ones.
    pub fn scan(&self, mut visit: impl FnMut(usize, Rows<'_>)) -> Result<(), KvError> {
        match self.front {
            Front::Lent(rows) if rows.elements() > 0 => visit(0, rows),
            Front::Lent(_) => {}
            Front::Apart(Apart { start, end, .. }) if start == end => {}
            Front::Apart(apart) => apart.scan(&mut visit)?,
        }
        if self.back.elements() > 0 {
            visit(self.front_tokens(), self.back);
        }
        Ok(())
    }

    /// Calls `visit` with all rows in order as f32, in blocks whose number of tokens is a multiple of `multiple`, except for
    /// the last. Rows in host memory are one block.
    ///
    /// # Errors
    /// Those of [`scan`](Self::scan).
    pub fn each_block(&self, multiple: usize, mut visit: impl FnMut(&[f32])) -> Result<(), KvError> {
        if self.in_memory().is_some() {
            let all = self.to_f32()?;
            if !all.is_empty() {
                visit(&all);
            }
            return Ok(());
        }
        let (unit, mut left, mut largest) = (multiple * self.d, Vec::new(), 0);
        self.scan(|_, rows| {
            left.extend(rows.to_f32());
            largest = largest.max(left.len());
            let whole = left.len() / unit * unit;
            if whole > 0 {
                visit(&left[..whole]);
                left.drain(..whole);
            }
        })?;
        if !left.is_empty() {
            visit(&left);
        }
        self.count_buffer(size_of::<f32>() * largest);
        Ok(())
    }

    /// Returns all rows as f32, in one buffer, for algorithms that need them all at the same time.
    ///
    /// # Errors
    /// If some rows cannot be read.
    pub fn to_f32(&self) -> Result<Vec<f32>, KvError> {
        if let Some([front, back]) = self.in_memory() {
            return Ok(Joined::new(front, back, self.d).to_f32());
        }
        let mut all = Vec::with_capacity(self.tokens() * self.d);
        self.scan(|_, rows| all.extend(rows.to_f32()))?;
        self.count_buffer(size_of_val(all.as_slice()));
        Ok(all)
    }

    /// Returns all rows in one slice, in the storage type, for algorithms that read them more than once. Rows in host memory
    /// are borrowed.
    ///
    /// # Errors
    /// If some rows cannot be read.
    pub fn collect(&self) -> Result<CollectedRows<'a>, KvError> {
        match self.in_memory() {
            Some([front, back]) if back.elements() == 0 => return Ok(CollectedRows(Collected::Lent(front))),
            Some([front, back]) if front.elements() == 0 => return Ok(CollectedRows(Collected::Lent(back))),
            _ => {}
        }
        let mut all = KvStore::new(self.dtype(), 1, self.d, self.tokens());
        self.scan(|_, rows| all.extend(rows))?;
        self.count_buffer(all.bytes());
        Ok(CollectedRows(Collected::Read(Box::new(all))))
    }

    /// Returns the rows of `tokens`, one after the other as f32.
    ///
    /// # Errors
    /// If some rows cannot be read.
    ///
    /// # Panics
    /// If a token is out of range.
    pub fn gather(&self, tokens: &[u32]) -> Result<Vec<f32>, KvError> {
        if let Some([front, back]) = self.in_memory() {
            return Ok(Joined::new(front, back, self.d).gather(tokens));
        }
        let first_behind = self.front_tokens() as u32;
        let before: Vec<u32> = tokens.iter().copied().filter(|token| *token < first_behind).collect();
        let read = self.stored(&before)?.expect("the tokens lie in the stored prefix");
        let mut gathered = vec![0.0; tokens.len() * self.d];
        let mut places = read.places().iter();
        for (token, out) in tokens.iter().zip(gathered.chunks_exact_mut(self.d)) {
            match token.checked_sub(first_behind) {
                None => read.rows().read(*places.next().expect("a row for each token") as usize, out),
                Some(behind) => self.back.read(behind as usize, out),
            }
        }
        Ok(gathered)
    }

    /// Returns rows that contain those of `tokens`, in the storage type; `None` if any token is after the prefix.
    ///
    /// # Errors
    /// If some rows cannot be read.
    pub fn stored<'t>(&self, tokens: &'t [u32]) -> Result<Option<StoredRows<'_, 't>>, KvError> {
        let first_behind = self.front_tokens() as u32;
        if tokens.iter().any(|token| *token >= first_behind) {
            return Ok(None);
        }
        Ok(Some(match &self.front {
            Front::Lent(rows) => StoredRows { rows: Stored::Lent(*rows), places: Cow::Borrowed(tokens) },
            Front::Apart(apart) => StoredRows {
                rows: Stored::Read(apart.gather(tokens)?, apart.part),
                places: (0..tokens.len() as u32).collect(),
            },
        }))
    }

    fn count_buffer(&self, bytes: usize) {
        if let Front::Apart(apart) = self.front {
            apart.counter.count(&Fetched::default(), bytes);
        }
    }
}
