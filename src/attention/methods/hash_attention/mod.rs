//! `hash_attention`: nearest learned signatures (Desai et al. 2025, "HashAttention").
//!
//! A net for each KV head maps keys to bits, a net for each query head maps queries to bits, and the score
//! of a token is minus the Hamming distance of the two (eq. 1). Both see vectors after RoPE, as cached; as
//! in the paper's experiments (§4.1) the net of the keys does not see values. The authors' code keeps a
//! signature of each token for every query head; here it belongs to the KV head, so that it takes `bits`
//! bits a token whatever the group, and its net learns from all queries of the group.
//!
//! The nets are an artefact that `spattn calibrate` trains ([`collector`]); they belong to the model and
//! are not counted as index. The net of a step's query is run and read at every step, and counts.

mod collector;
mod net;
mod training;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rayon::prelude::*;

use self::net::SignNet;
use super::signatures::{Signatures, words_of};
use super::{Granularity, MethodEntry, ParamInfo, Params, Preset};
use crate::attention::artefact::{Artefact, ArtefactError, ModelShape};
use crate::attention::pick::{BASE, Choice, DELTA, EPSILON, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
use crate::attention::scored::Scored;
use crate::attention::scorer::{GroupQueries, Growth, NewTokens, Place, Scorer, ScorerCalibration, Segment};
use crate::attention::{Budget, HeadPrefix};
use crate::cost::Cost;
use crate::error::UsageError;

pub(super) use self::collector::CALIBRATION;

const NAME: &str = "hash_attention";

const BITS: ParamInfo = ParamInfo { key: "bits", default: "32", about: "bits of a token's signature, 1 to 1024" };

const LABEL: ParamInfo = ParamInfo {
    key: "label",
    default: "a",
    about: "a | av: trained on the tokens largest by attention score, or by it times the value's norm",
};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: NAME,
    reference: "HashAttention (Desai et al. 2024, arXiv:2412.14468)",
    about: "top-k by Hamming distance of learned bits (needs `spattn calibrate`)",
    params: &[
        BITS,
        LABEL,
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK_BY_ORDER,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("bits", "32"), ("ratio", "0.0625"), ("sink", "128"), ("local", "128"), ("tail", "indexed")],
            source: "HashAttention §5: 32 bits, 1/16 of the tokens, the first and last 128 kept, all layers sparse",
        },
        Preset {
            name: "repo",
            values: &[("bits", "32"), ("ratio", "0.25"), ("sink", "128"), ("local", "128"), ("tail", "indexed")],
            source: "HashAttention's code, README: heavy_budget 0.25, the first and last 128 kept, all layers sparse",
        },
    ],
    build: |params| {
        let kind = NetKind::read(params)?;
        let learned = LearnedSignatures { kind, nets: None };
        Ok(Scored::read(params, learned, Choice::by_order(Budget::Tokens(64)))?.method())
    },
};

/// Which of the nets that can be trained: the same parameters say it to the method and to the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NetKind {
    bits: usize,
    /// Whether tokens were ranked by `a·‖v‖` (Lemma 4.1), not by `a`.
    by_norm: bool,
}

impl NetKind {
    const MOST_BITS: usize = 1024;

    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let bits = params.get_minor_within("bits", 32, 1..=Self::MOST_BITS)?;
        Ok(Self { bits, by_norm: params.choice("label", &["a", "av"])? == "av" })
    }
}

impl std::fmt::Display for NetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bits={},label={}", self.bits, if self.by_norm { "av" } else { "a" })
    }
}

/// Minus the Hamming distance of learned signatures.
#[derive(Clone)]
struct LearnedSignatures {
    kind: NetKind,
    nets: Option<Nets>,
}

/// Nets of all heads, and the hash of the artefact they come from.
#[derive(Clone)]
struct Nets {
    layers: Arc<Vec<LayerNets>>,
    sha256: String,
}

/// Nets of one layer of the model.
struct LayerNets {
    /// One for each KV head.
    keys: Vec<SignNet>,
    /// One for each query head.
    queries: Vec<SignNet>,
}

impl Scorer for LearnedSignatures {
    type Index = Signatures;

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        Some(ScorerCalibration { kind: NAME, load: Self::with_nets })
    }

    fn index_key(&self) -> String {
        format!("{},artefact={}", self.kind, self.nets.as_ref().map_or("", |nets| &nets.sha256))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Signatures {
        let keys = prefix.keys.slice(prefix.candidates.clone(), prefix.d).to_f32();
        Signatures::new(&self.key_signatures(prefix.into(), &keys), words_of(self.kind.bits))
    }

    fn growth(&self) -> Growth {
        Growth::Free("signatures of new keys are appended")
    }

    fn empty(&self, _: Place, _: Option<&Signatures>) -> Signatures {
        Signatures::new(&[], words_of(self.kind.bits))
    }

    fn append(&self, signatures: &mut Signatures, kept: usize, new: &NewTokens<'_>) {
        signatures.replace_from(kept, &self.key_signatures(new.place, new.keys));
    }

    fn index_bytes(&self, signatures: &Signatures) -> usize {
        signatures.bytes()
    }

    fn scores(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, Signatures>, cost: &mut Cost) -> Vec<f32> {
        let group = queries.group();
        let nets = &self.layer(queries.layer).queries[queries.kv_head * group..][..group];
        cost.score_flops += nets.iter().map(SignNet::flops).sum::<u64>() * queries.rows as u64;
        cost.aux_bytes += nets.iter().map(SignNet::bytes).sum::<usize>() as u64;
        let signatures: Vec<u32> =
            nets.iter().enumerate().flat_map(|(h, net)| net.signatures(queries.head(h))).collect();
        segment.index.counted_scores(&signatures, cost)
    }
}

impl LearnedSignatures {
    /// Signatures of `keys: [token][d]`, `[token][word]`.
    fn key_signatures(&self, place: Place, keys: &[f32]) -> Vec<u32> {
        in_blocks(&self.layer(place.layer).keys[place.kv_head], keys, place.d)
    }

    fn with_nets(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        artefact.check_setting(collector::NET_KIND, &self.kind.to_string())?;
        let ModelShape { layers, heads, kv_heads, head_dim: d, .. } = artefact.info().model;
        let bits = self.kind.bits;
        let layer = |layer: usize| {
            Ok(LayerNets {
                keys: SignNet::read(artefact, layer, "key", kv_heads, d, bits)?,
                queries: SignNet::read(artefact, layer, "query", heads, d, bits)?,
            })
        };
        let layers = (0..layers).map(layer).collect::<Result<_, ArtefactError>>()?;
        let nets = Nets { layers: Arc::new(layers), sha256: artefact.sha256().to_owned() };
        Ok(Self { nets: Some(nets), ..self.clone() })
    }

    fn layer(&self, layer: usize) -> &LayerNets {
        &self.nets.as_ref().expect("a run calibrates its methods before it builds").layers[layer]
    }
}

/// Signatures of `x: [row][d]`, `[row][word]`, some rows at a time so that activations stay in the cache.
fn in_blocks(net: &SignNet, x: &[f32], d: usize) -> Vec<u32> {
    const ROWS: usize = 512;
    x.par_chunks(ROWS * d).flat_map_iter(|rows| net.signatures(rows)).collect()
}
