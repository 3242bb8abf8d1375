//! `spattn sweep` and `spattn doctor` as users run them: kills, shards, failures, and prefixes that protocols share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};
use spattn::attention::RecentQueries;
use spattn::eval::plan::manifest::RESULTS_VERSION;
use spattn::eval::records::record::Record;
use spattn::eval::records::store;
use spattn::eval::summary::summarize;
use spattn::report::merge;
use tempfile::TempDir;

use super::cells;

/// Two tasks, two seeds, two protocols (the longer prefix first) and three methods: 48 records.
const MATRIX: &str = "
tasks = ['ruler/niah_single_1', 'ruler/niah_multiquery']
lengths = [600]
samples = 2
seed = [1, 2]
sparse_from = ['decode', 'question']
methods = ['topk:k=16', 'random:ratio=0.125']
";

struct Matrix {
    temp: TempDir,
}

fn matrix(text: &str) -> Matrix {
    let temp = TempDir::new().unwrap();
    fs::write(temp.path().join("matrix.toml"), text).unwrap();
    Matrix { temp }
}

impl Matrix {
    fn out(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn command(&self, out: &str, more: &[&str]) -> Command {
        let mut command = spattn(&["sweep"]);
        command.arg(self.out("matrix.toml")).arg("--out").arg(self.out(out)).args(more);
        command
    }

    /// Runs the sweep to its end, and checks its exit status.
    #[track_caller]
    fn run(&self, out: &str, more: &[&str], status: i32) -> Output {
        finished(self.command(out, more), status)
    }
}

fn spattn(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
    command.env_remove("HF_HUB_CACHE").env_remove("SPATTN_DATA").env_remove("SPATTN_ISA");
    command
}

#[track_caller]
fn finished(mut command: Command, status: i32) -> Output {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{command:?}\n{}\n{}", stdout(&output), stderr(&output));
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const TIMES: [&str; 18] = [
    "prefill_s",
    "prefill_reused_s",
    "reused_tokens",
    "index_s",
    "index_reused_s",
    "decode_s",
    "select_s",
    "attend_s",
    "weights_s",
    "solo",
    "conditions",
    "decode_ms_per_token",
    "decode_ms_low",
    "decode_ms_high",
    "timed",
    "select_ms_per_token",
    "attend_ms_per_token",
    "weights_ms_per_token",
];

fn without_times(value: &Value) -> Map<String, Value> {
    let mut fields = value.as_object().unwrap().clone();
    fields.retain(|name, _| !TIMES.contains(&name.as_str()));
    fields
}

/// Records by key, without times. Checks that each key occurs once.
fn by_key(records: &[Record]) -> BTreeMap<String, Map<String, Value>> {
    let all: BTreeMap<_, _> =
        records.iter().map(|r| (r.key.clone(), without_times(&serde_json::to_value(r).unwrap()))).collect();
    assert_eq!(all.len(), records.len(), "no key is there twice");
    all
}

fn records(dir: &Path) -> BTreeMap<String, Map<String, Value>> {
    let loaded = store::load_records(dir).unwrap();
    by_key(&loaded.records)
}

/// The rows of a summary printed with `--json`.
fn rows(output: &Output) -> Vec<Map<String, Value>> {
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.as_array().unwrap().iter().map(without_times).collect()
}

fn lines(dir: &Path) -> usize {
    fs::read(dir.join("samples.jsonl")).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count())
}

/// The number of times that the sweep is killed.
const KILLS: usize = 20;

/// Starts the sweep, waits for `records` new records and then for `moment`, and kills it. Kills it earlier once it has `most` new
/// records, so that some are missing after all kills.
fn start_and_kill(m: &Matrix, records: usize, moment: Duration, most: usize) {
    let dir = m.out("killed");
    let before = lines(&dir);
    let mut child = m.command("killed", KILLED).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut mark = Instant::now();
    while mark.elapsed() < moment && lines(&dir) < before + most {
        assert!(child.try_wait().unwrap().is_none(), "it ends before it is killed");
        if lines(&dir) < before + records {
            assert!(mark.elapsed() < Duration::from_secs(120), "no records");
            mark = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

const KILLED: &[&str] = &["--resume", "-n", "6", "--json"];

#[test]
fn a_sweep_killed_twenty_times_ends_as_if_it_had_not_been() {
    let m = matrix(MATRIX);
    // Measure the time to the first record, and to the end.
    let started = Instant::now();
    let mut whole = m.command("whole", KILLED).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while lines(&m.out("whole")) == 0 && whole.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let to_first = started.elapsed();
    let expected = whole.wait_with_output().unwrap();
    let of_records = started.elapsed().saturating_sub(to_first);
    let all = records(&m.out("whole"));
    assert_eq!((all.len(), rows(&expected).len()), (144, 12));

    let dir = m.out("killed");
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    // The three records of an example are written together.
    let most = all.len() / KILLS - 3;
    let (mut kept, mut progress) = (BTreeMap::new(), BTreeSet::new());
    for _ in 0..KILLS {
        // Kill before the first record, or while one of the next ones is computed and written.
        let (records_before, span) = match rng.random_range(0..3) {
            0 => (0, to_first),
            _ => (rng.random_range(1..=3), of_records / KILLS as u32),
        };
        start_and_kill(&m, records_before, span.mul_f64(rng.random_range(0.01..1.0)), most);
        let now = if dir.join("samples.jsonl").exists() { records(&dir) } else { BTreeMap::new() };
        assert!(kept.iter().all(|(key, record)| now.get(key) == Some(record)), "no finished record is lost");
        assert!(now.len() < all.len(), "every kill is one while records are missing");
        kept = now;
        progress.insert(kept.len());
    }
    assert!(progress.len() > KILLS / 3, "they are spread over the run: {progress:?}");

    // A kill during a write leaves an incomplete line; here it is part of a record that is still missing.
    let whole = fs::read_to_string(m.out("whole").join("samples.jsonl")).unwrap();
    let missing = whole.lines().find(|line| kept.keys().all(|key| !line.contains(key))).unwrap();
    let samples = dir.join("samples.jsonl");
    fs::write(&samples, fs::read_to_string(&samples).unwrap() + &missing[..missing.len() / 2]).unwrap();
    let ended = m.run("killed", KILLED, 0);
    assert!(
        stderr(&ended).contains("note: ") && stderr(&ended).contains("an incomplete last line"),
        "{}",
        stderr(&ended)
    );
    assert_eq!(rows(&ended), rows(&expected));
    assert_eq!(records(&dir), all);
    // Nothing is left to do.
    let before = fs::read(&samples).unwrap();
    assert_eq!(rows(&m.run("killed", KILLED, 0)), rows(&expected));
    assert_eq!(fs::read(&samples).unwrap(), before);
}

#[test]
fn two_shards_merged_are_one_run() {
    let m = matrix(MATRIX);
    m.run("whole", &[], 0);
    m.run("first", &["--shard", "1/2"], 0);
    m.run("second", &["--shard", "2/2"], 0);
    let (first, second) = (records(&m.out("first")), records(&m.out("second")));
    assert!(!first.is_empty() && !second.is_empty() && first.keys().all(|key| !second.contains_key(key)));
    let merged = merge::read(&[m.out("first"), m.out("second")]).unwrap();
    assert!(merged.notes.is_empty(), "{:?}", merged.notes);
    let mut whole = records(&m.out("whole"));
    // No report shows densities by layer.
    whole.values_mut().for_each(|record| drop(record.shift_remove("density_by_layer")));
    assert_eq!(by_key(&merged.records), whole);
    let summary = |records: &[Record]| {
        let rows = summarize::summarize(records, &[]);
        rows.iter().map(|row| without_times(&serde_json::to_value(row).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(summary(&merged.records), summary(&store::load_records(&m.out("whole")).unwrap().records));
    // Another precision gives separate rows, and a note.
    m.run("other", &["--shard", "2/2", "--dtype", "f32"], 0);
    let merged = merge::read(&[m.out("first"), m.out("other")]).unwrap();
    // So neither run has the shard that the other lacks.
    let missing = |own: &str, other: &str| {
        format!("shard {other} of a run is missing ({own} here): its examples are not in any of these numbers")
    };
    let apart = "the runs of builtin differ in dtype: each has separate rows".to_owned();
    assert_eq!(merged.notes, [apart, missing("1/2", "2/2"), missing("2/2", "1/2")]);
    let models: BTreeSet<&str> = merged.records.iter().map(|r| r.model.as_str()).collect();
    assert_eq!(models, BTreeSet::from(["builtin (dtype=bf16)", "builtin (dtype=f32)"]));
}

#[test]
fn protocols_share_a_prefill_and_change_no_record() {
    // Methods without prompt statistics, and one method for each kind of statistics.
    let m = matrix(
        "tasks = ['ruler/niah_single_1', 'ruler/niah_multiquery']\nlengths = [450]\nsamples = 2\nseed = 1
         sparse_from = ['decode', 'question', 'last:40']
         methods = ['topk:k=16', 'random:ratio=0.125', 'snapkv:k=16', 'h2o:k=16', 'infllm:k=16',
                    'retrieval_attention:k=16']",
    );
    m.run("matrix", &[], 0);
    let all = records(&m.out("matrix"));
    assert_eq!(all.len(), 84);
    let other_order = ["question", "last:40", "decode"].map(|protocol| ["--sparse-from", protocol]).concat();
    m.run("other order", &other_order, 0);
    assert_eq!(all, records(&m.out("other order")));
    // The records of separate evaluations, by key.
    let mut single = BTreeMap::new();
    for protocol in ["question", "decode", "last:40"] {
        m.run(protocol, &["--sparse-from", protocol], 0);
        single.extend(records(&m.out(protocol)));
    }
    assert_eq!(all, single);
    for dir in ["matrix", "other order"] {
        let mut read: BTreeMap<_, BTreeMap<usize, usize>> = BTreeMap::new();
        for r in store::load_records(&m.out(dir)).unwrap().records {
            read.entry((r.task, r.sample)).or_default().insert(r.prefix_tokens, r.prefix_tokens - r.reused_tokens);
        }
        assert_eq!(read.len(), 4);
        for (place, read) in read {
            let longest = *read.keys().last().unwrap();
            let again = (read.len() - 1) * RecentQueries::COUNT;
            let all: usize = read.values().sum();
            assert!(all <= longest + again, "{place:?} in {dir}: {read:?}");
        }
    }
}

#[test]
fn prompts_read_by_masks_give_the_same_records_in_any_company() {
    let m = matrix(
        "tasks = ['ruler/niah_single_1', 'ruler/niah_multiquery']\nlengths = [600]\nsamples = 2\nseed = 1
         sparse_from = ['decode', 'prefill']\nfidelity = true
         methods = ['hip:k=64,b_q=16', 'bigbird:window=40,blocks=2,block=16', 'a_shape:window=100']",
    );
    m.run("matrix", &["--threads", "2"], 0);
    let all = records(&m.out("matrix"));
    assert_eq!(all.len(), 2 * 2 * 2 * 4);
    let mut single = BTreeMap::new();
    for method in ["hip:k=64,b_q=16", "bigbird:window=40,blocks=2,block=16", "a_shape:window=100"] {
        for protocol in ["prefill", "decode"] {
            let (out, alone) = (format!("{protocol} {}", &method[..3]), ["--sparse-from", protocol, "-m", method]);
            m.run(&out, &[&alone[..], &["--threads", "1"]].concat(), 0);
            single.extend(records(&m.out(&out)));
        }
    }
    assert_eq!(all, single);
    for r in store::load_records(&m.out("matrix")).unwrap().records {
        let reads_by_itself = r.protocol == "prefill" && r.method != "full";
        assert_eq!(r.prefix_tokens, r.prompt_tokens);
        if reads_by_itself {
            assert!(r.reused_tokens == 0 && r.density < 0.6, "{}: {}", r.method, r.density);
        }
    }
}

#[test]
fn what_fails_is_listed_with_its_reason_and_the_rest_is_run() {
    let m = matrix(
        "tasks = ['ruler/niah_single_1', 'ruler/vt', 'ruler/qa_1']\nlengths = [512, 40000]\nsamples = 1\n\
                    model = ['builtin', './nowhere']\nmethods = ['topk:k=16', 'topk:k=16,dense_layers=44']",
    );
    let ran = m.run("out", &["--json"], 1);
    let said = stderr(&ran);
    for (what, reason) in [
        ("ruler/qa_1", "needs squad/dev-v2.0.json"),
        ("./nowhere", "does not exist"),
        ("builtin, ruler/niah_single_1 at 40000", "beyond the context of builtin (32768)"),
        ("builtin, ruler/vt at 512", "cannot fit 512 tokens"),
        ("builtin, ruler/vt at 40000", "beyond the context"),
        ("builtin, topk:k=16,dense_layers=44", "dense layer 44 does not exist"),
    ] {
        let listed = said.lines().any(|l| l.starts_with(&format!("failed: {what}: ")) && l.contains(reason));
        assert!(listed, "{what}: {reason}\n{said}");
    }
    assert!(said.contains("error: 6 parts of the matrix could not be run; all others are done"), "{said}");
    let planned = stderr(&m.run("out", &["--dry-run"], 1));
    assert!(planned.contains("error: 6 parts of the matrix could not be run; all others would run"), "{planned}");
    assert_eq!(rows(&ran).len(), 2);
    let run: Vec<_> = records(&m.out("out")).into_values().map(|r| r["method"].clone()).collect();
    assert_eq!(run.len(), 2, "{run:?}");
    // A resumption reports the same failures, and keeps the existing records.
    m.run("out", &["--resume"], 1);
    assert_eq!(records(&m.out("out")).len(), 2);
    // Rows that do not fit are found before the run. The other rows of the file are run, and so are other tasks.
    let rows_file = m.out("long.jsonl");
    let long = "the river was high and the road was long ".repeat(5000);
    let row = |input: &str| format!("{{\"input\": \"{input}\", \"outputs\": [\"x\"], \"answer_prefix\": \"\"}}\n");
    fs::write(&rows_file, row(&long) + &row("Is the road long?")).unwrap();
    let task = format!("jsonl:{}:metric=string_match_all,max_new_tokens=8", rows_file.display());
    let ran =
        m.run("file", &["--model", "builtin", "-t", &task, "-t", "ruler/niah_single_1", "-l", "512", "-n", "2"], 1);
    let said = stderr(&ran);
    let failed = said.lines().find(|line| line.starts_with("failed: builtin, jsonl:long: ")).unwrap_or_default();
    assert!(failed.contains("long.jsonl:1: the prompt with its answer"), "{said}");
    assert_eq!(records(&m.out("file")).len(), 2 * (1 + 2), "two methods on the row that fits and on two examples");
}

#[test]
fn where_nothing_can_be_run_the_first_reason_is_the_error() {
    let m = matrix("tasks = ['ruler/vt']\nlengths = [40000, 64]\nsamples = 1");
    let ran = m.run("out", &[], 2);
    assert!(stderr(&ran).contains("error: ") && stdout(&ran).is_empty() && !m.out("out").exists());
    for wrong in [&["-t", "ruler/vtt"], &["-m", "topkk"], &["--sparse-from", "middle"]] {
        m.run("out", wrong, 2);
    }
    let ran = finished(spattn(&["sweep", "kl-gird"]), 2);
    assert!(stderr(&ran).contains("kl-grid"), "{}", stderr(&ran));
    let ran = finished(spattn(&["eval", "--config", "protocols"]), 2);
    assert!(stderr(&ran).contains("several values") && stderr(&ran).contains("spattn sweep"), "{}", stderr(&ran));
}

#[test]
fn a_matrix_may_grow_and_other_runs_are_not_mixed_in() {
    let m = matrix(MATRIX);
    m.run("out", &["--seed", "1", "--sparse-from", "question", "-n", "1"], 0);
    let first = records(&m.out("out"));
    m.run("out", &["--resume", "-n", "1"], 0);
    let grown = records(&m.out("out"));
    assert_eq!((first.len(), grown.len()), (6, 24));
    assert!(first.iter().all(|(key, record)| grown[key] == *record));
    for (more, what) in [
        (&["--seed", "3"] as &[&str], "it has records of `--seed` 1, which this run leaves out"),
        (&["--sparse-from", "decode"], "it has records of `--sparse-from` question, which this run leaves out"),
        (&["--dtype", "f16"], "`--dtype` was \"bf16\", is \"f16\""),
    ] {
        let ran = m.run("out", &[&["--resume", "-n", "1"], more].concat(), 2);
        assert!(
            stderr(&ran).contains("was run with other settings") && stderr(&ran).contains(what),
            "{}",
            stderr(&ran)
        );
    }
    // Records of another results version.
    let path = m.out("out").join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(&path, manifest.replace(&format!("\"results_version\": {RESULTS_VERSION}"), "\"results_version\": 0"))
        .unwrap();
    let ran = m.run("out", &["--resume", "-n", "1"], 2);
    assert!(
        stderr(&ran).contains(&format!("the version of the program's results was 0, is {RESULTS_VERSION}")),
        "{}",
        stderr(&ran)
    );
    fs::write(&path, manifest).unwrap();
    assert_eq!(records(&m.out("out")), grown);
    m.run("out", &["--resume", "-n", "1"], 0);
}

#[test]
fn a_dry_run_says_what_there_is_to_do_and_writes_nothing() {
    let m = matrix(MATRIX);
    let plan = |more: &[&str]| -> Value {
        serde_json::from_slice(&m.run("out", &[&["--dry-run", "--json"], more].concat(), 0).stdout).unwrap()
    };
    let all = plan(&[]);
    assert_eq!((all[0]["records"].as_u64(), all[0]["methods"].as_array().unwrap().len()), (Some(48), 3));
    assert!(all[0]["seconds"].as_f64().unwrap() > 0.0 && all[0]["bytes"].as_u64().unwrap() > 10_000_000);
    assert!(!m.out("out").exists());
    let text = stdout(&m.run("out", &["--dry-run"], 0));
    assert!(text.contains("topk:k=16") && text.contains("48 records to make, in about "), "{text}");
    assert!(text.contains(" examples a seed\n"), "{text}");
    m.run("out", &["--seed", "1"], 0);
    assert_eq!(plan(&["--resume"])[0]["records"], 24);
    m.run("out", &["--resume"], 0);
    assert_eq!(plan(&["--resume"])[0]["records"], 0);
}

#[test]
fn the_end_says_where_the_time_went() {
    let m = matrix(MATRIX);
    let ran = stdout(&m.run("out", &["-n", "1", "--seed", "1"], 0));
    let line = ran.lines().find(|l| l.contains("12 records. ")).unwrap_or_else(|| panic!("{ran}"));
    for part in [" s: prefill ", ", indexes ", ", steps ", ", the rest "] {
        assert!(line.contains(part), "{line}");
    }
    assert!(ran.contains("prefill took ") && ran.contains("begin like the one before"), "{ran}");
}

#[test]
fn the_doctor_says_what_is_there_and_how_to_get_what_is_not() {
    let home = TempDir::new().unwrap();
    let snapshot = home.path().join("hub/models--org--torn/snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(home.path().join("hub/models--org--torn/refs")).unwrap();
    fs::write(home.path().join("hub/models--org--torn/refs/main"), "0123").unwrap();
    fs::create_dir_all(home.path().join("hub/models--org--torn/blobs")).unwrap();
    fs::write(home.path().join("hub/models--org--torn/blobs/ab"), [0; 1000]).unwrap();
    let doctor = |more: &[&str]| {
        let mut command = spattn(&["doctor"]);
        command.args(more).env("HF_HOME", home.path()).env("SPATTN_DATA", home.path().join("data"));
        command.env("SPATTN_ISA", "portable");
        finished(command, 0)
    };
    let json: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
    assert_eq!(json["machine"]["simd"], "portable");
    assert!(json["machine"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(json["program"]["devices"], serde_json::json!(["cpu"]));
    assert_eq!(json["gpu"]["usable"], false);
    let torn = serde_json::json!({ "id": "org/torn", "bytes": 1000, "complete": false });
    assert_eq!(json["models"]["cached"], serde_json::json!([torn]));
    assert_eq!(json["data"]["sets"][0]["state"], "absent");
    let text = stdout(&doctor(&[]));
    for part in
        ["computes on the CPU only", "builtin: 10 layers", "spattn data fetch longbench", "hf download org/torn"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let states: BTreeSet<usize> = text.lines().filter_map(|line| line.find(" absent ")).collect();
    assert_eq!(states.len(), 1, "the states of all data sets stand in one column\n{text}");
}

/// `spattn reproduce` in its own folder, for an item with 30 records.
fn reproducing(out: &Path) -> Command {
    let out = out.to_str().unwrap();
    let mut command = spattn(&["reproduce", "hip/figure-20", "--builtin", "-n", "2", "--quiet", "--out", out]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Some columns of a folder's `log.csv`.
fn logged<const N: usize>(out: &Path, columns: [&str; N]) -> Vec<[String; N]> {
    let mut log = csv::Reader::from_path(out.join("log.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = log.deserialize().map(|row| row.unwrap()).collect();
    rows.iter().map(|row| columns.map(|column| row[column].clone())).collect()
}

/// The verdicts on the item, without times.
fn judged(out: &Path) -> Value {
    let mut result: Value =
        serde_json::from_str(&fs::read_to_string(out.join("hip/figure-20/result.json")).unwrap()).unwrap();
    // The command names the folder, which differs.
    result["command"].take();
    result
}

#[test]
fn an_item_of_a_paper_that_a_scheduler_stops_is_gone_on_with_and_judged_as_if_it_had_not_been() {
    let temp = TempDir::new().unwrap();
    let (whole, stopped) = (temp.path().join("whole"), temp.path().join("stopped"));
    finished(reproducing(&whole), 0);
    let page = fs::read_to_string(whole.join("hip/figure-20/README.md")).unwrap();
    assert!(page.contains("# HiP attention, Figure 20: ") && page.contains("measured (built-in 11M"), "{page}");

    let run = stopped.join("runs/builtin/hip/figure-20");
    let mut child = reproducing(&stopped).spawn().unwrap();
    while !run.join("samples.jsonl").exists() || lines(&run) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ends before it is told to stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(75));
    let kept = lines(&run);
    assert!(kept < 10 && !stopped.join("README.md").exists(), "{kept} records, and nothing is judged");

    finished(reproducing(&stopped), 0);
    assert_eq!(lines(&run), 10);
    assert_eq!(judged(&stopped), judged(&whole));

    // The log has a row for each run, with the digest of the cells that it measured.
    let measured = cells::digest(&stopped.join("hip/figure-20/table.csv"), "builtin", "builtin");
    let columns = ["item", "run", "records", "ended", "cells_sha256"];
    let row = |records: usize, ended: &str, digest: String| {
        ["hip/figure-20".to_owned(), "builtin".to_owned(), records.to_string(), ended.to_owned(), digest]
    };
    let rows = [row(kept, "stopped", String::new()), row(10, "whole", measured)];
    assert_eq!(logged(&stopped, columns), rows);
    let [command, commit] = logged(&whole, ["command", "commit"]).remove(0);
    assert!(
        command.starts_with("spattn reproduce hip/figure-20 --builtin --samples 2 --out ") && !commit.is_empty(),
        "{command}"
    );
    let mut drawing = reproducing(&whole);
    drawing.arg("--draw-only");
    finished(drawing, 0);
    assert_eq!(logged(&whole, ["ended"]).len(), 1, "drawing is no run");
}
