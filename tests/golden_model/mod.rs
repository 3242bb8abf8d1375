//! Tiny random checkpoints of every supported architecture and RoPE variant, with the numbers that Hugging Face transformers computes for
//! them (`scripts/make_golden_models.py`).

mod names;

use serde_json::Value;
use spattn::attention::methods::configure;
use spattn::attention::{IndexCache, Policy, expand_grid};
use spattn::kernels::cpu::topk::argmax;
use spattn::kv::KvDtype;
use spattn::model::checkpoint;
use spattn::model::config::ModelConfig;
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::Device;
use spattn::model::engine::Stream;
use spattn::model::tensors::Weights;

pub use names::{names, root};

/// A checkpoint and the reference's numbers.
pub struct Golden {
    pub decoder: Decoder,
    pub prompt: Vec<u32>,
    pub positions: Vec<usize>,
    pub logits: Vec<Vec<f32>>,
    pub continuation: Vec<u32>,
    pub last_logits: Vec<f32>,
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The dimensions of a checkpoint's decoder, and its weights.
pub fn opened(name: &str, dtype: KvDtype) -> (Dimensions, Weights) {
    let folder = root().join(name);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config = ModelConfig::parse(&config, "config.json").unwrap();
    let mut weights = Weights::open_folder(&folder).unwrap();
    let notes = checkpoint::compare(&mut config, &mut weights).unwrap();
    assert!(notes.is_empty(), "{name}: {notes:?}");
    (Dimensions::new(&config, dtype), weights)
}

/// The decoder of a checkpoint.
pub fn decoder(name: &str, dtype: KvDtype, device: Device) -> Decoder {
    let (dimensions, weights) = opened(name, dtype);
    Decoder::load(&dimensions, &weights, device).unwrap()
}

/// The names of the checkpoints that the GPU kernels support.
pub fn names_on_gpus() -> Vec<String> {
    let is_taken = |name: &String| {
        let config = std::fs::read_to_string(root().join(name).join("config.json")).unwrap();
        let config = ModelConfig::parse(&config, name).unwrap();
        Dimensions::new(&config, KvDtype::F32).gpu_obstacle().is_none()
    };
    names().into_iter().filter(is_taken).collect()
}

/// A checkpoint in f32.
pub fn load(name: &str, device: Device) -> Golden {
    let golden = std::fs::read_to_string(root().join(name).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    Golden {
        decoder: decoder(name, KvDtype::F32, device),
        prompt: ids(&golden["prompt"]),
        positions: ids(&golden["positions"]).into_iter().map(|p| p as usize).collect(),
        logits: golden["logits"].as_array().unwrap().iter().map(floats).collect(),
        continuation: ids(&golden["continuation"]),
        last_logits: floats(&golden["last_logits"]),
    }
}

impl Golden {
    /// The greedy continuation of the prompt, and the logits of the last step. The first `prefix` tokens are prefilled, the others read
    /// by `full`.
    pub fn continues(&self, prefix: usize) -> (Vec<u32>, Vec<f32>) {
        let (decoder, n) = (&self.decoder, self.prompt.len());
        let full = configure(&expand_grid("full").unwrap()[0], &Policy::default()).unwrap();
        let prefill = decoder.prefill(&self.prompt[..prefix], n).unwrap();
        let mut fork = IndexCache::new(prefill.prefix, KvDtype::F32, 0).fork(&full, false).unwrap();
        let mut step = |tokens: &[u32]| decoder.step(&mut [Stream { fork: &mut fork, tokens }], n).unwrap().remove(0);
        let mut logits = if prefix < n { step(&self.prompt[prefix..]) } else { prefill.logits };
        let mut continuation = vec![argmax(&logits) as u32];
        while continuation.len() < self.continuation.len() {
            logits = step(&continuation[continuation.len() - 1..]);
            continuation.push(argmax(&logits) as u32);
        }
        (continuation, logits)
    }
}
