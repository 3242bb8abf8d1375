//! `quest`: whole pages chosen by an upper bound of their scores (Tang et al. 2024).
//!
//! Each page keeps the channel-wise minimum and maximum of its keys; a page's score is
//! `Σ_c max(q_c·min_c, q_c·max_c)`, which no key of the page can exceed. With `q⁺ = max(q, 0)` and
//! `q⁻ = min(q, 0)` that is `q⁺·max + q⁻·min`: two dot products a page, `1/page` of full attention.
//! Pages are cut over the candidates; a last, shorter page counts as a page.
//!
//! `summary_bits=4` or `2` quantises the bounds, each channel by its own range over 128 pages: minima are rounded down
//! and maxima up, so that a page's score stays an upper bound, a looser one. 16 keeps them as the cache keeps keys.

use std::sync::Arc;

use super::{Granularity, MethodEntry, ParamInfo, Preset, page_tokens};
use crate::attention::{Budget, HeadPrefix, Method, Selection, Step};
use crate::cost::Cost;
use crate::kernels::cpu::topk::top_k;
use crate::kv::KvStore;
use crate::kv::quantised::{QuantisedRows, Rounding};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "quest",
    about: "whole pages by the min/max bound of their keys",
    reference: "Quest (Tang et al. 2024, arXiv:2406.10774)",
    params: &[
        ParamInfo { key: "page", default: "16", about: "tokens a page" },
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context read as pages, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens read as pages (rounded up to pages)" },
        ParamInfo { key: "summary_bits", default: "16", about: "16 | 4 | 2: bits a number of a page's bounds" },
        ParamInfo { key: "min_pages", default: "1", about: "pages read at least" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("page", "16"), ("k", "1024"), ("sink", "0"), ("local", "0"), ("dense_layers", "0+1")],
            source: "Quest §4: page 16, first two layers dense, budgets 256 to 4096 (1024 here)",
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
            ],
            source: "Quest's code, evaluation/quest_attention.py: at least 3 pages, no forced window, layers 0 and 1 dense",
        },
    ],
    build: |params| {
        let page = params.get_positive("page", 16)?;
        let budget = params.budget(Budget::Ratio(0.0625))?;
        let summary_bits = match params.choice("summary_bits", &["16", "4", "2"])? {
            "4" => Some(4),
            "2" => Some(2),
            _ => None,
        };
        let min_pages = params.get_minor("min_pages", 1)?;
        Ok(Arc::new(Quest { page, budget, summary_bits, min_pages, per: Granularity::read(params)? }))
    },
};

/// Page selection by channel-wise bounds.
struct Quest {
    page: usize,
    budget: Budget,
    /// Bits of the bounds, if they are quantised.
    summary_bits: Option<usize>,
    min_pages: usize,
    per: Granularity,
}

/// Channel-wise bounds of each page, `[page][d]`.
enum Pages {
    /// In the storage type of the keys, so exact.
    Exact { min: KvStore, max: KvStore },
    /// Minima rounded down, maxima up.
    Quantised { min: QuantisedRows, max: QuantisedRows },
}

impl Method for Quest {
    type Index = Pages;
    type State = ();

    fn index_key(&self) -> String {
        format!("page={},summary_bits={:?}", self.page, self.summary_bits)
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Pages {
        let keys = prefix.keys.slice(prefix.candidates.clone(), prefix.d).to_f32();
        let d = prefix.d;
        let bounds = |fold: fn(f32, f32) -> f32| -> Vec<f32> {
            keys.chunks(self.page * d).flat_map(|page| fold_channels(page, d, fold)).collect()
        };
        let (min, max) = (bounds(f32::min), bounds(f32::max));
        let store = |bounds: &[f32]| {
            let mut store = KvStore::new(prefix.dtype, 1, d, bounds.len() / d);
            bounds.chunks_exact(d).for_each(|page| store.append(page));
            store
        };
        match self.summary_bits {
            None => Pages::Exact { min: store(&min), max: store(&max) },
            Some(bits) => Pages::Quantised {
                min: QuantisedRows::rounded(&min, d, bits, Rounding::Down),
                max: QuantisedRows::rounded(&max, d, bits, Rounding::Up),
            },
        }
    }

    fn index_bytes(&self, pages: &Pages) -> usize {
        pages.bytes()
    }

    fn start(&self, _: &Pages) {}

    fn select(&self, step: &Step<'_>, pages: &Pages, (): &mut (), cost: &mut Cost) -> Selection {
        let bounds = page_bounds(step, pages, cost);
        let wanted = self.budget.blocks(step.context, self.page).max(self.min_pages);
        self.per
            .select(&bounds, step.group(), |bounds| page_tokens(&top_k(bounds, wanted), self.page, &step.candidates))
    }
}

impl Pages {
    fn bytes(&self) -> usize {
        match self {
            Pages::Exact { min, max } => min.bytes() + max.bytes(),
            Pages::Quantised { min, max } => min.bytes() + max.bytes(),
        }
    }
}

fn fold_channels(rows: &[f32], d: usize, fold: fn(f32, f32) -> f32) -> Vec<f32> {
    let mut folded = rows[..d].to_vec();
    for row in rows[d..].chunks_exact(d) {
        folded.iter_mut().zip(row).for_each(|(f, x)| *f = fold(*f, *x));
    }
    folded
}

/// Upper bounds of `q·k` for each page, `[group][pages]`.
fn page_bounds(step: &Step<'_>, pages: &Pages, cost: &mut Cost) -> Vec<f32> {
    let part =
        |keep: fn(f32) -> bool| -> Vec<f32> { step.queries.iter().map(|q| if keep(*q) { *q } else { 0.0 }).collect() };
    let (positive, negative) = (part(|q| q > 0.0), part(|q| q <= 0.0));
    let (mut bounds, lower) = match pages {
        Pages::Exact { min, max } => {
            let mut scores = |queries, rows| Step { queries, ..step.clone() }.score_rows(rows, cost);
            (scores(&positive, max.head(0)), scores(&negative, min.head(0)))
        }
        Pages::Quantised { min, max } => {
            let mut scores = |queries: &[f32], rows: &QuantisedRows| {
                let mut scores = vec![0.0; step.group() * rows.tokens()];
                rows.scores(queries, &mut scores);
                // A multiply-add a number, and two products a range.
                cost.score_flops += (2 * queries.len() * (rows.tokens() + rows.groups())) as u64;
                scores
            };
            (scores(&positive, max), scores(&negative, min))
        }
    };
    bounds.iter_mut().zip(lower).for_each(|(b, l)| *b += l);
    cost.aux_bytes += pages.bytes() as u64;
    bounds
}

#[cfg(test)]
pub(super) fn bounds_for_test(
    step: &Step<'_>,
    prefix: &HeadPrefix<'_>,
    page: usize,
    summary_bits: Option<usize>,
) -> Vec<f32> {
    let (budget, per) = (Budget::Tokens(1), Granularity::QueryHead);
    let quest = Quest { page, budget, summary_bits, min_pages: 1, per };
    page_bounds(step, &Method::build(&quest, prefix), &mut Cost::default())
}
