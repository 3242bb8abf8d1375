//! Names and shapes of a checkpoint's tensors, and how a decoder's layers are made of them.
//!
//! Engines keep matrices where they compute; a [`Source`] makes them. What is named here is the layout of Hugging Face
//! checkpoints of the Llama family.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::config::ModelConfig;
use super::tensors::{StoredTensor, WeightDtype, Weights, WeightsError};

/// The embedding table.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output matrix.
pub(super) const HEAD: &str = "lm_head.weight";

/// Makes what an engine holds of tensors.
pub(super) trait Source: Sync {
    /// A matrix `[outputs][inputs]`.
    type Matrix;
    /// A matrix with an optional bias.
    type Linear;
    /// Numbers in f32.
    type Vector;
    /// Why a tensor could not be had.
    type Error: Send;

    /// Matrices of equal width, stacked.
    fn matrix(&self, names: &[&str], outputs: &[usize], inputs: usize) -> Result<Self::Matrix, Self::Error>;

    /// As [`matrix`](Self::matrix), with their biases, if they have them.
    fn linear(&self, names: &[&str], outputs: &[usize], inputs: usize, bias: bool)
    -> Result<Self::Linear, Self::Error>;

    /// A vector.
    fn vector(&self, name: &str, len: usize) -> Result<Self::Vector, Self::Error>;
}

/// One layer of a decoder.
pub(super) struct Layer<L, V> {
    /// Weights of the norm before attention.
    pub attention_norm: V,
    /// Queries, keys and values stacked.
    pub qkv: L,
    /// Norms of each query and key head (Qwen3).
    pub qk_norm: Option<(V, V)>,
    /// Behind attention.
    pub output: L,
    /// Weights of the norm before the gated layers.
    pub mlp_norm: V,
    /// Gate and up projections stacked.
    pub gate_up: L,
    /// Behind the gate.
    pub down: L,
}

/// All of a decoder.
pub(super) struct Parts<M, L, V> {
    /// `[vocab_size][hidden]`.
    pub embedding: M,
    /// In order.
    pub layers: Vec<Layer<L, V>>,
    /// Weights of the norm behind the last layer.
    pub norm: V,
    /// As the embedding; `None` if it is the embedding.
    head: Option<M>,
}

impl<M: Send, L: Send, V: Send> Parts<M, L, V> {
    /// Has everything made that `config` asks for.
    ///
    /// # Errors
    /// As the source.
    pub fn load<S>(config: &ModelConfig, source: &S) -> Result<Self, S::Error>
    where
        S: Source<Matrix = M, Linear = L, Vector = V>,
    {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        Ok(Self {
            embedding: source.matrix(&["model.embed_tokens"], &[vocab], hidden)?,
            head: match config.tie_word_embeddings {
                true => None,
                false => Some(source.matrix(&["lm_head"], &[vocab], hidden)?),
            },
            layers: (0..config.layers)
                .into_par_iter()
                .map(|index| Layer::load(config, source, index))
                .collect::<Result<_, _>>()?,
            norm: source.vector("model.norm.weight", hidden)?,
        })
    }

    /// What turns a row behind the last norm into logits.
    pub fn head(&self) -> &M {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

impl<L, V> Layer<L, V> {
    fn load<S: Source<Linear = L, Vector = V>>(c: &ModelConfig, source: &S, index: usize) -> Result<Self, S::Error> {
        let (hidden, q, kv, inner) =
            (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let [wq, wk, wv, wo] = ["q", "k", "v", "o"].map(|p| name(&format!("self_attn.{p}_proj")));
        let [gate, up, down] = ["gate", "up", "down"].map(|p| name(&format!("mlp.{p}_proj")));
        let qk_norm = |part: &str| source.vector(&name(&format!("self_attn.{part}_norm.weight")), c.head_dim);
        Ok(Self {
            attention_norm: source.vector(&name("input_layernorm.weight"), hidden)?,
            qkv: source.linear(&[&wq, &wk, &wv], &[q, kv, kv], hidden, c.qkv_bias)?,
            qk_norm: if c.qk_norm { Some((qk_norm("q")?, qk_norm("k")?)) } else { None },
            output: source.linear(&[&wo], &[hidden], q, c.output_bias)?,
            mlp_norm: source.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: source.linear(&[&gate, &up], &[inner, inner], hidden, c.mlp_bias)?,
            down: source.linear(&[&down], &[hidden], inner, c.mlp_bias)?,
        })
    }
}

/// The tensors that a decoder is made of: names and shapes.
pub(super) fn tensors(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let asked = Asked::default();
    let Ok(_) = Parts::<(), (), ()>::load(config, &asked);
    asked.0.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Makes nothing, and notes which tensors it was asked for.
#[derive(Default)]
struct Asked(Mutex<BTreeMap<String, Vec<usize>>>);

impl Asked {
    fn note(&self, tensors: impl IntoIterator<Item = (String, Vec<usize>)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(tensors);
    }
}

impl Source for Asked {
    type Matrix = ();
    type Linear = ();
    type Vector = ();
    type Error = Infallible;

    fn matrix(&self, names: &[&str], outputs: &[usize], inputs: usize) -> Result<(), Infallible> {
        let shapes = outputs.iter().map(|rows| vec![*rows, inputs]);
        self.note(names.iter().map(|name| format!("{name}.weight")).zip(shapes));
        Ok(())
    }

    fn linear(&self, names: &[&str], outputs: &[usize], inputs: usize, bias: bool) -> Result<(), Infallible> {
        if bias {
            let shapes = outputs.iter().map(|rows| vec![*rows]);
            self.note(names.iter().map(|name| format!("{name}.bias")).zip(shapes));
        }
        self.matrix(names, outputs, inputs)
    }

    fn vector(&self, name: &str, len: usize) -> Result<(), Infallible> {
        self.note([(name.to_owned(), vec![len])]);
        Ok(())
    }
}

/// A checkpoint's tensors, for sources that convert them.
#[derive(Clone, Copy)]
pub(super) struct Checkpoint<'a> {
    /// Where they are read from.
    pub weights: &'a Weights,
    /// What they have to fit into.
    pub dtype: WeightDtype,
}

impl Checkpoint<'_> {
    /// Matrices of equal width.
    pub fn matrices(
        &self,
        names: &[&str],
        outputs: &[usize],
        inputs: usize,
    ) -> Result<Vec<StoredTensor>, WeightsError> {
        let read =
            |(name, n): (&&str, &usize)| self.weights.read_for(&format!("{name}.weight"), &[*n, inputs], self.dtype);
        names.iter().zip(outputs).map(read).collect()
    }

    /// Their biases, one behind the other.
    pub fn biases(&self, names: &[&str], outputs: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let read = |(name, n): (&&str, &usize)| self.vector(&format!("{name}.bias"), *n);
        Ok(names.iter().zip(outputs).map(read).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// A vector.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        Ok(self.weights.read_for(name, &[len], WeightDtype::F32)?.to_f32())
    }
}
