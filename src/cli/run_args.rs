//! The arguments of `eval` and `sweep`: the flags of the table [`flags`](spattn_eval::config::flags).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use super::matrix::{OnFailure, RunRequest};
use super::run_flags::{RunFlags, flags, refused};
use super::verdict_flags::{LookBounds, SafetyDemand};
use spattn_base::clock;
use spattn_base::error::UsageError;
use spattn_eval::config::flag::Flag;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::{InvalidValue, SETTINGS, Settings};
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::store::OpenMode;
use spattn_model::source::RANDOM;

/// The arguments of `eval` and `sweep`: settings that override a config's, and how to run.
#[derive(Debug)]
pub(super) struct RunArgs {
    /// The settings that flags give, or an error for the first value that is not a name its type knows.
    settings: Result<Settings, UsageError>,
    pub(super) flags: RunFlags,
}

impl Args for RunArgs {
    fn augment_args(command: Command) -> Command {
        let arguments: Vec<_> = flags().into_iter().filter_map(Flag::argument).collect();
        let group = ArgGroup::new("RunArgs").multiple(true).args(arguments.iter().map(|arg| arg.get_id().clone()));
        command.group(group).args(arguments)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunArgs {
    fn from_arg_matches(arguments: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut arguments.clone())
    }

    fn from_arg_matches_mut(arguments: &mut ArgMatches) -> Result<Self, clap::Error> {
        // None of these flags takes the names of an enumerated type, so this never fails.
        let flags = RunFlags::from_arguments(arguments).map_err(refused)?;
        let mut settings = Settings::from_arguments(arguments);
        if let (Ok(settings), Some(shape)) = (&mut settings, &flags.random_weights) {
            settings.model = Some(format!("{RANDOM}{shape}").into());
        }
        Ok(Self { settings, flags })
    }

    fn update_from_arg_matches(&mut self, arguments: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(arguments)?;
        Ok(())
    }
}

impl RunArgs {
    /// The settings of flags, over those of a config.
    ///
    /// # Errors
    /// What is wrong with either, naming the flag, or the file, line and key.
    pub(super) fn over(&self, config: Option<&str>) -> Result<Settings, UsageError> {
        let settings = self.settings.clone()?;
        settings.check_values().map_err(with_flag_name)?;
        Ok(settings.over_described(config.map(Settings::load).transpose()?.unwrap_or_default()))
    }

    /// The run that the arguments ask for. `command` begins the folder's name if none is given.
    pub(super) fn into_request(
        self,
        command: &str,
        configs: Vec<RunConfig>,
        on_failure: OnFailure,
    ) -> Result<RunRequest, UsageError> {
        let shard = self.flags.shard.as_deref().map_or(Ok(Shard::WHOLE), Shard::parse)?;
        let (out, mode) = self.output(command)?;
        let until_certain = self.until_certain(&configs, shard)?;
        let RunFlags { out: named, quiet, json, safe_within, confidence, .. } = self.flags;
        let safety = SafetyDemand::new(safe_within, confidence);
        let (is_unnamed, quiet, json) = (named.is_none(), quiet.is_some(), json.is_some());
        Ok(RunRequest {
            configs,
            shard,
            out,
            is_unnamed,
            mode,
            quiet,
            json,
            on_failure,
            is_elsewhere: false,
            resumes_by_itself: false,
            safety,
            until_certain,
        })
    }

    /// The bounds of `--until-certain`.
    fn until_certain(&self, configs: &[RunConfig], shard: Shard) -> Result<Option<LookBounds>, UsageError> {
        let RunFlags { until_certain, max_samples, max_time, .. } = &self.flags;
        let bound = max_samples.map(|_| "--max-samples").or(max_time.as_ref().map(|_| "--max-time"));
        match (until_certain, bound) {
            (None, Some(bound)) => Err(UsageError::new(format!("{bound} is a bound of --until-certain"))
                .hint("add --until-certain; -n gives the examples of a run of a fixed number")),
            (None, None) => Ok(None),
            (Some(_), _) if shard.count > 1 => {
                Err(UsageError::new("--until-certain looks at all examples, and a shard has a part of them")
                    .hint("leave out --shard or --until-certain"))
            }
            (Some(_), _) => match configs {
                [config] if config.variants().len() == 1 => {
                    LookBounds::new(*max_samples, max_time.as_deref(), config.samples).map(Some)
                }
                _ => Err(UsageError::new("--until-certain runs one model under one protocol and seed")
                    .hint("use `spattn eval` for each of them")),
            },
        }
    }

    /// Where to write, and whether an existing run is resumed or replaced.
    fn output(&self, command: &str) -> Result<(PathBuf, OpenMode), UsageError> {
        let mode = match (self.flags.resume, self.flags.overwrite) {
            (Some(_), _) => OpenMode::Resume,
            (_, Some(_)) => OpenMode::Overwrite,
            _ => OpenMode::Fresh,
        };
        match &self.flags.out {
            Some(dir) => Ok((dir.clone(), mode)),
            None if mode == OpenMode::Fresh => Ok((default_folder(command), mode)),
            None => Err(UsageError::new("--resume and --overwrite need to know the run's folder")
                .hint("give it with --out DIR")),
        }
    }
}

/// Names the flag in an error about its value, unless the message names it, as for specs of methods.
pub(super) fn with_flag_name(InvalidValue { key, error, .. }: InvalidValue) -> UsageError {
    let flag = SETTINGS.iter().find(|flag| flag.id == key);
    match flag {
        Some(Flag { name: Some(name), is_named_in_errors: false, .. }) => {
            UsageError { what: format!("--{name}: {}", error.what), ..error }
        }
        _ => error,
    }
}

/// `results/`, the command and the time, as in `results/eval-2025-01-31T12-00-00`.
fn default_folder(command: &str) -> PathBuf {
    let now = clock::date(SystemTime::now());
    Path::new("results").join(format!("{command}-{}", now.trim_end_matches('Z').replace(':', "-")))
}
