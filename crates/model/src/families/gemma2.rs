//! Gemma 2: every other layer slides; products of queries and keys, and logits, are capped.

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::gemma::{NAMES, block, cap};
use super::keys_in_common::{head_dim_or_share, kinds_by_type, sliding_window};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static GEMMA2: Family = Family {
    name: "Gemma 2",
    class: "Gemma2ForCausalLM",
    model_type: "gemma2",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
            "tie_word_embeddings": true, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0
        }"#,
        rope_theta: 10_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let sliding = LayerKind { window: sliding_window(keys)?, ..LayerKind::FULL };
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: kinds_by_type(keys, sizes, sliding, |layer| layer.is_multiple_of(2))?,
        local_rope: None,
        block: BlockSpec {
            attention_cap: cap(keys, "attn_logit_softcapping")?,
            logit_cap: cap(keys, "final_logit_softcapping")?,
            ..block(keys, sizes, NAMES)?
        },
    })
}
