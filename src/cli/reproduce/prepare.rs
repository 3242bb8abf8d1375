//! The evaluation and the calibrations of an item, ready to start.

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
use spattn_lab::papers::learning::Learning;

impl ReproduceArgs {
    /// The evaluations of an item: its run, and the one in which each method's steps are timed alone. Runs that stopped earlier are resumed.
    pub(super) fn prepare(&self, run: &ItemRun) -> Result<Vec<RunRequest>, UsageError> {
        let all = [(&run.settings, run.folder.clone()), (&run.latency, run.folder.join(ALONE))];
        let some = all.into_iter().filter_map(|(settings, folder)| Some((settings.clone()?, folder)));
        some.map(|(settings, folder)| self.request(settings, folder)).collect()
    }

    fn request(&self, settings: Settings, folder: PathBuf) -> Result<RunRequest, UsageError> {
        let mut settings = self.overrides().over(settings);
        let device = self.device()?;
        if settings.latency == Some(Latency::Solo) && device.copies_per_gpu() > 1 {
            // What is timed alone has its GPU for itself; the rest of the item may share it.
            settings.device = Some(Given::meant(device.with_one_copy_per_gpu()));
        }
        Ok(RunRequest {
            configs: RunConfig::resolve(settings)?,
            shard: Shard::WHOLE,
            out: folder,
            is_unnamed: false,
            mode: if self.overwrite { OpenMode::Overwrite } else { OpenMode::Resume },
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
        let device = self.device()?.of_one_copy()?;
        Ok(Lesson { learning, folder, device, overwrite: self.overwrite, program: PROGRAM })
    }
}
