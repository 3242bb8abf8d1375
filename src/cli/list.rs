//! `spattn list`: what there is to evaluate, with parameters and defaults.

use std::io::Write;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::attention::methods::{METHODS, MethodEntry, POLICY_PARAMS, ParamInfo};
use crate::eval::config::{SHIPPED, Settings};
use crate::tasks::{TaskInfo, catalog};

/// List tasks, methods, models or configs, with parameters and defaults.
#[derive(Debug, Args)]
#[command(after_help = "Example: spattn list methods")]
pub struct ListArgs {
    /// What to list
    ///
    /// Example: spattn list tasks
    what: What,

    /// Print JSON instead of text
    ///
    /// Example: spattn list methods --json
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Tasks, their metrics and how many tokens they generate
    Tasks,
    /// Attention methods, their parameters and presets
    Methods,
    /// Where models can come from
    Models,
    /// Run matrices shipped with the program
    Configs,
}

/// Prints the list on standard output.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: ListArgs) -> Result<()> {
    let text = match (args.what, args.json) {
        (What::Tasks, false) => tasks_text(),
        (What::Tasks, true) => serde_json::to_string_pretty(&catalog())?,
        (What::Methods, false) => methods_text(),
        (What::Methods, true) => serde_json::to_string_pretty(&methods_json())?,
        (What::Models, false) => models_text(),
        (What::Models, true) => serde_json::to_string_pretty(&models_json())?,
        (What::Configs, false) => configs_text()?,
        (What::Configs, true) => serde_json::to_string_pretty(&configs_json()?)?,
    };
    writeln!(std::io::stdout().lock(), "{}", text.trim_end())?;
    Ok(())
}

fn tasks_text() -> String {
    let line = |t: TaskInfo| {
        let metric = t.metric.map_or("by file", |m| m.name());
        let tokens = t.max_new_tokens.map_or("by file".to_owned(), |n| n.to_string());
        format!("{:<32} {:<18} {:>7}  {}\n", t.name, metric, tokens, t.about)
    };
    let head = format!("{:<32} {:<18} {:>7}  {}\n", "task", "metric", "tokens", "what it asks");
    let lines: String = catalog().into_iter().map(line).collect();
    format!(
        "{head}{lines}\nGroups: ruler (13 tasks), ruler/niah (8 tasks), ruler_reworded (8 tasks), needle (4 tasks), passkey (2 tasks).\n\
         Use with: spattn eval --task NAME, or NAME:steps=5, NAME:depths=0+50 for tasks that have depths"
    )
}

fn params_text(params: &[ParamInfo]) -> String {
    params.iter().map(|p| format!("    {:<13} {:<12} {}\n", p.key, p.default, p.about)).collect()
}

fn methods_text() -> String {
    let one = |m: &MethodEntry| {
        let presets: String = m
            .presets
            .iter()
            .map(|p| format!("    preset={:<6} {}\n", p.name, preset_line(p.values, p.source)))
            .collect();
        format!("{}\n  {}\n{}{}\n", m.name, m.about, params_text(m.params), presets)
    };
    let methods: String = METHODS.iter().map(one).collect();
    format!(
        "{methods}Every method (but full) also takes\n{}\nUse with: spattn eval -m 'NAME:key=value,key={{a,b}},key=a..b/step'",
        params_text(POLICY_PARAMS)
    )
}

fn preset_line(values: &[(&str, &str)], source: &str) -> String {
    let values: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
    format!("{} ({source})", values.join(","))
}

fn methods_json() -> Value {
    let param = |p: &ParamInfo| json!({ "key": p.key, "default": p.default, "about": p.about });
    METHODS
        .iter()
        .map(|m| {
            json!({
                "name": m.name,
                "about": m.about,
                "params": m.params.iter().chain(if m.params.is_empty() { &[] } else { POLICY_PARAMS }).map(param).collect::<Vec<_>>(),
                "presets": m.presets.iter().map(|p| json!({
                    "name": p.name,
                    "values": p.values.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
                    "source": p.source,
                })).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// What `--model` takes.
const MODELS: &[(&str, &str)] = &[
    ("builtin", "the small Llama inside this program; needs no file and no network"),
    ("DIR", "a folder with config.json, tokenizer.json and safetensors weights (Llama, Mistral, Qwen2, Qwen3)"),
    (
        "ORG/NAME[@REV]",
        "a repository on the Hugging Face hub; its cache is honoured (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN)",
    ),
];

fn models_text() -> String {
    let lines: String = MODELS.iter().map(|(name, about)| format!("{name:<16} {about}\n")).collect();
    format!("{lines}\nUse with: spattn eval --model NAME")
}

fn models_json() -> Value {
    MODELS.iter().map(|(name, about)| json!({ "name": name, "about": about })).collect()
}

fn configs_text() -> Result<String> {
    let mut text = String::new();
    for shipped in SHIPPED {
        let about = Settings::parse(shipped.text, shipped.name)?.about.unwrap_or_default();
        text += &format!("{:<16} {about}\n", shipped.name);
    }
    Ok(text + "\nUse with: spattn eval --config NAME (or a TOML file of your own with the same keys)")
}

fn configs_json() -> Result<Value> {
    let one = |c: &crate::eval::config::ShippedConfig| -> Result<Value> {
        Ok(json!({ "name": c.name, "settings": Settings::parse(c.text, c.name)? }))
    };
    SHIPPED.iter().map(one).collect()
}
