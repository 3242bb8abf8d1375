//! Quantised KV caches (`kv_dtype`): rows with and without them in one run, what they read, and where they are refused.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::program::spattn;

const RUN: [&str; 10] = ["eval", "-q", "-t", "ruler/niah_single_2", "-l", "1K", "-n", "2", "--fidelity", "--out"];

fn run(folder: &Path, more: &[&str]) {
    spattn(&RUN).args(&[folder.to_str().unwrap()]).args(more).ok();
}

/// The records of a method with these parameters, in the order of their examples.
fn records(folder: &Path, method: &str, params: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("samples.jsonl")).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut own: Vec<Value> = all.filter(|r| r["method"] == method && r["params"] == params).collect();
    own.sort_by_key(|r| r["sample"].as_u64());
    own
}

/// Records without times.
fn untimed(records: Vec<Value>) -> Vec<Value> {
    let without = |mut record: Value| {
        let fields = record.as_object_mut().unwrap();
        fields.retain(|key, _| !key.ends_with("_s") && !["reused_tokens", "conditions"].contains(&key.as_str()));
        record
    };
    records.into_iter().map(without).collect()
}

fn number(record: &Value, field: &str) -> f64 {
    record[field].as_f64().unwrap()
}

#[test]
fn rows_with_and_without_stand_beside_each_other_and_full_stays_the_reference() {
    let dir = TempDir::new().unwrap();
    let [both, plain, threads] = ["both", "plain", "threads"].map(|name| dir.path().join(name));
    let methods = ["-m", "full:kv_dtype={q8,q4}", "-m", "topk:k=64,kv_dtype={model,q4}"];
    run(&both, &methods);
    run(&plain, &["-m", "topk:k=64"]);
    run(&threads, &[&methods[..], &["--threads", "1"]].concat());
    // Settings without quantised keys and values have the same records as in a run without any quantisation.
    for (method, params) in [("full", ""), ("topk", "k=64")] {
        let [beside, alone] = [&both, &plain].map(|folder| untimed(records(folder, method, params)));
        assert_eq!((beside.len(), &beside), (2, &alone), "{method}");
        assert!(beside[0]["settings"].get("kv_dtype").is_none(), "{method}");
    }
    let of = |method: &str, params: &str| {
        let [own, on_one] = [&both, &threads].map(|folder| untimed(records(folder, method, params)));
        assert_eq!(own, on_one, "{method}:{params}: threads change nothing");
        own.into_iter().next().unwrap()
    };
    let [exact, q8, q4] = [("full", ""), ("full", "kv_dtype=q8"), ("full", "kv_dtype=q4")].map(|(m, p)| of(m, p));
    let topk = [("topk", "k=64"), ("topk", "k=64,kv_dtype=q4")].map(|(m, p)| of(m, p));
    assert_eq!(q4["settings"]["kv_dtype"], "q4");
    // A row of 64 channels is 128 bytes in 16 bits, 72 in 8-bit codes, 40 in 4-bit codes. Tokens after the prefix stay
    // exact.
    for (record, row) in [(&q8, 72.0), (&q4, 40.0)] {
        let share = number(record, "kv_bytes_per_token") / number(&exact, "kv_bytes_per_token");
        assert!(share > row / 128.0 && share < row / 128.0 + 0.12, "{share}");
        let held = number(record, "kv_bytes_held") / number(&exact, "kv_bytes_held");
        assert!(held > row / 128.0 && held < row / 128.0 + 0.12, "{held}");
        for same in ["density", "cost1", "cost2", "aux_bits", "kv_bits"] {
            assert_eq!(record[same], exact[same], "{same}");
        }
    }
    assert!(number(&topk[1], "kv_bytes_per_token") < 0.5 * number(&topk[0], "kv_bytes_per_token"));
    // The error is relative to exact attention over the keys and values that the model computed.
    let error = |record: &Value| {
        let layers = record["fidelity"]["output_error"].as_array().unwrap();
        layers.iter().map(|error| error.as_f64().unwrap()).sum::<f64>() / layers.len() as f64
    };
    assert!(error(&exact) < 1e-6 && error(&q8) > 1e-5, "{} {}", error(&exact), error(&q8));
    assert!(error(&q8) < error(&q4) && error(&q4) < 0.2 && error(&topk[0]) < error(&topk[1]));
    // The table compares all rows with `full` without quantisation.
    let table = fs::read_to_string(both.join("summary.csv")).unwrap();
    let mut lines = csv::Reader::from_reader(table.as_bytes());
    let heads = lines.headers().unwrap().clone();
    let column = |name: &str| heads.iter().position(|head| head == name).unwrap();
    let rows: Vec<csv::StringRecord> = lines.records().map(Result::unwrap).collect();
    let named: Vec<[&str; 3]> =
        rows.iter().map(|row| ["method", "params", "bytes_share"].map(|name| &row[column(name)])).collect();
    assert_eq!((named[0][0], named[0][1], named[0][2].parse()), ("full", "", Ok(1.0)));
    assert_eq!([named[1][1], named[2][1]], ["kv_dtype=q8", "kv_dtype=q4"]);
    assert!(named[2][2].parse::<f64>().unwrap() < 0.45, "{named:?}");
}

#[test]
fn the_flag_is_the_default_of_all_but_the_reference_and_a_dry_run_counts_the_copies() {
    let dry = |more: &[&str]| {
        let args =
            ["eval", "-t", "ruler/niah_single_2", "-l", "4K", "-n", "1", "--dry-run", "-m", "full", "-m", "topk"];
        spattn(&args).args(more).ok().stdout
    };
    let memory = |text: &str| {
        let megabytes = text.split("with up to ").nth(1).unwrap().split(" MB").next().unwrap();
        megabytes.parse::<f64>().unwrap()
    };
    let (plain, q8) = (dry(&[]), dry(&["--kv-dtype", "q8"]));
    assert!(q8.contains("full:kv_dtype=q8") && q8.contains("topk:k=64,kv_dtype=q8"), "{q8}");
    assert!(!plain.contains("kv_dtype"), "{plain}");
    assert!(memory(&q8) > memory(&plain) + 5.0, "{plain}\n{q8}");
}

#[test]
fn what_nothing_would_read_is_refused() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "The cat sat on the mat. ".repeat(200)).unwrap();
    let task = format!("ppl/file:{}", text.display());
    for dry in [&[][..], &["--dry-run"]] {
        let args = ["eval", "-q", "-t", &task, "-l", "512", "-n", "1", "-m", "hip", "--kv-dtype", "q4"];
        let out = dir.path().join("refused");
        let run = spattn(&args).args(&["--sparse-from", "prefill", "--out", out.to_str().unwrap()]).args(dry);
        run.fails(2, "in one pass, without a decode step", "use --sparse-from decode");
    }
}
