//! Numbers from two different questions never enter the same mean. Each case changes something that determines a prompt, its answer or
//! its score, but keeps the names. Then the run is resumed, and it is reported together with a run of the changed version.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::program::{self, Ran};

const RUN: &str = "run";
/// The methods of a run, of a resumption with one more, and of a separate run.
const FIRST: &[&str] = &["-m", "random:ratio=0.5"];
const MORE: &[&str] = &["-m", "random:ratio=0.5", "-m", "topk:k=4"];
const BESIDE: &[&str] = &["--no-full", "-m", "topk:k=4"];

/// A folder with a tiny model, rows, texts and data sets, and the runs on them.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Replaces a text in a file, which must contain it.
    fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} has no {from}");
        self.write(name, &text.replacen(from, to, 1));
    }

    /// Sets keys of a JSON file.
    fn set(&self, name: &str, keys: Value) {
        let mut json: Map<String, Value> = serde_json::from_str(&self.read(name)).unwrap();
        json.extend(keys.as_object().unwrap().clone());
        self.write(name, &Value::Object(json).to_string());
    }

    fn spattn(&self, args: &[&str]) -> Ran {
        program::spattn(args).within(&self.dir).env("SPATTN_DATA", "/nonexistent/data").run()
    }

    /// Evaluates a task into a folder.
    fn eval(&self, out: &str, task: &str, more: &[&str]) -> Ran {
        self.eval_from(["model", "data"], out, task, more)
    }

    /// Evaluates a task with the model and data at other paths.
    fn eval_from(&self, [model, data]: [&str; 2], out: &str, task: &str, more: &[&str]) -> Ran {
        let base = ["eval", "--model", model, "-t", task, "-n", "3", "--quiet", "--skip-bad", "--data", data];
        self.spattn(&[&base, more, &["--out", out]].concat())
    }
}

/// A tokenizer with a token for every byte.
fn byte_tokenizer() -> Value {
    let is_printed = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let unprinted_before = |byte: u32| (0..byte).filter(|other| !is_printed(*other)).count() as u32;
    let vocab = (0..256u32).map(|byte| {
        let code = if is_printed(byte) { byte } else { 256 + unprinted_before(byte) };
        (char::from_u32(code).unwrap().to_string(), json!(byte))
    });
    let vocab: Map<String, Value> = vocab.collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

fn lines(rows: impl IntoIterator<Item = Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

fn needle_row(i: usize) -> Value {
    json!({"context": format!("The grass is green. Person {i} lives in house {}. The sky is blue.", i + 40),
           "question": format!("Where does person {i} live?"), "answers": [format!("house {}", i + 40)]})
}

/// LongBench's archive, and the name of a file in it.
const ARCHIVE: &str = "data/data.zip";
const MEMBER: &str = "data/2wikimqa.jsonl";

/// Four rows of a set of LongBench.
fn qa_rows(set: &str, from: usize) -> String {
    lines((from..from + 4).map(|i| {
        json!({"input": format!("How long is river {i}?"), "context": format!("River {i} is {} miles long. ", i + 22),
               "answers": [format!("{} miles", i + 22)], "length": 8, "dataset": set, "language": "en",
               "all_classes": null, "_id": format!("{i}")})
    }))
}

fn sentences(done: &str) -> String {
    let sentence = |i| json!({"sentence": format!("{i} guests {done}, as _ had paid."), "option1": "Ann", "option2": "Bob", "answer": "2"});
    lines((0..4).map(sentence))
}

fn sums(from: usize) -> String {
    let sum = |i| json!({"question": format!("{i} and {i} are how many?"), "answer": format!("Add.\n#### {}", 2 * i)});
    lines((from..from + 9).map(sum))
}

fn squad() -> Value {
    let paragraph = |i: usize| {
        json!({"context": format!("River {i} is {} miles long.", i + 22), "qas": [{"question": format!("How long is river {i}?"),
            "is_impossible": false, "answers": [{"text": format!("{} miles", i + 22), "answer_start": 11}]}]})
    };
    json!({"data": [{"title": "T", "paragraphs": (0..9).map(paragraph).collect::<Vec<_>>()}]})
}

fn essays(word: &str) -> String {
    (0..400).map(|i| format!("The {word} of town {i} is old. ")).collect()
}

fn zip(member: &str, text: &str) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(text.as_bytes()).unwrap();
    zip.finish().unwrap().into_inner()
}

fn place(dir: &Path) -> Place {
    let place = Place { dir: dir.to_owned() };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/llama3");
    fs::create_dir_all(place.path("model")).unwrap();
    fs::copy(golden.join("model.safetensors"), place.path("model/model.safetensors")).unwrap();
    fs::copy(golden.join("config.json"), place.path("model/config.json")).unwrap();
    place.set("model/config.json", json!({"max_position_embeddings": 4096}));
    place.write("model/tokenizer.json", &byte_tokenizer().to_string());
    place.write("model/tokenizer_config.json", "{}");
    place.write("model/generation_config.json", "{}");
    place.write(
        "model/chat_template.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
    );
    place.write("rows.jsonl", &lines((0..4).map(needle_row)));
    place.write("text.txt", &essays("mayor"));
    place.write("data/longbench/hotpotqa.jsonl", &qa_rows("hotpotqa", 0));
    place.write("data/gsm8k/test.jsonl", &sums(1));
    place.write("data/winogrande/validation.jsonl", &sentences("slept"));
    place.write("system.txt", "Answer in one word.");
    place.write("data/squad/dev-v2.0.json", &squad().to_string());
    place.write("data/essays/a.txt", &essays("church"));
    fs::write(place.path(ARCHIVE), zip(MEMBER, &qa_rows("2wikimqa", 0))).unwrap();
    for list in ["nounlist.txt", "adjectivelist.txt", "verblist.txt"] {
        let words: String = (0..60).map(|i| format!("{}{}\n", &list[..3], i)).collect();
        place.write(&format!("data/wordlists/{list}"), &words);
    }
    place
}

/// A change to a place.
type Change = fn(&Place);

/// A change, and the expected message.
struct Case {
    name: &'static str,
    task: &'static str,
    /// The task after the change, if its options change.
    then: Option<&'static str>,
    more: &'static [&'static str],
    change: Change,
    /// The message when the run is not resumed.
    says: &'static str,
}

const ROWS: &str = "jsonl:rows.jsonl";
const LENGTH: &[&str] = &["-l", "2500"];

fn case(name: &'static str, change: Change, says: &'static str) -> Case {
    Case { name, task: ROWS, then: None, more: &[], change, says }
}

impl Case {
    fn of(self, task: &'static str, more: &'static [&'static str]) -> Self {
        Self { task, more, ..self }
    }

    fn then(self, task: &'static str) -> Self {
        Self { then: Some(task), change: |_| {}, ..self }
    }
}

fn cases() -> Vec<Case> {
    vec![
        // Rows.
        case(
            "an answer",
            |p| p.replace("rows.jsonl", "[\"house 41\"]", "[\"house 99\"]"),
            "the answer key was [\"house 41\"]",
        ),
        case(
            "a question",
            |p| p.replace("rows.jsonl", "Where does person 1", "Whereabouts does person 1"),
            "the question was",
        ),
        case("a context", |p| p.replace("rows.jsonl", "sky is blue", "sky is grey"), "its text has changed"),
        case("the order", |p| p.write("rows.jsonl", &lines([1, 0, 2, 3].map(needle_row))), "the question was"),
        case("another file", |p| p.write("rows.jsonl", &lines((7..11).map(needle_row))), "the question was"),
        case("a row less", |p| p.write("rows.jsonl", &lines((1..4).map(needle_row))), "the question was"),
        case(
            "an archive",
            |p| fs::write(p.path(ARCHIVE), zip(MEMBER, &qa_rows("2wikimqa", 1))).unwrap(),
            "the question was",
        )
        .of("longbench/2wikimqa", &[]),
        case("a metric", |_| {}, "the metric was \"string_match_part\", is \"qa_f1\"")
            .then("jsonl:rows.jsonl:metric=qa_f1"),
        case("a limit", |_| {}, "the limit of tokens to generate was").then("jsonl:rows.jsonl:max_new_tokens=9"),
        // Data sets and texts.
        case(
            "a row of LongBench",
            |p| p.replace("data/longbench/hotpotqa.jsonl", "22 miles long", "27 miles long"),
            "its text has changed",
        )
        .of("longbench/hotpotqa", &[]),
        case("a question of gsm8k", |p| p.write("data/gsm8k/test.jsonl", &sums(2)), "the question was")
            .of("gen/gsm8k_cot:shots=1", &[]),
        case("a text", |p| p.replace("text.txt", "mayor", "baker"), "its text has changed")
            .of("ppl/file:text.txt:scored=16", &["-l", "512"]),
        case("essays", |p| p.write("data/essays/a.txt", &essays("market")), "its text has changed")
            .of("ruler/niah_single_2", LENGTH),
        case(
            "words",
            |p| p.replace("data/wordlists/nounlist.txt", "nou0\n", "nou70\nnou71\n"),
            "ruler/niah_multikey_2",
        )
        .of("ruler/niah_multikey_2", LENGTH),
        case("documents", |p| p.replace("data/squad/dev-v2.0.json", "22 miles", "27 miles"), "ruler/qa_1")
            .of("ruler/qa_1", &["-l", "600"]),
        case("essays of a needle", |p| p.write("data/essays/a.txt", &essays("market")), "its text has changed")
            .of("needle/number:depths=50", LENGTH),
        case("an option", |p| p.write("data/winogrande/validation.jsonl", &sentences("dined")), "its text has changed")
            .of("mcq/winogrande", &[]),
        case("a system prompt", |p| p.write("system.txt", "Answer in two words."), "`--system-prompt` was")
            .of(ROWS, &["--system-prompt", "@system.txt"]),
        // The model.
        case(
            "RoPE's base",
            |p| p.replace("model/config.json", "500000.0", "10000.0"),
            "the model's configuration has changed: `rope.theta` was 500000.0, is 10000.0",
        ),
        case(
            "a longer context",
            |p| p.replace("model/config.json", "\"factor\":8.0", "\"factor\":16.0"),
            "`rope.scaling.llama3.factor` was 8.0, is 16.0",
        ),
        case(
            "YaRN",
            |p| {
                p.set("model/config.json", json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 4096}}));
            },
            "`rope.scaling.llama3` was",
        ),
        case("the norm's epsilon", |p| p.set("model/config.json", json!({"rms_norm_eps": 1e-6})), "`rms_norm_eps` was"),
        case(
            "the context",
            |p| p.set("model/config.json", json!({"max_position_embeddings": 3000})),
            "`max_position_embeddings` was 4096, is 3000",
        ),
        case(
            "a family",
            |p| p.set("model/config.json", json!({"architectures": ["MistralForCausalLM"], "sliding_window": null})),
            "`architecture` was",
        ),
        case(
            "ends of answers",
            |p| p.set("model/config.json", json!({"eos_token_id": [2, 3, 65]})),
            "the list of tokens that end an answer was [2,3], is [2,3,65]",
        ),
        case(
            "ends of answers elsewhere",
            |p| p.write("model/generation_config.json", "{\"eos_token_id\": 66}"),
            "the list of tokens that end an answer",
        ),
        case(
            "a chat template",
            |p| p.replace("model/chat_template.jinja", "assistant:", "model:"),
            "the chat template has changed since the folder's records were made",
        ),
        case(
            "no chat template",
            |p| fs::remove_file(p.path("model/chat_template.jinja")).unwrap(),
            "the use of a chat template was true, is false",
        ),
        case(
            "a token in front",
            |p| p.set("model/tokenizer_config.json", json!({"bos_token": "A", "add_bos_token": true})),
            "the list of tokens in front of a prompt was [], is [65]",
        ),
        case(
            "a special token",
            |p| {
                let special = json!({"104": {"content": "h", "special": true}});
                p.set("model/tokenizer_config.json", json!({"added_tokens_decoder": special}));
            },
            "the tokenizer's special tokens have changed since",
        ),
        case(
            "the tokenizer",
            |p| p.replace("model/tokenizer.json", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}"),
            "tokenizer.json has changed since the folder's records were made",
        ),
        case(
            "the weights",
            |p| {
                let mut bytes = fs::read(p.path("model/model.safetensors")).unwrap();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::write(p.path("model/model.safetensors"), bytes).unwrap();
            },
            "the weights have changed since the folder's records were made",
        ),
    ]
}

fn summary(ran: &Ran) -> Vec<Value> {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", ran.stdout, ran.stderr))
}

/// The faults in how a case is handled; empty if there are none.
fn faults(case: &Case) -> String {
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    let full = place.eval(RUN, case.task, &[case.more, FIRST].concat());
    if full.status != Some(0) {
        return format!("the first run fails: {}", full.stderr);
    }
    let records = place.read("run/samples.jsonl");
    (case.change)(&place);
    let task = case.then.unwrap_or(case.task);
    let mut faults = String::new();

    // With the same methods, and with one more, nothing is written, and the message names the change.
    for methods in [FIRST, MORE] {
        let resumed = place.eval(RUN, task, &[case.more, methods, &["--resume"]].concat());
        let is_refused = resumed.status == Some(2) && resumed.stderr.contains(case.says);
        if !is_refused || resumed.stderr.lines().filter(|line| line.starts_with("error: ")).count() != 1 {
            faults += &format!("resumed: {:?} {}\n", resumed.status, resumed.stderr);
        }
        if place.read("run/samples.jsonl") != records {
            faults += "records were written\n";
        }
    }

    // Report it together with a run of the changed version.
    let now = place.eval("now", task, &[case.more, BESIDE].concat());
    if now.status != Some(0) {
        return format!("{faults}the run of what it is now fails: {}", now.stderr);
    }
    let report = place.spattn(&["report", "run", "now", "--json"]);
    let rows = summary(&report);
    let count =
        |method: &str| rows.iter().filter(|r| r["method"] == method).map(|r| r["n"].as_u64().unwrap()).sum::<u64>();
    let (then, now) = (records.lines().count() as u64 / 2, place.read("now/samples.jsonl").lines().count() as u64);
    if (count("full"), count("topk")) != (then, now) {
        faults += &format!("reported: {} of {then} and {} of {now} examples\n", count("full"), count("topk"));
    }
    let is_paired = |r: &&Value| r["method"] == "topk" && !r["delta_full"].is_null();
    if let Some(row) = rows.iter().find(is_paired) {
        faults += &format!("reported: paired with other questions: {row}\n");
    }
    if !report.stderr.contains("a separate task") && !report.stderr.contains("separate rows") {
        faults += &format!("reported: not a word: {}\n", report.stderr);
    }
    faults
}

#[test]
fn no_change_of_what_is_asked_goes_unnoticed() {
    let cases = cases();
    assert!(cases.len() >= 30, "{}", cases.len());
    let told = |case: &Case| Some((case.name, faults(case))).filter(|(_, faults)| !faults.is_empty());
    let failed: Vec<String> =
        cases.par_iter().filter_map(told).map(|(name, faults)| format!("== {name}\n{faults}")).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Records of another run in a folder are noticed even if the manifest is unchanged.
#[test]
fn records_of_another_run_are_not_gone_on_with() {
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    place.write("other/rows.jsonl", &lines((5..8).map(needle_row)));
    assert_eq!(place.eval(RUN, ROWS, FIRST).status, Some(0));
    assert_eq!(place.eval("other", "jsonl:other/rows.jsonl", FIRST).status, Some(0));
    let own = place.read("run/samples.jsonl");
    place.write("run/samples.jsonl", &place.read("other/samples.jsonl"));
    let resumed = place.eval(RUN, ROWS, &[MORE, &["--resume"]].concat());
    assert!(resumed.status == Some(2) && resumed.stderr.contains("is not what was recorded"), "{}", resumed.stderr);
    // Records of both runs, with the same names and numbers.
    place.write("run/samples.jsonl", &format!("{own}{}", place.read("other/samples.jsonl")));
    let resumed = place.eval(RUN, ROWS, &[FIRST, &["--resume"]].concat());
    assert!(resumed.status == Some(2) && resumed.stderr.contains("is not what was recorded"), "{}", resumed.stderr);
    let report = place.spattn(&["report", RUN, "--json"]);
    assert!(report.stderr.contains("answer different questions under the same number"), "{}", report.stderr);
}

/// A deleted row cannot be compared, but the other rows still ask the same questions.
#[test]
fn a_row_that_is_gone_ends_a_resumption_and_no_report() {
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    assert_eq!(place.eval(RUN, ROWS, FIRST).status, Some(0));
    place.write("rows.jsonl", &lines((0..2).map(needle_row)));
    let resumed = place.eval(RUN, ROWS, &[FIRST, &["--resume"]].concat());
    assert!(resumed.status == Some(2) && resumed.stderr.contains("example 2 is recorded"), "{}", resumed.stderr);
    assert_eq!(place.eval("now", ROWS, BESIDE).status, Some(0));
    let rows = summary(&place.spattn(&["report", "run", "now", "--json"]));
    let n = |method: &str| rows.iter().find(|r| r["method"] == method).map(|r| r["n"].clone());
    assert_eq!((n("full"), n("topk")), (Some(json!(3)), Some(json!(2))));
    assert!(rows.iter().all(|r| r["delta_full"].is_number()), "{rows:?}");
}

/// Changes that do not affect answers are allowed: the run is resumed, and both runs share a table.
#[test]
fn what_decides_nothing_may_change() {
    let changes: [(&str, &str, Change); 8] = [
        ("nothing", ROWS, |_| {}),
        ("rows behind those that were asked", ROWS, |p| p.write("rows.jsonl", &lines((0..9).map(needle_row)))),
        ("an empty line", ROWS, |p| p.write("rows.jsonl", &format!("\n{}", p.read("rows.jsonl")))),
        ("the layout of a config", ROWS, |p| {
            let config: Value = serde_json::from_str(&p.read("model/config.json")).unwrap();
            p.write("model/config.json", &format!("{config:#}\n"));
        }),
        ("the layout of a tokenizer", ROWS, |p| {
            let tokenizer: Value = serde_json::from_str(&p.read("model/tokenizer.json")).unwrap();
            p.write("model/tokenizer.json", &format!("{tokenizer:#}\n"));
        }),
        ("the order of a tokenizer's keys, and escapes", ROWS, |p| {
            let tokenizer: Map<String, Value> = serde_json::from_str(&p.read("model/tokenizer.json")).unwrap();
            let backwards: Map<String, Value> = tokenizer.into_iter().rev().collect();
            let text = Value::Object(backwards).to_string().replace('\u{e9}', "\\u00e9");
            p.write("model/tokenizer.json", &text);
        }),
        ("a key that nobody reads", ROWS, |p| p.set("model/config.json", json!({"transformers_version": "9"}))),
        ("text behind that which was read", "ppl/file:text.txt:scored=16", |p| {
            p.write("text.txt", &format!("{}{}", p.read("text.txt"), essays("miller")));
        }),
    ];
    for (name, task, change) in changes {
        let dir = TempDir::new().unwrap();
        let place = place(dir.path());
        let more: &[&str] = if task.starts_with("ppl") { &["-l", "512"] } else { &[] };
        assert_eq!(place.eval(RUN, task, &[more, FIRST].concat()).status, Some(0), "{name}");
        change(&place);
        let resumed = place.eval(RUN, task, &[more, MORE, &["--resume", "--json"]].concat());
        assert_eq!(resumed.status, Some(0), "{name}: {}", resumed.stderr);
        let rows = summary(&resumed);
        let of = |method: &str| rows.iter().find(|r| r["method"] == method).unwrap();
        assert_eq!((of("full")["n"].as_u64(), of("topk")["n"].as_u64()), (Some(3), Some(3)), "{name}");
        assert!(of("topk")["delta_full"].is_number(), "{name}: {}", of("topk"));
    }
}

/// If the model and data are at other paths, or are copies, the run is resumed, and nothing is run twice.
#[test]
fn what_is_reached_by_another_path_is_the_same() {
    const SETS: [(&str, &[&str]); 3] =
        [("longbench/hotpotqa", &[]), ("gen/gsm8k_cot:shots=1", &[]), ("ruler/niah_single_2", LENGTH)];
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    for file in files_below(&place.path("data")) {
        let copy = place.path("copy").join(file.strip_prefix(place.path("data")).unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(&file, copy).unwrap();
    }
    let whole = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (model, data) = (whole("model"), whole("data"));
    let pairs = [["./model/", "data"], ["model/", "data/"], [&model, &data], ["model", "copy"], ["./model", "./copy/"]];
    for (at, (task, more)) in SETS.into_iter().enumerate() {
        let out = format!("run{at}");
        assert_eq!(place.eval(&out, task, &[more, FIRST].concat()).status, Some(0));
        let records = place.read(&format!("{out}/samples.jsonl"));
        for pair in pairs {
            let resumed = place.eval_from(pair, &out, task, &[more, FIRST, &["--resume"]].concat());
            assert_eq!(resumed.status, Some(0), "{task} {pair:?}: {}", resumed.stderr);
            assert_eq!(place.read(&format!("{out}/samples.jsonl")), records, "{task} {pair:?}");
        }
        let resumed =
            place.eval_from(["./model/", "copy"], &out, task, &[more, MORE, &["--resume", "--json"]].concat());
        let rows = summary(&resumed);
        assert!(rows.iter().all(|r| r["model"] == "model" && r["delta_full"].is_number()), "{task}: {rows:?}");
    }
    // Different data and weights at another path are noticed.
    place.write("copy/longbench/hotpotqa.jsonl", &qa_rows("hotpotqa", 1));
    let refused = place.eval_from(["model", "copy"], "run0", SETS[0].0, &[FIRST, &["--resume"]].concat());
    assert!(refused.status == Some(2) && refused.stderr.contains("`--data` was"), "{}", refused.stderr);
    let weights = place.path("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    // Flip the lowest bit of the last number.
    let at = bytes.len() - 2;
    bytes[at] ^= 1;
    fs::write(&weights, bytes).unwrap();
    for model in ["model", "./model/"] {
        let refused = place.eval_from([model, "data"], "run0", SETS[0].0, &[FIRST, &["--resume"]].concat());
        let told = "weights have changed since the folder's records were made";
        assert!(refused.status == Some(2) && refused.stderr.contains(told), "{model}: {}", refused.stderr);
    }
}

/// All files below a folder.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Files with the same name in different folders, such as RULER's, are different tasks.
#[test]
fn files_of_one_name_are_told_apart() {
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    place.write("vt/validation.jsonl", &lines((0..3).map(needle_row)));
    place.write("qa/validation.jsonl", &lines((5..8).map(needle_row)));
    assert_eq!(place.eval("a", "jsonl:vt/validation.jsonl", FIRST).status, Some(0));
    assert_eq!(place.eval("b", "jsonl:qa/validation.jsonl", BESIDE).status, Some(0));
    let report = place.spattn(&["report", "a", "b", "--json"]);
    assert!(report.stderr.contains("`jsonl:validation` has different questions in a, b"), "{}", report.stderr);
    let rows = summary(&report);
    let named = |method: &str| rows.iter().find(|r| r["method"] == method).unwrap();
    assert_eq!((&named("full")["task"], &named("full")["n"]), (&json!("jsonl:validation (a)"), &json!(3)));
    assert_eq!((&named("topk")["task"], &named("topk")["n"]), (&json!("jsonl:validation (b)"), &json!(3)));
    assert!(named("topk")["delta_full"].is_null());
}

/// A folder whose records have no digest yet is resumed if their fields agree, with a note that the rest is unchecked.
#[test]
fn folders_of_older_versions_are_resumed_and_told_apart() {
    let dir = TempDir::new().unwrap();
    let place = place(dir.path());
    assert_eq!(place.eval("new", ROWS, FIRST).status, Some(0));
    fs::create_dir(place.path("old")).unwrap();
    let mut manifest: Value = serde_json::from_str(&place.read("new/manifest.json")).unwrap();
    manifest.as_object_mut().unwrap().remove("inputs");
    let identity = manifest["identity"].as_object_mut().unwrap();
    for key in ["config", "tokens"] {
        assert!(identity.shift_remove(key).is_some());
    }
    let identity = Value::Object(identity.clone()).to_string();
    place.write("old/manifest.json", &manifest.to_string());
    // Keys as old versions computed them.
    let key = |sample: u64, method: &str| {
        format!("{:x}", sha256(&format!("{identity}\njsonl:rows\n0\n{sample}\n{method}")))[..32].to_owned()
    };
    let records = place.read("new/samples.jsonl");
    let old = records.lines().map(|line| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        record.as_object_mut().unwrap().shift_remove("example_sha256");
        let method = match record["method"].as_str() {
            Some("random") => "random:ratio=0.5",
            _ => "full",
        };
        record["key"] = key(record["sample"].as_u64().unwrap(), method).into();
        record
    });
    place.write("old/samples.jsonl", &lines(old));
    let resumed = place.eval("old", ROWS, &[MORE, &["--resume", "--json"]].concat());
    assert_eq!(resumed.status, Some(0), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("did not record a model's configuration"), "{}", resumed.stderr);
    let rows = summary(&resumed);
    assert!(rows.iter().all(|r| r["n"] == 3 && r["delta_full"].is_number()), "{rows:?}");
    assert_eq!(place.read("old/samples.jsonl").lines().count(), 9, "nothing was run twice");

    // The fields of old records are compared.
    place.write(
        "old/samples.jsonl",
        &lines(records.lines().map(|line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            record.as_object_mut().unwrap().shift_remove("example_sha256");
            record
        })),
    );
    place.write("old/manifest.json", &manifest.to_string());
    let beside = place.spattn(&["report", "new", "old", "--json"]);
    assert!(beside.stderr.contains("differ in configuration"), "{}", beside.stderr);
    place.replace("rows.jsonl", "[\"house 41\"]", "[\"house 99\"]");
    let refused = place.eval("old", ROWS, &[FIRST, &["--resume"]].concat());
    assert!(refused.status == Some(2) && refused.stderr.contains("the answer key was"), "{}", refused.stderr);
}

fn sha256(text: &str) -> impl std::fmt::LowerHex {
    struct Hex(Vec<u8>);
    impl std::fmt::LowerHex for Hex {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
    use sha2::Digest as _;
    Hex(sha2::Sha256::digest(text).to_vec())
}
