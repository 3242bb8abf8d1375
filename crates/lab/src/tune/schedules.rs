//! How to divide a method's budget among layers, with the total number of attended tokens unchanged.
//!
//! Prompts are read densely. On some of them, two things are measured for each layer: the entropy of attention, and the error of the
//! attention output at several budgets. From these numbers [`Schedule`]s of equal total are made: uniform, growing with depth, falling with
//! depth, in proportion to entropy, and greedy by measured error. Then the method runs with each schedule on as many *other* prompts; the
//! answer is the schedule with the smallest error.
//!
//! **Greedy.** A layer's error is known at some multiples of the mean budget; in between it is taken from the lower convex hull of these
//! points. All layers begin with the smallest multiple. The rest of the total is given out in steps of 1/16 of the mean, each to the layer
//! whose error falls most. On convex curves this gives the smallest sum of errors for the total.

use anyhow::Result;
use serde::Serialize;

use super::grid::written;
use super::shapes::Interval;
use crate::analyze::head::{Head, distance, norm, softmax};
use crate::analyze::picked::estimate;
use crate::analyze::{Document, Method};
use spattn_attention::{Budget, Configured, Context, MethodSpec, Policy, Schedule};
use spattn_base::error::UsageError;
use spattn_model::OpenModel;
use spattn_stats::{Estimate, Sample, mean, mean_interval};

/// Multiples of the mean budget at which errors are measured.
pub const LEVELS: [f64; 10] = [0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// The number of steps of the greedy schedule in one mean budget.
const STEPS: u32 = 16;
/// The mean of the weights of a schedule by entropy.
const ENTROPY_UNIT: f64 = 100.0;
/// Keys that set a budget in tokens.
const BUDGETS: [&str; 3] = ["k", "ratio", "density"];
const SCHEDULE: &str = "schedule";

// ---- the method ----

/// A method whose budget is in tokens, with that budget.
#[derive(Debug)]
pub struct Budgeted {
    /// The spec without the budget.
    rest: MethodSpec,
    /// Key and value of the budget as written.
    given: (String, String),
    budget: Budget,
    /// The method with that budget at every layer.
    method: Method,
    policy: Policy,
    /// Whether each layer is dense.
    dense: Vec<bool>,
}

impl Budgeted {
    /// Reads the method of a spec that sets a budget, for a model.
    ///
    /// # Errors
    /// If the spec sets no budget, already sets a schedule, or its budget is not in tokens; if the method cannot have budgets by layer, or
    /// fewer than two layers are sparse; as [`Method::read_all`].
    pub fn new(spec: &MethodSpec, policy: &Policy, model: &OpenModel) -> Result<Self> {
        let text = written(spec);
        let mut rest = spec.clone();
        let Some(at) = rest.params.iter().position(|(key, _)| BUDGETS.contains(&key.as_str())) else {
            return Err(UsageError::new(format!("`{text}` sets no budget to distribute over layers"))
                .hint("give the mean budget in the spec: topk:k=64, quest:ratio=0.05 or sparq:density=0.1")
                .into());
        };
        let given = rest.params.remove(at);
        if rest.params.iter().any(|(key, _)| key == SCHEDULE) {
            return Err(UsageError::new(format!("`{text}` sets `{SCHEDULE}` already"))
                .hint(format!("leave `{SCHEDULE}` out: --schedules finds one"))
                .into());
        }
        // Reading a spec with a schedule fails if the method cannot have budgets by layer.
        read(&with(&with(&rest, &given), &schedule_of(&Schedule::Linear)), policy, model)?;
        let method = read(&with(&rest, &given), policy, model)?;
        let dense = model.dimensions.layer_specs().dense(&method.configured.policy);
        if dense.iter().filter(|dense| !**dense).count() < 2 {
            return Err(UsageError::new("fewer than two layers are sparse: there is no budget to distribute")
                .hint("leave fewer layers dense")
                .into());
        }
        let wrong = || UsageError::new(format!("`{text}` has no budget in tokens"));
        let budget = match given.0.as_str() {
            "k" => Budget::Tokens(given.1.parse().map_err(|_| wrong())?),
            "ratio" => Budget::Ratio(given.1.parse().map_err(|_| wrong())?),
            _ => Budget::Density(given.1.parse().map_err(|_| wrong())?),
        };
        Ok(Self { rest, given, budget, method, policy: policy.clone(), dense })
    }

    /// Returns the method with its mean budget at every layer.
    pub fn method(&self) -> &Configured {
        &self.method.configured
    }

    /// Returns the spec with the mean budget.
    pub fn base(&self) -> String {
        written(&with(&self.rest, &self.given))
    }

    /// Returns the spec with a schedule.
    pub fn spec(&self, schedule: &Schedule) -> String {
        match schedule.is_uniform() {
            true => self.base(),
            false => written(&with(&with(&self.rest, &self.given), &schedule_of(schedule))),
        }
    }

    /// Returns the layers that are not dense, ascending.
    pub fn layers(&self) -> Vec<usize> {
        (0..self.dense.len()).filter(|layer| !self.dense[*layer]).collect()
    }

    /// Returns the mean number of tokens that a layer selects after a document's context, and the number of candidates.
    fn tokens(&self, document: &Document) -> (usize, usize) {
        let (context, method) = (document.context(), self.method());
        let candidates = method.method.exact(&method.policy, context, context).candidates(context);
        (self.budget.tokens(Context::new(context + 1, &candidates)), candidates.len())
    }

    /// Returns the method at a multiple of its budget.
    fn at_level(&self, document: &Document, level: f64, model: &OpenModel) -> Result<Configured> {
        let (mean, candidates) = self.tokens(document);
        let tokens = ((level * mean as f64).round() as usize).clamp(1, candidates.max(1));
        Ok(read(&with(&self.rest, &("k".to_owned(), tokens.to_string())), &self.policy, model)?.configured)
    }

    /// Returns the entropy of exact attention in nats for each layer that is not dense: the mean over heads and queries.
    ///
    /// # Errors
    /// If keys and values cannot be read.
    pub fn entropies(&self, document: &Document) -> Result<Vec<f64>> {
        let of_head = |head: &Head| -> (usize, f64) {
            let of_query = |weights: Vec<f64>| weights.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum::<f64>();
            let all: Vec<f64> = head.queries.iter().map(|query| of_query(softmax(&head.logits(query)))).collect();
            (head.layer, mean(&all))
        };
        Ok(self.by_layer(document.each_head(of_head)?))
    }

    /// Returns the relative error of the attention output `‖ô−o‖/‖o‖` at a multiple of the budget, for each layer that is not dense.
    ///
    /// # Errors
    /// If the method cannot run at that budget.
    pub fn errors_at(&self, document: &Document, level: f64, model: &OpenModel) -> Result<Vec<f64>> {
        Ok(self.measured(document, &self.at_level(document, level, model)?)?.0)
    }

    /// Returns the error under a schedule for each layer that is not dense, followed by the share of the context attended.
    ///
    /// # Errors
    /// If the method cannot run with the schedule.
    pub fn checked(&self, document: &Document, schedule: &Schedule, model: &OpenModel) -> Result<Vec<f64>> {
        let spec = with(&with(&self.rest, &self.given), &schedule_of(schedule));
        let (mut numbers, density) = self.measured(document, &read(&spec, &self.policy, model)?.configured)?;
        numbers.push(density);
        Ok(numbers)
    }

    /// Returns the error by layer, and the share of the context attended.
    fn measured(&self, document: &Document, method: &Configured) -> Result<(Vec<f64>, f64)> {
        let choices = document.choices(method, &mut document.cache())?;
        let of_head = |head: &Head| -> (usize, [f64; 2]) {
            let (mut errors, mut densities) = (Vec::new(), Vec::new());
            for query in &head.queries {
                let logits = head.logits(query);
                let picked = &choices[document.at(head.layer)][query.step][head.kv_head];
                let found = estimate(&logits, picked, query.in_group);
                let exact = head.output(&softmax(&logits));
                errors.push(distance(&found.output(head), &exact) / norm(&exact).max(f64::MIN_POSITIVE));
                densities.push(found.weights.len() as f64 / query.tokens as f64);
            }
            (head.layer, [mean(&errors), mean(&densities)])
        };
        let heads = document.each_head(of_head)?;
        let of = |which: usize| self.by_layer(heads.iter().map(|(layer, both)| (*layer, both[which])).collect());
        Ok((of(0), mean(&of(1))))
    }

    /// Returns for each layer that is not dense the mean over its heads.
    fn by_layer(&self, heads: Vec<(usize, f64)>) -> Vec<f64> {
        let of_layer =
            |layer: usize| mean(&heads.iter().filter(|(l, _)| *l == layer).map(|(_, x)| *x).collect::<Vec<_>>());
        self.layers().into_iter().map(of_layer).collect()
    }

    /// Makes the schedules to compare, from the entropy and the error curve of each layer that is not dense.
    pub fn schedules(&self, entropies: &[f64], curves: &[Vec<f64>]) -> Vec<Named> {
        let weights = |of_sparse: Vec<u32>| {
            let mut next = of_sparse.into_iter();
            let of_layer = |dense: &bool| if *dense { 0 } else { next.next().unwrap_or(0) };
            Schedule::Weights(self.dense.iter().map(of_layer).collect())
        };
        let layers = entropies.len();
        let falling = (0..layers).map(|rank| (layers - rank) as u32).collect();
        let all: f64 = entropies.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let by_entropy =
            entropies.iter().map(|h| (ENTROPY_UNIT * h * layers as f64 / all).round().max(1.0) as u32).collect();
        vec![
            Named { name: "uniform", schedule: Schedule::Uniform },
            Named { name: "linear", schedule: Schedule::Linear },
            Named { name: "falling", schedule: weights(falling) },
            Named { name: "by entropy", schedule: weights(by_entropy) },
            Named { name: "greedy by error", schedule: weights(greedy(curves)) },
        ]
    }

    /// Returns the budget of each layer that is not dense under a schedule, as a multiple of the mean.
    pub fn multiples(&self, schedule: &Schedule) -> Vec<f64> {
        const UNIT: usize = 1 << 24;
        let share = |layer| schedule.share(&self.dense, layer).of(UNIT) as f64 / UNIT as f64;
        self.layers().into_iter().map(share).collect()
    }
}

fn with(spec: &MethodSpec, param: &(String, String)) -> MethodSpec {
    let mut spec = spec.clone();
    spec.params.push(param.clone());
    spec
}

fn schedule_of(schedule: &Schedule) -> (String, String) {
    (SCHEDULE.to_owned(), schedule.to_string())
}

fn read(spec: &MethodSpec, policy: &Policy, model: &OpenModel) -> Result<Method> {
    Method::read_all(&[written(spec)], policy, model)?
        .pop()
        .ok_or_else(|| UsageError::new("no method was given").hint("for example -m topk:k=64").into())
}

// ---- schedules ----

/// A schedule with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// A name of a few words.
    pub name: &'static str,
    /// The schedule.
    pub schedule: Schedule,
}

/// Returns the corners `(level, error)` of the lower convex hull of an error curve over [`LEVELS`]. The hull never rises.
fn hull(errors: &[f64]) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    let mut least = f64::INFINITY;
    for (level, error) in LEVELS.into_iter().zip(errors) {
        least = least.min(*error);
        let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
        let next = (level, least);
        while let [.., a, b] = corners.as_slice() {
            if slope(*a, *b) < slope(*b, next) {
                break;
            }
            corners.pop();
        }
        corners.push(next);
    }
    corners
}

/// Returns the error on a hull at a level: that of the first corner below it, and that of the last corner beyond it.
fn error_at(hull: &[(f64, f64)], level: f64) -> f64 {
    let Some(beyond) = hull.iter().position(|(corner, _)| *corner >= level) else {
        return hull.last().map_or(0.0, |(_, error)| *error);
    };
    let (right, before) = (hull[beyond], beyond.checked_sub(1).map(|at| hull[at]));
    match before {
        None => right.1,
        Some(left) => left.1 + (level - left.0) / (right.0 - left.0) * (right.1 - left.1),
    }
}

/// Distributes weights with mean [`STEPS`] over the layers, by their error curves over [`LEVELS`].
fn greedy(curves: &[Vec<f64>]) -> Vec<u32> {
    let hulls: Vec<Vec<(f64, f64)>> = curves.iter().map(|errors| hull(errors)).collect();
    let unit = 1.0 / f64::from(STEPS);
    let least = (LEVELS[0] / unit).round() as u32;
    let mut weights = vec![least; curves.len()];
    let gain = |layer: usize, weight: u32| {
        let at = |weight: u32| error_at(&hulls[layer], f64::from(weight) * unit);
        at(weight) - at(weight + 1)
    };
    for _ in 0..(STEPS - least) as usize * curves.len() {
        // Ties go to the layer with the smaller weight, then to the first.
        let best = (0..weights.len()).min_by(|a, b| {
            let [of_a, of_b] = [a, b].map(|layer| gain(*layer, weights[*layer]));
            of_b.total_cmp(&of_a).then(weights[*a].cmp(&weights[*b]))
        });
        if let Some(best) = best {
            weights[best] += 1;
        }
    }
    weights
}

// ---- results ----

/// A schedule with its measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredSchedule {
    /// The schedule's name.
    pub name: String,
    /// The schedule as written in a spec.
    pub schedule: String,
    /// The spec to use.
    pub spec: String,
    /// The budget of each layer that is not dense, as a multiple of the mean.
    pub multiples: Vec<f64>,
    /// The mean error that the layers' error curves predict.
    pub predicted: f64,
    /// The mean error over layers, with its 95 % interval over prompts.
    pub error: Interval,
    /// The difference to the error of the uniform schedule on the same prompts.
    pub difference: Interval,
    /// The share of the context attended.
    pub density: Interval,
    /// The error of each layer that is not dense.
    pub errors: Vec<f64>,
}

/// The result of the search for a schedule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScheduleOutcome {
    /// The method with its budget.
    pub base: String,
    /// Layers that are not dense.
    pub layers: Vec<usize>,
    /// Entropy of attention at each of `layers`, in nats.
    pub entropies: Vec<f64>,
    /// The error at each of `layers` at each of [`LEVELS`].
    pub curves: Vec<Vec<f64>>,
    /// The schedules, the uniform one first.
    pub schedules: Vec<MeasuredSchedule>,
    /// Index into `schedules` of the one with the smallest error.
    pub chosen: usize,
    /// The spec with that schedule.
    pub spec: String,
    /// The number of prompts that the schedules were made from. As many others measure them.
    pub prompts: usize,
}

/// Makes the result from the measurements of `schedules`, `[schedule][prompt]`, that [`Budgeted::checked`] returns.
pub fn outcome(
    method: &Budgeted,
    entropies: Vec<f64>,
    curves: Vec<Vec<f64>>,
    schedules: &[Named],
    measured: &[Vec<Vec<f64>>],
) -> ScheduleOutcome {
    let layers = method.layers();
    let hulls: Vec<Vec<(f64, f64)>> = curves.iter().map(|errors| hull(errors)).collect();
    let split = |numbers: &Vec<f64>| (mean(&numbers[..layers.len()]), numbers[layers.len()]);
    let errors_of = |of: &Vec<Vec<f64>>| of.iter().map(|numbers| split(numbers).0).collect::<Vec<f64>>();
    let uniform = measured.first().map(errors_of).unwrap_or_default();
    let of_schedule = |(named, measured): (&Named, &Vec<Vec<f64>>)| {
        let errors = errors_of(measured);
        let less: Vec<f64> = errors.iter().zip(&uniform).map(|(own, uniform)| own - uniform).collect();
        let densities: Vec<f64> = measured.iter().map(|numbers| split(numbers).1).collect();
        let multiples = method.multiples(&named.schedule);
        let predicted: Vec<f64> = hulls.iter().zip(&multiples).map(|(hull, level)| error_at(hull, *level)).collect();
        let at = |layer: usize| mean(&measured.iter().map(|numbers| numbers[layer]).collect::<Vec<_>>());
        MeasuredSchedule {
            name: named.name.to_owned(),
            schedule: named.schedule.to_string(),
            spec: method.spec(&named.schedule),
            multiples,
            predicted: mean(&predicted),
            error: interval(&errors).into(),
            difference: signed(interval(&less)),
            density: interval(&densities).into(),
            errors: (0..layers.len()).map(at).collect(),
        }
    };
    let found: Vec<MeasuredSchedule> = schedules.iter().zip(measured).map(of_schedule).collect();
    let chosen = (0..found.len()).min_by(|a, b| found[*a].error.mean.total_cmp(&found[*b].error.mean)).unwrap_or(0);
    ScheduleOutcome {
        base: method.base(),
        layers,
        entropies,
        curves,
        spec: found[chosen].spec.clone(),
        schedules: found,
        chosen,
        prompts: uniform.len(),
    }
}

fn interval(values: &[f64]) -> Estimate {
    mean_interval(&Sample::independent(values)).unwrap_or(Estimate { mean: 0.0, ends: None })
}

/// An interval whose lower end may be negative.
fn signed(estimate: Estimate) -> Interval {
    Interval { mean: estimate.mean, low: estimate.low(), high: estimate.high() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns errors that fall as `scale/level`.
    fn curve(scale: f64) -> Vec<f64> {
        LEVELS.iter().map(|level| scale / level).collect()
    }

    #[test]
    fn a_hull_lies_below_its_points_and_bends_one_way() {
        let errors = [0.9, 0.7, 0.72, 0.4, 0.38, 0.3, 0.31, 0.1, 0.1, 0.05];
        let found = hull(&errors);
        for (level, error) in LEVELS.into_iter().zip(errors) {
            assert!(error_at(&found, level) <= error + 1e-12, "{level}");
        }
        let slopes: Vec<f64> = found.windows(2).map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0)).collect();
        assert!(slopes.is_sorted() && slopes.iter().all(|slope| *slope <= 0.0), "{slopes:?}");
        assert_eq!((found[0], *found.last().unwrap()), ((0.125, 0.9), (6.0, 0.05)));
        assert_eq!((error_at(&found, 0.01), error_at(&found, 9.0)), (0.9, 0.05));
        assert!((error_at(&[(1.0, 0.4), (2.0, 0.2)], 1.25) - 0.35).abs() < 1e-12);
    }

    /// Compares with every way to divide a total in the same steps.
    #[test]
    fn greedy_has_the_least_sum_of_errors_that_a_total_can_have() {
        let curves = [curve(0.05), curve(0.4), vec![0.3; 10]];
        let hulls: Vec<_> = curves.iter().map(|errors| hull(errors)).collect();
        let weights = greedy(&curves);
        let total: u32 = weights.iter().sum();
        assert_eq!(total, 3 * STEPS);
        let sum = |weights: &[u32]| -> f64 {
            weights.iter().zip(&hulls).map(|(w, hull)| error_at(hull, f64::from(*w) / f64::from(STEPS))).sum()
        };
        let mut least = f64::INFINITY;
        for a in 2..=total - 4 {
            for b in 2..=total - 2 - a {
                least = least.min(sum(&[a, b, total - a - b]));
            }
        }
        assert!((sum(&weights) - least).abs() < 1e-12, "{weights:?}: {} instead of {least}", sum(&weights));
        assert_eq!(weights[2], 2, "what no budget helps gets the least");
        assert!(weights[1] > 2 * weights[0], "{weights:?}");
        assert_eq!(greedy(&[curve(0.1), curve(0.1)]), [STEPS; 2], "equals get the same");
    }
}
