use super::*;
use crate::Family;
use crate::likelihood::TextTokens;

/// A tokenizer with one token for each character.
struct Characters;

impl TextEncoder for Characters {
    fn encode(&self, text: &str) -> Result<TextTokens> {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        Ok(TextTokens { ids: text.chars().map(u32::from).collect(), ends })
    }

    fn front(&self) -> &[u32] {
        &[1]
    }
}

/// Prompt, options and index of the right option of a task's first question, with these files.
fn first(name: &str, files: &[(&str, &str)]) -> Result<(String, Vec<String>, usize)> {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    let task = MULTIPLE_CHOICE.make(name, &options)?;
    let passage = task.likelihood().unwrap().passage(0, 0, 0, &Characters)?;
    let text = |ids: &[u32]| ids.iter().filter_map(|id| char::from_u32(*id)).collect::<String>();
    let Scoring::Choice { right, .. } = passage.scoring else { panic!("a choice") };
    let options = passage.continuations.iter().map(|c| text(&c.tokens)).collect();
    Ok((text(&passage.prompt[1..]), options, right))
}

#[test]
fn prompts_are_lm_evals() {
    let arc = r#"{"question": "Why?", "choices": {"text": ["so", "not so"], "label": ["1", "2"]}, "answerKey": "2"}"#;
    let (prompt, options, right) = first("mcq/arc_challenge", &[("ARC-Challenge/test.jsonl", arc)]).unwrap();
    assert_eq!((prompt.as_str(), right), ("Question: Why?\nAnswer:", 1));
    assert_eq!(options, [" so", " not so"]);
    let boolq = r#"{"passage": "It is.", "question": "is it", "label": 1}"#;
    let (prompt, options, right) = first("mcq/boolq", &[("boolq/validation.jsonl", boolq)]).unwrap();
    assert_eq!((prompt.as_str(), right), ("It is.\nQuestion: is it?\nAnswer:", 1));
    assert_eq!(options, [" no", " yes"]);
    for (label, answer) in [("0", 0), ("false", 0), ("true", 1)] {
        let row = boolq.replace(r#""label": 1"#, &format!(r#""label": {label}"#));
        assert_eq!(first("mcq/boolq", &[("boolq/val.jsonl", &row)]).unwrap().2, answer, "{label}");
    }
    let piqa =
        [("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#), ("piqa/valid-labels.lst", "1\n")];
    let (prompt, options, right) = first("mcq/piqa", &piqa).unwrap();
    assert_eq!((prompt.as_str(), options.len(), right), ("Question: open\nAnswer:", 2, 1));
    let open =
        r#"{"question_stem": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A "}"#;
    assert_eq!(first("mcq/openbookqa", &[("openbookqa/test.jsonl", open)]).unwrap().0, "Ice is");
    let grande =
        r#"{"sentence": "Ann thanked Eve, as _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}"#;
    let (prompt, options, right) = first("mcq/winogrande", &[("winogrande/validation.jsonl", grande)]).unwrap();
    assert_eq!((prompt.as_str(), right), ("Ann thanked Eve, as ", 1));
    assert_eq!(options, ["Ann had helped.", "Eve had helped."]);
    let swag = r#"{"activity_label": "Baking", "ctx_a": "A man [substeps] stands.", "ctx_b": "the Man", "endings": ["goes [title] on.", "x"], "label": "0"}"#;
    let (prompt, options, _) = first("mcq/hellaswag", &[("hellaswag/validation.jsonl", swag)]).unwrap();
    assert_eq!(prompt, "Baking: A man stands. The man");
    assert_eq!(options, [" goes.  on.".replace("  ", " "), " x".to_owned()]);
}

#[test]
fn examples_come_from_the_questions_own_subject() {
    let table = |question: &str, answer: &str| {
        format!("question,choice0,choice1,choice2,choice3,answer\n{question},w,\"x, y\",z,0,{answer}\n")
    };
    let files = [
        ("mmlu/test/world_history_test.csv", table("When?", "1")),
        ("mmlu/dev/anatomy_dev.csv", table("Where?", "2")),
        ("mmlu/dev/world_history_dev.csv", table(" Who?", "D")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (prompt, options, right) = first("mcq/mmlu:shots=1", &files).unwrap();
    assert_eq!(
        prompt,
        "The following are multiple choice questions (with answers) about world history.\n\n\
         Who?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer: D\n\nWhen?\nA. w\nB. x, y\nC. z\nD. 0\nAnswer:"
    );
    assert_eq!((options, right), ([" A", " B", " C", " D"].map(str::to_owned).to_vec(), 1));
    let error = first("mcq/mmlu:shots=2", &files).unwrap_err();
    assert_eq!(error.to_string(), "`mcq/mmlu:shots=2`: there are 1 examples for world_history");
}

#[test]
fn tables_of_the_hub_are_read_and_subjects_alternate() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tables");
    let options = TaskOptions { data: Some(data), ..TaskOptions::default() };
    let definition = |name: &str| DEFINITIONS.iter().find(|d| d.name == name).unwrap();
    let mmlu = ChoiceTask::open(definition("mmlu"), Shots { count: 1, seed: None }, &options).unwrap();
    let subjects: Vec<&str> = mmlu.questions.iter().map(|q| q.subject.as_str()).collect();
    assert_eq!(subjects, ["astronomy", "virology"].repeat(4));
    let put = mmlu.context(&mmlu.questions[3]).unwrap();
    assert!(put.contains("about virology.\n\nWhich of these numbers of virology is 3?\nA. 4\nB. 3\nC. “5”"), "{put}");
    assert!(put.ends_with("Which of these numbers of virology is 4?\nA. 5\nB. 4\nC. “6”\nD. none\nAnswer:"), "{put}");
    let arc = ChoiceTask::open(definition("arc_easy"), Shots { count: 0, seed: None }, &options).unwrap();
    let answers: Vec<&str> = arc.questions.iter().map(|q| q.options[q.right].as_str()).collect();
    assert_eq!(answers, ["thing 0.0", "thing 1.1"]);
}

#[test]
fn the_option_of_winogrande_is_read_and_the_rest_scored() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("winogrande")).unwrap();
    let row = |sentence: &str, answer: &str| {
        format!(
            "{{\"sentence\": \"{sentence}\", \"option1\": \"Al\", \"option2\": \"Alma\", \"answer\": \"{answer}\"}}\n"
        )
    };
    let write = |name: &str, text: String| std::fs::write(dir.path().join("winogrande").join(name), text).unwrap();
    write("validation.jsonl", row("_ ran.", "1") + "{}\n" + &row("So _ ran.", "2"));
    write("train.jsonl", row("Once _ sat.", "2"));
    let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad: true, ..TaskOptions::default() };
    let task = MULTIPLE_CHOICE.make("mcq/winogrande:shots=1", &options).unwrap();
    assert_eq!((task.available(), task.notes().len()), (Some(2), 1), "{:?}", task.notes());
    let passage = task.likelihood().unwrap().passage(0, 1, 0, &Characters).unwrap();
    let text = |ids: &[u32]| ids.iter().filter_map(|id| char::from_u32(*id)).collect::<String>();
    assert_eq!(text(&passage.prompt[1..]), "Once Alma sat.\n\nSo Al");
    let pieces: Vec<(String, usize)> = passage.continuations.iter().map(|c| (text(&c.tokens), c.given)).collect();
    assert_eq!(pieces, [(" ran.".to_owned(), 0), ("ma ran.".to_owned(), 2)]);
    assert_eq!((passage.continuations[1].words, passage.continuations[1].bytes), (1, 5));
}

/// Rows of PIQA's fields, numbered from `first`.
fn numbered(first: usize, count: usize) -> String {
    let row = |i: usize| format!("{{\"goal\": \"g{i}\", \"sol1\": \"a{i}\", \"sol2\": \"b\", \"label\": 0}}\n");
    (first..first + count).map(row).collect()
}

/// Results of CPython 3.11's `random.Random(1234)`: `sample(range(40), 3)` twice, cut to two (lm-eval draws one more
/// if there is no test split); for the rows of ARC, `sample(range(40), 2)` twice.
const DRAWN_OF_PIQA: [[usize; 2]; 2] = [[28, 7], [5, 37]];
const DRAWN_OF_ARC: [[usize; 2]; 2] = [[28, 7], [0, 5]];

#[test]
fn a_seed_draws_the_examples_that_lm_eval_draws_for_each_question() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["piqa", "ARC-Easy"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let arc = |first: usize, count: usize| -> String {
        let row = |i: usize| {
            format!(
                "{{\"question\": \"q{i}\", \"choices\": {{\"text\": [\"a{i}\", \"b\"], \"label\": [\"A\", \"B\"]}}, \"answerKey\": \"A\"}}\n"
            )
        };
        (first..first + count).map(row).collect()
    };
    std::fs::write(dir.path().join("piqa/train.jsonl"), numbered(0, 40)).unwrap();
    std::fs::write(dir.path().join("piqa/validation.jsonl"), numbered(100, 2)).unwrap();
    std::fs::write(dir.path().join("ARC-Easy/train.jsonl"), arc(0, 40)).unwrap();
    std::fs::write(dir.path().join("ARC-Easy/test.jsonl"), arc(100, 2)).unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    let prompts = |name: &str| -> Vec<String> {
        let task = MULTIPLE_CHOICE.make(name, &options).unwrap();
        assert_eq!(task.name(), name);
        let likelihood = task.likelihood().unwrap();
        let prompt = |i| likelihood.passage(0, i, 0, &Characters).unwrap().prompt;
        (0..2).map(|i| prompt(i).iter().skip(1).filter_map(|id| char::from_u32(*id)).collect()).collect()
    };
    let expected = |rows: [usize; 2], i: usize, mark: &str| -> String {
        let shot = |row: usize| format!("Question: {mark}{row}\nAnswer: a{row}\n\n");
        format!("{}Question: {mark}{}\nAnswer:", rows.map(shot).concat(), 100 + i)
    };
    for (task, mark, drawn) in [("piqa", "g", DRAWN_OF_PIQA), ("arc_easy", "q", DRAWN_OF_ARC)] {
        let seeded = prompts(&format!("mcq/{task}:shots=2,shots_seed=1234"));
        let first = prompts(&format!("mcq/{task}:shots=2"));
        for i in 0..2 {
            assert!(seeded[i].starts_with(&expected(drawn[i], i, mark)), "{task} {i}: {}", seeded[i]);
            assert!(first[i].starts_with(&expected([0, 1], i, mark)), "{task} {i}: {}", first[i]);
        }
    }
    let what = |name: &str| MULTIPLE_CHOICE.make(name, &options).err().unwrap().to_string();
    assert!(what("mcq/piqa:shots=40,shots_seed=1").contains("41 examples are needed, but there are 40"));
    assert!(what("mcq/piqa:shots_seed=1").contains("needs shots, which is 0"));
    assert!(what("mcq/piqa:shots=1,shots_seed=x").contains("`shots_seed=x` cannot be read"));
    assert!(what("mcq/mmlu:shots=1,shots_seed=1").contains("the first examples of mmlu, whatever its seed"));
}

#[test]
fn rows_that_do_not_fit_are_said_with_their_place() {
    let what = |name: &str, files: &[(&str, &str)]| first(name, files).unwrap_err().to_string();
    let row = r#"{"question": "Why?", "choices": {"text": ["so"], "label": ["A"]}, "answerKey": "C"}"#;
    assert!(
        what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", row)]).contains("test.jsonl:1: `C` names none of 1 options")
    );
    assert!(
        what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", "{\"question\": \"x\"}")])
            .contains("test.jsonl:1: a field is missing for `choices.text`")
    );
    assert!(what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", "\nx")]).contains("test.jsonl:2: not JSON: "));
    assert!(what("mcq/arc_easy", &[]).contains("needs data that were not found"));
    let arc = |text: &str, label: &str, key: &str| {
        format!(r#"{{"question": "Why?", "choices": {{"text": {text}, "label": {label}}}, "answerKey": {key}}}"#)
    };
    for (row, said) in [
        (arc(r#"["a", "b"]"#, r#"["A"]"#, r#""A""#), "1 labels for 2 options"),
        (arc(r#"["a", "b"]"#, r#"["A", "B", "C"]"#, r#""C""#), "3 labels for 2 options"),
        (arc(r#"["a", "b"]"#, r#"["A", "A"]"#, r#""A""#), "two options have one label"),
        (arc(r#"["a", "b"]"#, r#"["A", "B"]"#, r#""1""#), "`1` names none of 2 options"),
        (arc(r#"["a"]"#, r#"["A"]"#, r#""A""#), "there is only one option"),
        (arc(r#""ab""#, r#""AB""#, r#""A""#), "no list for `choices.text`"),
        (arc(r#"["a", null]"#, r#"["A", "B"]"#, r#""A""#), "has an item that is none, not text"),
    ] {
        let error = what("mcq/arc_easy", &[("ARC-Easy/test.jsonl", &row)]);
        assert!(error.contains("test.jsonl:1: ") && error.contains(said), "{error}");
    }
    for (row, said) in [
        (r#"{"goal": " ", "sol1": "a", "sol2": "b", "label": 0}"#, "the field `goal` is empty or white space"),
        (r#"{"goal": null, "sol1": "a", "sol2": "b", "label": 0}"#, "a field is none, not text"),
        (r#"{"goal": ["g"], "sol1": "a", "sol2": "b", "label": 0}"#, "a field is sequence, not text"),
        (r#"{"goal": "g", "sol1": ["a"], "sol2": "b", "label": 0}"#, "has an item that is sequence, not text"),
    ] {
        assert!(what("mcq/piqa", &[("piqa/valid.jsonl", row)]).contains(said), "{row}");
    }
    let five = r#"{"question": "q", "choices": ["a", "b", "c", "d", "e"], "answer": 3, "subject": "anatomy"}"#;
    assert!(what("mcq/mmlu", &[("mmlu/test/all.jsonl", five)]).contains("5 choices, not 4"));
    let hint = |name: &str| first(name, &[]).unwrap_err().downcast::<UsageError>().unwrap().hint.unwrap();
    let write = "d('cais/mmlu', 'all', split='test').to_json('mmlu/test/all.jsonl')";
    assert!(hint("mcq/mmlu").contains(write), "{}", hint("mcq/mmlu"));
    assert!(hint("mcq/piqa").contains("d('baber/piqa', split='validation').to_json('piqa/validation.jsonl')"));
    assert!(what("mcq/arc_easy:shot=1", &[]).contains("`shot=1` cannot be read"));
    let fields = first("mcq/piqa", &[("piqa/valid.jsonl", "{}")]).unwrap_err().downcast::<UsageError>().unwrap();
    let hint = fields.hint.unwrap();
    assert_eq!(hint, "rows have the fields of baber/piqa on the Hugging Face hub (`spattn data fetch piqa`)");
    let table = b"question,choice0,choice1,choice2,choice3,answer\nq,a,b,c,d,A\n\xff,a,b,c,d,B\nq,a,b,c,d,E\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("mmlu/test")).unwrap();
    std::fs::write(dir.path().join("mmlu/test/x_test.csv"), table).unwrap();
    let open = |skip_bad| {
        let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
        MULTIPLE_CHOICE.make("mcq/mmlu", &options)
    };
    let error = open(false).err().unwrap().to_string();
    assert!(error.contains("x_test.csv:3: not UTF-8") && error.contains("1 more of 3 rows is malformed (line 4)"));
    let task = open(true).unwrap();
    assert_eq!(task.available(), Some(1));
    assert!(task.notes()[0].contains("2 malformed rows are left out (lines 3, 4)"), "{:?}", task.notes());
    let piqa =
        [("piqa/valid.jsonl", r#"{"goal": "open", "sol1": "a", "sol2": "b"}"#), ("piqa/valid-labels.lst", "1\n0\n")];
    assert!(what("mcq/piqa", &piqa).contains("2 labels for 1 rows"));
    assert!(what("mcq/mmlu", &[("mmlu/test/a_test.csv", "q,a,b,c\n")]).contains("a_test.csv:1: a row has 4 columns"));
}
