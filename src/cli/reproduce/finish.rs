//! Judges what an item's run has measured, stores the outcome beside those of other runs, and draws the item's page.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::args::{ALONE, FOUND, LEARNED, ReproduceArgs};
use super::facts::{facts_of_analyses, facts_of_latency, facts_of_learning, facts_of_records};
use super::item_run::ItemRun;
use crate::cli::output::{print, print_data, print_json};
use crate::cli::setup::find_data;
use crate::report::merge::{self, Merged};
use crate::report::papers::{ItemForm, ItemResults, MoreFiles, read_stored, rendered, store, suffix, write_item};
use crate::version::PROGRAM;
use spattn_base::error::in_one_line;
use spattn_base::privacy;
use spattn_eval::folder::owned_files;
use spattn_eval::records::record::Record;
use spattn_eval::records::store::load_manifest;
use spattn_lab::analyze::units::Order;
use spattn_lab::papers::item::Item;
use spattn_lab::papers::judging::judge;
use spattn_lab::papers::measure::Evidence;
use spattn_lab::papers::outcome::ItemOutcome;
use spattn_lab::papers::seen::{AnalysisTables, unit_without_rows};
use spattn_model::device::Device;
use spattn_tasks::{TaskOptions, resolve};

impl ReproduceArgs {
    /// Judges and draws an item's results, and prints its page.
    pub(super) fn finish(&self, name: &str, item: &Item, failure: Option<&anyhow::Error>) -> Result<()> {
        // `failure` has reported a missing model file. What is stored is drawn all the same.
        let run = match self.item_run(name, item) {
            Ok(run) => Some(run),
            Err(error) if failure.is_none() => return Err(error.into()),
            Err(_) => None,
        };
        let is_new = run.map_or(Ok(false), |run| self.judge(name, item, &run, failure))?;
        if !is_new && failure.is_some() {
            // Nothing new was measured, so the earlier drawing stays.
            return Ok(());
        }
        let results = ItemResults::read(&self.out, name, item.clone())?;
        let form = self.format.unwrap_or_default().form();
        write_item(&results, &self.out, MoreFiles { latex: form == ItemForm::Latex, png: self.png })?;
        let text = rendered(&results, form)?;
        match form {
            ItemForm::Markdown => print(&text),
            ItemForm::Csv | ItemForm::Latex => print_data(&text),
            ItemForm::Json => print_json(&text),
        }
    }

    /// The examples of each task and length, if not the item's own number. A run that continues a larger one includes its examples.
    fn samples_run(&self, item: &Item, run: &ItemRun, records: &[Record]) -> Option<usize> {
        let own = match (item.settings(run.variant), item.observing(run.variant)) {
            (Some(_), _) => item.most_samples(run.variant),
            (None, observing) => observing.map(|observing| observing.samples),
        };
        let asked = match (&run.settings, &run.observing) {
            (None, Some(observing)) => self.samples.map(|_| observing.samples),
            _ => self.samples,
        };
        let recorded = most_samples(records);
        let ran =
            asked.map(|asked| asked.max(recorded)).or(Some(recorded).filter(|ran| own.is_some_and(|own| *ran > own)));
        ran.filter(|ran| own != Some(*ran))
    }

    /// Judges what was measured and stores the outcome. Returns whether anything was measured.
    fn judge(&self, name: &str, item: &Item, run: &ItemRun, failure: Option<&anyhow::Error>) -> Result<bool> {
        let folder = &run.folder;
        let (merged, timed) = (stored_records(folder)?, stored_records(&folder.join(ALONE))?);
        let records = merged.as_ref().map_or(&[][..], |merged| &merged.records);
        let alone = timed.as_ref().map_or(&[][..], |timed| &timed.records);
        // If an earlier step failed, it has reported units with other settings.
        let seen = if failure.is_some() { self.seen(run).unwrap_or_default() } else { self.seen(run)? };
        if records.is_empty() && alone.is_empty() && seen.is_empty() {
            return Ok(false);
        }
        let judged = judge(name, item, run.run_of(), Evidence { records, alone, seen: &seen })?;
        let failure = failure.map(|error| privacy::text(&in_one_line(error)));
        let dir = self.out.join(name);
        if !judged.unmeasured.is_empty() && !self.draw_only {
            let since = unit_without_rows(&seen).map_or(String::new(), |unit| format!(", since {unit}"));
            eprintln!("warning: {name}: nothing was measured for {}{since}", judged.unmeasured.join(", "));
        }
        // --draw-only measures nothing, so the stored command stays.
        let earlier = if self.draw_only { read_stored(&judged, &dir)? } else { None };
        let (command, samples) = match earlier {
            Some(earlier) => (earlier.command, earlier.samples),
            None => (self.command(name), self.samples_run(item, run, records)),
        };
        let mut manifest = match (records.is_empty(), seen.first()) {
            (true, Some(first)) => {
                json!({ "program": first.program, "identity": first.identity, "units": seen.len() })
            }
            _ => load_manifest(folder).unwrap_or_default(),
        };
        let ran = ran(run, Evidence { records, alone, seen: &seen }, &manifest);
        let outcome = ItemOutcome { ran, samples, command, failure, ..judged };
        store(&outcome, &dir)?;
        manifest["command"] = json!(outcome.command);
        write_manifest(&dir, &suffix(&outcome.variant, &outcome.model), manifest)?;
        Ok(true)
    }

    /// The stored units of an item's analyses and calibrations.
    fn seen(&self, run: &ItemRun) -> Result<Vec<AnalysisTables>> {
        Ok([self.found(run)?, self.learned(run)?].concat())
    }

    fn learned(&self, run: &ItemRun) -> Result<Vec<AnalysisTables>> {
        let folder = run.folder.join(LEARNED);
        let Some(learning) = run.learning.as_ref().filter(|_| folder.exists()) else { return Ok(Vec::new()) };
        self.lesson(learning, &folder)?.kept_all()
    }

    fn found(&self, run: &ItemRun) -> Result<Vec<AnalysisTables>> {
        let folder = run.folder.join(FOUND);
        let Some(observing) = run.observing.as_ref().filter(|_| folder.exists()) else { return Ok(Vec::new()) };
        let data = self.data.as_deref().map(find_data).transpose()?;
        let data = data.as_ref().map(|data| data.folder.as_path());
        let device = Device::Cpu; // Stored units are only read.
        Order { observing, folder: &folder, data, device, overwrite: false, program: PROGRAM }.kept_all()
    }
}

/// The records in a run's folder; `None` if there are none.
pub(super) fn stored_records(folder: &Path) -> Result<Option<Merged>> {
    folder.join("samples.jsonl").exists().then(|| merge::read(&[folder.to_path_buf()])).transpose()
}

/// The largest number of examples of any task in records.
fn most_samples(records: &[Record]) -> usize {
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records {
        let known = last.entry(record.task.as_str()).or_default();
        *known = (*known).max(record.sample);
    }
    // A sample of a grid task has one example for each cell of the grid.
    let cells = |task: &str| resolve(&[task.to_owned()], &TaskOptions::default()).map_or(1, |tasks| tasks[0].cells());
    last.into_iter().map(|(task, last)| last / cells(task).max(1) + 1).max().unwrap_or(0)
}

/// What was run, as the item's page lists it.
fn ran(run: &ItemRun, evidence: Evidence<'_>, manifest: &Value) -> Vec<(String, String)> {
    let Evidence { records, alone, seen } = evidence;
    let observed = match &run.learning {
        Some(learning) => facts_of_learning(seen, learning),
        None => facts_of_analyses(seen),
    };
    let mut all = [facts_of_records(records), facts_of_latency(alone), observed].concat();
    if let Some(file) = &run.real {
        all.retain(|(what, _)| what != "model");
        all.splice(0..0, file.facts());
        let dtype = manifest["identity"]["dtype"].as_str();
        all.extend(dtype.map(|dtype| ("keys, values and activations".to_owned(), dtype.to_owned())));
    }
    all.extend(run.left_out.clone().map(|left_out| ("left out".to_owned(), left_out)));
    all
}

/// The manifest with the settings of the largest run, and a list of all runs if the folder was resumed.
fn as_grown(mut manifest: Value) -> Value {
    let resumed = manifest.as_object_mut().and_then(|fields| fields.remove("resumed")).unwrap_or_default();
    let runs: Vec<Value> =
        std::iter::once(manifest.clone()).chain(resumed.as_array().into_iter().flatten().cloned()).collect();
    if runs.len() == 1 {
        return manifest;
    }
    // Of equally large runs the last, which has the current methods. A run of more methods is larger than one of more examples.
    let size = |run: &&Value| (run["config"]["methods"].as_array().map(Vec::len), run["config"]["samples"].as_u64());
    let Some(largest) = runs.iter().max_by_key(size) else { return manifest };
    for key in ["program", "methods", "config", "model"] {
        manifest[key] = largest[key].clone();
    }
    let one = |run: &Value| {
        let config = &run["config"];
        json!({
            "commit": run["program"]["commit"],
            "samples": config["samples"],
            "methods": config["methods"],
            "device": config["device"],
        })
    };
    manifest["runs"] = runs.iter().map(one).collect();
    manifest
}

/// Writes the run's manifest without what holds only for this machine or this moment.
fn write_manifest(dir: &Path, suffix: &str, manifest: Value) -> Result<()> {
    const KEPT: [&str; 9] =
        ["program", "identity", "units", "calibration", "methods", "config", "model", "command", "runs"];
    let kept: serde_json::Map<String, Value> = as_grown(manifest)
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| KEPT.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let name = format!("manifest{suffix}.json");
    owned_files::write_all(dir, &[(name, format!("{:#}\n", json!(kept)))]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_of_a_run_that_grew_has_the_largest_runs_settings() {
        let run = |commit: &str, samples: usize, methods: &[&str]| {
            let config = json!({ "samples": samples, "methods": methods, "device": "cuda" });
            json!({ "program": { "commit": commit }, "config": config, "methods": methods, "model": { "id": "m" } })
        };
        let one = run("a", 30, &["topk"]);
        assert_eq!(as_grown(one.clone()), one, "a run that nothing was added to stays as it is");

        let mut grown = one;
        grown["resumed"] =
            json!([run("b", 100, &["topk", "quest"]), run("b", 50, &["random"]), run("c", 700, &["topk"])]);
        let shown = as_grown(grown);
        assert_eq!((&shown["program"]["commit"], &shown["config"]["samples"]), (&json!("b"), &json!(100)));
        assert_eq!(shown["methods"], json!(["topk", "quest"]));
        let runs = [
            ("a", 30, vec!["topk"]),
            ("b", 100, vec!["topk", "quest"]),
            ("b", 50, vec!["random"]),
            ("c", 700, vec!["topk"]),
        ];
        let runs = runs.map(|(commit, samples, methods)| {
            json!({ "commit": commit, "samples": samples, "methods": methods, "device": "cuda" })
        });
        assert_eq!(shown["runs"], json!(runs));
    }
}
