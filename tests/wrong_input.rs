//! Wrong input of every kind, through the program: each is refused with one line that says what is wrong, within limits of time and memory.
//!
//! The rows are in `tests/wrong_input/*.txt`, whose first lines explain their format. Wrong values for the flags of `eval` and `sweep`, and
//! for the keys of their configs, are also made from the table of flags (`tests/flags.rs`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The most processor seconds for a row, and the most address space in units of 1,024 bytes.
const MOST_SECONDS: u64 = 10;
const MOST_KILOBYTES: u64 = 4_000_000;
/// The time after which a row's process is ended, even if it uses no processor time.
const PATIENCE: Duration = Duration::from_secs(120);
/// The fewest rows that the table may have.
const LEAST_ROWS: usize = 300;
/// What no message may contain: signs of a crash, and terms of Rust.
const FORBIDDEN: [&str; 26] = [
    "panicked",
    "RUST_BACKTRACE",
    "backtrace",
    "overflowed its stack",
    "memory allocation of",
    "internal error (panic)",
    "usize",
    "u64",
    "i64",
    "u32",
    "u128",
    "f64",
    "alloc::",
    "core::",
    "std::",
    "spattn::",
    "NonZero",
    "Option<",
    "Vec<",
    "Some(",
    "Err(",
    "struct ",
    "untagged",
    "variant",
    "invalid digit",
    "target type",
];

// ---- the table ----

/// A row of the table.
#[derive(Debug)]
struct Row {
    place: String,
    status: i32,
    /// Expected parts of the error line and of its hints.
    error: String,
    hint: Option<String>,
    env: Vec<(String, OsString)>,
    args: Vec<OsString>,
    edits: Vec<String>,
    text: String,
}

fn tables() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong_input");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "txt"));
    files.sort();
    files
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for file in tables() {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for (at, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            if !line.trim().is_empty() && !line.starts_with('#') {
                rows.push(Row::parse(line, format!("{name}:{}", at + 1)));
            }
        }
    }
    rows
}

impl Row {
    fn parse(line: &str, place: String) -> Self {
        let mut parts = line.splitn(4, " | ");
        let mut next = || parts.next().map(str::trim);
        let (Some(status), Some(said), Some(command)) = (next(), next(), next()) else { panic!("{place}: {line}") };
        let edits = next().map_or(Vec::new(), |edits| edits.split(" && ").map(|e| e.trim().to_owned()).collect());
        let (error, hint) = match said.split_once(" => ") {
            Some((error, hint)) => (error.trim(), Some(hint.trim().to_owned())),
            None => (said, None),
        };
        let mut words = words(command).into_iter().peekable();
        let mut env = Vec::new();
        while let Some((name, value)) = words.peek().and_then(variable) {
            env.push((name, value));
            words.next();
        }
        Self {
            status: status.parse().unwrap_or_else(|_| panic!("{place}: {line}")),
            error: error.to_owned(),
            hint,
            env,
            args: words.collect(),
            edits,
            text: line.to_owned(),
            place,
        }
    }
}

/// Reads `NAME=VALUE`, with a name in capitals, which may precede the arguments.
fn variable(word: &OsString) -> Option<(String, OsString)> {
    let bytes = word.clone().into_vec();
    let at = bytes.iter().position(|b| *b == b'=')?;
    let name = std::str::from_utf8(&bytes[..at]).ok()?;
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    is_name.then(|| (name.to_owned(), OsString::from_vec(bytes[at + 1..].to_vec())))
}

/// The words of a text, separated by spaces. Text in single quotes is one word.
fn words(text: &str) -> Vec<OsString> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            '\'' => (quoted, any) = (!quoted, true),
            ' ' if !quoted => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words.into_iter().map(|word| OsString::from_vec(unescaped(&word))).collect()
}

/// The bytes of a text: `\n`, `\t`, `\\` and `\xHH` are one byte each, and `\*N*TEXT*` is the text N times.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        out.extend(rest[..at].bytes());
        let escape = rest[at + 1..].chars().next().expect("something follows a backslash");
        rest = &rest[at + 2..];
        match escape {
            'n' => out.push(b'\n'),
            't' => out.push(b'\t'),
            'x' => {
                out.push(u8::from_str_radix(&rest[..2], 16).expect("two hexadecimal digits"));
                rest = &rest[2..];
            }
            '*' => {
                let mut parts = rest.splitn(3, '*');
                let (count, repeated) = (parts.next().unwrap(), parts.next().unwrap());
                out.extend(repeated.repeat(count.parse().expect("how often")).bytes());
                rest = parts.next().unwrap();
            }
            other => out.push(other as u8),
        }
    }
    out.extend(rest.bytes());
    out
}

// ---- files of a row ----

/// The files that rows start from: a small model, a run, calibrations, rows, texts and word lists.
static FIXTURES: LazyLock<TempDir> = LazyLock::new(|| {
    let temp = TempDir::new().unwrap();
    let (root, dir) = (Path::new(env!("CARGO_MANIFEST_DIR")), temp.path());
    copy(&root.join("tests/golden/models/llama3"), &dir.join("model"));
    write(&dir.join("model/tokenizer.json"), byte_tokenizer().to_string().as_bytes());
    copy(&root.join("tests/golden/models/llama-sharded"), &dir.join("shards"));
    copy(&dir.join("model/tokenizer.json"), &dir.join("shards/tokenizer.json"));
    copy(&root.join("tests/golden/gguf/mixed.gguf"), &dir.join("mixed.gguf"));
    copy(&root.join("models/builtin/calibration"), &dir.join("cal"));
    let run = spattn(dir, &[], &words("eval -q -t ruler/vt -l 1K -n 2 -m topk:k=16 --out run"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let row = json!({"index": 0, "input": "What is red?", "outputs": ["a rose"], "answer_prefix": "It is"});
    let others = json!({"context": "A rose is red.", "question": "What is red?", "answer": "a rose"});
    let pairs = json!({"ordered_kv_records": [["a", "1"], ["b", "2"]], "key": "a", "value": "1"});
    let predictions = json!({"prediction": "Paris", "answers": ["Paris"]});
    for (name, rows) in [("rows", &row), ("needles", &others), ("pairs", &pairs), ("predictions", &predictions)] {
        write(&dir.join(format!("{name}.jsonl")), format!("{rows}\n{rows}\n").as_bytes());
    }
    let longbench = json!({"input": "Who?", "context": "It was Ann.", "answers": ["Ann"], "length": 3, "dataset": "hotpotqa",
        "all_classes": null, "language": "en", "_id": "1"});
    write(&dir.join("lb/longbench/hotpotqa.jsonl"), format!("{longbench}\n").as_bytes());
    let mut zip = zip::ZipWriter::new(fs::File::create(dir.join("data.zip")).unwrap());
    zip.start_file("data/hotpotqa.jsonl", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(format!("{longbench}\n").as_bytes()).unwrap();
    zip.finish().unwrap();
    write(
        &dir.join("text.txt"),
        "Once there was a house by the sea, and in it lived an old man.\n".repeat(300).as_bytes(),
    );
    for (name, count) in [("nounlist", 200), ("adjectivelist", 100), ("verblist", 20)] {
        let list: String = (0..count).map(|i| format!("{name}{i}\n")).collect();
        write(&dir.join(format!("words/wordlists/{name}.txt")), list.as_bytes());
    }
    temp
});

/// A byte-level tokenizer of 256 tokens, as many as the small model has.
fn byte_tokenizer() -> Value {
    // The printable characters that stand for bytes in byte-level tokenizers.
    let is_plain = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut others = 256u32..;
    let letters = (0..256u32).map(|b| if is_plain(b) { b } else { others.next().unwrap() });
    let letters = letters.map(|c| char::from_u32(c).unwrap().to_string());
    let vocabulary: serde_json::Map<String, Value> = letters.enumerate().map(|(id, c)| (c, id.into())).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    })
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

/// Applies one of a row's edits to a file in its folder.
fn edit(dir: &Path, edit: &str) {
    let split = |mark: &str| edit.split_once(mark).map(|(name, rest)| (dir.join(name.trim()), rest.trim()));
    if let Some((path, text)) = split(" :=") {
        write(&path, &unescaped(text));
    } else if let Some((path, fixture)) = split(" <- ") {
        copy(&FIXTURES.path().join(fixture), &path);
    } else if let Some((path, assignment)) = split(" @ ") {
        set_field(&path, assignment);
    } else if let Some((path, percent)) = split(" cut ") {
        let bytes = fs::read(&path).unwrap();
        write(&path, &bytes[..bytes.len() * percent.parse::<usize>().unwrap() / 100]);
    } else if let Some((path, bytes)) = split(" + ") {
        let appended = [fs::read(&path).unwrap(), unescaped(bytes)].concat();
        write(&path, &appended);
    } else if let Some((path, value)) = split(" tensors ") {
        set_tensors(&path, value);
    } else if let Some((path, to)) = split(" link ") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    } else if let Some(name) = edit.strip_prefix("remove ") {
        fs::remove_file(dir.join(name.trim())).unwrap();
    } else if let Some(name) = edit.strip_prefix("folder ") {
        fs::create_dir_all(dir.join(name.trim())).unwrap();
    } else {
        panic!("no edit: {edit}");
    }
}

/// Sets `KEY.KEY = JSON` in a JSON file; `null` removes the key. In a file of lines, changes the first line.
fn set_field(path: &Path, assignment: &str) {
    let (keys, value) = assignment.split_once(" = ").unwrap();
    let text = fs::read_to_string(path).unwrap();
    let (first, rest) = match path.extension().is_some_and(|e| e == "jsonl") {
        true => text.split_once('\n').unwrap(),
        false => (text.as_str(), ""),
    };
    let mut json: Value = serde_json::from_str(first).unwrap();
    let (parents, last) = keys.rsplit_once('.').map_or((None, keys), |(parents, last)| (Some(parents), last));
    let object = parents.into_iter().flat_map(|p| p.split('.')).fold(&mut json, |value, key| &mut value[key]);
    match value {
        "gone" => drop(object.as_object_mut().unwrap().remove(last)),
        value => object[last] = serde_json::from_str(value).unwrap(),
    }
    write(path, format!("{json}\n{rest}").as_bytes());
}

/// Sets all numbers of a file of tensors to 0, or the first one to NaN.
fn set_tensors(path: &Path, value: &str) {
    let mut bytes = fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let info: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let first = info.as_object().unwrap().values().find(|t| t["data_offsets"][0] == 0).unwrap();
    let data = &mut bytes[header..];
    match (value, first["dtype"].as_str().unwrap()) {
        ("zero", _) => data.fill(0),
        ("nan", _) => data[..4].fill(0xff),
        ("inf", "F16") => data[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes()),
        ("inf", "F32") => data[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        other => panic!("{other:?}"),
    }
    write(path, &bytes);
}

// ---- running a row ----

struct Ran {
    /// The exit status; `None` if the program was ended by a signal or after [`PATIENCE`].
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program in a folder, within the limits.
fn spattn(dir: &Path, env: &[(String, OsString)], args: &[OsString]) -> Ran {
    let bounds = format!("ulimit -v {MOST_KILOBYTES} && ulimit -t {MOST_SECONDS} && ulimit -c 0 && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &bounds, env!("CARGO_BIN_EXE_spattn")]).args(args).current_dir(dir);
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "RUST_BACKTRACE", "SPATTN_DATA", "SPATTN_ISA"] {
        command.env_remove(name);
    }
    command
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", "/nonexistent/hf")
        .env("NO_COLOR", "1")
        .env("RAYON_NUM_THREADS", "1");
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let (out, err) = (reader(Box::new(stdout)), reader(Box::new(stderr)));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > PATIENCE => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Ran { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

/// How a run deviates from what its row expects.
fn faults(row: &Row, ran: &Ran) -> Vec<String> {
    let mut faults = Vec::new();
    let mut want = |holds: bool, what: String| {
        if !holds {
            faults.push(what);
        }
    };
    want(ran.status == Some(row.status), format!("status {:?}, expected {}", ran.status, row.status));
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    want(errors.len() == 1, format!("{} lines begin with `error: `", errors.len()));
    want(errors.iter().any(|line| line.contains(&row.error)), format!("the error does not say: {}", row.error));
    if let Some(hint) = &row.hint {
        let hints = ran.stderr.lines().filter(|line| line.contains("hint: ") || line.contains("possible values"));
        want(hints.into_iter().any(|line| line.contains(hint)), format!("no hint says: {hint}"));
    }
    for word in FORBIDDEN {
        want(!ran.stderr.contains(word), format!("the message holds `{word}`"));
    }
    faults
}

#[test]
fn every_wrong_input_is_refused_with_one_readable_line() {
    let rows = rows();
    assert!(rows.len() >= LEAST_ROWS, "{} rows", rows.len());
    LazyLock::force(&FIXTURES);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let only = std::env::var("WRONG_INPUT_ROWS").unwrap_or_default();
    let work = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !row.place.starts_with(&only) {
                continue;
            }
            let dir = TempDir::new().unwrap();
            row.edits.iter().for_each(|one| edit(dir.path(), one));
            let start = Instant::now();
            let ran = spattn(dir.path(), &row.env, &row.args);
            let faults = faults(row, &ran);
            if !faults.is_empty() {
                let head: String = ran.stdout.lines().next().unwrap_or_default().chars().take(100).collect();
                let Row { place, text, .. } = row;
                let (faults, said, took) = (faults.join("; "), ran.stderr.trim(), start.elapsed().as_secs_f64());
                failed.lock().unwrap().push(format!("{place}: {text}\n  {faults} ({took:.1} s)\n{said}\n{head}\n"));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    assert!(failed.is_empty(), "{} of {} rows:\n\n{}", failed.len(), rows.len(), failed.join("\n"));
}

#[test]
fn no_row_is_there_twice() {
    let mut seen = BTreeSet::new();
    for row in rows() {
        assert!(
            seen.insert((format!("{:?}{:?}", row.env, row.args), row.edits.clone())),
            "{}: {}",
            row.place,
            row.text
        );
    }
}

// ---- coverage of the table ----

fn stdout(args: &str) -> String {
    let dir = TempDir::new().unwrap();
    let ran = spattn(dir.path(), &[], &words(args));
    assert_eq!(ran.status, Some(0), "{args}: {}", ran.stderr);
    ran.stdout
}

/// The flags in a command's help, each with whether it takes a value.
fn flags(command: &str) -> Vec<(String, bool)> {
    let help = stdout(&format!("{command} --help"));
    let lines = help.lines().map(str::trim).filter(|line| line.starts_with('-'));
    let name = |line: &str| line.split([' ', ',', '[']).find(|word| word.starts_with("--")).map(str::to_owned);
    lines.filter_map(|line| Some((name(line)?, line.contains('<')))).collect()
}

#[test]
fn the_table_covers_every_flag_that_takes_a_value() {
    let rows = rows();
    let commands = [
        "eval",
        "sweep",
        "reproduce",
        "analyze",
        "tune",
        "calibrate",
        "data fetch",
        "data list",
        "data check",
        "data export-eval",
        "data show",
        "list",
        "report",
        "status",
        "score",
        "doctor",
        "verify",
        "completions",
    ];
    let mut missing = Vec::new();
    for command in commands {
        let start = words(command);
        let of_command: Vec<&Row> = rows.iter().filter(|row| row.args.starts_with(&start)).collect();
        assert!(of_command.len() >= 2, "{command}: {} rows", of_command.len());
        let of_table = spattn::cli::flags();
        let is_tested = |flag: &str| of_table.iter().any(|row| row.name == flag.strip_prefix("--"));
        for (flag, takes_value) in flags(command) {
            // `tests/flags.rs` makes wrong inputs from the table of flags.
            if ["eval", "sweep"].contains(&command) && is_tested(&flag) {
                continue;
            }
            let short = match flag.as_str() {
                "--method" => "-m",
                "--task" => "-t",
                "--length" => "-l",
                "--samples" | "--max-samples" => "-n",
                "--out" => "-o",
                _ => "",
            };
            let is_named = |row: &&&Row| {
                row.args.iter().any(|arg| {
                    *arg == *flag
                        || arg.to_string_lossy().starts_with(&format!("{flag}="))
                        || (!short.is_empty() && arg == short)
                })
            };
            if takes_value && of_command.iter().find(is_named).is_none() {
                missing.push(format!("{command} {flag}"));
            }
        }
    }
    assert!(missing.is_empty(), "no row for: {}", missing.join(", "));
}

#[test]
fn the_table_covers_every_parameter_of_methods_calibrations_and_tasks() {
    let all = rows();
    let texts: Vec<String> = all.iter().map(|row| row.text.clone()).collect();
    let mut missing = Vec::new();
    let mut need = |what: String, holds: &dyn Fn(&str) -> bool| {
        if !texts.iter().any(|text| holds(text)) {
            missing.push(what);
        }
    };
    let methods: Value = serde_json::from_str(&stdout("list methods --json")).unwrap();
    for method in methods.as_array().unwrap() {
        let name = method["name"].as_str().unwrap();
        let of = |kind: &str| -> Vec<String> {
            method[kind].as_array().unwrap().iter().map(|p| p["key"].as_str().unwrap().to_owned()).collect()
        };
        need(format!("-m {name}"), &|text| text.contains(name));
        for key in of("params") {
            // Parameters that all methods share are tested with one method only.
            let of_all = [
                "sink",
                "local",
                "dense_layers",
                "tail",
                "kv_dtype",
                "density",
                "schedule",
                "preset",
                "pick",
                "p",
                "per",
                "reduce",
            ]
            .contains(&key.as_str());
            let holds =
                |text: &str| text.contains(&format!("{key}=")) && (of_all || text.contains(&format!("{name}:")));
            need(format!("-m {name}:{key}="), &holds);
        }
        for key in of("calibration") {
            let holds = |text: &str| text.contains("calibrate") && text.contains(&format!("{key}="));
            need(format!("calibrate {name}:{key}="), &holds);
        }
    }
    let tasks: Value = serde_json::from_str(&stdout("list tasks --json")).unwrap();
    for task in tasks.as_array().unwrap() {
        let name = task["name"].as_str().unwrap();
        let family = name.split(['/', ':']).next().unwrap();
        for parameter in task["parameters"].as_array().unwrap() {
            let key = parameter[0].as_str().unwrap();
            if ["needle", "passkey", "kv_retrieval", "longeval_lines", "ppl", "mcq", "jsonl"].contains(&family) {
                need(format!("-t {name}:{key}="), &|text| text.contains(family) && text.contains(&format!("{key}=")));
            }
        }
    }
    assert!(missing.is_empty(), "no row for: {}", missing.join(", "));
}

// ---- legal, although unusual ----

#[test]
fn a_plan_of_any_size_is_made_without_listing_it() {
    let plan = stdout("sweep quick --dry-run --json -n 1000000000000 -t ruler/vt -l 1K -m topk --no-full");
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan[0]["cells"], json!([{"task": "ruler/vt", "length": 1024, "examples": 1_000_000_000_000u64}]));
    assert_eq!(plan[0]["records"], 1_000_000_000_000u64);
    let plan =
        stdout("sweep quick --dry-run --json -n 1000000000000 -t needle/number:steps=1001 -l 1K --shard 3/7 -m topk");
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let examples = plan[0]["cells"][0]["examples"].as_u64().unwrap();
    assert!(examples.abs_diff(1_000_000_000_000 * 1001 / 7) <= 1001, "{examples}");
}

#[test]
fn lists_with_commas_are_lists() {
    let plan = stdout(
        "sweep quick --dry-run --json -t ruler/vt,ruler/cwe -l 1K,2048 --seed 1,2 --sink 4,8 -n 1 -m topk --no-full",
    );
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let cells: Vec<String> =
        plan[0]["cells"].as_array().unwrap().iter().map(|c| format!("{} {}", c["task"], c["length"])).collect();
    assert_eq!(cells, ["\"ruler/vt\" 1024", "\"ruler/vt\" 2048", "\"ruler/cwe\" 1024", "\"ruler/cwe\" 2048"]);
    assert_eq!((&plan[0]["seeds"], &plan[0]["methods"]), (&json!([1, 2]), &json!(["topk:k=64", "topk:k=64,sink=8"])));
}

#[test]
fn a_folder_need_not_be_utf_8() {
    let dir = TempDir::new().unwrap();
    let args = "eval -q -t ruler/vt -l 1K -n 1 -m topk --no-full --data words\\xff --out run\\xff";
    copy(&FIXTURES.path().join("words"), &dir.path().join(OsString::from_vec(b"words\xff".to_vec())));
    let ran = spattn(dir.path(), &[], &words(args));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let out = dir.path().join(OsString::from_vec(b"run\xff".to_vec()));
    let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["config"]["data"], "words\u{fffd}");
    let resumed = spattn(dir.path(), &[], &words(&format!("{args} --resume")));
    assert_eq!(resumed.status, Some(0), "{}", resumed.stderr);
    let report = spattn(dir.path(), &[], &words("report run\\xff"));
    assert_eq!(report.status, Some(0), "{}", report.stderr);
}
