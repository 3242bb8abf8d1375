//! Multiple choice: which of some options the model finds most likely after the question.
//!
//! Templates are data (`tasks/multiple_choice.toml`, where their source is named); rows come from the user's data
//! folder, as JSON lines or CSV. The conventions are lm-eval's: no chat template; context and option are split into
//! tokens together, and what goes beyond the context's own tokens is scored; `acc` takes the greatest
//! log-likelihood, `acc_norm` the greatest over characters of the option. Examples before the question (`shots`) are
//! the first of their file. Of several files, each gives its first row, then each its second, and so on.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::likelihood::{Continuation, LikelihoodTask, Passage, Scoring, TextEncoder};
use super::{Family, Task, TaskInfo, TaskOptions, assets};
use crate::error::UsageError;

const PREFIX: &str = "mc/";
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
    /// Text before everything, as a template.
    #[serde(default)]
    description: String,
    /// The question, as a template.
    prompt: String,
    /// Expression that gives the options.
    options: String,
    /// Expression that gives the options' labels, if rows name the right one by label.
    labels: Option<String>,
    /// Expression that gives the index or label of the right option.
    right: String,
    score: Accuracy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Accuracy {
    Acc,
    AccNorm,
}

#[derive(Deserialize)]
struct Definitions {
    task: Vec<Definition>,
}

static DEFINITIONS: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let text = include_str!("../../tasks/multiple_choice.toml");
    toml::from_str::<Definitions>(text).expect("the file is tested").task
});

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
            parameters: vec![("shots".to_owned(), "0".to_owned())],
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
        let (task, shots) = rest.split_once(':').unwrap_or((rest, "shots=0"));
        let shots = shots.strip_prefix("shots=").and_then(|n| n.parse().ok()).ok_or_else(|| {
            UsageError::new(format!("`{name}`: `{shots}` cannot be read")).hint("for example mc/mmlu:shots=5")
        })?;
        let definition = DEFINITIONS
            .iter()
            .find(|d| d.name == task)
            .ok_or_else(|| UsageError::unknown("task", name, DEFINITIONS.iter().map(|d| d.name.as_str())))?;
        Ok(Box::new(Questions::open(definition, shots, options)?))
    }
}

/// A question as it is put.
struct Question {
    description: String,
    prompt: String,
    options: Vec<String>,
    right: usize,
    /// The file's name without its split.
    subject: String,
}

impl Question {
    /// The question with its answer, as an example for another.
    fn solved(&self) -> String {
        format!("{}{DELIMITER}{}{SEPARATOR}", self.prompt, self.options[self.right])
    }
}

/// The questions of a task.
struct Questions {
    name: String,
    source: String,
    normalised: bool,
    questions: Vec<Question>,
    shots: usize,
    examples: Vec<Question>,
}

impl Questions {
    fn open(definition: &Definition, shots: usize, options: &TaskOptions) -> Result<Self> {
        let given = if shots == 0 { String::new() } else { format!(":shots={shots}") };
        let name = format!("{PREFIX}{}{given}", definition.name);
        let files = found(options, &definition.files, &name)?;
        let questions = definition.read(&files)?;
        let examples = match shots {
            0 => Vec::new(),
            _ => definition.read(&found(options, &definition.shots, &name)?)?,
        };
        let label = files[0].file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let source = if files.len() == 1 { label } else { format!("{} files", files.len()) };
        let normalised = definition.score == Accuracy::AccNorm;
        Ok(Self { name, source, normalised, questions, shots, examples })
    }

    /// What comes before the options.
    fn context(&self, question: &Question) -> Result<String> {
        let own = self.examples.iter().filter(|e| e.subject == question.subject);
        let all = self.examples.iter().filter(|_| self.examples.iter().all(|e| e.subject != question.subject));
        let shots: Vec<String> = own.chain(all).take(self.shots).map(Question::solved).collect();
        if shots.len() < self.shots {
            let what = format!("`{}`: there are {} examples for {}", self.name, shots.len(), question.subject);
            return Err(UsageError::new(what).hint("ask for fewer shots").into());
        }
        Ok(format!("{}{}{}", question.description, shots.concat(), question.prompt))
    }
}

fn found(options: &TaskOptions, patterns: &[String], name: &str) -> Result<Vec<PathBuf>> {
    let files = patterns.iter().map(|pattern| assets::matching(options, pattern)).find(|files| !files.is_empty());
    Ok(files.ok_or_else(|| {
        UsageError::new(format!("`{name}` needs data that are not there"))
            .hint(format!("give --data with one of: {}", patterns.join(", ")))
    })?)
}

impl Definition {
    /// The questions of some files, one of each in turn.
    fn read(&self, files: &[PathBuf]) -> Result<Vec<Question>> {
        let mut all: Vec<(usize, usize, Question)> = Vec::new();
        for (file, path) in files.iter().enumerate() {
            for (number, row) in rows(path)?.into_iter().enumerate() {
                let place = format!("{}: row {}", path.display(), number + 1);
                let question = self.question(row, path).map_err(|e| {
                    UsageError::new(format!("{place}: {e:#}"))
                        .hint(format!("mc/{} reads the fields of the data set on the Hugging Face hub", self.name))
                })?;
                all.push((number, file, question));
            }
        }
        if all.is_empty() {
            return Err(UsageError::new(format!("{}: there is no row in it", files[0].display())).into());
        }
        all.sort_by_key(|(number, file, _)| (*number, *file));
        Ok(all.into_iter().map(|(_, _, question)| question).collect())
    }

    fn question(&self, mut row: Map<String, Value>, path: &Path) -> Result<Question> {
        let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let subject = ["_test", "_dev", "_val"].iter().find_map(|split| stem.strip_suffix(split)).unwrap_or(&stem);
        let subject = row.entry("subject").or_insert_with(|| subject.into()).as_str().unwrap_or(subject).to_owned();
        let mut env = Environment::new();
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_syntax(SyntaxConfig::builder().keep_trailing_newline(true).build()?);
        env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        env.add_filter("without_markup", without_markup);
        let row = minijinja::Value::from(Serde(&row));
        let render = |template: &str| env.render_str(template, &row);
        let evaluate = |expression: &str| env.compile_expression(expression)?.eval(&row);
        let list = |expression: &str| -> Result<Vec<String>> {
            Ok(evaluate(expression)?.try_iter()?.map(|value| value.to_string()).collect())
        };
        let options = list(&self.options)?;
        let labels = self.labels.as_deref().map_or(Ok(Vec::new()), list)?;
        let right = evaluate(&self.right)?.to_string();
        let right = labels
            .iter()
            .position(|label| *label == right)
            .or_else(|| right.parse().ok())
            .filter(|index| *index < options.len())
            .with_context(|| format!("`{right}` names none of {} options", options.len()))?;
        if options.iter().any(String::is_empty) {
            anyhow::bail!("an option is empty");
        }
        Ok(Question { description: render(&self.description)?, prompt: render(&self.prompt)?, options, right, subject })
    }
}

/// HellaSwag's texts without WikiHow's titles and notes in brackets, as lm-eval cleans them.
fn without_markup(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some((before, inside)) = rest.split_once('[') {
        // A bracket that is not closed on its line is text.
        match inside.split_once(']').filter(|(note, _)| !note.contains('\n')) {
            Some((_, after)) => {
                kept.push_str(before);
                rest = after;
            }
            None => {
                kept.push_str(before);
                kept.push('[');
                rest = inside;
            }
        }
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}

/// The rows of a file. Labels in a file beside it (`valid-labels.lst` for `valid.jsonl`) are its rows' `label`.
fn rows(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))
    };
    let text = read(path)?;
    if path.extension().is_some_and(|e| e == "csv") {
        return csv_rows(&text).with_context(|| format!("cannot read {}", path.display()));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut rows: Vec<Map<String, Value>> = lines
        .map(|(number, line)| {
            serde_json::from_str(line)
                .map_err(|e| UsageError::new(format!("{}:{}: not a JSON object: {e}", path.display(), number + 1)))
        })
        .collect::<Result<_, _>>()?;
    let labels = path.with_file_name(format!("{}-labels.lst", path.file_stem().unwrap_or_default().to_string_lossy()));
    if labels.is_file() {
        let lines = read(&labels)?;
        if lines.lines().count() != rows.len() {
            let what = format!("{} has {} labels for {} rows", labels.display(), lines.lines().count(), rows.len());
            return Err(UsageError::new(what).into());
        }
        for (row, label) in rows.iter_mut().zip(lines.lines()) {
            row.insert("label".to_owned(), label.trim().into());
        }
    }
    Ok(rows)
}

/// MMLU's tables: question, four choices, answer as letter or number; with or without a line of headings.
fn csv_rows(text: &str) -> Result<Vec<Map<String, Value>>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        if rows.is_empty() && record.get(0) == Some("question") && record.get(5) == Some("answer") {
            continue;
        }
        anyhow::ensure!(record.len() == 6, "a row has {} columns, not question, four choices and answer", record.len());
        let choices: Vec<Value> = (1..5).map(|i| record[i].into()).collect();
        let row = [("question", record[0].into()), ("choices", choices.into()), ("answer", record[5].into())];
        rows.push(row.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    }
    Ok(rows)
}

impl Task for Questions {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        Some(self.questions.len())
    }

    fn is_sized(&self) -> bool {
        false
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
        // White space before an answer belongs to the answer's first token.
        let (context, blank) = context.split_at(context.trim_end().len());
        let prompt = encoder.encode(context)?.ids;
        let continuation = |option: &String| -> Result<Continuation> {
            let after = format!("{blank}{DELIMITER}{option}");
            let whole = encoder.encode(&format!("{context}{after}"))?.ids;
            let tokens = whole.get(prompt.len()..).unwrap_or_default().to_vec();
            if tokens.is_empty() {
                let what = format!("`{}`, question {index}: the option `{option}` has no token of its own", self.name);
                return Err(UsageError::new(what).into());
            }
            let words = after.split_whitespace().count();
            Ok(Continuation { tokens, text: option.clone(), words, bytes: after.len() })
        };
        let continuations = question.options.iter().map(continuation).collect::<Result<Vec<_>>>()?;
        let prompt: Vec<u32> = encoder.front().iter().chain(&prompt).copied().collect();
        if prompt.is_empty() {
            return Err(UsageError::new(format!(
                "`{}`, question {index}: nothing comes before the options",
                self.name
            ))
            .into());
        }
        Ok(Passage {
            task: self.name.clone(),
            length: 0,
            index,
            source: self.source.clone(),
            prompt,
            continuations,
            scoring: Scoring::Choice { right: question.right, normalised: self.normalised },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::likelihood::TextTokens;

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
        let (prompt, options, right) = first("mc/arc_challenge", &[("ARC-Challenge/test.jsonl", arc)]).unwrap();
        assert_eq!((prompt.as_str(), right), ("Question: Why?\nAnswer:", 1));
        assert_eq!(options, [" so", " not so"]);
        let boolq = r#"{"passage": "It is.", "question": "is it", "label": 1}"#;
        let (prompt, options, right) = first("mc/boolq", &[("boolq/validation.jsonl", boolq)]).unwrap();
        assert_eq!((prompt.as_str(), right), ("It is.\nQuestion: is it?\nAnswer:", 1));
        assert_eq!(options, [" no", " yes"]);
        let piqa =
            [("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#), ("piqa/valid-labels.lst", "1\n")];
        let (prompt, options, right) = first("mc/piqa", &piqa).unwrap();
        assert_eq!((prompt.as_str(), options.len(), right), ("Question: open\nAnswer:", 2, 1));
        let open = r#"{"question_stem": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A "}"#;
        assert_eq!(first("mc/openbookqa", &[("openbookqa/test.jsonl", open)]).unwrap().0, "Ice is");
        let swag = r#"{"activity_label": "Baking", "ctx_a": "A man [substeps] stands.", "ctx_b": "the Man", "endings": ["goes [title] on.", "x"], "label": "0"}"#;
        let (prompt, options, _) = first("mc/hellaswag", &[("hellaswag/validation.jsonl", swag)]).unwrap();
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
        let (prompt, options, right) = first("mc/mmlu:shots=1", &files).unwrap();
        assert_eq!(
            prompt,
            "The following are multiple choice questions (with answers) about world history.\n\n\
             Who?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer: D\n\nWhen?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer:"
        );
        assert_eq!((options, right), ([" A", " B", " C", " D"].map(str::to_owned).to_vec(), 1));
        let error = first("mc/mmlu:shots=2", &files).unwrap_err();
        assert_eq!(error.to_string(), "`mc/mmlu:shots=2`: there are 1 examples for world_history");
    }

    #[test]
    fn rows_that_do_not_fit_are_said_with_their_place() {
        let what = |name: &str, files: &[(&str, &str)]| first(name, files).unwrap_err().to_string();
        let row = r#"{"question": "Why?", "choices": {"text": ["so"], "label": ["A"]}, "answerKey": "C"}"#;
        assert!(what("mc/arc_easy", &[("ARC-Easy/test.jsonl", row)]).contains("row 1: `C` names none of 1 options"));
        assert!(what("mc/arc_easy", &[("ARC-Easy/test.jsonl", "{\"question\": \"x\"}")]).contains("row 1: "));
        assert!(what("mc/arc_easy", &[("ARC-Easy/test.jsonl", "\nx")]).contains("test.jsonl:2: not a JSON object"));
        assert!(what("mc/arc_easy", &[]).contains("needs data that are not there"));
        assert!(what("mc/arc_easy:shot=1", &[]).contains("`shot=1` cannot be read"));
        let piqa = [
            ("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#),
            ("piqa/valid-labels.lst", "1\n0\n"),
        ];
        assert!(what("mc/piqa", &piqa).contains("2 labels for 1 rows"));
        assert!(what("mc/mmlu", &[("mmlu/test/a_test.csv", "q,a,b,c\n")]).contains("cannot read"));
    }
}
