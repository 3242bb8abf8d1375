//! Signatures by learned nets on a device: keys when the prefix is read, queries at every step.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::net::SignNet;
use crate::cost::Cost;
use crate::device::scorer::DeviceScorer;
use crate::kv::{KvDtype, KvShape};
use crate::methods::hash_attention::learned::LearnedSignatures;
use crate::methods::signatures::words_of;
#[cfg(feature = "cuda")]
use crate::methods::signatures::{DeviceSigner, Ties};
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{Buffer, Gpu, GpuError, Nets, Reduction, Signatures};
use spattn_kernels::GPU_WIDEST;

impl LearnedSignatures {
    /// Nets of the keys of each KV head, and one of the nets of queries, of the first layer; all are alike.
    fn any_net(&self) -> Option<(usize, &SignNet)> {
        let layer = self.nets.as_ref()?.layers.first()?;
        Some((layer.keys.first()?.len(), layer.queries.first()?))
    }

    /// Takes nets, one after the other, to a device.
    #[cfg(feature = "cuda")]
    fn sent<'n>(&self, gpu: &Gpu, nets: impl Iterator<Item = &'n SignNet>, d: usize) -> Result<Nets, GpuError> {
        let nets: Vec<&SignNet> = nets.collect();
        Nets::new(gpu, nets.len(), (d, self.kind.bits), SignNet::stacked(&nets))
    }
}

#[cfg(feature = "cuda")]
impl DeviceSigner for LearnedSignatures {
    fn ties(&self) -> Ties {
        self.ties
    }

    fn keys<'a>(&self, step: &DeviceStep<'_>, index: &'a DeviceIndex) -> Signatures<'a> {
        let [buffer] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
        let (kv_heads, tokens) = (step.prefix.cache.kv_heads, step.prefix.candidates.len());
        let nets = self.any_net().map_or(1, |(each, _)| each);
        Signatures { buffer, kv_heads, nets, words: words_of(self.kind.bits), tokens }
    }

    fn sign(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        made: &mut Buffer,
    ) -> Result<(), GpuError> {
        let nets = index.nets.as_ref().expect("what `build_all` made");
        step.prefix.gpu.sign_queries((&step.queries, rows), step.prefix.cache.storage, nets, made)
    }
}

impl DeviceScorer for LearnedSignatures {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d.is_multiple_of(8) && shape.d <= GPU_WIDEST && self.kind.bits <= GPU_WIDEST
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let Some((each, net)) = self.any_net() else { return Cost::default() };
        let signatures = 4 * each * words_of(self.kind.bits) * step.candidates;
        Cost {
            aux_bytes: (step.group * net.bytes() + signatures) as u64,
            score_flops: step.group as u64 * net.flops(),
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let Some((each, net)) = self.any_net() else { return 0 };
        let signatures = 4 * prefix.kv_heads * each * words_of(self.kind.bits) * prefix.tokens.next_multiple_of(4);
        signatures + prefix.heads * net.bytes()
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let of_layer = self.layer(layer.layer);
        let each = of_layer.keys.first().map_or(1, Vec::len);
        let keys = self.sent(gpu, of_layer.keys.iter().flatten(), cache.d)?;
        let words = words_of(self.kind.bits);
        let mut signatures = gpu.alloc(Signatures::bytes_of(cache.kv_heads * each, words, tokens))?;
        gpu.sign_keys(cache, layer.candidates.clone(), &keys, each, &mut signatures)?;
        let queries = self.sent(gpu, of_layer.queries.iter(), cache.d)?;
        let bytes = 4 * cache.kv_heads * each * words * tokens;
        Ok(DeviceIndex { buffers: vec![signatures], nets: Some(queries), bytes, ..DeviceIndex::default() })
    }

    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        self.score(step, rows, index, reduction, scratch)
    }

    #[cfg(feature = "cuda")]
    fn supports_fused_top_k(&self, step: &DeviceStep<'_>, index: &DeviceIndex, reduction: Option<Reduction>) -> bool {
        self.nearest(step, index, reduction).is_some()
    }

    #[cfg(feature = "cuda")]
    fn fused_top_k(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        self.pick(step, index, reduction, scratch, to)
    }
}
