//! The parts of a decoder, made of a checkpoint's tensors by the description of its family.
//!
//! Engines keep matrices where they compute; a [`Source`] makes them. Which tensors there are, with which shapes, follows from the
//! [`ModelConfig`] and its [`BlockSpec`] here and nowhere else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::config::ModelConfig;
use super::families::{BlockSpec, TensorNames};
use super::tensors::{StoredTensor, WeightDtype, Weights, WeightsError};
use spattn_base::memory::{product, sum};

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
    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Self::Matrix, Self::Error>;

    /// As [`matrix`](Self::matrix), with their biases, if they have them.
    fn linear(
        &self,
        names: &[String],
        outputs: &[usize],
        inputs: usize,
        bias: bool,
    ) -> Result<Self::Linear, Self::Error>;

    /// The weights of a norm of so many numbers, `offset` added to each.
    fn norm(&self, name: &str, width: usize, offset: f32) -> Result<Self::Vector, Self::Error>;
}

/// One layer of a decoder; [`BlockSpec`] says how its parts follow each other.
pub(super) struct Layer<L, V> {
    /// Weights of the norm before attention.
    pub attention_norm: V,
    /// Queries, keys and values stacked: `[(heads + 2 · kv_heads) · head_dim][hidden]`.
    pub qkv: L,
    /// Norms of each query head and of each key head, if the family has them.
    pub qk_norm: Option<(V, V)>,
    /// The projection of attention's output: `[hidden][heads · head_dim]`.
    pub output: L,
    /// Weights of the norm behind this projection, if the family has one.
    pub attention_post_norm: Option<V>,
    /// Weights of the norm before the gated layers.
    pub mlp_norm: V,
    /// Gate and up projections stacked: `[2 · intermediate][hidden]`.
    pub gate_up: L,
    /// The projection behind the gate: `[hidden][intermediate]`.
    pub down: L,
    /// Weights of the norm behind this projection, if the family has one.
    pub mlp_post_norm: Option<V>,
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
        let (vocab, hidden, block) = (config.vocab_size, config.hidden_size, &config.block);
        Ok(Self {
            embedding: source.matrix(&[block.names.embedding.to_owned()], &[vocab], hidden)?,
            head: match config.tie_word_embeddings {
                true => None,
                false => Some(source.matrix(&[block.names.head.to_owned()], &[vocab], hidden)?),
            },
            layers: (0..config.layers)
                .into_par_iter()
                .map(|index| Layer::load(config, source, index))
                .collect::<Result<_, _>>()?,
            norm: source.norm(block.names.final_norm, hidden, block.norm_offset)?,
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
        let BlockSpec { names, qkv_bias, output_bias, mlp_bias, norm_offset, .. } = &c.block;
        let name = |part: &str| format!("{}{index}.{part}", names.layer);
        let norm = |part: &str, width: usize| source.norm(&name(part), width, *norm_offset);
        let post_norm = |part: Option<&str>| part.map(|part| norm(part, hidden)).transpose();
        let linear = |parts: &[&str], rows: &[usize], inputs: usize, bias: bool| {
            let parts: Vec<String> = parts.iter().map(|part| name(part)).collect();
            // One matrix for all has the rows of all.
            match parts.len() {
                1 => source.linear(&parts, &[rows.iter().sum()], inputs, bias),
                _ => source.linear(&parts, rows, inputs, bias),
            }
        };
        Ok(Self {
            attention_norm: norm(names.attention_norm, hidden)?,
            qkv: linear(names.qkv, &[q, kv, kv], hidden, *qkv_bias)?,
            qk_norm: match names.qk_norm {
                Some([query, key]) => Some((norm(query, c.head_dim)?, norm(key, c.head_dim)?)),
                None => None,
            },
            output: linear(&[names.output], &[hidden], q, *output_bias)?,
            attention_post_norm: post_norm(names.attention_post_norm)?,
            mlp_norm: norm(names.mlp_norm, hidden)?,
            gate_up: linear(names.gate_up, &[inner, inner], hidden, *mlp_bias)?,
            down: linear(&[names.down], &[hidden], inner, *mlp_bias)?,
            mlp_post_norm: post_norm(names.mlp_post_norm)?,
        })
    }
}

/// Numbers of all weight matrices: of one layer times the number of layers, and of the tables at both ends.
pub(super) fn matrix_numbers(config: &ModelConfig) -> usize {
    let asked = Asked::default();
    let Ok(_) = Layer::<(), ()>::load(config, &asked, 0);
    let shapes = asked.into_shapes();
    let matrices = shapes.values().filter_map(|shape| <[usize; 2]>::try_from(shape.as_slice()).ok());
    let of_layer = matrices.map(product).fold(0, usize::saturating_add);
    let tables = if config.tie_word_embeddings { 1 } else { 2 };
    sum([product([tables, config.vocab_size, config.hidden_size]), product([config.layers, of_layer])])
}

/// The tensors that a decoder is made of: names and shapes.
pub(super) fn tensors(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let asked = Asked::default();
    let Ok(_) = Parts::<(), (), ()>::load(config, &asked);
    asked.into_shapes()
}

/// Makes nothing, and notes which tensors it was asked for.
#[derive(Default)]
struct Asked(Mutex<BTreeMap<String, Vec<usize>>>);

impl Asked {
    fn into_shapes(self) -> BTreeMap<String, Vec<usize>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, tensors: impl IntoIterator<Item = (String, Vec<usize>)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(tensors);
    }
}

impl Source for Asked {
    type Matrix = ();
    type Linear = ();
    type Vector = ();
    type Error = Infallible;

    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<(), Infallible> {
        let shapes = outputs.iter().map(|rows| vec![*rows, inputs]);
        self.note(names.iter().map(|name| TensorNames::weight(name)).zip(shapes));
        Ok(())
    }

    fn linear(&self, names: &[String], outputs: &[usize], inputs: usize, bias: bool) -> Result<(), Infallible> {
        if bias {
            let shapes = outputs.iter().map(|rows| vec![*rows]);
            self.note(names.iter().map(|name| format!("{name}.bias")).zip(shapes));
        }
        self.matrix(names, outputs, inputs)
    }

    fn norm(&self, name: &str, width: usize, _: f32) -> Result<(), Infallible> {
        self.note([(TensorNames::weight(name), vec![width])]);
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
    /// Whether matrices stay in the quantised blocks that they are stored in.
    pub keeps_blocks: bool,
}

impl Checkpoint<'_> {
    /// Matrices of equal width.
    pub fn matrices(
        &self,
        names: &[String],
        outputs: &[usize],
        inputs: usize,
    ) -> Result<Vec<StoredTensor>, WeightsError> {
        let read = |(name, rows): (&String, &usize)| {
            let name = TensorNames::weight(name);
            let stays = self.keeps_blocks && self.weights.block_type(&name, inputs).is_some();
            let dtype = if stays { WeightDtype::F32 } else { self.dtype };
            self.weights.read_for(&name, &[*rows, inputs], dtype)
        };
        names.iter().zip(outputs).map(read).collect()
    }

    /// Their biases, one behind the other.
    pub fn biases(&self, names: &[String], outputs: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let read = |(name, n): (&String, &usize)| self.vector(&format!("{name}.bias"), *n);
        Ok(names.iter().zip(outputs).map(read).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The weights of a norm, `offset` added to each.
    pub fn norm(&self, name: &str, width: usize, offset: f32) -> Result<Vec<f32>, WeightsError> {
        let mut weights = self.vector(&TensorNames::weight(name), width)?;
        if offset != 0.0 {
            weights.iter_mut().for_each(|weight| *weight += offset);
        }
        Ok(weights)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        Ok(self.weights.read_for(name, &[len], WeightDtype::F32)?.to_f32())
    }
}
