//! Launches of a scorer and a picker on a GPU.

use std::ops::Range;

use super::Scored;
use super::device::ON_DEVICE;
use crate::backend::active::{
    DeviceLaunch, DeviceLayer, DeviceScratch, DeviceStep, DeviceWorkspace, FusedTopK, MaterializesScores, PickRequest,
    ScoreRequest,
};
use crate::backend::form::SCORE_BYTES;
use crate::backend::index::{DeviceIndex, PrefixStatsView};
use crate::backend::scorer::{DevicePicker, DeviceScorer};
use crate::scored::granularity::{Granularity, Reduce};
use crate::scored::scorer::Scorer;
use spattn_cuda::{Gpu, GpuError, HeldTokens, Pages, Reduction, Scores};

/// Ranges of rows whose scores are computed together.
fn rows_at_once(step: &DeviceStep<'_>, pages: &Pages) -> impl Iterator<Item = Range<usize>> + use<> {
    let rows = all_rows(step).end;
    let at_once = (SCORE_BYTES / Scores::row_bytes(step.queries.heads, pages.count()).max(1)).max(1);
    (0..rows).step_by(at_once).map(move |first| first..(first + at_once).min(rows))
}

/// How the scores of a group are reduced; `None` if each query head selects by its own scores.
pub(super) fn reduction(per: Granularity) -> Option<Reduction> {
    match per {
        Granularity::QueryHead => None,
        Granularity::KvHead(Reduce::Sum) => Some(Reduction::Sum),
        Granularity::KvHead(Reduce::Max) => Some(Reduction::Max),
    }
}

/// The launch that scores and selects for all requested rows at once, if the picker is a top-k and the scorer
/// offers one.
fn fused<'f>(
    scorer: &'f dyn DeviceScorer,
    picker: &dyn DevicePicker,
    request: ScoreRequest<'f, DeviceIndex>,
) -> Option<FusedTopK<'f>> {
    if picker.is_top_k() { scorer.fused_top_k(request) } else { None }
}

impl<S: Scorer> Scored<S> {
    /// The pages of a step's candidates.
    fn pages(&self, step: &DeviceStep<'_>) -> Pages {
        Pages { tokens: step.prefix.candidates.clone(), size: self.scorer.page() }
    }

    /// The scoring request for some rows of a step.
    fn score_request<'a>(
        &self,
        step: &'a DeviceStep<'a>,
        index: &'a DeviceIndex,
        rows: Range<usize>,
    ) -> ScoreRequest<'a, DeviceIndex> {
        ScoreRequest { step, rows, index, reduction: reduction(self.per) }
    }
}

/// All rows of a step.
fn all_rows(step: &DeviceStep<'_>) -> Range<usize> {
    0..step.budget_units.len()
}

impl<S: Scorer> DeviceLaunch for Scored<S> {
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        self.on_device().expect(ON_DEVICE).0.build_all(layer, learned)
    }

    fn start_all(&self, _: &Gpu, _: &DeviceIndex, _: usize) -> Result<Option<HeldTokens>, GpuError> {
        Ok(None)
    }

    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        to: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        if let Some(ends) = step.ends {
            return self.select_behind(step, ends, index, to, scratch);
        }
        let (scorer, picker) = self.on_device().expect(ON_DEVICE);
        let reduction = reduction(self.per);
        let lists_per_row = if reduction.is_some() { step.prefix.cache.kv_heads } else { step.queries.heads };
        let pick = PickRequest { step, pages: self.pages(step), least_pages: self.least, lists_per_row };
        picker.prepare(&pick, to)?;
        scratch.scores.reserve_behind(0);
        if let Some(launch) = fused(scorer, picker, self.score_request(step, index, all_rows(step))) {
            return launch(scratch, to);
        }
        for rows in rows_at_once(step, &pick.pages) {
            let first = rows.start;
            scorer.score_all(self.score_request(step, index, rows.clone()), scratch)?;
            picker.pick_all(&pick, scratch.scores.of(reduction), first, to)?;
            scorer.weigh_all(self.score_request(step, index, rows), scratch, to)?;
        }
        Ok(())
    }

    fn score_only(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        scratch: &mut DeviceScratch,
    ) -> Result<MaterializesScores, GpuError> {
        let (scorer, picker) = self.on_device().expect(ON_DEVICE);
        scratch.scores.reserve_behind(0);
        rows_at_once(step, &self.pages(step))
            .try_for_each(|rows| scorer.score_all(self.score_request(step, index, rows), scratch))?;
        let is_fused = fused(scorer, picker, self.score_request(step, index, all_rows(step))).is_some();
        Ok(if is_fused { MaterializesScores::ForTimingOnly } else { MaterializesScores::Yes })
    }
}
