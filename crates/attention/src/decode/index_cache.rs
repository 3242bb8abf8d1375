//! Indexes over one prefix, built once for all sequences that can share them, on the host or on the device that holds the prefix.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::backend::active::{HAS_DEVICE, build_heads, build_index, finish};
use crate::backend::builder::IndexBuilder;
use crate::backend::form::DeviceForm;
use crate::backend::index::{DeviceIndex, IndexLayer, PrefixStatsView};
use crate::backend::reasons::HostReason;
use crate::configured::Configured;
use crate::cost::LayerCosts;
use crate::decode::timing::IndexTime;
use crate::kv::{
    DeviceFailure, KvDtype, KvError, KvPart, KvReads, KvRows, Prefix, PrefixDtype, QuantisedKv, ReadCounter,
};
use crate::types::attention_spec::SoftmaxScale;
use crate::types::positions::{Positions, Rotation};
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::schedule::Schedule;
use crate::types::seed::head_seed;
use crate::types::selection::StaticTokens;
use crate::{IndexKey, PromptHead, PromptNeed, PromptStats, RecentQueries};

pub(super) type Index = Box<dyn Any + Send + Sync>;

/// Indexes of one prefix for one index key, over its sparse layers.
pub(super) struct IndexSet {
    /// One index for each KV head of each layer, if the host selects.
    pub(super) by_layer: Vec<Vec<Index>>,
    /// One index for each layer, if a device selects.
    pub(super) on_device: Vec<Option<DeviceIndex>>,
    pub(super) build_time: Duration,
    /// What building the indexes read, if the prefix cannot be borrowed.
    pub(super) reads: KvReads,
}

/// The key of an index set: two sequences with equal keys share their indexes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct IndexSetKey {
    /// Name of the method; `None` if methods of several names can share the index.
    pub(super) method: Option<String>,
    /// The settings of the method that its index depends on.
    pub(super) settings: IndexKey,
    pub(super) exact: StaticTokens,
    pub(super) dense: Vec<bool>,
    /// The schedule, on which budgets depend that are spent while the index is built.
    pub(super) schedule: Schedule,
    /// The storage type of the keys and values that the index is built from.
    pub(super) kv_dtype: PrefixDtype,
    pub(super) on_device: bool,
}

/// A quantised copy of a prefix.
#[derive(Clone)]
struct QuantisedCopy {
    prefix: Arc<Prefix>,
    time: Duration,
}

/// Indexes over one prefix, built once for all sequences that can share them. Quantised copies of the prefix are also made once;
/// statistics of the prompt and fidelity refer to the exact prefix.
pub struct IndexCache {
    pub(super) prefix: Arc<Prefix>,
    copies: HashMap<PrefixDtype, QuantisedCopy>,
    pub(super) dtype: KvDtype,
    /// Seed of indexes: that of the context.
    seed: u64,
    /// Seed of decode steps: that of the example.
    pub(super) step_seed: u64,
    pub(super) prompt_tokens: usize,
    /// Number of tokens after the prompt that are certain to be read.
    pub(super) given_tokens: usize,
    stats: Option<PromptStats>,
    pub(super) rotation: Option<Arc<dyn Rotation>>,
    /// Needs whose gathering time has not been charged to any index yet.
    uncharged: BTreeSet<PromptNeed>,
    pub(super) queries: RecentQueries,
    pub(super) read: Option<LayerCosts>,
    pub(super) sets: HashMap<IndexSetKey, Arc<IndexSet>>,
    selects_on_host: bool,
}

impl IndexCache {
    /// An empty cache for `prefix`; `seed` is the example's. All tokens after the prefix count as generated.
    pub fn new(prefix: Arc<Prefix>, dtype: KvDtype, seed: u64) -> Self {
        let prompt_tokens = prefix.tokens();
        Self {
            prefix,
            copies: HashMap::new(),
            dtype,
            seed,
            step_seed: seed,
            prompt_tokens,
            given_tokens: 1,
            stats: None,
            rotation: None,
            uncharged: BTreeSet::new(),
            queries: RecentQueries::default(),
            read: None,
            sets: HashMap::new(),
            selects_on_host: false,
        }
    }

    /// Declares the prefix to be the start of a prompt of `prompt_tokens` tokens; only tokens after the prompt count as generated.
    pub fn with_prompt(self, prompt_tokens: usize) -> Self {
        Self { prompt_tokens, ..self }
    }

    /// Declares that `given_tokens` tokens will be read after the prompt: a text that is scored, or the first token of an answer.
    pub fn with_given(self, given_tokens: usize) -> Self {
        Self { given_tokens, ..self }
    }

    /// Sets the seed of the decode steps of sequences started from now on; indexes keep the context's seed.
    pub fn with_step_seed(self, step_seed: u64) -> Self {
        Self { step_seed, ..self }
    }

    /// Whether all of these statistics were gathered while the prefix was read.
    pub fn has_gathered(&self, needs: &BTreeSet<PromptNeed>) -> bool {
        needs.iter().all(|need| self.stats.as_ref().is_some_and(|stats| stats.needs().any(|n| n == *need)))
    }

    /// The seed that indexes draw from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the prefix and its statistics; `None` while a sequence still uses the prefix.
    pub fn into_prefix(self) -> Option<(Prefix, Option<PromptStats>)> {
        Some((Arc::into_inner(self.prefix)?, self.stats))
    }

    /// Adds the statistics gathered while the prefix was read, for methods that need them.
    pub fn with_stats(self, stats: PromptStats) -> Self {
        Self { uncharged: stats.needs().collect(), stats: Some(stats), ..self }
    }

    /// Adds the model's rotation, without which a method that moves [`Positions`] cannot run.
    pub fn with_rotation(self, rotation: Arc<dyn Rotation>) -> Self {
        Self { rotation: Some(rotation), ..self }
    }

    /// Adds the last queries of the prefix, with which methods solve for a density.
    pub fn with_queries(self, queries: RecentQueries) -> Self {
        Self { queries, ..self }
    }

    /// Selects on the host for all sequences, even where the device could; for comparing the two.
    pub fn selecting_on_host(self) -> Self {
        Self { selects_on_host: true, ..self }
    }

    /// Declares that the method that decodes also read the prefix, sparsely: `costs` become part of each sequence's costs.
    pub fn with_reading(self, costs: LayerCosts) -> Self {
        Self { read: Some(costs), ..self }
    }

    /// Whether a step of the method can stay on the device that holds the prefix: the method selects there, or selects nothing.
    pub fn can_stay_on_device(&self, method: &Configured) -> bool {
        let nothing = method.method.is_static_only() && method.method.positions() == Positions::Original;
        nothing || self.can_select_on_device(method)
    }

    /// Whether the method selects on the device that holds the prefix.
    pub(super) fn can_select_on_device(&self, method: &Configured) -> bool {
        let is_there = HAS_DEVICE && self.prefix.device().is_some() && !self.selects_on_host;
        let is_there = is_there && method.policy.kv_dtype.is_exact();
        let is_there = is_there && !self.prefix.specs().selects_in_windows(&method.policy);
        is_there && self.host_reasons(method).is_empty()
    }

    /// The reasons why the method selects on the host although a device holds the prefix; empty if it selects there.
    pub fn host_reasons(&self, method: &Configured) -> Vec<HostReason> {
        let mut reasons = method.host_reasons(self.prefix.shape());
        if !self.has_gathered(&method.method.prompt_needs().into_iter().collect()) {
            reasons.push(HostReason::NoStatistics);
        }
        // SparQ's kernel that selects channels computes the default scale itself.
        let default = SoftmaxScale::inverse_root(self.prefix.shape().d);
        if self.prefix.specs().iter().any(|spec| spec.scale != default) {
            reasons.push(HostReason::SoftmaxScale);
        }
        if self.prefix.specs().iter().any(|spec| spec.soft_cap.is_some() || spec.sinks.is_some()) {
            reasons.push(HostReason::SoftmaxRule);
        }
        reasons
    }

    /// Returns the prefix in this storage type, and the time of quantising it, which is `reused` if that was done before.
    ///
    /// # Errors
    /// If the prefix cannot be read.
    pub(super) fn stored_as(&mut self, dtype: PrefixDtype) -> Result<(Arc<Prefix>, IndexTime), KvError> {
        if dtype.is_exact() {
            return Ok((self.prefix.clone(), IndexTime::default()));
        }
        if let Some(QuantisedCopy { prefix, time }) = self.copies.get(&dtype) {
            return Ok((prefix.clone(), IndexTime { whole: *time, reused: *time }));
        }
        let start = Instant::now();
        let source = QuantisedKv::new(&self.prefix, dtype)?;
        let prefix = Prefix::from_source(self.prefix.specs().clone(), Box::new(source));
        let copy = QuantisedCopy { prefix, time: start.elapsed() };
        self.copies.insert(dtype, copy.clone());
        Ok((copy.prefix, IndexTime { whole: copy.time, reused: Duration::ZERO }))
    }

    /// Time spent on gathering `needs`; `reused` is the part already charged to an earlier index.
    pub(super) fn gathering_time(&mut self, needs: &[PromptNeed]) -> IndexTime {
        let mut time = IndexTime::default();
        let Some(stats) = &self.stats else { return time };
        for need in needs {
            time.whole += stats.time(*need);
            if !self.uncharged.remove(need) {
                time.reused += stats.time(*need);
            }
        }
        time
    }

    /// Builds indexes on the host, over the prefix as it is stored for the method.
    ///
    /// # Errors
    /// If keys and values of a sparse layer cannot be read.
    pub(super) fn build(
        &self,
        prefix: &Prefix,
        method: &Configured,
        candidates: Range<usize>,
        dense: &[bool],
    ) -> Result<IndexSet, KvError> {
        let start = Instant::now();
        let asked = !method.method.is_static_only() && (!candidates.is_empty() || method.has_moving_candidates());
        let builder = self.builder_on_device(prefix, method);
        let of_layer = |layer: usize| -> Result<Vec<(Index, KvReads)>, KvError> {
            if dense[layer] || !asked {
                return Ok(Vec::new());
            }
            let depth = depth(dense, layer, &method.policy.schedule);
            if let Some(builder) = builder
                && let Some(indexes) = self.build_heads_on_device(builder, prefix, (layer, depth), &candidates)?
            {
                return Ok(indexes.into_iter().map(|index| (index, KvReads::default())).collect());
            }
            let heads = (0..prefix.shape().kv_heads).into_par_iter();
            heads.map(|kv_head| self.build_head(prefix, method, (layer, kv_head), depth, candidates.clone())).collect()
        };
        let by_layer: Vec<Vec<(Index, KvReads)>> = match builder {
            // A device builds the layers one after the other; within a layer, the host divides its part among threads.
            Some(_) => (0..dense.len()).map(of_layer).collect::<Result<_, KvError>>()?,
            None => (0..dense.len()).into_par_iter().map(of_layer).collect::<Result<_, KvError>>()?,
        };
        let mut reads = KvReads::default();
        by_layer.iter().flatten().for_each(|(_, of_head)| reads.add(*of_head));
        let indexes = |heads: Vec<(Index, KvReads)>| heads.into_iter().map(|(index, _)| index).collect();
        let by_layer = by_layer.into_iter().map(indexes).collect();
        let on_device = dense.iter().map(|_| None).collect();
        Ok(IndexSet { by_layer, on_device, build_time: start.elapsed(), reads })
    }

    /// The builder with which the device that holds the prefix builds indexes for a method that selects on the host; `None` if there is
    /// none.
    fn builder_on_device<'m>(&self, prefix: &Prefix, method: &'m Configured) -> Option<&'m dyn IndexBuilder> {
        let is_there = HAS_DEVICE && prefix.device().is_some() && !self.selects_on_host;
        let builder = method.method.index_builder().filter(|_| is_there)?;
        builder.fits(prefix.shape()).then_some(builder)
    }

    /// Builds the indexes of a layer's KV heads on the device; `None` if the layer has no candidates or is not on the device.
    fn build_heads_on_device(
        &self,
        builder: &dyn IndexBuilder,
        prefix: &Prefix,
        (layer, depth): (usize, SparseLayerRank),
        candidates: &Range<usize>,
    ) -> Result<Option<Vec<Index>>, KvError> {
        let (spec, tokens) = (prefix.spec(layer), prefix.tokens());
        let candidates = spec.visible_candidates(candidates.clone(), tokens);
        let Some(device) = prefix.device().filter(|_| !candidates.is_empty()) else { return Ok(None) };
        let Some(kv) = device.on_gpu(layer) else { return Ok(None) };
        let (rotation, stats) = (self.rotation.as_deref(), self.stats.as_ref());
        let of = IndexLayer { layer, depth, rotation, tokens, scale: spec.scale, candidates, stats };
        let built = build_heads(builder, kv, &of);
        built.map(Some).map_err(|failure| KvError::Unread { layer, tier: device.tier(), why: failure.to_string() })
    }

    /// Builds the index of one KV head; also returns what was read for it.
    fn build_head(
        &self,
        prefix: &Prefix,
        method: &Configured,
        (layer, kv_head): (usize, usize),
        depth: SparseLayerRank,
        candidates: Range<usize>,
    ) -> Result<(Index, KvReads), KvError> {
        let (head, tokens, counter) = (prefix.head(layer, kv_head)?, prefix.tokens(), ReadCounter::default());
        let index = method.method.build(&HeadPrefix {
            layer,
            depth,
            rotation: self.rotation.as_deref(),
            kv_head,
            keys: KvRows::of_head(head, KvPart::Keys, tokens, &counter),
            values: KvRows::of_head(head, KvPart::Values, tokens, &counter),
            d: self.prefix.shape().d,
            scale: self.prefix.spec(layer).scale,
            dtype: self.dtype,
            candidates: self.prefix.spec(layer).visible_candidates(candidates, tokens),
            prompt: self.stats.as_ref().map_or_else(PromptHead::default, |s| s.head(layer, kv_head)),
            seed: head_seed(self.seed, layer, kv_head),
        })?;
        Ok((index, self.reads_of(&counter)))
    }

    /// What was read for an index, or to solve for a density. Pages count as if none had been in memory, because building reads each
    /// page once or twice, in an order that depends on threads.
    pub(super) fn reads_of(&self, counter: &ReadCounter) -> KvReads {
        let mut reads = counter.reads();
        if let Some(paging) = self.prefix.source().paging() {
            reads.fetched += paging.all_from_disk(&counter.take_pages());
        }
        reads
    }

    /// Builds indexes on the device that holds the prefix.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn build_on_device(
        &self,
        method: &Configured,
        candidates: &Range<usize>,
        dense: &[bool],
    ) -> Result<IndexSet, DeviceFailure> {
        let start = Instant::now();
        let form = method.method.device_form().expect(HAS_FORM);
        let on_device = self.device_indexes(form, candidates, dense)?;
        let by_layer = dense.iter().map(|_| Vec::new()).collect();
        Ok(IndexSet { by_layer, on_device, build_time: start.elapsed(), reads: KvReads::default() })
    }

    fn device_indexes(
        &self,
        form: &dyn DeviceForm,
        candidates: &Range<usize>,
        dense: &[bool],
    ) -> Result<Vec<Option<DeviceIndex>>, DeviceFailure> {
        let layer_of = |layer| self.prefix.device().and_then(|device| device.on_gpu(layer));
        let learned = PrefixStatsView { seed: self.seed, stats: self.stats.as_ref() };
        let build = |(layer, dense): (usize, &bool)| {
            let Some(kv) = layer_of(layer).filter(|_| !dense) else { return Ok(None) };
            let of = (layer, self.prefix.spec(layer).scale, self.prefix.shape().dtype, candidates.clone());
            build_index(form, kv, of, &learned).map(Some)
        };
        let indexes = dense.iter().enumerate().map(build).collect::<Result<_, _>>()?;
        // Build time is measured, so wait for the work to finish on every GPU that holds layers.
        (0..dense.len()).filter_map(layer_of).try_for_each(finish)?;
        Ok(indexes)
    }
}

/// Panic message: the sequence selects on a device although its method has no device form.
pub(super) const HAS_FORM: &str = "the method's GPU implementation was checked before";

/// Returns the rank of a layer among the sparse layers.
pub(super) fn depth(dense: &[bool], layer: usize, schedule: &Schedule) -> SparseLayerRank {
    let sparse = |dense: &[bool]| dense.iter().filter(|dense| !**dense).count();
    SparseLayerRank { rank: sparse(&dense[..layer]), of: sparse(dense), share: schedule.share(dense, layer) }
}
