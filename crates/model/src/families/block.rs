//! What a decoder's layer consists of, as data: engines know a family only by its [`BlockSpec`].
//!
//! A layer adds two branches to the residual stream `x`, each with a norm before it, after it, or both:
//!
//! ```text
//! x += scale · post(output(attention(rope(norm(queries, keys)), values)))   of qkv(norm(x))
//! x += scale · post(down(gate · up))                                        of gate_up(norm(x))
//! ```
//!
//! Some or all layers may have [`Experts`] instead of the second branch.
//!
//! All norms are RMS norms. A family that needs more adds a field here, with a default that leaves the other families unchanged; reads it
//! in `forward_layer` of the CPU engine (`cpu.rs`); and either reads it in the GPU engine (`cuda/model.rs`) or refuses it in
//! [`Dimensions::gpu_obstacle`](crate::dimensions::Dimensions::gpu_obstacle). `naive_tests.rs` has the same decoder in plain loops and f64,
//! which reads the field too. One norm for both branches (Cohere) is not supported yet.
//!
//! Properties that differ from layer to layer are in [`LayerKinds`](super::LayerKinds): windows and rotation tables. The attention crate
//! applies scale, soft cap, window and sinks of attention.

use rayon::prelude::*;
use serde::Serialize;
use serde::ser::SerializeMap;

use super::experts::Experts;

/// The names of a family's tensors: matrices without `.weight` and `.bias`, norms without `.weight`.
///
/// The names of a layer's tensors follow [`layer`](Self::layer), the layer's number and a dot. A norm whose name is `None` does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorNames {
    /// The embedding table, `[vocab_size][hidden]`.
    pub embedding: &'static str,
    /// The prefix of all tensors of layers, up to the layer's number.
    pub layer: &'static str,
    /// The norm after the last layer.
    pub final_norm: &'static str,
    /// The output matrix, `[vocab_size][hidden]`, if it is not the embedding table.
    pub head: &'static str,
    /// The norm before attention.
    pub attention_norm: Option<&'static str>,
    /// The projections to queries, keys and values: three matrices, or one with the rows of all three in this order.
    pub qkv: &'static [&'static str],
    /// The norms of queries and of keys, before rotation; [`BlockSpec::qk_norm_over`] says over which channels.
    pub qk_norm: Option<[&'static str; 2]>,
    /// A logit for each query head, a further term in the denominator of every softmax; the name of the whole tensor.
    pub sinks: Option<&'static str>,
    /// The projection of attention's output.
    pub output: &'static str,
    /// The norm of that projection's output, before it is added to the residual stream.
    pub attention_post_norm: Option<&'static str>,
    /// The norm before the gated network, or before experts and their router.
    pub mlp_norm: Option<&'static str>,
    /// The projections to the gate and to what it gates: two matrices, or one with the rows of both in this order.
    pub gate_up: &'static [&'static str],
    /// The projection after the gate.
    pub down: &'static str,
    /// The norm of that projection's output, before it is added to the residual stream.
    pub mlp_post_norm: Option<&'static str>,
}

impl TensorNames {
    /// The names of Llama, which most families use.
    pub const LLAMA: Self = Self {
        embedding: "model.embed_tokens",
        layer: "model.layers.",
        final_norm: "model.norm",
        head: "lm_head",
        attention_norm: Some("input_layernorm"),
        qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        qk_norm: None,
        sinks: None,
        output: "self_attn.o_proj",
        attention_post_norm: None,
        mlp_norm: Some("post_attention_layernorm"),
        gate_up: &["mlp.gate_proj", "mlp.up_proj"],
        down: "mlp.down_proj",
        mlp_post_norm: None,
    };

    /// The name of the weights of a matrix or norm.
    pub fn weight(name: &str) -> String {
        format!("{name}.weight")
    }
}

/// The function that is applied to the gate before it is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// `x · σ(x)`.
    Silu,
    /// GELU, in its approximation with tanh.
    GeluTanh,
    /// `x · σ(slope · x)` of the gate `x`, limited to at most `limit`, times one plus what it gates, limited to `-limit..=limit`.
    Clamped {
        /// The steepness of the sigmoid.
        slope: f32,
        /// The limit of the gate and of what it gates.
        limit: f32,
    },
}

/// The channels that one norm of queries or keys is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormOver {
    /// The channels of one head; all heads have the same weights.
    Head,
    /// All channels of all heads together.
    AllHeads,
}

/// Which channels of a head RoPE rotates together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// `i` and `i + n/2`, of `n` rotated channels.
    Halves,
    /// `2i` and `2i + 1`.
    Neighbours,
}

/// The factor on products of queries and keys before the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionScale {
    /// One over the root of the width of a head.
    HeadDim,
    /// One over the root of this number.
    InverseRoot(usize),
    /// This number.
    Factor(f32),
}

/// How queries grow with their position, in steps: at position `p` they are multiplied by `1 + beta · ln(1 + ⌊p / step⌋)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QueryGrowth {
    /// How fast they grow.
    pub beta: f32,
    /// The number of positions in a step.
    pub step: usize,
}

impl QueryGrowth {
    /// The factor on a query at `position`.
    pub fn factor(self, position: usize) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.step) as f32).ln()
    }
}

/// How the layers of a decoder are built, and what is done before the first and after the last.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockSpec {
    /// The names of its tensors, which also say which norms there are.
    pub names: TensorNames,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection of attention's output has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// The function applied to the gate.
    pub gate: Gate,
    /// The number added to the stored weights of every norm: 0, or 1 if weights are stored without it.
    pub norm_offset: f32,
    /// The channels that norms of queries and keys are over, if there are any.
    pub qk_norm_over: QkNormOver,
    /// The number of rotated channels of a head, starting with the first; `None` for all. An even number.
    pub rotated: Option<usize>,
    /// Which of these channels are rotated together.
    pub rope_pairs: RopePairs,
    /// The factor on products of queries and keys.
    pub attention_scale: AttentionScale,
    /// `c`, if a scaled product `x` of a query and a key becomes `c · tanh(x / c)` before the softmax.
    pub attention_cap: Option<f32>,
    /// How rotated queries grow with their position, if they do.
    pub query_growth: Option<QueryGrowth>,
    /// The factor on rows of the embedding table before the first layer.
    pub embedding_scale: f32,
    /// The factor on both branches before they are added to the residual stream.
    pub branch_scale: f32,
    /// The experts that [some layers](super::LayerKind::experts) have instead of the gated network.
    pub experts: Option<Experts>,
    /// The divisor of logits.
    pub logit_divisor: f32,
    /// `c`, if logits `l` become `c · tanh(l / c)`.
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
        qk_norm_over: QkNormOver::Head,
        rotated: None,
        rope_pairs: RopePairs::Halves,
        attention_scale: AttentionScale::HeadDim,
        attention_cap: None,
        query_growth: None,
        embedding_scale: 1.0,
        branch_scale: 1.0,
        experts: None,
        logit_divisor: 1.0,
        logit_cap: None,
    };
}

impl BlockSpec {
    /// Whether logits are the unchanged products of the output matrix.
    #[cfg(feature = "cuda")]
    pub(crate) fn leaves_logits(&self) -> bool {
        self.logit_divisor == 1.0 && self.logit_cap.is_none()
    }

    /// Divides and caps the products of the output matrix, if the family does so.
    pub(crate) fn finish_logits(&self, logits: &mut [f32]) {
        let divisor = self.logit_divisor;
        if divisor != 1.0 {
            logits.par_iter_mut().for_each(|logit| *logit /= divisor);
        }
        if let Some(cap) = self.logit_cap {
            logits.par_iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
    }
}

/// The entries of a run's identity: always the four that were in it from the start, and others if they differ from Llama's. Names are left
/// out, since checkpoints with other names may hold the same model.
impl Serialize for BlockSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { names, gate, norm_offset, attention_cap, query_growth, experts, logit_cap, .. } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("qk_norm", &names.qk_norm.is_some())?;
        map.serialize_entry("qkv_bias", &self.qkv_bias)?;
        map.serialize_entry("output_bias", &self.output_bias)?;
        map.serialize_entry("mlp_bias", &self.mlp_bias)?;
        let pre_norms = [names.attention_norm, names.mlp_norm].map(|name| name.is_some());
        if pre_norms != [true; 2] {
            map.serialize_entry("pre_norms", &pre_norms)?;
        }
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
        if names.sinks.is_some() {
            map.serialize_entry("sinks", &true)?;
        }
        if self.qk_norm_over != QkNormOver::Head {
            map.serialize_entry("qk_norm_over", &self.qk_norm_over)?;
        }
        if let Some(rotated) = self.rotated {
            map.serialize_entry("rotated", &rotated)?;
        }
        if self.rope_pairs != RopePairs::Halves {
            map.serialize_entry("rope_pairs", &self.rope_pairs)?;
        }
        if self.attention_scale != AttentionScale::HeadDim {
            map.serialize_entry("attention_scale", &self.attention_scale)?;
        }
        if let Some(cap) = attention_cap {
            map.serialize_entry("attention_cap", cap)?;
        }
        if let Some(growth) = query_growth {
            map.serialize_entry("query_growth", growth)?;
        }
        if self.embedding_scale != 1.0 {
            map.serialize_entry("embedding_scale", &self.embedding_scale)?;
        }
        if self.branch_scale != 1.0 {
            map.serialize_entry("branch_scale", &self.branch_scale)?;
        }
        if let Some(experts) = experts {
            map.serialize_entry("experts", experts)?;
        }
        if self.logit_divisor != 1.0 {
            map.serialize_entry("logit_divisor", &self.logit_divisor)?;
        }
        if let Some(cap) = logit_cap {
            map.serialize_entry("logit_cap", cap)?;
        }
        map.end()
    }
}
