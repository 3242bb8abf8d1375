//! Decoder families: one file each, which reads the keys of `config.json` that are the family's own, names its tensors, and describes
//! its layers as data ([`BlockSpec`]).
//!
//! Keys that all families share are read by [`config`](crate::config). What an engine computes of a description is the engine's business.
//! How a family is added: `docs/contributing/family.md`.

mod block;
mod family;
mod keys_in_common;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

pub use block::{BlockSpec, Gate, TensorNames};
pub use family::Family;
pub(crate) use family::Sizes;

/// All families, in the order in which they are listed to users.
pub static FAMILIES: &[&Family] = &[&llama::LLAMA, &mistral::MISTRAL, &qwen2::QWEN2, &qwen3::QWEN3];

/// The family of a class that `architectures` names.
pub(crate) fn of_class(class: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.class == class)
}
