//! What a layer of a model does between the products `q·k` and the softmax.
//!
//! The model gives one [`AttentionSpec`] for each layer ([`LayerSpecs`]); methods and kernels read it from the prefix, the chunk of the
//! prompt or the step that they are given. The default factor of the logits, `1/√d`, is written here and nowhere else.
//!
//! Rotary positions are no part of it: keys are rotated before they are stored, and methods that move tokens to other positions are
//! given a [`Rotation`](crate::Rotation).

use std::sync::Arc;

/// The factor of the logits: `q·k` is multiplied by it before the softmax.
///
/// Kept as the root that it is one over, because some methods need the number under the root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftmaxScale {
    factor: f32,
    squared_divisor: f64,
}

impl SoftmaxScale {
    /// `1/√of`: of the width of a head by default; some families name another number (Gemma's `query_pre_attn_scalar`).
    pub fn inverse_root(of: usize) -> Self {
        Self { factor: 1.0 / (of as f32).sqrt(), squared_divisor: of as f64 }
    }

    /// A factor that the family states itself, above 0 (Granite's `attention_multiplier`).
    pub fn of_factor(factor: f32) -> Self {
        Self { factor, squared_divisor: f64::from(factor).powi(-2) }
    }

    /// What `q·k` is multiplied by.
    pub fn factor(self) -> f32 {
        self.factor
    }

    /// What `q·k` is divided by: `√d` by default.
    pub fn divisor(self) -> f64 {
        self.squared_divisor.sqrt()
    }

    /// The square of the [divisor](Self::divisor): `d` by default.
    pub fn squared_divisor(self) -> f64 {
        self.squared_divisor
    }
}

/// How a layer makes weights of the products of its queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Factor of the logits.
    pub scale: SoftmaxScale,
}

impl AttentionSpec {
    /// Softmax of `q·k/√d` over all tokens up to the query's own, `d` being the width of a head.
    pub fn of_width(d: usize) -> Self {
        Self { scale: SoftmaxScale::inverse_root(d) }
    }
}

/// The [`AttentionSpec`] of each layer of a model; copies share one list.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpecs(Arc<[AttentionSpec]>);

impl LayerSpecs {
    /// The same for all of `layers` layers.
    pub fn uniform(layers: usize, spec: AttentionSpec) -> Self {
        Self(vec![spec; layers].into())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.0.len()
    }

    /// That of one layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> &AttentionSpec {
        &self.0[layer]
    }
}

impl From<Vec<AttentionSpec>> for LayerSpecs {
    fn from(specs: Vec<AttentionSpec>) -> Self {
        Self(specs.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of earlier versions stay equal to the bit: each precision has the number that it was computed as there.
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
