//! Multiple choice: which of some options the model finds most likely after the question.
//!
//! Templates are data (`tasks/multiple_choice.toml`, where their source is named); rows come from the user's data
//! folder, as JSON lines or CSV. The conventions are lm-eval's: no chat template; context and option are split into
//! tokens together, and what goes beyond the context's own tokens is scored; `acc` takes the greatest
//! log-likelihood, `acc_norm` the greatest over characters of the option. Examples before the question (`shots`) are
//! the first of their file, the same for all questions, or with `shots_seed` those that lm-eval draws
//! ([`shots`](super::shots)). Of several files, each gives its first row, then each its second, and so on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::likelihood::{Continuation, LikelihoodTask, Passage, Scoring, TextEncoder};
use super::shots::{self, Shots};
use super::templates::{self, Fields, Hub, Made};
use super::{Family, Task, TaskInfo, TaskOptions, digest};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

const PREFIX: &str = "mcq/";
/// How options are written.
const EXAMPLE: &str =
    "for example mcq/arc_easy:shots=5, or mcq/arc_easy:shots=5,shots_seed=1234 for the rows that lm-eval draws";
/// Between a question and its answer.
const DELIMITER: &str = " ";
/// Between examples.
const SEPARATOR: &str = "\n\n";

/// A task as the file defines it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    /// Where the rows are looked for; the first pattern with a file counts.
    files: Vec<String>,
    /// Where examples before the question come from.
    shots: Vec<String>,
    /// Where rows are published.
    hub: Hub,
    /// Text before everything, as a template.
    #[serde(default)]
    description: String,
    /// The question, as a template.
    prompt: String,
    /// Expression that gives the options.
    options: String,
    /// What follows an option, as a template. Options then belong to the prompt without a blank before them, and it is
    /// this text whose likelihood is compared.
    rest: Option<String>,
    /// Expression that gives the options' labels, if rows name the right one by label.
    labels: Option<String>,
    /// Expression that gives the index or label of the right option.
    right: String,
    score: Accuracy,
    /// How lm-eval comes by its examples.
    #[serde(default)]
    drawn: Drawn,
}

/// How lm-eval comes by the examples of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Drawn {
    /// It draws as many as are shown.
    #[default]
    Exactly,
    /// It draws one more and leaves out the question itself, as it does where there is no test split.
    OneMore,
    /// It takes the first ones, whatever its seed.
    First,
}

impl Drawn {
    fn spare(self) -> usize {
        usize::from(self == Self::OneMore)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Accuracy {
    Acc,
    AccNorm,
}

static DEFINITIONS: LazyLock<Vec<Definition>> =
    LazyLock::new(|| templates::definitions(include_str!("../tasks/multiple_choice.toml")));

/// All that is looked for in a data folder.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    DEFINITIONS.iter().flat_map(|d| d.files.iter().chain(&d.shots)).map(String::as_str)
}

/// The family of questions with options.
pub struct MultipleChoice;

impl Family for MultipleChoice {
    fn catalog(&self) -> Vec<TaskInfo> {
        let info = |d: &Definition| TaskInfo {
            name: format!("{PREFIX}{}", d.name),
            about: d.about.clone(),
            metric: None,
            max_new_tokens: Some(0),
            parameters: [("shots", "0"), ("shots_seed", "the first rows")]
                .into_iter()
                .filter(|(option, _)| *option == "shots" || d.drawn != Drawn::First)
                .map(|(option, value)| (option.to_owned(), value.to_owned()))
                .collect(),
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

impl Definition {
    /// What the options after a task's name say.
    fn shots(&self, options: Option<&str>, name: &str) -> Result<Shots, UsageError> {
        let given = Shots::parse(options, name, 0, EXAMPLE)?;
        if given.seed.is_some() && self.drawn == Drawn::First {
            let what = format!("`{name}`: lm-eval takes the first examples of {}, whatever its seed", self.name);
            return Err(UsageError::new(what).hint("leave out shots_seed: the first ones are the default here too"));
        }
        given.check(name, EXAMPLE)
    }
}

/// A question as it is put.
#[derive(Hash)]
struct Question {
    description: String,
    prompt: String,
    options: Vec<String>,
    /// What is scored after an option, if that is not itself scored.
    rest: Option<String>,
    right: usize,
    /// The file's name without its split.
    subject: String,
    /// Tells the row apart from others.
    row: u64,
    /// Place among the rows in their published order.
    place: usize,
}

impl Question {
    /// The question with its answer, as an example for another.
    fn solved(&self) -> String {
        let option = &self.options[self.right];
        match &self.rest {
            None => format!("{}{DELIMITER}{option}{SEPARATOR}", self.prompt),
            Some(rest) => format!("{}{option}{DELIMITER}{rest}{SEPARATOR}", self.prompt),
        }
    }

    /// For an option: text that belongs to the prompt, and text that is scored.
    fn halves(&self, option: &str) -> (String, String) {
        match &self.rest {
            None => (String::new(), format!("{DELIMITER}{option}")),
            Some(rest) => (option.to_owned(), format!("{DELIMITER}{rest}")),
        }
    }
}

/// A prompt with one of the options, in tokens.
struct Split {
    tokens: Vec<u32>,
    /// How many of them are not scored.
    given: usize,
    /// The text that is scored.
    after: String,
}

/// How many tokens all begin with that are scored in none.
fn common_tokens(splits: &[Split]) -> usize {
    let first = splits.first().map_or(&[][..], |split| &split.tokens[..split.given]);
    let same = |split: &Split| split.tokens[..split.given].iter().zip(first).take_while(|(a, b)| a == b).count();
    splits.iter().map(same).min().unwrap_or(0)
}

/// The questions of a task.
struct Questions {
    name: String,
    source: String,
    normalised: bool,
    questions: Vec<Question>,
    shots: Shots,
    examples: Vec<Question>,
    /// The examples of each question by its place, where they are drawn.
    draws: Option<Vec<Vec<usize>>>,
    notes: Vec<String>,
}

impl Questions {
    fn open(definition: &Definition, shots: Shots, options: &TaskOptions) -> Result<Self> {
        let name = format!("{PREFIX}{}{}", definition.name, shots.suffix(0));
        let read = |patterns: &[String]| {
            let files = templates::found(options, patterns, &name, &definition.hub)?;
            let make = |row, path: &Path| definition.question(row, path);
            Ok::<_, anyhow::Error>((templates::make_all(&files, options.skip_bad, &definition.hub, make)?, files))
        };
        let (made, files) = read(&definition.files)?;
        let mut notes = made.notes.clone();
        let questions = placed(made);
        let mut examples = Vec::new();
        if shots.count > 0 {
            let (made, _) = read(&definition.shots)?;
            notes.extend(made.notes.iter().cloned());
            examples = placed(made);
        }
        let draws = shots.seed.map(|seed| drawn(seed, shots.count, definition, &name, &mut examples, &questions));
        let (draws, questions) = (draws.transpose()?, templates::alternating(questions, |q| q.subject.as_str()));
        let label = files[0].file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let source = if files.len() == 1 { label } else { format!("{} files", files.len()) };
        let normalised = definition.score == Accuracy::AccNorm;
        Ok(Self { name, source, normalised, questions, shots, examples, draws, notes })
    }

    /// What comes before the options.
    fn context(&self, question: &Question) -> Result<String> {
        let shots: Vec<String> = match &self.draws {
            Some(draws) => draws[question.place].iter().map(|row| self.examples[*row].solved()).collect(),
            None => self.first_examples(question).map(Question::solved).collect(),
        };
        if shots.len() < self.shots.count {
            let what = format!("`{}`: there are {} examples for {}", self.name, shots.len(), question.subject);
            return Err(UsageError::new(what).hint("ask for fewer shots").into());
        }
        Ok(format!("{}{}{}", question.description, shots.concat(), question.prompt))
    }

    /// The first examples of a question's subject, or of all if there are none of it.
    fn first_examples<'a>(&'a self, question: &Question) -> impl Iterator<Item = &'a Question> {
        let is_own = |example: &&Question| example.subject == question.subject;
        let has_own = self.examples.iter().any(|example| is_own(&example));
        let subject = has_own.then(|| question.subject.clone());
        let fits = move |example: &&Question| subject.as_ref().is_none_or(|subject| example.subject == *subject);
        self.examples.iter().filter(fits).take(self.shots.count)
    }
}

/// The items, each with its place in the published order.
fn placed(made: Made<Question>) -> Vec<Question> {
    made.in_published_order().into_iter().map(|(place, question)| Question { place, ..question }).collect()
}

/// The examples of each question, by their places, as lm-eval draws them; `examples` are put into the order of their places.
fn drawn(
    seed: u64,
    count: usize,
    definition: &Definition,
    name: &str,
    examples: &mut [Question],
    questions: &[Question],
) -> Result<Vec<Vec<usize>>, UsageError> {
    let wanted = count + definition.drawn.spare();
    if examples.len() < wanted {
        let what = format!("`{name}`: there are {} examples, and {wanted} are drawn at a time", examples.len());
        return Err(UsageError::new(what).hint("ask for fewer shots"));
    }
    examples.sort_by_key(|example| example.place);
    let mut in_order: Vec<&Question> = questions.iter().collect();
    in_order.sort_by_key(|question| question.place);
    let rows = |questions: &[&Question]| questions.iter().map(|question| question.row).collect::<Vec<_>>();
    let pool = rows(&examples.iter().collect::<Vec<_>>());
    Ok(shots::draw(seed, count, definition.drawn == Drawn::OneMore, &pool, &rows(&in_order)))
}

impl Definition {
    fn question(&self, mut row: Map<String, Value>, path: &Path) -> Result<Question> {
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&row)?.hash(&mut hasher);
        let subject = templates::subject_of(&mut row, path);
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
        // Where options have labels, a text is one of them, and a number may be a place.
        let is_place = labels.is_empty() || named.is_number();
        let right = labels
            .iter()
            .position(|label| *label == right)
            .or_else(|| right.parse().ok().filter(|_| is_place))
            .filter(|index| *index < options.len())
            .with_context(|| format!("`{right}` names none of {} options", options.len()))?;
        anyhow::ensure!(options.len() > 1, "there is one option, which cannot be wrong");
        let rest = self.rest.as_deref().map(|rest| fields.text(rest)).transpose()?;
        if options.iter().chain(&rest).any(|text| is_blank(text)) {
            anyhow::bail!("an option, or what follows it, is empty");
        }
        let (description, prompt) = (fields.text(&self.description)?, fields.prompt(&self.prompt)?);
        Ok(Question { description, prompt, options, rest, right, subject, row: hasher.finish(), place: 0 })
    }
}

impl Task for Questions {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, &self.questions, &self.examples, &self.draws))
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

impl LikelihoodTask for Questions {
    fn available(&self, _: usize, _: &dyn TextEncoder) -> Result<usize> {
        Ok(self.questions.len())
    }

    fn passage(&self, _: usize, index: usize, _: u64, encoder: &dyn TextEncoder) -> Result<Passage> {
        let question = self.questions.get(index).ok_or_else(|| {
            UsageError::new(format!("`{}` has {} questions, none at {index}", self.name, self.questions.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let context = self.context(question)?;
        let front = encoder.front();
        let split = |option: &String| -> Result<Split> {
            let (before, after) = question.halves(option);
            let before = format!("{context}{before}");
            // White space before an answer belongs to the answer's first token.
            let (before, blank) = before.split_at(before.trim_end().len());
            let after = format!("{blank}{after}");
            let given = front.len() + encoder.encode(before)?.ids.len();
            let tokens = [front, &encoder.encode(&format!("{before}{after}"))?.ids].concat();
            if tokens.len() <= given {
                let what = format!("`{}`, question {index}: the option `{option}` has no token of its own", self.name);
                return Err(UsageError::new(what).into());
            }
            Ok(Split { tokens, given, after })
        };
        let splits = question.options.iter().map(split).collect::<Result<Vec<_>>>()?;
        let common = common_tokens(&splits);
        let continuation = |(option, split): (&String, &Split)| Continuation {
            tokens: split.tokens[common..].to_vec(),
            given: split.given - common,
            text: option.clone(),
            words: split.after.split_whitespace().count(),
            bytes: split.after.len(),
        };
        let continuations: Vec<Continuation> = question.options.iter().zip(&splits).map(continuation).collect();
        if common == 0 && continuations.iter().any(|c| c.given == 0) {
            let what = format!("`{}`, question {index}: nothing comes before the options", self.name);
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
mod tests {
    use super::*;
    use crate::likelihood::TextTokens;

    /// One token a character.
    struct Characters;

    impl TextEncoder for Characters {
        fn encode(&self, text: &str) -> Result<TextTokens> {
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
            Ok(TextTokens { ids: text.chars().map(u32::from).collect(), ends })
        }

        fn front(&self) -> &[u32] {
            &[1]
        }
    }

    /// Prompt, options and the right one of the first question of a task with these files.
    fn first(name: &str, files: &[(&str, &str)]) -> Result<(String, Vec<String>, usize)> {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let task = MultipleChoice.make(name, &options)?;
        let passage = task.likelihood().unwrap().passage(0, 0, 0, &Characters)?;
        let text = |ids: &[u32]| ids.iter().filter_map(|id| char::from_u32(*id)).collect::<String>();
        let Scoring::Choice { right, .. } = passage.scoring else { panic!("a choice") };
        let options = passage.continuations.iter().map(|c| text(&c.tokens)).collect();
        Ok((text(&passage.prompt[1..]), options, right))
    }

    #[test]
    fn prompts_are_lm_evals() {
        let arc =
            r#"{"question": "Why?", "choices": {"text": ["so", "not so"], "label": ["1", "2"]}, "answerKey": "2"}"#;
        let (prompt, options, right) = first("mcq/arc_challenge", &[("ARC-Challenge/test.jsonl", arc)]).unwrap();
        assert_eq!((prompt.as_str(), right), ("Question: Why?\nAnswer:", 1));
        assert_eq!(options, [" so", " not so"]);
        let boolq = r#"{"passage": "It is.", "question": "is it", "label": 1}"#;
        let (prompt, options, right) = first("mcq/boolq", &[("boolq/validation.jsonl", boolq)]).unwrap();
        assert_eq!((prompt.as_str(), right), ("It is.\nQuestion: is it?\nAnswer:", 1));
        assert_eq!(options, [" no", " yes"]);
        for (label, answer) in [("0", 0), ("false", 0), ("true", 1)] {
            let row = boolq.replace(r#""label": 1"#, &format!(r#""label": {label}"#));
            assert_eq!(first("mcq/boolq", &[("boolq/val.jsonl", &row)]).unwrap().2, answer, "{label}");
        }
        let piqa =
            [("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#), ("piqa/valid-labels.lst", "1\n")];
        let (prompt, options, right) = first("mcq/piqa", &piqa).unwrap();
        assert_eq!((prompt.as_str(), options.len(), right), ("Question: open\nAnswer:", 2, 1));
        let open = r#"{"question_stem": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A "}"#;
        assert_eq!(first("mcq/openbookqa", &[("openbookqa/test.jsonl", open)]).unwrap().0, "Ice is");
        let grande =
            r#"{"sentence": "Ann thanked Eve, as _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}"#;
        let (prompt, options, right) = first("mcq/winogrande", &[("winogrande/validation.jsonl", grande)]).unwrap();
        assert_eq!((prompt.as_str(), right), ("Ann thanked Eve, as ", 1));
        assert_eq!(options, ["Ann had helped.", "Eve had helped."]);
        let swag = r#"{"activity_label": "Baking", "ctx_a": "A man [substeps] stands.", "ctx_b": "the Man", "endings": ["goes [title] on.", "x"], "label": "0"}"#;
        let (prompt, options, _) = first("mcq/hellaswag", &[("hellaswag/validation.jsonl", swag)]).unwrap();
        assert_eq!(prompt, "Baking: A man stands. The man");
        assert_eq!(options, [" goes.  on.".replace("  ", " "), " x".to_owned()]);
    }

    #[test]
    fn examples_come_from_the_questions_own_subject() {
        let table = |question: &str, answer: &str| {
            format!("question,choice0,choice1,choice2,choice3,answer\n{question},w,\"x, y\",z,0,{answer}\n")
        };
        let files = [
            ("mmlu/test/world_history_test.csv", table("When?", "1")),
            ("mmlu/dev/anatomy_dev.csv", table("Where?", "2")),
            ("mmlu/dev/world_history_dev.csv", table(" Who?", "D")),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let (prompt, options, right) = first("mcq/mmlu:shots=1", &files).unwrap();
        assert_eq!(
            prompt,
            "The following are multiple choice questions (with answers) about world history.\n\n\
             Who?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer: D\n\nWhen?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer:"
        );
        assert_eq!((options, right), ([" A", " B", " C", " D"].map(str::to_owned).to_vec(), 1));
        let error = first("mcq/mmlu:shots=2", &files).unwrap_err();
        assert_eq!(error.to_string(), "`mcq/mmlu:shots=2`: there are 1 examples for world_history");
    }

    #[test]
    fn tables_of_the_hub_are_read_and_subjects_alternate() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tables");
        let options = TaskOptions { data: Some(data), ..TaskOptions::default() };
        let definition = |name: &str| DEFINITIONS.iter().find(|d| d.name == name).unwrap();
        let mmlu = Questions::open(definition("mmlu"), Shots { count: 1, seed: None }, &options).unwrap();
        let subjects: Vec<&str> = mmlu.questions.iter().map(|q| q.subject.as_str()).collect();
        assert_eq!(subjects, ["astronomy", "virology"].repeat(4));
        let put = mmlu.context(&mmlu.questions[3]).unwrap();
        assert!(
            put.contains("about virology.\n\nWhich of these numbers of virology is 3?\nA. 4\nB. 3\nC. “5”"),
            "{put}"
        );
        assert!(
            put.ends_with("Which of these numbers of virology is 4?\nA. 5\nB. 4\nC. “6”\nD. none\nAnswer:"),
            "{put}"
        );
        let arc = Questions::open(definition("arc_easy"), Shots { count: 0, seed: None }, &options).unwrap();
        let answers: Vec<&str> = arc.questions.iter().map(|q| q.options[q.right].as_str()).collect();
        assert_eq!(answers, ["thing 0.0", "thing 1.1"]);
    }

    #[test]
    fn the_option_of_winogrande_is_read_and_the_rest_scored() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("winogrande")).unwrap();
        let row = |sentence: &str, answer: &str| {
            format!(
                "{{\"sentence\": \"{sentence}\", \"option1\": \"Al\", \"option2\": \"Alma\", \"answer\": \"{answer}\"}}\n"
            )
        };
        let write = |name: &str, text: String| std::fs::write(dir.path().join("winogrande").join(name), text).unwrap();
        write("validation.jsonl", row("_ ran.", "1") + "{}\n" + &row("So _ ran.", "2"));
        write("train.jsonl", row("Once _ sat.", "2"));
        let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad: true, ..TaskOptions::default() };
        let task = MultipleChoice.make("mcq/winogrande:shots=1", &options).unwrap();
        assert_eq!((task.available(), task.notes().len()), (Some(2), 1), "{:?}", task.notes());
        let passage = task.likelihood().unwrap().passage(0, 1, 0, &Characters).unwrap();
        let text = |ids: &[u32]| ids.iter().filter_map(|id| char::from_u32(*id)).collect::<String>();
        assert_eq!(text(&passage.prompt[1..]), "Once Alma sat.\n\nSo Al");
        let pieces: Vec<(String, usize)> = passage.continuations.iter().map(|c| (text(&c.tokens), c.given)).collect();
        assert_eq!(pieces, [(" ran.".to_owned(), 0), ("ma ran.".to_owned(), 2)]);
        assert_eq!((passage.continuations[1].words, passage.continuations[1].bytes), (1, 5));
    }

    /// Rows of PIQA's fields, numbered from `first`.
    fn numbered(first: usize, count: usize) -> String {
        let row = |i: usize| format!("{{\"goal\": \"g{i}\", \"sol1\": \"a{i}\", \"sol2\": \"b\", \"label\": 0}}\n");
        (first..first + count).map(row).collect()
    }

    /// `random.Random(1234)` of CPython 3.11: `sample(range(40), 3)` twice, cut to two (lm-eval draws one more where there
    /// is no test split), and for the rows of ARC `sample(range(40), 2)` twice.
    const DRAWN_OF_PIQA: [[usize; 2]; 2] = [[28, 7], [5, 37]];
    const DRAWN_OF_ARC: [[usize; 2]; 2] = [[28, 7], [0, 5]];

    #[test]
    fn a_seed_draws_the_examples_that_lm_eval_draws_for_each_question() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["piqa", "ARC-Easy"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let arc = |first: usize, count: usize| -> String {
            let row = |i: usize| {
                format!(
                    "{{\"question\": \"q{i}\", \"choices\": {{\"text\": [\"a{i}\", \"b\"], \"label\": [\"A\", \"B\"]}}, \"answerKey\": \"A\"}}\n"
                )
            };
            (first..first + count).map(row).collect()
        };
        std::fs::write(dir.path().join("piqa/train.jsonl"), numbered(0, 40)).unwrap();
        std::fs::write(dir.path().join("piqa/validation.jsonl"), numbered(100, 2)).unwrap();
        std::fs::write(dir.path().join("ARC-Easy/train.jsonl"), arc(0, 40)).unwrap();
        std::fs::write(dir.path().join("ARC-Easy/test.jsonl"), arc(100, 2)).unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        let prompts = |name: &str| -> Vec<String> {
            let task = MultipleChoice.make(name, &options).unwrap();
            assert_eq!(task.name(), name);
            let likelihood = task.likelihood().unwrap();
            let prompt = |i| likelihood.passage(0, i, 0, &Characters).unwrap().prompt;
            (0..2).map(|i| prompt(i).iter().skip(1).filter_map(|id| char::from_u32(*id)).collect()).collect()
        };
        let expected = |rows: [usize; 2], i: usize, mark: &str| -> String {
            let shot = |row: usize| format!("Question: {mark}{row}\nAnswer: a{row}\n\n");
            format!("{}Question: {mark}{}\nAnswer:", rows.map(shot).concat(), 100 + i)
        };
        for (task, mark, drawn) in [("piqa", "g", DRAWN_OF_PIQA), ("arc_easy", "q", DRAWN_OF_ARC)] {
            let seeded = prompts(&format!("mcq/{task}:shots=2,shots_seed=1234"));
            let first = prompts(&format!("mcq/{task}:shots=2"));
            for i in 0..2 {
                assert!(seeded[i].starts_with(&expected(drawn[i], i, mark)), "{task} {i}: {}", seeded[i]);
                assert!(first[i].starts_with(&expected([0, 1], i, mark)), "{task} {i}: {}", first[i]);
            }
        }
        let what = |name: &str| MultipleChoice.make(name, &options).err().unwrap().to_string();
        assert!(what("mcq/piqa:shots=40,shots_seed=1").contains("there are 40 examples, and 41 are drawn"));
        assert!(what("mcq/piqa:shots_seed=1").contains("no examples without shots"));
        assert!(what("mcq/piqa:shots=1,shots_seed=x").contains("`shots_seed=x` cannot be read"));
        assert!(what("mcq/mmlu:shots=1,shots_seed=1").contains("the first examples of mmlu, whatever its seed"));
    }

    #[test]
    fn rows_that_do_not_fit_are_said_with_their_place() {
        let what = |name: &str, files: &[(&str, &str)]| first(name, files).unwrap_err().to_string();
        let row = r#"{"question": "Why?", "choices": {"text": ["so"], "label": ["A"]}, "answerKey": "C"}"#;
        assert!(
            what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", row)]).contains("test.jsonl:1: `C` names none of 1 options")
        );
        assert!(
            what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", "{\"question\": \"x\"}")])
                .contains("test.jsonl:1: a field is missing for `choices.text`")
        );
        assert!(what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", "\nx")]).contains("test.jsonl:2: not JSON: "));
        assert!(what("mcq/arc_easy", &[]).contains("needs data that are not there"));
        let arc = |text: &str, label: &str, key: &str| {
            format!(r#"{{"question": "Why?", "choices": {{"text": {text}, "label": {label}}}, "answerKey": {key}}}"#)
        };
        for (row, said) in [
            (arc(r#"["a", "b"]"#, r#"["A"]"#, r#""A""#), "1 labels for 2 options"),
            (arc(r#"["a", "b"]"#, r#"["A", "B", "C"]"#, r#""C""#), "3 labels for 2 options"),
            (arc(r#"["a", "b"]"#, r#"["A", "A"]"#, r#""A""#), "two options have one label"),
            (arc(r#"["a", "b"]"#, r#"["A", "B"]"#, r#""1""#), "`1` names none of 2 options"),
            (arc(r#"["a"]"#, r#"["A"]"#, r#""A""#), "there is one option, which cannot be wrong"),
            (arc(r#""ab""#, r#""AB""#, r#""A""#), "no list for `choices.text`"),
            (arc(r#"["a", null]"#, r#"["A", "B"]"#, r#""A""#), "has an item that is none, no text"),
        ] {
            let error = what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", &row)]);
            assert!(error.contains("test.jsonl:1: ") && error.contains(said), "{error}");
        }
        for (row, said) in [
            (r#"{"goal": " ", "sol1": "a", "sol2": "b", "label": 0}"#, "the field `goal` is empty or white space"),
            (r#"{"goal": null, "sol1": "a", "sol2": "b", "label": 0}"#, "a field is none, no text"),
            (r#"{"goal": ["g"], "sol1": "a", "sol2": "b", "label": 0}"#, "a field is sequence, no text"),
            (r#"{"goal": "g", "sol1": ["a"], "sol2": "b", "label": 0}"#, "has an item that is sequence, no text"),
        ] {
            assert!(what("mcq/piqa", &[("piqa/valid.jsonl", row)]).contains(said), "{row}");
        }
        let five = r#"{"question": "q", "choices": ["a", "b", "c", "d", "e"], "answer": 3, "subject": "anatomy"}"#;
        assert!(what("mcq/mmlu", &[("mmlu/test/all.jsonl", five)]).contains("5 choices, not 4"));
        let hint = |name: &str| first(name, &[]).unwrap_err().downcast::<UsageError>().unwrap().hint.unwrap();
        let write = "d('cais/mmlu', 'all', split='test').to_json('mmlu/test/all.jsonl')";
        assert!(hint("mcq/mmlu").contains(write), "{}", hint("mcq/mmlu"));
        assert!(hint("mcq/piqa").contains("d('baber/piqa', split='validation').to_json('piqa/validation.jsonl')"));
        assert!(what("mcq/arc_easy:shot=1", &[]).contains("`shot=1` cannot be read"));
        let fields = first("mcq/piqa", &[("piqa/valid.jsonl", "{}")]).unwrap_err().downcast::<UsageError>().unwrap();
        let hint = fields.hint.unwrap();
        assert_eq!(hint, "rows have the fields of baber/piqa on the Hugging Face hub (`spattn data fetch piqa`)");
        let table = b"question,choice0,choice1,choice2,choice3,answer\nq,a,b,c,d,A\n\xff,a,b,c,d,B\nq,a,b,c,d,E\n";
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("mmlu/test")).unwrap();
        std::fs::write(dir.path().join("mmlu/test/x_test.csv"), table).unwrap();
        let open = |skip_bad| {
            let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
            MultipleChoice.make("mcq/mmlu", &options)
        };
        let error = open(false).err().unwrap().to_string();
        assert!(error.contains("x_test.csv:3: not UTF-8") && error.contains("1 more of 3 rows is malformed (line 4)"));
        let task = open(true).unwrap();
        assert_eq!(task.available(), Some(1));
        assert!(task.notes()[0].contains("2 malformed rows are left out (lines 3, 4)"), "{:?}", task.notes());
        let piqa = [
            ("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#),
            ("piqa/valid-labels.lst", "1\n0\n"),
        ];
        assert!(what("mcq/piqa", &piqa).contains("2 labels for 1 rows"));
        assert!(
            what("mcq/mmlu", &[("mmlu/test/a_test.csv", "q,a,b,c\n")]).contains("a_test.csv:1: a row has 4 columns")
        );
    }
}
