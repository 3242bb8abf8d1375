//! [`TokenLists`]: tokens selected on the device, which an [`Attention`](super::Attention) attends.
//!
//! Kernels write only candidates to the lists, so the lists need no check on the host.

use super::buffer::reserved;
use super::fetched::FetchedTokens;
use super::{Buffer, Gpu, GpuError};

/// Lists are allocated in steps of this many bytes, so that lists that grow with the context are not reallocated at every step.
const LIST_STEP: usize = 1 << 18;
/// Counts of lists are stored in multiples of this many bytes.
const WIDE: usize = 4;

/// Lists of tokens selected on the device, `[row][list][most]`, and the number of tokens in each list.
#[derive(Debug, Default)]
pub struct TokenLists {
    tokens: Option<Buffer>,
    counts: Option<Buffer>,
    /// What is subtracted from each token's logit.
    weights: Option<Buffer>,
    /// How many index entries were read for each list.
    entries: Option<Buffer>,
    /// For each query head, the unselected tokens' share of the mass; and for each KV head, the value that represents these tokens.
    shares: Option<Buffer>,
    values: Option<Buffer>,
    /// Query heads, KV heads and channels of a value, if unselected tokens are represented.
    rest: Option<[usize; 3]>,
    rows: usize,
    layout: TokenListLayout,
    /// For each row, a position above all its tokens.
    ends: Vec<usize>,
    /// Keys and values of the tokens, if these were fetched since the lists were [resized](Self::resize).
    pub(super) fetched: FetchedTokens,
}

/// What lists of tokens hold, and how long they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenListLayout {
    /// Number of lists of a row.
    lists: usize,
    /// The most tokens of a list.
    most: usize,
    /// The expected number of tokens of a list, by which work is divided evenly.
    expected: usize,
    /// Whether lists also hold what is subtracted from each token's logit.
    is_weighted: bool,
    /// Whether lists also count the index entries that were read for them.
    is_counted: bool,
}

impl TokenListLayout {
    /// `lists` lists for each row, of `most` tokens each.
    pub fn new(lists: usize, most: usize) -> Self {
        Self { lists, most, expected: most, is_weighted: false, is_counted: false }
    }

    /// Lists whose lengths depend on the data: about `expected` tokens.
    pub fn expecting(self, expected: usize) -> Self {
        Self { expected: expected.min(self.most), ..self }
    }

    /// Lists that also count the index entries that were read.
    pub fn counted(self) -> Self {
        Self { is_counted: true, ..self }
    }

    /// Lists that also hold what is subtracted from each token's logit, and are [counted](Self::counted).
    pub fn weighted(self) -> Self {
        Self { is_weighted: true, ..self.counted() }
    }
}

/// One list of [`TokenLists`].
#[derive(Debug, Clone, Copy)]
pub struct TokenList<'a> {
    lists: &'a TokenLists,
    index: usize,
}

impl TokenLists {
    /// Reserves lists of this layout for rows whose tokens are below `ends`, one for each row. A launcher must write all of them. Copies
    /// fetched for earlier tokens are no longer attended.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn resize(&mut self, gpu: &Gpu, layout: TokenListLayout, ends: Vec<usize>) -> Result<(), GpuError> {
        let (rows, TokenListLayout { lists, most, .. }) = (ends.len(), layout);
        let (of_tokens, of_lists) = (4 * rows * lists * most, 4 * rows * lists);
        self.fetched.forget(gpu)?;
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

    /// Copies lists that the host selected to the device, as the lists of one row. Their tokens are below `end`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a token is not below `end`.
    pub fn upload(gpu: &Gpu, lists: &[Vec<u32>], end: usize) -> Result<Self, GpuError> {
        let beyond = lists.iter().flatten().find(|token| **token as usize >= end);
        assert!(beyond.is_none(), "token {beyond:?} is beyond {end} tokens");
        let most = lists.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mean = lists.iter().map(Vec::len).sum::<usize>().div_ceil(lists.len().max(1));
        let mut tokens = vec![0u32; lists.len() * most];
        for (to, list) in tokens.chunks_exact_mut(most).zip(lists) {
            to[..list.len()].copy_from_slice(list);
        }
        let counts: Vec<u32> = lists.iter().map(|list| list.len() as u32).collect();
        // They never grow, so they take no more memory than they need.
        Ok(Self {
            tokens: Some(gpu.upload(&tokens)?),
            counts: Some(gpu.upload(&counts)?),
            rows: 1,
            ends: vec![end],
            layout: TokenListLayout::new(lists.len(), most).expecting(mean),
            ..Self::default()
        })
    }

    /// Reserves memory for what represents the unselected tokens: their share of the mass of all candidates for each of `heads` query
    /// heads of each row, and a value `[d]` for each KV head.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub(super) fn reserve_rests(&mut self, gpu: &Gpu, heads: usize, kv_heads: usize, d: usize) -> Result<(), GpuError> {
        assert!(
            self.layout.lists == heads || self.layout.lists == kv_heads,
            "{} lists in a row do not fit {heads} query heads and {kv_heads} KV heads",
            self.layout.lists
        );
        self.rest = Some([heads, kv_heads, d]);
        gpu.reserve(&mut self.shares, (4 * self.rows * heads).next_multiple_of(WIDE))?;
        gpu.reserve(&mut self.values, 4 * kv_heads * d)
    }

    /// Returns the addresses of the shares `[row][head]` from row `first` on, and of the values `[kv_head][d]`.
    pub(super) fn rests(&self, first: usize, rows: usize) -> [u64; 2] {
        let [heads, kv_heads, d] = self.rest.expect("`reserve_rests` reserved the shares of unselected tokens");
        assert!(first + rows <= self.rows, "rows {first} to {} do not lie in {} rows", first + rows, self.rows);
        let (shares, values) = (reserved(&self.shares, "shares left over"), reserved(&self.values, "values left over"));
        let values = values.address(0, 4 * kv_heads * d);
        [shares.address(4 * first * heads, 4 * rows * heads), values]
    }

    /// Returns the addresses of the unselected tokens' share for a query head of a row, and of the value that represents these tokens;
    /// `None` if they are not represented.
    ///
    /// # Panics
    /// If there is no such row or head.
    pub fn rest(&self, row: usize, head: usize) -> Option<[u64; 2]> {
        let [heads, kv_heads, d] = self.rest?;
        assert!(head < heads, "query head {head} is beyond {heads} query heads");
        let [shares, values] = self.rests(row, 1);
        Some([shares + 4 * head as u64, values + (4 * (head / (heads / kv_heads)) * d) as u64])
    }

    /// Copies the unselected tokens' shares of the query heads of a row to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If unselected tokens are not represented.
    pub fn download_shares(&self, gpu: &Gpu, row: usize) -> Result<Vec<f32>, GpuError> {
        let [heads, ..] = self.rest.expect("`reserve_rests` reserved the shares of unselected tokens");
        let mut shares = vec![0.0; heads];
        gpu.download(reserved(&self.shares, "shares left over"), 4 * row * heads, &mut shares)?;
        Ok(shares)
    }

    /// Makes these lists a copy of one row of `from`, whose lists must have no weights and no shares of unselected tokens.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If there is no such row, or the lists of `from` have weights or such shares.
    pub fn keep(&mut self, gpu: &Gpu, from: &Self, row: usize) -> Result<(), GpuError> {
        let TokenListLayout { lists, most, .. } = from.layout;
        assert!(
            row < from.rows && !from.layout.is_weighted && from.rest.is_none(),
            "row {row} is beyond {} rows, or the lists have weights",
            from.rows
        );
        self.resize(gpu, TokenListLayout::new(lists, most), vec![from.ends[row]])?;
        let parts = [(&from.tokens, &mut self.tokens, 4 * lists * most), (&from.counts, &mut self.counts, 4 * lists)];
        for (from, to, bytes) in parts {
            let to = to.as_mut().expect("`resize` reserved the lists");
            gpu.copy(reserved(from, "token lists"), row * bytes, to, 0, bytes)?;
        }
        Ok(())
    }

    /// Whether the tokens were [fetched](Gpu::fetch_tokens), so that attention reads the copies.
    pub fn has_copies(&self) -> bool {
        self.fetched.is_there()
    }

    /// Takes over the fetched copies of equal lists, which then have none. Memory changes hands too, so nothing is copied.
    ///
    /// # Panics
    /// If the lists differ in number or length, or either has several rows.
    pub fn take_copies(&mut self, from: &mut Self) {
        let of = |lists: &Self| (lists.rows, lists.layout.lists, lists.layout.most);
        assert!(of(self) == of(from) && self.rows == 1, "lists {:?} take the copies of {:?}", of(self), of(from));
        assert!(!self.has_copies(), "the lists have copies already");
        std::mem::swap(&mut self.fetched, &mut from.fetched);
    }

    /// A position above all tokens.
    pub fn end(&self) -> usize {
        self.ends.iter().copied().max().unwrap_or(0)
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether lists count the index entries that were read for them.
    pub(super) fn is_counted(&self) -> bool {
        self.layout.is_counted
    }

    /// Number of lists in a row.
    pub fn lists(&self) -> usize {
        self.layout.lists
    }

    /// The most tokens of a list.
    pub fn most(&self) -> usize {
        self.layout.most
    }

    /// Expected number of tokens of a list.
    pub fn expected(&self) -> usize {
        self.layout.expected
    }

    /// Returns one list of a row.
    ///
    /// # Panics
    /// If there is no such list.
    pub fn list(&self, row: usize, list: usize) -> TokenList<'_> {
        assert!(
            row < self.rows && list < self.layout.lists,
            "list {list} or row {row} is beyond {} lists of {} rows",
            self.layout.lists,
            self.rows
        );
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

    /// Copies the weights of one list, which are subtracted from logits, to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists have no weights.
    pub fn download_weights(&self, gpu: &Gpu, row: usize, list: usize) -> Result<Vec<f32>, GpuError> {
        assert!(self.layout.is_weighted, "the lists have no weights");
        let (mut count, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.counts, "list lengths"), 4 * index, &mut count)?;
        let mut weights = vec![0.0; count[0] as usize];
        gpu.download(reserved(&self.weights, "weights"), 4 * index * self.layout.most, &mut weights)?;
        Ok(weights)
    }

    /// Copies the number of index entries that were read for one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the lists do not count them.
    pub fn download_entries(&self, gpu: &Gpu, row: usize, list: usize) -> Result<u32, GpuError> {
        assert!(self.layout.is_counted, "the lists do not count index entries");
        let (mut entries, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.entries, "entry counts"), 4 * index, &mut entries)?;
        Ok(entries[0])
    }

    /// Copies the fetched keys and values of the tokens of one list to the host.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If they were not fetched, or no work waits for them yet.
    pub fn download_fetched(&self, gpu: &Gpu, row: usize, list: usize) -> Result<[Vec<u8>; 2], GpuError> {
        let (mut count, index) = ([0u32], self.list(row, list).index);
        gpu.download(reserved(&self.counts, "list lengths"), 4 * index, &mut count)?;
        self.fetched.download(gpu, index * self.layout.most, count[0] as usize)
    }

    /// Returns the address of the weights of all lists from a row on.
    pub(super) fn weights(&self, row: usize) -> u64 {
        assert!(self.layout.is_weighted, "the lists have no weights");
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        let weights = reserved(&self.weights, "weights");
        weights.address(4 * first * self.layout.most, 4 * rows * self.layout.lists * self.layout.most)
    }

    /// Returns the address of the index entry counts of all lists from a row on.
    pub(super) fn entries(&self, row: usize) -> u64 {
        assert!(self.layout.is_counted, "the lists do not count index entries");
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        reserved(&self.entries, "entry counts").address(4 * first, 4 * rows * self.layout.lists)
    }

    /// Checks that the lists have at least `rows` rows of `lists` lists, each with memory for `most` tokens below `end`.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn assert_room(&self, [rows, lists]: [usize; 2], most: usize, end: usize) {
        assert!(
            self.rows >= rows && self.layout.lists == lists,
            "lists are {} rows of {}, not {rows} of {lists}",
            self.rows,
            self.layout.lists
        );
        assert!(
            self.layout.most >= most && self.end() >= end,
            "lists hold {} tokens below {}, not {most} below {end}",
            self.layout.most,
            self.end()
        );
    }

    /// Returns the addresses of the tokens and of the counts from a row on.
    pub(super) fn addresses(&self, row: usize) -> [u64; 2] {
        let (rows, first) = (self.rows - row, row * self.layout.lists);
        let (tokens, counts) = (reserved(&self.tokens, "token lists"), reserved(&self.counts, "list lengths"));
        let counts = counts.address(4 * first, 4 * rows * self.layout.lists);
        [tokens.address(4 * first * self.layout.most, 4 * rows * self.layout.lists * self.layout.most), counts]
    }
}

impl TokenList<'_> {
    /// The most tokens of the list.
    pub fn most(&self) -> usize {
        self.lists.layout.most
    }

    /// Expected number of tokens of the list.
    pub fn expected(&self) -> usize {
        self.lists.layout.expected
    }

    /// A position above all its tokens.
    pub(super) fn end(&self) -> usize {
        self.lists.ends[self.index / self.lists.layout.lists]
    }

    /// Returns the addresses of its tokens and of their count.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let TokenLists { tokens, counts, layout: TokenListLayout { most, .. }, .. } = self.lists;
        let (tokens, counts) = (reserved(tokens, "token lists"), reserved(counts, "list lengths"));
        [tokens.address(4 * self.index * most, 4 * most), counts.address(4 * self.index, 4)]
    }

    /// Returns the addresses of the keys and of the values of its tokens, each `[most][d]`; zeros if they were not fetched.
    ///
    /// # Panics
    /// If they are being fetched and no work waits for them yet.
    pub(super) fn fetched(&self) -> [u64; 2] {
        self.lists.fetched.addresses(self.index, self.lists.layout.most)
    }

    /// Returns the address of what is subtracted from its logits; 0 if nothing is.
    pub(super) fn weights(&self) -> u64 {
        let TokenLists { weights, layout: TokenListLayout { most, is_weighted, .. }, .. } = self.lists;
        let weights = weights.as_ref().filter(|_| *is_weighted);
        weights.map_or(0, |weights| weights.address(4 * self.index * most, 4 * most))
    }
}
