//! The decoder: prefill into a prefix, dense and shared or by one method's mask, then steps in which each stream
//! attends by its own method.
//!
//! Streams of one example run in lock-step: all their rows pass each weight matrix together, so the
//! weights are read once for all methods and budgets. A row's arithmetic does not depend on the rows
//! it shares a step with.

use std::ops::Deref;
use std::sync::Arc;

use rayon::prelude::*;

use super::config::ModelConfig;
use super::linear::{Linear, Matrix};
use super::rope::{Rope, RopeTable, Turn, apply};
use super::weights::{Weights, WeightsError};
use crate::attention::calibration::PrefillChunk;
use crate::attention::{Fork, PromptShape, Rotation, SparsePrefill, attend_densely};
use crate::kernels::cpu::elementwise::{rms_norm, silu_gate};
use crate::kv::{KvDtype, LayerKv, Prefix};

/// Prompt tokens that pass the layers together; bounds the memory of activations.
const PREFILL_CHUNK: usize = 2048;

/// Weight bytes up to which threads work on streams of their own rather than share each product:
/// weights that stay in the caches cost nothing to read twice.
const SMALL_MODEL_BYTES: usize = 64 << 20;

/// What a decoder is like, without its weights.
#[derive(Debug, Clone)]
pub struct Dimensions {
    config: ModelConfig,
    rope: Rope,
    dtype: KvDtype,
}

/// A Llama-family decoder with its weights in memory.
pub struct Decoder {
    dimensions: Dimensions,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Matrix,
}

impl Deref for Decoder {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

struct Layer {
    attention_norm: Vec<f32>,
    /// Queries, keys and values stacked.
    qkv: Linear,
    /// Norms of each query and key head (Qwen3).
    qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    output: Linear,
    mlp_norm: Vec<f32>,
    /// Gate and up projections stacked.
    gate_up: Linear,
    down: Linear,
}

/// A NaN or an infinite number came up while tokens were read: nothing that follows from it means anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFinite {
    /// In what a layer passes on.
    #[error(
        "the activations behind layer {layer} are NaN or infinite at position {position}: a calibration, or numbers \
         beyond what --dtype holds (bf16 and f32 hold more than f16)"
    )]
    Activations {
        /// The layer, from 0.
        layer: usize,
        /// The token's position, from 0.
        position: usize,
    },
    /// Behind the last layer.
    #[error("the logits are NaN or infinite at position {position}: numbers beyond what --dtype holds, or odd weights")]
    Logits {
        /// The token's position, from 0.
        position: usize,
    },
}

/// The first row `[width]` of `x` with a number that is not finite.
fn first_not_finite(x: &[f32], width: usize) -> Option<usize> {
    x.iter().position(|x| !x.is_finite()).map(|at| at / width)
}

/// What prefill leaves: the shared prefix and the logits of its last token.
pub struct Prefill {
    /// Keys and values of all layers.
    pub prefix: Arc<Prefix>,
    /// `[vocab_size]`, empty if the prefix is.
    pub logits: Vec<f32>,
}

/// One run's part of a step: tokens to read, in order, under its method.
pub struct Stream<'a> {
    /// The run.
    pub fork: &'a mut Fork,
    /// Tokens that follow what the fork holds; at least one.
    pub tokens: &'a [u32],
}

/// Sees the first position of a chunk and its rows.
type Finished<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// How tokens are read, and who looks on.
#[derive(Default)]
struct Reading<'a, 's> {
    /// Sees each chunk at every layer before it attends.
    observe: Option<&'a mut dyn FnMut(&PrefillChunk<'_>)>,
    /// Sees the first position of each chunk and its rows `[token][hidden]` behind the last layer.
    finished: Option<&'a mut Finished<'a>>,
    /// What rows attend; all earlier tokens if there is none.
    sparse: Option<&'a mut SparsePrefill<'s>>,
}

impl Dimensions {
    /// Of a decoder whose weights, keys and values are stored as `dtype`.
    pub fn new(config: &ModelConfig, dtype: KvDtype) -> Self {
        let rope = Rope::new(&config.rope, config.head_dim, config.max_position_embeddings);
        Self { config: config.clone(), rope, dtype }
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Storage type of weights, keys and values.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// Bytes of all weight matrices in memory.
    pub fn weight_bytes(&self) -> usize {
        let c = &self.config;
        let (attention, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let layer = 2 * (attention + kv) * c.hidden_size + 3 * c.intermediate_size * c.hidden_size;
        let ends = if c.tie_word_embeddings { 1 } else { 2 } * c.vocab_size * c.hidden_size;
        (ends + c.layers * layer) * self.dtype.bytes()
    }

    /// Whether streams should be dealt out to threads instead of sharing each product.
    pub fn is_small(&self) -> bool {
        self.weight_bytes() <= SMALL_MODEL_BYTES
    }

    /// Bytes of keys and values of one token over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        2 * self.config.layers * self.config.kv_heads * self.config.head_dim * self.dtype.bytes()
    }

    /// Bytes that a prefill of `tokens` and its prefix take at most, beyond the weights; `at_once` if a method has to see
    /// all of the prompt at each layer.
    pub fn prefill_bytes(&self, tokens: usize, at_once: bool) -> usize {
        let c = &self.config;
        let rows = if at_once { tokens } else { tokens.min(PREFILL_CHUNK) };
        let widest = 2 * c.intermediate_size + (c.heads + 2 * c.kv_heads) * c.head_dim + 4 * c.hidden_size;
        let packed = 2 * tokens * c.kv_heads * c.head_dim;
        tokens * self.kv_bytes_per_token() + 4 * (2 * rows * widest + packed)
    }

    /// The shape of a prefix of `tokens`, for what is gathered while it is read.
    pub fn prompt_shape(&self, tokens: usize) -> PromptShape {
        let c = &self.config;
        PromptShape { layers: c.layers, heads: c.heads, kv_heads: c.kv_heads, d: c.head_dim, tokens }
    }

    /// Moves queries and keys to other positions in a sequence of up to `tokens`; `None` if the model's
    /// frequencies change within it (`dynamic` scaling, beyond the trained length).
    pub fn rotation(&self, tokens: usize) -> Option<Arc<dyn Rotation>> {
        Turn::new(&self.rope, tokens).map(|turn| Arc::new(turn) as _)
    }
}

impl Decoder {
    /// Reads the weights, converted to the storage type.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen or cannot be read.
    pub fn load(dimensions: &Dimensions, weights: &Weights) -> Result<Self, WeightsError> {
        let Dimensions { config, dtype, .. } = dimensions;
        let loader = Loader { config, weights, dtype: *dtype };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = loader.matrix(&["model.embed_tokens"], &[vocab], hidden)?;
        let head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => loader.matrix(&["lm_head"], &[vocab], hidden)?,
        };
        Ok(Self {
            embedding,
            layers: (0..config.layers).into_par_iter().map(|l| loader.layer(l)).collect::<Result<_, _>>()?,
            norm: loader.vector("model.norm.weight", hidden)?,
            head,
            dimensions: dimensions.clone(),
        })
    }

    /// Reads `tokens` densely into a prefix. `prompt_tokens` is the length of the whole prompt, of which
    /// these are the beginning; only `dynamic` RoPE depends on it.
    ///
    /// # Errors
    /// As for all that reads tokens: [`NotFinite`], with the layer and position where it came up.
    pub fn prefill(&self, tokens: &[u32], prompt_tokens: usize) -> Result<Prefill, NotFinite> {
        self.prefill_observed(tokens, prompt_tokens, &mut |_| {})
    }

    /// As [`prefill`](Self::prefill), showing `observe` the queries, keys and values of every chunk at every
    /// layer, in the order in which they are computed.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn prefill_observed(
        &self,
        tokens: &[u32],
        prompt_tokens: usize,
        observe: &mut dyn FnMut(&PrefillChunk<'_>),
    ) -> Result<Prefill, NotFinite> {
        let reading = Reading { observe: Some(observe), ..Reading::default() };
        self.read_on(self.nothing_read(tokens.len()), tokens, prompt_tokens, reading)
    }

    /// As [`prefill_observed`](Self::prefill_observed), where rows attend what `sparse` leaves them.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn prefill_sparse(
        &self,
        tokens: &[u32],
        prompt_tokens: usize,
        sparse: &mut SparsePrefill<'_>,
        observe: &mut dyn FnMut(&PrefillChunk<'_>),
    ) -> Result<Prefill, NotFinite> {
        let reading = Reading { observe: Some(observe), sparse: Some(sparse), finished: None };
        self.read_on(self.nothing_read(tokens.len()), tokens, prompt_tokens, reading)
    }

    /// As [`prefill`](Self::prefill) of a whole text, or by `sparse`, with the rows `[token][hidden]` behind the last
    /// layer from token `from` on, which [`logits`](Self::logits) takes.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn prefill_rows(
        &self,
        tokens: &[u32],
        from: usize,
        sparse: Option<&mut SparsePrefill<'_>>,
    ) -> Result<(Prefill, Vec<f32>), NotFinite> {
        let hidden = self.config.hidden_size;
        let mut rows = Vec::with_capacity(tokens.len().saturating_sub(from) * hidden);
        let mut keep = |first: usize, x: &[f32]| {
            let skipped = from.saturating_sub(first).min(x.len() / hidden);
            rows.extend_from_slice(&x[skipped * hidden..]);
        };
        let reading = Reading { sparse, finished: Some(&mut keep), observe: None };
        let prefill = self.read_on(self.nothing_read(tokens.len()), tokens, tokens.len(), reading)?;
        Ok((prefill, rows))
    }

    /// Caches of all layers without a token, with room for so many.
    fn nothing_read(&self, tokens: usize) -> Vec<LayerKv> {
        let c = &self.config;
        (0..c.layers).map(|_| LayerKv::new(self.dtype, c.kv_heads, c.head_dim, tokens)).collect()
    }

    /// As [`prefill_observed`](Self::prefill_observed), where the first `kept` of `tokens` were read before, for a prompt
    /// with the [same angles](Self::same_angles), and are still the first of `prefix`. The prefix is the one that
    /// reading all of `tokens` would give, to the bit. `observe` sees what is read now.
    ///
    /// # Errors
    /// [`NotFinite`].
    ///
    /// # Panics
    /// If `kept` is not less than the number of tokens, or more than the prefix has.
    pub fn prefill_after(
        &self,
        prefix: Prefix,
        kept: usize,
        tokens: &[u32],
        prompt_tokens: usize,
        observe: &mut dyn FnMut(&PrefillChunk<'_>),
    ) -> Result<Prefill, NotFinite> {
        assert!(kept < tokens.len(), "the last token is read for its logits");
        let mut kv = prefix.into_layers();
        kv.iter_mut().for_each(|layer| layer.truncate(kept, tokens.len()));
        self.read_on(kv, tokens, prompt_tokens, Reading { observe: Some(observe), ..Reading::default() })
    }

    /// Whether tokens of a prompt of one length are rotated as those of another.
    pub fn same_angles(&self, prompt_tokens: usize, others: usize) -> bool {
        let fixed = |tokens| self.rope.fixed_up_to().is_none_or(|limit| tokens <= limit);
        prompt_tokens == others || fixed(prompt_tokens) && fixed(others)
    }

    /// Reads on, chunk by chunk, from what `kv` holds of `tokens`.
    fn read_on(
        &self,
        mut kv: Vec<LayerKv>,
        tokens: &[u32],
        prompt_tokens: usize,
        mut reading: Reading<'_, '_>,
    ) -> Result<Prefill, NotFinite> {
        let c = &self.config;
        let rows = reading.sparse.as_ref().map_or(PREFILL_CHUNK, |sparse| sparse.chunk_rows(PREFILL_CHUNK));
        let kept = kv.first().map_or(0, LayerKv::tokens);
        let mut table = RopeTable::new(&self.rope, prompt_tokens);
        table.grow(tokens.len());
        let mut last = Vec::new();
        for (i, chunk) in tokens[kept..].chunks(rows).enumerate() {
            let mut x = self.embed(chunk);
            let first = kept + i * rows;
            for (index, kv) in kv.iter_mut().enumerate() {
                self.prefill_layer(index, kv, &table, first, &mut x, &mut reading)?;
            }
            if let Some(finished) = &mut reading.finished {
                finished(first, &x);
            }
            last = x.split_off(x.len() - c.hidden_size);
        }
        let logits = if last.is_empty() { Vec::new() } else { self.logits(&last, |_| tokens.len() - 1)? };
        Ok(Prefill { prefix: Prefix::new(kv), logits })
    }

    /// Logits `[tokens][vocab_size]` at every position of a prompt read densely in one piece.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn all_logits(&self, tokens: &[u32]) -> Result<Vec<f32>, NotFinite> {
        let c = &self.config;
        let mut table = RopeTable::new(&self.rope, tokens.len());
        table.grow(tokens.len());
        let mut x = self.embed(tokens);
        for layer in 0..c.layers {
            let mut kv = LayerKv::new(self.dtype, c.kv_heads, c.head_dim, tokens.len());
            self.prefill_layer(layer, &mut kv, &table, 0, &mut x, &mut Reading::default())?;
        }
        self.logits(&x, |row| row)
    }

    fn prefill_layer(
        &self,
        index: usize,
        kv: &mut LayerKv,
        table: &RopeTable,
        first: usize,
        x: &mut [f32],
        reading: &mut Reading<'_, '_>,
    ) -> Result<(), NotFinite> {
        let (c, layer) = (&self.config, &self.layers[index]);
        let (d, q_width, width) = (c.head_dim, c.heads * c.head_dim, (c.heads + 2 * c.kv_heads) * c.head_dim);
        let mut qkv = layer.qkv.apply(&self.normed(x, &layer.attention_norm));
        qkv.par_chunks_exact_mut(width).enumerate().for_each(|(i, row)| {
            self.rotate(layer, row, table.cos(first + i), table.sin(first + i));
        });
        for row in qkv.chunks_exact(width) {
            let (key, value) = row[q_width..].split_at(c.kv_heads * d);
            kv.append(key, value);
        }
        let queries: Vec<f32> = qkv.chunks_exact(width).flat_map(|row| &row[..q_width]).copied().collect();
        drop(qkv);
        let chunk = PrefillChunk { layer: index, first, queries: &queries, heads: c.heads, kv };
        if let Some(observe) = &mut reading.observe {
            observe(&chunk);
        }
        let mut attended = vec![0.0; queries.len()];
        match &mut reading.sparse {
            Some(sparse) => sparse.attend(&chunk, &mut attended),
            None => attend_densely(&chunk, &mut attended),
        }
        drop(queries);
        add(x, &layer.output.apply(&attended));
        let gate_up = layer.gate_up.apply(&self.normed(x, &layer.mlp_norm));
        let mut gated = vec![0.0; gate_up.len() / 2];
        silu_gate(&gate_up, c.intermediate_size, &mut gated);
        drop(gate_up);
        add(x, &layer.down.apply(&gated));
        let broken = first_not_finite(x, c.hidden_size);
        broken.map_or(Ok(()), |row| Err(NotFinite::Activations { layer: index, position: first + row }))
    }

    /// Feeds each stream its tokens, in lock-step through the layers; returns the logits after the last
    /// token of each. `prompt_tokens` is the length of the example's prompt.
    ///
    /// # Errors
    /// [`NotFinite`], if it came up in any of the streams.
    pub fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<Vec<f32>>, NotFinite> {
        let c = &self.config;
        let x = self.step_rows(streams, prompt_tokens)?;
        let mut end = 0;
        let mut last = Vec::with_capacity(streams.len() * c.hidden_size);
        for stream in streams.iter() {
            end += stream.tokens.len();
            last.extend_from_slice(&x[(end - 1) * c.hidden_size..end * c.hidden_size]);
        }
        let logits = self.logits(&last, |stream| streams[stream].fork.tokens() - 1)?;
        Ok(logits.chunks_exact(c.vocab_size).map(<[f32]>::to_vec).collect())
    }

    /// As [`step`](Self::step), with the logits `[token][vocab_size]` after every token of each stream.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn step_all(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<Vec<f32>>, NotFinite> {
        let positions = positions(streams);
        let x = self.step_rows(streams, prompt_tokens)?;
        let mut logits = self.logits(&x, |row| positions[row])?;
        let mut of_stream = |stream: &Stream<'_>| {
            let rest = logits.split_off(stream.tokens.len() * self.config.vocab_size);
            std::mem::replace(&mut logits, rest)
        };
        Ok(streams.iter().map(&mut of_stream).collect())
    }

    /// The rows `[token][hidden]` of all streams behind the last layer.
    fn step_rows(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, NotFinite> {
        let c = &self.config;
        let positions = positions(streams);
        let angles = self.angles(&positions, prompt_tokens);
        let tokens: Vec<u32> = streams.iter().flat_map(|s| s.tokens).copied().collect();
        let mut x = self.embed(&tokens);
        for (l, layer) in self.layers.iter().enumerate() {
            let qkv = layer.qkv.apply(&self.normed(&x, &layer.attention_norm));
            let attended = self.attend_streams(l, layer, streams, qkv, &angles);
            add(&mut x, &layer.output.apply(&attended));
            let gate_up = layer.gate_up.apply(&self.normed(&x, &layer.mlp_norm));
            let mut gated = vec![0.0; gate_up.len() / 2];
            silu_gate(&gate_up, c.intermediate_size, &mut gated);
            add(&mut x, &layer.down.apply(&gated));
            if let Some(row) = first_not_finite(&x, c.hidden_size) {
                return Err(NotFinite::Activations { layer: l, position: positions[row] });
            }
        }
        Ok(x)
    }

    /// Cos and sin, one after the other, for each row of a step.
    fn angles(&self, positions: &[usize], prompt_tokens: usize) -> Vec<Vec<f32>> {
        let half = self.config.head_dim / 2;
        let row = |position: &usize| {
            let position = *position;
            let mut both = vec![0.0; 2 * half];
            let (cos, sin) = both.split_at_mut(half);
            self.rope.row(position, prompt_tokens.max(position + 1), cos, sin);
            both
        };
        positions.iter().map(row).collect()
    }

    fn attend_streams(
        &self,
        index: usize,
        layer: &Layer,
        streams: &mut [Stream<'_>],
        mut qkv: Vec<f32>,
        angles: &[Vec<f32>],
    ) -> Vec<f32> {
        let c = &self.config;
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let width = q_width + 2 * kv_width;
        let mut attended = vec![0.0; qkv.len() / width * q_width];
        let mut work = Vec::with_capacity(streams.len());
        let (mut qkv_rest, mut out_rest, mut angles_rest) = (qkv.as_mut_slice(), attended.as_mut_slice(), angles);
        for stream in streams {
            let rows = stream.tokens.len();
            let (qkv, out, angle);
            (qkv, qkv_rest) = qkv_rest.split_at_mut(rows * width);
            (out, out_rest) = out_rest.split_at_mut(rows * q_width);
            (angle, angles_rest) = angles_rest.split_at(rows);
            work.push((&mut *stream.fork, qkv, out, angle));
        }
        let attend = |(fork, qkv, out, angles): (&mut Fork, &mut [f32], &mut [f32], &[Vec<f32>])| {
            for ((row, out), angle) in qkv.chunks_exact_mut(width).zip(out.chunks_exact_mut(q_width)).zip(angles) {
                let (cos, sin) = angle.split_at(c.head_dim / 2);
                self.rotate(layer, row, cos, sin);
                let (query, kv) = row.split_at(q_width);
                let (key, value) = kv.split_at(kv_width);
                fork.step(index, query, key, value, out);
            }
        };
        // Where threads have streams of their own this is one thread's share, of which others take when theirs is done.
        work.into_par_iter().for_each(attend);
        attended
    }

    /// Norms (Qwen3) and rotates the query and key heads of one row of the stacked projection.
    fn rotate(&self, layer: &Layer, row: &mut [f32], cos: &[f32], sin: &[f32]) {
        let c = &self.config;
        let (queries, rest) = row.split_at_mut(c.heads * c.head_dim);
        let keys = &mut rest[..c.kv_heads * c.head_dim];
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            for (heads, weight) in [(&mut *queries, q_norm), (&mut *keys, k_norm)] {
                let normed = self.normed(heads, weight);
                heads.copy_from_slice(&normed);
            }
        }
        for head in queries.chunks_exact_mut(c.head_dim).chain(keys.chunks_exact_mut(c.head_dim)) {
            apply(head, cos, sin);
        }
    }

    fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let mut x = vec![0.0; tokens.len() * hidden];
        for (row, token) in x.chunks_exact_mut(hidden).zip(tokens) {
            self.embedding.read_row(*token as usize, row);
        }
        x
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        rms_norm(x, weight, self.config.rms_norm_eps as f32, &mut out);
        out
    }

    /// Logits `[token][vocab_size]` of rows `[token][hidden]` behind the last layer; `position` is that of a row's token.
    ///
    /// # Errors
    /// [`NotFinite::Logits`].
    pub fn logits(&self, x: &[f32], position: impl Fn(usize) -> usize) -> Result<Vec<f32>, NotFinite> {
        let logits = self.head.times(&self.normed(x, &self.norm));
        match first_not_finite(&logits, self.config.vocab_size) {
            Some(row) => Err(NotFinite::Logits { position: position(row) }),
            None => Ok(logits),
        }
    }
}

/// The positions of the tokens that streams are to read, stream by stream.
fn positions(streams: &[Stream<'_>]) -> Vec<usize> {
    streams.iter().flat_map(|s| (0..s.tokens.len()).map(|i| s.fork.tokens() + i)).collect()
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Names and shapes of a checkpoint's tensors.
struct Loader<'a> {
    config: &'a ModelConfig,
    weights: &'a Weights,
    dtype: KvDtype,
}

impl Loader<'_> {
    fn layer(&self, index: usize) -> Result<Layer, WeightsError> {
        let c = self.config;
        let (hidden, q, kv, inner) =
            (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let [wq, wk, wv, wo] = ["q", "k", "v", "o"].map(|p| name(&format!("self_attn.{p}_proj")));
        let [gate, up, down] = ["gate", "up", "down"].map(|p| name(&format!("mlp.{p}_proj")));
        let qk_norm = |part: &str| self.vector(&name(&format!("self_attn.{part}_norm.weight")), c.head_dim);
        Ok(Layer {
            attention_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            qkv: self.linear(&[&wq, &wk, &wv], &[q, kv, kv], hidden, c.qkv_bias)?,
            qk_norm: if c.qk_norm { Some((qk_norm("q")?, qk_norm("k")?)) } else { None },
            output: self.linear(&[&wo], &[hidden], q, c.output_bias)?,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: self.linear(&[&gate, &up], &[inner, inner], hidden, c.mlp_bias)?,
            down: self.linear(&[&down], &[hidden], inner, c.mlp_bias)?,
        })
    }

    fn linear(&self, names: &[&str], outputs: &[usize], inputs: usize, bias: bool) -> Result<Linear, WeightsError> {
        let part = |(name, n): (&&str, &usize)| self.vector(&format!("{name}.bias"), *n);
        let bias: Vec<Vec<f32>> =
            if bias { names.iter().zip(outputs).map(part).collect::<Result<_, _>>()? } else { Vec::new() };
        Ok(Linear { weight: self.matrix(names, outputs, inputs)?, bias: (!bias.is_empty()).then(|| bias.concat()) })
    }

    fn matrix(&self, names: &[&str], outputs: &[usize], inputs: usize) -> Result<Matrix, WeightsError> {
        let read =
            |(name, n): (&&str, &usize)| self.weights.read_for(&format!("{name}.weight"), &[*n, inputs], self.dtype);
        let tensors: Vec<_> = names.iter().zip(outputs).map(read).collect::<Result<_, _>>()?;
        Ok(Matrix::stack(&tensors, inputs, self.dtype))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        Ok(self.weights.read_for(name, &[len], KvDtype::F32)?.to_f32())
    }
}
