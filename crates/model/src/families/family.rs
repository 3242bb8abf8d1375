//! What a decoder family says of itself.

use std::fmt;

use serde::{Serialize, Serializer};

use super::block::BlockSpec;
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use crate::config::rope::LocalRope;
use spattn_base::error::UsageError;

/// A decoder family: which checkpoints it is, and how it reads those keys of `config.json` that families differ in.
#[derive(Debug)]
pub struct Family {
    /// What the configuration of a run calls it. It is part of a run's identity, so it stays.
    pub name: &'static str,
    /// The class that `architectures` names.
    pub class: &'static str,
    /// What `model_type` is for this class.
    pub model_type: &'static str,
    /// What its class takes for keys that are not there.
    pub(crate) defaults: ClassDefaults,
    /// Whether the class wraps a text model, whose keys are in `text_config`.
    pub(crate) is_wrapper: bool,
    /// Whether blocks of MXFP4 are read of its experts.
    pub(crate) has_mxfp4_experts: bool,
    /// Reads its keys.
    pub(crate) read: fn(&Keys<'_>, &Sizes) -> Result<FamilyConfig, UsageError>,
}

/// What a class of the reference implementation takes for keys that `config.json` does not have.
#[derive(Debug)]
pub(crate) struct ClassDefaults {
    /// The text of a JSON object: keys and values.
    pub keys: &'static str,
    /// The base of the rotary embedding.
    pub rope_theta: f64,
}

impl ClassDefaults {
    /// Those that most classes have in common, which are filled in where keys are read.
    pub(crate) const COMMON: Self = Self { keys: "{}", rope_theta: 10_000.0 };
}

/// Sizes that are known before a family reads its keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
}

/// What a family makes of its keys.
#[derive(Debug)]
pub(crate) struct FamilyConfig {
    /// Channels of a head.
    pub head_dim: usize,
    /// The kind of each layer, in order.
    pub kinds: Vec<LayerKind>,
    /// The RoPE table number 1, if there is one: that of sliding layers.
    pub local_rope: Option<LocalRope>,
    /// How its layers are made.
    pub block: BlockSpec,
}

/// Families are told apart by their class.
impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.class == other.class
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class)
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}
