//! Prepared files: `jsonl:PATH` runs rows that other programs wrote, as they are.
//!
//! The fields of a row decide its kind:
//! - RULER's: `input`, `outputs`, and in newer files `answer_prefix`. Older rows carry the answer prefix at the end of
//!   `input`; it is split off there, so that context, question and answer prefix joined are always the bytes of the file.
//! - LongBench's: `context`, `input`, `answers`; the prompt is that of the set named by the row (`dataset`) or by the
//!   file's name (`longbench.rs`).
//! - Lost in the Middle's key-value retrieval: `ordered_kv_records`, `key`, `value` (`kv_retrieval.rs`).
//! - LongEval's lines: `prompt`, `correct_line`, `expected_number` (`longeval.rs`).
//! - kvpress's: `context`, `question`, `answer_prefix`, `answer`, `task`, `max_new_tokens` (`kvpress.rs`).
//! - A needle in a haystack: `context`, `question`, `answer` or `answers`; the prompt is context, blank line, question.
//! - Several questions on one context: `context`, and `turns` or `multi_turns` (`turns.rs`). Each is an
//!   example of its own.
//! - A document with its summary, such as `report` and `summary` (`summary.rs`).
//!
//! The kind of row and the text of the prompt decide the metric and the number of tokens to generate, unless the user gives them with
//! the path: `jsonl:PATH:metric=string_match_part,max_new_tokens=64`. Rows are checked when the file is opened, and read one at a time.
//! For prompts that already contain a chat template, the user gives `chat=false`.
//!
//! `spec.rs` parses a path with its options, `prompt.rs` turns a row into a prompt, `ruler_prompt.rs` finds the question in
//! a prompt of RULER, and `prepared.rs` is the task.

mod prepared;
mod prompt;
mod ruler_prompt;
mod spec;

use anyhow::Result;

use self::prepared::{PreparedFile, tasks_of};
use self::spec::{EACH, FileSpec, OPTIONS, PREFIX};
use super::{Family, Task, TaskInfo, TaskOptions};

/// The names of a file's tasks, if the name asks for each of them; `None` if it does not, or if the file cannot be read, which opening
/// the task reports better.
fn each_task(name: &str, options: &TaskOptions) -> Option<Vec<String>> {
    let spec = FileSpec::parse(name).ok().filter(|spec| spec.task.as_deref() == Some(EACH))?;
    let tasks = tasks_of(&spec, options.skip_bad).ok().filter(|tasks| !tasks.is_empty())?;
    let option = format!("task={EACH}");
    let (before, after) = name.rsplit_once(&option)?;
    Some(tasks.iter().map(|task| format!("{before}task={task}{after}")).collect())
}

/// The family of prepared files.
pub struct Jsonl;

impl Family for Jsonl {
    fn catalog(&self) -> Vec<TaskInfo> {
        vec![TaskInfo {
            name: format!("{PREFIX}PATH"),
            about:
                "rows of a prepared file: RULER's (kvpress's too), LongBench's, key-value retrieval, LongEval's lines, \
                    a needle, summaries, several questions"
                    .to_owned(),
            metric: None,
            max_new_tokens: None,
            parameters: OPTIONS.map(|name| (name.to_owned(), "from the prompt".to_owned())).to_vec(),
            stands_in_for: None,
        }]
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, options: &TaskOptions) -> Option<Vec<String>> {
        name.starts_with(PREFIX).then(|| each_task(name, options).unwrap_or_else(|| vec![name.to_owned()]))
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(PreparedFile::open(&FileSpec::parse(name)?, options.skip_bad)?))
    }
}

#[cfg(test)]
mod kvpress_tests;
#[cfg(test)]
mod tests;
