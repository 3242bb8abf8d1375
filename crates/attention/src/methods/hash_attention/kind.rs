//! Which nets there are: the settings that method, training and checkpoints share.

use rayon::prelude::*;

use crate::calibration::TextKind;
use crate::methods::Preset;
use crate::methods::hash_attention::net::SignNet;
use crate::spec::{ParamInfo, Params};
use spattn_base::error::UsageError;

pub(crate) const NAME: &str = "hash_attention";

/// Setting of an artefact that says which nets it holds.
pub(super) const NETS: &str = "nets";

/// Setting of an artefact that says how they were trained.
pub(super) const TRAINING: &str = "training";

/// What it says where they were trained elsewhere.
pub(super) const RELEASED: &str = "by the authors of HashAttention, as released";

/// Setting that says on what kind of text, and the parameter that asks for one.
pub(crate) const TEXT: &str = "text";

pub(super) fn text_name(text: TextKind) -> &'static str {
    match text {
        TextKind::General => "general",
        TextKind::Tasks => "tasks",
    }
}

pub(crate) const BITS: ParamInfo =
    ParamInfo { key: "bits", default: "32", about: "bits of a token's signature, 1 to 1024" };

pub(crate) const LABEL: ParamInfo = ParamInfo {
    key: "label",
    default: "a",
    about: "a | av: trained on the tokens largest by attention score, or by it times the value's norm",
};

pub(crate) const KEY_NETS: ParamInfo = ParamInfo {
    key: "key_nets",
    default: "kv_head",
    about: "kv_head | query_head: one net of the keys for a KV head, or one for each query head of its group",
};

/// Published settings of the method, which its trainings of the same name share.
pub(crate) const PRESETS: &[Preset] = &[
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
];

/// Which of the nets that can be trained: the same parameters say it to the method and to the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NetKind {
    pub(super) bits: usize,
    /// Whether tokens were ranked by `a·‖v‖` (Lemma 4.1), not by `a`.
    pub(super) by_norm: bool,
    /// Whether every query head has a net of the keys of its own.
    pub(super) by_query_head: bool,
}

impl NetKind {
    pub(super) const MOST_BITS: usize = 1024;

    pub(super) fn read(params: &mut Params) -> Result<Self, UsageError> {
        let bits = params.get_minor_within("bits", 32, 1..=Self::MOST_BITS)?;
        let by_norm = params.choice("label", &["a", "av"])? == "av";
        let by_query_head = params.choice(KEY_NETS.key, &["kv_head", "query_head"])? == "query_head";
        Ok(Self { bits, by_norm, by_query_head })
    }

    /// Nets of the keys of a KV head whose group has so many query heads.
    pub(super) fn key_nets(self, group: usize) -> usize {
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

/// Signatures of `x: [row][d]`, `[row][word]`, some rows at a time so that activations stay in the cache.
pub(super) fn in_blocks(net: &SignNet, x: &[f32], d: usize) -> Vec<u32> {
    const ROWS: usize = 512;
    x.par_chunks(ROWS * d).flat_map_iter(|rows| net.signatures(rows)).collect()
}
