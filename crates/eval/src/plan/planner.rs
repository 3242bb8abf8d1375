//! Plans the run of a matrix on a model: its cells, after all checks that need no weights.

use std::collections::HashSet;

use anyhow::Result;

use super::contexts::{Contexts, Shard, ShareSize, UnassignedContexts};
use super::memory::{bytes_of_example, masks_whole_prompt, waiting_prefix_bytes};
use super::sharding::{ShardAssignment, ShardLoads, Work};
use crate::config::run_config::{RunConfig, Variant};
use crate::examples::example_input;
use crate::examples::observer::{RunObserver, SkippedWork};
use crate::examples::token_counter::Counter;
use spattn_attention::kv::{KvDtype, KvShape};
use spattn_attention::{Configured, Positions, PromptShape, mask_list_bytes};
use spattn_base::error::UsageError;
use spattn_base::memory;
use spattn_model::OpenModel;
use spattn_model::device::Device;
use spattn_model::dimensions::GPU_PREFILL_CHUNK;
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

    /// Whether a method is to be run at a place under a variant.
    pub fn has(&self, place: TaskLength, variant: Variant, method: &Configured) -> bool {
        self.holes.is_empty() || !self.holes.contains(&(place, variant, method.label()))
    }
}

pub(crate) const LENGTH_HINT: &str = "choose a shorter --length, or see what happens with --allow-extrapolation";

/// How much more expensive a product is in a step, with a single row, than in a prefill with many rows.
const STEP_FACTOR: u64 = 4;

/// The longest example, in tokens, that is made to measure how many tokens an example has besides its context.
const MOST_SAMPLED: usize = 1 << 20;

const SMALLER_HINT: &str = "ask for fewer in a context, or see what happens with --allow-extrapolation";

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
        let mut plan = RunPlan::default();
        for cell in self.dealt()? {
            match cell.failure {
                Some(error) => watch.failed(SkippedWork { what: self.name_of(cell.place), error })?,
                None => plan.cells.push(PlanCell { place: cell.place, contexts: cell.of_shard(self.shard) }),
            }
        }
        self.check_methods(&mut plan, watch)?;
        self.check_given(&mut plan, watch)?;
        if self.config.device != Device::Cpu {
            let PromptShape { kv_heads, d, .. } = self.model.dimensions.prompt_shape(1);
            let shape = KvShape { kv_heads, d, dtype: self.model.dimensions.dtype() };
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
        let made = lengths
            .into_iter()
            .find_map(|length| example_input::make(task, length, 0, seed, model, self.most_tokens()).ok())?;
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

    /// Whether the request fits the model's context; memory is not considered.
    fn is_within_context(&self, task: &dyn Task, length: usize) -> bool {
        let tokens = tokens_of(task, length);
        self.config.allow_extrapolation || tokens <= self.model.dimensions.config().context_limit()
    }

    fn too_long(&self, task: &dyn Task, length: usize) -> Option<anyhow::Error> {
        let least = task.least_tokens();
        let (what, tokens) = match () {
            () if task.is_sized() => ("the length asked for", length),
            () if task.is_cut() && length > 0 => ("the length to cut to", length),
            () if least > 0 => return Some(self.check_length(least, &least_of(task), SMALLER_HINT).err()?.into()),
            () => return None,
        };
        Some(self.check_length(tokens, what, LENGTH_HINT).err()?.into())
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
            let fits = |part: &Configured| {
                self.check_layers(part).and_then(|()| self.check_width(part)).and_then(|()| self.check_attention(part))
            };
            if let Err(error) = method.parts().try_for_each(fits) {
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

    fn check_layers(&self, method: &Configured) -> Result<(), UsageError> {
        let layers = self.model.dimensions.config().layers;
        match method.policy.dense_layers.highest().filter(|highest| *highest >= layers) {
            None => method.policy.schedule.check(&method.policy.dense(layers)),
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
        let what = format!("method `{}` cannot honour how {} attends", method.name, self.model.id);
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
        let limit = self.model.dimensions.config().context_limit();
        if length <= limit || self.config.allow_extrapolation {
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
        if let Some(free) = self.config.device.free_bytes() {
            let needed = gpu_need(self.config, self.model, tokens);
            if needed as u64 > free {
                return Err(UsageError::new(format!(
                    "{what}, {tokens} tokens, takes {:.1} GB of the GPU's memory with {}, and {:.1} GB are free",
                    needed as f64 / 1e9,
                    self.model.id,
                    free as f64 / 1e9
                ))
                .hint("choose a shorter --length, fewer methods at a time, or --dtype bf16"));
            }
        }
        // On a GPU, weights, keys and values are in its memory, and only pieces pass through the machine's.
        if self.config.device != Device::Cpu {
            return Ok(());
        }
        let dimensions = &self.model.dimensions;
        dimensions.check_weights(&self.model.id)?;
        let needed = dimensions.weight_bytes().saturating_add(bytes_of_example(self.config, self.model, tokens));
        let what = format!("{what}, {tokens} tokens, with the weights of {} takes", self.model.id);
        memory::check(needed as u64, what, "choose a shorter --length, or --dtype bf16")
    }

    /// Checks that methods that move positions have RoPE frequencies that are constant over all `tokens`.
    pub(crate) fn check_positions(&self, methods: &[Configured], tokens: usize) -> Result<(), UsageError> {
        let moves = |m: &&Configured| m.method.positions() != Positions::Original;
        match methods.iter().flat_map(Configured::parts).find(moves) {
            Some(method) if self.model.dimensions.rotation(tokens).is_none() => Err(UsageError::new(format!(
                "{} cannot move positions on {}: beyond the trained length its RoPE frequencies depend on the length",
                method.label(),
                self.model.id
            ))
            .hint("choose a shorter --length, or leave the positions as they are")),
            _ => Ok(()),
        }
    }
}
/// The tokens of a task's prompts at a length, as far as they are known before one is made.
fn tokens_of(task: &dyn Task, length: usize) -> usize {
    if task.is_sized() || task.is_cut() && length > 0 { length } else { task.least_tokens() }
}

/// The most bytes of GPU memory that weights and an example with `tokens` tokens need under all methods: computed, not measured.
pub fn gpu_need(config: &RunConfig, model: &OpenModel, tokens: usize) -> usize {
    let (dimensions, methods) = (&model.dimensions, &config.methods);
    let prompt = dimensions.prompt_shape(tokens);
    // Only one method reads at a time.
    let lists = methods.iter().map(|method| mask_list_bytes(method, &prompt, GPU_PREFILL_CHUNK)).max().unwrap_or(0);
    memory::sum([
        dimensions.weight_bytes(),
        dimensions.gpu_bytes(tokens, methods.len(), masks_whole_prompt(config)),
        picking_bytes(methods, &prompt, dimensions.dtype()),
        lists,
        waiting_prefix_bytes(config, model, tokens),
    ])
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

/// Bytes of a GPU's memory that indexes and lists of methods that pick there take at most; equal indexes are shared.
fn picking_bytes(methods: &[Configured], prefix: &PromptShape, dtype: KvDtype) -> usize {
    let mut known = HashSet::new();
    let of_method = |method: &Configured| {
        let Ok(form) = method.method.device_form() else { return 0 };
        let key = (method.name.clone(), method.method.index_key(), format!("{:?}", method.policy));
        let index = if known.insert(key) { form.index_bytes(prefix, dtype) } else { 0 };
        // Selections that later tokens reuse are kept by layer.
        let kept = if form.refresh() > 1 { prefix.layers } else { 0 };
        index + (1 + kept) * form.list_bytes(prefix) + prefix.layers * form.held_bytes(prefix)
    };
    methods.iter().map(of_method).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;
    use spattn_attention::methods::configure;

    #[test]
    fn methods_that_select_on_the_host_are_named_with_their_reasons() {
        let note = |specs: &[&str]| {
            let of = |spec: &&str| configure(&expand_grid(spec).unwrap().remove(0), &Policy::default()).unwrap();
            let methods: Vec<Configured> = specs.iter().map(of).collect();
            host_selection_note(&methods, KvShape { kv_heads: 2, d: 256, dtype: KvDtype::Bf16 })
        };
        assert_eq!(note(&["topk", "full", "streaming_llm", "minference", "hip:k=64"]), None);
        assert_eq!(
            note(&["topk:tail=indexed", "quest", "knn:k=8", "sparq"]).unwrap(),
            "tokens are selected on the host, not on the GPU, by topk:k=64,tail=indexed (tokens after the prefix become \
             candidates (tail)), knn:index=hnsw,k=8 (it has no form on a GPU), sparq:r=d/8,k=64 (heads are 256 wide, and the \
             kernels take up to 128)"
        );
    }
    use spattn_attention::{Policy, expand_grid};
    use spattn_model::config::RopeScaling;
    use spattn_model::decoder::Dimensions;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;
    use spattn_tasks::{TaskOptions, resolve};

    #[derive(Default)]
    struct Told(Vec<(String, String)>);

    impl RunObserver for Told {
        fn progress(&mut self, _: crate::examples::observer::RunProgress<'_>) {}

        fn failed(&mut self, failure: SkippedWork) -> Result<()> {
            self.0.push((failure.what, failure.error.to_string()));
            Ok(())
        }
    }

    fn with_planner<R>(text: &str, use_it: impl FnOnce(&Planner<'_>) -> R) -> R {
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        use_it(&Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        })
    }

    #[test]
    fn shards_are_dealt_by_the_work_that_progress_and_estimates_count() {
        use crate::plan::work::prefill_work;
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 1024]\nseed = [1, 2]";
        let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        let shard = Shard::WHOLE;
        let planner = Planner { model: &model, config: &config, tasks: &tasks, data: None, shard, is_elsewhere: false };
        let (c, weights) = (model.dimensions.config(), model.dimensions.weight_numbers());
        for cell in planner.dealt().unwrap() {
            let tokens = cell.place.length;
            // By all weights, and of every query with half of the keys in the mean.
            let products = tokens * (weights + c.layers * c.heads * c.head_dim * (tokens / 2));
            let expected = (products as f64 / 1e6).ceil() as u64;
            let of_cell = prefill_work(&model.dimensions, tokens);
            assert_eq!((of_cell, cell.work.context), (expected, 2 * expected), "under two seeds");
        }
    }

    /// The lengths of the cells, and what failed.
    fn planned(text: &str) -> (Vec<usize>, Vec<(String, String)>) {
        let mut told = Told::default();
        let plan = with_planner(text, |planner| planner.plan(&mut told)).unwrap();
        (plan.cells.iter().map(|cell| cell.place.length).collect(), told.0)
    }

    fn limit() -> usize {
        with_planner("tasks = ['ruler/niah_single_1']\nlengths = [512]", |p| {
            p.model.dimensions.config().context_limit()
        })
    }

    #[test]
    fn lengths_that_cannot_be_run_are_told_and_left_out() {
        let long = limit() + 1;
        let text = format!("tasks = ['ruler/niah_single_1']\nlengths = [{long}, 512, 64, {}]", long - 1);
        let (lengths, told) = planned(&text);
        assert_eq!(lengths, [512, long - 1]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0].0, format!("builtin, ruler/niah_single_1 at {long}"));
        assert!(
            told[0].1.starts_with(&format!("the length asked for, {long} tokens, is beyond the context of builtin"))
        );
        assert_eq!(told[1].0, "builtin, ruler/niah_single_1 at 64");
        assert!(!told[1].1.contains("beyond"), "too short, not too long: {told:?}");
        let (lengths, told) = planned(&(text + "\nallow_extrapolation = true"));
        assert_eq!((lengths, told.len()), (vec![long, 512, long - 1], 1));
    }

    #[test]
    fn tasks_have_the_lengths_that_they_are_made_for() {
        with_planner("tasks = ['ruler/niah_single_1']\nlengths = [700, 512]\nsamples = 3", |planner| {
            let config = RunConfig { lengths: Vec::new(), ..planner.config.clone() };
            let missing = Planner { config: &config, ..*planner }.plan(&mut Told::default()).unwrap_err();
            assert!(missing.to_string().contains("no length was given"), "{missing}");
            let plan = planner.plan(&mut Told::default()).unwrap();
            let cells: Vec<_> = plan.cells.iter().map(|c| (c.place.length, c.examples())).collect();
            assert_eq!(cells, [(700, 3), (512, 3)]);
            let name = |length| planner.name_of(TaskLength { task: 0, length });
            assert_eq!([0, 512].map(name), ["builtin, ruler/niah_single_1", "builtin, ruler/niah_single_1 at 512"]);
            assert_eq!(planner.lengths_of(planner.tasks[0].as_ref()), [700, 512]);
        });
    }

    /// A task with examples from a file.
    struct OfFile {
        is_cut: bool,
        least_tokens: usize,
    }

    impl Task for OfFile {
        fn name(&self) -> &str {
            "file"
        }

        fn inputs(&self) -> String {
            String::new()
        }

        fn available(&self) -> Option<usize> {
            Some(1)
        }

        fn least_tokens(&self) -> usize {
            self.least_tokens
        }

        fn is_sized(&self) -> bool {
            false
        }

        fn is_cut(&self) -> bool {
            self.is_cut
        }
    }

    #[test]
    fn tasks_of_files_have_a_length_where_they_are_cut_to_one() {
        with_planner("tasks = ['ruler/niah_single_1']\nlengths = [700, 512]", |named| {
            let config = RunConfig { limits: Vec::new(), ..named.config.clone() };
            let unnamed = Planner { config: &config, ..*named };
            let [cut, whole] = [true, false].map(|is_cut| OfFile { is_cut, least_tokens: 0 });
            assert_eq!((named.lengths_of(&cut), unnamed.lengths_of(&cut)), (&[700, 512][..], &[0][..]));
            assert_eq!((named.lengths_of(&whole), unnamed.lengths_of(&whole)), (&[0][..], &[0][..]));

            let limit = named.model.dimensions.config().context_limit();
            let (long, beyond) = (limit + 1, format!(", {} tokens, is beyond", limit + 1));
            let to_cut_to = format!("the length to cut to{beyond}");
            let least = format!("the shortest example that `file` can have{beyond}");
            for (is_cut, least_tokens, length, expected) in [
                (true, 0, limit, ""),
                (true, 0, long, &to_cut_to),
                (true, long, limit, ""),
                (true, long, 0, &least),
                (true, 0, 0, ""),
                (false, 0, long, ""),
                (false, limit, 0, ""),
                (false, long, 0, &least),
            ] {
                let said = named.too_long(&OfFile { is_cut, least_tokens }, length).map(|error| error.to_string());
                let said = said.unwrap_or_default();
                let is_expected = if expected.is_empty() { said.is_empty() } else { said.starts_with(expected) };
                assert!(is_expected, "cut: {is_cut}, {least_tokens} at {length}: {said}");
            }
        });
    }

    #[test]
    fn positions_are_moved_only_where_their_frequencies_stay() {
        let configured = |spec: &str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
        let (stays, moves) = (configured("topk"), configured("streaming_llm:rolling=true"));
        let mut model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let mut shape = model.dimensions.config().clone();
        shape.rope.scaling = RopeScaling::Dynamic { factor: 2.0 };
        let trained = shape.max_position_embeddings;
        let refused = |model: &OpenModel, methods: &[Configured], tokens: usize| {
            with_planner("tasks = ['ruler/niah_single_1']\nlengths = [512]", |planner| {
                Planner { model, ..*planner }.check_positions(methods, tokens).err().map(|e| e.what)
            })
        };
        let both = [stays.clone(), moves.clone()];
        assert_eq!(refused(&model, &both, trained + 1), None);
        model.dimensions = Dimensions::new(&shape, model.dimensions.dtype());
        assert_eq!(refused(&model, &both, trained), None);
        assert_eq!(refused(&model, &[stays], trained + 1), None);
        let said = refused(&model, &both, trained + 1).unwrap();
        assert!(said.starts_with(&format!("{} cannot move positions on builtin", moves.label())), "{said}");
    }

    #[test]
    fn methods_that_do_not_fit_the_model_are_left_out_everywhere() {
        // The model has 10 layers, and its heads have 64 channels.
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 600]\n\
                    methods = ['topk:dense_layers=0-9', 'topk:dense_layers=10', 'sparq:r=64', 'sparq:r=65']";
        let mut told = Told::default();
        with_planner(text, |planner| {
            let plan = planner.plan(&mut told).unwrap();
            let variant = planner.config.variants()[0];
            let places: Vec<TaskLength> = plan.cells.iter().map(|cell| cell.place).collect();
            let runs = |m: &Configured| places.iter().map(|p| plan.has(*p, variant, m)).collect::<Vec<_>>();
            let found: Vec<_> = planner.config.methods.iter().map(runs).collect();
            assert_eq!(found, [[true; 2], [true; 2], [false; 2], [true; 2], [false; 2]]);
        });
        let [(layer, no_layer), (width, no_width)] = &told.0[..] else { panic!("{told:?}", told = told.0) };
        assert!(
            layer.starts_with("builtin, topk") && no_layer == "dense layer 10 does not exist",
            "{layer}: {no_layer}"
        );
        assert!(
            width.starts_with("builtin, sparq") && no_width.contains("`r=65` is more channels"),
            "{width}: {no_width}"
        );
    }

    #[test]
    fn what_is_left_out_is_a_method_at_a_place_under_a_variant() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nmethods = ['topk']";
        with_planner(text, |planner| {
            let [full, topk] = &planner.config.methods[..] else { panic!("two methods") };
            let (here, there) = (TaskLength { task: 0, length: 512 }, TaskLength { task: 0, length: 600 });
            let variant = planner.config.variants()[0];
            let other = Variant { seed: variant.seed + 1, ..variant };
            let mut plan = RunPlan::default();
            assert!(plan.has(here, variant, topk));
            plan.leave_out(here, &[variant], std::slice::from_ref(topk));
            assert!(!plan.has(here, variant, topk));
            assert!(plan.has(here, variant, full) && plan.has(there, variant, topk) && plan.has(here, other, topk));
        });
    }

    #[test]
    fn what_picks_on_a_gpu_takes_room_for_lists_and_for_each_index_once() {
        let prefix = PromptShape { layers: 2, heads: 8, kv_heads: 2, d: 64, tokens: 1000 };
        let bytes = |specs: &[&str]| {
            let of = |spec: &&str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
            picking_bytes(&specs.iter().map(of).collect::<Vec<_>>(), &prefix, KvDtype::Bf16)
        };
        // Lists of four bytes for each token, for eight query heads or two KV heads.
        assert_eq!(bytes(&["topk:k=10", "topk:k=10,per=kv_head"]), 8 * 10 * 4 + 2 * 10 * 4);
        assert_eq!(bytes(&["topk:k=5000"]), 8 * 1000 * 4);
        // Two bounds of two bytes, for 64 channels, 63 pages, two KV heads and two layers.
        let index = 2 * 2 * 63 * 2 * 64 * 2;
        assert_eq!(bytes(&["quest:k=32"]), index + 8 * 32 * 4);
        assert_eq!(bytes(&["quest:k=32", "quest:k=64"]), index + 8 * (32 + 64) * 4);
        assert_eq!(bytes(&["quest:k=32", "quest:k=32,sink=8"]), 2 * (index + 8 * 32 * 4));
        // Ten tables of 17 bounds and all tokens in two bytes, lengths, means, and hyperplanes; and codes of one KV head.
        let tables = 2 * (2 * (10 * (17 + 1000) * 2 + 4 * (1000 + 64)) + 4 * 40 * 64) + 2 * 10 * 1000;
        // Every token that collides may be listed, with a weight and a small extra; and a code for each table.
        assert_eq!(bytes(&["magicpig:K=4,L=10"]), tables + 8 * (1000 * (4 + 4 + 1) + 2 * 10));
        // Masks are kept for both layers if later tokens reuse them.
        assert!(bytes(&["hip:k=32,r_m=1"]) >= 8 * 32 * 4);
        assert_eq!(bytes(&["hip:k=32,r_m=2"]), 3 * bytes(&["hip:k=32,r_m=1"]));
        assert_eq!(bytes(&["full", "random", "snapkv", "quest:summary_bits=4"]), 0);
    }
}
