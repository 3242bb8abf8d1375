//! What is attended: prefixes that were drawn or captured, and the rows that follow them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::drawn::{Drawn, DrawnRows, Looks};
use crate::attention::calibration::PrefillChunk;
use crate::attention::{
    Configured, IndexCache, PromptNeed, PromptShape, PromptStats, RecentQueries, Rotation, mix_seed,
};
use crate::kv::{LayerKv, Prefix};
use crate::model::dimensions::Dimensions;
use crate::model::rope::RopeTable;

/// Tokens that are drawn together, where nothing asks for all of them at once.
const CHUNK: usize = 4096;

/// One token of one layer: queries `[head][d]`, key and value `[kv_head][d]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRow {
    /// Rotated, unscaled.
    pub queries: Vec<f32>,
    /// Rotated.
    pub key: Vec<f32>,
    /// As it is.
    pub value: Vec<f32>,
}

/// A prefix with the tokens that follow it.
pub struct Sequence {
    /// Keys and values of all layers.
    pub prefix: Arc<Prefix>,
    /// What methods asked to know of its prompt.
    stats: Option<PromptStats>,
    /// By which budgets are solved.
    recent: RecentQueries,
    /// What follows: `[step][layer]`.
    pub steps: Vec<Vec<LayerRow>>,
    /// What attention over it looks like, in the first of its layers.
    pub looks: Option<Looks>,
    seed: u64,
}

/// What is drawn.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Of what model.
    pub dimensions: &'a Dimensions,
    /// Angles for at least `context + steps` positions.
    pub angles: &'a RopeTable,
    /// Layers.
    pub layers: usize,
    /// Tokens of the prefix.
    pub context: usize,
    /// Tokens behind it.
    pub steps: usize,
    /// What methods ask to know of the prompt.
    pub needs: &'a BTreeSet<PromptNeed>,
    /// Seed of this sequence.
    pub seed: u64,
}

impl Sequence {
    /// Draws a prefix and what follows.
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
                // Nobody looks at earlier queries, unless methods do.
                let asking = if stats.is_some() || end == context { end - first } else { 0 };
                let rows = drawn.rows(first..end, asking);
                append(&mut kv, &rows, c.kv_heads * c.head_dim);
                if asking > 0 {
                    let chunk = PrefillChunk::new(layer, first, &rows.queries, c.heads, &kv);
                    stats.iter_mut().for_each(|stats| stats.observe(&chunk));
                    recent.observe(&chunk);
                }
            }
            let following = drawn.rows(context..context + steps, steps);
            if layer == 0 {
                let some = following.queries.len().min(LOOKS * c.heads * c.head_dim);
                looks = Looks::of(&kv, &following.queries[..some], c.heads);
            }
            followers.push(split(&following, c.heads * c.head_dim, c.kv_heads * c.head_dim));
            kvs.push(kv);
        }
        let steps = (0..steps).map(|step| followers.iter().map(|rows| rows[step].clone()).collect()).collect();
        Self { prefix: Prefix::new(kvs), stats, recent, steps, looks, seed }
    }

    /// Indexes of its prefix, none built yet.
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

/// Queries of each head by which attention is looked at.
const LOOKS: usize = 2;

/// What all of these methods ask to know of a prompt.
pub fn needs_of<'m>(methods: impl IntoIterator<Item = &'m Configured>) -> BTreeSet<PromptNeed> {
    methods.into_iter().flat_map(|method| method.method.prompt_needs()).collect()
}

/// Appends the keys and values of `rows`, each `width` wide.
pub fn append(kv: &mut LayerKv, rows: &DrawnRows, width: usize) {
    rows.keys.chunks_exact(width).zip(rows.values.chunks_exact(width)).for_each(|(key, value)| kv.append(key, value));
}

/// Rows by token, with a query for each.
fn split(rows: &DrawnRows, query_width: usize, kv_width: usize) -> Vec<LayerRow> {
    let keys = rows.keys.chunks_exact(kv_width).zip(rows.values.chunks_exact(kv_width));
    let row = |(queries, (key, value)): (&[f32], (&[f32], &[f32]))| LayerRow {
        queries: queries.to_vec(),
        key: key.to_vec(),
        value: value.to_vec(),
    };
    rows.queries.chunks_exact(query_width).zip(keys).map(row).collect()
}
