//! What the arguments of `eval` and `sweep` request: the models, the folder, and what to do on failure.

use std::path::PathBuf;

use anyhow::Result;

use crate::cli::verdict_flags::{LookBounds, SafetyDemand};
use spattn_base::error::UsageError;
use spattn_base::privacy;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::folder::owned_files;
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::store::{OpenMode, check_free, load_manifest};
use spattn_model::source::recorded;

/// What to do if a part of the matrix cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum OnFailure {
    /// End with the error.
    Stop,
    /// Continue with the other parts, and list the failures at the end.
    GoOn,
}

/// A run as the arguments request it.
#[derive(Debug)]
pub(in crate::cli) struct RunRequest {
    /// One configuration for each model.
    pub configs: Vec<RunConfig>,
    pub shard: Shard,
    pub out: PathBuf,
    /// Whether the folder's name is a default, so that another may be used if it is taken.
    pub is_unnamed: bool,
    pub mode: OpenMode,
    pub quiet: bool,
    pub json: bool,
    pub on_failure: OnFailure,
    /// Whether the run is only planned here and runs on other machines.
    pub is_elsewhere: bool,
    /// What the verdict holds methods to.
    pub safety: SafetyDemand,
    /// The bounds of `--until-certain`, if it was given.
    pub until_certain: Option<LookBounds>,
    /// Whether repeating the same command resumes the run, without another flag.
    pub resumes_by_itself: bool,
}

impl RunRequest {
    /// Checks, as far as possible in advance, that the folder can be written.
    pub(super) fn check_free(&self) -> Result<(), UsageError> {
        check_free(&self.out, self.mode)?;
        match self.on_failure {
            OnFailure::Stop => Ok(()),
            OnFailure::GoOn => owned_files::check(&self.out, &owned_files::ATTEMPTS),
        }
    }

    /// Hides the user's data in what is written, if requested.
    ///
    /// # Errors
    /// A [`UsageError`] if the folder was started with the other setting, or if stored prompts would reveal what is hidden.
    pub(super) fn settle_privacy(&self) -> Result<(), UsageError> {
        let config = &self.configs[0];
        if self.mode == OpenMode::Resume
            && let Ok(stored) = load_manifest(&self.out)
        {
            let (began, named) = (stored["config"]["anonymous"] == true, self.out.display());
            match (began, config.anonymous) {
                (true, false) => {
                    return Err(UsageError::new(format!("{named} was begun with --anonymous"))
                        .hint("add --anonymous, or choose another --out folder"));
                }
                (false, true) => {
                    return Err(UsageError::new(format!("{named} was begun without --anonymous"))
                        .hint("leave it out, and then: spattn report DIR --anonymous --out OTHER"));
                }
                _ => {}
            }
        }
        if config.anonymous && config.keep_prompts && config.system_prompt.is_some() {
            return Err(UsageError::new("--keep-prompts would store the system prompt, which --anonymous leaves out")
                .hint("leave one of them out"));
        }
        if config.anonymous {
            privacy::leave_out();
            self.configs.iter().for_each(|config| privacy::tell_of(&config.model));
            config.tasks.iter().for_each(|task| privacy::tell_of(task));
            let folders = [&config.data, &config.calibration].into_iter().flatten().chain([&self.out]);
            folders.for_each(|folder| privacy::tell_of(&folder.to_string_lossy()));
        }
        Ok(())
    }

    /// Whether another model of the run is recorded under the same name.
    pub(super) fn has_twin(&self, model: &str) -> bool {
        let name = recorded(model);
        self.configs.iter().any(|other| other.model != model && recorded(&other.model) == name)
    }
}
