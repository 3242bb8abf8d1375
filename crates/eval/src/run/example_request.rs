//! What it takes to run an example, whether an answer is generated or given text is scored.

use spattn_attention::Configured;

/// An example to be run: its prompt, and the methods that share its prefix.
#[derive(Debug, Clone, Copy)]
pub struct ExampleRequest<'a> {
    /// The tokens of the whole prompt.
    pub prompt: &'a [u32],
    /// The number of prompt tokens that are the prefix; they come first.
    pub prefix_tokens: usize,
    /// The lengths in tokens of prefixes that run next, each of which continues the one before, starting with
    /// this one; ascending.
    pub longer: &'a [usize],
    /// The methods to run, all from the same prefix.
    pub methods: &'a [Configured],
    /// The seed of random numbers for building indexes, the same for all examples of a context.
    pub index_seed: u64,
    /// The seed of random numbers in decode steps.
    pub step_seed: u64,
    /// Whether to compare each step with exact attention.
    pub fidelity: bool,
    /// Whether to also time each method alone, after all have finished.
    pub solo: bool,
}

impl<'a> ExampleRequest<'a> {
    /// The tokens of the prefix.
    pub fn prefix(&self) -> &'a [u32] {
        &self.prompt[..self.prefix_tokens]
    }

    /// The tokens of the prompt after the prefix.
    pub fn unread(&self) -> &'a [u32] {
        &self.prompt[self.prefix_tokens..]
    }
}
