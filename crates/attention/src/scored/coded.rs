//! [`Coded`]: a scorer whose index also holds all keys in 4 bits, for a second, finer score.

use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::kv::quantised;
use crate::kv::quantised::{QuantisedRows, Rounding};
use crate::scored::scorer::{Growth, NewTokens, Part, Scorer, ScorerCalibration, Segment, SelectionSource};
use crate::types::prefix_head::{HeadPrefix, KvHeadId};
use crate::types::scores::GroupQueries;
use crate::types::selection::Selection;
use crate::{IndexKey, PromptNeed};

const BITS: usize = 4;

/// A scorer, with 4-bit keys in addition to its index.
#[derive(Clone)]
pub(crate) struct Coded<S>(pub S);

/// The scorer's index over some candidates, and their 4-bit keys.
pub(crate) struct CodedIndex<I> {
    own: I,
    codes: QuantisedRows,
}

impl<S: Scorer> Coded<S> {
    fn with_artefact(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        match self.0.calibration() {
            Some(need) => Ok(Self((need.load)(&self.0, artefact)?)),
            None => Ok(self.clone()),
        }
    }
}

impl<S: Scorer> Scorer for Coded<S> {
    type Index = CodedIndex<S::Index>;

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        self.0.calibration().map(|need| ScorerCalibration { kind: need.kind, load: Self::with_artefact })
    }

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.0.required_head_dim()
    }

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        self.0.prompt_needs()
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new((self.0.index_key(), BITS))
    }

    fn page(&self) -> usize {
        self.0.page()
    }

    /// A common multiple of the group size of the codes and the scorer's grain.
    fn grain(&self) -> usize {
        let (own, codes) = (self.0.grain(), quantised::GROUP);
        let common = (1..=own).rev().find(|x| own.is_multiple_of(*x) && codes.is_multiple_of(*x));
        own / common.unwrap_or(1) * codes
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Self::Index, KvError> {
        let mut codes = QuantisedRows::new(&[], prefix.d, BITS);
        prefix.candidate_keys().each_block(quantised::GROUP, |keys| codes.push(keys, Rounding::Nearest))?;
        Ok(CodedIndex { own: self.0.build(prefix)?, codes })
    }

    fn growth(&self) -> Growth {
        self.0.growth()
    }

    fn empty(&self, place: KvHeadId, like: Option<&Self::Index>) -> Self::Index {
        let own = self.0.empty(place, like.map(|like| &like.own));
        CodedIndex { own, codes: QuantisedRows::new(&[], place.d, BITS) }
    }

    fn append(&self, index: &mut Self::Index, kept: usize, new: &NewTokens<'_>) {
        self.0.append(&mut index.own, kept, new);
        index.codes.truncate(kept);
        index.codes.push(new.keys, Rounding::Nearest);
    }

    fn counts_costs(&self) -> bool {
        self.0.counts_costs()
    }

    fn index_bytes(&self, index: &Self::Index) -> usize {
        self.0.index_bytes(&index.own) + index.codes.bytes()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Self::Index>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        self.0.scores(queries, &Segment { index: &segment.index.own, keys: segment.keys }, cost)
    }

    fn takes_products(&self) -> bool {
        self.0.takes_products()
    }

    fn keeps_open_page(&self) -> bool {
        self.0.keeps_open_page()
    }

    fn is_linear(&self) -> bool {
        self.0.is_linear()
    }

    fn sums(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Self::Index>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        self.0.sums(queries, &Segment { index: &segment.index.own, keys: segment.keys }, cost)
    }

    fn weighs(&self) -> bool {
        self.0.weighs()
    }

    fn weigh(
        &self,
        from: &SelectionSource<'_, Self::Index>,
        selection: &mut Selection,
        cost: &mut Cost,
    ) -> Result<(), KvError> {
        let own = from.parts.iter();
        let parts: Vec<_> =
            own.map(|part| Part { index: &part.index.own, tokens: part.tokens, values: part.values }).collect();
        self.0.weigh(&SelectionSource { scores: from.scores, first: from.first, parts: &parts }, selection, cost)
    }

    fn codes<'a>(&self, index: &'a Self::Index) -> Option<&'a QuantisedRows> {
        Some(&index.codes)
    }
}
