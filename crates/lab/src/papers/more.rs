//! Further examples of single rows or columns, for a claim that needs more than the whole table is worth.

use serde::Deserialize;

use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;

/// Further examples of some rows or columns, beyond the examples that all of them have.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoreExamples {
    /// The names of the rows or columns, each of which has a method. Dense attention is run on the examples, too.
    pub of: Vec<String>,
    /// The total number of examples of each task and length; the first of them are those of the whole table.
    pub samples: usize,
    /// The tasks, if not all of the run.
    pub tasks: Option<Vec<String>>,
    /// The lengths, if not all of the run.
    pub lengths: Option<Vec<usize>>,
}

impl MoreExamples {
    /// Returns the settings of the run of these examples: those of the whole table, `run`, with these `methods`.
    pub(super) fn settings(&self, methods: Vec<String>, run: Settings) -> Settings {
        Settings {
            methods: Some(methods),
            samples: Some(self.samples),
            tasks: self.tasks.clone().or(run.tasks),
            lengths: self.lengths.clone().or(run.lengths),
            ..run
        }
    }

    /// Returns whether there are further examples of a task and length.
    pub fn is_of(&self, task: &str, length: Option<usize>) -> bool {
        let has_task = self.tasks.as_ref().is_none_or(|tasks| tasks.iter().any(|own| own == task));
        has_task && self.lengths.as_ref().is_none_or(|lengths| length.is_none_or(|length| lengths.contains(&length)))
    }

    /// Checks that all names have methods, and that there are more examples than the whole table's run has.
    ///
    /// # Errors
    /// If one of these does not hold, or nothing is named.
    pub(super) fn check(&self, has_method: impl Fn(&str) -> bool, run: &Settings) -> Result<(), UsageError> {
        if let Some(other) = self.of.iter().find(|name| !has_method(name)) {
            return Err(UsageError::new(format!("`{other}` is no row or column with a method in this run"))
                .hint("name rows or columns that have one"));
        }
        let is_nowhere =
            self.tasks.as_ref().is_some_and(Vec::is_empty) || self.lengths.as_ref().is_some_and(Vec::is_empty);
        let is_fewer = run.samples.is_some_and(|samples| self.samples <= samples);
        match (self.of.is_empty(), is_fewer) {
            _ if is_nowhere => {
                Err(UsageError::new("`tasks` or `lengths` is empty").hint("leave it out to take all of the run"))
            }
            (true, _) => Err(UsageError::new("it names nothing").hint("name rows or columns in `of`")),
            (_, true) => Err(UsageError::new(format!("`samples` = {} is no more than the run has", self.samples))
                .hint("the number is of all examples, with those of the run")),
            _ => Ok(()),
        }
    }
}
