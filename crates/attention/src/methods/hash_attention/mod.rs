//! `hash_attention`: selects by the Hamming distance of learned signatures (HashAttention, Desai et al. 2025).
//!
//! One net maps keys to bits, and a net for each query head maps queries to bits; a token's score is minus the Hamming
//! distance of the two (eq. 1). The index holds the signatures of the candidates' keys. A decode step runs the query
//! nets, whose FLOPs and bytes are counted, and compares the signatures.
//!
//! The nets see vectors after RoPE, as cached. As in the paper's experiments (§4.1), the key net does not see values.
//! The authors' code stores a signature of each token for every query head (`key_nets=query_head`: `bits` bits for each
//! head of the group). With `key_nets=kv_head` a token has one signature of `bits` bits for each KV head, by a net that
//! learns from all queries of the group. The nets are an artefact that `spattn calibrate` trains ([`collector`]); they
//! belong to the model and are not counted as index.

pub(super) use self::collector::CALIBRATION;
#[cfg(feature = "cuda")]
mod cuda;

pub use self::embeddings::Embeddings;

use super::ParamInfo;
use super::signatures::Ties;
use crate::methods::entry::{MethodEntry, SEED};
use crate::methods::hash_attention::kind::{BITS, KEY_NETS, LABEL, NAME, NetKind, PRESETS, TEXT};
use crate::methods::hash_attention::learned::LearnedSignatures;
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
use crate::{Budget, Role};

mod collector;

mod device;

mod embeddings;

mod import;
mod kind;
mod learned;

mod net;

mod training;

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
    presets: PRESETS,
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

#[cfg(test)]
mod tests;
