//! Rows of data sets as prompts: Jinja templates over the fields that the sets on the Hugging Face hub have.
//!
//! What families share whose definitions are lists of such templates (`tasks/multiple_choice.toml`,
//! `tasks/generation.toml`): finding the files, reading their rows, filling templates. What is asked with them is the
//! families' affair.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value as Filled};
use serde_json::{Map, Value};

use super::rows::{RowSource, Rows};
use super::{TaskOptions, assets};
use crate::error::UsageError;

/// The fields of a row, for templates.
pub(super) struct Fields {
    env: Environment<'static>,
    row: Filled,
}

impl Fields {
    /// The fields of a row.
    ///
    /// # Errors
    /// None in practice: the syntax is Jinja's own.
    pub fn new(row: &Map<String, Value>) -> Result<Self> {
        let mut env = Environment::new();
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_syntax(SyntaxConfig::builder().keep_trailing_newline(true).build()?);
        env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_filter("without_markup", without_markup);
        Ok(Self { env, row: Filled::from(Serde(row)) })
    }

    /// The text that a template gives.
    ///
    /// # Errors
    /// If a field is missing or of another kind.
    pub fn text(&self, template: &str) -> Result<String> {
        self.env.render_str(template, &self.row).map_err(|e| unfilled(template, &e))
    }

    /// What an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn value(&self, expression: &str) -> Result<Filled> {
        let value = self.env.compile_expression(expression).and_then(|compiled| compiled.eval(&self.row));
        value.map_err(|e| unfilled(expression, &e))
    }

    /// The texts of a list that an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if it is no list.
    pub fn list(&self, expression: &str) -> Result<Vec<String>> {
        Ok(self.value(expression)?.try_iter()?.map(|value| value.to_string()).collect())
    }
}

/// What a row lacks, by the template that asks for it.
fn unfilled(template: &str, error: &minijinja::Error) -> anyhow::Error {
    let what = match error.kind() {
        minijinja::ErrorKind::UndefinedError => "a field is missing".to_owned(),
        _ => error.to_string(),
    };
    anyhow::anyhow!("{what} for `{}`", template.replace('\n', "\\n"))
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

/// The files in the data folder that fit the first pattern with any; `name` is the task's.
///
/// # Errors
/// If there are none; the hint names the patterns.
pub(super) fn found(options: &TaskOptions, patterns: &[String], name: &str) -> Result<Vec<PathBuf>, UsageError> {
    let files = patterns.iter().map(|pattern| assets::matching(options, pattern)).find(|files| !files.is_empty());
    files.ok_or_else(|| {
        UsageError::new(format!("`{name}` needs data that are not there"))
            .hint(format!("give --data with one of: {}", patterns.join(", ")))
    })
}

/// What was made of the rows of some files.
pub(super) struct Made<T> {
    /// Of each usable row in turn: the first of every file, then their second, and so on.
    pub items: Vec<T>,
    /// What was left out, a line for each file that has malformed rows.
    pub notes: Vec<String>,
}

/// Makes something of every row of JSON lines or of MMLU's tables. Labels in a file beside one
/// (`valid-labels.lst` for `valid.jsonl`) are its rows' `label`.
///
/// # Errors
/// A [`UsageError`] if a file cannot be read or has no usable row, and, unless `skip_bad`, if a row is malformed or
/// `make` fails on it.
pub(super) fn make_all<T>(
    files: &[PathBuf],
    skip_bad: bool,
    make: impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<Made<T>> {
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    for (file, path) in files.iter().enumerate() {
        let is_table = path.extension().is_some_and(|e| e == "csv");
        let (of_file, note) =
            if is_table { of_table(path, skip_bad, &make)? } else { of_lines(path, skip_bad, &make)? };
        items.extend(of_file.into_iter().map(|(number, item)| (number, file, item)));
        notes.extend(note);
    }
    items.sort_by_key(|(number, file, _)| (*number, *file));
    Ok(Made { items: items.into_iter().map(|(_, _, item)| item).collect(), notes })
}

/// Items by their row's number, and what was left out.
type OfFile<T> = (Vec<(usize, T)>, Option<String>);

fn of_lines<T>(
    path: &Path,
    skip_bad: bool,
    make: &impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<OfFile<T>> {
    let labels = labels(path)?;
    let mut items = Vec::new();
    let rows = Rows::open(RowSource::File(path.to_owned()), skip_bad, |row| {
        let mut fields = row.fields.clone();
        if let Some(labels) = &labels {
            let label = labels.get(row.number - 1).ok_or_else(|| row.wrong("it has no label in the file beside"))?;
            fields.insert("label".to_owned(), label.as_str().into());
        }
        items.push((row.number, make(fields, path).map_err(|e| row.wrong(format!("{e:#}")))?));
        Ok(true)
    })?;
    Ok((items, rows.note()))
}

/// The lines of the file with labels, where there is one.
fn labels(path: &Path) -> Result<Option<Vec<String>>, UsageError> {
    let labels = path.with_file_name(format!("{}-labels.lst", path.file_stem().unwrap_or_default().to_string_lossy()));
    if !labels.is_file() {
        return Ok(None);
    }
    let (rows, labelled) = (read(path)?.lines().count(), read(&labels)?);
    let labelled: Vec<String> = labelled.lines().map(|line| line.trim().to_owned()).collect();
    if labelled.len() != rows {
        let what = format!("{} has {} labels for {rows} rows", labels.display(), labelled.len());
        return Err(UsageError::new(what));
    }
    Ok(Some(labelled))
}

fn read(path: &Path) -> Result<String, UsageError> {
    std::fs::read_to_string(path).map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))
}

/// MMLU's tables: question, four choices, answer as letter or number; with or without a line of headings.
fn of_table<T>(
    path: &Path,
    skip_bad: bool,
    make: &impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<OfFile<T>> {
    let text = read(path)?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let (mut items, mut bad) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.with_context(|| format!("cannot read {}", path.display()))?;
        let number = items.len() + bad.len() + 1;
        if number == 1 && record.get(0) == Some("question") && record.get(5) == Some("answer") {
            continue;
        }
        let line = record.position().map_or(0, |p| p.line());
        match table_row(&record).and_then(|row| make(row, path)) {
            Ok(item) => items.push((number, item)),
            Err(e) => bad.push(format!("{}:{line}: {e:#}", path.display())),
        }
    }
    let others = if bad.len() > 1 { format!("; {} more rows are malformed", bad.len() - 1) } else { String::new() };
    match bad.first() {
        Some(first) if !skip_bad || items.is_empty() => {
            Err(UsageError::new(format!("{first}{others}")).hint("leave malformed rows out with --skip-bad").into())
        }
        None if items.is_empty() => Err(UsageError::new(format!("{}: there is no row in it", path.display())).into()),
        first => {
            let note = |first| format!("{} malformed rows are left out; the first: {first}", bad.len());
            Ok((items, first.map(note)))
        }
    }
}

fn table_row(record: &csv::StringRecord) -> Result<Map<String, Value>> {
    anyhow::ensure!(record.len() == 6, "a row has {} columns, not question, four choices and answer", record.len());
    let choices: Vec<Value> = (1..5).map(|i| record[i].into()).collect();
    let row = [("question", record[0].into()), ("choices", choices.into()), ("answer", record[5].into())];
    Ok(row.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
