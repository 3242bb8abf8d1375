//! The engine on the processor's own cores.
//!
//! Streams of one example pass each weight matrix together, so weights are read once for all methods and budgets. A row's
//! arithmetic does not depend on the rows it shares a step with.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::dimensions::{Dimensions, PREFILL_CHUNK};
use super::engine::{
    Engine, EngineError, KvPlacement, NotFinite, Prefill, Reading, Stream, first_not_finite, positions,
};
use super::families::Gate;
use super::layers::{Checkpoint, FeedForward, Gated, Layer, Parts, Source};
use super::linear::{Linear, Matrix};
use super::rope::{Rope, RopeTable, apply};
use super::routing::routed;
use super::tensors::{WeightDtype, Weights, WeightsError};
use spattn_attention::attend_densely;
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::{DiskPrefill, DiskTier, KvError, LayerKv, Prefix};
use spattn_attention::{AttentionTime, LayerSpecs, Sequence};
use spattn_base::clock::Section;
use spattn_kernels::elementwise::{gelu_tanh_gate, rms_norm, silu_gate};

/// Weight bytes up to which threads work on streams of their own rather than share each product:
/// weights that stay in the caches cost nothing to read twice.
const SMALL_MODEL_BYTES: usize = 64 << 20;
/// Rows that one thread takes through the products of such a model's layer: what is between two products stays in its cache.
const ROWS_TOGETHER: usize = 128;

/// Weights in main memory.
pub(super) struct Cpu {
    dimensions: Dimensions,
    parts: Parts<Matrix, Linear, Vec<f32>>,
}

impl Deref for Cpu {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

impl Engine for Cpu {
    fn read(
        &self,
        known: Option<(Prefix, usize)>,
        tokens: &[u32],
        prompt_tokens: usize,
        mut reading: Reading<'_, '_>,
    ) -> Result<Prefill, EngineError> {
        let c = &self.config;
        let mut kv = match reading.kv {
            KvPlacement::Disk(disk) => KvWriter::on_disk(disk, known, tokens.len())?,
            KvPlacement::Memory | KvPlacement::Host { .. } => self.in_memory(known, tokens.len())?,
        };
        let rows = reading.sparse.as_ref().map_or(PREFILL_CHUNK, |sparse| sparse.chunk_rows(PREFILL_CHUNK));
        let kept = kv.tokens();
        let tables = self.rope_tables(prompt_tokens, tokens.len());
        let mut last = Vec::new();
        for (i, chunk) in tokens[kept..].chunks(rows).enumerate() {
            let mut x = self.embed(chunk);
            let first = kept + i * rows;
            if let Some(passed) = &mut reading.passed {
                passed(0, first, &x);
            }
            let needs_all = reading.sparse.is_some() || reading.passed.is_some() || reading.finished.is_some();
            for index in 0..c.layers {
                // Of what the last layer makes of a prompt, only the last token's row is read; of the others it stores keys and values.
                let wanted = if needs_all || index + 1 < c.layers { chunk.len() } else { 1 };
                let attend = |x: &[f32], qkv| {
                    let at = (&tables[..], first, wanted);
                    Ok(kv.extend(index, |kv| self.attend_chunk(index, kv, at, &mut reading, x, qkv))?)
                };
                self.forward_layer(index, &mut x, |row| first + row, attend)?;
                if let Some(passed) = &mut reading.passed {
                    passed(index + 1, first, &x);
                }
            }
            kv.end_chunk(first + chunk.len());
            if let Some(finished) = &mut reading.finished {
                finished(first, &x);
            }
            last = x.split_off(x.len() - c.hidden_size);
        }
        let logits = if last.is_empty() { Vec::new() } else { self.logits(&last)? };
        Ok(Prefill { prefix: kv.finish(self.layer_specs().clone()), logits })
    }

    fn step(&self, streams: &mut [Stream<'_>], prompt_tokens: usize) -> Result<Vec<f32>, EngineError> {
        let c = &self.config;
        let positions = positions(streams);
        let angles = self.angles(&positions, prompt_tokens);
        let tokens: Vec<u32> = streams.iter().flat_map(|s| s.tokens).copied().collect();
        let mut x = self.embed(&tokens);
        for index in 0..c.layers {
            let attend = |x: &[f32], qkv: Vec<f32>| {
                let (start, before) = (Instant::now(), worked(streams));
                let attended = self.attend_streams(index, streams, (x, qkv), &angles);
                share_elapsed(start.elapsed(), streams, &before);
                attended
            };
            self.forward_layer(index, &mut x, |row| positions[row], attend)?;
        }
        Ok(x)
    }

    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, EngineError> {
        let mut logits = self.parts.head().times(&self.normed(x, &self.parts.norm));
        self.config.block.finish_logits(&mut logits);
        Ok(logits)
    }

    fn gpu(&self) -> Option<&str> {
        None
    }

    fn groups(&self, streams: usize) -> usize {
        let is_small = self.weight_bytes() <= SMALL_MODEL_BYTES;
        if is_small { rayon::current_num_threads().min(streams) } else { 1 }
    }
}

impl Cpu {
    /// Reads the weights, converted to the storage type.
    pub fn load(dimensions: &Dimensions, weights: &Weights) -> Result<Self, WeightsError> {
        let (dtype, keeps_blocks) = (dimensions.storage.weights, dimensions.blocks().is_some());
        // Products with blocks are f32 whatever the storage type.
        let source = Checkpoint { weights, dtype, keeps_blocks, blocks_fit: WeightDtype::F32 };
        Ok(Self { parts: Parts::load(&dimensions.config, &source)?, dimensions: dimensions.clone() })
    }

    /// Caches of all layers in memory, with the tokens that are known, and room for so many.
    fn in_memory(&self, known: Option<(Prefix, usize)>, tokens: usize) -> Result<KvWriter, KvError> {
        let c = &self.config;
        Ok(KvWriter::Memory(match known {
            Some((prefix, kept)) => {
                let mut kv = prefix.into_layers()?;
                kv.iter_mut().for_each(|layer| layer.truncate(kept, tokens));
                kv
            }
            None => (0..c.layers).map(|_| LayerKv::new(self.storage.kv, c.kv_heads, c.head_dim, tokens)).collect(),
        }))
    }

    /// One layer, of prefill and of decoding alike: adds both of its branches to the rows of the residual stream `x`,
    /// `[row][hidden]`, as the [block](crate::families::BlockSpec) describes them.
    ///
    /// `attend` is where the two differ. It is given `x` and the stacked projections `[row][queries, keys, values]`, norms the heads
    /// of q and k and rotates them ([`rotate`](Self::rotate)), stores keys and values, and returns `[row][head][head_dim]`: of all rows or
    /// of the last ones, and then the rows before these are left as they are. `position` is that of a row's token, for errors.
    fn forward_layer(
        &self,
        index: usize,
        x: &mut [f32],
        position: impl Fn(usize) -> usize,
        attend: impl FnOnce(&[f32], Vec<f32>) -> Result<Vec<f32>, EngineError>,
    ) -> Result<(), EngineError> {
        let (layer, hidden) = (&self.parts.layers[index], self.config.hidden_size);
        let qkv = self.project(layer, x);
        let attended = attend(x, qkv)?;
        let width = self.config.heads * self.config.head_dim;
        let skipped = x.len() / hidden - attended.len() / width;
        let x = &mut x[skipped * hidden..];
        let together = self.rows_together(x.len() / hidden);
        let parts = x.par_chunks_mut(together * hidden).zip(attended.par_chunks(together * width));
        parts.for_each(|(x, attended)| self.add_branches(layer, x, attended));
        match first_not_finite(x, hidden) {
            Some(row) => Err(NotFinite::Activations { layer: index, position: position(skipped + row) }.into()),
            None => Ok(()),
        }
    }

    /// Rows of so many that pass a layer's products together. Products of a large model share each weight that is read among all rows.
    fn rows_together(&self, rows: usize) -> usize {
        let parts = if self.weight_bytes() <= SMALL_MODEL_BYTES { rows.div_ceil(ROWS_TOGETHER) } else { 1 };
        rows.div_ceil(parts.max(1)).max(1)
    }

    /// The stacked projections of rows.
    fn project(&self, layer: &Layer<Linear, Vec<f32>>, x: &[f32]) -> Vec<f32> {
        let (hidden, width) = (self.config.hidden_size, layer.qkv.weight.len());
        let of_rows = |x: &[f32]| layer.qkv.apply(&self.normed_if(x, layer.attention_norm.as_deref()));
        let rows = x.len() / hidden;
        let together = self.rows_together(rows);
        if together == rows {
            return of_rows(x);
        }
        let mut qkv = vec![0.0; rows * width];
        let parts = qkv.par_chunks_mut(together * width).zip(x.par_chunks(together * hidden));
        parts.for_each(|(qkv, x)| qkv.copy_from_slice(&of_rows(x)));
        qkv
    }

    /// Adds both branches to rows of the residual stream, from what their heads attended.
    fn add_branches(&self, layer: &Layer<Linear, Vec<f32>>, x: &mut [f32], attended: &[f32]) {
        let output = layer.output.apply(attended);
        self.add_branch(x, output, layer.attention_post_norm.as_deref());
        let output = {
            let normed = self.normed_if(x, layer.mlp_norm.as_deref());
            match &layer.feed_forward {
                FeedForward::Gated(network) => self.pass(network, &normed),
                FeedForward::Experts { router, experts } => self.pass_experts(router, experts, &normed),
            }
        };
        self.add_branch(x, output, layer.mlp_post_norm.as_deref());
    }

    /// Adds a branch's output to `x`, normed and scaled first where the family does that.
    fn add_branch(&self, x: &mut [f32], mut output: Vec<f32>, post_norm: Option<&[f32]>) {
        if let Some(weight) = post_norm {
            output = self.normed(&output, weight);
        }
        let scale = self.config.block.branch_scale;
        if scale != 1.0 {
            output.iter_mut().for_each(|y| *y *= scale);
        }
        add(x, &output);
    }

    /// What a gated network makes of rows.
    fn pass(&self, network: &Gated<Linear>, rows: &[f32]) -> Vec<f32> {
        let gate_up = network.gate_up.apply(rows);
        let gated = self.gated(&gate_up, network.gate_up.weight.len() / 2);
        drop(gate_up);
        network.down.apply(&gated)
    }

    /// What a gate lets pass of rows `[gate, up]`, each `width` wide.
    fn gated(&self, gate_up: &[f32], width: usize) -> Vec<f32> {
        let mut gated = vec![0.0; gate_up.len() / 2];
        match self.config.block.gate {
            Gate::Silu => silu_gate(gate_up, width, &mut gated),
            Gate::GeluTanh => gelu_tanh_gate(gate_up, width, &mut gated),
            Gate::Clamped { slope, limit } => clamped_gate(gate_up, width, (slope, limit), &mut gated),
        }
        gated
    }

    /// What the experts that the router chooses for each row make of it. Outputs are added in the order of the experts, so that a row's
    /// result does not depend on the rows beside it.
    fn pass_experts(&self, router: &Linear, experts: &[Gated<Linear>], rows: &[f32]) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let spec = self.config.block.experts.expect("a layer with experts");
        let mut out = vec![0.0; rows.len()];
        for (expert, routed) in experts.iter().zip(routed(&router.apply(rows), &spec)) {
            if routed.is_empty() {
                continue;
            }
            let own: Vec<f32> = routed.iter().flat_map(|(row, _)| &rows[row * hidden..][..hidden]).copied().collect();
            for (output, (row, weight)) in self.pass(expert, &own).chunks_exact(hidden).zip(routed) {
                let out = &mut out[row * hidden..][..hidden];
                out.iter_mut().zip(output).for_each(|(sum, y)| *sum += weight * y);
            }
        }
        out
    }

    /// Attention of a chunk of a prompt, whose first token is at position `first`: stores keys and values in `kv`, and attends what is
    /// stored, densely or by the mask of `reading`. Returns what the heads of the last `wanted` rows attended.
    fn attend_chunk(
        &self,
        index: usize,
        kv: &mut LayerKv,
        (tables, first, wanted): (&[RopeTable], usize, usize),
        reading: &mut Reading<'_, '_>,
        x: &[f32],
        mut qkv: Vec<f32>,
    ) -> Result<Vec<f32>, KvError> {
        let (c, layer) = (&self.config, &self.parts.layers[index]);
        let (d, q_width, width) = (c.head_dim, c.heads * c.head_dim, (c.heads + 2 * c.kv_heads) * c.head_dim);
        let table = c.layer_kind(index).rope.map(|number| &tables[number]);
        qkv.par_chunks_exact_mut(width).enumerate().for_each(|(i, row)| {
            let position = first + i;
            self.rotate(layer, row, position, table.map(|table| (table.cos(position), table.sin(position))));
        });
        for row in qkv.chunks_exact(width) {
            let (key, value) = row[q_width..].split_at(c.kv_heads * d);
            kv.append(key, value);
        }
        let queries: Vec<f32> = qkv.chunks_exact(width).flat_map(|row| &row[..q_width]).copied().collect();
        drop(qkv);
        let chunk = PrefillChunk::new(index, first, &queries, c.heads, kv)
            .with_input(x)
            .with_spec(self.layer_specs().layer(index));
        if let Some(observe) = &mut reading.observe {
            observe(&chunk)?;
        }
        let skipped = queries.len() / q_width - wanted;
        let mut attended = vec![0.0; wanted * q_width];
        if skipped > 0 {
            let own = PrefillChunk::new(index, first + skipped, &queries[skipped * q_width..], c.heads, kv)
                .with_input(&x[skipped * c.hidden_size..])
                .with_spec(self.layer_specs().layer(index));
            attend_densely(&own, &mut attended)?;
            return Ok(attended);
        }
        match &mut reading.sparse {
            Some(sparse) => sparse.attend(&chunk, &mut attended)?,
            None => attend_densely(&chunk, &mut attended)?,
        }
        Ok(attended)
    }

    /// The RoPE tables of the model, by number, for the first `positions` positions of a prompt of `prompt_tokens`.
    fn rope_tables(&self, prompt_tokens: usize, positions: usize) -> Vec<RopeTable> {
        let grown = |rope: &Rope| {
            let mut table = RopeTable::new(rope, prompt_tokens);
            table.grow(positions);
            table
        };
        self.ropes().iter().map(grown).collect()
    }

    /// Where each row of a step stands, and its angles.
    fn angles(&self, positions: &[usize], prompt_tokens: usize) -> Vec<RowAngles> {
        let row = |position: usize, rope: &Rope| {
            let mut both = vec![0.0; rope.rotated()];
            let (cos, sin) = both.split_at_mut(rope.rotated() / 2);
            rope.row(position, rope.length_at(prompt_tokens, position), cos, sin);
            both
        };
        let of_row = |position: &usize| RowAngles {
            position: *position,
            by_rope: self.ropes().iter().map(|rope| row(*position, rope)).collect(),
        };
        positions.iter().map(of_row).collect()
    }

    /// Attention of a step: each stream stores keys and values of its rows, and attends them by its own method. `x` is what the rows are at
    /// the layer's input.
    fn attend_streams(
        &self,
        index: usize,
        streams: &mut [Stream<'_>],
        (x, mut qkv): (&[f32], Vec<f32>),
        angles: &[RowAngles],
    ) -> Result<Vec<f32>, EngineError> {
        let (c, layer) = (&self.config, &self.parts.layers[index]);
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let width = q_width + 2 * kv_width;
        let mut attended = vec![0.0; qkv.len() / width * q_width];
        let mut work = Vec::with_capacity(streams.len());
        let (mut qkv_rest, mut out_rest, mut angles_rest) = (qkv.as_mut_slice(), attended.as_mut_slice(), angles);
        let mut x_rest = x;
        for stream in streams {
            let rows = stream.tokens.len();
            let (x, qkv, out, angle);
            (x, x_rest) = x_rest.split_at(rows * c.hidden_size);
            (qkv, qkv_rest) = qkv_rest.split_at_mut(rows * width);
            (out, out_rest) = out_rest.split_at_mut(rows * q_width);
            (angle, angles_rest) = angles_rest.split_at(rows);
            work.push((&mut *stream.fork, x, qkv, out, angle));
        }
        type Rows<'r> = (&'r mut Sequence, &'r [f32], &'r mut [f32], &'r mut [f32], &'r [RowAngles]);
        let attend = |(fork, x, qkv, out, angles): Rows<'_>| -> Result<(), KvError> {
            for ((row, out), angles) in qkv.chunks_exact_mut(width).zip(out.chunks_exact_mut(q_width)).zip(angles) {
                self.rotate(layer, row, angles.position, self.turn(index, angles));
                let (query, kv) = row.split_at(q_width);
                let (key, value) = kv.split_at(kv_width);
                fork.step(index, query, key, value, out)?;
            }
            let next = index + 1;
            if next < c.layers && fork.selects_ahead_at(next) {
                let (queries, select) = Section::of(|| self.queries_at(next, x, angles));
                fork.set_queries_ahead(next, queries);
                fork.add_attention_time(AttentionTime { select, ..AttentionTime::default() });
            }
            Ok(())
        };
        // Where threads have streams of their own this is one thread's share, of which others take when theirs is done.
        work.into_par_iter().try_for_each(attend)?;
        Ok(attended)
    }

    /// The queries `[heads][head_dim]` that a layer would make of each row of `x: [row][hidden]`.
    fn queries_at(&self, index: usize, x: &[f32], angles: &[RowAngles]) -> Vec<Vec<f32>> {
        let (c, layer) = (&self.config, &self.parts.layers[index]);
        let mut qkv = self.project(layer, x);
        let rows = qkv.chunks_exact_mut(qkv_width(c)).zip(angles);
        let queries = rows.map(|(row, angles)| {
            self.rotate(layer, row, angles.position, self.turn(index, angles));
            row[..c.heads * c.head_dim].to_vec()
        });
        queries.collect()
    }

    /// The cos and sin by which a row is rotated at a layer; `None` if it is not.
    fn turn<'a>(&self, index: usize, angles: &'a RowAngles) -> Option<(&'a [f32], &'a [f32])> {
        let number = self.config.layer_kind(index).rope?;
        Some(angles.by_rope[number].split_at(angles.by_rope[number].len() / 2))
    }

    /// Norms, where the family does, and rotates the query and key heads of one row of the stacked projection, whose token stands at
    /// `position`: by these cos and sin, or not at all.
    fn rotate(
        &self,
        layer: &Layer<Linear, Vec<f32>>,
        row: &mut [f32],
        position: usize,
        turn: Option<(&[f32], &[f32])>,
    ) {
        let c = &self.config;
        let (queries, rest) = row.split_at_mut(c.heads * c.head_dim);
        let keys = &mut rest[..c.kv_heads * c.head_dim];
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            for (heads, weight) in [(&mut *queries, q_norm), (&mut *keys, k_norm)] {
                let normed = self.normed(heads, weight);
                heads.copy_from_slice(&normed);
            }
        }
        if let Some((cos, sin)) = turn {
            let heads = queries.chunks_exact_mut(c.head_dim).chain(keys.chunks_exact_mut(c.head_dim));
            heads.for_each(|head| apply(head, cos, sin, c.block.rope_pairs));
        }
        if let Some(growth) = c.block.query_growth {
            let factor = growth.factor(position);
            queries.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let mut x = vec![0.0; tokens.len() * hidden];
        for (row, token) in x.chunks_exact_mut(hidden).zip(tokens) {
            self.parts.embedding.read_row(*token as usize, row);
        }
        let scale = self.embedding_scale();
        if scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= scale);
        }
        x
    }

    /// Rows as they are, where the family has no norm.
    fn normed_if<'a>(&self, x: &'a [f32], weight: Option<&[f32]>) -> Cow<'a, [f32]> {
        weight.map_or(Cow::Borrowed(x), |weight| Cow::Owned(self.normed(x, weight)))
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        rms_norm(x, weight, self.config.rms_norm_eps as f32, &mut out);
        out
    }
}

/// Numbers in a row of stacked projections.
fn qkv_width(c: &crate::config::ModelConfig) -> usize {
    (c.heads + 2 * c.kv_heads) * c.head_dim
}

/// The keys and values of a prefix while it is read.
enum KvWriter {
    /// All layers.
    Memory(Vec<LayerKv>),
    /// One layer at a time is in memory.
    Disk(Box<DiskPrefill>),
}

impl KvWriter {
    /// A prefix of `tokens` tokens on disk, with those that are known.
    fn on_disk(disk: &DiskTier, known: Option<(Prefix, usize)>, tokens: usize) -> Result<Self, KvError> {
        // What is not on disk is read again.
        let known = known.and_then(|(prefix, kept)| Some((prefix.into_disk()?, kept)));
        Ok(Self::Disk(Box::new(match known {
            Some((prefix, kept)) => DiskPrefill::after(prefix, kept, tokens),
            None => disk.begin(tokens)?,
        })))
    }

    /// Tokens that all layers have.
    fn tokens(&self) -> usize {
        match self {
            Self::Memory(layers) => layers.first().map_or(0, LayerKv::tokens),
            Self::Disk(prefill) => prefill.tokens(),
        }
    }

    /// Lets `add` append tokens to a layer.
    fn extend<T>(&mut self, layer: usize, add: impl FnOnce(&mut LayerKv) -> Result<T, KvError>) -> Result<T, KvError> {
        match self {
            Self::Memory(layers) => add(&mut layers[layer]),
            Self::Disk(prefill) => {
                let added = add(prefill.load(layer)?)?;
                prefill.store(layer)?;
                Ok(added)
            }
        }
    }

    /// Sets the number of tokens that all layers have, after a chunk.
    fn end_chunk(&mut self, tokens: usize) {
        if let Self::Disk(prefill) = self {
            prefill.end_chunk(tokens);
        }
    }

    fn finish(self, specs: LayerSpecs) -> Arc<Prefix> {
        match self {
            Self::Memory(layers) => Prefix::with_specs(layers, specs),
            Self::Disk(prefill) => Prefix::from_source(specs, Box::new(prefill.finish())),
        }
    }
}

/// [`Gate::Clamped`] of rows `[gate, up]`, each `width` wide.
fn clamped_gate(gate_up: &[f32], width: usize, (slope, limit): (f32, f32), out: &mut [f32]) {
    out.par_chunks_exact_mut(width).zip(gate_up.par_chunks_exact(2 * width)).for_each(|(out, row)| {
        let (gate, up) = row.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let gate = gate.min(limit);
            *out = (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-slope * gate).exp());
        }
    });
}

/// The position of a row of a step, and for each RoPE table of the model its cos and sin there, one after the other.
struct RowAngles {
    position: usize,
    by_rope: Vec<Vec<f32>>,
}

/// What attention has taken each stream so far.
fn worked(streams: &[Stream<'_>]) -> Vec<Duration> {
    streams.iter().map(|stream| stream.fork.attention_time().worked()).collect()
}

/// Shares the time that passed while streams attended, several at a time perhaps, by what each of them took since `before`.
fn share_elapsed(elapsed: Duration, streams: &mut [Stream<'_>], before: &[Duration]) {
    let own: Vec<f64> =
        worked(streams).iter().zip(before).map(|(now, before)| (*now - *before).as_secs_f64()).collect();
    let all: f64 = own.iter().sum();
    for (stream, own) in streams.iter_mut().zip(&own) {
        let elapsed = if all > 0.0 { elapsed.mul_f64(own / all) } else { Duration::ZERO };
        stream.fork.add_attention_time(AttentionTime { elapsed, ..AttentionTime::default() });
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

impl Source for Checkpoint<'_> {
    type Matrix = Matrix;
    type Linear = Linear;
    type Vector = Vec<f32>;
    type Error = WeightsError;

    fn matrix(&self, names: &[String], outputs: &[usize], inputs: usize) -> Result<Matrix, WeightsError> {
        let tensors = self.matrices(names, outputs, inputs)?;
        Ok(match self.keeps_blocks {
            true => Matrix::stack_blocks(tensors, inputs, self.dtype),
            false => Matrix::stack(&tensors, inputs, self.dtype),
        })
    }

    fn linear(&self, names: &[String], outputs: &[usize], inputs: usize, bias: bool) -> Result<Linear, WeightsError> {
        let bias = if bias { Some(self.biases(names, outputs)?) } else { None };
        Ok(Linear { weight: self.matrix(names, outputs, inputs)?, bias })
    }

    fn norm(&self, name: &str, width: usize, offset: f32) -> Result<Vec<f32>, WeightsError> {
        self.norm(name, width, offset)
    }
}
