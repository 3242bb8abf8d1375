//! What a task and a family of tasks are, and the user's options for all tasks. A task makes examples: prompts with their answers.

use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::likelihood::LikelihoodTask;
use super::metrics::{self, Metric};
use spattn_base::error::UsageError;

/// Counts the tokens of a whole prompt as the evaluated model reads it, with BOS, chat template, user turn and answer prefix.
pub trait PromptCounter: Sync {
    /// The number of tokens of the prompt with the user turn `user`, where the answer starts with `answer_prefix`.
    ///
    /// # Errors
    /// If the tokenizer or the chat template fails.
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize>;
}

/// A prompt with its answers.
///
/// The user turn is `context + question`, byte for byte. The answer starts with `answer_prefix`, which follows the assistant
/// header if the model has a chat template.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The full task name as recorded, such as `ruler/vt`; synthetic stand-ins have their own name.
    pub task: String,
    /// The requested length in tokens, prompt and answer together; 0 if a file fixes the prompt.
    pub length: usize,
    /// The index of the example in its task.
    pub index: usize,
    /// Text up to the question.
    pub context: String,
    /// Text from the first character of the question to the end of the user's turn.
    pub question: String,
    /// The start of the answer, which the model continues; may be empty.
    pub answer_prefix: String,
    /// The answers to compare with. The metric decides whether one is enough or all are needed.
    pub references: Vec<String>,
    /// Class names for classification metrics; empty otherwise.
    pub all_classes: Vec<String>,
    /// How a prediction is scored.
    pub metric: Metric,
    /// Metrics that are recorded in addition.
    pub also: Vec<Metric>,
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// Where in the context the requested text is, in percent (0 is the start), if the task chooses that place.
    pub depth: Option<f64>,
    /// Where text and words come from, such as `grammar` or `essays`; part of the record.
    pub source: String,
    /// How the benchmark deviates from the default treatment of prompt and prediction.
    pub rules: PromptRules,
}

/// How a benchmark's own program deviates from the default treatment of a prompt and a prediction. By default the whole prompt is
/// put into the model's chat template, a prompt that is too long is an error, and the whole prediction is scored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptRules {
    /// The prompt is plain text, even for a model with a chat template.
    pub plain: bool,
    /// What is dropped from a prompt that is too long.
    pub cut: Cut,
    /// Generation stops at a line break, but not before one token is generated.
    pub ends_at_line: bool,
    /// Only the first line of the prediction is scored.
    pub first_line: bool,
    /// The answer ends before the first occurrence of any of these texts.
    pub until: &'static [String],
    /// Whether the prompt may already contain a chat template. If its text looks so, it is not put into another one unless the
    /// user asks for that.
    pub may_be_templated: bool,
    /// A line break separates the user's turn and the start of the answer, unless a chat template is used.
    pub breaks_before_answer: bool,
}

/// What a benchmark drops from a prompt that is too long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cut {
    /// Nothing: such a prompt is an error.
    #[default]
    Nothing,
    /// The middle of the user's turn.
    Middle,
    /// The end of the context, which this text replaces to say so.
    EndOfContext(String),
}

impl PromptRules {
    /// The prediction up to the first occurrence of a text in [`until`](Self::until).
    pub fn ended<'a>(&self, prediction: &'a str) -> &'a str {
        ended(prediction, self.until)
    }
}

/// The prediction up to the first occurrence of a text in `until`.
pub fn ended<'a>(prediction: &'a str, until: &[String]) -> &'a str {
    let end = until.iter().filter_map(|text| prediction.find(text.as_str())).min();
    &prediction[..end.unwrap_or(prediction.len())]
}

impl Example {
    /// The user's turn.
    pub fn user_turn(&self) -> String {
        format!("{}{}", self.context, self.question)
    }

    /// What follows the user's turn: the start of the answer, with or without a chat template.
    pub fn answer_start(&self, is_templated: bool) -> Cow<'_, str> {
        match self.rules.breaks_before_answer && !is_templated {
            true => Cow::Owned(format!("\n{}", self.answer_prefix)),
            false => Cow::Borrowed(&self.answer_prefix),
        }
    }

    /// The score of a prediction in 0..=1 by the example's metric. The prediction is first cleaned as by the benchmark.
    pub fn score(&self, prediction: &str) -> f64 {
        self.score_by(self.metric, prediction)
    }

    /// The score of a prediction by another metric, such as one of [`also`](Self::also).
    pub fn score_by(&self, metric: Metric, prediction: &str) -> f64 {
        let kept = if self.rules.first_line { metrics::first_line(prediction) } else { prediction };
        metric.score(&metric.postprocess(kept), &self.references, &self.all_classes)
    }
}

/// A task, which makes examples whose answers the model generates, or passages whose likelihood is measured
/// ([`Task::likelihood`]).
pub trait Task: Send + Sync {
    /// Full name as recorded, such as `ruler/vt`.
    fn name(&self) -> &str;
    /// The number of examples, if a file fixes it; `None` if any number can be generated, or the number depends on the length.
    fn available(&self) -> Option<usize>;
    /// The number of examples that make up one sample at a length. It is 1 except for grids, which have one example for each
    /// depth: sample `s` has the examples `s · cells .. (s + 1) · cells`.
    fn cells(&self) -> usize {
        1
    }
    /// The index of the first example whose context is equal to that of the example at `index`, or begins alike. Examples with
    /// equal values are run one after the other, so that the model prefills the shared part only once. Random draws that affect
    /// only a context use this index too, and so are the same for all of them.
    fn context_of(&self, index: usize) -> usize {
        index
    }
    /// A lower bound of the tokens of any example that is known without making one. If it exceeds what the model can read, the
    /// task is refused before an example is made.
    fn least_tokens(&self) -> usize {
        0
    }
    /// Whether examples are generated to fill a length in tokens.
    fn is_sized(&self) -> bool;
    /// Whether prompts that are too long are shortened ([`PromptRules::cut`]). A length is then a limit, not a size.
    fn is_cut(&self) -> bool {
        false
    }
    /// The digest of the task's options and data ([`digest::of`](super::digest::of)): everything that its examples depend on
    /// besides program, length, index, seed and tokenizer. Tasks with equal digests make equal examples.
    fn inputs(&self) -> String;
    /// Whether a file fixes the prompts. They may be too long for the model, so all of them are counted before a run.
    fn is_given(&self) -> bool {
        self.available().is_some() && !self.is_sized() && !self.is_cut()
    }
    /// The file and line of the example at `index`, for messages; `None` if it is generated.
    fn place_of(&self, _index: usize) -> Option<String> {
        None
    }
    /// What the user should know about the task's data, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// The example at `index`, whose prompt and answer take `length` tokens. `seed` is the run's seed. Equal `(seed, length,
    /// index)` and tokenizer give the same example, whatever was made before.
    ///
    /// # Errors
    /// If the task cannot fit `length` tokens, its data is malformed, or it does not generate answers ([`Task::likelihood`]).
    fn example(&self, _length: usize, _index: usize, _seed: u64, _counter: &dyn PromptCounter) -> Result<Example> {
        let what = format!("`{}` is scored by the likelihood of given text: it has no prompt to answer", self.name());
        Err(UsageError::new(what).hint("spattn eval runs it").into())
    }
    /// The task as a task of passages, if the likelihood of given text is scored; `None` if the model generates answers.
    fn likelihood(&self) -> Option<&dyn LikelihoodTask> {
        None
    }
}

/// How examples are placed and ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Every shuffle is drawn anew for every example.
    #[default]
    Varied,
    /// Shuffles use the fixed seeds of the published generators. In RULER's `qa`, `cwe` and `fwe`, the answer's text is then at
    /// the same depth in every example of the same size.
    Published,
}

impl FromStr for Positions {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        match text {
            "varied" => Ok(Self::Varied),
            "published" => Ok(Self::Published),
            other => Err(UsageError::unknown("positions", other, ["varied", "published"])),
        }
    }
}

/// The user's options that apply to all tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions {
    /// A folder with data sets, essays and word lists (`--data`); [`assets`](super::assets) lists the files.
    pub data: Option<PathBuf>,
    /// How examples are placed and ordered.
    pub positions: Positions,
    /// Whether malformed rows of files are left out and noted (`--skip-bad`). Otherwise they are errors.
    pub skip_bad: bool,
}

/// A task as `spattn list tasks` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskInfo {
    /// Full name, such as `ruler/vt`.
    pub name: String,
    /// A one-line description.
    pub about: String,
    /// How it is scored; `None` if that depends on the file.
    pub metric: Option<Metric>,
    /// Tokens to generate at most; `None` if that depends on the file, 0 if given text is scored.
    pub max_new_tokens: Option<usize>,
    /// Options of the task with their defaults.
    pub parameters: Vec<(String, String)>,
    /// The full name of the published task that it replaces with synthetic data. Scores of the two are not comparable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stands_in_for: Option<String>,
}

/// A family of tasks, which share one implementation. `registry.rs` lists all families.
pub trait Family: Sync {
    /// Every task of the family, for listing.
    fn catalog(&self) -> Vec<TaskInfo>;
    /// Names that stand for several tasks.
    fn groups(&self) -> Vec<String>;
    /// The full names of the tasks that `name` (a task, a group or a file) stands for; `None` if it belongs to another family.
    fn expand(&self, name: &str, options: &TaskOptions) -> Option<Vec<String>>;
    /// Makes the task with the full name `name`, which is one from [`Family::expand`].
    ///
    /// # Errors
    /// A [`UsageError`] if the task needs missing data; other errors if data is malformed.
    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_by_name() {
        assert_eq!("published".parse(), Ok(Positions::Published));
        assert!("fixed".parse::<Positions>().is_err());
    }
}
