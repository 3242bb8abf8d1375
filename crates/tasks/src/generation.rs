//! Free answers to the rows of published sets, in lm-eval's conventions: sums that are thought through, conversations.
//!
//! Templates are data (`tasks/generation.toml`, where their source is named); rows come from the user's data folder.
//! There is no chat template, as lm-eval has none by default, and the answer ends where a text of `until` comes up. The
//! questions of one row share its context, which is read once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::metrics::Metric;
use super::metrics::lm_eval::distinct_answers;
use super::shots::{self, Shots};
use super::templates::{self, Fields, Hub, Made};
use super::{Example, Family, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, answers, digest};
use spattn_base::error::UsageError;

const PREFIX: &str = "gen/";
const SUBJECTS: &str =
    "rows name their subject as the published set does, in the field `subject` or by their file: anatomy_test.csv";

/// A task as the file defines it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    /// Where the rows are looked for; the first pattern with a file counts.
    files: Vec<String>,
    /// Where rows are published.
    hub: Hub,
    /// Expression that gives the numbers of a row's questions, if it has several.
    turns: Option<String>,
    /// Everything before the question, as a template.
    context: String,
    /// The question to the end of the prompt, as a template.
    question: String,
    /// Template of a JSON list with the acceptable answers.
    answers: String,
    until: Vec<String>,
    max_new_tokens: usize,
    metric: Metric,
    also: Vec<Metric>,
    /// Examples before a question, unless the user says another number.
    #[serde(default)]
    shots: usize,
    /// Examples that are always the same, with what parts them from what follows.
    #[serde(default)]
    examples: Vec<String>,
    /// Rows that are examples instead.
    drawn: Option<Drawn>,
    /// Examples that every subject has of its own.
    by_subject: Option<BySubject>,
}

/// Examples of subjects, in a file of the program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BySubject {
    /// Which file.
    file: SubjectFile,
    /// An example with what parts it from what follows, as a template over its `question` and `target`.
    example: String,
}

/// The files of such examples.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SubjectFile {
    MmluFlanCot,
}

impl SubjectFile {
    fn text(self) -> &'static str {
        match self {
            Self::MmluFlanCot => include_str!("../tasks/mmlu_flan_cot.json"),
        }
    }
}

/// The description of each subject, and its examples as they are shown.
type Subjects = BTreeMap<String, (String, Vec<String>)>;

/// What comes before the questions of a subject.
#[derive(Debug, Clone, Deserialize)]
struct Subject {
    description: String,
    /// Questions with answers.
    examples: Vec<[String; 2]>,
}

impl BySubject {
    /// The description of each subject, and its examples as they are shown.
    fn read(&self) -> Result<Subjects> {
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

/// Rows of another file as examples.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    /// Where they are looked for; the first pattern with a file counts.
    files: Vec<String>,
    /// A row with its answer, as a template.
    solved: String,
}

static DEFINITIONS: LazyLock<Vec<Definition>> =
    LazyLock::new(|| templates::definitions(include_str!("../tasks/generation.toml")));

/// All that is looked for in a data folder.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    let examples = DEFINITIONS.iter().filter_map(|d| d.drawn.as_ref()).flat_map(|drawn| &drawn.files);
    DEFINITIONS.iter().flat_map(|d| &d.files).chain(examples).map(String::as_str)
}

/// The family of free answers.
pub struct Generation;

impl Family for Generation {
    fn catalog(&self) -> Vec<TaskInfo> {
        let info = |d: &Definition| TaskInfo {
            name: format!("{PREFIX}{}", d.name),
            about: d.about.clone(),
            metric: Some(d.metric),
            max_new_tokens: Some(d.max_new_tokens),
            parameters: d.parameters(),
            stands_in_for: None,
        };
        DEFINITIONS.iter().map(info).collect()
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        let task = name.strip_prefix(PREFIX)?.split(':').next()?;
        DEFINITIONS.iter().any(|d| d.name == task).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        let (task, given) = rest.split_once(':').map_or((rest, None), |(task, given)| (task, Some(given)));
        let definition = DEFINITIONS
            .iter()
            .find(|d| d.name == task)
            .ok_or_else(|| UsageError::unknown("task", name, DEFINITIONS.iter().map(|d| d.name.as_str())))?;
        Ok(Box::new(Questions::open(definition, definition.shots(given, name)?, options)?))
    }
}

/// A question as it is put.
#[derive(Hash)]
struct Question {
    subject: String,
    context: String,
    question: String,
    answers: Vec<String>,
}

impl Definition {
    fn parameters(&self) -> Vec<(String, String)> {
        let count = (self.shots > 0).then(|| ("shots".to_owned(), self.shots.to_string()));
        let seed = self.drawn.as_ref().map(|_| ("shots_seed".to_owned(), "the first rows".to_owned()));
        count.into_iter().chain(seed).collect()
    }

    /// What the options after the task's name say.
    fn shots(&self, options: Option<&str>, name: &str) -> Result<Shots, UsageError> {
        if self.shots == 0 && options.is_some() {
            return Err(UsageError::new(format!("`{name}`: {PREFIX}{} has no options", self.name)));
        }
        let example = match &self.drawn {
            Some(_) => "for example gen/gsm8k:shots=5,shots_seed=1234 for the rows that lm-eval draws",
            None => "for example gen/gsm8k_cot:shots=4 for the first four",
        };
        let given = Shots::parse(options, name, self.shots, example)?;
        if self.drawn.is_none() && given.seed.is_some() {
            let what = format!("`{name}`: the examples of {} are given, not drawn", self.name);
            return Err(UsageError::new(what).hint("leave out shots_seed"));
        }
        given.check(name, example)
    }

    /// The examples before each of so many questions, and what was left out of their files.
    fn examples(
        &self,
        shots: Shots,
        name: &str,
        (questions, subjects): (usize, Subjects),
        options: &TaskOptions,
    ) -> Result<(Examples, Vec<String>)> {
        let (all, notes) = match &self.drawn {
            Some(drawn) if shots.count > 0 => drawn.read(name, &self.hub, options)?,
            _ => (self.examples.clone(), Vec::new()),
        };
        let there = subjects.values().map(|(_, examples)| examples.len()).min().unwrap_or(all.len());
        if there < shots.count {
            let what = format!("`{name}`: there are {there} examples");
            return Err(UsageError::new(what).hint("ask for fewer shots").into());
        }
        let numbers = |count: usize| (0..count as u64).collect::<Vec<_>>();
        let draws = shots.seed.map(|seed| {
            // The set that is asked is a split of its own, so no row has to be left out.
            shots::draw(seed, shots.count, false, &numbers(all.len()), &numbers(questions))
        });
        Ok((Examples { all, count: shots.count, draws, subjects }, notes))
    }

    fn turns(&self, row: &Map<String, Value>) -> Result<Vec<usize>> {
        let Some(turns) = &self.turns else { return Ok(vec![0]) };
        let turns = Fields::new(row)?.value(turns)?.try_iter()?.map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        anyhow::ensure!(!turns.is_empty(), "there is no question");
        Ok(turns)
    }

    fn question(&self, mut row: Map<String, Value>, path: &Path, turn: usize) -> Result<Question> {
        row.insert("turn".to_owned(), turn.into());
        let subject = self.by_subject.as_ref().map_or_else(String::new, |_| templates::subject_of(&mut row, path));
        let fields = Fields::new(&row)?;
        let answers: Vec<String> =
            serde_json::from_str(&fields.text(&self.answers)?).context("answers are no texts")?;
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

impl Drawn {
    /// All rows, solved, in the order of their file, and what was left out.
    fn read(&self, name: &str, hub: &Hub, options: &TaskOptions) -> Result<(Vec<String>, Vec<String>)> {
        let files = templates::found(options, &self.files, name, hub)?;
        let solved = |row: Map<String, Value>, _: &Path| Fields::new(&row)?.text(&self.solved);
        let made = templates::make_all(&files, options.skip_bad, hub, solved)?;
        let notes = made.notes.clone();
        let mut placed = made.in_published_order();
        placed.sort_unstable_by_key(|(place, _)| *place);
        Ok((placed.into_iter().map(|(_, text)| text).collect(), notes))
    }
}

/// Examples that come before questions.
#[derive(Hash)]
struct Examples {
    all: Vec<String>,
    count: usize,
    /// Those of each question, where they are drawn; else they are the first.
    draws: Option<Vec<Vec<usize>>>,
    /// What every subject has of its own: a description and examples, of which the first are shown.
    subjects: Subjects,
}

impl Examples {
    fn before(&self, question: usize, subject: &str) -> String {
        if let Some((description, examples)) = self.subjects.get(subject) {
            return format!("{description}{}", examples[..self.count].concat());
        }
        match self.draws.as_ref().and_then(|draws| draws.get(question)) {
            Some(rows) => rows.iter().map(|row| self.all[*row].as_str()).collect(),
            None => self.all[..self.count].concat(),
        }
    }
}

/// The questions of a task.
struct Questions {
    definition: &'static Definition,
    name: String,
    source: String,
    /// Each with the index of the first one of its row.
    questions: Vec<(usize, Question)>,
    examples: Examples,
    notes: Vec<String>,
}

impl Questions {
    fn open(definition: &'static Definition, shots: Shots, options: &TaskOptions) -> Result<Self> {
        let name = format!("{PREFIX}{}{}", definition.name, shots.suffix(definition.shots));
        let files = templates::found(options, &definition.files, &name, &definition.hub)?;
        let subjects = definition.by_subject.as_ref().map(BySubject::read).transpose()?.unwrap_or_default();
        let read = |row, path: &Path| {
            let questions = definition.questions(row, path)?;
            let unknown = questions.iter().find(|q| !subjects.is_empty() && !subjects.contains_key(&q.subject));
            match unknown {
                Some(question) => {
                    anyhow::bail!("there are no examples of the subject `{}`: {SUBJECTS}", question.subject)
                }
                None => Ok(questions),
            }
        };
        let Made { items, mut notes, .. } = templates::make_all(&files, options.skip_bad, &definition.hub, read)?;
        let items = templates::alternating(items, |row: &Vec<Question>| row.first().map_or("", |q| q.subject.as_str()));
        let mut questions: Vec<(usize, Question)> = Vec::new();
        for row in items {
            let first = questions.len();
            questions.extend(row.into_iter().map(|question| (first, question)));
        }
        let source = files[0].file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let (examples, of_examples) = definition.examples(shots, &name, (questions.len(), subjects), options)?;
        notes.extend(of_examples);
        let metric = definition.metric;
        let uncompared = questions.iter().filter(|(_, question)| metric.flaw(&question.answers).is_some()).count();
        notes.extend(answers::note(&source, uncompared, metric));
        Ok(Self { definition, name, source, questions, examples, notes })
    }
}

impl Task for Questions {
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
        let (_, question) = self.questions.get(index).ok_or_else(|| {
            UsageError::new(format!("`{}` has {} questions, none at {index}", self.name, self.questions.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        Ok(Example {
            task: self.name.clone(),
            length: 0,
            index,
            context: self.examples.before(index, &question.subject) + &question.context,
            question: question.question.clone(),
            answer_prefix: String::new(),
            references: question.answers.clone(),
            all_classes: Vec::new(),
            metric: self.definition.metric,
            also: self.definition.also.clone(),
            max_new_tokens: self.definition.max_new_tokens,
            depth: None,
            source: self.source.clone(),
            rules: PromptRules { plain: true, until: &self.definition.until, ..PromptRules::default() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::testing::Words;

    fn task(name: &str, file: &str, text: &str, skip_bad: bool) -> Result<Box<dyn Task>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
        Generation.make(name, &options)
    }

    #[test]
    fn sums_come_after_eight_examples() {
        let row = r#"{"question": "How many?", "answer": "Three and four.\n#### 1,234 "}"#;
        let task = task("gen/gsm8k_cot", "gsm8k/test.jsonl", row, false).unwrap();
        let example = task.example(0, 0, 0, &Words).unwrap();
        assert_eq!(example.context.matches("\nA: ").count(), 8);
        assert!(example.context.starts_with("Q: There are 15 trees in the grove. Grove workers"));
        assert!(example.context.ends_with("23 - 15 is 8. The answer is 8.\n\n"));
        assert_eq!(example.question, "Q: How many?\nA:");
        assert_eq!(example.references, ["1,234"]);
        assert_eq!(example.score(" It is 1000 + 234. The answer is 1234.\n\nWell."), 1.0);
        assert_eq!(example.rules.until, ["Q:", "</s>", "<|im_end|>"]);
    }

    /// GSM8K's answers stand behind `####`; without it, lm-eval compares with the whole text, which nothing equals.
    #[test]
    fn sums_whose_answer_is_not_marked_are_refused() {
        for name in ["gen/gsm8k_cot", "gen/gsm8k:shots=0"] {
            let row = r#"{"question": "How many?", "answer": "Three and four is 7"}"#;
            let error = task(name, "gsm8k/test.jsonl", row, false).err().unwrap().to_string();
            assert!(error.contains("test.jsonl:1: there is no `####` in the text"), "{error}");
            for (row, said) in [
                (r#"{"question": "a", "answer": "b #### "}"#, "an answer is empty or white space"),
                (r#"{"question": " ", "answer": "b #### 7"}"#, "the field `question` is empty or white space"),
                (r#"{"question": ["a"], "answer": "b #### 7"}"#, "a field is sequence, no text"),
                (r#"{"question": null, "answer": "b #### 7"}"#, "a field is none, no text"),
            ] {
                let error = task(name, "gsm8k/test.jsonl", row, false).err().unwrap().to_string();
                assert!(error.contains("test.jsonl:1: ") && error.contains(said), "{error}");
            }
            let notes = |answer: &str| {
                let row = format!(r#"{{"question": "a", "answer": "b #### {answer}"}}"#);
                task(name, "gsm8k/test.jsonl", &row, false).unwrap().notes()
            };
            assert_eq!(notes("1,234"), Vec::<String>::new());
            for answer in ["seven", "7 apples"] {
                assert!(notes(answer)[0].contains("1 row has answers of which"), "{:?}", notes(answer));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("gsm8k")).unwrap();
        let row = |answer: &str| format!("{{\"question\": \"q\", \"answer\": \"{answer}\"}}\n");
        std::fs::write(dir.path().join("gsm8k/test.jsonl"), row("#### 7")).unwrap();
        std::fs::write(dir.path().join("gsm8k/train.jsonl"), row("#### 7").repeat(5) + &row("7")).unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let error = Generation.make("gen/gsm8k", &options).err().unwrap().to_string();
        assert!(error.contains("train.jsonl:6: there is no `####` in the text"), "{error}");
    }

    #[test]
    fn problems_of_a_contest_are_asked_as_they_are() {
        let made =
            task("gen/aime24", "aime24/train.jsonl", r#"{"Problem": "How many?", "Answer": 25}"#, false).unwrap();
        let example = made.example(0, 0, 0, &Words).unwrap();
        assert_eq!((example.user_turn().as_str(), example.max_new_tokens), ("Question: How many?\nAnswer:", 32768));
        assert_eq!(example.references, ["25"]);
        assert_eq!(example.score("Two times. So it is $\\boxed{25}$."), 1.0);
        let written =
            task("gen/aime25", "aime25/test.jsonl", r#"{"problem": "How many?", "answer": "025"}"#, false).unwrap();
        assert_eq!(written.example(0, 0, 0, &Words).unwrap().references, ["025"], "as it is written");
    }

    #[test]
    fn fewer_examples_are_the_first_ones() {
        let row = r#"{"question": "How many?", "answer": "Well: #### 7"}"#;
        let made = |name: &str| task(name, "gsm8k/test.jsonl", row, false);
        let context = |name: &str| made(name).unwrap().example(0, 0, 0, &Words).unwrap().context;
        let (all, two) = (context("gen/gsm8k_cot"), context("gen/gsm8k_cot:shots=2"));
        assert!(two.matches("\nA: ").count() == 2 && all.starts_with(&two), "{two}");
        assert!(two.ends_with("The answer is 5.\n\n"), "{two}");
        assert_eq!(context("gen/gsm8k_cot:shots=0"), "");
        assert_eq!(made("gen/gsm8k_cot:shots=8").unwrap().name(), "gen/gsm8k_cot", "as without saying");
        let what = |name: &str| made(name).err().unwrap().to_string();
        assert_eq!(what("gen/gsm8k_cot:shots=9"), "`gen/gsm8k_cot:shots=9`: there are 8 examples");
        assert!(what("gen/gsm8k_cot:shots_seed=1").contains("are given, not drawn"));
        assert!(what("gen/gsm8k_cot:shot=1").contains("`shot=1` cannot be read"));
        assert!(what("gen/coqa:shots=1").contains("gen/coqa has no options"));
    }

    /// Prompts, answers and scores as lm-eval's own templates and pattern give them (`scripts/make_mmlu_flan_cot.py`).
    #[test]
    fn subjects_have_examples_of_their_own_as_lm_eval_has_them() {
        let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/mmlu_flan_cot.json")).unwrap();
        let prompts = golden["prompts"].as_array().unwrap();
        let rows: Vec<String> = prompts.iter().map(|p| p["row"].to_string()).collect();
        let made = task("gen/mmlu_flan_cot", "mmlu/test/all.jsonl", &rows.join("\n"), false).unwrap();
        assert_eq!(made.available(), Some(prompts.len()));
        for (index, expected) in prompts.iter().enumerate() {
            let example = made.example(0, index, 0, &Words).unwrap();
            assert_eq!(example.user_turn(), expected["prompt"].as_str().unwrap());
            assert_eq!(example.references, [expected["answer"].as_str().unwrap()]);
            assert_eq!(example.rules.until, ["</s>"]);
        }
        let first = made.example(0, 0, 0, &Words).unwrap();
        assert_eq!(first.references, ["(A)"]);
        for pair in golden["scores"].as_array().unwrap() {
            assert_eq!(Some(first.score(pair[0].as_str().unwrap())), pair[1].as_f64(), "{}", pair[0]);
        }
        let two = task("gen/mmlu_flan_cot:shots=2", "mmlu/test/all.jsonl", &rows[0], false).unwrap();
        let shown = two.example(0, 0, 0, &Words).unwrap().user_turn();
        assert_eq!(shown.matches("\nA: Let's think step by step.").count(), 3, "{shown}");
        let what = |name: &str, file: &str, row: &str| task(name, file, row, false).err().unwrap().to_string();
        let own = "mmlu/test/all.jsonl";
        assert!(what("gen/mmlu_flan_cot:shots=5", own, &rows[0]).ends_with("there are 4 examples"));
        assert!(what("gen/mmlu_flan_cot:shots_seed=1", own, &rows[0]).contains("are given, not drawn"));
        assert!(
            what("gen/mmlu_flan_cot", own, &rows[0].replace("anatomy", "alchemy")).contains("of the subject `alchemy`")
        );
    }

    #[test]
    fn published_tables_name_their_subjects_and_alternate() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("mmlu/test")).unwrap();
        for (file, letter) in [("anatomy_test.csv", "B"), ("virology_test.csv", "D")] {
            let rows = format!("first,w,x,y,z,{letter}\nsecond,w,x,y,z,{letter}\n");
            std::fs::write(dir.path().join("mmlu/test").join(file), rows).unwrap();
        }
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let made = Generation.make("gen/mmlu_flan_cot:shots=0", &options).unwrap();
        let of = |index| made.example(0, index, 0, &Words).unwrap();
        let about = |subject| format!("The following are multiple choice questions (with answers) about {subject}.");
        let asked = |name| format!("Q: {name}\n(A) w (B) x (C) y (D) z\nA: Let's think step by step.");
        assert_eq!(of(0).user_turn(), about("anatomy") + &asked("first"));
        assert_eq!(of(1).user_turn(), about("virology") + &asked("first"));
        assert_eq!(of(2).user_turn(), about("anatomy") + &asked("second"));
        assert_eq!((of(0).references, of(3).references), (vec!["(B)".to_owned()], vec!["(D)".to_owned()]));
    }

    /// `random.Random(1234)` of CPython 3.11: `sample(range(40), 2)` twice.
    const DRAWN: [[usize; 2]; 2] = [[28, 7], [0, 5]];

    #[test]
    fn training_rows_are_the_examples_of_the_other_set() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("gsm8k")).unwrap();
        let row = |i: usize| format!("{{\"question\": \"q{i}\", \"answer\": \"So <<1+1=2>>.\\n#### {i}\"}}\n");
        let rows = |first: usize, count: usize| (first..first + count).map(row).collect::<String>();
        std::fs::write(dir.path().join("gsm8k/test.jsonl"), rows(100, 2)).unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let error = Generation.make("gen/gsm8k", &options).err().unwrap().downcast::<UsageError>().unwrap();
        assert!(error.hint.unwrap().contains("gsm8k/train.jsonl"));
        assert!(Generation.make("gen/gsm8k:shots=0", &options).is_ok());
        std::fs::write(dir.path().join("gsm8k/train.jsonl"), rows(0, 40)).unwrap();
        let solved = |i: usize| format!("Question: q{i}\nAnswer: So <<1+1=2>>.\n#### {i}\n\n");
        let task = Generation.make("gen/gsm8k", &options).unwrap();
        let example = task.example(0, 1, 0, &Words).unwrap();
        assert_eq!(example.context, (0..5).map(solved).collect::<String>());
        assert_eq!(
            (example.question.as_str(), example.references),
            ("Question: q101\nAnswer:", vec!["101".to_owned()])
        );
        assert_eq!((example.metric, task.name()), (Metric::Gsm8kHashes, "gen/gsm8k"));
        let name = "gen/gsm8k:shots=2,shots_seed=1234";
        let drawn = Generation.make(name, &options).unwrap();
        assert_eq!(drawn.name(), name);
        for (index, rows) in DRAWN.into_iter().enumerate() {
            assert_eq!(drawn.example(0, index, 0, &Words).unwrap().context, rows.map(solved).concat());
        }
    }

    const STORY: &str = r#"{"story": "Ann ran.", "questions": {"input_text": ["Who ran?", "Why?"]}, "answers": {"input_text": ["Ann", "no idea"]}, "additional_answers": {"0": {"input_text": ["ann", "unknown"]}, "1": {"input_text": ["she", "no idea"]}}}"#;

    #[test]
    fn a_conversation_is_asked_with_the_answers_before() {
        let all = task("gen/coqa", "coqa/validation.jsonl", &format!("{STORY}\n{STORY}"), false).unwrap();
        assert_eq!((all.available(), all.context_of(1), all.context_of(3)), (Some(4), 0, 2));
        let first = all.example(0, 0, 0, &Words).unwrap();
        assert_eq!((first.context.as_str(), first.question.as_str()), ("Ann ran.\n\n", "Q: Who ran?\n\nA:"));
        assert_eq!(first.references, ["Ann", "she"], "capitals make no other answer");
        let second = all.example(0, 1, 0, &Words).unwrap();
        assert_eq!(second.user_turn(), "Ann ran.\n\nQ: Who ran?\n\nA: Ann\n\nQ: Why?\n\nA:");
        assert_eq!(second.references, ["no idea", "unknown"]);
        let last = task("gen/coqa_last_turn", "coqa/validation.jsonl", STORY, false).unwrap();
        assert_eq!(last.available(), Some(1));
        assert_eq!(last.example(0, 0, 0, &Words).unwrap().user_turn(), second.user_turn());
    }

    /// The rows of the published document and of the hub's table are the same questions.
    #[test]
    fn the_published_document_has_the_questions_of_the_hub() {
        let said = |texts: [&str; 2]| {
            let one = |(i, text): (usize, &str)| serde_json::json!({"input_text": text, "turn_id": i + 1});
            texts.into_iter().enumerate().map(one).collect::<Vec<_>>()
        };
        let mut answers = said(["Ann", "no idea"]);
        answers[1]["bad_turn"] = "true".into();
        let row = serde_json::json!({
            "id": "1", "story": "Ann ran.", "questions": said(["Who ran?", "Why?"]), "answers": answers,
            "additional_answers": {"0": said(["ann", "unknown"]), "1": said(["she", "no idea"])},
        });
        let document = serde_json::json!({"version": "1.0", "data": [row, row]}).to_string();
        for name in ["gen/coqa", "gen/coqa_last_turn"] {
            let published = task(name, "coqa/coqa-dev-v1.0.json", &document, false).unwrap();
            let hub = task(name, "coqa/validation.jsonl", &format!("{STORY}\n{STORY}"), false).unwrap();
            assert_eq!(published.available(), hub.available());
            for index in 0..hub.available().unwrap() {
                let (ours, theirs) = [&published, &hub].map(|t| t.example(0, index, 0, &Words).unwrap()).into();
                assert_eq!((ours.user_turn(), ours.references), (theirs.user_turn(), theirs.references));
                assert_eq!(published.context_of(index), hub.context_of(index));
            }
        }
    }

    #[test]
    fn malformed_rows_are_named_or_left_out() {
        let text = format!("{STORY}\n{{\"story\": \"x\"}}\n{STORY}");
        let error = task("gen/coqa", "coqa/validation.jsonl", &text, false).err().unwrap().to_string();
        assert!(error.contains("validation.jsonl:2: "), "{error}");
        let task = task("gen/coqa", "coqa/validation.jsonl", &text, true).unwrap();
        assert_eq!(task.available(), Some(4));
        assert!(task.notes()[0].contains("1 malformed row is left out (line 2)"), "{:?}", task.notes());
    }
}
