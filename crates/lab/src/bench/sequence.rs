//! The inputs of a benchmark: prefixes, random or captured, and the tokens that follow them.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;

use super::capture::{Capture, keep_rows};
use super::drawn::{Drawn, DrawnRows, Looks};
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::{LayerKv, Prefix};
use spattn_attention::{
    Configured, IndexCache, PromptNeed, PromptShape, PromptStats, RecentQueries, Rotation, mix_seed,
};
use spattn_model::dimensions::Dimensions;
use spattn_model::rope::RopeTable;

/// The number of tokens generated at a time.
const CHUNK: usize = 4096;

/// One token at one layer: queries `[head][d]`, key and value `[kv_head][d]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRow {
    /// Rotated, unscaled.
    pub queries: Vec<f32>,
    /// Rotated.
    pub key: Vec<f32>,
    /// Not rotated.
    pub value: Vec<f32>,
}

/// A prefix with the tokens that follow it.
pub struct BenchSequence {
    /// Keys and values of all layers.
    pub prefix: Arc<Prefix>,
    /// The prompt statistics that methods need.
    stats: Option<PromptStats>,
    /// The last queries, from which methods derive their budgets.
    recent: RecentQueries,
    /// The tokens that follow: `[step][layer]`.
    pub steps: Vec<Vec<LayerRow>>,
    /// Properties of attention over the prefix, at the first layer.
    pub looks: Option<Looks>,
    seed: u64,
}

/// The parameters of a sequence.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The model's dimensions.
    pub dimensions: &'a Dimensions,
    /// Angles for at least `context + steps` positions.
    pub angles: &'a RopeTable,
    /// The number of layers.
    pub layers: usize,
    /// Tokens of the prefix.
    pub context: usize,
    /// The number of tokens after the prefix.
    pub steps: usize,
    /// The prompt statistics that methods need.
    pub needs: &'a BTreeSet<PromptNeed>,
    /// Seed of this sequence.
    pub seed: u64,
}

impl BenchSequence {
    /// Generates a random prefix and the tokens that follow it.
    pub fn drawn(wanted: Wanted<'_>) -> Self {
        let Wanted { dimensions, angles, layers, context, steps, needs, seed } = wanted;
        let c = dimensions.config();
        let shape = PromptShape { layers, ..dimensions.prompt_shape(context) };
        let mut stats = (!needs.is_empty()).then(|| PromptStats::new(needs, shape));
        let mut recent = RecentQueries::of_prefix(context);
        let (mut kvs, mut followers, mut looks) = (Vec::new(), Vec::new(), None);
        for layer in 0..layers {
            let drawn = Drawn::new(dimensions, angles, mix_seed(seed, layer as u64));
            let mut kv = LayerKv::new(dimensions.dtype(), c.kv_heads, c.head_dim, context);
            for first in (0..context).step_by(CHUNK) {
                let end = context.min(first + CHUNK);
                // Queries of earlier tokens are needed only for prompt statistics.
                let asking = if stats.is_some() || end == context { end - first } else { 0 };
                let rows = drawn.rows(first..end, asking);
                kv.append_rows(&rows.keys, &rows.values);
                if asking > 0 {
                    let chunk = PrefillChunk::new(layer, first, &rows.queries, c.heads, &kv);
                    let observed = stats.iter_mut().try_for_each(|stats| stats.observe(&chunk));
                    observed.and_then(|()| recent.observe(&chunk)).expect("the chunk is in host memory");
                }
            }
            let following = drawn.rows(context..context + steps, steps);
            if layer == 0 {
                looks = looks_of(&kv, &following, dimensions);
            }
            followers.push(following);
            kvs.push(kv);
        }
        let steps = by_step(&followers, dimensions);
        Self { prefix: Prefix::new(kvs), stats, recent, steps, looks, seed }
    }

    /// Captures a model's `number`-th prompt: a prefix and the tokens that follow it.
    ///
    /// # Errors
    /// If no prompt can be made, or the model cannot read it.
    pub fn captured(wanted: Wanted<'_>, capture: &Capture, number: usize) -> Result<Self> {
        let Wanted { dimensions, layers, context, steps, needs, seed, .. } = wanted;
        let shape = PromptShape { layers, ..dimensions.prompt_shape(context) };
        let mut stats = (!needs.is_empty()).then(|| PromptStats::new(needs, shape));
        let mut recent = RecentQueries::of_prefix(context);
        let none = || DrawnRows { queries: Vec::new(), keys: Vec::new(), values: Vec::new() };
        let mut followers: Vec<DrawnRows> = (0..layers).map(|_| none()).collect();
        let gather = |chunk: &PrefillChunk<'_>| {
            stats.iter_mut().try_for_each(|stats| stats.observe(chunk))?;
            recent.observe(chunk)
        };
        let follow = |chunk: &PrefillChunk<'_>| keep_rows(chunk, &mut followers[chunk.layer]);
        let kvs = capture.read(&capture.tokens(context + steps, number)?, context, gather, follow)?;
        let looks = kvs.first().zip(followers.first()).and_then(|(kv, rows)| looks_of(kv, rows, dimensions));
        let steps = by_step(&followers, dimensions);
        Ok(Self { prefix: Prefix::new(kvs), stats, recent, steps, looks, seed })
    }

    /// The prompt statistics that methods need.
    #[cfg(feature = "cuda")]
    pub fn stats(&self) -> Option<&PromptStats> {
        self.stats.as_ref()
    }

    /// Creates an empty index cache over the prefix.
    pub fn cache(&self, dimensions: &Dimensions, rotation: Option<Arc<dyn Rotation>>) -> IndexCache {
        let mut cache = IndexCache::new(self.prefix.clone(), dimensions.dtype(), self.seed)
            .with_queries(self.recent.clone())
            .with_prompt(self.prefix.tokens());
        if let Some(rotation) = rotation {
            cache = cache.with_rotation(rotation);
        }
        match &self.stats {
            Some(stats) => cache.with_stats(stats.clone()),
            None => cache,
        }
    }
}

/// The number of tokens whose queries measure [`Looks`].
const LOOKS: usize = 2;

/// Returns the prompt statistics that some methods need.
pub fn needs_of<'m>(methods: impl IntoIterator<Item = &'m Configured>) -> BTreeSet<PromptNeed> {
    methods.into_iter().flat_map(|method| method.method.prompt_needs()).collect()
}

/// Measures attention over a layer with the queries of the first tokens that follow it.
fn looks_of(kv: &LayerKv, following: &DrawnRows, dimensions: &Dimensions) -> Option<Looks> {
    let c = dimensions.config();
    let some = following.queries.len().min(LOOKS * c.heads * c.head_dim);
    Looks::of(kv, &following.queries[..some], c.heads)
}

/// Rearranges the rows of each layer as `[step][layer]`.
fn by_step(layers: &[DrawnRows], dimensions: &Dimensions) -> Vec<Vec<LayerRow>> {
    let c = dimensions.config();
    let by_token = |rows: &DrawnRows| split(rows, c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let mut layers: Vec<_> = layers.iter().map(|rows| by_token(rows).into_iter()).collect();
    let steps = layers.first().map_or(0, |rows| rows.len());
    (0..steps).map(|_| layers.iter_mut().filter_map(Iterator::next).collect()).collect()
}

/// Splits rows into single tokens, each with its queries.
fn split(rows: &DrawnRows, query_width: usize, kv_width: usize) -> Vec<LayerRow> {
    let keys = rows.keys.chunks_exact(kv_width).zip(rows.values.chunks_exact(kv_width));
    let row = |(queries, (key, value)): (&[f32], (&[f32], &[f32]))| LayerRow {
        queries: queries.to_vec(),
        key: key.to_vec(),
        value: value.to_vec(),
    };
    rows.queries.chunks_exact(query_width).zip(keys).map(row).collect()
}
