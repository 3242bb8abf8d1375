//! Rows of kvpress: their layout and scores, and each task of a file as a task of its own.

use super::tests::{file, open, usage_error};
use super::*;
use crate::metrics::Metric;
use crate::resolve;
use crate::ruler::testing::{Words, example};
use spattn_base::error::UsageError;

/// The prompt that kvpress' pipeline builds from a row (`kvpress/pipeline.py`): context and question in the user's turn; then, for a model
/// without a chat template, a line break; then the answer prefix. Rows of RULER's tasks keep RULER's prompt, which has no line break there.
#[test]
fn rows_of_kvpress_are_laid_out_as_its_pipeline_does() {
    let row = |task: &str| {
        format!(
            r#"{{"context": "C\n\n", "question": "Question: q?\n", "answer_prefix": "Answer:", "answers": ["blue"], "all_classes": ["blue"], "task": "{task}", "max_new_tokens": 52}}"#
        )
    };
    for (task, options, plain) in [
        ("hotpotqa", "", "C\n\nQuestion: q?\n\nAnswer:"),
        ("trec", "", "C\n\nQuestion: q?\n\nAnswer:"),
        ("hotpotqa", ":layout=ruler", "C\n\nQuestion: q?\nAnswer:"),
        ("qa_1", "", "C\n\nQuestion: q?\nAnswer:"),
        ("qa_1", ":layout=kvpress", "C\n\nQuestion: q?\n\nAnswer:"),
    ] {
        let (_dir, name) = file(&row(task));
        let e = open(&format!("{name}{options}")).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!(format!("{}{}", e.user_turn(), e.answer_start(false)), plain, "{task}{options}");
        assert_eq!(e.answer_start(true), "Answer:", "{task}{options}");
        assert_eq!(e.max_new_tokens, 52);
    }
    let (_dir, name) = file(&row("trec"));
    let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!((e.score("red\nblue"), e.score("blue\nred"), e.all_classes.len()), (0.0, 1.0, 1));
    assert!(open(&format!("{name}:layout=html")).err().unwrap().to_string().contains("layout takes ruler or kvpress"));
    let two = r#"{"context": "x", "question": "y", "input": "z", "answer_prefix": "", "answer": ["z"], "task": "vt"}"#;
    assert!(usage_error(two, "").what.contains("`question` and `input` mean the same, but differ"));
}

#[test]
fn a_file_of_several_tasks_is_a_task_of_each() {
    let row = |task: &str, number: usize| {
        format!(
            r#"{{"context": "C{number}.", "question": "q", "answer_prefix": "", "answer": ["a"], "task": "{task}"}}"#
        )
    };
    let (_dir, name) = file(&[row("vt", 0), row("qa_1", 1), row("vt", 2)].join("\n"));
    let tasks = resolve(&[format!("{name}:task=each")], &TaskOptions::default()).unwrap();
    let of = |task: &dyn Task| (task.name().to_owned(), task.available());
    assert_eq!(
        tasks.iter().map(|task| of(&**task)).collect::<Vec<_>>(),
        [("jsonl:rows/vt".to_owned(), Some(2)), ("jsonl:rows/qa_1".to_owned(), Some(1))]
    );
    assert_eq!(tasks[0].example(0, 1, 0, &Words).unwrap().context, "C2.");
    assert_eq!(tasks[0].notes(), Vec::<String>::new());
    let one = open(&format!("{name}:task=qa_1,max_new_tokens=5")).unwrap();
    assert_eq!((one.available(), one.example(0, 0, 0, &Words).unwrap().max_new_tokens), (Some(1), 5));
    assert_ne!(one.inputs(), open(&name).unwrap().inputs());
    let error = open(&format!("{name}:task=cwe")).err().unwrap();
    let error: UsageError = error.downcast().unwrap();
    assert!(error.what.ends_with("no row has the task `cwe`"), "{error}");
    assert_eq!(error.hint.as_deref(), Some("its tasks: vt, qa_1"));
    let (_dir, name) = file(r#"{"context": "C.", "question": "q", "answer": "a"}"#);
    let error: UsageError = open(&format!("{name}:task=each")).err().unwrap().downcast().unwrap();
    assert_eq!(error.hint.as_deref(), Some("no row has a field `task`"));
}

/// kvpress' three parts of a RULER prompt give the same prompt, byte for byte, and the same score.
#[test]
fn rows_of_kvpress_are_rulers_in_parts() {
    for name in ["ruler/niah_multivalue", "ruler/vt", "ruler/cwe", "ruler/fwe", "ruler/niah_single_2"] {
        let e = example(name, 2048, 1);
        let of_kvpress = serde_json::json!({
            "context": e.context, "question": e.question, "answer_prefix": e.answer_prefix, "answer": e.references,
            "task": name.strip_prefix("ruler/"), "max_new_tokens": e.max_new_tokens, "context_length": 2048,
        });
        let (_dir, path) = file(&of_kvpress.to_string());
        let row = open(&path).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((row.user_turn(), row.answer_prefix), (e.user_turn(), e.answer_prefix), "{name}");
        assert_eq!((row.metric, row.max_new_tokens, row.references), (e.metric, e.max_new_tokens, e.references));
    }
}

#[test]
fn rows_of_kvpress_are_never_read_as_needles() {
    let row =
        |rest: &str| format!(r#"{{"context": "x", "question": "y", "answer_prefix": "", "answer": ["z"]{rest}}}"#);
    for (rest, what) in [
        (
            r#", "task": "longbook_sum_eng", "max_new_tokens": 40"#,
            "the field `task` is `longbook_sum_eng`, which kvpress scores in a way that is not known here",
        ),
        (r#", "max_new_tokens": 40"#, "the field `task` is missing"),
        (r#", "task": "vt", "max_new_tokens": "40""#, "the field `max_new_tokens` is not a whole number"),
    ] {
        let error = usage_error(&row(rest), "");
        assert!(error.what.contains(what) && error.hint.unwrap().contains("metric="), "{}", error.what);
    }
    let (_dir, name) = file(&row(r#", "task": "longbook_sum_eng", "max_new_tokens": 40"#));
    let e = open(&format!("{name}:metric=qa_f1")).unwrap().example(0, 0, 0, &Words).unwrap();
    assert_eq!((e.user_turn().as_str(), e.metric, e.max_new_tokens), ("xy", Metric::QaF1, 40));
    let (_dir, name) = file(&[row(r#", "task": "vt""#), row(r#", "task": "qa_1""#)].join("\n"));
    let task = open(&name).unwrap();
    let of = |index| task.example(0, index, 0, &Words).map(|e| (e.metric, e.max_new_tokens)).unwrap();
    assert_eq!([of(0), of(1)], [(Metric::StringMatchAll, 30), (Metric::StringMatchPart, 32)]);
    assert!(
        task.notes()[0].contains(
            "2 tasks (qa_1, vt) and 2 metrics (string_match_all, string_match_part) are averaged to one score"
        ),
        "{:?}",
        task.notes()
    );
}
