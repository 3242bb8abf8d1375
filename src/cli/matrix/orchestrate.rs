//! The course of a run: prepare, open the folder, run each model, draw the results.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde_json::Value;

use super::adaptive::{AdaptiveSource, ForwardingObserver};
use super::prepare::{ModelJob, PreparedRun, Purpose, expected_gpu_bytes};
use super::reporter::ProgressReporter;
use super::request::{OnFailure, RunRequest};
use super::run_timing::RunTiming;
use super::until_certain::UntilCertain;
use crate::cli::exit::{Done, ErrorWithHint};
use crate::cli::interrupt;
use crate::cli::numbers::duration;
use crate::cli::output::{listed, print, print_json, width};
use crate::cli::setup::raise_on_preemption;
use crate::report::table::Form;
use crate::report::{Report, Written, json, merge, table, verdict};
use crate::version::PROGRAM;
use spattn_attention::Configured;
use spattn_attention::kv::DiskUse;
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_eval::config::kv_tier::KvTier;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::examples::observer::{RunObserver, SkippedWork};
use spattn_eval::folder::attempts::Ending;
use spattn_eval::plan::gpu_memory::placement;
use spattn_eval::plan::manifest::{ModelPart, manifest};
use spattn_eval::plan::planner::PlanCell;
use spattn_eval::plan::shard_statement::{self, Stated};
use spattn_eval::records::manifest_keys::{NOTES, UNTIL_CERTAIN};
use spattn_eval::records::record::REFERENCE;
use spattn_eval::records::store::{OpenMode, Store, identities, load_manifest, load_records};
use spattn_eval::run::estimate::{Probe, estimate};
use spattn_eval::run::run_plan::RunEnd;
use spattn_eval::run::runner::Runner;
use spattn_eval::run::stopwatch::PhaseTimes;
use spattn_eval::summary::demand::Demand;
use spattn_eval::summary::prefill_savings::PrefillSavings;
use spattn_eval::summary::warnings::in_short;
use spattn_lab::tune::Batch;
use spattn_model::Model;
use spattn_model::decoder::Decoder;
use spattn_model::device::Device;
use spattn_model::engine::GpuUse;
use spattn_model::source::recorded;

impl RunRequest {
    /// Runs what is not recorded yet, and prints the table.
    pub fn run_matrix(mut self) -> Result<Done> {
        if self.mode == OpenMode::Resume
            && let Ok(stored) = load_manifest(&self.out)
        {
            self.safety = self.safety.or(Demand::of_manifest(&stored));
        }
        let Some(bounds) = self.until_certain else { return self.run(Self::stated, Self::run_all, Self::finish) };
        let config = &self.configs[0];
        let labels = config.methods.iter().map(Configured::label).filter(|label| label != REFERENCE).collect();
        let mut source = UntilCertain::new(self.safety.asked.rule(), bounds, labels, config.samples);
        let mut work = |run: &Self,
                        ready: &mut PreparedRun,
                        store: &mut Store,
                        stop: &AtomicBool,
                        reporter: &mut ProgressReporter| {
            let ran = run.run_batches(ready, store, stop, reporter, &mut source)?;
            source.ending().iter().for_each(|line| reporter.meter.say(line));
            Ok(ran)
        };
        // The number of records is unknown until no more examples are added.
        self.run(
            |_, _| Ok(None),
            |run, ready, store, stop, reporter| work(run, ready, store, stop, reporter),
            Self::finish,
        )
    }

    /// Runs what is not recorded yet, without drawing results.
    pub fn record(self) -> Result<Done> {
        self.run(Self::stated, Self::run_all, |_, _| Ok(Done::Completed))
    }

    /// Runs the batches of `source` on the only model, and prints how long it took, without drawing results.
    pub fn answer(self, source: &mut dyn AdaptiveSource) -> Result<Done> {
        let quiet = self.quiet;
        let took = |_: &Self, took: RunTiming| {
            if !quiet {
                eprintln!("{took}");
            }
            Ok(Done::Completed)
        };
        // The number of records is unknown until the source has asked for all of them.
        let unstated = |_: &Self, _: &PreparedRun| Ok(None);
        self.run(
            unstated,
            |run, ready, store, stop, reporter| run.run_batches(ready, store, stop, reporter, source),
            took,
        )
    }

    /// Says how long a long run is going to take.
    fn announce(&self, ready: &PreparedRun) -> Result<()> {
        if !self.quiet && self.mode != OpenMode::Resume && self.is_long(ready) {
            let probe = Probe::of_this_machine()?;
            let (mut records, mut seconds) = (0usize, 0.0);
            for job in &ready.jobs {
                let planner = ready.planner(&job.config, job.opened(), self);
                records = records.saturating_add(shard_statement::records(&planner, &job.plan));
                seconds += estimate(&planner, &job.plan, &probe)?.seconds();
            }
            eprintln!(
                "note: {records} records in about {}, on this machine as busy as it is now; Ctrl-C keeps what is done, -n takes fewer \
                 examples, --dry-run only plans",
                duration(seconds)
            );
        }
        Ok(())
    }

    /// Whether reading the prompts alone takes the CPU a while, by the multiplications: an estimate by measuring takes seconds itself.
    fn is_long(&self, ready: &PreparedRun) -> bool {
        /// Millions of multiplications: about what two cores do in a quarter of a minute. The run without arguments has some more.
        const LONG: f64 = 0.75e6;
        let of_job = |job: &ModelJob| {
            let (dimensions, longest) = (&job.opened().dimensions, job.plan.longest());
            let of_cell = |cell: &PlanCell| {
                let tokens = if cell.place.length > 0 { cell.place.length } else { longest };
                cell.examples() as f64 * dimensions.prefill_products(tokens) as f64
            };
            job.plan.cells.iter().map(of_cell).sum::<f64>() * job.config.seeds.len() as f64
        };
        self.configs[0].device == Device::Cpu && ready.jobs.iter().map(of_job).sum::<f64>() > LONG
    }

    /// What the manifest states about this shard: the records that it and the whole matrix will have.
    fn stated(&self, ready: &PreparedRun) -> Result<Option<Stated>> {
        let (mut records, mut whole) = (0usize, 0usize);
        for job in &ready.jobs {
            let planner = ready.planner(&job.config, job.opened(), self);
            let own = shard_statement::records(&planner, &job.plan);
            let all = if self.shard.count == 1 { own } else { shard_statement::whole(&planner, &job.plan)? };
            (records, whole) = (records.saturating_add(own), whole.saturating_add(all));
        }
        Ok(Some(Stated::new(self.shard, records, whole)))
    }

    fn run(
        mut self,
        stated: impl FnOnce(&Self, &PreparedRun) -> Result<Option<Stated>>,
        work: impl FnOnce(
            &Self,
            &mut PreparedRun,
            &mut Store,
            &AtomicBool,
            &mut ProgressReporter,
        ) -> Result<(RunEnd, RunTiming)>,
        finish: impl FnOnce(&Self, RunTiming) -> Result<Done>,
    ) -> Result<Done> {
        let (stop, is_planning) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let is_preempted = raise_on_preemption(&stop, &is_planning)?;
        if !self.is_unnamed {
            self.check_free()?;
        }
        self.settle_privacy()?;
        let mut reporter = ProgressReporter::new(self.on_failure);
        let mut ready = self.ready(Purpose::Run, &mut reporter)?;
        if self.is_unnamed {
            self.out = new_folder(&self.out)?;
        }
        let stated = stated(&self, &ready)?;
        let is_counted = stated.is_some();
        let mut store = self.open_store(&ready, stated)?;
        let place = store.place()?;
        store.notices().iter().for_each(|n| eprintln!("note: {n}"));
        // Measuring takes seconds, so only a run that can write its records is announced.
        if is_counted {
            self.announce(&ready)?;
        }
        is_planning.store(false, Ordering::Relaxed);
        if self.on_failure == OnFailure::GoOn {
            reporter.keep_log(&self.out, store.records().len())?;
        }
        let kept = Kept { out: self.out.clone(), how: self.how_to_go_on() };
        let answer = kept.clone();
        interrupt::stop_within_grace(&stop, move || answer.line("go on").unwrap_or_else(|| NOTHING.to_owned()))?;
        reporter.begin(self.quiet, store.records());
        let ran = work(&self, &mut ready, &mut store, &stop, &mut reporter);
        reporter.meter.end();
        let ending = match &ran {
            Ok((RunEnd::Complete, _)) => Ending::Done,
            Ok((RunEnd::Interrupted, _)) => Ending::Stopped,
            Err(_) => Ending::Error,
        };
        if let Some(log) = reporter.log.take() {
            log.end(ending, store.count(), ran.as_ref().err())?;
        }
        drop(store);
        // Records that were moved away during the run cannot be drawn.
        let ran = ran.and_then(|ran| Ok(place.check().map(|()| ran)?));
        if ending == Ending::Stopped {
            if !is_preempted.load(Ordering::Relaxed) {
                return Ok(interrupt::answer());
            }
            eprintln!("told to stop: {}", kept.line("go on").unwrap_or_else(|| NOTHING.to_owned()));
            return Ok(Done::Preempted);
        }
        let ended = ran.and_then(|(_, took)| finish(&self, took)).and_then(|done| Ok(place.check().map(|()| done)?));
        let ended = ended.and_then(|done| reporter.verdict("are done").map(|()| done));
        let is_in_place = place.check().is_ok();
        match (ended, kept.line("after correcting that, resume").filter(|_| is_in_place)) {
            (Err(error), Some(advice)) => Err(ErrorWithHint { error, advice }.into()),
            (ended, _) => ended,
        }
    }

    /// Runs the models one after the other, until all are done or `stop` is raised.
    fn run_all(
        &self,
        ready: &mut PreparedRun,
        store: &mut Store,
        stop: &AtomicBool,
        reporter: &mut ProgressReporter,
    ) -> Result<(RunEnd, RunTiming)> {
        let (start, mut spent, mut gpu) = (Instant::now(), PhaseTimes::default(), GpuUse::default());
        let mut disk = DiskUse::default();
        let models = ready.jobs.len();
        while let Some(ModelJob { config, plan, part, model }) = ready.jobs.pop_front() {
            let number = models - ready.jobs.len();
            reporter.load_model(&part.id, number, models);
            let model = match model.load(placement(&config)) {
                Ok(model) => self.keep_kv(model, &config),
                Err(error) => {
                    reporter.failed(SkippedWork { what: part.id, error })?;
                    continue;
                }
            };
            reporter.begin_model(&part.id, number, models);
            let runner = Runner { planner: ready.planner(&config, &model, self), model: &model };
            let ran = runner.run(plan, store, stop, reporter);
            gpu += gpu_use(&model, &config);
            disk += model.decoder.disk_use().unwrap_or_default();
            let (end, of_model) = ran?;
            spent += of_model;
            if end == RunEnd::Interrupted {
                return Ok((end, RunTiming { all: start.elapsed(), spent, gpu, disk }));
            }
        }
        Ok((RunEnd::Complete, RunTiming { all: start.elapsed(), spent, gpu, disk }))
    }

    /// Runs the source's batches on the first model, until there are no more or `stop` is raised.
    fn run_batches(
        &self,
        ready: &mut PreparedRun,
        store: &mut Store,
        stop: &AtomicBool,
        reporter: &mut ProgressReporter,
        source: &mut dyn AdaptiveSource,
    ) -> Result<(RunEnd, RunTiming)> {
        let (start, mut spent) = (Instant::now(), PhaseTimes::default());
        let Some(ModelJob { config, model, .. }) = ready.jobs.pop_front() else {
            return Err(anyhow!("there is no model to run"));
        };
        let model = self.keep_kv(model.load(placement(&config))?, &config);
        source.check(&ready.tasks)?;
        source.take(store.records());
        let mut end = RunEnd::Complete;
        while let Some(Batch { labels, samples }) = source.next(&ready.tasks) {
            let is_asked = |m: &Configured| m.label() == REFERENCE || labels.contains(&m.label());
            let methods: Vec<Configured> = config.methods.iter().filter(|m| is_asked(m)).cloned().collect();
            reporter.begin_batch(samples, methods.len());
            let config = RunConfig { methods, samples, ..config.clone() };
            let runner = Runner { planner: ready.planner(&config, &model, self), model: &model };
            let mut told = ForwardingObserver { reporter, source };
            let plan = runner.plan(&mut told)?;
            let (ended, of_batch) = runner.run(plan, store, stop, &mut told)?;
            spent += of_batch;
            if ended == RunEnd::Interrupted {
                end = ended;
                break;
            }
        }
        let disk = model.decoder.disk_use().unwrap_or_default();
        Ok((end, RunTiming { all: start.elapsed(), spent, gpu: gpu_use(&model, &config), disk }))
    }

    /// The model, with the KV caches of its prefixes where they are to be: those on disk in the folder.
    fn keep_kv(&self, mut model: Model, config: &RunConfig) -> Model {
        match config.kv_tier {
            KvTier::Memory => {}
            KvTier::Host => model.decoder.keep_kv_on_host(config.gpu_cache()),
            KvTier::Disk => model.decoder.keep_kv_on_disk(&self.out, config.kv_memory.0),
        }
        model
    }

    fn open_store(&self, ready: &PreparedRun, stated: Option<Stated>) -> Result<Store> {
        let parts: Vec<ModelPart> = ready.jobs.iter().map(|job| job.part.clone()).collect();
        let mut kept = Vec::new();
        // Manifest entries stay for models that cannot be loaded this time.
        if self.mode == OpenMode::Resume && !ready.missing_models.is_empty() {
            let stored = load_manifest(&self.out).unwrap_or_default();
            let is_of = |stored: &str, model: &String| {
                let name = recorded(model);
                stored == name || stored.strip_prefix(&name).is_some_and(|rest| rest.starts_with('@'))
            };
            let is_missing = |i: &&Value| {
                i["model"].as_str().is_some_and(|stored| ready.missing_models.iter().any(|model| is_of(stored, model)))
            };
            kept = identities(&stored).into_iter().filter(is_missing).cloned().collect();
        }
        let settings = &self.configs[0].settings;
        let mut manifest = manifest(settings, &parts, &ready.tasks, kept, &privacy::command(), &PROGRAM);
        stated.into_iter().for_each(|stated| stated.put(&mut manifest));
        let of_plans = ready.jobs.iter().flat_map(|job| job.plan.notes.clone());
        let notes: Vec<String> = ready.tasks.iter().flat_map(|task| task.notes()).chain(of_plans).collect();
        let was_added_to =
            self.mode == OpenMode::Resume && load_manifest(&self.out).is_ok_and(|stored| stored[UNTIL_CERTAIN] == true);
        if self.until_certain.is_some() || was_added_to {
            manifest[UNTIL_CERTAIN] = true.into();
        }
        self.safety.asked.put(&mut manifest);
        if !notes.is_empty() {
            // Readers of the records need these notes too.
            manifest[NOTES] = notes.iter().map(|note| privacy::text(note)).collect();
        }
        Store::open_checked(&self.out, self.mode, &manifest, |stored, loaded| {
            ready.jobs.iter().try_for_each(|job| {
                let planner = ready.planner(&job.config, job.opened(), self);
                planner.check_recorded(&self.out, stored, &loaded.records, &PROGRAM)?;
                planner.leave_out_other_forms(loaded);
                Ok(())
            })
        })
    }

    /// Draws all stored records, and prints the table or JSON.
    fn finish(&self, took: RunTiming) -> Result<Done> {
        let mut merged = merge::read(std::slice::from_ref(&self.out))?;
        merged.shorten_models();
        let rule = merged.held_to(self.safety.asked);
        let report = Report::of(&merged).judged_by(rule);
        let Written { files, not_drawn } = report.write_all(&self.out)?;
        if self.json {
            in_short(&report.warnings).iter().for_each(|(_, line)| eprintln!("warning: {line}"));
            not_drawn.iter().for_each(|line| eprintln!("note: {line}"));
            print_json(&json::summary(&report)?)?;
            return Ok(self.safety.end(&report.verdicts));
        }
        let mut text = table::render(&report, Form { width: width(), no_intervals: false });
        for (i, (_, line)) in in_short(&report.warnings).iter().enumerate() {
            let _ = writeln!(text, "{}warning: {line}", if i == 0 { "\n" } else { "" });
        }
        let sharing = PrefillSavings::of(&merged.records);
        if sharing.is_worth_saying() {
            let _ = writeln!(text, "\n{sharing}");
        }
        let _ = writeln!(text, "\n{} records. {took}\nFiles:", merged.records.len());
        for name in ["samples.jsonl", "manifest.json"] {
            let _ = writeln!(text, "  {}", self.out.join(name).display());
        }
        text.extend(listed(&files).iter().map(|line| format!("  {line}\n")));
        text.extend(not_drawn.map(|line| format!("{line}\n")));
        // Last, because the end is what a terminal shows.
        if !report.verdicts.is_empty() {
            let _ = write!(text, "\n{}", verdict::terminal::render(&report.verdicts, width()));
        }
        print(&text)?;
        Ok(self.safety.end(&report.verdicts))
    }
}

/// What all GPUs were used for that hold a model.
fn gpu_use(model: &Model, config: &RunConfig) -> GpuUse {
    let used = model.decoders().filter_map(Decoder::gpu_use).fold(GpuUse::default(), GpuUse::beside);
    let copies = if let Device::EachGpu(copies) = config.device { copies.count() } else { 1 };
    GpuUse { expected_bytes: expected_gpu_bytes(model, config).unwrap_or(0), ..used.of_copies(copies) }
}

/// Creates a folder with this name, or with a number appended if it exists.
fn new_folder(name: &Path) -> Result<PathBuf, UsageError> {
    let unwritable = |e: std::io::Error| {
        UsageError::new(format!("cannot write to the folder {}: {e}", name.display())).hint("choose one with --out DIR")
    };
    if let Some(parent) = name.parent() {
        std::fs::create_dir_all(parent).map_err(unwritable)?;
    }
    for number in 1_u32.. {
        let path = match number {
            1 => name.to_owned(),
            _ => PathBuf::from(format!("{}-{number}", name.display())),
        };
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path).map_err(unwritable),
        }
    }
    Err(unwritable(std::io::ErrorKind::AlreadyExists.into()))
}

/// What is said if no record was made.
const NOTHING: &str = "nothing was recorded";

/// What is kept of a run that ended early.
#[derive(Debug, Clone)]
struct Kept {
    out: PathBuf,
    /// What goes on with them.
    how: String,
}

impl RunRequest {
    /// How the same run goes on, as the user typed it: a flag that was given, by whatever name, is not named again.
    fn how_to_go_on(&self) -> String {
        let flags = match (self.is_unnamed, self.mode) {
            _ if self.resumes_by_itself => String::new(),
            (true, _) => format!(" and --out {} --resume", self.out.display()),
            (false, OpenMode::Resume) => String::new(),
            (false, OpenMode::Overwrite) => ", but --resume in place of --overwrite".to_owned(),
            (false, OpenMode::Fresh) => " and --resume".to_owned(),
        };
        format!("the same command{flags}")
    }
}

impl Kept {
    /// A line with the number of stored records and how to resume; `None` without records.
    fn line(&self, go_on: &str) -> Option<String> {
        let count = load_records(&self.out).map_or(0, |l| l.records.len());
        let records = if count == 1 { "1 record is".to_owned() } else { format!("{count} records are") };
        (count > 0).then(|| format!("{records} kept; {go_on} with {}", self.how))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("runs/quick");
        assert_eq!(new_folder(&name).unwrap(), name);
        assert_eq!(new_folder(&name).unwrap(), dir.path().join("runs/quick-2"));
    }

    #[test]
    fn nothing_is_kept_of_a_folder_without_records() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept { out: dir.path().to_owned(), how: String::new() };
        assert_eq!(kept.line("go on"), None);
    }
}
