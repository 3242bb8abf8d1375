use super::ruler_prompt::last_question;
use super::*;
use crate::metrics::Metric;
use crate::ruler::testing::{Words, example, shared_data};
use crate::{catalog, resolve};
use proptest::prelude::*;
use serde_json::Value;
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

pub(super) fn file(rows: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, rows).unwrap();
    (dir, format!("jsonl:{}", path.display()))
}

pub(super) fn open(name: &str) -> Result<Box<dyn Task>> {
    Ok(resolve(&[name.to_owned()], &TaskOptions::default())?.remove(0))
}

pub(super) fn usage_error(rows: &str, options: &str) -> UsageError {
    let (_dir, name) = file(rows);
    open(&format!("{name}{options}")).err().expect("an error").downcast().unwrap()
}

#[test]
fn generated_examples_come_back_as_they_were() {
    let without = ["ruler/qa_1", "ruler/qa_2"];
    let made = |t: &TaskInfo| t.name.starts_with("ruler") && !without.contains(&t.name.as_str());
    let tasks: Vec<TaskInfo> = catalog().into_iter().filter(made).collect();
    assert_eq!(tasks.len(), 21);
    for (info, index) in tasks.iter().flat_map(|info| (0..3).map(move |index| (info, index))) {
        let e = example(&info.name, 2048, index);
        let user = e.user_turn();
        let newer =
            serde_json::json!({"index": 0, "input": user, "outputs": e.references, "answer_prefix": e.answer_prefix});
        let older = serde_json::json!({"index": 9, "input": format!("{user}{}", e.answer_prefix), "outputs": e.references, "others": {}});
        let (_dir, name) = file(&format!("{newer}\n\n{older}\n"));
        let task = open(&name).unwrap();
        assert_eq!((task.name(), task.available(), task.is_sized()), ("jsonl:rows", Some(2), false));
        for index in 0..2 {
            let row = task.example(0, index, 0, &Words).unwrap();
            assert_eq!(
                (row.context, row.question, row.answer_prefix),
                (e.context.clone(), e.question.clone(), e.answer_prefix.clone()),
                "{}",
                info.name
            );
            assert_eq!(
                (row.metric, row.max_new_tokens, row.references),
                (e.metric, e.max_new_tokens, e.references.clone())
            );
            assert_eq!((row.length, row.index, row.source.as_str()), (0, index, "rows.jsonl"));
        }
    }
}

#[test]
fn chat_markup_before_the_prefix_stays_with_the_question() {
    let row = serde_json::json!({"outputs": ["7"], "input": "[INST] A text.\nWhat is the special magic number for a-b mentioned in the provided text? [/INST] The special magic number for a-b mentioned in the provided text is"});
    let (_dir, name) = file(&row.to_string());
    let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!(e.context, "[INST] A text.\n");
    assert!(e.question.ends_with("text? [/INST]"));
    assert_eq!(e.answer_prefix, " The special magic number for a-b mentioned in the provided text is");
}

#[test]
fn a_question_about_answers_is_not_cut() {
    let ask = "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: ";
    let row = |tail: &str| {
        serde_json::json!({"outputs": ["x"], "input": format!("Documents\n\n{ask}What does Answer: mean?{tail}")})
            .to_string()
    };
    let (_dir, name) = file(&format!("{}\n{}", row(""), row(" Answer:")));
    let task = open(&name).unwrap();
    for (index, prefix) in [(0, ""), (1, " Answer:")] {
        let e = task.example(0, index, 0, &Words).unwrap();
        assert_eq!((e.context.as_str(), e.answer_prefix.as_str()), ("Documents\n\n", prefix));
        assert_eq!(e.question, format!("{ask}What does Answer: mean?"));
    }
}

#[test]
fn prompts_of_unknown_shape_need_a_metric() {
    let row = r#"{"input": "Some text.\nQuestion: why?\nThink.", "outputs": ["x", 3]}"#;
    let error = usage_error(row, "");
    assert!(
        error.what.ends_with("rows.jsonl:1: the prompt belongs to no known task, so its metric is unknown"),
        "{error}"
    );
    assert!(error.hint.unwrap().contains("metric=string_match_all"));
    let (_dir, name) = file(row);
    let task = open(&format!("{name}:metric=string_match_part,max_new_tokens=64")).unwrap();
    let e = task.example(0, 0, 0, &Words).unwrap();
    assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchPart, 64));
    assert_eq!((e.context.as_str(), e.question.as_str()), ("Some text.\n", "Question: why?\nThink."));
    assert_eq!(e.references, ["x", "3"]);
}

#[test]
fn without_any_mark_the_last_line_is_the_question() {
    assert_eq!(last_question("a\nb\nc"), 4);
    assert_eq!(last_question("a\nb\n"), 2);
    assert_eq!(last_question("abc"), 0);
}

#[test]
fn malformed_rows_are_named_with_their_line() {
    let good = r#"{"input": "x\nQuestion: What are the 10 most common words in the above list?", "outputs": ["a"]}"#;
    for (bad, what) in [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (r#"{"outputs": ["a"]}"#, "the field `input` is missing"),
        (r#"{"input": 3, "outputs": ["a"]}"#, "the field `input` is not text"),
        (r#"{"input": "x"}"#, "the field `outputs` is missing"),
        (r#"{"question": "x", "answers": ["y"]}"#, "no known kind of row has these fields: `question`, `answers`"),
        ("{}", "no known kind of row"),
        (r#"{"input": "x", "outputs": "a"}"#, "the field `outputs` is not a list"),
        (r#"{"input": "x", "outputs": []}"#, "the field `outputs` is empty"),
        (r#"{"input": "x", "outputs": [""]}"#, "an empty text"),
        (r#"{"context": "x", "input": "y", "answers": ["z"]}"#, "unknown LongBench data set `rows`"),
        (r#"{"context": "x", "input": "y", "answers": "z", "dataset": "qasper"}"#, "the field `answers` is not a list"),
        (r#"{"context": "x", "question": "y"}"#, "the field `answers` is missing"),
    ] {
        let error = usage_error(&format!("{good}\n\n{bad}\n"), "");
        assert!(error.what.contains("rows.jsonl:3: ") && error.what.contains(what), "{error}");
    }
    assert!(usage_error("\n", "").what.contains("no row"));
}

#[test]
fn longbench_rows_are_run_with_their_sets_prompt() {
    let row = |set: &str| serde_json::json!({"context": "x", "input": "Q?", "answers": ["A"], "all_classes": ["A", "B"], "dataset": set});
    let (_dir, name) = file(&format!("{}\n{}\n", row("qasper_e"), row("trec")));
    let task = open(&name).unwrap();
    assert!(task.is_cut());
    let (first, second) = (task.example(7, 0, 0, &Words).unwrap(), task.example(7, 1, 0, &Words).unwrap());
    assert!(first.context.starts_with("You are given a scientific article"));
    assert_eq!((first.metric, first.max_new_tokens, first.length), (Metric::QaF1, 128, 7));
    assert_eq!(
        second.user_turn(),
        "Please determine the type of the question below. Here are some examples of questions.\n\nx\nQ?"
    );
    assert!(second.rules.plain && second.rules.first_line && !first.rules.plain);
    assert_eq!((second.score("A\nB"), second.score("A B")), (1.0, 0.5));
}

#[test]
fn a_needle_is_found_in_its_context() {
    let row = r#"{"context": "Hay. The key is 7. Hay.", "question": "What is the key?", "answer": ["7", "seven"], "depth": 50}"#;
    let (_dir, name) = file(row);
    let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!(e.user_turn(), "Hay. The key is 7. Hay.\n\nWhat is the key?");
    assert_eq!((e.metric, e.references.len()), (Metric::StringMatchPart, 2));
}

#[test]
fn answers_of_nothing_are_refused_in_every_kind_of_row() {
    let (any, number) = (":metric=string_match_part,max_new_tokens=8", ":metric=first_number,max_new_tokens=8");
    for (row, options) in [
        (r#"{"input": "x", "outputs": ["\n"]}"#, any),
        (r#"{"input": "x", "outputs": ["", "y"]}"#, any),
        (r#"{"context": "x", "question": "y", "answer": "  "}"#, ""),
        (r#"{"context": "x", "question": "y", "answers": ["z", " "]}"#, ""),
        (
            r#"{"context": "x", "question": "y", "answer": [" "], "answer_prefix": "", "task": "vt", "max_new_tokens": 9}"#,
            "",
        ),
        (r#"{"context": "x", "input": "y", "answers": [""], "dataset": "hotpotqa"}"#, ""),
        (r#"{"context": "x", "input": "y", "answers": [" "], "dataset": "hotpotqa"}"#, any),
        (r#"{"context": "x", "turns": [{"question": "a", "answers": [" "]}]}"#, any),
        (r#"{"ordered_kv_records": [["a", " "]], "key": "a", "value": " "}"#, ""),
        (r#"{"document": "x", "summary": [" "]}"#, ""),
        (r#"{"input": "x", "outputs": ["seven"]}"#, number),
        (r#"{"context": "x", "question": "y", "answer": "A"}"#, ":metric=qa_f1,max_new_tokens=8"),
        (
            r#"{"context": "x", "input": "y", "answers": ["The"], "dataset": "trec", "all_classes": ["The"]}"#,
            ":metric=qa_f1",
        ),
    ] {
        let (_dir, name) = file(&format!("{row}\n"));
        let error: UsageError = open(&format!("{name}{options}")).err().expect(row).downcast().unwrap();
        assert!(error.what.contains("rows.jsonl:1: "), "{row}: {error}");
    }
}

#[test]
fn a_published_row_without_words_is_scored_as_published_and_noted() {
    let row = r#"{"context": "x", "input": "y", "answers": ["The The"], "dataset": "hotpotqa"}"#;
    let (_dir, name) = file(row);
    let task = open(&name).unwrap();
    assert!(task.notes()[0].contains("1 row has answers that `qa_f1` ignores"), "{:?}", task.notes());
    assert_eq!(task.example(0, 0, 0, &Words).unwrap().score("The The"), 0.0);
}

#[test]
fn prompts_of_nothing_are_refused() {
    for row in [
        r#"{"input": "", "outputs": ["x"]}"#,
        r#"{"input": " \n", "outputs": ["x"], "answer_prefix": "It is"}"#,
        r#"{"context": "", "question": " ", "answer": "x"}"#,
        r#"{"context": "", "question": "", "answer": "x", "answer_prefix": "", "task": "vt", "max_new_tokens": 3}"#,
    ] {
        let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
        assert!(error.what.ends_with("rows.jsonl:1: the prompt is empty or white space"), "{error}");
    }
}

#[test]
fn rows_of_several_metrics_in_one_mean_are_noted_in_every_kind_of_row() {
    let longbench = |set: &str| {
        format!(r#"{{"context": "x", "input": "y", "answers": ["z"], "all_classes": ["z"], "dataset": "{set}"}}"#)
    };
    let ruler = |question: &str| serde_json::json!({"input": format!("x\n{question}"), "outputs": ["z"]}).to_string();
    let vt = ruler("Question: Find all variables that are assigned the value 1 in the text above.");
    let qa = ruler(
        "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: a?",
    );
    let needle = r#"{"context": "x", "question": "y", "answer": "z"}"#.to_owned();
    for (rows, note) in [
        (
            [longbench("trec"), longbench("hotpotqa")],
            "2 tasks (hotpotqa, trec) and 2 metrics (classification, qa_f1) are averaged to one score; split the file",
        ),
        (
            [longbench("qasper"), longbench("hotpotqa")],
            "2 tasks (hotpotqa, qasper) are averaged to one score; split the file",
        ),
        ([vt.clone(), qa], "2 metrics (string_match_all, string_match_part) are averaged to one score; split the file"),
        (
            [needle, vt.clone()],
            "2 metrics (string_match_all, string_match_part) are averaged to one score; split the file",
        ),
    ] {
        let (_dir, name) = file(&rows.join("\n"));
        let notes = open(&name).unwrap().notes();
        assert!(notes.len() == 1 && notes[0].contains(note), "{note}: {notes:?}");
        let notes = open(&format!("{name}:metric=rouge_l,max_new_tokens=8")).unwrap().notes();
        assert!(notes.iter().all(|note| !note.contains("metrics")), "{notes:?}");
    }
    let (_dir, name) = file(&[vt.clone(), vt].join("\n"));
    assert_eq!(open(&name).unwrap().notes(), Vec::<String>::new());
}

#[test]
fn rows_that_can_be_read_in_two_ways_are_refused() {
    for (row, what) in [
        (
            r#"{"context": "x", "question": "y", "answer": "z", "answers": ["w"]}"#,
            "`answer` and `answers` mean the same, but differ",
        ),
        (
            r#"{"context": "x", "question": "y", "answer": "z", "outputs": ["w"]}"#,
            "`answer` and `outputs` mean the same, but differ",
        ),
        (r#"{"input": "x", "outputs": ["z"], "answer": "w"}"#, "`answer` and `outputs` mean the same, but differ"),
        (
            r#"{"context": "x", "input": "y", "answers": ["z"], "answer": "w", "dataset": "hotpotqa"}"#,
            "`answer` and `answers` mean the same, but differ",
        ),
        (
            r#"{"context": "x", "question": "y", "input": "w", "answers": ["z"]}"#,
            "`question` and `input` mean the same, but differ",
        ),
        (r#"{"context": "x", "input": "y", "outputs": ["z"]}"#, "the field `context` is not part of `input`"),
        (r#"{"question": "x", "input": "y", "outputs": ["z"]}"#, "the field `question` is not part of `input`"),
    ] {
        let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
        assert!(error.what.contains("rows.jsonl:1: ") && error.what.contains(what), "{error}");
        assert!(error.hint.is_some());
    }
    for row in [
        r#"{"context": "x", "question": "y", "answer": "z", "answers": ["z"]}"#,
        r#"{"input": "x y", "outputs": ["z"], "answer": "z", "context": "x"}"#,
    ] {
        let (_dir, name) = file(row);
        assert!(open(&format!("{name}:metric=string_match_all,max_new_tokens=8")).is_ok(), "{row}");
    }
}

#[test]
fn an_answer_prefix_is_put_behind_a_prompt_once() {
    let ask = "x\nWhat is the special magic number for a-b mentioned in the provided text?";
    let prefix = " The special magic number for a-b mentioned in the provided text is";
    let row = |input: String, prefix: &str| {
        serde_json::json!({"input": input, "outputs": ["7"], "answer_prefix": prefix}).to_string()
    };
    let error = usage_error(&row(format!("{ask}{prefix}"), prefix), "");
    assert!(error.what.ends_with("the prompt ends with the text of `answer_prefix` already, which would be repeated"));
    for (input, prefix) in [(ask.to_owned(), prefix), (ask.to_owned(), " "), (format!("{ask}{prefix}"), "")] {
        let (_dir, name) = file(&row(input, prefix));
        assert!(open(&name).is_ok(), "{prefix}");
    }
}

#[test]
fn fields_that_belong_to_other_programs_prompts_are_noted() {
    let row = |rest: &str| format!(r#"{{"context": "x", "question": "y", "answer": "z"{rest}}}"#);
    for (rest, named) in [
        (r#", "options": ["z", "w"]"#, Some("`options`")),
        (r#", "instruction": "Be brief.", "system": "You help.""#, Some("`instruction`, `system`")),
        (r#", "options": [], "instruction": null, "system": " ", "id": 3, "depth": 50"#, None),
        (r#", "answer_prefix": "It is""#, None),
    ] {
        let (_dir, name) = file(&row(rest));
        let notes = open(&name).unwrap().notes();
        match named {
            None => assert_eq!(notes, Vec::<String>::new()),
            Some(named) => {
                assert!(notes[0].contains("fields that are ignored") && notes[0].contains(named), "{notes:?}")
            }
        }
    }
    let longbench =
        r#"{"context": "x", "input": "y", "answers": ["z"], "dataset": "qasper", "answer_prefix": "It is"}"#;
    let (_dir, name) = file(longbench);
    let note = open(&name).unwrap().notes().remove(0);
    assert!(note.contains("fields that are ignored") && note.contains("`answer_prefix`"), "{note}");
}

/// Rows as NVIDIA's `scripts/data/synthetic/*.py` write them, field by field: niah.py, then variable_tracking.py and the
/// others.
#[test]
fn rows_as_rulers_own_generator_writes_them_run_unchanged() {
    for name in ["ruler/niah_multivalue", "ruler/vt", "ruler/cwe", "ruler/fwe", "ruler/niah_single_2"] {
        let e = example(name, 2048, 1);
        let mut row = serde_json::json!({
            "index": 17, "input": e.user_turn(), "outputs": e.references, "length": 2001, "length_w_model_temp": 2009,
            "answer_prefix": e.answer_prefix,
        });
        if name.contains("niah") {
            row["token_position_answer"] = 1044.into();
        }
        let (_dir, path) = file(&format!("{row}\n"));
        let task = open(&path).unwrap();
        let read = task.example(0, 0, 0, &Words).unwrap();
        assert_eq!((read.user_turn(), read.answer_prefix), (e.user_turn(), e.answer_prefix), "{name}");
        assert_eq!((read.metric, read.references, task.notes().len()), (e.metric, e.references, 0), "{name}");
    }
}

#[test]
fn fields_that_are_null_are_said_to_be() {
    for (row, what) in [
        (r#"{"context": "x", "question": "y", "answer": null}"#, "the field `answer` is null"),
        (r#"{"context": "x", "question": "y", "answers": null}"#, "the field `answers` is null"),
        (r#"{"context": null, "question": "y", "answer": "z"}"#, "the field `context` is null"),
        (r#"{"input": "x", "outputs": null}"#, "the field `outputs` is null"),
        (r#"{"context": "x", "input": null, "answers": ["z"], "dataset": "qasper"}"#, "the field `input` is null"),
    ] {
        let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
        assert!(error.what.ends_with(what), "{error}");
    }
}

#[test]
fn a_list_in_a_text_is_no_answer_in_any_kind_of_row() {
    for row in [
        r#"{"context": "x", "question": "y", "answer": "['a', 'b']"}"#,
        r#"{"context": "x", "question": "y", "answers": "['a' 'b']"}"#,
        r#"{"context": "x", "question": "y", "answer": "['a']", "answer_prefix": "", "task": "vt"}"#,
        r#"{"context": "x", "turns": [{"question": "a", "answer": "[\"a\"]"}]}"#,
        r#"{"document": "x", "summary": "['a', 'b']"}"#,
    ] {
        let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
        assert!(error.what.contains("an answer is a list written as text"), "{error}");
    }
}

#[test]
fn rows_of_half_a_prompt_are_refused() {
    for (row, what) in [
        (r#"{"context": " ", "question": "y", "answer": "z"}"#, "the field `context` is empty or white space"),
        (r#"{"context": "x", "question": "", "answer": "z"}"#, "the field `question` is empty or white space"),
        (r#"{"context": "x", "input": " ", "answers": ["z"], "dataset": "qasper"}"#, "the field `input` is empty"),
        (r#"{"context": "", "input": "y", "answers": ["z"], "dataset": "lcc"}"#, "the field `context` is empty"),
        (r#"{"context": "x", "turns": [{"question": " ", "answer": "a"}]}"#, "there is no question"),
    ] {
        let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn classes_are_told_apart_and_an_answer_is_one() {
    let row =
        |classes: &str| format!(r#"{{"context": "x", "question": "y", "answer": "z", "all_classes": {classes}}}"#);
    for (classes, what) in [
        ("[]", "the field `all_classes` is empty"),
        ("[\"z\", \"\"]", "a name in `all_classes` is empty"),
        ("[\"z\", \"z\"]", "`all_classes` names \"z\" twice"),
        ("[\"w\"]", "no answer is one of `all_classes`"),
    ] {
        let error = usage_error(&row(classes), ":metric=classification");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn a_path_says_whether_rows_are_in_a_chat_template() {
    let (_dir, name) = file(r#"{"context": "x", "question": "y", "answer": "z"}"#);
    let rules = |options: &str| open(&format!("{name}{options}")).unwrap().example(0, 0, 0, &Words).unwrap().rules;
    for (options, plain, looked_at) in [("", false, true), (":chat=false", true, false), (":chat=true", false, false)] {
        let rules = rules(options);
        assert_eq!((rules.plain, rules.may_be_templated), (plain, looked_at), "{options}");
    }
    assert!(usage_error("{}", ":chat=no").what.contains("chat takes true or false, not `no`"));
}

#[test]
fn published_rows_have_answers_that_their_metric_compares() {
    let Some(data) = shared_data() else { return };
    let mut files = 0;
    for folder in ["longbench", "ruler_ready/4096", "kv_retrieval", "longeval_lines"] {
        for entry in std::fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                let task = open(&format!("jsonl:{}", path.display())).unwrap_or_else(|e| panic!("{e:#}"));
                assert_eq!(task.notes(), Vec::<String>::new(), "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files >= 16 + 1 + 2 + 3, "{files}");
}

#[test]
fn malformed_rows_can_be_left_out_and_are_noted() {
    let (_dir, name) = file("{\"input\": \"x\\nWhat is the special magic number for a?\", \"outputs\": [\"a\"]}\n{}\n");
    let options = TaskOptions { skip_bad: true, ..TaskOptions::default() };
    let task = resolve(std::slice::from_ref(&name), &options).unwrap().remove(0);
    assert_eq!(task.available(), Some(1));
    assert!(task.notes()[0].contains("1 malformed row is left out (line 2)"), "{:?}", task.notes());
    assert!(open(&name).is_err());
}

#[test]
fn wrong_options_and_paths_are_usage_errors() {
    let row = r#"{"input": "x", "outputs": ["a"]}"#;
    assert_eq!(usage_error(row, ":metrik=x").hint.as_deref(), Some("did you mean `metric`?"));
    assert!(usage_error(row, ":metric=nonsense").what.contains("unknown metric `nonsense`"));
    assert!(usage_error(row, ":max_new_tokens=0").what.contains("a number above 0"));
    let error: UsageError = open("jsonl:/nowhere.jsonl").err().unwrap().downcast().unwrap();
    assert!(error.what.contains("/nowhere.jsonl"));
}

#[test]
fn files_recorded_under_one_name_are_refused() {
    let row = r#"{"input": "x\nWhat is the special magic number for a?", "outputs": ["a"]}"#;
    let ((_one, first), (_two, second)) = (file(row), file(row));
    let error = resolve(&[first, second], &TaskOptions::default()).err().unwrap();
    assert_eq!(error.to_string(), "two files would both be recorded as `jsonl:rows`");
}

proptest! {
    /// Reading a row never panics.
    #[test]
    fn any_row_can_be_read(
        names in proptest::sample::subsequence(vec![
            "input", "outputs", "answer_prefix", "context", "question", "answer", "answers", "dataset", "all_classes",
            "ordered_kv_records", "key", "value", "length", "turns", "prompt", "correct_line", "expected_number", "report",
            "summary", "task", "max_new_tokens",
        ], 0..21),
        values in proptest::collection::vec(proptest::sample::select(vec![
            "null", "1", "-0.5", "\"\"", "\"x\"", "\"trec\"", "\"\\u00e9\\nQuestion: a?\"", "[]", "[\"x\", 1]", "[[\"x\", \"x\"]]", "{}", "true",
            "[{\"question\": \"q\", \"answer\": 1}]", "\"vt\"",
        ]), 21),
        options in proptest::sample::select(vec!["", ":metric=classification,max_new_tokens=1", ":metric=qa_f1_zh,max_new_tokens=4"]),
    ) {
        let fields: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let (_dir, name) = file(&format!("{{{}}}", fields.join(", ")));
        if let Ok(task) = open(&format!("{name}{options}")) {
            let e = task.example(0, 0, 0, &Words).unwrap();
            let score = e.score("x\n1 \u{e9} Question");
            prop_assert!((0.0..=1.0).contains(&score), "{}", score);
        }
    }

    /// Every prompt is run byte for byte.
    #[test]
    fn no_byte_of_a_prompt_is_lost(
        parts in proptest::collection::vec(0usize..8, 0..12),
        tail in ".{0,20}",
    ) {
        let pieces = [
            "\n", " Answer:", "Question: ", "\nQuestion: Find all variables that are assigned the value 1",
            " The special magic number", "\nWhat is the special magic number for x?", "é\u{2028}", "{context}",
        ];
        let input: String = parts.iter().map(|&i| pieces[i]).chain([tail.as_str()]).collect();
        prop_assume!(!is_blank(&input));
        let row = serde_json::json!({"input": input, "outputs": ["a"]});
        let (_dir, name) = file(&row.to_string());
        let task = open(&format!("{name}:metric=string_match_all,max_new_tokens=8")).unwrap();
        let e = task.example(0, 0, 0, &Words).unwrap();
        prop_assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), input);
    }
}

#[test]
fn key_value_rows_are_run_as_published() {
    let Some(data) = shared_data() else { return };
    let path = data.join("kv_retrieval/kv-retrieval-75_keys.jsonl");
    let task = open(&format!("jsonl:{}", path.display())).unwrap();
    assert_eq!(task.available(), Some(100));
    let e = task.example(0, 99, 0, &Words).unwrap();
    assert_eq!(e.context.matches("\": \"").count(), 75);
    let key = e.question.split('"').nth(1).unwrap();
    assert!(e.context.contains(&format!("\"{key}\": \"{}\"", e.references[0])));
    assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 100));
}

#[test]
fn lines_of_longeval_are_run_byte_for_byte() {
    let Some(data) = shared_data() else { return };
    let path = data.join("longeval_lines/200_lines.jsonl");
    let task = open(&format!("jsonl:{}", path.display())).unwrap();
    for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        let e = task.example(0, index, 0, &Words).unwrap();
        assert_eq!(e.user_turn(), row["prompt"].as_str().unwrap());
        assert!(e.question.starts_with("Now the record is over.") && e.context.contains(&e.references[0]));
        assert_eq!((e.metric, e.max_new_tokens, e.answer_prefix.as_str()), (Metric::LastNumber, 100, ""));
    }
}

#[test]
fn questions_on_one_context_are_examples_that_say_so() {
    let rows = [
        r#"{"context": "One.", "turns": [{"question": "a?", "answers": ["1"]}, {"question": "b?", "answers": ["2"]}]}"#,
        r#"{"context": "Two.", "multi_turns": [{"input": "c?", "answer": "3"}]}"#,
        r#"{"context": "One.", "turns": [{"question": "d?", "answers": ["4"]}]}"#,
    ];
    let (_dir, name) = file(&rows.join("\n"));
    assert!(open(&name).err().unwrap().to_string().contains("rows.jsonl:1: the prompt belongs to no known task"));
    let task = open(&format!("{name}:metric=qa_f1,max_new_tokens=8")).unwrap();
    assert_eq!((task.available(), task.cells()), (Some(4), 1));
    assert_eq!([0, 1, 2, 3].map(|i| task.context_of(i)), [0, 0, 2, 0]);
    let turns: Vec<String> = (0..4).map(|i| task.example(0, i, 0, &Words).unwrap().user_turn()).collect();
    assert_eq!(turns, ["One.\n\na?", "One.\n\nb?", "Two.\n\nc?", "One.\n\nd?"]);
}

#[test]
fn summaries_are_scored_by_three_kinds_of_rouge() {
    let (_dir, name) = file(r#"{"report": "A long text.", "summary": "A text."}"#);
    let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!((e.metric, e.also.as_slice()), (Metric::RougeL, &[Metric::Rouge1, Metric::Rouge2][..]));
    let e = open(&format!("{name}:metric=rouge_1,max_new_tokens=2048")).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!((e.metric, e.max_new_tokens), (Metric::Rouge1, 2048));
    assert_eq!(e.also, [Metric::RougeL, Metric::Rouge2]);
}

#[test]
fn a_row_with_a_malformed_question_is_left_out_as_a_whole() {
    let rows = [
        r#"{"context": "One.", "turns": [{"question": "a?", "answers": ["1"]}, {"question": "b?"}]}"#,
        r#"{"context": "Two.", "turns": [{"question": "c?", "answers": ["3"]}, {"question": "d?", "answers": ["4"]}]}"#,
    ];
    let (_dir, name) = file(&rows.join("\n"));
    let name = format!("{name}:metric=qa_f1,max_new_tokens=8");
    assert!(open(&name).is_err());
    let options = TaskOptions { skip_bad: true, ..TaskOptions::default() };
    let task = resolve(&[name], &options).unwrap().remove(0);
    assert_eq!((task.available(), task.context_of(1)), (Some(2), 0));
    assert_eq!(task.example(0, 1, 0, &Words).unwrap().user_turn(), "Two.\n\nd?");
    assert!(task.example(0, 2, 0, &Words).is_err());
}

#[test]
fn a_published_file_is_run_byte_for_byte() {
    let Some(data) = shared_data() else { return };
    let path = data.join("ruler_ready/4096/niah_multikey_3.jsonl");
    let task = open(&format!("jsonl:{}", path.display())).unwrap();
    assert_eq!((task.name(), task.available()), ("jsonl:niah_multikey_3", Some(100)));
    for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        let e = task.example(0, index, 0, &Words).unwrap();
        assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), row["input"].as_str().unwrap());
        assert!(e.question.starts_with("What is the special magic uuid for ") && e.question.ends_with("text?"));
        assert!(e.answer_prefix.starts_with(" The special magic uuid for ") && e.answer_prefix.ends_with(" is"));
        assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 128));
    }
}
