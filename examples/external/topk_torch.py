#!/usr/bin/env python3
"""Exact scores in PyTorch, on a GPU if there is one: a beginning for a method of your own that is written in it.

    spattn eval -t ruler/niah_single_2 -l 1K -n 2 -m 'external:"python3 examples/external/topk_torch.py",k=64' -m topk:k=64
"""

import torch

from spattn_external import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def prefix(message, arrays):
    return torch.tensor(arrays["keys"], device=DEVICE)


@torch.inference_mode()
def step(message, arrays, keys):
    """A score for each query head and candidate, `[heads][candidates]`."""
    queries = torch.tensor(arrays["queries"], device=DEVICE)
    return (queries @ keys.T).cpu().numpy()


if __name__ == "__main__":
    serve("topk_torch", "1", "scores", prefix, step)
