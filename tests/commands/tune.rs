//! `spattn tune` as users run it: its files, that its spec can be used, and that neither the number of threads nor an interruption changes
//! a byte.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn spattn(args: &str, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(args.split_whitespace()).arg("--out").arg(out);
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("NO_COLOR", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn found(out: &Path) -> Value {
    serde_json::from_str(&text(&out.join("tune.json"))).unwrap()
}

/// A search that needs few samples: below the boundary nearly all is lost, above it nothing.
const QUICK: &str = "tune -q -m random -t ruler/niah_single_1,ruler/niah_single_2 -l 600 --range 0.12..0.99 --steps 3 --delta 40 \
                     --confidence 0.8 -n 32";

/// A search takes long, so one is checked and then repeated in other ways.
#[test]
fn the_smallest_budget_is_found_and_neither_threads_nor_a_stop_on_the_way_change_a_byte() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("tuned");
    let printed = String::from_utf8(spattn(&format!("{QUICK} --threads 3"), &out).stdout).unwrap();
    is_found_and_can_be_pasted(&temp, &out, &printed);
    is_the_same_on_other_threads_and_after_a_stop(&out);
}

fn is_found_and_can_be_pasted(temp: &TempDir, out: &Path, printed: &str) {
    let found = found(out);
    let method = &found["methods"][0];
    assert_eq!(method["answer"]["answer"], "smallest", "{printed}");
    let rows = method["rows"].as_array().unwrap();
    let place = |key: &str| &rows[usize::try_from(method["answer"][key].as_u64().unwrap()).unwrap()];
    let [chosen, below] = ["at", "below"].map(place);
    assert!(chosen["high"].as_f64().unwrap() <= 0.4 && chosen["verdict"] == "within", "{chosen}");
    assert!(below["low"].as_f64().unwrap() > 0.4 && below["verdict"] == "beyond", "{below}");
    let spec = method["spec"].as_str().unwrap();
    assert_eq!(chosen["spec"], spec);
    assert!(printed.contains(&format!("\n    {spec}\n")), "{printed}");

    // The result follows from the records: the mean of the tasks' mean differences.
    let records: Vec<Value> =
        text(&out.join("samples.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let n = chosen["n"].as_u64().unwrap();
    let mean = |task: &str, is_of: &dyn Fn(&Value) -> bool| {
        let of: Vec<f64> = records
            .iter()
            .filter(|r| r["task"] == task && r["sample"].as_u64() < Some(n) && is_of(r))
            .map(|r| r["score"].as_f64().unwrap())
            .collect();
        assert_eq!(of.len() as u64, n, "{task}");
        of.iter().sum::<f64>() / n as f64
    };
    let params = spec.split_once(':').unwrap().1;
    let is_chosen = |r: &Value| r["params"].as_str().unwrap().ends_with(params.rsplit(',').next().unwrap());
    let loss = |task| mean(task, &|r| r["method"] == "full") - mean(task, &is_chosen);
    let by_hand = (loss("ruler/niah_single_1") + loss("ruler/niah_single_2")) / 2.0;
    assert!((chosen["loss"].as_f64().unwrap() - by_hand).abs() < 1e-12, "{chosen} {by_hand}");

    let csv = text(&out.join("tune.csv"));
    assert_eq!(csv.lines().count(), 1 + rows.len(), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.ends_with(",true")).count(), 1, "{csv}");
    let page = text(&out.join("tune.md"));
    assert!(page.contains(&format!("```\n{spec}\n```")) && page.contains("(plots/tune.svg)"), "{page}");
    assert!(out.join("plots/tune.svg").exists() && out.join("plots/tune.png").exists());

    // The folder is that of a run, and `eval` accepts the spec.
    let report = temp.path().join("report");
    let command = format!("report {}", out.display());
    assert!(String::from_utf8(spattn(&command, &report).stdout).unwrap().contains("random"));
    let eval = temp.path().join("eval");
    spattn(&format!("eval -q -t ruler/niah_single_1 -l 600 -n 1 -m {spec}"), &eval);
    let is_same = |line: &str| -> bool {
        let record: Value = serde_json::from_str(line).unwrap();
        records.iter().any(|known| known["key"] == record["key"])
    };
    assert!(text(&eval.join("samples.jsonl")).lines().all(is_same), "the same settings make the same records");
}

fn is_the_same_on_other_threads_and_after_a_stop(out: &Path) {
    let drawn = |out: &Path| ["tune.json", "tune.csv", "tune.md", "plots/tune.svg"].map(|name| text(&out.join(name)));
    let whole = drawn(out);
    let path = out.join("samples.jsonl");
    // The records are made again with one thread instead of three.
    let made = text(&path);
    spattn(&format!("{QUICK} --overwrite --threads 1"), out);
    let records = text(&path);
    assert_ne!(records, made, "other times were measured");
    assert_eq!(whole, drawn(out));
    // Some records are missing, and the last of the remaining lines is incomplete.
    for percent in [3, 60] {
        fs::write(&path, &records[..records.len() * percent / 100]).unwrap();
        spattn(&format!("{QUICK} --resume"), out);
        assert_eq!(whole, drawn(out), "{percent} %");
        assert_eq!(text(&path).lines().count(), records.lines().count());
    }
}

#[test]
fn what_cannot_be_told_is_said_with_what_it_would_take() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("tuned");
    let command = "tune -q -m random -p k --range 20..580 --steps 2 -t ruler/niah_single_1 -l 600 -n 9";
    let ran = spattn(command, &out);
    let (printed, said) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert!(printed.contains("9 samples do not decide") && printed.contains("samples would decide"), "{printed}");
    assert!(said.contains("samples of each task, and --max-samples is 9"), "{said}");
    let greatest = |found: &Value| found["methods"][0]["rows"].as_array().unwrap().last().unwrap()["verdict"].clone();
    let first = found(&out);
    assert_eq!(
        (&first["methods"][0]["answer"]["answer"], greatest(&first)),
        (&Value::from("open"), Value::from("open"))
    );
    // With a larger allowed loss and a lower confidence, the existing records suffice.
    let records = text(&out.join("samples.jsonl"));
    spattn(&format!("{command} --delta 50 --confidence 0.6 --resume"), &out);
    assert_eq!(greatest(&found(&out)), "within", "{}", text(&out.join("tune.md")));
    assert!(text(&out.join("samples.jsonl")).starts_with(&records), "records are kept");
}

#[test]
fn several_methods_share_the_examples() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("tuned");
    let command = "tune -q --json -m topk -m random --range 0.2..0.9 --steps 2 --delta 60 --confidence 0.8 \
                   -t ruler/niah_single_1 -l 600 -n 8";
    let printed: Value = serde_json::from_slice(&spattn(command, &out).stdout).unwrap();
    assert_eq!(printed, found(&out));
    let methods: Vec<&str> =
        printed["methods"].as_array().unwrap().iter().map(|m| m["base"].as_str().unwrap()).collect();
    assert_eq!(methods, ["topk", "random"]);
    let lines = text(&out.join("samples.jsonl"));
    let fulls = lines.lines().filter(|line| line.contains("\"method\":\"full\"")).count();
    assert_eq!((fulls, lines.lines().count()), (8, 8 + 4 * 8));
}

#[test]
fn k_and_l_are_predicted_and_then_measured() {
    let temp = TempDir::new().unwrap();
    let [one, three] = ["1", "3"].map(|threads| {
        let out = temp.path().join(threads);
        let command =
            "tune -q -m magicpig --target density=0.2 -t ruler/niah_single_2 -l 1K --prompts 1 --queries 2 --draws 2";
        spattn(&format!("{command} --threads {threads}"), &out);
        out
    });
    assert_eq!(found(&one), found(&three));
    let shapes = &found(&one)["shapes"];
    let (checked, predicted) = (shapes["checked"].as_array().unwrap(), shapes["predicted"].as_array().unwrap());
    assert_eq!(predicted.len(), 9 * 14);
    let chosen = &checked[usize::try_from(shapes["chosen"].as_u64().unwrap()).unwrap()];
    assert!(chosen["density"]["mean"].as_f64().unwrap() <= 0.2, "{chosen}");
    // The predicted densities agree with those of real tables.
    for shape in checked {
        let [foretold, real] = [&shape["predicted"]["density"], &shape["density"]["mean"]].map(|x| x.as_f64().unwrap());
        assert!((real / foretold - 1.0).abs() < 0.25, "{shape}");
    }
    // More tables never sample fewer tokens, and more bits never sample more.
    for pair in predicted.windows(2).filter(|pair| pair[0]["bits"] == pair[1]["bits"]) {
        assert!(pair[0]["density"].as_f64() <= pair[1]["density"].as_f64(), "{pair:?}");
    }
    for (fewer, more) in predicted.iter().zip(&predicted[14..]) {
        assert!(fewer["density"].as_f64() >= more["density"].as_f64(), "{fewer} {more}");
    }
    // `eval` accepts the spec, and attends about the measured share.
    let eval = temp.path().join("eval");
    spattn(&format!("eval -q -t ruler/niah_single_2 -l 1K -n 1 -m {}", shapes["spec"].as_str().unwrap()), &eval);
    let records = text(&eval.join("samples.jsonl"));
    let densities: Vec<f64> = records
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|r| r["method"] == "magicpig")
        .map(|r| r["density"].as_f64().unwrap())
        .collect();
    assert!(densities.iter().all(|density| (0.05..0.4).contains(density)), "{densities:?}");
}

/// The files of results, without the measurements.
fn answer(out: &Path) -> Vec<String> {
    ["tune.json", "tune.csv", "tune.md", "plots/tune.svg"].map(|name| text(&out.join(name))).to_vec()
}

/// Starts a command, and kills it as soon as it has written some measurements.
fn killed(args: &str, out: &Path, lines: usize) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command
        .args(args.split_whitespace())
        .arg("--out")
        .arg(out)
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", "/nonexistent/hf");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    let measured = out.join("measured.jsonl");
    while fs::read_to_string(&measured).map_or(0, |text| text.lines().count()) < lines {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing is written down");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.join("tune.json").exists(), "it was killed before its end");
}

#[test]
fn a_target_is_gone_on_with_after_a_kill_and_another_asked_of_what_was_measured() {
    let temp = TempDir::new().unwrap();
    let [whole, part] = ["whole", "part"].map(|name| temp.path().join(name));
    let command = "tune -q -m magicpig --target density=0.2 -t ruler/niah_single_2,ruler/vt -l 1K --prompts 2 --queries 2 --draws 2";
    spattn(command, &whole);
    let measured = text(&whole.join("measured.jsonl"));
    // The first line holds the identity. Four prompts serve for predictions, and three shapes are checked on four others.
    assert!(measured.lines().count() > 1 + 4 + 3 * 4 - 1, "{measured}");
    killed(command, &part, 2);
    let before = text(&part.join("measured.jsonl"));
    spattn(&format!("{command} --resume"), &part);
    assert_eq!(answer(&part), answer(&whole));
    assert_eq!(text(&part.join("measured.jsonl")), measured);
    assert!(measured.starts_with(before.trim_end_matches(|c| c != '\n')), "what was measured is kept");
    // Cut in the middle of a line, and resumed with another number of threads.
    fs::write(part.join("measured.jsonl"), &measured[..measured.len() * 3 / 5]).unwrap();
    spattn(&format!("{command} --resume --threads 1"), &part);
    assert_eq!((answer(&part), text(&part.join("measured.jsonl"))), (answer(&whole), measured.clone()));
    // The predictions do not depend on the target.
    spattn(&command.replace("density=0.2", "density=0.3 --resume"), &part);
    assert_ne!(answer(&part), answer(&whole));
    assert!(text(&part.join("measured.jsonl")).starts_with(&measured));
}

#[test]
fn budgets_are_dealt_out_to_layers_at_the_same_total() {
    let temp = TempDir::new().unwrap();
    let [whole, part] = ["whole", "part"].map(|name| temp.path().join(name));
    let command =
        "tune -q -m topk:k=24,dense_layers=0 --schedules -t ruler/niah_single_2,ruler/vt -l 1K --prompts 1 --queries 2";
    let printed = String::from_utf8(spattn(command, &whole).stdout).unwrap();
    let found = &found(&whole)["schedules"];
    let schedules = found["schedules"].as_array().unwrap();
    let names: Vec<&str> = schedules.iter().map(|of| of["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uniform", "linear", "falling", "by entropy", "greedy by error"]);
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let numbers = |of: &Value| of.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>();
    let layers = numbers(&found["layers"]);
    assert_eq!(layers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], "layer 0 is dense");
    let greedy = schedules.last().unwrap();
    for of in schedules {
        let multiples = numbers(&of["multiples"]);
        assert!((multiples.iter().sum::<f64>() - 9.0).abs() < 1e-4, "the same total: {of}");
        assert!((number(&of["density"], "mean") / number(&schedules[0]["density"], "mean") - 1.0).abs() < 1e-3, "{of}");
        let errors = numbers(&of["errors"]);
        let mean = errors.iter().sum::<f64>() / 9.0;
        assert!((mean - number(&of["error"], "mean")).abs() < 1e-9, "{of}");
        assert!(
            number(greedy, "predicted") <= number(of, "predicted") + 1e-12,
            "greedy has the least that was foretold"
        );
    }
    // A schedule that is proportional to the entropy.
    let (entropies, shares) = (numbers(&found["entropies"]), numbers(&schedules[3]["multiples"]));
    let mean = entropies.iter().sum::<f64>() / 9.0;
    assert!(
        entropies.iter().zip(&shares).all(|(h, share)| (share - h / mean).abs() < 0.02),
        "{entropies:?} {shares:?}"
    );
    let least = schedules.iter().map(|of| number(&of["error"], "mean")).fold(f64::INFINITY, f64::min);
    let chosen = &schedules[usize::try_from(found["chosen"].as_u64().unwrap()).unwrap()];
    assert_eq!((number(&chosen["error"], "mean"), &chosen["spec"]), (least, &found["spec"]));
    assert!(printed.contains(&format!("\n    {}\n", found["spec"].as_str().unwrap())), "{printed}");
    // `eval` accepts the spec, and attends the same share.
    let eval = temp.path().join("eval");
    let spec = greedy["spec"].as_str().unwrap();
    spattn(&format!("eval -q -t ruler/niah_single_2 -l 1K -n 1 -m topk:k=24,dense_layers=0 -m {spec}"), &eval);
    let records = text(&eval.join("samples.jsonl"));
    let attended: Vec<f64> = records
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|r| r["method"] == "topk")
        .map(|r| r["density"].as_f64().unwrap())
        .collect();
    assert!(attended.len() == 2 && (attended[0] / attended[1] - 1.0).abs() < 1e-3, "{attended:?}");
    killed(command, &part, 4);
    spattn(&format!("{command} --resume"), &part);
    assert_eq!(answer(&part), answer(&whole));
    assert_eq!(text(&part.join("measured.jsonl")), text(&whole.join("measured.jsonl")));
}
