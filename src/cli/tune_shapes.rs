//! `spattn tune --target`: K and L of a method that samples by collisions.

use std::sync::atomic::Ordering;

use anyhow::{Result, anyhow};
use serde_json::json;

use super::analyze::TASKS;
use super::output::{print, print_line};
use super::setup::{find_data, set_threads, stop_on_interrupt, system_prompt};
use super::tune_args::TuneArgs;
use super::{Done, listed};
use crate::analyze::{Document, Loaded, Reader, Request};
use crate::attention::expand_grid;
use crate::error::UsageError;
use crate::eval::config::parse_dtype;
use crate::report::shapes as drawing;
use crate::tune::shapes::{Prediction, Sampler, Shape, ShapeOutcome, Target, check, chosen, measure};
use crate::version;

/// Tokens of a prompt if nothing is said.
const LENGTH: usize = 4096;

/// Predicts, checks, prints and writes.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a model that cannot read, files that cannot be written.
pub(super) fn run(args: &TuneArgs, target: Target) -> Result<Done> {
    set_threads(args.threads)?;
    let sampler = sampler(args)?;
    if !args.overwrite && args.out.join("tune.json").exists() {
        let what = format!("{} holds what was tuned before", args.out.display());
        return Err(UsageError::new(what).hint("choose another --out folder, or add --overwrite").into());
    }
    let data = args.data.as_deref().map(find_data).transpose()?;
    let tasks = if args.tasks.is_empty() { TASKS.map(str::to_owned).to_vec() } else { args.tasks.clone() };
    let length = match args.lengths.as_slice() {
        [] => LENGTH,
        [length] => *length,
        _ => {
            return Err(UsageError::new("--target takes prompts of one length")
                .hint("geometry changes with the length: find K and L for each --length by itself")
                .into());
        }
    };
    let system = system_prompt(args.system_prompt.as_deref())?;
    let request = Request {
        model: &args.model,
        dtype: args.dtype.as_deref().map(parse_dtype).transpose()?,
        tasks: &tasks,
        text: None,
        system: system.as_deref(),
        data: data.as_ref().map(|data| data.folder.as_path()),
        length,
        samples: 2 * args.prompts,
        queries: args.queries,
        layers: &[],
        seed: args.seed.unwrap_or(42),
    };
    let loaded = Reader::open(&request)?.load()?;
    loaded.model.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let stop = stop_on_interrupt()?;
    let (mut prediction, mut is_stopped) =
        (Prediction::new(&sampler, args.draws, loaded.model.dimensions.dtype()), false);
    let mut read = |is_of: &dyn Fn(usize) -> bool, what: &str, look: &mut dyn FnMut(&Document) -> Result<()>| {
        for (task, number) in loaded.documents().filter(|(_, number)| is_of(*number)) {
            if stop.load(Ordering::Relaxed) {
                is_stopped = true;
                return Err(anyhow!("stopped"));
            }
            let document = loaded.read(task, number, &Default::default())?;
            if !args.quiet {
                eprintln!("{what}: {} {number}, {} tokens", document.task, document.ids.len());
            }
            look(&document)?;
        }
        Ok(())
    };
    let found =
        read(&|number| number < args.prompts, "predicted from", &mut |document| Ok(prediction.observe(document)?))
            .and_then(|()| {
                let predicted = prediction.finish();
                let checked = check(&predicted, target, |shapes: &[Shape]| {
                    let mut measured = vec![Vec::new(); shapes.len()];
                    read(&|number| number >= args.prompts, "checked on", &mut |document| {
                        for (shape, measured) in shapes.iter().zip(&mut measured) {
                            measured.push(measure(&sampler, *shape, args.draws, document)?);
                        }
                        Ok(())
                    })?;
                    Ok(measured)
                })?;
                Ok((predicted, checked))
            });
    if is_stopped {
        eprintln!("interrupted: nothing was written");
        return Ok(Done::Interrupted);
    }
    let (predicted, checked) = found?;
    let chosen = chosen(&checked, target);
    let outcome = ShapeOutcome {
        base: sampler.written(None),
        target,
        chosen,
        spec: chosen.map(|at| sampler.written(Some(checked[at].predicted.shape))),
        predicted,
        checked,
        prompts: args.prompts * loaded.tasks().len(),
        fixed: prediction.fixed(),
    };
    finish(args, &outcome, &loaded, &request)
}

fn sampler(args: &TuneArgs) -> Result<Sampler, UsageError> {
    let mut specs = Vec::new();
    for text in &args.methods {
        specs.extend(expand_grid(text)?);
    }
    if specs.len() > 1 {
        return Err(UsageError::new("--target takes one method").hint("find K and L for each by itself"));
    }
    let spec = specs.pop().ok_or_else(|| UsageError::new("no method was given").hint("for example -m magicpig"))?;
    Sampler::new(spec, &args.policy()?)
}

fn finish(args: &TuneArgs, outcome: &ShapeOutcome, loaded: &Loaded, request: &Request) -> Result<Done> {
    let facts = json!({
        "program": version::as_json(),
        "model": loaded.model.id,
        "weights_sha256": loaded.model.weights_sha256,
        "read": loaded.tasks(),
        "length": request.length,
        "queries": request.queries,
        "draws": args.draws,
        "seed": request.seed,
        "system_prompt": request.system,
    });
    let files = drawing::write(outcome, &facts, &args.out)?;
    match args.json {
        true => print_line(drawing::json(outcome, &facts)?.trim_end())?,
        false => print(&drawing::terminal(outcome))?,
    }
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    Ok(Done::Completed)
}
