//! Settings of published checkpoints, and those that are refused.

use super::*;
use crate::families::of_class;
use serde_json::json;

fn read(setting: Value) -> Result<Option<Quantisation>, String> {
    let config = json!({ "quantization_config": setting });
    let keys = Keys { file: "config.json", prefix: "", map: config.as_object().unwrap() };
    quantisation(&keys, of_class("GptOssForCausalLM").unwrap()).map_err(|e| e.to_string())
}

fn identity(setting: Value) -> Value {
    serde_json::to_value(read(setting).unwrap().unwrap()).unwrap()
}

#[test]
fn published_settings_are_read() {
    // Qwen3-*-FP8, Ministral-3, Llama-3.1-405B-FP8.
    let qwen3 = json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 64],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]});
    assert_eq!(identity(qwen3.clone()), json!({"format": "fp8", "scales": {"block": [128, 64]}}));
    assert!(read(qwen3).unwrap().unwrap().quantises_activations);
    let ministral =
        json!({"activation_scheme": "static", "dequantize": false, "quant_method": "fp8", "weight_block_size": null});
    assert_eq!(identity(ministral), json!({"format": "fp8", "scales": "matrix"}));
    let usual = identity(json!({"quant_method": "fp8"}));
    assert_eq!(usual, json!({"format": "fp8", "scales": {"block": [128, 128]}}));
    let fbgemm = json!({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0});
    assert_eq!(identity(fbgemm), json!({"format": "fp8", "scales": "row"}));
    // Qwen2.5-*-AWQ, *-GPTQ-Int8, *-GPTQ-Int4.
    let awq = json!({"bits": 4, "group_size": 64, "modules_to_not_convert": null, "quant_method": "awq", "version": "GEMM", "zero_point": true});
    assert_eq!(identity(awq), json!({"format": "awq", "group_size": {"neighbours": 64}}));
    let gptq = json!({"batch_size": 1, "bits": 8, "block_name_to_quantize": null, "cache_block_outputs": true, "damp_percent": 0.01,
        "dataset": null, "desc_act": true, "exllama_config": {"version": 1}, "group_size": -1, "quant_method": "gptq", "sym": true,
        "true_sequential": true, "use_cuda_fp16": false});
    let expected =
        json!({"format": "gptq", "bits": 8, "group_size": "all", "by_activation": true, "zero_points_less_one": true});
    assert_eq!(identity(gptq), expected);
    let second = identity(json!({"quant_method": "gptq", "checkpoint_format": "gptq_v2", "format": "gptq"}));
    assert_eq!((&second["zero_points_less_one"], &second["bits"]), (&json!(false), &json!(4)));
    let mxfp4 = json!({"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"});
    assert_eq!(identity(mxfp4), json!({"format": "mxfp4"}));
}

fn of_llm_compressor(format: &str, weights: Value, activations: Value) -> Value {
    json!({"config_groups": {"group_0": {"input_activations": activations, "output_activations": null, "targets": ["Linear"],
        "weights": weights}}, "format": format, "global_compression_ratio": 1.5, "ignore": ["lm_head", "re:.*gate"],
        "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed", "sparsity_config": {}})
}

#[test]
fn settings_of_compressed_tensors_are_read() {
    let weights = json!({"actorder": "group", "block_structure": null, "dynamic": false, "group_size": 128, "num_bits": 4,
        "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": false, "type": "int"});
    let packed = of_llm_compressor("pack-quantized", weights, Value::Null);
    let expected = json!({"format": "packed-ints", "bits": 4, "group_size": {"neighbours": 128}, "symmetric": false,
        "by_activation": true});
    assert_eq!(identity(packed.clone()), expected);
    assert!(!read(packed).unwrap().unwrap().quantises_activations);
    let weights = json!({"dynamic": false, "num_bits": 8, "strategy": "channel", "symmetric": true, "type": "float"});
    let fp8 = of_llm_compressor("float-quantized", weights.clone(), json!({"num_bits": 8, "dynamic": true}));
    assert_eq!(identity(fp8.clone()), json!({"format": "fp8", "scales": "row"}));
    assert!(read(fp8).unwrap().unwrap().quantises_activations);
    let crossed = read(of_llm_compressor("pack-quantized", weights, Value::Null)).unwrap_err();
    assert_eq!(crossed, "config.json: `quantization_config.format`: `pack-quantized` of FP8 is not read");
}

#[test]
fn what_is_not_read_is_refused_by_its_key() {
    let int8 =
        of_llm_compressor("int-quantized", json!({"num_bits": 8, "type": "int", "strategy": "channel"}), Value::Null);
    let with = |mut setting: Value, key: &str, value: Value| {
        setting[key] = value;
        setting
    };
    let gptq = || json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    let awq = || json!({"quant_method": "awq"});
    for (setting, said) in [
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
            "`: the weights are quantised (bitsandbytes, 4 bits), which is not read",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
            "`: the weights are quantised (NVIDIA ModelOpt, FP8), which is not read",
        ),
        (json!(3), "`: the weights are quantised (a method that is not named), which is not read"),
        (with(gptq(), "bits", json!(3)), ".bits`: only 4 and 8 bits can be read, got 3"),
        (with(gptq(), "bits", json!("4")), ".bits`: expected a whole number, got \"4\""),
        (with(gptq(), "group_size", json!(0)), ".group_size`: must not be 0"),
        (with(gptq(), "group_size", json!(-2)), ".group_size`: expected a whole number, got -2"),
        (
            with(gptq(), "checkpoint_format", json!("marlin")),
            ".checkpoint_format`: only `gptq`, `gptq_v2` can be read, got `marlin`",
        ),
        (
            with(gptq(), "dynamic", json!({"+:down": {"bits": 8}})),
            ".dynamic`: it is not read, and may change what is computed",
        ),
        (with(gptq(), "sym", json!("yes")), ".sym`: expected true or false, got \"yes\""),
        (with(awq(), "version", json!("gemv")), ".version`: only `gemm` can be read, got `gemv`"),
        (with(awq(), "backend", json!("llm-awq")), ".backend`: `llm-awq` packs weights in another layout"),
        (with(awq(), "zero_point", json!(false)), ".zero_point`: only AWQ with zero points is read"),
        (with(awq(), "bits", json!(8)), ".bits`: only 4 bits can be read, got 8"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [128]}),
            ".weight_block_size`: expected two whole numbers from 1, got [128]",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 1]}),
            ".weight_block_size`: expected two whole numbers from 1, got [0,1]",
        ),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), ".fmt`: only `e4m3` can be read, got `e5m2`"),
        (
            int8,
            ".format`: only `pack-quantized`, `float-quantized`, `naive-quantized` can be read, got `int-quantized`",
        ),
    ] {
        assert_eq!(read(setting).unwrap_err(), format!("config.json: `quantization_config{said}"));
    }
    let weights = json!({"num_bits": 4, "strategy": "channel"});
    let packed = || of_llm_compressor("pack-quantized", weights.clone(), Value::Null);
    assert!(read(packed()).is_ok());
    for (key, value) in [
        ("kv_cache_scheme", json!({"num_bits": 8})),
        ("sparsity_config", json!({"format": "sparse-24-bitmask"})),
        ("transform_config", json!({"config_groups": {}})),
    ] {
        let said = read(with(packed(), key, value)).unwrap_err();
        assert!(said.starts_with(&format!("config.json: `quantization_config.{key}`: ")), "{said}");
    }
    let mut several = packed();
    several["config_groups"]["group_1"] = json!({"weights": {"num_bits": 8, "strategy": "channel"}});
    assert!(read(several).unwrap_err().ends_with("modules are quantised in several ways"));
    let mut outputs = packed();
    outputs["config_groups"]["group_0"]["output_activations"] = json!({"num_bits": 8});
    assert!(read(outputs).unwrap_err().contains("`quantization_config.config_groups.group_0.output_activations`"));
}

#[test]
fn mlx_is_named_by_its_own_key() {
    let config = json!({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}});
    let keys = Keys { file: "c", prefix: "", map: config.as_object().unwrap() };
    let llama = of_class("LlamaForCausalLM").unwrap();
    let error = quantisation(&keys, llama).unwrap_err().to_string();
    assert_eq!(error, "c: `quantization`: the weights are quantised (MLX, 4 bits), which is not read");
    assert_eq!(read(Value::Null), Ok(None));
}

#[test]
fn blocks_of_experts_are_read_of_families_that_divide_them() {
    let config = json!({"quantization_config": {"quant_method": "mxfp4"}});
    let keys = Keys { file: "c", prefix: "text_config.", map: config.as_object().unwrap() };
    let read = |class| quantisation(&keys, of_class(class).unwrap()).map_err(|e| e.to_string());
    assert_eq!(read("GptOssForCausalLM").unwrap().unwrap().format, QuantisedFormat::Mxfp4);
    let said = "c: `text_config.quantization_config`: the weights are quantised (MXFP4), which is not read";
    assert_eq!(read("LlamaForCausalLM"), Err(format!("{said} of LlamaForCausalLM")));
}
