//! The description of a decoder family.

use std::fmt;

use serde::{Serialize, Serializer};

use super::block::BlockSpec;
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use crate::config::rope::LocalRope;
use spattn_base::error::UsageError;

/// A decoder family: which checkpoints belong to it, and how it reads the keys of `config.json` that differ between
/// families.
#[derive(Debug)]
pub struct Family {
    /// Its name in the configuration of a run. It is part of a run's identity, so it must not change.
    pub name: &'static str,
    /// The class that `architectures` names.
    pub class: &'static str,
    /// The `model_type` of this class.
    pub model_type: &'static str,
    /// The class's defaults for absent keys.
    pub(crate) defaults: ClassDefaults,
    /// Whether the class wraps a text model, whose keys are in `text_config`.
    pub(crate) is_wrapper: bool,
    /// Whether its experts may be in blocks of MXFP4.
    pub(crate) has_mxfp4_experts: bool,
    /// Reads the family's keys.
    pub(crate) read: fn(&Keys<'_>, &Sizes) -> Result<FamilyConfig, UsageError>,
}

/// The defaults of a class of the reference implementation for keys that `config.json` lacks.
#[derive(Debug)]
pub(crate) struct ClassDefaults {
    /// A JSON object with keys and their default values, as text.
    pub keys: &'static str,
    /// The base of the rotary embedding.
    pub rope_theta: f64,
}

impl ClassDefaults {
    /// The defaults shared by most classes, which are filled in where keys are read.
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

/// The result of reading a family's keys.
#[derive(Debug)]
pub(crate) struct FamilyConfig {
    /// Channels of a head.
    pub head_dim: usize,
    /// The kind of each layer, in order.
    pub kinds: Vec<LayerKind>,
    /// The RoPE table with number 1, that of sliding layers, if there is one.
    pub local_rope: Option<LocalRope>,
    /// How its layers are built.
    pub block: BlockSpec,
}

/// Families are identified by their class.
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
