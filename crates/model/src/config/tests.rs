use super::*;
use crate::families::{AttentionScale, QueryGrowth};
use serde_json::json;

fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 2048, "eos_token_id": 2
    })
}

fn with(changes: Value) -> Value {
    let mut config = base();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn parse(value: &Value) -> Result<ModelConfig, UsageError> {
    ModelConfig::parse(&value.to_string(), "config.json")
}

fn error(changes: Value) -> String {
    parse(&with(changes)).unwrap_err().to_string()
}

#[test]
fn a_model_type_of_another_family_is_told_of() {
    let notes = |changes: Value| parse(&with(changes)).unwrap().notes;
    assert_eq!(notes(json!({"model_type": "llama"})), notes(json!({})));
    let mistral = json!({"architectures": ["MistralForCausalLM"], "sliding_window": null});
    assert_eq!(notes(mistral.clone()).len(), notes(json!({})).len());
    let told = notes(json!({"model_type": "qwen3"}));
    let expected =
        "config.json: `model_type` is `qwen3`, and `architectures` names LlamaForCausalLM, as which it is run";
    assert!(told.contains(&expected.to_owned()), "{told:?}");
}

/// The identity does not include notes, so that they can be reworded without preventing old folders from being resumed.
#[test]
fn notes_are_no_part_of_what_a_run_is() {
    let config = serde_json::to_value(parse(&with(json!({"model_type": "qwen3"}))).unwrap()).unwrap();
    assert_eq!(config, serde_json::to_value(parse(&base()).unwrap()).unwrap());
}

#[test]
fn defaults_are_those_of_the_family() {
    let c = parse(&base()).unwrap();
    assert_eq!((c.kv_heads, c.head_dim, c.rms_norm_eps), (4, 16, 1e-6));
    assert_eq!(c.rope, RopeConfig { theta: 10_000.0, scaling: RopeScaling::Default });
    assert_eq!((c.eos_ids, c.bos_id, c.sliding_window), (vec![2], None, None));
    assert!(!c.tie_word_embeddings && c.block == BlockSpec::LLAMA);
}

#[test]
fn both_spellings_of_rope_agree() {
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let mut old = llama3.clone();
    old["rope_type"] = json!("llama3");
    let mut new = old.clone();
    new["rope_theta"] = json!(5e5);
    let mut oldest = llama3.clone();
    oldest["type"] = json!("llama3");
    let a = parse(&with(json!({"rope_theta": 5e5, "rope_scaling": old}))).unwrap().rope;
    let b = parse(&with(json!({"rope_parameters": new}))).unwrap().rope;
    let c = parse(&with(json!({"rope_theta": 5e5, "rope_scaling": oldest}))).unwrap().rope;
    assert_eq!(a, b);
    assert_eq!(a, c);
    assert_eq!(a.theta, 5e5);
}

/// Transformers 5.24 does this in `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`: `rope_scaling`, unless it is
/// empty, replaces `rope_parameters`; a `rope_theta` within takes precedence over one beside.
#[test]
fn of_two_ropes_both_are_read_or_neither() {
    let plain = json!({"rope_type": "default", "rope_theta": 1e6});
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
    let with_theta = |map: &Value| {
        let mut map = map.clone();
        map["rope_theta"] = json!(1e6);
        map
    };
    let rope = |changes| parse(&with(changes)).map(|c| (c.rope, c.notes));
    let (as_yarn, none) = rope(json!({"rope_parameters": with_theta(&yarn)})).unwrap();
    assert!(none.is_empty() && matches!(&as_yarn.scaling, RopeScaling::Yarn(y) if y.factor == 4.0));
    let same = [
        json!({"rope_parameters": with_theta(&yarn), "rope_scaling": with_theta(&yarn)}),
        json!({"rope_parameters": with_theta(&yarn), "rope_scaling": yarn, "rope_theta": 1e6}),
        json!({"rope_parameters": with_theta(&yarn), "rope_scaling": {}}),
        json!({"rope_parameters": {}, "rope_scaling": yarn, "rope_theta": 1e6}),
        json!({"rope_parameters": null, "rope_scaling": with_theta(&yarn)}),
    ];
    for changes in same {
        assert_eq!(rope(changes.clone()).unwrap(), (as_yarn.clone(), vec![]), "{changes}");
    }
    let error = parse(&with(json!({"rope_parameters": plain, "rope_scaling": yarn}))).unwrap_err();
    assert_eq!(
        error.what,
        "config.json: `rope_scaling`: it says `yarn` by 4 of 512 positions with theta 10000, and `rope_parameters` no scaling \
         with theta 1000000"
    );
    assert!(error.hint.unwrap().starts_with("keep one of the two"));
    let scaling = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5});
    assert!(rope(json!({"rope_parameters": plain, "rope_scaling": scaling})).is_err());
    let (twice, notes) = rope(json!({"rope_parameters": plain, "rope_theta": 5e5})).unwrap();
    assert_eq!((twice.theta, notes.len()), (1e6, 1));
    assert_eq!(
        notes[0],
        "config.json: `rope_parameters.rope_theta` is 1000000 and `rope_theta` 500000: the former is used, as transformers does"
    );
}

/// Rows from published configs: Vicuna 1.5 16K, LLaMA 2 32K of Together, Qwen2.5 with YaRN, Yarn Llama 2 64K.
#[test]
fn what_says_another_context_is_counted_or_told_of() {
    let linear = |factor: f64| json!({"type": "linear", "factor": factor});
    let yarn = |factor: f64, original: usize| json!({"type": "yarn", "factor": factor, "original_max_position_embeddings": original});
    for (changes, limit, told) in [
        (json!({"max_position_embeddings": 4096}), 4096, ""),
        (
            json!({"max_position_embeddings": 4096, "max_sequence_length": 16384, "rope_scaling": linear(4.0)}),
            16384,
            "the context is 16384 tokens: `max_position_embeddings` is 4096, RoPE is scaled by 4, and",
        ),
        // A length that the scaling does not reach.
        (
            json!({"max_position_embeddings": 4096, "max_sequence_length": 65536, "rope_scaling": linear(4.0)}),
            16384,
            "the context is 16384 tokens",
        ),
        (
            json!({"max_position_embeddings": 32768, "rope_scaling": linear(8.0)}),
            32768,
            "include linear RoPE scaling by 8",
        ),
        (json!({"max_position_embeddings": 32768, "max_seq_len": 32768, "rope_scaling": linear(8.0)}), 32768, ""),
        (json!({"max_position_embeddings": 4096, "max_sequence_length": 2048}), 4096, "is stated to be 2048"),
        (json!({"max_position_embeddings": 4096, "max_sequence_length": 8192}), 4096, "is stated to be 8192"),
        (json!({"max_position_embeddings": 4096, "model_max_length": 1e30}), 4096, ""),
        (json!({"max_position_embeddings": 32768, "rope_scaling": yarn(4.0, 32768)}), 131_072, ""),
        (json!({"max_position_embeddings": 65536, "rope_scaling": yarn(16.0, 4096)}), 65536, ""),
        (json!({"max_position_embeddings": 131_072, "rope_scaling": yarn(2.0, 32768)}), 131_072, "by 2 only"),
        (json!({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}), 8192, ""),
        (
            json!({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768, "sliding_window": 4096}),
            32768,
            "",
        ),
    ] {
        let config = parse(&with(changes.clone())).unwrap();
        assert_eq!(config.context_limit(), limit, "{changes}");
        assert_eq!(config.notes.len(), usize::from(!told.is_empty()), "{changes}: {:?}", config.notes);
        assert!(config.notes.iter().all(|n| n.starts_with("config.json: ") && n.contains(told)), "{:?}", config.notes);
    }
}

#[test]
fn settings_that_nobody_reads_are_told_of() {
    let notes = |changes| parse(&with(changes)).unwrap().notes;
    let chunks = notes(json!({"dual_chunk_attention_config": {"chunk_size": 262_144}}));
    assert!(chunks.len() == 1 && chunks[0].contains("`dual_chunk_attention_config` is not read, as in transformers"));
    assert_eq!(notes(json!({"rope_condense_ratio": 8})).len(), 1);
    assert_eq!(notes(json!({"rope_condense_ratio": 1, "dual_chunk_attention_config": null})), [""; 0]);
}

#[test]
fn the_window_counts_only_where_a_layer_slides() {
    let window = |changes| parse(&with(changes)).unwrap().sliding_window;
    let mistral = json!(["MistralForCausalLM"]);
    let qwen = json!(["Qwen2ForCausalLM"]);
    assert_eq!(window(json!({"architectures": mistral, "sliding_window": null})), None);
    assert_eq!(window(json!({"architectures": mistral, "sliding_window": 512})), Some(512));
    assert_eq!(window(json!({"architectures": mistral})), Some(4096));
    assert_eq!(window(json!({"architectures": qwen, "sliding_window": 512})), None);
    let on = |extra: Value| {
        let mut c = json!({"architectures": qwen, "sliding_window": 512, "use_sliding_window": true});
        c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        c
    };
    assert_eq!(window(on(json!({"max_window_layers": 2}))), None);
    assert_eq!(window(on(json!({"max_window_layers": 1}))), Some(512));
    assert_eq!(window(on(json!({"max_window_layers": 0}))), Some(512));
    assert_eq!(window(on(json!({"layer_types": ["full_attention", "sliding_attention"]}))), Some(512));
    assert_eq!(window(on(json!({"layer_types": ["full_attention", "full_attention"]}))), None);
}

#[test]
fn the_context_limit_counts_scaling_and_no_windows() {
    let limit = |changes| parse(&with(changes)).unwrap().context_limit();
    assert_eq!(limit(json!({})), 2048);
    assert_eq!(limit(json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})), 2048);
    assert_eq!(limit(json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})), 4096);
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048});
    assert_eq!(limit(json!({"rope_scaling": yarn})), 8192);
    assert_eq!(limit(json!({"rope_scaling": yarn, "max_position_embeddings": 8192})), 8192);
    assert_eq!(limit(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 512})), 2048);
}

/// The windows and the RoPE table numbers of all layers.
fn kinds(config: &ModelConfig) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
    config.layer_kinds.kinds.iter().map(|kind| (kind.window, kind.rope)).unzip()
}

#[test]
fn layers_slide_by_their_types_or_by_the_rule_of_the_family() {
    let windows = |changes| kinds(&parse(&with(changes)).unwrap()).0;
    let (w, full) = (Some(64), None);
    let of = |class: &str, extra: Value| {
        let mut c = json!({"architectures": [class], "sliding_window": 64, "num_hidden_layers": 7});
        c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        windows(c)
    };
    assert_eq!(windows(json!({})), [None, None]);
    assert_eq!(of("MistralForCausalLM", json!({})), [w; 7]);
    // This window is as long as the longest context.
    assert_eq!(of("MistralForCausalLM", json!({"sliding_window": 2048})), [None; 7]);
    assert_eq!(of("Gemma2ForCausalLM", json!({})), [w, full, w, full, w, full, w]);
    assert_eq!(of("Gemma3ForCausalLM", json!({})), [w, w, w, w, w, full, w]);
    assert_eq!(of("Gemma3ForCausalLM", json!({"sliding_window_pattern": 3})), [w, w, full, w, w, full, w]);
    let sliding = ["full_attention", "full_attention", "sliding_attention"];
    let listed = json!({"layer_types": sliding, "num_hidden_layers": 3, "use_sliding_window": true});
    assert_eq!(of("Gemma2ForCausalLM", listed.clone()), [full, full, w]);
    assert_eq!(of("Qwen2ForCausalLM", listed), [full, full, w]);
    let from_two = json!({"max_window_layers": 2, "num_hidden_layers": 4, "use_sliding_window": true});
    assert_eq!(of("Qwen3ForCausalLM", from_two), [full, full, w, w]);
}

#[test]
fn a_list_of_layer_types_has_a_known_type_for_each_layer() {
    let error = |types: Value| error(json!({"architectures": ["Gemma2ForCausalLM"], "layer_types": types}));
    assert_eq!(
        error(json!(["full_attention"])),
        "config.json: `layer_types`: 1 layers are listed, and `num_hidden_layers` is 2"
    );
    assert_eq!(
        error(json!(["full_attention", "linear_attention"])),
        "config.json: `layer_types`: \"linear_attention\" is not supported"
    );
    assert_eq!(error(json!("full_attention")), "config.json: `layer_types`: expected a list of names");
}

/// As in `Gemma3TextConfig.convert_rope_params_to_dict` of transformers 5.24.
#[test]
fn sliding_layers_of_gemma_3_have_a_rotation_of_their_own() {
    let parse_gemma = |extra: Value| {
        let mut c = json!({"architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 2});
        c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(&with(c))
    };
    let ropes = |extra: Value| {
        let config = parse_gemma(extra).unwrap();
        assert_eq!(kinds(&config).1, [Some(1), Some(0)]);
        config.ropes().cloned().collect::<Vec<_>>()
    };
    let plain = |theta| RopeConfig { theta, scaling: RopeScaling::Default };
    let linear = RopeConfig { theta: 1e6, scaling: RopeScaling::Linear { factor: 8.0 } };
    assert_eq!(ropes(json!({})), [plain(1e6), plain(1e4)]);
    assert_eq!(ropes(json!({"rope_theta": 5e5, "rope_local_base_freq": 3e4})), [plain(5e5), plain(3e4)]);
    let scaled = json!({"rope_type": "linear", "factor": 8.0});
    assert_eq!(ropes(json!({"rope_scaling": scaled})), [linear.clone(), plain(1e4)]);
    let both = |full: Value, sliding: Value| json!({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}});
    assert_eq!(ropes(both(scaled.clone(), json!({"rope_type": "default"}))), [linear.clone(), plain(1e4)]);
    assert_eq!(ropes(both(json!({"rope_theta": 7e5}), json!({"rope_theta": 2e4}))), [plain(7e5), plain(2e4)]);
    let error = |extra: Value| parse_gemma(extra).unwrap_err().to_string();
    assert_eq!(
        error(json!({"rope_parameters": {"factor": 8.0}})),
        "config.json: `rope_parameters.factor`: expected `full_attention` and `sliding_attention`, each with its own"
    );
    let mut twice = both(json!({}), json!({}));
    twice["rope_scaling"] = scaled;
    assert_eq!(error(twice), "config.json: `rope_scaling`: it stands beside `rope_parameters`");
}

/// The text configuration of Gemma 3 4B has only these keys.
#[test]
fn a_wrapper_has_a_text_model_with_defaults_of_its_class() {
    let wrapper = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}
        },
        "vision_config": {"hidden_size": 1152}, "torch_dtype": "bfloat16",
    });
    let c = parse(&wrapper).unwrap();
    assert_eq!((c.heads, c.kv_heads, c.head_dim, c.vocab_size), (8, 4, 256, 262_208));
    assert_eq!((c.hidden_size, c.layers, c.context_limit()), (2560, 34, 131_072));
    assert_eq!((c.eos_ids, c.tie_word_embeddings), (vec![1, 106], true));
    assert_eq!(c.checkpoint_type, Some(CheckpointType::Bf16));
    assert_eq!(c.block.attention_scale, AttentionScale::InverseRoot(256));
    assert!(c.notes.iter().any(|note| note.contains("only its text model is run")), "{:?}", c.notes);
    let mut alone = wrapper["text_config"].clone();
    alone["architectures"] = json!(["Gemma3ForCausalLM"]);
    let identity = |value: &Value| serde_json::to_value(parse(value).unwrap()).unwrap();
    assert_eq!(identity(&wrapper), identity(&alone), "the same model");
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut wrapper = wrapper.clone();
        change(&mut wrapper);
        parse(&wrapper).unwrap_err().to_string()
    };
    assert_eq!(
        wrong(&|c| c["text_config"]["head_dim"] = json!("x")),
        "config.json: `text_config.head_dim`: expected a whole number, got \"x\""
    );
    assert_eq!(wrong(&|c| c["text_config"] = Value::Null), "config.json: the key `text_config` is missing");
}

#[test]
fn the_text_model_of_mistral_3_is_mistral_or_ministral_3() {
    let wrapped = |text: Value| {
        let mut config = base();
        config.as_object_mut().unwrap().extend(text.as_object().unwrap().clone());
        config["model_type"] = text["model_type"].clone();
        parse(&json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": config}))
    };
    let plain = wrapped(json!({"model_type": "mistral", "sliding_window": null})).unwrap();
    assert_eq!(plain.block, BlockSpec::LLAMA);
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 128,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1
    });
    let grows = wrapped(json!({"model_type": "ministral3", "rope_parameters": yarn})).unwrap();
    assert_eq!(grows.block.query_growth, Some(QueryGrowth { beta: 0.1, step: 128 }));
    assert_eq!(kinds(&grows).0, [None, None]);
    assert_eq!(
        wrapped(json!({"model_type": "ministral3"})).unwrap_err().to_string(),
        "config.json: the key `text_config.rope_parameters` is missing"
    );
    assert_eq!(
        wrapped(json!({"model_type": "llama"})).unwrap_err().to_string(),
        "config.json: `text_config.model_type`: `llama` is not supported in this class"
    );
}

/// The identity's entries about layers, in their order, since digests are of its text.
#[test]
fn a_run_is_identified_by_the_kinds_of_its_layers() {
    let of = |changes| serde_json::to_string(&parse(&with(changes)).unwrap()).unwrap();
    assert!(of(json!({})).contains(r#""sliding_window":null,"tie_word_embeddings":false"#));
    let mistral = of(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 64}));
    assert!(mistral.contains(r#""sliding_window":64,"windows":[64,64],"tie_word_embeddings""#), "{mistral}");
    let reaches_all = of(json!({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}));
    assert!(reaches_all.contains(r#""sliding_window":4096,"tie_word_embeddings""#), "{reaches_all}");
    let gemma = of(json!({"architectures": ["Gemma3ForCausalLM"], "sliding_window": 64, "sliding_window_pattern": 2}));
    let kinds = r#""windows":[64,null],"layer_ropes":[1,0],"further_ropes":[{"theta":10000.0,"scaling":"default"}]"#;
    assert!(gemma.contains(kinds), "{gemma}");
}

#[test]
fn biases_follow_the_family() {
    let biases = |changes| {
        let c = parse(&with(changes)).unwrap();
        (c.block.qkv_bias, c.block.output_bias, c.block.mlp_bias, c.block.names.qk_norm.is_some())
    };
    assert_eq!(biases(json!({"attention_bias": true, "mlp_bias": true})), (true, true, true, false));
    assert_eq!(biases(json!({"architectures": ["Qwen2ForCausalLM"]})), (true, false, false, false));
    assert_eq!(biases(json!({"architectures": ["Qwen3ForCausalLM"]})), (false, false, false, true));
    assert_eq!(
        biases(json!({"architectures": ["MistralForCausalLM"], "attention_bias": true})),
        (false, false, false, false)
    );
}

#[test]
fn every_mistake_names_the_file_and_the_key() {
    let e = parse(&with(json!({"architectures": ["GPT2LMHeadModel"]}))).unwrap_err();
    assert_eq!(e.what, "config.json: `architectures`: `GPT2LMHeadModel` is not supported");
    let hint = e.hint.unwrap();
    let listed: Vec<&str> = hint.strip_prefix("supported: ").unwrap().split(", ").collect();
    assert!(
        ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
            .iter()
            .all(|class| listed.contains(class)),
        "{hint}"
    );
    assert_eq!(listed.len(), FAMILIES.len(), "{hint}");
    assert_eq!(error(json!({"vocab_size": null})), "config.json: the key `vocab_size` is missing");
    assert_eq!(error(json!({"vocab_size": 0})), "config.json: `vocab_size`: must not be 0");
    assert_eq!(error(json!({"vocab_size": "x"})), "config.json: `vocab_size`: expected a whole number, got \"x\"");
    assert_eq!(error(json!({"vocab_size": -1})), "config.json: `vocab_size`: expected a whole number, got -1");
    assert_eq!(error(json!({"hidden_act": "gelu"})), "config.json: `hidden_act`: only `silu` is supported, got `gelu`");
    assert_eq!(
        error(json!({"num_key_value_heads": 3})),
        "config.json: `num_attention_heads` (4) is not a multiple of `num_key_value_heads` (3)"
    );
    for (key, value) in [("rms_norm_eps", -1e-5), ("rms_norm_eps", 0.0), ("rms_norm_eps", 1.0)] {
        let expected = format!("config.json: `{key}`: must be above 0 and below 1, got {value}");
        assert_eq!(error(json!({key: value})), expected);
    }
    for theta in [-10_000.0, 0.0, 1.0] {
        assert_eq!(
            error(json!({"rope_theta": theta})),
            format!("config.json: `rope_theta`: must be above 1, got {theta}")
        );
    }
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    for (scaling, key, value, what) in [
        (&llama3, "factor", json!(-8.0), "must be from 1 to 1000000, got -8"),
        (&llama3, "factor", json!(0.5), "must be from 1 to 1000000, got 0.5"),
        (&llama3, "factor", json!(1e300), "must be from 1 to 1000000, got 1"),
        (&llama3, "low_freq_factor", json!(0), "must be above 0, got 0"),
        (&llama3, "high_freq_factor", json!(1.0), "must be above `low_freq_factor` (1), got 1"),
        (&yarn, "attention_factor", json!(-1), "must be above 0, got -1"),
        (&yarn, "beta_slow", json!(-1), "must not be negative, got -1"),
        (&yarn, "beta_fast", json!(0.5), "must not be below `beta_slow` (1), got 0.5"),
        (&yarn, "mscale", json!(-1), "must not be negative, got -1"),
        (&yarn, "original_max_position_embeddings", json!(0), "must not be 0"),
    ] {
        let mut scaling = scaling.clone();
        scaling[key] = value;
        let error = error(json!({"rope_scaling": scaling}));
        assert!(error.starts_with(&format!("config.json: `rope_scaling.{key}`: {what}")), "{error}");
    }
    assert_eq!(error(json!({"head_dim": 15})), "config.json: `head_dim` must be even for RoPE, got 15");
    assert_eq!(
        error(json!({"hidden_size": 66})),
        "config.json: `hidden_size`: 66 is not a multiple of `num_attention_heads` (4), and there is no `head_dim`"
    );
    assert_eq!(
        error(json!({"rope_scaling": {"rope_type": "proportional"}})),
        "config.json: `rope_scaling.rope_type`: `proportional` is not supported"
    );
    assert_eq!(
        error(json!({"rope_parameters": {"rope_type": "linear"}})),
        "config.json: the key `rope_parameters.factor` is missing"
    );
    assert_eq!(
        error(json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}})),
        "config.json: `rope_parameters.full_attention`: RoPE parameters that differ by layer are not supported"
    );
    assert_eq!(
        error(json!({"eos_token_id": "</s>"})),
        "config.json: `eos_token_id`: expected a token id or a list of them, got \"</s>\""
    );
    for (ids, said) in [(json!(100), "100"), (json!([2, 300]), "300")] {
        assert_eq!(
            error(json!({ "eos_token_id": ids })),
            format!("config.json: `eos_token_id`: {said} is beyond the vocabulary of 100")
        );
    }
    assert_eq!(
        error(json!({"quantization_config": {"quant_method": "hqq", "bits": 4}})),
        "config.json: `quantization_config`: the weights are quantised (HQQ, 4 bits), which is not read"
    );
    assert!(parse(&with(json!({"quantization_config": null}))).is_ok());
    assert_eq!(
        ModelConfig::parse("{\"a\": ", "m/config.json").unwrap_err().to_string(),
        "m/config.json: not valid JSON: EOF while parsing a value at line 1 column 6"
    );
    assert_eq!(ModelConfig::parse("[]", "c.json").unwrap_err().to_string(), "c.json: expected a JSON object");
}

#[test]
fn longrope_has_a_factor_for_each_pair_of_channels() {
    let phi = |changes: Value| {
        let mut c = json!({
            "architectures": ["Phi3ForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 131_072,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1, 4.5]},
            "partial_rotary_factor": 0.25,
        });
        c.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        parse(&with(c))
    };
    let config = phi(json!({})).unwrap();
    assert_eq!((config.rotated(), config.head_dim, config.context_limit()), (4, 16, 131_072));
    let RopeScaling::LongRope(scaling) = &config.rope.scaling else { panic!("{:?}", config.rope) };
    // The class's default is 4096.
    assert_eq!((scaling.original_max_positions, &scaling.long_factor), (4096, &vec![1.0, 4.5]));
    assert!((scaling.attention_factor - 1.190_238).abs() < 1e-6, "{}", scaling.attention_factor);
    let error = |changes| phi(changes).unwrap_err().to_string();
    assert_eq!(
        error(json!({"partial_rotary_factor": 0.5})),
        "config.json: `short_factor`: 2 numbers are listed, and 4 pairs of channels are rotated"
    );
    assert_eq!(
        error(json!({"partial_rotary_factor": 0.2})),
        "config.json: `partial_rotary_factor`: 3 of 16 channels cannot be rotated in pairs"
    );
    assert_eq!(
        error(json!({"partial_rotary_factor": 1.5})),
        "config.json: `partial_rotary_factor`: must be above 0 and at most 1, got 1.5"
    );
    assert_eq!(
        error(json!({"rope_scaling": {"type": "su", "short_factor": [1.0, 0.0], "long_factor": [1.0, 1.0]}})),
        "config.json: `rope_scaling.short_factor`: expected a list of numbers above 0"
    );
    let error = parse(&with(json!({"rope_parameters": {"partial_rotary_factor": 0.5}}))).unwrap_err().to_string();
    assert_eq!(
        error,
        "config.json: `rope_parameters.partial_rotary_factor`: rotating only a part of a head is not supported"
    );
}

#[test]
fn a_token_passes_no_more_experts_than_there_are() {
    let mixtral = |changes: Value| {
        let mut c = json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_key_value_heads": 2});
        c.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        parse(&with(c))
    };
    let experts = mixtral(json!({})).unwrap().block.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.width), (4, 2, 128));
    assert_eq!(
        mixtral(json!({"num_experts_per_tok": 5})).unwrap_err().to_string(),
        "config.json: `num_experts_per_tok`: 5 of 4 experts cannot be used"
    );
    assert_eq!(
        mixtral(json!({"num_local_experts": 4096, "num_hidden_layers": 33})).unwrap_err().to_string(),
        "config.json: 4096 experts in each of 33 layers are more than are read, 131072 in all"
    );
}
