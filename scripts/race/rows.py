#!/usr/bin/env python3
"""RULER's examples as rows in kvpress' fields, which kvpress' pipeline and `spattn eval -t jsonl:FILE:task=each` both read.

    python3 scripts/race/rows.py OUT.jsonl --program spattn --model FILE.gguf --length 16K --samples 2 [--data DIR] [--task ruler/vt ...]

The texts are those of `spattn data export-eval`: the same task, length, seed and data give the examples of `spattn eval`. The context ends
where spattn begins to be sparse with `--sparse-from question`. Rows take turns: the first example of each task, then the second, so that a
run that is stopped has read as many of each.
"""

import argparse
import json
import subprocess

# With --data all 13 tasks, without it those that need no data.
NEED_DATA = ["ruler/qa_1", "ruler/qa_2"]
NEED_NONE = [
    f"ruler/{name}"
    for name in "niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue "
    "niah_multiquery vt cwe fwe".split()
]
# RULER's limits of an answer's length.
NEW_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
# What the last paragraph begins with where the question is more than the last line.
OF_DOCUMENTS = "Answer the question based on the given documents."


def question_at(task, text):
    """Where the question begins: at the last line, or where the instruction is repeated behind the documents."""
    return text.rindex(OF_DOCUMENTS) if task.startswith("qa") else text.rindex("\n") + 1


def row_of(example):
    """An example of `data export-eval` in kvpress' fields."""
    task, text = example["task"].split("/")[1], example["input"]
    at = question_at(task, text)
    return {
        "context": text[:at],
        "question": text[at:],
        "answer_prefix": example["answer_prefix"],
        "answer": example["outputs"],
        "task": task,
        "max_new_tokens": NEW_TOKENS[task.split("_")[0]],
    }


def exported(given):
    """The examples that spattn would run, in its order: task by task."""
    tasks = given.task or NEED_NONE + (NEED_DATA if given.data else [])
    command = [given.program, "data", "export-eval", "--model", given.model, "-l", given.length, "-n", str(given.samples)]
    command += [word for task in tasks for word in ("-t", task)] + (["--data", given.data] if given.data else [])
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--program", default="spattn")
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", default="16K")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--data")
    parser.add_argument("--task", nargs="*")
    given = parser.parse_args()
    rows = [row_of(example) for example in sorted(exported(given), key=lambda example: example["index"])]
    with open(given.out, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} rows of {len({row['task'] for row in rows})} tasks in {given.out}")


if __name__ == "__main__":
    main()
