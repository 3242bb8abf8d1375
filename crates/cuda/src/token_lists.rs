//! [`TokenLists`]: the tokens that a device selected, as [`Attention`](super::Attention) attends them.
//!
//! Kernels write the lists, and can select candidates only, so that the host need not look at them.

use super::buffer::reserved;
use super::{Buffer, Gpu, GpuError};

/// Lists take memory in steps of this many bytes, so that those that grow with the context do not move at every step.
const LIST_STEP: usize = 1 << 18;
/// Numbers of lists are stored in multiples of this many bytes.
const WIDE: usize = 4;

/// Lists of tokens that a device selected, `[row][list][most]`, and how many each has.
#[derive(Debug, Default)]
pub struct TokenLists {
    tokens: Option<Buffer>,
    counts: Option<Buffer>,
    /// What each token's logit is lowered by.
    weights: Option<Buffer>,
    /// How many entries of an index each list took.
    entries: Option<Buffer>,
    /// What each query head's picks leave over, and what stands for that.
    shares: Option<Buffer>,
    values: Option<Buffer>,
    /// Query heads, KV heads and the width of a value, where something is left over.
    rest: Option<[usize; 3]>,
    rows: usize,
    layout: TokenListLayout,
    /// All tokens of each row lie below this one.
    ends: Vec<usize>,
}

/// What lists of tokens say, and how long they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenListLayout {
    /// Lists of a row.
    lists: usize,
    /// Tokens of a list at most.
    most: usize,
    /// Tokens that a list probably has, by which work is cut evenly.
    expected: usize,
    /// Whether lists also say what each token's logit is lowered by.
    is_weighted: bool,
    /// Whether lists also say how many entries of an index were read for them.
    is_counted: bool,
}

impl TokenListLayout {
    /// `lists` lists of a row, each of `most` tokens.
    pub fn new(lists: usize, most: usize) -> Self {
        Self { lists, most, expected: most, is_weighted: false, is_counted: false }
    }

    /// As long as it takes: about `expected` tokens.
    pub fn expecting(self, expected: usize) -> Self {
        Self { expected: expected.min(self.most), ..self }
    }

    /// With the number of entries of an index that were read.
    pub fn counted(self) -> Self {
        Self { is_counted: true, ..self }
    }

    /// With what each token's logit is lowered by, and [counted](Self::counted).
    pub fn weighted(self) -> Self {
        Self { is_weighted: true, ..self.counted() }
    }
}

/// One of [`TokenLists`].
#[derive(Debug, Clone, Copy)]
pub struct TokenList<'a> {
    lists: &'a TokenLists,
    index: usize,
}

impl TokenLists {
    /// Reserves lists of this layout for rows whose tokens lie below `ends`, one for each row. A launcher has to write all of them.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, layout: TokenListLayout, ends: Vec<usize>) -> Result<(), GpuError> {
        let (rows, TokenListLayout { lists, most, .. }) = (ends.len(), layout);
        let (of_tokens, of_lists) = (4 * rows * lists * most, 4 * rows * lists);
        (self.rows, self.ends, self.layout, self.rest) = (rows, ends, layout, None);
        gpu.reserve(&mut self.tokens, of_tokens.next_multiple_of(LIST_STEP))?;
        gpu.reserve(&mut self.counts, of_lists.next_multiple_of(WIDE))?;
        if layout.is_counted {
            gpu.reserve(&mut self.entries, of_lists.next_multiple_of(WIDE))?;
        }
        if layout.is_weighted {
            gpu.reserve(&mut self.weights, of_tokens.next_multiple_of(LIST_STEP))?;
        }
        Ok(())
    }

    /// Makes room for what the picks of `heads` query heads of each row leave over, as a share of their exponentials and those of
    /// what was not picked, and for a value `[d]` of each KV head that stands for it.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub(super) fn reserve_rests(&mut self, gpu: &Gpu, heads: usize, kv_heads: usize, d: usize) -> Result<(), GpuError> {
        assert!(self.layout.lists == heads || self.layout.lists == kv_heads, "{} lists of a row", self.layout.lists);
        self.rest = Some([heads, kv_heads, d]);
        gpu.reserve(&mut self.shares, (4 * self.rows * heads).next_multiple_of(WIDE))?;
        gpu.reserve(&mut self.values, 4 * kv_heads * d)
    }

    /// Where shares `[row][head]` of some rows and the values `[kv_head][d]` are.
    pub(super) fn rests(&self, first: usize, rows: usize) -> [u64; 2] {
        let [heads, kv_heads, d] = self.rest.expect("something is left over");
        assert!(first + rows <= self.rows, "rows up to {} of {}", first + rows, self.rows);
        let (shares, values) = (reserved(&self.shares, "shares left over"), reserved(&self.values, "values left over"));
        let values = values.address(0, 4 * kv_heads * d);
        [shares.address(4 * first * heads, 4 * rows * heads), values]
    }

    /// Where the share that a query head of a row leaves over is, and the value that stands for it; `None` if nothing is left over.
    ///
    /// # Panics
    /// If there is no such row or head.
    pub fn rest(&self, row: usize, head: usize) -> Option<[u64; 2]> {
        let [heads, kv_heads, d] = self.rest?;
        assert!(head < heads, "head {head} of {heads}");
        let [shares, values] = self.rests(row, 1);
        Some([shares + 4 * head as u64, values + (4 * (head / (heads / kv_heads)) * d) as u64])
    }

    /// Copies to the host the shares that the query heads of a row leave over.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If nothing is left over.
    pub fn download_shares(&self, gpu: &Gpu, row: usize) -> Result<Vec<f32>, GpuError> {
        let [heads, ..] = self.rest.expect("something is left over");
        let mut shares = vec![0.0; heads];
        gpu.download(reserved(&self.shares, "shares left over"), 4 * row * heads, &mut shares)?;
        Ok(shares)
    }

    /// Becomes one row, with the lists of a row of `from`, which are not weighted and leave nothing over.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there is no such row.
    pub fn keep(&mut self, gpu: &Gpu, from: &Self, row: usize) -> Result<(), GpuError> {
        let TokenListLayout { lists, most, .. } = from.layout;
        assert!(row < from.rows && !from.layout.is_weighted && from.rest.is_none(), "row {row} of {}", from.rows);
        self.resize(gpu, TokenListLayout::new(lists, most), vec![from.ends[row]])?;
        let parts = [(&from.tokens, &mut self.tokens, 4 * lists * most), (&from.counts, &mut self.counts, 4 * lists)];
        for (from, to, bytes) in parts {
            let to = to.as_mut().expect("it was just reserved");
            gpu.copy(reserved(from, "token lists"), row * bytes, to, 0, bytes)?;
        }
        Ok(())
    }

    /// All tokens lie below this one.
    pub fn end(&self) -> usize {
        self.ends.iter().copied().max().unwrap_or(0)
    }

    /// Rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether lists say how many entries of an index were read for them.
    pub(super) fn is_counted(&self) -> bool {
        self.layout.is_counted
    }

    /// Lists of a row.
    pub fn lists(&self) -> usize {
        self.layout.lists
    }

    /// Tokens that a list has at most.
    pub fn most(&self) -> usize {
        self.layout.most
    }

    /// Tokens that a list probably has.
    pub fn expected(&self) -> usize {
        self.layout.expected
    }

    /// A list of a row.
    ///
    /// # Panics
    /// If there is none.
    pub fn list(&self, row: usize, list: usize) -> TokenList<'_> {
        assert!(row < self.rows && list < self.layout.lists, "list {list} of row {row}");
        TokenList { lists: self, index: row * self.layout.lists + list }
    }

    /// Copies one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn download(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<u32>, GpuError> {
        let (mut count, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.counts, "list lengths"), 4 * index, &mut count)?;
        let mut list = vec![0; count[0] as usize];
        gpu.download(reserved(&self.tokens, "token lists"), 4 * index * self.layout.most, &mut list)?;
        Ok(list)
    }

    /// Copies to the host what the logits of one list are lowered by.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If nothing is lowered.
    pub fn download_weights(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<f32>, GpuError> {
        assert!(self.layout.is_weighted, "lists of tokens alone");
        let (mut count, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.counts, "list lengths"), 4 * index, &mut count)?;
        let mut weights = vec![0.0; count[0] as usize];
        gpu.download(reserved(&self.weights, "weights"), 4 * index * self.layout.most, &mut weights)?;
        Ok(weights)
    }

    /// Copies to the host how many entries of an index one list took.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If they are not counted.
    pub fn download_entries(&self, gpu: &Gpu, row: usize, list: usize) -> Result<u32, GpuError> {
        assert!(self.layout.is_counted, "lists of tokens alone");
        let (mut entries, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.entries, "entry counts"), 4 * index, &mut entries)?;
        Ok(entries[0])
    }

    /// Where the weights of all lists from a row on are.
    pub(super) fn weights(&self, row: usize) -> u64 {
        assert!(self.layout.is_weighted, "lists of tokens alone");
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        let weights = reserved(&self.weights, "weights");
        weights.address(4 * first * self.layout.most, 4 * rows * self.layout.lists * self.layout.most)
    }

    /// Where the numbers of entries of all lists from a row on are.
    pub(super) fn entries(&self, row: usize) -> u64 {
        assert!(self.layout.is_counted, "lists of tokens alone");
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        reserved(&self.entries, "entry counts").address(4 * first, 4 * rows * self.layout.lists)
    }

    /// Checks that there is room for `most` tokens below `end` in each of so many rows and lists.
    ///
    /// # Panics
    /// If there is not.
    pub(super) fn assert_room(&self, [rows, lists]: [usize; 2], most: usize, end: usize) {
        assert!(self.rows >= rows && self.layout.lists == lists, "{rows} rows of {lists} lists");
        assert!(
            self.layout.most >= most && self.end() >= end,
            "lists of {} tokens below {}",
            self.layout.most,
            self.end()
        );
    }

    /// Addresses of tokens and counts from a row on.
    pub(super) fn addresses(&self, row: usize) -> [u64; 2] {
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        let (tokens, counts) = (reserved(&self.tokens, "token lists"), reserved(&self.counts, "list lengths"));
        let counts = counts.address(4 * first, 4 * rows * self.layout.lists);
        [tokens.address(4 * first * self.layout.most, 4 * rows * self.layout.lists * self.layout.most), counts]
    }
}

impl TokenList<'_> {
    /// Tokens that it has at most.
    pub fn most(&self) -> usize {
        self.lists.layout.most
    }

    /// Tokens that it probably has.
    pub fn expected(&self) -> usize {
        self.lists.layout.expected
    }

    /// All its tokens lie below this one.
    pub(super) fn end(&self) -> usize {
        self.lists.ends[self.index / self.lists.layout.lists]
    }

    /// Where its tokens and their count are.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let TokenLists { tokens, counts, layout: TokenListLayout { most, .. }, .. } = self.lists;
        let (tokens, counts) = (reserved(tokens, "token lists"), reserved(counts, "list lengths"));
        [tokens.address(4 * self.index * most, 4 * most), counts.address(4 * self.index, 4)]
    }

    /// Where what its logits are lowered by is; 0 if they are not.
    pub(super) fn weights(&self) -> u64 {
        let TokenLists { weights, layout: TokenListLayout { most, is_weighted, .. }, .. } = self.lists;
        let weights = weights.as_ref().filter(|_| *is_weighted);
        weights.map_or(0, |weights| weights.address(4 * self.index * most, 4 * most))
    }
}
