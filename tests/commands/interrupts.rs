//! Ctrl-C in every long command: it is answered within a second or two, with one line that says what is kept, and exit status 130. Also,
//! what bars and logs say about the remaining time.

#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn spattn(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(args).current_dir(dir).env("HF_HOME", "/nonexistent/hf").env_remove("HF_HUB_CACHE");
    command.env_remove("HF_HUB_OFFLINE").env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
fn done(dir: &Path, args: &[&str]) -> Output {
    let output = spattn(dir, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Presses Ctrl-C, and returns what the program says. It has two seconds, and more on a busy machine.
fn interrupted(child: Child) -> String {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    let (took, said) = (start.elapsed(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(took < Duration::from_secs(4), "{took:?}: {said}");
    said
}

/// The only line that begins with `interrupted: `, which must be the last one.
fn answer(said: &str) -> &str {
    let lines: Vec<&str> = said.lines().collect();
    let count = lines.iter().filter(|line| line.starts_with("interrupted: ")).count();
    let last = lines.last().copied().unwrap_or_default();
    assert!(count == 1 && last.starts_with("interrupted: "), "{said}");
    last
}

fn wait_until(child: &mut Child, what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before {what}");
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_calibration_keeps_the_blocks_that_were_read_and_goes_on_to_the_same_files() {
    let dir = TempDir::new().unwrap();
    let args = |out: &'static str| {
        ["calibrate", "loki", "double_sparsity", "--tokens", "16K", "--length", "1K", "-q", "--out", out]
    };
    let (whole, stopped) = (dir.path().join("whole"), dir.path().join("stopped"));
    let checkpoint = |name: &str| stopped.join(format!("{name}.checkpoint"));
    let mut child = spattn(dir.path(), &args("stopped")).spawn().unwrap();
    wait_until(&mut child, "the first checkpoint", || checkpoint("loki").exists());
    let said = interrupted(child);
    let line = answer(&said);
    let kept: usize = line.split(' ').nth(1).unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
    let rest = "of 16 blocks of double_sparsity, loki are kept; go on with the same command and --resume";
    assert!((1..16).contains(&kept) && line == format!("interrupted: {kept} {rest}"), "{line}");
    // No file that is kept has the name of a calibration.
    let names = || -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&stopped).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["double_sparsity.checkpoint", "loki.checkpoint"], "and nothing unfinished");
    let renamed = dir.path().join("renamed");
    fs::create_dir(&renamed).unwrap();
    fs::copy(checkpoint("loki"), renamed.join("loki.safetensors")).unwrap();
    let eval = ["eval", "-q", "-t", "ruler/vt", "-l", "512", "-n", "1", "-m", "loki", "--out", "run"];
    let refused = spattn(dir.path(), &[&eval[..], &["--calibration", "renamed"]].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("loki.checkpoint"), "{said}");

    done(dir.path(), &[&args("stopped")[..], &["--resume"]].concat());
    done(dir.path(), &args("whole"));
    assert_eq!(names(), ["double_sparsity.safetensors", "loki.safetensors"]);
    for name in names() {
        assert!(
            fs::read(whole.join(&name)).unwrap() == fs::read(stopped.join(&name)).unwrap(),
            "{name}: the same bits"
        );
    }
}

#[test]
fn a_calibration_without_a_whole_block_says_that_nothing_is_kept() {
    let dir = TempDir::new().unwrap();
    let args = ["calibrate", "loki", "--tokens", "64K", "--length", "32K", "--out", "out"];
    let mut child = spattn(dir.path(), &args).spawn().unwrap();
    wait_until(&mut child, "the folder", || dir.path().join("out").exists());
    std::thread::sleep(Duration::from_millis(300));
    let said = interrupted(child);
    assert_eq!(answer(&said), "interrupted: nothing is kept, because no block of loki was read to its end");
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
}

#[test]
fn every_long_command_answers_at_once() {
    let dir = TempDir::new().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", server.local_addr().unwrap());
    let cases: [(&[&str], &str); 8] = [
        // Stopped in the middle of the first prompt.
        (&["eval", "-t", "ruler/vt", "-l", "32K", "-n", "9", "-m", "topk", "--out", "e"], "nothing was "),
        (&["analyze", "mass", "-t", "ruler/vt", "-l", "16K", "-n", "9", "--out", "a"], "nothing was written"),
        (&["bench", "attention", "-c", "32K", "--rounds", "9999", "--out", "b"], "nothing was written"),
        (
            &["data", "export-eval", "-t", "ruler/vt", "-l", "32K", "-n", "9999", "--out", "x.jsonl"],
            "no file was written",
        ),
        (&["data", "fetch", "squad", "--data", "d", "--from", &silent], "what was downloaded is kept; go on"),
        (&["reproduce", "topk/figure-5", "--builtin", "--out", "p"], "what was measured is kept; go on with"),
        (
            &["tune", "-m", "magicpig", "--target", "density=0.2", "-t", "ruler/vt", "-l", "16K", "--prompts", "9"],
            "what was measured is kept; go on with the same command and --resume",
        ),
        (&["eval", "--model", "org/model", "--out", "m"], "nothing was run yet; what was downloaded is kept"),
    ];
    for (args, kept) in cases {
        let mut command = spattn(dir.path(), args);
        let child = command.env("HF_ENDPOINT", &silent).env("HF_HOME", dir.path().join("hf")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let said = interrupted(child);
        assert!(answer(&said).starts_with(&format!("interrupted: {kept}")), "{args:?}: {said}");
    }
    for file in ["x.jsonl", "b/bench.json", "a/analyze.json"] {
        assert!(!dir.path().join(file).exists(), "{file}");
    }
    let left =
        |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.file_name()).collect::<Vec<_>>();
    assert!(!left(dir.path()).iter().any(|name| name.to_string_lossy().ends_with(".part")), "{:?}", left(dir.path()));
}

/// On a terminal, the bar says what is being read until the remaining time can be estimated; then it says that in plain words.
#[test]
fn a_bar_says_nothing_of_the_time_before_there_is_a_basis() {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new("script");
    let shell = "exec \"$PROGRAM\" eval -t ruler/vt,ruler/niah_single_1 -l 2K -n 6 -m topk:k=8 --out run";
    command.args(["-qec", shell, "/dev/null"]).current_dir(dir.path()).stdin(Stdio::null());
    command.env("PROGRAM", env!("CARGO_BIN_EXE_spattn")).env("HF_HUB_OFFLINE", "1").env("TERM", "xterm");
    let Ok(output) = command.output() else {
        return eprintln!("SKIPPED: there is no `script` here to make a terminal");
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let bars: Vec<&str> = said.split(['\r', '\n']).filter(|line| line.contains(['░', '█'])).collect();
    assert!(bars.iter().any(|bar| bar.contains("reading the first prompt ...")), "{bars:?}");
    let with_time: Vec<&&str> = bars.iter().filter(|bar| bar.contains(" left")).collect();
    assert!(!with_time.is_empty(), "{bars:?}");
    for bar in with_time {
        assert!(bar.contains(" %, about ") || bar.contains(" %, a few seconds left"), "{bar}");
        assert!(!bar.contains(" 0 %") && !bar.contains(" h left"), "{bar}");
    }
}

#[test]
fn a_dry_run_needs_no_weights_and_fails_where_the_run_would() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(ours.join(file), model.join(file)).unwrap();
    }
    // The model's context is shorter than the paper's table requires.
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    fs::write(model.join("config.json"), config.replace("32768", "8192")).unwrap();
    let own = ["--model", "model", "-t", "ruler/vt", "-l", "1K", "-n", "3", "--dry-run", "--out", "out"];
    let eval = |more: &[&str]| spattn(dir.path(), &[&["eval"][..], &own, more].concat()).output().unwrap();
    let planned = eval(&["-m", "quest", "-m", "topk:k=16"]);
    let (text, notes) = (String::from_utf8(planned.stdout).unwrap(), String::from_utf8(planned.stderr).unwrap());
    assert!(planned.status.success(), "{notes}");
    assert!(notes.contains("the weights of model are not here yet"), "{notes}");
    assert!(text.contains("9 records to make, in about ") && text.contains(" MB\n"), "{text}");
    assert!(text.contains("The times are estimates for this machine: "), "{text}");
    assert!(!dir.path().join("out").exists());
    for (more, what) in [
        (&["-m", "loki"][..], "method `loki` needs a calibration of model"),
        (&["-l", "64K"], "is beyond the context of model"),
        (&["-t", "ruler/qa_1"], "squad/dev-v2.0.json"),
        (&["-t", "ruler/vtt"], "unknown task"),
        (&["-m", "qest"], "unknown method"),
    ] {
        let refused = eval(more);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && said.contains(what), "{more:?}: {said}");
        assert!(refused.stdout.is_empty(), "{more:?}");
    }
    // No length of the paper's item fits, so there is nothing to run.
    let item = ["reproduce", "magicpig/table-3", "--model", "model", "--dry-run", "--out", "papers"];
    let refused = spattn(dir.path(), &item).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("error: "), "{said}");
    // Dense attention could run, but a method without its calibration could not. The run would fail, so the plan fails too.
    let text = "title = 'a'\n[run]\nmodel = 'x/y'\ntasks = ['ruler/vt']\nlengths = [1024]\nsamples = 1\n\
                [[row]]\nname = 'a'\nmethod = 'METHOD'\n";
    for (method, status) in [("loki", 2), ("quest", 0)] {
        fs::write(dir.path().join("item.toml"), text.replace("METHOD", method)).unwrap();
        let item = ["reproduce", "item.toml", "--model", "model", "--dry-run", "--out", "papers"];
        let planned = spattn(dir.path(), &item).output().unwrap();
        let said = String::from_utf8(planned.stderr).unwrap();
        assert_eq!(planned.status.code(), Some(status), "{method}: {said}");
        assert_eq!(said.contains("method `loki` needs a calibration"), status == 2, "{said}");
    }
}

#[test]
fn a_report_of_a_sweep_that_has_not_run_says_so() {
    let dir = TempDir::new().unwrap();
    let sweep =
        ["sweep", "quick", "-t", "ruler/vt", "-l", "1K", "-n", "2", "-m", "topk", "--launch", "slurm", "--jobs", "2"];
    let planned = done(dir.path(), &[&sweep[..], &["--dry-run", "--out", "big"]].concat());
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.contains("a shard takes up to about ") && text.contains("'time=...,mem=...'"), "{text}");
    let refused = spattn(dir.path(), &["report", "big"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing of the sweep in big has run yet") && said.contains("spattn status big"), "{said}");
}
