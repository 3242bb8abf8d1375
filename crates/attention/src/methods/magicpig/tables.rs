//! Hash tables of tokens: for each of `L` tables and `2^K` codes, the tokens with this code.
//!
//! A table is two arrays: all tokens sorted by code, and where each code begins. Numbers have 16 bits below 65,536
//! tokens, else 32. A look-up reads two bounds and the tokens of one bucket.

use std::ops::Range;

use rayon::prelude::*;

use spattn_kernels::NARROW_TOKENS;
use spattn_kernels::fetch::ask_for;
use spattn_kernels::hyperplanes::Hyperplanes;
use spattn_kernels::memory::in_large_pages;

/// Number of tables, and bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// `K`: hyperplanes of a table, bits of a code; at most [`Shape::MOST_BITS`].
    pub bits: usize,
    /// `L`: number of tables.
    pub tables: usize,
}

impl Shape {
    /// Largest `K`: a code is stored in 16 bits.
    pub const MOST_BITS: usize = u16::BITS as usize;

    /// Number of hyperplanes of all tables.
    pub fn planes(self) -> usize {
        self.bits * self.tables
    }

    /// Number of distinct codes in a table.
    fn codes(self) -> usize {
        1 << self.bits
    }

    /// The code in `table` of a vector, from its sides of the hyperplanes: `K` bits from bit `table·K` on.
    fn code(self, sides: &[u64], table: usize) -> usize {
        let (word, shift) = (table * self.bits / 64, table * self.bits % 64);
        let mut code = sides[word] >> shift;
        if shift + self.bits > 64 {
            code |= sides[word + 1] << (64 - shift);
        }
        code as usize & (self.codes() - 1)
    }
}

impl Shape {
    /// Returns the side bits with these codes, one code for each table.
    pub(super) fn sides_of(self, codes: &[u16]) -> Vec<u64> {
        assert_eq!(codes.len(), self.tables, "a code for each table");
        let mut sides = vec![0; self.planes().div_ceil(64)];
        for (table, code) in codes.iter().enumerate() {
            let (word, shift) = (table * self.bits / 64, table * self.bits % 64);
            sides[word] |= u64::from(*code) << shift;
            if shift + self.bits > 64 {
                sides[word + 1] |= u64::from(*code) >> (64 - shift);
            }
        }
        sides
    }

    /// The codes in all tables, from sides.
    pub(super) fn codes_of(self, sides: &[u64]) -> impl Iterator<Item = u16> {
        (0..self.tables).map(move |table| self.code(sides, table) as u16)
    }
}

/// The codes of all tokens, from which tables are built.
pub(super) struct Codes {
    shape: Shape,
    tokens: usize,
    /// One entry for each block of tokens, `[table][token of the block]`.
    blocks: Vec<Vec<u16>>,
}

impl Codes {
    /// Tokens hashed at a time: their vectors and bits fit into the processor's cache.
    const BLOCK: usize = 256;

    /// Hashes `tokens` vectors; `vectors` returns those of a range, `[token][planes.d()]`.
    pub fn hash(
        shape: Shape,
        planes: &Hyperplanes,
        tokens: usize,
        vectors: impl Fn(Range<usize>) -> Vec<f32> + Sync,
    ) -> Self {
        assert_eq!(planes.count(), shape.planes(), "K hyperplanes a table");
        let block = |first: usize| {
            let rows = vectors(first..(first + Self::BLOCK).min(tokens));
            let count = rows.len() / planes.d();
            let mut sides = vec![0; count * planes.words()];
            planes.side_bits(&rows, &mut sides);
            let mut codes = vec![0; shape.tables * count];
            for (table, codes) in codes.chunks_exact_mut(count).enumerate() {
                for (code, sides) in codes.iter_mut().zip(sides.chunks_exact(planes.words())) {
                    *code = shape.code(sides, table) as u16;
                }
            }
            codes
        };
        let firsts: Vec<usize> = (0..tokens).step_by(Self::BLOCK).collect();
        Self { shape, tokens, blocks: firsts.into_par_iter().map(block).collect() }
    }

    /// Codes of all tokens in one table, in order, block by block.
    fn of(&self, table: usize) -> impl Iterator<Item = &[u16]> {
        self.blocks.iter().map(move |block| {
            let tokens = block.len() / self.shape.tables;
            &block[table * tokens..][..tokens]
        })
    }
}

/// Codes of tokens in order, compared with a query's one by one: for tokens that are too few, or used too seldom, to be
/// sorted into tables.
#[derive(Debug, Clone)]
pub(super) struct CodeRows {
    shape: Shape,
    /// `[token][table]`.
    codes: Vec<u16>,
}

impl CodeRows {
    /// No tokens yet.
    pub fn new(shape: Shape) -> Self {
        Self { shape, codes: Vec::new() }
    }

    /// Hashes and appends `vectors: [token][planes.d()]`.
    pub fn push(&mut self, planes: &Hyperplanes, vectors: &[f32]) {
        let mut sides = vec![0; vectors.len() / planes.d() * planes.words()];
        planes.side_bits(vectors, &mut sides);
        for sides in sides.chunks_exact(planes.words()) {
            self.codes.extend(self.shape.codes_of(sides));
        }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.codes.len() / self.shape.tables
    }

    /// Bytes of all codes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.codes.as_slice())
    }

    /// Of the first `tokens` tokens, those that share the code of a vector on `sides` in at least `least` tables.
    pub fn sample(&self, sides: &[u64], tokens: usize, least: u8) -> impl Iterator<Item = u32> {
        let query: Vec<u16> = self.shape.codes_of(sides).collect();
        let rows = (0u32..).zip(self.codes.chunks_exact(self.shape.tables)).take(tokens);
        let collides = move |row: &[u16]| {
            let equal: u16 = row.iter().zip(&query).map(|(a, b)| u16::from(a == b)).sum();
            equal >= u16::from(least)
        };
        rows.filter(move |(_, row)| collides(row)).map(|(token, _)| token)
    }
}

/// All tables over one KV head's candidates; tokens are numbered from the first candidate.
pub(super) enum HashTables {
    Narrow(Buckets<u16>),
    Wide(Buckets<u32>),
}

impl HashTables {
    pub fn new(codes: &Codes) -> Self {
        match codes.tokens <= NARROW_TOKENS {
            true => Self::Narrow(Buckets::sort(codes)),
            false => Self::Wide(Buckets::sort(codes)),
        }
    }

    /// Number of tokens in each table.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Narrow(b) => b.tokens,
            Self::Wide(b) => b.tokens,
        }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Narrow(b) => b.bytes(),
            Self::Wide(b) => b.bytes(),
        }
    }

    /// Visits every token once for each table in which it has the query's code; returns the bytes read. `sides` are the
    /// query's [side bits](Hyperplanes::side_bits).
    pub fn visit_collisions(&self, sides: &[u64], visit: impl FnMut(usize)) -> usize {
        match self {
            Self::Narrow(b) => b.visit_collisions(sides, visit),
            Self::Wide(b) => b.visit_collisions(sides, visit),
        }
    }
}

/// A token number that is stored in 16 or 32 bits.
pub(super) trait TokenNumber: Copy + Default + Send + Sync {
    fn narrow(x: usize) -> Self;
    fn widen(self) -> usize;
}

impl TokenNumber for u16 {
    fn narrow(x: usize) -> Self {
        x as u16
    }
    fn widen(self) -> usize {
        self.into()
    }
}

impl TokenNumber for u32 {
    fn narrow(x: usize) -> Self {
        x as u32
    }
    fn widen(self) -> usize {
        self as usize
    }
}

/// The tables, stored as numbers of type `N`.
pub(super) struct Buckets<N> {
    shape: Shape,
    tokens: usize,
    /// Where the tokens of each code begin, `[table][2^K + 1]`; the last entry is the number of tokens.
    bounds: Vec<N>,
    /// Tokens by code, ascending within a code, `[table][token]`.
    sorted: Vec<N>,
}

impl<N: TokenNumber> Buckets<N> {
    /// Number of buckets by which prefetching runs ahead: buckets are far apart in memory.
    const AHEAD: usize = 16;

    fn sort(codes: &Codes) -> Self {
        let (shape, tokens) = (codes.shape, codes.tokens);
        let mut bounds = vec![N::default(); shape.tables * (shape.codes() + 1)];
        let mut sorted = vec![N::default(); shape.tables * tokens];
        // Look-ups are spread over the whole arrays.
        in_large_pages(&mut bounds);
        in_large_pages(&mut sorted);
        let tables = sorted.par_chunks_exact_mut(tokens.max(1)).zip(bounds.par_chunks_exact_mut(shape.codes() + 1));
        tables.enumerate().for_each(|(table, (sorted, bounds))| sort_by_code(|| codes.of(table), sorted, bounds));
        Self::of(shape, tokens, bounds, sorted)
    }

    /// Makes tables from `bounds` `[table][2^K + 1]` and tokens `sorted` by code, `[table][token]`.
    pub(super) fn of(shape: Shape, tokens: usize, bounds: Vec<N>, sorted: Vec<N>) -> Self {
        let lengths = (shape.tables * (shape.codes() + 1), shape.tables * tokens);
        assert_eq!((bounds.len(), sorted.len()), lengths, "the tables do not hold {tokens} tokens each");
        Self { shape, tokens, bounds, sorted }
    }

    fn bytes(&self) -> usize {
        size_of_val(self.bounds.as_slice()) + size_of_val(self.sorted.as_slice())
    }

    fn visit_collisions(&self, sides: &[u64], mut visit: impl FnMut(usize)) -> usize {
        // All bounds are read first: many reads far apart are faster if none waits for a bucket's tokens.
        let bucket = |table: usize| {
            let at = table * (self.shape.codes() + 1) + self.shape.code(sides, table);
            table * self.tokens + self.bounds[at].widen()..table * self.tokens + self.bounds[at + 1].widen()
        };
        let buckets: Vec<Range<usize>> = (0..self.shape.tables).map(bucket).collect();
        buckets.iter().take(Self::AHEAD).for_each(|bucket| self.ask_for(bucket));
        let mut read = 0;
        for (table, bucket) in buckets.iter().enumerate() {
            if let Some(later) = buckets.get(table + Self::AHEAD) {
                self.ask_for(later);
            }
            read += 2 + bucket.len();
            self.sorted[bucket.clone()].iter().for_each(|t| visit(t.widen()));
        }
        read * size_of::<N>()
    }

    /// Prefetches the first tokens of a bucket that will be visited; the processor prefetches the rest once these are read.
    fn ask_for(&self, bucket: &Range<usize>) {
        const MOST: usize = 128;
        ask_for(&self.sorted[bucket.start..bucket.end.min(bucket.start + MOST)]);
    }
}

/// Sorts tokens by code: tokens go to `sorted`, and where each code begins to `bounds`. `pieces` are the codes in order.
fn sort_by_code<'a, N: TokenNumber, I: Iterator<Item = &'a [u16]>>(
    pieces: impl Fn() -> I,
    sorted: &mut [N],
    bounds: &mut [N],
) {
    let mut next = vec![0u32; bounds.len()];
    for piece in pieces() {
        for code in piece {
            next[usize::from(*code) + 1] += 1;
        }
    }
    let mut before = 0;
    for (next, bound) in next.iter_mut().zip(bounds) {
        before += *next;
        *next = before;
        *bound = N::narrow(before as usize);
    }
    let mut token = 0;
    for piece in pieces() {
        for code in piece {
            let place = &mut next[usize::from(*code)];
            sorted[*place as usize] = N::narrow(token);
            (*place, token) = (*place + 1, token + 1);
        }
    }
}

/// Finds tokens that collide in enough tables; reused from query to query.
pub(super) struct CollisionCounter {
    /// For each word of tokens, which of them collided in at least one table, and which in at least two; zeros between queries. Counts beyond
    /// two are not needed, and bits fit into the first-level cache, where counts would not.
    hits: Vec<[u64; 2]>,
}

impl CollisionCounter {
    /// The most tables in which a token may have to collide.
    const MOST: u8 = 2;
    /// Tokens of a word that are written without a branch.
    const FEW: usize = 2;

    pub fn new(tokens: usize) -> Self {
        Self { hits: vec![[0; 2]; tokens.div_ceil(u64::BITS as usize)] }
    }

    /// Tokens with the query's code in at least `least` tables, 1 or 2, ascending; adds the bytes read to `bytes`.
    pub fn sample(&mut self, tables: &HashTables, sides: &[u64], least: u8, bytes: &mut u64) -> Vec<u32> {
        assert!((1..=Self::MOST).contains(&least), "collisions are counted up to {}", Self::MOST);
        let hits = &mut self.hits;
        // Without a branch on what collided before, which could not be predicted.
        let read = tables.visit_collisions(sides, |token| {
            let ([once, twice], bit) = (&mut hits[token / u64::BITS as usize], 1 << (token % u64::BITS as usize));
            *twice |= *once & bit;
            *once |= bit;
        });
        *bytes += read as u64;
        self.take(least)
    }

    /// The tokens that collided in at least `least` tables, ascending; sets all to zero.
    fn take(&mut self, least: u8) -> Vec<u32> {
        let bits = u64::BITS as usize;
        let (mut sampled, mut found) = (Vec::new(), 0);
        for (first, words) in (0u32..).step_by(bits).zip(&mut self.hits) {
            let mut enough = std::mem::take(words)[usize::from(least) - 1];
            if sampled.len() < found + bits {
                sampled.resize(2 * sampled.len() + bits, 0);
            }
            let room = &mut sampled[found..][..bits];
            let mut count = 0;
            // Most words have few tokens. How many cannot be predicted, so that the first ones are written without a branch.
            for place in &mut room[..Self::FEW] {
                *place = first + enough.trailing_zeros();
                count += usize::from(enough != 0);
                enough &= enough.wrapping_sub(1);
            }
            while enough != 0 {
                room[count] = first + enough.trailing_zeros();
                (count, enough) = (count + 1, enough & (enough - 1));
            }
            found += count;
        }
        sampled.truncate(found);
        sampled
    }
}
