//! A model's `config.json`, and the index of its shards.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn::kv::KvDtype;
use spattn::model::config::ModelConfig;
use spattn::model::decoder::Dimensions;
use spattn::model::tensors::shard_names;
use spattn_fuzz::{check_line, choice, read_usage};

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((which, text)) = choice(input, 2) else { return Corpus::Reject };
    let Ok(text) = std::str::from_utf8(text) else { return Corpus::Reject };
    match which {
        0 => config(text),
        _ => index(text),
    }
    Corpus::Keep
});

fn config(text: &str) {
    let Some(config) = read_usage(ModelConfig::parse(text, "config.json")) else { return };
    assert!(config.group_size() > 0);
    let tokens = config.context_limit().min(1 << 20);
    let dimensions = Dimensions::new(&config, KvDtype::Bf16);
    let _ = (dimensions.weight_bytes(), dimensions.kv_bytes_per_token(), dimensions.prefill_bytes(64, true));
    let _ = (dimensions.prefill_bytes(tokens, false), dimensions.prompt_shape(tokens));
}

fn index(text: &str) {
    match shard_names(text) {
        Ok(names) => assert!(names.iter().all(|name| !name.contains(['/', '\\']))),
        Err(what) => check_line(&what),
    }
}
