//! The log of `spattn reproduce`, `log.csv` in its folder: one row for each item that was run, with its command, the program's commit,
//! how long it took, and the digest of its result. Runs add rows; none is changed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;

use super::args::{ALONE, ReproduceArgs};
use super::finish::stored_records;
use super::item_run::ItemRun;
use crate::report::papers::suffix;
use crate::version::PROGRAM;
use spattn_base::clock;
use spattn_base::disk::open_here;
use spattn_eval::folder::owned_files::OwnFolder;
use spattn_lab::papers::item::Item;
use spattn_model::checksum;

/// Name of the log within the folder of results.
pub(super) const LOG: &str = "log.csv";

/// How an item's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// All that was asked for is measured.
    Whole,
    /// It was told to stop.
    Stopped,
    /// A part could not be run.
    Failed,
}

/// A row of the log.
#[derive(Debug, Serialize)]
struct LogRow<'a> {
    /// When the run began, in UTC.
    begun: String,
    item: &'a str,
    run: &'a str,
    model: &'a str,
    commit: &'a str,
    build: &'a str,
    gpu: String,
    command: String,
    /// Records of the item, with those of earlier runs that this one went on from.
    records: usize,
    /// Wall time of this run, with loading, judging and drawing.
    seconds: String,
    ended: Ended,
    /// SHA-256 of the item's result file after the run; empty if it has none.
    result_sha256: String,
}

/// An item's run that goes on.
pub(super) struct Running {
    begun: SystemTime,
    clock: Instant,
}

impl Running {
    pub(super) fn begin() -> Self {
        Self { begun: SystemTime::now(), clock: Instant::now() }
    }
}

impl ReproduceArgs {
    /// Adds a row for an item's run, unless the item has nothing to run.
    ///
    /// # Errors
    /// If the log cannot be written, or records cannot be read.
    pub(super) fn log(&self, name: &str, item: &Item, running: &Running, ended: Ended) -> Result<()> {
        // A model's file that is missing was reported.
        let Ok(run) = self.item_run(name, item) else { return Ok(()) };
        if run.is_empty() {
            return Ok(());
        }
        let (records, gpu) = counted(&run)?;
        let model = run.model.as_deref().unwrap_or_default();
        let result = self.out.join(name).join(format!("result{}.json", suffix(run.variant.name(), model)));
        let row = LogRow {
            begun: clock::date(running.begun),
            item: name,
            run: run.variant.name(),
            model,
            commit: PROGRAM.commit.unwrap_or_default(),
            build: PROGRAM.build,
            gpu,
            command: self.command(name),
            records,
            seconds: format!("{:.1}", running.clock.elapsed().as_secs_f64()),
            ended,
            result_sha256: if result.is_file() { checksum::sha256_of_file(&result)? } else { String::new() },
        };
        add(&self.out, &row)
    }
}

/// The number of an item's records, and the GPU that they were computed on.
fn counted(run: &ItemRun) -> Result<(usize, String)> {
    let folders = [run.folder.clone(), run.folder.join(ALONE)];
    let stored = folders.iter().map(|folder| stored_records(folder)).collect::<Result<Vec<_>>>()?;
    let records = || stored.iter().flatten().flat_map(|merged| &merged.records);
    let gpu = records().find_map(|record| record.conditions.as_deref()?.gpu.clone());
    Ok((records().count(), gpu.unwrap_or_default()))
}

/// Adds a row in one write, because other processes may be adding rows, too.
fn add(out: &Path, row: &LogRow<'_>) -> Result<()> {
    let path = out.join(LOG);
    let failed = || format!("cannot write {}", path.display());
    OwnFolder::of(out)?.claim([LOG])?;
    let mut file = open_here(&path, OpenOptions::new().create(true).append(true)).with_context(failed)?;
    let is_new = file.metadata().with_context(failed)?.len() == 0;
    let mut writer = csv::WriterBuilder::new().has_headers(is_new).from_writer(Vec::new());
    writer.serialize(row)?;
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    file.write_all(&bytes).with_context(failed)
}
