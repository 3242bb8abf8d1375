#!/usr/bin/env python3
"""Quest in numpy: pages of 16 tokens, judged by the largest product that a key within a page's bounds could have with the query.

    spattn eval -t ruler/niah_single_2 -l 1K -n 2 -m 'external:"python3 examples/external/quest_numpy.py",density=0.25' -m quest:density=0.25
"""

import numpy as np

from spattn_external import serve

PAGE = 16


def prefix(message, arrays):
    """The smallest and largest value of each channel in each page, `[pages][dim]`."""
    keys = arrays["keys"]
    starts = range(0, len(keys), PAGE)
    lowest = np.stack([keys[start : start + PAGE].min(axis=0) for start in starts])
    highest = np.stack([keys[start : start + PAGE].max(axis=0) for start in starts])
    return lowest, highest, len(keys)


def step(message, arrays, kept):
    """For each query head, all tokens of the best pages, until the budget is spent."""
    lowest, highest, candidates = kept
    selected = []
    for query in arrays["queries"]:
        bounds = np.maximum(query * lowest, query * highest).sum(axis=1)
        pages = np.argsort(-bounds, kind="stable")[: max(1, round(message["budget"] / PAGE))]
        tokens = (pages[:, None] * PAGE + np.arange(PAGE)).ravel()
        selected.append(tokens[tokens < candidates])
    return selected


if __name__ == "__main__":
    serve("quest_numpy", "1", "tokens", prefix, step)
