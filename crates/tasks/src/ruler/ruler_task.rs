//! A task of RULER, in the published wording or another.

use anyhow::Result;

use super::base::{Base, Generator};
use super::fit::Request;
use super::template::{RulerDefinition, TaskDefinition};
use crate::metrics::Metric;
use crate::seed::{TRAINING_DOMAIN, example_seed};
use crate::{Example, Positions, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, digest};

/// The entry of a task in the catalog, for the family whose names begin with `prefix`.
pub(super) fn info(prefix: &str, definition: &RulerDefinition, task: &TaskDefinition) -> TaskInfo {
    TaskInfo {
        name: format!("{prefix}{}", task.name),
        about: task.about.clone(),
        metric: Some(definition.metric),
        max_new_tokens: Some(definition.tokens_to_generate),
        parameters: task.parameters.iter().map(|(k, v)| (k.clone(), bare(v))).collect(),
        stands_in_for: task.stands_in_for.clone(),
    }
}

/// A TOML value; a string is written without quotes.
fn bare(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) struct RulerTask {
    name: String,
    /// The name that seeds hash: its own, or that of the task whose draws it repeats.
    seed_name: String,
    metric: Metric,
    max_new_tokens: usize,
    positions: Positions,
    generator: Box<dyn Generator>,
}

impl RulerTask {
    /// The same task for training rows: name and seeds are under [`TRAINING_DOMAIN`].
    pub(super) fn for_training(mut self) -> Self {
        self.name.insert_str(0, TRAINING_DOMAIN);
        self.seed_name.insert_str(0, TRAINING_DOMAIN);
        self
    }

    /// The task `name`, with examples seeded like those of `seed_name`.
    ///
    /// # Errors
    /// If the task needs missing data, or its data is malformed.
    pub(super) fn new(
        name: &str,
        seed_name: &str,
        base: &Base,
        definition: &RulerDefinition,
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
            rules: PromptRules::default(),
        })
    }
}
