//! `spattn tune --schedules`: how to divide a method's budget among layers.

use anyhow::Result;

use super::exit::Done;
use super::output::listed;
use super::output::{print, print_json};
use super::tune_args::TuneArgs;
use super::tune_reading::{Half, Reading};
use crate::report::schedules as drawing;
use crate::version::PROGRAM;
use spattn_attention::expand_grid;
use spattn_base::error::UsageError;
use spattn_lab::tune::schedules::{Budgeted, LEVELS, ScheduleOutcome, outcome};

/// Measures and compares schedules, prints the result and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a model that cannot read, files that cannot be written.
pub(super) fn find_schedule(args: &TuneArgs) -> Result<Done> {
    let mut specs = Vec::new();
    for text in &args.methods {
        specs.extend(expand_grid(text)?);
    }
    let [spec] = specs.as_slice() else {
        return Err(UsageError::new("--schedules takes one method").hint("run it once for each method").into());
    };
    let reading = Reading::open(args, "--schedules")?;
    let method = Budgeted::new(spec, &args.policy()?, &reading.loaded.model)?;
    let outcome = found(args, &reading, &method)?;
    reading.end();
    let facts = reading.facts(args, PROGRAM.as_json());
    let files = drawing::write(&outcome, &facts, &args.out)?;
    match args.json {
        true => print_json(&drawing::json(&outcome, &facts)?)?,
        false => print(&drawing::terminal(&outcome))?,
    }
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    Ok(Done::Completed)
}

fn found(args: &TuneArgs, reading: &Reading, method: &Budgeted) -> Result<ScheduleOutcome> {
    let mut journal = reading.journal(args, "schedules", &method.base())?;
    let (model, needs) = (&reading.loaded.model, method.method().method.prompt_needs().into_iter().collect());
    let parts: Vec<String> =
        std::iter::once("entropy".to_owned()).chain(LEVELS.map(|level| format!("error at {level}"))).collect();
    let mut looked = reading.numbers(&mut journal, Half::First, &parts, &needs, &mut |document, at| match at {
        0 => method.entropies(document),
        _ => method.errors_at(document, LEVELS[at - 1], model),
    })?;
    let levels = looked.split_off(1);
    let entropies = means(&looked[0]);
    let by_level: Vec<Vec<f64>> = levels.iter().map(|documents| means(documents)).collect();
    let curves: Vec<Vec<f64>> =
        (0..entropies.len()).map(|layer| by_level.iter().map(|errors| errors[layer]).collect()).collect();
    let schedules = method.schedules(&entropies, &curves);
    let parts: Vec<String> = schedules.iter().map(|named| format!("schedule={}", named.schedule)).collect();
    let measured = reading.numbers(&mut journal, Half::Second, &parts, &needs, &mut |document, at| {
        method.checked(document, &schedules[at].schedule, model)
    })?;
    Ok(outcome(method, entropies, curves, &schedules, &measured))
}

/// The mean over documents of `[document][layer]`, by layer.
fn means(documents: &[Vec<f64>]) -> Vec<f64> {
    let layers = documents.first().map_or(0, Vec::len);
    let of = |layer: usize| documents.iter().map(|numbers| numbers[layer]).sum::<f64>() / documents.len() as f64;
    (0..layers).map(of).collect()
}
