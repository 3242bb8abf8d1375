//! Which experts a token passes through, according to the router.

use super::families::{ExpertWeights, Experts};

/// For each expert, the rows that are routed to it and its weight for each, with rows in order; `logits` is
/// `[row][expert]`.
///
/// Among equal logits, that of the lower expert counts as larger.
pub(super) fn routed(logits: &[f32], spec: &Experts) -> Vec<Vec<(usize, f32)>> {
    let mut by_expert = vec![Vec::new(); spec.count];
    let mut order: Vec<usize> = Vec::with_capacity(spec.count);
    for (row, logits) in logits.chunks_exact(spec.count).enumerate() {
        order.clear();
        order.extend(0..spec.count);
        // The sort is stable, so ties stay in order.
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let largest = logits[order[0]];
        let share = |expert: usize| (logits[expert] - largest).exp();
        let among = match spec.weights {
            ExpertWeights::AmongAll => &order[..],
            ExpertWeights::AmongUsed => &order[..spec.used],
        };
        let all: f32 = among.iter().map(|expert| share(*expert)).sum();
        for expert in &order[..spec.used] {
            by_expert[*expert].push((row, share(*expert) / all));
        }
    }
    by_expert
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{ExpertNames, StackedNames};

    fn spec(weights: ExpertWeights) -> Experts {
        let stacked = StackedNames::TRANSFORMERS;
        let names = ExpertNames { router: "", each: "", gate: "", up: "", down: "", stacked };
        Experts { names, count: 4, used: 2, width: 8, weights, router_bias: false }
    }

    /// Logits with a known softmax: logarithms of the weights.
    fn logits(weights: [f32; 4]) -> Vec<f32> {
        weights.iter().map(|weight| weight.ln() + 3.0).collect()
    }

    fn close(routed: &[Vec<(usize, f32)>], expected: &[Vec<(usize, f32)>]) -> bool {
        let same = |a: &Vec<(usize, f32)>, b: &Vec<(usize, f32)>| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6)
        };
        routed.len() == expected.len() && routed.iter().zip(expected).all(|(a, b)| same(a, b))
    }

    #[test]
    fn a_row_goes_to_the_experts_of_its_largest_weights() {
        let rows = [logits([0.1, 0.4, 0.2, 0.3]), logits([0.5, 0.05, 0.25, 0.2])].concat();
        let all = routed(&rows, &spec(ExpertWeights::AmongAll));
        assert!(close(&all, &[vec![(1, 0.5)], vec![(0, 0.4)], vec![(1, 0.25)], vec![(0, 0.3)]]), "{all:?}");
        let used = routed(&rows, &spec(ExpertWeights::AmongUsed));
        let expected = [vec![(1, 2.0 / 3.0)], vec![(0, 4.0 / 7.0)], vec![(1, 1.0 / 3.0)], vec![(0, 3.0 / 7.0)]];
        assert!(close(&used, &expected), "{used:?}");
    }

    #[test]
    fn large_logits_do_not_overflow_and_ties_go_to_the_first() {
        let routed = routed(&[1e4, 1e4, 1e4, -1e4], &spec(ExpertWeights::AmongUsed));
        assert!(close(&routed, &[vec![(0, 0.5)], vec![(0, 0.5)], vec![], vec![]]), "{routed:?}");
    }
}
