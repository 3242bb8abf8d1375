//! The files of a GGUF model: their tensor directories, and reading one tensor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};

use super::{directory, split};
use crate::tensors::{StoredTensor, StoredType};
use spattn_base::error::UsageError;
use spattn_kernels::quantised::BlockType;

/// Opened files, and where each tensor is.
#[derive(Debug)]
pub(super) struct GgufFiles {
    label: String,
    metadata: HashMap<String, Value>,
    parts: Vec<PathBuf>,
    tensors: BTreeMap<String, Place>,
}

/// A tensor within one of the files.
#[derive(Debug)]
pub(super) struct Place {
    part: usize,
    /// The file offset at which the data of all tensors begin.
    data_offset: u64,
    info: TensorInfo,
}

impl GgufFiles {
    /// Opens a file, and all other files of the same model if it was split.
    ///
    /// # Errors
    /// If a file is missing, cannot be read as GGUF ([`directory::check`]), has a tensor of an unsupported type, or belongs to another
    /// model; also the error of `check_architecture`, which gets the file and the architecture that it names.
    pub(super) fn open(
        path: &Path,
        check_architecture: impl Fn(&str, &str) -> Result<(), UsageError>,
    ) -> Result<Self, UsageError> {
        let read = |path: &Path| {
            let found = directory::check(path)?;
            // Checked first, since another quantisation of an unsupported model would not help.
            if let Some(name) = found.architecture {
                check_architecture(&path.display().to_string(), &name)?;
            }
            match found.unread {
                Some(error) => Err(error),
                None => content(path),
            }
        };
        let named = read(path)?;
        let Some(count) = split::count(path, &named.metadata)? else {
            let mut files = Self::empty(path, vec![path.to_owned()]);
            files.add(0, named)?;
            return Ok(files);
        };
        let parts = split::names(path, count)?;
        let mut files = Self::empty(path, parts.clone());
        let mut stated = None;
        for (part, path) in parts.iter().enumerate() {
            let content = read(path)?;
            stated = split::check(path, &content.metadata, part, count, stated)?;
            files.add(part, content)?;
        }
        split::check_tensors(files.label(), files.tensors.len(), stated)?;
        Ok(files)
    }

    fn empty(path: &Path, parts: Vec<PathBuf>) -> Self {
        Self { label: path.display().to_string(), metadata: HashMap::new(), parts, tensors: BTreeMap::new() }
    }

    /// Adds the contents of the file numbered `part`; the first file has the keys.
    fn add(&mut self, part: usize, content: Content) -> Result<(), UsageError> {
        if part == 0 {
            self.metadata = content.metadata;
        }
        for (name, info) in content.tensor_infos {
            let place = Place { part, data_offset: content.tensor_data_offset, info };
            if let Some(earlier) = self.tensors.insert(name.clone(), place) {
                let [one, other] = [part, earlier.part].map(|part| self.parts[part].display().to_string());
                return Err(UsageError::new(format!("{one}: the tensor `{name}` is in {other} as well"))
                    .hint("the files are parts of different models, or of different splittings of one"));
            }
        }
        Ok(())
    }

    /// The file that the user named.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Key-value pairs of the first file.
    pub(super) fn metadata(&self) -> &HashMap<String, Value> {
        &self.metadata
    }

    /// All files, in order.
    pub(super) fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// The path of the file that a tensor is in.
    pub(super) fn path_of(&self, place: &Place) -> &Path {
        &self.parts[place.part]
    }

    /// All tensors by their names in the files.
    pub(super) fn tensors(&self) -> &BTreeMap<String, Place> {
        &self.tensors
    }

    /// The quantised types that are widened when they are read, since the kernels do not support them.
    pub(super) fn widened_types(&self) -> BTreeSet<String> {
        let widened = self.tensors.values().filter(|place| known(place.info.ggml_dtype).is_none());
        widened.map(Place::stored_type).collect()
    }

    /// Reads a tensor as it is stored; types that the kernels do not support are widened to f32.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub(super) fn read(&self, place: &Place) -> std::io::Result<StoredTensor> {
        let path = &self.parts[place.part];
        let shape = place.shape();
        let (dtype, bytes) = match known(place.info.ggml_dtype) {
            Some(dtype) => (dtype, place.read_bytes(path)?),
            None => (StoredType::F32, place.dequantised(path)?),
        };
        Ok(StoredTensor { dtype, shape, bytes })
    }

    /// Like [`read`](Self::read), for the part of shape `shape` that starts at number `first`; `None` if it does not consist of whole
    /// blocks.
    pub(super) fn read_part(
        &self,
        place: &Place,
        first: usize,
        shape: &[usize],
    ) -> Option<std::io::Result<StoredTensor>> {
        let range = place.bytes_of(first, shape.iter().product())?;
        let path = &self.parts[place.part];
        let read = |(start, len)| {
            let bytes = place.read_range(path, start, len)?;
            let (dtype, bytes) = match known(place.info.ggml_dtype) {
                Some(dtype) => (dtype, bytes),
                None => (StoredType::F32, widened(place.info.ggml_dtype, &bytes, shape)?),
            };
            Ok(StoredTensor { dtype, shape: shape.to_vec(), bytes })
        };
        Some(read(range))
    }
}

impl Place {
    /// The extent of each axis, slowest first. (Files have the fastest first; candle reverses them.)
    pub(super) fn shape(&self) -> Vec<usize> {
        self.info.shape.dims().to_vec()
    }

    /// The type that a tensor is read as: f32 for types that the kernels do not support.
    pub(super) fn read_type(&self) -> StoredType {
        known(self.info.ggml_dtype).unwrap_or(StoredType::F32)
    }

    /// llama.cpp's name for the type.
    pub(super) fn stored_type(&self) -> String {
        type_name(self.info.ggml_dtype)
    }

    /// Whether numbers are stored in blocks with a common scale.
    pub(super) fn is_quantised(&self) -> bool {
        self.info.ggml_dtype.block_size() > 1
    }

    /// Its size in the file in bytes; `None` if that overflows.
    pub(super) fn bytes(&self) -> Option<u64> {
        let numbers = self.info.shape.dims().iter().try_fold(1usize, |all, extent| all.checked_mul(*extent))?;
        let blocks = numbers.div_ceil(self.info.ggml_dtype.block_size());
        u64::try_from(blocks.checked_mul(self.info.ggml_dtype.type_size())?).ok()
    }

    fn start(&self) -> u64 {
        self.data_offset.saturating_add(self.info.offset)
    }

    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        self.read_range(path, 0, self.bytes().unwrap_or(0) as usize)
    }

    fn read_range(&self, path: &Path, start: u64, len: usize) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.start().saturating_add(start)))?;
        let mut bytes = vec![0; len];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The position of `count` numbers from number `first` on, relative to the tensor's start: the first byte and the number of bytes.
    /// `None` if they are not whole blocks within the tensor.
    fn bytes_of(&self, first: usize, count: usize) -> Option<(u64, usize)> {
        let (block, bytes) = (self.info.ggml_dtype.block_size(), self.info.ggml_dtype.type_size());
        let is_whole = first.is_multiple_of(block) && count.is_multiple_of(block);
        let is_within = first.checked_add(count)? <= self.info.shape.elem_count();
        (is_whole && is_within).then_some(((first / block * bytes) as u64, count / block * bytes))
    }

    fn dequantised(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let read = || {
            let tensor = self.info.read(&mut file, self.data_offset, &Device::Cpu)?;
            tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()
        };
        let numbers = { read }().map_err(|error| std::io::Error::other(in_one_line(&error)))?;
        Ok(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }
}

/// The numbers of blocks in f32.
fn widened(dtype: GgmlDType, blocks: &[u8], shape: &[usize]) -> std::io::Result<Vec<u8>> {
    let read = || {
        let tensor = qtensor_from_ggml(dtype, blocks, shape.to_vec(), &Device::Cpu)?;
        tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()
    };
    let numbers = { read }().map_err(|error| std::io::Error::other(in_one_line(&error)))?;
    Ok(numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

/// llama.cpp's name for a type: candle has `Q4K` for `Q4_K`.
fn type_name(dtype: GgmlDType) -> String {
    let name = format!("{dtype:?}");
    match name.strip_suffix('K') {
        Some(bits) if !bits.ends_with('_') => format!("{bits}_K"),
        _ => name,
    }
}

/// The types that tensors are kept in: all except Q2_K, Q3_K and two that no model has (Q8_1, Q8_K).
fn known(dtype: GgmlDType) -> Option<StoredType> {
    let block_type = match dtype {
        GgmlDType::F32 => return Some(StoredType::F32),
        GgmlDType::F16 => return Some(StoredType::F16),
        GgmlDType::BF16 => return Some(StoredType::Bf16),
        GgmlDType::Q4_0 => BlockType::Q4_0,
        GgmlDType::Q4_1 => BlockType::Q4_1,
        GgmlDType::Q5_0 => BlockType::Q5_0,
        GgmlDType::Q5_1 => BlockType::Q5_1,
        GgmlDType::Q8_0 => BlockType::Q8_0,
        GgmlDType::Q4K => BlockType::Q4K,
        GgmlDType::Q5K => BlockType::Q5K,
        GgmlDType::Q6K => BlockType::Q6K,
        GgmlDType::Q2K | GgmlDType::Q3K | GgmlDType::Q8_1 | GgmlDType::Q8K => return None,
    };
    Some(StoredType::Blocks(block_type))
}

/// Reads the directory of a file that was already checked.
fn content(path: &Path) -> Result<Content, UsageError> {
    let label = path.display();
    let file = File::open(path).map_err(|error| UsageError::new(format!("{label}: {error}")))?;
    Content::read(&mut BufReader::new(file)).map_err(|error| {
        UsageError::new(format!("{label}: cannot be read as GGUF: {}", in_one_line(&error)))
            .hint("the file may be cut off or damaged: fetch it again")
    })
}

/// The error in one line, without the trace that candle adds in some builds.
fn in_one_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
