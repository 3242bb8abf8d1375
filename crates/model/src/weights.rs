//! Reading tensors from safetensors files: one file, shards with an index, or bytes in memory.
//!
//! A tensor is read from its place in the file straight into its own buffer, so peak memory is what
//! the caller keeps plus one tensor. Nothing is mapped into memory: a file that shrinks meanwhile is
//! an error, not a crash. Which tensors a model has and what they mean is the decoder's business.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::checksum::{Blob, sha256_hex, sha256_of_file};

use spattn_attention::kv::KvDtype;
use spattn_base::disk::is_lfs_pointer;
use spattn_base::given;

use spattn_base::error::in_plain_words;

/// File name of weights in one piece.
pub const SINGLE_FILE: &str = "model.safetensors";
/// File name of the index of weights in shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Bytes of it at most.
const MOST_OF_INDEX: u64 = 256 << 20;

/// What can be wrong with weights; each is one line with the file.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A folder holds neither a single file nor an index.
    #[error("{}: no {SINGLE_FILE} and no {INDEX_FILE} in this folder", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A shard that the index names is not there.
    #[error("{}: missing; {} lists it as a shard", shard.display(), index.display())]
    MissingShard {
        /// Where the shard should be.
        shard: PathBuf,
        /// The index that names it.
        index: PathBuf,
    },
    /// A file could not be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file ends before its header says it should.
    #[error("{file}: truncated: {missing} bytes are missing")]
    Truncated {
        /// The file.
        file: String,
        /// Bytes that are missing, at least.
        missing: u64,
    },
    /// A file of the hub's cache, where names are hashes, has another hash.
    #[error("{file}: damaged: its SHA-256 is {got}, that of the published file {expected}")]
    Damaged {
        /// The file.
        file: String,
        /// Its hash.
        got: String,
        /// The hash that it is named by.
        expected: String,
        /// Where it really is.
        blob: PathBuf,
    },
    /// A file or index is not what its name says.
    #[error("{file}: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The checkpoint does not have a tensor.
    #[error("{file}: no tensor `{name}`")]
    MissingTensor {
        /// The file, or the index of the shards.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A tensor's shape is not what the config implies.
    #[error("{file}: tensor `{name}` has shape {got:?}, expected {expected:?}")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Shape by the config.
        expected: Vec<usize>,
    },
    /// A tensor holds numbers that are not read, such as quantised ones.
    #[error("{file}: tensor `{name}` holds {dtype:?}; only F32, F16 and BF16 can be read")]
    UnsupportedType {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
    },
    /// A tensor holds a NaN or an infinite number.
    #[error("{file}: tensor `{name}` holds {value} at {at:?}: the checkpoint is broken")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// Where, by axis.
        at: Vec<usize>,
    },
    /// A tensor holds a number that the type it is to be kept in cannot.
    #[error("{file}: tensor `{name}` holds {value}, beyond what {dtype} can hold; take --dtype bf16 or f32")]
    TooLarge {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// The type.
        dtype: &'static str,
    },
}

/// Number format of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// bfloat16.
    Bf16,
}

impl WeightType {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// A tensor as it is stored: row-major, little-endian.
#[derive(Debug, Clone)]
pub struct RawTensor {
    /// Number format of `bytes`.
    pub dtype: WeightType,
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// The numbers.
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers as `f32`; exact from every stored type.
    pub fn to_f32(&self) -> Vec<f32> {
        self.convert(|bytes, out| widen(self.dtype, bytes, out))
    }

    /// The numbers as `f16`, rounded to nearest; what exceeds its range (±65504) becomes infinite.
    pub fn to_f16(&self) -> Vec<f16> {
        self.convert(|bytes, out: &mut [f16]| match self.dtype {
            WeightType::F16 => copy(bytes, out, f16::from_le_bytes),
            _ => out.convert_from_f32_slice(&widened(self.dtype, bytes, out.len())),
        })
    }

    /// The numbers as `bf16`, rounded to nearest.
    pub fn to_bf16(&self) -> Vec<bf16> {
        self.convert(|bytes, out: &mut [bf16]| match self.dtype {
            WeightType::Bf16 => copy(bytes, out, bf16::from_le_bytes),
            _ => out.convert_from_f32_slice(&widened(self.dtype, bytes, out.len())),
        })
    }

    /// The first number whose size is not below `limit`, NaN among them, and its place.
    pub fn first_beyond(&self, limit: f32) -> Option<(usize, f32)> {
        const BLOCK: usize = 1 << 14;
        let blocks = self.bytes.par_chunks(BLOCK * self.dtype.bytes()).enumerate();
        let found = blocks.filter_map(|(block, bytes)| {
            let mut values = vec![0.0; bytes.len() / self.dtype.bytes()];
            widen(self.dtype, bytes, &mut values);
            // Not being below is what NaN has in common with what is too large.
            let at = values.iter().position(|value| value.abs().partial_cmp(&limit) != Some(Ordering::Less))?;
            Some((block * BLOCK + at, values[at]))
        });
        found.min_by_key(|(at, _)| *at)
    }

    /// Converts in blocks that stay in the cache, on all threads: a checkpoint is gigabytes.
    fn convert<T: Copy + Default + Send>(&self, block: impl Fn(&[u8], &mut [T]) + Sync) -> Vec<T> {
        const BLOCK: usize = 1 << 14;
        let mut out = vec![T::default(); self.len()];
        let bytes = self.bytes.par_chunks(BLOCK * self.dtype.bytes());
        out.par_chunks_mut(BLOCK).zip(bytes).for_each(|(out, bytes)| block(bytes, out));
        out
    }
}

fn copy<T, const N: usize>(bytes: &[u8], out: &mut [T], convert: impl Fn([u8; N]) -> T) {
    for (out, word) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = convert(*word);
    }
}

fn widen(dtype: WeightType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        WeightType::F32 => copy(bytes, out, f32::from_le_bytes),
        WeightType::Bf16 => copy(bytes, out, |word| bf16::from_le_bytes(word).to_f32()),
        WeightType::F16 => {
            let mut halves = vec![f16::ZERO; out.len()];
            copy(bytes, &mut halves, f16::from_le_bytes);
            halves.convert_to_f32_slice(out);
        }
    }
}

fn widened(dtype: WeightType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut wide = vec![0.0; len];
    widen(dtype, bytes, &mut wide);
    wide
}

/// An opened checkpoint: where each tensor is, but not the tensors.
#[derive(Debug)]
pub struct Weights {
    /// The file, index or label that stands for the whole in errors.
    label: String,
    parts: Vec<Part>,
    tensors: BTreeMap<String, Place>,
    /// Numbers are drawn instead of read.
    seed: Option<u64>,
}

#[derive(Debug, Clone)]
struct Place {
    part: usize,
    /// Offset of the tensor from the start of the file.
    start: u64,
    info: TensorInfo,
}

/// One safetensors file.
#[derive(Debug)]
enum Part {
    File(PathBuf),
    Memory(&'static [u8]),
}

impl Weights {
    /// Opens the weights in a folder: [`SINGLE_FILE`], or [`INDEX_FILE`] and its shards.
    ///
    /// # Errors
    /// If there are none, a shard is missing, or a file is truncated or malformed. All headers and
    /// file lengths are checked here; the numbers are not read.
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
                let start = data_start + info.data_offsets.0 as u64;
                let earlier = tensors.insert(name.clone(), Place { part, start, info: info.clone() });
                if let Some(earlier) = earlier {
                    let others = parts[earlier.part].label(&label);
                    return Err(WeightsError::Malformed {
                        file: source.label(&label),
                        what: format!("the tensor `{name}` is in {others} as well"),
                    });
                }
            }
        }
        Ok(Self { label, parts, tensors, seed: None })
    }

    /// Weights of any shape that are drawn from a seed: every tensor that is asked for is there. Those of matrices lie evenly
    /// between bounds that keep the size of what passes them; norms weigh everything alike, biases are zero.
    pub fn random(seed: u64) -> Self {
        Self {
            label: format!("random weights, seed {seed}"),
            parts: Vec::new(),
            tensors: BTreeMap::new(),
            seed: Some(seed),
        }
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensors.get(name)?.info.shape)
    }

    /// What stands for the whole in errors: the file, or the index.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether numbers are drawn instead of read.
    pub fn is_drawn(&self) -> bool {
        self.seed.is_some()
    }

    /// Whether there is a tensor of this name whose type can be read.
    pub fn is_readable(&self, name: &str) -> bool {
        self.tensors.get(name).is_some_and(|place| WeightType::of(place.info.dtype).is_some())
    }

    /// Lets a tensor be read by another name as well, if it is there.
    pub fn alias(&mut self, name: &str, other: &str) {
        if let Some(place) = self.tensors.get(name).cloned() {
            self.tensors.insert(other.to_owned(), place);
        }
    }

    /// Whether two tensors have the same shape and numbers.
    ///
    /// # Errors
    /// If one of them is not there, or cannot be read.
    pub fn are_equal(&self, one: &str, other: &str) -> Result<bool, WeightsError> {
        let [a, b] = [self.place(one)?, self.place(other)?];
        if a.info.shape != b.info.shape {
            return Ok(false);
        }
        if a.info.dtype != b.info.dtype {
            let shape = &a.info.shape;
            return Ok(self.read(one, shape)?.to_f32() == self.read(other, shape)?.to_f32());
        }
        // Bytes, piece by piece: tables of a vocabulary are large.
        const PIECE: usize = 1 << 22;
        let bytes = a.info.data_offsets.1 - a.info.data_offsets.0;
        let piece = |place: &Place, at: usize| {
            let part = &self.parts[place.part];
            let read = part.read(place.start + at as u64, PIECE.min(bytes - at));
            read.map_err(|source| WeightsError::Io { file: part.label(&self.label), source })
        };
        for at in (0..bytes).step_by(PIECE) {
            if piece(a, at)? != piece(b, at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn place(&self, name: &str) -> Result<&Place, WeightsError> {
        let missing = || WeightsError::MissingTensor { file: self.label.clone(), name: name.to_owned() };
        self.tensors.get(name).ok_or_else(missing)
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        let bytes = |p: &Place| (p.info.data_offsets.1 - p.info.data_offsets.0) as u64;
        self.tensors.values().map(bytes).sum()
    }

    /// Reads one tensor. May be called from several threads at once.
    ///
    /// # Errors
    /// If it is not there, its shape is not `expected`, its type cannot be read, or reading fails.
    pub fn read(&self, name: &str, expected: &[usize]) -> Result<RawTensor, WeightsError> {
        if let Some(seed) = self.seed {
            return Ok(drawn(seed, name, expected));
        }
        let place = self.place(name)?;
        let part = &self.parts[place.part];
        let file = part.label(&self.label);
        if place.info.shape != expected {
            let (got, expected) = (place.info.shape.clone(), expected.to_vec());
            return Err(WeightsError::WrongShape { file, name: name.to_owned(), got, expected });
        }
        let Some(dtype) = WeightType::of(place.info.dtype) else {
            let dtype = place.info.dtype;
            return Err(WeightsError::UnsupportedType { file, name: name.to_owned(), dtype });
        };
        let len = place.info.data_offsets.1 - place.info.data_offsets.0;
        let bytes = part.read(place.start, len).map_err(|source| WeightsError::Io { file, source })?;
        Ok(RawTensor { dtype, shape: place.info.shape.clone(), bytes })
    }

    /// As [`read`](Self::read), of numbers that are all finite and that `dtype` can hold.
    ///
    /// # Errors
    /// As there; [`WeightsError::NotFinite`], [`WeightsError::TooLarge`].
    pub fn read_for(&self, name: &str, expected: &[usize], dtype: KvDtype) -> Result<RawTensor, WeightsError> {
        /// From here on numbers round to an infinite f16.
        const F16_LIMIT: f32 = 65_520.0;
        let tensor = self.read(name, expected)?;
        let limit = if dtype == KvDtype::F16 { F16_LIMIT } else { f32::INFINITY };
        let Some((place, value)) = tensor.first_beyond(limit) else { return Ok(tensor) };
        let file = self.parts[self.tensors[name].part].label(&self.label);
        let name = name.to_owned();
        if value.is_finite() {
            return Err(WeightsError::TooLarge { file, name, value, dtype: dtype.name() });
        }
        let mut rest = place;
        let mut at: Vec<usize> = (tensor.shape.iter().rev())
            .map(|extent| {
                let index = rest % extent;
                rest /= extent;
                index
            })
            .collect();
        at.reverse();
        Err(WeightsError::NotFinite { file, name, value, at })
    }

    /// Identity of the weights in hexadecimal: the SHA-256 of the file, or for shards that of their
    /// SHA-256s (hexadecimal, joined in the order of the file names). Reads everything once.
    ///
    /// # Errors
    /// If a file cannot be read, or is one of the hub's cache and not what its name there says.
    pub fn sha256(&self) -> Result<String, WeightsError> {
        if self.seed.is_some() {
            return Ok(sha256_hex(self.label.as_bytes()));
        }
        let digests: Vec<String> = self.parts.par_iter().map(|p| p.sha256(&self.label)).collect::<Result<_, _>>()?;
        Ok(match digests.as_slice() {
            [one] => one.clone(),
            many => sha256_hex(many.concat().as_bytes()),
        })
    }
}

/// A tensor of [`Weights::random`], the same for the same seed, name and shape.
fn drawn(seed: u64, name: &str, shape: &[usize]) -> RawTensor {
    /// Numbers that one generator draws.
    const BLOCK: usize = 1 << 16;
    let len: usize = shape.iter().product();
    let mut numbers = vec![bf16::ZERO; len];
    match shape {
        [_, inputs] => {
            let bound = (3.0 / *inputs as f32).sqrt();
            let of_name = name.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
            numbers.par_chunks_mut(BLOCK).enumerate().for_each(|(block, numbers)| {
                let mut state = mix(of_name ^ block as u64);
                for number in numbers {
                    state = mix(state);
                    *number = bf16::from_f32(bound * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0));
                }
            });
        }
        _ if name.ends_with("bias") => {}
        _ => numbers.fill(bf16::ONE),
    }
    let bytes = numbers.par_iter().flat_map_iter(|number| number.to_le_bytes()).collect();
    RawTensor { dtype: WeightType::Bf16, shape: shape.to_vec(), bytes }
}

/// The next number of SplitMix64.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let once = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    twice ^ (twice >> 31)
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

    fn sha256(&self, whole: &str) -> Result<String, WeightsError> {
        let path = match self {
            Self::Memory(bytes) => return Ok(sha256_hex(bytes)),
            Self::File(path) => path,
        };
        let got = sha256_of_file(path).map_err(|source| WeightsError::Io { file: self.label(whole), source })?;
        match Blob::behind(path) {
            Some(blob) if blob.is_sha256() && blob.name != got => {
                Err(WeightsError::Damaged { file: self.label(whole), got, expected: blob.name, blob: blob.path })
            }
            _ => Ok(got),
        }
    }

    /// Offset of the first tensor's bytes, and where each tensor is relative to it.
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

/// Bytes of the length field in front of the header.
const LENGTH_FIELD: u64 = 8;
/// The format's own bound on the header.
const LONGEST_HEADER: u64 = 100_000_000;

/// Files of other kinds by the bytes that they begin with, and what to do about them.
const OTHER_KINDS: [(&[u8], &str); 8] = [
    (b"version ", "a Git LFS pointer, not the weights themselves (run `git lfs pull` in that folder)"),
    (b"GGUF", "GGUF weights of llama.cpp under another name; give the safetensors checkpoint that they were made from"),
    (b"PK\x03\x04", "weights as PyTorch pickles them, under another name; save the model with `save_pretrained`"),
    (b"\x80\x02", "weights as PyTorch pickles them, under another name; save the model with `save_pretrained`"),
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
    use super::*;

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
        assert_eq!((b.dtype, b.to_f32()), (WeightType::Bf16, vec![0.5, 3.0]));
        assert_eq!(b.to_f16(), [f16::from_f32(0.5), f16::from_f32(3.0)]);
    }

    #[test]
    fn blocks_come_back_in_order() {
        let values: Vec<f32> = (0..40_000).map(|i| (i % 2048) as f32).collect();
        let bytes = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let tensor = RawTensor { dtype: WeightType::F16, shape: vec![40, 1000], bytes };
        assert_eq!(tensor.to_f32(), values);
        assert!(tensor.to_bf16().iter().zip(&values).all(|(b, v)| *b == bf16::from_f32(*v)));
    }

    #[test]
    fn half_precision_is_exact_both_ways() {
        let values = [1.0f32, -0.333_251_95, 65504.0, 6.1e-5];
        let bytes = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let tensor = RawTensor { dtype: WeightType::F16, shape: vec![4], bytes };
        let back: Vec<f16> = tensor.to_f32().into_iter().map(f16::from_f32).collect();
        assert_eq!(back, tensor.to_f16());
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
            (b"PK\x03\x04\0\0\x08\x08\0\0", "PyTorch pickles them"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "PyTorch pickles them"),
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
