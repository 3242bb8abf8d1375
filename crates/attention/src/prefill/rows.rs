//! Prefill in which every row has its own selection: the one that a decode step at its position would make.
//!
//! A [`RowMask`] keeps an index for each KV head that grows as the prompt is read, and selects for some rows at a time;
//! [`RowReader`] attends the selections row by row, as in a decode step.

use std::any::Any;

use rayon::prelude::*;

use crate::backend::form::DeviceForm;
#[cfg(any(test, feature = "cuda"))]
use crate::backend::form::StepShape;
use crate::calibration::collector::HostChunk;
use crate::configured::Configured;
use crate::cost::Cost;
use crate::decode::head_kv::{HeadKv, Queries};
use crate::kv::{KvHead, KvShape, ReadCounter};
use crate::method::AnyMethod;
use crate::prefill::cost::{BlockCost, by_head};
use crate::prefill::mask::{QueryBlock, ROWS_AT_ONCE, RowHead, RowMask};
use crate::types::attention_spec::AttentionSpec;
use crate::types::policy::Policy;
use crate::types::prefix_head::KvHeadId;
use crate::types::schedule::LayerShare;
use crate::types::seed::head_seed;
use crate::types::selection::{AttendedTokens, StaticTokens};

impl<'a> RowHead<'a> {
    /// The keys and values that a row sees: the first `tokens` tokens, as if they were a prefix.
    fn up_to(&self, tokens: usize, spec: &AttentionSpec) -> HeadKv<'a> {
        let d = self.place.d;
        let nothing = self.keys.slice(0..0, d);
        HeadKv {
            prefix: KvHead::lent(self.keys.slice(0..tokens, d), self.values.slice(0..tokens, d), d, self.place.dtype),
            tail_keys: nothing,
            tail_values: nothing,
            prefix_tokens: tokens,
            tail_tokens: 0,
            d,
            kv_head: self.place.kv_head,
            spec: spec.clone(),
            reads: ReadCounter::default(),
        }
    }
}

/// The device form that selects for each row of a prompt; `None` if the host reads such prompts.
pub(crate) fn device_rows_form(method: &dyn AnyMethod, shape: KvShape) -> Option<&dyn DeviceForm> {
    let form = method.device_form().ok()?;
    (!method.is_static_only() && form.fits(shape) && form.grows(shape)).then_some(form)
}

/// Cost of scoring for rows of a prompt, each of which scores its own candidates for the `group` query heads of every KV head.
/// A row is given as its tokens in context, its static tokens, and its budget in the form's units.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn scoring_cost(
    form: &dyn DeviceForm,
    (group, shape): (usize, KvShape),
    rows: impl Iterator<Item = (usize, StaticTokens, u32)>,
) -> Cost {
    let of_row = |(total, exact, number): (usize, StaticTokens, u32)| {
        let (candidates, exact) = (exact.recent - exact.sink, exact.tokens(total));
        let KvShape { d, dtype, .. } = shape;
        form.cost(&StepShape { group, d, dtype, candidates, all_candidates: candidates, exact, number })
    };
    let mut all = Cost::default();
    rows.map(of_row).for_each(|cost| (0..shape.kv_heads).for_each(|_| all += cost));
    all
}

/// Reads a prompt row by row.
pub(crate) struct RowReader<'a> {
    mask: &'a dyn RowMask,
    policy: &'a Policy,
    /// The layers' shares of the budget.
    shares: Vec<LayerShare>,
    seed: u64,
    /// States of the mask, `[layer][kv_head]`.
    states: Vec<Vec<Box<dyn Any + Send + Sync>>>,
}

impl<'a> RowReader<'a> {
    /// Creates the reader for a model with these `dense` layers.
    pub fn new(mask: &'a dyn RowMask, method: &'a Configured, dense: &[bool], seed: u64) -> Self {
        let (policy, states) = (&method.policy, dense.iter().map(|_| Vec::new()).collect());
        let shares = (0..dense.len()).map(|layer| policy.schedule.share(dense, layer)).collect();
        Self { mask, policy, shares, seed, states }
    }

    /// Attends a chunk into `out: [token][head][d]`; returns the cost of each block of rows.
    pub fn attend(&mut self, chunk: &HostChunk<'_>, out: &mut [f32]) -> Vec<BlockCost> {
        let (kv_heads, end) = (chunk.kv_heads(), chunk.first + chunk.tokens());
        let states = &mut self.states[chunk.layer];
        states.resize_with(kv_heads, || self.mask.begin());
        let StaticTokens { sink, recent } = StaticTokens::sliding(self.policy, end);
        if sink < recent {
            states.par_iter_mut().enumerate().for_each(|(kv_head, state)| {
                self.mask.take_in(state.as_mut(), &row_head(chunk, kv_head), sink..recent);
            });
        }
        let width = chunk.heads * chunk.d();
        let blocks = out.par_chunks_mut(ROWS_AT_ONCE * width).enumerate().with_max_len(1);
        blocks.map(|(block, out)| self.attend_block(chunk, block * ROWS_AT_ONCE, out)).collect()
    }

    /// Attends the block whose first row is the chunk's row `skipped`.
    fn attend_block(&self, chunk: &HostChunk<'_>, skipped: usize, out: &mut [f32]) -> BlockCost {
        let (d, heads, kv_heads) = (chunk.d(), chunk.heads, chunk.kv_heads());
        let (width, group, first) = (heads * d, heads / kv_heads, chunk.first + skipped);
        let queries = &chunk.queries()[skipped * width..][..out.len()];
        let rows = out.len() / width;
        let (spec, mut cost, mut attended) = (chunk.spec(), Cost::default(), vec![0; heads]);
        for kv_head in 0..kv_heads {
            let head = row_head(chunk, kv_head);
            let own = by_head(queries, heads, d, kv_head * group..(kv_head + 1) * group);
            let block = QueryBlock {
                layer: chunk.layer,
                kv_head,
                group,
                queries: &own,
                rows,
                first,
                d,
                scale: spec.scale,
                keys: head.keys,
                grouped: None,
                policy: self.policy,
                share: self.shares[chunk.layer],
                seed: head_seed(self.seed, chunk.layer, kv_head),
            };
            let state = self.states[chunk.layer][kv_head].as_ref();
            let selections = self.mask.picks(&block, &head, state, &mut cost);
            for (row, selection) in selections.into_iter().enumerate() {
                let place = row * width + kv_head * group * d;
                let of_row = place..place + group * d;
                let total = first + row + 1;
                let picked =
                    AttendedTokens { exact: StaticTokens::sliding(self.policy, total), selection: Some(selection) };
                let scaled = Queries::new(&queries[of_row.clone()], spec.scale);
                let done = head.up_to(total, &spec).attend(&scaled, &picked, &mut out[of_row]);
                done.expect("keys and values of a prompt are in host memory during prefill");
                let tokens = picked.attended(group, total);
                attended[kv_head * group..].iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += tokens);
            }
        }
        let context = (first..first + rows).map(|position| position + 1).sum();
        BlockCost::new(attended, context, rows, d).with(cost)
    }
}

fn row_head<'a>(chunk: &HostChunk<'a>, kv_head: usize) -> RowHead<'a> {
    let (layer, keys) = (chunk.layer, &chunk.kv().keys);
    RowHead {
        place: KvHeadId { layer, kv_head, d: keys.d(), scale: chunk.scale(), dtype: keys.dtype() },
        keys: keys.head(kv_head),
        values: chunk.kv().values.head(kv_head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::prefill::testing::{D, Layer, SEED, assert_close, method, missing};
    use crate::types::budget::Context;
    use crate::{IndexCache, PrefillPattern, Tail};

    const SPECS: &[&str] = &[
        "topk:k=9",
        "topk:k=9,per=kv_head",
        "topk:k=0",
        "topk:ratio=0.1",
        "topk:density=0.3",
        "topk:pick=topp,p=0.6",
        "topk_norm:k=9",
        "topp:p=0.8",
        "oracle_sampling:budget=12",
        "vattention:k=5,epsilon=0.3,delta=0.3",
        "topk_norm:k=5,pick=sample,epsilon=0.4,per=kv_head",
        "random:k=9",
        "quest:page=4,k=12",
        "quest:page=5,k=12,summary_bits=4",
        "twilight:page=5,k=40,p=0.6",
        "topk:k=20,rescore=exact,k2=7,per=kv_head",
        "double_sparsity:k=9,kind=random",
        "double_sparsity:k=9,kind=random,label_bits=16,per=kv_head",
        "sparq:k=9,r=3",
        "sparq:k=9,r=3,storage=1xK,per=kv_head",
        "magicpig:K=3,L=9,center=false",
        "magicpig:K=3,L=9,center=false,min_collisions=1",
    ];

    /// Returns the output of a decode step for the last of the first `tokens` tokens, with the others as prefix.
    fn step(layer: &Layer, method: &Configured, tokens: usize) -> Vec<f32> {
        let (kv_heads, heads) = (layer.kv.keys.kv_heads(), layer.heads);
        let mut prefix = LayerKv::new(KvDtype::F32, kv_heads, D, tokens);
        let row = |token: usize, of: &crate::kv::KvStore| -> Vec<f32> {
            (0..kv_heads).flat_map(|head| of.head(head).slice(token..token + 1, D).to_f32()).collect()
        };
        (0..tokens - 1).for_each(|t| prefix.append(&row(t, &layer.kv.keys), &row(t, &layer.kv.values)));
        let mut method = method.clone();
        method.policy.tail = Tail::Indexed;
        let mut fork = IndexCache::new(Prefix::new(vec![prefix]), KvDtype::F32, SEED).fork(&method, false).unwrap();
        let (key, value) = (row(tokens - 1, &layer.kv.keys), row(tokens - 1, &layer.kv.values));
        let mut out = vec![f32::NAN; heads * D];
        fork.step(0, &layer.queries[(tokens - 1) * heads * D..][..heads * D], &key, &value, &mut out).unwrap();
        out
    }

    #[test]
    fn every_method_that_picks_for_each_row_is_tested_here() {
        let is_rows = |pattern: &PrefillPattern<'_>| matches!(pattern, PrefillPattern::Rows(_));
        assert_eq!(missing(SPECS, is_rows), [""; 0], "these pick for each row, and have no line in SPECS");
    }

    #[test]
    fn every_row_attends_what_a_step_at_its_place_would() {
        let layer = Layer::new(150, 4, 2);
        for spec in SPECS {
            for (sink, local) in [(4, 20), (0, 0), (2, 1)] {
                let method = method(spec, &Policy { sink, local, ..Policy::default() });
                let (out, _) = layer.attend(&method, 40);
                for tokens in (1..=150).filter(|tokens| *tokens < 60 || tokens % 7 == 0) {
                    let expected = step(&layer, &method, tokens);
                    let what = format!("{spec}, sink {sink}, local {local}, row {}", tokens - 1);
                    assert_close(&out[(tokens - 1) * 4 * D..][..4 * D], &expected, &what);
                }
            }
        }
    }

    #[test]
    fn chunks_and_threads_change_no_bit() {
        let layer = Layer::new(200, 4, 2);
        for spec in SPECS {
            let method = method(spec, &Policy::default());
            let on = |threads: usize, most: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| layer.attend(&method, most))
            };
            let ((once, _), (again, _)) = (on(1, 200), on(3, 200));
            assert!(once == again, "{spec}");
            assert!(once == on(2, 64).0, "{spec} in chunks");
        }
    }

    /// `topk` computes each row's products with all its candidates, two FLOPs per channel, and no others. Products with
    /// selected tokens count as attention.
    #[test]
    fn scoring_costs_what_each_row_may_look_at() {
        let (tokens, sink, local) = (160, 4, 16);
        let layer = Layer::new(tokens, 4, 2);
        let method = method("topk:k=9", &Policy { sink, local, ..Policy::default() });
        let (_, costs) = layer.attend(&method, 64);
        let total = costs.total(|_| true);
        let candidates: usize = (1..=tokens).map(|total| total.saturating_sub(sink + local + 9)).sum();
        let expected = (4 * 2 * D * candidates) as f64;
        assert!((total.score_flops as f64 / expected - 1.0).abs() < 1e-3, "{} against {expected}", total.score_flops);
        let attended: usize = (1..=tokens).map(|total| total.min(sink + local + 9)).sum();
        assert_eq!(total.attended_tokens, 4 * attended as u64);
        assert_eq!(total.context_tokens, (4 * tokens * (tokens + 1) / 2) as u64);
    }

    /// A device computes from its form what the host counts as it scores and attends; they differ only by rounding.
    #[test]
    fn a_device_counts_for_rows_what_the_host_counts() {
        let (tokens, group) = (150, 2);
        let layer = Layer::new(tokens, 4, 2);
        let shape = KvShape { kv_heads: 2, d: D, dtype: KvDtype::F32 };
        let mut stated_for = Vec::new();
        for spec in SPECS {
            for (sink, local) in [(4, 20), (0, 0)] {
                let policy = Policy { sink, local, ..Policy::default() };
                let method = method(spec, &policy);
                let Some(form) = device_rows_form(method.method.as_ref(), shape) else { continue };
                let (_, costs) = layer.attend(&method, 40);
                let rows: Vec<(usize, StaticTokens)> = (1..=tokens)
                    .map(|total| (total, StaticTokens::sliding(&policy, total)))
                    .filter(|(_, exact)| exact.sink < exact.recent)
                    .collect();
                let budget = |(total, exact): &(usize, StaticTokens)| {
                    let candidates = exact.sink..exact.recent;
                    (*total, *exact, form.budget_units(Context::new(*total, &candidates), candidates.len()))
                };
                let mut stated = scoring_cost(form, (group, shape), rows.iter().map(budget));
                let host = costs.total(|_| true);
                let fixed: usize = (1..=tokens).map(|total| StaticTokens::sliding(&policy, total).tokens(total)).sum();
                if form.takes_products(group) {
                    stated.leave_to_attention(host.attended_tokens as usize - 4 * fixed, D, 0);
                }
                let (ours, theirs) = (stated.score_flops as f64, host.score_flops as f64);
                assert!((ours / theirs - 1.0).abs() < 1e-3, "{spec}, sink {sink}: {ours} stated, {theirs} counted");
                stated_for.push(*spec);
            }
        }
        stated_for.dedup();
        let read_there = [
            "topk:k=9",
            "topk:k=9,per=kv_head",
            "topk:ratio=0.1",
            "topk:density=0.3",
            "quest:page=4,k=12",
            "quest:page=5,k=12,summary_bits=4",
            "double_sparsity:k=9,kind=random",
        ];
        assert_eq!(stated_for, read_there, "these are read by a device");
    }

    /// `quest` computes two products with each page of a row's candidates, also with an incomplete last page.
    #[test]
    fn pages_that_are_not_whole_are_scored_and_paid_for() {
        let (tokens, sink, local) = (160, 4, 16);
        let layer = Layer::new(tokens, 4, 2);
        let method = method("quest:page=7,k=14", &Policy { sink, local, ..Policy::default() });
        let (_, costs) = layer.attend(&method, 64);
        let pages: usize = (1..=tokens).map(|total| total.saturating_sub(sink + local).div_ceil(7)).sum();
        let (flops, expected) = (costs.total(|_| true).score_flops as f64, (4 * 2 * 2 * D * pages) as f64);
        assert!((flops / expected - 1.0).abs() < 1e-3, "{flops} against {expected}");
    }
}
