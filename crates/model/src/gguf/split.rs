//! Models that `gguf-split` cut into several files: the files' names, and whether they belong together.
//!
//! Each file states its number (`split.no`, from 0), the number of files (`split.count`), and the number of tensors in all files
//! (`split.tensors.count`). The first file has the configuration and the tokenizer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;

use super::metadata::Metadata;
use spattn_base::error::UsageError;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The most files, since the numbers in their names have five digits.
const MOST: usize = 99_999;
const DIFFERENT: &str =
    "the files are parts of different models, or of different splittings of one: fetch all of them from one place";

/// The number of files that the model is cut into; `None` if it is in one.
///
/// # Errors
/// An impossible number.
pub(super) fn count(path: &Path, metadata: &HashMap<String, Value>) -> Result<Option<usize>, UsageError> {
    let label = path.display().to_string();
    let metadata = Metadata::new(&label, metadata);
    match metadata.optional_size(COUNT)? {
        None | Some(0 | 1) => Ok(None),
        Some(count) if count <= MOST => Ok(Some(count)),
        Some(count) => {
            let what = format!("{count} files, and {MOST} are the most there are");
            Err(metadata.error(COUNT, &what).hint("the file may be damaged: fetch it again"))
        }
    }
}

/// The end of all names, after the number.
fn ending(count: usize) -> String {
    format!("-of-{count:05}.gguf")
}

/// The part of a file's name before `-00001-of-00003.gguf`, and the number of files; `None` if it is not such a name.
pub(crate) fn base(name: &str) -> Option<(&str, usize)> {
    let (front, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, number) = front.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match is_number(number) && is_number(count) {
        true => Some((base, count.parse().ok()?)),
        false => None,
    }
}

/// The name of the file numbered `part`, from 0.
pub(crate) fn name(base: &str, part: usize, count: usize) -> String {
    format!("{base}-{:05}{}", part + 1, ending(count))
}

/// All files of the model that a file belongs to, as named by `gguf-split`.
///
/// # Errors
/// If the file is not named as one of `count` files, or another one is missing.
pub(super) fn names(path: &Path, count: usize) -> Result<Vec<PathBuf>, UsageError> {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((base, _)) = base(&file).filter(|(_, named)| *named == count) else {
        let what = format!("{}: one of {count} files of a model, and not named as such", path.display());
        return Err(UsageError::new(what).hint(format!("files of a split model are named NAME-00001{}", ending(count))));
    };
    let paths: Vec<PathBuf> = (0..count).map(|part| path.with_file_name(name(base, part, count))).collect();
    match paths.iter().find(|path| !path.is_file()) {
        None => Ok(paths),
        Some(missing) => {
            Err(UsageError::new(format!("{}: missing: the model is split into {count} files", missing.display()))
                .hint("fetch all of them into one folder"))
        }
    }
}

/// Checks that a file is what its name says: number `part` of `count`. Returns the total number of tensors that it states, which must
/// be equal to `stated`, the number in earlier files, if there are any.
///
/// # Errors
/// If it is another part, or disagrees with earlier files.
pub(super) fn check(
    path: &Path,
    metadata: &HashMap<String, Value>,
    part: usize,
    count: usize,
    stated: Option<usize>,
) -> Result<Option<usize>, UsageError> {
    let label = path.display().to_string();
    let metadata = Metadata::new(&label, metadata);
    let found = (metadata.optional_size(NUMBER)?, metadata.optional_size(COUNT)?);
    let of_its_own = match found {
        (Some(number), Some(of)) if (number, of) == (part, count) => None,
        (Some(number), Some(of)) => Some(format!("it says that it is file {} of {of}", number.saturating_add(1))),
        _ => Some("it does not say that it is part of a split model".to_owned()),
    };
    if let Some(what) = of_its_own {
        let what = format!("{label}: {what}, and by its name it is file {} of {count}", part + 1);
        return Err(UsageError::new(what).hint(DIFFERENT));
    }
    let tensors = metadata.optional_size(TENSORS)?;
    match (stated, tensors) {
        (Some(before), Some(now)) if before != now => {
            let what =
                format!("{label}: it is part of a model of {now} tensors, and the files before it of one of {before}");
            Err(UsageError::new(what).hint(DIFFERENT))
        }
        _ => Ok(stated.or(tensors)),
    }
}

/// Checks that all files together have as many tensors as they state.
///
/// # Errors
/// If they do not.
pub(super) fn check_tensors(label: &str, found: usize, stated: Option<usize>) -> Result<(), UsageError> {
    match stated {
        Some(stated) if stated != found => {
            let what =
                format!("{label}: the files of the model have {found} tensors together, and say that it has {stated}");
            Err(UsageError::new(what).hint(DIFFERENT))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_gguf_split() {
        assert_eq!(base("m-Q4_K_M-00002-of-00011.gguf"), Some(("m-Q4_K_M", 11)));
        assert_eq!(name("m-Q4_K_M", 1, 11), "m-Q4_K_M-00002-of-00011.gguf");
        for other in
            ["m.gguf", "m-2-of-11.gguf", "m-00002-of-00011.bin", "00002-of-00011.gguf", "m-0000x-of-00011.gguf"]
        {
            assert_eq!(base(other), None, "{other}");
        }
    }
}
