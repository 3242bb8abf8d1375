//! Combines several means, and corrects for several comparisons.

use super::Estimate;

/// The expected share of noise among the differences that are called real.
pub const FALSE_DISCOVERIES: f64 = 0.05;

/// Returns the mean of independent means of equal weight, with an interval computed from their intervals. `None` without means; no ends if
/// any mean has none.
///
/// The distances from each mean to its ends are combined like standard errors, separately for each side (MOVER: Zou and Donner, Statistics
/// in Medicine 27, 2008). So the interval of scores that are all at the edge keeps a width.
pub fn mean_of(estimates: &[Estimate]) -> Option<Estimate> {
    if let [] | [_] = estimates {
        return estimates.first().copied();
    }
    let n = estimates.len() as f64;
    let mean = estimates.iter().map(|e| e.mean).sum::<f64>() / n;
    let distances: Option<Vec<(f64, f64)>> =
        estimates.iter().map(|e| e.ends.map(|(low, high)| (e.mean - low, high - e.mean))).collect();
    let ends = distances.map(|distances| {
        let (down, up): (Vec<f64>, Vec<f64>) = distances.into_iter().unzip();
        (mean - root_of_squares(&down) / n, mean + root_of_squares(&up) / n)
    });
    Some(Estimate { mean, ends })
}

/// Returns the detectable difference of a mean of independent differences of equal weight, from the detectable difference of each; `None`
/// if any has none.
pub fn detectable_of(detectable: &[Option<f64>]) -> Option<f64> {
    let all: Vec<f64> = detectable.iter().copied().collect::<Option<_>>()?;
    (!all.is_empty()).then(|| root_of_squares(&all) / all.len() as f64)
}

fn root_of_squares(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Returns the largest of several one-sided probabilities that still counts as a discovery, by Benjamini and Hochberg: of all differences
/// called real, a share of at most [`FALSE_DISCOVERIES`] is expected to be noise, however many were compared. `None` if none counts. A
/// single probability counts if it is at most 2.5 %, that is, if its 95 % interval does not contain 0.
///
/// Comparisons of many methods with one `full` depend on each other in a way for which the procedure is valid (Benjamini and Yekutieli,
/// 2001).
pub fn greatest_discovery(probabilities: &[f64]) -> Option<f64> {
    let mut sorted = probabilities.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = FALSE_DISCOVERIES / 2.0 / sorted.len() as f64;
    (1..).zip(sorted).filter(|(rank, p)| *p <= share * f64::from(*rank)).last().map(|(_, p)| p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_at_the_edge_keep_a_width() {
        let full = Estimate { mean: 1.0, ends: Some((0.84, 1.0)) };
        let found = mean_of(&[full; 4]).unwrap();
        assert_eq!(found.mean, 1.0);
        let (low, high) = found.ends.unwrap();
        assert!((low - 0.92).abs() < 1e-12 && high == 1.0, "half of one's: {low} {high}");
        assert_eq!(mean_of(&[full, Estimate { mean: 0.0, ends: None }]), Some(Estimate { mean: 0.5, ends: None }));
        assert_eq!(mean_of(&[full]).unwrap().mean, 1.0);
        assert_eq!(mean_of(&[]), None);
    }

    /// Newcombe's method 10 for a difference of independent proportions is the special case with one sign negated: the example of his paper
    /// (Statistics in Medicine 17, 1998), 56/70 − 48/80 = 0.2, Wilson's intervals: 0.0524 to 0.3339.
    #[test]
    fn newcombes_hybrid_interval_is_a_case_of_it() {
        let first = Estimate { mean: 0.8, ends: Some(WILSON_1) };
        let second = Estimate { mean: -0.6, ends: Some(WILSON_2) };
        let (low, high) = mean_of(&[first, second]).unwrap().scaled(2.0).ends.unwrap();
        assert!((low - 0.0524).abs() < 5e-5 && (high - 0.3339).abs() < 5e-5, "{low} {high}");
    }

    /// From statsmodels 0.15.0, `proportion_confint(method="wilson")` of 56 of 70, and of 48 of 80 with its sign negated.
    const WILSON_1: (f64, f64) = (0.691_833_555_037_469_5, 0.876_952_607_516_370_5);
    const WILSON_2: (f64, f64) = (-0.700_381_724_041_290_6, -0.490_454_650_051_603_8);

    /// Reference: statsmodels 0.15.0, `multipletests(p, alpha=0.025, method="fdr_bh")`, which rejects the first four.
    #[test]
    fn many_comparisons_need_more_than_one() {
        let p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324];
        assert_eq!(greatest_discovery(&p), Some(0.0095));
        assert_eq!(greatest_discovery(&[0.02]), Some(0.02));
        assert_eq!(greatest_discovery(&[0.02, 0.9, 0.9]), None, "one of three is not enough");
        assert_eq!(greatest_discovery(&[]), None);
    }

    #[test]
    fn a_mean_tells_smaller_differences() {
        assert_eq!(detectable_of(&[Some(0.2); 4]), Some(0.1));
        assert_eq!((detectable_of(&[Some(0.2), None]), detectable_of(&[])), (None, None));
    }
}
