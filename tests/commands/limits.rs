//! Limits of the machine or its administrator: a command that needs more ends with one error line, never by a signal.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The program in a folder, run after a shell command, for example one that sets a limit.
fn under(setup: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{setup}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_spattn")]).args(args);
    command.current_dir(dir).env("HF_HUB_OFFLINE", "1").env("HF_HOME", dir).env_remove("RAYON_NUM_THREADS");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the program ended without a signal, and with exactly one error line if it failed.
#[track_caller]
fn ends(output: &Output, what: &str) {
    let text = said(output);
    assert_eq!(output.status.signal(), None, "{what}: {text}");
    assert!(matches!(output.status.code(), Some(0..=2)), "{what}: {:?}, {text}", output.status);
    let errors = text.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, usize::from(!output.status.success()), "{what}: {text}");
    assert!(!text.contains("panicked") && !text.contains("memory allocation of"), "{what}: {text}");
}

#[track_caller]
fn fails(output: &Output, status: i32, error: &str, hint: &str) {
    ends(output, error);
    let text = said(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    let line = text.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(line.contains(error), "{error}: {text}");
    assert!(text.lines().any(|line| line.starts_with("  hint: ") && line.contains(hint)), "{hint}: {text}");
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

// ---- memory ----

#[test]
fn weights_that_the_limit_does_not_hold_are_refused_by_every_command() {
    let dir = folder();
    let model = "random:llama-3.1-8b";
    // The published size: 8.03 billion numbers of 2 bytes, and the largest tensor, 128,256 x 4,096, once more.
    let error = "the weights of random:llama-3.1-8b take 17.1 GB of memory, and the limit on address space (`ulimit -v`) leaves";
    let eval = ["eval", "--random-weights", "llama-3.1-8b", "-l", "1K", "-n", "1", "--threads", "2"];
    let sweep = ["sweep", "quick", "--model", model, "-l", "1K", "-n", "1", "--threads", "2"];
    let dry = ["sweep", "quick", "--model", model, "-l", "1K", "--threads", "2", "--dry-run"];
    let tune =
        ["tune", "-m", "quest", "--model", model, "-t", "ruler/vt", "-l", "1K", "--threads", "2", "--out", "tune"];
    let calibrate = ["calibrate", "-m", "loki", "--model", model, "--threads", "2", "--out", "cal"];
    for args in [&eval[..], &sweep, &dry, &tune, &calibrate] {
        let start = Instant::now();
        fails(&under("ulimit -v 3000000", dir.path(), args).output().unwrap(), 2, error, "choose a smaller model");
        assert!(start.elapsed() < Duration::from_secs(60), "{args:?}");
    }
    let analyze = ["analyze", "mass", "--model", model, "-l", "1K", "--threads", "2", "--out", "a"];
    let error = "random:llama-3.1-8b reading 1024 tokens takes";
    fails(&under("ulimit -v 3000000", dir.path(), &analyze).output().unwrap(), 2, error, "--length");
    let bench = ["bench", "decode", "-c", "1K", "--threads", "2", "--out", "b"];
    let error = "of memory, and the limit on address space (`ulimit -v`) leaves";
    fails(&under("ulimit -v 3000000", dir.path(), &bench).output().unwrap(), 2, error, "shorter contexts");
}

#[test]
fn an_example_that_the_limit_does_not_hold_is_refused() {
    let dir = folder();
    let args = ["eval", "-t", "ruler/niah_single_1", "-l", "32K", "-n", "1", "--threads", "2", "--out", "run"];
    let error = "the length asked for, 32768 tokens, with the weights of builtin takes";
    fails(&under("ulimit -v 300000", dir.path(), &args).output().unwrap(), 2, error, "--length");
    assert!(!dir.path().join("run").exists(), "before anything is written");
}

#[test]
fn absurd_configs_are_refused_on_any_machine() {
    let dir = folder();
    let config = |sizes: &[(&str, u64)]| {
        let mut config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 8192, "hidden_size": 64, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
            "max_position_embeddings": 4096, "torch_dtype": "float32",
        });
        sizes.iter().for_each(|(key, value)| config[*key] = (*value).into());
        fs::write(dir.path().join("c.json"), config.to_string()).unwrap();
    };
    let keys = [
        ("vocab_size", 1 << 24),
        ("hidden_size", 1 << 18),
        ("intermediate_size", 1 << 20),
        ("num_hidden_layers", 1 << 12),
        ("num_attention_heads", 1 << 12),
        ("num_key_value_heads", 1 << 12),
        ("head_dim", 1 << 12),
    ];
    let run =
        || under(":", dir.path(), &["eval", "--random-weights", "c.json", "-l", "1K", "-n", "1"]).output().unwrap();
    for (key, most) in keys {
        for value in [most + 1, 1_000_000_000, u64::from(u32::MAX), u64::MAX] {
            config(&[(key, value)]);
            ends(&run(), key);
            assert!(
                said(&run()).contains(&format!("`{key}`: must be at most {most}, got {value}")),
                "{}",
                said(&run())
            );
        }
    }
    // All sizes at their maximum: the layers alone take more than 2^58 bytes.
    config(&keys);
    fails(&run(), 2, "the weights of random:c.json take", "--dtype bf16");
}

#[test]
fn no_limit_on_memory_ends_a_run_by_a_signal() {
    let dir = folder();
    let mut ended = Vec::new();
    for megabytes in [150, 175, 200, 225, 250, 300, 350, 400, 500, 700] {
        let out = format!("run{megabytes}");
        let args = ["eval", "-t", "ruler/niah_single_1", "-l", "2K", "-n", "1", "--threads", "2", "--out", &out];
        let output = under(&format!("ulimit -v {megabytes}000"), dir.path(), &args).output().unwrap();
        // If the limit is too small to start the program, it cannot report that.
        if said(&output).contains("error while loading") || output.status.code() == Some(127) {
            continue;
        }
        ends(&output, &out);
        ended.push(output.status.code());
    }
    assert!(ended.contains(&Some(0)) && ended.iter().any(|status| *status != Some(0)), "{ended:?}");
}

// ---- threads ----

/// A command with a limit on processes, which includes threads, in a world-readable folder with a copy of the program. Processes are
/// counted by user, so root runs it as `user`, which is different in each test.
fn with_processes(most: usize, user: u32, dir: &Path, args: &[&str]) -> Command {
    // Limits on processes do not apply to root.
    let is_root = fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line == "Uid:\t0\t0\t0\t0");
    let program = dir.join("spattn");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_spattn"), &program).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new("prlimit");
    command.args([&format!("--nproc={most}:{most}"), "--"]).current_dir(dir);
    if is_root {
        command.args(["setpriv", &format!("--reuid={user}"), "--regid=65534", "--clear-groups"]);
    }
    command.arg(program).args(args);
    command
}

#[test]
fn an_address_that_cannot_be_looked_up_for_lack_of_a_thread_is_one_line() {
    let dir = folder();
    let run = |most: usize| {
        let mut command =
            with_processes(most, 65_533, dir.path(), &["eval", "--model", "a/b", "-n", "1", "--threads", "2"]);
        command.env("HF_ENDPOINT", "http://localhost:9").env("HOME", dir.path()).env_remove("HF_HUB_OFFLINE");
        command.output()
    };
    let mut said = Vec::new();
    for most in 1..=6 {
        let Ok(output) = run(most) else {
            println!("skipped: no process can be run under a limit here");
            return;
        };
        assert_eq!(output.status.code(), Some(1), "{most}: {output:?}");
        said.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    assert!(said.iter().all(|said| said.contains("error: ") && !said.contains("panicked")), "{said:?}");
    let has = |part: &str| said.iter().any(|said| said.contains(part));
    // Other processes of the user count too, so there may be no limit at which only this thread cannot start.
    assert!(has("cannot start threads: ") || has("(failed to spawn thread"), "{said:?}");
}

#[test]
fn where_there_are_no_threads_every_command_says_so() {
    let dir = folder();
    let args = |args: &[&str]| with_processes(1, 65_534, dir.path(), args);
    if !args(&["list", "methods"]).output().is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no process can be run under a limit here");
        return;
    }
    for line in [
        "eval -n 1",
        "eval -n 1 --threads 2",
        "sweep quick -n 1",
        "tune -m quest -t ruler/vt -l 1K --out t",
        "bench kernels --out b",
        "analyze mass --out a",
        "calibrate -m loki --out c",
        "report .",
        "status .",
        "score p.jsonl",
        "doctor",
        "data list",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = args(&words).output().unwrap();
        fails(&output, 1, "cannot start threads: ", "ulimit -u");
    }
}

// ---- sizes of files, and terminals that are closed ----

#[test]
fn a_limit_on_the_size_of_files_is_told_as_a_full_disk_is() {
    let dir = folder();
    let args = ["eval", "-t", "ruler/niah_single_1", "-l", "512", "-n", "4", "--threads", "2", "--out", "run"];
    // The shell counts in blocks of 512 or 1,024 bytes.
    let output = under("ulimit -f 16", dir.path(), &args).output().unwrap();
    fails(&output, 1, "samples.jsonl: File too large", "--resume");
    fails(&output, 1, "samples.jsonl: File too large", "raise `ulimit -f`");
    let text = fs::read_to_string(dir.path().join("run/samples.jsonl")).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() > 2, "whole records are kept");
    assert!(!dir.path().join("run/.owner").exists(), "and the folder is let go");
    let again = under(":", dir.path(), &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert!(again.status.success(), "{}", said(&again));
    for line in ["report run --out drawn", "bench kernels --shape builtin -c 640 --rounds 3 --out timed"] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = under("ulimit -f 1", dir.path(), &words).output().unwrap();
        fails(&output, 1, "File too large", "raise `ulimit -f`");
    }
}

/// Starts a run with this many examples, sends it a signal once it has records, and waits for its end.
fn interrupted(setup: &str, signal: &str, dir: &Path, samples: &str) -> Output {
    let args =
        ["eval", "-t", "ruler/niah_single_1", "-l", "512", "-n", samples, "--threads", "2", "--out", "run", "--quiet"];
    let mut run = under(setup, dir, &args);
    let child = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while fs::read_to_string(dir.join("run/samples.jsonl")).map_or(0, |text| text.lines().count()) < 3 {
        assert!(start.elapsed() < Duration::from_secs(120), "no records");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

#[test]
fn a_closed_terminal_ends_a_run_with_its_records_kept_unless_it_was_told_to_outlive_it() {
    if !Command::new("env").args(["--default-signal=HUP", "true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: this `env` sets no signals");
        return;
    }
    let dir = folder();
    let output = interrupted("set -- \"$0\" \"$@\"; exec env --default-signal=HUP \"$@\"", "-HUP", dir.path(), "60");
    assert_eq!(output.status.code(), Some(75), "{:?}, {}", output.status, said(&output));
    let text = said(&output);
    assert!(text.contains("told to stop: ") && text.contains("records are kept; go on with"), "{text}");
    assert!(!dir.path().join("run/.owner").exists());
    // Started as by `nohup`, it runs to its end.
    let dir = folder();
    let output = interrupted("trap '' HUP", "-HUP", dir.path(), "6");
    assert!(output.status.success(), "{:?}, {}", output.status, said(&output));
}

// ---- oversized matrices ----

#[test]
fn thousands_of_missing_models_and_a_million_seeds_are_told_at_once() {
    let dir = folder();
    let list = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
    let sweep = |text: String| {
        fs::write(dir.path().join("c.toml"), text).unwrap();
        let start = Instant::now();
        // A tenth of the memory for a copy of the list for each model.
        let output =
            under("ulimit -v 1500000", dir.path(), &["sweep", "c.toml", "--dry-run", "--threads", "2"]).output();
        assert!(start.elapsed() < Duration::from_secs(60));
        output.unwrap()
    };
    let output = sweep(format!("model = [{}]", list(10_000, &|i| format!("'./no{i}'"))));
    fails(&output, 2, "the model folder `./no0` does not exist", "config.json");
    let text = said(&output);
    assert!(text.starts_with("note: ./no0 cannot be run: the model folder `./no0` does not exist\n"), "{text}");
    assert!(text.lines().count() < 120 && text.contains("failed: 9899 more\n"), "{text}");
    let output = sweep(format!("seed = [{}]", list(1_000_000, &|i| i.to_string())));
    fails(&output, 2, "c.toml:1: `seed`: 1000000 values were given", "10000 at most");
    // Each seed would run on each model under each protocol.
    let seeds = list(6000, &|i| i.to_string());
    let output = sweep(format!("seed = [{seeds}]\nsparse_from = ['decode', 'question']"));
    fails(&output, 2, "1 models, 6000 seeds and 2 protocols were asked for", "into several runs");
    // Of thousands of methods, only some are probed.
    let methods = list(3000, &|i| (i + 1).to_string());
    let output = sweep(format!("methods = ['streaming_llm:window={{{methods}}}']\nsamples = 1"));
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("3001 methods"));
}
