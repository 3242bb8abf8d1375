"""The rows of the race: presses of kvpress, each with the method of spattn that is the same or nearest.

    python3 scripts/race/pairs.py [--alike] [NAME...]      # name, method of spattn

PyramidKVPress is not among them: layers that keep different numbers of tokens need Flash attention, since transformers makes one mask for all.
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """A press with its settings, and the method that it is here."""

    name: str
    # Its class in kvpress, and the press that shares its budget between heads, if it is wrapped in one.
    press: str
    settings: dict
    # The method of spattn; empty for `full`.
    spec: str
    # "same" algorithm, "rounding" if the same computed in other types, or "near".
    likeness: str = "same"
    # What differs, if anything does.
    differs: str = ""
    wrapped_in: str = ""
    # The attention that the press needs in transformers; empty for the fastest.
    attention: str = ""


FULL = Pair("full", "", {}, "")
# The votes of SnapKVPress: of the last 64 queries, averaged over five neighbours and over the group of a KV head.
VOTES = "window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0"


def snapkv(ratio):
    return Pair(f"snapkv {ratio}", "SnapKVPress", {"compression_ratio": ratio}, f"snapkv:preset=kvpress,compression_ratio={ratio}")


def streaming_llm(ratio):
    spec = f"streaming_llm:preset=kvpress,compression_ratio={ratio}"
    return Pair(f"streaming_llm {ratio}", "StreamingLLMPress", {"compression_ratio": ratio}, spec)


def expected_attention(ratio):
    # More queries than a prompt has: all of them.
    spec = f"expected_attention:preset=repo,compression_ratio={ratio},queries=65536"
    differs = "theirs computes means, covariances and scores in the type of the weights, ours in f64"
    return Pair(f"expected_attention {ratio}", "ExpectedAttentionPress", {"compression_ratio": ratio}, spec, "rounding", differs)


def ada_kv(ratio):
    differs = "theirs keeps the best fifth of each head first, ours mixes equal shares with those by votes, as the paper does"
    spec = f"ada_kv:compression_ratio={ratio},{VOTES}"
    return Pair(f"ada_kv {ratio}", "SnapKVPress", {"compression_ratio": ratio}, spec, "near", differs, wrapped_in="AdaKVPress")


ONE = snapkv(0.75)
# 1 less these ratios is exact in binary. 1 - 0.9 is a little below 0.1, so that theirs keeps 99 tokens of 1,000.
TEN = [
    *[of(ratio) for of in (snapkv, streaming_llm) for ratio in (0.75, 0.5, 0.875)],
    *[of(ratio) for of in (expected_attention, ada_kv) for ratio in (0.75, 0.5)],
]
# Methods that go by the same name and differ: theirs evicts once, ours in each step.
ALIKE = [
    Pair("tova 0.75", "TOVAPress", {"compression_ratio": 0.75}, "tova:ratio=0.25,sink=0,local=0", "near", "theirs evicts once, ours in each step"),
    Pair(
        "h2o 0.75",
        "ObservedAttentionPress",
        {"compression_ratio": 0.75},
        "h2o:density=0.25,sink=0,local=0,per=kv_head",
        "near",
        "theirs evicts once, by mean weights; ours in each step, by sums",
        attention="eager",
    ),
    Pair("random 0.75", "RandomPress", {"compression_ratio": 0.75}, "random:density=0.25", "near", "theirs draws once, ours in each step"),
]


def chosen(names, alike):
    """`full` and the pairs of these names; all ten if there are none."""
    pairs = TEN + (ALIKE if alike else [])
    unknown = set(names) - {pair.name for pair in pairs + [FULL]}
    if unknown:
        raise SystemExit(f"there is no pair {', '.join(sorted(unknown))}; there are: {', '.join(pair.name for pair in pairs)}")
    return [FULL] + [pair for pair in pairs if not names or pair.name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--alike", action="store_true")
    given = parser.parse_args()
    for pair in chosen(given.names, given.alike)[1:]:
        print(f"{pair.name}\t{pair.spec}")


if __name__ == "__main__":
    main()
