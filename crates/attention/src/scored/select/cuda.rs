//! Launches of pickers on a GPU.

use rand::SeedableRng;

use super::draws::Draws;
use super::share::TopShare;
use super::top::Top;
use crate::backend::active::{DeviceStep, DeviceWorkspace, PickerLaunch};
use crate::types::seed::{RowSeed, mix_seed};
use spattn_cuda::{DRAW_KEY, DrawWorkspace, GpuError, Pages, Scores, TokenListLayout};

impl PickerLaunch for Top {
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        pages: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let tokens = |budget: &u32| (*budget as usize * pages.size).min(pages.tokens.len());
        let most = step.budget_units.iter().max().map_or(0, tokens);
        let ends = vec![pages.tokens.end; step.budget_units.len()];
        to.lists.resize(step.prefix.gpu, TokenListLayout::new(lists, most), ends)?;
        to.budget_units.set(step.prefix.gpu, step.budget_units.to_vec())
    }

    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        (pages, _): (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        step.prefix.gpu.top_pages(scores, &to.budget_units, first, pages, &mut to.lists)
    }
}

/// Lists of a share are as long as it takes; one of this many candidates is expected, by which work is cut evenly.
const SELECTED_OF: usize = 16;

impl PickerLaunch for TopShare {
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        pages: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let (rows, most) = (step.budget_units.len(), pages.tokens.len());
        let layout = TokenListLayout::new(lists, most).expecting(most / SELECTED_OF);
        to.lists.resize(step.prefix.gpu, layout, vec![pages.tokens.end; rows])
    }

    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        (pages, least): (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let scale = step.prefix.scale.factor();
        step.prefix.gpu.top_share(scores, (self.p.value(), scale, least), first, pages, &mut to.lists)
    }
}

impl PickerLaunch for Draws {
    fn prepare(
        &self,
        step: &DeviceStep<'_>,
        pages: &Pages,
        lists: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let (gpu, most) = (step.prefix.gpu, self.budget.value().get().min(pages.tokens.len()));
        let ends = vec![pages.tokens.end; step.seeds.len()];
        to.lists.resize(gpu, TokenListLayout::new(lists, most).weighted(), ends)?;
        let group = lists / step.prefix.cache.kv_heads;
        let seed =
            |row: &RowSeed, list: usize| mix_seed(row.of_head(step.prefix.layer, list / group), (list % group) as u64);
        let seeds = step.seeds.iter().flat_map(|row| (0..lists).map(move |list| seed(row, list)));
        to.own.of::<DrawWorkspace>().keys.set(gpu, seeds.flat_map(key_of).collect())
    }

    fn pick_all(
        &self,
        step: &DeviceStep<'_>,
        (pages, _): (&Pages, usize),
        scores: &Scores,
        first: usize,
        to: &mut DeviceWorkspace,
    ) -> Result<(), GpuError> {
        let scale = step.prefix.scale.factor();
        let DeviceWorkspace { lists, own, .. } = to;
        let (draws, candidates) = ((self.budget.value().get(), scale), pages.tokens.clone());
        step.prefix.gpu.draw_tokens(scores, draws, first, candidates, lists, own.of::<DrawWorkspace>())
    }
}

/// The key of the host's random generator with this seed, from which a GPU draws the same numbers.
fn key_of(seed: u64) -> [u32; DRAW_KEY] {
    let key = rand_chacha::ChaCha8Rng::seed_from_u64(seed).get_seed();
    let (words, _) = key.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}
