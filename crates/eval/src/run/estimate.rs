//! Estimates the time and memory of a matrix before it runs.
//!
//! A [`Probe`] measures this machine: a model reads two texts and runs the methods on them. On the CPU, the built-in model is used, so that
//! no weights are needed. Its times are scaled to the model of the matrix by the number of multiplications and by the size of keys, which
//! gives an order of magnitude, not minutes and seconds. On a GPU, launches take as long as arithmetic and times cannot be scaled like
//! that, so the model itself is loaded. Prefill times are extrapolated by the number of multiplications, index and step times along a
//! straight line through both lengths. Answers are assumed to be as long as their references; for random weights, which hardly ever end an
//! answer, as long as they may be.

use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::example_request::ExampleRequest;
use super::example_runner::ExampleRunner;
use super::generate::Generation;
use super::sampling::Sampling;
use super::solo;
use crate::calibration::supply::supply;
use crate::config::protocol::Protocol;
use crate::config::run_config::RunConfig;
use crate::config::settings::Settings;
use crate::examples::example_input::ExampleInput;
use crate::plan::contexts::Shard;
use crate::plan::memory::bytes_of_example;
use crate::plan::planner::{PlanCell, Planner, RunPlan};
use crate::records::timing::Latency;
use spattn_attention::Configured;
use spattn_model::decoder::{Decoder, Dimensions};
use spattn_model::device::Placement;
use spattn_model::source::{ModelSource, RANDOM};
use spattn_model::tokenizer::TokenizerOptions;
use spattn_model::{Model, OpenModel};
use spattn_tasks::text::essays::Essays;

/// The length of the probe's longer text in tokens. The other is a quarter of it.
const PROBE_TOKENS: usize = 1024;
/// The same on a GPU, unless the plan's prompts are shorter.
const GPU_PROBE_TOKENS: usize = 8192;
/// The numbers of tokens that the probe reads after its prefix, and that it generates.
const PROBE_QUESTION: usize = 8;
const PROBE_ANSWER: usize = 8;

/// The time and memory of a matrix on one model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunEstimate {
    /// Seconds of prefill.
    pub prefill: f64,
    /// Seconds of building indexes.
    pub index: f64,
    /// Seconds of steps.
    pub steps: f64,
    /// Bytes of the weights, the largest example and all of its indexes.
    pub bytes: usize,
}

impl RunEstimate {
    /// The sum of all seconds.
    pub fn seconds(&self) -> f64 {
        self.prefill + self.index + self.steps
    }

    /// The estimate with `n` times the seconds.
    pub fn times(self, n: f64) -> Self {
        Self { prefill: n * self.prefill, index: n * self.index, steps: n * self.steps, ..self }
    }
}

/// Estimates the seconds of reading prompts densely: by the number of multiplications, at the rate at which the built-in model reads.
/// `prompts` are pairs of a number of prompts and their length in tokens.
///
/// # Errors
/// If the built-in model cannot be run.
pub fn reading_seconds(dimensions: &Dimensions, prompts: &[(usize, usize)]) -> Result<f64> {
    let of_prompts = |(count, tokens): &(usize, usize)| *count as f64 * dimensions.prefill_products(*tokens) as f64;
    let all: f64 = prompts.iter().map(of_prompts).sum();
    let probe = Probe::of_this_machine()?;
    let [_, long] = probe.samples(&[])?;
    Ok(all * long.prefill.max(1e-9) / probe.model.opened().dimensions.prefill_products(long.tokens as usize) as f64)
}

/// The model that is timed.
enum TimedModel<'a> {
    /// The built-in model, on the CPU.
    BuiltIn(Box<Model>),
    /// A plan's model, on its GPUs.
    Planned(&'a OpenModel, Box<Decoder>),
}

impl TimedModel<'_> {
    fn opened(&self) -> &OpenModel {
        match self {
            Self::BuiltIn(model) => model,
            Self::Planned(opened, _) => opened,
        }
    }

    fn decoder(&self) -> &Decoder {
        match self {
            Self::BuiltIn(model) => &model.decoder,
            Self::Planned(_, decoder) => decoder,
        }
    }
}

/// A model that reads texts to measure this machine.
pub struct Probe<'a> {
    model: TimedModel<'a>,
    /// The tokens of the text that it reads.
    text: Vec<u32>,
    config: RunConfig,
}

impl<'a> Probe<'a> {
    /// Loads the built-in model, to measure the CPU.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn of_this_machine() -> Result<Self> {
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default())?;
        Self::reading(PROBE_TOKENS, TimedModel::BuiltIn(Box::new(model)))
    }

    /// Loads a plan's model on one of the devices that `config` names, with random weights if its own are not on this machine. `longest` is
    /// the length of the plan's longest prompt in tokens.
    ///
    /// # Errors
    /// If there is no such device, or the model cannot be loaded there.
    pub fn of_planned(model: &'a OpenModel, config: &RunConfig, longest: usize) -> Result<Self> {
        let device = config.device.copies()?.first().copied().unwrap_or(config.device);
        device.check(model.dimensions.config().layers)?;
        let tokens = longest.clamp(4 * PROBE_QUESTION, GPU_PROBE_TOKENS);
        let decoder = model.decoder(Placement { device, tokens })?;
        Self::reading(tokens, TimedModel::Planned(model, Box::new(decoder)))
    }

    fn reading(tokens: usize, model: TimedModel<'a>) -> Result<Self> {
        let words = Essays::Grammar.reader(0, 0).text(tokens);
        let mut text = model.opened().tokenizer.encode_text(&words, true)?;
        text.truncate(tokens);
        let settings = "tasks = ['ruler/niah_single_1']\nlengths = [1024]\nsamples = 1\nmethods = []";
        let config = RunConfig::resolve(Settings::parse(settings, "estimate")?)?.remove(0);
        Ok(Self { model, text, config })
    }

    /// The name of the GPU that is measured.
    pub fn gpu(&self) -> Option<&str> {
        self.model.decoder().gpu()
    }

    /// A plan's methods as the probe's model runs them. The built-in model has calibrations of its own. Methods that cannot be calibrated
    /// for it are left out.
    fn fitted(&self, methods: &[Configured]) -> Vec<Configured> {
        let TimedModel::BuiltIn(model) = &self.model else { return methods.to_vec() };
        let calibrated = |method: &Configured| {
            let mut alone = [method.clone()];
            supply(&mut alone, model, None).ok()?;
            let [method] = alone;
            Some(method)
        };
        methods.iter().filter_map(calibrated).collect()
    }

    /// The methods that the model can run, at most [`MOST_PROBED`].
    fn runnable(&self, methods: &[Configured]) -> Vec<Configured> {
        let (config, shard) = (&self.config, Shard::WHOLE);
        let planner =
            Planner { model: self.model.opened(), config, tasks: &[], data: None, shard, is_elsewhere: false };
        let runs = |method: &&Configured| {
            let alone = std::slice::from_ref(*method);
            planner.check_method(method).is_ok() && planner.check_positions(alone, self.text.len()).is_ok()
        };
        spread(&methods.iter().filter(runs).cloned().collect::<Vec<_>>(), MOST_PROBED)
    }

    /// Measures the methods at both lengths. Methods that cannot be measured are assumed to take as long as the others on average.
    fn samples(&self, methods: &[Configured]) -> Result<[Sample; 2]> {
        let probed = self.runnable(methods);
        let share = if probed.is_empty() { 1.0 } else { methods.len() as f64 / probed.len() as f64 };
        let sample = |tokens: usize| self.sample(&probed, tokens).map(|sample| sample.of_all(share));
        let longer = self.text.len();
        // A warm-up, because the first run takes longer.
        sample(longer / 4)?;
        Ok([sample(longer / 4)?, sample(longer)?])
    }

    fn sample(&self, methods: &[Configured], tokens: usize) -> Result<Sample> {
        let request = ExampleRequest {
            prompt: &self.text[..tokens],
            prefix_tokens: tokens - PROBE_QUESTION,
            longer: &[],
            methods,
            index_seed: 0,
            step_seed: 0,
            fidelity: self.config.fidelity,
            solo: false,
        };
        let policy = Generation {
            tokenizer: &self.model.opened().tokenizer,
            max_new_tokens: PROBE_ANSWER,
            line_end: None,
            until: &[],
            sampling: Sampling::GREEDY,
            repeats: self.config.repeats,
            thoughts: None,
        };
        let never = AtomicBool::new(false);
        let result = ExampleRunner::new(self.model.decoder(), &never).run(request, &policy)?.unwrap_or_default();
        let (spent, runs) = (result.spent, result.runs);
        let c = self.model.decoder().config();
        let steps = runs.iter().map(|r| r.costs.steps).max().unwrap_or(0).max(1);
        Ok(Sample {
            tokens: tokens as f64,
            prefill: spent.prefill.as_secs_f64(),
            index: spent.index.as_secs_f64(),
            step: spent.steps.as_secs_f64() / steps as f64,
            index_bytes: runs.iter().filter_map(|r| r.costs.aux_bits).sum::<f64>() / 8.0
                * (tokens * c.kv_heads * c.layers) as f64,
        })
    }
}

/// The most lengths of a task at which an example is made.
const MOST_MADE: usize = 32;
/// The most methods that the probe runs.
const MOST_PROBED: usize = 64;

/// At most `most` of the values, evenly spaced from the first one on.
fn spread<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).map(|i| all[i * all.len() / count].clone()).collect()
}

/// The measurements of the probe at one length, in seconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    tokens: f64,
    prefill: f64,
    index: f64,
    step: f64,
    /// Bytes of all indexes.
    index_bytes: f64,
}

impl Sample {
    /// The sample for `share` times as many methods.
    fn of_all(self, share: f64) -> Self {
        Self { index: share * self.index, step: share * self.step, index_bytes: share * self.index_bytes, ..self }
    }

    /// The sample for another model, on which a multiplication and a number of a key take as long as on this one.
    fn on(self, from: &Dimensions, to: &Dimensions) -> Self {
        let tokens = self.tokens as usize;
        let ratio = |of: &dyn Fn(&Dimensions) -> f64| of(to) / of(from).max(1.0);
        let keys = ratio(&|dimensions| {
            let c = dimensions.config();
            (c.layers * c.kv_heads * c.head_dim) as f64
        });
        Self {
            prefill: self.prefill * ratio(&|dimensions| dimensions.prefill_products(tokens) as f64),
            index: self.index * keys,
            step: self.step * ratio(&|dimensions| dimensions.products(1, tokens) as f64),
            index_bytes: self.index_bytes * keys,
            ..self
        }
    }
}

/// The value at `tokens` on the line through both samples; if the line falls, the larger of their values.
fn along(samples: &[Sample; 2], tokens: f64, of: fn(&Sample) -> f64) -> f64 {
    let [short, long] = samples;
    let slope = (of(long) - of(short)) / (long.tokens - short.tokens).max(1.0);
    if slope <= 0.0 { of(short).max(of(long)) } else { (of(long) + slope * (tokens - long.tokens)).max(0.0) }
}

/// Estimates all examples of the sizes under one seed, with `readings` readings of each prompt. Prefill is scaled by the number of
/// `products` for a number of tokens, everything else follows the lines through the samples.
fn seconds(samples: &[Sample; 2], sizes: &[Sized], readings: usize, products: impl Fn(usize) -> f64) -> RunEstimate {
    let mut sum = RunEstimate::default();
    for size in sizes {
        let growth = products(size.longest()) / products(samples[1].tokens as usize);
        let examples = size.examples as f64;
        sum.prefill += examples * samples[1].prefill * growth * readings as f64;
        for &prefix in &size.prefixes {
            let steps = size.prompt - prefix + size.answer_tokens;
            sum.index += examples * along(samples, prefix as f64, |s| s.index);
            sum.steps += examples * steps as f64 * along(samples, prefix as f64, |s| s.step);
        }
    }
    sum
}

/// The seconds of the steps that are repeated to time methods alone. A step alone is assumed to take as long as one together.
fn solo_seconds(samples: &[Sample; 2], sizes: &[Sized]) -> f64 {
    let of_prefix = |prefix: &usize| along(samples, *prefix as f64, |s| s.step);
    let of_size = |size: &Sized| size.examples as f64 * size.prefixes.iter().map(of_prefix).sum::<f64>();
    ((solo::REPEATS + 1) * solo::STEPS) as f64 * sizes.iter().map(of_size).sum::<f64>()
}

/// Estimates a plan. The gain from several copies of a model on one GPU is not estimated.
///
/// # Errors
/// If the probe's model cannot be run.
pub fn estimate(planner: &Planner<'_>, plan: &RunPlan, probe: &Probe<'_>) -> Result<RunEstimate> {
    let (config, dimensions) = (planner.config, &planner.model.dimensions);
    let weights = dimensions.weight_bytes();
    if plan.cells.iter().all(|cell| cell.examples() == 0) {
        return Ok(RunEstimate { bytes: weights, ..RunEstimate::default() });
    }
    let sizes = planner.sizes(plan);
    let methods = probe.fitted(&config.methods);
    let samples = probe.samples(&methods)?.map(|sample| sample.on(&probe.model.opened().dimensions, dimensions));
    let products = |tokens| dimensions.prefill_products(tokens) as f64;
    let mut seconds = seconds(&samples, &sizes, 1 + planner.own_readings(), products);
    if config.latency == Latency::Solo {
        seconds.steps += solo_seconds(&samples, &sizes);
    }
    let copies = config.device.copies().map_or(1, |copies| copies.len());
    let gpus = (copies / config.device.copies_per_gpu()).max(1);
    let seconds = seconds.times(config.seeds.len() as f64 / gpus as f64);
    let longest = sizes.iter().map(Sized::longest).max().unwrap_or(0).max(plan.longest());
    let indexes = along(&samples, longest as f64, |s| s.index_bytes) as usize;
    let of_example = bytes_of_example(config, planner.model, longest);
    Ok(RunEstimate { bytes: weights.saturating_add(of_example).saturating_add(indexes), ..seconds })
}

impl Planner<'_> {
    /// How many times a prompt is read by a prefill mask; methods with the same mask share a reading. A reading is assumed to take as long
    /// as dense prefill.
    fn own_readings(&self) -> usize {
        let protocols = self.config.protocols.iter().filter(|p| **p == Protocol::Prefill).count();
        let methods = &self.config.methods;
        let is_first = |(i, m): &(usize, &Configured)| !methods[..*i].iter().any(|before| before.reads_as(m));
        protocols * methods.iter().enumerate().filter(|(_, m)| m.masks_prefill()).filter(is_first).count()
    }

    /// The sizes of cells that have examples, with their tasks' names and lengths. At most [`MOST_MADE`] cells are sampled.
    pub(super) fn sized_cells(&self, plan: &RunPlan) -> Vec<(String, usize, Sized)> {
        let name = |cell: &PlanCell| self.tasks[cell.place.task].name().to_owned();
        let sized = |cell: &PlanCell| Some((name(cell), cell.place.length, self.size(cell)?));
        // If there are very many cells, a sample is enough.
        spread(&plan.cells.iter().collect::<Vec<_>>(), MOST_MADE).into_iter().filter_map(sized).collect()
    }

    /// The sizes of cells that have examples. If a task has very many lengths, examples are made for some, and sizes at the other lengths
    /// are derived from those.
    fn sizes(&self, plan: &RunPlan) -> Vec<Sized> {
        let mut sizes = Vec::new();
        for of_task in plan.cells.chunk_by(|a, b| a.place.task == b.place.task) {
            let made = spread(&of_task.iter().collect::<Vec<_>>(), MOST_MADE);
            let made: Vec<(usize, Sized)> =
                made.into_iter().filter_map(|cell| Some((cell.place.length, self.size(cell)?))).collect();
            let of_cell = |cell: &PlanCell| {
                let length = cell.place.length;
                let (known, size) = made.iter().min_by_key(|(known, _)| known.abs_diff(length))?;
                Some(Sized { examples: cell.examples(), ..size.as_of(*known, length) })
            };
            sizes.extend(of_task.iter().filter_map(of_cell));
        }
        sizes
    }

    /// The first example of a cell; `None` if there is none or it cannot be made.
    fn first(&self, cell: &PlanCell) -> Option<ExampleInput> {
        let index = *cell.contexts.iter().next()?.first()?;
        self.material(cell.place, index, self.config.seeds[0]).ok()
    }

    /// The size of a cell's examples, measured on the first; `None` if there is none or it cannot be made.
    fn size(&self, cell: &PlanCell) -> Option<Sized> {
        let material = self.first(cell)?;
        let answer_tokens = match self.config.model.starts_with(RANDOM) {
            true => material.most_answer_tokens(),
            false => material.answer_tokens(&self.model.tokenizer)?,
        };
        let prefixes = self.config.protocols.iter().map(|p| material.prefix_tokens(*p)).collect();
        Some(Sized { examples: 0, prompt: material.prompt().len(), prefixes, answer_tokens })
    }
}

/// The size of a cell's examples, measured on the first one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sized {
    examples: usize,
    /// The number of tokens of the prompt.
    prompt: usize,
    /// The number of tokens of the prefix under each protocol.
    prefixes: Vec<usize>,
    /// The number of tokens that are generated or scored.
    answer_tokens: usize,
}

impl Sized {
    /// The size of the examples at another length. Question and answer stay the same.
    fn as_of(&self, known: usize, length: usize) -> Self {
        let grown = |tokens: usize| (tokens + length).saturating_sub(known);
        let prefixes = self.prefixes.iter().map(|tokens| grown(*tokens)).collect();
        Self { prompt: grown(self.prompt), prefixes, ..*self }
    }

    fn longest(&self) -> usize {
        self.prefixes.iter().copied().max().unwrap_or(0)
    }

    /// The number of tokens of the prefix under each protocol.
    pub(super) fn prefixes(&self) -> &[usize] {
        &self.prefixes
    }

    /// The number of tokens after a prefix, each of which takes a step.
    pub(super) fn steps_after(&self, prefix: usize) -> usize {
        self.prompt - prefix + self.answer_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::observer::{RunObserver, RunProgress, SkippedWork};
    use spattn_attention::methods::configure;
    use spattn_attention::{Policy, expand_grid};
    use spattn_model::OpenModel;
    use spattn_tasks::{TaskOptions, resolve};

    #[test]
    fn what_grows_is_carried_on_and_what_falls_stays() {
        let sample = |tokens, index, step| Sample { tokens, prefill: 1.0, index, step, index_bytes: 0.0 };
        let samples = [sample(100.0, 1.0, 3.0), sample(300.0, 2.0, 2.0)];
        assert_eq!(along(&samples, 700.0, |s| s.index), 4.0);
        assert_eq!(along(&samples, 700.0, |s| s.step), 3.0);
    }

    #[test]
    fn of_many_methods_some_are_probed_evenly() {
        assert_eq!(spread(&[1, 2, 3], 64), [1, 2, 3]);
        assert_eq!(spread(&(0..10).collect::<Vec<_>>(), 4), [0, 2, 5, 7]);
        assert_eq!(spread::<u8>(&[], 4), [0; 0]);
        let windows = (1..=130).map(|w| w.to_string()).collect::<Vec<_>>().join(",");
        let methods = expand_grid(&format!("streaming_llm:window={{{windows}}}")).unwrap();
        let methods: Vec<Configured> =
            methods.iter().map(|spec| configure(spec, &Policy::default()).unwrap()).collect();
        let probe = Probe::of_this_machine().unwrap();
        assert_eq!(probe.runnable(&methods).len(), MOST_PROBED);
        // A method that names a layer which the model lacks is not run: layers are 0 to 9.
        let beyond = expand_grid("topk:k=8,dense_layers=12").unwrap().remove(0);
        let beyond = configure(&beyond, &Policy::default()).unwrap();
        assert!(probe.runnable(std::slice::from_ref(&beyond)).is_empty());
        let samples = probe.samples(&[beyond]).unwrap();
        assert!(samples.iter().all(|sample| sample.prefill > 0.0 && sample.index_bytes == 0.0), "{samples:?}");
    }

    #[test]
    fn examples_protocols_and_seeds_add_up() {
        let sample = |tokens, seconds| Sample {
            tokens,
            prefill: seconds,
            index: seconds,
            step: seconds / 10.0,
            index_bytes: 0.0,
        };
        // Prefill takes one second for each 100 tokens, and a step a tenth of that.
        let samples = [sample(100.0, 1.0), sample(200.0, 2.0)];
        let sized = |examples, prompt, prefixes: &[usize], answer_tokens| Sized {
            examples,
            prompt,
            prefixes: prefixes.to_vec(),
            answer_tokens,
        };
        let sizes = [sized(3, 410, &[400, 300], 5), sized(2, 50, &[40], 1)];
        // Twice the length has four times the products.
        let sum = seconds(&samples, &sizes, 2, |tokens| (tokens * tokens) as f64);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a}, not {b}");
        close(sum.prefill, 3.0 * 2.0 * (4.0 * 2.0) + 2.0 * 2.0 * (0.04 * 2.0));
        close(sum.index, 3.0 * (4.0 + 3.0) + 2.0 * 0.4);
        close(sum.steps, 3.0 * (15.0 * 0.4 + 115.0 * 0.3) + 2.0 * (11.0 * 0.04));
        let seeds = RunEstimate { bytes: 7, ..sum }.times(3.0);
        close(seeds.seconds(), 3.0 * (sum.prefill + sum.index + sum.steps));
        for (all, one) in [(seeds.prefill, sum.prefill), (seeds.index, sum.index), (seeds.steps, sum.steps)] {
            close(all, 3.0 * one);
        }
        assert_eq!(seeds.bytes, 7, "one run at a time");
    }

    fn with_planner<R>(text: &str, use_it: impl FnOnce(&Planner<'_>) -> R) -> R {
        let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
        let source = ModelSource::parse(&config.model).unwrap();
        let model = OpenModel::open(&source, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        let (data, shard, is_elsewhere) = (None, Shard::WHOLE, false);
        use_it(&Planner { model: &model, config: &config, tasks: &tasks, data, shard, is_elsewhere })
    }

    struct Silent;

    impl RunObserver for Silent {
        fn progress(&mut self, _: RunProgress<'_>) {}

        fn failed(&mut self, failure: SkippedWork) -> Result<()> {
            Err(failure.error)
        }
    }

    #[test]
    fn what_is_run_is_sized_and_probed() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [400]\nsamples = 3\nmethods = ['topk:k=16', 'quest:sink=0,local=0']\n\
                    sparse_from = ['question', 'decode']";
        with_planner(text, |planner| {
            let plan = planner.plan(&mut Silent).unwrap();
            let size = planner.size(&plan.cells[0]).unwrap();
            let ExampleInput::Prompt(fitted) =
                planner.material(plan.cells[0].place, 0, planner.config.seeds[0]).unwrap()
            else {
                panic!("a prompt")
            };
            let prompt = &fitted.prompt.ids;
            assert_eq!(size.prompt, prompt.len());
            assert_eq!((size.prefixes.len(), size.longest(), size.prefixes[1]), (2, prompt.len(), prompt.len()));
            assert!(size.prefixes[0] < prompt.len() && size.prefixes[0] > prompt.len() / 2);
            // The tokens of the reference, and the one that ends the answer.
            let key = planner.model.tokenizer.encode_text(&fitted.example.references.join(", "), false).unwrap();
            assert_eq!(size.answer_tokens, key.len() + 1);

            let probe = Probe::of_this_machine().unwrap();
            let methods = &planner.config.methods;
            let [short, whole] = probe.samples(methods).unwrap();
            assert_eq!((short.tokens, whole.tokens), ((PROBE_TOKENS / 4) as f64, PROBE_TOKENS as f64));
            assert!(whole.prefill > 0.0 && whole.step > 0.0 && whole.index > 0.0);
            let decoder = probe.model.decoder();
            let c = decoder.config();
            // Only quest has an index: the least and the greatest key of each page of 16 tokens in the prefix, per token.
            let (prefix, d, bytes) = (PROBE_TOKENS - PROBE_QUESTION, c.head_dim, decoder.dtype().bytes());
            let per_token = (prefix.div_ceil(16) * 2 * d * bytes) as f64 / prefix as f64;
            let index_bytes = per_token * (PROBE_TOKENS * c.kv_heads * c.layers) as f64;
            assert!((whole.index_bytes - index_bytes).abs() < 1e-6 * index_bytes, "{}", whole.index_bytes);
            // The probe takes at least eight steps, those of the question.
            let start = std::time::Instant::now();
            let step = probe.sample(methods, PROBE_TOKENS).unwrap().step;
            assert!(0.0 < step && 8.0 * step <= start.elapsed().as_secs_f64());

            let found = estimate(planner, &plan, &probe).unwrap();
            let weights = planner.model.dimensions.weight_bytes();
            let known = weights + bytes_of_example(planner.config, planner.model, plan.longest());
            assert!(found.bytes > known && ((found.bytes - known) as f64) < 2.0 * whole.index_bytes + 1.0);
            assert!(found.prefill > 0.0 && found.index > 0.0 && found.steps > 0.0);
            let nothing = RunEstimate { bytes: weights, ..RunEstimate::default() };
            assert_eq!(estimate(planner, &RunPlan::default(), &probe).unwrap(), nothing);
            assert_eq!(planner.own_readings(), 0);

            // The model of the plan reads texts as long as the plan's.
            let planned = Probe::of_planned(planner.model, planner.config, plan.longest()).unwrap();
            let labels = |methods: &[Configured]| methods.iter().map(Configured::label).collect::<Vec<_>>();
            assert_eq!(labels(&planned.fitted(methods)), labels(methods));
            let [short, whole] = planned.samples(methods).unwrap();
            assert_eq!((short.tokens, whole.tokens), ((plan.longest() / 4) as f64, plan.longest() as f64));
            let found = estimate(planner, &plan, &planned).unwrap();
            assert!(found.bytes > known && found.prefill > 0.0 && found.index > 0.0 && found.steps > 0.0);
            let far = Probe::of_planned(planner.model, planner.config, 1_000_000).unwrap();
            assert_eq!((far.text.len(), far.gpu()), (GPU_PROBE_TOKENS, None));
        });
    }

    #[test]
    fn answers_of_random_weights_are_as_long_as_they_may_be() {
        let of = |model: &str| {
            format!("model = '{model}'\ntasks = ['ruler/niah_single_1', 'ruler/vt']\nlengths = [1000]\nsamples = 1")
        };
        let answers = |planner: &Planner<'_>| {
            let plan = planner.plan(&mut Silent).unwrap();
            let [of_needle, of_vt] = [0, 1].map(|cell| planner.size(&plan.cells[cell]).unwrap().answer_tokens);
            (of_needle, of_vt)
        };
        // RULER's limits of both tasks. The references are far shorter.
        with_planner(&of("random:llama-3.2-1b"), |planner| assert_eq!(answers(planner), (128, 30)));
        with_planner(&of("builtin"), |planner| {
            let (of_needle, of_vt) = answers(planner);
            assert!(of_needle < 20 && of_vt < 30, "{of_needle} {of_vt}");
        });
    }

    #[test]
    fn of_very_many_lengths_some_examples_are_made() {
        let lengths: Vec<String> = (0..200).map(|i| (400 + 3 * i).to_string()).collect();
        let text = format!("tasks = ['ruler/niah_single_1']\nlengths = [{}]\nsamples = 2", lengths.join(", "));
        with_planner(&text, |planner| {
            let plan = planner.plan(&mut Silent).unwrap();
            let sizes = planner.sizes(&plan);
            assert_eq!(sizes.len(), 200);
            for (cell, size) in plan.cells.iter().zip(&sizes) {
                let own = planner.size(cell).unwrap();
                // Prompts grow by whole repetitions of their noise.
                let is_near = |a: usize, b: usize| a.abs_diff(b) <= 64;
                assert!(is_near(own.prompt, size.prompt) && is_near(own.longest(), size.longest()), "{own:?} {size:?}");
                assert_eq!(size.examples, 2);
            }
            let made = spread(&sizes, MOST_MADE);
            assert_eq!(made.len(), MOST_MADE);
        });
        // If there are few lengths, examples are made for all of them.
        with_planner("tasks = ['ruler/niah_single_1']\nlengths = [400, 500, 900]\nsamples = 1", |planner| {
            let plan = planner.plan(&mut Silent).unwrap();
            let own: Vec<Sized> =
                plan.cells.iter().map(|c| Sized { examples: 1, ..planner.size(c).unwrap() }).collect();
            assert_eq!(planner.sizes(&plan), own);
        });
    }

    #[test]
    fn a_larger_model_takes_as_much_more_as_it_multiplies_and_keeps() {
        let of = |shape: &str| {
            let source = ModelSource::parse(&format!("random:{shape}")).unwrap();
            OpenModel::open_without_weights(&source, None, TokenizerOptions::default()).unwrap()
        };
        let (small, large) = (of("llama-3.2-1b"), of("llama-3.1-8b"));
        let (from, to) = (&small.dimensions, &large.dimensions);
        let sample = Sample { tokens: 1000.0, prefill: 1.0, index: 2.0, step: 3.0, index_bytes: 4.0 };
        assert_eq!(sample.on(from, from).index_bytes, 4.0);
        let scaled = sample.on(from, to);
        // 32 layers instead of 16, and heads of 128 instead of 64; both have 8 KV heads.
        assert_eq!((scaled.index, scaled.index_bytes), (8.0, 16.0));
        // Seven billion weights in layers instead of one; attention adds some.
        assert!((5.0..9.0).contains(&scaled.prefill) && (15.0..27.0).contains(&scaled.step), "{scaled:?}");
    }

    #[test]
    fn prompts_are_read_once_for_all_methods_that_read_alike() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [400]\nsamples = 1\nsparse_from = ['prefill']\n\
                    methods = ['streaming_llm', 'streaming_llm:window=32', 'streaming_llm>full']";
        // Two windows, one of them used by two methods; `full` reads densely.
        with_planner(text, |planner| assert_eq!(planner.own_readings(), 2));
    }
}
