//! Tensors of any name and shape with numbers drawn from a seed, for models of which only the shape matters.

use half::{bf16, f16};
use rayon::prelude::*;

use super::error::WeightsError;
use super::source::{TensorInfo, TensorSource};
use super::stored::{StoredTensor, StoredType};
use spattn_hub::checksum::sha256_hex;
use spattn_kernels::quantised::BlockType;

/// Tensors drawn from a seed; every requested tensor exists.
///
/// Numbers of matrices are uniformly distributed between bounds that keep the magnitude of activations. Weights of norms
/// are 1, biases 0.
#[derive(Debug)]
pub struct RandomTensors {
    seed: u64,
    label: String,
    /// The block type of matrices whose rows are whole blocks.
    blocks: Option<BlockType>,
}

impl RandomTensors {
    /// Tensors of a seed: the same seed, name and shape give the same numbers.
    pub fn new(seed: u64) -> Self {
        Self { seed, label: format!("random weights, seed {seed}"), blocks: None }
    }

    /// Like [`new`](Self::new), but matrices are in blocks of a type if their rows are whole blocks.
    pub fn in_blocks(seed: u64, block_type: BlockType) -> Self {
        let label = format!("random weights in {}, seed {seed}", block_type.name());
        Self { seed, label, blocks: Some(block_type) }
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

    fn block_type(&self, _: &str) -> Option<BlockType> {
        self.blocks
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        Ok(match (self.blocks, shape) {
            (Some(block_type), [_, inputs]) if inputs.is_multiple_of(block_type.numbers()) => {
                drawn_blocks(self.seed, name, shape, block_type, bound(*inputs))
            }
            _ => drawn(self.seed, name, shape),
        })
    }

    fn sha256(&self) -> Result<String, WeightsError> {
        Ok(sha256_hex(self.label.as_bytes()))
    }

    fn is_random(&self) -> bool {
        true
    }
}

/// The count of numbers, or bytes of blocks, that one generator draws.
const PIECE: usize = 1 << 16;

/// The largest number of a matrix with this many inputs.
fn bound(inputs: usize) -> f32 {
    (3.0 / inputs as f32).sqrt()
}

/// The state of the generator for each piece of a tensor.
fn generator(seed: u64, name: &str) -> impl Fn(usize) -> u64 {
    let of_name = name.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
    move |piece| mix(of_name ^ piece as u64)
}

/// A tensor of [`RandomTensors`].
fn drawn(seed: u64, name: &str, shape: &[usize]) -> StoredTensor {
    let len: usize = shape.iter().product();
    let mut numbers = vec![bf16::ZERO; len];
    match shape {
        [_, inputs] => {
            let (bound, state_of) = (bound(*inputs), generator(seed, name));
            numbers.par_chunks_mut(PIECE).enumerate().for_each(|(piece, numbers)| {
                let mut state = state_of(piece);
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

/// A matrix in blocks whose codes are drawn, with scales and offsets that spread numbers over `-bound..=bound`.
fn drawn_blocks(seed: u64, name: &str, shape: &[usize], block_type: BlockType, bound: f32) -> StoredTensor {
    let template = block_of(block_type, bound);
    let is_drawn: Vec<bool> = template.iter().map(Option::is_none).collect();
    let template: Vec<u8> = template.into_iter().map(Option::unwrap_or_default).collect();
    let count = shape.iter().product::<usize>() / block_type.numbers();
    let mut bytes = template.repeat(count);
    let state_of = generator(seed, name);
    bytes.par_chunks_mut(PIECE / template.len() * template.len()).enumerate().for_each(|(piece, bytes)| {
        let mut state = state_of(piece);
        for (byte, is_drawn) in bytes.iter_mut().zip(is_drawn.iter().cycle()) {
            if *is_drawn {
                state = mix(state);
                *byte = (state >> 56) as u8;
            }
        }
    });
    StoredTensor { dtype: StoredType::Blocks(block_type), shape: shape.to_vec(), bytes }
}

/// The bytes of a block, without those of its codes.
fn block_of(block_type: BlockType, bound: f32) -> Vec<Option<u8>> {
    // Eight scales and eight offsets of six bits, all of them the largest possible.
    const SIX_BITS: f32 = 63.0;
    let half = |number: f32| f16::from_f32(number).to_le_bytes().map(Some);
    let (front, behind): (Vec<Option<u8>>, Vec<Option<u8>>) = match block_type {
        BlockType::Q4_0 => (half(bound / 8.0).to_vec(), Vec::new()),
        BlockType::Q5_0 => (half(bound / 16.0).to_vec(), Vec::new()),
        BlockType::Q8_0 => (half(bound / 128.0).to_vec(), Vec::new()),
        BlockType::Q4_1 => ([half(2.0 * bound / 15.0), half(-bound)].concat(), Vec::new()),
        BlockType::Q5_1 => ([half(2.0 * bound / 31.0), half(-bound)].concat(), Vec::new()),
        BlockType::Q4K | BlockType::Q5K => {
            let codes = if block_type == BlockType::Q4K { 15.0 } else { 31.0 };
            let scales = [half(2.0 * bound / codes / SIX_BITS), half(bound / SIX_BITS)].concat();
            ([scales, vec![Some(u8::MAX); 12]].concat(), Vec::new())
        }
        BlockType::Q6K => {
            let scales = vec![Some(i8::MAX.cast_unsigned()); 16];
            (Vec::new(), [scales, half(bound / 32.0 / f32::from(i8::MAX)).to_vec()].concat())
        }
    };
    let codes = vec![None; block_type.bytes() - front.len() - behind.len()];
    [front, codes, behind].concat()
}

/// The next number of SplitMix64.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let once = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    twice ^ (twice >> 31)
}
