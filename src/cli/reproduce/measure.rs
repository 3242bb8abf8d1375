//! Runs an item's evaluation, analysis and calibrations. Each part is stored when it is done.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use super::args::{FOUND, KEPT, LEARNED, ReproduceArgs};
use crate::cli::exit::Done;
use crate::cli::interrupt;
use crate::cli::setup::{find_data, raise_on_preemption};
use crate::version::PROGRAM;
use spattn_base::meter::Meter;
use spattn_lab::analyze::units::{Ended, Order};
use spattn_lab::papers::item::Item;
use spattn_lab::papers::learning::Learning;
use spattn_lab::papers::progress::DoneUnit;
use spattn_lab::papers::seen::Observing;

impl ReproduceArgs {
    /// Runs an item's evaluation, its analysis and its calibrations.
    pub(super) fn measure(&self, name: &str, item: &Item) -> Result<Done> {
        let run = self.item_run(name, item)?;
        if let Some(left_out) = run.left_out.as_ref().filter(|_| self.quiet.0.is_none()) {
            eprintln!("note: {left_out}");
        }
        for request in self.prepare(&run)? {
            match request.record()? {
                Done::Completed => {}
                stopped => return Ok(stopped),
            }
        }
        if run.observing.is_none() && run.learning.is_none() {
            return Ok(Done::Completed);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let is_preempted = raise_on_preemption(&stop, &Arc::new(AtomicBool::new(false)))?;
        // Each unit is stored when it is done.
        interrupt::stop_within_grace(&stop, || KEPT.to_owned())?;
        let looked = run.observing.as_ref().map_or(Ok(true), |observing| self.look(&run.folder, observing, &stop))?;
        let whole = looked && run.learning.as_ref().map_or(Ok(true), |own| self.learn(&run.folder, own, &stop))?;
        Ok(match (whole, is_preempted.load(Ordering::Relaxed)) {
            (true, _) => Done::Completed,
            (false, true) => Done::Preempted,
            (false, false) => interrupt::answer(),
        })
    }

    /// Trains the calibrations that are not stored yet. Returns whether all are done.
    fn learn(&self, folder: &Path, learning: &Learning, stop: &AtomicBool) -> Result<bool> {
        let folder = folder.join(LEARNED);
        let mut units = Units::begin(self.quiet.0.is_some(), "training the first calibration");
        Ok(self.lesson(learning, &folder)?.learn(stop, |unit| units.told(unit))?.is_some())
    }

    /// Runs the analyses that are not stored yet. Returns whether all are done.
    fn look(&self, folder: &Path, observing: &Observing, stop: &AtomicBool) -> Result<bool> {
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        let (folder, device) = (folder.join(FOUND), self.device()?.first_copy());
        let order = Order { observing, folder: &folder, data, device, overwrite: self.overwrite, program: PROGRAM };
        let mut units = Units::begin(self.quiet.0.is_some(), "reading the first prompt");
        Ok(matches!(order.see(stop, |unit| units.told(unit))?, Ended::Whole(_)))
    }
}

/// The progress of analyses or calibrations, with a line for each.
struct Units {
    meter: Meter,
    quiet: bool,
}

impl Units {
    fn begin(quiet: bool, doing: &str) -> Self {
        Self { meter: Meter::new(quiet, doing), quiet }
    }

    fn told(&mut self, DoneUnit { number, of, found, what }: DoneUnit<'_>) {
        self.meter.at(number as u64, of as u64, found as u64, || format!("{number}/{of} parts"));
        if !self.quiet {
            let left = if number < of { self.meter.left() } else { String::new() };
            self.meter.tell(&format!("{number} of {of}: {what}{left}"));
        }
    }
}
