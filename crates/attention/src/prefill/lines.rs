//! Lines of a prompt's attention map, and the votes by which they are chosen. Methods choose them in
//! [`methods::lines`](crate::methods).

/// Attention that some of the last queries of one query head give to tokens and distances, summed over the queries.
#[derive(Debug, Clone, PartialEq)]
pub struct LineVotes {
    /// By token.
    pub vertical: Vec<f32>,
    /// By distance from the query back to the token.
    pub slash: Vec<f32>,
}

impl LineVotes {
    /// No votes yet, in a prompt of `tokens` tokens.
    pub fn none(tokens: usize) -> Self {
        Self { vertical: vec![0.0; tokens], slash: vec![0.0; tokens] }
    }

    /// Adds the attention weights of the query at `position` over the tokens up to itself.
    pub fn take(&mut self, position: usize, weights: &[f32]) {
        for (token, weight) in weights.iter().enumerate() {
            self.vertical[token] += weight;
            self.slash[position - token] += weight;
        }
    }

    /// Adds the votes of another head.
    pub fn with(mut self, other: &Self) -> Self {
        let add = |sums: &mut [f32], more: &[f32]| sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        add(&mut self.vertical, &other.vertical);
        add(&mut self.slash, &other.slash);
        self
    }
}

/// FLOPs of the scores by which the last `voters` queries of one head vote, in a prompt of `tokens` tokens.
pub fn vote_flops(voters: usize, tokens: usize, d: usize) -> u64 {
    2 * (voters * tokens * d) as u64
}

/// Lines that a plan adds to the masks of all blocks of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedLines {
    /// Tokens that all later rows attend, ascending.
    pub vertical: Vec<u32>,
    /// Distances at which each row attends a token, ascending.
    pub slashes: Vec<usize>,
}
