//! Trains the calibrations that a paper's item compares. Each result is stored when it is done, so a stopped run can be continued.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::papers::learning::{Learned, Learning, by_layer};
use crate::papers::progress::DoneUnit;
use crate::papers::seen::AnalysisTables;
use spattn_base::error::UsageError;
use spattn_eval::calibration::calibrate::{CalibrationOrder, CalibrationPlan, Text};
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_eval::plan::manifest::RESULTS_VERSION;
use spattn_eval::program::Program;
use spattn_eval::run::estimate::reading_seconds;
use spattn_model::device::Device;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};

/// Returns the name of a calibration's file, by the calibration's number.
fn name(at: usize) -> String {
    format!("{at:02}.json")
}

/// The calibrations to train and measure, and where to store the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Lesson<'a> {
    /// The calibrations and their settings.
    pub learning: &'a Learning,
    /// The folder of the measurements' files.
    pub folder: &'a Path,
    /// The device to compute on.
    pub device: Device,
    /// Whether stored measurements are deleted first.
    pub overwrite: bool,
    /// The program that trains.
    pub program: Program,
}

impl Lesson<'_> {
    /// Checks that the calibrations are possible, and returns the estimated seconds of all reading and the memory in bytes. The model's
    /// weights may be missing. Training takes further time, which depends on the calibration.
    ///
    /// # Errors
    /// For calibrations that are unknown or measure nothing, and for a missing model.
    pub fn check(&self) -> Result<(f64, usize)> {
        let source = ModelSource::parse(&self.learning.model)?;
        let model = OpenModel::open_without_weights(&source, None, TokenizerOptions::default())?;
        let (dimensions, Learning { tokens, length, .. }) = (&model.dimensions, self.learning);
        let mut prompts = Vec::new();
        for at in 0..self.orders()?.len() {
            prompts.push((tokens.div_ceil(*length) + self.held_out(at)?, *length));
        }
        let bytes = dimensions.weight_bytes().saturating_add(dimensions.prefill_bytes(*length, false));
        Ok((reading_seconds(dimensions, &prompts)?, bytes))
    }

    /// Trains the calibrations that are not stored yet, and returns all measurements; `None` if it was stopped. Calls `tell` for each new
    /// one.
    ///
    /// # Errors
    /// As [`check`](Self::check); if stored measurements have other settings, the model cannot read, or files cannot be written.
    pub fn learn(&self, stop: &AtomicBool, mut tell: impl FnMut(DoneUnit<'_>)) -> Result<Option<Vec<AnalysisTables>>> {
        if self.overwrite {
            OwnFolder::of(self.folder)?.clear(&[&owned_files::UNITS])?;
        }
        std::fs::create_dir_all(self.folder).map_err(|e| {
            UsageError::new(format!("cannot write to the folder {}: {e}", self.folder.display()))
                .hint("choose another --out folder")
        })?;
        let (open, orders) = (self.model()?, self.orders()?);
        let (mut all, mut model, mut found, count) = (Vec::new(), None, 0, orders.len());
        for (at, order) in orders.iter().enumerate() {
            if let Some(kept) = self.kept(at, &open)? {
                found += 1;
                all.push(kept);
                continue;
            }
            let model = match &mut model {
                Some(model) => model,
                empty => empty.insert(self.model()?.load(self.device)?),
            };
            let Some(csv) = self.measured(order, model, stop)? else { return Ok(None) };
            let learned = Learned {
                identity: self.identity(at, &open)?,
                program: self.program.as_json(),
                model: open.id.clone(),
                calibration: self.learning.calibrations[at].clone(),
                length: self.learning.length,
                held_out: self.held_out(at)?,
                csv,
            };
            owned_files::write_all(self.folder, &[(name(at), format!("{}\n", serde_json::to_string(&learned)?))])?;
            tell(DoneUnit { number: at + 1, of: count, found, what: &learned.calibration });
            all.push(learned);
        }
        Ok(Some(by_layer(&all)?))
    }

    /// Returns the stored measurements with these settings; empty unless all are stored.
    ///
    /// # Errors
    /// If a stored measurement cannot be read or has other settings.
    pub fn kept_all(&self) -> Result<Vec<AnalysisTables>> {
        let open = self.model()?;
        let all = (0..self.learning.calibrations.len()).map(|at| self.kept(at, &open));
        let all: Option<Vec<Learned>> = all.collect::<Result<_>>()?;
        Ok(all.map(|all| by_layer(&all)).transpose()?.unwrap_or_default())
    }

    fn model(&self) -> Result<OpenModel> {
        OpenModel::open(&ModelSource::parse(&self.learning.model)?, None, TokenizerOptions::default())
    }

    fn orders(&self) -> Result<Vec<CalibrationOrder>, UsageError> {
        let orders = self.learning.calibrations.iter().map(|spec| {
            let mut orders = CalibrationOrder::parse(std::slice::from_ref(spec))?;
            let order = orders.pop().filter(|_| orders.is_empty());
            let order = order.ok_or_else(|| UsageError::new(format!("`{spec}` expands to several calibrations")))?;
            match CalibrationOrder::reading(std::slice::from_ref(&order)).held_out {
                0 => Err(UsageError::new(format!(
                    "`{spec}` is not trained, so nothing of it is measured on held-out text"
                ))
                .hint("name hash_attention, which is trained")),
                _ => Ok(order),
            }
        });
        orders.collect()
    }

    fn held_out(&self, at: usize) -> Result<usize, UsageError> {
        Ok(CalibrationOrder::reading(&self.orders()?[at..=at]).held_out)
    }

    fn path(&self, at: usize) -> std::path::PathBuf {
        self.folder.join(name(at))
    }

    fn identity(&self, at: usize, model: &OpenModel) -> Result<Value> {
        let Learning { calibrations, tokens, length, seed, .. } = self.learning;
        Ok(json!({
            "results_version": RESULTS_VERSION,
            "model": model.id,
            "weights_sha256": model.weights_sha256,
            "calibration": calibrations[at],
            "tokens": tokens,
            "length": length,
            "held_out": self.held_out(at)?,
            "seed": seed,
        }))
    }

    /// Reads the measurement in a file; `None` if there is no file. It is an error if the measurement has other settings.
    fn kept(&self, at: usize, model: &OpenModel) -> Result<Option<Learned>> {
        let path = self.path(at);
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let learned: Learned =
            serde_json::from_str(&text).with_context(|| format!("{} is not a stored calibration", path.display()))?;
        match learned.identity == self.identity(at, model)? {
            true => Ok(Some(learned)),
            false => Err(UsageError::new(format!("{} was made with other settings", path.display()))
                .hint("add --overwrite, or choose another --out folder")
                .into()),
        }
    }

    /// Trains a calibration, and returns its measurements on held-out text; `None` if it was stopped.
    fn measured(&self, order: &CalibrationOrder, model: &Model, stop: &AtomicBool) -> Result<Option<String>> {
        let orders = std::slice::from_ref(order);
        let plan = CalibrationPlan {
            orders,
            texts: &[Text::from(order.text()?)],
            tokens: self.learning.tokens,
            length: self.learning.length,
            held_out: CalibrationOrder::reading(orders).held_out,
            seed: self.learning.seed,
        };
        plan.check(model)?;
        let outcome = plan.run(model, None, |_, _| match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })?;
        let Some(outcome) = outcome else { return Ok(None) };
        let csv = outcome.made.into_iter().find_map(|made| made.held_out);
        let too_short = || {
            UsageError::new(format!("held-out blocks of {} tokens are too short to measure on", self.learning.length))
                .hint("raise `length`, or lower `top`, the keys that a query should find")
        };
        Ok(Some(csv.ok_or_else(too_short)?))
    }
}
