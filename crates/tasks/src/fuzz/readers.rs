//! Every reader of rows and of documents, each with a valid input. The tests here damage these inputs, and the fuzzers
//! in `fuzz/`, which include this file too, start from them.

/// A reader of rows, and a file with one row of the right fields.
pub struct FileReader {
    /// The name of the task that reads it, where `{}` stands for the folder.
    pub task: &'static str,
    /// The path of the file in the folder.
    pub file: &'static str,
    /// A row, or the whole document.
    pub row: &'static str,
}

const fn reader(task: &'static str, file: &'static str, row: &'static str) -> FileReader {
    FileReader { task, file, row }
}

/// All readers of JSON lines.
pub const READERS: &[FileReader] = &[
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"input": "x\nWhat is the special magic number for a?", "outputs": ["1", 2], "answer_prefix": " It is", "index": 0}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"context": "x", "input": "Q?", "answers": ["A"], "all_classes": ["A", "B"], "dataset": "trec"}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"ordered_kv_records": [["a", "1"], ["b", "2"]], "key": "a", "value": "1"}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"prompt": "line a: <7>\nNow the record is over. Tell me", "correct_line": "line a: <7>\n", "expected_number": 7}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"context": "Hay.", "question": "What?", "answer": "7", "answer_prefix": "It"}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl",
        "rows.jsonl",
        r#"{"context": "Hay.", "question": "What?", "answer_prefix": "It", "answer": ["7"], "task": "vt", "max_new_tokens": 30}"#,
    ),
    reader(
        "jsonl:{}/rows.jsonl:metric=qa_f1,max_new_tokens=4",
        "rows.jsonl",
        r#"{"context": "Hay.", "turns": [{"question": "What?", "answers": ["7"]}]}"#,
    ),
    reader("jsonl:{}/rows.jsonl", "rows.jsonl", r#"{"report": "A long text.", "summary": ["A text."]}"#),
    reader(
        "longbench/qasper",
        "longbench/qasper.jsonl",
        r#"{"context": "x", "input": "Q?", "answers": ["A"], "length": 5, "all_classes": null}"#,
    ),
    reader(
        "longbench/lsht",
        "longbench/lsht.jsonl",
        r#"{"context": "今天", "input": "新闻", "answers": ["体育"], "all_classes": ["体育", "农业"]}"#,
    ),
    reader(
        "longbench/passage_retrieval_zh",
        "longbench/passage_retrieval_zh.jsonl",
        r#"{"context": "段落1：今天", "input": "今天", "answers": ["段落1"], "all_classes": null}"#,
    ),
    reader(
        "kv_retrieval:file={}/rows.jsonl,steps=2",
        "rows.jsonl",
        r#"{"ordered_kv_records": [["a", "1"], ["b", "2"]], "key": "a", "value": "1"}"#,
    ),
    reader("gen/aime", "aime/train.jsonl", r#"{"Question": "How many?", "Answer": "204"}"#),
    reader("gen/aime25", "aime25/test.jsonl", r#"{"problem": "How many?", "answer": "204"}"#),
    reader("gen/aime24", "aime24/train.jsonl", r#"{"Problem": "How many?", "Answer": 204}"#),
    reader("gen/gsm8k_cot", "gsm8k/test.jsonl", r#"{"question": "How many?", "answer": "Two.\n#### 2"}"#),
    reader(
        "gen/mmlu_flan_cot",
        "mmlu/test/all.jsonl",
        r#"{"question": "Q?", "subject": "world_religions", "choices": ["a", "b", "c", "d"], "answer": 3}"#,
    ),
    reader("gen/gsm8k:shots=0", "gsm8k/test.jsonl", r#"{"question": "How many?", "answer": "Two.\n#### 2"}"#),
    reader(
        "gen/coqa",
        "coqa/validation.jsonl",
        r#"{"story": "Ann ran.", "questions": {"input_text": ["Who?"]}, "answers": {"input_text": ["Ann"]}, "additional_answers": {"0": {"input_text": ["she"]}}}"#,
    ),
    reader(
        "gen/coqa_last_turn",
        "coqa/validation.jsonl",
        r#"{"story": "Ann ran.", "questions": {"input_text": ["Who?", "Why?"]}, "answers": {"input_text": ["Ann", "no idea"]}}"#,
    ),
    reader(
        "mcq/mmlu",
        "mmlu/test/all.jsonl",
        r#"{"question": "Q?", "subject": "world_history", "choices": ["a", "b", "c", "d"], "answer": 3}"#,
    ),
    reader(
        "mcq/arc_easy",
        "arc_easy/test.jsonl",
        r#"{"question": "Why?", "choices": {"text": ["so", "not so"], "label": ["1", "2"]}, "answerKey": "2"}"#,
    ),
    reader(
        "mcq/openbookqa",
        "openbookqa/test.jsonl",
        r#"{"question_stem": "Ice is", "choices": {"text": ["cold", "hot"], "label": ["A", "B"]}, "answerKey": "A "}"#,
    ),
    reader(
        "mcq/hellaswag",
        "hellaswag/validation.jsonl",
        r#"{"activity_label": "Baking", "ctx_a": "A man stands.", "ctx_b": "he", "endings": ["goes [title] on.", "x"], "label": "0"}"#,
    ),
    reader("mcq/piqa", "piqa/validation.jsonl", r#"{"goal": "open", "sol1": "push it", "sol2": "eat it", "label": 1}"#),
    reader(
        "mcq/winogrande",
        "winogrande/validation.jsonl",
        r#"{"sentence": "Ann thanked Eve, as _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}"#,
    ),
    reader("mcq/boolq", "boolq/validation.jsonl", r#"{"passage": "It is.", "question": "is it", "label": 1}"#),
    reader(
        "mcq/arc_challenge",
        "ARC-Challenge/test.jsonl",
        r#"{"question": "Why?", "choices": {"text": ["so", "no"], "label": ["A", "B"]}, "answerKey": "B"}"#,
    ),
    reader(
        "infinitebench/passkey",
        "infinitebench/passkey.jsonl",
        r#"{"context": "Noise.", "input": "What is the pass key?", "answer": ["71432"], "options": []}"#,
    ),
    reader(
        "infinitebench/code_debug",
        "code_debug.jsonl",
        r#"{"context": "def f(): x", "input": "", "answer": ["f"], "options": ["g", "f", "h", "i"]}"#,
    ),
    reader(
        "infinitebench/math_find",
        "math_find.jsonl",
        r#"{"context": "[3, 1]", "input": "The largest number of the list is:", "answer": [3]}"#,
    ),
    reader("infinitebench/math_calc", "math_calc.jsonl", r#"{"context": "1 + 2", "answer": [[1, 3]]}"#),
    reader(
        "scbench/choice_eng",
        "scbench/scbench_choice_eng.jsonl",
        r#"{"context": "x", "multi_turns": [{"input": "Q?", "answer": "b", "options": ["a", "b", "c", "d"]}]}"#,
    ),
    reader(
        "scbench_multi_turn/vt",
        "scbench_vt.jsonl",
        r#"{"context": "x", "multi_turns": [{"input": "1?", "answer": ["A", "B"]}]}"#,
    ),
    reader(
        "longbench_v2/hard",
        "longbench_v2/data.jsonl",
        r#"{"context": "x", "question": "Q?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "A", "difficulty": "hard", "length": "short"}"#,
    ),
    reader(
        "longbench_v2_no_context",
        "longbench_v2/data.jsonl",
        r#"{"question": "Q?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "A"}"#,
    ),
    reader(
        "zeroscrolls/qasper",
        "qasper/validation.jsonl",
        r#"{"id": "1", "input": "Read.\n\nText é.\n\nWho?", "query_start_index": 16, "output": "Ann", "truncation_seperator": "... [Left out]\n\n"}"#,
    ),
    reader("loogle/longdep_qa", "data/longdep_qa.jsonl", r#"{"context": "x", "question": "Q?", "answer": "b"}"#),
    reader(
        "loogle/shortdep_cloze",
        "LooGLE-testdata/shortdep_cloze.jsonl",
        r#"{"input": "x", "qa_pairs": "[{'Q': '<mask-0> left.', 'A': {'<mask-0>': \"Bob's\"}}]", "output": "None"}"#,
    ),
];

/// Readers of whole files, whose `row` is the whole file.
pub const DOCUMENTS: &[FileReader] = &[
    reader(
        "ruler/qa_1",
        "squad/dev-v2.0.json",
        r#"{"data": [{"paragraphs": [{"context": "x y", "qas": [{"question": "q?", "answers": [{"text": "x"}]}, {"question": "no?", "is_impossible": true, "answers": []}]}]}]}"#,
    ),
    reader(
        "ruler/qa_2",
        "hotpotqa/x.json",
        r#"[{"question": "q?", "answer": "x", "context": [["T", ["x y.", " z."]]]}]"#,
    ),
    reader(
        "gen/coqa",
        "coqa/coqa-dev-v1.0.json",
        r#"{"data": [{"story": "Ann ran.", "questions": [{"input_text": "Who?", "turn_id": 1}], "answers": [{"input_text": "Ann", "turn_id": 1}], "additional_answers": {"0": [{"input_text": "she", "turn_id": 1}]}}]}"#,
    ),
    reader(
        "longbench_v2",
        "longbench_v2/data.json",
        r#"[{"context": "x", "question": "Q?", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "A"}]"#,
    ),
    reader("ruler/niah_single_2", "PaulGrahamEssays.json", r#"{"text": "Some words. And more of them."}"#),
    reader("ruler/niah_single_2", "essays/a.txt", "Some words. And more of them."),
    reader("mcq/mmlu", "mmlu/test/x_test.csv", "question,choice0,choice1,choice2,choice3,answer\nq,\"a, b\",b,c,d,A\n"),
    reader("ppl/wikitext2:scored=8", "wiki.test.raw", " = Title = \n\n Some words of a text , and more of it é . \n"),
];
