//! Makes calibration artefacts from text (`spattn calibrate`). How runs find them is in [`supply`](super::supply).

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::checkpoints::{Calibrated, Checkpoints, Keeping, refused};
use crate::examples::token_counter::Counter;
use spattn_attention::artefact::{self, Artefact, ArtefactInfo, FORMAT, ModelShape};
use spattn_attention::calibration::{
    Assignment, Calibration, Collected, Collector, ObserveChunk, PrefillChunk, Reading, ReadingText, TextKind,
};
use spattn_attention::methods::CALIBRATIONS;
use spattn_attention::{MethodSpec, Params, Rotation, expand_grid};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_base::memory;
use spattn_model::checksum::sha256_hex;
use spattn_model::tokenizer::Tokenizer;
use spattn_model::{Model, OpenModel};
use spattn_tasks::Task;
use spattn_tasks::seed::{Draw, example_seed};
use spattn_tasks::text::decode;
use spattn_tasks::text::essays::Essays;
use spattn_tasks::training_rows::{Books, Encoder, Trainer};

/// The most bytes of a file with imported nets.
const MOST_OF_IMPORT: u64 = 16 << 30;

/// The text to read.
pub enum Text {
    /// Essays of the offline generator, different in every block.
    Generated,
    /// A text's token ids. Blocks continue where the last one ended, and start again at the end of the text.
    File {
        /// A description for the record: the file's name and the start of its hash.
        label: String,
        /// The tokens, without the special tokens that the tokenizer puts in front.
        ids: Vec<u32>,
    },
    /// Prompts of a task.
    Task(Box<dyn Task>),
    /// Training rows: contexts of many lengths with questions and answers.
    Rows(Trainer),
}

impl From<ReadingText> for Text {
    fn from(text: ReadingText) -> Self {
        match text {
            ReadingText::Essays => Self::Generated,
            // Embedded definitions, which the tests read.
            ReadingText::Rows => Self::Rows(Trainer::new(Books::default()).expect("the training rows are well-formed")),
        }
    }
}

impl Text {
    /// Reads a file of running text.
    ///
    /// # Errors
    /// The errors of [`read_text`].
    pub fn file(path: &Path, model: &OpenModel) -> Result<Self> {
        let (label, ids) = read_text(path, "--data", &model.tokenizer)?;
        Ok(Self::File { label, ids })
    }

    fn label(&self) -> &str {
        match self {
            Self::Generated => Essays::Grammar.label(),
            Self::File { label, .. } => label,
            Self::Task(task) => task.name(),
            Self::Rows(_) => "training rows of 256 tokens and more",
        }
    }

    /// The number of tokens of the shortest possible block.
    fn shortest(&self) -> usize {
        match self {
            Self::Rows(_) => SHORTEST_ROW,
            _ => 1,
        }
    }

    /// The length of block `number` in tokens, at most `longest`. Lengths of training rows are uniform on a logarithmic scale.
    fn length(&self, number: usize, longest: usize, seed: u64) -> usize {
        const STEPS: usize = 1 << 20;
        match self {
            Self::Rows(_) if longest > SHORTEST_ROW => {
                let drawn = Draw::new(example_seed(seed, CALIBRATION_SEEDS, longest, number), 0).below(STEPS);
                let factor = longest as f64 / SHORTEST_ROW as f64;
                (SHORTEST_ROW as f64 * factor.powf((drawn + 1) as f64 / STEPS as f64)).round() as usize
            }
            _ => longest,
        }
    }

    /// The tokens of block `number`: `tokens` of them; for tasks, at most that many.
    fn block(&self, number: usize, tokens: usize, seed: u64, model: &OpenModel) -> Result<Vec<u32>> {
        match self {
            Self::Generated => {
                // A word has at least one token, so `tokens` words are enough.
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
                // The seed is hashed, so that no evaluated example is made from the same seed.
                let seed = example_seed(seed, CALIBRATION_SEEDS, tokens, number);
                let index = task.available().map_or(number, |n| number % n.max(1));
                let example = task.example(tokens, index, seed, &Counter(&model.tokenizer))?;
                let prompt = model.tokenizer.encode_prompt(&example.user_turn(), &example.answer_prefix)?;
                Ok(prompt.ids)
            }
            Self::Rows(rows) => {
                let encoder = RowEncoder::new(model)?;
                Ok(rows.row(seed, number, tokens, None, &encoder)?.encode(&encoder).0)
            }
        }
    }
}

/// Reads a file of running text. Returns a description of the file (name and start of its hash) and its tokens, without the special tokens
/// that the tokenizer puts in front. `flag` is the flag that gave the path, which hints name.
///
/// # Errors
/// If it cannot be read or has no text.
pub fn read_text(path: &Path, flag: &str, tokenizer: &Tokenizer) -> Result<(String, Vec<u32>)> {
    let hint = format!("{flag} takes text files");
    let bytes = given::bytes(path, given::MOST_OF_TEXT)
        .map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())).hint(hint.clone()))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let label = format!("{name} ({})", &sha256_hex(&bytes)[..12]);
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let what = format!("{}: a zero byte at offset {at}: this is not a text file", path.display());
        return Err(UsageError::new(what).hint(hint).into());
    }
    let ids = tokenizer.encode_text(&decode(bytes, path)?, false)?;
    if ids.is_empty() {
        return Err(UsageError::new(format!("there is no text in {}", path.display())).into());
    }
    Ok((label, ids))
}

/// The fewest tokens of a block from which something can be learned about the model.
const LEAST_BLOCK: usize = 64;
const CALIBRATION_SEEDS: &str = "calibration";
/// The number of tokens of the shortest training row.
const SHORTEST_ROW: usize = 256;

/// Encodes training rows as the model's tokens.
struct RowEncoder<'a> {
    tokenizer: &'a Tokenizer,
    bos: u32,
    eos: u32,
}

impl<'a> RowEncoder<'a> {
    fn new(model: &'a OpenModel) -> Result<Self, UsageError> {
        let tokenizer = &model.tokenizer;
        let eos = tokenizer.eos_ids().first().copied().ok_or_else(|| {
            UsageError::new(format!("{} has no end-of-text token, which training rows need", model.id))
                .hint("give text with --data, or prompts with --task")
        })?;
        // If the model has no BOS token, a row starts with an EOS token.
        Ok(Self { tokenizer, bos: tokenizer.bos_id().unwrap_or(eos), eos })
    }
}

impl Encoder for RowEncoder<'_> {
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        // A model's tokenizer can encode every text. If it failed, only this text would be missing from its row.
        ids.extend(self.tokenizer.encode_text(text, false).unwrap_or_default());
    }

    fn count(&self, text: &str) -> usize {
        self.tokenizer.encode_text(text, false).map_or(0, |ids| ids.len())
    }

    fn bos(&self) -> u32 {
        self.bos
    }

    fn eos(&self) -> u32 {
        self.eos
    }
}

/// An artefact to make, and how.
#[derive(Clone)]
pub struct CalibrationOrder {
    /// The calibration that makes it.
    pub calibration: &'static Calibration,
    /// Its settings as the user gave them.
    pub spec: MethodSpec,
}

impl CalibrationOrder {
    /// Parses specs `kind` or `kind:setting=value,...`. Without specs, returns an order for every kind that exists.
    ///
    /// # Errors
    /// If a kind is unknown or given twice.
    pub fn parse(specs: &[String]) -> Result<Vec<Self>, UsageError> {
        if specs.is_empty() {
            let plain = |c: &'static Calibration| Self { calibration: c, spec: MethodSpec::bare(c.kind) };
            return Ok(CALIBRATIONS.iter().map(plain).collect());
        }
        let mut orders: Vec<Self> = Vec::new();
        for text in specs {
            for spec in expand_grid(text)? {
                let calibration = CALIBRATIONS.iter().find(|c| c.kind == spec.name).ok_or_else(|| {
                    UsageError::unknown("calibrated method", &spec.name, CALIBRATIONS.iter().map(|c| c.kind))
                })?;
                if orders.iter().any(|o| o.calibration.kind == spec.name) {
                    return Err(UsageError::new(format!("calibration `{}` is given twice", spec.name))
                        .hint("a folder holds one artefact of a kind: run once for each, with --out DIR"));
                }
                orders.push(Self { calibration, spec });
            }
        }
        // A fixed order, so that orders that read the same text are adjacent.
        orders.sort_by_key(|o| CALIBRATIONS.iter().position(|c| c.kind == o.calibration.kind));
        Ok(orders)
    }

    /// Groups the orders that share one reading of the text.
    pub fn by_reading(orders: &[Self]) -> impl Iterator<Item = &[Self]> {
        orders.chunk_by(|a, b| a.calibration.reading == b.calibration.reading)
    }

    /// The default reading of orders that share a reading.
    ///
    /// # Panics
    /// If there are no orders.
    pub fn reading(orders: &[Self]) -> Reading {
        orders[0].calibration.reading
    }

    /// The text that is generated for this order if the user gives none.
    ///
    /// # Errors
    /// If the order's settings are wrong.
    pub fn text(&self) -> Result<ReadingText, UsageError> {
        self.calibration.text.map_or(Ok(self.calibration.reading.text), |of| of(&self.spec))
    }

    fn start(&self, assignment: &Assignment<'_>) -> Result<Box<dyn Collector>, UsageError> {
        let mut params = Params::new(&self.spec);
        let collector = (self.calibration.start)(assignment, &mut params)?;
        params.finish()?;
        Ok(collector)
    }
}

/// What to calibrate with.
pub struct CalibrationPlan<'a> {
    /// Which artefacts to make.
    pub orders: &'a [CalibrationOrder],
    /// The texts to read, in turn: one block from each.
    pub texts: &'a [Text],
    /// The number of tokens to read, over all blocks.
    pub tokens: usize,
    /// The most tokens of a block. The last block may be shorter.
    pub length: usize,
    /// The number of further blocks of full length, on which the result is measured.
    pub held_out: usize,
    /// The seed of the text and of all random numbers.
    pub seed: u64,
}

/// An artefact that was made.
pub struct Made {
    /// Its kind.
    pub kind: &'static str,
    /// The contents of its file.
    pub bytes: Vec<u8>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
    /// Measurements on held-out text, as CSV.
    pub held_out: Option<String>,
}

/// Imports nets that were trained for a model elsewhere.
///
/// # Errors
/// A [`UsageError`] if `order` cannot import such files, or if the file cannot be read or does not fit the model.
pub fn import(order: &CalibrationOrder, path: &Path, model: &OpenModel) -> Result<Made> {
    let (kind, label) = (order.calibration.kind, path.display());
    if let Some((key, _)) = order.spec.params.first() {
        return Err(UsageError::new(format!(
            "`{kind}:{key}` is a training setting, but --import takes nets that are trained already"
        ))
        .hint(format!("write `spattn calibrate {kind} --import {label}`"))
        .into());
    }
    let import = order.calibration.import.ok_or_else(|| {
        let known = CALIBRATIONS.iter().filter(|c| c.import.is_some()).map(|c| c.kind).collect::<Vec<_>>();
        UsageError::new(format!("--import does not support {kind}"))
            .hint(format!("--import supports {}", known.join(", ")))
    })?;
    let bytes = given::bytes(path, MOST_OF_IMPORT).map_err(|e| {
        UsageError::new(format!("cannot read {label}: {e}"))
            .hint("--import takes a file of nets: docs/calibration.md says how one is made, with scripts/import_hash_attention.py")
    })?;
    no_lfs_pointer(&label, &bytes)?;
    let shape = model.shape();
    let collected = import(&shape, &bytes).map_err(|what| {
        UsageError::new(format!("{label}: {what}")).hint(
            "docs/calibration.md says how such a file is made of a checkpoint, with scripts/import_hash_attention.py",
        )
    })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let info = ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model: shape,
        data: format!("imported from {name} ({})", &sha256_hex(&bytes)[..12]),
        seed: 0,
        blocks: 0,
        tokens: 0,
        settings: collected.settings,
    };
    let bytes = artefact::write(&info, &collected.tensors);
    Ok(Made { kind, bytes, notes: collected.notes, held_out: None })
}

/// The result of a calibration.
pub struct CalibrationOutcome {
    /// The artefacts, in the order of the plan's orders.
    pub made: Vec<Made>,
    /// The number of blocks read.
    pub blocks: usize,
    /// The number of tokens read.
    pub tokens: usize,
    /// A description of the text.
    pub data: String,
    /// The time that this run took.
    pub took: Duration,
}

/// What has been read so far.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    blocks: usize,
    tokens: usize,
}

impl CalibrationPlan<'_> {
    /// Checks that the settings are valid and that the model can read the blocks.
    ///
    /// # Errors
    /// A [`UsageError`] if an order's settings are wrong, there is nothing to read, or blocks are longer than the model's context.
    pub fn check(&self, model: &OpenModel) -> Result<(), UsageError> {
        self.collectors(&model.shape(), None)?;
        let limit = model.dimensions.config().context_limit();
        if self.tokens == 0 || self.length == 0 {
            return Err(UsageError::new("--tokens or --length is 0").hint("--tokens and --length take numbers from 1"));
        }
        let block = self.tokens.min(self.length);
        if block < LEAST_BLOCK {
            let what = format!("blocks of {block} tokens are too short to learn from");
            return Err(UsageError::new(what).hint(format!("--tokens and --length take numbers from {LEAST_BLOCK}")));
        }
        for text in self.texts {
            if let Text::File { label, ids } = text
                && ids.len() < block
            {
                let what = format!("{label} has {} tokens, fewer than a block of {block}", ids.len());
                return Err(UsageError::new(what).hint("give a longer text, or a shorter --length"));
            }
        }
        let shortest = self.texts.iter().map(Text::shortest).max().unwrap_or(1);
        if self.tokens.min(self.length) < shortest {
            let what = format!("{} have at least {shortest} tokens", self.texts[0].label());
            return Err(UsageError::new(what).hint("raise --tokens and --length, or give --data or --task"));
        }
        if self.length > limit {
            let what = format!("blocks of {} tokens are beyond the context of {} ({limit})", self.length, model.id);
            return Err(UsageError::new(what).hint("choose a shorter --length"));
        }
        let what = format!("{} reading blocks of {block} tokens takes", model.id);
        memory::check(self.bytes(model) as u64, what, "choose a shorter --length")
    }

    /// The bytes of memory that the calibration needs: weights, prefill of the longest block, and what the calibrations keep of it.
    pub fn bytes(&self, model: &OpenModel) -> usize {
        let (block, dimensions, shape) = (self.tokens.min(self.length), &model.dimensions, model.shape());
        let waiting: usize = self.orders.iter().map(|order| (order.calibration.waiting)(&shape, block)).sum();
        dimensions.weight_bytes().saturating_add(dimensions.prefill_bytes(block, false)).saturating_add(waiting)
    }

    /// Makes the first block of each text as [`run`](Self::run) would, without reading it.
    ///
    /// # Errors
    /// If a block cannot be made, or is longer than the model's context.
    pub fn check_first_blocks(&self, model: &OpenModel) -> Result<()> {
        let blocks = self.blocks();
        blocks
            .iter()
            .enumerate()
            .take(self.texts.len())
            .try_for_each(|(at, length)| self.ids(at, *length, model).map(drop))
    }

    /// The blocks as pairs of a count and a length in tokens, with the held-out blocks at the end.
    pub fn lengths(&self) -> Vec<(usize, usize)> {
        let learned = self.blocks().into_iter().map(|length| (1, length));
        learned.chain((self.held_out > 0).then_some((self.held_out, self.length))).collect()
    }

    /// Checks that the calibration can resume from its checkpoints.
    ///
    /// # Errors
    /// A [`UsageError`] if a checkpoint is missing or was written by another calibration; another error if one cannot be read.
    pub fn check_resumable(&self, checkpoints: &Checkpoints, model: &OpenModel) -> Result<()> {
        let shape = model.shape();
        let of = Calibrated { model: &shape, tokens: self.tokens, seed: self.seed, data: self.data() };
        self.orders.iter().try_for_each(|order| checkpoints.load(order.calibration.kind, &of).map(drop))
    }

    /// Notes for the user about texts, one line each: which files are read more than once.
    pub fn notes(&self) -> Vec<String> {
        let mut read = vec![0; self.texts.len()];
        self.blocks().iter().enumerate().for_each(|(number, length)| read[number % self.texts.len()] += length);
        let note = |(text, read): (&Text, usize)| match text {
            Text::File { label, ids } if read > ids.len() => {
                Some(format!("{label} has {} tokens, but {read} are read: repeated tokens add nothing new", ids.len()))
            }
            _ => None,
        };
        self.texts.iter().zip(read).filter_map(note).collect()
    }

    fn collectors(
        &self,
        model: &ModelShape,
        rotation: Option<Arc<dyn Rotation>>,
    ) -> Result<Vec<Box<dyn Collector>>, UsageError> {
        let is_general = self.texts.iter().all(|text| matches!(text, Text::Generated | Text::File { .. }));
        let text = if is_general { TextKind::General } else { TextKind::Tasks };
        let assignment = Assignment { rotation, model, seed: self.seed, tokens: self.tokens, text };
        self.orders.iter().map(|order| order.start(&assignment)).collect()
    }

    fn text(&self, number: usize) -> &Text {
        &self.texts[number % self.texts.len()]
    }

    /// The lengths of the blocks that are learned from.
    fn blocks(&self) -> Vec<usize> {
        let (mut lengths, mut left) = (Vec::new(), self.tokens);
        while left > 0 {
            let text = self.text(lengths.len());
            let length = text.length(lengths.len(), self.length, self.seed).min(left);
            if length < text.shortest() {
                break;
            }
            lengths.push(length);
            left -= length;
        }
        lengths
    }

    /// Prefills a block and passes each chunk to `observe`. Returns the block's number of tokens.
    fn read(&self, number: usize, length: usize, model: &Model, observe: &mut ObserveChunk<'_>) -> Result<usize> {
        let ids = self.ids(number, length, model)?;
        model.decoder.prefill_observed(&ids, ids.len(), observe)?;
        Ok(ids.len())
    }

    /// The tokens of block `number`.
    fn ids(&self, number: usize, length: usize, model: &OpenModel) -> Result<Vec<u32>> {
        let text = self.text(number);
        let ids = text.block(number / self.texts.len(), length, self.seed, model)?;
        model.check_tokens(&ids)?;
        let limit = model.dimensions.config().context_limit();
        if ids.len() > limit {
            let (label, tokens, id) = (text.label(), ids.len(), &model.id);
            let what = format!("a prompt of {label} has {tokens} tokens, beyond the context of {id} ({limit})");
            return Err(UsageError::new(what).hint("leave that text out").into());
        }
        Ok(ids)
    }

    /// Reads all blocks. After each, calls `progress` with the number of blocks done and the number of all blocks. Returns `None` if
    /// `progress` stops the run; checkpoints to resume from are then written.
    ///
    /// # Errors
    /// If a text cannot be made or read, a prompt is longer than the model's context, or a checkpoint cannot be written or restored.
    pub fn run(
        &self,
        model: &Model,
        checkpoints: Option<&Checkpoints>,
        mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<CalibrationOutcome>> {
        let (start, shape, blocks) = (Instant::now(), model.shape(), self.blocks());
        let mut collectors = self.collectors(&shape, model.decoder.rotation(self.length, self.length))?;
        let mut read = match checkpoints {
            Some(checkpoints) if checkpoints.resume => self.resume(checkpoints, &mut collectors, &shape)?,
            _ => Read::default(),
        };
        let mut keeping = checkpoints.map(|checkpoints| Keeping::begin(checkpoints, read.blocks));
        for (number, length) in blocks.iter().enumerate().skip(read.blocks) {
            let mut observe = |chunk: &PrefillChunk<'_>| collectors.iter_mut().try_for_each(|c| c.observe(chunk));
            let tokens = self.read(number, *length, model, &mut observe)?;
            collectors.iter_mut().for_each(|c| c.end_prompt(tokens));
            read = Read { blocks: number + 1, tokens: read.tokens + tokens };
            let stops = progress(read.blocks, blocks.len()).is_break();
            let is_last = read.blocks == blocks.len();
            if let Some(keeping) = keeping.as_mut().filter(|keeping| stops || keeping.is_due(read.blocks, is_last)) {
                let start = Instant::now();
                self.write_checkpoints(keeping.checkpoints, &collectors, read, &shape)?;
                keeping.wrote(read.blocks, start);
            }
            if stops {
                return Ok(None);
            }
        }
        for number in blocks.len()..blocks.len() + self.held_out {
            let mut examine = |chunk: &PrefillChunk<'_>| collectors.iter_mut().try_for_each(|c| c.examine(chunk));
            let tokens = self.read(number, self.length, model, &mut examine)?;
            collectors.iter_mut().for_each(|c| c.end_prompt(tokens));
        }
        let made = self.orders.iter().zip(collectors).map(|(order, collector)| {
            let (kind, collected) = (order.calibration.kind, collector.finish());
            let info = self.info(kind.to_owned(), &collected, read, &shape);
            let bytes = artefact::write(&info, &collected.tensors);
            Made { kind, bytes, notes: collected.notes, held_out: collected.held_out }
        });
        let (made, data) = (made.collect(), self.data());
        Ok(Some(CalibrationOutcome { made, blocks: read.blocks, tokens: read.tokens, data, took: start.elapsed() }))
    }

    /// A description of the texts and of the length of blocks.
    pub fn data(&self) -> String {
        let labels: Vec<&str> = self.texts.iter().map(Text::label).collect();
        format!("{}, {} tokens a block", labels.join(" + "), self.length)
    }

    fn info(&self, kind: String, collected: &Collected, read: Read, model: &ModelShape) -> ArtefactInfo {
        ArtefactInfo {
            format: FORMAT,
            kind,
            model: model.clone(),
            data: self.data(),
            seed: self.seed,
            blocks: read.blocks,
            tokens: read.tokens,
            settings: collected.settings.clone(),
        }
    }

    // ---- checkpoints ----

    /// Writes a checkpoint of every collector.
    fn write_checkpoints(
        &self,
        checkpoints: &Checkpoints,
        collectors: &[Box<dyn Collector>],
        read: Read,
        model: &ModelShape,
    ) -> Result<()> {
        for (order, collector) in self.orders.iter().zip(collectors) {
            let (kind, state) = (order.calibration.kind, collector.checkpoint());
            let info = self.info(kind.to_owned(), &state, read, model);
            checkpoints.write(kind, info, self.tokens, state)?;
        }
        Ok(())
    }

    /// The number of blocks that are learned from, without held-out blocks.
    pub fn count(&self) -> usize {
        self.blocks().len()
    }

    /// Whether any of the artefacts has a checkpoint.
    pub fn has_checkpoint(&self, checkpoints: &Checkpoints) -> bool {
        self.orders.iter().any(|order| checkpoints.file(order.calibration.kind).exists())
    }

    /// Restores the collectors from their checkpoints. Returns how much had been read by then.
    fn resume(
        &self,
        checkpoints: &Checkpoints,
        collectors: &mut [Box<dyn Collector>],
        model: &ModelShape,
    ) -> Result<Read> {
        let of = Calibrated { model, tokens: self.tokens, seed: self.seed, data: self.data() };
        let found = self.orders.iter().map(|order| checkpoints.load(order.calibration.kind, &of));
        let found: Vec<Artefact> = found.collect::<Result<_>>()?;
        let read = |checkpoint: &Artefact| Read { blocks: checkpoint.info().blocks, tokens: checkpoint.info().tokens };
        let Some(first) = found.first().map(read) else { return Ok(Read::default()) };
        if found.iter().any(|checkpoint| checkpoint.info().blocks != first.blocks) {
            eprintln!("note: the checkpoints are of different blocks: it starts from the beginning");
            return Ok(Read::default());
        }
        for (collector, checkpoint) in collectors.iter_mut().zip(&found) {
            collector.restore(checkpoint).map_err(refused)?;
        }
        Ok(first)
    }

    /// The multiplications of reading the first `blocks` blocks; if `None`, of all blocks including the held-out ones.
    pub fn work(&self, blocks: Option<usize>, model: &OpenModel) -> u64 {
        let lengths = self.blocks();
        let held_out = std::iter::repeat_n(self.length, if blocks.is_none() { self.held_out } else { 0 });
        let lengths = lengths.iter().take(blocks.unwrap_or(usize::MAX)).copied().chain(held_out);
        lengths.map(|length| model.dimensions.prefill_products(length)).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests;
