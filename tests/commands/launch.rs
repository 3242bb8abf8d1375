//! `spattn sweep --launch slurm` and `spattn status` as users run them, with stand-ins for Slurm's commands that store their arguments.
//! `scripts/slurm_check.sh` does the same with a real Slurm.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use spattn::eval::records::store;
use spattn::report::merge;
use tempfile::TempDir;

const MATRIX: &str = "
tasks = ['ruler/niah_single_1', 'ruler/niah_multiquery']
lengths = [400, 600]
samples = 2
seed = [1, 2]
methods = ['topk:k=16']
";

struct Site {
    temp: TempDir,
}

#[test]
fn shards_of_other_splits_that_are_all_of_a_run_lack_nothing() {
    let site = site();
    let shard = |share: &str, out: &str| site.run(&["sweep", "matrix.toml", "--shard", share, "--out", out, "-q"], 0);
    for (share, out) in [("1/2", "a"), ("2/3", "b"), ("2/2", "c")] {
        shard(share, out);
    }
    let said = |dirs: &[&str]| stderr(&site.run(&[&["report"], dirs].concat(), 0));
    let lacking = said(&["a", "b"]);
    let of = |out: &str| store::load_records(&site.path(out)).unwrap().records.into_iter().map(|record| record.key);
    let union: BTreeSet<String> = of("a").chain(of("b")).collect();
    assert_eq!(union.len() < 32, lacking.contains("lack others"), "{} of 32: {lacking}", union.len());
    assert!(!said(&["a", "c"]).contains("missing"));
    // There are as many shards as contexts, and one more, which is empty.
    for number in 1..=8 {
        shard(&format!("{number}/9"), &format!("nine/{number}"));
    }
    assert_eq!(keys(&site.path("nine")).len(), 32);
    let whole = said(&["nine"]);
    assert!(!whole.contains("missing") && !whole.contains("lack"), "{whole}");
    fs::remove_dir_all(site.path("nine/3")).unwrap();
    assert!(said(&["nine"]).contains("shards 3/9, 9/9 of a run are missing"), "{}", said(&["nine"]));
}

/// A folder with a matrix and stand-ins for Slurm's commands: sbatch prints the job number 71 and stores its arguments, squeue prints a
/// file.
fn site() -> Site {
    let temp = TempDir::new().unwrap();
    fs::write(temp.path().join("matrix.toml"), MATRIX).unwrap();
    let site = Site { temp };
    site.command_of_slurm("sbatch", "echo \"$@\" >> \"$AT/submitted\"; echo '71;cluster'");
    site.command_of_slurm("squeue", "cat \"$AT/queue\" 2>/dev/null; true");
    site.command_of_slurm("sacct", "exit 1");
    site
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn command_of_slurm(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path("bin")).unwrap();
        let file = self.path("bin").join(name);
        let at = self.temp.path().display();
        fs::write(&file, format!("#!/bin/sh\nAT='{at}'\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn spattn(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.args(args).current_dir(self.temp.path()).stdin(Stdio::null()).env("PATH", path);
        for name in ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "SLURMD_NODENAME", "SPATTN_ISA"] {
            command.env_remove(name);
        }
        command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str], status: i32) -> Output {
        let output = self.spattn(args).output().unwrap();
        let said = format!("{}\n{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(status), "{args:?}\n{said}");
        assert!(!said.contains("panicked"), "{said}");
        output
    }

    #[track_caller]
    fn launch(&self, more: &[&str], status: i32) -> Output {
        self.run(&[&["sweep", "matrix.toml", "--launch", "slurm", "--out", "out"], more].concat(), status)
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.run(&["status", "out", "--json"], 0).stdout).unwrap()
    }

    fn states(&self) -> Vec<String> {
        let status = self.status();
        let shards = status["shards"].as_array().unwrap();
        shards.iter().map(|shard| shard["state"].as_str().unwrap().to_owned()).collect()
    }

    /// Runs a shard as its task in Slurm would.
    #[track_caller]
    fn task(&self, shard: usize, of: usize, status: i32) -> Output {
        let mut command = Command::new("bash");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.arg(self.path("out/sweep.sbatch")).env("PATH", path).stdin(Stdio::null());
        command.env("SLURM_ARRAY_JOB_ID", "71").env("SLURM_ARRAY_TASK_ID", shard.to_string());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{shard} of {of}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn keys(dir: &Path) -> BTreeSet<String> {
    let merged = merge::read(&[dir.to_owned()]).unwrap();
    assert!(merged.notes.is_empty(), "{:?}", merged.notes);
    let keys: BTreeSet<String> = merged.records.iter().map(|record| record.key.clone()).collect();
    assert_eq!(keys.len(), merged.records.len());
    keys
}

#[test]
fn a_sweep_is_planned_submitted_run_and_put_together() {
    let site = site();
    let dry = stdout(&site.launch(&["--jobs", "3", "--sbatch", "partition=gpu,time=1:00:00", "--dry-run"], 0));
    assert!(dry.contains("#SBATCH --array=1-3\n") && dry.contains("#SBATCH --partition=gpu\n"), "{dry}");
    assert!(dry.contains("not submitted; to submit 3 shards: sbatch --array=1-3 ") && !site.path("submitted").exists());
    // A plan that was not submitted is replaced.
    let said = stdout(&site.launch(&["--jobs", "4", "--threads", "1"], 0));
    assert!(said.contains("32 records on 8 contexts in 4 shards"), "{said}");
    assert!(said.contains("submitted 4 shards (1-4) as job 71\n"), "{said}");
    let submitted = fs::read_to_string(site.path("submitted")).unwrap();
    assert_eq!(submitted, format!("--parsable --array=1-4 {}\n", site.path("out/sweep.sbatch").display()));
    assert_eq!(site.states(), ["waiting"; 4]);
    fs::write(site.path("queue"), "71_1|RUNNING|None|n1|x\n71_2|PENDING|Resources||x\n").unwrap();
    assert_eq!(site.states(), ["running", "queued", "waiting", "waiting"]);

    for shard in [1, 3, 2, 4] {
        site.task(shard, 4, 0);
    }
    fs::remove_file(site.path("queue")).unwrap();
    assert_eq!(site.states(), ["done"; 4]);
    let text = stdout(&site.run(&["status", "out", "--watch"], 0));
    assert!(text.contains("out: 4 shards: 4 done\n32 of 32 records (100.0 %)\n"), "{text}");
    assert!(text.contains("\nthe longest of 4 completed shards over their mean: 1.00 by estimated work, "), "{text}");
    for shard in site.status()["shards"].as_array().unwrap() {
        let (seconds, processor) = (shard["seconds"].as_u64().unwrap(), shard["processor_s"].as_f64().unwrap());
        // With one thread, processor time cannot exceed wall time, which is counted in whole seconds.
        assert!(processor > 0.0 && processor < seconds as f64 + 2.0, "{shard}");
    }
    assert!(text.contains("scores so far\n  builtin ruler/niah_multiquery 400 question  full "), "{text}");
    assert!(stdout(&site.launch(&["--resume"], 0)).contains("nothing to submit"));

    // The merged records equal those of a run without shards.
    site.run(&["sweep", "matrix.toml", "--out", "whole", "--quiet"], 0);
    assert_eq!(keys(&site.path("out/shards")), keys(&site.path("whole")));
    for (dir, out) in [("out", "many"), ("whole", "one")] {
        site.run(&["report", dir, "--no-times", "--out", out], 0);
    }
    let mut compared = 0;
    for entry in ["", "tables", "plots"] {
        for file in fs::read_dir(site.path("one").join(entry)).into_iter().flatten().map(|file| file.unwrap().path()) {
            // The page lists machines and commands, so it may differ.
            if file.is_file() && !file.ends_with("report.html") {
                let other = site.path("many").join(entry).join(file.file_name().unwrap());
                assert!(fs::read(&file).unwrap() == fs::read(other).unwrap(), "{}", file.display());
                compared += 1;
            }
        }
    }
    assert!(compared > 8, "{compared}");
}

#[test]
fn what_is_missing_is_submitted_and_what_failed_only_if_asked() {
    let site = site();
    let jobs = ["--jobs", "3", "-l", "400,40000", "--threads", "1"];
    let said = site.launch(&jobs, 0);
    assert!(stderr(&said).contains("failed: builtin, ruler/niah_single_1 at 40000: "), "{}", stderr(&said));
    site.task(1, 3, 1);
    let status = site.status();
    assert_eq!(status["shards"][0]["state"], "incomplete");
    assert!(status["shards"][0]["failed"][0]["why"].as_str().unwrap().contains("beyond the context of builtin"));
    fs::write(site.path("queue"), "71_2|PENDING|Priority||x\n71_3|FAILED|NonZeroExitCode|n1|x\n").unwrap();
    fs::create_dir_all(site.path("out/logs")).unwrap();
    fs::write(site.path("out/logs/71_3.log"), "note: a\nerror: no such model\n  hint: b\n").unwrap();
    let text = stdout(&site.run(&["status", "out"], 0));
    for line in [
        "1 incomplete, 1 queued, 1 failed",
        "FAILED NonZeroExitCode: no such model",
        "failed: builtin, ruler/niah_single_1 at 40000: ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let resumed = |more: &[&str]| {
        let said = stdout(&site.launch(&[&jobs[2..], &["--resume", "--dry-run"], more].concat(), 0));
        said.lines()
            .find_map(|line| {
                Some(line.split_once("--array=")?.1.split(' ').next()?.to_owned()).filter(|_| line.starts_with("not"))
            })
            .unwrap()
    };
    assert_eq!((resumed(&[]).as_str(), resumed(&["--retry-failed"]).as_str()), ("3", "1,3"));
    // Another matrix is another sweep, and needs its own folder.
    let other = stderr(&site.launch(&["--resume"], 2));
    assert!(other.contains("was planned with other settings"), "{other}");
    let again = stderr(&site.launch(&jobs, 2));
    assert!(again.contains("already holds a sweep") && again.contains("--resume submits what is missing"), "{again}");
    // An edited script is submitted unchanged; new options go to sbatch.
    let script = site.path("out/sweep.sbatch");
    let edited = fs::read_to_string(&script).unwrap() + "# mine\n";
    fs::write(&script, &edited).unwrap();
    site.launch(&[&jobs[2..], &["--resume", "--sbatch", "time=9"]].concat(), 0);
    assert_eq!(fs::read_to_string(&script).unwrap(), edited);
    let submitted = fs::read_to_string(site.path("submitted")).unwrap();
    assert!(submitted.ends_with(&format!("--array=3 --time=9 {}\n", script.display())), "{submitted}");
}

#[test]
fn a_sites_template_is_honoured_and_refusals_of_sbatch_are_told() {
    let site = site();
    fs::create_dir(site.path("configs")).unwrap();
    fs::write(site.path("configs/slurm.toml"), "setup = 'module load a'\n[sbatch]\naccount = 'lab'\ngpus = 1\n")
        .unwrap();
    let text = stdout(&site.launch(&["--dry-run", "--sbatch", "gpus=2"], 0));
    for line in ["#SBATCH --account=lab", "#SBATCH --gpus=2", "module load a"] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    fs::write(site.path("other.toml"), "[sbatch]\nqos = 'long'\n").unwrap();
    let text = stdout(&site.launch(&["--dry-run", "--sbatch-template", "other.toml"], 0));
    assert!(text.contains("#SBATCH --qos=long\n") && !text.contains("account"), "{text}");
    site.command_of_slurm("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1");
    let said = stderr(&site.launch(&[], 1));
    assert!(said.contains("error: sbatch rejected the sweep: sbatch: error: invalid partition"), "{said}");
    site.command_of_slurm("sbatch", "echo 72");
    assert!(stdout(&site.launch(&["--resume"], 0)).contains("as job 72"));
}

/// Sends a signal to a run once it has records, and checks how it ends.
fn stopped(signal: &str, ends: impl Fn(&Output)) {
    let site = site();
    let args = ["sweep", "matrix.toml", "-n", "40", "--shard", "1/2", "--out", "run", "--resume", "--quiet"];
    let child = site.spattn(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = || fs::read_to_string(site.path("run/samples.jsonl")).map_or(0, |text| text.lines().count());
    let start = Instant::now();
    while lines() < 4 {
        assert!(start.elapsed() < Duration::from_secs(120), "no records");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    ends(&output);
    // The folder is unlocked, its records are complete, and the attempt is logged.
    let records = store::load_records(&site.path("run")).unwrap();
    assert!(records.notices.is_empty() && records.records.len() >= 4 && records.records.len().is_multiple_of(2));
    assert!(!site.path("run/.owner").exists());
    let status: Value = serde_json::from_slice(&site.run(&["status", "run", "--json"], 0).stdout).unwrap();
    assert_eq!((&status["shards"][0]["state"], &status["records"]), (&"stopped".into(), &records.records.len().into()));
}

#[test]
fn what_a_scheduler_sends_ends_a_run_with_a_status_of_its_own() {
    for signal in ["-TERM", "-USR1", "-USR2"] {
        stopped(signal, |output| {
            assert_eq!(output.status.code(), Some(75), "{signal}: {:?}", output.status.signal());
            let said = stderr(output);
            assert!(
                said.contains("told to stop: ") && said.contains("go on with the same command"),
                "{signal}: {said}"
            );
        });
    }
    stopped("-INT", |output| assert_eq!(output.status.code(), Some(130)));
}

#[test]
fn a_second_writer_is_refused_also_from_elsewhere() {
    let site = site();
    site.run(&["sweep", "matrix.toml", "-n", "1", "--out", "run", "--quiet"], 0);
    let mut first = site.spattn(&["sweep", "matrix.toml", "-n", "200", "--out", "run", "--resume", "--quiet"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !site.path("run/.owner").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no owner");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = stderr(&site.run(&["sweep", "matrix.toml", "--out", "run", "--resume"], 2));
    assert!(said.contains(&format!("is being written by process {}", first.id())), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    // A killed process leaves its name behind. No other process on this machine holds the lock, so the run can be resumed.
    assert!(site.path("run/.owner").exists());
    site.run(&["sweep", "matrix.toml", "-n", "1", "--out", "run", "--resume", "--quiet"], 0);
    // A process on another machine renews its name, because its lock is not visible here.
    let owner = site.path("run/.owner");
    let line = |count: u32| format!("{{\"host\":\"elsewhere\",\"pid\":7,\"since\":1,\"count\":{count}}}\n");
    fs::write(&owner, line(0)).unwrap();
    let second = site.spattn(&["sweep", "matrix.toml", "-n", "2", "--out", "run", "--resume", "--quiet"]);
    let mut second = { second }.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(second.try_wait().unwrap().is_none(), "it waits to see whether the other process is alive");
    fs::write(&owner, line(1)).unwrap();
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is being written by process 7 on elsewhere"), "{}", stderr(&output));
}

/// Writes shards with records: `methods` on examples of two tasks at two lengths.
fn simulated(site: &Site, shards: usize, contexts: usize) -> usize {
    site.run(
        &[
            "sweep",
            "matrix.toml",
            "-n",
            "1",
            "--seed",
            "1",
            "-l",
            "400",
            "-t",
            "ruler/niah_single_1",
            "--out",
            "one",
            "--quiet",
        ],
        0,
    );
    let template = fs::read_to_string(site.path("one/samples.jsonl")).unwrap();
    let template: Value = serde_json::from_str(template.lines().next().unwrap()).unwrap();
    let methods: Vec<String> = (0..25).map(|k| format!("k={}", 8 * (k + 1))).collect();
    let mut number = 0u64;
    for shard in 1..=shards {
        let dir = site.path(&format!("out/shards/{shard}"));
        fs::create_dir_all(&dir).unwrap();
        let mut text = String::new();
        for context in 0..contexts {
            let sample = (shard - 1) * contexts + context;
            for (at, params) in methods.iter().enumerate() {
                let mut record = template.clone();
                number += 1;
                record["key"] =
                    format!("{:064x}", u128::from(number) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834).into();
                record["task"] = ["ruler/vt", "ruler/cwe"][sample % 2].into();
                record["length"] = [4096, 8192][sample / 2 % 2].into();
                record["sample"] = (sample / 4).into();
                record["question"] = format!("What is the number of sample {sample} of its task?").into();
                record["references"] = vec![format!("{:07}", sample * 7919)].into();
                (record["method"], record["params"]) = match at {
                    0 => ("full".into(), "".into()),
                    _ => ("topk".into(), params.as_str().into()),
                };
                record["density"] = (if at == 0 { 1.0 } else { 0.01 * at as f64 }).into();
                record["score"] = [0.0, 0.5, 1.0][(sample * 31 + at * 17) % 3].into();
                text += &format!("{record}\n");
            }
        }
        fs::write(dir.join("samples.jsonl"), text).unwrap();
        fs::copy(site.path("one/manifest.json"), dir.join("manifest.json")).unwrap();
        fs::write(
            dir.join("attempts.jsonl"),
            format!(
                "{{\"started\":{{\"at\":1000,\"node\":\"n\",\"pid\":1,\"records\":0}}}}\n\
                 {{\"ended\":{{\"at\":2000,\"end\":\"done\",\"records\":{}}}}}\n",
                contexts * methods.len()
            ),
        )
        .unwrap();
    }
    shards * contexts * methods.len()
}

/// Plans a thousand shards, writes their records and looks at their status. Prints the seconds of each step. No command may use more than
/// `most_kilobytes` of address space.
fn a_thousand_shards(contexts: usize, most_kilobytes: u64) {
    let site = site();
    let timed = |args: &[&str]| {
        let start = Instant::now();
        let mut command = site.spattn(&[]);
        let bounded = format!("ulimit -v {most_kilobytes} && exec \"$0\" \"$@\"");
        let mut sh = Command::new("sh");
        sh.args(["-c", &bounded, env!("CARGO_BIN_EXE_spattn")]).args(args).current_dir(site.temp.path());
        sh.envs(command.env("RAYON_NUM_THREADS", "2").get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = sh.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        println!("{:.1} s: spattn {}", start.elapsed().as_secs_f64(), args.join(" "));
        stdout(&output)
    };
    let (samples, grid) = ((250 * contexts).to_string(), "topk:k=8..192/8");
    let tasks = ["-t", "ruler/vt,ruler/cwe", "-l", "4K,8K", "--seed", "1", "-m", grid, "-n", &samples];
    let launch = ["sweep", "matrix.toml", "--launch", "slurm", "--jobs", "1000", "--out", "out", "--dry-run"];
    let plan = timed(&[&launch[..], &tasks, &["--json"]].concat());
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let records = 1000 * contexts * 25;
    assert_eq!((plan["shards"].as_array().unwrap().len(), plan["records"].as_u64()), (1000, Some(records as u64)));
    assert!(plan["longest_over_mean"].as_f64().unwrap() < 1.2 || contexts < 4);
    assert_eq!(simulated(&site, 1000, contexts), records);
    let text = timed(&["status", "out"]);
    assert!(
        text.contains("1000 shards: 1000 done") && text.contains(&format!("{records} of {records} records")),
        "{text}"
    );
    let rows = timed(&["report", "out", "--out", "report", "--format", "csv"]);
    assert_eq!(rows.lines().count(), 1 + 4 * 25);
    let page = fs::metadata(site.path("report/report.html")).unwrap().len();
    println!("{records} records; report.html has {:.1} MB", page as f64 / 1e6);
}

#[test]
fn a_thousand_shards_are_planned_and_merged_in_seconds() {
    let start = Instant::now();
    a_thousand_shards(1, 2_000_000);
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}

#[test]
#[ignore = "a million records are gigabytes: cargo test --release --test commands launch:: -- --ignored --nocapture"]
fn a_million_records_are_reported_within_bounds() {
    a_thousand_shards(40, 3_000_000);
}
