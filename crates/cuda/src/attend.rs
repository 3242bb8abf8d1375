//! Decode attention over any selection.
//!
//! An [`Attention`] collects what the rows of a step attend, as units of one KV head each, and cuts these into spans.
//! [`prepare`](Gpu::prepare) uploads it; [`attend`](Gpu::attend) runs it at a layer: with `kernels/attend_tiles.cu` if tensor cores support
//! the keys' type and width, else with `kernels/attend.cu`. The last block to finish a head merges the head's partial results.

use cudarc::driver::{DeviceRepr, LaunchConfig};

use super::attend_units::{Prefix, Tokens, Unit, Weights};
use super::buffer::{bytes_of, reserved};
use super::token_lists::TokenList;
use super::{Buffer, Gpu, GpuError, Plain, failed};

/// The most queries in one unit.
const MOST_QUERIES: usize = 8;
/// Blocks that run on a multiprocessor at the same time; all of them together are a wave.
const BLOCKS_EACH: usize = 3;
/// Wave counts are tried from the one that leaves every block `LONG_BLOCK` tokens, at most `MOST_WAVES`: several waves even out
/// multiprocessors that reach memory at different speeds. Up to `MORE_WAVES` counts are tried to fill the last wave; each wave costs a
/// share `COST_OF_WAVE` of the time.
const MOST_WAVES: usize = 3;
const LONG_BLOCK: usize = 2048;
const MORE_WAVES: usize = 6;
const COST_OF_WAVE: f64 = 0.02;
/// Warps of a block and tokens of a warp's tile. With tensor cores: tiles in a warp's ring, and bytes after each tile for a number for each
/// token.
const WARPS: usize = 4;
const TILE: usize = 16;
const STAGES: usize = 2;
const TILE_EXTRA: usize = 128;
/// The length of a span is a multiple of this many tokens, and at least twice that.
const SPAN: usize = 64;

/// Mirrors the kernels' struct `Unit`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceUnit {
    tail: u64,
    tokens: u64,
    weights: u64,
    count: u64,
    fetched_keys: u64,
    fetched_values: u64,
    tail_capacity: u32,
    kv_head: u32,
    sink: u32,
    recent: u32,
    total: u32,
    picked: u32,
    first_query: u32,
    queries: u32,
    weighting: u32,
    log_mass: f32,
    first_block: u32,
    first_partial: u32,
    span: u32,
    spans: u32,
}

/// Mirrors the kernels' struct `Prefix`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DevicePrefix {
    keys: u64,
    values: u64,
    stride: u64,
    tokens: u32,
    layer: u32,
    kv_heads: u32,
    padding: u32,
}

// SAFETY: laid out as the kernels' struct.
unsafe impl DeviceRepr for DevicePrefix {}

/// Mirrors the kernels' struct `Merging`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceMerging {
    heads: u64,
    partials: u64,
    done: u64,
    vectors: u64,
    out: u64,
    wide: u64,
    sinks: u64,
    row_heads: u32,
    padding: u32,
}

// SAFETY: laid out as the kernels' struct.
unsafe impl DeviceRepr for DeviceMerging {}

// SAFETY: eight- and four-byte words without padding, for which any bits are valid.
unsafe impl Plain for DeviceUnit {}

/// The partial results that one query head's output is merged from. Mirrors the kernels' struct `Head`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct HeadParts {
    first: [u32; 2],
    count: [u32; 2],
    stride: [u32; 2],
    share: f32,
    vector: u32,
    /// Device addresses of the unselected tokens' share and of the vector that represents them; zeros if there is none.
    rest: [u64; 2],
    /// Device address of a partial softmax that was computed elsewhere; zero if there is none.
    partial: u64,
}

// SAFETY: four- and eight-byte words without padding, for which any bits are valid.
unsafe impl Plain for HeadParts {}

/// The units that one kernel runs.
#[derive(Debug, Default)]
struct UnitClass {
    units: Vec<DeviceUnit>,
    /// For each unit, where its selected tokens and their weights begin in the lists of all units.
    lists: Vec<Option<(usize, Option<usize>)>>,
    blocks: u32,
}

/// What all rows of a step attend, at one layer or at several alike.
#[derive(Debug)]
pub struct Attention {
    heads: usize,
    span: usize,
    /// Units by the number of queries that their kernel takes: 1, 2, 4 or 8. With tensor cores, all are in the last class, except those
    /// that `fill` adds.
    classes: [UnitClass; 4],
    parts: Vec<HeadParts>,
    tokens: Vec<u32>,
    weights: Vec<f32>,
    vectors: Vec<f32>,
    /// Partial softmaxes that were computed elsewhere. Then, for each, its head, counted over all rows, and where it begins.
    given: Vec<f32>,
    given_to: Vec<(usize, usize)>,
    partials: u32,
    /// The number of tokens of the prefix that all units share.
    prefix_tokens: Option<usize>,
    /// The smallest number of layers of any tail.
    least_layers: usize,
}

impl Attention {
    /// Returns an empty attention for rows of `heads` query heads. It expects `units` units with about `expected` tokens in all, and
    /// divides the work evenly over a GPU of `processors` multiprocessors.
    pub fn new(rows: usize, heads: usize, (units, expected): (usize, usize), processors: usize) -> Self {
        let spans = units * spans_of_unit(units, expected, processors * BLOCKS_EACH);
        Self::spread(rows, heads, expected, spans)
    }

    /// Like [`new`](Self::new), for about `blocks` blocks.
    pub fn spread(rows: usize, heads: usize, expected: usize, blocks: usize) -> Self {
        let even = expected.div_ceil(blocks.max(1)).next_multiple_of(SPAN);
        let none = HeadParts { share: -1.0, ..HeadParts::default() };
        Self {
            heads,
            span: even.max(2 * SPAN),
            classes: Default::default(),
            parts: vec![none; rows * heads],
            tokens: Vec::new(),
            weights: Vec::new(),
            vectors: Vec::new(),
            given: Vec::new(),
            given_to: Vec::new(),
            partials: 0,
            prefix_tokens: None,
            least_layers: usize::MAX,
        }
    }

    /// Reuses the memory that `workspace` has [kept](AttentionWorkspace::keep).
    pub fn in_workspace(mut self, workspace: &mut AttentionWorkspace) -> Self {
        (self.tokens, self.weights) = (std::mem::take(&mut workspace.spare.1), std::mem::take(&mut workspace.spare.2));
        self.tokens.clear();
        self.weights.clear();
        self
    }

    /// Adds a unit as part 0 or 1 of what its heads attend.
    ///
    /// # Panics
    /// If a selected token or a static part lies beyond the row's tokens.
    pub fn add(&mut self, part: usize, unit: &Unit<'_>, prefix_tokens: usize) {
        self.add_with(part, unit, None, prefix_tokens);
    }

    /// Like [`add`](Self::add), for a unit whose selected tokens are in a list that the device made.
    ///
    /// # Panics
    /// If the list or a static part lies beyond the row's tokens.
    pub fn add_list(&mut self, part: usize, unit: &Unit<'_>, list: TokenList<'_>, prefix_tokens: usize) {
        assert!(
            unit.tokens.picked.is_empty() && matches!(unit.weights, Weights::Softmax),
            "a unit with a device list has no selected tokens and no weights on the host"
        );
        assert!(
            list.end() <= unit.tokens.total,
            "the device list has tokens below {}, the row {} tokens",
            list.end(),
            unit.tokens.total
        );
        self.add_with(part, unit, Some(list), prefix_tokens);
    }

    fn add_with(&mut self, part: usize, unit: &Unit<'_>, list: Option<TokenList<'_>>, prefix_tokens: usize) {
        let Tokens { sink, recent, total, picked } = unit.tokens;
        assert!(
            sink <= recent && recent <= total && total <= prefix_tokens + unit.tail.capacity,
            "static tokens are out of range: sink ends at {sink}, the recent part begins at {recent}, the row has {total} tokens, the prefix {prefix_tokens}"
        );
        // A maximum can be vectorised; a search for the first token that is too large cannot.
        let largest = picked.iter().fold(0, |largest, token| largest.max(*token));
        assert!(
            picked.is_empty() || (largest as usize) < total,
            "selected token {largest} is beyond the row's {total} tokens"
        );
        assert!(unit.kv_head < unit.tail.kv_heads && self.prefix_tokens.is_none_or(|tokens| tokens == prefix_tokens));
        self.prefix_tokens = Some(prefix_tokens);
        self.least_layers = self.least_layers.min(unit.tail.layers);
        let (weighting, extra, log_mass) = match unit.weights {
            Weights::Softmax => (0, None, 0.0),
            Weights::LogBias(by) => (0, Some(by), 0.0),
            Weights::Explicit(weights, log_mass) => (1, Some(weights), log_mass),
        };
        assert!(extra.is_none_or(|extra| extra.len() == picked.len()), "weights and selected tokens differ in number");
        let tokens_at = (!picked.is_empty()).then_some(self.tokens.len());
        let extra_at = extra.filter(|extra| !extra.is_empty()).map(|_| self.weights.len());
        self.tokens.extend_from_slice(picked);
        self.weights.extend_from_slice(extra.unwrap_or(&[]));
        let most = list.map_or(picked.len(), |list| list.most());
        let [tokens, count] = list.map_or([0; 2], |list| list.addresses());
        let weights = list.map_or(0, |list| list.weights());
        let [fetched_keys, fetched_values] = list.map_or([0; 2], |list| list.fetched());
        // If only the device knows a list's length, it cuts the list into spans itself.
        let expected = list.map_or(most, |list| list.expected());
        let spans = (sink + total - recent + expected).div_ceil(self.span).max(1) as u32;
        for first in (0..unit.queries).step_by(MOST_QUERIES) {
            let queries = (unit.queries - first).min(MOST_QUERIES);
            let first_query = unit.row * self.heads + unit.head + first;
            for query in 0..queries {
                let parts = &mut self.parts[first_query + query];
                parts.first[part] = self.partials + query as u32;
                parts.count[part] = spans;
                parts.stride[part] = queries as u32;
            }
            let places = if unit.tail.fits_tiles() { MOST_QUERIES } else { queries.next_power_of_two() };
            let class = &mut self.classes[places.trailing_zeros() as usize];
            class.units.push(DeviceUnit {
                tail: unit.tail.address(),
                tokens,
                weights,
                count,
                fetched_keys,
                fetched_values,
                tail_capacity: unit.tail.capacity as u32,
                kv_head: unit.kv_head as u32,
                sink: sink as u32,
                recent: recent as u32,
                total: total as u32,
                picked: most as u32,
                first_query: first_query as u32,
                queries: queries as u32,
                weighting,
                log_mass,
                first_block: class.blocks,
                first_partial: self.partials,
                span: self.span as u32,
                spans: if expected < most { spans } else { 0 },
            });
            class.lists.push(tokens_at.map(|tokens| (tokens, extra_at)));
            class.blocks += spans;
            self.partials += spans * queries as u32;
        }
    }

    /// Lets the vector `value` `[d]` stand for the candidates that a head's second part leaves unselected, which have a share `share` of
    /// the candidates' mass.
    pub fn give_rest(&mut self, row: usize, head: usize, share: f32, value: &[f32]) {
        let parts = &mut self.parts[row * self.heads + head];
        parts.share = share;
        parts.vector = (self.vectors.len() / value.len()) as u32;
        self.vectors.extend_from_slice(value);
    }

    /// Merges what a head attends with a partial softmax that was computed elsewhere, `[2 + d]`: the maximum logit, the sum of
    /// `exp(logit - maximum)`, and the sums of values weighted by these exponentials.
    ///
    /// # Panics
    /// If the head already has one.
    pub fn give_partial(&mut self, row: usize, head: usize, partial: &[f32]) {
        let number = row * self.heads + head;
        assert!(
            self.given_to.iter().all(|(known, _)| *known != number),
            "head {head} of row {row} has a partial softmax"
        );
        self.given_to.push((number, self.given.len()));
        self.given.extend_from_slice(partial);
    }

    /// Adds an empty unit for each head that attends nothing, so that its output is written.
    fn fill(&mut self) {
        let empty: Vec<usize> = (0..self.parts.len()).filter(|head| self.parts[*head].count == [0, 0]).collect();
        for head in empty {
            self.parts[head].first[0] = self.partials;
            (self.parts[head].count[0], self.parts[head].stride[0]) = (1, 1);
            let class = &mut self.classes[0];
            class.units.push(DeviceUnit {
                first_query: head as u32,
                queries: 1,
                first_block: class.blocks,
                first_partial: self.partials,
                span: self.span as u32,
                ..DeviceUnit::default()
            });
            class.lists.push(None);
            class.blocks += 1;
            self.partials += 1;
        }
    }

    /// Like [`give_rest`](Self::give_rest), with share and vector at the device addresses `places` ([`TokenLists::rest`]).
    ///
    /// [`TokenLists::rest`]: super::TokenLists::rest
    pub fn give_rest_there(&mut self, row: usize, head: usize, places: [u64; 2]) {
        self.parts[row * self.heads + head].rest = places;
    }
}

/// Returns into how many spans to cut each of `units` units, which have `expected` tokens in all, so that waves of `at_once` blocks are as
/// full as possible.
fn spans_of_unit(units: usize, expected: usize, at_once: usize) -> usize {
    let units = units.max(1);
    let least = (expected / (at_once * LONG_BLOCK)).clamp(1, MOST_WAVES);
    let worth = |waves: usize| {
        let spans = (waves * at_once / units).max(1);
        let blocks = spans * units;
        let share = blocks as f64 / blocks.next_multiple_of(at_once) as f64;
        (share - COST_OF_WAVE * waves as f64, spans)
    };
    let best = (least..least + MORE_WAVES).map(worth).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map_or(1, |(_, spans)| spans)
}

/// Memory that the kernels need, reused from step to step.
#[derive(Debug, Default)]
pub struct AttentionWorkspace {
    lists: Option<Buffer>,
    partials: Option<Buffer>,
    /// How many partials of each head have been written; zeros between launches.
    done: Option<Buffer>,
    /// The bytes uploaded last, so that equal lists are not uploaded again.
    sent: Vec<u8>,
    /// Host memory for the next lists, kept because the first write to new memory is slow.
    spare: (Vec<u8>, Vec<u32>, Vec<f32>),
}

impl AttentionWorkspace {
    /// Keeps the memory of a finished attention.
    pub fn keep(&mut self, attention: Attention) {
        (self.spare.1, self.spare.2) = (attention.tokens, attention.weights);
    }
}

/// An attention whose lists are on the device.
#[derive(Debug)]
pub struct Prepared {
    heads: usize,
    /// Number of query heads of all rows.
    all_heads: usize,
    /// For each class, the address of its units, their number, and their number of blocks.
    classes: [(u64, usize, u32); 4],
    parts: u64,
    vectors: u64,
    partials: u64,
    done: u64,
    prefix_tokens: Option<usize>,
    least_layers: usize,
}

impl Prepared {
    /// Returns the numbers that determine the launches: if all are equal, a recording can be reused.
    pub fn launches(&self) -> impl Iterator<Item = u64> + '_ {
        let classes =
            self.classes.iter().flat_map(|(units, count, blocks)| [*units, *count as u64, u64::from(*blocks)]);
        classes.chain([self.parts, self.vectors, self.partials, self.done, self.all_heads as u64])
    }
}

impl Gpu {
    /// Uploads an attention, and reserves memory for its partial results.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If the kernels do not support heads of this width.
    pub fn prepare(
        &self,
        attention: &mut Attention,
        workspace: &mut AttentionWorkspace,
        d: usize,
    ) -> Result<Prepared, GpuError> {
        assert!(d.is_multiple_of(8) && d <= 256, "the kernels do not support heads of {d} channels");
        let given = attention.given_to.len() * (2 + d);
        assert_eq!(attention.given.len(), given, "partial softmaxes have two numbers beside {d} sums of values");
        attention.fill();
        let places = self.send(attention, workspace)?;
        let (partial_bytes, done_bytes) = (attention.partials as usize * (d + 2) * 4, 4 * attention.parts.len());
        self.reserve(&mut workspace.partials, partial_bytes)?;
        self.reserve(&mut workspace.done, done_bytes)?;
        let (lists, partials) =
            (reserved(&workspace.lists, "attention lists"), reserved(&workspace.partials, "partial softmaxes"));
        let done = reserved(&workspace.done, "counters of finished parts");
        let class = |i: usize| {
            let UnitClass { units, blocks, .. } = &attention.classes[i];
            (lists.address(places.units[i], size_of_val(units.as_slice())), units.len(), *blocks)
        };
        Ok(Prepared {
            heads: attention.heads,
            all_heads: attention.parts.len(),
            classes: std::array::from_fn(class),
            parts: lists.address(places.parts, size_of_val(attention.parts.as_slice())),
            vectors: lists.address(places.vectors, size_of_val(attention.vectors.as_slice())),
            partials: partials.address(0, partial_bytes),
            done: done.address(0, done_bytes),
            prefix_tokens: attention.prefix_tokens,
            least_layers: attention.least_layers,
        })
    }

    /// Runs an attention at one layer, for queries `[row][stride]` with head `h` at `h * d`, into `out` `[row][head][d]` and, if given,
    /// also in f32 into `wide`. Keys and values are those of `prefix` and of the units' tails. The workspace that `attention` was prepared
    /// in must not have been used for another one since.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn attend(
        &self,
        attention: &Prepared,
        prefix: &Prefix<'_>,
        queries: &Buffer,
        stride: usize,
        out: &mut Buffer,
        wide: Option<&mut Buffer>,
    ) -> Result<(), GpuError> {
        self.attend_with(attention, prefix, (queries, stride, 0), out, wide)
    }

    /// Like [`attend`](Self::attend), for the queries from row `skip` of their buffer on, given as buffer, stride and `skip`; writes the
    /// same rows of `out`.
    ///
    /// # Errors
    /// [`GpuError`].
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn attend_from(
        &self,
        attention: &Prepared,
        prefix: &Prefix<'_>,
        queries: (&Buffer, usize, usize),
        out: &mut Buffer,
    ) -> Result<(), GpuError> {
        self.attend_with(attention, prefix, queries, out, None)
    }

    /// Like [`attend_from`](Self::attend_from), but also writes the rows to `wide`, from its row 0 on.
    fn attend_with(
        &self,
        attention: &Prepared,
        prefix: &Prefix<'_>,
        (queries, stride, skip): (&Buffer, usize, usize),
        out: &mut Buffer,
        wide: Option<&mut Buffer>,
    ) -> Result<(), GpuError> {
        let Prefix { cache, tokens, layer, scale, rule } = *prefix;
        let (storage, d, heads) = (cache.storage, cache.d, attention.heads);
        assert!(
            attention.prefix_tokens.is_none_or(|own| own == tokens) && tokens <= cache.capacity,
            "a prefix of {tokens} tokens: the attention was prepared for {:?}, the cache holds {}",
            attention.prefix_tokens,
            cache.capacity
        );
        assert!(
            layer < attention.least_layers,
            "layer {layer} is beyond the {} layers of the tails",
            attention.least_layers
        );
        let on_device = DevicePrefix {
            keys: cache.key(0, 0),
            values: cache.value(0, 0),
            stride: cache.head_stride(),
            tokens: tokens as u32,
            layer: layer as u32,
            kv_heads: cache.kv_heads as u32,
            padding: 0,
        };
        let rows = attention.all_heads / heads;
        let query_address =
            queries.address(skip * stride * storage.bytes(), ((rows - 1) * stride + heads * d) * storage.bytes());
        let merging = DeviceMerging {
            heads: attention.parts,
            partials: attention.partials,
            done: attention.done,
            vectors: attention.vectors,
            out: out.address(skip * heads * d * storage.bytes(), attention.all_heads * d * storage.bytes()),
            wide: wide.map_or(0, |wide| wide.address(0, attention.all_heads * d * 4)),
            sinks: rule.sinks_address(heads),
            row_heads: heads as u32,
            padding: 0,
        };
        let cap = rule.cap();
        let lanes = d.next_power_of_two().max(64) / 8;
        // The kernel for tensor cores has no soft cap.
        let tiles = storage.fits_tiles(d) && rule.soft_cap.is_none();
        let (heads_arg, stride_arg, d_arg) = (heads as u32, stride as u64, d as i32);
        let rings = WARPS * STAGES * (2 * TILE * d * storage.bytes() + TILE_EXTRA);
        let shared = if tiles { rings as u32 } else { 0 };
        for (i, (units, count, blocks)) in attention.classes.iter().enumerate().filter(|(_, (_, count, _))| *count > 0)
        {
            let name = storage.name();
            let function = match tiles {
                true => self.with_shared("attend_tiles", &format!("attend_tiles_{name}_{d}"), shared),
                false => self.function("attend", &format!("attend_{name}_{}_{lanes}_1", 1 << i)),
            }?;
            let count = *count as i32;
            let mut launch = self.launch(&function);
            launch.arg(units).arg(&count).arg(&on_device).arg(&query_address).arg(&heads_arg).arg(&stride_arg);
            if !tiles {
                launch.arg(&d_arg);
            }
            launch.arg(&scale);
            if !tiles {
                launch.arg(&cap);
            }
            launch.arg(&merging);
            let block = (32 * WARPS as u32, 1, 1);
            let grid = LaunchConfig { grid_dim: (*blocks, 1, 1), block_dim: block, shared_mem_bytes: shared };
            // SAFETY: `Attention::add` and this function checked the caches, tokens and partials that units name. The units, the partials,
            // and the lists and counters for merging them lie in the workspace, which the caller has kept; vectors were uploaded with them;
            // the outputs were checked.
            unsafe { launch.launch(grid) }.map_err(failed("attending"))?;
        }
        Ok(())
    }

    /// Uploads all lists with one copy.
    fn send(&self, attention: &mut Attention, workspace: &mut AttentionWorkspace) -> Result<UploadOffsets, GpuError> {
        let mut at = 0;
        let mut place = |bytes: usize| {
            let offset = at;
            at += bytes.next_multiple_of(16);
            offset
        };
        let tokens = place(size_of_val(attention.tokens.as_slice()));
        let weights = place(size_of_val(attention.weights.as_slice()));
        let vectors = place(size_of_val(attention.vectors.as_slice()));
        let given = place(size_of_val(attention.given.as_slice()));
        let parts = place(size_of_val(attention.parts.as_slice()));
        let units = std::array::from_fn(|i| place(size_of_val(attention.classes[i].units.as_slice())));
        self.reserve_lists(workspace, at)?;
        let Some(lists) = &mut workspace.lists else { unreachable!("`reserve_lists` reserved the buffer") };
        let base = lists.address(0, at);
        for class in &mut attention.classes {
            for (unit, list) in class.units.iter_mut().zip(&class.lists) {
                let Some((first_token, first_weight)) = list else { continue };
                unit.tokens = base + (tokens + 4 * first_token) as u64;
                unit.weights = first_weight.map_or(0, |first| base + (weights + 4 * first) as u64);
            }
        }
        for (head, first) in &attention.given_to {
            attention.parts[*head].partial = base + (given + size_of::<f32>() * first) as u64;
        }
        let mut bytes = std::mem::take(&mut workspace.spare.0);
        bytes.clear();
        bytes.reserve(at);
        let mut put = |from: &[u8]| {
            bytes.extend_from_slice(from);
            bytes.resize(bytes.len().next_multiple_of(16), 0);
        };
        put(bytes_of(&attention.tokens));
        put(bytes_of(&attention.weights));
        put(bytes_of(&attention.vectors));
        put(bytes_of(&attention.given));
        put(bytes_of(&attention.parts));
        attention.classes.iter().for_each(|class| put(bytes_of(&class.units)));
        debug_assert_eq!(bytes.len(), at);
        if workspace.sent != bytes {
            self.upload_to(lists, 0, &bytes)?;
            std::mem::swap(&mut workspace.sent, &mut bytes);
        }
        workspace.spare.0 = bytes;
        Ok(UploadOffsets { units, parts, vectors })
    }

    fn reserve_lists(&self, workspace: &mut AttentionWorkspace, bytes: usize) -> Result<(), GpuError> {
        if workspace.lists.as_ref().is_none_or(|lists| lists.bytes() < bytes) {
            workspace.sent.clear();
        }
        self.reserve(&mut workspace.lists, bytes.next_power_of_two())
    }
}

/// Where lists begin in the uploaded bytes.
struct UploadOffsets {
    units: [usize; 4],
    parts: usize,
    vectors: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_of_blocks_are_full() {
        const AT_ONCE: usize = 396;
        // 8 KV heads of one sequence and 64 of eight: just below one wave. Lists for 256 query heads: just below two.
        assert_eq!([8, 64, 256].map(|units| spans_of_unit(units, units * 1000, AT_ONCE)), [49, 6, 3]);
        assert_eq!(spans_of_unit(64, 64 << 17, AT_ONCE), 18, "several waves of long spans");
        for units in 1..2000 {
            let blocks = units * spans_of_unit(units, 1000 * units, AT_ONCE);
            let share = blocks as f64 / blocks.next_multiple_of(AT_ONCE) as f64;
            assert!(share > 0.75, "{units} units: {blocks} blocks");
        }
    }
}
