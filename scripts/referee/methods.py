"""Which tokens a method attends, as functions for `qwen2.Segment`."""

import numpy as np

from captured import tensors
from labels import GROUP, Labels, best, channels


class TopK:
    """The k largest `q·k` of the prefix for each query head, and all that follows the prefix."""

    def __init__(self, k):
        self.k = k
        # The smallest distance, in logits, of the last token that was taken and the first that was not.
        self.nearest = np.inf

    def __call__(self, view):
        candidates = view.products[:, :, : view.before]
        order = np.argsort(-candidates, axis=-1, kind="stable")
        mask = np.ones(view.products.shape, bool)
        mask[:, :, : view.before] = False
        np.put_along_axis(mask, order[:, :, : self.k], True, axis=-1)
        sorted_ = np.take_along_axis(candidates, order[:, :, self.k - 1 : self.k + 1], axis=-1)
        gap = (sorted_[:, :, 0] - sorted_[:, :, 1]).min() / np.sqrt(view.queries.shape[-1])
        self.nearest = min(self.nearest, gap)
        return mask


class RowTopK:
    """For each row and query head the k largest `q·k` of all tokens before the row, and the row's own."""

    def __init__(self, k):
        self.k = k
        # As of `TopK`.
        self.nearest = np.inf

    def __call__(self, view):
        mask = np.zeros(view.products.shape, bool)
        for row in range(view.products.shape[1]):
            self.pick(view.before + row, view.products[:, row], mask[:, row], np.sqrt(view.queries.shape[-1]))
        return mask

    def pick(self, own, products, mask, scale):
        """Marks what the heads attend at position `own`."""
        mask[:, own] = True
        if own <= self.k:
            mask[:, :own] = True
            return
        candidates = products[:, :own]
        order = np.argsort(-candidates, axis=-1, kind="stable")
        np.put_along_axis(mask, order[:, : self.k], True, axis=-1)
        last, first = np.take_along_axis(candidates, order[:, self.k - 1 : self.k + 1], axis=-1).T
        self.nearest = min(self.nearest, (last - first).min() / scale)


class DoubleSparsity:
    """Double Sparsity (Algorithm 1): the best tokens by a quarter of the channels, whose keys are kept in 4 bits.

    Each channel has a range of its own over 128 tokens. Tokens behind the prefix are candidates as well, all but the row's
    own, which is always attended; the labels of the last 128 tokens are made anew as their number grows.

    With `moved`, queries and keys are moved by random shares of their typical size first, up to that share: what this changes in a
    result is what near ties are worth.
    """

    def __init__(self, means, ratio, moved=0.0):
        self.means, self.ratio, self.moved = means, ratio, moved
        self.attended, self.context = 0, 0
        # Selections; those in which the last pick and the first token left out have equal scores; those in which the two are nearer than
        # a millionth of the largest score.
        self.lists, self.ties, self.near = 0, 0, 0
        self.random = np.random.default_rng(1)

    def seen(self, x):
        """What the selection sees of keys or queries [..][channel]."""
        typical = np.sqrt(np.square(x, dtype=np.float64).mean(axis=tuple(range(x.ndim - 1))))
        return (x + self.moved * typical * self.random.uniform(-1, 1, x.shape)).astype(np.float32) if self.moved else x

    def __call__(self, view):
        kv_heads, _, rows, d = view.queries.shape
        mask = np.zeros((*view.queries.shape[:3], view.products.shape[-1]), bool)
        for kv_head in range(kv_heads):
            chosen = channels(self.means, view.layer, kv_head, d)
            keys = self.seen(view.keys[kv_head][:, chosen].astype(np.float32))
            queries = self.seen(view.queries[kv_head][:, :, chosen].astype(np.float32))
            scores = Labels.of(keys).scores(queries.reshape(-1, len(chosen))).reshape(-1, rows, len(keys))
            for row in range(rows):
                self.pick(view.before + row, keys, scores[:, row], queries[:, row], mask[kv_head, :, row])
        return mask.reshape(view.products.shape)

    def pick(self, own, keys, scores, queries, mask):
        """Marks what the queries at position `own` attend. `scores` are those by whole groups."""
        start = own - own % GROUP
        scores = scores[:, :start]
        if own > start:
            scores = np.concatenate([scores, Labels.of_group(keys[start:own]).scores(queries)], axis=1)
        count = int(np.ceil(self.ratio * (own + 1)))
        order = best(scores, count + 1)
        np.put_along_axis(mask, order[:, :count], True, axis=-1)
        mask[:, own] = True
        self.attended += count + 1
        self.context += own + 1
        self.note(scores, order[:, count - 1 :])

    def note(self, scores, edge):
        """Counts ties of the last pick and the first token left out, if there is one."""
        last, *further = np.take_along_axis(scores, edge, axis=-1).T
        self.lists += len(scores)
        for first in further:
            self.ties += int((last == first).sum())
            self.near += int((last - first < 1e-6 * np.abs(scores).max(axis=1)).sum())


def parse(spec):
    """Name and parameters of `topk:k=5,sink=0,local=0`."""
    name, _, parameters = spec.partition(":")
    return name, dict(pair.split("=") for pair in parameters.split(",") if pair)


def select_rows(spec):
    """What chooses the tokens of each row of a prompt that a method reads; None if all are attended."""
    name, given = parse(spec)
    if name == "full":
        return None
    assert (name, given["sink"], given["local"]) == ("topk", "0", "0"), f"{spec} is not known here"
    return RowTopK(int(given["k"]))


def select(spec, before, calibration=None, moved=0.0):
    """What chooses the tokens behind a prefix of `before` tokens; None if all are attended.

    `calibration` is a folder. `moved` is what Double Sparsity's numbers are moved by.
    """
    name, given = parse(spec)
    if name == "full":
        return None
    assert given["sink"] == given["local"] == "0", f"{spec} is not known here"
    if name == "topk":
        k = int(given["k"])
        return TopK(k) if k < before else None
    assert (name, given["channels"], given["label_bits"], given["tail"]) == ("double_sparsity", "d/4", "4", "indexed"), spec
    means, _ = tensors(f"{calibration}/double_sparsity.safetensors")
    return DoubleSparsity(means, float(given["ratio"]), moved)
