//! The shape of a prompt: what room for it, and for what is found in it, depends on.

/// The prefix that is going to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptShape {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub d: usize,
    /// Tokens of the prefix.
    pub tokens: usize,
}
