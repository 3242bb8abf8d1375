//! Scores over the channels that queries choose, and the unselected tokens' share (SparQ): launchers of `kernels/channel_scores.cu`.

use std::ops::Range;

use cudarc::driver::LaunchConfig;

use super::buffer::reserved;
use super::launch::Cache;
use super::queries::Queries;
use super::scores::{Reduction, ScoreWorkspace};
use super::token_lists::TokenLists;
use super::{Buffer, Gpu, GpuError, Storage, failed};

/// Tokens of a block that scores, and tokens of each of its threads.
const TILE: usize = 1024;
const PIECE: usize = 8;
const THREADS: u32 = 128;
/// Query heads that one block scores.
const QUERIES: usize = 8;
/// The widest head, and the side of a tile that is transposed.
const WIDEST: usize = 256;
const SIDE: usize = 32;
/// Chunks of a context whose values are summed separately, and threads of a block that reads all logits of a head.
const CHUNKS: usize = 64;
const REST_THREADS: u32 = 256;

/// Keys of a layer by channel, `[kv_head][d][stride]`, and mean values of KV heads, `[kv_head][d]` in f32.
#[derive(Debug, Clone, Copy)]
pub struct KeysByChannel<'a> {
    /// The keys.
    pub keys: &'a Buffer,
    /// The means.
    pub means: &'a Buffer,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Type of the keys.
    pub storage: Storage,
}

impl KeysByChannel<'_> {
    /// Whether the kernels support heads of this width.
    pub fn fits(d: usize) -> bool {
        (1..=WIDEST).contains(&d)
    }

    /// Bytes of the keys and of the means; `number` is the bytes of one number of a key.
    pub fn bytes(tokens: usize, kv_heads: usize, d: usize, number: usize) -> [usize; 2] {
        [kv_heads * d * Self::stride(tokens) * number, kv_heads * d * size_of::<f32>()]
    }

    /// Distance between channels, in numbers.
    fn stride(tokens: usize) -> usize {
        tokens.next_multiple_of(PIECE)
    }

    fn addresses(&self) -> [u64; 2] {
        let [keys, means] = Self::bytes(self.tokens, self.kv_heads, self.d, self.storage.bytes());
        [self.keys.address(0, keys), self.means.address(0, means)]
    }
}

/// The channels chosen for some rows, and the queries' values in them.
#[derive(Debug)]
pub struct ChosenChannels<'a> {
    /// Indices of the channels, u32 `[row][list][count]`.
    pub channels: &'a mut Option<Buffer>,
    /// The queries' values divided by their temperatures, f32 `[row][head][count]`.
    pub weights: &'a mut Option<Buffer>,
    /// Number of channels in a list.
    pub count: usize,
    /// Number of lists of a row: one for each query head, or for each KV head.
    pub lists: usize,
}

impl Gpu {
    /// Transposes the keys of a range of tokens to channels, and computes the mean of their values. Each buffer must have the
    /// [bytes](KeysByChannel::bytes) for that.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small, or there is no token.
    pub fn keys_by_channel(
        &self,
        cache: &Cache<'_>,
        tokens: Range<usize>,
        [keys, means]: [&mut Buffer; 2],
    ) -> Result<(), GpuError> {
        let Cache { capacity, kv_heads, d, storage, .. } = *cache;
        assert!(
            tokens.end <= capacity && !tokens.is_empty() && KeysByChannel::fits(d),
            "tokens {tokens:?} of {d} channels do not lie in a cache of {capacity}, or the kernel does not support them"
        );
        let [key_bytes, mean_bytes] = KeysByChannel::bytes(tokens.len(), kv_heads, d, storage.bytes());
        let (to, means) = (keys.address(0, key_bytes), means.address(0, mean_bytes));
        let (from, head_stride) = (cache.key(0, tokens.start), cache.head_stride());
        let stride = KeysByChannel::stride(tokens.len());
        let (grid_x, grid_y) = (stride.div_ceil(SIDE) as u32, d.div_ceil(SIDE) as u32);
        let (count, width, stride) = (tokens.len() as u32, d as i32, stride as u64);
        let function = self.function("channel_scores", &format!("by_channel_{}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&head_stride).arg(&count).arg(&width).arg(&to).arg(&stride);
        let grid = LaunchConfig {
            grid_dim: (grid_x, grid_y, kv_heads as u32),
            block_dim: (SIDE as u32, 8, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: keys are read within the cache and written within `keys`, as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("ordering keys by channels"))?;
        let sums = self.alloc(kv_heads * CHUNKS * d * size_of::<f64>())?;
        let sums = sums.address(0, kv_heads * CHUNKS * d * size_of::<f64>());
        let values = cache.value(0, tokens.start);
        let block = (d.next_multiple_of(32) as u32, 1, 1);
        let function = self.function("channel_scores", &format!("sum_values_{}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&values).arg(&head_stride).arg(&count).arg(&width).arg(&sums);
        let grid =
            LaunchConfig { grid_dim: (CHUNKS as u32, kv_heads as u32, 1), block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: values lie in the cache, and there is a sum for each chunk and channel.
        unsafe { launch.launch(grid) }.map_err(failed("adding up values"))?;
        let function = self.function("channel_scores", "mean_of_sums")?;
        let chunks = CHUNKS as u32;
        let mut launch = self.launch(&function);
        launch.arg(&sums).arg(&chunks).arg(&count).arg(&width).arg(&means);
        let grid = LaunchConfig { grid_dim: (kv_heads as u32, 1, 1), block_dim: block, shared_mem_bytes: 0 };
        // SAFETY: the sums were just made, and means have room as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("computing means of values"))
    }

    /// Chooses the channels in which the queries of some rows have the largest magnitudes, in ascending order, for each head or for all
    /// heads of a KV head together, and divides the queries' values in them by `τ = √(d·‖q̂‖₁/‖q‖₁)`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the rows are out of range, or there are fewer channels than are to be chosen.
    pub fn choose_channels(
        &self,
        queries: &Queries<'_>,
        rows: Range<usize>,
        (d, storage): (usize, Storage),
        chosen: &mut ChosenChannels<'_>,
    ) -> Result<(), GpuError> {
        let (heads, lists, count) = (queries.heads, chosen.lists, chosen.count);
        assert!((1..=d).contains(&count) && KeysByChannel::fits(d), "cannot choose {count} of {d} channels");
        assert!(heads.is_multiple_of(lists), "{lists} lists do not fit {heads} query heads");
        let [channel_bytes, weight_bytes] = [lists, heads].map(|each| 4 * rows.len() * each * count);
        self.reserve(chosen.channels, channel_bytes)?;
        self.reserve(chosen.weights, weight_bytes)?;
        let (channels, weights) =
            (reserved(chosen.channels, "chosen channels"), reserved(chosen.weights, "weights of chosen channels"));
        if rows.is_empty() {
            return Ok(());
        }
        let (channels, weights) = (channels.address(0, channel_bytes), weights.address(0, weight_bytes));
        let (from, numbers) = (queries.address(rows.clone(), d, storage), queries.list(rows.clone()));
        let (stride, heads, width, count) = (queries.stride as u64, heads as i32, d as i32, count as i32);
        let function = self.function("channel_scores", &format!("choose_channels_{}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&numbers).arg(&from).arg(&stride).arg(&heads).arg(&width).arg(&count).arg(&channels).arg(&weights);
        let grid = LaunchConfig {
            grid_dim: (lists as u32, rows.len() as u32, 1),
            block_dim: (d.next_multiple_of(32) as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: queries, channels and weights are as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("choosing channels"))
    }

    /// Computes the logits of all tokens over the channels that `rows` rows have chosen, into lists by query head and, if they are reduced,
    /// also by KV head. The heads of a group must then have chosen together.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn score_channels(
        &self,
        chosen: &ChosenChannels<'_>,
        (rows, heads): (usize, usize),
        index: &KeysByChannel<'_>,
        reduction: Option<Reduction>,
        workspace: &mut ScoreWorkspace,
    ) -> Result<(), GpuError> {
        let KeysByChannel { tokens, kv_heads, d, storage, .. } = *index;
        assert!(
            heads.is_multiple_of(kv_heads) && heads.is_multiple_of(chosen.lists),
            "{heads} query heads do not fit {kv_heads} KV heads and {} lists",
            chosen.lists
        );
        assert!(
            reduction.is_none() || chosen.lists == kv_heads,
            "scores can be reduced for {kv_heads} lists, one for each KV head, not for {}",
            chosen.lists
        );
        let tiles = tokens.div_ceil(TILE);
        let [to, reduced, of_tiles] = workspace.resized_both(self, rows, (heads, kv_heads), tokens, tiles)?;
        if rows == 0 || tokens == 0 {
            return Ok(());
        }
        let each = heads / chosen.lists;
        let taken = each.min(QUERIES).next_power_of_two();
        let (channels, weights) =
            (reserved(chosen.channels, "chosen channels"), reserved(chosen.weights, "weights of chosen channels"));
        let channels = channels.address(0, 4 * rows * chosen.lists * chosen.count);
        let weights = weights.address(0, 4 * rows * heads * chosen.count);
        let [keys, _] = index.addresses();
        let (key_stride, stride) = (KeysByChannel::stride(tokens) as u64, workspace.of(None).stride() as u64);
        let parts = (chosen.lists * each.div_ceil(taken)) as u32;
        let group = (heads / kv_heads) as i32;
        // Unless one block has all heads of a group, reduce afterwards.
        let at_once = reduction.filter(|_| each <= taken);
        let kind = Reduction::number(at_once);
        let [width, heads, each, count] = [d, heads, each, chosen.count].map(|n| n as i32);
        let columns = tokens as u32;
        let function = self.function("channel_scores", &format!("channel_scores_{}_{taken}", storage.name()))?;
        let mut launch = self.launch(&function);
        launch.arg(&channels).arg(&weights).arg(&keys).arg(&key_stride).arg(&width).arg(&heads).arg(&group);
        launch.arg(&each).arg(&count).arg(&columns).arg(&to).arg(&stride).arg(&of_tiles).arg(&kind).arg(&reduced);
        let grid = LaunchConfig {
            grid_dim: (tiles as u32, parts, rows as u32),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: channels lie within a head, as `choose_channels` makes them; the rest is as long as checked above.
        unsafe { launch.launch(grid) }.map_err(failed("scoring channels"))?;
        match reduction.filter(|_| at_once.is_none()) {
            Some(reduction) => workspace.reduce(self, kv_heads, reduction),
            None => Ok(()),
        }
    }

    /// Computes the share of each head's softmax that tokens outside `lists` have, for rows from `first` on. The lists must have been
    /// selected by the logits scored last. The KV head's mean value will represent these tokens.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If lists and logits do not match.
    pub fn rest_shares(
        &self,
        workspace: &ScoreWorkspace,
        begin: usize,
        index: &KeysByChannel<'_>,
        first: usize,
        lists: &mut TokenLists,
    ) -> Result<(), GpuError> {
        let KeysByChannel { tokens, kv_heads, d, .. } = *index;
        let logits = workspace.of(None);
        let (rows, heads) = logits.shape(tokens);
        lists.reserve_rests(self, heads, kv_heads, d)?;
        if rows == 0 {
            return Ok(());
        }
        let [shares, values] = lists.rests(first, rows);
        let [picked, counts] = lists.addresses(first);
        let [_, means] = index.addresses();
        let (from, stride, columns, begin) = (logits.address(), logits.stride() as u64, tokens as u32, begin as u32);
        let tiles = tokens.div_ceil(TILE);
        let (of_tiles, tiles) = (workspace.tiles(rows, heads, tiles), tiles as u32);
        let (most, count, group, width) =
            (lists.most() as u32, lists.lists() as i32, (heads / kv_heads) as i32, d as i32);
        let function = self.function("channel_scores", "rest_shares")?;
        let mut launch = self.launch(&function);
        launch.arg(&from).arg(&stride).arg(&columns).arg(&of_tiles).arg(&tiles).arg(&picked).arg(&most).arg(&counts);
        launch.arg(&count).arg(&begin).arg(&group).arg(&means).arg(&width).arg(&shares).arg(&values);
        let grid = LaunchConfig {
            grid_dim: (heads as u32, rows as u32, 1),
            block_dim: (REST_THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: logits, lists, means, shares and values are as long as checked above; selected tokens are candidates, each of which has a
        // logit.
        unsafe { launch.launch(grid) }.map_err(failed("computing the shares of unselected tokens"))
    }
}
