//! `spattn analyze` as users run it, and its numbers compared with a second implementation in numpy.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn analyze(out: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.arg("analyze").args(args.split_whitespace()).arg("--out").arg(out);
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("NO_COLOR", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn result(out: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(out.join("analyze.json")).unwrap()).unwrap()
}

const QUICK: &str =
    "-q -t ruler/vt -t ruler/cwe -l 1K -n 1 --queries 2 --layers 0,5 --draws 2 -m quest:k=32 -m magicpig:K=6,L=30";

#[test]
fn an_analysis_leaves_tables_plots_and_a_page() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("a");
    let printed = analyze(&out, QUICK);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let page = fs::read_to_string(out.join("analyze.md")).unwrap();
    let result = result(&out);
    let analyses = result["analyses"].as_array().unwrap();
    assert_eq!(analyses.len(), 10);
    for analysis in analyses {
        assert!(page.contains(&format!("\n## {}\n", analysis["name"].as_str().unwrap())));
        for table in analysis["tables"].as_array().unwrap() {
            let name = table["name"].as_str().unwrap();
            let csv = fs::read_to_string(out.join(format!("tables/{name}.csv"))).unwrap();
            assert_eq!(csv.lines().count(), 1 + table["rows"].as_array().unwrap().len(), "{name}");
            let title = table["title"].as_str().unwrap();
            assert_eq!(printed.contains(title), !table["is_detail"].as_bool().unwrap(), "{title}");
        }
    }
    for plot in [
        "mass",
        "mass_heads",
        "cosines",
        "estimation",
        "entropy_layers",
        "recall_heads",
        "embeddings",
        "locality",
        "locality_correlation",
        "layers",
        "channels",
    ] {
        let name = plot.replace('_', "-");
        assert!(page.contains(&format!("(plots/{name}.svg)")), "{name}");
        assert!(out.join(format!("plots/{name}.svg")).exists() && out.join(format!("plots/{name}.png")).exists());
    }
}

#[test]
fn threads_change_nothing() {
    let temp = TempDir::new().unwrap();
    let of = |threads: &str| {
        let out = temp.path().join(threads);
        analyze(&out, &format!("{QUICK} --threads {threads}"));
        result(&out)
    };
    assert_eq!(of("1"), of("3"));
}

/// Runs `spattn reproduce`, for an item that analyses attention or one that is judged by times.
fn reproduce(out: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.arg("reproduce").args(args.split_whitespace()).arg("--quiet").arg("--out").arg(out);
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("NO_COLOR", "1");
    command.output().unwrap()
}

/// The paper's own model is missing here, and cannot be downloaded.
#[test]
fn without_the_papers_model_the_built_in_one_is_named() {
    let temp = TempDir::new().unwrap();
    for args in ["topk/figure-5", "topk/figure-5 --dry-run", "magicpig/table-8", "magicpig --dry-run"] {
        let refused = reproduce(&temp.path().join("out"), args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{args}: {said}");
        assert!(
            said.contains("  hint: ") && said.contains("with --builtin a similar, small experiment runs"),
            "{args}: {said}"
        );
    }
    let named = reproduce(&temp.path().join("out"), "topk/figure-5 --model ./nowhere");
    let said = String::from_utf8_lossy(&named.stderr).into_owned();
    assert!(!named.status.success() && !said.contains("with --builtin"), "the model was the user's choice: {said}");
}

/// The random tokens of `[floor]` run beside an item's methods, and neither run discards the other's records.
#[test]
fn random_tokens_for_the_floor_run_beside_the_items_methods() {
    let temp = TempDir::new().unwrap();
    let (item, out) = (temp.path().join("mine.toml"), temp.path().join("out"));
    fs::write(
        &item,
        "title = 'mine'\n[builtin]\ntasks = ['ruler/niah_single_2']\nlengths = [512]\nsamples = 2\n[floor]\nbuiltin = 'random:k=16'\n\
         [[row]]\nname = 'Top-k'\nmethod = 'topk:k=32'\n[[column]]\nname = 'score'\ntasks = ['ruler/niah_single_2']\nlength = 512\n",
    )
    .unwrap();
    for flags in ["", "", "--overwrite"] {
        let ran = reproduce(&out, &format!("{} --builtin {flags}", item.display()));
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let page = String::from_utf8(ran.stdout).unwrap();
        assert!(page.contains("| floor | random:k=16, 2 examples of each task |"), "{page}");
        let records = fs::read_to_string(out.join("runs/builtin/own/mine/samples.jsonl")).unwrap();
        for method in ["full", "topk", "random"] {
            assert_eq!(records.matches(&format!("\"method\":\"{method}\"")).count(), 2, "{method}, {flags}: {records}");
        }
    }
    let of_another = fs::read_to_string(&item).unwrap().replace("random:k=16", "topk:k=16");
    fs::write(&item, of_another).unwrap();
    let refused = reproduce(&out, &format!("{} --builtin", item.display()));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && said.contains("[floor]: `builtin`: it is not the method `random`"),
        "{said}"
    );
}

/// With `[[more.builtin]]`, the named methods get further examples, and a claim about them counts these.
#[test]
fn single_columns_get_further_examples() {
    const ITEM: &str = r#"
title = "mine"
[builtin]
tasks = ["ruler/niah_single_2", "ruler/niah_single_1"]
lengths = [512]
samples = 2
[[more.builtin]]
of = ["Quest"]
tasks = ["ruler/niah_single_2"]
samples = 5
[[row]]
name = "needle"
tasks = ["ruler/niah_single_2"]
[[row]]
name = "all"
[[column]]
name = "Top-k"
method = "topk:k=32"
[[column]]
name = "Quest"
method = "quest:k=32"
[[claim]]
says = "Quest scores something"
test = { between = { rows = ["needle"], columns = ["Quest"], at_least = 0 } }
[[claim]]
says = "Top-k scores something"
test = { between = { rows = ["needle"], columns = ["Top-k"], at_least = 0 } }
"#;
    let temp = TempDir::new().unwrap();
    let item = temp.path().join("mine.toml");
    fs::write(&item, ITEM).unwrap();
    // Dense attention gets the further examples too. With `--samples 1`, every method has one example of each task.
    for (flags, [full, topk, quest], says) in
        [("", [7, 4, 7], Some("| samples of Quest | 5 (ruler/niah_single_2) |")), ("--samples 1", [2, 2, 2], None)]
    {
        let out = temp.path().join(format!("out{flags}"));
        for again in ["", "", "--overwrite"] {
            let ran = reproduce(&out, &format!("{} --builtin {flags} {again}", item.display()));
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            let page = String::from_utf8(ran.stdout).unwrap();
            let records = fs::read_to_string(out.join("runs/builtin/own/mine/samples.jsonl")).unwrap();
            for (method, count) in [("full", full), ("topk", topk), ("quest", quest)] {
                let found = records.matches(&format!("\"method\":\"{method}\"")).count();
                assert_eq!(found, count, "{method}, {flags} {again}: {records}");
            }
            let Some(says) = says else {
                assert!(!page.contains("| samples of Quest") && page.contains("| samples | 1 |"), "{page}");
                continue;
            };
            assert!(page.contains(says), "{page}");
            assert!(
                page.contains(
                    "| 1. Quest scores something | no numbers to test | holds (512, n = 5 of ruler/niah_single_2) |"
                ),
                "{page}"
            );
            assert!(
                page.contains(
                    "| 2. Top-k scores something | no numbers to test | holds (512, n = 2 of ruler/niah_single_2) |"
                ),
                "{page}"
            );
            assert!(!page.contains("chosen by --samples"), "{page}");
        }
    }
}

/// However often a run is resumed, the page says how many examples were run, and that the item has another number.
#[test]
fn a_page_says_how_many_examples_were_run() {
    let temp = TempDir::new().unwrap();
    let item = temp.path().join("mine.toml");
    fs::write(
        &item,
        "title = 'mine'\n[builtin]\ntasks = ['ruler/niah_single_2']\nlengths = [512]\nsamples = 3\n[[row]]\nname = 'Full'\nmethod = 'full'\n\
         [[column]]\nname = 'score'\ntasks = ['ruler/niah_single_2']\nlength = 512\n",
    )
    .unwrap();
    let page = |flags: &str| {
        let ran = reproduce(&temp.path().join("out"), &format!("{} --builtin {flags}", item.display()));
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let told = "chosen by --samples; the item's own run has 3 |";
    let few = page("-n 2");
    assert!(few.contains("| samples | 2 |") && few.contains(told), "{few}");
    let drawn = page("--draw-only");
    assert!(drawn.contains("| samples | 2 |") && drawn.contains(told), "{drawn}");
    let own = page("");
    assert!(own.contains("| samples | 3 |") && !own.contains("chosen by --samples"), "{own}");
    let again = page("-n 2");
    assert!(
        again.contains("| samples | 3 |") && !again.contains("chosen by --samples"),
        "three examples are recorded: {again}"
    );
    let more = page("-n 4");
    assert!(more.contains("| samples | 4 |") && more.contains(told), "{more}");
}

#[test]
fn an_item_that_looks_at_attention_is_judged_and_gone_on_with() {
    let temp = TempDir::new().unwrap();
    let out = temp.path();
    let run = |args: &str| {
        let ran = reproduce(out, args);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let item = "topk/figure-5 --builtin --samples 2";
    let planned = run(&format!("{item} --dry-run"));
    assert!(planned.contains("builtin reads 4 prompts of 2048 tokens"), "{planned}");
    assert!(!out.join("runs").exists(), "a dry run leaves nothing");
    let printed = run(item);
    assert!(
        printed.contains("No layer has more entropy than the first | ") && printed.contains("- analyses: entropy"),
        "{printed}"
    );
    assert!(printed.contains("- command: `spattn reproduce topk/figure-5 --builtin --samples 2 --out "), "{printed}");
    let judged = || fs::read_to_string(out.join("topk/figure-5/result.json")).unwrap();
    let first = judged();
    let result: Value = serde_json::from_str(&first).unwrap();
    let cell = &result["rows"][0]["cells"][0]["measured"];
    assert_eq!(cell["n"], 2);
    // The mean over the units' tables.
    let found = out.join("runs/builtin/topk/figure-5/found");
    let units = || -> Vec<_> {
        let all = fs::read_dir(&found).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|e| e == "json")).collect()
    };
    let files = units();
    let number = |file: &std::path::PathBuf| -> f64 {
        let unit: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let tables = unit["tables"].as_array().unwrap();
        let table = tables.iter().find(|table| table["name"] == "entropy_by_layer").unwrap();
        table["rows"][0][1][0].as_f64().unwrap()
    };
    let mean = files.iter().map(number).sum::<f64>() / files.len() as f64;
    assert!(files.len() == 4 && (mean - cell["mean"].as_f64().unwrap()).abs() < 1e-9, "{mean} {cell}");
    for file in ["topk/figure-5/plot.svg", "topk/figure-5/README.md", "topk.md", "README.md"] {
        assert!(out.join(file).exists(), "{file}");
    }
    assert!(
        printed.contains("| samples | 2 | ") && printed.contains("chosen by --samples; the item's own run has "),
        "{printed}"
    );
    let front = fs::read_to_string(out.join("README.md")).unwrap();
    assert!(
        front.contains("- [Top-k attention over a vector database, Figure 5](topk/figure-5/README.md): "),
        "{front}"
    );
    assert!(!front.contains("What is known now"), "one item is not all papers");
    // The same results as LaTeX, CSV and JSON, and plots as PNG.
    let tex = run("topk/figure-5 --builtin --draw-only --format latex --png");
    assert!(tex.starts_with("% Needs \\usepackage{array,booktabs,siunitx}") && tex.contains("\\bottomrule"), "{tex}");
    assert_eq!(fs::read_to_string(out.join("topk/figure-5/table.tex")).unwrap(), tex);
    assert_eq!(&fs::read(out.join("topk/figure-5/plot.png")).unwrap()[1..4], b"PNG");
    let csv = run("topk/figure-5 --builtin --draw-only --format csv");
    assert_eq!(csv, fs::read_to_string(out.join("topk/figure-5/table.csv")).unwrap());
    let json: Value = serde_json::from_str(&run("topk/figure-5 --builtin --draw-only --format json")).unwrap();
    assert_eq!((json[0]["variant"].as_str(), json[0]["samples"].as_u64()), (Some("builtin"), Some(2)));
    // Drawing is not a run, so the stored command stays that of the run.
    run("topk/figure-5 --builtin --draw-only");
    assert_eq!(judged(), first);
    // A deleted unit is analysed again, and the verdicts stay the same.
    fs::remove_file(&files[1]).unwrap();
    run(item);
    assert_eq!(judged(), first);
    assert_eq!(units().len(), 4);
    // Units with other settings are refused without --overwrite.
    let text = fs::read_to_string(&files[0]).unwrap();
    fs::write(&files[0], text.replacen("\"queries\":16", "\"queries\":15", 1)).unwrap();
    let refused = reproduce(out, item);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("was made with other settings"), "{said}");
    run(&format!("{item} --overwrite"));
    assert_eq!(judged(), first);

    let printed = run("double-sparsity/figure-5");
    assert!(printed.contains("on NVIDIA H200") && printed.contains("- made by: `spattn bench attention"), "{printed}");
    assert!(printed.contains("against Flash, batch 32 | 2.39 ["), "{printed}");
    let page = fs::read_to_string(out.join("README.md")).unwrap();
    assert!(
        page.contains("](topk.md)") && page.contains("](double-sparsity.md)") && !page.contains("](hip.md)"),
        "{page}"
    );
    let paper = fs::read_to_string(out.join("topk.md")).unwrap();
    assert!(paper.contains("[Figure 5](topk/figure-5/README.md)"), "{paper}");
}

#[test]
fn rows_that_an_analysis_finds_nothing_for_are_named() {
    const ITEM: &str = r#"
title = "Shares of documents"

[analyze.builtin]
model = "builtin"
analyses = ["documents", "entropy"]
tasks = ["ruler/niah_single_2"]
lengths = [512]
samples = 1

[[row]]
name = "the right document"
found = { table = "documents", column = "right" }

[[row]]
name = "entropy"
found = { table = "entropy_by_layer", column = "entropy (nats)" }

[[row]]
name = "not asked"
found = { table = "documents", column = "right" }
builtin = { missing = "of another model" }

[[column]]
name = "Mean"
"#;
    let temp = TempDir::new().unwrap();
    let (file, out) = (temp.path().join("shares.toml"), temp.path().join("out"));
    fs::write(&file, ITEM).unwrap();
    let ran = reproduce(&out, &format!("{} --builtin", file.display()));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("warning: own/shares: nothing was measured for the right document\n"), "{said}");
    let page = fs::read_to_string(out.join("own/shares/README.md")).unwrap();
    assert!(page.contains("- nothing was measured for: the right document\n"), "{page}");
}

#[test]
fn an_item_of_what_calibrations_learn_trains_them_and_goes_on_with_the_next() {
    const ITEM: &str = r#"
title = "Loss by bits"

[learn.builtin]
model = "builtin"
calibrations = ["hash_attention:top=8,bits=4", "hash_attention:top=8,bits=8"]
tokens = 1024
length = 512

[[row]]
name = "four"
found = { keys = { bits = "4" } }

[[row]]
name = "eight"
found = { keys = { bits = "8" } }

[[column]]
name = "Loss"
found = { table = "held_out", keys = { nets = "learned" }, column = "loss" }

[[claim]]
says = "Losses differ"
test = { falls = { rows = ["four", "eight"], columns = ["Loss"], over_rows = true } }
"#;
    let temp = TempDir::new().unwrap();
    let (file, out) = (temp.path().join("bits.toml"), temp.path().join("out"));
    fs::write(&file, ITEM).unwrap();
    let item = format!("{} --builtin", file.display());
    let run = |args: &str| {
        let ran = reproduce(&out, args);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let planned = run(&format!("{item} --dry-run"));
    assert!(
        planned.contains("builtin is calibrated 2 times, with 1024 tokens each in blocks of up to 512"),
        "{planned}"
    );
    let printed = run(&item);
    assert!(printed.contains("- learned: hash_attention:top=8,bits=4; hash_attention:top=8,bits=8"), "{printed}");
    assert!(printed.contains("- measured on: 8 blocks of held-out text, by layer: 10 layers"), "{printed}");
    let judged = || fs::read_to_string(out.join("own/bits/result.json")).unwrap();
    let first = judged();
    // A cell is the mean over layers of the values that `spattn calibrate` measures.
    let calibrated = temp.path().join("calibrated");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args([
        "calibrate",
        "hash_attention:top=8,bits=8",
        "--tokens",
        "1024",
        "--length",
        "512",
        "--quiet",
        "--out",
    ]);
    assert!(command.arg(&calibrated).output().unwrap().status.success());
    let csv = fs::read_to_string(calibrated.join("hash_attention.held_out.csv")).unwrap();
    let learned = csv.lines().filter(|line| line.starts_with("learned,"));
    let losses: Vec<f64> = learned.map(|line| line.split(',').nth(6).unwrap().parse().unwrap()).collect();
    let result: Value = serde_json::from_str(&first).unwrap();
    let cell = &result["rows"][1]["cells"][0]["measured"];
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(
        losses.len() == 10 && cell["n"] == 10 && (mean - cell["mean"].as_f64().unwrap()).abs() < 1e-9,
        "{mean} {cell}"
    );
    // A deleted unit is learned again; the others stay unchanged.
    let learned = out.join("runs/builtin/own/bits/learned");
    let kept = fs::metadata(learned.join("00.json")).unwrap().modified().unwrap();
    fs::remove_file(learned.join("01.json")).unwrap();
    run(&item);
    assert_eq!((judged(), fs::metadata(learned.join("00.json")).unwrap().modified().unwrap()), (first, kept));
    // Units with other settings are refused.
    fs::write(&file, ITEM.replace("tokens = 1024", "tokens = 2048")).unwrap();
    let refused = reproduce(&out, &item);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("was made with other settings"), "{said}");
    for (wrong, what) in [
        (ITEM.replace("bits=4\"", "bitz=4\""), "`bitz`"),
        (ITEM.replace("hash_attention:top=8,bits=4", "loki"), "is not trained, so nothing of it is measured"),
        (ITEM.replace("top=8,", ""), "too short to measure on"),
        (
            ITEM.replace(
                "calibrations = [\"hash_attention:top=8,bits=4\", \"hash_attention:top=8,bits=8\"]",
                "calibrations = []",
            ),
            "`calibrations` is empty",
        ),
    ] {
        fs::write(&file, wrong).unwrap();
        let refused = reproduce(&temp.path().join("elsewhere"), &item);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains(what), "{said}");
    }
}

/// Analyses and calibrations are outlined, with time and memory, for a model without weights and for one that is too large for this
/// machine.
#[test]
fn items_are_outlined_for_a_model_without_weights() {
    const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
        "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 2}"#;
    let temp = TempDir::new().unwrap();
    let model = temp.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), CONFIG).unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(ours.join(file), model.join(file)).unwrap();
    }
    let out = temp.path().join("out");
    for (item, what) in [
        ("topk/figure-5", "for spattn analyze entropy: reading takes about "),
        ("hashattention/table-9", "is calibrated 3 times, with 8192000 tokens each in blocks of up to 32768"),
        ("magicpig/figure-8", "records to make, in about "),
    ] {
        let ran = reproduce(&out, &format!("{item} --dry-run --model {}", model.display()));
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        // 70.6 billion weights of 2 bytes each, and the memory for a prompt and its indexes.
        let megabytes = said.split("with up to ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        assert!(said.contains(what) && megabytes.is_some_and(|mb| (141_000.0..250_000.0).contains(&mb)), "{said}");
        assert!(!out.exists(), "a dry run leaves nothing");
    }
}

/// A Python with numpy, if there is one: `SPATTN_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let python = std::env::var("SPATTN_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let ran = Command::new(&python).args(["-c", "import numpy"]).output();
    ran.is_ok_and(|ran| ran.status.success()).then_some(python)
}

/// Runs the referee: `flags[0]`, the folder, `flags[1]`, the built-in calibration. Returns whether it agrees, and its output.
fn referee(python: &str, flags: [&[&str]; 2], out: &Path) -> (bool, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command.arg("-B").arg(root.join("scripts/referee/check.py"));
    command.args(flags[0]).arg(out).args(flags[1]).arg(root.join("models/builtin/calibration"));
    let ran = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    (ran.status.success(), text)
}

#[test]
fn a_second_implementation_in_numpy_gives_the_same_numbers() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with numpy (SPATTN_PYTHON names one)");
        return;
    };
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("a");
    let methods = "-m magicpig:K=8,L=75 -m hash_attention:k=64 -m double_sparsity:k=64,label_bits=16 -m hip:k=128";
    analyze(&out, &format!("mass recall estimation channels -q -t ruler/vt -l 1K -n 1 --queries 4 --dump {methods}"));
    let (agrees, text) = referee(&python, [&[], &[]], &out);
    println!("{text}");
    assert!(agrees, "{text}");
    assert_eq!(text.matches("\nsame ").count(), 11, "{text}");
    // The referee notices wrong numbers: here a halved density.
    let table = out.join("tables/estimation.csv");
    let csv = fs::read_to_string(&table).unwrap();
    let halve = |line: &str| match line.starts_with("\"magicpig") {
        true => {
            let mut cells: Vec<String> = line.rsplitn(7, ',').map(str::to_owned).collect();
            cells[5] = (cells[5].parse::<f64>().unwrap() / 2.0).to_string();
            cells.reverse();
            cells.join(",")
        }
        false => line.to_owned(),
    };
    fs::write(&table, csv.lines().map(halve).collect::<Vec<_>>().join("\n")).unwrap();
    let (agrees, text) = referee(&python, [&[], &[]], &out);
    assert!(!agrees && text.contains("1 differ: MagicPIG: density"), "{text}");
}

/// Labels of 4 bits, also for tokens after the prefix: each selected token is as good as any that is left out, within rounding.
#[test]
fn selections_by_labels_are_those_of_a_second_implementation() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with numpy (SPATTN_PYTHON names one)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let run = |options: &str| {
        let out = dir.path().join(format!("out{options}"));
        let method = format!("-m double_sparsity:preset=paper,ratio={{0.0625,0.5}}{options}");
        analyze(&out, &format!("channels -q -t ruler/vt -l 1K -n 1 --queries 40 --layers 0,5 --dump {method}"));
        referee(&python, [&["--picks"], &["--calibration"]], &out)
    };
    let (agrees, text) = run("");
    assert!(agrees && text.matches("320 selections, 0 wrong").count() == 2, "{text}");
    // The referee notices different labels, here of randomly drawn channels.
    let (agrees, text) = run(",kind=random");
    assert!(!agrees && text.matches("OTHER").count() == 2, "{text}");
}
