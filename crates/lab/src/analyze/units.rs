//! Runs the analyses of a paper's item. Each unit of documents is analysed and stored in a file of its own, so that a stopped run can be
//! resumed.
//!
//! The stored form is [`AnalysisTables`], which [`papers`](crate::papers) judges without knowledge of any analysis.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{DocumentReader, Loaded, Method, Request, Running, Setup, select};
use crate::analyze::findings::{Column, Table};
use crate::papers::progress::DoneUnit;
use crate::papers::seen::{AnalysisTables, Observing, SeenTable};
use spattn_attention::Policy;
use spattn_base::error::UsageError;
use spattn_eval::folder::owned_files::{self, OwnFolder};
use spattn_eval::plan::manifest::RESULTS_VERSION;
use spattn_eval::program::Program;
use spattn_eval::run::estimate::reading_seconds;
use spattn_model::device::Device;

/// Sink tokens, random draws and seed: the defaults of `spattn analyze`.
const SINK: usize = 4;
const DRAWS: usize = 16;
const SEED: u64 = 0;

/// How the analysis of all units ended.
#[derive(Debug)]
pub enum Ended {
    /// All units are done, in the order of lengths, tasks and units.
    Whole(Vec<AnalysisTables>),
    /// It was stopped; the finished units are stored.
    Stopped,
}

/// The expected cost of an analysis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outlook {
    /// Number of prompts.
    pub documents: usize,
    /// Approximate seconds to read them; the analysis itself comes on top.
    pub seconds: f64,
    /// The most memory needed, in bytes.
    pub bytes: usize,
}

/// The units to analyse, and where to store them.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// What to observe.
    pub observing: &'a Observing,
    /// The folder of the units' files.
    pub folder: &'a Path,
    /// The folder with the data files of tasks.
    pub data: Option<&'a Path>,
    /// The device that reads the prompts; the analysis itself runs on the CPU.
    pub device: Device,
    /// Whether stored units are deleted first.
    pub overwrite: bool,
    /// The program that analyses, which the files name.
    pub program: Program,
}

impl<'a> Order<'a> {
    /// Checks that the analysis is possible, and returns its expected cost. The model's weights may be missing.
    ///
    /// # Errors
    /// For unknown analyses, tasks or layers; for methods that cannot be examined; for prompts that are too long for the model.
    pub fn check(&self) -> Result<Outlook> {
        select(&self.observing.analyses)?;
        let lengths = &self.observing.lengths;
        let readers = lengths.iter().map(|length| DocumentReader::planned(&self.request(*length)));
        let readers: Vec<DocumentReader> = readers.collect::<Result<_>>()?;
        for reader in &readers {
            Method::parse_all(&self.observing.methods, &policy(), reader.model())?;
        }
        let Some(first) = readers.first() else { return Ok(Outlook::default()) };
        let prompts: Vec<(usize, usize)> =
            readers.iter().map(DocumentReader::documents).zip(lengths.iter().copied()).collect();
        Ok(Outlook {
            documents: prompts.iter().map(|(count, _)| count).sum(),
            seconds: reading_seconds(&first.model().dimensions, &prompts)?,
            bytes: readers.iter().map(DocumentReader::bytes).max().unwrap_or(0),
        })
    }

    /// Analyses all units that are not stored yet, and returns all units. Calls `tell` for each new one.
    ///
    /// # Errors
    /// As [`check`](Self::check); if stored units have other settings, the model cannot read, or files cannot be written.
    pub fn see(&self, stop: &AtomicBool, mut tell: impl FnMut(DoneUnit<'_>)) -> Result<Ended> {
        if self.overwrite {
            OwnFolder::of(self.folder)?.clear(&[&owned_files::UNITS])?;
        }
        std::fs::create_dir_all(self.folder).map_err(|e| {
            UsageError::new(format!("cannot write to the folder {}: {e}", self.folder.display()))
                .hint("choose another --out folder")
        })?;
        let (mut all, mut found) = (Vec::new(), 0);
        let units = self.observing.units();
        for length in &self.observing.lengths {
            let mut reading = Reading::Found(Box::new(self.reader(*length)?));
            let tasks = reading.tasks();
            let count = units * tasks.len() * self.observing.lengths.len();
            for (at, task) in tasks.iter().enumerate() {
                for unit in 0..units {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(Ended::Stopped);
                    }
                    let path = self.path(task, *length, unit);
                    let identity = self.identity(&reading, *length, task, unit);
                    let seen = match self.kept(&path, &identity)? {
                        Some(seen) => {
                            found += 1;
                            seen
                        }
                        None => {
                            reading = reading.loaded()?;
                            let seen = self.unit(reading.weights()?, identity, (at, task), *length, unit)?;
                            let text = format!("{}\n", serde_json::to_string(&seen)?);
                            owned_files::write_all(self.folder, &[(self.name(task, *length, unit), text)])?;
                            let what = format!("{task}, {length} tokens, unit {unit}");
                            tell(DoneUnit { number: all.len() + 1, of: count, found, what: &what });
                            // Read back from the file, so that every run sees the same digits.
                            read(&path)?
                        }
                    };
                    all.push(seen);
                }
            }
        }
        Ok(Ended::Whole(all))
    }

    /// Returns the stored units with these settings.
    ///
    /// # Errors
    /// If a stored unit cannot be read or has other settings.
    pub fn kept_all(&self) -> Result<Vec<AnalysisTables>> {
        let mut all = Vec::new();
        for length in &self.observing.lengths {
            let reading = Reading::Found(Box::new(self.reader(*length)?));
            for task in reading.tasks() {
                for unit in 0..self.observing.units() {
                    let identity = self.identity(&reading, *length, &task, unit);
                    all.extend(self.kept(&self.path(&task, *length, unit), &identity)?);
                }
            }
        }
        Ok(all)
    }

    fn reader(&self, length: usize) -> Result<DocumentReader> {
        DocumentReader::open(&self.request(length))
    }

    fn request(&self, length: usize) -> Request<'a> {
        let Observing { model, tasks, samples, queries, layers, .. } = self.observing;
        Request {
            model,
            device: self.device,
            dtype: None,
            tasks,
            text: None,
            system: None,
            data: self.data,
            length,
            samples: *samples,
            queries: *queries,
            layers,
            seed: SEED,
        }
    }

    fn path(&self, task: &str, length: usize, unit: usize) -> PathBuf {
        self.folder.join(self.name(task, length, unit))
    }

    fn name(&self, task: &str, length: usize, unit: usize) -> String {
        format!("{}-{length}-{unit:04}.json", task.replace('/', "_"))
    }

    fn identity(&self, reading: &Reading, length: usize, task: &str, unit: usize) -> Value {
        let model = reading.model();
        let Observing { analyses, together, queries, layers, methods, .. } = self.observing;
        json!({
            "results_version": RESULTS_VERSION,
            "model": model.id,
            "weights_sha256": model.weights_sha256,
            "configuration": model.configuration(),
            "inputs": reading.inputs(),
            "analyses": analyses,
            "task": task,
            "length": length,
            "unit": unit,
            "together": together,
            "queries": queries,
            "layers": layers,
            "methods": methods,
            "sink": SINK,
            "draws": DRAWS,
            "seed": SEED,
        })
    }

    /// Reads the unit in a file; `None` if there is no file. It is an error if the unit has other settings.
    fn kept(&self, path: &Path, identity: &Value) -> Result<Option<AnalysisTables>> {
        if !path.exists() {
            return Ok(None);
        }
        let seen = read(path)?;
        match seen.identity == *identity {
            true => Ok(Some(seen)),
            false => Err(UsageError::new(format!("{} was made with other settings", path.display()))
                .hint("add --overwrite, or choose another --out folder")
                .into()),
        }
    }

    fn unit(
        &self,
        loaded: &Loaded,
        identity: Value,
        (at, task): (usize, &str),
        length: usize,
        unit: usize,
    ) -> Result<AnalysisTables> {
        let Observing { analyses, together, methods, .. } = self.observing;
        let methods = Method::read_all(methods, &policy(), &loaded.model)?;
        let setup = Setup { loaded, sink: SINK, methods: &methods, draws: DRAWS, seed: SEED };
        let mut running = Running::start(&select(analyses)?, &setup)?;
        for number in unit * together..(unit + 1) * together {
            let document = loaded.read(at, number, running.needs())?;
            running.observe(&document)?;
        }
        let tables = running.finish().into_iter().flat_map(|found| found.findings.tables).map(plain).collect();
        Ok(AnalysisTables {
            identity,
            program: self.program.as_json(),
            model: loaded.model.id.clone(),
            task: task.to_owned(),
            length,
            unit,
            documents: *together,
            tables,
        })
    }
}

fn policy() -> Policy {
    Policy { sink: SINK, ..Policy::default() }
}

fn plain(table: Table) -> SeenTable {
    let drawn = |column: &Column| Some((column.name.clone(), column.drawn?));
    SeenTable {
        drawn: table.columns.iter().filter_map(drawn).collect(),
        name: table.name,
        keys: table.keys,
        columns: table.columns.into_iter().map(|column| column.name).collect(),
        rows: table.rows.into_iter().map(|row| (row.keys, row.numbers)).collect(),
    }
}

fn read(path: &Path) -> Result<AnalysisTables> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a stored measurement", path.display()))
}

/// A model to read prompts with. Its weights are loaded when the first unit needs them.
enum Reading {
    Found(Box<DocumentReader>),
    Loaded(Box<Loaded>),
}

impl Reading {
    fn model(&self) -> &spattn_model::OpenModel {
        match self {
            Self::Found(reader) => reader.model(),
            Self::Loaded(loaded) => &loaded.model,
        }
    }

    fn tasks(&self) -> Vec<String> {
        match self {
            Self::Found(reader) => reader.tasks(),
            Self::Loaded(loaded) => loaded.tasks(),
        }
    }

    fn inputs(&self) -> Vec<String> {
        match self {
            Self::Found(reader) => reader.inputs(),
            Self::Loaded(loaded) => loaded.inputs(),
        }
    }

    fn loaded(self) -> Result<Self> {
        match self {
            Self::Found(reader) => Ok(Self::Loaded(Box::new(reader.load()?))),
            loaded @ Self::Loaded(_) => Ok(loaded),
        }
    }

    fn weights(&self) -> Result<&Loaded> {
        match self {
            Self::Loaded(loaded) => Ok(loaded),
            Self::Found(_) => anyhow::bail!("weights were not loaded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::ITEMS;
    use crate::papers::item::{Item, Variant};
    use crate::papers::measure::{Evidence, MeasuredItem};
    use crate::papers::run_of::RunOf;
    use rayon::prelude::*;

    const TESTS: Program = Program { version: "0", commit: None, build: "test" };

    fn observing() -> Observing {
        Observing {
            model: "builtin".to_owned(),
            analyses: vec!["mass".to_owned(), "entropy".to_owned()],
            tasks: vec!["ruler/vt".to_owned(), "ruler/cwe".to_owned()],
            lengths: vec![900],
            samples: 2,
            together: 1,
            queries: 2,
            layers: vec![0, 5],
            methods: Vec::new(),
        }
    }

    fn whole(ended: Ended) -> Vec<AnalysisTables> {
        match ended {
            Ended::Whole(all) => all,
            Ended::Stopped => panic!("it was stopped"),
        }
    }

    #[test]
    fn units_that_were_seen_are_kept_and_others_come_to_them() {
        let temp = tempfile::tempdir().unwrap();
        let observing = observing();
        let order = Order {
            observing: &observing,
            folder: temp.path(),
            data: None,
            device: Device::Cpu,
            overwrite: false,
            program: TESTS,
        };
        let outlook = order.check().unwrap();
        assert!(outlook.documents == 4 && outlook.seconds > 0.0 && outlook.bytes > 1 << 20, "{outlook:?}");
        let go = AtomicBool::new(false);
        let mut told = Vec::new();
        let line = |unit: DoneUnit<'_>| format!("{} of {}, {} found: {}", unit.number, unit.of, unit.found, unit.what);
        let first = whole(order.see(&go, |unit| told.push(line(unit))).unwrap());
        assert_eq!((first.len(), told.len()), (4, 4), "{told:?}");
        // After one file is lost, only its unit is analysed again, with the same result.
        std::fs::remove_file(temp.path().join("ruler_cwe-900-0001.json")).unwrap();
        assert_eq!(order.kept_all().unwrap().len(), 3);
        told.clear();
        let again = whole(order.see(&go, |unit| told.push(line(unit))).unwrap());
        assert_eq!(told, ["4 of 4, 3 found: ruler/cwe, 900 tokens, unit 1"]);
        assert_eq!(again, first);
        assert_eq!(order.kept_all().unwrap(), first);
        // The result of two documents in one unit is their mean.
        let both = Observing { together: 2, ..observing.clone() };
        let other = temp.path().join("both");
        let joined = whole(Order { observing: &both, folder: &other, ..order }.see(&go, |_| {}).unwrap());
        let number = |seen: &AnalysisTables| {
            let table = seen.tables.iter().find(|table| table.name == "mass_by_layer").unwrap();
            table.rows[0].1[0].unwrap()
        };
        assert!((number(&joined[0]) - (number(&first[0]) + number(&first[1])) / 2.0).abs() < 1e-12);
        // Other settings are refused.
        let wider = Observing { queries: 3, ..observing.clone() };
        let error = Order { observing: &wider, ..order }.see(&go, |_| {}).unwrap_err();
        assert!(error.to_string().contains("was made with other settings"), "{error}");
        let stopped = AtomicBool::new(true);
        assert!(matches!(order.see(&stopped, |_| {}).unwrap(), Ended::Stopped));
    }

    /// Checks that every table, column and cell that an item selects exists in the results on short prompts.
    #[test]
    fn what_items_select_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let (mut items, mut settings) = (Vec::new(), Vec::new());
        for shipped in ITEMS {
            let item: Item = shipped.parse().unwrap();
            let paper = item.observing(Variant::Paper);
            let Some(builtin) = item.observing(Variant::Builtin) else {
                assert!(paper.is_none(), "{}: nothing is looked at on the built-in model", shipped.name);
                continue;
            };
            assert!(paper.is_none_or(|paper| select(&paper.analyses).is_ok()), "{}", shipped.name);
            let short = Observing {
                lengths: vec![builtin.lengths[0].min(1700)],
                samples: builtin.together.min(2),
                together: builtin.together.min(2),
                queries: 1,
                ..builtin.clone()
            };
            // Items with equal settings share their results.
            let at = settings.iter().position(|other| *other == short).unwrap_or_else(|| {
                settings.push(short);
                settings.len() - 1
            });
            items.push((shipped.name, item, at));
        }
        let see = |(at, observing): (usize, &Observing)| {
            let folder = temp.path().join(at.to_string());
            let order =
                Order { observing, folder: &folder, data: None, device: Device::Cpu, overwrite: false, program: TESTS };
            whole(order.see(&AtomicBool::new(false), |_| {}).unwrap())
        };
        let all: Vec<Vec<AnalysisTables>> = settings.par_iter().enumerate().map(see).collect();
        let mut checked = 0;
        for (name, item, at) in &items {
            let (mut seen, builtin) = (all[*at].clone(), item.observing(Variant::Builtin).unwrap());
            // Rows select by the item's own length, which the short prompts do not have.
            seen.iter_mut().for_each(|one| one.length = builtin.lengths[0]);
            let evidence = Evidence { seen: &seen, ..Evidence::default() };
            let measured =
                MeasuredItem::of_run(item, RunOf { variant: Variant::Builtin, model: None }, evidence).unwrap();
            let mut found = 0;
            for row in &item.rows {
                for column in &item.columns {
                    let spot = measured.spot(&row.name, &column.name);
                    let spot = spot.unwrap_or_else(|e| panic!("{name}: {}", e.what));
                    found += usize::from(spot.is_some());
                }
            }
            assert!(found > 0, "{name}");
            checked += 1;
        }
        assert!(checked >= 20, "{checked}");
    }
}
