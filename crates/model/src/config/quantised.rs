//! The settings of `config.json` for quantised weights: which format, and with which parameters.
//!
//! Every key is one that is read, one that is known not to change what the stored weights are, or it is refused: a checkpoint is
//! never unpacked by a part of its settings. How the formats store their tensors is known to
//! [`tensors::quantised`](crate::tensors::quantised).

use serde_json::{Map, Value};

use super::keys::Keys;
use crate::formats::{QUANTISED_HINT, QUANTISED_KEYS, quantised_by};
use crate::tensors::quantised::{
    Awq, Fp8, Fp8Scales, Gptq, GroupSize, IntBits, PackedFormat, PackedInts, Quantisation,
};
use spattn_base::error::UsageError;

/// The key of MLX, whose newer versions write their settings under another one as well.
const MLX: &str = "quantization";
/// Where GPTQ's and AWQ's configs name modules, or FP8's.
const NOT_CONVERTED: &str = "modules_to_not_convert";

/// What transformers, AutoGPTQ and GPTQModel write about how weights were quantised, or how they are to be computed with.
const OF_GPTQ_AND_AWQ: [&str; 28] = [
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "mse",
    "pad_token_id",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// How the weights are quantised, if the config says that they are. What cannot be read is refused here, before weights are looked
/// for or downloaded.
///
/// # Errors
/// A format or a setting that is not read, or a wrong value.
pub(super) fn quantisation(keys: &Keys<'_>) -> Result<Option<Quantisation>, UsageError> {
    let Some((key, setting)) = QUANTISED_KEYS.iter().find_map(|key| Some((*key, keys.get(key)?))) else {
        return Ok(None);
    };
    let method = setting["quant_method"].as_str();
    let refused = || {
        let key = if method.is_none() && keys.get(MLX).is_some() { MLX } else { key };
        let by = quantised_by(key, setting);
        let what = format!("the weights are quantised ({by}), which is not read");
        Err(keys.error(key, &what).hint(QUANTISED_HINT))
    };
    let Some(map) = setting.as_object() else { return refused() };
    let prefix = format!("{key}.");
    let own = Settings { keys: Keys { file: keys.file, prefix: &prefix, map } };
    let read = match method {
        Some("fp8") => own.fp8(),
        Some("fbgemm_fp8") => own.fbgemm_fp8(),
        Some("awq") => own.awq(),
        Some("gptq") => own.gptq(),
        Some("mxfp4") => own.mxfp4(),
        Some("compressed-tensors") => own.compressed_tensors(),
        _ => return refused(),
    };
    read.map(Some)
}

/// The settings of one object of the config.
struct Settings<'a> {
    keys: Keys<'a>,
}

impl Settings<'_> {
    /// As transformers' `FineGrainedFP8Config`: Qwen3, DeepSeek, Ministral.
    fn fp8(&self) -> Result<Quantisation, UsageError> {
        self.only(
            &["weight_block_size", "activation_scheme", "fmt", "expert_dtype", NOT_CONVERTED, "ignored_layers"],
            &["dequantize", "scale_fmt", "modules_to_convert"],
        )?;
        self.one_of("fmt", &["e4m3"])?;
        self.one_of("expert_dtype", &["fp8"])?;
        // An absent block is the usual one, and null none: both as in transformers.
        let scales = match self.keys.map.get("weight_block_size") {
            None => Fp8Scales::Block([128, 128]),
            Some(Value::Null) => Fp8Scales::Matrix,
            Some(_) => self.block("weight_block_size")?,
        };
        Ok(Quantisation {
            format: PackedFormat::Fp8(Fp8 { scales }),
            ignored: [self.names(NOT_CONVERTED)?, self.names("ignored_layers")?].concat(),
            quantises_activations: true,
        })
    }

    /// As transformers' `FbgemmFp8Config`: Llama 3.1 405B.
    fn fbgemm_fp8(&self) -> Result<Quantisation, UsageError> {
        self.only(&[NOT_CONVERTED], &["activation_scale_ub"])?;
        Ok(Quantisation {
            format: PackedFormat::Fp8(Fp8 { scales: Fp8Scales::Row }),
            ignored: self.names(NOT_CONVERTED)?,
            quantises_activations: true,
        })
    }

    fn awq(&self) -> Result<Quantisation, UsageError> {
        let harmless = [&OF_GPTQ_AND_AWQ[..], &["sym", "desc_act"]].concat();
        self.only(&["bits", "group_size", "zero_point", "version", "format", NOT_CONVERTED], &harmless)?;
        if self.keys.get("backend").is_some_and(|backend| backend == "llm-awq") {
            return Err(self.unread("backend", "`llm-awq` packs weights in another layout"));
        }
        for key in ["version", "format"] {
            self.one_of(key, &["gemm"])?;
        }
        self.one_of_bits(&[IntBits::Four])?;
        if !self.keys.flag("zero_point", true)? {
            return Err(self.unread("zero_point", "only AWQ with zero points is read"));
        }
        Ok(Quantisation {
            format: PackedFormat::Awq(Awq { group_size: self.group_size()? }),
            ignored: self.names(NOT_CONVERTED)?,
            quantises_activations: false,
        })
    }

    fn gptq(&self) -> Result<Quantisation, UsageError> {
        self.only(
            &["bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "pack_dtype"],
            &OF_GPTQ_AND_AWQ,
        )?;
        self.one_of("pack_dtype", &["int32"])?;
        // Zero points are stored of symmetric numbers too.
        self.keys.flag("sym", true)?;
        let versions = ["gptq", "gptq_v2"];
        let (older, newer) = (self.one_of("checkpoint_format", &versions)?, self.one_of("format", &versions)?);
        Ok(Quantisation {
            format: PackedFormat::Gptq(Gptq {
                bits: self.one_of_bits(&[IntBits::Four, IntBits::Eight])?,
                group_size: self.group_size()?,
                by_activation: self.keys.flag("desc_act", false)?,
                zero_points_less_one: older.or(newer) != Some("gptq_v2"),
            }),
            ignored: Vec::new(),
            quantises_activations: false,
        })
    }

    fn mxfp4(&self) -> Result<Quantisation, UsageError> {
        self.only(&[NOT_CONVERTED], &["dequantize"])?;
        // Patterns of modules here have other names than tensors; the tensors say themselves what is packed.
        Ok(Quantisation { format: PackedFormat::Mxfp4, ignored: Vec::new(), quantises_activations: false })
    }

    fn compressed_tensors(&self) -> Result<Quantisation, UsageError> {
        self.only(
            &["config_groups", "format", "ignore", "kv_cache_scheme", "sparsity_config", "transform_config"],
            &[
                "quantization_status",
                "global_compression_ratio",
                "version",
                "run_compressed",
                "dequantize",
                "use_optimized_inference",
            ],
        )?;
        if self.keys.get("kv_cache_scheme").is_some_and(|scheme| !says_nothing(scheme)) {
            let error = self.keys.error("kv_cache_scheme", "the KV cache is to be quantised, which is not done");
            return Err(error.hint("take the key out to evaluate the model with a KV cache that is not quantised"));
        }
        if let Some(sparsity) = self.keys.object("sparsity_config")?.filter(|sparsity| !sparsity.is_empty())
            && sparsity.get("format").is_none_or(|format| format != "dense")
        {
            return Err(self.unread("sparsity_config", "sparse weights are not read"));
        }
        if self.keys.get("transform_config").is_some_and(|transform| !says_nothing(transform)) {
            return Err(self.unread("transform_config", "transformed weights are not read"));
        }
        let packing = self.one_of("format", &["pack-quantized", "float-quantized", "naive-quantized"])?;
        let groups = self.groups()?;
        let Some((first, others)) = groups.split_first() else {
            return Err(self.unread("config_groups", "it has no group"));
        };
        let (format, _) = first;
        if others.iter().any(|(other, _)| other != format) {
            return Err(self.unread("config_groups", "modules are quantised in several ways"));
        }
        match (packing, format) {
            (Some("pack-quantized"), PackedFormat::PackedInts(_))
            | (Some("float-quantized" | "naive-quantized"), PackedFormat::Fp8(_)) => {}
            (None, _) => return Err(self.keys.missing("format")),
            (Some(packing), _) => {
                return Err(self.unread("format", &format!("`{packing}` of {} is not read", format.name())));
            }
        }
        Ok(Quantisation {
            format: format.clone(),
            ignored: self.names("ignore")?.into_iter().filter(|name| !name.starts_with("re:")).collect(),
            quantises_activations: groups.iter().any(|(_, activations)| *activations),
        })
    }

    /// The groups of compressed-tensors: how weights are stored, and whether activations are quantised.
    fn groups(&self) -> Result<Vec<(PackedFormat, bool)>, UsageError> {
        let groups = self.keys.object("config_groups")?.ok_or_else(|| self.keys.missing("config_groups"))?;
        groups
            .iter()
            .map(|(name, group)| self.within(&format!("config_groups.{name}"), group, |own| own.group()))
            .collect()
    }

    fn group(&self) -> Result<(PackedFormat, bool), UsageError> {
        self.only(&["weights", "input_activations"], &["targets", "format"])?;
        let weights = self.keys.get("weights").ok_or_else(|| self.keys.missing("weights"))?;
        let format = self.within("weights", weights, |own| own.weights())?;
        Ok((format, self.keys.object("input_activations")?.is_some()))
    }

    fn weights(&self) -> Result<PackedFormat, UsageError> {
        self.only(
            &["num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder"],
            &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
        )?;
        let strategy = self.one_of("strategy", &["tensor", "channel", "group", "block"])?;
        match self.one_of("type", &["int", "float"])? {
            Some("float") => self.float_weights(strategy),
            _ => self.int_weights(strategy),
        }
    }

    fn float_weights(&self, strategy: Option<&str>) -> Result<PackedFormat, UsageError> {
        self.bits_among("num_bits", &[8])?;
        if !self.keys.flag("symmetric", true)? {
            return Err(self.unread("symmetric", "FP8 weights with zero points are not read"));
        }
        let scales = match strategy {
            None | Some("tensor") => Fp8Scales::Matrix,
            Some("channel") => Fp8Scales::Row,
            Some("block") => self.block("block_structure")?,
            Some(_) => return Err(self.unread("strategy", "FP8 weights with a scale for each group are not read")),
        };
        Ok(PackedFormat::Fp8(Fp8 { scales }))
    }

    fn int_weights(&self, strategy: Option<&str>) -> Result<PackedFormat, UsageError> {
        let bits = self.bits_among("num_bits", &[4, 8])?;
        let group_size = match strategy {
            Some("channel") => GroupSize::All,
            Some("group") => self.group_size()?,
            _ => return Err(self.unread("strategy", "only `group` and `channel` are read of packed weights")),
        };
        // Ordering by weights, and `static`, leaves groups neighbours.
        let order = match self.keys.get("actorder") {
            Some(Value::Bool(true)) => Some("group"),
            _ => self.one_of("actorder", &["group", "weight", "static"])?,
        };
        let symmetric = self.keys.flag("symmetric", true)?;
        Ok(PackedFormat::PackedInts(PackedInts { bits, group_size, symmetric, by_activation: order == Some("group") }))
    }

    /// Reads an object within this one.
    fn within<T>(
        &self,
        key: &str,
        value: &Value,
        read: impl Fn(&Settings<'_>) -> Result<T, UsageError>,
    ) -> Result<T, UsageError> {
        let map: &Map<String, Value> = value.as_object().ok_or_else(|| self.keys.wrong(key, "an object", value))?;
        let prefix = format!("{}{key}.", self.keys.prefix);
        read(&Settings { keys: Keys { file: self.keys.file, prefix: &prefix, map } })
    }

    /// Refuses a key that is neither read nor known to be harmless, unless it says nothing.
    fn only(&self, read: &[&str], harmless: &[&str]) -> Result<(), UsageError> {
        let known = |key: &str| key == "quant_method" || read.contains(&key) || harmless.contains(&key);
        match self.keys.map.iter().find(|(key, value)| !known(key) && !says_nothing(value)) {
            None => Ok(()),
            Some((key, _)) => Err(self.unread(key, "it is not read, and may change what is computed")),
        }
    }

    fn unread(&self, key: &str, what: &str) -> UsageError {
        self.keys.error(key, what).hint(QUANTISED_HINT)
    }

    /// One of several names, in any case, if the key is there.
    fn one_of(&self, key: &str, names: &[&'static str]) -> Result<Option<&'static str>, UsageError> {
        let Some(stated) = self.keys.optional_text(key)? else { return Ok(None) };
        let known = names.iter().find(|name| stated.eq_ignore_ascii_case(name)).copied();
        match known {
            Some(name) => Ok(Some(name)),
            None => {
                let all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                Err(self.unread(key, &format!("only {} can be read, got `{stated}`", all.join(", "))))
            }
        }
    }

    /// `bits`; 4 if it is not there, as in transformers.
    fn one_of_bits(&self, known: &[IntBits]) -> Result<IntBits, UsageError> {
        match self.keys.get("bits") {
            None => Ok(IntBits::Four),
            Some(_) => self.bits_among("bits", &known.iter().map(|bits| usize::from(*bits)).collect::<Vec<_>>()),
        }
    }

    fn bits_among(&self, key: &str, known: &[usize]) -> Result<IntBits, UsageError> {
        let stated = self.keys.size(key)?;
        match IntBits::of(stated).filter(|_| known.contains(&stated)) {
            Some(bits) => Ok(bits),
            None => {
                let all: Vec<String> = known.iter().map(ToString::to_string).collect();
                Err(self.unread(key, &format!("only {} bits can be read, got {stated}", all.join(" and "))))
            }
        }
    }

    /// `group_size`: −1 is all inputs; 128 if it is not there, as in transformers.
    fn group_size(&self) -> Result<GroupSize, UsageError> {
        const KEY: &str = "group_size";
        match self.keys.get(KEY) {
            None => Ok(GroupSize::Neighbours(128)),
            Some(all) if all.as_i64() == Some(-1) => Ok(GroupSize::All),
            Some(_) => Ok(GroupSize::Neighbours(self.keys.size(KEY)?)),
        }
    }

    /// Rows and columns of a block.
    fn block(&self, key: &str) -> Result<Fp8Scales, UsageError> {
        let value = self.keys.get(key).ok_or_else(|| self.keys.missing(key))?;
        let extent = |extent: &Value| extent.as_u64().filter(|n| (1..=1 << 20).contains(n)).map(|n| n as usize);
        let extents = value.as_array().map(|all| all.iter().map(extent).collect::<Option<Vec<usize>>>());
        let block = extents.flatten().and_then(|extents| <[usize; 2]>::try_from(extents).ok());
        block.map(Fp8Scales::Block).ok_or_else(|| self.keys.wrong(key, "two whole numbers from 1", value))
    }

    /// A list of names; none if the key is not there.
    fn names(&self, key: &str) -> Result<Vec<String>, UsageError> {
        let Some(value) = self.keys.get(key) else { return Ok(Vec::new()) };
        let name = |name: &Value| name.as_str().map(str::to_owned);
        let names: Option<Option<Vec<String>>> = value.as_array().map(|all| all.iter().map(name).collect());
        names.flatten().ok_or_else(|| self.keys.wrong(key, "a list of names", value))
    }
}

/// Whether a value is as good as none.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(setting: Value) -> Result<Option<Quantisation>, String> {
        let config = json!({ "quantization_config": setting });
        quantisation(&Keys { file: "config.json", prefix: "", map: config.as_object().unwrap() })
            .map_err(|e| e.to_string())
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
        let qwen3 = read(qwen3).unwrap().unwrap();
        assert!(qwen3.quantises_activations && qwen3.ignored == ["lm_head", "model.layers.0.mlp"]);
        let ministral = json!({"activation_scheme": "static", "dequantize": false, "quant_method": "fp8", "weight_block_size": null});
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
        let expected = json!({"format": "gptq", "bits": 8, "group_size": "all", "by_activation": true, "zero_points_less_one": true});
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
        let packed = read(packed).unwrap().unwrap();
        assert!(!packed.quantises_activations && packed.ignored == ["lm_head"]);
        let weights =
            json!({"dynamic": false, "num_bits": 8, "strategy": "channel", "symmetric": true, "type": "float"});
        let fp8 = of_llm_compressor("float-quantized", weights.clone(), json!({"num_bits": 8, "dynamic": true}));
        assert_eq!(identity(fp8.clone()), json!({"format": "fp8", "scales": "row"}));
        assert!(read(fp8).unwrap().unwrap().quantises_activations);
        let crossed = read(of_llm_compressor("pack-quantized", weights, Value::Null)).unwrap_err();
        assert_eq!(crossed, "config.json: `quantization_config.format`: `pack-quantized` of FP8 is not read");
    }

    #[test]
    fn what_is_not_read_is_refused_by_its_key() {
        let int8 = of_llm_compressor(
            "int-quantized",
            json!({"num_bits": 8, "type": "int", "strategy": "channel"}),
            Value::Null,
        );
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
                "`: the weights are quantised (NVIDIA ModelOpt), which is not read",
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
        let error =
            quantisation(&Keys { file: "c", prefix: "", map: config.as_object().unwrap() }).unwrap_err().to_string();
        assert_eq!(error, "c: `quantization`: the weights are quantised (MLX, 4 bits), which is not read");
        assert_eq!(read(Value::Null), Ok(None));
    }
}
