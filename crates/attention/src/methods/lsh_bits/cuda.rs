//! Launches of signatures by random hyperplanes on a GPU, which signs keys when a prefix has been read, and queries at every step. Keys of
//! heads that are too wide for its kernels are signed by the host form.

use std::ops::Range;

use super::RandomSignatures;
use crate::backend::active::{Built, DeviceLayer, DeviceStep, build_on_host};
use crate::backend::index::PrefixStatsView;
use crate::methods::signatures::cuda::CudaSigner;
use crate::methods::signatures::{Ties, words_of};
use crate::scored::scorer::Scorer;
use spattn_cuda::{Buffer, GpuError, KeySides, Signatures};

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
        let (gpu, d) = (layer.gpu, layer.cache.d);
        let (words, tokens) = (words_of(self.bits), layer.candidates.len());
        let normals = self.planes.normals_of_width(self.width(d));
        let signatures = match KeySides::fit(d) {
            true => gpu.sign_key_sides(&layer.cache, layer.candidates.clone(), &self.key_sides(&normals, layer))?,
            false => self.sign_on_host(layer, learned)?,
        };
        let rows = || normals.chunks_exact(self.width(d));
        let offset = |row: &[f32]| if self.by_norm { row[d] } else { 0.0 };
        let sides: Vec<f32> = rows().flat_map(|row| &row[..d]).copied().chain(rows().map(offset)).collect();
        let index = SignedLayer { signatures, planes: gpu.upload(&sides)? };
        Ok(Built { index, host_bytes: 4 * layer.cache.kv_heads * words * tokens })
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

impl RandomSignatures {
    /// What signs the keys of a layer.
    fn key_sides<'a>(&self, normals: &'a [f32], layer: &DeviceLayer<'_>) -> KeySides<'a> {
        let by_values = self.by_norm.then(|| layer.scale.divisor());
        KeySides { normals, bits: self.bits, is_centred: self.center, by_values }
    }

    /// Signs the keys of a layer on the host, and uploads the signatures `[kv_head][word][token]`.
    fn sign_on_host(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<Buffer, GpuError> {
        let (kv_heads, words, tokens) = (layer.cache.kv_heads, words_of(self.bits), layer.candidates.len());
        let signed = build_on_host(layer, learned, |prefix| Ok(self.build(prefix)?.signatures))?;
        let mut stored = vec![0u32; Signatures::bytes_of(kv_heads, words, tokens) / 4];
        let stride = stored.len() / (kv_heads * words);
        for (planes, signatures) in stored.chunks_exact_mut(words * stride).zip(&signed) {
            for (plane, own) in planes.chunks_exact_mut(stride).zip(signatures.planes().chunks_exact(tokens)) {
                plane[..tokens].copy_from_slice(own);
            }
        }
        layer.gpu.upload(&stored)
    }
}
