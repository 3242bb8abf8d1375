#!/usr/bin/env python3
"""Makes tasks/mmlu_flan_cot.json, and the expected values of its tests, from an unpacked lm-evaluation-harness.

The chain-of-thought examples are part of the benchmark's definition: five for each of MMLU's 57 subjects, of which the
first four are shown. They are copied with the descriptions, unchanged.

    pip download lm_eval==0.4.13 --no-deps && unzip lm_eval-*.whl 'lm_eval/tasks/mmlu/*'
    python3 scripts/make_mmlu_flan_cot.py lm_eval/tasks/mmlu/flan_cot_fewshot 0.4.13

Needs PyYAML and Jinja2. The prompts and scores in tests/golden/mmlu_flan_cot.json come from the harness's own templates and
pattern, filled by Jinja and matched by Python's `re`, as in the harness.
"""

import json
import re
import string
import sys
from pathlib import Path

import jinja2
import yaml

ROOT = Path(__file__).resolve().parent.parent

ROWS = [
    {"subject": "anatomy", "question": " Which bone is longest? ", "choices": ["the femur", "the tibia", "the ulna", "the radius"], "answer": 0},
    {"subject": "high_school_us_history", "question": "Who?\nAnd when?", "choices": ["a", "b (c)", "", "d"], "answer": 3},
    {"subject": "world_religions", "question": "Where?", "choices": ["1", "2", "3", "4"], "answer": 2},
]

PREDICTIONS = [
    " The femur is. The answer is (A).",
    "The answer is (A)",
    "the answer is a.",
    "The answer is A, the femur.",
    "The answer is (A). So there.",
    "The answer is (B).\n\nQ: Next?\nA: The answer is (A).",
    "The answer is \nThe answer is (A).",
    "answer is \n answer is x",
    "Nothing.",
    "",
    "The answer is (A)!!",
    "The answer is: (A).",
    "The answer is  (A) .",
]


class Loader(yaml.SafeLoader):
    """Reads !function tags as text, because none is used here."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: node.value)


def read(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader)


def main(folder, version):
    folder = Path(folder)
    template = read(folder / "_mmlu_flan_cot_fewshot_template_yaml")
    subjects = {}
    for path in sorted(folder.glob("mmlu_*.yaml")):
        task = read(path)
        examples = [[e["question"], e["target"]] for e in task["fewshot_config"]["samples"]]
        subjects[task["dataset_name"]] = {"description": task["description"], "examples": examples}
    assert len(subjects) == 57 and all(len(s["examples"]) >= template["num_fewshot"] for s in subjects.values())
    source = (
        f"EleutherAI/lm-evaluation-harness {version} (MIT), lm_eval/tasks/mmlu/flan_cot_fewshot, version "
        f"{template['metadata']['version']} of the task; examples of Chung et al. 2022, Scaling Instruction-Finetuned Language Models"
    )
    data = {"source": source, "subjects": subjects}
    out = ROOT / "tasks/mmlu_flan_cot.json"
    out.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    env = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)

    def text(fields):
        return env.from_string(template["doc_to_text"]).render(**fields)

    def target(fields):
        return env.from_string(template["doc_to_target"]).render(**fields)

    def prompt(row, shots):
        own = subjects[row["subject"]]
        shown = [{"question": q, "target": t} for q, t in own["examples"][:shots]]
        # Question, a blank, answer, an empty line: the harness's own delimiters.
        return own["description"] + "".join(text(e) + " " + target(e) + "\n\n" for e in shown) + text(row)

    pattern = re.compile(template["filter_list"][0]["filter"][0]["regex_pattern"])
    bare = str.maketrans("", "", string.punctuation)

    def score(prediction, right):
        found = pattern.findall(prediction)
        answer = found[0].strip() if found else "[invalid]"
        return float(answer.lower().translate(bare) == right.lower().translate(bare))

    golden = {
        "until": template["generation_kwargs"]["until"],
        "shots": template["num_fewshot"],
        "prompts": [{"row": r, "prompt": prompt(r, template["num_fewshot"]), "answer": target(r)} for r in ROWS],
        "scores": [[p, score(p, "(A)")] for p in PREDICTIONS],
    }
    out = ROOT / "tests/golden/mmlu_flan_cot.json"
    out.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
