//! The part of a model that one GPU holds, and what prefill and decode steps share: norms, products, the end of a layer, logits.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use spattn_attention::kv::KvShape;
use spattn_attention::{DevicePrefillError, DeviceScratch};
use spattn_cuda::{
    self as kernels, Buffer, Columns, EmbeddingTable, FiniteCheck, Gpu, GpuError, Into, LayerRule, Norms, Place,
    Positions, QuantisedMatrix, RmsNorm, Rotation, RowPart, Storage, Timeline, WeightMatrix,
};

use super::expert_room::{ExpertRoom, ExpertTables};
use super::host::HostWorkspace;
use super::kv::storage;
use super::weights::{Data, Linear, LoadFailure, Matrix, Part, ToDevice};
use super::workspace::Workspace;
use crate::dimensions::{Dimensions, GPU_PANEL};
use crate::engine::{EngineError, NotFinite};
use crate::families::{Gate, QkNormOver, QueryGrowth, RopePairs};
use crate::layers::{Checkpoint, FeedForward, Gated, Layer, load_embedding, load_final_norm, load_head, load_layers};
use crate::tensors::Weights;

/// Consecutive layers of a model on a GPU, with the embedding table if they begin the model, and the norm and output matrix if they end it.
/// Layers are numbered as in the model; vectors with one entry per layer begin with the segment's first.
pub(super) struct Segment {
    /// Those of the whole model.
    dimensions: Dimensions,
    /// The number of the segment.
    pub(super) number: usize,
    pub(super) gpu: Arc<Gpu>,
    /// The layers of the segment.
    pub(super) range: Range<usize>,
    /// The weights, which copies of the model on the same GPU share.
    weights: Arc<SegmentWeights>,
    /// Room for [`GPU_PANEL`] dequantised weights, if some matrices are in blocks.
    panel: Mutex<Option<Buffer>>,
}

/// The weights of a segment in the memory of its GPU. Nothing writes them after they were loaded.
struct SegmentWeights {
    layers: Vec<Layer<Linear, Buffer>>,
    /// `[vocab_size][hidden]`, if the segment begins the model, or ends it and the table is the output matrix.
    embedding: Option<Matrix>,
    /// What follows the last layer, if the segment ends the model.
    end: Option<End>,
    /// The sink logits of each layer; empty if the model has none.
    sinks: Vec<Buffer>,
    /// The tables of each layer's experts, which point into `layers`.
    experts: Vec<Option<ExpertTables>>,
}

impl SegmentWeights {
    /// Copies the weights of some layers to a GPU, converted to the storage type.
    fn load(dimensions: &Dimensions, weights: &Weights, gpu: &Gpu, range: &Range<usize>) -> Result<Self, LoadFailure> {
        let (begins, ends) = (range.start == 0, range.end == dimensions.config.layers);
        let dtype = dimensions.storage.weights;
        // Dequantised panels are in the storage type.
        let checkpoint = Checkpoint { weights, dtype, keeps_blocks: dimensions.blocks().is_some(), blocks_fit: dtype };
        let (config, source) = (&dimensions.config, ToDevice { checkpoint, gpu });
        let embedding = match begins || ends && config.tie_word_embeddings {
            true => Some(load_embedding(config, &source)?),
            false => None,
        };
        let head = if ends { load_head(config, &source)? } else { None };
        let layers = load_layers(config, &source, range.clone())?;
        let end = match ends {
            true => Some(End { norm: load_final_norm(config, &source)?, head }),
            false => None,
        };
        let specs = range.clone().map(|layer| dimensions.layer_specs().layer(layer));
        let sinks = specs.filter_map(|spec| spec.sinks.as_ref());
        let sinks = sinks.map(|sinks| gpu.upload(sinks)).collect::<Result<_, _>>()?;
        let experts = ExpertTables::of_layers(gpu, &layers, storage(dimensions.dtype()))?;
        Ok(Self { layers, embedding, end, sinks, experts })
    }
}

/// Reserves room for [`GPU_PANEL`] dequantised weights, if some matrices of the model are in blocks.
fn panel(dimensions: &Dimensions, gpu: &Gpu) -> Result<Option<Buffer>, GpuError> {
    let bytes = dimensions.storage.kv.bytes() * GPU_PANEL;
    dimensions.blocks().map(|_| gpu.alloc(bytes)).transpose()
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Weights are freed on the stream that they were loaded on, for which other streams do not wait. After an error nothing reads them.
        let _ = self.gpu.synchronize();
    }
}

/// What follows the last layer.
struct End {
    /// The weights of the norm.
    norm: Buffer,
    /// The output matrix; `None` if it is the embedding table.
    head: Option<Matrix>,
}

/// Which part of a model a segment is.
pub(super) struct Share {
    /// The number of the segment.
    pub(super) number: usize,
    /// The layers of the segment.
    pub(super) layers: Range<usize>,
}

impl Deref for Segment {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

impl From<GpuError> for EngineError {
    fn from(error: GpuError) -> Self {
        Self::Device(error.into())
    }
}

/// The largest number of activation rows that are multiplied by weights in blocks directly, which reads the blocks again for every four
/// rows. For more rows, weights are dequantised first: writing and reading a dequantised weight takes as long as reading its block four
/// times or more.
const FUSED_ROWS: usize = 16;
// A product of one row may read its weights before the previous kernel has ended, and that kernel writes the panel.
const _: () = assert!(FUSED_ROWS > 0, "a panel is multiplied with several rows");

/// The RoPE angles of a step's rows for one table, whose frequencies are in the workspace.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepAngles {
    /// Whether each row has frequencies of its own.
    pub(super) by_row: bool,
    /// The factor of cos and sin.
    pub(super) scaling: f32,
}

impl From<DevicePrefillError> for EngineError {
    fn from(error: DevicePrefillError) -> Self {
        match error {
            DevicePrefillError::Gpu(error) => error.into(),
            DevicePrefillError::Kv(error) => error.into(),
        }
    }
}

/// The value of `broken` while all numbers are finite.
pub(super) const UNBROKEN: u64 = u64::MAX;

impl Segment {
    /// Copies the weights of a part of a model to a GPU, converted to the storage type.
    ///
    /// # Errors
    /// If a tensor is not as expected, or the device cannot hold them.
    pub(super) fn load(
        dimensions: &Dimensions,
        weights: &Weights,
        gpu: Gpu,
        share: Share,
    ) -> Result<Self, LoadFailure> {
        let Share { number, layers: range } = share;
        let weights = SegmentWeights::load(dimensions, weights, &gpu, &range)?;
        let panel = Mutex::new(panel(dimensions, &gpu)?);
        let (dimensions, gpu, weights) = (dimensions.clone(), Arc::new(gpu), Arc::new(weights));
        Ok(Self { dimensions, number, gpu, range, weights, panel })
    }

    /// Makes a segment with the same weights, which computes beside this one. `gpu` is the same device, with a stream of its own.
    pub(super) fn beside(&self, gpu: Gpu) -> Result<Self, GpuError> {
        assert_eq!(gpu.ordinal(), self.gpu.ordinal(), "weights are shared on one GPU");
        // Weights were uploaded on this segment's stream, for which the other one does not wait.
        self.gpu.synchronize()?;
        let (dimensions, range, weights) = (self.dimensions.clone(), self.range.clone(), self.weights.clone());
        let panel = Mutex::new(panel(&dimensions, &gpu)?);
        Ok(Self { dimensions, number: self.number, gpu: Arc::new(gpu), range, weights, panel })
    }

    /// Returns the layer with this number.
    pub(super) fn layer(&self, index: usize) -> &Layer<Linear, Buffer> {
        &self.weights.layers[self.place_of(index)]
    }

    /// Returns the layers of the segment, each with the tables of its experts.
    pub(super) fn layers_and_experts(&self) -> impl Iterator<Item = (&Layer<Linear, Buffer>, Option<&ExpertTables>)> {
        self.weights.layers.iter().zip(self.weights.experts.iter().map(Option::as_ref))
    }

    /// Returns the tables of a layer's experts, if it has any.
    pub(super) fn experts_of(&self, index: usize) -> Option<&ExpertTables> {
        self.weights.experts[self.place_of(index)].as_ref()
    }

    /// Returns the place of a layer within the segment.
    pub(super) fn place_of(&self, layer: usize) -> usize {
        layer - self.range.start
    }

    /// Returns the embedding table, if the segment begins the model.
    fn table(&self) -> Option<&Matrix> {
        self.weights.embedding.as_ref().filter(|_| self.range.start == 0)
    }

    /// Returns the weights of the final norm, and the output matrix.
    ///
    /// # Panics
    /// If the segment does not end the model.
    pub(super) fn end(&self) -> (&Buffer, &Matrix) {
        let SegmentWeights { end, embedding, .. } = &*self.weights;
        let End { norm, head } = end.as_ref().expect("the last segment has the end of the model");
        let head = head.as_ref().or(embedding.as_ref());
        (norm, head.expect("the last segment has the embedding if that is the output matrix"))
    }

    pub(super) fn storage(&self) -> Storage {
        storage(self.dtype())
    }

    pub(super) fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.config.kv_heads, d: self.config.head_dim, dtype: self.dtype() }
    }

    /// Returns the width of a row of queries, and that of a row of queries, keys and values.
    pub(super) fn widths(&self) -> (usize, usize) {
        let c = &self.config;
        (c.heads * c.head_dim, (c.heads + 2 * c.kv_heads) * c.head_dim)
    }

    /// Returns the number of counters of what the device selects for a sequence.
    pub(super) fn counters(&self) -> usize {
        self.range.len() * (self.config.kv_heads + self.config.heads + 1)
    }

    /// Copies the counters of what the device selected for a sequence to the host.
    pub(super) fn download_counters(&self, buffer: &Buffer) -> Result<Vec<u64>, GpuError> {
        let mut counters = vec![0; self.counters()];
        self.gpu.download(buffer, 0, &mut counters)?;
        Ok(counters)
    }

    /// Returns the norms of query and key heads, which are applied where heads are rotated.
    pub(super) fn norms<'a>(&self, layer: &'a Layer<Linear, Buffer>) -> Option<Norms<'a>> {
        let (query, key) = layer.qk_norm.as_ref().filter(|_| self.config.block.qk_norm_over == QkNormOver::Head)?;
        Some(Norms { query, key, eps: self.config.rms_norm_eps as f32 })
    }

    /// Returns what a layer's attention has beyond a plain softmax of scaled products.
    pub(super) fn rule(&self, layer: usize) -> LayerRule<'_> {
        let spec = self.layer_specs().layer(layer);
        LayerRule { window: spec.window, soft_cap: spec.soft_cap, sinks: self.weights.sinks.get(self.place_of(layer)) }
    }

    /// Returns the number of a layer's RoPE table; 0 if the layer is not rotated.
    pub(super) fn place_of_rope(&self, layer: usize) -> usize {
        self.config.layer_kind(layer).rope.unwrap_or(0)
    }

    /// Reserves room for `rows` rows. A workspace that has to grow loses its contents.
    pub(super) fn reserve<'a>(
        &self,
        workspace: &'a mut Option<Workspace>,
        rows: usize,
    ) -> Result<&'a mut Workspace, GpuError> {
        if workspace.as_ref().is_none_or(|workspace| workspace.rows < rows) {
            *workspace = None;
            *workspace = Some(self.make_workspace(rows.next_power_of_two())?);
        }
        Ok(workspace.as_mut().expect("the workspace was made above"))
    }

    pub(super) fn make_workspace(&self, rows: usize) -> Result<Workspace, GpuError> {
        let (c, bytes) = (&self.config, self.dtype().bytes());
        let (width, stacked) = self.widths();
        let gpu = &self.gpu;
        Ok(Workspace {
            rows,
            tokens: gpu.alloc(4 * rows)?,
            positions: gpu.alloc(4 * rows)?,
            x: gpu.alloc(4 * rows * c.hidden_size)?,
            normed: gpu.alloc(bytes * rows * c.hidden_size)?,
            branch: gpu.alloc(4 * rows * self.branch_numbers())?,
            qkv: gpu.alloc(bytes * rows * stacked)?,
            ahead: None,
            last_input: None,
            attended: gpu.alloc(bytes * rows * width)?,
            wide: None,
            gate_up: gpu.alloc(bytes * rows * 2 * c.intermediate_size)?,
            gated: gpu.alloc(bytes * rows * c.intermediate_size)?,
            experts: match &c.block.experts {
                Some(spec) => Some(ExpertRoom::new(gpu, spec, rows, c.hidden_size, self.storage())?),
                None => None,
            },
            broken: gpu.alloc(8)?,
            places: None,
            inverse: Vec::new(),
            logits: None,
            argmax: None,
            attention: Default::default(),
            exact: Vec::new(),
            recorded: None,
            timeline: Timeline::default(),
            work: Vec::new(),
            picks: Vec::new(),
            scratch: DeviceScratch::default(),
            asked: Vec::new(),
            host: HostWorkspace::default(),
        })
    }

    /// Uploads tokens and their positions, and embeds the tokens if the segment begins the model.
    pub(super) fn start(&self, workspace: &mut Workspace, tokens: &[u32], positions: &[u32]) -> Result<(), GpuError> {
        let vocab = self.config.vocab_size as u32;
        assert!(tokens.iter().all(|token| *token < vocab), "a token is not below the {vocab} of the vocabulary");
        self.gpu.upload_to(&mut workspace.tokens, 0, tokens)?;
        self.gpu.upload_to(&mut workspace.positions, 0, positions)?;
        self.gpu.upload_to(&mut workspace.broken, 0, &[UNBROKEN])?;
        workspace.last_input = None;
        let Some(table) = self.table() else { return Ok(()) };
        let Workspace { tokens: ids, x, .. } = workspace;
        let (rows, scale) = (tokens.len(), self.embedding_scale());
        match &table.data {
            Data::Plain(numbers) => {
                let table = EmbeddingTable { numbers, storage: self.storage(), hidden: self.config.hidden_size, scale };
                self.gpu.embed(table, ids, rows, x)
            }
            Data::Parts(parts) => match parts.as_slice() {
                [Part::Blocks(table)] => self.gpu.embed_quantised(table, ids, rows, x, scale),
                _ => unreachable!("a table is one tensor"),
            },
        }
    }

    /// Norms the residual stream into `normed`, or copies it there if there is no weight. `mark` is the number of layers before it.
    pub(super) fn norm(
        &self,
        workspace: &mut Workspace,
        skip: usize,
        rows: usize,
        weight: Option<&Buffer>,
        mark: usize,
        first: usize,
    ) -> Result<(), GpuError> {
        let norm = RmsNorm { weight, eps: self.config.rms_norm_eps as f32, hidden: self.config.hidden_size };
        let Workspace { x, normed, broken, .. } = workspace;
        let check = FiniteCheck { broken, mark: mark as u64, first_row: first as u64 };
        self.gpu.rms_norm(self.storage(), norm, x, skip..skip + rows, normed, check)
    }

    /// Computes one layer, in prefill and decode steps alike: adds both of its branches to the first `rows` rows of the residual stream, as
    /// the [block](crate::families::BlockSpec) describes them. Blocks that these kernels cannot compute are refused before weights are
    /// loaded.
    ///
    /// `attend` is where prefill and decode steps differ: it rotates the stacked queries, keys and values in `workspace.qkv`, stores keys
    /// and values, and writes the attention output to `workspace.attended`. `first` is the number of the first row in reports of numbers
    /// that are not finite.
    pub(super) fn forward_layer<E: From<GpuError>>(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        attend: impl FnOnce(&mut Workspace, &Layer<Linear, Buffer>) -> Result<(), E>,
    ) -> Result<(), E> {
        let layer = self.layer(index);
        self.norm(workspace, 0, rows, layer.attention_norm.as_ref(), index, first)?;
        self.apply(&layer.qkv, &workspace.normed, rows, &mut workspace.qkv, Into::Narrow)?;
        self.norm_all_heads(workspace, rows, layer)?;
        attend(workspace, layer)?;
        Ok(self.finish_layer(workspace, rows, index, first, layer)?)
    }

    /// Rotates the queries, keys and values of a step's rows, and stores keys and values at `workspace.places`.
    pub(super) fn rotate_rows(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        layer: &Layer<Linear, Buffer>,
        angles: &[StepAngles],
    ) -> Result<(), GpuError> {
        let shape = (self.config.kv_heads, self.config.head_dim, self.storage());
        let place = self.place_of_rope(index);
        let StepAngles { by_row, scaling } = angles[place];
        let Workspace { qkv, positions, places: Some(places), inverse, .. } = workspace else {
            unreachable!("places were uploaded before the layers")
        };
        let Some(inverse) = &inverse[place] else { unreachable!("frequencies were uploaded before the layers") };
        let positions = self.angles_at(index, positions, inverse, (by_row, scaling));
        let rotation = self.rotation_of(rows, layer, positions);
        let at = self.place_of(index) * rows * size_of::<Place>();
        self.gpu.rope_scattered(qkv, &rotation, shape, places, at)
    }

    /// Returns how the heads of a layer are rotated: by these frequencies, or not at all.
    pub(super) fn angles_at<'a>(
        &self,
        index: usize,
        positions: &'a Buffer,
        inverse: &'a Buffer,
        (by_row, scaling): (bool, f32),
    ) -> Positions<'a> {
        let rotated = if self.config.layer_kind(index).rope.is_some() { self.config.rotated() } else { 0 };
        let neighbours = self.config.block.rope_pairs == RopePairs::Neighbours;
        Positions { positions, rotated, neighbours, inverse, by_row, scaling }
    }

    /// Returns how the rows of a layer are normed and rotated, and how their queries grow with the position.
    pub(super) fn rotation_of<'a>(
        &self,
        rows: usize,
        layer: &'a Layer<Linear, Buffer>,
        positions: Positions<'a>,
    ) -> Rotation<'a> {
        let growth = self.config.block.query_growth.map(|QueryGrowth { beta, step }| {
            // No position exceeds the largest u32.
            kernels::QueryGrowth { beta, step: u32::try_from(step).unwrap_or(u32::MAX) }
        });
        Rotation { rows, heads: self.config.heads, norms: self.norms(layer), positions, growth }
    }

    /// Norms queries and keys, if one norm spans all heads.
    fn norm_all_heads(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        let Some((query, key)) =
            layer.qk_norm.as_ref().filter(|_| self.config.block.qk_norm_over == QkNormOver::AllHeads)
        else {
            return Ok(());
        };
        let (c, (queries, stacked)) = (&self.config, self.widths());
        let keys = c.kv_heads * c.head_dim;
        for (weight, first, hidden) in [(query, 0, queries), (key, queries, keys)] {
            let norm = RmsNorm { weight: Some(weight), eps: c.rms_norm_eps as f32, hidden };
            self.gpu.norm_part(self.storage(), &mut workspace.qkv, RowPart { rows, stride: stacked, first }, norm)?;
        }
        Ok(())
    }

    /// Adds a branch to the residual stream: its last projection of `x`, normed and scaled first if the family does that.
    fn add_branch(
        &self,
        projection: &Linear,
        x: &Buffer,
        rows: usize,
        (stream, branch): (&mut Buffer, &mut Buffer),
        post_norm: Option<&Buffer>,
    ) -> Result<(), GpuError> {
        if self.branch_numbers() == 0 {
            return self.apply(projection, x, rows, stream, Into::Add);
        }
        let c = &self.config;
        self.apply(projection, x, rows, branch, Into::Wide)?;
        self.gpu.add_branch(
            stream,
            branch,
            rows,
            c.hidden_size,
            post_norm,
            (c.rms_norm_eps as f32, c.block.branch_scale),
        )
    }

    /// Computes the rest of a layer, after attention.
    fn finish_layer(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        let Workspace { attended, x, branch, .. } = &mut *workspace;
        self.add_branch(&layer.output, attended, rows, (x, branch), layer.attention_post_norm.as_ref())?;
        self.norm(workspace, 0, rows, layer.mlp_norm.as_ref(), index + 1, first)?;
        let Gated { gate_up: projection, down } = match &layer.feed_forward {
            FeedForward::Gated(network) => network,
            FeedForward::Experts { router, experts } => {
                return self.pass_experts(workspace, rows, index, router, experts);
            }
        };
        self.apply(projection, &workspace.normed, rows, &mut workspace.gate_up, Into::Narrow)?;
        let Workspace { gate_up, gated, x, branch, .. } = workspace;
        self.gpu.gate(self.gate(), self.storage(), gate_up, rows, gated, self.config.intermediate_size)?;
        self.add_branch(down, gated, rows, (x, branch), layer.mlp_post_norm.as_ref())
    }

    pub(super) fn apply(
        &self,
        linear: &Linear,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        into: Into,
    ) -> Result<(), GpuError> {
        self.multiply(&linear.weight, x, rows, out, into)?;
        let Some(bias) = &linear.bias else { return Ok(()) };
        let storage = if into == Into::Narrow { self.storage() } else { Storage::F32 };
        self.gpu.add_bias(storage, out, rows, bias, linear.weight.outputs)
    }

    /// Computes the queries of `rows` rows of `x` into rows `[queries, keys, values]`. The numbers after the queries are undefined.
    fn apply_to_queries(&self, projection: &Linear, x: &Buffer, rows: usize, out: &mut Buffer) -> Result<(), GpuError> {
        let ((width, stacked), storage) = (self.widths(), self.storage());
        let inputs = projection.weight.inputs;
        match &projection.weight.data {
            Data::Plain(data) => {
                let (weight, columns) =
                    (WeightMatrix { data, outputs: width, inputs }, Columns { first: 0, stride: stacked });
                self.gpu.multiply_columns(storage, weight, x, rows, (&mut *out, columns), Into::Narrow)
            }
            Data::Parts(parts) => {
                self.multiply_parts((parts, width), inputs, (x, rows), (&mut *out, stacked), Into::Narrow)
            }
        }?;
        let Some(bias) = &projection.bias else { return Ok(()) };
        self.gpu.add_bias_to(storage, out, RowPart { rows, stride: stacked, first: 0 }, bias, width)
    }

    /// Computes into `workspace.ahead` the queries that a layer would make of the previous layer's input, for the first `rows` rows. The
    /// input is `last_input`, or else the current residual stream.
    pub(super) fn make_queries_ahead(
        &self,
        workspace: &mut Workspace,
        last_input: Option<&Buffer>,
        rows: usize,
        index: usize,
        angles: &[StepAngles],
    ) -> Result<(), GpuError> {
        let (c, layer) = (&self.config, self.layer(index));
        let ((width, stacked), storage, eps) = (self.widths(), self.storage(), c.rms_norm_eps as f32);
        let Workspace { x, normed, broken, ahead, positions, inverse, .. } = workspace;
        // The layer before has checked its input with the same mark.
        let check = FiniteCheck { broken, mark: index as u64 - 1, first_row: 0 };
        let norm = RmsNorm { weight: layer.attention_norm.as_ref(), eps, hidden: c.hidden_size };
        self.gpu.rms_norm(storage, norm, last_input.unwrap_or(x), 0..rows, normed, check)?;
        let ahead = self.gpu.reserved(ahead, rows * stacked * storage.bytes())?;
        self.apply_to_queries(&layer.qkv, normed, rows, ahead)?;
        if let Some((query, _)) = layer.qk_norm.as_ref().filter(|_| c.block.qk_norm_over == QkNormOver::AllHeads) {
            let norm = RmsNorm { weight: Some(query), eps, hidden: width };
            self.gpu.norm_part(storage, ahead, RowPart { rows, stride: stacked, first: 0 }, norm)?;
        }
        let place = self.place_of_rope(index);
        let StepAngles { by_row, scaling } = angles[place];
        let Some(inverse) = &inverse[place] else { unreachable!("frequencies were uploaded before the layers") };
        let positions = self.angles_at(index, positions, inverse, (by_row, scaling));
        let rotation = self.rotation_of(rows, layer, positions);
        self.gpu.rope_queries(ahead, &rotation, (c.kv_heads, c.head_dim, storage))
    }

    /// Computes `x · Wᵀ` for `rows` rows of `x`, without a bias.
    pub(super) fn multiply(
        &self,
        weight: &Matrix,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        into: Into,
    ) -> Result<(), GpuError> {
        let (&Matrix { ref data, outputs, inputs }, storage) = (weight, self.storage());
        match data {
            Data::Plain(data) => {
                let weight = WeightMatrix { data, outputs, inputs };
                self.gpu.multiply(storage, weight, x, rows, out, into)
            }
            Data::Parts(parts) => self.multiply_parts((parts, outputs), inputs, (x, rows), (out, outputs), into),
        }
    }

    /// Does what [`multiply`](Self::multiply) does for the parts of a matrix that hold its first `wanted` outputs; rows of `out` have
    /// `stride` numbers.
    fn multiply_parts(
        &self,
        (parts, wanted): (&[Part], usize),
        inputs: usize,
        (x, rows): (&Buffer, usize),
        (out, stride): (&mut Buffer, usize),
        into: Into,
    ) -> Result<(), GpuError> {
        let storage = self.storage();
        let mut columns = Columns { first: 0, stride };
        for part in parts {
            if columns.first >= wanted {
                break;
            }
            let out = (&mut *out, columns);
            match part {
                Part::Plain { data, outputs } => {
                    let weight = WeightMatrix { data, outputs: *outputs, inputs };
                    self.gpu.multiply_columns(storage, weight, x, rows, out, into)
                }
                Part::Blocks(blocks) if rows <= FUSED_ROWS => {
                    self.gpu.multiply_quantised(storage, blocks, x, rows, out, into)
                }
                Part::Blocks(blocks) => self.multiply_by_panels(blocks, x, rows, out, into),
            }?;
            columns.first += part.outputs();
        }
        Ok(())
    }

    /// Dequantises as many rows of the weights as fit the panel at a time, and multiplies by them.
    fn multiply_by_panels(
        &self,
        part: &QuantisedMatrix,
        x: &Buffer,
        rows: usize,
        (out, columns): (&mut Buffer, Columns),
        into: Into,
    ) -> Result<(), GpuError> {
        let mut panel = self.panel.lock().unwrap_or_else(PoisonError::into_inner);
        let panel = panel.as_mut().expect("a panel was allocated with the first blocks");
        let inputs = part.inputs();
        let most = (GPU_PANEL / inputs).max(1);
        for first in (0..part.outputs()).step_by(most) {
            let outputs = most.min(part.outputs() - first);
            self.gpu.dequantise(self.storage(), part, first, outputs, panel)?;
            let columns = Columns { first: columns.first + first, ..columns };
            let weight = WeightMatrix { data: panel, outputs, inputs };
            self.gpu.multiply_columns(self.storage(), weight, x, rows, (&mut *out, columns), into)?;
        }
        Ok(())
    }

    /// Returns the activation function of gates.
    pub(super) fn gate(&self) -> kernels::Gate {
        match self.config.block.gate {
            Gate::Silu => kernels::Gate::Silu,
            Gate::GeluTanh => kernels::Gate::GeluTanh,
            Gate::Clamped { slope, limit } => kernels::Gate::Clamped { slope, limit },
        }
    }

    /// Computes the logits of `rows` rows of the residual stream from row `skip` on.
    pub(super) fn logits_of(
        &self,
        workspace: &mut Workspace,
        skip: usize,
        rows: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let logits = self.launch_logits(workspace, skip, rows)?;
        let mut out = vec![0.0; rows * self.end().1.outputs];
        self.gpu.download(logits, 0, &mut out)?;
        self.config.block.finish_logits(&mut out);
        Ok(out)
    }

    /// Returns the most likely token after each of `rows` rows of the residual stream; `None` for a row whose logits are not all finite.
    pub(super) fn argmax_of(&self, workspace: &mut Workspace, rows: usize) -> Result<Vec<Option<u32>>, GpuError> {
        self.launch_logits(workspace, 0, rows)?;
        let Workspace { logits: Some(logits), argmax, .. } = workspace else {
            unreachable!("`launch_logits` reserved the logits")
        };
        self.gpu.argmax(logits, (rows, self.end().1.outputs), argmax)
    }

    /// Computes the logits of the first `rows` rows of the residual stream into new memory, as the output matrix gives them. Waits for
    /// them, so that a caller can time the product.
    pub(super) fn logits_on_device(&self, workspace: &mut Workspace, rows: usize) -> Result<Buffer, GpuError> {
        let (norm, head) = self.end();
        self.norm(workspace, 0, rows, Some(norm), self.config.layers, 0)?;
        let mut logits = self.gpu.alloc(4 * rows * head.outputs)?;
        self.multiply(head, &workspace.normed, rows, &mut logits, Into::Wide)?;
        self.gpu.synchronize()?;
        Ok(logits)
    }

    /// Enqueues the logits of `rows` rows of the residual stream from row `skip` on, as the output matrix gives them.
    fn launch_logits<'w>(
        &self,
        workspace: &'w mut Workspace,
        skip: usize,
        rows: usize,
    ) -> Result<&'w mut Buffer, GpuError> {
        let (norm, head) = self.end();
        self.norm(workspace, skip, rows, Some(norm), self.config.layers, 0)?;
        let Workspace { normed, logits, .. } = workspace;
        let logits = self.gpu.reserved(logits, 4 * rows * head.outputs)?;
        self.multiply(head, normed, rows, logits, Into::Wide)?;
        Ok(logits)
    }

    /// Fails if a number between the layers was not finite. `position` turns a row number, as the norms count rows, into its position.
    pub(super) fn check(&self, workspace: &Workspace, position: impl Fn(usize) -> usize) -> Result<(), EngineError> {
        let mut broken = [0u64];
        self.gpu.download(&workspace.broken, 0, &mut broken)?;
        let [broken] = broken;
        if broken == UNBROKEN {
            return Ok(());
        }
        let (mark, row) = ((broken >> 32) as usize, (broken & u64::from(u32::MAX)) as usize);
        Err(NotFinite::Activations { layer: mark.saturating_sub(1), position: position(row) }.into())
    }
}
