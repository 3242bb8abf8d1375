//! What a decoder's layer is made of, as data: a [`BlockSpec`] is all that engines know of a family.
//!
//! A layer adds two branches to the residual stream `x`, each with a norm before it and perhaps one behind it:
//!
//! ```text
//! x += post(output(attention(rope(norm(queries, keys)), values)))   of qkv(norm(x))
//! x += post(down(gate · up))                                        of gate_up(norm(x))
//! ```
//!
//! All norms are RMS norms. A family that needs more adds a field here, whose default leaves today's families as they are; reads it
//! in `forward_layer` of the CPU's engine (`cpu.rs`); and either in the GPU's or in [`BlockSpec::gpu_obstacle`], which refuses what
//! its kernels do not do. `naive_tests.rs` has the same decoder in plain loops and f64, which reads the field too. What is known to be
//! missing, by the first family that needs it:
//!
//! - experts (Mixtral, Qwen3-MoE): a router, experts and how many of them a token passes, in place of `gate_up` and `down`;
//! - a list over layers of local and global attention, each with its window and RoPE table (Gemma 3, OLMo 3), or without RoPE
//!   (SmolLM3);
//! - rotation of a share of each head (Phi-4-mini, GLM), of neighbouring channels (GLM), by two sets of factors (Phi-3);
//! - layers without a norm before a branch (OLMo 2), with one norm for both branches (Cohere);
//! - q and k norms over all heads together (OLMo 2).
//!
//! Scale, soft cap, window and sinks of attention itself are the attention crate's, which is handed them.

use serde::Serialize;
use serde::ser::SerializeMap;

/// Names of a family's tensors: those of matrices without `.weight` and `.bias`, those of norms without `.weight`.
///
/// Names of a layer's tensors follow [`layer`](Self::layer), its number and a point. A layer has what is named here: where a name is
/// `None`, it has no such norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorNames {
    /// The embedding table, `[vocab_size][hidden]`.
    pub embedding: &'static str,
    /// What all tensors of layers begin with, up to the layer's number.
    pub layer: &'static str,
    /// The norm behind the last layer.
    pub final_norm: &'static str,
    /// The output matrix, `[vocab_size][hidden]`, where it is not the embedding table.
    pub head: &'static str,
    /// The norm before attention.
    pub attention_norm: &'static str,
    /// Projections to queries, keys and values: three matrices, or one that has the rows of all three in this order.
    pub qkv: &'static [&'static str],
    /// Norms of each query head and of each key head, before rotation.
    pub qk_norm: Option<[&'static str; 2]>,
    /// The projection of attention's output.
    pub output: &'static str,
    /// The norm of that projection's output, before it is added to the residual stream.
    pub attention_post_norm: Option<&'static str>,
    /// The norm before the gated layers.
    pub mlp_norm: &'static str,
    /// Projections to the gate and to what it gates: two matrices, or one that has the rows of both in this order.
    pub gate_up: &'static [&'static str],
    /// The projection behind the gate.
    pub down: &'static str,
    /// The norm of that projection's output, before it is added to the residual stream.
    pub mlp_post_norm: Option<&'static str>,
}

impl TensorNames {
    /// The names of Llama, which most families have taken over.
    pub const LLAMA: Self = Self {
        embedding: "model.embed_tokens",
        layer: "model.layers.",
        final_norm: "model.norm",
        head: "lm_head",
        attention_norm: "input_layernorm",
        qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        qk_norm: None,
        output: "self_attn.o_proj",
        attention_post_norm: None,
        mlp_norm: "post_attention_layernorm",
        gate_up: &["mlp.gate_proj", "mlp.up_proj"],
        down: "mlp.down_proj",
        mlp_post_norm: None,
    };

    /// The weights of a matrix or norm.
    pub fn weight(name: &str) -> String {
        format!("{name}.weight")
    }
}

/// What the gate of the gated layers is passed through before it is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// `x · σ(x)`.
    Silu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}

/// How the layers of a decoder are made, and what is done before the first and behind the last.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockSpec {
    /// Names of its tensors, which also say which norms there are.
    pub names: TensorNames,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection of attention's output has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// What the gate is passed through.
    pub gate: Gate,
    /// What is added to the stored weights of every norm: 0, or 1 where weights are stored without it.
    pub norm_offset: f32,
    /// What rows of the embedding table are multiplied by before the first layer.
    pub embedding_scale: f32,
    /// `c`, where logits `l` become `c · tanh(l / c)`.
    pub logit_cap: Option<f32>,
}

impl BlockSpec {
    /// The block of Llama without biases.
    pub const LLAMA: Self = Self {
        names: TensorNames::LLAMA,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        gate: Gate::Silu,
        norm_offset: 0.0,
        embedding_scale: 1.0,
        logit_cap: None,
    };

    /// What of the block the GPU kernels do not support, if anything; it follows `the GPU kernels do not support`.
    pub fn gpu_obstacle(&self) -> Option<&'static str> {
        let has_post_norm = self.names.attention_post_norm.or(self.names.mlp_post_norm).is_some();
        let obstacles = [
            (self.gate != Gate::Silu, "gates other than SiLU"),
            (has_post_norm, "norms after attention or after the MLP"),
            (self.embedding_scale != 1.0, "scaled embeddings"),
            (self.logit_cap.is_some(), "capped logits"),
        ];
        obstacles.into_iter().find_map(|(is_there, what)| is_there.then_some(what))
    }
}

/// What of a block a run's identity holds: always the four entries that it has held from the first, others where they differ from
/// Llama's. Names are left out, as checkpoints of other names hold the same model.
impl Serialize for BlockSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { names, gate, norm_offset, embedding_scale, logit_cap, .. } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("qk_norm", &names.qk_norm.is_some())?;
        map.serialize_entry("qkv_bias", &self.qkv_bias)?;
        map.serialize_entry("output_bias", &self.output_bias)?;
        map.serialize_entry("mlp_bias", &self.mlp_bias)?;
        let post_norms = [names.attention_post_norm, names.mlp_post_norm].map(|name| name.is_some());
        if post_norms != [false; 2] {
            map.serialize_entry("post_norms", &post_norms)?;
        }
        if *gate != Gate::Silu {
            map.serialize_entry("gate", gate)?;
        }
        if *norm_offset != 0.0 {
            map.serialize_entry("norm_offset", norm_offset)?;
        }
        if *embedding_scale != 1.0 {
            map.serialize_entry("embedding_scale", embedding_scale)?;
        }
        if let Some(cap) = logit_cap {
            map.serialize_entry("logit_cap", cap)?;
        }
        map.end()
    }
}
