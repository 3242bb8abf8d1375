//! Ministral 3: Mistral whose queries grow with their position.

use super::block::{BlockSpec, QueryGrowth};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::layer_kind::LayerKind;
use super::mistral;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static MINISTRAL3: Family = Family {
    name: "Ministral 3",
    class: "Ministral3ForCausalLM",
    model_type: MODEL_TYPE,
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5, "sliding_window": null,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1
            }
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    quantisation: None,
    read,
};

/// What `model_type` is for the text model, alone or wrapped.
pub(super) const MODEL_TYPE: &str = "ministral3";

/// Reads its keys, as Mistral's but for the growth of queries, which is in `rope_parameters`.
pub(super) fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    const ROPE: &str = "rope_parameters";
    let map = keys.object(ROPE)?.ok_or_else(|| keys.missing(ROPE))?;
    let prefix = format!("{}{ROPE}.", keys.prefix);
    let inner = Keys { file: keys.file, prefix: &prefix, map };
    let growth = QueryGrowth {
        beta: inner
            .optional_not_negative("llama_4_scaling_beta")?
            .ok_or_else(|| inner.missing("llama_4_scaling_beta"))? as f32,
        step: inner.size("original_max_position_embeddings")?,
    };
    let mistral = mistral::read(keys, sizes)?;
    Ok(FamilyConfig {
        // Where there is no such key, no layer slides, other than in Mistral.
        kinds: vec![LayerKind { window: keys.optional_size("sliding_window")?, ..LayerKind::FULL }; sizes.layers],
        block: BlockSpec { query_growth: Some(growth), ..mistral.block },
        ..mistral
    })
}
