//! [`SparsePrefill`]: reads a prompt by the mask of a method, on the host, and counts what that costs.

use std::sync::Arc;

use rayon::prelude::*;

use crate::backend::workspaces::Workspaces;
use crate::calibration::collector::PrefillChunk;
use crate::configured::Configured;
use crate::cost::{Cost, LayerCosts};
use crate::kv::MOST_TOKENS;
use crate::prefill::cost::{BlockCost, by_head, queries_by_group};
use crate::prefill::dual_position::{DualPositionHead, VisibleTokens};
use crate::prefill::mask::{Mask, Masks, PrefillPattern, PromptMask, PromptPlan, QueryBlock};
use crate::prefill::rows::RowReader;
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::types::policy::Policy;
use crate::types::positions::{GIVEN_ROTATION, Positions, Rotation};
use crate::types::seed::head_seed;
use spattn_kernels::LogitRule;
use spattn_kernels::prefill::{PackedHead, RowVisibility, block_attention, sliding_attention};

/// A method that reads a prompt by its mask.
pub struct SparsePrefill<'a> {
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

/// Gives the masks of a block.
type Masking<'a> = dyn Fn(&QueryBlock<'_>, &mut Cost) -> Masks + Sync + 'a;

impl<'a> SparsePrefill<'a> {
    /// For a method with a mask, in a model whose layers attend as `specs` say; `seed` is the context's. `None` if the
    /// method's prefill is dense.
    pub fn new(method: &'a Configured, specs: &LayerSpecs, seed: u64) -> Option<Self> {
        let pattern = method.method.prefill_pattern().filter(|pattern| !matches!(pattern, PrefillPattern::Dense))?;
        let dense = specs.dense(&method.policy);
        let (policy, positions) = (&method.policy, method.method.positions());
        let rows = match pattern {
            PrefillPattern::Rows(mask) => Some(RowReader::new(mask, method, &dense, seed)),
            _ => None,
        };
        let costs = LayerCosts::new(specs.layers());
        Some(Self {
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

    /// Rows of a chunk: whole blocks, about `most` rows, but at least one block; the longest prompt if the mask needs
    /// the whole prompt.
    pub fn chunk_rows(&self, most: usize) -> usize {
        let rows = self.pattern.query_rows();
        match self.pattern {
            PrefillPattern::Whole(_) => MOST_TOKENS.next_multiple_of(rows),
            _ => (most / rows).max(1) * rows,
        }
    }

    /// Attends a chunk, which begins with a block, into `out: [token][head][d]`.
    pub fn attend(&mut self, chunk: &PrefillChunk<'_>, out: &mut [f32]) {
        let rows = self.pattern.query_rows();
        debug_assert!(chunk.first.is_multiple_of(rows), "blocks are counted from the first token");
        chunk.show();
        let counted = match (self.dense[chunk.layer], self.pattern) {
            (true, _) | (_, PrefillPattern::Dense) => self.attend_all(chunk, out),
            (false, PrefillPattern::Rows(_)) => {
                self.rows.as_mut().expect("a reader is made with the pattern").attend(chunk, out)
            }
            (false, PrefillPattern::Blocks(mask)) => {
                self.attend_blocks(chunk, mask.query_rows(), &|block, cost| mask.masks(block, cost), out)
            }
            (false, PrefillPattern::Whole(mask)) => self.attend_whole(chunk, mask, out),
        };
        counted.into_iter().for_each(|counted| self.count(chunk.layer, counted));
    }

    /// Adds the cost of a block at a layer.
    pub(crate) fn count(&mut self, layer: usize, BlockCost { cost, attended, context }: BlockCost) {
        // Bytes are counted for decode steps only: here many rows share what is read.
        *self.costs.layer_mut(layer) += Cost { kv_bytes: 0, aux_bytes: 0, ..cost };
        self.costs.count_heads(layer, 0, &attended, context);
    }

    /// Attends a chunk that is the whole prompt: plans the masks of all blocks first, for each KV head.
    fn attend_whole(&self, chunk: &PrefillChunk<'_>, mask: &dyn PromptMask, out: &mut [f32]) -> Vec<BlockCost> {
        assert_eq!(chunk.first, 0, "a mask over the whole prompt sees it in one chunk");
        let queries = queries_by_group(chunk);
        let (plans, costs) = self.plan(chunk, mask, &queries);
        let masking = |block: &QueryBlock<'_>, _: &mut Cost| plans[block.kv_head](block);
        let mut counted = self.attend_blocks(chunk, mask.query_rows(), &masking, out);
        counted.extend(costs.into_iter().map(|cost| BlockCost::planning(cost, chunk.heads)));
        counted
    }

    /// Plans the masks of a prompt's blocks, by KV head, and returns the cost of planning; `queries` are the chunk's,
    /// by group.
    pub(crate) fn plan<'p>(
        &'p self,
        chunk: &PrefillChunk<'p>,
        mask: &'p dyn PromptMask,
        queries: &'p [Vec<f32>],
    ) -> (Vec<PromptPlan<'p>>, Vec<Cost>) {
        let plan = |kv_head: usize| {
            let mut cost = Cost::default();
            (mask.plan(&self.block(chunk, kv_head, 0, &queries[kv_head], chunk.tokens()), &mut cost), cost)
        };
        (0..queries.len()).into_par_iter().map(plan).unzip()
    }

    /// Attends a layer that is dense by policy, at grouped positions if the method uses them.
    fn attend_all(&self, chunk: &PrefillChunk<'_>, out: &mut [f32]) -> Vec<BlockCost> {
        let end = chunk.first + chunk.tokens();
        match self.positions {
            Positions::Grouped(grouping) if grouping.far(end - 1) > 0 => {
                let all = |block: &QueryBlock<'_>, _: &mut Cost| Masks::Shared(Mask::new(vec![], vec![0; block.rows]));
                self.attend_blocks(chunk, DENSE_ROWS, &all, out)
            }
            _ => {
                attend_densely(chunk, out);
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
        chunk: &PrefillChunk<'_>,
        rows: usize,
        masking: &Masking<'_>,
        out: &mut [f32],
    ) -> Vec<BlockCost> {
        let blocks = out.par_chunks_mut(rows * chunk.heads * chunk.d()).enumerate().with_max_len(1);
        blocks.map(|(block, out)| self.attend_block(chunk, masking, block * rows, out)).collect()
    }

    /// Some rows of one KV head's group, from the chunk's `skipped`-th on.
    fn block<'b>(
        &'b self,
        chunk: &PrefillChunk<'b>,
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
            keys: chunk.kv().keys.head(kv_head),
            grouped: self.positions.grouped(self.rotation.as_deref()),
            policy: self.policy,
            share: self.policy.schedule.share(&self.dense, chunk.layer),
            seed: head_seed(self.seed, chunk.layer, kv_head),
        }
    }

    /// Attends the block whose first row is the chunk's `skipped`-th.
    fn attend_block(
        &self,
        chunk: &PrefillChunk<'_>,
        masking: &Masking<'_>,
        skipped: usize,
        out: &mut [f32],
    ) -> BlockCost {
        let (d, heads, kv_heads) = (chunk.d(), chunk.heads, chunk.kv_heads());
        let (width, group, spec) = (heads * d, heads / kv_heads, chunk.spec());
        let (rows, first) = (out.len() / width, chunk.first + skipped);
        let queries = &chunk.queries()[skipped * width..][..out.len()];
        let (mut cost, mut attended) = (Cost::default(), vec![0; heads]);
        for kv_head in 0..kv_heads {
            let own = by_head(queries, heads, d, kv_head * group..(kv_head + 1) * group);
            let block = self.block(chunk, kv_head, skipped, &own, rows);
            let values = chunk.kv().values.head(kv_head);
            let (masks, sharing) = match masking(&block, &mut cost) {
                Masks::Shared(mask) => (vec![mask], group),
                Masks::PerHead(masks) => (masks, 1),
            };
            for (first_head, mask) in (kv_head * group..).step_by(sharing).zip(&masks) {
                let (tokens, sights) = mask.resolve(first);
                let seen = sights.iter().map(RowVisibility::tokens).sum();
                attended[first_head..first_head + sharing].fill(seen);
                let of = (first_head..first_head + sharing).map(|head| (head, heads));
                let seen = VisibleTokens { keys: block.keys, values, d, tokens: &tokens, sights: &sights };
                match self.dual_position(&seen, &block, mask) {
                    Some(cache) => of.for_each(|of| self.attend_dual_position(&cache, queries, of, &spec, out)),
                    None => {
                        let packed = PackedHead::gathered(block.keys, values, d, &tokens);
                        of.for_each(|of| block_attention(queries, of, &packed, &sights, spec.logit_rule(), out));
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

    /// Attends where the query of each row has two positions.
    fn attend_dual_position(
        &self,
        cache: &DualPositionHead,
        queries: &[f32],
        (head, heads): (usize, usize),
        spec: &AttentionSpec,
        out: &mut [f32],
    ) {
        let (d, rotation) = (cache.d, self.rotation.as_ref().expect(GIVEN_ROTATION));
        let mut both = vec![0.0; cache.sights.len() * 2 * d];
        for (row, (both, shift)) in both.chunks_exact_mut(2 * d).zip(&cache.shifts).enumerate() {
            let query = &queries[(row * heads + head) * d..][..d];
            both[..d].copy_from_slice(query);
            both[d..].copy_from_slice(query);
            rotation.turn_back(&mut both[..d], *shift);
        }
        let mut attended = vec![0.0; both.len()];
        let LogitRule { scale, soft_cap, sinks } = spec.logit_rule();
        let rule = LogitRule { scale, soft_cap, sinks: sinks.get(head..head + 1).unwrap_or(&[]) };
        block_attention(&both, (0, 1), &cache.packed, &cache.sights, rule, &mut attended);
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

/// Query rows that are read together in a dense layer whose positions are grouped.
const DENSE_ROWS: usize = 256;

/// Exact attention of a chunk, as its layer attends, over the tokens up to each of its own, into `out: [token][head][d]`.
pub fn attend_densely(chunk: &PrefillChunk<'_>, out: &mut [f32]) {
    let (d, kv_heads) = (chunk.d(), chunk.kv_heads());
    let pack = |head: usize| PackedHead::new(chunk.kv().keys.head(head), chunk.kv().values.head(head), d);
    let packed: Vec<PackedHead> = (0..kv_heads).into_par_iter().map(pack).collect();
    let spec = chunk.spec();
    let heads = (chunk.heads, spec.window.unwrap_or(usize::MAX));
    sliding_attention(chunk.queries(), &packed, heads, spec.logit_rule(), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SelectedTokens;
    use crate::prefill::gpu_memory::{PLANNED_LIST_BYTES, PlannedBlock};
    use crate::prefill::mask::{BlockMask, WeightedToken};
    use crate::prefill::testing::{D, Layer, any_mask, assert_close, method, missing, resolved};
    use crate::types::budget::Context;
    use proptest::prelude::*;
    use spattn_kernels::Rows;
    use std::collections::BTreeSet;

    /// By the definition of a mask's parts: the bias on a token's logit, if the row attends the token.
    fn says(mask: &Mask, first: usize, position: usize, token: usize) -> Option<f32> {
        let row = position - first;
        let is_plain = token >= mask.starts[row].min(position)
            || mask.common.contains(&(token as u32))
            || mask.slashes.iter().any(|offset| token + offset == position);
        let own = mask.own.get(row).into_iter().flatten().find(|own| own.token as usize == token);
        match (token <= position, is_plain) {
            (false, _) => None,
            (true, true) => Some(0.0),
            (true, false) => own.map(|own| own.log_weight),
        }
    }

    const SPECS: &[&str] = &[
        "streaming_llm:window=37",
        "a_shape:density=0.3",
        "bigbird:window=10,blocks=3,block=8",
        "bigbird:density=0.4,block=12,per=kv_head",
        "hip:k=24",
        "hip:k=40,b_q=10,b_k=3,b_sq=3,per=kv_head",
        "hip:density=0.25,b_q=64",
        "hip:ratio=0.1,b_q=1,b_k=1,b_sq=1",
        "hip:k=16,n_e=3,top_r=4",
        "hip:k=16,b_q=24,window=row,query_offset=last,chunks=aligned",
        "hip:k=16,b_q=24,window=row,vd=true,vertical=6,slash=5,snapshot=9",
        "vertical_slash:vertical=9,slash=7",
        "vertical_slash:vertical=20,slash=0,snapshot=3,per=kv_head",
        "vertical_slash:density=0.3",
        "minference:k=30,block=16",
        "minference:density=0.3,snapshot=5",
        "flexprefill:block=24,tau=0",
        "flexprefill:gamma=0.3,block=10,tau=1",
        "flexprefill:gamma=0.3,block=16,min_budget=40",
        "flexprefill:density=0.3,block=16",
        "hyper_attention:sample=9,block=8,min_seq_len=10",
        "hyper_attention:sample=0,block=16",
        "hyper_attention:sample=300,block=1,min_seq_len=1,lsh_num_projs=16",
        "hyper_attention:density=0.4,block=4,min_seq_len=8",
        "reformer:bucket=10",
        "reformer:bucket=16,hashes=3",
        "reformer:density=0.3",
    ];

    #[test]
    fn every_method_with_a_mask_is_tested_here() {
        let is_mask =
            |pattern: &PrefillPattern<'_>| matches!(pattern, PrefillPattern::Blocks(_) | PrefillPattern::Whole(_));
        assert_eq!(missing(SPECS, is_mask), [""; 0], "these have a mask, and no line in SPECS");
    }

    #[test]
    fn rows_attend_what_the_mask_says_and_nothing_behind_them() {
        for (tokens, heads, kv_heads) in [(1, 2, 1), (70, 4, 2), (230, 4, 2), (150, 3, 3)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (spec, policy) in SPECS.iter().flat_map(|spec| {
                [(4, 20), (0, 0), (90, 5)].map(|(sink, local)| (spec, Policy { sink, local, ..Policy::default() }))
            }) {
                let method = method(spec, &policy);
                let (masks, _) = layer.masks(&method);
                let rows = method.method.prefill_pattern().unwrap().query_rows();
                let sees = |position: usize, head: usize, token: usize| {
                    says(&masks[position / rows][head], position - position % rows, position, token)
                };
                let what = format!("{spec} with {policy:?} on {tokens} tokens");
                assert!(
                    (0..tokens).all(|at| (0..heads).all(|head| sees(at, head, at) == Some(0.0))),
                    "{what}: the own token"
                );
                let (out, costs) = layer.attend(&method, tokens);
                assert_close(&out, &layer.reference(sees), &what);
                let count = |head: usize, position: usize| {
                    (0..=position).filter(|t| sees(position, head, *t).is_some()).count()
                };
                let all = (0..heads).flat_map(|head| (0..tokens).map(move |position| (head, position)));
                let attended: usize = all.map(|(head, position)| count(head, position)).sum();
                let total = costs.total(|_| true);
                assert_eq!(total.attended_tokens, attended as u64, "{what}");
                assert_eq!(total.context_tokens, (heads * tokens * (tokens + 1) / 2) as u64);
                assert_eq!(
                    (total.steps, total.full_flops),
                    ((heads * tokens) as u64, 4 * D as u64 * total.context_tokens)
                );
                let densities = costs.head_densities(0);
                assert!((densities.iter().sum::<f64>() / heads as f64 - total.density()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn chunks_and_threads_do_not_change_a_bit() {
        let layer = Layer::new(200, 4, 2);
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let on = |threads: usize, most: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| layer.attend(&method, most))
            };
            let once = on(1, 200);
            assert!(once == on(3, 200) && once == on(2, 1) && once == on(1, 77), "{spec}");
        }
    }

    #[test]
    fn masks_over_a_prompt_say_how_many_tokens_rows_have_of_their_own_and_lists_keep_their_diagonals() {
        let layer = Layer::new(230, 4, 2);
        let mut seen = [0, 0];
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else { continue };
            let (masks, _) = layer.masks(&method);
            let distinct = |own: &Vec<WeightedToken>| own.iter().map(|own| own.token).collect::<BTreeSet<_>>().len();
            let own = masks.iter().flatten().flat_map(|mask| mask.own.iter().map(distinct)).max().unwrap_or(0);
            let most = mask.own_tokens(230);
            assert!(own <= most && most <= 230 && (own > 0) == (most > 0), "{spec}: {own} of {most} tokens");
            seen[usize::from(own > 0)] += 1;
            let last = masks.last().unwrap();
            for (block, of_heads) in masks.iter().enumerate() {
                let end = ((block + 1) * mask.query_rows()).min(230);
                for (own, all) in of_heads.iter().zip(last) {
                    let reaching = |mask: &Mask| -> Vec<usize> {
                        mask.slashes.iter().copied().filter(|distance| *distance < end).collect()
                    };
                    assert_eq!(reaching(own), reaching(all), "{spec}, block {block}");
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 3), "{seen:?} masks of both kinds");
    }

    #[test]
    fn lists_of_a_plan_take_no_more_than_their_share_or_a_block() {
        let (heads, d) = (32, 128);
        let bytes = |mask: &dyn PromptMask, tokens: usize| {
            PlannedBlock::of(mask, heads, d, tokens).bytes_of(tokens.div_ceil(mask.query_rows()))
        };
        // A piece holds all blocks of a short prompt; of a long one as many as fit the bytes for lists, but at least one.
        let (plain, each) = (Costly { plan: 0, block: 0 }, 4 * 32);
        assert_eq!(bytes(&plain, 1000), 32 * each * 1000);
        assert_eq!(bytes(&plain, 131_072), PLANNED_LIST_BYTES);
        assert_eq!(bytes(&plain, 8 << 20), each * (8 << 20));
        // For each row and head: an offset, a partial softmax, and the tokens with their weights.
        let own = |tokens: usize, most: usize| 4 * heads * tokens + 32 * heads * (8 + 4 * (2 + d) + 8 * most);
        assert_eq!(bytes(&Owning(100), 1000), 32 * own(1000, 100));
        assert_eq!(bytes(&Owning(100), 131_072), PLANNED_LIST_BYTES);
        assert_eq!(bytes(&Owning(131_072), 131_072), own(131_072, 131_072));
    }

    /// A mask whose rows have at most this many single-row tokens.
    struct Owning(usize);

    impl PromptMask for Owning {
        fn query_rows(&self) -> usize {
            32
        }

        fn own_tokens(&self, _: usize) -> usize {
            self.0
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
            unreachable!("the test asks for no plan")
        }
    }

    #[test]
    fn with_all_tokens_left_it_is_exact_attention() {
        let layer = Layer::new(170, 4, 2);
        let full = layer.reference(|_, _, _| Some(0.0));
        let dense = Policy { dense_layers: crate::DenseLayers::parse("0").unwrap(), ..Policy::default() };
        for (spec, policy) in [
            ("a_shape:window=170", Policy::default()),
            ("bigbird:window=5,blocks=100,block=16", Policy::default()),
            ("hip:k=200", Policy::default()),
            ("hip:k=2,vd=true,vertical=200", Policy::default()),
            ("hip:k=2,vd=true,slash=200", Policy::default()),
            ("hip:k=200,window=row", Policy { sink: 4, local: 3, ..Policy::default() }),
            ("hip:ratio=1,b_k=7,per=kv_head", Policy::default()),
            ("streaming_llm:window=3", dense.clone()),
            ("vertical_slash:vertical=200,slash=0", Policy::default()),
            ("vertical_slash:vertical=0,slash=200", Policy::default()),
            ("vertical_slash:density=1", Policy::default()),
            ("minference:k=200", Policy::default()),
            ("minference:density=1,block=16", Policy::default()),
            ("flexprefill:gamma=1,tau=0", Policy::default()),
            ("flexprefill:gamma=1,tau=1,block=16", Policy::default()),
            ("flexprefill:min_budget=170,tau=0", Policy::default()),
            ("hyper_attention:min_seq_len=170", Policy::default()),
            ("hyper_attention:block=100,sample=0", Policy::default()),
            ("reformer:bucket=170", Policy::default()),
            ("reformer:density=1", Policy::default()),
            ("vertical_slash:vertical=0,slash=0", dense.clone()),
            ("hip:k=2", dense),
        ] {
            let (out, costs) = layer.attend(&method(spec, &policy), 64);
            assert_close(&out, &full, spec);
            assert_eq!((costs.total(|_| true).density(), costs.total(|_| true).cost2()), (1.0, 1.0), "{spec}");
        }
    }

    #[test]
    fn a_block_of_one_row_is_searched_as_a_decoding_step_is() {
        // The last token as a step over a prefix of all others, and as the last row of a prompt.
        let layer = Layer::new(161, 2, 1);
        for spec in
            ["hip:k=24,b_q=1,b_sq=1", "hip:k=30,b_q=1,b_sq=1,b_k=3,per=kv_head", "hip:k=10,b_q=1,b_sq=1,top_r=3"]
        {
            let method = method(spec, &Policy { sink: 4, local: 11, ..Policy::default() });
            let (masks, _) = layer.masks(&method);
            let found = |head: usize| {
                let Mask { common, starts, .. } = &masks[160][head];
                assert_eq!((common[..4].to_vec(), starts[0]), (vec![0, 1, 2, 3], 150), "ten before it, and itself");
                common[4..].to_vec()
            };
            let keys = layer.kv.keys.head(0);
            let step = crate::Step {
                layer: 0,
                depth: crate::SparseLayerRank::default(),
                kv_head: 0,
                queries: &layer.queries[160 * 2 * D..],
                d: D,
                scale: crate::SoftmaxScale::of_factor(0.25),
                keys: keys.slice(0..160, D),
                values: keys.slice(0..160, D),
                tail_keys: keys.slice(160..161, D),
                tail_values: Rows::F32(&[]),
                dtype: crate::kv::KvDtype::F32,
                indexed: 4..150,
                candidates: 4..150,
                context: Context::new(161, &(4..150)),
                grouped: None,
                has_moving_candidates: false,
                generated: 0,
                seed: 1,
            };
            let mut state = method.method.start(&());
            let picked = match method.method.select(&step, &(), state.as_mut(), &mut Cost::default()) {
                crate::Selection::Shared(picks) => vec![picks.clone(), picks],
                crate::Selection::PerHead(heads) => heads,
            };
            assert_eq!(picked, [0, 1].map(|head| SelectedTokens::softmax(found(head))), "{spec}");
        }
    }
    proptest! {
        #[test]
        fn a_row_sees_each_token_of_its_mask_once((first, mask) in any_mask()) {
            for (row, seen) in resolved(&mask, first).iter().enumerate() {
                let position = first + row;
                let expected: Vec<(usize, f32)> = (0..=position)
                    .filter_map(|token| Some((token, says(&mask, first, position, token)?)))
                    .collect();
                prop_assert_eq!(seen, &expected, "row {} of {:?}", row, mask);
                let mut tokens: Vec<usize> = mask.row_tokens(first, position).iter().map(|t| *t as usize).collect();
                tokens.sort_unstable();
                prop_assert_eq!(tokens, expected.iter().map(|(token, _)| *token).collect::<Vec<_>>());
            }
        }

        #[test]
        fn packed_tokens_are_each_packed_once((first, mask) in any_mask()) {
            let (tokens, _) = mask.resolve(first);
            let distinct: std::collections::BTreeSet<u32> = tokens.iter().copied().collect();
            prop_assert_eq!(distinct.len(), tokens.len());
        }
    }

    /// A fixed mask for all blocks.
    struct Given(Vec<Mask>);

    impl PromptMask for Given {
        fn query_rows(&self) -> usize {
            32
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
            Box::new(|block| Masks::Shared(self.0[block.first / 32].clone()))
        }
    }

    /// A mask of windows with a cost for each plan of a KV head, and for each block.
    struct Costly {
        plan: u64,
        block: u64,
    }

    impl BlockMask for Costly {
        fn query_rows(&self) -> usize {
            32
        }

        fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks {
            cost.score_flops += self.block;
            Masks::Shared(Mask::new(Vec::new(), (block.first..block.first + block.rows).collect()))
        }
    }

    impl PromptMask for Costly {
        fn query_rows(&self) -> usize {
            32
        }

        fn plan<'p>(&'p self, _: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
            cost.score_flops += self.plan;
            Box::new(|block| self.masks(block, &mut Cost::default()))
        }
    }

    #[test]
    fn what_finding_a_mask_costs_is_counted_once() {
        let layer = Layer::new(150, 4, 2);
        let costly = Costly { plan: 1000, block: 7 };
        let window = method("streaming_llm", &Policy::default());
        for (pattern, flops) in
            [(PrefillPattern::Blocks(&costly), 2 * 5 * 7), (PrefillPattern::Whole(&costly), 2 * 1000)]
        {
            let mut sparse =
                SparsePrefill::new(&window, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), 3).unwrap();
            sparse.pattern = pattern;
            let mut out = vec![f32::NAN; layer.queries.len()];
            let chunk = PrefillChunk::new(0, 0, &layer.queries, 4, &layer.kv);
            sparse.attend(&chunk, &mut out);
            let total = sparse.into_costs().total(|_| true);
            assert_eq!((total.score_flops, total.attended_tokens, total.steps), (flops, 4 * 150, 4 * 150));
        }
    }

    #[test]
    fn verticals_slashes_and_weighted_tokens_are_attended_in_one_softmax() {
        let layer = Layer::new(150, 2, 1);
        let weighted = |position: usize| {
            let tokens = (0..position as u32).step_by(11);
            tokens.map(|token| WeightedToken { token, log_weight: (token % 7) as f32 * 0.5 - 1.0 }).collect()
        };
        let mask = |first: usize| {
            let rows = first..(first + 32).min(150);
            Mask {
                slashes: vec![9, 10, 40, 77],
                own: rows.clone().map(weighted).collect(),
                ..Mask::new(
                    vec![0, 1, 30, 31, 90, 120],
                    rows.map(|position: usize| position.saturating_sub(5)).collect(),
                )
            }
        };
        let given = Given((0..150).step_by(32).map(mask).collect());
        let method = method("streaming_llm", &Policy::default());
        let mut sparse = SparsePrefill::new(&method, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), 3).unwrap();
        sparse.pattern = PrefillPattern::Whole(&given);
        let mut out = vec![f32::NAN; layer.queries.len()];
        sparse.attend(&PrefillChunk::new(0, 0, &layer.queries, 2, &layer.kv), &mut out);
        let sees = |position: usize, token: usize| {
            let distance = position - token;
            let is_plain =
                distance <= 5 || [9, 10, 40, 77].contains(&distance) || [0, 1, 30, 31, 90, 120].contains(&token);
            match is_plain {
                true => Some(0.0),
                false => token.is_multiple_of(11).then_some((token % 7) as f32 * 0.5 - 1.0),
            }
        };
        assert_close(&out, &layer.reference(|position, _, token| sees(position, token)), "by hand");
        let pairs = (0..150).map(|position| (0..=position).filter(|token| sees(position, *token).is_some()).count());
        assert_eq!(sparse.into_costs().total(|_| true).attended_tokens as usize, 2 * pairs.sum::<usize>());
    }
}
