//! `spattn list`: lists tasks, methods and everything else that can be named, with parameters and defaults.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::output::{print_json, print_line};
use spattn_attention::methods::{self, CALIBRATIONS, MethodEntry, POLICY_PARAMS, ParamInfo, Preset};
use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::shipped::{SHIPPED, ShippedConfig};
use spattn_lab::analyze::{ANALYSES, Analysis};
use spattn_lab::papers::ITEMS;
use spattn_lab::papers::item::{Item, Variant};
use spattn_model::families::FAMILIES;
use spattn_tasks::metrics::Metric;
use spattn_tasks::{TaskInfo, catalog, groups};

/// List tasks, methods, metrics, models, configs or analyses, with parameters and defaults.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn list methods
  spattn list methods quest")]
pub struct ListArgs {
    /// What to list
    ///
    /// Example: spattn list tasks
    what: What,

    /// Methods of these names, with all that is known of them
    ///
    /// Example: spattn list methods quest magicpig
    #[arg(value_name = "NAME")]
    names: Vec<String>,

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
    /// How predictions are scored (`spattn score --metric`, `jsonl:FILE:metric=`)
    Metrics,
    /// Where models can come from
    Models,
    /// Run matrices shipped with the program
    Configs,
    /// Observations about attention, with the papers' figures that show them
    Analyses,
}

/// Prints the list on standard output.
///
/// # Errors
/// An unknown name; standard output that cannot be written.
pub fn list_catalog(args: ListArgs) -> Result<()> {
    let methods = match (args.what, args.names.as_slice()) {
        (_, []) => methods::all().collect(),
        (What::Methods, names) => names.iter().map(|name| methods::find(name)).collect::<Result<Vec<_>, _>>()?,
        (_, [name, ..]) => {
            return Err(UsageError::new(format!("unexpected name `{name}`"))
                .hint("only methods can be listed by name: spattn list methods NAME")
                .into());
        }
    };
    let text = match (args.what, args.json) {
        (What::Tasks, false) => tasks_text(),
        (What::Tasks, true) => serde_json::to_string_pretty(&catalog())?,
        (What::Methods, false) if args.names.is_empty() => methods_index(&methods),
        (What::Methods, false) => methods_text(&methods),
        (What::Methods, true) => serde_json::to_string_pretty(&methods_json(&methods))?,
        (What::Metrics, false) => metrics_text(),
        (What::Metrics, true) => serde_json::to_string_pretty(&metrics_json())?,
        (What::Models, false) => models_text(),
        (What::Models, true) => serde_json::to_string_pretty(&models_json())?,
        (What::Analyses, false) => analyses_text(),
        (What::Analyses, true) => serde_json::to_string_pretty(&analyses_json())?,
        (What::Configs, false) => configs_text()?,
        (What::Configs, true) => serde_json::to_string_pretty(&configs_json()?)?,
    };
    if args.json { print_json(&text) } else { print_line(text.trim_end()) }
}

fn tasks_text() -> String {
    let line = |t: TaskInfo| {
        let metric = match (t.metric, t.max_new_tokens) {
            (Some(metric), _) => metric.name(),
            (None, Some(0)) => "log-likelihood",
            (None, _) => "by file",
        };
        let tokens = t.max_new_tokens.map_or("by file".to_owned(), |n| n.to_string());
        format!("{:<32} {:<18} {:>7}  {}\n", t.name, metric, tokens, t.about)
    };
    let head = format!("{:<32} {:<18} {:>7}  {}\n", "task", "metric", "tokens", "what it asks");
    let lines: String = catalog().into_iter().map(line).collect();
    let groups: Vec<String> = groups().into_iter().map(|(name, count)| format!("{name} ({count} tasks)")).collect();
    format!(
        "{head}{lines}\nGroups: {}.\n\
         Use with: spattn eval --task NAME, or NAME:steps=5, NAME:depths=0+50 for tasks that have depths",
        groups.join(", ")
    )
}

fn metrics_text() -> String {
    let all: String = Metric::all().map(|metric| format!("{:<22} {}\n", metric.name(), metric.about())).collect();
    format!(
        "{all}\nUse with: spattn score FILE --metric NAME, or spattn eval -t jsonl:FILE:metric=NAME; `spattn list tasks` shows the metric of each task"
    )
}

fn metrics_json() -> Value {
    Metric::all().map(|metric| json!({ "name": metric.name(), "about": metric.about() })).collect()
}

fn params_text(params: &[ParamInfo]) -> String {
    params.iter().map(|p| format!("    {:<14} {:<12} {}\n", p.key, p.default, p.about)).collect()
}

/// The settings of the calibration that a method needs.
fn calibration_params(method: &MethodEntry) -> &'static [ParamInfo] {
    CALIBRATIONS.iter().find(|c| c.kind == method.name).map_or(&[], |c| c.params)
}

/// A line for each method, and how to see more of it.
fn methods_index(methods: &[&MethodEntry]) -> String {
    let line = |m: &&MethodEntry| format!("{:<20} {:<10} {:<19} {}\n", m.name, m.role.name(), m.phase(), m.about);
    let head = format!("{:<20} {:<10} {:<19} {}\n", "method", "role", "sparse in", "what it does");
    let lines: String = methods.iter().map(line).collect();
    format!(
        "{head}{lines}\nParameters, defaults, presets, reference, and what a GPU does: spattn list methods NAME...\n\
         Use with: spattn eval -m 'NAME:key=value,key={{a,b}},key=a..b/step'"
    )
}

fn methods_text(methods: &[&MethodEntry]) -> String {
    let one = |m: &&MethodEntry| {
        let presets: String =
            m.all_presets().map(|p| format!("    preset={:<7} {}\n", p.name, preset_line(p))).collect();
        let (tail, place) = (m.tail(), m.selection_place().to_string());
        let facts = [
            ("role", m.role.about()),
            ("reference", m.reference),
            ("sparse in", m.phase()),
            ("selection", m.granularity()),
            ("on a GPU", &place),
            ("GPU reads", m.reading_place()),
            ("tail", &tail),
        ];
        let facts: String = facts.iter().map(|(name, value)| format!("    {name:<14} {value}\n")).collect();
        let training = match calibration_params(m) {
            [] => String::new(),
            params => format!("  settings of `spattn calibrate {}:...`\n{}", m.name, params_text(params)),
        };
        format!("{}\n  {}\n{facts}{}{presets}{training}\n", m.name, m.about, params_text(m.params))
    };
    let methods: String = methods.iter().map(one).collect();
    format!(
        "{methods}Every method (but full) also takes\n{}\nUse with: spattn eval -m 'NAME:key=value,key={{a,b}},key=a..b/step'\n\
         One method reads the prompt, another decodes: spattn eval --sparse-from prefill -m 'NAME:...>NAME:...'",
        params_text(POLICY_PARAMS)
    )
}

fn preset_values(preset: &Preset) -> String {
    preset.values.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

fn preset_line(preset: &Preset) -> String {
    if preset.values.is_empty() {
        preset.source.to_owned()
    } else {
        format!("{} ({})", preset_values(preset), preset.source)
    }
}

fn methods_json(methods: &[&MethodEntry]) -> Value {
    let param = |p: &ParamInfo| json!({ "key": p.key, "default": p.default, "about": p.about });
    methods
        .iter()
        .map(|m| {
            json!({
                "name": m.name,
                "about": m.about,
                "role": m.role.name(),
                "reference": m.reference,
                "phase": m.phase(),
                "granularity": m.granularity(),
                "tail": m.tail(),
                "select_on": m.selection_place().name(),
                "read_on_gpu": m.reading_place(),
                "params": m.params.iter().chain(if m.params.is_empty() { &[] } else { POLICY_PARAMS }).map(param).collect::<Vec<_>>(),
                "calibration": calibration_params(m).iter().map(param).collect::<Vec<_>>(),
                "presets": m.all_presets().map(|p| json!({
                    "name": p.name,
                    "values": preset_values(p),
                    "source": p.source,
                })).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// The forms that `--model` accepts, each with a description.
fn models() -> [(&'static str, String); 3] {
    let families = FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
    let hub =
        "a repository on the Hugging Face hub; its cache and settings are used (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN)";
    [
        ("builtin", "the small Llama inside this program; needs no file and no network".to_owned()),
        ("DIR", format!("a folder with config.json, tokenizer.json and safetensors weights ({families})")),
        ("ORG/NAME[@REV]", hub.to_owned()),
    ]
}

fn models_text() -> String {
    let lines: String = models().iter().map(|(name, about)| format!("{name:<16} {about}\n")).collect();
    format!("{lines}\nUse with: spattn eval --model NAME")
}

fn models_json() -> Value {
    models().iter().map(|(name, about)| json!({ "name": name, "about": about })).collect()
}

fn analyses_text() -> String {
    let one = |a: &Analysis| {
        let methods = if a.methods.is_empty() {
            String::new()
        } else {
            format!("    {:<12} {}\n", "methods", a.methods.join(" "))
        };
        format!("{}\n  {}\n    {:<12} {}\n{methods}\n", a.name, a.about, "shown in", a.reference)
    };
    let all: String = ANALYSES.iter().map(one).collect();
    format!("{all}Use with: spattn analyze NAME --out DIR; `methods` are the default ones; -m names others")
}

fn analyses_json() -> Value {
    let one =
        |a: &Analysis| json!({ "name": a.name, "about": a.about, "reference": a.reference, "methods": a.methods });
    ANALYSES.iter().map(one).collect()
}

fn configs_text() -> Result<String> {
    let mut text = String::new();
    for shipped in SHIPPED {
        let about = Settings::parse(shipped.text, shipped.name)?.about.unwrap_or_default();
        text += &format!("{:<16} {about}\n", shipped.name);
    }
    for shipped in ITEMS {
        let item = shipped.parse()?;
        text += &format!("{:<28} {:<14} {}\n", shipped.name, status(&item), item.title);
    }
    Ok(text
        + "\nPAPER/ITEM is a table or figure of a paper: spattn reproduce PAPER/ITEM [--builtin]. `both` runs on the paper's model and on the built-in one, `model` and `builtin` on that one only; `times` uses times measured on a GPU; `missing` cannot be run, for the reason that the item gives. `+ real`: it runs on a small pretrained model, too (--real).\n\
           Use with: spattn eval --config NAME, or spattn sweep NAME where it has several models, seeds or protocols (or a \
           TOML file of your own with the same keys)")
}

/// Which runs an item has, as shown in the list.
fn status(item: &Item) -> String {
    let runs = match [Variant::Paper, Variant::Builtin].map(|variant| item.is_run(variant)) {
        [true, true] => "both",
        [true, false] => "model",
        [false, true] => "builtin",
        [false, false] if item.bench.is_some() => "times",
        [false, false] => "missing",
    };
    let runs = if item.is_run(Variant::Real) { format!("{runs} + real") } else { runs.to_owned() };
    match item.claims.iter().filter(|claim| claim.test.is_some()).count() {
        0 => runs,
        1 => format!("{runs}, 1 test"),
        n => format!("{runs}, {n} tests"),
    }
}

fn configs_json() -> Result<Value> {
    let one = |c: &ShippedConfig| -> Result<Value> {
        Ok(json!({ "name": c.name, "settings": Settings::parse(c.text, c.name)? }))
    };
    let paper = |shipped: &spattn_lab::papers::Shipped| -> Result<Value> {
        let item = shipped.parse()?;
        Ok(
            json!({ "name": shipped.name, "title": item.title, "status": status(&item), "missing": item.missing, "nearest": item.nearest }),
        )
    };
    SHIPPED.iter().map(one).chain(ITEMS.iter().map(paper)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_say_how_they_are_run_and_analyses_what_they_show() {
        let statuses: Vec<(&str, String)> =
            ITEMS.iter().map(|shipped| (shipped.name, status(&shipped.parse().unwrap()))).collect();
        let of = |name: &str| statuses.iter().find(|(other, _)| *other == name).unwrap().1.split(',').next().unwrap();
        let names = ["magicpig/figure-2", "topk/table-3", "hip/figure-14", "double-sparsity/figure-5", "hip/table-10"];
        assert_eq!(names.map(of), ["both + real", "both + real", "both + real", "times", "missing"]);
        let text = analyses_text();
        assert!(ANALYSES.iter().all(|analysis| text.contains(analysis.about) && text.contains(analysis.reference)));
    }
}
