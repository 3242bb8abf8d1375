//! Experts on a GPU, which also chooses them from the router's logits. For few rows, kernels read the matrices of each row's experts
//! directly. For more rows, and for experts in quantised blocks, the host downloads the choices, gathers the rows of each expert and
//! multiplies them expert by expert.

use spattn_cuda::{Buffer, GpuError, Into, Routes, RowMatrix};

use super::expert_room::{ExpertRoom, FEW_ROWS};
use super::model::Segment;
use super::weights::Linear;
use super::workspace::Workspace;
use crate::families::ExpertWeights;
use crate::layers::{FeedForward, Gated};

impl Segment {
    /// Whether a step of few rows is launched without waiting for the device, because the host need not know which experts are chosen.
    pub(super) fn routes_on_device(&self) -> bool {
        let has_experts = |feed_forward: &FeedForward<Linear>| matches!(feed_forward, FeedForward::Experts { .. });
        self.layers_and_experts().all(|(layer, tables)| tables.is_some() || !has_experts(&layer.feed_forward))
    }

    /// Adds the output of a layer's experts for the rows of `workspace.normed` to the residual stream.
    pub(super) fn pass_experts(
        &self,
        workspace: &mut Workspace,
        rows: usize,
        index: usize,
        router: &Linear,
        experts: &[Gated<Linear>],
    ) -> Result<(), GpuError> {
        let (spec, storage) = (self.config.block.experts.expect("a layer with experts"), self.storage());
        let Workspace { normed, x, experts: Some(own), .. } = workspace else { unreachable!("a model with experts") };
        self.apply(router, normed, rows, &mut own.logits, Into::Wide)?;
        let among_used = spec.weights == ExpertWeights::AmongUsed;
        self.gpu.route(&own.logits, rows, (spec.count, spec.used), among_used, &mut own.chosen, &mut own.weights)?;
        let Some(tables) = self.experts_of(index).filter(|_| rows <= FEW_ROWS) else {
            return self.pass_gathered(own, rows, experts, normed, x);
        };
        let routes = Routes { chosen: &own.chosen, weights: &own.weights, used: spec.used };
        self.gpu.expert_rows(&tables.gate_up, &routes, rows, normed, &mut own.gate_up)?;
        self.gpu.gate(self.gate(), storage, &own.gate_up, rows * spec.used, &mut own.gated, spec.width)?;
        self.gpu.expert_sums(&tables.down, &routes, rows, &own.gated, x)
    }

    /// Computes the experts one after the other, each for all of its rows. Each row's outputs are added in the order of the experts.
    fn pass_gathered(
        &self,
        own: &mut ExpertRoom,
        rows: usize,
        experts: &[Gated<Linear>],
        normed: &Buffer,
        x: &mut Buffer,
    ) -> Result<(), GpuError> {
        let (spec, storage) = (self.config.block.experts.expect("a layer with experts"), self.storage());
        let hidden = self.config.hidden_size;
        let (mut chosen, mut weights) = (vec![0u32; rows * spec.used], vec![0.0f32; rows * spec.used]);
        self.gpu.download(&own.chosen, 0, &mut chosen)?;
        self.gpu.download(&own.weights, 0, &mut weights)?;
        let mut slots: Vec<usize> = (0..chosen.len()).collect();
        // A stable sort keeps the rows of an expert in order.
        slots.sort_by_key(|slot| chosen[*slot]);
        let of_slots: Vec<u32> = slots.iter().map(|slot| (slot / spec.used) as u32).collect();
        let weights: Vec<f32> = slots.iter().map(|slot| weights[*slot]).collect();
        self.gpu.upload_to(&mut own.rows, 0, &of_slots)?;
        self.gpu.upload_to(&mut own.weights_by_expert, 0, &weights)?;
        let mut first = 0;
        for of_expert in slots.chunk_by(|a, b| chosen[*a] == chosen[*b]) {
            let (expert, count) = (&experts[chosen[of_expert[0]] as usize], of_expert.len());
            let part = (first, count);
            let ExpertRoom { rows: list, weights_by_expert, gathered, gate_up, gated, output, .. } = &mut *own;
            self.gpu.gather_rows(RowMatrix { numbers: normed, storage, rows, width: hidden }, list, part, gathered)?;
            self.apply(&expert.gate_up, gathered, count, gate_up, Into::Narrow)?;
            self.gpu.gate(self.gate(), storage, gate_up, count, gated, spec.width)?;
            self.apply(&expert.down, gated, count, output, Into::Wide)?;
            self.gpu.add_weighted(output, [list, weights_by_expert], part, x, rows, hidden)?;
            first += count;
        }
        Ok(())
    }
}
