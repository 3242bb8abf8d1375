//! The parts of a decoder, made from a checkpoint's tensors according to its family's description.
//!
//! Engines keep matrices where they compute; a [`Source`] makes them. Only this module derives from the [`ModelConfig`] and its
//! [`BlockSpec`] which tensors there are, and with which shapes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::config::ModelConfig;
use super::families::{BlockSpec, Experts, QkNormOver, TensorNames};
use super::tensors::{StoredTensor, WeightDtype, Weights, WeightsError};
use spattn_base::memory::{product, sum};

/// Makes the parts of an engine from tensors.
pub(super) trait Source: Sync {
    /// A matrix `[outputs][inputs]`.
    type Matrix;
    /// A matrix with an optional bias.
    type Linear;
    /// Numbers in f32.
    type Vector;
    /// Why a tensor is not available.
    type Error: Send;

    /// Stacks matrices of equal width.
    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Self::Matrix, Self::Error>;

    /// Like [`matrix`](Self::matrix), with the matrices' biases, if they have them.
    fn linear(
        &self,
        names: &[String],
        outputs: &[usize],
        inputs: usize,
        bias: bool,
    ) -> Result<Self::Linear, Self::Error>;

    /// The weights of a norm over `width` numbers, with `offset` added to each.
    fn norm(&self, name: &str, width: usize, offset: f32) -> Result<Self::Vector, Self::Error>;
}

/// One layer of a decoder; [`BlockSpec`] describes how its parts are connected.
pub(super) struct Layer<L, V> {
    /// Weights of the norm before attention, if the family has one.
    pub attention_norm: Option<V>,
    /// Projections to queries, keys and values, stacked: `[(heads + 2 · kv_heads) · head_dim][hidden]`.
    pub qkv: L,
    /// Norms of queries and of keys, if the family has them.
    pub qk_norm: Option<(V, V)>,
    /// The projection of attention's output: `[hidden][heads · head_dim]`.
    pub output: L,
    /// Weights of the norm after this projection, if the family has one.
    pub attention_post_norm: Option<V>,
    /// Weights of the norm before the second branch, if the family has one.
    pub mlp_norm: Option<V>,
    /// The second branch.
    pub feed_forward: FeedForward<L>,
    /// Weights of the norm after the second branch, if the family has one.
    pub mlp_post_norm: Option<V>,
}

/// The second branch of a layer.
pub(super) enum FeedForward<L> {
    /// One gated network.
    Gated(Gated<L>),
    /// Several gated networks, and the router that chooses those that a token passes through: `[count][hidden]`.
    Experts { router: L, experts: Vec<Gated<L>> },
}

/// A gated network.
pub(super) struct Gated<L> {
    /// Gate and up projections stacked: `[2 · width][hidden]`.
    pub gate_up: L,
    /// The projection after the gate: `[hidden][width]`.
    pub down: L,
}

/// All parts of a decoder.
pub(super) struct Parts<M, L, V> {
    /// The embedding table, `[vocab_size][hidden]`.
    pub embedding: M,
    /// The layers, in order.
    pub layers: Vec<Layer<L, V>>,
    /// Weights of the norm after the last layer.
    pub norm: V,
    /// The output matrix, of the same shape as the embedding table; `None` if it is that table.
    head: Option<M>,
}

impl<M: Send, L: Send, V: Send> Parts<M, L, V> {
    /// Makes all parts of the decoder that `config` describes.
    ///
    /// # Errors
    /// Those of the source.
    pub fn load<S>(config: &ModelConfig, source: &S) -> Result<Self, S::Error>
    where
        S: Source<Matrix = M, Linear = L, Vector = V>,
    {
        Ok(Self {
            embedding: load_embedding(config, source)?,
            head: load_head(config, source)?,
            layers: load_layers(config, source, 0..config.layers)?,
            norm: load_final_norm(config, source)?,
        })
    }

    /// The matrix that turns a row after the last norm into logits.
    pub fn head(&self) -> &M {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// The embedding table, `[vocab_size][hidden]`.
///
/// # Errors
/// Those of the source.
pub(super) fn load_embedding<S: Source>(config: &ModelConfig, source: &S) -> Result<S::Matrix, S::Error> {
    source.matrix(&[config.block.names.embedding.to_owned()], &[config.vocab_size], config.hidden_size)
}

/// The matrix that turns a row after the last norm into logits, of the same shape as the embedding table; `None` if it is that
/// table.
///
/// # Errors
/// Those of the source.
pub(super) fn load_head<S: Source>(config: &ModelConfig, source: &S) -> Result<Option<S::Matrix>, S::Error> {
    if config.tie_word_embeddings {
        return Ok(None);
    }
    source.matrix(&[config.block.names.head.to_owned()], &[config.vocab_size], config.hidden_size).map(Some)
}

/// A layer as made by a source.
type LayerOf<S> = Layer<<S as Source>::Linear, <S as Source>::Vector>;

/// Makes some consecutive layers.
///
/// # Errors
/// Those of the source.
pub(super) fn load_layers<S>(
    config: &ModelConfig,
    source: &S,
    layers: Range<usize>,
) -> Result<Vec<LayerOf<S>>, S::Error>
where
    S: Source<Linear: Send, Vector: Send>,
{
    layers.into_par_iter().map(|index| Layer::load(config, source, index)).collect()
}

/// Weights of the norm after the last layer.
///
/// # Errors
/// Those of the source.
pub(super) fn load_final_norm<S: Source>(config: &ModelConfig, source: &S) -> Result<S::Vector, S::Error> {
    source.norm(config.block.names.final_norm, config.hidden_size, config.block.norm_offset)
}

impl<L, V> Layer<L, V> {
    fn load<S: Source<Linear = L, Vector = V>>(c: &ModelConfig, source: &S, index: usize) -> Result<Self, S::Error> {
        let (hidden, q, kv) = (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let BlockSpec { names, qkv_bias, output_bias, norm_offset, .. } = &c.block;
        let name = |part: &str| format!("{}{index}.{part}", names.layer);
        let norm = |part: &str, width: usize| source.norm(&name(part), width, *norm_offset);
        let any_norm = |part: Option<&str>| part.map(|part| norm(part, hidden)).transpose();
        let linear = |parts: &[&str], rows: &[usize], inputs, bias| {
            linear(source, parts.iter().map(|part| name(part)), rows, inputs, bias)
        };
        let (query_norm, key_norm) = match c.block.qk_norm_over {
            QkNormOver::Head => (c.head_dim, c.head_dim),
            QkNormOver::AllHeads => (q, kv),
        };
        Ok(Self {
            attention_norm: any_norm(names.attention_norm)?,
            qkv: linear(names.qkv, &[q, kv, kv], hidden, *qkv_bias)?,
            qk_norm: match names.qk_norm {
                Some([query, key]) => Some((norm(query, query_norm)?, norm(key, key_norm)?)),
                None => None,
            },
            output: linear(&[names.output], &[hidden], q, *output_bias)?,
            attention_post_norm: any_norm(names.attention_post_norm)?,
            mlp_norm: any_norm(names.mlp_norm)?,
            feed_forward: FeedForward::load(c, source, index)?,
            mlp_post_norm: any_norm(names.mlp_post_norm)?,
        })
    }
}

impl<L> FeedForward<L> {
    fn load<S: Source<Linear = L>>(c: &ModelConfig, source: &S, index: usize) -> Result<Self, S::Error> {
        let (hidden, inner, names, bias) = (c.hidden_size, c.intermediate_size, &c.block.names, c.block.mlp_bias);
        let name = |part: &str| format!("{}{index}.{part}", names.layer);
        let Some(experts) = c.block.experts.filter(|_| c.layer_kind(index).experts) else {
            return Ok(Self::Gated(Gated {
                gate_up: linear(source, names.gate_up.iter().map(|part| name(part)), &[inner, inner], hidden, bias)?,
                down: linear(source, [name(names.down)], &[hidden], inner, bias)?,
            }));
        };
        let width = experts.width;
        let expert = |number: usize| {
            let [gate, up, down] = experts.names.of(number).map(|part| name(&part));
            Ok(Gated {
                gate_up: linear(source, [gate, up], &[width, width], hidden, bias)?,
                down: linear(source, [down], &[hidden], width, bias)?,
            })
        };
        Ok(Self::Experts {
            router: linear(source, [name(experts.names.router)], &[experts.count], hidden, experts.router_bias)?,
            experts: (0..experts.count).map(expert).collect::<Result<_, _>>()?,
        })
    }
}

/// Stacks matrices; a single name for several matrices stands for one with the rows of all.
fn linear<S: Source>(
    source: &S,
    names: impl IntoIterator<Item = String>,
    rows: &[usize],
    inputs: usize,
    bias: bool,
) -> Result<S::Linear, S::Error> {
    let names: Vec<String> = names.into_iter().collect();
    match names.len() {
        1 => source.linear(&names, &[rows.iter().sum()], inputs, bias),
        _ => source.linear(&names, rows, inputs, bias),
    }
}

/// The number of elements of a decoder's weight matrices.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixNumbers {
    /// All matrices together.
    pub all: usize,
    /// The matrices that one token is multiplied with: of experts, only those that it passes through.
    pub passed: usize,
}

/// The sizes of a model's weight matrices, by part of the model, in elements or in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MatrixSizes {
    /// The embedding table.
    pub embedding: usize,
    /// The output matrix; 0 if it is the embedding.
    pub head: usize,
    /// Each layer, in order.
    pub layers: Vec<usize>,
}

/// The number of elements of the weight matrices, by part of the model.
pub(super) fn matrix_sizes(config: &ModelConfig) -> MatrixSizes {
    let table = product([config.vocab_size, config.hidden_size]);
    // All layers with experts have the same size, and so do all without.
    let [gated, of_experts] = [false, true].map(|experts| {
        let first = (0..config.layers).find(|layer| config.layer_kind(*layer).experts == experts);
        first.map_or(0, |first| layer_numbers(config, first))
    });
    let of_layer = |layer: usize| if config.layer_kind(layer).experts { of_experts } else { gated };
    MatrixSizes {
        embedding: table,
        head: if config.tie_word_embeddings { 0 } else { table },
        layers: (0..config.layers).map(of_layer).collect(),
    }
}

/// The number of elements of the weight matrices of all layers, and of the tables at both ends.
pub(super) fn matrix_numbers(config: &ModelConfig) -> MatrixNumbers {
    let tables = if config.tie_word_embeddings { 1 } else { 2 };
    let tables = product([tables, config.vocab_size, config.hidden_size]);
    // All layers with experts have the same size, and so do all without.
    let [gated, of_experts] = [false, true].map(|experts| {
        let is_such = |layer: &usize| config.layer_kind(*layer).experts == experts;
        let first = (0..config.layers).find(is_such).map_or(0, |first| layer_numbers(config, first));
        (first, (0..config.layers).filter(is_such).count())
    });
    let unused = config
        .block
        .experts
        .map_or(0, |Experts { count, used, width, .. }| product([count - used, 3, width, config.hidden_size]));
    let total =
        |of_expert_layer: usize| sum([tables, product([gated.0, gated.1]), product([of_expert_layer, of_experts.1])]);
    MatrixNumbers { all: total(of_experts.0), passed: total(of_experts.0.saturating_sub(unused)) }
}

/// The number of elements of a layer's weight matrices.
fn layer_numbers(config: &ModelConfig, index: usize) -> usize {
    let asked = Asked::default();
    let Ok(_) = Layer::<(), ()>::load(config, &asked, index);
    let shapes = asked.into_shapes();
    let matrices = shapes.values().filter_map(|shape| <[usize; 2]>::try_from(shape.as_slice()).ok());
    matrices.map(product).fold(0, usize::saturating_add)
}

/// The layer that a tensor belongs to, by its name; `None` for those before and after all layers.
pub(super) fn layer_of(config: &ModelConfig, tensor: &str) -> Option<usize> {
    tensor.strip_prefix(config.block.names.layer)?.split('.').next()?.parse().ok()
}

/// The names and shapes of the tensors that a decoder consists of.
pub(super) fn tensors(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let asked = Asked::default();
    let Ok(_) = Parts::<(), (), ()>::load(config, &asked);
    let mut shapes = asked.into_shapes();
    shapes.extend(sink_names(config).map(|name| (name, vec![config.heads])));
    shapes
}

/// The names of the matrices of all experts of all layers; empty if the model has none.
pub(super) fn expert_names(config: &ModelConfig) -> impl Iterator<Item = String> {
    let of_layer = move |index: usize| {
        let experts = config.block.experts.filter(|_| config.layer_kind(index).experts);
        let name = move |part: String| TensorNames::weight(&format!("{}{index}.{part}", config.block.names.layer));
        experts
            .into_iter()
            .flat_map(move |experts| (0..experts.count).flat_map(move |number| experts.names.of(number)).map(name))
    };
    (0..config.layers).flat_map(of_layer)
}

/// The names of the sinks of all layers, in order; empty if the model has none.
fn sink_names(config: &ModelConfig) -> impl Iterator<Item = String> {
    let names = &config.block.names;
    let of_layer = move |index| names.sinks.map(|part| format!("{}{index}.{part}", names.layer));
    (0..config.layers).filter_map(of_layer)
}

/// The sinks of all layers, `[layer][head]`; empty if the model has none.
///
/// # Errors
/// A tensor that is missing, misshapen or cannot be read.
pub(super) fn sinks(config: &ModelConfig, weights: &Weights) -> Result<Vec<Vec<f32>>, WeightsError> {
    let read = |name: String| Ok(weights.read_for(&name, &[config.heads], WeightDtype::F32)?.to_f32());
    sink_names(config).map(read).collect()
}

/// A source that makes nothing, and records which tensors it is asked for.
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
    /// The source of the tensors.
    pub weights: &'a Weights,
    /// The type that all numbers must fit.
    pub dtype: WeightDtype,
    /// Whether matrices stay in the quantised blocks that they are stored in.
    pub keeps_blocks: bool,
    /// The type that numbers in kept blocks must fit.
    pub blocks_fit: WeightDtype,
}

impl Checkpoint<'_> {
    /// Reads matrices of equal width.
    pub fn matrices(
        &self,
        names: &[String],
        outputs: &[usize],
        inputs: usize,
    ) -> Result<Vec<StoredTensor>, WeightsError> {
        let read = |(name, rows): (&String, &usize)| {
            let name = TensorNames::weight(name);
            let stays = self.keeps_blocks && self.weights.block_type(&name, inputs).is_some();
            let dtype = if stays { self.blocks_fit } else { self.dtype };
            self.weights.read_for(&name, &[*rows, inputs], dtype)
        };
        names.iter().zip(outputs).map(read).collect()
    }

    /// The biases of these matrices, concatenated.
    pub fn biases(&self, names: &[String], outputs: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let read = |(name, n): (&String, &usize)| self.vector(&format!("{name}.bias"), *n);
        Ok(names.iter().zip(outputs).map(read).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The weights of a norm, with `offset` added to each.
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
