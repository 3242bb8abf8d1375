//! `quest`: whole pages chosen by an upper bound of their scores (Tang et al. 2024).
//!
//! Each page keeps the channel-wise minimum and maximum of its keys; a page's score is
//! `Σ_c max(q_c·min_c, q_c·max_c)`, which no key of the page can exceed. With `q⁺ = max(q, 0)` and
//! `q⁻ = min(q, 0)` that is `q⁺·max + q⁻·min`: two dot products a page, `1/page` of full attention.
//! Pages are cut over the candidates; a last, shorter page counts as a page.
//!
//! Where what is generated fills pages (`--tail`) and the window is shorter than a page, the page that the current token fills is
//! attended whatever its bound, as one of the pages of the budget: the bound of one to three keys is tight, and would lose to the loose
//! ones of whole pages. The authors' library does so; their evaluation script judges that page like any other.
//!
//! `summary_bits=4` or `2` quantises the bounds, each channel by its own range over 128 pages: minima are rounded down
//! and maxima up, so that a page's score stays an upper bound, a looser one. 16 keeps them as the cache keeps keys.

#[cfg(feature = "cuda")]
use std::ops::Range;

use super::ParamInfo;
#[cfg(test)]
use crate::Step;
use crate::cost::Cost;
use crate::device::scorer::DeviceScorer;
use crate::kv::quantised::{QuantisedRows, Rounding};
use crate::kv::{KvDtype, KvStore, quantised};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::{GroupQueries, dots};
use crate::{Budget, HeadPrefix, PromptShape, Role, StepShape};
#[cfg(feature = "cuda")]
use crate::{DeviceIndex, DeviceLayer, DeviceScratch, DeviceStep, PrefixStatsView};
#[cfg(feature = "cuda")]
use spattn_cuda::{GpuError, PageBounds, Pages as Cut, Reduction};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "quest",
    role: Role::Method,
    about: "whole pages by the min/max bound of their keys",
    reference: "Quest (Tang et al. 2024, arXiv:2406.10774)",
    params: &[
        ParamInfo { key: "page", default: "16", about: "tokens a page" },
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context read as pages, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens read as pages (rounded up to pages)" },
        ParamInfo { key: "summary_bits", default: "16", about: "16 | 4 | 2: bits a number of a page's bounds" },
        ParamInfo { key: "min_pages", default: "1", about: "pages read at least" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[
                ("page", "16"),
                ("k", "1024"),
                ("sink", "0"),
                ("local", "0"),
                ("dense_layers", "0+1"),
                ("tail", "indexed"),
            ],
            source: "Quest §4: page 16, first two layers dense, budgets 256 to 4096 (1024 here); generated tokens fill pages",
        },
        Preset {
            name: "repo",
            values: &[
                ("page", "16"),
                ("k", "1024"),
                ("min_pages", "3"),
                ("sink", "0"),
                ("local", "0"),
                ("dense_layers", "0+1"),
                ("tail", "indexed"),
            ],
            source: "Quest's code, evaluation/quest_attention.py: at least 3 pages, no forced window, layers 0 and 1 dense; \
                     generated tokens fill pages",
        },
    ],
    build: |params| {
        let page = params.get_positive("page", 16)?;
        let picker = Choice::by_logits(Budget::Ratio(0.0625)).read(params)?;
        let summary_bits = match params.choice("summary_bits", &["16", "4", "2"])? {
            "4" => Some(4),
            "2" => Some(2),
            _ => None,
        };
        let least = params.get_minor("min_pages", 1)?;
        let scored = Scored::with(Bounds { page, summary_bits }, picker, Granularity::read(params)?);
        Ok(scored.at_least(least).method())
    },
};

/// Upper bounds of `q·k` for each page, channel by channel.
#[derive(Clone)]
pub(super) struct Bounds {
    /// Tokens a page.
    pub page: usize,
    /// Bits of the bounds, if they are quantised.
    pub summary_bits: Option<usize>,
}

/// Channel-wise bounds of each page, `[page][d]`.
pub(super) enum Pages {
    /// In the storage type of the keys, so exact.
    Exact { min: KvStore, max: KvStore },
    /// Minima rounded down, maxima up.
    Quantised { min: QuantisedRows, max: QuantisedRows },
}

impl Scorer for Bounds {
    type Index = Pages;

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn index_key(&self) -> String {
        format!("page={},summary_bits={:?}", self.page, self.summary_bits)
    }

    fn page(&self) -> usize {
        self.page
    }

    /// Pages whose bounds are quantised share a range.
    fn grain(&self) -> usize {
        self.page * self.summary_bits.map_or(1, |_| quantised::GROUP)
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Pages {
        let keys = prefix.keys.slice(prefix.candidates.clone(), prefix.d).to_f32();
        let mut pages = self.empty(prefix.into(), None);
        if let Pages::Exact { min, max } = &mut pages {
            let room = prefix.candidates.len().div_ceil(self.page);
            [min, max].into_iter().for_each(|rows| rows.truncate(0, room));
        }
        self.push(&mut pages, &keys, prefix.d);
        pages
    }

    fn growth(&self) -> Growth {
        Growth::Free("new tokens fill the last page, then pages of their own")
    }

    fn empty(&self, place: KvHeadId, _: Option<&Pages>) -> Pages {
        let (store, rows) = (KvStore::new(place.dtype, 1, place.d, 0), |bits| QuantisedRows::new(&[], place.d, bits));
        match self.summary_bits {
            None => Pages::Exact { min: store.clone(), max: store },
            Some(bits) => Pages::Quantised { min: rows(bits), max: rows(bits) },
        }
    }

    fn append(&self, pages: &mut Pages, kept: usize, new: &NewTokens<'_>) {
        let kept = kept / self.page;
        match pages {
            Pages::Exact { min, max } => [min, max].into_iter().for_each(|rows| rows.truncate(kept, kept)),
            Pages::Quantised { min, max } => [min, max].into_iter().for_each(|rows| rows.truncate(kept)),
        }
        self.push(pages, new.keys, new.place.d);
    }

    fn index_bytes(&self, pages: &Pages) -> usize {
        pages.bytes()
    }

    fn scores(&self, queries: &GroupQueries<'_>, segment: &Segment<'_, Pages>, cost: &mut Cost) -> Vec<f32> {
        page_bounds(queries, segment.index, cost)
    }

    fn keeps_open_page(&self) -> bool {
        true
    }

    fn device(&self) -> Option<&dyn DeviceScorer> {
        self.summary_bits.is_none().then_some(self)
    }
}

/// Bytes of minima and maxima of `d` numbers each.
fn bound_bytes(pages: usize, d: usize, bytes: usize) -> usize {
    2 * pages * d * bytes
}

/// Of the upper bounds of some queries for pages whose bounds are not quantised: a product with the minima, and one with the
/// maxima.
fn bound_cost(queries: usize, pages: usize, d: usize, bytes: usize) -> Cost {
    Cost {
        score_flops: (4 * queries * pages * d) as u64,
        aux_bytes: bound_bytes(pages, d, bytes) as u64,
        ..Cost::default()
    }
}

impl DeviceScorer for Bounds {
    fn cost(&self, step: &StepShape) -> Cost {
        bound_cost(step.group, step.candidates.div_ceil(self.page), step.d, step.dtype.bytes())
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        prefix.kv_heads * bound_bytes(prefix.tokens.div_ceil(self.page), prefix.d, dtype.bytes())
    }

    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, _: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError> {
        let cut = Cut { tokens: layer.candidates.clone(), size: self.page };
        let (kv_heads, d) = (layer.cache.kv_heads, layer.cache.d);
        let bytes = kv_heads * bound_bytes(cut.count(), d, layer.dtype.bytes());
        let (mut lower, mut upper) = (layer.gpu.alloc(bytes / 2)?, layer.gpu.alloc(bytes / 2)?);
        layer.gpu.page_bounds(&layer.cache, &cut, &mut lower, &mut upper)?;
        Ok(DeviceIndex { buffers: vec![lower, upper], bytes, ..DeviceIndex::default() })
    }

    #[cfg(feature = "cuda")]
    fn score_all(
        &self,
        step: &DeviceStep<'_>,
        rows: Range<usize>,
        index: &DeviceIndex,
        reduction: Option<Reduction>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError> {
        let [lower, upper] = index.buffers.as_slice() else { unreachable!("what `build` made") };
        let (prefix, pages) = (&step.prefix, step.prefix.candidates.len().div_ceil(self.page));
        let (kv_heads, d, storage) = (prefix.cache.kv_heads, prefix.cache.d, prefix.cache.storage);
        let bounds = PageBounds { lower, upper, pages, kv_heads, d, storage };
        prefix.gpu.score_bounds(&step.queries, rows, &bounds, reduction, &mut scratch.scores)
    }
}

impl Bounds {
    /// Adds the bounds of `keys: [token][d]`, which begin with a page.
    fn push(&self, pages: &mut Pages, keys: &[f32], d: usize) {
        let bounds = |fold: fn(f32, f32) -> f32| -> Vec<f32> {
            keys.chunks(self.page * d).flat_map(|page| fold_channels(page, d, fold)).collect()
        };
        let (lower, upper) = (bounds(f32::min), bounds(f32::max));
        match pages {
            Pages::Exact { min, max } => {
                lower.chunks_exact(d).for_each(|page| min.append(page));
                upper.chunks_exact(d).for_each(|page| max.append(page));
            }
            Pages::Quantised { min, max } => {
                min.push(&lower, Rounding::Down);
                max.push(&upper, Rounding::Up);
            }
        }
    }
}

impl Pages {
    /// Bytes of the bounds, as stored.
    fn bytes(&self) -> usize {
        match self {
            Pages::Exact { min, max } => [min, max].map(KvStore::stored_bytes),
            Pages::Quantised { min, max } => [min, max].map(QuantisedRows::bytes),
        }
        .iter()
        .sum()
    }
}

fn fold_channels(rows: &[f32], d: usize, fold: fn(f32, f32) -> f32) -> Vec<f32> {
    let mut folded = rows[..d].to_vec();
    for row in rows[d..].chunks_exact(d) {
        folded.iter_mut().zip(row).for_each(|(f, x)| *f = fold(*f, *x));
    }
    folded
}

/// Upper bounds of `q·k` for each page, `[query][page]`.
fn page_bounds(queries: &GroupQueries<'_>, pages: &Pages, cost: &mut Cost) -> Vec<f32> {
    let part = |keep: fn(f32) -> bool| -> Vec<f32> {
        queries.queries.iter().map(|q| if keep(*q) { *q } else { 0.0 }).collect()
    };
    let (positive, negative) = (part(|q| q > 0.0), part(|q| q <= 0.0));
    let (mut bounds, lower) = match pages {
        Pages::Exact { min, max } => {
            *cost += bound_cost(queries.count(), max.tokens(), queries.d, max.dtype().bytes());
            let dots = |part: &[f32], rows| dots(part, rows, queries.d, &mut Cost::default());
            (dots(&positive, max.head(0)), dots(&negative, min.head(0)))
        }
        Pages::Quantised { min, max } => {
            cost.aux_bytes += pages.bytes() as u64;
            let mut scores = |queries: &[f32], rows: &QuantisedRows| {
                let mut scores = vec![0.0; queries.len() / rows.columns() * rows.tokens()];
                rows.scores(queries, &mut scores);
                // A multiply-add a number, and two products a range.
                cost.score_flops += (2 * queries.len() * (rows.tokens() + rows.groups())) as u64;
                scores
            };
            (scores(&positive, max), scores(&negative, min))
        }
    };
    bounds.iter_mut().zip(lower).for_each(|(b, l)| *b += l);
    bounds
}

#[cfg(test)]
pub(super) fn bounds_for_test(
    step: &Step<'_>,
    prefix: &HeadPrefix<'_>,
    page: usize,
    summary_bits: Option<usize>,
) -> Vec<f32> {
    let bounds = Bounds { page, summary_bits };
    page_bounds(&step.group_queries(), &bounds.build(prefix), &mut Cost::default())
}
