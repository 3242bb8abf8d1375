//! Simulation of how often intervals contain the true value. Its tables are meant for reading; it asserts little.
//!
//! `cargo test --release -p spattn-stats coverage -- --ignored --nocapture` prints the tables of `results/reference/intervals`.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::ratios::{Window, perplexity_interval};
use super::{Sample, difference, quantile, score};

const SAMPLES: usize = 2_000;
const RESAMPLES: usize = 500;

/// A random generator with some distributions.
pub(super) struct Draw(pub(super) ChaCha8Rng);

impl Draw {
    pub(super) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    pub(super) fn is(&mut self, probability: f64) -> f64 {
        f64::from(u8::from(self.uniform() < probability))
    }

    /// Draws from the standard normal distribution, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * (1.0 - self.uniform()).ln()).sqrt(), self.uniform());
        radius * (std::f64::consts::TAU * angle).cos()
    }
}

/// Returns the intervals to compare: this program's, the percentile bootstrap over examples, and BCa. BCa is undefined if all values
/// are equal; this program's interval then replaces it.
fn intervals(sample: &Sample, own: (f64, f64), draw: &mut Draw) -> [(f64, f64); 3] {
    let (values, n) = (&sample.values, sample.values.len());
    let mean = sample.mean();
    let mut means: Vec<f64> =
        (0..RESAMPLES).map(|_| (0..n).map(|_| values[draw.below(n)]).sum::<f64>() / n as f64).collect();
    means.sort_by(f64::total_cmp);
    let percentile = (quantile(&means, 0.025), quantile(&means, 0.975));
    let moment = |power: i32| values.iter().map(|v| (v - mean).powi(power)).sum::<f64>();
    let spread = moment(2);
    if spread < 1e-12 {
        return [own, percentile, own];
    }
    let share = |is: &dyn Fn(f64) -> bool| means.iter().filter(|m| is(**m)).count() as f64 / RESAMPLES as f64;
    let below = (share(&|m| m < mean - 1e-12) + share(&|m| m <= mean + 1e-12)) / 2.0;
    let (bias, skew) = (normal_quantile(below), moment(3) / (6.0 * spread.powf(1.5)));
    let end = |z: f64| {
        let moved = bias + (bias + z) / (1.0 - skew * (bias + z)).max(1e-3);
        quantile(&means, 1.0 - super::distributions::normal_tail(moved))
    };
    let z = super::distributions::Z;
    [own, percentile, (end(-z), end(z))]
}

fn normal_quantile(share: f64) -> f64 {
    super::distributions::root(-8.0, 8.0, |z| 1.0 - super::distributions::normal_tail(z) - share)
}

/// Prints one line: for each kind of interval, the share that contains the truth, and the mean width.
fn line(name: &str, n: usize, truth: f64, of: impl Fn(&mut Draw) -> (Sample, (f64, f64))) -> [f64; 3] {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(n as u64));
    let (mut covered, mut width) = ([0.0; 3], [0.0; 3]);
    for _ in 0..SAMPLES {
        let (sample, own) = of(&mut draw);
        for (kind, (low, high)) in intervals(&sample, own, &mut draw).into_iter().enumerate() {
            covered[kind] += f64::from(u8::from(low <= truth + 1e-9 && truth - 1e-9 <= high)) / SAMPLES as f64;
            width[kind] += (high - low) / SAMPLES as f64;
        }
    }
    let cell = |kind: usize| format!("{:.1} ({:.1})", 100.0 * covered[kind], 100.0 * width[kind]);
    println!("| {name} | {n} | {} | {} | {} |", cell(1), cell(2), cell(0));
    covered
}

fn heading(what: &str) {
    println!("\n### {what}\n\n| | n | percentile bootstrap | BCa | here |\n|---|---:|---:|---:|---:|");
}

fn scores(name: &str, truth: f64, of: impl Fn(&mut Draw) -> f64) {
    for n in [2, 5, 20, 100] {
        let covered = line(name, n, truth, |draw| {
            let sample = Sample::independent(&(0..n).map(|_| of(draw)).collect::<Vec<_>>());
            let own = score(&sample).and_then(|e| e.ends).expect("several contexts");
            (sample, own)
        });
        assert!(covered[0] > 0.92, "{name} at {n}: {covered:?}");
    }
}

fn differences(name: &str, truth: f64, of: impl Fn(&mut Draw) -> f64) {
    for n in [5, 20, 100] {
        line(name, n, truth, |draw| {
            let sample = Sample::independent(&(0..n).map(|_| of(draw)).collect::<Vec<_>>());
            let own = difference(&sample).and_then(|e| e.ends).expect("several contexts");
            (sample, own)
        });
    }
}

#[test]
#[ignore = "a simulation of a minute, whose tables are to be read"]
fn coverage() {
    heading("Scores of 0 or 1");
    for p in [0.5, 0.9, 0.99, 1.0] {
        scores(&format!("{p}"), p, |draw| draw.is(p));
    }
    heading("Scores between 0 and 1");
    scores("uniform", 0.5, Draw::uniform);
    scores("thirds: 1 (95 %), 2/3", 0.95 + 0.1 / 3.0, |draw| 1.0 - draw.is(0.05) / 3.0);
    scores("1 (97 %), 2/3 (2 %), 0", 0.97 + 0.04 / 3.0, |draw| {
        let u = draw.uniform();
        if u < 0.97 { 1.0 } else { f64::from(u8::from(u < 0.99)) * 2.0 / 3.0 }
    });
    scores("F1: 1 (40 %), 0 (20 %), uniform", 0.6, |draw| {
        let u = draw.uniform();
        if u < 0.4 {
            1.0
        } else if u < 0.6 {
            0.0
        } else {
            draw.uniform()
        }
    });
    heading("Five depths of a context: n contexts, in which every example is right with the context's own probability");
    for (name, chances) in [("half or all", [0.5, 1.0]), ("none or all", [0.0, 1.0]), ("all alike", [0.8, 0.8])] {
        let truth = (chances[0] + chances[1]) / 2.0;
        for n in [5, 20, 100] {
            line(name, n, truth, |draw| {
                let mut observed = Vec::new();
                for context in 0..n {
                    let chance = chances[draw.below(2)];
                    observed.extend((0..5).map(|_| (context, draw.is(chance))));
                }
                let sample = Sample::new(observed);
                let own = score(&sample).and_then(|e| e.ends).expect("several contexts");
                (sample, own)
            });
        }
    }
    heading("Paired differences of scores of 0 or 1: probability of a gain, of a loss");
    for (gain, loss) in [(0.0, 0.0), (0.0, 0.02), (0.0, 0.1), (0.1, 0.1), (0.05, 0.45), (0.0, 0.95)] {
        differences(&format!("{gain}, {loss}"), gain - loss, |draw| {
            let u = draw.uniform();
            if u < gain { 1.0 } else { -f64::from(u8::from(u < gain + loss)) }
        });
    }
    heading("Paired differences between −1 and 1");
    differences("−1/3 (10 %), else 0", -0.1 / 3.0, |draw| -draw.is(0.1) / 3.0);
    differences("uniform in −0.4 to 0.2", -0.1, |draw| 0.6 * draw.uniform() - 0.4);
    heading("Nats a token of windows (the logarithm of the perplexity)");
    for (name, truth, skewed) in [("normal", 2.0, false), ("lognormal", 1.125f64.exp(), true)] {
        for n in [2, 5, 20, 100] {
            line(name, n, truth, |draw| {
                let nats = |draw: &mut Draw| {
                    if skewed { (1.0 + 0.5 * draw.normal()).exp() } else { 2.0 + 0.3 * draw.normal() }
                };
                let values: Vec<f64> = (0..n).map(|_| nats(draw)).collect();
                let windows: Vec<(usize, Window)> =
                    values.iter().map(|nats| Window { nats: 256.0 * nats, units: 256.0 }).enumerate().collect();
                let (low, high) = perplexity_interval(&windows).and_then(|e| e.ends).expect("they vary");
                (Sample::independent(&values), (low.ln(), high.ln()))
            });
        }
    }
}
