//! The device form of a scorer and a picker.

use super::Scored;
use crate::backend::form::{DeviceForm, StepShape};
use crate::backend::reasons::HostReason;
use crate::backend::scorer::{DevicePicker, DeviceScorer, LeastPages};
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::scored::scorer::{NewTokens, Scorer};
use crate::types::budget::Context;
use crate::types::prefix_head::KvHeadId;
use crate::types::prompt_shape::PromptShape;

/// Keys are gathered in pieces of this many bytes.
const GATHERED_BYTES: usize = 16;

/// How candidates are split between the index of the prefix and the sequence's own index, in tokens. A row of a prompt that is being read
/// may have fewer candidates than the index holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TailSplit {
    /// Number of candidates scored by the index of the prefix.
    pub(super) whole: usize,
    /// Number of later candidates: the last, incomplete grain, and tokens after the prefix. 0 if the index holds exactly the candidates.
    pub(super) behind: usize,
}

impl TailSplit {
    /// The split of `all` candidates, of which the index of the prefix holds `indexed`.
    pub(super) fn of(scorer: &impl Scorer, indexed: usize, all: usize) -> Self {
        if all == indexed {
            return Self { whole: indexed, behind: 0 };
        }
        let whole = indexed.min(all) / scorer.grain() * scorer.grain();
        Self { whole, behind: all - whole }
    }
}

/// Panic message.
pub(super) const ON_DEVICE: &str = "the scorer's GPU implementation was checked before";

impl<S: Scorer> DeviceForm for Scored<S> {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        self.on_device().map_or_else(|reasons| reasons, |(scorer, _)| scorer.shape_reasons(shape))
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let (scorer, picker) = self.on_device().expect(ON_DEVICE);
        // Queries of a group are summed before scoring if scores are linear.
        let group = if self.per.adds() && self.scorer.is_linear() { 1 } else { step.group };
        let split = TailSplit::of(&self.scorer, step.candidates, step.all_candidates);
        let parts = [if split.whole > 0 { step.candidates } else { 0 }, split.behind];
        let mut cost = Cost::default();
        for candidates in parts.into_iter().filter(|candidates| *candidates > 0) {
            cost += scorer.cost(&StepShape { group, candidates, ..*step });
        }
        let lists = if self.per == Granularity::QueryHead { step.group } else { 1 };
        (0..lists).for_each(|_| cost += picker.cost(step.all_candidates.div_ceil(self.scorer.page())));
        cost
    }

    fn grows(&self, shape: KvShape) -> bool {
        let keys_fit = (shape.d * shape.dtype.bytes()).is_multiple_of(GATHERED_BYTES);
        keys_fit && self.on_device().is_ok_and(|(scorer, picker)| scorer.grows() && picker.is_top_k())
    }

    fn grown_bytes(&self, head: KvHeadId, candidates: usize, all_candidates: usize) -> usize {
        let behind = TailSplit::of(&self.scorer, candidates, all_candidates).behind;
        if behind == 0 {
            return 0;
        }
        let (mut index, rows) = (self.scorer.empty(head, None), vec![0.0; behind * head.d]);
        self.scorer.append(&mut index, 0, &NewTokens { place: head, keys: &rows, values: &rows });
        self.scorer.index_bytes(&index)
    }

    fn takes_products(&self, group: usize) -> bool {
        self.takes_products(group)
    }

    fn units_encode_budget(&self) -> bool {
        self.on_device().expect(ON_DEVICE).1.is_top_k()
    }

    fn budget_units(&self, context: Context, candidates: usize) -> u32 {
        let size = self.scorer.page();
        let pages = LeastPages { size, all: candidates.div_ceil(size), least: self.least };
        self.on_device().expect(ON_DEVICE).1.budget_units(context, &pages)
    }

    fn index_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        prefix.layers * self.on_device().expect(ON_DEVICE).0.layer_bytes(prefix, dtype)
    }

    fn list_bytes(&self, prefix: &PromptShape) -> usize {
        let lists = if self.per == Granularity::QueryHead { prefix.heads } else { prefix.kv_heads };
        // Decoded tokens enlarge a budget that is a share of the context: assume as many as the prefix has.
        let context = Context::new(2 * prefix.tokens, &(0..prefix.tokens));
        let most = self.budget_units(context, prefix.tokens) as usize * self.scorer.page();
        lists * most.min(prefix.tokens) * size_of::<u32>()
    }
}

impl<S: Scorer> Scored<S> {
    /// The device forms of scorer and picker, or the reasons why one of them has none.
    pub(super) fn on_device(&self) -> Result<(&dyn DeviceScorer, &dyn DevicePicker), Vec<HostReason>> {
        match (self.scorer.device(), self.picker.device()) {
            (Ok(scorer), Ok(picker)) => Ok((scorer, picker)),
            (Err(scorer), Err(picker)) if scorer != picker => Err(vec![scorer, picker]),
            (Err(reason), _) | (_, Err(reason)) => Err(vec![reason]),
        }
    }
}
