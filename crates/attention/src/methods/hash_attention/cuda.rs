//! Launches of signatures by learned nets on a GPU: keys are signed when the prefix is read, queries at every step.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::learned::LearnedSignatures;
use super::net::{LAYERS, SignNet};
use crate::backend::active::{Built, DeviceLayer, DeviceStep, TailPlaces};
use crate::backend::index::PrefixStatsView;
use crate::methods::signatures::cuda::CudaSigner;
use crate::methods::signatures::{Ties, words_of};
use spattn_cuda::{Buffer, Gpu, GpuError, Nets, Signatures};

/// The signatures of a layer's keys, and the nets that sign queries.
pub(crate) struct SignedLayer {
    /// Signatures `[kv_head][net][word][token]`.
    signatures: Buffer,
    /// Key nets, `each` for a KV head, and query nets.
    nets: Arc<LayerNets>,
    /// Which candidates the keys are, if they follow a prefix.
    places: Option<TailPlaces>,
}

struct LayerNets {
    keys: Nets,
    each: usize,
    queries: Nets,
}

impl LearnedSignatures {
    /// Uploads nets, one after the other.
    fn upload<'n>(&self, gpu: &Gpu, nets: impl Iterator<Item = &'n SignNet>, d: usize) -> Result<Nets, GpuError> {
        let nets: Vec<&SignNet> = nets.collect();
        Nets::new(gpu, nets.len(), (d, self.kind.bits), stacked(&nets))
    }

    /// Signs the candidates of a layer.
    fn signed(
        &self,
        layer: &DeviceLayer<'_>,
        nets: Arc<LayerNets>,
        places: Option<TailPlaces>,
    ) -> Result<SignedLayer, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let bytes = Signatures::bytes_of(cache.kv_heads * nets.each, words_of(self.kind.bits), tokens);
        let mut signatures = gpu.alloc(bytes)?;
        gpu.sign_keys(cache, layer.candidates.clone(), &nets.keys, nets.each, &mut signatures)?;
        Ok(SignedLayer { signatures, nets, places })
    }
}

/// Weights `[net][output][input]` and biases `[net][output]` of each layer of nets.
fn stacked(nets: &[&SignNet]) -> [(Vec<f16>, Vec<f32>); LAYERS] {
    let layers = |part: usize| nets.iter().map(move |net| &net.layers[part]);
    std::array::from_fn(|part| {
        let weights = layers(part).flat_map(|layer| layer.weight.iter().copied()).collect();
        (weights, layers(part).flat_map(|layer| layer.bias.iter().copied()).collect())
    })
}

impl CudaSigner for LearnedSignatures {
    type Index = SignedLayer;

    fn ties(&self) -> Ties {
        self.ties
    }

    fn sign_keys(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<Built<SignedLayer>, GpuError> {
        let (gpu, cache, tokens) = (layer.gpu, &layer.cache, layer.candidates.len());
        let of_layer = self.layer(layer.layer);
        let each = of_layer.keys.first().map_or(1, Vec::len);
        let keys = self.upload(gpu, of_layer.keys.iter().flatten(), cache.d)?;
        let queries = self.upload(gpu, of_layer.queries.iter(), cache.d)?;
        let nets = Arc::new(LayerNets { keys, each, queries });
        let host_bytes = 4 * cache.kv_heads * each * words_of(self.kind.bits) * tokens;
        Ok(Built { index: self.signed(layer, nets, None)?, host_bytes })
    }

    fn sign_tail(
        &self,
        layer: &DeviceLayer<'_>,
        like: &SignedLayer,
        places: TailPlaces,
    ) -> Result<SignedLayer, GpuError> {
        self.signed(layer, like.nets.clone(), Some(places))
    }

    fn places(&self, index: &SignedLayer) -> Option<TailPlaces> {
        index.places
    }

    fn signatures<'a>(&self, step: &DeviceStep<'_>, index: &'a SignedLayer) -> Signatures<'a> {
        let (kv_heads, tokens) = (step.prefix.cache.kv_heads, step.prefix.candidates.len());
        let nets = self.any_net().map_or(1, |(each, _)| each);
        Signatures { buffer: &index.signatures, kv_heads, nets, words: words_of(self.kind.bits), tokens }
    }

    fn sign_queries(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &SignedLayer,
        signed: &mut Buffer,
    ) -> Result<(), GpuError> {
        let storage = step.prefix.cache.storage;
        step.prefix.gpu.sign_queries((&step.queries, rows), storage, &index.nets.queries, signed)
    }
}
