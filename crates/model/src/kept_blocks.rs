//! Which weight matrices stay in the quantised blocks of their file, and their sizes.

use std::collections::BTreeSet;

use super::config::ModelConfig;
use super::families::{Experts, TensorNames};
use super::layers::{self, MatrixSizes};
use super::tensors::{WeightDtype, Weights};
use spattn_base::memory::product;
use spattn_kernels::quantised::BlockType;

/// The sizes of a model's weight matrices, at least one of which stays in blocks; the others are converted to a [`WeightDtype`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBlocks {
    types: BTreeSet<BlockType>,
    /// Bytes of all matrices.
    pub(super) bytes: usize,
    /// Bytes of the matrices that a decode step of one token reads: all but the embedding table, unless it is also the output matrix, and
    /// the experts that the token is not routed to.
    pub(super) step_bytes: usize,
    /// Bytes of the largest matrix.
    pub(super) largest: usize,
    /// Bytes of all matrices, by part of the model.
    pub(super) sizes: MatrixSizes,
}

impl KeptBlocks {
    /// The sizes for a model; `None` if no matrix is in blocks.
    pub(super) fn of(config: &ModelConfig, weights: &Weights, dtype: WeightDtype) -> Option<Self> {
        let embedding = TensorNames::weight(config.block.names.embedding);
        let expert_names: BTreeSet<String> = layers::expert_names(config).collect();
        let sizes = MatrixSizes { embedding: 0, head: 0, layers: vec![0; config.layers] };
        let mut kept = Self { types: BTreeSet::new(), bytes: 0, step_bytes: 0, largest: 0, sizes };
        let mut of_experts = 0usize;
        for (name, shape) in layers::tensors(config) {
            let &[rows, columns] = shape.as_slice() else { continue };
            let numbers = product([rows, columns]);
            let block_type = weights.block_type(&name, columns);
            let bytes = block_type.map_or_else(|| dtype.bytes_of(numbers), |block_type| block_type.bytes_of(numbers));
            kept.types.extend(block_type);
            kept.bytes = kept.bytes.saturating_add(bytes);
            kept.largest = kept.largest.max(bytes);
            let part = match layers::layer_of(config, &name) {
                Some(layer) => &mut kept.sizes.layers[layer],
                None if name == embedding => &mut kept.sizes.embedding,
                None => &mut kept.sizes.head,
            };
            *part = part.saturating_add(bytes);
            if expert_names.contains(&name) {
                of_experts = of_experts.saturating_add(bytes);
            } else if name != embedding || config.tie_word_embeddings {
                kept.step_bytes = kept.step_bytes.saturating_add(bytes);
            }
        }
        // All experts of a layer have the same size.
        let passed = config.block.experts.map_or(0, |Experts { count, used, .. }| of_experts / count * used);
        kept.step_bytes = kept.step_bytes.saturating_add(passed);
        (!kept.types.is_empty()).then_some(kept)
    }

    /// The types of blocks, as in `q4_k+q6_k`.
    pub fn name(&self) -> String {
        self.types.iter().map(|block_type| block_type.name()).collect::<Vec<_>>().join("+")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::Decoder;
    use crate::device::Device;
    use crate::dimensions::Dimensions;
    use crate::engine::Stream;
    use crate::source::ModelSource;
    use spattn_attention::kv::KvDtype;
    use spattn_attention::methods::configure;
    use spattn_attention::{IndexCache, Policy, expand_grid};

    /// Logits of a prompt, and of steps after a part of it.
    fn logits(dimensions: &Dimensions, weights: &Weights, tokens: &[u32]) -> [Vec<f32>; 2] {
        let decoder = Decoder::load(dimensions, weights, Device::Cpu).unwrap();
        let all = decoder.all_logits(tokens).unwrap();
        let (front, back) = tokens.split_at(tokens.len() - 3);
        let prefill = decoder.prefill(front, tokens.len()).unwrap();
        let full = configure(&expand_grid("full").unwrap()[0], &Policy::default()).unwrap();
        let mut fork = IndexCache::new(prefill.prefix, KvDtype::F32, 0).fork(&full, false).unwrap();
        let stepped = |token| decoder.step(&mut [Stream { fork: &mut fork, tokens: &[token] }], tokens.len()).unwrap();
        [all, back.iter().copied().map(stepped).collect::<Vec<_>>().concat().concat()]
    }

    #[test]
    fn weights_in_blocks_give_the_bits_of_dequantised_ones() {
        let texts = ModelSource::parse("random:llama-3.2-1b").unwrap().resolve_texts().unwrap();
        let mut config = texts.config().unwrap();
        // Rows of the last projection are whole blocks only in formats with blocks of 32 numbers.
        (config.vocab_size, config.hidden_size, config.intermediate_size) = (300, 256, 288);
        (config.layers, config.heads, config.kv_heads, config.head_dim) = (2, 4, 2, 64);
        let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 300).collect();
        for (block_type, tied) in BlockType::ALL.into_iter().zip([true, false].into_iter().cycle()) {
            config.tie_word_embeddings = tied;
            let weights = Weights::random_in(3, block_type);
            let wide = Dimensions::new(&config, KvDtype::F32);
            let kept = wide.clone().keeping_blocks(&weights);
            assert!(kept.weight_bytes() < wide.weight_bytes() / 2, "{}", block_type.name());
            let [got, expected] = [&kept, &wide].map(|dimensions| logits(dimensions, &weights, &tokens));
            assert_eq!(got, expected, "{}", block_type.name());
            assert!(expected[0].iter().any(|logit| logit.abs() > 1e-3));
        }
    }

    #[test]
    fn blocks_are_counted_where_rows_are_whole_blocks() {
        let texts = ModelSource::parse("random:llama-3.1-8b").unwrap().resolve_texts().unwrap();
        let mut config = texts.config().unwrap();
        let wide = Dimensions::new(&config, KvDtype::F32);
        let of = |config: &ModelConfig, block_type| {
            KeptBlocks::of(config, &Weights::random_in(1, block_type), WeightDtype::F32).unwrap()
        };
        let kept = of(&config, BlockType::Q4K);
        assert_eq!(kept.bytes, wide.weight_numbers() / 256 * 144);
        let table = 128_256 * 4096 / 256 * 144;
        assert_eq!((kept.sizes.embedding, kept.sizes.head), (table, table));
        assert_eq!(kept.sizes.layers, vec![(kept.bytes - 2 * table) / 32; 32]);
        assert_eq!(kept.step_bytes, wide.step_weight_numbers() / 256 * 144);
        assert_eq!((kept.largest, kept.name().as_str()), (128_256 * 4096 / 256 * 144, "q4_k"));
        assert_eq!(KeptBlocks::of(&config, &Weights::random(1), WeightDtype::F32), None);

        // Rows of the last projection are now whole blocks of 32 numbers, but not of 256.
        config.intermediate_size = 14_336 - 32;
        config.tie_word_embeddings = true;
        let down = config.layers * config.hidden_size * config.intermediate_size;
        let rest = Dimensions::new(&config, KvDtype::F32).weight_numbers() - down;
        let kept = of(&config, BlockType::Q4K);
        let bytes = rest / 256 * 144 + 4 * down;
        assert_eq!((kept.bytes, kept.step_bytes), (bytes, bytes));
        assert_eq!(of(&config, BlockType::Q8_0).bytes, (rest + down) / 32 * 34);
    }

    #[test]
    fn of_experts_in_blocks_a_step_reads_those_that_it_passes() {
        let texts = ModelSource::parse("random:qwen3-30b-a3b").unwrap().resolve_texts().unwrap();
        let config = texts.config().unwrap();
        let wide = Dimensions::new(&config, KvDtype::F32);
        let kept = KeptBlocks::of(&config, &Weights::random_in(1, BlockType::Q4K), WeightDtype::F32).unwrap();
        assert_eq!(kept.bytes, wide.weight_numbers() / 256 * 144);
        assert_eq!(kept.step_bytes, wide.step_weight_numbers() / 256 * 144);
    }

    /// A small model of a published shape, with its inner width and experts in whole blocks.
    fn small(shape: &str, change: impl FnOnce(&mut ModelConfig)) -> ModelConfig {
        let texts = ModelSource::parse(&format!("random:{shape}")).unwrap().resolve_texts().unwrap();
        let mut config = texts.config().unwrap();
        (config.vocab_size, config.hidden_size, config.intermediate_size) = (300, 256, 288);
        (config.heads, config.kv_heads, config.head_dim) = (4, 2, 64);
        config.keep_layers(&[0, 1]);
        change(&mut config);
        config
    }

    #[test]
    fn experts_and_scaled_embeddings_in_blocks_give_the_bits_of_dequantised_ones() {
        let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 300).collect();
        let experts = |config: &mut ModelConfig| {
            let experts = config.block.experts.as_mut().unwrap();
            (experts.count, experts.used, experts.width) = (6, 2, 96);
        };
        let scaled = |config: &mut ModelConfig| config.block.embedding_scale = 16.5;
        for config in [small("qwen3-30b-a3b", experts), small("llama-3.2-1b", scaled)] {
            // In Q4_K, rows of 96 and 288 numbers are not whole blocks.
            for block_type in [BlockType::Q8_0, BlockType::Q4K] {
                let weights = Weights::random_in(3, block_type);
                let wide = Dimensions::new(&config, KvDtype::F32);
                let kept = wide.clone().keeping_blocks(&weights);
                assert!(kept.weight_bytes() < wide.weight_bytes() * 2 / 3);
                let [got, expected] = [&kept, &wide].map(|dimensions| logits(dimensions, &weights, &tokens));
                assert_eq!(got, expected, "{} of {}", block_type.name(), config.family);
                assert!(expected[0].iter().any(|logit| logit.abs() > 1e-3));
            }
        }
    }
}
