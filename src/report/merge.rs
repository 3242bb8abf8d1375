//! Merges the records of several runs and shards into one report, and keeps apart what must not be mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde_json::Value;

use spattn_base::privacy;
use spattn_eval::records::interning::InternedStr;
use spattn_eval::records::loaded::{LoadedRecords, SAMPLES, differing, drop_repeated};
use spattn_eval::records::manifest_keys::{CALIBRATION, CONTENT, NOTES};
use spattn_eval::records::record::Record;
use spattn_eval::records::stored_manifest::{identities, is_of, load_run};

use super::format::distinct;
use super::shards;

mod questions;
pub mod source;

pub use self::source::Source;

/// Several runs, merged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merged {
    /// One record for each key, without densities by layer. Different models of the same name have been given different names.
    pub records: Vec<Record>,
    /// The methods as (method, params), in the users' order.
    pub order: Vec<(String, String)>,
    /// The runs.
    pub sources: Vec<Source>,
    /// Notes for the reader on how runs were merged, one line each.
    pub notes: Vec<String>,
    /// The short names of models in the records, each with the name that it replaced ([`shorten_models`](Self::shorten_models)).
    pub full_models: BTreeMap<InternedStr, InternedStr>,
}

impl Merged {
    /// Removes all times, because they differ between any two runs.
    pub fn leave_out_times(&mut self) {
        self.records.par_iter_mut().for_each(Record::leave_out_times);
        self.notes.push("times are left out".to_owned());
    }

    /// Shortens models' names to the last part of their paths, for tables and figures; manifests keep the paths. Suffixes that tell runs
    /// apart stay. Models that would get the same name keep their paths.
    pub fn shorten_models(&mut self) {
        let ids: BTreeSet<String> = self
            .sources
            .iter()
            .flat_map(|source| identities(&source.manifest))
            .filter_map(|identity| identity["model"].as_str().map(str::to_owned))
            .collect();
        let of_path = |model: &str| {
            // An id may be the beginning of another one, so take the longest that fits.
            let id = ids.iter().filter(|id| is_of(model, id)).max_by_key(|id| id.len())?;
            let name = privacy::name_of_source(id);
            Some(format!("{}{}", name.strip_suffix(".gguf").unwrap_or(&name), &model[id.len()..]))
        };
        let models = distinct(self.records.iter().map(|r| r.model.clone()));
        let short: Vec<String> = models.iter().map(|m| of_path(m).unwrap_or_else(|| m.to_string())).collect();
        let is_alone = |name: &String| short.iter().filter(|other| *other == name).count() == 1;
        let renamed: BTreeMap<InternedStr, InternedStr> = models
            .iter()
            .zip(&short)
            .filter(|(model, name)| is_alone(name) && *name != model.as_str())
            .map(|(model, name)| (model.clone(), InternedStr::from(name.clone())))
            .collect();
        for r in &mut self.records {
            if let Some(name) = renamed.get(&r.model) {
                r.model = name.clone();
            }
        }
        self.full_models = renamed.into_iter().map(|(model, name)| (name, model)).collect();
    }
}

/// The parts of a run's identity that its records contain, so that rows keep them apart, or that only add fields to records.
const IN_RECORDS: [&str; 5] = ["model", "protocol", "seed", "fidelity", "latency"];
/// The name of the part that states whether a run recorded its model's configuration. Old runs did not.
const CONFIGURATION: &str = "configuration";
const NOT_RECORDED: &str = "not recorded";
/// The parts that matter only if two runs have records of the same task and length.
const OF_TASKS: [&str; 2] = ["data", "positions"];

/// Reads the runs in some folders. A folder is either a run's, or holds folders of runs at any depth.
///
/// Records with the same key that answer the same question count as one record, the first one. Runs with the same model name but other
/// weights, configuration, tokenizer, chat template, precision or program version do not mix: the difference is added to the model's name
/// in all of their records, which gives them separate rows, and a note says so. The same holds for runs that made the same task and length
/// from other data, or that used other calibrations of a method. If several runs have a task of the same name with different questions, the
/// run's name is added to the task's. If the questions are the same but the limit or metric differs, that is added to the model's name.
/// Forms of a method that compute differently get separate rows.
///
/// # Errors
/// If a folder has no records, if a record belongs to no run of its manifest, or if files cannot be read.
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
        let (mut records, mut manifest) = read?;
        if privacy::is_left_out() {
            manifest = leave_out_user(&mut records, &manifest);
        }
        merged.notes.extend(records.notices);
        merged.notes.extend(told(&manifest));
        merged.order.extend(order(&manifest));
        merged.sources.push(Source { name, dir: run.clone(), manifest, records: records.records.len() });
        loaded.push(records.records);
    }
    merged.order = distinct(std::mem::take(&mut merged.order));
    tell_apart(&merged.sources, &mut loaded, &mut merged.notes);
    questions::tell_apart(&merged.sources, &mut loaded, &mut merged.notes);
    tell_revisions_apart(&mut loaded, &mut merged);
    let of_shards = shards::notes(&merged.sources, &loaded);
    merged.records.reserve_exact(loaded.iter().map(Vec::len).sum());
    loaded.into_iter().for_each(|records| merged.records.extend(records));
    // The key does not contain what labels tell apart, so records with the same key under different labels are not repetitions.
    let repeated = drop_repeated(&mut merged.records, by_name);
    let others = differing(&merged.records, &repeated, by_name).len();
    if !repeated.is_empty() {
        let but = match others {
            0 => String::new(),
            _ => format!("; of {others} that differ in score or answer, the first counts"),
        };
        merged.notes.push(format!("{} records are in several of the runs; each counts once{but}", repeated.len()));
    }
    merged.notes.extend(of_shards);
    merged.notes = distinct(std::mem::take(&mut merged.notes));
    Ok(merged)
}

fn by_name(r: &Record) -> [&str; 3] {
    [&r.key, &r.model, &r.task]
}

/// The notes from when a folder's examples were made, mainly about rows that were left out.
fn told(manifest: &Value) -> impl Iterator<Item = String> {
    let resumed = manifest["resumed"].as_array().into_iter().flatten();
    let notes = std::iter::once(manifest).chain(resumed).flat_map(|manifest| manifest[NOTES].as_array()).flatten();
    notes.filter_map(|note| note.as_str().map(str::to_owned))
}

/// Replaces the models' names by anonymous ones, and returns the manifest without the user's data.
fn leave_out_user(loaded: &mut LoadedRecords, manifest: &Value) -> Value {
    let models = privacy::models(manifest);
    let (mut named, mut parameters) = (BTreeMap::<InternedStr, InternedStr>::new(), BTreeMap::new());
    for record in &mut loaded.records {
        let new = |old: &InternedStr| {
            let name = models.get(&**old).cloned();
            InternedStr::from(name.unwrap_or_else(|| privacy::name_of_source(old)))
        };
        let name = named.entry(record.model.clone()).or_insert_with_key(new);
        record.model = name.clone();
        // A method that runs a command of the user has paths in its parameters.
        if record.params.contains('/') {
            let plain = |old: &InternedStr| InternedStr::from(privacy::text(old));
            record.params = parameters.entry(record.params.clone()).or_insert_with_key(plain).clone();
            let settings = record.settings.iter().map(|(key, value)| (key.clone(), privacy::text(value)));
            record.settings = settings.collect::<BTreeMap<_, _>>().into();
        }
    }
    loaded.notices.iter_mut().for_each(|notice| *notice = privacy::text(notice));
    privacy::manifest(manifest, &models)
}

/// Leaves out densities by layer. No report shows them, and they are long for a large model.
fn without_layers((mut loaded, manifest): (LoadedRecords, Value)) -> Result<(LoadedRecords, Value)> {
    loaded.records.iter_mut().for_each(|r| r.density_by_layer = Box::default());
    Ok((loaded, manifest))
}

/// The folders with records in `dir` or below it, by name. Folders below a run are not searched.
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
        // Links are not followed, because they may form a cycle.
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

/// The part of each run's path in which they differ; for a single run, the last component.
fn names(runs: &[PathBuf]) -> Vec<String> {
    let whole: Vec<PathBuf> = runs.iter().map(|run| run.canonicalize().unwrap_or_else(|_| run.clone())).collect();
    let parts = |path: &PathBuf| path.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let parts: Vec<Vec<String>> = whole.iter().map(parts).collect();
    let shortest = parts.iter().map(Vec::len).min().unwrap_or(0);
    let alike = (0..shortest).take_while(|i| parts.iter().all(|p| p[*i] == parts[0][*i])).count();
    parts.iter().map(|p| p[alike.min(p.len().saturating_sub(1))..].join("/")).collect()
}

/// The settings of a run's methods, followed by those of later runs that resumed it.
fn order(manifest: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |manifest: &Value| -> Vec<(String, String)> {
        let methods = manifest["methods"].as_array().into_iter().flatten();
        methods.map(|m| (text(&m["method"]), text(&m["params"]))).collect()
    };
    let resumed = manifest["resumed"].as_array().into_iter().flatten();
    std::iter::once(manifest).chain(resumed).flat_map(of).collect()
}

/// Adds to models' names what differs between runs with the same model name.
fn tell_apart(sources: &[Source], loaded: &mut [Vec<Record>], notes: &mut Vec<String>) {
    let has: Vec<Has> = loaded.par_iter().map(|records| Has::of(records)).collect();
    for model in distinct(has.iter().flat_map(|has| has.models.iter().cloned())) {
        let runs: Vec<usize> = (0..loaded.len()).filter(|i| has[*i].models.contains(&model)).collect();
        let identities: BTreeMap<usize, BTreeMap<String, String>> =
            runs.iter().map(|i| (*i, identity(&sources[*i].manifest, &model))).collect();
        let keys: BTreeSet<&String> = identities.values().flat_map(BTreeMap::keys).collect();
        let differs = |key: &&&String| {
            // For each value, the tasks and lengths of the runs that have it.
            let mut places: BTreeMap<Option<&String>, BTreeSet<&Place>> = BTreeMap::new();
            for (run, identity) in &identities {
                let value = identity.get(**key);
                if value.is_some() || !may_be_unknown(key, identity) {
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
            "the runs of {model} differ in {}: each has separate rows",
            differing.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(", ")
        ));
        for run in runs {
            let part = |key: &&String| {
                let value = identities[&run].get(*key).map_or("none", String::as_str);
                format!("{}={}", key.trim_end_matches("_sha256"), shortened(key, value))
            };
            let label = format!("{model} ({})", differing.iter().map(part).collect::<Vec<_>>().join(", "));
            let label = InternedStr::from(label);
            loaded[run].iter_mut().filter(|r| r.model == model).for_each(|r| r.model = label.clone());
        }
    }
}

/// Gives different forms of a method separate rows, because they compute differently.
fn tell_revisions_apart(loaded: &mut [Vec<Record>], merged: &mut Merged) {
    let mut forms: BTreeMap<(InternedStr, InternedStr), BTreeSet<u16>> = BTreeMap::new();
    for r in loaded.iter().flatten() {
        forms.entry((r.method.clone(), r.params.clone())).or_default().insert(r.revision);
    }
    forms.retain(|_, revisions| revisions.len() > 1);
    for (method, params) in forms.keys() {
        let label = if params.is_empty() { method.to_string() } else { format!("{method}:{params}") };
        merged.notes.push(format!("{label} was run with several versions of the method: each has separate rows"));
    }
    let of_form = |params: &str, form: u16| {
        let separator = if params.is_empty() { "" } else { "," };
        format!("{params}{separator}form={form}")
    };
    let in_place =
        |(method, params): &(String, String)| match forms.get(&(method.as_str().into(), params.as_str().into())) {
            Some(revisions) => revisions.iter().map(|form| (method.clone(), of_form(params, *form))).collect(),
            None => vec![(method.clone(), params.clone())],
        };
    merged.order = merged.order.iter().flat_map(in_place).collect();
    for r in loaded.iter_mut().flatten() {
        if forms.contains_key(&(r.method.clone(), r.params.clone())) {
            r.params = of_form(&r.params, r.revision).into();
        }
    }
}

/// Whether a run that lacks a value may still have had the same one: a calibration that it did not need, or something that old versions did
/// not record.
fn may_be_unknown(key: &str, identity: &BTreeMap<String, String>) -> bool {
    let is_content = CONTENT.iter().any(|part| key.split('.').next() == Some(part));
    key.starts_with(CALIBRATION) || is_content && identity[CONFIGURATION] == NOT_RECORDED
}

fn is_of_tasks(key: &str) -> bool {
    OF_TASKS.contains(&key) || key.starts_with(CALIBRATION)
}

/// A value, shortened for a label. Digests are cut to fewer characters.
fn shortened(key: &str, value: &str) -> String {
    let digits = if is_of_tasks(key) || key.ends_with("_sha256") { 8 } else { 16 };
    value.chars().take(digits).collect()
}

/// A protocol, a task and a length.
type Place = (InternedStr, InternedStr, usize);

/// The models, tasks and lengths in a run.
#[derive(Default)]
struct Has {
    /// The models, in the order of the records.
    models: Vec<InternedStr>,
    places: BTreeSet<Place>,
}

impl Has {
    fn of(records: &[Record]) -> Self {
        let mut has = Self::default();
        // Adjacent records mostly have the same task, so look at only one of each group.
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

/// What determines a run's records of a model without being in them, by name. If a model has several identities in a run, they differ only
/// in what records contain.
fn identity(manifest: &Value, model: &str) -> BTreeMap<String, String> {
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let all = identities(manifest);
    let own = all.iter().find(|identity| identity["model"] == model).or(all.first()).copied().unwrap_or(&Value::Null);
    let calibration = &manifest[CALIBRATION];
    let calibration = calibration.get(model).filter(|kinds| kinds.is_object()).unwrap_or(calibration);
    let identity = fields(own).into_iter().filter(|(key, _)| !IN_RECORDS.contains(&key.as_str()));
    let calibration = fields(calibration).into_iter().map(|(kind, hash)| (format!("{CALIBRATION}.{kind}"), hash));
    let mut all = BTreeMap::new();
    // Old runs are told apart by this entry alone, not by each value that they did not record.
    let is_recorded = CONTENT.iter().all(|key| !own[*key].is_null());
    all.insert(CONFIGURATION.to_owned(), if is_recorded { "recorded" } else { NOT_RECORDED }.to_owned());
    identity.chain(calibration).for_each(|(key, value)| flatten(key, &value, &mut all));
    all
}

/// Collects the fields of a value. Names of nested fields are joined by dots; numbers and lists are written as JSON.
fn flatten(key: String, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(format!("{key}.{name}"), value, into)),
        Value::String(text) => drop(into.insert(key, text.clone())),
        other => drop(into.insert(key, other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spattn_eval::records::manifest_keys::{IDENTITY, INPUTS};
    use spattn_eval::records::store::{OpenMode, Store};
    use spattn_eval::records::testing::record;

    /// A run of the fixture's model, protocol and seed, with further fields in its identity.
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
    fn a_model_is_shown_by_the_last_name_of_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, path: &str| {
            let record = Record { model: path.into(), key: name.to_owned(), ..record("vt", "full", 0, 1.0) };
            run(&dir.path().join(name), json!({"model": path}), json!({}), &[record])
        };
        let shown = |runs: &[PathBuf]| {
            let mut merged = read(runs).unwrap();
            merged.shorten_models();
            let full: Vec<String> = merged.full_models.values().map(ToString::to_string).collect();
            (distinct(merged.records.iter().map(|r| r.model.to_string())), full)
        };
        let (file, folder) = ("/srv/models/SmolLM2-135M.Q4_1.gguf", "/data/models/Llama-3.2-1B");
        let runs = [of("1", file), of("2", folder), of("3", "Qwen/Qwen3-0.6B"), of("4", "builtin")];
        let (names, full) = shown(&runs);
        assert_eq!(names, ["SmolLM2-135M.Q4_1", "Llama-3.2-1B", "Qwen/Qwen3-0.6B", "builtin"]);
        assert_eq!(full, [folder, file]);
        // Two models with the same last name keep their paths.
        let two = [of("5", "/a/checkpoint"), of("6", "/b/checkpoint")];
        assert_eq!(shown(&two).0, ["/a/checkpoint", "/b/checkpoint"]);
    }

    #[test]
    fn a_folder_without_records_is_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(&[dir.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("holds no samples.jsonl"), "{error}");
    }

    fn tasks(merged: &Merged) -> Vec<&str> {
        distinct(merged.records.iter().map(|r| r.task.as_str()))
    }

    fn asking(method: &str, sample: usize, what: &str) -> Record {
        Record { example_sha256: Some(what.to_owned().into()), ..record("jsonl:validation", method, sample, 1.0) }
    }

    /// RULER names all its files `validation.jsonl`, so different tasks have the same name.
    #[test]
    fn tasks_of_one_name_are_told_apart_by_what_they_ask() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, inputs: Value, records: &[Record]| {
            let path = run(&dir.path().join(name), json!({}), json!({}), records);
            let mut manifest = spattn_eval::records::store::load_manifest(&path).unwrap();
            manifest[INPUTS] = json!({ "jsonl:validation": inputs });
            std::fs::write(path.join("manifest.json"), manifest.to_string()).unwrap();
            path
        };
        let vt = of("vt", json!("a"), &[asking("full", 0, "v0"), asking("full", 1, "v1")]);
        let more_vt = of("more", json!("a2"), &[asking("quest", 1, "v1"), asking("quest", 2, "v2")]);
        let qa = of("qa", json!("b"), &[asking("full", 0, "q0")]);
        let shard = of("shard", json!("a"), &[asking("full", 7, "v7")]);
        let other_shard = of("other", json!("b"), &[asking("full", 7, "q7")]);
        let merged = |runs: &[&PathBuf]| read(&runs.iter().map(|run| (*run).clone()).collect::<Vec<_>>()).unwrap();

        let one = merged(&[&vt, &more_vt, &shard]);
        assert_eq!(
            (tasks(&one), one.records.len()),
            (vec!["jsonl:validation"], 5),
            "a file that has grown is the same"
        );
        let two = merged(&[&vt, &qa]);
        assert_eq!(tasks(&two), ["jsonl:validation (vt)", "jsonl:validation (qa)"]);
        assert_eq!(two.records.len(), 3, "nothing is dropped, though two records have one key");
        assert_eq!(
            two.notes,
            ["`jsonl:validation` has different questions in vt, qa: each is shown as a separate task"]
        );
        // They have no example in common, and different data.
        assert_eq!(tasks(&merged(&[&vt, &other_shard])).len(), 2);
        // A folder into which a file of another run was copied.
        let mixed = of("mixed", json!("a"), &[asking("full", 0, "v0"), asking("quest", 0, "q0")]);
        let told = "records of `jsonl:validation` in mixed answer different questions under the same number: their scores cannot be compared";
        assert_eq!(merged(&[&mixed]).notes, [told]);
        // The references were edited, but the digest is still that of the original question.
        let with_key = |name: &str, key: &str| {
            let record = Record { references: vec![key.to_owned()].into(), ..asking("full", 0, "v0") };
            of(name, json!("a"), &[record])
        };
        let [rome, oslo] = [with_key("rome", "Rome"), with_key("oslo", "Oslo")];
        let edited = merged(&[&rome, &oslo]);
        assert_eq!((tasks(&edited).len(), edited.records.len()), (2, 2));
        let told = "`jsonl:validation` has different answers for the same questions in rome, oslo: each is shown as a separate task";
        assert_eq!(edited.notes, [told]);
        // The same questions with another limit: one task in two settings, each with its own rows.
        let limited = |name: &str, limit: usize, what: &str| {
            let record = |i: usize| Record {
                max_new_tokens: limit,
                key: format!("{what}{i}"),
                ..asking("full", i, &format!("{what}{i}"))
            };
            of(name, json!("a"), &[record(0), record(1)])
        };
        let settings = merged(&[&limited("long", 64, "l"), &limited("short", 24, "s")]);
        assert_eq!(tasks(&settings), ["jsonl:validation"], "not two tasks, whose mean would count a document twice");
        assert_eq!(models(&settings), ["builtin (max_new_tokens=64)", "builtin (max_new_tokens=24)"]);
        let told = "`jsonl:validation` has the same questions in long, short, with max_new_tokens=64 and max_new_tokens=24: the runs have \
                    separate rows, and no mean counts a document twice";
        assert_eq!(settings.notes, [told]);
        // The scores were edited: the first record counts, and a note says so.
        let scored = |name: &str, score| of(name, json!("a"), &[Record { score, ..asking("full", 0, "v0") }]);
        let one = merged(&[&scored("one", 1.0), &scored("half", 0.5)]);
        assert_eq!((one.records.len(), one.records[0].score), (1, 1.0));
        let told = "1 records are in several of the runs; each counts once; of 1 that differ in score or answer, the first counts";
        assert_eq!(one.notes, [told]);
        // Old records have no digest, but they hold their questions.
        let old = |name: &str, question: &str| {
            let record = Record { question: question.into(), example_sha256: None, ..asking("full", 0, "") };
            run(&dir.path().join(name), json!({}), json!({}), &[record])
        };
        let [old, other, same] = [old("old", "Where?"), old("other-old", "Who?"), old("same-old", "Where?")];
        assert_eq!(tasks(&merged(&[&old, &other])).len(), 2);
        assert_eq!(tasks(&merged(&[&old, &same])).len(), 1);
    }

    #[test]
    fn configurations_and_forms_of_methods_get_rows_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, facts: Value, revision: u16| {
            let record = Record { key: format!("{revision}"), revision, ..record("vt", "quest", 0, 1.0) };
            run(&dir.path().join(name), facts, json!({}), &[record])
        };
        let yarn = |factor: f64| json!({"config": {"rope": {"scaling": {"yarn": {"factor": factor}}}}, "tokens": {}});
        let two = read(&[of("1", yarn(2.0), 1), of("2", yarn(4.0), 1)]).unwrap();
        let keys = ["builtin (config.rope.scaling.yarn.factor=2.0)", "builtin (config.rope.scaling.yarn.factor=4.0)"];
        assert_eq!(models(&two), keys);
        let with_old = read(&[of("3", yarn(2.0), 1), of("4", json!({}), 1)]).unwrap();
        assert_eq!(models(&with_old), ["builtin (configuration=recorded)", "builtin (configuration=not recorded)"]);
        let forms = read(&[of("5", json!({}), 1), of("6", json!({}), 2)]).unwrap();
        let params: Vec<&str> = forms.records.iter().map(|r| r.params.as_str()).collect();
        assert_eq!(params, ["form=1", "form=2"]);
        let order: Vec<&str> = forms.order.iter().map(|(_, params)| params.as_str()).collect();
        assert_eq!(order, ["", "form=1", "form=2"], "full, and quest where it was asked for");
        assert_eq!(forms.notes, ["quest was run with several versions of the method: each has separate rows"]);
    }
}
