//! The log of `spattn reproduce`, `log.csv` in its folder: a row for each run of an item, with its command, the program's commit, how long
//! it took, and the digest of the cells that it measured. Runs add rows. Drawing an item again changes only the digests of rows whose cells
//! were renamed.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;

use super::args::{ALONE, ReproduceArgs};
use super::finish::stored_records;
use super::item_run::ItemRun;
use crate::report::papers::{cells_sha256, read, suffix};
use crate::version::PROGRAM;
use spattn_base::clock;
use spattn_base::disk::open_here;
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_lab::papers::item::Item;
use spattn_model::checksum;

/// Name of the log within the folder of results.
pub(super) const LOG: &str = "log.csv";
/// The column with the digest of what a run measured.
const CELLS: &str = "cells_sha256";
/// The column that older versions had instead: the digest of the result's file, which changes when claims are judged again.
const FILE: &str = "result_sha256";

/// How an item's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// Everything that was asked for is measured.
    Whole,
    /// The run was told to stop.
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
    /// The number of the item's records, including those of earlier runs that this one resumed.
    records: usize,
    /// Wall time of this run, including loading, judging and drawing.
    seconds: String,
    ended: Ended,
    /// SHA-256 of the [measured cells](cells_sha256) of the item's result after the run; empty if it has none.
    cells_sha256: String,
}

/// The start of an item's run, from which its duration is measured.
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
        // A missing model file was reported already.
        let Ok(run) = self.item_run(name, item) else { return Ok(()) };
        if run.is_empty() {
            return Ok(());
        }
        let (records, gpu) = counted(&run)?;
        let model = run.model.as_deref().unwrap_or_default();
        let left = Digests::stored(&self.out, &[name, run.variant.name(), model].map(str::to_owned))?;
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
            cells_sha256: left.map_or(String::new(), |left| left.cells),
        };
        add(&self.out, &row)
    }
}

/// An item's run in the log: the item, the variant and the model.
type Run = [String; 3];

/// The digests of a stored result.
pub(super) struct Digests {
    /// The digest of its measured cells.
    cells: String,
    /// The digest of its file, which rows of older versions have.
    file: String,
}

impl Digests {
    /// The digests of a run's stored result; `None` if it has none, or if nothing was measured.
    fn stored(out: &Path, [item, variant, model]: &Run) -> Result<Option<Self>> {
        let path = out.join(item).join(format!("result{}.json", suffix(variant, model)));
        let Some(outcome) = read(&path)? else { return Ok(None) };
        let file = checksum::sha256_of_file(&path)?;
        Ok(cells_sha256(&outcome)?.map(|cells| Self { cells, file }))
    }
}

/// The log as a table.
struct LogTable {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl LogTable {
    /// The log of a folder; `None` if it has none.
    fn read(out: &Path) -> Result<Option<Self>> {
        let path = out.join(LOG);
        if !path.exists() {
            return Ok(None);
        }
        let failed = || format!("cannot read {}", path.display());
        let mut reader = csv::Reader::from_path(&path).with_context(failed)?;
        let fields = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect::<Vec<_>>();
        let header = fields(reader.headers().with_context(failed)?);
        let rows: Result<Vec<_>, _> = reader.records().map(|record| record.map(|record| fields(&record))).collect();
        Ok(Some(Self { header, rows: rows.with_context(failed)? }))
    }

    fn write(&self, out: &Path) -> Result<()> {
        let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
        writer.write_record(&self.header)?;
        self.rows.iter().try_for_each(|row| writer.write_record(row))?;
        let text = String::from_utf8(writer.into_inner().map_err(|error| error.into_error())?)?;
        owned_files::write_all(out, &[(LOG.to_owned(), text)]).map(drop)
    }

    fn at(&self, column: &str) -> Option<usize> {
        self.header.iter().position(|name| name == column)
    }

    /// The last row of each run. The stored result is from that row.
    fn last(&self) -> BTreeMap<Run, usize> {
        let (Some(item), Some(run), Some(model)) = (self.at("item"), self.at("run"), self.at("model")) else {
            return BTreeMap::new();
        };
        let of = |row: &Vec<String>| [item, run, model].map(|at| row[at].clone());
        self.rows.iter().enumerate().map(|(at, row)| (of(row), at)).collect()
    }
}

/// Converts a log of an older version: its rows get the digests of measured cells. A row whose result a later run replaced gets none.
///
/// # Errors
/// If the log or a result cannot be read, or the log cannot be written.
pub(super) fn convert(out: &Path) -> Result<()> {
    let Some(mut log) = LogTable::read(out)? else { return Ok(()) };
    let Some(digest) = log.at(FILE) else { return Ok(()) };
    log.header[digest] = CELLS.to_owned();
    log.rows.iter_mut().for_each(|row| row[digest].clear());
    for (run, at) in log.last() {
        log.rows[at][digest] = Digests::stored(out, &run)?.map_or(String::new(), |stored| stored.cells);
    }
    log.write(out)
}

/// The digests of an item's logged results, taken before the item is drawn again.
///
/// # Errors
/// If the log or a result cannot be read.
pub(super) fn logged(out: &Path, item: &str) -> Result<BTreeMap<Run, Digests>> {
    let runs = LogTable::read(out)?.map_or_else(BTreeMap::new, |log| log.last());
    let own = runs.into_keys().filter(|[of, ..]| of == item);
    own.filter_map(|run| Digests::stored(out, &run).map(|found| found.map(|digests| (run, digests))).transpose())
        .collect()
}

/// Updates the log after an item was drawn again, which may have renamed its cells. If the log had another digest before, the stored
/// numbers are not from the logged run: this is reported, and the row stays as it is.
///
/// # Errors
/// As [`convert`].
pub(super) fn follow(out: &Path, before: &BTreeMap<Run, Digests>) -> Result<()> {
    let Some(mut log) = LogTable::read(out)? else { return Ok(()) };
    let Some(digest) = log.at(CELLS) else { return Ok(()) };
    let last = log.last();
    let mut is_changed = false;
    for (run, known) in before {
        let Some((at, now)) = last.get(run).zip(Digests::stored(out, run)?) else { continue };
        let logged = &mut log.rows[*at][digest];
        if *logged == now.cells {
            continue;
        }
        if logged.is_empty() || *logged == known.cells || *logged == known.file {
            (*logged, is_changed) = (now.cells, true);
        } else {
            eprintln!("warning: {LOG}: {} on {}: the stored numbers are not those of its last run", run[0], run[2]);
        }
    }
    if is_changed { log.write(out) } else { Ok(()) }
}

/// The number of an item's records, and the GPU that they were computed on.
fn counted(run: &ItemRun) -> Result<(usize, String)> {
    let folders = [run.folder.clone(), run.folder.join(ALONE)];
    let stored = folders.iter().map(|folder| stored_records(folder)).collect::<Result<Vec<_>>>()?;
    let records = || stored.iter().flatten().flat_map(|merged| &merged.records);
    let gpu = records().find_map(|record| record.conditions.as_deref()?.gpu.clone());
    Ok((records().count(), gpu.unwrap_or_default()))
}

/// Adds a row in a single write, because other processes may add rows at the same time.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::papers::store;
    use spattn_eval::folder::owned_files::PAPERS_PAGE;
    use spattn_lab::papers::outcome::{CellOutcome, ItemOutcome, Number, OutcomeRow};

    /// A result of one cell. Its title is not part of what was measured.
    fn result(row: &str, mean: f64, title: &str) -> ItemOutcome {
        let measured = Some(Number { mean, ends: None, n: 8, most: None, is_named: false });
        let cells = vec![CellOutcome { measured, ..CellOutcome::default() }];
        ItemOutcome {
            name: "p/t".to_owned(),
            title: title.to_owned(),
            variant: "builtin".to_owned(),
            model: "builtin".to_owned(),
            columns: vec!["Score".to_owned()],
            rows: vec![OutcomeRow { name: row.to_owned(), cells, ..OutcomeRow::default() }],
            ..ItemOutcome::default()
        }
    }

    /// A folder with a result and a log of two runs. The later run left the result.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(column: &str, digest: &str) -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.store(&result("Full", 97.5, "a"));
            let row = |digest: &str| format!("2026-11-29T05:28:21Z,p/t,builtin,builtin,,,,,8,1.0,whole,{digest}\n");
            let heading = "begun,item,run,model,commit,build,gpu,command,records,seconds,ended";
            let text = format!("{heading},{column}\n{}{}", row("earlier"), row(digest));
            std::fs::write(folder.0.path().join(LOG), text).unwrap();
            std::fs::write(folder.0.path().join("README.md"), PAPERS_PAGE).unwrap();
            folder
        }

        fn store(&self, outcome: &ItemOutcome) {
            store(outcome, &self.0.path().join("p/t")).unwrap();
        }

        /// Stores a result as drawing does, and updates the log.
        fn drawn(&self, outcome: &ItemOutcome) {
            let before = logged(self.0.path(), "p/t").unwrap();
            self.store(outcome);
            follow(self.0.path(), &before).unwrap();
        }

        fn digests(&self) -> [String; 2] {
            let log = LogTable::read(self.0.path()).unwrap().unwrap();
            let at = log.at(CELLS).unwrap();
            log.rows.iter().map(|row| row[at].clone()).collect::<Vec<_>>().try_into().unwrap()
        }
    }

    fn cells(outcome: &ItemOutcome) -> String {
        cells_sha256(outcome).unwrap().unwrap()
    }

    #[test]
    fn the_digest_is_of_the_measured_cells_alone() {
        let first = result("Full", 97.5, "a");
        assert_eq!(cells(&first), checksum::sha256_hex(b"Full,Score,97.5,,\n"));
        assert_eq!(cells(&first), cells(&result("Full", 97.5, "b")));
        assert_ne!(cells(&first), cells(&result("Full", 97.6, "a")));
        assert_eq!(cells_sha256(&ItemOutcome::default()).unwrap(), None);
    }

    #[test]
    fn drawing_again_changes_a_digest_only_where_cells_have_other_names() {
        let (first, renamed) = (result("Full", 97.5, "a"), result("Dense", 97.5, "a"));
        let folder = Folder::new(CELLS, &cells(&first));
        folder.drawn(&result("Full", 97.5, "another title"));
        assert_eq!(folder.digests(), ["earlier".to_owned(), cells(&first)]);
        folder.drawn(&renamed);
        assert_eq!(folder.digests(), ["earlier".to_owned(), cells(&renamed)]);
        // Numbers of a run that was not logged are not taken for the last run's.
        folder.store(&result("Dense", 11.0, "a"));
        folder.drawn(&result("Full", 11.0, "a"));
        assert_eq!(folder.digests(), ["earlier".to_owned(), cells(&renamed)]);
    }

    #[test]
    fn a_log_of_an_older_version_gets_the_digests_of_what_is_stored() {
        let first = result("Full", 97.5, "a");
        let folder = Folder::new(FILE, "of the file");
        convert(folder.0.path()).unwrap();
        assert_eq!(folder.digests(), [String::new(), cells(&first)]);
        // A row that an older version added to a new log.
        let file = checksum::sha256_of_file(&folder.0.path().join("p/t/result.json")).unwrap();
        let added = Folder::new(CELLS, &file);
        convert(added.0.path()).unwrap();
        added.drawn(&first);
        assert_eq!(added.digests(), ["earlier".to_owned(), cells(&first)]);
    }
}
