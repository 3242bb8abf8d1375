//! Calibrations for methods that need one, learned from drawn keys and queries of the same kind as those that are timed.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

use super::drawn::Drawn;
use super::sequence::append;
use crate::attention::artefact::{self, Artefact, ArtefactInfo, FORMAT, ModelShape};
use crate::attention::calibration::{Assignment, Calibration, PrefillChunk};
use crate::attention::methods::CALIBRATIONS;
use crate::attention::{Configured, MethodSpec, Params, mix_seed};
use crate::kv::LayerKv;
use crate::model::dimensions::Dimensions;

/// Tokens that are learned from: what a method picks need not be good here, only of the right size and kind.
const TOKENS: usize = 1024;

/// The methods with what they need to have learned, for a model of so many layers.
///
/// # Errors
/// If a method cannot learn from what is drawn.
pub fn calibrated(
    methods: &[Configured],
    dimensions: &Dimensions,
    layers: usize,
    seed: u64,
) -> Result<Vec<Configured>> {
    let mut learned: BTreeMap<&str, Artefact> = BTreeMap::new();
    let with_all = |method: &Configured| {
        method.parts().filter_map(|part| part.method.calibration()).try_fold(method.clone(), |method, kind| {
            if !learned.contains_key(kind) {
                learned.insert(kind, learn(kind, dimensions, layers, seed)?);
            }
            Ok(method.calibrated(&learned[kind])?)
        })
    };
    methods.iter().map(with_all).collect()
}

/// Learns one kind of artefact.
fn learn(kind: &str, dimensions: &Dimensions, layers: usize, seed: u64) -> Result<Artefact> {
    let calibration: &Calibration =
        CALIBRATIONS.iter().find(|c| c.kind == kind).ok_or_else(|| anyhow!("nobody makes a calibration of {kind}"))?;
    let c = dimensions.config();
    let (heads, kv_heads, head_dim) = (c.heads, c.kv_heads, c.head_dim);
    let model = ModelShape { weights_sha256: "drawn".to_owned(), layers, heads, kv_heads, head_dim };
    let assignment = Assignment { rotation: dimensions.rotation(TOKENS), model: &model, seed, tokens: TOKENS };
    let mut collector = (calibration.start)(&assignment, &mut Params::new(&MethodSpec::bare(kind)))?;
    let angles = dimensions.angles(TOKENS);
    for layer in 0..layers {
        // Other tokens than those that are timed.
        let drawn = Drawn::new(dimensions, &angles, mix_seed(!seed, layer as u64));
        let rows = drawn.rows(0..TOKENS, TOKENS);
        let mut kv = LayerKv::new(dimensions.dtype(), kv_heads, head_dim, TOKENS);
        append(&mut kv, &rows, kv_heads * head_dim);
        collector.observe(&PrefillChunk::new(layer, 0, &rows.queries, heads, &kv));
    }
    collector.end_prompt(TOKENS);
    let collected = collector.finish();
    let info = ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model,
        data: "drawn keys and queries".to_owned(),
        seed,
        blocks: 1,
        tokens: TOKENS,
        settings: collected.settings,
    };
    let file = format!("the calibration of {kind} that was just made");
    Ok(Artefact::parse(&file, artefact::write(&info, &collected.tensors))?)
}
