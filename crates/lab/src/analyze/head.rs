//! One KV head of a document: its exact scores, weights and outputs, in double precision.

use std::ops::Range;

use spattn_attention::SoftmaxScale;

/// The keys and values of a KV head, and the queries of its query heads.
#[derive(Debug, Clone)]
pub struct Head {
    /// Layer of the model, from 0.
    pub layer: usize,
    /// KV head, from 0.
    pub kv_head: usize,
    /// Width of a head.
    pub d: usize,
    /// The scale of the logits.
    pub scale: SoftmaxScale,
    /// Rotated keys `[token][d]` of all tokens.
    pub keys: Vec<f32>,
    /// Values `[token][d]` of all tokens.
    pub values: Vec<f32>,
    /// The queries of the group, by step and then by query head.
    pub queries: Vec<Query>,
}

/// A query. Its token attends itself and all tokens before it.
#[derive(Debug, Clone)]
pub struct Query {
    /// Query head of the layer, from 0.
    pub head: usize,
    /// Query head within the group, from 0.
    pub in_group: usize,
    /// Index of its token among those after the context, from 0.
    pub step: usize,
    /// The number of tokens that it attends.
    pub tokens: usize,
    /// The query vector `[d]`, rotated, unscaled.
    pub vector: Vec<f32>,
}

impl Head {
    /// Key `[d]` of a token.
    pub fn key(&self, token: usize) -> &[f32] {
        &self.keys[token * self.d..][..self.d]
    }

    /// Value `[d]` of a token.
    pub fn value(&self, token: usize) -> &[f32] {
        &self.values[token * self.d..][..self.d]
    }

    /// Returns the scaled `q·k` of every token that the query attends.
    pub fn logits(&self, query: &Query) -> Vec<f64> {
        let scale = 1.0 / self.scale.divisor();
        (0..query.tokens).map(|token| scale * dot(&query.vector, self.key(token))).collect()
    }

    /// Returns `Σ wᵢ vᵢ` over `tokens` with their weights.
    pub fn weighted(&self, tokens: impl IntoIterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut out = vec![0.0; self.d];
        for (token, weight) in tokens {
            out.iter_mut().zip(self.value(token)).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        out
    }

    /// Returns the attention output under `weights`, one for each token.
    pub fn output(&self, weights: &[f64]) -> Vec<f64> {
        self.weighted(weights.iter().copied().enumerate())
    }

    /// The mean key of a range of tokens.
    pub fn mean_key(&self, tokens: Range<usize>) -> Vec<f64> {
        let count = tokens.len() as f64;
        let mut mean = vec![0.0; self.d];
        for token in tokens {
            mean.iter_mut().zip(self.key(token)).for_each(|(sum, k)| *sum += f64::from(*k) / count);
        }
        mean
    }
}

/// Softmax of logits.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / sum).collect()
}

/// The dot product of two vectors.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The length of a vector.
pub fn norm(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Returns the cosine of two vectors; 0 if one of them is zero.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let lengths = norm(a) * norm(b);
    let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    if lengths > 0.0 { product / lengths } else { 0.0 }
}

/// Converts numbers to double precision.
pub fn wide(a: &[f32]) -> Vec<f64> {
    a.iter().map(|x| f64::from(*x)).collect()
}

/// The distance between two vectors.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A head of random keys and values, with two query heads and `steps` steps after `context` tokens.
    pub fn drawn(context: usize, steps: usize, d: usize, seed: u64) -> Head {
        let draw = |kind: u64, at: usize| {
            let bits = spattn_attention::mix_seed(spattn_attention::mix_seed(seed, kind), at as u64);
            (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let rows = |kind: u64, count: usize| (0..count * d).map(|at| 2.0 * draw(kind, at)).collect::<Vec<_>>();
        let (keys, values) = (rows(1, context + steps), rows(2, context + steps));
        let query = |(at, vector): (usize, &[f32])| {
            let (step, in_group) = (at / 2, at % 2);
            Query { head: in_group, in_group, step, tokens: context + step + 1, vector: vector.to_vec() }
        };
        let queries = rows(3, 2 * steps).chunks(d).enumerate().map(query).collect();
        let scale = SoftmaxScale::inverse_root(d);
        Head { layer: 0, kv_head: 0, d, scale, keys, values, queries }
    }
}
