//! `topp`: as many tokens as it takes to cover a share `p` of the attention, by exact weights (oracle top-p).
//!
//! The share is of the candidates' mass: static tokens are attended anyway. Where attention is sharp this takes few
//! tokens, where it is flat many, so the budget is an outcome: read it in the density column.

use std::sync::Arc;

use super::{MethodEntry, ParamInfo};
use crate::attention::{HeadPrefix, Method, Picks, Selection, Step};
use crate::cost::Cost;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topp",
    about: "fewest tokens with a share p of the attention, by exact weights",
    params: &[ParamInfo { key: "p", default: "0.95", about: "share of the candidates' attention mass, above 0 to 1" }],
    presets: &[],
    build: |params| {
        let p: f64 = params.get("p", 0.95)?;
        if !(p > 0.0 && p <= 1.0) {
            return Err(params.bad_value("p", &p.to_string(), "a number above 0 and up to 1"));
        }
        Ok(Arc::new(TopP { p }))
    },
};

/// The smallest set of candidates with a share of the mass.
struct TopP {
    p: f64,
}

impl TopP {
    /// Positions among `scores` (unscaled), heaviest first.
    fn cover(&self, scores: &[f32], scale: f32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let max = order.first().map_or(0.0, |i| scores[*i as usize]);
        let weight = |i: &u32| f64::from((scale * (scores[*i as usize] - max)).exp());
        let total: f64 = order.iter().map(weight).sum();
        let mut covered = 0.0;
        let enough = |i: &u32| {
            covered += weight(i);
            self.p < 1.0 && covered >= self.p * total
        };
        if let Some(last) = order.iter().position(enough) {
            order.truncate(last + 1);
        }
        order
    }
}

impl Method for TopP {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, step: &Step<'_>, (): &(), (): &mut (), cost: &mut Cost) -> Selection {
        let scores = step.exact_scores(cost);
        let (n, first) = (step.candidates.len(), step.candidates.start as u32);
        let of_head = |scores: &[f32]| {
            let mut tokens: Vec<u32> = self.cover(scores, step.scale).into_iter().map(|i| i + first).collect();
            tokens.sort_unstable();
            Picks::softmax(tokens)
        };
        Selection::PerHead(scores.chunks_exact(n).map(of_head).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_the_share_with_no_token_to_spare() {
        let scores: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 10.0).collect();
        let weights: Vec<f64> = scores.iter().map(|s| f64::from(*s * 0.5).exp()).collect();
        let total: f64 = weights.iter().sum();
        for p in [0.01, 0.3, 0.9, 0.999] {
            let picked = TopP { p }.cover(&scores, 0.5);
            let mass = |picked: &[u32]| picked.iter().map(|i| weights[*i as usize]).sum::<f64>() / total;
            assert!(mass(&picked) >= p - 1e-5, "{p}: {}", mass(&picked));
            assert!(mass(&picked[..picked.len() - 1]) < p + 1e-5, "{p}");
            let least = picked.iter().map(|i| scores[*i as usize]).fold(f32::INFINITY, f32::min);
            assert!((0..200u32).all(|i| picked.contains(&i) || scores[i as usize] <= least), "{p}");
        }
        assert_eq!(TopP { p: 1.0 }.cover(&scores, 0.5).len(), 200);
        assert_eq!(TopP { p: 0.5 }.cover(&[0.0, 100.0, 0.0], 1.0), [1]);
    }
}
