//! Calibrations for methods that need one. If keys are captured from a model with its own calibration, that one is used; otherwise
//! one is learned from keys and queries of the same kind as the timed ones.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

use super::capture::Capture;
use super::drawn::Drawn;
use spattn_attention::artefact::{self, Artefact, ArtefactInfo, FORMAT, ModelShape};
use spattn_attention::calibration::{Assignment, Calibration, Collector, PrefillChunk, TextKind};
use spattn_attention::kv::LayerKv;
use spattn_attention::methods::CALIBRATIONS;
use spattn_attention::{Configured, MethodSpec, Params, mix_seed};
use spattn_model::dimensions::Dimensions;

/// The number of tokens to learn from. A benchmark needs selections of the right size and kind, not good ones.
const TOKENS: usize = 1024;

/// Returns the methods with their calibrations, and adds notes for the reader to `notes`.
///
/// # Errors
/// If a method cannot learn, or the model's own calibration cannot be used.
pub fn calibrated(
    methods: &[Configured],
    dimensions: &Dimensions,
    capture: Option<&Capture>,
    seed: u64,
    notes: &mut Vec<String>,
) -> Result<Vec<Configured>> {
    let mut learned: BTreeMap<&str, Artefact> = BTreeMap::new();
    let mut artefact_of = |kind| match capture {
        None => learn_from_drawn(kind, dimensions, seed),
        Some(capture) => match capture.artefact(kind)? {
            Some(artefact) => Ok(artefact),
            None => {
                notes.push(format!(
                    "the model has no calibration of {kind}: one is made from {TOKENS} tokens of the prompt."
                ));
                learn_from_read(kind, dimensions, capture, seed)
            }
        },
    };
    let with_all = |method: &Configured| {
        method.parts().filter_map(|part| part.method.calibration()).try_fold(method.clone(), |method, kind| {
            if !learned.contains_key(kind) {
                learned.insert(kind, artefact_of(kind)?);
            }
            Ok(method.calibrated(&learned[kind])?)
        })
    };
    methods.iter().map(with_all).collect()
}

/// Learns one kind of artefact from random keys and queries.
fn learn_from_drawn(kind: &str, dimensions: &Dimensions, seed: u64) -> Result<Artefact> {
    let c = dimensions.config();
    let (layers, heads, kv_heads, head_dim) = (c.layers, c.heads, c.kv_heads, c.head_dim);
    let model = ModelShape { weights_sha256: "drawn".to_owned(), layers, heads, kv_heads, head_dim };
    let angles = dimensions.angles(TOKENS);
    let show = |collector: &mut dyn Collector| {
        for layer in 0..layers {
            // The seed differs from that of the timed tokens.
            let drawn = Drawn::new(dimensions, &angles, mix_seed(!seed, layer as u64));
            let rows = drawn.rows(0..TOKENS, TOKENS);
            let mut kv = LayerKv::new(dimensions.dtype(), kv_heads, head_dim, TOKENS);
            kv.append_rows(&rows.keys, &rows.values);
            collector.observe(&PrefillChunk::new(layer, 0, &rows.queries, heads, &kv))?;
        }
        Ok(TOKENS)
    };
    learn(kind, dimensions, model, seed, "random keys and queries", show)
}

/// Learns one kind of artefact from a prompt that the model reads for calibration alone.
fn learn_from_read(kind: &str, dimensions: &Dimensions, capture: &Capture, seed: u64) -> Result<Artefact> {
    let show = |collector: &mut dyn Collector| {
        let ids = capture.learning_tokens(TOKENS)?;
        capture.read(&ids, ids.len(), |chunk| collector.observe(chunk), |_| Ok(()))?;
        Ok(ids.len())
    };
    learn(kind, dimensions, capture.shape(), seed, "keys and queries of a prompt", show)
}

/// Learns one kind of artefact from the tokens that `show` passes to the collector. `show` returns the number of tokens.
fn learn(
    kind: &str,
    dimensions: &Dimensions,
    model: ModelShape,
    seed: u64,
    data: &str,
    show: impl FnOnce(&mut dyn Collector) -> Result<usize>,
) -> Result<Artefact> {
    let calibration: &Calibration = CALIBRATIONS
        .iter()
        .find(|c| c.kind == kind)
        .ok_or_else(|| anyhow!("no method makes a calibration of {kind}"))?;
    let assignment = Assignment {
        rotation: dimensions.rotation(TOKENS, TOKENS),
        model: &model,
        seed,
        tokens: TOKENS,
        text: TextKind::Tasks,
    };
    let mut collector = (calibration.start)(&assignment, &mut Params::new(&MethodSpec::bare(kind)))?;
    let tokens = show(collector.as_mut())?;
    collector.end_prompt(tokens);
    let collected = collector.finish();
    let info = ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model,
        data: data.to_owned(),
        seed,
        blocks: 1,
        tokens,
        settings: collected.settings,
    };
    let file = format!("the calibration of {kind} that was just made");
    Ok(Artefact::parse(&file, artefact::write(&info, &collected.tensors))?)
}
