//! The launches of device forms.
//!
//! A method implements [`CudaForm`], and a scorer [`CudaScorer`], each with an index of its own type. The engine calls them through
//! [`DeviceLaunch`] and [`ScorerLaunch`], which know an index as a [`DeviceIndex`].

use std::any::Any;
use std::ops::Range;

use crate::backend::cuda::layer::{DeviceLayer, DeviceStep};
use crate::backend::cuda::memory::{DeviceScratch, DeviceWorkspace, KvHandle};
use crate::backend::index::{DeviceIndex, IndexLayer, PrefixStatsView};
use crate::kv::{DeviceFailure, KvDtype};
use crate::types::attention_spec::SoftmaxScale;
use spattn_cuda::{Gpu, GpuError, HeldTokens, Pages, Queries, Reduction, Sampling, Scores, Tree};

/// An index that was built on a device.
#[derive(Debug, Default)]
pub struct Built<I> {
    /// The index of all KV heads of a layer.
    pub index: I,
    /// Bytes that the host form's index of the same keys takes ([`DeviceIndex::host_bytes`]).
    pub host_bytes: usize,
}

impl<I: Any + Send + Sync> From<Built<I>> for DeviceIndex {
    fn from(built: Built<I>) -> Self {
        Self::new(built.index, built.host_bytes)
    }
}

/// Launches of a method on a GPU. They do not wait for their work.
pub trait CudaForm: Send + Sync {
    /// The index of all KV heads of a layer.
    type Index: Any + Send + Sync;

    /// Builds the index of a layer.
    ///
    /// # Errors
    /// If the GPU fails.
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>)
    -> Result<Built<Self::Index>, GpuError>;

    /// The token cache of a sequence at the layer, when it starts with room for `total` tokens in context; `None` by
    /// default.
    ///
    /// # Errors
    /// If the GPU fails.
    fn start_all(&self, _gpu: &Gpu, _index: &Self::Index, _total: usize) -> Result<Option<HeldTokens>, GpuError> {
        Ok(None)
    }

    /// Selects for all heads of all rows of a step, into a list for each query head or each KV head.
    ///
    /// # Errors
    /// If the GPU fails.
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &Self::Index,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;
}

/// [`CudaForm`] with the type of its index erased.
pub trait DeviceLaunch: Send + Sync {
    /// See [`CudaForm::build_all`].
    ///
    /// # Errors
    /// If the GPU fails.
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError>;

    /// See [`CudaForm::start_all`].
    ///
    /// # Errors
    /// If the GPU fails.
    fn start_all(&self, gpu: &Gpu, index: &DeviceIndex, total: usize) -> Result<Option<HeldTokens>, GpuError>;

    /// See [`CudaForm::select_all`].
    ///
    /// # Errors
    /// If the GPU fails.
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Benchmark hook: scores all candidates and selects nothing. Returns whether [`select_all`](Self::select_all) also
    /// materialises scores.
    ///
    /// # Errors
    /// If the GPU fails.
    fn score_only(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _scratch: &mut DeviceScratch,
    ) -> Result<MaterializesScores, GpuError> {
        Ok(MaterializesScores::No)
    }
}

impl<F: CudaForm> DeviceLaunch for F {
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        CudaForm::build_all(self, layer, learned).map(DeviceIndex::from)
    }

    fn start_all(&self, gpu: &Gpu, index: &DeviceIndex, total: usize) -> Result<Option<HeldTokens>, GpuError> {
        CudaForm::start_all(self, gpu, index.of(), total)
    }

    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        CudaForm::select_all(self, step, index.of(), to, scratch)
    }
}

/// Whether a form writes the scores of all candidates to memory and selects by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaterializesScores {
    /// There are no such scores.
    No,
    /// Only [`score_only`](DeviceLaunch::score_only) does; selection is fused with scoring.
    ForTimingOnly,
    /// Every selection does.
    Yes,
}

/// What a scorer scores: the rows of a step, against the index of its layer.
pub(crate) struct ScoreRequest<'a, I> {
    /// The step.
    pub step: &'a DeviceStep<'a>,
    /// The rows of the step whose queries are scored. The first row of the scores is row `rows.start` of the step.
    pub rows: Range<usize>,
    /// The index of all KV heads of the layer.
    pub index: &'a I,
    /// How the scores of the query heads of a GQA group become one list of their KV head; `None` for a list per query head.
    pub reduction: Option<Reduction>,
}

impl<'a> ScoreRequest<'a, DeviceIndex> {
    /// The request with the scorer's own type of index.
    fn typed<I: Any + Send + Sync>(self) -> ScoreRequest<'a, I> {
        let Self { step, rows, index, reduction } = self;
        ScoreRequest { step, rows, index: index.of(), reduction }
    }
}

/// What a picker selects from: the candidates of a step, by page.
pub(crate) struct PickRequest<'a> {
    /// The step.
    pub step: &'a DeviceStep<'a>,
    /// The pages of its candidates.
    pub pages: Pages,
    /// The least number of pages that is selected.
    pub least_pages: usize,
    /// Lists of scores, and of selected tokens, per row: the query heads or the KV heads.
    pub lists_per_row: usize,
}

/// Which candidates the tokens of a gathered cache are: each row has `room` of them in turn, the first of which is candidate `first` of
/// its row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailPlaces {
    /// Place of each row's first token among its candidates.
    pub first: usize,
    /// Tokens of a row.
    pub room: usize,
}

/// A launch that scores and selects all rows of a step at once.
pub(crate) type FusedTopK<'f> = Box<dyn FnOnce(&mut DeviceScratch, &mut DeviceWorkspace) -> Result<(), GpuError> + 'f>;

/// Launches of a scorer on a GPU.
pub(crate) trait CudaScorer: Send + Sync {
    /// The index of all KV heads of a layer.
    type Index: Any + Send + Sync;

    /// Builds the index of a layer.
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>)
    -> Result<Built<Self::Index>, GpuError>;

    /// The index of tokens that follow a prefix with the index `like`, of which it takes what does not depend on tokens; built like that
    /// of a prefix by default. Called only for scorers that [grow](crate::backend::scorer::DeviceScorer::grows).
    fn build_tail(
        &self,
        layer: &DeviceLayer<'_>,
        _like: &Self::Index,
        _places: TailPlaces,
    ) -> Result<Self::Index, GpuError> {
        let built = self.build_all(layer, &PrefixStatsView { seed: 0, stats: None })?;
        Ok(built.index)
    }

    /// Writes the scores of every page of the candidates for the requested rows into `scratch.scores`.
    fn score_all(&self, request: ScoreRequest<'_, Self::Index>, scratch: &mut DeviceScratch) -> Result<(), GpuError>;

    /// The launch that scores and selects the top `budget_units` tokens of all requested rows at once, without writing
    /// scores; `None` if there is none for such a step. None by default.
    fn fused_top_k<'f>(&'f self, _request: ScoreRequest<'f, Self::Index>) -> Option<FusedTopK<'f>> {
        None
    }

    /// Weights the selected tokens of the requested rows by the scores that [`score_all`](Self::score_all) wrote for the
    /// same request just before, as the scorer does on the host. Does nothing by default: tokens enter the softmax by
    /// their logits.
    fn weigh_all(
        &self,
        _request: ScoreRequest<'_, Self::Index>,
        _scratch: &DeviceScratch,
        _to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        Ok(())
    }
}

/// [`CudaScorer`] with the type of its index erased.
pub(crate) trait ScorerLaunch: Send + Sync {
    /// See [`CudaScorer::build_all`].
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError>;

    /// See [`CudaScorer::build_tail`].
    fn build_tail(
        &self,
        layer: &DeviceLayer<'_>,
        like: &DeviceIndex,
        places: TailPlaces,
    ) -> Result<DeviceIndex, GpuError>;

    /// See [`CudaScorer::score_all`].
    fn score_all(&self, request: ScoreRequest<'_, DeviceIndex>, scratch: &mut DeviceScratch) -> Result<(), GpuError>;

    /// See [`CudaScorer::fused_top_k`].
    fn fused_top_k<'f>(&'f self, request: ScoreRequest<'f, DeviceIndex>) -> Option<FusedTopK<'f>>;

    /// See [`CudaScorer::weigh_all`].
    fn weigh_all(
        &self,
        request: ScoreRequest<'_, DeviceIndex>,
        scratch: &DeviceScratch,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError>;
}

impl<S: CudaScorer> ScorerLaunch for S {
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        CudaScorer::build_all(self, layer, learned).map(DeviceIndex::from)
    }

    fn build_tail(
        &self,
        layer: &DeviceLayer<'_>,
        like: &DeviceIndex,
        places: TailPlaces,
    ) -> Result<DeviceIndex, GpuError> {
        Ok(DeviceIndex::new(CudaScorer::build_tail(self, layer, like.of(), places)?, 0))
    }

    fn score_all(&self, request: ScoreRequest<'_, DeviceIndex>, scratch: &mut DeviceScratch) -> Result<(), GpuError> {
        CudaScorer::score_all(self, request.typed(), scratch)
    }

    fn fused_top_k<'f>(&'f self, request: ScoreRequest<'f, DeviceIndex>) -> Option<FusedTopK<'f>> {
        CudaScorer::fused_top_k(self, request.typed())
    }

    fn weigh_all(
        &self,
        request: ScoreRequest<'_, DeviceIndex>,
        scratch: &DeviceScratch,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        CudaScorer::weigh_all(self, request.typed(), scratch, to)
    }
}

/// Launches of a picker on a GPU.
pub(crate) trait PickerLaunch: Send + Sync {
    /// Reserves the lists of selected tokens of all rows in `to`, and uploads what the rows need.
    fn prepare(&self, request: &PickRequest<'_>, to: &mut DeviceWorkspace) -> Result<(), GpuError>;

    /// Selects by `scores`, whose first row is row `first` of the step.
    fn pick_all(
        &self,
        request: &PickRequest<'_>,
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError>;
}

/// Launches of a mask that a GPU searches for.
pub trait MaskLaunch: Send + Sync {
    /// The search tree over key blocks, and the query rows that are scored.
    fn search(&self) -> (Tree, Sampling);
}

/// Launches that build on a GPU the indexes by which the host selects.
pub trait CudaBuilder: Send + Sync {
    /// The index of a KV head, that of the [method](crate::Method::Index).
    type Index: Any + Send + Sync;

    /// Builds the index of each KV head of a layer, and waits for it.
    ///
    /// # Errors
    /// If the GPU fails.
    fn build_heads(&self, kv: KvHandle<'_>, layer: &IndexLayer<'_>) -> Result<Vec<Self::Index>, GpuError>;

    /// Returns the codes of the queries of some rows for [`take_codes`](crate::Method::take_codes), `[row][head][code]`, and waits for
    /// them. Returns nothing by default: the host uses the queries themselves.
    ///
    /// # Errors
    /// If the GPU fails.
    fn hash_queries(
        &self,
        _queries: &Queries<'_>,
        _kv: KvHandle<'_>,
        _scratch: &mut DeviceScratch,
    ) -> Result<Vec<u16>, GpuError> {
        Ok(Vec::new())
    }
}

/// [`CudaBuilder`] with the type of its indexes erased.
pub trait BuilderLaunch: Send + Sync {
    /// See [`CudaBuilder::build_heads`].
    ///
    /// # Errors
    /// If the GPU fails.
    fn build_heads(
        &self,
        kv: KvHandle<'_>,
        layer: &IndexLayer<'_>,
    ) -> Result<Vec<Box<dyn Any + Send + Sync>>, GpuError>;

    /// See [`CudaBuilder::hash_queries`].
    ///
    /// # Errors
    /// If the GPU fails.
    fn hash_queries(
        &self,
        queries: &Queries<'_>,
        kv: KvHandle<'_>,
        scratch: &mut DeviceScratch,
    ) -> Result<Vec<u16>, GpuError>;
}

impl<B: CudaBuilder> BuilderLaunch for B {
    fn build_heads(
        &self,
        kv: KvHandle<'_>,
        layer: &IndexLayer<'_>,
    ) -> Result<Vec<Box<dyn Any + Send + Sync>>, GpuError> {
        let heads = CudaBuilder::build_heads(self, kv, layer)?;
        Ok(heads.into_iter().map(|head| Box::new(head) as _).collect())
    }

    fn hash_queries(
        &self,
        queries: &Queries<'_>,
        kv: KvHandle<'_>,
        scratch: &mut DeviceScratch,
    ) -> Result<Vec<u16>, GpuError> {
        CudaBuilder::hash_queries(self, queries, kv, scratch)
    }
}

/// Builds the indexes by which the host selects at a layer.
pub(crate) fn build_heads(
    builder: &(impl BuilderLaunch + ?Sized),
    kv: KvHandle<'_>,
    layer: &IndexLayer<'_>,
) -> Result<Vec<Box<dyn Any + Send + Sync>>, DeviceFailure> {
    builder.build_heads(kv, layer).map_err(DeviceFailure::from)
}

/// Builds the index of all KV heads of a layer.
pub(crate) fn build_index(
    form: &(impl DeviceLaunch + ?Sized),
    (gpu, cache): KvHandle<'_>,
    (layer, scale, dtype, candidates): (usize, SoftmaxScale, KvDtype, Range<usize>),
    learned: &PrefixStatsView<'_>,
) -> Result<DeviceIndex, DeviceFailure> {
    let layer = DeviceLayer { gpu, layer, cache, scale, dtype, candidates };
    form.build_all(&layer, learned).map_err(DeviceFailure::from)
}

/// Waits for all that was launched.
pub(crate) fn finish((gpu, _): KvHandle<'_>) -> Result<(), DeviceFailure> {
    gpu.synchronize().map_err(DeviceFailure::from)
}

impl From<GpuError> for DeviceFailure {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::Fatal { .. } => Self::fatal(error.to_string()),
            _ => Self::new(error.to_string()),
        }
    }
}
