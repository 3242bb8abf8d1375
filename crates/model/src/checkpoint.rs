//! Compares the tensors of a checkpoint with those that the decoder reads.
//!
//! Like transformers, it warns of unused tensors, since half a model or a classifier runs as well as a whole model, but with other
//! results.

use std::collections::BTreeMap;

use anyhow::Result;

use super::config::ModelConfig;
use super::families::{QkNormOver, TensorNames};
use super::formats;
use super::layers;
use super::stacked_experts;
use super::tensors::{WeightDtype, Weights};
use spattn_base::error::UsageError;

/// A tensor of a checkpoint, or one that the decoder has although it is not stored (random weights).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// Its name in a Hugging Face checkpoint.
    pub name: String,
    /// Extent of each axis, slowest first.
    pub shape: Vec<usize>,
    /// Whether the decoder computes with it.
    pub is_read: bool,
}

/// The most tensors that a note names; the others are counted.
const NAMED: usize = 4;
/// Prefixes of the text model's tensors in a class that wraps it, by versions of the reference, each with the prefix in the text model
/// alone.
const OF_TEXT: [(&str, &str); 3] =
    [("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model.")];
/// Prefixes of the other tensors of such a class, which read images.
const OF_IMAGES: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];
/// What the user can do if config and weights differ.
const ONE_MODEL: &str =
    "config.json and the weights are of two models, or one of them was edited: take both from one place";
/// The most characters of a tensor's name that a note shows.
const LONGEST_NAME: usize = 100;

/// The name of a tensor in the text model alone, given its name in a class that may wrap it.
pub fn name_alone(name: &str) -> String {
    let renamed = OF_TEXT.iter().find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)));
    renamed.unwrap_or_else(|| name.to_owned())
}

/// Compares a checkpoint with its config, which is changed where transformers follows the tensors. Returns what the user should know,
/// one line each.
///
/// # Errors
/// A [`UsageError`] if the checkpoint's format is not supported, it has no output matrix, or its layers or shapes differ from the
/// config; also if weights cannot be read.
pub fn compare(config: &mut ModelConfig, weights: &mut Weights) -> Result<Vec<String>> {
    if weights.is_random() {
        return Ok(Vec::new());
    }
    if config.family.is_wrapper {
        weights.rename(&OF_TEXT);
    }
    stacked_experts::divide(config, weights)?;
    let (embedding, head) = tables(&config.block.names);
    // Checked first, since everything else goes through all layers that the config states.
    refuse_missing_layers(config, weights)?;
    // If the two matrices are one, either may be stored.
    if config.tie_word_embeddings && !weights.contains(&embedding) {
        weights.alias(&head, &embedding);
    }
    let expected = layers::tensors(config);
    if expected.keys().any(|name| !weights.is_readable(name)) {
        refuse_other_formats(weights)?;
    }
    if !config.tie_word_embeddings && !weights.contains(&head) && weights.contains(&embedding) {
        let what =
            format!("{}: no tensor `{head}`, and `tie_word_embeddings` is not true in config.json", weights.label());
        return Err(UsageError::new(what).hint(
            "transformers would initialise it at random; set `tie_word_embeddings` to true if the model's output matrix is its embeddings",
        ).into());
    }
    refuse_other_shapes(config, weights, &expected)?;
    let notes = [untied(config, weights)?, unread(config, weights, &expected)];
    Ok(notes.into_iter().flatten().collect())
}

/// The note on what is done with weights that the config says are quantised; `dtype` is the type that they are kept in.
pub(super) fn note_on_quantised(config: &ModelConfig, weights: &Weights, dtype: WeightDtype) -> Option<String> {
    let quantisation = config.quantisation.as_ref().filter(|_| !weights.is_random())?;
    let (label, format) = (weights.label(), quantisation.format.name());
    if weights.unpacked_tensors() == 0 {
        return Some(format!(
            "{label}: no tensor is quantised, although config.json says that they are ({format}): they are read as they are"
        ));
    }
    let activations = match quantisation.quantises_activations {
        true => "; activations are not quantised, although config.json says so",
        false => "",
    };
    Some(format!("{label}: weights are {format}, unpacked to {} at load{activations}", dtype.name()))
}

/// The names of the embedding table and the output matrix.
fn tables(names: &TensorNames) -> (String, String) {
    (TensorNames::weight(names.embedding), TensorNames::weight(names.head))
}

fn refuse_other_formats(weights: &Weights) -> Result<()> {
    match formats::of_tensors(weights.names()) {
        None => Ok(()),
        Some((format, name)) => {
            let what = format!("{}: the checkpoint is {} (`{}`)", weights.label(), format.what, shortened(name));
            Err(UsageError::new(what).hint(format.hint).into())
        }
    }
}

fn refuse_missing_layers(config: &ModelConfig, weights: &Weights) -> Result<()> {
    let Some(stored) = stored_layers(config, weights.names()).filter(|stored| *stored < config.layers) else {
        return match config.layers > weights.names().count() {
            true => refuse_other_formats(weights).and_then(|()| Err(no_layers(config, weights).into())),
            false => Ok(()),
        };
    };
    refuse_other_formats(weights)?;
    let layers = if stored == 1 { "1 layer is".to_owned() } else { format!("{stored} layers are") };
    let what =
        format!("{}: {layers} stored, and config.json says `num_hidden_layers` {}", weights.label(), config.layers);
    Err(UsageError::new(what).hint(ONE_MODEL).into())
}

fn no_layers(config: &ModelConfig, weights: &Weights) -> UsageError {
    let what = format!(
        "{}: no layers are stored (no tensor is named `{}…`), and config.json says `num_hidden_layers` {}",
        weights.label(),
        config.block.names.layer,
        config.layers
    );
    UsageError::new(what).hint(ONE_MODEL)
}

fn refuse_other_shapes(config: &ModelConfig, weights: &Weights, expected: &BTreeMap<String, Vec<usize>>) -> Result<()> {
    let other = |(name, shape): &(&String, &Vec<usize>)| weights.shape(name).is_some_and(|stored| stored != *shape);
    let Some((name, shape)) = expected.iter().find(other) else { return Ok(()) };
    let stored = weights.shape(name).unwrap_or_default();
    let what = format!(
        "{}: the tensor `{name}` has shape {stored:?}, and by config.json it is {shape:?}: {}",
        weights.label(),
        extents(name, config).join(" by ")
    );
    Err(UsageError::new(what).hint(ONE_MODEL).into())
}

/// The extents of a tensor in terms of the keys of `config.json`, rows first.
fn extents(name: &str, c: &ModelConfig) -> Vec<String> {
    let hidden = format!("`hidden_size` {}", c.hidden_size);
    let inner = match c.block.experts.filter(|experts| name.contains(experts.names.each)) {
        Some(experts) => format!("the width of an expert {}", experts.width),
        None => format!("`intermediate_size` {}", c.intermediate_size),
    };
    let vocabulary = format!("`vocab_size` {}", c.vocab_size);
    let heads = format!("`num_attention_heads` {} × `head_dim` {}", c.heads, c.head_dim);
    let kv_heads = format!("`num_key_value_heads` {} × `head_dim` {}", c.kv_heads, c.head_dim);
    let part = name.trim_end_matches(".weight").trim_end_matches(".bias").rsplit('.').next().unwrap_or(name);
    let matrix = match part {
        "embed_tokens" | "lm_head" => [vocabulary, hidden],
        "q_proj" => [heads, hidden],
        "k_proj" | "v_proj" => [kv_heads, hidden],
        "o_proj" => [hidden, heads],
        "gate_proj" | "up_proj" | "w1" | "w3" => [inner, hidden],
        "down_proj" | "w2" => [hidden, inner],
        "qkv_proj" => [format!("{heads} and twice {kv_heads}"), hidden],
        "gate_up_proj" => [format!("twice {inner}"), hidden],
        "gate" => ["the number of experts".to_owned(), hidden],
        "q_norm" if c.block.qk_norm_over == QkNormOver::AllHeads => return vec![heads],
        "k_norm" if c.block.qk_norm_over == QkNormOver::AllHeads => return vec![kv_heads],
        "q_norm" | "k_norm" => return vec![format!("`head_dim` {}", c.head_dim)],
        _ => return vec![hidden],
    };
    let axes = if name.ends_with(".bias") { 1 } else { 2 };
    matrix.into_iter().take(axes).collect()
}

/// Uses an output matrix that is stored despite `tie_word_embeddings` and has other values, as transformers 5 does.
fn untied(config: &mut ModelConfig, weights: &Weights) -> Result<Option<String>> {
    let (embedding, head) = tables(&config.block.names);
    if !config.tie_word_embeddings || !weights.contains(&head) || !weights.contains(&embedding) {
        return Ok(None);
    }
    if weights.are_equal(&head, &embedding)? {
        return Ok(None);
    }
    config.tie_word_embeddings = false;
    Ok(Some(format!(
        "{}: `{head}` is stored and differs from the embeddings, although config.json says `tie_word_embeddings`: it is used, as \
         transformers 5 does (transformers 4 and others use the embeddings)",
        weights.label()
    )))
}

/// All tensors of a compared checkpoint, with those that are read first. Buffers that transformers computes, an unused output matrix
/// and the tensors that read images are left out.
pub(super) fn tensors(config: &ModelConfig, weights: &Weights) -> Vec<CheckpointTensor> {
    let expected = layers::tensors(config);
    let unread = unread_names(config, weights, &expected).into_iter().map(|name| CheckpointTensor {
        name: name.to_owned(),
        shape: weights.shape(name).unwrap_or_default().to_vec(),
        is_read: false,
    });
    let read = |(name, shape): (&String, &Vec<usize>)| CheckpointTensor {
        name: name.clone(),
        shape: shape.clone(),
        is_read: true,
    };
    expected.iter().map(read).chain(unread).collect()
}

/// The names of the tensors that nothing reads.
fn unread_names<'w>(
    config: &ModelConfig,
    weights: &'w Weights,
    expected: &BTreeMap<String, Vec<usize>>,
) -> Vec<&'w str> {
    let (_, head) = tables(&config.block.names);
    let is_of_images = |name: &str| config.family.is_wrapper && OF_IMAGES.iter().any(|prefix| name.starts_with(prefix));
    let is_known = |name: &str| is_buffer(name) || name == head || is_of_images(name);
    weights.names().filter(|name| !expected.contains_key(*name) && !is_known(name)).collect()
}

/// The note on tensors that nothing reads.
fn unread(config: &ModelConfig, weights: &Weights, expected: &BTreeMap<String, Vec<usize>>) -> Option<String> {
    let names = unread_names(config, weights, expected);
    let (first, rest) = names.split_at(names.len().min(NAMED));
    let shown = first.iter().map(|name| format!("`{}`", shortened(name))).collect::<Vec<_>>().join(", ");
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let count = match names.len() {
        0 => return None,
        1 => "1 tensor is".to_owned(),
        many => format!("{many} tensors are"),
    };
    let layers = match stored_layers(config, names.iter().copied()) {
        Some(stored) if stored > config.layers => {
            format!("; {stored} layers are stored, and config.json says `num_hidden_layers` {}", config.layers)
        }
        _ => String::new(),
    };
    Some(format!("{}: {count} not read: {shown}{more}{layers}", weights.label()))
}

/// Whether a tensor is a buffer that older versions of transformers stored and newer ones compute.
fn is_buffer(name: &str) -> bool {
    name.contains("rotary_emb.inv_freq") || name.ends_with(".position_ids") || name.ends_with(".masked_bias")
}

/// The highest layer number in any of the names, plus 1.
fn stored_layers<'a>(config: &ModelConfig, names: impl Iterator<Item = &'a str>) -> Option<usize> {
    let layer = |name: &str| name.strip_prefix(config.block.names.layer)?.split_once('.')?.0.parse::<usize>().ok();
    names.filter_map(layer).max()?.checked_add(1)
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}
