//! [`SparsePrefill`]: reads a prompt with a method's mask, on the host, and counts the cost.

use std::sync::Arc;

use rayon::prelude::*;

use crate::backend::workspaces::Workspaces;
use crate::calibration::collector::{HostChunk, PrefillChunk};
use crate::configured::Configured;
use crate::cost::{Cost, LayerCosts};
use crate::kv::{KvError, LayerKv, MOST_TOKENS};
use crate::prefill::cost::{BlockCost, by_head, queries_by_group};
use crate::prefill::dual_position::{DualPositionHead, VisibleTokens};
use crate::prefill::mask::{Mask, Masks, PrefillPattern, PromptMask, PromptPlan, QueryBlock};
use crate::prefill::rows::RowReader;
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::types::policy::{LocalLayers, Policy};
use crate::types::positions::{GIVEN_ROTATION, Positions, Rotation};
use crate::types::seed::head_seed;
use spattn_kernels::LogitRule;
use spattn_kernels::prefill::{PackedHead, RowVisibility, block_attention, sliding_attention};

/// Reads a prompt with a method's mask.
pub struct SparsePrefill<'a> {
    /// The method, by which a device selects if every row has its own selection.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a device asks for it"))]
    pub(crate) method: &'a Configured,
    pub(crate) pattern: PrefillPattern<'a>,
    /// Reader for patterns in which every row has its own selection.
    rows: Option<RowReader<'a>>,
    pub(crate) policy: &'a Policy,
    pub(crate) positions: Positions,
    rotation: Option<Arc<dyn Rotation>>,
    /// Whether each layer is dense by policy.
    pub(crate) dense: Vec<bool>,
    pub(crate) seed: u64,
    pub(crate) costs: LayerCosts,
    /// Memory that a device keeps from chunk to chunk, if one reads the prompt.
    workspaces: Workspaces,
}

/// Computes the masks of a block.
type Masking<'a> = dyn Fn(&QueryBlock<'_>, &mut Cost) -> Masks + Sync + 'a;

impl<'a> SparsePrefill<'a> {
    /// Creates the prefill of a method with a mask, in a model whose layers attend as `specs` say; `seed` is the
    /// context's. `None` if the method's prefill is dense.
    pub fn new(method: &'a Configured, specs: &LayerSpecs, seed: u64) -> Option<Self> {
        let pattern = method.method.prefill_pattern().filter(|pattern| !matches!(pattern, PrefillPattern::Dense))?;
        // Masks do not support a layer's own window, so a prompt's rows attend all of it.
        let dense = specs.dense(&Policy { local_layers: LocalLayers::Dense, ..method.policy.clone() });
        let (policy, positions) = (&method.policy, method.method.positions());
        let rows = match pattern {
            PrefillPattern::Rows(mask) => Some(RowReader::new(mask, method, &dense, seed)),
            _ => None,
        };
        let costs = LayerCosts::new(specs.layers());
        Some(Self {
            method,
            pattern,
            rows,
            policy,
            positions,
            rotation: None,
            dense,
            seed,
            costs,
            workspaces: Workspaces::default(),
        })
    }

    /// Adds the model's rotation, without which a method that moves [`Positions`] cannot read.
    pub fn with_rotation(self, rotation: Option<Arc<dyn Rotation>>) -> Self {
        Self { rotation, ..self }
    }

    /// Number of rows of a chunk: whole blocks, about `most` rows, but at least one block. If the mask needs the whole
    /// prompt, the length of the longest prompt.
    pub fn chunk_rows(&self, most: usize) -> usize {
        let rows = self.pattern.query_rows();
        match self.pattern {
            PrefillPattern::Whole(_) => MOST_TOKENS.next_multiple_of(rows),
            _ => (most / rows).max(1) * rows,
        }
    }

    /// Attends a chunk, whose first row starts a block, into `out: [token][head][d]`.
    ///
    /// # Errors
    /// If a device that computes the chunk fails.
    pub fn attend(&mut self, chunk: &PrefillChunk<'_>, out: &mut [f32]) -> Result<(), KvError> {
        let rows = self.pattern.query_rows();
        debug_assert!(
            chunk.first.is_multiple_of(rows),
            "a chunk begins with a block: token {} is no multiple of {rows}",
            chunk.first
        );
        let chunk = &chunk.on_host()?;
        let counted = match (self.dense[chunk.layer], self.pattern) {
            (true, _) | (_, PrefillPattern::Dense) => self.attend_all(chunk, out),
            (false, PrefillPattern::Rows(_)) => {
                self.rows.as_mut().expect("a pattern of rows comes with a reader of rows").attend(chunk, out)
            }
            (false, PrefillPattern::Blocks(mask)) => {
                self.attend_blocks(chunk, mask.query_rows(), &|block, cost| mask.masks(block, cost), out)
            }
            (false, PrefillPattern::Whole(mask)) => self.attend_whole(chunk, mask, out),
        };
        counted.into_iter().for_each(|counted| self.count(chunk.layer, counted));
        Ok(())
    }

    /// Adds the cost of a block at a layer.
    pub(crate) fn count(&mut self, layer: usize, BlockCost { cost, attended, context }: BlockCost) {
        // Bytes are counted only for decode steps: here many rows share what is read.
        *self.costs.layer_mut(layer) += Cost { kv_bytes: 0, aux_bytes: 0, ..cost };
        self.costs.count_heads(layer, 0, &attended, context);
    }

    /// Attends a chunk that is the whole prompt: plans the masks of all blocks first, for each KV head.
    fn attend_whole(&self, chunk: &HostChunk<'_>, mask: &dyn PromptMask, out: &mut [f32]) -> Vec<BlockCost> {
        assert_eq!(chunk.first, 0, "a mask over the whole prompt needs the prompt as one chunk");
        let queries = queries_by_group(chunk.queries(), chunk.heads, (chunk.kv_heads(), chunk.d()));
        let blocks = self.last_rows(chunk, chunk.kv(), &queries, chunk.tokens());
        let (plans, costs) = planned(&blocks, |block, cost| mask.plan(block, cost));
        let masking = |block: &QueryBlock<'_>, _: &mut Cost| plans[block.kv_head](block);
        let mut counted = self.attend_blocks(chunk, mask.query_rows(), &masking, out);
        counted.extend(costs.into_iter().map(|cost| BlockCost::planning(cost, chunk.heads)));
        counted
    }

    /// The chunk's last `rows` rows as one block for each KV head; `queries` are the rows' queries, by group.
    pub(crate) fn last_rows<'b>(
        &'b self,
        chunk: &PrefillChunk<'_>,
        kv: &'b LayerKv,
        queries: &'b [Vec<f32>],
        rows: usize,
    ) -> Vec<QueryBlock<'b>> {
        let skipped = chunk.tokens() - rows;
        (0..).zip(queries).map(|(kv_head, queries)| self.block(chunk, kv, kv_head, skipped, queries, rows)).collect()
    }

    /// Attends a layer that is dense by policy, at grouped positions if the method uses them.
    fn attend_all(&self, chunk: &HostChunk<'_>, out: &mut [f32]) -> Vec<BlockCost> {
        let end = chunk.first + chunk.tokens();
        match self.positions {
            Positions::Grouped(grouping) if grouping.far(end - 1) > 0 => {
                let all = |block: &QueryBlock<'_>, _: &mut Cost| Masks::Shared(Mask::new(vec![], vec![0; block.rows]));
                self.attend_blocks(chunk, DENSE_ROWS, &all, out)
            }
            _ => {
                attend_all_tokens(chunk, out);
                let spec = chunk.spec();
                let seen = |total: usize| total - spec.first_visible(total);
                let context = (chunk.first..end).map(|position| seen(position + 1)).sum();
                vec![BlockCost::new(vec![context; chunk.heads], context, chunk.tokens(), chunk.d())]
            }
        }
    }

    /// Attends a chunk in blocks of `rows` rows.
    fn attend_blocks(
        &self,
        chunk: &HostChunk<'_>,
        rows: usize,
        masking: &Masking<'_>,
        out: &mut [f32],
    ) -> Vec<BlockCost> {
        let blocks = out.par_chunks_mut(rows * chunk.heads * chunk.d()).enumerate().with_max_len(1);
        blocks.map(|(block, out)| self.attend_block(chunk, masking, block * rows, out)).collect()
    }

    /// Some rows of one KV head's group, starting at the chunk's row `skipped`.
    fn block<'b>(
        &'b self,
        chunk: &PrefillChunk<'_>,
        kv: &'b LayerKv,
        kv_head: usize,
        skipped: usize,
        queries: &'b [f32],
        rows: usize,
    ) -> QueryBlock<'b> {
        QueryBlock {
            layer: chunk.layer,
            kv_head,
            group: chunk.heads / chunk.kv_heads(),
            queries,
            rows,
            first: chunk.first + skipped,
            d: chunk.d(),
            scale: chunk.scale(),
            keys: kv.keys.head(kv_head),
            grouped: self.positions.grouped(self.rotation.as_deref()),
            policy: self.policy,
            share: self.policy.schedule.share(&self.dense, chunk.layer),
            seed: head_seed(self.seed, chunk.layer, kv_head),
        }
    }

    /// Attends the block whose first row is the chunk's row `skipped`.
    fn attend_block(&self, chunk: &HostChunk<'_>, masking: &Masking<'_>, skipped: usize, out: &mut [f32]) -> BlockCost {
        let (d, heads, kv_heads) = (chunk.d(), chunk.heads, chunk.kv_heads());
        let (width, group, spec) = (heads * d, heads / kv_heads, chunk.spec());
        let (rows, first) = (out.len() / width, chunk.first + skipped);
        let queries = &chunk.queries()[skipped * width..][..out.len()];
        let (mut cost, mut attended) = (Cost::default(), vec![0; heads]);
        for kv_head in 0..kv_heads {
            let own = by_head(queries, heads, d, kv_head * group..(kv_head + 1) * group);
            let block = self.block(chunk, chunk.kv(), kv_head, skipped, &own, rows);
            let values = chunk.kv().values.head(kv_head);
            let (masks, sharing) = match masking(&block, &mut cost) {
                Masks::Shared(mask) => (vec![mask], group),
                Masks::PerHead(masks) => (masks, 1),
            };
            for (first_head, mask) in (kv_head * group..).step_by(sharing).zip(&masks) {
                let (tokens, visibility) = mask.resolve(first);
                let seen = visibility.iter().map(RowVisibility::tokens).sum();
                attended[first_head..first_head + sharing].fill(seen);
                let of = (first_head..first_head + sharing).map(|head| (head, heads));
                let seen = VisibleTokens { keys: block.keys, values, d, tokens: &tokens, visibility: &visibility };
                match self.dual_position(&seen, &block, mask) {
                    Some(cache) => of.for_each(|of| self.attend_dual_position(&cache, queries, of, &spec, out)),
                    None => {
                        let packed = PackedHead::gathered(block.keys, values, d, &tokens);
                        of.for_each(|of| block_attention(queries, of, &packed, &visibility, spec.logit_rule(), out));
                    }
                }
            }
        }
        let context = (first..first + rows).map(|position| position + 1).sum();
        BlockCost::new(attended, context, rows, d).with(cost)
    }

    /// Keys and values for rows whose queries have two positions; `None` if they have one.
    fn dual_position(&self, seen: &VisibleTokens<'_>, block: &QueryBlock<'_>, mask: &Mask) -> Option<DualPositionHead> {
        let last = block.first + block.rows - 1;
        match self.positions {
            Positions::Original => None,
            Positions::WithinCache => Some(DualPositionHead::within_cache(seen, mask.common.len())),
            Positions::Grouped(grouping) if grouping.far(last) == 0 => None,
            Positions::Grouped(_) => Some(DualPositionHead::grouped(seen, block.grouped?, block.first)),
        }
    }

    /// Attends a block in which the query of each row has two positions.
    fn attend_dual_position(
        &self,
        cache: &DualPositionHead,
        queries: &[f32],
        (head, heads): (usize, usize),
        spec: &AttentionSpec,
        out: &mut [f32],
    ) {
        let (d, rotation) = (cache.d, self.rotation.as_ref().expect(GIVEN_ROTATION));
        let mut both = vec![0.0; cache.visibility.len() * 2 * d];
        for (row, (both, shift)) in both.chunks_exact_mut(2 * d).zip(&cache.shifts).enumerate() {
            let query = &queries[(row * heads + head) * d..][..d];
            both[..d].copy_from_slice(query);
            both[d..].copy_from_slice(query);
            rotation.turn_back(&mut both[..d], *shift);
        }
        let mut attended = vec![0.0; both.len()];
        let LogitRule { scale, soft_cap, sinks } = spec.logit_rule();
        let rule = LogitRule { scale, soft_cap, sinks: sinks.get(head..head + 1).unwrap_or(&[]) };
        block_attention(&both, (0, 1), &cache.packed, &cache.visibility, rule, &mut attended);
        for (row, attended) in attended.chunks_exact(2 * d).enumerate() {
            out[(row * heads + head) * d..][..d].copy_from_slice(&attended[..d]);
        }
    }

    /// Memory that a device keeps from chunk to chunk.
    pub fn workspaces_mut(&mut self) -> &mut Workspaces {
        &mut self.workspaces
    }

    /// The costs counted so far.
    pub fn into_costs(self) -> LayerCosts {
        self.costs
    }
}

/// Plans the masks of a prompt for the blocks of its KV heads, and returns the cost of planning.
pub(crate) fn planned<'p>(
    blocks: &'p [QueryBlock<'p>],
    plan: impl Fn(&'p QueryBlock<'p>, &mut Cost) -> PromptPlan<'p> + Sync,
) -> (Vec<PromptPlan<'p>>, Vec<Cost>) {
    let of_kv_head = |block: &'p QueryBlock<'p>| {
        let mut cost = Cost::default();
        (plan(block, &mut cost), cost)
    };
    blocks.par_iter().map(of_kv_head).unzip()
}

/// Number of query rows read together in a dense layer with grouped positions.
const DENSE_ROWS: usize = 256;

/// Computes the layer's exact attention of a chunk, over all tokens up to each of its own, into `out: [token][head][d]`.
///
/// # Errors
/// If a device that computes the chunk fails.
pub fn attend_densely(chunk: &PrefillChunk<'_>, out: &mut [f32]) -> Result<(), KvError> {
    attend_all_tokens(&chunk.on_host()?, out);
    Ok(())
}

fn attend_all_tokens(chunk: &HostChunk<'_>, out: &mut [f32]) {
    let (d, kv_heads) = (chunk.d(), chunk.kv_heads());
    let pack = |head: usize| PackedHead::new(chunk.kv().keys.head(head), chunk.kv().values.head(head), d);
    let packed: Vec<PackedHead> = (0..kv_heads).into_par_iter().map(pack).collect();
    let spec = chunk.spec();
    let heads = (chunk.heads, spec.window.unwrap_or(usize::MAX));
    sliding_attention(chunk.queries(), &packed, heads, spec.logit_rule(), out);
}

#[cfg(test)]
mod tests;
