//! Device forms of the two halves of a SCORE → SELECT method: its scorer and its picker.

use crate::backend::active::{PickerLaunch, ScorerLaunch};
use crate::backend::form::StepShape;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;

/// A scorer's form on a device.
pub(crate) trait DeviceScorer: ScorerLaunch + Send + Sync {
    /// As [`DeviceForm::shape_reasons`](crate::DeviceForm::shape_reasons); every shape fits by default.
    fn shape_reasons(&self, _shape: KvShape) -> Vec<HostReason> {
        Vec::new()
    }

    /// Cost of scoring the candidates of one KV head at a step.
    fn cost(&self, step: &StepShape) -> Cost;

    /// Whether tokens that follow a prefix can be indexed there, too; its scores must not weight tokens then. Default false.
    fn grows(&self) -> bool {
        false
    }

    /// As [`DeviceForm::index_bytes`](crate::DeviceForm::index_bytes), of one layer; nothing by default.
    fn layer_bytes(&self, _prefix: &PromptShape, _dtype: KvDtype) -> usize {
        0
    }
}

/// A picker's form on a device.
pub(crate) trait DevicePicker: PickerLaunch + Send + Sync {
    /// Cost of one selection from `scores` scores.
    fn cost(&self, scores: usize) -> Cost;

    /// Whether it is a plain top-k of [`budget_units`](Self::budget_units) scores. Default false.
    fn is_top_k(&self) -> bool {
        false
    }

    /// As [`DeviceForm::budget_units`](crate::DeviceForm::budget_units), for candidates in pages: how many pages are selected, or
    /// an upper bound.
    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32;
}

/// Pages of candidates, and how many are selected at least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastPages {
    /// Tokens of a page.
    pub size: usize,
    /// How many there are.
    pub all: usize,
    /// Selected at least.
    pub least: usize,
}
