//! Needle maps, passkeys, pairs, lines, summaries and several questions, run by the program on the built-in model.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use spattn::model::source::ModelSource;
use spattn::model::tokenizer::{Tokenizer, TokenizerOptions};
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

/// Records by key, without the fields that may differ between two equal runs.
fn comparable(out: &Path) -> BTreeMap<String, Value> {
    let strip = |mut record: Value| {
        let fields = record.as_object_mut().unwrap();
        let of_steps = ["decode_s", "select_s", "attend_s", "weights_s"];
        let once = ["prefill_s", "prefill_reused_s", "reused_tokens", "index_s", "index_reused_s"];
        for name in once.into_iter().chain(of_steps) {
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
    // The examples of a sample differ in depth, but begin alike up to the first needle.
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
            assert_eq!((&r["reused_tokens"], &r["index_reused_s"]), (&r["prefix_tokens"], &r["index_s"]), "{task}");
        }
    }
}

/// The built-in model in its own folder, with a chat template.
fn model_with_chat(dir: &Path) -> String {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    let folder = dir.join("model");
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(ours.join(file), folder.join(file)).unwrap();
    }
    let mut settings: Value = serde_json::from_slice(&fs::read(ours.join("tokenizer_config.json")).unwrap()).unwrap();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    settings["chat_template"] = template.into();
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
    folder.display().to_string()
}

#[test]
fn a_system_prompt_is_read_recorded_and_part_of_what_a_run_is() {
    let dir = TempDir::new().unwrap();
    let model = model_with_chat(dir.path());
    fs::write(dir.path().join("s.txt"), "Answer in one word.\n").unwrap();
    let text = "Answer in one word.";
    let of_file = format!("@{}", dir.path().join("s.txt").display());
    let base = ["--model", &model, "-t", "needle/number:depths=50", "-l", "512", "-n", "1", "-m", "topk:k=16"];
    let run = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        ok(&out, &[&base[..], more].concat());
        let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
        (records(&out), manifest)
    };
    let (without, manifest) = run("without", &[]);
    assert!(manifest["identity"]["system_prompt"].is_null());
    let (given, manifest) = run("given", &["--system-prompt", text]);
    assert_eq!(manifest["identity"]["system_prompt"], text);
    assert_eq!(manifest["config"]["system_prompt"], text);
    let tokens = |records: &[Value]| records[0]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&given) <= 512 && tokens(&without) <= 512, "the prompt is made to the length with it");
    let (read, _) = run("read", &["--system-prompt", &of_file]);
    let scores = |records: &[Value]| records.iter().map(|r| r["prediction"].clone()).collect::<Vec<_>>();
    assert_eq!(scores(&read), scores(&given), "a file says the same");
    let config = dir.path().join("c.toml");
    fs::write(&config, format!("system_prompt = '{text}'\n")).unwrap();
    let (of_config, manifest) = run("config", &["--config", config.to_str().unwrap()]);
    assert_eq!((scores(&of_config), &manifest["identity"]["system_prompt"]), (scores(&given), &json!(text)));
    // A run without the system prompt cannot be resumed with one.
    let out = dir.path().join("without");
    let other = eval(&out, &[&base[..], &["--system-prompt", text, "--resume"]].concat());
    let errors = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.code() == Some(2) && errors.contains("`--system-prompt` was not set"), "{errors}");
    let mut sweep = Command::new(env!("CARGO_BIN_EXE_spattn"));
    let planned = sweep.args(["sweep", config.to_str().unwrap(), "--dry-run"]).args(base).output().unwrap();
    let said = String::from_utf8_lossy(&planned.stdout);
    assert!(said.contains("system prompt: \"Answer in one word.\""), "{said}{planned:?}");
}

#[test]
fn every_command_that_makes_prompts_takes_a_system_prompt() {
    let dir = TempDir::new().unwrap();
    let model = model_with_chat(dir.path());
    let text = "Answer in one word, and in lower case.";
    let out = |name: &str| dir.path().join(name);
    let run = |args: &[&str], name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        let told = ["--model", &model, "--system-prompt", text, "-l", "1K"];
        command.args(args).args(told).arg("--out").arg(out(name)).env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    let read = |file: &str| fs::read_to_string(out(file)).unwrap();
    let json = |file: &str| serde_json::from_str::<Value>(&read(file)).unwrap();

    // Exported and evaluated prompts are equal: compare them with the stored prompt.
    run(&["eval", "-q", "-t", "ruler/vt", "-n", "1", "--no-full", "-m", "streaming_llm", "--keep-prompts"], "run");
    run(&["data", "export-eval", "-t", "ruler/vt", "-n", "1"], "rows.jsonl");
    let row = json("rows.jsonl");
    let mut prompt = String::new();
    let kept = fs::read_dir(out("run").join("prompts")).unwrap().next().unwrap().unwrap().path();
    flate2::read::GzDecoder::new(fs::File::open(kept).unwrap()).read_to_string(&mut prompt).unwrap();
    let of = |key: &str| row[key].as_str().unwrap().to_owned();
    let turn = format!("system: {text}\nuser: {}\nassistant:{}", of("input"), of("answer_prefix"));
    assert!(prompt.contains(&turn), "{prompt}\n{turn}");
    let tokens = records(&out("run"))[0]["prompt_tokens"].as_u64().unwrap();
    assert!((tokens..=1024).contains(&row["length"].as_u64().unwrap()), "the system prompt is counted: {row}");

    let tune = ["tune", "-q", "-t", "needle/number:depths=50", "-m"];
    let search = ["topk", "--parameter", "k", "--range", "8..16", "--steps", "2", "-n", "8"];
    run(&[&tune[..], &search].concat(), "tuned");
    assert_eq!(json("tuned/manifest.json")["identity"]["system_prompt"], text);
    let shapes = ["magicpig", "--target", "density=0.2", "--prompts", "1", "--queries", "1", "--draws", "1"];
    run(&[&tune[..], &shapes].concat(), "shapes");
    for file in ["tuned/tune.json", "shapes/tune.json"] {
        assert!(read(file).contains(text), "{file}");
    }

    run(&["analyze", "mass", "-q", "-t", "ruler/vt", "-n", "1", "--seed", "42", "--dump"], "analysis");
    assert_eq!(json("analysis/analyze.json")["manifest"]["system_prompt"], text);
    let dump = fs::read_dir(out("analysis").join("dump")).unwrap().next().unwrap().unwrap().path();
    let ids = dumped_tokens(&fs::read(dump).unwrap());
    let source = ModelSource::parse(&model).unwrap().resolve_texts().unwrap();
    let tokenizer = Tokenizer::load(&source, &source.config().unwrap(), TokenizerOptions::default()).unwrap();
    assert!(tokenizer.spell(&ids).unwrap().contains(&turn), "analyze reads what eval does");
}

/// The number of tokens in a dump's header.
fn dumped_tokens(bytes: &[u8]) -> Vec<u32> {
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let metadata = header["__metadata__"].as_object().unwrap();
    let about: Value = metadata.values().find_map(|text| serde_json::from_str(text.as_str()?).ok()).unwrap();
    about["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn turns_of_scbench_are_scored_apart_on_one_context() {
    let dir = TempDir::new().unwrap();
    let context = format!("{} Ada lives in Oslo and is called by the number 482913.", "The sky is blue. ".repeat(40));
    let turns = json!([{"input": "Where does Ada live?", "answer": "Oslo"}, {"input": "Which number has Ada?", "answer": "482913"}]);
    let row = json!({"id": 0, "context": context, "multi_turns": turns}).to_string();
    fs::write(dir.path().join("scbench_kv.jsonl"), row).unwrap();
    let out = dir.path().join("run");
    let data = ["--data", dir.path().to_str().unwrap(), "-n", "2", "-m", "topk:k=16"];
    ok(&out, &[&["-t", "scbench/kv", "-t", "scbench_multi_turn/kv"][..], &data].concat());
    let records = records(&out);
    assert_eq!(records.len(), 2 * 2 * 2);
    let second: Vec<&Value> = records.iter().filter(|r| r["sample"] == 1).collect();
    assert!(second.iter().all(|r| r["references"] == json!(["482913"]) && r["metric"] == "contains"), "{second:?}");
    assert!(second.iter().all(|r| r["reused_tokens"].as_u64() > Some(200)), "the context is read once: {second:?}");
}

/// A file with two contexts and questions that alternate between them.
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

    // Each run adds one example and finds the earlier ones stored.
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
    let tasks = ["--task", "gen/gsm8k_cot", "--task", "gen/coqa", "--task", "mcq/winogrande", "--samples", "4"];
    let folder = ["--data", data.path().to_str().unwrap()];
    let methods = ["--method", "topk:k=64", "--allow-extrapolation"];
    ok(&out, &[&tasks[..], &folder, &methods].concat());
    let records = records(&out);
    let of = |task: &str| records.iter().filter(|r| r["task"] == task).cloned().collect::<Vec<Value>>();
    for task in ["gen/gsm8k_cot", "gen/coqa", "mcq/winogrande"] {
        assert_eq!(of(task).len(), 8, "four examples of {task} under two methods");
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
    // Each question shares with the next one the eight shots before it.
    let later = of("gen/gsm8k_cot").into_iter().filter(|r| r["sample"] != 0);
    assert!(later.into_iter().all(|r| r["reused_tokens"].as_u64() > Some(500)));
    assert!(of("mcq/winogrande").iter().all(|r| r["choice"]["log_likelihoods"].as_array().unwrap().len() == 2));
    refused(&[&["--task", "gen/coqa2"][..], &folder].concat(), "unknown task `gen/coqa2`");
}

// ---- some examples of every family ----

/// The number of examples of each task, so that each of four options is right once, and the first again.
const EXAMPLES: usize = 6;

/// A task of a family, and the files that it reads.
struct Benchmark {
    /// The task; `{}` is the data folder.
    task: &'static str,
    /// `--length`, for tasks that are generated at a length.
    length: Option<&'static str>,
    /// `--samples`, such that there are [`EXAMPLES`] examples.
    samples: usize,
    files: fn() -> Vec<(&'static str, String)>,
    /// The metric of predictions; empty if likelihoods are scored instead.
    metric: &'static str,
}

const fn made(task: &'static str, length: &'static str, samples: usize, metric: &'static str) -> Benchmark {
    Benchmark { task, length: Some(length), samples, files: Vec::new, metric }
}

const fn read(task: &'static str, metric: &'static str, files: fn() -> Vec<(&'static str, String)>) -> Benchmark {
    Benchmark { task, length: None, samples: EXAMPLES, files, metric }
}

/// Tasks that are generated at a length, with one of each kind in RULER.
const MADE: &[Benchmark] = &[
    made("ruler/niah_single_2", "256", EXAMPLES, "string_match_all"),
    made("ruler/vt", "832", EXAMPLES, "string_match_all"),
    made("ruler/cwe", "896", EXAMPLES, "string_match_all"),
    made("ruler/fwe", "320", EXAMPLES, "string_match_all"),
    made("ruler/qa_synth", "256", EXAMPLES, "string_match_part"),
    Benchmark { files: squad, ..made("ruler/qa_1", "256", EXAMPLES, "string_match_part") },
    Benchmark { files: hotpotqa, ..made("ruler/qa_2", "512", EXAMPLES, "string_match_part") },
    made("ruler_reworded/niah_single_2", "256", EXAMPLES, "string_match_all"),
    made("needle/number:steps=2", "256", EXAMPLES / 2, "string_match_all"),
    made("passkey/quest:steps=2", "256", EXAMPLES / 2, "first_number"),
    made("passkey/hip:steps=2", "640", EXAMPLES / 2, "digit_match"),
    made("kv_retrieval:steps=2", "384", EXAMPLES / 2, "string_match_all"),
    made("longeval_lines:steps=2", "384", EXAMPLES / 2, "last_number"),
];

/// Tasks whose answers are generated, with rows from files in each benchmark's own fields.
const ANSWERED: &[Benchmark] = &[
    Benchmark {
        samples: EXAMPLES / 2,
        ..read("kv_retrieval:file={}/kv.jsonl,steps=2", "string_match_all", || jsonl("kv.jsonl", pairs))
    },
    read("longbench/multifieldqa_zh", "qa_f1_zh", || {
        jsonl("longbench/multifieldqa_zh.jsonl", |i| chinese(i, &i.to_string(), &[]))
    }),
    read("longbench/dureader", "rouge_l_zh", || {
        jsonl("longbench/dureader.jsonl", |i| chinese(i, "北京是中国的首都", &[]))
    }),
    read("longbench/lsht", "classification", || {
        jsonl("longbench/lsht.jsonl", |i| chinese(i, ["体育", "农业"][i % 2], &["体育", "农业"]))
    }),
    read("longbench/passage_retrieval_zh", "retrieval_zh", || {
        jsonl("longbench/passage_retrieval_zh.jsonl", |i| chinese(i, &format!("段落{i}"), &[]))
    }),
    read("longbench/passage_retrieval_en", "retrieval", || {
        jsonl("longbench/passage_retrieval_en.jsonl", |i| english(i, &format!("Paragraph {i}")))
    }),
    read("longbench/passage_count", "count", || jsonl("longbench/passage_count.jsonl", |i| english(i, &i.to_string()))),
    read("longbench/lcc", "code_sim", || jsonl("longbench/lcc.jsonl", |i| english(i, &format!("    return x + {i};")))),
    Benchmark {
        // This many of each of three lengths.
        samples: EXAMPLES / 3,
        ..read("longbench_e/hotpotqa", "qa_f1", || {
            jsonl("longbench/hotpotqa_e.jsonl", |i| english(i, &format!("town{i}")))
        })
    },
    read("jsonl:{}/ruler.jsonl:max_new_tokens=8", "string_match_all", || jsonl("ruler.jsonl", ruler)),
    read("jsonl:{}/longeval.jsonl:max_new_tokens=8", "last_number", || jsonl("longeval.jsonl", longeval)),
    read("jsonl:{}/lost.jsonl:max_new_tokens=8", "string_match_all", || jsonl("lost.jsonl", pairs)),
    read("jsonl:{}/hay.jsonl:max_new_tokens=8", "string_match_part", || jsonl("hay.jsonl", needle)),
    read("jsonl:{}/turns.jsonl:metric=qa_f1,max_new_tokens=8", "qa_f1", || jsonl("turns.jsonl", two_turns)),
    read("jsonl:{}/books.jsonl:max_new_tokens=16", "rouge_l", || jsonl("books.jsonl", summary)),
    read("longbench_v2", "correct_letter", || vec![("longbench_v2/data.json", lettered())]),
    read("longbench_v2_no_context", "correct_letter", || vec![("data.json", lettered())]),
    read("infinitebench/passkey", "first_digits", || {
        jsonl("infinitebench/passkey.jsonl", |i| {
            infinite(i, "What is the pass key?", json!([(71_000 + i).to_string()]))
        })
    }),
    read("infinitebench/number_string", "first_digits", || {
        jsonl("number_string.jsonl", |i| {
            infinite(i, "What is the sequence of digits?", json!([(22_000 + i).to_string()]))
        })
    }),
    read("infinitebench/kv_retrieval", "word", || {
        jsonl("infinitebench/kv_retrieval.jsonl", |i| infinite(i, "Key: \"a\"", json!(format!("a-{i}"))))
    }),
    read("infinitebench/longbook_qa_eng", "qa_f1", || {
        jsonl("infinitebench/longbook_qa_eng.jsonl", |i| infinite(i, "Who?", json!(["Ann Lee"])))
    }),
    read("infinitebench/longbook_choice_eng", "choice", || {
        jsonl("infinitebench/longbook_choice_eng.jsonl", |i| infinite(i, "Which?", json!(["wet"])))
    }),
    read("infinitebench/longbook_qa_chn", "qa_f1_zh_characters", || {
        jsonl("infinitebench/longbook_qa_chn.jsonl", |i| infinite(i, "谁？", json!(["王五"])))
    }),
    read("infinitebench/longdialogue_qa_eng", "name", || {
        jsonl("InfiniteBench/longdialogue_qa_eng.jsonl", |i| infinite(i, "", json!(["ANN", "ANNA"])))
    }),
    read("infinitebench/math_find", "first_value", || {
        jsonl("infinitebench/math_find.jsonl", |i| infinite(i, "The largest number of the list is:", json!([i])))
    }),
    read("infinitebench/code_run", "last_word_number", || {
        jsonl("infinitebench/code_run.jsonl", |i| infinite(i, &format!("What is func_3(-{i})?"), json!([i])))
    }),
    read("infinitebench/code_debug", "function_choice", || {
        jsonl("infinitebench/code_debug.jsonl", |i| infinite(i, "", json!(["cold"])))
    }),
    read("zeroscrolls/qmsum", "rouge_score_mean", || jsonl("qmsum/validation.jsonl", |i| scroll(i, "Ann spoke."))),
    read("zeroscrolls/musique", "qa_f1_ascii", || {
        jsonl("zeroscrolls/musique/validation.jsonl", |i| scroll(i, &format!("town {i}")))
    }),
    read("zeroscrolls/quality", "first_letter", || jsonl("quality/validation.jsonl", |i| scroll(i, "(B) wet"))),
    read("zeroscrolls/space_digest", "percent_similarity", || {
        jsonl("zeroscrolls/space_digest/validation.jsonl", |i| scroll(i, &format!("{}%", 3 * i)))
    }),
    read("zeroscrolls/book_sum_sort", "order_concordance", || {
        jsonl("book_sum_sort/validation.jsonl", |i| scroll(i, "2, 1, 3"))
    }),
    read("loogle/longdep_qa", "rouge_l_recall", || {
        jsonl(
            "data/longdep_qa.jsonl",
            |i| json!({"context": format!("Town {i}. "), "question": "Where?", "answer": "Here."}),
        )
    }),
    read("loogle/shortdep_cloze", "cloze_exact", || {
        let pairs = "[{'Q': '<mask-0> met Ann.', 'A': {'<mask-0>': \"Bob's\"}}]";
        jsonl("LooGLE-testdata/shortdep_cloze.jsonl", |i| json!({"input": format!("Town {i}. "), "qa_pairs": pairs}))
    }),
    read("scbench/vt", "contains_all_percent", || {
        jsonl("scbench/scbench_vt.jsonl", |i| shared(i, json!(["AB", "CD"])))
    }),
    read("scbench/choice_eng", "choice", || jsonl("scbench_choice_eng.jsonl", |i| shared(i, json!("wet")))),
    read("scbench_multi_turn/mf", "first_value", || jsonl("data/scbench_mf.jsonl", |i| shared(i, json!(i)))),
];

/// Tasks that are scored by likelihoods, of options or of texts.
const LIKELY: &[Benchmark] = &[
    read("mcq/mmlu", "", || vec![("mmlu/test/anatomy_test.csv", (0..20).map(mmlu).collect())]),
    read("mcq/mmlu:shots=1", "", || {
        [jsonl("mmlu/test/all.jsonl", mmlu_row), jsonl("mmlu/dev/all.jsonl", mmlu_row)].concat()
    }),
    read("mcq/arc_easy", "", || jsonl("arc_easy/test.jsonl", |i| labelled("question", i))),
    read("mcq/arc_challenge", "", || jsonl("ARC-Challenge/test.jsonl", |i| labelled("question", i))),
    read("mcq/openbookqa", "", || jsonl("openbookqa/test.jsonl", |i| labelled("question_stem", i))),
    read("mcq/hellaswag", "", || jsonl("hellaswag/validation.jsonl", ending)),
    read("mcq/piqa", "", || {
        let labels = (0..20).map(|i| format!("{}\n", i % 2)).collect();
        let rows = |i: usize| json!({"goal": format!("open door {i}"), "sol1": "Push it.", "sol2": "Paint it red."});
        [jsonl("piqa/valid.jsonl", rows), vec![("piqa/valid-labels.lst", labels)]].concat()
    }),
    read("mcq/boolq", "", || {
        jsonl(
            "boolq/validation.jsonl",
            |i| json!({"passage": "It is red.", "question": format!("is {i} red"), "label": i % 2}),
        )
    }),
    read("mcq/winogrande", "", || {
        let row = |i: usize| json!({"sentence": format!("Ann thanked Eve for {i}, as _ had helped."), "option1": "Ann", "option2": "Eve", "answer": (i % 2 + 1).to_string()});
        jsonl("winogrande/validation.jsonl", row)
    }),
    Benchmark { length: Some("48"), ..read("ppl/wikitext2:scored=16", "", || vec![("wiki.test.raw", text())]) },
    Benchmark {
        length: Some("48"),
        ..read("ppl/pg19:scored=16", "", || vec![("pg19/test/1.txt", text()), ("pg19/test/2.txt", text())])
    },
    Benchmark { length: Some("48"), ..read("ppl/file:{}/my.txt:scored=16,stride=16", "", || vec![("my.txt", text())]) },
    Benchmark {
        length: Some("48"),
        ..read("ppl/file:{}/texts:scored=16", "", || vec![("texts/a.txt", text()), ("texts/b.txt", text())])
    },
];

/// Twenty rows of JSON.
fn jsonl(file: &'static str, row: impl Fn(usize) -> Value) -> Vec<(&'static str, String)> {
    vec![(file, (0..20).map(|i| format!("{}\n", row(i))).collect())]
}

fn text() -> String {
    (0..200).map(|i| format!("The river at town {i} is {} miles long , and it runs to the sea . \n", 7 * i)).collect()
}

fn squad() -> Vec<(&'static str, String)> {
    let paragraph = |i: usize| {
        let context = format!("Town {i} lies at a river of {} miles.", 100 + i);
        json!({"context": context, "qas": [{"question": format!("How long is the river at town {i}?"),
            "is_impossible": false, "answers": [{"text": format!("{} miles", 100 + i), "answer_start": 27}]}]})
    };
    let paragraphs: Vec<Value> = (0..20).map(paragraph).collect();
    vec![("squad/dev-v2.0.json", json!({"data": [{"title": "T", "paragraphs": paragraphs}]}).to_string())]
}

fn hotpotqa() -> Vec<(&'static str, String)> {
    let row = |i: usize| {
        let context: Vec<Value> = (0..10)
            .map(|j| json!([format!("Town {i}.{j}"), ["It lies at a river.", format!(" It has {j} bridges.")]]))
            .collect();
        json!({"question": format!("How many bridges has town {i}.7?"), "answer": "7", "context": context})
    };
    vec![("hotpotqa/dev.json", Value::Array((0..20).map(row).collect()).to_string())]
}

fn pairs(i: usize) -> Value {
    let pairs: Vec<[String; 2]> = (0..3).map(|j| [format!("key-{i}-{j}"), format!("value-{i}-{j}")]).collect();
    json!({"ordered_kv_records": pairs, "key": format!("key-{i}-1"), "value": format!("value-{i}-1")})
}

fn english(i: usize, answer: &str) -> Value {
    json!({"context": format!("The river at town{i} is long. "), "input": "Which town?\n", "answers": [answer],
           "length": 5000 * (i % 3), "all_classes": null, "language": "en", "_id": i.to_string()})
}

fn chinese(i: usize, answer: &str, classes: &[&str]) -> Value {
    json!({"context": format!("今天是{i}号。"), "input": "今天是几号？", "answers": [answer], "length": 10,
           "all_classes": classes, "language": "zh"})
}

fn ruler(i: usize) -> Value {
    let asked = "What is the special magic number for old-town mentioned in the provided text?";
    let input = format!("One of the special magic numbers for old-town is: 48291{i}.\n{asked}");
    let prefix = " The special magic number for old-town mentioned in the provided text is";
    json!({"index": i, "input": input, "outputs": [format!("48291{i}")], "answer_prefix": prefix, "length": 64})
}

fn longeval(i: usize) -> Value {
    let line = format!("line old-town: REGISTER_CONTENT is <48{i}>");
    let asked = "Now the record is over. Tell me what is the <REGISTER_CONTENT> in line old-town? I need the number.";
    json!({"prompt": format!("{line}\n\n{asked}"), "correct_line": format!("{line}\n"),
           "expected_number": format!("48{i}").parse::<u64>().unwrap(), "random_idx": ["old-town", 0]})
}

fn needle(i: usize) -> Value {
    json!({"context": format!("Hay. The number is 48291{i}. Hay."), "question": "Which number?", "answer": format!("48291{i}")})
}

fn two_turns(i: usize) -> Value {
    let turns =
        json!([{"question": "Where?", "answers": ["Oslo"]}, {"input": "Which number?", "answer": format!("48{i}")}]);
    json!({"context": format!("Ann lives in Oslo and has the number 48{i}."), "turns": turns})
}

fn summary(i: usize) -> Value {
    json!({"chapter": format!("The grass at town {i} is green. It grows."), "summary_text": format!("Grass grows at {i}.")})
}

/// Rows of LongBench v2.
fn lettered() -> String {
    let row = |i: usize| {
        let (difficulty, length) = (["easy", "hard"][i % 2], ["short", "medium", "long"][i % 3]);
        let answer = ["A", "B", "C", "D"][i % 4];
        json!({"_id": i.to_string(), "domain": "D", "sub_domain": "S", "difficulty": difficulty, "length": length,
               "question": format!("Which is {i}?"), "choice_A": "cold",
               "choice_B": "a hot stone", "choice_C": "wet", "choice_D": "dry", "answer": answer,
               "context": format!("The river at town {i} is long.")})
    };
    Value::Array((0..20).map(row).collect()).to_string()
}

/// A row of InfiniteBench.
fn infinite(i: usize, input: &str, answer: Value) -> Value {
    json!({"id": i, "context": format!("The river at town {i} is long."), "input": input, "answer": answer,
           "options": ["cold", "a hot stone", "wet", "dry"]})
}

/// A row of ZeroSCROLLS, which contains the whole prompt.
fn scroll(i: usize, output: &str) -> Value {
    let text = format!("You are given a text.\n\nText:\nThe river at town {i} is long.\n\n");
    let input = format!("{text}Answer:\n");
    json!({"id": i.to_string(), "input": input, "output": output, "query_start_index": text.chars().count(),
           "truncation_seperator": "... [The rest of the text is omitted]\n\n"})
}

/// A row of SCBench with two turns.
fn shared(i: usize, answer: Value) -> Value {
    let options = json!(["cold", "a hot stone", "wet", "dry"]);
    let turn = |which: &str| json!({"input": format!("The {which} one is "), "answer": answer, "options": options});
    json!({"id": i, "context": format!("The river at town {i} is long. "), "multi_turns": [turn("first"), turn("last")]})
}

fn mmlu(i: usize) -> String {
    format!("What is {i}?,a number,\"a word, long\",a town,none of these,{}\n", ["A", "B", "C", "D"][i % 4])
}

fn mmlu_row(i: usize) -> Value {
    json!({"question": format!("What is {i}?"), "subject": "anatomy", "choices": ["a number", "a word", "a town", "none"], "answer": i % 4})
}

fn labelled(question: &str, i: usize) -> Value {
    let key = ["A", "B", "C"][i % 3];
    let choices = json!({"text": ["cold", "a hot stone", "wet"], "label": ["A", "B", "C"]});
    json!({question: format!("What is ice {i}?"), "choices": choices, "answerKey": key})
}

fn ending(i: usize) -> Value {
    json!({"activity_label": "Baking", "ctx_a": format!("Town {i} [step] bakes bread."), "ctx_b": "the baker",
           "endings": ["sleeps.", "opens the oven [title] and looks.", "swims.", "is green."], "label": (i % 4).to_string()})
}

#[test]
fn examples_of_tasks_made_to_a_length() {
    MADE.iter().for_each(run_examples);
}

/// The hub's tables give the same answers and options as the lines from which they were made.
#[test]
fn tables_of_the_hub_are_run_as_they_are() {
    let dir = TempDir::new().unwrap();
    let tables = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tables");
    let tasks = ["--task", "gen/gsm8k_cot", "--task", "gen/coqa", "--task", "mcq/arc_easy"];
    ok(dir.path(), &[&tasks[..], &["--data", tables, "--samples", "2", "-m", "full"]].concat());
    let records = records(dir.path());
    let references = |task: &str| {
        let own = records.iter().filter(|r| r["task"] == task && r["method"] == "full");
        own.map(|r| r["references"][0].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(references("gen/gsm8k_cot"), ["8", "14"]);
    assert_eq!(references("gen/coqa"), ["Ann", "in the wood"]);
    assert_eq!(references("mcq/arc_easy"), ["thing 0.0", "thing 1.1"]);
}

/// Archives and documents have the names and fields of those that `data fetch` gets.
#[test]
fn published_archives_and_documents_are_run_as_they_are() {
    let dir = TempDir::new().unwrap();
    let archive = |path: &str, members: &[(&str, String)]| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
        for (member, text) in members {
            zip.start_file(*member, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
    };
    let rows = |row: fn(usize) -> Value| (0..3).map(|i| format!("{}\n", row(i))).collect::<String>();
    let sentences = rows(|i| {
        json!({"qID": format!("{i}-1"), "sentence": format!("Ann paid Eve for {i}, as _ had worked."),
               "option1": "Ann", "option2": "Eve", "answer": (2 - i % 2).to_string()})
    });
    let labels = ("winogrande_1.1/dev-labels.lst", "2\n1\n2\n".to_owned());
    let (dev, train) = ("winogrande_1.1/dev.jsonl", "winogrande_1.1/train_xl.jsonl");
    archive("winogrande/winogrande_1.1.zip", &[(dev, sentences.clone()), labels, (train, sentences)]);
    let asked = rows(|i| json!({"question": "is it red", "passage": "It is.", "idx": i, "label": i != 1}));
    archive("boolq/BoolQ.zip", &[("BoolQ/val.jsonl", asked.clone()), ("BoolQ/train.jsonl", asked)]);
    archive("wikitext2/wikitext-2-raw-v1.zip", &[("wikitext-2-raw/wiki.test.raw", text())]);
    let said =
        |texts: [&str; 2]| json!([{"input_text": texts[0], "turn_id": 1}, {"input_text": texts[1], "turn_id": 2}]);
    let story = json!({"story": "Ann ran.", "questions": said(["Who?", "Why?"]), "answers": said(["Ann", "no idea"]),
                       "additional_answers": {"0": said(["she", "unknown"])}});
    fs::create_dir(dir.path().join("coqa")).unwrap();
    fs::write(dir.path().join("coqa/coqa-dev-v1.0.json"), json!({"data": [story]}).to_string()).unwrap();

    let out = dir.path().join("run");
    let tasks =
        ["-t", "mcq/winogrande:shots=1", "-t", "mcq/boolq:shots=1", "-t", "gen/coqa", "-t", "ppl/wikitext2:scored=16"];
    ok(
        &out,
        &[&tasks[..], &["--length", "48", "--data", dir.path().to_str().unwrap(), "--samples", "2", "-m", "full"]]
            .concat(),
    );
    let records = records(&out);
    let of = |task: &str, field: &str| {
        records.iter().filter(|r| r["task"] == task).map(|r| r[field].clone()).collect::<Vec<_>>()
    };
    let right = |task: &str| of(task, "choice").iter().map(|choice| choice["right"].clone()).collect::<Vec<_>>();
    assert_eq!(right("mcq/winogrande:shots=1"), [1, 0]);
    assert_eq!(right("mcq/boolq:shots=1"), [1, 0]);
    assert_eq!(of("gen/coqa", "references"), [json!(["Ann", "she"]), json!(["no idea", "unknown"])]);
    assert_eq!(of("ppl/wikitext2:scored=16", "score").len(), 2);
}

#[test]
fn rows_that_are_answered() {
    ANSWERED.iter().for_each(run_examples);
}

#[test]
fn rows_that_are_scored_by_likelihood() {
    LIKELY.iter().for_each(run_examples);
}

#[test]
fn every_family_is_run() {
    let listed = Command::new(env!("CARGO_BIN_EXE_spattn")).args(["list", "tasks", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let elsewhere = ["gen"]; // `free_answers_and_sentences_to_complete_run_as_lm_eval_puts_them`
    let family = |name: &str| name.split(['/', ':']).next().unwrap().to_owned();
    let all = || MADE.iter().chain(ANSWERED).chain(LIKELY);
    for task in listed.as_array().unwrap() {
        let name = task["name"].as_str().unwrap();
        let run = all().any(|b| family(b.task) == family(name) && (family(name) != "mcq" || b.task.starts_with(name)));
        assert!(run || elsewhere.contains(&family(name).as_str()), "{name}");
    }
}

/// Runs some examples under two methods: all are recorded, and the recorded answers explain the scores.
fn run_examples(benchmark: &Benchmark) {
    let dir = TempDir::new().unwrap();
    let (data, out) = (dir.path().join("data"), dir.path().join("run"));
    fs::create_dir(&data).unwrap();
    for (file, text) in (benchmark.files)() {
        let path = data.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let folder = data.to_str().unwrap();
    let (task, samples) = (benchmark.task.replace("{}", folder), benchmark.samples.to_string());
    let mut args =
        vec!["--task", &task, "--data", folder, "--samples", &samples, "--method", "topk:k=16", "--threads", "1"];
    args.extend(benchmark.length.into_iter().flat_map(|length| ["--length", length]));
    ok(&out, &args);

    let records = records(&out);
    for method in ["full", "topk"] {
        assert_eq!(records.iter().filter(|r| r["method"] == method).count(), EXAMPLES, "{task}: {method}");
    }
    for record in &records {
        let score = record["score"].as_f64().unwrap_or_else(|| panic!("{task}: {record}"));
        assert!(score.is_finite() && score >= 0.0, "{task}: {score}");
        assert_eq!(record["metric"].as_str().unwrap_or_default(), benchmark.metric, "{task}");
        match (record.get("likelihood"), record.get("choice")) {
            (Some(likelihood), _) => is_perplexity(score, likelihood),
            (_, Some(choice)) => is_accuracy(&task, record, choice),
            _ => assert!((0.0..=1.0).contains(&score), "{task}: {score}"),
        }
    }
    if !benchmark.metric.is_empty() {
        known_predictions_score(&task, &records, dir.path());
    }
}

#[track_caller]
fn is_perplexity(score: f64, likelihood: &Value) {
    let number = |name: &str| likelihood[name].as_f64().unwrap();
    assert_eq!((number("tokens"), number("bytes") > 16.0), (16.0, true), "{likelihood}");
    assert!((score / (number("nll") / 16.0).exp() - 1.0).abs() < 1e-9 && score > 1.0, "{score}: {likelihood}");
}

#[track_caller]
fn is_accuracy(task: &str, record: &Value, choice: &Value) {
    let numbers = |name: &str| choice[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let (sums, characters) = (numbers("log_likelihoods"), numbers("characters"));
    assert!(sums.iter().all(|sum| sum.is_finite() && *sum < 0.0), "{choice}");
    let normalised = ["arc_challenge", "hellaswag", "piqa", "openbookqa"].iter().any(|name| task.ends_with(name));
    let by = |i: usize| if normalised { sums[i] / characters[i] } else { sums[i] };
    let likeliest = (0..sums.len()).max_by(|&a, &b| by(a).total_cmp(&by(b))).unwrap();
    let options =
        if task.ends_with("winogrande") || task.ends_with("piqa") || task.ends_with("boolq") { 2 } else { sums.len() };
    let sample = record["sample"].as_u64().unwrap() as usize;
    assert_eq!((sums.len(), choice["right"].as_u64()), (options, Some((sample % options) as u64)), "{task}: {choice}");
    assert_eq!(record["score"], f64::from(u8::from(likeliest == sample % options)), "{task}: {choice}");
}

/// Checks that each record scores 1 if the prediction is a right answer, and 0 otherwise.
#[track_caller]
fn known_predictions_score(task: &str, records: &[Value], folder: &Path) {
    for (known, expected) in [(true, 1.0), (false, 0.0)] {
        let predicted = records.iter().map(|record| {
            let mut record = record.clone();
            let references: Vec<&str> =
                record["references"].as_array().unwrap().iter().map(|r| r.as_str().unwrap()).collect();
            assert!(references.iter().all(|r| !r.is_empty()) && !references.is_empty(), "{task}: {record}");
            let answer = match record["metric"].as_str() {
                Some("correct_letter") => format!("The correct answer is ({})", references[0]),
                Some("function_choice") => format!("The answer is: {}", references[0]),
                _ => references.join(" "),
            };
            record["prediction"] = if known { answer.into() } else { "~".into() };
            format!("{record}\n")
        });
        let file = folder.join("predicted.jsonl");
        fs::write(&file, predicted.collect::<String>()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        let scored = command.args(["score", "--json", file.to_str().unwrap()]).output().unwrap();
        let report: Value =
            serde_json::from_slice(&scored.stdout).unwrap_or_else(|e| panic!("{task}: {e}: {scored:?}"));
        let scores = report["rows"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap());
        let right = scores.filter(|score| (score - expected).abs() < 1e-6).count();
        assert_eq!(right, records.len(), "{task}: {report}");
    }
}
