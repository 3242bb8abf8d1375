//! Sparse attention: the [`Method`] trait, specs of methods, the policy that all methods share, and the engine that attends what a method
//! selects.
//!
//! A method is one file in `methods/` and one line in its registry. It defines what is stored when the prefix is complete, which tokens
//! (and weights) it selects for a step's queries, and what that costs. It never attends: [`Sequence`] does, in the same way for all
//! methods. This crate knows no models, tasks or records.

mod backend;
pub mod calibration;
mod configured;
pub mod cost;
mod decode;
mod index;
pub mod kv;
mod method;
pub mod methods;
mod prefill;
mod prefix_stats;
mod scored;
mod spec;
mod spec_text;
mod types;

pub use backend::active::*;
pub use backend::builder::IndexBuilder;
pub use backend::form::{DeviceForm, StepShape};
pub use backend::index::{DeviceIndex, IndexLayer, PrefixStatsView};
pub use backend::reasons::HostReason;
pub use backend::workspaces::Workspaces;
pub use calibration::artefact;
pub use configured::{Configured, FIRST_REVISION};
pub use decode::fidelity;
pub use decode::index_cache::IndexCache;
pub use decode::layer_step::{
    AttendedPart, DataIndependentStep, DeviceSelectStep, HostStep, LayerStep, PartStep, SelectionSite, StaticStep,
};
pub use decode::sequence::Sequence;
pub use decode::sequence_costs::CacheHits;
pub use decode::start::StartError;
pub use decode::timing::{AttentionTime, IndexTime};
pub use method::{AnyMethod, CalibrationNeed, Method, Solved, Step, TailRule};
#[cfg(feature = "cuda")]
pub use prefill::gpu::DevicePrefillError;
pub use prefill::gpu_memory::mask_list_bytes;
pub use prefill::lines::{AddedLines, LineVotes};
pub use prefill::mask::{
    BlockMask, LinedMask, Mask, Masks, PrefillPattern, PromptMask, PromptPlan, QueryBlock, SearchedMask,
};
pub use prefill::shared_tokens::{RowSlices, SharedTokens, SliceBounds, TokenSlice, WeightedToken};
pub use prefill::sparse_prefill::{SparsePrefill, attend_densely};
pub use prefix_stats::probe::{Histogram, Probe, ProbeHead, RecentQueries, least_reaching};
pub use prefix_stats::{
    need::PromptNeed,
    stats::{PromptHead, PromptStats},
};
pub use spec::{MethodSpec, ParamInfo, Params, Setting, expand_grid};
pub use spec_text::{split_params, unquoted};
pub use types::attention_spec::{AttentionSpec, LayerSpecs, SoftmaxScale, SpecReason};
pub use types::budget::{Budget, Context, Tuned};
pub use types::index_key::{Bits, IndexKey};
pub use types::policy::{DenseLayers, LocalLayers, Policy, Tail};
pub use types::positions::{Grouped, Grouping, Positions, Rotation};
pub use types::prefix_head::{HeadPrefix, SparseLayerRank};
pub use types::prompt_shape::PromptShape;
pub use types::role::Role;
pub use types::schedule::{LayerShare, Schedule};
pub use types::seed::{RowSeed, mix_seed};
pub use types::selection::{AttendedTokens, SelectedTokens, Selection, StaticTokens, Weighting};

#[cfg(test)]
mod testing {
    use super::decode::head_kv::{HeadKv, Queries};
    use super::{AttendedTokens, Selection, StaticTokens};
    use crate::kv::{LayerKv, Prefix};

    /// Output `[group][d]` of attending only the selected tokens of the only KV head of `kv`.
    pub(crate) fn attend(kv: &LayerKv, queries: &[f32], selection: &Selection) -> Vec<f32> {
        let (tokens, d) = (kv.tokens(), kv.keys.d());
        let (prefix, tail) = (Prefix::new(vec![kv.clone()]), LayerKv::new(crate::kv::KvDtype::F32, 1, d, 0));
        let mut out = vec![f32::NAN; queries.len()];
        let nothing = StaticTokens { sink: 0, recent: tokens };
        let picked = AttendedTokens { exact: nothing, selection: Some(selection.clone()) };
        let head = HeadKv::new(&prefix, &tail, 0, 0).unwrap();
        head.attend(&Queries::new(queries, head.spec.scale), &picked, &mut out).unwrap();
        out
    }
}
