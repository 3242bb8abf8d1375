//! Axes: their ends, their ticks, and the pixel of each value.

/// A linear or logarithmic axis with its ticks.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Whether it is logarithmic.
    pub log: bool,
    /// The values with labels.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis for shares and costs. It is logarithmic if they span more than a decade, and starts at 0 if they are so
    /// close that a small difference would look large.
    pub fn of_costs(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if !least.is_finite() || most <= 0.0 {
            return Self::linear(0.0, 100.0);
        }
        const NEAR: f64 = 2.0;
        match least > 0.0 {
            true if most / least > 10.0 => Self::logarithmic(least, most),
            true if most / least < NEAR => Self::linear(0.0, 1.1 * most),
            _ => {
                let margin = 0.1 * (most - least).max(0.1 * most);
                Self::linear(least - margin, most + margin)
            }
        }
    }

    /// An axis for scores in percent, from 0 to 100. If all scores are at least 50 or at most 40, it ends at a multiple of
    /// ten near them instead, and spans at least 20 points.
    pub fn of_scores(values: impl Iterator<Item = f64> + Clone) -> Self {
        const FAR_ABOVE: f64 = 50.0;
        const FAR_BELOW: f64 = 40.0;
        const LEAST_SPAN: f64 = 20.0;
        let low = values.clone().fold(100.0, f64::min);
        let high = values.fold(0.0, f64::max);
        match (low >= FAR_ABOVE, high <= FAR_BELOW) {
            (true, _) => Self::linear(((low / 10.0).floor() * 10.0).min(100.0 - LEAST_SPAN), 100.0),
            (_, true) => Self::linear(0.0, ((high / 10.0).ceil() * 10.0).max(LEAST_SPAN)),
            _ => Self::linear(0.0, 100.0),
        }
    }

    /// An axis for perplexities, logarithmic if they span more than a decade. Infinite ones are ignored.
    pub fn of_perplexities(values: impl Iterator<Item = f64> + Clone) -> Self {
        const MARGIN: f64 = 0.05;
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        if most == 0.0 {
            return Self::linear(0.0, 100.0);
        }
        match most / least > 10.0 {
            true => Self::logarithmic(least, most),
            false => {
                let margin = MARGIN * (most - least).max(0.1 * most);
                Self::linear(least - margin, most + margin)
            }
        }
    }

    /// An axis for times and rates, always logarithmic and with space for at least three ticks. Values up to 0 are ignored.
    pub fn of_rates(values: impl Iterator<Item = f64> + Clone) -> Self {
        const LEAST_SPAN: f64 = 2.0;
        let values = values.filter(|value| value.is_finite() && *value > 0.0);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(0.0, f64::max);
        if most == 0.0 {
            return Self::logarithmic(1.0, 10.0);
        }
        let factor = (LEAST_SPAN * least / most).sqrt().max(1.0);
        Self::logarithmic(least / factor, most * factor)
    }

    /// An axis for numbers of either sign, with a small margin at both ends.
    pub fn of_values(values: &[f64]) -> Self {
        const MOST_TICKS: f64 = 8.0;
        const MARGIN: f64 = 0.04;
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        if least > most {
            return Self::linear(0.0, 1.0);
        }
        let span = (most - least).max(1e-3 * most.abs()).max(1e-6);
        let (low, high) = (least - MARGIN * span, most + MARGIN * span);
        let step = round_up((high - low) / MOST_TICKS);
        let (first, last) = ((low / step).ceil(), (high / step).floor());
        let ticks = (0..=(last - first).max(0.0) as usize).map(|i| (first + i as f64) * step).collect();
        Self { low, high, log: false, ticks }
    }

    /// An axis for lengths, with a tick at each length, on a logarithmic scale.
    pub fn of_lengths(lengths: &[usize]) -> Self {
        let ticks: Vec<f64> = lengths.iter().map(|length| *length as f64).collect();
        let (low, high) = (ticks.first().copied().unwrap_or(1.0), ticks.last().copied().unwrap_or(1.0));
        Self { low, high, log: true, ticks }
    }

    /// A linear axis from 0 to slightly more than the largest value.
    pub fn from_zero(most: f64) -> Self {
        Self::linear(0.0, if most > 0.0 { 1.05 * most } else { 1.0 })
    }

    fn linear(low: f64, high: f64) -> Self {
        const MOST_TICKS: f64 = 6.0;
        let low = low.max(0.0);
        let step = round_up((high - low) / MOST_TICKS);
        let (first, last) = ((low / step).ceil() as i64, (high / step + 1e-9).floor() as i64);
        Self { low, high, log: false, ticks: (first..=last).map(|i| i as f64 * step).collect() }
    }

    fn logarithmic(least: f64, most: f64) -> Self {
        const MARGIN: f64 = 1.1;
        // The loop below runs over decades, so their number must be bounded.
        let (low, high) = ((least / MARGIN).max(f64::MIN_POSITIVE), (most * MARGIN).min(f64::MAX));
        let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let steps: &[f64] = match most / least {
            span if span > 300.0 => &[1.0],
            span if span < 8.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let all = decades.flat_map(|d| steps.iter().map(move |step| step * 10f64.powi(d)));
        Self { low, high, log: true, ticks: all.filter(|tick| (low..=high).contains(tick)).collect() }
    }

    /// The pixel of a value when the axis runs from `from` to `to`.
    pub fn at(&self, value: f64, from: i32, to: i32) -> i32 {
        let scale = |x: f64| if self.log { x.max(f64::MIN_POSITIVE).log10() } else { x };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 };
        (f64::from(from) + share * f64::from(to - from)).round() as i32
    }
}

/// The smallest of 1, 2, 5, 10, 20, ... (and of such fractions) that is at least `step`.
pub fn round_up(step: f64) -> f64 {
    let decade = 10f64.powf(step.max(1e-6).log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= step * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * decade
}

/// A tick as text, without trailing zeros.
pub fn tick_label(tick: f64) -> String {
    let text = format!("{tick:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexities_are_logarithmic_over_a_decade_only() {
        let axis = Axis::of_perplexities([12.0, 15.0].into_iter());
        assert!(!axis.log && axis.low > 11.0 && axis.high < 16.0);
        assert!(Axis::of_perplexities([12.0, 1500.0].into_iter()).log);
    }

    #[test]
    fn noise_does_not_look_like_a_gulf() {
        let scores = |values: &[f64]| {
            let axis = Axis::of_scores(values.iter().copied());
            (axis.low, axis.high)
        };
        assert_eq!(scores(&[10.0, 65.0]), (0.0, 100.0));
        assert_eq!(scores(&[10.0, 20.0]), (0.0, 20.0));
        assert_eq!((scores(&[1.0]), scores(&[31.0, 33.0])), ((0.0, 20.0), (0.0, 40.0)));
        assert_eq!((scores(&[99.0, 100.0]), scores(&[49.0, 52.0])), ((80.0, 100.0), (0.0, 100.0)));
        assert_eq!(scores(&[]), (80.0, 100.0));
        // With one budget, the axis must not have its density at both ends.
        let one = Axis::of_costs(&[5.0]);
        assert!(one.low == 0.0 && one.high > 5.0 && one.ticks.len() > 3, "{one:?}");
        assert!(Axis::of_costs(&[5.0, 5.05]).low == 0.0 && Axis::of_costs(&[5.0, 20.0]).low > 0.0);
    }

    #[test]
    fn values_at_the_ends_of_what_numbers_can_be_have_an_axis() {
        let few = |axis: Axis| assert!(axis.ticks.len() < 1000, "{} ticks", axis.ticks.len());
        for ends in [[0.0, 12.0], [1.0, f64::INFINITY], [f64::NAN, 2.0], [f64::INFINITY; 2], [1e-320, 1e308]] {
            few(Axis::of_perplexities(ends.into_iter()));
            few(Axis::of_costs(&ends));
            few(Axis::of_scores(ends.into_iter()));
            few(Axis::from_zero(ends[1]));
            few(Axis::of_rates(ends.into_iter()));
        }
        let axis = Axis::of_perplexities([12.0, f64::INFINITY, 15.0].into_iter());
        assert!(axis.low > 11.0 && axis.high < 16.0);
    }

    #[test]
    fn values_may_be_of_either_sign() {
        let axis = Axis::of_values(&[-0.9, 0.4]);
        assert_eq!(
            axis.ticks.iter().map(|tick| tick_label(*tick)).collect::<Vec<_>>(),
            ["-0.8", "-0.6", "-0.4", "-0.2", "0", "0.2", "0.4"]
        );
        assert!(axis.low < -0.9 && axis.high > 0.4);
        for values in [&[][..], &[0.0], &[-1e300, 1e300], &[f64::NAN, 3.0]] {
            let axis = Axis::of_values(values);
            assert!(axis.low < axis.high && axis.ticks.len() < 20, "{values:?}");
        }
    }

    #[test]
    fn rates_are_always_logarithmic_and_have_ticks() {
        for (least, most) in [(3.0, 3.0), (2.1, 4.9), (0.004, 0.005), (30.0, 9000.0), (1.0, 1e6)] {
            let axis = Axis::of_rates([least, most].into_iter());
            assert!(axis.log && axis.low < least && axis.high > most, "{least} {most}");
            assert!((3..=12).contains(&axis.ticks.len()), "{least} {most}: {:?}", axis.ticks);
        }
        assert_eq!(
            Axis::of_rates([30.0, 9000.0].into_iter()).at(519.615, 0, 100),
            50,
            "the middle is the geometric one"
        );
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::of_costs(&[0.9, 30.0]);
        assert!(axis.log);
        assert_eq!(axis.ticks.iter().map(|t| tick_label(*t)).collect::<Vec<_>>(), ["1", "2", "5", "10", "20"]);
        assert_eq!(Axis::of_scores([71.0, 98.0].into_iter()).ticks, [70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 100.0]);
        assert_eq!(round_up(0.3), 0.5);
        let lengths = Axis::of_lengths(&[1024, 2048, 4096]);
        assert_eq!([1024.0, 2048.0, 4096.0].map(|t| lengths.at(t, 0, 100)), [0, 50, 100]);
    }
}
