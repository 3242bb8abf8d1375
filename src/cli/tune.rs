//! `spattn tune`: finds the smallest budget of a method whose loss is within a limit.

use anyhow::Result;
use serde_json::{Value, json};

use super::exit::Done;
use super::matrix::{AdaptiveSource, OnFailure, RunRequest};
use super::output::listed;
use super::output::{print, print_json};
use super::run_args::with_flag_name;
use super::tune_args::TuneArgs;
use super::verdict_flags::SafetyDemand;
use super::{tune_schedules, tune_shapes};
use crate::report::tuning as drawing;
use crate::version::PROGRAM;
use spattn_attention::Policy;
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_eval::config::methods::only_policy;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::value::{Given, OneOrMany};
use spattn_eval::folder::owned_files;
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::record::Record;
use spattn_eval::records::store::OpenMode;
use spattn_lab::tune::grid::{Asked, ladders};
use spattn_lab::tune::{Batch, Goal, Tuning, fewest_samples};
use spattn_model::source::recorded;
use spattn_tasks::Task;
use spattn_tasks::likelihood::Measure;

/// Searches, prints the tables and specs, and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; whatever stops the run.
pub fn run_tune(args: TuneArgs) -> Result<Done> {
    if args.anonymous {
        privacy::leave_out();
    }
    if let Some(target) = &args.target {
        return tune_shapes::find_shapes(&args, target.parse()?);
    }
    if args.schedules {
        return tune_schedules::find_schedule(&args);
    }
    owned_files::check(&args.out, &owned_files::TUNE)?;
    let settings = args.settings();
    settings.check_values().map_err(with_flag_name)?;
    let asked = Asked { parameter: &args.parameter, range: args.range.as_deref(), steps: args.steps };
    let ladders = ladders(&args.methods, asked, &args.policy()?)?;
    let candidates = ladders.iter().flat_map(|ladder| &ladder.candidates);
    let methods = candidates.map(|candidate| candidate.spec.clone()).collect();
    let config = RunConfig::resolve_single(Settings { methods: Some(methods), ..settings })?;
    let goal = args.goal();
    let facts = args.facts(&config);
    let lengths = config.lengths.len();
    let run = RunRequest {
        configs: vec![config],
        shard: Shard::WHOLE,
        out: args.out.clone(),
        is_unnamed: false,
        mode: args.mode(),
        quiet: args.quiet.0.is_some(),
        json: args.json,
        on_failure: OnFailure::Stop,
        is_elsewhere: false,
        safety: SafetyDemand::default(),
        until_certain: None,
        resumes_by_itself: false,
    };
    let most_candidates = ladders.iter().map(|ladder| ladder.candidates.len()).max().unwrap_or(0);
    let mut asking = Asking { tuning: Tuning::new(goal, ladders), goal, lengths, most_candidates };
    let done = run.answer(&mut asking)?;
    if done != Done::Completed {
        return Ok(done);
    }
    let outcome = asking.tuning.outcome();
    let files = drawing::write(&outcome, &facts, &args.out)?;
    match args.json {
        true => print_json(&drawing::json(&outcome, &facts)?)?,
        false => print(&drawing::terminal(&outcome))?,
    }
    eprintln!("Files:");
    listed(&files).iter().for_each(|file| eprintln!("  {file}"));
    eprintln!("All records: spattn report {}", args.out.display());
    Ok(Done::Completed)
}

impl TuneArgs {
    fn goal(&self) -> Goal {
        Goal { limit: self.delta / 100.0, confidence: self.confidence, most_samples: self.max_samples }
    }

    pub(super) fn mode(&self) -> OpenMode {
        match (self.resume, self.overwrite) {
            (true, _) => OpenMode::Resume,
            (_, true) => OpenMode::Overwrite,
            _ => OpenMode::Fresh,
        }
    }

    /// The policy that methods run under, unless their specs override it.
    pub(super) fn policy(&self) -> Result<Policy, UsageError> {
        only_policy(&self.policy_settings())
    }

    /// The settings that the policy is made of.
    fn policy_settings(&self) -> Settings {
        Settings {
            sink: self.sink.map(OneOrMany::from),
            local: self.local.map(OneOrMany::from),
            dense_layers: self.dense_layers.clone().map(|text| Given::new(text).into()),
            tail: self.tail.clone().map(|text| Given::new(text).into()),
            ..Settings::default()
        }
    }

    /// The settings of the runs, without the methods.
    fn settings(&self) -> Settings {
        let listed = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let flag = |set: bool| set.then_some(true);
        Settings {
            model: Some(self.model.clone().into()),
            tasks: listed(&self.tasks),
            lengths: (!self.lengths.is_empty()).then(|| self.lengths.clone()),
            samples: Some(self.max_samples),
            seed: self.seed.map(OneOrMany::from),
            sparse_from: self.sparse_from.clone().map(|text| Given::new(text).into()),
            dtype: self.dtype.clone().map(Given::new),
            device: self.device.clone().map(Given::new),
            data: self.data.clone(),
            calibration: self.calibration.0.clone(),
            chat: self.no_chat.then_some(false),
            system_prompt: self.system_prompt.clone().map(Given::new),
            allow_extrapolation: self.allow_extrapolation.0,
            anonymous: flag(self.anonymous),
            ..self.policy_settings()
        }
    }

    /// The conditions under which the answer holds.
    fn facts(&self, config: &RunConfig) -> Value {
        json!({
            "program": PROGRAM.as_json(),
            "model": recorded(&config.model),
            "sparse_from": config.protocols.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            "seed": config.seeds[0],
            "system_prompt": config.system_prompt.as_deref().map(privacy::system_prompt),
        })
    }
}

/// Passes a search's batches to a run, and the records to the search.
struct Asking {
    tuning: Tuning,
    goal: Goal,
    lengths: usize,
    most_candidates: usize,
}

impl AdaptiveSource for Asking {
    fn check(&self, tasks: &[Box<dyn Task>]) -> Result<()> {
        let has_no_score = |task: &&dyn Task| task.likelihood().is_some_and(|t| t.measure() != Measure::Score);
        if let Some(task) = tasks.iter().map(AsRef::as_ref).find(has_no_score) {
            return Err(UsageError::new(format!("{} is not scored in points", task.name()))
                .hint("tune on tasks with answers; for perplexity by budget use spattn eval")
                .into());
        }
        let places = tasks.iter().map(|task| if task.is_sized() { self.lengths } else { 1 }).sum();
        let (most, points) = (self.goal.most_samples, 100.0 * self.goal.limit);
        let few = fewest_samples(&self.goal, places, self.most_candidates).filter(|fewest| *fewest > most);
        if let Some(fewest) = few {
            eprintln!(
                "note: a loss below {points} points cannot be shown with less than {fewest} samples of each task, and --max-samples is {most}"
            );
        }
        Ok(())
    }

    fn take(&mut self, records: &[Record]) {
        self.tuning.take(records);
    }

    fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch> {
        self.tuning.next(tasks)
    }
}
