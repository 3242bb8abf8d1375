//! Needle maps, passkeys, pairs, lines, summaries and several questions, through the program on the built-in model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

fn eval(out: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(["eval", "--quiet", "--out", out.to_str().unwrap()]).args(args);
    command.env("HF_HUB_OFFLINE", "1").env("NO_COLOR", "1").stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn ok(out: &Path, args: &[&str]) -> String {
    let ran = eval(out, args);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{args:?}: {errors}");
    String::from_utf8(ran.stdout).unwrap()
}

#[track_caller]
fn refused(args: &[&str], what: &str) {
    let dir = TempDir::new().unwrap();
    let ran = eval(&dir.path().join("run"), args);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && errors.contains(what) && errors.contains("error: "), "{args:?}: {errors}");
}

fn records(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Records by key, without what may differ between two runs of the same.
fn comparable(out: &Path) -> BTreeMap<String, Value> {
    let strip = |mut record: Value| {
        let fields = record.as_object_mut().unwrap();
        for name in ["prefill_s", "prefill_reused_s", "reused_tokens", "index_s", "decode_s"] {
            fields.remove(name);
        }
        (record["key"].as_str().unwrap().to_owned(), record)
    };
    records(out).into_iter().map(strip).collect()
}

fn mean_score(records: &[Value], method: &str) -> f64 {
    let scores: Vec<f64> =
        records.iter().filter(|r| r["method"] == method).map(|r| r["score"].as_f64().unwrap()).collect();
    scores.iter().sum::<f64>() / scores.len() as f64
}

#[test]
fn a_needle_map_is_written_as_cells_and_drawn() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let task = "needle/number:steps=3";
    let said = ok(&out, &["-t", task, "-l", "512", "-l", "1024", "-n", "1", "-m", "streaming_llm:window=64"]);
    let records = records(&out);
    assert_eq!(records.len(), 2 * 3 * 2);
    assert!(mean_score(&records, "full") > 0.99, "the built-in model finds numbers");
    assert!(mean_score(&records, "streaming_llm") < 0.7, "a window cannot find what lies before it");
    let csv = fs::read_to_string(out.join("depths.csv")).unwrap();
    assert_eq!(csv.lines().next().unwrap(), "model,task,length,depth,method,params,protocol,n,score");
    assert_eq!(csv.lines().count(), 1 + 12);
    assert!(csv.contains(&format!("builtin,{task},1024,50,full,,question,1,100.0000")), "{csv}");
    let svg = fs::read_to_string(out.join("plots/depth_needle-number-steps-3.svg")).unwrap();
    assert!(svg.contains("depth (%)") && svg.contains("streaming_llm window=64"));
    assert!(fs::read_to_string(out.join("summary.md")).unwrap().contains("score by length and depth"));
    // Depths of a sample begin alike, up to the needle that comes first.
    assert!(said.contains("of 6 examples begin like the one before"), "{said}");
    let reused: Vec<u64> = records.iter().map(|r| r["reused_tokens"].as_u64().unwrap()).collect();
    assert!(reused[10] > 400 && reused[0] == 0, "{reused:?}");
}

#[test]
fn passkeys_and_other_needles_run() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let tasks = ["-t", "passkey:depths=50", "-t", "needle:depths=50"];
    ok(&out, &[&tasks[..], &["-l", "1024", "-n", "1", "-m", "topk:k=16"]].concat());
    let records = records(&out);
    assert_eq!(records.len(), 6 * 2);
    assert!(records.iter().all(|r| r["depth"] == 50.0));
    assert!(records.iter().all(|r| (0.0..=1.0).contains(&r["score"].as_f64().unwrap())));
}

#[test]
fn lists_are_read_once_and_asked_at_every_depth() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    for (task, length) in [("kv_retrieval:steps=3", "1024"), ("longeval_lines:lines=12,steps=3", "1024")] {
        let args = ["-t", task, "-l", length, "-n", "1", "-m", "topk:k=32", "-m", "snapkv:k=32", "--overwrite"];
        ok(&out, &args);
        let records = records(&out);
        assert_eq!(records.len(), 3 * 3, "{task}");
        for r in &records[3..] {
            assert_eq!((&r["reused_tokens"], r["index_s"].as_f64()), (&r["prefix_tokens"], Some(0.0)), "{task}");
        }
    }
}

/// A file with two contexts, asked about in turn.
fn questions(dir: &Path) -> String {
    let context = |who: &str| {
        format!("{} {who} lives in Oslo and is called by the number 482913.", "The sky is blue. ".repeat(40))
    };
    let turns = |who: &str| {
        let (city, number) = (format!("Where does {who} live?"), format!("Which number has {who}?"));
        json!([{"question": city, "answers": ["Oslo"]}, {"input": number, "answer": "482913"}])
    };
    let row = |who: &str| json!({"context": context(who), "turns": turns(who)}).to_string();
    let path = dir.join("questions.jsonl");
    fs::write(&path, format!("{}\n{}\n{}\n", row("Ada"), row("Bob"), row("Ada"))).unwrap();
    format!("jsonl:{}:metric=string_match_part,max_new_tokens=8", path.display())
}

#[test]
fn questions_on_one_context_are_the_same_together_apart_and_in_shares() {
    let dir = TempDir::new().unwrap();
    let task = questions(dir.path());
    let methods = ["-m", "topk:k=16", "-m", "bigbird", "-m", "quest:page=16,ratio=0.2"];
    let run = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        ok(&out, &[&["-t", &task], &methods[..], more].concat());
        out
    };
    let together = run("together", &["-n", "6"]);
    let all = records(&together);
    assert_eq!(all.len(), 6 * 4);
    let samples: Vec<u64> = all.iter().step_by(4).map(|r| r["sample"].as_u64().unwrap()).collect();
    assert_eq!(samples, [0, 1, 4, 5, 2, 3], "those on one context run one after the other");
    let reused: Vec<bool> = all.iter().step_by(4).map(|r| r["reused_tokens"] == r["prefix_tokens"]).collect();
    assert_eq!(reused, [false, true, true, true, false, true]);

    // Every example in a process of its own but for those before it, which are there already.
    for n in ["1", "2", "3", "4", "5", "6"] {
        let more = ["-n", n, "--resume"];
        run("apart", &more[..if n == "1" { 2 } else { 3 }]);
    }
    assert_eq!(comparable(&dir.path().join("apart")), comparable(&together));

    let mut shares = comparable(&run("first", &["-n", "6", "--shard", "1/2"]));
    assert_eq!(shares.len(), 4 * 4, "a context is in one share");
    shares.extend(comparable(&run("second", &["-n", "6", "--shard", "2/2"])));
    assert_eq!(shares, comparable(&together));
}

#[test]
fn summaries_have_three_scores() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("books.jsonl");
    let row = json!({"document": "The grass is green. ".repeat(30), "summary": "The grass is green."});
    fs::write(&path, row.to_string()).unwrap();
    let out = dir.path().join("run");
    ok(&out, &["-t", &format!("jsonl:{}:max_new_tokens=16", path.display()), "-m", "topk:k=16"]);
    for r in records(&out) {
        let others: Vec<&String> = r["other_scores"].as_object().unwrap().keys().collect();
        assert_eq!(others, ["rouge_1", "rouge_2"]);
    }
    let csv = fs::read_to_string(out.join("metrics.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2, "{csv}");
    assert!(
        fs::read_to_string(out.join("summary.md")).unwrap().contains("| method | params | rouge_1 % | rouge_2 % |")
    );
}

#[test]
fn mistakes_are_named_with_their_place() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("bad.jsonl");
    let good = json!({"ordered_kv_records": [["a", "1"]], "key": "a", "value": "1"});
    fs::write(&path, format!("{good}\n{{\"ordered_kv_records\": 3}}\n")).unwrap();
    refused(&["-t", &format!("kv_retrieval:file={}", path.display())], "bad.jsonl:2: ");
    refused(&["-t", &format!("jsonl:{}", path.display())], "bad.jsonl:2: ");
    fs::write(&path, "{\"expected_number\": 3, \"prompt\": \"x\", \"correct_line\": \"<3>\"}\n").unwrap();
    refused(&["-t", &format!("jsonl:{}", path.display())], "bad.jsonl:1: the prompt has no line");
    refused(&["-t", "needle/numbr"], "unknown task `needle/numbr`");
    refused(&["-t", "needle/number:depth=3"], "unknown option of needle `depth`");
    refused(&["-t", "passkey/hip", "-l", "64"], "cannot fit 64 tokens");
}

#[test]
fn free_answers_and_sentences_to_complete_run_as_lm_eval_puts_them() {
    let data = TempDir::new().unwrap();
    let write = |file: &str, rows: Vec<Value>| {
        let path = data.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    };
    let sum = |i| json!({"question": format!("{i} and {i} are how many?"), "answer": format!("Add.\n#### {}", 2 * i)});
    let names = ["Ann", "Bob", "Eve", "Tom", "Sue"];
    let story = |i: usize| {
        let name = names[i % 5];
        json!({
            "story": format!("{} {name} lives in house {i}. {name} has {} cats.", "It rains in the town. ".repeat(20), i + 2),
            "questions": {"input_text": ["Who lives there?", "How many cats?"]},
            "answers": {"input_text": [name, (i + 2).to_string()]},
            "additional_answers": {"0": {"input_text": [name, format!("{} cats", i + 2)]}},
        })
    };
    let sentence = |i: usize| {
        json!({"sentence": format!("{} paid {}, as _ had worked.", names[i % 5], names[(i + 1) % 5]),
               "option1": names[i % 5], "option2": names[(i + 1) % 5], "answer": "2"})
    };
    write("gsm8k/test.jsonl", (1..=20).map(sum).collect());
    write("coqa/validation.jsonl", (0..10).map(story).collect());
    write("winogrande/validation.jsonl", (0..20).map(sentence).collect());
    let out = data.path().join("run");
    let tasks = ["--task", "gen/gsm8k_cot", "--task", "gen/coqa", "--task", "mcq/winogrande", "--samples", "20"];
    let folder = ["--data", data.path().to_str().unwrap()];
    let methods = ["--method", "topk:k=64", "--allow-extrapolation"];
    ok(&out, &[&tasks[..], &folder, &methods].concat());
    let records = records(&out);
    let of = |task: &str| records.iter().filter(|r| r["task"] == task).cloned().collect::<Vec<Value>>();
    for task in ["gen/gsm8k_cot", "gen/coqa", "mcq/winogrande"] {
        assert_eq!(of(task).len(), 40, "twenty examples of {task} under two methods");
    }
    for record in of("gen/gsm8k_cot").iter().chain(&of("gen/coqa")) {
        let prediction = record["prediction"].as_str().unwrap();
        let ends: &[&str] = if record["task"] == "gen/coqa" { &["\nQ:"] } else { &["Q:", "</s>"] };
        assert!(ends.iter().all(|end| !prediction.contains(end)), "an answer goes on past its end: {prediction:?}");
        assert!(record["other_scores"].as_object().is_some_and(|scores| scores.len() == 1));
    }
    let second: Vec<Value> = of("gen/coqa").into_iter().filter(|r| r["sample"] == 1).collect();
    assert!(second.iter().all(|r| r["reused_tokens"].as_u64() > Some(0)), "a story is read once");
    assert_eq!(second[0]["references"], json!(["2", "2 cats"]));
    // A question shares the eight examples before it with the next.
    let later = of("gen/gsm8k_cot").into_iter().filter(|r| r["sample"] != 0);
    assert!(later.into_iter().all(|r| r["reused_tokens"].as_u64() > Some(500)));
    assert!(of("mcq/winogrande").iter().all(|r| r["choice"]["log_likelihoods"].as_array().unwrap().len() == 2));
    refused(&[&["--task", "gen/coqa2"][..], &folder].concat(), "unknown task `gen/coqa2`");
}
