//! How answers are generated: sampling, repeats, texts that end an answer, and thoughts before it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::program::{self, Ran};

/// Runs `eval` in a folder with some threads, and returns its records without times.
fn records(dir: &Path, threads: usize, args: &str) -> Vec<Map<String, Value>> {
    let out = format!("run-{}", fs::read_dir(dir).unwrap().count());
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.current_dir(dir).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
    command.args(["eval", "-q", "--out", &out, "--threads", &threads.to_string()]).args(args.split_whitespace());
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{args}: {}", String::from_utf8_lossy(&ran.stderr));
    let text = fs::read_to_string(dir.join(out).join("samples.jsonl")).unwrap();
    let mut records: Vec<Map<String, Value>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for record in &mut records {
        record.retain(|key, _| !key.ends_with("_s") && key != "conditions");
    }
    records
}

fn of_method<'a>(records: &'a [Map<String, Value>], method: &str) -> Vec<&'a Map<String, Value>> {
    records.iter().filter(|record| record["method"] == method).collect()
}

fn predictions(record: &Map<String, Value>) -> Vec<&str> {
    record["repeats"].as_array().unwrap().iter().map(|answer| answer["prediction"].as_str().unwrap()).collect()
}

/// The built-in model as a folder with a chat template.
fn with_template(dir: &Path, template: &str) -> PathBuf {
    let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin"), dir.join("model"));
    fs::create_dir_all(&to).unwrap();
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    fs::write(to.join("chat_template.jinja"), template).unwrap();
    to
}

#[test]
fn repeats_are_drawn_apart_and_the_same_whatever_the_threads() {
    const SAMPLED: &str =
        "-t ruler/vt -l 900 -n 3 -m topk:k=64 -m random:ratio=0.5 --temperature 3 --top-p 0.99 --repeats 4";
    let dir = TempDir::new().unwrap();
    let one = records(dir.path(), 1, SAMPLED);
    assert_eq!(one, records(dir.path(), 3, SAMPLED));
    let full = of_method(&one, "full");
    assert_eq!(full.len(), 3);
    for record in &full {
        let scores: Vec<f64> =
            record["repeats"].as_array().unwrap().iter().map(|answer| answer["score"].as_f64().unwrap()).collect();
        assert_eq!(scores.len(), 4);
        let mean = scores.iter().sum::<f64>() / 4.0;
        assert!((record["score"].as_f64().unwrap() - mean).abs() < 1e-12);
        assert_eq!(record["prediction"], predictions(record)[0]);
    }
    assert!(full.iter().any(|record| predictions(record).windows(2).any(|pair| pair[0] != pair[1])), "all are alike");
    // A record does not depend on the methods that run beside it.
    let alone = records(dir.path(), 2, "-t ruler/vt -l 900 -n 3 --temperature 3 --top-p 0.99 --repeats 4");
    assert_eq!(of_method(&alone, "full"), full);
}

#[test]
fn tables_page_and_notes_say_that_answers_were_sampled_and_how() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("run");
    let eval = |more: &[&str]| {
        let args = ["eval", "-t", "ruler/vt", "-l", "1K", "-n", "2", "-m", "topk:k=64", "--overwrite", "--out"];
        program::spattn(&[&args[..], &[out.to_str().unwrap()], more].concat()).ok()
    };
    let sampled = ["--temperature", "0.7", "--top-p", "0.95", "--repeats", "2", "--seed", "5"];
    let said = "Answers are sampled: temperature 0.7, top-p 0.95, 2 answers to each example, seed 5. An example's score is the mean of its \
                answers; intervals are over these scores";
    let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = |ran: &Ran| {
        let latex = program::spattn(&["report", out.to_str().unwrap(), "--format", "latex"]).ok().stdout;
        let files = ["summary.md", "report.html"].map(|name| fs::read_to_string(out.join(name)).unwrap());
        [vec![ran.stdout.clone(), latex], files.to_vec()].concat()
    };
    for (at, text) in all(&eval(&sampled)).iter().enumerate() {
        assert!(in_one_line(text).contains(said), "{at}: {text}");
    }
    for (at, text) in all(&eval(&[])).iter().enumerate() {
        assert!(!text.contains("are sampled"), "{at}: greedy answers");
    }
}

#[test]
fn methods_of_equal_logits_draw_equal_answers() {
    let dir = TempDir::new().unwrap();
    // The budget covers all tokens, so this computes the same as `full`.
    let all = records(dir.path(), 2, "-t ruler/vt -l 1K -n 3 -m topk:k=100000 --temperature 1 --repeats 3");
    let answers = |method: &str| of_method(&all, method).iter().map(|r| json!(predictions(r))).collect::<Vec<_>>();
    assert_eq!(answers("full"), answers("topk"));
    // Another seed draws other answers.
    let other = records(dir.path(), 2, "-t ruler/vt -l 1K -n 3 --temperature 1 --repeats 3 --seed 7");
    assert_ne!(answers("full"), of_method(&other, "full").iter().map(|r| json!(predictions(r))).collect::<Vec<_>>());
}

#[test]
fn a_small_temperature_is_greedy_and_one_answer_has_no_repeats() {
    let dir = TempDir::new().unwrap();
    let text = |args: &str| {
        let all = records(dir.path(), 2, &format!("-t ruler/niah_single_1 -l 512 -n 2 {args}"));
        assert!(all.iter().all(|record| !record.contains_key("repeats") && !record.contains_key("thought")));
        all.iter().map(|record| record["prediction"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(text("--temperature 0.0001"), text(""));
    assert_eq!(text("--temperature 5 --top-p 0.001"), text(""));
}

#[test]
fn a_text_that_ends_answers_is_not_part_of_them() {
    let dir = TempDir::new().unwrap();
    let run = |args: &str| {
        records(dir.path(), 2, &format!("-t ruler/niah_single_1 -l 512 -n 1 --no-full -m topk:k=64 {args}"))
    };
    let whole = run("");
    let said = whole[0]["prediction"].as_str().unwrap();
    let digit = said.chars().find(char::is_ascii_digit).expect("the answer is a number");
    let stopped = run(&format!("--stop {digit}"));
    let before = said.split(digit).next().unwrap();
    assert_eq!((stopped[0]["prediction"].as_str(), stopped[0]["stopped"].as_bool()), (Some(before), Some(true)));
    assert!(stopped[0]["new_tokens"].as_u64() <= whole[0]["new_tokens"].as_u64());
}

#[test]
fn a_thought_is_kept_apart_from_the_answer() {
    const TEMPLATE: &str = "{{ messages[0].content }}{% if enable_thinking %} <think>{% endif %}";
    let dir = TempDir::new().unwrap();
    let model = with_template(dir.path(), TEMPLATE);
    let run = |args: &str| {
        let model = model.display();
        records(dir.path(), 2, &format!("--model {model} -t ruler/niah_single_1 -l 512 -n 1 -m topk:k=64 {args}"))
    };
    for record in run("--thinking on --thinking-tokens 20") {
        // The built-in model has no thoughts, so it never ends one.
        let most = record["max_new_tokens"].as_u64().unwrap();
        assert_eq!((record["prediction"].as_str(), record["thought"]["limit"].as_u64()), (Some(""), Some(20)));
        assert!(!record["thought"]["text"].as_str().unwrap().is_empty() && record["score"] == 0.0);
        assert!(record["new_tokens"].as_u64().unwrap() <= most && most > 20);
    }
    for record in run("--thinking off") {
        assert!(!record.contains_key("thought") && !record["prediction"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_model_that_ends_its_thought_is_scored_by_its_answer() {
    let dir = TempDir::new().unwrap();
    // The thought ends before the model answers, as in templates that allow none.
    let model =
        with_template(dir.path(), "{{ messages[0].content }}{% if enable_thinking %}<think></think>{% endif %}");
    let run = |args: &str| {
        let model = model.display();
        records(dir.path(), 2, &format!("--model {model} -t ruler/niah_single_1 -l 512 -n 2 --thinking on {args}"))
    };
    for record in run("") {
        assert_eq!(record["thought"]["text"], "");
        assert!(!record["prediction"].as_str().unwrap().is_empty());
    }
}

#[test]
fn thinking_needs_a_chat_template_and_is_part_of_what_a_run_is() {
    let dir = TempDir::new().unwrap();
    with_template(dir.path(), "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}");
    let run = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        command.current_dir(dir.path()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
        let ran = command.args(args.split_whitespace()).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    const EVAL: &str = "eval -q -t ruler/niah_single_1 -l 512 -n 1 --out run";
    let (status, said) = run(&format!("{EVAL} --thinking on"));
    assert!(status == Some(2) && said.contains("the model has no chat template"), "{said}");
    let first = run(&format!("{EVAL} --model model --thinking on --thinking-tokens 8"));
    assert_eq!(first.0, Some(0), "{}", first.1);
    for (args, name) in
        [("", "`--thinking` was \"on\""), ("--thinking on --thinking-tokens 9", "`--thinking-tokens` was 8")]
    {
        let (status, said) = run(&format!("{EVAL} --model model --resume {args}"));
        assert!(status == Some(2) && said.contains(name), "{said}");
    }
}
