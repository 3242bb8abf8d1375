//! All files of a model, compared with references that `scripts/make_golden_models.py` made.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use spattn::error::{RunFailure, UsageError};
use spattn::kv::KvDtype;
use spattn::model::OpenModel;
use spattn::model::chat::{ChatTemplate, Message};
use spattn::model::checkpoint;
use spattn::model::config::{ModelConfig, RopeScaling};
use spattn::model::data::{DataFolder, DataSource};
use spattn::model::device::Device;
use spattn::model::families::{FAMILIES, QkNormOver};
use spattn::model::http::Timeouts;
use spattn::model::hub::HubOptions;
use spattn::model::rope::{Rope, RopeTable};
use spattn::model::source::{ModelFiles, ModelSource};
use spattn::model::tensors::{StoredType, Weights};
use spattn::model::texts::TextFile;
use spattn::model::tokenizer::{Tokenizer, TokenizerOptions};
use tempfile::TempDir;

use super::golden_model::names;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

// --- RoPE ---

/// A config with the RoPE keys of a golden entry.
fn config_with(entry: &Value) -> ModelConfig {
    let rotates_a_part = entry["config"]["rope_parameters"].get("partial_rotary_factor").is_some();
    let class = if rotates_a_part { "GlmForCausalLM" } else { "LlamaForCausalLM" };
    let mut config = serde_json::json!({
        "architectures": [class], "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": entry["head_dim"], "max_position_embeddings": entry["max_positions"],
    });
    config.as_object_mut().unwrap().extend(entry["config"].as_object().unwrap().clone());
    ModelConfig::parse(&config.to_string(), text(entry, "name")).unwrap()
}

fn largest_relative(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs() / y.abs()).fold(0.0, f32::max)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn rope_equals_the_reference() {
    for entry in golden_json("rope.json").as_array().unwrap() {
        let config = config_with(entry);
        let rope = Rope::new(&config.rope, config.rotated(), config.max_position_embeddings);
        for case in entry["cases"].as_array().unwrap() {
            let name = format!("{} at {}", entry["name"], case["sequence_length"]);
            let length = case["sequence_length"].as_u64().unwrap() as usize;
            let (inverse, scaling) = rope.frequencies(length);
            let relative = largest_relative(&inverse, &floats(&case["inv_freq"]));
            assert!(relative < 3e-7, "{name}: frequencies differ by {relative:e}");
            assert!((f64::from(scaling) - case["scaling"].as_f64().unwrap()).abs() < 1e-6, "{name}");

            let mut table = RopeTable::new(&rope, length);
            table.grow(length);
            let position = case["position"].as_u64().unwrap() as usize;
            // An error of one ulp in a frequency changes an angle by this much.
            let tolerance = 2e-6 + position as f32 * 1.2e-7;
            let cos = largest_difference(table.cos(position), &floats(&case["cos"]));
            let sin = largest_difference(table.sin(position), &floats(&case["sin"]));
            assert!(cos < tolerance && sin < tolerance, "{name}: cos {cos:e}, sin {sin:e}");
        }
    }
}

// --- Chat templates ---

#[test]
fn chat_templates_render_as_the_reference() {
    for entry in golden_json("chat.json").as_array().unwrap() {
        let template = ChatTemplate::parse(text(entry, "template"), "chat.json", Some("<s>"), Some("</s>")).unwrap();
        let messages: Vec<Message> = serde_json::from_value(entry["messages"].clone()).unwrap();
        let rendered = template.render(&messages, entry["variables"].as_object().unwrap()).unwrap();
        assert_eq!(rendered, text(entry, "expected"), "{}", entry["name"]);
    }
}

#[test]
fn a_template_can_refuse_a_conversation() {
    let goldens = golden_json("chat.json");
    let inst = goldens.as_array().unwrap().iter().find(|e| e["name"] == "inst").unwrap();
    let template = ChatTemplate::parse(text(inst, "template"), "chat.json", None, None).unwrap();
    let twice = [Message::user("a"), Message::user("b")];
    let error = template.render(&twice, &Map::new()).unwrap_err().to_string();
    assert!(error.ends_with("roles must alternate user/assistant/user/assistant/..."), "{error}");
    assert_eq!(error.lines().count(), 1);
}

// --- Configs and weights of the golden checkpoints ---

fn config_of(name: &str) -> ModelConfig {
    let path = golden("models").join(name).join("config.json");
    ModelConfig::parse(&fs::read_to_string(&path).unwrap(), name).unwrap()
}

/// The names and shapes of all tensors that a model with this config has.
fn expected_tensors(c: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (h, q, kv) = (c.hidden_size, c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![c.vocab_size, h]),
        ("model.norm.weight".to_owned(), vec![h]),
    ];
    if !c.tie_word_embeddings {
        all.push(("lm_head.weight".to_owned(), vec![c.vocab_size, h]));
    }
    for layer in 0..c.layers {
        let mut add = |name: &str, shape: &[usize]| all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        let block = &c.block;
        let mut linears = vec![("self_attn.o_proj".to_owned(), h, q, block.output_bias)];
        match block.names.qkv {
            [one] => linears.push(((*one).to_owned(), q + 2 * kv, h, block.qkv_bias)),
            _ => {
                for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
                    linears.push((format!("self_attn.{name}_proj"), rows, h, block.qkv_bias));
                }
            }
        }
        linears.extend(feed_forward(c, layer));
        for (name, rows, columns, bias) in linears {
            add(&format!("{name}.weight"), &[rows, columns]);
            if bias {
                add(&format!("{name}.bias"), &[rows]);
            }
        }
        let names = &block.names;
        for norm in [names.attention_norm, names.attention_post_norm, names.mlp_norm, names.mlp_post_norm] {
            norm.iter().for_each(|norm| add(&format!("{norm}.weight"), &[h]));
        }
        if names.qk_norm.is_some() {
            let is_of_head = block.qk_norm_over == QkNormOver::Head;
            let [queries, keys] = if is_of_head { [c.head_dim; 2] } else { [q, kv] };
            add("self_attn.q_norm.weight", &[queries]);
            add("self_attn.k_norm.weight", &[keys]);
        }
        if names.sinks.is_some() {
            add("self_attn.sinks", &[c.heads]);
        }
    }
    all.sort();
    all
}

/// The matrices of a layer's feed-forward network: name, rows, columns, and whether there is a bias.
fn feed_forward(c: &ModelConfig, layer: usize) -> Vec<(String, usize, usize, bool)> {
    let (h, inner, bias) = (c.hidden_size, c.intermediate_size, c.block.mlp_bias);
    let network = |[gate, up, down]: [String; 3], inner: usize| {
        [(gate, inner, h, bias), (up, inner, h, bias), (down, h, inner, bias)]
    };
    match (c.block.experts.filter(|_| c.layer_kind(layer).experts), c.block.names.gate_up) {
        (Some(experts), _) => {
            let of_expert = |expert: usize| network(experts.names.of(expert), experts.width);
            let router = (experts.names.router.to_owned(), experts.count, h, experts.router_bias);
            (0..experts.count).flat_map(of_expert).chain([router]).collect()
        }
        (None, [one]) => vec![((*one).to_owned(), 2 * inner, h, bias), ("mlp.down_proj".to_owned(), h, inner, bias)],
        (None, _) => network(["gate", "up", "down"].map(|part| format!("mlp.{part}_proj")), inner).to_vec(),
    }
}

#[test]
fn configs_imply_exactly_the_tensors_of_the_checkpoints() {
    for name in &names() {
        let (mut config, mut weights) = (config_of(name), Weights::open_folder(&golden("models").join(name)).unwrap());
        assert_eq!(checkpoint::compare(&mut config, &mut weights).unwrap(), [""; 0], "{name}");
        let expected = expected_tensors(&config);
        let names: Vec<&str> = expected.iter().map(|(n, _)| n.as_str()).collect();
        let is_of_text = |name: &&str| !name.contains("vision_tower.") && !name.contains("multi_modal_projector.");
        assert_eq!(weights.names().filter(is_of_text).collect::<Vec<_>>(), names, "{name}");
        for (tensor, shape) in &expected {
            let values = weights.read(tensor, shape).unwrap().to_f32();
            assert!(values.iter().all(|v| v.is_finite()), "{name}: {tensor}");
        }
    }
}

#[test]
fn every_family_has_a_golden_checkpoint() {
    for family in FAMILIES {
        assert!(names().iter().any(|name| config_of(name).family == *family), "{family}");
    }
}

#[test]
fn the_golden_configs_are_what_they_are_named_for() {
    assert!(matches!(config_of("llama3").rope.scaling, RopeScaling::Llama3 { original_max_positions: 256, .. }));
    assert_eq!(config_of("llama3").eos_ids, [2, 3]);
    assert!(matches!(config_of("llama-linear").rope.scaling, RopeScaling::Linear { factor: 4.0 }));
    assert!(matches!(config_of("llama-dynamic").rope.scaling, RopeScaling::Dynamic { factor: 2.0 }));
    assert_eq!(config_of("llama-dynamic").context_limit(), 1024);
    assert!(matches!(config_of("llama-yarn").rope.scaling, RopeScaling::Yarn(_)));
    assert_eq!(config_of("mistral").sliding_window, None);
    assert_eq!((config_of("qwen3").head_dim, config_of("qwen3").block.names.qk_norm.is_some()), (32, true));
    let long = |name: &str| match config_of(name).rope.scaling {
        RopeScaling::LongRope(scaling) => scaling.original_max_positions,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((long("phi3-long"), long("phi4-mini")), (256, 2048));
    assert_eq!((config_of("phi4-mini").rotated(), config_of("glm").rotated()), (24, 8));
    let experts = |name: &str| config_of(name).layer_kinds.kinds.iter().map(|kind| kind.experts).collect::<Vec<_>>();
    assert_eq!(experts("qwen3-moe"), [true, false, true]);
    assert_eq!(experts("qwen3-moe-fused"), [false, true]);
    assert_eq!(experts("mixtral"), [true, true]);
    let bias = config_of("llama-bias").block;
    assert!(bias.qkv_bias && bias.output_bias && bias.mlp_bias);
}

#[test]
fn stored_types_and_shards_are_read() {
    let dtype = |name: &str| {
        let weights = Weights::open_folder(&golden("models").join(name)).unwrap();
        weights.read("model.norm.weight", &[64]).unwrap().dtype
    };
    assert_eq!(dtype("llama-linear"), StoredType::F32);
    assert_eq!(dtype("llama-dynamic"), StoredType::Bf16);
    assert_eq!(dtype("llama-sharded"), StoredType::F16);
}

#[test]
fn the_identity_of_a_single_file_is_its_hash() {
    // The list of tensors is empty, so that sha256sum can confirm the value.
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let one = Weights::open_folder(folder.path()).unwrap().sha256().unwrap();
    assert_eq!(one, "411a485216e432ece6b9af94fa32154cf79a2a56d4f81266baa50063f45092bd");
    let sharded = Weights::open_folder(&golden("models/llama-sharded")).unwrap();
    assert_eq!(sharded.sha256().unwrap().len(), 64);
}

// --- Faults in a folder ---

/// A copy of a golden checkpoint, with the built-in tokenizer so that it is a complete model.
fn copy_of(name: &str) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(golden("models").join(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(builtin.join(file), copy.path().join(file)).unwrap();
    }
    copy
}

fn resolve(folder: &Path) -> anyhow::Result<ModelFiles> {
    ModelSource::parse(folder.to_str().unwrap())?.resolve()
}

/// The error message of an unusable folder, without the folder's path.
fn fault(folder: &TempDir) -> String {
    let message = match resolve(folder.path()) {
        Err(error) => format!("{error:#}"),
        Ok(files) => files.config().unwrap_err().to_string(),
    };
    assert_eq!(message.lines().count(), 1, "{message}");
    message.replace(&format!("{}", folder.path().display()), "DIR")
}

#[test]
fn a_complete_folder_resolves() {
    let folder = copy_of("llama-sharded");
    let files = resolve(folder.path()).unwrap();
    assert_eq!(files.id, folder.path().display().to_string());
    assert_eq!(files.config().unwrap().layers, 3);
    assert!(files.notes.is_empty() && files.revision.is_none());
}

#[test]
fn each_fault_of_a_folder_is_one_line() {
    let broken = |name: &str, file: &str, change: &dyn Fn(&Path)| {
        let folder = copy_of(name);
        change(&folder.path().join(file));
        fault(&folder)
    };
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    let write = |bytes: &'static str| move |path: &Path| fs::write(path, bytes).unwrap();
    let shorten = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1000]).unwrap();
    };
    assert_eq!(broken("qwen3", "config.json", &remove), "DIR: no config.json in this folder");
    assert_eq!(broken("llama-sharded", "config.json", &remove), "DIR: no config.json in this folder");
    assert_eq!(broken("qwen3", "tokenizer.json", &remove), "DIR: no tokenizer.json in this folder");
    assert_eq!(
        broken("qwen3", "model.safetensors", &remove),
        "DIR: no model.safetensors and no model.safetensors.index.json in this folder"
    );
    assert_eq!(
        broken("qwen3", "config.json", &write("{\"architectures\": [")),
        "DIR/config.json: not valid JSON: EOF while parsing a list at line 1 column 19"
    );
    assert_eq!(
        broken("qwen3", "model.safetensors", &shorten),
        "DIR/model.safetensors: truncated: 1000 bytes are missing"
    );
    assert_eq!(
        broken("llama-sharded", "model-00002-of-00002.safetensors", &shorten),
        "DIR/model-00002-of-00002.safetensors: truncated: 1000 bytes are missing"
    );
    assert_eq!(
        broken("llama-sharded", "model-00002-of-00002.safetensors", &remove),
        "DIR/model-00002-of-00002.safetensors: missing; DIR/model.safetensors.index.json lists it as a shard"
    );
    assert_eq!(
        broken("llama-sharded", "model.safetensors.index.json", &write("{}")),
        "DIR/model.safetensors.index.json: no object `weight_map`"
    );
    assert_eq!(
        broken("qwen3", "model.safetensors", &write("<!DOCTYPE html>")),
        "DIR/model.safetensors: not a safetensors file, but a web page, not the weights: fetch the file itself"
    );
}

// --- Tensors that are stored but not read ---

/// The tensors of a file by name: type, shape, bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn edit_tensors(folder: &TempDir, edit: impl FnOnce(&mut Tensors)) {
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let one = |(name, t): (String, TensorView)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()));
    let mut tensors: Tensors = read.tensors().into_iter().map(one).collect();
    edit(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn edit_json(folder: &TempDir, file: &str, changes: Value) {
    let path = folder.path().join(file);
    let mut json: Value = fs::read_to_string(&path).map_or(json!({}), |text| serde_json::from_str(&text).unwrap());
    json.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    fs::write(&path, json.to_string()).unwrap();
}

fn open(folder: &TempDir) -> anyhow::Result<OpenModel> {
    let source = ModelSource::parse(folder.path().to_str().unwrap())?;
    OpenModel::open(&source, Some(KvDtype::F32), TokenizerOptions::default())
}

/// The notes about a model, without the folder's path.
fn notes(folder: &TempDir) -> Vec<String> {
    let folder_name = folder.path().display().to_string();
    open(folder).unwrap().notes.iter().map(|note| note.replace(&folder_name, "DIR")).collect()
}

fn logits(folder: &TempDir) -> Vec<f32> {
    let model = open(folder).unwrap().load(Device::Cpu).unwrap();
    model.decoder.all_logits(&[5, 9, 200, 17]).unwrap()
}

/// Adds an output matrix equal to the embeddings, or different from them if `other`.
fn add_head(tensors: &mut Tensors, other: bool) {
    let (dtype, shape, mut data) = tensors["model.embed_tokens.weight"].clone();
    assert_eq!(dtype, Dtype::F16);
    if other {
        // Flip the sign of every third number.
        data.iter_mut().skip(1).step_by(6).for_each(|byte| *byte ^= 0x80);
    }
    tensors.insert("lm_head.weight".to_owned(), (dtype, shape, data));
}

/// In `PreTrainedModel.tie_weights` of transformers 5, a stored head that differs is not tied, and a warning is given.
#[test]
fn a_stored_head_counts_where_it_differs_from_the_embeddings() {
    let (plain, equal, other, stated) = (copy_of("llama3"), copy_of("llama3"), copy_of("llama3"), copy_of("llama3"));
    edit_tensors(&equal, |t| add_head(t, false));
    edit_tensors(&other, |t| add_head(t, true));
    edit_tensors(&stated, |t| add_head(t, true));
    edit_json(&stated, "config.json", json!({"tie_word_embeddings": false}));
    assert_eq!(logits(&equal), logits(&plain));
    assert_eq!(logits(&other), logits(&stated));
    assert_ne!(logits(&other), logits(&plain));
    for quiet in [&plain, &equal, &stated] {
        assert_eq!(notes(quiet), [""; 0]);
    }
    let said = notes(&other);
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("DIR/model.safetensors: `lm_head.weight` is stored and differs from the embeddings"),
        "{said:?}"
    );
    // If two matrices are equal, either of them may be stored alone.
    let alone = copy_of("llama3");
    edit_tensors(&alone, |t| {
        let embedding = t.remove("model.embed_tokens.weight").unwrap();
        t.insert("lm_head.weight".to_owned(), embedding);
    });
    assert_eq!((logits(&alone), notes(&alone)), (logits(&plain), vec![]));
    // The same numbers in another type count as equal.
    edit_tensors(&equal, |t| {
        let (_, shape, data) = t["lm_head.weight"].clone();
        let wide = data.as_chunks::<2>().0.iter().flat_map(|word| f16::from_le_bytes(*word).to_f32().to_le_bytes());
        t.insert("lm_head.weight".to_owned(), (Dtype::F32, shape, wide.collect()));
    });
    assert_eq!(notes(&equal), [""; 0]);
}

#[test]
fn tensors_that_nothing_reads_are_named() {
    let vector = |t: &mut Tensors, name: &str| {
        t.insert(name.to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
    };
    let told = |change: &dyn Fn(&TempDir)| {
        let folder = copy_of("llama3");
        change(&folder);
        notes(&folder)
    };
    let with =
        |names: &'static [&str]| told(&|folder| edit_tensors(folder, |t| names.iter().for_each(|n| vector(t, n))));
    // Buffers that transformers computes itself and silently ignores (`_adjust_missing_and_unexpected_keys`).
    assert_eq!(with(&["model.layers.0.self_attn.rotary_emb.inv_freq", "model.embeddings.position_ids"]), [""; 0]);
    assert_eq!(with(&["score.weight"]), ["DIR/model.safetensors: 1 tensor is not read: `score.weight`"]);
    assert_eq!(
        with(&["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.bias"]),
        [concat!(
            "DIR/model.safetensors: 2 tensors are not read: `model.layers.0.self_attn.q_norm.weight`, ",
            "`model.layers.0.self_attn.q_proj.bias`"
        )]
    );
    let half = told(&|folder| edit_json(folder, "config.json", json!({"num_hidden_layers": 1})));
    assert_eq!(half.len(), 1);
    assert!(
        half[0].starts_with("DIR/model.safetensors: 9 tensors are not read: `model.layers.1.input_layernorm.weight`, ")
    );
    assert!(
        half[0].ends_with(" and 5 more; 2 layers are stored, and config.json says `num_hidden_layers` 1"),
        "{half:?}"
    );
}

#[test]
fn a_tensor_in_two_shards_is_ambiguous() {
    let folder = copy_of("llama-sharded");
    let [first, second] = [1, 2].map(|n| folder.path().join(format!("model-0000{n}-of-00002.safetensors")));
    fs::copy(first, second).unwrap();
    let said = fault(&folder);
    assert!(said.starts_with("DIR/model-00002-of-00002.safetensors: the tensor `"), "{said}");
    assert!(said.ends_with("is in DIR/model-00001-of-00002.safetensors as well"), "{said}");
}

#[test]
fn checkpoints_of_other_formats_are_called_by_their_names() {
    /// Renames the queries' matrix to one with this ending and type.
    fn queries(folder: &TempDir, ending: &str, dtype: Dtype) {
        const QUERIES: &str = "model.layers.0.self_attn.q_proj";
        let bytes = if dtype == Dtype::U8 { 4 } else { 16 };
        edit_tensors(folder, |t| {
            t.remove(&format!("{QUERIES}.weight"));
            t.insert(format!("{QUERIES}{ending}"), (dtype, vec![4], vec![0; bytes]));
        });
    }
    fn renamed(folder: &TempDir, name: fn(&str) -> String) {
        edit_tensors(folder, |t| *t = std::mem::take(t).into_iter().map(|(n, tensor)| (name(&n), tensor)).collect());
    }
    let write = |folder: &TempDir, name: &str| fs::write(folder.path().join(name), "x").unwrap();
    type Change<'a> = &'a dyn Fn(&TempDir);
    let cases: [(Change<'_>, &str, &str); 15] = [
        (&|f| queries(f, ".qweight", Dtype::F32), "quantised by GPTQ or AWQ", "quantised from"),
        (&|f| queries(f, ".weight_packed", Dtype::F32), "compressed-tensors", "quantised from"),
        (
            &|f| {
                queries(f, ".weight.absmax", Dtype::F32);
                queries(f, ".weight", Dtype::U8);
            },
            "quantised by bitsandbytes",
            "quantised from",
        ),
        (
            &|f| {
                queries(f, ".scales", Dtype::F32);
                queries(f, ".weight", Dtype::U8);
            },
            "quantised by MLX",
            "quantised from",
        ),
        (
            &|f| {
                queries(f, ".weight_scale_inv", Dtype::F32);
                queries(f, ".weight", Dtype::U8);
            },
            "quantised to FP8 or INT8",
            "quantised from",
        ),
        (&|f| renamed(f, |n| format!("base_model.model.{n}")), "a PEFT adapter", "merge_and_unload"),
        (&|f| renamed(f, |n| n.replace("model.", "")), "without its output layer", "AutoModelForCausalLM"),
        (&|f| renamed(f, |n| format!("language_model.{n}")), "a multimodal model", "language model alone"),
        (
            &|f| {
                edit_json(
                    f,
                    "config.json",
                    json!({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}),
                )
            },
            "config.json: `quantization_config`: the weights are quantised (bitsandbytes, 4 bits)",
            "quantised from",
        ),
        (
            &|f| edit_json(f, "config.json", json!({"quantization": {"group_size": 64, "bits": 4}})),
            "config.json: `quantization`: the weights are quantised (MLX, 4 bits)",
            "quantised from",
        ),
        (
            &|f| {
                fs::remove_file(f.path().join("model.safetensors")).unwrap();
                write(f, "pytorch_model.bin");
            },
            "no model.safetensors and no model.safetensors.index.json in this folder; it holds weights in PyTorch's pickle format",
            "save_pretrained",
        ),
        (
            &|f| {
                fs::remove_file(f.path().join("model.safetensors")).unwrap();
                fs::remove_file(f.path().join("config.json")).unwrap();
                write(f, "x.Q4_K_M.gguf");
            },
            // The file is the folder's only model.
            "x.Q4_K_M.gguf: not a GGUF file",
            "fetch it again",
        ),
        (
            &|f| {
                fs::remove_file(f.path().join("model.safetensors")).unwrap();
                write(f, "x.Q4_K_M.gguf");
            },
            "in this folder; it holds GGUF weights of llama.cpp (`x.Q4_K_M.gguf`)",
            "FOLDER/FILE.gguf",
        ),
        (
            &|f| {
                fs::remove_file(f.path().join("model.safetensors")).unwrap();
                fs::remove_file(f.path().join("config.json")).unwrap();
                write(f, "adapter_config.json");
                write(f, "adapter_model.safetensors");
            },
            "no config.json in this folder; it holds a PEFT adapter such as LoRA",
            "merge_and_unload",
        ),
        (
            &|f| {
                fs::remove_file(f.path().join("tokenizer.json")).unwrap();
                edit_json(f, "config.json", json!({"architectures": ["Glm4MoeForCausalLM"]}));
            },
            "`architectures`: `Glm4MoeForCausalLM` is not supported",
            "Qwen3ForCausalLM",
        ),
    ];
    for (change, said, hint) in cases {
        let folder = copy_of("llama3");
        change(&folder);
        let error = open(&folder).err().unwrap_or_else(|| panic!("{said}"));
        let usage = error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{said}: {error:#}"));
        assert!(usage.what.contains(said) && usage.what.lines().count() == 1, "{said}: {}", usage.what);
        assert!(usage.hint.as_ref().is_some_and(|h| h.contains(hint)), "{said}: {:?}", usage.hint);
    }
}

/// The built-in model as a folder.
fn built_in() -> TempDir {
    let (copy, builtin) = (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin"));
    for file in
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
    {
        fs::copy(builtin.join(file), copy.path().join(file)).unwrap();
    }
    copy
}

#[test]
fn nothing_is_to_be_said_of_the_built_in_model() {
    let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    assert_eq!(model.notes, [""; 0]);
    assert_eq!(notes(&built_in()), [""; 0]);
}

#[test]
fn notes_on_a_model_are_printed_once_and_kept_in_the_manifest() {
    let folder = built_in();
    edit_tensors(&folder, |t| drop(t.insert("score.weight".to_owned(), (Dtype::F32, vec![2], vec![0; 8]))));
    // As in SmolLM2: the tokenizer adds no BOS, but the template begins each turn with one.
    edit_json(&folder, "tokenizer.json", json!({"post_processor": null}));
    let template = "<s>user\n{{ messages[0].content }}</s>\n<s>assistant\n";
    edit_json(&folder, "tokenizer_config.json", json!({"chat_template": template}));
    edit_json(&folder, "config.json", json!({"max_sequence_length": 65536}));
    let out = folder.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(["eval", "-q", "-t", "ruler/niah_single_1", "-l", "512", "-n", "1", "-m", "topk:k=16", "--model"]);
    let ran = command.arg(folder.path()).arg("--out").arg(&out).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    let of = |file: &str, what: &str| format!("{}: {what}", folder.path().join(file).display());
    let told = [
        of(
            "config.json",
            "the context is 32768 tokens, as RoPE is made for, although the longest sequence is stated to be 65536",
        ),
        of("model.safetensors", "1 tensor is not read: `score.weight`"),
    ];
    let times = |said: &str, note: &str| said.lines().filter(|line| *line == format!("note: {note}")).count();
    assert!(told.iter().all(|note| times(&said, note) == 1), "{said}");
    assert!(!said.contains("BOS") && !String::from_utf8(ran.stdout).unwrap().contains("BOS"), "{said}");
    let read = |file: &str| fs::read_to_string(out.join(file)).unwrap();
    let manifest: Value = serde_json::from_str(&read("manifest.json")).unwrap();
    assert_eq!(manifest["model"]["notes"], json!(told));
    let record: Value = serde_json::from_str(read("samples.jsonl").lines().next().unwrap()).unwrap();
    assert_eq!(record["bos_tokens"], 1);
    // A dry run checks the checkpoint too.
    let matrix = folder.path().join("matrix.toml");
    let text = format!("model = [{:?}]\ntasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1", folder.path());
    fs::write(&matrix, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    let planned = command.arg("sweep").arg(&matrix).arg("--dry-run").output().unwrap();
    let said = String::from_utf8(planned.stderr).unwrap();
    assert_eq!(told.each_ref().map(|note| times(&said, note)), [1, 1], "{said}");
}

#[test]
fn an_adapter_beside_a_model_is_told_of() {
    let folder = copy_of("llama3");
    fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
    let said = notes(&folder);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("DIR: the adapter of `adapter_config.json` is not applied"), "{said:?}");
}

#[test]
fn a_missing_tensor_names_the_file() {
    let folder = golden("models/llama-sharded");
    let weights = Weights::open_folder(&folder).unwrap();
    let error = weights.read("model.layers.9.mlp.up_proj.weight", &[1]).unwrap_err().to_string();
    let index = folder.join("model.safetensors.index.json");
    assert_eq!(error, format!("{}: no tensor `model.layers.9.mlp.up_proj.weight`", index.display()));
}

// --- Tokenizer ---

fn builtin_with(change: impl FnOnce(&mut ModelFiles)) -> Result<Tokenizer, UsageError> {
    load_with(TokenizerOptions::default(), change)
}

fn load_with(options: TokenizerOptions, change: impl FnOnce(&mut ModelFiles)) -> Result<Tokenizer, UsageError> {
    let mut files = ModelSource::Builtin.resolve().unwrap();
    change(&mut files);
    Tokenizer::load(&files, &files.config().unwrap(), options)
}

/// Adds keys to the built-in model's `tokenizer_config.json`.
fn settings(files: &mut ModelFiles, extra: Value) {
    let mut all: Value = serde_json::from_str(&files.tokenizer_config.as_ref().unwrap().text).unwrap();
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    files.tokenizer_config = Some(TextFile { name: "tokenizer_config.json".into(), text: all.to_string().into() });
}

fn edit_tokenizer(files: &mut ModelFiles, edit: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_str(&files.tokenizer.text).unwrap();
    edit(&mut json);
    files.tokenizer = TextFile { name: "tokenizer.json".into(), text: json.to_string().into() };
}

#[test]
fn ids_and_texts_equal_the_reference() {
    let tokenizer = builtin_with(|_| ()).unwrap();
    for entry in golden_json("tokenizer.json")["encode"].as_array().unwrap() {
        let input = text(entry, "text");
        let ids: Vec<u32> = serde_json::from_value(entry["ids"].clone()).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text(entry, "decoded"), "{input:?}");
        assert_eq!(tokenizer.encode_text(input, false).unwrap()[..], ids[1..], "{input:?}");
        // Only a text with its own BOS differs: the reference would add a second one.
        if !input.starts_with("<s>") {
            let prompt = tokenizer.encode_prompt(input, "").unwrap();
            assert_eq!(prompt.ids, ids, "{input:?}");
            assert_eq!(prompt.bos_count, 1, "{input:?}");
            assert_eq!(tokenizer.count_prompt(input, "").unwrap(), ids.len());
        }
    }
}

#[test]
fn plain_text_survives_the_round_trip() {
    let tokenizer = builtin_with(|_| ()).unwrap();
    for input in ["VAR AB = 12345\n  indented", "Ünïcödé 🙂 数字", " leading", "trailing  "] {
        let ids = tokenizer.encode_prompt(input, "").unwrap().ids;
        assert_eq!(tokenizer.decode(&ids).unwrap(), input);
    }
}

#[test]
fn there_is_exactly_one_bos_however_it_comes() {
    let template = "{{ bos_token }}[user] {{ messages[0].content }} [end]";
    let without = "[user] {{ messages[0].content }} [end]";
    let with_chat = |t: &str| builtin_with(|f| settings(f, json!({"chat_template": t}))).unwrap();
    let no_processor = |f: &mut ModelFiles| edit_tokenizer(f, |j| j["post_processor"] = Value::Null);
    let first = |t: &Tokenizer| {
        let prompt = t.encode_prompt("hello", " Answer:").unwrap();
        assert_eq!(t.count_prompt("hello", " Answer:").unwrap(), prompt.ids.len());
        (prompt.ids[0], prompt.bos_count)
    };
    assert_eq!(first(&with_chat(template)), (1, 1));
    assert_eq!(first(&with_chat(without)), (1, 1));
    assert_eq!(first(&builtin_with(|_| ()).unwrap()), (1, 1));
    // The config's key applies if the tokenizer itself adds nothing.
    let stated = builtin_with(|f| {
        no_processor(f);
        settings(f, json!({"add_bos_token": true}));
    });
    assert_eq!(first(&stated.unwrap()), (1, 1));
    assert_eq!(first(&builtin_with(no_processor).unwrap()).1, 0);
    // But a key of `false` does not stop a tokenizer that adds one.
    assert_eq!(first(&builtin_with(|f| settings(f, json!({"add_bos_token": false}))).unwrap()), (1, 1));
    let written = builtin_with(|_| ()).unwrap().encode_prompt("<s>hi <s>", "").unwrap();
    assert_eq!(written.bos_count, 2);
}

/// Combinations that published models have: whether the post-processor of tokenizer.json adds BOS, keys of tokenizer_config.json, and the
/// note. In transformers 5.24, `tokenizer(text)` begins with BOS if the post-processor adds it, whatever the keys say, and
/// `apply_chat_template` if the template prints it.
#[test]
fn a_note_on_bos_is_given_where_prompts_differ_from_transformers() {
    let bare = "[user] {{ messages[0].content }} [end]";
    let printed = format!("{{{{ bos_token }}}}{bare}");
    let in_front = "the tokenizer puts `<s>` in front of a text, and the chat template prints none";
    for (model, adds, settings_of_model, leading, told) in [
        ("Qwen", false, json!({"bos_token": null, "add_bos_token": false, "chat_template": bare}), None, None),
        ("SmolLM2", false, json!({"chat_template": format!("<s>system [end]{bare}")}), Some(1), None),
        ("Llama 3, Mistral", true, json!({"chat_template": printed}), Some(1), None),
        ("Gemma", true, json!({"add_bos_token": true, "chat_template": printed}), Some(1), None),
        ("a base model", true, json!({}), Some(1), None),
        ("a base model of Qwen", false, json!({"bos_token": null}), None, None),
        ("a GGUF file of Qwen2.5", false, json!({"add_bos_token": false, "chat_template": bare}), None, None),
        ("Llama 3 with a template of one's own", true, json!({"chat_template": bare}), Some(1), Some(in_front)),
        ("by the config alone", false, json!({"add_bos_token": true}), Some(1), Some("(transformers 5 leaves it out)")),
        (
            "against the config",
            true,
            json!({"add_bos_token": false}),
            Some(1),
            Some("they are kept, as in transformers 5"),
        ),
    ] {
        let tokenizer = builtin_with(|f| {
            if !adds {
                edit_tokenizer(f, |j| j["post_processor"] = Value::Null);
            }
            settings(f, settings_of_model);
        });
        let tokenizer = tokenizer.unwrap();
        let prompt = tokenizer.encode_prompt("hello", "").unwrap();
        assert_eq!(tokenizer.leading_bos(&prompt.ids), leading, "{model}");
        assert_eq!(tokenizer.notes().len(), usize::from(told.is_some()), "{model}: {:?}", tokenizer.notes());
        assert!(told.is_none_or(|told| tokenizer.notes()[0].contains(told)), "{model}: {:?}", tokenizer.notes());
    }
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let tokenizer = builtin_with(|f| {
        edit_tokenizer(f, |j| {
            j["truncation"] = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
            j["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"});
        });
    })
    .unwrap();
    let plain = builtin_with(|_| ()).unwrap();
    let input = "one two three four five six seven eight";
    assert_eq!(tokenizer.encode_prompt(input, "").unwrap().ids, plain.encode_prompt(input, "").unwrap().ids);
}

#[test]
fn the_chat_template_wraps_the_turn_and_opens_the_answer() {
    let template = "{{ bos_token }}User:\n{{ messages[0]['content'] | trim }}\nAssistant:";
    let tokenizer = builtin_with(|f| settings(f, json!({"chat_template": template}))).unwrap();
    assert!(tokenizer.has_chat());
    let prompt = tokenizer.encode_prompt("  context. Question?", " The answer is").unwrap();
    assert_eq!(prompt.text, "<s>User:\ncontext. Question?\nAssistant: The answer is");
    assert_eq!((prompt.user_start, prompt.user_cut), (9, 2));
    let question = "  context. ".len();
    let token = prompt.token_of_user_byte(question);
    assert!(prompt.text[prompt.offsets[token].0..].trim_start().starts_with("Question?"));
    // A separate file takes precedence, a list has a default template, and the template can be left out.
    let own = builtin_with(|f| {
        settings(f, json!({"chat_template": template}));
        f.chat_template =
            Some(TextFile { name: "chat_template.jinja".into(), text: "Q: {{ messages[0].content }}".into() });
    });
    assert_eq!(own.unwrap().encode_prompt("x", "!").unwrap().text, "Q: x!");
    let list =
        json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "D {{ messages[0].content }}"}]);
    let list = builtin_with(|f| settings(f, json!({"chat_template": list}))).unwrap();
    assert_eq!(list.encode_prompt("x", "!").unwrap().text, "D x!");
    let plain = TokenizerOptions { chat: false, ..Default::default() };
    let plain = load_with(plain, |f| settings(f, json!({"chat_template": template}))).unwrap();
    assert_eq!(plain.encode_prompt("x", "!").unwrap().text, "x!");
}

#[test]
fn thinking_is_off_unless_asked_for() {
    let template =
        "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}|no{% endif %}";
    let text_with = |thinking: bool| {
        let options = TokenizerOptions { thinking, ..Default::default() };
        let tokenizer = load_with(options, |f| settings(f, json!({"chat_template": template}))).unwrap();
        tokenizer.encode_prompt("x", "").unwrap().text
    };
    assert_eq!((text_with(false), text_with(true)), ("x|no".to_owned(), "x".to_owned()));
}

#[test]
fn a_system_prompt_comes_before_the_users_turn() {
    let turns = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}<assistant>";
    let merged = "[INST] {% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}{{ messages[-1].content }} [/INST]";
    let system = || TokenizerOptions { system: Some("Be brief. ".to_owned()), ..Default::default() };
    let load = |template: &str| load_with(system(), |f| settings(f, json!({"chat_template": template})));
    let prompt = load(turns).unwrap().encode_prompt("  What?", " It").unwrap();
    assert_eq!(prompt.text, "<system>Be brief.<user>What?<assistant> It");
    assert_eq!((prompt.user_start, prompt.user_cut), ("<system>Be brief.<user>".len(), 2));
    let prompt = load(merged).unwrap().encode_prompt("What?", "").unwrap();
    assert_eq!(prompt.text, "[INST] Be brief. \nWhat? [/INST]");
    assert_eq!(prompt.user_start, "[INST] Be brief. \n".len());
    assert_eq!(load(turns).unwrap().encode_plain("What?", "").unwrap().text, "What?", "plain text goes without");
    let deaf = load("{{ messages[-1].content }}").unwrap_err();
    assert!(deaf.what.contains("the chat template has no place for a system prompt"), "{deaf}");
    let after = load("{{ messages[-1].content }}{{ messages[0].content }}").unwrap_err();
    assert!(after.what.contains("no place for a system prompt"), "{after}");
    let none = load_with(system(), |_| ()).unwrap_err();
    assert!(none.what.contains("the model has no chat template"), "{none}");
}

#[test]
fn a_turn_is_found_even_if_its_words_occur_elsewhere() {
    let template = "user says user: {{ messages[0].content }} (the user)";
    let tokenizer = builtin_with(|f| settings(f, json!({"chat_template": template}))).unwrap();
    assert_eq!(tokenizer.encode_prompt("user", "").unwrap().user_start, "user says user: ".len());
    let shouting =
        builtin_with(|f| settings(f, json!({"chat_template": "{{ messages[0].content | upper }}"}))).unwrap();
    let error = shouting.encode_prompt("what?", "").unwrap_err().to_string();
    assert_eq!(error, "tokenizer_config.json: the chat template changes the user's turn");
    let silent = builtin_with(|f| settings(f, json!({"chat_template": "Hello {{ messages|length }}"}))).unwrap();
    let error = silent.encode_prompt("what?", "").unwrap_err().to_string();
    assert_eq!(error, "tokenizer_config.json: the chat template leaves out the user's turn");
}

#[test]
fn the_question_starts_with_the_first_token_that_holds_a_byte_of_it() {
    let tokenizer = builtin_with(|_| ()).unwrap();
    let context = "The grass is green. The number is 4820117. ";
    let user = format!("{context}\nWhat is the number?");
    let prompt = tokenizer.encode_prompt(&user, " It is").unwrap();
    let token = prompt.token_of_user_byte(context.len());
    let (start, end) = prompt.offsets[token];
    assert!(start <= context.len() && context.len() < end);
    assert!(prompt.offsets[..token].iter().all(|(_, end)| *end <= context.len()));
    // In the middle of a word, the token across the boundary belongs to the question.
    let inside = prompt.token_of_user_byte(1);
    assert_eq!((inside, prompt.offsets[inside]), (1, (0, 3)));
    assert_eq!(prompt.token_at(prompt.text.len()), prompt.ids.len());
    assert_eq!(prompt.offsets[0], (0, 0));
}

#[test]
fn offsets_are_bytes_also_behind_wide_characters() {
    // A post-processor that trims offsets, as in Llama 3, must not shift the boundaries.
    let trimming = |f: &mut ModelFiles| {
        edit_tokenizer(f, |j| {
            let byte_level =
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
            j["post_processor"] = json!({"type": "Sequence", "processors": [byte_level, j["post_processor"]]});
        });
    };
    for tokenizer in [builtin_with(|_| ()).unwrap(), builtin_with(trimming).unwrap()] {
        let prompt = tokenizer.encode_prompt("数字と🙂 café  \n\n end", "").unwrap();
        assert_eq!(prompt.ids[0], 1);
        let last = *prompt.offsets.last().unwrap();
        assert_eq!(last.1, prompt.text.len());
        assert_eq!(&prompt.text[last.0..last.1], " end");
        for pair in prompt.offsets.windows(2) {
            assert!(pair[0].1 <= pair[1].1 && pair[1].0 <= pair[0].1, "{:?}", prompt.offsets);
        }
    }
}

#[test]
fn every_file_has_a_say_in_what_ends_a_generation() {
    assert_eq!(builtin_with(|_| ()).unwrap().eos_ids(), [2]);
    let tokenizer = builtin_with(|f| {
        f.generation_config = Some(TextFile { name: "g".into(), text: r#"{"eos_token_id": [5, 7]}"#.into() });
        settings(f, json!({"eos_token": {"content": "<pad>", "lstrip": false}}));
        edit_tokenizer(f, |j| {
            let token = |id: u32, content: &str, special: bool| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special})
            };
            let added = j["added_tokens"].as_array_mut().unwrap();
            added.push(token(8192, "<|im_end|>", true));
            added.push(token(6145, "<|eot_id|>", false));
        });
    });
    assert_eq!(tokenizer.unwrap().eos_ids(), [0, 2, 5, 7, 8192]);
}

#[test]
fn ends_that_make_no_sense_are_refused_in_whatever_file() {
    let with = |ids: &str| {
        let text = format!(r#"{{"eos_token_id": {ids}}}"#);
        builtin_with(|f| f.generation_config = Some(TextFile { name: "g.json".into(), text: text.into() }))
    };
    let wrong = |ids: &str| {
        let error = with(ids).unwrap_err();
        assert!(error.what.starts_with("g.json: `eos_token_id`: "), "{}", error.what);
        error.what
    };
    for ids in [r#""2""#, "2.0", "-5", "[[2]]", r#"[2, "3"]"#, "{}", "true", "4294967296"] {
        assert!(wrong(ids).contains("expected a token id or a list of them, got "), "{ids}");
    }
    assert!(wrong("[2, 8192]").ends_with("8192 is beyond the vocabulary of 8192"));
    for (ids, all) in [("null", &[2][..]), ("[]", &[2]), ("8191", &[2, 8191])] {
        assert_eq!(with(ids).unwrap().eos_ids(), all, "{ids}");
    }
}

/// As in `_from_pretrained` of transformers 5: `special_tokens_map.json` and `added_tokens.json` are used if `tokenizer_config.json` has no
/// `added_tokens_decoder`. The former takes precedence over the latter.
#[test]
fn special_tokens_are_read_where_transformers_reads_them() {
    let file = |name: &str, json: Value| Some(TextFile { name: name.into(), text: json.to_string().into() });
    let map = json!({"eos_token": "<pad>", "bos_token": {"content": "</s>", "lstrip": false}});
    let template = json!({"chat_template": "{{ bos_token }}|{{ messages[0].content }}|{{ eos_token }}"});
    let read = |decoder: bool| {
        builtin_with(|f| {
            settings(f, template.clone());
            if decoder {
                settings(f, json!({"added_tokens_decoder": {}}));
            }
            f.special_tokens = file("special_tokens_map.json", map.clone());
        })
        .unwrap()
    };
    let (older, newer) = (read(false), read(true));
    assert_eq!(older.encode_prompt("x", "").unwrap().text, "</s>|x|<pad>");
    assert_eq!(newer.encode_prompt("x", "").unwrap().text, "<s>|x|</s>");
    assert_eq!((older.eos_ids(), newer.eos_ids()), (&[0, 2][..], &[2][..]));
    let malformed = builtin_with(|f| f.special_tokens = file("special_tokens_map.json", json!([])));
    assert_eq!(malformed.unwrap_err().what, "special_tokens_map.json: expected a JSON object");

    let added = json!({"<|new|>": 8192, "<s>": 1});
    let with_added = |decoder: bool| {
        builtin_with(|f| {
            f.added_tokens = file("added_tokens.json", added.clone());
            if decoder {
                settings(f, json!({"added_tokens_decoder": {}}));
            }
        })
        .unwrap()
    };
    let (older, newer) = (with_added(false), with_added(true));
    assert_eq!((older.id_of("<|new|>"), newer.id_of("<|new|>")), (Some(8192), None));
    assert_eq!(older.encode_text("<|new|>", false).unwrap(), [8192]);
    assert!(newer.encode_text("<|new|>", false).unwrap().len() > 1);
    assert_eq!(newer.notes(), [""; 0]);
    assert_eq!(
        older.notes(),
        [
            "builtin/tokenizer.json: the tokens `<|new|>` of added_tokens.json are missing there; they are added, as in transformers"
        ]
    );
    let decoder =
        json!({"added_tokens_decoder": {"8192": {"content": "<|a|>", "special": true}, "9000": {"content": "<|b|>"}}});
    let listed = builtin_with(|f| settings(f, decoder)).unwrap();
    assert_eq!((listed.id_of("<|a|>"), listed.id_of("<|b|>")), (Some(8192), Some(8193)));
    assert_eq!(listed.decode(&[8192, 8193]).unwrap(), "<|b|>", "one of them is special");
    let notes = listed.notes().to_vec();
    assert_eq!(
        notes[1],
        "tokenizer_config.json: `<|b|>` has the id 9000, and 8193 in tokenizer.json, whose id is used"
    );
    for (file_text, said) in
        [(json!({"<|x|>": "8192"}), "`<|x|>`: expected a token id"), (json!({"<|x|>": -1}), "expected a token id")]
    {
        let error = builtin_with(|f| f.added_tokens = file("a.json", file_text)).unwrap_err();
        assert!(error.what.starts_with("a.json: ") && error.what.contains(said), "{}", error.what);
    }
}

#[test]
fn special_tokens_are_never_split() {
    // The reference treats named tokens as special even if tokenizer.json lists them as plain.
    let unmarked = |f: &mut ModelFiles| edit_tokenizer(f, |j| j["added_tokens"] = json!([]));
    let tokenizer = builtin_with(unmarked).unwrap();
    assert_eq!(tokenizer.encode_text("</s>", false).unwrap(), [2]);
    assert_eq!(tokenizer.notes(), [""; 0]);
}

#[test]
fn special_tokens_that_the_tokenizer_lacks_are_told_of() {
    let with = |changes: Value| {
        builtin_with(|f| {
            edit_tokenizer(f, |j| j["post_processor"] = Value::Null);
            settings(f, changes);
        })
    };
    let error = with(json!({"bos_token": "<bos>", "add_bos_token": true})).unwrap_err();
    assert_eq!(
        error.what,
        "tokenizer_config.json: `add_bos_token` is true, and `bos_token` `<bos>` is not in tokenizer.json"
    );
    assert!(error.hint.is_some());
    let notes = |changes: Value| with(changes).unwrap().notes().to_vec();
    assert_eq!(
        notes(json!({"bos_token": "<bos>"})),
        ["tokenizer.json: `bos_token` `<bos>` is not in its vocabulary: prompts do not begin with it"]
    );
    assert_eq!(
        notes(json!({"eos_token": "<eos>"})),
        ["tokenizer.json: `eos_token` `<eos>` is not in its vocabulary: answers do not end with it"]
    );
    assert!(notes(json!({"bos_token": null, "add_bos_token": true}))[0].contains("no `bos_token` is named"));
}

/// The expected tokens around a text are from transformers 5.24.0 and 4.46.3 (`LlamaTokenizer`), run on such files. Version 5 uses only
/// `tokenizer.json`, version 4 uses the flags.
#[test]
fn flags_that_differ_from_the_tokenizers_own_front_are_told_of() {
    let notes = |has_front: bool, changes: Value| {
        let tokenizer = builtin_with(|f| {
            if !has_front {
                edit_tokenizer(f, |j| j["post_processor"] = Value::Null);
            }
            settings(f, changes);
        });
        tokenizer.unwrap().notes().to_vec()
    };
    for (has_front, changes) in [
        (true, json!({})),
        (true, json!({"add_bos_token": true, "add_eos_token": false})),
        (false, json!({})),
        (false, json!({"add_bos_token": false})),
    ] {
        assert_eq!(notes(has_front, changes), [""; 0]);
    }
    for (has_front, changes, said) in [
        (
            true,
            json!({"add_bos_token": false}),
            "`add_bos_token` is false, and tokenizer.json puts special tokens in front",
        ),
        (false, json!({"add_bos_token": true}), "`add_bos_token` is true, and tokenizer.json puts no BOS in front"),
        (true, json!({"add_eos_token": true}), "`add_eos_token` is true: no EOS is put after prompts"),
    ] {
        let told = notes(has_front, changes);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("tokenizer_config.json: {said}")), "{told:?}");
    }
}

#[test]
fn what_would_change_greedy_answers_is_noted() {
    let folder = copy_of("llama3");
    let settings = json!({"repetition_penalty": 1.1, "temperature": 0.7});
    fs::write(folder.path().join("generation_config.json"), settings.to_string()).unwrap();
    assert_eq!(
        notes(&folder),
        [concat!(
            "DIR/generation_config.json: `repetition_penalty` 1.1: not applied; answers are greedy, and end by EOS or their ",
            "length alone"
        )]
    );
}

#[test]
fn a_checkpoint_with_other_layers_or_shapes_than_its_config_is_told_by_keys() {
    let refused = |changes: Value| {
        let folder = copy_of("llama3");
        edit_json(&folder, "config.json", changes);
        let error = open(&folder).err().expect("a refusal");
        let usage = error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error:#}"));
        assert!(usage.hint.as_ref().is_some_and(|hint| hint.contains("two models")), "{usage:?}");
        usage.what.replace(folder.path().to_str().unwrap(), "DIR")
    };
    for layers in [3, 500] {
        assert_eq!(
            refused(json!({"num_hidden_layers": layers})),
            format!("DIR/model.safetensors: 2 layers are stored, and config.json says `num_hidden_layers` {layers}")
        );
    }
    let config: Value =
        serde_json::from_str(&fs::read_to_string(golden("models/llama3/config.json")).unwrap()).unwrap();
    let size = |key: &str| config[key].as_u64().unwrap();
    let (hidden, inner, heads, kv_heads) =
        (size("hidden_size"), size("intermediate_size"), size("num_attention_heads"), size("num_key_value_heads"));
    let head_dim = config["head_dim"].as_u64().unwrap_or(hidden / heads);
    let label = "DIR/model.safetensors: the tensor";
    assert_eq!(
        refused(json!({"intermediate_size": 2 * inner})),
        format!(
            "{label} `model.layers.0.mlp.down_proj.weight` has shape [{hidden}, {inner}], and by config.json it is \
             [{hidden}, {}]: `hidden_size` {hidden} by `intermediate_size` {}",
            2 * inner,
            2 * inner
        )
    );
    assert_eq!(
        refused(json!({"num_key_value_heads": heads})),
        format!(
            "{label} `model.layers.0.self_attn.k_proj.weight` has shape [{}, {hidden}], and by config.json it is \
             [{}, {hidden}]: `num_key_value_heads` {heads} × `head_dim` {head_dim} by `hidden_size` {hidden}",
            kv_heads * head_dim,
            heads * head_dim
        )
    );
}

#[test]
fn the_same_text_is_the_same_tokens_in_spite_of_dropout() {
    let dropout = |share: f64| builtin_with(|f| edit_tokenizer(f, |j| j["model"]["dropout"] = json!(share))).unwrap();
    let text = "The quick brown fox jumps over the lazy dog, again and again and again.";
    let plain = builtin_with(|_| ()).unwrap().encode_prompt(text, "").unwrap();
    for share in [0.5, 1.0] {
        let tokenizer = dropout(share);
        (0..5).for_each(|_| assert_eq!(tokenizer.encode_prompt(text, "").unwrap(), plain));
        assert_eq!(
            tokenizer.notes(),
            [format!(
                "tokenizer.json: its `dropout` of {share} is not applied, so that a text always has the same tokens"
            )]
        );
    }
    assert_eq!(dropout(0.0).notes(), [""; 0]);
}

#[test]
fn only_bos_tokens_at_the_beginning_are_counted() {
    let leading = |tokenizer: &Tokenizer, text: &str| {
        let prompt = tokenizer.encode_prompt(text, "").unwrap();
        tokenizer.leading_bos(&prompt.ids)
    };
    let usual = builtin_with(|_| ()).unwrap();
    assert_eq!(["hi", "hi <s> and <s>", "<s>hi", "<s><s>hi"].map(|text| leading(&usual, text)), [1, 1, 1, 2].map(Some));
    // As in SmolLM2: no BOS is added, but the template begins each turn with one. As in Qwen: no prompt has one.
    let none = |f: &mut ModelFiles| edit_tokenizer(f, |j| j["post_processor"] = Value::Null);
    let turns = builtin_with(|f| {
        none(f);
        settings(f, json!({"chat_template": "<s>system\n<s>user\n{{ messages[0].content }}<s>assistant\n"}));
    });
    assert_eq!(leading(&turns.unwrap(), "hi"), Some(1));
    assert_eq!(leading(&builtin_with(none).unwrap(), "hi"), None);
    // A template that prints one BOS too many.
    let twice = builtin_with(|f| {
        settings(f, json!({"chat_template": "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}"}))
    });
    assert_eq!(leading(&twice.unwrap(), "hi"), Some(2));
    // A prompt of another tokenizer, which does not begin with this one's first tokens.
    assert_eq!(usual.leading_bos(&[5, 1]), Some(0));
}

#[test]
fn faults_of_a_tokenizer_are_one_line() {
    let message = |change: &dyn Fn(&mut ModelFiles)| {
        let message = builtin_with(change).unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    };
    let broken = message(&|f| f.tokenizer = TextFile { name: "t/tokenizer.json".into(), text: "{\n}".into() });
    assert!(broken.starts_with("t/tokenizer.json: not a tokenizer: "), "{broken}");
    // The crate that parses it panics if the JSON is truncated at the decoder.
    let torn = r#"{"version": "1.0", "decoder": }"#;
    let torn = message(&|f| f.tokenizer = TextFile { name: "t/tokenizer.json".into(), text: torn.into() });
    assert!(torn.starts_with("t/tokenizer.json: not a tokenizer: it is damaged: "), "{torn}");
    let config = message(&|f| f.tokenizer_config = Some(TextFile { name: "c.json".into(), text: "[]".into() }));
    assert_eq!(config, "c.json: expected a JSON object");
    let list = json!([{"name": "rag", "template": "x"}]);
    let list = message(&|f| settings(f, json!({"chat_template": list})));
    assert_eq!(list, "tokenizer_config.json: `chat_template`: no template named `default` in the list");
    let template = message(&|f| settings(f, json!({"chat_template": "{% for %}"})));
    assert!(template.starts_with("tokenizer_config.json: the chat template cannot be read: line 1: "), "{template}");
}

// --- The hub, replaced by a server in this test ---

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub that has the files of a folder as the model `org/model` and as the data set `org/data`.
struct Hub {
    address: String,
    requests: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
}

impl Hub {
    fn start(folder: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        let (count, still_open) = (requests.clone(), open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if !still_open.load(Ordering::SeqCst) {
                    break;
                }
                count.fetch_add(1, Ordering::SeqCst);
                serve(stream.unwrap(), &folder);
            }
        });
        Self { address, requests, open }
    }

    fn host(&self) -> &str {
        self.address.trim_start_matches("http://")
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.open.store(false, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address.trim_start_matches("http://"));
    }
}

fn serve(mut stream: TcpStream, folder: &Path) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|l| !l.is_empty()).map(|l| l.to_lowercase()).collect();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let listings = ["/api/models/org/model/revision/", "/api/datasets/org/data/revision/"];
    let files = ["/org/model", "/datasets/org/data"].map(|repo| format!("{repo}/resolve/{COMMIT}/"));
    let answer = if listings.iter().any(|l| path.starts_with(l)) {
        let siblings: Vec<Value> = names_below(folder).iter().map(|n| json!({"rfilename": n})).collect();
        ok(json!({"siblings": siblings, "sha": COMMIT}).to_string().as_bytes(), "")
    } else if let Some(name) = files.iter().find_map(|f| path.strip_prefix(f.as_str())) {
        part(&fs::read(folder.join(name)).unwrap(), name, &headers)
    } else {
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    };
    let _ = stream.write_all(&answer);
}

/// The paths of all files, relative to the folder.
fn names_below(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => names.extend(names_below(&entry.path()).iter().map(|below| format!("{name}/{below}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

fn part(all: &[u8], name: &str, headers: &[String]) -> Vec<u8> {
    let range = headers.iter().find_map(|h| h.strip_prefix("range: bytes=")).unwrap_or("0-").to_owned();
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(all.len(), |e: usize| (e + 1).min(all.len()));
    let extra = format!(
        "Content-Range: bytes {start}-{}/{}\r\nETag: \"{}\"\r\nX-Repo-Commit: {COMMIT}\r\n",
        end.saturating_sub(1),
        all.len(),
        name.replace('/', "-"),
    );
    ok(&all[start..end], &extra)
}

fn ok(body: &[u8], extra: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{extra}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn options(cache: &TempDir, endpoint: &str) -> HubOptions {
    HubOptions {
        progress: false,
        timeouts: Timeouts { answer: Duration::from_secs(5), stall: Duration::from_secs(5) },
        backoff: Duration::from_millis(1),
        ..HubOptions::new(cache.path(), Some(endpoint.into()))
    }
}

fn hub_error(spec: &str, options: &HubOptions) -> UsageError {
    let error = ModelSource::parse(spec).unwrap().resolve_with(options).unwrap_err();
    let usage = error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error:#}")).clone();
    assert_eq!(usage.what.lines().count(), 1);
    usage
}

#[test]
fn a_model_is_downloaded_once_and_then_needs_no_network() {
    let (remote, cache) = (copy_of("llama-sharded"), TempDir::new().unwrap());
    let hub = Hub::start(remote.path().to_owned());
    let source = ModelSource::parse("org/model").unwrap();
    let files = source.resolve_with(&options(&cache, &hub.address)).unwrap();
    assert_eq!((files.id.as_str(), files.revision.as_deref()), ("org/model", Some(COMMIT)));
    assert_eq!(files.config().unwrap().layers, 3);
    assert!(files.tokenizer_config.is_some() && files.chat_template.is_none() && files.notes.is_empty());
    let embedding = files.weights.read("model.embed_tokens.weight", &[256, 64]).unwrap();
    let original = Weights::open_folder(remote.path()).unwrap();
    assert_eq!(embedding.bytes, original.read("model.embed_tokens.weight", &[256, 64]).unwrap().bytes);

    let requests = hub.requests();
    let again = source.resolve_with(&options(&cache, &hub.address)).unwrap();
    assert_eq!((hub.requests(), again.revision.as_deref()), (requests, Some(COMMIT)));

    hub.stop();
    let offline = HubOptions { offline: true, ..options(&cache, &hub.address) };
    for (spec, options) in
        [("org/model", &offline), ("org/model@main", &offline), ("org/model", &options(&cache, "http://127.0.0.1:9"))]
    {
        let files = ModelSource::parse(spec).unwrap().resolve_with(options).unwrap();
        assert_eq!(files.weights.sha256().unwrap(), original.sha256().unwrap());
    }
    let commit = format!("org/model@{COMMIT}");
    assert!(ModelSource::parse(&commit).unwrap().resolve_with(&offline).is_ok());
    // A shard missing from the cache is noticed before anything is loaded.
    let snapshot = cache.path().join("models--org--model/snapshots").join(COMMIT);
    fs::remove_file(snapshot.join("model-00002-of-00002.safetensors")).unwrap();
    let error = hub_error("org/model", &offline);
    let cache = cache.path().display();
    assert_eq!(
        error.what,
        format!(
            "org/model: `model-00002-of-00002.safetensors` is not in the cache {cache} and cannot be downloaded: HF_HUB_OFFLINE is set"
        )
    );
}

#[test]
fn texts_are_downloaded_without_the_weights_and_the_weights_when_they_are_wanted() {
    let (remote, cache) = (copy_of("qwen3"), TempDir::new().unwrap());
    let hub = Hub::start(remote.path().to_owned());
    let source = ModelSource::parse("org/model").unwrap();
    let options = options(&cache, &hub.address);
    let texts = source.resolve_texts_with(&options).unwrap();
    assert_eq!((texts.id.as_str(), texts.revision.as_deref()), ("org/model", Some(COMMIT)));
    let snapshot = cache.path().join("models--org--model/snapshots").join(COMMIT);
    assert!(snapshot.join("tokenizer.json").is_file() && !snapshot.join("model.safetensors").exists());
    let requests = hub.requests();
    source.resolve_texts_with(&options).unwrap();
    assert_eq!(hub.requests(), requests, "the cache has them all");
    let error = hub_error("org/model", &HubOptions { offline: true, ..options.clone() });
    assert!(error.what.contains("`model.safetensors` is not in the cache"), "{}", error.what);
    assert!(source.resolve_with(&options).is_ok() && snapshot.join("model.safetensors").is_file());
}

#[test]
fn a_cache_filled_by_other_tools_is_used_with_a_word_about_what_it_lacks() {
    let (remote, cache) = (copy_of("qwen3"), TempDir::new().unwrap());
    let root = cache.path().join("models--org--model");
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::create_dir_all(root.join("snapshots").join(COMMIT)).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(remote.path().join(file), root.join("snapshots").join(COMMIT).join(file)).unwrap();
    }
    let source = ModelSource::parse("org/model").unwrap();
    let offline = HubOptions { offline: true, ..options(&cache, "http://127.0.0.1:9") };
    let files = source.resolve_with(&offline).unwrap();
    let doubt = |names: &str| {
        format!(
            "org/model: {names} not in the cache (HF_HUB_OFFLINE is set); if the repository has such a file, prompts or the ends of \
             answers differ from its own"
        )
    };
    let all = "`tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`, `special_tokens_map.json` and \
               `added_tokens.json` are";
    assert_eq!(files.notes, [doubt(all)]);
    // Files that other tools looked for in vain give no warning, nor do files that would not be read.
    let notes_with = |file: &str| {
        fs::create_dir_all(root.join(".no_exist").join(COMMIT)).unwrap();
        fs::write(root.join(".no_exist").join(COMMIT).join(file), "").unwrap();
        source.resolve_with(&offline).unwrap().notes.clone()
    };
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::write(snapshot.join("tokenizer_config.json"), r#"{"added_tokens_decoder": {}}"#).unwrap();
    assert_eq!(notes_with("generation_config.json"), [doubt("`chat_template.jinja` is")]);
    assert_eq!(notes_with("chat_template.jinja"), [""; 0]);
    fs::remove_dir_all(root.join(".no_exist")).unwrap();
    fs::remove_file(snapshot.join("tokenizer_config.json")).unwrap();
    // With a network, the rest is downloaded, but nothing that is cached.
    let hub = Hub::start(remote.path().to_owned());
    let files = source.resolve_with(&options(&cache, &hub.address)).unwrap();
    assert!(files.notes.is_empty() && files.tokenizer_config.is_some());
    assert_eq!(hub.requests(), 3);
}

#[test]
fn without_network_the_error_says_what_to_do_and_comes_soon() {
    let cache = TempDir::new().unwrap();
    // A server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let started = Instant::now();
    let timeouts = Timeouts { answer: Duration::from_secs(1), stall: Duration::from_secs(5) };
    let patient = HubOptions { timeouts, ..options(&cache, &endpoint) };
    let failure = |options: &HubOptions| {
        let error = ModelSource::parse("org/model").unwrap().resolve_with(options).unwrap_err();
        error.downcast_ref::<RunFailure>().unwrap_or_else(|| panic!("{error:#}")).clone()
    };
    let silence = failure(&patient);
    assert!(started.elapsed() < Duration::from_secs(3));
    let (folder, host) = (cache.path().display(), endpoint.trim_start_matches("http://"));
    assert_eq!(
        silence.what,
        format!(
            "org/model: `config.json` is not in the cache {folder} and cannot be downloaded: {host} does not answer within 1 s"
        )
    );
    assert!(silence.hint.starts_with("HF_HUB_ETAG_TIMEOUT=60 waits longer for an answer"), "{}", silence.hint);
    let refused = failure(&options(&cache, "http://127.0.0.1:9"));
    assert!(
        refused.what.contains("cannot be downloaded: cannot connect to 127.0.0.1:9 (Connection refused"),
        "{refused}"
    );
    assert!(
        refused.hint.ends_with(
            "or download it on a machine with network (`hf download org/model`) and copy the cache, or give a local folder"
        ),
        "{}",
        refused.hint
    );
}

#[test]
fn what_the_hub_does_not_have_is_told_apart_from_no_network() {
    let (remote, cache) = (copy_of("qwen3"), TempDir::new().unwrap());
    let hub = Hub::start(remote.path().to_owned());
    let error = hub_error("org/typo@dev", &options(&cache, &hub.address));
    assert_eq!(
        error.what,
        format!(
            "org/typo: the hub has no revision `dev` of this model, or denies access ({} answers 404 Not Found)",
            hub.host()
        )
    );
    fs::remove_file(remote.path().join("model.safetensors")).unwrap();
    fs::write(remote.path().join("pytorch_model.bin"), "x").unwrap();
    assert_eq!(
        hub_error("org/model", &options(&cache, &hub.address)).what,
        "org/model: this repository has no safetensors weights; it holds weights in PyTorch's pickle format, which is not read \
         (`pytorch_model.bin`)"
    );
    fs::remove_file(remote.path().join("tokenizer.json")).unwrap();
    assert_eq!(
        hub_error("org/model", &options(&cache, &hub.address)).what,
        "org/model: this repository has no tokenizer.json"
    );
}

// --- Data sets ---

const PATTERNS: [&str; 3] = ["PaulGrahamEssays.json", "squad/dev-v2.0.json", "wordlists/*.txt"];

/// A data set with three files that match and two that do not.
fn data_set() -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["README.md", "squad/dev-v2.0.json", "squad/train.json", "wordlists/a.txt", "wordlists/b.txt"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("text of {name}")).unwrap();
    }
    folder
}

fn data(spec: &str, options: &HubOptions) -> anyhow::Result<DataFolder> {
    DataSource::parse(Path::new(spec))?.resolve_with(&PATTERNS, options)
}

fn data_error(spec: &str, options: &HubOptions) -> UsageError {
    let error = data(spec, options).unwrap_err();
    let usage = error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error:#}")).clone();
    assert_eq!(usage.what.lines().count(), 1);
    usage
}

#[test]
fn a_data_set_is_downloaded_once_and_then_needs_no_network() {
    let (remote, cache) = (data_set(), TempDir::new().unwrap());
    let hub = Hub::start(remote.path().to_owned());
    let online = options(&cache, &hub.address);
    let found = data("hub:org/data", &online).unwrap();
    assert_eq!(found.folder, cache.path().join("datasets--org--data/snapshots").join(COMMIT));
    assert_eq!(found.id, format!("hub:org/data@{COMMIT} (files: 3)"));
    assert!(found.notes.is_empty());
    let names = ["squad/dev-v2.0.json", "wordlists/a.txt", "wordlists/b.txt"];
    assert_eq!(names_below(&found.folder), names);
    for name in names {
        assert_eq!(fs::read_to_string(found.folder.join(name)).unwrap(), format!("text of {name}"));
    }

    let requests = hub.requests();
    assert_eq!((data("hub:org/data@main", &online).unwrap(), hub.requests()), (found.clone(), requests));
    hub.stop();
    let offline = HubOptions { offline: true, ..online };
    let unreachable = options(&cache, "http://127.0.0.1:9");
    let commit = format!("hub:org/data@{COMMIT}");
    for (spec, options) in [("hub:org/data", &offline), ("hub:org/data", &unreachable), (commit.as_str(), &offline)] {
        assert_eq!(data(spec, options).unwrap(), found);
    }

    fs::remove_file(found.folder.join("wordlists/a.txt")).unwrap();
    let error = data_error("hub:org/data", &offline).what;
    assert!(error.starts_with("org/data: `wordlists/a.txt` is not in the cache "), "{error}");
}

#[test]
fn a_download_of_data_that_was_broken_off_is_completed() {
    let (remote, cache) = (data_set(), TempDir::new().unwrap());
    let hub = Hub::start(remote.path().to_owned());
    let online = options(&cache, &hub.address);
    let spec = format!("hub:org/data@{COMMIT}");
    let found = data(&spec, &online).unwrap();
    fs::remove_file(found.folder.join("squad/dev-v2.0.json")).unwrap();
    assert_eq!(data(&spec, &online).unwrap(), found);
    assert_eq!(names_below(&found.folder).len(), 3);
}

#[test]
fn data_that_other_tools_have_cached_is_used_with_a_word_of_doubt() {
    let (remote, cache) = (data_set(), TempDir::new().unwrap());
    let root = cache.path().join("datasets--org--data");
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::create_dir_all(snapshot.join("wordlists")).unwrap();
    fs::write(snapshot.join("README.md"), "").unwrap();
    let offline = HubOptions { offline: true, ..options(&cache, "http://127.0.0.1:9") };
    assert!(data_error("hub:org/data", &offline).what.starts_with("org/data: the data set is not in the cache "));

    fs::copy(remote.path().join("wordlists/a.txt"), snapshot.join("wordlists/a.txt")).unwrap();
    let part = data("hub:org/data", &offline).unwrap();
    assert_eq!(part.notes, ["org/data: the cache may not have all files of this data set (HF_HUB_OFFLINE is set)"]);
    // Runs on part of the data must not be recorded as runs on all of it.
    assert_eq!(part.id, format!("hub:org/data@{COMMIT} (files: 1)"));

    let hub = Hub::start(remote.path().to_owned());
    let whole = data("hub:org/data", &options(&cache, &hub.address)).unwrap();
    assert_eq!((whole.notes.len(), whole.id), (0, format!("hub:org/data@{COMMIT} (files: 3)")));
    assert!(data("hub:org/data", &offline).unwrap().notes.is_empty());
}

#[test]
fn data_that_is_not_to_be_had_is_said_in_one_line() {
    let cache = TempDir::new().unwrap();
    let offline = HubOptions { offline: true, ..options(&cache, "http://127.0.0.1:9") };
    let error = data_error("hub:org/data", &offline);
    let folder = cache.path().display();
    assert_eq!(
        error.what,
        format!("org/data: the data set is not in the cache {folder} and cannot be downloaded: HF_HUB_OFFLINE is set")
    );
    assert_eq!(
        error.hint.unwrap(),
        "unset it, or download it on a machine with network (`hf download --repo-type dataset org/data`) and copy the cache, or give a local folder"
    );

    let hint = data_error("hub:org/data@v1", &offline).hint.unwrap();
    assert!(hint.contains("`hf download --repo-type dataset org/data --revision v1`"), "{hint}");

    let remote = TempDir::new().unwrap();
    fs::write(remote.path().join("README.md"), "").unwrap();
    let hub = Hub::start(remote.path().to_owned());
    let error = data_error("hub:org/data", &options(&cache, &hub.address));
    assert_eq!(error.what, "org/data: the data set has none of the files that tasks read");
    assert_eq!(error.hint.unwrap(), "these are read: PaulGrahamEssays.json, squad/dev-v2.0.json, wordlists/*.txt");
    let error = data_error("hub:org/typo", &options(&cache, &hub.address));
    assert_eq!(
        error.what,
        format!(
            "org/typo: the hub has no revision `main` of this data set, or denies access ({} answers 404 Not Found)",
            hub.host()
        )
    );
}

#[test]
fn a_plain_folder_of_data_stays_what_it_is() {
    let (folder, cache) = (data_set(), TempDir::new().unwrap());
    let path = folder.path().to_str().unwrap();
    let found = data(path, &options(&cache, "http://127.0.0.1:9")).unwrap();
    assert_eq!(found, DataFolder { folder: path.into(), id: path.to_owned(), notes: Vec::new() });
}
