#!/usr/bin/env python3
"""Exact scores in numpy: what the harness selects by them is what its own `topk` selects.

    spattn eval -t ruler/niah_single_2 -l 1K -n 2 -m 'external:"python3 examples/external/topk_numpy.py",k=64' -m topk:k=64
"""

from spattn_external import serve


def prefix(message, arrays):
    return arrays["keys"]


def step(message, arrays, keys):
    """A score for each query head and candidate, `[heads][candidates]`."""
    return arrays["queries"] @ keys.T


if __name__ == "__main__":
    serve("topk_numpy", "1", "scores", prefix, step)
