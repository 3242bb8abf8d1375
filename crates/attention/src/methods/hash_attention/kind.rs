//! The kinds of nets: settings that the method, training and checkpoints share.

use rayon::prelude::*;

use crate::calibration::TextKind;
use crate::methods::Preset;
use crate::methods::hash_attention::net::SignNet;
use crate::spec::{ParamInfo, Params};
use spattn_base::error::UsageError;

pub(crate) const NAME: &str = "hash_attention";

/// Setting of an artefact: the kind of its nets.
pub(super) const NETS: &str = "nets";

/// Setting of an artefact: how its nets were trained.
pub(super) const TRAINING: &str = "training";

/// Value of [`TRAINING`] for nets that the authors trained.
pub(super) const RELEASED: &str = "by the authors of HashAttention, as released";

/// Setting of an artefact: the kind of text its nets were trained on. Also the parameter that asks for one.
pub(crate) const TEXT: &str = "text";

pub(super) fn text_name(text: TextKind) -> &'static str {
    match text {
        TextKind::General => "general",
        TextKind::Tasks => "tasks",
    }
}

pub(crate) const BITS: ParamInfo =
    ParamInfo { key: "bits", default: "32", about: "bits of a token's signature, 1 to 1024; kept in words of 32" };

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

/// Published settings of the method; trainings of the same name share some of them.
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

/// The kind of nets, which the same parameters give to the method and to the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NetKind {
    pub(super) bits: usize,
    /// Whether tokens were ranked by `a·‖v‖` (Lemma 4.1), not by `a`.
    pub(super) by_norm: bool,
    /// Whether every query head has a key net of its own.
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

    /// Number of key nets of a KV head with `group` query heads.
    pub(super) fn key_nets(self, group: usize) -> usize {
        if self.by_query_head { group } else { 1 }
    }
}

impl std::fmt::Display for NetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bits={},label={}", self.bits, if self.by_norm { "av" } else { "a" })?;
        // Artefacts without this setting have one key net for each KV head.
        if self.by_query_head { write!(f, ",{}=query_head", KEY_NETS.key) } else { Ok(()) }
    }
}

/// Signatures of `x: [row][d]`, `[row][word]`. Computed in blocks of rows, whose activations fit into the processor's cache.
pub(super) fn in_blocks(net: &SignNet, x: &[f32], d: usize) -> Vec<u32> {
    const ROWS: usize = 512;
    x.par_chunks(ROWS * d).flat_map_iter(|rows| net.signatures(rows)).collect()
}
