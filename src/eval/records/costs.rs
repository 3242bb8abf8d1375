//! Densities and costs as published tables count them, and the tokens that a method keeps.

use serde::{Deserialize, Serialize};

use spattn_attention::cost::Cost;

/// Densities and costs as published tables have them: of the layers that are not dense by policy alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedCosts {
    /// Tokens picked over tokens in context: sink, window and what follows the prefix left out; of `full`, its density.
    /// `None` where a mask read the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked_density: Option<f64>,
    /// FLOPs of scoring over those of full attention in these layers.
    pub cost1: f64,
    /// FLOPs of the gathered attention over those of full attention in these layers.
    pub cost2: f64,
    /// The same without static tokens. `None` where `picked_density` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost2_picked: Option<f64>,
    /// `cost1` without projecting queries onto shared hyperplanes, which MagicPIG counts beside the model's linear layers.
    pub cost1_published: f64,
    /// Bytes of what all heads and layers share (hyperplanes), held once.
    pub shared_bytes_resident: f64,
}

impl PublishedCosts {
    /// Of what was counted in the layers that are not dense by policy.
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

/// Tokens whose keys and values a method keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvTokens {
    /// Those it would have to keep in the end, mean over layers and KV heads: what any query head of a group keeps, its KV
    /// head keeps.
    pub held: f64,
    /// All in context.
    pub context: usize,
}

impl KvTokens {
    /// Whether any were let go.
    pub fn is_evicting(&self) -> bool {
        self.held < self.context as f64
    }
}
