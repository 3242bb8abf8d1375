//! The manifest of a run: what determines its results, and where it was made.

use std::sync::LazyLock;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::memory::example_bytes;
use crate::config::kv_tier::KvTier;
use crate::config::run_config::{RunConfig, Variant};
use crate::config::settings::Settings;
use crate::config::thinking::Thinking;
use crate::program::Program;
use crate::records::manifest_keys::{CALIBRATION, CONTENT, IDENTITY, INPUTS};
use crate::records::timing::Latency;
use spattn_attention::{Configured, LocalLayers};
use spattn_base::{clock, privacy};
use spattn_kernels::precision::MatmulPrecision;
use spattn_kernels::{isa_name, tiles};
use spattn_model::OpenModel;
use spattn_model::device::Device;
use spattn_model::tensors::WeightDtype;
use spattn_tasks::{Positions, Task};

/// Incremented whenever the same settings may give other records than before.
pub const RESULTS_VERSION: u32 = 6;

/// Incremented whenever the GPU engine may give other records than before. 2: double_sparsity selects on the GPU. 3: loki, hash_attention,
/// magicpig and hip do. 4: sparq and topp do. 5: oracle_sampling, pqcache and infllm do. 6: tensor cores sum over keys in another order.
/// 7: they multiply one row with quantised weights. 8: with codes that are shifted up.
/// 9: methods whose window moves on, or whose layers have budgets of their own, select on the GPU. 10: more tokens of a text take each step.
const CUDA_VERSION: u32 = 10;

/// Key of a model in a manifest, for a digest of the content of its `tokenizer.json`, independent of layout.
pub const TOKENIZER_VALUE: &str = "tokenizer_value_sha256";

/// Everything that determines a record, except for task, length, example and method.
///
/// The calibrations of single methods are not in it but in the keys of their own records, so that a method can be added to a run without
/// changing the records of others. Instruction set and thread count are recorded but not part of it: the first changes only rounding, the
/// second nothing. `data` is the data set as found, with its commit if it has one ([`DataFolder::id`](spattn_model::data::DataFolder::id)),
/// because the name in `config` may come to mean another.
pub fn identity(config: &RunConfig, variant: Variant, model: &OpenModel, data: Option<&str>) -> Value {
    let mut identity = json!({
        "results_version": RESULTS_VERSION,
        "model": model.id,
        "weights_sha256": model.weights_sha256,
        "tokenizer_sha256": model.tokenizer.sha256(),
        "chat_template": model.tokenizer.has_chat(),
        "dtype": model.dimensions.dtype().name(),
        "protocol": variant.protocol.to_string(),
        "seed": variant.seed,
        "positions": match config.positions { Positions::Varied => "varied", Positions::Published => "published" },
        "data": data,
        "fidelity": config.fidelity,
    });
    // Runs without the key are those from before the precision could be chosen.
    if config.matmul_precision != MatmulPrecision::F32 {
        identity["matmul_precision"] = config.matmul_precision.name().into();
    }
    // Runs without these keys are those of plain weights, and those from before quantised weights stayed in their blocks. On a CPU in f32, these had
    // the same results: products with blocks are the same bits as products with dequantised weights.
    if config.dequantise {
        identity["dequantise"] = true.into();
    }
    let as_before = config.device == Device::Cpu && model.dimensions.weight_dtype() == WeightDtype::F32;
    if model.dimensions.blocks().is_some() && !as_before {
        identity["kept_blocks"] = true.into();
    }
    if let Some(text) = &config.system_prompt {
        identity["system_prompt"] = privacy::system_prompt(text).into();
    }
    // Runs without these keys are those from before answers could be sampled, or thought about.
    let of_generation = [
        ("thinking", config.thinking != Thinking::Off, json!(config.thinking.name())),
        ("thinking_tokens", config.thinking != Thinking::Off, json!(config.thinking_tokens)),
        ("temperature", config.temperature != 0.0, json!(config.temperature)),
        ("top_p", config.top_p != 1.0, json!(config.top_p)),
        ("repeats", config.repeats != 1, json!(config.repeats)),
        ("stop", !config.stop_texts().is_empty(), json!(config.stop_texts())),
    ];
    let given = of_generation.into_iter().filter(|(_, is_given, _)| *is_given);
    given.for_each(|(key, _, value)| identity[key] = value);
    // Engines round differently. Runs on the processor have never recorded an engine.
    if config.device != Device::Cpu {
        identity["engine"] = format!("cuda {CUDA_VERSION}").into();
    }
    // Solo timing changes no result, but a run must not contain both kinds of times.
    if config.latency != Latency::Shared {
        identity["latency"] = config.latency.name().into();
    }
    // A tier changes no result, but what is fetched from it is counted, and depends on its memory.
    if config.kv_tier != KvTier::Memory {
        identity["kv_tier"] = config.kv_tier.name().into();
    }
    match (config.kv_tier, config.gpu_cache()) {
        (KvTier::Disk, _) => identity["kv_memory"] = config.kv_memory.to_string().into(),
        (_, Some(_)) => identity["kv_memory"] = format!("{} of GPUs", config.kv_memory).into(),
        (_, None) => {}
    }
    // Runs without the key are those from before there was a choice.
    if config.local_layers != LocalLayers::Dense {
        identity["local_layers"] = config.local_layers.name().into();
    }
    let content = [json!(model.dimensions.config()), model.tokenizer.identity()];
    CONTENT.into_iter().zip(content).for_each(|(key, value)| identity[key] = value);
    identity
}

/// An identity without models' configurations, from which the keys of old records were made.
pub fn without_content(identity: &Value) -> Value {
    let mut fields = identity.as_object().cloned().unwrap_or_default();
    CONTENT.iter().for_each(|key| drop(fields.shift_remove(*key)));
    Value::Object(fields)
}

/// A model's part of the manifest.
#[derive(Debug, Clone)]
pub struct ModelPart {
    /// Its id.
    pub id: String,
    identities: Vec<Value>,
    calibration: Map<String, Value>,
    methods: Value,
    model: Value,
    example_bytes: usize,
}

impl ModelPart {
    /// The part of an opened model; `data` as for [`identity`].
    pub fn new(config: &RunConfig, model: &OpenModel, data: Option<&str>) -> Self {
        Self {
            id: model.id.clone(),
            identities: config.variants().into_iter().map(|v| identity(config, v, model, data)).collect(),
            calibration: calibration(config),
            methods: config
                .methods
                .iter()
                .map(|m| {
                    let mut method = json!({
                        "method": m.name,
                        "params": m.params,
                        "sink": m.policy.sink,
                        "local": m.policy.local,
                        "dense_layers": m.policy.dense_layers.to_string(),
                        "tail": m.policy.tail.to_string(),
                    });
                    // Manifests without the key are those from before there was a choice.
                    if !m.policy.kv_dtype.is_exact() {
                        method["kv_dtype"] = m.policy.kv_dtype.name().into();
                    }
                    method
                })
                .collect(),
            model: described(model),
            example_bytes: example_bytes(config, model),
        }
    }
}

/// What the manifest says of a model.
fn described(model: &OpenModel) -> Value {
    let c = model.dimensions.config();
    let mut described = json!({
                "id": model.id,
                "revision": model.revision,
                "architecture": c.family.class,
                "layers": c.layers,
                "heads": c.heads,
                "kv_heads": c.kv_heads,
                "head_dim": c.head_dim,
                "context_limit": c.context_limit(),
                "weight_bytes": model.dimensions.weight_bytes(),
                "kv_bytes_per_token": model.dimensions.kv_bytes_per_token(),
                "notes": model.notes,
                TOKENIZER_VALUE: model.tokenizer.value_sha256(),
    });
    if let Some(format) = &model.format {
        described["weights"] = json!(format);
    }
    described
}

/// The digests of what tasks are made from, by task.
pub fn inputs(tasks: &[Box<dyn Task>]) -> Map<String, Value> {
    tasks.iter().map(|task| (task.name().to_owned(), task.inputs().into())).collect()
}

/// The whole manifest of a run on one or more models. What differs by model, seed or protocol is a list if there are several. `kept` are
/// the identities of models that cannot be loaded now but have records.
pub fn manifest(
    settings: &Settings,
    parts: &[ModelPart],
    tasks: &[Box<dyn Task>],
    kept: Vec<Value>,
    command: &[String],
    program: &Program,
) -> Value {
    let identities = parts.iter().flat_map(|p| p.identities.iter().cloned()).chain(kept).collect();
    let by_model = || parts.iter().map(|p| (p.id.clone(), p.calibration.clone().into())).collect::<Map<_, _>>();
    let whole = json!({
        "program": program.as_json(),
        "created": clock::date(SystemTime::now()),
        "command": command,
        IDENTITY: one_or_several(identities),
        CALIBRATION: if let [part] = parts { part.calibration.clone() } else { by_model() },
        INPUTS: inputs(tasks),
        "methods": parts.first().map(|p| &p.methods),
        "config": settings,
        "model": one_or_several(parts.iter().map(|p| p.model.clone()).collect()),
        "memory": { "largest_example_bytes": parts.iter().map(|p| p.example_bytes).max() },
        "machine": {
            "cpu": cpu_name(),
            "simd": isa_name(),
            "bf16_products": tiles::unit().name(),
            "threads": rayon::current_num_threads(),
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
        },
    });
    if privacy::is_left_out() { privacy::manifest(&whole, &privacy::models(&whole)) } else { whole }
}

fn one_or_several(mut values: Vec<Value>) -> Value {
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

/// The hashes of the artefacts that the run's methods use, by kind.
fn calibration(config: &RunConfig) -> Map<String, Value> {
    let one = |m: &Configured| Some((m.method.calibration()?.to_owned(), m.artefact.clone()?.into()));
    config.methods.iter().flat_map(Configured::parts).filter_map(one).collect()
}

/// The processor's name, if the system gives it.
pub fn cpu_name() -> Option<String> {
    static NAME: LazyLock<Option<String>> = LazyLock::new(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = info.lines().find(|l| l.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    NAME.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::protocol::Protocol;
    use crate::plan::memory::bytes_of_example;
    use spattn_attention::kv::KvDtype;
    use spattn_model::StorageOptions;
    use spattn_model::device::{CopiesPerGpu, Gpus};
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn what_a_gpu_computed_is_another_identity_on_whatever_gpu() {
        let settings = Settings::parse("tasks = ['ruler/vt']\nlengths = [1024]", "test").unwrap();
        let mut config = RunConfig::resolve_single(settings).unwrap();
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let mut of = |device| {
            config.device = device;
            identity(&config, config.variants()[0], &model, None)
        };
        let [cpu, first, third] = [Device::Cpu, Device::cuda(0), Device::cuda(2)].map(&mut of);
        assert_eq!(first, third);
        let each = [1, 4].map(|copies| Device::EachGpu(CopiesPerGpu::new(copies).unwrap()));
        assert_eq!(each.map(&mut of), [third.clone(), third.clone()]);
        assert_eq!(of(Device::Cuda(Gpus::in_order(&[0, 1]))), first);
        assert_ne!(cpu, first);
        // Runs stored before there was another engine are runs on the CPU.
        assert!(cpu.get("engine").is_none());
    }

    #[test]
    fn weights_in_blocks_are_another_identity_where_results_differ() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/gguf/mixed.gguf");
        let settings = Settings::parse("tasks = ['ruler/vt']\nlengths = [1024]", "test").unwrap();
        let mut config = RunConfig::resolve_single(settings).unwrap();
        let mut kept = |dtype, device, dequantise| {
            (config.device, config.dequantise) = (device, dequantise);
            let storage = StorageOptions { dtype, dequantise, ..StorageOptions::default() };
            let source = ModelSource::parse(file).unwrap();
            let model = OpenModel::open(&source, storage, TokenizerOptions::default()).unwrap();
            assert_eq!(model.dimensions.blocks().is_none(), dequantise);
            let identity = identity(&config, config.variants()[0], &model, None);
            ["kept_blocks", "dequantise"].map(|key| identity.get(key).is_some())
        };
        assert_eq!(kept(None, Device::Cpu, false), [false, false], "the bits of f32 weights, as before");
        assert_eq!(kept(Some(KvDtype::Bf16), Device::Cpu, false), [true, false]);
        assert_eq!(kept(None, Device::cuda(0), false), [true, false]);
        assert_eq!(kept(Some(KvDtype::Bf16), Device::Cpu, true), [false, true]);
    }

    #[test]
    fn the_manifest_names_how_a_gguf_file_stores_its_tensors() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/gguf/mixed.gguf");
        let open = |spec: &str| {
            let source = ModelSource::parse(spec).unwrap();
            OpenModel::open(&source, None, TokenizerOptions::default()).unwrap()
        };
        let gguf = open(file);
        let weights = &described(&gguf)["weights"];
        assert_eq!((&weights["name"], &weights["file_type"]), (&json!("GGUF"), &json!("Q4_K_M")));
        assert_eq!((&weights["types"]["Q4_K"], &weights["types"]["F32"]), (&json!(2), &json!(8)));
        let bytes = std::fs::read(file).unwrap();
        assert_eq!(gguf.weights_sha256, spattn_model::checksum::sha256_hex(&bytes));
        assert_eq!(described(&open("builtin")).get("weights"), None, "records of safetensors stay as they are");
    }

    #[test]
    fn an_example_takes_what_the_longest_prompt_and_all_that_is_gathered_of_it_take() {
        let text = "tasks = ['ruler/vt']\nlengths = [1024, 512]\nmethods = ['topk:k=4']";
        let mut config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let prefill = model.dimensions.prefill_bytes(1024, false);
        assert_eq!(example_bytes(&config, &model), prefill);
        assert!(bytes_of_example(&config, &model, 512) < prefill);
        let gathering = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['h2o', 'snapkv']";
        config.methods = RunConfig::resolve_single(Settings::parse(gathering, "test").unwrap()).unwrap().methods;
        let gathered = example_bytes(&config, &model) - prefill;
        assert!(gathered > 0);
        // Each of two protocols keeps the prompt statistics, and a copy stays at the point where they diverge.
        config.protocols = vec![Protocol::Question, Protocol::Decode];
        assert_eq!(example_bytes(&config, &model), prefill + 3 * gathered);
        // A method that reads the prompt by itself, beside `full`, which reads densely; and each of them alone.
        let mut read = |settings: &str| {
            let text = format!("tasks = ['ruler/vt']\nlengths = [1024]\n{settings}");
            config.methods = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap().methods;
            config.protocols = vec![Protocol::Prefill];
            example_bytes(&config, &model)
        };
        let both = prefill + 1024 * model.dimensions.kv_bytes_per_token();
        assert_eq!(read("methods = ['hip']"), both);
        assert_eq!((read("methods = ['hip']\nno_full = true"), read("methods = []")), (prefill, prefill));
    }

    #[test]
    fn what_differs_by_model_is_a_list_where_there_are_several() {
        let text = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['loki', 'topk:k=4,sink=7,local=9']";
        let mut config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        crate::calibration::supply::supply(&mut config.methods, &model, None).unwrap();
        let hash = config.methods[1].artefact.clone().expect("loki is calibrated");
        let part = ModelPart::new(&config, &model, Some("folder"));
        let larger = ModelPart { id: "other".into(), example_bytes: part.example_bytes + 1, ..part.clone() };
        const PROGRAM: Program = Program { version: "0", commit: None, build: "test" };
        let of = |parts: &[ModelPart], kept| manifest(&config.settings, parts, &[], kept, &["eval".into()], &PROGRAM);

        let one = of(std::slice::from_ref(&part), Vec::new());
        let own = identity(&config, config.variants()[0], &model, Some("folder"));
        assert_eq!((&one[IDENTITY], &one["command"]), (&own, &json!(["eval"])));
        assert_eq!(
            (&own["data"], &own["model"], &own["positions"]),
            (&json!("folder"), &json!("builtin"), &json!("varied"))
        );
        assert_eq!(one[CALIBRATION], json!({ "loki": hash }));
        let topk = json!({"method": "topk", "params": "k=4,sink=7,local=9", "sink": 7, "local": 9, "dense_layers": "none", "tail": "exact"});
        assert_eq!((&one["methods"][2], one["methods"][0]["method"].as_str()), (&topk, Some("full")));
        let shape = model.dimensions.config();
        let described = [&one["model"]["id"], &one["model"]["layers"], &one["model"]["context_limit"]];
        assert_eq!(described, [&json!("builtin"), &json!(shape.layers), &json!(shape.context_limit())]);
        assert_eq!(one["memory"]["largest_example_bytes"], example_bytes(&config, &model));

        let two = of(&[part.clone(), larger], Vec::new());
        assert_eq!((&two[IDENTITY], two["model"].as_array().map(Vec::len)), (&json!([own, own]), Some(2)));
        assert_eq!(two[CALIBRATION], json!({ "builtin": { "loki": hash }, "other": { "loki": hash } }));
        assert_eq!(two["memory"]["largest_example_bytes"], example_bytes(&config, &model) + 1);
        let kept = json!({ "model": "gone" });
        assert_eq!(of(&[part], vec![kept.clone()])[IDENTITY], json!([own, kept]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_processor_is_named_as_the_system_does() {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        // Some processors have no name.
        let named = |name: &str| info.lines().any(|line| line.starts_with("model name") && line.ends_with(name));
        match cpu_name() {
            Some(name) => assert!(!name.is_empty() && named(&name), "{name}"),
            None => assert!(!info.contains("model name")),
        }
    }
}
