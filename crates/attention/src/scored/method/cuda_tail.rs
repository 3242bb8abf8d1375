//! Selects on a GPU when a row's candidates differ from those in the prefix's index: some follow the prefix (`tail`), or the rows of a
//! prompt that is being read have fewer.
//!
//! The index of the prefix scores its candidates up to the last complete grain. The later keys, of all rows, are gathered into a separate
//! cache, where each row starts a new grain. They are indexed and scored like a prefix, by every row, and each row's own scores are
//! appended to those of the prefix. So a scorer needs no kernels beyond those for a prefix. A row's last grain is filled up by repeating
//! its last key to the end of the last page, and then that page, because repeated keys change neither bounds nor ranges.

use std::ops::Range;

use super::Scored;
use super::cuda::reduction;
use super::device::{ON_DEVICE, TailSplit};
use crate::backend::active::{
    DeviceLayer, DeviceScratch, DeviceSequence, DeviceStep, DeviceWorkspace, PickRequest, ScoreRequest, TailPlaces,
};
use crate::backend::form::SCORE_BYTES;
use crate::backend::index::DeviceIndex;
use crate::scored::scorer::Scorer;
use crate::types::seed::RowSeed;
use spattn_cuda::{GpuError, Pages, Scores, TailRow, TailRows};

/// Memory kept from step to step.
#[derive(Default)]
struct TailWorkspace {
    rows: TailRows,
    /// Scores of the gathered keys.
    scratch: DeviceScratch,
}

/// The candidates of a step beyond the index of the prefix.
struct BehindIndex<'a> {
    rows: Vec<TailRow<'a>>,
    /// Where they are gathered: the room is a multiple of the grain, 0 if no row has such candidates.
    places: TailPlaces,
    /// Number of pages of the row that has most.
    pages: usize,
}

impl<S: Scorer> Scored<S> {
    /// Like [`select_all`](crate::backend::active::DeviceLaunch::select_all), for rows whose candidates end at `ends`.
    pub(super) fn select_behind(
        &self,
        step: &DeviceStep<'_>,
        ends: &[usize],
        index: &DeviceIndex,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let (scorer, picker) = self.on_device().expect(ON_DEVICE);
        let (gpu, reduction) = (step.prefix.gpu, reduction(self.per));
        let lists_per_row = if reduction.is_some() { step.prefix.cache.kv_heads } else { step.queries.heads };
        let behind = self.behind_index(step, ends);
        let end = ends.iter().copied().max().unwrap_or(0).max(step.prefix.candidates.end);
        let pages = Pages { tokens: step.prefix.candidates.start..end, size: self.scorer.page() };
        let pick = PickRequest { step, pages, least_pages: self.least, lists_per_row };
        picker.prepare(&pick, to)?;
        let of_prefix = step.prefix.candidates.len().div_ceil(self.scorer.page());
        let more = behind.pages.saturating_sub(of_prefix);
        let DeviceScratch { own, .. } = scratch;
        own.of::<TailWorkspace>().rows.set(gpu, &behind.rows, behind.places.room, step.prefix_tokens)?;
        for rows in behind.rows_at_once(step, &pick.pages) {
            scratch.scores.reserve_behind(more);
            let request = ScoreRequest { step, rows: rows.clone(), index, reduction };
            scorer.score_all(request, scratch)?;
            let DeviceScratch { scores, own } = scratch;
            let TailWorkspace { rows: table, scratch: own } = own.of();
            if behind.places.room > 0 {
                let cache = table.gather(gpu, &step.prefix.cache, step.prefix_tokens, &rows)?;
                let candidates = 0..cache.capacity;
                let gathered = DeviceStep {
                    prefix: DeviceLayer { cache, candidates, ..step.prefix.clone() },
                    ends: None,
                    keys: None,
                    ..*step
                };
                let index = scorer.build_tail(&gathered.prefix, index, behind.places)?;
                let request = ScoreRequest { step: &gathered, rows: rows.clone(), index: &index, reduction };
                scorer.score_all(request, own)?;
            }
            let of_behind = (behind.places.room > 0).then(|| own.scores.of(reduction));
            table.join(gpu, &rows, of_behind, scores.of_mut(reduction))?;
            picker.pick_all(&pick, scores.of(reduction), rows.start, to)?;
        }
        Ok(())
    }

    /// The candidates of each row beyond the index of the prefix.
    fn behind_index<'a>(&self, step: &DeviceStep<'a>, ends: &[usize]) -> BehindIndex<'a> {
        let (page, start) = (self.scorer.page(), step.prefix.candidates.start);
        let of_row = |((end, seed), run): ((&usize, &RowSeed), &DeviceSequence<'a>)| {
            let candidates = start..*end;
            let TailSplit { whole, behind } =
                TailSplit::of(&self.scorer, step.prefix.candidates.len(), candidates.len());
            let (token, column) = (start + whole, whole.div_ceil(page));
            debug_assert!(behind == 0 || whole.is_multiple_of(page), "a row's own candidates begin within a page");
            TailRow {
                keys: run.tail,
                tokens: token..token + behind,
                columns: column..column + behind.div_ceil(page),
                page,
                open: self.open_page(&candidates, seed.total),
            }
        };
        let rows: Vec<TailRow<'a>> = ends.iter().zip(step.seeds).zip(step.runs).map(of_row).collect();
        let most = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        let pages = rows.iter().map(|row| row.columns.end).max().unwrap_or(0);
        let (grain, indexed) = (self.scorer.grain(), step.prefix.candidates.len());
        let places = TailPlaces { first: indexed / grain * grain, room: most.next_multiple_of(grain) };
        BehindIndex { rows, places, pages }
    }
}

impl BehindIndex<'_> {
    /// Ranges of rows that are scored together. Every row scores the gathered keys of all rows in its range, and these keys should be no
    /// more than those of the prefix.
    fn rows_at_once(&self, step: &DeviceStep<'_>, pages: &Pages) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.rows.len();
        let by_bytes = SCORE_BYTES / Scores::row_bytes(step.queries.heads, pages.count()).max(1);
        let by_keys = step.prefix.candidates.len().checked_div(self.places.room).unwrap_or(rows);
        let at_once = by_bytes.min(by_keys).max(1);
        (0..rows).step_by(at_once).map(move |first| first..(first + at_once).min(rows))
    }
}
