//! What Gemma 2 and 3 share: four norms in each layer, whose weights are stored without 1, a GELU gate, scaled embeddings, and their
//! own attention scale.

use super::block::{AttentionScale, BlockSpec, Gate, TensorNames};
use super::family::Sizes;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

/// Names of tensors, without norms of heads.
pub(super) const NAMES: TensorNames = TensorNames {
    attention_post_norm: Some("post_attention_layernorm"),
    mlp_norm: Some("pre_feedforward_layernorm"),
    mlp_post_norm: Some("post_feedforward_layernorm"),
    ..TensorNames::LLAMA
};

/// The block, without soft caps.
pub(super) fn block(keys: &Keys<'_>, sizes: &Sizes, names: TensorNames) -> Result<BlockSpec, UsageError> {
    const BIDIRECTIONAL: &str = "use_bidirectional_attention";
    if keys.flag(BIDIRECTIONAL, false)? {
        return Err(keys.error(BIDIRECTIONAL, "attention to tokens that follow is not supported"));
    }
    let attention_bias = keys.flag("attention_bias", false)?;
    Ok(BlockSpec {
        names,
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        gate: gate(keys)?,
        norm_offset: 1.0,
        attention_scale: AttentionScale::InverseRoot(keys.optional_size("query_pre_attn_scalar")?.unwrap_or(256)),
        embedding_scale: (sizes.hidden_size as f64).sqrt() as f32,
        ..BlockSpec::LLAMA
    })
}

/// `hidden_activation`, which must be the approximation of GELU with tanh.
fn gate(keys: &Keys<'_>) -> Result<Gate, UsageError> {
    const KEY: &str = "hidden_activation";
    match keys.optional_text(KEY)?.unwrap_or("gelu_pytorch_tanh") {
        "gelu_pytorch_tanh" => Ok(Gate::GeluTanh),
        other => Err(keys.error(KEY, &format!("only `gelu_pytorch_tanh` is supported, got `{other}`"))),
    }
}

/// A soft cap: a positive number, if the key is present.
pub(super) fn cap(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, UsageError> {
    keys.get(key).map(|_| keys.positive(key).map(|cap| cap as f32)).transpose()
}
