//! Keys and values: the shared, immutable prefix, and the tail behind it, which belongs to one sequence.
//!
//! The layout is `[kv_head][token][d]`, so that a head's rows are contiguous. Storage is f32, f16 or bf16; kernels widen numbers as they
//! read. Nothing here selects or attends.

pub use shape::{KvDtype, KvShape, MOST_TOKENS};
pub use store::{KvStore, RowsMut};

use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::backend::active::KvHandle;

pub mod quantised;

mod shape;
mod store;

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerKv {
    /// Rotated keys.
    pub keys: KvStore,
    /// Values.
    pub values: KvStore,
}

impl LayerKv {
    /// An empty layer with room for `capacity` tokens; it grows if needed.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { keys: KvStore::new(dtype, kv_heads, d, capacity), values: KvStore::new(dtype, kv_heads, d, capacity) }
    }

    /// `tokens` tokens of zeros.
    pub fn zeros(shape: KvShape, tokens: usize) -> Self {
        let zeros = KvStore::zeros(shape, tokens);
        Self { keys: zeros.clone(), values: zeros }
    }

    /// Appends one token; `key` and `value` are `[kv_heads][d]`.
    pub fn append(&mut self, key: &[f32], value: &[f32]) {
        self.keys.append(key);
        self.values.append(value);
    }

    /// Appends tokens; `keys` and `values` are `[token][kv_heads][d]`.
    pub fn append_rows(&mut self, keys: &[f32], values: &[f32]) {
        self.keys.append_rows(keys);
        self.values.append_rows(values);
    }

    /// Tokens stored.
    pub fn tokens(&self) -> usize {
        self.keys.tokens()
    }

    /// Keeps the first `tokens` tokens, with room for `capacity` tokens.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        self.keys.truncate(tokens, capacity);
        self.values.truncate(tokens, capacity);
    }

    /// The shape that all layers of a cache share.
    pub fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.keys.kv_heads(), d: self.keys.d(), dtype: self.keys.dtype() }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

/// Keys and values of a prefix in the memory of a device.
pub trait DeviceKv: Any + Send + Sync + fmt::Debug {
    /// The shape that all its layers share.
    fn shape(&self) -> KvShape;

    /// Copies one layer to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure>;

    /// A layer in GPU memory; `None` if the device is no GPU.
    fn on_gpu(&self, _layer: usize) -> Option<KvHandle<'_>> {
        None
    }
}

/// A failure of a device: one line that says what failed and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFailure(pub String);

/// The dense prefix of an example; all methods and budgets start from the same one.
///
/// If a device holds it, a layer is copied to the host when it is first read there.
#[derive(Debug)]
pub struct Prefix {
    layers: Vec<OnceLock<LayerKv>>,
    tokens: usize,
    shape: KvShape,
    specs: LayerSpecs,
    device: Option<Box<dyn DeviceKv>>,
    /// The first failure of the device.
    failure: OnceLock<DeviceFailure>,
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
        let shape = layers.first().map_or(KvShape { kv_heads: 0, d: 0, dtype: KvDtype::F32 }, LayerKv::shape);
        Arc::new(Self {
            layers: layers.into_iter().map(OnceLock::from).collect(),
            tokens,
            shape,
            specs,
            device: None,
            failure: OnceLock::new(),
        })
    }

    /// A prefix of `tokens` tokens that a device holds, of a model whose layers attend as `specs` say.
    pub fn on_device(specs: LayerSpecs, tokens: usize, device: Box<dyn DeviceKv>) -> Arc<Self> {
        let layers = (0..specs.layers()).map(|_| OnceLock::new()).collect();
        Arc::new(Self { layers, tokens, shape: device.shape(), specs, device: Some(device), failure: OnceLock::new() })
    }

    /// Keys and values of one layer, on the host. If a device holds them and the copy fails, they are zeros and [`failure`](Self::failure)
    /// is set: results that follow from them must not be used.
    pub fn layer(&self, layer: usize) -> &LayerKv {
        self.layers[layer].get_or_init(|| {
            let device = self.device.as_ref().expect("a prefix without a device holds all of its layers");
            device.copy_layer(layer).unwrap_or_else(|failure| {
                self.fail(failure);
                LayerKv::zeros(self.shape, self.tokens)
            })
        })
    }

    /// The first failure of the device that holds the prefix: a copy to the host, or the building of an index.
    pub fn failure(&self) -> Option<&DeviceFailure> {
        self.failure.get()
    }

    /// Records a failure of the device: results that follow from the prefix must not be used.
    pub fn fail(&self, failure: DeviceFailure) {
        // Only the first failure is kept.
        let _ = self.failure.set(failure);
    }

    /// The device that holds the prefix, if one does.
    pub fn device(&self) -> Option<&dyn DeviceKv> {
        self.device.as_deref()
    }

    /// Takes the layers of a prefix on the host, to append to them, or to cut them.
    pub fn into_layers(self) -> Vec<LayerKv> {
        self.layers.into_iter().map_while(OnceLock::into_inner).collect()
    }

    /// Takes the layers of a prefix; those on a device are copied to the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn into_host(self) -> Result<Vec<LayerKv>, DeviceFailure> {
        for layer in 0..self.layers.len() {
            self.layer(layer);
        }
        match self.failure() {
            Some(failure) => Err(failure.clone()),
            None => Ok(self.into_layers()),
        }
    }

    /// Takes the device that holds the prefix, if one does.
    pub fn into_device(self) -> Option<Box<dyn DeviceKv>> {
        self.device
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens in the prefix.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The shape that all layers share.
    pub fn shape(&self) -> KvShape {
        self.shape
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

    /// Holds two tokens of one KV head, whose numbers are all the layer's number, and counts how often it is read.
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
            if self.fails { Err(DeviceFailure(format!("layer {layer} is gone"))) } else { Ok(kv) }
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
            assert_eq!(prefix.layer(2).values.head(0).to_f32(), [2.0; 4]);
        }
        assert_eq!((copies.load(Ordering::Relaxed), prefix.failure()), (1, None));
    }

    #[test]
    fn all_layers_come_to_the_host_or_none() {
        let host = |fails| Arc::into_inner(prefix(fails).0).unwrap().into_host();
        let layers: Vec<Vec<f32>> = host(false).unwrap().iter().map(|kv| kv.keys.head(0).to_f32()).collect();
        assert_eq!(layers, [vec![0.0; 4], vec![1.0; 4], vec![2.0; 4]]);
        assert_eq!(host(true).unwrap_err().to_string(), "layer 0 is gone");
    }

    #[test]
    fn a_device_that_fails_is_told_of_and_leaves_zeros() {
        let (prefix, _) = prefix(true);
        assert_eq!(prefix.layer(1).keys.head(0).to_f32(), [0.0; 4]);
        prefix.layer(2);
        assert_eq!(prefix.failure().unwrap().to_string(), "layer 1 is gone");
    }
}
