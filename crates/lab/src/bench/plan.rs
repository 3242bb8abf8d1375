//! The plan of a benchmark: which operation is timed at which contexts and batches, and how rows are made from the times.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::attention::{Stepping, caches};
use super::capture::Capture;
use super::decode::Decoding;
use super::drawn::Drawn;
#[cfg(feature = "cuda")]
use super::gpu::{self, BuildingThere, DecodingThere, SteppingBeside, SteppingThere};
use super::index::Building;
use super::kernels;
use super::learned::calibrated;
use super::peers::{PeerTurns, Peers};
use super::place::Place;
#[cfg(feature = "cuda")]
use super::prefill::AttendingThere;
use super::prefill::{Attending, Prompt, Reading};
use super::row::{Bench, BenchRow, Roof};
use super::sequence::{BenchSequence, Wanted, needs_of};
use super::turns::{Runs, Timing, Turn, in_turns, turns};
#[cfg(feature = "cuda")]
use spattn_attention::IndexCache;
use spattn_attention::kv::{LayerKv, Tier};
use spattn_attention::{Configured, PromptNeed, Rotation, mix_seed};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_eval::records::record::REFERENCE;
#[cfg(feature = "cuda")]
use spattn_model::cuda::{LayerAlone, PromptAlone};
use spattn_model::decoder::Decoder;
use spattn_model::device::{Device, free_bytes};
use spattn_model::dimensions::Dimensions;
use spattn_model::rope::RopeTable;

/// The operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Attention of one step.
    Attention,
    /// Attention of a whole prompt.
    Prefill,
    /// Building indexes.
    Index,
    /// A whole decode step.
    Decode,
    /// Single kernels.
    Kernels,
}

impl Op {
    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Prefill => "prefill",
            Self::Index => "index",
            Self::Decode => "decode",
            Self::Kernels => "kernel",
        }
    }
}

/// All settings of a benchmark.
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// The device.
    pub device: Device,
    /// Where keys and values are: in the memory of what computes ([`Tier::Device`] for a GPU), or in host memory below a GPU.
    pub tier: Tier,
    /// Bytes of GPU memory in which each method keeps what it fetches of a sequence from host memory.
    pub cached: Option<usize>,
    /// The name of the shape.
    pub shape: String,
    /// The shape, with as many layers as are timed together.
    pub dimensions: Dimensions,
    /// The methods, `full` first if it is timed.
    pub methods: Vec<Configured>,
    /// Tokens of the prefixes.
    pub contexts: Vec<usize>,
    /// Numbers of sequences that step together.
    pub batches: Vec<usize>,
    /// Prefill only these many last rows of a prompt; all if `None`.
    pub last: Option<usize>,
    /// Turns that count, for each entry.
    pub rounds: usize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The model, if whole steps or prompts are timed.
    pub decoder: Option<Decoder>,
    /// Other programs.
    pub peers: Option<Mutex<Peers>>,
    /// The model that keys, values and queries are captured from, if they are not random.
    pub capture: Option<Capture>,
}

/// Tokens after a context, whose queries an operation needs for some rounds.
pub fn steps(op: Op, rounds: usize) -> usize {
    if op == Op::Prefill { 0 } else { turns(rounds) }
}

/// Something that takes turns, with its name in rows.
struct Entry<'r> {
    method: String,
    params: String,
    peer: bool,
    /// Whether it does less work than `full`.
    part: bool,
    runs: Box<dyn Runs + Send + 'r>,
}

impl<'r> Entry<'r> {
    fn of(method: &Configured, runs: impl Runs + Send + 'r) -> Self {
        Self {
            method: method.name.clone(),
            params: method.params.clone(),
            peer: false,
            part: false,
            runs: Box::new(runs),
        }
    }
}

/// The progress callback: the step in words, how much of the work is done, and how much there is.
pub type Progress<'p> = dyn FnMut(&str, u64, u64) + 'p;

/// As [`Progress`], within one context and batch: the step in words, and the share that is done, from 0 to 1.
type ProgressWithin<'p> = dyn FnMut(&str, f64) + 'p;

/// The shares of a context's work before its indexes are built, and before it is timed. They are rough.
const DRAWN: f64 = 0.1;
const INDEXED: f64 = 0.5;

impl Plan {
    /// The shape with the layers whose keys are generated. A GPU copies a single layer.
    fn timed_dimensions(&self) -> Dimensions {
        if self.device == Device::Cpu {
            return self.dimensions.clone();
        }
        let mut config = self.dimensions.config().clone();
        let sees_all = |layer: &usize| config.layer_kind(*layer).window.is_none();
        let layer = (0..config.layers).find(sees_all).unwrap_or(0);
        config.keep_layers(&[layer]);
        Dimensions::new(&config, self.dimensions.dtype())
    }

    /// Times everything; `None` if `stop` was raised.
    ///
    /// # Errors
    /// If something that is timed fails.
    pub fn run(&self, stop: &AtomicBool, progress: &mut Progress<'_>) -> Result<Option<Bench>> {
        let mut notes = Vec::new();
        let methods = match self.op {
            Op::Kernels => Vec::new(),
            _ => calibrated(&self.methods, &self.timed_dimensions(), self.capture.as_ref(), self.seed, &mut notes)?,
        };
        let (mut place, mut bench) =
            (Place::open(self.device)?, Bench { rows: Vec::new(), roof: Roof::default(), notes });
        if methods.iter().any(|method| method.method.attends_on_host()) {
            place.flood_host();
        }
        let places =
            || self.batches.iter().flat_map(|batch| self.contexts.iter().map(move |context| (*context, *batch)));
        let work = |(context, batch): (usize, usize)| context as f64 * batch as f64;
        let (mut done, all): (f64, f64) = (0.0, places().map(work).sum());
        for (context, batch) in places() {
            let at = At { plan: self, methods: &methods, context, batch };
            let own = work((context, batch));
            let mut within = |what: &str, share: f64| progress(what, (done + share * own) as u64, all as u64);
            let Some(rows) = at.measure(&mut place, stop, &mut within, &mut bench.notes)? else { return Ok(None) };
            bench.rows.extend(rows);
            done += own;
        }
        bench.roof = place.roof(self.tier)?;
        bench.rows.iter_mut().for_each(|row| hold_to(row, bench.roof));
        Ok(Some(bench))
    }
}

/// Checks that at least keys, values and weights fit into the memory of `device`. `whole` says whether a model's weights are read; `last`
/// is the number of last rows of a prompt that are read, or `None` for all.
///
/// # Errors
/// If they do not fit, with the memory needed and available.
pub fn check_memory(
    device: Device,
    op: Op,
    dimensions: &Dimensions,
    contexts: &[usize],
    batches: &[usize],
    tier: Tier,
    (whole, last): (bool, Option<usize>),
) -> Result<(), UsageError> {
    let (Some(context), Some(batch)) = (contexts.iter().max(), batches.iter().max()) else {
        return Err(UsageError::new("--context or --batch is empty: there is nothing to time"));
    };
    let c = dimensions.config();
    let rows = if op == Op::Prefill && !whole { last.unwrap_or(*context).min(*context) } else { 0 };
    let queries = memory::product([rows, 2, 4, c.heads, c.head_dim]);
    let angles = memory::product([4, c.head_dim, *context]);
    let weights = if whole { dimensions.weight_bytes() } else { 0 };
    let kept = memory::product([*context, dimensions.kv_bytes_per_token()]).saturating_add(queries);
    let kept = memory::product([*batch, kept]);
    let needed = memory::sum([if tier == Tier::Host { 0 } else { kept }, angles, weights]) as u64;
    let layers = if c.layers == 1 { "1 layer".to_owned() } else { format!("{} layers", c.layers) };
    let what = format!("{batch} x {context} tokens in {layers} take");
    const HINT: &str = "take shorter contexts, smaller batches or fewer --layers";
    if tier == Tier::Host {
        memory::check(kept as u64, what.clone(), HINT)?;
    }
    match device.of_one_gpu()?.ordinals().as_slice() {
        [] => memory::check(needed, what, HINT),
        [ordinal, ..] => match free_bytes(*ordinal).filter(|free| needed > *free) {
            None => Ok(()),
            Some(free) => {
                let gb = |bytes: u64| bytes as f64 / 1e9;
                let what = format!("{what} {:.1} GB, more than are free on the GPU ({:.1})", gb(needed), gb(free));
                Err(UsageError::new(what).hint(HINT))
            }
        },
    }
}

/// One context and batch of a plan.
struct At<'p> {
    plan: &'p Plan,
    methods: &'p [Configured],
    context: usize,
    batch: usize,
}

/// The inputs for one context and batch.
struct Material {
    rotation: Option<Arc<dyn Rotation>>,
    sequences: Vec<BenchSequence>,
    prompt: Option<Prompt>,
    /// The sequences on a GPU.
    #[cfg(feature = "cuda")]
    there: Option<Arc<LayerAlone>>,
    /// The prompt on a GPU.
    #[cfg(feature = "cuda")]
    prompt_there: Option<Arc<Mutex<PromptAlone>>>,
}

impl At<'_> {
    fn measure(
        &self,
        place: &mut Place,
        stop: &AtomicBool,
        progress: &mut ProgressWithin<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Vec<BenchRow>>> {
        let what = format!("{} tokens x {}", self.context, self.batch);
        let (doing, origin) = match &self.plan.capture {
            None => ("drawing", "drawn".to_owned()),
            Some(capture) => ("reading", capture.label()),
        };
        progress(&format!("{what}: {doing}"), 0.0);
        let material = self.material(place)?;
        match material.sequences.first().and_then(|sequence| sequence.looks) {
            Some(looks) => notes.push(format!("{} tokens, {origin}: {looks}.", self.context)),
            None if self.plan.capture.is_some() => notes.push(format!("{} tokens, {origin}.", self.context)),
            None => {}
        }
        let mut entries = {
            let (mut begun, all) = (0.0, self.methods.len().max(1) as f64);
            let mut indexing = |method: &Configured| {
                let share = DRAWN + (INDEXED - DRAWN) * f64::min(begun / all, 1.0);
                progress(&format!("{what}: index of {}", method.label()), share);
                begun += 1.0;
            };
            self.entries(&material, notes, &mut indexing)?
        };
        entries.extend(self.peers(notes)?);
        let mut runners: Vec<&mut (dyn Runs + Send)> = entries.iter_mut().map(|entry| &mut *entry.runs as _).collect();
        let device = place.name();
        let mut round = |done: usize, all: usize| {
            let share = INDEXED + (1.0 - INDEXED) * done as f64 / all.max(1) as f64;
            progress(&format!("{what}: {done}/{all} rounds"), share);
        };
        let taken = in_turns(&mut runners, self.plan.rounds, place, stop, &mut round)?;
        let Some(taken) = taken else { return Ok(None) };
        let mut rows: Vec<BenchRow> =
            entries.iter().zip(&taken).map(|(entry, turns)| self.row(&device, entry, turns)).collect();
        let full = rows.iter().find(|row| row.method == REFERENCE && !row.peer).map(|row| row.time_us);
        for (row, _) in rows.iter_mut().zip(&entries).filter(|(_, entry)| !entry.part) {
            row.speedup_vs_full = full.map(|full| full / row.time_us);
        }
        if let Some(peers) = &self.plan.peers {
            locked(peers).release()?;
        }
        Ok(Some(rows))
    }

    fn material(&self, place: &Place) -> Result<Material> {
        let Plan { op, rounds, seed, capture, .. } = self.plan;
        let (dimensions, steps) = (&self.plan.timed_dimensions(), turns(*rounds));
        let layers = dimensions.config().layers;
        let angles = dimensions.angles(self.context + steps);
        let rotation = dimensions.rotation(self.context + steps, self.context + steps);
        let needs: BTreeSet<PromptNeed> = needs_of(self.methods);
        let sequence = |number: usize| {
            let (context, seed) = (self.context, mix_seed(*seed, number as u64));
            let wanted = Wanted { dimensions, angles: &angles, layers, context, steps, needs: &needs, seed };
            match capture {
                None => Ok(BenchSequence::drawn(wanted)),
                Some(capture) => BenchSequence::captured(wanted, capture, number),
            }
        };
        let count = match place {
            _ if *op == Op::Prefill => 0,
            Place::Cpu(_) => self.batch,
            #[cfg(feature = "cuda")]
            Place::Gpu(_) => self.batch.min(gpu::DRAWN),
        };
        let sequences = (0..count).map(sequence).collect::<Result<Vec<BenchSequence>>>()?;
        #[cfg(feature = "cuda")]
        let there = self.taken_there(place, &sequences)?;
        let prompt = (*op == Op::Prefill && self.plan.decoder.is_none()).then(|| match capture {
            None => Ok(self.prompt(&angles)),
            Some(capture) => capture.prompt(self.context),
        });
        let prompt = prompt.transpose()?.map(|prompt| self.cut(prompt));
        Ok(Material {
            rotation,
            sequences,
            #[cfg(feature = "cuda")]
            there,
            #[cfg(feature = "cuda")]
            prompt_there: match (&prompt, place) {
                (Some(Prompt { queries, heads, kv, .. }), Place::Gpu(here)) => {
                    let alone = PromptAlone::new(here.gpu.clone(), *heads, queries, kv, self.batch)?;
                    Some(Arc::new(Mutex::new(alone)))
                }
                _ => None,
            },
            prompt,
        })
    }

    /// The prompt with only the rows that are read.
    fn cut(&self, prompt: Prompt) -> Prompt {
        let rows = prompt.kv.tokens() - prompt.first;
        let read = self.plan.last.map_or(rows, |last| last.min(rows));
        let width = prompt.queries.len() / rows;
        let queries = prompt.queries[(rows - read) * width..].to_vec();
        Prompt { queries, first: prompt.first + rows - read, ..prompt }
    }

    /// A random prompt of one layer, with the queries of the rows that are read.
    fn prompt(&self, angles: &RopeTable) -> Prompt {
        let (dimensions, c) = (&self.plan.dimensions, self.plan.dimensions.config());
        let read = self.plan.last.map_or(self.context, |last| last.min(self.context));
        let rows = Drawn::new(dimensions, angles, self.plan.seed).rows(0..self.context, read);
        let mut kv = LayerKv::new(dimensions.dtype(), c.kv_heads, c.head_dim, self.context);
        kv.append_rows(&rows.keys, &rows.values);
        Prompt { queries: rows.queries, heads: c.heads, kv, first: self.context - read }
    }

    /// All entries that take turns. `indexing` is called with each method before its index is built.
    fn entries<'r>(
        &'r self,
        material: &'r Material,
        notes: &mut Vec<String>,
        indexing: &mut dyn FnMut(&Configured),
    ) -> Result<Vec<Entry<'r>>> {
        let (dimensions, sequences) = (&self.plan.dimensions, &material.sequences[..]);
        #[cfg(feature = "cuda")]
        if let Some(layer) = &material.there {
            return self.there(material, layer, notes);
        }
        #[cfg(feature = "cuda")]
        if let (Some(prompt), Some(there)) = (&material.prompt, &material.prompt_there) {
            return self.reading_there(prompt, there, notes);
        }
        let mut caches = caches(sequences, dimensions, material.rotation.as_ref());
        Ok(match (self.plan.op, &self.plan.decoder) {
            (Op::Attention, _) => {
                let stepping = |method: &Configured| {
                    indexing(method);
                    Stepping::new(method, sequences, &mut caches, dimensions)
                };
                let runs = self.methods.iter().map(stepping).collect::<Result<Vec<_>, _>>()?;
                runs.into_iter().zip(self.methods).map(|(runs, m)| Entry::of(m, runs)).collect()
            }
            (Op::Decode, Some(decoder)) => {
                let decoding = |method: &Configured| {
                    indexing(method);
                    Decoding::new(decoder, method, &mut caches, self.context)
                };
                let runs = self.methods.iter().map(decoding).collect::<Result<Vec<_>, _>>()?;
                runs.into_iter().zip(self.methods).map(|(runs, m)| Entry::of(m, runs)).collect()
            }
            (Op::Prefill, Some(decoder)) => {
                let vocabulary = decoder.config().vocab_size as u64;
                let token = |i: usize| (mix_seed(self.plan.seed, i as u64) % vocabulary) as u32;
                let tokens = (0..self.context).map(token).collect();
                let runs = Box::new(Reading { decoder, tokens });
                vec![Entry { method: REFERENCE.to_owned(), params: String::new(), peer: false, part: false, runs }]
            }
            (Op::Prefill, None) => material.prompt.iter().flat_map(|prompt| self.reading(prompt, notes)).collect(),
            (Op::Index, _) => sequences.iter().take(1).flat_map(|s| self.building(material, s)).collect(),
            (Op::Kernels, _) => sequences.first().map_or(Ok(Vec::new()), |sequence| self.kernels(sequence))?,
            (Op::Decode, None) => Vec::new(),
        })
    }

    /// The sequences on the GPU, if the benchmark runs there. For whole steps, one copy for each layer of the model.
    #[cfg(feature = "cuda")]
    fn taken_there(&self, place: &Place, sequences: &[BenchSequence]) -> Result<Option<Arc<LayerAlone>>> {
        let Place::Gpu(here) = place else { return Ok(None) };
        if self.plan.op == Op::Prefill {
            return Ok(None);
        }
        let dimensions = &self.plan.dimensions;
        let model = self.plan.decoder.as_ref().and_then(Decoder::cuda);
        let (gpu, copies) = match model {
            Some(model) => (model.device(), dimensions.config().layers),
            // Building an index takes long enough to time without copies.
            None if self.plan.op == Op::Index => (&here.gpu, 1),
            None => (&here.gpu, gpu::copies(sequences, self.batch)?),
        };
        gpu::layer(gpu, dimensions, sequences, self.batch, (copies, self.plan.tier, self.plan.cached)).map(Some)
    }

    /// Methods that select on the GPU, or attend without a selection.
    #[cfg(feature = "cuda")]
    fn there<'r>(
        &'r self,
        material: &'r Material,
        layer: &Arc<LayerAlone>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Entry<'r>>> {
        let (dtype, seed) = (self.plan.dimensions.dtype(), self.plan.seed);
        let mut cache = gpu::cache(layer, dtype, seed, material.rotation.as_ref());
        let (mut entries, mut elsewhere, mut of_model) = (Vec::new(), Vec::new(), None);
        for method in self.methods {
            if self.plan.op == Op::Index {
                match BuildingThere::new(method, layer, dtype, seed, material.rotation.clone()) {
                    Some(runs) => entries.push(Entry::of(method, runs)),
                    None if method.method.is_static_only() => {}
                    None => elsewhere.push(method.label()),
                }
                continue;
            }
            if method.method.attends_on_host() {
                match self.beside(method, material, layer, (&mut cache, &mut of_model))? {
                    Some(entry) => entries.push(entry),
                    None => elsewhere.push(method.label()),
                }
                continue;
            }
            match SteppingThere::new(method, layer, &mut cache, &material.sequences, self.batch)? {
                Some(runs) => entries.push(match &self.plan.decoder {
                    Some(decoder) => Entry::of(method, DecodingThere::new(decoder, runs)),
                    None => Entry::of(method, runs),
                }),
                None => elsewhere.push(method.label()),
            }
        }
        let note = format!("methods that select on the host are left out on a GPU: {}.", elsewhere.join(", "));
        if !elsewhere.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
        if self.plan.op != Op::Index && self.batch > gpu::DRAWN {
            let note =
                format!("of {} sequences, {} have keys of their own; the others are copies.", self.batch, gpu::DRAWN);
            notes.extend((!notes.contains(&note)).then_some(note));
        }
        Ok(entries)
    }

    /// Prepares a method whose selected tokens the host attends: one layer with indexes of `cache`, or steps of the whole model with
    /// those of `of_model`, which is made when it is first needed.
    #[cfg(feature = "cuda")]
    fn beside<'r>(
        &'r self,
        method: &Configured,
        material: &'r Material,
        layer: &Arc<LayerAlone>,
        (cache, of_model): (&mut IndexCache, &mut Option<IndexCache>),
    ) -> Result<Option<Entry<'r>>> {
        if let Some(decoder) = &self.plan.decoder {
            let cache = match of_model {
                Some(cache) => cache,
                None => of_model.insert(gpu::cache_of_model(decoder, &material.sequences, self.plan.seed)?),
            };
            let runs = Decoding::new(decoder, method, std::slice::from_mut(cache), self.context)?;
            return Ok(Some(Entry::of(method, runs)));
        }
        let of = (&material.sequences[..], self.batch);
        let runs = SteppingBeside::new(method, layer, cache, of, turns(self.plan.rounds))?;
        Ok(runs.map(|runs| Entry::of(method, runs)))
    }

    /// Methods whose prefill masks the GPU finds, or that are fixed or planned on the host; and `full`.
    #[cfg(feature = "cuda")]
    fn reading_there<'r>(
        &'r self,
        prompt: &'r Prompt,
        there: &Arc<Mutex<PromptAlone>>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Entry<'r>>> {
        let (mut entries, mut elsewhere) = (Vec::new(), Vec::new());
        for method in self.readers(prompt, notes) {
            match AttendingThere::new(prompt, there.clone(), method, self.plan.seed, self.batch)? {
                Some(runs) => entries.push(Entry::of(method, runs)),
                None => elsewhere.push(method.label()),
            }
        }
        let note = format!("methods that read prompts on the host are left out on a GPU: {}.", elsewhere.join(", "));
        if !elsewhere.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
        if self.batch > 1 {
            let note = format!("of {} prompts, one has keys of its own; the others are copies.", self.batch);
            notes.extend((!notes.contains(&note)).then_some(note));
        }
        Ok(entries)
    }

    /// Methods with a prefill pattern of their own that can begin at these rows. The others read as `full` does.
    fn readers(&self, prompt: &Prompt, notes: &mut Vec<String>) -> Vec<&Configured> {
        let reads = |method: &&Configured| method.name == REFERENCE || method.masks_prefill();
        let dense: Vec<String> = self.methods.iter().filter(|m| !reads(m)).map(Configured::label).collect();
        let note = format!("methods with a dense prefill, which is timed as full, are left out: {}.", dense.join(", "));
        if !dense.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
        let begins = |method: &&Configured| prompt.begins_block(method);
        let whole: Vec<String> =
            self.methods.iter().filter(reads).filter(|m| !begins(m)).map(Configured::label).collect();
        let note = format!(
            "plan the whole prompt, or have no block that begins at row {}, and are left out: {}.",
            prompt.first,
            whole.join(", ")
        );
        if !whole.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
        if prompt.first > 0 {
            let note = format!(
                "only the last {} rows of a prompt are timed; the rows before them are in the cache.",
                self.context - prompt.first
            );
            notes.extend((!notes.contains(&note)).then_some(note));
        }
        self.methods.iter().filter(reads).filter(begins).collect()
    }

    fn reading<'r>(&'r self, prompt: &'r Prompt, notes: &mut Vec<String>) -> Vec<Entry<'r>> {
        let entry = |method: &'r Configured| Entry::of(method, Attending::new(prompt, method, self.plan.seed));
        self.readers(prompt, notes).into_iter().map(entry).collect()
    }

    /// The methods that have an index.
    fn building<'r>(&'r self, material: &'r Material, sequence: &'r BenchSequence) -> Vec<Entry<'r>> {
        let (dimensions, rotation) = (&self.plan.dimensions, &material.rotation);
        let entry = |method: &'r Configured| {
            let rotation = rotation.clone();
            Entry::of(method, Building { sequence, method, dimensions, rotation, aux_bits: 0.0 })
        };
        self.methods.iter().filter(|method| !method.method.is_static_only()).map(entry).collect()
    }

    fn kernels<'r>(&'r self, sequence: &'r BenchSequence) -> Result<Vec<Entry<'r>>> {
        let queries = &sequence.steps[0][0].queries;
        let entry = |kernel: kernels::Kernel<'r>| Entry {
            method: kernel.name.to_owned(),
            params: kernel.params.clone(),
            peer: false,
            part: true,
            runs: Box::new(kernel),
        };
        let kv = sequence.prefix.layer(0)?;
        Ok(kernels::all(&self.plan.dimensions, kv, queries).into_iter().map(entry).collect())
    }

    /// Other programs, prepared for this context and batch.
    fn peers(&self, notes: &mut Vec<String>) -> Result<Vec<Entry<'_>>> {
        let Some(peers) = &self.plan.peers else { return Ok(Vec::new()) };
        let prepared = locked(peers).prepare(self.context, self.batch)?;
        let parts = prepared.ready.iter().filter(|peer| peer.part);
        let about = parts.map(|peer| {
            format!("{} has no speed-up over full, because it is a part of a method: {}", peer.method, peer.about)
        });
        let drawn = "other programs get random keys, not those of the prompt.".to_owned();
        let drawn = self.plan.capture.is_some().then_some(drawn);
        for note in about.chain(prepared.notes.iter().cloned()).chain(drawn).collect::<Vec<_>>() {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        let entry = |peer: super::peers::Peer| Entry {
            method: peer.method.clone(),
            params: peer.params.clone(),
            peer: true,
            part: peer.part,
            runs: Box::new(PeerTurns { peers, peer }),
        };
        Ok(prepared.ready.into_iter().map(entry).collect())
    }

    /// The row of an entry, without the comparison with the roof and with the other entries.
    fn row(&self, device: &str, entry: &Entry<'_>, turns: &[Turn]) -> BenchRow {
        let (dimensions, timing) = (&self.plan.dimensions, Timing::of(turns.iter().map(|turn| turn.time)));
        let part = |of: fn(&Turn) -> Duration| {
            let part = Timing::of(turns.iter().map(of));
            if part.median_us > 0.0 { part } else { Timing::default() }
        };
        let median = |part: &Timing| (part.median_us > 0.0).then_some(part.median_us);
        let (scoring, picking) = (part(|turn| turn.score), part(|turn| turn.pick));
        let (selecting, attending) = (part(|turn| turn.select), part(|turn| turn.attend));
        let is_step = self.plan.op == Op::Decode && !entry.peer;
        let rest = if is_step { part(Turn::rest) } else { Timing::default() };
        let mut row = BenchRow {
            op: self.plan.op.name().to_owned(),
            shape: self.plan.shape.clone(),
            device: device.to_owned(),
            dtype: match dimensions.blocks() {
                Some(blocks) => format!("{}/{}", blocks.name(), dimensions.dtype().name()),
                None => dimensions.dtype().name().to_owned(),
            },
            threads: rayon::current_num_threads(),
            context: self.context,
            batch: self.batch,
            layers: dimensions.config().layers,
            method: entry.method.clone(),
            params: entry.params.clone(),
            solved: String::new(),
            peer: entry.peer,
            density: 1.0,
            time_us: timing.median_us,
            time_low_us: timing.ends_us.map(|(low, _)| low),
            time_high_us: timing.ends_us.map(|(_, high)| high),
            rounds: turns.len(),
            spread: timing.spread,
            speedup_vs_full: None,
            bytes: 0,
            limit_bytes: 0,
            gbps: 0.0,
            flops: 0,
            gflops: 0.0,
            bandwidth_share: None,
            limit_share: None,
            score_us: median(&scoring),
            score_low_us: scoring.ends_us.map(|(low, _)| low),
            score_high_us: scoring.ends_us.map(|(_, high)| high),
            pick_us: median(&picking),
            select_us: median(&selecting),
            select_low_us: selecting.ends_us.map(|(low, _)| low),
            select_high_us: selecting.ends_us.map(|(_, high)| high),
            attend_us: median(&attending),
            attend_low_us: attending.ends_us.map(|(low, _)| low),
            attend_high_us: attending.ends_us.map(|(_, high)| high),
            weights_us: median(&rest),
            weights_low_us: rest.ends_us.map(|(low, _)| low),
            weights_high_us: rest.ends_us.map(|(_, high)| high),
            index_ms: None,
            aux_bits: None,
            aux_bytes: None,
            bus_bytes: None,
            bus_gbps: None,
            link_share: None,
            host_bytes: None,
            host_gbps: None,
            host_share: None,
        };
        entry.runs.count(&mut row);
        row
    }
}

/// The child process. If a thread panicked with the lock, the process is still usable, or its next answer will be an error.
fn locked(peers: &Mutex<Peers>) -> MutexGuard<'_, Peers> {
    peers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compares a row's bytes and operations with the machine's limits.
fn hold_to(row: &mut BenchRow, roof: Roof) {
    let seconds = row.time_us / 1e6;
    if seconds <= 0.0 {
        return;
    }
    (row.gbps, row.gflops) = (row.bytes as f64 / seconds / 1e9, row.flops as f64 / seconds / 1e9);
    let share = |of: f64, all: f64| (of > 0.0 && all > 0.0).then(|| of / all);
    row.bandwidth_share = share(row.gbps, roof.read_gbps);
    let (bus_bytes, host_bytes) = (row.bus_bytes.unwrap_or(0), row.host_bytes.unwrap_or(0));
    // Queries and partial softmaxes also cross the bus, and count for nothing else.
    let of_device = row.limit_bytes.saturating_sub(bus_bytes + host_bytes);
    let by_bytes = of_device as f64 / 1e9 / roof.read_gbps.max(f64::MIN_POSITIVE);
    let by_host = roof.host_gbps.map_or(0.0, |gbps| host_bytes as f64 / 1e9 / gbps.max(f64::MIN_POSITIVE));
    row.host_gbps = row.host_bytes.map(|bytes| bytes as f64 / seconds / 1e9);
    row.host_share = row.host_gbps.zip(roof.host_gbps).and_then(|(gbps, host)| share(gbps, host));
    let to_device = roof.link_gbps.map(|[to_device, _]| to_device);
    let by_bus = to_device.map_or(0.0, |gbps| bus_bytes as f64 / 1e9 / gbps.max(f64::MIN_POSITIVE));
    row.bus_gbps = row.bus_bytes.map(|bytes| bytes as f64 / seconds / 1e9);
    row.link_share = row.bus_gbps.zip(to_device).and_then(|(gbps, link)| share(gbps, link));
    let by_flops = row.flops as f64 / 1e9 / roof.peak_gflops.max(f64::MIN_POSITIVE);
    row.limit_share = share(by_bytes.max(by_flops).max(by_bus).max(by_host), seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_held_to_the_longer_of_its_two_limits() {
        let row = r#"{"op": "attention", "shape": "s", "device": "cpu", "dtype": "bf16", "threads": 1, "context": 1, "batch": 1,
            "layers": 1, "method": "m", "params": "", "peer": false, "density": 1.0, "time_us": 1000.0, "rounds": 1,
            "spread": 0.0, "bytes": 8000000, "limit_bytes": 5000000, "gbps": 0.0, "flops": 20000000, "gflops": 0.0}"#;
        let held = |flops: u64| {
            let mut row: BenchRow = serde_json::from_str(row).unwrap();
            row.flops = flops;
            hold_to(&mut row, Roof { read_gbps: 10.0, peak_gflops: 100.0, ..Roof::default() });
            (row.gbps, row.gflops, row.bandwidth_share.unwrap(), row.limit_share.unwrap())
        };
        // 8 MB in a millisecond; 5 MB at 10 GB/s take half of it.
        let (gbps, gflops, share, limit) = held(20_000_000);
        assert!([gbps - 8.0, gflops - 20.0, share - 0.8, limit - 0.5].iter().all(|off| off.abs() < 1e-9), "{limit}");
        // Of 5 MB, 3 cross the bus at 5 GB/s, which takes 0.6 ms; the other 2 take 0.2 ms meanwhile.
        let mut row: BenchRow = serde_json::from_str(row).unwrap();
        row.bus_bytes = Some(3_000_000);
        hold_to(&mut row, Roof { read_gbps: 10.0, peak_gflops: 100.0, link_gbps: Some([5.0, 4.0]), ..Roof::default() });
        let near = |got: Option<f64>, expected: f64| (got.unwrap() - expected).abs() < 1e-9;
        assert!(near(row.bus_gbps, 3.0) && near(row.link_share, 0.6) && near(row.limit_share, 0.6), "{row:?}");
        // Of 5 MB, the host reads 4 at 8 GB/s, which takes half of the time. Less than 3 MB cross the bus at 50 GB/s.
        let mut asked = BenchRow { bus_bytes: Some(2_900_000), host_bytes: Some(4_000_000), ..row };
        let roof = Roof { link_gbps: Some([50.0, 50.0]), host_gbps: Some(8.0), read_gbps: 10.0, ..Roof::default() };
        hold_to(&mut asked, Roof { peak_gflops: 100.0, ..roof });
        assert!(near(asked.host_gbps, 4.0) && near(asked.host_share, 0.5) && near(asked.limit_share, 0.5), "{asked:?}");
        // Ninety million operations at the peak rate take nine tenths of the time.
        assert!((held(90_000_000).3 - 0.9).abs() < 1e-9);
    }
}
