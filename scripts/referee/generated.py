"""Recomputes a cell of generated answers: MMLU after worked examples, decoded greedily with full attention."""

import json
import sys
import time

import numpy as np

from choices import prefill, shared
from questions import mmlu_by_turns
from qwen2 import Cache, Segment
from stored import ROOT, spec_of

SAID = "answer is "
ENDS = ("<|endoftext|>", "<|im_end|>")


def prompts(data, shots):
    """Subject, prompt and right answer of each question, as lm-eval's mmlu_flan_cot_fewshot says.

    The worked examples are read from the copy of lm-eval's files in tasks/.
    """
    known = json.loads((ROOT / "tasks/mmlu_flan_cot.json").read_text())["subjects"]
    for subject, question, choices, right in mmlu_by_turns(data):
        solved = "".join(f"Q: {asked.strip()}\nA: {worked}\n\n" for asked, worked in known[subject]["examples"][:shots])
        options = " ".join(f"({letter}) {choice}" for letter, choice in zip("ABCD", choices))
        prompt = f"{known[subject]['description']}{solved}Q: {question.strip()}\n{options}\nA: Let's think step by step."
        yield subject, prompt, f"({'ABCD'[right]})"


def said(text):
    """What a text gives as its answer: the line behind the first "answer is " without its last character. None if nothing."""
    lines = [part.split("\n")[0] for part in text.split(SAID)[1:]]
    return next((line[:-1].strip() for line in lines if line), None)


def bare(text):
    return "".join(c for c in text.lower() if c.isalnum() or c.isspace())


def is_complete(text):
    """Whether more tokens cannot change the answer: its line has ended."""
    return any(line and rest for line, rest, _ in (part.partition("\n") for part in text.split(SAID)[1:]))


class Answer:
    """An answer that grows token by token."""

    def __init__(self, model, prefix, last, limit):
        self.cache = prefix.room_for(len(prefix) + limit + 1)
        self.next, self.limit = last, limit
        self.tokens, self.text, self.done = [], "", False
        # The smallest lead of a token that was taken over the next, in logits.
        self.nearest = np.inf

    def take(self, logits, tokenizer):
        first, second = np.argpartition(-logits, 1)[:2]
        self.nearest = min(self.nearest, float(logits[first] - logits[second]))
        self.next = int(first)
        self.done = tokenizer.id_to_token(self.next) in ENDS
        if not self.done:
            self.tokens.append(self.next)
            self.text = tokenizer.decode(self.tokens)
            self.done = len(self.tokens) == self.limit or is_complete(self.text) or "</s>" in self.text


def decode(model, tokenizer, answers):
    """Lets answers grow side by side until all are done."""
    step = 0
    while active := [answer for answer in answers if not answer.done]:
        hidden, caches = model.read([Segment(answer.cache.now(), [answer.next]) for answer in active])
        logits = np.concatenate(hidden) @ model.output.T
        for answer, cache, row in zip(active, caches, logits):
            answer.cache.append(cache)
            answer.take(row, tokenizer)
        step += 1
        print(f"step {step}: {len(active)} answers", file=sys.stderr, flush=True)


def begun(model, encode, asked, limit):
    """An `Answer` for each prompt, by its place; prompts of a subject share what is read before they differ."""
    ids = [encode(prompt) for _, prompt, _ in asked]
    found = {}
    for subject in dict.fromkeys(subject for subject, _, _ in asked):
        own = [at for at, (other, _, _) in enumerate(asked) if other == subject]
        common = shared([ids[at] for at in own])
        base = prefill(model, Cache.empty(model), ids[own[0]][:common])
        for at in own:
            found[at] = Answer(model, prefill(model, base, ids[at][common:-1]), ids[at][-1], limit)
    return ids, [found[at] for at in range(len(asked))]


def compare(record, answer, length, right):
    """How an answer compares with its record: same text (up to where it was stopped), same score; None if prompts differ."""
    if record["prompt_tokens"] != length or record["references"] != [right]:
        return None
    score = float(bare(said(answer.text) or "") == bare(right))
    text = record["prediction"].startswith(answer.text.rstrip()) if answer.text else not record["prediction"]
    return text, score, score == record["score"]


def report(item, records, answers, compared, seconds):
    """Prints how answers compare. Returns 1 if the score differs or a prompt does, 0 otherwise."""
    unlike = compared.count(None)
    stored = 100 * np.mean([record["score"] for record in records])
    ours = 100 * np.mean([entry[1] if entry else np.nan for entry in compared])
    same = unlike == 0 and abs(stored - ours) < 1e-9
    which = f"samples {records[0]['sample']} to {records[-1]['sample']}"
    print(f"{'same' if same else 'OTHER':6}{item.name} full, score of {which}: {stored:.6f} and {ours:.6f}")
    texts = sum(entry[0] for entry in compared if entry)
    print(f"      {texts} texts are the same as far as the answer, {unlike} prompts are not; {seconds:.0f} s")
    for record, answer, entry in zip(records, answers, compared):
        if not (entry and entry[0] and entry[2]):
            scores = f"{entry and entry[1]} here, {record['score']} stored"
            print(f"      sample {record['sample']}: {scores}; smallest lead of a token {answer.nearest:.1e}")
    return 0 if same else 1


def check(model, encode, tokenizer, item, data, skip, count):
    """Compares the cell of full attention, or the scores of `count` questions after `skip`. Returns whether they differ."""
    start = time.time()
    records = sorted((r for r in item.records if spec_of(r) == "full"), key=lambda record: record["sample"])[skip:][:count]
    assert {record["task"] for record in records} == {"gen/mmlu_flan_cot"}
    known = list(prompts(data, 4))
    asked = [known[record["sample"]] for record in records]
    model.attention_type = np.float32
    ids, answers = begun(model, encode, asked, records[0]["max_new_tokens"])
    decode(model, tokenizer, answers)
    model.attention_type = np.float64
    compared = [compare(r, a, len(i), right) for r, a, i, (_, _, right) in zip(records, answers, ids, asked)]
    return report(item, records, answers, compared, time.time() - start)
