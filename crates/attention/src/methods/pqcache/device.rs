//! Product-quantised keys on a device: the host clusters them when a prefix is read, as the authors' code does, and codes and
//! centroids are sent; queries meet them there at every step.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::ProductCodes;
#[cfg(feature = "cuda")]
use super::Subspace;
use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::layer::build_on_host;
use crate::device::scorer::DeviceScorer;
use crate::kv::{KvDtype, KvShape};
#[cfg(feature = "cuda")]
use crate::scored::scorer::Scorer;
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, PrefixStatsView};
use crate::{PromptShape, StepShape};
#[cfg(feature = "cuda")]
use spattn_cuda::{CodedKeys, GpuError, Reduction};

/// The widest head, and the most entries of a query's tables, that kernels take.
const WIDEST: usize = 256;
const MOST_ENTRIES: usize = 40 << 10;

impl ProductCodes {
    fn parts(&self, d: usize) -> usize {
        self.subspaces.min(d)
    }

    /// Centroids of a part, of so many keys.
    fn centroids(&self, keys: usize) -> usize {
        (1 << self.bits).min(keys)
    }
}

impl DeviceScorer for ProductCodes {
    fn fits(&self, shape: KvShape) -> bool {
        shape.d <= WIDEST && self.parts(shape.d) << self.bits <= MOST_ENTRIES
    }

    /// Products with all centroids, and an addition for each code.
    fn cost(&self, step: &StepShape) -> Cost {
        let (parts, count) = (self.parts(step.d), self.centroids(step.candidates));
        let products = 2 * count * step.d;
        Cost {
            score_flops: (step.group * (products + parts * step.candidates)) as u64,
            aux_bytes: (count * step.d * step.dtype.bytes() + parts * step.candidates) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, _: KvDtype) -> usize {
        let codes = self.parts(prefix.d) * prefix.tokens.next_multiple_of(4);
        prefix.kv_heads * (codes + 4 * prefix.d * self.centroids(prefix.tokens))
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let (d, tokens) = (layer.cache.d, layer.candidates.len());
        let (stride, count) = (CodedKeys::stride(tokens), self.centroids(tokens));
        let heads = build_on_host(layer, learned, |prefix| self.build(prefix))?;
        let mut codes = Vec::with_capacity(heads.len() * self.parts(d) * stride);
        let mut centroids = vec![0.0f32; heads.len() * count * d];
        for (subspaces, rows) in heads.iter().zip(centroids.chunks_exact_mut(count * d)) {
            for Subspace { channels, centroids, codes: own } in subspaces {
                codes.extend(own);
                codes.resize(codes.len().next_multiple_of(4), 0);
                let numbers = centroids.head(0).to_f32();
                for (row, own) in rows.chunks_exact_mut(d).zip(numbers.chunks_exact(channels.len())) {
                    row[channels.clone()].copy_from_slice(own);
                }
            }
        }
        let bytes = heads.iter().map(|subspaces| self.index_bytes(subspaces)).sum();
        let buffers = vec![layer.gpu.upload(&codes)?, layer.gpu.upload(&centroids)?];
        Ok(DeviceIndex { buffers, bytes, ..DeviceIndex::default() })
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
        let [codes, centroids] = index.buffers.as_slice() else { unreachable!("what `build_all` made") };
        let (gpu, cache, tokens) = (step.prefix.gpu, &step.prefix.cache, step.prefix.candidates.len());
        let keys = CodedKeys {
            codes,
            centroids,
            parts: self.parts(cache.d),
            count: self.centroids(tokens),
            tokens,
            kv_heads: cache.kv_heads,
        };
        let [tables, _] = &mut scratch.queries;
        let asked = (&step.queries, rows);
        gpu.score_codes(asked, (cache.d, cache.storage), &keys, reduction, tables, &mut scratch.scores)
    }
}
