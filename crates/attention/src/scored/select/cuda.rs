//! Launches of pickers on a GPU.

use rand::SeedableRng;

use super::draws::Draws;
use super::share::TopShare;
use super::top::Top;
use crate::backend::active::{DeviceWorkspace, PickRequest, PickerLaunch};
use crate::types::seed::{RowSeed, mix_seed};
use spattn_cuda::{DRAW_KEY, DrawWorkspace, GpuError, Scores, TokenListLayout};

impl PickerLaunch for Top {
    fn prepare(&self, request: &PickRequest<'_>, to: &mut DeviceWorkspace) -> Result<(), GpuError> {
        let PickRequest { step, pages, lists_per_row, .. } = request;
        let tokens = |budget: &u32| (*budget as usize * pages.size).min(pages.tokens.len());
        let most = step.budget_units.iter().max().map_or(0, tokens);
        let ends = step.ends.map_or_else(|| vec![pages.tokens.end; step.budget_units.len()], <[usize]>::to_vec);
        to.ends.set(step.prefix.gpu, ends.iter().map(|end| *end as u32).collect())?;
        to.lists.resize(step.prefix.gpu, TokenListLayout::new(*lists_per_row, most), ends)?;
        to.budget_units.set(step.prefix.gpu, step.budget_units.to_vec())
    }

    fn pick_all(
        &self,
        request: &PickRequest<'_>,
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let PickRequest { step, pages, .. } = request;
        let ends = step.ends.map(|_| &to.ends);
        step.prefix.gpu.top_pages(scores, (&to.budget_units, ends), first, pages, &mut to.lists)
    }
}

/// A share takes as many tokens as it needs; work is divided as if it took one of this many candidates.
const SELECTED_OF: usize = 16;

impl PickerLaunch for TopShare {
    fn prepare(&self, request: &PickRequest<'_>, to: &mut DeviceWorkspace) -> Result<(), GpuError> {
        let PickRequest { step, pages, lists_per_row, .. } = request;
        let (rows, most) = (step.budget_units.len(), pages.tokens.len());
        let layout = TokenListLayout::new(*lists_per_row, most).expecting(most / SELECTED_OF);
        to.lists.resize(step.prefix.gpu, layout, vec![pages.tokens.end; rows])
    }

    fn pick_all(
        &self,
        request: &PickRequest<'_>,
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let PickRequest { step, pages, least_pages, .. } = request;
        let share = (self.p.value(), step.prefix.scale.factor(), *least_pages);
        step.prefix.gpu.top_share(scores, share, first, pages, &mut to.lists)
    }
}

impl PickerLaunch for Draws {
    fn prepare(&self, request: &PickRequest<'_>, to: &mut DeviceWorkspace) -> Result<(), GpuError> {
        let PickRequest { step, pages, lists_per_row, .. } = request;
        let (gpu, most) = (step.prefix.gpu, self.budget.value().get().min(pages.tokens.len()));
        let ends = vec![pages.tokens.end; step.seeds.len()];
        to.lists.resize(gpu, TokenListLayout::new(*lists_per_row, most).weighted(), ends)?;
        let group = lists_per_row / step.prefix.cache.kv_heads;
        let seed =
            |row: &RowSeed, list: usize| mix_seed(row.of_head(step.prefix.layer, list / group), (list % group) as u64);
        let seeds = step.seeds.iter().flat_map(|row| (0..*lists_per_row).map(move |list| seed(row, list)));
        to.own.of::<DrawWorkspace>().keys.set(gpu, seeds.flat_map(key_of).collect())
    }

    fn pick_all(
        &self,
        request: &PickRequest<'_>,
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let PickRequest { step, pages, .. } = request;
        let DeviceWorkspace { lists, own, .. } = to;
        let (draws, candidates) = ((self.budget.value().get(), step.prefix.scale.factor()), pages.tokens.clone());
        step.prefix.gpu.draw_tokens(scores, draws, first, candidates, lists, own.of::<DrawWorkspace>())
    }
}

/// The key of the host's random generator with this seed, from which a GPU draws the same numbers.
fn key_of(seed: u64) -> [u32; DRAW_KEY] {
    let key = rand_chacha::ChaCha8Rng::seed_from_u64(seed).get_seed();
    let (words, _) = key.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}
