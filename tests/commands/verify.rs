//! `spattn verify` on tiny checkpoints, against what transformers computed for them (`scripts/make_golden_models.py verify`): a sound model
//! passes, and planted faults are named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::tensor::{Metadata, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

fn golden(path: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if built.exists() { built } else { Path::new(".") };
    root.join("tests/golden").join(path)
}

/// A golden checkpoint with a byte-level tokenizer, in its own folder.
struct Checkpoint {
    name: &'static str,
    folder: TempDir,
}

/// A tensor that a fault is planted in.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// The number of bytes in a row.
    fn row(&self) -> usize {
        self.bytes.len() / self.shape[0]
    }
}

impl Checkpoint {
    fn new(name: &'static str) -> Self {
        let folder = TempDir::new().unwrap();
        let from = |path: &str, file: &str| fs::copy(golden(path).join(file), folder.path().join(file)).unwrap();
        let model = format!("models/{name}");
        from(&model, "config.json");
        from(&model, "model.safetensors");
        from("verify", "tokenizer.json");
        from("verify", "tokenizer_config.json");
        Self { name, folder }
    }

    /// Edits a JSON file.
    fn edit(self, file: &str, edit: impl FnOnce(&mut Value)) -> Self {
        let path = self.folder.path().join(file);
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        edit(&mut value);
        fs::write(path, value.to_string()).unwrap();
        self
    }

    /// Edits the tensors.
    fn tensors(self, edit: impl FnOnce(&mut Vec<Tensor>)) -> Self {
        let path = self.folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let (_, header): (usize, Metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let dtype = header.tensors().values().next().unwrap().dtype;
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let owned = |(name, view): (String, TensorView<'_>)| {
            assert_eq!(view.dtype(), dtype);
            Tensor { name, shape: view.shape().to_vec(), bytes: view.data().to_vec() }
        };
        let mut tensors: Vec<Tensor> = file.tensors().into_iter().map(owned).collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|t| (&t.name, TensorView::new(dtype, t.shape.clone(), &t.bytes).unwrap()));
        fs::write(path, serialize(views, None).unwrap()).unwrap();
        self
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        command.args(["verify", "--threads", "2", "--model"]).arg(self.folder.path()).args(args).output().unwrap()
    }

    fn verify(&self, args: &[&str], status: i32) -> Value {
        let ran = self.run(&[&["--json"], args].concat());
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(status), "{stderr}");
        serde_json::from_slice(&ran.stdout).unwrap()
    }

    /// The result of the checks against the reference.
    fn against(&self, status: i32) -> Value {
        let reference = golden("verify").join(format!("{}.safetensors", self.name));
        self.verify(&["--reference", reference.to_str().unwrap()], status)
    }
}

fn tensor<'t>(tensors: &'t mut [Tensor], name: &str) -> &'t mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

/// The names of the failed checks.
fn failed(verdict: &Value) -> Vec<&str> {
    let checks = verdict["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["result"] == "fail").map(|check| check["name"].as_str().unwrap()).collect()
}

fn found<'v>(verdict: &'v Value, name: &str) -> &'v str {
    let check = verdict["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
    check["found"].as_str().unwrap()
}

const SELF: [&str; 4] = ["kept prefix", "decoding", "batch", "threads"];

#[test]
fn sound_models_pass_beside_the_reference_and_alone() {
    for name in ["llama-bias", "qwen3"] {
        let model = Checkpoint::new(name);
        let verdict = model.against(0);
        assert_eq!((failed(&verdict), &verdict["passed"]), (vec![], &json!(true)), "{name}");
        let hidden = found(&verdict, "hidden states");
        assert_eq!(hidden, "2 layers at 16 positions up to 2111", "{name}: beyond the 2048 that the config has");
        assert!(found(&verdict, "logits").ends_with("same first token at 16 of 16 positions"), "{name}");
        assert_eq!(found(&verdict, "greedy text"), "24 tokens equal", "{name}");
        let alone = model.verify(&[], 0);
        assert_eq!(alone["reference"], Value::Null);
        SELF.iter().for_each(|check| assert!(found(&alone, check).contains("logits"), "{name}: {check}"));
    }
}

#[test]
fn the_table_has_a_line_for_each_check_and_says_what_to_look_at() {
    let model = Checkpoint::new("qwen3").edit("config.json", |c| c["rope_parameters"]["rope_theta"] = json!(5e4));
    let reference = golden("verify/qwen3.safetensors");
    let ran = model.run(&["--reference", reference.to_str().unwrap()]);
    let (stdout, stderr) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert_eq!(ran.status.code(), Some(1), "{stderr}");
    let line =
        |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {stdout}"));
    assert!(line("RoPE").contains("FAIL") && line("tensors ").contains("pass"), "{stdout}");
    assert!(stdout.contains("look at: compare `rope_theta`"), "{stdout}");
    assert!(stderr.contains("checks failed: config.json, RoPE, hidden states, logits, greedy text"), "{stderr}");
}

#[test]
fn a_permuted_head_is_named() {
    let name = "model.layers.1.self_attn.q_proj.weight";
    let model = Checkpoint::new("llama-bias").tensors(|tensors| {
        let q = tensor(tensors, name);
        let head = 16 * q.row();
        let (first, second) = q.bytes[head..].split_at_mut(head);
        first[..head].swap_with_slice(&mut second[..head]);
    });
    let verdict = model.against(1);
    assert_eq!(failed(&verdict), ["tensors", "hidden states", "logits", "greedy text"]);
    let expected = format!("`{name}` has its rows in another order: rows 16..48 (heads 1, 2)");
    assert!(found(&verdict, "tensors").ends_with(&expected), "{}", found(&verdict, "tensors"));
    let hidden = found(&verdict, "hidden states");
    assert!(hidden.starts_with("layer 1 is the first that differs, from position 1 on; position 0"), "{hidden}");
}

#[test]
fn a_wrong_theta_is_named() {
    let model = Checkpoint::new("llama-bias").edit("config.json", |c| c["rope_parameters"]["rope_theta"] = json!(2e4));
    let verdict = model.against(1);
    assert_eq!(failed(&verdict), ["config.json", "RoPE", "hidden states", "logits", "greedy text"]);
    assert_eq!(found(&verdict, "RoPE"), "the frequencies are those of theta 20000, the reference's of theta 10000");
    assert!(found(&verdict, "config.json").starts_with("`rope_parameters.rope_theta` is 20000"));
    let hidden = found(&verdict, "hidden states");
    assert!(
        hidden.starts_with("layer 0 is the first that differs, from position ") && hidden.contains("equal"),
        "{hidden}"
    );
}

#[test]
fn a_swapped_norm_is_named() {
    let norms = ["input_layernorm", "post_attention_layernorm"].map(|part| format!("model.layers.0.{part}.weight"));
    let model = Checkpoint::new("qwen3").tensors(|tensors| {
        let bytes = [&norms[1], &norms[0]].map(|name| tensor(tensors, name).bytes.clone());
        norms.iter().zip(bytes).for_each(|(name, bytes)| tensor(tensors, name).bytes = bytes);
    });
    let verdict = model.against(1);
    let told = found(&verdict, "tensors");
    assert!(told.contains(&format!("`{}` holds the numbers of the reference's `{}`", norms[0], norms[1])), "{told}");
    let hidden = found(&verdict, "hidden states");
    assert_eq!(hidden, "layer 0 is the first that differs, at every position from 0 on");
}

#[test]
fn a_cut_vocabulary_is_named() {
    // Keep 200 of 256 tokens: the rest is cut from the tables and from the tokenizer.
    let cut = |tensors: &mut Vec<Tensor>| {
        let table = tensor(tensors, "model.embed_tokens.weight");
        table.bytes.truncate(200 * table.row());
        table.shape[0] = 200;
    };
    let model = Checkpoint::new("qwen3")
        .tensors(cut)
        .edit("config.json", |c| c["vocab_size"] = json!(200))
        .edit("tokenizer.json", |t| {
            t["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < 200)
        });
    let verdict = model.against(1);
    let expected = ["tokens to text", "tensors", "config.json", "tokenizer", "vocabulary"];
    assert_eq!(failed(&verdict), expected);
    assert!(found(&verdict, "tensors").ends_with("`model.embed_tokens.weight` has 200 rows, the reference's 256"));
    assert!(found(&verdict, "config.json").ends_with("`vocab_size` is 200, the reference's 256"));
    assert!(found(&verdict, "vocabulary").contains("the model knows 200, the reference 256"));
    let alone = model.verify(&[], 1);
    assert_eq!(failed(&alone), ["tokens to text"], "texts lose what the tokenizer has no token for");
}

#[test]
fn an_unread_bias_is_named_with_a_reference_and_without() {
    let model = Checkpoint::new("llama-bias").edit("config.json", |c| c["attention_bias"] = json!(false));
    let alone = model.verify(&[], 1);
    assert_eq!(failed(&alone), ["tensors read"]);
    let told = found(&alone, "tensors read");
    assert!(told.contains("8 are not: `model.layers.0.self_attn.k_proj.bias`"), "{told}");
    let verdict = model.against(1);
    let told = found(&verdict, "tensors");
    assert!(told.contains("`model.layers.0.self_attn.k_proj.bias` is not read, and transformers reads it"), "{told}");
    assert_eq!(found(&verdict, "hidden states"), "layer 0 is the first that differs, at every position from 0 on");
}

#[test]
fn broken_weights_stop_before_the_forward_pass() {
    let model = Checkpoint::new("qwen3").tensors(|tensors| {
        let down = tensor(tensors, "model.layers.1.mlp.down_proj.weight");
        let at = 3 * down.row();
        down.bytes[at..at + 2].copy_from_slice(&[0x00, 0x7e]); // f16's NaN
    });
    let verdict = model.verify(&[], 1);
    assert_eq!(failed(&verdict), ["weights finite"]);
    assert_eq!(found(&verdict, "weights finite"), "NaN or infinite: `model.layers.1.mlp.down_proj.weight` in row 3");
    let names: Vec<&Value> = verdict["checks"].as_array().unwrap().iter().map(|check| &check["name"]).collect();
    assert!(!names.contains(&&json!("decoding")), "{names:?}");
}

#[test]
fn another_template_and_other_special_tokens_are_named() {
    let model = Checkpoint::new("qwen3").edit("tokenizer_config.json", |t| {
        let template = t["chat_template"].as_str().unwrap().replace("<|end|>", "<|reserved_0|>");
        t["chat_template"] = json!(template);
    });
    let verdict = model.against(1);
    assert_eq!(failed(&verdict), ["chat template"]);
    assert!(found(&verdict, "chat template").contains("by the reference \"end|><|assistant|>\""));
    let model = Checkpoint::new("qwen3").edit("tokenizer.json", |t| t["post_processor"] = Value::Null);
    let verdict = model.against(1);
    assert_eq!(failed(&verdict), ["special tokens"]);
    assert_eq!(found(&verdict, "special tokens"), "[] are put in front of a text, by the reference [1]");
}

#[cfg(not(feature = "candle"))]
#[test]
fn a_build_without_candle_says_how_to_get_it() {
    let ran = Checkpoint::new("qwen3").run(&["--against", "candle"]);
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("this build has no candle-transformers") && stderr.contains("--features candle"),
        "{stderr}"
    );
}

#[cfg(feature = "candle")]
#[test]
fn candle_is_compared_and_named() {
    let verdict = Checkpoint::new("qwen3").verify(&["--against", "candle"], 0);
    assert!(verdict["reference"].as_str().unwrap().starts_with("candle-transformers "), "{verdict}");
    assert_eq!(found(&verdict, "greedy text"), "24 tokens equal");
    let skipped = Checkpoint::new("llama-bias").verify(&["--against", "candle"], 0);
    assert!(found(&skipped, "candle").contains("does not compute `attention_bias` true"), "{skipped}");
    assert_eq!(skipped["reference"], Value::Null);
}
