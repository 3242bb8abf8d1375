//! RULER's tasks in other words, to measure how much a score depends on the wording of the prompt.
//!
//! Generators, parameters and draws are those of `ruler/NAME`: equal seed, length and index give the same keys, values and places. Only
//! the words around them differ; they are data in `tasks/ruler_reworded.toml`. Examples take the wordings of a base task in turn, and
//! the record's `source` names the wording.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::base::Base;
use super::family::{self, BASES};
use super::ruler_task::{RulerTask, info};
use super::shape::Shape;
use super::template::{RulerDefinition, TaskDefinition};
use crate::{Example, Family, PromptCounter, Task, TaskInfo, TaskOptions, digest};
use spattn_base::error::UsageError;

const GROUP: &str = "ruler_reworded";
const PREFIX: &str = "ruler_reworded/";
const FILE: &str = include_str!("../../tasks/ruler_reworded.toml");

/// Each base task that has other wordings, with one definition for each wording.
static REWORDED: LazyLock<Vec<(&'static Base, Vec<RulerDefinition>)>> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    read(FILE).expect("tasks/ruler_reworded.toml is well-formed")
});

#[derive(Debug, Deserialize)]
struct File {
    /// The tasks to reword, without `ruler/`.
    tasks: Vec<String>,
    /// For each base task its wordings, each with the entries that replace those in the base task's own file.
    #[serde(flatten)]
    wordings: BTreeMap<String, Vec<toml::Table>>,
}

fn read(text: &str) -> Result<Vec<(&'static Base, Vec<RulerDefinition>)>> {
    let file: File = toml::from_str(text)?;
    let reword = |base: &'static Base, wording: &toml::Table| -> Result<RulerDefinition> {
        let mut whole: toml::Table = toml::from_str(base.file)?;
        overlay(&mut whole, wording);
        let mut definition: RulerDefinition = toml::Value::Table(whole).try_into()?;
        definition.tasks.retain(|task| file.tasks.contains(&task.name));
        Ok(definition)
    };
    let bases = BASES.iter().filter_map(|base| Some((base, file.wordings.get(base.name)?)));
    bases
        .map(|(base, wordings)| Ok((base, wordings.iter().map(|w| reword(base, w)).collect::<Result<Vec<_>>>()?)))
        .collect()
}

/// Puts the entries of `over` into `table`; tables are merged entry by entry.
fn overlay(table: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (table.get_mut(key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(more)) => overlay(inner, more),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The definitions of all base tasks in all other wordings.
fn definitions() -> impl Iterator<Item = &'static RulerDefinition> {
    REWORDED.iter().flat_map(|(_, wordings)| wordings)
}

/// The shapes of the reworded base tasks.
pub fn reworded_shapes() -> impl Iterator<Item = Shape> {
    definitions().map(Shape::of)
}

/// The reworded tasks: `ruler_reworded/<task>`, and the group `ruler_reworded`.
pub struct Reworded;

impl Reworded {
    /// Every task with its base task and that base task's wordings.
    fn all() -> impl Iterator<Item = (&'static Base, &'static [RulerDefinition], &'static TaskDefinition)> {
        REWORDED.iter().flat_map(|(base, wordings)| {
            let tasks = wordings.first().map_or(&[][..], |w| &w.tasks);
            tasks.iter().map(move |task| (*base, wordings.as_slice(), task))
        })
    }

    fn find(name: &str) -> Option<(&'static Base, &'static [RulerDefinition], &'static TaskDefinition)> {
        let short = name.strip_prefix(PREFIX)?;
        Self::all().find(|(_, _, task)| task.name == short)
    }
}

impl Family for Reworded {
    fn catalog(&self) -> Vec<TaskInfo> {
        let listed = |wordings: &[RulerDefinition], task: &TaskDefinition| {
            let info = info(PREFIX, &wordings[0], task);
            TaskInfo { about: format!("{}; in {} other wordings", info.about, wordings.len()), ..info }
        };
        Self::all().map(|(_, wordings, task)| listed(wordings, task)).collect()
    }

    fn groups(&self) -> Vec<String> {
        vec![GROUP.to_owned()]
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        if name == GROUP {
            return Some(self.catalog().into_iter().map(|task| task.name).collect());
        }
        Self::find(name).map(|_| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let (base, wordings, task) = Self::find(name)
            .ok_or_else(|| UsageError::unknown("task", name, self.catalog().into_iter().map(|t| t.name)))?;
        let original = format!("{}{}", family::PREFIX, task.name);
        let make = |definition| RulerTask::new(name, &original, base, definition, task, options);
        Ok(Box::new(InTurn { wordings: wordings.iter().map(make).collect::<Result<_>>()? }))
    }
}

/// One task in several wordings (at least one), taken in turn.
struct InTurn {
    wordings: Vec<RulerTask>,
}

impl Task for InTurn {
    fn name(&self) -> &str {
        self.wordings[0].name()
    }

    fn available(&self) -> Option<usize> {
        self.wordings[0].available()
    }

    fn inputs(&self) -> String {
        digest::of(&self.wordings.iter().map(Task::inputs).collect::<Vec<_>>())
    }

    fn is_sized(&self) -> bool {
        self.wordings[0].is_sized()
    }

    fn example(&self, length: usize, index: usize, seed: u64, counter: &dyn PromptCounter) -> Result<Example> {
        let number = index % self.wordings.len();
        let mut example = self.wordings[number].example(length, index, seed, counter)?;
        example.source.push_str(&format!(" wording={}", number + 1));
        Ok(example)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::testing::{Subwords, Words, example, task};

    /// All texts of the wordings.
    fn texts() -> Vec<String> {
        fn walk(value: &toml::Value, out: &mut Vec<String>) {
            match value {
                toml::Value::String(text) => out.push(text.clone()),
                toml::Value::Array(items) => items.iter().for_each(|item| walk(item, out)),
                toml::Value::Table(table) => table.values().for_each(|v| walk(v, out)),
                _ => {}
            }
        }
        let file: File = toml::from_str(FILE).unwrap();
        let mut out = Vec::new();
        for wording in file.wordings.into_values().flatten() {
            walk(&toml::Value::Table(wording), &mut out);
        }
        // Single words are names (of facts, sentences and kinds of document), not wordings.
        out.retain(|text| text.split(['{', '}']).step_by(2).any(|part| part.trim().contains([' ', '=', ':'])));
        out
    }

    /// The parts of a text between placeholders that are long enough to be a wording of their own.
    fn phrases(text: &str) -> Vec<&str> {
        let parts = text.split(['{', '}', '\n']).map(|p| p.trim_matches(|c: char| !c.is_alphanumeric()));
        parts.filter(|p| p.split_whitespace().count() >= 3).collect()
    }

    #[test]
    fn no_wording_is_that_of_a_training_row_or_of_ruler() {
        let training = include_str!("../../tasks/training_rows.toml").replace("\\n", "\n").replace("\\\"", "\"");
        let ruler: String = BASES.iter().map(|base| base.file.replace("\\n", "\n")).collect();
        let mut compared = 0;
        for text in texts() {
            for known in [&training, &ruler] {
                assert!(!known.contains(&text), "`{text}` is not new");
                for phrase in phrases(&text) {
                    compared += 1;
                    assert!(!known.contains(phrase), "`{phrase}` is not new");
                }
            }
        }
        assert!(compared > 60, "{compared}");
    }

    #[test]
    fn every_wording_replaces_what_is_said_and_nothing_unknown() {
        let file: File = toml::from_str(FILE).unwrap();
        for (base, wordings) in &file.wordings {
            let base = BASES.iter().find(|b| b.name == base).expect("a base task");
            let original: toml::Table = toml::from_str(base.file).unwrap();
            for wording in wordings {
                for (key, value) in wording {
                    assert_ne!(original.get(key).unwrap_or_else(|| panic!("{}: unknown `{key}`", base.name)), value);
                }
                for key in ["context_template", "question_template", "answer_prefix", "question_marks", "prefix_mark"] {
                    assert!(wording.contains_key(key), "{}: no `{key}`", base.name);
                }
            }
        }
    }

    #[test]
    fn the_same_is_asked_in_other_words() {
        let all = Reworded.expand(GROUP, &TaskOptions::default()).unwrap();
        assert_eq!(all.len(), 8);
        for name in all {
            let original = name.replace(PREFIX, "ruler/");
            for index in 0..6 {
                let (other, one) = (example(&name, 4096, index), example(&original, 4096, index));
                assert_eq!(other.references, one.references, "{name} {index}");
                assert_eq!((other.metric, other.max_new_tokens), (one.metric, one.max_new_tokens));
                assert_ne!(other.question, one.question);
                assert!(other.references.iter().all(|r| other.context.contains(r.as_str())), "{name} {index}");
                assert!(!format!("{}{}{}", other.context, other.question, other.answer_prefix).contains('{'));
                assert!(other.context.ends_with('\n'), "{name}: the question begins a line");
                assert!(other.source.contains(" wording="), "{}", other.source);
            }
            assert_ne!(example(&name, 4096, 0).source, example(&name, 4096, 1).source);
        }
    }

    #[test]
    fn reworded_examples_fill_their_length() {
        for name in Reworded.expand(GROUP, &TaskOptions::default()).unwrap() {
            let task = task(&name, &TaskOptions::default());
            for length in [1024, 4096] {
                for index in 0..3 {
                    for counter in [&Words as &dyn PromptCounter, &Subwords] {
                        let e = task.example(length, index, 3, counter).unwrap();
                        let total = counter.prompt_tokens(&e.user_turn(), &e.answer_prefix).unwrap() + e.max_new_tokens;
                        assert!(total <= length && total * 100 >= 95 * length, "{name}: {total} of {length}");
                    }
                }
            }
        }
    }
}
