//! How the layers of one model differ: which tokens a token sees, how queries and keys are rotated, and whether there are experts.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::config::rope::RopeConfig;

/// Which tokens a token sees in a layer, and which of the model's RoPE tables rotates queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// The number of last tokens that a token sees, including itself; `None` for all up to itself. At least 1.
    pub window: Option<usize>,
    /// The number of the RoPE table, from 0; `None` if queries and keys are not rotated.
    pub rope: Option<usize>,
    /// Whether the layer has the model's experts.
    pub experts: bool,
}

impl LayerKind {
    /// A layer without experts whose tokens see all tokens up to themselves, rotated by the model's first table.
    pub const FULL: Self = Self { window: None, rope: Some(0), experts: false };
}

/// The kind of each layer of a model, and the RoPE tables that it has besides the first.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKinds {
    /// In the order of the layers.
    pub kinds: Vec<LayerKind>,
    /// The RoPE tables from number 1 on. Number 0 is [`ModelConfig::rope`](crate::config::ModelConfig::rope).
    pub further_ropes: Vec<RopeConfig>,
}

/// The entries of a run's identity: none if all layers are [`LayerKind::FULL`], so that identities of earlier versions stay valid.
impl Serialize for LayerKinds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.kinds.iter().any(|kind| kind.window.is_some()) {
            map.serialize_entry("windows", &self.kinds.iter().map(|kind| kind.window).collect::<Vec<_>>())?;
        }
        if self.kinds.iter().any(|kind| kind.rope != LayerKind::FULL.rope) {
            map.serialize_entry("layer_ropes", &self.kinds.iter().map(|kind| kind.rope).collect::<Vec<_>>())?;
        }
        if self.kinds.iter().any(|kind| kind.experts) {
            map.serialize_entry("expert_layers", &self.kinds.iter().map(|kind| kind.experts).collect::<Vec<_>>())?;
        }
        if !self.further_ropes.is_empty() {
            map.serialize_entry("further_ropes", &self.further_ropes)?;
        }
        map.end()
    }
}
