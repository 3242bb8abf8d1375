//! A model's weights on a GPU, and what prompts and steps compute alike: norms, products, the end of a layer, logits.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use spattn_attention::kv::KvShape;
use spattn_attention::{DevicePrefillError, DeviceScratch};
use spattn_cuda::{
    AttentionWorkspace, Buffer, FiniteCheck, Gpu, GpuError, Into, Norms, Place, Positions, RmsNorm, Rotation, Storage,
    Timeline,
};

use super::host::HostWorkspace;
use super::kv::storage;
use super::weights::{Linear, LoadFailure, Matrix, ToDevice};
use super::workspace::Workspace;
use crate::dimensions::Dimensions;
use crate::engine::{EngineError, GpuUse, NotFinite};
use crate::layers::{Checkpoint, Layer, Parts};

/// Weights on a GPU.
pub struct Cuda {
    pub(super) dimensions: Dimensions,
    pub(super) gpu: Arc<Gpu>,
    pub(super) name: String,
    pub(super) parts: Parts<Matrix, Linear, Buffer>,
    pub(super) workspace: Mutex<Option<Workspace>>,
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

impl From<DevicePrefillError> for EngineError {
    fn from(error: DevicePrefillError) -> Self {
        match error {
            DevicePrefillError::Gpu(error) => error.into(),
            DevicePrefillError::Kv(error) => error.into(),
        }
    }
}

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
        let checkpoint = Checkpoint { weights, dtype: dimensions.storage.weights };
        let parts = Parts::load(&dimensions.config, &ToDevice { checkpoint, gpu: &gpu })?;
        let name = gpu.info()?.name;
        Ok(Self {
            dimensions: dimensions.clone(),
            gpu: Arc::new(gpu),
            name,
            parts,
            workspace: Mutex::default(),
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
    pub(super) fn start(&self, workspace: &mut Workspace, tokens: &[u32], positions: Vec<u32>) -> Result<(), GpuError> {
        let vocab = self.config.vocab_size as u32;
        assert!(tokens.iter().all(|token| *token < vocab), "a token is not below the {vocab} of the vocabulary");
        self.gpu.upload_to(&mut workspace.tokens, 0, tokens)?;
        self.gpu.upload_to(&mut workspace.positions, 0, &positions)?;
        self.gpu.upload_to(&mut workspace.broken, 0, &[UNBROKEN])?;
        let (hidden, table) = (self.config.hidden_size, &self.parts.embedding.data);
        self.gpu.embed(self.storage(), table, &workspace.tokens, tokens.len(), &mut workspace.x, hidden)
    }

    /// Norms the residual stream into `normed`. `mark` says behind how many layers it is.
    pub(super) fn norm(
        &self,
        workspace: &mut Workspace,
        skip: usize,
        rows: usize,
        weight: &Buffer,
        mark: usize,
        first: usize,
    ) -> Result<(), GpuError> {
        let norm = RmsNorm { weight, eps: self.config.rms_norm_eps as f32, hidden: self.config.hidden_size };
        let Workspace { x, normed, broken, .. } = workspace;
        let check = FiniteCheck { broken, mark: mark as u64, first_row: first as u64 };
        self.gpu.rms_norm(self.storage(), norm, x, skip..skip + rows, normed, check)
    }

    /// One layer, of prefill and of decoding alike: adds both of its branches to the first `rows` rows of the residual stream, as the
    /// [block](crate::families::BlockSpec) describes them; what these kernels do not do is refused when weights are loaded.
    ///
    /// `attend` is where prefill and steps differ: it rotates the stacked queries, keys and values in `room.qkv`, stores keys and
    /// values, and writes what is attended to `room.attended`. `first` is what numbers of rows count from where one is not finite.
    pub(super) fn forward_layer<E: From<GpuError>>(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        attend: impl FnOnce(&mut Workspace, &Layer<Linear, Buffer>) -> Result<(), E>,
    ) -> Result<(), E> {
        let layer = &self.parts.layers[index];
        self.norm(workspace, 0, rows, &layer.attention_norm, index, first)?;
        self.apply(&layer.qkv, &workspace.normed, rows, &mut workspace.qkv, Into::Narrow)?;
        attend(workspace, layer)?;
        Ok(self.finish_layer(workspace, rows, index, first, layer)?)
    }

    /// Rotates the queries, keys and values of a step's rows, and stores keys and values where `room.places` says.
    pub(super) fn rotate_rows(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        layer: &Layer<Linear, Buffer>,
        (by_row, scaling): (bool, f32),
    ) -> Result<(), GpuError> {
        let shape = (self.config.kv_heads, self.config.head_dim, self.storage());
        let Workspace { qkv, positions, places: Some(places), inverse: Some(inverse), .. } = workspace else {
            unreachable!("places and frequencies were uploaded before the layers")
        };
        let positions = Positions { positions, inverse, by_row, scaling };
        let rotation = Rotation { rows, heads: self.config.heads, norms: self.norms(layer), positions };
        self.gpu.rope_scattered(qkv, &rotation, shape, places, index * rows * size_of::<Place>())
    }

    /// What follows attention at a layer.
    fn finish_layer(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        first: usize,
        layer: &Layer<Linear, Buffer>,
    ) -> Result<(), GpuError> {
        self.apply(&layer.output, &workspace.attended, rows, &mut workspace.x, Into::Add)?;
        self.norm(workspace, 0, rows, &layer.mlp_norm, index + 1, first)?;
        self.apply(&layer.gate_up, &workspace.normed, rows, &mut workspace.gate_up, Into::Narrow)?;
        let Workspace { gate_up, gated, x, .. } = workspace;
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
        self.gpu.multiply(self.storage(), linear.weight.as_operand(), x, rows, out, into)?;
        let Some(bias) = &linear.bias else { return Ok(()) };
        let storage = if into == Into::Narrow { self.storage() } else { Storage::F32 };
        self.gpu.add_bias(storage, out, rows, bias, linear.weight.outputs)
    }

    /// Logits of `rows` rows of the residual stream from row `skip` on.
    pub(super) fn logits_of(
        &self,
        workspace: &mut Workspace,
        skip: usize,
        rows: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let head = self.parts.head();
        self.norm(workspace, skip, rows, &self.parts.norm, self.config.layers, 0)?;
        let Workspace { normed, logits, .. } = workspace;
        let logits = self.gpu.reserved(logits, 4 * rows * head.outputs)?;
        self.gpu.multiply(self.storage(), head.as_operand(), normed, rows, logits, Into::Wide)?;
        let mut out = vec![0.0; rows * head.outputs];
        self.gpu.download(logits, 0, &mut out)?;
        Ok(out)
    }

    /// Fails if a number between the layers was not finite; `position` is that of a row as the norms counted them.
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
