"""Recomputes stored results of the papers' tables and figures on Qwen2.5-Coder, from the data files up."""

import time
from pathlib import Path

import cells
import generated
import windows
from qwen2 import Qwen2
from stored import Item
from tokens import encoder, tokenizer


def of_kind(items, kind):
    return [item for item in items if all(task.startswith(kind) for task in item.tasks())]


def check(given):
    """Prints what is compared. Returns how much differs."""
    begun = time.time()
    name = Path(given.model).stem.removesuffix("-q4_k_m")
    items = [Item(item, name, given.records) for item in given.item]
    model = Qwen2(given.model)
    made = tokenizer(model.reader)
    encode = encoder(made)
    differ = 0
    if choices := of_kind(items, "mcq/"):
        differ += cells.check(model, encode, choices, given.data, given.limit)
    for item in of_kind(items, "ppl/"):
        differ += windows.check(model, encode, item, given.data, given.calibration, given.windows, given.only)
    for item in of_kind(items, "gen/"):
        differ += generated.check(model, encode, made, item, given.data, given.skip, given.limit)
    print(f"{time.time() - begun:.0f} s")
    return differ
