//! The program as users run it: arguments in; exit status, output and files out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::program::{Ran, Spattn, spattn};

// ---- results of a run ----

/// A folder for a run, removed at the end of the test.
struct Out {
    _temp: TempDir,
    dir: PathBuf,
}

fn out() -> Out {
    let temp = TempDir::new().unwrap();
    Out { dir: temp.path().join("run"), _temp: temp }
}

impl Out {
    fn arg(&self) -> &str {
        self.dir.to_str().unwrap()
    }

    fn read(&self, name: &str) -> String {
        read(&self.dir.join(name))
    }

    fn records(&self) -> BTreeMap<String, Map<String, Value>> {
        records(&self.dir)
    }
}

#[track_caller]
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The fields that may differ between two equal runs.
const TIMES: [&str; 19] = [
    "prefill_s",
    "prefill_reused_s",
    "reused_tokens",
    "index_s",
    "index_reused_s",
    "decode_s",
    "select_s",
    "attend_s",
    "weights_s",
    "solo",
    "conditions",
    "decode_ms_per_token",
    "decode_ms_low",
    "decode_ms_high",
    "timed",
    "select_ms_per_token",
    "attend_ms_per_token",
    "weights_ms_per_token",
    "time",
];

fn without_times(mut object: Map<String, Value>) -> Map<String, Value> {
    TIMES.iter().for_each(|name| drop(object.remove(*name)));
    object
}

/// The records of a folder by key, without times. Checks that each line is complete and that each key occurs once.
#[track_caller]
fn records(dir: &Path) -> BTreeMap<String, Map<String, Value>> {
    let mut records = BTreeMap::new();
    for line in read(&dir.join("samples.jsonl")).lines() {
        let record: Map<String, Value> = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let key = record["key"].as_str().unwrap().to_owned();
        assert!(records.insert(key, without_times(record)).is_none(), "twice: {line}");
    }
    records
}

/// The rows of a summary printed with `--json`, without times.
fn summary(ran: &Ran) -> Vec<Map<String, Value>> {
    let rows = ran.json();
    rows.as_array().unwrap().iter().map(|row| without_times(row.as_object().unwrap().clone())).collect()
}

fn lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count())
}

/// The smallest run of the built-in model: one task, one example, two methods. Further arguments may follow.
fn tiny(out: &Out) -> Spattn {
    spattn(&["eval", "--out", out.arg(), "-t", "ruler/niah_single_1", "-l", "512", "-n", "1", "-m", "topk:k=16"])
}

/// A run of many short examples that takes long enough to be stopped.
fn long<'a>(out: &'a Out, more: &[&'a str]) -> Spattn {
    let tasks = ["-t", "ruler/niah_single_2", "-t", "ruler/niah_multiquery", "-l", "1024", "-n", "4"];
    spattn(&["eval", "--json", "--out", out.arg(), "-m", "topk:k=16", "-m", "random:ratio=0.125"])
        .args(&tasks)
        .args(more)
}

/// Waits until `count` records are written.
#[track_caller]
fn wait_for_records(child: &mut Child, dir: &Path, count: usize) {
    let started = Instant::now();
    while lines(&dir.join("samples.jsonl")) < count {
        assert!(started.elapsed() < Duration::from_secs(60), "no records yet");
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// ---- wrong arguments ----

/// Expects exit status 2 before any work: the output folder must not be created.
fn refused(args: &[&str], what: &str, hint: &str) {
    let out = out();
    spattn(&["eval", "--out", out.arg()]).args(args).fails(2, what, hint);
    assert!(!out.dir.exists(), "{args:?}");
}

#[test]
fn unknown_names_suggest_the_nearest() {
    refused(&["-t", "ruler/niah_single1"], "unknown task `ruler/niah_single1`", "`ruler/niah_single_1`");
    refused(&["-t", "cwe"], "unknown task `cwe`", "did you mean `ruler/cwe`?");
    refused(&["-t", "hotpotqa"], "unknown task `hotpotqa`", "did you mean `longbench/hotpotqa`?");
    refused(&["-t", "zzz"], "unknown task `zzz`", "`spattn list tasks` shows all");
    refused(&["-m", "topkk"], "unknown method `topkk`", "`topk`");
    refused(&["-m", "quest:pages=16"], "method `quest` has no parameter `pages`", "`page`");
    refused(&["-m", "quest:preset=papr"], "method `quest` has no preset `papr`", "paper");
    refused(&["--model", "buitlin"], "`buitlin` is not a model", "`builtin`");
    refused(&["--device", "coda"], "unknown device `coda`", "cuda");
    refused(&["--dtype", "f33"], "unknown dtype `f33`", "f32");
    refused(&["--positions", "publish"], "unknown positions `publish`", "`published`");
    refused(&["--sparse-from", "qestion"], "unknown start of sparse attention `qestion`", "question");
    refused(&["-t", "jsonl:x.jsonl:metric=qa_f2,max_new_tokens=8"], "unknown metric `qa_f2`", "`qa_f1`");
    refused(&["-t", "jsonl:x.jsonl:metrics=qa_f1"], "unknown option of jsonl: `metrics`", "`metric`");
    spattn(&["score", "x.jsonl", "--metric", "qaf1"]).fails(2, "unknown metric `qaf1`", "`qa_f1`");
    spattn(&["score", "x.jsonl", "--dataset", "hotpot"]).fails(2, "hotpot", "hotpotqa");
    spattn(&["score", "/nowhere.jsonl", "--metric", "qa_f1"]).fails(2, "cannot read /nowhere.jsonl", "JSON object");
}

#[test]
fn budgets_out_of_range_and_malformed_specs() {
    refused(&["-m", "quest:k=0"], "`k=0` is out of range", "whole number from 1");
    refused(&["-m", "topk:k=-3"], "`k=-3`", "whole number from 0");
    refused(&["-m", "topk:k=x"], "`k=x`", "whole number from 0");
    refused(&["-m", "topk:ratio=1.5"], "`ratio=1.5` is out of range", "at most 1");
    refused(&["-m", "topk:ratio=0"], "`ratio=0` is out of range", "above 0");
    refused(&["-m", "topk:ratio=NaN"], "`ratio=NaN`", "above 0");
    refused(&["-m", "topk:k={16"], "braces do not match", "name:key=value");
    refused(&["-m", "topk:k={}"], "a value is empty", "name:key=value");
    refused(&["-m", "topk:k=8..2"], "range `8..2` is empty", "a..b/step");
    refused(&["-m", "topk:k=1..9/0"], "endless", "a..b/step");
    refused(&["-m", "topk:k=1..999999"], "larger than", "a..b/step");
    refused(&["-m", "topk:k"], "`k` is not key=value", "name:key=value");
    refused(&["-m", "topk:k=1,k=2"], "`k` is given twice", "name:key=value");
    refused(&["-m", ""], "the name is missing", "name:key=value");
    refused(&["--no-full", "--config", "quick", "-m", ":"], "name is missing", "name:key=value");
}

#[test]
fn what_cannot_be_run_is_said_before_any_work() {
    refused(&["-l", "40000"], "40000 tokens, is beyond the context of builtin (32768)", "--allow-extrapolation");
    refused(&["-t", "ruler/niah_single_1", "-l", "1024", "-l", "64"], "cannot fit 64 tokens", "longer length");
    refused(&["-l", "0"], "a length of 0", "--length");
    refused(&["--dense-layers", "99"], "dense layer 99 does not exist", "layers 0 to 9");
    for (spec, wrong) in [
        ("loki:rank=65", "`rank=65`"),
        ("sparq:r=100,k=64", "`r=100`"),
        ("double_sparsity:channels=128", "`channels=128`"),
        ("pqcache:subspaces=65", "`subspaces=65`"),
        ("hip:top_r=70", "`top_r=70`"),
    ] {
        refused(&["-m", spec], &format!("{wrong} is more channels than a head of builtin has"), "at most 64");
    }
    refused(&["--dense-layers", "first"], "dense layers `first`", "none, 0, 0+1");
    refused(&["--sparse-from", "prefill", "-m", "snapkv"], "has no prefill pattern", "--sparse-from decode");
    refused(
        &["--sparse-from", "last:0"],
        "unknown start of sparse attention `last:0`",
        "last:N (N from 1 to 16777216)",
    );
    for shard in ["3/2", "0/2", "1", "a/b", "1/0"] {
        refused(&["--shard", shard], &format!("`{shard}` is not a shard of a run"), "--shard 1/4");
    }
    refused(&["--data", "/nowhere"], "cannot read the data folder /nowhere", "--data");
    refused(&["-t", "ruler/qa_1"], "ruler/qa_1", "ruler/qa_synth");
    spattn(&["eval", "--resume"]).fails(2, "need to know the run's folder", "--out DIR");
    spattn(&["eval", "--overwrite"]).fails(2, "need to know the run's folder", "--out DIR");
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_build_without_cuda_says_so() {
    refused(&["--device", "cuda"], "this build computes on the CPU only", "--device cpu");
    refused(&["--device", "cuda:1"], "this build computes on the CPU only", "--device cpu");
}

#[test]
fn random_weights_have_a_shape_and_say_that_scores_mean_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let shape = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16384, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true}"#;
    let file = dir.path().join("shape.json");
    std::fs::write(&file, shape).unwrap();
    let run = |out: &str| {
        let out = dir.path().join(out);
        let shape = ["--random-weights", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
        spattn(&["eval", "-t", "ruler/vt", "-l", "1K", "-n", "1", "-m", "topk:k=8"]).args(&shape).ok()
    };
    let (first, second) = (run("a"), run("b"));
    let told = "has random weights: times and memory are valid for its shape, but scores are meaningless";
    assert!(first.stdout.contains(told) || first.stderr.contains(told), "{}{}", first.stdout, first.stderr);
    let predictions = |out: &str| -> Vec<Value> {
        let records = std::fs::read_to_string(dir.path().join(out).join("samples.jsonl")).unwrap();
        records.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["prediction"].clone()).collect()
    };
    assert_eq!(predictions("a"), predictions("b"), "the same seed draws the same weights");
    assert_eq!(second.status, first.status);
}

#[test]
fn arguments_that_the_parser_refuses_end_with_2() {
    let wrong: [&[&str]; 10] = [
        &["eval", "--bogus"],
        &["evil"],
        &["eval", "--length", "-5"],
        &["eval", "--samples", "many"],
        &["eval", "--samples", "0"],
        &["eval", "--threads", "0"],
        &["eval", "--resume", "--overwrite"],
        &["list", "everything"],
        &["score", "x.jsonl"],
        &["completions", "tcsh"],
    ];
    for args in wrong {
        let ran = spattn(args).run();
        ran.check(ran.status == Some(2) && ran.stderr.starts_with("error: ") && ran.stdout.is_empty(), "status 2");
    }
}

#[test]
fn config_files_are_checked_by_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("matrix.toml");
    let path = file.to_str().unwrap();
    refused(&["--config", path], &format!("cannot read config {path}"), "quick");
    for (text, what, hint) in [
        ("samples = 1\nlenghts = [1]\n", "matrix.toml:2: unknown key `lenghts`", "`lengths`"),
        ("samples = 1\n\nseed = 'x'\n", "matrix.toml:3: ", "spattn list configs"),
        ("samples = \n", "matrix.toml:1: ", "spattn list configs"),
        ("tasks = []\n", "no task was given", "--task"),
        ("tasks = ['ruler/vt']\nlengths = []\n", "no length was given", "--length"),
        ("methods = ['topq']\n", "unknown method `topq`", "`top"),
    ] {
        fs::write(&file, text).unwrap();
        refused(&["--config", path], what, hint);
    }
    fs::write(&file, "tasks = ['ruler/niah_single_1']\nlengths = [512]\nsamples = 3\nmethods = ['topk:k=16']\n")
        .unwrap();
    let out = out();
    spattn(&["eval", "--out", out.arg(), "--config", path, "-n", "1"]).ok();
    assert_eq!(out.records().len(), 2, "flags override the file");
}

// ---- models ----

/// A copy of the built-in model's folder, without calibration.
fn model_copy() -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}

#[test]
fn a_damaged_model_folder_is_one_line() {
    refused(&["--model", "./nowhere"], "the model folder `./nowhere` does not exist", "config.json");
    refused(&["--model", file!()], "is a file, neither a folder nor a GGUF file", "config.json");
    let model = model_copy();
    let folder = model.path().to_str().unwrap();
    let out = out();
    let damaged = |name: &str, damage: &dyn Fn(&Path), status, what: &str, hint: &str| {
        let file = model.path().join(name);
        let whole = fs::read(&file).unwrap();
        damage(&file);
        tiny(&out).args(&["--model", folder]).fails(status, what, hint);
        assert!(!out.dir.exists());
        fs::write(&file, whole).unwrap();
    };
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    damaged("config.json", &remove, 2, "no config.json in this folder", "a model folder holds");
    damaged("tokenizer.json", &remove, 2, "no tokenizer.json in this folder", "a model folder holds");
    damaged("model.safetensors", &remove, 2, "no model.safetensors and no", "a model folder holds");
    let cut = |file: &Path| fs::write(file, &fs::read(file).unwrap()[..100_000]).unwrap();
    damaged("model.safetensors", &cut, 1, "model.safetensors: truncated: ", "");
    damaged("tokenizer.json", &cut, 2, "tokenizer.json: not a tokenizer", "");
    let edit = |from: &'static str, to: &'static str| {
        move |file: &Path| {
            let text = read(file);
            assert!(text.contains(from), "{text}");
            fs::write(file, text.replace(from, to)).unwrap();
        }
    };
    let config = "config.json";
    damaged(config, &edit("\"hidden_size\"", "\"hiden_size\""), 2, "the key `hidden_size` is missing", "");
    damaged(config, &edit("\"hidden_size\": 256", "\"hidden_size\": \"x\""), 2, "`hidden_size`: expected a whole", "");
    damaged(config, &edit("LlamaForCausalLM", "BertModel"), 2, "`BertModel` is not supported", "LlamaForCausalLM");
    damaged(config, &edit("\"hidden_size\": 256", "\"hidden_size\": 128"), 2, "has shape [8192, 256]", "two models");
    damaged(config, &edit("{", ""), 2, "config.json: not valid JSON", "");
    tiny(&out).args(&["--model", folder]).ok();
    assert_eq!(out.records().len(), 2);
}

/// Overwrites the first numbers of a tensor in a 16-bit checkpoint.
fn overwrite(model: &Path, tensor: &str, bits: &[u16]) {
    let file = model.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let start = header + entries[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    for (at, bits) in bits.iter().enumerate() {
        bytes[start + 2 * at..][..2].copy_from_slice(&bits.to_le_bytes());
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn numbers_that_are_none_end_a_run_instead_of_scoring_nothing() {
    // Numbers in bf16.
    const NAN: u16 = 0x7fc0;
    const LARGEST: u16 = 0x7f7f;
    const HUNDRED_THOUSAND: u16 = 0x47c3;
    let broken = |tensor: &str, bits: &[u16], more: &[&str], what: &str| {
        let (model, out) = (model_copy(), out());
        overwrite(model.path(), tensor, bits);
        let folder = model.path().to_str().unwrap();
        tiny(&out).args(&["--model", folder]).args(more).fails(1, what, "");
        assert!(lines(&out.dir.join("samples.jsonl")) == 0, "nothing is recorded");
    };
    let weight = "model.layers.1.mlp.down_proj.weight";
    broken(weight, &[0, 0, NAN], &[], "tensor `model.layers.1.mlp.down_proj.weight` holds NaN at [0, 2]");
    // Finite weights that lead to infinite activations. The first two layers are fine.
    let norm = "model.layers.2.input_layernorm.weight";
    broken(weight, &[HUNDRED_THOUSAND], &["--dtype", "f16"], "holds 99840, beyond what f16 can hold");
    let large = vec![LARGEST; 256];
    broken(
        norm,
        &large,
        &[],
        "question: ruler/niah_single_1 at 512, example 0: the prefill failed: the activations after layer 2 are NaN or \
         infinite at position 0",
    );
}

#[test]
fn a_tokenizer_of_another_model_is_one_line() {
    let model = TempDir::new().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/qwen3");
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for (from, name) in [
        (&golden, "config.json"),
        (&golden, "model.safetensors"),
        (&builtin, "tokenizer.json"),
        (&builtin, "tokenizer_config.json"),
    ] {
        fs::copy(from.join(name), model.path().join(name)).unwrap();
    }
    let out = out();
    let what = "gives token";
    tiny(&out).args(&["--model", model.path().to_str().unwrap()]).fails(
        2,
        what,
        "tokenizer.json belongs to another model",
    );
}

// ---- calibration ----

/// Calibrates with few tokens.
fn calibrate(args: &[&str]) -> Spattn {
    spattn(&["calibrate", "--tokens", "700", "--length", "300", "--quiet"]).args(args)
}

#[test]
fn a_model_is_calibrated_and_evaluated() {
    let (out, other, dir) = (out(), out(), TempDir::new().unwrap());
    let folder = dir.path().to_str().unwrap();
    let ran = calibrate(&["--out", folder]).ok();
    ran.prints("builtin: 700 tokens in 3 blocks (grammar, 300 tokens a block)");
    ran.prints("tokens in 2 blocks (training rows of 256 tokens and more, 300 tokens a block)");
    let notes = [
        ("double_sparsity", "of 64 channels carry"),
        ("loki", "of 64 components hold"),
        ("duo_attention", "nothing was measured: no prompt is longer than the 384 tokens"),
        ("hash_attention", "text not yet learned"),
    ];
    for (kind, note) in notes {
        ran.prints(&format!("{folder}/{kind}.safetensors"));
        ran.prints(note);
    }
    let written = fs::read(dir.path().join("loki.safetensors")).unwrap();
    let methods = ["-m", "loki:k=16", "-m", "double_sparsity:k=16"];
    tiny(&out).args(&methods).args(&["--calibration", folder]).ok();
    let manifest: Value = serde_json::from_str(&out.read("manifest.json")).unwrap();
    assert_eq!(manifest["calibration"]["loki"], spattn::model::checksum::sha256_hex(&written));
    assert_eq!(manifest["calibration"].as_object().unwrap().len(), 2);
    // Another calibration gives this method other records, and leaves those of other methods unchanged.
    tiny(&other).args(&methods).ok();
    let (ours, theirs) = (out.records(), other.records());
    let common: Vec<&Value> =
        ours.keys().filter(|key| theirs.contains_key(*key)).map(|key| &ours[key]["method"]).collect();
    assert_eq!((ours.len(), theirs.len(), common.len()), (4, 4, 2), "{common:?}");
    assert!(common.iter().all(|m| ["full", "topk"].contains(&m.as_str().unwrap())));
    let resume = tiny(&out).args(&methods).args(&["--resume"]);
    resume.fails(2, "was run with other settings: the calibration of double_sparsity has changed since", "--overwrite");
    assert_eq!(out.records(), ours);
    tiny(&out).args(&["--resume", "-m", "quest"]).ok();
    assert_eq!(out.records().len(), 5, "methods without calibration may be added");
}

#[test]
fn a_calibration_is_outlined_and_refused_where_it_would_fail() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("new/learned");
    let out = folder.to_str().unwrap();
    let dry = |args: &[&str]| calibrate(args).args(&["--dry-run"]);
    let ran = dry(&["--out", out]).ok();
    ran.prints("double_sparsity, loki: 700 tokens in 3 blocks (grammar, 300 tokens a block)");
    ran.prints(&format!("  loki -> {out}/loki.safetensors"));
    ran.prints("held-out blocks that measure it");
    ran.prints("builtin would be calibrated: reading takes about ");
    assert!(!dir.path().join("new").exists(), "nothing is made");
    let own = dry(&["hash_attention:steps=8", "--out", out]).ok();
    own.prints("  hash_attention:steps=8 -> ");
    // What fails in a calibration fails in its dry run, with the same words.
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let short = dir.path().join("short.txt");
    fs::write(&short, "Too short.").unwrap();
    let nets = dir.path().join("nets");
    fs::create_dir(&nets).unwrap();
    fs::write(nets.join("loki.safetensors"), "somebody else's").unwrap();
    let (file, short, nets) = (file.to_str().unwrap(), short.to_str().unwrap(), nets.to_str().unwrap());
    for args in [
        &["loki", "--out", file][..],
        &["loki", "--out", nets],
        &["loki", "--data", short, "--out", out],
        &["loki", "--resume", "--out", out],
        &["loki:rank=-1", "--out", out],
        &["loki", "-t", "ruler/qa_1", "--out", out],
        &["hash_attention", "--import", file, "--out", out],
        &["loki"],
    ] {
        let is_import = args.contains(&"--import");
        let run = |dry: &[&str]| {
            let all = [args, dry].concat();
            let ran = if is_import { spattn(&["calibrate"]).args(&all).run() } else { calibrate(&all).run() };
            assert_eq!(ran.status, Some(2), "{args:?}: {}{}", ran.stdout, ran.stderr);
            ran.stderr
        };
        let before = folder.exists();
        let told = run(&["--dry-run"]);
        assert_eq!(folder.exists(), before, "{args:?}");
        assert_eq!(told, run(&[]), "{args:?}");
    }
}

/// Sink, window and question are always attended. A density below theirs is reported before the run spends any time.
#[test]
fn a_dry_run_says_which_densities_cannot_be_met() {
    let notes = |args: &[&str]| {
        let ran = spattn(&["eval", "-t", "ruler/niah_single_2", "-l", "512", "-n", "1", "--dry-run"]).args(args).ok();
        ran.stdout.lines().filter(|line| line.contains(" cannot be met on ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let low = ["-m", "quest:density=0.02", "-m", "h2o:density=0.5"];
    let told = notes(&low);
    let [line] = told.as_slice() else { panic!("{told:?}") };
    assert!(
        line.starts_with("note: quest:page=16,density=0.02 cannot be met on ruler/niah_single_2 at 512 tokens: "),
        "{line}"
    );
    assert!(line.contains("--local 16 --tail indexed"), "the way is named: {line}");
    // The remedy that the note names works.
    assert_eq!(notes(&["-m", "quest:density=0.1", "--local", "16", "--tail", "indexed"]), [""; 0]);
    let json =
        spattn(&["eval", "-t", "ruler/niah_single_2", "-l", "512", "-n", "1", "--dry-run", "--json"]).args(&low).ok();
    let plan: Value = serde_json::from_str(&json.stdout).unwrap();
    let least = plan[0]["densities_not_possible"][0]["least"].as_f64().unwrap();
    // The run attends no less than the note says, and a method that selects next to nothing attends little more.
    let out = out();
    spattn(&[
        "eval",
        "-t",
        "ruler/niah_single_2",
        "-l",
        "512",
        "-n",
        "1",
        "--out",
        out.arg(),
        "-m",
        "random:density=0.02",
    ])
    .ok();
    let attended = out.records().values().find(|r| r["method"] == "random").unwrap()["density"].as_f64().unwrap();
    assert!(least <= attended + 0.01 && attended < least + 0.03, "{least} {attended}");
}

/// The number in the note is the smallest: with one example less, the run itself says that there are too few.
#[test]
fn a_dry_run_says_when_so_few_examples_cannot_tell() {
    let line = |args: &[&str]| {
        let ran = spattn(&["eval", "-t", "ruler/niah_single_2", "-l", "512", "--dry-run", "-m", "quest:density=0.5"])
            .args(args)
            .ok();
        ran.stdout.lines().find(|line| line.starts_with("note: with")).map(str::to_owned)
    };
    let two = line(&["-n", "2", "--safe-within", "60"]).unwrap();
    assert!(
        two.starts_with("note: with -n 2 every verdict will be \"too few examples\" (within 60 points, 95 % sure): "),
        "{two}"
    );
    // A file with as many rows as were asked for has no more.
    let folder = TempDir::new().unwrap();
    let row = "{\"context\": \"The key is 7.\", \"question\": \"What is the key?\", \"answer\": \"7\"}\n";
    fs::write(folder.path().join("rows.jsonl"), row.repeat(3)).unwrap();
    let file = format!("jsonl:{}", folder.path().join("rows.jsonl").display());
    for n in ["3", "40"] {
        let ran = spattn(&["eval", "-t", &file, "-n", n, "--dry-run", "-m", "quest:density=0.5"]).ok();
        ran.check(
            ran.stdout.contains("note: with 3 examples in the file ") && !ran.stdout.contains("from -n"),
            "no flag",
        );
    }
    let needed: usize = two.rsplit_once("from -n ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(line(&["-n", &needed.to_string(), "--safe-within", "60"]), None);
    assert!(line(&["-n", &(needed - 1).to_string(), "--safe-within", "60"]).is_some());
    // More settings and a smaller limit need more examples.
    let strict = line(&["-n", "20", "-m", "h2o:density=0.1", "--safe-within", "5"]).unwrap();
    assert!(
        strict.contains(
            "no method can be called safe, only not safe (within 5 points, 95 % sure for all 2 settings together)"
        ),
        "{strict}"
    );
    assert_eq!(line(&["-n", "2", "--shard", "1/2"]), None, "a shard is a part");
    // A run with that many examples gives a verdict; a run with one less does not.
    let run = |n: usize| {
        let out = TempDir::new().unwrap();
        let (n, out) = (n.to_string(), out.path().join("run"));
        let args = ["-n", n.as_str(), "--safe-within", "60", "--quiet", "--out", out.to_str().unwrap()];
        spattn(&["eval", "-t", "ruler/niah_single_2", "-l", "512", "-m", "quest:density=0.9"]).args(&args).run().status
    };
    assert_eq!((run(needed), run(needed - 1)), (Some(0), Some(3)));
}

#[test]
fn calibrating_twice_gives_the_same_bytes_on_any_number_of_threads() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    calibrate(&["--threads", "1", "--out", one.path().to_str().unwrap()]).ok();
    calibrate(&["--threads", "3", "--out", two.path().to_str().unwrap()]).ok();
    for kind in ["double_sparsity", "loki", "duo_attention", "hash_attention"] {
        let bytes = |dir: &TempDir| fs::read(dir.path().join(format!("{kind}.safetensors"))).unwrap();
        assert!(bytes(&one) == bytes(&two), "{kind}");
    }
}

#[test]
fn a_missing_or_wrong_calibration_is_said_before_any_work_with_the_command_that_makes_it() {
    let (model, dir) = (model_copy(), TempDir::new().unwrap());
    let (folder, given) = (model.path().to_str().unwrap(), dir.path().to_str().unwrap());
    let own = ["--model", folder, "-m", "loki"];
    let command = format!("spattn calibrate loki --model {folder}`");
    refused(&own, &format!("method `loki` needs a calibration of {folder}: no {folder}/calibration/loki"), &command);
    let elsewhere = ["-m", "loki", "--calibration", given];
    let command = format!("spattn calibrate loki --model builtin --out {given}`");
    refused(&elsewhere, "method `loki` needs a calibration of builtin", &command);
    // The command in the hint works.
    calibrate(&["loki", "--model", folder]).ok();
    let artefact = model.path().join("calibration/loki.safetensors");
    assert_eq!(fs::read_dir(artefact.parent().unwrap()).unwrap().count(), 1);
    let out = out();
    tiny(&out).args(&own).ok();
    assert_eq!(out.records().len(), 3);
    // A truncated file, a file of another kind, and a file for another model.
    let whole = fs::read(&artefact).unwrap();
    fs::write(&artefact, &whole[..whole.len() - 10]).unwrap();
    refused(&own, "loki.safetensors: truncated", "spattn calibrate loki");
    fs::write(&artefact, &whole).unwrap();
    fs::copy(&artefact, artefact.with_file_name("double_sparsity.safetensors")).unwrap();
    let other = ["--model", folder, "-m", "double_sparsity"];
    refused(&other, "calibrates `loki`, not `double_sparsity`", "spattn calibrate double_sparsity");
    let weights = model.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(&own, "loki.safetensors: made from other weights (", "spattn calibrate loki");
    let random = ["--model", folder, "-m", "double_sparsity:kind=random"];
    tiny(&out).args(&random).args(&["--overwrite"]).ok();
}

#[test]
fn calibration_reads_files_and_prompts_and_says_what_it_cannot_read() {
    let dir = TempDir::new().unwrap();
    let (folder, text) = (dir.path().to_str().unwrap(), dir.path().join("text.txt"));
    let text = text.to_str().unwrap();
    let wrong = |args: &[&str], what: &str, hint: &str| drop(calibrate(args).fails(2, what, hint));
    wrong(&["--method", "lokki", "--out", folder], "unknown calibrated method `lokki`", "`loki`");
    wrong(&[], "builtin has no folder to write to", "--calibration DIR");
    wrong(&["-m", "loki:rank=3", "--out", folder], "`loki` has no parameter `rank`", "it has no parameters here");
    wrong(&["-m", "hash_attention:rate=0", "--out", folder], "`rate=0` is out of range", "above 0");
    wrong(&["-m", "loki", "-m", "loki", "--out", folder], "calibration `loki` is given twice", "--out DIR");
    wrong(&["-m", "hash_attention", "--resume", "--out", folder], "no checkpoint to resume from", "leave --resume out");
    wrong(&["--out", folder, "--data", text], "cannot read", "text files");
    fs::write(text, "").unwrap();
    wrong(&["--out", folder, "--data", text], "there is no text in", "");
    fs::write(text, "A short story about nothing at all. ".repeat(60)).unwrap();
    wrong(&["--out", file!()], "cannot write to the folder", "--out");
    let long = spattn(&["calibrate", "--out", folder, "--length", "40000"]);
    long.fails(2, "blocks of 40000 tokens are beyond the context of builtin", "shorter --length");
    let short = spattn(&["calibrate", "-m", "hash_attention", "--length", "100", "--out", folder]);
    short.fails(2, "256 tokens and more have at least 256 tokens", "--data");
    spattn(&["calibrate", "--out", folder, "--tokens", "0"]).fails(2, "--tokens or --length is 0", "from 1");
    assert!(!dir.path().join("loki.safetensors").exists());
    let ran = calibrate(&["-m", "loki", "--out", folder, "--data", text, "-t", "ruler/niah_single_1"]).ok();
    ran.prints("text.txt (");
    ran.prints(") + ruler/niah_single_1, 300 tokens a block");
    assert!(dir.path().join("loki.safetensors").exists() && !dir.path().join("double_sparsity.safetensors").exists());
}

#[test]
fn lengths_beyond_the_context_need_the_users_word() {
    let (model, out) = (model_copy(), out());
    let config = model.path().join("config.json");
    fs::write(&config, read(&config).replace("\"max_position_embeddings\": 32768", "\"max_position_embeddings\": 300"))
        .unwrap();
    let folder = model.path().to_str().unwrap();
    let run = || tiny(&out).args(&["--model", folder]);
    run().fails(2, "512 tokens, is beyond the context of", "--allow-extrapolation");
    assert!(!out.dir.exists());
    // All rows of files are checked before any is run.
    let file = model.path().join("long.jsonl");
    fs::write(&file, format!("{}\n", row(1))).unwrap();
    let task = format!("jsonl:{}", file.display());
    let rows = spattn(&["eval", "--out", out.arg(), "--model", folder, "-t", &task]);
    let ran = rows.fails(2, "long.jsonl:1: the prompt with its answer, ", "leave the row out");
    ran.check(!ran.stderr.contains("--resume"), "no word about records where there are none");
    run().args(&["--allow-extrapolation"]).ok();
    assert_eq!(out.records().len(), 2);
}

#[test]
fn without_network_a_hub_id_says_what_to_do() {
    let (home, out) = (TempDir::new().unwrap(), out());
    let cache = format!("is not in the cache {}/hub and cannot be downloaded: HF_HUB_OFFLINE", home.path().display());
    let run = || tiny(&out).env("HF_HOME", home.path());
    run().args(&["--model", "org/model"]).fails(2, &cache, "hf download org/model");
    run().args(&["--data", "hub:org/data"]).fails(2, &cache, "hf download --repo-type dataset org/data");
    run().args(&["--data", "hub:data"]).fails(2, "`hub:data` is not the name of a data set", "hub:organisation/name");
    assert!(!out.dir.exists());
}

#[test]
fn a_data_set_in_the_cache_is_used_and_its_commit_recorded() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let (home, out) = (TempDir::new().unwrap(), out());
    let root = home.path().join("hub/datasets--org--data");
    let essays = root.join("snapshots").join(COMMIT).join("essays");
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::create_dir_all(&essays).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::write(essays.join("a.txt"), "The river was high and the road was long. ".repeat(400)).unwrap();
    let run = || {
        spattn(&["eval", "--out", out.arg(), "-t", "ruler/niah_single_2", "-l", "512", "-n", "1", "-m", "topk"])
            .args(&["--data", "hub:org/data", "--json"])
            .env("HF_HOME", home.path())
    };
    let ran = run().ok();
    ran.check(ran.stderr.starts_with("note: ") && ran.stderr.contains("org/data"), "it says that it cannot know");
    let manifest: Value = serde_json::from_str(&out.read("manifest.json")).unwrap();
    let recorded = manifest["identity"]["data"].as_str().unwrap();
    assert!(recorded.starts_with(&format!("hub:org/data@{COMMIT}")), "{recorded}");
    assert_eq!(manifest["config"]["data"], "hub:org/data");
    assert!(out.records().values().all(|r| r["source"].as_str().unwrap().contains("essays=essays")));
    // The same data, named with their commit.
    run().args(&["--resume"]).ok();
    assert_eq!(out.records().len(), 2);
}

// ---- output folders ----

#[test]
fn output_folders_are_not_overwritten_by_accident() {
    let out = out();
    tiny(&out).ok();
    let before = out.records();
    tiny(&out).fails(2, "already holds records of a run", "--resume continues it, --overwrite");
    assert_eq!(out.records(), before);
    tiny(&out).args(&["--seed", "7", "--overwrite"]).ok();
    assert!(out.records().values().all(|r| r["seed"] == 7));
}

#[test]
fn an_output_that_cannot_be_written_is_one_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let run = |to: &Path| spattn(&["eval", "--out", to.to_str().unwrap()]);
    run(&file).fails(2, "file is a file, not a folder", "another --out folder");
    run(&file.join("run")).fails(2, "cannot write to the folder", "another --out folder");
    if Path::new("/proc/self").exists() {
        run(Path::new("/proc/run")).fails(2, "cannot write to the folder /proc/run", "another --out folder");
    }
}

/// A file system of 64 KiB, removed at the end of the test; `None` if the test may not create one.
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

#[test]
fn a_full_disk_ends_a_run_that_can_be_resumed() {
    let Some(disk) = SmallDisk::mount() else {
        return eprintln!("SKIPPED: this user may not mount a small file system");
    };
    // Enough space for the lock, the owner, the list of files, the manifest and a few records. Without the ballast, there is also enough
    // for tables and plots.
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; (2048 - 20) * 1024]).unwrap();
    let dir = disk.0.path().join("run");
    let run = || {
        let small = ["-t", "ruler/niah_single_1", "-l", "512", "-n", "4", "-m", "topk:k={8,9,10}"];
        spattn(&["eval", "--json", "--out", dir.to_str().unwrap()]).args(&small)
    };
    run().fails(
        1,
        "samples.jsonl: No space left on device",
        "records are kept; after correcting that, resume with the same command",
    );
    let kept = records(&dir);
    assert!(!kept.is_empty() && kept.len() < 16, "{}", kept.len());
    assert!(fs::read(dir.join("samples.jsonl")).unwrap().ends_with(b"\n"), "the last line is whole");
    fs::remove_file(ballast).unwrap();
    let ran = run().args(&["--resume"]).ok();
    let all = records(&dir);
    assert_eq!((all.len(), summary(&ran).len()), (16, 4));
    assert!(kept.iter().all(|(key, record)| all[key] == *record));
}

// ---- stopping and resuming ----

#[test]
fn a_killed_run_goes_on_to_the_same_results() {
    let (whole, killed) = (out(), out());
    let expected = long(&whole, &[]).ok();
    let mut child = long(&killed, &[]).spawn();
    wait_for_records(&mut child, &killed.dir, 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = lines(&killed.dir.join("samples.jsonl"));
    assert!((4..24).contains(&before), "{before} records");
    // A kill during a write leaves an incomplete line.
    let samples = killed.dir.join("samples.jsonl");
    let torn = read(&samples) + "{\"key\":\"abc\",\"mod";
    fs::write(&samples, torn).unwrap();

    let resumed = long(&killed, &["--resume"]).ok();
    resumed.check(resumed.stderr.contains("note: ") && resumed.stderr.contains("an incomplete last line"), "a notice");
    assert_eq!(summary(&resumed), summary(&expected));
    assert_eq!(killed.records(), whole.records());
    assert_eq!(whole.records().len(), 24);
    // Resuming a completed run changes nothing.
    let records = read(&samples);
    assert_eq!(summary(&long(&killed, &["--resume"]).ok()), summary(&expected));
    assert_eq!(read(&samples), records);
}

#[test]
fn only_what_leaves_results_as_they_are_may_change_when_resuming() {
    let out = out();
    tiny(&out).ok();
    let before = out.records();
    let run = |more: &[&str]| tiny(&out).args(&["--resume"]).args(more);
    for (more, key) in [
        (["--seed", "7"], "it has records of `--seed` 42, which this run leaves out"),
        (["--dtype", "f32"], "`--dtype` was \"bf16\", is \"f32\""),
        (["--sparse-from", "decode"], "it has records of `--sparse-from` question, which this run leaves out"),
        (["--positions", "published"], "`--positions` was \"varied\", is \"published\""),
        (["--latency", "solo"], "`--latency` was "),
        (["--matmul-precision", "bf16"], "`--matmul-precision` was "),
    ] {
        run(&more).fails(2, &format!("was run with other settings: {key}"), "--overwrite");
        assert_eq!(out.records(), before);
    }
    run(&["-m", "quest"]).ok();
    run(&["--threads", "1", "-t", "ruler/niah_single_2"]).ok();
    let after = out.records();
    assert_eq!(after.len(), 5, "one method and one task more");
    assert!(before.iter().all(|(key, record)| after[key] == *record));
}

#[test]
fn prompts_are_kept_where_asked_for_and_go_with_the_run() {
    let out = out();
    tiny(&out).args(&["--keep-prompts"]).ok();
    let folder = out.dir.join("prompts");
    let kept = || -> Vec<PathBuf> { fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect() };
    let [file] = &kept()[..] else { panic!("one prompt for two methods: {:?}", kept()) };
    let mut prompt = String::new();
    flate2::read::GzDecoder::new(fs::File::open(file).unwrap()).read_to_string(&mut prompt).unwrap();
    let record = out.records().into_values().next().unwrap();
    assert!(prompt.contains(record["question"].as_str().unwrap()), "{prompt}");
    assert!(prompt.contains(record["references"][0].as_str().unwrap()), "what is asked for is in the hay: {prompt}");
    // A resumed run need not store prompts.
    tiny(&out).args(&["--resume", "-t", "ruler/niah_single_2"]).ok();
    assert_eq!(kept().len(), 1);
    tiny(&out).args(&["--overwrite"]).ok();
    assert!(kept().is_empty(), "a new run");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_done_and_says_how_to_go_on() {
    let out = out();
    let mut child = long(&out, &[]).spawn();
    wait_for_records(&mut child, &out.dir, 3);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ran = Ran::new(&Command::new("spattn eval"), child.wait_with_output().unwrap());
    let kept = out.records().len();
    ran.check(ran.status == Some(130) && ran.stdout.is_empty(), "status 130, no table");
    // The command names the folder, and a flag given twice is refused.
    let expected = format!("interrupted: {kept} records are kept; go on with the same command and --resume\n");
    ran.check(ran.stderr == expected, &expected);
    assert!((3..24).contains(&kept), "{kept}");
    assert_eq!(summary(&long(&out, &["--resume"]).ok()).len(), 6);
    assert_eq!(out.records().len(), 24);
}

#[test]
fn two_writers_are_kept_apart() {
    let out = out();
    let mut child = long(&out, &[]).spawn();
    wait_for_records(&mut child, &out.dir, 1);
    long(&out, &["--resume"]).fails(2, &format!("is being written by process {}", child.id()), "wait for it");
    child.kill().unwrap();
    child.wait().unwrap();
}

// ---- results ----

#[test]
fn threads_and_shards_change_nothing() {
    let (one, two, parts) = (out(), out(), [out(), out()]);
    let run = |out: &Out| {
        let small = ["-t", "ruler/niah_multivalue", "-l", "600", "-n", "3", "-m", "oracle_sampling"];
        let observing = ["-m", "h2o", "-m", "snapkv:k=64", "-m", "infllm:page=16", "-m", "bigbird:window=64,block=16"];
        spattn(&["eval", "--out", out.arg(), "-m", "random"]).args(&small).args(&observing)
    };
    run(&one).args(&["--threads", "1"]).ok();
    run(&two).args(&["--threads", "2"]).ok();
    assert_eq!(one.records().len(), 21);
    assert_eq!(one.records(), two.records());
    run(&parts[0]).args(&["--shard", "1/2"]).ok();
    run(&parts[1]).args(&["--shard", "2/2"]).ok();
    let [mut first, second] = parts.map(|p| p.records());
    assert_eq!((first.len(), second.len()), (14, 7));
    first.extend(second);
    assert_eq!(first, one.records());
}

#[test]
fn a_report_says_which_shards_are_missing() {
    let shards = [("1/3", out()), ("2/3", out()), ("3/3", out()), ("1/2", out())];
    let small = ["-t", "ruler/niah_single_1", "-l", "512", "-n", "6", "-m", "streaming_llm", "--quiet"];
    for (shard, out) in &shards {
        spattn(&["eval", "--out", out.arg(), "--shard", shard]).args(&small).ok();
    }
    // The notes on standard error, in `summary.md` and on the page.
    let report = |which: &[usize]| -> [String; 3] {
        let both = out();
        let dirs: Vec<&str> = which.iter().map(|i| shards[*i].1.arg()).collect();
        let ran = spattn(&["report", "--out", both.arg()]).args(&dirs).ok();
        [ran.stderr, both.read("summary.md"), both.read("report.html")]
    };
    let says = |which: &[usize], what: &str| {
        report(which).iter().for_each(|text| assert!(text.contains(what), "{which:?}: {what} is missing in\n{text}"));
    };
    says(&[0, 2], "shard 2/3 of a run is missing (1/3, 3/3 here)");
    says(&[0], "shards 2/3, 3/3 of a run are missing (1/3 here)");
    says(&[3, 1], "shards from several splits of one run (1/2, 2/3)");
    let [stderr, page, _] = report(&[0, 1, 2]);
    assert!(!stderr.contains("shard") && !page.contains("- note:"), "{stderr}\n{page}");
    // Delete its last record.
    let file = shards[2].1.dir.join("samples.jsonl");
    let text = read(&file);
    let kept: Vec<&str> = text.lines().collect();
    fs::write(&file, kept[..kept.len() - 1].join("\n") + "\n").unwrap();
    says(&[0, 1, 2], "(shard 3/3) has 3 of its 4 records");
}

/// Runs perplexity over a text file.
fn perplexity<'a>(out: &'a Out, file: &Path, more: &[&'a str]) -> Spattn {
    let task = format!("ppl/file:{}:scored=48", file.display());
    spattn(&["eval", "--out", out.arg(), "-l", "256", "-n", "3", "-t", &task]).args(more)
}

#[test]
fn perplexity_resumes_shards_and_threads_to_the_same_records() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, include_str!("../golden/prose.txt")).unwrap();
    let (one, two, shards) = (out(), out(), [out(), out()]);
    let methods = ["-m", "topk:k={8,256}", "-m", "random:k=8"];
    let ran = perplexity(&one, &file, &methods).args(&["--threads", "1"]).ok();
    ran.prints("ppl/file:text:scored=48, 256 tokens (perplexity: less is better)");
    assert_eq!(one.records().len(), 12);
    // First one method without `full`, then all methods.
    perplexity(&two, &file, &["-m", "topk:k=8", "--no-full", "--threads", "2"]).ok();
    perplexity(&two, &file, &methods).args(&["--resume"]).ok();
    assert_eq!(one.records(), two.records());
    perplexity(&shards[0], &file, &methods).args(&["--shard", "1/2"]).ok();
    perplexity(&shards[1], &file, &methods).args(&["--shard", "2/2"]).ok();
    let [mut first, second] = shards.map(|out| out.records());
    first.extend(second);
    assert_eq!(one.records(), first);
    for file in ["plots/perplexity_vs_density.svg", "summary.md", "summary.csv"] {
        assert!(one.dir.join(file).is_file(), "{file}");
    }
    let record = one.records().into_values().next().unwrap();
    assert_eq!((&record["measure"], &record["likelihood"]["tokens"]), (&"perplexity".into(), &48.into()));
    assert_eq!((&record["prompt_tokens"], &record["prefix_tokens"]), (&208.into(), &207.into()));
}

/// Rounded factors have eight significant bits, so single tokens differ, but the mean over a text hardly does.
#[test]
fn products_in_bf16_are_near_those_in_f32_and_the_same_on_any_number_of_threads() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, include_str!("../golden/prose.txt")).unwrap();
    let (exact, one, two) = (out(), out(), out());
    let methods = ["-m", "quest:k=64", "--dtype", "f32"];
    let rounded = ["--matmul-precision", "bf16", "--threads"];
    perplexity(&exact, &file, &methods).ok();
    perplexity(&one, &file, &methods).args(&rounded).args(&["1"]).ok();
    perplexity(&two, &file, &methods).args(&rounded).args(&["2"]).ok();
    assert_eq!(one.records(), two.records());
    // Other settings give other keys.
    let losses = |out: &Out| -> BTreeMap<String, f64> {
        let of =
            |record: &Map<String, Value>| format!("{} {} {}", record["method"], record["params"], record["sample"]);
        out.records().values().map(|record| (of(record), record["likelihood"]["nll"].as_f64().unwrap())).collect()
    };
    let (exact, rounded) = (losses(&exact), losses(&one));
    assert_eq!((exact.len(), rounded.len()), (6, 6));
    for (of, loss) in exact {
        let rounded = rounded[&of];
        assert!(loss != rounded && (rounded / loss - 1.0).abs() < 0.01, "{of}: {rounded} for {loss}");
    }
    assert!(one.read("manifest.json").contains("\"matmul_precision\": \"bf16\""));
}

#[test]
fn perplexity_of_full_is_the_same_in_one_pass() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, include_str!("../golden/prose.txt")).unwrap();
    let rows = |protocol: &str, method: &str| {
        let (out, more) = (out(), ["--json", "--sparse-from", protocol, "-m", method, "--dtype", "f32"]);
        summary(&perplexity(&out, &file, &more).ok())
    };
    let number = |row: &Map<String, Value>, key: &str| row[key].as_f64().unwrap();
    let (live, parallel) = (rows("question", "topk:k=256"), rows("prefill", "full"));
    assert_eq!((live.len(), parallel.len()), (2, 1));
    for key in ["score", "word_perplexity", "bits_per_byte"] {
        let (a, b) = (number(&live[0], key), number(&parallel[0], key));
        assert!((a / b - 1.0).abs() < 1e-4, "{key}: {a} for {b}");
        assert!((number(&live[1], key) / b - 1.0).abs() < 1e-4, "{key} with all tokens picked");
    }
    assert!(number(&live[1], "kl_p99") < 1e-5 && number(&live[1], "same_top") == 100.0);
    let out = out();
    perplexity(&out, &file, &["--sparse-from", "prefill", "-m", "snapkv"]).fails(
        2,
        "has no prefill pattern",
        "question",
    );
}

/// A method reads a text from its middle on. With an exact tail, most attended tokens are outside the budget; with an indexed tail, they
/// are within it.
#[test]
fn an_indexed_tail_keeps_perplexity_at_its_budget_and_a_free_one_is_warned_of() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text.txt");
    let sentence =
        |i: usize| format!("The {i}th letter that the keeper of the lighthouse wrote was about the weather. ");
    fs::write(&file, (0..90).map(sentence).collect::<String>()).unwrap();
    let of = |tail: &str| {
        let out = out();
        let task = format!("ppl/file:{}:scored=600", file.display());
        let methods = ["-m", "topk:k=8,sink=2,local=8", "-m", "snapkv:k=8,sink=2,local=8", "--tail", tail];
        let ran = spattn(&["eval", "--out", out.arg(), "-t", &task, "-l", "1024", "-n", "1"]).args(&methods).ok();
        let records: Vec<Map<String, Value>> = out.records().into_values().collect();
        let find = |method: &str| records.iter().find(|r| r["method"] == method).unwrap().clone();
        (ran.stdout.clone() + &ran.stderr, find("topk"), find("snapkv"))
    };
    let (said, topk, _) = of("exact");
    assert!(said.contains("and the budget does not count them; --tail indexed counts them"), "{said}");
    assert_eq!(topk["settings"]["tail"], "exact");
    assert!(topk["free_share"].as_f64().unwrap() > 0.5, "{topk:?}");
    let exact_density = topk["density"].as_f64().unwrap();
    let (said, topk, snapkv) = of("indexed");
    assert!(!said.contains("snapkv: ") || !said.contains("topk:k=8,sink=2,local=8,tail=indexed: "), "{said}");
    assert_eq!((&topk["settings"]["tail"], &snapkv["settings"]["tail"]), (&json!("indexed"), &json!("exact")));
    assert_eq!(topk["params"], "k=8,sink=2,local=8,tail=indexed");
    assert_eq!(topk["free_share"].as_f64(), Some(0.0));
    // It attends 18 of 424 to 1,024 tokens.
    let density = topk["density"].as_f64().unwrap();
    assert!((0.015..0.05).contains(&density) && exact_density > 5.0 * density, "{exact_density}, then {density}");
}

/// One run has rows for dense prefill with sparse decoding, for sparse prefill with dense decoding, and for both sparse.
#[test]
fn one_method_reads_the_prompt_and_another_decodes() {
    let run = |methods: &[&str], more: &[&str]| {
        let out = out();
        let args: Vec<&str> = methods.iter().flat_map(|method| ["-m", *method]).collect();
        let task = ["-t", "ruler/niah_single_1", "-l", "512", "-n", "2", "--sparse-from", "prefill"];
        spattn(&["eval", "--out", out.arg()]).args(&task).args(&args).args(more).ok();
        let lines = out.read("samples.jsonl");
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Map<String, Value>>>()
    };
    let together = ["hip:k=64>full", "full>topk:k=16", "hip:k=64>topk:k=16", "topk:k=16>quest:k=16", "hip:k=64"];
    let records = run(&together, &[]);
    let of = |records: &[Map<String, Value>], method: &str, sample: u64| {
        let found = records.iter().find(|r| r["method"] == method && r["sample"] == sample);
        found.unwrap_or_else(|| panic!("no {method}")).clone()
    };
    for sample in 0..2 {
        let [to_full, to_topk, alone] =
            ["hip:k=64>full", "hip:k=64>topk", "hip"].map(|method| of(&records, method, sample));
        assert_eq!((&to_topk["params"], &to_topk["settings"]["prefill"]), (&json!("k=16"), &json!("hip:k=64")));
        // The three share one prefill, and each counts its whole time.
        assert_eq!((&to_full["prefill_s"], &to_topk["prefill_s"]), (&alone["prefill_s"], &alone["prefill_s"]));
        let dense = [of(&records, "full", sample), of(&records, "full>topk", sample)];
        assert_eq!(dense[0]["prefill_s"], dense[1]["prefill_s"]);
        assert!(to_full["density"].as_f64() < dense[0]["density"].as_f64(), "the prompt was read sparsely");
        assert!(dense[1]["density"].as_f64() < dense[0]["density"].as_f64(), "the answer was");
    }
    // A row does not depend on the rows that share its prefill, or on what was read before.
    for (spec, method) in [("hip:k=64>topk:k=16", "hip:k=64>topk"), ("topk:k=16>quest:k=16", "topk:k=16>quest")] {
        let alone = run(&[spec], &["--no-full"]);
        for sample in 0..2 {
            let [ours, others] = [&alone, &records].map(|records| without_times(of(records, method, sample)));
            assert_eq!(ours, others);
        }
    }
}

#[test]
fn options_are_scored_under_every_method() {
    let data = TempDir::new().unwrap();
    let table = |rows: &[&str]| format!("question,choice0,choice1,choice2,choice3,answer\n{}\n", rows.join("\n"));
    let colours = ["What colour is snow?,red,blue,white,green,2", "What colour is grass?,red,blue,white,green,3"];
    for (file, text) in [
        ("mmlu/test/colours_test.csv", table(&colours)),
        ("mmlu/dev/colours_dev.csv", table(&["What colour is coal?,red,black,white,green,1"])),
        (
            "piqa/valid.jsonl",
            "{\"goal\": \"open a door\", \"sol1\": \"turn the handle\", \"sol2\": \"sing\"}\n".repeat(2),
        ),
        ("piqa/valid-labels.lst", "0\n1\n".to_owned()),
    ] {
        let path = data.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let run = |out: &Out, more: &[&str]| {
        let tasks = ["-t", "mcq/mmlu:shots=1", "-t", "mcq/piqa", "-n", "5", "--json", "--dtype", "f32"];
        spattn(&["eval", "--out", out.arg(), "--data", data.path().to_str().unwrap()]).args(&tasks).args(more).ok()
    };
    let (one, two, parallel) = (out(), out(), out());
    let methods = ["-m", "topk:k=400,local=1", "-m", "random:k=1,sink=1,local=1"];
    let rows = summary(&run(&one, &[&methods[..], &["--threads", "1"]].concat()));
    run(&two, &[&methods[..], &["--threads", "2"]].concat());
    assert_eq!(one.records(), two.records());
    let likelihoods = |out: &Out, method: &str| -> BTreeMap<String, Vec<f64>> {
        let of = |record: &Map<String, Value>| {
            let all = record["choice"]["log_likelihoods"].as_array().unwrap();
            (format!("{}{}", record["task"], record["sample"]), all.iter().map(|l| l.as_f64().unwrap()).collect())
        };
        out.records().values().filter(|r| r["method"] == method).map(of).collect()
    };
    run(&parallel, &["-m", "full", "--sparse-from", "prefill"]);
    let expected = likelihoods(&parallel, "full");
    assert_eq!(expected.values().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 2]);
    for method in ["full", "topk"] {
        for (name, values) in likelihoods(&one, method) {
            let worst = values.iter().zip(&expected[&name]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-3, "{method} on {name}: off by {worst}");
        }
    }
    assert!(likelihoods(&one, "random") != likelihoods(&one, "full"), "the method is live");
    // The same question twice, with each answer right once: whichever the model prefers, one of the two scores.
    let piqa = rows.iter().find(|r| r["task"] == "mcq/piqa" && r["method"] == "full").unwrap();
    assert_eq!((&piqa["score"], &piqa["acc"], &piqa["acc_norm"]), (&50.0.into(), &50.0.into(), &50.0.into()));
    assert_eq!((rows.len(), &rows[0]["n"]), (6, &2.into()));
    refused(&["-t", "mcq/boolq"], "`mcq/boolq` needs data", "boolq/validation.jsonl");
}

#[test]
fn a_text_too_short_for_its_windows_is_said_before_any_work() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, "A few words.").unwrap();
    let task = format!("ppl/file:{}", file.display());
    refused(&["-t", &task, "-l", "512"], "no window of 512 fits", "shorter --length");
    refused(&["-t", &task, "-l", "256"], "leaves no context before 256 scored ones", "scored=N");
    refused(&["-t", "ppl/wikitext2", "-l", "512"], "`ppl/wikitext2` needs a text", "wiki.test.raw");
    refused(&["-t", "ppl/wikitext3", "-l", "512"], "unknown task `ppl/wikitext3`", "ppl/wikitext2");
}

#[test]
fn what_is_gathered_of_the_prompt_for_one_method_changes_no_other() {
    let (together, apart) = (out(), out());
    let observing =
        ["snapkv:k=32", "snapkv:k=32,window=8", "h2o:k=32,recent=16", "infllm:page=8", "infllm:page=8,window=9"];
    let all: Vec<&str> = observing.iter().flat_map(|spec| ["-m", spec]).collect();
    tiny(&together).args(&["--sparse-from", "decode"]).args(&all).ok();
    for (i, spec) in observing.iter().enumerate() {
        let go_on: &[&str] = if i > 0 { &["--resume"] } else { &[] };
        tiny(&apart).args(&["--sparse-from", "decode", "-m", spec]).args(go_on).ok();
    }
    assert_eq!(together.records().len(), 7);
    assert_eq!(together.records(), apart.records());
    let held = |method: &str| -> Vec<u64> {
        let records = together.records().into_values().filter(|r| r["method"] == method).collect::<Vec<_>>();
        records.iter().map(|r| r["kv_bytes_held"].as_u64().unwrap()).collect()
    };
    assert!(held("h2o")[0] < held("infllm")[0] / 3, "{:?}, {:?}", held("h2o"), held("infllm"));
    assert!(held("snapkv").iter().all(|bytes| *bytes < held("topk")[0] / 2));
}

#[test]
fn positions_are_moved_only_where_frequencies_stay() {
    let (model, out) = (model_copy(), out());
    let config = model.path().join("config.json");
    let dynamic = read(&config)
        .replace("\"max_position_embeddings\": 32768", "\"max_position_embeddings\": 300")
        .replace("\"rope_type\": \"default\"", "\"rope_type\": \"dynamic\", \"factor\": 2.0");
    fs::write(&config, dynamic).unwrap();
    let run = |length, spec| {
        let task = ["-t", "ruler/niah_single_1", "-n", "1", "-l", length, "-m", spec];
        let place = ["--model", model.path().to_str().unwrap(), "--out", out.arg(), "--overwrite"];
        spattn(&["eval"]).args(&task).args(&place)
    };
    let refused = run("512", "streaming_llm:window=64,rolling=true");
    refused.fails(2, "streaming_llm:window=64,rolling=true cannot move positions on", "choose a shorter --length");
    assert!(!out.dir.exists());
    run("512", "streaming_llm:window=64").ok();
    run("300", "streaming_llm:window=64,rolling=true").ok();
}

#[test]
fn too_few_contexts_are_said_once_and_have_no_interval() {
    let out = out();
    let tasks = ["-t", "needle/number:steps=3", "-t", "ruler/niah_single_1", "-l", "512", "-n", "1"];
    let ran = spattn(&["eval", "--out", out.arg(), "-m", "topk:k=16"]).args(&tasks).ok();
    let said = "warning: only 1 example: on one task no loss can be detected; take about 60 (they would detect a loss of 10 points)\n";
    ran.check(ran.stdout.matches(said).count() == 1, "once for all tasks and methods");
    ran.check(!ran.stdout.contains("would be missed in"), "there is no second warning about the number of examples");
    ran.check(ran.stdout.contains(" 3 (1) "), "three depths of one sample are one context");
    assert!(out.records().values().all(|r| r["context"] == 0), "of depths too: {:?}", out.records());
    let text = out.read("summary.csv");
    let rows: Vec<BTreeMap<String, String>> =
        csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for empty in ["ci_low", "ci_high", "delta_low", "delta_high", "detectable"] {
            assert_eq!(row[empty], "", "{empty}: {row:?}");
        }
        assert_eq!(row["contexts"], "1");
    }
    assert!(out.read("summary.md").contains("`few_examples` only 1 example: "));
    let again = spattn(&["report", out.arg(), "--rows", "method"]).ok();
    again.check(again.stderr.matches(said).count() == 1, "pivots say it as well");
}

/// The names of the columns in `docs/columns.md`, in its order, joined by commas.
fn columns() -> String {
    let page = include_str!("../../docs/columns.md");
    let names = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name));
    names.collect::<Vec<_>>().join(",")
}

const FIELDS: &str = "task,length,sample,seed,method,params,prediction,references,score,prompt_tokens,new_tokens,density,\
                      cost1,cost2,decode_s";

#[test]
fn methods_are_timed_alone_and_nothing_else_changes() {
    // One task generates answers, the other is scored by likelihood.
    let texts = TempDir::new().unwrap();
    let text: String = (0..200).map(|i| format!("The door of room {i} opens with key {}. ", 7 * i % 23)).collect();
    fs::write(texts.path().join("text.txt"), text).unwrap();
    let text = format!("ppl/file:{}", texts.path().join("text.txt").display());
    let tasks = ["-t", &text, "-m", "quest"];
    let (shared, solo) = (out(), out());
    let ran = tiny(&shared).args(&tasks).ok();
    let has_latency = |text: &str| text.contains("latency ms") || text.contains("share ms");
    ran.check(!has_latency(&ran.stdout) && !ran.stdout.contains("solo timing"), "shares are no latencies");
    assert!(!shared.dir.join("plots/score_vs_latency.svg").exists(), "nor drawn as such");
    let ran = tiny(&solo).args(&tasks).args(&["--latency", "solo"]).ok();
    ran.prints(
        "\nlatency ms: mean time of a one-token step of the method alone, on all threads, in the median of five turns",
    );
    ran.check(ran.stdout.contains(", solo timing "), "and how long that took");
    assert!(solo.dir.join("plots/score_vs_latency.svg").exists());
    // The kind of timing is part of a record's key.
    let told = |out: &Out| -> BTreeSet<String> {
        let without_key = |mut record: Map<String, Value>| {
            record.remove("key");
            Value::from(record).to_string()
        };
        out.records().into_values().map(without_key).collect()
    };
    assert_eq!((told(&solo), told(&shared).len()), (told(&shared), 6));
    for (out, times) in [(&shared, 0), (&solo, 5)] {
        for line in out.read("samples.jsonl").lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            let parts = ["select_s", "attend_s", "weights_s"].map(|part| record[part].as_f64().unwrap());
            assert!((parts.iter().sum::<f64>() - record["decode_s"].as_f64().unwrap()).abs() < 1e-9, "{line}");
            let ms = record["solo"]["ms"].as_array().map_or(&[][..], Vec::as_slice);
            assert!(ms.len() == times && ms.iter().all(|ms| ms.as_f64() > Some(0.0)), "{line}");
        }
    }
    let column = |out: &Out, name: &str| -> Vec<String> {
        let text = out.read("summary.csv");
        let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize();
        rows.map(|row: Result<BTreeMap<String, String>, _>| row.unwrap().remove(name).unwrap()).collect()
    };
    assert_eq!(
        (column(&shared, "latency"), column(&solo, "latency")),
        (vec!["shared".to_owned(); 6], vec!["solo".to_owned(); 6])
    );
    assert!(column(&solo, "timed").iter().all(|timed| timed.starts_with("each alone on ")));
    assert!(column(&solo, "decode_ms_per_token").iter().all(|ms| ms.parse::<f64>().unwrap() > 0.0));
    assert!(column(&shared, "select_ms_per_token").iter().all(|ms| ms.parse::<f64>().unwrap() > 0.0));
}

#[test]
fn a_run_leaves_all_its_files() {
    let out = out();
    let ran = tiny(&out).args(&["-t", "ruler/niah_multikey_1", "--fidelity"]).ok();
    ran.check(ran.stderr.is_empty(), "no progress of a short run if it is no terminal");
    ran.prints("ruler/niah_single_1");
    ran.prints("4 records");
    for name in ["samples.jsonl", "manifest.json", "summary.csv", "summary.md", "plots/*"] {
        ran.prints(out.dir.join(name).to_str().unwrap());
    }
    ran.check(!ran.stdout.contains("\n\n\n"), "one empty line between the parts of what is printed");
    let csv = out.read("summary.csv");
    assert_eq!((csv.lines().next().unwrap(), csv.lines().count()), (columns().as_str(), 5));
    assert!(out.read("summary.md").contains("topk"));
    let svg = out.read("plots/score_vs_density.svg");
    assert!(svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    for record in out.records().values() {
        let missing: Vec<&str> = FIELDS.split(',').filter(|f| *f != "decode_s" && !record.contains_key(*f)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!((&record["length"], &record["seed"]), (&512.into(), &42.into()));
        assert_eq!(record["bos_tokens"], 1);
    }
    assert!(out.read("samples.jsonl").lines().all(|l| l.contains("\"decode_s\":")));

    let manifest: Value = serde_json::from_str(&out.read("manifest.json")).unwrap();
    let identity = &manifest["identity"];
    for (value, expected) in [
        (&identity["model"], "builtin"),
        (&identity["protocol"], "question"),
        (&identity["positions"], "varied"),
        (&manifest["program"]["version"], env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(value, expected);
    }
    for hash in ["weights_sha256", "tokenizer_sha256"] {
        assert_eq!(identity[hash].as_str().unwrap().len(), 64);
    }
    assert_eq!(identity["seed"], 42);
    assert_eq!(manifest["config"]["lengths"], serde_json::json!([512]));
    assert_eq!(manifest["command"][1], "eval");
    assert!(manifest["machine"]["threads"].as_u64().unwrap() > 0);
}

#[test]
fn json_is_the_summary_and_nothing_else() {
    let out = out();
    let ran = tiny(&out).args(&["--json", "--fidelity"]).ok();
    let warned = ran.stderr.lines().all(|line| line.starts_with("warning: only 1 example: "));
    ran.check(warned, "self-checks on standard error, and nothing else");
    let rows = ran.json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.join(","), columns() + ",kv_dtype");
    }
    let (full, topk) = (&rows[0], &rows[1]);
    assert_eq!((&full["method"], &topk["method"]), (&"full".into(), &"topk".into()));
    assert!(topk["params"].as_str().unwrap().starts_with("k=16"));
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
    // Compared with itself, exact attention has only rounding errors and misses no tokens.
    assert!(number(full, "output_error") < 1e-5 && number(full, "recall") == 1.0, "{full}");
    assert_eq!(number(full, "density"), 1.0);
    assert!(number(topk, "output_error") > 1e-4 && (0.3..1.0).contains(&number(topk, "recall")), "{topk}");
    assert!(number(topk, "density") < 0.5);
    assert_eq!((number(full, "dropped_mass_max"), number(full, "density_min")), (0.0, 1.0));
    assert!((1e-6..1.0).contains(&number(topk, "dropped_mass")), "{topk}");
    for (measured, mean) in [
        ("density", "density"),
        ("output_error", "output_error"),
        ("recall", "recall"),
        ("dropped_mass", "dropped_mass"),
    ] {
        let [min, median, max] = ["min", "median", "max"].map(|part| number(topk, &format!("{measured}_{part}")));
        let mean = number(topk, mean);
        assert!(min <= median && median <= max && min <= mean + 1e-3 && mean <= max + 1e-3, "{measured}: {topk}");
    }
    let heads = |record: &Map<String, Value>| record["fidelity"]["heads"].clone();
    for record in out.records().values() {
        assert_eq!(record["density_by_layer"].as_array().unwrap().len(), 10);
        for measured in ["density", "output_error", "recall", "dropped_mass"] {
            let layers = heads(record)[measured].as_array().unwrap().clone();
            assert!(
                layers.len() == 10 && layers.iter().all(|heads| heads.as_array().unwrap().len() == 4),
                "{measured}"
            );
        }
    }
    // Without the flag, these are not measured.
    let ran = tiny(&out).args(&["--json", "--overwrite"]).ok();
    assert!(summary(&ran).iter().all(|row| row["output_error"].is_null() && row["recall"].is_null()));
}

#[test]
fn the_protocol_says_where_the_dense_prefix_ends() {
    let prefix = |protocol: &str| {
        let out = out();
        tiny(&out).args(&["--sparse-from", protocol, "--no-full"]).ok();
        let record = out.records().into_values().next().unwrap();
        assert_eq!(record["protocol"], protocol);
        let tokens = |name: &str| record[name].as_u64().unwrap();
        (tokens("prefix_tokens"), tokens("prompt_tokens"), tokens("steps"))
    };
    let (decode, prompt, _) = prefix("decode");
    assert_eq!(decode, prompt);
    let (last, _, steps) = prefix("last:8");
    assert_eq!(last, prompt - 8);
    assert!(steps >= 8);
    let (question, _, _) = prefix("question");
    assert!((prompt / 2..prompt - 8).contains(&question), "{question} of {prompt}");
    assert_eq!(prefix("last:100000").0, 0, "the whole prompt is read under the method");
}

// ---- prepared files ----

fn row(key: usize) -> Value {
    let noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
    let input = format!(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about \
         the numbers afterwards.\n{}One of the special magic numbers for north-{key} is: {}.\n{}\nWhat is the special \
         magic number for north-{key} mentioned in the provided text? The special magic number for north-{key} mentioned \
         in the provided text is",
        noise.repeat(5),
        4_000_000 + key,
        noise.repeat(5)
    );
    serde_json::json!({ "index": key, "input": input, "outputs": [(4_000_000 + key).to_string()], "length": 400 })
}

#[test]
fn a_prepared_file_is_run_as_it_is() {
    let (out, dir) = (out(), TempDir::new().unwrap());
    let file = dir.path().join("niah.jsonl");
    let task = format!("jsonl:{}", file.display());
    let run = || spattn(&["eval", "--out", out.arg(), "-t", &task, "-n", "5", "-m", "topk:k=16", "--json"]);
    fs::write(&file, "").unwrap();
    run().fails(2, "niah.jsonl: the file has no rows", "one JSON object a line");
    fs::write(&file, format!("{}\n{{\"input\": \n", row(1))).unwrap();
    run().fails(2, "niah.jsonl:2: not JSON: EOF while parsing a value at column", "one JSON object a line");
    fs::write(&file, format!("{}\n\n{{\"input\": \"x\"}}\n", row(1))).unwrap();
    run().fails(2, "niah.jsonl:3: the field `outputs` is missing", "RULER");
    fs::write(&file, "{\"input\": \"What now?\", \"outputs\": [\"this\"]}\n").unwrap();
    run().fails(2, "niah.jsonl:1: the prompt belongs to no known task", "metric=string_match_all,max_new_tokens=64");
    refused(&["-t", "jsonl:"], "names no file", "jsonl:PATH");
    refused(&["-t", "jsonl:/nowhere.jsonl"], "cannot read /nowhere.jsonl", "jsonl:PATH");
    refused(&["-t", &format!("jsonl:{}", dir.path().display())], "cannot read", "jsonl:PATH");

    fs::write(&file, format!("{}\n{}\n", row(1), row(2))).unwrap();
    let rows = summary(&run().ok());
    assert_eq!((rows.len(), &rows[0]["task"], &rows[0]["n"]), (2, &"jsonl:niah".into(), &2.into()));
    assert_eq!(rows[0]["score"], 100.0, "{rows:?}");
    for record in out.records().values() {
        assert_eq!((&record["length"], &record["source"]), (&0.into(), &"niah.jsonl".into()));
        assert!(record["prefix_tokens"].as_u64() < record["prompt_tokens"].as_u64());
    }
}

#[test]
fn a_published_file_is_solved_by_the_builtin_model() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/ruler_ready/4096/niah_multikey_3.jsonl");
    if !Path::new(path).is_file() {
        return eprintln!("SKIPPED: no file {path}");
    }
    let out = out();
    let ran = spattn(&["eval", "--out", out.arg(), "-t", &format!("jsonl:{path}"), "-n", "2", "-m", "topk", "--json"]);
    let rows = summary(&ran.ok());
    assert_eq!((&rows[0]["method"], &rows[0]["score"], &rows[0]["n"]), (&"full".into(), &100.0.into(), &2.into()));
    for record in out.records().values() {
        let tokens = record["prompt_tokens"].as_u64().unwrap();
        assert!((2048..16384).contains(&tokens), "{tokens}");
    }
}

#[test]
fn exported_examples_are_those_of_an_evaluation() {
    let (of_task, of_file, dir) = (out(), out(), TempDir::new().unwrap());
    let file = dir.path().join("rows.jsonl");
    let tasks = ["-t", "ruler/niah_multikey_1", "-t", "ruler_reworded/vt", "-l", "1024", "-n", "2"];
    spattn(&["data", "export-eval", "--out", file.to_str().unwrap()]).args(&tasks).ok();
    spattn(&["eval", "--out", of_task.arg(), "-m", "topk:k=16"]).args(&tasks).ok();
    let task = format!("jsonl:{}", file.display());
    spattn(&["eval", "--out", of_file.arg(), "-m", "topk:k=16", "-t", &task, "-n", "9"]).ok();

    let rows: Vec<Value> = read(&file).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<(&str, u64)> =
        rows.iter().map(|r| (r["task"].as_str().unwrap(), r["index"].as_u64().unwrap())).collect();
    let (needles, chains) = ("ruler/niah_multikey_1", "ruler_reworded/vt");
    assert_eq!(names, [(needles, 0), (needles, 1), (chains, 0), (chains, 1)]);
    for row in &rows {
        assert!((973..=1024).contains(&row["length"].as_u64().unwrap()), "{}", row["length"]);
    }
    let what = |record: &Map<String, Value>| {
        let fields =
            ["method", "references", "prediction", "score", "prompt_tokens", "prefix_tokens", "max_new_tokens"];
        serde_json::to_string(&fields.map(|name| &record[name])).unwrap()
    };
    let sorted = |out: &Out| {
        let mut all: Vec<String> = out.records().values().map(what).collect();
        all.sort();
        all
    };
    assert_eq!(sorted(&of_task).len(), 8);
    assert_eq!(sorted(&of_task), sorted(&of_file));

    let export = |args: &[&str]| spattn(&["data", "export-eval", "-l", "512"]).args(args);
    export(&["-t", &task]).fails(2, "`jsonl:rows` is a file of rows already", "generated");
    export(&["-t", "ruler/vtt"]).fails(2, "unknown task `ruler/vtt`", "ruler/vt");
    let nowhere = ["-t", "ruler/vt", "--out", "/nonexistent/folder/vt.jsonl"];
    export(&nowhere).fails(2, "cannot write /nonexistent/folder/vt.jsonl", "another --out file");
    export(&["-t", "ruler/vt", "--model", "/nowhere"]).fails(2, "does not exist", "config.json");
}

#[test]
fn what_a_mean_stands_for_and_what_is_held_is_said_beside_the_figures() {
    let out = out();
    let methods = ["-m", "topk:k=0", "-m", "snapkv:k=24,window=8", "-m", "streaming_llm:window=64,slide=false"];
    let run = spattn(&["eval", "-t", "ruler/vt", "-t", "ruler/qa_synth", "-l", "1K", "-n", "1", "--out", out.arg()]);
    let ran = run.args(&methods).ok();
    let note = "1 of 2 tasks is a synthetic stand-in for a published one (ruler/qa_synth for ruler/qa_1)";
    ran.check(ran.stdout.contains(&format!("\nnote: {note}\nmethod")), "the mean's note");
    ran.check(ran.stdout.contains("tokens\n") && ran.stdout.contains("held\n"), "a column of what is held");
    let page = out.read("summary.md");
    assert!(page.contains(&format!("{note}.")) && page.contains("| tokens held |"), "{page}");
    let html = out.read("report.html");
    assert!(html.contains(r#""stand_ins":{"ruler/qa_synth":"ruler/qa_1"}"#), "the page has what its note is made of");
    for record in out.records().values() {
        let (held, context) =
            (record["kv_tokens"]["held"].as_f64().unwrap(), record["kv_tokens"]["context"].as_u64().unwrap());
        let (prefix, steps) = (record["prefix_tokens"].as_u64().unwrap(), record["steps"].as_u64().unwrap());
        assert_eq!(context, prefix + steps);
        match record["method"].as_str().unwrap() {
            "full" | "topk" => assert_eq!(held, context as f64),
            "streaming_llm" => assert_eq!(held, (4 + 64 + steps) as f64),
            // The two query heads of a group select separately, but share sink and window.
            "snapkv" => assert!(held > (4 + 64 + 24 + steps) as f64 && held <= (4 + 64 + 48 + steps) as f64, "{held}"),
            other => panic!("{other}"),
        }
    }
    spattn(&["eval", "--sparse-from", "prefill", "-m", "streaming_llm:slide=false"]).fails(
        2,
        "slide=false",
        "decode, question",
    );
}

#[test]
fn examples_are_exported_for_a_model_without_weights() {
    let folder = TempDir::new().unwrap();
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(builtin.join(file), folder.path().join(file)).unwrap();
    }
    let model = folder.path().to_str().unwrap();
    let export =
        |model: &str| spattn(&["data", "export-eval", "-t", "ruler/vt", "-l", "1K", "-n", "2", "--model", model]);
    let without_weights = export(model).ok().stdout;
    assert_eq!(without_weights.lines().count(), 2);
    assert_eq!(without_weights, export("builtin").ok().stdout);
    spattn(&["eval", "-t", "ruler/vt", "--model", model]).fails(2, "no model.safetensors", "config.json");
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    export(model).fails(2, "no tokenizer.json", "config.json");
}

#[test]
fn every_method_meets_a_density_on_the_builtin_model() {
    let out = out();
    let methods = spattn(&["list", "methods", "--json"]).ok().json();
    let decoding = methods.as_array().unwrap().iter().filter(|m| m["phase"] != "prefill");
    let names = decoding.map(|m| m["name"].as_str().unwrap());
    // `external` needs a command; `external.rs` tests it.
    let names = names.filter(|name| !["full", "external"].contains(name));
    let specs: Vec<String> = names.map(|name| format!("{name}:density=0.15")).collect();
    let run = spattn(&["eval", "--json", "--out", out.arg(), "-t", "ruler/cwe", "-l", "2048", "-n", "1"]);
    let specs: Vec<&str> = specs.iter().flat_map(|spec| ["-m", spec]).collect();
    let ran = run.args(&["-t", "ruler/niah_single_2"]).args(&specs).ok();
    for row in summary(&ran).iter().filter(|row| row["method"] != "full") {
        assert_eq!(row["density_target"], 0.15, "{row:?}");
        let achieved = row["density_sparse_layers"].as_f64().unwrap();
        assert!((achieved / 0.15 - 1.0).abs() < 0.25, "{achieved}: {row:?}");
    }
    ran.check(!ran.stderr.contains("a density of"), "no warning");
    let solved: Vec<bool> = out.records().values().map(|record| record.contains_key("solved")).collect();
    assert!(solved.contains(&true) && solved.contains(&false));
}

// ---- the other subcommands ----

#[test]
fn lists_are_text_and_json() {
    for (what, name, used) in [
        ("tasks", "ruler/niah_multikey_3", "eval"),
        ("methods", "topk", "eval"),
        ("metrics", "cloze_exact", "score"),
        ("models", "builtin", "eval"),
        ("configs", "quick", "eval"),
    ] {
        let text = spattn(&["list", what]).ok();
        text.prints(name);
        text.prints(&format!("Use with: spattn {used}"));
        let items = spattn(&["list", what, "--json"]).ok().json();
        assert!(items.as_array().unwrap().iter().any(|item| item["name"] == name), "{items}");
    }
    let index = spattn(&["list", "methods"]).ok();
    let count = spattn(&["list", "methods", "--json"]).ok().json().as_array().unwrap().len();
    index.prints("\nquest                method     prefill and decode  ");
    index.check(index.stdout.lines().count() < count + 6, "a line for each method");
    let quest = spattn(&["list", "methods", "quest"]).ok();
    for part in [
        "arXiv:2406.10774",
        "summary_bits",
        "preset=paper",
        "preset=matched",
        "sparse in      prefill and decode",
        "density",
    ] {
        quest.prints(part);
    }
    quest.check(!quest.stdout.contains("magicpig"), "only what was asked for");
    let one = spattn(&["list", "methods", "hip", "--json"]).ok().json();
    assert_eq!(
        (one.as_array().unwrap().len(), &one[0]["granularity"]),
        (1, &"each query head, or a GQA group (per)".into())
    );
    spattn(&["list", "methods", "qest"]).fails(2, "unknown method `qest`", "quest");
    spattn(&["list", "tasks", "quest"]).fails(2, "unexpected name", "list methods NAME");
    let tasks = spattn(&["list", "tasks", "--json"]).ok().json();
    assert!(
        tasks.as_array().unwrap().iter().filter(|t| t["name"].as_str().unwrap().starts_with("ruler/")).count() >= 13
    );
}

#[test]
fn predictions_made_elsewhere_are_scored() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("predictions.jsonl");
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "{\"prediction\": \"the Nile\", \"answers\": [\"nile\"]}\n{\"pred\": \"x\", \"outputs\": \"y\"}\n",
    )
    .unwrap();
    let ran = spattn(&["score", path, "--metric", "qa_f1", "--json"]).ok();
    assert_eq!(ran.stdout, "{\"metric\":\"qa_f1\",\"n\":2,\"score\":50.0,\"rows\":[1.0,0.0]}\n");
    spattn(&["score", path, "--dataset", "hotpotqa"]).ok().prints("qa_f1: 50.00 % over 2 rows");
    fs::write(&file, "{\"prediction\": \"x\", \"answers\": [\"x\"]}\n{\"prediction\": \"x\"}\n").unwrap();
    spattn(&["score", path, "--metric", "qa_f1"]).fails(2, "predictions.jsonl:2: no field `answers`", "--skip-bad");
    fs::write(&file, "\n").unwrap();
    spattn(&["score", path, "--metric", "qa_f1"]).fails(2, "the file has no rows", "one JSON object a line");
}

#[test]
fn help_version_and_completions() {
    let ran = spattn(&["--version"]).ok();
    let build = ran.stdout.trim().strip_prefix(concat!("spattn ", env!("CARGO_PKG_VERSION"), " (")).unwrap_or_default();
    let (commit, profile) = build.split_once(", ").unwrap_or_default();
    let digits = commit.trim_end_matches('+');
    let is_commit = digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    ran.check((is_commit || commit == "unknown commit") && profile.contains("linux"), "it says what it was built from");
    let head =
        std::process::Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    // A copy of the sources without a repository has no commit.
    if let Some(head) = head
        .ok()
        .filter(|head| head.status.success() && Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.git")).exists())
    {
        ran.check(String::from_utf8_lossy(&head.stdout).starts_with(digits), "that is where the repository is");
    }
    spattn(&["--help"]).ok().prints("Usage: spattn <COMMAND>");
    for command in ["eval", "list", "score", "completions"] {
        spattn(&[command, "--help"]).ok().prints("Example");
        spattn(&[command, "-h"]).ok().prints("Usage: spattn");
    }
    for shell in ["bash", "zsh", "fish"] {
        spattn(&["completions", shell]).ok().prints("sparse-from");
    }
    let ran = spattn(&[]).run();
    ran.check(ran.status == Some(2) && ran.stderr.contains("Usage: spattn <COMMAND>"), "it shows its usage");
}

#[test]
fn help_fits_its_terminal() {
    for width in [80, 100] {
        let ran = spattn(&["eval", "--help"]).env("COLUMNS", Path::new(&width.to_string())).ok();
        let long: Vec<&str> = ran.stdout.lines().filter(|l| l.chars().count() > width).collect();
        // Examples are lines to copy, so they are not wrapped.
        let (examples, text): (Vec<&str>, Vec<&str>) = long.into_iter().partition(|l| l.contains("spattn eval "));
        ran.check(text.is_empty() && examples.len() <= 2, &format!("lines of {width} characters"));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let out = out();
    let commands: [&[&str]; 4] = [
        &["list", "tasks"],
        &["list", "methods", "--json"],
        &["completions", "bash"],
        &["eval", "--out", out.arg(), "-t", "ruler/niah_single_1", "-l", "512", "-n", "1", "-m", "topk"],
    ];
    for args in commands {
        let mut child = spattn(args).spawn();
        drop(child.stdout.take());
        let ran = Ran::new(&Command::new(args.join(" ")), child.wait_with_output().unwrap());
        ran.check(ran.status == Some(0) && ran.stderr.is_empty(), "a quiet end");
    }
    assert!(out.dir.join("summary.csv").is_file());
}

// ---- bench ----

/// A short benchmark of the built-in model's heads.
fn bench(what: &str, more: &[&str]) -> Spattn {
    spattn(&["bench", what, "--shape", "builtin", "-c", "640", "--rounds", "6", "--quiet"]).args(more)
}

fn bench_rows(ran: &Ran) -> Vec<Map<String, Value>> {
    serde_json::from_value(ran.json()).unwrap()
}

#[test]
fn attention_is_timed_against_full_and_against_the_bytes_that_it_takes() {
    let out = out();
    let methods = ["-m", "topk:per=kv_head", "-m", "streaming_llm", "-m", "loki", "--density", "0.25,0.5"];
    let more = [&methods[..], &["--batch", "2", "--json", "--out", out.arg()]].concat();
    let rows = bench_rows(&bench("attention", &more).ok());
    let names: Vec<&str> = rows.iter().map(|row| row["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["full", "topk", "topk", "streaming_llm", "streaming_llm", "loki", "loki"]);
    let number = |row: &Map<String, Value>, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row:?}"));
    let contract = [
        "op",
        "shape",
        "context",
        "batch",
        "method",
        "params",
        "density",
        "time_us",
        "time_low_us",
        "time_high_us",
        "speedup_vs_full",
        "bytes",
        "gbps",
        "bandwidth_share",
        "limit_share",
    ];
    for row in &rows {
        assert!(contract.iter().all(|key| !row[*key].is_null()), "{row:?}");
        assert_eq!((number(row, "context"), number(row, "batch"), &row["op"]), (640.0, 2.0, &json!("attention")));
        assert!(number(row, "time_low_us") <= number(row, "time_us"), "{row:?}");
        assert!(number(row, "time_us") <= number(row, "time_high_us"), "{row:?}");
        let speedup = number(&rows[0], "time_us") / number(row, "time_us");
        assert!((number(row, "speedup_vs_full") / speedup - 1.0).abs() < 1e-9, "{row:?}");
    }
    // Two sequences of 640 tokens and the steps after them (1 to 8, with warm-ups), with two KV heads of 64 channels in 16 bits.
    let full = 2.0 * 644.5 * 2.0 * 2.0 * 64.0 * 2.0;
    assert!((number(&rows[0], "bytes") - full).abs() <= 1.0, "{:?}", rows[0]);
    assert_eq!(number(&rows[0], "density"), 1.0);
    for (row, density) in rows[1..].iter().zip([0.25, 0.5, 0.25, 0.5, 0.25, 0.5]) {
        assert!((number(row, "density") - density).abs() < 0.02, "{row:?}");
    }
    // A window reads only what it attends.
    assert!((number(&rows[3], "bytes") / full - number(&rows[3], "density")).abs() < 1e-3, "{:?}", rows[3]);
    assert!(rows[5]["index_ms"].as_f64().unwrap() > 0.0 && rows[0]["index_ms"].is_null());
    // Bits for each token and KV head, times tokens, sequences and KV heads.
    let bytes = number(&rows[5], "aux_bits") / 8.0 * 2.0 * 2.0 * 640.0;
    assert!((number(&rows[5], "aux_bytes") - bytes).abs() <= 1.0, "{:?}", rows[5]);
    for key in ["score_us", "pick_us"] {
        let part = number(&rows[1], key);
        assert!(part > 0.0 && part <= number(&rows[1], "select_us"), "{key}: {:?}", rows[1]);
        assert!(rows[0][key].is_null() && rows[3][key].is_null(), "nothing is scored");
    }
    has_intervals(&rows[1], &["select", "attend"]);
    for file in ["bench.json", "bench.csv", "bench.md", "manifest.json", "plots/speedup.svg", "plots/speedup.png"] {
        assert!(out.dir.join(file).is_file(), "{file}");
    }
    let manifest: Value = serde_json::from_str(&out.read("manifest.json")).unwrap();
    assert_eq!(manifest["bench"]["methods"].as_array().unwrap().len(), 7);
    assert!(manifest["machine"]["read_gbps"].as_f64().unwrap() > 0.0);
}

/// Checks that each part of a time is within its interval.
fn has_intervals(row: &Map<String, Value>, parts: &[&str]) {
    for part in parts {
        let [low, median, high] = ["_low_us", "_us", "_high_us"].map(|end| row[&format!("{part}{end}")].as_f64());
        assert!(low.is_some() && low <= median && median <= high, "{part}: {row:?}");
    }
}

#[test]
fn prompts_indexes_steps_and_kernels_are_timed_too() {
    let of = |what: &str, more: &[&str]| -> Vec<(String, f64)> {
        let ran = bench(what, &[more, &["--json", "--density", "0.25"]].concat()).ok();
        let each =
            |row: &Map<String, Value>| (row["method"].as_str().unwrap().to_owned(), row["time_us"].as_f64().unwrap());
        bench_rows(&ran).iter().map(each).collect()
    };
    let names = |rows: &[(String, f64)]| rows.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let prefill = of("prefill", &["-m", "hip", "-m", "snapkv"]);
    assert_eq!(names(&prefill), ["full", "hip"], "snapkv reads prompts as full does");
    let whole: Vec<_> =
        bench_rows(&spattn(&["bench", "prefill", "--shape", "builtin", "-c", "640", "--rounds", "3", "--json"]).ok());
    // Each of four heads of 64 channels attends every token and those before it: two products, with two operations for each channel.
    assert_eq!(whole[0]["flops"], json!(4 * 4 * 64 * (640 * 641 / 2)));
    // Only the last rows. Methods that plan on the whole prompt are left out, and so are methods with blocks of 32 rows if no block begins
    // at the last 30 rows.
    let last =
        |rows: &str| bench_rows(&bench("prefill", &["--last", rows, "-m", "hip", "-m", "minference", "--json"]).ok());
    let (aligned, odd) = (last("32"), last("30"));
    assert_eq!(aligned.iter().map(|row| &row["method"]).collect::<Vec<_>>(), ["full", "hip"]);
    assert_eq!(aligned[0]["flops"], json!(4 * 4 * 64 * (640 * 641 / 2 - 608 * 609 / 2)));
    assert_eq!(odd.iter().map(|row| &row["method"]).collect::<Vec<_>>(), ["full"]);
    let said = bench("prefill", &["--last", "30", "-m", "hip"]).ok();
    said.prints("plan the whole prompt, or have no block that begins at row 610, and are left out: hip");
    said.prints("only the last 30 rows of a prompt are timed");
    let nothing = bench("prefill", &["--no-full", "--last", "32", "-m", "minference"]).ok();
    nothing.prints("no results\nnote: plan the whole prompt, or have no block that begins at row 608, and are left out: minference");
    let whole =
        spattn(&["bench", "prefill", "--shape", "builtin", "-c", "640", "--rounds", "3", "--json", "--layers", "2"]);
    assert_eq!(bench_rows(&whole.ok()).len(), 1, "a dense forward pass");
    assert_eq!(names(&of("index", &["-m", "quest", "-m", "streaming_llm"])), ["quest"], "the others have none");
    let decode = of("decode", &["-m", "quest"]);
    let steps = bench_rows(&bench("decode", &["-m", "quest", "--json", "--density", "0.25"]).ok());
    has_intervals(&steps[1], &["select", "attend", "weights"]);
    assert_eq!(names(&decode), ["full", "quest"]);
    let kernels = of("kernels", &[]);
    assert!(names(&kernels).contains(&"attend_range".to_owned()), "{kernels:?}");
    for (name, time) in [prefill, decode, kernels].concat() {
        assert!(time > 0.0, "{name}");
    }
}

/// Times the keys, values and queries that the built-in model computes.
fn captured(what: &str, more: &[&str]) -> Spattn {
    spattn(&["bench", what, "--kv-from", "builtin", "-c", "640", "--rounds", "3", "--quiet"]).args(more)
}

#[test]
fn keys_values_and_queries_may_be_those_of_a_model_that_reads() {
    let out = out();
    // The built-in model has calibrations for all these methods.
    let methods = ["-m", "topk", "-m", "loki", "-m", "double_sparsity", "-m", "hash_attention", "-m", "snapkv"];
    let ran = captured("attention", &[&methods[..], &["--density", "0.25", "--out", out.arg()]].concat()).ok();
    ran.prints("note: 640 tokens, layer 5 of 10 of builtin reading ruler/niah_multikey_3: the first token has");
    let rows: Vec<Map<String, Value>> = serde_json::from_str(&out.read("bench.json")).unwrap();
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!((&row["shape"], &row["context"], &row["layers"]), (&json!("builtin"), &json!(640), &json!(1)));
    }
    // 640 tokens and 1 to 5 more, with two KV heads of 64 channels in 16 bits.
    assert!((rows[0]["bytes"].as_f64().unwrap() - 643.0 * 2.0 * 2.0 * 64.0 * 2.0).abs() <= 1.0, "{:?}", rows[0]);
    let manifest: Value = serde_json::from_str(&out.read("manifest.json")).unwrap();
    let from = &manifest["bench"]["kv_from"];
    assert_eq!((&from["model"], &from["layers"]), (&json!("builtin"), &json!([5])));

    let text = out.dir.join("a.txt");
    fs::write(&text, "The ship left the harbour in the morning. ".repeat(400)).unwrap();
    let more = ["--text", text.to_str().unwrap(), "--layers", "2", "--batch", "2", "-m", "topk", "--shape", "builtin"];
    let ran = captured("attention", &more).ok();
    ran.prints("layers 2, 7 of 10 of builtin reading a.txt (");
    ran.prints("batch 2, cpu: bf16");
    let prefill = captured("prefill", &["-m", "hip"]).ok();
    prefill.prints("note: 640 tokens, layer 5 of 10 of builtin reading ruler/niah_multikey_3.");
    prefill.prints("hip");
    captured("index", &["-m", "quest"]).ok().prints("layer 5 of 10 of builtin");
    captured("kernels", &[]).ok().prints("attend_range");
}

#[test]
fn a_model_without_calibrations_gives_methods_what_it_reads_to_learn_from() {
    let model = model_copy();
    let from = model.path().to_str().unwrap();
    let more = ["--kv-from", from, "-c", "640", "--rounds", "3", "--quiet", "-m", "loki", "-m", "topk"];
    let ran = spattn(&["bench", "attention"]).args(&more).ok();
    ran.prints("note: the model has no calibration of loki: one is made from 1024 tokens of the prompt.");
    ran.prints(&format!("layer 5 of 10 of {from} reading ruler/niah_multikey_3: the first token has"));
}

#[cfg(unix)]
#[test]
fn other_programs_take_turns_and_stand_in_the_same_table() {
    use std::os::unix::fs::PermissionsExt;
    let temp = TempDir::new().unwrap();
    // Stands in for the script of the peers, and counts turns.
    let speaks = r#"#!/bin/sh
while read -r line; do
    case "$line" in
        *prepare*) echo '{"ready":[{"method":"torch_x","bytes":1000,"flops":10},{"method":"search","part":true,"about":"one head"}],"notes":["faiss is not installed"]}' ;;
        *torch_x*) echo turn >>"$TURNS"; echo '{"us":2000}' ;;
        *search*) echo '{"us":10}' ;;
        *) echo '{"released":true}' ;;
    esac
done
"#;
    let fails = "#!/bin/sh\nread -r line; echo '{\"error\":\"no module named torch\"}'\n";
    let program = |name: &str, text: &str| {
        let path = temp.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, bad, turns) = (program("good", speaks), program("bad", fails), temp.path().join("turns"));
    let command = bench("attention", &["-m", "quest", "--peers", "--python", &good, "--json"]).env("TURNS", &turns);
    let rows = bench_rows(&command.ok());
    let [_, _, torch, search] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        (&torch["method"], &torch["peer"], &torch["time_us"]),
        (&json!("torch_x"), &json!(true), &json!(2000.0))
    );
    assert!(torch["speedup_vs_full"].as_f64().unwrap() > 0.0);
    assert!(search["speedup_vs_full"].is_null(), "it does less than full does");
    assert_eq!(lines(&turns), 8, "six turns and two to warm up");
    let command = bench("attention", &["--no-full", "-m", "quest", "--peers", "--python", &good]).env("TURNS", &turns);
    let ran = command.ok();
    ["torch_x (peer)", "faiss is not installed", "one head"].iter().for_each(|part| ran.prints(part));
    bench("attention", &["--peers", "--python", &bad]).fails(1, "no module named torch", "");
}

// ---- rows of others ----

#[test]
fn rows_longer_than_the_context_are_left_out_before_the_run_or_refused() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("rows.jsonl");
    let row = |context: &str, key: &str| json!({"context": context, "question": format!("What is the key? {key}"), "answer": "7"});
    let rows = [row("The key is 7.", "a"), row(&"A house by the sea. ".repeat(12_000), "b"), row("The key is 7.", "c")];
    fs::write(&path, rows.map(|row| row.to_string()).join("\n")).unwrap();
    let task = format!("jsonl:{}:max_new_tokens=2", path.display());
    let out = out();
    let args = ["eval", "-q", "-t", &task, "-m", "topk:k=8", "--out", out.arg()];
    let ran = spattn(&args).fails(2, "rows.jsonl:2: the prompt with its answer, ", "--skip-bad");
    ran.check(ran.stderr.contains("is beyond the context of builtin (32768)"), "the limit is named");
    assert!(!out.dir.join("samples.jsonl").exists(), "nothing was run");
    let ran = spattn(&args).args(&["--skip-bad"]).ok();
    ran.check(
        ran.stderr.contains("note: ") && ran.stderr.contains("1 row that builtin cannot read is left out"),
        "it is counted",
    );
    let samples: BTreeSet<u64> = out.records().values().map(|record| record["sample"].as_u64().unwrap()).collect();
    assert_eq!(samples, BTreeSet::from([0, 2]));

    // The note is kept for later readers: in the folder's files, and in reports of the folder.
    let what = "1 row that builtin cannot read is left out";
    let manifest: Value = serde_json::from_str(&read(&out.dir.join("manifest.json"))).unwrap();
    assert!(manifest["notes"][0].as_str().unwrap().contains(what), "{}", manifest["notes"]);
    assert!(read(&out.dir.join("summary.md")).contains(what));
    let drawn = temp.path().join("drawn");
    let report = spattn(&["report", out.arg(), "--out", drawn.to_str().unwrap()]).ok();
    report.check(report.stderr.matches(what).count() == 1, "it is said once");
    for name in ["summary.md", "report.html"] {
        assert!(read(&drawn.join(name)).contains(what), "{name}");
    }

    // A plan for many machines has the same examples as a run here.
    let plan = temp.path().join("plan");
    let launch = [
        "sweep",
        "quick",
        "--launch",
        "slurm",
        "--jobs",
        "2",
        "--dry-run",
        "--skip-bad",
        "--out",
        plan.to_str().unwrap(),
    ];
    let own = ["-t", &task, "-m", "topk:k=8", "--sparse-from", "question", "--seed", "42", "-n", "100", "-l", "1024"];
    let ran = spattn(&[&launch[..], &own].concat()).ok();
    ran.check(ran.stdout.contains("4 records on 1 contexts in 1 shards"), "two methods on two rows of one context");
}

/// The same prompts give the same records, whether in RULER's rows or in kvpress' rows.
#[test]
fn rows_of_kvpress_give_the_records_of_rulers_rows() {
    let temp = TempDir::new().unwrap();
    let exported = temp.path().join("exported.jsonl");
    spattn(&["data", "export-eval", "-t", "ruler/niah_multivalue,ruler/vt", "-l", "1K", "-n", "2", "--out"])
        .args(&[exported.to_str().unwrap()])
        .ok();
    let mut of_kvpress = String::new();
    for line in read(&exported).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let (input, task) = (row["input"].as_str().unwrap(), row["task"].as_str().unwrap());
        // The place where the script of kvpress splits prompts.
        let mark = if task.ends_with("vt") { "Question: Find all variables" } else { "What are all the special magic" };
        let (context, question) = input.split_at(input.rfind(mark).unwrap());
        let tokens = if task.ends_with("vt") { 30 } else { 128 };
        let parted = json!({"context": context, "question": question, "answer_prefix": row["answer_prefix"],
            "answer": row["outputs"], "task": task.strip_prefix("ruler/"), "max_new_tokens": tokens});
        of_kvpress += &format!("{parted}\n");
    }
    let parted = temp.path().join("parted.jsonl");
    fs::write(&parted, of_kvpress).unwrap();
    let results = |path: &Path| {
        let out = out();
        let task = format!("jsonl:{}", path.display());
        spattn(&["eval", "-q", "-t", &task, "-n", "4", "-m", "streaming_llm:window=128", "--out", out.arg()]).ok();
        let of = |record: &Map<String, Value>| {
            let part = |name: &str| record[name].clone();
            (
                part("method"),
                part("sample"),
                [part("prediction"), part("score"), part("metric"), part("prompt_tokens"), part("prefix_tokens")],
            )
        };
        let mut all: Vec<_> = out.records().values().map(of).map(|parts| format!("{parts:?}")).collect();
        all.sort();
        all
    };
    let (of_ruler, of_kvpress) = (results(&exported), results(&parted));
    assert_eq!(of_ruler.len(), 8);
    assert_eq!(of_ruler, of_kvpress);
}
