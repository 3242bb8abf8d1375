//! Buffers for experts: tables of their matrices, and activations.

use spattn_cuda::{Buffer, ExpertMatrices, Gpu, GpuError, Storage};

use super::weights::Linear;
use crate::families::Experts;
use crate::layers::{FeedForward, Gated, Layer};

/// The largest number of rows for which each row reads its experts' matrices itself.
pub(super) const FEW_ROWS: usize = 8;

/// Tables of the matrices and biases of a layer's experts, if all matrices are in the storage type.
pub(super) struct ExpertTables {
    pub(super) gate_up: ExpertMatrices,
    pub(super) down: ExpertMatrices,
}

impl ExpertTables {
    /// Makes each layer's tables; `None` for layers without experts or with experts in blocks.
    pub(super) fn of_layers<'a>(
        gpu: &Gpu,
        layers: &'a [Layer<Linear, Buffer>],
        storage: Storage,
    ) -> Result<Vec<Option<Self>>, GpuError> {
        let plain = |experts: &'a [Gated<Linear>], part: fn(&Gated<Linear>) -> &Linear| -> Option<Vec<&'a Buffer>> {
            experts.iter().map(|expert| part(expert).weight.plain()).collect()
        };
        let table = |matrices: &[&Buffer], experts: &[Gated<Linear>], part: fn(&Gated<Linear>) -> &Linear| {
            let biases: Vec<&Buffer> = experts.iter().filter_map(|expert| part(expert).bias.as_ref()).collect();
            let first = &part(&experts[0]).weight;
            gpu.expert_matrices(matrices, &biases, (first.outputs, first.inputs, storage))
        };
        let of_layer = |layer: &'a Layer<Linear, Buffer>| -> Result<Option<Self>, GpuError> {
            let FeedForward::Experts { experts, .. } = &layer.feed_forward else { return Ok(None) };
            let (Some(gate_up), Some(down)) =
                (plain(experts, |expert| &expert.gate_up), plain(experts, |expert| &expert.down))
            else {
                return Ok(None);
            };
            Ok(Some(Self {
                gate_up: table(&gate_up, experts, |expert| &expert.gate_up)?,
                down: table(&down, experts, |expert| &expert.down)?,
            }))
        };
        layers.iter().map(of_layer).collect()
    }
}

/// Activations of experts, for as many rows as the workspace has.
pub(super) struct ExpertRoom {
    /// The router's logits, f32, `[row][expert]`.
    pub(super) logits: Buffer,
    /// The expert of each slot. A slot is a pair of a row and one of its experts.
    pub(super) chosen: Buffer,
    pub(super) weights: Buffer,
    /// The rows of the slots, sorted by expert; below, their weights.
    pub(super) rows: Buffer,
    pub(super) weights_by_expert: Buffer,
    pub(super) gathered: Buffer,
    pub(super) gate_up: Buffer,
    pub(super) gated: Buffer,
    /// An expert's outputs for its rows, f32.
    pub(super) output: Buffer,
}

impl ExpertRoom {
    pub(super) fn new(
        gpu: &Gpu,
        spec: &Experts,
        rows: usize,
        hidden: usize,
        storage: Storage,
    ) -> Result<Self, GpuError> {
        let (slots, bytes) = (rows * spec.used, storage.bytes());
        let inner = rows.max(rows.min(FEW_ROWS) * spec.used);
        Ok(Self {
            logits: gpu.alloc(4 * rows * spec.count)?,
            chosen: gpu.alloc(4 * slots)?,
            weights: gpu.alloc(4 * slots)?,
            rows: gpu.alloc(4 * slots)?,
            weights_by_expert: gpu.alloc(4 * slots)?,
            gathered: gpu.alloc(bytes * rows * hidden)?,
            gate_up: gpu.alloc(bytes * inner * 2 * spec.width)?,
            gated: gpu.alloc(bytes * inner * spec.width)?,
            output: gpu.alloc(4 * rows * hidden)?,
        })
    }
}
