//! Where keys and values of a prefix are, and how they are read.
//!
//! What lives here is the interface and the source in host memory; the one behind a device is in `copied`.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use crate::kv::device::DeviceKv;
use crate::kv::layer::LayerKv;
use crate::kv::page_ledger::Paging;
use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::{KvDtype, KvShape};
use crate::kv::tier::{KvError, Tier, TierBytes};
use spattn_kernels::Rows;

/// A KV head of a layer, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPlace {
    /// The layer.
    pub layer: usize,
    /// The KV head.
    pub kv_head: usize,
}

/// Sees keys and values `[token][d]` of consecutive tokens.
pub type VisitRows<'v> = dyn FnMut(Rows<'_>, Rows<'_>) + 'v;

/// What a read of a source took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes by tier, of a source that does not read [pages](KvSource::paging).
    pub bytes: TierBytes,
    /// Pages of the KV head that were requested, in that order, of a source that reads pages. Their bytes are not counted here: which
    /// pages are in memory depends on earlier requests.
    pub pages: Vec<Range<u32>>,
}

impl Fetched {
    /// Pages of a KV head.
    pub fn pages(pages: Vec<Range<u32>>) -> Self {
        Self { pages, ..Self::default() }
    }
}

impl From<TierBytes> for Fetched {
    fn from(bytes: TierBytes) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// The keys and values of a finished prefix, wherever they are.
///
/// Reading can fail, and then returns an error: no caller ever sees made-up numbers. Nobody may assume that all tokens of a
/// KV head lie in one slice, except where the source [lends](Self::lend) a layer.
///
/// # How a tier is added
///
/// Implement this trait for a type that says by [`tier`](Self::tier) where a layer is, reads tokens by
/// [`scan`](Self::scan) and [`gather`](Self::gather) in the storage type of [`shape`](Self::shape), bit by bit as they were
/// written, and returns a [`KvError`] with the tier of what it could not read. Make a prefix of it by
/// [`Prefix::from_source`](crate::kv::Prefix::from_source). A source with several tiers returns the bytes of each, or
/// the pages that it read through a cache of [pages](Self::paging); a new kind of memory is a new case of [`Tier`] and a new field of
/// [`TierBytes`]. The one that is used is in `disk`.
///
/// A source may also store something else than what was computed: the one in `quantised_kv` has codes in host memory, shows the numbers
/// that they stand for, and says by [`row_bytes`](Self::row_bytes) what they take.
pub trait KvSource: Send + Sync + fmt::Debug {
    /// What the layers have in common.
    fn shape(&self) -> KvShape;

    /// Number of layers.
    fn layers(&self) -> usize;

    /// Tokens in the prefix.
    fn tokens(&self) -> usize;

    /// Where a layer is; the slowest place, if its tokens are in several.
    fn tier(&self, layer: usize) -> Tier;

    /// A whole layer in host memory, borrowed; `None` if the source only reads what it is asked for.
    ///
    /// # Errors
    /// If the layer has to be brought there first, and cannot be read.
    fn lend(&self, _layer: usize) -> Result<Option<&LayerKv>, KvError> {
        Ok(None)
    }

    /// Borrows the keys and values `[token][d]` of a KV head in host memory; `None` if the source can only read them. By default, those of
    /// a [lent layer](Self::lend).
    ///
    /// # Errors
    /// Those of [`lend`](Self::lend).
    fn lend_head(&self, at: KvPlace) -> Result<Option<[Rows<'_>; 2]>, KvError> {
        let Some(kv) = self.lend(at.layer)? else { return Ok(None) };
        Ok(Some([kv.keys.head(at.kv_head), kv.values.head(at.kv_head)]))
    }

    /// What a token's key and value take where they are stored, of which costs are counted.
    fn row_bytes(&self) -> RowBytes {
        RowBytes::plain(self.shape())
    }

    /// How it keeps pages in memory, if it reads pages.
    fn paging(&self) -> Option<Paging> {
        None
    }

    /// Shows `visit` the keys and values of `tokens`, in order, in pieces of any length; returns what that took.
    ///
    /// # Errors
    /// If some of them cannot be read. `visit` may have seen earlier ones.
    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError>;

    /// Appends keys and values of `tokens`, in the order given, to `out`, which has one KV head; returns what that took.
    ///
    /// # Errors
    /// If some of them cannot be read. `out` may hold earlier ones.
    fn gather(&self, at: KvPlace, tokens: &[u32], out: &mut LayerKv) -> Result<Fetched, KvError> {
        let mut read = Fetched::default();
        for token in tokens {
            let token = *token as usize;
            let mut keep = |keys: Rows<'_>, values: Rows<'_>| {
                out.keys.extend(keys);
                out.values.extend(values);
            };
            let of_token = self.scan(at, token..token + 1, &mut keep)?;
            read.bytes += of_token.bytes;
            read.pages.extend(of_token.pages);
        }
        Ok(read)
    }

    /// What a device holds of it.
    fn device(&self) -> Option<&dyn DeviceKv> {
        None
    }

    /// The same, to be gone on with.
    fn into_device(self: Box<Self>) -> Option<Box<dyn DeviceKv>> {
        None
    }

    /// The source itself, for a prefill that continues in the same storage; `None` if the source cannot be continued so.
    fn into_any(self: Box<Self>) -> Option<Box<dyn Any>> {
        None
    }

    /// All layers in host memory, to be gone on with.
    ///
    /// # Errors
    /// If a layer cannot be read.
    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError>;
}

/// Layers in host memory, which are lent.
#[derive(Debug)]
pub(super) struct HostKv {
    layers: Vec<LayerKv>,
    shape: KvShape,
}

impl HostKv {
    /// Layers that all hold the same number of tokens.
    pub(super) fn new(layers: Vec<LayerKv>) -> Self {
        let nothing = KvShape { kv_heads: 0, d: 0, dtype: KvDtype::F32 };
        Self { shape: layers.first().map_or(nothing, LayerKv::shape), layers }
    }
}

impl KvSource for HostKv {
    fn shape(&self) -> KvShape {
        self.shape
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn tokens(&self) -> usize {
        self.layers.first().map_or(0, LayerKv::tokens)
    }

    fn tier(&self, _: usize) -> Tier {
        Tier::Host
    }

    fn lend(&self, layer: usize) -> Result<Option<&LayerKv>, KvError> {
        Ok(Some(&self.layers[layer]))
    }

    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        self.layers[at.layer].show(at.kv_head, tokens, visit);
        Ok(Fetched::default())
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        Ok(self.layers)
    }
}
