//! Tensors in safetensors files: one file, shards with an index, or bytes in memory.
//!
//! A tensor is read directly from the file into its own buffer, so peak memory is what the caller keeps plus one tensor.
//! Nothing is mapped into memory: a file that shrinks while it is read is an error, not a crash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::error::WeightsError;
use super::source::{TensorInfo, TensorSource};
use super::stored::{StoredTensor, StoredType};
use crate::files::{INDEX_FILE, SINGLE_FILE};
use spattn_base::disk::is_lfs_pointer;
use spattn_base::error::in_plain_words;
use spattn_base::given;
use spattn_hub::checksum::{Blob, sha256_hex, sha256_of_file};

/// The most bytes of an index.
const MOST_OF_INDEX: u64 = 256 << 20;

/// Opened safetensors files: the positions of all tensors, but not their contents.
#[derive(Debug)]
pub struct SafetensorsFiles {
    /// The file, index or label that names the whole in errors.
    label: String,
    parts: Vec<Part>,
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    /// The index of the file that it is in.
    part: usize,
    /// Offset of the tensor from the start of the file.
    start: u64,
    /// The format's own type of its numbers.
    dtype: Dtype,
    info: TensorInfo,
}

/// One safetensors file.
#[derive(Debug)]
enum Part {
    File(PathBuf),
    Memory(&'static [u8]),
}

impl SafetensorsFiles {
    /// Opens the weights in a folder: [`SINGLE_FILE`], or [`INDEX_FILE`] and its shards.
    ///
    /// # Errors
    /// If there are none, a shard is missing, or a file is truncated or malformed. All headers and file lengths are checked
    /// here; the numbers are not read.
    pub fn open_folder(folder: &Path) -> Result<Self, WeightsError> {
        let (single, index) = (folder.join(SINGLE_FILE), folder.join(INDEX_FILE));
        if single.is_file() {
            return Self::open_file(&single);
        }
        if index.is_file() {
            return Self::open_index(&index);
        }
        Err(WeightsError::NoWeights { folder: folder.to_owned() })
    }

    /// Opens one safetensors file. Errors as for [`open_folder`](Self::open_folder).
    pub fn open_file(path: &Path) -> Result<Self, WeightsError> {
        Self::of_parts(path.display().to_string(), vec![Part::File(path.to_owned())])
    }

    /// Opens the shards named by an index beside it. Errors as for [`open_folder`](Self::open_folder).
    pub fn open_index(index: &Path) -> Result<Self, WeightsError> {
        let label = index.display().to_string();
        let text =
            given::text(index, MOST_OF_INDEX).map_err(|source| WeightsError::Io { file: label.clone(), source })?;
        let names = shard_names(&text).map_err(|what| WeightsError::Malformed { file: label.clone(), what })?;
        let folder = index.parent().unwrap_or(Path::new(""));
        let shards: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        if let Some(shard) = shards.iter().find(|s| !s.is_file()) {
            return Err(WeightsError::MissingShard { shard: shard.clone(), index: index.to_owned() });
        }
        Self::of_parts(label, shards.into_iter().map(Part::File).collect())
    }

    /// Opens a safetensors file held in memory; `label` names it in errors.
    /// Errors as for [`open_folder`](Self::open_folder).
    pub fn from_bytes(label: &str, bytes: &'static [u8]) -> Result<Self, WeightsError> {
        Self::of_parts(label.to_owned(), vec![Part::Memory(bytes)])
    }

    fn of_parts(label: String, parts: Vec<Part>) -> Result<Self, WeightsError> {
        let mut tensors = BTreeMap::new();
        for (part, source) in parts.iter().enumerate() {
            let (data_start, header) = source.header(&label)?;
            for (name, info) in header.tensors() {
                let (from, to) = info.data_offsets;
                let start = data_start + from as u64;
                let dtype = info.dtype;
                let info =
                    TensorInfo { shape: info.shape.clone(), stored: stored_type(dtype), bytes: (to - from) as u64 };
                let earlier = tensors.insert(name.clone(), Place { part, start, dtype, info });
                if let Some(earlier) = earlier {
                    let others = parts[earlier.part].label(&label);
                    return Err(WeightsError::Malformed {
                        file: source.label(&label),
                        what: format!("the tensor `{name}` is in {others} as well"),
                    });
                }
            }
        }
        Ok(Self { label, parts, tensors })
    }

    /// The type that a tensor is stored in, even if its numbers cannot be read; `None` if there is no such tensor.
    pub(super) fn stored_as(&self, name: &str) -> Option<Dtype> {
        Some(self.tensors.get(name)?.dtype)
    }

    fn place(&self, name: &str) -> Result<&Place, WeightsError> {
        let missing = || WeightsError::MissingTensor { file: self.label.clone(), name: name.to_owned() };
        self.tensors.get(name).ok_or_else(missing)
    }

    /// `len` bytes of a tensor, from byte `at` on.
    fn bytes_of(&self, place: &Place, at: u64, len: usize) -> Result<Vec<u8>, WeightsError> {
        let part = &self.parts[place.part];
        let read = part.read(place.start + at, len);
        read.map_err(|source| WeightsError::Io { file: part.label(&self.label), source })
    }
}

impl TensorSource for SafetensorsFiles {
    fn label(&self) -> &str {
        &self.label
    }

    fn file_of(&self, name: &str) -> String {
        self.tensors.get(name).map_or_else(|| self.label.clone(), |place| self.parts[place.part].label(&self.label))
    }

    fn files(&self) -> Vec<&Path> {
        let mut files = Vec::new();
        for part in &self.parts {
            if let Part::File(path) = part {
                files.push(path.as_path());
            }
        }
        files
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.tensors.get(name)?.info)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let place = self.place(name)?;
        let dtype = place.info.readable_as(name, shape, || self.file_of(name))?;
        let bytes = self.bytes_of(place, 0, place.info.bytes as usize)?;
        Ok(StoredTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// Reads only the part.
    fn read_part(
        &self,
        name: &str,
        whole: &[usize],
        first: usize,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        let place = self.place(name)?;
        let dtype = place.info.readable_as(name, whole, || self.file_of(name))?;
        let (start, len) = (dtype.bytes_of(first), dtype.bytes_of(shape.iter().product()));
        assert!((start + len) as u64 <= place.info.bytes, "a part of `{name}`");
        Ok(StoredTensor { dtype, shape: shape.to_vec(), bytes: self.bytes_of(place, start as u64, len)? })
    }

    fn read_bytes(&self, name: &str, first: u64, len: usize) -> Result<Vec<u8>, WeightsError> {
        let place = self.place(name)?;
        assert!(first + len as u64 <= place.info.bytes, "bytes of `{name}`");
        self.bytes_of(place, first, len)
    }

    fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        let [a, b] = [self.place(one)?, self.place(other)?];
        if a.info.shape != b.info.shape {
            return Ok(false);
        }
        if a.info.stored != b.info.stored {
            let shape = &a.info.shape;
            return Ok(self.read(one, shape)?.to_f32() == self.read(other, shape)?.to_f32());
        }
        // Bytes are compared piece by piece, since embedding tables are large.
        const PIECE: u64 = 1 << 22;
        let bytes = a.info.bytes;
        for at in (0..bytes).step_by(PIECE as usize) {
            let len = PIECE.min(bytes - at) as usize;
            if self.bytes_of(a, at, len)? != self.bytes_of(b, at, len)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The SHA-256 of the file; for shards, that of their SHA-256s (hexadecimal, joined in order of the file names).
    fn sha256(&self) -> Result<String, WeightsError> {
        let digests: Vec<String> = self.parts.par_iter().map(Part::sha256).collect::<Result<_, _>>()?;
        Ok(match digests.as_slice() {
            [one] => one.clone(),
            many => sha256_hex(many.concat().as_bytes()),
        })
    }
}

/// The SHA-256 of a file with weights.
///
/// # Errors
/// If it cannot be read, or is in the hub's cache under the name of another hash.
pub(crate) fn sha256_of_part(path: &Path) -> Result<String, WeightsError> {
    let file = path.display().to_string();
    let got = sha256_of_file(path).map_err(|source| WeightsError::Io { file: file.clone(), source })?;
    match Blob::behind(path) {
        Some(blob) if blob.is_sha256() && blob.name != got => {
            Err(WeightsError::Damaged { file, got, expected: blob.name, blob: blob.path })
        }
        _ => Ok(got),
    }
}

/// The type as one that can be read; for other types their name.
fn stored_type(dtype: Dtype) -> Result<StoredType, String> {
    match dtype {
        Dtype::F32 => Ok(StoredType::F32),
        Dtype::F16 => Ok(StoredType::F16),
        Dtype::BF16 => Ok(StoredType::Bf16),
        other => Err(format!("{other:?}")),
    }
}

/// The file names in an index, sorted, each once.
///
/// # Errors
/// What is wrong with the index, for a message that begins with its name.
pub fn shard_names(index: &str) -> Result<Vec<String>, String> {
    if is_lfs_pointer(index.as_bytes()) {
        return Err("a Git LFS pointer, not the file itself (run `git lfs pull` in that folder)".to_owned());
    }
    let json: serde_json::Value = serde_json::from_str(index).map_err(|e| format!("not valid JSON: {e}"))?;
    let map = json.get("weight_map").and_then(|m| m.as_object()).ok_or("no object `weight_map`")?;
    let mut names = Vec::new();
    for (tensor, file) in map {
        let file = file.as_str().ok_or_else(|| format!("`weight_map.{tensor}`: expected a file name, got {file}"))?;
        // A name with a separator could point anywhere on the disk.
        if file.is_empty() || file.contains(['/', '\\']) {
            return Err(format!("`weight_map.{tensor}`: `{file}` is not a plain file name"));
        }
        names.push(file.to_owned());
    }
    names.sort();
    names.dedup();
    if names.is_empty() { Err("`weight_map` is empty".to_owned()) } else { Ok(names) }
}

impl Part {
    fn label(&self, whole: &str) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Memory(_) => whole.to_owned(),
        }
    }

    fn size(&self) -> io::Result<u64> {
        match self {
            Self::File(path) => Ok(std::fs::metadata(path)?.len()),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn read(&self, start: u64, len: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::File(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                let mut bytes = vec![0; len];
                file.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            Self::Memory(all) => {
                let range = usize::try_from(start).ok().and_then(|s| all.get(s..s.checked_add(len)?));
                range.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
        }
    }

    fn sha256(&self) -> Result<String, WeightsError> {
        match self {
            Self::Memory(bytes) => Ok(sha256_hex(bytes)),
            Self::File(path) => sha256_of_part(path),
        }
    }

    /// The offset of the first tensor's bytes, and the position of each tensor relative to it.
    fn header(&self, whole: &str) -> Result<(u64, Metadata), WeightsError> {
        let file = self.label(whole);
        let io = |source| WeightsError::Io { file: file.clone(), source };
        let malformed = |what: String| WeightsError::Malformed { file: file.clone(), what };
        let require = |size: u64, needed: u64| match needed.checked_sub(size) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(WeightsError::Truncated { file: file.clone(), missing }),
        };
        let size = self.size().map_err(io)?;
        require(size, LENGTH_FIELD)?;
        let prefix: Vec<u8> = self.read(0, LENGTH_FIELD as usize).map_err(io)?;
        let header_len = prefix.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        if header_len > LONGEST_HEADER {
            return Err(malformed(not_safetensors(&prefix)));
        }
        let data_start = LENGTH_FIELD + header_len;
        require(size, data_start)?;
        let header = self.read(LENGTH_FIELD, header_len as usize).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| malformed(format!("bad header: {}", in_plain_words(&e.to_string()))))?;
        let end = data_start + header.data_len() as u64;
        require(size, end)?;
        if size > end {
            return Err(malformed(format!("{} bytes more than its header says", size - end)));
        }
        Ok((data_start, header))
    }
}

/// Bytes of the length field before the header.
const LENGTH_FIELD: u64 = 8;
/// The format's own limit for the header.
const LONGEST_HEADER: u64 = 100_000_000;

/// Kinds of other files, recognised by their first bytes, and what to do about them.
const OTHER_KINDS: [(&[u8], &str); 8] = [
    (b"version ", "a Git LFS pointer, not the weights themselves (run `git lfs pull` in that folder)"),
    (b"GGUF", "GGUF weights of llama.cpp under another name; give them as a file whose name ends with .gguf"),
    (b"PK\x03\x04", "weights in PyTorch's pickle format under another name; save the model with `save_pretrained`"),
    (b"\x80\x02", "weights in PyTorch's pickle format under another name; save the model with `save_pretrained`"),
    (b"\x89HDF", "weights of TensorFlow under another name; save the model with transformers' `save_pretrained`"),
    (b"\x1f\x8b", "compressed by gzip; unpack it"),
    (b"<!DOC", "a web page, not the weights: fetch the file itself"),
    (b"<html", "a web page, not the weights: fetch the file itself"),
];

fn not_safetensors(prefix: &[u8]) -> String {
    let kind = OTHER_KINDS.iter().find(|(begins, _)| prefix.starts_with(begins));
    match kind {
        Some((_, what)) => format!("not a safetensors file, but {what}"),
        None => "not a safetensors file".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::tensors::{WeightDtype, Weights};

    fn leaked(header: &str, data: &[u8]) -> &'static [u8] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes.leak()
    }

    fn open(bytes: &'static [u8]) -> Result<Weights, WeightsError> {
        Weights::from_bytes("mem", bytes)
    }

    const PAIR: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}"#;

    fn pair_data() -> Vec<u8> {
        let mut data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        data.extend([0.5f32, 3.0].iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
        data
    }

    #[test]
    fn tensors_come_back_in_every_type() {
        let weights = open(leaked(PAIR, &pair_data())).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(weights.total_bytes(), 12);
        let (a, b) = (weights.read("a", &[2]).unwrap(), weights.read("b", &[1, 2]).unwrap());
        assert_eq!(a.to_f32(), [1.5, -2.0]);
        assert_eq!(a.to_f16(), [f16::from_f32(1.5), f16::from_f32(-2.0)]);
        assert_eq!(a.to_bf16(), [bf16::from_f32(1.5), bf16::from_f32(-2.0)]);
        assert_eq!((b.dtype, b.to_f32()), (StoredType::Bf16, vec![0.5, 3.0]));
        assert_eq!(b.to_f16(), [f16::from_f32(0.5), f16::from_f32(3.0)]);
    }

    #[test]
    fn a_tensor_can_be_read_as_several() {
        let numbers: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let data: Vec<u8> = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        let bytes = leaked(r#"{"all":{"dtype":"BF16","shape":[2,3,2],"data_offsets":[0,24]}}"#, &data);
        let mut weights = open(bytes).unwrap();
        let whole = weights.total_bytes();
        let parts = [("0.a", [1, 2]), ("0.b", [2, 2]), ("1.a", [1, 2]), ("1.b", [2, 2])];
        weights.divide("all", parts.map(|(name, shape)| (name.to_owned(), shape.to_vec())));
        assert_eq!(weights.names().collect::<Vec<_>>(), ["0.a", "0.b", "1.a", "1.b"]);
        assert_eq!((weights.total_bytes(), weights.shape("1.b")), (whole, Some(&[2, 2][..])));
        let mut first = 0;
        for (name, shape) in parts {
            let count = shape[0] * shape[1];
            let expected = &numbers[first..][..count];
            assert_eq!(weights.read_for(name, &shape, WeightDtype::F32).unwrap().to_f32(), expected, "{name}");
            first += count;
        }
        let error = weights.read("1.b", &[4, 1]).unwrap_err().to_string();
        assert!(error.contains("1.b") && error.contains("[2, 2]"), "{error}");

        // Uses the default implementation of partial reads.
        #[derive(Debug)]
        struct Whole(SafetensorsFiles);
        impl TensorSource for Whole {
            fn label(&self) -> &str {
                self.0.label()
            }
            fn names(&self) -> Vec<&str> {
                self.0.names()
            }
            fn tensor(&self, name: &str) -> Option<&TensorInfo> {
                self.0.tensor(name)
            }
            fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
                self.0.read(name, shape)
            }
            fn sha256(&self) -> Result<String, WeightsError> {
                self.0.sha256()
            }
        }
        let files = SafetensorsFiles::from_bytes("mem", bytes).unwrap();
        let part = |source: &dyn TensorSource| source.read_part("all", &[2, 3, 2], 8, &[2, 2]).unwrap();
        assert_eq!(part(&files).to_f32(), numbers[8..]);
        assert_eq!(part(&Whole(files)).to_f32(), numbers[8..]);
    }

    #[test]
    fn faults_are_one_line_with_the_file() {
        let full = leaked(PAIR, &pair_data());
        let message = |bytes: &'static [u8]| open(bytes).unwrap_err().to_string();
        assert_eq!(message(&full[..full.len() - 5]), "mem: truncated: 5 bytes are missing");
        assert_eq!(message(&full[..20]), format!("mem: truncated: {} bytes are missing", PAIR.len() - 12));
        assert_eq!(message(&full[..3]), "mem: truncated: 5 bytes are missing");
        assert_eq!(message(b"{\"hello\": 1}"), "mem: not a safetensors file");
        assert!(message(b"version https://git-lfs").contains("Git LFS pointer"));
        assert!(message(leaked("{]", &[])).starts_with("mem: bad header: "));
        let weights = open(full).unwrap();
        let failed = |name, shape: &[usize]| weights.read(name, shape).unwrap_err().to_string();
        assert_eq!(failed("c", &[2]), "mem: no tensor `c`");
        assert_eq!(failed("a", &[2, 1]), "mem: tensor `a` has shape [2], expected [2, 1]");
        let int8 = leaked(r#"{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#, &[0, 0]);
        let unsupported = open(int8).unwrap().read("a", &[2]).unwrap_err().to_string();
        assert_eq!(unsupported, "mem: tensor `a` holds I8; only F32, F16 and BF16 can be read");
    }

    #[test]
    fn files_of_other_kinds_are_called_by_their_names() {
        for (begins, said) in [
            (&b"GGUF\x03\0\0\0\x10\0\0\0"[..], "GGUF"),
            (b"PK\x03\x04\0\0\x08\x08\0\0", "PyTorch's pickle format"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "PyTorch's pickle format"),
            (b"\x89HDF\r\n\x1a\n\0", "TensorFlow"),
            (b"\x1f\x8b\x08\x08\xa0\xb1\xc2\x66\0", "gzip"),
            (b"<!DOCTYPE html><html>", "a web page"),
        ] {
            let error = open(begins).unwrap_err().to_string();
            assert!(error.starts_with("mem: not a safetensors file, but ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn an_index_names_plain_files_once() {
        let index = r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#;
        assert_eq!(shard_names(index).unwrap(), ["a.safetensors", "b.safetensors"]);
        let escape = r#"{"weight_map": {"x": "../b.safetensors"}}"#;
        assert_eq!(shard_names(escape).unwrap_err(), "`weight_map.x`: `../b.safetensors` is not a plain file name");
        assert_eq!(shard_names("{}").unwrap_err(), "no object `weight_map`");
    }
}
