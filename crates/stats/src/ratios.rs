//! Perplexities over windows of text, their differences, and mean differences in nats.
//!
//! The unit of variation is a window, or a document: a context. A perplexity is the exponential of a ratio of sums; its variance comes from
//! the windows' residuals from that ratio. Intervals are Student's, for a perplexity on the log scale. With few windows they cover more
//! than a bootstrap does. If nothing varies, there is no interval.

use super::distributions::t_tail;
use super::{Estimate, Level, Sample};

/// A window's negative log-likelihood in nats, and the number of tokens (or other units) in the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Sum of nats.
    pub nats: f64,
    /// Number of units.
    pub units: f64,
}

impl Window {
    /// Returns the window as if its text had `factor` times the perplexity. If all windows are changed in this way, their joint perplexity
    /// is `factor` times as large, and its variation on the log scale is unchanged.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { nats: self.nats + self.units * factor.ln(), ..self }
    }
}

/// Returns the exponential of the sum of nats over the sum of units; units count as at least 1.
pub fn perplexity(windows: &[Window]) -> f64 {
    log_perplexity(windows).exp()
}

fn log_perplexity(windows: &[Window]) -> f64 {
    windows.iter().map(|w| w.nats).sum::<f64>() / units(windows)
}

fn units(windows: &[Window]) -> f64 {
    windows.iter().map(|w| w.units).sum::<f64>().max(1.0)
}

/// Returns each window's contribution to the deviation of the log perplexity.
fn residuals(windows: &[Window]) -> Vec<f64> {
    let (ratio, units) = (log_perplexity(windows), units(windows));
    windows.iter().map(|w| (w.nats - ratio * w.units) / units).collect()
}

/// Returns half the width of Student's interval of a sum of residuals, at a level. `None` if nothing varies, which does not prove that the
/// mean is certain.
fn half_width(residuals: Sample, level: Level) -> Option<f64> {
    if residuals.contexts() < 2 {
        return None;
    }
    let error = residuals.variance_of_sum(0.0).sqrt();
    (error > 0.0 && error.is_finite()).then(|| error * level.t(residuals.contexts() as f64 - 1.0))
}

/// Returns the perplexity with its 95 % interval, from windows with their contexts. `None` without windows; no ends for a single context or
/// if nothing varies.
pub fn perplexity_interval<C: Ord + Copy>(windows: &[(C, Window)]) -> Option<Estimate> {
    let (contexts, windows): (Vec<C>, Vec<Window>) = windows.iter().copied().unzip();
    if windows.is_empty() {
        return None;
    }
    let (log, mean) = (log_perplexity(&windows), perplexity(&windows));
    let half = half_width(Sample::new(contexts.into_iter().zip(residuals(&windows))), Level::SINGLE);
    Some(match half {
        Some(half) => Estimate::around(mean, ((log - half).exp(), (log + half).exp())),
        None => Estimate { mean, ends: None },
    })
}

/// Returns the difference of the perplexities of pairs of windows over the same text, first minus second, with its 95 % interval; otherwise
/// like [`perplexity_interval`].
pub fn perplexity_difference<C: Ord + Copy>(pairs: &[(C, Window, Window)]) -> Option<Estimate> {
    perplexity_difference_at(pairs, Level::SINGLE)
}

/// Like [`perplexity_difference`], with an interval for another level.
pub fn perplexity_difference_at<C: Ord + Copy>(pairs: &[(C, Window, Window)], level: Level) -> Option<Estimate> {
    if pairs.is_empty() {
        return None;
    }
    let (ours, theirs): (Vec<Window>, Vec<Window>) = pairs.iter().map(|(_, ours, theirs)| (*ours, *theirs)).unzip();
    let (a, b) = (perplexity(&ours), perplexity(&theirs));
    let moved = residuals(&ours).into_iter().zip(residuals(&theirs)).map(|(ours, theirs)| a * ours - b * theirs);
    let half = half_width(Sample::new(pairs.iter().map(|(context, ..)| *context).zip(moved)), level);
    Some(Estimate { mean: a - b, ends: half.map(|half| (a - b - half, a - b + half)) })
}

/// Returns a ratio of positive sums, such as time over steps, with its 95 % interval, from (context, part, units) for each example. `None`
/// without units; no ends for a single context or if nothing varies.
pub fn rate_interval<C: Ord + Copy>(observed: &[(C, f64, f64)]) -> Option<Estimate> {
    let sum = |of: fn(&(C, f64, f64)) -> f64| observed.iter().map(of).sum::<f64>();
    let (parts, units) = (sum(|o| o.1), sum(|o| o.2));
    if units <= 0.0 {
        return None;
    }
    let rate = parts / units;
    // Compute the ends on the log scale, so that none is negative.
    let moved = observed.iter().map(|(context, part, n)| (*context, (part - rate * n) / parts));
    let half = if parts > 0.0 { half_width(Sample::new(moved), Level::SINGLE) } else { None };
    Some(match half {
        Some(half) => Estimate::around(rate, (rate * (-half).exp(), rate * half.exp())),
        None => Estimate { mean: rate, ends: None },
    })
}

/// Returns the mean of unbounded values, such as nats per token, with Student's interval; otherwise like [`perplexity_interval`].
pub fn mean_interval(sample: &Sample) -> Option<Estimate> {
    if sample.is_empty() {
        return None;
    }
    let mean = sample.mean();
    let half = half_width(around(sample, mean), Level::SINGLE).map(|half| half / sample.n());
    Some(Estimate { mean, ends: half.map(|half| (mean - half, mean + half)) })
}

/// Returns the probability of a mean at least as large if the true mean is 0 (Student's test); `None` if [`mean_interval`] has no ends.
pub fn gain_p(sample: &Sample) -> Option<f64> {
    if sample.contexts() < 2 {
        return None;
    }
    let mean = sample.mean();
    let error = around(sample, mean).variance_of_sum(0.0).sqrt() / sample.n();
    (error > 0.0 && error.is_finite()).then(|| t_tail(mean / error, sample.contexts() as f64 - 1.0))
}

fn around(sample: &Sample, centre: f64) -> Sample {
    Sample { values: sample.values.iter().map(|v| v - centre).collect(), ..sample.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_weighs_by_units_and_its_interval_is_that_of_the_parts() {
        assert_eq!(rate_interval::<usize>(&[]), None);
        assert_eq!(rate_interval(&[(0, 0.0, 0.0)]), None);
        assert_eq!(rate_interval(&[(0, 30.0, 10.0)]), Some(Estimate { mean: 3.0, ends: None }));
        // With equal units: Student's interval of the mean of the parts (12.706 × 0.1 / 1 over two), on the log scale.
        let two = rate_interval(&[(0, 0.9, 1.0), (1, 1.1, 1.0)]).unwrap();
        let (low, high) = two.ends.unwrap();
        assert!((two.mean - 1.0).abs() < 1e-12 && (high.ln() - 1.2706).abs() < 1e-3 && (low * high - 1.0).abs() < 1e-9);
        // Two examples of one context are one observation.
        assert_eq!(rate_interval(&[(0, 0.9, 1.0), (0, 1.1, 1.0)]).unwrap().ends, None);
    }

    const NATS: [f64; 5] = [520.0, 480.0, 610.0, 555.0, 430.0];

    fn windows(nats: &[f64]) -> Vec<(usize, Window)> {
        nats.iter().map(|nats| Window { nats: *nats, units: 200.0 }).enumerate().collect()
    }

    /// Reference: scipy 1.17.1, `ttest_1samp(nats / 200, 0).confidence_interval()`, with exponentiated ends. With windows of one length,
    /// the ratio is a mean.
    #[test]
    fn windows_of_one_length_have_students_interval() {
        let found = perplexity_interval(&windows(&NATS)).unwrap();
        let (low, high) = found.ends.unwrap();
        let log = |x: f64| x.ln();
        assert!((log(found.mean) - 2.595).abs() < 1e-12);
        assert!(
            (log(low) - 2.166_895_932_672_612).abs() < 1e-9 && (log(high) - 3.023_104_067_327_388_6).abs() < 1e-9,
            "{found:?}"
        );
        let nats = Sample::independent(&NATS.map(|n| n / 200.0 - 2.0));
        assert!((mean_interval(&nats).unwrap().low().unwrap() - (2.166_895_932_672_612 - 2.0)).abs() < 1e-9);
        assert!(
            (gain_p(&nats).unwrap() - 0.009_082_600_273_108_758).abs() < 1e-9,
            "ttest_1samp(alternative=\"greater\")"
        );
    }

    #[test]
    fn a_ratio_of_sums_is_not_a_mean_of_ratios() {
        let (short, long) = (Window { nats: 100.0, units: 100.0 }, Window { nats: 900.0, units: 300.0 });
        assert!((perplexity(&[short, long]) - 2.5f64.exp()).abs() < 1e-12);
    }

    #[test]
    fn a_multiple_of_a_perplexity_is_compared_window_by_window() {
        // A perplexity that is 1.5 times that of the text in every window, less 1.25 times it: a quarter of it, which varies as it does.
        let of: Vec<Window> = windows(&NATS).into_iter().map(|(_, window)| window).collect();
        let times = |factor: f64| of.iter().map(|window| window.times(factor)).collect::<Vec<_>>();
        let (own, plain) = (perplexity(&times(1.5)), perplexity(&of));
        assert!((own - 1.5 * plain).abs() < 1e-9 * own);
        let pairs: Vec<_> = times(1.5).into_iter().zip(times(1.25)).enumerate().map(|(i, (a, b))| (i, a, b)).collect();
        let found = perplexity_difference(&pairs).unwrap();
        let (low, high) = found.ends.unwrap();
        assert!((found.mean - 0.25 * plain).abs() < 1e-9, "{found:?}");
        // Student's interval of the nats per token, on the scale of a quarter of the perplexity (the reference above).
        let half = 0.25 * plain * (3.023_104_067_327_388_6 - 2.595);
        assert!((high - found.mean - half).abs() < 1e-9 && (found.mean - low - half).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_all_windows_share_is_certain_and_what_does_not_vary_is_not_known() {
        let pairs: Vec<_> = windows(&NATS)
            .into_iter()
            .map(|(i, w)| (i, Window { nats: w.nats + if i % 2 == 0 { 1.0 } else { 1.2 }, ..w }, w))
            .collect();
        let found = perplexity_difference(&pairs).unwrap();
        let (low, high) = found.ends.unwrap();
        assert!(0.0 < low && low < found.mean && found.mean < high && high < 0.2, "{found:?}");
        let same: Vec<_> = windows(&NATS).into_iter().map(|(i, w)| (i, w, w)).collect();
        assert_eq!(perplexity_difference(&same), Some(Estimate { mean: 0.0, ends: None }));
        assert_eq!(perplexity_interval(&windows(&NATS[..1])).unwrap().ends, None);
        assert_eq!(perplexity_interval::<usize>(&[]), None);
        let one_text: Vec<_> = windows(&NATS).into_iter().map(|(_, w)| (0, w)).collect();
        assert_eq!(perplexity_interval(&one_text).unwrap().ends, None);
    }
}
