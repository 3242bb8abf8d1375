//! `spattn tune --target`: finds K and L of a method that samples by collisions.

use std::collections::BTreeSet;

use anyhow::Result;

use super::exit::Done;
use super::output::listed;
use super::output::{print, print_json};
use super::tune_args::TuneArgs;
use super::tune_reading::{Half, Reading};
use crate::report::shapes as drawing;
use crate::version::PROGRAM;
use spattn_attention::expand_grid;
use spattn_base::error::UsageError;
use spattn_lab::tune::shapes::{Prediction, Sampler, Shape, ShapeOutcome, Target, check, chosen, measure};

/// Predicts and checks shapes, prints the result and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a model that cannot read, files that cannot be written.
pub(super) fn find_shapes(args: &TuneArgs, target: Target) -> Result<Done> {
    let sampler = sampler(args)?;
    let reading = Reading::open(args, "--target")?;
    let outcome = found(args, &reading, &sampler, target)?;
    reading.end();
    finish(args, &outcome, &reading)
}

fn found(args: &TuneArgs, reading: &Reading, sampler: &Sampler, target: Target) -> Result<ShapeOutcome> {
    let mut journal = reading.journal(args, "shapes", &sampler.written(None))?;
    let nothing = BTreeSet::new();
    let mut prediction = Prediction::new(sampler, args.draws, reading.loaded.model.dimensions.dtype());
    let parts = ["predicted".to_owned()];
    let looked =
        reading.numbers(&mut journal, Half::First, &parts, &nothing, &mut |document, _| prediction.look(document))?;
    looked[0].iter().for_each(|numbers| prediction.take(numbers));
    let predicted = prediction.finish();
    let checked = check(&predicted, target, |shapes: &[Shape]| {
        let parts: Vec<String> = shapes.iter().map(|shape| format!("K={},L={}", shape.bits, shape.tables)).collect();
        let mut look = |document: &_, at: usize| Ok(measure(sampler, shapes[at], args.draws, document)?.to_vec());
        let measured = reading.numbers(&mut journal, Half::Second, &parts, &nothing, &mut look)?;
        let both = |numbers: Vec<f64>| [numbers[0], numbers[1]];
        Ok(measured.into_iter().map(|of_shape| of_shape.into_iter().map(both).collect()).collect())
    })?;
    let chosen = chosen(&checked, target);
    Ok(ShapeOutcome {
        base: sampler.written(None),
        target,
        chosen,
        spec: chosen.map(|at| sampler.written(Some(checked[at].predicted.shape))),
        predicted,
        checked,
        prompts: args.prompts * reading.loaded.tasks().len(),
        fixed: prediction.fixed(),
    })
}

fn sampler(args: &TuneArgs) -> Result<Sampler, UsageError> {
    let mut specs = Vec::new();
    for text in &args.methods {
        specs.extend(expand_grid(text)?);
    }
    if specs.len() > 1 {
        return Err(UsageError::new("--target takes one method").hint("run it once for each method"));
    }
    let spec = specs.pop().ok_or_else(|| UsageError::new("no method was given").hint("for example -m magicpig"))?;
    Sampler::new(spec, &args.policy()?)
}

fn finish(args: &TuneArgs, outcome: &ShapeOutcome, reading: &Reading) -> Result<Done> {
    let facts = reading.facts(args, PROGRAM.as_json());
    let files = drawing::write(outcome, &facts, &args.out)?;
    match args.json {
        true => print_json(&drawing::json(outcome, &facts)?)?,
        false => print(&drawing::terminal(outcome))?,
    }
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    Ok(Done::Completed)
}
