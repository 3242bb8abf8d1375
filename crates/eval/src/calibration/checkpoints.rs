//! Checkpoints of calibrations: the state of the collectors after some number of blocks, from which the same calibration can resume.
//! Reading and learning are in [`calibrate`](super::calibrate).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use spattn_attention::artefact::{self, Artefact, ArtefactError, ArtefactInfo, ModelShape};
use spattn_attention::calibration::Collected;
use spattn_base::disk::write_whole;
use spattn_base::error::UsageError;

/// Where a calibration's checkpoints are stored, and how often they are written.
///
/// A checkpoint's kind differs from that of an artefact, so that no run uses a checkpoint as an artefact.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    /// The folder of the checkpoints.
    pub folder: PathBuf,
    /// Whether to resume from existing files.
    pub resume: bool,
    /// The time after which the next block writes a checkpoint; extended to 20 times what writing the last one took.
    pub gap: Duration,
    /// Whether to write a checkpoint after the last block too, because other calibrations follow and may be interrupted.
    pub at_end: bool,
    /// The number of blocks in the last checkpoint, which an interrupted command reports.
    pub kept: Arc<AtomicUsize>,
}

impl Checkpoints {
    /// A checkpoint is written after every multiple of this many blocks.
    const EVERY: usize = 32;
    /// The least gap between two checkpoints, in multiples of the time that writing one takes.
    const LEAST_GAPS: u32 = 20;

    /// The default checkpoints in a folder, without resuming.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            resume: false,
            gap: Duration::from_secs(2),
            at_end: false,
            kept: Arc::default(),
        }
    }

    /// The file for a kind of artefact.
    pub fn file(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("{kind}.checkpoint"))
    }

    /// Loads the checkpoint of a kind, and checks that the same calibration wrote it.
    ///
    /// # Errors
    /// A [`UsageError`] if there is none or another calibration wrote it; another error if it cannot be read.
    pub(super) fn load(&self, kind: &str, of: &Calibrated<'_>) -> Result<Artefact> {
        let path = self.file(kind);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let what = format!("there is no checkpoint to resume from: no {}", path.display());
                return Err(UsageError::new(what).hint("leave --resume out to start from the beginning").into());
            }
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let checkpoint = Artefact::parse(&path.display().to_string(), bytes).map_err(refused)?;
        checkpoint.check(&checkpoint_kind(kind), of.model).map_err(refused)?;
        checkpoint.check_setting(PLANNED, &of.tokens.to_string()).map_err(refused)?;
        let info = checkpoint.info();
        if (info.seed, info.data.as_str()) != (of.seed, of.data.as_str()) {
            let what = format!("{}: begun with seed {} on {}", path.display(), info.seed, info.data);
            return Err(UsageError::new(what).hint("--resume needs the same --seed, text and --length").into());
        }
        Ok(checkpoint)
    }

    /// Writes a checkpoint of a collector's state; `info` has what was read until then.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, kind: &str, info: ArtefactInfo, planned: usize, state: Collected) -> Result<()> {
        let mut settings = state.settings;
        settings.insert(PLANNED.to_owned(), planned.to_string());
        let info = ArtefactInfo { kind: checkpoint_kind(kind), settings, ..info };
        Ok(write_whole(&self.file(kind), &artefact::write(&info, &state.tensors))?)
    }
}

/// What a calibration reads. A checkpoint has to match it.
pub(super) struct Calibrated<'a> {
    pub model: &'a ModelShape,
    /// The number of tokens of the whole plan.
    pub tokens: usize,
    pub seed: u64,
    /// A description of the text.
    pub data: String,
}

/// The error for a checkpoint of another calibration.
pub(super) fn refused(error: ArtefactError) -> UsageError {
    UsageError::new(error.to_string())
        .hint("--resume needs the arguments and the model of the run that wrote the checkpoint")
}

/// Decides when to write checkpoints.
pub(super) struct Keeping<'c> {
    pub checkpoints: &'c Checkpoints,
    last: Instant,
    /// How long writing the last checkpoint took.
    took: Duration,
}

impl<'c> Keeping<'c> {
    pub fn begin(checkpoints: &'c Checkpoints, blocks: usize) -> Self {
        checkpoints.kept.store(blocks, Ordering::Relaxed);
        Self { checkpoints, last: Instant::now(), took: Duration::ZERO }
    }

    pub fn is_due(&self, blocks: usize, is_last: bool) -> bool {
        let gap = self.checkpoints.gap.max(self.took * Checkpoints::LEAST_GAPS);
        blocks.is_multiple_of(Checkpoints::EVERY) || self.last.elapsed() >= gap || is_last && self.checkpoints.at_end
    }

    pub fn wrote(&mut self, blocks: usize, start: Instant) {
        (self.last, self.took) = (Instant::now(), start.elapsed());
        self.checkpoints.kept.store(blocks, Ordering::Relaxed);
    }
}

/// The key under which a checkpoint stores the plan's number of tokens.
const PLANNED: &str = "planned_tokens";

fn checkpoint_kind(kind: &str) -> String {
    format!("{kind}.checkpoint")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_named_after_its_kind() {
        assert_eq!(Checkpoints::new(Path::new("a")).file("loki"), Path::new("a/loki.checkpoint"));
    }

    #[test]
    fn one_is_due_after_some_time_or_some_blocks_and_at_the_end_if_more_follows() {
        let never = Checkpoints { gap: Duration::MAX, ..Checkpoints::new(Path::new("a")) };
        let is_due =
            |checkpoints: &Checkpoints, blocks, is_last| Keeping::begin(checkpoints, 3).is_due(blocks, is_last);
        assert_eq!(never.kept.load(Ordering::Relaxed), 0);
        assert!(!is_due(&never, 31, false) && is_due(&never, 32, false) && !is_due(&never, 5, true));
        assert_eq!(never.kept.load(Ordering::Relaxed), 3, "what an earlier run kept");
        assert!(is_due(&Checkpoints { at_end: true, ..never.clone() }, 5, true));
        let always = Checkpoints { gap: Duration::ZERO, ..never };
        assert!(is_due(&always, 1, false));
        let slow = Keeping { took: Duration::from_secs(10), ..Keeping::begin(&always, 0) };
        assert!(!slow.is_due(1, false), "writing takes a twentieth of the time at most");
    }
}
