"""Double Sparsity's label cache: a quarter of the channels of each key, in 4 bits."""

from dataclasses import dataclass

import numpy as np

# Tokens that share a channel's range, and the largest code.
GROUP, TOP = 128, np.float32(15)


def channels(means, layer, kv_head, d):
    """A quarter of a KV head's channels, ascending: the largest mean `|q·k|`, summed over its query heads."""
    of_layer = means[f"layers.{layer}.qk"].astype(np.float64)
    heads = len(of_layer)
    kv_heads = means[f"layers.{layer}.k"].shape[0]
    totals = of_layer.reshape(kv_heads, heads // kv_heads, d)[kv_head].sum(axis=0)
    return np.sort(np.argsort(-totals, kind="stable")[: d // 4])


def best(scores, count):
    """The `count` tokens of the largest scores in each row; of equal ones the first."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]


def shortened(x):
    """f32 without its last four bits, rounded, so that a product with a code is exact."""
    return ((x.view(np.uint32) + np.uint32(8)) & np.uint32(0xFFFFFFF0)).view(np.float32)


@dataclass
class Labels:
    """Numbers `low + step · code`, of which `low` and `step` are a channel's over a group of tokens.

    All are [channel][token], so that a sum over channels is in the same order for all tokens: two tokens with the same codes get the same
    score to the last bit. (A matrix product does not promise that, and would break such ties by chance.)
    """

    low: np.ndarray
    step: np.ndarray
    codes: np.ndarray

    @staticmethod
    def of(keys):
        """The labels of keys [token][channel]; the last group may be short."""
        return Labels.joined([Labels.of_group(keys[at : at + GROUP]) for at in range(0, len(keys), GROUP)])

    @staticmethod
    def of_group(keys):
        low = keys.min(axis=0)
        step = (keys.max(axis=0) - low) / TOP
        places = (keys - low) / np.where(step > 0, step, np.float32(1))
        # In double precision: 0.5 is added without rounding.
        codes = np.floor(places.astype(np.float64) + 0.5).clip(0, TOP).astype(np.float32)
        wide = lambda x: np.repeat(x[:, None], len(keys), axis=1)
        return Labels(wide(low), wide(step), codes.T)

    @staticmethod
    def joined(parts):
        join = lambda name: np.concatenate([getattr(part, name) for part in parts], axis=1)
        return Labels(join("low"), join("step"), join("codes"))

    def scores(self, queries):
        """`q·label` of queries [query][channel], in double precision: [query][token]."""
        total = np.zeros((len(queries), self.codes.shape[1]))
        for q, low, step, codes in zip(queries.T.astype(np.float64), *self.in_double()):
            total += q[:, None] * (low + step * codes)
        return total

    def in_double(self):
        return (x.astype(np.float64) for x in (self.low, self.step, self.codes))

    def scores_in_f32(self, queries):
        """As `scores`, in single precision and the program's order: ranges first, then codes."""
        total = np.zeros((len(queries), self.codes.shape[1]), np.float32)
        for q, low in zip(queries.T, self.low):
            total += q[:, None] * low
        for q, step, codes in zip(queries.T, self.step, self.codes):
            total += shortened(q[:, None] * step) * codes
        return total

    def rounding(self, queries):
        """How far `scores_in_f32`, summed in any order, may be from `scores`, for each of them.

        A factor loses its last four bits (half of 2^-19), and each of two products and two additions a channel half a unit in the last
        place.
        """
        least, codes = np.zeros((2, len(queries), self.codes.shape[1]))
        for q, low, step, code in zip(np.abs(queries.T.astype(np.float64)), *self.in_double()):
            least += q[:, None] * np.abs(low)
            codes += q[:, None] * step * code
        return 2.0**-20 * codes + 2.0**-24 * (2 * len(self.codes) + 2) * (least + codes)
