//! What is written about a user, and that `--anonymous` leaves it out. The tests search all files that commands write for the user's own
//! words.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Part of all paths of this user; it contains a space.
const USER: &str = "alice smith";
const PROMPT: &str = "Answer as Alice would.";

/// A user's home: two models with the same folder name and different weights, rows, and a system prompt in a file.
struct Home {
    _temp: TempDir,
    dir: PathBuf,
}

impl Home {
    fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let dir = temp.path().join(USER);
        model(&dir.join("models/qwen"), &[]);
        fs::create_dir_all(dir.join("mine")).unwrap();
        let row = |at: usize| json!({"context": format!("The code of box {at} is 481{at}. "), "question": "What is the code?", "answer": format!("481{at}")});
        fs::write(dir.join("mine/rows.jsonl"), (0..2).map(|at| format!("{}\n", row(at))).collect::<String>()).unwrap();
        fs::write(dir.join("prompt.txt"), PROMPT).unwrap();
        Self { _temp: temp, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, args: &[&str], out: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        command.args(args).arg("--out").arg(self.dir.join(out)).current_dir(&self.dir).stdin(Stdio::null());
        command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("HOME", &self.dir);
        command.env("SLURM_JOB_ID", "987654321").env("SLURMD_NODENAME", "node-of-alice");
        command.env_remove("SPATTN_DATA").output().unwrap()
    }

    #[track_caller]
    fn ok(&self, args: &[&str], out: &str) -> PathBuf {
        let ran = self.run(args, out);
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        self.dir.join(out)
    }

    /// The files below a folder that contain something about the user.
    fn found(&self, folder: &Path) -> Vec<String> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let own =
            ["alice", "smith", "models/", "mine/", "Answer as", "987654321", "node-of-alice", &format!("\"{host}\"")];
        let mut found = Vec::new();
        for (name, text) in texts(folder) {
            let lower = text.to_lowercase();
            let of = own.iter().filter(|word| word.len() > 2 && lower.contains(&word.to_lowercase()));
            found.extend(of.map(|word| format!("{name}: {word}")));
        }
        found
    }
}

/// The built-in model in a folder, with a chat template, and with some bytes of its weights changed, counted from the end.
fn model(folder: &Path, changed: &[usize]) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    fs::create_dir_all(folder).unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json"] {
        fs::copy(ours.join(file), folder.join(file)).unwrap();
    }
    let mut weights = fs::read(ours.join("model.safetensors")).unwrap();
    let end = weights.len();
    changed.iter().for_each(|at| weights[end - at] ^= 1);
    fs::write(folder.join("model.safetensors"), weights).unwrap();
    let mut settings: Value = serde_json::from_slice(&fs::read(ours.join("tokenizer_config.json")).unwrap()).unwrap();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    settings["chat_template"] = template.into();
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

/// All files below a folder as text, with the compressed parts of pages unpacked. Pictures are drawn from these texts.
fn texts(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(texts(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else if path.extension().is_none_or(|ending| ending != "png") {
            let mut text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            let packed = text
                .split(|c: char| !c.is_ascii_alphanumeric() && !"+/=".contains(c))
                .filter(|s| s.starts_with("H4sI"));
            let unpacked: Vec<String> = packed.map(unpacked).collect();
            text.extend(unpacked);
            all.insert(name.clone(), format!("{name}\n{text}"));
        }
    }
    all
}

fn unpacked(base64: &str) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&STANDARD.decode(base64).unwrap()[..]).read_to_string(&mut text).unwrap();
    text
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn records(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn answers(records: &[Value]) -> Vec<String> {
    records.iter().map(|r| format!("{} {} {} {}", r["task"], r["method"], r["prediction"], r["score"])).collect()
}

#[test]
fn a_run_leaves_the_user_out_and_goes_on() {
    let home = Home::new();
    let (model, rows, prompt) = (home.path("models/qwen"), home.path("mine/rows.jsonl"), home.path("prompt.txt"));
    let (rows, prompt) = (format!("jsonl:{rows}"), format!("@{prompt}"));
    let args = ["eval", "-q", "--model", &model, "-t", &rows, "-m", "topk:k=8", "--system-prompt", &prompt];
    let open = home.ok(&[&args[..], &["-n", "2"]].concat(), "open");
    assert!(home.found(&open).len() > 5, "without the flag it is there to be found: {:?}", home.found(&open));

    let run = home.ok(&[&args[..], &["-n", "1", "--anonymous"]].concat(), "run");
    assert_eq!(home.found(&run), [""; 0]);
    let run = home.ok(&[&args[..], &["-n", "2", "--anonymous", "--resume"]].concat(), "run");
    assert_eq!(home.found(&run), [""; 0]);
    assert_eq!(answers(&records(&run)).len(), 4, "what was there is not run again");
    assert_eq!(answers(&records(&run)), answers(&records(&open)), "and all is as it is without the flag");
    let manifest = json_of(&run.join("manifest.json"));
    assert_eq!((&manifest["identity"]["model"], &manifest["command"]), (&json!("qwen"), &json!([])));
    assert_eq!(manifest["config"]["tasks"], json!(["jsonl:rows.jsonl"]));
    assert!(manifest["identity"]["system_prompt"].as_str().unwrap().starts_with("sha256:"), "{manifest}");

    // Another system prompt makes another run, even if the prompt is not stored.
    let other = ["eval", "-q", "--model", &model, "-t", &rows, "-m", "topk:k=8", "--system-prompt", "Other."];
    let refused = home.run(&[&other[..], &["-n", "2", "--anonymous", "--resume"]].concat(), "run");
    assert!(
        refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("`--system-prompt` was")
    );
    // A folder can only be resumed with the setting that it started with.
    for (out, flag) in [("run", None), ("open", Some("--anonymous"))] {
        let refused = home.run(&[&args[..], &["-n", "2", "--resume"], flag.as_slice()].concat(), out);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains("--anonymous"), "{said}");
    }

    // Report the run that was made without the flag.
    let report = home.ok(&["report", open.to_str().unwrap(), "--anonymous"], "published");
    assert_eq!(home.found(&report), [""; 0]);
    for name in ["summary.csv", "summary.md", "summary.tex", "report.html", "tables/method_by_task.md"] {
        assert!(report.join(name).is_file(), "{name}");
    }
    assert!(fs::read_to_string(report.join("summary.csv")).unwrap().contains("\nqwen,jsonl:rows,"));
}

#[test]
fn folders_of_one_name_are_told_apart_in_a_sweep_and_attempts_name_nobody() {
    let home = Home::new();
    model(&home.dir.join("tuned/qwen"), &[2, 200, 2000]);
    let [first, second, gone] = ["models/qwen", "tuned/qwen", "models/not there"].map(|name| home.path(name));
    // The paths are in a config, so spaces need no quoting.
    let config = home.path("c.toml");
    fs::write(&config, format!("model = {}\n", json!([first, second, gone]))).unwrap();
    let args = ["sweep", &config, "-q", "-t", "needle/number:depths=50", "-l", "512", "-n", "1", "-m", "topk:k=8"];
    let ran = home.run(&[&args[..], &["--anonymous"]].concat(), "sweep");
    assert_eq!(ran.status.code(), Some(1), "{}", String::from_utf8_lossy(&ran.stderr));
    let sweep = home.dir.join("sweep");
    assert_eq!(home.found(&sweep), [""; 0]);
    let names = |run: &Path| {
        let mut names: Vec<String> = records(run).iter().map(|r| r["model"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    let own = names(&sweep);
    assert!(own.len() == 2 && own.iter().all(|name| name.len() == 13 && name.starts_with("qwen@")), "{own:?}");
    let attempts = fs::read_to_string(sweep.join("attempts.jsonl")).unwrap();
    assert!(
        attempts.contains("not there") && attempts.contains("\"job-") && attempts.contains("\"pid\":0"),
        "{attempts}"
    );
    // Report the sweep that was made without the flag.
    let ran = home.run(&args, "open");
    assert_eq!(ran.status.code(), Some(1));
    let open = home.dir.join("open");
    assert!(
        home.found(&open).iter().any(|what| what.starts_with("attempts.jsonl: node-of-alice")),
        "{:?}",
        home.found(&open)
    );
    let report = home.ok(&["report", open.to_str().unwrap(), "--anonymous"], "published");
    assert_eq!(home.found(&report), [""; 0]);
    let csv = fs::read_to_string(report.join("summary.csv")).unwrap();
    assert!(own.iter().all(|name| csv.contains(&format!("\n{name},"))), "{csv}");
}

#[test]
fn other_commands_leave_the_user_out_too() {
    let home = Home::new();
    let (model, prompt) = (home.path("models/qwen"), home.path("prompt.txt"));
    let prompt = format!("@{prompt}");
    fs::write(home.dir.join("mine/text.txt"), "The code of the box is 4812, and it is red. ".repeat(200)).unwrap();
    let text = home.path("mine/text.txt");
    let named = ["--model", &model, "--system-prompt", &prompt, "-l", "1K", "-q"];
    let tune = ["tune", "-t", "needle/number:depths=50", "-m"];
    let search = ["topk", "--parameter", "k", "--range", "8..16", "--steps", "2", "-n", "8"];
    let shapes = ["magicpig", "--target", "density=0.2", "--prompts", "1", "--queries", "1", "--draws", "1"];
    let commands: [(&str, Vec<&str>); 5] = [
        ("tuned", [&tune[..], &search, &named].concat()),
        ("shapes", [&tune[..], &shapes, &named].concat()),
        ("analysis", [&["analyze", "mass", "-t", "ruler/vt", "-n", "1"], &named[..]].concat()),
        ("text", vec!["analyze", "mass", "-q", "--model", &model, "--text", &text, "-n", "1", "-l", "512"]),
        ("bench", vec!["bench", "attention", "--kv-from", &model, "--text", &text, "-c", "640", "--rounds", "3", "-q"]),
    ];
    for (name, args) in commands {
        let open = home.ok(&args, name);
        assert!(!home.found(&open).is_empty(), "{name}: without the flag it is there to be found");
        let anonymous = home.ok(&[&args[..], &["--anonymous"]].concat(), &format!("{name} 2"));
        assert_eq!(home.found(&anonymous), [""; 0], "{name}");
    }
    // Draw a benchmark again that was made without the flag.
    let bench = home.path("bench");
    let refused = home.run(&["report", &bench, "--anonymous"], "bench");
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let drawn = home.ok(&["report", &bench, "--anonymous"], "bench drawn");
    assert!(fs::read_to_string(drawn.join("bench.md")).unwrap().contains("qwen"));
    assert_eq!(home.found(&drawn), [""; 0]);
}

/// Items of the papers, changed to a length and a task that suit the built-in model.
fn items(home: &Home) -> [String; 2] {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/papers");
    ["topk/figure-5", "hip/figure-20"].map(|name| {
        let text = fs::read_to_string(shipped.join(format!("{name}.toml"))).unwrap();
        let text = text.replace("[4096]", "[2048]");
        let text = text.replace("tasks = [\"ppl/wikitext2:scored=4095\"]", "tasks = [\"ruler/niah_multikey_3\"]");
        let path = home.path(&format!("mine/{}.toml", name.replace('/', "-")));
        fs::write(&path, text).unwrap();
        path
    })
}

#[test]
fn papers_are_reproduced_without_the_user() {
    let home = Home::new();
    let (model, gone) = (home.path("models/qwen"), home.path("models/not there"));
    for item in items(&home) {
        let name = Path::new(&item).file_stem().unwrap().to_str().unwrap().to_owned();
        let args = ["reproduce", &item, "--samples", "1", "--quiet", "--model"];
        let open = home.ok(&[&args[..], &[&model]].concat(), &format!("{name} open"));
        assert!(!home.found(&open).is_empty(), "{name}: without the flag it is there to be found");
        let out = home.ok(&[&args[..], &[&model, "--anonymous"]].concat(), &name);
        let result = |out: &Path| {
            let path = format!("own/{name}/result-paper-qwen.json");
            json_of(&out.join(path))["rows"].clone()
        };
        assert!(out.join("README.md").is_file() && out.join("runs").is_dir(), "{name}");
        assert_eq!(home.found(&out), [""; 0], "{name}");
        assert_eq!(result(&out), result(&open), "{name}: all is as it is without the flag");
        assert!(!home.run(&[&args[..], &[&gone, "--anonymous"]].concat(), &name).status.success());
        assert_eq!(home.found(&out), [""; 0], "{name}");
        // The failed run on a missing model leaves the results of the other run unchanged.
        assert_eq!(result(&out), result(&open), "{name}");
    }
}

/// docs/privacy.md lists what a run writes: a new file or field of the manifest needs a decision.
#[test]
fn the_page_lists_what_a_run_writes() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/privacy.md")).unwrap();
    let home = Home::new();
    let run = home.ok(
        &["eval", "-q", "-t", "needle/number:depths=50", "-l", "512", "-n", "1", "-m", "topk:k=8", "--keep-prompts"],
        "run",
    );
    for name in texts(&run).keys() {
        let listed = match name.split_once('/') {
            Some((folder, _)) => format!("`{folder}/*"),
            None if name.starts_with("summary.") => "`summary.*`".to_owned(),
            None => format!("`{name}`"),
        };
        assert!(page.contains(&listed), "{name} is not in docs/privacy.md");
    }
    // The fields that state where and by whom a run was made are known. All others contain no words of the user.
    let known = [
        "program",
        "created",
        "command",
        "identity",
        "calibration",
        "inputs",
        "methods",
        "config",
        "model",
        "memory",
        "machine",
        "shard",
        "notes",
    ];
    let manifest = json_of(&run.join("manifest.json"));
    for key in manifest.as_object().unwrap().keys() {
        assert!(
            known.contains(&key.as_str()),
            "`{key}` of the manifest is new: does docs/privacy.md say what it holds?"
        );
    }
}
