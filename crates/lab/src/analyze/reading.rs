//! Reads prompts densely, and keeps their keys and values and the queries of their last tokens.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rayon::prelude::*;

use super::document_parts::{Part, parts};
use super::head::{Head, Query};
use spattn_attention::calibration::PrefillChunk;
use spattn_attention::kv::{KvDtype, KvError, LayerKv, Prefix};
use spattn_attention::{
    AttendedTokens, Configured, IndexCache, PromptNeed, PromptStats, RecentQueries, Rotation, StartError, mix_seed,
};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_eval::calibration::calibrate::read_text;
use spattn_eval::calibration::capture::read_apart;
use spattn_eval::examples::token_counter::Counter;
use spattn_eval::examples::truncate;
use spattn_model::device::Device;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use spattn_tasks::{Task, TaskOptions, digest, resolve};

/// The fewest tokens of context before those whose queries are examined.
const LEAST_CONTEXT: usize = 16;

/// What to read, and how.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model, as the user names it.
    pub model: &'a str,
    /// The device that reads.
    pub device: Device,
    /// The type of weights, keys and values; the checkpoint's own if `None`.
    pub dtype: Option<KvDtype>,
    /// The tasks whose prompts are read, if there is no `text`.
    pub tasks: &'a [String],
    /// A text to read instead of the tasks' prompts.
    pub text: Option<&'a Path>,
    /// The system message of the chat template.
    pub system: Option<&'a str>,
    /// The folder with the data files of tasks.
    pub data: Option<&'a Path>,
    /// The number of tokens of a prompt.
    pub length: usize,
    /// The number of prompts of each task, or of parts of the text.
    pub samples: usize,
    /// The number of last tokens of each prompt whose queries are examined.
    pub queries: usize,
    /// The layers to examine; all if empty.
    pub layers: &'a [usize],
    /// The seed of generated prompts.
    pub seed: u64,
}

/// The source of prompts.
enum Source {
    Tasks(Vec<Box<dyn Task>>),
    /// A text's tokens, without the tokenizer's first special tokens.
    Text {
        label: String,
        ids: Vec<u32>,
    },
}

impl Source {
    fn names(&self) -> Vec<String> {
        match self {
            Self::Tasks(tasks) => tasks.iter().map(|task| task.name().to_owned()).collect(),
            Self::Text { label, .. } => vec![label.clone()],
        }
    }

    /// Digests of the inputs, in the order of the names.
    fn inputs(&self) -> Vec<String> {
        match self {
            Self::Tasks(tasks) => tasks.iter().map(|task| task.inputs()).collect(),
            Self::Text { ids, .. } => vec![digest::of(ids)],
        }
    }
}

/// An opened model without its weights, and what it is to read.
pub struct DocumentReader {
    model: OpenModel,
    source: Source,
    device: Device,
    layers: Vec<usize>,
    length: usize,
    samples: usize,
    queries: usize,
    seed: u64,
}

impl DocumentReader {
    /// Opens the model and checks that it can read the request.
    ///
    /// # Errors
    /// As [`OpenModel::open`]; for unknown tasks or layers; for a text that cannot be read or is too short; for prompts that are too long
    /// for the model or the machine's memory.
    pub fn open(request: &Request<'_>) -> Result<Self> {
        let reader = Self::of(request, OpenModel::open)?;
        reader.check_memory()?;
        Ok(reader)
    }

    /// Opens the model to tell what would be read: as [`open`](Self::open), but memory is not checked and the weights may be missing.
    ///
    /// # Errors
    /// As [`OpenModel::open_without_weights`] and [`open`](Self::open), except for memory.
    pub fn planned(request: &Request<'_>) -> Result<Self> {
        Self::of(request, OpenModel::open_without_weights)
    }

    fn of(
        request: &Request<'_>,
        open: impl FnOnce(&ModelSource, Option<KvDtype>, TokenizerOptions) -> Result<OpenModel>,
    ) -> Result<Self> {
        let Request { device, length, samples, queries, seed, .. } = *request;
        if length < queries + LEAST_CONTEXT {
            let what = format!("a prompt of {length} tokens is too short for the queries of its last {queries} tokens");
            let hint = format!("take a --length of {} or more, or fewer --queries", queries + LEAST_CONTEXT);
            return Err(UsageError::new(what).hint(hint).into());
        }
        let options = TokenizerOptions { system: request.system.map(str::to_owned), ..TokenizerOptions::default() };
        let model = open(&ModelSource::parse(request.model)?, request.dtype, options)?;
        let source = match request.text {
            Some(path) => {
                let (label, ids) = read_text(path, "--text", &model.tokenizer)?;
                Source::Text { label, ids }
            }
            None => {
                let options = TaskOptions { data: request.data.map(Path::to_owned), ..TaskOptions::default() };
                Source::Tasks(resolve(request.tasks, &options)?)
            }
        };
        let layers = layers_of(request.layers, model.dimensions.config().layers, &model.id)?;
        let reader = Self { model, source, device, layers, length, samples, queries, seed };
        reader.check()?;
        Ok(reader)
    }

    fn check(&self) -> Result<(), UsageError> {
        let dimensions = &self.model.dimensions;
        let (limit, length) = (dimensions.config().context_limit(), self.length);
        if length > limit {
            let what = format!("prompts of {length} tokens are beyond the context of {} ({limit})", self.model.id);
            return Err(UsageError::new(what).hint(format!("take a --length of {limit} or less")));
        }
        if let Source::Text { label, ids } = &self.source {
            let needed = self.samples.saturating_mul(length);
            if ids.len() < needed {
                let what = format!("{label} has {} tokens, but {needed} are needed", ids.len());
                return Err(UsageError::new(what).hint("give a longer --text, or take a smaller --length or --samples"));
            }
        }
        Ok(())
    }

    /// The memory that reading needs, in bytes.
    pub fn bytes(&self) -> usize {
        let dimensions = &self.model.dimensions;
        let c = dimensions.config();
        let heads = c.heads.saturating_add(c.kv_heads.saturating_mul(2));
        let queries = memory::product([4, self.queries, c.layers, heads, c.head_dim]);
        memory::sum([dimensions.weight_bytes(), dimensions.prefill_bytes(self.length, false), queries])
    }

    fn check_memory(&self) -> Result<(), UsageError> {
        let what = format!("{} reading {} tokens takes", self.model.id, self.length);
        memory::check(self.bytes() as u64, what, "take a smaller --length, or fewer --queries")
    }

    /// The model, without its weights.
    pub fn model(&self) -> &OpenModel {
        &self.model
    }

    /// The names of the tasks, or of the text.
    pub fn tasks(&self) -> Vec<String> {
        self.source.names()
    }

    /// Digests of the inputs, in the order of [`tasks`](Self::tasks).
    pub fn inputs(&self) -> Vec<String> {
        self.source.inputs()
    }

    /// The number of documents to read.
    pub fn documents(&self) -> usize {
        self.samples * if let Source::Tasks(tasks) = &self.source { tasks.len() } else { 1 }
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// As [`OpenModel::load`].
    pub fn load(self) -> Result<Loaded> {
        let Self { model, source, device, layers, length, samples, queries, seed } = self;
        Ok(Loaded { model: model.load(device)?, source, layers, length, samples, queries, seed })
    }
}

/// The requested layers, ascending and without duplicates.
fn layers_of(asked: &[usize], all: usize, id: &str) -> Result<Vec<usize>, UsageError> {
    match asked.iter().find(|layer| **layer >= all) {
        Some(layer) => Err(UsageError::new(format!("{id} has no layer {layer}"))
            .hint(format!("its layers are 0 to {}", all.saturating_sub(1)))),
        None if asked.is_empty() => Ok((0..all).collect()),
        None => Ok(asked.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()),
    }
}

/// A loaded model, and what it is to read.
pub struct Loaded {
    /// The model.
    pub model: Model,
    source: Source,
    /// The layers to examine.
    pub layers: Vec<usize>,
    length: usize,
    samples: usize,
    queries: usize,
    seed: u64,
}

impl Loaded {
    /// Returns the documents as pairs of task and number, in order.
    pub fn documents(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (tasks, samples) = (if let Source::Tasks(tasks) = &self.source { tasks.len() } else { 1 }, self.samples);
        (0..tasks).flat_map(move |task| (0..samples).map(move |number| (task, number)))
    }

    /// The names of the tasks, or of the text.
    pub fn tasks(&self) -> Vec<String> {
        self.source.names()
    }

    /// Digests of the inputs, in the order of [`tasks`](Self::tasks).
    pub fn inputs(&self) -> Vec<String> {
        self.source.inputs()
    }

    /// Returns a prompt's tokens, and the numbered documents in it.
    fn prompt(&self, task: usize, number: usize) -> Result<(Vec<u32>, Vec<Part>)> {
        let tokenizer = &self.model.tokenizer;
        let (ids, parts) = match &self.source {
            Source::Text { ids, .. } => {
                let mut own = tokenizer.encode_text("", true)?;
                let more = self.length.saturating_sub(own.len());
                own.extend(ids.iter().skip(number * more).take(more));
                (own, Vec::new())
            }
            Source::Tasks(tasks) => {
                let example = tasks[task].example(self.length, number, self.seed, &Counter(tokenizer))?;
                let limit = self.model.dimensions.config().context_limit();
                truncate::check_bytes(&example.user_turn(), &self.model, limit)?;
                let prompt = truncate::encode(tokenizer, &example)?;
                truncate::check_said(&example, &prompt, tokenizer)?;
                if prompt.ids.len() > limit {
                    let what = format!("a prompt of {}, {} tokens, is beyond", tasks[task].name(), prompt.ids.len());
                    let what = format!("{what} the context of {} ({limit})", self.model.id);
                    return Err(UsageError::new(what).hint("take other tasks, or leave the row out").into());
                }
                let parts = parts(&example, &prompt);
                (prompt.ids, parts)
            }
        };
        self.model.check_tokens(&ids)?;
        if ids.len() < self.queries + LEAST_CONTEXT {
            let task = &self.tasks()[task];
            let what = format!("a prompt of {task} has {} tokens, too few for {} queries", ids.len(), self.queries);
            return Err(UsageError::new(what).hint("take fewer --queries").into());
        }
        Ok((ids, parts))
    }

    /// Reads a document. `needs` is what the methods need to know about its prompt.
    ///
    /// # Errors
    /// If no prompt can be made, or the model cannot read it.
    pub fn read(&self, task: usize, number: usize, needs: &BTreeSet<PromptNeed>) -> Result<Document> {
        let (ids, parts) = self.prompt(task, number)?;
        let (context, dimensions) = (ids.len() - self.queries, &self.model.dimensions);
        let c = dimensions.config();
        let mut stats = (!needs.is_empty()).then(|| PromptStats::new(needs, dimensions.prompt_shape(context)));
        let mut recent = RecentQueries::of_prefix(context);
        let mut behind: Vec<Behind> = (0..c.layers).map(|_| Behind::default()).collect();
        let mut before = |chunk: &PrefillChunk<'_>| {
            stats.iter_mut().try_for_each(|stats| stats.observe(chunk))?;
            recent.observe(chunk)
        };
        let mut follow = |chunk: &PrefillChunk<'_>| behind[chunk.layer].keep(chunk);
        let kvs = read_apart(&self.model.decoder, &ids, context, &mut before, &mut follow)?;
        let cut = |mut kv: LayerKv| {
            kv.truncate(context, context);
            kv
        };
        Ok(Document {
            task: self.tasks()[task].clone(),
            number,
            prefix: Prefix::with_specs(kvs.into_iter().map(cut).collect(), dimensions.layer_specs().clone()),
            heads: c.heads,
            layers: self.layers.clone(),
            rotation: dimensions.rotation(ids.len(), ids.len()),
            dtype: dimensions.dtype(),
            seed: mix_seed(mix_seed(self.seed, task as u64), number as u64),
            ids,
            parts,
            behind,
            stats,
            recent,
        })
    }

    /// Returns for each of `tokens` the keys `[layer][kv_head][d]` of a prompt of that token alone.
    ///
    /// # Errors
    /// If the model cannot read such a prompt.
    pub fn first_keys(&self, tokens: &[u32]) -> Result<Vec<Vec<Vec<Vec<f32>>>>> {
        let one = |token: &u32| -> Result<_> {
            let kvs = read_apart(&self.model.decoder, &[*token], 1, &mut |_| Ok(()), &mut |_| Ok(()))?;
            let of_layer = |kv: &LayerKv| (0..kv.keys.kv_heads()).map(|head| kv.keys.head(head).to_f32()).collect();
            Ok(kvs.iter().map(of_layer).collect())
        };
        tokens.iter().map(one).collect()
    }
}

/// The tokens after the context at one layer: queries `[token][head][d]`, keys and values `[token][kv_head][d]`.
#[derive(Debug, Default)]
struct Behind {
    /// The layer's inputs, `[token][hidden]`.
    inputs: Vec<f32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Behind {
    fn keep(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        self.inputs.extend_from_slice(&chunk.input()?.unwrap_or_default());
        let chunk = chunk.on_host()?;
        self.queries.extend_from_slice(chunk.queries());
        let (keys, values) = chunk.rows();
        self.keys.extend(keys);
        self.values.extend(values);
        Ok(())
    }
}

/// A prompt that was read.
pub struct Document {
    /// The task, or the text's name.
    pub task: String,
    /// Its number among the task's prompts, from 0.
    pub number: usize,
    /// All of its tokens.
    pub ids: Vec<u32>,
    /// The numbered documents in it, if it has any.
    pub parts: Vec<Part>,
    /// The layers to examine.
    pub layers: Vec<usize>,
    /// Query heads of a layer.
    pub heads: usize,
    prefix: Arc<Prefix>,
    behind: Vec<Behind>,
    stats: Option<PromptStats>,
    recent: RecentQueries,
    rotation: Option<Arc<dyn Rotation>>,
    dtype: KvDtype,
    seed: u64,
}

/// The tokens that each KV head attends at the examined layers: `[layer][step][kv_head]`.
pub type Choices = Vec<Vec<Vec<AttendedTokens>>>;

impl Document {
    /// The number of tokens before those whose queries are examined.
    pub fn context(&self) -> usize {
        self.prefix.tokens()
    }

    /// The number of tokens whose queries are examined.
    pub fn steps(&self) -> usize {
        self.ids.len() - self.context()
    }

    /// KV heads of a layer.
    pub fn kv_heads(&self) -> usize {
        self.prefix.shape().kv_heads
    }

    /// Width of a head.
    pub fn d(&self) -> usize {
        self.prefix.shape().d
    }

    /// The document's own seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a KV head with all of its keys, values and queries.
    ///
    /// # Errors
    /// If keys and values of the context cannot be read.
    pub fn head(&self, layer: usize, kv_head: usize) -> Result<Head, KvError> {
        let (d, kv_heads, group) = (self.d(), self.kv_heads(), self.heads / self.kv_heads());
        let (kv, behind) = (self.prefix.layer(layer)?, &self.behind[layer]);
        let of_head = |rows: &[f32]| -> Vec<f32> {
            rows.chunks_exact(kv_heads * d).flat_map(|token| &token[kv_head * d..][..d]).copied().collect()
        };
        let all = |before: Vec<f32>, behind: &[f32]| [before, of_head(behind)].concat();
        let query = |step: usize, in_group: usize| {
            let head = kv_head * group + in_group;
            let vector = behind.queries[(step * self.heads + head) * d..][..d].to_vec();
            Query { head, in_group, step, tokens: self.context() + step + 1, vector }
        };
        Ok(Head {
            layer,
            kv_head,
            d,
            scale: self.prefix.spec(layer).scale,
            keys: all(kv.keys.head(kv_head).to_f32(), &behind.keys),
            values: all(kv.values.head(kv_head).to_f32(), &behind.values),
            queries: (0..self.steps())
                .flat_map(|step| (0..group).map(move |i| (step, i)))
                .map(|(s, i)| query(s, i))
                .collect(),
        })
    }

    /// Applies `look` to each KV head of each examined layer, and returns the results in that order.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub fn each_head<T: Send>(&self, look: impl Fn(&Head) -> T + Sync) -> Result<Vec<T>, KvError> {
        let kv_heads = self.kv_heads();
        let all = self.layers.par_iter().flat_map_iter(|layer| (0..kv_heads).map(move |kv_head| (*layer, kv_head)));
        all.map(|(layer, kv_head)| Ok(look(&self.head(layer, kv_head)?))).collect()
    }

    /// Returns the index of a layer among the examined ones.
    pub fn at(&self, layer: usize) -> usize {
        self.layers.partition_point(|other| *other < layer)
    }

    /// Creates an index cache over the context.
    pub fn cache(&self) -> IndexCache {
        let mut cache = IndexCache::new(self.prefix.clone(), self.dtype, self.seed)
            .with_queries(self.recent.clone())
            .with_prompt(self.ids.len());
        if let Some(rotation) = &self.rotation {
            cache = cache.with_rotation(rotation.clone());
        }
        match &self.stats {
            Some(stats) => cache.with_stats(stats.clone()),
            None => cache,
        }
    }

    /// Returns the tokens that a method attends in every step at the examined layers. Random draws in a step use the cache's step seed.
    ///
    /// # Errors
    /// If keys and values of the context cannot be read, or an index cannot be built.
    pub fn choices(&self, method: &Configured, cache: &mut IndexCache) -> Result<Choices, StartError> {
        let mut sequence = cache.fork(method, false)?;
        let (width, kv_width) = (self.heads * self.d(), self.kv_heads() * self.d());
        let mut of_layer = |layer: &usize| {
            let behind = &self.behind[*layer];
            let rows = behind.queries.chunks_exact(width).zip(behind.keys.chunks_exact(kv_width));
            let rows = rows.zip(behind.values.chunks_exact(kv_width));
            rows.map(|((queries, key), value)| sequence.begin_host_step(*layer).select(queries, key, value)).collect()
        };
        Ok(self.layers.iter().map(&mut of_layer).collect::<Result<_, KvError>>()?)
    }

    /// Returns the outputs of a method's steps at the examined layers: `[layer][step][head][d]` in one vector.
    ///
    /// # Errors
    /// As [`choices`](Self::choices).
    pub fn outputs(&self, method: &Configured, cache: &mut IndexCache) -> Result<Vec<f32>, StartError> {
        let mut sequence = cache.fork(method, false)?;
        let (width, kv_width) = (self.heads * self.d(), self.kv_heads() * self.d());
        let (mut all, mut out) = (Vec::new(), vec![0.0; width]);
        for layer in &self.layers {
            let behind = &self.behind[*layer];
            for step in 0..self.steps() {
                let (queries, kv) = (step * width..(step + 1) * width, step * kv_width..(step + 1) * kv_width);
                sequence.step(
                    *layer,
                    &behind.queries[queries],
                    &behind.keys[kv.clone()],
                    &behind.values[kv],
                    &mut out,
                )?;
                all.extend_from_slice(&out);
            }
        }
        Ok(all)
    }

    /// The number of layers of the model.
    pub fn all_layers(&self) -> usize {
        self.behind.len()
    }

    /// Returns the input of a layer for each step, `[hidden]`.
    pub fn inputs(&self, layer: usize) -> impl Iterator<Item = &[f32]> {
        let inputs = &self.behind[layer].inputs;
        inputs.chunks_exact((inputs.len() / self.steps()).max(1))
    }

    /// Returns the queries `[step][head][d]` at a layer.
    pub fn queries(&self, layer: usize) -> &[f32] {
        &self.behind[layer].queries
    }
}

#[cfg(test)]
mod tests;
