//! Work of an example, in multiplications of its prefill: the one formula of progress and estimates.
//!
//! Shards are dealt by the same products (`planner`), of the prompts that examples really have.

use spattn_model::dimensions::Dimensions;

/// Tokens that an example of a file is taken to have, where none is made.
pub(crate) const TOKENS_OF_FILE_EXAMPLE: usize = 8192;

/// Tokens that an example is expected to have; `length` is 0 where a file fixes it.
pub(crate) fn expected_tokens(length: usize) -> usize {
    if length == 0 { TOKENS_OF_FILE_EXAMPLE } else { length }
}

/// Multiplications of the prefill of an example, in the unit of [`Dimensions::prefill_products`]; `length` is 0 where a file fixes it.
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
