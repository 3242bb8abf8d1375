//! How products of queries and keys become weights: the numbers that kernels need of a layer's attention.

/// What is done to products before the softmax, and what else is in its denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitRule<'a> {
    /// What products are multiplied by.
    pub scale: f32,
    /// A scaled product `x` becomes `cap·tanh(x/cap)`; `None` to leave it.
    pub soft_cap: Option<f32>,
    /// A logit for each query head of the layer that is in the denominator of every softmax of that head, with no value; empty for none.
    pub sinks: &'a [f32],
}

impl From<f32> for LogitRule<'static> {
    /// Scaled products, and nothing else.
    fn from(scale: f32) -> Self {
        Self { scale, soft_cap: None, sinks: &[] }
    }
}

/// Makes `cap·tanh(x/cap)` of scaled products, where what is given is still to be multiplied by `scale`.
pub fn cap_logits(products: &mut [f32], scale: f32, cap: f32) {
    for x in products {
        *x = cap * (*x * scale / cap).tanh() / scale;
    }
}
