//! Pickers: which of the scored candidates a query attends, and with which weights.
//!
//! A [`Picker`] sees the scores of one query (or what a GQA group's reduce to) and nothing of how they came about, so
//! that any [`Scorer`](super::scorer::Scorer) goes with any of them.

mod draws;
mod share;
mod top;

use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub(super) use draws::Draws;
pub(super) use share::TopShare;
pub(super) use top::Top;

use super::budget::{Budget, Context};
use super::method::{Picks, Solved, mix_seed};
use super::probe::Probe;
use super::spec::{ParamInfo, Params};
use crate::cost::Cost;
use crate::error::UsageError;

/// What scores are, as far as pickers must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScoresAre {
    /// Estimates (or bounds) of `q·k`.
    Logits,
    /// Larger for better candidates, and nothing else.
    AnOrder,
}

/// Parameters of methods that can pick in several ways.
pub(super) const PICK: ParamInfo = ParamInfo {
    key: "pick",
    default: "topk",
    about: "topk | topp: the best so many, or the fewest with a share p of the mass that the scores estimate",
};

/// With `pick=topp`.
pub(super) const SHARE: ParamInfo =
    ParamInfo { key: "p", default: "-", about: "with pick=topp: share of the candidates' mass, above 0 to 1 (0.95)" };

/// What a method lets be picked.
pub(super) struct Choice {
    /// The budget if none is given.
    pub default: Budget,
    /// Whether a budget of no token is one.
    pub from_zero: bool,
    /// What its scores are.
    pub scores: ScoresAre,
}

impl Choice {
    /// The best by scores that estimate logits, 1 at least if a number of tokens is given.
    pub fn by_logits(default: Budget) -> Self {
        Self { default, from_zero: false, scores: ScoresAre::Logits }
    }

    /// The best by scores that only order candidates.
    pub fn by_order(default: Budget) -> Self {
        Self { scores: ScoresAre::AnOrder, ..Self::by_logits(default) }
    }

    /// Reads `pick`, where there is a choice, and what it takes: a budget of tokens, or `p`.
    ///
    /// # Errors
    /// A value out of range, or a share where none is asked for.
    pub fn read(self, params: &mut Params) -> Result<Arc<dyn Picker>, UsageError> {
        if self.scores == ScoresAre::Logits {
            if params.choice(PICK.key, &["topk", "topp"])? == "topp" {
                return Ok(Arc::new(TopShare::read(params)?));
            }
            if params.take(SHARE.key).is_some() {
                return Err(UsageError::new("`p` is a share of attention to cover, and `pick=topk` covers none")
                    .hint("add pick=topp, or leave out p"));
            }
        }
        let budget = match self.from_zero {
            true => params.budget_from_zero(self.default)?,
            false => params.budget(self.default)?,
        };
        Ok(Arc::new(Top { budget }))
    }
}

/// Chooses among scored candidates.
pub(super) trait Picker: Send + Sync {
    /// What is picked by the scores of one query. Adds the passes over them (`select_bytes`).
    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Picks;

    /// Whether it picks nothing whatever the scores, so that they need not be computed.
    fn is_nothing(&self) -> bool {
        false
    }

    /// Whether it can pick while the prompt is read, before anything is known of it.
    fn is_known(&self) -> bool {
        true
    }

    /// See [`Method::solve`](super::Method::solve).
    fn solve(&self, _probe: &Probe<'_>) -> Option<Solved<Arc<dyn Picker>>> {
        None
    }
}

/// The candidates of one query with their scores.
pub(super) struct ScoredRow<'a> {
    /// One for each page of the candidates.
    pub scores: &'a [f32],
    /// Tokens a page; the last one may have fewer.
    pub page: usize,
    /// Pages picked at least.
    pub least: usize,
    /// Tokens that may be picked.
    pub candidates: Range<usize>,
    /// What is in context, and what is static.
    pub context: Context,
    /// Factor of the logits, `1/√d`.
    pub scale: f32,
    /// Seed of the example, layer, KV head and position.
    pub seed: u64,
    /// Query head within its group.
    pub head: usize,
}

impl ScoredRow<'_> {
    /// Tokens of some pages, in their order.
    pub fn tokens(&self, pages: &[u32]) -> Vec<u32> {
        page_tokens(pages, self.page, &self.candidates)
    }

    /// Bytes of one pass over the scores.
    pub fn pass(&self) -> u64 {
        size_of_val(self.scores) as u64
    }

    /// A generator, the same whenever this row is picked from.
    pub fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(self.seed, self.head as u64))
    }
}

/// Tokens of some pages (blocks) of `page` tokens, cut over the candidates; the last one may be shorter.
pub(super) fn page_tokens(pages: &[u32], page: usize, candidates: &Range<usize>) -> Vec<u32> {
    let tokens = |p: &u32| {
        let start = candidates.start + *p as usize * page;
        start as u32..(start + page).min(candidates.end) as u32
    };
    pages.iter().flat_map(tokens).collect()
}
