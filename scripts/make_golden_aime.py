#!/usr/bin/env python3
"""Writes tests/golden/aime.json: how lm-eval scores answers to AIME problems.

    pip install --no-deps lm_eval==0.4.13
    python3 scripts/make_golden_aime.py > tests/golden/aime.json

The scorer is lm-eval's own (lm_eval/tasks/aime/utils.py, read without the rest of the package). Answers are combined from
pieces that its rules treat specially, with a fixed seed; duplicates are left out.
"""

import importlib.util
import json
import pathlib
import random

package = importlib.util.find_spec("lm_eval").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("aime", pathlib.Path(package) / "tasks/aime/utils.py")
aime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(aime)

PIECES = [
    "204", "025", "7", "0", "1", "2", " ", "\n", "$", "{", "}", "\\boxed{204}", "\\boxed{", "\\boxed 204", "\\boxed ", "\\boxed",
    "\\fbox{204}", "\\frac", "\\dfrac", "\\tfrac{1}{2}", "\\sqrt", "\\sqrt{3}", "3", "/", "1/2", "01/2", "+1/2", "1_0/2", "a/b", "=", "x=",
    "x = ", "long=", ".", "0.5", " .5", "{.5", "\\text{ cm}", "\\text{ }", "\\%", "\\$", "\\!", "\\\\", "\\left", "\\right",
    "^\\circ", "^{\\circ}", "-", "٣", "π", "The answer is ",
]  # fmt: skip
ANSWERS = ["204", "25", "025", "7", "0", "\\frac{1}{2}", "\\frac12", "1/2", "0.5", "\\sqrt3", "a/b", "x=3", "\\frac", "3\\text{ cm}"]


def case(prediction, answer):
    score = aime.process_results({"Problem": "", "Answer": answer}, [prediction])["exact_match"]
    return dict(prediction=prediction, answer=answer, score=score)


def cases():
    draw = random.Random(20)
    for answer in ANSWERS:
        for form in ("{}", "${}$", "\\boxed{{{}}}", "So $x$ is \\boxed{{{}}}.", "\\boxed {}$", " {} ", "n = {}", "{}\\%"):
            yield case(form.format(answer), answer)
            yield case(form.format(answer), "204")
    for _ in range(1500):
        prediction = "".join(draw.choices(PIECES, k=draw.randint(0, 5)))
        yield case(prediction, draw.choice(ANSWERS))
        yield case(prediction, prediction)
    for _ in range(300):
        inner = "".join(draw.choices(PIECES, k=draw.randint(1, 3)))
        yield case("$" + inner + "$", inner)


if __name__ == "__main__":
    print("[\n" + ",\n".join(sorted({json.dumps(c, ensure_ascii=False) for c in cases()})) + "\n]")
