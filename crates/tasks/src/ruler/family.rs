//! The RULER family: its base tasks, definitions and names.

use std::sync::LazyLock;

use anyhow::Result;

use super::base::Base;
use super::ruler_task::{RulerTask, info};
use super::shape::Shape;
use super::template::{RulerDefinition, TaskDefinition};
use super::{cwe, fwe, niah, qa, vt};
use crate::{Family, Task, TaskInfo, TaskOptions, assets};
use spattn_base::error::UsageError;

/// Every base task, in the order of the published configuration.
pub(super) const BASES: [Base; 5] = [niah::BASE, vt::BASE, cwe::BASE, fwe::BASE, qa::BASE];

pub(super) const PREFIX: &str = "ruler/";

pub(super) static DEFINITIONS: LazyLock<Vec<(&'static Base, RulerDefinition)>> = LazyLock::new(|| {
    // The files are embedded, so a mistake in one is ours, and the tests find it.
    BASES.iter().map(|base| (base, toml::from_str(base.file).expect("tasks/ruler/*.toml is well-formed"))).collect()
});

/// The shapes of the five base tasks.
pub fn shapes() -> impl Iterator<Item = Shape> {
    DEFINITIONS.iter().map(|(_, definition)| Shape::of(definition))
}

/// The definition of a base task and the text of its file, for training rows with the same templates.
pub fn definition(base: &str) -> Option<(&'static RulerDefinition, &'static str)> {
    DEFINITIONS.iter().find(|(b, _)| b.name == base).map(|(b, d)| (d, b.file))
}

/// The most tokens that the task `name` (such as `ruler/vt`) generates; `None` if there is no such task.
pub fn max_new_tokens(name: &str) -> Option<usize> {
    Ruler::find(name).map(|(_, definition, _)| definition.tokens_to_generate)
}

/// The task `name` for training rows. Its examples are seeded under another name (`train/ruler/vt` for `ruler/vt`), so they are like
/// the task's examples, but never one of them.
pub fn for_training(name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
    Ok(Box::new(Ruler.build(name, options)?.for_training()))
}

/// The RULER family: `ruler/<task>`, the groups `ruler` and `ruler/niah`.
pub struct Ruler;

impl Ruler {
    fn find(name: &str) -> Option<(&'static Base, &'static RulerDefinition, &'static TaskDefinition)> {
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

    /// RULER's thirteen tasks, with a synthetic stand-in for each question set whose data is missing.
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
