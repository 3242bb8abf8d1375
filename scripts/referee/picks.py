"""Which tokens Double Sparsity selects on a pretrained model, held to its definition.

    spattn analyze channels --model FILE.gguf --text FILE -l 2048 -n 1 --queries 32 --dump --out DIR -m double_sparsity:preset=paper
    python3 scripts/referee/check.py --picks DIR --calibration DIR

Queries and keys are the program's, so rounding elsewhere cannot matter. A selection must have as many tokens as asked for, and each of
them must be as good as any that was left out, as far as rounding in f32 can tell: if all scores are off by as much as they may be, in its
favour.
"""

from dataclasses import dataclass

import numpy as np

from captured import documents, softmax, tensors
from labels import GROUP, Labels, best, channels
from methods import parse

# How far an output may be off, of its length: logits are some hundreds in the first layers, and summed in f32.
ROUNDING = 1e-4


@dataclass
class Found:
    """What was seen of a method's selections."""

    lists: int = 0
    # Those that have just the tokens of the exact scores, and of scores in f32 summed as the program does.
    equal: int = 0
    equal_in_f32: int = 0
    # Tokens that are selected in place of better ones, and by how much of the largest score at most.
    swapped: int = 0
    gap: float = 0.0
    # Tokens that rounding could add to the selection or take from it.
    near: int = 0
    # Selections that rounding does not excuse, and those of a wrong number of tokens.
    wrong: int = 0
    output: float = 0.0

    def fails(self):
        return self.wrong > 0 or self.output > ROUNDING

    def take(self, theirs, scores, rounding, in_f32, count):
        """Compares the selected tokens with all candidates' scores."""
        inside = np.zeros(len(scores), bool)
        inside[theirs] = True
        self.lists += 1
        if inside.sum() != count or len(theirs) != count:
            self.wrong += 1
            return
        ours = best(scores[None], count)[0]
        self.equal += inside[ours].all()
        self.equal_in_f32 += inside[best(in_f32[None], count)[0]].all()
        if count == len(scores):
            return
        self.wrong += (scores + rounding)[inside].min() < (scores - rounding)[~inside].max()
        swapped = np.setdiff1d(theirs, ours)
        cut = scores[ours].min()
        self.swapped += len(swapped)
        if len(swapped):
            self.gap = max(self.gap, float(cut - scores[swapped].min()) / np.abs(scores).max())
        self.near += int((np.abs(scores - cut) <= rounding + rounding[ours].max()).sum()) - 1


class Cache:
    """Labels of the groups of a KV head: those that are whole stay as they are."""

    def __init__(self, keys):
        self.keys, self.whole = keys, []

    def until(self, end):
        while (len(self.whole) + 1) * GROUP <= end:
            self.whole.append(Labels.of_group(self.keys[len(self.whole) * GROUP :][:GROUP]))
        rest = self.keys[len(self.whole) * GROUP : end]
        return Labels.joined(self.whole + ([Labels.of_group(rest)] if len(rest) else []))


def of_head(document, at, layer, kv_head, chosen, ratio, found):
    queries, keys, values = document.layer(layer)
    own_heads = slice(kv_head * document.group(), (kv_head + 1) * document.group())
    keys, values = keys[kv_head], values[kv_head]
    labels = Cache(keys[:, chosen].astype(np.float32))
    for step, asked in enumerate(queries[:, own_heads]):
        own = document.context + step
        assert tuple(document.of_method(at, layer, "exact")[step]) == (0, own), "all but the own token are candidates"
        seen, narrow = labels.until(own), asked[:, chosen].astype(np.float32)
        lists = seen.scores(narrow), seen.rounding(narrow), seen.scores_in_f32(narrow)
        count = int(np.ceil(ratio * (own + 1)))
        for head, query, *scored in zip(range(document.heads)[own_heads], asked, *lists):
            theirs = document.picks(at, layer, step, head)
            found.take(theirs, *scored, count)
            attended = np.r_[theirs, own]
            output = softmax(document.scale * keys[attended] @ query) @ values[attended]
            off = np.linalg.norm(output - document.of_method(at, layer, "outputs")[step, head]) / np.linalg.norm(output)
            found.output = max(found.output, float(off))


def check(folder, calibration):
    """Prints what is seen of each method's selections. Returns how many methods fail."""
    means, _ = tensors(f"{calibration}/double_sparsity.safetensors")
    failed = 0
    for document in documents(folder):
        for at, label in enumerate(document.about["methods"]):
            name, given = parse(label)
            kind = (name, given.get("channels"), given.get("label_bits"), given.get("tail"))
            assert kind == ("double_sparsity", "d/4", "4", "indexed"), label
            found = Found()
            for layer in document.layers:
                for kv_head in range(document.kv_heads):
                    chosen = channels(means, layer, kv_head, document.d)
                    of_head(document, at, layer, kv_head, chosen, float(given["ratio"]), found)
            failed += found.fails()
            report(label, found)
    return failed


def report(label, found):
    print(f"{'OTHER' if found.fails() else 'same':6}{label}: {found.lists} selections, {found.wrong} wrong")
    print(
        f"      {found.equal} are those by exact scores, {found.equal_in_f32} those by scores in f32; {found.swapped} tokens stand for "
        f"better ones, by {found.gap:.1e} of the largest score at most"
    )
    near = found.near / found.lists
    print(f"      {near:.2f} tokens a selection are within rounding of the cut; outputs are off by {found.output:.1e} at most")
