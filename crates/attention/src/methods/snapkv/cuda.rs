//! Votes of the prefix's last queries, summed up on the GPU that holds its keys.

use std::sync::Arc;

use rayon::prelude::*;

use super::{SnapKv, Votes};
use crate::backend::active::{CudaBuilder, KvHandle};
use crate::backend::index::IndexLayer;
use crate::kv::{KvDtype, KvStore};
use spattn_cuda::{Cache, Gpu, GpuError, LayerRule, Rows, Storage};

impl CudaBuilder for SnapKv {
    type Index = Arc<Votes>;

    fn build_heads(&self, (gpu, cache): KvHandle<'_>, layer: &IndexLayer<'_>) -> Result<Vec<Arc<Votes>>, GpuError> {
        let votes = match self.budget.is_none() {
            true => Vec::new(),
            false => self.votes_of_layer(gpu, &cache, layer)?,
        };
        let voted = layer.tokens - self.window.min(layer.tokens);
        let of_heads: Vec<&[f32]> = votes.chunks_exact(layer.tokens).map(|votes| &votes[..voted]).collect();
        let group = of_heads.len() / cache.kv_heads;
        let index = |kv_head: usize| {
            let of_selections = match &of_heads[kv_head * group..(kv_head + 1) * group] {
                [] => Vec::new(),
                of_group => self.pooled_of_group(of_group, &layer.candidates),
            };
            let (first, context) = (layer.candidates.start as u32, layer.context());
            Arc::new(Votes { of_selections, first, context, depth: layer.depth })
        };
        Ok((0..cache.kv_heads).into_par_iter().map(index).collect())
    }
}

impl SnapKv {
    /// Softmax weights of the window's queries of each query head, summed for each token, `[head][token]`.
    fn votes_of_layer(&self, gpu: &Gpu, cache: &Cache<'_>, layer: &IndexLayer<'_>) -> Result<Vec<f32>, GpuError> {
        let (d, group) = (cache.d, layer.head(0).group());
        let heads = cache.kv_heads * group;
        let of_head = |head: usize| layer.head(head / group).last_queries(self.window, head % group).to_f32();
        let by_head: Vec<Vec<f32>> = (0..heads).map(of_head).collect();
        let count = by_head[0].len() / d;
        let mut queries = KvStore::new(dtype(cache.storage), 1, heads * d, count);
        for row in 0..count {
            let row: Vec<f32> = by_head.iter().flat_map(|queries| &queries[row * d..][..d]).copied().collect();
            queries.append(&row);
        }
        let row_bytes = heads * d * cache.storage.bytes();
        let (mut there, mut attended) = (gpu.alloc(count * row_bytes)?, gpu.alloc(count * row_bytes)?);
        gpu.upload_rows(&mut there, 0, queries.head(0))?;
        let rows = Rows {
            queries: &there,
            skip: 0,
            stride: heads * d,
            count,
            heads,
            first: layer.tokens - count,
            scale: layer.scale.factor(),
            // As on the host, votes are the weights of a plain softmax.
            rule: LayerRule::PLAIN,
        };
        let mut log_sums = gpu.alloc(size_of::<f32>() * heads * count)?;
        gpu.prefill_attention_and_sums(&rows, cache, &mut attended, &mut log_sums)?;
        let mut mass = gpu.alloc(size_of::<f32>() * heads * layer.tokens)?;
        gpu.add_attention_mass(&rows, cache, &log_sums, 0..count, &mut mass)?;
        let mut votes = vec![0.0f32; heads * layer.tokens];
        gpu.download(&mass, 0, &mut votes)?;
        Ok(votes)
    }
}

/// The type of keys stored as `storage`.
fn dtype(storage: Storage) -> KvDtype {
    match storage {
        Storage::F32 => KvDtype::F32,
        Storage::F16 => KvDtype::F16,
        Storage::Bf16 => KvDtype::Bf16,
    }
}
