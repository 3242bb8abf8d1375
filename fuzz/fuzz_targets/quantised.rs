//! Quantised safetensors: the settings of `config.json` and packed tensors by them, which are unpacked whole and in parts.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::Value;
use spattn::model::config::ModelConfig;
use spattn::model::tensors::{SINGLE_FILE, Weights};
use spattn_fuzz::{check_line, files, folder, put, read_usage};

const CONFIG: &str = include_str!("../../tests/golden/models/llama3/config.json");

fuzz_target!(|input: &[u8]| -> Corpus {
    let [settings, tensors] = files(input)[..] else { return Corpus::Reject };
    let Ok(settings) = serde_json::from_slice::<Value>(settings) else { return Corpus::Reject };
    let mut config: Value = serde_json::from_str(CONFIG).expect("a config that works");
    config["quantization_config"] = settings;
    let Some(config) = read_usage(ModelConfig::parse(&config.to_string(), "config.json")) else { return Corpus::Keep };
    let Some(quantisation) = config.quantisation else { return Corpus::Keep };
    let dir = folder();
    put(dir.path(), SINGLE_FILE, tensors);
    match Weights::open_quantised_folder(dir.path(), &quantisation) {
        Ok(weights) => read(weights),
        Err(error) => check_line(&error.to_string()),
    }
    Corpus::Keep
});

/// Reads every tensor, and every tensor as two that follow each other in it.
fn read(mut weights: Weights) {
    let names: Vec<String> = weights.names().map(str::to_owned).collect();
    for name in &names {
        let shape = weights.shape(name).expect("a tensor that was named").to_vec();
        let numbers: usize = shape.iter().product();
        let whole = match weights.read(name, &shape) {
            Ok(tensor) => tensor.bytes,
            Err(error) => {
                check_line(&error.to_string());
                continue;
            }
        };
        let parts = [numbers / 3, numbers - numbers / 3].map(|len| (format!("{name} {len}"), vec![len]));
        weights.divide(name, parts.clone());
        let read =
            parts.map(|(name, shape)| weights.read(&name, &shape).expect("a part of a tensor that was read").bytes);
        assert_eq!(read.concat(), whole, "{name}");
    }
}
