//! Rows that are examples exactly as the tasks make them, with the answers that the model should give.

use anyhow::Result;

use super::needles::several_answers;
use super::row::{Class, Encoder, RowBuilder};
use crate::ruler::{self, shapes};
use crate::{Example, PromptCounter, Task, TaskOptions};

/// The most tokens of an answer, including its end token.
pub(crate) const ANSWER: usize = 72;

/// Counts the tokens of a prompt as in an evaluation: the token that begins it, and its text.
pub(crate) struct RowCounter<'a>(pub &'a dyn Encoder);

impl PromptCounter for RowCounter<'_> {
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
        Ok(1 + self.0.count(&format!("{user}{answer_prefix}")))
    }
}

/// The tasks whose examples are rows.
pub struct TaskExamples {
    tasks: Vec<(String, Box<dyn Task>)>,
}

impl TaskExamples {
    /// Makes the tasks with these names; the second element of each pair is ignored.
    ///
    /// # Errors
    /// If a task is unknown or its definition is malformed.
    pub fn new(names: &[(String, usize)]) -> Result<Self> {
        let make =
            |(name, _): &(String, usize)| Ok((name.clone(), ruler::for_training(name, &TaskOptions::default())?));
        Ok(Self { tasks: names.iter().map(make).collect::<Result<_>>()? })
    }

    /// Writes one example of the task `name` with its answer.
    ///
    /// # Errors
    /// If no example of the task fits the row.
    pub fn write(&self, name: &str, row: &mut RowBuilder, seed: u64, index: usize) -> Result<()> {
        let Some((_, task)) = self.tasks.iter().find(|(n, _)| n == name) else { return Ok(()) };
        let counter = RowCounter(row.encoder());
        // A task reserves all tokens that it may generate, but the answer needs fewer.
        let generated = ruler::max_new_tokens(name).unwrap_or(0);
        let length = row.length() + generated - ANSWER.min(generated);
        let example = task.example(length, index, seed, &counter)?;
        let class = if matches!(name, "ruler/cwe" | "ruler/fwe") { Class::Count } else { Class::Answer };
        for (text, is_answer) in solved(name, &example.context) {
            row.push(text, if is_answer { class } else { Class::Context }, false);
        }
        row.ask(&format!("{}{}", example.question, example.answer_prefix), &answer(name, &example), class);
        Ok(())
    }
}

/// The context in parts, each with whether it is an answer: some prompts begin with a solved example, whose answer is also
/// trained.
fn solved<'a>(name: &str, context: &'a str) -> Vec<(&'a str, bool)> {
    let has_one = matches!(name, "ruler/vt" | "ruler/cwe");
    let cut = shapes().filter(|s| has_one && s.prefix_mark.len() > " Answer:".len()).find_map(|shape| {
        let mark = context.find(shape.prefix_mark)? + shape.prefix_mark.len();
        let start = mark + context[mark..].find(':')? + 1;
        let end = start + context[start..].find('\n')?;
        Some((start, end))
    });
    match cut {
        Some((start, end)) => vec![(&context[..start], false), (&context[start..end], true), (&context[end..], false)],
        None => vec![(context, false)],
    }
}

/// What the model should generate after the answer prefix.
fn answer(name: &str, example: &Example) -> String {
    let references = &example.references;
    match name {
        "ruler/vt" => references.join(" "),
        "ruler/cwe" => references.iter().enumerate().map(|(i, word)| format!(" {}. {word}", i + 1)).collect(),
        "ruler/niah_multivalue" => {
            let mut values = references.clone();
            values.sort_by_key(|value| example.context.find(&format!("is: {value}.")));
            format!(" {}.", values.join(", "))
        }
        "ruler/niah_multiquery" => {
            let query = example.question.split(" for ").nth(1).and_then(|q| q.split(" mentioned").next());
            let keys = query.unwrap_or_default().split(", ").map(|k| k.trim_start_matches("and "));
            several_answers(keys.zip(references.iter().map(String::as_str)))
        }
        "ruler/qa_synth" => format!(" {}", references[0]),
        _ => format!(" {}.", references.join(", ")),
    }
}
