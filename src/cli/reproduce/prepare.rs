//! Prepares an item's evaluations and calibrations.

use std::path::{Path, PathBuf};

use super::args::{ALONE, ReproduceArgs};
use super::item_run::ItemRun;
use crate::cli::matrix::{OnFailure, RunRequest};
use crate::cli::verdict_flags::SafetyDemand;
use crate::version::PROGRAM;
use spattn_base::error::UsageError;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::config::settings::Settings;
use spattn_eval::config::value::Given;
use spattn_eval::plan::contexts::Shard;
use spattn_eval::records::store::OpenMode;
use spattn_eval::records::timing::Latency;
use spattn_lab::papers::calibrations::Lesson;
use spattn_lab::papers::floor::for_floor;
use spattn_lab::papers::learning::Learning;

impl ReproduceArgs {
    /// The evaluations of an item: its run; the runs of random tokens and of further examples, which share its folder; and the run in which
    /// each method's steps are timed alone. Runs that stopped earlier are resumed.
    pub(super) fn prepare(&self, run: &ItemRun) -> Result<Vec<RunRequest>, UsageError> {
        let mode = if self.overwrite { OpenMode::Overwrite } else { OpenMode::Resume };
        let (beside, alone) = (run.folder.clone(), run.folder.join(ALONE));
        let own = run.settings.iter().map(|settings| (self.over(settings), beside.clone(), mode));
        // These runs share the folder of the first one, so they must not overwrite its records.
        let floor = run.floor.iter().map(|settings| (for_floor(self.over(settings)), beside.clone(), OpenMode::Resume));
        let more = run.more.iter().map(|settings| (self.over(settings), beside.clone(), OpenMode::Resume));
        let latency = run.latency.iter().map(|settings| (self.over(settings), alone.clone(), mode));
        own.chain(floor)
            .chain(more)
            .chain(latency)
            .map(|(settings, folder, mode)| self.request(settings, folder, mode))
            .collect()
    }

    /// The settings, overridden by the command line.
    fn over(&self, settings: &Settings) -> Settings {
        self.overrides().over(settings.clone())
    }

    fn request(&self, mut settings: Settings, folder: PathBuf, mode: OpenMode) -> Result<RunRequest, UsageError> {
        let device = self.device()?;
        if settings.latency == Some(Latency::Solo) && device.copies_per_gpu() > 1 {
            // Steps timed alone need a GPU to themselves; the rest of the item may share it.
            settings.device = Some(Given::meant(device.with_one_copy_per_gpu()));
        }
        Ok(RunRequest {
            configs: RunConfig::resolve(settings)?,
            shard: Shard::WHOLE,
            out: folder,
            is_unnamed: false,
            mode,
            quiet: self.quiet.0.is_some(),
            json: false,
            on_failure: OnFailure::GoOn,
            is_elsewhere: false,
            safety: SafetyDemand::default(),
            until_certain: None,
            resumes_by_itself: true,
        })
    }

    pub(super) fn lesson<'a>(&self, learning: &'a Learning, folder: &'a Path) -> Result<Lesson<'a>, UsageError> {
        let device = self.device()?.first_copy();
        Ok(Lesson { learning, folder, device, overwrite: self.overwrite, program: PROGRAM })
    }
}
