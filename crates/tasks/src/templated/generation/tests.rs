use super::*;
use crate::Family;
use crate::ruler::testing::Words;

fn task(name: &str, file: &str, text: &str, skip_bad: bool) -> Result<Box<dyn Task>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
    GENERATION.make(name, &options)
}

#[test]
fn sums_come_after_eight_examples() {
    let row = r#"{"question": "How many?", "answer": "Three and four.\n#### 1,234 "}"#;
    let task = task("gen/gsm8k_cot", "gsm8k/test.jsonl", row, false).unwrap();
    let example = task.example(0, 0, 0, &Words).unwrap();
    assert_eq!(example.context.matches("\nA: ").count(), 8);
    assert!(example.context.starts_with("Q: There are 15 trees in the grove. Grove workers"));
    assert!(example.context.ends_with("23 - 15 is 8. The answer is 8.\n\n"));
    assert_eq!(example.question, "Q: How many?\nA:");
    assert_eq!(example.references, ["1,234"]);
    assert_eq!(example.score(" It is 1000 + 234. The answer is 1234.\n\nWell."), 1.0);
    assert_eq!(example.rules.until, ["Q:", "</s>", "<|im_end|>"]);
}

/// GSM8K's answers follow `####`; without it, lm-eval compares with the whole text, which no prediction equals.
#[test]
fn sums_whose_answer_is_not_marked_are_refused() {
    for name in ["gen/gsm8k_cot", "gen/gsm8k:shots=0"] {
        let row = r#"{"question": "How many?", "answer": "Three and four is 7"}"#;
        let error = task(name, "gsm8k/test.jsonl", row, false).err().unwrap().to_string();
        assert!(error.contains("test.jsonl:1: there is no `####` in the text"), "{error}");
        for (row, said) in [
            (r#"{"question": "a", "answer": "b #### "}"#, "an answer is empty or white space"),
            (r#"{"question": " ", "answer": "b #### 7"}"#, "the field `question` is empty or white space"),
            (r#"{"question": ["a"], "answer": "b #### 7"}"#, "a field is sequence, not text"),
            (r#"{"question": null, "answer": "b #### 7"}"#, "a field is none, not text"),
        ] {
            let error = task(name, "gsm8k/test.jsonl", row, false).err().unwrap().to_string();
            assert!(error.contains("test.jsonl:1: ") && error.contains(said), "{error}");
        }
        let notes = |answer: &str| {
            let row = format!(r#"{{"question": "a", "answer": "b #### {answer}"}}"#);
            task(name, "gsm8k/test.jsonl", &row, false).unwrap().notes()
        };
        assert_eq!(notes("1,234"), Vec::<String>::new());
        for answer in ["seven", "7 apples"] {
            assert!(notes(answer)[0].contains("1 row has answers that"), "{:?}", notes(answer));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("gsm8k")).unwrap();
    let row = |answer: &str| format!("{{\"question\": \"q\", \"answer\": \"{answer}\"}}\n");
    std::fs::write(dir.path().join("gsm8k/test.jsonl"), row("#### 7")).unwrap();
    std::fs::write(dir.path().join("gsm8k/train.jsonl"), row("#### 7").repeat(5) + &row("7")).unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    let error = GENERATION.make("gen/gsm8k", &options).err().unwrap().to_string();
    assert!(error.contains("train.jsonl:6: there is no `####` in the text"), "{error}");
}

#[test]
fn problems_of_a_contest_are_asked_as_they_are() {
    let made = task("gen/aime24", "aime24/train.jsonl", r#"{"Problem": "How many?", "Answer": 25}"#, false).unwrap();
    let example = made.example(0, 0, 0, &Words).unwrap();
    assert_eq!((example.user_turn().as_str(), example.max_new_tokens), ("Question: How many?\nAnswer:", 32768));
    assert_eq!(example.references, ["25"]);
    assert_eq!(example.score("Two times. So it is $\\boxed{25}$."), 1.0);
    let written =
        task("gen/aime25", "aime25/test.jsonl", r#"{"problem": "How many?", "answer": "025"}"#, false).unwrap();
    assert_eq!(written.example(0, 0, 0, &Words).unwrap().references, ["025"], "as it is written");
}

#[test]
fn fewer_examples_are_the_first_ones() {
    let row = r#"{"question": "How many?", "answer": "Well: #### 7"}"#;
    let made = |name: &str| task(name, "gsm8k/test.jsonl", row, false);
    let context = |name: &str| made(name).unwrap().example(0, 0, 0, &Words).unwrap().context;
    let (all, two) = (context("gen/gsm8k_cot"), context("gen/gsm8k_cot:shots=2"));
    assert!(two.matches("\nA: ").count() == 2 && all.starts_with(&two), "{two}");
    assert!(two.ends_with("The answer is 5.\n\n"), "{two}");
    assert_eq!(context("gen/gsm8k_cot:shots=0"), "");
    assert_eq!(made("gen/gsm8k_cot:shots=8").unwrap().name(), "gen/gsm8k_cot", "as without saying");
    let what = |name: &str| made(name).err().unwrap().to_string();
    assert_eq!(what("gen/gsm8k_cot:shots=9"), "`gen/gsm8k_cot:shots=9`: there are 8 examples");
    assert!(what("gen/gsm8k_cot:shots_seed=1").contains("are fixed, not drawn at random"));
    assert!(what("gen/gsm8k_cot:shot=1").contains("`shot=1` cannot be read"));
    assert!(what("gen/coqa:shots=1").contains("gen/coqa has no options"));
}

/// Prompts, answers and scores from lm-eval's own templates and patterns (`scripts/make_mmlu_flan_cot.py`).
#[test]
fn subjects_have_examples_of_their_own_as_lm_eval_has_them() {
    let golden: Value = serde_json::from_str(include_str!("../../../../../tests/golden/mmlu_flan_cot.json")).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    let rows: Vec<String> = prompts.iter().map(|p| p["row"].to_string()).collect();
    let made = task("gen/mmlu_flan_cot", "mmlu/test/all.jsonl", &rows.join("\n"), false).unwrap();
    assert_eq!(made.available(), Some(prompts.len()));
    for (index, expected) in prompts.iter().enumerate() {
        let example = made.example(0, index, 0, &Words).unwrap();
        assert_eq!(example.user_turn(), expected["prompt"].as_str().unwrap());
        assert_eq!(example.references, [expected["answer"].as_str().unwrap()]);
        assert_eq!(example.rules.until, ["</s>"]);
    }
    let first = made.example(0, 0, 0, &Words).unwrap();
    assert_eq!(first.references, ["(A)"]);
    for pair in golden["scores"].as_array().unwrap() {
        assert_eq!(Some(first.score(pair[0].as_str().unwrap())), pair[1].as_f64(), "{}", pair[0]);
    }
    let two = task("gen/mmlu_flan_cot:shots=2", "mmlu/test/all.jsonl", &rows[0], false).unwrap();
    let shown = two.example(0, 0, 0, &Words).unwrap().user_turn();
    assert_eq!(shown.matches("\nA: Let's think step by step.").count(), 3, "{shown}");
    let what = |name: &str, file: &str, row: &str| task(name, file, row, false).err().unwrap().to_string();
    let own = "mmlu/test/all.jsonl";
    assert!(what("gen/mmlu_flan_cot:shots=5", own, &rows[0]).ends_with("there are 4 examples"));
    assert!(what("gen/mmlu_flan_cot:shots_seed=1", own, &rows[0]).contains("are fixed, not drawn at random"));
    assert!(
        what("gen/mmlu_flan_cot", own, &rows[0].replace("anatomy", "alchemy")).contains("of the subject `alchemy`")
    );
}

#[test]
fn published_tables_name_their_subjects_and_alternate() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("mmlu/test")).unwrap();
    for (file, letter) in [("anatomy_test.csv", "B"), ("virology_test.csv", "D")] {
        let rows = format!("first,w,x,y,z,{letter}\nsecond,w,x,y,z,{letter}\n");
        std::fs::write(dir.path().join("mmlu/test").join(file), rows).unwrap();
    }
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    let made = GENERATION.make("gen/mmlu_flan_cot:shots=0", &options).unwrap();
    let of = |index| made.example(0, index, 0, &Words).unwrap();
    let about = |subject| format!("The following are multiple choice questions (with answers) about {subject}.");
    let asked = |name| format!("Q: {name}\n(A) w (B) x (C) y (D) z\nA: Let's think step by step.");
    assert_eq!(of(0).user_turn(), about("anatomy") + &asked("first"));
    assert_eq!(of(1).user_turn(), about("virology") + &asked("first"));
    assert_eq!(of(2).user_turn(), about("anatomy") + &asked("second"));
    assert_eq!((of(0).references, of(3).references), (vec!["(B)".to_owned()], vec!["(D)".to_owned()]));
}

/// Results of CPython 3.11's `random.Random(1234)`: `sample(range(40), 2)` twice.
const DRAWN: [[usize; 2]; 2] = [[28, 7], [0, 5]];

#[test]
fn training_rows_are_the_examples_of_the_other_set() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("gsm8k")).unwrap();
    let row = |i: usize| format!("{{\"question\": \"q{i}\", \"answer\": \"So <<1+1=2>>.\\n#### {i}\"}}\n");
    let rows = |first: usize, count: usize| (first..first + count).map(row).collect::<String>();
    std::fs::write(dir.path().join("gsm8k/test.jsonl"), rows(100, 2)).unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    let error = GENERATION.make("gen/gsm8k", &options).err().unwrap().downcast::<UsageError>().unwrap();
    assert!(error.hint.unwrap().contains("gsm8k/train.jsonl"));
    assert!(GENERATION.make("gen/gsm8k:shots=0", &options).is_ok());
    std::fs::write(dir.path().join("gsm8k/train.jsonl"), rows(0, 40)).unwrap();
    let solved = |i: usize| format!("Question: q{i}\nAnswer: So <<1+1=2>>.\n#### {i}\n\n");
    let task = GENERATION.make("gen/gsm8k", &options).unwrap();
    let example = task.example(0, 1, 0, &Words).unwrap();
    assert_eq!(example.context, (0..5).map(solved).collect::<String>());
    assert_eq!((example.question.as_str(), example.references), ("Question: q101\nAnswer:", vec!["101".to_owned()]));
    assert_eq!((example.metric, task.name()), (Metric::Gsm8kHashes, "gen/gsm8k"));
    let name = "gen/gsm8k:shots=2,shots_seed=1234";
    let drawn = GENERATION.make(name, &options).unwrap();
    assert_eq!(drawn.name(), name);
    for (index, rows) in DRAWN.into_iter().enumerate() {
        assert_eq!(drawn.example(0, index, 0, &Words).unwrap().context, rows.map(solved).concat());
    }
}

const STORY: &str = r#"{"story": "Ann ran.", "questions": {"input_text": ["Who ran?", "Why?"]}, "answers": {"input_text": ["Ann", "no idea"]}, "additional_answers": {"0": {"input_text": ["ann", "unknown"]}, "1": {"input_text": ["she", "no idea"]}}}"#;

#[test]
fn a_conversation_is_asked_with_the_answers_before() {
    let all = task("gen/coqa", "coqa/validation.jsonl", &format!("{STORY}\n{STORY}"), false).unwrap();
    assert_eq!((all.available(), all.context_of(1), all.context_of(3)), (Some(4), 0, 2));
    let first = all.example(0, 0, 0, &Words).unwrap();
    assert_eq!((first.context.as_str(), first.question.as_str()), ("Ann ran.\n\n", "Q: Who ran?\n\nA:"));
    assert_eq!(first.references, ["Ann", "she"], "capitals make no other answer");
    let second = all.example(0, 1, 0, &Words).unwrap();
    assert_eq!(second.user_turn(), "Ann ran.\n\nQ: Who ran?\n\nA: Ann\n\nQ: Why?\n\nA:");
    assert_eq!(second.references, ["no idea", "unknown"]);
    let last = task("gen/coqa_last_turn", "coqa/validation.jsonl", STORY, false).unwrap();
    assert_eq!(last.available(), Some(1));
    assert_eq!(last.example(0, 0, 0, &Words).unwrap().user_turn(), second.user_turn());
}

/// The published document and the hub's table have the same questions.
#[test]
fn the_published_document_has_the_questions_of_the_hub() {
    let said = |texts: [&str; 2]| {
        let one = |(i, text): (usize, &str)| serde_json::json!({"input_text": text, "turn_id": i + 1});
        texts.into_iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let mut answers = said(["Ann", "no idea"]);
    answers[1]["bad_turn"] = "true".into();
    let row = serde_json::json!({
        "id": "1", "story": "Ann ran.", "questions": said(["Who ran?", "Why?"]), "answers": answers,
        "additional_answers": {"0": said(["ann", "unknown"]), "1": said(["she", "no idea"])},
    });
    let document = serde_json::json!({"version": "1.0", "data": [row, row]}).to_string();
    for name in ["gen/coqa", "gen/coqa_last_turn"] {
        let published = task(name, "coqa/coqa-dev-v1.0.json", &document, false).unwrap();
        let hub = task(name, "coqa/validation.jsonl", &format!("{STORY}\n{STORY}"), false).unwrap();
        assert_eq!(published.available(), hub.available());
        for index in 0..hub.available().unwrap() {
            let (ours, theirs) = [&published, &hub].map(|t| t.example(0, index, 0, &Words).unwrap()).into();
            assert_eq!((ours.user_turn(), ours.references), (theirs.user_turn(), theirs.references));
            assert_eq!(published.context_of(index), hub.context_of(index));
        }
    }
}

#[test]
fn malformed_rows_are_named_or_left_out() {
    let text = format!("{STORY}\n{{\"story\": \"x\"}}\n{STORY}");
    let error = task("gen/coqa", "coqa/validation.jsonl", &text, false).err().unwrap().to_string();
    assert!(error.contains("validation.jsonl:2: "), "{error}");
    let task = task("gen/coqa", "coqa/validation.jsonl", &text, true).unwrap();
    assert_eq!(task.available(), Some(4));
    assert!(task.notes()[0].contains("1 malformed row is left out (line 2)"), "{:?}", task.notes());
}
