//! Weights of GGUF files under the names of Hugging Face checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::config::Family;
use super::families::STACKS;
use super::files::{GgufFiles, Place};
use crate::tensors::{
    StoredFormat, StoredTensor, StoredType, TensorInfo, TensorSource, Weights, WeightsError, sha256_of_part,
};
use spattn_hub::checksum::sha256_hex;

/// The names of a layer's tensors that most families have: llama.cpp's and Hugging Face's. The others are in
/// [`families`](super::families).
const LAYER: [(&str, &str); 10] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The tensors outside layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Tensors of GGUF files under Hugging Face names.
#[derive(Debug)]
pub(super) struct GgufTensors {
    files: GgufFiles,
    family: Family,
    /// The file's name for the type of its tensors as a whole.
    file_type: Option<String>,
    /// By Hugging Face name: the name in the file, and shape, type and size.
    tensors: BTreeMap<String, (String, TensorInfo)>,
}

impl GgufTensors {
    /// The tensors of `files`, a model of `family` whose stated type is `file_type`.
    pub(super) fn new(files: GgufFiles, family: Family, file_type: Option<String>) -> Self {
        let info = |place: &Place| TensorInfo {
            shape: place.shape(),
            stored: Ok(place.read_type()),
            bytes: place.bytes().unwrap_or(u64::MAX),
        };
        let named = files.tensors().iter().filter(|(name, _)| !family.is_configuration(name));
        let tensors =
            named.map(|(name, place)| (hugging_face_name(family, name), (name.clone(), info(place)))).collect();
        Self { files, family, file_type, tensors }
    }

    fn place(&self, name: &str) -> Result<(&str, &Place), WeightsError> {
        let missing = || WeightsError::MissingTensor { file: self.label().to_owned(), name: name.to_owned() };
        let (stored_name, _) = self.tensors.get(name).ok_or_else(missing)?;
        let place = self.files.tensors().get(stored_name).ok_or_else(missing)?;
        Ok((stored_name, place))
    }
}

impl TensorSource for GgufTensors {
    fn label(&self) -> &str {
        self.files.label()
    }

    fn file_of(&self, name: &str) -> String {
        self.place(name)
            .map_or_else(|_| self.label().to_owned(), |(_, place)| self.files.path_of(place).display().to_string())
    }

    fn files(&self) -> Vec<&Path> {
        self.files.parts().iter().map(PathBuf::as_path).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|(_, info)| info)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let (stored_name, place) = self.place(name)?;
        let file = || self.file_of(name);
        if place.shape() != shape {
            let (got, expected) = (place.shape(), shape.to_vec());
            return Err(WeightsError::WrongShape { file: file(), name: name.to_owned(), got, expected });
        }
        let mut tensor = self.files.read(place).map_err(|source| WeightsError::Io { file: file(), source })?;
        if let Some(heads) = self.family.permuted_heads(stored_name) {
            unpermute(&mut tensor, heads);
        }
        let offset = self.family.offset(stored_name);
        if offset != 0.0 {
            let numbers = tensor.to_f32().into_iter().flat_map(|x| (x - offset).to_le_bytes());
            tensor = StoredTensor { dtype: StoredType::F32, shape: tensor.shape.clone(), bytes: numbers.collect() };
        }
        Ok(tensor)
    }

    /// Reads only the part, unless rows or numbers of the tensor are changed when it is read.
    fn read_part(
        &self,
        name: &str,
        whole: &[usize],
        first: usize,
        shape: &[usize],
    ) -> Result<StoredTensor, WeightsError> {
        let (stored_name, place) = self.place(name)?;
        let is_plain = place.shape() == whole && !self.family.changes(stored_name);
        match self.files.read_part(place, first, shape).filter(|_| is_plain) {
            Some(read) => read.map_err(|source| WeightsError::Io { file: self.file_of(name), source }),
            None => Ok(self.read(name, whole)?.part(first, shape)),
        }
    }

    /// The SHA-256 of the file; for a split model, that of the files' SHA-256s (hexadecimal, joined in order).
    fn sha256(&self) -> Result<String, WeightsError> {
        let digests: Vec<String> =
            self.files.parts().par_iter().map(|part| sha256_of_part(part)).collect::<Result<_, _>>()?;
        Ok(match digests.as_slice() {
            [one] => one.clone(),
            several => sha256_hex(several.concat().as_bytes()),
        })
    }

    fn format(&self) -> Option<StoredFormat> {
        let mut types = BTreeMap::new();
        for place in self.files.tensors().values() {
            *types.entry(place.stored_type()).or_default() += 1;
        }
        Some(StoredFormat { name: "GGUF", file_type: self.file_type.clone(), types })
    }
}

/// Makes stacked experts readable one by one.
pub(super) fn divide_experts(family: Family, weights: &mut Weights) {
    let Some(experts) = family.experts() else { return };
    let part_of = |name: &str| {
        let (layer, stack) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
        let at = STACKS.iter().position(|known| *known == stack)?;
        Some((name.to_owned(), format!("model.layers.{layer}.{}", experts.each), experts.parts[at]))
    };
    let stacks: Vec<_> = weights.names().filter_map(part_of).collect();
    for (name, each, part) in stacks {
        if let Some([count, rows, columns]) = weights.shape(&name).and_then(|shape| <[usize; 3]>::try_from(shape).ok())
        {
            let one = |expert| (format!("{each}{expert}.{part}.weight"), vec![rows, columns]);
            weights.divide(&name, (0..count).map(one));
        }
    }
}

/// The Hugging Face name of a tensor. An unknown name is kept, and then reported as not read.
fn hugging_face_name(family: Family, name: &str) -> String {
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let within_layer = stem.strip_prefix("blk.").and_then(|rest| {
        let (layer, part) = rest.split_once('.')?;
        let common = || LAYER.iter().find(|(known, _)| *known == part).map(|(_, known)| *known);
        let known = family.layer_name(part).or_else(common)?;
        Some(format!("model.layers.{layer}.{known}.{kind}"))
    });
    let outer = || OUTER.iter().find(|(known, _)| *known == stem).map(|(_, known)| format!("{known}.{kind}"));
    within_layer.or_else(outer).unwrap_or_else(|| name.to_owned())
}

/// Restores the row order of Hugging Face in a query or key matrix: in a head, the first rows of all rotated pairs, then the second
/// rows. llama.cpp's converter writes the two rows of a pair next to each other.
fn unpermute(tensor: &mut StoredTensor, heads: usize) {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    let row_bytes = tensor.bytes.len().checked_div(rows).unwrap_or(0);
    let half = rows / heads / 2;
    if half == 0 || row_bytes == 0 || rows != 2 * half * heads {
        return;
    }
    let stored = std::mem::take(&mut tensor.bytes);
    tensor.bytes.reserve_exact(stored.len());
    for row in 0..rows {
        let (head, within) = (row / (2 * half), row % (2 * half));
        let source = head * 2 * half + 2 * (within % half) + within / half;
        tensor.bytes.extend_from_slice(&stored[source * row_bytes..][..row_bytes]);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::gguf_file::Value;

    use super::super::metadata::Metadata;
    use super::*;

    fn family(name: &str) -> Family {
        let values = [
            ("general.architecture".to_owned(), Value::String(name.to_owned())),
            (format!("{name}.attention.head_count"), Value::U32(4)),
        ];
        super::super::config::family(&Metadata::new("m", &values.into_iter().collect())).unwrap()
    }

    #[test]
    fn names_are_those_of_hugging_face() {
        let llama = family("llama");
        for (stored, expected) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"),
            ("blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"),
            ("blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
            ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("blk.3.ffn_gate_inp.weight", "model.layers.3.block_sparse_moe.gate.weight"),
            ("blk.3.post_ffw_norm.weight", "blk.3.post_ffw_norm.weight"),
        ] {
            assert_eq!(hugging_face_name(llama, stored), expected);
        }
        let gemma = hugging_face_name(family("gemma3"), "blk.3.ffn_norm.weight");
        assert_eq!(gemma, "model.layers.3.pre_feedforward_layernorm.weight");
    }

    #[test]
    fn rows_go_back_to_where_the_converter_took_them_from() {
        // The converter does reshape(heads, 2, half, columns).swapaxes(1, 2).
        let (heads, half, columns) = (3, 4, 2);
        let rows = heads * 2 * half;
        let original: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let mut stored = Vec::new();
        for head in 0..heads {
            for pair in 0..half {
                for side in 0..2 {
                    let row = head * 2 * half + side * half + pair;
                    stored.extend_from_slice(&original[row * columns..][..columns]);
                }
            }
        }
        let bytes = stored.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        let mut tensor = StoredTensor { dtype: StoredType::F32, shape: vec![rows, columns], bytes };
        assert_ne!(tensor.to_f32(), original);
        unpermute(&mut tensor, heads);
        assert_eq!(tensor.to_f32(), original);
    }
}
