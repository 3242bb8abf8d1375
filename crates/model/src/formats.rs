//! Recognises unsupported checkpoint formats by the files of a folder or repository, by the settings in `config.json`, or by the tensors.
//!
//! Otherwise the error would name a missing file or tensor, as if something were broken.

use serde_json::Value;
use spattn_base::error::UsageError;

use super::files::{FOLDER_HINT, INDEX_FILE, SINGLE_FILE};

/// A format, and what the user can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// The name of the format, to follow `it is` or `it holds`.
    pub what: &'static str,
    /// What the user can do.
    pub hint: &'static str,
}

/// The hint for a quantised model, whose base model can be read.
const UNQUANTISED: &str = "give the model that it was quantised from, in BF16, F16 or F32";
/// The hint for weights in a supported format that config.json does not state.
const NO_SETTINGS: &str = "config.json does not say so in its `quantization_config`: take both from one place, or give the model that it was \
                           quantised from";
const MERGE: &str = "merge it into its base model (peft: `merge_and_unload()`, then `save_pretrained`) and give that folder, or give \
                     the base model";
const SAVE: &str = "load it with transformers and save it with `save_pretrained`, which writes safetensors";

const ADAPTER: Format = Format { what: "a PEFT adapter such as LoRA, which is not a model by itself", hint: MERGE };
const GGUF: Format = Format {
    what: "GGUF weights of llama.cpp",
    hint: "give the file itself: FOLDER/FILE.gguf, or of a repository on the hub ORGANISATION/NAME/FILE.gguf",
};
const ORIGINAL: Format = Format {
    what: "weights in the layout of Meta or Mistral, not of transformers",
    hint: "give the repository in the Hugging Face layout (often its name ends in `-hf`), or convert it with transformers",
};

/// A format, and a test for the names of its files, in lower case.
struct FormatByFileName {
    format: Format,
    has: fn(&str) -> bool,
}

/// All formats with such file names; the first match is reported.
const FILES: [FormatByFileName; 13] = [
    FormatByFileName { format: GGUF, has: |name| name.ends_with(".gguf") || name.starts_with("ggml") },
    FormatByFileName {
        format: Format {
            what: "shards without their index, model.safetensors.index.json",
            hint: "fetch the index as well, or save the model again with `save_pretrained`",
        },
        has: |name| name.starts_with("model-") && name.ends_with(".safetensors"),
    },
    FormatByFileName {
        format: ORIGINAL,
        has: |name| name.starts_with("consolidated") || matches!(name, "params.json" | "tekken.json"),
    },
    FormatByFileName {
        format: Format { what: "weights in PyTorch's pickle format, which is not read", hint: SAVE },
        has: |name| is_any(name, &[".bin", ".bin.index.json", ".pth", ".pt", ".ckpt"]) && !is_adapter(name),
    },
    FormatByFileName { format: ADAPTER, has: is_adapter },
    FormatByFileName {
        format: Format {
            what: "safetensors of another name",
            hint: "the weights of a model are in model.safetensors, or in shards with model.safetensors.index.json",
        },
        has: |name| name.ends_with(".safetensors"),
    },
    FormatByFileName {
        format: Format { what: "weights of TensorFlow", hint: SAVE },
        has: |name| name.ends_with(".h5") || name.ends_with(".tflite"),
    },
    FormatByFileName { format: Format { what: "weights of Flax", hint: SAVE }, has: |name| name.ends_with(".msgpack") },
    FormatByFileName {
        format: Format { what: "an ONNX model", hint: "give the safetensors checkpoint that it was exported from" },
        has: |name| name.ends_with(".onnx") || name.ends_with(".onnx_data"),
    },
    FormatByFileName {
        format: Format { what: "an OpenVINO model", hint: "give the safetensors checkpoint that it was exported from" },
        has: |name| name.starts_with("openvino"),
    },
    FormatByFileName {
        format: Format {
            what: "an engine of TensorRT-LLM",
            hint: "give the safetensors checkpoint that it was built from",
        },
        has: |name| name.ends_with(".engine"),
    },
    FormatByFileName {
        format: Format { what: "weights of NumPy, as early MLX models", hint: UNQUANTISED },
        has: |name| name.ends_with(".npz"),
    },
    FormatByFileName {
        format: Format { what: "a NeMo archive", hint: "convert it to the Hugging Face layout with NeMo's scripts" },
        has: |name| name.ends_with(".nemo"),
    },
];

fn is_any(name: &str, endings: &[&str]) -> bool {
    // Many models include the arguments of their training.
    name != "training_args.bin" && endings.iter().any(|ending| name.ends_with(ending))
}

/// Whether a file belongs to a PEFT adapter; `name` is in lower case.
pub(super) fn is_adapter(name: &str) -> bool {
    name.starts_with("adapter_config.json") || name.starts_with("adapter_model.")
}

/// The format of files with these names, and the first such name; `None` if no name identifies a format.
pub(super) fn of_files<S: AsRef<str>>(names: &[S]) -> Option<(Format, &str)> {
    // The files may be in a folder of the repository.
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase();
    FILES.iter().find_map(|files| {
        let name = names.iter().map(AsRef::as_ref).find(|name| (files.has)(&last(name)))?;
        Some((files.format, name))
    })
}

/// The error for a folder or repository without a file that every model has; it says what is there instead.
pub(super) fn lacking<S: AsRef<str>>(what: String, names: &[S]) -> UsageError {
    // If the weights are in the right format, only that file is missing.
    let has_weights = names.iter().any(|name| matches!(name.as_ref(), SINGLE_FILE | INDEX_FILE));
    match of_files(names).filter(|_| !has_weights) {
        Some((format, name)) => {
            UsageError::new(format!("{what}; it holds {} (`{name}`)", format.what)).hint(format.hint)
        }
        None => UsageError::new(what).hint(FOLDER_HINT),
    }
}

/// Values of `quantization_config.quant_method`, each with the method's usual name.
const METHODS: [(&str, &str); 18] = [
    ("gptq", "GPTQ"),
    ("awq", "AWQ"),
    ("bitsandbytes", "bitsandbytes"),
    ("fp8", "FP8"),
    ("fbgemm_fp8", "FP8 (FBGEMM)"),
    ("mxfp4", "MXFP4"),
    ("hqq", "HQQ"),
    ("quanto", "Quanto"),
    ("aqlm", "AQLM"),
    ("eetq", "EETQ"),
    ("bitnet", "BitNet"),
    ("modelopt", "NVIDIA ModelOpt"),
    ("nvfp4", "NVFP4"),
    ("mxfp8", "MXFP8"),
    ("quark", "AMD Quark"),
    ("vptq", "VPTQ"),
    ("auto-round", "AutoRound"),
    ("intel/auto-round", "AutoRound"),
];

/// The keys for quantised weights in `config.json`: of transformers, of older compressed-tensors, and of MLX.
pub(super) const QUANTISED_KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];
/// The hint for a quantised model.
pub(super) const QUANTISED_HINT: &str = "give the model that it was quantised from, or unpack it with the program that wrote it; take the \
                                         key out if the weights are not quantised";

/// How weights are quantised, given the value of one of [`QUANTISED_KEYS`].
pub(super) fn quantised_by(key: &str, setting: &Value) -> String {
    const LONGEST: usize = 40;
    let stated = setting["quant_method"].as_str().map(|method| method.chars().take(LONGEST).collect::<String>());
    let method = match (&stated, key) {
        (Some(method), _) => METHODS.iter().find(|(key, _)| key == method).map_or(method.as_str(), |(_, name)| name),
        (None, "quantization") => "MLX",
        (None, _) => "a method that is not named",
    };
    match (bits(setting), setting["quant_algo"].as_str()) {
        (Some(bits), _) => format!("{method}, {bits} bits"),
        (None, Some(algorithm)) => format!("{method}, {}", algorithm.chars().take(LONGEST).collect::<String>()),
        (None, None) => method.to_owned(),
    }
}

fn bits(setting: &Value) -> Option<u64> {
    let loads = |key: &str| setting[key] == Value::Bool(true);
    match (loads("load_in_4bit"), loads("load_in_8bit")) {
        (true, _) => Some(4),
        (_, true) => Some(8),
        _ => setting["bits"].as_u64(),
    }
}

/// A format, and a test for names that only its tensors have.
struct FormatByTensorName {
    format: Format,
    has: fn(&str) -> bool,
}

/// All formats with such tensor names; the first match is reported.
const TENSORS: [FormatByTensorName; 18] = [
    FormatByTensorName {
        format: ADAPTER,
        has: |name| name.starts_with("base_model.model.") || name.contains(".lora_A.") || name.contains(".lora_B."),
    },
    FormatByTensorName {
        format: Format { what: "quantised by GPTQ or AWQ (`qweight`)", hint: NO_SETTINGS },
        has: |name| name.ends_with(".qweight"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by bitsandbytes", hint: UNQUANTISED },
        has: |name| name.ends_with(".absmax") || name.ends_with(".SCB") || name.contains(".quant_state.bitsandbytes"),
    },
    FormatByTensorName {
        format: Format { what: "quantised to NVFP4 (`weight_scale_2` or `weight_global_scale`)", hint: UNQUANTISED },
        has: |name| name.ends_with(".weight_scale_2") || name.ends_with(".weight_global_scale"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by HQQ (`W_q`)", hint: UNQUANTISED },
        has: |name| name.ends_with(".W_q"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by AQLM (`codebooks`)", hint: UNQUANTISED },
        has: |name| name.ends_with(".codebooks"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by EETQ (`weight_scales`)", hint: UNQUANTISED },
        has: |name| name.ends_with(".weight_scales"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by Quanto (`weight._data`)", hint: UNQUANTISED },
        has: |name| name.contains(".weight._data"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by torchao (`_weight_qdata`)", hint: UNQUANTISED },
        has: |name| name.ends_with("._weight_qdata"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by compressed-tensors (`weight_packed`)", hint: NO_SETTINGS },
        has: |name| name.ends_with(".weight_packed"),
    },
    FormatByTensorName {
        format: Format { what: "quantised to FP8 or INT8 (`weight_scale`)", hint: NO_SETTINGS },
        has: |name| name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv"),
    },
    FormatByTensorName {
        format: Format { what: "quantised by MLX (`scales`)", hint: UNQUANTISED },
        has: |name| name.ends_with("_proj.scales") || name == "model.embed_tokens.scales",
    },
    FormatByTensorName {
        format: Format { what: "quantised to MXFP4 (`_blocks`)", hint: NO_SETTINGS },
        has: |name| name.ends_with("_blocks"),
    },
    FormatByTensorName {
        format: ORIGINAL,
        has: |name| name == "tok_embeddings.weight" || name.ends_with(".attention.wq.weight"),
    },
    FormatByTensorName { format: GGUF, has: |name| name.starts_with("blk.") },
    FormatByTensorName {
        format: Format {
            what: "a multimodal model, of which the language model is a part (`language_model.`)",
            hint: "save the language model alone with transformers, and give that folder",
        },
        has: |name| name.starts_with("language_model.") || name.starts_with("model.language_model."),
    },
    FormatByTensorName {
        format: Format {
            what: "stored with queries, keys and values in one matrix (`qkv_proj`)",
            hint: "save the model with transformers under the architecture that config.json names",
        },
        has: |name| name.ends_with(".qkv_proj.weight"),
    },
    FormatByTensorName {
        format: Format {
            what: "saved without its output layer (names lack `model.`)",
            hint: "save it with transformers' `AutoModelForCausalLM`, not `AutoModel`",
        },
        has: |name| name == "embed_tokens.weight" || name.starts_with("layers.0."),
    },
];

/// The format of tensors with these names, and the first such name; `None` if no name identifies a format.
pub(super) fn of_tensors<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<(Format, &'a str)> {
    TENSORS.iter().find_map(|tensors| Some((tensors.format, names.clone().find(|name| (tensors.has)(name))?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_are_called_by_what_they_are() {
        for (names, said) in [
            (&["README.md", "x.Q4_K_M.gguf"][..], "GGUF"),
            (&["config.json", "pytorch_model-00001-of-00002.bin"], "PyTorch"),
            (&["pytorch_model.bin.index.json"], "PyTorch"),
            (&["params.json", "consolidated.00.pth"], "Meta or Mistral"),
            (&["consolidated.safetensors", "tekken.json"], "Meta or Mistral"),
            (&["adapter_config.json", "adapter_model.safetensors"], "adapter"),
            (&["adapter_config.json", "adapter_model.bin"], "adapter"),
            (&["model-00001-of-00002.safetensors"], "shards without their index"),
            (&["weights.safetensors"], "another name"),
            (&["tf_model.h5"], "TensorFlow"),
            (&["flax_model.msgpack"], "Flax"),
            (&["onnx/model.onnx"], "ONNX"),
            (&["openvino_model.xml"], "OpenVINO"),
            (&["rank0.engine"], "TensorRT"),
            (&["weights.npz"], "NumPy"),
            (&["m.nemo"], "NeMo"),
        ] {
            let (format, name) = of_files(names).unwrap_or_else(|| panic!("{names:?}"));
            assert!(format.what.contains(said) && names.contains(&name), "{names:?}: {format:?}");
        }
        assert_eq!(of_files(&["README.md", "config.json", "tokenizer.json", "training_args.bin"]), None);
        assert_eq!(of_files::<&str>(&[]), None);
    }

    #[test]
    fn settings_name_the_method_and_its_bits() {
        for (key, setting, said) in [
            ("quantization_config", json!({"quant_method": "gptq", "bits": 4}), "GPTQ, 4 bits"),
            ("quantization_config", json!({"quant_method": "awq", "bits": 4, "zero_point": true}), "AWQ, 4 bits"),
            (
                "quantization_config",
                json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
                "bitsandbytes, 8 bits",
            ),
            ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), "FP8"),
            ("quantization_config", json!({"quant_method": "compressed-tensors"}), "compressed-tensors"),
            (
                "quantization_config",
                json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
                "NVIDIA ModelOpt, NVFP4",
            ),
            ("quantization_config", json!({"quant_method": "torchao", "quant_type": {"default": {}}}), "torchao"),
            ("quantization_config", json!({"quant_method": "quanto", "weights": "int4"}), "Quanto"),
            ("quantization_config", json!({"quant_method": "hqq", "quant_config": {}}), "HQQ"),
            ("quantization_config", json!({"bits": "many"}), "a method that is not named"),
            ("quantization_config", json!(7), "a method that is not named"),
            ("quantization", json!({"group_size": 64, "bits": 4}), "MLX, 4 bits"),
        ] {
            assert_eq!(quantised_by(key, &setting), said);
        }
    }

    #[test]
    fn tensors_are_called_by_what_they_are() {
        for (name, said) in [
            ("model.layers.0.self_attn.q_proj.qweight", "GPTQ or AWQ"),
            ("model.layers.0.self_attn.q_proj.weight.absmax", "bitsandbytes"),
            ("model.layers.0.self_attn.q_proj.SCB", "bitsandbytes"),
            ("model.layers.0.self_attn.q_proj.weight_packed", "compressed-tensors"),
            ("model.layers.0.self_attn.q_proj.weight_scale_inv", "FP8"),
            ("model.layers.0.self_attn.q_proj.scales", "MLX"),
            ("model.layers.0.self_attn.q_proj.W_q", "HQQ"),
            ("model.layers.0.self_attn.q_proj.codebooks", "AQLM"),
            ("model.layers.0.self_attn.q_proj.weight_scales", "EETQ"),
            ("model.layers.0.self_attn.q_proj.weight._data", "Quanto"),
            ("model.layers.0.self_attn.q_proj._weight_qdata", "torchao"),
            ("model.layers.0.self_attn.q_proj.weight_scale_2", "NVFP4"),
            ("model.layers.0.mlp.experts.gate_up_proj_blocks", "MXFP4"),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "adapter"),
            ("layers.0.attention.wq.weight", "Meta or Mistral"),
            ("blk.0.attn_q.weight", "GGUF"),
            ("model.language_model.layers.0.mlp.up_proj.weight", "multimodal model"),
            ("model.layers.0.self_attn.qkv_proj.weight", "in one matrix"),
            ("layers.0.self_attn.q_proj.weight", "without its output layer"),
        ] {
            let (format, found) = of_tensors([name].into_iter()).unwrap_or_else(|| panic!("{name}"));
            assert!(format.what.contains(said) && found == name, "{name}: {format:?}");
        }
        assert_eq!(of_tensors(["model.layers.0.self_attn.q_proj.weight", "lm_head.weight"].into_iter()), None);
    }
}
