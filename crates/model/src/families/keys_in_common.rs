//! Keys of `config.json` that several families read in the same way.

use serde_json::Value;

use super::block::Gate;
use super::family::Sizes;
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use crate::config::rope::rotated_share;
use spattn_base::error::UsageError;

/// `hidden_act`, which must be `silu`.
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

/// `num_experts_per_tok`, or `default` if absent: how many of `count` experts a token passes through.
pub(super) fn experts_used(keys: &Keys<'_>, count: usize, default: usize) -> Result<usize, UsageError> {
    const KEY: &str = "num_experts_per_tok";
    let used = keys.optional_size(KEY)?.unwrap_or(default);
    match used <= count {
        true => Ok(used),
        false => Err(keys.error(KEY, &format!("{used} of {count} experts cannot be used"))),
    }
}

/// The number of rotated channels of a head by `partial_rotary_factor`; `None` for all channels.
pub(super) fn rotated(keys: &Keys<'_>, head_dim: usize) -> Result<Option<usize>, UsageError> {
    let Some((key, share)) = rotated_share(keys)?.filter(|(_, share)| *share != 1.0) else { return Ok(None) };
    let channels = (head_dim as f64 * share) as usize;
    match channels > 0 && channels.is_multiple_of(2) {
        true => Ok(Some(channels)),
        false => Err(keys.error(&key, &format!("{channels} of {head_dim} channels cannot be rotated in pairs"))),
    }
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

/// The kinds of layers of Qwen2 and Qwen3, whose windows `use_sliding_window` switches on: sliding layers are those in `layer_types`, or
/// else those from number `max_window_layers` on.
pub(super) fn switched_kinds(keys: &Keys<'_>, sizes: &Sizes) -> Result<Vec<LayerKind>, UsageError> {
    let slides = keys.flag("use_sliding_window", false)?;
    let Some(window) = sliding_window(keys)?.filter(|_| slides) else {
        return Ok(vec![LayerKind::FULL; sizes.layers]);
    };
    let first = keys.optional_count("max_window_layers")?.unwrap_or(28);
    let sliding = LayerKind { window: Some(window), ..LayerKind::FULL };
    kinds_by_type(keys, sizes, sliding, |layer| layer >= first)
}

/// The kinds of layers by `layer_types` or, if that is absent, by whether `slides` is true for a layer. Sliding layers are of the kind
/// `sliding`; the others see all tokens and use the model's first RoPE table.
pub(super) fn kinds_by_type(
    keys: &Keys<'_>,
    sizes: &Sizes,
    sliding: LayerKind,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<LayerKind>, UsageError> {
    const KEY: &str = "layer_types";
    let kind = |slides: bool| if slides { sliding } else { LayerKind::FULL };
    let types = match keys.get(KEY) {
        None => return Ok((0..sizes.layers).map(|layer| kind(slides(layer))).collect()),
        Some(Value::Array(types)) => types,
        Some(_) => return Err(keys.error(KEY, "expected a list of names")),
    };
    if types.len() != sizes.layers {
        let what = format!("{} layers are listed, and `num_hidden_layers` is {}", types.len(), sizes.layers);
        return Err(keys.error(KEY, &what));
    }
    let of_type = |stated: &Value| match stated.as_str() {
        Some("full_attention") => Ok(kind(false)),
        Some("sliding_attention") => Ok(kind(true)),
        _ => Err(keys.error(KEY, &format!("{stated} is not supported"))),
    };
    types.iter().map(of_type).collect()
}
