//! Users' files: what may be missing in a results folder, rows and texts from pipes, folders that disappear during a run.

#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::program::{self, Ran};

/// Runs of one task under two methods: with one example, and with two.
const TINY: [&str; 9] = ["eval", "-t", "ruler/niah_single_1", "-l", "512", "-m", "topk:k=16", "-n", "1"];
const TWO: [&str; 9] = ["eval", "-t", "ruler/niah_single_1", "-l", "512", "-m", "topk:k=16", "-n", "2"];
/// Rows that any model can read.
const ROWS: &str = "{\"input\": \"Say a.\", \"outputs\": [\"a\"]}\n{\"input\": \"Say b.\", \"outputs\": [\"b\"]}\n";
const METRIC: &str = "metric=string_match_all,max_new_tokens=2";

fn spattn(dir: &Path) -> Command {
    program::spattn(&[]).within(dir).command
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        command: String::new(),
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn begun(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run(dir: &Path, args: &[&str]) -> Ran {
    ended(begun(spattn(dir).args(args)))
}

/// All files below a folder, with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(files(&entry.path())),
            false => drop(all.insert(entry.path(), fs::read(entry.path()).unwrap_or_default())),
        }
    }
    all
}

fn records(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// A run that takes long enough to change its folder meanwhile. Waits for its first records.
fn long_run(dir: &Path, out: &str, samples: &str) -> Child {
    let args = ["eval", "--out", out, "-t", "ruler/niah_multiquery", "-l", "1024", "-m", "topk:k=16", "-n", samples];
    let child = begun(spattn(dir).args(args));
    let started = Instant::now();
    while records(&dir.join(out).join("samples.jsonl")) < 2 {
        assert!(started.elapsed() < Duration::from_secs(120), "no record");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

// ---- protection of files ----

#[test]
fn a_papers_folder_keeps_everything_whatever_is_asked_for() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    for name in ["main.tex", "notes/plan.md", "data.csv", "tables/readme.txt", ".gitignore"] {
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        fs::write(dir.join(name), name).unwrap();
    }
    let theirs = files(dir);
    let kept =
        || theirs.iter().for_each(|(path, bytes)| assert_eq!(fs::read(path).unwrap(), *bytes, "{}", path.display()));
    run(dir, &[&TINY[..], &["--out", ".", "--overwrite"]].concat()).ok();
    kept();
    // The user's drawings beside the program's, once the folder holds a run.
    fs::write(dir.join("plots/mine.svg"), "mine").unwrap();
    run(dir, &[&TINY[..], &["--out", ".", "--overwrite", "--seed", "7"]].concat()).ok();
    run(dir, &["report", "."]).ok();
    kept();
    assert_eq!(fs::read(dir.join("plots/mine.svg")).unwrap(), b"mine");
    assert_eq!(records(&dir.join("samples.jsonl")), 2);
}

#[test]
fn what_is_in_the_way_of_a_figure_is_found_before_anything_is_drawn() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TINY[..], &["--out", "r"]].concat()).ok();
    fs::create_dir_all(dir.join("o/plots")).unwrap();
    for (path, bytes) in files(&dir.join("r/plots")) {
        if path.extension().is_some_and(|e| e == "png") {
            fs::write(dir.join("o/plots").join(path.file_name().unwrap()), [b"theirs", &bytes[..]].concat()).unwrap();
        }
    }
    let theirs = files(&dir.join("o"));
    run(dir, &["report", "r", "--out", "o"]).fails(2, "and spattn did not write it", "another --out folder");
    assert_eq!(files(&dir.join("o")), theirs);
}

#[test]
fn a_folder_of_the_version_before_there_were_lists_goes_on_and_is_drawn_and_thrown_away() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TINY[..], &["--out", "r"]].concat()).ok();
    let all =
        |dir: &Path| files(dir).into_keys().map(|path| path.strip_prefix(dir).unwrap().to_owned()).collect::<Vec<_>>();
    let before = all(&dir.join("r"));
    let forget = || fs::remove_file(dir.join("r/.written")).unwrap();
    forget();
    run(dir, &["report", "r"]).ok();
    forget();
    run(dir, &[&TINY[..], &["--out", "r", "--resume"]].concat()).ok();
    forget();
    let ran = run(dir, &[&TINY[..], &["--out", "r", "--overwrite"]].concat()).ok();
    assert_eq!(all(&dir.join("r")), before, "tables of the report are gone with the run\n{}", ran.stdout);
    // A folder that `report` writes to has no manifest.
    run(dir, &["report", "r", "--out", "o"]).ok();
    fs::remove_file(dir.join("o/.written")).unwrap();
    run(dir, &["report", "r", "--out", "o"]).ok();
}

#[test]
fn a_folder_that_lost_its_list_keeps_what_others_put_there() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TINY[..], &["--out", "r"]].concat()).ok();
    let theirs =
        ["summary.tex", "tables/results.tex", "tables/pivot.csv", "plots/mine.svg", "plots/mine.png", "prompts/a.gz"];
    for name in theirs {
        let path = dir.join("r").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "theirs").unwrap();
    }
    let kept =
        || theirs.iter().for_each(|name| assert_eq!(fs::read(dir.join("r").join(name)).unwrap(), b"theirs", "{name}"));
    let forget = || fs::remove_file(dir.join("r/.written")).unwrap();
    forget();
    let before = files(&dir.join("r"));
    run(dir, &["report", "r"]).fails(2, "summary.tex exists, and spattn did not write it", "move it away");
    assert_eq!(files(&dir.join("r")), before);
    let ran = run(dir, &[&TINY[..], &["--out", "r", "--overwrite"]].concat()).ok();
    kept();
    ran.check(records(&dir.join("r/samples.jsonl")) == 2, "two records");
    // The same with the list of written files.
    run(dir, &["report", "r"]).fails(2, "summary.tex exists, and spattn did not write it", "move it away");
    kept();
}

/// Each command recognises its own files even without the list of written files, and replaces them.
#[test]
fn commands_know_their_files_without_the_list() {
    let temp = TempDir::new().unwrap();
    let tune = "tune -q -t needle/number:depths=50 -l 512 -m";
    for (out, args) in [
        ("bench", "bench attention -q -c 512 -m topk:k=64 --rounds 3".to_owned()),
        ("analysis", "analyze mass recall -q -t ruler/niah_single_1 -l 512 -n 1 -m topk:k=16 --dump".to_owned()),
        ("tuned", format!("{tune} topk --parameter k --range 8..16 --steps 2 -n 8")),
        ("shapes", format!("{tune} magicpig --target density=0.2 --prompts 1 --queries 1 --draws 1")),
        ("schedules", format!("{tune} topk:k=64 --schedules --prompts 1")),
    ] {
        let words: Vec<&str> = args.split(' ').chain(["--out", out]).collect();
        run(temp.path(), &words).ok();
        let list = temp.path().join(out).join(".written");
        let names = || fs::read_to_string(&list).unwrap().lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let written = names();
        fs::remove_file(&list).unwrap();
        run(temp.path(), &[&words[..], &["--overwrite"]].concat()).ok();
        assert_eq!(names(), written, "{out}");
    }
}

// ---- folders that disappear ----

#[test]
fn a_run_says_what_became_of_its_folder() {
    type Happens = fn(&Path);
    let table: [(Happens, &str, &str); 5] = [
        (
            |dir| fs::rename(dir.join("r"), dir.join("moved")).unwrap(),
            "r was moved or removed during the run",
            "--resume",
        ),
        (|dir| fs::remove_dir_all(dir.join("r")).unwrap(), "the records in it are gone", "run it again"),
        (
            |dir| fs::remove_file(dir.join("r/samples.jsonl")).unwrap(),
            "samples.jsonl was moved or removed",
            "run it again",
        ),
        (
            |dir| fs::File::options().write(true).open(dir.join("r/samples.jsonl")).unwrap().set_len(100).unwrap(),
            "samples.jsonl was shortened by another program during the run",
            "resume with --resume",
        ),
        (
            |dir| {
                fs::rename(dir.join("r"), dir.join("moved")).unwrap();
                fs::create_dir(dir.join("r")).unwrap();
                fs::copy(dir.join("moved/samples.jsonl"), dir.join("r/samples.jsonl")).unwrap();
            },
            "samples.jsonl was replaced by another file during the run",
            "--resume",
        ),
    ];
    for (happens, what, hint) in table {
        let temp = TempDir::new().unwrap();
        let child = long_run(temp.path(), "r", "40");
        happens(temp.path());
        let ran = ended(child);
        ran.fails(1, what, hint);
        let moved = temp.path().join("moved/samples.jsonl");
        if moved.exists() && cfg!(target_os = "linux") {
            ran.check(
                ran.stderr.contains("its records are in ") && ran.stderr.contains("moved"),
                "where the records are",
            );
            assert!(records(&moved) >= 2);
        }
        assert!(!temp.path().join("r/summary.csv").exists(), "nothing is drawn of another folder");
    }
}

#[test]
fn a_lock_that_is_removed_lets_no_second_run_in() {
    let temp = TempDir::new().unwrap();
    let mut child = long_run(temp.path(), "r", "400");
    fs::remove_file(temp.path().join("r/.lock")).unwrap();
    let second = run(temp.path(), &[&TINY[..], &["--out", "r", "--resume"]].concat());
    second.fails(2, "is being written by process", "wait for it to end");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn runs_of_one_second_have_folders_of_their_own() {
    let temp = TempDir::new().unwrap();
    let children: Vec<Child> = (0..4).map(|_| begun(spattn(temp.path()).args(TINY))).collect();
    children.into_iter().for_each(|child| drop(ended(child).ok()));
    let folders: Vec<PathBuf> =
        fs::read_dir(temp.path().join("results")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 4, "{folders:?}");
    folders.iter().for_each(|folder| assert_eq!(records(&folder.join("samples.jsonl")), 2));
}

// ---- records ----

#[test]
fn no_end_of_line_and_no_mark_costs_a_record() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TWO[..], &["--out", "r"]].concat()).ok();
    let samples = dir.join("r/samples.jsonl");
    let whole = fs::read_to_string(&samples).unwrap();
    let scores = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let expected = scores(&run(dir, &["report", "r", "--json", "--no-times"]).ok().stdout);
    for text in
        [whole.replace('\n', "\r"), whole.replace('\n', "\r\n"), format!("\u{feff}{}", whole.replace('\n', "\r"))]
    {
        fs::write(&samples, &text).unwrap();
        assert_eq!(scores(&run(dir, &["report", "r", "--json", "--no-times"]).ok().stdout), expected);
        let resumed = run(dir, &[&TWO[..], &["--out", "r", "--resume"]].concat()).ok();
        resumed.check(!resumed.stderr.contains("torn"), "nothing is cut off");
        assert_eq!(fs::read_to_string(&samples).unwrap(), text, "and nothing is run again");
    }
}

// ---- pipes ----

fn shell(dir: &Path, line: &str) -> Ran {
    let program = env!("CARGO_BIN_EXE_spattn");
    let mut command = Command::new("bash");
    command.current_dir(dir).args(["-c", &line.replace("spattn", program)]).stdin(Stdio::null());
    ended(begun(command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("NO_COLOR", "1")))
}

#[test]
fn rows_texts_and_configs_come_through_pipes_too() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    fs::write(dir.join("rows.jsonl"), ROWS).unwrap();
    fs::write(dir.join("text.txt"), "A rose is a rose is a rose. ".repeat(60)).unwrap();
    fs::write(
        dir.join("c.toml"),
        "tasks = [\"ruler/niah_single_1\"]\nlengths = [512]\nsamples = 1\nmethods = [\"topk:k=16\"]\n",
    )
    .unwrap();
    let scores = |ran: Ran| -> Vec<Value> {
        let rows: Vec<Value> = serde_json::from_str(&ran.ok().stdout).unwrap();
        rows.iter().map(|row| serde_json::json!([row["method"], row["score"], row["n"]])).collect()
    };
    // A pipe gives the same result as the file.
    for (file, pipes) in [
        (
            format!("spattn eval --json -q -m topk:k=16 -t jsonl:rows.jsonl:{METRIC} --out a"),
            vec![
                format!("cat rows.jsonl | spattn eval --json -q -m topk:k=16 -t jsonl:/dev/stdin:{METRIC} --out b"),
                format!("spattn eval --json -q -m topk:k=16 -t jsonl:<(sleep 0.2; cat rows.jsonl):{METRIC} --out c"),
                format!("spattn eval --json -q -m topk:k=16 -t jsonl:/dev/stdin:{METRIC} --out d < rows.jsonl"),
                format!(
                    "mkfifo p; cat rows.jsonl > p & spattn eval --json -q -m topk:k=16 -t jsonl:p:{METRIC} --out e"
                ),
            ],
        ),
        (
            "spattn eval --json -q -m topk:k=16 -t ppl/file:text.txt:scored=32 -l 128 --out f".to_owned(),
            vec!["spattn eval --json -q -m topk:k=16 -t ppl/file:<(cat text.txt):scored=32 -l 128 --out g".to_owned()],
        ),
        (
            "spattn eval --json -q --config c.toml --out h".to_owned(),
            vec![
                "spattn eval --json -q --config <(cat c.toml) --out i".to_owned(),
                "cat c.toml | spattn eval --json -q --config /dev/stdin --out j".to_owned(),
            ],
        ),
    ] {
        let expected = scores(shell(dir, &file));
        assert!(!expected.is_empty());
        for pipe in pipes {
            assert_eq!(scores(shell(dir, &pipe)), expected, "{pipe}");
        }
    }
    let scored = "cat p.jsonl | spattn score /dev/stdin --metric exact_match --json";
    fs::write(dir.join("p.jsonl"), "{\"prediction\": \"x\", \"answers\": [\"x\"]}\n").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&shell(dir, scored).ok().stdout).unwrap()["score"], 100.0);
}

#[test]
fn a_pipe_that_nobody_writes_to_is_told_of_and_can_be_left() {
    let temp = TempDir::new().unwrap();
    assert!(Command::new("mkfifo").arg(temp.path().join("p")).status().unwrap().success());
    let child = begun(spattn(temp.path()).args(["eval", "--quiet", "-t", "jsonl:p", "--out", "o"]));
    std::thread::sleep(Duration::from_secs(5));
    // Ctrl-C may be ignored in the tests' environment, as in the background of a shell.
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let started = Instant::now();
    let ran = ended(child);
    ran.check(ran.stderr.contains("waiting for something to be written to p; Ctrl-C ends it"), "what it waits for");
    ran.check(ran.status != Some(0) && started.elapsed() < Duration::from_secs(10), "it ends");
}

#[test]
fn a_pipe_without_end_is_refused() {
    let temp = TempDir::new().unwrap();
    let ran = shell(temp.path(), "spattn eval --config <(yes '# nothing')");
    ran.fails(2, "cannot read config /dev/fd/", "give a TOML file");
    ran.check(ran.stderr.contains("more than 16 MiB came through the pipe"), "its limit");
}

// ---- byte order marks ----

#[test]
fn a_mark_in_front_of_a_models_files_is_no_fault() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    fs::create_dir(dir.join("m")).unwrap();
    for name in
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
    {
        let bytes = fs::read(builtin.join(name)).unwrap();
        let mark: &[u8] = if name.ends_with(".json") { b"\xef\xbb\xbf" } else { b"" };
        fs::File::create(dir.join("m").join(name)).unwrap().write_all(&[mark, &bytes].concat()).unwrap();
    }
    run(dir, &[&TINY[..], &["--model", "m", "--out", "r"]].concat()).ok();
}

#[test]
fn a_prompt_that_is_damaged_is_named_with_what_to_do() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TINY[..], &["--out", "r", "--keep-prompts"]].concat()).ok();
    let prompt = files(&dir.join("r/prompts")).into_keys().next().unwrap();
    fs::write(&prompt, b"\x1f\x8b torn").unwrap();
    run(dir, &["report", "r"]).fails(2, prompt.file_name().unwrap().to_str().unwrap(), "delete it");
    fs::remove_file(&prompt).unwrap();
    run(dir, &["report", "r"]).ok();
}

#[test]
fn a_name_that_was_cut_short_does_not_hold_up_a_resume() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path();
    run(dir, &[&TINY[..], &["--out", "r"]].concat()).ok();
    for cut in ["", "{", "{\"host\":\"node7\",\"boot\":\"1"] {
        fs::write(dir.join("r/.owner"), cut).unwrap();
        let started = Instant::now();
        run(dir, &[&TINY[..], &["--out", "r", "--resume"]].concat()).ok();
        assert!(started.elapsed() < Duration::from_secs(20), "{cut:?} took {:?}", started.elapsed());
    }
}
