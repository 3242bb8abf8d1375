//! Compares the decoder with candle's.

use anyhow::Result;
use serde_json::{Map, Value};

use super::compute::{Candle, Computed};
use crate::verify::check::Check;
use crate::verify::dense::{greedy, logits_at};
use crate::verify::numbers::{judge_greedy, judge_logits, size, tolerance};
use crate::verify::passage::{NEW_TOKENS, Passage};
use spattn_model::Model;

/// The program that the model was compared with, and the checks.
pub(in crate::verify) struct BesideCandle {
    /// The program and its module; `None` if candle is no referee.
    pub name: Option<String>,
    /// The checks.
    pub checks: Vec<Check>,
}

impl BesideCandle {
    fn skipped(why: &str) -> Self {
        let found = format!("no referee for this model: {why}; --against hf is one");
        Self { name: None, checks: vec![Check::skipped("candle", found)] }
    }
}

/// Compares a model with this `config.json` over `tokens` tokens. The model is dropped midway, since candle needs the memory.
///
/// # Errors
/// If the forward pass yields numbers that are not finite, or candle needs too much memory.
pub(in crate::verify) fn judge(
    model: Model,
    config: &Map<String, Value>,
    tokens: Option<usize>,
) -> Result<BesideCandle> {
    let candle = match Candle::of(&model, config)? {
        Ok(candle) => candle,
        Err(why) => return Ok(BesideCandle::skipped(&why)),
    };
    let passage = candle.passage(&model.tokenizer, tokens)?;
    if model.check_tokens(&passage.ids).is_err() || model.check_tokens(&passage.prompt).is_err() {
        return Ok(BesideCandle::skipped("its text has tokens that the model does not know"));
    }
    let limit = tolerance(&[model.decoder.dtype()]).max(candle.tolerance());
    let logits = logits_at(&model.decoder, &passage.ids, &passage.positions)?;
    let continuation = greedy(&model.decoder, &passage.prompt, NEW_TOKENS)?;
    drop(model);
    candle.check_memory()?;
    let name = candle.name();
    let theirs = match candle.compute(&passage) {
        Ok(theirs) => theirs,
        // Only the first line: a backtrace may follow.
        Err(error) => {
            let error = error.to_string();
            return Ok(BesideCandle::skipped(&format!("candle says {}", error.lines().next().unwrap_or_default())));
        }
    };
    Ok(BesideCandle { name: Some(name), checks: compared(&logits, &continuation, &theirs, &passage, limit) })
}

fn compared(logits: &[f32], continuation: &[u32], theirs: &Computed, passage: &Passage, limit: f64) -> Vec<Check> {
    let mut of_logits = judge_logits(logits, &theirs.logits, &passage.positions, limit);
    if let Some(last) = passage.positions.last() {
        of_logits.found += &format!(", the last is {last}");
    }
    let tie = limit * size(&theirs.logits);
    let cut = passage.cut.as_ref().map(|why| Check::note("text", why.as_str()));
    [of_logits, judge_greedy(continuation, &theirs.continuation, &theirs.gaps, tie)].into_iter().chain(cut).collect()
}
