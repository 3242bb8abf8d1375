//! Training of the nets: three layers with their derivatives, the loss, and Adam.
//!
//! Derivatives are written by hand with this workspace's matrix product instead of a library's graph. The nets of a KV head and its group
//! are a few small matrices each; most of the time goes to the `queries × keys` logits, for which three passes suffice. [Blocks](KEY_BLOCK)
//! of keys go from the first layer to the derivatives one by one, so that a block stays in a core's cache. Sums continue from block to
//! block in the order of keys, so no bit depends on the size of a block.

use std::borrow::Cow;

use super::net::{Affine, LAYERS, SignNet};
use spattn_kernels::elementwise::sigmoid;
use spattn_kernels::matmul::{matmul, matmul_add, matmul_continue, transposed};

/// Number of keys in a block; a multiple of a vector's and of a panel's width, so that each key's numbers are computed in the same way.
const KEY_BLOCK: usize = 256;

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

/// Weights `[output][input]` of all layers but the first.
struct Reversed(Vec<Vec<f32>>);

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
    /// A net with weights and biases uniform in `±1/√d`, from numbers in `0..1`; the input is not standardised yet.
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
        let mut standard = x.to_vec();
        for row in standard.chunks_exact_mut(self.shape.d) {
            row.iter_mut().zip(&self.mean).zip(&self.factor).for_each(|((x, m), f)| *x = (*x - m) * f);
        }
        let mut inputs = vec![standard];
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

    /// The weights as the backward pass reads them.
    fn reversed(&self) -> Reversed {
        Reversed((1..LAYERS).map(|layer| transposed(self.layer(layer).0, self.shape.outputs(layer))).collect())
    }

    /// Adds the part of some rows to `gradient`, the derivatives of a loss by all parameters, given those by the signatures, `[row][bits]`.
    fn backward(&self, reversed: &Reversed, trace: &Trace, by_signature: &[f32], gradient: &mut [f32]) {
        let d = self.shape.d;
        // tanh' = 1 − tanh².
        let mut by_output: Vec<f32> =
            by_signature.iter().zip(&trace.signature).map(|(g, y)| g * (1.0 - y * y)).collect();
        for layer in (0..LAYERS).rev() {
            let outputs = self.shape.outputs(layer);
            let input = &trace.inputs[layer];
            let (by_weight, by_bias) = gradient[self.shape.of_layer(layer)].split_at_mut(d * outputs);
            matmul_continue(&transposed(input, d), input.len() / d, &by_output, outputs, by_weight);
            for row in by_output.chunks_exact(outputs) {
                by_bias.iter_mut().zip(row).for_each(|(b, g)| *b += g);
            }
            if layer == 0 {
                break;
            }
            let mut by_input = vec![0.0; input.len()];
            matmul(&by_output, outputs, &reversed.0[layer - 1], d, &mut by_input);
            by_input.iter_mut().zip(&trace.slopes[layer - 1]).for_each(|(g, slope)| *g *= slope);
            by_output = by_input;
        }
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
pub(super) struct Batch<'a> {
    /// `[key][d]`.
    pub keys: Cow<'a, [f32]>,
    /// `[query][d]` for each query head.
    pub queries: Vec<Vec<f32>>,
    /// Number of keys that each query sees: the first ones. Ascending.
    pub seen: Vec<usize>,
    /// The wanted keys of each query head and query, ascending.
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
    /// Width of keys and queries.
    pub(super) fn width(&self) -> usize {
        self.queries[0].shape.d
    }

    /// Index of the key net with which a query head is compared.
    fn key_net(&self, head: usize) -> usize {
        if self.keys.len() == 1 { 0 } else { head }
    }

    /// The loss, and its gradients for all nets.
    ///
    /// Weighted binary cross-entropy of `σ(scale·⟨φ_q, φ_k⟩)` (HashAttention §4.2), averaged over all pairs of a query
    /// and a key that it sees, over all query heads, as `rule` states.
    pub(super) fn loss(&self, batch: &Batch<'_>, rule: LossRule) -> (f64, Gradients) {
        let mut loss = 0.0;
        let gradients = self.pass(batch, rule, Some(&mut loss));
        (loss, gradients)
    }

    /// The gradients of [`loss`](Self::loss), without the loss itself, whose logarithms take a third of the time.
    pub(super) fn gradients(&self, batch: &Batch<'_>, rule: LossRule) -> Gradients {
        self.pass(batch, rule, None)
    }

    fn pass(&self, batch: &Batch<'_>, rule: LossRule, mut loss: Option<&mut f64>) -> Gradients {
        let Shape { d, bits } = self.queries[0].shape;
        let total: f64 = batch.divisor(rule.mean);
        let mut heads: Vec<Head> =
            self.queries.iter().zip(&batch.queries).map(|(net, queries)| Head::new(net.forward(queries))).collect();
        let reversed: Vec<Reversed> = self.keys.iter().map(SoftNet::reversed).collect();
        let mut by_keys: Vec<Vec<f32>> = self.keys.iter().map(|net| vec![0.0; net.parameters.len()]).collect();
        let mut scratch = Scratch::default();
        for (block, keys) in batch.keys.chunks(KEY_BLOCK * d).enumerate() {
            let count = keys.len() / d;
            let keys: Vec<Trace> = self.keys.iter().map(|net| net.forward(keys)).collect();
            let columns: Vec<Vec<f32>> = keys.iter().map(|keys| transposed(&keys.signature, bits)).collect();
            let mut by_columns = vec![vec![0.0; columns[0].len()]; keys.len()];
            let part = Part::new(batch, block * KEY_BLOCK, count);
            for (number, head) in heads.iter_mut().enumerate() {
                let of = self.key_net(number);
                let logits = scratch.logits(part.queries() * count);
                head.begin_at(part.from, bits);
                matmul(&head.trace.signature[part.from * bits..], bits, &columns[of], count, logits);
                let loss = loss.as_deref_mut();
                part.cross_entropy(number, (rule.scale, total), logits, loss);
                // From here on, `logits` are derivatives by the inner products.
                matmul_continue(logits, count, &keys[of].signature, bits, &mut head.by_signature[part.from * bits..]);
                matmul_add(&head.columns, part.queries(), logits, count, &mut by_columns[of]);
            }
            for (((net, reversed), trace), (columns, gradient)) in
                self.keys.iter().zip(&reversed).zip(&keys).zip(by_columns.iter().zip(&mut by_keys))
            {
                net.backward(reversed, trace, &transposed(columns, count), gradient);
            }
        }
        let of_query = |(net, head): (&SoftNet, &Head)| {
            let mut gradient = vec![0.0; net.parameters.len()];
            net.backward(&net.reversed(), &head.trace, &head.by_signature, &mut gradient);
            gradient
        };
        Gradients { keys: by_keys, queries: self.queries.iter().zip(&heads).map(of_query).collect() }
    }
}

/// The queries of a head, while blocks of keys pass.
struct Head {
    trace: Trace,
    /// Signatures of the queries from `from` on, `[bit][query]`.
    columns: Vec<f32>,
    from: Option<usize>,
    /// Derivatives by the signatures, `[query][bit]`.
    by_signature: Vec<f32>,
}

impl Head {
    fn new(trace: Trace) -> Self {
        let by_signature = vec![0.0; trace.signature.len()];
        Self { trace, columns: Vec::new(), from: None, by_signature }
    }

    /// Leaves out the queries before `from` from now on.
    fn begin_at(&mut self, from: usize, bits: usize) {
        if self.from != Some(from) {
            self.columns = transposed(&self.trace.signature[from * bits..], bits);
            self.from = Some(from);
        }
    }
}

/// Memory that all blocks reuse.
#[derive(Default)]
struct Scratch(Vec<f32>);

impl Scratch {
    /// Room for `count` logits, with arbitrary contents.
    fn logits(&mut self, count: usize) -> &mut [f32] {
        if self.0.len() < count {
            self.0.resize(count, 0.0);
        }
        &mut self.0[..count]
    }
}

impl Batch<'_> {
    /// Divisor of the loss of all pairs.
    fn divisor(&self, mean: LossMean) -> f64 {
        let of_query = |(wanted, seen): (&Vec<Wanted>, &usize)| match mean {
            LossMean::Pairs => *seen as f64,
            LossMean::Weights => *seen as f64 + wanted.iter().map(|w| f64::from(w.weight) - 1.0).sum::<f64>(),
        };
        let of_head = |wanted: &Vec<Vec<Wanted>>| -> f64 { wanted.iter().zip(&self.seen).map(of_query).sum() };
        self.wanted.iter().map(of_head).sum::<f64>().max(1.0)
    }
}

/// A block of the keys, and the queries that see any of them.
struct Part<'b> {
    batch: &'b Batch<'b>,
    /// The first key, and the number of keys.
    first: usize,
    count: usize,
    /// The first query that sees a key; those after it do, too.
    from: usize,
}

impl<'b> Part<'b> {
    fn new(batch: &'b Batch<'b>, first: usize, count: usize) -> Self {
        Self { batch, first, count, from: batch.seen.partition_point(|seen| *seen <= first) }
    }

    fn queries(&self) -> usize {
        self.batch.seen.len() - self.from
    }

    /// Replaces a head's inner products `inner: [query][key]` by the derivatives by them. Adds the block's part of the loss to `loss`.
    fn cross_entropy(&self, head: usize, (scale, total): (f32, f64), inner: &mut [f32], mut loss: Option<&mut f64>) {
        let unit = scale / total as f32;
        let mut agree = vec![0.0; self.count];
        for (query, row) in (self.from..).zip(inner.chunks_exact_mut(self.count)) {
            let seen = (self.batch.seen[query] - self.first).min(self.count);
            row.iter_mut().for_each(|x| *x *= scale);
            sigmoid(row, &mut agree);
            let wanted = self.wanted(head, query);
            if let Some(loss) = loss.as_deref_mut() {
                *loss += self.loss_of_row(wanted, &row[..seen], &agree[..seen]) / total;
            }
            row.iter_mut().zip(&agree).for_each(|(g, s)| *g = s * unit);
            row[seen..].fill(0.0);
            for Wanted { key, weight } in wanted {
                let place = *key as usize - self.first;
                row[place] = weight * (agree[place] - 1.0) * unit;
            }
        }
    }

    /// The keys of the block that a query wants.
    fn wanted(&self, head: usize, query: usize) -> &'b [Wanted] {
        let wanted = &self.batch.wanted[head][query];
        let before = |key: usize| wanted.partition_point(|wanted| (wanted.key as usize) < key);
        &wanted[before(self.first)..before(self.first + self.count)]
    }

    /// A query's part of the loss, from its logits and their probabilities.
    fn loss_of_row(&self, wanted: &[Wanted], logits: &[f32], agree: &[f32]) -> f64 {
        // −ln(1 − σ(z)) = z − ln σ(z); a wanted key has −ln σ(z). Below −80 the computed σ no longer falls.
        let mut loss: f64 = -log_of_product(agree) + logits.iter().map(|z| f64::from(z.max(-80.0))).sum::<f64>();
        for Wanted { key, weight } in wanted {
            let z = logits[*key as usize - self.first];
            let log = log_sigmoid(z);
            loss -= f64::from(z) - log + f64::from(*weight) * log;
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
