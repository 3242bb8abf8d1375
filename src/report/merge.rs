//! Records of several runs and shards as one report, without mixing what does not belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde_json::Value;

use crate::eval::record::Record;
use crate::eval::shared::Text;
use crate::eval::store::{CALIBRATION, Loaded, SAMPLES, drop_repeated, identities, load_run};

use super::format::distinct;

/// A run's folder that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Its path below what all folders have in common; its name, if it is the only one.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: Value,
    /// Number of records in it.
    pub records: usize,
}

/// What was read of several runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// One record a key, without its densities by layer; models with the same name that differ are told apart in it.
    pub records: Vec<Record>,
    /// (method, params) as their users gave them.
    pub order: Vec<(String, String)>,
    /// The runs.
    pub sources: Vec<Source>,
    /// What a reader has to know of what was done, a line each.
    pub notes: Vec<String>,
}

impl Merged {
    /// Leaves out what no two runs have alike.
    pub fn leave_out_times(&mut self) {
        self.records.par_iter_mut().for_each(Record::leave_out_times);
        self.notes.push("times are left out".to_owned());
    }
}

/// Parts of a run's identity that are in its records, so that rows tell them apart, or that add to them.
const IN_RECORDS: [&str; 5] = ["model", "protocol", "seed", "fidelity", "latency"];
/// Parts that matter only where two runs have records of the same task and length.
const OF_TASKS: [&str; 2] = ["data", "positions"];

/// Reads the runs in folders: each is a run's folder, or holds such folders at any depth.
///
/// Records with the same key are the same record, and the first counts. Runs with the same model's name but other
/// weights, another tokenizer, precision or version of the program do not mix: what they differ in is added to the
/// model's name in all of their records, which gives them rows of their own, and a note says so. The same goes for runs
/// that made the same task and length from other data, or with other calibrations of a method.
///
/// # Errors
/// If a folder has no records, one that is of no run in its manifest, or files that cannot be read.
pub fn read(dirs: &[PathBuf]) -> Result<Merged> {
    let mut runs = Vec::new();
    for dir in dirs {
        let mut found = runs_in(dir)?;
        if found.is_empty() {
            found.push(dir.clone());
        }
        runs.extend(found);
    }
    let mut seen = BTreeSet::new();
    runs.retain(|run| seen.insert(run.canonicalize().unwrap_or_else(|_| run.clone())));
    let mut merged = Merged::default();
    let mut loaded = Vec::new();
    let read: Vec<_> = runs.par_iter().map(|run| without_layers(load_run(run)?)).collect();
    for ((run, read), name) in runs.iter().zip(read).zip(names(&runs)) {
        let (records, manifest) = read?;
        merged.notes.extend(records.notices);
        merged.order.extend(order(&manifest));
        merged.sources.push(Source { name, dir: run.clone(), manifest, records: records.records.len() });
        loaded.push(records.records);
    }
    merged.order = distinct(std::mem::take(&mut merged.order));
    tell_apart(&merged.sources, &mut loaded, &mut merged.notes);
    merged.records.reserve_exact(loaded.iter().map(Vec::len).sum());
    loaded.into_iter().for_each(|records| merged.records.extend(records));
    // The same key under another label is another record: what differs is not in the key.
    let repeated = drop_repeated(&mut merged.records, |r| (&r.key, &r.model));
    if repeated > 0 {
        merged.notes.push(format!("{repeated} records are in several of the runs; each counts once"));
    }
    Ok(merged)
}

/// Leaves out densities by layer, which no report shows, and which are long for a large model.
fn without_layers((mut loaded, manifest): (Loaded, Value)) -> Result<(Loaded, Value)> {
    loaded.records.iter_mut().for_each(|r| r.density_by_layer = Vec::new());
    Ok((loaded, manifest))
}

/// Folders with records in `dir` or below, by name; those below a run are not looked at.
fn runs_in(dir: &Path) -> Result<Vec<PathBuf>> {
    if dir.join(SAMPLES).is_file() {
        return Ok(vec![dir.to_owned()]);
    }
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let failed = || format!("cannot read the folder {}", dir.display());
    let mut below = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        // Links are not followed: they may lead back.
        if entry.file_type().with_context(failed)?.is_dir() {
            below.push(entry.path());
        }
    }
    below.sort();
    let mut runs = Vec::new();
    for dir in below {
        runs.extend(runs_in(&dir)?);
    }
    Ok(runs)
}

/// What tells the runs apart in their paths; the last part of the only one.
fn names(runs: &[PathBuf]) -> Vec<String> {
    let whole: Vec<PathBuf> = runs.iter().map(|run| run.canonicalize().unwrap_or_else(|_| run.clone())).collect();
    let parts = |path: &PathBuf| path.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let parts: Vec<Vec<String>> = whole.iter().map(parts).collect();
    let shortest = parts.iter().map(Vec::len).min().unwrap_or(0);
    let alike = (0..shortest).take_while(|i| parts.iter().all(|p| p[*i] == parts[0][*i])).count();
    parts.iter().map(|p| p[alike.min(p.len().saturating_sub(1))..].join("/")).collect()
}

/// The settings of a run's methods, those of resumed runs after the first.
fn order(manifest: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |manifest: &Value| -> Vec<(String, String)> {
        let methods = manifest["methods"].as_array().into_iter().flatten();
        methods.map(|m| (text(&m["method"]), text(&m["params"]))).collect()
    };
    let resumed = manifest["resumed"].as_array().into_iter().flatten();
    std::iter::once(manifest).chain(resumed).flat_map(of).collect()
}

/// Adds what differs between runs of models of the same name to the models' names.
fn tell_apart(sources: &[Source], loaded: &mut [Vec<Record>], notes: &mut Vec<String>) {
    let has: Vec<Has> = loaded.par_iter().map(|records| Has::of(records)).collect();
    for model in distinct(has.iter().flat_map(|has| has.models.iter().cloned())) {
        let runs: Vec<usize> = (0..loaded.len()).filter(|i| has[*i].models.contains(&model)).collect();
        let identities: BTreeMap<usize, BTreeMap<String, String>> =
            runs.iter().map(|i| (*i, identity(&sources[*i].manifest, &model))).collect();
        let keys: BTreeSet<&String> = identities.values().flat_map(BTreeMap::keys).collect();
        let differs = |key: &&&String| {
            // What the runs with each value have between them.
            let mut places: BTreeMap<Option<&String>, BTreeSet<&Place>> = BTreeMap::new();
            for (run, identity) in &identities {
                let value = identity.get(**key);
                if value.is_some() || !key.starts_with(CALIBRATION) {
                    places.entry(value).or_default().extend(&has[*run].places);
                }
            }
            let places: Vec<BTreeSet<&Place>> = places.into_values().collect();
            let meet = |(at, one): (usize, &BTreeSet<&Place>)| places[..at].iter().any(|other| !one.is_disjoint(other));
            places.len() > 1 && (!is_of_tasks(key) || places.iter().enumerate().any(meet))
        };
        let differing: Vec<&String> = keys.iter().filter(differs).copied().collect();
        if differing.is_empty() {
            continue;
        }
        notes.push(format!(
            "the runs of {model} differ in {}: their records are in rows of their own",
            differing.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(", ")
        ));
        for run in runs {
            let part = |key: &&String| {
                let value = identities[&run].get(*key).map_or("none", String::as_str);
                format!("{}={}", key.trim_end_matches("_sha256"), value.chars().take(8).collect::<String>())
            };
            let label = format!("{model} ({})", differing.iter().map(part).collect::<Vec<_>>().join(", "));
            let label = Text::from(label);
            loaded[run].iter_mut().filter(|r| r.model == model).for_each(|r| r.model = label.clone());
        }
    }
}

fn is_of_tasks(key: &str) -> bool {
    OF_TASKS.contains(&key) || key.starts_with(CALIBRATION)
}

/// A protocol, a task and a length.
type Place = (Text, Text, usize);

/// What there is in a run.
#[derive(Default)]
struct Has {
    /// In the order of the records.
    models: Vec<Text>,
    places: BTreeSet<Place>,
}

impl Has {
    fn of(records: &[Record]) -> Self {
        let mut has = Self::default();
        // Records beside each other are mostly of one place.
        let of = |r: &Record| (r.model.address(), r.protocol.address(), r.task.address(), r.length);
        for r in records.chunk_by(|a, b| of(a) == of(b)).map(|alike| &alike[0]) {
            if !has.models.contains(&r.model) {
                has.models.push(r.model.clone());
            }
            has.places.insert((r.protocol.clone(), r.task.clone(), r.length));
        }
        has
    }
}

/// What determines a run's records of a model besides what is in them, by name. Several identities of a model in one
/// run differ only in that.
fn identity(manifest: &Value, model: &str) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let all = identities(manifest);
    let own = all.iter().find(|identity| identity["model"] == model).or(all.first()).copied().unwrap_or(&Value::Null);
    let calibration = &manifest[CALIBRATION];
    let calibration = calibration.get(model).filter(|kinds| kinds.is_object()).unwrap_or(calibration);
    let identity = fields(own).into_iter().filter(|(key, _)| !IN_RECORDS.contains(&key.as_str()));
    let calibration = fields(calibration).into_iter().map(|(kind, hash)| (format!("{CALIBRATION}.{kind}"), hash));
    identity.chain(calibration).map(|(key, value)| (key, text(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;
    use crate::eval::store::{IDENTITY, OpenMode, Store};
    use serde_json::json;

    /// A run of the fixture's model, protocol and seed, with what else is said of it.
    fn run(dir: &Path, facts: Value, calibration: Value, records: &[Record]) -> PathBuf {
        let mut identity = json!({"model": "builtin", "protocol": "question", "seed": 1});
        identity.as_object_mut().unwrap().extend(facts.as_object().unwrap().clone());
        let methods = json!([{"method": "full", "params": ""}, {"method": "quest", "params": ""}]);
        let manifest = json!({ IDENTITY: identity, CALIBRATION: calibration, "methods": methods });
        let mut store = Store::open(dir, OpenMode::Fresh, &manifest).unwrap();
        records.iter().for_each(|r| assert!(store.append(r).unwrap()));
        dir.to_owned()
    }

    fn models(merged: &Merged) -> Vec<&str> {
        distinct(merged.records.iter().map(|r| r.model.as_str()))
    }

    #[test]
    fn shards_are_one_run_and_what_both_have_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let identity = || json!({"weights_sha256": "ab", "fidelity": false});
        let shard = |name: &str, samples: &[usize]| {
            let records: Vec<Record> = samples.iter().map(|i| record("vt", "full", *i, 1.0)).collect();
            run(&dir.path().join(name), identity(), json!({}), &records)
        };
        let shards = [shard("a/1", &[0, 1]), shard("a/2", &[1, 2])];
        let merged = read(&shards).unwrap();
        assert_eq!((merged.records.len(), models(&merged)), (3, vec!["builtin"]));
        assert_eq!(merged.notes, ["1 records are in several of the runs; each counts once"]);
        assert_eq!(merged.order[1].0, "quest");
        let below = read(&[dir.path().to_owned(), shards[0].clone()]).unwrap();
        assert_eq!(below, merged, "a folder of runs is the runs in it, and each is read once");
        assert_eq!(merged.sources.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(read(&shards[..1]).unwrap().sources[0].name, "1");
    }

    #[test]
    fn other_weights_or_versions_get_rows_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, weights: &str, version: u32| {
            let identity = json!({"weights_sha256": weights, "results_version": version});
            run(&dir.path().join(name), identity, json!({}), &[record("vt", "full", 0, 1.0)])
        };
        let runs = [of("1", "ab", 1), of("2", "cd", 1), of("3", "ab", 1)];
        let merged = read(&runs).unwrap();
        assert_eq!(models(&merged), ["builtin (weights=ab)", "builtin (weights=cd)"]);
        assert_eq!(merged.records.len(), 2, "keys are compared within a model");
        assert!(merged.notes[0].contains("the runs of builtin differ in weights_sha256"), "{:?}", merged.notes);
        let merged = read(&[runs[0].clone(), of("4", "ab", 2)]).unwrap();
        assert_eq!(models(&merged), ["builtin (results_version=1)", "builtin (results_version=2)"]);
    }

    #[test]
    fn data_and_calibrations_matter_where_tasks_meet() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, data: Value, calibration: Value, task: &str| {
            let records = [record(task, "full", 0, 1.0)];
            run(&dir.path().join(name), json!({"data": data}), calibration, &records)
        };
        let ruler = of("ruler", Value::Null, json!({}), "ruler/vt");
        let longbench = of("longbench", json!("folder"), json!({"loki": "a"}), "longbench/qasper");
        assert_eq!(models(&read(&[ruler.clone(), longbench]).unwrap()), ["builtin"]);
        let essays = of("essays", json!("essays"), json!({}), "ruler/vt");
        assert_eq!(models(&read(&[ruler, essays]).unwrap()), ["builtin (data=null)", "builtin (data=essays)"]);
        let loki = |name: &str, hash: &str| of(name, Value::Null, json!({"loki": hash}), "ruler/cwe");
        let merged = read(&[loki("la", "a"), loki("lb", "b")]).unwrap();
        assert_eq!(models(&merged), ["builtin (calibration.loki=a)", "builtin (calibration.loki=b)"]);
    }

    #[test]
    fn a_folder_without_records_is_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(&[dir.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("holds no samples.jsonl"), "{error}");
    }
}
