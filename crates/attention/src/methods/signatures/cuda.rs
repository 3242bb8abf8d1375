//! Launches that compare packed bit signatures on a GPU: one [`CudaScorer`] for all methods that sign keys and queries.

use std::ops::Range;

use super::{Signatures, Steps, Ties};
use crate::backend::active::{
    Built, CudaScorer, DeviceLayer, DeviceScratch, DeviceStep, FusedTopK, ScoreRequest, TailPlaces,
};
use crate::backend::index::PrefixStatsView;
use spattn_cuda::{Buffer, GpuError, Nearest, Signatures as LayerSignatures, TieOrder};

/// How a method signs keys and queries.
pub(crate) trait CudaSigner: Send + Sync {
    /// Signatures of the keys of a layer, and what signs queries.
    type Index: std::any::Any + Send + Sync;

    /// How candidates at one distance are ordered.
    fn ties(&self) -> Ties;

    /// Signs the keys of a layer.
    fn sign_keys(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>)
    -> Result<Built<Self::Index>, GpuError>;

    /// Signs tokens that follow a prefix with the index `like`; by default, as tokens of a prefix. Called only for scorers that
    /// [grow](crate::backend::scorer::DeviceScorer::grows).
    fn sign_tail(
        &self,
        layer: &DeviceLayer<'_>,
        _like: &Self::Index,
        _places: TailPlaces,
    ) -> Result<Self::Index, GpuError> {
        Ok(self.sign_keys(layer, &PrefixStatsView { seed: 0, stats: None })?.index)
    }

    /// Which candidates the signed tokens are; by default the first ones, in order.
    fn places(&self, _index: &Self::Index) -> Option<TailPlaces> {
        None
    }

    /// The signatures of a layer's keys.
    fn signatures<'a>(&self, step: &DeviceStep<'_>, index: &'a Self::Index) -> LayerSignatures<'a>;

    /// Signs the queries of some rows into `signed`: `[row][head][word]`.
    fn sign_queries(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &Self::Index,
        signed: &mut Buffer,
    ) -> Result<(), GpuError>;
}

/// Signatures of the queries of a step, `[row][head][word]`.
#[derive(Debug, Default)]
struct SignedQueries(Option<Buffer>);

impl SignedQueries {
    /// Signs the queries of some rows; returns the signatures and the order of candidates that are equally near to them.
    fn sign<S: CudaSigner>(
        &mut self,
        signer: &S,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &S::Index,
    ) -> Result<(&Buffer, TieOrder), GpuError> {
        let LayerSignatures { kv_heads, words, .. } = signer.signatures(step, index);
        let heads = step.queries.heads;
        let signed = step.prefix.gpu.reserved(&mut self.0, 4 * rows.len() * heads * words)?;
        signer.sign_queries(step, rows, index, signed)?;
        let ties = signer.ties().on_device(32 * words, heads / kv_heads);
        let [first, period] = signer.places(index).map_or([0; 2], |TailPlaces { first, room }| [first, room]);
        Ok((signed, TieOrder { first: first as u32, period: period as u32, ..ties }))
    }
}

impl<S: CudaSigner> CudaScorer for S {
    type Index = S::Index;

    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<Built<S::Index>, GpuError> {
        self.sign_keys(layer, learned)
    }

    fn build_tail(&self, layer: &DeviceLayer<'_>, like: &S::Index, places: TailPlaces) -> Result<S::Index, GpuError> {
        self.sign_tail(layer, like, places)
    }

    fn score_all(&self, request: ScoreRequest<'_, S::Index>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let (keys, queries) = (self.signatures(step, index), (rows.len(), step.queries.heads));
        let DeviceScratch { scores, own } = scratch;
        let (signed, ties) = own.of::<SignedQueries>().sign(self, step, rows, index)?;
        step.prefix.gpu.score_signatures((signed, queries.0, queries.1), &keys, ties, reduction, scores)
    }

    fn fused_top_k<'f>(&'f self, request: ScoreRequest<'f, S::Index>) -> Option<FusedTopK<'f>> {
        let ScoreRequest { step, rows, index, reduction } = request;
        let keys = self.signatures(step, index);
        let nearest = Nearest::new(step.prefix.gpu, (rows.len(), step.queries.heads), keys, reduction)?;
        Some(Box::new(move |scratch, to| {
            let (signed, ties) = scratch.own.of::<SignedQueries>().sign(self, step, rows, index)?;
            let chosen = (&to.budget_units, step.prefix.candidates.start);
            step.prefix.gpu.nearest_signatures(nearest, signed, ties, chosen, &mut to.lists)
        }))
    }
}

impl Ties {
    /// The order in the form that kernels take, for signatures of `bits` bits and groups of `group` heads.
    fn on_device(self, bits: usize, group: usize) -> TieOrder {
        let Self::Seeded(seed) = self else { return TieOrder::default() };
        let steps = Steps::new(bits, group);
        let seed = [seed as u32, (seed >> 32) as u32];
        TieOrder { seed, levels: steps.levels, unit: steps.unit(), ..TieOrder::default() }
    }
}

impl Signatures {
    /// All signatures, `[word][candidate]`.
    pub(crate) fn planes(&self) -> &[u32] {
        &self.planes
    }
}
