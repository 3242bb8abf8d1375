//! Differences between a folder's stored settings and the present ones, in words for users.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::manifest_keys::{CALIBRATION, CONTENT, IDENTITY};

/// The old and the new value of each changed key; the parts of nested keys are joined by dots.
pub type Changes = BTreeMap<String, (Value, Value)>;

/// Digests, each with a message: a user knows a file, not its hash.
const OF_FILES: [(&str, &str); 4] = [
    ("tokenizer_sha256", "tokenizer.json has changed"),
    ("weights_sha256", "the weights have changed"),
    ("tokens.chat_template_sha256", "the chat template has changed"),
    ("tokens.added_tokens_sha256", "the tokenizer's special tokens have changed"),
];
/// Settings that are given by flags or by a model's files, with the names that users know.
const OF_VALUES: &[(&str, &str)] = &[
    ("protocol", "`--sparse-from`"),
    ("seed", "`--seed`"),
    ("model", "`--model`"),
    ("data", "`--data`"),
    ("dtype", "`--dtype`"),
    ("positions", "`--positions`"),
    ("fidelity", "`--fidelity`"),
    ("latency", "`--latency`"),
    ("kv_tier", "`--kv-tier`"),
    ("kv_memory", "`--kv-memory`"),
    ("dequantise", "`--dequantise`"),
    ("kept_blocks", "whether quantised weights stay in their blocks"),
    ("local_layers", "`--local-layers`"),
    ("matmul_precision", "`--matmul-precision`"),
    ("system_prompt", "`--system-prompt`"),
    ("thinking", "`--thinking`"),
    ("thinking_tokens", "`--thinking-tokens`"),
    ("temperature", "`--temperature`"),
    ("top_p", "`--top-p`"),
    ("repeats", "`--repeats`"),
    ("stop", "`--stop`"),
    ("engine", "the engine (`--device`)"),
    ("chat_template", "the use of a chat template"),
    ("tokens.eos", "the list of tokens that end an answer"),
    ("tokens.front", "the list of tokens in front of a prompt"),
    ("results_version", "the version of the program's results"),
];
/// The parts of an identity of which a matrix may have several values.
pub const AXES: [&str; 3] = ["model", "protocol", "seed"];

/// Adds every key in which two values differ to `found`.
pub fn compare(key: &str, then: &Value, now: &Value, found: &mut Changes) {
    if let (Value::Object(then), Value::Object(now)) = (then, now) {
        let field = |object: &Map<String, Value>, name: &str| object.get(name).cloned().unwrap_or(Value::Null);
        let unknown = |name: &String| key.is_empty() && CONTENT.contains(&name.as_str()) && !then.contains_key(name);
        for name in then.keys().chain(now.keys()).filter(|name| !unknown(name)) {
            let nested = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            compare(&nested, &field(then, name), &field(now, name), found);
        }
    } else if then != now {
        let key = if key.is_empty() { IDENTITY } else { key };
        found.insert(key.to_owned(), (then.clone(), now.clone()));
    }
}

/// Describes a change in words.
pub fn in_words(key: &str, then: &Value, now: &Value) -> String {
    const SINCE: &str = "since the folder's records were made";
    if let Some((_, changed)) = OF_FILES.iter().find(|(of, _)| *of == key) {
        return format!("{changed} {SINCE}");
    }
    if let Some(kind) = key.strip_prefix(CALIBRATION).and_then(|rest| rest.strip_prefix('.')) {
        return format!("the calibration of {kind} has changed {SINCE}");
    }
    let (then, now) = (short(then), short(now));
    if let Some(setting) = key.strip_prefix("config.") {
        return format!("the model's configuration has changed: `{setting}` was {then}, is {now}");
    }
    let name =
        OF_VALUES.iter().find(|(of, _)| *of == key).map_or_else(|| format!("`{key}`"), |(_, name)| (*name).to_owned());
    format!("{name} was {then}, is {now}")
}

/// The message about a value that the folder has but the present run does not ask for.
pub fn lacking(key: &str, then: &Value) -> String {
    let name = OF_VALUES.iter().find(|(of, _)| *of == key).map_or(key, |(_, name)| name);
    let then = then.as_str().map_or_else(|| then.to_string(), str::to_owned);
    format!("it has records of {name} {then}, which this run leaves out")
}

/// A value as JSON, cut to a readable length. Settings that are the default are left out.
fn short(value: &Value) -> String {
    const LONGEST: usize = 40;
    if value.is_null() {
        return "not set".to_owned();
    }
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_have_the_names_that_users_know() {
        let told = |key: &str, then: Value, now: Value| in_words(key, &then, &now);
        for (key, words) in [
            ("tokenizer_sha256", "tokenizer.json has changed since the folder's records were made"),
            ("weights_sha256", "the weights have changed since the folder's records were made"),
            ("tokens.chat_template_sha256", "the chat template has changed since the folder's records were made"),
            ("calibration.loki", "the calibration of loki has changed since the folder's records were made"),
        ] {
            let hash = "9e29a1b2c3d4";
            assert_eq!(told(key, json!(hash), json!("0123")), words, "and no hash");
        }
        assert_eq!(
            told("config.rope.theta", json!(5e5), json!(1e4)),
            "the model's configuration has changed: `rope.theta` was 500000.0, is 10000.0"
        );
        assert_eq!(
            told("protocol", json!("question"), json!("decode")),
            "`--sparse-from` was \"question\", is \"decode\""
        );
        assert_eq!(told("latency", Value::Null, json!("solo")), "`--latency` was not set, is \"solo\"");
        assert_eq!(told("x.y", json!(1), json!(2)), "`x.y` was 1, is 2");
        assert_eq!(lacking("seed", &json!(1)), "it has records of `--seed` 1, which this run leaves out");
    }
}
