//! The models of our families that candle-transformers 0.11.1 has, one row each, and what each of them does not compute.
//!
//! The rows follow the source of that version. If a checkpoint needs what its row lacks, candle is no referee ([`limits`](super::limits)),
//! whatever numbers it gives.

use std::fs::File;

use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Error, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::smol::smollm3;
use candle_transformers::models::{
    gemma2, gemma3, glm4_new, granite, llama, mistral, mixtral, olmo2, phi3, quantized_glm4, quantized_llama,
    quantized_phi3, quantized_qwen2, qwen2, qwen3, qwen3_moe,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::networks::{Copied, Network, WithCache};

/// One of candle's models.
pub(super) struct Design {
    /// The class that `architectures` names.
    pub class: &'static str,
    /// Its module in candle-transformers.
    pub module: &'static str,
    /// The keys of `config.json` that candle requires but that may be missing or `null`, with transformers' defaults, as a JSON object.
    pub defaults: &'static str,
    /// The kinds of RoPE scaling that it computes. It silently ignores others.
    pub scalings: &'static [&'static str],
    /// Whether the width of a head may differ from the hidden size over the number of heads.
    pub has_head_dim: bool,
    /// Keys that it does not read, each with the value (JSON) that has no effect.
    pub unread: &'static [(&'static str, &'static str)],
    /// The key that sets the scale of attention, which it does not read.
    pub scale: Option<Scale>,
    /// The most tokens that it reads, if they do not follow from the config.
    pub longest: Option<usize>,
    /// The smallest tolerance for differences: some of its numbers are coarser than f32.
    pub tolerance: f64,
    /// Builds the model.
    pub build: Build,
}

/// How a family states the scale of attention. Candle always takes the inverse root of the width of a head.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// The key of a number whose inverse root is the scale.
    InverseRootOf(&'static str),
    /// The key of the scale itself.
    Is(&'static str),
}

/// How a model is built, by the format of its weights.
pub(super) enum Build {
    /// From a `config.json` and tensors with Hugging Face's names.
    Folder(fn(&Value, VarBuilder<'_>) -> Result<Box<dyn Network>>),
    /// From a GGUF file, whose matrices stay quantised.
    Gguf(fn(Content, &mut File) -> Result<Box<dyn Network>>),
}

impl Design {
    /// Whether the model is read from GGUF files.
    pub(super) fn is_of_gguf(&self) -> bool {
        matches!(self.build, Build::Gguf(_))
    }
}

/// The row of the most frequent kind; others name only what differs.
const FOLDER: Design = Design {
    class: "",
    module: "",
    defaults: "{}",
    scalings: &[],
    has_head_dim: false,
    unread: &[],
    scale: None,
    longest: None,
    tolerance: 1e-3,
    build: Build::Folder(|_, _| Err(Error::Msg(String::new()))),
};

/// A row of a GGUF model. Candle rounds the other factor of a quantised matrix to 8 bits, hence the tolerance.
const GGUF: Design = Design { tolerance: 5e-2, ..FOLDER };

/// All models.
pub(super) static DESIGNS: &[Design] = &[
    Design {
        class: "LlamaForCausalLM",
        module: "llama",
        scalings: &["llama3"],
        unread: &[("attention_bias", "false"), ("mlp_bias", "false")],
        build: Build::Folder(|config, tensors| {
            let config = read::<llama::LlamaConfig>(config)?.into_config(false);
            let cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
            Ok(Box::new(WithCache::new(llama::Llama::load(tensors, &config)?, cache)))
        }),
        ..FOLDER
    },
    Design {
        class: "MistralForCausalLM",
        module: "mistral",
        defaults: r#"{"rope_theta": 1e4}"#,
        has_head_dim: true,
        build: Build::Folder(|config, tensors| Ok(Box::new(mistral::Model::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "MixtralForCausalLM",
        module: "mixtral",
        // Candle requires a window, so this one is longer than any text.
        defaults: r#"{"rope_theta": 1e6, "hidden_act": "silu", "sliding_window": 1000000000, "use_flash_attn": false}"#,
        build: Build::Folder(|config, tensors| {
            Ok(Box::new(Copied::new(mixtral::Model::new(&read(config)?, tensors)?)))
        }),
        ..FOLDER
    },
    Design {
        class: "Qwen2ForCausalLM",
        module: "qwen2",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "sliding_window": 1000000000, "max_window_layers": 28,
                      "use_sliding_window": false}"#,
        build: Build::Folder(|config, tensors| Ok(Box::new(qwen2::ModelForCausalLM::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "Qwen3ForCausalLM",
        module: "qwen3",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "head_dim": 128, "attention_bias": false,
                      "max_window_layers": 28, "use_sliding_window": false}"#,
        has_head_dim: true,
        unread: &[("use_sliding_window", "false")],
        build: Build::Folder(|config, tensors| Ok(Box::new(qwen3::ModelForCausalLM::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "Qwen3MoeForCausalLM",
        module: "qwen3_moe",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "head_dim": 128, "attention_bias": false,
                      "max_window_layers": 28, "use_sliding_window": false, "decoder_sparse_step": 1,
                      "norm_topk_prob": false}"#,
        has_head_dim: true,
        unread: &[("use_sliding_window", "false"), ("mlp_only_layers", "[]")],
        build: Build::Folder(|config, tensors| {
            Ok(Box::new(qwen3_moe::ModelForCausalLM::new(&read(config)?, tensors)?))
        }),
        ..FOLDER
    },
    Design {
        class: "Gemma2ForCausalLM",
        module: "gemma2",
        defaults: r#"{"rope_theta": 1e4, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
                      "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096}"#,
        has_head_dim: true,
        scale: Some(Scale::InverseRootOf("query_pre_attn_scalar")),
        build: Build::Folder(|config, tensors| Ok(Box::new(gemma2::Model::new(false, &read(config)?, tensors)?))),
        ..FOLDER
    },
    Design { class: "Gemma3ForCausalLM", ..GEMMA3 },
    Design { class: "Gemma3ForConditionalGeneration", ..GEMMA3 },
    Design {
        class: "Phi3ForCausalLM",
        module: "phi3",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu"}"#,
        build: Build::Folder(|config, tensors| Ok(Box::new(phi3::Model::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "GraniteForCausalLM",
        module: "granite",
        defaults: r#"{"attention_multiplier": 1.0}"#,
        unread: &[
            ("attention_bias", "false"),
            ("mlp_bias", "false"),
            ("embedding_multiplier", "1"),
            ("residual_multiplier", "1"),
            ("logits_scaling", "1"),
        ],
        scale: Some(Scale::Is("attention_multiplier")),
        build: Build::Folder(|config, tensors| {
            let config = read::<granite::GraniteConfig>(config)?.into_config(false);
            let cache = granite::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
            Ok(Box::new(WithCache::new(granite::Granite::load(tensors, &config)?, cache)))
        }),
        ..FOLDER
    },
    Design {
        class: "Glm4ForCausalLM",
        module: "glm4_new",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "head_dim": 128, "attention_bias": false,
                      "partial_rotary_factor": 0.5}"#,
        has_head_dim: true,
        build: Build::Folder(|config, tensors| Ok(Box::new(glm4_new::ModelForCausalLM::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "Olmo2ForCausalLM",
        module: "olmo2",
        defaults: r#"{"rope_theta": 1e4, "hidden_act": "silu", "attention_bias": false}"#,
        unread: &[("clip_qkv", "null")],
        build: Build::Folder(|config, tensors| Ok(Box::new(olmo2::Model::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "SmolLM3ForCausalLM",
        module: "smol::smollm3",
        defaults: r#"{"rope_theta": 2e6, "hidden_act": "silu", "no_rope_layer_interval": 4}"#,
        unread: &[("use_sliding_window", "false")],
        build: Build::Folder(|config, tensors| Ok(Box::new(smollm3::ModelForCausalLM::new(&read(config)?, tensors)?))),
        ..FOLDER
    },
    Design {
        class: "LlamaForCausalLM",
        module: "quantized_llama",
        unread: &[("attention_bias", "false"), ("mlp_bias", "false")],
        longest: Some(quantized_llama::MAX_SEQ_LEN),
        build: Build::Gguf(|content, file| {
            Ok(Box::new(quantized_llama::ModelWeights::from_gguf(content, file, &Device::Cpu)?))
        }),
        ..GGUF
    },
    Design {
        class: "Qwen2ForCausalLM",
        module: "quantized_qwen2",
        build: Build::Gguf(|content, file| {
            Ok(Box::new(quantized_qwen2::ModelWeights::from_gguf(content, file, &Device::Cpu)?))
        }),
        ..GGUF
    },
    // Left out: `quantized_qwen3`, whose RoPE angles are rounded to f16; `quantized_gemma3`, whose logits differ from the reference's; and
    // `quantized_qwen3_moe`, which needs a GPU.
    Design {
        class: "Phi3ForCausalLM",
        module: "quantized_phi3",
        unread: &[("rope_theta", "10000")],
        build: Build::Gguf(|content, file| {
            Ok(Box::new(quantized_phi3::ModelWeights::from_gguf(false, content, file, &Device::Cpu)?))
        }),
        ..GGUF
    },
    Design {
        class: "Glm4ForCausalLM",
        module: "quantized_glm4",
        has_head_dim: true,
        unread: &[("partial_rotary_factor", "0.5")],
        build: Build::Gguf(|content, file| {
            Ok(Box::new(quantized_glm4::ModelWeights::from_gguf(content, file, &Device::Cpu, DType::F32)?))
        }),
        ..GGUF
    },
];

/// Gemma 3, as a text model or without its images.
const GEMMA3: Design = Design {
    module: "gemma3",
    defaults: r#"{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh",
                  "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                  "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
                  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}"#,
    has_head_dim: true,
    scale: Some(Scale::InverseRootOf("query_pre_attn_scalar")),
    build: Build::Folder(|config, tensors| Ok(Box::new(gemma3::Model::new(false, &read(config)?, tensors)?))),
    ..FOLDER
};

/// Parses a config as candle does.
fn read<C: DeserializeOwned>(config: &Value) -> Result<C> {
    C::deserialize(config).map_err(Error::wrap)
}
