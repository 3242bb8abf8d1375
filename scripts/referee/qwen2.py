"""Qwen2's forward pass in numpy, from the weights of a GGUF file that `gguf` (llama.cpp's package) dequantises.

Matrices and activations are f32; norms, attention and likelihoods are summed in f64.
"""

from dataclasses import dataclass

import gguf
import numpy as np

@dataclass
class Cache:
    """Keys and values of one text: for each layer [kv_head][token][d], keys rotated."""

    keys: list
    values: list

    @staticmethod
    def empty(model):
        none = np.zeros((model.kv_heads, 0, model.d), np.float32)
        return Cache([none] * model.layers, [none] * model.layers)

    def __len__(self):
        return self.keys[0].shape[1]

    def room_for(self, tokens):
        """A cache with the same tokens, and room for so many in all, which `append` fills."""
        with_room = lambda x: np.concatenate([x, np.zeros((len(x), tokens - len(self), x.shape[2]), np.float32)], axis=1)
        return Growing([with_room(x) for x in self.keys], [with_room(x) for x in self.values], len(self))

    def followed_by(self, other):
        join = lambda ours, theirs: [np.concatenate(pair, axis=1) for pair in zip(ours, theirs)]
        return Cache(join(self.keys, other.keys), join(self.values, other.values))


@dataclass
class Growing:
    """The caches of a text that grows, in arrays that do not."""

    keys: list
    values: list
    filled: int

    def now(self):
        part = lambda arrays: [x[:, : self.filled] for x in arrays]
        return Cache(part(self.keys), part(self.values))

    def append(self, cache):
        end = self.filled + len(cache)
        for own, new in zip(self.keys + self.values, cache.keys + cache.values):
            own[:, self.filled : end] = new
        self.filled = end


@dataclass
class Segment:
    """Tokens that follow a prefix, and what chooses the tokens that each row attends: a function from a `View`, or None.

    The function returns a mask [head][row][token]. Later tokens than the row's own are never attended.
    """

    prefix: Cache
    tokens: list
    select: object = None


@dataclass
class View:
    """What a layer's choice of tokens may look at: prefix and rows together, `before` of them the prefix's."""

    layer: int
    before: int
    # [kv_head][query head of the group][row][d] and [kv_head][token][d]
    queries: np.ndarray
    keys: np.ndarray
    # q·k, [head][row][token]
    products: np.ndarray


class Qwen2:
    def __init__(self, path):
        # In which type attention is computed. Single precision is for long answers, where it takes most of the time.
        self.attention_type = np.float64
        self.reader = gguf.GGUFReader(path)
        self.stored = {tensor.name: tensor for tensor in self.reader.tensors}
        self.layers = self.field("qwen2.block_count")
        self.heads = self.field("qwen2.attention.head_count")
        self.kv_heads = self.field("qwen2.attention.head_count_kv")
        self.width = self.field("qwen2.embedding_length")
        self.d = self.width // self.heads
        self.epsilon = self.field("qwen2.attention.layer_norm_rms_epsilon")
        periods = (self.field("qwen2.rope.freq_base") ** (np.arange(0, self.d, 2) / self.d)).astype(np.float32)
        self.frequencies = np.float32(1) / periods
        self.blocks = [self.block(f"blk.{layer}.") for layer in range(self.layers)]
        self.final_norm = self.weight("output_norm.weight")
        self.output = self.weight("output.weight" if "output.weight" in self.stored else "token_embd.weight")

    def field(self, name):
        return self.reader.fields[name].contents()

    def weight(self, name):
        tensor = self.stored[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def block(self, prefix):
        return {name[len(prefix) :]: self.weight(name) for name in self.stored if name.startswith(prefix)}

    def embedded(self, tokens):
        tensor = self.stored["token_embd.weight"]
        return gguf.quants.dequantize(tensor.data[np.array(tokens)], tensor.tensor_type).astype(np.float32)

    def norm(self, x, weight):
        mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        return (x / np.sqrt(mean + self.epsilon) * weight).astype(np.float32)

    def rotated(self, x, positions):
        """RoPE: channel i turns with channel i + d/2. `x` is [row][head][d]. Angles are rounded to f32, as in transformers."""
        angles = (positions[:, None, None].astype(np.float32) * self.frequencies).astype(np.float64)
        cos, sin = np.cos(angles), np.sin(angles)
        low, high = np.split(x.astype(np.float64), 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(np.float32)

    def attended(self, layer, segment, q, k, v):
        """Output [row][head * d] of a segment's rows, which see their prefix by its selection and each other causally."""
        rows, before = len(q), len(segment.prefix)
        wide = lambda x: x.astype(self.attention_type, copy=False)
        parts = [(wide(segment.prefix.keys[layer]), wide(segment.prefix.values[layer]))]
        parts.append((wide(k.transpose(1, 0, 2)), wide(v.transpose(1, 0, 2))))
        grouped = wide(q).reshape(rows, self.kv_heads, -1, self.d).transpose(1, 2, 0, 3)
        flat = grouped.reshape(self.kv_heads, -1, self.d)
        products = np.concatenate([flat @ keys.transpose(0, 2, 1) for keys, _ in parts], axis=-1)
        products = products.reshape(self.heads, rows, before + rows)
        seen = np.ones(products.shape, bool)
        seen[:, :, before:] = np.tri(rows, dtype=bool)
        if segment.select:
            keys = np.concatenate([keys for keys, _ in parts], axis=1)
            seen = seen & segment.select(View(layer, before, grouped, keys, products))
        logits = np.where(seen, products / self.attention_type(np.sqrt(self.d)), -np.inf)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        weights = weights.reshape(self.kv_heads, -1, before + rows)
        out = weights[:, :, :before] @ parts[0][1] + weights[:, :, before:] @ parts[1][1]
        return out.reshape(self.heads, rows, self.d).transpose(1, 0, 2).reshape(rows, -1).astype(np.float32)

    def read(self, segments):
        """Reads segments side by side. Returns the last hidden states of each, normed, and its cache without the prefix."""
        ends = np.cumsum([len(segment.tokens) for segment in segments])
        parts = [slice(end - len(segment.tokens), end) for end, segment in zip(ends, segments)]
        positions = np.concatenate([len(s.prefix) + np.arange(len(s.tokens)) for s in segments])
        x = self.embedded([token for segment in segments for token in segment.tokens])
        caches = [Cache([], []) for _ in segments]
        for layer, block in enumerate(self.blocks):
            x = x + self.attention(layer, block, x, positions, segments, parts, caches)
            x = x + self.mlp(block, x)
        x = self.norm(x, self.final_norm)
        return [x[part] for part in parts], caches

    def attention(self, layer, block, x, positions, segments, parts, caches):
        normed = self.norm(x, block["attn_norm.weight"])
        project = lambda what, heads: (
            normed @ block[f"attn_{what}.weight"].T + block[f"attn_{what}.bias"]
        ).reshape(len(x), heads, self.d)
        q = self.rotated(project("q", self.heads), positions)
        k = self.rotated(project("k", self.kv_heads), positions)
        v = project("v", self.kv_heads)
        outs = []
        for segment, part, cache in zip(segments, parts, caches):
            outs.append(self.attended(layer, segment, q[part], k[part], v[part]))
            cache.keys.append(k[part].transpose(1, 0, 2))
            cache.values.append(v[part].transpose(1, 0, 2))
        return np.concatenate(outs) @ block["attn_output.weight"].T

    def mlp(self, block, x):
        normed = self.norm(x, block["ffn_norm.weight"])
        gate = normed @ block["ffn_gate.weight"].T
        return (gate / (1 + np.exp(-gate)) * (normed @ block["ffn_up.weight"].T)) @ block["ffn_down.weight"].T

    def log_likelihoods(self, hidden, tokens, rows=64):
        """Natural logarithms of the probabilities of the tokens that follow each row, `rows` at a time."""
        found = []
        for at in range(0, len(tokens), rows):
            logits = hidden[at : at + rows] @ self.output.T
            top = logits.max(axis=-1, keepdims=True)
            total = np.log(np.exp(logits - top).sum(axis=-1, dtype=np.float64))
            own = np.take_along_axis(logits, np.array(tokens[at : at + rows])[:, None], axis=-1) - top.astype(np.float64)
            found.append(own[:, 0] - total)
        return np.concatenate(found)

    def log_probabilities(self, hidden, rows=64):
        """Natural logarithms of all tokens' probabilities, [row][token], `rows` at a time."""
        found = []
        for at in range(0, len(hidden), rows):
            logits = hidden[at : at + rows] @ self.output.T
            logits -= logits.max(axis=-1, keepdims=True)
            total = np.log(np.exp(logits).sum(axis=-1, keepdims=True, dtype=np.float64))
            found.append((logits - total).astype(np.float32))
        return np.concatenate(found)
