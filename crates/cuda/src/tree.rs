//! A tree search for the blocks of keys with the highest scores (HiP).

use std::ops::Range;

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::host_device_vec::HostDeviceVec;
use super::key_cache::{DeviceKeyCache, KeyCache, ROUNDS};
use super::launch::Cache;
use super::queries::{Pages, Queries};
use super::scores::Scores;
use super::token_lists::{TokenListLayout, TokenLists};
use super::{Buffer, Gpu, GpuError, failed};

/// Threads of a CUDA block, and branches that it scores.
const THREADS: u32 = 128;
const BRANCHES: usize = 64;
/// The most queries that can search together on tensor cores.
const TILE_QUERIES: usize = 16;
/// Threads of a block that writes tokens.
const WRITERS: u32 = 1024;
/// Bytes of a span of blocks of keys.
const SPAN_BYTES: usize = 8;

/// What is searched, and how branches are scored.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The candidates.
    pub tokens: Range<usize>,
    /// Number of tokens of a block.
    pub size: usize,
    /// One of every `stride` keys of the block that represents a branch is scored.
    pub stride: usize,
    /// Whether the last of every `stride` keys is scored, instead of the first.
    pub last: bool,
    /// Which block represents a branch: from 0 for the first to 1 for the last.
    pub representative: f64,
}

impl Tree {
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.tokens.len().div_ceil(self.size)
    }

    /// Number of rounds until each of `keep` chunks is one block.
    pub fn rounds(&self, keep: usize) -> u32 {
        rounds(self.blocks(), keep)
    }
}

/// Number of rounds until each of `keep` chunks of `blocks` blocks is one block.
fn rounds(blocks: usize, keep: usize) -> u32 {
    match keep < blocks {
        true => blocks.div_ceil(keep.max(1)).next_power_of_two().trailing_zeros(),
        false => 0,
    }
}

/// The keys that a search scores.
#[derive(Debug, Clone, Copy)]
pub struct SearchedKeys<'a> {
    /// Keys of the prefix.
    pub prefix: &'a Cache<'a>,
    /// The candidates of rows after the prefix, if there are any.
    pub tails: Option<TreeTails<'a>>,
    /// A cache of keys of the prefix, which is in host memory.
    pub cached: Option<&'a KeyCache>,
}

/// Candidates of rows after the prefix.
#[derive(Debug, Clone, Copy)]
pub struct TreeTails<'a> {
    /// Number of tokens of the prefix.
    pub prefix_tokens: usize,
    /// Where the candidates of each row end.
    pub ends: &'a [usize],
    /// Keys of each row's sequence after the prefix.
    pub keys: &'a [Cache<'a>],
}

/// Mirrors the kernel's struct `Behind`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceTails {
    rows: u64,
    bound: u32,
    unused: u32,
}

// SAFETY: laid out as the kernel's struct.
unsafe impl DeviceRepr for DeviceTails {}

/// Words of a row as kernels read it.
const ROW_WORDS: usize = 3;

impl TreeTails<'_> {
    /// Returns the rows as kernels read them; their candidates begin with token `first`.
    ///
    /// # Panics
    /// If a row has candidates beyond its keys.
    fn words(&self, first: usize) -> Vec<u64> {
        let of_row = |(end, keys): (&usize, &Cache<'_>)| -> [u64; ROW_WORDS] {
            assert!(
                first <= *end && *end <= self.prefix_tokens + keys.capacity,
                "candidates {first} to {end} do not lie in {} tokens behind a prefix of {}",
                keys.capacity,
                self.prefix_tokens
            );
            [keys.key(0, 0), keys.head_stride(), (end - first) as u64]
        };
        self.ends.iter().zip(self.keys).flat_map(of_row).collect()
    }
}

/// Mirrors the kernels' struct `Tree`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceTree {
    tokens: u32,
    size: u32,
    stride: u32,
    last: u32,
    representative: f64,
}

// SAFETY: laid out as the kernels' struct.
unsafe impl DeviceRepr for DeviceTree {}

impl DeviceTree {
    pub(super) fn of(tree: &Tree) -> Self {
        Self {
            tokens: tree.tokens.len() as u32,
            size: tree.size as u32,
            stride: tree.stride as u32,
            last: u32::from(tree.last),
            representative: tree.representative,
        }
    }
}

/// Memory for the state between the rounds of a search.
#[derive(Debug, Default)]
pub struct TreeWorkspace {
    spans: [Option<Buffer>; 2],
    /// How many keys were scored, for each list and round; zero between searches.
    scored: Option<Buffer>,
    /// How many of these were found in a key cache; zero between searches.
    found: Option<Buffer>,
    /// Room for the keys that a search with a key cache reads over the bus.
    staged: Option<Buffer>,
    scores: Scores,
    kept: TokenLists,
    /// The rows' candidates, if some follow the prefix.
    rows: HostDeviceVec<u64>,
}

impl TreeWorkspace {
    /// Reserves what a search with `lists` lists needs beside, to read through a key cache. Returns the cache for candidates that begin
    /// with token `first`, and the address of the counts of keys found.
    fn begin_cached(
        &mut self,
        gpu: &Gpu,
        cache: &KeyCache,
        lists: usize,
        first: usize,
    ) -> Result<(DeviceKeyCache, u64), GpuError> {
        let found = gpu.reserved(&mut self.found, 4 * lists * ROUNDS)?.address(0, 4 * lists * ROUNDS);
        let staged = gpu.reserved(&mut self.staged, cache.shape().staged_bytes())?;
        Ok((cache.on_device(first, staged), found))
    }
}

impl Gpu {
    /// Searches for key blocks with the queries of each row, and writes their tokens to `lists`, which must have room for them: by
    /// query head, or by KV head, whose query heads then search together. `keeps` has the number of blocks that are kept for each
    /// row. The lists' [entries](crate::TokenListLayout::counted) are the keys that were scored. A row's candidates are those of the
    /// tree, followed by those of the tails. With a key cache, keys of the prefix are read through it, for all rows.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or the key cache is of another prefix.
    pub fn search_tree(
        &self,
        queries: &Queries<'_>,
        searched_keys: &SearchedKeys<'_>,
        tree: &Tree,
        keeps: &HostDeviceVec<u32>,
        lists: &mut TokenLists,
        workspace: &mut TreeWorkspace,
    ) -> Result<(), GpuError> {
        let &SearchedKeys { prefix: keys, tails, cached } = searched_keys;
        let (rows, d, storage, heads) = (keeps.numbers().len(), keys.d, keys.storage, queries.heads);
        let count = lists.lists();
        assert!(
            tree.tokens.end <= keys.capacity && (1..=tree.size).contains(&tree.stride),
            "the tree does not fit a cache of {} tokens: {tree:?}",
            keys.capacity
        );
        assert!(
            queries.rows.numbers().len() == rows && (count == heads || count == keys.kv_heads),
            "{} rows of queries do not fit {rows} rows, or {count} lists {heads} query heads",
            queries.rows.numbers().len()
        );
        assert!(
            d.is_multiple_of(8) && d <= 256 && heads.is_multiple_of(keys.kv_heads),
            "the kernel does not support {heads} query heads of {d} channels"
        );
        let is_of_prefix = |cache: &KeyCache| {
            let of = cache.shape();
            let alike = (of.kv_heads, of.d, of.storage) == (keys.kv_heads, d, storage);
            alike && tails.map_or(tree.tokens.end <= of.tokens, |tails| tails.prefix_tokens == of.tokens)
        };
        assert!(cached.is_none_or(is_of_prefix), "a cache of another prefix: {cached:?}");
        let lengths: Vec<usize> = match tails {
            Some(TreeTails { ends, keys, prefix_tokens }) => {
                assert!(
                    ends.len() == rows && keys.len() == rows && tree.tokens.start <= prefix_tokens,
                    "{} tails do not fit {rows} rows",
                    keys.len()
                );
                ends.iter().map(|end| end - tree.tokens.start).collect()
            }
            None => vec![tree.tokens.len(); rows],
        };
        // For each row, how many blocks are kept, and how many there are.
        let kept_of: Vec<(usize, usize)> = keeps
            .numbers()
            .iter()
            .zip(&lengths)
            .map(|(keep, length)| (*keep as usize, length.div_ceil(tree.size)))
            .collect();
        let searched = kept_of.iter().filter(|(keep, blocks)| keep < blocks).map(|(keep, _)| *keep).max().unwrap_or(0);
        let needed = kept_of.iter().zip(&lengths).map(|((keep, _), length)| (keep * tree.size).min(*length)).max();
        assert!(
            lists.most() >= needed.unwrap_or(0),
            "lists hold {} tokens, fewer than the kept blocks have",
            lists.most()
        );
        let columns = 2 * searched;
        workspace.scores.resize(self, rows, count, columns)?;
        // Rows that keep all blocks do not search, but `top_pages` runs for them too and keeps every column.
        let longest = if kept_of.iter().all(|(keep, blocks)| keep < blocks) { searched } else { columns };
        workspace.kept.resize(self, TokenListLayout::new(count, longest), vec![columns; rows])?;
        for spans in &mut workspace.spans {
            self.reserve(spans, SPAN_BYTES * (rows * count * columns).max(1))?;
        }
        self.reserve(&mut workspace.scored, 4 * rows * count * ROUNDS)?;
        let cache = cached.map(|cache| workspace.begin_cached(self, cache, rows * count, tree.tokens.start));
        let (cache, found) = cache.transpose()?.unzip();
        let TreeWorkspace {
            spans: [Some(first), Some(second)], scored: Some(scored), scores, kept, rows: table, ..
        } = workspace
        else {
            unreachable!("the workspace's buffers were reserved above")
        };
        let [mut before, mut after] =
            [&*first, &*second].map(|spans| spans.address(0, SPAN_BYTES * rows * count * columns));
        let scored = scored.address(0, 4 * rows * count * ROUNDS);
        let on_device = DeviceTree::of(tree);
        let mut behind = DeviceTails { rows: 0, bound: u32::MAX, unused: 0 };
        if let Some(tails) = tails.filter(|_| rows > 0) {
            table.set(self, tails.words(tree.tokens.start))?;
            let bound = (tails.prefix_tokens - tree.tokens.start) as u32;
            behind = DeviceTails { rows: table.address(0..ROW_WORDS * rows), bound, unused: 0 };
        }
        let (from, list) = (queries.address(0..rows, d, storage), queries.list(0..rows));
        let (own_keys, head_stride, row_stride) =
            (keys.key(0, tree.tokens.start), keys.head_stride(), queries.stride as u64);
        let (group, shared, width) =
            ((heads / keys.kv_heads) as i32, i32::from(count != heads || heads == keys.kv_heads), d as i32);
        let (of_keeps, stride, span_most) = (keeps.address(0..rows), scores.stride() as u64, columns as u32);
        let lanes = d.next_power_of_two().max(64) / 8;
        let queries_of_list = if shared == 1 { group as usize } else { 1 };
        let through = if cache.is_some() { "_cached" } else { "" };
        let name = match storage.fits_tiles(d) && queries_of_list <= TILE_QUERIES {
            true => format!("branches_tiles{through}_{}_{d}", storage.name()),
            false => format!("branches{through}_{}_{lanes}", storage.name()),
        };
        let branches = self.function("tree_search", &name)?;
        let slots = Pages { tokens: 0..columns, size: 1 };
        // Rows that keep more blocks finish earlier: a chunk of one block stays as it is.
        let last = kept_of.iter().filter(|(keep, _)| *keep > 0).map(|(keep, blocks)| rounds(*blocks, *keep)).max();
        for round in 0..last.unwrap_or(0) {
            let [kept_at, _] = kept.addresses(0);
            let (known, kept_most) = (if round == 0 { 0u64 } else { kept_at }, kept.most() as u32);
            let at_round = |counts: u64| counts + 4 * u64::from(round);
            let (to, of_round, found_of_round) = (scores.address(), at_round(scored), found.map(at_round));
            let mut launch = self.launch(&branches);
            launch.arg(&list).arg(&from).arg(&row_stride).arg(&group).arg(&shared).arg(&own_keys).arg(&head_stride);
            launch
                .arg(&width)
                .arg(&on_device)
                .arg(&behind)
                .arg(&of_keeps)
                .arg(&before)
                .arg(&known)
                .arg(&kept_most)
                .arg(&after);
            launch.arg(&span_most).arg(&to).arg(&stride).arg(&of_round);
            if let (Some(cache), Some(found)) = (&cache, &found_of_round) {
                launch.arg(cache).arg(&round).arg(found);
            }
            let grid = (columns.div_ceil(BRANCHES) as u32, count as u32, rows as u32);
            let grid = LaunchConfig { grid_dim: grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: queries, keys, spans, kept blocks and scores are as long as checked and reserved above. A cache is that of the prefix.
            unsafe { launch.launch(grid) }.map_err(failed("searching"))?;
            self.top_pages(scores, (keeps, None), 0, &slots, kept)?;
            std::mem::swap(&mut before, &mut after);
        }
        let function = self.function("tree_search", "found_tokens")?;
        let ([kept_at, _], kept_most, first) = (kept.addresses(0), kept.most() as u32, tree.tokens.start as u32);
        let ([tokens, counts], entries, token_most) = (lists.addresses(0), lists.entries(0), lists.most() as u32);
        let mut launch = self.launch(&function);
        launch
            .arg(&on_device)
            .arg(&behind)
            .arg(&of_keeps)
            .arg(&before)
            .arg(&span_most)
            .arg(&kept_at)
            .arg(&kept_most)
            .arg(&first);
        let (found, hits) = (found.unwrap_or(0), cache.map_or(0, |cache| cache.hits));
        let lists_each = (count / keys.kv_heads) as u32;
        launch.arg(&tokens).arg(&token_most).arg(&counts).arg(&scored).arg(&entries);
        launch.arg(&found).arg(&hits).arg(&lists_each);
        let grid =
            LaunchConfig { grid_dim: (count as u32, rows as u32, 1), block_dim: (WRITERS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: spans, kept blocks and lists are as long as checked and reserved above.
        unsafe { launch.launch(grid) }.map_err(failed("searching"))?;
        match (cached, &cache) {
            (Some(cached), Some(cache)) if last.is_some_and(|rounds| rounds > 0) => {
                self.keep_staged(cached.shape(), cache)
            }
            _ => Ok(()),
        }
    }
}
