//! The manifest in a run's folder: what its records are about, and whether a later run may add records.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::changes::{self, AXES, Changes};
use super::loaded::{LoadedRecords, SAMPLES, load_records};
use super::manifest_keys::{CALIBRATION, HELD_TO, IDENTITY, INPUTS, MANIFEST};
use super::record::Record;
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;

/// The manifest's key for what the manifests of resumed runs have besides the identity.
pub(super) const RESUMED: &str = "resumed";
/// The most bytes of a manifest.
const MOST_OF_MANIFEST: u64 = 256 << 20;

/// Reads the manifest of a run's folder.
///
/// # Errors
/// A [`UsageError`] if it is missing, or not JSON.
pub fn load_manifest(dir: &Path) -> Result<Value> {
    let path = dir.join(MANIFEST);
    let wrong = |what: String| UsageError::new(what).hint("records cannot be read without it: give another folder");
    let text = given::text(&path, MOST_OF_MANIFEST);
    let text = text.map_err(|e| wrong(format!("cannot read {}: {e}", path.display())))?;
    no_lfs_pointer(path.display(), text.as_bytes())?;
    Ok(serde_json::from_str(&text).map_err(|e| wrong(format!("{} is not JSON: {e}", path.display())))?)
}

/// The stored manifest with what this run adds to it.
///
/// # Errors
/// If the two differ in anything that determines results, or this run lacks something that the folder has.
pub(super) fn merged_manifest(dir: &Path, manifest: &Value) -> Result<Value> {
    let mut stored = load_manifest(dir)?;
    let (mut changed, mut lacking) = (BTreeSet::new(), BTreeSet::new());
    for then in identities(&stored) {
        // The most similar identity of this run: if possible, one of the same model, protocol and seed.
        let compared = identities(manifest).into_iter().map(|now| {
            let mut changes = Changes::new();
            changes::compare("", then, now, &mut changes);
            (AXES.iter().filter(|axis| changes.contains_key(**axis)).count(), changes)
        });
        let nearest = compared.min_by_key(|(axes, changes)| (*axes, changes.len()));
        let Some((_, mut changes)) = nearest else { continue };
        // For another model, all other differences are expected.
        let is_other_model = changes.contains_key("model");
        let axes = AXES.iter().filter_map(|axis| Some((*axis, changes.remove(*axis)?)));
        lacking.extend(axes.map(|(axis, (then, _))| changes::lacking(axis, &then)).collect::<Vec<_>>());
        // That a chat template was used only then, or only now, says enough.
        if changes.contains_key("chat_template") {
            changes.remove("tokens.chat_template_sha256");
        }
        if !is_other_model {
            changed.extend(changes.iter().map(|(key, (then, now))| changes::in_words(key, then, now)));
        }
    }
    let calibration = with_known_kinds(&stored[CALIBRATION], &manifest[CALIBRATION]);
    let mut changes = Changes::new();
    changes::compare(CALIBRATION, &calibration, &with_known_kinds(&manifest[CALIBRATION], &calibration), &mut changes);
    changed.extend(changes.iter().map(|(key, (then, now))| changes::in_words(key, then, now)));
    if !changed.is_empty() || !lacking.is_empty() {
        let hint = match changed.is_empty() {
            true => {
                "a run may grow, but not shrink: add what it has already, or use another --out folder (or --overwrite)"
            }
            false => "use the same settings, --overwrite, or another --out folder",
        };
        let said: Vec<String> = changed.into_iter().chain(lacking).collect();
        let what = format!("{} was run with other settings: {}", dir.display(), said.join("; "));
        return Err(UsageError::new(what).hint(hint).into());
    }
    // Whether stored records still fit the tasks' inputs is checked for each record.
    let inputs = with_known_kinds(&manifest[INPUTS], &stored[INPUTS]);
    let (then, now) = (without_identity(&stored), without_identity(manifest));
    let Some(fields) = stored.as_object_mut() else { return Ok(stored) };
    fields.insert(CALIBRATION.to_owned(), calibration);
    fields.insert(INPUTS.to_owned(), inputs);
    fields.insert(IDENTITY.to_owned(), manifest[IDENTITY].clone());
    if let Some(held_to) = manifest.get(HELD_TO) {
        fields.insert(HELD_TO.to_owned(), held_to.clone());
    }
    if then != now {
        let resumed = fields.entry(RESUMED).or_insert_with(|| Value::Array(Vec::new()));
        if let Some(resumed) = resumed.as_array_mut()
            && !resumed.contains(&now)
        {
            resumed.push(now);
        }
    }
    Ok(stored)
}

/// The identities of a folder's records: one, or those of a matrix.
pub fn identities(manifest: &Value) -> Vec<&Value> {
    match &manifest[IDENTITY] {
        Value::Array(several) => several.iter().collect(),
        one => vec![one],
    }
}

/// Whether the model of a record is the one named `id`: it may have an addition in brackets that tells runs apart.
pub fn is_of(model: &str, id: &str) -> bool {
    model.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

/// The entries of `calibration`, with the entries of `other` that it lacks; nested objects are merged likewise.
fn with_known_kinds(calibration: &Value, other: &Value) -> Value {
    let mut all = other.as_object().cloned().unwrap_or_default();
    for (key, own) in calibration.as_object().into_iter().flatten() {
        let known = all.remove(key).filter(Value::is_object);
        let own = known.map_or_else(|| own.clone(), |known| with_known_kinds(own, &known));
        all.insert(key.clone(), own);
    }
    Value::Object(all)
}

fn without_identity(manifest: &Value) -> Value {
    let own = |key: &str| ![IDENTITY, CALIBRATION, INPUTS, HELD_TO, RESUMED].contains(&key);
    let rest = manifest.as_object().into_iter().flatten().filter(|(key, _)| own(key));
    Value::Object(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Reads a run's folder: its records and its manifest.
///
/// # Errors
/// A [`UsageError`] if a record belongs to no run in the manifest; another error if a file is missing or cannot be read.
pub fn load_run(dir: &Path) -> Result<(LoadedRecords, Value)> {
    let (loaded, manifest) = (load_records(dir)?, load_manifest(dir)?);
    check_belong(dir, &loaded.records, &manifest)?;
    Ok((loaded, manifest))
}

/// Checks that every record belongs to one of the manifest's models, seeds and protocols, because lines may have been copied
/// from another run's file.
pub(super) fn check_belong(dir: &Path, records: &[Record], manifest: &Value) -> Result<()> {
    let known = identities(manifest);
    let is = |identity: &Value, r: &Record| {
        identity["model"] == *r.model && identity["protocol"] == *r.protocol && identity["seed"] == r.seed
    };
    match records.iter().position(|r| !known.iter().any(|identity| is(identity, r))) {
        None => Ok(()),
        Some(at) => {
            let Record { model, protocol, seed, .. } = &records[at];
            Err(UsageError::new(format!(
                "{}: record {} belongs to no run in {MANIFEST}: {model}, {protocol}, seed {seed}",
                dir.join(SAMPLES).display(),
                at + 1
            ))
            .hint("keep the records of each run in a folder of its own; `spattn report` merges folders")
            .into())
        }
    }
}
