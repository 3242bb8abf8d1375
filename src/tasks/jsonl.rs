//! Prepared files: `jsonl:PATH` runs rows made elsewhere, as they are.
//!
//! Rows in RULER's fields (`input`, `outputs`, and in newer files `answer_prefix`) are understood, and
//! those of Lost in the Middle's key-value retrieval (`kv_retrieval`), of LongEval's lines (`longeval`), documents
//! with summaries (`summary`) and contexts with several questions (`turns`). Older RULER rows carry the answer
//! prefix at the end of `input`; it is split off there, so that context, question and answer prefix
//! joined are always the bytes of the file. Metric and tokens to generate follow from the prompt's shape,
//! or are given with the path: `jsonl:PATH:metric=string_match_part,max_new_tokens=64`. Rows are checked
//! when the file is opened, and read one at a time.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::metrics::Metric;
use super::{
    Example, Family, PromptCounter, Task, TaskInfo, TaskOptions, kv_retrieval, longeval, ruler, summary, turns,
};
use crate::error::UsageError;

const PREFIX: &str = "jsonl:";
/// What may follow the path.
const OPTIONS: [&str; 2] = ["metric", "max_new_tokens"];
const PATH_HINT: &str = "jsonl:PATH takes a file with one JSON object a line";
/// Begins the question of a prompt of unknown shape.
const QUESTION_MARK: &str = "\nQuestion:";

/// The family of prepared files.
pub struct Jsonl;

impl Family for Jsonl {
    fn catalog(&self) -> Vec<TaskInfo> {
        vec![TaskInfo {
            name: format!("{PREFIX}PATH"),
            about:
                "rows of a prepared file: RULER's, key-value retrieval, LongEval's lines, summaries, several questions"
                    .to_owned(),
            metric: None,
            max_new_tokens: None,
            parameters: OPTIONS.map(|name| (name.to_owned(), "from the prompt".to_owned())).to_vec(),
        }]
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        name.starts_with(PREFIX).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, _: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(Rows::open(&Spec::parse(name)?)?))
    }
}

/// A path and what was said about it.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    path: PathBuf,
    metric: Option<Metric>,
    max_new_tokens: Option<usize>,
}

impl Spec {
    /// The error for a row whose task cannot be told.
    fn unscored(&self, place: &str) -> UsageError {
        UsageError::new(format!("{place}: this prompt is of no known task, so its metric is unknown")).hint(format!(
            "say how to score it: jsonl:{}:metric=string_match_all,max_new_tokens=64",
            self.path.display()
        ))
    }

    fn parse(name: &str) -> Result<Self, UsageError> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        if rest.is_empty() {
            return Err(UsageError::new(format!("task `{name}` names no file")).hint(PATH_HINT));
        }
        let mut spec = Self { path: rest.into(), metric: None, max_new_tokens: None };
        let Some((path, options)) = rest.rsplit_once(':').filter(|(_, o)| o.contains('=')) else {
            return Ok(spec);
        };
        if spec.path.is_file() {
            // The colon is part of the file's name.
            return Ok(spec);
        }
        spec.path = path.into();
        for option in options.split(',') {
            spec.set(option, name)?;
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str, name: &str) -> Result<(), UsageError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "metric" => self.metric = Some(Metric::parse(value)?),
            "max_new_tokens" => {
                let count = value.parse().ok().filter(|&n| n > 0);
                self.max_new_tokens = Some(count.ok_or_else(|| {
                    UsageError::new(format!("`{name}`: max_new_tokens takes a number above 0, not `{value}`"))
                })?);
            }
            _ => return Err(UsageError::unknown("option of jsonl:", key, OPTIONS)),
        }
        Ok(())
    }
}

/// The rows of a file.
struct Rows {
    spec: Spec,
    name: String,
    /// Where each example is found; blank lines hold none.
    starts: Vec<Start>,
    /// For each example, the first with the same context.
    contexts: Vec<usize>,
}

/// Where an example is found.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// Byte at which its line starts.
    at: u64,
    /// Number of the line, from 1.
    line: usize,
    /// Which of the line's questions it is, from 0.
    question: usize,
}

impl Rows {
    /// Opens the file and checks every row.
    fn open(spec: &Spec) -> Result<Self> {
        let unreadable =
            |e: std::io::Error| UsageError::new(format!("cannot read {}: {e}", spec.path.display())).hint(PATH_HINT);
        if spec.path.is_dir() {
            return Err(unreadable(std::io::ErrorKind::IsADirectory.into()).into());
        }
        let file = File::open(&spec.path).map_err(unreadable)?;
        let stem = spec.path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let mut rows =
            Self { spec: spec.clone(), name: format!("{PREFIX}{stem}"), starts: Vec::new(), contexts: Vec::new() };
        let mut seen = HashMap::new();
        let mut reader = BufReader::new(file);
        let (mut at, mut line, mut number) = (0u64, Vec::new(), 0);
        loop {
            line.clear();
            let read =
                reader.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", spec.path.display()))?;
            if read == 0 {
                break;
            }
            number += 1;
            if !line.trim_ascii().is_empty() {
                let row = rows.row(&line, number)?;
                for question in 0..turns::count(&row).unwrap_or(1) {
                    let mut context = DefaultHasher::new();
                    rows.parse(&row, number, question)?.context.hash(&mut context);
                    let next = rows.starts.len();
                    rows.contexts.push(*seen.entry(context.finish()).or_insert(next));
                    rows.starts.push(Start { at, line: number, question });
                }
            }
            at += read as u64;
        }
        if rows.starts.is_empty() {
            return Err(UsageError::new(format!("{}: there is no row in it", spec.path.display()))
                .hint(PATH_HINT)
                .into());
        }
        Ok(rows)
    }

    /// The fields of the row in line `number`.
    fn row(&self, line: &[u8], number: usize) -> Result<Map<String, Value>, UsageError> {
        let place = self.place(number);
        let text = std::str::from_utf8(line).map_err(|e| UsageError::new(format!("{place}: not UTF-8: {e}")))?;
        let value: Value = serde_json::from_str(text.trim_end()).map_err(|e| {
            // The parser's own "at line 1" would contradict the line of the file.
            let reason = e.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            UsageError::new(format!("{place}: not JSON: {reason} at column {}", e.column()))
                .hint("a prepared file has one JSON object a line")
        })?;
        match value {
            Value::Object(fields) => Ok(fields),
            _ => Err(UsageError::new(format!("{place}: not a JSON object"))),
        }
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.spec.path.display())
    }

    /// A row's question as a prompt.
    fn parse(&self, fields: &Map<String, Value>, line: usize, question: usize) -> Result<Row, UsageError> {
        Row::read(fields, question, &self.spec, &self.place(line))
    }

    fn line(&self, path: &Path, start: u64) -> std::io::Result<Vec<u8>> {
        let mut reader = BufReader::new(File::open(path)?);
        reader.seek(SeekFrom::Start(start))?;
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line)?;
        Ok(line)
    }
}

impl Task for Rows {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        Some(self.starts.len())
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn context_of(&self, index: usize) -> usize {
        self.contexts.get(index).copied().unwrap_or(index)
    }

    fn example(&self, _: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        let path = &self.spec.path;
        let start = *self.starts.get(index).ok_or_else(|| {
            UsageError::new(format!("{} has {} rows, none at {index}", path.display(), self.starts.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let line = self.line(path, start.at).with_context(|| format!("cannot read {}", path.display()))?;
        let row = self.parse(&self.row(&line, start.line)?, start.line, start.question)?;
        Ok(Example {
            task: self.name.clone(),
            length: 0,
            index,
            context: row.context,
            question: row.question,
            answer_prefix: row.answer_prefix,
            references: row.references,
            all_classes: Vec::new(),
            metric: row.metric,
            also: row.also,
            max_new_tokens: row.max_new_tokens,
            depth: None,
            source: path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    context: String,
    question: String,
    answer_prefix: String,
    references: Vec<String>,
    metric: Metric,
    also: Vec<Metric>,
    max_new_tokens: usize,
}

impl Row {
    fn read(fields: &Map<String, Value>, question: usize, spec: &Spec, place: &str) -> Result<Self, UsageError> {
        if turns::count(fields).is_some() {
            return Self::turn(fields, question, spec, place);
        }
        if fields.contains_key("context") && fields.contains_key("answers") {
            return Err(UsageError::new(format!("{place}: not supported yet: LongBench rows"))
                .hint("rows in RULER's fields (input, outputs, answer_prefix) can be run"));
        }
        if fields.contains_key(kv_retrieval::PAIRS) {
            return Self::lookup(fields, spec, place);
        }
        if fields.contains_key(longeval::ANSWER) {
            return Self::line(fields, spec, place);
        }
        if summary::is_row(fields) {
            return Self::summary(fields, spec, place);
        }
        let input = text(fields, "input", place)?
            .ok_or_else(|| UsageError::new(format!("{place}: the field `input` is missing")).hint(FIELDS_HINT))?;
        let given_prefix = text(fields, "answer_prefix", place)?;
        let references = outputs(fields, place)?;
        let recognised = recognise(input);
        let metric = spec.metric.or(recognised.as_ref().map(|r| r.shape.metric));
        let max_new_tokens = spec.max_new_tokens.or(recognised.as_ref().map(|r| r.shape.max_new_tokens));
        let (Some(metric), Some(max_new_tokens)) = (metric, max_new_tokens) else {
            return Err(spec.unscored(place));
        };
        let question_at = recognised.as_ref().map_or_else(|| last_question(input), |r| r.question_at);
        let prefix_at = match (given_prefix, &recognised) {
            (None, Some(r)) => r.prefix_at,
            _ => input.len(),
        };
        Ok(Self {
            context: input[..question_at].to_owned(),
            question: input[question_at..prefix_at].to_owned(),
            answer_prefix: given_prefix.unwrap_or(&input[prefix_at..]).to_owned(),
            references,
            metric,
            also: Vec::new(),
            max_new_tokens,
        })
    }

    fn turn(fields: &Map<String, Value>, question: usize, spec: &Spec, place: &str) -> Result<Self, UsageError> {
        let turns::Turn { context, question, references } = turns::turn(fields, question, place)?;
        let (Some(metric), Some(max_new_tokens)) = (spec.metric, spec.max_new_tokens) else {
            return Err(spec.unscored(place));
        };
        let answer_prefix = String::new();
        Ok(Self { context, question, answer_prefix, references, metric, also: Vec::new(), max_new_tokens })
    }

    fn line(fields: &Map<String, Value>, spec: &Spec, place: &str) -> Result<Self, UsageError> {
        let longeval::Lookup { context, question, answer } = longeval::lookup(fields, place)?;
        let definition = &longeval::DEFINITION;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references: vec![answer],
            metric: spec.metric.unwrap_or(definition.metric),
            also: Vec::new(),
            max_new_tokens: spec.max_new_tokens.unwrap_or(definition.tokens_to_generate),
        })
    }

    fn summary(fields: &Map<String, Value>, spec: &Spec, place: &str) -> Result<Self, UsageError> {
        let summary::Summary { context, question, references } = summary::row(fields, place)?;
        let definition = &summary::DEFINITION;
        // A metric that was asked for takes the place of the first; the others are recorded all the same.
        let metric = spec.metric.unwrap_or(definition.metric);
        let all = [definition.metric].into_iter().chain(definition.also.iter().copied());
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references,
            metric,
            also: all.filter(|m| *m != metric).collect(),
            max_new_tokens: spec.max_new_tokens.unwrap_or(definition.tokens_to_generate),
        })
    }

    fn lookup(fields: &Map<String, Value>, spec: &Spec, place: &str) -> Result<Self, UsageError> {
        let kv_retrieval::Lookup { context, question, answer } = kv_retrieval::lookup(fields, place)?;
        let definition = &kv_retrieval::DEFINITION;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references: vec![answer],
            metric: spec.metric.unwrap_or(definition.metric),
            also: Vec::new(),
            max_new_tokens: spec.max_new_tokens.unwrap_or(definition.tokens_to_generate),
        })
    }
}

const FIELDS_HINT: &str = "expected RULER's fields: input, outputs and, where it is not part of input, answer_prefix";

fn text<'a>(fields: &'a Map<String, Value>, name: &str, place: &str) -> Result<Option<&'a str>, UsageError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(UsageError::new(format!("{place}: the field `{name}` is not text")).hint(FIELDS_HINT)),
    }
}

/// The answers: a list of texts or numbers, none of them empty (an empty answer is found in anything).
fn outputs(fields: &Map<String, Value>, place: &str) -> Result<Vec<String>, UsageError> {
    let wrong = |what: &str| UsageError::new(format!("{place}: the field `outputs` {what}")).hint(FIELDS_HINT);
    let list =
        fields.get("outputs").ok_or_else(|| wrong("is missing"))?.as_array().ok_or_else(|| wrong("is not a list"))?;
    let answers: Option<Vec<String>> = list
        .iter()
        .map(|answer| match answer {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        })
        .collect();
    match answers {
        Some(answers) if !answers.is_empty() => Ok(answers),
        Some(_) => Err(wrong("is empty")),
        None => Err(wrong("holds something other than texts and numbers, or an empty text")),
    }
}

/// A prompt of a known shape: where its question starts, and where its answer prefix starts if it
/// carries one (else the end).
struct Recognised {
    shape: ruler::Shape,
    question_at: usize,
    prefix_at: usize,
}

/// The shape whose question starts last: a one-shot example has a question of its own before it.
fn recognise(input: &str) -> Option<Recognised> {
    let shapes = ruler::shapes().chain(ruler::reworded_shapes());
    let found = shapes.filter_map(|shape| Some((question_start(input, &shape)?, shape)));
    let (question_at, shape) = found.max_by_key(|(at, _)| *at)?;
    let tail = &input[question_at..];
    let prefix_at = tail.rfind(shape.prefix_mark).filter(|&at| is_prefix(&tail[at..], &shape));
    Some(Recognised { prefix_at: prefix_at.map_or(input.len(), |at| question_at + at), question_at, shape })
}

fn question_start(input: &str, shape: &ruler::Shape) -> Option<usize> {
    let starts = shape.question_marks.iter().filter_map(|mark| input.rfind(&format!("\n{mark}")));
    starts.max().map(|at| at + 1)
}

/// A prefix is the rest of the prompt's last line; that of `qa` is its mark and nothing more, since a
/// question may well contain the mark.
fn is_prefix(rest: &str, shape: &ruler::Shape) -> bool {
    let is_bare = shape.prefix_mark.ends_with(':');
    !rest.contains('\n') && (!is_bare || rest.trim_end() == shape.prefix_mark)
}

/// Where the question of an unknown prompt starts: after the last line break before `Question:`, or
/// else its last line.
fn last_question(input: &str) -> usize {
    let line = input.trim_end().rfind('\n');
    input.rfind(QUESTION_MARK).or(line).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::ruler::testing::{Words, example, shared_data};
    use crate::tasks::{catalog, resolve};
    use proptest::prelude::*;

    fn file(rows: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, rows).unwrap();
        (dir, format!("jsonl:{}", path.display()))
    }

    fn open(name: &str) -> Result<Box<dyn Task>> {
        Ok(resolve(&[name.to_owned()], &TaskOptions::default())?.remove(0))
    }

    fn usage_error(rows: &str, options: &str) -> UsageError {
        let (_dir, name) = file(rows);
        open(&format!("{name}{options}")).err().expect("an error").downcast().unwrap()
    }

    #[test]
    fn generated_examples_come_back_as_they_were() {
        let wanted =
            |t: &TaskInfo| t.name.starts_with("ruler") && !["ruler/qa_1", "ruler/qa_2"].contains(&t.name.as_str());
        let tasks: Vec<TaskInfo> = catalog().into_iter().filter(wanted).collect();
        assert_eq!(tasks.len(), 21);
        for (info, index) in tasks.iter().flat_map(|info| (0..3).map(move |index| (info, index))) {
            let e = example(&info.name, 2048, index);
            let user = e.user_turn();
            let newer = serde_json::json!({"index": 0, "input": user, "outputs": e.references, "answer_prefix": e.answer_prefix});
            let older = serde_json::json!({"index": 9, "input": format!("{user}{}", e.answer_prefix), "outputs": e.references, "others": {}});
            let (_dir, name) = file(&format!("{newer}\n\n{older}\n"));
            let task = open(&name).unwrap();
            assert_eq!((task.name(), task.available(), task.is_sized()), ("jsonl:rows", Some(2), false));
            for index in 0..2 {
                let row = task.example(0, index, 0, &Words).unwrap();
                assert_eq!(
                    (row.context, row.question, row.answer_prefix),
                    (e.context.clone(), e.question.clone(), e.answer_prefix.clone()),
                    "{}",
                    info.name
                );
                assert_eq!(
                    (row.metric, row.max_new_tokens, row.references),
                    (e.metric, e.max_new_tokens, e.references.clone())
                );
                assert_eq!((row.length, row.index, row.source.as_str()), (0, index, "rows.jsonl"));
            }
        }
    }

    #[test]
    fn chat_markup_before_the_prefix_stays_with_the_question() {
        let row = serde_json::json!({"outputs": ["7"], "input": "[INST] A text.\nWhat is the special magic number for a-b mentioned in the provided text? [/INST] The special magic number for a-b mentioned in the provided text is"});
        let (_dir, name) = file(&row.to_string());
        let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!(e.context, "[INST] A text.\n");
        assert!(e.question.ends_with("text? [/INST]"));
        assert_eq!(e.answer_prefix, " The special magic number for a-b mentioned in the provided text is");
    }

    #[test]
    fn a_question_about_answers_is_not_cut() {
        let ask = "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: ";
        let row = |tail: &str| {
            serde_json::json!({"outputs": ["x"], "input": format!("Documents\n\n{ask}What does Answer: mean?{tail}")})
                .to_string()
        };
        let (_dir, name) = file(&format!("{}\n{}", row(""), row(" Answer:")));
        let task = open(&name).unwrap();
        for (index, prefix) in [(0, ""), (1, " Answer:")] {
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!((e.context.as_str(), e.answer_prefix.as_str()), ("Documents\n\n", prefix));
            assert_eq!(e.question, format!("{ask}What does Answer: mean?"));
        }
    }

    #[test]
    fn prompts_of_unknown_shape_need_a_metric() {
        let row = r#"{"input": "Some text.\nQuestion: why?\nThink.", "outputs": ["x", 3]}"#;
        let error = usage_error(row, "");
        assert!(
            error.what.ends_with("rows.jsonl:1: this prompt is of no known task, so its metric is unknown"),
            "{error}"
        );
        assert!(error.hint.unwrap().contains("metric=string_match_all"));
        let (_dir, name) = file(row);
        let task = open(&format!("{name}:metric=string_match_part,max_new_tokens=64")).unwrap();
        let e = task.example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchPart, 64));
        assert_eq!((e.context.as_str(), e.question.as_str()), ("Some text.\n", "Question: why?\nThink."));
        assert_eq!(e.references, ["x", "3"]);
    }

    #[test]
    fn without_any_mark_the_last_line_is_the_question() {
        assert_eq!(last_question("a\nb\nc"), 4);
        assert_eq!(last_question("a\nb\n"), 2);
        assert_eq!(last_question("abc"), 0);
    }

    #[test]
    fn malformed_rows_are_named_with_their_line() {
        let good =
            r#"{"input": "x\nQuestion: What are the 10 most common words in the above list?", "outputs": ["a"]}"#;
        for (bad, what) in [
            ("{", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"outputs": ["a"]}"#, "the field `input` is missing"),
            (r#"{"input": 3, "outputs": ["a"]}"#, "the field `input` is not text"),
            (r#"{"input": "x"}"#, "the field `outputs` is missing"),
            (r#"{"input": "x", "outputs": "a"}"#, "the field `outputs` is not a list"),
            (r#"{"input": "x", "outputs": []}"#, "the field `outputs` is empty"),
            (r#"{"input": "x", "outputs": [""]}"#, "an empty text"),
            (r#"{"context": "x", "input": "y", "answers": ["z"]}"#, "not supported yet: LongBench rows"),
        ] {
            let error = usage_error(&format!("{good}\n\n{bad}\n"), "");
            assert!(error.what.contains("rows.jsonl:3: ") && error.what.contains(what), "{error}");
        }
        assert!(usage_error("\n", "").what.contains("no row"));
    }

    #[test]
    fn wrong_options_and_paths_are_usage_errors() {
        let row = r#"{"input": "x", "outputs": ["a"]}"#;
        assert_eq!(usage_error(row, ":metrik=x").hint.as_deref(), Some("did you mean `metric`?"));
        assert!(usage_error(row, ":metric=nonsense").what.contains("unknown metric `nonsense`"));
        assert!(usage_error(row, ":max_new_tokens=0").what.contains("a number above 0"));
        let error: UsageError = open("jsonl:/nowhere.jsonl").err().unwrap().downcast().unwrap();
        assert!(error.what.contains("/nowhere.jsonl"));
    }

    #[test]
    fn files_recorded_under_one_name_are_refused() {
        let row = r#"{"input": "x\nWhat is the special magic number for a?", "outputs": ["a"]}"#;
        let ((_one, first), (_two, second)) = (file(row), file(row));
        let error = resolve(&[first, second], &TaskOptions::default()).err().unwrap();
        assert_eq!(error.to_string(), "two files would both be recorded as `jsonl:rows`");
    }

    proptest! {
        /// Whatever a prompt looks like, it is run byte for byte.
        #[test]
        fn no_byte_of_a_prompt_is_lost(
            parts in proptest::collection::vec(0usize..8, 0..12),
            tail in ".{0,20}",
        ) {
            let pieces = [
                "\n", " Answer:", "Question: ", "\nQuestion: Find all variables that are assigned the value 1",
                " The special magic number", "\nWhat is the special magic number for x?", "é\u{2028}", "{context}",
            ];
            let input: String = parts.iter().map(|&i| pieces[i]).chain([tail.as_str()]).collect();
            let row = serde_json::json!({"input": input, "outputs": ["a"]});
            let (_dir, name) = file(&row.to_string());
            let task = open(&format!("{name}:metric=string_match_all,max_new_tokens=8")).unwrap();
            let e = task.example(0, 0, 0, &Words).unwrap();
            prop_assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), input);
        }
    }

    #[test]
    fn key_value_rows_are_run_as_published() {
        let Some(data) = shared_data() else { return };
        let path = data.join("kv_retrieval/kv-retrieval-75_keys.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        assert_eq!(task.available(), Some(100));
        let e = task.example(0, 99, 0, &Words).unwrap();
        assert_eq!(e.context.matches("\": \"").count(), 75);
        let key = e.question.split('"').nth(1).unwrap();
        assert!(e.context.contains(&format!("\"{key}\": \"{}\"", e.references[0])));
        assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 100));
    }

    #[test]
    fn lines_of_longeval_are_run_byte_for_byte() {
        let Some(data) = shared_data() else { return };
        let path = data.join("longeval_lines/200_lines.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            let row: Value = serde_json::from_str(line).unwrap();
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!(e.user_turn(), row["prompt"].as_str().unwrap());
            assert!(e.question.starts_with("Now the record is over.") && e.context.contains(&e.references[0]));
            assert_eq!((e.metric, e.max_new_tokens, e.answer_prefix.as_str()), (Metric::LastNumber, 100, ""));
        }
    }

    #[test]
    fn questions_on_one_context_are_examples_that_say_so() {
        let rows = [
            r#"{"context": "One.", "turns": [{"question": "a?", "answers": ["1"]}, {"question": "b?", "answers": ["2"]}]}"#,
            r#"{"context": "Two.", "multi_turns": [{"input": "c?", "answer": "3"}]}"#,
            r#"{"context": "One.", "turns": [{"question": "d?", "answers": ["4"]}]}"#,
        ];
        let (_dir, name) = file(&rows.join("\n"));
        assert!(open(&name).err().unwrap().to_string().contains("rows.jsonl:1: this prompt is of no known task"));
        let task = open(&format!("{name}:metric=qa_f1,max_new_tokens=8")).unwrap();
        assert_eq!((task.available(), task.cells()), (Some(4), 1));
        assert_eq!([0, 1, 2, 3].map(|i| task.context_of(i)), [0, 0, 2, 0]);
        let turns: Vec<String> = (0..4).map(|i| task.example(0, i, 0, &Words).unwrap().user_turn()).collect();
        assert_eq!(turns, ["One.\n\na?", "One.\n\nb?", "Two.\n\nc?", "One.\n\nd?"]);
    }

    #[test]
    fn summaries_are_scored_by_three_kinds_of_rouge() {
        let (_dir, name) = file(r#"{"report": "A long text.", "summary": "A text."}"#);
        let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.also.as_slice()), (Metric::RougeL, &[Metric::Rouge1, Metric::Rouge2][..]));
        let e = open(&format!("{name}:metric=rouge_1,max_new_tokens=2048")).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.max_new_tokens), (Metric::Rouge1, 2048));
        assert_eq!(e.also, [Metric::RougeL, Metric::Rouge2]);
    }

    #[test]
    fn a_published_file_is_run_byte_for_byte() {
        let Some(data) = shared_data() else { return };
        let path = data.join("ruler_ready/4096/niah_multikey_3.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        assert_eq!((task.name(), task.available()), ("jsonl:niah_multikey_3", Some(100)));
        for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            let row: Value = serde_json::from_str(line).unwrap();
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), row["input"].as_str().unwrap());
            assert!(e.question.starts_with("What is the special magic uuid for ") && e.question.ends_with("text?"));
            assert!(e.answer_prefix.starts_with(" The special magic uuid for ") && e.answer_prefix.ends_with(" is"));
            assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 128));
        }
    }
}
