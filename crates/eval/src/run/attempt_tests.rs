//! Tests of failures: which methods they exclude, and what is reported.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use serde_json::{Value, json};

use super::example_runner::ExampleRunner;
use super::inputs_ahead::Made;
use super::run_plan::RunEnd;
use super::runner::Runner;
use super::shared_prefill;
use super::stopwatch::PhaseTimes;
use super::testing::{Seen, with_runner};
use crate::config::run_config::RunConfig;
use crate::config::settings::Settings;
use crate::examples::observer::SkippedWork;
use crate::plan::contexts::Shard;
use crate::plan::manifest::identity;
use crate::plan::planner::Planner;
use crate::records::record::Record;
use crate::records::store::{OpenMode, Store, load_records};
use spattn_attention::cost::Cost;
use spattn_attention::kv::{DeviceFailure, KvError};
use spattn_attention::{Configured, HeadPrefix, Method, SelectedTokens, Selection, Step};
use spattn_model::Model;
use spattn_model::engine::EngineError;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::{TaskOptions, resolve};

/// The stop flag of a run that nobody stops.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// A method that fails in its first step.
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

/// A method that fails only the first time that it is used.
struct Shy(AtomicBool);

impl Method for Shy {
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
        assert!(self.0.swap(true, Ordering::Relaxed), "not in company");
        Ok(Selection::Shared(SelectedTokens::softmax(Vec::new())))
    }
}

/// Runs two examples under `full`, the given method, and `quest`.
fn run_with<M: Method + 'static>(method: M, seen: &mut Seen) -> (Result<(RunEnd, PhaseTimes)>, Vec<Record>) {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 2\nmethods = ['topk:k=16', 'quest']";
    let mut config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
    config.methods[1] = Configured { name: "given".to_owned(), method: Arc::new(method), ..config.methods[1].clone() };
    let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    let planner =
        Planner { model: &model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
    let runner = Runner { planner, model: &model };
    let dir = tempfile::tempdir().unwrap();
    let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest).unwrap();
    let plan = runner.plan(seen).unwrap();
    let ended = runner.run(plan, &mut store, &AtomicBool::new(false), seen);
    (ended, load_records(dir.path()).unwrap().records)
}

#[test]
fn a_method_with_a_fault_takes_no_other_with_it() {
    let mut seen = Seen::default();
    let (ended, records) = run_with(Faulty, &mut seen);
    assert_eq!(ended.unwrap().0, RunEnd::Complete);
    assert_eq!(seen.examples, 2);
    let methods: Vec<&str> = records.iter().map(|r| r.method.as_str()).collect();
    assert_eq!(methods, ["full", "quest", "full", "quest"]);
    assert_eq!(seen.failures.len(), 1, "it is not tried again: {:?}", seen.failures);
    assert_eq!(seen.failures[0].what, "builtin, ruler/niah_single_1 at 512, question, given:k=16");
    assert!(format!("{:#}", seen.failures[0].error).contains("internal error (panic): no selection"));
    assert_eq!(seen.mended, [""; 0], "the first error is that one");
}

#[test]
fn what_fails_only_together_is_run_one_by_one_and_told_of() {
    let mut seen = Seen::default();
    let (ended, records) = run_with(Shy(AtomicBool::new(false)), &mut seen);
    assert_eq!(ended.unwrap().0, RunEnd::Complete);
    let methods: Vec<&str> = records.iter().map(|r| r.method.as_str()).collect();
    assert_eq!(methods, ["full", "given", "quest", "full", "given", "quest"]);
    assert!(seen.failures.is_empty(), "{:?}", seen.failures);
    let [mended] = &seen.mended[..] else { panic!("{:?}", seen.mended) };
    assert!(mended.starts_with("builtin, ruler/niah_single_1 at 512, question: ") && mended.contains("not in company"));
}

/// A copy of the built-in model whose activations are infinite from the third layer on.
fn broken_model() -> tempfile::TempDir {
    const LARGEST: [u8; 2] = 0x7f7f_u16.to_le_bytes();
    let dir = tempfile::tempdir().unwrap();
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/builtin");
    for file in std::fs::read_dir(builtin).unwrap().flatten().filter(|file| file.path().is_file()) {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let [from, to] = [0, 1].map(|end| {
        let offset = &entries["model.layers.2.input_layernorm.weight"]["data_offsets"][end];
        header + offset.as_u64().unwrap() as usize
    });
    bytes[from..to].chunks_exact_mut(2).for_each(|number| number.copy_from_slice(&LARGEST));
    std::fs::write(&path, bytes).unwrap();
    dir
}

/// The failures of a run of the broken model: what failed, and why.
fn failures_of_broken(settings: &str) -> Vec<(String, String)> {
    let dir = broken_model();
    let config = RunConfig::resolve_single(Settings::parse(settings, "test").unwrap()).unwrap();
    let source = ModelSource::parse(dir.path().to_str().unwrap()).unwrap();
    let model = Model::load(&source, None, TokenizerOptions::default()).unwrap();
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    let shard = Shard::WHOLE;
    let planner = Planner { model: &model, config: &config, tasks: &tasks, data: None, shard, is_elsewhere: false };
    let runner = Runner { planner, model: &model };
    let out = tempfile::tempdir().unwrap();
    let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
    let mut store = Store::open(out.path(), OpenMode::Fresh, &manifest).unwrap();
    let mut seen = Seen::default();
    let plan = runner.plan(&mut seen).unwrap();
    let (end, _) = runner.run(plan, &mut store, &AtomicBool::new(false), &mut seen).unwrap();
    assert_eq!((end, store.count(), seen.examples), (RunEnd::Complete, 0, 2));
    let told = |f: &SkippedWork| (f.what.rsplit_once(" 512, ").unwrap().1.to_owned(), format!("{:#}", f.error));
    seen.failures.iter().map(told).collect()
}

#[test]
fn a_prompt_that_cannot_be_read_is_no_methods_fault_and_read_once() {
    let few = "lengths = [512]\nsamples = 2\nmethods = ['streaming_llm', 'quest']";
    let needles = failures_of_broken(&format!("tasks = ['ruler/niah_single_1']\n{few}"));
    let [(what, why)] = &needles[..] else { panic!("{needles:?}") };
    assert_eq!(what, "question");
    assert!(
        why.starts_with("ruler/niah_single_1 at 512, example 0: the prefill failed: the activations after layer 2"),
        "{why}"
    );
    // A method with a prefill mask reads the prompt for itself, and fails by itself.
    let masked = "lengths = [512]\nsamples = 2\nmethods = ['streaming_llm']\nsparse_from = ['prefill']";
    let both = failures_of_broken(&format!("tasks = ['ruler/niah_single_1']\n{masked}"));
    let whats: Vec<&str> = both.iter().map(|(what, _)| what.as_str()).collect();
    assert!(matches!(whats[..], ["prefill", own] if own.starts_with("prefill, streaming_llm:")), "{both:?}");
    assert!(both[0].1.contains("the prefill failed") && !both[1].1.contains("the prefill failed"), "{both:?}");
}

#[test]
fn where_one_failure_ends_a_run_earlier_records_stay() {
    let mut seen = Seen { stop_at_failure: true, ..Seen::default() };
    let (ended, records) = run_with(Faulty, &mut seen);
    assert!(format!("{:#}", ended.unwrap_err()).contains("no selection"));
    assert!(records.is_empty());
}

#[test]
fn a_fatal_failure_of_the_device_ends_the_run_and_is_no_methods_fault() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1\nmethods = ['quest']";
    with_runner(text, |runner, _| {
        let mut seen = Seen::default();
        let mut plan = runner.plan(&mut seen).unwrap();
        let place = plan.cells[0].place;
        let items = runner.prepare(&mut plan, (place, &[0]), |_| false, Made::new(), &mut seen).unwrap();
        let (item, method) = (&items[0], items[0].methods.last().unwrap());
        let of = |failure: DeviceFailure| anyhow::Error::new(EngineError::Device(failure)).context("example 0");
        let ended = runner.fail(item, method, of(DeviceFailure::fatal("it failed")), &mut plan, &mut seen);
        assert_eq!(format!("{:#}", ended.unwrap_err()), "example 0: it failed");
        assert!(plan.has(place, item.variant, method) && seen.failures.is_empty());
        // The same holds for a prompt that methods share.
        let unread = || Err::<(), _>(of(DeviceFailure::fatal("it failed")));
        let unread = shared_prefill::shared(false, unread).unwrap_err();
        let mut examples = ExampleRunner::new(&runner.model.decoder, &GO_ON);
        let ended = runner.after_failure(item, unread, &mut examples, &mut plan, &mut seen);
        assert!(format!("{:#}", ended.unwrap_err()).ends_with("it failed"));
        assert!(plan.has(place, item.variant, method) && seen.failures.is_empty());
        // After any other failure, the run goes on without the method.
        runner.fail(item, method, of(DeviceFailure::new("no room")), &mut plan, &mut seen).unwrap();
        assert!(!plan.has(place, item.variant, method));
        assert_eq!(seen.failures.len(), 1);
    });
}

#[test]
fn a_line_ends_with_a_line_break() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
    with_runner(text, |runner, _| {
        let end = runner.line_end().unwrap().expect("the model has a token for it");
        assert_eq!(runner.model.tokenizer.decode(&[end]).unwrap(), "\n");
    });
}
