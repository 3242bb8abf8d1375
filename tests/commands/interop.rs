//! What users of lm-eval, kvpress and llama.cpp type, and files for the tools of these programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::program::{self, Ran};

fn spattn(dir: &Path, line: &str) -> Ran {
    program::spattn(&line.split_whitespace().collect::<Vec<_>>()).within(dir).run()
}

#[track_caller]
fn ok(dir: &Path, line: &str) -> Ran {
    spattn(dir, line).ok()
}

/// The files below a folder, by their paths relative to it.
fn files_below(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false => drop(all.insert(entry.strip_prefix(dir).unwrap().to_string_lossy().into_owned())),
            }
        }
    }
    all.remove(".written");
    all
}

#[test]
fn a_command_of_lm_eval_runs_and_its_other_flags_are_one_line() {
    let dir = TempDir::new().unwrap();
    ok(dir.path(), "run --tasks ruler/niah_single_1 --lengths 1024 --limit 1 -m streaming_llm --output_path out -q");
    let samples = fs::read_to_string(dir.path().join("out/samples.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 2);
    for (line, error) in [
        (
            "eval --apply_chat_template",
            "error: unexpected argument '--apply_chat_template' found\n  hint: the model's own chat template is always used; --no-chat turns it off\n",
        ),
        (
            "eval --revision main",
            "error: unexpected argument '--revision' found\n  hint: the revision is part of the model's name: --model NAME@REV\n",
        ),
        (
            "eval -ngl 99",
            "error: unexpected argument '-ngl' found\n  hint: --device cuda computes all layers on a GPU, ",
        ),
        ("tune magicpig", "error: unexpected argument 'magicpig' found\n  hint: write --method magicpig\n"),
        (
            "eval -m model.gguf",
            "error: -m names a method, and model.gguf is a model\n  hint: write --model model.gguf\n",
        ),
        (
            "eval -m knorm:compression_ratio=0.5",
            "error: method `knorm` is a press of kvpress\n  hint: not among the methods here; ",
        ),
    ] {
        let ran = spattn(dir.path(), line);
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.starts_with(error) && ran.stderr.lines().count() == 2, "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_config_in_yaml_is_told_what_configs_are() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("c.yaml"), "tasks:\n  - ruler/vt\nlimit: 3\n").unwrap();
    let ran = spattn(dir.path(), "eval --config c.yaml");
    let expected =
        "error: c.yaml:1: this is YAML, and configs are TOML\n  hint: write: tasks = ['ruler/vt']; samples = 3\n";
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(2), expected));
}

/// A run given in kvpress' spelling is resumed in ours without a new record.
#[test]
fn a_compression_ratio_is_the_share_that_is_kept_less_than_all() {
    let dir = TempDir::new().unwrap();
    let run = "eval -q -t ruler/vt -l 1K -n 1 --no-full --out run";
    ok(dir.path(), &format!("{run} -m snapkv:compression_ratio=0.75 -m streaming_llm:compression_ratio=0.75"));
    let samples = || fs::read_to_string(dir.path().join("run/samples.jsonl")).unwrap();
    let before = samples();
    ok(dir.path(), &format!("{run} --resume -m snapkv:keep=0.25 -m streaming_llm:keep=0.25,slide=false"));
    assert_eq!(samples(), before);
    for line in before.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["settings"]["keep"], "0.25", "{line}");
        // Three quarters of the prefix are evicted, up to rounding, and everything after it stays. With `per=query_head`, each query
        // head of a GQA group may keep other tokens.
        let (context, held) =
            (record["kv_tokens"]["context"].as_f64().unwrap(), record["kv_tokens"]["held"].as_f64().unwrap());
        let prefix = record["prefix_tokens"].as_f64().unwrap();
        let gone = (context - held) / prefix;
        match record["method"].as_str() {
            Some("streaming_llm") => assert!((gone - 0.75).abs() < 2.0 / prefix, "{gone}"),
            _ => assert!(gone <= 0.75 + 2.0 / prefix, "{gone}"),
        }
    }
}

#[test]
fn prompts_of_own_rows_are_shown_in_their_parts() {
    let dir = TempDir::new().unwrap();
    let row =
        r#"{"context": "The key is under the third stone.", "question": "Where is the key?", "answer": "third stone"}"#;
    fs::write(dir.path().join("mine.jsonl"), row).unwrap();
    let shown = ok(dir.path(), "data show -t jsonl:mine.jsonl").stdout;
    assert!(shown.starts_with("jsonl:mine, example 1 of 1: "), "{shown}");
    assert!(shown.contains("scored by string_match_part against \"third stone\"\nchat template: none\n"), "{shown}");
    assert!(shown.contains("tokens)\nThe key is under the third stone.\n\n\n--- question ("), "{shown}");
    assert!(shown.contains("tokens)\nWhere is the key?\n---\n"), "{shown}");
    let long = ok(dir.path(), "data show -t ruler/vt -l 1K").stdout;
    assert!(
        long.contains("characters, shown with --whole ...]") && long.contains("--- start of the answer ("),
        "{long}"
    );
    let whole = ok(dir.path(), "data show -t ruler/vt -l 1K --whole").stdout;
    assert!(whole.len() > 2 * long.len() && !whole.contains("shown with --whole"));
}

/// The kind of a JSON value, named as in Python.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// The fields of `theirs` that `ours` lacks or has with another type. Null matches any type.
fn missing_fields(ours: &Value, theirs: &Value, place: &str) -> Vec<String> {
    let fields = theirs.as_object().unwrap().iter();
    let fault = |(name, theirs): (&String, &Value)| match (ours.get(name).map(kind), theirs.as_str().unwrap()) {
        (None, _) => Some(format!("{place}: `{name}` is missing")),
        (Some(ours), theirs) if ours == theirs || [ours, theirs].contains(&"NoneType") => None,
        (Some(ours), theirs) => Some(format!("{place}: `{name}` is {ours}, not {theirs}")),
    };
    fields.filter_map(fault).collect()
}

/// Compares files with the fields of lm-eval's own files, as `scripts/check_lm_eval_format.py --write-fields` stored them.
fn faults_of_lm_eval_files(folder: &Path) -> Vec<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lm_eval_fields.json");
    let theirs: Value = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    let of = |kind: &str, place: &str| theirs["kinds"][kind][place].clone();
    let mut faults = Vec::new();
    for name in files_below(folder).iter().filter(|name| name.contains("results_")) {
        let results: Value = serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        faults.extend(missing_fields(&results, &of("generate_until", "results"), name));
        faults.extend(missing_fields(&results["config"], &of("generate_until", "config"), name));
        for (task, config) in results["configs"].as_object().unwrap() {
            let kind = config["output_type"].as_str().unwrap();
            let place = format!("{name}: {task}");
            faults.extend(missing_fields(config, &of(kind, "configs"), &place));
            faults.extend(missing_fields(&results["n-samples"][task], &of(kind, "n-samples"), &place));
            let group = name.split('/').next().unwrap();
            let is_own = |file: &&String| file.starts_with(&format!("{group}/samples_{task}_"));
            let samples = files_below(folder).iter().find(is_own).cloned().unwrap();
            for line in fs::read_to_string(folder.join(&samples)).unwrap().lines() {
                faults.extend(missing_fields(&serde_json::from_str(line).unwrap(), &of(kind, "samples"), &samples));
            }
        }
    }
    faults
}

/// Checked with generated answers, and with a text whose likelihood is scored.
#[test]
fn files_for_lm_eval_have_the_fields_of_its_own() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("book.txt"), "The sea is grey, the sky is wide and the boat is small. ".repeat(200))
        .unwrap();
    ok(dir.path(), "eval -q -t ruler/vt,ppl/file:book.txt:scored=32 -l 1K -n 2 -m streaming_llm --out run");
    ok(dir.path(), "report run --format lm-eval");
    let folder = dir.path().join("run/lm-eval");
    assert_eq!(faults_of_lm_eval_files(&folder), [""; 0]);
    // Delete one field, and change the type of another.
    let name = files_below(&folder).into_iter().find(|name| name.contains("samples_ruler_vt")).unwrap();
    let text = fs::read_to_string(folder.join(&name)).unwrap();
    fs::write(
        folder.join(&name),
        text.replacen("\"doc_id\":0", "\"doc_id\":\"0\"", 1).replace("\"target_hash\"", "\"hash\""),
    )
    .unwrap();
    let faults = faults_of_lm_eval_files(&folder).join("\n");
    assert!(faults.contains("`doc_id` is str, not number") && faults.contains("`target_hash` is missing"), "{faults}");
}

/// A Python with lm-eval: `LM_EVAL_PYTHON`, or `python3` if that has it.
fn python_with_lm_eval() -> Option<PathBuf> {
    let python = std::env::var_os("LM_EVAL_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let found = Command::new(&python).args(["-c", "import lm_eval"]).output();
    found.is_ok_and(|output| output.status.success()).then_some(python)
}

#[test]
fn results_are_stored_as_lm_eval_and_kvpress_store_them() {
    let dir = TempDir::new().unwrap();
    let run = "eval -q -t ruler/niah_single_1,ruler/vt -l 1K -n 2 --keep-prompts --out run";
    ok(dir.path(), &format!("{run} -m quest:density=0.1 -m snapkv:preset=kvpress,compression_ratio=0.5"));
    let before = files_below(&dir.path().join("run"));
    let ran = ok(dir.path(), "report run --format lm-eval");
    assert!(ran.stdout.starts_with("9 files:") && ran.stderr.is_empty(), "{}\n{}", ran.stdout, ran.stderr);
    let lm_eval = dir.path().join("run/lm-eval");
    let names = files_below(&lm_eval);
    let folders: BTreeSet<&str> = names.iter().map(|name| name.split('/').next().unwrap()).collect();
    let press = "builtin+snapkv__keep=0.5,window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0";
    assert_eq!(folders, BTreeSet::from(["builtin+full", "builtin+quest__page=16,density=0.1", press]));
    let results = names.iter().find(|name| name.starts_with("builtin+full/results_")).unwrap();
    let results: Value = serde_json::from_str(&fs::read_to_string(lm_eval.join(results)).unwrap()).unwrap();
    assert_eq!(results["results"]["niah_single_1"]["sample_len"], 2);
    assert!(results["results"]["ruler_vt"]["1024,none"].is_number(), "{}", results["results"]);
    let samples = names.iter().find(|name| name.starts_with("builtin+full/samples_ruler_vt_")).unwrap();
    let samples = fs::read_to_string(lm_eval.join(samples)).unwrap();
    let first: Value = serde_json::from_str(samples.lines().next().unwrap()).unwrap();
    let prompt = first["arguments"]["gen_args_0"]["arg_0"].as_str().unwrap();
    assert!(prompt.len() > 2000 && prompt.contains("VAR "), "{prompt}");

    let again = ok(dir.path(), "report run --format lm-eval --out elsewhere");
    assert_eq!((again.stderr.as_str(), files_below(&dir.path().join("elsewhere"))), ("", names));
    ok(dir.path(), "report run --format kvpress");
    let of_kvpress = files_below(&dir.path().join("run/kvpress"));
    for folder in [
        "ruler__1024__builtin__no_press__0.00",
        "ruler__1024__builtin__snapkv__0.50",
        "ruler__1024__builtin__spattn-quest-page=16,density=0.1__0.00",
    ] {
        for file in ["predictions.csv", "metrics.json", "config.yaml"] {
            assert!(of_kvpress.contains(&format!("{folder}/{file}")), "{folder}/{file}: {of_kvpress:?}");
        }
    }
    let metrics =
        fs::read_to_string(dir.path().join("run/kvpress/ruler__1024__builtin__no_press__0.00/metrics.json")).unwrap();
    let metrics: Value = serde_json::from_str(&metrics).unwrap();
    assert!(
        metrics["niah_single_1"]["string_match"].is_number() && metrics["vt"]["string_match"].is_number(),
        "{metrics}"
    );
    let after: BTreeSet<String> = files_below(&dir.path().join("run"));
    let others = after.iter().filter(|name| !name.starts_with("lm-eval/") && !name.starts_with("kvpress/"));
    assert_eq!(others.cloned().collect::<BTreeSet<_>>(), before, "a run's own files stay as they are");

    let Some(python) = python_with_lm_eval() else {
        return eprintln!("SKIPPED: no Python with lm-eval (LM_EVAL_PYTHON), so it has not read the files");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check_lm_eval_format.py");
    let output = Command::new(python).arg(script).arg(&lm_eval).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("3 folders, 0 faults"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn exports_refuse_what_is_of_tables() {
    let dir = TempDir::new().unwrap();
    ok(dir.path(), "eval -q -t ruler/vt -l 1K -n 1 -m streaming_llm --out run");
    for (line, what) in [
        ("report run --format lm-eval --rows method", "write records, not tables"),
        ("report run run --format kvpress", "several folders were given, and none for the files"),
    ] {
        let ran = spattn(dir.path(), line);
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{line}: {}", ran.stderr);
    }
}
