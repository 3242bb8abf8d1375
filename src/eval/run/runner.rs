//! The loop over examples: everything that is not in the store yet is generated, scored and recorded.
//!
//! Examples that begin alike, and the protocols of an example, run in the lexical order of their prefixes, so that common tokens are read
//! once, in whatever order they were requested.

use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow};

use super::generate::{GenerationRequest, GenerationResult, run_example, run_from_first_token};
use super::method_result::MethodResult;
use super::prefix_reuse::ReusablePrefix;
use super::record_of::{SharedReading, comparable, record_key, scored_record};
use super::score_text::{self, TextResult, run_in_parallel, run_passage};
use super::shared_prefill;
use super::stopwatch::PhaseTimes;
use crate::eval::config::protocol::Protocol;
use crate::eval::config::run_config::Variant;
use crate::eval::examples::example_input::{self, ExampleInput};
use crate::eval::examples::observer::{Progress, RunObserver, SkippedWork};
use crate::eval::examples::question_digest;
use crate::eval::examples::truncate::TruncatedExample;
use crate::eval::plan::given_prompts::passage_tokens;
use crate::eval::plan::manifest::{cpu_name, identity, without_content};
use crate::eval::plan::planner::{Cell, Place, Plan, Planner};
use crate::eval::plan::work::prefill_work;
use crate::eval::records::interning::{Interned, InternedStr};
use crate::eval::records::prompts;
use crate::eval::records::record::Record;
use crate::eval::records::store::Store;
use crate::eval::records::timing::{Latency, TimingConditions};
use spattn_attention::Configured;
use spattn_kernels::isa_name;
use spattn_model::Model;
use spattn_tasks::likelihood::{Measure, Passage, Scoring};
use spattn_tasks::metrics::Metric;
use spattn_tasks::seed::example_seed;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everything is recorded, or known to have failed.
    Complete,
    /// It was told to stop; the records so far are stored.
    Interrupted,
}

/// A matrix to be run, with the model's weights in memory.
pub struct Runner<'a> {
    /// The planner of the same model.
    pub planner: Planner<'a>,
    /// The model.
    pub model: &'a Model,
}

impl<'a> Deref for Runner<'a> {
    type Target = Planner<'a>;

    fn deref(&self) -> &Planner<'a> {
        &self.planner
    }
}

/// The part of a plan that has no records yet.
#[derive(Debug, Clone)]
pub struct RemainingWork {
    /// The contexts with missing records.
    pub plan: Plan,
    /// The number of missing records.
    pub records: usize,
}

/// An example under a variant, with the methods whose records are missing.
#[derive(Clone)]
struct PendingExample {
    place: Place,
    index: usize,
    variant: Variant,
    methods: Vec<Configured>,
}

/// The input of an example, and the digest of its question.
type Made = (Rc<ExampleInput>, Rc<str>);

/// An example that is ready to be run.
#[derive(Clone)]
struct PreparedExample {
    wanted: PendingExample,
    material: Rc<ExampleInput>,
    /// Digest of the question.
    digest: Rc<str>,
    prefix_tokens: usize,
    /// Lengths of the next items' prefixes that begin with this one, each continuing the one before.
    longer: Vec<usize>,
}

impl PreparedExample {
    fn prefix(&self) -> &[u32] {
        &self.material.prompt()[..self.prefix_tokens]
    }
}

/// Sets for each item which longer prefixes the next ones have, in the order of the run.
fn link_nested_prefixes(items: &mut [PreparedExample]) {
    for at in (1..items.len()).rev() {
        let (before, next) = (&items[at - 1], &items[at]);
        if next.prefix().starts_with(before.prefix()) {
            let own = Some(next.prefix_tokens).filter(|tokens| *tokens > before.prefix_tokens);
            let longer = own.into_iter().chain(next.longer.iter().copied()).collect();
            items[at - 1].longer = longer;
        }
    }
}

/// State that passes from one example to the next.
#[derive(Default)]
struct RunnerState {
    held: Option<ReusablePrefix>,
    spent: PhaseTimes,
}

impl Runner<'_> {
    /// Runs what is missing from `store` until all is done or `stop` is raised, and reports to `watch` after each example. Returns how it
    /// ended and how the time was spent.
    ///
    /// # Errors
    /// If a record cannot be written, or with the error that `watch` returns for a failure; earlier records stay.
    pub fn run(
        &self,
        mut plan: Plan,
        store: &mut Store,
        stop: &AtomicBool,
        watch: &mut dyn RunObserver,
    ) -> Result<(End, PhaseTimes)> {
        let variants = self.config.variants();
        let cells = std::mem::take(&mut plan.cells);
        let examples = |cell: &Cell| cell.examples().saturating_mul(variants.len());
        let work_of = |cell: &Cell| self.work(cell.place.length).saturating_mul(examples(cell) as u64);
        let total = cells.iter().map(examples).fold(0, usize::saturating_add);
        let work = cells.iter().map(work_of).fold(0, u64::saturating_add);
        let (mut done, mut work_done, mut work_found) = (0, 0, 0);
        let mut carried = RunnerState::default();
        for cell in &cells {
            let mut left = examples(cell);
            let mut tell = |left: usize, records: &[Record], watch: &mut dyn RunObserver| {
                let (of_example, ends_cell) = (self.work(cell.place.length), left == 0);
                (done, work_done) = (done + 1, work_done + of_example);
                work_found += if records.is_empty() { of_example } else { 0 };
                let (task, length) = (self.tasks[cell.place.task].name(), cell.place.length);
                watch.progress(Progress { done, total, work_done, work_found, work, task, length, ends_cell, records });
            };
            for context in cell.contexts.iter() {
                let wanted = self.wanted(&plan, cell.place, &context, |key| store.contains(key));
                let items = self.items(wanted, &mut plan, watch)?;
                // Examples that are recorded already or cannot be made.
                for _ in items.len()..context.len() * variants.len() {
                    left -= 1;
                    tell(left, &[], watch);
                }
                for mut item in items {
                    if stop.load(Ordering::Relaxed) {
                        return Ok((End::Interrupted, carried.spent));
                    }
                    item.wanted.methods.retain(|m| plan.has(item.wanted.place, item.wanted.variant, m));
                    let Some(records) = self.run_item(&item, &mut carried, &mut plan, stop, watch)? else {
                        return Ok((End::Interrupted, carried.spent));
                    };
                    // The prompt comes first, so that no record is there without it.
                    self.keep_prompt(&item, &records, store.dir())?;
                    for record in &records {
                        store.append(record)?;
                    }
                    left -= 1;
                    tell(left, &records, watch);
                }
            }
        }
        Ok((End::Complete, carried.spent))
    }

    /// Stores the prompt of an example, if prompts are to be kept.
    fn keep_prompt(&self, item: &PreparedExample, records: &[Record], dir: &Path) -> Result<()> {
        let Some(record) = records.first().filter(|_| self.config.keep_prompts) else { return Ok(()) };
        let name = prompts::file_name(&record.model, &record.task, record.length, record.seed, record.sample);
        prompts::keep(dir, &name, &self.model.tokenizer.spell(item.material.prompt())?)
    }

    /// The part of a plan that has no records among `known`.
    pub fn remaining(&self, plan: &Plan, known: &[Record]) -> RemainingWork {
        let keys: HashSet<&str> = known.iter().map(|record| record.key.as_str()).collect();
        let recorded = known.iter().map(|record| record.sample + 1).max().unwrap_or(0);
        let (mut left, mut records) = (plan.clone(), 0usize);
        for cell in &mut left.cells {
            let place = cell.place;
            let others = cell.contexts.retain(recorded, |context| {
                let wanted = self.wanted(plan, place, context, |key| keys.contains(key));
                records += wanted.iter().map(|w| w.methods.len()).sum::<usize>();
                !wanted.is_empty()
            });
            records = records.saturating_add(others.saturating_mul(self.records_of_example(plan, place)));
        }
        RemainingWork { plan: left, records }
    }

    /// Work of an example of a cell.
    fn work(&self, length: usize) -> u64 {
        prefill_work(&self.model.dimensions, length)
    }

    /// The examples of a context under all variants, with the methods whose records are missing.
    fn wanted(&self, plan: &Plan, place: Place, context: &[usize], has: impl Fn(&str) -> bool) -> Vec<PendingExample> {
        let mut wanted = Vec::new();
        for variant in self.config.variants() {
            let identity = identity(self.config, variant, self.model, self.data);
            let [identity, before] = [identity.to_string(), without_content(&identity).to_string()];
            for &index in context {
                let task = self.tasks[place.task].name();
                let key = |identity: &str, m: &Configured| record_key(identity, task, place.length, index, m);
                // Old folders have records whose keys were made without the model's configuration.
                let is_there = |m: &Configured| has(&key(&identity, m)) || has(&key(&before, m));
                let is_missing = |m: &&Configured| plan.has(place, variant, m) && !is_there(m);
                let methods: Vec<Configured> = self.config.methods.iter().filter(is_missing).cloned().collect();
                if !methods.is_empty() {
                    wanted.push(PendingExample { place, index, variant, methods });
                }
            }
        }
        wanted
    }

    /// Makes the inputs of a context's examples, once for all protocols, and sorts examples that begin alike next to each other. If a
    /// context cannot be made, the later contexts of its seed are left out too.
    fn items(
        &self,
        wanted: Vec<PendingExample>,
        plan: &mut Plan,
        watch: &mut dyn RunObserver,
    ) -> Result<Vec<PreparedExample>> {
        let mut made: BTreeMap<(u64, usize), Option<Made>> = BTreeMap::new();
        let mut items = Vec::new();
        for wanted in wanted {
            let PendingExample { place, index, variant: Variant { seed, .. }, .. } = wanted;
            let known = made.get(&(seed, index)).cloned();
            let material = match known {
                Some(material) => material,
                None => {
                    let material = match self.material(place, index, seed) {
                        Ok(material) => {
                            let digest = question_digest::digest(&material);
                            Some((Rc::new(material), digest.into()))
                        }
                        Err(error) => {
                            let of_seed: Vec<_> =
                                self.config.variants().into_iter().filter(|v| v.seed == seed).collect();
                            plan.leave_out(place, &of_seed, &self.config.methods);
                            watch.failed(SkippedWork { what: self.name_with_seed(place, seed), error })?;
                            None
                        }
                    };
                    made.insert((seed, index), material.clone());
                    material
                }
            };
            if let Some((material, digest)) = material {
                let prefix_tokens = material.prefix_tokens(wanted.variant.protocol);
                items.push(PreparedExample { wanted, material, digest, prefix_tokens, longer: Vec::new() });
            }
        }
        items.sort_by(|a, b| a.prefix().cmp(b.prefix()).then(a.wanted.variant.seed.cmp(&b.wanted.variant.seed)));
        link_nested_prefixes(&mut items);
        Ok(items)
    }

    fn name_with_seed(&self, place: Place, seed: u64) -> String {
        let seed = if self.config.seeds.len() > 1 { format!(", seed {seed}") } else { String::new() };
        self.name_of(place) + &seed
    }

    /// The records of an example; `None` if `stop` was raised.
    ///
    /// If methods fail together, they are run one by one. Those that fail again are left out of the rest of their cell, each with its own
    /// error; if none fails again, the first error is reported. If their shared prompt cannot be read, no method is at fault: all are left
    /// out together, and the prompt is not read again.
    fn run_item(
        &self,
        item: &PreparedExample,
        carried: &mut RunnerState,
        plan: &mut Plan,
        stop: &AtomicBool,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<Vec<Record>>> {
        let PendingExample { place, variant, methods, .. } = &item.wanted;
        if methods.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let error = match self.attempt(item, methods, carried, stop) {
            Ok(records) => return Ok(records),
            Err(error) => error,
        };
        let what = format!("{}, {}", self.name_with_seed(*place, variant.seed), variant.protocol);
        if shared_prefill::is_of_no_method(&error) {
            let (unread, others) = sharing(variant.protocol, methods);
            plan.leave_out(*place, &[*variant], &unread);
            watch.failed(SkippedWork { what, error })?;
            let item =
                PreparedExample { wanted: PendingExample { methods: others, ..item.wanted.clone() }, ..item.clone() };
            return self.run_item(&item, carried, plan, stop, watch);
        }
        let first = SkippedWork { what, error };
        match methods.as_slice() {
            [alone] => self.fail(item, alone, first.error, plan, watch).map(|()| Some(Vec::new())),
            _ => self.one_by_one(item, first, carried, plan, stop, watch),
        }
    }

    /// The records of an example whose methods failed together; `None` if `stop` was raised.
    fn one_by_one(
        &self,
        item: &PreparedExample,
        first: SkippedWork,
        carried: &mut RunnerState,
        plan: &mut Plan,
        stop: &AtomicBool,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<Vec<Record>>> {
        let (mut all, mut is_told) = (Vec::new(), false);
        for method in &item.wanted.methods {
            match self.attempt(item, std::slice::from_ref(method), carried, stop) {
                Ok(Some(records)) => all.extend(records),
                Ok(None) => return Ok(None),
                Err(error) => {
                    is_told |= error.root_cause().to_string() == first.error.root_cause().to_string();
                    self.fail(item, method, error, plan, watch)?;
                }
            }
        }
        if !is_told {
            watch.mended(&first);
        }
        Ok(Some(all))
    }

    /// Leaves a method out of the rest of its cell.
    fn fail(
        &self,
        item: &PreparedExample,
        method: &Configured,
        error: anyhow::Error,
        plan: &mut Plan,
        watch: &mut dyn RunObserver,
    ) -> Result<()> {
        let PendingExample { place, variant, .. } = &item.wanted;
        let cell = self.name_with_seed(*place, variant.seed);
        plan.leave_out(*place, &[*variant], std::slice::from_ref(method));
        watch.failed(SkippedWork { what: format!("{cell}, {}, {}", variant.protocol, method.label()), error })
    }

    /// The records of an example under some methods, or the error.
    fn attempt(
        &self,
        item: &PreparedExample,
        methods: &[Configured],
        carried: &mut RunnerState,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Record>>> {
        // Nothing that a panicking method leaves incomplete is reused: the kept prefix is moved out while an example runs.
        let run = AssertUnwindSafe(|| match &*item.material {
            ExampleInput::Prompt(fitted) => self.generated(item, fitted, methods, carried, stop),
            ExampleInput::Passage(passage) => self.scored(item, passage, methods, carried, stop),
        });
        let records = catch_unwind(run).unwrap_or_else(|panic| Err(shared_prefill::fault(&*panic)));
        let records = records.and_then(|records| {
            let broken = records.iter().flatten().find_map(|record| record.check().err());
            broken.map_or(Ok(records), |why| Err(anyhow!("{why}: nothing can be said of it")))
        });
        records.with_context(|| self.example_name(item.wanted.place, item.wanted.index))
    }

    /// The start of error messages about an example.
    fn example_name(&self, place: Place, index: usize) -> String {
        let task = &self.tasks[place.task];
        match task.is_sized() {
            true => format!("{} at {}, example {index}", task.name(), place.length),
            false => format!("{}, example {index}", task.name()),
        }
    }

    /// The input of an example.
    pub(crate) fn material(&self, place: Place, index: usize, seed: u64) -> Result<ExampleInput> {
        let task = &self.tasks[place.task];
        let make = || example_input::make(task.as_ref(), place.length, index, seed, self.model, self.most_tokens());
        let checked = |material| self.check_fits(task.as_ref(), &material).map(|()| material);
        make().and_then(|material| Ok(checked(material)?)).with_context(|| self.example_name(place, index))
    }

    fn generated(
        &self,
        item: &PreparedExample,
        fitted: &TruncatedExample,
        methods: &[Configured],
        carried: &mut RunnerState,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Record>>> {
        let PendingExample { place, index, variant, .. } = item.wanted;
        let TruncatedExample { example, prompt, .. } = fitted;
        let task = &self.tasks[place.task];
        self.check_positions(methods, prompt.ids.len() + example.max_new_tokens)?;
        let request = GenerationRequest {
            prompt: &prompt.ids,
            prefix_tokens: item.prefix_tokens,
            longer: &item.longer,
            methods,
            max_new_tokens: example.max_new_tokens,
            line_end: if example.rules.ends_at_line { self.line_end()? } else { None },
            until: example.rules.until,
            seed: example_seed(variant.seed, task.name(), place.length, task.context_of(index)),
            step_seed: example_seed(variant.seed, task.name(), place.length, index),
            fidelity: self.config.fidelity,
            solo: self.config.latency == Latency::Solo,
        };
        let run = match variant.protocol {
            Protocol::Prefill => run_from_first_token,
            _ => run_example,
        };
        let Some(outcome) = run(self.model, request, &mut carried.held, stop)? else { return Ok(None) };
        carried.spent += outcome.spent;
        self.score(item, fitted, methods, outcome).map(Some)
    }

    /// The token that ends a line: the last token of a line break.
    fn line_end(&self) -> Result<Option<u32>> {
        Ok(self.model.tokenizer.encode_text("\n", false)?.last().copied())
    }

    fn score(
        &self,
        item: &PreparedExample,
        fitted: &TruncatedExample,
        methods: &[Configured],
        outcome: GenerationResult,
    ) -> Result<Vec<Record>> {
        let TruncatedExample { example, prompt, cut_tokens } = fitted;
        let identity = self.identity(&item.wanted);
        let shared =
            SharedReading { time: outcome.prefill, reused: outcome.reused, reused_tokens: outcome.reused_tokens };
        let record = |(method, run): (&Configured, MethodResult)| -> Result<Record> {
            let generated = self.model.tokenizer.decode(&run.tokens)?;
            let prediction = example.rules.ended(&generated).to_owned();
            let score_by = |m: &Metric| (m.name().to_owned(), example.score_by(*m, &prediction));
            Ok(Record {
                task: example.task.as_str().into(),
                length: example.length,
                sample: example.index,
                source: example.source.as_str().into(),
                score: example.score(&prediction),
                other_scores: example.also.iter().map(score_by).collect::<BTreeMap<_, _>>(),
                depth: example.depth,
                question: question_digest::elide_middle(&example.question).into(),
                prediction: prediction.into(),
                references: example.references.clone().into(),
                all_classes: example.all_classes.clone().into(),
                metric: Some(example.metric),
                first_line: example.rules.first_line,
                cut_tokens: *cut_tokens,
                max_new_tokens: example.max_new_tokens,
                prompt_tokens: prompt.ids.len(),
                prefix_tokens: item.prefix_tokens,
                bos_tokens: self.model.tokenizer.leading_bos(&prompt.ids),
                ..self.cost_record(&identity, item, method, run, shared)
            })
        };
        methods.iter().zip(outcome.runs).map(record).collect()
    }

    /// The records of a passage.
    fn scored(
        &self,
        item: &PreparedExample,
        passage: &Passage,
        methods: &[Configured],
        carried: &mut RunnerState,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Record>>> {
        let PendingExample { place, index, variant, .. } = item.wanted;
        self.check_positions(methods, passage_tokens(passage))?;
        let continuations: Vec<score_text::TextToScore> =
            passage.continuations.iter().map(score_text::TextToScore::from).collect();
        let request = score_text::ScoringRequest {
            prompt: &passage.prompt,
            prefix_tokens: item.prefix_tokens,
            longer: &item.longer,
            continuations: &continuations,
            methods,
            seed: example_seed(variant.seed, self.tasks[place.task].name(), place.length, index),
            fidelity: self.config.fidelity,
            compare: passage.scoring == Scoring::Perplexity,
            solo: self.config.latency == Latency::Solo,
        };
        let outcome = match variant.protocol {
            Protocol::Prefill => run_in_parallel(&self.model.decoder, request, stop),
            _ => run_passage(&self.model.decoder, request, &mut carried.held, stop),
        }?;
        let Some(outcome) = outcome else { return Ok(None) };
        carried.spent += outcome.spent;
        let identity = self.identity(&item.wanted);
        let shared =
            SharedReading { time: outcome.prefill, reused: outcome.reused, reused_tokens: outcome.reused_tokens };
        let record = |(method, scored): (&Configured, TextResult)| Record {
            task: passage.task.as_str().into(),
            length: passage.length,
            sample: passage.index,
            source: passage.source.as_str().into(),
            measure: passage.scoring.measure(),
            prompt_tokens: passage.prompt.len(),
            prefix_tokens: request.prefix_tokens,
            bos_tokens: self.model.tokenizer.leading_bos(&passage.prompt),
            ..scored_record(passage, &scored.sums, self.cost_record(&identity, item, method, scored.run, shared))
        };
        Ok(Some(methods.iter().zip(outcome.runs).map(record).collect()))
    }

    fn identity(&self, wanted: &PendingExample) -> String {
        identity(self.config, wanted.variant, self.model, self.data).to_string()
    }

    /// A record with place, method and cost; the other fields are empty.
    fn cost_record(
        &self,
        identity: &str,
        item: &PreparedExample,
        method: &Configured,
        run: MethodResult,
        shared: SharedReading,
    ) -> Record {
        let PendingExample { place, index, variant, .. } = item.wanted;
        // A method that read the prompt by itself reused nothing.
        let reading = run.prefill.map_or(shared, |time| SharedReading { time, ..SharedReading::default() });
        let task = self.tasks[place.task].name();
        let is_solo = self.config.latency == Latency::Solo;
        let settings = method.settings.iter().map(|s| (s.key.to_owned(), s.value.clone()));
        let example_sha256 = Interned::from(item.digest.to_string());
        Record {
            key: record_key(identity, task, place.length, index, method),
            model: self.model.id.as_str().into(),
            task: task.into(),
            length: place.length,
            sample: index,
            seed: variant.seed,
            context: Some(self.tasks[place.task].context_of(index)),
            example_sha256: Some(example_sha256),
            method: method.name.as_str().into(),
            revision: method.revision,
            params: method.params.as_str().into(),
            settings: settings.collect::<BTreeMap<_, _>>().into(),
            protocol: variant.protocol.to_string().into(),
            source: InternedStr::default(),
            question: InternedStr::default(),
            prediction: InternedStr::default(),
            references: Interned::default(),
            all_classes: Interned::default(),
            score: 0.0,
            measure: Measure::Score,
            other_scores: BTreeMap::new(),
            depth: None,
            metric: None,
            first_line: false,
            cut_tokens: None,
            prompt_tokens: 0,
            prefix_tokens: 0,
            new_tokens: run.tokens.len(),
            max_new_tokens: 0,
            stopped: run.stopped,
            bos_tokens: None,
            density: run.density,
            density_sparse_layers: run.density_sparse_layers,
            comparable: Some(comparable(&run, variant, method)),
            cost1: run.cost1,
            cost2: run.cost2,
            aux_bits: run.aux_bits,
            kv_bytes_per_token: run.bytes.map(|bytes| bytes.read),
            shared_bytes_per_token: run.bytes.map(|bytes| bytes.shared),
            select_bytes_per_token: run.bytes.map(|bytes| bytes.select),
            free_share: Some(run.free_share),
            kv_bytes_held: Some(run.kv_bytes_held),
            kv_tokens: Some(run.kv_tokens),
            prefill_s: reading.time.as_secs_f64(),
            prefill_reused_s: reading.reused.as_secs_f64(),
            reused_tokens: reading.reused_tokens,
            index_s: run.index.whole.as_secs_f64(),
            index_reused_s: run.index.reused.as_secs_f64(),
            conditions: Some(Interned::from(TimingConditions {
                // Steps of a method alone are not compared with exact attention.
                fidelity: self.config.fidelity && !is_solo,
                together: if is_solo { 1 } else { run.together },
                latency: Some(self.config.latency),
                threads: rayon::current_num_threads(),
                simd: isa_name().to_owned(),
                cpu: cpu_name(),
                gpu: self.model.decoder.gpu().map(str::to_owned),
                select_on: self.model.decoder.gpu().map(|_| run.select_on.to_owned()),
            })),
            decode_s: run.parts.map_or(run.decode.as_secs_f64(), |parts| parts.steps()),
            select_s: run.parts.map(|parts| parts.select),
            attend_s: run.parts.map(|parts| parts.attend),
            weights_s: run.parts.map(|parts| parts.weights),
            solo: run.solo,
            steps: run.steps,
            solved: run.solved,
            density_by_layer: run.density_by_layer,
            density_spread: run.density_spread,
            fidelity: run.fidelity.map(Box::new),
            likelihood: None,
            choice: None,
        }
    }
}

/// Methods that share a reading of the prompt, and the others. When sparse from the first token, methods with a prefill mask read by
/// themselves. If there are only such methods, all are of the first kind.
fn sharing(protocol: Protocol, methods: &[Configured]) -> (Vec<Configured>, Vec<Configured>) {
    let reads_alone = |m: &Configured| protocol == Protocol::Prefill && m.masks_prefill();
    let (others, dense): (Vec<Configured>, Vec<Configured>) = methods.iter().cloned().partition(reads_alone);
    if dense.is_empty() { (others, dense) } else { (dense, others) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::eval::config::run_config::RunConfig;
    use crate::eval::config::settings::Settings;
    use crate::eval::examples::truncate::fit;
    use crate::eval::plan::contexts::Shard;
    use crate::eval::records::store::{OpenMode, load_records};
    use spattn_attention::cost::Cost;
    use spattn_attention::{HeadPrefix, Method, SelectedTokens, Selection, Step};
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;
    use spattn_tasks::likelihood::{Continuation, LikelihoodTask, TextEncoder};
    use spattn_tasks::{Cut, Example, PromptCounter, PromptRules, Task, TaskOptions, resolve};

    /// A method that fails in its first step.
    struct Faulty;

    impl Method for Faulty {
        type Index = ();
        type State = ();

        fn build(&self, _: &HeadPrefix<'_>) {}

        fn index_bytes(&self, (): &()) -> usize {
            0
        }

        fn start(&self, (): &()) {}

        fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Selection {
            panic!("no selection")
        }
    }

    /// A method that fails the first time only.
    struct Shy(AtomicBool);

    impl Method for Shy {
        type Index = ();
        type State = ();

        fn build(&self, _: &HeadPrefix<'_>) {}

        fn index_bytes(&self, (): &()) -> usize {
            0
        }

        fn start(&self, (): &()) {}

        fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Selection {
            assert!(self.0.swap(true, Ordering::Relaxed), "not in company");
            Selection::Shared(SelectedTokens::softmax(Vec::new()))
        }
    }

    #[derive(Default)]
    struct Seen {
        failures: Vec<SkippedWork>,
        mended: Vec<String>,
        examples: usize,
        stop_at_failure: bool,
    }

    impl RunObserver for Seen {
        fn progress(&mut self, progress: Progress<'_>) {
            self.examples = progress.done;
        }

        fn failed(&mut self, failure: SkippedWork) -> Result<()> {
            if self.stop_at_failure {
                return Err(failure.error);
            }
            self.failures.push(failure);
            Ok(())
        }

        fn mended(&mut self, failure: &SkippedWork) {
            self.mended.push(format!("{}: {:#}", failure.what, failure.error));
        }
    }

    /// Runs two examples with `full`, a given method, and `quest`.
    fn run_with<M: Method + 'static>(method: M, seen: &mut Seen) -> (Result<(End, PhaseTimes)>, Vec<Record>) {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 2\nmethods = ['topk:k=16', 'quest']";
        let mut config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        config.methods[1] =
            Configured { name: "given".to_owned(), method: Arc::new(method), ..config.methods[1].clone() };
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        let planner = Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        };
        let runner = Runner { planner, model: &model };
        let dir = tempfile::tempdir().unwrap();
        let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest).unwrap();
        let plan = runner.plan(seen).unwrap();
        let ended = runner.run(plan, &mut store, &AtomicBool::new(false), seen);
        (ended, load_records(dir.path()).unwrap().records)
    }

    #[test]
    fn a_method_with_a_fault_takes_no_other_with_it() {
        let mut seen = Seen::default();
        let (ended, records) = run_with(Faulty, &mut seen);
        assert_eq!(ended.unwrap().0, End::Complete);
        assert_eq!(seen.examples, 2);
        let methods: Vec<&str> = records.iter().map(|r| r.method.as_str()).collect();
        assert_eq!(methods, ["full", "quest", "full", "quest"]);
        assert_eq!(seen.failures.len(), 1, "it is not tried again: {:?}", seen.failures);
        assert_eq!(seen.failures[0].what, "builtin, ruler/niah_single_1 at 512, question, given:k=16");
        assert!(format!("{:#}", seen.failures[0].error).contains("a fault of the program: no selection"));
        assert_eq!(seen.mended, [""; 0], "the first error is that one");
    }

    #[test]
    fn what_fails_only_together_is_run_one_by_one_and_told_of() {
        let mut seen = Seen::default();
        let (ended, records) = run_with(Shy(AtomicBool::new(false)), &mut seen);
        assert_eq!(ended.unwrap().0, End::Complete);
        let methods: Vec<&str> = records.iter().map(|r| r.method.as_str()).collect();
        assert_eq!(methods, ["full", "given", "quest", "full", "given", "quest"]);
        assert!(seen.failures.is_empty(), "{:?}", seen.failures);
        let [mended] = &seen.mended[..] else { panic!("{:?}", seen.mended) };
        assert!(
            mended.starts_with("builtin, ruler/niah_single_1 at 512, question: ") && mended.contains("not in company")
        );
    }

    /// A copy of the built-in model whose activations are infinite from the third layer on.
    fn broken_model() -> tempfile::TempDir {
        const LARGEST: [u8; 2] = 0x7f7f_u16.to_le_bytes();
        let dir = tempfile::tempdir().unwrap();
        let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
        for file in std::fs::read_dir(builtin).unwrap().flatten().filter(|file| file.path().is_file()) {
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        let path = dir.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let entries: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
        let [from, to] = [0, 1].map(|end| {
            let offset = &entries["model.layers.2.input_layernorm.weight"]["data_offsets"][end];
            header + offset.as_u64().unwrap() as usize
        });
        bytes[from..to].chunks_exact_mut(2).for_each(|number| number.copy_from_slice(&LARGEST));
        std::fs::write(&path, bytes).unwrap();
        dir
    }

    /// The failures of a run with the broken model, each with its reason.
    fn failures_of_broken(settings: &str) -> Vec<(String, String)> {
        let dir = broken_model();
        let config = RunConfig::resolve_single(Settings::parse(settings, "test").unwrap()).unwrap();
        let source = ModelSource::parse(dir.path().to_str().unwrap()).unwrap();
        let model = Model::load(&source, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        let shard = Shard::WHOLE;
        let planner = Planner { model: &model, config: &config, tasks: &tasks, data: None, shard, is_elsewhere: false };
        let runner = Runner { planner, model: &model };
        let out = tempfile::tempdir().unwrap();
        let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
        let mut store = Store::open(out.path(), OpenMode::Fresh, &manifest).unwrap();
        let mut seen = Seen::default();
        let plan = runner.plan(&mut seen).unwrap();
        let (end, _) = runner.run(plan, &mut store, &AtomicBool::new(false), &mut seen).unwrap();
        assert_eq!((end, store.count(), seen.examples), (End::Complete, 0, 2));
        let told = |f: &SkippedWork| (f.what.rsplit_once(" 512, ").unwrap().1.to_owned(), format!("{:#}", f.error));
        seen.failures.iter().map(told).collect()
    }

    #[test]
    fn a_prompt_that_cannot_be_read_is_no_methods_fault_and_read_once() {
        let few = "lengths = [512]\nsamples = 2\nmethods = ['streaming_llm', 'quest']";
        let needles = failures_of_broken(&format!("tasks = ['ruler/niah_single_1']\n{few}"));
        let [(what, why)] = &needles[..] else { panic!("{needles:?}") };
        assert_eq!(what, "question");
        assert!(
            why.starts_with(
                "ruler/niah_single_1 at 512, example 0: the prompt could not be read: the activations behind layer 2"
            ),
            "{why}"
        );
        // A method with a prefill mask reads and fails by itself.
        let masked = "lengths = [512]\nsamples = 2\nmethods = ['streaming_llm']\nsparse_from = ['prefill']";
        let both = failures_of_broken(&format!("tasks = ['ruler/niah_single_1']\n{masked}"));
        let whats: Vec<&str> = both.iter().map(|(what, _)| what.as_str()).collect();
        assert!(matches!(whats[..], ["prefill", own] if own.starts_with("prefill, streaming_llm:")), "{both:?}");
        assert!(both[0].1.contains("could not be read") && !both[1].1.contains("could not be read"), "{both:?}");
    }

    #[test]
    fn where_one_failure_ends_a_run_earlier_records_stay() {
        let mut seen = Seen { stop_at_failure: true, ..Seen::default() };
        let (ended, records) = run_with(Faulty, &mut seen);
        assert!(format!("{:#}", ended.unwrap_err()).contains("no selection"));
        assert!(records.is_empty());
    }

    /// A task with one example that has a different value in every field.
    enum Given {
        Question,
        Passage(Scoring),
    }

    impl Given {
        fn question() -> Example {
            Example {
                task: "given".into(),
                length: 0,
                index: 0,
                context: "The red door opens with 4711. The green door opens with 1147. ".into(),
                question: "What opens the red door?".into(),
                answer_prefix: String::new(),
                // Every prediction contains the empty text, so the score is between 0 and 1 for any model.
                references: vec![String::new(), "not to be found".into()],
                all_classes: vec!["a class".into()],
                metric: Metric::StringMatchAll,
                also: vec![Metric::StringMatchPart],
                max_new_tokens: 3,
                depth: Some(25.0),
                source: "by hand".into(),
                rules: PromptRules { cut: Cut::Middle, first_line: true, ..PromptRules::default() },
            }
        }

        fn continuation(text: &str, words: usize, encoder: &dyn TextEncoder) -> Result<Continuation> {
            Ok(Continuation {
                tokens: encoder.encode(text)?.ids,
                given: 0,
                text: text.into(),
                words,
                bytes: text.len(),
            })
        }
    }

    impl Task for Given {
        fn name(&self) -> &str {
            "given"
        }

        fn inputs(&self) -> String {
            String::new()
        }

        fn available(&self) -> Option<usize> {
            Some(1)
        }

        fn is_sized(&self) -> bool {
            false
        }

        fn example(&self, _: usize, _: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
            Ok(Self::question())
        }

        fn likelihood(&self) -> Option<&dyn LikelihoodTask> {
            match self {
                Self::Question => None,
                Self::Passage(_) => Some(self),
            }
        }
    }

    impl LikelihoodTask for Given {
        fn available(&self, _: usize, _: &dyn TextEncoder) -> Result<usize> {
            Ok(1)
        }

        fn passage(&self, _: usize, _: usize, _: u64, encoder: &dyn TextEncoder) -> Result<Passage> {
            let Self::Passage(scoring) = self else { unreachable!("a question has no passage") };
            let text = encoder.encode("The red door opens with 4711. The green door opens with")?;
            let continuations = [(" 1147 alone.", 2), (" a key that nobody has.", 5)];
            Ok(Passage {
                task: "given".into(),
                length: 0,
                index: 0,
                source: "by hand".into(),
                prompt: [encoder.front(), &text.ids].concat(),
                continuations: continuations
                    .into_iter()
                    .take(if *scoring == Scoring::Perplexity { 1 } else { 2 })
                    .map(|(text, words)| Self::continuation(text, words, encoder))
                    .collect::<Result<_>>()?,
                scoring: *scoring,
            })
        }
    }

    /// The record of `full`, the tokens of the prompt, and how many of them come before the question.
    fn run_one(task: impl FnOnce(&RunConfig) -> Box<dyn Task>) -> (Record, Vec<u32>, usize) {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1\nmethods = ['topk:k=16']";
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks = vec![task(&config)];
        let planner = Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        };
        let runner = Runner { planner, model: &model };
        let dir = tempfile::tempdir().unwrap();
        let manifest = json!({ "identity": identity(&config, config.variants()[0], &model, None) });
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest).unwrap();
        let plan = runner.plan(&mut Seen::default()).unwrap();
        let place = plan.cells[0].place;
        let mut seen = Seen { stop_at_failure: true, ..Seen::default() };
        runner.run(plan, &mut store, &AtomicBool::new(false), &mut seen).unwrap();
        let material = runner.material(place, 0, 1).unwrap();
        let records = load_records(dir.path()).unwrap().records;
        let record = records.into_iter().find(|r| r.method == "full").expect("a record");
        (record, material.prompt().to_vec(), material.prefix_tokens(Protocol::Question))
    }

    #[test]
    fn a_record_has_all_that_its_example_says() {
        let (record, prompt, prefix_tokens) = run_one(|_| Box::new(Given::Question));
        let example = Given::question();
        assert!(!record.prediction.is_empty() && 0 < prefix_tokens && prefix_tokens < prompt.len());
        assert_eq!((record.task.as_str(), record.length, record.sample), ("given", 0, 0));
        assert_eq!((record.source.as_str(), record.question), ("by hand", example.question.into()));
        assert_eq!((record.references, record.all_classes), (example.references.into(), example.all_classes.into()));
        assert_eq!((record.score, record.metric, record.depth), (0.5, Some(Metric::StringMatchAll), Some(25.0)));
        assert_eq!(record.other_scores, BTreeMap::from([("string_match_part".to_owned(), 1.0)]));
        assert_eq!((record.first_line, record.cut_tokens, record.max_new_tokens), (true, Some(0), 3));
        assert_eq!((record.prompt_tokens, record.prefix_tokens), (prompt.len(), prefix_tokens));
        assert_eq!((record.bos_tokens, record.measure), (Some(1), Measure::Score));
    }

    #[test]
    fn a_record_has_all_that_its_passage_says() {
        let (text, prompt, prefix_tokens) = run_one(|_| Box::new(Given::Passage(Scoring::Perplexity)));
        let likelihood = text.likelihood.clone().unwrap();
        assert_eq!((likelihood.words, likelihood.bytes), (2, " 1147 alone.".len()));
        assert!((text.score - (likelihood.nll / likelihood.tokens as f64).exp()).abs() < 1e-9 && text.score > 1.0);
        assert_eq!((text.measure, text.choice.is_none()), (Measure::Perplexity, true));

        let scoring = Scoring::Choice { right: 0, normalised: false };
        let (choice, same_prompt, _) = run_one(|_| Box::new(Given::Passage(scoring)));
        let scores = &choice.choice.as_ref().unwrap().log_likelihoods;
        let chosen = usize::from(scores[1] > scores[0]);
        assert_eq!(choice.score, [1.0, 0.0][chosen]);
        assert_eq!(choice.prediction, [" 1147 alone.", " a key that nobody has."][chosen]);
        assert_eq!((&choice.references, choice.measure), (&vec![" 1147 alone.".to_owned()].into(), Measure::Score));
        assert!(choice.likelihood.is_none());

        assert_eq!(prompt, same_prompt);
        for record in [text, choice] {
            assert_eq!((record.task.as_str(), record.length, record.sample), ("given", 0, 0));
            assert_eq!((record.source.as_str(), record.bos_tokens), ("by hand", Some(1)));
            assert_eq!((record.prompt_tokens, record.prefix_tokens), (prompt.len(), prefix_tokens));
        }
    }

    /// A task that has examples under one seed only.
    struct OfOneSeed(u64);

    impl Task for OfOneSeed {
        fn name(&self) -> &str {
            "given"
        }

        fn inputs(&self) -> String {
            String::new()
        }

        fn available(&self) -> Option<usize> {
            Some(2)
        }

        fn is_sized(&self) -> bool {
            false
        }

        fn example(&self, _: usize, index: usize, seed: u64, _: &dyn PromptCounter) -> Result<Example> {
            match seed == self.0 {
                true => Ok(Example { index, ..Given::question() }),
                false => Err(anyhow!("there is none")),
            }
        }
    }

    #[test]
    fn what_cannot_be_made_under_one_seed_is_run_under_the_others() {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nsamples = 2\nmethods = ['topk:k=16']\nseed = [3, 4, 5]";
        let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks: Vec<Box<dyn Task>> = vec![Box::new(OfOneSeed(4))];
        let planner = Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        };
        let runner = Runner { planner, model: &model };
        let dir = tempfile::tempdir().unwrap();
        let identities: Vec<_> = config.variants().into_iter().map(|v| identity(&config, v, &model, None)).collect();
        let mut store = Store::open(dir.path(), OpenMode::Fresh, &json!({ "identity": identities })).unwrap();
        let (plan, mut seen) = (runner.plan(&mut Seen::default()).unwrap(), Seen::default());
        assert_eq!(runner.remaining(&plan, &[]).records, 12);
        assert_eq!(runner.run(plan, &mut store, &AtomicBool::new(false), &mut seen).unwrap().0, End::Complete);
        assert_eq!(seen.examples, 6, "those that could not be made are done as well");
        let failed: Vec<&str> = seen.failures.iter().map(|failure| failure.what.as_str()).collect();
        assert_eq!(failed, ["builtin, given, seed 3", "builtin, given, seed 5"], "each once");
        let records = load_records(dir.path()).unwrap().records;
        let made: Vec<_> = records.iter().map(|r| (r.seed, r.sample, r.method.as_str())).collect();
        assert_eq!(made, [(4, 0, "full"), (4, 0, "topk"), (4, 1, "full"), (4, 1, "topk")]);
    }

    #[test]
    fn an_answer_ends_where_the_model_ends_it() {
        let (record, ..) = run_one(|config| resolve(&config.tasks, &TaskOptions::default()).unwrap().remove(0));
        assert!(record.stopped && record.score == 1.0, "{record:?}");
        assert!(1 < record.new_tokens && record.new_tokens < record.max_new_tokens);
    }

    /// The calls of `progress`.
    #[derive(Default)]
    struct Steps(Vec<Told>);

    /// Examples done and of all; work done, found and of all; length; whether a cell ends; number of new records.
    type Told = ([usize; 2], [u64; 3], usize, bool, usize);

    impl RunObserver for Steps {
        fn progress(&mut self, p: Progress<'_>) {
            assert_eq!(p.task, "ruler/niah_single_1");
            self.0.push((
                [p.done, p.total],
                [p.work_done, p.work_found, p.work],
                p.length,
                p.ends_cell,
                p.records.len(),
            ));
        }

        fn failed(&mut self, failure: SkippedWork) -> Result<()> {
            Err(failure.error)
        }
    }

    fn with_runner<R>(text: &str, use_it: impl FnOnce(&Runner<'_>, &Value) -> R) -> R {
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
        let planner = Planner {
            model: &model,
            config: &config,
            tasks: &tasks,
            data: None,
            shard: Shard::WHOLE,
            is_elsewhere: false,
        };
        let identities: Vec<_> = config.variants().into_iter().map(|v| identity(&config, v, &model, None)).collect();
        use_it(&Runner { planner, model: &model }, &json!({ "identity": identities }))
    }

    #[test]
    fn progress_counts_examples_and_work_and_what_is_recorded_is_not_run_again() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 400]\nsamples = 2\nmethods = ['topk:k=16']";
        with_runner(text, |runner, manifest| {
            let dir = tempfile::tempdir().unwrap();
            let run = || {
                let mut store = Store::open(dir.path(), OpenMode::Resume, manifest).unwrap();
                let (plan, mut steps) = (runner.plan(&mut Steps::default()).unwrap(), Steps::default());
                let left = runner.remaining(&plan, store.records()).records;
                runner.run(plan, &mut store, &AtomicBool::new(false), &mut steps).unwrap();
                (left, steps.0, load_records(dir.path()).unwrap().records)
            };
            // The multiplications of reading n tokens: with all weights, and of every query with half of the keys on average.
            let (c, decoder) = (runner.model.decoder.config(), &runner.model.decoder);
            let weights = decoder.weight_bytes() / decoder.dtype().bytes();
            let work =
                |n: usize| (((weights + c.layers * c.heads * c.head_dim * (n / 2)) * n) as f64 / 1e6).ceil() as u64;
            let (long, short) = (work(512), work(400));
            let all = 2 * (long + short);
            // Recorded work counts as found, other work as done.
            let expected = |records: usize| {
                let found = |work: u64| if records == 0 { work } else { 0 };
                [
                    ([1, 4], [long, found(long), all], 512, false, records),
                    ([2, 4], [2 * long, found(2 * long), all], 512, true, records),
                    ([3, 4], [2 * long + short, found(2 * long + short), all], 400, false, records),
                    ([4, 4], [all, found(all), all], 400, true, records),
                ]
            };
            let (left, steps, records) = run();
            assert_eq!((left, records.len()), (8, 8));
            assert_eq!(steps, expected(2));
            let (left, steps, again) = run();
            assert_eq!((left, again.len()), (0, 8));
            assert_eq!(steps, expected(0));
            assert_eq!(runner.work(0), work(8192), "an example of a file");

            let plan = runner.plan(&mut Steps::default()).unwrap();
            let known: Vec<Record> =
                records.into_iter().filter(|r| (r.length, r.sample, r.method.as_str()) != (400, 1, "topk")).collect();
            let left = runner.remaining(&plan, &known);
            let contexts: Vec<_> = left.plan.cells.iter().map(|c| (c.place.length, c.examples())).collect();
            assert_eq!((left.records, contexts), (1, vec![(512, 0), (400, 1)]));
        });
    }

    #[test]
    fn a_run_that_is_told_to_stop_records_nothing_more() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
        with_runner(text, |runner, manifest| {
            let dir = tempfile::tempdir().unwrap();
            let mut store = Store::open(dir.path(), OpenMode::Fresh, manifest).unwrap();
            let plan = runner.plan(&mut Steps::default()).unwrap();
            let mut steps = Steps::default();
            let (end, spent) = runner.run(plan, &mut store, &AtomicBool::new(true), &mut steps).unwrap();
            assert_eq!((end, spent.total(), steps.0.len()), (End::Interrupted, Duration::ZERO, 0));
        });
    }

    fn passage(prompt: Vec<u32>, answer: usize) -> Passage {
        let of = |tokens| Continuation { tokens: vec![5; tokens], given: 0, text: String::new(), words: 1, bytes: 1 };
        Passage {
            task: "given".into(),
            length: 0,
            index: 0,
            source: String::new(),
            prompt,
            continuations: vec![of(1), of(answer), of(2)],
            scoring: Scoring::Perplexity,
        }
    }

    #[test]
    fn items_foresee_the_prefixes_that_go_on_from_theirs() {
        let variant = Variant { seed: 1, protocol: Protocol::Question };
        let item = |prompt: &[u32], prefix_tokens| PreparedExample {
            wanted: PendingExample { place: Place { task: 0, length: 0 }, index: 0, variant, methods: Vec::new() },
            material: Rc::new(ExampleInput::Passage(passage(prompt.to_vec(), 1))),
            digest: "".into(),
            prefix_tokens,
            longer: Vec::new(),
        };
        let mut items = [
            item(&[1, 2, 9], 2),
            item(&[1, 2, 3], 3),
            item(&[1, 2, 3, 9], 3),
            item(&[1, 2, 3, 4], 4),
            item(&[5, 6], 1),
            item(&[6, 6, 7], 3),
        ];
        link_nested_prefixes(&mut items);
        let found: Vec<&[usize]> = items.iter().map(|item| item.longer.as_slice()).collect();
        assert_eq!(found, [&[3, 4][..], &[4], &[4], &[], &[], &[]]);
    }

    #[test]
    fn examples_beyond_the_context_or_the_vocabulary_are_refused() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
        with_runner(text, |runner, _| {
            let (limit, task) = (runner.model.decoder.config().context_limit(), Given::Question);
            let text = |material| runner.check_fits(&task, &material).map_err(|e| e.what).err().unwrap_or_default();
            let of = |prompt: Vec<u32>, answer| text(ExampleInput::Passage(passage(prompt, answer)));
            assert_eq!(of(vec![5; limit - 7], 7), "");
            let told = of(vec![5; limit - 6], 7);
            assert!(told.starts_with(&format!("the text, {} tokens, is beyond", limit + 1)), "{told}");
            let unknown = runner.model.decoder.config().vocab_size as u32;
            assert!(!of(vec![unknown], 1).is_empty());
            let mut odd = passage(vec![5], 3);
            odd.continuations[1].tokens[2] = unknown;
            assert!(!text(ExampleInput::Passage(odd)).is_empty());

            let prompt = |length: usize, max_new_tokens: usize| {
                let example = Example { length, max_new_tokens, ..Given::question() };
                let context = runner.model.decoder.config().context_limit();
                let plain = Example { rules: PromptRules::default(), ..example };
                text(ExampleInput::Prompt(Box::new(fit(plain, context, &runner.model.tokenizer).unwrap())))
            };
            let tokens = fit(Given::question(), limit, &runner.model.tokenizer).unwrap().prompt.ids.len();
            assert_eq!(prompt(0, limit - tokens), "");
            let told = prompt(0, limit - tokens + 1);
            assert!(told.starts_with(&format!("the prompt with its answer, {} tokens", limit + 1)), "{told}");
            assert_eq!(prompt(limit + 1, limit), "", "of a length beyond the context that was asked for");
            assert!(!prompt(limit, limit).is_empty());
        });
    }

    #[test]
    fn a_line_ends_with_a_line_break() {
        let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 1";
        with_runner(text, |runner, _| {
            let end = runner.line_end().unwrap().expect("the model has a token for it");
            assert_eq!(runner.model.tokenizer.decode(&[end]).unwrap(), "\n");
        });
    }

    #[test]
    fn a_key_is_of_all_that_makes_a_record() {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nmethods = ['topk:k=16', 'topk:k=17']";
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let [_, method, other] = &config.methods[..] else { panic!("three methods") };
        let calibrated = Configured { artefact: Some("abc".into()), ..method.clone() };
        let keys = [
            record_key("identity", "task", 512, 3, method),
            record_key("identitz", "task", 512, 3, method),
            record_key("identity", "tasl", 512, 3, method),
            record_key("identity", "task", 513, 3, method),
            record_key("identity", "task", 512, 4, method),
            record_key("identity", "task", 512, 3, other),
            record_key("identity", "task", 512, 3, &calibrated),
        ];
        assert!(keys.iter().all(|key| key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn sums_become_a_likelihood_or_a_choice() {
        let record = || crate::eval::records::record::tests::record("given", "topk", 0, 0.0);
        let sums = |nll: f64, kl_sum: f64| score_text::Sums { nll, same_top: 2, kl_sum, kl: vec![kl_sum / 2.0; 2] };
        let mut text = passage(vec![1], 1);
        text.continuations.truncate(1);
        text.continuations[0].tokens = vec![3; 4];
        let made = scored_record(&text, &[sums(6.0, 0.5)], record());
        assert!((made.score - 1.5f64.exp()).abs() < 1e-12);
        let of = made.likelihood.unwrap();
        assert_eq!((of.nll, of.tokens, of.words, of.bytes), (6.0, 4, 1, 1));
        assert_eq!((of.same_top, of.kl_sum, of.kl), (2, 0.5, vec![0.25; 2]));
        let same = scored_record(&text, &[sums(6.0, 0.0)], record());
        assert!(same.likelihood.unwrap().kl.is_empty());

        let choose = |right, normalised| {
            let mut options = Passage { scoring: Scoring::Choice { right, normalised }, ..passage(vec![1], 1) };
            for (option, text) in options.continuations.iter_mut().zip(["é", "a long one", "none"]) {
                option.text = text.into();
            }
            let made = scored_record(&options, &[sums(1.0, 0.0), sums(2.0, 0.0), sums(4.0, 0.0)], record());
            (made.score, made.prediction, made.references, made.choice.unwrap())
        };
        let (score, prediction, references, choice) = choose(0, false);
        assert_eq!((score, prediction, references), (1.0, "é".into(), vec!["é".to_owned()].into()));
        assert_eq!((choice.log_likelihoods, choice.characters), (vec![-1.0, -2.0, -4.0], vec![1, 10, 4]));
        let (score, prediction, references, _) = choose(0, true);
        assert_eq!((score, prediction, references), (0.0, "a long one".into(), vec!["é".to_owned()].into()));
        assert_eq!((choose(1, true).0, choose(1, false).0), (1.0, 0.0));
        assert_eq!(passage_tokens(&passage(vec![1, 2, 3], 7)), 10, "with the longest");
    }
}
