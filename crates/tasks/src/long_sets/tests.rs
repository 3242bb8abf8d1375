use super::*;
use crate::resolve;
use crate::ruler::testing::Words;
use serde_json::json;

/// A folder with one file, and the tasks that a name stands for.
fn open(name: &str, file: &str, text: &str, skip_bad: bool) -> Result<Vec<Box<dyn Task>>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
    // Rows are read later, so the folder has to stay.
    let made = resolve(&[name.to_owned()], &options);
    std::mem::forget(dir);
    made
}

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompts>,
}

/// The prompts that the published programs make of a row.
#[derive(Deserialize)]
struct GoldenPrompts {
    task: String,
    row: Value,
    prompts: Vec<String>,
    answers: Vec<Vec<String>>,
    max_new_tokens: usize,
}

#[test]
fn prompts_and_answers_are_the_published_ones() {
    let golden: Golden = serde_json::from_str(include_str!("../../../../tests/golden/long_sets.json")).unwrap();
    for case in &golden.prompts {
        let name = &case.task;
        let (group, set) = name.split_once('/').unwrap_or((name, ""));
        let file = match group {
            "infinitebench" | "loogle" => format!("{group}/{set}.jsonl"),
            "zeroscrolls" => format!("zeroscrolls/{set}/validation.jsonl"),
            "scbench" | "scbench_multi_turn" => {
                // A mixed set is a task for each kind of
                // question.
                let mixed = ["summary_with_needles", "repoqa_and_kv"].into_iter().find(|mixed| set.starts_with(mixed));
                format!("scbench/scbench_{}.jsonl", mixed.unwrap_or(set))
            }
            _ => "longbench_v2/data.json".to_owned(),
        };
        let text = if file.ends_with("json") { json!([case.row]) } else { case.row.clone() };
        let task = open(name, &file, &text.to_string(), false).unwrap().remove(0);
        assert_eq!(task.available(), Some(case.prompts.len()), "{name}");
        for (index, (prompt, answers)) in case.prompts.iter().zip(&case.answers).enumerate() {
            let example = task.example(0, index, 0, &Words).unwrap();
            assert_eq!((&example.user_turn(), &example.references), (prompt, answers), "{name}");
            assert_eq!(example.max_new_tokens, case.max_new_tokens, "{name}");
            assert!(!example.question.is_empty() && !example.question.starts_with('\n'), "{name}");
            assert_eq!(example.rules.plain, group != "scbench" && !group.starts_with("longbench_v2"), "{name}");
        }
    }
    for (_, definition) in definitions() {
        assert!(golden.prompts.iter().any(|case| case.task == definition.name), "{}", definition.name);
    }
}

fn question(id: usize, length: &str, difficulty: &str) -> Value {
    json!({
        "_id": id.to_string(), "domain": "x", "sub_domain": "y", "difficulty": difficulty, "length": length,
        "question": format!("Q{id}?"), "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d",
        "answer": "C", "context": "Same text.",
    })
}

#[test]
fn parts_have_the_rows_of_the_published_table() {
    let rows = json!([
        question(0, "short", "easy"),
        question(1, "medium", "hard"),
        question(2, "short", "hard"),
        question(3, "long", "easy"),
    ]);
    let counts = |name: &str, text: &str| -> Vec<(String, usize)> {
        let file = if text.starts_with('[') { "data.json" } else { "longbench_v2/data.jsonl" };
        let tasks = open(name, file, text, false).unwrap();
        tasks.iter().map(|t| (t.name().to_owned(), t.available().unwrap())).collect()
    };
    let text = rows.to_string();
    assert_eq!(counts("longbench_v2", &text), [("longbench_v2".to_owned(), 4)]);
    let named = |parts: &[(&str, usize)]| -> Vec<(String, usize)> {
        parts.iter().map(|(part, count)| (format!("longbench_v2/{part}"), *count)).collect()
    };
    assert_eq!(counts("longbench_v2/by_length", &text), named(&[("short", 2), ("medium", 1), ("long", 1)]));
    assert_eq!(counts("longbench_v2/by_difficulty", &text), named(&[("easy", 2), ("hard", 2)]));
    let lines: Vec<String> = rows.as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(counts("longbench_v2/hard", &lines.join("\n")), named(&[("hard", 2)]));
    let only_easy = json!([question(0, "short", "easy")]).to_string();
    let error = open("longbench_v2/hard", "data.json", &only_easy, false).err().unwrap().to_string();
    assert!(error.contains("data.json has no row of this group"), "{error}");
}

#[test]
fn rows_with_the_same_text_are_asked_together() {
    let task = open(
        "longbench_v2",
        "data.json",
        &json!([question(0, "short", "easy"), question(1, "x", "y")]).to_string(),
        false,
    );
    let task = task.unwrap().remove(0);
    assert_eq!((task.context_of(1), task.is_cut(), task.is_sized()), (0, true, false));
    let example = task.example(4096, 1, 0, &Words).unwrap();
    assert_eq!((example.length, example.references), (4096, vec!["C".to_owned()]));
    let turns = json!([{"input": "a?", "answer": "1"}, {"input": "b?", "answer": "2"}]);
    let row = |context: &str| json!({"context": context, "multi_turns": turns}).to_string();
    let text = [row("One."), row("Two."), row("One.")].join("\n");
    for name in ["scbench/kv", "scbench_multi_turn/kv"] {
        let task = open(name, "scbench/scbench_kv.jsonl", &text, false).unwrap().remove(0);
        assert_eq!((0..6).map(|i| task.context_of(i)).collect::<Vec<_>>(), [0, 0, 2, 2, 0, 0], "{name}");
    }
}

/// `pred.py` of LongBench v2 finds only the letters A to D.
#[test]
fn questions_of_nothing_are_refused_and_answers_that_none_can_give_noted() {
    let with = |name: &str, value: &str| {
        let mut row = question(0, "short", "easy");
        row[name] = value.into();
        open("longbench_v2", "data.json", &json!([row]).to_string(), false)
    };
    for name in ["context", "question", "choice_B"] {
        let error = with(name, " ").err().unwrap().to_string();
        assert!(error.ends_with(&format!("the field `{name}` is empty or white space")), "{error}");
    }
    for (answer, notes) in [("C", 0), ("c", 1), ("E", 1), ("1", 1)] {
        let told = with("answer", answer).unwrap().remove(0).notes();
        assert_eq!(told.len(), notes, "{answer}: {told:?}");
    }
    let row = r#"{"context": "x", "multi_turns": [{"input": " ", "answer": "1"}]}"#;
    let error = open("scbench/kv", "scbench/scbench_kv.jsonl", row, false).err().unwrap().to_string();
    assert!(error.ends_with("the question is empty or white space"), "{error}");
    let row = r#"{"context": "x", "input": "", "answer": ["12345"]}"#;
    let error = open("infinitebench/passkey", "infinitebench/passkey.jsonl", row, false).err().unwrap().to_string();
    assert!(error.ends_with("the field `input` is empty or white space"), "{error}");
}

#[test]
fn malformed_rows_are_named_with_what_they_lack() {
    let good = r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#;
    for (bad, what) in [
        (r#"{"context": "x", "input": "Q?", "answer": ["e"], "options": ["a", "b", "c", "d"]}"#, "none of the options"),
        (r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b"]}"#, "a field is missing"),
        (r#"{"input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#, "a field is missing"),
        (
            r#"{"context": " ", "input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#,
            "the field `context` is empty or white space",
        ),
        (
            r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b", null, "d"]}"#,
            "a field is none, not text",
        ),
        ("{", "not JSON"),
    ] {
        let text = format!("{good}\n{bad}\n");
        let file = "infinitebench/code_debug.jsonl";
        let error = open("infinitebench/code_debug", file, &text, false).err().unwrap();
        let error = error.downcast::<UsageError>().unwrap();
        assert!(error.what.contains("code_debug.jsonl:2: ") && error.what.contains(what), "{error}");
        let task = open("infinitebench/code_debug", file, &text, true).unwrap().remove(0);
        assert_eq!((task.available(), task.notes().len()), (Some(1), 1));
    }
    let options = TaskOptions::default();
    let error = resolve(&["infinitebench/passkey".to_owned()], &options).err().unwrap();
    let hint = error.downcast::<UsageError>().unwrap().hint.unwrap();
    assert!(
        hint.contains("infinitebench/passkey.jsonl") && hint.contains("hub:xinrongzhang2022/InfiniteBench"),
        "{hint}"
    );
    let none = r#"{"context": "x", "multi_turns": []}"#;
    let error = open("scbench/kv", "scbench_kv.jsonl", none, false).err().unwrap().to_string();
    assert!(error.contains("there is no question"), "{error}");
}

#[test]
fn groups_have_their_tasks() {
    let count = |name: &str| LongSets.expand(name, &TaskOptions::default()).map(|members| members.len());
    let names = [
        "infinitebench",
        "scbench",
        "scbench_multi_turn",
        "longbench_v2",
        "longbench_v2/by_length",
        "zeroscrolls",
        "loogle",
        "nothing",
    ];
    assert_eq!(names.map(count), [Some(12), Some(12), Some(12), Some(1), Some(3), Some(10), Some(4), None]);
    let groups = LongSets.groups();
    assert_eq!(
        groups,
        [
            "longbench_v2/by_length",
            "longbench_v2/by_difficulty",
            "infinitebench",
            "scbench",
            "scbench_multi_turn",
            "zeroscrolls",
            "loogle"
        ]
    );
}
