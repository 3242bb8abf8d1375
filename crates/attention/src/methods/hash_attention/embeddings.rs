//! Outputs of the nets for queries and keys, before signs are taken; for analysis, not for scoring.

use super::net::SignNet;
use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::methods::hash_attention::kind::{NETS, NetKind};
use crate::methods::hash_attention::learned::{LayerNets, LearnedSignatures};

/// Outputs of an artefact's nets, by layer and head.
pub struct Embeddings(LearnedSignatures);

impl NetKind {
    /// Parses the text of [`Display`](std::fmt::Display), as artefacts store it; `None` if it is not of that form.
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| text.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
        let kind = Self {
            bits: value("bits")?.parse().ok()?,
            by_norm: value("label")? == "av",
            by_query_head: value("key_nets") == Some("query_head"),
        };
        (kind.to_string() == text).then_some(kind)
    }
}

impl Embeddings {
    /// Reads the nets of an artefact of any kind.
    ///
    /// # Errors
    /// If its tensors are not those of the kind that it states.
    pub fn read(artefact: &Artefact) -> Result<Self, ArtefactError> {
        let said = artefact.setting(NETS)?;
        // Text that is not of this form differs from the text of any kind, so loading refuses it.
        let fallback = NetKind { bits: 32, by_norm: false, by_query_head: false };
        let kind = NetKind::parse(said).unwrap_or(fallback);
        LearnedSignatures::of_kind(kind).with_nets(artefact).map(Self)
    }

    /// Outputs `[bits]` of a query head's net for a rotated query `[d]`.
    pub fn query(&self, layer: usize, head: usize, query: &[f32]) -> Vec<f32> {
        self.layer(layer).queries[head].outputs(query)
    }

    /// Outputs `[token][bits]` for rotated keys `[token][d]` of the key net that is compared with query head `in_group`
    /// of a KV head's group.
    pub fn keys(&self, layer: usize, kv_head: usize, in_group: usize, keys: &[f32]) -> Vec<f32> {
        let nets: &[SignNet] = &self.layer(layer).keys[kv_head];
        nets[in_group.min(nets.len() - 1)].outputs(keys)
    }

    fn layer(&self, layer: usize) -> &LayerNets {
        self.0.layer(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_nets_are_read_as_they_are_written() {
        for (bits, by_norm, by_query_head) in [(32, false, false), (16, true, false), (64, false, true)] {
            let kind = NetKind { bits, by_norm, by_query_head };
            assert_eq!(NetKind::parse(&kind.to_string()), Some(kind));
        }
        for text in ["", "bits=32", "bits=x,label=a", "bits=32,label=a,other=1"] {
            assert_eq!(NetKind::parse(text), None, "{text}");
        }
    }
}
