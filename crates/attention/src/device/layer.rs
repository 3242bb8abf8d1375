//! What device forms are given: an index, a layer of the prefix, and the rows of a step.

#[cfg(feature = "cuda")]
use std::ops::Range;

#[cfg(feature = "cuda")]
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::kv::KvDtype;
#[cfg(feature = "cuda")]
use crate::types::attention_spec::SoftmaxScale;
#[cfg(feature = "cuda")]
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
#[cfg(feature = "cuda")]
use crate::types::seed::{RowSeed, head_seed};
#[cfg(feature = "cuda")]
use crate::{PromptHead, PromptStats};
#[cfg(feature = "cuda")]
use spattn_cuda::{Buffer, Cache, Gpu, GpuError, HashTables, HeldTokens, Nets, Queries};
#[cfg(feature = "cuda")]
use spattn_kernels::Rows;

/// What a device holds about the keys of one layer.
#[derive(Debug, Default)]
pub struct DeviceIndex {
    /// Buffers, in the method's own order.
    #[cfg(feature = "cuda")]
    pub buffers: Vec<Buffer>,
    /// Networks that map queries before they are compared with the index.
    #[cfg(feature = "cuda")]
    pub nets: Option<Nets>,
    /// Hash tables of the keys.
    #[cfg(feature = "cuda")]
    pub tables: Option<HashTables>,
    /// The token cache with which sequences start.
    #[cfg(feature = "cuda")]
    pub held: Option<HeldTokens>,
    /// Bytes that the host form's index of the same keys takes.
    pub bytes: usize,
}

/// One layer of a finished prefix in a device's memory.
#[cfg(feature = "cuda")]
#[derive(Clone)]
pub struct DeviceLayer<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// Layer, from 0.
    pub layer: usize,
    /// Keys and values of all KV heads.
    pub cache: Cache<'a>,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be selected; at least one.
    pub candidates: Range<usize>,
}

/// Seed and prompt statistics of a finished prefix.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy)]
pub struct PrefixStatsView<'a> {
    /// Seed of indexes.
    pub seed: u64,
    /// Statistics gathered while the prompt was read; `None` if there are none.
    pub stats: Option<&'a PromptStats>,
}

/// A step of one layer: the rows that share a method.
#[cfg(feature = "cuda")]
pub struct DeviceStep<'a> {
    /// The prefix that they share.
    pub prefix: DeviceLayer<'a>,
    /// Their rotated, unscaled queries.
    pub queries: Queries<'a>,
    /// The [budget](crate::DeviceForm::budget_units) of each row.
    pub budget_units: &'a [u32],
    /// The seed of each row.
    pub seeds: &'a [RowSeed],
    /// The sequence of each row.
    pub runs: &'a [DeviceSequence<'a>],
}

/// What a row's sequence has of its own at a layer.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy)]
pub struct DeviceSequence<'a> {
    /// Keys and values behind the prefix.
    pub tail: Cache<'a>,
    /// Its [token cache](crate::DeviceForm::start_all), if the method keeps one.
    pub held: Option<&'a HeldTokens>,
}

/// Downloads the keys and values of a layer and calls `build` for each KV head on the host.
#[cfg(feature = "cuda")]
pub(crate) fn build_on_host<I: Send>(
    layer: &DeviceLayer<'_>,
    learned: &PrefixStatsView<'_>,
    build: impl Fn(&HeadPrefix<'_>) -> I + Sync,
) -> Result<Vec<I>, GpuError> {
    let down = |kv_head| layer.cache.download_rows(layer.gpu, kv_head, 0..layer.candidates.end);
    let rows: Vec<[Vec<f32>; 2]> = (0..layer.cache.kv_heads).map(down).collect::<Result<_, _>>()?;
    let of_head = |(kv_head, [keys, values]): (usize, &[Vec<f32>; 2])| {
        build(&HeadPrefix {
            layer: layer.layer,
            depth: SparseLayerRank::default(),
            rotation: None,
            kv_head,
            keys: Rows::F32(keys),
            values: Rows::F32(values),
            d: layer.cache.d,
            scale: layer.scale,
            dtype: layer.dtype,
            candidates: layer.candidates.clone(),
            prompt: learned.stats.map_or_else(PromptHead::default, |stats| stats.head(layer.layer, kv_head)),
            seed: head_seed(learned.seed, layer.layer, kv_head),
        })
    };
    Ok(rows.par_iter().enumerate().map(of_head).collect())
}
