//! GGUF files against independent references (`scripts/make_golden_gguf.py`), and against the same checkpoints as safetensors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::open;
use super::writer::{GgufWriter, plain};
use crate::config::{CheckpointType, ModelConfig};
use crate::decoder::{Decoder, Dimensions};
use crate::device::Device;
use crate::layers::Checkpoint;
use crate::tensors::{StoredType, WeightDtype, Weights, WeightsError};
use spattn_attention::kv::KvDtype;
use spattn_base::error::UsageError;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn whole(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

fn decoder(config: &ModelConfig, weights: &Weights) -> Decoder {
    Decoder::load(&Dimensions::new(config, KvDtype::F32), weights, Device::Cpu).unwrap()
}

/// Compares logits at the positions of a golden file.
fn assert_logits(decoder: &Decoder, golden: &Value, name: &str) {
    let prompt: Vec<u32> = whole(&golden["prompt"]).into_iter().map(|id| id as u32).collect();
    let all = decoder.all_logits(&prompt).unwrap();
    let vocabulary = decoder.config().vocab_size;
    for (position, expected) in whole(&golden["positions"]).into_iter().zip(golden["logits"].as_array().unwrap()) {
        let (got, expected) = (&all[position * vocabulary..][..vocabulary], floats(expected));
        let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(expected.len() == vocabulary && worst < 1e-4, "{name} at {position}: off by {worst}");
    }
}

// --- Types ---

#[test]
fn tensors_of_every_type_are_what_the_reference_reads() {
    let (_, weights) = open(&golden("gguf/mixed.gguf"), "mixed".into()).unwrap();
    let told = golden_json("gguf/mixed.json");
    let mut types = BTreeSet::new();
    for (name, tensor) in told["tensors"].as_object().unwrap() {
        types.insert(tensor["type"].as_str().unwrap());
        let numbers = weights.read(name, &whole(&tensor["shape"])).unwrap().to_f32();
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-6 * b.abs().max(0.01);
        let shown: Vec<f32> = numbers.iter().copied().step_by(37).collect();
        let expected = floats(&tensor["values"]);
        assert_eq!(shown.len(), expected.len(), "{name}");
        let wrong = shown.iter().zip(&expected).position(|(a, b)| !near(*a, *b));
        assert!(wrong.is_none(), "{name} ({}), number {}", tensor["type"], 37 * wrong.unwrap());
        let sum: f64 = numbers.iter().map(|x| f64::from(*x)).sum();
        assert!((sum - tensor["sum"].as_f64().unwrap()).abs() < 1e-3, "{name}: a sum of {sum}");
    }
    assert_eq!(weights.names().count(), told["tensors"].as_object().unwrap().len());
    let read: Vec<String> = super::types::types_read().split(", ").map(str::to_owned).collect();
    assert!(read.iter().all(|name| types.contains(name.as_str())), "{types:?} are not all of {read:?}");
    let format = weights.format().unwrap();
    assert_eq!((format.name, format.file_type.as_deref()), ("GGUF", Some("Q4_K_M")));
    assert_eq!((format.types["Q4_K"], format.types["BF16"], format.types["F32"]), (2, 1, 8));
}

#[test]
fn logits_of_quantised_tensors_equal_the_reference() {
    let (texts, weights) = open(&golden("gguf/mixed.gguf"), "mixed".into()).unwrap();
    let wide = Dimensions::new(&texts.config().unwrap(), KvDtype::F32);
    let kept = wide.clone().keeping_blocks(&weights);
    assert!(kept.blocks().is_some());
    for (dimensions, name) in [(wide, "dequantised"), (kept, "in blocks")] {
        let decoder = Decoder::load(&dimensions, &weights, Device::Cpu).unwrap();
        assert_logits(&decoder, &golden_json("gguf/mixed.json"), name);
    }
}

#[test]
fn a_file_of_quantised_weights_names_no_type_so_that_the_device_decides() {
    let config = |file: &Path| open(file, "model".into()).unwrap().0.config().unwrap();
    assert_eq!(config(&golden("gguf/mixed.gguf")).checkpoint_type, None);
    let dir = TempDir::new().unwrap();
    let plain = GgufWriter::llama().write(dir.path(), "plain.gguf");
    assert_eq!(config(&plain).checkpoint_type, Some(CheckpointType::F32));
    let mut file = GgufWriter::llama();
    file.tensor("output.weight", &[1, 32], 8, vec![0; 34]);
    assert_eq!(config(&file.write(dir.path(), "one.gguf")).checkpoint_type, None, "one matrix is in blocks");
}

#[test]
fn numbers_in_blocks_have_to_fit_what_they_are_converted_to() {
    let (dir, mut file) = (TempDir::new().unwrap(), GgufWriter::llama());
    // A block of Q8_0 with numbers that are twice the largest of f16.
    let block = [&f16::MAX.to_le_bytes()[..], &[2; 32]].concat();
    file.tensor("output.weight", &[1, 32], 8, block);
    let (_, weights) = open(&file.write(dir.path(), "large.gguf"), "large".into()).unwrap();
    let read = |keeps_blocks, blocks_fit| {
        let checkpoint = Checkpoint { weights: &weights, dtype: WeightDtype::F16, keeps_blocks, blocks_fit };
        checkpoint.matrices(&["lm_head".to_owned()], &[1], 32)
    };
    assert_eq!(read(true, WeightDtype::F32).unwrap()[0].to_f32(), [2.0 * f16::MAX.to_f32(); 32]);
    for (keeps_blocks, blocks_fit) in [(true, WeightDtype::F16), (false, WeightDtype::F32)] {
        let error = read(keeps_blocks, blocks_fit).unwrap_err();
        assert!(matches!(error, WeightsError::TooLarge { dtype: "f16", .. }), "{error}");
    }
}

// --- The golden checkpoints as llama.cpp's converter writes them ---

/// Architecture and class of a golden checkpoint.
const CHECKPOINTS: [(&str, &str); 8] = [
    ("llama3", "llama"),
    ("llama-linear", "llama"),
    ("llama-yarn", "llama"),
    ("llama-bias", "llama"),
    ("llama-sharded", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
];

fn gguf_name(name: &str) -> String {
    let (stem, kind) = name.rsplit_once('.').unwrap();
    let outer = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
    if let Some((_, stored)) = outer.iter().find(|(known, _)| *known == stem) {
        return format!("{stored}.{kind}");
    }
    let (layer, part) = stem.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
    let stored = match part {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{stored}.{kind}")
}

/// The converter's `reshape(heads, 2, half, ...).swapaxes(1, 2)`.
fn permuted(rows: &[f32], heads: usize, row: usize) -> Vec<f32> {
    let half = rows.len() / row / heads / 2;
    let order = (0..heads)
        .flat_map(|head| (0..half).flat_map(move |pair| (0..2).map(move |side| head * 2 * half + side * half + pair)));
    order.flat_map(|at| rows[at * row..][..row].to_vec()).collect()
}

/// A golden checkpoint as a GGUF file, with its configuration, and its matrices stored in the type `of`.
fn converted(name: &str, architecture: &str, of: StoredType) -> GgufWriter {
    let folder = golden("models").join(name);
    let stated = golden_json(&format!("models/{name}/config.json"));
    let config = ModelConfig::parse(&stated.to_string(), name).unwrap();
    let mut file = GgufWriter::default();
    file.text("general.architecture", architecture);
    let key = |key: &str| format!("{architecture}.{key}");
    for (name, number) in [
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("block_count", config.layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
    ] {
        file.u32(&key(name), number as u32);
    }
    file.f32(&key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps as f32);
    file.f32(&key("rope.freq_base"), config.rope.theta as f32);
    file.tokens();
    add_rope_scaling(&mut file, architecture, &config, &stated);
    let weights = Weights::open_folder(&folder).unwrap();
    for name in weights.names() {
        add_converted(&mut file, &weights, name, &config, architecture == "llama", of);
    }
    file
}

fn add_rope_scaling(file: &mut GgufWriter, architecture: &str, config: &ModelConfig, stated: &Value) {
    let key = |key: &str| format!("{architecture}.rope.scaling.{key}");
    let scaling = [&stated["rope_scaling"], &stated["rope_parameters"]].into_iter().find(|value| value.is_object());
    let Some(scaling) = scaling else { return };
    match scaling["rope_type"].as_str().or(scaling["type"].as_str()).unwrap_or("default") {
        "default" => {}
        "llama3" => {
            let number = |key: &str| scaling[key].as_f64().unwrap();
            let divisors = llama3_divisors(config, number);
            let data = divisors.into_iter().flat_map(f32::to_le_bytes).collect();
            file.tensor("rope_freqs.weight", &[config.head_dim / 2], plain::F32, data);
        }
        kind => {
            file.text(&key("type"), kind);
            file.f32(&key("factor"), scaling["factor"].as_f64().unwrap() as f32);
            if let Some(original) = scaling["original_max_position_embeddings"].as_u64() {
                file.u32(&key("original_context_length"), original as u32);
            }
        }
    }
}

/// The divisors of the frequencies, computed like the converter does (`generate_extra_tensors` of Llama).
fn llama3_divisors(config: &ModelConfig, number: impl Fn(&str) -> f64) -> Vec<f32> {
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let trained = number("original_max_position_embeddings");
    let (low_wavelength, high_wavelength) = (trained / low, trained / high);
    let pairs = (0..config.head_dim).step_by(2);
    let divisor = |channel: usize| {
        let frequency = 1.0 / config.rope.theta.powf(channel as f64 / config.head_dim as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < high_wavelength {
            1.0
        } else if wavelength > low_wavelength {
            factor
        } else {
            let smooth = (trained / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    pairs.map(|channel| divisor(channel) as f32).collect()
}

fn add_converted(
    file: &mut GgufWriter,
    weights: &Weights,
    name: &str,
    config: &ModelConfig,
    permutes: bool,
    of: StoredType,
) {
    let shape = weights.shape(name).unwrap().to_vec();
    let mut numbers = weights.read(name, &shape).unwrap().to_f32();
    let heads = if name.contains(".q_proj.") { config.heads } else { config.kv_heads };
    if permutes && (name.contains(".q_proj.") || name.contains(".k_proj.")) {
        numbers = permuted(&numbers, heads, numbers.len() / shape[0]);
    }
    // Norms and biases are f32, whatever the type of a file.
    let of = if shape.len() == 1 { StoredType::F32 } else { of };
    let (number, data): (u32, Vec<u8>) = match of {
        StoredType::F32 => (plain::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
        StoredType::F16 => (plain::F16, numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()),
        StoredType::Bf16 => (plain::BF16, numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
        StoredType::Blocks(_) => unreachable!("checkpoints of safetensors have no blocks"),
    };
    file.tensor(&gguf_name(name), &shape, number, data);
}

/// What determines answers in a config, except the class, which is Llama's for Mistral.
fn told(config: &ModelConfig) -> Value {
    let mut told = json!(config);
    told.as_object_mut().unwrap().remove("architecture");
    told
}

fn stored_in(name: &str) -> StoredType {
    let config = golden_json(&format!("models/{name}/config.json"));
    match config["dtype"].as_str().or(config["torch_dtype"].as_str()).unwrap() {
        "float16" => StoredType::F16,
        "bfloat16" => StoredType::Bf16,
        _ => StoredType::F32,
    }
}

#[test]
fn a_checkpoint_is_the_same_model_as_gguf_and_as_safetensors() {
    let dir = TempDir::new().unwrap();
    for (name, architecture) in CHECKPOINTS {
        // Numbers stored in 16 bits are the same in 32.
        for of in [stored_in(name), StoredType::F32] {
            let path = converted(name, architecture, of).write(dir.path(), "m.gguf");
            let (texts, mut weights) = open(&path, name.into()).unwrap();
            let mut config = texts.config().unwrap();
            let stated = golden_json(&format!("models/{name}/config.json"));
            let expected = ModelConfig::parse(&stated.to_string(), name).unwrap();
            assert_eq!(told(&config), told(&expected), "{name}");
            assert_eq!(texts.notes, Vec::<String>::new(), "{name}");
            let notes = crate::checkpoint::compare(&mut config, &mut weights).unwrap();
            assert_eq!(notes, Vec::<String>::new(), "{name}");
            assert_logits(&decoder(&config, &weights), &golden_json(&format!("models/{name}/golden.json")), name);
        }
    }
}

// --- Models in several files ---

/// The golden Qwen3 in three files, as written by `gguf-split`; `change` edits each.
fn split(folder: &Path, change: impl Fn(usize, &mut GgufWriter)) -> Vec<PathBuf> {
    let whole = converted("qwen3", "qwen3", StoredType::F16);
    let all = whole.tensor_count();
    (0..3)
        .map(|part| {
            let mut file = whole.part(part, 3);
            for (key, number) in [("split.no", part as u16), ("split.count", 3)] {
                file.raw(key, 2, &number.to_le_bytes());
            }
            file.raw("split.tensors.count", 5, &(all as i32).to_le_bytes());
            change(part, &mut file);
            file.write(folder, &super::split::name("m", part, 3))
        })
        .collect()
}

#[test]
fn a_split_model_is_read_from_any_of_its_files() {
    let dir = TempDir::new().unwrap();
    let parts = split(dir.path(), |_, _| {});
    let digest = |path: &PathBuf| spattn_hub::checksum::sha256_of_file(path).unwrap();
    let digests = parts.iter().map(digest).collect::<String>();
    for path in &parts {
        let (texts, weights) = open(path, "m".into()).unwrap();
        assert_eq!(weights.sha256().unwrap(), spattn_hub::checksum::sha256_hex(digests.as_bytes()));
        assert_logits(&decoder(&texts.config().unwrap(), &weights), &golden_json("models/qwen3/golden.json"), "split");
    }
}

#[test]
fn files_that_do_not_belong_together_are_told() {
    let error = |change: &dyn Fn(usize, &mut GgufWriter), after: &dyn Fn(&Path)| {
        let dir = TempDir::new().unwrap();
        let parts = split(dir.path(), change);
        after(dir.path());
        let error = open(&parts[0], "m".into()).unwrap_err();
        let error = error.downcast::<UsageError>().unwrap();
        assert!(error.hint.is_some(), "{}", error.what);
        error.what.replace(&format!("{}/", dir.path().display()), "")
    };
    let nothing = |_: usize, _: &mut GgufWriter| {};
    let name = |part| super::split::name("m", part, 3);
    assert_eq!(
        error(&nothing, &|dir| std::fs::remove_file(dir.join(name(1))).unwrap()),
        "m-00002-of-00003.gguf: missing: the model is split into 3 files"
    );
    let swap = |dir: &Path| {
        std::fs::rename(dir.join(name(1)), dir.join("aside")).unwrap();
        std::fs::rename(dir.join(name(2)), dir.join(name(1))).unwrap();
        std::fs::rename(dir.join("aside"), dir.join(name(2))).unwrap();
    };
    assert_eq!(
        error(&nothing, &swap),
        "m-00002-of-00003.gguf: it says that it is file 3 of 3, and by its name it is file 2 of 3"
    );
    let other_total = |part: usize, file: &mut GgufWriter| {
        if part == 2 {
            file.set("split.tensors.count", 5, &9i32.to_le_bytes());
        }
    };
    assert!(error(&other_total, &|_| {}).starts_with("m-00003-of-00003.gguf: it is part of a model of 9 tensors"));
    let one_twice = |part: usize, file: &mut GgufWriter| {
        if part == 1 {
            file.tensor("token_embd.weight", &[1], plain::F32, vec![0; 4]);
        }
    };
    assert!(error(&one_twice, &|_| {}).contains("the tensor `token_embd.weight` is in m-0000"));
    let one_more = |part: usize, file: &mut GgufWriter| {
        if part == 1 {
            file.tensor("more.weight", &[1], plain::F32, vec![0; 4]);
        }
    };
    assert!(error(&one_more, &|_| {}).contains("tensors together, and say that it has"));
    let unsplit = |dir: &Path| drop(converted("qwen3", "qwen3", StoredType::F16).write(dir, &name(1)));
    assert!(error(&nothing, &unsplit).contains("does not say that it is part of a split model"));
    let absurd = |_: usize, file: &mut GgufWriter| file.set("split.count", 10, &(1u64 << 60).to_le_bytes());
    assert!(error(&absurd, &|_| {}).contains("`split.count`: 1152921504606846976 files"));
    let renamed = |dir: &Path| {
        let bytes = std::fs::read(dir.join(name(0))).unwrap();
        let error = open(
            &{
                std::fs::write(dir.join("x.gguf"), bytes).unwrap();
                dir.join("x.gguf")
            },
            "m".into(),
        );
        assert!(error.unwrap_err().to_string().ends_with("x.gguf: one of 3 files of a model, and not named as such"));
        std::fs::remove_file(dir.join(name(1))).unwrap();
    };
    error(&nothing, &renamed);
}
