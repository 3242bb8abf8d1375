//! LongBench through the program: rows in the published format give scored records.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::program::{self, Ran};

fn run(args: &[&str]) -> Ran {
    program::spattn(args).env("SPATTN_DATA", "/nonexistent/data").run()
}

#[track_caller]
fn ok(args: &[&str]) -> Ran {
    run(args).ok()
}

#[track_caller]
fn fails(args: &[&str], status: i32, words: &[&str]) {
    let ran = run(args);
    assert_eq!(ran.status, Some(status), "{args:?}\n{}\n{}", ran.stdout, ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "`{word}` in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

/// `count` rows of a set, of about `words` words each.
fn rows(set: &str, count: usize, words: usize) -> Vec<Value> {
    let text = |row: usize| -> String {
        let facts = (0..words / 8).map(|i| format!("The river at town {} is {} miles long. ", row * 31 + i, i * 7 + 1));
        facts.collect()
    };
    let one = |row: usize| {
        let classes = (set == "trec").then(|| json!(["River", "Town", "Length of a river"]));
        json!({
            "input": format!("How long is the river at town {}?", row * 31 + 3),
            "context": text(row),
            "answers": [if set == "trec" { "Town".to_owned() } else { "22 miles".to_owned() }],
            "length": words, "dataset": set, "language": "en", "all_classes": classes, "_id": format!("{set}-{row}"),
        })
    };
    (0..count).map(one).collect()
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn records(out: &Path) -> Vec<Map<String, Value>> {
    let text = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SETS: [(&str, usize, usize); 3] = [("hotpotqa", 8, 60), ("samsum", 6, 400), ("trec", 6, 120)];

/// A data folder with twenty rows in each of three sets.
fn twenty_rows() -> TempDir {
    let dir = TempDir::new().unwrap();
    for (set, count, words) in SETS {
        write(&dir.path().join(format!("longbench/{set}.jsonl")), &lines(&rows(set, count, words)));
    }
    dir
}

#[test]
fn twenty_rows_are_run_cut_scored_and_scored_again() {
    let data = twenty_rows();
    let out = data.path().join("out");
    let (data, out_arg) = (data.path().to_str().unwrap(), out.to_str().unwrap());
    let mut args = vec!["eval", "--data", data, "--out", out_arg, "--length", "512", "-m", "topk:k=64", "--quiet"];
    for task in ["longbench/hotpotqa", "longbench/samsum", "longbench/trec"] {
        args.extend(["--task", task]);
    }
    let ran = ok(&args);
    assert!(ran.stdout.contains("longbench/samsum"), "{}", ran.stdout);
    assert!(ran.stdout.contains("6 of 6 prompts were cut in the middle to fit 512 tokens"), "{}", ran.stdout);

    let records = records(&out);
    assert_eq!(records.len(), 40, "twenty rows, two methods");
    for record in &records {
        let set = record["task"].as_str().unwrap().strip_prefix("longbench/").unwrap();
        let (cut, prompt) = (record["cut_tokens"].as_u64().unwrap(), record["prompt_tokens"].as_u64().unwrap());
        assert_eq!(cut > 0, set == "samsum", "{record:?}");
        assert!(prompt <= 512 + 30 && (cut == 0 || prompt > 500), "{record:?}");
        assert_eq!(record["length"], 512);
        assert_eq!(record.get("first_line") == Some(&json!(true)), set != "hotpotqa");
        assert_eq!(
            record.get("all_classes").and_then(Value::as_array).map_or(0, Vec::len),
            if set == "trec" { 3 } else { 0 }
        );
        assert_eq!(
            record["metric"],
            match set {
                "hotpotqa" => "qa_f1",
                "samsum" => "rouge_l",
                _ => "classification",
            }
        );
        assert_eq!(record["source"], format!("{set}.jsonl"));
        let prediction = record["prediction"].as_str().unwrap();
        assert!(
            set != "samsum" || prediction.trim_end_matches('\n').lines().count() <= 1,
            "a line break ends it: {prediction:?}"
        );
        assert!(set != "samsum" || record["new_tokens"].as_u64().unwrap() >= 1);
    }

    // Scored again, the records get the same scores as in the run.
    let again = ok(&["score", out_arg]);
    assert!(again.stderr.is_empty(), "{}", again.stderr);
    assert!(
        again.stdout.contains("longbench/hotpotqa at 512, full") && again.stdout.lines().count() == 6,
        "{}",
        again.stdout
    );
    let json: Value = serde_json::from_str(&ok(&["score", out_arg, "--json"]).stdout).unwrap();
    let stored: Vec<f64> = records.iter().map(|r| r["score"].as_f64().unwrap()).collect();
    assert_eq!(json["rows"], json!(stored));
}

#[test]
fn the_archive_single_files_and_prepared_files_give_the_same_prompts() {
    let plain = twenty_rows();
    let zipped = TempDir::new().unwrap();
    let mut zip = zip::ZipWriter::new(fs::File::create(zipped.path().join("data.zip")).unwrap());
    zip.start_file("data/hotpotqa.jsonl", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(lines(&rows("hotpotqa", 8, 60)).as_bytes()).unwrap();
    zip.finish().unwrap();
    let prepared = format!("jsonl:{}", plain.path().join("longbench/hotpotqa.jsonl").display());
    let mut seen = Vec::new();
    for (index, (data, task)) in
        [(&plain, "longbench/hotpotqa"), (&zipped, "longbench/hotpotqa"), (&plain, &prepared)].iter().enumerate()
    {
        let out = plain.path().join(format!("out{index}"));
        ok(&[
            "eval",
            "--data",
            data.path().to_str().unwrap(),
            "--task",
            task,
            "-n",
            "3",
            "--no-full",
            "-m",
            "topk:k=16",
            "--quiet",
            "--out",
            out.to_str().unwrap(),
        ]);
        let parts: Vec<_> = records(&out)
            .iter()
            .map(|r| {
                (
                    r["prediction"].clone(),
                    r["prompt_tokens"].clone(),
                    r["score"].clone(),
                    r["cut_tokens"].clone(),
                    r["length"].clone(),
                )
            })
            .collect();
        assert_eq!(parts.len(), 3);
        seen.push(parts);
    }
    assert!(seen[0] == seen[1] && seen[1] == seen[2], "{seen:?}");
    assert_eq!(seen[0][0].4, 0, "without --length, the model's context is the limit");
}

#[test]
fn the_extended_sets_are_reported_by_length() {
    let data = TempDir::new().unwrap();
    let mut all = rows("hotpotqa", 4, 60);
    for (row, length) in all.iter_mut().zip([100, 3999, 4000, 12000]) {
        row["length"] = length.into();
    }
    write(&data.path().join("longbench/hotpotqa_e.jsonl"), &lines(&all));
    let out = data.path().join("out");
    let ran = ok(&[
        "eval",
        "--data",
        data.path().to_str().unwrap(),
        "--task",
        "longbench_e/hotpotqa",
        "--quiet",
        "--json",
        "-m",
        "topk:k=16",
        "--no-full",
        "--out",
        out.to_str().unwrap(),
    ]);
    let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
    let counts: Vec<_> =
        summary.as_array().unwrap().iter().map(|r| (r["task"].as_str().unwrap(), r["n"].as_u64().unwrap())).collect();
    assert_eq!(
        counts,
        [("longbench_e/hotpotqa/0-4k", 2), ("longbench_e/hotpotqa/4-8k", 1), ("longbench_e/hotpotqa/8k+", 1)]
    );
}

#[test]
fn malformed_rows_stop_a_run_unless_they_are_to_be_skipped() {
    let data = TempDir::new().unwrap();
    let good = rows("hotpotqa", 3, 40);
    let text = format!("{}{{\"context\": 1}}\n{}broken\n", lines(&good[..1]), lines(&good[1..]));
    write(&data.path().join("longbench/hotpotqa.jsonl"), &text);
    let (folder, out) = (data.path().to_str().unwrap(), data.path().join("out"));
    let args = [
        "eval",
        "--data",
        folder,
        "--task",
        "longbench/hotpotqa",
        "--no-full",
        "-m",
        "topk:k=16",
        "--quiet",
        "--out",
        out.to_str().unwrap(),
    ];
    fails(
        &args,
        2,
        &["hotpotqa.jsonl:2: the field `context` is not text", "1 more of 5 rows is malformed (line 5)", "--skip-bad"],
    );
    let ran = ok(&[&args[..], &["--skip-bad"]].concat());
    assert!(
        ran.stderr.contains("note: ") && ran.stderr.contains("2 malformed rows are left out (lines 2, 5)"),
        "{}",
        ran.stderr
    );
    assert_eq!(records(&out).len(), 3);
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    assert!(manifest.contains("\"skip_bad\": true"), "{manifest}");
}

#[test]
fn data_sets_are_fetched_from_a_mirror_listed_and_checked() {
    let dir = TempDir::new().unwrap();
    let (mirror, data) = (dir.path().join("mirror"), dir.path().join("data"));
    write(&mirror.join("ruler_assets/PaulGrahamEssays.json"), "{\"text\": \"Some words of an essay.\"}");
    write(&mirror.join("squad/dev-v2.0.json"), "{}");
    let (from, data_arg) = (format!("file://{}", mirror.display()), data.to_str().unwrap());
    let fetch = |name: &str| run(&["data", "fetch", name, "--from", &from, "--data", data_arg]);
    assert!(ok(&["data", "fetch", "essays", "--from", &from, "--data", data_arg]).stdout.starts_with("fetched "));
    assert!(fetch("essays").stdout.starts_with("present "));
    let refused = fetch("squad");
    assert_eq!(refused.status, Some(1));
    assert!(refused.stderr.contains("differs from the published file: it has 2 bytes"), "{}", refused.stderr);
    assert!(!data.join("squad/dev-v2.0.json").exists(), "nothing is left of it");
    // A file of the published size with other bytes.
    fs::create_dir(mirror.join("winogrande")).unwrap();
    fs::write(mirror.join("winogrande/winogrande_1.1.zip"), vec![0; 3_395_492]).unwrap();
    let refused = fetch("winogrande");
    assert_eq!(refused.status, Some(1));
    assert!(refused.stderr.contains("that of the published file 3619ab104d8b"), "{}", refused.stderr);
    assert!(!data.join("winogrande/winogrande_1.1.zip").exists(), "nothing is left of it");

    let list = ok(&["data", "list", "--data", data_arg]).stdout;
    assert!(list.lines().any(|l| l.starts_with("essays") && l.contains("present")), "{list}");
    assert!(list.lines().any(|l| l.starts_with("longbench") && l.contains("absent")), "{list}");
    ok(&["data", "check", "--data", data_arg]);
    ok(&["data", "check", "essays", "--data", data_arg]);
    fails(&["data", "check", "longbench", "--data", data_arg], 1, &["0 files are not as published, 35 are missing"]);
    write(&data.join("longbench/qasper.jsonl"), &lines(&rows("qasper", 2, 10)));
    let ran = run(&["data", "check", "--data", data_arg]);
    assert_eq!(ran.status, Some(1));
    let wrong = ["WRONG", "qasper.jsonl", "2 rows, 200 are published"];
    assert!(ran.stdout.lines().any(|line| wrong.iter().all(|word| line.contains(word))), "{}", ran.stdout);
}

#[test]
fn without_network_it_is_said_which_file_to_put_where() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().to_str().unwrap();
    let words = [
        "longbench/data.zip cannot be downloaded from https://huggingface.co/datasets/zai-org/LongBench",
        "HF_HUB_OFFLINE is set",
    ];
    fails(&["data", "fetch", "longbench", "--data", data], 2, &words);
    let put = format!("put the file at {data}/longbench/data.zip");
    fails(
        &["data", "fetch", "longbench", "--data", data],
        2,
        &[&put, &format!("spattn data check longbench --data {data}")],
    );
    fails(&["data", "fetch", "wordlists", "--data", data], 2, &["cannot be downloaded automatically", "wonderwords"]);
    fails(&["data", "fetch"], 2, &["no data set was named", "longbench"]);
    fails(&["data", "fetch", "longbnch"], 2, &["did you mean `longbench`?"]);
    fails(&["eval", "--task", "longbench/qasper"], 2, &["qasper.jsonl", "spattn data fetch longbench"]);
}
