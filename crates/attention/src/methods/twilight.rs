//! `twilight`: selects many pages by Quest's bounds, then of their tokens the fewest that cover a share `p` of the
//! attention (Twilight, Lin et al. 2025, arXiv:2502.02770).
//!
//! The page bounds of [`quest`](super::quest) and a 4-bit copy of the keys are stored. A decode step scores all pages
//! by their bounds, then the tokens of the selected pages by the 4-bit keys, and attends the fewest that cover `p`, for
//! each query head: a fixed budget is too small for some heads and too large for others. The second stage is
//! [`Rescored`]; it follows any scorer as `rescore=int4` (`double_sparsity:rescore=int4` is the paper's other
//! selector). The paper's kernels find the threshold by bisection; here weights are sorted, which gives the same
//! tokens. The paper's 4-bit codes have a range for each token; here each channel has a range for 128 tokens.

use std::sync::Arc;

use super::ParamInfo;
use super::quest::Bounds;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::select::{Finer, Rescored};
use crate::{Budget, Role};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "twilight",
    role: Role::Method,
    about: "Quest's pages, of whose tokens the fewest are kept with a share p by 4-bit keys",
    reference: "Twilight (Lin et al. 2025, arXiv:2502.02770)",
    params: &[
        ParamInfo { key: "page", default: "16", about: "tokens a page" },
        ParamInfo { key: "ratio", default: "0.25", about: "share of the context that the pages hold, above 0 to 1" },
        ParamInfo {
            key: "k",
            default: "-",
            about: "instead of ratio: tokens that the pages hold (rounded up to pages)",
        },
        ParamInfo { key: "p", default: "0.95", about: "share of the pages' estimated attention mass, above 0 to 1" },
        ParamInfo { key: "k2", default: "-", about: "instead of p: tokens kept of the pages" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "repo",
        values: &[("page", "16"), ("k", "8192"), ("p", "0.85"), ("sink", "0"), ("local", "0"), ("dense_layers", "0+1")],
        source: "Twilight's code, benchmark/configs/config_quest_twi.json: 8192 tokens in pages of 16, 4 bits, p 0.85, first \
                 two layers dense",
    }],
    build: |params| {
        let page = params.get_minor("page", 16)?;
        let budget = params.budget(Budget::Ratio(0.25))?;
        let picker = Arc::new(Rescored::read(params, budget, Finer::Codes)?);
        let scored = Scored::with(Bounds { page, summary_bits: None }, picker, Granularity::read(params)?);
        Ok(scored.at_least(1).method())
    },
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{noise, select};
    use crate::kv::{KvDtype, LayerKv};
    use crate::{SelectedTokens, Selection};

    const D: usize = 32;
    const TOKENS: usize = 400;
    const FIRST: usize = 3;
    const LAST: usize = 391;

    /// Keys of one KV head and queries of two heads; with `peaks`, some keys contain a large part of a query.
    fn keys(peaks: bool) -> (Vec<Vec<f32>>, Vec<f32>, LayerKv) {
        let queries = noise(2 * D, 11);
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, TOKENS);
        let key = |t: usize| -> Vec<f32> {
            let head = t / 37 % 2;
            let part = if peaks && t % 37 == 5 { 0.8 } else { 0.0 };
            noise(D, 700 + t as u64).iter().zip(&queries[head * D..]).map(|(k, q)| k + part * q).collect()
        };
        let keys: Vec<Vec<f32>> = (0..TOKENS).map(key).collect();
        keys.iter().enumerate().for_each(|(t, key)| kv.append(key, &noise(D, 9_000 + t as u64)));
        (keys, queries, kv)
    }

    fn dot(query: &[f32], key: &[f32]) -> f64 {
        query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
    }

    /// Indexes of the `k` largest scores, ascending.
    fn best(scores: &[f64], k: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    /// Tokens of the pages with the largest bounds.
    fn of_pages(keys: &[Vec<f32>], query: &[f32], page: usize, k: usize) -> Vec<usize> {
        let candidates: Vec<usize> = (FIRST..LAST).collect();
        let pages: Vec<&[usize]> = candidates.chunks(page).collect();
        let bound = |tokens: &&[usize]| -> f64 {
            let channel = |c: usize| {
                let products = tokens.iter().map(|t| f64::from(query[c]) * f64::from(keys[*t][c]));
                products.fold(f64::NEG_INFINITY, f64::max)
            };
            (0..D).map(channel).sum()
        };
        let bounds: Vec<f64> = pages.iter().map(bound).collect();
        best(&bounds, k.div_ceil(page)).into_iter().flat_map(|p| pages[p].to_vec()).collect()
    }

    /// The candidates' keys rounded to 16 levels, each channel by its range over 128 candidates.
    fn in_four_bits(keys: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut coded = keys.to_vec();
        for group in (FIRST..LAST).collect::<Vec<_>>().chunks(128) {
            for c in 0..D {
                let least = group.iter().map(|t| keys[*t][c]).fold(f32::MAX, f32::min);
                let most = group.iter().map(|t| keys[*t][c]).fold(f32::MIN, f32::max);
                let step = (most - least) / 15.0;
                group.iter().for_each(|t| coded[*t][c] = least + step * ((keys[*t][c] - least) / step).round());
            }
        }
        coded
    }

    /// The fewest of `tokens` whose softmax weights add up to a share `p`.
    fn cover(scores: &[f64], tokens: &[usize], p: f64) -> Vec<usize> {
        let weights: Vec<f64> = scores.iter().map(|s| (s / (D as f64).sqrt()).exp()).collect();
        let total: f64 = weights.iter().sum();
        let needed =
            (1..=tokens.len()).find(|n| best(&weights, *n).iter().map(|i| weights[*i]).sum::<f64>() >= p * total);
        best(&weights, needed.unwrap()).into_iter().map(|i| tokens[i]).collect()
    }

    fn picked(spec: &str, queries: &[f32], kv: &LayerKv) -> Vec<Vec<usize>> {
        let Selection::PerHead(heads) = select(spec, kv, queries, FIRST..LAST).0 else { panic!("one set a head") };
        let tokens = |picks: SelectedTokens| picks.tokens.into_iter().map(|t| t as usize).collect();
        heads.into_iter().map(tokens).collect()
    }

    #[test]
    fn keeps_the_fewest_tokens_of_the_pages_that_four_bit_keys_give_the_share() {
        for peaks in [false, true] {
            let (keys, queries, kv) = keys(peaks);
            let coded = in_four_bits(&keys);
            for (page, k, p) in [(16, 96, 0.85), (5, 120, 0.5), (16, 200, 0.95), (1, 60, 0.3)] {
                let ours = picked(&format!("twilight:page={page},k={k},p={p}"), &queries, &kv);
                let same = picked(&format!("quest:page={page},k={k},rescore=int4,p={p}"), &queries, &kv);
                let by_keys = picked(&format!("quest:page={page},k={k},rescore=exact,p={p}"), &queries, &kv);
                assert_eq!(ours, same, "it is a composition");
                for (head, query) in queries.chunks(D).enumerate() {
                    let left = of_pages(&keys, query, page, k);
                    let scores: Vec<f64> = left.iter().map(|t| dot(query, &coded[*t])).collect();
                    assert_eq!(ours[head], cover(&scores, &left, p), "page {page}, p {p}, head {head}");
                    let scores: Vec<f64> = left.iter().map(|t| dot(query, &keys[*t])).collect();
                    assert_eq!(by_keys[head], cover(&scores, &left, p), "by keys, page {page}, p {p}, head {head}");
                }
            }
        }
    }

    #[test]
    fn a_second_score_may_keep_a_number_of_tokens_after_any_first_one() {
        let (keys, queries, kv) = keys(true);
        for (spec, page) in [("quest:page=8,k=80", 8), ("topk_norm:k=70", 1), ("lsh_bits:k=90,bits=64", 1)] {
            let first = picked(spec, &queries, &kv);
            let ours = picked(&format!("{spec},rescore=exact,k2=9"), &queries, &kv);
            for (head, query) in queries.chunks(D).enumerate() {
                let scores: Vec<f64> = first[head].iter().map(|t| dot(query, &keys[*t])).collect();
                let expected: Vec<usize> = best(&scores, 9).into_iter().map(|i| first[head][i]).collect();
                assert_eq!(ours[head], expected, "{spec}, pages of {page}, head {head}");
            }
        }
    }

    /// With one selection for a group, the second scores are summed over its heads like the first.
    #[test]
    fn a_group_scores_again_together() {
        let (keys, queries, kv) = keys(true);
        let tokens = |spec: &str| match select(spec, &kv, &queries, FIRST..LAST).0 {
            Selection::Shared(picks) => picks.tokens.into_iter().map(|t| t as usize).collect::<Vec<_>>(),
            Selection::PerHead(_) => panic!("one set for the group"),
        };
        let first = tokens("quest:page=8,k=80,per=kv_head");
        let sums: Vec<f64> = first.iter().map(|t| queries.chunks(D).map(|q| dot(q, &keys[*t])).sum()).collect();
        let expected: Vec<usize> = best(&sums, 11).into_iter().map(|i| first[i]).collect();
        assert_eq!(tokens("quest:page=8,k=80,per=kv_head,rescore=exact,k2=11"), expected);
    }

    #[test]
    fn a_second_score_costs_the_keys_or_codes_that_it_reads() {
        let (_, queries, kv) = keys(true);
        let cost = |spec: &str| select(spec, &kv, &queries, FIRST..LAST).1;
        let union = |heads: &[Vec<usize>]| heads.concat().into_iter().collect::<BTreeSet<usize>>();
        let (number, all) = (4 * D as u64, (LAST - FIRST) as u64);
        // Each of the two heads drops 70 tokens. Their keys are read once for the group, unless a head attends them.
        let first = picked("quest:page=4,k=100", &queries, &kv);
        let last = picked("quest:page=4,k=100,rescore=exact,k2=30", &queries, &kv);
        let (once, exact) = (cost("quest:page=4,k=100"), cost("quest:page=4,k=100,rescore=exact,k2=30"));
        let read = union(&first).difference(&union(&last)).count() as u64;
        assert!(read < 2 * 70, "heads have tokens in common: {read}");
        assert_eq!(exact.kv_bytes - once.kv_bytes, read * number);
        assert_eq!(exact.score_flops - once.score_flops, 2 * (100 - 30) * 2 * D as u64);
        // Products of the first score are not computed again. Of each head's products, 30 count as attention.
        let (exact, last) = ("topk:k=100,rescore=exact,k2=30", picked("topk:k=100,rescore=exact,k2=30", &queries, &kv));
        assert_eq!(cost(exact).score_flops, 2 * 2 * (all - 30) * D as u64);
        assert_eq!(cost(exact).kv_bytes, (all - union(&last).len() as u64) * number);
        // 388 candidates in four groups of 128, with two numbers a channel as range: read once for both heads.
        let coded = cost("lsh_bits:k=388,bits=32,rescore=int4,k2=30");
        let codes = cost("lsh_bits:k=388,bits=32");
        assert_eq!(coded.aux_bytes - codes.aux_bytes, 388 * D as u64 / 2 + 4 * 8 * D as u64);
        assert_eq!(coded.score_flops - codes.score_flops, 2 * 2 * D as u64 * (388 + 4));
        assert_eq!(coded.kv_bytes, codes.kv_bytes);
    }
}
