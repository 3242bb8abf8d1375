//! Experts: several gated networks in a layer, of which a token passes the few that a router chooses for it.

use serde::Serialize;

/// A layer's experts. Their weighted outputs are added, in place of the output of one gated network:
///
/// ```text
/// logits = router · x                              one for each expert
/// x     += Σ weight_e · down_e(gate_e(x) · up_e(x))    over the `used` experts of the largest logits
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Experts {
    /// Names of their tensors.
    #[serde(skip)]
    pub names: ExpertNames,
    /// Experts of a layer.
    pub count: usize,
    /// How many of them a token passes; from 1 to `count`.
    pub used: usize,
    /// Width of each expert, between its gate and its down projection.
    pub width: usize,
    /// What an expert's output is weighted by.
    pub weights: ExpertWeights,
    /// Whether the router has a bias.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub router_bias: bool,
}

/// What the output of an expert is weighted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeights {
    /// Its softmax among all experts: the weights of those that are used add up to less than 1.
    AmongAll,
    /// Its softmax among those that are used; the same as the softmax among all, divided by the sum over those.
    AmongUsed,
}

/// Names of the tensors of a layer's experts, without `.weight`, behind the layer's number and a point.
///
/// An expert's tensors follow [`each`](Self::each), its number and a point. A checkpoint may hold those of all experts in one tensor
/// ([`stacked`](Self::stacked)); it is then read as if it held each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    /// The router, `[count][hidden]`.
    pub router: &'static str,
    /// What all tensors of experts begin with, up to the expert's number.
    pub each: &'static str,
    /// The gate, `[width][hidden]`.
    pub gate: &'static str,
    /// What it gates, `[width][hidden]`.
    pub up: &'static str,
    /// The projection behind the gate, `[hidden][width]`.
    pub down: &'static str,
    /// The names of checkpoints that hold all experts in one tensor.
    pub stacked: StackedNames,
}

/// Names of the tensors of a layer's experts where one holds all of them. Those of experts are whole, without `.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackedNames {
    /// The router, `[count][hidden]`.
    pub router: &'static str,
    /// Gates and what they gate, `[count][2 · width][hidden]`, of each expert the gate first.
    pub gate_up: &'static str,
    /// The projections behind gates, `[count][hidden][width]`.
    pub down: &'static str,
    /// How the matrices of experts lie in these tensors, if not as the names above say.
    pub layout: StackedLayout,
}

/// How matrices of experts lie in a tensor that has those of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackedLayout {
    /// Each as it is multiplied, `[outputs][inputs]`; gates stand before what they gate.
    Rows,
    /// Each turned over, `[inputs][outputs]`; outputs of gates and of what they gate take turns. Biases, which lie alike, are in tensors
    /// with `_bias` behind the name. In place of numbers there may be blocks of 4 bits (`_blocks`, `_scales`), `[outputs][inputs]`.
    Alternating,
}

impl StackedNames {
    /// What transformers 5 writes when it is told to keep its own names.
    pub const TRANSFORMERS: Self = Self {
        router: "mlp.gate",
        gate_up: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        layout: StackedLayout::Rows,
    };
}

impl ExpertNames {
    /// The names of an expert's tensors, gate, up and down, behind the layer's number and a point.
    pub fn of(&self, expert: usize) -> [String; 3] {
        [self.gate, self.up, self.down].map(|part| format!("{}{expert}.{part}", self.each))
    }
}
