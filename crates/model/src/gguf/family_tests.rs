//! Golden checkpoints as written by llama.cpp's converter (`scripts/make_golden_gguf.py families`), compared with the same checkpoints as
//! safetensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::families::ARCHITECTURES;
use super::open;
use crate::config::ModelConfig;
use crate::decoder::{Decoder, Dimensions};
use crate::device::Device;
use crate::layers;
use crate::tensors::{StoredTensor, StoredType, TensorInfo, TensorSource, Weights, WeightsError};
use spattn_attention::kv::KvDtype;

/// The file, the checkpoint, and config keys that differ: files cannot state them, so llama.cpp's values are used.
fn files() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("mistral", "mistral", json!({})),
        ("qwen2", "qwen2", json!({})),
        ("qwen3", "qwen3", json!({})),
        ("mixtral", "mixtral", json!({})),
        ("qwen3moe", "qwen3-moe", json!({"num_hidden_layers": 1, "mlp_only_layers": []})),
        ("gemma2", "gemma2", json!({"query_pre_attn_scalar": 32})),
        ("gemma3", "gemma3-wrapped", json!({"text_config": {"query_pre_attn_scalar": 8}})),
        (
            "gemma3-unscaled",
            "gemma3-wrapped",
            json!({"text_config": {"query_pre_attn_scalar": 8, "rope_scaling": null}}),
        ),
        ("phi3", "phi3", json!({})),
        ("phi3-long", "phi3-long", json!({})),
        ("phi4-mini", "phi4-mini", json!({})),
        ("mistral3", "mistral3", json!({})),
        ("ministral3", "ministral3", json!({})),
        ("granite", "granite", json!({})),
        ("glm4", "glm4", json!({})),
        ("olmo2", "olmo2", json!({})),
        ("olmo3", "olmo3", json!({})),
        ("smollm3", "smollm3", json!({"no_rope_layers": [1, 1, 1]})),
        ("seed_oss", "seed-oss", json!({})),
    ]
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn merge(config: &mut Map<String, Value>, changed: &Value) {
    for (key, value) in changed.as_object().unwrap() {
        match config.get_mut(key).and_then(Value::as_object_mut) {
            Some(inner) if value.is_object() => merge(inner, value),
            _ => drop(config.insert(key.clone(), value.clone())),
        }
    }
}

/// A model: its config, and weights compared with it.
type Read = (ModelConfig, Weights);

fn checkpoint(name: &str, changed: &Value) -> Read {
    let mut stated = golden_json(&format!("models/{name}/config.json"));
    merge(stated.as_object_mut().unwrap(), changed);
    let mut config = ModelConfig::parse(&stated.to_string(), name).unwrap();
    let mut weights = Weights::open_folder(&golden(&format!("models/{name}"))).unwrap();
    crate::checkpoint::compare(&mut config, &mut weights).unwrap();
    (config, weights)
}

fn gguf(file: &str) -> Read {
    let (texts, mut weights) = open(&golden(&format!("gguf/families/{file}.gguf")), file.into()).unwrap();
    let mut config = texts.config().unwrap();
    assert_eq!(texts.notes, Vec::<String>::new(), "{file}");
    let notes = crate::checkpoint::compare(&mut config, &mut weights).unwrap();
    assert_eq!(notes, Vec::<String>::new(), "{file}");
    (config, weights)
}

/// Logits at some positions of the checkpoint's prompt.
fn logits((config, weights): &Read, golden: &Value) -> Vec<f32> {
    let decoder = Decoder::load(&Dimensions::new(config, KvDtype::F32), weights, Device::Cpu).unwrap();
    let whole = |key: &str| golden[key].as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect::<Vec<_>>();
    let prompt: Vec<u32> = whole("prompt").into_iter().map(|id| id as u32).collect();
    let all = decoder.all_logits(&prompt).unwrap();
    let row = |position: u64| all[position as usize * config.vocab_size..][..config.vocab_size].to_vec();
    whole("positions").into_iter().flat_map(row).collect()
}

/// A config's notes, without the file's name and the notes of a wrapper.
fn notes(config: &ModelConfig) -> Vec<&str> {
    let texts = config.notes.iter().map(|note| note.split_once(": ").unwrap().1);
    texts.filter(|note| !note.contains("reads images too")).collect()
}

fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_file_is_the_same_model_as_the_checkpoint() {
    for (file, name, changed) in files() {
        let (ours, theirs) = (gguf(file), checkpoint(name, &changed));
        assert_eq!(notes(&ours.0), notes(&theirs.0), "{file}");
        for (tensor, shape) in layers::tensors(&theirs.0) {
            let read = |weights: &Weights| weights.read(&tensor, &shape).unwrap().to_f32();
            let difference = largest_difference(&read(&ours.1), &read(&theirs.1));
            assert!(difference < 1e-6, "{file}: {tensor} is off by {difference}");
        }
        let golden = golden_json(&format!("models/{name}/golden.json"));
        let own = logits(&ours, &golden);
        let difference = largest_difference(&own, &logits(&theirs, &golden));
        assert!(difference < 1e-4, "{file}: off by {difference}");
        if changed == json!({}) {
            let rows = golden["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
            let expected: Vec<f32> = rows.map(|x| x.as_f64().unwrap() as f32).collect();
            let difference = largest_difference(&own, &expected);
            assert!(difference < 1e-4, "{file}: off by {difference} from transformers'");
        }
    }
}

#[test]
fn every_family_has_a_file() {
    for family in ARCHITECTURES {
        let path = |file: &str| golden(&format!("gguf/families/{file}.gguf"));
        let is_of = |file: &str| {
            std::fs::read(path(file)).unwrap().windows(family.name.len()).any(|w| w == family.name.as_bytes())
        };
        assert!(files().iter().any(|(file, ..)| is_of(file)), "{}", family.name);
    }
}

/// The numbers after a conversion to Q8_0: in each 32, the largest is 127 steps, whose width is rounded to half precision.
fn rounded(numbers: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| {
        let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let step = largest / 127.0;
        let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
        let width = half::f16::from_f32(step).to_f32();
        block.iter().map(move |x| round(x * inverse) * width).collect::<Vec<_>>()
    };
    numbers.chunks(32).flat_map(block).collect()
}

/// Rounds halves away from zero, as the reference does.
fn round(x: f32) -> f32 {
    x.signum() * (x.abs() + 0.5).floor()
}

/// Tensors in memory.
#[derive(Debug, Default)]
struct Given(BTreeMap<String, (TensorInfo, Vec<f32>)>);

impl Given {
    fn add(&mut self, name: &str, shape: &[usize], numbers: Vec<f32>) {
        let info = TensorInfo { shape: shape.to_vec(), stored: Ok(StoredType::F32), bytes: 4 * numbers.len() as u64 };
        self.0.insert(name.to_owned(), (info, numbers));
    }
}

impl TensorSource for Given {
    fn label(&self) -> &str {
        "given"
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.0.get(name).map(|(info, _)| info)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let bytes = self.0[name].1.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(StoredTensor { dtype: StoredType::F32, shape: shape.to_vec(), bytes })
    }

    fn sha256(&self) -> Result<String, WeightsError> {
        Ok(String::new())
    }
}

#[test]
fn quantised_tensors_are_those_of_the_checkpoint_in_blocks() {
    for (file, name, changed) in files() {
        let quantised = format!("{file}-q8_0");
        if !golden(&format!("gguf/families/{quantised}.gguf")).exists() {
            continue;
        }
        let (ours, theirs) = (gguf(&quantised), checkpoint(name, &changed));
        let (mut in_blocks, mut dequantised) = (0, Given::default());
        for (tensor, shape) in layers::tensors(&theirs.0) {
            let read = |weights: &Weights| weights.read(&tensor, &shape).unwrap().to_f32();
            let (own, exact) = (read(&ours.1), read(&theirs.1));
            let expected = if largest_difference(&own, &exact) < 1e-6 { exact } else { rounded(&exact) };
            in_blocks += usize::from(expected != read(&theirs.1));
            let difference = largest_difference(&own, &expected);
            assert!(difference < 1e-6, "{quantised}: {tensor} is off by {difference}");
            dequantised.add(&tensor, &shape, expected);
        }
        assert!(in_blocks >= 6, "{quantised}: {in_blocks} tensors are in blocks");
        let golden = golden_json(&format!("models/{name}/golden.json"));
        let reference = (theirs.0, Weights::from(dequantised));
        let difference = largest_difference(&logits(&ours, &golden), &logits(&reference, &golden));
        assert!(difference < 1e-4, "{quantised}: off by {difference}");
    }
}
