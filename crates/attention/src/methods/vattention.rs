//! `vattention`: selects the exact top-k tokens and a random sample of the others, as large as an error bound requires
//! (vAttention, Desai et al. 2025, arXiv:2510.05688).
//!
//! Nothing is stored; a decode step multiplies the queries with the keys of all candidates, and all of that is counted. The picker
//! is [`Sample`], which explains the bound; it works with any scorer as `pick=sample` (`hash_attention:pick=sample` is the paper's
//! vAttention over HashAttention). This method is the paper's vAttention over the oracle: the largest scores are known exactly.

use std::sync::Arc;

use super::ParamInfo;
use super::topk::ExactScores;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::select::Sample;
use crate::{Budget, Role};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "vattention",
    role: Role::Oracle,
    about: "exact top-k and a sample of the rest, as large as a bound on the error asks",
    reference: "vAttention (Desai et al. 2025, arXiv:2510.05688)",
    params: &[
        ParamInfo { key: "ratio", default: "0.05", about: "share of the context picked by score, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens picked by score, from 0" },
        ParamInfo {
            key: "epsilon",
            default: "0.1",
            about: "error of the softmax denominator that is allowed, as a share of it, above 0 to 1",
        },
        ParamInfo { key: "delta", default: "0.1", about: "probability of a larger error, above 0 and below 1" },
        ParamInfo {
            key: "base",
            default: "0.05",
            about: "base sample, by which the size of the other is set, as a share of the rest, above 0 and below 1",
        },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("ratio", "0.05"),
            ("epsilon", "0.1"),
            ("delta", "0.1"),
            ("base", "0.05"),
            ("sink", "128"),
            ("local", "128"),
        ],
        source: "vAttention's code, sparse-attention-hub: OracleTopKConfig 0.05 and AdaptiveSamplingMaskerConfig with \
                 base_rate_sampling 0.05, epsilon and delta 0.1 (also 0.25), first and last 128 tokens kept",
    }],
    build: |params| {
        let sample = Sample::read(params, |params| params.budget_from_zero(Budget::Ratio(0.05)))?;
        Ok(Arc::new(Scored::new(ExactScores, sample, Granularity::read(params)?)))
    },
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::super::tests::{noise, select_seeded};
    use crate::kv::{KvDtype, LayerKv};
    use crate::{Selection, Weighting, mix_seed};

    const D: usize = 32;
    const TOKENS: usize = 700;
    const FIRST: usize = 4;
    const LAST: usize = 690;

    /// Keys and values of one KV head, and the queries of two heads.
    struct Keys {
        keys: Vec<Vec<f32>>,
        values: Vec<Vec<f32>>,
        queries: Vec<f32>,
        kv: LayerKv,
    }

    /// Noise; with `peaks`, every 90th key contains a large part of the first query.
    fn keys(peaks: bool) -> Keys {
        let queries = noise(2 * D, 3);
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, TOKENS);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for t in 0..TOKENS as u64 {
            let mut key = noise(D, 100 + t);
            if peaks && t % 90 == 7 {
                key.iter_mut().zip(&queries).for_each(|(k, q)| *k += 1.5 * q);
            }
            let value: Vec<f32> = noise(D, 5_000 + t).iter().map(|x| x + 1.0).collect();
            kv.append(&key, &value);
            keys.push(key);
            values.push(value);
        }
        Keys { keys, values, queries, kv }
    }

    impl Keys {
        fn exponential(&self, head: usize, token: usize) -> f64 {
            let query = &self.queries[head * D..][..D];
            let dot: f64 = query.iter().zip(&self.keys[token]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            (dot / (D as f64).sqrt()).exp()
        }

        /// Selected tokens with their weights, for each head that selects.
        fn weighted(&self, spec: &str, seed: u64) -> Vec<Vec<(usize, f64)>> {
            let (selection, _) = select_seeded(spec, &self.kv, &self.queries, FIRST..LAST, seed);
            let heads = match selection {
                Selection::PerHead(heads) => heads,
                Selection::Shared(picks) => vec![picks],
            };
            let of_head = |picks: crate::SelectedTokens| match picks.weighting {
                Weighting::Softmax => picks.tokens.iter().map(|t| (*t as usize, 1.0)).collect(),
                Weighting::LogBias(log_u) => {
                    let pairs = picks.tokens.iter().zip(log_u);
                    pairs.map(|(t, log_u)| (*t as usize, (-f64::from(log_u)).exp())).collect()
                }
                other => panic!("expected a log bias, got {other:?}"),
            };
            heads.into_iter().map(of_head).collect()
        }

        /// The tokens of the base sample: drawn from the candidates beside the `k` best, with the generator of a head.
        fn base_sample(&self, head: usize, k: usize, share: f64, seed: u64) -> Vec<usize> {
            let best = self.best(head, k);
            let rest: Vec<usize> = (FIRST..LAST).filter(|t| !best.contains(t)).collect();
            let mut rng = ChaCha8Rng::seed_from_u64(mix_seed(seed, head as u64));
            let size = (share * rest.len() as f64).ceil() as usize;
            rand::seq::index::sample(&mut rng, rest.len(), size).iter().map(|i| rest[i]).collect()
        }

        /// Sum over the candidates of the exponential times `of(token)`.
        fn sum(&self, head: usize, of: impl Fn(usize) -> f64) -> f64 {
            (FIRST..LAST).map(|t| self.exponential(head, t) * of(t)).sum()
        }

        fn denominator(&self, head: usize) -> f64 {
            (0..TOKENS).map(|t| self.exponential(head, t)).sum()
        }

        /// The candidates with the largest logits, ascending.
        fn best(&self, head: usize, k: usize) -> Vec<usize> {
            let mut order: Vec<usize> = (FIRST..LAST).collect();
            order.sort_by(|a, b| self.exponential(head, *b).total_cmp(&self.exponential(head, *a)));
            order.truncate(k);
            order.sort_unstable();
            order
        }
    }

    /// Denominator and numerator are unbiased: their means over many draws are the exact sums, up to four standard
    /// errors, which are small.
    #[test]
    fn both_sums_are_unbiased() {
        const SEEDS: u64 = 300;
        for (peaks, spec) in [
            (false, "vattention:k=12,epsilon=0.2,delta=0.3,base=0.03"),
            (true, "vattention:k=12,epsilon=0.1,delta=0.2,base=0.02"),
            (true, "quest:pick=sample,k=80,page=8,epsilon=0.1,delta=0.3,base=0.03"),
            (false, "topk_norm:pick=sample,k=20,epsilon=0.15,delta=0.3,base=0.03"),
            (false, "vattention:k=0,epsilon=0.2,delta=0.2,base=0.02,per=kv_head"),
        ] {
            let keys = keys(peaks);
            let channels = [None, Some(0), Some(17), Some(31)];
            let mut estimates = vec![Vec::new(); channels.len()];
            for seed in 0..SEEDS {
                let weighted = &keys.weighted(spec, seed)[0];
                let distinct: std::collections::BTreeSet<usize> = weighted.iter().map(|(t, _)| *t).collect();
                assert_eq!(distinct.len(), weighted.len(), "{spec}: a token twice");
                assert!(weighted.len() < (LAST - FIRST) / 2, "{spec}: {} tokens", weighted.len());
                for (of_channel, channel) in estimates.iter_mut().zip(channels) {
                    let value = |t: usize| channel.map_or(1.0, |c: usize| f64::from(keys.values[t][c]));
                    let sum = weighted.iter().map(|(t, weight)| weight * keys.exponential(0, *t) * value(*t));
                    of_channel.push(sum.sum::<f64>());
                }
            }
            for (of_channel, channel) in estimates.iter().zip(channels) {
                let value = |t: usize| channel.map_or(1.0, |c: usize| f64::from(keys.values[t][c]));
                let exact = keys.sum(0, value);
                let mean = of_channel.iter().sum::<f64>() / SEEDS as f64;
                let variance = of_channel.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (SEEDS - 1) as f64;
                let error = (variance / SEEDS as f64).sqrt();
                assert!(error < 0.03 * exact.abs(), "{spec}: a standard error of {error} tells nothing of {exact}");
                assert!(
                    (mean - exact).abs() < 4.0 * error,
                    "{spec}, {channel:?}: {mean} for {exact}, give or take {error}"
                );
            }
        }
    }

    /// The denominator over all tokens is off by more than `ε` in at most `δ` of the draws, up to two standard errors of that share.
    #[test]
    fn errors_are_within_the_bound_as_often_as_was_asked() {
        const SEEDS: u64 = 400;
        for peaks in [false, true] {
            let keys = keys(peaks);
            for (epsilon, delta) in [(0.05, 0.1), (0.1, 0.3), (0.03, 0.2)] {
                let spec = format!("vattention:k=16,epsilon={epsilon},delta={delta},base=0.05");
                for head in 0..2 {
                    let exact = keys.denominator(head);
                    let misses = (0..SEEDS).filter(|seed| {
                        let weighted = &keys.weighted(&spec, *seed)[head];
                        let sum: f64 = weighted.iter().map(|(t, weight)| weight * keys.exponential(head, *t)).sum();
                        let estimate = exact - keys.sum(head, |_| 1.0) + sum;
                        (estimate - exact).abs() > epsilon * exact
                    });
                    let share = misses.count() as f64 / SEEDS as f64;
                    let error = (delta * (1.0 - delta) / SEEDS as f64).sqrt();
                    assert!(share <= delta + 2.0 * error, "{spec}, head {head}, peaks {peaks}: {share}");
                }
            }
        }
    }

    /// Beside the best tokens, only the sample is attended, and its size follows from the base sample. The base sample itself is not
    /// attended. Reference and method draw it first, from the same generator.
    #[test]
    fn the_sample_has_the_size_of_the_formula() {
        let keys = keys(true);
        let (k, base_share, mut sizes) = (16, 0.05, BTreeSet::new());
        for (epsilon, delta, quantile) in
            [(0.05, 0.1, 1.644_853_627), (0.12, 0.05, 1.959_963_985), (0.9, 0.5, 0.674_489_75)]
        {
            let spec = format!("vattention:k={k},epsilon={epsilon},delta={delta},base={base_share}");
            for seed in 0..10 {
                for (head, weighted) in keys.weighted(&spec, seed).iter().enumerate() {
                    let best = keys.best(head, k);
                    let (whole, drawn) = weighted.split_at(k);
                    let whole: Vec<usize> =
                        whole.iter().map(|(t, w)| if *w == 1.0 { *t } else { usize::MAX }).collect();
                    assert_eq!(whole, best, "{spec}: the best are attended as they are");
                    let base = keys.base_sample(head, k, base_share, seed);
                    let rest = (LAST - FIRST - k) as f64;
                    let of_base: Vec<f64> = base.iter().map(|t| keys.exponential(head, *t)).collect();
                    let mean = of_base.iter().sum::<f64>() / base.len() as f64;
                    let squares: f64 = of_base.iter().map(|x| (x - mean) * (x - mean)).sum();
                    let deviation = (squares / (base.len() - 1) as f64).sqrt();
                    let fixed: f64 = (0..TOKENS)
                        .filter(|t| !(FIRST..LAST).contains(t) || best.contains(t))
                        .map(|t| keys.exponential(head, t))
                        .sum();
                    let denominator = fixed + rest * mean;
                    let size = (quantile * rest * deviation / (epsilon * denominator)).powi(2);
                    let size = size.clamp(base.len() as f64, rest);
                    assert!((drawn.len() as f64 - size).abs() <= 1.0, "{spec}: {} instead of {size}", drawn.len());
                    let weight = rest / drawn.len() as f64;
                    assert!(
                        drawn.iter().all(|(_, w)| (w / weight - 1.0).abs() < 1e-5),
                        "{spec}: each stands for {weight}"
                    );
                    sizes.insert(drawn.len());
                }
            }
        }
        assert!(sizes.len() > 10, "heads and draws ask for different sizes: {sizes:?}");
    }

    /// Each product and each key counts once: in the scan, if scoring computes all products; otherwise for the part of the base
    /// sample that is not attended, in addition to what the scorer reads.
    #[test]
    fn what_a_sample_looks_at_and_does_not_attend_is_paid_for_once() {
        let keys = keys(false);
        let (k, base, candidates) = (16, 0.05, LAST - FIRST);
        for seed in 0..5 {
            let spec = format!("vattention:k={k},base={base}");
            let (selection, cost) = select_seeded(&spec, &keys.kv, &keys.queries, FIRST..LAST, seed);
            let heads = tokens_of(selection);
            let attended: usize = heads.iter().map(Vec::len).sum();
            let union: BTreeSet<usize> = heads.concat().into_iter().collect();
            assert_eq!(cost.score_flops as usize, 2 * D * (2 * candidates - attended), "{seed}");
            assert_eq!(cost.kv_bytes as usize, 4 * D * (candidates - union.len()), "{seed}");

            // Pages of one token: the scorer reads only their bounds.
            let spec = format!("quest:page=1,k={k},pick=sample,base={base}");
            let (selection, cost) = select_seeded(&spec, &keys.kv, &keys.queries, FIRST..LAST, seed);
            let heads = tokens_of(selection);
            let union: BTreeSet<usize> = heads.concat().into_iter().collect();
            let looked_at: Vec<Vec<usize>> = (0..2).map(|head| keys.base_sample(head, k, base, seed)).collect();
            let missed = |(base, drawn): (&Vec<usize>, &Vec<usize>)| base.iter().filter(|t| !drawn.contains(t)).count();
            let products: usize = looked_at.iter().zip(&heads).map(missed).sum();
            assert!(products > 0, "{seed}: all of the base sample was drawn again");
            assert_eq!(cost.score_flops as usize, 4 * D * 2 * candidates + 2 * D * products, "{seed}");
            let read: BTreeSet<usize> = looked_at.concat().into_iter().filter(|t| !union.contains(t)).collect();
            assert_eq!(cost.kv_bytes as usize, 4 * D * read.len(), "{seed}");
        }
    }

    fn tokens_of(selection: Selection) -> Vec<Vec<usize>> {
        let Selection::PerHead(heads) = selection else { panic!("a sample for each query head") };
        heads.into_iter().map(|picks| picks.tokens.iter().map(|t| *t as usize).collect()).collect()
    }
}
