//! RULER: thirteen synthetic tasks, generated to a length (Hsieh et al. 2024, arXiv:2404.06654).
//!
//! One file a base task (`niah`, `vt`, `cwe`, `fwe`, `qa`), the size search in `fit`, the published
//! fixed shuffles in `published`. Prompts and parameters are data in `tasks/ruler/*.toml`. Examples
//! come from the published distribution with a generator of our own, so they are not the published
//! examples. `reworded` asks the same in other words. Adding a base task: one file with a `BASE`, and
//! one line in `BASES`.

mod cwe;
pub(crate) mod fit;
mod fwe;
pub(crate) mod niah;
mod published;
mod qa;
pub(crate) mod qa_synth;
mod reworded;
pub(crate) mod template;
mod vt;

use std::sync::LazyLock;

use anyhow::Result;

use self::fit::{Draft, Request};
pub use self::reworded::Reworded;
use self::template::{Definition, TaskDefinition};
use super::metrics::Metric;
use super::seed::{Draw, example_seed};
use super::{Example, Family, Handling, Positions, PromptCounter, Task, TaskInfo, TaskOptions, assets, digest};
use spattn_base::error::UsageError;

/// Every base task, in the order of the published configuration.
const BASES: [Base; 5] = [niah::BASE, vt::BASE, cwe::BASE, fwe::BASE, qa::BASE];
const PREFIX: &str = "ruler/";

static DEFINITIONS: LazyLock<Vec<(&'static Base, Definition)>> = LazyLock::new(|| {
    // Embedded files: a mistake in one is ours, and the tests find it.
    BASES.iter().map(|base| (base, toml::from_str(base.file).expect("tasks/ruler/*.toml is well-formed"))).collect()
});

/// A base task: its definition file and its generator.
pub(crate) struct Base {
    /// Name, which is also that of the group of its tasks.
    name: &'static str,
    /// The definition file's text.
    file: &'static str,
    /// Makes the generator of one task.
    make: fn(&Definition, &TaskDefinition, &TaskOptions) -> Result<Box<dyn Generator>>,
}

/// Makes the examples of one task.
pub(crate) trait Generator: Send + Sync {
    /// Where text and words come from, for the record.
    fn source(&self) -> String;
    /// The largest example that fits the request.
    fn generate(&self, request: &Request) -> Result<Draft>;
    /// Number of examples, if a data set limits it.
    fn available(&self) -> Option<usize> {
        None
    }
    /// Digest of the data of a user that it draws from; empty where there are none.
    fn data(&self) -> String {
        String::new()
    }
    /// What the user should know about its data, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The order of `count` things: the published fixed shuffle, or one of `draw`.
fn shuffled_order(count: usize, positions: Positions, draw: &mut Draw) -> Vec<usize> {
    if positions == Positions::Published {
        return published::order(count);
    }
    let mut order: Vec<usize> = (0..count).collect();
    draw.shuffle(&mut order);
    order
}

/// How rows of a prepared RULER file are told apart, and what they are scored with.
pub struct Shape {
    /// Beginnings of the question.
    pub question_marks: &'static [String],
    /// Beginning of the answer prefix.
    pub prefix_mark: &'static str,
    /// How predictions are scored.
    pub metric: Metric,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
}

impl Shape {
    fn of(definition: &'static Definition) -> Self {
        Self {
            question_marks: &definition.question_marks,
            prefix_mark: &definition.prefix_mark,
            metric: definition.metric,
            max_new_tokens: definition.tokens_to_generate,
        }
    }
}

/// The shapes of the five base tasks.
pub fn shapes() -> impl Iterator<Item = Shape> {
    DEFINITIONS.iter().map(|(_, definition)| Shape::of(definition))
}

/// The shapes of the base tasks in other words.
pub fn reworded_shapes() -> impl Iterator<Item = Shape> {
    reworded::definitions().map(Shape::of)
}

/// The definition of a base task and its file's text, for those who build other rows from the same templates.
pub(crate) fn definition(base: &str) -> Option<(&'static Definition, &'static str)> {
    DEFINITIONS.iter().find(|(b, _)| b.name == base).map(|(b, d)| (d, b.file))
}

/// Tokens the task `name` may generate.
pub(crate) fn max_new_tokens(name: &str) -> Option<usize> {
    Ruler::find(name).map(|(_, definition, _)| definition.tokens_to_generate)
}

/// The task `name`, its examples seeded under another name (`train/ruler/vt` for `ruler/vt`): what it
/// makes is shaped like the task's examples and never one of them.
pub(crate) fn for_training(name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
    let mut task = Ruler.build(name, options)?;
    task.name.insert_str(0, super::train::SEED_DOMAIN);
    task.seed_name.insert_str(0, super::train::SEED_DOMAIN);
    Ok(Box::new(task))
}

/// The RULER family: `ruler/<task>`, the groups `ruler` and `ruler/niah`.
pub struct Ruler;

impl Ruler {
    fn find(name: &str) -> Option<(&'static Base, &'static Definition, &'static TaskDefinition)> {
        let short = name.strip_prefix(PREFIX)?;
        DEFINITIONS.iter().find_map(|(base, definition)| {
            let task = definition.tasks.iter().find(|task| task.name == short)?;
            Some((*base, definition, task))
        })
    }

    fn build(&self, name: &str, options: &TaskOptions) -> Result<RulerTask> {
        let (base, definition, task) = Self::find(name)
            .ok_or_else(|| UsageError::unknown("task", name, self.catalog().iter().map(|t| t.name.clone())))?;
        RulerTask::new(name, name, base, definition, task, options)
    }

    fn members(base: &str) -> Vec<String> {
        let of_base = DEFINITIONS.iter().filter(|(b, _)| b.name == base);
        of_base.flat_map(|(_, d)| d.tasks.iter().map(|t| format!("{PREFIX}{}", t.name))).collect()
    }

    /// The published thirteen, with a stand-in for each question set whose data is not there.
    fn thirteen(options: &TaskOptions) -> Vec<String> {
        let mut all: Vec<String> =
            BASES.iter().filter(|b| b.name != qa::BASE.name).flat_map(|b| Self::members(b.name)).collect();
        let first = if assets::squad(options).is_some() { "qa_1" } else { "qa_synth" };
        let second = if assets::hotpotqa(options).is_some() { "qa_2" } else { "qa_synth_hop2" };
        all.extend([first, second].map(|name| format!("{PREFIX}{name}")));
        all
    }
}

impl Family for Ruler {
    fn catalog(&self) -> Vec<TaskInfo> {
        let tasks =
            DEFINITIONS.iter().flat_map(|(_, definition)| definition.tasks.iter().map(move |task| (definition, task)));
        tasks.map(|(definition, task)| info(PREFIX, definition, task)).collect()
    }

    fn groups(&self) -> Vec<String> {
        vec!["ruler".to_owned(), "ruler/niah".to_owned()]
    }

    fn expand(&self, name: &str, options: &TaskOptions) -> Option<Vec<String>> {
        match name {
            "ruler" => Some(Self::thirteen(options)),
            "ruler/niah" => Some(Self::members(niah::BASE.name)),
            _ => Self::find(name).map(|_| vec![name.to_owned()]),
        }
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(self.build(name, options)?))
    }
}

/// How a task of a family with the prefix `prefix` is listed.
fn info(prefix: &str, definition: &Definition, task: &TaskDefinition) -> TaskInfo {
    TaskInfo {
        name: format!("{prefix}{}", task.name),
        about: task.about.clone(),
        metric: Some(definition.metric),
        max_new_tokens: Some(definition.tokens_to_generate),
        parameters: task.parameters.iter().map(|(k, v)| (k.clone(), bare(v))).collect(),
        stands_in_for: task.stands_in_for.clone(),
    }
}

/// A TOML value without the quotes of a string.
fn bare(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

struct RulerTask {
    name: String,
    /// What seeds hash: the name, unless the examples of another task are wanted.
    seed_name: String,
    metric: Metric,
    max_new_tokens: usize,
    positions: Positions,
    generator: Box<dyn Generator>,
}

impl RulerTask {
    fn new(
        name: &str,
        seed_name: &str,
        base: &Base,
        definition: &Definition,
        task: &TaskDefinition,
        options: &TaskOptions,
    ) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            seed_name: seed_name.to_owned(),
            metric: definition.metric,
            max_new_tokens: definition.tokens_to_generate,
            positions: options.positions,
            generator: (base.make)(definition, task, options)?,
        })
    }

    fn source(&self, note: Option<&str>) -> String {
        let mut source = self.generator.source();
        if self.positions == Positions::Published {
            source.push_str(" positions=published");
        }
        if let Some(note) = note {
            source.push(' ');
            source.push_str(note);
        }
        source
    }
}

impl Task for RulerTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        self.generator.available()
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, self.positions == Positions::Published, self.generator.data()))
    }

    fn notes(&self) -> Vec<String> {
        self.generator.notes()
    }

    fn is_sized(&self) -> bool {
        true
    }

    fn example(&self, length: usize, index: usize, seed: u64, counter: &dyn PromptCounter) -> Result<Example> {
        let draft = self.generator.generate(&Request {
            task: &self.name,
            seed_name: &self.seed_name,
            length,
            index,
            run_seed: seed,
            seed: example_seed(seed, &self.seed_name, length, index),
            max_new_tokens: self.max_new_tokens,
            positions: self.positions,
            counter,
        })?;
        Ok(Example {
            task: self.name.clone(),
            length,
            index,
            source: self.source(draft.note.as_deref()),
            context: draft.context,
            question: draft.question,
            answer_prefix: draft.answer_prefix,
            references: draft.references,
            all_classes: Vec::new(),
            metric: self.metric,
            also: Vec::new(),
            max_new_tokens: self.max_new_tokens,
            depth: None,
            handling: Handling::default(),
        })
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
