//! Tests of the loop over a plan: progress, resuming, stopping, and examples that cannot be run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::json;

use super::run_plan::{Ledger, RunEnd};
use super::runner::Runner;
use super::testing::{Given, Seen, passage, with_runner};
use crate::config::run_config::RunConfig;
use crate::config::settings::Settings;
use crate::examples::example_input::ExampleInput;
use crate::examples::observer::{RunObserver, RunProgress, SkippedWork};
use crate::examples::truncate::fit;
use crate::plan::contexts::Shard;
use crate::plan::manifest::identity;
use crate::plan::planner::Planner;
use crate::records::record::Record;
use crate::records::store::{OpenMode, Store, load_records};
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::{Example, PromptCounter, PromptRules, Task};

/// What the observer was told after each example.
#[derive(Default)]
struct Steps(Vec<Told>);

/// Examples done and in all; work done, found and in all; length; whether its cell ends; new records.
type Told = ([usize; 2], [u64; 3], usize, bool, usize);

impl RunObserver for Steps {
    fn progress(&mut self, p: RunProgress<'_>) {
        assert_eq!(p.task, "ruler/niah_single_1");
        self.0.push(([p.done, p.total], [p.work_done, p.work_found, p.work], p.length, p.ends_cell, p.records.len()));
    }

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        Err(failure.error)
    }
}

#[test]
fn progress_counts_examples_and_work_and_what_is_recorded_is_not_run_again() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 400]\nsamples = 2\nmethods = ['topk:k=16']";
    with_runner(text, |runner, manifest| {
        let dir = tempfile::tempdir().unwrap();
        let run = || {
            let mut store = Store::open(dir.path(), OpenMode::Resume, manifest).unwrap();
            let (plan, mut steps) = (runner.plan(&mut Steps::default()).unwrap(), Steps::default());
            let left = runner.remaining(&plan, store.records()).records;
            runner.run(plan, &mut store, &AtomicBool::new(false), &mut steps).unwrap();
            (left, steps.0, load_records(dir.path()).unwrap().records)
        };
        // Multiplications of reading n tokens: each token by all weights, and each query by half of the keys on average.
        let (c, decoder) = (runner.model.decoder.config(), &runner.model.decoder);
        let weights = decoder.weight_numbers();
        let work = |n: usize| (((weights + c.layers * c.heads * c.head_dim * (n / 2)) * n) as f64 / 1e6).ceil() as u64;
        let (long, short) = (work(512), work(400));
        let all = 2 * (long + short);
        // Without new records, all work counts as found; otherwise none does.
        let expected = |records: usize| {
            let found = |work: u64| if records == 0 { work } else { 0 };
            [
                ([1, 4], [long, found(long), all], 512, false, records),
                ([2, 4], [2 * long, found(2 * long), all], 512, true, records),
                ([3, 4], [2 * long + short, found(2 * long + short), all], 400, false, records),
                ([4, 4], [all, found(all), all], 400, true, records),
            ]
        };
        let (left, steps, records) = run();
        assert_eq!((left, records.len()), (8, 8));
        assert_eq!(steps, expected(2));
        let (left, steps, again) = run();
        assert_eq!((left, again.len()), (0, 8));
        assert_eq!(steps, expected(0));
        assert_eq!(runner.work(0), work(8192), "an example of a file");

        let plan = runner.plan(&mut Steps::default()).unwrap();
        let known: Vec<Record> =
            records.into_iter().filter(|r| (r.length, r.sample, r.method.as_str()) != (400, 1, "topk")).collect();
        let left = runner.remaining(&plan, &known);
        let contexts: Vec<_> = left.plan.cells.iter().map(|c| (c.place.length, c.examples())).collect();
        assert_eq!((left.records, contexts), (1, vec![(512, 0), (400, 1)]));
    });
}

#[test]
fn a_run_that_is_told_to_stop_records_nothing_more() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
    with_runner(text, |runner, manifest| {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path(), OpenMode::Fresh, manifest).unwrap();
        let plan = runner.plan(&mut Steps::default()).unwrap();
        let mut steps = Steps::default();
        let (end, spent) = runner.run(plan, &mut store, &AtomicBool::new(true), &mut steps).unwrap();
        assert_eq!((end, spent.total(), steps.0.len()), (RunEnd::Interrupted, Duration::ZERO, 0));
    });
}

/// A task that has examples under one seed only.
struct OfOneSeed {
    seed: u64,
    /// A thread, and how many examples other threads have made.
    here: ThreadId,
    elsewhere: Arc<AtomicUsize>,
    /// Raised when another thread makes one.
    stop: Option<Arc<AtomicBool>>,
}

impl Task for OfOneSeed {
    fn name(&self) -> &str {
        "given"
    }

    fn inputs(&self) -> String {
        String::new()
    }

    fn available(&self) -> Option<usize> {
        Some(2)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn example(&self, _: usize, index: usize, seed: u64, _: &dyn PromptCounter) -> Result<Example> {
        if thread::current().id() != self.here {
            self.elsewhere.fetch_add(1, Ordering::Relaxed);
            self.stop.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
        }
        match seed == self.seed {
            true => Ok(Example { index, ..Given::question() }),
            false => Err(anyhow!("there is none")),
        }
    }
}

#[test]
fn what_cannot_be_made_under_one_seed_is_run_under_the_others() {
    for (ahead, elsewhere) in [(false, 0), (true, 3)] {
        let run = OneSeedRun::new(ahead, false);
        assert_eq!(run.elsewhere, elsewhere, "of the second context, one under each of three seeds");
        assert_eq!(
            (run.end, run.seen.examples),
            (RunEnd::Complete, 6),
            "those that could not be made are done as well"
        );
        let failed: Vec<&str> = run.seen.failures.iter().map(|failure| failure.what.as_str()).collect();
        assert_eq!(failed, ["builtin, given, seed 3", "builtin, given, seed 5"], "each once");
        let made: Vec<_> = run.records.iter().map(|r| (r.seed, r.sample, r.method.as_str())).collect();
        assert_eq!(made, [(4, 0, "full"), (4, 0, "topk"), (4, 1, "full"), (4, 1, "topk")]);
    }
}

#[test]
fn a_run_that_stops_makes_no_further_inputs() {
    let run = OneSeedRun::new(true, true);
    assert_eq!((run.end, run.elsewhere), (RunEnd::Interrupted, 1));
}

/// A run of two examples under three seeds, of which one has examples.
struct OneSeedRun {
    end: RunEnd,
    seen: Seen,
    records: Vec<Record>,
    /// How many inputs another thread made.
    elsewhere: usize,
}

impl OneSeedRun {
    /// Makes inputs ahead if `ahead`; stops when another thread makes one if `stops`.
    fn new(ahead: bool, stops: bool) -> Self {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nsamples = 2\nmethods = ['topk:k=16']\nseed = [3, 4, 5]";
        let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let elsewhere = Arc::new(AtomicUsize::new(0));
        // The plan makes some inputs, to check them. Then the task counts anew, and may stop the run.
        let stop = Arc::new(AtomicBool::new(false));
        let raised = stops.then(|| stop.clone());
        let task = OfOneSeed { seed: 4, here: thread::current().id(), elsewhere: elsewhere.clone(), stop: raised };
        let tasks: Vec<Box<dyn Task>> = vec![Box::new(task)];
        let planner = Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        };
        let runner = Runner { planner, model: &model };
        let dir = tempfile::tempdir().unwrap();
        let identities: Vec<_> = config.variants().into_iter().map(|v| identity(&config, v, &model, None)).collect();
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &json!({ "identity": identities })).unwrap();
        let (mut plan, mut seen) = (runner.plan(&mut Seen::default()).unwrap(), Seen::default());
        assert_eq!(runner.remaining(&plan, &[]).records, 12);
        elsewhere.store(0, Ordering::Relaxed);
        stop.store(false, Ordering::Relaxed);
        let cells = std::mem::take(&mut plan.cells);
        let ledger = Ledger::new(&runner, &cells, &mut store, &mut seen);
        let end = runner.run_in_turn(&cells, plan, (ledger, &stop), ahead).unwrap().0;
        let records = load_records(dir.path()).unwrap().records;
        Self { end, seen, records, elsewhere: elsewhere.load(Ordering::Relaxed) }
    }
}

#[test]
fn examples_beyond_the_context_or_the_vocabulary_are_refused() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
    with_runner(text, |runner, _| {
        let (limit, task) = (runner.model.decoder.config().context_limit(), Given::Question);
        let text = |material| runner.check_fits(&task, &material).map_err(|e| e.what).err().unwrap_or_default();
        let of = |prompt: Vec<u32>, answer| text(ExampleInput::Passage(passage(prompt, answer)));
        assert_eq!(of(vec![5; limit - 7], 7), "");
        let told = of(vec![5; limit - 6], 7);
        assert!(told.starts_with(&format!("the text, {} tokens, is beyond", limit + 1)), "{told}");
        let unknown = runner.model.decoder.config().vocab_size as u32;
        assert!(!of(vec![unknown], 1).is_empty());
        let mut odd = passage(vec![5], 3);
        odd.continuations[1].tokens[2] = unknown;
        assert!(!text(ExampleInput::Passage(odd)).is_empty());

        let prompt = |length: usize, max_new_tokens: usize| {
            let example = Example { length, max_new_tokens, ..Given::question() };
            let context = runner.model.decoder.config().context_limit();
            let plain = Example { rules: PromptRules::default(), ..example };
            text(ExampleInput::Prompt(Box::new(fit(plain, context, &runner.model.tokenizer).unwrap())))
        };
        let tokens = fit(Given::question(), limit, &runner.model.tokenizer).unwrap().prompt.ids.len();
        assert_eq!(prompt(0, limit - tokens), "");
        let told = prompt(0, limit - tokens + 1);
        assert!(told.starts_with(&format!("the prompt with its answer, {} tokens", limit + 1)), "{told}");
        assert_eq!(prompt(limit + 1, limit), "", "of a length beyond the context that was asked for");
        assert!(!prompt(limit, limit).is_empty());
    });
}
