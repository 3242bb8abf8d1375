"""Which tokens a method attends, as functions for `qwen2.Segment`."""

import numpy as np

from captured import tensors


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


class DoubleSparsity:
    """Double Sparsity (Algorithm 1): the best tokens by a quarter of the channels, whose keys are kept in 4 bits.

    Each channel has a range of its own over 128 tokens. Tokens behind the prefix are candidates as well, all but the row's
    own, which is always attended; the labels of the last 128 tokens are made anew as their number grows.
    """

    GROUP, TOP = 128, np.float32(15)

    def __init__(self, means, ratio, score_type=np.float64):
        self.means, self.ratio, self.score_type = means, ratio, score_type
        self.nearest, self.attended, self.context = np.inf, 0, 0

    def channels(self, layer, kv_heads, d):
        """The channels of each KV head: the largest mean `|q·k|`, summed over its query heads."""
        totals = self.means[f"layers.{layer}.qk"].astype(np.float64).reshape(kv_heads, -1, d).sum(axis=1)
        return np.sort(np.argsort(-totals, axis=-1, kind="stable")[:, : d // 4])

    def labels(self, keys):
        """Keys [token][channel] of one group as they are after rounding to 4 bits."""
        low = keys.min(axis=0)
        step = (keys.max(axis=0) - low) / self.TOP
        codes = np.floor((keys - low) / np.where(step > 0, step, 1) + np.float32(0.5)).clip(0, self.TOP)
        return low + step * codes

    def __call__(self, view):
        kv_heads, group, rows, d = view.queries.shape
        mask = np.zeros((kv_heads, group, *view.products.shape[1:]), bool)
        for kv_head, channels in enumerate(self.channels(view.layer, kv_heads, d)):
            keys = view.keys[kv_head][:, channels].astype(np.float32)
            queries = view.queries[kv_head][:, :, channels].astype(self.score_type)
            whole = [self.labels(keys[at : at + self.GROUP]) for at in range(0, len(keys), self.GROUP)]
            scores = queries @ np.concatenate(whole).T.astype(self.score_type)
            for row in range(rows):
                self.pick(view.before + row, keys, queries[:, row], scores[:, row], mask[kv_head, :, row])
        return mask.reshape(view.products.shape)

    def pick(self, own, keys, queries, scores, mask):
        """Marks what the queries at position `own` attend. `scores` are those by whole groups."""
        start = own - own % self.GROUP
        if own > start:
            scores[:, start:own] = queries @ self.labels(keys[start:own]).T.astype(self.score_type)
        count = int(np.ceil(self.ratio * (own + 1)))
        order = np.argsort(-scores[:, :own], axis=-1, kind="stable")
        np.put_along_axis(mask, order[:, :count], True, axis=-1)
        mask[:, own] = True
        self.attended += count + 1
        self.context += own + 1
        if count < own:
            edge = np.take_along_axis(scores, order[:, count - 1 : count + 1], axis=-1)
            self.nearest = min(self.nearest, float((edge[:, 0] - edge[:, 1]).min()) / np.sqrt(self.means["layers.0.qk"].shape[-1]))


def parse(spec):
    """Name and parameters of `topk:k=5,sink=0,local=0`."""
    name, _, parameters = spec.partition(":")
    return name, dict(pair.split("=") for pair in parameters.split(",") if pair)


def select(spec, before, calibration=None, score_type=np.float64):
    """What chooses the tokens behind a prefix of `before` tokens; None if all are attended.

    `calibration` is a folder. `score_type` is in what Double Sparsity's scores are computed.
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
    return DoubleSparsity(means, float(given["ratio"]), score_type)
