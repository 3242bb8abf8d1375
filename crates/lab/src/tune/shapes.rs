//! Finds `K` and `L` of a method that samples by hash collisions: predicts errors from the measured geometry, then checks the best shapes.
//!
//! The paper chooses its shapes by trial. Here the angles between queries and (centred) keys are measured on prompts. From an angle, the
//! collision law gives the probability `u` with which a shape of the grid samples that token. The expected number of samples is `Σu`. For
//! the error, tokens are sampled independently with these probabilities, and the output is estimated as the method does: `Σ (w/u)·v` over
//! `Σ w/u`, where static tokens keep their own weights. The law ignores that tokens share hyperplanes, so that real samples are not
//! independent. Shapes are therefore checked with real tables, on prompts that were not used for the prediction.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::Result;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::grid::written;
use crate::analyze::head::{Head, Query, cosine, distance, norm, softmax, wide};
use crate::analyze::picked::estimate;
use crate::analyze::{Choices, Document};
use spattn_attention::kv::KvDtype;
use spattn_attention::methods::{CollisionLaw, configure};
use spattn_attention::{Configured, MethodSpec, Policy, mix_seed};
use spattn_base::error::UsageError;
use spattn_stats::{Estimate, Sample, mean, mean_interval};

/// The numbers of tables tried with every `K`; the published shapes are among them.
pub const TABLES: [usize; 14] = [10, 15, 20, 30, 40, 50, 75, 100, 120, 150, 180, 220, 260, 300];
/// The numbers of bits tried.
pub const BITS: Range<usize> = 4..13;
/// The number of shapes checked in one reading of the prompts.
const AT_ONCE: usize = 3;
/// The most readings of the prompts before the check gives up.
const MOST_READINGS: usize = 3;
/// Two errors count as equal if the larger is at most this multiple of the smaller.
const AS_GOOD: f64 = 1.02;

/// The requirement on a shape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Attend at most this share of the context, static tokens included, with the smallest error.
    Density(f64),
    /// Have at most this relative error of the attention output, and read the fewest bytes.
    Error(f64),
}

impl FromStr for Target {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let wrong = || {
            UsageError::new(format!("--target: unknown target `{text:.60}`"))
                .hint("write density=0.03, or error=0.1 for the relative error of the attention output")
        };
        let (kind, value) = text.split_once('=').ok_or_else(wrong)?;
        let value = value.parse().ok().filter(|x: &f64| *x > 0.0 && *x < 1.0).ok_or_else(wrong)?;
        match kind {
            "density" => Ok(Self::Density(value)),
            "error" => Ok(Self::Error(value)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Density(density) => write!(f, "density={density}"),
            Self::Error(error) => write!(f, "error={error}"),
        }
    }
}

/// A shape: `K` and `L`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Shape {
    /// Bits of a code (`K`).
    pub bits: usize,
    /// Number of tables (`L`).
    pub tables: usize,
}

/// Returns all shapes of the grid.
pub fn grid() -> Vec<Shape> {
    BITS.flat_map(|bits| TABLES.map(|tables| Shape { bits, tables })).collect()
}

/// The predictions for a shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// The shape.
    #[serde(flatten)]
    pub shape: Shape,
    /// The share of the context attended, static tokens included.
    pub density: f64,
    /// The mean relative error of the attention output.
    pub error: f64,
    /// Bytes that a query head reads in a step: attended keys and values, and the bounds and entries of the buckets that it looks up.
    pub bytes: f64,
    /// Bits of the tables for each token and KV head: the token's entry in each table, and the buckets' starts.
    pub table_bits: f64,
}

/// The measurements of a shape with real tables.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// The predictions for it.
    pub predicted: Predicted,
    /// The share of the context attended: the mean over prompts, with its 95 % interval.
    pub density: Interval,
    /// The mean relative error, with its 95 % interval over prompts.
    pub error: Interval,
    /// Whether the mean meets the target.
    pub meets: bool,
}

/// A mean with its interval. The ends are `None` if there are too few values for an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Self {
        // Shares and errors cannot be negative, but the interval of Student's t over few prompts can be.
        Self { mean: estimate.mean, low: estimate.low().map(|low| low.max(0.0)), high: estimate.high() }
    }
}

/// The result of the search for a shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShapeOutcome {
    /// The spec without a shape.
    pub base: String,
    /// The target.
    pub target: Target,
    /// All shapes of the grid.
    pub predicted: Vec<Predicted>,
    /// The checked shapes, in the order of the checks.
    pub checked: Vec<Checked>,
    /// Index into `checked` of the best shape that meets the target.
    pub chosen: Option<usize>,
    /// The spec with that shape.
    pub spec: Option<String>,
    /// The number of prompts used for the prediction. As many others are used for the check.
    pub prompts: usize,
    /// The share of the context that is static.
    pub fixed: f64,
}

// ---- geometry ----

/// A method that samples by collisions, with `K` and `L` still open.
#[derive(Debug, Clone)]
pub struct Sampler {
    /// The spec without `K` and `L`.
    pub spec: MethodSpec,
    policy: Policy,
    law: CollisionLaw,
}

impl Sampler {
    /// Reads the method of a spec that sets none of `K`, `L` and a density.
    ///
    /// # Errors
    /// If the method does not sample by collisions, or the spec already sets one of these parameters.
    pub fn new(spec: MethodSpec, policy: &Policy) -> Result<Self, UsageError> {
        let configured = configure(&spec, policy)?;
        let Some(law) = CollisionLaw::of(&configured) else {
            return Err(UsageError::new(format!("`{}` has no parameters K and L", configured.label()))
                .hint("--target is for magicpig; leave it out to find the smallest budget of any method"));
        };
        if let Some((key, _)) = spec.params.iter().find(|(key, _)| ["K", "L", "density"].contains(&key.as_str())) {
            return Err(UsageError::new(format!("`{}` sets `{key}` already", configured.label()))
                .hint(format!("leave `{key}` out: --target finds K and L")));
        }
        Ok(Self { spec, policy: configured.policy, law })
    }

    /// Writes the spec, with a shape if one is given.
    pub fn written(&self, shape: Option<Shape>) -> String {
        shape.map_or_else(|| written(&self.spec), |shape| written(&self.spec_of(shape)))
    }

    fn spec_of(&self, shape: Shape) -> MethodSpec {
        let mut spec = self.spec.clone();
        let given = [("K", shape.bits), ("L", shape.tables)].map(|(key, n)| (key.to_owned(), n.to_string()));
        spec.params.extend(given);
        spec
    }

    /// Returns the method with a shape and the hyperplanes of draw `draw`. If the spec sets a seed, all draws are the same.
    fn drawn(&self, shape: Shape, draw: usize) -> Result<Configured, UsageError> {
        const SEED: &str = "seed";
        let mut spec = self.spec_of(shape);
        if !spec.params.iter().any(|(key, _)| key == SEED) {
            spec.params.push((SEED.to_owned(), (draw + 1).to_string()));
        }
        configure(&spec, &self.policy)
    }

    fn is_dense(&self, layer: usize, layers: usize) -> bool {
        self.policy.dense_layers.contains(layer, layers)
    }

    /// Returns the tokens of a context that may be selected.
    fn candidates(&self, context: usize) -> Range<usize> {
        let sink = self.policy.sink.min(context);
        sink..context.saturating_sub(self.policy.local).max(sink)
    }
}

/// One query of a head, with everything needed to predict any shape.
struct Geometry<'a> {
    head: &'a Head,
    candidates: Range<usize>,
    tokens: usize,
    /// For each candidate, the probability that a random hyperplane leaves it on the query's side.
    agreements: Vec<f64>,
    /// Each token's weight under exact attention.
    weights: Vec<f64>,
    /// The mass of the static tokens, and the weighted sum of their values.
    fixed: (f64, Vec<f64>),
    output: Vec<f64>,
}

/// The candidates' keys, centred as the method hashes them, and the length of the longest one.
struct Centred {
    keys: Vec<Vec<f64>>,
    longest: f64,
}

impl Centred {
    fn new(sampler: &Sampler, head: &Head, candidates: Range<usize>) -> Self {
        let mean = if sampler.law.center { head.mean_key(candidates.clone()) } else { vec![0.0; head.d] };
        let centred = |token| wide(head.key(token)).iter().zip(&mean).map(|(k, mean)| k - mean).collect::<Vec<f64>>();
        let keys: Vec<Vec<f64>> = candidates.map(centred).collect();
        let longest = keys.iter().map(|key| norm(key)).fold(0.0, f64::max);
        Self { keys, longest }
    }

    fn cosine(&self, sampler: &Sampler, query: &[f64], at: usize) -> f64 {
        let key = &self.keys[at];
        let of_angle = cosine(query, key);
        // The transform of eq. 8 divides by the length of the longest key, not by the key's own.
        if sampler.law.simple_lsh && self.longest > 0.0 { of_angle * norm(key) / self.longest } else { of_angle }
    }
}

impl<'a> Geometry<'a> {
    fn new(sampler: &Sampler, head: &'a Head, query: &Query, candidates: Range<usize>, centred: &Centred) -> Self {
        let weights = softmax(&head.logits(query));
        let vector = wide(&query.vector);
        let agreement = |at| sampler.law.agreement(centred.cosine(sampler, &vector, at));
        let fixed = || (0..candidates.start).chain(candidates.end..weights.len());
        let mass = fixed().map(|token| weights[token]).sum();
        let sum = head.weighted(fixed().map(|token| (token, weights[token])));
        Self {
            head,
            agreements: (0..candidates.len()).map(agreement).collect(),
            output: head.output(&weights),
            fixed: (mass, sum),
            tokens: query.tokens,
            candidates,
            weights,
        }
    }

    /// Returns the relative error of an estimate from the sampled candidates: those whose random number `luck` is below their probability.
    fn error(&self, probabilities: &[f64], luck: &[f32], floor: f64) -> f64 {
        let (mut mass, mut sum) = self.fixed.clone();
        for (at, (u, luck)) in probabilities.iter().zip(luck).enumerate() {
            if f64::from(*luck) >= *u {
                continue;
            }
            let token = self.candidates.start + at;
            let weight = self.weights[token] / (u + floor);
            mass += weight;
            sum.iter_mut().zip(self.head.value(token)).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        let estimate: Vec<f64> = sum.iter().map(|x| x / mass.max(f64::MIN_POSITIVE)).collect();
        distance(&estimate, &self.output) / norm(&self.output).max(f64::MIN_POSITIVE)
    }
}

// ---- prediction ----

/// Sums over queries of the predictions for each shape of the grid.
pub struct Prediction<'a> {
    sampler: &'a Sampler,
    draws: usize,
    dtype: KvDtype,
    shapes: Vec<Shape>,
    sums: Vec<[f64; 3]>,
    queries: usize,
    context: f64,
    fixed: f64,
    d: usize,
    documents: usize,
}

impl<'a> Prediction<'a> {
    /// Starts with empty sums. For each query and shape, the sample is drawn `draws` times.
    pub fn new(sampler: &'a Sampler, draws: usize, dtype: KvDtype) -> Self {
        let shapes = grid();
        let sums = vec![[0.0; 3]; shapes.len()];
        Self { sampler, draws, dtype, shapes, sums, queries: 0, context: 0.0, fixed: 0.0, d: 0, documents: 0 }
    }

    /// Returns the sums over a document's queries, for [`take`](Self::take): first the number of queries, tokens of context, channels, and
    /// the static share; then density, error and bucket entries of each shape.
    ///
    /// # Errors
    /// If all tokens are static, or keys and values cannot be read.
    pub fn look(&self, document: &Document) -> Result<Vec<f64>> {
        let candidates = self.sampler.candidates(document.context());
        if candidates.is_empty() {
            return Err(UsageError::new("sink and recent window cover the whole prompt: there is nothing to sample")
                .hint("take a longer --length, or a smaller --sink and --local")
                .into());
        }
        let layers = document.all_layers();
        let of_head = |head: &Head| -> (Vec<[f64; 3]>, usize) {
            let mut sums = vec![[0.0; 3]; self.shapes.len()];
            if self.sampler.is_dense(head.layer, layers) {
                return (sums, 0);
            }
            let centred = Centred::new(self.sampler, head, candidates.clone());
            for query in &head.queries {
                let geometry = Geometry::new(self.sampler, head, query, candidates.clone(), &centred);
                let place = [document.seed(), head.layer as u64, query.head as u64, query.step as u64];
                let seed = place.into_iter().fold(0, mix_seed);
                self.add(&geometry, seed, &mut sums);
            }
            (sums, head.queries.len())
        };
        let (mut all, mut queries) = (vec![[0.0; 3]; self.shapes.len()], 0);
        for (sums, own) in document.each_head(of_head)? {
            all.iter_mut().flatten().zip(sums.iter().flatten()).for_each(|(all, own)| *all += own);
            queries += own;
        }
        let fixed = 1.0 - candidates.len() as f64 / document.ids.len() as f64;
        let mut numbers = vec![queries as f64, document.context() as f64, document.d() as f64, fixed];
        numbers.extend(all.into_iter().flatten());
        Ok(numbers)
    }

    /// Adds the sums that [`look`](Self::look) returned for a document.
    pub fn take(&mut self, numbers: &[f64]) {
        let (about, sums) = numbers.split_at(4);
        self.sums.iter_mut().flatten().zip(sums).for_each(|(all, own)| *all += own);
        self.queries += about[0] as usize;
        self.context += about[1];
        self.d = about[2] as usize;
        self.fixed += about[3];
        self.documents += 1;
    }

    /// Adds density, error and bucket entries for each shape. All shapes use the same random numbers.
    fn add(&self, geometry: &Geometry<'_>, seed: u64, sums: &mut [[f64; 3]]) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = geometry.candidates.len();
        let lucks: Vec<Vec<f32>> = (0..self.draws).map(|_| (0..count).map(|_| rng.random()).collect()).collect();
        let law = &self.sampler.law;
        let fixed = (geometry.tokens - count) as f64;
        let mut collisions: BTreeMap<usize, f64> = BTreeMap::new();
        for (shape, sums) in self.shapes.iter().zip(sums) {
            let Shape { bits, tables } = *shape;
            let in_bucket = *collisions
                .entry(bits)
                .or_insert_with(|| geometry.agreements.iter().map(|p| p.powi(bits as i32)).sum());
            let probabilities: Vec<f64> = geometry.agreements.iter().map(|p| law.sampled(bits, tables, *p)).collect();
            let sampled: f64 = probabilities.iter().sum();
            let errors: f64 = lucks.iter().map(|luck| geometry.error(&probabilities, luck, law.floor)).sum();
            sums[0] += (fixed + sampled) / geometry.tokens as f64;
            sums[1] += errors / self.draws as f64;
            sums[2] += in_bucket * tables as f64;
        }
    }

    /// Returns the mean share of the context that is static.
    pub fn fixed(&self) -> f64 {
        self.fixed / self.documents.max(1) as f64
    }

    /// Returns the predictions for each shape.
    pub fn finish(&self) -> Vec<Predicted> {
        let queries = self.queries.max(1) as f64;
        let context = self.context / self.documents.max(1) as f64;
        let entry = if context < 65_536.0 { 2.0 } else { 4.0 };
        let one = |(shape, sums): (&Shape, &[f64; 3])| {
            let [density, error, entries] = sums.map(|sum| sum / queries);
            let of_token = (2 * self.d * self.dtype.bytes()) as f64;
            let tables = shape.tables as f64;
            Predicted {
                shape: *shape,
                density,
                error,
                // A table gives the start and the end of each bucket that is looked up.
                bytes: density * context * of_token + (entries + 2.0 * tables) * entry,
                table_bits: 8.0 * tables * entry * (1.0 + ((1u64 << shape.bits) + 1) as f64 / context),
            }
        };
        self.shapes.iter().zip(&self.sums).map(one).collect()
    }
}

/// Returns the indices of the shapes to try, in this order: of the shapes that are predicted to meet a target, the best one for each
/// number of bits, best first.
pub fn order(predicted: &[Predicted], target: Target) -> Vec<usize> {
    let meets = |p: &Predicted| match target {
        Target::Density(density) => p.density <= density,
        Target::Error(error) => p.error <= error,
    };
    let better = |a: &Predicted, b: &Predicted| match target {
        // With equal errors, the shape with the smaller tables is better.
        Target::Density(_) if a.error.max(b.error) <= AS_GOOD * a.error.min(b.error) => {
            a.table_bits.total_cmp(&b.table_bits)
        }
        Target::Density(_) => a.error.total_cmp(&b.error),
        Target::Error(_) => a.bytes.total_cmp(&b.bytes),
    };
    // First find the best shape for each number of bits. The comparison is not transitive, so a sort could fail.
    let mut best: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, p) in predicted.iter().enumerate().filter(|(_, p)| meets(p)) {
        let of_bits = best.entry(p.shape.bits).or_insert(at);
        if better(p, &predicted[*of_bits]).is_lt() {
            *of_bits = at;
        }
    }
    let mut left: Vec<usize> = best.into_values().collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let first = (1..left.len()).fold(0, |first, at| {
            if better(&predicted[left[at]], &predicted[left[first]]).is_lt() { at } else { first }
        });
        order.push(left.remove(first));
    }
    order
}

/// Returns the index of the shape that is predicted to come nearest to the target, for a target that no shape meets.
pub fn nearest(predicted: &[Predicted], target: Target) -> Option<usize> {
    let by = |p: &Predicted| match target {
        Target::Density(_) => p.density,
        Target::Error(_) => p.error,
    };
    (0..predicted.len()).min_by(|a, b| by(&predicted[*a]).total_cmp(&by(&predicted[*b])))
}

// ---- the check ----

/// Measures density and error of a shape on one document: the means over queries and over draws of its hyperplanes.
///
/// # Errors
/// If the method rejects the shape, or keys and values cannot be read.
pub fn measure(sampler: &Sampler, shape: Shape, draws: usize, document: &Document) -> Result<[f64; 2]> {
    let of_draw = |draw: usize| {
        let method = sampler.drawn(shape, draw)?;
        let mut cache = document.cache().with_step_seed(mix_seed(document.seed(), draw as u64));
        Ok(document.choices(&method, &mut cache)?)
    };
    let choices: Vec<Choices> = (0..draws).map(of_draw).collect::<Result<_>>()?;
    let layers = document.all_layers();
    let of_head = |head: &Head| {
        let mut sums = [0.0; 3];
        if sampler.is_dense(head.layer, layers) {
            return sums;
        }
        let layer = document.at(head.layer);
        for query in &head.queries {
            let logits = head.logits(query);
            let exact = head.output(&softmax(&logits));
            for choices in &choices {
                let estimate = estimate(&logits, &choices[layer][query.step][head.kv_head], query.in_group);
                let off = distance(&estimate.output(head), &exact) / norm(&exact).max(f64::MIN_POSITIVE);
                let own = [estimate.weights.len() as f64 / query.tokens as f64, off, 1.0];
                sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
        }
        sums
    };
    let mut all = [0.0; 3];
    for sums in document.each_head(of_head)? {
        all.iter_mut().zip(sums).for_each(|(all, own)| *all += own);
    }
    Ok([all[0] / all[2].max(1.0), all[1] / all[2].max(1.0)])
}

/// Tries shapes in the order of [`order`], a few at a time, until one meets the target. `measure` returns density and error of each shape
/// on each document. The predictions for the shapes not tried yet are corrected by the mean ratio of measurement to prediction.
///
/// # Errors
/// If a shape cannot be measured.
pub fn check(
    predicted: &[Predicted],
    target: Target,
    mut measure: impl FnMut(&[Shape]) -> Result<Vec<Vec<[f64; 2]>>>,
) -> Result<Vec<Checked>> {
    let mut checked: Vec<Checked> = Vec::new();
    for _ in 0..MOST_READINGS {
        let corrected = corrected(predicted, &checked);
        let is_new = |at: &usize| checked.iter().all(|c| c.predicted.shape != predicted[*at].shape);
        let mut tried: Vec<usize> = order(&corrected, target).into_iter().filter(is_new).take(AT_ONCE).collect();
        if tried.is_empty() {
            tried.extend(nearest(&corrected, target).filter(is_new));
        }
        if tried.is_empty() {
            break;
        }
        let shapes: Vec<Shape> = tried.iter().map(|at| predicted[*at].shape).collect();
        let measured = measure(&shapes)?;
        checked.extend(tried.iter().zip(measured).map(|(at, measured)| judged(&predicted[*at], target, &measured)));
        if checked.iter().any(|c| c.meets) {
            break;
        }
    }
    Ok(checked)
}

/// Returns the predictions, multiplied by the mean ratio of measurements to predictions.
fn corrected(predicted: &[Predicted], checked: &[Checked]) -> Vec<Predicted> {
    let ratio = |measured: fn(&Checked) -> f64, foretold: fn(&Checked) -> f64| {
        let ratios: Vec<f64> = checked.iter().map(|c| measured(c) / foretold(c).max(f64::MIN_POSITIVE)).collect();
        if ratios.is_empty() { 1.0 } else { mean(&ratios) }
    };
    let density = ratio(|c| c.density.mean, |c| c.predicted.density);
    let error = ratio(|c| c.error.mean, |c| c.predicted.error);
    predicted.iter().map(|p| Predicted { density: density * p.density, error: error * p.error, ..p.clone() }).collect()
}

/// Returns the index of the best checked shape that meets the target: the one with the smallest error for a target density, with the
/// fewest bytes for a target error.
pub fn chosen(checked: &[Checked], target: Target) -> Option<usize> {
    let price = |at: &usize| match target {
        Target::Density(_) => checked[*at].error.mean,
        Target::Error(_) => checked[*at].predicted.bytes,
    };
    (0..checked.len()).filter(|at| checked[*at].meets).min_by(|a, b| price(a).total_cmp(&price(b)))
}

fn judged(predicted: &Predicted, target: Target, measured: &[[f64; 2]]) -> Checked {
    let of = |which: usize| {
        let values: Vec<f64> = measured.iter().map(|m| m[which]).collect();
        mean_interval(&Sample::independent(&values)).unwrap_or(Estimate { mean: 0.0, ends: None })
    };
    let (density, error) = (of(0), of(1));
    let meets = match target {
        Target::Density(most) => density.mean <= most,
        Target::Error(most) => error.mean <= most,
    };
    Checked { predicted: predicted.clone(), density: density.into(), error: error.into(), meets }
}

#[cfg(test)]
mod tests;
