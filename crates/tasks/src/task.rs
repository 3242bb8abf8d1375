//! What a task is: examples with answer keys, how a family of tasks makes them, and what a user chose for tasks in general.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::likelihood::LikelihoodTask;
use super::metrics::{self, Metric};
use spattn_base::error::UsageError;

/// Counts tokens of a whole prompt as the evaluated model will see it:
/// BOS, chat template, user turn and the opened answer included.
pub trait PromptCounter: Sync {
    /// Tokens of the prompt made of the user's text and the start of the answer.
    fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize>;
}

/// One prompt with its answer key.
///
/// The user's turn is `context + question`, byte for byte; `answer_prefix` opens the answer
/// (after the assistant header, where the model has a chat template).
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Full task name as recorded, such as `ruler/vt`; synthetic stand-ins carry their own name.
    pub task: String,
    /// The length asked for in tokens, prompt and answer together; 0 if a file fixes it.
    pub length: usize,
    /// Position of the example in its task, from 0.
    pub index: usize,
    /// Text up to the question.
    pub context: String,
    /// Text from the first character of the question to the end of the user's turn.
    pub question: String,
    /// Start of the answer that the model continues; may be empty.
    pub answer_prefix: String,
    /// Acceptable answers, or all parts of the answer, as the metric reads them.
    pub references: Vec<String>,
    /// Class names for classification metrics; empty otherwise.
    pub all_classes: Vec<String>,
    /// How a prediction is scored.
    pub metric: Metric,
    /// Further metrics to record beside it.
    pub also: Vec<Metric>,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// How deep in the context lies what is asked for, in percent, where the task decides it.
    pub depth: Option<f64>,
    /// Where text and words came from, such as `grammar` or `essays`; part of the record.
    pub source: String,
    /// What the benchmark does with prompt and prediction besides.
    pub rules: PromptRules,
}

/// What a benchmark's own program does with a prompt and a prediction, where it differs from the usual: all of the
/// prompt in the model's chat template, and all of the prediction scored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptRules {
    /// The prompt is plain text, even for a model with a chat template.
    pub plain: bool,
    /// What is cut out of a prompt that is too long.
    pub cut: Cut,
    /// A line break ends the answer, which has at least one token.
    pub ends_at_line: bool,
    /// Only the first line of the prediction is scored.
    pub first_line: bool,
    /// Texts that end the answer where they come up in it, and do not belong to it.
    pub until: &'static [String],
    /// Whether the prompt may be one that was put into a chat template before, which is then not put into another unasked.
    pub may_be_templated: bool,
}

/// What a benchmark cuts out of a prompt that is too long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cut {
    /// Nothing: such a prompt does not fit.
    #[default]
    Nothing,
    /// The middle of the user's turn.
    Middle,
    /// The end of the context, in whose place a text says so.
    EndOfContext(String),
}

impl PromptRules {
    /// A prediction up to where it ends.
    pub fn ended<'a>(&self, prediction: &'a str) -> &'a str {
        ended(prediction, self.until)
    }
}

/// A prediction up to the first of the texts that end it.
pub fn ended<'a>(prediction: &'a str, until: &[String]) -> &'a str {
    let end = until.iter().filter_map(|text| prediction.find(text.as_str())).min();
    &prediction[..end.unwrap_or(prediction.len())]
}

impl Example {
    /// The user's turn.
    pub fn user_turn(&self) -> String {
        format!("{}{}", self.context, self.question)
    }

    /// The score of a prediction in 0..=1, cleaned before as the benchmark does it.
    pub fn score(&self, prediction: &str) -> f64 {
        self.score_by(self.metric, prediction)
    }

    /// The same by another metric, such as one of [`also`](Self::also).
    pub fn score_by(&self, metric: Metric, prediction: &str) -> f64 {
        let kept = if self.rules.first_line { metrics::first_line(prediction) } else { prediction };
        metric.score(&metric.postprocess(kept), &self.references, &self.all_classes)
    }
}

/// One task that can make examples, or passages ([`Task::likelihood`]).
pub trait Task: Send + Sync {
    /// Full name as recorded, such as `ruler/vt`.
    fn name(&self) -> &str;
    /// Number of samples if a file fixes it; `None` if they are generated, or it depends on the length.
    fn available(&self) -> Option<usize>;
    /// Examples that make up one sample at each length: the cells of a grid. The sample `s` is the examples
    /// from `s · cells` to before `(s + 1) · cells`.
    fn cells(&self) -> usize {
        1
    }
    /// The index of the first example that asks about the same context as the one at `index`, or one that begins
    /// alike. Those are run one after the other, so that what they share is read once, and draws that concern
    /// a context alone are the same for all of them.
    fn context_of(&self, index: usize) -> usize {
        index
    }
    /// Tokens that every example has at least, as far as that is known without making one. What is more than the model
    /// can read is refused before an example is made.
    fn least_tokens(&self) -> usize {
        0
    }
    /// Whether examples are generated to a length (then `example` fills `length` tokens).
    fn is_sized(&self) -> bool;
    /// Whether examples that are too long may be cut ([`PromptRules::cut`]): lengths are then limits.
    fn is_cut(&self) -> bool {
        false
    }
    /// Digest of everything that its examples are made of besides program, length, index, seed and tokenizer: options and
    /// data ([`digest::of`](super::digest::of)). Where it is the same, so are the examples.
    fn inputs(&self) -> String;
    /// Whether a file fixes the prompts, which a model may be unable to read as they are: they are looked at before a run.
    fn is_given(&self) -> bool {
        self.available().is_some() && !self.is_sized() && !self.is_cut()
    }
    /// Where the example at `index` stands in a file, as messages name it.
    fn place_of(&self, _index: usize) -> Option<String> {
        None
    }
    /// What the user should know about the task's data, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// The example at `index`. `seed` is the run's seed: the same `(seed, length, index)` gives the
    /// same example for the same tokenizer, whatever was generated before.
    ///
    /// # Errors
    /// If the task cannot fit `length` tokens, its data is malformed, or nothing is generated in it
    /// ([`Task::likelihood`]).
    fn example(&self, _length: usize, _index: usize, _seed: u64, _counter: &dyn PromptCounter) -> Result<Example> {
        let what = format!("`{}` is scored by the likelihood of given text: it has no prompt to answer", self.name());
        Err(UsageError::new(what).hint("spattn eval runs it").into())
    }
    /// The task as one of passages, if the model is scored by the likelihood of given text rather than by what it
    /// generates.
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
    /// As the published generators do it, their fixed shuffles included: RULER's `qa`, `cwe` and `fwe`
    /// then place what is asked for at the same depth in every example of the same size.
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

/// What the user chose for tasks in general.
#[derive(Debug, Clone, Default)]
pub struct TaskOptions {
    /// A folder with data sets, essays and word lists (`--data`); see [`assets`](super::assets) for what is looked for.
    pub data: Option<PathBuf>,
    /// How examples are placed and ordered.
    pub positions: Positions,
    /// Whether malformed rows of files are left out, and noted, instead of being an error.
    pub skip_bad: bool,
}

/// A task as `spattn list tasks` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskInfo {
    /// Full name, such as `ruler/vt`.
    pub name: String,
    /// What it asks, in one line.
    pub about: String,
    /// How it is scored; `None` if that depends on the file.
    pub metric: Option<Metric>,
    /// Tokens to generate at most; `None` if that depends on the file, 0 if given text is scored.
    pub max_new_tokens: Option<usize>,
    /// Parameters and their values, in order of name.
    pub parameters: Vec<(String, String)>,
    /// The published task that it stands in for with synthetic data, by its full name: their scores are not the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stands_in_for: Option<String>,
}

/// A family of tasks.
pub trait Family: Sync {
    /// Every task of the family.
    fn catalog(&self) -> Vec<TaskInfo>;
    /// Names that stand for several tasks.
    fn groups(&self) -> Vec<String>;
    /// The full task names that `name` (a task, a group, or a file) stands for; `None` if `name` is
    /// not of this family.
    fn expand(&self, name: &str, options: &TaskOptions) -> Option<Vec<String>>;
    /// The task with the full name `name`, one of those that [`Family::expand`] gives.
    ///
    /// # Errors
    /// A [`UsageError`] if the task needs data that is not there; other errors if data is malformed.
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
