//! The work of an example, in multiplications of its prefill: the formula for progress and time estimates.
//!
//! Shards are assigned by the same formula, but with the prompts' real lengths (`planner`).

use spattn_model::dimensions::Dimensions;

/// The assumed number of tokens of an example from a file, where none is made.
pub(crate) const TOKENS_OF_FILE_EXAMPLE: usize = 8192;

/// The expected number of tokens of an example. `length` is 0 if a file fixes it.
pub(crate) fn expected_tokens(length: usize) -> usize {
    if length == 0 { TOKENS_OF_FILE_EXAMPLE } else { length }
}

/// The multiplications of an example's prefill, in the unit of [`Dimensions::prefill_products`]. `length` is 0 if a file fixes it.
pub(crate) fn prefill_work(dimensions: &Dimensions, length: usize) -> u64 {
    dimensions.prefill_products(expected_tokens(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_of_a_file_has_a_usual_number_of_tokens() {
        assert_eq!((expected_tokens(0), expected_tokens(512)), (TOKENS_OF_FILE_EXAMPLE, 512));
    }
}
