//! Keys of `config.json` that several families read alike.

use serde_json::Value;

use super::block::Gate;
use super::family::Sizes;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

/// `hidden_act`, which has to be `silu`.
pub(super) fn silu(keys: &Keys<'_>) -> Result<Gate, UsageError> {
    match keys.optional_text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Gate::Silu),
        other => Err(keys.error("hidden_act", &format!("only `silu` is supported, got `{other}`"))),
    }
}

/// `head_dim`, or an equal share of the hidden size for each head.
pub(super) fn head_dim_or_share(keys: &Keys<'_>, sizes: &Sizes) -> Result<usize, UsageError> {
    if let Some(stated) = keys.optional_size("head_dim")? {
        return Ok(stated);
    }
    let Sizes { hidden_size, heads, .. } = *sizes;
    if !hidden_size.is_multiple_of(heads) {
        let what =
            format!("{hidden_size} is not a multiple of `num_attention_heads` ({heads}), and there is no `head_dim`");
        return Err(keys.error("hidden_size", &what));
    }
    Ok(hidden_size / heads)
}

/// `sliding_window`: `None` if it is null, 4096 if it is absent, as in the reference implementation.
pub(super) fn sliding_window(keys: &Keys<'_>) -> Result<Option<usize>, UsageError> {
    const ABSENT: usize = 4096;
    match keys.map.get("sliding_window") {
        None => Ok(Some(ABSENT)),
        Some(Value::Null) => Ok(None),
        Some(_) => keys.optional_size("sliding_window"),
    }
}

/// As [`sliding_window`], where `use_sliding_window` is true and a layer slides; Qwen2 and Qwen3 have this switch.
pub(super) fn switched_sliding_window(keys: &Keys<'_>, sizes: &Sizes) -> Result<Option<usize>, UsageError> {
    let window = sliding_window(keys)?;
    let slides = keys.flag("use_sliding_window", false)? && a_layer_slides(keys, sizes.layers)?;
    Ok(window.filter(|_| slides))
}

/// Whether any layer slides, by `layer_types` or else by `max_window_layers`.
fn a_layer_slides(keys: &Keys<'_>, layers: usize) -> Result<bool, UsageError> {
    match keys.get("layer_types") {
        None => Ok(keys.optional_count("max_window_layers")?.unwrap_or(28) < layers),
        Some(Value::Array(types)) => {
            let known = |t: &Value| matches!(t.as_str(), Some("full_attention" | "sliding_attention"));
            if let Some(other) = types.iter().find(|t| !known(t)) {
                return Err(keys.error("layer_types", &format!("{other} is not supported")));
            }
            Ok(types.iter().any(|t| t == "sliding_attention"))
        }
        Some(_) => Err(keys.error("layer_types", "expected a list of names")),
    }
}
