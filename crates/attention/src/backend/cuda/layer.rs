//! The inputs of device forms: a layer of the prefix, and the rows of a step.

use std::ops::Range;

use rayon::prelude::*;

use crate::PromptHead;
use crate::backend::index::PrefixStatsView;
use crate::kv::{KvDtype, KvError, KvRows};
use crate::types::attention_spec::SoftmaxScale;
use crate::types::prefix_head::{HeadPrefix, SparseLayerRank};
use crate::types::seed::{RowSeed, head_seed};
use spattn_cuda::{Cache, Gpu, GpuError, HeldTokens, KeyCache, Queries};
use spattn_kernels::Rows;

/// One layer of a finished prefix in a device's memory.
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

/// A step of one layer: the rows that share a method.
pub struct DeviceStep<'a> {
    /// The prefix that the rows share.
    pub prefix: DeviceLayer<'a>,
    /// Number of tokens of the prefix, not all of which are candidates.
    pub prefix_tokens: usize,
    /// Where the candidates of each row end, if tokens after the prefix become candidates; `None` if they end with those of the prefix.
    pub ends: Option<&'a [usize]>,
    /// The rows' rotated, unscaled queries.
    pub queries: Queries<'a>,
    /// The [budget](crate::DeviceForm::budget_units) of each row.
    pub budget_units: &'a [u32],
    /// The seed of each row.
    pub seeds: &'a [RowSeed],
    /// The sequence of each row.
    pub runs: &'a [DeviceSequence<'a>],
    /// A cache of the keys that selection scores, if the prefix is in host memory and all rows are of the sequence that has the cache.
    pub keys: Option<&'a KeyCache>,
}

/// The data of a row's own sequence at a layer.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSequence<'a> {
    /// Keys and values after the prefix.
    pub tail: Cache<'a>,
    /// Its [token cache](crate::CudaForm::start_all), if the method keeps one.
    pub held: Option<&'a HeldTokens>,
}

/// Builds a part of an index on the host: downloads the keys and values of a layer and calls `build` for each KV head.
pub(crate) fn build_on_host<I: Send>(
    layer: &DeviceLayer<'_>,
    learned: &PrefixStatsView<'_>,
    build: impl Fn(&HeadPrefix<'_>) -> Result<I, KvError> + Sync,
) -> Result<Vec<I>, GpuError> {
    let down = |kv_head| layer.cache.download_rows(layer.gpu, kv_head, 0..layer.candidates.end);
    let rows: Vec<[Vec<f32>; 2]> = (0..layer.cache.kv_heads).map(down).collect::<Result<_, _>>()?;
    let of_head = |(kv_head, [keys, values]): (usize, &[Vec<f32>; 2])| {
        let index = build(&HeadPrefix {
            layer: layer.layer,
            depth: SparseLayerRank::default(),
            rotation: None,
            kv_head,
            keys: KvRows::lent(Rows::F32(keys), layer.cache.d),
            values: KvRows::lent(Rows::F32(values), layer.cache.d),
            d: layer.cache.d,
            scale: layer.scale,
            dtype: layer.dtype,
            candidates: layer.candidates.clone(),
            prompt: learned.stats.map_or_else(PromptHead::default, |stats| stats.head(layer.layer, kv_head)),
            seed: head_seed(learned.seed, layer.layer, kv_head),
        });
        index.expect("rows that were downloaded are in host memory")
    };
    Ok(rows.par_iter().enumerate().map(of_head).collect())
}
