//! Keys, values and queries that a model computes while it reads a prompt, for the layers that are timed.
//!
//! The prompt is that of a retrieval task with many similar entries, so that the tokens after the context are a question about it; or a
//! text that the user gives. Calibration artefacts of the model are reduced to the same layers.

use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::prefill::Prompt;
use spattn_attention::artefact::{Artefact, ArtefactError, ModelShape};
use spattn_attention::calibration::{ObserveChunk, PrefillChunk};
use spattn_attention::kv::{KvDtype, KvError, LayerKv};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_eval::calibration::calibrate::read_text;
use spattn_eval::calibration::capture::read_apart;
use spattn_eval::calibration::supply::found;
use spattn_eval::examples::token_counter::Counter;
use spattn_model::device::Device;
use spattn_model::dimensions::Dimensions;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use spattn_tasks::{Task, TaskOptions, resolve};

/// The task whose prompts are read unless the user gives a text.
const TASK: &str = "ruler/niah_multikey_3";
/// The length of the shortest prompt that is generated, in tokens. Shorter prompts are cut from it.
const SHORTEST: usize = 1024;

/// The source of prompts.
enum Source {
    Task(Box<dyn Task>),
    /// A text's tokens, without the tokenizer's first special tokens.
    File {
        label: String,
        ids: Vec<u32>,
    },
}

impl Source {
    fn label(&self) -> &str {
        match self {
            Self::Task(task) => task.name(),
            Self::File { label, .. } => label,
        }
    }
}

/// An opened model without its weights, and what it is to read.
pub struct Reader {
    model: OpenModel,
    source: Source,
    /// The model's layers that are timed.
    layers: Vec<usize>,
    seed: u64,
}

/// `count` of `all` layers, evenly spaced; a single one is the middle layer.
fn spread(count: usize, all: usize) -> Vec<usize> {
    (0..count).map(|i| (2 * i + 1) * all / (2 * count)).collect()
}

impl Reader {
    /// Opens the model, and reads the user's text if there is one. `dtype` is the type of keys, values and weights.
    ///
    /// # Errors
    /// As [`OpenModel::open`]; if the text cannot be read, or the model has fewer than `layers` layers.
    pub fn open(model: &str, dtype: KvDtype, text: Option<&Path>, layers: usize, seed: u64) -> Result<Self> {
        let source = ModelSource::parse(model)?;
        let model = OpenModel::open(&source, Some(dtype), TokenizerOptions::default())?;
        let all = model.dimensions.config().layers;
        if layers > all {
            let what = format!("--layers is {layers}, but {} has {all} layers", model.id);
            return Err(UsageError::new(what).hint(format!("take --layers from 1 to {all}")).into());
        }
        let source = match text {
            Some(path) => {
                let (label, ids) = read_text(path, "--text", &model.tokenizer)?;
                Source::File { label, ids }
            }
            None => {
                let task = resolve(&[TASK.to_owned()], &TaskOptions::default())?.pop();
                Source::Task(task.ok_or_else(|| anyhow!("there is no task {TASK}"))?)
            }
        };
        Ok(Self { model, source, layers: spread(layers, all), seed })
    }

    /// Notes for the user about the model, one line each.
    pub fn notes(&self) -> &[String] {
        &self.model.notes
    }

    /// The model's dimensions, with only as many layers as are timed.
    pub fn dimensions(&self) -> Dimensions {
        let dimensions = &self.model.dimensions;
        let mut config = dimensions.config().clone();
        config.keep_layers(&self.layers);
        Dimensions::new(&config, dimensions.dtype())
    }

    /// Checks that the model can read the longest of `contexts` with `steps` tokens after it, that the text has enough tokens for all
    /// `sequences`, and that weights, prefill and captured rows fit in memory.
    ///
    /// # Errors
    /// If one of these fails, with the largest value that would work.
    pub fn check(&self, contexts: &[usize], steps: usize, sequences: usize) -> Result<(), UsageError> {
        let context = contexts.iter().copied().max().unwrap_or(0);
        let (limit, id, dimensions) =
            (self.model.dimensions.config().context_limit(), &self.model.id, &self.model.dimensions);
        let tokens = context + steps;
        if tokens > limit {
            let behind = if steps > 0 { format!(" and {steps} decode steps") } else { String::new() };
            let what = format!("a context of {context} tokens{behind} is beyond the context of {id} ({limit})");
            let most = limit.saturating_sub(steps);
            return Err(UsageError::new(what).hint(format!("take contexts of up to {most} tokens, or fewer --rounds")));
        }
        if let Source::File { label, ids } = &self.source {
            let needed = sequences * tokens;
            if ids.len() < needed {
                let what = format!("{label} has {} tokens, but {needed} are needed", ids.len());
                return Err(
                    UsageError::new(what).hint("give a longer --text, or take shorter contexts, or fewer --rounds")
                );
            }
        }
        let c = dimensions.config();
        // If whole prompts are timed, their queries and outputs are stored too.
        let queries = if steps == 0 { memory::product([2, 4, c.heads, c.head_dim]) } else { 0 };
        let of_token = self.dimensions().kv_bytes_per_token().saturating_add(queries);
        let kept = memory::product([sequences, tokens, of_token]);
        let needed = memory::sum([kept, dimensions.weight_bytes(), dimensions.prefill_bytes(tokens, false)]);
        let what = format!("{id} reading {tokens} tokens takes");
        memory::check(needed as u64, what, "take shorter contexts, smaller batches or fewer --layers")
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// As [`OpenModel::load`].
    pub fn load(self) -> Result<Capture> {
        let Self { model, source, layers, seed } = self;
        Ok(Capture { model: model.load(Device::Cpu)?, source, layers, seed })
    }
}

/// A loaded model, some of whose layers are captured.
pub struct Capture {
    model: Model,
    source: Source,
    layers: Vec<usize>,
    seed: u64,
}

/// Rows of consecutive positions at one layer; the same type as [`DrawnRows`](super::drawn::DrawnRows).
pub type Rows = super::drawn::DrawnRows;

impl Capture {
    /// A description of the model, its layers and the text.
    pub fn label(&self) -> String {
        let numbers: Vec<String> = self.layers.iter().map(usize::to_string).collect();
        let layers = if numbers.len() == 1 { "layer" } else { "layers" };
        let all = self.model.dimensions.config().layers;
        format!("{layers} {} of {all} of {} reading {}", numbers.join(", "), self.model.id, self.source.label())
    }

    /// The same description, for a manifest.
    pub fn described(&self) -> Value {
        json!({
            "model": self.model.id,
            "revision": self.model.revision,
            "weights_sha256": self.model.weights_sha256,
            "layers": self.layers,
            "text": self.source.label(),
        })
    }

    /// The model's shape reduced to the captured layers. Artefacts have to match it.
    pub(super) fn shape(&self) -> ModelShape {
        ModelShape { layers: self.layers.len(), ..self.model.shape() }
    }

    /// The model's calibration of a kind, reduced to the captured layers; `None` if it has none.
    pub(super) fn artefact(&self, kind: &str) -> Result<Option<Artefact>> {
        let of_layers = |artefact: Artefact| -> Result<Artefact, ArtefactError> { artefact.of_layers(&self.layers) };
        Ok(found(kind, &self.model, None)?.map(of_layers).transpose()?)
    }

    /// Returns the `number`-th prompt, of exactly `count` tokens.
    pub(super) fn tokens(&self, count: usize, number: usize) -> Result<Vec<u32>> {
        let tokenizer = &self.model.tokenizer;
        let ids = match &self.source {
            Source::File { ids, .. } => {
                let mut own = tokenizer.encode_text("", true)?;
                let more = count.saturating_sub(own.len());
                own.extend(ids.iter().skip(number * more).take(more));
                own.truncate(count);
                own
            }
            Source::Task(task) => self.prompt_of(task.as_ref(), count, number)?,
        };
        self.model.check_tokens(&ids)?;
        Ok(ids)
    }

    /// Returns a prompt for calibration, of at most `most` tokens: a task's prompt that is not timed, or the beginning of the text.
    pub(super) fn learning_tokens(&self, most: usize) -> Result<Vec<u32>> {
        /// Larger than any batch, so that no timed prompt has this number.
        const OTHER: usize = 1 << 20;
        let most = most.min(self.model.dimensions.config().context_limit());
        match &self.source {
            Source::File { ids, .. } => self.tokens(most.min(ids.len()), 0),
            Source::Task(_) => self.tokens(most, OTHER),
        }
    }

    /// Returns a prompt of the task, made slightly too long and then cut in the middle, so that instruction and question stay.
    fn prompt_of(&self, task: &dyn Task, count: usize, number: usize) -> Result<Vec<u32>> {
        /// Enough attempts: prompts leave room for an answer and end with a whole line, so the first may be too short, and the second or
        /// third is long enough.
        const TRIES: usize = 8;
        let tokenizer = &self.model.tokenizer;
        let mut length = count.max(SHORTEST);
        for _ in 0..TRIES {
            let example = task.example(length, number, self.seed, &Counter(tokenizer))?;
            let mut ids = tokenizer.encode_prompt(&example.user_turn(), &example.answer_prefix)?.ids;
            if let Some(surplus) = ids.len().checked_sub(count) {
                ids.drain(count / 2..count / 2 + surplus);
                return Ok(ids);
            }
            length += 2 * (count - ids.len());
        }
        Err(anyhow!("{} cannot make a prompt of {count} tokens", task.name()))
    }

    /// Reads the first `context` tokens of `ids`, then the rest. `before` sees the chunks of the first part and `behind` those of the rest,
    /// of captured layers only, numbered from 0. Returns the keys and values of these layers for the first part.
    pub(super) fn read(
        &self,
        ids: &[u32],
        context: usize,
        mut before: impl FnMut(&PrefillChunk<'_>) -> Result<(), KvError>,
        mut behind: impl FnMut(&PrefillChunk<'_>) -> Result<(), KvError>,
    ) -> Result<Vec<LayerKv>> {
        let ours = |chunk: &PrefillChunk<'_>, see: &mut ObserveChunk<'_>| {
            let Some(layer) = self.layers.iter().position(|layer| *layer == chunk.layer) else { return Ok(()) };
            let mut chunk = *chunk;
            chunk.layer = layer;
            see(&chunk)
        };
        let mut observe_before = |chunk: &PrefillChunk<'_>| ours(chunk, &mut before);
        let mut observe_behind = |chunk: &PrefillChunk<'_>| ours(chunk, &mut behind);
        let kvs = read_apart(&self.model.decoder, ids, context, &mut observe_before, &mut observe_behind)?;
        let mut kvs: Vec<Option<LayerKv>> = kvs.into_iter().map(Some).collect();
        // Free the other layers before `truncate` allocates.
        let mut kept: Vec<LayerKv> = self.layers.iter().filter_map(|layer| kvs[*layer].take()).collect();
        drop(kvs);
        kept.iter_mut().for_each(|kv| kv.truncate(context, context));
        Ok(kept)
    }

    /// Returns a prompt at the first captured layer, with the queries of all tokens.
    pub(super) fn prompt(&self, context: usize) -> Result<Prompt> {
        let (mut queries, mut heads) = (Vec::new(), 0);
        let keep = |chunk: &PrefillChunk<'_>| {
            if chunk.layer == 0 {
                queries.extend_from_slice(chunk.queries()?);
                heads = chunk.heads;
            }
            Ok(())
        };
        let kv = self.read(&self.tokens(context, 0)?, context, keep, |_| Ok(()))?.into_iter().next();
        let kv = kv.ok_or_else(|| anyhow!("the model has no layer to time"))?;
        Ok(Prompt { queries, heads, kv, first: 0 })
    }
}

/// Adds the queries, keys and values of a chunk's own tokens to `rows`.
///
/// # Errors
/// If a device computes the chunk, and fails.
pub(super) fn keep_rows(chunk: &PrefillChunk<'_>, rows: &mut Rows) -> Result<(), KvError> {
    let chunk = chunk.on_host()?;
    rows.queries.extend_from_slice(chunk.queries());
    let (keys, values) = chunk.rows();
    rows.keys.extend(keys);
    rows.values.extend(values);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::super::sequence::{BenchSequence, Wanted};
    use super::*;
    use spattn_attention::kv::Prefix;

    fn reader(text: Option<&Path>, layers: usize) -> Reader {
        Reader::open("builtin", KvDtype::Bf16, text, layers, 3).unwrap()
    }

    #[test]
    fn layers_are_spread_over_the_model() {
        assert_eq!(spread(1, 10), [5]);
        assert_eq!(spread(1, 1), [0]);
        assert_eq!(spread(3, 10), [1, 5, 8]);
        assert_eq!(spread(10, 10), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn prompts_have_as_many_tokens_as_are_asked_for_and_end_with_a_question() {
        let capture = reader(None, 1).load().unwrap();
        let text = |ids: &[u32]| capture.model.tokenizer.decode(ids).unwrap();
        for count in [64, 1500, 4113] {
            let [ids, other] = [0, 1].map(|number| capture.tokens(count, number).unwrap());
            assert_eq!((ids.len(), other.len()), (count, count));
            assert!(text(&ids[count - 40..]).contains("special magic uuid for"), "{}", text(&ids[count - 40..]));
            assert_eq!(text(&ids[..20])[..14], text(&capture.tokens(8000, 0).unwrap()[..20])[..14]);
            assert_ne!(ids, other);
        }
        assert_ne!(capture.learning_tokens(1024).unwrap(), capture.tokens(1024, 0).unwrap());
    }

    #[test]
    fn a_text_is_read_from_its_beginning_and_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let words: String = (0..400).map(|i| format!("number {i} and ")).collect();
        std::fs::write(&path, &words).unwrap();
        let capture = reader(Some(&path), 1).load().unwrap();
        let plain = capture.model.tokenizer.encode_text(&words, false).unwrap();
        let front = capture.model.tokenizer.encode_text("", true).unwrap();
        let own = 100 - front.len();
        for number in 0..3 {
            let ids = capture.tokens(100, number).unwrap();
            assert_eq!((&ids[..front.len()], &ids[front.len()..]), (&front[..], &plain[number * own..][..own]));
        }
        let refused = |steps: usize, sequences: usize| {
            reader(Some(&path), 1).check(&[plain.len() - 100, 10], steps, sequences).err().map(|error| error.what)
        };
        assert_eq!(refused(100, 1), None);
        let said = format!("has {} tokens, but {} are needed", plain.len(), 2 * plain.len());
        assert!(refused(100, 2).unwrap().contains(&said));
        assert!(refused(101, 1).is_some());
    }

    #[test]
    fn what_the_model_cannot_read_is_refused() {
        let reader = reader(None, 2);
        assert_eq!(reader.check(&[32_768 - 17, 64], 17, 1), Ok(()));
        let error = reader.check(&[64, 32_768 - 16], 17, 1).unwrap_err();
        assert_eq!(
            error.what,
            "a context of 32752 tokens and 17 decode steps is beyond the context of builtin (32768)"
        );
        assert!(error.hint.unwrap().starts_with("take contexts of up to 32751 tokens"));
        let error = reader.check(&[32_751], 17, 1 << 20).unwrap_err();
        assert!(
            error.what.starts_with("builtin reading 32768 tokens takes") && error.what.contains(" of memory, and ")
        );
        let error = Reader::open("builtin", KvDtype::Bf16, None, 11, 1).err().unwrap().to_string();
        assert_eq!(error, "--layers is 11, but builtin has 10 layers");
    }

    /// Returns all queries `[layer][token][head][d]` of a prompt that is read in one go, and its prefix.
    fn read_at_once(capture: &Capture, ids: &[u32]) -> (Vec<Vec<f32>>, Arc<Prefix>) {
        let mut queries = vec![Vec::new(); 10];
        let mut keep = |chunk: &PrefillChunk<'_>| {
            queries[chunk.layer].extend_from_slice(chunk.queries()?);
            Ok(())
        };
        let prefix = capture.model.decoder.prefill_observed(ids, ids.len(), &mut keep).unwrap().prefix;
        (queries, prefix)
    }

    #[test]
    fn what_is_captured_is_what_the_model_computes() {
        let (context, steps, number) = (2100, 30, 1);
        let reader = reader(None, 2);
        let dimensions = reader.dimensions();
        let capture = reader.load().unwrap();
        assert_eq!((&capture.layers[..], dimensions.config().layers), (&[2, 7][..], 2));
        let (angles, needs) = (dimensions.angles(context + steps), BTreeSet::new());
        let wanted =
            Wanted { dimensions: &dimensions, angles: &angles, layers: 2, context, steps, needs: &needs, seed: 1 };
        let sequence = BenchSequence::captured(wanted, &capture, number).unwrap();
        let (queries, prefix) = read_at_once(&capture, &capture.tokens(context + steps, number).unwrap());
        assert_eq!((sequence.prefix.layers(), sequence.prefix.tokens(), sequence.steps.len()), (2, context, steps));
        assert!(sequence.looks.is_some());
        for (ours, theirs) in [(0, 2), (1, 7)] {
            let (kv, all) = (sequence.prefix.layer(ours).unwrap(), prefix.layer(theirs).unwrap());
            for (own, all) in [(&kv.keys, &all.keys), (&kv.values, &all.values)] {
                for head in 0..2 {
                    assert_eq!(own.head(head).to_f32(), all.head(head).slice(0..context, 64).to_f32());
                }
            }
            for (step, rows) in sequence.steps.iter().enumerate() {
                let row = &rows[ours];
                assert_eq!(row.queries, queries[theirs][(context + step) * 256..][..256]);
                for (own, all) in [(&row.key, &all.keys), (&row.value, &all.values)] {
                    let at = |head| all.head(head).slice(context + step..context + step + 1, 64).to_f32();
                    assert_eq!(*own, [at(0), at(1)].concat());
                }
            }
        }
        let prompt = capture.prompt(context).unwrap();
        assert_eq!((prompt.queries.len(), prompt.heads, prompt.kv.tokens()), (context * 256, 4, context));
        let (queries, prefix) = read_at_once(&capture, &capture.tokens(context, 0).unwrap());
        assert_eq!(prompt.queries, queries[2]);
        assert_eq!(prompt.kv.keys.head(1).to_f32(), prefix.layer(2).unwrap().keys.head(1).to_f32());
    }

    #[test]
    fn calibrations_of_the_model_are_those_of_the_layers_that_are_timed() {
        let capture = reader(None, 1).load().unwrap();
        assert_eq!(capture.label(), "layer 5 of 10 of builtin reading ruler/niah_multikey_3");
        let part = capture.artefact("loki").unwrap().unwrap();
        part.check("loki", &capture.shape()).unwrap();
        let whole = found("loki", &capture.model, None).unwrap().unwrap();
        let basis =
            |artefact: &Artefact, layer: usize| artefact.read(&format!("layers.{layer}.basis"), &[2, 64, 64]).unwrap();
        assert_eq!(basis(&part, 0), basis(&whole, 5));
        assert!(capture.artefact("quest").unwrap().is_none());
    }
}
