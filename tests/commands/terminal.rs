//! Foreign names on a terminal, in drawings and in files: no part of a name is interpreted as a command, a formula or markup.
//!
//! A table lists the places that names can come from. For each place, a child process runs with names that contain commands, and its
//! output and errors are searched for bytes that a terminal interprets.

#![cfg(unix)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Precedes the hostile text, to see whether a name is shown.
const MARK: &str = "HOSTILE";
/// The hostile text after the mark. The first one sets the title, the clipboard and colours; the second does the same without ESC; the
/// third reverses the direction of text.
const HOSTILE: [&str; 3] = [
    "\u{1b}]0;title\u{7}\u{1b}]52;c;aGk=\u{7}\u{1b}[31m\u{8}",
    "\u{9b}31m\u{9d}0;title\u{9c}\u{7f}\u{85}\r",
    "\u{202e}txt\u{202c}\u{2066}x\u{2069}\u{2028}\u{2029}",
];

/// A short task.
const NEEDLE: &str = "needle/number:depths=50";

/// Whether a terminal interprets the character, or it misleads a reader.
fn is_command(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn spattn<A: AsRef<OsStr>>(args: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "SPATTN_DATA", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.args(args).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").stdin(Stdio::null());
    command
}

fn eval(dir: &Path, more: &[&str]) -> Command {
    let out = dir.join("run");
    let mut command = spattn(&["eval", "-q", "-l", "512", "-n", "1", "-m", "topk:k=8", "--out"]);
    command.arg(out).args(more);
    command
}

// ---- sources of names ----

/// A copy of the built-in model's folder with one file replaced.
fn model(dir: &Path, file: &str, bytes: &[u8]) -> String {
    let (folder, own) = (dir.join("model"), Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin"));
    fs::create_dir_all(&folder).unwrap();
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        let is_replaced = name == file || (name == "model.safetensors" && file.ends_with(".index.json"));
        if !is_replaced {
            std::os::unix::fs::symlink(own.join(name), folder.join(name)).unwrap();
        }
    }
    fs::write(folder.join(file), bytes).unwrap();
    folder.to_str().unwrap().to_owned()
}

/// A run with a copy of a model's folder, in which one value of a JSON file is replaced.
fn of_model(dir: &Path, file: &str, pointer: &str, value: Value) -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin").join(file);
    let mut json: Value = serde_json::from_slice(&fs::read(own).unwrap()).unwrap();
    json[pointer] = value;
    let model = model(dir, file, &serde_json::to_vec(&json).unwrap());
    eval(dir, &["-t", NEEDLE, "--model", &model])
}

fn of_header(dir: &Path, header: Value) -> Command {
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 64]].concat();
    let model = model(dir, "model.safetensors", &bytes);
    eval(dir, &["-t", NEEDLE, "--model", &model])
}

fn of_rows(dir: &Path, row: Value) -> Command {
    let file = dir.join("rows.jsonl");
    fs::write(&file, format!("{row}\n")).unwrap();
    eval(dir, &["-t", &format!("jsonl:{}", file.display())])
}

/// A run's folder with records that another program may have written.
fn records(dir: &Path, with: &[(&str, Value)]) -> PathBuf {
    let run = dir.join("foreign");
    fs::create_dir_all(&run).unwrap();
    let mut lines = String::new();
    let mut model = json!("m");
    for (at, (method, params)) in [("full", ""), ("topk", "k=8"), ("topk", "k=16")].into_iter().enumerate() {
        let mut record = json!({
            "key": format!("{at}"), "model": "m", "task": "t", "length": 512, "sample": 0, "seed": 1, "method": method,
            "params": params, "protocol": "question", "source": "s", "question": "q", "prediction": "p",
            "references": ["p"], "score": 1.0 - 0.25 * at as f64, "prompt_tokens": 500, "prefix_tokens": 480, "new_tokens": 8,
            "max_new_tokens": 40, "stopped": true, "density": 1.0 / (1 + at) as f64, "density_sparse_layers": 0.1,
            "cost1": 0.1, "cost2": 0.2, "aux_bits": 0.0, "kv_bytes_per_token": 1e6, "prefill_s": 0.5, "index_s": 0.01,
            "decode_s": 0.1 * (1 + at) as f64, "steps": 60,
        });
        for (key, value) in with {
            // `full` keeps its own name.
            if !(method == "full" && ["method", "params"].contains(key)) {
                record[*key] = value.clone();
            }
        }
        model = record["model"].clone();
        lines += &format!("{record}\n");
    }
    fs::write(run.join("samples.jsonl"), lines).unwrap();
    let identity = json!({"model": model, "protocol": "question", "seed": 1, "results_version": 1});
    fs::write(run.join("manifest.json"), json!({ "program": {}, "identity": identity, "methods": [] }).to_string())
        .unwrap();
    run
}

fn report(dir: &Path, with: &[(&str, Value)], more: &[&str]) -> Command {
    let run = records(dir, with);
    let mut command = spattn(&["report"]);
    command.arg(run).args(more);
    command
}

/// A run with a hub that returns this text as a commit.
fn of_hub(dir: &Path, commit: &str) -> Command {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let body = json!({ "sha": commit, "siblings": [] }).to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = reader.into_inner().write_all((head + &body).as_bytes());
        }
    });
    let mut command = eval(dir, &["-t", NEEDLE, "--model", "org/model"]);
    command.env("HF_ENDPOINT", address).env("HF_HOME", dir.join("hf")).env("HF_HUB_OFFLINE", "0");
    command
}

fn doctor(dir: &Path, name: &str, more: &[&str]) -> Command {
    let hub = dir.join("hub");
    fs::create_dir_all(hub.join(format!("models--org--{name}")).join("blobs")).unwrap();
    let mut command = spattn(&["doctor"]);
    command.args(more).env("HF_HUB_CACHE", hub);
    command
}

/// A report of a bench's folder that contains the name.
fn bench(dir: &Path, name: &str) -> Command {
    const REFERENCE: &str = "results/reference/h200/bench";
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(REFERENCE);
    let one = fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path());
    let one = one.filter(|folder| folder.join("manifest.json").is_file()).min().expect("a bench");
    let mut reader = csv_rows(&fs::read_to_string(one.join("bench.csv")).unwrap());
    let shape = reader[0].iter().position(|column| column == "shape").unwrap();
    reader[1..].iter_mut().for_each(|row| row[shape] = name.to_owned());
    let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
    let text: String = reader.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n").collect();
    let folder = dir.join("bench");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("bench.csv"), text).unwrap();
    let mut manifest: Value = serde_json::from_slice(&fs::read(one.join("manifest.json")).unwrap()).unwrap();
    manifest["notes"] = json!([name]);
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    let mut command = spattn(&["report"]);
    command.arg(folder);
    command
}

fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
}

/// The status of a sweep's folder that contains the name.
fn status(dir: &Path, name: &str, more: &[&str]) -> Command {
    let sweep = dir.join("sweep");
    fs::create_dir_all(sweep.join("shards/1")).unwrap();
    let cell =
        json!({"model": name, "task": name, "length": 512, "contexts": 1, "examples": 1, "records": 1, "work": 1});
    let failed = json!({"what": name, "why": name});
    let plan = json!({"version": "0.1.0", "created": 1, "cells": [cell], "failed": [failed],
        "shards": [{"contexts": 1, "records": 1, "work": 1}], "submissions": []});
    fs::write(sweep.join("plan.json"), plan.to_string()).unwrap();
    let started = json!({"started": {"at": 1, "node": name, "job": name, "pid": 1, "records": 0}});
    let ended = json!({"ended": {"at": 2, "end": "error", "records": 0, "error": name}});
    fs::write(sweep.join("shards/1/attempts.jsonl"), format!("{started}\n{ended}\n")).unwrap();
    let mut command = spattn(&["status"]);
    command.arg(sweep).args(more);
    command
}

fn resumed(dir: &Path, data: &str) -> Command {
    let run = records(dir, &[]);
    let identity = json!({"model": "builtin", "protocol": "question", "seed": 42, "data": data});
    fs::write(run.join("manifest.json"), json!({ "program": {}, "identity": identity }).to_string()).unwrap();
    let mut command = spattn(&["eval", "-q", "-t", NEEDLE, "-l", "512", "-n", "1", "--resume", "--out"]);
    command.arg(run);
    command
}

fn item(dir: &Path, name: &str) -> Command {
    let quoted = toml_string(name);
    let text = format!(
        "title = {quoted}\nmissing = {quoted}\n[[row]]\nname = {quoted}\nmethod = 'full'\n\
        [[column]]\nname = 'c'\ntasks = ['ruler/vt']\n"
    );
    fs::write(dir.join("item.toml"), text).unwrap();
    let mut command = spattn(&["reproduce", "--dry-run"]);
    command.arg(dir.join("item.toml"));
    command
}

/// The text as a string in TOML: as in JSON, but with one more character escaped.
fn toml_string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

fn named(dir: &Path, name: &str) -> PathBuf {
    dir.join(name.replace('/', ""))
}

fn whole_run(dir: &Path, name: &str) -> Command {
    let run = records(dir, &[]);
    let renamed = named(dir, name);
    fs::rename(run, &renamed).unwrap();
    let mut command = spattn(&["report"]);
    command.arg(renamed);
    command
}

/// A place that names come from, and a command that shows a name from there.
type Place = (&'static str, fn(&Path, &str) -> Command);

const PLACES: &[Place] = &[
    ("raise_exception of a chat template", |dir, name| {
        let template = format!("{{{{ raise_exception('{name}') }}}}");
        of_model(dir, "tokenizer_config.json", "chat_template", template.into())
    }),
    ("architectures", |dir, name| of_model(dir, "config.json", "architectures", json!([name]))),
    ("hidden_act", |dir, name| of_model(dir, "config.json", "hidden_act", json!(name))),
    ("rope_type", |dir, name| {
        of_model(dir, "config.json", "rope_parameters", json!({"rope_type": name, "rope_theta": 1e4}))
    }),
    ("a number of config.json", |dir, name| of_model(dir, "config.json", "hidden_size", json!(name))),
    ("a token of generation_config.json", |dir, name| of_model(dir, "config.json", "eos_token_id", json!(name))),
    ("rms_norm_eps", |dir, name| of_model(dir, "config.json", "rms_norm_eps", json!(name))),
    ("dtype of safetensors", |dir, name| {
        of_header(dir, json!({"model.norm.weight": {"dtype": name, "shape": [1], "data_offsets": [0, 4]}}))
    }),
    ("shards of an index", |dir, name| {
        let index = json!({"weight_map": {"x": name}}).to_string();
        let model = model(dir, "model.safetensors.index.json", index.as_bytes());
        eval(dir, &["-t", NEEDLE, "--model", &model])
    }),
    ("tensors of an index", |dir, name| {
        let index = json!({"weight_map": {name: "../x"}}).to_string();
        let model = model(dir, "model.safetensors.index.json", index.as_bytes());
        eval(dir, &["-t", NEEDLE, "--model", &model])
    }),
    ("fields of rows", |dir, name| of_rows(dir, json!({name: 1}))),
    ("dataset of rows", |dir, name| {
        of_rows(dir, json!({"context": "c", "input": "q", "answers": ["a"], "dataset": name}))
    }),
    ("metric of records", |dir, name| report(dir, &[("metric", json!(name))], &[])),
    ("models of records", |dir, name| report(dir, &[("model", json!(name))], &[])),
    ("tasks of records", |dir, name| report(dir, &[("task", json!(name))], &[])),
    ("methods of records", |dir, name| report(dir, &[("method", json!(name))], &[])),
    ("parameters of records", |dir, name| report(dir, &[("params", json!(name))], &[])),
    ("records as JSON", |dir, name| report(dir, &[("model", json!(name))], &["--json"])),
    ("records as Markdown", |dir, name| report(dir, &[("model", json!(name))], &["--format", "markdown"])),
    ("records as LaTeX", |dir, name| report(dir, &[("task", json!(name))], &["--format", "latex"])),
    ("a pivot of records", |dir, name| {
        report(dir, &[("task", json!(name))], &["--rows", "method", "--columns", "task"])
    }),
    ("a manifest that is resumed", |dir, name| resumed(dir, name)),
    ("the name of a run's folder", whole_run),
    ("the hub's commit", |dir, name| of_hub(dir, name)),
    ("cached models", |dir, name| doctor(dir, name, &[])),
    ("cached models as JSON", |dir, name| doctor(dir, name, &["--json"])),
    ("rows of a bench", |dir, name| bench(dir, name)),
    ("a sweep's plan and attempts", |dir, name| status(dir, name, &[])),
    ("a sweep's plan as JSON", |dir, name| status(dir, name, &["--json"])),
    ("keys of a config", |dir, name| {
        fs::write(dir.join("c.toml"), format!("{} = 1\n", toml_string(name))).unwrap();
        let mut command = spattn(&["eval", "--config"]);
        command.arg(dir.join("c.toml"));
        command
    }),
    ("an item of a paper", item),
    ("a task that is asked for", |dir, name| eval(dir, &["-t", name])),
    ("a method that is asked for", |dir, name| eval(dir, &["-t", NEEDLE, "-m", name])),
    ("a model that is asked for", |dir, name| eval(dir, &["-t", NEEDLE, "--model", name])),
    ("a flag that there is not", |_, name| spattn(&["eval".to_owned(), format!("--{name}")])),
    ("a subcommand that there is not", |_, name| spattn(&[name])),
    ("models of a sweep that goes on", |dir, name| {
        let mut command = spattn(&[
            "sweep", "quick", "-q", "-t", NEEDLE, "-l", "512", "-n", "1", "-m", "topk:k=8", "--model", name, "--out",
        ]);
        command.arg(dir.join("run"));
        command
    }),
    ("a file of predictions", |dir, name| {
        fs::write(dir.join("p.jsonl"), json!({"task": name, "prediction": name, "metric": name}).to_string()).unwrap();
        let mut command = spattn(&["score"]);
        command.arg(dir.join("p.jsonl"));
        command
    }),
    ("a folder of data", |dir, name| {
        let data = named(dir, name).to_str().unwrap().to_owned();
        eval(dir, &["-t", NEEDLE, "--data", &data])
    }),
];

/// The output and errors of a command as text.
fn said(command: &mut Command) -> String {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

#[track_caller]
fn check(place: &str, said: &str) {
    let wrong: Vec<char> = said.chars().filter(|c| is_command(*c)).collect();
    assert!(wrong.is_empty(), "{place}: {wrong:?} in {said:?}");
    // The text after the mark was shown escaped, as `\u{1b}`, or `\u001b` in JSON. LaTeX and Markdown write the backslash in their own
    // ways.
    let ways = ["\\u", "\\\\u", "\\textbackslash{}u"];
    // The argument parser removes sequences that look like colours.
    let is_of_parser = place.ends_with("that there is not") && said.contains(MARK);
    // Errors raised by a template have lost their control characters already.
    let is_raised = place.starts_with("raise_exception") && said.contains(MARK);
    let is_shown = is_of_parser || is_raised || ways.iter().any(|way| said.contains(&format!("{MARK}{way}")));
    assert!(is_shown, "{place}: the name is not shown in {said}");
}

#[test]
fn no_name_commands_a_terminal() {
    assert!(PLACES.len() >= 35);
    for (place, command) in PLACES {
        for hostile in HOSTILE {
            let dir = TempDir::new().unwrap();
            check(place, &said(&mut command(dir.path(), &format!("{MARK}{hostile}"))));
        }
    }
}

#[test]
fn the_owner_of_a_folder_commands_no_terminal() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    fs::create_dir_all(&run).unwrap();
    let owner =
        json!({"host": format!("{MARK}{}{}", HOSTILE[0], HOSTILE[2]), "boot": "x", "pid": 1, "since": 1, "count": 1});
    fs::write(run.join(".owner"), owner.to_string()).unwrap();
    let mut child = eval(dir.path(), &["-t", NEEDLE]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The note appears while the process waits for the lock to be renewed. The test does not wait for the end.
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    check(".owner", &line);
}

/// Runs on a terminal, with bars and tables that fit it.
#[test]
fn no_name_commands_a_real_terminal() {
    let dir = TempDir::new().unwrap();
    let name = format!("{MARK}{}{}.jsonl", HOSTILE[0], HOSTILE[2]);
    let row = json!({"context": "The code is 4812.", "question": "What is the code?", "answer": "4812"});
    fs::write(dir.path().join(&name), format!("{row}\n")).unwrap();
    let mut command = Command::new("script");
    let shell = "exec \"$PROGRAM\" eval -l 512 -n 1 -m topk:k=8 --out run -t \"jsonl:$ROWS\"";
    command.args(["-qec", shell, "/dev/null"]).current_dir(dir.path()).stdin(Stdio::null());
    command
        .env("PROGRAM", env!("CARGO_BIN_EXE_spattn"))
        .env("ROWS", &name)
        .env("HF_HUB_OFFLINE", "1")
        .env("TERM", "xterm");
    let Ok(output) = command.output() else {
        return eprintln!("SKIPPED: there is no `script` here to make a terminal");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(&format!("{MARK}\\u{{1b}}")), "{said:?}");
    // Bars move the cursor, but no part of the name is obeyed.
    for command in ["]0;title", "]52;c;"] {
        let is_obeyed = said.match_indices(command).any(|(at, _)| said[..at].ends_with('\u{1b}'));
        assert!(!is_obeyed, "{command}: {said:?}");
    }
    assert!(!said.contains(['\u{7}', '\u{202e}', '\u{2066}']), "{said:?}");
}

/// Long errors are shortened in the middle.
#[test]
fn errors_are_bounded() {
    let long = "x".repeat(3_000_000);
    let places: [Place; 4] = [
        ("raise_exception", |dir, name| {
            let template = format!("{{{{ raise_exception('{}' * {}) }}}}", &name[..1], name.len());
            of_model(dir, "tokenizer_config.json", "chat_template", template.into())
        }),
        ("a shape", |dir, name| {
            let shape = [vec![16], vec![1; name.len() / 2]].concat();
            of_header(
                dir,
                json!({"model.embed_tokens.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 64]}}),
            )
        }),
        ("architectures", |dir, name| of_model(dir, "config.json", "architectures", json!([name]))),
        ("fields of rows", |dir, name| of_rows(dir, json!({name: 1}))),
    ];
    for (place, command) in places {
        let dir = TempDir::new().unwrap();
        let said = said(&mut command(dir.path(), &long));
        let longest = said.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(said.starts_with("error: ") && said.contains('…') && longest <= 1000, "{place}: {longest}");
    }
}

// ---- files to read ----

/// A report of records that have this name as model, task, method and parameters.
fn drawn(name: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let with = ["model", "task"].map(|key| (key, json!(name)));
    let output = report(dir.path(), &with, &[]).output().unwrap();
    assert!(output.status.success(), "{name:?}: {}", String::from_utf8_lossy(&output.stderr));
    let run = dir.path().join("foreign");
    (dir, run)
}

/// All files below a folder with this extension.
fn files(dir: &Path, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

#[test]
fn every_name_can_be_drawn() {
    for name in
        ["a\u{0}b\u{1b}\u{8}", "\u{ffff}\u{fffe}", "\u{b}\u{c}\u{e}\u{1f}\u{7f}\u{9b}", "a\nb\r\tc", "\u{202e}abc"]
    {
        let (_dir, run) = drawn(name);
        let drawings = files(&run, "svg");
        assert!(!drawings.is_empty());
        for (path, svg) in drawings {
            assert!(path.with_extension("png").is_file(), "{path:?}");
            let hidden: Vec<char> =
                svg.chars().filter(|c| is_command(*c) || matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
            assert!(hidden.is_empty(), "{path:?}: {hidden:?}");
        }
    }
}

#[test]
fn spreadsheets_compute_nothing_of_a_name() {
    for name in ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"] {
        let (_dir, run) = drawn(name);
        let tables = files(&run, "csv");
        assert!(tables.len() >= 2, "{tables:?}");
        let mut seen = 0;
        for (path, text) in tables {
            for cell in csv_rows(&text).concat() {
                let begins = cell.chars().next().unwrap_or('x');
                let is_number = cell.parse::<f64>().is_ok();
                assert!(is_number || !['=', '+', '-', '@', '\t', '\r'].contains(&begins), "{path:?}: {cell:?}");
                // A terminal that shows the file does not interpret the name either.
                seen += usize::from(cell == format!("'{}", name.replace('\r', "\\u{d}")));
            }
        }
        assert!(seen > 0, "{name:?} is in a table, as text");
    }
    // Differences are signed numbers, and are not escaped.
    let (_dir, run) = drawn("plain");
    let rows = csv_rows(&fs::read_to_string(run.join("summary.csv")).unwrap());
    let at = rows[0].iter().position(|column| column == "delta_full").unwrap();
    assert!(rows.iter().any(|row| row[at] == "-25.0000"), "{rows:?}");
}

/// The table that the page's script saves is escaped by the same rule.
#[test]
fn what_the_page_saves_is_computed_by_no_spreadsheet() {
    let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/page/page.js")).unwrap();
    let line =
        |name: &str| script.lines().find(|line| line.trim_start().starts_with(&format!("const {name} ="))).unwrap();
    let parts = ["missing", "isFormula", "csvCell", "quoted", "csvField"].map(line).join("\n");
    let cells =
        json!(["=1+1", "+x", "-2+3", "@A", "\t=1", "\r", "'=1", "-3.5", "+1", "-1e-9", "a=b", "", null, -2.5, "a,b"]);
    let program = format!("{parts}\nconsole.log(JSON.stringify({cells}.map(csvField)));");
    let Ok(output) = Command::new("node").args(["-e", &program]).output() else {
        return eprintln!("SKIPPED: there is no node here to run the page's script");
    };
    let saved: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!([
        "'=1+1", "'+x", "'-2+3", "'@A", "'\t=1", "\"'\r\"", "''=1", "-3.5", "+1", "-1e-9", "a=b", "", "", "-2.5",
        "\"a,b\""
    ]);
    assert_eq!(saved, expected);
}

#[test]
fn names_are_no_markup_in_markdown() {
    let names =
        ["<img src=http://evil/x.png>", "![x](http://evil/x.png)", "[x](http://evil)", "a|b\n# c\n\n[r]: http://evil"];
    for name in names {
        let (_dir, run) = drawn(name);
        let pages = files(&run, "md");
        assert!(pages.len() >= 2);
        for (path, page) in pages {
            let page: String = page.replace("\\\\", "");
            for markup in ["<img", "](http", "http://", "\n# c", "\n[r]"] {
                let is_bare = page.match_indices(markup).any(|(at, _)| !page[..at].ends_with('\\'));
                assert!(!is_bare, "{path:?}: {markup} in\n{page}");
            }
            // Each line of a table has as many cells as its heading.
            for table in page.split("\n\n").filter(|part| part.starts_with('|')) {
                let cells = |line: &str| line.replace("\\|", "").matches('|').count();
                let counts: Vec<usize> = table.lines().take_while(|line| line.starts_with('|')).map(cells).collect();
                assert!(counts.iter().all(|count| *count == counts[0]), "{path:?}:\n{table}");
            }
        }
    }
}

// ---- passwords ----

#[test]
fn no_password_of_an_address_is_printed() {
    let hidden = "s3cr3t";
    let endpoints = [
        "https://user:s3cr3t@127.0.0.1:9",
        "http://user:s3cr3t@127.0.0.1:9/",
        "https//user:s3cr3t@hub.invalid",
        "user:s3cr3t@hub.invalid",
        "https://user:s3cr3t@",
        "https://user:s3cr3t@hub.invalid:port",
        "ftp://user:s3cr3t@hub.invalid",
        "https://user:s3cr3t",
    ];
    let commands: [&[&str]; 2] = [&["eval", "-q", "-t", NEEDLE, "-n", "1", "--model", "org/model"], &["doctor"]];
    for endpoint in endpoints {
        for args in commands {
            let dir = TempDir::new().unwrap();
            let mut command = spattn(args);
            command.env("HF_ENDPOINT", endpoint).env("HF_HOME", dir.path()).env("HF_HUB_OFFLINE", "0");
            command.env("HF_HUB_ETAG_TIMEOUT", "2").current_dir(dir.path());
            let said = said(&mut command);
            assert!(!said.is_empty() && !said.contains(hidden), "{endpoint}: {said}");
        }
    }
    for proxy in [
        "http://user:s3cr3t@127.0.0.1:9",
        "user:s3cr3t@127.0.0.1:9",
        "socks5://user:s3cr3t@127.0.0.1:9",
        "http://user:s3cr3t@:x",
    ] {
        let dir = TempDir::new().unwrap();
        let mut command = spattn(commands[0]);
        command.env("HTTPS_PROXY", proxy).env("HF_HOME", dir.path()).env("HF_HUB_OFFLINE", "0");
        command.env("HF_ENDPOINT", "https://hub.invalid").env("HF_HUB_ETAG_TIMEOUT", "2").current_dir(dir.path());
        let said = said(&mut command);
        assert!(said.contains("error: ") && !said.contains(hidden), "{proxy}: {said}");
    }
}

#[test]
fn a_token_that_cannot_be_sent_is_told_and_one_with_an_end_of_line_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let run = |token: &str| {
        let dir = TempDir::new().unwrap();
        let mut command = eval(dir.path(), &["-t", NEEDLE, "--model", "org/model"]);
        command
            .env("HF_ENDPOINT", &address)
            .env("HF_HOME", dir.path())
            .env("HF_HUB_OFFLINE", "0")
            .env("HF_TOKEN", token);
        said(&mut command)
    };
    for token in ["hf_\u{e9}t\u{e9}", "hf_a b"] {
        let said = run(token);
        assert!(said.contains("the access token (HF_TOKEN or the token file) has a character"), "{said}");
        assert!(said.contains("\n  hint: ") && !said.contains(token), "{said}");
    }
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut request, start) = (Vec::new(), Instant::now());
        while !request.ends_with(b"\r\n\r\n") && start.elapsed() < Duration::from_secs(10) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        String::from_utf8(request).unwrap()
    });
    let said = run("hf_secret\r\n");
    let request = server.join().unwrap();
    assert!(request.to_lowercase().contains("authorization: bearer hf_secret\r\n"), "{request}");
    assert!(said.contains("the hub does not accept the token") && !said.contains("hf_secret"), "{said}");
}
