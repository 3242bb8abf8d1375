//! Keys and values: the shared, immutable prefix and the private tail behind it.
//!
//! A prefix is behind a [`KvSource`], which says where keys and values are and reads them. [`KvHead`] is how the engine reads
//! one KV head, and [`KvRows`] how methods read its keys or its values, with the tail behind them: in order, in blocks, or
//! token by token. In memory, layout is `[kv_head][token][d]`, so that a head's rows are contiguous. Storage is f32, f16 or
//! bf16; kernels widen as they read. Nothing here selects or attends.
//!
//! [`DiskTier`] keeps prefixes in files, of which pages are in memory up to a cap. [`QuantisedKv`] has a prefix as codes in host memory.
//! What is read or held is counted by [`RowBytes`], whatever the storage.
//!
//! Whatever reads a source can fail, and no reader needs a whole KV head in one slice. Where the source lends its layers,
//! rows are borrowed and a scan shows them in one piece. Two kinds of readers go beyond that:
//!
//! - Algorithms that need all keys at the same time collect them, by [`KvRows::to_f32`] or [`KvRows::collect`], into a buffer
//!   that is counted ([`KvReads::workspace`]): k-means (`pqcache`), graphs (`knn`, `retrieval_attention`), hashes that depend
//!   on the mean or the longest of all keys (`lsh_bits`, `magicpig`), and keys stored channel by channel (`sparq`). Each says so where
//!   it builds its index.
//! - Analyses and benchmarks take whole layers by [`Prefix::layer`], which needs a source that lends. No example of an
//!   evaluation is run through it.

pub use device::{DeviceFailure, DeviceKv};
pub use disk::{DiskKv, DiskNeed, DiskPrefill, DiskTier, DiskUse};
pub use head::{HeadRows, KvHead};
pub use layer::LayerKv;
pub(crate) use page_ledger::PageLedger;
pub use page_ledger::Paging;
pub use prefix_dtype::PrefixDtype;
pub use quantised_kv::QuantisedKv;
pub use row_bytes::RowBytes;
pub use rows::{CollectedRows, KvReads, KvRows, ReadCounter, StoredRows};
pub use shape::{KvDtype, KvPart, KvShape, MOST_TOKENS};
pub use source::{Fetched, KvPlace, KvSource, VisitRows};
pub use store::{KvStore, RowsMut};
pub use tier::{KvError, Tier, TierBytes};
pub use token_slots::{CachedPart, TokenSlots};

use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use std::sync::Arc;

use copied::CopiedKv;
use source::HostKv;

pub mod quantised;

#[cfg(test)]
pub(crate) use disk::on_disk;

#[cfg(test)]
pub(crate) mod paged;

mod copied;
mod device;
mod disk;
mod head;
mod layer;
mod lru;
mod packed_rows;
mod page_cache;
mod page_file;
mod page_ledger;
pub(crate) mod prefix_dtype;
mod quantised_kv;
pub(crate) mod row_bytes;
mod rows;
pub(crate) mod shape;
mod source;
mod store;
pub(crate) mod tier;
mod token_slots;

/// The dense prefix of an example: every method and budget forks from the same one.
#[derive(Debug)]
pub struct Prefix {
    source: Box<dyn KvSource>,
    specs: LayerSpecs,
}

impl Prefix {
    /// Freezes the prefilled layers, all of which hold the same number of tokens and attend
    /// [as they do by default](AttentionSpec::of_width).
    pub fn new(layers: Vec<LayerKv>) -> Arc<Self> {
        let d = layers.first().map_or(1, |layer| layer.keys.d());
        let specs = LayerSpecs::uniform(layers.len(), AttentionSpec::of_width(d));
        Self::with_specs(layers, specs)
    }

    /// Freezes the prefilled layers of a model whose layers attend as `specs` say.
    pub fn with_specs(layers: Vec<LayerKv>, specs: LayerSpecs) -> Arc<Self> {
        debug_assert_eq!(layers.len(), specs.layers(), "a spec for each layer");
        let tokens = layers.first().map_or(0, LayerKv::tokens);
        debug_assert!(layers.iter().all(|l| l.tokens() == tokens));
        Self::from_source(specs, Box::new(HostKv::new(layers)))
    }

    /// A prefix wherever `source` has it, of a model whose layers attend as `specs` say.
    pub fn from_source(specs: LayerSpecs, source: Box<dyn KvSource>) -> Arc<Self> {
        debug_assert_eq!(source.layers(), specs.layers(), "a spec for each layer");
        Arc::new(Self { source, specs })
    }

    /// A prefix of `tokens` tokens that a device holds, of a model whose layers attend as `specs` say.
    pub fn on_device(specs: LayerSpecs, tokens: usize, device: Box<dyn DeviceKv>) -> Arc<Self> {
        let source = CopiedKv::new(specs.layers(), tokens, device);
        Self::from_source(specs, Box::new(source))
    }

    /// Keys and values of one layer, for analyses and benchmarks, which need them all in host memory. What runs an example
    /// reads by [`head`](Self::head), which any source can do.
    ///
    /// # Errors
    /// If they cannot be read, or the source does not lend whole layers.
    pub fn layer(&self, layer: usize) -> Result<&LayerKv, KvError> {
        let why = || "this source cannot lend a whole layer".to_owned();
        let lent = self.source.lend(layer)?;
        lent.ok_or_else(|| KvError::Unread { layer, tier: self.source.tier(layer), why: why() })
    }

    /// One KV head of a layer.
    ///
    /// # Errors
    /// If the source lends its layers, and cannot read this one.
    pub fn head(&self, layer: usize, kv_head: usize) -> Result<KvHead<'_>, KvError> {
        KvHead::of(self.source.as_ref(), KvPlace { layer, kv_head })
    }

    /// What a token's key and value take in a KV head, as they are stored.
    pub fn row_bytes(&self) -> RowBytes {
        self.source.row_bytes()
    }

    /// Where its keys and values are.
    pub fn source(&self) -> &dyn KvSource {
        self.source.as_ref()
    }

    /// What a device holds of it.
    pub fn device(&self) -> Option<&dyn DeviceKv> {
        self.source.device()
    }

    /// The layers in host memory, to be gone on with: what follows may be cut off and read anew.
    ///
    /// # Errors
    /// If a layer cannot be read.
    pub fn into_layers(self) -> Result<Vec<LayerKv>, KvError> {
        self.source.into_layers()
    }

    /// What a device holds of it, to be gone on with.
    pub fn into_device(self) -> Option<Box<dyn DeviceKv>> {
        self.source.into_device()
    }

    /// What is on disk of it, to be gone on with.
    pub fn into_disk(self) -> Option<DiskKv> {
        self.source.into_any()?.downcast().ok().map(|disk| *disk)
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.source.layers()
    }

    /// Tokens in the prefix.
    pub fn tokens(&self) -> usize {
        self.source.tokens()
    }

    /// What its layers have in common.
    pub fn shape(&self) -> KvShape {
        self.source.shape()
    }

    /// How a layer attends.
    pub fn spec(&self, layer: usize) -> &AttentionSpec {
        self.specs.layer(layer)
    }

    /// How each layer attends.
    pub fn specs(&self) -> &LayerSpecs {
        &self.specs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Holds two tokens of one KV head, each layer's number in all places, and counts how often it is read.
    #[derive(Debug)]
    struct Fake {
        fails: bool,
        copies: Arc<AtomicUsize>,
    }

    const SHAPE: KvShape = KvShape { kv_heads: 1, d: 2, dtype: KvDtype::F32 };

    impl DeviceKv for Fake {
        fn shape(&self) -> KvShape {
            SHAPE
        }

        fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure> {
            self.copies.fetch_add(1, Ordering::Relaxed);
            let mut kv = LayerKv::new(SHAPE.dtype, 1, 2, 2);
            (0..2).for_each(|_| kv.append(&[layer as f32; 2], &[layer as f32; 2]));
            if self.fails { Err(DeviceFailure::new(format!("layer {layer} is gone"))) } else { Ok(kv) }
        }
    }

    fn prefix(fails: bool) -> (Arc<Prefix>, Arc<AtomicUsize>) {
        let copies = Arc::new(AtomicUsize::new(0));
        (
            Prefix::on_device(
                LayerSpecs::uniform(3, AttentionSpec::of_width(2)),
                2,
                Box::new(Fake { fails, copies: copies.clone() }),
            ),
            copies,
        )
    }

    #[test]
    fn what_a_device_holds_is_copied_where_and_when_it_is_looked_at() {
        let (prefix, copies) = prefix(false);
        assert_eq!((prefix.tokens(), prefix.layers(), prefix.shape()), (2, 3, SHAPE));
        assert_eq!(copies.load(Ordering::Relaxed), 0);
        for _ in 0..2 {
            assert_eq!(prefix.layer(2).unwrap().values.head(0).to_f32(), [2.0; 4]);
        }
        assert_eq!(copies.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_layers_come_to_the_host_or_none() {
        let host = |fails| Arc::into_inner(prefix(fails).0).unwrap().into_layers();
        let layers: Vec<Vec<f32>> = host(false).unwrap().iter().map(|kv| kv.keys.head(0).to_f32()).collect();
        assert_eq!(layers, [vec![0.0; 4], vec![1.0; 4], vec![2.0; 4]]);
        let Err(KvError::Unread { layer, tier, .. }) = host(true) else { panic!("a layer cannot be copied") };
        assert_eq!((layer, tier), (0, Tier::Device));
    }

    #[test]
    fn a_layer_that_cannot_be_copied_is_an_error_each_time_and_is_tried_once() {
        let (prefix, copies) = prefix(true);
        for _ in 0..2 {
            let error = prefix.layer(1).unwrap_err();
            assert_eq!(error, KvError::Unread { layer: 1, tier: Tier::Device, why: "layer 1 is gone".to_owned() });
            assert_eq!(
                error.to_string(),
                "the KV cache of layer 1 could not be read from the device's memory: layer 1 is gone"
            );
        }
        assert_eq!(copies.load(Ordering::Relaxed), 1);
    }
}
