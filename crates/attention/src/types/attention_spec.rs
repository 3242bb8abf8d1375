//! How a layer of a model turns the products `q·k` into softmax weights.
//!
//! The model gives one [`AttentionSpec`] for each layer ([`LayerSpecs`]). Methods and kernels read it from the prefix, prompt chunk or
//! step that they are given. The default factor of the logits, `1/√d`, is defined here and nowhere else.
//!
//! Rotary positions are not part of it: keys are rotated before they are stored, and methods that move tokens to other positions are
//! given a [`Rotation`](crate::Rotation).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::types::policy::{LocalLayers, Policy};
use crate::types::positions::Positions;
use crate::types::selection::StaticTokens;
use spattn_kernels::{Accumulator, LogitRule};

/// The factor of the logits: `q·k` is multiplied by it before the softmax.
///
/// Stored together with the squared divisor, because some methods need the number under the root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftmaxScale {
    factor: f32,
    squared_divisor: f64,
}

impl SoftmaxScale {
    /// The factor `1/√of`. By default `of` is the width of a head; some families name another number (Gemma's `query_pre_attn_scalar`).
    pub fn inverse_root(of: usize) -> Self {
        Self { factor: 1.0 / (of as f32).sqrt(), squared_divisor: of as f64 }
    }

    /// A factor that the model family states itself, above 0 (Granite's `attention_multiplier`).
    pub fn of_factor(factor: f32) -> Self {
        Self { factor, squared_divisor: f64::from(factor).powi(-2) }
    }

    /// The number that `q·k` is multiplied by.
    pub fn factor(self) -> f32 {
        self.factor
    }

    /// Queries times the factor, as attention multiplies them with keys.
    pub(crate) fn scaled(self, queries: &[f32]) -> Vec<f32> {
        queries.iter().map(|q| q * self.factor).collect()
    }

    /// The number that `q·k` is divided by: `√d` by default.
    pub fn divisor(self) -> f64 {
        self.squared_divisor.sqrt()
    }

    /// The square of the [divisor](Self::divisor): `d` by default.
    pub fn squared_divisor(self) -> f64 {
        self.squared_divisor
    }
}

/// How a layer turns the products of its queries and keys into weights.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Factor of the logits.
    pub scale: SoftmaxScale,
    /// Soft cap: a scaled logit `x` becomes `cap·tanh(x/cap)`; `None` for no cap.
    pub soft_cap: Option<f32>,
    /// Number of last tokens that a token sees, itself included; `None` for all. At least 1.
    pub window: Option<usize>,
    /// For each query head, a logit without a value in the denominator of every softmax; `None` for none.
    pub sinks: Option<Arc<[f32]>>,
}

impl AttentionSpec {
    /// Softmax of `q·k/√d` over all tokens up to the query's own, where `d` is the width of a head.
    pub fn of_width(d: usize) -> Self {
        Self { scale: SoftmaxScale::inverse_root(d), soft_cap: None, window: None, sinks: None }
    }

    /// Returns the first token that the last of `total` tokens sees.
    pub fn first_visible(&self, total: usize) -> usize {
        self.window.map_or(0, |window| total.saturating_sub(window))
    }

    /// The static tokens that the last of `total` tokens sees. Once the window hides any first token, none of the sink is static.
    pub(crate) fn visible_static(&self, exact: StaticTokens, total: usize) -> StaticTokens {
        match self.first_visible(total) {
            0 => exact,
            first => StaticTokens { sink: 0, recent: exact.recent.max(first) },
        }
    }

    /// The candidates among `prefix` tokens that the next token sees.
    pub(crate) fn visible_candidates(&self, candidates: Range<usize>, prefix: usize) -> Range<usize> {
        let start = self.first_visible(prefix + 1).max(candidates.start);
        start..candidates.end.max(start)
    }

    /// What the kernels need of the spec, besides the window.
    pub(crate) fn logit_rule(&self) -> LogitRule<'_> {
        let sinks = self.sinks.as_deref().unwrap_or(&[]);
        LogitRule { scale: self.scale.factor(), soft_cap: self.soft_cap, sinks }
    }

    /// An accumulator for `queries` queries of width `d`, with the layer's soft cap.
    pub(crate) fn accumulator(&self, queries: usize, d: usize) -> Accumulator {
        Accumulator::new(queries, d).with_soft_cap(self.soft_cap)
    }

    /// The sinks of a KV head's group of `group` query heads; none if the layer has none.
    pub(crate) fn sinks_of(&self, kv_head: usize, group: usize) -> &[f32] {
        self.sinks.as_deref().map_or(&[], |sinks| &sinks[kv_head * group..][..group])
    }
}

/// The [`AttentionSpec`] of each layer of a model; copies share one list.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpecs(Arc<[AttentionSpec]>);

impl LayerSpecs {
    /// The same spec for all of `layers` layers.
    pub fn uniform(layers: usize, spec: AttentionSpec) -> Self {
        Self(vec![spec; layers].into())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the specs of all layers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.0.iter()
    }

    /// Returns the spec of one layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> &AttentionSpec {
        &self.0[layer]
    }
}

impl LayerSpecs {
    /// The features of any layer that go beyond the plain softmax of scaled logits over all tokens, each once.
    pub fn beyond_plain(&self) -> BTreeSet<SpecReason> {
        self.0.iter().flat_map(SpecReason::beyond_plain).collect()
    }

    /// Whether each layer attends all tokens that it sees: by policy, or because it has a window of its own that methods leave
    /// unchanged.
    pub fn dense(&self, policy: &Policy) -> Vec<bool> {
        let is_left = |spec: &AttentionSpec| spec.window.is_some() && policy.local_layers == LocalLayers::Dense;
        self.0.iter().zip(policy.dense(self.layers())).map(|(spec, dense)| dense || is_left(spec)).collect()
    }

    /// Whether methods select in a layer that has a window of its own.
    pub fn selects_in_windows(&self, policy: &Policy) -> bool {
        self.0.iter().zip(self.dense(policy)).any(|(spec, dense)| spec.window.is_some() && !dense)
    }
}

impl From<Vec<AttentionSpec>> for LayerSpecs {
    fn from(specs: Vec<AttentionSpec>) -> Self {
        Self(specs.into())
    }
}

/// A feature of a layer's [`AttentionSpec`] that cannot be honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecReason {
    /// The cap of the logits.
    SoftCap,
    /// The layer's own window.
    Window,
    /// The logits in the denominator.
    Sinks,
    /// Selecting among the tokens of a layer's own window.
    Selection,
}

impl SpecReason {
    /// The features of `spec` that a method cannot honour. `is_indifferent` says whether the method works alike whatever is done to
    /// products before the softmax.
    pub(crate) fn of_method(spec: &AttentionSpec, is_indifferent: bool, positions: Positions) -> Vec<Self> {
        let honours = |reason: &Self| match reason {
            Self::Window => positions == Positions::Original,
            Self::SoftCap | Self::Sinks => is_indifferent,
            Self::Selection => true,
        };
        Self::beyond_plain(spec).into_iter().filter(|reason| !honours(reason)).collect()
    }

    /// The features of `spec` that go beyond the plain softmax of scaled logits over all tokens.
    pub fn beyond_plain(spec: &AttentionSpec) -> Vec<Self> {
        let parts = [
            (spec.soft_cap.is_some(), Self::SoftCap),
            (spec.window.is_some(), Self::Window),
            (spec.sinks.is_some(), Self::Sinks),
        ];
        parts.into_iter().filter(|(has, _)| *has).map(|(_, reason)| reason).collect()
    }
}

impl fmt::Display for SpecReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SoftCap => "the soft cap of logits",
            Self::Window => "the sliding window of layers",
            Self::Sinks => "the attention-sink logits",
            Self::Selection => "selecting in layers with a sliding window (`--local-layers sparse`)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of earlier versions stay equal to the bit: each precision keeps the value that it was computed as there.
    #[test]
    fn the_default_scale_is_one_over_the_root_of_the_width_in_each_precision() {
        for d in 1..=512 {
            let scale = SoftmaxScale::inverse_root(d);
            assert_eq!(scale.factor(), 1.0 / (d as f32).sqrt());
            assert_eq!(scale.divisor(), (d as f64).sqrt());
            assert_eq!(scale.divisor() as f32, (d as f32).sqrt(), "rounded once");
            assert_eq!(scale.squared_divisor(), d as f64);
        }
    }

    #[test]
    fn a_stated_factor_is_kept_and_has_its_divisor() {
        let scale = SoftmaxScale::of_factor(0.015625);
        assert_eq!((scale.factor(), scale.divisor(), scale.squared_divisor()), (0.015625, 64.0, 4096.0));
    }
}
