//! Plans the run of a matrix on a model: its cells, after all checks that need no weights.

use std::collections::HashSet;

use anyhow::Result;

use super::contexts::{Contexts, Shard, ShareSize, UnassignedContexts};
use super::gpu_memory::{check_cache, fullest, gpu_needs};
use super::memory::{bytes_of_example, host_indexes_of_example, host_kv_of_example};
use super::sharding::{ShardAssignment, ShardLoads, Work};
use crate::config::kv_tier::KvTier;
use crate::config::protocol::Protocol;
use crate::config::run_config::{RunConfig, Variant};
use crate::examples::example_input::{self, ExampleInput};
use crate::examples::observer::{RunObserver, SkippedWork};
use crate::examples::token_counter::Counter;
use spattn_attention::kv::KvShape;
use spattn_attention::{Configured, HostReason, LocalLayers, Positions, PromptShape};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_model::OpenModel;
use spattn_model::device::Device;
use spattn_tasks::Task;

/// A task at a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskLength {
    /// Index of the task.
    pub task: usize,
    /// The requested length; 0 if a file fixes it.
    pub length: usize,
}

/// The examples of a task at a length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanCell {
    /// Which task at which length.
    pub place: TaskLength,
    /// Indices of this share's examples, those on one context together.
    pub contexts: Contexts,
}

impl PlanCell {
    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.contexts.examples()
    }
}

/// The work on a model.
#[derive(Debug, Clone, Default)]
pub struct RunPlan {
    /// By task and length, in the order asked for.
    pub cells: Vec<PlanCell>,
    /// Tokens of the longest prompt that a file fixes, with its answer; 0 if there is none.
    pub(crate) longest_given: usize,
    /// What of them cannot be run.
    holes: HashSet<(TaskLength, Variant, String)>,
    /// What the user should know of what was left out, one line each.
    pub notes: Vec<String>,
}

impl RunPlan {
    /// Leaves methods out at a place under some variants.
    pub(crate) fn leave_out(&mut self, place: TaskLength, variants: &[Variant], methods: &[Configured]) {
        let holes = variants.iter().flat_map(|v| methods.iter().map(move |m| (place, *v, m.label())));
        self.holes.extend(holes);
    }

    /// How many parts of a place are left out. They only become more.
    pub(crate) fn left_out_at(&self, place: TaskLength) -> usize {
        self.holes.iter().filter(|(hole, ..)| *hole == place).count()
    }

    /// Leaves out what another plan of the same run leaves out.
    pub(crate) fn leave_out_as(&mut self, other: Self) {
        self.holes.extend(other.holes);
    }

    /// Tokens of the longest prompt: as long as was asked for, or as a file has it. 0 if there is none.
    pub fn longest(&self) -> usize {
        let asked = self.cells.iter().map(|cell| cell.place.length).max().unwrap_or(0);
        asked.max(self.longest_given)
    }

    /// Whether a method is to be run at a place under a variant.
    pub fn has(&self, place: TaskLength, variant: Variant, method: &Configured) -> bool {
        self.holes.is_empty() || !self.holes.contains(&(place, variant, method.label()))
    }
}

pub(crate) const LENGTH_HINT: &str = "choose a shorter --length, or run it anyway with --allow-extrapolation";

/// How much more expensive a product is in a step, with a single row, than in a prefill with many rows.
const STEP_FACTOR: u64 = 4;

/// The longest example, in tokens, that is made to measure how many tokens an example has besides its context.
const MOST_SAMPLED: usize = 1 << 20;

const SMALLER_HINT: &str = "use fewer of them in a context, or run it anyway with --allow-extrapolation";

fn least_of(task: &dyn Task) -> String {
    format!("the shortest example that `{}` can have", task.name())
}

/// Plans a matrix on one model, without its weights.
#[derive(Clone, Copy)]
pub struct Planner<'a> {
    /// The model.
    pub model: &'a OpenModel,
    /// The matrix.
    pub config: &'a RunConfig,
    /// The tasks, resolved.
    pub tasks: &'a [Box<dyn Task>],
    /// The data set of the tasks, as it identifies records.
    pub data: Option<&'a str>,
    /// The shard to plan.
    pub shard: Shard,
    /// Whether other machines will run it, whose memory is unknown.
    pub is_elsewhere: bool,
}

/// The examples of a task at a length, assigned to shards.
#[derive(Debug)]
pub struct ShardedCell {
    /// Which task at which length.
    pub place: TaskLength,
    /// Work of its contexts, estimated.
    pub work: Work,
    all: UnassignedContexts,
    deal: ShardAssignment,
    /// Why it cannot be run on this machine.
    failure: Option<anyhow::Error>,
}

impl ShardedCell {
    /// The share of each of `shards` shards.
    pub fn sizes(&self, shards: usize) -> Vec<ShareSize> {
        self.all.sizes(&self.deal, self.work, shards)
    }

    /// The contexts of a shard.
    pub fn of_shard(&self, shard: Shard) -> Contexts {
        self.all.of_shard(&self.deal, shard)
    }

    /// Why it cannot be run on this machine.
    pub fn failure(&self) -> Option<&anyhow::Error> {
        self.failure.as_ref()
    }

    /// The listed examples of all shards.
    pub(crate) fn listed(&self) -> Vec<usize> {
        self.all.listed()
    }

    /// Removes listed examples. The others stay with their shards.
    pub(crate) fn leave_out(&mut self, examples: &HashSet<usize>) {
        self.all.leave_out(&mut self.deal, examples);
    }
}

impl Planner<'_> {
    /// The plan, after all checks without a run: lengths against the model's context and the tasks' needs, dense layers against the model's
    /// depth. Failures are reported to `watch`, and their parts left out.
    ///
    /// # Errors
    /// If no length was given where one is needed, or files cannot be read; what `watch` returns.
    pub fn plan(&self, watch: &mut dyn RunObserver) -> Result<RunPlan> {
        if self.config.lengths.is_empty() && self.tasks.iter().any(|t| t.is_sized()) {
            return Err(UsageError::new("no length was given").hint("for example --length 4096").into());
        }
        if !self.is_elsewhere {
            self.config.device.check(self.model.dimensions.config().layers)?;
        }
        self.check_stored()?;
        let mut plan = RunPlan::default();
        for cell in self.dealt()? {
            match cell.failure {
                Some(error) => watch.failed(SkippedWork { what: self.name_of(cell.place), error })?,
                None => plan.cells.push(PlanCell { place: cell.place, contexts: cell.of_shard(self.shard) }),
            }
        }
        plan.notes.extend(self.note_on_windows());
        self.check_methods(&mut plan, watch)?;
        self.check_given(&mut plan, watch)?;
        if self.config.device != Device::Cpu {
            let PromptShape { kv_heads, d, .. } = self.model.dimensions.prompt_shape(1);
            let shape = KvShape { kv_heads, d, dtype: self.model.dimensions.dtype() };
            check_attending_on_host(&self.config.methods, shape)?;
            check_offloading(&self.config.methods, shape)?;
            plan.notes.extend(host_selection_note(&self.config.methods, shape));
        }
        Ok(plan)
    }

    /// The plan without checks of memory and methods. A length that the model cannot read has no examples.
    ///
    /// # Errors
    /// If files cannot be read.
    pub fn outline(&self) -> Result<RunPlan> {
        let mut plan = RunPlan::default();
        let of_shard = |cell: ShardedCell| PlanCell { place: cell.place, contexts: cell.of_shard(self.shard) };
        plan.cells = self.dealt()?.into_iter().map(of_shard).collect();
        Ok(plan)
    }

    /// All cells in the user's order, assigned to the number of shards in [`shard`](Self::shard), the longest contexts first. Cells that
    /// need more memory than this machine has are assigned too, because other machines may have it.
    ///
    /// # Errors
    /// If files cannot be read.
    pub fn dealt(&self) -> Result<Vec<ShardedCell>> {
        let mut cells = Vec::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let mut failures = self.too_short(task.as_ref());
            let sample = self.sample_of(task.as_ref());
            for &length in self.lengths_of(task.as_ref()) {
                let known =
                    failures.iter().position(|(short, _)| *short == length).map(|at| failures.swap_remove(at).1);
                let is_short = known.is_some();
                let failure = known.or_else(|| self.too_long(task.as_ref(), length));
                let is_dealt = !is_short && self.is_within_context(task.as_ref(), length);
                let all = if is_dealt { self.contexts_of(task.as_ref(), length)? } else { UnassignedContexts::none() };
                let work = sample.map_or(Work::default(), |sample| self.work(task.as_ref(), length, sample));
                let place = TaskLength { task: at, length };
                cells.push(ShardedCell { place, work, all, deal: ShardAssignment::Each(Vec::new()), failure });
            }
        }
        let turn = self.config.settings.model.iter().flat_map(|m| &m.0).position(|model| *model == self.config.model);
        let mut loads = ShardLoads::new(self.shard.count, turn.unwrap_or(0));
        let mut longest: Vec<usize> = (0..cells.len()).collect();
        longest.sort_by_key(|at| (std::cmp::Reverse(cells[*at].all.longest(cells[*at].work)), *at));
        for at in longest {
            cells[at].deal = cells[at].all.deal(cells[at].work, &mut loads);
        }
        Ok(cells)
    }

    /// The tokens of a task's example besides its context: of the first example at the shortest possible length.
    fn sample_of(&self, task: &dyn Task) -> Option<example_input::Size> {
        let mut lengths = self.lengths_of(task).to_vec();
        // Lengths that will not run are not tried.
        let can_be = |length: usize| self.is_within_context(task, length) && self.too_long(task, length).is_none();
        lengths.retain(|length| can_be(*length) && tokens_of(task, *length) <= MOST_SAMPLED);
        lengths.sort_unstable();
        let (model, seed) = (self.model, self.config.seeds[0]);
        let made = lengths.into_iter().find_map(|length| self.make_example(task, length, 0, seed).ok())?;
        made.size(&self.config.protocols, &model.tokenizer)
    }

    /// The work of a task's contexts at a length, under all seeds, protocols and methods. A prompt counts as long as requested, its
    /// question and answer as long as those of `sample`.
    fn work(&self, task: &dyn Task, length: usize, sample: example_input::Size) -> Work {
        let prompt = if task.is_sized() && length > 0 { length } else { sample.prompt };
        let (seeds, methods) = (self.config.seeds.len() as u64, self.config.methods.len() as u64);
        let products = |rows: usize, tokens: usize| self.model.dimensions.products(rows, tokens);
        let steps = products(sample.steps, prompt).saturating_mul(methods).saturating_mul(STEP_FACTOR);
        Work {
            context: self.model.dimensions.prefill_products(prompt).saturating_mul(seeds),
            example: steps.saturating_mul(seeds),
        }
    }

    /// The lengths at which a task is run.
    fn lengths_of(&self, task: &dyn Task) -> &[usize] {
        match () {
            () if task.is_sized() => &self.config.lengths,
            () if task.is_cut() && !self.config.limits.is_empty() => &self.config.limits,
            () => &[0],
        }
    }

    /// The lengths that are too short for the task's examples. If a length suffices, so do all longer ones. Lengths that will not run are
    /// not tried.
    fn too_short(&self, task: &dyn Task) -> Vec<(usize, anyhow::Error)> {
        let mut lengths = if task.is_sized() { self.config.lengths.clone() } else { Vec::new() };
        lengths.retain(|length| self.too_long(task, *length).is_none());
        lengths.sort_unstable();
        let (counter, seed) = (Counter(&self.model.tokenizer), self.config.seeds[0]);
        let error = |length| match task.likelihood() {
            Some(task) => task.passage(length, 0, seed, &counter).err(),
            None => task.example(length, 0, seed, &counter).err(),
        };
        lengths.into_iter().map_while(|length| Some((length, error(length)?))).collect()
    }

    /// The longest sequence that may be read: the model's context, or beyond it as far as the decoder computes what the model would.
    pub(crate) fn longest(&self) -> usize {
        let config = self.model.dimensions.config();
        if self.config.allow_extrapolation { config.longest_extrapolation() } else { config.context_limit() }
    }

    /// Whether the request fits the model's context; memory is not considered.
    fn is_within_context(&self, task: &dyn Task, length: usize) -> bool {
        let tokens = tokens_of(task, length) + self.thought_tokens();
        tokens <= self.longest()
    }

    /// Tokens that a thought may have, of a model whose chat template is used.
    fn thought_tokens(&self) -> usize {
        if self.model.tokenizer.has_chat() { self.config.thought_tokens() } else { 0 }
    }

    /// Makes an example of a task ([`example_input::make`]).
    pub(crate) fn make_example(&self, task: &dyn Task, length: usize, index: usize, seed: u64) -> Result<ExampleInput> {
        example_input::make(task, length, index, seed, self.model, self.most_tokens(), self.config.thought_tokens())
    }

    fn too_long(&self, task: &dyn Task, length: usize) -> Option<anyhow::Error> {
        let least = task.least_tokens();
        let (what, tokens) = match () {
            () if task.is_sized() && self.thought_tokens() > 0 => {
                ("the length asked for with --thinking-tokens", length + self.thought_tokens())
            }
            () if task.is_sized() => ("the length asked for", length),
            () if task.is_cut() && length > 0 => ("the length to cut to", length),
            () if least > 0 => return Some(self.check_length(least, &least_of(task), SMALLER_HINT).err()?.into()),
            () => return None,
        };
        Some(self.check_length(tokens, what, LENGTH_HINT).err()?.into())
    }

    /// Says which layers methods leave as they are, since the model's own windows are on them.
    fn note_on_windows(&self) -> Option<String> {
        if self.config.local_layers == LocalLayers::Sparse {
            return None;
        }
        let specs = self.model.dimensions.layer_specs();
        let slide = specs.iter().filter(|spec| spec.window.is_some()).count();
        let (id, layers) = (&self.model.id, specs.layers());
        match slide {
            0 => None,
            all if all == layers => Some(format!(
                "all layers of {id} have a sliding window, which every method attends as it is: methods select nothing \
                 without --local-layers sparse"
            )),
            some => Some(format!(
                "methods select on {} of the {layers} layers of {id}: {some} have a sliding window",
                layers - some
            )),
        }
    }

    /// Refuses quantised keys and values that nothing would read: those of a text that is scored in one pass.
    fn check_stored(&self) -> Result<(), UsageError> {
        if !self.config.protocols.contains(&Protocol::Prefill) {
            return Ok(());
        }
        let quantised = self.config.methods.iter().find(|method| !method.policy.kv_dtype.is_exact());
        let scored = self.tasks.iter().find(|task| task.likelihood().is_some());
        let (Some(method), Some(task)) = (quantised, scored) else { return Ok(()) };
        Err(UsageError::new(format!(
            "method `{}` stores keys and values that `{}` does not read: with --sparse-from prefill a given text is scored in one pass, \
             without a decode step",
            method.label(),
            task.name()
        ))
        .hint("use --sparse-from decode, question or last:N, or leave kv_dtype (--kv-dtype) out"))
    }

    /// Methods that do not fit the model, and those that do not fit a length.
    fn check_methods(&self, plan: &mut RunPlan, watch: &mut dyn RunObserver) -> Result<()> {
        let places: Vec<TaskLength> = plan.cells.iter().map(|cell| cell.place).collect();
        let variants = self.config.variants();
        for method in &self.config.methods {
            let alone = std::slice::from_ref(method);
            let what = |place: Option<TaskLength>| match place {
                None => format!("{}, {}", self.model.id, method.label()),
                Some(place) => format!("{}, {}", self.name_of(place), method.label()),
            };
            if let Err(error) = self.check_method(method) {
                watch.failed(SkippedWork { what: what(None), error: error.into() })?;
                places.iter().for_each(|place| plan.leave_out(*place, &variants, alone));
                continue;
            }
            for &place in places.iter().filter(|place| self.tasks[place.task].is_sized()) {
                if let Err(error) = self.check_positions(alone, place.length) {
                    watch.failed(SkippedWork { what: what(Some(place)), error: error.into() })?;
                    plan.leave_out(place, &variants, alone);
                }
            }
        }
        Ok(())
    }

    /// Checks that a method can run on the model, whatever the length.
    ///
    /// # Errors
    /// If it names layers or channels that there are not, or does not support the model's attention.
    pub(crate) fn check_method(&self, method: &Configured) -> Result<(), UsageError> {
        let fits = |part: &Configured| {
            self.check_layers(part).and_then(|()| self.check_width(part)).and_then(|()| self.check_attention(part))
        };
        method.parts().try_for_each(fits)
    }

    fn check_layers(&self, method: &Configured) -> Result<(), UsageError> {
        let specs = self.model.dimensions.layer_specs();
        let layers = specs.layers();
        match method.policy.dense_layers.highest().filter(|highest| *highest >= layers) {
            None => method.policy.schedule.check(&specs.dense(&method.policy)),
            Some(layer) => Err(UsageError::new(format!("dense layer {layer} does not exist")).hint(format!(
                "{} has layers 0 to {}",
                self.model.id,
                layers - 1
            ))),
        }
    }

    fn check_width(&self, method: &Configured) -> Result<(), UsageError> {
        let d = self.model.dimensions.config().head_dim;
        match method.method.required_head_dim().filter(|(_, channels)| *channels > d) {
            None => Ok(()),
            Some((key, channels)) => Err(UsageError::new(format!(
                "method `{}`: `{key}={channels}` is more channels than a head of {} has",
                method.name, self.model.id
            ))
            .hint(format!("give at most {d}"))),
        }
    }

    /// Refuses a method that would compute something else than the model's attention.
    fn check_attention(&self, method: &Configured) -> Result<(), UsageError> {
        let reasons = method.unsupported(self.model.dimensions.layer_specs());
        if reasons.is_empty() {
            return Ok(());
        }
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        let what = format!("method `{}` does not support the attention of {}", method.name, self.model.id);
        Err(UsageError::new(format!("{what}: {}", reasons.join(", "))))
    }

    /// How many records an example gives, under all variants.
    pub fn records_of_example(&self, plan: &RunPlan, place: TaskLength) -> usize {
        let of = |variant| self.config.methods.iter().filter(|m| plan.has(place, variant, m)).count();
        self.config.variants().into_iter().map(of).sum()
    }

    /// The contexts of a task at a length, for all shards.
    fn contexts_of(&self, task: &dyn Task, length: usize) -> Result<UnassignedContexts> {
        let available = match task.likelihood() {
            Some(task) => Some(task.available(length, &Counter(&self.model.tokenizer))?),
            None => task.available(),
        };
        let samples = available.unwrap_or(usize::MAX).min(self.config.samples);
        Ok(UnassignedContexts::new(task, samples, available.is_some()))
    }

    /// Model, task and length, to read.
    pub(crate) fn name_of(&self, place: TaskLength) -> String {
        let (model, task) = (&self.model.id, self.tasks[place.task].name());
        match place.length {
            0 => format!("{model}, {task}"),
            length => format!("{model}, {task} at {length}"),
        }
    }

    pub(crate) fn check_length(&self, length: usize, what: &str, hint: &str) -> Result<(), UsageError> {
        let limit = self.longest();
        if length <= limit {
            return self.check_memory(length, what);
        }
        Err(UsageError::new(format!("{what}, {length} tokens, is beyond the context of {} ({limit})", self.model.id))
            .hint(hint))
    }

    /// Checks that keys and values of `tokens` tokens fit into memory.
    fn check_memory(&self, tokens: usize, what: &str) -> Result<(), UsageError> {
        if self.is_elsewhere {
            return Ok(());
        }
        check_cache(self.config, self.model, tokens)?;
        if let Some(need) = fullest(&gpu_needs(self.config, self.model, tokens)?) {
            need.check(self.config, &format!("{what}, {tokens} tokens, takes"), &self.model.id)?;
        }
        if let Some(bytes) = host_kv_of_example(self.config, self.model, tokens) {
            let indexes = host_indexes_of_example(self.config, self.model, tokens);
            let of_indexes = if indexes > 0 { ", and for indexes," } else { "" };
            let what = format!("{what}, {tokens} tokens, takes for keys and values of {}{of_indexes}", self.model.id);
            let needed = bytes.saturating_add(indexes) as u64;
            return memory::check(needed, what, "choose a shorter --length, or --dtype bf16");
        }
        // On a GPU, weights, keys and values are in its memory, and only pieces pass through the machine's.
        if self.config.device != Device::Cpu {
            return Ok(());
        }
        let dimensions = &self.model.dimensions;
        dimensions.check_weights(&self.model.id)?;
        let needed = dimensions.weight_bytes().saturating_add(bytes_of_example(self.config, self.model, tokens));
        let what = format!("{what}, {tokens} tokens, with the weights of {} takes", self.model.id);
        let hint = match self.config.kv_tier {
            KvTier::Memory => {
                "choose a shorter --length, or --dtype bf16, or keep the KV cache on disk: --kv-tier disk"
            }
            KvTier::Disk | KvTier::Host => "choose a shorter --length, less --kv-memory, or --dtype bf16",
        };
        memory::check(needed as u64, what, hint)
    }

    /// Checks that methods that move positions have RoPE frequencies that are constant over all `tokens`.
    pub(crate) fn check_positions(&self, methods: &[Configured], tokens: usize) -> Result<(), UsageError> {
        let moves = |m: &&Configured| m.method.positions() != Positions::Original;
        match methods.iter().flat_map(Configured::parts).find(moves) {
            Some(method) if !self.model.dimensions.has_one_rotation() => Err(UsageError::new(format!(
                "{} cannot move positions on {}: its layers are not all rotated by the same RoPE frequencies",
                method.label(),
                self.model.id
            ))),
            Some(method) if self.model.dimensions.rotation(tokens, tokens).is_none() => Err(UsageError::new(format!(
                "{} cannot move positions on {}: beyond the trained length its RoPE frequencies depend on the length",
                method.label(),
                self.model.id
            ))
            .hint("choose a shorter --length, or a method that does not move positions")),
            _ => Ok(()),
        }
    }
}
/// The tokens of a task's prompts at a length, as far as they are known before one is made.
fn tokens_of(task: &dyn Task, length: usize) -> usize {
    if task.is_sized() || task.is_cut() && length > 0 { length } else { task.least_tokens() }
}

/// Refuses methods that attend on the host if a GPU cannot hash for them: their times would be those of something else.
fn check_attending_on_host(methods: &[Configured], shape: KvShape) -> Result<(), UsageError> {
    let lacks = |method: &&Configured| {
        let builder = method.method.index_builder().filter(|builder| builder.fits(shape));
        method.method.attends_on_host() && builder.is_none()
    };
    let Some(method) = methods.iter().find(lacks) else { return Ok(()) };
    let reasons = method.host_reasons(shape).into_iter().filter(|reason| *reason != HostReason::AttendsOnHost);
    let mut reasons: Vec<String> = reasons.map(|reason| reason.to_string()).collect();
    if reasons.is_empty() {
        reasons.push(format!("no kernel hashes heads of {} channels as it does", shape.d));
    }
    let what = format!("method `{}` attends on the host what a GPU hashes: {}", method.label(), reasons.join("; "));
    Err(UsageError::new(what).hint("leave attend_on out"))
}

/// Refuses methods that keep on a GPU what it scores and attends if the host selects: the caches would not be those of the method.
fn check_offloading(methods: &[Configured], shape: KvShape) -> Result<(), UsageError> {
    let lacks = |method: &&Configured| method.method.offloads() && !method.host_reasons(shape).is_empty();
    let Some(method) = methods.iter().flat_map(Configured::parts).find(lacks) else { return Ok(()) };
    let reasons: Vec<String> = method.host_reasons(shape).iter().map(ToString::to_string).collect();
    let what = format!(
        "method `{}` keeps in a GPU what the GPU selects, and the host selects: {}",
        method.label(),
        reasons.join("; ")
    );
    Err(UsageError::new(what).hint("leave offload out"))
}

/// Which methods select on the host although a GPU holds keys and values of this shape, each with its reasons; `None` if none does.
fn host_selection_note(methods: &[Configured], shape: KvShape) -> Option<String> {
    let of_method = |method: &Configured| {
        let selects = !method.method.is_static_only() && !method.method.decodes_densely();
        let reasons: Vec<String> = method.host_reasons(shape).iter().map(ToString::to_string).collect();
        (selects && !reasons.is_empty()).then(|| format!("{} ({})", method.label(), reasons.join("; ")))
    };
    let on_host: Vec<String> = methods.iter().filter_map(of_method).collect();
    (!on_host.is_empty()).then(|| format!("tokens are selected on the host, not on the GPU, by {}", on_host.join(", ")))
}

#[cfg(test)]
mod tests;
