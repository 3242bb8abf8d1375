//! Finds the calibration artefacts that methods need, and checks that they were made for the model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use anyhow::{Context, Result};

use spattn_attention::Configured;
use spattn_attention::artefact::{Artefact, ArtefactError};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_model::OpenModel;
use spattn_model::calibration::CalibrationPlace;

/// Gives each method its artefact if it needs one, from `folder` or else from the model's own place.
///
/// # Errors
/// A [`UsageError`] that says how to make an artefact, if one is missing or was not made for this model.
pub fn supply(methods: &mut [Configured], model: &OpenModel, folder: Option<&Path>) -> Result<()> {
    let mut artefacts = BTreeMap::new();
    for method in methods {
        let needs = |part: &Configured| Some((part.method.calibration()?, part.name.clone()));
        for (kind, name) in method.parts().filter_map(needs).collect::<Vec<_>>() {
            let artefact = match artefacts.entry(kind) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(find(kind, &name, model, folder)?),
            };
            *method = method.calibrated(artefact).map_err(|e| refused(e, kind, model, folder))?;
        }
    }
    Ok(())
}

/// The artefact of `kind` for `model`. Errors name `method`, which needs it.
fn find(kind: &str, method: &str, model: &OpenModel, folder: Option<&Path>) -> Result<Artefact> {
    found(kind, model, folder)?.ok_or_else(|| {
        let file = place(model, folder).label(kind);
        UsageError::new(format!("method `{method}` needs a calibration of {}: no {file}", model.id))
            .hint(how_to_make(kind, model, folder))
            .into()
    })
}

/// The artefact of `kind` for `model`, from `folder` or else the model's own place; `None` if none exists.
///
/// # Errors
/// If it cannot be read, or was not made for this model.
pub fn found(kind: &str, model: &OpenModel, folder: Option<&Path>) -> Result<Option<Artefact>> {
    let place = place(model, folder);
    let file = place.label(kind);
    let Some(bytes) = place.read(kind).with_context(|| format!("cannot read {file}"))? else { return Ok(None) };
    no_lfs_pointer(&file, &bytes)?;
    let refused = |e| refused(e, kind, model, folder);
    let artefact = Artefact::parse(&file, bytes).map_err(refused)?;
    let mut shape = model.shape();
    if shape.weights_sha256.is_empty() {
        // A plan does not read the weights, so it cannot check that the artefact was made from them.
        shape.weights_sha256.clone_from(&artefact.info().model.weights_sha256);
    }
    artefact.check(kind, &shape).map_err(refused)?;
    Ok(Some(artefact))
}

/// Where artefacts are looked for.
fn place(model: &OpenModel, folder: Option<&Path>) -> CalibrationPlace {
    folder.map_or_else(|| model.calibration.clone(), |f| CalibrationPlace::Folder(f.to_owned()))
}

fn refused(error: ArtefactError, kind: &str, model: &OpenModel, folder: Option<&Path>) -> UsageError {
    if let ArtefactError::NotImported { .. } = error {
        return UsageError::new(error.to_string()).hint(how_to_make(&format!("{kind} --import FILE"), model, folder));
    }
    let what = match &error {
        // Settings that change a selection are written as the method's own parameters.
        ArtefactError::OtherSetting { expected, .. } => format!("{kind}:{expected}"),
        _ => kind.to_owned(),
    };
    UsageError::new(error.to_string()).hint(how_to_make(&what, model, folder))
}

/// The command that makes an artefact where it was looked for, or where it can be stored.
fn how_to_make(kind: &str, model: &OpenModel, folder: Option<&Path>) -> String {
    let command = format!("spattn calibrate {kind} --model {}", model.id);
    match (folder, &model.writable_calibration) {
        (Some(folder), _) => format!("make it with `{command} --out {}`", folder.display()),
        (None, Some(_)) => format!("make it with `{command}`"),
        (None, None) => format!("make it with `{command} --out DIR`, and give it with --calibration DIR"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_attention::expand_grid;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn artefacts_are_found_where_they_are_and_the_user_is_told_how_to_make_them() {
        let mut model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Some(dir.path());
        let made = find("loki", "loki", &model, None).unwrap();
        assert_eq!(made.info().kind, "loki");
        let missing = find("loki", "mine", &model, folder).unwrap_err().downcast::<UsageError>().unwrap();
        assert!(missing.what.starts_with("method `mine` needs a calibration of builtin: no "), "{}", missing.what);
        let command = "spattn calibrate loki --model builtin";
        let at_folder = format!("make it with `{command} --out {}`", dir.path().display());
        assert_eq!(missing.hint.unwrap(), at_folder);
        assert!(how_to_make("loki", &model, None).contains("--calibration DIR"));
        model.writable_calibration = Some(dir.path().to_owned());
        assert_eq!(how_to_make("loki", &model, None), format!("make it with `{command}`"));

        let policy = spattn_attention::Policy::default();
        let configured =
            |spec: &str| spattn_attention::methods::configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
        let mut methods = [configured("loki"), configured("topk"), configured("loki:rank=8")];
        supply(&mut methods, &model, None).unwrap();
        let hashes = methods.each_ref().map(|m| m.artefact.clone());
        assert_eq!(hashes, [Some(made.sha256().to_owned()), None, Some(made.sha256().to_owned())]);
        assert!(supply(&mut [configured("loki")], &model, folder).is_err());
    }
}
