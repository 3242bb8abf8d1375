//! Free answers to the rows of published sets, in lm-eval's conventions: sums that are thought through, conversations.
//!
//! Templates are data (`tasks/generation.toml`, where their source is named); rows come from the user's data folder.
//! There is no chat template, as lm-eval has none by default, and the answer ends where a text of `until` comes up. The
//! questions of one row share its context, which is read once.

use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::metrics::Metric;
use super::metrics::lm_eval::distinct_answers;
use super::templates::{self, Fields, Hub, Made};
use super::{Example, Family, Handling, PromptCounter, Task, TaskInfo, TaskOptions};
use crate::error::UsageError;

const PREFIX: &str = "gen/";

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
}

static DEFINITIONS: LazyLock<Vec<Definition>> =
    LazyLock::new(|| templates::definitions(include_str!("../../tasks/generation.toml")));

/// All that is looked for in a data folder.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    DEFINITIONS.iter().flat_map(|d| &d.files).map(String::as_str)
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
            parameters: Vec::new(),
            stands_in_for: None,
        };
        DEFINITIONS.iter().map(info).collect()
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        let task = name.strip_prefix(PREFIX)?;
        DEFINITIONS.iter().any(|d| d.name == task).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let task = name.strip_prefix(PREFIX).unwrap_or(name);
        let definition = DEFINITIONS
            .iter()
            .find(|d| d.name == task)
            .ok_or_else(|| UsageError::unknown("task", name, DEFINITIONS.iter().map(|d| d.name.as_str())))?;
        let files = templates::found(options, &definition.files, name, &definition.hub)?;
        Ok(Box::new(Questions::open(definition, &files, options.skip_bad)?))
    }
}

/// A question as it is put.
struct Question {
    context: String,
    question: String,
    answers: Vec<String>,
}

impl Definition {
    fn turns(&self, row: &Map<String, Value>) -> Result<Vec<usize>> {
        let Some(turns) = &self.turns else { return Ok(vec![0]) };
        let turns = Fields::new(row)?.value(turns)?.try_iter()?.map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        anyhow::ensure!(!turns.is_empty(), "there is no question");
        Ok(turns)
    }

    fn question(&self, mut row: Map<String, Value>, turn: usize) -> Result<Question> {
        row.insert("turn".to_owned(), turn.into());
        let fields = Fields::new(&row)?;
        let answers: Vec<String> =
            serde_json::from_str(&fields.text(&self.answers)?).context("answers are no texts")?;
        Ok(Question {
            context: fields.text(&self.context)?,
            question: fields.text(&self.question)?,
            answers: distinct_answers(&answers).into_iter().cloned().collect(),
        })
    }

    /// All questions of a row.
    fn questions(&self, row: Map<String, Value>) -> Result<Vec<Question>> {
        self.turns(&row)?.into_iter().map(|turn| self.question(row.clone(), turn)).collect()
    }
}

/// The questions of a task.
struct Questions {
    definition: &'static Definition,
    name: String,
    source: String,
    /// Each with the index of the first one of its row.
    questions: Vec<(usize, Question)>,
    notes: Vec<String>,
}

impl Questions {
    fn open(definition: &'static Definition, files: &[PathBuf], skip_bad: bool) -> Result<Self> {
        let published = (definition.files.as_slice(), &definition.hub);
        let Made { items, notes, .. } =
            templates::make_all(files, skip_bad, published, |row, _| definition.questions(row))?;
        let mut questions: Vec<(usize, Question)> = Vec::new();
        for row in items {
            let first = questions.len();
            questions.extend(row.into_iter().map(|question| (first, question)));
        }
        let source = files[0].file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Ok(Self { definition, name: format!("{PREFIX}{}", definition.name), source, questions, notes })
    }
}

impl Task for Questions {
    fn name(&self) -> &str {
        &self.name
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
            context: question.context.clone(),
            question: question.question.clone(),
            answer_prefix: String::new(),
            references: question.answers.clone(),
            all_classes: Vec::new(),
            metric: self.definition.metric,
            also: self.definition.also.clone(),
            max_new_tokens: self.definition.max_new_tokens,
            depth: None,
            source: self.source.clone(),
            handling: Handling { plain: true, until: &self.definition.until, ..Handling::default() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::ruler::testing::Words;

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
        assert_eq!(example.handling.until, ["Q:", "</s>", "<|im_end|>"]);
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
        assert!(task.notes()[0].contains("1 malformed rows are left out (line 2)"), "{:?}", task.notes());
    }
}
