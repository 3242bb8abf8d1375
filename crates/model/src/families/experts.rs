//! Experts: several gated networks in a layer; a router chooses the few that a token passes through.

use serde::Serialize;

/// A layer's experts. The sum of their weighted outputs replaces the output of a single gated network:
///
/// ```text
/// logits = router · x                              one for each expert
/// x     += Σ weight_e · down_e(gate_e(x) · up_e(x))    over the `used` experts with the largest logits
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Experts {
    /// Names of their tensors.
    #[serde(skip)]
    pub names: ExpertNames,
    /// The number of experts in a layer.
    pub count: usize,
    /// The number of experts that a token passes through; from 1 to `count`.
    pub used: usize,
    /// The width of each expert, between its gate and its down projection.
    pub width: usize,
    /// The weights of the experts' outputs.
    pub weights: ExpertWeights,
    /// Whether the router has a bias.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub router_bias: bool,
}

/// The weights of the experts' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeights {
    /// The softmax over all experts: the weights of the used ones add up to less than 1.
    AmongAll,
    /// The softmax over the used experts, which equals that over all experts divided by its sum over the used ones.
    AmongUsed,
}

/// The names of the tensors of a layer's experts, without `.weight`, after the layer's number and a dot.
///
/// An expert's tensors follow [`each`](Self::each), its number and a dot. If a checkpoint holds all experts in one tensor
/// ([`stacked`](Self::stacked)), they are read as if each had its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    /// The router, `[count][hidden]`.
    pub router: &'static str,
    /// The prefix of all tensors of experts, up to the expert's number.
    pub each: &'static str,
    /// The gate, `[width][hidden]`.
    pub gate: &'static str,
    /// What it gates, `[width][hidden]`.
    pub up: &'static str,
    /// The projection after the gate, `[hidden][width]`.
    pub down: &'static str,
    /// The names in checkpoints that hold all experts in one tensor.
    pub stacked: StackedNames,
}

/// The names of the tensors that hold all experts of a layer. Those of experts are complete, without `.weight` to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackedNames {
    /// The router, `[count][hidden]`.
    pub router: &'static str,
    /// Gates and what they gate, `[count][2 · width][hidden]`; for each expert, the gate comes first.
    pub gate_up: &'static str,
    /// The projections after the gates, `[count][hidden][width]`.
    pub down: &'static str,
    /// The layout of the experts' matrices in these tensors, if it is not as the names above say.
    pub layout: StackedLayout,
}

/// The layout of the experts' matrices in a tensor that holds all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackedLayout {
    /// Each as it is multiplied, `[outputs][inputs]`; a gate precedes what it gates.
    Rows,
    /// Each transposed, `[inputs][outputs]`; outputs of gates and of what they gate alternate. Biases, with the same layout, are in
    /// tensors whose names end in `_bias`. Instead of numbers there may be blocks of 4 bits (`_blocks`, `_scales`), `[outputs][inputs]`.
    Alternating,
}

impl StackedNames {
    /// The names that transformers 5 writes if it is told to keep its own.
    pub const TRANSFORMERS: Self = Self {
        router: "mlp.gate",
        gate_up: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        layout: StackedLayout::Rows,
    };
}

impl ExpertNames {
    /// The names of an expert's tensors (gate, up and down), after the layer's number and a dot.
    pub fn of(&self, expert: usize) -> [String; 3] {
        [self.gate, self.up, self.down].map(|part| format!("{}{expert}.{part}", self.each))
    }
}
