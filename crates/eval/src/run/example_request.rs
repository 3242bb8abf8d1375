//! What every example is run with, whether it generates an answer or scores given text.

use spattn_attention::Configured;

/// An example to be run: its prompt, and the methods that share the prefix of it.
#[derive(Debug, Clone, Copy)]
pub struct ExampleRequest<'a> {
    /// Tokens of the whole prompt.
    pub prompt: &'a [u32],
    /// How many of them, from the first on, are the prefix that is read densely.
    pub prefix_tokens: usize,
    /// Lengths in tokens of the prefixes that are run next and continue this one, each the one before; ascending.
    pub longer: &'a [usize],
    /// Methods to run, all from the same prefix.
    pub methods: &'a [Configured],
    /// Seed of random numbers that are drawn when indexes are built: the same for all examples on one context.
    pub index_seed: u64,
    /// Seed of random numbers that are drawn in decode steps.
    pub step_seed: u64,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
    /// Whether to time each method alone as well, when all have finished.
    pub solo: bool,
}

impl<'a> ExampleRequest<'a> {
    /// Tokens of the prefix.
    pub fn prefix(&self) -> &'a [u32] {
        &self.prompt[..self.prefix_tokens]
    }

    /// Tokens of the prompt behind the prefix.
    pub fn unread(&self) -> &'a [u32] {
        &self.prompt[self.prefix_tokens..]
    }
}
