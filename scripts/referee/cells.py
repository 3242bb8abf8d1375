"""Recomputes cells of multiple-choice scores, and compares them and their records with what is stored."""

import sys
import time

import numpy as np

from choices import answers
from questions import questions

# How far a record's log-likelihoods may be off, in nats: sums of f32 in another order. What exceeds it is counted.
ROUNDING = 1e-3


class Checked:
    """One item: what was stored, and what is recomputed."""

    def __init__(self, item):
        self.item = item
        self.scores = {}
        self.beyond, self.other, self.unlike = [], [], []
        self.distances = []

    def add(self, task, sample, length, spec, answer):
        """Compares an answer with its record."""
        record = self.item.record(task, sample, spec)
        stored = record["choice"]
        what = f"{task} {sample} {spec}"
        self.scores.setdefault((spec, task), []).append(answer.right)
        own = (record["prompt_tokens"], stored["right"], len(stored["log_likelihoods"]))
        if own[0] != length or own[2] != len(answer.log_likelihoods) or answer.right != (answer.chosen == own[1]):
            self.unlike.append(what)
            return
        distance = float(np.abs(np.subtract(answer.log_likelihoods, stored["log_likelihoods"])).max())
        self.distances.append(distance)
        if distance > ROUNDING:
            self.beyond.append(f"{what}: off by {distance:.2g} nats, nearest pick {answer.nearest:.1e} in logits")
        if answer.right != (record["score"] == 1.0):
            self.other.append(f"{what}: lead {answer.lead:.2g} here, off by {distance:.2g}")

    def mean(self, spec):
        return 100 * float(np.mean([np.mean(self.scores[spec, task]) for task in self.item.tasks()]))

    def print_cells(self):
        """Prints each cell. Returns how many differ."""
        stored = self.item.cells()
        differ = 0
        for name, spec in self.item.columns():
            same = abs(self.mean(spec) - stored[name]) < 1e-9
            differ += not same
            parts = ", ".join(f"{task} {100 * np.mean(self.scores[spec, task]):g}" for task in self.item.tasks())
            mark = "same" if same else "OTHER"
            print(f"{mark:6}{self.item.name:16}{name:6}{stored[name]:12.6f}{self.mean(spec):12.6f}   {parts}")
        return differ

    def print_records(self):
        beyond = f"{len(self.beyond)} by more than {ROUNDING:g}"
        counts = f"{beyond}; {len(self.other)} of another score; {len(self.unlike)} of another prompt"
        print(f"{self.item.name}: {len(self.distances)} records, off by {np.median(self.distances):.1e} nats (median), {counts}")
        for title, lines in (("beyond", self.beyond), ("score", self.other), ("prompt", self.unlike)):
            for line in lines:
                print(f"  {title:7}{line}")


def recompute(model, encode, checked, data, limit):
    """Recomputes each task once for all items that have it, which read prompts alike."""
    specs = list(dict.fromkeys(spec for one in checked for _, spec in one.item.columns()))
    (sparse_from,) = {one.item.sparse_from() for one in checked}
    for task in dict.fromkeys(task for one in checked for task in one.item.tasks()):
        begun = time.time()
        asked = questions(task, data, min(limit, max(one.item.samples(task) for one in checked)))
        for done, (sample, length, found) in enumerate(answers(model, encode, asked, specs, sparse_from), 1):
            for one in checked:
                for _, spec in one.item.columns():
                    one.add(task, sample, length, spec, found[spec])
            print(f"{task}: {done} of {len(asked)}, {time.time() - begun:.0f} s", file=sys.stderr, flush=True)


def check(model, encode, items, data, limit):
    """Returns how many cells differ, and how many records are of another prompt."""
    checked = [Checked(item) for item in items]
    for sparse_from in dict.fromkeys(item.sparse_from() for item in items):
        recompute(model, encode, [one for one in checked if one.item.sparse_from() == sparse_from], data, limit)
    print(f"{'':6}{'':16}{'':6}{'spattn':>12}{'referee':>12}")
    differ = sum([one.print_cells() for one in checked])
    for one in checked:
        one.print_records()
    return differ + sum(len(one.unlike) for one in checked)
