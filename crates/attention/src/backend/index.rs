//! [`DeviceIndex`]: what a device form stores about the keys of one layer. [`PrefixStatsView`] and [`IndexLayer`]: what indexes are built
//! from besides keys and values.

use std::any::{Any, type_name};
use std::fmt;
use std::ops::Range;

use crate::types::attention_spec::SoftmaxScale;
use crate::types::budget::Context;
use crate::types::positions::Rotation;
use crate::types::prefix_head::SparseLayerRank;
use crate::{PromptHead, PromptStats};

/// The index of all KV heads of one layer, in the type of the device form that built it.
pub struct DeviceIndex {
    index: Box<dyn Any + Send + Sync>,
    host_bytes: usize,
}

impl DeviceIndex {
    /// Wraps an index, with the bytes that the host form's index of the same keys takes.
    pub fn new(index: impl Any + Send + Sync, host_bytes: usize) -> Self {
        Self { index: Box::new(index), host_bytes }
    }

    /// Bytes that the host form's index of the same keys takes, because auxiliary memory is reported alike wherever tokens are selected.
    pub fn host_bytes(&self) -> usize {
        self.host_bytes
    }

    /// Returns the index in its own type.
    ///
    /// # Panics
    /// If a form of another type built it.
    pub fn of<I: Any>(&self) -> &I {
        self.index.downcast_ref().unwrap_or_else(|| panic!("the device index is not of type {}", type_name::<I>()))
    }
}

impl fmt::Debug for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceIndex({} bytes on the host)", self.host_bytes)
    }
}

/// What an index may be built from besides keys and values.
#[derive(Clone, Copy)]
pub struct PrefixStatsView<'a> {
    /// Seed of indexes.
    pub seed: u64,
    /// Statistics gathered while the prompt was read; `None` if there are none.
    pub stats: Option<&'a PromptStats>,
}

/// A layer of a finished prefix, without its keys and values, which a device holds.
pub struct IndexLayer<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Rank of the layer among the sparse layers.
    pub depth: SparseLayerRank,
    /// The model's rotation; `None` if its positions cannot be moved.
    pub rotation: Option<&'a dyn Rotation>,
    /// Tokens of the prefix.
    pub tokens: usize,
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Tokens that may be selected; at least one.
    pub candidates: Range<usize>,
    /// The statistics that the method needs ([`Method::prompt_needs`](crate::Method::prompt_needs)).
    pub stats: Option<&'a PromptStats>,
}

impl<'a> IndexLayer<'a> {
    /// The statistics of a KV head.
    pub fn head(&self, kv_head: usize) -> PromptHead<'a> {
        self.stats.map_or_else(PromptHead::default, |stats| stats.head(self.layer, kv_head))
    }

    /// The context that ends with the prefix, for methods that spend their budget at the end of prefill.
    pub fn context(&self) -> Context {
        Context::new(self.tokens, &self.candidates).at(self.depth.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_in_the_type_that_it_was_built_in() {
        let index = DeviceIndex::new(vec![1u8, 2], 7);
        assert_eq!((index.of::<Vec<u8>>().as_slice(), index.host_bytes()), (&[1u8, 2][..], 7));
    }

    #[test]
    #[should_panic(expected = "the device index is not of type u8")]
    fn an_index_of_another_type_is_none() {
        DeviceIndex::new(3u16, 0).of::<u8>();
    }
}
