//! The source of a prefix on a device. A layer is copied to host memory when the host first reads it, and is lent from
//! then on. A layer that is in host memory is lent without a copy.

use std::ops::Range;
use std::sync::OnceLock;

use crate::kv::device::DeviceKv;
use crate::kv::layer::LayerKv;
use crate::kv::shape::KvShape;
use crate::kv::source::{Fetched, KvPlace, KvSource, VisitRows};
use crate::kv::tier::{KvError, Tier};
use spattn_kernels::Rows;

/// A prefix that a device holds.
#[derive(Debug)]
pub(super) struct CopiedKv {
    device: Box<dyn DeviceKv>,
    tokens: usize,
    /// The layers on the host, or why one could not be copied there; empty until it is looked at.
    copies: Vec<OnceLock<Result<LayerKv, KvError>>>,
}

impl CopiedKv {
    /// A prefix of so many layers and tokens.
    pub(super) fn new(layers: usize, tokens: usize, device: Box<dyn DeviceKv>) -> Self {
        Self { device, tokens, copies: (0..layers).map(|_| OnceLock::new()).collect() }
    }

    /// The copy of a layer; copying is tried once.
    fn copy(&self, layer: usize) -> Result<&LayerKv, KvError> {
        let copy = || self.device.copy_layer(layer).map_err(|failure| self.unread(layer, failure.to_string()));
        self.copies[layer].get_or_init(copy).as_ref().map_err(KvError::clone)
    }

    fn unread(&self, layer: usize, why: String) -> KvError {
        KvError::Unread { layer, tier: self.device.tier(), why }
    }
}

impl KvSource for CopiedKv {
    fn shape(&self) -> KvShape {
        self.device.shape()
    }

    fn layers(&self) -> usize {
        self.copies.len()
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn tier(&self, _: usize) -> Tier {
        self.device.tier()
    }

    fn lend(&self, layer: usize) -> Result<Option<&LayerKv>, KvError> {
        self.copy(layer).map(Some)
    }

    fn lend_head(&self, at: KvPlace) -> Result<Option<[Rows<'_>; 2]>, KvError> {
        if let Some(rows) = self.device.on_host(at.layer, at.kv_head, self.tokens) {
            return rows.map(Some).map_err(|failure| self.unread(at.layer, failure.to_string()));
        }
        let kv = self.copy(at.layer)?;
        Ok(Some([kv.keys.head(at.kv_head), kv.values.head(at.kv_head)]))
    }

    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        let lent = self.lend_head(at)?;
        if let Some(rows) = lent {
            let [keys, values] = rows.map(|rows| rows.slice(tokens.clone(), self.device.shape().d));
            visit(keys, values);
        }
        Ok(Fetched::default())
    }

    fn device(&self) -> Option<&dyn DeviceKv> {
        Some(self.device.as_ref())
    }

    fn into_device(self: Box<Self>) -> Option<Box<dyn DeviceKv>> {
        Some(self.device)
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        (0..self.copies.len()).try_for_each(|layer| self.copy(layer).map(drop))?;
        self.copies.into_iter().filter_map(OnceLock::into_inner).collect()
    }
}
