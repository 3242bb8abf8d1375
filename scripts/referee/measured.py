"""Recomputes two analyses of a pretrained model, from the text and the weights up.

    spattn analyze entropy geometry --model FILE.gguf --text FILE -l 1024 -n 1 --queries 16 --dump --out DIR
    python3 scripts/referee/check.py --measured DIR --model FILE.gguf --text FILE --length 1024 --queries 16

Entropy is that of the attention of the last tokens (Top-k, Fig. 3 and 5). Cosines are of the first key (the sink's), the mean key and these
queries (MagicPIG, Fig. 9). Each is compared for every head of every layer. Of 32 drawn tokens, each a prompt of its own, cosines of sinks
are compared for every layer, and their summary with the stored cells of magicpig/figure-9, which no document enters. Of the dump, only keys
are used, to see how far rounding drives them apart.
"""

import json
from itertools import combinations
from pathlib import Path

import numpy as np

from captured import documents, table
from chacha import numbers
from qwen2 import Cache, Qwen2, Segment
from stored import ROOT
from tokens import encoder, tokenizer

# How far a number may be off: f32 in another order. Entropy is in nats.
ROUNDING = {"entropy (nats)": 1e-5, "cos k_sink,k_avg": 1e-5, "cos q,k_sink": 1e-5, "cos q,k_avg": 1e-5}
# First tokens that are drawn, with seed 0.
DRAWN = 32
# How far keys may be off, of the size of a layer's.
OF_KEYS = 2e-6


class Watched:
    """Attends everything, and keeps each layer's queries, [head][row][d], and keys, [kv_head][token][d]."""

    def __init__(self):
        self.layers = []

    def __call__(self, view):
        self.layers.append((view.queries.reshape(-1, *view.queries.shape[2:]), view.keys))
        return np.ones(view.products.shape, bool)


def entropy(logits):
    """Of each row of attention, in nats."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(logits).sum(axis=-1)
    return np.log(total) - (np.exp(logits) * logits).sum(axis=-1) / total


def cosine(one, other):
    return (one * other).sum(axis=-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))


def of_head(queries, keys):
    """Means over queries [row][d], which attend `keys` up to their own."""
    before = len(keys) - len(queries)
    rows = [keys[: before + row + 1] @ query / np.sqrt(len(query)) for row, query in enumerate(queries)]
    sink, mean = keys[0], keys.mean(axis=0)
    return {
        "entropy (nats)": np.mean([entropy(row) for row in rows]),
        "cos k_sink,k_avg": cosine(sink, mean),
        "cos q,k_sink": cosine(queries, sink).mean(),
        "cos q,k_avg": cosine(queries, mean).mean(),
    }


def read(model, tokens, queries):
    """Each layer's queries of the last tokens, and all keys."""
    _, (prefix,) = model.read([Segment(Cache.empty(model), tokens[:-queries])])
    watched = Watched()
    model.read([Segment(prefix, tokens[-queries:], watched)])
    return watched.layers


def recomputed(model, layers):
    """The numbers of each (layer, head)."""
    found = {}
    for layer, (asked, keys) in enumerate(layers):
        for head, own in enumerate(asked.astype(np.float64)):
            found[layer, head] = of_head(own, keys[head // (model.heads // model.kv_heads)].astype(np.float64))
    return found


def of_keys(folder, layers):
    """Compares all keys with those of the dump. Returns whether some layer's are too far off."""
    (document,) = documents(folder)
    off = []
    for layer in document.layers:
        _, theirs, _ = document.layer(layer)
        assert theirs.shape == layers[layer][1].shape, "other tokens"
        off.append(np.linalg.norm(theirs - layers[layer][1]) / np.linalg.norm(theirs))
    differs = max(off) > OF_KEYS
    mark = "OTHER" if differs else "same"
    print(f"{mark:6}keys are off by {off[0]:.1e} of their size in the first layer, {max(off):.1e} in the furthest")
    return differs


def sinks(model):
    """For each layer, the least and the mean cosine of two sinks' keys: over pairs of drawn tokens, and KV heads."""
    vocabulary = len(model.stored["token_embd.weight"].data)
    tokens = [number % vocabulary for number in numbers(0, DRAWN)]
    _, caches = model.read([Segment(Cache.empty(model), [token]) for token in tokens])
    found = []
    for layer in range(model.layers):
        keys = [cache.keys[layer][:, 0].astype(np.float64) for cache in caches]
        of_pairs = np.array([cosine(one, other) for one, other in combinations(keys, 2)])
        found.append((of_pairs.min(), of_pairs.mean()))
    return np.array(found)


def compare(number, theirs, ours, rounding):
    """Prints two rows of numbers in short. Returns whether one differs."""
    off = np.abs(theirs - ours).max()
    print(f"{'OTHER' if off > rounding else 'same':6}{number:32}{theirs.mean():12.6f}{ours.mean():12.6f}{off:16.1e}")
    print(f"{'':6}{'least and greatest':32}{theirs.min():12.6f}{ours.min():12.6f}{theirs.max():12.6f}{ours.max():12.6f}")
    return off > rounding


def of_sinks(folder, model, name):
    """Compares cosines of sinks with the table of the analysis, and with the stored cells. Returns how many differ."""
    ours, rows = sinks(model), table(folder, "stability_by_layer")
    differ = 0
    for at, column in enumerate(("k_sink, least", "k_sink, mean")):
        differ += compare(f"{column}, by layer", np.array([float(row[column]) for row in rows]), ours[:, at], 1e-5)
    result = json.loads((ROOT / f"results/papers/magicpig/figure-9/result-real-{name}.json").read_text())
    (row,) = [row for row in result["rows"] if row["name"] == "k_sink of drawn tokens"]
    least = ours[:, 0]
    for cell, column, own in zip(row["cells"], result["columns"], (least.min(), least.mean(), least.max())):
        theirs = cell["measured"]["mean"]
        differ += abs(theirs - own) > 1e-5
        mark, name = "OTHER" if abs(theirs - own) > 1e-5 else "same", f"magicpig/figure-9, {column}"
        print(f"{mark:6}{name:32}{theirs:12.6f}{own:12.6f}{abs(theirs - own):16.1e}")
    return differ


def check(folder, path, text, length, queries):
    """Prints a line for each number. Returns how many differ in some head."""
    model = Qwen2(path)
    tokens = encoder(tokenizer(model.reader))(Path(text).read_bytes().decode())[:length]
    layers = read(model, tokens, queries)
    found = recomputed(model, layers)
    stored = {}
    for name in ("entropy_by_head", "geometry_by_head"):
        for row in table(folder, name):
            stored.setdefault((int(row["layer"]), int(row["head"])), {}).update(row)
    assert stored.keys() == found.keys(), "other layers or heads"
    differ = 0
    print(f"{'':6}{f'{len(tokens)} tokens, {queries} queries':32}{'spattn':>12}{'referee':>12}{'furthest':>16}")
    for number, rounding in ROUNDING.items():
        theirs, ours = (np.array([float(of[place][number]) for place in found]) for of in (stored, found))
        differ += compare(f"{number}, by head", theirs, ours, rounding)
    return differ + of_keys(folder, layers) + of_sinks(folder, model, Path(path).stem.removesuffix("-q4_k_m"))
