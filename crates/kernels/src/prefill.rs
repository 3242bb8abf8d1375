//! Blocked attention of many query rows at once, without an `n × n` matrix in memory. It is causal over all tokens, or over the tokens that
//! each row may see.
//!
//! Keys are packed once into transposed panels and values into panels, so that both products run as register-tiled `C += A·B`; the softmax
//! between them is the online one. Work is split over (KV head, block of queries); each output row is computed by one thread in a fixed
//! order.
//!
//! The file is long because its functions share the packed panels, whose layout is private to it.

use std::ops::Range;

use rayon::prelude::*;

use super::attend::softmax_block;
use super::logit_rule::{LogitRule, cap_logits};
use super::precision::{MatmulPrecision, matmul_precision};
use super::rows::{Elem, Rows, with_rows};
use super::simd::{Simd, dispatch};
use super::tiles::{LeftTiles, Multiplier, PAIR_OUTPUTS, Part, RightTiles};

/// Number of keys in a block, after which running sums are rescaled, for products in f32.
const KEY_BLOCK: usize = 128;
/// Like [`KEY_BLOCK`], for products in bf16. Larger, because storing and reloading sums costs more there; a block's weights, keys and
/// values fit in the second-level cache.
const TILED_KEYS: usize = 512;
/// The smallest width of a panel of packed columns.
const NARROWEST_PANEL: usize = 16;

/// Keys and values of one KV head, packed for [`causal_attention`] and [`block_attention`].
pub struct PackedHead {
    packed: Packed,
    tokens: usize,
    d: usize,
}

/// Keys and values for products in one precision.
enum Packed {
    F32(Panels),
    Bf16 {
        /// One output column for each token.
        keys: RightTiles,
        /// One column for each token, padded to whole blocks.
        values: RightTiles,
    },
}

impl PackedHead {
    /// Packs `[tokens][d]` rows for products in the [chosen](matmul_precision) precision.
    pub fn new(keys: Rows, values: Rows, d: usize) -> Self {
        Self::for_precision(matmul_precision(), keys, values, d)
    }

    fn for_precision(precision: MatmulPrecision, keys: Rows, values: Rows, d: usize) -> Self {
        assert_eq!(keys.elements(), values.elements(), "keys and values differ in number");
        let packed = match precision {
            MatmulPrecision::F32 => Packed::F32(Panels::new(keys, values, d)),
            MatmulPrecision::Bf16 => Packed::Bf16 {
                keys: with_rows!(keys, data => RightTiles::of_rows(data, d)),
                values: with_rows!(values, data => RightTiles::of_columns(data, d, PAIR_OUTPUTS)),
            },
        };
        Self { packed, tokens: keys.elements() / d, d }
    }

    /// Number of query rows of one work item; a multiple of every register tile's height.
    fn query_rows(&self) -> usize {
        match self.packed {
            Packed::F32(_) => 48,
            Packed::Bf16 { .. } => 64,
        }
    }

    /// Packs the rows of `[token][d]` listed in `tokens`, in that order.
    pub fn gathered(keys: Rows, values: Rows, d: usize, tokens: &[u32]) -> Self {
        let (keys, values) = (keys.gather(tokens, d), values.gather(tokens, d));
        Self::new(Rows::F32(&keys), Rows::F32(&values), d)
    }
}

/// Keys and values in f32.
struct Panels {
    /// Keys `[panel of tokens][d][panel width]`, zero beyond the last token; tokens are rounded up to whole blocks.
    keys: Vec<f32>,
    /// Values `[panel of columns][token][panel width]`, tokens rounded up likewise.
    values: Vec<f32>,
    d: usize,
    /// Number of columns of a panel; the last panel of values may have fewer.
    width: usize,
}

dispatch! {
    /// The width of the register tile, so that a tile reads one contiguous piece, no part of which displaces another from the cache.
    fn panel_width[]() -> usize = panel_width_kernel
}

#[inline(always)]
unsafe fn panel_width_kernel<S: Simd>() -> usize {
    (S::LANES * S::TILE_VECTORS).max(NARROWEST_PANEL)
}

impl Panels {
    fn new(keys: Rows, values: Rows, d: usize) -> Self {
        let padded = (keys.elements() / d).next_multiple_of(KEY_BLOCK);
        let mut panels = Self { keys: vec![0.0; padded * d], values: vec![0.0; padded * d], d, width: panel_width() };
        with_rows!(keys, data => panels.pack_keys(data.chunks_exact(d)));
        with_rows!(values, data => panels.pack_values(|| data.chunks_exact(d)));
        panels
    }

    fn pack_keys<'a, T: Elem>(&mut self, rows: impl Iterator<Item = &'a [T]>) {
        for (i, row) in rows.enumerate() {
            let panel = &mut self.keys[i / self.width * self.width * self.d..][..self.width * self.d];
            for (column, x) in panel.chunks_exact_mut(self.width).zip(row) {
                column[i % self.width] = x.to_f32();
            }
        }
    }

    fn pack_values<'a, T: Elem, I: Iterator<Item = &'a [T]>>(&mut self, rows: impl Fn() -> I) {
        let (d, padded) = (self.d, self.values.len() / self.d);
        for first in (0..d).step_by(self.width) {
            let width = (d - first).min(self.width);
            let panel = &mut self.values[padded * first..][..padded * width];
            for (out, row) in panel.chunks_exact_mut(width).zip(rows()) {
                for (o, x) in out.iter_mut().zip(&row[first..]) {
                    *o = x.to_f32();
                }
            }
        }
    }
}

/// The packed tokens that a query row sees: the first `common`, a contiguous stretch after those, and single tokens between the two.
#[derive(Debug, Clone, PartialEq)]
pub struct RowVisibility {
    /// Number of tokens that it sees at the front.
    pub common: usize,
    /// A range of further tokens that it sees, after the front.
    pub stretch: Range<usize>,
    /// Single tokens that it sees, ascending, all after the front and before the stretch.
    pub singles: Vec<ScatteredToken>,
}

/// A single packed token that a row sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScatteredToken {
    /// Its position among the packed tokens.
    pub place: usize,
    /// The bias on its scaled logit: the logarithm of the number of tokens that it represents; 0 if it represents only itself.
    pub log_weight: f32,
}

impl ScatteredToken {
    /// A token that represents only itself.
    pub fn plain(place: usize) -> Self {
        Self { place, log_weight: 0.0 }
    }
}

impl RowVisibility {
    /// A row that sees the first `common` packed tokens and a stretch.
    pub fn new(common: usize, stretch: Range<usize>) -> Self {
        Self { common, stretch, singles: Vec::new() }
    }

    /// A row that sees the tokens `seen`, given by ascending position: as many as possible become the front, then as many as possible the
    /// stretch.
    pub fn of(seen: &[ScatteredToken]) -> Self {
        let is_plain = |(single, place): &(&ScatteredToken, usize)| **single == ScatteredToken::plain(*place);
        let common = seen.iter().zip(0..).take_while(is_plain).count();
        let end = seen.last().map_or(0, |single| single.place + 1);
        let length = seen[common..].iter().rev().zip((0..end).rev()).take_while(is_plain).count();
        Self { common, stretch: end - length..end, singles: seen[common..seen.len() - length].to_vec() }
    }

    /// Iterates over the tokens that the row sees, by ascending position.
    pub fn each(&self) -> impl Iterator<Item = ScatteredToken> {
        let (front, stretch) = (0..self.common, self.stretch.clone());
        front.map(ScatteredToken::plain).chain(self.singles.iter().copied()).chain(stretch.map(ScatteredToken::plain))
    }

    /// Number of tokens that the row sees.
    pub fn tokens(&self) -> usize {
        self.common + self.stretch.len() + self.singles.len()
    }

    /// End of the range of packed tokens that the row sees.
    fn end(&self) -> usize {
        let single = self.singles.last().map_or(0, |single| single.place + 1);
        self.common.max(self.stretch.end).max(single)
    }

    /// Masks a block of logits, the first of which belongs to token `start`: hidden tokens get `-inf`, single tokens their log weight.
    /// Logits are multiplied by `scale` later. Returns whether the row sees any token of the block.
    fn mask(&self, start: usize, scale: f32, logits: &mut [f32]) -> bool {
        let within = |token: usize| token.clamp(start, start + logits.len()) - start;
        let (common, stretch) = (within(self.common), within(self.stretch.start)..within(self.stretch.end));
        let singles = self.singles_of(start..start + logits.len());
        if common == 0 && stretch.is_empty() && singles.is_empty() {
            return false;
        }
        let hidden = if stretch.is_empty() { common..logits.len() } else { common..stretch.start.max(common) };
        let mut from = hidden.start;
        for single in singles {
            let at = single.place - start;
            logits[from..at].fill(f32::NEG_INFINITY);
            logits[at] += single.log_weight / scale;
            from = at + 1;
        }
        logits[from..hidden.end].fill(f32::NEG_INFINITY);
        if !stretch.is_empty() {
            logits[stretch.end..].fill(f32::NEG_INFINITY);
        }
        true
    }

    /// Returns the single tokens in a range of positions.
    fn singles_of(&self, places: Range<usize>) -> &[ScatteredToken] {
        if self.singles.is_empty() {
            return &[];
        }
        let before = |place: usize| self.singles.partition_point(|single| single.place < place);
        &self.singles[before(places.start)..before(places.end)]
    }

    /// Whether single tokens ascend and lie between front and stretch.
    fn is_sound(&self) -> bool {
        let places = self.singles.iter().map(|single| single.place);
        let end = if self.stretch.is_empty() { usize::MAX } else { self.stretch.start };
        places.clone().all(|place| (self.common..end).contains(&place)) && places.is_sorted_by(|a, b| a < b)
    }
}

/// Causal attention for the last `rows` tokens of the packed sequence.
///
/// `queries` and `out` are `[rows][heads][d]`; query heads of a group are adjacent, so head `h` reads
/// KV head `h / (heads / kv_heads)`. Row `i` attends tokens `0..=tokens - rows + i`.
pub fn causal_attention<'a>(
    queries: &[f32],
    kv: &[PackedHead],
    heads: usize,
    rule: impl Into<LogitRule<'a>>,
    out: &mut [f32],
) {
    sliding_attention(queries, kv, (heads, usize::MAX), rule.into(), out);
}

/// Like [`causal_attention`], but each row attends only the last `window` of these tokens, its own included.
pub fn sliding_attention(
    queries: &[f32],
    kv: &[PackedHead],
    (heads, window): (usize, usize),
    rule: LogitRule<'_>,
    out: &mut [f32],
) {
    let d = kv[0].d;
    let group = heads / kv.len();
    let rows = queries.len() / (heads * d);
    assert_eq!(queries.len(), rows * heads * d, "queries are not `[rows][heads][d]`");
    assert_eq!(out.len(), queries.len(), "queries and output differ in length");
    assert!(
        kv.iter().all(|h| h.tokens >= rows && h.d == d),
        "a KV head has fewer than {rows} tokens, or not {d} channels"
    );
    // Late blocks see more keys; starting with them keeps threads evenly busy.
    let (width, query_rows) = (heads * d, kv[0].query_rows());
    let mut work: Vec<(usize, &mut [f32])> = out.chunks_mut(query_rows * width).enumerate().collect();
    work.reverse();
    work.into_par_iter().with_max_len(1).for_each(|(block, out)| {
        let first = block * query_rows;
        let queries = &queries[first * width..][..out.len()];
        for head in 0..heads {
            let kv = &kv[head / group];
            let seen = |row: usize| {
                let end = kv.tokens - rows + first + row + 1;
                RowVisibility::new(0, end.saturating_sub(window)..end)
            };
            let visibility: Vec<RowVisibility> = (0..out.len() / width).map(seen).collect();
            let hidden = visibility[0].stretch.start;
            attend_tile(Tile { queries, heads, head, rule, visibility: &visibility, hidden }, kv, out);
        }
    });
}

/// Computes attention of some rows of one query head. Each row must see at least one of the packed tokens.
///
/// `queries` and `out` are `[rows][heads][d]`, `visibility` has one entry for each row; only `head` is written.
pub fn block_attention<'a>(
    queries: &[f32],
    (head, heads): (usize, usize),
    kv: &PackedHead,
    visibility: &[RowVisibility],
    rule: impl Into<LogitRule<'a>>,
    out: &mut [f32],
) {
    let width = heads * kv.d;
    assert_eq!(
        queries.len(),
        visibility.len() * width,
        "queries are not `[rows][heads][d]`, one row for each of `visibility`"
    );
    assert_eq!(out.len(), queries.len(), "queries and output differ in length");
    assert!(
        visibility.iter().all(|s| s.tokens() > 0 && s.end() <= kv.tokens),
        "a row sees no token, or tokens beyond the {} that are packed",
        kv.tokens
    );
    debug_assert!(
        visibility.iter().all(RowVisibility::is_sound),
        "single tokens of a row are not ascending between its two ranges"
    );
    let (query_rows, rule) = (kv.query_rows(), rule.into());
    let tiles = queries.chunks(query_rows * width).zip(out.chunks_mut(query_rows * width));
    for ((queries, out), visibility) in tiles.zip(visibility.chunks(query_rows)) {
        attend_tile(Tile { queries, heads, head, rule, visibility, hidden: 0 }, kv, out);
    }
}

/// A block of query rows of one head.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Queries `[rows][heads][d]`.
    queries: &'a [f32],
    heads: usize,
    head: usize,
    rule: LogitRule<'a>,
    /// One entry for each row.
    visibility: &'a [RowVisibility],
    /// Number of first tokens that no row sees.
    hidden: usize,
}

fn attend_tile(tile: Tile, kv: &PackedHead, out: &mut [f32]) {
    match &kv.packed {
        Packed::F32(panels) => attend_by(tile, kv, ByVectors::new(tile, panels), out),
        Packed::Bf16 { keys, values } => attend_by(tile, kv, ByTiles::new(tile, keys, values), out),
    }
}

impl Tile<'_> {
    /// Returns the query of a row.
    fn query(&self, row: usize, d: usize) -> &[f32] {
        &self.queries[(row * self.heads + self.head) * d..][..d]
    }
}

dispatch! {
    /// Attends a tile with these products.
    fn attend_by[P: Products](tile: Tile, kv: &PackedHead, products: P, out: &mut [f32]) = attend_tile_kernel
}

/// The two products of attention for a tile of rows, and the softmax between them.
trait Products {
    /// Number of keys between two rescalings of the sums.
    const KEYS: usize;
    /// The unit of [the maximum](Self::weigh) of logits.
    const MAX_UNIT: f32;

    /// Computes the logits of all rows with `keys` keys from `start` on. Those beyond the last token are arbitrary.
    ///
    /// # Safety
    /// The CPU supports `S`.
    unsafe fn logits<S: Simd>(&mut self, start: usize, keys: usize, rows: usize);

    /// Returns a row of logits, and the scale they must still be multiplied by.
    fn row(&mut self, row: usize, keys: usize) -> (&mut [f32], f32);

    /// Turns a row's logits into weights, as [`softmax_block`] does.
    ///
    /// # Safety
    /// The CPU supports `S`.
    unsafe fn weigh<S: Simd>(&mut self, row: usize, keys: usize, max: &mut f32, sum: &mut f32) -> f32;

    /// Sets a row's weights to 0.
    fn hide(&mut self, row: usize, keys: usize);

    /// Adds the block's values, multiplied by the weights, to `acc: [rows][d]`.
    ///
    /// # Safety
    /// The CPU supports `S`.
    unsafe fn add_values<S: Simd>(&mut self, start: usize, keys: usize, rows: usize, acc: &mut [f32]);
}

/// Products in f32.
struct ByVectors<'a> {
    panels: &'a Panels,
    /// Scaled queries, `[rows][d]`.
    q: Vec<f32>,
    /// Logits, turned into weights in place, `[rows][KEY_BLOCK]`.
    logits: Vec<f32>,
}

impl<'a> ByVectors<'a> {
    fn new(tile: Tile, panels: &'a Panels) -> Self {
        let (d, rows) = (panels.d, tile.visibility.len());
        let scaled = |row: usize| tile.query(row, d).iter().map(|x| x * tile.rule.scale);
        Self { panels, q: (0..rows).flat_map(scaled).collect(), logits: vec![0.0; rows * KEY_BLOCK] }
    }
}

impl Products for ByVectors<'_> {
    const KEYS: usize = KEY_BLOCK;
    const MAX_UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn logits<S: Simd>(&mut self, start: usize, keys: usize, rows: usize) {
        let &Panels { d, width: stride, .. } = self.panels;
        for first in (0..keys).step_by(stride) {
            let panel = &self.panels.keys[(start + first) * d..][..stride * d];
            let (a, b) = (RowMajor { data: &self.q, stride: d }, RowMajor { data: panel, stride });
            let factors = Factors { a, b, rows, depth: d, width: stride.min(keys - first) };
            // SAFETY: the CPU supports `S` (caller); `product` checks the shapes.
            unsafe { product::<S>(factors, &mut self.logits[first..], KEY_BLOCK, Write::Replace) };
        }
    }

    #[inline(always)]
    fn row(&mut self, row: usize, keys: usize) -> (&mut [f32], f32) {
        (&mut self.logits[row * KEY_BLOCK..][..keys], 1.0)
    }

    #[inline(always)]
    unsafe fn weigh<S: Simd>(&mut self, row: usize, keys: usize, max: &mut f32, sum: &mut f32) -> f32 {
        // SAFETY: keys are a multiple of every lane count; the CPU supports `S` (caller).
        unsafe { softmax_block::<S>(&mut self.logits[row * KEY_BLOCK..][..keys], max, sum) }
    }

    #[inline(always)]
    fn hide(&mut self, row: usize, keys: usize) {
        self.logits[row * KEY_BLOCK..][..keys].fill(0.0);
    }

    #[inline(always)]
    unsafe fn add_values<S: Simd>(&mut self, start: usize, keys: usize, rows: usize, acc: &mut [f32]) {
        let d = self.panels.d;
        let padded = self.panels.values.len() / d;
        for first in (0..d).step_by(self.panels.width) {
            let width = (d - first).min(self.panels.width);
            let panel = &self.panels.values[padded * first + start * width..][..keys * width];
            let weights = RowMajor { data: &self.logits, stride: KEY_BLOCK };
            let b = RowMajor { data: panel, stride: width };
            let factors = Factors { a: weights, b, rows, depth: keys, width };
            // SAFETY: the CPU supports `S` (caller); `product` checks the shapes.
            unsafe { product::<S>(factors, &mut acc[first..], d, Write::Add) };
        }
    }
}

/// Products in bf16. Queries are rounded unscaled, and logits are scaled afterwards. Weights are summed in f32, and rounded only for the
/// product with values.
struct ByTiles<'a> {
    keys: &'a RightTiles,
    values: &'a RightTiles,
    q: LeftTiles,
    /// Logits, `[rows][TILED_KEYS]`.
    logits: Vec<f32>,
    weights: LeftTiles,
    scale: f32,
    d: usize,
    multiplier: Multiplier,
}

impl<'a> ByTiles<'a> {
    fn new(tile: Tile, keys: &'a RightTiles, values: &'a RightTiles) -> Self {
        let (d, rows) = (keys.columns(), tile.visibility.len());
        let (mut q, width) = (LeftTiles::zeros(rows, d), tile.heads * d);
        q.put(&tile.queries[tile.head * d..], width, rows);
        Self {
            keys,
            values,
            q,
            logits: vec![0.0; rows * TILED_KEYS],
            weights: LeftTiles::zeros(rows, TILED_KEYS),
            scale: tile.rule.scale,
            d,
            multiplier: Multiplier::new(),
        }
    }
}

impl Products for ByTiles<'_> {
    const KEYS: usize = TILED_KEYS;
    const MAX_UNIT: f32 = std::f32::consts::LN_2;

    #[inline(always)]
    unsafe fn logits<S: Simd>(&mut self, start: usize, keys: usize, rows: usize) {
        let part =
            Part { x: &self.q, rows, w: self.keys, outputs: start..start + keys, first: 0, depth: self.d, adds: false };
        self.multiplier.multiply(&part, &mut self.logits, TILED_KEYS);
    }

    #[inline(always)]
    fn row(&mut self, row: usize, keys: usize) -> (&mut [f32], f32) {
        (&mut self.logits[row * TILED_KEYS..][..keys], self.scale)
    }

    #[inline(always)]
    unsafe fn weigh<S: Simd>(&mut self, row: usize, keys: usize, max: &mut f32, sum: &mut f32) -> f32 {
        let logits = &mut self.logits[row * TILED_KEYS..][..keys];
        // SAFETY: keys are whole tiles, which are whole vectors; the CPU supports `S` (caller).
        let rescale = unsafe { scaled_softmax_block::<S>(logits, self.scale, max, sum) };
        self.weights.put_row(row, logits);
        rescale
    }

    #[inline(always)]
    fn hide(&mut self, row: usize, keys: usize) {
        self.logits[row * TILED_KEYS..][..keys].fill(0.0);
        self.weights.put_row(row, &self.logits[row * TILED_KEYS..][..keys]);
    }

    #[inline(always)]
    unsafe fn add_values<S: Simd>(&mut self, start: usize, keys: usize, rows: usize, acc: &mut [f32]) {
        let outputs = 0..self.d;
        let part = Part { x: &self.weights, rows, w: self.values, outputs, first: start, depth: keys, adds: true };
        self.multiplier.multiply(&part, acc, self.d);
    }
}

#[inline(always)]
unsafe fn attend_tile_kernel<S: Simd, P: Products>(tile: Tile, kv: &PackedHead, mut products: P, out: &mut [f32]) {
    let (d, rows) = (kv.d, tile.visibility.len());
    let (mut max, mut sum) = (vec![f32::NEG_INFINITY; rows], vec![0.0f32; rows]);
    let mut acc = vec![0.0f32; rows * d];
    let seen = tile.visibility.iter().map(RowVisibility::end).max().unwrap_or(0);
    for start in (tile.hidden / P::KEYS * P::KEYS..seen).step_by(P::KEYS) {
        let keys = (seen - start).next_multiple_of(PAIR_OUTPUTS).min(P::KEYS);
        // SAFETY: the CPU supports `S` (caller).
        unsafe { products.logits::<S>(start, keys, rows) };
        for (i, sight) in tile.visibility.iter().enumerate() {
            let (logits, scale) = products.row(i, keys);
            if let Some(cap) = tile.rule.soft_cap {
                cap_logits(logits, scale, cap);
            }
            if !sight.mask(start, scale, logits) {
                // The row sees nothing of this block: its weights are 0, and its sums do not change.
                products.hide(i, keys);
                continue;
            }
            // SAFETY: the CPU supports `S` (caller).
            let rescale = unsafe { products.weigh::<S>(i, keys, &mut max[i], &mut sum[i]) };
            if rescale != 1.0 {
                for o in &mut acc[i * d..][..d] {
                    *o *= rescale;
                }
            }
        }
        // SAFETY: the CPU supports `S` (caller).
        unsafe { products.add_values::<S>(start, keys, rows, &mut acc) };
    }
    if let Some(sink) = tile.rule.sinks.get(tile.head) {
        max.iter().zip(&mut sum).for_each(|(max, sum)| *sum += (sink - max * P::MAX_UNIT).exp());
    }
    for i in 0..rows {
        let out = &mut out[(i * tile.heads + tile.head) * d..][..d];
        for (o, a) in out.iter_mut().zip(&acc[i * d..]) {
            *o = a / sum[i];
        }
    }
}

/// Like [`softmax_block`], for logits that are not scaled yet and weights that will be rounded. `max` is in units of ln 2.
///
/// # Safety
/// `logits.len()` is a multiple of `S::LANES`; the CPU supports `S`.
#[inline(always)]
unsafe fn scaled_softmax_block<S: Simd>(logits: &mut [f32], scale: f32, max: &mut f32, sum: &mut f32) -> f32 {
    let scale = scale * std::f32::consts::LOG2_E;
    // SAFETY: offsets stay below the length, a multiple of the lanes (caller).
    unsafe {
        let ptr = logits.as_mut_ptr();
        let mut top = S::splat(f32::NEG_INFINITY);
        for i in (0..logits.len()).step_by(S::LANES) {
            top = S::max(top, S::load(ptr.add(i)));
        }
        let new_max = max.max(S::maximum(top) * scale);
        let rescale = if *max == new_max { 1.0 } else { (*max - new_max).exp2() };
        let (times, minus_max) = (S::splat(scale), S::splat(-new_max));
        let mut total = S::splat(0.0);
        for i in (0..logits.len()).step_by(S::LANES) {
            let e = S::exp2_rough(S::fma(S::load(ptr.add(i)), times, minus_max));
            S::store(ptr.add(i), e);
            total = S::add(total, e);
        }
        *max = new_max;
        *sum = *sum * rescale + S::sum(total);
        rescale
    }
}

/// A matrix in row-major order.
#[derive(Clone, Copy)]
pub(super) struct RowMajor<'a> {
    /// The numbers from the start of the first row; there may be more after the end of the last row.
    pub data: &'a [f32],
    /// Distance from the start of a row to that of the next.
    pub stride: usize,
}

/// The factors of a product `A · B`.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// `A`, `[rows][depth]`.
    pub a: RowMajor<'a>,
    /// `B`, `[depth][width]`.
    pub b: RowMajor<'a>,
    /// Number of rows of `A` and of the product.
    pub rows: usize,
    /// Number of columns of `A`, which is the number of rows of `B`.
    pub depth: usize,
    /// Number of columns of `B` and of the product.
    pub width: usize,
}

/// What happens to the numbers in the place where a product is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// They are replaced.
    Replace,
    /// The product is added to them.
    Add,
    /// The sums start with them: products over parts of the depth, one after the other, give the same bits as one product over all of it.
    Continue,
}

/// Writes `A · B` to `c`, `[rows][width]` with rows `c_stride` numbers apart.
///
/// # Safety
/// The CPU supports `S`; shapes are checked.
#[inline(always)]
pub(super) unsafe fn product<S: Simd>(factors: Factors<'_>, c: &mut [f32], c_stride: usize, write: Write) {
    let Factors { a, b, rows, depth, width } = factors;
    assert!(rows > 0 && depth > 0);
    assert!(a.data.len() >= (rows - 1) * a.stride + depth && b.data.len() >= (depth - 1) * b.stride + width);
    assert!(c.len() >= (rows - 1) * c_stride + width);
    let p = Product {
        a: a.data.as_ptr(),
        lda: a.stride,
        depth,
        b: b.data.as_ptr(),
        ldb: b.stride,
        c: c.as_mut_ptr(),
        ldc: c_stride,
        write,
    };
    let mut j = 0;
    while j < width {
        let vectors = (width - j) / S::LANES;
        // SAFETY: tiles stay within `rows` and `width`, whose extents were asserted above.
        j += unsafe {
            if vectors >= S::TILE_VECTORS && S::TILE_VECTORS == 4 {
                columns::<S, 4>(p, rows, j)
            } else if vectors >= 2 && S::TILE_VECTORS >= 2 {
                columns::<S, 2>(p, rows, j)
            } else if vectors >= 1 {
                columns::<S, 1>(p, rows, j)
            } else {
                one_column(p, rows, j)
            }
        };
    }
}

/// [`Factors`] and the destination of their product, after the shapes were checked.
#[derive(Clone, Copy)]
struct Product {
    a: *const f32,
    lda: usize,
    depth: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    write: Write,
}

/// # Safety
/// `rows` rows and columns `j..j + C * LANES` exist in the product; the CPU supports `S`.
#[inline(always)]
unsafe fn columns<S: Simd, const C: usize>(p: Product, rows: usize, j: usize) -> usize {
    let mut i = 0;
    // SAFETY: `i` advances by the tile's height only while that many rows are left.
    unsafe {
        if S::TILE_ROWS == 6 {
            while i + 6 <= rows {
                tile::<S, 6, C>(p, i, j);
                i += 6;
            }
        }
        while i + 4 <= rows {
            tile::<S, 4, C>(p, i, j);
            i += 4;
        }
        // A single row would wait for its own sums, so all remaining rows form one tile.
        match rows - i {
            0 => {}
            1 => tile::<S, 1, C>(p, i, j),
            2 => tile::<S, 2, C>(p, i, j),
            _ => tile::<S, 3, C>(p, i, j),
        }
    }
    C * S::LANES
}

/// # Safety
/// Rows `i..i + R` and columns `j..j + C * LANES` exist in the product; the CPU supports `S`.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(p: Product, i: usize, j: usize) {
    // SAFETY: all accesses are inside the tile and the depth (caller).
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        if p.write == Write::Continue {
            for (r, acc) in acc.iter_mut().enumerate() {
                for (v, sum) in acc.iter_mut().enumerate() {
                    *sum = S::load(p.c.add((i + r) * p.ldc + j + v * S::LANES));
                }
            }
        }
        for k in 0..p.depth {
            let row = p.b.add(k * p.ldb + j);
            let mut b = [S::splat(0.0); C];
            for (v, b) in b.iter_mut().enumerate() {
                *b = S::load(row.add(v * S::LANES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = S::splat(*p.a.add((i + r) * p.lda + k));
                for v in 0..C {
                    acc[v] = S::fma(a, b[v], acc[v]);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (v, sum) in acc.iter().enumerate() {
                let out = p.c.add((i + r) * p.ldc + j + v * S::LANES);
                let sum = if p.write == Write::Add { S::add(S::load(out), *sum) } else { *sum };
                S::store(out, sum);
            }
        }
    }
}

/// # Safety
/// `rows` rows and column `j` exist in the product.
#[inline(always)]
unsafe fn one_column(p: Product, rows: usize, j: usize) -> usize {
    for i in 0..rows {
        // SAFETY: all accesses are within the product (caller).
        unsafe {
            let out = p.c.add(i * p.ldc + j);
            let mut sum = if p.write == Write::Continue { *out } else { 0.0 };
            for k in 0..p.depth {
                sum += *p.a.add(i * p.lda + k) * *p.b.add(k * p.ldb + j);
            }
            *out = if p.write == Write::Add { *out + sum } else { sum };
        }
    }
    1
}

#[cfg(test)]
mod tests;
