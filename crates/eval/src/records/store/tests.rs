//! Tests of a run's folder: opened, added to, damaged, locked and resumed.

use super::*;
use crate::records::loaded::drop_repeated;
use crate::records::manifest_keys::{CALIBRATION, IDENTITY};
use crate::records::stored_manifest::{RESUMED, load_run};
use crate::records::testing::record;
use serde_json::json;

fn manifest(seed: u64) -> Value {
    let mut identity = json!({"model": "builtin", "weights": {"hash": "ab"}, "protocol": "question", "seed": seed});
    CONTENT.iter().for_each(|key| identity[*key] = json!({}));
    json!({"identity": identity, "machine": "one"})
}

/// The manifest of a matrix over seeds.
fn matrix(seeds: &[u64]) -> Value {
    let identities: Vec<Value> = seeds.iter().map(|seed| manifest(*seed)[IDENTITY].clone()).collect();
    json!({"identity": identities, "machine": "one"})
}

fn usage(error: anyhow::Error) -> UsageError {
    error.downcast().unwrap()
}

fn stored(dir: &Path, samples: usize) {
    let mut store = Store::open(dir, OpenMode::Fresh, &manifest(1)).unwrap();
    for sample in 0..samples {
        assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap());
    }
}

#[test]
fn a_second_fresh_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let error = usage(Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap_err());
    assert!(error.hint.unwrap().contains("--resume"));
}

#[test]
fn a_run_that_recorded_nothing_leaves_its_folder_free() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 0);
    Store::open(dir.path(), OpenMode::Fresh, &manifest(2)).unwrap();
    Store::open(dir.path(), OpenMode::Resume, &manifest(3)).unwrap();
    assert_eq!(load_manifest(dir.path()).unwrap(), manifest(3));
}

#[test]
fn a_torn_line_is_cut_off_and_the_rest_kept() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 3);
    let path = dir.path().join(SAMPLES);
    let len = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 9).unwrap();
    assert_eq!(load_records(dir.path()).unwrap().records.len(), 2);

    let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
    assert_eq!(store.records().len(), 2);
    assert_eq!(store.notices().len(), 1);
    let missing = record("vt", "full", 2, 1.0);
    assert!(!store.contains(&missing.key));
    assert!(store.append(&missing).unwrap());
    assert_eq!(load_records(dir.path()).unwrap().records.len(), 3);
    assert!(load_records(dir.path()).unwrap().notices.is_empty());
}

#[test]
fn a_whole_last_line_without_newline_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 2);
    let path = dir.path().join(SAMPLES);
    let len = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
    assert_eq!(load_records(dir.path()).unwrap().records.len(), 2);
    let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
    assert!(store.notices().is_empty());
    store.append(&record("vt", "full", 2, 1.0)).unwrap();
    assert_eq!(load_records(dir.path()).unwrap().records.len(), 3);
}

#[test]
fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 2);
    let path = dir.path().join(SAMPLES);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("{\"key\"", "{key", 1)).unwrap();
    assert!(usage(load_records(dir.path()).unwrap_err()).what.contains("samples.jsonl:1: not a record"));
}

#[test]
fn two_writers_are_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
    let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
    assert!(error.what.contains(&format!("process {}", std::process::id())), "{error}");
    drop(store);
    Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
}

#[test]
fn resuming_under_other_settings_names_them() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let mut other = manifest(2);
    other[IDENTITY]["weights"]["hash"] = json!("cd");
    other["machine"] = json!("two");
    let error = usage(Store::open(dir.path(), OpenMode::Resume, &other).unwrap_err());
    let lacking = "it has records of `--seed` 1, which this run leaves out";
    assert!(error.what.ends_with(&format!("`weights.hash` was \"ab\", is \"cd\"; {lacking}")), "{error}");
}

#[test]
fn a_matrix_may_grow_but_not_change() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let resume = |manifest: &Value| Store::open(dir.path(), OpenMode::Resume, manifest);
    resume(&matrix(&[1, 2])).unwrap();
    assert_eq!(identities(&load_manifest(dir.path()).unwrap()).len(), 2);
    for fewer in [manifest(1), matrix(&[1, 3])] {
        let error = usage(resume(&fewer).unwrap_err());
        assert!(error.what.ends_with("it has records of `--seed` 2, which this run leaves out"), "{error}");
        assert!(error.hint.unwrap().starts_with("a run may grow, but not shrink: add what it has already"));
    }
    let mut other = matrix(&[1, 2]);
    other[IDENTITY][1]["weights"]["hash"] = json!("cd");
    let error = usage(resume(&other).unwrap_err());
    assert!(error.what.ends_with("`weights.hash` was \"ab\", is \"cd\""), "{error}");
    resume(&matrix(&[2, 1, 3])).unwrap();
}

#[test]
fn lines_of_another_runs_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    for foreign in [
        Record { seed: 2, ..record("vt", "full", 1, 1.0) },
        Record { model: "other".into(), ..record("vt", "full", 1, 1.0) },
        Record { protocol: "decode".into(), ..record("vt", "full", 1, 1.0) },
    ] {
        let path = dir.path().join(SAMPLES);
        let own = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{own}{}", line(&foreign).unwrap())).unwrap();
        let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
        assert!(error.what.contains("samples.jsonl: record 2 belongs to no run in manifest.json"), "{error}");
        assert_eq!(usage(load_run(dir.path()).unwrap_err()).what, error.what);
        fs::write(&path, own).unwrap();
    }
    Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
}

#[test]
fn records_without_a_manifest_are_a_mistake_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    fs::remove_file(dir.path().join(MANIFEST)).unwrap();
    let error = usage(Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap_err());
    assert!(error.what.contains("cannot read") && error.what.contains(MANIFEST), "{error}");
    assert!(error.hint.unwrap().contains("give another folder"));
}

#[test]
fn a_resumed_run_may_add_calibrations_but_not_change_one() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let calibrated = |calibration: Value| {
        let mut manifest = manifest(1);
        manifest[CALIBRATION] = calibration;
        Store::open(dir.path(), OpenMode::Resume, &manifest)
    };
    calibrated(json!({ "loki": "a" })).unwrap();
    calibrated(json!({ "hash": "b" })).unwrap();
    calibrated(json!({})).unwrap();
    let error = usage(calibrated(json!({ "hash": "b", "loki": "c" })).unwrap_err());
    assert!(error.what.contains("the calibration of loki has changed since"), "{error}");
    assert_eq!(load_manifest(dir.path()).unwrap()[CALIBRATION], json!({ "loki": "a", "hash": "b" }));
}

#[test]
fn what_does_not_determine_results_may_change_and_is_noted_once() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let mut other = manifest(1);
    other["machine"] = json!("two");
    for _ in 0..2 {
        Store::open(dir.path(), OpenMode::Resume, &other).unwrap();
    }
    let kept = load_manifest(dir.path()).unwrap();
    assert_eq!((&kept["machine"], &kept[RESUMED]), (&json!("one"), &json!([{"machine": "two"}])));
}

#[test]
fn overwriting_removes_what_was_drawn_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 2);
    owned_files::write_all(dir.path(), &[("summary.csv", "x"), ("plots/old.svg", "x")]).unwrap();
    for name in ["notes.txt", "plots/notes.txt", "plots/mine.svg"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    let store = Store::open(dir.path(), OpenMode::Overwrite, &manifest(2)).unwrap();
    assert!(store.records().is_empty());
    let there = |name: &str| dir.path().join(name).exists();
    assert!(["notes.txt", "plots/notes.txt", "plots/mine.svg"].iter().all(|name| there(name)));
    assert!(!there("summary.csv") && !there("plots/old.svg"));
    assert_eq!(load_records(dir.path()).unwrap().records.len(), 0);
}

#[test]
fn no_mode_replaces_what_another_wrote() {
    for name in ["manifest.json", "summary.csv", "report.html", "plots/a.svg", "prompts/a.gz", LOCK] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "theirs").unwrap();
        for mode in [OpenMode::Fresh, OpenMode::Resume, OpenMode::Overwrite] {
            let error = usage(Store::open(dir.path(), mode, &manifest(1)).unwrap_err());
            assert!(error.what.contains(name) && error.hint.is_some(), "{error}");
            assert!(error.what.contains("spattn did not write it"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(SAMPLES)).unwrap();
    for mode in [OpenMode::Fresh, OpenMode::Resume, OpenMode::Overwrite] {
        let error = usage(Store::open(dir.path(), mode, &manifest(1)).unwrap_err());
        assert!(error.what.ends_with("samples.jsonl is a folder, not a file of records"), "{error}");
    }
    assert_eq!(usage(load_records(dir.path()).unwrap_err()).what.split(' ').nth(1), Some("is"));
}

#[cfg(unix)]
#[test]
fn links_in_a_folder_from_elsewhere_are_not_written_through() {
    for name in [LOCK, OWNER, SAMPLES, MANIFEST, "summary.csv", "plots"] {
        let temp = tempfile::tempdir().unwrap();
        let (dir, theirs) = (temp.path().join("run"), temp.path().join("theirs"));
        stored(&dir, 1);
        fs::write(&theirs, "12345").unwrap();
        let _ = fs::remove_file(dir.join(name));
        std::os::unix::fs::symlink(&theirs, dir.join(name)).unwrap();
        for mode in [OpenMode::Resume, OpenMode::Overwrite] {
            let error = usage(Store::open(&dir, mode, &manifest(1)).unwrap_err());
            assert!(error.what.contains(&format!("{name}: it is a link")) && error.hint.is_some(), "{error}");
        }
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "12345");
    }
}

#[test]
fn records_survive_other_ends_of_lines_and_a_mark() {
    for (mark, end) in [("", "\r"), ("", "\r\n"), ("\u{feff}", "\n"), ("\u{feff}", "\r")] {
        let dir = tempfile::tempdir().unwrap();
        stored(dir.path(), 3);
        let path = dir.path().join(SAMPLES);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{mark}{}", text.replace('\n', end))).unwrap();
        let marked = format!("\u{feff}{}", fs::read_to_string(dir.path().join(MANIFEST)).unwrap());
        fs::write(dir.path().join(MANIFEST), marked).unwrap();
        let mut store = Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap();
        assert_eq!((store.records().len(), store.notices().len()), (3, 0), "{end:?}");
        assert!(store.append(&record("vt", "full", 3, 1.0)).unwrap());
        assert_eq!(load_records(dir.path()).unwrap().records.len(), 4, "{end:?}");
        // Errors count lines as an editor does.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("\"sample\":1,", "\"sample\":x,", 1)).unwrap();
        let error = usage(load_records(dir.path()).unwrap_err());
        assert!(error.what.contains("samples.jsonl:2: not a record"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_goes_during_a_run_is_noticed_at_the_next_record() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, moved) = (temp.path().join("run"), temp.path().join("moved"));
    let mut store = Store::open(&dir, OpenMode::Fresh, &manifest(1)).unwrap();
    assert!(store.append(&record("vt", "full", 0, 1.0)).unwrap());
    fs::rename(&dir, &moved).unwrap();
    let failure: RunFailure = store.append(&record("vt", "full", 1, 1.0)).unwrap_err().downcast().unwrap();
    assert!(failure.what.contains("was moved or removed during the run"), "{failure}");
    assert_eq!(load_records(&moved).unwrap().records.len(), 1, "and nothing more was written");
    fs::rename(&moved, &dir).unwrap();
    assert!(store.append(&record("vt", "full", 1, 1.0)).unwrap(), "it is back");
    fs::remove_file(dir.join(SAMPLES)).unwrap();
    assert!(store.place().unwrap().check().is_err());
    let failure: RunFailure = store.append(&record("vt", "full", 2, 1.0)).unwrap_err().downcast().unwrap();
    assert!(failure.what.contains("samples.jsonl was moved or removed") && failure.what.contains("gone"), "{failure}");
}

#[test]
fn a_file_that_is_shortened_during_a_run_is_noticed_at_the_next_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SAMPLES);
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
    (0..2).for_each(|sample| assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap()));
    let length = fs::metadata(&path).unwrap().len();
    for left in [length - 1, length / 2, 0] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
        let failure: RunFailure = store.append(&record("vt", "full", 2, 1.0)).unwrap_err().downcast().unwrap();
        let lost =
            format!("samples.jsonl was shortened by another program during the run: its last {} bytes", length - left);
        assert!(failure.what.contains(&lost) && failure.hint.contains("--resume"), "{failure}");
        assert_eq!(fs::metadata(&path).unwrap().len(), left, "nothing more was written");
    }
}

#[test]
fn a_folder_that_is_refused_is_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let open = |mode, seed| Store::open(dir.path(), mode, &manifest(seed));
    let has_lock = || dir.path().join(LOCK).exists();
    assert!(open(OpenMode::Resume, 2).is_err() && has_lock(), "it was there before");
    fs::remove_file(dir.path().join(LOCK)).unwrap();
    assert!(open(OpenMode::Resume, 2).is_err() && !has_lock());
    assert!(open(OpenMode::Fresh, 1).is_err() && !has_lock());
    let refused = |_: &Value, _: &mut LoadedRecords| Err(UsageError::new("no").into());
    assert!(Store::open_checked(dir.path(), OpenMode::Resume, &manifest(1), refused).is_err() && !has_lock());
    let held = open(OpenMode::Resume, 1).unwrap();
    assert!(open(OpenMode::Resume, 1).is_err() && has_lock(), "another's lock stays");
    drop(held);
}

#[test]
fn lines_of_one_key_that_differ_are_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 2);
    let path = dir.path().join(SAMPLES);
    let own = fs::read_to_string(&path).unwrap();
    let said = |record: &Record| {
        fs::write(&path, format!("{own}{}", line(record).unwrap())).unwrap();
        let LoadedRecords { records, notices } = load_records(dir.path()).unwrap();
        assert_eq!((records.len(), notices.len()), (2, 1));
        notices[0].clone()
    };
    let same = record("vt", "full", 1, 1.0);
    assert!(said(&same).ends_with("1 records repeat a key; the first of each key counts"));
    let told = said(&Record { score: 0.25, ..same.clone() });
    assert!(
        told.contains("1 of them differ from the first in score or answer: vt, sample 1, method full has 1 and 0.25")
    );
    assert!(told.contains(&format!("delete the lines that are wrong (key {})", same.key)), "{told}");
    assert!(said(&Record { prediction: "x".into(), ..same }).contains("differ from the first in score or answer"));
}

#[test]
fn the_first_record_of_a_key_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
    let first = record("vt", "full", 0, 1.0);
    assert!(store.append(&first).unwrap());
    assert!(!store.append(&Record { score: 0.0, ..first.clone() }).unwrap());
    let path = dir.path().join(SAMPLES);
    let twice = fs::read_to_string(&path).unwrap().repeat(2);
    fs::write(&path, twice).unwrap();
    let loaded = load_records(dir.path()).unwrap();
    assert_eq!((loaded.records, loaded.notices.len()), (vec![first], 1));
}

#[test]
fn records_that_are_equal_in_what_is_told_are_dropped_after_the_first() {
    let of = |key: &str, model: &str, sample| Record {
        key: key.into(),
        model: model.into(),
        ..record("vt", "full", sample, 1.0)
    };
    let all = || vec![of("a", "x", 0), of("b", "x", 1), of("a", "y", 2), of("a", "x", 3), of("b", "x", 4)];
    let left = |told: fn(&Record) -> [&str; 3]| {
        let mut records = all();
        let dropped = drop_repeated(&mut records, told);
        (records.iter().map(|r| r.sample).collect::<Vec<_>>(), dropped.len())
    };
    assert_eq!(left(|r| [&r.key, "", ""]), (vec![0, 1], 3));
    assert_eq!(left(|r| [&r.key, &r.model, ""]), (vec![0, 1, 2], 2));
    assert_eq!(left(|_| [""; 3]).1, 4);
}

#[test]
fn what_cannot_be_a_record_is_named_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 1);
    let path = dir.path().join(SAMPLES);
    let own = fs::read_to_string(&path).unwrap();
    let wrong = serde_json::to_string(&Record { score: 7.0, ..record("vt", "full", 1, 1.0) }).unwrap();
    // Empty lines count, and so does a last line without a newline.
    for (text, at) in [
        (format!("{{}}\n{own}"), 1),
        (format!("{own}\n{{}}\n"), 3),
        (format!("{own}{wrong}\n{own}"), 2),
        (format!("{own}\n\n{wrong}"), 4),
    ] {
        fs::write(&path, text).unwrap();
        let error = usage(load_records(dir.path()).unwrap_err());
        assert!(error.what.contains(&format!("{SAMPLES}:{at}: not a record: ")), "{error}");
    }
}

#[test]
fn a_last_record_without_its_newline_is_read_and_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    stored(dir.path(), 2);
    let path = dir.path().join(SAMPLES);
    let own = fs::read_to_string(&path).unwrap();
    let first = own.lines().next().unwrap();
    for (text, repeated) in [(own.trim_end().to_owned(), None), (format!("{own}{first}"), Some("1 records repeat"))] {
        fs::write(&path, text).unwrap();
        let LoadedRecords { records, notices } = load_records(dir.path()).unwrap();
        assert_eq!(records.iter().map(|r| r.sample).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(notices.len(), usize::from(repeated.is_some()), "{notices:?}");
        assert!(notices.iter().all(|notice| notice.contains(repeated.unwrap())), "{notices:?}");
    }
}

#[test]
fn numbers_that_json_cannot_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
    let error = store.append(&Record { cost1: Some(f64::NAN), ..record("vt", "full", 0, 1.0) }).unwrap_err();
    assert!(error.to_string().contains("sample 0"), "{error}");
    assert!(load_records(dir.path()).unwrap().records.is_empty());
}

#[test]
fn a_full_disk_is_one_line() {
    let full = Path::new("/dev/full");
    let Ok(file) = OpenOptions::new().write(true).open(full) else {
        return eprintln!("SKIPPED: there is no /dev/full here");
    };
    let mut samples = Samples { path: full.to_owned(), file, whole: 0 };
    let error = format!("{:#}", samples.append("{}\n").unwrap_err());
    assert!(error.starts_with("cannot write /dev/full: ") && !error.contains('\n'), "{error}");
}

#[test]
fn what_is_known_to_be_whole_is_all_that_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let whole = |store: &Store| assert_eq!(store.samples.whole, fs::metadata(dir.path().join(SAMPLES)).unwrap().len());
    let mut store = Store::open(dir.path(), OpenMode::Fresh, &manifest(1)).unwrap();
    for sample in 0..3 {
        whole(&store);
        assert!(store.append(&record("vt", "full", sample, 1.0)).unwrap());
    }
    whole(&store);
    drop(store);
    whole(&Store::open(dir.path(), OpenMode::Resume, &manifest(1)).unwrap());
}

#[test]
fn a_folder_that_cannot_be_written_is_found_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    // A file in the folder's place stops the superuser too, which a read-only folder would not.
    let error = usage(Store::open(&file.join("run"), OpenMode::Fresh, &manifest(1)).unwrap_err());
    assert!(error.what.starts_with("cannot write to the folder"), "{error}");
    let error = usage(Store::open(&file, OpenMode::Overwrite, &manifest(1)).unwrap_err());
    assert!(error.what.ends_with("is a file, not a folder") && error.hint.is_some(), "{error}");
}
