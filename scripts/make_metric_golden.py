#!/usr/bin/env python3
"""Writes tests/golden/metrics.json: the results of the published scoring rules on invented inputs.

The rules are written here independently of the Rust ones, in the language of their publication,
with the packages that LongBench names:

    pip install rouge==1.0.1 fuzzywuzzy==0.18.0 jieba==0.42.1 python-Levenshtein==0.27.5
    python3 scripts/make_metric_golden.py > tests/golden/metrics.json

Run with CPython 3.11 and the standard recursion limit: two rules depend on it.
"""

import importlib
import json
import logging
import random
import re
import string
import sys
import warnings
from collections import Counter

warnings.filterwarnings("ignore")
import jieba  # noqa: E402
from rouge import Rouge  # noqa: E402

# fuzzywuzzy uses python-Levenshtein if it is installed: import it once without, and once with it.
sys.modules["Levenshtein"] = None
from fuzzywuzzy import fuzz  # noqa: E402

assert "difflib" in fuzz.SequenceMatcher.__module__
del sys.modules["Levenshtein"], sys.modules["fuzzywuzzy.fuzz"]
fuzz_levenshtein = importlib.import_module("fuzzywuzzy.fuzz")
assert fuzz_levenshtein is not fuzz and "difflib" not in fuzz_levenshtein.SequenceMatcher.__module__
jieba.setLogLevel(logging.ERROR)


def normalize(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(p, a):
    same = sum((Counter(p) & Counter(a)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(p), same / len(a)
    return 2 * precision * recall / (precision + recall)


def qa_f1(prediction, answer, _classes):
    return f1(normalize(prediction).split(), normalize(answer).split())


# As published: the opening mark of book titles is not in the list, its closing one is.
CHINESE_PUNCTUATION = set(
    string.punctuation
    + "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)


def chinese_words(text):
    kept = ("".join(c for c in word.lower() if c not in CHINESE_PUNCTUATION) for word in jieba.cut(text))
    return [word for word in ("".join(word.split()) for word in kept) if word]


def qa_f1_zh(prediction, answer, _classes):
    return f1(chinese_words(prediction), chinese_words(answer))


def rouge_l_zh(prediction, answer, classes):
    return rouge("rouge-l")(" ".join(jieba.cut(prediction)), " ".join(jieba.cut(answer)), classes)


def exact_match(prediction, answer, _classes):
    return float(normalize(prediction) == normalize(answer))


def rouge(which):
    def score(prediction, answer, _classes):
        try:
            return Rouge(metrics=[which]).get_scores([prediction], [answer], avg=True)[which]["f"]
        except (ValueError, RecursionError):
            return 0.0

    return score


def classification(prediction, answer, classes):
    found = [c for c in classes if c in prediction]
    for term in found:  # removing while iterating is the published behaviour
        if term in answer and term != answer:
            found.remove(term)
    return 1.0 / len(found) if answer in found else 0.0


def numbers(prediction, wanted):
    found = re.findall(r"\d+", prediction)
    return found.count(wanted) / len(found) if found else 0.0


def retrieval(label):
    return lambda prediction, answer, _classes: numbers(prediction, re.findall(label + r"(\d+)", answer)[0])


def count(prediction, answer, _classes):
    return numbers(prediction, str(answer))


def code_sim(fuzz):
    def score(prediction, answer, _classes):
        lines = prediction.lstrip("\n").split("\n")
        kept = [line for line in lines if "`" not in line and "#" not in line and "//" not in line]
        return fuzz.ratio(kept[0] if kept else "", answer) / 100

    return score


def clean(prediction):
    return re.sub("[\x00-\x1f]", "\n", prediction.strip()).strip()


def match(prediction, references):
    return [1.0 if r.lower() in prediction.lower() else 0.0 for r in references]


def same_value(found, answer):
    return float(bool(found) and int(found[0]) == int(answer))


def first_number(prediction, answer, _classes):
    return same_value(re.findall(r"\d+", prediction)[:1], answer)


def last_number(prediction, answer, _classes):
    return same_value(re.findall(r"\d+", prediction)[-1:], answer)


def digit_match(prediction, answer, _classes):
    digits = re.findall(r"\d", prediction)
    return sum(a == b for a, b in zip(answer, digits)) / len(answer)


def same_sum(number, answer):
    def bare(text):
        for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
            text = re.sub(pattern, "", text)
        return text.lower()

    return float(bare(number.strip()) == bare(answer))


def gsm8k_strict(prediction, answer, _classes):
    found = re.compile(r"The answer is (\-?[0-9\.\,]+).").findall(prediction)
    return same_sum(found[0] if found else "[invalid]", answer)


def gsm8k_flexible(prediction, answer, _classes):
    found = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)").findall(prediction)
    return same_sum([group for group in found[-1] if group][0] if found else "[invalid]", answer)


def answer_is(prediction, answer, _classes):
    # The filter `get-answer` of mmlu_flan_cot_fewshot, then exact_match with ignore_case and ignore_punctuation.
    found = re.compile(r"(?<=answer is )(.*)(?=.)").findall(prediction)
    said = found[0].strip() if found else "[invalid]"
    bare = [x.lower().translate(str.maketrans("", "", string.punctuation)) for x in (said, answer)]
    return float(bare[0] == bare[1])


def squad_f1(prediction, answer):
    p, a = normalize(prediction).split(), normalize(answer).split()
    return f1(p, a) if p and a else float(p == a)


def coqa(score):
    def mean(prediction, references):
        # As in lm_eval/tasks/coqa/utils.py, doc_to_target.
        references = [r for i, r in enumerate(references) if r.lower() not in map(str.lower, references[:i])]
        prediction = prediction.strip().split("\n")[0]
        others = [references[:i] + references[i + 1 :] for i in range(len(references))]
        if len(references) == 1:
            others = [references]
        return sum(max(score(prediction, a) for a in rest) for rest in others) / len(references)

    return mean


PER_ANSWER = {
    "first_number": first_number,
    "last_number": last_number,
    "digit_match": digit_match,
    "gsm8k_strict": gsm8k_strict,
    "gsm8k_flexible": gsm8k_flexible,
    "answer_is": answer_is,
    "exact_match": exact_match,
    "qa_f1": qa_f1,
    "qa_f1_zh": qa_f1_zh,
    "rouge_l": rouge("rouge-l"),
    "rouge_l_zh": rouge_l_zh,
    "rouge_1": rouge("rouge-1"),
    "rouge_2": rouge("rouge-2"),
    "classification": classification,
    "retrieval": retrieval("Paragraph "),
    "retrieval_zh": retrieval("段落"),
    "count": count,
    "code_sim": code_sim(fuzz),
    "code_sim_levenshtein": code_sim(fuzz_levenshtein),
}
OF_SEVERAL = {
    "coqa_f1": coqa(squad_f1),
    "coqa_em": coqa(lambda p, a: float(normalize(p) == normalize(a))),
}
OVER_ALL = {
    "string_match_all": lambda p, refs: sum(match(p, refs)) / len(refs),
    "string_match_part": lambda p, refs: max(match(p, refs)),
}

WORDS = [
    ("The lighthouse keeper, of course!", ["lighthouse keeper", "a keeper of course"]),
    ("in 1,492 or so", ["1492", "or so in"]),
    ("Æther and ÉCLAIR", ["æther an éclair"]),
    ("an_apple the-end a.b", ["an apple theend ab"]),
    ("“quoted” – dash", ["quoted dash", "“quoted” – dash"]),
    ("\u3000wide\u00a0space\x1cseparated\u200b", ["wide space separated", "wide space separated\u200b"]),
    ("tea tea tea for two", ["tea for two tea", "two for tea"]),
    ("ΟΔΟΣ", ["οδος", "οδοσ"]),
    ("", ["silence"]),
    ("?!", ["?!", "word"]),
    ("yes\nno", ["no", "yes"]),
    ("x" * 40, ["x" * 40]),
]
TEXTS = [
    ("Rain fell on the valley. The river rose by noon.", ["The river rose. Rain fell on the valley by noon."]),
    ("Rain fell on the valley The river rose", ["Rain fell. The river rose.", "Snow fell"]),
    ("one two two three three three", ["three two one", "one two three one two three"]),
    ("a.b.c.d", ["a b c d", "d.c.b.a"]),
    ("same same. same", ["same"]),
    (" ", ["\n", "word"]),
    ("...", ["word"]),
    ("word", ["", "..."]),
    ("Case matters", ["case matters", "Case matters"]),
    ("tabs\tand\r\nlines  collapse", ["tabs and lines collapse"]),
    ("v1.2 of the tool. It works", ["v1 2 of the tool It works."]),
    ("alpha beta gamma delta epsilon zeta", ["beta alpha delta gamma zeta epsilon", "zeta eta theta. alpha beta. gamma"]),
    ("。".join(["雨が降った"] * 2), ["雨が降った 雨が降った", "雨が降った。雨が降った"]),
]
CHINESE = [
    ("他来到了网易杭研大厦。", ["网易杭研大厦", "他来到网易"]),
    ("小明硕士毕业于中国科学院计算所，后在日本京都大学深造", ["小明在中国科学院计算所获得硕士学位，之后去了日本京都大学。", "小明"]),
    ("《红楼梦》的作者是曹雪芹", ["曹雪芹写了《红楼梦》", "红楼梦"]),
    ("2023年第3季度营收为12.5亿元，同比增长15%", ["营收12.5亿元", "2023年 第3季度"]),
    ("使用C++和Python 3.11编写，ＡＢＣ Ltd.", ["用Python和c++编写", "abc ltd"]),
    ("龘靐齉爩 𠮷野家 㐀㐁", ["𠮷野家", "龘靐齉爩"]),
    ("，。！？", ["，。！？", "无"]),
    ("", ["没有答案"]),
    ("第一行\r\n第二行\t第三行\u3000完", ["第一行第二行第三行完", "第二行"]),
    ("乒乓球拍卖完了。乒乓球拍卖完了。", ["乒乓球拍卖完了", "乒乓球拍. 卖完了"]),
]
# Common and rare words of the segmenter's dictionary without spaces: the cuts depend on neighbouring words.
CHINESE_MIXED = 40
# One sentence below and one above the limit of the package's recursion (about 990 words when called as in LongBench).
LONG_TEXTS = [(" ".join(map(str, range(n))), [" ".join(map(str, range(n)))]) for n in (900, 1100)]
CLASSES = ["River", "River delta", "Delta", "delta", "Mountain", "Mountain range", "Lake", "a", "an inlet", "in"]
LABELS = [
    ("River delta", ["River delta"]),
    ("This is a River delta.", ["River delta", "River"]),
    ("Mountain range, an inlet", ["an inlet", "Mountain range"]),
    ("mountain", ["Mountain"]),
    ("Lake", ["Lake"]),
    ("", ["Lake"]),
    ("River, Delta, Lake", ["Delta", "Sea"]),
]
REPEATED = ["in", "in", "an inlet", "inlet"]
PARAGRAPHS = [
    ("Paragraph 12", ["Paragraph 12"]),
    ("12, 13 or 12", ["Paragraph 12 (Paragraph 13)"]),
    ("the 012th", ["Paragraph 12"]),
    ("twelve", ["Paragraph 12", "Paragraph 1"]),
    ("١٢ and 12½", ["Paragraph 12", "Paragraph ١٢"]),
    ("12²", ["Paragraph 12"]),
    ("①②", ["Paragraph 1"]),
]
COUNTS = [
    ("There are 7 of them", ["7"]),
    ("7 in 14, not 7.0", ["7", "0"]),
    ("seven", ["7"]),
    ("007", ["7", "007"]),
    ("７ is 7", ["7"]),
]
LONG_LINE = "total += weights[index] * values[index] if index < limit else default_value(index); "
CODE = [
    ("    return total\n    pass", ["    return total", "return total"]),
    ("```python\nfor i in range(3):\n```", ["for i in range(3):"]),
    ("# only a comment\nx = 1  # trailing\ny = 2", ["x = 1", "y = 2"]),
    ("\n\n\nvalue = 3", ["value = 4"]),
    ("\r\nvalue = 3", ["value = 3"]),
    ("// nothing else", ["", "int x;"]),
    ("", ["x"]),
    ("int résumé = naïve();", ["int resume = naive();"]),
    ("abcd", ["bcda", "dcba", "abcde"]),
    (LONG_LINE * 3, [LONG_LINE * 3 + "x", LONG_LINE[::-1] * 3, (LONG_LINE * 3)[7:]]),
    (LONG_LINE * 2, [LONG_LINE * 4, LONG_LINE]),
    ("self.assertEqual(result.total, 10)", ["self.assertEqual(total, result)", "assert result.total == 10"]),
]
PARTS = [
    ("  Amber, birch and CEDAR\t", ["cedar", "birch", "oak"]),
    ("\x07code\x00name\x1f", ["code\nname", "codename"]),
    ("İZMİR", ["izmir", "i̇zmi̇r"]),
    ("", ["", "x"]),
    ("\x1e\x1d", ["\n"]),
    ("Straße 5", ["STRASSE", "straße 5"]),
]


NUMBERS = [
    (text, ["31415"])
    for text in (
        " 31415. Remember it.",
        "line 7 is <31415>",
        "031415",
        "131415",
        "none",
        "$314 15$ and 9",
        "31425",
        "",
    )
]
# Answers with a chain of thought, which vary where the final answer begins and ends.
THOUGHTS = [
    "Two and two are four. The answer is (B).",
    "The answer is (B)",
    "The answer is (a). The answer is (B).",
    "the answer is B\nor so",
    "The answer is  ( B ) .",
    "The answer is: (B).",
    "An answer is \nanswer is (B)).",
    "The answer is (B) because (A) is wrong.",
    "(B)",
    "answer is .",
    "answer is ",
    "The answer is b.",
    "answer is answer is (B).",
]
SUMS = [
    ("3 + 4 = 7. The answer is 7.", ["7"]),
    ("The answer is 1,234.\n", ["1234"]),
    ("The answer is 1234 dollars", ["1,234"]),
    ("The answer is $18.", ["18"]),
    ("The answer is -5.", ["-5"]),
    ("The answer is 12", ["12"]),
    ("The answer is 12", ["1"]),
    ("The answer is 3.50.", ["3.50"]),
    ("The answer is 7. No: The answer is 8.", ["8"]),
    ("the answer is 9.", ["9"]),
    ("So it is $1,000.", ["1000"]),
    ("It is 8 ... well", ["8"]),
    ("8 of 8, or 6-2", ["2"]),
    ("8 of 8, or 6-2", ["-2"]),
    ("#### 42", ["42"]),
    ("٤٢ is 42", ["42"]),
    ("none", ["[INVALID]"]),
    ("", ["0"]),
]
CONVERSATIONS = [
    (" Ann\nQ: Who?", ["Ann"]),
    ("Ann", ["Ann", "she"]),
    ("the Ann!", ["Ann", "she", "an Ann"]),
    ("Ann Lee of Rome", ["Ann Lee", "Lee", "a woman of Rome", "nobody"]),
    ("", ["the", "nobody"]),
    ("", ["a"]),
    ("!", ["no", "yes"]),
    ("\n\nAnn", ["Ann"]),
    ("In 1,492", ["1492", "in 1492", "fifteenth century"]),
]
# Repeated answers, which lm-eval counts once.
REPEATED_ANSWERS = [
    ("Ann", ["Ann", "ann", "she"]),
    ("Ann", ["Ann", "ANN", "Ann"]),
    ("Ann Lee", ["Ann", "nobody", "Nobody", "Ann", "Lee"]),
    ("the Ann", ["Ann", "the Ann", "THE ANN"]),
    ("ΟΔΟΣ", ["οδος", "ΟΔΟΣ", "street"]),
]


def code_pairs():
    """Similar lines. Some scores are halves of a percent, for which the order of operations matters."""
    draw = random.Random(5)
    for n, m in [(8, 8), (40, 40), (16, 24), (100, 100), (80, 120), (13, 27)] * 6:
        line = "".join(draw.choice("abcdef (=.é") for _ in range(n))
        other = [draw.choice(line) if draw.random() < 0.5 else draw.choice("xyz") for _ in range(m)]
        yield line, ["".join(other), line[: n // 2] + "z" * (m - n // 2)]


def mixed_chinese():
    """Pairs of texts with some common words; joining them creates further words."""
    draw = random.Random(7)
    known = sorted((word for word, count in jieba.dt.FREQ.items() if count > 0), key=lambda w: (-jieba.dt.FREQ[w], w))
    pools = [known[:2000], known[2000:40000], known[40000:], list("，。、；：？！ \n％《》（）…A7.-é１ァ가")]
    pick = lambda: draw.choice(draw.choices(pools, weights=[5, 3, 2, 2])[0])  # noqa: E731
    for _ in range(CHINESE_MIXED):
        words = [pick() for _ in range(draw.randint(4, 40))]
        other = [word if draw.random() < 0.6 else pick() for word in words]
        yield "".join(words), ["".join(other)]


def cases():
    for metric in ("qa_f1", "exact_match"):
        yield from ((metric, p, refs, []) for p, refs in WORDS)
    for metric in ("rouge_l", "rouge_1", "rouge_2"):
        yield from ((metric, p, refs, []) for p, refs in TEXTS)
    yield from (("rouge_l", p, refs, []) for p, refs in LONG_TEXTS)
    jieba.initialize()
    chinese = CHINESE + list(mixed_chinese())
    for metric in ("qa_f1_zh", "rouge_l_zh"):
        yield from ((metric, p, refs, []) for p, refs in chinese)
    yield from (("classification", p, refs, CLASSES) for p, refs in LABELS)
    yield "classification", "an inlet in", ["an inlet"], REPEATED
    yield from (("retrieval", p, refs, []) for p, refs in PARAGRAPHS)
    yield "retrieval_zh", "段落3，段落4", ["段落4"], []
    yield from (("count", p, refs, []) for p, refs in COUNTS)
    yield from (("code_sim", p, refs, []) for p, refs in CODE)
    for metric in OVER_ALL:
        yield from ((metric, p, refs, []) for p, refs in PARTS)
    for metric in ("first_number", "last_number", "digit_match"):
        yield from ((metric, p, refs, []) for p, refs in NUMBERS)
    for metric in ("gsm8k_strict", "gsm8k_flexible"):
        yield from ((metric, p, refs, []) for p, refs in SUMS)
    for metric in OF_SEVERAL:
        yield from ((metric, p, refs, []) for p, refs in CONVERSATIONS)
    for metric in OF_SEVERAL:
        yield from ((metric, p, refs, []) for p, refs in REPEATED_ANSWERS)
    for metric in ("code_sim", "code_sim_levenshtein"):
        yield from ((metric, p, refs, []) for p, refs in code_pairs())
    yield from (("code_sim_levenshtein", p, refs, []) for p, refs in CODE)
    yield from (("answer_is", p, [letter], []) for p in THOUGHTS for letter in ("(A)", "(B)"))


def score(metric, prediction, references, classes):
    if metric in OF_SEVERAL:
        return OF_SEVERAL[metric](prediction, references)
    if metric in OVER_ALL:
        return OVER_ALL[metric](clean(prediction), references)
    return max([0.0] + [PER_ANSWER[metric](prediction, r, classes) for r in references])


def rows():
    for metric, prediction, references, classes in cases():
        row = {"metric": metric, "prediction": prediction, "references": references}
        if classes:
            row["all_classes"] = classes
        yield row | {"score": score(metric, prediction, references, classes)}


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows()) + "\n]")
