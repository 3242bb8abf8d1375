//! The program's output: readers that close it, full disks, and completion in shells.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spattn");
/// The arguments of a run that takes about a second.
const TINY: [&str; 8] = ["-t", "ruler/niah_single_1", "-l", "512", "-n", "2", "-m", "topk:k={8,16}"];

fn spattn(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
    command.env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    command
}

/// Standard error without the self-checks' warning about the small number of examples.
fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    stderr.lines().filter(|line| !line.starts_with("warning: only ")).map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn ended(output: &Output, status: i32, stderr: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(if stderr.is_empty() { said.is_empty() } else { said.contains(stderr) }, "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// The folder of a finished run, which is made only once.
fn finished_run() -> &'static str {
    static RUN: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, dir) = RUN.get_or_init(|| {
        let temp = TempDir::new().unwrap();
        let dir = temp.path().join("run");
        let output = spattn(&["eval", "--out", dir.to_str().unwrap()]).args(TINY).output().unwrap();
        ended(&output, 0, "");
        (temp, dir)
    });
    dir.to_str().unwrap()
}

/// Runs a command whose standard output is closed.
fn with_closed_output(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

// ---- readers that close the output ----

#[test]
fn whatever_prints_ends_quietly_when_nobody_reads_on() {
    let run = finished_run();
    let samples = format!("{run}/samples.jsonl");
    let temp = TempDir::new().unwrap();
    let (calibration, data) = (temp.path().join("c"), temp.path().join("d"));
    let (calibration, data) = (calibration.to_str().unwrap(), data.to_str().unwrap());
    let commands: [&[&str]; 17] = [
        &["list", "tasks"],
        &["list", "methods", "--json"],
        &["list", "configs"],
        &["doctor"],
        &["doctor", "--json"],
        &["completions", "zsh"],
        &["--help"],
        &["eval", "--help"],
        &["report", run],
        &["report", run, "--json"],
        &["report", run, "--rows", "k", "--columns", "task", "--format", "csv"],
        &["score", run],
        &["score", &samples, "--json"],
        &["data", "list", "--data", data],
        &["data", "export-eval", "-t", "ruler/niah_single_1", "-l", "256", "-n", "100000000"],
        &["sweep", "quick", "--dry-run", "-t", "ruler/niah_single_1", "-l", "512"],
        &["calibrate", "double_sparsity", "--tokens", "256", "--length", "256", "--quiet", "--out", calibration],
    ];
    for args in commands {
        let output = with_closed_output(spattn(args));
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(said(&output), "", "{args:?}");
    }
    assert!(Path::new(calibration).join("double_sparsity.safetensors").is_file(), "what was to be made is made");
}

#[test]
fn a_reader_of_the_first_line_ends_an_export() {
    let args = ["data", "export-eval", "-t", "ruler/niah_single_1", "-l", "256", "-n", "100000000"];
    let mut child = spattn(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with('{') && first.ends_with("}\n"), "{first}");
    ended(&child.wait_with_output().unwrap(), 0, "");
}

#[test]
fn a_run_and_a_report_leave_their_files_when_nobody_reads() {
    let temp = TempDir::new().unwrap();
    let (run, report) = (temp.path().join("run"), temp.path().join("report"));
    let mut eval = spattn(&["eval", "--json", "--out", run.to_str().unwrap()]);
    eval.args(TINY);
    ended(&with_closed_output(eval), 0, "");
    ended(&with_closed_output(spattn(&["report", finished_run(), "--out", report.to_str().unwrap()])), 0, "");
    for file in ["summary.csv", "summary.md", "report.html"] {
        assert!(run.join(file).is_file() && report.join(file).is_file(), "{file}");
    }
}

#[test]
fn a_closed_pipe_does_not_hide_that_a_part_failed() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("run");
    let mut sweep = spattn(&["sweep", "quick", "--out", out.to_str().unwrap(), "-t", "jsonl:/nonexistent.jsonl"]);
    sweep.args(TINY);
    ended(&with_closed_output(sweep), 1, "failed: ");
}

#[test]
fn closed_standard_error_is_no_panic() {
    for (args, status) in [(&["eval", "-t", "nosuch"][..], 2), (&["report", "/nonexistent"], 2)] {
        let mut child = spattn(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(status), "{args:?}");
    }
}

#[test]
fn standard_output_on_a_full_disk_is_one_line() {
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else {
        return eprintln!("SKIPPED: there is no /dev/full here");
    };
    let export = ["data", "export-eval", "-t", "ruler/niah_single_1", "-l", "256", "-n", "3"];
    for args in
        [&["list", "tasks"][..], &["score", finished_run(), "--json"], &["report", finished_run(), "--json"], &export]
    {
        let output = spattn(args).stdout(full.try_clone().unwrap()).output().unwrap();
        ended(&output, 1, "error: cannot write to standard output: No space left on device");
        assert_eq!(said(&output).lines().count(), 1, "{args:?}");
    }
}

// ---- full disks ----

/// Each file below a folder with its bytes, except for the list of files, which grows line by line.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with(".written") => {}
                false => {
                    let name = path.strip_prefix(dir).unwrap().display().to_string();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

/// A file system of 2 MB, removed at the end of the test; `None` if the test may not create one.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(dir.path());
        let mounted = mount.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
        mounted.then(|| Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Runs a command whose files cannot be larger than `kib`.
fn with_largest_file(kib: usize, args: &[&str]) -> Output {
    let mut limited = Command::new("bash");
    limited.args(["-c", "trap '' XFSZ; ulimit -f \"$0\" && exec \"$@\"", &kib.to_string(), PROGRAM]).args(args);
    limited.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").output().unwrap()
}

/// Checks that the error names a file below the folder, and that existing files equal those in `whole`.
#[track_caller]
fn check_whole_files(output: &Output, dir: &Path, whole: &BTreeMap<String, Vec<u8>>) {
    ended(output, 1, &format!("error: cannot write {}/", dir.display()));
    for (name, bytes) in files(dir) {
        assert!(whole.get(&name) == Some(&bytes), "{name} with {} bytes is no file of the report", bytes.len());
    }
}

#[test]
fn a_full_disk_leaves_no_half_written_report() {
    let Some(disk) = SmallDisk::mount() else {
        return eprintln!("SKIPPED: this user may not mount a small file system");
    };
    let (run, temp) = (finished_run(), TempDir::new().unwrap());
    let report = |to: &Path| spattn(&["report", run, "--out", to.to_str().unwrap()]).output().unwrap();
    ended(&report(temp.path()), 0, "");
    let whole = files(temp.path());
    assert!(whole.contains_key("report.html") && whole.len() > 8, "{:?}", whole.keys());
    let needed = whole.values().map(|bytes| bytes.len().div_ceil(4096) * 4).sum::<usize>();
    for free in [4, 16, 64, needed / 2, needed * 9 / 10] {
        let (ballast, out) = (disk.0.path().join("ballast"), disk.0.path().join("out"));
        fs::write(&ballast, vec![0; (2048 - free) * 1024]).unwrap();
        check_whole_files(&report(&out), &out, &whole);
        let _ = fs::remove_dir_all(out);
    }
}

#[test]
fn files_that_cannot_grow_are_left_out_whole() {
    let (run, temp) = (finished_run(), TempDir::new().unwrap());
    ended(&spattn(&["report", run, "--out", temp.path().to_str().unwrap()]).output().unwrap(), 0, "");
    let whole = files(temp.path());
    let out = temp.path().join("short");
    let report = ["report", run, "--out", out.to_str().unwrap()];
    check_whole_files(&with_largest_file(8, &report), &out, &whole);
    // An existing file stays unchanged.
    fs::write(out.join("report.html"), "before").unwrap();
    ended(&with_largest_file(8, &report), 1, "report.html: File too large");
    assert_eq!(fs::read(out.join("report.html")).unwrap(), b"before");

    let calibration = temp.path().join("calibration");
    let calibrate = ["calibrate", "double_sparsity", "--tokens", "256", "--length", "256", "--out"];
    let calibrate = [&calibrate[..], &[calibration.to_str().unwrap()]].concat();
    ended(&with_largest_file(8, &calibrate), 1, "double_sparsity.safetensors: File too large");
    assert!(files(&calibration).is_empty());

    let rows = temp.path().join("rows.jsonl");
    let export = ["data", "export-eval", "-t", "ruler/niah_single_1", "-l", "512", "-n", "20", "--out"];
    let export = [&export[..], &[rows.to_str().unwrap()]].concat();
    ended(&with_largest_file(8, &export), 1, "rows.jsonl: File too large");
    assert!(!rows.exists() && fs::read_dir(temp.path()).unwrap().all(|e| !e.unwrap().path().ends_with(".part")));
}

#[test]
fn a_manifest_that_does_not_fit_is_named() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("run");
    let eval = ["eval", "--out", out.to_str().unwrap(), "-t", "ruler/niah_single_1", "-l", "512", "-n", "1"];
    // A manifest has at least one line for each method.
    let methods = ["-m", "topk:k=1..40", "-m", "quest:page=16,k=16..80"];
    ended(&with_largest_file(8, &[&eval[..], &methods].concat()), 1, "manifest.json: File too large");
    assert!(
        files(&out).keys().all(|name| [".lock", "samples.jsonl"].contains(&name.as_str())),
        "{:?}",
        files(&out).keys()
    );
}

// ---- shells ----

fn script(shell: &str) -> (TempDir, PathBuf) {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("_spattn");
    fs::write(&path, spattn(&["completions", shell]).output().unwrap().stdout).unwrap();
    (temp, path)
}

/// Returns what a shell offers at the end of a command line; `name` is expected. `None` if the shell is not installed.
type Complete = fn(&Path, &str, &str) -> Option<String>;

fn bash(script: &Path, line: &str, _: &str) -> Option<String> {
    let complete = r#"source "$0"; read -ra COMP_WORDS <<< "$1"; [[ $1 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$1; COMP_POINT=${#1}
        _spattn spattn "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    shell_output(Command::new("bash").args(["--norc", "-c", complete]).arg(script).arg(line))
}

fn fish(script: &Path, line: &str, _: &str) -> Option<String> {
    shell_output(
        Command::new("fish")
            .args(["--no-config", "-c", "source $argv[1]; complete -C \"$argv[2]\""])
            .arg(script)
            .arg(line),
    )
}

/// Zsh completes only on a terminal, which `zpty` provides. Its output is read until `name` appears, or for a limited time.
fn zsh(script: &Path, line: &str, name: &str) -> Option<String> {
    let complete = r#"zmodload zsh/zpty || exit 9
        zpty z zsh -f -i
        zpty -w z "PS1='>'; fpath=(${1:h} \$fpath); autoload -U compinit; compinit -u -D; LISTMAX=0; echo REA''DY"
        zpty -r z seen '*READY*'
        zpty -n -w z "$2"$'\t\t'
        seen=''
        for i in {1..60}; do
            sleep 0.25
            while zpty -r -t z chunk; do seen+=$chunk; done
            [[ $seen == *$3* ]] && break
        done
        print -r -- "$seen""#;
    shell_output(Command::new("zsh").args(["-f", "-c", complete, "zsh"]).arg(script).args([line, name]))
}

fn shell_output(command: &mut Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    child.wait().ok()?;
    Some(text)
}

#[test]
fn shells_complete_the_names_of_values() {
    let shells: [(&str, Complete); 3] = [("bash", bash), ("fish", fish), ("zsh", zsh)];
    let expected = [
        ("eval -t ruler/niah_mu", "ruler/niah_multikey_3"),
        ("eval --task mcq/m", "mcq/mmlu"),
        ("eval -m que", "quest"),
        ("sweep --method stream", "streaming_llm"),
        ("eval --model buil", "builtin"),
        ("eval --config bud", "budgets"),
        ("sweep len", "lengths"),
        ("score --metric qa_", "qa_f1"),
        ("score --dataset hotp", "hotpotqa"),
        ("data fetch wino", "winogrande"),
        ("calibrate lo", "loki"),
        ("list methods magic", "magicpig"),
        ("verify --model buil", "builtin"),
    ];
    for (shell, complete) in shells {
        let (_temp, script) = script(shell);
        for (line, name) in expected {
            let Some(offered) = complete(&script, &format!("spattn {line}"), name) else {
                eprintln!("SKIPPED: there is no {shell} here");
                break;
            };
            assert!(offered.contains(name), "{shell}: {line}: {offered}");
        }
    }
}

#[test]
fn shells_still_complete_files_where_a_value_may_be_one() {
    let shells: [(&str, Complete); 2] = [("fish", fish), ("zsh", zsh)];
    for (shell, complete) in shells {
        let (temp, script) = script(shell);
        fs::write(temp.path().join("matrix-of-mine.toml"), "").unwrap();
        let line = format!("spattn eval --config {}/matrix-", temp.path().display());
        match complete(&script, &line, "of-mine.toml") {
            Some(offered) => assert!(offered.contains("of-mine.toml"), "{shell}: {offered}"),
            None => eprintln!("SKIPPED: there is no {shell} here"),
        }
    }
}
