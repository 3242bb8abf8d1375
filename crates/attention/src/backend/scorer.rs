//! Device forms of the two halves of a SCORE → SELECT method: its scorer and its picker.

use crate::backend::active::{PickerLaunch, ScorerLaunch};
use crate::backend::form::StepShape;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;

/// The device form of a scorer.
pub(crate) trait DeviceScorer: ScorerLaunch + Send + Sync {
    /// Like [`DeviceForm::shape_reasons`](crate::DeviceForm::shape_reasons); every shape fits by default.
    fn shape_reasons(&self, _shape: KvShape) -> Vec<HostReason> {
        Vec::new()
    }

    /// Cost of scoring the candidates of one KV head at a step.
    fn cost(&self, step: &StepShape) -> Cost;

    /// Whether tokens after a prefix can be indexed on the device, too; its scores must not weight tokens then. Default false.
    fn grows(&self) -> bool {
        false
    }

    /// Like [`DeviceForm::index_bytes`](crate::DeviceForm::index_bytes), for one layer; 0 by default.
    fn layer_bytes(&self, _prefix: &PromptShape, _dtype: KvDtype) -> usize {
        0
    }
}

/// The device form of a picker.
pub(crate) trait DevicePicker: PickerLaunch + Send + Sync {
    /// Cost of one selection from `scores` scores.
    fn cost(&self, scores: usize) -> Cost;

    /// Whether it is a plain top-k of [`budget_units`](Self::budget_units) scores. Default false.
    fn is_top_k(&self) -> bool {
        false
    }

    /// Like [`DeviceForm::budget_units`](crate::DeviceForm::budget_units), for candidates in pages: the number of pages selected,
    /// or an upper bound.
    fn budget_units(&self, context: Context, pages: &LeastPages) -> u32;
}

/// Pages of candidates, and the least number to select.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastPages {
    /// Tokens of a page.
    pub size: usize,
    /// Number of pages.
    pub all: usize,
    /// Least number of pages to select.
    pub least: usize,
}
