//! Rows of data sets as prompts: Jinja templates over the fields that the sets on the Hugging Face hub have.
//!
//! What families share whose definitions are lists of such templates (`tasks/multiple_choice.toml`,
//! `tasks/generation.toml`): finding the files, reading their rows, filling templates. What is asked with them is the
//! families' affair.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value as Filled};
use regex::Regex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::metrics::{python, python_literal};
use super::rows::{Malformed, RowSource, Rows};
use super::{TaskOptions, assets};
use spattn_base::disk::{no_lfs_pointer, no_lfs_pointer_at};
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_base::text::is_blank;

/// The tasks that a file of definitions lists.
///
/// # Panics
/// If the file, which is part of the program, cannot be read as such.
pub(super) fn definitions<D: DeserializeOwned>(file: &str) -> Vec<D> {
    #[derive(Deserialize)]
    struct Definitions<D> {
        task: Vec<D>,
    }
    toml::from_str::<Definitions<D>>(file).expect("files of definitions are tested").task
}

/// The fields of a row, for templates.
pub(super) struct Fields {
    env: Environment<'static>,
    row: Filled,
    /// The fields, and what else templates see.
    seen: Filled,
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
        env.set_formatter(written_out);
        env.add_filter("without_markup", without_markup);
        env.add_filter("stripped", stripped);
        env.add_filter("found", found_in);
        env.add_filter("holding", holding);
        env.add_filter("four", four);
        env.add_filter("said", said);
        env.add_filter("with_letter", with_letter);
        env.add_filter("number_list", number_list);
        env.add_filter("literal", literal);
        let row = Filled::from(Serde(row));
        Ok(Self { env, seen: row.clone(), row })
    }

    /// Has templates see which of a row's questions it is, as `turn`.
    pub fn ask(&mut self, turn: usize) {
        self.seen = minijinja::context! { turn, ..self.row.clone() };
    }

    /// The text that a template gives.
    ///
    /// # Errors
    /// If a field is missing or of another kind.
    pub fn text(&self, template: &str) -> Result<String> {
        self.env.render_str(template, &self.seen).map_err(|e| unfilled(template, &e))
    }

    /// The text that a template of a prompt gives, of whose fields none may be blank.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if one is.
    pub fn prompt(&self, template: &str) -> Result<String> {
        let used = self.env.template_from_str(template).map(|t| t.undeclared_variables(false)).unwrap_or_default();
        let is_blank = |name: &&String| {
            let field = self.row.get_attr(name).unwrap_or_default();
            !MAY_BE_BLANK.contains(&name.as_str()) && field.as_str().is_some_and(is_blank)
        };
        match used.iter().filter(is_blank).min() {
            Some(name) => anyhow::bail!("the field `{name}` is empty or white space"),
            None => self.text(template),
        }
    }

    /// What an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn value(&self, expression: &str) -> Result<Filled> {
        let value = self.env.compile_expression(expression).and_then(|compiled| compiled.eval(&self.seen));
        value.map_err(|e| unfilled(expression, &e))
    }

    /// The texts of a list that an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if it is no list.
    pub fn list(&self, expression: &str) -> Result<Vec<String>> {
        let list = self.value(expression)?;
        // A text would give its letters.
        anyhow::ensure!(matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable), "no list for `{expression}`");
        let item = |value: Filled| match is_text(&value) {
            true => Ok(value.to_string()),
            false if value.is_undefined() => Err(anyhow::anyhow!("a field is missing for `{expression}`")),
            false => Err(anyhow::anyhow!("`{expression}` has an item that is {}, no text", value.kind())),
        };
        list.try_iter()?.map(item).collect()
    }
}

/// Fields that published rows leave empty: HellaSwag's rest of a context.
const MAY_BE_BLANK: [&str; 1] = ["ctx_b"];

/// Whether a value has one written form in a prompt.
fn is_text(value: &Filled) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Number | ValueKind::Bool)
}

/// Writes a value into a text. What is no text would stand in it as a program writes it: `none`, or a list in brackets.
fn written_out(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Filled) -> Result<(), Error> {
    if is_text(value) || value.is_undefined() {
        return minijinja::escape_formatter(out, state, value);
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a field is {}, no text", value.kind())))
}

/// The text that a field is.
fn text_of(field: &Filled) -> Result<&str, Error> {
    match field.as_str() {
        Some(text) => Ok(text),
        None if field.is_undefined() => Err(Error::from(ErrorKind::UndefinedError)),
        None => Err(Error::new(ErrorKind::InvalidOperation, "a field is no text")),
    }
}

/// A text without white space at its ends, as Python strips it.
fn stripped(field: &Filled) -> Result<String, Error> {
    Ok(python::strip(text_of(field)?).to_owned())
}

/// The first match of a pattern.
fn found_in(field: &Filled, pattern: &str) -> Result<String, Error> {
    let text = text_of(field)?;
    let failed = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    let pattern = Regex::new(pattern).map_err(|e| failed(e.to_string()))?;
    let found = pattern.find(text).ok_or_else(|| failed(format!("nothing like `{pattern}` is in the text")))?;
    Ok(found.as_str().to_owned())
}

/// The text itself, where it holds a mark without which it cannot be read.
fn holding(field: &Filled, mark: &str) -> Result<String, Error> {
    let text = text_of(field)?;
    let none = || Error::new(ErrorKind::InvalidOperation, format!("there is no `{mark}` in the text"));
    if text.contains(mark) { Ok(text.to_owned()) } else { Err(none()) }
}

/// A text that is not blank.
fn said(field: &Filled) -> Result<String, Error> {
    match text_of(field)? {
        text if is_blank(text) => Err(Error::new(ErrorKind::InvalidOperation, "a field is empty or white space")),
        text => Ok(text.to_owned()),
    }
}

/// Whether a list has as many options as a prompt shows.
fn four(choices: &Filled) -> Result<bool, Error> {
    match choices.len() {
        Some(4) => Ok(true),
        count => {
            let what = format!("{} choices, not 4", count.unwrap_or(0));
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

/// An answer, alone, in a list, or with its letter, and its letter among the options.
fn with_letter(answer: &Filled, options: Vec<String>) -> Result<Vec<String>, Error> {
    const LETTERS: [&str; 4] = ["A", "B", "C", "D"];
    let answer: Vec<String> = match answer.as_str() {
        Some(text) => vec![text.to_owned()],
        None => answer.try_iter()?.map(|item| item.to_string()).collect(),
    };
    match answer.as_slice() {
        [_, letter] if LETTERS.contains(&letter.as_str()) => Ok(answer),
        [text] => {
            let at = options.iter().position(|option| option == text).and_then(|at| LETTERS.get(at));
            let none = || Error::new(ErrorKind::InvalidOperation, "the answer is none of the options");
            Ok(vec![text.clone(), (*at.ok_or_else(none)?).to_owned()])
        }
        _ => Err(Error::new(ErrorKind::InvalidOperation, "an answer is a text, or a text and its letter")),
    }
}

/// The value that a text in Python stands for; what is no text is a value already.
fn literal(field: Filled) -> Result<Filled, Error> {
    let Some(text) = field.as_str() else { return Ok(field) };
    let value = python_literal::parse(text);
    let value = value.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a field is no literal of Python"))?;
    Ok(Filled::from(Serde(value)))
}

/// All numbers of a list, or of the lists in it, as one text.
fn number_list(numbers: Filled) -> Result<String, Error> {
    if let Some(text) = numbers.as_str() {
        return Ok(text.to_owned());
    }
    if numbers.is_number() {
        return Ok(numbers.to_string());
    }
    let all: Vec<String> = numbers.try_iter()?.map(number_list).collect::<Result<_, _>>()?;
    Ok(all.join(", "))
}

/// What a row lacks, by the template that asks for it.
fn unfilled(template: &str, error: &Error) -> anyhow::Error {
    let what = match error.kind() {
        ErrorKind::UndefinedError => "a field is missing".to_owned(),
        ErrorKind::InvalidOperation => error.detail().map_or_else(|| error.to_string(), str::to_owned),
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

/// The subject of a row: its own, or that of the file, whose name is the subject's with its split.
pub(super) fn subject_of(row: &mut Map<String, Value>, path: &Path) -> String {
    let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    let subject = ["_test", "_dev", "_val"].iter().find_map(|split| stem.strip_suffix(split)).unwrap_or(&stem);
    row.entry("subject").or_insert_with(|| subject.into()).as_str().unwrap_or(subject).to_owned()
}

/// The first item of every subject, then their second, and so on, whether subjects have files of their own or not.
pub(super) fn alternating<T>(items: Vec<T>, subject: impl Fn(&T) -> &str) -> Vec<T> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut rank = |item: &T| {
        let rank = seen.entry(subject(item).to_owned()).or_default();
        *rank += 1;
        *rank
    };
    let mut ranked: Vec<(usize, T)> = items.into_iter().map(|item| (rank(&item), item)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, item)| item).collect()
}

/// Where rows with the fields that a task reads are published, and how they become a file of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hub {
    /// The data set on the Hugging Face hub.
    name: String,
    /// Its configuration, where it has several.
    config: Option<String>,
    /// What `spattn data fetch` calls the published set, if it knows where its files are.
    set: Option<String>,
}

impl Hub {
    /// What to tell a user whose rows are others.
    fn fields(&self) -> String {
        let fetch = self.set.as_ref().map_or_else(String::new, |set| format!(" (`spattn data fetch {set}`)"));
        format!("rows have the fields of {} on the Hugging Face hub{fetch}", self.name)
    }

    /// What to tell a user who has no such rows, of the files that fit one of `patterns`.
    fn hint(&self, patterns: &[String]) -> String {
        let (file, split) = written(patterns);
        let config = self.config.as_ref().map_or_else(String::new, |config| format!(", '{config}'"));
        let name = &self.name;
        let (fetched, downloaded) = match &self.set {
            Some(set) => (
                format!("`spattn data fetch {set}` downloads what is published and says what to give as --data; "),
                format!(", which --data hub:{name} downloads"),
            ),
            None => (String::new(), String::new()),
        };
        format!(
            "{fetched}rows have the fields of {name} on the Hugging Face hub{downloaded}; in a data folder, this writes {file}: \
             python -c \"from datasets import load_dataset as d; \
             d('{name}'{config}, split='{split}').to_json('{file}')\""
        )
    }
}

/// The file that the first pattern of JSON lines stands for, and the split it holds, which file or folder is named for.
fn written(patterns: &[String]) -> (String, &str) {
    let pattern = patterns.iter().find(|p| p.ends_with(".jsonl")).map_or("", String::as_str);
    let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    match name.strip_suffix(".jsonl").unwrap_or(name) {
        "*" => (pattern.replace('*', "all"), folder.rsplit('/').next().unwrap_or(folder)),
        split => (pattern.to_owned(), split),
    }
}

/// The files in the data folder that fit the first pattern with any; `name` is the task's.
///
/// # Errors
/// If there are none; the hint names the patterns, and says how to get a file.
pub(super) fn found(
    options: &TaskOptions,
    patterns: &[String],
    name: &str,
    hub: &Hub,
) -> Result<Vec<PathBuf>, UsageError> {
    let files = patterns.iter().map(|pattern| assets::matching(options, pattern)).find(|files| !files.is_empty());
    files.ok_or_else(|| {
        UsageError::new(format!("`{name}` needs data that are not there")).hint(format!(
            "give --data with one of: {}; {}",
            patterns.join(", "),
            hub.hint(patterns)
        ))
    })
}

/// What was made of the rows of some files.
pub(super) struct Made<T> {
    /// Of each usable row in turn: the first of every file, then their second, and so on.
    pub items: Vec<T>,
    /// The file of each item, by its place among the files.
    files: Vec<usize>,
    /// What was left out, a line for each file that has malformed rows.
    pub notes: Vec<String>,
}

impl<T> Made<T> {
    /// The items with their places in the published order: all of the first file, then all of the second.
    pub fn in_published_order(self) -> Vec<(usize, T)> {
        let mut by_file: Vec<usize> = (0..self.files.len()).collect();
        by_file.sort_by_key(|item| self.files[*item]);
        let mut places = vec![0; by_file.len()];
        by_file.iter().enumerate().for_each(|(place, item)| places[*item] = place);
        places.into_iter().zip(self.items).collect()
    }
}

/// Makes something of every row of JSON lines, of JSON documents, of tables in Parquet or of MMLU's own. Labels in a file beside one
/// (`valid-labels.lst` for `valid.jsonl`) are its rows' `label`. `hub` says which rows are meant.
///
/// # Errors
/// A [`UsageError`] if a file cannot be read or has no usable row, and, unless `skip_bad`, if a row is malformed or
/// `make` fails on it.
pub(super) fn make_all<T>(
    files: &[PathBuf],
    skip_bad: bool,
    hub: &Hub,
    make: impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<Made<T>> {
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    for (file, path) in files.iter().enumerate() {
        let is_table = path.extension().is_some_and(|e| e == "csv");
        let read = if is_table { of_table(path, skip_bad, &make) } else { of_lines(path, skip_bad, &make) };
        let (of_file, note) = read.map_err(|e| match e.downcast() {
            Ok(UsageError { what, hint }) => {
                let hints: Vec<String> = hint.into_iter().chain([hub.fields()]).collect();
                UsageError::new(what).hint(hints.join("; ")).into()
            }
            Err(other) => other,
        })?;
        items.extend(of_file.into_iter().map(|(number, item)| (number, file, item)));
        notes.extend(note);
    }
    items.sort_by_key(|(number, file, _)| (*number, *file));
    let (files, items) = items.into_iter().map(|(_, file, item)| (file, item)).unzip();
    Ok(Made { items, files, notes })
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
    let is_document = path.extension().is_some_and(|ending| ending == "json");
    let source = if is_document { RowSource::document(path)? } else { RowSource::open(path)? };
    let rows = Rows::open(source, skip_bad, |row| {
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
    let (rows, labelled) = (lines(path)?.len(), lines(&labels)?);
    let labelled: Vec<String> = labelled.iter().map(|line| line.trim().to_owned()).collect();
    if labelled.len() != rows {
        let what = format!("{} has {} labels for {rows} rows", labels.display(), labelled.len());
        return Err(UsageError::new(what));
    }
    Ok(Some(labelled))
}

/// The lines of a file; what is not UTF-8 in them is left to who reads their rows.
fn lines(path: &Path) -> Result<Vec<String>, UsageError> {
    let bytes = given::bytes(path, given::MOST_OF_TEXT)
        .map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    no_lfs_pointer(path.display(), &bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// MMLU's tables: question, four choices, answer as letter or number; with or without a line of headings.
fn of_table<T>(
    path: &Path,
    skip_bad: bool,
    make: &impl Fn(Map<String, Value>, &Path) -> Result<T>,
) -> Result<OfFile<T>> {
    no_lfs_pointer_at(path)?;
    given::no_packed_at(path)?;
    let unreadable = |e: csv::Error| UsageError::new(format!("cannot read {}: {e}", path.display()));
    let file = given::open(path).map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
    let (mut items, mut malformed) = (Vec::new(), Malformed::none(path.display().to_string(), "line"));
    for (number, record) in reader.byte_records().enumerate() {
        let record = record.map_err(unreadable)?;
        if number == 0 && record.get(0) == Some(b"question") && record.get(5) == Some(b"answer") {
            continue;
        }
        match table_row(&record).and_then(|row| make(row, path)) {
            Ok(item) => items.push((number + 1, item)),
            Err(e) => {
                let line = record.position().map_or(0, |p| p.line() as usize);
                malformed.push(line, UsageError::new(format!("{}:{line}: {e:#}", path.display())));
            }
        }
    }
    malformed.judge(items.len(), skip_bad)?;
    Ok((items, malformed.note()))
}

fn table_row(record: &csv::ByteRecord) -> Result<Map<String, Value>> {
    let record = csv::StringRecord::from_byte_record(record.clone()).map_err(|e| anyhow::anyhow!("not UTF-8: {e}"))?;
    anyhow::ensure!(record.len() == 6, "a row has {} columns, not question, four choices and answer", record.len());
    let choices: Vec<Value> = (1..5).map(|i| record[i].into()).collect();
    // The right one, by its letter or by its place.
    let answer = record[5].trim().parse::<u64>().map_or_else(|_| record[5].into(), Value::from);
    let row = [("question", record[0].into()), ("choices", choices.into()), ("answer", answer)];
    Ok(row.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
