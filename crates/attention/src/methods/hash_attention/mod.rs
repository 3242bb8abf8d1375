//! `hash_attention`: nearest learned signatures (Desai et al. 2025, "HashAttention").
//!
//! A net maps keys to bits, a net for each query head maps queries to bits, and the score of a token is minus the
//! Hamming distance of the two (eq. 1). Both see vectors after RoPE, as cached; as in the paper's experiments (§4.1)
//! the net of the keys does not see values. The authors' code keeps a signature of each token for every query head
//! (`key_nets=query_head`: `bits` bits for each head of the group). With `key_nets=kv_head` it belongs to the KV head,
//! takes `bits` bits a token whatever the group, and its net learns from all queries of the group.
//!
//! The nets are an artefact that `spattn calibrate` trains ([`collector`]); they belong to the model and
//! are not counted as index. The net of a step's query is run and read at every step, and counts.

mod collector;
mod device;
mod embeddings;
mod import;
mod net;
mod training;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rayon::prelude::*;

pub(super) use self::collector::CALIBRATION;
pub use self::embeddings::Embeddings;
use self::net::SignNet;
use super::ParamInfo;
use super::signatures::{Signatures, Ties, words_of};
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape};
use crate::calibration::collector::TextKind;
use crate::cost::Cost;
use crate::device::scorer::DeviceScorer;
use crate::methods::entry::{MethodEntry, Preset, SEED};
use crate::scored::granularity::{Granularity, Reduce};
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, ScorerCalibration, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::Place;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, Params, Role};
use spattn_base::error::UsageError;

const NAME: &str = "hash_attention";

/// Setting of an artefact that says which nets it holds.
const NETS: &str = "nets";

/// Setting of an artefact that says how they were trained.
const TRAINING: &str = "training";
/// What it says where they were trained elsewhere.
const RELEASED: &str = "by the authors of HashAttention, as released";

/// Setting that says on what kind of text, and the parameter that asks for one.
const TEXT: &str = "text";

fn text_name(text: TextKind) -> &'static str {
    match text {
        TextKind::General => "general",
        TextKind::Tasks => "tasks",
    }
}

const BITS: ParamInfo = ParamInfo { key: "bits", default: "32", about: "bits of a token's signature, 1 to 1024" };

const LABEL: ParamInfo = ParamInfo {
    key: "label",
    default: "a",
    about: "a | av: trained on the tokens largest by attention score, or by it times the value's norm",
};

const KEY_NETS: ParamInfo = ParamInfo {
    key: "key_nets",
    default: "kv_head",
    about: "kv_head | query_head: one net of the keys for a KV head, or one for each query head of its group",
};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: NAME,
    role: Role::Method,
    reference: "HashAttention (Desai et al. 2024, arXiv:2412.14468)",
    about: "top-k by Hamming distance of learned bits (needs `spattn calibrate`)",
    params: &[
        BITS,
        LABEL,
        KEY_NETS,
        ParamInfo {
            key: "trained",
            default: "any",
            about: "any | tuned | paper | repo | released: preset of `spattn calibrate` that the nets have to be trained with, or \
                    nets of the authors (calibrate --import)",
        },
        ParamInfo {
            key: TEXT,
            default: "any",
            about: "any | general | tasks: text that the nets have to be trained on, running text or what is like the tasks",
        },
        ParamInfo { key: "seed", default: "1", about: "draw of the order of tokens at one distance" },
        Ties::INFO,
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
            values: &[
                ("bits", "32"),
                ("label", "av"),
                ("key_nets", "query_head"),
                ("trained", "paper"),
                ("ratio", "0.0625"),
                ("sink", "128"),
                ("local", "128"),
                ("tail", "indexed"),
            ],
            source: "HashAttention §4.2 and §5: nets trained on a·‖v‖ for each attention head, 32 bits, 1/16 of the \
                     tokens, the first and last 128 kept, all layers sparse",
        },
        Preset {
            name: "repo",
            values: &[
                ("bits", "32"),
                ("label", "a"),
                ("key_nets", "query_head"),
                ("trained", "repo"),
                ("ratio", "0.25"),
                ("sink", "128"),
                ("local", "128"),
                ("tail", "indexed"),
            ],
            source: "HashAttention's code, README and training script: nets trained on a for each query head, \
                     heavy_budget 0.25, the first and last 128 kept, all layers sparse",
        },
    ],
    build: |params| {
        let kind = NetKind::read(params)?;
        let trained = params.choice("trained", &["any", "tuned", "paper", "repo", "released"])?;
        let text = params.choice(TEXT, &["any", "general", "tasks"])?;
        let seed = params.get_minor_as("seed", 1u64, SEED)?;
        let ties = Ties::read(params, seed)?;
        let learned = LearnedSignatures { kind, trained, text, ties, nets: None };
        Ok(Scored::read(params, learned, Choice::by_order(Budget::Tokens(64)))?.method())
    },
};

/// Which of the nets that can be trained: the same parameters say it to the method and to the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NetKind {
    bits: usize,
    /// Whether tokens were ranked by `a·‖v‖` (Lemma 4.1), not by `a`.
    by_norm: bool,
    /// Whether every query head has a net of the keys of its own.
    by_query_head: bool,
}

impl NetKind {
    const MOST_BITS: usize = 1024;

    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let bits = params.get_minor_within("bits", 32, 1..=Self::MOST_BITS)?;
        let by_norm = params.choice("label", &["a", "av"])? == "av";
        let by_query_head = params.choice(KEY_NETS.key, &["kv_head", "query_head"])? == "query_head";
        Ok(Self { bits, by_norm, by_query_head })
    }

    /// Nets of the keys of a KV head whose group has so many query heads.
    fn key_nets(self, group: usize) -> usize {
        if self.by_query_head { group } else { 1 }
    }
}

impl std::fmt::Display for NetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bits={},label={}", self.bits, if self.by_norm { "av" } else { "a" })?;
        // Artefacts that say nothing of it have one net a KV head.
        if self.by_query_head { write!(f, ",{}=query_head", KEY_NETS.key) } else { Ok(()) }
    }
}

/// Minus the Hamming distance of learned signatures.
#[derive(Clone)]
struct LearnedSignatures {
    kind: NetKind,
    /// The preset of the training that is asked for, or `any`.
    trained: &'static str,
    /// The text of the training that is asked for, or `any`.
    text: &'static str,
    ties: Ties,
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
    /// For each KV head one, or one for each query head of its group.
    keys: Vec<Vec<SignNet>>,
    /// One for each query head.
    queries: Vec<SignNet>,
}

impl Scorer for LearnedSignatures {
    /// Signatures by each net of the keys.
    type Index = Vec<Signatures>;

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        Some(ScorerCalibration { kind: NAME, load: Self::with_nets })
    }

    fn index_key(&self) -> String {
        format!("{},artefact={}", self.kind, self.nets.as_ref().map_or("", |nets| &nets.sha256))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Vec<Signatures> {
        let keys = prefix.keys.slice(prefix.candidates.clone(), prefix.d).to_f32();
        let of_net = |words: Vec<u32>| Signatures::new(&words, words_of(self.kind.bits));
        self.key_signatures(prefix.into(), &keys).map(of_net).collect()
    }

    fn growth(&self) -> Growth {
        Growth::Free("signatures of new keys are appended")
    }

    fn empty(&self, place: Place, like: Option<&Vec<Signatures>>) -> Vec<Signatures> {
        let nets = self.layer(place.layer).keys[place.kv_head].len();
        let words = words_of(self.kind.bits);
        (0..nets).map(|net| Signatures::empty_behind(like.map(|like| &like[net]), words)).collect()
    }

    fn append(&self, index: &mut Vec<Signatures>, kept: usize, new: &NewTokens<'_>) {
        let of_nets = self.key_signatures(new.place, new.keys);
        index.iter_mut().zip(of_nets).for_each(|(signatures, new)| signatures.replace_from(kept, &new));
    }

    fn index_bytes(&self, index: &Vec<Signatures>) -> usize {
        index.iter().map(Signatures::bytes).sum()
    }

    fn scores(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, Vec<Signatures>>, cost: &mut Cost) -> Vec<f32> {
        let (group, of_heads) = (queries.group(), self.query_signatures(queries, cost));
        match segment.index.as_slice() {
            [shared] => shared.counted_scores(&of_heads.concat(), group, self.ties, cost),
            own => {
                let heads = own.iter().zip(of_heads);
                heads.flat_map(|(own, query)| own.counted_scores(&query, group, self.ties, cost)).collect()
            }
        }
    }

    /// Of a step distances are added before anything is written, where heads share a net of the keys.
    fn sums(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, Vec<Signatures>>, cost: &mut Cost) -> Vec<f32> {
        match segment.index.as_slice() {
            [shared] if queries.rows == 1 => {
                let signatures = self.query_signatures(queries, cost).concat();
                shared.counted_sums(&signatures, self.ties, cost)
            }
            _ => Reduce::Sum.apply(&self.scores(queries, segment, cost), queries.rows * segment.index[0].candidates()),
        }
    }

    fn device(&self) -> Option<&dyn DeviceScorer> {
        Some(self)
    }
}

impl LearnedSignatures {
    /// Signatures of all queries by the net of their head, `[head][row][word]`, with what that costs.
    fn query_signatures(&self, queries: &GroupQueries<'_>, cost: &mut Cost) -> Vec<Vec<u32>> {
        let group = queries.group();
        let nets = &self.layer(queries.layer).queries[queries.kv_head * group..][..group];
        cost.score_flops += nets.iter().map(SignNet::flops).sum::<u64>() * queries.rows as u64;
        cost.aux_bytes += nets.iter().map(SignNet::bytes).sum::<usize>() as u64;
        nets.iter().enumerate().map(|(h, net)| net.signatures(queries.head(h))).collect()
    }

    /// Of nets of a kind, however they were trained, and without them yet.
    fn of_kind(kind: NetKind) -> Self {
        Self { kind, trained: "any", text: "any", ties: Ties::First, nets: None }
    }

    /// Signatures of `keys: [token][d]` by each net of the keys, `[token][word]`.
    fn key_signatures(&self, place: Place, keys: &[f32]) -> impl Iterator<Item = Vec<u32>> {
        self.layer(place.layer).keys[place.kv_head].iter().map(move |net| in_blocks(net, keys, place.d))
    }

    /// That an artefact holds the nets that are asked for.
    fn check(&self, artefact: &Artefact) -> Result<(), ArtefactError> {
        if self.trained == "any" && self.text == "any" {
            return artefact.check_setting(NETS, &self.kind.to_string());
        }
        if artefact.setting(NETS)? != self.kind.to_string() {
            return artefact.check_setting(NETS, &self.asked());
        }
        let training = artefact.setting(TRAINING)?;
        if self.trained == "released" && training != RELEASED {
            return Err(artefact.not_imported(TRAINING, training));
        }
        let is_trained_so = match self.trained {
            "any" | "released" => true,
            preset => training == collector::training_of(preset),
        };
        if !is_trained_so {
            return artefact.check_setting(TRAINING, &self.asked());
        }
        match self.text == "any" || self.text == text_of(artefact) {
            true => Ok(()),
            false => Err(artefact.of_other_setting(TEXT, text_of(artefact), &self.asked())),
        }
    }

    /// What makes these nets, as `spattn calibrate` takes it: messages put it behind the method's name.
    fn asked(&self) -> String {
        let NetKind { bits, by_norm, by_query_head } = self.kind;
        let (label, nets) = (if by_norm { "av" } else { "a" }, if by_query_head { "query_head" } else { "kv_head" });
        let preset = match self.trained {
            "any" | "released" => String::new(),
            preset => format!("preset={preset},"),
        };
        let text = if self.text == "any" { String::new() } else { format!(",{TEXT}={}", self.text) };
        format!("{preset}bits={bits},label={label},{}={nets}{text}", KEY_NETS.key)
    }

    fn with_nets(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        self.check(artefact)?;
        let ModelShape { layers, heads, kv_heads, head_dim: d, .. } = artefact.info().model;
        let bits = self.kind.bits;
        let each = self.kind.key_nets(artefact.info().model.group());
        let layer = |layer: usize| {
            let keys = SignNet::read(artefact, layer, "key", kv_heads * each, d, bits)?;
            Ok(LayerNets {
                keys: keys.chunks_exact(each).map(<[SignNet]>::to_vec).collect(),
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

/// On what kind of text an artefact's nets were trained: what it says, or, of one that says nothing, what it names as its text.
fn text_of(artefact: &Artefact) -> &str {
    let is_of_rows = artefact.info().data.starts_with("training rows");
    artefact.setting(TEXT).unwrap_or(if is_of_rows { "tasks" } else { "not known" })
}

/// Signatures of `x: [row][d]`, `[row][word]`, some rows at a time so that activations stay in the cache.
fn in_blocks(net: &SignNet, x: &[f32], d: usize) -> Vec<u32> {
    const ROWS: usize = 512;
    x.par_chunks(ROWS * d).flat_map_iter(|rows| net.signatures(rows)).collect()
}
