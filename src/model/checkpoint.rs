//! What a checkpoint stores, compared with what the decoder reads of it.
//!
//! Transformers warns of tensors that it does not use; so does this, since half a model or a classifier runs as well as a
//! whole one, only with other numbers.

use std::collections::BTreeSet;

use anyhow::Result;

use super::config::ModelConfig;
use super::formats;
use super::layers::{self, EMBEDDING, HEAD};
use super::weights::Weights;
use crate::error::UsageError;

/// Tensors that are named in a note, the rest is counted.
const NAMED: usize = 4;
/// Characters of a tensor's name that a note shows.
const LONGEST_NAME: usize = 100;

/// Compares a checkpoint with its config, which is changed where transformers goes by the tensors; returns what the user
/// should know, a line each.
///
/// # Errors
/// A [`UsageError`] if the checkpoint is of a format that is not read, or has no output matrix; weights that cannot be read.
pub(super) fn compare(config: &mut ModelConfig, weights: &mut Weights) -> Result<Vec<String>> {
    if weights.is_drawn() {
        return Ok(Vec::new());
    }
    // A config that asks for more layers than there are tensors is refused when they are read.
    if config.layers > weights.names().count() {
        return refuse_other_formats(weights).map(|()| Vec::new());
    }
    // Of two matrices that are one, either may be stored.
    if config.tie_word_embeddings && !weights.contains(EMBEDDING) {
        weights.alias(HEAD, EMBEDDING);
    }
    let expected = layers::names(config);
    if expected.iter().any(|name| !weights.is_readable(name)) {
        refuse_other_formats(weights)?;
    }
    if !config.tie_word_embeddings && !weights.contains(HEAD) && weights.contains(EMBEDDING) {
        let what =
            format!("{}: no tensor `{HEAD}`, and `tie_word_embeddings` is not true in config.json", weights.label());
        return Err(UsageError::new(what).hint(
            "transformers would draw it at random; set `tie_word_embeddings` to true if the model's output matrix is its embeddings",
        ).into());
    }
    let notes = [untied(config, weights)?, unread(config, weights, &expected)];
    Ok(notes.into_iter().flatten().collect())
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

/// An output matrix that is stored beside `tie_word_embeddings` and has other values is used, as transformers 5 does.
fn untied(config: &mut ModelConfig, weights: &Weights) -> Result<Option<String>> {
    if !config.tie_word_embeddings || !weights.contains(HEAD) || !weights.contains(EMBEDDING) {
        return Ok(None);
    }
    if weights.are_equal(HEAD, EMBEDDING)? {
        return Ok(None);
    }
    config.tie_word_embeddings = false;
    Ok(Some(format!(
        "{}: `{HEAD}` is stored and differs from the embeddings, although config.json says `tie_word_embeddings`: it is used, as \
         transformers 5 does (transformers 4 and others use the embeddings)",
        weights.label()
    )))
}

/// Says which tensors are read by nothing.
fn unread(config: &ModelConfig, weights: &Weights, expected: &BTreeSet<String>) -> Option<String> {
    let is_unread = |name: &&str| !expected.contains(*name) && !is_buffer(name) && *name != HEAD;
    let names: Vec<&str> = weights.names().filter(is_unread).collect();
    let (first, rest) = names.split_at(names.len().min(NAMED));
    let shown = first.iter().map(|name| format!("`{}`", shortened(name))).collect::<Vec<_>>().join(", ");
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let count = match names.len() {
        0 => return None,
        1 => "1 tensor is".to_owned(),
        many => format!("{many} tensors are"),
    };
    let layers = match stored_layers(&names) {
        Some(stored) if stored > config.layers => {
            format!("; {stored} layers are stored, and config.json says `num_hidden_layers` {}", config.layers)
        }
        _ => String::new(),
    };
    Some(format!("{}: {count} not read: {shown}{more}{layers}", weights.label()))
}

/// What older versions of transformers stored, and works out by itself.
fn is_buffer(name: &str) -> bool {
    name.contains("rotary_emb.inv_freq") || name.ends_with(".position_ids") || name.ends_with(".masked_bias")
}

/// One more than the highest layer that any of the names is of.
fn stored_layers(names: &[&str]) -> Option<usize> {
    let layer = |name: &&str| name.strip_prefix("model.layers.")?.split_once('.')?.0.parse::<usize>().ok();
    names.iter().filter_map(layer).max()?.checked_add(1)
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}
