//! How similar the scores of near tokens are (HiP Fig. 5 and A.3: Figs. 10 to 16).
//!
//! Scores of a query are `sᵢ = q·kᵢ/√d`, without the sink. For each distance `Δ`, the differences `δ = sᵢ₊Δ − sᵢ` over all `i` have a mean
//! and a standard deviation `σ(Δ)`. Their divergence from the normal distribution with that mean and deviation is `Σ p ln(p/p_normal)` over
//! bins of `σ/5` within `±4σ`; the outermost bins also hold what lies beyond. To the mean `σ(Δ)` of a head, `a·ln(Δ + b) + c` is fitted by
//! least squares; its error is the root mean square residual over the range of `σ` (NRMSE).
//!
//! The differences of one token at two distances share its score, so `δ_α` and `δ_β` correlate by 1/2 if scores are independent. A higher
//! correlation at near distances is locality (A.3.2, Figs. 13 and 14, with `α = 10`).

use std::collections::BTreeMap;

use anyhow::Result;
use statrs::distribution::{ContinuousCDF, Normal};

use super::findings::{Drawing, Lines, Map, Panel, Point, Table, Tally, Unit};
use super::head::Query;
use super::{Analysis, Document, Findings, Observation};
use spattn_stats::correlation;

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "locality",
    about: "differences of scores by distance: mean, deviation, divergence from a normal, fit of a logarithm, correlation",
    reference: "HiP Figs. 5, 10 to 16",
    methods: &[],
    start: |setup| {
        Ok(Box::new(Locality { sink: setup.sink, distances: BTreeMap::new(), correlations: BTreeMap::new() }))
    },
};

/// The distances. Those above half of the context are left out.
const DISTANCES: [usize; 24] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16_384];
/// The distance `α` whose differences are correlated with those at larger distances, as in the paper.
const ALPHA: usize = 10;
/// The values of `β − α`; the paper's Fig. 13 has 90 (10 and 100).
const APART: [usize; 13] = [1, 2, 4, 8, 16, 32, 64, 90, 128, 256, 512, 1024, 2048];
/// The greatest distance of the fit to near tokens alone.
const NEAR: f64 = 64.0;
/// Width of a bin of the divergence, and the outermost edge, in standard deviations.
const BIN: f64 = 0.2;
const REACH: f64 = 4.0;

struct Locality {
    sink: usize,
    /// Mean, standard deviation and divergence, by distance.
    distances: BTreeMap<usize, Tally>,
    /// The correlation of the differences at [`ALPHA`] and at `ALPHA` plus the key.
    correlations: BTreeMap<usize, Tally>,
}

impl Observation for Locality {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let sink = self.sink;
        let looked = document.each_head(|head| {
            let one = |query: &Query| {
                let scores = head.logits(query).split_off(sink.min(query.tokens));
                (query.head, of_scores(&scores), correlations(&scores))
            };
            (head.layer, head.queries.iter().map(one).collect::<Vec<_>>())
        })?;
        for (layer, queries) in looked {
            for (head, distances, correlations) in queries {
                for (distance, numbers) in distances {
                    self.distances.entry(distance).or_default().add(&document.task, layer, head, &numbers);
                }
                for (apart, r) in correlations {
                    self.correlations.entry(apart).or_default().add(&document.task, layer, head, &[r]);
                }
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { distances, correlations, .. } = *self;
        let columns = [("mean", Unit::Number), ("deviation", Unit::Number), ("KL to normal", Unit::Number)];
        let about = "Differences of scores by distance";
        let mut by_distance = Table::new(
            "locality",
            &format!("{about}; mean over documents, layers, heads and queries"),
            &["distance"],
            &columns,
        );
        let mut by_head = Table::new(
            "locality_by_head",
            &format!("{about}; by layer and head"),
            &["distance", "layer", "head"],
            &columns,
        )
        .detail();
        // For each head, pairs of distance and σ.
        let mut of_heads: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
        for (distance, tally) in &distances {
            if let Some(numbers) = tally.overall() {
                by_distance.push([distance], numbers);
            }
            for ((layer, head), numbers) in tally.heads() {
                of_heads.entry((layer, head)).or_default().push((*distance as f64, numbers[1]));
                by_head.push([*distance, layer, head], numbers);
            }
        }
        let mut fits = Table::new(
            "locality_fit",
            "Deviation by distance as a·ln(Δ+b)+c, by layer and head; error as a share of the span, of the mean, and of the span up to 64 tokens \
             alone",
            &["layer", "head"],
            &["a", "b", "c", "NRMSE", "NRMSE of mean", "NRMSE to 64"].map(|name| (name, Unit::Number)),
        )
        .detail();
        let (mut errors, mut rising) = (Vec::new(), 0);
        for ((layer, head), points) in &of_heads {
            let Some(fit) = fit_logarithm(points) else { continue };
            let near: Vec<(f64, f64)> = points.iter().copied().filter(|(distance, _)| *distance <= NEAR).collect();
            let near = fit_logarithm(&near).map_or(f64::NAN, |fit| fit.error);
            fits.push([*layer, *head], [fit.a, fit.b, fit.c, fit.error, fit.error * span_of_mean(points), near]);
            errors.push((*layer, *head, fit.error));
            rising += usize::from(fit.a > 0.0);
        }
        let (correlated, correlated_by_head) = correlation_tables(&correlations);
        let good = errors.iter().filter(|error| error.2 <= 0.1).count();
        let all = errors.len();
        let notes = vec![format!(
            "the deviation rises with the distance in {rising} of {all} heads; a logarithm fits it within 0.1 (NRMSE) in {good}"
        )];
        let drawings = vec![
            Drawing::Lines(deviations(&distances, &of_heads)),
            Drawing::Map(Map {
                name: "locality_fit".to_owned(),
                title: "Error of the logarithmic fit by layer and query head".to_owned(),
                label: "NRMSE".to_owned(),
                panels: vec![("NRMSE".to_owned(), errors)],
            }),
            Drawing::Lines(correlation_lines(&correlations)),
        ];
        Findings { tables: vec![by_distance, correlated, fits, by_head, correlated_by_head], drawings, notes }
    }
}

/// The correlation by `β − α`, over all heads and by head.
fn correlation_tables(correlations: &BTreeMap<usize, Tally>) -> (Table, Table) {
    let columns = [("r", Unit::Number)];
    let about = format!("Correlation of score differences at {ALPHA} tokens and at larger distances");
    let mut by_distance = Table::new(
        "locality_correlation",
        &format!("{about}; mean over documents, layers, heads and queries"),
        &["apart"],
        &columns,
    );
    let keys = ["apart", "layer", "head"];
    let mut by_head =
        Table::new("locality_correlation_by_head", &format!("{about}; by layer and head"), &keys, &columns).detail();
    for (apart, tally) in correlations {
        tally.overall().into_iter().for_each(|numbers| by_distance.push([apart], numbers));
        tally.heads().into_iter().for_each(|((layer, head), numbers)| by_head.push([*apart, layer, head], numbers));
    }
    (by_distance, by_head)
}

fn correlation_lines(correlations: &BTreeMap<usize, Tally>) -> Lines {
    let point = |(apart, tally): (&usize, &Tally)| {
        let heads = || tally.panel(0).into_iter().map(|cell| cell.2);
        let ends = (heads().fold(f64::INFINITY, f64::min), heads().fold(f64::NEG_INFINITY, f64::max));
        Some(Point { x: *apart as f64, y: tally.overall()?[0], ends: Some(ends) })
    };
    let independent = correlations.keys().map(|apart| Point::at(*apart as f64, 0.5)).collect();
    let series = vec![
        ("mean over heads, and range".to_owned(), correlations.iter().filter_map(point).collect()),
        ("independent scores".to_owned(), independent),
    ];
    Lines {
        name: "locality_correlation".to_owned(),
        title: format!("Score differences at {ALPHA} tokens and at larger distances"),
        x_label: format!("distance beyond {ALPHA} (tokens)"),
        y_label: "correlation".to_owned(),
        log_x: true,
        log_y: false,
        panels: vec![Panel { title: String::new(), series }],
    }
}

/// Returns the correlation of `sᵢ₊₁₀ − sᵢ` and `sᵢ₊β − sᵢ` over all `i`, by `β − 10`. Pairs where either does not vary are left out.
fn correlations(scores: &[f64]) -> Vec<(usize, f64)> {
    let near = APART.iter().take_while(|apart| 2 * (ALPHA + **apart) <= scores.len());
    let of_apart = |apart: &usize| {
        let pairs = scores.windows(ALPHA + apart + 1).map(|window| {
            let first = window[0];
            (window[ALPHA] - first, window[ALPHA + apart] - first)
        });
        Some((*apart, correlation(&pairs.collect::<Vec<_>>())?.mean))
    };
    near.filter_map(of_apart).collect()
}

/// Returns mean, standard deviation and divergence by distance.
fn of_scores(scores: &[f64]) -> Vec<(usize, Vec<f64>)> {
    let near = DISTANCES.iter().take_while(|distance| 2 * **distance <= scores.len());
    let of_distance = |distance: &usize| {
        let differences: Vec<f64> = scores.windows(distance + 1).map(|window| window[*distance] - window[0]).collect();
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let deviation = (differences.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
        (*distance, vec![mean, deviation, divergence(&differences, mean, deviation)])
    };
    near.map(of_distance).collect()
}

/// The divergence of numbers from a normal distribution with the same mean and deviation.
fn divergence(numbers: &[f64], mean: f64, deviation: f64) -> f64 {
    let bins = (2.0 * REACH / BIN).round() as usize;
    let mut counts = vec![0usize; bins];
    for x in numbers {
        let at = ((x - mean) / deviation.max(f64::MIN_POSITIVE) + REACH) / BIN;
        counts[(at.max(0.0) as usize).min(bins - 1)] += 1;
    }
    let normal = Normal::standard();
    let below = |edge: usize| match edge {
        0 => 0.0,
        edge if edge == bins => 1.0,
        edge => normal.cdf(edge as f64 * BIN - REACH),
    };
    let of_bin = |(bin, count): (usize, &usize)| {
        let p = *count as f64 / numbers.len() as f64;
        if p > 0.0 { p * (p / (below(bin + 1) - below(bin))).ln() } else { 0.0 }
    };
    counts.iter().enumerate().map(of_bin).sum()
}

/// The fit `a·ln(x + b) + c`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fit {
    a: f64,
    b: f64,
    c: f64,
    /// The root mean square residual, over the range of the fitted values.
    error: f64,
}

/// Returns the range of the points' heights over their mean.
fn span_of_mean(points: &[(f64, f64)]) -> f64 {
    let heights = || points.iter().map(|point| point.1);
    let span = heights().fold(f64::NEG_INFINITY, f64::max) - heights().fold(f64::INFINITY, f64::min);
    span * points.len() as f64 / heights().sum::<f64>()
}

/// Returns the best fit; `None` for fewer than four points or constant values. `b` is searched on a coarse, then on a fine logarithmic
/// grid.
fn fit_logarithm(points: &[(f64, f64)]) -> Option<Fit> {
    const LEAST: usize = 4;
    const STEPS: i32 = 40;
    let most = points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let span = most - points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    if points.len() < LEAST || span <= 0.0 {
        return None;
    }
    let best = |bs: &mut dyn Iterator<Item = f64>| {
        bs.filter_map(|b| fit_line(points, b, span)).min_by(|one, other| one.error.total_cmp(&other.error))
    };
    // `b` from 0.01 to 10,000.
    let coarse = best(&mut (-STEPS / 2..=STEPS).map(|step| 10f64.powf(f64::from(step) / 10.0)))?;
    best(&mut (-STEPS..=STEPS).map(|step| coarse.b * 10f64.powf(f64::from(step) / f64::from(STEPS) / 10.0)))
}

/// Returns the best fit for a given `b`.
fn fit_line(points: &[(f64, f64)], b: f64, span: f64) -> Option<Fit> {
    let n = points.len() as f64;
    let log = |x: f64| (x + b).ln();
    let (mean_x, mean_y) =
        (points.iter().map(|p| log(p.0)).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (log(p.0) - mean_x).powi(2)).sum();
    if spread <= 0.0 {
        return None;
    }
    let a = points.iter().map(|p| (log(p.0) - mean_x) * (p.1 - mean_y)).sum::<f64>() / spread;
    let c = mean_y - a * mean_x;
    let left: f64 = points.iter().map(|p| (a * log(p.0) + c - p.1).powi(2)).sum();
    Some(Fit { a, b, c, error: (left / n).sqrt() / span })
}

/// Deviation, mean and divergence against distance: the means over all heads, with the range of the heads.
fn deviations(distances: &BTreeMap<usize, Tally>, of_heads: &BTreeMap<(usize, usize), Vec<(f64, f64)>>) -> Lines {
    let line = |at: usize| {
        let point = |(distance, tally): (&usize, &Tally)| {
            let values: Vec<f64> = tally.panel(at).into_iter().map(|cell| cell.2).collect();
            let ends = (
                values.iter().copied().fold(f64::INFINITY, f64::min),
                values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            );
            Some(Point { x: *distance as f64, y: tally.overall()?[at], ends: Some(ends) })
        };
        distances.iter().filter_map(point).collect::<Vec<_>>()
    };
    let mean_deviation: Vec<(f64, f64)> = line(1).iter().map(|point| (point.x, point.y)).collect();
    let fitted = fit_logarithm(&mean_deviation).map(|fit| {
        let at = |(x, _): &(f64, f64)| Point::at(*x, fit.a * (x + fit.b).ln() + fit.c);
        (format!("{:.2} ln(Δ + {:.2}) + {:.2}", fit.a, fit.b, fit.c), mean_deviation.iter().map(at).collect())
    });
    let named = |name: &str, at: usize| (name.to_owned(), line(at));
    let deviation = std::iter::once(named("mean over heads, and range", 1)).chain(fitted).collect();
    let panel = |title: &str, series| Panel { title: title.to_owned(), series };
    Lines {
        name: "locality".to_owned(),
        title: format!("Differences of scores by distance, {} heads", of_heads.len()),
        x_label: "distance (tokens)".to_owned(),
        y_label: "difference".to_owned(),
        log_x: true,
        log_y: false,
        panels: vec![
            panel("deviation", deviation),
            panel("mean", vec![named("mean over heads, and range", 0)]),
            panel("divergence from normal", vec![named("mean over heads, and range", 2)]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    #[test]
    fn differences_are_those_of_every_two_tokens_so_far_apart() {
        let head = drawn(80, 1, 4, 11);
        let query = &head.queries[0];
        let logits = head.logits(query);
        let found = of_scores(&logits[4..]);
        // 77 scores have distances up to 38.
        assert_eq!(found.last().unwrap().0, 32);
        for (distance, numbers) in found {
            let mut differences = Vec::new();
            for i in 4..81 {
                for j in 4..81 {
                    if j == i + distance {
                        differences.push(logits[j] - logits[i]);
                    }
                }
            }
            let n = differences.len() as f64;
            let mean = differences.iter().sum::<f64>() / n;
            let square = differences.iter().map(|x| x * x).sum::<f64>() / n;
            assert!((numbers[0] - mean).abs() < 1e-9 && (numbers[1] - (square - mean * mean).sqrt()).abs() < 1e-9);
        }
    }

    #[test]
    fn correlations_are_those_of_every_token_and_a_half_where_nothing_is_near() {
        let head = drawn(200, 1, 4, 7);
        let scores = &head.logits(&head.queries[0])[4..];
        let found = correlations(scores);
        // 197 scores have β up to 98.
        assert_eq!(found.iter().map(|(apart, _)| *apart).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
        for (apart, r) in found {
            let beta = 10 + apart;
            let of = |i: usize, distance: usize| scores[i + distance] - scores[i];
            let n = (0..scores.len() - beta).count() as f64;
            let mean = |distance: usize| (0..scores.len() - beta).map(|i| of(i, distance)).sum::<f64>() / n;
            let (x, y) = (mean(10), mean(beta));
            let sum = |f: &dyn Fn(f64, f64) -> f64| {
                (0..scores.len() - beta).map(|i| f(of(i, 10) - x, of(i, beta) - y)).sum::<f64>()
            };
            let naive = sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
            assert!((r - naive).abs() < 1e-9, "{apart}: {r} {naive}");
            // Random keys have no locality.
            assert!((r - 0.5).abs() < 0.2, "{apart}: {r}");
        }
        assert!(correlations(&[1.0; 100]).is_empty(), "nothing varies");
    }

    #[test]
    fn the_divergence_of_a_normal_is_small_and_that_of_two_points_known() {
        let normal = Normal::standard();
        let drawn: Vec<f64> = (0..20_000).map(|i| normal.inverse_cdf((f64::from(i) + 0.5) / 20_000.0)).collect();
        assert!(divergence(&drawn, 0.0, 1.0).abs() < 1e-3);
        // Half of the numbers at −1 and half at 1, each in a bin of probability Φ(−0.8)−Φ(−1), or in its mirror image.
        let two = [-0.9, 0.9];
        let share = normal.cdf(-0.8) - normal.cdf(-1.0);
        assert!((divergence(&two, 0.0, 1.0) - (0.5 / share).ln()).abs() < 1e-9);
    }

    #[test]
    fn a_logarithm_is_found_again() {
        let points: Vec<(f64, f64)> =
            DISTANCES[..16].iter().map(|x| (*x as f64, 0.7 * (*x as f64 + 5.0).ln() - 0.3)).collect();
        let fit = fit_logarithm(&points).unwrap();
        assert!((fit.a - 0.7).abs() < 0.01 && (fit.b - 5.0).abs() < 0.2 && (fit.c + 0.3).abs() < 0.05, "{fit:?}");
        assert!(fit.error < 1e-3);
        let line: Vec<(f64, f64)> = (1..10).map(|x| (f64::from(x), f64::from(x * x))).collect();
        assert!(fit_logarithm(&line).unwrap().error > 0.01, "no parabola is a logarithm");
        assert_eq!(fit_logarithm(&points[..3]), None);
        assert_eq!(span_of_mean(&[(1.0, 2.0), (2.0, 6.0), (3.0, 4.0)]), 1.0, "a span of 4 over a mean of 4");
    }
}
