//! Multiple choice (`mcq/...`): the model chooses the option to which it gives the highest likelihood after the question.
//!
//! `tasks/multiple_choice.toml` defines the tasks and names the source of their templates. The conventions are lm-eval's:
//!
//! - There is no chat template.
//! - Context and option are split into tokens together, and the tokens after those of the context alone are scored.
//! - `acc` takes the option with the highest log-likelihood, `acc_norm` the one with the highest log-likelihood per
//!   character.
//! - Solved examples before the question (`shots`) are the first rows of their file, the same for all questions; with
//!   `shots_seed` they are drawn as by lm-eval (`shots.rs`).
//! - If the rows are in several files, the task has the first row of each, then the second of each, and so on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::definition::{AnswerKind, Definition, TemplatedFamily, file_name, file_patterns, parse_definitions};
use super::examples::Examples;
use super::fields::Fields;
use super::reading::{RowItems, alternating, subject_of};
use super::shots::{self, Shots};
use crate::likelihood::{Continuation, LikelihoodTask, Passage, Scoring, TextEncoder};
use crate::metrics::Metric;
use crate::question_places::no_such_question;
use crate::{Task, TaskOptions, digest};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// Separates a question and its answer.
const DELIMITER: &str = " ";
/// Follows a solved example.
const SEPARATOR: &str = "\n\n";

/// What a definition states about a question with options.
#[derive(Debug, Deserialize)]
pub(crate) struct Choice {
    /// The files of rows for solved examples.
    shots: Vec<String>,
    /// Template of the text that comes first.
    #[serde(default)]
    description: String,
    /// Template of the question.
    prompt: String,
    /// Expression that gives the list of options.
    options: String,
    /// Template of the text after an option. If there is one, the option is part of the prompt, with no blank before it, and
    /// the likelihoods of this text are compared (Winogrande).
    rest: Option<String>,
    /// Expression that gives the options' labels, if rows name the right option by its label.
    labels: Option<String>,
    /// Expression that gives the index or the label of the right option.
    right: String,
    score: Accuracy,
    /// How lm-eval chooses its solved examples.
    #[serde(default)]
    drawn: DrawRule,
}

/// How lm-eval chooses the solved examples of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DrawRule {
    /// It draws as many as it shows.
    #[default]
    Exactly,
    /// It draws one more than it shows and drops the question itself, since the set has no test split.
    OneMore,
    /// It takes the first ones, whatever its seed.
    First,
}

impl DrawRule {
    /// How many more examples are drawn than shown.
    fn spare(self) -> usize {
        usize::from(self == Self::OneMore)
    }
}

/// lm-eval's accuracies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Accuracy {
    /// By log-likelihood.
    Acc,
    /// By log-likelihood per character of the option.
    AccNorm,
}

static DEFINITIONS: LazyLock<Vec<Definition<Choice>>> =
    LazyLock::new(|| parse_definitions(include_str!("../../tasks/multiple_choice.toml")));

/// The family of questions with options.
pub(crate) static MULTIPLE_CHOICE: TemplatedFamily<Choice> = TemplatedFamily::new();

/// All file patterns that the family looks for in a data folder.
pub(crate) fn patterns() -> impl Iterator<Item = &'static str> {
    file_patterns::<Choice>()
}

impl AnswerKind for Choice {
    const PREFIX: &'static str = "mcq/";

    fn definitions() -> &'static [Definition<Self>] {
        &DEFINITIONS
    }

    fn metric(&self) -> Option<Metric> {
        None
    }

    fn max_new_tokens(&self) -> usize {
        0
    }

    fn default_shots(&self) -> Option<usize> {
        Some(0)
    }

    fn example_files(&self) -> &[String] {
        &self.shots
    }

    fn seed_refusal(&self, name: &str) -> Option<(String, &'static str)> {
        let why = || format!("lm-eval takes the first examples of {name}, whatever its seed");
        (self.drawn == DrawRule::First)
            .then(|| (why(), "leave out shots_seed: the first ones are the default here too"))
    }

    fn options_hint(&self) -> &'static str {
        "for example mcq/arc_easy:shots=5, or mcq/arc_easy:shots=5,shots_seed=1234 for the rows that lm-eval draws"
    }

    fn open(definition: &'static Definition<Self>, shots: Shots, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(ChoiceTask::open(definition, shots, options)?))
    }
}

/// A question: a row with all its templates filled in.
///
/// The digest of a task's inputs hashes its fields in this order.
#[derive(Hash)]
struct Question {
    description: String,
    prompt: String,
    options: Vec<String>,
    /// The text after an option that is scored instead of the option.
    rest: Option<String>,
    /// Index of the right option.
    right: usize,
    /// The subject that the row states, or the name of its file without the split: `anatomy` for `anatomy_test.csv`.
    subject: String,
    /// The hash of the row, which identifies the question among the examples.
    row: u64,
    /// The index among all rows in their published order.
    place: usize,
}

impl Question {
    /// The question with its answer, as a solved example.
    fn solved(&self) -> String {
        let option = &self.options[self.right];
        match &self.rest {
            None => format!("{}{DELIMITER}{option}{SEPARATOR}", self.prompt),
            Some(rest) => format!("{}{option}{DELIMITER}{rest}{SEPARATOR}", self.prompt),
        }
    }

    /// The text of an option that is part of the prompt, and the text that is scored.
    fn halves(&self, option: &str) -> (String, String) {
        match &self.rest {
            None => (String::new(), format!("{DELIMITER}{option}")),
            Some(rest) => (option.to_owned(), format!("{DELIMITER}{rest}")),
        }
    }
}

/// The tokens of a prompt followed by one of its options.
struct OptionTokens {
    tokens: Vec<u32>,
    /// How many of the first tokens belong to the prompt, and so are not scored.
    given: usize,
    /// The text that is scored.
    after: String,
}

/// How many of the first tokens all options share and none scores.
fn common_tokens(splits: &[OptionTokens]) -> usize {
    let first = splits.first().map_or(&[][..], |split| &split.tokens[..split.given]);
    let same = |split: &OptionTokens| split.tokens[..split.given].iter().zip(first).take_while(|(a, b)| a == b).count();
    splits.iter().map(same).min().unwrap_or(0)
}

/// A task of questions with options.
struct ChoiceTask {
    name: String,
    source: String,
    /// Whether log-likelihoods are compared per character of the option.
    normalised: bool,
    questions: Vec<Question>,
    examples: Examples<Question>,
    notes: Vec<String>,
}

impl ChoiceTask {
    fn open(definition: &Definition<Choice>, shots: Shots, options: &TaskOptions) -> Result<Self> {
        let name = definition.full_name(shots);
        let read = |patterns: &[String]| {
            let make = |row, path: &Path| definition.answer.question(row, path);
            definition.read_rows(patterns, &name, options, make)
        };
        let (made, files) = read(&definition.files)?;
        let mut notes = made.notes.clone();
        let questions = with_places(made);
        let mut all = Vec::new();
        if shots.count > 0 {
            let (made, _) = read(&definition.answer.shots)?;
            notes.extend(made.notes.iter().cloned());
            all = with_places(made);
        }
        let draws = match shots.seed {
            Some(seed) => Some(draw_examples(seed, shots.count, definition.answer.drawn, &name, &mut all, &questions)?),
            None => None,
        };
        let source = match files.as_slice() {
            [file] => file_name(file),
            several => format!("{} files", several.len()),
        };
        Ok(Self {
            name,
            source,
            normalised: definition.answer.score == Accuracy::AccNorm,
            questions: alternating(questions, |question| question.subject.as_str()),
            examples: Examples { all, count: shots.count, draws },
            notes,
        })
    }

    /// What precedes the options: description, solved examples, question.
    fn context(&self, question: &Question) -> Result<String> {
        // If there are no examples of its subject, a question gets those of all subjects.
        let has_own = self.examples.all.iter().any(|example| example.subject == question.subject);
        let fits = |example: &Question| !has_own || example.subject == question.subject;
        let shots = self.examples.before(question.place, fits);
        if shots.len() < self.examples.count {
            let what = format!("`{}`: there are {} examples for {}", self.name, shots.len(), question.subject);
            return Err(UsageError::new(what).hint("ask for fewer shots").into());
        }
        let solved: String = shots.into_iter().map(Question::solved).collect();
        Ok(format!("{}{solved}{}", question.description, question.prompt))
    }
}

/// The questions, each with its place in the published order.
fn with_places(made: RowItems<Question>) -> Vec<Question> {
    made.in_published_order().into_iter().map(|(place, question)| Question { place, ..question }).collect()
}

/// For each question by its place, the indices of the `count` examples that lm-eval draws. Sorts `examples` by place.
///
/// # Errors
/// If there are fewer examples than one draw needs.
fn draw_examples(
    seed: u64,
    count: usize,
    rule: DrawRule,
    name: &str,
    examples: &mut [Question],
    questions: &[Question],
) -> Result<Vec<Vec<usize>>, UsageError> {
    let wanted = count + rule.spare();
    if examples.len() < wanted {
        let what = format!("`{name}`: {wanted} examples are needed, but there are {}", examples.len());
        return Err(UsageError::new(what).hint("ask for fewer shots"));
    }
    examples.sort_by_key(|example| example.place);
    let mut in_order: Vec<&Question> = questions.iter().collect();
    in_order.sort_by_key(|question| question.place);
    let pool: Vec<u64> = examples.iter().map(|example| example.row).collect();
    let asked: Vec<u64> = in_order.iter().map(|question| question.row).collect();
    Ok(shots::draw_for_questions(seed, count, rule == DrawRule::OneMore, &pool, &asked))
}

impl Choice {
    /// The question that a row of the file `path` asks.
    fn question(&self, mut row: Map<String, Value>, path: &Path) -> Result<Question> {
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&row)?.hash(&mut hasher);
        let subject = subject_of(&mut row, path);
        let fields = Fields::new(&row)?;
        let options = fields.list(&self.options)?;
        let labels = self.labels.as_deref().map_or(Ok(Vec::new()), |labels| fields.list(labels))?;
        anyhow::ensure!(
            labels.is_empty() || labels.len() == options.len(),
            "{} labels for {} options",
            labels.len(),
            options.len()
        );
        let twice = labels.iter().enumerate().find(|(at, label)| labels[..*at].contains(label));
        anyhow::ensure!(twice.is_none(), "two options have one label");
        let named = fields.value(&self.right)?;
        let right = named.to_string();
        // If options have labels, a text must be one of them; a number may also be an index.
        let is_place = labels.is_empty() || named.is_number();
        let right = labels
            .iter()
            .position(|label| *label == right)
            .or_else(|| right.parse().ok().filter(|_| is_place))
            .filter(|index| *index < options.len())
            .with_context(|| format!("`{right}` names none of {} options", options.len()))?;
        anyhow::ensure!(options.len() > 1, "there is only one option");
        let rest = self.rest.as_deref().map(|rest| fields.text(rest)).transpose()?;
        if options.iter().chain(&rest).any(|text| is_blank(text)) {
            anyhow::bail!("an option, or the text after it, is empty");
        }
        let (description, prompt) = (fields.text(&self.description)?, fields.prompt(&self.prompt)?);
        Ok(Question { description, prompt, options, rest, right, subject, row: hasher.finish(), place: 0 })
    }
}

impl Task for ChoiceTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, &self.questions, &self.examples.all, &self.examples.draws))
    }

    fn available(&self) -> Option<usize> {
        Some(self.questions.len())
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn likelihood(&self) -> Option<&dyn LikelihoodTask> {
        Some(self)
    }
}

impl LikelihoodTask for ChoiceTask {
    fn available(&self, _: usize, _: &dyn TextEncoder) -> Result<usize> {
        Ok(self.questions.len())
    }

    fn passage(&self, _: usize, index: usize, _: u64, encoder: &dyn TextEncoder) -> Result<Passage> {
        let question =
            self.questions.get(index).ok_or_else(|| no_such_question(&self.name, self.questions.len(), index))?;
        let context = self.context(question)?;
        let front = encoder.front();
        let split = |option: &String| -> Result<OptionTokens> {
            let (before, after) = question.halves(option);
            let before = format!("{context}{before}");
            // White space before an answer is part of the answer's first token.
            let (before, blank) = before.split_at(before.trim_end().len());
            let after = format!("{blank}{after}");
            let given = front.len() + encoder.encode(before)?.ids.len();
            let tokens = [front, &encoder.encode(&format!("{before}{after}"))?.ids].concat();
            if tokens.len() <= given {
                let what = format!("`{}`, question {index}: the option `{option}` has no token of its own", self.name);
                return Err(UsageError::new(what).into());
            }
            Ok(OptionTokens { tokens, given, after })
        };
        let splits = question.options.iter().map(split).collect::<Result<Vec<_>>>()?;
        let common = common_tokens(&splits);
        let continuation = |(option, split): (&String, &OptionTokens)| Continuation {
            tokens: split.tokens[common..].to_vec(),
            given: split.given - common,
            text: option.clone(),
            words: split.after.split_whitespace().count(),
            bytes: split.after.len(),
        };
        let continuations: Vec<Continuation> = question.options.iter().zip(&splits).map(continuation).collect();
        if common == 0 && continuations.iter().any(|c| c.given == 0) {
            let what = format!("`{}`, question {index}: there is no prompt before the options", self.name);
            return Err(UsageError::new(what).into());
        }
        Ok(Passage {
            task: self.name.clone(),
            length: 0,
            index,
            source: self.source.clone(),
            prompt: splits[0].tokens[..common].to_vec(),
            continuations,
            scoring: Scoring::Choice { right: question.right, normalised: self.normalised },
        })
    }
}

#[cfg(test)]
mod tests;
