//! `pyramid_kv`: evicts after the prefix by SnapKV's votes, with smaller budgets in deeper layers (PyramidKV, Cai et
//! al. 2024, arXiv:2406.02069).
//!
//! Attention is spread over many tokens in lower layers and concentrates on few in higher ones. With a budget of `k`
//! tokens on average, the first layer keeps `2k − k/β` and the last `k/β`; the budgets between lie on a line. What is
//! kept and what a decode step costs is as in [`snapkv`](super::snapkv). As in the authors' code, a first layer whose
//! budget exceeds the candidates keeps all of them, and the last one keeps more than `k/β` to make up; if `k` is more
//! than half of the candidates, all layers keep `k`. The code rounds the step between layers down to whole tokens; here
//! budgets are rounded, so that their mean is `k`. The line runs over the sparse layers only.

use std::sync::Arc;

use super::ParamInfo;
use super::snapkv::{LayerBudgets, SnapKv};
use crate::Role;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::spec::KEEP;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "pyramid_kv",
    role: Role::Method,
    about: "evicts after the prefix as snapkv does, fewer tokens the deeper the layer",
    reference: "PyramidKV (Cai et al. 2024, arXiv:2406.02069)",
    params: &[
        ParamInfo {
            key: "k",
            default: "2040",
            about: "tokens kept of those before the window by each selection, mean over layers; 0 leaves the window",
        },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the prefix, above 0 to 1" },
        KEEP,
        ParamInfo { key: "window", default: "8", about: "last tokens of the prefix, whose queries vote; kept as well" },
        ParamInfo { key: "kernel", default: "7", about: "tokens pooled around each one, an odd number" },
        ParamInfo { key: "pool", default: "max", about: "max | avg: how votes of neighbours are pooled" },
        ParamInfo { key: "beta", default: "20", about: "the last layer keeps a beta-th of the mean" },
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("k", "2040"),
            ("window", "8"),
            ("kernel", "7"),
            ("pool", "max"),
            ("beta", "20"),
            ("sink", "0"),
            ("local", "0"),
        ],
        source: "PyramidKV's code, run_longbench.py: window 8, max pooling over 7, 2048 tokens together (also 128), beta 20 \
                 by pyramidkv_utils.py",
    }],
    build: |params| {
        let snapkv = SnapKv::read(params, 2040, 8)?;
        let beta = params.get_minor("beta", 20)?;
        params.deals_to_layers_itself();
        Ok(Arc::new(snapkv.with_layers(LayerBudgets::Pyramid(beta))))
    },
};

#[cfg(test)]
mod tests {
    use super::super::snapkv::pyramid;
    use super::super::tests::{noise, none, prefix, prompt_queries, run};
    use crate::{DenseLayers, Policy, SparseLayerRank};

    const D: usize = 32;

    /// The budgets of the authors' code, in whole tokens, for a capacity that includes the window.
    fn of_the_code(capacity: i64, window: i64, tokens: i64, layers: i64, beta: i64) -> Vec<i64> {
        let mut least = (capacity - window) / beta;
        let mut most = (capacity - window) * 2 - least;
        if most >= tokens - window {
            most = tokens - window;
            least = (capacity - window) * 2 - most;
        }
        let step = (most - least) / (layers - 1);
        (0..layers).map(|layer| most - layer * step).collect()
    }

    #[test]
    fn budgets_are_those_of_the_code_up_to_its_rounding_and_their_mean_is_the_budget() {
        for (capacity, window, tokens, layers, beta) in
            [(2048, 8, 32_000, 32, 20), (128, 8, 7_500, 32, 20), (520, 8, 1_300, 12, 20), (72, 8, 900, 4, 5)]
        {
            let (mean, candidates) = ((capacity - window) as usize, (tokens - window) as usize);
            let ours: Vec<usize> = (0..layers as usize)
                .map(|rank| {
                    pyramid(
                        mean,
                        beta as usize,
                        candidates,
                        SparseLayerRank { rank, of: layers as usize, ..SparseLayerRank::default() },
                    )
                })
                .collect();
            let expected = of_the_code(capacity, window, tokens, layers, beta);
            for (layer, (ours, expected)) in ours.iter().zip(expected).enumerate() {
                let off = (*ours as i64 - expected).abs();
                assert!(off <= layer as i64 + 1, "layer {layer} of {layers}: {ours}, in the code {expected}");
            }
            let sum: usize = ours.iter().sum();
            assert!(sum.abs_diff(mean * layers as usize) <= layers as usize / 2, "{ours:?} for a mean of {mean}");
            assert!(ours[0] > 3 * ours[layers as usize - 1] / 2 && ours.is_sorted_by(|a, b| a >= b), "{ours:?}");
        }
        assert_eq!(
            pyramid(60, 20, 100, SparseLayerRank { rank: 1, of: 4, ..SparseLayerRank::default() }),
            60,
            "more than half: all keep as many"
        );
        assert_eq!(pyramid(60, 20, 1000, SparseLayerRank::default()), 60, "a layer alone");
    }

    /// The output of each layer is that of exact attention over its budget of best-voted tokens, by loops.
    #[test]
    fn each_layer_keeps_its_budget_of_the_best_voted() {
        let (tokens, layers, sink, window, k) = (200, 4, 2, 6, 24);
        let prefix = prefix(layers, 1, tokens, D);
        let spec = format!("pyramid_kv:k={k},window={window},kernel=1,beta=4");
        // Layer 1 is dense, so the line is over three layers.
        let policy = Policy { sink, dense_layers: DenseLayers::parse("1").unwrap(), ..none() };
        let (out, fork) = run(&prefix, &spec, &policy, 1, 1);
        for (layer, budget) in [(0, 42), (2, 24), (3, 6)] {
            let rows = |rows: spattn_kernels::Rows<'_>| -> Vec<Vec<f64>> {
                rows.to_f32().chunks(D).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
            };
            let (mut keys, mut values) =
                (rows(prefix.layer(layer).unwrap().keys.head(0)), rows(prefix.layer(layer).unwrap().values.head(0)));
            let dot = |query: &[f32], key: &[f64]| -> f64 {
                query.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>() / (D as f64).sqrt()
            };
            let of_prompt = prompt_queries(layer, tokens * D);
            let mut votes = vec![0.0; tokens - window];
            for t in tokens - window..tokens {
                let weights: Vec<f64> = (0..=t).map(|x| dot(&of_prompt[t * D..][..D], &keys[x]).exp()).collect();
                let sum: f64 = weights.iter().sum();
                votes.iter_mut().zip(weights).for_each(|(vote, w)| *vote += w / sum);
            }
            let mut order: Vec<usize> = (sink..tokens - window).collect();
            order.sort_by(|a, b| votes[*b].total_cmp(&votes[*a]));
            let seed = layer as u64;
            let (query, key, value) = (noise(D, seed), noise(D, seed + 1_000), noise(D, seed + 2_000));
            keys.push(key.iter().map(|x| f64::from(*x)).collect());
            values.push(value.iter().map(|x| f64::from(*x)).collect());
            let kept = (0..sink).chain(tokens - window..tokens + 1).chain(order[..budget].iter().copied());
            let weighted: Vec<(usize, f64)> = kept.map(|t| (t, dot(&query, &keys[t]).exp())).collect();
            let sum: f64 = weighted.iter().map(|(_, w)| w).sum();
            for c in 0..D {
                let expected = weighted.iter().map(|(t, w)| w * values[*t][c]).sum::<f64>() / sum;
                assert!((f64::from(out[layer * D + c]) - expected).abs() < 1e-5, "layer {layer}, channel {c}");
            }
            let attended = fork.costs().layers()[layer].attended_tokens as usize;
            assert_eq!(attended, sink + budget + window + 1, "layer {layer}");
        }
    }
}
