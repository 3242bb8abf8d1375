//! Everything a model is read from, against references made by `scripts/make_golden_models.py`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use spattn::model::chat::{ChatTemplate, Message};
use spattn::model::config::ModelConfig;
use spattn::model::rope::{Rope, RopeTable};

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

/// A config.json with the RoPE keys of a golden entry.
fn config_with(entry: &Value) -> ModelConfig {
    let mut config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1,
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
        let rope = Rope::new(&config.rope, config.head_dim, config.max_position_embeddings);
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
            // An ulp of a frequency is this much of an angle.
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
