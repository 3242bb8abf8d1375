//! The files of a GGUF model: their directories of tensors, and reading one tensor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};

use crate::tensors::{StoredTensor, StoredType};
use spattn_base::disk::is_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;
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
    /// Where the data of all tensors begin in the file.
    data_offset: u64,
    info: TensorInfo,
}

impl GgufFiles {
    /// Opens a file, and all others of the same model if it was split.
    ///
    /// # Errors
    /// If a file is missing, is no GGUF, is truncated, or has a tensor of an unknown type.
    pub(super) fn open(path: &Path) -> Result<Self, UsageError> {
        let first = content(path)?;
        let count = first
            .metadata
            .get("split.count")
            .and_then(|count| count.to_u64().ok().or(count.to_u16().ok().map(u64::from)));
        let parts = match count {
            Some(count) if count > 1 => split_names(path, count)?,
            _ => vec![path.to_owned()],
        };
        let mut files = Self {
            label: path.display().to_string(),
            metadata: HashMap::new(),
            parts: parts.clone(),
            tensors: BTreeMap::new(),
        };
        for (part, path) in parts.iter().enumerate() {
            let content = content(path)?;
            if part == 0 {
                files.metadata = content.metadata;
            }
            files.add(part, path, content.tensor_data_offset, content.tensor_infos)?;
        }
        Ok(files)
    }

    fn add(
        &mut self,
        part: usize,
        path: &Path,
        data_offset: u64,
        infos: HashMap<String, TensorInfo>,
    ) -> Result<(), UsageError> {
        let size = std::fs::metadata(path).map_err(|e| UsageError::new(format!("{}: {e}", path.display())))?.len();
        for (name, info) in infos {
            let place = Place { part, data_offset, info };
            let end = place.start().saturating_add(place.bytes().unwrap_or(u64::MAX));
            if end > size {
                let what = format!("{}: truncated: the tensor `{name}` ends at byte {end} of {size}", path.display());
                return Err(UsageError::new(what).hint("fetch the file again"));
            }
            if self.tensors.insert(name.clone(), place).is_some() {
                return Err(UsageError::new(format!("{}: the tensor `{name}` is in two files", path.display())));
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

    /// The quantised types of tensors that are widened when they are read, since the kernels do not know them.
    pub(super) fn widened_types(&self) -> BTreeSet<String> {
        let types = self.tensors.values().map(|place| place.info.ggml_dtype);
        types.filter(|dtype| known(*dtype).is_none()).map(|dtype| format!("{dtype:?}")).collect()
    }

    /// Reads a tensor as it is stored; types that the kernels do not know are widened to f32.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub(super) fn read(&self, place: &Place) -> std::io::Result<StoredTensor> {
        let path = &self.parts[place.part];
        let shape = place.shape();
        let (dtype, bytes) = match known(place.info.ggml_dtype) {
            Some(StoredType::Blocks(block_type))
                if !shape.iter().product::<usize>().is_multiple_of(block_type.numbers()) =>
            {
                return Err(std::io::Error::other("a tensor ends within a block"));
            }
            Some(dtype) => (dtype, place.read_bytes(path)?),
            None => (StoredType::F32, place.dequantised(path)?),
        };
        Ok(StoredTensor { dtype, shape, bytes })
    }
}

impl Place {
    /// Extent of each axis, slowest first. (Files state the fastest first; candle turns them round.)
    pub(super) fn shape(&self) -> Vec<usize> {
        self.info.shape.dims().to_vec()
    }

    /// The type that a tensor is read as: f32 for those that the kernels do not know.
    pub(super) fn read_type(&self) -> StoredType {
        known(self.info.ggml_dtype).unwrap_or(StoredType::F32)
    }

    /// Whether numbers are stored in blocks with a common scale.
    pub(super) fn is_quantised(&self) -> bool {
        self.info.ggml_dtype.block_size() > 1
    }

    /// Bytes in the file; `None` if that is more than can be.
    pub(super) fn bytes(&self) -> Option<u64> {
        let numbers = self.info.shape.dims().iter().try_fold(1usize, |all, extent| all.checked_mul(*extent))?;
        let blocks = numbers.div_ceil(self.info.ggml_dtype.block_size());
        u64::try_from(blocks.checked_mul(self.info.ggml_dtype.type_size())?).ok()
    }

    fn start(&self) -> u64 {
        self.data_offset.saturating_add(self.info.offset)
    }

    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.start()))?;
        let mut bytes = vec![0; self.bytes().unwrap_or(0) as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
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

/// The types that tensors are kept in: all but Q2_K, Q3_K and two that no model has (Q8_1, Q8_K).
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

/// Reads the directory of a file.
fn content(path: &Path) -> Result<Content, UsageError> {
    let label = path.display();
    let file = given::plain(path).and_then(|_| File::open(path));
    let mut reader = BufReader::new(file.map_err(|e| UsageError::new(format!("{label}: {e}")))?);
    let mut start = [0; 64];
    let read = reader.read(&mut start).map_err(|e| UsageError::new(format!("{label}: {e}")))?;
    if is_lfs_pointer(&start[..read]) {
        return Err(UsageError::new(format!("{label}: a Git LFS pointer, not the file itself"))
            .hint("run `git lfs pull` in its folder"));
    }
    if !start.starts_with(b"GGUF") {
        return Err(UsageError::new(format!("{label}: not a GGUF file")).hint("fetch it again, or give another"));
    }
    reader.seek(SeekFrom::Start(0)).map_err(|e| UsageError::new(format!("{label}: {e}")))?;
    Content::read(&mut reader).map_err(|error| unreadable(path, &in_one_line(&error)))
}

/// Names of the types that have a number in the format and are not read.
const UNREAD_TYPES: [(u32, &str); 12] = [
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

fn unreadable(path: &Path, error: &str) -> UsageError {
    let label = path.display();
    let number = error.strip_prefix("unknown dtype for tensor ").and_then(|rest| rest.trim().parse::<u32>().ok());
    match number {
        Some(number) => {
            let name = UNREAD_TYPES.iter().find(|(known, _)| *known == number);
            let name = name.map_or_else(|| format!("the unknown type {number}"), |(_, name)| (*name).to_owned());
            UsageError::new(format!("{label}: a tensor is stored as {name}, which cannot be read")).hint(
                "give a file of another quantisation of the same model: Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, F16 or BF16",
            )
        }
        None => UsageError::new(format!("{label}: cannot be read as GGUF: {error}"))
            .hint("the file may be cut off or damaged: fetch it again"),
    }
}

/// What went wrong, without the trace that candle adds in some builds.
fn in_one_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The names of all files of a split model, as `gguf-split` numbers them: `NAME-00001-of-00003.gguf`.
fn split_names(path: &Path, count: u64) -> Result<Vec<PathBuf>, UsageError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let ending = format!("-of-{count:05}.gguf");
    let base = name.strip_suffix(&ending).and_then(|rest| rest.rsplit_once('-')).map(|(base, _)| base.to_owned());
    let Some(base) = base else {
        let what = format!("{}: one of {count} files of a model, and not named as such", path.display());
        return Err(UsageError::new(what).hint(format!("files of a split model are named NAME-00001{ending}")));
    };
    let paths: Vec<PathBuf> =
        (1..=count).map(|part| path.with_file_name(format!("{base}-{part:05}{ending}"))).collect();
    match paths.iter().find(|path| !path.is_file()) {
        None => Ok(paths),
        Some(missing) => {
            Err(UsageError::new(format!("{}: missing: the model is split into {count} files", missing.display()))
                .hint("fetch all of them into one folder"))
        }
    }
}
