//! The [`Scorer`] trait: the index of a method of the form SCORE → SELECT, and how it scores keys.
//!
//! A scorer knows nothing of budgets, groups or attention: [`Scored`](crate::scored::method::Scored) combines it with a
//! [`Picker`](crate::scored::select::Picker) and a granularity into a [`Method`]. The same three functions (build an index, append
//! tokens, score queries) serve decode steps, indexes that grow with generated tokens, and a prefill in which every row has its own
//! selection.
//!
//! [`Method`]: crate::Method

use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::cost::Cost;
use crate::kv::quantised::QuantisedRows;
use crate::kv::{KvError, KvRows};
use crate::scored::granularity::Reduce;
use crate::types::prefix_head::{HeadPrefix, KvHeadId};
use crate::types::scores::GroupQueries;
use crate::types::selection::Selection;
use crate::{IndexKey, PromptNeed};

/// Scores candidates with an index of their keys.
pub(crate) trait Scorer: Clone + Send + Sync + 'static {
    /// The index over some candidates of one KV head, in token order.
    type Index: Send + Sync + 'static;

    /// See [`Method::calibration`](crate::Method::calibration).
    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        None
    }

    /// Whether its scores are products of queries and keys, or estimates of them, so that what the layer does to products before the
    /// softmax does not affect it.
    fn ranks_by_products(&self) -> bool {
        false
    }

    /// See [`Method::required_head_dim`](crate::Method::required_head_dim).
    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// See [`Method::prompt_needs`](crate::Method::prompt_needs).
    fn prompt_needs(&self) -> Vec<PromptNeed> {
        Vec::new()
    }

    /// See [`Method::index_key`](crate::Method::index_key).
    fn index_key(&self) -> IndexKey {
        IndexKey::none()
    }

    /// Tokens that share a score: 1, or the page size.
    fn page(&self) -> usize {
        1
    }

    /// Number of tokens that the index treats together, a multiple of the page: each part of the index depends only on its own
    /// tokens.
    fn grain(&self) -> usize {
        self.page()
    }

    /// Builds the index over the candidates of a prefix.
    ///
    /// # Errors
    /// If keys or values of the prefix cannot be read.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Self::Index, KvError>;

    /// How tokens after the prefix enter an index.
    fn growth(&self) -> Growth;

    /// An empty index, with what `like` learned from its prefix, if given. Called only as far as [`growth`](Self::growth) allows.
    fn empty(&self, place: KvHeadId, like: Option<&Self::Index>) -> Self::Index;

    /// Truncates the index to its first `kept` tokens (a multiple of the [`grain`](Self::grain)) and appends `new`.
    fn append(&self, index: &mut Self::Index, kept: usize, new: &NewTokens<'_>);

    /// Number of bytes that the index occupies.
    fn index_bytes(&self, index: &Self::Index) -> usize;

    /// See [`Method::counts_costs`](crate::Method::counts_costs).
    fn counts_costs(&self) -> bool {
        true
    }

    /// Returns the score of every page of a segment for every query, `[query][page]`, and adds its cost.
    ///
    /// # Errors
    /// If keys of the prefix cannot be read.
    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Self::Index>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError>;

    /// Whether scoring computes exact `q·k` in place, so that attention can reuse the products. Default false.
    fn takes_products(&self) -> bool {
        false
    }

    /// Whether the page that contains the current token is always selected, even where the window is shorter than a
    /// page. Default false.
    fn keeps_open_page(&self) -> bool {
        false
    }

    /// See [`Method::selects_ahead`](crate::Method::selects_ahead).
    fn selects_ahead(&self) -> bool {
        false
    }

    /// Whether scores are linear in the query. Default false.
    fn is_linear(&self) -> bool {
        false
    }

    /// Returns the sums of [`scores`](Self::scores) over the heads of a group, `[row][page]`, and adds their cost. If scores are
    /// linear, the sum of the group's queries is scored.
    ///
    /// # Errors
    /// Those of [`scores`](Self::scores).
    fn sums(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Self::Index>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        if queries.group() == 1 {
            return self.scores(queries, segment, cost);
        }
        if self.is_linear() {
            let summed = Reduce::Sum.apply(queries.queries, queries.rows * queries.d);
            return self.scores(&GroupQueries { queries: &summed, ..*queries }, segment, cost);
        }
        let scores = self.scores(queries, segment, cost)?;
        Ok(Reduce::Sum.apply(&scores, scores.len() / queries.group()))
    }

    /// Quantised keys for a second score; only the index of a [`Coded`](crate::scored::coded::Coded) scorer has them.
    fn codes<'a>(&self, _index: &'a Self::Index) -> Option<&'a QuantisedRows> {
        None
    }

    /// Its device form, with equal scores; by default, the reason why there is none, or none with these parameters.
    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Err(HostReason::NoForm)
    }

    /// Whether selected tokens are [weighted](Self::weigh) by the scores of each query.
    fn weighs(&self) -> bool {
        false
    }

    /// Weights the tokens selected at one position, for methods whose output does not come from the selected tokens alone.
    ///
    /// # Errors
    /// If values of the prefix cannot be read.
    fn weigh(
        &self,
        _from: &SelectionSource<'_, Self::Index>,
        _selection: &mut Selection,
        _cost: &mut Cost,
    ) -> Result<(), KvError> {
        Ok(())
    }
}

/// How tokens after the prefix enter an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// They cannot; holds the reason.
    None(&'static str),
    /// They extend what was learned from a prefix; says how.
    OfPrefix(&'static str),
    /// Each token is indexed independently of the others, so a prompt can be read with the index from its first token; says how.
    Free(&'static str),
}

/// An artefact that a scorer needs, and how the scorer loads it.
pub(crate) struct ScorerCalibration<S> {
    /// Kind of the artefact.
    pub kind: &'static str,
    /// Loads the artefact into the scorer.
    pub load: fn(&S, &Artefact) -> Result<S, ArtefactError>,
}

/// Tokens to append to the index of a KV head.
pub(crate) struct NewTokens<'a> {
    /// The KV head.
    pub place: KvHeadId,
    /// Rotated keys `[token][d]`.
    pub keys: &'a [f32],
    /// Values `[token][d]`.
    pub values: &'a [f32],
}

/// Consecutive candidates and their index.
pub(crate) struct Segment<'a, I> {
    /// Their index.
    pub index: &'a I,
    /// The candidates' keys `[token][d]`, read on demand.
    pub keys: KvRows<'a>,
}

/// The candidates that one position selected from, and their scores.
pub(crate) struct SelectionSource<'a, I> {
    /// The scores, `[query of the group][page]`.
    pub scores: &'a [f32],
    /// The first candidate.
    pub first: usize,
    /// All parts of the candidates, in order.
    pub parts: &'a [Part<'a, I>],
}

/// A part of a position's candidates.
pub(crate) struct Part<'a, I> {
    /// The part's index, which may hold further tokens after them.
    pub index: &'a I,
    /// Number of candidates in the part.
    pub tokens: usize,
    /// The candidates' values `[token][d]`, read on demand.
    pub values: KvRows<'a>,
}
