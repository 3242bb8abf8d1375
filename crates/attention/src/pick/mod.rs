//! Pickers: which of the scored candidates a query attends, and with which weights.
//!
//! A [`Picker`] sees the scores of one query (or what a GQA group's reduce to) and nothing of how they came about, so
//! that any [`Scorer`](super::scorer::Scorer) goes with any of them.

mod draws;
mod rescored;
mod sample;
mod share;
mod top;

use std::ops::Range;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::method::Solved;
use super::probe::Probe;
use super::spec::{ParamInfo, Params};
use crate::cost::Cost;
use crate::device::scorer::DevicePicker;
use crate::{Budget, Context, Picks, mix_seed};
pub(super) use draws::{Draws, Proposal};
pub(super) use rescored::{Finer, Rescored};
pub(super) use sample::Sample;
pub(super) use share::TopShare;
pub(super) use top::Top;

use spattn_base::error::UsageError;
use spattn_kernels::{Joined, linear};

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
    about: "topk | topp | sample: the best so many, the fewest with a share p of the mass that the scores estimate, or the \
            best with a sample of the rest",
};

/// For scores that only order candidates.
pub(super) const PICK_BY_ORDER: ParamInfo = ParamInfo {
    key: "pick",
    default: "topk",
    about: "topk | sample: the best so many, or these with a sample of the rest",
};

/// With `pick=sample`.
pub(super) const EPSILON: ParamInfo = ParamInfo {
    key: "epsilon",
    default: "-",
    about: "with pick=sample: error of the softmax denominator that is allowed, as a share of it (0.1)",
};

/// With `pick=sample`.
pub(super) const DELTA: ParamInfo =
    ParamInfo { key: "delta", default: "-", about: "with pick=sample: probability of a larger error (0.1)" };

/// With `pick=sample`.
pub(super) const BASE: ParamInfo = ParamInfo {
    key: "base",
    default: "-",
    about: "with pick=sample: base sample, by which the size of the other is set, as a share of the rest (0.05)",
};

/// With `pick=topp`.
pub(super) const SHARE: ParamInfo = ParamInfo {
    key: "p",
    default: "-",
    about: "with pick=topp: share of the candidates' mass, above 0 to 1 (0.95); with rescore: of what was scored again",
};

/// For methods that can score again what they picked.
pub(super) const RESCORE: ParamInfo = ParamInfo {
    key: "rescore",
    default: "none",
    about: "none | exact | int4: score again what is picked, by its keys or by keys in 4 bits, and pick of it by p or k2",
};

/// With `rescore`.
pub(super) const SECOND: ParamInfo =
    ParamInfo { key: "k2", default: "-", about: "with rescore, instead of p: tokens picked by the second score" };

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

    /// Reads `pick` and what it takes: a budget of tokens, `p`, or a budget and the bounds of a sample.
    ///
    /// # Errors
    /// A value out of range, or one that nothing asks for.
    pub fn read(self, params: &mut Params) -> Result<Arc<dyn Picker>, UsageError> {
        let ways: &[&str] = match self.scores {
            ScoresAre::Logits => &["topk", "topp", "sample"],
            ScoresAre::AnOrder => &["topk", "sample"],
        };
        let pick = params.choice(PICK.key, ways)?;
        let finer = match params.choice(RESCORE.key, &["none", "exact", "int4"])? {
            "exact" => Some(Finer::Keys),
            "int4" => Some(Finer::Codes),
            _ => None,
        };
        if let Some(finer) = finer {
            return self.read_rescored(params, pick, finer);
        }
        refuse(params, &[SECOND.key], "is a number of tokens to pick by a second score, and there is none")?;
        if pick == "sample" {
            refuse(params, &[SHARE.key], "is a share of attention to cover, and `pick=sample` covers none")?;
            return Ok(Arc::new(Sample::read(params, |params| self.budget(params))?));
        }
        refuse(params, &[EPSILON.key, DELTA.key, BASE.key], "is a bound of a sample, and none is drawn")?;
        if pick == "topp" {
            return Ok(Arc::new(TopShare::read(params)?));
        }
        refuse(params, &[SHARE.key], "is a share of attention to cover, and `pick=topk` covers none")?;
        Ok(Arc::new(Top { budget: self.budget(params)? }))
    }

    fn read_rescored(self, params: &mut Params, pick: &str, finer: Finer) -> Result<Arc<dyn Picker>, UsageError> {
        if pick != "topk" {
            return Err(UsageError::new(format!(
                "`rescore` takes the best of a first score, and `pick={pick}` others"
            ))
            .hint("leave out pick; p or k2 say how the second score picks"));
        }
        refuse(params, &[EPSILON.key, DELTA.key, BASE.key], "is a bound of a sample, and none is drawn")?;
        let budget = self.budget(params)?;
        Ok(Arc::new(Rescored::read(params, budget, finer)?))
    }

    fn budget(&self, params: &mut Params) -> Result<Budget, UsageError> {
        match self.from_zero {
            true => params.budget_from_zero(self.default),
            false => params.budget(self.default),
        }
    }
}

/// Refuses parameters that the way of picking does not take.
fn refuse(params: &mut Params, keys: &[&'static str], why: &str) -> Result<(), UsageError> {
    for key in keys {
        if params.take(key).is_some() {
            return Err(UsageError::new(format!("`{key}` {why}"))
                .hint(format!("ask for what takes {key} (pick, rescore), or leave it out")));
        }
    }
    Ok(())
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

    /// How it picks without a look at scores, if it does.
    fn blind(&self) -> Option<&dyn BlindPicker> {
        None
    }

    /// Its form on a device, which picks what this one picks; `None` if it has none.
    fn device(&self) -> Option<&dyn DevicePicker> {
        None
    }

    /// By what it scores tokens again, if it does.
    fn finer(&self) -> Option<Finer> {
        None
    }

    /// See [`Method::solve`](super::Method::solve).
    fn solve(&self, _probe: &Probe<'_>) -> Option<Solved<Arc<dyn Picker>>> {
        None
    }
}

/// Chooses among candidates without a look at any.
pub(super) trait BlindPicker {
    /// Distinct candidates, ascending.
    fn draw(&self, candidates: &Range<usize>, context: Context, rng: ChaCha8Rng) -> Picks;
}

/// Finer scores (unscaled `q·k`, or what a group's reduce to) of some candidates. Counts what is read of codes.
pub(super) type Rescore<'a> = dyn Fn(Finer, &[u32], &mut Cost) -> Vec<f32> + Sync + 'a;

/// Counts products with tokens, ascending, that are not attended.
pub(super) type PassOver<'a> = dyn Fn(&[u32], &mut Cost) + Sync + 'a;

/// Norms of the candidates' values.
pub(super) type ValueNorms<'a> = dyn Fn(&mut Cost) -> Vec<f32> + Sync + 'a;

/// The candidates of one query with their scores.
#[derive(Clone)]
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
    /// Heads that it picks for: one, or those of a group together.
    pub heads: usize,
    /// Their rotated, unscaled queries `[head][d]`.
    pub queries: &'a [f32],
    /// Rotated keys of all tokens in context.
    pub keys: Joined<'a>,
    /// Scores tokens again.
    pub rescore: &'a Rescore<'a>,
    /// Counts the products of these heads with keys that were looked at and that they do not attend; what is attended is counted there.
    pub pass_over: &'a PassOver<'a>,
    /// `‖v‖` of every candidate; counts what reading all values costs.
    pub value_norms: &'a ValueNorms<'a>,
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

    /// Tokens that are attended whatever is picked.
    pub fn fixed(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.candidates.start as u32).chain(self.candidates.end as u32..self.keys.tokens() as u32)
    }

    /// Exact logits of some tokens in context, for each head that it picks for. Counts nothing: products with tokens that
    /// are attended are counted there, others by [`pass_over`](Self::pass_over).
    pub fn exact_logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let keys = self.keys.gather(tokens);
        let d = self.queries.len() / self.heads;
        let of_head = |query: &[f32]| {
            let mut logits = vec![0.0; tokens.len()];
            linear::scores(query, &keys, d, &mut logits);
            logits.iter_mut().for_each(|logit| *logit *= self.scale);
            logits
        };
        self.queries.chunks_exact(d).map(of_head).collect()
    }

    /// A generator, the same whenever this row is picked from.
    pub fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(mix_seed(self.seed, self.head as u64))
    }
}

/// Tokens of some pages (blocks) of `page` tokens, cut over the candidates; the last one may be shorter.
pub(super) fn page_tokens(pages: &[u32], page: usize, candidates: &Range<usize>) -> Vec<u32> {
    if page == 1 {
        // Most methods, and much sooner done than a range for each.
        return pages.iter().map(|token| candidates.start as u32 + token).collect();
    }
    let tokens = |p: &u32| {
        let start = candidates.start + *p as usize * page;
        start as u32..(start + page).min(candidates.end) as u32
    };
    pages.iter().flat_map(tokens).collect()
}
