//! The program as users run it: what it prints, writes and returns, what it says to mistakes, and that
//! nothing is lost when it is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Columns of `summary.csv`: a contract.
const COLUMNS: &str = "model,task,length,method,params,protocol,n,score,ci_low,ci_high,delta_full,delta_low,delta_high,\
                       density,cost1,cost2,cost_total,aux_bits,kv_bytes_per_token,output_error,recall,prefill_s,\
                       decode_ms_per_token";

/// A finished command, with all there is to say about it.
struct Ran {
    command: String,
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn new(command: &Command, output: Output) -> Self {
        Self {
            command: format!("{command:?}"),
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn assert(&self, holds: bool, what: &str) -> &Self {
        assert!(
            holds,
            "{what}\ncommand: {}\nstatus: {:?}\nstdout:\n{}\nstderr:\n{}",
            self.command, self.status, self.stdout, self.stderr
        );
        self
    }

    #[track_caller]
    fn ok(&self) -> &Self {
        self.assert(self.status == Some(0), "should succeed")
    }

    /// Fails with `status`, one `error:` line that contains `parts`, and no panic.
    #[track_caller]
    fn fails(&self, status: i32, parts: &[&str]) -> &Self {
        self.assert(self.status == Some(status), &format!("should exit with {status}"));
        let errors: Vec<&str> = self.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
        self.assert(errors.len() == 1, "should print one error line");
        self.assert(!self.stderr.contains("panicked"), "should not panic");
        for part in parts {
            self.assert(self.stderr.contains(part), &format!("should mention `{part}`"));
        }
        self
    }
}

fn spattn(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(arguments).env_remove("HF_TOKEN").env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Ran {
    let mut command = spattn(arguments);
    let output = command.output().expect("the program starts");
    Ran::new(&command, output)
}

/// `spattn eval` on a small task with small settings, into `out`.
fn eval_command(out: &Path, more: &[&str]) -> Command {
    let out = out.to_str().expect("a readable path");
    let mut arguments = vec!["eval", "--out", out];
    let given = |flag: &str| more.contains(&flag);
    for (flag, value) in
        [("--task", "ruler/niah_single_1"), ("--length", "512"), ("--samples", "2"), ("-m", "topk:k=16")]
    {
        if !given(flag) {
            arguments.extend([flag, value]);
        }
    }
    arguments.extend(more);
    spattn(&arguments)
}

fn eval(out: &Path, more: &[&str]) -> Ran {
    let mut command = eval_command(out, more);
    let output = command.output().expect("the program starts");
    Ran::new(&command, output)
}

fn records(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("samples.jsonl")).expect("records were written");
    text.lines().map(|l| serde_json::from_str(l).expect("a record is a line of JSON")).collect()
}

/// Records by key, without what differs between runs: times.
fn comparable(out: &Path) -> BTreeMap<String, Value> {
    records(out)
        .into_iter()
        .map(|mut r| {
            let fields = r.as_object_mut().expect("an object");
            for time in ["prefill_s", "index_s", "decode_s"] {
                assert!(fields.remove(time).is_some(), "{time}");
            }
            (r["key"].as_str().expect("a key").to_owned(), r)
        })
        .collect()
}

/// The summary without its two time columns.
fn summary(out: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(out.join("summary.csv")).expect("a summary was written");
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    text.lines().map(cells).map(|c| c[..c.len() - 2].to_vec()).collect()
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A copy of the built-in model's folder, to be damaged.
fn model_copy() -> TempDir {
    let dir = temp();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for name in
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        fs::copy(from.join(name), dir.path().join(name)).expect("the built-in model is in the repository");
    }
    dir
}

fn path(dir: &TempDir) -> &str {
    dir.path().to_str().expect("a readable path")
}

// --- what a run writes ---

#[test]
fn a_run_writes_everything_the_contract_names() {
    let dir = temp();
    let out = dir.path().join("run");
    let ran = eval(&out, &["-m", "quest:page=8,ratio=0.25"]);
    ran.ok();
    ran.assert(ran.stderr.is_empty(), "says nothing on standard error when that is no terminal");
    ran.assert(ran.stdout.contains("ruler/niah_single_1, 512 tokens"), "prints the table");
    ran.assert(ran.stdout.contains("samples.jsonl"), "says where the files are");

    let csv = fs::read_to_string(out.join("summary.csv")).unwrap();
    assert_eq!(csv.lines().next().unwrap(), COLUMNS);
    assert_eq!(csv.lines().count(), 3, "full, quest");
    for record in records(&out) {
        for field in [
            "task",
            "length",
            "sample",
            "seed",
            "method",
            "params",
            "prediction",
            "references",
            "score",
            "prompt_tokens",
            "new_tokens",
            "density",
            "cost1",
            "cost2",
            "decode_s",
        ] {
            assert!(record.get(field).is_some(), "{field} is missing in {record}");
        }
        assert_eq!(record["bos_tokens"], 1);
    }
    let manifest: Value = serde_json::from_str(&fs::read_to_string(out.join("manifest.json")).unwrap()).unwrap();
    for pointer in [
        "/identity/weights_sha256",
        "/identity/tokenizer_sha256",
        "/identity/protocol",
        "/identity/seed",
        "/config/tasks",
        "/program/version",
        "/machine/threads",
        "/memory/largest_example_bytes",
        "/model/layers",
    ] {
        assert!(manifest.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer} is missing in {manifest}");
    }
    let svg = fs::read_to_string(out.join("plots/score_vs_density.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(fs::read_to_string(out.join("summary.md")).unwrap().contains("ruler/niah_single_1"));
}

#[test]
fn json_is_the_summary_and_nothing_else() {
    let dir = temp();
    let ran = eval(&dir.path().join("run"), &["--json", "--fidelity"]);
    let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_str(&ran.ok().stdout).expect("JSON only");
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].keys().cloned().collect::<Vec<_>>().join(","), COLUMNS);
    let number = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    assert!(number(0, "output_error") < 1e-5 && number(0, "recall") == 1.0, "full is exact");
    assert!(number(1, "output_error") > 1e-3 && number(1, "recall") < 1.0, "topk is not");
    assert!(number(1, "density") < number(0, "density"));
}

#[test]
fn the_default_reference_can_be_left_out() {
    let dir = temp();
    let out = dir.path().join("run");
    eval(&out, &["--no-full"]).ok();
    assert!(records(&out).iter().all(|r| r["method"] == "topk"));
    assert!(summary(&out)[1][10].is_empty(), "no difference to a reference that was not run");
}

#[test]
fn protocols_decide_how_long_the_shared_prefix_is() {
    let dir = temp();
    let prefix_of = |protocol: &str| {
        let out = dir.path().join(protocol.replace(':', "_"));
        eval(&out, &["--sparse-from", protocol, "--samples", "1"]).ok();
        let record = records(&out).remove(0);
        let field = |key: &str| record[key].as_u64().unwrap();
        (field("prompt_tokens"), field("prefix_tokens"))
    };
    let (prompt, prefix) = prefix_of("decode");
    assert_eq!(prefix, prompt);
    assert_eq!(prefix_of("last:8").1, prompt - 8);
    let question = prefix_of("question").1;
    assert!(question < prompt - 8 && question > prompt / 2, "{question} of {prompt}");
}

// --- prepared files ---

#[test]
fn prepared_ruler_rows_run_as_they_are() {
    let dir = temp();
    let file = dir.path().join("rows.jsonl");
    let row = serde_json::json!({
        "index": 0,
        "input": "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you \
                  about the number afterwards.\nThe grass is green. The sky is blue.\nOne of the special magic numbers \
                  for quiet-river is: 4815162.\nThe sun is yellow. Here we go.\nWhat is the special magic number for \
                  quiet-river mentioned in the provided text?",
        "answer_prefix": " The special magic number for quiet-river mentioned in the provided text is",
        "outputs": ["4815162"],
    });
    fs::write(&file, format!("{row}\n")).unwrap();
    let out = dir.path().join("run");
    eval(&out, &["--task", &format!("jsonl:{}", file.display())]).ok();
    let records = records(&out);
    assert_eq!((records.len(), records[0]["score"].as_f64()), (2, Some(1.0)), "{records:?}");
    assert_eq!(records[0]["task"], "jsonl:rows");

    fs::write(&file, format!("{row}\n{{\"input\": 3}}\n")).unwrap();
    eval(&dir.path().join("bad"), &["--task", &format!("jsonl:{}", file.display())]).fails(2, &["rows.jsonl:2"]);
    fs::write(&file, "").unwrap();
    eval(&dir.path().join("empty"), &["--task", &format!("jsonl:{}", file.display())]).fails(2, &["rows.jsonl"]);
}

#[test]
fn published_ruler_files_are_answered_by_the_built_in_model() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/ruler_ready/4096/niah_multikey_3.jsonl");
    if !file.is_file() {
        eprintln!("skipped: {} is not there", file.display());
        return;
    }
    let dir = temp();
    let out = dir.path().join("run");
    eval(&out, &["--task", &format!("jsonl:{}", file.display())]).ok();
    for record in records(&out).iter().filter(|r| r["method"] == "full") {
        assert_eq!(record["score"], 1.0, "{record}");
    }
}

// --- stopping and going on ---

#[test]
fn a_killed_run_goes_on_and_ends_with_the_same_summary() {
    let dir = temp();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let settings = ["--samples", "12", "--length", "1024", "-m", "random:ratio=0.1"];
    eval(&whole, &settings).ok();
    let mut child = eval_command(&killed, &settings).stdout(Stdio::null()).spawn().unwrap();
    wait_for_lines(&killed.join("samples.jsonl"), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(records(&killed).len() < records(&whole).len(), "killed in the middle");
    // A torn last line, as a crash of the machine might leave it.
    let samples = killed.join("samples.jsonl");
    let mut torn = fs::read_to_string(&samples).unwrap();
    torn.push_str("{\"key\":\"half");
    fs::write(&samples, torn).unwrap();

    eval(&killed, &settings).fails(2, &["--resume", "--overwrite"]);
    let ran = eval(&killed, &[&settings[..], &["--resume"]].concat());
    ran.ok().assert(ran.stderr.contains("note: "), "says that it repaired the last line");
    assert_eq!(comparable(&killed), comparable(&whole));
    assert_eq!(summary(&killed), summary(&whole));
}

fn wait_for_lines(file: &Path, lines: usize) {
    let start = Instant::now();
    while fs::read_to_string(file).map_or(0, |t| t.lines().count()) < lines {
        assert!(start.elapsed() < Duration::from_secs(60), "no records after a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_keeps_its_records_and_says_how_to_go_on() {
    let dir = temp();
    let out = dir.path().join("run");
    let settings = ["--samples", "40", "--length", "1024"];
    let child = eval_command(&out, &settings).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_lines(&out.join("samples.jsonl"), 2);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ran = Ran::new(&eval_command(&out, &settings), child.wait_with_output().unwrap());
    ran.assert(ran.status == Some(130), "exits as interrupted");
    ran.assert(ran.stderr.contains("records are kept") && ran.stderr.contains("--resume"), "says how to go on");
    let kept = records(&out).len();
    assert!((2..80).contains(&kept) && kept.is_multiple_of(2), "whole examples: {kept}");
    eval(&out, &[&settings[..], &["--resume"]].concat()).ok();
    assert_eq!(records(&out).len(), 80);
}

#[test]
fn a_resumed_run_must_be_the_same_run_but_may_add_methods() {
    let dir = temp();
    let out = dir.path().join("run");
    eval(&out, &[]).ok();
    let before = comparable(&out);
    eval(&out, &["--resume", "--seed", "7"]).fails(2, &["seed"]);
    eval(&out, &["--resume", "--dtype", "f32"]).fails(2, &["dtype"]);
    eval(&out, &["--resume", "--sparse-from", "decode"]).fails(2, &["protocol"]);
    assert_eq!(comparable(&out), before, "a refused run changes nothing");
    eval(&out, &["--resume", "-m", "quest"]).ok();
    let after = comparable(&out);
    assert_eq!(after.len(), before.len() + 2);
    assert!(before.iter().all(|(key, record)| after.get(key) == Some(record)));
    eval(&out, &["--overwrite", "--seed", "7"]).ok();
    assert_eq!(records(&out).len(), 4);
}

#[test]
fn threads_and_shards_do_not_change_records() {
    let dir = temp();
    let methods = ["-m", "random:ratio=0.1", "-m", "oracle_sampling:budget=16", "--samples", "4"];
    let run_with = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        eval(&out, &[&methods[..], more].concat()).ok();
        comparable(&out)
    };
    let whole = run_with("one", &["--threads", "1"]);
    assert_eq!(run_with("two", &["--threads", "2"]), whole);
    let mut shards = run_with("a", &["--shard", "1/2"]);
    assert!(shards.len() < whole.len());
    shards.extend(run_with("b", &["--shard", "2/2"]));
    assert_eq!(shards, whole);
}

#[test]
fn a_full_disk_loses_nothing_that_was_written() {
    let dir = temp();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&disk).output();
    if !mount.is_ok_and(|m| m.status.success()) {
        eprintln!("skipped: a small file system cannot be mounted here");
        return;
    }
    let out = disk.join("run");
    let settings = ["--samples", "60"];
    let ran = eval(&out, &settings);
    let kept = records(&out).len();
    let grown = Command::new("mount").args(["-o", "remount,size=16m"]).arg(&disk).status();
    let resumed = eval(&out, &[&settings[..], &["--resume"]].concat());
    let complete = records(&out).len();
    let unmounted = Command::new("umount").arg(&disk).status();
    ran.fails(1, &["samples.jsonl", "--resume"]);
    assert!(kept > 0 && kept < 120, "{kept} whole records");
    assert!(grown.is_ok_and(|s| s.success()) && unmounted.is_ok_and(|s| s.success()));
    resumed.ok();
    assert_eq!(complete, 120);
}

// --- mistakes ---

#[test]
fn mistakes_in_arguments_are_one_line_with_a_hint() {
    let dir = temp();
    let out = dir.path().join("run");
    let cases: &[(&[&str], &[&str])] = &[
        (&["--task", "ruler/niah_singel_1"], &["ruler/niah_singel_1", "did you mean `ruler/niah_single_1`"]),
        (&["-m", "topkk"], &["unknown method `topkk`", "did you mean `topk`"]),
        (&["-m", "quest:pagee=3"], &["`pagee`", "did you mean `page`"]),
        (&["-m", "quest:preset=papr"], &["preset `papr`", "paper"]),
        (&["-m", "topk:k=0"], &["k=0"]),
        (&["-m", "topk:ratio=1.5"], &["ratio=1.5", "above 0 and at most 1"]),
        (&["-m", "topk:k=3,ratio=0.5"], &["not both"]),
        (&["-m", "topk:k={1,2"], &["braces"]),
        (&["-m", "topk:k=9..3"], &["9..3"]),
        (&["--model", "builtinn"], &["builtinn", "did you mean `builtin`"]),
        (&["--model", "./no/such/folder"], &["./no/such/folder", "does not exist"]),
        (&["--model", "some-org/some-model"], &["some-org/some-model", "config.json", "hint"]),
        (&["--device", "cuda"], &["CPU"]),
        (&["--device", "tpu"], &["tpu"]),
        (&["--dtype", "f64"], &["f64"]),
        (&["--sparse-from", "answer"], &["answer", "question"]),
        (&["--sparse-from", "prefill"], &["topk", "prefill pattern"]),
        (&["--length", "40000"], &["40000", "32768", "--allow-extrapolation"]),
        (&["--length", "64"], &["ruler/niah_single_1", "64"]),
        (&["--length", "0"], &["length"]),
        (&["--samples", "0"], &["samples"]),
        (&["--threads", "0"], &["threads"]),
        (&["--shard", "3/2"], &["3/2"]),
        (&["--dense-layers", "0-x"], &["0-x"]),
        (&["--dense-layers", "99"], &["99", "layers 0 to"]),
        (&["--positions", "random"], &["random"]),
        (&["--config", "/no/such/file.toml"], &["/no/such/file.toml", "quick"]),
        (&["--data", "/no/such/data"], &["/no/such/data"]),
        (&["--task", "ruler/qa_1"], &["ruler/qa_1", "--data", "ruler/qa_synth"]),
        (&["--task", "jsonl:/no/such.jsonl"], &["/no/such.jsonl"]),
    ];
    for (arguments, parts) in cases {
        let home = path(&dir);
        let mut command = eval_command(&out, arguments);
        let output = command.env("HF_HOME", home).output().unwrap();
        Ran::new(&command, output).fails(2, parts);
        assert!(!out.join("samples.jsonl").exists() || records(&out).is_empty(), "{arguments:?} wrote records");
    }
}

#[test]
fn lengths_beyond_the_context_run_when_asked_to() {
    let model = model_copy();
    let config = model.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"max_position_embeddings\": 32768", "\"max_position_embeddings\": 256")).unwrap();
    let dir = temp();
    let out = dir.path().join("run");
    eval(&out, &["--model", path(&model)]).fails(2, &["512", "256"]);
    eval(&out, &["--model", path(&model), "--allow-extrapolation"]).ok();
}

#[test]
fn a_config_with_a_wrong_key_names_its_line() {
    let dir = temp();
    let config = dir.path().join("mine.toml");
    fs::write(&config, "samples = 1\nmethod = ['topk']\n").unwrap();
    run(&["eval", "--config", config.to_str().unwrap()]).fails(2, &["mine.toml:2", "method"]);
    fs::write(&config, "samples = 1\nlengths = [512]\ntasks = ['ruler/niah_single_1']\nmethods = ['topk:k=8']\n")
        .unwrap();
    let out = dir.path().join("run");
    let arguments = ["eval", "--config", config.to_str().unwrap(), "--out", out.to_str().unwrap()];
    run(&arguments).ok();
    assert_eq!(records(&out).len(), 2);
}

#[test]
fn damaged_models_are_named_file_by_file() {
    let dir = temp();
    let out = dir.path().join("run");
    let damaged = |damage: &dyn Fn(&Path)| {
        let model = model_copy();
        damage(model.path());
        eval(&out, &["--model", path(&model)])
    };
    damaged(&|m| {
        let file = fs::OpenOptions::new().write(true).open(m.join("model.safetensors")).unwrap();
        file.set_len(5_000_000).unwrap();
    })
    .fails(1, &["model.safetensors", "truncated", "bytes are missing"]);
    damaged(&|m| fs::remove_file(m.join("model.safetensors")).unwrap()).fails(2, &["model.safetensors"]);
    damaged(&|m| fs::remove_file(m.join("tokenizer.json")).unwrap()).fails(2, &["tokenizer.json"]);
    damaged(&|m| fs::remove_file(m.join("config.json")).unwrap()).fails(2, &["config.json"]);
    damaged(&|m| fs::write(m.join("config.json"), "{\"architectures\": [\"GPT2LMHeadModel\"]}").unwrap())
        .fails(2, &["config.json", "GPT2LMHeadModel", "Llama"]);
    damaged(&|m| {
        let text = fs::read_to_string(m.join("config.json")).unwrap();
        fs::write(m.join("config.json"), text.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 3"))
            .unwrap();
    })
    .fails(2, &["config.json"]);
    damaged(&|m| {
        let text = fs::read_to_string(m.join("config.json")).unwrap();
        fs::write(m.join("config.json"), text.replace("\"num_hidden_layers\": 10", "\"num_hidden_layers\": 12"))
            .unwrap();
    })
    .fails(1, &["model.safetensors", "model.layers."]);
    assert!(!out.exists(), "nothing is written for a model that cannot be loaded");
}

#[test]
fn folders_that_cannot_be_written_fail_before_any_work() {
    let dir = temp();
    let file = dir.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let ran = eval(&file, &[]);
    ran.assert(matches!(ran.status, Some(1 | 2)), "fails");
    ran.assert(ran.stderr.starts_with("error: ") && ran.stderr.contains("file"), "names the path");
    assert_eq!(fs::read_to_string(&file).unwrap(), "in the way");
    run(&["eval", "--resume"]).fails(2, &["--out"]);
}

// --- the other commands ---

#[test]
fn lists_show_what_there_is() {
    for (what, parts) in [
        ("tasks", ["ruler/niah_single_1", "string_match_all"]),
        ("methods", ["oracle_sampling", "preset=paper"]),
        ("models", ["builtin", "ORG/NAME"]),
        ("configs", ["quick", "--config"]),
    ] {
        let ran = run(&["list", what]);
        ran.ok().assert(parts.iter().all(|p| ran.stdout.contains(p)), what);
        let json = run(&["list", what, "--json"]);
        let rows: Vec<Value> = serde_json::from_str(&json.ok().stdout).expect("JSON only");
        assert!(!rows.is_empty() && rows.iter().all(|r| r["name"].is_string()), "{what}");
    }
    run(&["list", "tusks"]).assert(run(&["list", "tusks"]).status == Some(2), "an unknown list is a usage error");
}

#[test]
fn predictions_made_elsewhere_are_scored() {
    let dir = temp();
    let file = dir.path().join("p.jsonl");
    let rows = [
        serde_json::json!({"prediction": "It is 42.", "outputs": ["42", "43"]}),
        serde_json::json!({"prediction": "42 and 43", "answers": ["42", "43"]}),
    ];
    fs::write(&file, rows.map(|r| r.to_string()).join("\n")).unwrap();
    let ran = run(&["score", file.to_str().unwrap(), "--metric", "string_match_all", "--json"]);
    let report: Value = serde_json::from_str(&ran.ok().stdout).unwrap();
    assert_eq!(report.to_string(), r#"{"metric":"string_match_all","n":2,"score":75.0,"rows":[0.5,1.0]}"#);
    run(&["score", file.to_str().unwrap(), "--metric", "string_match_al"]).fails(2, &["string_match_all"]);
}

#[test]
fn help_version_and_completions_are_there() {
    for arguments in [&["--help"][..], &["eval", "--help"], &["list", "--help"], &["score", "--help"], &["--version"]] {
        let ran = run(arguments);
        ran.ok().assert(ran.stdout.len() > 5, "prints something");
        assert!(ran.stdout.lines().all(|l| l.chars().count() <= 100), "{arguments:?} fits 100 columns");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).ok().stdout.contains("spattn"));
    }
    let ran = run(&["eval", "--no-such-flag"]);
    ran.assert(ran.status == Some(2), "an unknown flag is a usage error");
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let program: PathBuf = env!("CARGO_BIN_EXE_spattn").into();
    let script = format!("set -o pipefail; '{}' list methods | head -1", program.display());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
