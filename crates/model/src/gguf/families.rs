//! The decoder families that GGUF files name (`general.architecture`), one row each.
//!
//! A row states what llama.cpp's converter does to the tensors of a family, what it calls them, and which keys of a `config.json` follow
//! from the keys of a file. Where files state nothing, llama.cpp's own defaults for the family are used.

use serde_json::{Map, Value, json};

use super::files::GgufFiles;
use super::metadata::Metadata;
use spattn_base::error::UsageError;

/// A family.
pub(super) struct Architecture {
    /// Its name in files, which is also the prefix of its settings' keys.
    pub name: &'static str,
    /// The class in `config.json`, unless [`keys`](Self::keys) names another.
    pub class: &'static str,
    /// Whether the converter permutes the rows of the query and key matrices.
    pub permutes: bool,
    /// The number that the converter adds to all norms.
    pub norm_offset: f32,
    /// Whether heads may be partly rotated.
    pub rotates_parts: bool,
    /// Whether a file may have tensors with factors of RoPE's frequencies for short and for long prompts.
    pub has_rope_factors: bool,
    /// Tensors of a layer, besides those that most families have: the name in files, and the Hugging Face name.
    pub layer: &'static [(&'static str, &'static str)],
    /// Tensors of experts, if the family may have any.
    pub experts: Option<ExpertStacks>,
    /// Keys of this family alone, which [`keys`](Self::keys) reads.
    pub own: &'static [&'static str],
    /// Writes the family's own keys of a `config.json`, replacing those that all families share.
    pub keys: fn(&Stated<'_>, &mut Map<String, Value>) -> Result<(), UsageError>,
}

/// The stacks of a layer's experts (`ffn_gate_exps`, `ffn_up_exps`, `ffn_down_exps`), with the names of single experts in a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct ExpertStacks {
    /// The prefix of an expert's names, up to its number.
    pub each: &'static str,
    /// The gate, what it gates, and the projection after the gate.
    pub parts: [&'static str; 3],
    /// The router, which files call `ffn_gate_inp`.
    pub router: &'static str,
}

/// The names of the stacks in files, in the order of [`ExpertStacks::parts`].
pub(super) const STACKS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// The contents of a file.
pub(super) struct Stated<'a> {
    /// The name of the family.
    pub name: &'static str,
    /// The keys.
    pub metadata: &'a Metadata<'a>,
    /// The tensors.
    pub files: &'a GgufFiles,
    /// Hidden size, layers, query heads and channels of a head.
    pub sizes: [usize; 4],
}

impl Stated<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn size(&self, name: &str) -> Result<usize, UsageError> {
        self.metadata.size(&self.key(name))
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, UsageError> {
        self.metadata.optional_size(&self.key(name))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, UsageError> {
        self.metadata.optional_number(&self.key(name))
    }

    fn has(&self, tensor: &str) -> bool {
        self.files.tensors().contains_key(tensor)
    }

    /// The numbers of a tensor that is part of the configuration.
    fn numbers(&self, tensor: &str) -> Result<Option<Vec<f32>>, UsageError> {
        let Some(place) = self.files.tensors().get(tensor) else { return Ok(None) };
        let read = self.files.read(place).map_err(|e| UsageError::new(format!("{}: {e}", self.files.label())))?;
        Ok(Some(read.to_f32()))
    }
}

/// The basis of most rows: Llama without the properties of Llama alone.
const LLAMA_LIKE: Architecture = Architecture {
    name: "",
    class: "",
    permutes: false,
    norm_offset: 0.0,
    rotates_parts: false,
    has_rope_factors: false,
    layer: &[("ffn_norm", "post_attention_layernorm")],
    experts: None,
    own: &[],
    keys: |_, _| Ok(()),
};

/// Norms after both branches as well as before them.
const SANDWICH: &[(&str, &str)] = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// All families that can be read. Files of Mistral and Mixtral are named `llama`.
pub(super) static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "llama",
        class: "LlamaForCausalLM",
        permutes: true,
        experts: Some(ExpertStacks {
            each: "block_sparse_moe.experts.",
            parts: ["w1", "w3", "w2"],
            router: "block_sparse_moe.gate",
        }),
        own: &["expert_count", "expert_used_count"],
        keys: mixtral,
        ..LLAMA_LIKE
    },
    Architecture { name: "qwen2", class: "Qwen2ForCausalLM", keys: qwen2, ..LLAMA_LIKE },
    Architecture { name: "qwen3", class: "Qwen3ForCausalLM", ..LLAMA_LIKE },
    Architecture {
        name: "qwen3moe",
        class: "Qwen3MoeForCausalLM",
        experts: Some(ExpertStacks {
            each: "mlp.experts.",
            parts: ["gate_proj", "up_proj", "down_proj"],
            router: "mlp.gate",
        }),
        own: &["expert_count", "expert_used_count", "expert_feed_forward_length"],
        keys: qwen3_moe,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "mistral3",
        class: "Mistral3ForConditionalGeneration",
        permutes: true,
        own: &["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"],
        keys: mistral3,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "phi3",
        class: "Phi3ForCausalLM",
        rotates_parts: true,
        has_rope_factors: true,
        layer: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        own: &["rope.scaling.attn_factor"],
        keys: phi3,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "gemma2",
        class: "Gemma2ForCausalLM",
        norm_offset: 1.0,
        layer: SANDWICH,
        own: &["attn_logit_softcapping", "final_logit_softcapping"],
        keys: gemma2,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "gemma3",
        class: "Gemma3ForCausalLM",
        norm_offset: 1.0,
        layer: SANDWICH,
        own: &["final_logit_softcapping", "attention.sliding_window_pattern", "rope.freq_base_swa"],
        keys: gemma3,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "granite",
        class: "GraniteForCausalLM",
        permutes: true,
        own: &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
        keys: granite,
        ..LLAMA_LIKE
    },
    Architecture {
        name: "glm4",
        class: "Glm4ForCausalLM",
        rotates_parts: true,
        layer: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
        ..LLAMA_LIKE
    },
    Architecture {
        name: "olmo2",
        class: "Olmo2ForCausalLM",
        layer: &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")],
        own: &["attention.sliding_window_pattern", "rope.freq_base_swa", "rope.scaling.yarn_attn_factor"],
        keys: olmo,
        ..LLAMA_LIKE
    },
    Architecture { name: "smollm3", class: "SmolLM3ForCausalLM", permutes: true, keys: smollm3, ..LLAMA_LIKE },
    Architecture {
        name: "seed_oss",
        class: "SeedOssForCausalLM",
        layer: &[("post_attention_norm", "post_attention_layernorm")],
        keys: seed_oss,
        ..LLAMA_LIKE
    },
];

/// Adds keys to a config.
fn put(config: &mut Map<String, Value>, keys: Value) {
    if let Value::Object(keys) = keys {
        config.extend(keys);
    }
}

/// Llama's files hold a Mixtral model if there are experts.
fn mixtral(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    if let Some(count) = stated.optional_size("expert_count")?.filter(|count| *count > 0) {
        put(
            config,
            json!({
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": count,
                "num_experts_per_tok": stated.size("expert_used_count")?,
            }),
        );
    }
    Ok(())
}

/// The class has biases on queries, keys and values whatever this key says.
fn qwen2(_: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    put(config, json!({ "attention_bias": false }));
    Ok(())
}

/// All layers have experts, whose weights add up to 1.
fn qwen3_moe(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    put(
        config,
        json!({
            "num_experts": stated.size("expert_count")?,
            "num_experts_per_tok": stated.size("expert_used_count")?,
            "moe_intermediate_size": stated.size("expert_feed_forward_length")?,
            "norm_topk_prob": true,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }),
    );
    Ok(())
}

/// The wrapper, with Mistral or Ministral 3 in it.
fn mistral3(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    let mut text = config.clone();
    text.remove("architectures");
    match stated.number("attention.temperature_scale")? {
        None => put(&mut text, json!({ "model_type": "mistral" })),
        Some(beta) => {
            let mut rope = text.remove("rope_scaling").unwrap_or_else(|| json!({}));
            let multiplier = stated.number("rope.scaling.yarn_log_multiplier")?;
            rope["rope_theta"] = text.remove("rope_theta").unwrap_or_default();
            rope["llama_4_scaling_beta"] = json!(beta);
            // These two cancel each other in all published models.
            rope["mscale"] = json!(multiplier);
            rope["mscale_all_dim"] = json!(multiplier);
            put(&mut text, json!({ "model_type": "ministral3", "rope_parameters": rope }));
        }
    }
    let keep = ["architectures", "tie_word_embeddings", "torch_dtype", "bos_token_id", "eos_token_id"];
    config.retain(|key, _| keep.contains(&key.as_str()));
    put(config, json!({ "text_config": text }));
    Ok(())
}

/// The factors for long and short prompts are tensors; the factor on cos and sin follows from the lengths.
fn phi3(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    const FACTOR: &str = "rope.scaling.attn_factor";
    let original = stated.optional_size("rope.scaling.original_context_length")?;
    put(config, json!({ "original_max_position_embeddings": original }));
    let factors = [stated.numbers("rope_factors_long.weight")?, stated.numbers("rope_factors_short.weight")?];
    let [Some(long), Some(short)] = factors else { return Ok(()) };
    put(config, json!({ "rope_scaling": { "type": "longrope", "long_factor": long, "short_factor": short } }));
    let (Some(original), Some(factor)) = (original, stated.number(FACTOR)?) else { return Ok(()) };
    let scale = stated.size("context_length")? as f64 / original as f64;
    let follows = if scale > 1.0 { (1.0 + scale.ln() / (original as f64).ln()).sqrt() } else { 1.0 };
    match (factor - follows).abs() < 1e-4 {
        true => Ok(()),
        false => {
            Err(stated.metadata.error(&stated.key(FACTOR), &format!("{factor}: by its lengths it is {follows:.4}")))
        }
    }
}

fn gemma2(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    // The model with 46 layers has a scale that does not follow from the width of its heads.
    gemma(stated, config, 46);
    put(
        config,
        json!({
            "attn_logit_softcapping": stated.number("attn_logit_softcapping")?,
            "final_logit_softcapping": stated.number("final_logit_softcapping")?,
        }),
    );
    Ok(())
}

fn gemma3(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    gemma(stated, config, 62);
    put(
        config,
        json!({
            "final_logit_softcapping": stated.number("final_logit_softcapping")?,
            "sliding_window_pattern": stated.optional_size("attention.sliding_window_pattern")?.unwrap_or(6),
            "rope_local_base_freq": stated.number("rope.freq_base_swa")?.unwrap_or(10_000.0),
        }),
    );
    Ok(())
}

/// The model with 27 billion weights, recognised by its number of layers, has its own attention scale.
fn gemma(stated: &Stated<'_>, config: &mut Map<String, Value>, layers_of_27b: usize) {
    let [hidden, layers, heads, head_dim] = stated.sizes;
    let scalar = if layers == layers_of_27b { hidden / heads } else { head_dim };
    put(config, json!({ "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar }));
    config.remove("hidden_act");
}

fn granite(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    for (key, name) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        // The converter leaves out a factor of 0, which no model has.
        let factor = stated.number(key)?.filter(|factor| *factor != 0.0);
        config.insert(
            name.to_owned(),
            factor.ok_or_else(|| stated.metadata.error(&stated.key(key), "it is missing"))?.into(),
        );
    }
    Ok(())
}

/// OLMo 3 is OLMo 2 with windows.
fn olmo(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    const FACTOR: &str = "rope.scaling.yarn_attn_factor";
    const PATTERN: &str = "attention.sliding_window_pattern";
    const LOCAL: &str = "rope.freq_base_swa";
    if let Some(theta) = stated.number(LOCAL)?.filter(|theta| Some(*theta) != config["rope_theta"].as_f64()) {
        let what = format!("{theta}: a theta of its own for layers with a window is not supported");
        return Err(stated.metadata.error(&stated.key(LOCAL), &what));
    }
    if stated.optional_size("attention.sliding_window")?.is_some_and(|window| window > 0) {
        let pattern = stated.metadata.optional_flags(&stated.key(PATTERN))?;
        let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
        let kinds = pattern.map(|pattern| pattern.iter().map(kind).collect::<Vec<_>>());
        put(config, json!({ "architectures": ["Olmo3ForCausalLM"], "layer_types": kinds }));
    }
    // llama.cpp multiplies YaRN's own factor by this one, transformers replaces it: the meaning is only certain if both are equal.
    let (Some(factor), Some(scale)) = (stated.number(FACTOR)?, stated.number("rope.scaling.factor")?) else {
        return Ok(());
    };
    let own = 0.1 * scale.ln() + 1.0;
    match factor == 1.0 || (factor - own).abs() < 1e-4 {
        true => Ok(()),
        false => {
            Err(stated.metadata.error(&stated.key(FACTOR), &format!("{factor} is not YaRN's own factor, {own:.4}")))
        }
    }
}

/// Every fourth layer is not rotated.
fn smollm3(_: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    put(config, json!({ "no_rope_layer_interval": 4 }));
    Ok(())
}

fn seed_oss(stated: &Stated<'_>, config: &mut Map<String, Value>) -> Result<(), UsageError> {
    put(config, json!({ "attention_out_bias": stated.has("blk.0.attn_output.bias") }));
    Ok(())
}
