//! Softmax of a row of logits, for callers that need the weights themselves.

use super::attend::softmax_block;
use super::simd::{Simd, dispatch};

dispatch! {
    /// Turns logits into their softmax, in place. At least one must be finite.
    pub fn softmax[](logits: &mut [f32]) = softmax_kernel
}

#[inline(always)]
unsafe fn softmax_kernel<S: Simd>(logits: &mut [f32]) {
    let whole = logits.len() / S::LANES * S::LANES;
    let (body, rest) = logits.split_at_mut(whole);
    let mut max = rest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    // SAFETY: the length of `body` is a multiple of the lanes; the CPU supports `S` (caller).
    unsafe { softmax_block::<S>(body, &mut max, &mut sum) };
    for x in rest {
        *x = (*x - max).exp();
        sum += *x;
    }
    let scale = 1.0 / sum;
    for x in logits {
        *x *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::softmax;

    #[test]
    fn equals_the_formula_at_every_length() {
        for n in [1, 2, 15, 16, 17, 33, 100] {
            let logits: Vec<f32> = (0..n).map(|i| 30.0 * (i as f32 * 1.7).sin() + 200.0).collect();
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f64> = logits.iter().map(|x| f64::from(x - max).exp()).collect();
            let sum: f64 = exps.iter().sum();
            let mut weights = logits;
            softmax(&mut weights);
            for (w, e) in weights.iter().zip(exps) {
                assert!((f64::from(*w) - e / sum).abs() < 1e-6, "{n}: {w} against {}", e / sum);
            }
        }
    }

    #[test]
    fn what_is_masked_gets_nothing() {
        let mut weights = [f32::NEG_INFINITY; 40];
        weights[7] = 3.0;
        weights[39] = 3.0;
        softmax(&mut weights);
        assert_eq!((weights[7], weights[39], weights[0]), (0.5, 0.5, 0.0));
        softmax(&mut []);
    }
}
