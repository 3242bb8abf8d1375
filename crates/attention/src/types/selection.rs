//! What a step attends: the static tokens, the tokens that a method selected, and how they are weighted.

use std::ops::Range;

use crate::types::policy::Policy;

/// Tokens attended exactly: `0..sink` and `recent..total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StaticTokens {
    /// End of the first part.
    pub sink: usize,
    /// Beginning of the last part, which runs to the current token.
    pub recent: usize,
}

impl StaticTokens {
    /// Everything.
    pub fn all() -> Self {
        Self { sink: 0, recent: 0 }
    }

    /// Sink, and either the last `local` tokens of the prefix with all after it, or a window that moves on.
    pub fn policy(policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> Self {
        let recent = match policy.tail.window(policy.local) {
            None => prefix_tokens.saturating_sub(policy.local),
            Some(window) => total_tokens.saturating_sub(window),
        };
        Self { sink: policy.sink.min(recent), recent }
    }

    /// Sink and the last tokens of so many: the window of a row of a prompt, which always moves on.
    pub fn sliding(policy: &Policy, total_tokens: usize) -> Self {
        let recent = total_tokens.saturating_sub(policy.tail.window(policy.local).unwrap_or(policy.local.max(1)));
        Self { sink: policy.sink.min(recent), recent }
    }

    /// How many these are, of `total` tokens in context.
    pub fn tokens(&self, total: usize) -> usize {
        self.sink + total - self.recent
    }

    /// Tokens of the prefix that are left to pick from.
    pub fn candidates(&self, prefix_tokens: usize) -> Range<usize> {
        self.sink..self.recent.min(prefix_tokens).max(self.sink)
    }
}

/// What a method picked for a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    /// One set for the whole group: keys and values are read once.
    Shared(SelectedTokens),
    /// One set for each query head of the group.
    PerHead(Vec<SelectedTokens>),
}

impl Selection {
    /// Tokens that each query head of a group of so many attends of it.
    pub(crate) fn of_heads(&self, group: usize) -> Vec<usize> {
        match self {
            Selection::Shared(picks) => vec![picks.tokens.len(); group],
            Selection::PerHead(heads) => heads.iter().map(|picks| picks.tokens.len()).collect(),
        }
    }

    /// Different tokens of it, of `total` in context: what is read once for the group.
    pub(crate) fn distinct(&self, total: usize) -> usize {
        match self {
            Selection::Shared(picks) => picks.tokens.len(),
            Selection::PerHead(heads) if heads.len() == 1 => heads[0].tokens.len(),
            Selection::PerHead(_) => self.tokens(total).len(),
        }
    }

    /// The tokens that any query head attends of it, of `total` in context.
    pub(crate) fn tokens(&self, total: usize) -> TokenSet {
        match self {
            Selection::Shared(picks) => TokenSet::of(picks.tokens.iter().copied(), total),
            Selection::PerHead(heads) => TokenSet::of(heads.iter().flat_map(|picks| &picks.tokens).copied(), total),
        }
    }

    /// How many query heads attend a vector that stands for what was not picked.
    pub(crate) fn remainders(&self) -> usize {
        let of = |picks: &SelectedTokens| match &picks.weighting {
            Weighting::Remainder { shares, .. } => shares.len(),
            _ => 0,
        };
        match self {
            Selection::Shared(picks) => of(picks),
            Selection::PerHead(heads) => heads.iter().map(of).sum(),
        }
    }
}

/// Some of the tokens in context.
#[derive(Debug, Clone)]
pub(crate) struct TokenSet(Vec<u64>);

impl TokenSet {
    /// These, of `total` in context.
    pub fn of(tokens: impl IntoIterator<Item = u32>, total: usize) -> Self {
        let mut words = vec![0u64; total.div_ceil(u64::BITS as usize)];
        tokens.into_iter().for_each(|token| words[(token / u64::BITS) as usize] |= 1 << (token % u64::BITS));
        Self(words)
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Those that are not in another set of as many in context.
    pub fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// All of them, ascending.
    pub fn ascending(&self) -> Vec<u32> {
        let of_word = |(at, word): (usize, &u64)| {
            let (first, word) = (at as u32 * u64::BITS, *word);
            (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        self.0.iter().enumerate().flat_map(of_word).collect()
    }
}

/// Tokens of the prefix and how they are weighted.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedTokens {
    /// Distinct positions among the candidates, in any order.
    pub tokens: Vec<u32>,
    /// How they enter the attention.
    pub weighting: Weighting,
}

impl SelectedTokens {
    /// Tokens that enter the common softmax as they are.
    pub fn softmax(tokens: Vec<u32>) -> Self {
        Self { tokens, weighting: Weighting::Softmax }
    }
}

/// How picked tokens are weighted.
#[derive(Debug, Clone, PartialEq)]
pub enum Weighting {
    /// Ordinary logits, in one softmax with the exact tokens.
    Softmax,
    /// Logits lowered by `ln u` of the token's sampling probability, in one softmax (MagicPIG, eq. 11).
    LogBias(Vec<f32>),
    /// Given weights that sum to about 1 stand for candidates whose exponentials sum to `exp(log_mass)`
    /// (oracle sampling); per query head only.
    Direct {
        /// One weight a token.
        weights: Vec<f32>,
        /// Log-sum-exp of the scaled logits of all candidates.
        log_mass: f32,
    },
    /// Ordinary logits, which are taken to make up but a part of the candidates' exponentials: the rest
    /// is given to one vector that stands for the candidates not picked (SparQ's mean value).
    Remainder {
        /// What is not picked, as a share of the candidates' exponentials, in `0..1`; one for each query head.
        shares: Vec<f32>,
        /// The vector, `[d]`.
        value: Vec<f32>,
    },
}

/// What one KV head of a run attends at a step.
#[derive(Debug, Clone, PartialEq)]
pub struct AttendedTokens {
    /// What is attended whatever is picked.
    pub exact: StaticTokens,
    /// What was picked, if there was anything to pick from.
    pub selection: Option<Selection>,
}

impl AttendedTokens {
    /// Tokens attended by each query head of a group, of `total` in context.
    pub(crate) fn attended(&self, group: usize, total: usize) -> Vec<usize> {
        let fixed = self.exact.tokens(total);
        match &self.selection {
            None => vec![fixed; group],
            Some(selection) => selection.of_heads(group).into_iter().map(|picked| fixed + picked).collect(),
        }
    }

    /// Different tokens that the group attends: what a kernel that takes its query heads together reads.
    pub(crate) fn read(&self, total: usize) -> usize {
        self.exact.tokens(total) + self.selection.as_ref().map_or(0, |selection| selection.distinct(total))
    }
}
