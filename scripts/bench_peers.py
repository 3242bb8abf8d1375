"""Times other programs at the shapes of `spattn bench`, one call at a time, between its own turns.

    python3 -c "$(cat scripts/bench_peers.py)" --op attention --heads 32 --kv-heads 8 --d 128 --contexts 8192

PyTorch is needed; faiss, hnswlib and transformers are timed if they are installed. Commands are lines of
JSON on standard input. Each is answered with one line on standard output, and nothing else is written there:

    {"prepare": {"context": 8192, "batch": 1}}
        {"ready": [{"method": "torch_sdpa_bf16_gqa", "params": "", "dtype": "bf16", "layers": 1,
         "density": 1.0, "flops": 134217728, "bytes": 33554432, "about": "..."}, ...],
         "notes": ["faiss is not installed"], "versions": {"torch": "2.15.0"}}
        Generates keys and values, builds what the peers need, and releases what was prepared before. A peer
        that searches an index also has "index_ms", the time to build it, and "recall", the share of the
        true neighbours that it finds. `flops` and `bytes` are 0 if they are not counted. The notes name the
        peers that cannot be timed, with the reason.
    {"time": "torch_sdpa_bf16_gqa"}    {"us": 1234.5}
        Runs it once, with a new query, without warm-up or repetition.
    {"check": "torch_sdpa_bf16_gqa"}   {"first": [0.0123, ...]}
        Eight numbers of its output for a query that all peers share, so that a test can compare them: the
        first ones of the last row, which in a prefill is the last token of the last head.
    {"release": true}                  {"released": true}

A command that fails is answered with {"error": "one line"}. The end of input ends the program.
"""

import argparse
import copy
import gc
import importlib
import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Callable

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(json.dumps({"error": f"PyTorch cannot be loaded: {missing}"}), flush=True)
    sys.exit(1)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
# Keys and values are copied to f32, beside the requested type, if the copies have fewer bytes than this.
F32_LIMIT = 3e9
# The most bytes of the scores of all pairs, which the unfused form writes to memory.
SCORES_LIMIT = 1e9
# The share of the free memory that one preparation may use.
MEMORY_SHARE = 0.85
KNN_LIMIT = 131072
# Worker threads spin for a moment after a call. The caller's own turn starts after that.
SETTLE_S = 0.005
# The cycles that the GPU waits before a timed call: about a quarter of a millisecond.
AHEAD_CYCLES = 500_000
NOISE = "keys and values are white noise, which changes no time of a form that reads all"


@dataclass(frozen=True)
class Shape:
    """One layer's attention over `batch` contexts of `tokens` each."""

    heads: int
    kv_heads: int
    d: int
    tokens: int
    batch: int
    last: int = 0

    @property
    def group(self):
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    def kv_bytes(self, dtype):
        """Keys and values, read once for all query heads of a group."""
        return 2 * self.batch * self.kv_heads * self.tokens * self.d * dtype.itemsize

    def attention_flops(self, op):
        """FLOPs of two products for every pair of a query and a key that it attends: for a whole prompt, half of the square."""
        prompt = self.last * self.tokens if self.last else self.tokens * self.tokens // 2
        pairs = {"attention": self.tokens, "decode": self.tokens, "prefill": prompt}[op]
        return 4 * pairs * self.d * self.heads * self.batch


@dataclass
class Peer:
    """Something that can be timed: `run` is called with what `draw` makes from a random generator."""

    row: dict
    run: Callable
    draw: Callable
    first: Callable
    context: Callable = nullcontext
    after: Callable = lambda: None


@dataclass
class Prepared:
    """The result of one `prepare`."""

    peers: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    versions: dict = field(default_factory=lambda: {"torch": torch.__version__})


def row(method, dtype, about, **more):
    """The description of a peer for the caller."""
    return (
        {"method": method, "params": "", "dtype": dtype, "layers": 1, "density": 1.0}
        | more
        | {"about": about}
    )


def one_line(error):
    """An error as one line of moderate length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def loaded(name, prepared):
    """An optional module; None, and a note, if it is not installed."""
    try:
        module = importlib.import_module(name)
    except ImportError as missing:
        absent = isinstance(missing, ModuleNotFoundError) and missing.name == name
        prepared.notes.append(f"{name} is not installed" if absent else f"{name} cannot be loaded: {missing}")
        return None
    prepared.versions[name] = version_of(module)
    return module


def version_of(module):
    """The version that a module or its package states."""
    try:
        return getattr(module, "__version__", None) or metadata.version(module.__name__)
    except metadata.PackageNotFoundError:
        return "unknown"


def free_bytes(device):
    """The free memory in bytes; infinite if it is unknown."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        with open("/proc/meminfo") as lines:
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def claim(what, needed, device):
    """Raises an error if something does not fit into memory, before the system would kill the program."""
    free = MEMORY_SHARE * free_bytes(device)
    if needed > free:
        raise MemoryError(f"{what} takes {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB that may be taken")


def generator(args, *salt):
    """A random generator that depends on the seed and on everything in `salt`."""
    seed = args.seed
    for value in salt:
        seed = (seed * 1_000_003 + value) % 2**63
    return torch.Generator(args.device).manual_seed(seed)


def dtypes(args, shape, prepared, layers=1):
    """The requested type, and also f32 on a CPU, whose arithmetic is in f32, if the copies are small."""
    if args.device != "cpu" or args.dtype == "f32":
        return [args.dtype]
    if layers * shape.kv_bytes(torch.float32) < F32_LIMIT:
        return [args.dtype, "f32"]
    prepared.notes.append(f"keys and values in f32 would take {F32_LIMIT / 1e9:.0f} GB or more: not timed")
    return [args.dtype]


def numbers(output):
    """The first eight numbers of the last row."""
    while output.dim() > 1:
        output = output[-1]
    return output[:8].float().tolist()


# ---- Attention of one layer ----


def heads_apart(x, q):
    """A view of `[batch, KV heads, ...]` that repeats each KV head for every query head of its group."""
    batch, kv_heads, tokens, d = x.shape
    return x[:, :, None].expand(batch, kv_heads, q.shape[1] // kv_heads, tokens, d)


def sdpa_gqa(q, k, v, causal):
    """As in the documentation."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def sdpa_repeat(q, k, v, causal):
    """KV heads copied for every query head, in each call."""
    k, v = (heads_apart(x, q).flatten(1, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def sdpa_expand(q, k, v, causal):
    """KV heads repeated without a copy: each group is a sequence whose heads share the same memory."""
    batch, heads, rows, d = q.shape
    k, v = (heads_apart(x, q).flatten(0, 1) for x in (k, v))
    q = q.view(k.shape[0], k.shape[1], rows, d)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).view(batch, heads, rows, d)


def sdpa_rows(q, k, v, causal):
    """The queries of a group as rows of one head, where each query is one token."""
    batch, heads, _, d = q.shape
    rows = F.scaled_dot_product_attention(q.view(batch, k.shape[1], -1, d), k, v)
    return rows.reshape(batch, heads, 1, d)


def grouped(q, k, v, causal):
    """Two matrix products for each KV head; the softmax is in f32."""
    batch, heads, _, d = q.shape
    scores = (q.view(batch, k.shape[1], -1, d) * d**-0.5) @ k.transpose(-1, -2)
    return (scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v).view(batch, heads, 1, d)


def flex():
    """FlexAttention, compiled again each time, because a compiled form keeps the shapes that it has seen."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, causal: compiled(q, k, v, enable_gqa=True)


# The sink and window of the prompt mask for FlexAttention, as in streaming_llm:window=1024.
SINK, WINDOW = 4, 1024


def flex_mask(window):
    """FlexAttention over a prompt with a block mask: all tokens before a row, or its window and the first tokens."""

    def make():
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        compiled, masks = torch.compile(flex_attention, dynamic=False), {}

        def seen(batch, head, row, key):
            past = key <= row
            return past & ((row - key < window) | (key < SINK)) if window else past

        def attend(q, k, v, causal):
            n = q.shape[2]
            if n not in masks:
                masks[n] = create_block_mask(seen, None, None, n, n, device=q.device, _compile=True)
            return compiled(q, k, v, block_mask=masks[n], enable_gqa=True)

        return attend

    return make


# Tokens of a page in FlashInfer's cache, and bytes of its workspace.
PAGE, WORKSPACE = 16, 256 << 20


def flashinfer_pages():
    """FlashInfer's decoding. Keys and values are copied into pages, and the work is planned, before anything is timed."""
    ready = {}

    def prepare(q, k, v):
        import flashinfer

        batch, kv_heads, tokens, d = k.shape
        pages = tokens // PAGE

        def paged(x):
            return x.view(batch, kv_heads, pages, PAGE, d).transpose(1, 2).reshape(-1, kv_heads, PAGE, d).contiguous()

        def ints(numbers):
            return torch.tensor(list(numbers), dtype=torch.int32, device=q.device)

        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=q.device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        begins, last = ints(range(0, (batch + 1) * pages, pages)), ints([PAGE] * batch)
        wrapper.plan(
            begins, ints(range(batch * pages)), last, q.shape[1], kv_heads, d, PAGE, q_data_type=q.dtype, data_type=k.dtype
        )
        return wrapper, (paged(k), paged(v))

    def attend(q, k, v, causal):
        if k.shape not in ready:
            ready.clear()
            ready[k.shape] = prepare(q, k, v)
        wrapper, cache = ready[k.shape]
        return wrapper.run(q[:, :, 0], cache)[:, :, None]

    return attend


def share_seen(tokens, window):
    """The share of the pairs of a causal prefill that remain under a mask."""
    if not window or tokens <= window + SINK:
        return 1.0
    # Rows up to the last one that attends all tokens, then rows of equal length.
    whole = window + SINK
    seen = whole * (whole + 1) // 2 + (tokens - whole) * whole
    return seen / (tokens * (tokens + 1) // 2)


@dataclass(frozen=True)
class Form:
    """A way to write attention in PyTorch; `{}` in its name is the type of keys and values."""

    method: str
    attend: Callable
    about: str
    ops: tuple = ("attention",)
    devices: tuple = ("cpu", "cuda")
    backend: Any = None
    compiled: bool = False
    window: int = 0


BOTH = ("attention", "prefill")
GPU = ("cuda",)
FORMS = (
    Form("torch_sdpa_{}_gqa", sdpa_gqa, "scaled_dot_product_attention with enable_gqa", BOTH),
    Form("torch_sdpa_{}_repeat", sdpa_repeat, "KV heads copied for every query head in each call", BOTH),
    Form("torch_sdpa_{}_expand", sdpa_expand, "KV heads repeated by a view, without a copy"),
    Form("torch_sdpa_{}_rows", sdpa_rows, "the queries of a group as rows of one head"),
    Form("torch_grouped_{}", grouped, "matrix products of a group by hand, softmax in f32"),
    Form("torch_flex_{}", flex, "FlexAttention under torch.compile, after compiling", compiled=True),
    Form(
        "torch_flex_{}_causal",
        flex_mask(0),
        "FlexAttention with a causal mask, after compiling",
        ("prefill",),
        GPU,
        compiled=True,
    ),
    Form(
        "torch_flex_{}_window",
        flex_mask(WINDOW),
        "FlexAttention with a mask of window and sink, after compiling",
        ("prefill",),
        GPU,
        compiled=True,
        window=WINDOW,
    ),
    Form(
        "flashinfer_{}",
        flashinfer_pages,
        f"decoding over pages of {PAGE} tokens on tensor cores, after compiling and planning",
        devices=GPU,
        compiled=True,
    ),
    Form("torch_sdpa_{}_gqa_flash", sdpa_gqa, "FlashAttention alone", BOTH, GPU, SDPBackend.FLASH_ATTENTION),
    Form("torch_sdpa_{}_gqa_cudnn", sdpa_gqa, "cuDNN alone", BOTH, GPU, SDPBackend.CUDNN_ATTENTION),
)


def form_applies(form, args):
    """Whether a form is requested."""
    wanted = not form.compiled or args.compile or any(part in form.method for part in args.only)
    # Compiled masks cover whole prompts.
    fits = not (args.last and form.compiled)
    return args.op in form.ops and args.device in form.devices and wanted and fits


def kernels(shape, queries):
    """The kernels that PyTorch may choose from: the unfused one only if the scores of all pairs are small."""
    scores = 4 * shape.batch * shape.heads * queries * shape.tokens
    return FUSED + ([SDPBackend.MATH] if scores < SCORES_LIMIT else [])


def drawn(args, shape, heads, tokens, salt):
    """White noise for `heads` heads of `tokens` tokens."""
    source = generator(args, salt, shape.tokens, shape.batch)
    size = (shape.batch, heads, tokens, shape.d)
    return torch.randn(size, generator=source, dtype=DTYPES[args.dtype], device=args.device)


def queries_of(args, shape, dtype):
    """A function that draws queries: one new token for a step; for a prefill the whole prompt, the same each time."""
    to = DTYPES[dtype]
    if args.op == "prefill":
        whole = drawn(args, shape, shape.heads, shape.last or shape.tokens, 3).to(to)
        return lambda source: whole
    size, base = (shape.batch, shape.heads, 1, shape.d), DTYPES[args.dtype]
    return lambda source: torch.randn(size, generator=source, dtype=base, device=args.device).to(to)


def form_peer(form, args, shape, dtype, kv, draw):
    """One form over prepared keys and values."""
    k, v = kv
    reads = args.op == "prefill"
    # The last rows attend nearly all tokens and are not masked, because these forms align a causal mask with the first token.
    causal = reads and not shape.last
    queries = (shape.last or shape.tokens) if reads else 1
    allowed = [form.backend] if form.backend else kernels(shape, queries)
    attend = form.attend() if form.compiled else form.attend
    share = share_seen(shape.tokens, form.window)
    least = shape.kv_bytes(k.dtype) + (
        2 * shape.batch * shape.heads * queries * shape.d * k.itemsize if reads else 0
    )
    return Peer(
        row=row(
            form.method.format(dtype),
            dtype,
            f"{form.about}; {NOISE}{'; rows are not masked' if shape.last else ''}",
            flops=int(share * shape.attention_flops(args.op)),
            bytes=least,
            params=f"sink={SINK},window={form.window}" if form.window else "",
            density=share,
        ),
        run=lambda q: attend(q, k, v, causal),
        draw=draw,
        first=numbers,
        context=lambda: sdpa_kernel(allowed),
    )


def prepare_torch(args, shape, keys, values, prepared):
    """All forms of PyTorch, in all types."""
    for dtype in dtypes(args, shape, prepared):
        forms = [
            form for form in FORMS if form_applies(form, args) and chosen(form.method.format(dtype), args)
        ]
        if not forms:
            continue
        kv = (keys.to(DTYPES[dtype]), values.to(DTYPES[dtype]))
        draw = queries_of(args, shape, dtype)
        for form in forms:
            peer = form_peer(form, args, shape, dtype, kv, draw)
            if not form.compiled or compiles(peer, args, prepared):
                prepared.peers.append(peer)


def compiles(peer, args, prepared):
    """Compiles a form by calling it, or returns why that failed."""
    try:
        peer.run(peer.draw(generator(args, 5)))
    except Exception as error:
        prepared.notes.append(f"{peer.row['method']}: {one_line(error)}")
        return False
    return True


# ---- Nearest neighbours among the keys of one KV head ----


def flat_index(faiss, keys, settings, threads):
    """No index: all keys are compared."""
    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys)
    return index


def hnsw_index(faiss, keys, settings, threads):
    """A navigable graph."""
    index = faiss.IndexHNSWFlat(keys.shape[1], settings["M"], faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = settings["ef_construction"]
    index.hnsw.efSearch = settings["ef"]
    index.add(keys)
    return index


def ivf_index(faiss, keys, settings, threads):
    """Keys in lists by their nearest centroid."""
    d = keys.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, settings["nlist"], faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
    index.nprobe = settings["nprobe"]
    return index


def hnswlib_index(hnswlib, keys, settings, threads):
    """A navigable graph, by the library of its authors."""
    index = hnswlib.Index(space="ip", dim=keys.shape[1])
    index.init_index(len(keys), M=settings["M"], ef_construction=settings["ef_construction"])
    index.set_num_threads(threads)
    index.set_ef(settings["ef"])
    index.add_items(keys)
    return index


def ivf_settings(tokens, k):
    """As many lists as each list has keys; a quarter of them is searched, for a sixteenth of the keys."""
    lists = max(4, round(tokens**0.5))
    return {"nlist": lists, "nprobe": lists // 4}


def no_count(index, search, faiss):
    """For a library that does not count distances."""
    search()
    return 0


def count_of(stats):
    """Counts distances with a counter of faiss."""

    def count(index, search, faiss):
        counter = getattr(faiss.cvar, stats)
        counter.reset()
        search()
        return counter.ndis

    return count


@dataclass(frozen=True)
class Library:
    """A nearest-neighbour index."""

    method: str
    module: str
    build: Callable
    settings: Callable
    about: str
    # The number of distances that a search for all queries of a group computes.
    count: Callable = no_count
    builds: bool = True


LIBRARIES = (
    Library(
        "faiss_flat", "faiss", flat_index, lambda tokens, k: {}, "exact search of all keys", builds=False
    ),
    Library(
        "faiss_hnsw",
        "faiss",
        hnsw_index,
        lambda tokens, k: {"M": 32, "ef_construction": 40, "ef": k},
        "search of an HNSW graph",
        count_of("hnsw_stats"),
    ),
    Library(
        "faiss_ivf", "faiss", ivf_index, ivf_settings, "search of inverted lists", count_of("indexIVF_stats")
    ),
    Library(
        "hnswlib",
        "hnswlib",
        hnswlib_index,
        lambda tokens, k: {"M": 32, "ef_construction": 200, "ef": k},
        "search of an HNSW graph",
    ),
)
ONE_HEAD = "for the queries of one KV head of one sequence; attends nothing"
HARD = "white noise, the hardest keys for an index"


def search_of(library, index, k):
    """One call for all queries of a group, which returns the selected tokens of each."""
    calls = {"faiss": lambda q: index.search(q, k)[1], "hnswlib": lambda q: index.knn_query(q, k=k)[0]}
    return calls[library.module]


def recall_of(found, queries, keys, k):
    """The share of the true neighbours that was found, over all queries of a group."""
    scores = torch.from_numpy(queries) @ torch.from_numpy(keys).T
    truth = scores.topk(k).indices.tolist()
    return sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), truth)) / (k * len(truth))


def search_peer(library, module, args, shape, keys, settings, k):
    """Searches an index for the k = tokens/16 best keys of each query of a group."""
    start = time.perf_counter()
    index = library.build(module, keys, settings, args.threads)
    index_ms = 1e3 * (time.perf_counter() - start)
    search = search_of(library, index, k)

    def draw(source):
        return torch.randn(shape.group, shape.d, generator=source).numpy()

    probe = draw(generator(args, 6))
    distances = (
        library.count(index, lambda: search(probe), module) if library.builds else shape.group * len(keys)
    )
    compared = distances if library.builds else len(keys)
    return Peer(
        row=row(
            library.method,
            "f32",
            f"{library.about} {ONE_HEAD}; {HARD}",
            params=",".join(f"{key}={value}" for key, value in ({"k": k} | settings).items()),
            flops=2 * shape.d * distances,
            bytes=4 * shape.d * compared,
            density=k / shape.tokens,
            part=True,
            index_ms=index_ms,
            recall=recall_of(search(probe), probe, keys, k),
        ),
        run=search,
        draw=draw,
        first=lambda found: found[0][:8].tolist(),
    )


def build_peer(library, module, args, shape, keys, settings, k):
    """Builds the index again in each run."""
    return Peer(
        row=row(
            library.method,
            "f32",
            f"builds the index of one KV head of one sequence; {HARD}",
            part=True,
            params=",".join(f"{key}={value}" for key, value in settings.items()),
            flops=0,
            bytes=4 * shape.d * shape.tokens,
        ),
        run=lambda _: library.build(module, keys, settings, args.threads),
        draw=lambda source: None,
        first=lambda index: [getattr(index, "ntotal", None) or index.get_current_count()],
    )


def prepare_knn(args, shape, keys, prepared):
    """All libraries that are installed, over the keys of the first KV head."""
    wanted = [library for library in LIBRARIES if chosen(library.method, args)]
    if args.device != "cpu" or not wanted:
        return
    if shape.tokens > KNN_LIMIT:
        prepared.notes.append(f"no index is built over more than {KNN_LIMIT} tokens")
        return
    modules = {name: loaded(name, prepared) for name in dict.fromkeys(library.module for library in wanted)}
    if modules.get("faiss"):
        modules["faiss"].omp_set_num_threads(args.threads)
    head = keys[0, 0].float().contiguous().numpy()
    k = max(1, shape.tokens // 16)
    make = {"attention": search_peer, "index": build_peer}[args.op]
    for library in wanted:
        if modules[library.module] and (library.builds or args.op == "attention"):
            settings = library.settings(shape.tokens, k)
            add(
                prepared,
                library.method,
                lambda: make(library, modules[library.module], args, shape, head, settings, k),
            )


# ---- Whole models ----


def llama_config(args, shape):
    """A Llama of the given sizes."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        head_dim=args.d,
        max_position_embeddings=shape.tokens + 64,
        rope_theta=500000.0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def linear_weights(args):
    """The number of weights in all layers and in the output matrix."""
    attention = 2 * args.hidden * args.d * (args.heads + args.kv_heads)
    return args.layers * (attention + 3 * args.hidden * args.intermediate), args.hidden * args.vocab


def llama(args, shape):
    """A model with small random weights in the requested type; the library's own initialisation takes minutes."""
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = llama_config(args, shape)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    model = model.to(DTYPES[args.dtype]).to_empty(device=args.device)
    source = generator(args, 4)
    for name, weight in model.named_parameters():
        weight.fill_(1) if "norm" in name else weight.uniform_(-0.03, 0.03, generator=source)
    # It is not a parameter, so it is still empty.
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config).to(args.device)
    return model


def filled_cache(kind, model, args, shape, dtype):
    """A cache of random keys and values in every layer, as a prefill would have left it."""
    from transformers import DynamicCache, StaticCache

    room = shape.tokens + 8
    make = {"dynamic": DynamicCache, "static": lambda: StaticCache(config=model.config, max_cache_len=room)}
    cache = make[kind]()
    for layer in range(args.layers):
        k, v = (
            drawn(args, shape, shape.kv_heads, shape.tokens, 100 + 2 * layer + i).to(DTYPES[dtype])
            for i in (0, 1)
        )
        cache.update(k, v, layer, {"cache_position": torch.arange(shape.tokens, device=args.device)})
    return cache


def rewound(kind, cache, tokens):
    """A function that removes the token of the last step from a cache."""

    def dynamic():
        if cache.get_seq_length() > tokens:
            cache.crop(-1)

    def static():
        for layer in cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(tokens)

    return {"dynamic": dynamic, "static": static}[kind]


def tokens_of(args, shape, count):
    """A function that draws tokens."""
    return lambda source: torch.randint(
        args.vocab, (shape.batch, count), generator=source, device=args.device
    )


def decode_peer(kind, model, args, shape, dtype):
    """One step of a model, with one new token for each sequence."""
    cache = filled_cache(kind, model, args, shape, dtype)
    inner, output = linear_weights(args)
    how = {
        "dynamic": "a cache that is copied to grow by each token",
        "static": "a cache with room to spare, masked",
    }
    return Peer(
        row=row(
            f"transformers_{dtype}_{kind}",
            dtype,
            f"one step of a Llama of random weights, {how[kind]}; {NOISE}",
            layers=args.layers,
            flops=2 * shape.batch * (inner + output) + args.layers * shape.attention_flops("decode"),
            bytes=(inner + output) * DTYPES[dtype].itemsize + args.layers * shape.kv_bytes(DTYPES[dtype]),
        ),
        run=lambda ids: model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits,
        draw=tokens_of(args, shape, 1),
        first=numbers,
        after=rewound(kind, cache, shape.tokens),
    )


def whole_peer(kind, model, args, shape, dtype):
    """The prefill of a whole prompt through all layers."""
    inner, output = linear_weights(args)
    return Peer(
        row=row(
            f"transformers_{dtype}",
            dtype,
            "the whole prompt through a Llama of random weights, logits of its last token",
            layers=args.layers,
            flops=2 * shape.batch * (shape.tokens * inner + output)
            + args.layers * shape.attention_flops("prefill"),
            bytes=(inner + output) * DTYPES[dtype].itemsize + args.layers * shape.kv_bytes(DTYPES[dtype]),
        ),
        run=lambda ids: model(ids, use_cache=True, logits_to_keep=1).logits,
        draw=tokens_of(args, shape, shape.tokens),
        first=numbers,
        context=lambda: sdpa_kernel(kernels(shape, shape.tokens)),
    )


def prepare_model(args, shape, prepared):
    """The same weights, keys and values in every type, with each kind of cache."""
    if not loaded("transformers", prepared):
        return
    kinds, make = (["dynamic", "static"], decode_peer) if args.op == "decode" else ([""], whole_peer)
    base = None
    for dtype in dtypes(args, shape, prepared, args.layers * len(kinds)):
        to = DTYPES[dtype]
        weights = (sum(linear_weights(args)) + args.hidden * args.vocab) * to.itemsize
        try:
            claim(
                f"the model in {dtype}", weights + args.layers * shape.kv_bytes(to) * len(kinds), args.device
            )
        except MemoryError as error:
            prepared.notes.append(one_line(error))
            continue
        base = base or llama(args, shape)
        model = base if dtype == args.dtype else copy.deepcopy(base).to(to)
        for kind in kinds:
            add(prepared, f"transformers_{dtype}", lambda: make(kind, model, args, shape, dtype))


# ---- Commands ----


def chosen(method, args):
    """Whether a method is requested."""
    return not args.only or any(part in method for part in args.only)


def add(prepared, name, make):
    """Adds a peer, or a note why it cannot be timed."""
    try:
        prepared.peers.append(make())
    except Exception as error:
        prepared.notes.append(f"{name}: {one_line(error)}")


def prepare_attention(args, shape, prepared):
    """Keys and values of one layer, and all that reads them."""
    # In a prefill, a query head has as many queries and outputs as a KV head has keys and values.
    sides = 1 + (shape.group if args.op == "prefill" else 0)
    claim("keys, values and queries", sides * shape.kv_bytes(DTYPES[args.dtype]), args.device)
    keys, values = (drawn(args, shape, shape.kv_heads, shape.tokens, salt) for salt in (1, 2))
    if args.op != "index":
        prepare_torch(args, shape, keys, values, prepared)
    if args.op != "prefill":
        prepare_knn(args, shape, keys, prepared)


def timed_on_cpu(run, given):
    """Microseconds of one call."""
    start = time.perf_counter()
    run(given)
    us = 1e6 * (time.perf_counter() - start)
    time.sleep(SETTLE_S)
    return us


def timed_on_gpu(run, given):
    """Microseconds of one call, between events of the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    # The GPU waits while kernels are being launched, so that launching is not timed.
    torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    run(given)
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end)


TIMERS = {"cpu": timed_on_cpu, "cuda": timed_on_gpu}


class Bench:
    """The state that the commands work on."""

    def __init__(self, args):
        self.args = args
        self.peers = {}
        self.queries = generator(args, 7)

    def prepare(self, at):
        """Prepares the peers for one context and batch."""
        self.release(True)
        args = self.args
        tokens, batch = int(at["context"]), int(at.get("batch", 1))
        for name, value, listed in (("context", tokens, args.contexts), ("batch", batch, args.batches)):
            if value < 1 or (listed and value not in listed):
                raise ValueError(f"{name} {value} was not asked for")
        shape = Shape(args.heads, args.kv_heads, args.d, tokens, batch, args.last)
        prepared = Prepared()
        whole = args.op == "decode" or (args.op == "prefill" and args.whole)
        (prepare_model if whole else prepare_attention)(args, shape, prepared)
        self.peers = {peer.row["method"]: peer for peer in prepared.peers}
        ready = [peer.row for peer in prepared.peers]
        return {"ready": ready, "notes": prepared.notes, "versions": prepared.versions}

    def peer(self, method):
        """The prepared peer of a name."""
        if method not in self.peers:
            raise ValueError(f"{method} is not prepared")
        return self.peers[method]

    def time(self, method):
        """One run with a new query."""
        peer = self.peer(method)
        given = peer.draw(self.queries)
        try:
            with peer.context():
                return {"us": TIMERS[self.args.device](peer.run, given)}
        finally:
            peer.after()

    def check(self, method):
        """The start of the output for the query that all peers share."""
        peer = self.peer(method)
        try:
            with peer.context():
                return {"first": peer.first(peer.run(peer.draw(generator(self.args, 8))))}
        finally:
            peer.after()

    def release(self, _):
        """Frees what was prepared."""
        self.peers = {}
        gc.collect()
        if self.args.device == "cuda":
            torch.cuda.empty_cache()
        return {"released": True}

    def answer(self, line):
        """The reply to one line."""
        commands = {"prepare": self.prepare, "time": self.time, "check": self.check, "release": self.release}
        try:
            command = json.loads(line)
            ((name, value),) = command.items()
            if name not in commands:
                raise ValueError(f"no command {name}")
            return commands[name](value)
        except Exception as error:
            return {"error": one_line(error)}


def listed(kind):
    """A parser of lists with commas."""
    return lambda text: [kind(part) for part in text.split(",") if part]


def arguments():
    """The arguments."""
    parser = argparse.ArgumentParser(prog="bench_peers.py", description=__doc__.split("\n")[0])
    parser.add_argument("--op", choices=["attention", "prefill", "index", "decode"], required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, required=True)
    parser.add_argument("--d", type=int, required=True)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument(
        "--contexts", type=listed(int), default=[], help="that may be prepared; all if not given"
    )
    parser.add_argument("--batches", type=listed(int), default=[])
    parser.add_argument("--last", type=int, default=0, help="prefill: rows at the end that alone are read; 0 for all")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=list(TIMERS), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=listed(str), default=[], help="methods whose names hold one of these")
    parser.add_argument("--compile", action="store_true", help="FlexAttention too: half a minute a context")
    parser.add_argument(
        "--whole", action="store_true", help="prefill: a whole model instead of one layer's attention"
    )
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=128256)
    args = parser.parse_args()
    if args.kv_heads < 1 or args.heads % args.kv_heads:
        parser.error("--heads is no multiple of --kv-heads")
    return args


def protocol():
    """The stream of replies. Output that libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def main():
    """Answers commands until the input ends. Returns the exit status."""
    args = arguments()
    out = protocol()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"error": "PyTorch finds no GPU"}), file=out, flush=True)
        return 1
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        bench = Bench(args)
        for line in sys.stdin:
            if line.strip():
                print(json.dumps(bench.answer(line)), file=out, flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
