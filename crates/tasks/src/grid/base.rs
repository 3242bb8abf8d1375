//! A base of grid tasks: a group of tasks with the same options, which draw one scene for each sample. A scene holds everything
//! random in a sample: the texts and values that its examples at all depths share.

use std::path::PathBuf;

use anyhow::Result;

use super::depths::Depths;
use crate::metrics::Metric;
use crate::options::Given;
use crate::ruler::fit::{Draft, Request, Units};
use crate::{TaskInfo, TaskOptions};
use spattn_base::error::UsageError;

/// A group of tasks that share one implementation.
pub(super) struct Base {
    /// Name of the task, or of the group where there are several.
    pub(super) name: &'static str,
    /// The tasks; their names are `NAME`, or `NAME/PART`.
    pub(super) members: fn() -> Vec<Member>,
    /// Number of depths, at equal distances, unless the user gives depths.
    pub(super) steps: usize,
    /// The option that sets the number of units of a context (pairs or lines) instead of its length, if there is one.
    pub(super) count: Option<&'static str>,
    /// Whether the option `file` takes contexts from a file.
    pub(super) takes_file: bool,
    /// Makes the source of one task's scenes.
    pub(super) make: fn(&str, &Options, &TaskOptions) -> Result<Box<dyn Setting>>,
}

/// A task of a base, as it is listed.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) metric: Metric,
    pub(super) max_new_tokens: usize,
}

/// The source of a task's scenes.
pub(super) trait Setting: Send + Sync {
    /// Where text and words come from, for the record.
    fn source(&self) -> String;
    /// The smallest and largest number of units that a context of this length may have.
    fn units(&self, length: usize) -> Units;
    /// Draws the scene of sample `request.index`. Different values of `attempt` give different scenes.
    ///
    /// # Errors
    /// If data is malformed or runs out.
    fn scene<'a>(&'a self, request: &'a Request<'a>, attempt: u64) -> Result<Box<dyn Scene + 'a>>;
    /// Whether all depths of a sample share one context and differ only in the question.
    fn one_context(&self) -> bool;
    /// Number of samples, if a file fixes it.
    fn available(&self) -> Option<usize> {
        None
    }
    /// Digest of the user's data that scenes are made of; empty if there are none.
    fn data(&self) -> String {
        String::new()
    }
    /// What the user should know about the data, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The scene of one sample.
pub(super) trait Scene {
    /// The example with `units` units of context that asks for what lies at `depth` percent of it.
    fn draft(&mut self, units: usize, depth: f64) -> Draft;
}

/// The most pairs or lines that the user may ask for.
pub(super) const MOST_RECORDS: usize = 1_000_000;

/// The options that may follow the name of a task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) depths: Depths,
    pub(super) count: Option<usize>,
    pub(super) file: Option<PathBuf>,
}

impl Options {
    pub(super) fn parse(base: &Base, text: &str) -> Result<Self, UsageError> {
        let mut options = Self { depths: Depths::even(base.steps), count: None, file: None };
        let mut given = Given::default();
        for option in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            // `steps` and `depths` both set the depths, so only one of them may be given.
            given.once(text, key, if key == "depths" { "steps" } else { key })?;
            match key {
                "steps" => options.depths = Depths::of_steps(value)?,
                "depths" => options.depths = Depths::parse(value)?,
                "file" if base.takes_file && !value.is_empty() => options.file = Some(value.into()),
                key if base.count == Some(key) => options.count = Some(at_least_two(key, value)?),
                _ => return Err(UsageError::unknown(&format!("option of {}", base.name), key, base.options())),
            }
        }
        if options.file.is_some() && options.count.is_some() {
            return Err(
                UsageError::new(format!("`{text}`: the number of records is fixed by the file")).hint("leave one out")
            );
        }
        Ok(options)
    }

    /// The non-default options as the recorded name has them; a file is written without folders and extension.
    pub(super) fn canonical(&self, base: &Base, file: impl Fn(&PathBuf) -> String) -> String {
        let given = [
            self.file.as_ref().map(|path| format!("file={}", file(path))),
            self.count.map(|n| format!("{}={n}", base.count.unwrap_or_default())),
            (self.depths != Depths::even(base.steps)).then(|| self.depths.option()),
        ];
        let given: Vec<String> = given.into_iter().flatten().collect();
        if given.is_empty() { String::new() } else { format!(":{}", given.join(",")) }
    }
}

fn at_least_two(key: &str, value: &str) -> Result<usize, UsageError> {
    let wrong = || {
        UsageError::new(format!("`{key}={value}` is not a number from 2 to {MOST_RECORDS}"))
            .hint(format!("for example {key}=75"))
    };
    value.parse().ok().filter(|n| (2..=MOST_RECORDS).contains(n)).ok_or_else(wrong)
}

impl Base {
    fn options(&self) -> Vec<&'static str> {
        let file = self.takes_file.then_some("file");
        ["steps", "depths"].into_iter().chain(self.count).chain(file).collect()
    }

    pub(super) fn info(&self, member: Member) -> TaskInfo {
        let mut parameters = vec![("steps".to_owned(), self.steps.to_string())];
        parameters.extend(self.count.map(|count| (count.to_owned(), "to the length".to_owned())));
        if self.takes_file {
            parameters.push(("file".to_owned(), "none".to_owned()));
        }
        TaskInfo {
            name: member.name,
            about: member.about,
            metric: Some(member.metric),
            max_new_tokens: Some(member.max_new_tokens),
            parameters,
            stands_in_for: None,
        }
    }
}
