//! The KV cache on disk (`--kv-tier disk`; for host memory below a GPU see the tests of GPUs): the records of memory, bytes by tier beside them, and an error where the disk fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::program::{Ran, spattn};

const DISK: [&str; 4] = ["--kv-tier", "disk", "--kv-memory", "1M"];
/// Fields of a record that hold times, and the key, which names the tier.
const NOT_COMPARED: [&str; 11] = [
    "key",
    "prefill_s",
    "prefill_reused_s",
    "reused_tokens",
    "index_s",
    "index_reused_s",
    "decode_s",
    "select_s",
    "attend_s",
    "weights_s",
    "conditions",
];

/// The records of a run without times, and what each fetched.
fn records(folder: &Path) -> (Vec<Value>, Vec<Option<[f64; 2]>>) {
    let text = fs::read_to_string(folder.join("samples.jsonl")).unwrap();
    let read = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        let fields = record.as_object_mut().unwrap();
        NOT_COMPARED.iter().for_each(|field| drop(fields.remove(*field)));
        let fetched = fields.remove("fetched_per_token");
        (record, fetched.map(|bytes| ["memory", "disk"].map(|tier| bytes[tier].as_f64().unwrap())))
    };
    text.lines().map(read).unzip()
}

/// The share of pages that were in memory, for each row of a run's summary.
fn hits(folder: &Path) -> Vec<f64> {
    let mut summary = csv::Reader::from_path(folder.join("summary.csv")).unwrap();
    let column = summary.headers().unwrap().iter().position(|name| name == "page_hits").unwrap();
    summary.records().filter_map(|row| row.unwrap()[column].parse().ok()).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn records_are_those_of_memory_under_every_protocol_and_on_any_threads() {
    let dir = TempDir::new().unwrap();
    for (protocol, methods) in [
        ("question", &["-m", "topk", "-m", "quest", "-m", "snapkv", "-m", "magicpig", "--fidelity"][..]),
        ("decode", &["-m", "topk:density=0.1", "-m", "quest", "-m", "loki", "--latency", "solo"]),
        ("last:3", &["-m", "hip", "-m", "streaming_llm"]),
        ("prefill", &["-m", "hip", "-m", "minference", "-m", "full>quest"]),
    ] {
        let run = |name: &str, more: &[&str]| {
            let out = dir.path().join(format!("{}-{name}", protocol.replace(':', "-")));
            let args = ["eval", "-q", "-t", "ruler/niah_single_2", "-l", "1K", "-n", "2", "--sparse-from", protocol];
            let ran = spattn(&args).args(methods).args(more).args(&["--out", out.to_str().unwrap()]).ok();
            (records(&out), names(&out), ran, hits(&out))
        };
        let without_solo = |records: Vec<Value>| -> Vec<Value> {
            let without = |mut record: Value| {
                record.as_object_mut().unwrap().remove("solo");
                record
            };
            records.into_iter().map(without).collect()
        };
        let ((expected, nothing), files, ..) = run("memory", &[]);
        // Two examples of `full` and of each method.
        let settings = 1 + methods.iter().filter(|arg| **arg == "-m").count();
        assert!(expected.len() == 2 * settings && nothing.iter().all(Option::is_none), "{protocol}");
        let ((alone, fetched), of_disk, ran, hits) = run("disk", &[&DISK[..], &["--threads", "1"]].concat());
        let expected = without_solo(expected);
        assert_eq!(without_solo(alone), expected, "{protocol}");
        assert_eq!(of_disk, files, "{protocol}: nothing of the cache is left behind");
        // In a wide table the heading takes two lines.
        ran.prints("hits");
        assert!(hits.len() == settings && hits.iter().all(|hits| (0.0..1.0).contains(hits)), "{protocol}: {hits:?}");
        assert!(fetched.iter().all(|bytes| bytes.is_some_and(|[_, disk]| disk > 0.0)), "{protocol}: {fetched:?}");
        let ((together, again), ..) = run("threads", &[&DISK[..], &["--threads", "3"]].concat());
        assert_eq!((without_solo(together), again), (expected, fetched.clone()), "{protocol}");
        // With room for all pages, each is read once.
        let ((_, with_room), ..) = run("room", &["--kv-tier", "disk", "--kv-memory", "64M"]);
        for (tight, ample) in fetched.iter().zip(&with_room) {
            let ([memory, disk], [more, less]) = (tight.unwrap(), ample.unwrap());
            assert!((memory + disk - more - less).abs() < 1e-6 && less <= disk, "{protocol}: {tight:?}, {ample:?}");
        }
    }
}

#[test]
fn given_text_is_scored_as_in_memory() {
    let dir = TempDir::new().unwrap();
    let text: String = (0..400).map(|i| format!("The door of room {i} opens with key {}. ", 7 * i % 23)).collect();
    fs::write(dir.path().join("text.txt"), text).unwrap();
    for protocol in ["decode", "prefill"] {
        let run = |name: &str, more: &[&str]| {
            let args = [
                "eval",
                "-q",
                "-t",
                "ppl/file:text.txt",
                "-l",
                "1K",
                "-n",
                "2",
                "-m",
                "hip",
                "--sparse-from",
                protocol,
            ];
            let out = format!("{protocol}-{name}");
            spattn(&args).args(more).args(&["--out", &out]).within(dir.path()).ok();
            records(&dir.path().join(out)).0
        };
        let expected = run("memory", &[]);
        assert!(!expected.is_empty());
        assert_eq!(run("disk", &DISK), expected, "{protocol}");
    }
}

#[test]
fn a_plan_states_memory_by_tier() {
    let plan = |more: &[&str]| {
        let args = ["eval", "-t", "ruler/niah_single_2", "-l", "16K", "-m", "topk", "-n", "2", "--dry-run", "--json"];
        spattn(&args).args(more).ok().json()[0].clone()
    };
    let (memory, disk) = (plan(&[]), plan(&DISK));
    assert_eq!(memory["kv_on_disk"], Value::Null);
    // Ten layers of two KV heads with 64 channels in bf16, and one of them in memory.
    let whole = 16_384 * 10 * 2 * 2 * 64 * 2;
    assert_eq!(disk["kv_on_disk"], json!({ "bytes": whole, "bytes_of_pages_in_memory": 1 << 20 }));
    let saved = memory["bytes"].as_i64().unwrap() - disk["bytes"].as_i64().unwrap();
    assert!((whole * 8 / 10..whole * 9 / 10).contains(&saved), "{saved} of {whole}");
}

/// On a CPU the host attends with either setting.
#[test]
fn what_the_host_attends_for_a_gpu_is_what_a_cpu_attends() {
    let dir = TempDir::new().unwrap();
    let run = |attend_on: &str| {
        let spec = format!("magicpig:K=6,L=20,attend_on={attend_on}");
        let args = ["eval", "-q", "-t", "ruler/niah_single_2", "-l", "1K", "-n", "2", "-m", &spec, "--out", attend_on];
        spattn(&args).within(dir.path()).ok();
        let mut found = records(&dir.path().join(attend_on)).0;
        // Only the requested settings differ.
        let fields = found.iter_mut().map(|record| record.as_object_mut().unwrap());
        fields.for_each(|record| ["params", "settings"].iter().for_each(|field| drop(record.remove(*field))));
        found
    };
    let (device, host) = (run("device"), run("host"));
    assert_eq!(device.len(), 4, "two records of full, and two of the method");
    assert_eq!(device, host);
}

/// What a tier is for is said before anything is done.
#[test]
fn a_tier_of_another_device_is_refused_with_the_one_to_take() {
    for (more, what, hint) in [
        (&["--kv-tier", "host"][..], "applies to a GPU, and this run uses a CPU", "--kv-tier disk"),
        (&["--kv-tier", "host", "--kv-memory", "1M"], "applies to a GPU, and this run uses a CPU", "--kv-tier disk"),
        (
            &["--kv-memory", "1M"],
            "`kv_memory` is given, and the KV cache is kept in memory",
            "--kv-tier disk (host on a GPU)",
        ),
        (&["--kv-tier", "hots"], "unknown kv-tier `hots`", "did you mean `host`?"),
    ] {
        let run = spattn(&["eval", "-t", "ruler/niah_single_2", "-l", "1K", "-m", "topk", "-n", "1"]).args(more);
        run.fails(2, what, hint);
    }
    spattn(&["bench", "attention", "--kv-tier", "host"]).fails(2, "on a GPU", "--device cuda");
}

/// The program with a limit on the size of files, in blocks of 512 or 1,024 bytes.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_ends_the_run_with_an_error_and_keeps_records() {
    let dir = TempDir::new().unwrap();
    let run = |blocks: &str, more: &[&str]| {
        let line = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
        let args = ["eval", "-q", "-t", "ruler/niah_single_2", "-l", "512,4K", "-n", "2", "-m", "topk", "--out", "run"];
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", &line, env!("CARGO_BIN_EXE_spattn")])
            .args(args)
            .args(DISK)
            .args(more)
            .current_dir(dir.path());
        let output = command.output().unwrap();
        Ran::new(&command, output)
    };
    // A file of 512 tokens has 5 MB, one of 4,096 tokens 21 MB.
    let ran = run("12000", &[]);
    ran.check(ran.status == Some(1), "it fails");
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    ran.check(errors.len() == 1 && errors[0].contains("could not be written to disk: page"), "one line names the tier");
    ran.check(errors[0].contains("the KV cache of layer ") && errors[0].contains("File too large"), "and the cause");
    ran.check(ran.stderr.contains("  hint: make room where --out is"), "a hint says what to do");
    ran.check(ran.stderr.contains("4 records are kept"), "what was done is kept");
    assert_eq!(records(&dir.path().join("run")).0.len(), 4);
    let left = names(&dir.path().join("run"));
    assert!(left.iter().all(|name| !name.contains("tmp") && !name.contains("kv")), "{left:?}");
    let again = run("unlimited", &["--resume"]).ok();
    again.prints("4K");
    assert_eq!(records(&dir.path().join("run")).0.len(), 8);
}

/// The file has no name, but a process that may look into another can cut it off.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_cut_off_meanwhile_ends_the_run_with_an_error() {
    use std::time::{Duration, Instant};
    let dir = TempDir::new().unwrap();
    let args = ["eval", "-q", "-t", "ruler/niah_single_2", "-l", "8K", "-n", "40", "-m", "topk", "--out", "run"];
    let mut child = spattn(&args).args(&DISK).within(dir.path()).spawn();
    let (start, folder) = (Instant::now(), fs::canonicalize(dir.path()).unwrap());
    let process = child.id();
    let is_cut = || {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let mut ours = files.filter(|fd| {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            target.starts_with(folder.join("run")) && target.to_string_lossy().ends_with(" (deleted)")
        });
        // Some chunks are written.
        let open = ours.find_map(|fd| fs::OpenOptions::new().write(true).open(fd.path()).ok());
        open.filter(|file| file.metadata().unwrap().len() > 20 << 20).is_some_and(|file| file.set_len(100).is_ok())
    };
    while !is_cut() {
        assert!(start.elapsed() < Duration::from_secs(300) && child.try_wait().unwrap().is_none(), "no file was found");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains("could not be read from disk: page"), "{stderr}");
    assert!(stderr.contains("  hint: another program or the disk changed"), "{stderr}");
}
