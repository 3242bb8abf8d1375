//! Hash tables of tokens: for each of `L` tables and `2^K` codes the tokens that have this code.
//!
//! A table is two arrays: all tokens sorted by code, and where each code begins. Both are 16 bits wide
//! below 65,536 tokens, else 32. A lookup touches two bounds and the bucket's tokens, nothing else.

use std::ops::Range;

use rayon::prelude::*;

use crate::kernels::cpu::hyperplanes::Hyperplanes;

/// How many tables of how many bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// `K`: hyperplanes of a table, bits of a code; at most [`Shape::MOST_BITS`].
    pub bits: usize,
    /// `L`.
    pub tables: usize,
}

impl Shape {
    /// A code is kept in 16 bits.
    pub const MOST_BITS: usize = u16::BITS as usize;

    /// Hyperplanes of all tables.
    pub fn planes(self) -> usize {
        self.bits * self.tables
    }

    /// Distinct codes of a table.
    fn codes(self) -> usize {
        1 << self.bits
    }

    /// The code in `table` of a vector whose side of each plane is in `sides`: bits `table·K` and on.
    fn code(self, sides: &[u64], table: usize) -> usize {
        let (word, shift) = (table * self.bits / 64, table * self.bits % 64);
        let mut code = sides[word] >> shift;
        if shift + self.bits > 64 {
            code |= sides[word + 1] << (64 - shift);
        }
        code as usize & (self.codes() - 1)
    }
}

/// The codes of all tokens, from which tables are sorted.
pub(super) struct Codes {
    shape: Shape,
    tokens: usize,
    /// Blocks of tokens, `[table][token of the block]` each.
    blocks: Vec<Vec<u16>>,
}

impl Codes {
    /// Tokens hashed at a time: their vectors and bits stay in the cache.
    const BLOCK: usize = 256;

    /// Hashes `tokens` vectors; `vectors` gives those of a range, `[token][planes.d()]`.
    pub fn hash(
        shape: Shape,
        planes: &Hyperplanes,
        tokens: usize,
        vectors: impl Fn(Range<usize>) -> Vec<f32> + Sync,
    ) -> Self {
        assert_eq!(planes.count(), shape.planes(), "K hyperplanes a table");
        let block = |first: usize| {
            let rows = vectors(first..(first + Self::BLOCK).min(tokens));
            let mut sides = vec![0; rows.len() / planes.d() * planes.words()];
            planes.side_bits(&rows, &mut sides);
            let code_of = |table| sides.chunks_exact(planes.words()).map(move |s| shape.code(s, table) as u16);
            (0..shape.tables).flat_map(code_of).collect()
        };
        let firsts: Vec<usize> = (0..tokens).step_by(Self::BLOCK).collect();
        Self { shape, tokens, blocks: firsts.into_par_iter().map(block).collect() }
    }

    /// Codes of all tokens in one table.
    pub fn of(&self, table: usize) -> impl Iterator<Item = u16> {
        self.blocks.iter().flat_map(move |block| {
            let tokens = block.len() / self.shape.tables;
            block[table * tokens..][..tokens].iter().copied()
        })
    }
}

/// All tables over one KV head's candidates; tokens are counted from the first candidate.
pub(super) enum HashTables {
    Narrow(Buckets<u16>),
    Wide(Buckets<u32>),
}

impl HashTables {
    pub fn new(codes: &Codes) -> Self {
        match u16::try_from(codes.tokens) {
            Ok(_) => Self::Narrow(Buckets::sort(codes)),
            Err(_) => Self::Wide(Buckets::sort(codes)),
        }
    }

    /// Tokens in each table.
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

    /// Visits every token once for each table in which it has the query's code; returns the bytes read.
    ///
    /// `sides` are the query's [side bits](Hyperplanes::side_bits).
    pub fn visit_collisions(&self, sides: &[u64], visit: impl FnMut(usize)) -> usize {
        match self {
            Self::Narrow(b) => b.visit_collisions(sides, visit),
            Self::Wide(b) => b.visit_collisions(sides, visit),
        }
    }
}

/// A number of a token that is stored in 16 or 32 bits.
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
    /// `[table][2^K + 1]`: where the tokens of a code begin; the last is their number.
    bounds: Vec<N>,
    /// `[table][token]`, by code, ascending within a code.
    sorted: Vec<N>,
}

impl<N: TokenNumber> Buckets<N> {
    fn sort(codes: &Codes) -> Self {
        let (shape, tokens) = (codes.shape, codes.tokens);
        let mut bounds = vec![N::default(); shape.tables * (shape.codes() + 1)];
        let mut sorted = vec![N::default(); shape.tables * tokens];
        bounds.par_chunks_exact_mut(shape.codes() + 1).enumerate().for_each(|(table, bounds)| {
            count_codes(codes.of(table), bounds);
        });
        let per_table = sorted.par_chunks_exact_mut(tokens.max(1)).zip(bounds.par_chunks_exact(shape.codes() + 1));
        per_table.enumerate().for_each(|(table, (sorted, bounds))| {
            let mut next: Vec<u32> = bounds.iter().map(|b| b.widen() as u32).collect();
            for (token, code) in codes.of(table).enumerate() {
                let place = &mut next[usize::from(code)];
                sorted[*place as usize] = N::narrow(token);
                *place += 1;
            }
        });
        Self { shape, tokens, bounds, sorted }
    }

    fn bytes(&self) -> usize {
        size_of_val(self.bounds.as_slice()) + size_of_val(self.sorted.as_slice())
    }

    fn visit_collisions(&self, sides: &[u64], mut visit: impl FnMut(usize)) -> usize {
        let mut read = 0;
        for table in 0..self.shape.tables {
            let at = table * (self.shape.codes() + 1) + self.shape.code(sides, table);
            let bucket = self.bounds[at].widen()..self.bounds[at + 1].widen();
            read += 2 + bucket.len();
            self.sorted[table * self.tokens..][bucket].iter().for_each(|t| visit(t.widen()));
        }
        read * size_of::<N>()
    }
}

/// Writes where each code begins when tokens are sorted by code.
fn count_codes<N: TokenNumber>(codes: impl Iterator<Item = u16>, bounds: &mut [N]) {
    let mut counts = vec![0u32; bounds.len()];
    for code in codes {
        counts[usize::from(code) + 1] += 1;
    }
    let mut before = 0;
    for (bound, count) in bounds.iter_mut().zip(counts) {
        before += count as usize;
        *bound = N::narrow(before);
    }
}

/// Counts collisions, from query to query without clearing what was not touched.
pub(super) struct CollisionCounter {
    /// Tables in which a token collided, up to what is asked for; 0 between queries.
    hits: Vec<u8>,
    touched: Vec<u32>,
}

impl CollisionCounter {
    pub fn new(tokens: usize) -> Self {
        Self { hits: vec![0; tokens], touched: Vec::new() }
    }

    /// Tokens that have the query's code in `least` tables or more, ascending; adds the bytes read.
    pub fn sample(&mut self, tables: &HashTables, sides: &[u64], least: u8, bytes: &mut u64) -> Vec<u32> {
        let (hits, touched) = (&mut self.hits, &mut self.touched);
        let mut sampled = Vec::new();
        let read = tables.visit_collisions(sides, |token| {
            let hits = &mut hits[token];
            if *hits == least {
                return;
            }
            if *hits == 0 {
                touched.push(token as u32);
            }
            *hits += 1;
            if *hits == least {
                sampled.push(token as u32);
            }
        });
        *bytes += read as u64;
        touched.drain(..).for_each(|token| hits[token as usize] = 0);
        sampled.sort_unstable();
        sampled
    }
}
