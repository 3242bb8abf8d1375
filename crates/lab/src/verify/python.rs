//! Makes transformers compute a reference on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use spattn_attention::kv::KvDtype;
use spattn_base::error::{RunFailure, UsageError};
use spattn_model::source::ModelSource;

/// `scripts/verify_hf.py`.
const SCRIPT: &str = include_str!("../../verify_hf.py");

/// Runs the script with the interpreter `python`, which writes the reference to `out`. `tokens` is the length of the text; the script
/// chooses it if `None`.
///
/// # Errors
/// A [`UsageError`] if the model has no files that transformers could read, or if the interpreter is missing or has no torch or
/// transformers: nothing was checked. A [`RunFailure`] if transformers refuses the model.
pub fn write_reference(
    python: &str,
    source: &ModelSource,
    dtype: KvDtype,
    tokens: Option<usize>,
    out: &Path,
) -> Result<()> {
    let arguments = arguments(source, dtype, tokens)?;
    check_interpreter(python)?;
    computed(python, &arguments, out)
}

/// Runs the script.
fn computed(python: &str, arguments: &[String], out: &Path) -> Result<()> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).args(arguments).arg(out);
    // Standard output is reserved for the table of checks.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let said = match command.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let what = format!("--against hf: `{python}` wrote no reference ({said}); what it says is above");
    Err(RunFailure { what, hint: HINT.to_owned() }.into())
}

const HINT: &str = "give an interpreter with torch and transformers by --python, or a file that was written elsewhere by --reference \
                    (docs/verify.md, with scripts/verify_hf.py)";

/// Checks that the interpreter is there and has what the script imports.
fn check_interpreter(python: &str) -> Result<(), UsageError> {
    const FINDS: &str =
        "import importlib.util as u, sys; sys.exit(not all(u.find_spec(name) for name in ('torch', 'transformers')))";
    let mut command = Command::new(python);
    command.args(["-c", FINDS]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(UsageError::new(format!("--against hf needs `{python}` with torch and transformers")).hint(HINT)),
    }
}

/// Returns the script's arguments before the file that it writes.
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
        for missing in ["no-such-python", "false"] {
            let error = run(missing).unwrap_err();
            assert!(error.to_string().contains(&format!("needs `{missing}` with torch")), "{error}");
            assert!(error.downcast_ref::<UsageError>().is_some(), "nothing was checked, so no check failed");
        }
        // As with an interpreter that has both, and a model that transformers refuses.
        let refused = computed("false", &[], &folder.path().join("out")).unwrap_err();
        assert!(refused.to_string().contains("`false` wrote no reference"), "{refused}");
        assert!(refused.downcast_ref::<UsageError>().is_none());
    }
}
