//! `quest`: selects whole pages by an upper bound of their scores (Quest, Tang et al. 2024).
//!
//! The candidates are cut into pages; the channel-wise minimum and maximum of each page's keys are stored. A page's
//! score is `Σ_c max(q_c·min_c, q_c·max_c)`, an upper bound of `q·k` over its keys. With `q⁺ = max(q, 0)` and
//! `q⁻ = min(q, 0)` that is `q⁺·max + q⁻·min`: a decode step computes two dot products a page and reads `1/page` of
//! what dense attention reads. A last, shorter page counts as a page.
//!
//! If generated tokens fill pages (`--tail`) and the window is shorter than a page, the page that the current token
//! fills is always selected, as one page of the budget: the bound of a few keys is tight and would lose to the loose
//! bounds of whole pages. The authors' library does so; their evaluation script treats that page like any other.
//!
//! `summary_bits=4` or `2` quantises the bounds, each channel by its own range over 128 pages. Minima are rounded down
//! and maxima up, so scores stay upper bounds, but looser ones. With 16, bounds have the type of the keys.

#[cfg(feature = "cuda")]
mod cuda;

use super::ParamInfo;
use crate::IndexKey;
#[cfg(test)]
use crate::Step;
use crate::backend::form::{WIDEST_ROW, padded_width};
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::quantised::{QuantisedRows, Rounding};
use crate::kv::{KvDtype, KvError, KvShape, KvStore, quantised};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::{GroupQueries, dots};
use crate::{Budget, HeadPrefix, PromptShape, Role, StepShape};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "quest",
    role: Role::Method,
    about: "whole pages by the min/max bound of their keys",
    reference: "Quest (Tang et al. 2024, arXiv:2406.10774)",
    params: &[
        ParamInfo { key: "page", default: "16", about: "tokens a page" },
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context read as pages, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens read as pages (rounded up to pages)" },
        ParamInfo {
            key: "summary_bits",
            default: "16",
            about: "16 | 4 | 2: bits a number of a page's bounds; 16 is the type of the keys, so 32 bits in a cache of f32",
        },
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    /// Tokens of a page.
    pub page: usize,
    /// Bits of the bounds; `None` if they are not quantised.
    pub summary_bits: Option<usize>,
}

/// Channel-wise bounds of each page, `[page][d]`.
pub(super) enum Pages {
    /// Exact: in the storage type of the keys.
    Exact { min: KvStore, max: KvStore },
    /// Minima rounded down, maxima up.
    Quantised { min: QuantisedRows, max: QuantisedRows },
}

impl Scorer for Bounds {
    type Index = Pages;

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new(self.clone())
    }

    fn page(&self) -> usize {
        self.page
    }

    /// With quantised bounds, the pages that share a range are one grain.
    fn grain(&self) -> usize {
        self.page * self.summary_bits.map_or(1, |_| quantised::GROUP)
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Pages, KvError> {
        let mut pages = self.empty(prefix.into(), None);
        if let Pages::Exact { min, max } = &mut pages {
            let room = prefix.candidates.len().div_ceil(self.page);
            [min, max].into_iter().for_each(|rows| rows.truncate(0, room));
        }
        prefix.candidate_keys().each_block(self.grain(), |keys| self.push(&mut pages, keys, prefix.d))?;
        Ok(pages)
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

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Pages>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        Ok(page_bounds(queries, segment.index, cost))
    }

    fn keeps_open_page(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

/// Bytes of the minima and maxima of `pages` pages, `d` numbers of `bytes` bytes each.
fn bound_bytes(pages: usize, d: usize, bytes: usize) -> usize {
    2 * pages * d * bytes
}

/// Cost of the upper bounds of `queries` queries if bounds are not quantised: a product with the minima and one with the maxima.
fn bound_cost(queries: usize, pages: usize, d: usize, bytes: usize) -> Cost {
    Cost {
        score_flops: (4 * queries * pages * d) as u64,
        aux_bytes: bound_bytes(pages, d, bytes) as u64,
        ..Cost::default()
    }
}

impl DeviceScorer for Bounds {
    fn shape_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let coded = self.summary_bits.and_then(|_| HostReason::of_index_width(shape.d, WIDEST_ROW));
        coded.into_iter().collect()
    }

    fn cost(&self, step: &StepShape) -> Cost {
        let pages = step.candidates.div_ceil(self.page);
        match self.summary_bits {
            None => bound_cost(step.group, pages, step.d, step.dtype.bytes()),
            Some(bits) => Cost {
                score_flops: (4 * step.group * step.d * (pages + pages.div_ceil(quantised::GROUP))) as u64,
                aux_bytes: self.coded_bytes(pages, step.d, bits) as u64,
                ..Cost::default()
            },
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        let pages = prefix.tokens.div_ceil(self.page);
        let of_head = match self.summary_bits {
            None => bound_bytes(pages, prefix.d, dtype.bytes()),
            Some(bits) => self.coded_bytes(pages.next_multiple_of(quantised::GROUP), padded_width(prefix.d), bits),
        };
        prefix.kv_heads * of_head
    }
}

impl Bounds {
    /// Returns the bytes of the minima and maxima of `pages` pages in `bits` bits, with their ranges.
    fn coded_bytes(&self, pages: usize, d: usize, bits: usize) -> usize {
        2 * quantised::coded_bytes(pages, d, bits)
    }

    /// Appends the bounds of `keys: [token][d]`, of which the first begins a page.
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
                // One multiply-add for each number, and two products for each range.
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
    page_bounds(&step.group_queries(), &bounds.build(prefix).unwrap(), &mut Cost::default())
}
