"""What a model has learned of text, and what its attention looks like: one JSON file, and tables in Markdown.

- language: bits per byte by position in the context, perplexity, and unigram and bigram baselines on the same bytes
- attention of the last 64 tokens of a prompt: entropy, mass on the sink, on the last tokens and on the best 64 tokens
- geometry of keys and queries, as in MagicPIG (arXiv:2410.16179, section 3.1 and appendix B)

Works on any Hugging Face folder of the Llama family with a fast tokenizer. Prompts are run as plain text, without chat
template. All arithmetic of the model is float32.
"""
import argparse
import gzip
import json
import math
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUCKETS = (0, 64, 256, 1024, 4096, 16384)
QUERIES = 64   # the number of last tokens of a prompt whose attention is measured
TOP, LOCAL, ENOUGH = 64, 64, 0.8


# ---- texts and models

def read_texts(path):
    """Texts of a file or of a folder's *.txt and *.txt.gz, by name."""
    files = [path] if path.is_file() else sorted([*path.glob("*.txt"), *path.glob("*.txt.gz")])
    if not files:
        raise SystemExit(f"error: no *.txt or *.txt.gz in {path}")
    opener = lambda f: gzip.open(f, "rt", encoding="utf-8") if f.suffix == ".gz" else open(f, encoding="utf-8")
    return {f.name: opener(f).read() for f in files}


class Model:
    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.net.to(DEVICE).eval()
        self.vocab = self.net.config.vocab_size
        self.bos = self.net.config.bos_token_id

    def encode(self, text):
        """Ids without BOS, the end of each token in characters, and the bytes it adds to the text."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        bytes_before = np.concatenate(([0], np.cumsum([len(c.encode()) for c in text])))
        # Tokens that share a character end at the same position; the first one counts its bytes.
        ends = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], dtype=np.int64))
        return np.array(encoding.ids, dtype=np.int64), ends, np.diff(bytes_before[ends], prepend=0)

    def with_bos(self, ids):
        return torch.tensor([[self.bos, *ids]], device=DEVICE)

    @torch.inference_mode()
    def nats(self, ids):
        """-ln p of each token, the first one after BOS alone."""
        hidden = self.net.model(self.with_bos(ids[:-1])).last_hidden_state[0]
        targets = torch.as_tensor(ids, device=DEVICE)
        pieces = [torch.nn.functional.cross_entropy(self.net.lm_head(h).float(), t, reduction="none")
                  for h, t in zip(hidden.split(1024), targets.split(1024))]
        return torch.cat(pieces).double().cpu().numpy()


# ---- language

class Windows:
    """Windows of `length` tokens, evenly spaced over all texts; at most `most` of them (0: all)."""

    def __init__(self, model, texts, length, most):
        self.items, all_windows = [], []
        for text in texts.values():
            ids, ends, sizes = model.encode(text)
            all_windows += [(text, ids, ends, sizes, at) for at in range(0, len(ids) - length + 1, length)]
        chosen = np.linspace(0, len(all_windows) - 1, min(most or len(all_windows), len(all_windows))).round()
        for i in sorted({int(i) for i in chosen}):
            text, ids, ends, sizes, at = all_windows[i]
            start = ends[at - 1] if at else 0
            words = len(text[start:ends[at + length - 1]].split())
            self.items.append((ids[at:at + length], sizes[at:at + length], words))
        self.length = length
        self.bytes = int(sum(s.sum() for _, s, _ in self.items))
        self.words = sum(w for _, _, w in self.items)
        self.tokens = length * len(self.items)

    def score(self, nats_of):
        """Bits per byte, overall and by position, and perplexities, of a model that returns the nats of a window."""
        nats, sizes = np.zeros(self.length), np.zeros(self.length)
        for ids, of_window, _ in self.items:
            nats += nats_of(ids)
            sizes += of_window
        bits = lambda low, high: nats[low:high].sum() / math.log(2) / sizes[low:high].sum()
        return {
            "bits_per_byte": bits(0, self.length),
            "by_position": {f"{low}-{min(high, self.length)}": bits(low, high)
                            for low, high in zip(BUCKETS, BUCKETS[1:]) if low < self.length},
            "token_perplexity": math.exp(nats.sum() / self.tokens),
            "word_perplexity": math.exp(nats.sum() / self.words),
        }


class Counts:
    """Unigrams and bigrams with interpolated Witten-Bell smoothing: with N observations of T types in a context,
    p(w) = (count + T * p_shorter(w)) / (N + T); below unigrams, p is uniform over the vocabulary."""

    def __init__(self, sequences, vocab, bos):
        ids = np.concatenate(sequences)
        self.vocab, self.bos = vocab, bos
        counts = np.bincount(ids, minlength=vocab)
        types = np.count_nonzero(counts)
        self.unigram = (counts + types / vocab) / (len(ids) + types)
        pairs = np.concatenate([self.pairs(s) for s in sequences])
        self.pair, self.pair_count = np.unique(pairs, return_counts=True)
        self.after = np.bincount(pairs // vocab, minlength=vocab)
        self.types_after = np.bincount(self.pair // vocab, minlength=vocab)
        self.tokens = len(ids)

    def pairs(self, ids):
        return np.concatenate(([self.bos], ids[:-1])) * self.vocab + ids

    def unigram_nats(self, ids):
        return -np.log(self.unigram[ids])

    def bigram_nats(self, ids):
        pairs = self.pairs(ids)
        at = np.minimum(np.searchsorted(self.pair, pairs), len(self.pair) - 1)
        seen = np.where(self.pair[at] == pairs, self.pair_count[at], 0)
        before = pairs // self.vocab
        total, types = self.after[before], self.types_after[before]
        shorter = self.unigram[ids]
        return -np.log(np.where(total > 0, (seen + types * shorter) / np.maximum(total + types, 1), shorter))


def language(model, args):
    counts = None
    if args.train:
        books = list(read_texts(args.train).values())[:args.train_books or None]
        counts = Counts([model.encode(text)[0] for text in books], model.vocab, model.bos)
    sources = [("books_valid", args.valid), ("wikitext2_test", args.wiki)]
    out = {"baseline_training": counts and {"texts": len(books), "tokens": counts.tokens}}
    for name, path in sources:
        if not path:
            continue
        texts = read_texts(path)
        for length in (4096, 16384)[: 1 + args.long]:
            most = max(args.windows * 4096 // length, 1) if args.windows else 0
            windows = Windows(model, texts, length, most)
            if not windows.items:
                print(f"note: {name} has no {length} tokens in a row", flush=True)
                continue
            scores = {"model": windows.score(model.nats)}
            if counts:
                scores["bigram"] = windows.score(counts.bigram_nats)
                scores["unigram"] = windows.score(counts.unigram_nats)
            own = np.bincount(np.concatenate([ids for ids, _, _ in windows.items]), minlength=model.vocab)
            scores["unigram_of_this_text"] = windows.score(lambda ids: -np.log(own[ids] / windows.tokens))
            out[f"{name}/{length}"] = {"windows": len(windows.items), "tokens": windows.tokens,
                                       "bytes": windows.bytes, "words": windows.words, "scores": scores}
    return out


# ---- attention and geometry

def attention_of_last(q, k, scale):
    """Statistics of the last queries' attention, [heads, queries] each. `q` is [heads, n, d], `k` [KV heads, n, d]."""
    n, count = q.shape[1], min(QUERIES, q.shape[1] - LOCAL)
    at = torch.arange(n - count, n, device=q.device)
    keys = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    scores = q[:, -count:] @ keys.transpose(1, 2) * scale
    p = scores.masked_fill(torch.arange(n, device=q.device) > at[:, None], -torch.inf).softmax(-1)
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1)
    mass = p.cumsum(-1)
    until = lambda position: mass.gather(2, position.expand(p.shape[0], -1)[..., None])[..., 0]
    return {
        "entropy_nats": entropy,
        "entropy_of_ln_n": entropy / (at + 1).float().log(),
        "first_token": p[..., 0],
        "first_4": p[..., :4].sum(-1),
        "last_64": until(at) - until(at - LOCAL),
        "top_64": p.topk(min(TOP, n)).values.sum(-1),
    }


def directions(x):
    return torch.nn.functional.normalize(x, dim=-1)


def cone(x):
    """The mean cosine of the vectors to the mean direction of their unit vectors, and that direction scaled by it."""
    mean = directions(x).mean(1)
    return mean.norm(dim=-1), mean


def geometry(q, k, v):
    """Angles of one prompt, one number for each query head. The first token is the sink, and not counted among keys and queries."""
    group = q.shape[0] // k.shape[0]
    wide = lambda x: x.repeat_interleave(group, 0)
    q, sink, k = q[:, 1:], k[:, 0], k[:, 1:]
    center = k.mean(1)
    cosine = lambda a, b: (directions(a) * directions(b)).sum(-1)
    (q_cone, q_mean), (k_cone, k_mean), (centred, centred_mean) = cone(q), cone(k), cone(k - center[:, None])
    return {
        "mean_key_to_mean_query": cosine(wide(center), q.mean(1)),
        "key_to_query": (wide(k_mean) * q_mean).sum(-1),
        "key_to_query_centred": (wide(centred_mean) * q_mean).sum(-1),
        "keys_to_mean": wide(k_cone),
        "keys_to_mean_centred": wide(centred),
        "queries_to_mean": q_cone,
        "sink_to_mean_key": wide(cosine(sink, center)),
        "sink_to_mean_query": cosine(wide(sink), q.mean(1)),
        "sink_value_norm_ratio": wide(v[:, 0].norm(dim=-1) / v[:, 1:].norm(dim=-1).mean(1)),
    }


class Watch:
    """Observes the queries, keys and values of every layer, and collects their statistics over prompts."""

    def __init__(self):
        self.attention = defaultdict(list)   # layer -> a dict of [heads, queries] for each prompt
        self.geometry = defaultdict(list)    # layer -> a dict of [heads] for each prompt
        self.mean_keys = defaultdict(list)   # layer -> [KV heads, d] for each prompt

    def see(self, layer, q, k, v, scale):
        q, k, v = q[0].float(), k[0].float(), v[0].float()
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        take = lambda d: {name: x.cpu() for name, x in d.items()}
        self.attention[layer].append(take(attention_of_last(q, k, scale)))
        self.geometry[layer].append(take(geometry(q, k, v)))
        self.mean_keys[layer].append(directions(k[:, 1:].mean(1)).cpu())

    def result(self):
        layers = [self.layer(i) for i in sorted(self.attention)]
        means = lambda part: {name: float(np.mean([layer[part][name] if part == "attention"
                                                   else layer[part][name]["mean"] for layer in layers]))
                              for name in layers[0][part]}
        return {"attention": means("attention"), "geometry": means("geometry"), "layers": layers}

    def layer(self, i):
        seen = {name: torch.cat([a[name] for a in self.attention[i]], 1) for name in self.attention[i][0]}
        top = seen["top_64"]
        attention = {name: float(x.mean()) for name, x in seen.items()}
        attention["heads_top_64_below_80"] = float((top.mean(1) < ENOUGH).float().mean())
        attention["pairs_top_64_below_80"] = float((top < ENOUGH).float().mean())
        angles = {name: torch.stack([g[name] for g in self.geometry[i]]).mean(0) for name in self.geometry[i][0]}
        means = torch.stack(self.mean_keys[i])
        if (n := len(means)) > 1:
            # The mean cosine between mean keys of two different prompts.
            angles["mean_keys_of_two_prompts"] = (means.sum(0).pow(2).sum(-1) - n) / (n * (n - 1))
        spread = lambda x: {"min": float(x.min()), "mean": float(x.mean()), "max": float(x.max())}
        return {"attention": attention, "geometry": {name: spread(x) for name, x in angles.items()}}


class Watched:
    """A context in which a `Watch` observes the model's attention."""

    def __init__(self, watch):
        self.watch, self.inner = watch, ALL_ATTENTION_FUNCTIONS["sdpa"]

    def __enter__(self):
        def attend(module, query, key, value, mask, **more):
            self.watch.see(module.layer_idx, query, key, value, more.get("scaling"))
            return self.inner(module, query, key, value, mask, **more)
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attend

    def __exit__(self, *_):
        ALL_ATTENTION_FUNCTIONS["sdpa"] = self.inner


@torch.inference_mode()
def watched(model, prompts):
    watch = Watch()
    with Watched(watch):
        for ids in prompts:
            model.net.model(model.with_bos(ids))
    return {"prompts": len(prompts), "tokens": float(np.mean([len(ids) + 1 for ids in prompts])), **watch.result()}


def prompt_sets(model, args):
    """Token ids by set: windows of books with the prompts' length, and the rows of prompt files by task."""
    sets = defaultdict(list)
    for line in (line for file in args.prompts for line in open(file, encoding="utf-8")):
        row = json.loads(line)
        name = row.get("task", "prompts")
        if len(sets[name]) < args.samples:
            sets[name].append(model.encode(row["input"] + row.get("answer_prefix", ""))[0])
    if args.valid:
        books = [ids for ids, _, _ in Windows(model, read_texts(args.valid), 4095, args.samples).items]
        sets = {"books_valid": books, **sets}
    return sets


# ---- tables

def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1))
    for name, *cells in rows:
        print(f"| {name} | " + " | ".join(c if isinstance(c, str) else f"{c:.3f}" for c in cells) + " |")


def print_language(result):
    print("\n## Bits per byte by position in the context")
    texts = {name: text for name, text in result.items() if "/" in name}
    for name, text in texts.items():
        positions = list(text["scores"]["model"]["by_position"])
        print(f"\n{name}: {text['windows']} windows, {text['tokens']:,} tokens, {text['bytes']:,} bytes, "
              f"{text['words']:,} words")
        table(["", "all", *positions, "token perplexity", "word perplexity"],
              [[who, s["bits_per_byte"], *s["by_position"].values(), f"{s['token_perplexity']:.1f}",
                f"{s['word_perplexity']:.0f}"] for who, s in text["scores"].items()])


def print_attention(sets):
    print(f"\n## Attention of the last {QUERIES} tokens, mean over layers and heads")
    names = list(next(iter(sets.values()))["attention"])
    table(["set", "prompts", *names], [[n, str(s["prompts"]), *s["attention"].values()] for n, s in sets.items()])
    layers = range(len(next(iter(sets.values()))["layers"]))
    for what in ("entropy_of_ln_n", "first_token", "heads_top_64_below_80", "pairs_top_64_below_80"):
        print(f"\n### {what} by layer")
        table(["set", *map(str, layers)], [[n, *(s["layers"][i]["attention"][what] for i in layers)]
                                           for n, s in sets.items()])
    print("\n## Geometry: cosines, mean over layers and heads")
    names = list(next(iter(sets.values()))["geometry"])
    table(["", *sets], [[name, *(s["geometry"].get(name, math.nan) for s in sets.values())] for name in names])
    first, of_first = next(iter(sets.items()))
    print(f"\n### By layer on {first}: min / mean / max over heads")
    shown = ("mean_key_to_mean_query", "keys_to_mean", "keys_to_mean_centred", "key_to_query_centred",
             "sink_to_mean_key")
    cell = lambda x: f"{x['min']:.2f} / {x['mean']:.2f} / {x['max']:.2f}"
    table(["layer", *shown], [[str(i), *(cell(of_first["layers"][i]["geometry"][name]) for name in shown)]
                              for i in layers])


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", type=Path, required=True, help="folder with config.json, weights and tokenizer.json")
    a.add_argument("--valid", type=Path, help="held-out books: a folder of *.txt or *.txt.gz")
    a.add_argument("--wiki", type=Path, help="wiki.test.raw of WikiText-2")
    a.add_argument("--train", type=Path, help="books to count uni- and bigrams on (never what is evaluated)")
    a.add_argument("--prompts", type=Path, nargs="*", default=[],
                   help="JSONL of `spattn data export-eval`, grouped by task")
    a.add_argument("--windows", type=int, default=0 if DEVICE == "cuda" else 32,
                   help="windows of 4096 tokens a text, 0: all (default: all on a GPU, 32 on a CPU)")
    a.add_argument("--samples", type=int, default=16 if DEVICE == "cuda" else 8, help="prompts a set for attention")
    a.add_argument("--long", action="store_true", help="also windows of 16384 tokens")
    a.add_argument("--train-books", type=int, default=0, help="count on so many training books only, 0: all")
    a.add_argument("--small", action="store_true", help="2 windows, 2 prompts a set, 4 training books: does it run?")
    a.add_argument("--out", type=Path, required=True, help="where to write the JSON")
    args = a.parse_args()
    if args.small:
        args.windows, args.samples, args.train_books = 2, 2, 4
    return args


def main():
    args, started = arguments(), time.time()
    model = Model(args.model)
    result = {"model": str(args.model), "device": DEVICE, "settings": {k: str(v) for k, v in vars(args).items()},
              "language": language(model, args)}
    print_language(result["language"])
    sets = prompt_sets(model, args)
    result["sets"] = {name: watched(model, prompts) for name, prompts in sets.items()}
    if sets:
        print_attention(result["sets"])
    result["seconds"] = round(time.time() - started, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\n{result['seconds']} s on {DEVICE}; {args.out}")


if __name__ == "__main__":
    main()
