//! Signatures by random hyperplanes on a device: queries are signed there at every step. Keys are signed by the host form when a prefix is
//! read, as what they are lengthened to depends on all of them, and their signatures are sent.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::RandomSignatures;
#[cfg(feature = "cuda")]
use super::gaussians;
use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::layer::build_on_host;
use crate::device::scorer::DeviceScorer;
use crate::kv::{KvDtype, KvShape};
use crate::methods::signatures::words_of;
#[cfg(feature = "cuda")]
use crate::methods::signatures::{DeviceSigner, Ties};
#[cfg(feature = "cuda")]
use crate::scored::scorer::Scorer;
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{Buffer, GpuError, Reduction, Signatures};

/// The widest head whose queries kernels sign.
const WIDEST: usize = 256;

#[cfg(feature = "cuda")]
impl DeviceSigner for RandomSignatures {
    fn ties(&self) -> Ties {
        self.ties
    }

    fn keys<'a>(&self, step: &DeviceStep<'_>, index: &'a DeviceIndex) -> Signatures<'a> {
        let [buffer, _] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
        let (kv_heads, tokens) = (step.prefix.cache.kv_heads, step.prefix.candidates.len());
        Signatures { buffer, kv_heads, nets: 1, words: words_of(self.bits), tokens }
    }

    fn sign(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        made: &mut Buffer,
    ) -> Result<(), GpuError> {
        let [_, sides] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
        let (gpu, cache) = (step.prefix.gpu, &step.prefix.cache);
        gpu.sign_sides((&step.queries, rows), cache.storage, sides, (cache.d, self.bits), made)
    }
}

impl DeviceScorer for RandomSignatures {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= WIDEST
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let numbers = (self.width(step.d) * self.bits) as u64;
        let flops = 2 * step.group as u64 * numbers;
        Cost {
            score_flops: flops,
            projection_flops: flops,
            shared_bytes: 4 * numbers,
            shared_uses: 1,
            aux_bytes: (4 * words_of(self.bits) * step.candidates) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let signatures = 4 * prefix.kv_heads * words_of(self.bits) * prefix.tokens.next_multiple_of(4);
        signatures + 4 * self.bits * (prefix.d + 1)
    }

    /// The signatures, and the hyperplanes as queries meet them: all coordinates of each, then what the further one adds.
    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (gpu, cache) = (layer.gpu, &layer.cache);
        let (d, words, tokens) = (cache.d, words_of(self.bits), layer.candidates.len());
        let signed = build_on_host(layer, learned, |prefix| self.build(prefix).signatures)?;
        let mut stored = vec![0u32; Signatures::bytes_of(cache.kv_heads, words, tokens) / 4];
        let stride = stored.len() / (cache.kv_heads * words);
        for (planes, signatures) in stored.chunks_exact_mut(words * stride).zip(&signed) {
            for (plane, own) in planes.chunks_exact_mut(stride).zip(signatures.planes().chunks_exact(tokens)) {
                plane[..tokens].copy_from_slice(own);
            }
        }
        let normals = gaussians(self.bits * self.width(d), self.seed);
        let rows = || normals.chunks_exact(self.width(d));
        let offset = |row: &[f32]| if self.by_norm { row[d] } else { 0.0 };
        let sides: Vec<f32> = rows().flat_map(|row| &row[..d]).copied().chain(rows().map(offset)).collect();
        let bytes = 4 * cache.kv_heads * words * tokens;
        Ok(DeviceIndex { buffers: vec![gpu.upload(&stored)?, gpu.upload(&sides)?], bytes, ..DeviceIndex::default() })
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
