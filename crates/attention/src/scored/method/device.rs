//! The device form of a scorer and a picker.

use super::Scored;
use crate::backend::form::{DeviceForm, StepShape};
use crate::backend::reasons::HostReason;
use crate::backend::scorer::{DevicePicker, DeviceScorer, LeastPages};
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::scored::granularity::Granularity;
use crate::scored::scorer::Scorer;
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;

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
        let mut cost = scorer.cost(&StepShape { group, ..*step });
        let lists = if self.per == Granularity::QueryHead { step.group } else { 1 };
        (0..lists).for_each(|_| cost += picker.cost(step.candidates.div_ceil(self.scorer.page())));
        cost
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
        // Decoded tokens add to a budget that is a share of the context: assume as many as the prefix has.
        let context = Context::new(2 * prefix.tokens, &(0..prefix.tokens));
        let most = self.budget_units(context, prefix.tokens) as usize * self.scorer.page();
        lists * most.min(prefix.tokens) * size_of::<u32>()
    }
}

impl<S: Scorer> Scored<S> {
    /// Device forms of scorer and picker; if one of them has none, why.
    pub(super) fn on_device(&self) -> Result<(&dyn DeviceScorer, &dyn DevicePicker), Vec<HostReason>> {
        match (self.scorer.device(), self.picker.device()) {
            (Ok(scorer), Ok(picker)) => Ok((scorer, picker)),
            (Err(scorer), Err(picker)) if scorer != picker => Err(vec![scorer, picker]),
            (Err(reason), _) | (_, Err(reason)) => Err(vec![reason]),
        }
    }
}
