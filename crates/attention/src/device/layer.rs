//! What device forms are given: an index, a layer of the prefix, and the rows of a step.

#[cfg(feature = "cuda")]
use std::ops::Range;

#[cfg(feature = "cuda")]
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use crate::kv::KvDtype;
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
    /// In an order that the method knows.
    #[cfg(feature = "cuda")]
    pub buffers: Vec<Buffer>,
    /// What queries go through before they are compared with it.
    #[cfg(feature = "cuda")]
    pub nets: Option<Nets>,
    /// Tables that queries collide in.
    #[cfg(feature = "cuda")]
    pub tables: Option<HashTables>,
    /// What runs hold when they begin.
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
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be picked; at least one.
    pub candidates: Range<usize>,
}

/// What the host knows of a finished prefix beside its keys and values, and how many sequences lie in a layer as further KV heads.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy)]
pub struct PrefixStatsView<'a> {
    /// What indexes draw from.
    pub seed: u64,
    /// What was gathered while the prompt was read; `None` if nothing was.
    pub stats: Option<&'a PromptStats>,
}

/// A step of one layer: the rows that share a method.
#[cfg(feature = "cuda")]
pub struct DeviceStep<'a> {
    /// What they go on from.
    pub prefix: DeviceLayer<'a>,
    /// Their rotated, unscaled queries.
    pub queries: Queries<'a>,
    /// The [number](DeviceForm::budget_units) of each.
    pub budget_units: &'a [u32],
    /// What the draws of each come from.
    pub seeds: &'a [RowSeed],
    /// Of each, what its run has of its own.
    pub runs: &'a [DeviceSequence<'a>],
}

/// What the run of a row has of its own at a layer.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy)]
pub struct DeviceSequence<'a> {
    /// Keys and values behind the prefix.
    pub tail: Cache<'a>,
    /// What it [holds](DeviceForm::start_all).
    pub held: Option<&'a HeldTokens>,
}

/// What `build` makes of each KV head of a layer on the host, from keys and values that come down from the device.
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
            dtype: layer.dtype,
            candidates: layer.candidates.clone(),
            prompt: learned.stats.map_or_else(PromptHead::default, |stats| stats.head(layer.layer, kv_head)),
            seed: head_seed(learned.seed, layer.layer, kv_head),
        })
    };
    Ok(rows.par_iter().enumerate().map(of_head).collect())
}
