//! A task as defined by its TOML file, and the family of all tasks with one kind of answer.
//!
//! The part of a definition that depends on the kind of answer (templates, scoring) is its [`AnswerKind`].

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::hub::{Hub, find_files};
use super::reading::{RowItems, make_all};
use super::shots::Shots;
use crate::metrics::Metric;
use crate::{Family, Task, TaskInfo, TaskOptions};
use spattn_base::error::UsageError;

/// A task as a TOML file defines it: the fields of all such tasks, and in `answer` those of its kind of answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition<A> {
    /// Name without the family's prefix, such as `gsm8k`.
    pub name: String,
    /// A one-line description.
    pub about: String,
    /// Where the rows are looked for: paths in the data folder, with `*` for a part of a name. The first that matches a file is
    /// used.
    pub files: Vec<String>,
    /// Where rows with the fields that the templates read are published.
    pub hub: Hub,
    /// The templates, and how answers are scored.
    #[serde(flatten)]
    pub answer: A,
}

/// A kind of answer: the part of a definition that says what a row asks and how the answer is scored.
pub(super) trait AnswerKind: DeserializeOwned + Sync + Sized + 'static {
    /// The prefix of its tasks' names, such as `mcq/`.
    const PREFIX: &'static str;

    /// All tasks with this kind of answer.
    fn definitions() -> &'static [Definition<Self>];
    /// How a prediction is scored; `None` if nothing is generated.
    fn metric(&self) -> Option<Metric>;
    /// Tokens to generate at most; 0 if nothing is generated.
    fn max_new_tokens(&self) -> usize;
    /// Solved examples before a question by default; `None` if the task takes no options.
    fn default_shots(&self) -> Option<usize>;
    /// The files of rows that become solved examples, like [`Definition::files`].
    fn example_files(&self) -> &[String];
    /// Why `shots_seed` makes no sense for the task called `name`, with a hint; `None` if examples can be drawn.
    fn seed_refusal(&self, name: &str) -> Option<(String, &'static str)>;
    /// An example of options as the user writes them, for hints.
    fn options_hint(&self) -> &'static str;
    /// Reads the rows and makes the task.
    ///
    /// # Errors
    /// A [`UsageError`] if rows or examples are missing or malformed, or there are too few examples.
    fn open(definition: &'static Definition<Self>, shots: Shots, options: &TaskOptions) -> Result<Box<dyn Task>>;
}

/// The tasks that a TOML file of definitions lists.
///
/// # Panics
/// If the file, which is embedded in the program, is malformed.
pub(super) fn parse_definitions<D: DeserializeOwned>(file: &str) -> Vec<D> {
    #[derive(Deserialize)]
    struct File<D> {
        task: Vec<D>,
    }
    toml::from_str::<File<D>>(file).expect("files of definitions are tested").task
}

/// All file patterns that the tasks with one kind of answer look for in a data folder.
pub(super) fn file_patterns<A: AnswerKind>() -> impl Iterator<Item = &'static str> {
    A::definitions().iter().flat_map(|d| d.files.iter().chain(d.answer.example_files())).map(String::as_str)
}

impl<A: AnswerKind> Definition<A> {
    /// The recorded name, with the non-default options.
    pub fn full_name(&self, shots: Shots) -> String {
        let default = self.answer.default_shots().unwrap_or_default();
        format!("{}{}{}", A::PREFIX, self.name, shots.suffix(default))
    }

    /// Makes an item of every row in the files that match `patterns`; `name` is the task's, for errors. Also returns the files.
    ///
    /// # Errors
    /// A [`UsageError`] if no file matches, a file cannot be read or has no usable row, or if malformed rows are errors and
    /// `make` fails on a row.
    pub fn read_rows<T>(
        &self,
        patterns: &[String],
        name: &str,
        options: &TaskOptions,
        make: impl Fn(Map<String, Value>, &Path) -> Result<T>,
    ) -> Result<(RowItems<T>, Vec<PathBuf>)> {
        let files = find_files(options, patterns, name, &self.hub)?;
        Ok((make_all(&files, options.skip_bad, &self.hub, make)?, files))
    }

    fn info(&self) -> TaskInfo {
        TaskInfo {
            name: format!("{}{}", A::PREFIX, self.name),
            about: self.about.clone(),
            metric: self.answer.metric(),
            max_new_tokens: Some(self.answer.max_new_tokens()),
            parameters: self.parameters(),
            stands_in_for: None,
        }
    }

    /// The task's options with their defaults, as `spattn list tasks` shows them.
    fn parameters(&self) -> Vec<(String, String)> {
        let count = self.answer.default_shots().map(|count| ("shots".to_owned(), count.to_string()));
        let is_drawn = count.is_some() && self.answer.seed_refusal("").is_none();
        let seed = is_drawn.then(|| ("shots_seed".to_owned(), "the first rows".to_owned()));
        count.into_iter().chain(seed).collect()
    }

    /// Parses the options after the colon of the task name `name`.
    ///
    /// # Errors
    /// If the task takes no options, one is unknown or malformed, or a seed is given without anything to draw.
    fn parse_shots(&self, options: Option<&str>, name: &str) -> Result<Shots, UsageError> {
        let default = self.answer.default_shots();
        if default.is_none() && options.is_some() {
            return Err(UsageError::new(format!("`{name}`: {}{} has no options", A::PREFIX, self.name)));
        }
        let shots = Shots::parse(options, name, default.unwrap_or_default(), self.answer.options_hint())?;
        match self.answer.seed_refusal(&self.name).filter(|_| shots.seed.is_some()) {
            Some((why, hint)) => Err(UsageError::new(format!("`{name}`: {why}")).hint(hint)),
            None => shots.check(name, self.answer.options_hint()),
        }
    }
}

/// The name of a file without its folders.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The family of all tasks with one kind of answer.
pub(crate) struct TemplatedFamily<A>(PhantomData<fn() -> A>);

impl<A> TemplatedFamily<A> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<A: AnswerKind> Family for TemplatedFamily<A> {
    fn catalog(&self) -> Vec<TaskInfo> {
        A::definitions().iter().map(Definition::info).collect()
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        let task = name.strip_prefix(A::PREFIX)?.split(':').next()?;
        A::definitions().iter().any(|d| d.name == task).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let rest = name.strip_prefix(A::PREFIX).unwrap_or(name);
        let (task, given) = rest.split_once(':').map_or((rest, None), |(task, given)| (task, Some(given)));
        let definition = A::definitions()
            .iter()
            .find(|d| d.name == task)
            .ok_or_else(|| UsageError::unknown("task", name, A::definitions().iter().map(|d| d.name.as_str())))?;
        A::open(definition, definition.parse_shots(given, name)?, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Asked {
        #[expect(dead_code)]
        prompt: String,
    }

    #[test]
    fn a_definition_has_no_keys_that_nothing_reads() {
        let parse = |more: &str| {
            let text = format!("name = \"x\"\nabout = \"y\"\nfiles = []\nhub = {{ name = \"z\" }}\n{more}");
            toml::from_str::<Definition<Asked>>(&text).map(drop).map_err(|e| e.message().to_owned())
        };
        assert_eq!(parse("prompt = \"p\""), Ok(()));
        assert!(parse("prompt = \"p\"\nprmpt = \"q\"").unwrap_err().contains("unknown field `prmpt`"));
        assert!(parse("").unwrap_err().contains("missing field `prompt`"));
    }
}
