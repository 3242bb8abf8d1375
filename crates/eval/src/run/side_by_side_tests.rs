//! Tests of copies of a model that run side by side: they record and report the same as one copy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::job_queue::LostJob;
use super::run_plan::RunEnd;
use super::runner::Runner;
use super::side_by_side::Job;
use super::testing::{Given, within};
use crate::config::run_config::RunConfig;
use crate::config::settings::Settings;
use crate::examples::observer::{RunObserver, RunProgress, SkippedWork};
use crate::plan::contexts::Shard;
use crate::plan::manifest::identity;
use crate::plan::planner::{Planner, TaskLength};
use crate::records::store::{OpenMode, Store, load_records};
use spattn_attention::cost::Cost;
use spattn_attention::kv::KvError;
use spattn_attention::{Configured, HeadPrefix, Method, Selection, Step};
use spattn_base::error::UsageError;
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::{Example, PromptCounter, Task, TaskOptions, resolve};

/// The built-in model with `count` copies of its decoder in all.
fn copies(count: usize) -> Model {
    let load = || Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let mut model = load();
    model.further_copies = (1..count).map(|_| load().decoder).collect();
    model
}

/// What a run reported, in order.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    /// The number of examples after which `stop` is raised.
    stop_after: Option<usize>,
    stop: Arc<AtomicBool>,
    ends_at_failure: bool,
}

impl RunObserver for Told {
    fn progress(&mut self, p: RunProgress<'_>) {
        let records: Vec<&str> = p.records.iter().map(|record| record.method.as_str()).collect();
        let of = [p.work_done, p.work_found, p.work];
        self.lines.push(format!("{}/{} {of:?} {} {} {} {records:?}", p.done, p.total, p.task, p.length, p.ends_cell));
        if self.stop_after.is_some_and(|after| p.done >= after) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn failed(&mut self, SkippedWork { what, error }: SkippedWork) -> Result<()> {
        self.lines.push(format!("{what}: {error:#}"));
        if self.ends_at_failure { Err(anyhow!("ended")) } else { Ok(()) }
    }

    fn mended(&mut self, SkippedWork { what, .. }: SkippedWork) {
        self.lines.push(format!("mended: {what}"));
    }
}

/// A record without times, and without how much of its prompt was read before.
fn untimed(mut record: Value) -> Value {
    let fields = record.as_object_mut().unwrap();
    fields.retain(|name, _| !name.ends_with("_s") && !["reused_tokens", "solo", "conditions"].contains(&name.as_str()));
    record
}

/// Runs a config on `count` copies, after `change` has edited it and its tasks. Returns how the run
/// ended, and the records.
fn run(
    text: &str,
    count: usize,
    told: &mut Told,
    change: impl FnOnce(&mut RunConfig, &mut Vec<Box<dyn Task>>),
    dir: &std::path::Path,
) -> (Result<RunEnd>, Vec<Value>) {
    let mut config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
    let mut tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    change(&mut config, &mut tasks);
    let model = copies(count);
    let planner =
        Planner { model: &model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
    let runner = Runner { planner, model: &model };
    let identities: Vec<_> = config.variants().into_iter().map(|v| identity(&config, v, &model, None)).collect();
    let mut store = Store::open(dir, OpenMode::Resume, &json!({ "identity": identities })).unwrap();
    let plan = runner.plan(&mut Told::default()).unwrap();
    let stop = told.stop.clone();
    let ended = runner.run(plan, &mut store, &stop, told).map(|(end, _)| end);
    drop(store);
    let records = load_records(dir).unwrap().records;
    (ended, records.iter().map(|record| untimed(serde_json::to_value(record).unwrap())).collect())
}

/// Runs a test's work, and fails if it waits too long for an answer.
fn in_time(work: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(300), work);
}

const TEXT: &str = "tasks = ['ruler/niah_single_1']\nlengths = [512, 400]\nsamples = 3\nseed = [1, 2]\n\
                    methods = ['topk:k=16', 'streaming_llm:window=40']";

fn unchanged(_: &mut RunConfig, _: &mut Vec<Box<dyn Task>>) {}

#[test]
fn copies_record_and_tell_what_one_does() {
    in_time(|| {
        let all = |count| {
            let (dir, mut told) = (tempfile::tempdir().unwrap(), Told::default());
            let (ended, records) = run(TEXT, count, &mut told, unchanged, dir.path());
            (ended.unwrap(), told.lines, records)
        };
        let (one, three) = (all(1), all(3));
        assert_eq!(one.2.len(), 2 * 3 * 2 * 3, "two lengths, three examples, two seeds, three methods");
        assert_eq!(one.0, RunEnd::Complete);
        assert_eq!(three, one);
    })
}

/// A method that fails in every selection.
struct Faulty;

impl Method for Faulty {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        panic!("no selection")
    }
}

fn with_a_fault(config: &mut RunConfig, _: &mut Vec<Box<dyn Task>>) {
    config.methods[1] = Configured { name: "given".to_owned(), method: Arc::new(Faulty), ..config.methods[1].clone() };
}

#[test]
fn what_was_begun_before_a_failure_was_known_is_run_again_without_it() {
    in_time(|| {
        let all = |count| {
            let (dir, mut told) = (tempfile::tempdir().unwrap(), Told::default());
            let (ended, records) = run(TEXT, count, &mut told, with_a_fault, dir.path());
            (ended.unwrap(), told.lines, records)
        };
        let (one, four) = (all(1), all(4));
        let failures = one.1.iter().filter(|line| line.contains("no selection")).count();
        assert_eq!((failures, one.2.len()), (4, 2 * 3 * 2 * 2), "once for each length and seed");
        assert_eq!(four, one);
    })
}

/// A task of which one example cannot be made.
struct WithoutOne(AtomicUsize);

impl Task for WithoutOne {
    fn name(&self) -> &str {
        "given"
    }

    fn inputs(&self) -> String {
        String::new()
    }

    fn available(&self) -> Option<usize> {
        Some(6)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn example(&self, _: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match index {
            2 => Err(anyhow!("there is none")),
            _ => Ok(Example { index, ..Given::question() }),
        }
    }
}

#[test]
fn what_follows_an_example_that_cannot_be_made_is_left_out_as_on_one_copy() {
    in_time(|| {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nsamples = 6\nmethods = ['topk:k=16']";
        let all = |count| {
            let (dir, mut told) = (tempfile::tempdir().unwrap(), Told::default());
            let own = |_: &mut RunConfig, tasks: &mut Vec<Box<dyn Task>>| {
                *tasks = vec![Box::new(WithoutOne(AtomicUsize::new(0)))];
            };
            let (ended, records) = run(text, count, &mut told, own, dir.path());
            (ended.unwrap(), told.lines, records)
        };
        let (one, three) = (all(1), all(3));
        assert_eq!(one.1.iter().filter(|line| line.contains("there is none")).count(), 1);
        assert_eq!(three, one);
    })
}

#[test]
fn a_run_that_is_stopped_and_gone_on_with_has_all_records_once() {
    in_time(|| {
        let (dir, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_, expected) = run(TEXT, 1, &mut Told::default(), unchanged, whole.path());
        let mut told = Told { stop_after: Some(3), ..Told::default() };
        let (ended, begun) = run(TEXT, 3, &mut told, unchanged, dir.path());
        assert_eq!(ended.unwrap(), RunEnd::Interrupted);
        assert!((9..expected.len()).contains(&begun.len()), "{} records", begun.len());
        let (ended, all) = run(TEXT, 3, &mut Told::default(), unchanged, dir.path());
        assert_eq!(ended.unwrap(), RunEnd::Complete);
        let texts = |records: &[Value]| records.iter().map(Value::to_string).collect::<BTreeSet<String>>();
        assert_eq!((texts(&all), all.len()), (texts(&expected), expected.len()));
        // A run that is told to stop before it begins records nothing.
        let (dir, told) = (tempfile::tempdir().unwrap(), &mut Told::default());
        told.stop.store(true, Ordering::Relaxed);
        let (ended, records) = run(TEXT, 3, told, unchanged, dir.path());
        assert_eq!((ended.unwrap(), records.len(), told.lines.len()), (RunEnd::Interrupted, 0, 0));
    })
}

#[test]
fn an_observer_ends_a_run_of_copies() {
    in_time(|| {
        let (dir, mut told) = (tempfile::tempdir().unwrap(), Told { ends_at_failure: true, ..Told::default() });
        let (ended, records) = run(TEXT, 3, &mut told, with_a_fault, dir.path());
        assert_eq!(ended.unwrap_err().to_string(), "ended");
        assert_eq!((records.len(), told.lines.len()), (0, 1), "nothing is told behind the failure");
    })
}

/// A task with a fault.
struct Broken;

impl Task for Broken {
    fn name(&self) -> &str {
        "given"
    }

    fn inputs(&self) -> String {
        String::new()
    }

    fn available(&self) -> Option<usize> {
        Some(4)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn example(&self, _: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        assert!(index < 2, "no example {index}");
        Ok(Example { index, ..Given::question() })
    }
}

#[test]
#[should_panic(expected = "no example 2")]
fn a_panic_on_a_worker_is_the_run_s() {
    in_time(|| {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nsamples = 4\nmethods = ['topk:k=16']";
        let own = |_: &mut RunConfig, tasks: &mut Vec<Box<dyn Task>>| *tasks = vec![Box::new(Broken)];
        let dir = tempfile::tempdir().unwrap();
        let _ = run(text, 1 + 1, &mut Told::default(), own, dir.path());
    })
}

#[test]
fn a_copy_that_ends_without_an_answer_is_named_with_its_example() {
    let config = RunConfig::resolve(Settings::parse(TEXT, "test").unwrap()).unwrap().remove(0);
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    let model = copies(2);
    let planner =
        Planner { model: &model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
    let runner = Runner { planner, model: &model };
    let jobs = [2, 5].map(|index| Job { cell: 0, place: TaskLength { task: 0, length: 400 }, context: vec![index] });
    let told = |worker| {
        let error = runner.lost(LostJob { job: 1, worker }, &jobs);
        let hint = error.downcast_ref::<UsageError>().and_then(|error| error.hint.clone());
        (error.to_string(), hint.unwrap_or_default())
    };
    let (what, hint) = told(Some(1));
    assert_eq!(what, "ruler/niah_single_1 at 400, example 5: copy 2 of the model ended without an answer");
    assert!(hint.contains("resume the run"), "{hint}");
    assert_eq!(told(None).0, "ruler/niah_single_1 at 400, example 5: no copy of the model runs any more");
}
