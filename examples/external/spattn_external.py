"""The protocol between `spattn eval -m external:...` and a command, for the examples beside this file. Copy it, and write `prefix` and `step`.

A message is a line of JSON, then the arrays that it names, as little-endian 32-bit floats. An answer is the same.
"""

import json
import sys

import numpy as np

TO, FROM = sys.stdout.buffer, sys.stdin.buffer
# What is printed by accident goes where people read it, and not among the answers.
sys.stdout = sys.stderr


def answer(message, scores=None):
    TO.write(json.dumps(message).encode() + b"\n")
    if scores is not None:
        TO.write(np.ascontiguousarray(scores, "<f4").tobytes())
    TO.flush()


def arrays_of(message):
    """The arrays that follow a message, by name."""
    arrays = {}
    for name, shape in message["arrays"].items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(FROM.read(4 * count), "<f4").reshape(shape)
    return arrays


def serve(name, version, answers, prefix, step, values=False):
    """Answers until the input ends. `prefix(message, arrays)` returns what is kept about a KV head; `step(message, arrays, kept)` returns
    scores `[heads][candidates]` if `answers` is "scores", or a list of candidates for each head if it is "tokens"."""
    kept = {}
    for line in FROM:
        message = json.loads(line)
        arrays = arrays_of(message)
        if message["type"] == "hello":
            answer({"protocol": 1, "name": name, "version": version, "answers": answers, "values": values})
        elif message["type"] == "prefix":
            kept[message["prefix"]] = prefix(message, arrays)
            answer({})
        elif message["type"] == "forget":
            del kept[message["prefix"]]
        elif message["type"] == "step":
            found = step(message, arrays, kept[message["prefix"]])
            if answers == "scores":
                answer({"scores": list(found.shape)}, found)
            else:
                answer({"tokens": [[int(token) for token in list_] for list_ in found]})
