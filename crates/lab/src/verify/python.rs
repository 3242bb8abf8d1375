//! Has transformers compute a reference, on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use spattn_attention::kv::KvDtype;
use spattn_base::error::{RunFailure, UsageError};
use spattn_model::source::ModelSource;

/// `scripts/verify_hf.py`.
const SCRIPT: &str = include_str!("../../verify_hf.py");

/// Runs the script of references by the interpreter `python`, and writes `out`. `tokens` is the length of the text; the script chooses if
/// `None`.
///
/// # Errors
/// A model that has no files which transformers could read; an interpreter without torch and transformers, or a model that it refuses.
pub fn write_reference(
    python: &str,
    source: &ModelSource,
    dtype: KvDtype,
    tokens: Option<usize>,
    out: &Path,
) -> Result<()> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).args(arguments(source, dtype, tokens)?).arg(out);
    // Standard output is the table's.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status =
        command.status().with_context(|| format!("--against hf needs `{python}` with torch and transformers"))?;
    if status.success() {
        return Ok(());
    }
    let what = format!("--against hf: `{python}` wrote no reference ({status}); what it says is above");
    let hint = "give an interpreter with torch and transformers by --python, or a file that was written elsewhere by --reference \
                (docs/verify.md, with scripts/verify_hf.py)";
    Err(RunFailure { what, hint: hint.to_owned() }.into())
}

/// The script's arguments before the file that it writes.
fn arguments(source: &ModelSource, dtype: KvDtype, tokens: Option<usize>) -> Result<Vec<String>, UsageError> {
    let name = match dtype {
        KvDtype::F32 => "float32",
        KvDtype::F16 => "float16",
        KvDtype::Bf16 => "bfloat16",
    };
    let mut arguments = vec![format!("--dtype={name}")];
    arguments.extend(tokens.map(|tokens| format!("--tokens={tokens}")));
    let (place, revision) = match source {
        ModelSource::Folder(path) | ModelSource::Gguf(path) => (path.display().to_string(), None),
        ModelSource::Hub { repo, revision } => (repo.clone(), revision.clone()),
        ModelSource::HubGguf { .. } => {
            return Err(UsageError::new("--against hf: the script does not find GGUF files on the hub")
                .hint("download the file and give its path, or give the repository that it was made from"));
        }
        ModelSource::Builtin | ModelSource::Random(_) => {
            let hint =
                "give a checkpoint's folder, a GGUF file or a hub id; the built-in model's files are in models/builtin";
            return Err(UsageError::new("--against hf: this model has no files for transformers").hint(hint));
        }
    };
    arguments.extend(revision.map(|revision| format!("--revision={revision}")));
    // A folder's name may begin with a dash.
    arguments.extend(["--".to_owned(), place]);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_told_model_type_and_length() {
        let of = |spec: &str, tokens| arguments(&ModelSource::parse(spec).unwrap(), KvDtype::Bf16, tokens);
        assert_eq!(
            of("org/name@v1", Some(64)).unwrap(),
            ["--dtype=bfloat16", "--tokens=64", "--revision=v1", "--", "org/name"]
        );
        assert!(of("builtin", None).unwrap_err().hint.unwrap().contains("models/builtin"));
    }

    #[test]
    fn an_interpreter_that_fails_is_named() {
        let source = ModelSource::parse("org/name").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let run = |python| write_reference(python, &source, KvDtype::F32, None, &folder.path().join("out"));
        assert!(run("no-such-python").unwrap_err().to_string().contains("`no-such-python` with torch"));
        assert!(run("false").unwrap_err().to_string().contains("`false` wrote no reference"));
    }
}
