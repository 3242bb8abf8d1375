"""Reads the files of `spattn analyze --dump`, with numpy alone."""

import csv
import json
import struct
from pathlib import Path

import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32}


def tensors(path):
    """The tensors of a safetensors file by name, and its metadata."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header.pop("__metadata__")["spattn"])
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found, about


class Document:
    """A prompt: queries, keys and values in double precision, and the methods' selections and outputs."""

    def __init__(self, path):
        self.tensors, self.about = tensors(path)
        self.heads, self.kv_heads = self.about["heads"], self.about["kv_heads"]
        self.d, self.context, self.layers = self.about["head_dim"], self.about["context"], self.about["layers"]
        self.scale = 1 / np.sqrt(self.d)

    def group(self):
        return self.heads // self.kv_heads

    def layer(self, layer):
        """Queries [step][head][d], keys and values [kv_head][token][d]."""
        return (self.tensors[f"layers.{layer}.{what}"].astype(np.float64) for what in ("queries", "keys", "values"))

    def method(self, name):
        """Index and parameters of the method of that name; None if it is not there."""
        for at, label in enumerate(self.about["methods"]):
            own, _, parameters = label.partition(":")
            if own == name:
                return at, dict(pair.split("=") for pair in parameters.split(",") if pair)
        return None

    def of_method(self, at, layer, what):
        return self.tensors[f"methods.{at}.layers.{layer}.{what}"]

    def picks(self, at, layer, step, head):
        picks = self.of_method(at, layer, "picks")[step, head]
        return np.sort(picks[picks >= 0])

    def each_query(self):
        """For each query: layer, step, head, query [d], and the keys [token][d] and values [token][d] that it attends."""
        for layer in self.layers:
            queries, keys, values = self.layer(layer)
            for step in range(queries.shape[0]):
                seen = self.context + step + 1
                for head in range(self.heads):
                    kv_head = head // self.group()
                    yield layer, step, head, queries[step, head], keys[kv_head, :seen], values[kv_head, :seen]


def documents(folder):
    return [Document(path) for path in sorted(Path(folder, "dump").glob("*.safetensors"))]


def table(folder, name):
    """Rows of a table as dictionaries."""
    with open(Path(folder, "tables", f"{name}.csv"), newline="") as file:
        return list(csv.DictReader(file))


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
