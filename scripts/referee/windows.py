"""Recomputes records of perplexity: windows of WikiText-2, read densely up to the last 256 tokens, which are scored."""

import time
from pathlib import Path

from methods import select
from qwen2 import Cache, Segment
from stored import spec_of

# How far the mean log-likelihood of a window's tokens may be off, in nats: sums of f32 in another order.
ROUNDING = 1e-4


def window(data, encode, length, index, texts={}):
    """The tokens of a window. Windows follow each other in the file."""
    if data not in texts:
        texts[data] = encode(Path(data, "wikitext2/wiki.test.raw").read_bytes().decode())
    return texts[data][index * length : (index + 1) * length]


def recomputed(model, tokens, prompt, rule, prefixes):
    """Negative log-likelihood of what follows the first `prompt` tokens. The last of these is read by `rule`, too."""
    key = tuple(tokens)
    if key not in prefixes:
        _, (prefixes[key],) = model.read([Segment(Cache.empty(model), tokens[: prompt - 1])])
    hidden, _ = model.read([Segment(prefixes[key], tokens[prompt - 1 : -1], rule)])
    return -model.log_likelihoods(hidden[0], tokens[prompt:]).sum()


def check(model, encode, item, data, calibration, count):
    """Prints a line for each record of the first `count` windows. Returns how many differ."""
    prefixes, differ = {}, 0
    for record in (record for record in item.records if record["sample"] < count):
        begun = time.time()
        assert record["task"] == "ppl/wikitext2", record["task"]
        tokens = window(data, encode, record["length"], record["sample"])
        rule = select(spec_of(record), record["prefix_tokens"], calibration)
        found = recomputed(model, tokens, record["prompt_tokens"], rule, prefixes)
        stored = record["likelihood"]["nll"]
        off = abs(found - stored) / record["likelihood"]["tokens"]
        share = rule.attended / rule.context if rule else 1.0
        same = off <= ROUNDING and abs(share - record["density"]) < 1e-9
        differ += not same
        nearest = f", nearest pick {rule.nearest:.1e} in logits" if rule else ""
        print(f"{'same' if same else 'OTHER':6}{item.name} window {record['sample']} {spec_of(record)}: nll {stored:.4f} and {found:.4f},", end=" ")
        print(f"{off:.1e} a token; density {record['density']:.6f} and {share:.6f}{nearest}; {time.time() - begun:.0f} s", flush=True)
    return differ
