//! SmolLM3: Llama with some layers that are not rotated.

use serde_json::Value;

use super::block::BlockSpec;
use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, kinds_by_type, silu};
use super::layer_kind::LayerKind;
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static SMOLLM3: Family = Family {
    name: "SmolLM3",
    class: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    defaults: ClassDefaults {
        keys: r#"{
            "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
            "tie_word_embeddings": true
        }"#,
        rope_theta: 2_000_000.0,
    },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let attention_bias = keys.flag("attention_bias", false)?;
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: kinds(keys, sizes)?,
        local_rope: None,
        block: BlockSpec {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: keys.flag("mlp_bias", false)?,
            gate: silu(keys)?,
            ..BlockSpec::LLAMA
        },
    })
}

/// Layers that are not rotated may slide, if `use_sliding_window` is true.
fn kinds(keys: &Keys<'_>, sizes: &Sizes) -> Result<Vec<LayerKind>, UsageError> {
    let rotated = rotated_layers(keys, sizes)?;
    let slides = keys.flag("use_sliding_window", false)?;
    let window = keys.optional_size("sliding_window")?.filter(|_| slides);
    let kinds = kinds_by_type(keys, sizes, LayerKind { window, ..LayerKind::FULL }, |layer| !rotated[layer])?;
    let with_rope = |(kind, rotated): (LayerKind, bool)| LayerKind { rope: kind.rope.filter(|_| rotated), ..kind };
    Ok(kinds.into_iter().zip(rotated).map(with_rope).collect())
}

/// Which layers are rotated: those with a 1 in `no_rope_layers`; without that list, all except every `no_rope_layer_interval`th.
fn rotated_layers(keys: &Keys<'_>, sizes: &Sizes) -> Result<Vec<bool>, UsageError> {
    const LIST: &str = "no_rope_layers";
    let Some(list) = keys.get(LIST) else {
        let interval = keys.optional_size("no_rope_layer_interval")?.unwrap_or(4);
        return Ok((0..sizes.layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    let flag = |value: &Value| value.as_bool().or_else(|| value.as_u64().filter(|n| *n < 2).map(|n| n == 1));
    let flags: Option<Vec<bool>> = list.as_array().and_then(|list| list.iter().map(flag).collect());
    match flags {
        Some(flags) if flags.len() >= sizes.layers => Ok(flags[..sizes.layers].to_vec()),
        _ => Err(keys.error(LIST, "expected a list with a 1 or 0 for each layer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_rotated_by_list_or_interval() {
        let of = |text: &str| {
            let Ok(Value::Object(map)) = serde_json::from_str(text) else { unreachable!() };
            let sizes = Sizes { hidden_size: 8, layers: 4, heads: 1 };
            kinds(&Keys { file: "c", prefix: "", map: &map }, &sizes)
                .map(|kinds| kinds.iter().map(|kind| (kind.rope.is_some(), kind.window)).collect::<Vec<_>>())
        };
        let full = |rotated| (rotated, None);
        assert_eq!(of("{}").unwrap(), [true, true, true, false].map(full));
        assert_eq!(of(r#"{"no_rope_layer_interval": 2}"#).unwrap(), [true, false, true, false].map(full));
        let listed = r#"{"no_rope_layers": [0, 1, 1, 1, 0], "sliding_window": 9"#;
        assert_eq!(of(&format!("{listed}}}")).unwrap(), [false, true, true, true].map(full));
        let sliding = of(&format!("{listed}, \"use_sliding_window\": true}}")).unwrap();
        assert_eq!(sliding, [(false, Some(9)), full(true), full(true), full(true)]);
        let error = of(r#"{"no_rope_layers": [0, 2, 1, 1]}"#).unwrap_err().to_string();
        assert_eq!(error, "c: `no_rope_layers`: expected a list with a 1 or 0 for each layer");
    }
}
