//! The prompts that `--keep-prompts` stores: the text of each example as the model read it, compressed, one file each in the folder
//! `prompts`. Methods and protocols share it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use flate2::read::MultiGzDecoder;
use flate2::{Compression, GzBuilder};

use super::record::Record;
use crate::folder::owned_files;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_model::checksum::sha256_hex;

/// The name of the folder within a run's folder.
pub const PROMPTS: &str = "prompts";
/// How many characters of a task's name are in a file's name. A hash at its end distinguishes longer names.
const LONGEST: usize = 60;
/// The most bytes of an unpacked prompt, because a small file may unpack to more than fits in memory.
const MOST_BYTES: u64 = 64 << 20;

/// The name of a prompt's file: task, length, seed and sample, and a hash that distinguishes models, and tasks whose names look the same
/// in a file's name.
pub fn file_name(model: &str, task: &str, length: usize, seed: u64, sample: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let task_name: String = task.chars().map(plain).take(LONGEST).collect();
    let whole = sha256_hex(format!("{model}\n{task}").as_bytes());
    format!("{task_name}-{length}-{seed}-{sample}-{}.txt.gz", &whole[..8])
}

/// Writes a prompt into a run's folder, unless it is stored already.
///
/// # Errors
/// If it cannot be written. The error names the file.
pub fn keep(dir: &Path, name: &str, prompt: &str) -> Result<()> {
    if dir.join(PROMPTS).join(name).is_file() {
        return Ok(());
    }
    // Without a time stamp, so that the same prompt makes the same file.
    let mut packer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    packer.write_all(prompt.as_bytes())?;
    owned_files::add(dir, &format!("{PROMPTS}/{name}"), &packer.finish()?)
}

/// The path of a record's prompt in one of several runs' folders, if one of them stored it.
pub fn find<'d>(dirs: impl IntoIterator<Item = &'d Path>, record: &Record) -> Option<PathBuf> {
    find_of_model(dirs, &record.model, record)
}

/// [`find`] for a record whose model has another name in the runs.
pub fn find_of_model<'d>(dirs: impl IntoIterator<Item = &'d Path>, model: &str, record: &Record) -> Option<PathBuf> {
    let name = file_name(model, &record.task, record.length, record.seed, record.sample);
    dirs.into_iter().map(|dir| dir.join(PROMPTS).join(&name)).find(|path| path.is_file())
}

/// Reads a stored prompt.
///
/// # Errors
/// A [`UsageError`] if the file cannot be read, or if [`keep`] did not write it.
pub fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let unpack = |file| MultiGzDecoder::new(file).take(MOST_BYTES).read_to_string(&mut text);
    given::plain(path).and_then(unpack).map_err(|e| {
        UsageError::new(format!("cannot read {}: {e}", path.display()))
            .hint("the file is damaged: delete it to draw the page without this prompt")
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;
    use std::fs;

    #[test]
    fn a_prompt_is_kept_once_and_found_by_its_record() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = [temp.path().join("a"), temp.path().join("b")];
        let r = record("vt", "topk", 3, 1.0);
        let name = file_name(&r.model, &r.task, r.length, r.seed, r.sample);
        let of_dirs = || dirs.iter().map(PathBuf::as_path);
        assert_eq!(find(of_dirs(), &r), None);
        keep(&dirs[1], &name, "a prompt, é\n").unwrap();
        keep(&dirs[1], &name, "another").unwrap();
        let path = find(of_dirs(), &record("vt", "quest", 3, 0.0)).unwrap();
        assert_eq!(read(&path).unwrap(), "a prompt, é\n");
        assert_eq!(find(of_dirs(), &record("vt", "topk", 4, 1.0)), None);
        fs::write(&path, b"\x1f\x8b torn").unwrap();
        let error: UsageError = read(&path).unwrap_err().downcast().unwrap();
        assert!(error.what.contains(&name) && error.hint.unwrap().contains("delete it"));
    }

    #[test]
    fn names_are_of_files_and_differ_where_examples_do() {
        let long = format!("jsonl:/home/ü/{}:metric=qa_f1", "x".repeat(90));
        let names = [
            file_name("m", "ruler/vt", 4096, 42, 0),
            file_name("m", "ruler_vt", 4096, 42, 0),
            file_name("n", "ruler/vt", 4096, 42, 0),
            file_name("m", "ruler/vt", 4096, 42, 1),
            file_name("m", "ruler/vt", 4096, 4, 0),
            file_name("m", "ruler/vt", 1024, 42, 0),
            file_name("m", &long, 0, 1, 2),
            file_name("m", &(long.clone() + "x"), 0, 1, 2),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name) && name.len() < 120, "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{name}");
        }
        assert!(names[0].starts_with("ruler_vt-4096-42-0-") && names[0].ends_with(".txt.gz"));
    }
}
