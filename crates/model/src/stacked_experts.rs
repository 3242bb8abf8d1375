//! Makes experts that a checkpoint holds in one tensor readable one by one.

use anyhow::Result;

use super::config::ModelConfig;
use super::families::{Experts, StackedLayout, TensorNames};
use super::tensors::{MXFP4_BLOCK, PartForm, Weights};
use spattn_base::error::UsageError;

/// The hint if config and weights differ.
const ONE_MODEL: &str =
    "config.json and the weights are of two models, or one of them was edited: take both from one place";

/// Adds the names of single experts' tensors for those tensors that hold all experts of
/// a layer.
///
/// # Errors
/// If such a tensor's shape differs from the config.
pub(super) fn divide(config: &ModelConfig, weights: &mut Weights) -> Result<()> {
    let Some(experts) = config.block.experts else { return Ok(()) };
    for layer in (0..config.layers).filter(|layer| config.layer_kind(*layer).experts) {
        let stacked = Stacked { config, experts, layer };
        match experts.names.stacked.layout {
            StackedLayout::Rows => stacked.divide_rows(weights)?,
            StackedLayout::Alternating => stacked.divide_alternating(weights)?,
        }
    }
    Ok(())
}

/// The experts of a layer.
struct Stacked<'a> {
    config: &'a ModelConfig,
    experts: Experts,
    layer: usize,
}

impl Stacked<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}{}.{part}", self.config.block.names.layer, self.layer)
    }

    /// The names of the matrices or biases of all experts: gate, up and down.
    fn names(&self, ending: &str) -> impl Iterator<Item = [String; 3]> {
        let name = move |part: String| format!("{}.{ending}", self.name(&part));
        (0..self.experts.count).map(move |expert| self.experts.names.of(expert).map(name))
    }

    fn divide_rows(&self, weights: &mut Weights) -> Result<()> {
        let (hidden, Experts { names, count, width, .. }) = (self.config.hidden_size, self.experts);
        let [gate_up, down] = [names.stacked.gate_up, names.stacked.down].map(|part| self.name(part));
        if !weights.contains(&gate_up) {
            return Ok(());
        }
        let gates = self.names("weight").flat_map(|[gate, up, _]| [gate, up].map(|name| (name, vec![width, hidden])));
        let downs = self.names("weight").map(|[.., down]| (down, vec![hidden, width]));
        let (gates, downs): (Vec<_>, Vec<_>) = (gates.collect(), downs.collect());
        for (name, shape, parts) in
            [(gate_up, [count, 2 * width, hidden], gates), (down, [count, hidden, width], downs)]
        {
            if has_shape(weights, &name, &shape)? {
                weights.divide(&name, parts);
            }
        }
        let [stacked, own] = [names.stacked.router, names.router].map(|name| TensorNames::weight(&self.name(name)));
        if stacked != own {
            weights.rename(&[(&stacked, &own)]);
        }
        Ok(())
    }

    fn divide_alternating(&self, weights: &mut Weights) -> Result<()> {
        let (hidden, Experts { names, count, width, .. }) = (self.config.hidden_size, self.experts);
        let [gate_up, down] = [names.stacked.gate_up, names.stacked.down].map(|part| self.name(part));
        self.divide_biases(weights, &gate_up, &down)?;
        if weights.contains(&format!("{gate_up}_blocks")) {
            return self.divide_blocks(weights, &gate_up, &down);
        }
        if has_shape(weights, &gate_up, &[count, hidden, 2 * width])? {
            let len = hidden * 2 * width;
            for (expert, [gate, up, _]) in self.names("weight").enumerate() {
                for (at, name) in [gate, up].into_iter().enumerate() {
                    let form = PartForm::Strided { first: expert * len, len, at, row: 2, column: 2 * width };
                    weights.add_part(&gate_up, name, vec![width, hidden], form);
                }
            }
            weights.leave_out(&gate_up);
        }
        if has_shape(weights, &down, &[count, width, hidden])? {
            let len = width * hidden;
            for (expert, [.., name]) in self.names("weight").enumerate() {
                let form = PartForm::Strided { first: expert * len, len, at: 0, row: 1, column: hidden };
                weights.add_part(&down, name, vec![hidden, width], form);
            }
            weights.leave_out(&down);
        }
        Ok(())
    }

    fn divide_biases(&self, weights: &mut Weights, gate_up: &str, down: &str) -> Result<()> {
        let (hidden, Experts { count, width, .. }) = (self.config.hidden_size, self.experts);
        let [gate_up, down] = [gate_up, down].map(|name| format!("{name}_bias"));
        if has_shape(weights, &gate_up, &[count, 2 * width])? {
            for (expert, [gate, up, _]) in self.names("bias").enumerate() {
                for (at, name) in [gate, up].into_iter().enumerate() {
                    let (first, len) = (expert * 2 * width, 2 * width);
                    weights.add_part(
                        &gate_up,
                        name,
                        vec![width],
                        PartForm::Strided { first, len, at, row: 0, column: 2 },
                    );
                }
            }
            weights.leave_out(&gate_up);
        }
        if has_shape(weights, &down, &[count, hidden])? {
            let parts: Vec<_> = self.names("bias").map(|[.., name]| (name, vec![hidden])).collect();
            weights.divide(&down, parts);
        }
        Ok(())
    }

    /// Divides matrices in blocks of 4 bits, whose rows are outputs.
    fn divide_blocks(&self, weights: &mut Weights, gate_up: &str, down: &str) -> Result<()> {
        let (hidden, Experts { count, width, .. }) = (self.config.hidden_size, self.experts);
        for (name, rows, inputs, step) in [(gate_up, 2 * width, hidden, 2), (down, hidden, width, 1)] {
            let [blocks, scales] = ["blocks", "scales"].map(|ending| format!("{name}_{ending}"));
            let of_row = inputs.div_ceil(MXFP4_BLOCK);
            let is_whole = has_shape(weights, &blocks, &[count, rows, of_row, MXFP4_BLOCK / 2])?
                && has_shape(weights, &scales, &[count, rows, of_row])?;
            if !is_whole || !inputs.is_multiple_of(MXFP4_BLOCK) {
                continue;
            }
            for (expert, [gate, up, down]) in self.names("weight").enumerate() {
                let parts = if step == 2 { vec![gate, up] } else { vec![down] };
                for (at, part) in parts.into_iter().enumerate() {
                    let scales = weights.name_in_source(&scales).to_owned();
                    let form = PartForm::Mxfp4 { scales, first: expert * rows, at, step };
                    weights.add_part(&blocks, part, vec![rows / step, inputs], form);
                }
            }
            [blocks, scales].iter().for_each(|name| weights.leave_out(name));
        }
        Ok(())
    }
}

/// Whether there is such a tensor.
///
/// # Errors
/// If it has another shape.
fn has_shape(weights: &Weights, name: &str, shape: &[usize]) -> Result<bool> {
    match weights.shape(name) {
        None => Ok(false),
        Some(stored) if stored == shape => Ok(true),
        Some(stored) => {
            let what = format!(
                "{}: the tensor `{name}` has shape {stored:?}, and by config.json it is {shape:?}: experts by width and \
                 `hidden_size`",
                weights.label()
            );
            Err(UsageError::new(what).hint(ONE_MODEL).into())
        }
    }
}
