//! The dry run: what an item would run and what it takes. It fails where the run would, and if there is nothing to run.

use anyhow::Result;

use super::args::{FOUND, LEARNED, ReproduceArgs};
use super::item_run::ItemRun;
use crate::cli::matrix::RunRequest;
use crate::cli::numbers::{duration, megabytes};
use crate::cli::output::print_line;
use crate::cli::setup::find_data;
use crate::version::PROGRAM;
use spattn_base::error::{UsageError, in_one_line};
use spattn_lab::analyze::units::{Order, Outlook};
use spattn_lab::papers::item::Item;
use spattn_lab::papers::learning::Learning;
use spattn_model::device::Device;

/// Whether an item has anything to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlined {
    /// The item would run, or is judged by measured times.
    Something,
    /// There is nothing to run.
    Nothing,
}

fn why_not(item: &Item, run: &ItemRun) -> String {
    match (&run.left_out, &item.missing) {
        (Some(left_out), _) => left_out.clone(),
        (None, Some(missing)) => missing.clone(),
        (None, None) => format!("it has no [{}]", run.variant.table()),
    }
}

impl ReproduceArgs {
    /// Prints what an item would run, analyse and learn.
    ///
    /// # Errors
    /// Always a [`UsageError`]: whatever would fail in the run, as far as this is known in advance.
    pub(super) fn outline(&self, name: &str, item: &Item) -> Result<Outlined, UsageError> {
        self.outlined(name, item).map_err(|error| match error.downcast::<UsageError>() {
            Ok(error) => error,
            Err(error) => UsageError::new(in_one_line(&error)).hint("the lines above say what each part needs"),
        })
    }

    fn outlined(&self, name: &str, item: &Item) -> Result<Outlined> {
        let run = self.item_run(name, item)?;
        if run.is_empty() {
            let Some(bench) = &item.bench else {
                print_line(&format!("nothing to run ({})\n", why_not(item, &run)))?;
                return Ok(Outlined::Nothing);
            };
            print_line(&format!("nothing to run: it is judged by measured times, {}\n", bench.tables.join(", ")))?;
            return Ok(Outlined::Something);
        }
        run.left_out.iter().try_for_each(|left_out| print_line(left_out))?;
        self.outline_analysis(&run)?;
        self.outline_calibrations(&run)?;
        for request in self.prepare(&run)? {
            // The run may be meant for another machine, so a lack of memory here is no error.
            RunRequest { is_elsewhere: true, ..request }.describe_without_verdicts()?;
        }
        Ok(Outlined::Something)
    }

    fn outline_analysis(&self, run: &ItemRun) -> Result<()> {
        let Some(observing) = &run.observing else { return Ok(()) };
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        let folder = run.folder.join(FOUND);
        let device = self.device()?.first_copy();
        let order = Order { observing, folder: &folder, data, device, overwrite: false, program: PROGRAM };
        let Outlook { documents, seconds, bytes } = order.check()?;
        let reading = self.reading_time(seconds)?;
        let list = |names: &[String]| names.join(", ");
        let lengths: Vec<String> = observing.lengths.iter().map(ToString::to_string).collect();
        print_line(&format!(
            "{} reads {documents} prompts of {} tokens ({}) for spattn analyze {}: {reading}, with up to {}\n",
            observing.model,
            list(&lengths),
            list(&observing.tasks),
            observing.analyses.join(" "),
            megabytes(bytes),
        ))
    }

    /// How long reading the prompts takes. It is estimated only for the CPU.
    fn reading_time(&self, seconds: f64) -> Result<String> {
        Ok(match self.device()? == Device::Cpu {
            true => format!("reading takes about {}", duration(seconds)),
            false => "how long a GPU takes is not known".to_owned(),
        })
    }

    fn outline_calibrations(&self, run: &ItemRun) -> Result<()> {
        let Some(learning) = &run.learning else { return Ok(()) };
        let Learning { model, tokens, length, .. } = learning;
        let lesson = self.lesson(learning, &run.folder.join(LEARNED))?.check()?;
        let (seconds, bytes) = lesson;
        let reading = self.reading_time(seconds)?;
        print_line(&format!(
            "{model} is calibrated {} times, with {tokens} tokens each in blocks of up to {length}: {}; {reading}, with up to {}, and training comes on top\n",
            learning.calibrations.len(),
            learning.calibrations.join(", "),
            megabytes(bytes),
        ))
    }
}
