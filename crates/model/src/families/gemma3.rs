//! Gemma 3: heads of q and k are normed; five of six layers slide and have their own rotation. Models that read images wrap the text
//! model.

use super::block::{BlockSpec, TensorNames};
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::gemma::{self, block, cap};
use super::keys_in_common::{head_dim_or_share, kinds_by_type, sliding_window};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use crate::config::rope::LocalRope;
use spattn_base::error::UsageError;

pub(super) static GEMMA3: Family = Family {
    name: "Gemma 3",
    class: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    defaults: DEFAULTS,
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

pub(super) static GEMMA3_WITH_IMAGES: Family = Family {
    name: "Gemma 3",
    class: "Gemma3ForConditionalGeneration",
    model_type: "gemma3",
    defaults: DEFAULTS,
    is_wrapper: true,
    has_mxfp4_experts: false,
    read,
};

const DEFAULTS: ClassDefaults = ClassDefaults {
    keys: r#"{
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "tie_word_embeddings": true
    }"#,
    rope_theta: 1_000_000.0,
};

const NAMES: TensorNames = TensorNames { qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"]), ..gemma::NAMES };

/// The reference has this key in its configuration, but does not apply it.
const UNUSED_CAP: &str = "attn_logit_softcapping";

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    if keys.get(UNUSED_CAP).is_some() {
        return Err(keys.error(UNUSED_CAP, "the reference implementation does not cap attention of this family"));
    }
    let pattern = keys.optional_size("sliding_window_pattern")?.unwrap_or(6);
    let sliding = LayerKind { window: sliding_window(keys)?, rope: Some(1), ..LayerKind::FULL };
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: kinds_by_type(keys, sizes, sliding, |layer| !(layer + 1).is_multiple_of(pattern))?,
        local_rope: Some(LocalRope { theta_key: Some("rope_local_base_freq"), theta: 10_000.0 }),
        block: BlockSpec { logit_cap: cap(keys, "final_logit_softcapping")?, ..block(keys, sizes, NAMES)? },
    })
}
