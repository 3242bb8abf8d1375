//! Decoder families, each in its own file, which reads the family's own keys of `config.json`, names its tensors, and describes its
//! layers as data ([`BlockSpec`]).
//!
//! [`config`](crate::config) reads the keys that all families share. Engines decide how to compute what a description states. How to add
//! a family: `docs/contributing/family.md`.

mod block;
mod experts;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod gpt_oss;
mod granite;
mod keys_in_common;
mod layer_kind;
mod llama;
mod ministral3;
mod mistral;
mod mistral3;
mod mixtral;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod seed_oss;
mod smollm3;

pub use block::{AttentionScale, BlockSpec, Gate, QkNormOver, QueryGrowth, RopePairs, TensorNames};
pub use experts::{ExpertNames, ExpertWeights, Experts, StackedLayout, StackedNames};
pub use family::Family;
pub(crate) use family::Sizes;
pub use layer_kind::{LayerKind, LayerKinds};

/// All families, in the order in which they are listed to users.
pub static FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &mistral3::MISTRAL3,
    &mixtral::MIXTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3_moe::QWEN3_MOE,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gemma3::GEMMA3_WITH_IMAGES,
    &gpt_oss::GPT_OSS,
    &phi3::PHI3,
    &glm::GLM,
    &glm::GLM4,
    &granite::GRANITE,
    &olmo2::OLMO2,
    &olmo3::OLMO3,
    &smollm3::SMOLLM3,
    &seed_oss::SEED_OSS,
];

/// The family of a class in `architectures`.
pub(crate) fn of_class(class: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.class == class)
}
