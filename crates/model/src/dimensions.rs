//! What a decoder is like without its weights: shapes, storage types, and what memory it takes.

use std::sync::Arc;

use super::config::ModelConfig;
pub use super::kept_blocks::KeptBlocks;
use super::layers;
use super::rope::{Rope, RopeTable, Turn};
use super::tensors::{StorageTypes, WeightDtype, Weights};
use spattn_attention::kv::KvDtype;
use spattn_attention::{AttentionSpec, LayerSpecs, PromptShape, Rotation};
use spattn_base::error::UsageError;
use spattn_base::memory::{self, product, sum};

/// Prompt tokens that pass the layers together; bounds the memory of activations.
pub(super) const PREFILL_CHUNK: usize = 2048;
/// The same on a GPU.
pub const GPU_PREFILL_CHUNK: usize = 8192;
/// Weights that are dequantised at a time for prompts on a GPU.
pub(super) const GPU_PANEL: usize = 16 << 20;
/// Bytes of scores that methods which pick on a GPU make at a time, if one row does not take more.
const GPU_SCORES: usize = 64 << 20;
/// Tokens behind a prefix that most runs have room for.
const GPU_TAIL: usize = 256;

/// What a decoder is like, without its weights.
#[derive(Debug, Clone)]
pub struct Dimensions {
    pub(super) config: ModelConfig,
    pub(super) rope: Rope,
    pub(super) storage: StorageTypes,
    /// Numbers of all weight matrices.
    weight_numbers: usize,
    /// What matrices take if some stay in the blocks of their file; otherwise all are of the storage type.
    blocks: Option<KeptBlocks>,
    specs: LayerSpecs,
}

impl Dimensions {
    /// Of a decoder that stores its numbers in `storage`; a [`KvDtype`] stands for weights of the same type too.
    pub fn new(config: &ModelConfig, storage: impl Into<StorageTypes>) -> Self {
        let rope = Rope::new(&config.rope, config.head_dim, config.max_position_embeddings);
        let specs = LayerSpecs::uniform(config.layers, AttentionSpec::of_width(config.head_dim));
        Self {
            config: config.clone(),
            rope,
            storage: storage.into(),
            weight_numbers: layers::matrix_numbers(config),
            blocks: None,
            specs,
        }
    }

    /// The same with matrices kept in the quantised blocks that `weights` has them in, if it has.
    #[must_use]
    pub fn keeping_blocks(self, weights: &Weights) -> Self {
        Self { blocks: KeptBlocks::of(&self.config, weights, self.storage.weights), ..self }
    }

    /// The matrices that stay in quantised blocks, if there are any.
    pub fn blocks(&self) -> Option<&KeptBlocks> {
        self.blocks.as_ref()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Storage type of keys and values.
    pub fn dtype(&self) -> KvDtype {
        self.storage.kv
    }

    /// Storage type of weight matrices that do not stay in [blocks](Self::blocks).
    pub fn weight_dtype(&self) -> WeightDtype {
        self.storage.weights
    }

    /// How each layer attends.
    pub fn layer_specs(&self) -> &LayerSpecs {
        &self.specs
    }

    /// Bytes of all weight matrices in memory.
    pub fn weight_bytes(&self) -> usize {
        match &self.blocks {
            Some(blocks) => blocks.bytes,
            None => self.storage.weights.bytes_of(self.weight_numbers()),
        }
    }

    /// Bytes of the weight matrices that a decode step reads; see [`step_weight_numbers`](Self::step_weight_numbers).
    pub fn step_weight_bytes(&self) -> usize {
        match &self.blocks {
            Some(blocks) => blocks.bytes - blocks.table_bytes,
            None => self.storage.weights.bytes_of(self.step_weight_numbers()),
        }
    }

    /// Numbers of all weight matrices.
    pub fn weight_numbers(&self) -> usize {
        self.weight_numbers
    }

    /// Numbers of the weight matrices that a decode step reads: all but the embedding table, of which it reads a row a token,
    /// unless the table is the output matrix as well.
    pub fn step_weight_numbers(&self) -> usize {
        let c = &self.config;
        let table = if c.tie_word_embeddings { 0 } else { product([c.vocab_size, c.hidden_size]) };
        self.weight_numbers() - table
    }

    /// Bytes that reading the weights takes: of all of them, and of the largest tensor as it is stored.
    pub fn loading_bytes(&self) -> usize {
        if let Some(blocks) = &self.blocks {
            return sum([blocks.bytes, blocks.largest]);
        }
        let c = &self.config;
        let rows = c.vocab_size.max(c.intermediate_size).max(product([c.heads, c.head_dim]));
        sum([self.weight_bytes(), self.storage.weights.bytes_of(product([rows, c.hidden_size]))])
    }

    /// Makes sure that the weights can be in memory; `id` names the model.
    ///
    /// # Errors
    /// If they cannot.
    pub fn check_weights(&self, id: &str) -> Result<(), UsageError> {
        let hint = match self.storage.weights {
            _ if self.blocks.is_some() => "choose a smaller model, or one of fewer bits",
            WeightDtype::F32 => "choose a smaller model, or --dtype bf16",
            WeightDtype::F16 | WeightDtype::Bf16 => "choose a smaller model",
        };
        memory::check(self.loading_bytes() as u64, format!("the weights of {id} take"), hint)
    }

    /// Multiplications of a causal prefill of so many tokens, in millions: a token attends to half of them in the mean.
    ///
    /// All that deals work out, tells how much is done or estimates how long it takes goes by it.
    pub fn prefill_products(&self, tokens: usize) -> u64 {
        self.products(tokens, tokens / 2)
    }

    /// Multiplications of so many rows with all weights, and of their queries with the keys of `tokens` tokens each, in millions,
    /// rounded up: whole numbers, which add up to the same everywhere. Weighing values takes as many as the keys do, and is not counted.
    /// Shards are dealt by these numbers, so they stay what they are: another count would give a shard other examples than those that
    /// it has already.
    pub fn products(&self, rows: usize, tokens: usize) -> u64 {
        let c = &self.config;
        let row = sum([self.weight_numbers(), product([c.layers, c.heads, c.head_dim, tokens])]) as u64;
        (rows as u64).saturating_mul(row).div_ceil(1_000_000)
    }

    /// Bytes of keys and values of one token over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        product([2, self.config.layers, self.config.kv_heads, self.config.head_dim, self.storage.kv.bytes()])
    }

    /// Bytes that a prefill of `tokens` and its prefix take at most, beyond the weights; `at_once` if a method has to see
    /// all of the prompt at each layer.
    pub fn prefill_bytes(&self, tokens: usize, at_once: bool) -> usize {
        let c = &self.config;
        let rows = if at_once { tokens } else { tokens.min(PREFILL_CHUNK) };
        let qkv = product([sum([c.heads, c.kv_heads, c.kv_heads]), c.head_dim]);
        let widest = sum([product([2, c.intermediate_size]), qkv, product([4, c.hidden_size])]);
        let packed = product([2, tokens, c.kv_heads, c.head_dim]);
        let prefix = product([tokens, self.kv_bytes_per_token()]);
        sum([prefix, product([4, sum([product([2, rows, widest]), packed])])])
    }

    /// Bytes of a GPU's memory that a prefill of `tokens`, its prefix and what follows it in `runs` runs take at most, beyond
    /// the weights; `at_once` as for [`prefill_bytes`](Self::prefill_bytes).
    pub fn gpu_bytes(&self, tokens: usize, runs: usize, at_once: bool) -> usize {
        let c = &self.config;
        let rows = if at_once { tokens } else { tokens.min(GPU_PREFILL_CHUNK) }.next_power_of_two();
        let heads = product([2, sum([c.heads, c.kv_heads]), c.head_dim]);
        let width = sum([heads, c.hidden_size, product([3, c.intermediate_size])]);
        let row = sum([product([4, c.hidden_size]), product([self.storage.kv.bytes(), width])]);
        // By query head, and what those of a group reduce to.
        let scores = product([2, product([4, c.heads, tokens]).max(GPU_SCORES)]);
        let kept = product([sum([tokens, product([runs, GPU_TAIL])]), self.kv_bytes_per_token()]);
        let panel = if self.blocks.is_some() { product([self.storage.kv.bytes(), GPU_PANEL]) } else { 0 };
        sum([kept, product([rows, row]), scores, panel])
    }

    /// Why the kernels for GPUs cannot take the model, if they cannot.
    pub fn gpu_obstacle(&self) -> Option<String> {
        if StorageTypes::from(self.storage.kv) != self.storage {
            let StorageTypes { weights, kv } = self.storage;
            return Some(format!(
                "the kernels for GPUs take weights, keys and values of one type, and they are {} and {}",
                weights.name(),
                kv.name()
            ));
        }
        if let Some(what) = self.config.block.gpu_obstacle() {
            return Some(format!("the kernels for GPUs take no {what}, which {} has", self.config.family));
        }
        let (d, inner) = (self.config.head_dim, self.config.intermediate_size);
        if d % 8 != 0 || d > 256 {
            return Some(format!(
                "the kernels for GPUs take heads of up to 256 channels in steps of 8, and the model's have {d}"
            ));
        }
        if let Some(reason) = self.specs.beyond_plain().first() {
            return Some(format!("the kernels for GPUs do not take {reason}"));
        }
        (inner % 8 != 0)
            .then(|| format!("the kernels for GPUs take inner widths in steps of 8, and the model's is {inner}"))
    }

    /// The shape of a prefix of `tokens`, for what is gathered while it is read.
    pub fn prompt_shape(&self, tokens: usize) -> PromptShape {
        let c = &self.config;
        PromptShape { layers: c.layers, heads: c.heads, kv_heads: c.kv_heads, d: c.head_dim, tokens }
    }

    /// Angles by which queries and keys of a sequence of `tokens` are rotated, for all of its positions.
    pub fn angles(&self, tokens: usize) -> RopeTable {
        let mut table = RopeTable::new(&self.rope, tokens);
        table.grow(tokens);
        table
    }

    /// Moves queries and keys to other positions in a sequence of up to `tokens`; `None` if the model's
    /// frequencies change within it (`dynamic` scaling, beyond the trained length).
    pub fn rotation(&self, tokens: usize) -> Option<Arc<dyn Rotation>> {
        Turn::new(&self.rope, tokens).map(|turn| Arc::new(turn) as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Gate;
    use crate::source::ModelSource;

    fn of(shape: &str, change: impl Fn(&mut ModelConfig)) -> Dimensions {
        let texts = ModelSource::parse(&format!("random:{shape}")).unwrap().resolve_texts().unwrap();
        let mut config = texts.config().unwrap();
        change(&mut config);
        Dimensions::new(&config, KvDtype::Bf16)
    }

    #[test]
    fn a_published_shape_has_its_published_size() {
        let shape = of("llama-3.1-8b", |_| {});
        // 8.03 billion numbers, of which norms are 0.27 million; 128 KiB of keys and values a token.
        assert!((16.05e9..16.07e9).contains(&(shape.weight_bytes() as f64)), "{}", shape.weight_bytes());
        assert_eq!(shape.kv_bytes_per_token(), 128 << 10);
        let (tokens, gib) = (128 << 10, 1usize << 30);
        let chunked = shape.gpu_bytes(tokens, 1, false);
        assert!((16 * gib..18 * gib).contains(&chunked), "16 GiB of keys and values, and activations: {chunked}");
        // Gate and up alone are 28,672 numbers of 2 bytes a row.
        assert!(shape.gpu_bytes(tokens, 1, true) > 16 * gib + tokens * 28_672 * 2);
        assert_eq!(shape.gpu_bytes(tokens, 9, false) - chunked, 8 * 256 * (128 << 10));
    }

    #[test]
    fn a_prefill_has_as_many_products_as_are_counted_one_by_one() {
        let shape = of("llama-3.2-1b", |_| {});
        let c = shape.config().clone();
        let weights = (shape.weight_bytes() / 2) as u64;
        for tokens in [2, 64, 300] {
            let mut counted = 0u64;
            for row in 0..tokens {
                counted += weights;
                for _ in 0..c.layers * c.heads {
                    // Each key up to the row's own.
                    (0..=row).for_each(|_| counted += c.head_dim as u64);
                }
            }
            // A token attends to half of the tokens before it in the mean, and to itself, which is left out.
            let own = (tokens * c.layers * c.heads * c.head_dim) as u64;
            let millions = shape.prefill_products(tokens) * 1_000_000;
            assert!((counted - own..counted + 1_000_000).contains(&millions), "{tokens}: {counted}, not {millions}");
        }
        assert!(shape.prefill_products(8192) > 64 * shape.prefill_products(128), "attention grows with the square");
        assert_eq!(shape.prefill_products(usize::MAX), u64::MAX.div_ceil(1_000_000), "no more than there are numbers");
    }

    #[test]
    fn what_the_kernels_for_gpus_cannot_take_is_said() {
        for (head_dim, inner, said) in
            [(128, 64, None), (80, 72, None), (20, 64, Some("20")), (264, 64, Some("264")), (64, 68, Some("68"))]
        {
            let obstacle = of("llama-3.2-1b", |c| (c.head_dim, c.intermediate_size) = (head_dim, inner)).gpu_obstacle();
            assert_eq!(obstacle.is_some(), said.is_some(), "{head_dim}, {inner}");
            assert!(obstacle.is_none_or(|obstacle| obstacle.ends_with(said.unwrap())));
        }
        let gelu = of("llama-3.2-1b", |c| c.block.gate = Gate::GeluTanh).gpu_obstacle().unwrap();
        assert_eq!(gelu, "the kernels for GPUs take no gate other than SiLU, which LlamaForCausalLM has");
        let mixed = StorageTypes { weights: WeightDtype::F32, kv: KvDtype::Bf16 };
        let obstacle = Dimensions::new(of("llama-3.2-1b", |_| {}).config(), mixed).gpu_obstacle().unwrap();
        assert!(obstacle.ends_with("they are f32 and bf16"), "{obstacle}");
    }

    #[test]
    fn weights_and_caches_are_counted_in_their_own_types() {
        let config = of("llama-3.2-1b", |_| {}).config().clone();
        let mixed = Dimensions::new(&config, StorageTypes { weights: WeightDtype::F32, kv: KvDtype::Bf16 });
        let [wide, narrow] = [KvDtype::F32, KvDtype::Bf16].map(|dtype| Dimensions::new(&config, dtype));
        assert_eq!(mixed.weight_bytes(), wide.weight_bytes());
        assert_eq!(mixed.kv_bytes_per_token(), narrow.kv_bytes_per_token());
        assert_eq!(mixed.weight_bytes(), 2 * narrow.weight_bytes());
    }
}
