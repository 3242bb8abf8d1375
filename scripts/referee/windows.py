"""Recomputes records of perplexity: windows of WikiText-2, read densely up to the last 256 tokens, which are scored.

Sums of f32 in another order move a number by little, but a selection by a whole token where two scores nearly tie. `picks.py`
compares selections on equal queries and keys. Here they are not equal, so a record of Double Sparsity is also compared with what near
ties are worth: the same window once more, its selections made by numbers that are moved at random by up to a millionth (`MOVED`).
"""

import time
from pathlib import Path

import numpy as np

from methods import select
from qwen2 import Cache, Segment
from stored import spec_of

# How far the mean log-likelihood of a window's tokens may be off, in nats: sums of f32 in another order.
ROUNDING = 1e-4
# By what share of their typical size queries and keys are moved at most to see what near ties are worth. Keys of the program and of this
# script differ by about as much (`measured.py`).
MOVED = 1e-6
# How many standard errors the sum may differ by, and how many times the distance of single tokens that near ties give.
ERRORS, TIMES = 3, 1.5


def window(data, encode, length, index, texts={}):
    """The tokens of a window. Windows follow each other in the file."""
    if data not in texts:
        texts[data] = encode(Path(data, "wikitext2/wiki.test.raw").read_bytes().decode())
    return texts[data][index * length : (index + 1) * length]


class Window:
    """A window's tokens, with the cache of its prefix: all before the last token of the prompt, which methods read, too."""

    def __init__(self, model, tokens, prompt):
        self.model, self.tokens, self.prompt = model, tokens, prompt
        _, (self.prefix,) = model.read([Segment(Cache.empty(model), tokens[: prompt - 1])])
        self.full = self.under(None)

    def under(self, rule):
        """Log-probabilities of all tokens at each scored place, [place][token]."""
        hidden, _ = self.model.read([Segment(self.prefix, self.tokens[self.prompt - 1 : -1], rule)])
        return self.model.log_probabilities(hidden[0])

    def losses(self, found):
        """Negative log-likelihood of each scored token."""
        return -np.take_along_axis(found, np.array(self.tokens[self.prompt :])[:, None], axis=1)[:, 0].astype(np.float64)

    def divergences(self, found):
        """KL divergence from full attention at each scored place."""
        return np.array([np.exp(full) @ (full - own) for full, own in zip(self.full.astype(np.float64), found)])


def distance(one, other):
    """The median relative difference of single tokens' divergences."""
    return float(np.median(np.abs(one - other) / np.maximum(np.maximum(one, other), 1e-6)))


class Compared:
    """A record, and what is recomputed for it: its sum, its density and the divergence of each token."""

    def __init__(self, record, window, rule):
        self.record, self.window, self.rule = record, window, rule
        found = window.under(rule)
        self.losses, self.likelihood = window.losses(found), record["likelihood"]
        self.found = self.losses.sum()
        self.off = abs(self.found - self.likelihood["nll"])
        share = rule.attended / rule.context if rule else 1.0
        self.same_density = abs(share - record["density"]) < 1e-9
        self.mark = "same" if self.off / len(self.losses) <= ROUNDING and self.same_density else "OTHER"
        self.divergences = window.divergences(found) if rule else None

    def weigh(self, moved):
        """Compares the difference with what near ties are worth; returns a line about it. `moved` is the rule with moved numbers."""
        found = self.window.under(moved)
        error = float(np.sqrt(np.square(self.window.losses(found) - self.losses).sum()))
        near = distance(self.divergences, self.window.divergences(found))
        far = distance(self.divergences, np.array(self.likelihood["kl"]))
        if self.mark == "OTHER" and self.same_density and self.off <= ERRORS * error and far <= TIMES * near:
            self.mark = "alike"
        ties = f"{self.rule.ties} of {self.rule.lists} selections tie at the cut, {self.rule.near} are nearer than 1e-6 (ties included)"
        return f"off by {self.off:.3f}, near ties give {error:.3f}; single tokens {far:.2%}, near ties {near:.2%}; {ties}"

    def line(self):
        density = "the same density" if self.same_density else "another density"
        a_token = self.off / len(self.losses)
        return f"{spec_of(self.record)}: nll {self.likelihood['nll']:.4f} and {self.found:.4f}, {a_token:.1e} a token; {density}"


def check(model, encode, item, data, calibration, count, specs):
    """Prints a line or two for each record of the first `count` windows. Returns how many differ by more than near ties are worth."""
    read, differ = {}, 0
    wanted = lambda record: record["sample"] < count and (not specs or any(part in spec_of(record) for part in specs))
    for record in filter(wanted, item.records):
        begun = time.time()
        assert record["task"] == "ppl/wikitext2", record["task"]
        sample, spec, before = record["sample"], spec_of(record), record["prefix_tokens"]
        if sample not in read:
            read = {sample: Window(model, window(data, encode, record["length"], sample), record["prompt_tokens"])}
        compared = Compared(record, read[sample], select(spec, before, calibration))
        about = compared.weigh(select(spec, before, calibration, MOVED)) if compared.rule else ""
        differ += compared.mark == "OTHER"
        print(f"{compared.mark:6}{compared.line()} ({item.name}, window {sample})")
        print(f"      {about}{'; ' if about else ''}{time.time() - begun:.0f} s", flush=True)
    return differ
