//! A model's weights on a GPU, and what prompts and steps compute alike: norms, products, the end of a layer, logits.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use spattn_attention::DeviceScratch;
use spattn_attention::kv::KvShape;
use spattn_cuda::{
    AttentionWorkspace, Buffer, Columns, Gpu, GpuError, Into, Norms, Place, Positions, QuantisedMatrix, Storage,
    Timeline,
};

use super::host::HostWorkspace;
use super::kv::storage;
use super::weights::{Data, Linear, LoadFailure, Matrix, ToDevice};
use super::workspace::Workspace;
use crate::dimensions::{Dimensions, GPU_PANEL};
use crate::engine::{EngineError, GpuUse, NotFinite};
use crate::layers::{Checkpoint, Layer, Parts};

/// Weights on a GPU.
pub struct Cuda {
    pub(super) dimensions: Dimensions,
    pub(super) gpu: Arc<Gpu>,
    pub(super) name: String,
    pub(super) parts: Parts<Matrix, Linear, Buffer>,
    /// Room for [`GPU_PANEL`] dequantised weights, if there are matrices in blocks. It stays where it is: steps are recorded.
    panel: Mutex<Option<Buffer>>,
    pub(super) room: Mutex<Option<Workspace>>,
    pub(super) used: Mutex<GpuUse>,
}

impl Deref for Cuda {
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

/// Most rows of activations for which weights in blocks are read again for each four, and not dequantised: a dequantised weight is
/// written once and read once, which takes as long as reading its block four times or more.
const FUSED_ROWS: usize = 16;

/// What `broken` holds while all numbers are finite.
pub(super) const UNBROKEN: u64 = u64::MAX;

impl Cuda {
    /// Takes the weights to a GPU, converted to the storage type.
    ///
    /// # Errors
    /// If a tensor is not what it should be, or the device cannot take them.
    pub(crate) fn load(
        dimensions: &Dimensions,
        weights: &crate::tensors::Weights,
        gpu: Gpu,
    ) -> Result<Self, LoadFailure> {
        let checkpoint =
            Checkpoint { weights, dtype: dimensions.storage.weights, keeps_blocks: dimensions.blocks().is_some() };
        let parts = Parts::load(&dimensions.config, &ToDevice { checkpoint, gpu: &gpu })?;
        let name = gpu.info()?.name;
        let panel = match dimensions.blocks() {
            Some(_) => Some(gpu.alloc(dimensions.storage.kv.bytes() * GPU_PANEL)?),
            None => None,
        };
        Ok(Self {
            panel: Mutex::new(panel),
            dimensions: dimensions.clone(),
            gpu: Arc::new(gpu),
            name,
            parts,
            room: Mutex::default(),
            used: Mutex::default(),
        })
    }

    pub(super) fn storage(&self) -> Storage {
        storage(self.dtype())
    }

    pub(super) fn shape(&self) -> KvShape {
        KvShape { kv_heads: self.config.kv_heads, d: self.config.head_dim, dtype: self.dtype() }
    }

    /// Numbers in a row of queries, and in one of queries, keys and values.
    pub(super) fn widths(&self) -> (usize, usize) {
        let c = &self.config;
        (c.heads * c.head_dim, (c.heads + 2 * c.kv_heads) * c.head_dim)
    }

    /// Counters of what the device picks for a run.
    pub(super) fn counters(&self) -> usize {
        self.config.layers * (self.config.kv_heads + self.config.heads + 1)
    }

    pub(super) fn norms<'a>(&self, layer: &'a Layer<Linear, Buffer>) -> Option<Norms<'a>> {
        let (query, key) = layer.qk_norm.as_ref()?;
        Some(Norms { query, key, eps: self.config.rms_norm_eps as f32 })
    }

    /// Room for so many rows; what it held is lost where it has to grow.
    pub(super) fn reserve<'a>(
        &self,
        room: &'a mut Option<Workspace>,
        rows: usize,
    ) -> Result<&'a mut Workspace, GpuError> {
        if room.as_ref().is_none_or(|room| room.rows < rows) {
            *room = None;
            *room = Some(self.make_room(rows.next_power_of_two())?);
        }
        Ok(room.as_mut().expect("it was made"))
    }

    pub(super) fn make_room(&self, rows: usize) -> Result<Workspace, GpuError> {
        let (c, bytes) = (&self.config, self.dtype().bytes());
        let (width, stacked) = self.widths();
        let gpu = &self.gpu;
        Ok(Workspace {
            rows,
            tokens: gpu.alloc(4 * rows)?,
            positions: gpu.alloc(4 * rows)?,
            x: gpu.alloc(4 * rows * c.hidden_size)?,
            normed: gpu.alloc(bytes * rows * c.hidden_size)?,
            qkv: gpu.alloc(bytes * rows * stacked)?,
            attended: gpu.alloc(bytes * rows * width)?,
            wide: None,
            gate_up: gpu.alloc(bytes * rows * 2 * c.intermediate_size)?,
            gated: gpu.alloc(bytes * rows * c.intermediate_size)?,
            broken: gpu.alloc(8)?,
            places: None,
            inverse: None,
            logits: None,
            attention: AttentionWorkspace::default(),
            exact: Vec::new(),
            recorded: None,
            timeline: Timeline::default(),
            work: Vec::new(),
            picks: Vec::new(),
            scratch: DeviceScratch::default(),
            host: HostWorkspace::default(),
        })
    }

    /// Embeds tokens, and notes where they stand.
    pub(super) fn start(&self, room: &mut Workspace, tokens: &[u32], positions: Vec<u32>) -> Result<(), GpuError> {
        let vocab = self.config.vocab_size as u32;
        assert!(tokens.iter().all(|token| *token < vocab), "tokens were compared with the vocabulary");
        self.gpu.upload_to(&mut room.tokens, 0, tokens)?;
        self.gpu.upload_to(&mut room.positions, 0, &positions)?;
        self.gpu.upload_to(&mut room.broken, 0, &[UNBROKEN])?;
        match &self.parts.embedding.data {
            Data::Plain(table) => {
                let hidden = self.config.hidden_size;
                self.gpu.embed(self.storage(), table, &room.tokens, tokens.len(), &mut room.x, hidden)
            }
            Data::Blocks(parts) => match parts.as_slice() {
                [table] => self.gpu.embed_quantised(table, &room.tokens, tokens.len(), &mut room.x),
                _ => unreachable!("a table is one tensor"),
            },
        }
    }

    /// Norms the residual stream into `normed`. `mark` says behind how many layers it is.
    pub(super) fn norm(
        &self,
        room: &mut Workspace,
        skip: usize,
        rows: usize,
        weight: &Buffer,
        mark: usize,
        first: usize,
    ) -> Result<(), GpuError> {
        let (storage, hidden, eps) = (self.storage(), self.config.hidden_size, self.config.rms_norm_eps as f32);
        let Workspace { x, normed, broken, .. } = room;
        self.gpu.rms_norm(storage, x, skip, rows, weight, eps, normed, hidden, (mark as u64, first as u64, broken))
    }

    /// One layer, of prefill and of decoding alike: adds both of its branches to the first `rows` rows of the residual stream, as the
    /// [block](crate::families::BlockSpec) describes them; what these kernels do not do is refused when weights are loaded.
    ///
    /// `attend` is where prefill and steps differ: it rotates the stacked queries, keys and values in `room.qkv`, stores keys and
    /// values, and writes what is attended to `room.attended`. `first` is what numbers of rows count from where one is not finite.
    pub(super) fn forward_layer<E: From<GpuError>>(
        &self,
        room: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        attend: impl FnOnce(&mut Workspace, &Layer<Linear, Buffer>) -> Result<(), E>,
    ) -> Result<(), E> {
        let layer = &self.parts.layers[index];
        self.norm(room, 0, rows, &layer.attention_norm, index, first)?;
        self.apply(&layer.qkv, &room.normed, rows, &mut room.qkv, Into::Narrow)?;
        attend(room, layer)?;
        Ok(self.finish_layer(room, rows, index, first, layer)?)
    }

    /// Rotates the queries, keys and values of a step's rows, and stores keys and values where `room.places` says.
    pub(super) fn rotate_rows(
        &self,
        room: &mut Workspace,
        rows: usize,
        index: usize,
        layer: &Layer<Linear, Buffer>,
        (by_row, scaling): (bool, f32),
    ) -> Result<(), GpuError> {
        let shape = (self.config.kv_heads, self.config.head_dim, self.storage());
        let Workspace { qkv, positions, places: Some(places), inverse: Some(inverse), .. } = room else {
            unreachable!("both were sent")
        };
        let at = Positions { positions, inverse, by_row, scaling };
        let (norms, offset) = (self.norms(layer), index * rows * size_of::<Place>());
        self.gpu.rope_scattered(qkv, rows, &at, self.config.heads, norms.as_ref(), shape, places, offset)
    }

    /// What follows attention at a layer.
    fn finish_layer(
        &self,
        room: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        self.apply(&layer.output, &room.attended, rows, &mut room.x, Into::Add)?;
        self.norm(room, 0, rows, &layer.mlp_norm, index + 1, first)?;
        self.apply(&layer.gate_up, &room.normed, rows, &mut room.gate_up, Into::Narrow)?;
        let Workspace { gate_up, gated, x, .. } = room;
        self.gpu.silu_gate(self.storage(), gate_up, rows, gated, self.config.intermediate_size)?;
        self.apply(&layer.down, gated, rows, x, Into::Add)
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

    /// `x · Wᵀ` for `rows` rows of `x`.
    pub(super) fn multiply(
        &self,
        weight: &Matrix,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        into: Into,
    ) -> Result<(), GpuError> {
        let Matrix { data, outputs, inputs } = weight;
        let parts = match data {
            Data::Plain(data) => {
                return self.gpu.multiply(self.storage(), data, x, rows, out, *outputs, *inputs, into);
            }
            Data::Blocks(parts) => parts,
        };
        let mut columns = Columns { first: 0, stride: *outputs };
        for part in parts {
            match rows <= FUSED_ROWS {
                true => self.gpu.multiply_quantised(self.storage(), part, x, rows, out, columns, into)?,
                false => self.multiply_by_panels(part, *inputs, x, rows, out, columns, into)?,
            }
            columns.first += part.outputs();
        }
        Ok(())
    }

    /// Dequantises some rows of the weights at a time, as many as the panel has room for, and multiplies by these.
    #[allow(clippy::too_many_arguments)]
    fn multiply_by_panels(
        &self,
        part: &QuantisedMatrix,
        inputs: usize,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        columns: Columns,
        into: Into,
    ) -> Result<(), GpuError> {
        let mut panel = self.panel.lock().unwrap_or_else(PoisonError::into_inner);
        let panel = panel.as_mut().expect("there is one where there are blocks");
        let most = (GPU_PANEL / inputs).max(1);
        for first in (0..part.outputs()).step_by(most) {
            let count = most.min(part.outputs() - first);
            self.gpu.dequantise(self.storage(), part, first, count, panel)?;
            let columns = Columns { first: columns.first + first, ..columns };
            self.gpu.multiply_columns(self.storage(), panel, x, rows, out, count, inputs, columns, into)?;
        }
        Ok(())
    }

    /// Logits of `rows` rows of the residual stream from row `skip` on.
    pub(super) fn logits_of(&self, room: &mut Workspace, skip: usize, rows: usize) -> Result<Vec<f32>, EngineError> {
        let head = self.parts.head();
        self.norm(room, skip, rows, &self.parts.norm, self.config.layers, 0)?;
        self.gpu.reserve(&mut room.logits, 4 * rows * head.outputs)?;
        let Workspace { normed, logits, .. } = room;
        let logits = logits.as_mut().expect("it was reserved");
        self.multiply(head, normed, rows, logits, Into::Wide)?;
        let mut out = vec![0.0; rows * head.outputs];
        self.gpu.download(logits, 0, &mut out)?;
        Ok(out)
    }

    /// Fails if a number between the layers was not finite; `position` is that of a row as the norms counted them.
    pub(super) fn check(&self, room: &Workspace, position: impl Fn(usize) -> usize) -> Result<(), EngineError> {
        let mut broken = [0u64];
        self.gpu.download(&room.broken, 0, &mut broken)?;
        let [broken] = broken;
        if broken == UNBROKEN {
            return Ok(());
        }
        let (mark, row) = ((broken >> 32) as usize, (broken & u64::from(u32::MAX)) as usize);
        Err(NotFinite::Activations { layer: mark.saturating_sub(1), position: position(row) }.into())
    }
}
