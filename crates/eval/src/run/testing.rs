//! Shared by tests of the runner: an observer that notes what it is told, tasks of one example, and runs of them.

use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::Runner;
use crate::config::protocol::Protocol;
use crate::config::run_config::RunConfig;
use crate::config::settings::Settings;
use crate::examples::observer::{RunObserver, RunProgress, SkippedWork};
use crate::plan::contexts::Shard;
use crate::plan::manifest::identity;
use crate::plan::planner::Planner;
use crate::records::record::Record;
use crate::records::store::{OpenMode, Store, load_records};
use spattn_model::Model;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::likelihood::{Continuation, LikelihoodTask, Passage, Scoring, TextEncoder};
use spattn_tasks::metrics::Metric;
use spattn_tasks::{Cut, Example, PromptCounter, PromptRules, Task, TaskOptions, resolve};

/// Runs `work` on another thread and returns its result. Resumes its panic.
///
/// # Panics
/// If `work` takes more than a minute, because it may be waiting without end.
pub(super) fn within_a_minute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    within(Duration::from_secs(60), work)
}

/// [`within_a_minute`] for work that may take longer.
pub(super) fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    let thread = thread::spawn(move || tell.send(work()));
    match told.recv_timeout(limit) {
        Ok(made) => made,
        Err(RecvTimeoutError::Timeout) => panic!("not done after {} s", limit.as_secs()),
        Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().expect_err("it ended without a result")),
    }
}

#[derive(Default)]
pub(super) struct Seen {
    pub failures: Vec<SkippedWork>,
    pub mended: Vec<String>,
    pub examples: usize,
    pub stop_at_failure: bool,
}

impl RunObserver for Seen {
    fn progress(&mut self, progress: RunProgress<'_>) {
        self.examples = progress.done;
    }

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        if self.stop_at_failure {
            return Err(failure.error);
        }
        self.failures.push(failure);
        Ok(())
    }

    fn mended(&mut self, failure: SkippedWork) {
        self.mended.push(format!("{}: {:#}", failure.what, failure.error));
    }
}

/// A task of one example, with a distinct value in every field.
pub(super) enum Given {
    Question,
    Passage(Scoring),
}

impl Given {
    pub(super) fn question() -> Example {
        Example {
            task: "given".into(),
            length: 0,
            index: 0,
            context: "The red door opens with 4711. The green door opens with 1147. ".into(),
            question: "What opens the red door?".into(),
            answer_prefix: String::new(),
            // An empty text is in every prediction, so that the score is between 0 and 1 whatever the model says.
            references: vec![String::new(), "not to be found".into()],
            all_classes: vec!["a class".into()],
            metric: Metric::StringMatchAll,
            also: vec![Metric::StringMatchPart],
            max_new_tokens: 3,
            depth: Some(25.0),
            source: "by hand".into(),
            rules: PromptRules { cut: Cut::Middle, first_line: true, ..PromptRules::default() },
        }
    }

    fn continuation(text: &str, words: usize, encoder: &dyn TextEncoder) -> Result<Continuation> {
        Ok(Continuation { tokens: encoder.encode(text)?.ids, given: 0, text: text.into(), words, bytes: text.len() })
    }
}

impl Task for Given {
    fn name(&self) -> &str {
        "given"
    }

    fn inputs(&self) -> String {
        String::new()
    }

    fn available(&self) -> Option<usize> {
        Some(1)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn example(&self, _: usize, _: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        Ok(Self::question())
    }

    fn likelihood(&self) -> Option<&dyn LikelihoodTask> {
        match self {
            Self::Question => None,
            Self::Passage(_) => Some(self),
        }
    }
}

impl LikelihoodTask for Given {
    fn available(&self, _: usize, _: &dyn TextEncoder) -> Result<usize> {
        Ok(1)
    }

    fn passage(&self, _: usize, _: usize, _: u64, encoder: &dyn TextEncoder) -> Result<Passage> {
        let Self::Passage(scoring) = self else { unreachable!("a question has no passage") };
        let text = encoder.encode("The red door opens with 4711. The green door opens with")?;
        let continuations = [(" 1147 alone.", 2), (" a key that nobody has.", 5)];
        Ok(Passage {
            task: "given".into(),
            length: 0,
            index: 0,
            source: "by hand".into(),
            prompt: [encoder.front(), &text.ids].concat(),
            continuations: continuations
                .into_iter()
                .take(if *scoring == Scoring::Perplexity { 1 } else { 2 })
                .map(|(text, words)| Self::continuation(text, words, encoder))
                .collect::<Result<_>>()?,
            scoring: *scoring,
        })
    }
}

/// Runs a task. Returns the record of `full`, the prompt's tokens, and how many of them come before the question.
pub(super) fn run_one(task: impl FnOnce(&RunConfig) -> Box<dyn Task>) -> (Record, Vec<u32>, usize) {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1\nmethods = ['topk:k=16']";
    let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
    let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let tasks = vec![task(&config)];
    let planner =
        Planner { model: &model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
    let runner = Runner { planner, model: &model };
    let dir = tempfile::tempdir().unwrap();
    let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest).unwrap();
    let plan = runner.plan(&mut Seen::default()).unwrap();
    let place = plan.cells[0].place;
    let mut seen = Seen { stop_at_failure: true, ..Seen::default() };
    runner.run(plan, &mut store, &AtomicBool::new(false), &mut seen).unwrap();
    let material = runner.material(place, 0, 1).unwrap();
    let records = load_records(dir.path()).unwrap().records;
    let record = records.into_iter().find(|r| r.method == "full").expect("a record");
    (record, material.prompt().to_vec(), material.prefix_tokens(Protocol::Question))
}

pub(super) fn with_runner<R>(text: &str, use_it: impl FnOnce(&Runner<'_>, &Value) -> R) -> R {
    let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
    let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    let planner =
        Planner { model: &model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
    let identities: Vec<_> = config.variants().into_iter().map(|v| identity(&config, v, &model, None)).collect();
    use_it(&Runner { planner, model: &model }, &json!({ "identity": identities }))
}

pub(super) fn passage(prompt: Vec<u32>, answer: usize) -> Passage {
    let of = |tokens| Continuation { tokens: vec![5; tokens], given: 0, text: String::new(), words: 1, bytes: 1 };
    Passage {
        task: "given".into(),
        length: 0,
        index: 0,
        source: String::new(),
        prompt,
        continuations: vec![of(1), of(answer), of(2)],
        scoring: Scoring::Perplexity,
    }
}
