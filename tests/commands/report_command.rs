//! `spattn report` as users run it, and its page in a real browser.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use spattn::eval::records::prompts;
use spattn::eval::records::record::Record;
use spattn::eval::records::store::{OpenMode, Store, load_records};
use tempfile::TempDir;

use super::program::{self, Ran};

fn spattn(args: &[&str]) -> Ran {
    program::spattn(args).run()
}

#[track_caller]
fn ok(args: &[&str]) -> Ran {
    spattn(args).ok()
}

fn path(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

/// All drawings below a folder, by name.
fn drawn(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            files.extend(drawn(&entry.path()).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else if ![".lock", ".written", "samples.jsonl", "manifest.json"].contains(&name.as_str()) {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    files
}

fn evaluate(dir: &Path, more: &[&str]) {
    let run =
        ["eval", "-q", "-t", "ruler/niah_single_1", "-t", "ruler/niah_single_2", "-l", "512", "-n", "2", "--fidelity"];
    let methods = ["-m", "topk:k={4,16}", "-m", "magicpig:K={8,9},L={20,40}", "--out", path(dir)];
    ok(&[&run[..], &methods, more].concat());
}

#[test]
fn a_run_is_drawn_again_to_the_byte_and_shards_make_the_whole() {
    let temp = TempDir::new().unwrap();
    let dir = |name: &str| temp.path().join(name);
    evaluate(&dir("run"), &[]);
    let first = drawn(&dir("run"));
    for name in ["report.html", "summary.md", "plots/score_vs_bytes.png", "plots/time.svg", "plots/heads_recall.png"] {
        assert!(first.contains_key(name), "{name} is missing: {:?}", first.keys());
    }
    assert!(first.contains_key("plots/params_magicpig_K-L_512.svg"), "{:?}", first.keys());
    assert!(first["plots/time.png"].starts_with(b"\x89PNG"));
    for out in ["again", "and again"] {
        ok(&["report", path(&dir("run")), "--out", path(&dir(out))]);
    }
    let (again, twice) = (drawn(&dir("again")), drawn(&dir("and again")));
    assert_eq!(again, twice);
    first.iter().for_each(|(name, bytes)| assert!(again[name] == *bytes, "{name} is another"));
    let more: Vec<&String> = again.keys().filter(|name| !first.contains_key(*name)).collect();
    let tables = ["csv", "json", "md", "tex"].map(|ending| format!("tables/method_by_task.{ending}"));
    assert_eq!(
        more,
        ["summary.json", "summary.tex"]
            .iter()
            .map(|s| (*s).to_owned())
            .chain(tables)
            .collect::<Vec<_>>()
            .iter()
            .collect::<Vec<_>>()
    );

    let records = load_records(&dir("run")).unwrap().records;
    assert!(records.iter().all(|r| !r.question.is_empty()), "{:?}", records[0].question);

    for shard in ["1", "2"] {
        evaluate(&dir("shards").join(shard), &["--shard", &format!("{shard}/2")]);
    }
    let rows =
        |from: &Path| -> Vec<Value> { serde_json::from_str(&ok(&["report", path(from), "--json"]).stdout).unwrap() };
    let scores = |rows: &[Value]| -> Vec<Vec<Value>> {
        let keys =
            ["task", "method", "params", "n", "score", "ci_low", "delta_full", "delta_high", "density", "recall"];
        rows.iter().map(|row| keys.iter().map(|key| row[key].clone()).collect()).collect()
    };
    let (whole, merged) = (rows(&dir("run")), rows(&dir("shards")));
    assert_eq!(scores(&whole), scores(&merged));
    let csv = fs::read_to_string(dir("run").join("summary.csv")).unwrap();
    let mut keys: Vec<&String> = whole[0].as_object().unwrap().keys().collect();
    assert_eq!((keys.pop().map(String::as_str), &whole[0]["kv_dtype"]), (Some("kv_dtype"), &Value::from("bf16")));
    assert_eq!(csv.lines().next().unwrap().split(',').collect::<Vec<_>>(), keys);

    // A resumed run writes the files again that a report has added to its folder.
    ok(&["report", path(&dir("run"))]);
    let tex = || fs::read_to_string(dir("run").join("summary.tex")).unwrap();
    let (before, json) = (tex(), fs::read(dir("run").join("summary.json")).unwrap());
    fs::write(dir("run").join("summary.tex"), "old").unwrap();
    fs::write(dir("run").join("summary.json"), "old").unwrap();
    evaluate(&dir("run"), &["--resume"]);
    assert_eq!((tex(), fs::read(dir("run").join("summary.json")).unwrap()), (before, json));
}

// ---- runs made here ----

const METHODS: [(&str, &str); 4] = [("full", ""), ("topk", "k=16"), ("quest", "page=16"), ("magicpig", "K=8,L=75")];

/// Writes a run with `samples` examples of two tasks at two lengths under four methods. `quest` fails on the odd samples.
fn write_run(dir: &Path, samples: usize, weights: &str) {
    let methods = METHODS.map(|(method, params)| json!({"method": method, "params": params}));
    let manifest = json!({
        "identity": {"model": "builtin", "protocol": "question", "seed": 42, "weights_sha256": weights, "results_version": 1},
        "methods": methods,
        "created": "2026-01-01T00:00:00Z",
        "program": {"version": "0.1.0", "commit": "c4c38b2f0a1b"},
    });
    // The file is written directly, because the store would flush tens of thousands of records one by one.
    drop(Store::open(dir, OpenMode::Fresh, &manifest).unwrap());
    let mut text = String::new();
    for task in ["ruler/vt", "ruler/cwe"] {
        for length in [1024, 4096] {
            for sample in 0..samples {
                for (m, (method, params)) in METHODS.iter().enumerate() {
                    let lost = *method == "quest" && sample % 2 == 1;
                    let record = json!({
                        "key": format!("{task}{length}{sample}{method}"), "model": "builtin", "task": task,
                        "length": length, "sample": sample, "seed": 42, "method": method, "params": params,
                        "protocol": "question", "source": "grammar",
                        "question": format!("What is <b>needle</b> {sample}?"),
                        "prediction": if lost { "<b>lost</b>".to_owned() } else { format!("Needle-{sample} it is") },
                        "references": [format!("Needle-{sample} ")], "score": if lost { 0.0 } else { 1.0 },
                        "prompt_tokens": length - 40, "prefix_tokens": length - 100, "new_tokens": 8,
                        "max_new_tokens": 40, "stopped": *method != "magicpig", "bos_tokens": 1,
                        "density": 1.0 / (1 + m) as f64, "density_sparse_layers": 0.1, "cost1": 0.1, "cost2": 0.2,
                        "aux_bits": 0.0, "kv_bytes_per_token": 1e6 * (1 + m) as f64, "prefill_s": 0.5, "index_s": 0.01,
                        "decode_s": 0.1 * (1 + m) as f64, "steps": 60,
                    });
                    text.push_str(&format!("{record}\n"));
                }
            }
        }
    }
    fs::write(dir.join("samples.jsonl"), text).unwrap();
    let first: Record =
        serde_json::from_str(fs::read_to_string(dir.join("samples.jsonl")).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(first.method, "full");
}

#[test]
fn tables_can_be_turned_and_mistakes_are_explained() {
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 6, "ab");
    let report = |more: &[&str]| spattn(&[&["report", path(&run)], more].concat());
    let text = report(&["--rows", "method", "--columns", "length", "--value", "score,delta"]).stdout;
    assert!(
        text.contains("score in % by method and length: builtin, sparse from question, mean over 2 tasks"),
        "{text}"
    );
    assert!(text.contains("quest page=16") && text.contains("-50.0 ["), "{text}");
    let latex = report(&["--rows", "task,length", "--columns", "method", "--format", "latex"]).stdout;
    for part in ["task & length & \\multicolumn{2}{c}{full} &", "ruler/\\allowbreak{}vt & 4K & ", "\\bottomrule"] {
        assert!(latex.contains(part), "{part} is missing in\n{latex}");
    }
    let plain = report(&["--rows", "task,length", "--columns", "method", "--format", "latex", "--no-ci"]).stdout;
    assert!(latex.contains("$]") && plain.contains("task & length & {full} &") && !plain.contains("$]"), "{plain}");
    let narrow = report(&["--rows", "method", "--columns", "task", "--no-ci"]).stdout;
    assert!(narrow.contains("by method and task") && !narrow.contains('['), "{narrow}");
    let cells: Value =
        serde_json::from_str(&report(&["--rows", "K", "--columns", "L", "--format", "json"]).stdout).unwrap();
    assert_eq!((cells.as_array().unwrap().len(), &cells[0]["K"], &cells[0]["n"]), (1, &json!("8"), &json!(24)));
    assert!(!run.join("report.html").exists(), "what is only printed writes nothing");

    let fails = |args: &[&str], what: &str, hint: &str| {
        let ran = spattn(args);
        assert_eq!(ran.status, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(what) && ran.stderr.contains(hint), "{}", ran.stderr);
    };
    fails(&["report", path(&run), "--rows", "taks"], "unknown dimension", "task");
    fails(&["report", path(&run), "--value", "socre"], "unknown value", "score");
    fails(&["report", path(temp.path().join("none").as_path())], "holds no samples.jsonl", "folder");

    let other = temp.path().join("other");
    write_run(&other, 6, "cd");
    let merged = ok(&["report", path(&run), path(&other), "--format", "csv"]);
    assert!(merged.stderr.contains("note: the runs of builtin differ in weights_sha256"), "{}", merged.stderr);
    assert_eq!(merged.stdout.lines().count(), 1 + 2 * 16, "rows of both, none of them mixed");
    assert!(merged.stdout.contains("builtin (weights=ab)") && merged.stdout.contains("builtin (weights=cd)"));
}

#[test]
fn tables_keep_to_the_columns_of_the_terminal() {
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 6, "ab");
    let of = |columns: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
        let output = command.args(["report", path(&run), "--out", path(&temp.path().join("out"))]);
        let output = output.env("COLUMNS", columns).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = |text: &str| {
        let rows = text.lines().filter(|line| line.starts_with("full ") || line.starts_with("quest "));
        rows.map(|line| line.chars().count()).max().unwrap()
    };
    let (whole, narrow) = (of("500"), of("64"));
    assert!(lines(&whole) > 64 && !whole.contains("left out in"), "{whole}");
    assert!(lines(&narrow) <= 64 && narrow.contains("left out in 64 columns: read %"), "{narrow}");
}

// ---- the page in a browser ----

/// A page loaded in a browser: its document after its scripts ran, its console output, and the time it took.
struct Loaded {
    document: String,
    console: Vec<String>,
    took: Duration,
}

fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
    if found.is_none() {
        eprintln!("SKIPPED: there is no chromium here to open the page in");
    }
    found
}

fn load(browser: &str, page: &Path) -> Loaded {
    load_at(browser, page, "")
}

/// Loads a page in a frame of this width, because browser windows cannot be as narrow as a phone.
fn load_in_frame(browser: &str, page: &Path, address: &str, width: usize) -> Loaded {
    let frame = format!(
        "<iframe src=\"{}{}\" width={width} height=844 style=\"border: 0\"></iframe><pre id=\"found\"></pre>\
         <script>onmessage = (event) => {{ document.getElementById('found').textContent = event.data; }}</script>",
        page.file_name().unwrap().to_str().unwrap(),
        address.replace('&', "&amp;")
    );
    let around = page.with_file_name("around.html");
    fs::write(&around, frame).unwrap();
    // On a busy machine, the browser may return before the frame has reported.
    let loads = (0..5).map(|_| load(browser, &around));
    loads
        .into_iter()
        .find(|loaded| !loaded.document.contains("<pre id=\"found\"></pre>"))
        .expect("the frame says what it found")
}

/// Loads a page, with this text after its address.
fn load_at(browser: &str, page: &Path, address: &str) -> Loaded {
    let profile = TempDir::new().unwrap();
    let start = Instant::now();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"])
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("--window-size=1280,900")
        .arg(format!("file://{}{address}", page.display()))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Loaded {
        document: String::from_utf8(output.stdout).unwrap(),
        console: stderr.lines().filter(|l| l.contains("CONSOLE")).map(str::to_owned).collect(),
        took: start.elapsed(),
    }
}

/// The page, with the script that operates it.
fn driven(dir: &Path) -> PathBuf {
    with_script(dir, "driven.html", include_str!("../page/drive.js"), |page| page)
}

/// The page after a change, with a script of the test in it.
fn with_script(dir: &Path, name: &str, script: &str, change: impl Fn(String) -> String) -> PathBuf {
    let page = change(fs::read_to_string(dir.join("report.html")).unwrap());
    let (before, after) = page.rsplit_once("</body>").unwrap();
    let changed = dir.join(name);
    fs::write(&changed, format!("{before}<script>{script}</script></body>{after}")).unwrap();
    changed
}

/// Two pages of settings that share parameters, of which some cost more than dense attention: one as a screen shows it, one as it is
/// printed.
fn write_costly(run: &Path) -> [PathBuf; 2] {
    write_run(run, 30, "ab");
    let samples = run.join("samples.jsonl");
    let mut lines = Vec::new();
    for line in fs::read_to_string(&samples).unwrap().lines() {
        let mut record: Value = serde_json::from_str(line).unwrap();
        record["kv_bits"] = json!(2048);
        lines.push(record.to_string());
        if record["method"] == "magicpig" {
            record["key"] = json!(format!("{} more", record["key"].as_str().unwrap()));
            record["params"] = json!("K=8,L=600,dense_layers=0-48/16,sink=4,local=64");
            (record["aux_bits"], record["cost1"]) = (json!(3293.0), json!(1.26));
            lines.push(record.to_string());
        }
    }
    fs::write(&samples, lines.join("\n") + "\n").unwrap();
    ok(&["report", path(run)]);
    let script = include_str!("../page/layout.js");
    let on_paper = |page: String| page.replace("@media print", "@media all").replace("@media screen", "@media speech");
    [with_script(run, "screen.html", script, |page| page), with_script(run, "paper.html", script, on_paper)]
}

#[test]
fn pages_are_whole_at_every_width_in_light_and_dark() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let [screen, _] = write_costly(&temp.path().join("run"));
    for width in [390, 1280, 1920] {
        for (theme, paper) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")] {
            let found = found(&load_in_frame(browser, &screen, &format!("#theme={theme}"), width));
            assert_eq!((&found["width"], &found["page"][1]), (&json!(width), &json!(paper)), "{theme}");
            assert!(found["wide"].as_u64().unwrap() <= width as u64, "{width} {theme}: {found:#}");
            // Tables wider than the window scroll in their frames.
            for table in found["tables"].as_array().unwrap() {
                assert!(table["cut"] == 0 || table["scrolls"] == true, "{width} {theme}: {table}");
            }
            assert!(found["figures"].as_array().unwrap().iter().all(|right| right.as_u64().unwrap() <= width as u64));
        }
    }
}

#[test]
fn what_is_printed_is_whole() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    let [_, paper] = write_costly(&run);
    // A4 and letter without margins of 12 mm, in the dark theme that the reader chose.
    for width in [703, 725] {
        let found = found(&load_in_frame(browser, &paper, "#print&theme=dark", width));
        assert!(found["wide"].as_u64().unwrap() <= width as u64, "{found:#}");
        let tables = found["tables"].as_array().unwrap();
        assert_eq!(tables.len(), 6, "those of the verdicts, the overview and the table: {tables:?}");
        for table in tables {
            assert!(table["right"].as_u64().unwrap() <= width as u64 && table["scrolls"] == false, "{table}");
        }
        assert!(found["scores"].as_u64().unwrap() >= 16, "{found:#}");
        assert_eq!((&found["folded"], &found["stuck"], &found["controls"]), (&json!(0), &json!(0), &json!(0)));
        assert_eq!(
            (&found["head"], &found["page"]),
            (&json!("table-header-group"), &json!(["rgb(29, 33, 38)", "rgb(255, 255, 255)"]))
        );
        // Browsers do not draw buttons in headings that they repeat on each page.
        assert_eq!((&found["buttons"], &found["broken"]), (&json!("contents"), &json!([])), "{found:#}");
        let all = |key: &str, value: &str| found[key].as_array().unwrap().iter().all(|x| x == value);
        assert!(all("shaded", "exact") && all("filters", "none"), "{found:#}");
    }
    let profile = TempDir::new().unwrap();
    let pdf = temp.path().join("page.pdf");
    let status = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=20000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--print-to-pdf={}", pdf.display()))
        .arg(format!("file://{}", run.join("report.html").display()))
        .output()
        .unwrap();
    let bytes = fs::read(&pdf).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&status.stderr)));
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.starts_with("%PDF") && text.matches("/Type /Page\n").count() > 1, "several sheets");
}

#[test]
fn headings_are_explained_and_what_costs_too_much_is_said() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let [screen, _] = write_costly(&temp.path().join("run"));
    let found = found(&load(browser, &screen));
    assert_eq!(found["undescribed"], json!([]));
    let legend = found["legend"].as_array().unwrap();
    for heading in ["n", "score", "Δ full", "density", "FLOPs %", "read %", "index %", "KB/token", "ms/token"] {
        assert!(legend.contains(&json!(heading)), "{heading} is not explained: {legend:?}");
    }
    let columns = found["columns"].as_array().unwrap();
    assert!(
        columns.contains(&json!("index %")) && !columns.contains(&json!("ms/token")),
        "shares of steps are no latency: {columns:?}"
    );
    let said = "all rows of magicpig: K=8";
    assert_eq!(found["said"], json!([said, said]));
    let settings: Vec<&str> =
        found["settings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).take(5).collect();
    assert_eq!(settings[..4], ["full ", "topk k=16", "quest page=16", "magicpig L=75"]);
    assert!(settings[4].starts_with("magicpig†‡ L=600,"), "{settings:?}");
    let excess = found["excess"].as_array().unwrap();
    assert_eq!(excess.len(), 4, "below the overview and the table: {excess:?}");
    assert!(excess[0].as_str().unwrap().starts_with("† the index is larger than the keys and values: magicpig L=600"));
    assert!(excess[1].as_str().unwrap().contains("(1.26 ×)"), "{excess:?}");
    let marks = found["marks"].as_array().unwrap();
    assert!(marks.contains(&json!("†The index takes 1.61 times the memory of the keys and values.")), "{marks:?}");
    assert_eq!(found["scale"], json!(["0 %", "100 %"]));
}

// ---- LaTeX ----

#[test]
fn latex_has_no_overfull_boxes() {
    let is_there = Command::new("pdflatex").arg("--version").output().is_ok_and(|o| o.status.success());
    if !is_there {
        eprintln!("SKIPPED: there is no pdflatex here to set the tables with");
        return;
    }
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_costly(&run);
    let layouts = [
        vec!["--format", "latex"],
        vec!["--format", "latex", "--rows", "method", "--columns", "task,length", "--value", "score,delta"],
        vec!["--format", "latex", "--rows", "task,length", "--columns", "method"],
    ];
    for (at, layout) in layouts.iter().enumerate() {
        let tables = ok(&[&["report", path(&run)], &layout[..]].concat()).stdout;
        assert!(!tables.contains('`') && !tables.contains("few\\_"), "codes are for programs: {tables}");
        let name = format!("tables{at}");
        let packages = "\\usepackage{array,booktabs,siunitx}";
        let text =
            format!("\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n{tables}\n\\end{{document}}\n");
        fs::write(temp.path().join(format!("{name}.tex")), text).unwrap();
        let set = Command::new("pdflatex")
            .args(["-interaction=nonstopmode", "-halt-on-error", &format!("{name}.tex")])
            .current_dir(temp.path())
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&set.stdout).into_owned();
        assert!(set.status.success(), "{log}");
        let overfull: Vec<&str> = log.lines().filter(|line| line.starts_with("Overfull")).collect();
        assert!(overfull.is_empty(), "{layout:?}: {overfull:?}\n{tables}");
    }
}

fn found(loaded: &Loaded) -> Value {
    let (_, rest) = loaded.document.split_once("<pre id=\"found\">").expect("the script came to its end");
    serde_json::from_slice(&STANDARD.decode(rest.split_once('<').unwrap().0).unwrap()).unwrap()
}

#[test]
fn the_page_sorts_filters_and_opens_samples_without_errors() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 60, "ab");
    let kept = prompts::file_name("builtin", "ruler/cwe", 1024, 42, 2);
    prompts::keep(&run, &kept, "Much hay.\nOne <b>needle</b>.").unwrap();
    ok(&["report", path(&run)]);
    let loaded = load(browser, &driven(&run));
    assert_eq!(loaded.console, Vec::<String>::new());
    let found = found(&loaded);
    let failed = |(_, value): &(&String, &Value)| value.as_str().is_some_and(|v| v.starts_with("failed"));
    assert!(!found.as_object().unwrap().iter().any(|entry| failed(&entry)), "{found:#}");

    assert_eq!(found["rows"], 16);
    let first = |order: &Value| order["order"][0].as_str().unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!((first(&found["up"]), first(&found["down"])), ("50.0".to_owned(), "100.0".to_owned()));
    assert_eq!((&found["up"]["aria"], &found["up"]["focused"]), (&json!("ascending"), &json!("score")));
    assert_eq!((&found["down"]["aria"], &found["back"]), (&json!("descending"), &json!("none")));
    assert_eq!(found["find"], json!([["quest", "quest"], "2 of 16 rows"]));
    assert_eq!(found["pick"], json!(["ruler/cwe"]));
    assert_eq!((&found["nothing"], &found["hide"]), (&json!("0 of 16 rows"), &json!(false)));
    assert_eq!(found["warned"], json!(["⚠ truncated", "⚠ truncated", "⚠ truncated", "⚠ truncated"]));
    assert_eq!(found["folded"], json!(["truncated: 4 results", true, true]));
    assert_eq!(found["matrix"][0], json!(["method", "1K", "4K", "mean"]));
    assert_eq!(found["matrix"][2], "Δ full: mean over 2 tasks (darker is better)");
    let quest = found["matrix"][1].as_array().unwrap();
    assert_eq!(quest[0], "quest page=16");
    assert!(quest[1..].iter().all(|cell| cell.as_str().unwrap().starts_with("-50.0 [-")), "means with ends: {quest:?}");
    assert_eq!(found["over"][0], false, "all have the same tasks");
    let figures =
        fs::read_dir(run.join("plots")).unwrap().flatten().filter(|f| f.path().extension() == Some("svg".as_ref()));
    assert_eq!(found["plots"], json!([2, figures.count()]));
    assert_eq!(found["samples"], json!(["1 to 50 of 240 examples (240 in all, 960 records)", 50]));
    assert_eq!(found["next"], "51 to 100 of 240 examples (240 in all, 960 records)");
    assert_eq!(found["lost"], "1 to 50 of 120 examples (240 in all, 960 records)");
    assert_eq!(found["search"], "1 to 4 of 4 examples (240 in all, 960 records)");
    let open = &found["open"];
    assert_eq!((&open["text"][0], &open["text"][1]), (&json!("What is <b>needle</b> 2?"), &json!("Needle-2 ")));
    assert_eq!(open["methods"], json!(["full", "topk k=16", "quest page=16", "magicpig K=8,L=75"]));
    assert_eq!((&open["predictions"][2], &open["focused"]), (&json!("Needle-2 it is"), &json!("sample")));
    assert_eq!(found["prompt"], json!([false, "what the model read", "Much hay.\nOne <b>needle</b>."]));
    assert_eq!(found["close"], json!([true, "Sample 2"]));
    assert_eq!((&found["unnamed"], &found["unscoped"], &found["uncaptioned"]), (&json!([]), &json!(0), &json!(0)));
    assert_eq!(found["dark"], json!(["dark", "true", "rgb(20, 23, 27)"]));
    assert!(found["manifests"][0].as_str().unwrap().contains("\"weights_sha256\": \"ab\""));
    assert_eq!(found["markup"], 0);
}

#[test]
fn the_page_says_what_was_run_and_what_it_comes_to() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 60, "ab");
    ok(&["report", path(&run)]);
    let found = found(&load(browser, &driven(&run)));
    assert_eq!(
        found["heading"][0],
        "2 RULER tasks (vt, cwe) at 1K, 4K tokens, 60 examples each, builtin on the CPU, 3 sparse methods, sparse from \
         question, 2026-01-01, spattn 0.1.0 (c4c38b2)"
    );
    // magicpig loses nothing, but 60 examples cannot prove a loss below a point. quest loses half, at the same cost.
    let said = |part: usize| -> Vec<String> {
        found["heading"][part].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    };
    let sentences = said(1);
    assert_eq!(sentences.len(), 2, "one for each length: {sentences:?}");
    assert!(sentences[0].starts_with("60 examples of each task cannot prove any setting safe."), "{sentences:?}");
    assert!(
        sentences[0].contains("Proven worse: quest") && sentences[0].contains("Undecided: magicpig"),
        "{sentences:?}"
    );
    let cells = said(3);
    assert!(cells.iter().any(|cell| cell.starts_with("not safe: loses at least ")), "{cells:?}");
    assert!(cells.iter().any(|cell| cell.starts_with("too few examples: about ")), "{cells:?}");
    assert!(cells.iter().any(|cell| cell.starts_with("oracle, for comparison")), "{cells:?}");
    // A better value has a deeper colour, whether larger or smaller values are better: full, topk, quest and magicpig have densities 1,
    // 1/2, 1/3 and 1/4. `full` has no difference to itself.
    let shades = |depths: &[&str]| json!(depths.iter().map(|d| format!("rgba(var(--good), {d})")).collect::<Vec<_>>());
    assert_eq!(found["colours"]["score"], shades(&["0.500", "0.500", "0.250", "0.500"]));
    assert_eq!(found["colours"]["delta"], shades(&["0.500", "0.000", "0.500"]));
    assert_eq!(found["colours"]["density"], shades(&["0.000", "0.333", "0.444", "0.500"]));
}

#[test]
fn figures_are_enlarged_and_what_is_shown_is_saved() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 60, "ab");
    ok(&["report", path(&run)]);
    let found = found(&load(browser, &driven(&run)));
    assert_eq!(
        found["zoom"],
        json!({"open": [true, true, true], "grew": ["1.40", "1.40"], "moved": 30, "fit": true, "closed": true, "focused": true})
    );
    // The table as filtered and sorted, with the columns of the CSV file.
    let table = &found["saveTable"];
    assert_eq!((&table["name"], &table["type"]), (&json!("rows.csv"), &json!("text/csv")));
    let mut lines = table["text"].as_str().unwrap().lines();
    let headings = lines.next().unwrap();
    assert_eq!(Some(headings), fs::read_to_string(run.join("summary.csv")).unwrap().lines().next());
    let saved: Vec<Vec<&str>> = lines.map(|line| line.split(',').take(4).collect()).collect();
    let quest = |task, length| vec!["builtin", task, length, "quest"];
    let [vt, cwe] = ["ruler/vt", "ruler/cwe"];
    assert_eq!(saved, [quest(vt, "4096"), quest(cwe, "4096"), quest(vt, "1024"), quest(cwe, "1024")]);
    // The examples that the search found, with the field names of `samples.jsonl`.
    let samples: Vec<Value> =
        found["saveSamples"]["text"].as_str().unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((samples.len(), &found["saveSamples"]["name"]), (16, &json!("examples.jsonl")));
    let file = fs::read_to_string(run.join("samples.jsonl")).unwrap();
    for sample in &samples {
        let is_it =
            |record: &Value| ["task", "length", "sample", "method"].iter().all(|key| record[*key] == sample[*key]);
        let record = file.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).find(is_it).unwrap();
        for key in ["question", "references", "prediction", "score", "prompt_tokens", "steps", "params"] {
            // JavaScript writes 1.0 as 1.
            let plain = |value: &Value| value.as_f64().map_or_else(|| value.clone(), |number| json!(number));
            assert_eq!(plain(&record[key]), plain(&sample[key]), "{key}");
        }
    }
    let figure = found["saveFigure"].as_array().unwrap();
    assert_eq!((&figure[1], &figure[2]), (&json!("image/svg+xml"), &json!("svg")));
    let name = figure[0].as_str().unwrap().trim_end_matches(".svg");
    assert_eq!(figure[3], json!([format!("plots/{name}.svg"), format!("plots/{name}.png")]));
    assert!(run.join(figure[3][1].as_str().unwrap()).exists());
}

#[test]
fn the_address_keeps_the_view_and_a_narrow_window_scrolls_only_in_tables() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 60, "ab");
    ok(&["report", path(&run)]);
    let page = driven(&run);
    let plain = found(&load(browser, &page));
    let address = &plain["address"];
    let kept = address["kept"][0].as_str().unwrap();
    assert!(kept.starts_with("#warning-") && kept.ends_with("&example=2"), "{kept}");
    assert!(kept.contains("&value=density&find=quest&sort=score&columns=method%2C"), "{kept}");
    assert_eq!(address["kept"][1], 0, "no steps in the history");
    let gone = address["gone"].as_str().unwrap();
    assert!(gone.starts_with("#plots&value=density&find=quest&"), "a link within the page keeps the view: {gone}");
    assert_eq!(address["set"], json!(["topk", "4 of 16 rows", "score", true]));
    assert_eq!(address["empty"], json!(["", "16 of 16 rows", ""]));
    // The parts that stay in place while a table scrolls below them, except for the line around the table.
    assert_eq!(plain["sticky"], json!([120, 90, 1, 1, 1]));

    let view = "#samples&by=length&value=delta_full&find=quest&sort=-length&columns=method,length,score&theme=dark&show=lost&example=1";
    let opened = &found(&load_in_frame(browser, &page, view, 390))["opened"];
    assert_eq!((&opened["count"], &opened["columns"]), (&json!("4 of 16 rows"), &json!(["method", "length", "score"])));
    assert!(opened["matrix"].as_str().unwrap().starts_with("Δ full: mean over 2 tasks"), "{opened:#}");
    assert_eq!(
        (&opened["theme"], &opened["samples"]),
        (&json!("dark"), &json!("1 to 50 of 120 examples (240 in all, 960 records)"))
    );
    assert!(opened["sample"][0].as_str().unwrap().contains("sample 1,"), "{opened:#}");
    assert!(opened["top"].as_u64().unwrap() > 900, "at the samples: {opened:#}");
    assert_eq!(opened["width"], 390);
    assert!(opened["wide"].as_u64().unwrap() <= 390, "{opened:#}");
    // An address as it was before the page had views.
    let opened = &found(&load_at(browser, &page, "#warning-3"))["opened"];
    assert_eq!((&opened["warned"], &opened["theme"]), (&json!(true), &json!("")));
}

#[test]
fn means_on_the_page_are_over_the_same_tasks() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 12, "ab");
    let samples = run.join("samples.jsonl");
    let is_kept = |line: &&str| !(line.contains("\"quest\"") && line.contains("ruler/cwe"));
    let kept: Vec<String> =
        fs::read_to_string(&samples).unwrap().lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    fs::write(&samples, kept.concat()).unwrap();
    ok(&["report", path(&run)]);
    let found = found(&load(browser, &driven(&run)));
    assert_eq!((&found["over"][0], &found["over"][1]), (&json!(true), &json!(["ruler/cwe, ruler/vt", "ruler/vt"])));
    let all = "full, topk k=16, magicpig K=8,L=75";
    let with_quest = "full, topk k=16, quest page=16, magicpig K=8,L=75";
    assert_eq!(found["over"][2], json!([all, with_quest, "score (darker is better)"]), "{found:#}");
}

#[test]
fn fifty_thousand_samples_open_quickly() {
    let Some(browser) = browser() else { return };
    let temp = TempDir::new().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 3125, "ab");
    ok(&["report", path(&run)]);
    let size = fs::metadata(run.join("report.html")).unwrap().len();
    assert!(size < 4 << 20, "{size} bytes");
    let loaded = load(browser, &driven(&run));
    assert_eq!(found(&loaded)["samples"][0], "1 to 50 of 12500 examples (12500 in all, 50000 records)");
    // Includes loading, all clicks of the script and the start of the browser, on busy machines.
    assert!(loaded.took < Duration::from_secs(30), "{:?}", loaded.took);
}
