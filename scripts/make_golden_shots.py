#!/usr/bin/env python3
"""Writes tests/golden/shots.json: the rows that lm-eval's default sampler draws before questions.

    pip install --no-deps lm_eval==0.4.13
    python3 scripts/make_golden_shots.py > tests/golden/shots.json

The sampler is lm-eval's own (lm_eval/api/samplers.py, read without the rest of the package). A row is represented by a number;
equal numbers are equal rows. A pool of different rows is given by its size.
"""

import importlib.util
import json
import pathlib

package = importlib.util.find_spec("lm_eval").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("samplers", pathlib.Path(package) / "api/samplers.py")
samplers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(samplers)


def case(seed, shots, spare, pool, questions):
    # Rows have positions, which do not count for equality.
    class Row(dict):
        pass

    rows = [Row(number=number) for number in pool]
    for place, row in enumerate(rows):
        row.place = place
    sampler = samplers.get_sampler("default")(rows, rnd=seed)
    docs = [Row(number=number) if spare else None for number in questions]
    drawn = [[row.place for row in sampler.sample(n=shots, eval_doc=doc)] for doc in docs]
    pool = len(pool) if pool == list(range(len(pool))) else pool
    return dict(seed=seed, shots=shots, spare=spare, pool=pool, questions=questions, drawn=drawn)


def cases():
    for seed in (0, 1, 1234, 4294967295, 4294967296, 18446744073709551615):
        for n, shots in ((2251, 5), (2251, 25), (22, 2), (21, 2), (5, 5), (86, 6), (84, 6), (1, 1), (40, 0)):
            for spare in (False, True):
                if shots + spare <= n:
                    yield case(seed, shots, spare, list(range(n)), [10**6 + i for i in range(4)])
    # Questions that occur among the rows, once and several times.
    yield case(1234, 2, True, [0, 1, 2, 3], [0, 1, 2, 3, 9, 0])
    yield case(1234, 2, True, [7, 7, 7, 1, 2, 3], [7] * 12)


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(c) for c in cases()) + "\n]")
