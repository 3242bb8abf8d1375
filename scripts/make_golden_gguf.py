"""Makes the golden files that the tests of GGUF models compare with.

Regenerate (CPU, about a minute; packages gguf, numpy, tokenizers, transformers):
    python scripts/make_golden_gguf.py [model] [families] [tokenizers]
    python scripts/make_golden_gguf.py real NAME FILE.gguf TOKENIZER.json [TOKENIZER.model]

Everything goes to tests/golden/gguf/.

mixed.gguf          a Llama of three layers, each of whose tensors is stored in a type of its own, as random blocks of bytes
mixed.json
    prompt          token ids
    positions       prompt positions of `logits`
    logits          [position][vocab], computed here in f64 from the numbers that `gguf.quants` reads
    tensors         by Hugging Face name: type, shape, sum of all numbers, and every 37th number
families/NAME.gguf  a golden checkpoint (tests/golden/models) as llama.cpp's converter writes it: tensors by the name table of `gguf`, keys and
                    changes of tensors as in the converter's class of that family (llama.cpp, conversion/*.py, August 2026), with the
                    checkpoint's numbers unchanged; NAME-q8_0.gguf with Q8_0 where rows allow it
lines.json          what the lines that tokenizers are compared on are made of (`lines` below)
NAME.gguf           a small vocabulary, trained on these lines with the splitting that models of a family have; no tensors
tokenizers.json     by name: the first ids of some lines, and for each 100 of the 10,000 lines a hash of their ids, by the
                    `tokenizers` package from the tokenizer.json that the vocabulary was taken from
real.json           the same hashes for vocabularies of real models, which are not in this repository; `real` adds one
"""

import hashlib
import json
import pathlib
import sys

import gguf
import numpy
from gguf import GGMLQuantizationType as Type

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "gguf"

# --- A model with tensors of every type ---

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 256, 32, 4, 2, 8, 64
EPSILON, THETA = 1e-5, 10000.0
# Rows of 256 numbers can have every type, those of attn_output and ffn_down (32) no K-quants.
LAYERS = [
    {"attn_q": Type.Q4_K, "attn_k": Type.Q6_K, "attn_v": Type.Q5_K, "attn_output": Type.Q8_0,
     "ffn_gate": Type.Q3_K, "ffn_up": Type.Q2_K, "ffn_down": Type.Q5_0},
    {"attn_q": Type.Q6_K, "attn_k": Type.Q4_0, "attn_v": Type.F16, "attn_output": Type.Q4_1,
     "ffn_gate": Type.Q4_K, "ffn_up": Type.BF16, "ffn_down": Type.Q5_1},
    {"attn_q": Type.Q8_0, "attn_k": Type.F32, "attn_v": Type.Q3_K, "attn_output": Type.Q4_0,
     "ffn_gate": Type.Q5_K, "ffn_up": Type.Q2_K, "ffn_down": Type.F16},
]  # fmt: skip
OUTER = {"token_embd": Type.Q6_K, "output": Type.Q8_0}
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
    "token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN),
}  # fmt: skip
# Bytes in a block of its half-precision scale, and of its half-precision minimum with how many scales it is to be.
SCALES = {
    Type.Q4_0: (0, None, 0), Type.Q4_1: (0, 2, -7.5), Type.Q5_0: (0, None, 0), Type.Q5_1: (0, 2, -15.5), Type.Q8_0: (0, None, 0),
    Type.Q2_K: (80, 82, 1.5), Type.Q3_K: (108, None, 0), Type.Q4_K: (0, 2, 7.5), Type.Q5_K: (0, 2, 15.5), Type.Q6_K: (208, None, 0),
}  # fmt: skip
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def halves(numbers):
    return numpy.asarray(numbers, numpy.float16).reshape(-1, 1).view(numpy.uint8)


def blocks(random, of, shape):
    """Random bytes of a type, with scales that make the numbers about as large as weights are."""
    rows, columns = shape
    if of in (Type.F32, Type.F16, Type.BF16):
        numbers = (random.standard_normal(shape) * 0.06).astype(numpy.float32)
        return gguf.quants.quantize(numbers, of)
    size, width = gguf.GGML_QUANT_SIZES[of]
    data = random.integers(0, 256, (rows * columns // size, width), dtype=numpy.uint8)
    scale_at, least_at, least = SCALES[of]

    def scaled(scale):
        data[:, scale_at : scale_at + 2] = halves(scale)
        if least_at is not None:
            data[:, least_at : least_at + 2] = halves(scale * least)
        return data.reshape(rows, -1)

    spread = gguf.quants.dequantize(scaled(numpy.full(len(data), 0.01)), of).std() / 0.01
    return scaled(0.06 / spread * random.uniform(0.5, 1.5, len(data))).copy()


def converted(name, matrix):
    """The matrix as Hugging Face has it: llama.cpp's converter permutes the rows of q and k
    (`reshape(heads, 2, half, columns).swapaxes(1, 2)`)."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name)
    if heads is None:
        return matrix
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def forward(tensors, tokens):
    """Logits of a Llama in f64."""

    def weight(name):
        return tensors[f"{name}.weight"].astype(numpy.float64)

    def norm(x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight(name)

    count = len(tokens)
    angles = numpy.arange(count)[:, None] * THETA ** (-numpy.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)[None, :]
    cos, sin = numpy.cos(angles)[:, None, :], numpy.sin(angles)[:, None, :]

    def rotated(x, heads):
        x = x.reshape(count, heads, HEAD_DIM)
        a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    hidden = weight("model.embed_tokens")[tokens]
    for layer in range(len(LAYERS)):
        at = f"model.layers.{layer}."
        x = norm(hidden, at + "input_layernorm")
        q = rotated(x @ weight(at + "self_attn.q_proj").T, HEADS)
        k = rotated(x @ weight(at + "self_attn.k_proj").T, KV_HEADS).repeat(HEADS // KV_HEADS, 1)
        v = (x @ weight(at + "self_attn.v_proj").T).reshape(count, KV_HEADS, HEAD_DIM).repeat(HEADS // KV_HEADS, 1)
        scores = numpy.einsum("ihd,jhd->hij", q, k) / numpy.sqrt(HEAD_DIM)
        scores = numpy.where(numpy.tril(numpy.ones((count, count), bool)), scores, -numpy.inf)
        shares = numpy.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = numpy.einsum("hij,jhd->ihd", shares, v).reshape(count, -1)
        hidden = hidden + attended @ weight(at + "self_attn.o_proj").T
        x = norm(hidden, at + "post_attention_layernorm")
        gate, up = x @ weight(at + "mlp.gate_proj").T, x @ weight(at + "mlp.up_proj").T
        hidden = hidden + (gate / (1 + numpy.exp(-gate)) * up) @ weight(at + "mlp.down_proj").T
    return norm(hidden, "model.norm") @ weight("lm_head").T


def model():
    random = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(GOLDEN / "mixed.gguf", "llama")
    writer.add_name("tensors of every type")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(len(LAYERS))
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # The ids of a prompt are given, so the tokens matter to nobody.
    writer.add_token_list([chr(ord("0") + token) for token in range(VOCABULARY - 1)] + ["01"])
    writer.add_token_merges(["0 1"])
    tensors, told = {}, {}

    def add(stored_name, name, of, data, part=""):
        # gguf turns a shape of bytes into one of numbers itself.
        writer.add_tensor(stored_name, data, raw_dtype=None if of == Type.F32 else of)
        numbers = converted(part, gguf.quants.dequantize(data, of))
        tensors[name] = numbers
        told[name] = {
            "type": of.name, "shape": list(numbers.shape), "sum": float(numbers.astype(numpy.float64).sum()),
            "values": [float(x) for x in numbers.reshape(-1)[::37]],
        }  # fmt: skip

    def norm(stored_name, name):
        add(stored_name, name, Type.F32, random.uniform(0.5, 1.5, HIDDEN).astype(numpy.float32))

    for stored, name in [("token_embd", "model.embed_tokens"), ("output", "lm_head")]:
        add(f"{stored}.weight", f"{name}.weight", OUTER[stored], blocks(random, OUTER[stored], SHAPES[stored]))
    norm("output_norm.weight", "model.norm.weight")
    for at, types in enumerate(LAYERS):
        for part in ["attn_norm", "ffn_norm"]:
            norm(f"blk.{at}.{part}.weight", f"model.layers.{at}.{NAMES[part]}.weight")
        for part, of in types.items():
            data = blocks(random, of, SHAPES[part])
            add(f"blk.{at}.{part}.weight", f"model.layers.{at}.{NAMES[part]}.weight", of, data, part)
    written(writer)
    prompt = [int(token) for token in random.integers(0, VOCABULARY, 48)]
    positions = [0, 9, 47]
    logits = forward(tensors, prompt)[positions]
    golden = {"prompt": prompt, "positions": positions, "logits": rounded(logits.tolist(), 7), "tensors": told}
    for tensor in told.values():
        tensor["values"] = rounded(tensor["values"], 8)
    write(golden, "mixed.json")
    print("logits between", logits.min(), "and", logits.max())


def rounded(numbers, digits):
    if isinstance(numbers, list):
        return [rounded(number, digits) for number in numbers]
    return float(f"{numbers:.{digits}g}")


def written(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(value, name):
    (GOLDEN / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace('},"', '},\n"') + "\n")


# --- Golden checkpoints of other families ---

# By file: architecture, golden checkpoint, and keys of its config.json that a file cannot state and that get llama.cpp's own values here.
UNSCALED = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}
FILES = {
    "mistral": ("llama", "mistral", {}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {}),
    "mixtral": ("llama", "mixtral", {}),
    "qwen3moe": ("qwen3moe", "qwen3-moe", {"num_hidden_layers": 1, "mlp_only_layers": []}),
    "gemma2": ("gemma2", "gemma2", {"query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3", "gemma3-wrapped", {"query_pre_attn_scalar": 8}),
    "gemma3-unscaled": ("gemma3", "gemma3-wrapped", {"query_pre_attn_scalar": 8, "rope_parameters": UNSCALED}),
    "phi3": ("phi3", "phi3", {}),
    "phi3-long": ("phi3", "phi3-long", {}),
    "phi4-mini": ("phi3", "phi4-mini", {}),
    "mistral3": ("mistral3", "mistral3", {}),
    "ministral3": ("mistral3", "ministral3", {}),
    "granite": ("granite", "granite", {}),
    "glm4": ("glm4", "glm4", {}),
    "olmo2": ("olmo2", "olmo2", {}),
    "olmo3": ("olmo2", "olmo3", {}),
    "smollm3": ("smollm3", "smollm3", {"no_rope_layers": [1, 1, 1]}),
    "seed_oss": ("seed_oss", "seed-oss", {}),
}
QUANTISED = ["mixtral", "qwen3moe", "gemma3", "phi3"]
# Families of which the converter permutes q and k: classes below its LlamaModel.
PERMUTED = ["llama", "mistral3", "granite", "smollm3"]
# What names of the text model begin with where a class wraps it.
WRAPPED = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model."}


def stored(folder):
    """The tensors of a safetensors file as f32, with the type that they are stored in."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, told in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + at for at in told["data_offsets"])
        part = data[start:end]
        if told["dtype"] == "BF16":
            numbers = (numpy.frombuffer(part, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            numbers = numpy.frombuffer(part, {"F16": "<f2", "F32": "<f4"}[told["dtype"]]).astype(numpy.float32)
        yield name, numbers.reshape(told["shape"]), Type[told["dtype"]]


def settings(folder, changed):
    """All keys of the text model, those of its class included, as transformers has them."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config().to_dict()
    stated = json.loads((folder / "config.json").read_text())
    stated = stated.get("text_config", stated)
    # transformers puts factors of RoPE into `rope_parameters`, whatever it reads.
    return config | {"original_max_position_embeddings": stated.get("original_max_position_embeddings")} | changed


def family_keys(writer, architecture, c):
    """What the converter writes of a config."""
    rope = c.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(full["rope_theta"])
    local = rope.get("sliding_attention", {}).get("rope_theta")
    if local is not None:
        writer.add_rope_freq_base_swa(local)
    kind = full.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if full.get("attention_factor") is not None:
            writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
        for key, add in [("beta_fast", writer.add_rope_scaling_yarn_beta_fast), ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)]:
            if full.get(key) is not None:
                add(full[key])
    if c.get("head_dim") is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    experts = c.get("num_local_experts") or c.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
    if architecture in PERMUTED:
        writer.add_vocab_size(c["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if architecture == "qwen3moe":
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    if architecture in ["gemma2", "gemma3"]:
        writer.add_sliding_window(c["sliding_window"])
    if architecture == "phi3":
        part = full.get("partial_rotary_factor") or 1.0
        original = c["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_dimension_count(int(part * c["hidden_size"]) // c["num_attention_heads"])
        writer.add_sliding_window(c.get("sliding_window") or 0)
        if kind == "longrope":
            scale = c["max_position_embeddings"] / original
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_attn_factors(numpy.sqrt(1 + numpy.log(scale) / numpy.log(original)) if scale > 1 else 1.0)
            for name, key in [("long", "long_factor"), ("short", "short_factor")]:
                writer.add_tensor(f"rope_factors_{name}.weight", numpy.asarray(full[key], numpy.float32))
    if architecture == "mistral3" and c["model_type"] == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(full["mscale_all_dim"])
        writer.add_attn_temperature_scale(full["llama_4_scaling_beta"])
    if architecture == "granite":
        writer.add_attention_scale(c["attention_multiplier"])
        writer.add_embedding_scale(c["embedding_multiplier"])
        writer.add_residual_scale(c["residual_multiplier"])
        writer.add_logit_scale(c["logits_scaling"])
    if architecture == "glm4":
        writer.add_rope_dimension_count(int(head_dim * (full.get("partial_rotary_factor") or 0.5)))
    if architecture == "olmo2" and c.get("sliding_window") is not None:
        writer.add_sliding_window(c["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])


def permuted(numbers, heads):
    shape = numbers.shape
    return numbers.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def changed_tensors(architecture, c, tensors):
    """Names that `gguf` maps and numbers as the converter's classes change them: experts stacked, q and k permuted, 1 added to norms."""
    stacks = {}
    for name, numbers, of in tensors:
        name = next((new + name[len(old) :] for old, new in WRAPPED.items() if name.startswith(old)), name)
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
        if not name.startswith(("model.layers.", "model.embed_tokens", "model.norm", "lm_head")) or layer >= c["num_hidden_layers"]:
            continue
        if architecture in PERMUTED and name.split(".")[-2] in ["q_proj", "k_proj"]:
            numbers = permuted(numbers, c["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if architecture in ["gemma2", "gemma3"] and name.endswith("norm.weight"):
            numbers = numbers + numpy.float32(1)
        if ".experts." in name:
            before, rest = name.split(".experts.")
            expert, part, kind = rest.split(".")
            # The table of `gguf` has the names of stacked experts that Llama's own code uses for Mixtral's.
            stack = f"layers.{layer}.feed_forward.experts.{part}" if part.startswith("w") else f"{before}.experts.{part}"
            stacks.setdefault((f"{stack}.{kind}", of), {})[int(expert)] = numbers
            continue
        yield name, numbers, of
    for (name, of), experts in stacks.items():
        yield name, numpy.stack([experts[at] for at in range(len(experts))]), of


def byte_tokens():
    """As many tokens as a golden checkpoint has: GPT-2's 256 characters for bytes but one, and a pair."""
    from tokenizers import pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())[:255]
    return characters + ["th"]


def families():
    (GOLDEN / "families").mkdir(exist_ok=True)
    tokens = byte_tokens()
    for file, (architecture, golden, changed) in FILES.items():
        for quantised in [False, True] if file in QUANTISED else [False]:
            folder = GOLDEN.parent / "models" / golden
            c = settings(folder, changed)
            writer = gguf.GGUFWriter(GOLDEN / "families" / f"{file}{'-q8_0' if quantised else ''}.gguf", architecture)
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantised else gguf.LlamaFileType.MOSTLY_F16)
            family_keys(writer, architecture, c)
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(tokens)
            writer.add_token_merges(["t h"])
            arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
            names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
            for name, numbers, of in changed_tensors(architecture, c, stored(folder)):
                mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
                assert mapped is not None, name
                size = gguf.GGML_QUANT_SIZES[Type.Q8_0][0]
                if numbers.ndim == 1 or of == Type.F32 or "ffn_gate_inp" in mapped:
                    writer.add_tensor(mapped, numbers.astype(numpy.float32))
                    continue
                of = Type.Q8_0 if quantised and numbers.shape[-1] % size == 0 else of
                writer.add_tensor(mapped, gguf.quants.quantize(numbers, of), raw_dtype=of)
            written(writer)
            print(file, architecture, "quantised" if quantised else "exact")


# --- Lines of text ---

COUNT, BLOCK = 10_000, 100
MASK = (1 << 64) - 1


class Random:
    """SplitMix64, which the tests have as well."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % bound


PIECES = {
    "words": "the of and to in a is that it was for on are as with his they at be this from I have or by one had not but what all were when "
    "we there can an your which their said if do will each about how up out them then she many some so these would other into has more her "
    "two like him see time could no make than first been its who now people my made over did down only way find use may water long little "
    "very after words called just where most know get through back much before go good new write our used me man too any day same right "
    "HTTP JSON Über naïve café Straße don't I'M we'LL they've it's he'd CAN'T İstanbul ﬁnance ½ ² Ⅷ x² Ωmega данные Москва Ελλάδα "
    "مرحبا שלום नमस्ते สวัสดี ภาษาไทย বাংলা தமிழ் አማርኛ ქართული Հայերեն".split(),
    "code": [
        "def f(x):\n    return x", "for (int i = 0; i < n; ++i) {\n\t", "}\n\n\n", "    if x == 0x7fff:\n", "\t\t\tlet mut v: Vec<u8> = vec![0; 1 << 20];",
        "print('a', end='')", "// TODO(me): fix\r\n", "/* ... */", "SELECT * FROM t WHERE a<>'b';", "a.b->c::d", "$x = @{$y}[0];", "!=", "===", "=>",
        "https://example.com/a?b=c&d=%20", "#!/bin/sh\n", "\\n\\t\\\\", "<div class=\"x\">", "{{ a|tojson }}", "`~!@#$%^&*()_+-=[]{}|;':\",./<>?",
    ],
    "cjk": ["你好，世界。", "深度学习", "自然言語処理", "こんにちは", "カタカナ", "안녕하세요", "한국어 처리", "　全角　", "「引用」", "！？", "ﾊﾝｶｸ", "ＡＢＣ１２３", "𠮷野家", "㍿", "가"],
    "emoji": ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇯🇵", "❤️", "☕", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✅", "…", "—", "“quoted”", "€5", "°C", "∑∫√", "→⇒", "①②③", "♥︎"],
    "space": [" ", "  ", "    ", "        ", "\n", "\n\n", "\r\n", "\t", "\t ", " \n", "\n ", " \t \n\n  ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\ufeff"],
    "controls": ["\u0001", "\u0007", "\u0008", "\u000b", "\u000c", "\u001b[31m", "\u007f", "\u0000", "\u0080", "\u200d", "\u202e", "\ufffd", "\ufffe"],
    "decomposed": ["e\u0301", "A\u030a", "n\u0303o", "o\u0302\u0323", "\u1112\u1161\u11ab", "\u0915\u093c", "\u212b", "\u2126", "q\u0307\u0323", "\u0344"],
    "markup": ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>", "<|endoftext|>", "[INST]", "[/INST]", "<0x0A>", "▁", "Ġ", "<|x|>"],
}  # fmt: skip
RANGES = [[0x20, 0x7E], [0xA1, 0x24F], [0x370, 0x5FF], [0x600, 0x6FF], [0x900, 0xDFF], [0x1E00, 0x1FFF], [0x2000, 0x2BFF], [0x3040, 0x30FF],
          [0x4E00, 0x9FFF], [0xAC00, 0xD7A3], [0xFF01, 0xFFEE], [0x1F300, 0x1F9FF], [0x20000, 0x2A6DF]]  # fmt: skip
KINDS = ["words"] * 8 + ["code", "cjk", "emoji", "space", "space", "controls", "decomposed", "markup", "digits", "ranges"]


def lines():
    """The lines. A tokenizer's training sees the same ones."""
    random = Random(44)
    for _ in range(COUNT):
        line = []
        for _ in range(1 + random.below(16)):
            kind = KINDS[random.below(len(KINDS))]
            if kind == "digits":
                piece = str(random.below(10 ** (1 + random.below(12))))
            elif kind == "ranges":
                low, high = RANGES[random.below(len(RANGES))]
                piece = "".join(chr(low + random.below(high - low + 1)) for _ in range(1 + random.below(4)))
            else:
                piece = PIECES[kind][random.below(len(PIECES[kind]))]
            line.append(piece)
            line.append(["", " ", "", " ", "\n"][random.below(5)])
        yield "".join(line)


def hashes(encode):
    ids = [encode(line) for line in lines()]
    digest = lambda block: hashlib.sha256(numpy.asarray(sum(block, []), "<u4").tobytes()).hexdigest()[:8]
    blocks = [digest(ids[at : at + BLOCK]) for at in range(0, COUNT, BLOCK)]
    return {"tokens": sum(map(len, ids)), "first": ids[:2], "hashes": " ".join(blocks)}


# --- Tokenizers ---

LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(own_rule):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": own_rule}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


# By `tokenizer.ggml.pre`: the pre-tokenizer and the normalizer in the tokenizer.json of a model of the family, whether a piece that is a token is
# taken whole, and special tokens.
FAMILIES = {
    "llama-bpe": (sequence(split(LLAMA_3), byte_level(False)), None, True, ["<|begin_of_text|>", "<|eot_id|>"]),
    "qwen2": (sequence(split(QWEN_2), byte_level(False)), {"type": "NFC"}, False, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "tekken": (sequence(split(TEKKEN), byte_level(False)), None, True, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]),
    "gpt-2": (byte_level(True), None, False, ["<|endoftext|>"]),
    "smollm": (sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), None, False,
               ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}  # fmt: skip


def trained(name):
    """A tokenizer.json of a family with a small vocabulary."""
    from tokenizers import Tokenizer, pre_tokenizers, trainers

    pre, normalizer, whole, special = FAMILIES[name]
    empty = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": whole, "vocab": {}, "merges": []}  # fmt: skip
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
               "pre_tokenizer": pre, "post_processor": None, "decoder": decoder, "model": empty}  # fmt: skip
    tokenizer = Tokenizer.from_str(json.dumps(content))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    content = json.loads(tokenizer.to_str())
    # A word that no merges lead to: with `ignore_merges` it is taken whole all the same.
    vocab = content["model"]["vocab"]
    written = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(f" {word}")[0][0] for word in PIECES["words"]]
    vocab[next(word for word in written if word not in vocab)] = len(vocab)
    return content


def sentence_piece():
    """A tokenizer.json as transformers makes it from a SentencePiece model of type BPE, with the scores that its merges come from."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    marked = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = marked
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, limit_alphabet=300, show_progress=False, max_token_length=12)
    # candle-core's reader of strings takes a zero byte at the end of one away, and such a vocabulary is refused.
    learner.train_from_iterator((line.replace("\0", "") for line in lines()), trainer)
    vocab = json.loads(learner.to_str())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    # SentencePiece: merged pieces have scores from 0 down in the order of merging, single characters come after them.
    merged = [token for token in tokens[len(special) :] if len(token) > 1]
    single = [token for token in tokens[len(special) :] if len(token) == 1]
    tokens = special + merged + single
    scores = [0.0] * len(special) + [-float(at) for at in range(len(merged) + len(single))]
    from transformers.tokenization_utils_base import generate_merges

    ids = {token: at for at, token in enumerate(tokens)}
    merges = generate_merges(ids, dict(zip(tokens, scores)))
    content = json.loads(learner.to_str())
    content["model"] |= {"vocab": ids, "merges": [list(merge) for merge in merges], "fuse_unk": True, "byte_fallback": True, "unk_token": "<unk>"}
    content["added_tokens"] = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for token in ["<unk>", "<s>", "</s>"]
    ]
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }  # fmt: skip
    return content, scores


def vocabulary_file(path, content, pre, scores=None):
    """Writes a tokenizer.json as llama.cpp's converter does, with the keys that every model has."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(EPSILON)
    added = {token["id"]: token for token in content["added_tokens"]}
    vocab = dict(content["model"]["vocab"]) | {token["content"]: at for at, token in added.items()}
    tokens = sorted(vocab, key=vocab.get)
    assert [vocab[token] for token in tokens] == list(range(len(tokens)))

    def kind(at, token):
        if scores is not None and token == "<unk>":
            return gguf.TokenType.UNKNOWN
        if at in added:
            return gguf.TokenType.CONTROL if added[at]["special"] else gguf.TokenType.USER_DEFINED
        is_byte = scores is not None and token.startswith("<0x") and len(token) == 6
        return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL

    kinds = [kind(at, token) for at, token in enumerate(tokens)]
    if scores is None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        merges = content["model"]["merges"]
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores)
        writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    written(writer)


def tokenizers():
    write({"pieces": PIECES, "ranges": RANGES, "kinds": KINDS}, "lines.json")
    told = {}
    contents = {name: (trained(name), None) for name in FAMILIES} | {"sentence-piece": sentence_piece()}
    for name, (content, scores) in contents.items():
        vocabulary_file(GOLDEN / f"{name}.gguf", content, name, scores)
        told[name] = hashes_of(content)
        content["model"]["ignore_merges"] = not content["model"]["ignore_merges"]
        other = "differ" if hashes_of(content) != told[name] else "are the same"
        print(name, told[name]["tokens"], "tokens, which", other, "with the other `ignore_merges`")
    write(told, "tokenizers.json")


def hashes_of(content):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(content))
    return hashes(lambda line: tokenizer.encode(line, add_special_tokens=False).ids)


def real(name, file, source, spm=None):
    """Adds the hashes of a real tokenizer.json; a FILE.gguf that does not exist is written from it first, with NAME as its splitting, and for
    SentencePiece with the scores of its `.model`."""
    content = json.loads(pathlib.Path(source).read_text())
    if not pathlib.Path(file).exists():
        scores = None
        if spm is not None:
            from sentencepiece import SentencePieceProcessor

            processor = SentencePieceProcessor(model_file=spm)
            scores = [processor.get_score(at) for at in range(processor.vocab_size())]
        vocabulary_file(file, content, name, scores)
    path = GOLDEN / "real.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    told[name] = hashes_of(content)
    write(told, "real.json")
    print(name, told[name]["tokens"], "tokens")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    if sys.argv[1:2] == ["real"]:
        real(*sys.argv[2:])
    else:
        for part in sys.argv[1:] or ["model", "families", "tokenizers"]:
            {"model": model, "families": families, "tokenizers": tokenizers}[part]()
