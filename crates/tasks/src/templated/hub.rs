//! Where the rows of a task are published, and which files of a data folder hold them.

use std::path::PathBuf;

use serde::Deserialize;

use crate::{TaskOptions, assets};
use spattn_base::error::UsageError;

/// Where rows with the fields that a task reads are published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hub {
    /// The data set on the Hugging Face hub.
    name: String,
    /// Its configuration, if it has several.
    config: Option<String>,
    /// The name of the set for `spattn data fetch`, if that command can download it.
    set: Option<String>,
}

impl Hub {
    /// The hint for a user whose rows have other fields.
    pub fn fields(&self) -> String {
        let fetch = self.set.as_ref().map_or_else(String::new, |set| format!(" (`spattn data fetch {set}`)"));
        format!("rows have the fields of {} on the Hugging Face hub{fetch}", self.name)
    }

    /// The hint for a user without a file that matches one of `patterns`.
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

/// A file name that matches the first pattern of JSON lines, and the split after which the file or its folder is named.
fn written(patterns: &[String]) -> (String, &str) {
    let pattern = patterns.iter().find(|p| p.ends_with(".jsonl")).map_or("", String::as_str);
    let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    match name.strip_suffix(".jsonl").unwrap_or(name) {
        "*" => (pattern.replace('*', "all"), folder.rsplit('/').next().unwrap_or(folder)),
        split => (pattern.to_owned(), split),
    }
}

/// The files in the data folder that match the first pattern that matches any; `name` is the task's, for the error.
///
/// # Errors
/// If no file matches; the hint names the patterns and says how to get a file.
pub(super) fn find_files(
    options: &TaskOptions,
    patterns: &[String],
    name: &str,
    hub: &Hub,
) -> Result<Vec<PathBuf>, UsageError> {
    let files = patterns.iter().map(|pattern| assets::matching(options, pattern)).find(|files| !files.is_empty());
    files.ok_or_else(|| {
        UsageError::new(format!("`{name}` needs data that were not found")).hint(format!(
            "give --data with one of: {}; {}",
            patterns.join(", "),
            hub.hint(patterns)
        ))
    })
}
