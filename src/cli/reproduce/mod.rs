//! `spattn reproduce`: the papers' tables and figures, with published and measured numbers side by side.

mod args;
mod command;
mod dry_run;
mod facts;
mod finish;
mod item_run;
mod measure;
mod prepare;
mod real_file;
mod run_log;

use anyhow::{Result, anyhow};

use self::args::Named;
pub use self::args::ReproduceArgs;
use self::dry_run::Outlined;
use self::run_log::{Ended, Running};
use super::exit::{Done, ErrorWithHint};
use super::output::print_line;
use crate::report::papers::write_pages;
use spattn_base::error::{UsageError, in_one_line};
use spattn_base::privacy;
use spattn_eval::run::runner::is_fatal;
use spattn_lab::papers::item::Variant;

/// Runs, judges and draws the requested items, then draws the pages that list all items.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; parts that could not be run.
pub fn run_reproduce(args: ReproduceArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    let items = args.items()?;
    args.check_flags()?;
    if args.dry_run {
        let outlined = args.outline_all(&items).map(|()| Done::Completed);
        return outlined.map_err(|error| args.with_advice(error, &items));
    }
    args.check_free(&items)?;
    run_log::convert(&args.out)?;
    let (mut failed, mut not_begun, count) = (Vec::new(), 0, items.len());
    for (at, Named { name, item }) in items.iter().enumerate() {
        if args.quiet.0.is_none() {
            eprintln!("{name} ({} of {count}): {}", at + 1, item.title);
        }
        if args.draw_only {
            let before = run_log::logged(&args.out, name)?;
            args.finish(name, item, None)?;
            run_log::follow(&args.out, &before)?;
            continue;
        }
        let running = Running::begin();
        let failure = match args.measure(name, item) {
            Ok(stopped @ (Done::Interrupted | Done::Preempted)) => {
                args.log(name, item, &running, Ended::Stopped)?;
                return Ok(stopped);
            }
            Ok(Done::Completed | Done::NotSafe) => None,
            Err(error) => Some(error.context(name.clone())),
        };
        args.finish(name, item, failure.as_ref())?;
        args.log(name, item, &running, if failure.is_some() { Ended::Failed } else { Ended::Whole })?;
        // The pages are written after each item, so they are complete whenever a run is stopped.
        write_pages(&args.out)?;
        let is_last = failure.as_ref().is_some_and(ends_all);
        failed.extend(failure);
        if is_last {
            not_begun = count - at - 1;
            break;
        }
    }
    write_pages(&args.out)?;
    // With only one item, its own error is the result.
    if count == 1 {
        let error = failed.into_iter().next().map(|error| args.with_advice(error, &items));
        return error.map_or(Ok(Done::Completed), Err);
    }
    failed.iter().for_each(|error| eprintln!("failed: {}", in_one_line(error)));
    if not_begun > 0 {
        eprintln!(
            "{not_begun} of {count} items were not begun: the device computes nothing more in this process; the same command goes on with them"
        );
    }
    match failed.len() + not_begun {
        0 => Ok(Done::Completed),
        n => Err(args.with_advice(anyhow!("{n} of {count} items could not be run completely"), &items)),
    }
}

/// Whether a failure keeps all further items from running in this process.
fn ends_all(failure: &anyhow::Error) -> bool {
    is_fatal(ErrorWithHint::without(failure))
}

impl ReproduceArgs {
    /// Adds advice if the paper's own model was asked for, which takes a download and often a GPU: `--builtin` needs neither.
    fn with_advice(&self, error: anyhow::Error, items: &[Named]) -> anyhow::Error {
        let is_papers = self.variant() == Variant::Paper && self.model.is_none() && !self.draw_only;
        if !is_papers || !items.iter().any(|named| named.item.is_run(Variant::Builtin)) {
            return error;
        }
        let advice = "the paper's own model and texts were asked for: with --builtin a similar, small experiment runs on the model in this program, \
                      without a download"
            .to_owned();
        ErrorWithHint { error, advice }.into()
    }

    /// Prints what all items would run. Fails if one of them would fail, or if none has anything to run.
    fn outline_all(&self, items: &[Named]) -> Result<()> {
        let (mut failed, mut some) = (Vec::new(), false);
        for Named { name, item } in items {
            print_line(&format!("{name}: {}", item.title))?;
            match self.outline(name, item) {
                Ok(outlined) => some |= outlined == Outlined::Something,
                Err(error) => failed.push(UsageError { what: format!("{name}: {}", error.what), ..error }),
            }
        }
        let count = items.len();
        match failed.len() {
            0 if some => Ok(()),
            0 => Err(UsageError::new(format!("there is nothing to run in {count} of {count} items"))
                .hint(
                    "--builtin, --real and --model choose what is run; `spattn list configs` shows what each item has",
                )
                .into()),
            1 if count == 1 => Err(failed.remove(0).into()),
            n => {
                failed.iter().for_each(|error| eprintln!("failed: {}", in_one_line(&error.clone().into())));
                Err(UsageError::new(format!("{n} of {count} items could not be run completely")).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_attention::kv::DeviceFailure;
    use spattn_model::engine::EngineError;

    #[test]
    fn a_fatal_failure_of_the_device_ends_all_items_whether_records_were_kept_or_not() {
        let of = |failure: DeviceFailure| anyhow::Error::new(EngineError::Device(failure)).context("example 0");
        let kept = |error| {
            let advice = "6 records are kept".to_owned();
            anyhow::Error::from(ErrorWithHint { error, advice }).context("topk/figure-2")
        };
        let (fatal, other) = (|| of(DeviceFailure::fatal("it failed")), || of(DeviceFailure::new("no room")));
        assert!(ends_all(&fatal().context("topk/figure-2")) && ends_all(&kept(fatal())));
        assert!(!ends_all(&other().context("topk/figure-2")) && !ends_all(&kept(other())));
    }
}
