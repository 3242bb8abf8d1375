//! Launches of signatures by random hyperplanes on a GPU, which signs queries at every step. The host form signs keys when a prefix is
//! read, because the norm to which they are lengthened depends on all of them, and uploads the signatures.

use std::ops::Range;

use super::RandomSignatures;
use crate::backend::active::{Built, DeviceLayer, DeviceStep, build_on_host};
use crate::backend::index::PrefixStatsView;
use crate::methods::planes::gaussians;
use crate::methods::signatures::cuda::CudaSigner;
use crate::methods::signatures::{Ties, words_of};
use crate::scored::scorer::Scorer;
use spattn_cuda::{Buffer, GpuError, Signatures};

/// The signatures of a layer's keys, and the hyperplanes that sign queries.
pub(crate) struct SignedLayer {
    /// Signatures `[kv_head][word][token]`.
    signatures: Buffer,
    /// Hyperplanes as queries are multiplied with them, f32: all coordinates of each, then what the further coordinate of each adds.
    planes: Buffer,
}

impl CudaSigner for RandomSignatures {
    type Index = SignedLayer;

    fn ties(&self) -> Ties {
        self.ties
    }

    fn sign_keys(
        &self,
        layer: &DeviceLayer<'_>,
        learned: &PrefixStatsView<'_>,
    ) -> Result<Built<SignedLayer>, GpuError> {
        let (gpu, cache) = (layer.gpu, &layer.cache);
        let (d, words, tokens) = (cache.d, words_of(self.bits), layer.candidates.len());
        let signed = build_on_host(layer, learned, |prefix| Ok(self.build(prefix)?.signatures))?;
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
        let index = SignedLayer { signatures: gpu.upload(&stored)?, planes: gpu.upload(&sides)? };
        Ok(Built { index, host_bytes: 4 * cache.kv_heads * words * tokens })
    }

    fn signatures<'a>(&self, step: &DeviceStep<'_>, index: &'a SignedLayer) -> Signatures<'a> {
        let (kv_heads, tokens) = (step.prefix.cache.kv_heads, step.prefix.candidates.len());
        Signatures { buffer: &index.signatures, kv_heads, nets: 1, words: words_of(self.bits), tokens }
    }

    fn sign_queries(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &SignedLayer,
        signed: &mut Buffer,
    ) -> Result<(), GpuError> {
        let (gpu, cache) = (step.prefix.gpu, &step.prefix.cache);
        gpu.sign_sides((&step.queries, rows), cache.storage, &index.planes, (cache.d, self.bits), signed)
    }
}
