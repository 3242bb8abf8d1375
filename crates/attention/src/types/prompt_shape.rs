//! The shape of a prefix, which determines the memory of the prefix and its
//! indexes.

/// The shape of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptShape {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Tokens of the prefix.
    pub tokens: usize,
}
