"""Recomputes records of perplexity: windows of WikiText-2, read densely up to the last 256 tokens, which are scored."""

import time
from pathlib import Path

import numpy as np

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


class Compared:
    """A record, and what is recomputed for it."""

    def __init__(self, record, found, rule):
        self.record, self.rule = record, rule
        likelihood = record["likelihood"]
        self.off = lambda found: abs(found - likelihood["nll"]) / likelihood["tokens"]
        self.found = found
        share = rule.attended / rule.context if rule else 1.0
        self.same_density = abs(share - record["density"]) < 1e-9
        self.same = self.off(found) <= ROUNDING and self.same_density

    def line(self):
        mark = "same" if self.same else "OTHER"
        density = "the same density" if self.same_density else "another density"
        nll = self.record["likelihood"]["nll"]
        return f"{mark:6}{spec_of(self.record)}: nll {nll:.4f} and {self.found:.4f}, {self.off(self.found):.1e} a token; {density}"


def check(model, encode, item, data, calibration, count, specs):
    """Prints a line for each record of the first `count` windows. Returns how many differ.

    Where a method picks by scores in few bits, it is recomputed with scores in single precision, too: how far that moves the
    number says what near ties are worth.
    """
    prefixes, differ = {}, 0
    wanted = lambda record: record["sample"] < count and (not specs or any(part in spec_of(record) for part in specs))
    for record in filter(wanted, item.records):
        begun = time.time()
        assert record["task"] == "ppl/wikitext2", record["task"]
        tokens = window(data, encode, record["length"], record["sample"])

        def found(score_type):
            rule = select(spec_of(record), record["prefix_tokens"], calibration, score_type)
            return recomputed(model, tokens, record["prompt_tokens"], rule, prefixes), rule

        compared = Compared(record, *found(np.float64))
        differ += not compared.same
        print(f"{compared.line()} ({item.name}, window {record['sample']})")
        if compared.rule:
            single, _ = found(np.float32)
            print(f"      with scores in single precision {single:.4f}, {compared.off(single):.1e} a token")
        print(f"      {time.time() - begun:.0f} s", flush=True)
    return differ
