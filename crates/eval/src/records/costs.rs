//! Densities and costs as published tables count them, and the number of tokens that a method keeps.

use serde::{Deserialize, Serialize};

use spattn_attention::cost::Cost;

/// Densities and costs as published tables count them: only over the layers that are not dense by policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedCosts {
    /// Tokens selected over tokens in context, without sink, window and the tail; for `full`, its density. `None` if a mask read the
    /// prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked_density: Option<f64>,
    /// FLOPs of scoring over those of full attention in these layers.
    pub cost1: f64,
    /// FLOPs of the gathered attention over those of full attention in these layers.
    pub cost2: f64,
    /// `cost2` without static tokens. `None` if `picked_density` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost2_picked: Option<f64>,
    /// `cost1` without projecting queries onto shared hyperplanes, which MagicPIG counts beside the model's linear layers.
    pub cost1_published: f64,
    /// Bytes of what all heads and layers share (hyperplanes), stored once.
    pub shared_bytes_resident: f64,
}

impl PublishedCosts {
    /// The costs counted in the layers that are not dense by policy.
    pub fn of(sparse: &Cost) -> Self {
        Self {
            picked_density: Some(sparse.picked_density()),
            cost1: sparse.cost1(),
            cost2: sparse.cost2(),
            cost2_picked: Some(sparse.cost2_picked()),
            cost1_published: sparse.cost1_published(),
            shared_bytes_resident: sparse.shared_resident(),
        }
    }
}

/// Bytes of keys and values that a step fetched over all layers, where the KV cache is kept on disk, or in host memory below a GPU.
///
/// From disk they are whole pages: what the method would fetch if it had the memory for pages to itself, which is empty at its first step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FetchedBytes {
    /// From pages in memory or, with `bus`, from the GPU's cache of tokens.
    pub memory: f64,
    /// From disk.
    pub disk: f64,
    /// Over the bus, from host memory to the GPU; `None` if nothing has to cross the bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<f64>,
}

impl FetchedBytes {
    /// Returns the share found in memory: of pages or, with `bus`, of bytes that would have crossed the bus otherwise. `None` if nothing
    /// was fetched, or if the GPU caches nothing.
    pub fn hits(&self) -> Option<f64> {
        let (all, keeps) = (self.memory + self.disk + self.bus.unwrap_or(0.0), self.bus.is_none() || self.memory > 0.0);
        (keeps && all > 0.0).then(|| self.memory / all)
    }
}

/// How many tokens' keys and values a method keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvTokens {
    /// Tokens kept at the end, mean over layers and KV heads. A KV head keeps what any query head of its group keeps.
    pub held: f64,
    /// All tokens in context.
    pub context: usize,
}

impl KvTokens {
    /// Whether any were evicted.
    pub fn is_evicting(&self) -> bool {
        self.held < self.context as f64
    }
}
