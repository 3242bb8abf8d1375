"""The trained model (Llama architecture, tied embeddings), its optimiser and its checkpoints."""
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
COMPUTE = torch.bfloat16 if CUDA else torch.float32
NORM_EPS = 1e-5


@dataclass
class Config:
    vocab: int = 8192
    layers: int = 10
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 896
    theta: float = 1e6
    positions: int = 32768


def init_parameters(c, seed):
    """Output projections start at zero, so that every layer starts as the identity."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda o, i: torch.randn(o, i, generator=g) * i ** -0.5
    P = {"emb": torch.randn(c.vocab, c.hidden, generator=g) * 0.05, "norm": torch.ones(c.hidden)}
    for i in range(c.layers):
        P[f"{i}.q"] = normal(c.heads * c.head_dim, c.hidden)
        P[f"{i}.k"], P[f"{i}.v"] = (normal(c.kv_heads * c.head_dim, c.hidden) for _ in range(2))
        P[f"{i}.o"] = torch.zeros(c.hidden, c.heads * c.head_dim)
        P[f"{i}.gate"], P[f"{i}.up"] = (normal(c.ff, c.hidden) for _ in range(2))
        P[f"{i}.down"] = torch.zeros(c.hidden, c.ff)
        P[f"{i}.norm1"], P[f"{i}.norm2"] = torch.ones(c.hidden), torch.ones(c.hidden)
    return P


# ---- forward: everything but attention works on flattened tokens, so that one compiled shape serves all lengths

def rms(x, gain):
    return F.rms_norm(x, (x.shape[-1],), gain, NORM_EPS).to(COMPUTE)


def rotate(x, cos, sin):
    x = x.float()
    half = x.shape[-1] // 2
    return (x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin).to(COMPUTE)


def before_attention(x, gain, wq, wk, wv, cos, sin, head_dim: int):
    h = rms(x, gain)
    split = lambda w: F.linear(h, w).view(h.shape[0], -1, head_dim)
    return rotate(split(wq), cos, sin), rotate(split(wk), cos, sin), split(wv)


def drop(out, rate):
    """Dropout with a separate rate for every token."""
    return out * (torch.rand_like(out) >= rate) / (1 - rate)


def after_attention(x, a, wo, gain, w_gate, w_up, w_down, rate):
    out = F.linear(a, wo).float()
    x = x + (out if rate is None else drop(out, rate))
    h = rms(x, gain)
    out = F.linear(F.silu(F.linear(h, w_gate)) * F.linear(h, w_up), w_down).float()
    return x + (out if rate is None else drop(out, rate))


def head(x, gain, emb, target):
    """Cross-entropy of every token."""
    return F.cross_entropy(F.linear(rms(x, gain), emb).float(), target, reduction="none")


class Attention:
    """Causal attention by the fastest kernel on this machine."""

    def __init__(self):
        self.choice = None

    def __call__(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if not CUDA:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        from torch.nn.attention import sdpa_kernel
        backend, repeat = self.choice
        if repeat:
            n = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not repeat).transpose(1, 2)

    def tune(self, c, tokens, length=4096):
        if not CUDA:
            return {}
        from torch.nn.attention import SDPBackend
        times = {}
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            for repeat in (False, True):
                self.choice = (backend, repeat)
                try:
                    make = lambda heads: torch.randn(tokens // length, length, heads, c.head_dim, device=DEVICE,
                                                     dtype=COMPUTE, requires_grad=True)
                    q, k, v = make(c.heads), make(c.kv_heads), make(c.kv_heads)
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    for i in range(7):
                        if i == 2:
                            start.record()
                        out = self(q, k, v)
                        out.backward(torch.ones_like(out))
                    end.record()
                    torch.cuda.synchronize()
                    times[self.choice] = start.elapsed_time(end) / 5
                except RuntimeError as e:
                    print(f"attention {backend} repeat={repeat}: {str(e)[:120]}", flush=True)
        self.choice = min(times, key=times.get)
        return {f"{b.name} repeat={r}": round(t, 2) for (b, r), t in times.items()}


class Network:
    def __init__(self, c, P, compile_parts=True):
        self.c, self.P, self.attention, self.tables = c, P, Attention(), {}
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile_parts else (lambda f: f)
        self.before, self.after, self.head = wrap(before_attention), wrap(after_attention), wrap(head)

    def weights(self):
        """The matrices in the arithmetic's type."""
        return {k: v.to(COMPUTE) if v.dim() == 2 else v for k, v in self.P.items()}

    def angles(self, rows, length):
        if (rows, length) not in self.tables:
            c = self.c
            inverse = c.theta ** -(torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
            angle = torch.outer(torch.arange(length, dtype=torch.float64), inverse)
            angle = torch.cat((angle, angle), -1)
            table = lambda t: t.float().to(DEVICE)[:, None].repeat(rows, 1, 1)
            self.tables[rows, length] = table(angle.cos()), table(angle.sin())
        return self.tables[rows, length]

    def losses(self, W, ids, rate=None, choices=None):
        """Cross-entropy of each next token, flattened; the last of a row predicts the row's first.

        At positions `choices[0]` it is that of the set of tokens `choices[1]` (-1 for none) instead."""
        c, P = self.c, self.P
        rows, length = ids.shape
        cos, sin = self.angles(rows, length)
        x = F.embedding(ids.reshape(-1), P["emb"])
        for i in range(c.layers):
            q, k, v = self.before(x, P[f"{i}.norm1"], W[f"{i}.q"], W[f"{i}.k"], W[f"{i}.v"], cos, sin, c.head_dim)
            shape = lambda t: t.view(rows, length, -1, c.head_dim)
            a = self.attention(shape(q), shape(k), shape(v)).reshape(rows * length, -1)
            x = self.after(x, a, W[f"{i}.o"], P[f"{i}.norm2"], W[f"{i}.gate"], W[f"{i}.up"], W[f"{i}.down"], rate)
        ce = self.head(x, P["norm"], W["emb"], ids.roll(-1, 1).reshape(-1))
        if choices is None or not len(choices[0]):
            return ce
        at, allowed = choices
        logits = F.linear(rms(x[at], P["norm"]), W["emb"]).float()
        of_set = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed < 0, -torch.inf)
        return ce.index_put((at,), logits.logsumexp(-1) - of_set.logsumexp(-1))


# ---- optimiser: Muon for the matrices of the layers, AdamW for the embedding and the gains

@torch.no_grad()
def orthogonal(G):
    """Newton-Schulz steps towards the nearest orthogonal matrix (Jordan et al. 2024)."""
    X = G.to(COMPUTE)
    tall = X.size(-2) > X.size(-1)
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
    return X.mT if tall else X


class Optimiser:
    def __init__(self, P, muon_lr, adam_lr, decay=0.02, momentum=0.95):
        self.P, self.muon_lr, self.decay, self.momentum = P, muon_lr, decay, momentum
        self.groups = {}
        for name, value in P.items():
            if value.dim() == 2 and name != "emb":
                self.groups.setdefault(tuple(value.shape), []).append(name)
        self.buffers = {s: torch.zeros(len(n), *s, device=DEVICE) for s, n in self.groups.items()}
        self.adam_names = ["emb"] + [n for n, v in P.items() if v.dim() == 1]
        self.adam_lr = adam_lr
        self.adam = torch.optim.AdamW(
            [{"params": [P["emb"]], "weight_decay": 0.01},
             {"params": [P[n] for n in self.adam_names[1:]], "weight_decay": 0.0}],
            lr=adam_lr, betas=(0.9, 0.98), eps=1e-10, fused=CUDA)

    @torch.no_grad()
    def step(self, factor):
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * factor
        self.adam.step()
        lr = self.muon_lr * factor
        for shape, names in self.groups.items():
            G = torch.stack([self.P[n].grad for n in names])
            buffer = self.buffers[shape]
            buffer.lerp_(G, 1 - self.momentum)
            update = orthogonal(G.lerp(buffer, self.momentum)).float()
            scale = lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for i, name in enumerate(names):
                self.P[name].mul_(1 - lr * self.decay).add_(update[i], alpha=-scale)
        for value in self.P.values():
            value.grad = None


# ---- checkpoints: few bytes, in pieces
# Parameters are stored with their upper 24 bits (bf16 and one more byte), Muon's momentum with 8 bits for each number and a
# scale for each row, Adam's moments in bf16. The bf16 part suffices to resume or export; the rest makes resuming smooth.

PIECE = 13 << 20


def write_pieces(folder, name, data):
    for old in folder.glob(f"{name}-*.bin"):
        old.unlink()
    for i in range(0, max(1, math.ceil(len(data) / PIECE))):
        (folder / f"{name}-{i}.bin").write_bytes(data[i * PIECE:(i + 1) * PIECE])


def read_pieces(folder, name):
    pieces = sorted(folder.glob(f"{name}-*.bin"))
    return np.frombuffer(b"".join(p.read_bytes() for p in pieces), np.uint8) if pieces else None


def bits(t):
    return t.detach().float().cpu().numpy().view(np.uint32)


def save_checkpoint(folder, c, P, optimiser, state):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flat = np.concatenate([bits(P[n]).ravel() for n in sorted(P)])
    write_pieces(folder, "weights", (flat >> 16).astype("<u2").tobytes())
    write_pieces(folder, "weights8", (flat >> 8 & 0xFF).astype(np.uint8).tobytes())
    scales, codes = [], []
    for shape in sorted(optimiser.buffers):
        buffer = optimiser.buffers[shape].float().cpu()
        scale = buffer.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        scales.append(scale.numpy().astype("<f4").tobytes())
        codes.append((buffer / scale).round().to(torch.int8).numpy().tobytes())
    write_pieces(folder, "momentum", b"".join(scales + codes))
    moments = []
    for name in optimiser.adam_names:
        entry = optimiser.adam.state.get(P[name])
        for key in ("exp_avg", "exp_avg_sq"):
            value = entry[key] if entry else torch.zeros_like(P[name])
            moments.append((bits(value.to(torch.bfloat16)) >> 16).astype("<u2").tobytes())
    write_pieces(folder, "adam", b"".join(moments))
    (folder / "state.json").write_text(json.dumps({"config": asdict(c), **state}, indent=1))


def read_config(folder):
    state = json.loads((Path(folder) / "state.json").read_text())
    return Config(**state["config"]), state


def read_parameters(folder):
    """The parameters of a checkpoint, in the stored precision."""
    folder = Path(folder)
    c, state = read_config(folder)
    shapes = {n: v.shape for n, v in init_parameters(c, 0).items()}
    flat = read_pieces(folder, "weights").view("<u2").astype(np.uint32) << 16
    low = read_pieces(folder, "weights8")
    if low is not None:
        flat |= low.astype(np.uint32) << 8
    flat = torch.from_numpy(flat.view(np.float32))
    P, at = {}, 0
    for name in sorted(shapes):
        size = shapes[name].numel()
        P[name] = flat[at:at + size].view(shapes[name]).clone()
        at += size
    assert at == len(flat), f"{folder}: {len(flat)} parameters, {at} expected"
    return c, P, state


@torch.no_grad()
def read_optimiser(folder, optimiser, steps):
    """Restores the optimiser from the stored parts of its state, and returns their names."""
    folder, found = Path(folder), []
    data = read_pieces(folder, "momentum")
    if data is not None:
        found.append("momentum")
        shapes = sorted(optimiser.buffers)
        counts = [optimiser.buffers[s].shape[0] * s[0] for s in shapes]
        scales, codes = data[:4 * sum(counts)].view("<f4"), data[4 * sum(counts):].view(np.int8)
        for shape, count in zip(shapes, counts):
            buffer = optimiser.buffers[shape]
            size = count * shape[1]
            value = codes[:size].reshape(buffer.shape) * scales[:count].reshape(*buffer.shape[:-1], 1)
            buffer.copy_(torch.from_numpy(value.astype(np.float32)))
            scales, codes = scales[count:], codes[size:]
    data = read_pieces(folder, "adam")
    if data is not None:
        found.append("adam")
        data = torch.from_numpy((data.view("<u2").astype(np.uint32) << 16).view(np.float32))
        for name in optimiser.adam_names:
            p = optimiser.P[name]
            entry = {"step": torch.tensor(float(steps), device=DEVICE if CUDA else "cpu")}
            for key in ("exp_avg", "exp_avg_sq"):
                entry[key] = data[:p.numel()].view(p.shape).clone().to(DEVICE)
                data = data[p.numel():]
            optimiser.adam.state[p] = entry
    return found
