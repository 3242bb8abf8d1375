#!/usr/bin/env python3
"""Writes tests/golden/long_sets.json: what the published programs of LongBench v2, InfiniteBench, SCBench, ZeroSCROLLS and
LooGLE make from invented rows (prompts and answers), and the scores that they give to invented predictions.

The rules are written here independently of the Rust ones, in the language of their publication, with the packages that the
published programs use:

    pip install rouge-score==0.1.2 rouge==1.0.1 nltk==3.9.1 lifelines==0.30.0 Unidecode==1.4.0
    python3 scripts/make_golden_long_sets.py > tests/golden/long_sets.json

Prompts are the published format strings (sources: the heads of tasks/longbench_v2.toml, infinitebench.toml, scbench.toml, zeroscrolls.toml,
loogle.toml).
"""

import json
import random
import re
import string
import sys
import warnings
from collections import Counter

from lifelines.utils import concordance_index
from nltk.translate.bleu_score import sentence_bleu
from rouge import Rouge
from rouge_score import rouge_scorer
from unidecode import unidecode

warnings.filterwarnings("ignore")

# ---- prompts ----

LONGBENCH_V2 = {
    "longbench_v2": 'Please read the following text and answer the question below.\n\n<text>\n$DOC$\n</text>\n\nWhat is the correct answer to this question: $Q$\nChoices:\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\nFormat your response as follows: "The correct answer is (insert answer here)".',
    "longbench_v2_no_context": 'What is the correct answer to this question: $Q$\nChoices:\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\nWhat is the single, most likely answer choice? Format your response as follows: "The correct answer is (insert answer here)".',
}
LONGBENCH_V2_FIELDS = [("$DOC$", "context"), ("$Q$", "question")] + [(f"$C_{c}$", f"choice_{c}") for c in "ABCD"]

INFINITEBENCH = {
    "passkey": "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about the important information.\n\n{context}\n\n{input}\n\nThe pass key is",
    "number_string": "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you about the important information there.\n\n{context}\n\n{input}\n\nThe sequence of digits is",
    "kv_retrieval": "Extract the value corresponding to the specified key in the JSON object below.\n\n{context}\n\n{input}",
    "longbook_sum_eng": "Summarize the book below.\n\n{context}\n\nSummary:",
    "longbook_choice_eng": "Read the book and answer the question.\n\n{context}\n\nQuestion: {question}\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\n\nThe letter of the correct answer is",
    "longbook_qa_eng": "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\nQuestion: {question}\nAnswer:",
    "longbook_qa_chn": "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{question}\n答案：",
    "math_find": "{prefix}\n\n{context}\n\n{input}",
    "math_calc": "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, 8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: {context}\nValues:",
    "code_run": "There is a function called {func} in the following Python code.\n\n{context}\n\nPlease compute the exact value of {func_call}. The value of {func_call} is",
    "code_debug": "Following is a Python code where exactly one of the functions/methods has a deliberate error that makes it crash.\n\n{context}\n\nOptions:\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\n\nThe correct option is:",
    "longdialogue_qa_eng": 'Below is a dialogue script where one random occurrence of a character name is replaced with "$$MASK$$", and you should try to guess who that character is.\n\n{context}\n\nThe name that has been replaced with $$MASK$$ is likely',
}
INFINITEBENCH_TOKENS = {
    "passkey": 6, "number_string": 12, "kv_retrieval": 50, "longbook_sum_eng": 1200, "longbook_choice_eng": 40,
    "longbook_qa_eng": 40, "longbook_qa_chn": 40, "longdialogue_qa_eng": 40, "math_find": 3, "math_calc": 30000,
    "code_run": 5, "code_debug": 5,
}  # fmt: skip

KV = "Extract the value corresponding to the specified key in the JSON object below.\n\n{context}"
OPTIONS = "A. {A}\nB. {B}\nC. {C}\nD. {D}"
# For each set: the text and the question in multi-request mode, and the first and later prompts in multi-turn mode.
SCBENCH = {
    "kv": (KV, "{input}", KV + "\n\n{input}", "{pre_ans}\n\n{input}"),
    "qa_eng": (
        "Read the book and answer the question. Be very concise in your answer.\n\n{context}",
        "Question: {input}\nAnswer:",
        "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\nQuestion: {input}\nAnswer:",
        "{pre_ans}\n\nQuestion: {input}\nAnswer:",
    ),
    "qa_chn": (
        "阅读以下书籍然后回答问题。\n\n{context}",
        "问题：{input}\n答案：",
        "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{input}\n答案：",
        "{pre_ans}\n\n问题：{input}\n答案：",
    ),
    "choice_eng": (
        "Read the book and answer the question.\n\n{context}",
        "Question: {input}\n" + OPTIONS + "\n\nThe the correct answer is",
        "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\n" + OPTIONS + "\n\nThe the correct answer is",
        "{pre_ans}\n\nQuestion: {input}\n" + OPTIONS + "\n\nThe letter of the correct answer is",
    ),
    "mf": ("{first_input}\n\n{context}", "{prefix}\n\n{input}", "{prefix}\n\n{context}\n\n{input}", "{pre_ans}\n\n{prefix}\n\n{input}"),
    **{name: ("{context}", "{input}", "{context}\n\n{input}", "{pre_ans}\n\n{input}") for name in ["prefix_suffix", "vt", "many_shot", "summary", "summary_with_needles", "repoqa_and_kv"]},
}  # fmt: skip
SCBENCH_TOKENS = {
    "kv": 150, "qa_eng": 40, "qa_chn": 40, "choice_eng": 40, "mf": 5, "prefix_suffix": 150, "vt": 30, "many_shot": 10,
    "summary": 200,
}  # fmt: skip

# For sets with two kinds of questions: the set, the kind that the task uses, and the tokens to generate.
SCBENCH_MIXED = {
    "summary_with_needles_summary": ("summary_with_needles", "scbench_summary", 800),
    "summary_with_needles_passkey": ("summary_with_needles", "scbench_passkey", 15),
    "repoqa_and_kv_kv": ("repoqa_and_kv", "scbench_kv", 80),
}


ZEROSCROLLS_TOKENS = {
    "gov_report": 1024, "summ_screen_fd": 512, "qmsum": 512, "squality": 512, "qasper": 128, "narrative_qa": 64, "quality": 10,
    "musique": 32, "space_digest": 36, "book_sum_sort": 256,
}  # fmt: skip

LOOGLE = {
    "shortdep_qa": "Please answer the question based on the long texts below. \n{input}\nQuestion: {Q}\nAnswer: ",
    "longdep_qa": "Please answer the question based on the long texts below. \n{input}\nQuestion: {Q}\nAnswer: ",
    "longdep_summarization": "Please generate a summary of the below paper. \n{input}\n Summarization: ",
    "shortdep_cloze": "Please fill in the clozes based on the given long texts below. Each of the placeholder '<mask-n>' in the question could be an entity of Person, Location or Organiocation. The same masks represent the same entity. Output a json format answer, for example: {{'<mask-0>': 'Bob', '<mask-1>': 'Gorrosion Magazine','<mask-2>': 'Bethel Horizon'}}\n{input}\n Question: {Q} What are the masked entities? \nAnswer:",
}
LOOGLE_TOKENS = {"shortdep_qa": 300, "longdep_qa": 500, "longdep_summarization": 500, "shortdep_cloze": 50}


def longbench_v2_prompt(task, row):
    prompt = LONGBENCH_V2[task]
    for mark, field in LONGBENCH_V2_FIELDS:
        prompt = prompt.replace(mark, row[field].strip())
    return prompt


def infinitebench_prompt(name, row):
    values = dict(row)
    values.setdefault("context", row.get("content"))
    if name == "code_run":
        values["func_call"] = re.findall(r"func_[0-9]+\(\-?[0-9]+\)", row["input"])[0]
        values["func"] = values["func_call"].split("(")[0]
    if name == "math_find":
        values["prefix"] = f"What is {re.findall(r'The .+ of', row['input'])[0].lower()[:-3]} in the following list?"
    values["question"] = row["input"]
    values.update((f"OPTION_{c}", option) for c, option in zip("ABCD", row.get("options") or []))
    return INFINITEBENCH[name].format(**values)


def with_letter(answer, options):
    return [answer, "ABCD"[options.index(answer)]]


def infinitebench_answers(name, row):
    answer = row["answer"]
    if name in ["code_debug", "longbook_choice_eng"]:
        return answer if len(answer) == 2 else with_letter(answer[0], row["options"])
    if name == "math_calc":
        return [", ".join(str(n) for n in (answer[0] if isinstance(answer[0], list) else answer))]
    if name == "longdialogue_qa_eng":
        return [answer[0]]
    return [str(a) for a in answer] if isinstance(answer, list) else [answer]


def scbench_values(row, turn):
    one = row["multi_turns"][turn]
    values = {"context": row["context"], "input": one["input"], "first_input": row["multi_turns"][0]["input"]}
    values.update(zip("ABCD", one.get("options") or []))
    found = re.findall(r"The .+ is", one["input"])
    values["prefix"] = f"What is {found[0].lower()[:-3]}?" if found else None
    values["pre_ans"] = row["multi_turns"][turn - 1]["answer"] if turn else None
    return values


def scbench_prompts(name, row):
    text, question, first, later = SCBENCH[name]
    turns = range(len(row["multi_turns"]))
    requests = [text.format(**scbench_values(row, 0)) + question.format(**scbench_values(row, t)) for t in turns]
    said, conversation = "", []
    for t in turns:
        said += (later if t else first).format(**scbench_values(row, t))
        conversation.append(said)
    return requests, conversation


def scbench_answers(name, row):
    one = lambda turn: with_letter(turn["answer"], turn["options"]) if name == "choice_eng" else turn["answer"]  # noqa: E731
    answers = [one(turn) for turn in row["multi_turns"]]
    return [[str(a) for a in answer] if isinstance(answer, list) else [str(answer)] for answer in answers]


OWN = ["the red {gate}", "a blue gate", "the {{ green }} gate", "no gate"]
LONGBENCH_V2_ROW = {
    "_id": "1", "domain": "Single-Document QA", "sub_domain": "Novels", "difficulty": "hard", "length": "short",
    "question": " Which gate is {open}? \n", "choice_A": OWN[0] + " ", "choice_B": OWN[1], "choice_C": "\x1f" + OWN[2],
    "choice_D": OWN[3], "answer": "C", "context": "\n\u3000Gates stood open.\nNone was red. \n",
}  # fmt: skip
TEXT = "One {line}.\nAnd another é.\n"
INFINITEBENCH_ROWS = {
    "passkey": {"context": TEXT, "input": "What is the pass key? The pass key is ", "answer": ["71432"]},
    "number_string": {"content": TEXT, "input": "What is the sequence of digits? ", "answer": ["2200334455"]},
    "kv_retrieval": {"context": '{"a": "b"}', "input": 'Key: "a"\nThe value associated with the specified key is: ', "answer": "b"},
    "longbook_sum_eng": {"context": TEXT, "input": "", "answer": ["A line, and another."]},
    "longbook_qa_eng": {"context": TEXT, "input": "How many lines?", "answer": ["two", "2"]},
    "longbook_choice_eng": {"context": TEXT, "input": "Which gate?", "answer": [OWN[1]], "options": OWN},
    "longbook_qa_chn": {"context": "今天。", "input": "谁来了？", "answer": ["王五"]},
    "longdialogue_qa_eng": {"context": "$$MASK$$: hello", "input": "", "answer": ["ANN", "ANNA"], "options": []},
    "math_find": {"context": "[3, 1, 2]", "input": "You should answer with only one number, no other words. The second largest number of the list is: ", "answer": [2]},
    "math_calc": {"context": "1 + 2 - 5", "input": "", "answer": [[1, 3, -2]]},
    "code_run": {"context": "def func_7(x): return x", "input": "Please give me the exact number of the return value of func_7(-3). ", "answer": [-3]},
    "code_debug": {"context": "def f(): x", "input": "", "answer": ["f", "B"], "options": ["g", "f", "h", "i"]},
}  # fmt: skip
TURNS = [{"input": "First {question}?", "answer": "one"}, {"input": "Second?", "answer": "two"}, {"input": "Third?", "answer": "3"}]
SCBENCH_ROWS = {
    **{name: {"context": TEXT, "multi_turns": TURNS} for name in ["kv", "qa_eng", "prefix_suffix", "many_shot", "summary"]},
    "qa_chn": {"context": "今天。", "multi_turns": [{"input": "谁？", "answer": ["王五"]}, {"input": "为什么？", "answer": ["不知道"]}]},
    "vt": {"context": TEXT, "multi_turns": [{"input": "Which are 1?", "answer": ["AB", "CD"]}, {"input": "Which are 2?", "answer": ["EF"]}]},
    "choice_eng": {"context": TEXT, "multi_turns": [{"input": f"Q{i}?", "answer": OWN[i], "options": OWN} for i in range(3)]},
    "mf": {"context": "[3, 1, 2]", "multi_turns": [{"input": f"Answer with one number. The {w} number in the list is: ", "answer": a} for w, a in [("Largest", 3), ("smallest", 1), ("median", 2.5)]]},
}  # fmt: skip

MIXED_ROWS = {
    "summary_with_needles": {"context": TEXT, "multi_turns": [{"input": "What is paper 1?", "answer": "A {paper}.", "task": "scbench_summary"}, {"input": "The pass key is ", "answer": "71432", "task": "scbench_passkey"}, {"input": "What is paper 2?", "answer": "Another.", "task": "scbench_summary"}]},
    "repoqa_and_kv": {"context": TEXT, "lang": "python", "repo": "a/b", "multi_turns": [{"input": "Which function?", "answer": "def f(): pass", "name": "f", "task": "scbench_repoqa"}, {"input": "Key a?", "answer": "b", "task": "scbench_kv"}]},
}  # fmt: skip


# Whole prompts, as in the rows of the data set. Indices count characters.
INSTRUCTION = "You are given a text in which é counts as one. Answer.\n\nText:\n"
DOCUMENT = TEXT + " Ünïcode 王五.\n\n"
QUERY = "Question:\nWho?\n\nAnswer:\n"
ZEROSCROLLS_ROW = {
    "id": "1", "pid": "1_0", "input": INSTRUCTION + DOCUMENT + QUERY, "output": "Wang Wu", "document_start_index": len(INSTRUCTION),
    "document_end_index": len(INSTRUCTION + DOCUMENT), "query_start_index": len(INSTRUCTION + DOCUMENT),
    "query_end_index": len(INSTRUCTION + DOCUMENT) + 18, "truncation_seperator": "... [The rest of the text is omitted]\n\n",
}  # fmt: skip

PAIRS = [{"Q": "Who's {there}?", "A": 'He said "é".', "S": ["x"]}, {"Q": 'What is "that"?', "A": "It's\nthis", "S": "y"}]
CLOZES = [{"Q": "<mask-0> met <mask-1>.", "A": {"<mask-0>": "Bob's", "<mask-1>": 'The "X"'}}, {"Q": "<mask-0> left.", "A": {"<mask-0>": "Meg"}}]
# Rows as in the repository, whose questions are Python literals, and rows as on the hub, with one question each.
LOOGLE_ROWS = [
    ("shortdep_qa", {"input": TEXT, "title": "t", "qa_pairs": repr(PAIRS), "output": "none"}),
    ("longdep_qa", {"input": TEXT, "title": "t", "qa_pairs": repr(PAIRS), "output": "none"}),
    ("longdep_qa", {"context": TEXT, "question": PAIRS[0]["Q"], "answer": PAIRS[0]["A"], "type": "Computation"}),
    ("longdep_summarization", {"input": TEXT, "title": "t", "qa_pairs": "none", "output": "A {short} text."}),
    ("shortdep_cloze", {"input": TEXT, "title": "t", "qa_pairs": repr(CLOZES), "output": "None"}),
    ("shortdep_cloze", {"context": TEXT, "question": CLOZES[0]["Q"], "answer": repr(CLOZES[0]["A"])}),
]


def loogle_prompts():
    for name, row in LOOGLE_ROWS:
        text = row.get("input", row.get("context"))
        pairs = [{"Q": row["question"], "A": row["answer"]}] if "question" in row else [{}]
        if "qa_pairs" in row and row["qa_pairs"] != "none":
            pairs = eval(row["qa_pairs"])
        made = [LOOGLE[name].format(input=text, Q=pair.get("Q")) for pair in pairs]
        answers = [pair.get("A", row.get("output")) for pair in pairs]
        if name == "shortdep_cloze":
            # A dictionary becomes a reference as JSON, with the special characters of HTML as codes.
            answers = [json.dumps(eval(a) if isinstance(a, str) else a, ensure_ascii=False) for a in answers]
            answers = [a.replace("<", "\\u003c").replace(">", "\\u003e").replace("'", "\\u0027") for a in answers]
        yield f"loogle/{name}", row, made, [[a] for a in answers], LOOGLE_TOKENS[name]


def mixed_prompts():
    for name, (mixed, kind, tokens) in SCBENCH_MIXED.items():
        row = MIXED_ROWS[mixed]
        own = [at for at, turn in enumerate(row["multi_turns"]) if turn["task"] == kind]
        answers = [[row["multi_turns"][at]["answer"]] for at in own]
        for group, made in zip(["scbench", "scbench_multi_turn"], scbench_prompts(mixed, row)):
            yield f"{group}/{name}", row, [made[at] for at in own], answers, tokens


def prompts():
    yield from mixed_prompts()
    yield from loogle_prompts()
    for name, tokens in ZEROSCROLLS_TOKENS.items():
        row = ZEROSCROLLS_ROW
        yield f"zeroscrolls/{name}", row, [row["input"]], [[row["output"]]], tokens
    for task in LONGBENCH_V2:
        row = LONGBENCH_V2_ROW
        yield task, row, [longbench_v2_prompt(task, row)], [[row["answer"]]], 128
    for name, row in INFINITEBENCH_ROWS.items():
        tokens = INFINITEBENCH_TOKENS[name]
        yield f"infinitebench/{name}", row, [infinitebench_prompt(name, row)], [infinitebench_answers(name, row)], tokens
    for name, row in SCBENCH_ROWS.items():
        if name == "qa_chn":  # its answers are lists, which the published follow-up prints as Python does
            row = {**row, "multi_turns": [{**t, "answer": t["answer"][0]} for t in row["multi_turns"]]}
        requests, conversation = scbench_prompts(name, row)
        answers = scbench_answers(name, row)
        yield f"scbench/{name}", row, requests, answers, SCBENCH_TOKENS[name]
        yield f"scbench_multi_turn/{name}", row, conversation, answers, SCBENCH_TOKENS[name]


# ---- scores ----


def normalize_answer(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


CN = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."


def normalize_zh(text):
    return "".join("".join(c for c in text.lower() if c not in set(string.punctuation + CN)).split())


def f1(prediction, truth):
    same = sum((Counter(prediction) & Counter(truth)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(truth)
    return 2 * precision * recall / (precision + recall)


def blanked(text, marks):
    for mark in marks:
        text = text.replace(mark, " ")
    return text


def first_int(prediction):
    return next((item for item in re.split("[^0-9]", prediction) if item != ""), "")


def correct_letter(prediction, labels):
    response = prediction.strip().replace("*", "")
    for pattern in [r"The correct answer is \(([A-D])\)", r"The correct answer is ([A-D])"]:
        match = re.search(pattern, response)
        if match:
            return match.group(1) == labels[0]
    return False


def word(prediction, labels):
    return labels[0] in blanked(prediction, ["\n", ":", '"', "'", ".", ",", "?", "!", "{", "}"]).split()


def name(prediction, labels):
    words = blanked(prediction.strip(), ["\n", ":", '"', "'", ".", ",", "?", "!", "{", "}"]).split()
    return labels[0] in [w.upper() for w in words]


def first_digits(prediction, labels):
    return labels[0] == first_int(prediction)


def last_word_number(prediction, labels):
    words = blanked(prediction.strip(), ["\n", ".", "`", "'", '"', ":"]).split()
    if len(words) == 0:
        return False
    try:
        return int(words[-1]) == int(labels[0])
    except ValueError:
        return False


def first_value(prediction, labels):
    label = json.loads(labels[0])
    first = re.search(r"\d+\.\d+|\d+", prediction)
    if first is None:
        return False
    value = first.group(0).strip()
    return int(float(value)) == label if isinstance(label, int) else float(value) == label


def leading_numbers(prediction, labels):
    label = json.loads(labels[0])
    numbers = [int(item) for item in re.split("[^0-9]", prediction) if item != ""]
    count = 0
    for i in range(len(label)):
        if i >= len(numbers) or label[i] != numbers[i]:
            break
        count += 1
    return count / len(label)


def choice(prediction, label):
    pred = prediction.strip()
    if pred == "":
        return False
    if pred[0] in "ABCD":
        return pred[0] in label
    if pred in label:
        return True
    pred = blanked(pred, ["\n", '"', "'", ".", ",", "?", "!", "{", "}"])
    while "  " in pred:
        pred = pred.replace("  ", " ")
    for prefix in ["answer is:", "answer:", "answer is", "option is"]:
        at = pred.find(prefix)
        if at == -1:
            continue
        if len(pred) < at + len(prefix) + 1:
            return False
        after = pred[at + len(prefix) + 1 :]
        return any(after.startswith(s) for s in label)
    for w in pred.split():
        if w in "ABCD":
            return w in label
    return False


def function_choice(prediction, label):
    pred = prediction.strip()
    function, letter = label
    if pred[:2] in [f"{letter}.", f"{letter}:"]:
        return True
    pred = blanked(pred, ["\n", "`", "'", '"', "-", "*", "Option", "option"])
    while "  " in pred:
        pred = pred.replace("  ", " ")
    for prefix in ["answer is:", "is:", "answer:", "correct option is:"]:
        at = pred.find(prefix)
        if at == -1:
            continue
        if len(pred) < at + len(prefix) + 1:
            return False
        pred = pred[at + len(prefix) + 1 :]
        return any(pred.startswith(s) for s in [letter, function])
    return False


def qa_f1_zh_characters(prediction, labels):
    return max(f1(list(normalize_zh(prediction)), list(normalize_zh(label))) for label in labels)


SCORER = rouge_scorer.RougeScorer(rouge_types=["rougeLsum"], use_stemmer=False)


def rouge_lsum(prediction, labels):
    return SCORER.score_multi(labels, prediction)["rougeLsum"].fmeasure


def contains(prediction, labels):
    return labels[0] in prediction


def contains_in_capitals(prediction, labels):
    return any(item.upper() in prediction.strip().upper() for item in labels)


def contains_all_percent(prediction, labels):
    return round(sum(1.0 if r.lower() in prediction.lower() else 0.0 for r in labels) / len(labels), 2)


def gsm8k_hashes(prediction, labels):
    found = re.search(r"#### (\-?[0-9\.\,]+)", prediction)
    bare = lambda t: re.sub(r"\.$", "", re.sub(r"(?s).*#### ", "", t.replace(",", "").replace("$", ""))).lower()  # noqa: E731
    return bare(found.group(1) if found else "[invalid]") == bare(labels[0])


def qa_f1_ascii(prediction, labels):
    bare = lambda text: unidecode(normalize_answer(text)).split()  # noqa: E731
    return max(f1(bare(prediction), bare(label)) for label in labels)


def first_letter(prediction, labels):
    letter = lambda text: (re.search(r"\b[A-D]\b", text) or [None])[0]  # noqa: E731
    return letter(prediction) == letter(labels[0])


def percent_similarity(prediction, labels):
    found = [re.search(r"\d+\.?\d*%", text) for text in [prediction, labels[0]]]
    if found[0] is None:
        return 0.0
    said, right = [float(one[0].replace("%", "")) for one in found]
    return 0.5 ** (abs(right - said) / 10)


def order_concordance(prediction, labels):
    def numbers(text):
        return [int(number) for number in re.sub(r"[^0-9\s,]", "", text).replace(",", " ").split()]

    def places(order):
        return [order.index(number) + 1 for number in sorted(order)]

    said, right = numbers(prediction), numbers(labels[0])
    return concordance_index(places(right), places(said)) if sorted(said) == sorted(right) else 0.0


GOOGLE = rouge_scorer.RougeScorer(rouge_types=["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def google(which):
    return lambda prediction, labels: max(GOOGLE.score(label, prediction)[which].fmeasure for label in labels)


def rouge_score_mean(prediction, labels):
    one, two, longest = [google(which)(prediction, labels) for which in ["rouge1", "rouge2", "rougeL"]]
    return (one * two * longest) ** (1.0 / 3.0)


def loogle_said(prediction):
    return "None" if prediction == "" else prediction


def recall(which):
    return lambda prediction, labels: Rouge().get_scores(hyps=[loogle_said(prediction)], refs=[labels[0]])[0][which]["r"]


def bleu(weights):
    words = lambda text: text.replace("\n", " ").split()  # noqa: E731
    return lambda prediction, labels: sentence_bleu([words(labels[0])], words(loogle_said(prediction)), weights=weights)


def cloze(fits):
    def score(prediction, labels):
        right = json.loads(labels[0])
        try:
            said = eval(loogle_said(prediction))
            assert isinstance(said, dict)
        except Exception:
            return 0.0
        return sum(key in said and fits(said[key], name) for key, name in right.items()) / len(right)

    return score


NAMED = {
    "rouge_score_1": google("rouge1"), "rouge_score_2": google("rouge2"), "rouge_score_l": google("rougeL"),
    "rouge_1_recall": recall("rouge-1"), "rouge_2_recall": recall("rouge-2"), "rouge_l_recall": recall("rouge-l"),
    "bleu_1": bleu((1, 0, 0, 0)), "bleu_4": bleu((0, 0, 0, 1)), "cloze_exact": cloze(lambda said, right: said == right),
    "cloze_partial": cloze(lambda said, right: bool(set(str(said).split()) & set(right.split()))),
}  # fmt: skip
RULES = NAMED | {
    rule.__name__: rule
    for rule in [
        gsm8k_hashes, correct_letter, word, name, first_digits, last_word_number, first_value, leading_numbers, choice,
        function_choice, qa_f1_zh_characters, rouge_lsum, contains, contains_in_capitals, contains_all_percent,
        qa_f1_ascii, first_letter, percent_similarity, order_concordance, rouge_score_mean,
    ]
}  # fmt: skip

CAT = "The cat sat on the mat. It was happy, and it slept."
SAID = [CAT, "the CAT was happy", "It slept. The cat. On the mat it sat", "é", "cat cat cat cat", "mat the on sat cat the", "The cat sat on the mat", "happy", "on the mat. It was\nhappy, and it slept. More and more words than that there are here."]
MASKS = json.dumps({"<mask-0>": "Bob's", "<mask-1>": "New York Times"})
CLOZED = [
    "{'<mask-0>': \"Bob's\", '<mask-1>': 'New York Times'}", ' {"<mask-0>": "Bob\'s", "<mask-1>": "York"}\n', "{'<mask-1>': 'the Times'}", "{}", "",
    "The answer is {'<mask-0>': 'x'}", "{'<mask-0>': \"Bob's\"} and so on", "[1]", "{'<mask-0>': r\"Bob's\", '<mask-2>': 'x'}", "{'<mask-0>': 'Bob' \"'s\", }",
    "{'<mask-0>': 'bob\\'s', '<mask-1>': 'New\\x20York Times'}", '{"<mask-0>": null}', "{'<mask-0>': '''Bob's''', 2: 3}", "{'<mask-0>': \"Bob\\u0027s\"",
]  # fmt: skip
BY_HAND = [
    ("qa_f1_ascii", ["Café de l’Élan"], ["cafe de l'elan", "Café de l’Élan", "the café", "CAFE", "", "Straße", "“Café”", "cafe—de"]),
    ("qa_f1_ascii", ["Łódź", "Žižek", "Ελένη", "Чехов"], ["Lodz", "Zizek", "Elene", "Chekhov", "Łodz and more"]),
    ("first_letter", ["(B) the second"], ["B", "(B)", "b", "A or B", "Because B", "The answer is: B.", "AB B", "", "_B_ B", "E", "éB B"]),
    ("percent_similarity", ["60%"], ["60%", "55%", "It is 70.5% of them", "60", "0.6", "12.5% or 60%", "100%", "", "1.2.60%", "60.%", "6 0%"]),
    ("order_concordance", ["2, 1, 4, 3"], ["2, 1, 4, 3", "1, 2, 3, 4", "3,4,1,2", "2 1 4 3", "2, 1, 4", "2, 1, 4, 3, 3", "Summary 2, 1, 4, 3.", "2-1, 4, 3", "[4, 3, 2, 1]", "", "1, 1, 2, 2"]),
    *[(rule, [CAT], SAID + [""]) for rule in ["rouge_score_1", "rouge_score_2", "rouge_score_l", "rouge_score_mean", "bleu_1", "bleu_4"]],
    ("rouge_score_mean", ["One good summary.", "Another summary that is good"], ["another summary", "one good summary that is good"]),
    *[(rule, [CAT], SAID) for rule in ["rouge_1_recall", "rouge_2_recall", "rouge_l_recall"]],
    *[(rule, [MASKS], CLOZED) for rule in ["cloze_exact", "cloze_partial"]],
    ("gsm8k_hashes", ["1,234"], ["So 1.\n#### 1234", "#### 1,234.", "####1234", "The answer is 1234", "#### 12\n#### 1234"]),
    ("correct_letter", ["C"], ["The correct answer is (C).", "**The correct answer is C**", "The *correct* answer is (C)", "the correct answer is (C)", "The correct answer is (D) or The correct answer is (C)", "The correct answer is D. The correct answer is (C)", "C", "", "The correct answer is (insert answer here) C", "The correct answer is Cats"]),
    ("word", ["a1-b2"], ['"a1-b2".', "a1-b2x", "the value: 'a1-b2'", "{a1-b2}", "A1-B2", "", "a1-b2;", "x,a1-b2,y", "x\u3000a1-b2"]),
    ("name", ["ANN"], ["ann", "Ann: hello", "ANNA", "It's Ann's", "'Ann'", "mary ann smith", "(Ann)", ""]),
    ("first_digits", ["71432"], [" 71432.", "key 71432 not 5", "071432", "7 1432", "the 71,432", "none", "", "１ 71432"]),
    ("last_word_number", ["-5"], ["-5", "it is -5.", "value: -5", "`-5`", "5", "-5 units", "-05", "- 5", "", "x = -5\n"]),
    ("last_word_number", ["1000"], ["1_000", "+1000", "1000.0", "1,000", "01000"]),
    ("first_value", ["37"], ["37", "37.9", "It is 37, not 38", "-37", "037", "38 37", "3 7", "", "x37y"]),
    ("first_value", ["2.5"], ["2.5", "2.50", "2", "It is 2.5.", ".5"]),
    ("leading_numbers", ["[1, 4, 8, 12]"], ["[1, 4, 8, 12]", "1 4 8", "1, 4, 9, 12", "4 8", "", "01 04", "1.4 8 12 99"]),
    ("leading_numbers", ["[3, -2, 5]"], ["3, -2, 5", "3, 2, 5"]),
    ("choice", ["a blue gate", "B"], ["B", "B. a blue gate", "Blue", "A or B", "a blue gate", "The answer is B", "the answer is: B.", "the answer is: a blue gate", "the answer is", "I think the option is C", "it may be AB or B", "it is B", "(B)", "", "  B", "answer:B", "answer: BC", "Because of it"]),
    ("function_choice", ["run", "C"], ["C. run", "C: run", "C", "c.", "The answer is: C", "The answer is: run", "The answer is: `run`", "The correct option is: D", "The bug is: Option C", "Option C is wrong. The answer: C", "answer:", "It is C", "", "The error is:run", "Cx."]),
    ("qa_f1_zh_characters", ["王五和李四", "他们"], ["王五", "王五和李四。", "李四 和 王五", "他们是王五", "《他们》", "", "nobody", "王 五!"]),
    ("rouge_lsum", ["The cat sat on the mat.\nIt was happy, and it slept."], ["The cat sat on the mat.\nIt was happy, and it slept.", "the CAT was happy", "It slept.\nThe cat.\n\nOn the mat it sat", "", "\n\n", "é", "cat cat cat cat", "mat the on sat cat the"]),
    ("rouge_lsum", ["One summary.", "Another\nsummary here"], ["another summary", "one"]),
    ("contains", ["a1-b2"], ["xa1-b2x", "A1-B2", "", "a1 b2"]),
    ("contains_in_capitals", ["Ann Lee", "Bob"], ["it is ann lee.", "BOB", "Ann", "", " straße bob"]),
    ("contains_all_percent", ["AB", "CD", "EF"], ["ab", "ab cd", "EFabCD", "", "a b"]),
    ("contains_all_percent", [f"V{i}X" for i in range(8)], ["v0x", "v0x v1x v2x", "v0x v1x v2x v3x v4x", "v0x v1x v2x v3x v4x v5x v6x"]),
]  # fmt: skip
WORDS = ["the ", "cat ", "sat ", "on the mat. ", "It ", "was ", "happy, ", "and it slept."]
PIECES = {
    "choice": ["A", "B", "answer is:", "answer:", "option is", " ", "\n", "'", "gate", "a blue gate", ".", "AB"],
    "function_choice": ["C", "run", "answer is:", "is:", "Option", " ", "`", "*", "C.", "-", "é"],
    "rouge_lsum": ["the ", "cat ", "sat. ", "mat\n", "It ", "was ", "happy", "\n", "é", "4 "],
    "leading_numbers": ["1", "4", " ", ", ", "8", "[", "12", "-"],
    "last_word_number": ["-5", "5", " ", ".", "`", "x", "0"],
    "first_value": ["37", "3", ".", " ", "7", "x"],
    "word": ["a1-b2", " ", ".", "x", "'", "\n"],
    "qa_f1_zh_characters": ["王", "五", "李", "四", "，", " ", "x", "》"],
    "correct_letter": ["The correct answer is ", "(C)", "(D)", "C", "*", " ", "("],
    **{rule: WORDS for rule in ["rouge_score_1", "rouge_score_2", "rouge_score_l", "rouge_score_mean", "bleu_1", "bleu_4", "rouge_l_recall"]},
    "order_concordance": ["1", "2", "3", "4", ", ", " "],
    "first_letter": ["A", "B", "C", " ", ".", "é", "("],
    "percent_similarity": ["6", "0", ".", "%", " ", "59%"],
}


def scores():
    draw = random.Random(11)
    cases = [(rule, labels, prediction) for rule, labels, predictions in BY_HAND for prediction in predictions]
    for rule, pieces in PIECES.items():
        labels = next(labels for r, labels, _ in BY_HAND if r == rule)
        for _ in range(25):
            cases.append((rule, labels, "".join(draw.choices(pieces, k=draw.randint(1, 14)))))
    for rule, labels, prediction in cases:
        yield {"metric": rule, "prediction": prediction, "references": labels, "score": float(RULES[rule](prediction, labels))}


def main():
    write = sys.stdout.write
    write('{"scores": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in scores()))
    keys = ["task", "row", "prompts", "answers", "max_new_tokens"]
    lines = (json.dumps(dict(zip(keys, case)), ensure_ascii=False) for case in prompts())
    write('\n],\n"prompts": [\n' + ",\n".join(lines) + "\n]}\n")


main()
