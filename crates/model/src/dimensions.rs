//! A decoder without its weights: shapes, storage types, and memory requirements.

use std::ops::Range;
use std::sync::Arc;

use super::config::ModelConfig;
use super::families::{AttentionScale, Experts, LayerKind};
pub use super::kept_blocks::KeptBlocks;
use super::layers::{self, MatrixNumbers};
use super::rope::{Rope, RopeTable, Turn};
use super::tensors::{StorageTypes, WeightDtype, Weights};
use spattn_attention::kv::{KvDtype, KvShape};
use spattn_attention::{AttentionSpec, LayerSpecs, PromptShape, Rotation, SoftmaxScale};
use spattn_base::error::UsageError;
use spattn_base::memory::{self, product, sum};

/// Prompt tokens that pass through a layer together; bounds the memory of activations.
pub(super) const PREFILL_CHUNK: usize = 2048;
/// The same on a GPU.
pub const GPU_PREFILL_CHUNK: usize = 8192;
/// Weights that are dequantised together for prompts on a GPU.
pub(super) const GPU_PANEL: usize = 16 << 20;
/// Bytes of scores that methods computing on a GPU make at a time, unless a single row takes more.
const GPU_SCORES: usize = 64 << 20;
/// Tokens after a prefix for which most runs have room.
const GPU_TAIL: usize = 256;

/// A decoder without its weights.
#[derive(Debug, Clone)]
pub struct Dimensions {
    pub(super) config: ModelConfig,
    ropes: Vec<Rope>,
    pub(super) storage: StorageTypes,
    numbers: MatrixNumbers,
    /// The sizes of the matrices if some stay in the blocks of their file; otherwise all have the storage type.
    blocks: Option<KeptBlocks>,
    specs: LayerSpecs,
}

impl Dimensions {
    /// A decoder that stores its numbers in `storage`; a [`KvDtype`] also sets the type of weights.
    pub fn new(config: &ModelConfig, storage: impl Into<StorageTypes>) -> Self {
        let rope = |rope| {
            Rope::new(rope, config.rotated(), config.max_position_embeddings).with_pairs(config.block.rope_pairs)
        };
        let specs: Vec<AttentionSpec> = (0..config.layers).map(|layer| attention_spec(config, layer)).collect();
        Self {
            config: config.clone(),
            ropes: config.ropes().map(rope).collect(),
            storage: storage.into(),
            numbers: layers::matrix_numbers(config),
            blocks: None,
            specs: specs.into(),
        }
    }

    /// The same decoder, but matrices that `weights` has in quantised blocks stay in them.
    #[must_use]
    pub fn keeping_blocks(self, weights: &Weights) -> Self {
        Self { blocks: KeptBlocks::of(&self.config, weights, self.storage.weights), ..self }
    }

    /// The matrices that stay in quantised blocks, if there are any.
    pub fn blocks(&self) -> Option<&KeptBlocks> {
        self.blocks.as_ref()
    }

    /// The same decoder with the sinks of all layers, `[layer][head]`. Sinks are weights, so they are zero until they are read.
    pub(super) fn with_sinks(self, sinks: Vec<Vec<f32>>) -> Self {
        if sinks.is_empty() {
            return self;
        }
        let given =
            |(spec, sinks): (&AttentionSpec, Vec<f32>)| AttentionSpec { sinks: Some(sinks.into()), ..spec.clone() };
        let specs: Vec<AttentionSpec> = self.specs.iter().zip(sinks).map(given).collect();
        Self { specs: specs.into(), ..self }
    }

    /// The rotary embeddings of the model, by number.
    pub(super) fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    /// The factor on rows of the embedding table, rounded to the storage type of weights, as in the reference.
    pub(super) fn embedding_scale(&self) -> f32 {
        self.storage.weights.rounded(self.config.block.embedding_scale)
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

    /// Its rotary embedding; `None` if it has none, or layers have different ones.
    pub fn only_rope(&self) -> Option<&Rope> {
        match self.ropes.as_slice() {
            [rope] => Some(rope),
            _ => None,
        }
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
            Some(blocks) => blocks.step_bytes,
            None => self.storage.weights.bytes_of(self.step_weight_numbers()),
        }
    }

    /// The number of elements of all weight matrices.
    pub fn weight_numbers(&self) -> usize {
        self.numbers.all
    }

    /// The number of elements of the weight matrices that a decode step of one token reads: all but the embedding table, unless it is also
    /// the output matrix, and of experts only those that the token is routed to.
    pub fn step_weight_numbers(&self) -> usize {
        let c = &self.config;
        let table = if c.tie_word_embeddings { 0 } else { product([c.vocab_size, c.hidden_size]) };
        self.numbers.passed - table
    }

    /// Bytes needed to load the weights: all of them, and the largest tensor as it is stored.
    pub fn loading_bytes(&self) -> usize {
        if let Some(blocks) = &self.blocks {
            return sum([blocks.bytes, blocks.largest]);
        }
        let c = &self.config;
        let rows = c.vocab_size.max(c.intermediate_size).max(product([c.heads, c.head_dim]));
        sum([self.weight_bytes(), self.storage.weights.bytes_of(product([rows, c.hidden_size]))])
    }

    /// Checks that the weights fit in memory; `id` names the model.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn check_weights(&self, id: &str) -> Result<(), UsageError> {
        let hint = match self.storage.weights {
            _ if self.blocks.is_some() => "choose a smaller model, or one of fewer bits",
            WeightDtype::F32 => "choose a smaller model, or --dtype bf16",
            WeightDtype::F16 | WeightDtype::Bf16 => "choose a smaller model",
        };
        memory::check(self.loading_bytes() as u64, format!("the weights of {id} take"), hint)
    }

    /// Multiplications of a causal prefill of `tokens` tokens, in millions; on average a token attends to half of them.
    ///
    /// Work is divided, progress is measured and time is estimated by this number.
    pub fn prefill_products(&self, tokens: usize) -> u64 {
        self.products(tokens, tokens / 2)
    }

    /// Multiplications, in millions rounded up, of `rows` rows with all weights that they pass through, and of their queries with the keys
    /// of `tokens` tokens each. Whole numbers add up to the same sum everywhere. Weighting values takes as many multiplications as the keys
    /// do, and is not counted. Shards are assigned by these numbers, so the formula must not change: a shard would get other examples than
    /// those that it already has.
    pub fn products(&self, rows: usize, tokens: usize) -> u64 {
        let c = &self.config;
        let row = sum([self.numbers.passed, product([c.layers, c.heads, c.head_dim, tokens])]) as u64;
        (rows as u64).saturating_mul(row).div_ceil(1_000_000)
    }

    /// The properties that keys and values of all layers share.
    pub fn kv_shape(&self) -> KvShape {
        KvShape { kv_heads: self.config.kv_heads, d: self.config.head_dim, dtype: self.storage.kv }
    }

    /// Bytes of the keys and values of one token in all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        product([2, self.config.layers, self.config.kv_heads, self.config.head_dim, self.storage.kv.bytes()])
    }

    /// The most bytes that a prefill of `tokens` and its prefix take, besides the weights; `at_once` if a method has to see the whole
    /// prompt at each layer.
    pub fn prefill_bytes(&self, tokens: usize, at_once: bool) -> usize {
        sum([product([tokens, self.kv_bytes_per_token()]), self.chunk_bytes(tokens, at_once)])
    }

    /// Like [`prefill_bytes`](Self::prefill_bytes), with only one layer of the prefix in memory at a time.
    pub fn prefill_bytes_by_layer(&self, tokens: usize, at_once: bool) -> usize {
        let layer = self.kv_bytes_per_token() / self.config.layers.max(1);
        sum([product([tokens, layer]), self.chunk_bytes(tokens, at_once)])
    }

    /// Bytes that a chunk of a prompt of `tokens` takes at a layer, besides the stored keys and values.
    fn chunk_bytes(&self, tokens: usize, at_once: bool) -> usize {
        let c = &self.config;
        let rows = if at_once { tokens } else { tokens.min(PREFILL_CHUNK) };
        let qkv = product([sum([c.heads, c.kv_heads, c.kv_heads]), c.head_dim]);
        let widest = sum([self.inner_numbers(), qkv, product([4, c.hidden_size])]);
        let packed = product([2, tokens, c.kv_heads, c.head_dim]);
        product([4, sum([product([2, rows, widest]), packed])])
    }

    /// The most numbers of a row between the gate and down projections: the gate and what it gates; with experts, also the row's input and
    /// output, since all rows may go to one expert.
    fn inner_numbers(&self) -> usize {
        let c = &self.config;
        let gated = product([2, c.intermediate_size]);
        c.block
            .experts
            .map_or(gated, |experts| gated.max(sum([product([3, experts.width]), product([2, c.hidden_size])])))
    }

    /// The most bytes of a GPU's memory that a prefill of `tokens`, its prefix and the tokens appended by `runs` runs take for `layers`,
    /// besides the weights; `at_once` as for [`prefill_bytes`](Self::prefill_bytes).
    pub fn gpu_bytes(&self, layers: &Range<usize>, tokens: usize, runs: usize, at_once: bool) -> usize {
        self.gpu_bytes_without_prefix(layers, tokens, runs, at_once)
            .saturating_add(product([tokens, self.kv_bytes_per_token_of(layers)]))
    }

    /// Like [`gpu_bytes`](Self::gpu_bytes), if the prefix is in host memory and the GPU has room for one layer of it.
    pub fn gpu_bytes_below_host(&self, layers: &Range<usize>, tokens: usize, runs: usize, at_once: bool) -> usize {
        let one = layers.start..layers.end.min(layers.start + 1);
        self.gpu_bytes_without_prefix(layers, tokens, runs, at_once)
            .saturating_add(product([tokens, self.kv_bytes_per_token_of(&one)]))
    }

    fn gpu_bytes_without_prefix(&self, layers: &Range<usize>, tokens: usize, runs: usize, at_once: bool) -> usize {
        let c = &self.config;
        let rows = if at_once { tokens } else { tokens.min(GPU_PREFILL_CHUNK) }.next_power_of_two();
        let heads = product([2, sum([c.heads, c.kv_heads]), c.head_dim]);
        let width = sum([heads, c.hidden_size, product([3, c.intermediate_size])]);
        let row =
            sum([product([4, sum([c.hidden_size, self.branch_numbers()])]), product([self.storage.kv.bytes(), width])]);
        // Scores of each query head, and the results after reducing a group.
        let scores = product([2, product([4, c.heads, tokens]).max(GPU_SCORES)]);
        let tails = product([runs, GPU_TAIL, self.kv_bytes_per_token_of(layers)]);
        let panel = if self.blocks.is_some() { product([self.storage.kv.bytes(), GPU_PANEL]) } else { 0 };
        sum([tails, product([rows, row]), self.gpu_expert_bytes(rows), scores, panel])
    }

    /// Numbers of a row on a GPU that hold a branch before it is normed or scaled; 0 if it is added to the residual stream directly.
    pub(super) fn branch_numbers(&self) -> usize {
        let block = &self.config.block;
        let is_added_at_once =
            block.names.attention_post_norm.or(block.names.mlp_post_norm).is_none() && block.branch_scale == 1.0;
        if is_added_at_once { 0 } else { self.config.hidden_size }
    }

    /// The property of the model's experts that the GPU kernels do not support, if any.
    fn expert_obstacle(&self) -> Option<String> {
        // The limits of `spattn_cuda`, which not every build includes.
        const MOST: [usize; 2] = [512, 32];
        let Experts { count, used, width, .. } = self.config.block.experts?;
        if count > MOST[0] || used > MOST[1] {
            return Some(format!(
                "more than {} experts of which {} are used, and the model has {count} and uses {used}",
                MOST[0], MOST[1]
            ));
        }
        if width % 8 != 0 {
            return Some(format!("experts whose width is not a multiple of 8, and the model's are {width} wide"));
        }
        (self.branch_numbers() > 0).then(|| "experts whose output is normed or scaled".to_owned())
    }

    /// Bytes of a GPU's memory for the activations of experts, for `rows` rows.
    fn gpu_expert_bytes(&self, rows: usize) -> usize {
        // Up to this many rows, all experts of a row are computed together; beyond it, one expert after the other.
        const FEW_ROWS: usize = 8;
        let (hidden, bytes) = (self.config.hidden_size, self.storage.kv.bytes());
        self.config.block.experts.map_or(0, |Experts { count, used, width, .. }| {
            let inner = product([3, width, rows.max(product([rows.min(FEW_ROWS), used]))]);
            // The router's logits, the rows of each expert, and an expert's input and output.
            let lists = product([4, rows, sum([count, product([4, used]), hidden])]);
            sum([lists, product([bytes, sum([product([rows, hidden]), inner])])])
        })
    }

    /// Why the GPU kernels cannot run the model, if they cannot.
    pub fn gpu_obstacle(&self) -> Option<String> {
        if StorageTypes::from(self.storage.kv) != self.storage {
            let StorageTypes { weights, kv } = self.storage;
            return Some(format!(
                "the GPU kernels need weights, keys and values of one type, and they are {} and {}",
                weights.name(),
                kv.name()
            ));
        }
        if let Some(what) = self.expert_obstacle() {
            return Some(format!("the GPU kernels do not support {what}"));
        }
        let (d, inner) = (self.config.head_dim, self.config.intermediate_size);
        if d % 8 != 0 || d > 256 {
            return Some(format!(
                "the GPU kernels need heads of a multiple of 8 and at most 256 channels, and the model's have {d}"
            ));
        }
        (inner % 8 != 0)
            .then(|| format!("the GPU kernels need an inner width that is a multiple of 8, and the model's is {inner}"))
    }

    /// The shape of a prefix of `tokens`, for data gathered during prefill.
    pub fn prompt_shape(&self, tokens: usize) -> PromptShape {
        let c = &self.config;
        PromptShape { layers: c.layers, heads: c.heads, kv_heads: c.kv_heads, d: c.head_dim, tokens }
    }

    /// The RoPE table of layers that see all tokens, for all positions of a sequence of `tokens` tokens.
    pub fn angles(&self, tokens: usize) -> RopeTable {
        let mut table = RopeTable::new(&self.ropes[0], tokens);
        table.grow(tokens);
        table
    }

    /// The rotation that moves queries and keys to other positions in a sequence that grows from a prompt of `prompt_tokens` to `tokens`.
    /// `None` if no single rotation fits all layers: layers have several tables or are not rotated, or the frequencies change within the
    /// sequence (`dynamic` scaling, beyond the trained length).
    pub fn rotation(&self, prompt_tokens: usize, tokens: usize) -> Option<Arc<dyn Rotation>> {
        if !self.has_one_rotation() {
            return None;
        }
        Turn::new(&self.ropes[0], prompt_tokens, tokens).map(|turn| Arc::new(turn) as _)
    }

    /// Whether queries and keys of all layers are rotated by one table.
    pub fn has_one_rotation(&self) -> bool {
        self.config.layer_kinds.kinds.iter().all(|kind| kind.rope == LayerKind::FULL.rope)
    }
}

/// The attention of a layer, with zeros for its sinks.
fn attention_spec(config: &ModelConfig, layer: usize) -> AttentionSpec {
    let block = &config.block;
    AttentionSpec {
        scale: match block.attention_scale {
            AttentionScale::HeadDim => SoftmaxScale::inverse_root(config.head_dim),
            AttentionScale::InverseRoot(of) => SoftmaxScale::inverse_root(of),
            AttentionScale::Factor(factor) => SoftmaxScale::of_factor(factor),
        },
        soft_cap: block.attention_cap,
        window: config.layer_kind(layer).window,
        sinks: block.names.sinks.map(|_| vec![0.0; config.heads].into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        // 8.03 billion numbers, of which norms are 0.27 million; 128 KiB of keys and values for each token.
        assert!((16.05e9..16.07e9).contains(&(shape.weight_bytes() as f64)), "{}", shape.weight_bytes());
        assert_eq!(shape.kv_bytes_per_token(), 128 << 10);
        let (tokens, gib) = (128 << 10, 1usize << 30);
        let chunked = shape.gpu_bytes(&(0..32), tokens, 1, false);
        assert!((16 * gib..18 * gib).contains(&chunked), "16 GiB of keys and values, and activations: {chunked}");
        // Gate and up alone take 28,672 numbers of 2 bytes for each row.
        assert!(shape.gpu_bytes(&(0..32), tokens, 1, true) > 16 * gib + tokens * 28_672 * 2);
        assert_eq!(shape.gpu_bytes(&(0..32), tokens, 9, false) - chunked, 8 * 256 * (128 << 10));
        // With the prefix in host memory, all layers but one are missing.
        let below = shape.gpu_bytes_below_host(&(0..32), tokens, 1, false);
        assert_eq!(chunked - below, tokens * shape.kv_bytes_per_token() / 32 * 31);
        let half = shape.gpu_bytes(&(16..32), tokens, 1, false);
        assert_eq!(chunked - half, (tokens + 256) * (64 << 10), "keys and values of half of the layers");
    }

    #[test]
    fn of_experts_a_token_passes_those_that_it_uses() {
        let shape = of("qwen3-30b-a3b", |_| {});
        // 30.5 billion numbers in total, of which a token passes through 3.3 billion.
        assert!((30.5e9..30.6e9).contains(&(shape.weight_numbers() as f64)), "{}", shape.weight_numbers());
        let table = 151_936 * 2048;
        let passed = (shape.step_weight_numbers() + table) as f64;
        assert!((3.3e9..3.4e9).contains(&passed), "{passed}");
        assert_eq!(shape.prefill_products(2), (2 * passed as u64 + 2 * 48 * 32 * 128).div_ceil(1_000_000));
        assert_eq!(shape.gpu_obstacle(), None);
        let obstacle = |change: fn(&mut Experts)| {
            of("qwen3-30b-a3b", |c| change(c.block.experts.as_mut().unwrap())).gpu_obstacle().unwrap()
        };
        assert!(obstacle(|experts| experts.count = 513).contains("the model has 513"));
        assert!(obstacle(|experts| experts.used = 33).contains("uses 33"));
        assert!(obstacle(|experts| experts.width = 764).contains("764 wide"));
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
                    // All keys up to the row's own.
                    (0..=row).for_each(|_| counted += c.head_dim as u64);
                }
            }
            // On average a token attends to half of the tokens before it, and to itself, which is not counted.
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
        let obstacle = of("qwen3-30b-a3b", |c| c.block.branch_scale = 0.5).gpu_obstacle().unwrap();
        assert_eq!(obstacle, "the GPU kernels do not support experts whose output is normed or scaled");
        let mixed = StorageTypes { weights: WeightDtype::F32, kv: KvDtype::Bf16 };
        let obstacle = Dimensions::new(of("llama-3.2-1b", |_| {}).config(), mixed).gpu_obstacle().unwrap();
        assert!(obstacle.ends_with("they are f32 and bf16"), "{obstacle}");
    }

    /// As in `Gemma3TextScaledWordEmbedding`: the root of 3,840 is 62 in bf16.
    #[test]
    fn the_scale_of_embeddings_is_rounded_to_what_weights_are_stored_in() {
        let config = of("llama-3.2-1b", |c| c.block.embedding_scale = 3840.0f32.sqrt()).config().clone();
        let scale = |dtype| Dimensions::new(&config, dtype).embedding_scale();
        assert_eq!((scale(KvDtype::Bf16), scale(KvDtype::F32)), (62.0, 3840.0f32.sqrt()));
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
