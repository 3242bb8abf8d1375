"""Makes the golden files that the model tests compare with; the reference is Hugging Face transformers.

Regenerate (CPU, some minutes; transformers 5.x, torch):  python scripts/make_golden_models.py [part]...
Parts: models, likelihood, rope, chat, tokenizer, verify, or the name of one model; all by default. Everything goes to
tests/golden/. golden_checkpoints.py has the models' shapes.

models/<name>/          a tiny random checkpoint: config.json and weights (safetensors, one file or shards)
models/<name>/golden.json
    prompt              token ids of one prompt, longer than 1,000
    positions           prompt positions of `logits`
    logits              [position][vocab] f32 logits of one forward pass over the prompt
    continuation        ids that greedy decoding appends to the prompt, with a KV cache (no EOS)
    last_logits         [vocab] logits from which the last id of `continuation` was taken
    smallest_gap        smallest top-1 minus top-2 logit over the steps of `continuation`
    f32_noise           largest |f32 - f64| over `logits`: the effect of rounding alone on this model
    transformers        version of the reference
likelihood.json         for the prompt of models/llama-bias, in nats:
    window, scored      tokens of a window, and of its scored end; windows are consecutive
    nll                 [window] negative log-likelihood of each scored part
    perplexity          perplexity over all scored tokens
    context, options    tokens of the prompt before the options, and [start, end) of each option in the prompt
    log_likelihoods     [option] log-likelihood of each option right after the context
rope.json               [{name, config, head_dim, max_positions, cases: [{sequence_length, inv_freq, scaling,
                          position, cos, sin}]}]; config holds the RoPE keys of a config.json
chat.json               [{name, template, messages, variables, expected}]; always with add_generation_prompt
tokenizer.json          {encode: [{text, ids, decoded}]} for models/builtin, special tokens added by the tokenizer
verify/                 tokenizer.json and tokenizer_config.json of bytes, which fit every model of models/, and for some of these
                        NAME.safetensors, which scripts/verify_hf.py writes of the two together
"""

import copy
import json
import math
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from golden_checkpoints import BASE, LLAMA3, MODELS
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, Mxfp4Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
PROMPT_TOKENS = 1100
NEW_TOKENS = 24
POSITIONS = [15, 1023, 1099]
SMALLEST_GAP = 1e-2
# A larger one means that two experts are as good as equally likely for some token.
LARGEST_NOISE = 5e-5


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")


def f32(tensor):
    """Numbers of a float32 tensor with the digits that identify them."""
    return [float(f"{x:.9g}") for x in tensor.to(torch.float32).flatten().tolist()]


def randomise(model, seed, embedding):
    """Weights large enough that attention is peaked, experts differ and logits are far from flat.

    `embedding` is the size of weights of the embedding table and of the output matrix.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1.0 + 0.2 * noise
        elif name.endswith("sinks"):
            # As much as all keys of a window together.
            parameter.data = 8.0 + noise
        elif name.endswith(("mlp.gate.weight", "router.weight")):
            parameter.data = 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif "q_proj" in name or "k_proj" in name:
            parameter.data = 0.2 * noise
        elif "embed" in name or "lm_head" in name:
            parameter.data = embedding * noise
        else:
            parameter.data = 0.15 * noise


def save_checkpoint(folder, checkpoint, seed):
    shutil.rmtree(folder, ignore_errors=True)
    model_type, config = checkpoint.config()
    model = auto_class(checkpoint).from_config(AutoConfig.for_model(model_type, **copy.deepcopy(config)))
    randomise(model, seed, checkpoint.embedding)
    model.tie_weights()
    model = model.to(getattr(torch, checkpoint.dtype))
    stored = {"max_shard_size": checkpoint.shard_size or "1GB", "save_original_format": checkpoint.published_names}
    model.save_pretrained(folder, **stored)
    (folder / "generation_config.json").unlink(missing_ok=True)
    checkpoint.rewrite(folder, seed)
    for file in folder.iterdir():
        file.chmod(0o644)


def auto_class(checkpoint):
    return AutoModelForImageTextToText if checkpoint.wrapper else AutoModelForCausalLM


def load(folder, checkpoint, dtype):
    further = {"quantization_config": Mxfp4Config(dequantize=True)} if checkpoint.mxfp4 else {}
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return auto_class(checkpoint).from_pretrained(folder, dtype=dtype, **plain, **further).eval()


def prompt_ids(seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(4, BASE["vocab_size"], (1, PROMPT_TOKENS), generator=generator)


@torch.no_grad()
def greedy(model, prompt):
    """The continuation, the smallest top-1/top-2 gap, and the logits of the last step."""
    out = model(prompt, use_cache=True)
    ids, gap = [], math.inf
    for step in range(NEW_TOKENS):
        logits = out.logits[0, -1]
        top = logits.topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
        if step + 1 < NEW_TOKENS:
            out = model(torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    return ids, gap, logits


@torch.no_grad()
def golden_of(folder, checkpoint, seed):
    model, prompt = load(folder, checkpoint, torch.float32), prompt_ids(seed)
    # Before decoding: dynamic RoPE keeps the frequencies of the longest sequence it has seen.
    rows = model(prompt).logits[0, POSITIONS]
    ids, gap, last = greedy(model, prompt)
    if gap < SMALLEST_GAP or len(set(ids)) < 8:
        return None
    exact = load(folder, checkpoint, torch.float64)(prompt).logits[0, POSITIONS]
    noise = float((rows - exact).abs().max())
    if noise > LARGEST_NOISE:
        return None
    return {
        "prompt": prompt[0].tolist(),
        "positions": POSITIONS,
        "logits": [f32(row) for row in rows],
        "continuation": ids,
        "last_logits": f32(last),
        "smallest_gap": round(gap, 6),
        "f32_noise": float(f"{noise:.3g}"),
        "transformers": transformers.__version__,
    }


def make_model(name):
    folder, checkpoint = GOLDEN / "models" / name, MODELS[name]
    for seed in range(200):
        save_checkpoint(folder, checkpoint, seed)
        golden = golden_of(folder, checkpoint, seed)
        if golden:
            write_json(folder / "golden.json", golden)
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(name, "seed", seed, "gap", golden["smallest_gap"], "noise", golden["f32_noise"], size, "bytes")
            return
    raise SystemExit(f"{name}: no seed gives an unambiguous continuation")


def make_models():
    for name in MODELS:
        make_model(name)


@torch.no_grad()
def make_likelihood(window=256, scored=64, context=600, options=((600, 601), (700, 705), (850, 870))):
    folder = GOLDEN / "models" / "llama-bias"
    model = load(folder, MODELS["llama-bias"], torch.float32)
    prompt = torch.tensor(json.loads((folder / "golden.json").read_text())["prompt"])

    def nll(ids, last):
        """For the last tokens of `ids`; labels of -100 are not scored, as in the usual perplexity loop."""
        labels = ids.clone()
        labels[:-last] = -100
        return float(model(ids[None], labels=labels[None]).loss) * last

    windows = [nll(prompt[i : i + window], scored) for i in range(0, len(prompt) - window + 1, window)]
    option = lambda start, end: -nll(torch.cat([prompt[:context], prompt[start:end]]), end - start)
    value = {
        "window": window,
        "scored": scored,
        "nll": [round(x, 6) for x in windows],
        "perplexity": round(math.exp(sum(windows) / (scored * len(windows))), 6),
        "context": context,
        "options": options,
        "log_likelihoods": [round(option(*o), 6) for o in options],
        "transformers": transformers.__version__,
    }
    write_json(GOLDEN / "likelihood.json", value)


# name: (RoPE keys of a config.json, head_dim, max positions, sequence lengths)
ROPES = {
    "default": ({"rope_theta": 1000000.0}, 128, 32768, [1000]),
    "default-64": ({"rope_theta": 10000.0}, 64, 2048, [1000]),
    "linear": ({"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 8.0}}, 128, 16384, [1000]),
    "dynamic": (
        {"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        128,
        4096,
        [100, 4096, 4097, 9000, 32768],
    ),
    "dynamic-96": (
        {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "dynamic", "factor": 3.5}},
        96,
        2048,
        [2048, 5000],
    ),
    "yarn-qwen": (
        {
            "rope_theta": 1000000.0,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        128,
        131072,
        [1000],
    ),
    "yarn-mscale": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "mscale": 1.0,
                "mscale_all_dim": 0.707,
                "beta_fast": 32,
                "beta_slow": 1,
            }
        },
        64,
        163840,
        [1000],
    ),
    "yarn-untruncated": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "attention_factor": 1.25,
                "beta_fast": 24.0,
                "beta_slow": 2.0,
                "truncate": False,
            }
        },
        64,
        131072,
        [1000],
    ),
    "llama3-8b": (
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}},
        128,
        131072,
        [1000],
    ),
    "llama3-1b": (
        {
            "rope_parameters": LLAMA3
            | {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
        },
        64,
        131072,
        [1000],
    ),
}

LONGROPE = {
    "short_factor": [1.0 + 0.02 * i for i in range(48)],
    "long_factor": [1.0 + 0.25 * i + 0.02 * i * i for i in range(48)],
}
ROPES |= {
    "longrope-phi3": (
        {
            "rope_theta": 10000.0,
            "rope_scaling": LONGROPE | {"type": "longrope"},
            "original_max_position_embeddings": 4096,
        },
        96,
        131072,
        [100, 4096, 4097, 20000],
    ),
    "longrope-partial": (
        {
            "rope_parameters": LONGROPE
            | {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 4096,
        },
        128,
        131072,
        [4096, 9000],
    ),
    "yarn-partial": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": 0.5,
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            }
        },
        128,
        131072,
        [1000],
    ),
}


def rope_case(keys, head_dim, max_positions, length):
    sizes = {"hidden_size": 4 * head_dim, "head_dim": head_dim, "max_position_embeddings": max_positions}
    config = AutoConfig.for_model("llama", **(BASE | sizes | json.loads(json.dumps(keys))))
    embedding = LlamaRotaryEmbedding(config)
    # One forward pass over the whole sequence, so that length-dependent variants see its length.
    cos, sin = embedding(torch.zeros(1), torch.arange(length)[None])
    kind = config.rope_parameters["rope_type"]
    if kind == "dynamic":
        seen = torch.tensor(length) if length > max_positions else None
        assert torch.equal(embedding.inv_freq, ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=seen)[0])
    half = len(embedding.inv_freq)
    return {
        "sequence_length": length,
        "inv_freq": f32(embedding.inv_freq),
        "scaling": float(embedding.attention_scaling),
        "position": length - 1,
        "cos": f32(cos[0, -1, :half]),
        "sin": f32(sin[0, -1, :half]),
    }


def make_rope():
    entries = []
    for name, (keys, head_dim, max_positions, lengths) in ROPES.items():
        cases = [rope_case(keys, head_dim, max_positions, length) for length in lengths]
        entry = {"name": name, "config": keys, "head_dim": head_dim, "max_positions": max_positions, "cases": cases}
        entries.append(entry)
    write_json(GOLDEN / "rope.json", entries)
    print("rope:", len(entries), "variants")


# Invented texts that use the same constructs as the templates of the model families.
HEADERS = """{{- bos_token }}
{%- set first = messages[0] %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if first.role == 'system' %}
    {%- set system = first['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Knowledge ends: December 2023\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("tools are not wanted here") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

HEADERS_SHORT = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)

INST = """{%- if messages[0]["role"] == "system" -%}
    {%- set system_message = messages[0]["content"] -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{{- bos_token }}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {%- if message["role"] == "user" -%}
        {%- if loop.last and system_message is defined -%}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" -}}
        {%- else -%}
            {{- "[INST] " + message["content"] + "[/INST]" -}}
        {%- endif -%}
    {%- elif message["role"] == "assistant" -%}
        {{- " " + message["content"].strip() + eos_token -}}
    {%- else -%}
        {{- raise_exception("only user and assistant roles are supported") -}}
    {%- endif -%}
{%- endfor -%}
"""

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Indented block tags on lines of their own, for which trim_blocks and lstrip_blocks exist.
BLOCKS = """{% for message in messages %}
  {% if message.role == 'note' %}
    {% continue %}
  {% endif %}
  {# a comment that leaves no trace #}
<{{ message.role | upper }}>
  {{ message['content'].replace('\\t', ' ').title() if message.role == 'system' else message.content }}
  {% if loop.index > 6 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<ASSISTANT>
{% endif %}
{{ {"roles": messages | map(attribute='role') | list, "quote": "<a & 'b'>", "n": 2, "yes": true} | tojson }}
"""

GENERATION = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{%- else %}{{ message.get('name', message['role']) + ': ' + message['content'].split('|')[0] + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

USER = [{"role": "user", "content": "  What is the pass key? \n"}]
SYSTEM = [{"role": "system", "content": "You answer\tshortly."}] + USER
TURNS = USER + [
    {"role": "assistant", "content": "<think>\nIt was said once.\n</think>\n\n It is 42. "},
    {"role": "user", "content": "Sure? Ünïcode <|eot_id|> & \"quotes\""},
]
SEPARATE = [{"role": "note", "content": "skip me"}] + SYSTEM

CHATS = [
    ("headers", HEADERS, USER, {}),
    ("headers-system", HEADERS, SYSTEM, {}),
    ("headers-turns", HEADERS, TURNS, {"date_string": "1 Jan 2025"}),
    ("headers-short", HEADERS_SHORT, TURNS, {}),
    ("inst", INST, USER, {}),
    ("inst-system-turns", INST, SYSTEM[:1] + TURNS, {}),
    ("chatml", CHATML, USER, {}),
    ("chatml-system", CHATML, SYSTEM, {}),
    ("thinking", THINKING, USER, {}),
    ("thinking-off", THINKING, SYSTEM, {"enable_thinking": False}),
    ("thinking-turns", THINKING, TURNS, {"enable_thinking": True}),
    ("thinking-ends-with-assistant", THINKING, TURNS[:2], {}),
    ("blocks", BLOCKS, SEPARATE, {}),
    ("generation-tag", GENERATION, TURNS, {}),
]


def make_chat():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "builtin")
    entries = []
    for name, template, messages, variables in CHATS:
        expected = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True, **variables
        )
        entry = {"name": name, "template": template, "messages": messages, "variables": variables}
        entries.append(entry | {"expected": expected})
    write_json(GOLDEN / "chat.json", entries)
    print("chat:", len(entries), "renderings")


TEXTS = [
    "",
    "Hello world",
    " The special magic numbers for violet-harbour are: 4820117, 9.",
    "Line one\nline two\n\n\tindented   with spaces  ",
    "VAR ABCDE = 12345\nVAR FGHIJ = VAR ABCDE ",
    "Ünïcödé – naïve café, 数字と漢字, Привет, مرحبا",
    "emoji 🙂👩‍👩‍👧 and zero\u200bwidth",
    "2f1d0c9e-57ab-4c3e-9d60-1b2a3c4d5e6f",
    "<s> in text </s> stays special",
    "x" * 300,
    "e\u0301 combining, \ufb01 ligature, \x00\x07 controls",
    "def f(a, b):\n    return a  + b  # why?\n",
]


def make_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "builtin")
    encode = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        encode.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    write_json(GOLDEN / "tokenizer.json", {"encode": encode})
    print("tokenizer:", len(encode), "texts")


# Checkpoints that `spattn verify` is tested on.
VERIFIED = ["llama-bias", "qwen3"]
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"] + [f"<|reserved_{i}|>" for i in range(7)]
TURNS_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_letters():
    """The letter that byte-level tokenizers write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def write_byte_tokenizer(folder):
    """A token for each of the 243 bytes that occur in UTF-8, and 13 special ones: 256, as many as the golden models know."""
    in_utf8 = [b for b in range(256) if b not in (0xC0, 0xC1) and b < 0xF5]
    letters = byte_letters()
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    vocabulary |= {letters[b]: len(SPECIAL) + i for i, b in enumerate(in_utf8)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}]
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": token} | flags for i, token in enumerate(SPECIAL)],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": begin + [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": begin + [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []},
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "clean_up_tokenization_spaces": False,
            "chat_template": TURNS_TEMPLATE,
        },
    )


def make_verify():
    sys.path.insert(0, str(ROOT / "scripts"))
    from verify_hf import write_reference

    write_byte_tokenizer(GOLDEN / "verify")
    for name in VERIFIED:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(GOLDEN / "models" / name, folder, dirs_exist_ok=True)
            for file in (GOLDEN / "verify").glob("*.json"):
                shutil.copy(file, folder)
            out = GOLDEN / "verify" / f"{name}.safetensors"
            write_reference(folder, str(out))
            print("verify:", name, out.stat().st_size, "bytes")


def main():
    parts = {
        "models": make_models,
        "likelihood": make_likelihood,
        "rope": make_rope,
        "chat": make_chat,
        "tokenizer": make_tokenizer,
        "verify": make_verify,
    }
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for part in sys.argv[1:] or parts:
        parts[part]() if part in parts else make_model(part)


if __name__ == "__main__":
    main()
