//! What a step attends: the static tokens, the tokens that a method selected, and their weighting.

use std::ops::Range;

use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::KvPart;
use crate::types::policy::Policy;

/// Tokens attended exactly: `0..sink` and `recent..total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StaticTokens {
    /// End of the sink.
    pub sink: usize,
    /// Start of the recent tokens, which end with the current one.
    pub recent: usize,
}

impl StaticTokens {
    /// Makes all tokens static.
    pub fn all() -> Self {
        Self { sink: 0, recent: 0 }
    }

    /// The sink, and either a sliding window, or the last `local` tokens of the prefix and everything after it.
    pub fn policy(policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> Self {
        let recent = match policy.tail.window(policy.local) {
            None => prefix_tokens.saturating_sub(policy.local),
            Some(window) => total_tokens.saturating_sub(window),
        };
        Self { sink: policy.sink.min(recent), recent }
    }

    /// The sink and the sliding window of a prompt row with `total_tokens` tokens in context.
    pub fn sliding(policy: &Policy, total_tokens: usize) -> Self {
        let recent = total_tokens.saturating_sub(policy.tail.window(policy.local).unwrap_or(policy.local.max(1)));
        Self { sink: policy.sink.min(recent), recent }
    }

    /// Number of static tokens, given `total` tokens in context.
    pub fn tokens(&self, total: usize) -> usize {
        self.sink + total - self.recent
    }

    /// The candidates: the tokens of the prefix that are not static.
    pub fn candidates(&self, prefix_tokens: usize) -> Range<usize> {
        self.sink..self.recent.min(prefix_tokens).max(self.sink)
    }
}

/// What a method selected for a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    /// One set for the whole group: keys and values are read once.
    Shared(SelectedTokens),
    /// One set for each query head of the group.
    PerHead(Vec<SelectedTokens>),
}

impl Selection {
    /// Removes tokens before `first`, which the layer hides.
    ///
    /// # Panics
    /// If the weighting depends on all candidates; the planner rejects such methods for layers that hide tokens.
    pub(crate) fn leave_out_before(&mut self, first: u32) {
        match self {
            Selection::Shared(picks) => picks.leave_out_before(first),
            Selection::PerHead(heads) => heads.iter_mut().for_each(|picks| picks.leave_out_before(first)),
        }
    }

    /// Number of selected tokens of each of `group` query heads.
    pub(crate) fn of_heads(&self, group: usize) -> Vec<usize> {
        match self {
            Selection::Shared(picks) => vec![picks.tokens.len(); group],
            Selection::PerHead(heads) => heads.iter().map(|picks| picks.tokens.len()).collect(),
        }
    }

    /// Bytes of the keys, or of the values, of the distinct selected tokens, given `total` tokens in context.
    pub(crate) fn bytes(&self, part: KvPart, rows: &RowBytes, total: usize) -> usize {
        self.bytes_of([part], rows, total)
    }

    /// Like [`bytes`](Self::bytes), of several parts. A kernel that processes the group's query heads together reads these.
    fn bytes_of<const N: usize>(&self, parts: [KvPart; N], rows: &RowBytes, total: usize) -> usize {
        let of_parts = match self {
            Selection::Shared(picks) => parts.map(|part| rows.of_tokens(part, &picks.tokens)),
            Selection::PerHead(heads) if heads.len() == 1 => parts.map(|part| rows.of_tokens(part, &heads[0].tokens)),
            Selection::PerHead(_) => {
                let union = self.tokens(total);
                parts.map(|part| union.bytes(part, rows))
            }
        };
        of_parts.iter().sum()
    }

    /// Union of the tokens of all query heads, given `total` tokens in context.
    pub(crate) fn tokens(&self, total: usize) -> TokenSet {
        match self {
            Selection::Shared(picks) => TokenSet::of(picks.tokens.iter().copied(), total),
            Selection::PerHead(heads) => TokenSet::of(heads.iter().flat_map(|picks| &picks.tokens).copied(), total),
        }
    }

    /// Number of tokens selected, and number of these that `other`, a selection of the same heads, lacks, given `total` tokens in context.
    /// A selection shared by a group counts once.
    pub(crate) fn missing_in(&self, other: &Self, total: usize) -> (usize, usize) {
        let set = |picks: &SelectedTokens| TokenSet::of(picks.tokens.iter().copied(), total);
        let counts = self.lists().iter().zip(other.lists()).map(|(own, others)| {
            let own = set(own);
            (own.len(), own.without(&set(others)).len())
        });
        counts.fold((0, 0), |sum, (wanted, missed)| (sum.0 + wanted, sum.1 + missed))
    }

    /// The selections of the query heads, or the group's only selection.
    fn lists(&self) -> &[SelectedTokens] {
        match self {
            Selection::Shared(picks) => std::slice::from_ref(picks),
            Selection::PerHead(heads) => heads,
        }
    }

    /// Number of query heads that attend a residual vector in place of the tokens not selected.
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

/// A set of tokens in context, as a bit set.
#[derive(Debug, Clone)]
pub(crate) struct TokenSet(Vec<u64>);

impl TokenSet {
    /// The set of `tokens`, given `total` tokens in context.
    pub fn of(tokens: impl IntoIterator<Item = u32>, total: usize) -> Self {
        let mut words = vec![0u64; total.div_ceil(u64::BITS as usize)];
        tokens.into_iter().for_each(|token| words[(token / u64::BITS) as usize] |= 1 << (token % u64::BITS));
        Self(words)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Number of tokens before `end`.
    fn before(&self, end: usize) -> usize {
        let (whole, bits) = (end / u64::BITS as usize, end % u64::BITS as usize);
        let ones = |word: &u64| word.count_ones() as usize;
        let last = self.0.get(whole).map_or(0, |word| ones(&(word & ((1 << bits) - 1))));
        self.0.iter().take(whole).map(ones).sum::<usize>() + last
    }

    /// Bytes of the keys, or of the values, of the tokens in the set.
    pub fn bytes(&self, part: KvPart, rows: &RowBytes) -> usize {
        let coded = self.before(rows.coded_tokens());
        rows.of_counts(part, coded, self.len() - coded)
    }

    /// Returns the set difference; `other` must have the same number of tokens in context.
    pub fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    /// Returns all tokens of the set, ascending.
    pub fn ascending(&self) -> Vec<u32> {
        let of_word = |(at, word): (usize, &u64)| {
            let (first, word) = (at as u32 * u64::BITS, *word);
            (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        };
        self.0.iter().enumerate().flat_map(of_word).collect()
    }
}

/// Selected tokens and how they are weighted.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedTokens {
    /// Distinct positions among the candidates, in any order.
    pub tokens: Vec<u32>,
    /// How they enter the attention.
    pub weighting: Weighting,
    /// Products of the scaled query with the tokens' keys, one for each token, if selecting computed them; otherwise empty. Attention on a CPU
    /// then reads no keys. Only for selections per query head, by the queries that attend: not for methods that select ahead.
    pub scores: Vec<f32>,
}

impl SelectedTokens {
    /// Tokens that enter the common softmax with their logits.
    pub fn softmax(tokens: Vec<u32>) -> Self {
        Self::weighted(tokens, Weighting::Softmax)
    }

    /// Tokens with their weighting, whose scores attention computes.
    pub fn weighted(tokens: Vec<u32>, weighting: Weighting) -> Self {
        Self { tokens, weighting, scores: Vec::new() }
    }

    fn leave_out_before(&mut self, first: u32) {
        if self.tokens.iter().all(|token| *token >= first) {
            return;
        }
        let keep = |numbers: &mut Vec<f32>| {
            let mut of_token = self.tokens.iter();
            numbers.retain(|_| of_token.next().is_some_and(|token| *token >= first));
        };
        keep(&mut self.scores);
        match &mut self.weighting {
            Weighting::Softmax => {}
            Weighting::LogBias(bias) => keep(bias),
            Weighting::Direct { .. } | Weighting::Remainder { .. } => {
                unreachable!("a method that weighs all candidates does not select in layers that hide tokens")
            }
        }
        self.tokens.retain(|token| *token >= first);
    }
}

/// How selected tokens are weighted.
#[derive(Debug, Clone, PartialEq)]
pub enum Weighting {
    /// Ordinary logits, in one softmax with the static tokens.
    Softmax,
    /// Logits minus `ln u`, where `u` is the token's sampling probability, in one softmax (MagicPIG, eq. 11).
    LogBias(Vec<f32>),
    /// Given weights, which sum to about 1 and represent candidates whose exponentials sum to `exp(log_mass)` (oracle sampling). Only for
    /// selections per query head.
    Direct {
        /// One weight for each token.
        weights: Vec<f32>,
        /// Log-sum-exp of the scaled logits of all candidates.
        log_mass: f32,
    },
    /// Ordinary logits, which hold only a part of the candidates' softmax mass. The rest of the mass goes to one vector, which replaces the
    /// candidates that were not selected (SparQ's mean value).
    Remainder {
        /// Mass of the candidates that were not selected, as a share of all candidates' mass, in `0..1`; one for each query head.
        shares: Vec<f32>,
        /// The vector, `[d]`.
        value: Vec<f32>,
    },
}

/// How much one KV head's selection makes attention read and compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SelectionCounts {
    /// Tokens selected for each query head of the group.
    pub of_heads: Vec<usize>,
    /// Bytes of keys and values of the distinct tokens.
    pub bytes: usize,
    /// Query heads that attend a residual vector in place of the tokens that were not selected.
    pub remainders: usize,
}

impl SelectionCounts {
    /// Counts of a group of `group` query heads that select nothing.
    pub fn nothing(group: usize) -> Self {
        Self { of_heads: vec![0; group], ..Self::default() }
    }

    /// Counts of a selection of `group` query heads, given `total` tokens in context.
    pub fn of(selection: &Selection, group: usize, rows: &RowBytes, total: usize) -> Self {
        Self {
            of_heads: selection.of_heads(group),
            bytes: selection.bytes_of(KvPart::BOTH, rows, total),
            remainders: selection.remainders(),
        }
    }
}

/// What one KV head attends at a step.
#[derive(Debug, Clone, PartialEq)]
pub struct AttendedTokens {
    /// The static tokens, which are always attended.
    pub exact: StaticTokens,
    /// The selection; `None` if there were no candidates.
    pub selection: Option<Selection>,
}

impl AttendedTokens {
    /// Number of tokens that each query head of a group attends, given `total` tokens in context.
    pub(crate) fn attended(&self, group: usize, total: usize) -> Vec<usize> {
        let fixed = self.exact.tokens(total);
        match &self.selection {
            None => vec![fixed; group],
            Some(selection) => selection.of_heads(group).into_iter().map(|picked| fixed + picked).collect(),
        }
    }
}
