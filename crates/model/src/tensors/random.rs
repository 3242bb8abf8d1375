//! Tensors of any name and shape whose numbers are drawn from a seed: for models of which only the shape matters.

use half::bf16;
use rayon::prelude::*;

use super::error::WeightsError;
use super::source::{TensorInfo, TensorSource};
use super::stored::{StoredTensor, StoredType};
use spattn_hub::checksum::sha256_hex;

/// Tensors drawn from a seed: every tensor that is asked for is there.
///
/// Numbers of matrices lie evenly between bounds that keep the size of what passes them. Weights of norms are 1, biases 0.
#[derive(Debug)]
pub struct RandomTensors {
    seed: u64,
    label: String,
}

impl RandomTensors {
    /// Of a seed: the same seed, name and shape give the same numbers.
    pub fn new(seed: u64) -> Self {
        Self { seed, label: format!("random weights, seed {seed}") }
    }
}

impl TensorSource for RandomTensors {
    fn label(&self) -> &str {
        &self.label
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn tensor(&self, _: &str) -> Option<&TensorInfo> {
        None
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        Ok(drawn(self.seed, name, shape))
    }

    fn sha256(&self) -> Result<String, WeightsError> {
        Ok(sha256_hex(self.label.as_bytes()))
    }

    fn is_random(&self) -> bool {
        true
    }
}

/// A tensor of [`RandomTensors`].
fn drawn(seed: u64, name: &str, shape: &[usize]) -> StoredTensor {
    /// Numbers that one generator draws.
    const BLOCK: usize = 1 << 16;
    let len: usize = shape.iter().product();
    let mut numbers = vec![bf16::ZERO; len];
    match shape {
        [_, inputs] => {
            let bound = (3.0 / *inputs as f32).sqrt();
            let of_name = name.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
            numbers.par_chunks_mut(BLOCK).enumerate().for_each(|(block, numbers)| {
                let mut state = mix(of_name ^ block as u64);
                for number in numbers {
                    state = mix(state);
                    *number = bf16::from_f32(bound * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0));
                }
            });
        }
        _ if name.ends_with("bias") => {}
        _ => numbers.fill(bf16::ONE),
    }
    let bytes = numbers.par_iter().flat_map_iter(|number| number.to_le_bytes()).collect();
    StoredTensor { dtype: StoredType::Bf16, shape: shape.to_vec(), bytes }
}

/// The next number of SplitMix64.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let once = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    twice ^ (twice >> 31)
}
