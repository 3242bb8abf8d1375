//! Knows which files of a results folder this program wrote. Only those are ever replaced or removed, whatever flags are given.
//!
//! Each results folder has a list of them, [`WRITTEN`], with one name in each line. The list only grows, except when a run is deleted.
//! Folders without a list, written by old versions or after the list was lost, are recognised by a file that only this program writes: a
//! manifest, a page, a result. Each of their other files counts as this program's only if its content shows that (`file_signs`). Nothing
//! is written through links, because a linked folder may belong to somebody else.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

pub use super::file_signs::PAPERS_PAGE;
use super::file_signs::is_shown;
use spattn_base::disk::{check_plain, open_here, read_here, write_whole_here};
use spattn_base::error::UsageError;

/// The name of the list within a folder.
pub const WRITTEN: &str = ".written";
/// The first line of a list.
const HEADING: &str = "# What spattn wrote into this folder: only that is ever replaced or removed.";
/// The most bytes that are read of a list, or of a file that identifies a folder.
const MOST_BYTES: u64 = 256 << 20;
const OTHER_FOLDER: &str = "choose another --out folder";

/// The files that a command writes into a folder.
#[derive(Debug)]
pub struct Kind {
    /// Names of files in the folder itself.
    pub names: &'static [&'static str],
    /// Subfolders (`""` is the folder itself), with the extensions of the files in them.
    pub folders: &'static [(&'static str, &'static [&'static str])],
    /// Whether a folder without a list is recognised as one that has such files.
    is_in: fn(&Path) -> bool,
}

/// The files of a run: records, manifest, summary, page, figures and prompts.
pub const RUN: Kind = Kind {
    names: &[
        "samples.jsonl",
        "manifest.json",
        "summary.csv",
        "summary.md",
        "verdict.json",
        "depths.csv",
        "metrics.csv",
        "report.html",
    ],
    folders: &[FIGURES, ("prompts", &["gz"])],
    is_in: |dir| has(dir, "manifest.json", &["program", "identity"]),
};
/// The log of a sweep's attempts, which stays when a run is deleted.
pub const ATTEMPTS: Kind = Kind { names: &["attempts.jsonl"], folders: &[], is_in: |dir| RUN.is_in(dir) };
/// The files of `spattn report`.
pub const REPORT: Kind = Kind {
    names: &[
        "summary.csv",
        "summary.md",
        "summary.tex",
        "summary.json",
        "verdict.json",
        "depths.csv",
        "metrics.csv",
        "report.html",
    ],
    folders: &[FIGURES, ("tables", &["md", "csv", "tex", "json"])],
    is_in: |dir| RUN.is_in(dir) || begins(dir, "report.html", 4096, " – spattn</title>"),
};
/// The results of `spattn tune`. Its records form a run.
pub const TUNE: Kind = Kind {
    names: &["tune.json", "tune.csv", "tune.md", "measured.jsonl"],
    folders: &[FIGURES],
    is_in: |dir| RUN.is_in(dir) || has(dir, "tune.json", &["run"]) || begins(dir, "measured.jsonl", 6, "{\"of\":"),
};
/// The results of `spattn bench`.
pub const BENCH: Kind = Kind {
    names: &["bench.json", "bench.csv", "bench.md", "manifest.json"],
    folders: &[FIGURES],
    is_in: |dir| has(dir, "manifest.json", &["program", "bench"]),
};
/// The files that `spattn report` draws for a benchmark.
pub const BENCH_PAGE: Kind = Kind { names: &["bench.md"], folders: &[FIGURES], is_in: |dir| BENCH.is_in(dir) };
/// The results of `spattn analyze`.
pub const ANALYSIS: Kind = Kind {
    names: &["analyze.json", "analyze.md"],
    folders: &[FIGURES, ("tables", &["csv"]), ("dump", &["safetensors"])],
    is_in: |dir| has(dir, "analyze.json", &["manifest", "analyses"]),
};
/// The files of `spattn analyze --dump`.
pub const DUMP: Kind = Kind { names: &[], folders: &[("dump", &["safetensors"])], is_in: |dir| ANALYSIS.is_in(dir) };
/// The results of a paper's item.
pub const ITEM: Kind = Kind {
    names: &["result.json", "table.csv", "table.tex", "plot.svg", "manifest.json", "README.md"],
    // Further runs have `result-*.json` and `manifest-*.json`.
    folders: &[("", &["svg", "png", "json"])],
    is_in: |dir| has(dir, "result.json", &["name", "variant", "ran"]) || begins(dir, "README.md", 64, PAPERS_PAGE),
};
/// The page of all papers, one page for each paper, and the log of what was run.
pub const PAPERS: Kind = Kind {
    names: &["README.md", "log.csv"],
    folders: &[("", &["md"])],
    is_in: |dir| begins(dir, "README.md", 64, PAPERS_PAGE) || begins(dir, "RESULTS.md", 64, "# The papers, reproduced"),
};
/// The units of an item's analyses or calibrations, which have a folder of their own.
pub const UNITS: Kind = Kind {
    names: &[],
    folders: &[("", &["json", "safetensors"])],
    is_in: |dir| files_in(dir).iter().any(|name| name.ends_with(".json") && has(dir, name, &["identity", "program"])),
};
/// The plan of a sweep on a cluster.
pub const SWEEP: Kind = Kind {
    names: &["plan.json", "matrix.toml", "sweep.sbatch"],
    folders: &[],
    is_in: |dir| has(dir, "plan.json", &["cells", "shards", "submissions"]),
};

const FIGURES: (&str, &[&str]) = ("plots", &["svg", "png"]);
const KINDS: [&Kind; 10] = [&RUN, &ATTEMPTS, &REPORT, &TUNE, &BENCH, &ANALYSIS, &ITEM, &PAPERS, &UNITS, &SWEEP];

impl Kind {
    fn is_in(&self, dir: &Path) -> bool {
        (self.is_in)(dir)
    }

    /// Whether this kind has files of the name.
    fn is_name(&self, name: &str) -> bool {
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
        let is_drawn = |(of, endings): &(&str, &[&str])| {
            *of == folder && file.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&ending))
        };
        self.names.contains(&name) || self.folders.iter().any(is_drawn)
    }

    /// The existing files whose names fit this kind.
    fn files(&self, dir: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            self.names.iter().filter(|name| dir.join(name).exists()).map(|n| (*n).to_owned()).collect();
        for (folder, _) in self.folders {
            let path = |file: String| if folder.is_empty() { file } else { format!("{folder}/{file}") };
            all.extend(files_in(&dir.join(folder)).into_iter().map(path).filter(|name| self.is_name(name)));
        }
        all
    }
}

/// A results folder, and which of its files this program wrote.
#[derive(Debug)]
pub struct OwnFolder {
    dir: PathBuf,
    names: BTreeSet<String>,
    is_listed: bool,
}

impl OwnFolder {
    /// Finds out which files of a folder this program wrote. The folder need not exist.
    ///
    /// # Errors
    /// A [`UsageError`] if `dir` is a file, or if the list is not this program's or cannot be read.
    pub fn of(dir: &Path) -> Result<Self, UsageError> {
        if dir.exists() && !dir.is_dir() {
            return Err(UsageError::new(format!("{} is a file, not a folder", dir.display())).hint(OTHER_FOLDER));
        }
        let path = dir.join(WRITTEN);
        // A list is empty if writing it failed, for example because the disk was full. It counts as missing.
        let listed = match check_plain(&path).map_err(|e| refused(&path, &e))? {
            true => Some(listed(&path)?).filter(|_| fs::metadata(&path).is_ok_and(|file| file.len() > 0)),
            false => None,
        };
        let is_listed = listed.is_some();
        let names = match listed {
            Some(names) => names,
            None => shown(dir),
        };
        Ok(Self { dir: dir.to_owned(), names, is_listed })
    }

    /// Whether the file exists and this program wrote it.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name) && self.dir.join(name).is_file()
    }

    /// Checks that files of a kind can be written: no link is in the way, and no file of somebody else would be replaced, as far as names
    /// are known in advance.
    ///
    /// # Errors
    /// A [`UsageError`] that names the file.
    pub fn check(&self, kind: &Kind) -> Result<(), UsageError> {
        kind.names.iter().try_for_each(|name| self.check_name(name))?;
        for (folder, _) in kind.folders.iter().filter(|(folder, _)| !folder.is_empty()) {
            self.check_folder(&self.dir.join(folder))?;
        }
        // The names of plots are not known yet. If the folder has no files of ours, somebody else's plots there are refused.
        let is_new = self.names.is_empty();
        let foreign = kind.files(&self.dir).into_iter().find(|name| is_new && name.contains('/'));
        foreign.map_or(Ok(()), |name| self.check_name(&name))
    }

    /// Adds names to the list before their files are written. Creates the folder if needed.
    ///
    /// # Errors
    /// A [`UsageError`] if a file is somebody else's, or a link; another error if the list cannot be written.
    pub fn claim<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let names: Vec<&str> = names.into_iter().collect();
        names.iter().try_for_each(|name| self.check_name(name))?;
        let is_first = !self.is_listed;
        let mut new: Vec<String> = if is_first { self.names.iter().cloned().collect() } else { Vec::new() };
        new.extend(names.into_iter().filter(|name| !self.names.contains(*name)).map(str::to_owned));
        if new.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot write to the folder {}", self.dir.display()))?;
        append(&self.dir, new.iter().map(String::as_str))?;
        self.is_listed = true;
        self.names.extend(new);
        Ok(())
    }

    /// Writes a claimed file as a whole. Returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.dir.join(name);
        self.check_name(name)?;
        write_whole_here(&path, bytes)?;
        Ok(path)
    }

    /// Removes this program's files of some kinds.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn clear(&mut self, kinds: &[&Kind]) -> Result<()> {
        let of_kinds = |name: &&String| kinds.iter().any(|kind| kind.is_name(name));
        let gone: BTreeSet<String> = self.names.iter().filter(of_kinds).cloned().collect();
        for name in &gone {
            self.check_name(name)?;
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        self.names.retain(|name| !gone.contains(name));
        if !self.dir.is_dir() {
            return Ok(());
        }
        let lines = std::iter::once(HEADING).chain(self.names.iter().map(String::as_str));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        self.is_listed = true;
        Ok(write_whole_here(&self.dir.join(WRITTEN), text.as_bytes())?)
    }

    /// Checks that a file does not exist or is this program's, and that no link leads to it.
    fn check_name(&self, name: &str) -> Result<(), UsageError> {
        let path = self.dir.join(name);
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.check_folder(&self.dir.join(folder))?;
        }
        let is_there = check_plain(&path).map_err(|e| refused(&path, &e))?;
        if !is_there || self.names.contains(name) {
            return Ok(());
        }
        Err(UsageError::new(format!("{} exists, and spattn did not write it", path.display()))
            .hint(format!("it would be replaced: move it away, or {OTHER_FOLDER}")))
    }

    fn check_folder(&self, folder: &Path) -> Result<(), UsageError> {
        match fs::symlink_metadata(folder) {
            Ok(found) if found.is_symlink() => {
                Err(refused(folder, &"it is a link, and links in a results folder are not followed"))
            }
            Ok(found) if !found.is_dir() => Err(refused(folder, &"it is a file, not a folder")),
            _ => Ok(()),
        }
    }
}

/// Checks that a command can write into a folder; see [`OwnFolder::check`].
///
/// # Errors
/// A [`UsageError`] that names the file in the way.
pub fn check(dir: &Path, kind: &Kind) -> Result<(), UsageError> {
    OwnFolder::of(dir)?.check(kind)
}

/// Writes files into a folder, which is created if needed. Writes none if one of them is somebody else's. Returns their paths.
///
/// # Errors
/// The errors of [`OwnFolder::claim`] and [`OwnFolder::write`].
pub fn write_all<N: AsRef<str>, B: AsRef<[u8]>>(dir: &Path, files: &[(N, B)]) -> Result<Vec<PathBuf>> {
    let mut own = OwnFolder::of(dir)?;
    own.claim(files.iter().map(|(name, _)| name.as_ref()))?;
    files.iter().map(|(name, bytes)| own.write(name.as_ref(), bytes.as_ref())).collect()
}

/// Writes one of very many files with different names. Appends to an existing list without reading it.
///
/// # Errors
/// The errors of [`OwnFolder::claim`] and [`OwnFolder::write`].
pub fn add(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let mut own = OwnFolder { dir: dir.to_owned(), names: BTreeSet::new(), is_listed: true };
    if !dir.join(WRITTEN).exists() {
        own = OwnFolder::of(dir)?;
    }
    own.claim([name])?;
    own.write(name, bytes).map(drop)
}

fn refused(path: &Path, why: &dyn std::fmt::Display) -> UsageError {
    UsageError::new(format!("cannot write {}: {why}", path.display())).hint(format!("remove it, or {OTHER_FOLDER}"))
}

/// The files whose content shows that this program wrote them, of the kinds for which the folder is recognised.
fn shown(dir: &Path) -> BTreeSet<String> {
    let of_kinds = KINDS.iter().filter(|kind| kind.is_in(dir)).flat_map(|kind| kind.files(dir));
    let mut names: BTreeSet<String> = of_kinds.collect();
    names.retain(|name| is_shown(dir, name));
    names
}

/// Adds names to the list in one write, because other processes may be adding names too. A failed write leaves the list unchanged.
fn append<'n>(dir: &Path, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
    let path = dir.join(WRITTEN);
    let failed = || format!("cannot write {}", path.display());
    let mut file = open_here(&path, OpenOptions::new().create(true).read(true).append(true)).with_context(failed)?;
    let length = file.seek(SeekFrom::End(0)).with_context(failed)?;
    let mut last = [b'\n'];
    if length > 0 {
        file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)).with_context(failed)?;
    }
    // A kill may have left an incomplete line, which the next name must not continue.
    let before = match (length, last) {
        (0, _) => format!("{HEADING}\n"),
        (_, [b'\n']) => String::new(),
        _ => "\n".to_owned(),
    };
    let lines = names.into_iter().map(|line| format!("{line}\n"));
    let text = std::iter::once(before).chain(lines).collect::<String>();
    file.write_all(text.as_bytes()).inspect_err(|_| drop(file.set_len(length))).with_context(failed)
}

/// Reads the names of a list, except for those that lead outside the folder.
fn listed(path: &Path) -> Result<BTreeSet<String>, UsageError> {
    let bytes = read_here(path, MOST_BYTES).map_err(|e| refused(path, &e))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    if lines.next().is_some_and(|first| first != HEADING) {
        return Err(refused(path, &"it is not a list that spattn wrote"));
    }
    let is_below = |name: &&str| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    Ok(lines.filter(|name| !name.is_empty()).filter(is_below).map(str::to_owned).collect())
}

/// The names of the plain files in a folder.
fn files_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let plain = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    plain.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Whether a file is a JSON object with all of these keys.
fn has(dir: &Path, name: &str, keys: &[&str]) -> bool {
    let read = |bytes: Vec<u8>| {
        serde_json::from_slice::<Value>(bytes.strip_prefix(spattn_base::given::MARK).unwrap_or(&bytes)).ok()
    };
    let value = text_of(dir, name, MOST_BYTES).ok().and_then(read);
    value.is_some_and(|value| keys.iter().all(|key| !value[*key].is_null()))
}

/// Whether a file contains `text` within its first `within` bytes.
fn begins(dir: &Path, name: &str, within: u64, text: &str) -> bool {
    text_of(dir, name, within).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
}

fn text_of(dir: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    read_here(&dir.join(name), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name)).unwrap()
    }

    fn usage(error: anyhow::Error) -> UsageError {
        error.downcast().unwrap()
    }

    #[test]
    fn files_of_others_are_neither_replaced_nor_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        put(dir, "summary.csv", "theirs");
        put(dir, "notes.txt", "theirs");
        let error = usage(write_all(dir, &[("summary.md", "ours"), ("summary.csv", "ours")]).unwrap_err());
        assert!(error.what.ends_with("summary.csv exists, and spattn did not write it"), "{error}");
        assert!(error.hint.unwrap().contains("choose another --out folder"));
        assert!(!dir.join("summary.md").exists() && text(dir, "summary.csv") == "theirs", "nothing of it was written");
        fs::remove_file(dir.join("summary.csv")).unwrap();
        write_all(dir, &[("summary.csv", "ours"), ("plots/a.svg", "ours")]).unwrap();
        put(dir, "plots/mine.svg", "theirs");
        write_all(dir, &[("summary.csv", "ours again")]).unwrap();
        add(dir, "prompts/1.gz", b"ours").unwrap();
        assert!(add(dir, "notes.txt", b"ours").is_err());
        let mut own = OwnFolder::of(dir).unwrap();
        own.check(&RUN).unwrap();
        own.clear(&[&RUN]).unwrap();
        let left: Vec<bool> = ["summary.csv", "plots/a.svg", "prompts/1.gz", "plots/mine.svg", "notes.txt"]
            .map(|name| dir.join(name).exists())
            .into();
        assert_eq!(left, [false, false, false, true, true]);
        // From now on, the file is somebody else's.
        put(dir, "summary.csv", "theirs");
        assert!(OwnFolder::of(dir).unwrap().check(&RUN).is_err());
    }

    #[test]
    fn drawings_of_others_are_no_place_for_ours_unless_the_folder_is() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        put(dir, "plots/figure-1.svg", "theirs");
        put(dir, "plots/readme.txt", "theirs");
        let error = check(dir, &RUN).unwrap_err();
        assert!(error.what.contains("plots/figure-1.svg exists, and spattn did not write it"), "{error}");
        fs::remove_file(dir.join("plots/figure-1.svg")).unwrap();
        check(dir, &RUN).unwrap();
        write_all(dir, &[("manifest.json", "{}")]).unwrap();
        put(dir, "plots/figure-1.svg", "theirs");
        check(dir, &RUN).unwrap();
        assert!(write_all(dir, &[("plots/figure-1.svg", "ours")]).is_err());
    }

    #[test]
    fn a_folder_from_before_there_were_lists_is_known_by_what_is_in_it() {
        let manifest = r#"{"program": {"name": "spattn"}, "identity": {"model": "builtin"}}"#;
        let page = "<!doctype html>\n<title>builtin – spattn</title>";
        let figure = "<svg width=\"660\" height=\"470\" viewBox=\"0 0 660 470\" xmlns=\"http://www.w3.org/2000/svg\">\n\
                      <rect x=\"0\" y=\"0\" width=\"660\" height=\"470\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>\n";
        let tensors = "01234567{\"__metadata__\":{\"spattn\":\"{}\"}}";
        // The file that identifies the folder with its content, another file with its first text, and the kind that writes it.
        let table: [(&str, &str, &str, &str, &Kind); 9] = [
            ("manifest.json", manifest, "samples.jsonl", "{\"key\":\"ab\"", &RUN),
            ("manifest.json", manifest, "plots/a.svg", figure, &RUN),
            ("manifest.json", manifest, "tables/a.tex", "% Needs \\usepackage{array,booktabs,siunitx}.", &REPORT),
            ("report.html", page, "summary.csv", "model,task,length,method,params,protocol,n,score,ci_low,", &REPORT),
            ("manifest.json", r#"{"program": {}, "bench": {}}"#, "bench.csv", "op,shape,device,dtype,threads", &BENCH),
            ("analyze.json", r#"{"manifest": {}, "analyses": []}"#, "dump/0000.safetensors", tensors, &ANALYSIS),
            ("measured.jsonl", "{\"of\":{\"model\":\"m\"}}\n", "tune.md", "# K and L\n", &TUNE),
            ("result.json", r#"{"name": "a", "variant": "builtin", "ran": []}"#, "plot.svg", figure, &ITEM),
            (
                "plan.json",
                r#"{"cells": [], "shards": [], "submissions": []}"#,
                "matrix.toml",
                "# The matrix as it was planned, flags",
                &SWEEP,
            ),
        ];
        for (mark, known, name, ours, kind) in table {
            let temp = tempfile::tempdir().unwrap();
            put(temp.path(), name, ours);
            assert!(check(temp.path(), kind).is_err(), "{name}: without {mark} it may be anybody's");
            put(temp.path(), mark, "{}");
            assert!(check(temp.path(), kind).is_err(), "{name}: {mark} of another");
            put(temp.path(), mark, known);
            check(temp.path(), kind).unwrap_or_else(|e| panic!("{name}: {e}"));
            write_all(temp.path(), &[(name, "new")]).unwrap();
            assert!(text(temp.path(), WRITTEN).contains(mark), "all that was there is listed with it");
            // A file with a different first text is somebody else's.
            fs::remove_file(temp.path().join(WRITTEN)).unwrap();
            put(temp.path(), name, "theirs");
            assert!(write_all(temp.path(), &[(name, "new")]).is_err(), "{name}");
            OwnFolder::of(temp.path()).unwrap().clear(&[kind]).unwrap();
            assert_eq!(text(temp.path(), name), "theirs");
        }
    }

    #[test]
    fn the_results_of_an_items_further_runs_are_known_without_a_list() {
        let result = |variant: &str| format!(r#"{{"name": "a", "variant": "{variant}", "ran": []}}"#);
        let temp = tempfile::tempdir().unwrap();
        put(temp.path(), "result.json", &result("builtin"));
        put(temp.path(), "result-times.json", &result("times"));
        put(temp.path(), "result-real-mine.json", r#"{"anything": "else"}"#);
        write_all(temp.path(), &[("result.json", "new"), ("result-times.json", "new")]).unwrap();
        assert!(write_all(temp.path(), &[("result-real-mine.json", "new")]).is_err(), "it is somebody else's");
    }

    #[test]
    fn the_folders_of_results_in_the_repository_are_known() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
        for (folder, kind) in [
            ("reference/quick", &RUN),
            ("papers", &PAPERS),
            ("papers/topk/figure-11", &ITEM),
            ("papers/topk/figure-2", &ITEM),
        ] {
            let dir = results.join(folder);
            if dir.is_dir() {
                check(&dir, kind).unwrap_or_else(|e| panic!("{folder}: {e}"));
                let own = OwnFolder::of(&dir).unwrap();
                let unknown = kind.files(&dir).into_iter().find(|name| !own.names.contains(name));
                assert_eq!(unknown, None, "{folder}");
            }
        }
    }

    #[test]
    fn a_list_that_was_torn_or_could_not_be_written_costs_nothing() {
        let temp = tempfile::tempdir().unwrap();
        put(temp.path(), WRITTEN, "");
        put(temp.path(), "manifest.json", r#"{"program": {"name": "spattn"}, "identity": {"model": "builtin"}}"#);
        put(temp.path(), "summary.csv", "model,task,length,method,params,protocol,n,score,ci_low,ci_high\n");
        write_all(temp.path(), &[("summary.csv", "new"), ("summary.md", "new")]).unwrap();
        put(temp.path(), WRITTEN, &format!("{HEADING}\nsummary.csv\nsumm"));
        fs::remove_file(temp.path().join("summary.md")).unwrap();
        write_all(temp.path(), &[("summary.md", "new")]).unwrap();
        write_all(temp.path(), &[("summary.csv", "newer"), ("summary.md", "newer")]).unwrap();
        assert_eq!(text(temp.path(), WRITTEN), format!("{HEADING}\nsummary.csv\nsumm\nsummary.md\n"));
    }

    #[test]
    fn a_list_names_only_what_is_below_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, outside) = (temp.path().join("run"), temp.path().join("report.html"));
        put(&dir, WRITTEN, &format!("{HEADING}\n../report.html\n{}\nsummary.csv\n", outside.display()));
        put(&dir, "summary.csv", "ours");
        fs::write(&outside, "theirs").unwrap();
        OwnFolder::of(&dir).unwrap().clear(&[&RUN, &REPORT]).unwrap();
        assert!(outside.exists() && !dir.join("summary.csv").exists());
        put(&dir, WRITTEN, "eggs, milk\n");
        assert!(OwnFolder::of(&dir).unwrap_err().what.ends_with("it is not a list that spattn wrote"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_refused_by_name() {
        use std::os::unix::fs::symlink;
        let temp = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (temp.path().join("run"), temp.path().join("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), "theirs").unwrap();
        for (name, to) in [("summary.csv", "file"), ("manifest.json", "nowhere"), ("plots", ""), (WRITTEN, "file")] {
            let _ = fs::remove_dir_all(&dir);
            write_all(&dir, &[("summary.csv", "ours"), ("manifest.json", "{}"), ("plots/a.svg", "ours")]).unwrap();
            let _ = fs::remove_file(dir.join(name));
            let _ = fs::remove_dir_all(dir.join(name));
            symlink(elsewhere.join(to), dir.join(name)).unwrap();
            let error = check(&dir, &RUN).unwrap_err();
            assert!(error.what.contains(&format!("{name}: it is a link")) && error.hint.is_some(), "{error}");
            let files = [("summary.csv", "new"), ("manifest.json", "new"), ("plots/a.svg", "new")];
            assert!(usage(write_all(&dir, &files).unwrap_err()).what.contains("it is a link"));
            assert!(OwnFolder::of(&dir).and_then(|own| own.check(&RUN)).is_err());
            assert_eq!(files_in(&elsewhere), ["file"]);
            assert_eq!(text(&elsewhere, "file"), "theirs");
        }
    }
}
