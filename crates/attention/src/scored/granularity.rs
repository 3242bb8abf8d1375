//! Whether a method selects for each query head, or once for the whole GQA group.

use crate::cost::Cost;
use crate::kv::KvError;
use crate::method::Step;
use crate::prefill::mask::{Mask, Masks};
use crate::spec::{ParamInfo, Params};
use crate::types::selection::{SelectedTokens, Selection};
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_kernels::pieces::PIECE;

/// Whether each query head of a GQA group has its own selection, or the group shares one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Granularity {
    /// Each query head has its own selection.
    QueryHead,
    /// The group has one selection, by the reduced scores of its heads.
    KvHead(Reduce),
}

/// How the scores of a group are reduced. A mean is not offered, because it selects what the sum selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reduce {
    /// Sum.
    Sum,
    /// Maximum.
    Max,
}

impl Granularity {
    pub(crate) const INFO: ParamInfo = ParamInfo {
        key: "per",
        default: "query_head",
        about: "query_head | kv_head: a selection for each query head, or one for the GQA group",
    };

    pub(crate) const REDUCE: ParamInfo = ParamInfo {
        key: "reduce",
        default: "sum",
        about: "with per=kv_head: sum | max of the group's scores (the mean picks what the sum does)",
    };

    /// Reads `per` and `reduce`.
    pub(crate) fn read(params: &mut Params) -> Result<Self, UsageError> {
        let per = Self::read_per(params)?;
        let is_reduced = params.is_given(Self::REDUCE.key);
        let reduce = match params.choice(Self::REDUCE.key, &["sum", "max"])? {
            "max" => Reduce::Max,
            _ => Reduce::Sum,
        };
        match per {
            Self::KvHead(_) => Ok(Self::KvHead(reduce)),
            Self::QueryHead if is_reduced => {
                Err(UsageError::new("`reduce` says how a GQA group comes to one selection, and none was asked for")
                    .hint("add per=kv_head, or leave out reduce"))
            }
            Self::QueryHead => Ok(Self::QueryHead),
        }
    }

    /// Reads only `per`, for methods whose group selection is not made from scores.
    pub(crate) fn read_per(params: &mut Params) -> Result<Self, UsageError> {
        Ok(match params.choice(Self::INFO.key, &["query_head", "kv_head"])? {
            "kv_head" => Self::KvHead(Reduce::Sum),
            _ => Self::QueryHead,
        })
    }

    /// Returns the scores `[group][n]` of the query heads unchanged, or reduced over the group.
    pub(crate) fn merged(self, heads: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        match self {
            Self::QueryHead => heads,
            Self::KvHead(reduce) => heads.into_iter().reduce(|a, b| reduce.pair(a, &b)).into_iter().collect(),
        }
    }

    /// Whether scores of a group are summed.
    pub(crate) fn adds(self) -> bool {
        self == Self::KvHead(Reduce::Sum)
    }

    /// Whether a search uses each query of a group of `group` heads, not their sum; for methods that use
    /// [`read_per`](Self::read_per). Attention then needs the same products.
    pub(crate) fn asks_each(self, group: usize) -> bool {
        self == Self::QueryHead || group == 1
    }

    /// Makes a selection of the tokens chosen by each list of [`merged`](Self::merged).
    pub(crate) fn selection(self, tokens: Vec<Vec<u32>>) -> Selection {
        self.selection_of(tokens.into_iter().map(SelectedTokens::softmax).collect())
    }

    /// Like [`selection`](Self::selection), for weighted tokens.
    pub(crate) fn selection_of(self, mut picks: Vec<SelectedTokens>) -> Selection {
        match self {
            Self::QueryHead => Selection::PerHead(picks),
            Self::KvHead(_) => Selection::Shared(picks.pop().unwrap_or_else(|| SelectedTokens::softmax(Vec::new()))),
        }
    }

    /// Returns the values of each query head of a group, or their sum by `add`.
    pub(crate) fn reduced<T>(self, heads: Vec<T>, add: impl Fn(T, &T) -> T) -> Vec<T> {
        match self {
            Self::QueryHead => heads,
            Self::KvHead(_) => heads.into_iter().reduce(|sum, head| add(sum, &head)).into_iter().collect(),
        }
    }

    /// Combines the masks of the query heads, or wraps the group's only mask.
    pub(crate) fn masks(self, mut masks: Vec<Mask>) -> Masks {
        match self {
            Self::QueryHead => Masks::PerHead(masks),
            Self::KvHead(_) => Masks::Shared(masks.pop().expect("one mask for the GQA group")),
        }
    }

    /// An empty selection, for a group of `group` query heads.
    pub(crate) fn nothing(self, group: usize) -> Selection {
        self.selection(vec![Vec::new(); group])
    }

    /// The selection of all candidates of a step.
    pub(crate) fn all(self, step: &Step<'_>) -> Selection {
        let all = || SelectedTokens::softmax(step.candidates.clone().map(|token| token as u32).collect());
        match self {
            Self::QueryHead => Selection::PerHead((0..step.group()).map(|_| all()).collect()),
            Self::KvHead(_) => Selection::Shared(all()),
        }
    }

    /// Runs `search` for each query of the group, or once for the sum of the queries, whose scores are the summed scores; for
    /// methods that use [`read_per`](Self::read_per).
    ///
    /// # Errors
    /// If a search fails.
    pub(crate) fn by_query(
        self,
        step: &Step<'_>,
        cost: &mut Cost,
        search: impl Fn(&[f32], &mut Cost) -> Result<Vec<u32>, KvError> + Sync,
    ) -> Result<Selection, KvError> {
        let picks = |query: &[f32], cost: &mut Cost| search(query, cost).map(SelectedTokens::softmax);
        Ok(match self {
            Self::QueryHead => {
                let of_head = |head, cost: &mut Cost| picks(step.query(head), cost);
                Selection::PerHead(try_each_head(step.group(), step.context.tokens, cost, of_head)?)
            }
            Self::KvHead(_) => Selection::Shared(picks(&Reduce::Sum.apply(step.queries, step.d), cost)?),
        })
    }

    /// The queries `[query][d]` to search with: each of the group, or their sum, whose scores are the summed scores; for methods
    /// that use [`read_per`](Self::read_per).
    pub(crate) fn queries(self, step: &Step<'_>) -> Vec<f32> {
        match self {
            Self::QueryHead => step.queries.to_vec(),
            Self::KvHead(_) => Reduce::Sum.apply(step.queries, step.d),
        }
    }

    /// Reduces the scores `[head][n]` of heads that select together to `[n]`.
    pub(crate) fn reduced_scores(self, scores: Vec<f32>, n: usize) -> Vec<f32> {
        match self {
            Self::QueryHead => scores,
            Self::KvHead(reduce) => reduce.apply(&scores, n),
        }
    }

    /// Selects by `pick(head, scores)`: for each query head by its row of the scores `[group][n]`, or once, as head 0, by the
    /// reduced scores. If scores are already [summed](Self::adds), `group` is 1.
    ///
    /// # Errors
    /// If `pick` fails.
    pub(crate) fn select(
        self,
        scores: &[f32],
        group: usize,
        cost: &mut Cost,
        pick: impl Fn(usize, &[f32], &mut Cost) -> Result<SelectedTokens, KvError> + Sync,
    ) -> Result<Selection, KvError> {
        let n = scores.len() / group;
        Ok(match self {
            Self::QueryHead => {
                let of_head = |head, cost: &mut Cost| pick(head, &scores[head * n..][..n], cost);
                Selection::PerHead(try_each_head(group, n, cost, of_head)?)
            }
            Self::KvHead(reduce) => Selection::Shared(pick(0, &reduce.apply(scores, n), cost)?),
        })
    }
}

/// Runs `work` for each query head of a group and adds up its costs. Heads run in parallel if each processes more than a piece of a
/// context.
pub(crate) fn each_head<T: Send>(
    group: usize,
    goes_through: usize,
    cost: &mut Cost,
    work: impl Fn(usize, &mut Cost) -> T + Sync,
) -> Vec<T> {
    if goes_through <= PIECE {
        return (0..group).map(|head| work(head, cost)).collect();
    }
    let counted = |head| {
        let mut own = Cost::default();
        (work(head, &mut own), own)
    };
    let dealt = clock::deal(0..group, counted).into_iter();
    dealt
        .map(|(done, own)| {
            *cost += own;
            done
        })
        .collect()
}

/// Like [`each_head`], for work that can fail; returns the error of the first head that failed.
pub(crate) fn try_each_head<T: Send>(
    group: usize,
    goes_through: usize,
    cost: &mut Cost,
    work: impl Fn(usize, &mut Cost) -> Result<T, KvError> + Sync,
) -> Result<Vec<T>, KvError> {
    each_head(group, goes_through, cost, work).into_iter().collect()
}

impl Reduce {
    /// Reduces scores `[group][n]` to `[n]`.
    pub(crate) fn apply(self, scores: &[f32], n: usize) -> Vec<f32> {
        scores[n..].chunks_exact(n).fold(scores[..n].to_vec(), |reduced, head| self.pair(reduced, head))
    }

    /// Reduces the scores of two heads to one list.
    fn pair(self, mut reduced: Vec<f32>, head: &[f32]) -> Vec<f32> {
        let pairs = reduced.iter_mut().zip(head);
        match self {
            Self::Sum => pairs.for_each(|(r, x)| *r += x),
            Self::Max => pairs.for_each(|(r, x)| *r = r.max(*x)),
        }
        reduced
    }
}
