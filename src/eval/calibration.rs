//! Calibration artefacts of a run: made from text with `spattn calibrate`, found and checked by `spattn eval`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::run::Counter;
use crate::attention::Configured;
use crate::attention::artefact::{self, Artefact, ArtefactError, ArtefactInfo, FORMAT};
use crate::attention::calibration::{Calibration, Collector, PrefillChunk};
use crate::attention::methods::CALIBRATIONS;
use crate::error::UsageError;
use crate::model::Model;
use crate::model::calibration::CalibrationPlace;
use crate::model::weights::sha256_hex;
use crate::tasks::Task;
use crate::tasks::seed::example_seed;
use crate::tasks::text::essays::Essays;

// ---- finding artefacts ----

/// Gives every method that needs one its artefact: from `folder`, or from the model's own place.
///
/// # Errors
/// A [`UsageError`] that says how to make it if one is missing or not made for this model.
pub fn supply(methods: &mut [Configured], model: &Model, folder: Option<&Path>) -> Result<()> {
    let mut artefacts = BTreeMap::new();
    for method in methods {
        let Some(kind) = method.method.calibration() else { continue };
        let artefact = match artefacts.entry(kind) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(find(kind, method.name, model, folder)?),
        };
        *method = method.calibrated(artefact).map_err(|e| refused(e, kind, model, folder))?;
    }
    Ok(())
}

/// The artefact of `kind` for `model`, which the method called `method` needs.
fn find(kind: &str, method: &str, model: &Model, folder: Option<&Path>) -> Result<Artefact> {
    let place = folder.map_or_else(|| model.calibration.clone(), |f| CalibrationPlace::Folder(f.to_owned()));
    let file = place.label(kind);
    let bytes = place.read(kind).with_context(|| format!("cannot read {file}"))?.ok_or_else(|| {
        UsageError::new(format!("method `{method}` needs a calibration of {}: no {file}", model.id))
            .hint(how_to_make(kind, model, folder))
    })?;
    let refused = |e| refused(e, kind, model, folder);
    let artefact = Artefact::parse(&file, bytes).map_err(refused)?;
    artefact.check(kind, &model.shape()).map_err(refused)?;
    Ok(artefact)
}

fn refused(error: ArtefactError, kind: &str, model: &Model, folder: Option<&Path>) -> UsageError {
    UsageError::new(error.to_string()).hint(how_to_make(kind, model, folder))
}

/// The command that makes an artefact where it was looked for, or where it can be kept.
fn how_to_make(kind: &str, model: &Model, folder: Option<&Path>) -> String {
    let command = format!("spattn calibrate --method {kind} --model {}", model.id);
    match (folder, &model.writable_calibration) {
        (Some(folder), _) => format!("make it with `{command} --out {}`", folder.display()),
        (None, Some(_)) => format!("make it with `{command}`"),
        (None, None) => format!("make it with `{command} --out DIR`, and give it to eval with --calibration DIR"),
    }
}

// ---- making artefacts ----

/// Which text is read.
pub enum Text {
    /// Essays of the offline generator, different in every block.
    Generated,
    /// A text's token ids, read on from block to block and from the start again at its end.
    File {
        /// Name and hash, for the record.
        label: String,
        /// Without what the tokenizer puts in front of a text.
        ids: Vec<u32>,
    },
    /// Prompts of a task.
    Task(Box<dyn Task>),
}

impl Text {
    /// Reads a file of running text.
    ///
    /// # Errors
    /// If it cannot be read or has no text.
    pub fn file(path: &Path, model: &Model) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| {
            UsageError::new(format!("cannot read {}: {e}", path.display())).hint("--data takes text files")
        })?;
        let ids = model.tokenizer.encode_text(&String::from_utf8_lossy(&bytes), false)?;
        if ids.is_empty() {
            return Err(UsageError::new(format!("there is no text in {}", path.display())).into());
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Ok(Self::File { label: format!("{name} ({})", &sha256_hex(&bytes)[..12]), ids })
    }

    fn label(&self) -> &str {
        match self {
            Self::Generated => Essays::Grammar.label(),
            Self::File { label, .. } => label,
            Self::Task(task) => task.name(),
        }
    }

    /// The `number`-th block from here, of `tokens` tokens (for tasks, at most).
    fn block(&self, number: usize, tokens: usize, seed: u64, model: &Model) -> Result<Vec<u32>> {
        match self {
            Self::Generated => {
                // A word is a token at least.
                let text = Essays::Grammar.reader(seed, number as u64).text(tokens);
                let mut ids = model.tokenizer.encode_text(&text, true)?;
                ids.truncate(tokens);
                Ok(ids)
            }
            Self::File { ids, .. } => {
                let mut block = model.tokenizer.encode_text("", true)?;
                let own = tokens.saturating_sub(block.len());
                block.extend(ids.iter().cycle().skip(number * own % ids.len()).take(own));
                Ok(block)
            }
            Self::Task(task) => {
                // Hashed, so that no evaluated example is made from the same seed.
                let seed = example_seed(seed, CALIBRATION_SEEDS, tokens, number);
                let index = task.available().map_or(number, |n| number % n.max(1));
                let example = task.example(tokens, index, seed, &Counter(&model.tokenizer))?;
                let prompt = model.tokenizer.encode_prompt(&example.user_turn(), &example.answer_prefix)?;
                Ok(prompt.ids)
            }
        }
    }
}

const CALIBRATION_SEEDS: &str = "calibration";

/// What to calibrate with.
pub struct Plan<'a> {
    /// Which artefacts to make.
    pub calibrations: Vec<&'a Calibration>,
    /// Read in turn, a block each.
    pub texts: Vec<Text>,
    /// Tokens to read, in all blocks together.
    pub tokens: usize,
    /// Tokens of a block; the last one may be shorter.
    pub length: usize,
    /// Seed of the text and of what is drawn.
    pub seed: u64,
}

/// An artefact that was made.
pub struct Made {
    /// Its kind.
    pub kind: &'static str,
    /// Contents of its file.
    pub bytes: Vec<u8>,
    /// What the user may want to know of it, one line each.
    pub notes: Vec<String>,
}

/// What calibrating gave.
pub struct Outcome {
    /// One for each calibration of the plan, in its order.
    pub made: Vec<Made>,
    /// Sequences read.
    pub blocks: usize,
    /// Tokens read.
    pub tokens: usize,
    /// The text, in words.
    pub data: String,
    /// Time of it all.
    pub took: Duration,
}

impl<'a> Plan<'a> {
    /// The calibrations of these kinds, each once; all there are if no kind is given.
    ///
    /// # Errors
    /// If there is none of a kind.
    pub fn calibrations(kinds: &[String]) -> Result<Vec<&'static Calibration>, UsageError> {
        let known = || CALIBRATIONS.iter().map(|c| c.kind);
        if let Some(unknown) = kinds.iter().find(|kind| known().all(|k| k != *kind)) {
            return Err(UsageError::unknown("calibrated method", unknown, known()));
        }
        Ok(CALIBRATIONS.iter().filter(|c| kinds.is_empty() || kinds.iter().any(|kind| kind == c.kind)).collect())
    }

    /// Makes sure that the model can read the blocks.
    ///
    /// # Errors
    /// A [`UsageError`] if there is nothing to read, or blocks are beyond the model's context.
    pub fn check(&self, model: &Model) -> Result<(), UsageError> {
        let limit = model.decoder.config().context_limit();
        if self.tokens == 0 || self.length == 0 {
            return Err(UsageError::new("0 tokens were asked for").hint("--tokens and --length take numbers from 1"));
        }
        if self.length > limit {
            let what = format!("blocks of {} tokens are beyond the context of {} ({limit})", self.length, model.id);
            return Err(UsageError::new(what).hint("choose a shorter --length"));
        }
        Ok(())
    }

    /// Lengths of the blocks.
    fn blocks(&self) -> Vec<usize> {
        let whole = self.tokens / self.length;
        let rest = self.tokens % self.length;
        std::iter::repeat_n(self.length, whole).chain((rest > 0).then_some(rest)).collect()
    }

    /// Reads all blocks, telling `progress` how many of how many are done after each.
    ///
    /// # Errors
    /// If a text cannot be made or read, or a prompt is beyond the model's context.
    pub fn run(&self, model: &Model, mut progress: impl FnMut(usize, usize)) -> Result<Outcome> {
        let (start, shape) = (Instant::now(), model.shape());
        let mut collectors: Vec<Box<dyn Collector>> =
            self.calibrations.iter().map(|c| (c.start)(&shape, self.seed)).collect();
        let blocks = self.blocks();
        let mut tokens = 0;
        for (number, length) in blocks.iter().enumerate() {
            let text = &self.texts[number % self.texts.len()];
            let ids = text.block(number / self.texts.len(), *length, self.seed, model)?;
            let limit = model.decoder.config().context_limit();
            if ids.len() > limit {
                let what = format!(
                    "a prompt of {} has {} tokens, beyond the context of {} ({limit})",
                    text.label(),
                    ids.len(),
                    model.id
                );
                return Err(UsageError::new(what).hint("leave that text out").into());
            }
            tokens += ids.len();
            let mut observe = |chunk: &PrefillChunk<'_>| collectors.iter_mut().for_each(|c| c.observe(chunk));
            model.decoder.prefill_observed(&ids, ids.len(), &mut observe);
            progress(number + 1, blocks.len());
        }
        let labels: Vec<&str> = self.texts.iter().map(Text::label).collect();
        let data = format!("{}, {} tokens a block", labels.join(" + "), self.length);
        let made = self
            .calibrations
            .iter()
            .zip(collectors)
            .map(|(calibration, collector)| {
                let collected = collector.finish();
                let info = ArtefactInfo {
                    format: FORMAT,
                    kind: calibration.kind.to_owned(),
                    model: shape.clone(),
                    data: data.clone(),
                    seed: self.seed,
                    blocks: blocks.len(),
                    tokens,
                    settings: collected.settings,
                };
                Made {
                    kind: calibration.kind,
                    bytes: artefact::write(&info, &collected.tensors),
                    notes: collected.notes,
                }
            })
            .collect();
        Ok(Outcome { made, blocks: blocks.len(), tokens, data, took: start.elapsed() })
    }
}
