//! The limits within which a model of candle is a referee: what it lacks for a config, and how many tokens both read alike.

use serde_json::{Map, Value, json};

use super::designs::{DESIGNS, Design, Scale};

/// The key of the period of full layers among layers with a window.
const PATTERN: &str = "sliding_window_pattern";

/// A model's `config.json` with the keys that candle reads, and candle's model for it.
pub(super) struct Judged {
    /// Candle's model.
    pub design: &'static Design,
    config: Map<String, Value>,
}

impl Judged {
    /// Finds candle's model for a config, among those for GGUF files or those for safetensors.
    ///
    /// # Errors
    /// The reason, if there is none.
    pub(super) fn of(config: &Map<String, Value>, is_gguf: bool) -> Result<Self, String> {
        let class = config.get("architectures").and_then(|names| names[0].as_str()).unwrap_or_default();
        let of_class = || DESIGNS.iter().filter(|design| design.class == class);
        let Some(design) = of_class().find(|design| design.is_of_gguf() == is_gguf) else {
            return Err(match (of_class().next(), is_gguf) {
                (Some(_), true) => format!("candle has no {class} that reads GGUF files"),
                _ => format!("candle has no {class}"),
            });
        };
        if let Some(quantised) = config.get("quantization_config").filter(|value| !value.is_null()) {
            let method = quantised["quant_method"].as_str().unwrap_or("quantised");
            return Err(format!("candle reads no safetensors in {method}"));
        }
        let judged = Self { design, config: plain(config, design) };
        judged.refusal().map_or(Ok(judged), |why| Err(format!("candle's {} {why}", design.module)))
    }

    /// Says what the model lacks for this config.
    fn refusal(&self) -> Option<String> {
        self.scaling()
            .or_else(|| self.width())
            .or_else(|| self.unread())
            .or_else(|| self.scale())
            .or_else(|| self.layers())
    }

    fn scaling(&self) -> Option<String> {
        let scaling = self.get("rope_scaling")?;
        let kind =
            scaling.get("rope_type").or(scaling.get("type")).and_then(Value::as_str).unwrap_or("an unknown kind");
        let is_known = kind == "default" || self.design.scalings.contains(&kind);
        (!is_known).then(|| format!("leaves out the RoPE scaling `{kind}`"))
    }

    fn width(&self) -> Option<String> {
        let stated = self.size("head_dim")?;
        let taken = self.size("hidden_size")? / self.size("num_attention_heads").filter(|heads| *heads > 0)?;
        (!self.design.has_head_dim && stated != taken).then(|| format!("takes heads of {taken} channels, not {stated}"))
    }

    fn unread(&self) -> Option<String> {
        let differs = |(key, neutral): &&(&str, &str)| {
            let neutral: Value = serde_json::from_str(neutral).unwrap_or_default();
            self.get(key).is_some_and(|stated| match (stated.as_f64(), neutral.as_f64()) {
                (Some(stated), Some(neutral)) => stated != neutral,
                _ => *stated != neutral,
            })
        };
        let (key, _) = self.design.unread.iter().find(differs)?;
        Some(format!("does not compute `{key}` {}", self.config[*key]))
    }

    fn scale(&self) -> Option<String> {
        let width =
            self.size("head_dim").or_else(|| Some(self.size("hidden_size")? / self.size("num_attention_heads")?));
        let (key, inverse_square) = match self.design.scale? {
            Scale::InverseRootOf(key) => (key, self.get(key)?.as_f64()?),
            Scale::Is(key) => (key, self.get(key)?.as_f64()?.powi(-2)),
        };
        let is_same = (inverse_square - width? as f64).abs() < 1e-6 * inverse_square;
        (!is_same).then(|| format!("does not read `{key}` {}", self.config[key]))
    }

    /// Candle's Gemma 3 has a full layer after a fixed number of layers with a window.
    fn layers(&self) -> Option<String> {
        let pattern = self.size(PATTERN)?;
        let mut layers = self.get("layer_types")?.as_array()?.iter().enumerate();
        let is_other = |(at, kind): (usize, &Value)| (*kind == "full_attention") != ((at + 1) % pattern.max(1) == 0);
        layers.any(is_other).then(|| "has its full layers at other places".to_owned())
    }

    /// Returns the most tokens that both read alike, and why no more: candle's windows are one token longer or missing. `None` if there is
    /// no bound.
    pub(super) fn most_tokens(&self) -> Option<(usize, &'static str)> {
        let has_window = self.get("use_sliding_window") != Some(&Value::Bool(false));
        let window =
            self.size("sliding_window").filter(|_| has_window).map(|window| (window, "candle's windows are others"));
        // For GGUF files, candle's RoPE tables are only as long as the file's `max_position_embeddings`.
        let stated = self.trained().filter(|_| self.design.is_of_gguf());
        let longest = self.design.longest.or(stated).map(|longest| (longest, "candle reads no more"));
        window.into_iter().chain(longest).min_by_key(|(tokens, _)| *tokens)
    }

    /// Returns the config with which candle reads `tokens` tokens. `has_head` says whether the output matrix is stored and used.
    pub(super) fn config(&self, tokens: usize, has_head: bool) -> Value {
        let mut config = self.config.clone();
        // Candle uses this key only for the length of its cosine tables, which otherwise end at the trained length.
        config.insert("max_position_embeddings".to_owned(), json!(tokens));
        config.insert("tie_word_embeddings".to_owned(), json!(!has_head));
        if self.get("use_sliding_window") == Some(&Value::Bool(false)) && self.size("sliding_window").is_some() {
            config.insert("sliding_window".to_owned(), json!(1_000_000_000));
        }
        Value::Object(config)
    }

    /// Returns the length that the model was trained for.
    pub(super) fn trained(&self) -> Option<usize> {
        self.size("max_position_embeddings")
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key)
    }

    fn size(&self, key: &str) -> Option<usize> {
        self.get(key)?.as_u64()?.try_into().ok()
    }
}

/// Returns the keys of the text model as candle has them: RoPE's beside the others, none `null`, the class's defaults filled in.
fn plain(config: &Map<String, Value>, design: &Design) -> Map<String, Value> {
    let mut plain = config.get("text_config").and_then(Value::as_object).unwrap_or(config).clone();
    if let Some(rope) = plain.remove("rope_parameters").as_ref().and_then(Value::as_object) {
        let full = rope.get("full_attention").and_then(Value::as_object).unwrap_or(rope);
        let local = rope.get("sliding_attention").and_then(|local| local.get("rope_theta"));
        plain.extend(local.map(|theta| ("rope_local_base_freq".to_owned(), theta.clone())));
        for key in ["rope_theta", "partial_rotary_factor"] {
            plain.extend(full.get(key).map(|value| (key.to_owned(), value.clone())));
        }
        plain.insert("rope_scaling".to_owned(), Value::Object(full.clone()));
    }
    // There may be several EOS ids, which some of candle's configs cannot hold. Candle computes with none of these ids.
    plain.retain(|key, value| {
        !value.is_null() && !["bos_token_id", "eos_token_id", "pad_token_id"].contains(&key.as_str())
    });
    let is_default =
        |scaling: &Value| scaling["rope_type"] == "default" || scaling.as_object().is_some_and(Map::is_empty);
    if plain.get("rope_scaling").is_some_and(is_default) {
        plain.remove("rope_scaling");
    }
    let defaults: Map<String, Value> = serde_json::from_str(design.defaults).unwrap_or_default();
    if let Some(layers) = plain.get("layer_types").and_then(Value::as_array).filter(|_| defaults.contains_key(PATTERN))
    {
        let first_full = layers.iter().position(|kind| kind == "full_attention").unwrap_or(layers.len());
        plain.insert(PATTERN.to_owned(), json!(first_full + 1));
    }
    // Configs may use either name for this number.
    if let Some(experts) = plain.get("num_local_experts").cloned() {
        plain.entry("num_experts").or_insert(experts);
    }
    defaults.into_iter().for_each(|(key, value)| {
        plain.entry(key).or_insert(value);
    });
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(config: Value) -> Result<Judged, String> {
        Judged::of(config.as_object().unwrap(), false)
    }

    fn refused(config: Value) -> String {
        judged(config).err().unwrap()
    }

    #[test]
    fn what_a_model_of_candle_lacks_is_told() {
        let llama = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4});
        let with = |key: &str, value: Value| {
            let mut config = llama.clone();
            config[key] = value;
            config
        };
        assert!(judged(llama.clone()).is_ok());
        assert!(judged(with("head_dim", json!(16))).is_ok());
        assert!(judged(with("rope_scaling", json!({"rope_type": "llama3"}))).is_ok());
        assert!(judged(with("rope_parameters", json!({"rope_theta": 1e4, "rope_type": "default"}))).is_ok());
        for (key, value, why) in [
            ("head_dim", json!(32), "candle's llama takes heads of 16 channels, not 32"),
            ("attention_bias", json!(true), "candle's llama does not compute `attention_bias` true"),
            ("rope_scaling", json!({"type": "linear"}), "candle's llama leaves out the RoPE scaling `linear`"),
            ("rope_parameters", json!({"rope_type": "yarn"}), "candle's llama leaves out the RoPE scaling `yarn`"),
            ("quantization_config", json!({"quant_method": "fp8"}), "candle reads no safetensors in fp8"),
            ("architectures", json!(["GptOssForCausalLM"]), "candle has no GptOssForCausalLM"),
        ] {
            assert_eq!(refused(with(key, value)), why);
        }
        let gguf = Judged::of(json!({"architectures": ["Olmo2ForCausalLM"]}).as_object().unwrap(), true);
        assert_eq!(gguf.err().unwrap(), "candle has no Olmo2ForCausalLM that reads GGUF files");
    }

    #[test]
    fn scales_and_layers_are_those_that_candle_takes() {
        let granite = |multiplier: f64| {
            json!({"architectures": ["GraniteForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
                   "attention_multiplier": multiplier})
        };
        assert!(judged(granite(0.25)).is_ok());
        assert_eq!(refused(granite(0.2)), "candle's granite does not read `attention_multiplier` 0.2");
        let gemma = |scalar: usize, layers: Value| {
            json!({"architectures": ["Gemma3ForConditionalGeneration"],
                   "text_config": {"head_dim": 32, "query_pre_attn_scalar": scalar, "layer_types": layers}})
        };
        let (s, f) = ("sliding_attention", "full_attention");
        assert!(judged(gemma(32, json!([s, f, s]))).is_ok());
        assert_eq!(refused(gemma(24, json!([s, f, s]))), "candle's gemma3 does not read `query_pre_attn_scalar` 24");
        assert_eq!(refused(gemma(32, json!([s, f, f]))), "candle's gemma3 has its full layers at other places");
    }

    #[test]
    fn windows_bound_the_text() {
        let qwen = |uses: bool| json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 200, "use_sliding_window": uses});
        assert_eq!(judged(qwen(true)).unwrap().most_tokens().unwrap().0, 200);
        let without = judged(qwen(false)).unwrap();
        assert_eq!(without.most_tokens(), None);
        let config = without.config(300, false);
        assert_eq!(
            (&config["sliding_window"], &config["max_position_embeddings"]),
            (&json!(1_000_000_000), &json!(300))
        );
    }

    #[test]
    fn rows_are_well_formed() {
        for design in DESIGNS {
            assert!(serde_json::from_str::<Map<String, Value>>(design.defaults).is_ok(), "{}", design.module);
            for (key, neutral) in design.unread {
                assert!(serde_json::from_str::<Value>(neutral).is_ok(), "{}: {key}", design.module);
            }
            let of_the_same =
                DESIGNS.iter().filter(|other| (other.class, other.is_of_gguf()) == (design.class, design.is_of_gguf()));
            assert_eq!(of_the_same.count(), 1, "{}", design.class);
        }
    }
}
