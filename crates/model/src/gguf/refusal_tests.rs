//! GGUF files that are damaged or have unsupported contents: each is refused with one line, quickly and in little memory.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::open;
use super::writer::{GgufWriter, plain};
use spattn_base::error::UsageError;

/// The error of a file.
fn refused(bytes: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = open(&path, "m".into()).unwrap_err().downcast::<UsageError>().unwrap();
    let told = format!("{} => {}", error.what, error.hint.unwrap_or_default());
    assert!(!told.contains('\n'), "{told}");
    told.replace(&format!("{}/", dir.path().display()), "")
}

/// A readable file, edited by `change`.
fn changed(change: impl Fn(&mut GgufWriter)) -> Vec<u8> {
    let mut file = GgufWriter::llama();
    file.tensor("token_embd.weight", &[4, 8], plain::F32, vec![0; 128]);
    change(&mut file);
    file.bytes()
}

#[test]
fn the_file_that_faults_are_put_in_is_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, changed(|_| {})).unwrap();
    let (texts, weights) = open(&path, "m".into()).unwrap();
    assert_eq!(texts.config().unwrap().vocab_size, 4);
    assert_eq!(weights.names().collect::<Vec<_>>(), ["model.embed_tokens.weight"]);
}

#[test]
fn containers_that_cannot_be_read_are_told_by_what_they_are() {
    let sound = changed(|_| {});
    let begins = |bytes: &[u8]| [bytes, &sound[bytes.len()..]].concat();
    for (bytes, said) in [
        (Vec::new(), "m.gguf: not a GGUF file"),
        (b"GGUF".to_vec(), "m.gguf: truncated after its name"),
        (begins(b"GGUF\x01\x00\x00\x00"), "m.gguf: version 1 of GGUF, which is not read"),
        (begins(b"GGUF\x00\x00\x00\x03"), "m.gguf: a GGUF file in big-endian byte order"),
        (begins(b"GGUF\x09\x00\x00\x00"), "m.gguf: version 9 of GGUF, which is not known"),
        (begins(b"FUGG\x03\x00\x00\x00"), "m.gguf: not a GGUF file"),
        (begins(b"tjgg\x03\x00\x00\x00"), "m.gguf: a GGML file, the format of llama.cpp before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "m.gguf: a Git LFS pointer"),
        (sound[..20].to_vec(), "truncated: its directory goes beyond its 20 bytes"),
        (sound[..sound.len() - 1].to_vec(), "truncated: the tensor `token_embd.weight` ends 1 bytes after the file"),
    ] {
        assert!(refused(&bytes).starts_with(said) || refused(&bytes).contains(said), "{said}: {}", refused(&bytes));
    }
}

#[test]
fn counts_beyond_all_reason_are_refused_before_memory_is_taken() {
    let with_counts = |tensors: u64, keys: u64| {
        let mut bytes = changed(|_| {});
        bytes[8..16].copy_from_slice(&tensors.to_le_bytes());
        bytes[16..24].copy_from_slice(&keys.to_le_bytes());
        bytes
    };
    let list = |kind: u32, length: u64| {
        changed(|file| file.raw("x", 9, &[&kind.to_le_bytes()[..], &length.to_le_bytes()].concat()))
    };
    let nested = |deep: usize| {
        let one = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat();
        changed(|file| file.raw("x", 9, &one.repeat(deep)))
    };
    for (bytes, said) in [
        (with_counts(u64::MAX, 1), "it says that it has 18446744073709551615 tensors"),
        (with_counts(1, 1 << 40), "it says that it has 1099511627776 keys"),
        (with_counts(90_000, 99_000), "truncated: its directory"),
        (list(0, u64::MAX), "`x`: a list of 18446744073709551615 entries"),
        (list(8, 7_000_000), "truncated: its directory"),
        (list(4, 7_000_000), "truncated: its directory"),
        (list(77, 1), "`x`: a value of the unknown kind 77"),
        (nested(100_000), "`x`: lists in lists deeper than 4"),
        (changed(|file| file.raw("x", 8, &u64::MAX.to_le_bytes())), "truncated: its directory"),
        (changed(|file| file.raw("x", 8, &(1u64 << 40).to_le_bytes())), "truncated: its directory"),
        (changed(|file| file.raw("x", 13, &[])), "`x`: a value of the unknown kind 13"),
        (changed(|file| file.u32("general.alignment", 0)), "`general.alignment`: expected a power of two"),
        (changed(|file| file.u32("general.alignment", 48)), "`general.alignment`: expected a power of two"),
        (changed(|file| file.u32("llama.context_length", 64)), "the key `llama.context_length` is there twice"),
    ] {
        assert!(refused(&bytes).contains(said), "{said}: {}", refused(&bytes));
    }
}

#[test]
fn a_file_with_holes_takes_no_memory_for_what_is_not_there() {
    // A list of a thousand million bytes, all of which are in a sparse file.
    let dir = TempDir::new().unwrap();
    let mut file = GgufWriter::llama();
    file.raw("x", 9, &[&0u32.to_le_bytes()[..], &(1u64 << 30).to_le_bytes()].concat());
    let path = file.write(dir.path(), "m.gguf");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 32).unwrap();
    let error = open(&path, "m".into()).unwrap_err().to_string();
    assert!(error.contains("`x`: a list of 1073741824 entries, and 8000000 are the most that are read"), "{error}");
    let mut file = GgufWriter::llama();
    file.raw("x", 8, &(1u64 << 31).to_le_bytes());
    let path = file.write(dir.path(), "m.gguf");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 32).unwrap();
    let error = open(&path, "m".into()).unwrap_err().to_string();
    assert!(error.contains("its directory is larger than 256 MB"), "{error}");
}

#[test]
fn tensors_that_cannot_be_are_refused_by_name() {
    let tensor = |shape: &[usize], of: u32, bytes: usize| changed(|file| file.tensor("t", shape, of, vec![0; bytes]));
    for (bytes, said) in [
        (
            tensor(&[2, 32], 20, 36),
            "the tensor `t` is stored as IQ4_NL, which cannot be read => give another quantisation",
        ),
        (tensor(&[2, 32], 39, 34), "the tensor `t` is stored as MXFP4"),
        (tensor(&[2, 256], 23, 272), "the tensor `t` is stored as IQ4_XS"),
        (tensor(&[2, 256], 15, 584), "the tensor `t` is stored as Q8_K"),
        (tensor(&[2], 999, 8), "the tensor `t` is stored as the unknown type 999"),
        (tensor(&[2, 16], 8, 34), "the tensor `t` has rows of 16 numbers, and Q8_0 has blocks of 32"),
        (tensor(&[2, 0], 0, 0), "the tensor `t` has no numbers"),
        (tensor(&[1, 1, 1, 1, 1], 0, 4), "the tensor `t` has 5 axes"),
        (tensor(&[usize::MAX, 2], 0, 4), "the tensor `t` is larger than can be"),
        (tensor(&[1 << 40, 256], 12, 144), "truncated: the tensor `t` ends"),
        (changed(|file| file.tensor("token_embd.weight", &[1], 0, vec![0; 4])), "`token_embd.weight` is there twice"),
    ] {
        assert!(refused(&bytes).contains(said), "{said}: {}", refused(&bytes));
    }
    // The offset is the last field of the only tensor.
    let sound = changed(|_| {});
    let at = sound.windows(17).position(|w| w == b"token_embd.weight").unwrap() + 17 + 4 + 16 + 4;
    for (offset, said) in
        [(7u64, "begins at no multiple of 32"), (1 << 20, "truncated: the tensor"), (u64::MAX - 31, "truncated")]
    {
        let mut bytes = sound.clone();
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        assert!(refused(&bytes).contains(said), "{said}: {}", refused(&bytes));
    }
    let mut bytes = changed(|file| file.tensor("zz", &[8], 0, vec![0; 32]));
    let at = bytes.windows(2).position(|w| w == b"zz").unwrap() + 2 + 4 + 8 + 4;
    bytes[at..at + 8].copy_from_slice(&32u64.to_le_bytes());
    assert!(refused(&bytes).contains("the tensor `zz` begins within another one"), "{}", refused(&bytes));
}

#[test]
fn what_a_file_says_of_the_model_is_read_or_refused() {
    let u32 = |key: &str, number: u32| changed(|file| file.set(key, 4, &number.to_le_bytes()));
    let f32 = |key: &str, number: f32| changed(|file| file.set(key, 6, &number.to_le_bytes()));
    let text = |key: &str, value: &str| {
        let value = [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat();
        changed(|file| file.set(key, 8, &value))
    };
    for (bytes, said) in [
        (
            text("general.architecture", "gpt-oss"),
            "`general.architecture`: `gpt-oss` is not supported in GGUF files => supported: llama, qwen2, qwen3, qwen3moe, ",
        ),
        (u32("general.architecture", 1), "`general.architecture`: expected a text, and it is a whole number"),
        (u32("llama.expert_count", 8), "no `llama.expert_used_count`"),
        (u32("llama.expert_gating_func", 2), "`llama.expert_gating_func`: 2 is not supported in models of `llama`"),
        (u32("llama.attention.head_count", 0), "`llama.attention.head_count`: a model has at least one head"),
        (
            f32("llama.context_length", 1.5),
            "`llama.context_length`: expected a whole number, and it is a number with a fraction",
        ),
        (
            u32("llama.rope.dimension_count", 2),
            "`llama.rope.dimension_count`: 2 of the 4 channels of a head are rotated",
        ),
        (
            f32("llama.attention.scale", 0.01),
            "`llama.attention.scale`: 0.01 is not supported in models of `llama` => give the safetensors",
        ),
        (f32("llama.logit_scale", 0.5), "`llama.logit_scale`: 0.5 is not supported"),
        (
            text("llama.rope.scaling.type", "longrope"),
            "`llama.rope.scaling.type`: `longrope` needs `llama.rope.scaling.factor`",
        ),
        (u32("adapter.type", 1), "`adapter.type`: the file is an adapter"),
        (text("tokenizer.ggml.model", "t5"), "`tokenizer.ggml.model`: the tokenizer `t5` is not supported"),
        (
            u32("tokenizer.ggml.bos_token_id", 4),
            "`tokenizer.ggml.bos_token_id`: there is no token 4, the vocabulary has 4",
        ),
        (changed(|file| file.texts("adapter.x", &["a"])), "`adapter.x`: the file is an adapter"),
    ] {
        assert!(refused(&bytes).contains(said), "{said}: {}", refused(&bytes));
    }
    let without = |key: &str| {
        let mut file = GgufWriter::llama();
        file.remove(key);
        file.bytes()
    };
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.attention.head_count",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        assert!(refused(&without(key)).starts_with(&format!("m.gguf: no `{key}` => ")), "{}", refused(&without(key)));
    }
    let pre = refused(&without("tokenizer.ggml.pre"));
    assert!(pre.contains("`tokenizer.ggml.pre`: the file does not name the pre-tokenizer"), "{pre}");
}

#[test]
fn keys_that_are_not_read_are_told() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    let bytes = changed(|file| {
        file.u32("llama.nextn_predict_layers", 1);
        file.u32("llama.rope.scaling.finetuned", 1);
        file.u32("general.quantization_version", 2);
    });
    std::fs::write(&path, bytes).unwrap();
    let notes = open(&path, "m".into()).unwrap().0.notes;
    assert_eq!(notes, [format!("{}: `llama.nextn_predict_layers` is not read", path.display())]);
}

#[test]
fn no_damage_makes_the_program_panic_or_hang() {
    let mut sound = GgufWriter::llama();
    sound.tensor("token_embd.weight", &[4, 8], plain::F32, vec![0; 128]);
    sound.tensor("blk.0.attn_q.weight", &[8, 32], 8, vec![1; 272]);
    sound.tensor("rope_freqs.weight", &[2], plain::F32, [1.0f32.to_le_bytes(), 8.0f32.to_le_bytes()].concat());
    let sound = sound.bytes();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = 1u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let extremes: [u64; 8] = [0, 1, 0xff, 0xffff_ffff, 1 << 31, 1 << 40, u64::MAX, i64::MAX as u64];
    let mut read = 0;
    for round in 0..4000 {
        let mut bytes = sound.clone();
        match round % 4 {
            0 => bytes.truncate(below(sound.len())),
            1 => bytes[below(sound.len())] ^= 1 << below(8),
            2 => {
                let (at, with) = (below(sound.len() - 8), extremes[below(extremes.len())].to_le_bytes());
                let width = [1, 2, 4, 8][below(4)];
                bytes[at..at + width].copy_from_slice(&with[..width]);
            }
            _ => {
                let (at, count) = (below(sound.len()), below(40));
                bytes.splice(at..(at + below(40)).min(sound.len()), std::iter::repeat_n(below(256) as u8, count));
            }
        }
        std::fs::write(&path, bytes).unwrap();
        match open(&path, "m".into()) {
            Err(error) => assert!(!error.to_string().trim().is_empty() && !error.to_string().contains('\n'), "{error}"),
            Ok((texts, weights)) => {
                read += 1;
                drop(texts.config());
                let shapes: BTreeMap<String, Vec<usize>> =
                    weights.names().map(|name| (name.to_owned(), weights.shape(name).unwrap().to_vec())).collect();
                shapes.iter().for_each(|(name, shape)| drop(weights.read(name, shape)));
            }
        }
    }
    assert!(read > 100, "{read} of 4000 damaged files were read");
}
