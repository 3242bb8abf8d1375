//! How products of queries and keys become weights: what kernels need to know of a layer's attention.

/// The transformation of products before the softmax, and further terms in its denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitRule<'a> {
    /// The factor that products are multiplied by.
    pub scale: f32,
    /// Soft cap: a scaled product `x` becomes `cap·tanh(x/cap)`; `None` for no cap.
    pub soft_cap: Option<f32>,
    /// For each query head of the layer, a logit without a value in the denominator of every softmax of that head; empty for none.
    pub sinks: &'a [f32],
}

impl From<f32> for LogitRule<'static> {
    /// Scales products and does nothing else.
    fn from(scale: f32) -> Self {
        Self { scale, soft_cap: None, sinks: &[] }
    }
}

/// Replaces products that are still to be multiplied by `scale` so that their scaled values `x` become `cap·tanh(x/cap)`.
pub fn cap_logits(products: &mut [f32], scale: f32, cap: f32) {
    for x in products {
        *x = cap * (*x * scale / cap).tanh() / scale;
    }
}
