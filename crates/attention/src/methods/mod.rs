//! The methods, one file each, and their registry.
//!
//! To add a method, write its file and add its [`MethodEntry`] to [`METHODS`]; or [`register`] it from the program that
//! uses this crate. Only the registry knows methods by name; shared code is in `scored`, `types` and `index`.

mod a_shape;
mod ada_kv;
mod bigbird;
mod double_sparsity;
mod duo_attention;
mod entry;
mod expected_attention;
mod external;
mod flexprefill;
mod forms;
mod full;
mod graph_search;
mod h2o;
mod hash_attention;
mod hip;
mod hyper_attention;
mod infllm;
mod knn;
pub mod kvpress;
mod lines;
mod loki;
mod lsh_bits;
mod magicpig;
mod minference;
mod oracle_sampling;
mod planes;
mod pqcache;
mod prefill_only;
mod pyramid_kv;
mod quest;
mod random;
mod reformer;
mod registry;
mod retrieval_attention;
mod rocketkv;
mod signatures;
mod snapkv;
mod sparq;
mod streaming_llm;
mod topk;
mod topk_norm;
mod topp;
mod tova;
mod twilight;
mod vattention;
mod vertical_slash;

pub use self::entry::{MethodEntry, Preset, SelectionPlace};
pub use self::hash_attention::Embeddings;
pub use self::magicpig::CollisionLaw;
pub use self::registry::{CALIBRATIONS, METHODS, POLICY_PARAMS, all, configure, find, register, starts_command};
pub use crate::spec::ParamInfo;

#[cfg(test)]
mod collector_tests;
#[cfg(test)]
mod index_key_tests;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod source_tests;
#[cfg(test)]
mod tail_tests;
#[cfg(test)]
mod tests;
