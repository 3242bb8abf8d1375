//! Candle-transformers' models behind one interface: tokens in, logits of the last token out.

use candle_core::{DType, Result, Tensor};
use candle_transformers::models::smol::smollm3;
use candle_transformers::models::{
    gemma2, gemma3, glm4_new, granite, llama, mistral, mixtral, olmo2, phi3, quantized_glm4, quantized_llama,
    quantized_phi3, quantized_qwen2, qwen2, qwen3, qwen3_moe,
};

/// A model that keeps the keys and values of the tokens it has read.
pub(super) trait Network {
    /// Reads tokens `[1][count]` after the first `before`; returns the last one's logits.
    fn read(&mut self, tokens: &Tensor, before: usize) -> Result<Tensor>;

    /// Forgets all tokens.
    fn restart(&mut self);
}

/// Reads tokens, and returns the logits of the last one as numbers.
pub(super) fn logits(network: &mut dyn Network, tokens: &[u32], before: usize) -> Result<Vec<f32>> {
    let tokens = Tensor::new(tokens, &candle_core::Device::Cpu)?.unsqueeze(0)?;
    network.read(&tokens, before)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

macro_rules! network {
    ($model:ty) => {
        network!($model, |model| model.clear_kv_cache());
    };
    ($model:ty, |$name:ident| $restart:expr) => {
        impl Network for $model {
            fn read(&mut self, tokens: &Tensor, before: usize) -> Result<Tensor> {
                self.forward(tokens, before)
            }

            fn restart(&mut self) {
                let $name = self;
                $restart
            }
        }
    };
}

network!(gemma2::Model);
network!(gemma3::Model);
network!(glm4_new::ModelForCausalLM);
network!(mistral::Model);
network!(olmo2::Model);
network!(phi3::Model);
network!(qwen2::ModelForCausalLM);
network!(qwen3::ModelForCausalLM);
network!(qwen3_moe::ModelForCausalLM);
network!(smollm3::ModelForCausalLM);
network!(quantized_llama::ModelWeights);
network!(quantized_qwen2::ModelWeights);
// These models forget when they read at position 0.
network!(quantized_glm4::ModelWeights, |_model| ());
network!(quantized_phi3::ModelWeights, |_model| ());

/// A model with a separate KV cache, as candle's Llama and Granite have.
pub(super) struct WithCache<M, C> {
    model: M,
    /// The cache before anything is read.
    empty: C,
    cache: C,
}

impl<M, C: Clone> WithCache<M, C> {
    pub(super) fn new(model: M, empty: C) -> Self {
        Self { model, cache: empty.clone(), empty }
    }
}

impl Network for WithCache<llama::Llama, llama::Cache> {
    fn read(&mut self, tokens: &Tensor, before: usize) -> Result<Tensor> {
        self.model.forward(tokens, before, &mut self.cache)
    }

    fn restart(&mut self) {
        self.cache = self.empty.clone();
    }
}

impl Network for WithCache<granite::Granite, granite::Cache> {
    fn read(&mut self, tokens: &Tensor, before: usize) -> Result<Tensor> {
        self.model.forward(tokens, before, &mut self.cache)
    }

    fn restart(&mut self) {
        self.cache = self.empty.clone();
    }
}

/// Mixtral, which cannot forget, so it restarts as a copy. Copies share the weights.
pub(super) struct Copied {
    empty: mixtral::Model,
    model: mixtral::Model,
}

impl Copied {
    pub(super) fn new(empty: mixtral::Model) -> Self {
        Self { model: empty.clone(), empty }
    }
}

impl Network for Copied {
    fn read(&mut self, tokens: &Tensor, before: usize) -> Result<Tensor> {
        self.model.forward(tokens, before)
    }

    fn restart(&mut self) {
        self.model = self.empty.clone();
    }
}
