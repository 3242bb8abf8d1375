//! Tokenizers of GGUF files, compared with the tokenizers that they were made from on 10,000 lines
//! (`scripts/make_golden_gguf.py`).
//!
//! `SPATTN_GGUF=NAME=FILE,NAME=FILE` also compares real vocabularies; `real.json` has their names.

use std::path::{Path, PathBuf};

use serde_json::Value;
use spattn_hub::checksum::sha256_hex;
use tempfile::TempDir;

use super::open;
use super::writer::GgufWriter;
use crate::tokenizer::{Tokenizer, TokenizerOptions};

const COUNT: usize = 10_000;
const BLOCK: usize = 100;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

/// The generator SplitMix64, as in the script.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn of<'a>(&mut self, list: &'a Value) -> &'a Value {
        let list = list.as_array().unwrap();
        &list[self.below(list.len() as u64) as usize]
    }
}

/// The script's lines.
fn lines() -> Vec<String> {
    let made_of = golden_json("lines.json");
    let mut random = Random(44);
    let line = |_| {
        let mut line = String::new();
        for _ in 0..1 + random.below(16) {
            match random.of(&made_of["kinds"]).as_str().unwrap() {
                "digits" => {
                    let most = 10u64.pow(1 + random.below(12) as u32);
                    line.push_str(&random.below(most).to_string());
                }
                "ranges" => {
                    let range = random.of(&made_of["ranges"]).clone();
                    let (low, high) = (range[0].as_u64().unwrap(), range[1].as_u64().unwrap());
                    for _ in 0..1 + random.below(4) {
                        line.push(char::from_u32((low + random.below(high - low + 1)) as u32).unwrap());
                    }
                }
                kind => line.push_str(random.of(&made_of["pieces"][kind]).as_str().unwrap()),
            }
            line.push_str(["", " ", "", " ", "\n"][random.below(5) as usize]);
        }
        line
    };
    (0..COUNT).map(line).collect()
}

fn tokenizer(path: &Path) -> Tokenizer {
    let (texts, _) = open(path, "m".into()).unwrap();
    let plain = TokenizerOptions { chat: false, ..TokenizerOptions::default() };
    Tokenizer::load(&texts, &texts.config().unwrap(), plain).unwrap()
}

/// Compares the ids of all lines.
fn compare(name: &str, path: &Path, lines: &[String], told: &Value) {
    let tokenizer = tokenizer(path);
    let ids: Vec<Vec<u32>> = lines.iter().map(|line| tokenizer.encode_text(line, false).unwrap()).collect();
    for (line, expected) in lines.iter().zip(told["first"].as_array().unwrap()) {
        let expected: Vec<u32> = expected.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode_text(line, false).unwrap(), expected, "{name}: {line:?}");
    }
    let hash = |block: &[Vec<u32>]| {
        let bytes: Vec<u8> = block.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
        sha256_hex(&bytes)[..8].to_owned()
    };
    let got: Vec<String> = ids.chunks(BLOCK).map(hash).collect();
    let expected: Vec<&str> = told["hashes"].as_str().unwrap().split(' ').collect();
    let differ: Vec<usize> = (0..COUNT / BLOCK).filter(|at| got[*at] != expected[*at]).collect();
    assert!(differ.is_empty(), "{name}: blocks {differ:?} of {BLOCK} lines differ");
    assert_eq!(ids.iter().map(Vec::len).sum::<usize>() as u64, told["tokens"].as_u64().unwrap(), "{name}");
}

#[test]
fn ids_of_10_000_lines_equal_those_of_the_tokenizer_that_was_converted() {
    let (lines, all) = (lines(), golden_json("tokenizers.json"));
    let all = all.as_object().unwrap();
    assert_eq!(all.len(), 6);
    for (name, told) in all {
        compare(name, &golden(&format!("{name}.gguf")), &lines, told);
    }
}

#[test]
fn ids_of_10_000_lines_equal_those_of_real_tokenizers() {
    let Ok(files) = std::env::var("SPATTN_GGUF") else {
        return eprintln!("SKIPPED: SPATTN_GGUF names no files of real models");
    };
    let (lines, all) = (lines(), golden_json("real.json"));
    for file in files.split(',') {
        let (name, path) = file.split_once('=').expect("NAME=FILE");
        assert!(all[name].is_object(), "real.json has no `{name}`");
        compare(name, Path::new(path), &lines, &all[name]);
    }
}

/// The error of a file whose tokenizer `change` edits.
fn refused(change: impl Fn(&mut GgufWriter)) -> String {
    let mut file = GgufWriter::llama();
    change(&mut file);
    let dir = TempDir::new().unwrap();
    open(&file.write(dir.path(), "m.gguf"), "m".into()).unwrap_err().to_string()
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

#[test]
fn a_splitting_that_is_not_known_is_refused_by_name() {
    for name in [
        "default",
        "falcon",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-r1-qwen",
        "qwen35",
        "gemma",
        "gpt-4o",
        "llama4",
        "LLAMA-BPE",
        "",
    ] {
        let error = refused(|file| file.set("tokenizer.ggml.pre", 8, &text(name)));
        assert!(error.contains(&format!("`tokenizer.ggml.pre`: the pre-tokenizer `{name}` is not known")), "{error}");
    }
}

#[test]
fn a_vocabulary_that_is_not_whole_is_refused() {
    let tokens = |values: &[&str]| {
        refused(|file| {
            file.remove("tokenizer.ggml.tokens");
            file.texts("tokenizer.ggml.tokens", values);
        })
    };
    assert!(tokens(&["a", "b", "a"]).contains("`tokenizer.ggml.tokens`: 0 and 2 are the same token, `a`"));
    assert!(tokens(&["a", "b\0"]).contains("`tokenizer.ggml.tokens`: entry 1 ends with a zero byte"));
    assert!(tokens(&["a", &"b".repeat(5000)]).contains("`tokenizer.ggml.tokens`: token 1 has 5000 bytes"));
    let kinds = [&5u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1i32.to_le_bytes()].concat();
    let error = refused(|file| file.set("tokenizer.ggml.token_type", 9, &kinds));
    assert!(error.contains("`tokenizer.ggml.token_type`: 1 kinds for 4 tokens"), "{error}");
    let invalid = [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1u64.to_le_bytes(), &[0xff]].concat();
    let error = refused(|file| file.set("tokenizer.ggml.tokens", 9, &invalid));
    assert!(error.contains("`tokenizer.ggml.tokens`: entry 0 is not UTF-8"), "{error}");
    let error = refused(|file| {
        file.remove("tokenizer.ggml.merges");
        file.texts("tokenizer.ggml.merges", &["ab"]);
    });
    assert!(error.contains("`tokenizer.ggml.merges`: expected two tokens with a space between them"), "{error}");
    let error = refused(|file| file.set("tokenizer.ggml.model", 8, &text("llama")));
    assert!(error.contains("`tokenizer.ggml.scores`: 0 scores for 4 tokens"), "{error}");
}
