//! [`Picker`]: chooses among the scored candidates of one query.

use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::Probe;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DevicePicker;
use crate::cost::Cost;
use crate::kv::{KvError, KvRows};
use crate::method::Solved;
use crate::types::budget::Context;
use crate::types::seed::mix_seed;
use crate::types::selection::SelectedTokens;
use spattn_kernels::linear;

/// Chooses among scored candidates.
pub(crate) trait Picker: Send + Sync {
    /// Selects by the scores of one query. Adds the passes over the scores (`select_bytes`) to `cost`.
    ///
    /// # Errors
    /// If it reads keys or values of the prefix and this fails.
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError>;

    /// True if it never selects anything, so that scores need not be computed.
    fn is_nothing(&self) -> bool {
        false
    }

    /// Whether it can select during prefill, before any parameter is solved from the prompt.
    fn is_known(&self) -> bool {
        true
    }

    /// Whether its selection depends only on the order of scores.
    fn only_ranks(&self) -> bool {
        false
    }

    /// Its data-independent form, if it ignores scores.
    fn blind(&self) -> Option<&dyn DataIndependentPicker> {
        None
    }

    /// Its device form, with equal selections; by default, the reason why there is none, or none with these parameters.
    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        Err(HostReason::NoForm)
    }

    /// What its second score is computed from, if it has two stages.
    fn finer(&self) -> Option<Finer> {
        None
    }

    /// See [`Method::solve`](crate::Method::solve).
    fn solve(&self, _probe: &Probe<'_>) -> Result<Option<Solved<Arc<dyn Picker>>>, KvError> {
        Ok(None)
    }
}

/// Chooses among candidates without queries, keys or scores.
pub(crate) trait DataIndependentPicker {
    /// Draws distinct candidates, ascending.
    fn draw(&self, candidates: &Range<usize>, context: Context, rng: ChaCha8Rng) -> SelectedTokens;
}

/// Computes second scores (unscaled `q·k`, or the group's reduced ones) of some candidates. Counts the codes read.
pub(crate) type Rescore<'a> = dyn Fn(Finer, &[u32], &mut Cost) -> Result<Vec<f32>, KvError> + Sync + 'a;

/// Counts exact products with tokens that are not attended; the tokens ascend.
pub(crate) type PassOver<'a> = dyn Fn(&[u32], &mut Cost) + Sync + 'a;

/// Computes the norms of the candidates' values.
pub(crate) type ValueNorms<'a> = dyn Fn(&mut Cost) -> Result<Vec<f32>, KvError> + Sync + 'a;

/// The candidates of one query with their scores.
#[derive(Clone)]
pub(crate) struct ScoredRow<'a> {
    /// One score for each page of the candidates.
    pub scores: &'a [f32],
    /// Tokens in a page; the last page may have fewer.
    pub page: usize,
    /// The least number of pages to select.
    pub least: usize,
    /// Tokens that may be selected.
    pub candidates: Range<usize>,
    /// The numbers of tokens in context and of static tokens.
    pub context: Context,
    /// Factor of the logits, `1/√d`.
    pub scale: f32,
    /// Seed of the example, layer, KV head and position.
    pub seed: u64,
    /// Query head within its group.
    pub head: usize,
    /// Query heads that share the selection: one, or all of the group.
    pub heads: usize,
    /// The heads' rotated, unscaled queries `[head][d]`.
    pub queries: &'a [f32],
    /// Rotated keys of all tokens in context, read on demand.
    pub keys: KvRows<'a>,
    /// Scores tokens again.
    pub rescore: &'a Rescore<'a>,
    /// Counts products with keys that these heads do not attend. Products with attended keys are counted by attention.
    pub pass_over: &'a PassOver<'a>,
    /// `‖v‖` of every candidate; counts the cost of reading all values.
    pub value_norms: &'a ValueNorms<'a>,
}

impl ScoredRow<'_> {
    /// The tokens of the listed pages, in their order.
    pub fn tokens(&self, pages: &[u32]) -> Vec<u32> {
        page_tokens(pages, self.page, &self.candidates)
    }

    /// Bytes of one pass over the scores.
    pub fn pass(&self) -> u64 {
        size_of_val(self.scores) as u64
    }

    /// The static tokens.
    pub fn fixed(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.candidates.start as u32).chain(self.candidates.end as u32..self.keys.tokens() as u32)
    }

    /// Exact logits of some tokens in context, for each head of the selection. Counts nothing: products with attended
    /// tokens are counted by attention, others by [`pass_over`](Self::pass_over).
    ///
    /// # Errors
    /// If the keys cannot be read.
    pub fn exact_logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, KvError> {
        let keys = self.keys.gather(tokens)?;
        let d = self.queries.len() / self.heads;
        let of_head = |query: &[f32]| {
            let mut logits = vec![0.0; tokens.len()];
            linear::scores(query, &keys, d, &mut logits);
            logits.iter_mut().for_each(|logit| *logit *= self.scale);
            logits
        };
        Ok(self.queries.chunks_exact(d).map(of_head).collect())
    }

    /// A random generator that depends only on the row's seed and head.
    pub fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(self.seed, self.head as u64))
    }
}

/// The tokens of the listed pages (blocks) of `page` tokens, which cover the candidates; the last page may be shorter.
pub(crate) fn page_tokens(pages: &[u32], page: usize, candidates: &Range<usize>) -> Vec<u32> {
    if page == 1 {
        // The common case, and much faster than a range per token.
        return pages.iter().map(|token| candidates.start as u32 + token).collect();
    }
    let tokens = |p: &u32| {
        let start = candidates.start + *p as usize * page;
        start as u32..(start + page).min(candidates.end) as u32
    };
    let mut all = Vec::with_capacity(pages.len() * page);
    pages.iter().for_each(|page| all.extend(tokens(page)));
    all
}

/// What the second score is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finer {
    /// The keys.
    Keys,
    /// The keys in 4 bits, which the index holds for this purpose.
    Codes,
}
