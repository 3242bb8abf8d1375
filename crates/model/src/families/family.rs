//! What a decoder family says of itself.

use std::fmt;

use serde::{Serialize, Serializer};

use super::block::BlockSpec;
use crate::config::keys::Keys;
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
    /// Reads its keys.
    pub(crate) read: fn(&Keys<'_>, &Sizes) -> Result<FamilyConfig, UsageError>,
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
    /// Tokens that a sliding layer sees, itself included; `None` if no layer slides.
    pub sliding_window: Option<usize>,
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
