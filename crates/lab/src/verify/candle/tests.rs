//! Runs each of candle's models on a tiny checkpoint of its family, with config keys changed that it does not compute; and checkpoints for
//! which candle is no referee.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use spattn_attention::kv::KvDtype;
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use tempfile::TempDir;

use super::compute::VERSION;
use super::designs::DESIGNS;
use super::judge::judge;
use crate::verify::{Check, CheckResult, Referee, Verification, Verified};
use spattn_model::device::Device;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a golden checkpoint with the byte tokenizer and changed keys of its config; `null` makes a key count as missing.
fn checkpoint(name: &str, changed: &Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let golden = repository().join("tests/golden");
    for from in [golden.join("models").join(name), golden.join("verify")] {
        for file in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
            let file_name = file.file_name().unwrap().to_owned();
            if !file.ends_with("golden.json")
                && !["llama-bias.safetensors", "qwen3.safetensors"].iter().any(|f| file.ends_with(f))
            {
                fs::copy(&file, folder.path().join(file_name)).unwrap();
            }
        }
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    merge(config.as_object_mut().unwrap(), changed.as_object().unwrap());
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn merge(config: &mut Map<String, Value>, changed: &Map<String, Value>) {
    for (key, value) in changed {
        match (config.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
            (Some(inner), Some(changed)) => merge(inner, changed),
            _ => {
                config.insert(key.clone(), value.clone());
            }
        }
    }
}

fn verified(source: &ModelSource) -> Verified {
    let referee = Some(Referee::Candle { tokens: None });
    Verification { source, device: Device::Cpu, dtype: None, referee }.run(&mut |_, _, _| {}).unwrap()
}

fn check<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check `{name}`: {checks:?}"))
}

/// Returns golden checkpoint, changed keys, candle's module, and the last position that is compared.
fn judged() -> Vec<(&'static str, Value, &'static str, usize)> {
    let default_rope = json!({"rope_type": "default", "rope_theta": 1e6, "factor": null});
    vec![
        ("llama3", json!({}), "llama", 2111),
        ("llama-sharded", json!({}), "llama", 2111),
        ("mistral", json!({}), "mistral", 2111),
        ("mistral-sliding", json!({}), "mistral", 255),
        ("mixtral", json!({}), "mixtral", 2111),
        ("qwen2", json!({}), "qwen2", 2111),
        ("qwen2-sliding", json!({}), "qwen2", 199),
        ("qwen3", json!({}), "qwen3", 2111),
        ("qwen3-moe", json!({"num_hidden_layers": 1, "mlp_only_layers": []}), "qwen3_moe", 2111),
        ("gemma2", json!({"query_pre_attn_scalar": 32}), "gemma2", 127),
        (
            "gemma3",
            json!({"query_pre_attn_scalar": 32, "rope_parameters": {"full_attention": default_rope}}),
            "gemma3",
            127,
        ),
        ("phi3", json!({}), "phi3", 299),
        (
            "granite",
            json!({"attention_multiplier": 0.25, "embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1}),
            "granite",
            2111,
        ),
        ("glm4", json!({}), "glm4_new", 2111),
        ("olmo2", json!({}), "olmo2", 2111),
        ("smollm3", json!({}), "smol::smollm3", 2111),
    ]
}

#[test]
fn each_model_of_candle_agrees_on_a_checkpoint_of_its_family() {
    for (name, changed, module, last) in judged() {
        let folder = checkpoint(name, &changed);
        let verified = verified(&ModelSource::Folder(folder.path().to_owned()));
        let expected = format!("candle-transformers {VERSION} ({module}) in f32");
        assert_eq!(verified.referee, Some(expected), "{name}: {:?}", verified.checks);
        let logits = check(&verified.checks, "logits");
        assert_eq!(logits.result, CheckResult::Pass, "{name}: {}", logits.found);
        assert!(logits.value.unwrap() < 1e-4, "{name}: {logits:?}");
        assert!(logits.found.ends_with(&format!("the last is {last}")), "{name}: {}", logits.found);
        let text = check(&verified.checks, "greedy text");
        assert_eq!((text.result, text.found.as_str()), (CheckResult::Pass, "24 tokens equal"), "{name}");
    }
}

#[test]
fn each_row_for_safetensors_has_a_checkpoint() {
    let modules: Vec<&str> = judged().into_iter().map(|(_, _, module, _)| module).collect();
    for design in DESIGNS.iter().filter(|design| !design.is_of_gguf()) {
        assert!(modules.contains(&design.module), "{}", design.module);
    }
}

#[test]
fn candle_is_no_referee_where_it_leaves_something_out() {
    for (name, why) in [
        ("llama-bias", "candle's llama does not compute `attention_bias` true"),
        ("llama-yarn", "candle's llama leaves out the RoPE scaling `yarn`"),
        ("llama-linear", "candle's llama leaves out the RoPE scaling `linear`"),
        ("phi3-long", "candle's phi3 leaves out the RoPE scaling `longrope`"),
        ("gemma2", "candle's gemma2 does not read `query_pre_attn_scalar` 24"),
        ("granite", "candle's granite does not compute `embedding_multiplier` 6"),
        ("qwen3-moe", "candle's qwen3_moe does not compute `mlp_only_layers` [1]"),
        // The experts are stacked.
        ("qwen3-moe-fused", "candle says cannot find tensor model.layers.1.mlp.experts.0.gate_proj.weight"),
        ("gemma3-wrapped", "candle's gemma3 leaves out the RoPE scaling `linear`"),
        ("gpt-oss-mxfp4", "candle has no GptOssForCausalLM"),
        ("olmo3", "candle has no Olmo3ForCausalLM"),
        ("ministral3", "candle has no Mistral3ForConditionalGeneration"),
    ] {
        let folder = checkpoint(name, &json!({}));
        let verified = verified(&ModelSource::Folder(folder.path().to_owned()));
        let candle = check(&verified.checks, "candle");
        assert_eq!((candle.result, &verified.referee), (CheckResult::Skipped, &None), "{name}");
        assert!(candle.found.contains(why), "{name}: {}", candle.found);
    }
}

#[test]
fn a_model_in_no_file_is_compared() {
    let builtin = verified(&ModelSource::Builtin);
    assert!(builtin.referee.is_some_and(|name| name.contains("(llama)")), "{:?}", builtin.checks);
    assert_eq!(check(&builtin.checks, "logits").result, CheckResult::Pass);
}

/// GGUF file of `tests/golden/gguf/families`, candle's module, the last position that is compared.
const GGUF: [(&str, &str, usize); 4] = [
    ("mistral", "quantized_llama", 2111),
    ("qwen2", "quantized_qwen2", 2047),
    ("phi3-q8_0", "quantized_phi3", 299),
    ("glm4", "quantized_glm4", 2047),
];

#[test]
fn each_model_of_candle_agrees_on_a_gguf_file_of_its_family() {
    for (name, module, last) in GGUF {
        let path = repository().join(format!("tests/golden/gguf/families/{name}.gguf"));
        let verified = verified(&ModelSource::Gguf(path));
        let expected = format!("candle-transformers {VERSION} ({module}) in f32");
        assert_eq!(verified.referee, Some(expected), "{name}: {:?}", verified.checks);
        let logits = check(&verified.checks, "logits");
        assert_eq!(logits.result, CheckResult::Pass, "{name}: {logits:?}");
        assert!(logits.found.ends_with(&format!("the last is {last}")), "{name}: {}", logits.found);
        let text = check(&verified.checks, "greedy text");
        assert_eq!(text.result, CheckResult::Pass, "{name}: {text:?}");
    }
    let modules = GGUF.map(|(_, module, _)| module);
    for design in DESIGNS.iter().filter(|design| design.is_of_gguf()) {
        assert!(modules.contains(&design.module), "{}", design.module);
    }
}

/// Both programs read the same files, so the wrong theta is set only in the config that candle gets.
#[test]
fn a_wrong_theta_is_seen() {
    let folder = checkpoint("llama3", &json!({}));
    let source = ModelSource::Folder(folder.path().to_owned());
    let model = || Model::load(&source, Some(KvDtype::F32), TokenizerOptions::default()).unwrap();
    let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let sound = judge(model(), &config, Some(64)).unwrap();
    assert!(!sound.checks.iter().any(Check::is_failure), "{:?}", sound.checks);
    config["rope_parameters"]["rope_theta"] = json!(10_000.0);
    let broken = judge(model(), &config, Some(64)).unwrap();
    let logits = check(&broken.checks, "logits");
    assert!(logits.is_failure() && logits.found.starts_with("they differ from position"), "{logits:?}");
}

#[test]
fn the_rows_are_of_the_version_that_is_built_in() {
    let lock = fs::read_to_string(repository().join("Cargo.lock")).unwrap();
    assert!(lock.contains(&format!("name = \"candle-transformers\"\nversion = \"{VERSION}\"")));
}
