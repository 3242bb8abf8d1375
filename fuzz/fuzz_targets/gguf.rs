//! GGUF files: the directory, what becomes of it as configuration and tokenizer, and all tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spattn::model::gguf;
use spattn::model::tokenizer::{Tokenizer, TokenizerOptions};
use spattn_fuzz::{check_line, folder, put, read, read_usage};

fuzz_target!(|input: &[u8]| {
    let dir = folder();
    let path = put(dir.path(), "model.gguf", input);
    let Some((texts, weights)) = read(gguf::open(&path, "model".to_owned())) else { return };
    texts.notes.iter().for_each(|note| check_line(note));
    for name in weights.names() {
        let shape = weights.shape(name).expect("a tensor that was named").to_vec();
        match weights.read(name, &shape) {
            Ok(tensor) => assert_eq!(tensor.to_f32().len(), tensor.len()),
            Err(error) => check_line(&error.to_string()),
        }
    }
    let Some(config) = read_usage(texts.config()) else { return };
    let Some(tokenizer) = read_usage(Tokenizer::load(&texts, &config, TokenizerOptions::default())) else { return };
    drop(read_usage(tokenizer.encode_text("a b  3\n", true)));
});
