//! Writes GGUF files for tests.

use std::path::{Path, PathBuf};

/// The format's type numbers of values.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// The alignment of the tensors' data, in bytes.
const ALIGNMENT: usize = 32;

/// Type numbers of tensors that are not in blocks.
pub(super) mod plain {
    pub(in crate::gguf) const F32: u32 = 0;
    pub(in crate::gguf) const F16: u32 = 1;
    pub(in crate::gguf) const BF16: u32 = 30;
}

/// A file under construction.
#[derive(Clone, Default)]
pub(super) struct GgufWriter {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

#[derive(Clone)]
struct Tensor {
    name: String,
    /// The slowest axis first.
    shape: Vec<usize>,
    of: u32,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl GgufWriter {
    /// A Llama with one layer and no tensors, and four tokens.
    pub(super) fn llama() -> Self {
        let mut file = Self::default();
        file.text("general.architecture", "llama");
        for (key, number) in [
            ("context_length", 64),
            ("embedding_length", 8),
            ("block_count", 1),
            ("feed_forward_length", 4),
            ("attention.head_count", 2),
        ] {
            file.u32(&format!("llama.{key}"), number);
        }
        file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        file.tokens();
        file
    }

    /// Adds a tokenizer for files whose texts do not matter.
    pub(super) fn tokens(&mut self) {
        self.text("tokenizer.ggml.model", "gpt2");
        self.text("tokenizer.ggml.pre", "gpt-2");
        self.texts("tokenizer.ggml.tokens", &["a", "b", "c", "ab"]);
        self.texts("tokenizer.ggml.merges", &["a b"]);
    }

    /// Adds a key of any type, with the bytes of its value.
    pub(super) fn raw(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys.push([&text(key)[..], &kind.to_le_bytes(), value].concat());
    }

    pub(super) fn u32(&mut self, key: &str, value: u32) {
        self.raw(key, U32, &value.to_le_bytes());
    }

    pub(super) fn f32(&mut self, key: &str, value: f32) {
        self.raw(key, F32, &value.to_le_bytes());
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.raw(key, TEXT, &text(value));
    }

    pub(super) fn texts(&mut self, key: &str, values: &[&str]) {
        let mut list = [TEXT.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        values.iter().for_each(|value| list.extend(text(value)));
        self.raw(key, LIST, &list);
    }

    /// Sets the value of a key, replacing an earlier one.
    pub(super) fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.remove(key);
        self.raw(key, kind, value);
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &str) {
        let begins = text(key);
        self.keys.retain(|written| !written.starts_with(&begins));
    }

    /// How many tensors there are.
    pub(super) fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// A part of the file, as written by `gguf-split`: some of the tensors, and the keys in the first part only.
    pub(super) fn part(&self, part: usize, of: usize) -> Self {
        let share = self.tensors.len().div_ceil(of);
        let tensors = self.tensors.iter().skip(part * share).take(share).cloned().collect();
        Self { keys: if part == 0 { self.keys.clone() } else { Vec::new() }, tensors }
    }

    /// Adds a tensor. `shape` has the slowest axis first; the format has it last.
    pub(super) fn tensor(&mut self, name: &str, shape: &[usize], of: u32, data: Vec<u8>) {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), of, data });
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (mut directory, mut data) = (b"GGUF\x03\x00\x00\x00".to_vec(), Vec::new());
        directory.extend((self.tensors.len() as u64).to_le_bytes());
        directory.extend((self.keys.len() as u64).to_le_bytes());
        directory.extend(self.keys.concat());
        for tensor in &self.tensors {
            directory.extend(text(&tensor.name));
            directory.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|extent| directory.extend((*extent as u64).to_le_bytes()));
            directory.extend(tensor.of.to_le_bytes());
            directory.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        directory.resize(directory.len().next_multiple_of(ALIGNMENT), 0);
        [directory, data].concat()
    }

    /// Writes the file into a folder.
    pub(super) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}
