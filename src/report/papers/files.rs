//! The files of an item's results: one outcome for each run, side by side in the item's folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use spattn_lab::papers::item::Item;
use spattn_lab::papers::judging::{judge, judge_times};
use spattn_lab::papers::measure::Evidence;
use spattn_lab::papers::outcome::{ItemOutcome, TIMES};
use spattn_lab::papers::run_of::RunOf;

/// The outcomes of an item, judged by its present file.
#[derive(Debug)]
pub struct ItemResults {
    /// `PAPER/ITEM`.
    pub name: String,
    /// The item.
    pub item: Item,
    /// The outcomes, in this order: on the built-in model, on pretrained models, on the paper's models, and the times.
    pub outcomes: Vec<ItemOutcome>,
}

/// The suffix in the names of a run's files: empty for the built-in model, for others such as `-real-MODEL`.
pub fn suffix(variant: &str, model: &str) -> String {
    match (variant, model) {
        ("" | "builtin", _) => String::new(),
        (_, "") => format!("-{variant}"),
        (_, model) => format!("-{variant}-{}", slug(model)),
    }
}

/// A model's name as part of a file's name.
pub fn slug(model: &str) -> String {
    let last = model.trim_end_matches('/').rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    last.chars().map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' }).collect()
}

/// The name of an outcome's file.
pub fn result_file(outcome: &ItemOutcome) -> String {
    format!("result{}.json", suffix(&outcome.variant, &outcome.model))
}

/// Writes an outcome into its item's folder, unless the file holds the same one. An outcome without measured numbers never
/// replaces one that has some: that is what remains when an item's rows or columns are renamed.
///
/// # Errors
/// If the file cannot be written.
pub fn store(outcome: &ItemOutcome, dir: &Path) -> Result<()> {
    let name = result_file(outcome);
    let stored = read(&dir.join(&name))?;
    if !outcome.is_measured() && stored.as_ref().is_some_and(ItemOutcome::is_measured) {
        return Ok(());
    }
    // Numbers that were read may be written with other digits, so an equal file is left as it is.
    if stored.as_ref() == Some(outcome) {
        return Ok(());
    }
    let text = format!("{}\n", serde_json::to_string_pretty(outcome)?);
    crate::report::write_files(vec![(name, text)], &[], dir).map(drop)
}

/// The outcome in a file; `None` if there is none.
///
/// # Errors
/// If the file exists and cannot be read.
pub fn read(path: &Path) -> Result<Option<ItemOutcome>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let outcome = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a result of spattn reproduce", path.display()))?;
    Ok(Some(outcome))
}

/// The stored outcome of the same run; `None` if there is none.
///
/// # Errors
/// If the file exists and cannot be read.
pub fn read_stored(outcome: &ItemOutcome, dir: &Path) -> Result<Option<ItemOutcome>> {
    read(&dir.join(result_file(outcome)))
}

/// The names of the result files in a folder, sorted.
fn stored(dir: &Path) -> Vec<PathBuf> {
    let is_result = |name: &str| name == "result.json" || name.starts_with("result-") && name.ends_with(".json");
    let names =
        std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_result(name)).collect();
    names.sort();
    // Older versions kept runs on the paper's models in a separate folder.
    let old = dir.join("paper").join("result.json");
    names.iter().map(|name| dir.join(name)).chain(old.exists().then_some(old)).collect()
}

/// Whether all published numbers of an item are times.
fn has_only_times(item: &Item) -> bool {
    let is_time = |name: &String| item.columns.iter().any(|line| line.name == *name && item.is_time(line));
    item.published.iter().flat_map(|published| published.values.keys()).all(is_time)
}

impl ItemResults {
    /// Reads the stored outcomes in an item's folder, judges them by the item's present claims, and adds its times.
    ///
    /// # Errors
    /// If a result or a table of times exists and cannot be read.
    pub fn read(out: &Path, name: &str, item: Item) -> Result<Self> {
        let mut outcomes = Vec::new();
        for path in stored(&out.join(name)) {
            let Some(stored) = read(&path)?.filter(|outcome| outcome.variant != TIMES) else { continue };
            let (was_measured, is_of_run) = (stored.is_measured(), !stored.variant.is_empty());
            let outcome = stored.as_of(&item);
            if was_measured && !outcome.is_measured() {
                eprintln!("warning: {} has no number of the item's present rows: it is not drawn", path.display());
            }
            // A run that measured nothing has no result. Kept here, it would be stored as one.
            if outcome.is_measured() || !is_of_run {
                outcomes.push(outcome);
            }
        }
        outcomes.sort_by_key(|outcome| match outcome.variant.as_str() {
            "builtin" => 0,
            "real" => 1,
            _ => 2,
        });
        let times = judge_times(name, &item)?;
        if outcomes.is_empty() {
            outcomes.push(judge(name, &item, RunOf::AS_NAMED, Evidence::default())?);
        }
        // Measured outcomes show the paper's numbers too, so an outcome without measurements is not needed.
        if outcomes.iter().any(ItemOutcome::is_measured) || times.is_some() && has_only_times(&item) {
            outcomes.retain(ItemOutcome::is_measured);
        }
        outcomes.extend(times);
        Ok(Self { name: name.to_owned(), item, outcomes })
    }

    /// The item's name without the paper's.
    pub fn item_name(&self) -> &str {
        self.name.split_once('/').map_or(self.name.as_str(), |(_, item)| item)
    }
}
