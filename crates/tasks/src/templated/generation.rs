//! Generated answers (`gen/...`) to rows of published sets, with lm-eval's prompts: sums with their steps, conversations.
//!
//! `tasks/generation.toml` defines the tasks and names the source of their templates. As in lm-eval by default, there is no
//! chat template. An answer ends where one of the texts in `until` occurs. The questions of one row share its context, whose KV
//! cache is reused for all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::definition::{AnswerKind, Definition, TemplatedFamily, file_name, file_patterns, parse_definitions};
use super::examples::Examples;
use super::fields::Fields;
use super::reading::{alternating, subject_of};
use super::shots::{self, Shots};
use crate::metrics::Metric;
use crate::metrics::lm_eval::distinct_answers;
use crate::question_places::no_such_question;
use crate::{Example, PromptCounter, PromptRules, Task, TaskOptions, answers, digest};
use spattn_base::error::UsageError;

const SUBJECTS: &str =
    "rows name their subject as the published set does, in the field `subject` or by their file: anatomy_test.csv";

/// What a definition states about a generated answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Generation {
    /// Expression that gives the numbers of a row's questions, if it has several.
    turns: Option<String>,
    /// Template of everything before the question.
    context: String,
    /// Template of the question, to the end of the prompt.
    question: String,
    /// Template of a JSON list with the acceptable answers.
    answers: String,
    /// Texts that end an answer.
    until: Vec<String>,
    max_new_tokens: usize,
    metric: Metric,
    /// Metrics that are recorded in addition.
    also: Vec<Metric>,
    /// Solved examples before a question by default.
    #[serde(default)]
    shots: usize,
    /// Solved examples that are the same for every question, each with the text that separates it from what follows.
    #[serde(default)]
    examples: Vec<String>,
    /// Rows of another file that serve as solved examples instead.
    drawn: Option<ExampleRows>,
    /// Solved examples of the question's subject instead.
    by_subject: Option<BySubject>,
}

/// Solved examples for each subject, from a file that is embedded in the program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BySubject {
    file: SubjectFile,
    /// Template of an example with `question` and `target`, and the text that separates it from what follows.
    example: String,
}

/// The embedded files of solved examples.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SubjectFile {
    MmluFlanCot,
}

impl SubjectFile {
    fn text(self) -> &'static str {
        match self {
            Self::MmluFlanCot => include_str!("../../tasks/mmlu_flan_cot.json"),
        }
    }
}

/// For each subject, its description and its solved examples as texts.
type Subjects = BTreeMap<String, (String, Vec<String>)>;

/// What the file states about a subject: the text before its questions.
#[derive(Debug, Clone, Deserialize)]
struct Subject {
    description: String,
    /// Pairs of question and answer.
    examples: Vec<[String; 2]>,
}

impl BySubject {
    /// Fills the template for every example in the file.
    fn read_subjects(&self) -> Result<Subjects> {
        #[derive(Deserialize)]
        struct File {
            subjects: BTreeMap<String, Subject>,
        }
        let all: File = serde_json::from_str(self.file.text()).context("examples of subjects")?;
        let shown = |[question, target]: &[String; 2]| {
            let row = Map::from_iter([
                ("question".to_owned(), question.as_str().into()),
                ("target".to_owned(), target.as_str().into()),
            ]);
            Fields::new(&row)?.text(&self.example)
        };
        let of_subject = |(name, subject): (String, Subject)| {
            let examples = subject.examples.iter().map(shown).collect::<Result<Vec<String>>>()?;
            Ok((name, (subject.description, examples)))
        };
        all.subjects.into_iter().map(of_subject).collect()
    }
}

/// Rows of another file as solved examples.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExampleRows {
    /// The files of these rows; the first pattern that matches a file is used.
    files: Vec<String>,
    /// Template of a row with its answer.
    solved: String,
}

static DEFINITIONS: LazyLock<Vec<Definition<Generation>>> =
    LazyLock::new(|| parse_definitions(include_str!("../../tasks/generation.toml")));

/// The family of generated answers.
pub(crate) static GENERATION: TemplatedFamily<Generation> = TemplatedFamily::new();

/// All file patterns that the family looks for in a data folder.
pub(crate) fn patterns() -> impl Iterator<Item = &'static str> {
    file_patterns::<Generation>()
}

impl AnswerKind for Generation {
    const PREFIX: &'static str = "gen/";

    fn definitions() -> &'static [Definition<Self>] {
        &DEFINITIONS
    }

    fn metric(&self) -> Option<Metric> {
        Some(self.metric)
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }

    fn default_shots(&self) -> Option<usize> {
        (self.shots > 0).then_some(self.shots)
    }

    fn example_files(&self) -> &[String] {
        self.drawn.as_ref().map_or(&[], |drawn| &drawn.files)
    }

    fn seed_refusal(&self, name: &str) -> Option<(String, &'static str)> {
        let why = || format!("the examples of {name} are fixed, not drawn at random");
        self.drawn.is_none().then(|| (why(), "leave out shots_seed"))
    }

    fn options_hint(&self) -> &'static str {
        match &self.drawn {
            Some(_) => "for example gen/gsm8k:shots=5,shots_seed=1234 for the rows that lm-eval draws",
            None => "for example gen/gsm8k_cot:shots=4 for the first four",
        }
    }

    fn open(definition: &'static Definition<Self>, shots: Shots, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(GenerationTask::open(definition, shots, options)?))
    }
}

/// A question of a row, with all its templates filled in.
///
/// The digest of a task's inputs hashes its fields in this order.
#[derive(Hash)]
struct Question {
    subject: String,
    context: String,
    question: String,
    answers: Vec<String>,
}

impl Generation {
    /// The numbers of a row's questions; a single question has the number 0.
    fn turns(&self, row: &Map<String, Value>) -> Result<Vec<usize>> {
        let Some(turns) = &self.turns else { return Ok(vec![0]) };
        let turns = Fields::new(row)?.value(turns)?.try_iter()?.map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        anyhow::ensure!(!turns.is_empty(), "there is no question");
        Ok(turns)
    }

    /// The question numbered `turn` of a row of the file `path`.
    fn question(&self, mut row: Map<String, Value>, path: &Path, turn: usize) -> Result<Question> {
        row.insert("turn".to_owned(), turn.into());
        let subject = self.by_subject.as_ref().map_or_else(String::new, |_| subject_of(&mut row, path));
        let fields = Fields::new(&row)?;
        let answers: Vec<String> =
            serde_json::from_str(&fields.text(&self.answers)?).context("answers are not text")?;
        answers::check_published(self.metric, &answers)?;
        Ok(Question {
            subject,
            context: fields.prompt(&self.context)?,
            question: fields.prompt(&self.question)?,
            answers: distinct_answers(&answers).into_iter().cloned().collect(),
        })
    }

    /// All questions of a row.
    fn questions(&self, row: Map<String, Value>, path: &Path) -> Result<Vec<Question>> {
        self.turns(&row)?.into_iter().map(|turn| self.question(row.clone(), path, turn)).collect()
    }
}

impl Definition<Generation> {
    /// The solved examples for `questions` questions, and notes on rows that were left out.
    ///
    /// # Errors
    /// If a file of examples is missing or malformed, or has too few examples.
    fn solved_examples(
        &self,
        shots: Shots,
        name: &str,
        (questions, subjects): (usize, Subjects),
        options: &TaskOptions,
    ) -> Result<(SubjectExamples, Vec<String>)> {
        let (all, notes) = match &self.answer.drawn {
            Some(rows) if shots.count > 0 => self.solved_rows(rows, name, options)?,
            _ => (self.answer.examples.clone(), Vec::new()),
        };
        let there = subjects.values().map(|(_, examples)| examples.len()).min().unwrap_or(all.len());
        if there < shots.count {
            let what = format!("`{name}`: there are {there} examples");
            return Err(UsageError::new(what).hint("ask for fewer shots").into());
        }
        let numbers = |count: usize| (0..count as u64).collect::<Vec<_>>();
        let draws = shots.seed.map(|seed| {
            // The examples come from another split than the questions, so none of them is a question itself.
            shots::draw_for_questions(seed, shots.count, false, &numbers(all.len()), &numbers(questions))
        });
        Ok((SubjectExamples { any: Examples { all, count: shots.count, draws }, subjects }, notes))
    }

    /// All rows with their answers, in the order of their file, and notes on rows that were left out.
    fn solved_rows(&self, rows: &ExampleRows, name: &str, options: &TaskOptions) -> Result<(Vec<String>, Vec<String>)> {
        let solved = |row: Map<String, Value>, _: &Path| Fields::new(&row)?.text(&rows.solved);
        let (made, _) = self.read_rows(&rows.files, name, options, solved)?;
        let notes = made.notes.clone();
        let mut placed = made.in_published_order();
        placed.sort_unstable_by_key(|(place, _)| *place);
        Ok((placed.into_iter().map(|(_, text)| text).collect(), notes))
    }
}

/// Solved examples, either for all questions or for each subject.
///
/// The digest of a task's inputs hashes its fields in this order.
#[derive(Hash)]
struct SubjectExamples {
    /// The examples for questions of subjects without their own.
    any: Examples<String>,
    /// The examples of each subject, of which the first ones are shown.
    subjects: Subjects,
}

impl SubjectExamples {
    /// The text before the question at index `question`.
    fn before(&self, question: usize, subject: &str) -> String {
        match self.subjects.get(subject) {
            Some((description, examples)) => format!("{description}{}", examples[..self.any.count].concat()),
            None => self.any.before(question, |_| true).into_iter().map(String::as_str).collect(),
        }
    }
}

/// A task of generated answers.
struct GenerationTask {
    definition: &'static Definition<Generation>,
    name: String,
    source: String,
    /// Each question, with the index of its row's first question.
    questions: Vec<(usize, Question)>,
    examples: SubjectExamples,
    notes: Vec<String>,
}

impl GenerationTask {
    fn open(definition: &'static Definition<Generation>, shots: Shots, options: &TaskOptions) -> Result<Self> {
        let name = definition.full_name(shots);
        let answer = &definition.answer;
        let subjects = answer.by_subject.as_ref().map(BySubject::read_subjects).transpose()?.unwrap_or_default();
        let read = |row, path: &Path| {
            let questions = answer.questions(row, path)?;
            let unknown = questions.iter().find(|q| !subjects.is_empty() && !subjects.contains_key(&q.subject));
            match unknown {
                Some(question) => {
                    anyhow::bail!("there are no examples of the subject `{}`: {SUBJECTS}", question.subject)
                }
                None => Ok(questions),
            }
        };
        let (made, files) = definition.read_rows(&definition.files, &name, options, read)?;
        let mut notes = made.notes;
        let rows = alternating(made.items, |row: &Vec<Question>| row.first().map_or("", |q| q.subject.as_str()));
        let mut questions: Vec<(usize, Question)> = Vec::new();
        for row in rows {
            let first = questions.len();
            questions.extend(row.into_iter().map(|question| (first, question)));
        }
        let source = file_name(&files[0]);
        let (examples, of_examples) = definition.solved_examples(shots, &name, (questions.len(), subjects), options)?;
        notes.extend(of_examples);
        let metric = answer.metric;
        let uncompared = questions.iter().filter(|(_, question)| metric.flaw(&question.answers).is_some()).count();
        notes.extend(answers::note(&source, uncompared, metric));
        Ok(Self { definition, name, source, questions, examples, notes })
    }
}

impl Task for GenerationTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, &self.questions, &self.examples))
    }

    fn available(&self) -> Option<usize> {
        Some(self.questions.len())
    }

    fn context_of(&self, index: usize) -> usize {
        self.questions.get(index).map_or(index, |(first, _)| *first)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn example(&self, _: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        let (_, question) =
            self.questions.get(index).ok_or_else(|| no_such_question(&self.name, self.questions.len(), index))?;
        Ok(Example {
            task: self.name.clone(),
            length: 0,
            index,
            context: self.examples.before(index, &question.subject) + &question.context,
            question: question.question.clone(),
            answer_prefix: String::new(),
            references: question.answers.clone(),
            all_classes: Vec::new(),
            metric: self.definition.answer.metric,
            also: self.definition.answer.also.clone(),
            max_new_tokens: self.definition.answer.max_new_tokens,
            depth: None,
            source: self.source.clone(),
            rules: PromptRules { plain: true, until: &self.definition.answer.until, ..PromptRules::default() },
        })
    }
}

#[cfg(test)]
mod tests;
