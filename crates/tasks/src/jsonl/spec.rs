//! The name of the task of a prepared file: its path, and options after it.

use std::path::PathBuf;

use crate::metrics::Metric;
use crate::options::Given;
use crate::rows::Row;
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;

pub(super) const PREFIX: &str = "jsonl:";
/// The options that may follow the path.
pub(super) const OPTIONS: [&str; 5] = ["metric", "max_new_tokens", "chat", "layout", "task"];
/// The value of `task` that stands for every task of a file.
pub(super) const EACH: &str = "each";
pub(super) const PATH_HINT: &str = "jsonl:PATH takes a file with one JSON object a line";

/// What separates question and answer prefix in rows of kvpress, for a model without a chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// Nothing: the parts joined are RULER's prompt.
    Ruler,
    /// A line break, as in kvpress' pipeline.
    Kvpress,
}

impl Layout {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "ruler" => Some(Self::Ruler),
            "kvpress" => Some(Self::Kvpress),
            _ => None,
        }
    }
}

/// A path with the options that the user gave after it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FileSpec {
    pub path: PathBuf,
    pub metric: Option<Metric>,
    pub max_new_tokens: Option<usize>,
    /// Whether prompts are put into the model's chat template, even if they seem to contain one already. `None`: the text of each
    /// prompt decides.
    pub chat: Option<bool>,
    /// How rows of kvpress are laid out for a model without a chat template. `None`: the row's task decides.
    pub layout: Option<Layout>,
    /// The task whose rows are taken, by the field `task`; `None`: all rows.
    pub task: Option<String>,
}

impl FileSpec {
    /// What the user may add to the path so that rows can be scored.
    pub fn scoring_hint(&self) -> String {
        format!("set the metric: jsonl:{}:metric=string_match_all,max_new_tokens=64", self.path.display())
    }

    /// The error for a row whose task is not known.
    pub fn unscored(&self, row: &Row) -> UsageError {
        row.wrong("the prompt belongs to no known task, so its metric is unknown").hint(self.scoring_hint())
    }

    /// Parses a task name, `jsonl:PATH:key=value,...`.
    ///
    /// # Errors
    /// If there is no path, or an option is unknown, malformed or given twice.
    pub fn parse(name: &str) -> Result<Self, UsageError> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        if rest.is_empty() {
            return Err(UsageError::new(format!("task `{name}` names no file")).hint(PATH_HINT));
        }
        let mut spec =
            Self { path: rest.into(), metric: None, max_new_tokens: None, chat: None, layout: None, task: None };
        let Some((path, options)) = rest.rsplit_once(':').filter(|(_, o)| o.contains('=')) else {
            return Ok(spec);
        };
        if spec.path.is_file() {
            // The colon is part of the file name.
            return Ok(spec);
        }
        spec.path = path.into();
        let mut given = Given::default();
        for option in options.split(',') {
            let key = option.split('=').next().unwrap_or_default();
            given.once(name, key, key)?;
            spec.set(option, name)?;
        }
        Ok(spec)
    }

    /// Sets one option, `key=value`.
    fn set(&mut self, option: &str, name: &str) -> Result<(), UsageError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "metric" => self.metric = Some(Metric::parse(value)?),
            "max_new_tokens" => {
                let count = value.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n));
                self.max_new_tokens = Some(count.ok_or_else(|| {
                    let what = format!("`{name}`: max_new_tokens takes a number above 0, not `{value}`");
                    UsageError::new(what).hint(format!("a whole number from 1 to {MOST_TOKENS}"))
                })?);
            }
            "chat" => {
                self.chat = Some(value.parse().map_err(|_| {
                    UsageError::new(format!("`{name}`: chat takes true or false, not `{value}`"))
                        .hint("chat=false runs prompts that are in a chat template already")
                })?);
            }
            "layout" => {
                self.layout = Some(Layout::parse(value).ok_or_else(|| {
                    UsageError::new(format!("`{name}`: layout takes ruler or kvpress, not `{value}`")).hint(
                        "layout=kvpress puts a line break before the answer prefix of kvpress' rows, where there is no chat template",
                    )
                })?);
            }
            "task" if value.is_empty() => {
                return Err(UsageError::new(format!("`{name}`: task names no task"))
                    .hint("task=NAME takes the rows of one task, task=each makes a task of each"));
            }
            "task" => self.task = Some(value.to_owned()),
            _ => return Err(UsageError::unknown("option of jsonl:", key, OPTIONS)),
        }
        Ok(())
    }

    /// The file name without folders and extension.
    pub fn stem(&self) -> String {
        self.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    }
}
