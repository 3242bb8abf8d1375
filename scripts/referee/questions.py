"""Prompts of PIQA and MMLU, from their published files, as lm-eval's task files say."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Question:
    subject: str
    context: str
    options: list
    right: int
    # Whether log-likelihoods are compared by character (lm-eval's acc_norm).
    normalised: bool


def piqa(data):
    """piqa/piqa.yaml: the goal, and two ways to it in full."""
    labels = Path(data, "piqa/valid-labels.lst").read_text().split()
    rows = Path(data, "piqa/valid.jsonl").read_text().splitlines()
    for row, label in zip(map(json.loads, rows), labels):
        yield Question("", f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], int(label), True)


def mmlu_rows(path):
    """Question, choices and the right one's index."""
    with open(path, newline="") as file:
        for question, *choices, answer in list(csv.reader(file))[1:]:
            yield question, choices, int(answer)


def mmlu_by_turns(data):
    """Subject, question, choices and the right one's index. Subjects take turns, as in the stored runs."""
    subjects = sorted(path.name.removesuffix("_test.csv") for path in Path(data, "mmlu/test").glob("*_test.csv"))
    asked = {subject: list(mmlu_rows(Path(data, f"mmlu/test/{subject}_test.csv"))) for subject in subjects}
    for turn in range(max(map(len, asked.values()))):
        yield from ((subject, *rows[turn]) for subject, rows in asked.items() if turn < len(rows))


def mmlu_prompt(question, choices):
    options = "".join(f"{letter}. {choice}\n" for letter, choice in zip("ABCD", choices))
    return f"{question.strip()}\n{options}Answer:"


def mmlu_begin(data, subject, shots):
    about = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
    solved = list(mmlu_rows(Path(data, f"mmlu/dev/{subject}_dev.csv")))[:shots]
    return about + "".join(f"{mmlu_prompt(question, choices)} {'ABCD'[right]}\n\n" for question, choices, right in solved)


def mmlu(data, shots):
    """mmlu/default: solved examples of the subject, then the letters."""
    for subject, question, choices, right in mmlu_by_turns(data):
        context = mmlu_begin(data, subject, shots) + mmlu_prompt(question, choices)
        yield Question(subject, context, list("ABCD"), right, False)


def questions(task, data, count):
    """The first questions of a task such as `mcq/mmlu:shots=5`."""
    name, _, options = task.partition(":")
    shots = int(dict(pair.split("=") for pair in options.split(",") if pair).get("shots", 0))
    made = {"mcq/piqa": lambda: piqa(data), "mcq/mmlu": lambda: mmlu(data, shots)}[name]()
    return [question for _, question in zip(range(count), made)]
