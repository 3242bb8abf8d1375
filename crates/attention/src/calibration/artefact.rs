//! Calibration artefacts: what a method learned about a model before any run, in one safetensors file.
//!
//! An [`Artefact`] is a set of named tensors (by convention `layers.{layer}.{what}`, with KV or query heads on the first axis) and an
//! [`ArtefactInfo`], which says for which model, from what data and how it was made. It fits only one model: weights and shape are compared
//! before a method may read it. This module does not decide where artefacts are stored, and only the method that reads an artefact knows
//! its contents.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use half::f16;
use safetensors::tensor::{SafeTensorError, SafeTensors, TensorView};
use safetensors::{Dtype, serialize};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use spattn_base::error::in_plain_words;

/// The version of the file format; raised whenever artefacts of the previous format can no longer be read.
pub const FORMAT: u32 = 1;

/// The one key of the file's metadata; its value is an [`ArtefactInfo`] as JSON.
const INFO_KEY: &str = "spattn";

/// The model that an artefact belongs to, and the shape of its attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// SHA-256 of the weights.
    pub weights_sha256: String,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads of a layer.
    pub heads: usize,
    /// Number of KV heads of a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl ModelShape {
    /// Number of query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layers, heads, kv_heads, head_dim, .. } = self;
        write!(f, "{layers} layers, {heads} query heads, {kv_heads} KV heads, width {head_dim}")
    }
}

/// What an artefact contains, and how it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtefactInfo {
    /// The [`FORMAT`] in which it was written.
    pub format: u32,
    /// Kind of artefact: the method that reads it, such as `loki`.
    pub kind: String,
    /// The model it was made from.
    pub model: ModelShape,
    /// A description of the text it was made from.
    pub data: String,
    /// Seed of the text and of all random draws.
    pub seed: u64,
    /// Number of sequences read.
    pub blocks: usize,
    /// Number of tokens read, over all sequences.
    pub tokens: usize,
    /// Further settings that determined it.
    pub settings: BTreeMap<String, String>,
}

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits (IEEE), rounded to nearest.
    F16,
}

/// A tensor to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Name in the file.
    pub name: String,
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// The numbers, row-major.
    pub values: Vec<f32>,
    /// How they are stored.
    pub precision: Precision,
}

/// Why an artefact cannot be used. Each message is one line that names the file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArtefactError {
    /// The file ends before its header says it should.
    #[error("{file}: truncated")]
    Truncated {
        /// The file.
        file: String,
    },
    /// The file is not an artefact, or its numbers cannot be used.
    #[error("{file}: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The file is written in another format.
    #[error("{file}: written in format {found} of calibration artefacts; this program reads {FORMAT}")]
    OtherFormat {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
    },
    /// The file is of another kind.
    #[error("{file}: calibrates `{found}`, not `{expected}`")]
    OtherKind {
        /// The file.
        file: String,
        /// Its kind.
        found: String,
        /// The kind that was expected.
        expected: String,
    },
    /// The artefact was made from other weights.
    #[error("{file}: made from other weights ({}...) than the model's ({}...)", short(found), short(expected))]
    OtherWeights {
        /// The file.
        file: String,
        /// Hash of the weights it was made from.
        found: String,
        /// Hash of the model's weights.
        expected: String,
    },
    /// The artefact was made for another shape.
    #[error("{file}: made for {found}, but the model has {expected}")]
    OtherShape {
        /// The file.
        file: String,
        /// Shape it was made for.
        found: String,
        /// Shape of the model.
        expected: String,
    },
    /// The artefact was made with another setting than the method's.
    #[error("{file}: made with {key} `{found}`, not `{expected}`")]
    OtherSetting {
        /// The file.
        file: String,
        /// The setting.
        key: String,
        /// Its value.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// The artefact was made by this program, but an imported one is required.
    #[error("{file}: made with {key} `{found}`, not imported from weights that the authors released")]
    NotImported {
        /// The file.
        file: String,
        /// The setting.
        key: String,
        /// Its value.
        found: String,
    },
    /// A tensor is missing, or not as expected.
    #[error("{file}: tensor `{name}` {what}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Whether these first bytes of a file are those of an artefact or training checkpoint written by this program, for any model.
pub fn is_own(beginning: &[u8]) -> bool {
    let own = format!("{{\"__metadata__\":{{\"{INFO_KEY}\":");
    beginning.get(8..).is_some_and(|header| header.starts_with(own.as_bytes()))
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Serialises tensors and their description; equal input gives equal bytes.
///
/// # Panics
/// If a tensor's shape and number of values differ, or a name is given twice.
pub fn write(info: &ArtefactInfo, tensors: &[NamedTensor]) -> Vec<u8> {
    let bytes: Vec<(Dtype, Vec<u8>)> = tensors.iter().map(stored).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, (dtype, bytes))| {
        let view = TensorView::new(*dtype, tensor.shape.clone(), bytes);
        (tensor.name.as_str(), view.expect("a tensor has as many values as its shape says"))
    });
    let info = serde_json::to_string(info).expect("these fields can be written as JSON");
    let metadata = HashMap::from([(INFO_KEY.to_owned(), info)]);
    serialize(views, Some(metadata)).expect("tensor names differ, and the header is short")
}

fn stored(tensor: &NamedTensor) -> (Dtype, Vec<u8>) {
    match tensor.precision {
        Precision::F32 => (Dtype::F32, tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Precision::F16 => (Dtype::F16, tensor.values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()),
    }
}

/// An artefact that was read from a file.
#[derive(Debug, Clone)]
pub struct Artefact {
    file: String,
    sha256: String,
    info: ArtefactInfo,
    bytes: Vec<u8>,
}

impl Artefact {
    /// Reads an artefact from the bytes of its file; `file` names it in errors.
    ///
    /// # Errors
    /// If it is truncated, not an artefact, or of another format.
    pub fn parse(file: &str, bytes: Vec<u8>) -> Result<Self, ArtefactError> {
        let malformed = |what: String| ArtefactError::Malformed { file: file.to_owned(), what };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| match error {
            SafeTensorError::HeaderTooSmall
            | SafeTensorError::InvalidHeaderLength
            | SafeTensorError::MetadataIncompleteBuffer => ArtefactError::Truncated { file: file.to_owned() },
            other => malformed(format!("not a safetensors file: {other}")),
        })?;
        let info = header.metadata().as_ref().and_then(|m| m.get(INFO_KEY));
        let info = info.ok_or_else(|| malformed("a safetensors file, but not a calibration artefact".to_owned()))?;
        // The format is checked first: other fields may have changed with it.
        let format = serde_json::from_str::<serde_json::Value>(info).ok().and_then(|v| v["format"].as_u64());
        if let Some(found) = format.and_then(|f| u32::try_from(f).ok()).filter(|f| *f != FORMAT) {
            return Err(ArtefactError::OtherFormat { file: file.to_owned(), found });
        }
        let info = serde_json::from_str(info)
            .map_err(|e| malformed(format!("malformed metadata: {}", in_plain_words(&e.to_string()))))?;
        let digest = Sha256::digest(&bytes);
        let sha256 = digest.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Self { file: file.to_owned(), sha256, info, bytes })
    }

    /// Checks that this is an artefact of `kind` for `model`, and that all tensors can be read.
    ///
    /// # Errors
    /// If it is of another kind, made from other weights or for another shape, or if a tensor is not readable.
    pub fn check(&self, kind: &str, model: &ModelShape) -> Result<(), ArtefactError> {
        let (file, found) = (self.file.clone(), &self.info.model);
        if self.info.kind != kind {
            return Err(ArtefactError::OtherKind { file, found: self.info.kind.clone(), expected: kind.to_owned() });
        }
        if found.to_string() != model.to_string() {
            return Err(ArtefactError::OtherShape { file, found: found.to_string(), expected: model.to_string() });
        }
        if found.weights_sha256 != model.weights_sha256 {
            let (found, expected) = (found.weights_sha256.clone(), model.weights_sha256.clone());
            return Err(ArtefactError::OtherWeights { file, found, expected });
        }
        // Check all tensors, whichever of them the method's parameters need.
        let tensors = self.tensors()?;
        tensors.iter().try_for_each(|(name, tensor)| self.values(name, &tensor).map(drop))
    }

    /// Returns one of the settings that it was made with.
    ///
    /// # Errors
    /// If there is no setting of this name.
    pub fn setting(&self, key: &str) -> Result<&str, ArtefactError> {
        self.info.settings.get(key).map(String::as_str).ok_or_else(|| self.malformed(&format!("no setting `{key}`")))
    }

    /// Checks that it was made with a setting.
    ///
    /// # Errors
    /// If the setting has another value, or is missing.
    pub fn check_setting(&self, key: &str, expected: &str) -> Result<(), ArtefactError> {
        let found = self.setting(key)?;
        if found != expected { Err(self.of_other_setting(key, found, expected)) } else { Ok(()) }
    }

    /// The error that the artefact was made by this program, as a setting says.
    pub fn not_imported(&self, key: &str, found: &str) -> ArtefactError {
        ArtefactError::NotImported { file: self.file.clone(), key: key.to_owned(), found: found.to_owned() }
    }

    /// The error that it was made with another setting than expected.
    pub fn of_other_setting(&self, key: &str, found: &str, expected: &str) -> ArtefactError {
        let (file, found, expected) = (self.file.clone(), found.to_owned(), expected.to_owned());
        ArtefactError::OtherSetting { file, key: key.to_owned(), found, expected }
    }

    /// The error that the metadata is malformed.
    pub fn malformed(&self, what: &str) -> ArtefactError {
        ArtefactError::Malformed { file: self.file.clone(), what: format!("malformed metadata: {what}") }
    }

    /// Its contents, and how it was made.
    pub fn info(&self) -> &ArtefactInfo {
        &self.info
    }

    /// SHA-256 of the whole file, in hexadecimal; part of a run's identity.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the values of a tensor, row-major, as f32.
    ///
    /// # Errors
    /// If the tensor is missing, its shape is not `expected`, its type is not F32 or F16, or a value is not finite.
    pub fn read(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, ArtefactError> {
        let error = |what: String| self.wrong(name, what);
        let tensors = self.tensors()?;
        let tensor = tensors.tensor(name).map_err(|_| error("is missing".to_owned()))?;
        if tensor.shape() != expected {
            return Err(error(format!("has shape {:?}, expected {expected:?}", tensor.shape())));
        }
        self.values(name, &tensor)
    }

    /// Like [`Self::read`], for a tensor of rows of `row` values, one for each head or component; checks that no row is all zero.
    ///
    /// # Errors
    /// Those of [`Self::read`], and if a row is all zero.
    pub fn read_rows(&self, name: &str, expected: &[usize], row: usize) -> Result<Vec<f32>, ArtefactError> {
        let values = self.read(name, expected)?;
        match values.chunks(row).position(|row| row.iter().all(|x| *x == 0.0)) {
            None => Ok(values),
            Some(at) => Err(self.wrong(name, format!("has only zeros in the row that begins at value {}", at * row))),
        }
    }

    /// Returns the part of the artefact for some of the model's layers, in the given order, as an artefact for a model of only these
    /// layers. Tensors that belong to no single layer are kept unchanged.
    ///
    /// # Errors
    /// Those of [`Self::read`], and if a layer is out of range.
    pub fn of_layers(&self, layers: &[usize]) -> Result<Self, ArtefactError> {
        let tensors = self.tensors()?;
        let mut kept = Vec::new();
        for (name, tensor) in tensors.iter() {
            let of_layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
            let names: Vec<String> = match of_layer {
                None => vec![name.to_owned()],
                Some((layer, what)) => {
                    let places = layers.iter().enumerate().filter(|(_, wanted)| wanted.to_string() == layer);
                    places.map(|(place, _)| format!("layers.{place}.{what}")).collect()
                }
            };
            let precision = if tensor.dtype() == Dtype::F16 { Precision::F16 } else { Precision::F32 };
            for new in names {
                let (shape, values) = (tensor.shape().to_vec(), self.values(name, &tensor)?);
                kept.push(NamedTensor { name: new, shape, values, precision });
            }
        }
        if let Some(missing) = layers.iter().find(|layer| **layer >= self.info.model.layers) {
            return Err(self.malformed(&format!("it has no layer {missing}")));
        }
        let model = ModelShape { layers: layers.len(), ..self.info.model.clone() };
        Self::parse(&self.file, write(&ArtefactInfo { model, ..self.info.clone() }, &kept))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, ArtefactError> {
        SafeTensors::deserialize(&self.bytes).map_err(|_| ArtefactError::Truncated { file: self.file.clone() })
    }

    fn wrong(&self, name: &str, what: String) -> ArtefactError {
        ArtefactError::Tensor { file: self.file.clone(), name: name.to_owned(), what }
    }

    fn values(&self, name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>, ArtefactError> {
        let error = |what: String| self.wrong(name, what);
        let values: Vec<f32> = match tensor.dtype() {
            Dtype::F32 => tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => tensor.data().as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            other => return Err(error(format!("holds {other:?}; only F32 and F16 can be read"))),
        };
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => Err(error("holds numbers that are not finite".to_owned())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shape() -> ModelShape {
        ModelShape { weights_sha256: "ab".repeat(32), layers: 2, heads: 4, kv_heads: 2, head_dim: 8 }
    }

    fn info() -> ArtefactInfo {
        ArtefactInfo {
            format: FORMAT,
            kind: "loki".into(),
            model: shape(),
            data: "grammar".into(),
            seed: 3,
            blocks: 2,
            tokens: 100,
            settings: BTreeMap::from([("rope".into(), "after".into())]),
        }
    }

    fn tensor(name: &str, shape: &[usize], values: &[f32], precision: Precision) -> NamedTensor {
        NamedTensor { name: name.into(), shape: shape.to_vec(), values: values.to_vec(), precision }
    }

    fn bytes() -> Vec<u8> {
        let tensors = [
            tensor("layers.0.a", &[2, 2], &[1.0, -2.5, 0.1, 4.0], Precision::F32),
            tensor("layers.1.b", &[3], &[0.5, 1.0 / 3.0, -8.0], Precision::F16),
        ];
        write(&info(), &tensors)
    }

    #[test]
    fn what_is_written_is_read_and_bytes_are_reproducible() {
        assert_eq!(bytes(), bytes());
        let artefact = Artefact::parse("x", bytes()).unwrap();
        assert_eq!(artefact.info(), &info());
        artefact.check("loki", &shape()).unwrap();
        assert_eq!(artefact.read("layers.0.a", &[2, 2]).unwrap(), [1.0, -2.5, 0.1, 4.0]);
        let halves = artefact.read("layers.1.b", &[3]).unwrap();
        assert!(halves[0] == 0.5 && (halves[1] - 1.0 / 3.0).abs() < 1e-3 && halves[2] == -8.0);
        let other = write(&ArtefactInfo { seed: 4, ..info() }, &[]);
        assert_ne!(artefact.sha256(), Artefact::parse("x", other).unwrap().sha256());
    }

    #[test]
    fn a_part_is_about_some_layers_and_fits_a_model_that_has_no_others() {
        let each = |layer: usize| tensor(&format!("layers.{layer}.a"), &[1], &[layer as f32], Precision::F16);
        let model = ModelShape { layers: 4, ..shape() };
        let mut tensors: Vec<NamedTensor> = (0..4).map(each).collect();
        tensors.push(tensor("of_all", &[2], &[0.1, 7.0], Precision::F32));
        let whole = Artefact::parse("x", write(&ArtefactInfo { model, ..info() }, &tensors)).unwrap();
        let part = whole.of_layers(&[3, 1]).unwrap();
        part.check("loki", &ModelShape { layers: 2, ..shape() }).unwrap();
        let read = |name: &str, shape: &[usize]| part.read(name, shape);
        assert_eq!((read("layers.0.a", &[1]).unwrap(), read("layers.1.a", &[1]).unwrap()), (vec![3.0], vec![1.0]));
        assert_eq!(read("of_all", &[2]).unwrap(), [0.1, 7.0]);
        assert!(read("layers.2.a", &[1]).is_err());
        assert!(whole.of_layers(&[4]).unwrap_err().to_string().ends_with("it has no layer 4"));
    }

    #[test]
    fn what_does_not_fit_the_model_is_refused() {
        let artefact = Artefact::parse("x.safetensors", bytes()).unwrap();
        let says = |kind: &str, model: &ModelShape| artefact.check(kind, model).unwrap_err().to_string();
        assert_eq!(says("hash_attention", &shape()), "x.safetensors: calibrates `loki`, not `hash_attention`");
        let weights = ModelShape { weights_sha256: "cd".repeat(32), ..shape() };
        let expected = "x.safetensors: made from other weights (abababababab...) than the model's (cdcdcdcdcdcd...)";
        assert_eq!(says("loki", &weights), expected);
        for other in [
            ModelShape { layers: 3, ..shape() },
            ModelShape { heads: 2, ..shape() },
            ModelShape { kv_heads: 4, ..shape() },
            ModelShape { head_dim: 16, ..shape() },
        ] {
            assert!(matches!(artefact.check("loki", &other), Err(ArtefactError::OtherShape { .. })));
        }
    }

    #[test]
    fn settings_are_compared() {
        let artefact = Artefact::parse("x", bytes()).unwrap();
        artefact.check_setting("rope", "after").unwrap();
        let says = |key: &str| artefact.check_setting(key, "before").unwrap_err().to_string();
        assert_eq!(says("rope"), "x: made with rope `after`, not `before`");
        assert_eq!(says("bits"), "x: malformed metadata: no setting `bits`");
    }

    #[test]
    fn truncation_at_any_byte_is_noticed() {
        let whole = bytes();
        for end in 0..whole.len() {
            let error = Artefact::parse("x", whole[..end].to_vec()).unwrap_err();
            assert_eq!(error, ArtefactError::Truncated { file: "x".into() }, "{end} of {}", whole.len());
        }
    }

    #[test]
    fn other_files_and_formats_are_named() {
        let plain = serialize(Vec::<(&str, TensorView)>::new(), None).unwrap();
        let says = |bytes: Vec<u8>| Artefact::parse("x", bytes).unwrap_err().to_string();
        assert_eq!(says(plain), "x: a safetensors file, but not a calibration artefact");
        assert!(says(b"version https://git-lfs.github.com/spec/v1".to_vec()).starts_with("x: not a safetensors file"));
        let newer = write(&ArtefactInfo { format: 9, ..info() }, &[]);
        assert_eq!(says(newer), "x: written in format 9 of calibration artefacts; this program reads 1");
    }

    #[test]
    fn tensors_are_checked_when_they_are_read() {
        let mut tensors = vec![tensor("nan", &[1], &[f32::NAN], Precision::F32)];
        tensors.push(tensor("layers.0.a", &[2], &[1.0, 2.0], Precision::F32));
        let artefact = Artefact::parse("x", write(&info(), &tensors)).unwrap();
        let says = |name: &str, shape: &[usize]| artefact.read(name, shape).unwrap_err().to_string();
        assert_eq!(says("layers.9.a", &[2]), "x: tensor `layers.9.a` is missing");
        assert_eq!(says("layers.0.a", &[3]), "x: tensor `layers.0.a` has shape [2], expected [3]");
        assert_eq!(says("nan", &[1]), "x: tensor `nan` holds numbers that are not finite");
    }
}
