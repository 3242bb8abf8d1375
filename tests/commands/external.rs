//! Methods in other processes (`-m external:COMMAND`), from the command line to the records.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tempfile::TempDir;

type Record = Map<String, Value>;

/// Answers each step with the first three candidates. `$steps` counts steps; `BEFORE` is replaced by what precedes an answer.
const FIRST_THREE: &str = r#"
IFS= read -r line
echo '{"protocol":1,"name":"first","version":"1","answers":"tokens"}'
steps=0
while IFS= read -r line; do
    bytes=${line##*'"bytes":'}
    head -c "${bytes%?}" > /dev/null
    case $line in
        *'"forget"'*) ;;
        *'"step"'*) steps=$((steps + 1)); BEFORE; echo '{"tokens":[[0,1,2]]}' ;;
        *) echo '{}' ;;
    esac
done
"#;

const RUN: &[&str] = &["eval", "-t", "ruler/vt", "-l", "1K", "-n", "2", "--out", "run"];

fn program(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.current_dir(dir).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").args(args);
    command
}

fn ran(dir: &Path, more: &[&str]) -> Output {
    program(dir, &[RUN, more].concat()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn script(dir: &Path, before: &str) {
    fs::write(dir.join("scorer.sh"), FIRST_THREE.replace("BEFORE", before)).unwrap();
}

/// The records of a method, without times.
fn records(dir: &Path, method: &str) -> Vec<Record> {
    let text = fs::read_to_string(dir.join("run/samples.jsonl")).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap());
    let mut found: Vec<Record> = all.filter(|record| record["method"] == method).collect();
    found.iter_mut().for_each(|record| record.retain(|key, _| !key.ends_with("_s") && key != "conditions"));
    found.sort_by_key(|record| record["sample"].as_u64());
    found
}

#[test]
fn records_depend_on_the_command_and_what_it_says_but_on_no_thread() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let run = |dir: &Path, more: &[&str]| {
        let output = ran(dir, &[&["-m", "external:\"sh scorer.sh\""], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    };
    for dir in [&dir, &other] {
        script(dir.path(), ":");
    }
    run(dir.path(), &["--threads", "1"]);
    run(other.path(), &["--threads", "3"]);
    let first = records(dir.path(), "external");
    assert_eq!(first, records(other.path(), "external"));
    assert_eq!(first.len(), 2);
    for record in &first {
        assert_eq!(record["params"], "cmd=\"sh scorer.sh\",name=first,version=1,k=64");
        for unknown in ["cost1", "aux_bits", "kv_bytes_per_token"] {
            assert_eq!(record.get(unknown), Some(&Value::Null), "{unknown}");
        }
        assert!(record.get("comparable").is_none());
        // Three tokens, and those that are always attended: 4, 64, and all after the prefix.
        let (density, tokens) = (record["density"].as_f64().unwrap(), record["prompt_tokens"].as_f64().unwrap());
        assert!((70.0 / tokens..150.0 / tokens).contains(&density), "{density} of {tokens}");
    }
    // An unknown value is empty, not 0.
    let mut csv = csv::Reader::from_path(dir.path().join("run/summary.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = csv.deserialize().map(Result::unwrap).collect();
    let row = rows.iter().find(|row| row["method"] == "external").unwrap();
    let value = |name: &str| row[name].as_str();
    assert_eq!(["cost1", "cost_total", "aux_bits", "kv_bytes_per_token"].map(value), [""; 4]);
    assert!(!value("cost2").is_empty() && !value("density").is_empty());

    // Nothing is run again, unless the command reports another version of itself.
    run(dir.path(), &["--resume"]);
    assert_eq!(records(dir.path(), "external"), first);
    let text = fs::read_to_string(dir.path().join("scorer.sh")).unwrap();
    fs::write(dir.path().join("scorer.sh"), text.replace(r#""version":"1""#, r#""version":"2""#)).unwrap();
    run(dir.path(), &["--resume"]);
    let both = records(dir.path(), "external");
    assert_eq!(both.len(), 4);
    let keys = |version: &str| -> Vec<&str> {
        let of = |r: &&Record| r["params"].as_str().unwrap().contains(&format!("version={version},"));
        both.iter().filter(of).map(|r| r["key"].as_str().unwrap()).collect()
    };
    assert!(keys("1").len() == 2 && keys("2").len() == 2 && keys("1").iter().all(|key| !keys("2").contains(key)));
}

#[test]
fn a_command_that_fails_costs_its_own_records_alone() {
    let dir = TempDir::new().unwrap();
    script(dir.path(), "[ $steps -lt 20 ] || { echo 'KeyError: 20' >&2; exit 1; }");
    let matrix = r#"
        tasks = ["ruler/vt"]
        lengths = [1024]
        samples = 2
        methods = ['external:"sh scorer.sh"', "random:k=8"]
    "#;
    fs::write(dir.path().join("matrix.toml"), matrix).unwrap();
    let sweep = |more: &[&str]| {
        let args = [&["sweep", "matrix.toml", "--out", "run"], more].concat();
        program(dir.path(), &args).output().unwrap()
    };
    let output = sweep(&[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let why = "ended without an answer (exit status: 1); its standard error ends with: KeyError: 20";
    assert!(said.contains(why) && said.contains("4 records are kept"), "{said}");
    let counts = || ["full", "random", "external"].map(|method| records(dir.path(), method).len());
    assert_eq!(counts(), [2, 2, 0], "{said}");
    // The repaired command continues where the failed one ended.
    script(dir.path(), ":");
    let output = sweep(&["--resume"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(counts(), [2, 2, 2]);
    // `eval` ends at the first failure.
    script(dir.path(), "exit 1");
    let output =
        program(dir.path(), &[RUN, &["-m", "external:\"sh scorer.sh\"", "--overwrite"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("ended without an answer (exit status: 1)"), "{}", stderr(&output));
}

#[test]
fn a_command_that_cannot_be_asked_is_an_error_of_the_arguments() {
    let dir = TempDir::new().unwrap();
    for (spec, said) in [
        ("external", "error: method `external` has no command"),
        ("external:no-such-file.py", "error: the command `no-such-file.py` cannot be started"),
        ("external:\"echo hello\"", "error: the command `echo hello` failed: it printed `hello` on standard output"),
    ] {
        let output = ran(dir.path(), &["-m", spec]);
        assert_eq!(output.status.code(), Some(2), "{spec}: {}", stderr(&output));
        assert!(stderr(&output).starts_with(said) && stderr(&output).contains("hint: "), "{}", stderr(&output));
        assert!(!dir.path().join("run").exists());
    }
    script(dir.path(), ":");
    let bench = program(dir.path(), &["bench", "attention", "-m", "external:\"sh scorer.sh\""]).output().unwrap();
    assert_eq!(bench.status.code(), Some(2));
    assert!(stderr(&bench).starts_with("error: method `external` runs in another process"), "{}", stderr(&bench));
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_command_that_is_waited_for() {
    let dir = TempDir::new().unwrap();
    script(dir.path(), "echo $$ > pid; sleep 600");
    let args = [RUN, &["-m", "external:\"sh scorer.sh\",timeout=600"]].concat();
    let mut child = program(dir.path(), &args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let wait = |what: &str, until: &mut dyn FnMut() -> bool| {
        let begin = Instant::now();
        while !until() {
            assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
            thread::sleep(Duration::from_millis(20));
        }
        begin.elapsed()
    };
    let pid = || fs::read_to_string(dir.path().join("pid")).ok().filter(|pid| pid.ends_with('\n'));
    wait("the first step", &mut || pid().is_some());
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut status = None;
    let took = wait("the end of the program", &mut || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
    assert!(took < Duration::from_secs(10), "{took:?}");
    let command = format!("/proc/{}/cmdline", pid().unwrap().trim());
    let runs = |file: &str| fs::read_to_string(file).is_ok_and(|text| text.contains("scorer.sh"));
    assert!(!runs(&command), "the command runs on");
}

/// A Python with some modules: `SPATTN_PYTHON`, or `python3`. A test without one says that it is skipped.
fn python(modules: &str) -> Option<String> {
    let python = std::env::var("SPATTN_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let imports = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    let has_modules = imports.is_ok_and(|output| output.status.success());
    if !has_modules {
        eprintln!("SKIPPED: there is no {python} with {modules}");
    }
    has_modules.then_some(python)
}

fn example(python: &str, name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/external").join(name);
    format!("external:\"{python} '{}'\"", file.display())
}

/// The fields of records that must not depend on whether the method runs here or in another process: all but its name and parameters, and
/// costs that only one of the two counts.
fn without_names(mut records: Vec<Record>) -> Vec<Record> {
    const OTHERS: [&str; 11] = [
        "key",
        "method",
        "revision",
        "params",
        "settings",
        "comparable",
        "cost1",
        "aux_bits",
        "kv_bytes_per_token",
        "shared_bytes_per_token",
        "select_bytes_per_token",
    ];
    records.iter_mut().for_each(|record| record.retain(|key, _| !OTHERS.contains(&key.as_str())));
    records
}

fn selects_as_topk(modules: &str, file: &str) {
    let Some(python) = python(modules) else { return };
    for parameters in ["k=24", "density=0.15,per=kv_head"] {
        let dir = TempDir::new().unwrap();
        let external = format!("{},{parameters}", example(&python, file));
        let output = ran(dir.path(), &["-m", &external, "-m", &format!("topk:{parameters}")]);
        assert!(output.status.success(), "{}", stderr(&output));
        let [own, others] = ["topk", "external"].map(|method| without_names(records(dir.path(), method)));
        assert_eq!(own.len(), 2);
        assert_eq!(own, others, "{parameters}");
    }
}

#[test]
fn exact_scores_in_numpy_give_the_records_of_topk() {
    selects_as_topk("numpy", "topk_numpy.py");
}

#[test]
fn exact_scores_in_pytorch_give_the_records_of_topk() {
    selects_as_topk("numpy, torch", "topk_torch.py");
}

#[test]
fn pages_in_numpy_attend_what_was_asked_for() {
    let Some(python) = python("numpy") else { return };
    let dir = TempDir::new().unwrap();
    let output = ran(
        dir.path(),
        &["-m", &format!("{},density=0.3", example(&python, "quest_numpy.py")), "-m", "quest:density=0.3"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let [own, others] = ["quest", "external"].map(|method| records(dir.path(), method));
    for (own, other) in own.iter().zip(&others) {
        assert_eq!(own["prediction"], other["prediction"]);
        let [own, other] = [own, other].map(|record| record["density"].as_f64().unwrap());
        assert!((own - other).abs() < 0.02, "{own} {other}");
    }
    assert_eq!(others.len(), 2);
}
