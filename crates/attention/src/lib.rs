//! Sparse attention: the [`Method`] trait, spec strings, the uniform policy, and the engine that
//! attends what a method picks.
//!
//! A method is one file in `methods/` and one line in its registry. It says what it stores when the
//! prefix is ready, which tokens (and weights) it picks for a step's queries, and what that cost. It
//! never attends: [`Fork`] does, the same way for all methods. Models, tasks and records are unknown here.

pub mod artefact;
pub mod calibration;
mod coded;
pub mod cost;
mod device;
mod engine;
pub mod fidelity;
mod granularity;
mod graph;
mod head;
mod kmeans;
pub mod kv;
mod method;
pub mod methods;
mod pca;
mod pick;
mod prefill;
mod prefill_rows;
#[cfg(feature = "cuda")]
mod prefill_there;
mod probe;
mod prompt;
mod scored;
mod scorer;
mod spec;
mod types;
mod workspaces;

pub use device::{DeviceForm, DeviceIndex, StepShape};
#[cfg(feature = "cuda")]
pub use device::{DeviceLayer, DeviceRoom, DeviceScratch, DeviceStep, Learned, RunThere, Scoring};
pub use engine::{AttentionTime, Fork, IndexCache, IndexTime, Selects};
pub use method::{AnyMethod, CalibrationNeed, Method, Solved, Step, TailRule};
pub use prefill::{
    BlockMask, Mask, Masks, PrefillPattern, PromptMask, PromptPlan, QueryBlock, SearchedMask, SparsePrefill,
    WeightedToken, attend_densely, mask_list_bytes,
};
pub use probe::{Histogram, Probe, ProbeHead, RecentQueries, least_reaching};
pub use prompt::{PromptHead, PromptNeed, PromptStats};
pub use spec::{MethodSpec, ParamInfo, Params, Setting, expand_grid};
pub use types::budget::{Budget, Context, Tuned};
pub use types::policy::{DenseLayers, Policy, Tail};
pub use types::positions::{Grouped, Grouping, Positions, Rotation};
pub use types::prefix_head::{Depth, HeadPrefix};
pub use types::prompt_shape::PromptShape;
pub use types::role::Role;
pub use types::schedule::{LayerShare, Schedule};
pub use types::seed::{RowSeed, mix_seed};
pub use types::selection::{Exact, Picked, Picks, Selection, Weighting};

use std::sync::Arc;

use artefact::{Artefact, ArtefactError};

/// What [`Configured::revision`] begins with.
pub const FIRST_REVISION: u16 = 1;

/// A method with its parameters and policy resolved: what one cell of a run evaluates.
#[derive(Clone)]
pub struct Configured {
    /// Bare name, such as `topk`; behind a reader of its own `hip:k=512>topk`.
    pub name: String,
    /// Canonical `key=value,...`: what sets the budget always, other parameters and the policy only where
    /// they differ from the default.
    pub params: String,
    /// All parameters, those at their default too.
    pub settings: Vec<Setting>,
    /// Sink, window and dense layers.
    pub policy: Policy,
    /// Which form of its arithmetic this is, from 1 on: records of two forms are never taken for each other. With a reader
    /// of its own, both count.
    pub revision: u16,
    /// The method itself.
    pub method: Arc<dyn AnyMethod>,
    /// SHA-256 of the artefact it was given, if it needs one.
    pub artefact: Option<String>,
    /// Who reads the prompt where sparse attention starts with it; `None` if the method itself does.
    pub reader: Option<Arc<Configured>>,
}

impl Configured {
    /// Whether a device picks for rows of both by one launch, if they have the same index: nothing differs, or nothing but what rows'
    /// [numbers](device::DeviceForm::number) say.
    pub(crate) fn picks_with(&self, other: &Self) -> bool {
        let is_in_number = || self.method.device_form().is_some_and(|form| form.numbers_are_budgets());
        let are_alike_beside = || spec::beside_budget(&self.settings).eq(spec::beside_budget(&other.settings));
        self.name == other.name && (self.params == other.params || is_in_number() && are_alike_beside())
    }

    /// The method with `artefact`, which is known to fit the model; as it is if neither it nor its reader needs that kind.
    ///
    /// # Errors
    /// If the artefact does not hold what the method reads.
    pub fn calibrated(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        let mut calibrated = self.clone();
        if let Some(reader) = &self.reader {
            calibrated.reader = Some(Arc::new(reader.calibrated(artefact)?));
        }
        if self.method.calibration() == Some(artefact.info().kind.as_str())
            && let Some(method) = self.method.calibrated(artefact)?
        {
            (calibrated.method, calibrated.artefact) = (method, Some(artefact.sha256().to_owned()));
        }
        Ok(calibrated)
    }

    /// The method and, if it has one, its reader.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.reader.as_deref())
    }

    /// Who reads a prompt from its first token on.
    pub fn reads(&self) -> &Self {
        self.reader.as_deref().unwrap_or(self)
    }

    /// Whether both read a prompt in the same way, so that they can go on from one reading.
    pub fn reads_as(&self, other: &Self) -> bool {
        let of = |reader: &Self| (reader.label(), reader.artefact.clone());
        match (self.masks_prefill(), other.masks_prefill()) {
            (true, true) => of(self.reads()) == of(other.reads()),
            (own, others) => own == others,
        }
    }

    /// Whether a prompt is read for it by a mask, where it may be.
    pub fn masks_prefill(&self) -> bool {
        matches!(
            self.reads().method.prefill_pattern(),
            Some(PrefillPattern::Blocks(_) | PrefillPattern::Rows(_) | PrefillPattern::Whole(_))
        )
    }

    /// Whether that mask needs all of the prompt at a layer at once.
    pub fn masks_whole_prompt(&self) -> bool {
        matches!(self.reads().method.prefill_pattern(), Some(PrefillPattern::Whole(_)))
    }

    /// Whether its candidates change as tokens follow the prefix.
    pub fn moves_on(&self) -> bool {
        self.method.follows_tail() || self.policy.tail != Tail::Exact
    }

    /// `name` or `name:params`, as a user would write it.
    pub fn label(&self) -> String {
        if self.params.is_empty() { self.name.to_owned() } else { format!("{}:{}", self.name, self.params) }
    }
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label())
    }
}

#[cfg(test)]
mod testing {
    use super::head::{HeadKv, Queries};
    use super::{Exact, Picked, Selection};
    use crate::kv::{LayerKv, Prefix};

    /// Output `[group][d]` of attending what was selected from the only KV head of `kv`, and nothing else.
    pub(crate) fn attend(kv: &LayerKv, queries: &[f32], selection: &Selection) -> Vec<f32> {
        let (tokens, d) = (kv.tokens(), kv.keys.d());
        let (prefix, tail) = (Prefix::new(vec![kv.clone()]), LayerKv::new(crate::kv::KvDtype::F32, 1, d, 0));
        let mut out = vec![f32::NAN; queries.len()];
        let nothing = Exact { sink: 0, recent: tokens };
        let scale = 1.0 / (d as f32).sqrt();
        let picked = Picked { exact: nothing, selection: Some(selection.clone()) };
        HeadKv::new(&prefix, &tail, 0, 0).attend(&Queries::new(queries, scale), &picked, &mut out);
        out
    }
}
