//! Training of the nets: three layers with their derivatives, the loss, and Adam.
//!
//! Derivatives are written by hand with this workspace's matrix product instead of a library's graph. The nets of a KV head and
//! its group are a few small matrices each; most of the time goes to the `queries × keys` logits, for which three passes suffice.

use super::net::{Affine, LAYERS, SignNet};
use spattn_kernels::elementwise::sigmoid;
use spattn_kernels::matmul::{matmul, transposed};

/// Widths of a net's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Width of the input and of the hidden layers.
    pub d: usize,
    /// Number of outputs.
    pub bits: usize,
}

impl Shape {
    fn outputs(self, layer: usize) -> usize {
        if layer + 1 == LAYERS { self.bits } else { self.d }
    }

    /// Number of learned parameters.
    pub(super) fn parameters(self) -> usize {
        (0..LAYERS).map(|l| (self.d + 1) * self.outputs(l)).sum()
    }

    /// Range of a layer's parameters among all: the weight `[input][output]`, then the bias.
    fn of_layer(self, layer: usize) -> std::ops::Range<usize> {
        let start: usize = (0..layer).map(|l| (self.d + 1) * self.outputs(l)).sum();
        start..start + (self.d + 1) * self.outputs(layer)
    }
}

/// A net in training. Its input is standardised to mean 0 and deviation 1 for each channel; its output is the `tanh` of
/// the last layer (HashAttention §4.2, soft partitioning).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SoftNet {
    pub(super) shape: Shape,
    /// Mean of each channel, which is subtracted from the input, and the factor that is then applied.
    pub(super) mean: Vec<f32>,
    pub(super) factor: Vec<f32>,
    /// Parameters of all layers, at [`Shape::of_layer`].
    pub(super) parameters: Vec<f32>,
}

/// Results of the forward pass that the backward pass needs, each `[row][width]`.
pub(super) struct Trace {
    /// Input of each layer.
    inputs: Vec<Vec<f32>>,
    /// Derivative of SiLU at the outputs of all layers but the last.
    slopes: Vec<Vec<f32>>,
    /// `tanh` of the last layer.
    pub(super) signature: Vec<f32>,
}

impl SoftNet {
    /// A net with uniform weights and biases in `±1/√d`, made of numbers in `0..1`; the input is not standardised yet.
    pub(super) fn new(shape: Shape, mut draw: impl FnMut() -> f32) -> Self {
        let bound = 1.0 / (shape.d as f32).sqrt();
        let parameters = (0..shape.parameters()).map(|_| (2.0 * draw() - 1.0) * bound).collect();
        Self { shape, mean: vec![0.0; shape.d], factor: vec![1.0; shape.d], parameters }
    }

    /// Standardises the input by the mean and deviation of `rows: [row][d]`.
    pub(super) fn standardise(&mut self, rows: &[f32]) {
        let d = self.shape.d;
        let count = (rows.len() / d).max(1) as f64;
        let (mut sums, mut squares) = (vec![0.0f64; d], vec![0.0f64; d]);
        for row in rows.chunks_exact(d) {
            for (c, x) in row.iter().enumerate() {
                sums[c] += f64::from(*x);
                squares[c] += f64::from(*x).powi(2);
            }
        }
        for c in 0..d {
            let mean = sums[c] / count;
            let deviation = (squares[c] / count - mean * mean).max(0.0).sqrt();
            // A constant channel is only centred.
            let factor = if deviation > 1e-6 { 1.0 / deviation } else { 1.0 };
            (self.mean[c], self.factor[c]) = (mean as f32, factor as f32);
        }
    }

    fn layer(&self, layer: usize) -> (&[f32], &[f32]) {
        let all = &self.parameters[self.shape.of_layer(layer)];
        all.split_at(self.shape.d * self.shape.outputs(layer))
    }

    /// Runs the net on `x: [row][d]`.
    pub(super) fn forward(&self, x: &[f32]) -> Trace {
        let d = self.shape.d;
        let standard = |row: &[f32]| -> Vec<f32> {
            row.iter().zip(&self.mean).zip(&self.factor).map(|((x, m), f)| (x - m) * f).collect()
        };
        let mut inputs = vec![x.chunks_exact(d).flat_map(standard).collect::<Vec<f32>>()];
        let mut slopes = Vec::new();
        for layer in 0..LAYERS {
            let z = self.affine(layer, &inputs[layer]);
            let mut gate = vec![0.0; z.len()];
            if layer + 1 == LAYERS {
                let double: Vec<f32> = z.iter().map(|z| 2.0 * z).collect();
                sigmoid(&double, &mut gate);
                let signature = gate.iter().map(|s| 2.0 * s - 1.0).collect();
                return Trace { inputs, slopes, signature };
            }
            sigmoid(&z, &mut gate);
            slopes.push(z.iter().zip(&gate).map(|(z, s)| s * (1.0 + z * (1.0 - s))).collect());
            inputs.push(z.iter().zip(&gate).map(|(z, s)| z * s).collect());
        }
        unreachable!("the loop returns at the last layer")
    }

    fn affine(&self, layer: usize, x: &[f32]) -> Vec<f32> {
        let (weight, bias) = self.layer(layer);
        let outputs = bias.len();
        let mut out = vec![0.0; x.len() / self.shape.d * outputs];
        matmul(x, self.shape.d, weight, outputs, &mut out);
        for row in out.chunks_exact_mut(outputs) {
            row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        out
    }

    /// Derivatives of a loss by all parameters, given those by the signature, `[row][bits]`.
    pub(super) fn backward(&self, trace: &Trace, by_signature: &[f32]) -> Vec<f32> {
        let d = self.shape.d;
        let mut gradient = vec![0.0; self.parameters.len()];
        // tanh' = 1 − tanh².
        let mut by_output: Vec<f32> =
            by_signature.iter().zip(&trace.signature).map(|(g, y)| g * (1.0 - y * y)).collect();
        for layer in (0..LAYERS).rev() {
            let outputs = self.shape.outputs(layer);
            let input = &trace.inputs[layer];
            let (by_weight, by_bias) = gradient[self.shape.of_layer(layer)].split_at_mut(d * outputs);
            matmul(&transposed(input, d), input.len() / d, &by_output, outputs, by_weight);
            for row in by_output.chunks_exact(outputs) {
                by_bias.iter_mut().zip(row).for_each(|(b, g)| *b += g);
            }
            if layer == 0 {
                break;
            }
            let mut by_input = vec![0.0; input.len()];
            matmul(&by_output, outputs, &transposed(self.layer(layer).0, outputs), d, &mut by_input);
            by_input.iter_mut().zip(&trace.slopes[layer - 1]).for_each(|(g, slope)| *g *= slope);
            by_output = by_input;
        }
        gradient
    }

    /// The net as the method uses it: standardising becomes part of the first layer, and weights are rounded.
    pub(super) fn to_sign_net(&self) -> SignNet {
        SignNet::new(std::array::from_fn(|layer| {
            let (weight, bias) = self.layer(layer);
            let (mut weight, mut bias) = (transposed(weight, bias.len()), bias.to_vec());
            if layer == 0 {
                for (row, bias) in weight.chunks_exact_mut(self.shape.d).zip(&mut bias) {
                    for ((w, factor), mean) in row.iter_mut().zip(&self.factor).zip(&self.mean) {
                        *w *= factor;
                        *bias -= *w * mean;
                    }
                }
            }
            Affine::new(&weight, bias)
        }))
    }
}

/// Running moments of a net's gradient (Kingma and Ba 2015, with the paper's constants).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Adam {
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
    pub(super) steps: u32,
}

impl Adam {
    const DECAY: [f32; 2] = [0.9, 0.999];

    pub(super) fn new(parameters: usize) -> Self {
        Self { first: vec![0.0; parameters], second: vec![0.0; parameters], steps: 0 }
    }

    pub(super) fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f32) {
        self.steps += 1;
        let [a, b] = Self::DECAY;
        let unbias = |decay: f32| 1.0 / (1.0 - f64::from(decay).powi(self.steps as i32)) as f32;
        let (first, second) = (unbias(a), unbias(b));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((p, g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *m = a * *m + (1.0 - a) * g;
            *v = b * *v + (1.0 - b) * g * g;
            *p -= rate * *m * first / ((*v * second).sqrt() + 1e-8);
        }
    }
}

/// The nets of a KV head and of the query heads of its group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupNets {
    /// Key nets: one for the KV head, or one for each query head of the group.
    pub(super) keys: Vec<SoftNet>,
    /// Query nets, one for each query head.
    pub(super) queries: Vec<SoftNet>,
}

/// How the loss is computed from logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LossRule {
    /// Factor of the signatures' inner product; 1 in the paper.
    pub scale: f32,
    /// Divisor of the sum over pairs.
    pub mean: LossMean,
}

/// Divisor of the sum of all pairs' weighted losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossMean {
    /// The sum of the pairs' weights.
    Weights,
    /// The number of pairs, as in the authors' code.
    Pairs,
}

/// Queries of one group, the keys that they see, and the keys that they should find.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// `[key][d]`.
    pub keys: Vec<f32>,
    /// `[query][d]` for each query head.
    pub queries: Vec<Vec<f32>>,
    /// Number of keys that each query sees: the first ones.
    pub seen: Vec<usize>,
    /// The wanted keys of each query head and query.
    pub wanted: Vec<Vec<Vec<Wanted>>>,
}

/// A key that a query should find.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wanted {
    /// Index of the key.
    pub key: u32,
    /// Its weight in the loss; keys that are not wanted have weight 1.
    pub weight: f32,
}

/// Gradients of each net of a group.
pub(super) struct Gradients {
    pub(super) keys: Vec<Vec<f32>>,
    pub(super) queries: Vec<Vec<f32>>,
}

impl GroupNets {
    /// Index of the key net with which a query head is compared.
    fn key_net(&self, head: usize) -> usize {
        if self.keys.len() == 1 { 0 } else { head }
    }

    /// The loss, and its gradients for all nets.
    ///
    /// Weighted binary cross-entropy of `σ(scale·⟨φ_q, φ_k⟩)` (HashAttention §4.2), averaged over all pairs of a query
    /// and a key that it sees, over all query heads, as `rule` states.
    pub(super) fn loss(&self, batch: &Batch, rule: LossRule) -> (f64, Gradients) {
        let bits = self.queries[0].shape.bits;
        let total: f64 = batch.divisor(rule.mean);
        let keys: Vec<Trace> = self.keys.iter().map(|net| net.forward(&batch.keys)).collect();
        let columns: Vec<Vec<f32>> = keys.iter().map(|keys| transposed(&keys.signature, bits)).collect();
        let count = batch.keys.len() / self.queries[0].shape.d;
        let mut by_columns = vec![vec![0.0; columns[0].len()]; keys.len()];
        let (mut loss, mut by_queries) = (0.0, Vec::new());
        for (head, net) in self.queries.iter().enumerate() {
            let of = self.key_net(head);
            let queries = net.forward(&batch.queries[head]);
            let mut logits = vec![0.0; batch.seen.len() * count];
            matmul(&queries.signature, bits, &columns[of], count, &mut logits);
            loss += batch.cross_entropy(head, rule.scale, total, &mut logits);
            // From here on, `logits` are derivatives by the inner products.
            let mut by_signature = vec![0.0; queries.signature.len()];
            matmul(&logits, count, &keys[of].signature, bits, &mut by_signature);
            let mut part = vec![0.0; columns[of].len()];
            matmul(&transposed(&queries.signature, bits), batch.seen.len(), &logits, count, &mut part);
            by_columns[of].iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            by_queries.push(net.backward(&queries, &by_signature));
        }
        let of_key_net =
            |((net, trace), columns): ((&SoftNet, &Trace), &Vec<f32>)| net.backward(trace, &transposed(columns, count));
        let keys = self.keys.iter().zip(&keys).zip(&by_columns).map(of_key_net).collect();
        (loss, Gradients { keys, queries: by_queries })
    }
}

impl Batch {
    /// Divisor of the loss of all pairs.
    fn divisor(&self, mean: LossMean) -> f64 {
        let of_query = |(wanted, seen): (&Vec<Wanted>, &usize)| match mean {
            LossMean::Pairs => *seen as f64,
            LossMean::Weights => *seen as f64 + wanted.iter().map(|w| f64::from(w.weight) - 1.0).sum::<f64>(),
        };
        let of_head = |wanted: &Vec<Vec<Wanted>>| -> f64 { wanted.iter().zip(&self.seen).map(of_query).sum() };
        self.wanted.iter().map(of_head).sum::<f64>().max(1.0)
    }

    /// This head's part of the loss. Replaces `inner: [query][key]` by the derivatives by these inner products.
    fn cross_entropy(&self, head: usize, scale: f32, total: f64, inner: &mut [f32]) -> f64 {
        let count = inner.len() / self.seen.len();
        let mut loss = 0.0;
        let mut agree = vec![0.0; count];
        for (query, row) in inner.chunks_exact_mut(count).enumerate() {
            let seen = self.seen[query];
            row.iter_mut().for_each(|x| *x *= scale);
            sigmoid(row, &mut agree);
            // −ln(1 − σ(z)) = z − ln σ(z); a wanted key has −ln σ(z). Below −80 σ no longer falls.
            let mut of_row: f64 =
                -log_of_product(&agree[..seen]) + row[..seen].iter().map(|z| f64::from(z.max(-80.0))).sum::<f64>();
            let wanted = &self.wanted[head][query];
            for Wanted { key, weight } in wanted {
                let (z, log) = (f64::from(row[*key as usize]), log_sigmoid(row[*key as usize]));
                of_row -= z - log + f64::from(*weight) * log;
            }
            loss += of_row / total;
            let unit = scale / total as f32;
            row.iter_mut().zip(&agree).for_each(|(g, s)| *g = s * unit);
            row[seen..].fill(0.0);
            for Wanted { key, weight } in wanted {
                row[*key as usize] = weight * (agree[*key as usize] - 1.0) * unit;
            }
        }
        loss
    }
}

/// Sum of logarithms, with one logarithm for eight factors; factors are above 1e-35.
fn log_of_product(factors: &[f32]) -> f64 {
    factors.chunks(8).map(|part| part.iter().map(|x| f64::from(*x)).product::<f64>().ln()).sum()
}

fn log_sigmoid(z: f32) -> f64 {
    let z = f64::from(z);
    if z < 0.0 { z - z.exp().ln_1p() } else { -(-z).exp().ln_1p() }
}
