//! The verified model beside a reference: its texts, and its forward pass over the reference's tokens.

use anyhow::Result;
use serde_json::{Map, Value};
use spattn_attention::kv::KvDtype;
use spattn_base::error::UsageError;
use spattn_model::OpenModel;
use spattn_model::decoder::Decoder;
use spattn_model::tokenizer::Tokenizer;

use super::check::Check;
use super::dense::{greedy, rows_at};
use super::numbers::{judge_frequencies, judge_greedy, judge_logits, judge_residual_stream, size, tolerance};
use super::reference::HfReference;
use super::texts::{OurLine, SpecialTokens, judge_chat, judge_config, judge_lines, judge_special};

/// Returns the type that a reference was computed in.
///
/// # Errors
/// If the type is unknown.
pub fn dtype_of(reference: &HfReference) -> Result<KvDtype, UsageError> {
    match reference.said.dtype.as_str() {
        "float32" => Ok(KvDtype::F32),
        "float16" => Ok(KvDtype::F16),
        "bfloat16" => Ok(KvDtype::Bf16),
        other => Err(UsageError::unknown("dtype of the reference", other, ["float32", "bfloat16", "float16"])),
    }
}

/// Judges what needs no weights: configuration, RoPE, tokenizer, special tokens. `config` is `config.json`.
pub(super) fn judge_files(
    model: &OpenModel,
    config: &Map<String, Value>,
    reference: &HfReference,
) -> Result<Vec<Check>> {
    let said = &reference.said;
    let tokenizer = &model.tokenizer;
    let line = |text: &str| -> Result<OurLine> {
        let ids = tokenizer.encode_text(text, false)?;
        Ok(OurLine { decoded: tokenizer.decode(&ids)?, ids })
    };
    let lines = said.lines.iter().map(|theirs| line(&theirs.text)).collect::<Result<Vec<_>>>()?;
    let ours = SpecialTokens { front: tokenizer.front(), bos: tokenizer.bos_id(), eos: tokenizer.eos_ids() };
    let theirs = SpecialTokens { front: &said.front, bos: said.bos, eos: &said.eos };
    let frequencies = model.dimensions.only_rope().map(|rope| rope.frequencies(reference.ids.len()).0);
    Ok(vec![
        judge_config(config, &said.config),
        match (&frequencies, &reference.inverse_frequencies) {
            (Some(ours), Some(theirs)) => judge_frequencies(ours, theirs),
            (None, _) => Check::skipped("RoPE", "the model has no frequencies, or several sets of them"),
            (_, None) => Check::skipped("RoPE", "the reference has no frequencies, or several sets of them"),
        },
        judge_lines(&lines, &said.lines),
        judge_special(ours, theirs),
        chat(tokenizer, reference)?,
    ])
}

fn chat(tokenizer: &Tokenizer, reference: &HfReference) -> Result<Check> {
    let theirs = reference.said.chat.as_ref();
    let user = theirs.map_or("Hello", |chat| chat.user.as_str());
    let ours = if tokenizer.has_chat() { Some(tokenizer.encode_prompt(user, "")?) } else { None };
    Ok(judge_chat(ours.as_ref().map(|prompt| (prompt.text.as_str(), prompt.ids.as_slice())), theirs))
}

/// Judges the forward pass and greedy decoding.
pub(super) fn judge_forward(decoder: &Decoder, reference: &HfReference) -> Result<Vec<Check>> {
    if let Some(fault) = unknown_token(decoder, reference) {
        return Ok(vec![fault]);
    }
    let limit = tolerance(&[decoder.dtype(), dtype_of(reference)?]);
    let (ids, positions) = (reference.ids.as_slice(), reference.positions.as_slice());
    let hidden = reference.hidden_size();
    let (stream, rows) = match decoder.residual_stream(ids, positions)? {
        Some(stream) => (
            Some(judge_residual_stream(&stream, &reference.hidden, positions, limit)),
            stream.last().cloned().unwrap_or_default(),
        ),
        None => (None, rows_at(decoder, ids, positions)?),
    };
    let stream =
        stream.unwrap_or_else(|| Check::skipped("hidden states", "a GPU does not show them: leave --device out"));
    let logits = if decoder.config().hidden_size == hidden {
        let logits = decoder.logits(&rows, |row| positions[row])?;
        judge_logits(&logits, &reference.logits, positions, limit)
    } else {
        Check::skipped("logits", "hidden states have another size")
    };
    let said = &reference.said;
    let ours = greedy(decoder, &said.prompt, said.continuation.len())?;
    let tie = limit * size(&reference.logits);
    Ok(vec![stream, logits, judge_greedy(&ours, &said.continuation, &said.gaps, tie)])
}

/// Returns a failed check if the reference has a token that the model does not know.
fn unknown_token(decoder: &Decoder, reference: &HfReference) -> Option<Check> {
    let known = decoder.config().vocab_size;
    let id = reference.ids.iter().chain(&reference.said.prompt).find(|id| **id as usize >= known)?;
    Some(Check::fail(
        "vocabulary",
        format!(
            "the reference's text has token {id}, the model knows {known}, the reference {}",
            reference.vocab_size()
        ),
        "the vocabulary was cut: compare `vocab_size` in config.json",
    ))
}
