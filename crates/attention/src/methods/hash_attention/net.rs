//! A learned net as the method uses it: three layers, and the signs of the outputs.

use half::f16;

use super::super::signatures::pack_signs;
use crate::calibration::artefact::{Artefact, ArtefactError, NamedTensor, Precision};
use spattn_kernels::elementwise::sigmoid;
use spattn_kernels::linear::linear_rows;

/// Number of affine layers of a net.
pub(super) const LAYERS: usize = 3;

/// A map `R^d → {0,1}^bits` (HashAttention §4.1, eq. 2): affine layers of widths `d`, `d` and `bits` with SiLU between
/// them. A bit is 1 if the output is positive.
///
/// SiLU and biases are as in the authors' code; the paper names neither.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SignNet {
    pub(super) layers: [Affine; LAYERS],
}

/// `W·x + b`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Affine {
    /// `[output][input]`, in the precision in which artefacts store it.
    pub(super) weight: Vec<f16>,
    /// One for each output.
    pub(super) bias: Vec<f32>,
}

impl Affine {
    /// An affine layer; rounds weights to 16 bits.
    pub(super) fn new(weight: &[f32], bias: Vec<f32>) -> Self {
        Self { weight: weight.iter().map(|w| f16::from_f32(*w)).collect(), bias }
    }

    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.inputs() * self.bias.len()];
        linear_rows(x, &self.weight, self.inputs(), &mut out);
        for row in out.chunks_exact_mut(self.bias.len()) {
            row.iter_mut().zip(&self.bias).for_each(|(o, b)| *o += b);
        }
        out
    }
}

impl SignNet {
    /// A net of these layers, in order.
    pub(super) fn new(layers: [Affine; LAYERS]) -> Self {
        Self { layers }
    }

    /// Outputs of the last layer for `x: [row][d]`: `[row][bits]`.
    pub(super) fn outputs(&self, x: &[f32]) -> Vec<f32> {
        let [first, second, third] = &self.layers;
        third.apply(&silu(&second.apply(&silu(&first.apply(x)))))
    }

    /// Packed bits of `x: [row][d]`: `[row][word]`. A row's bits do not depend on the other rows.
    pub(super) fn signatures(&self, x: &[f32]) -> Vec<u32> {
        self.outputs(x).chunks_exact(self.layers[LAYERS - 1].bias.len()).flat_map(pack_signs).collect()
    }

    /// FLOPs of the matrix products for one row.
    pub(super) fn flops(&self) -> u64 {
        self.layers.iter().map(|l| 2 * l.weight.len() as u64).sum()
    }

    /// Bytes of weights and biases in memory.
    pub(super) fn bytes(&self) -> usize {
        self.layers.iter().map(|l| size_of_val(l.weight.as_slice()) + size_of_val(l.bias.as_slice())).sum()
    }

    /// The nets of one side (`key` or `query`) of a layer of the model, one a head, from an artefact.
    ///
    /// # Errors
    /// If a tensor is missing or does not have the shape that `d` and `bits` require.
    pub(super) fn read(
        artefact: &Artefact,
        layer: usize,
        side: &str,
        heads: usize,
        d: usize,
        bits: usize,
    ) -> Result<Vec<Self>, ArtefactError> {
        let affine = |part: usize| -> Result<Vec<Affine>, ArtefactError> {
            let outputs = [d, d, bits][part];
            let weights =
                artefact.read_rows(&tensor_name(layer, side, part, "weight"), &[heads, outputs, d], outputs * d)?;
            let biases = artefact.read(&tensor_name(layer, side, part, "bias"), &[heads, outputs])?;
            let of_heads = weights.chunks_exact(outputs * d).zip(biases.chunks_exact(outputs));
            Ok(of_heads.map(|(weight, bias)| Affine::new(weight, bias.to_vec())).collect())
        };
        let (first, second, third) = (affine(0)?, affine(1)?, affine(2)?);
        Ok(first.into_iter().zip(second).zip(third).map(|((a, b), c)| Self::new([a, b, c])).collect())
    }

    /// The tensors that [`read`](Self::read) reads.
    pub(super) fn tensors(nets: &[Self], layer: usize, side: &str) -> Vec<NamedTensor> {
        let tensor = |part: usize, what: &str, width: &[usize], values: Vec<f32>, precision: Precision| NamedTensor {
            name: tensor_name(layer, side, part, what),
            shape: [&[nets.len()], width].concat(),
            values,
            precision,
        };
        let of_part = |part: usize| {
            let layers = || nets.iter().map(move |net| &net.layers[part]);
            let (outputs, inputs) = layers().next().map_or((0, 0), |l| (l.bias.len(), l.inputs()));
            let weights = layers().flat_map(|l| l.weight.iter().map(|w| w.to_f32())).collect();
            let biases = layers().flat_map(|l| l.bias.iter().copied()).collect();
            [
                tensor(part, "weight", &[outputs, inputs], weights, Precision::F16),
                tensor(part, "bias", &[outputs], biases, Precision::F32),
            ]
        };
        (0..LAYERS).flat_map(of_part).collect()
    }
}

fn tensor_name(layer: usize, side: &str, part: usize, what: &str) -> String {
    format!("layers.{layer}.{side}.{part}.{what}")
}

fn silu(x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    sigmoid(x, &mut out);
    out.iter_mut().zip(x).for_each(|(s, x)| *s *= x);
    out
}
