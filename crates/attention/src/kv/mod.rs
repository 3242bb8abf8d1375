//! Keys and values: the shared, immutable prefix and the private tail behind it.
//!
//! Layout is `[kv_head][token][d]`, so that a head's rows are contiguous. Storage is f32, f16 or
//! bf16; kernels widen as they read. Nothing here selects or attends.

pub use shape::{KvDtype, KvShape};
pub use source::{KvError, Tier};
pub use store::{KvStore, RowsMut};

use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::backend::active::KvHandle;

pub mod quantised;

mod shape;
mod source;
mod store;

/// The longest context that can be asked for, in tokens, and the greatest number of tokens that a parameter can name:
/// beyond every published model, and far from where sums of positions overflow.
pub const MOST_TOKENS: usize = 1 << 24;

/// Keys and values of one layer.
#[derive(Debug, Clone)]
pub struct LayerKv {
    /// Rotated keys.
    pub keys: KvStore,
    /// Values.
    pub values: KvStore,
}

impl LayerKv {
    /// Room for `capacity` tokens; grows beyond it if need be.
    pub fn new(dtype: KvDtype, kv_heads: usize, d: usize, capacity: usize) -> Self {
        Self { keys: KvStore::new(dtype, kv_heads, d, capacity), values: KvStore::new(dtype, kv_heads, d, capacity) }
    }

    /// `tokens` tokens of nothing but zeros.
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

    /// Keeps the first `tokens` tokens, and has room for `capacity` without growing.
    pub fn truncate(&mut self, tokens: usize, capacity: usize) {
        self.keys.truncate(tokens, capacity);
        self.values.truncate(tokens, capacity);
    }

    /// What it has in common with other layers.
    pub fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.keys.kv_heads(), d: self.keys.d(), dtype: self.keys.dtype() }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

/// Keys and values of a prefix in a device's memory.
pub trait DeviceKv: Any + Send + Sync + fmt::Debug {
    /// What its layers have in common.
    fn shape(&self) -> KvShape;

    /// Copies one layer to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_layer(&self, layer: usize) -> Result<LayerKv, DeviceFailure>;

    /// One layer where it is, if that is in a GPU's memory.
    fn on_gpu(&self, _layer: usize) -> Option<KvHandle<'_>> {
        None
    }
}

/// A device that did not do what it was asked for: one line that says what and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFailure(pub String);

/// The dense prefix of an example: every method and budget forks from the same one.
///
/// Where a device holds it, a layer is copied to the host when somebody looks at it there for the first time.
#[derive(Debug)]
pub struct Prefix {
    /// The layers on the host, or why one could not be copied there; empty until it is looked at.
    layers: Vec<OnceLock<Result<LayerKv, KvError>>>,
    tokens: usize,
    shape: KvShape,
    specs: LayerSpecs,
    device: Option<Box<dyn DeviceKv>>,
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
            layers: layers.into_iter().map(|layer| OnceLock::from(Ok(layer))).collect(),
            tokens,
            shape,
            specs,
            device: None,
        })
    }

    /// A prefix of `tokens` tokens that a device holds, of a model whose layers attend as `specs` say.
    pub fn on_device(specs: LayerSpecs, tokens: usize, device: Box<dyn DeviceKv>) -> Arc<Self> {
        let layers = (0..specs.layers()).map(|_| OnceLock::new()).collect();
        Arc::new(Self { layers, tokens, shape: device.shape(), specs, device: Some(device) })
    }

    /// Keys and values of one layer, on the host.
    ///
    /// # Errors
    /// If a device holds them and they cannot be copied. The copy is tried once: later calls return the same error.
    pub fn layer(&self, layer: usize) -> Result<&LayerKv, KvError> {
        let copy = || {
            let device = self.device.as_ref().expect("a prefix without a device holds all of its layers");
            device.copy_layer(layer).map_err(|failure| KvError { layer, tier: Tier::Device, why: failure.to_string() })
        };
        self.layers[layer].get_or_init(copy).as_ref().map_err(KvError::clone)
    }

    /// What a device holds of it.
    pub fn device(&self) -> Option<&dyn DeviceKv> {
        self.device.as_deref()
    }

    /// The layers of a prefix, to be gone on with: those that a device holds are copied, and what follows may be cut off
    /// and read anew.
    ///
    /// # Errors
    /// If a layer cannot be copied.
    pub fn into_layers(self) -> Result<Vec<LayerKv>, KvError> {
        (0..self.layers.len()).try_for_each(|layer| self.layer(layer).map(drop))?;
        self.layers.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    /// What a device holds of the prefix, to be gone on with.
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

    /// What its layers have in common.
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
            assert_eq!(prefix.layer(2).unwrap().values.head(0).to_f32(), [2.0; 4]);
        }
        assert_eq!(copies.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_layers_come_to_the_host_or_none() {
        let host = |fails| Arc::into_inner(prefix(fails).0).unwrap().into_layers();
        let layers: Vec<Vec<f32>> = host(false).unwrap().iter().map(|kv| kv.keys.head(0).to_f32()).collect();
        assert_eq!(layers, [vec![0.0; 4], vec![1.0; 4], vec![2.0; 4]]);
        let error = host(true).unwrap_err();
        assert_eq!((error.layer, error.tier), (0, Tier::Device));
    }

    #[test]
    fn a_layer_that_cannot_be_copied_is_an_error_each_time_and_is_tried_once() {
        let (prefix, copies) = prefix(true);
        for _ in 0..2 {
            let error = prefix.layer(1).unwrap_err();
            assert_eq!(error, KvError { layer: 1, tier: Tier::Device, why: "layer 1 is gone".to_owned() });
            assert_eq!(
                error.to_string(),
                "the KV cache of layer 1 could not be read from the device's memory: layer 1 is gone"
            );
        }
        assert_eq!(copies.load(Ordering::Relaxed), 1);
    }
}
