"""Writes what Hugging Face transformers computes with a model, for `spattn verify --reference FILE`.

Run it where torch and transformers (4.56 or later) are:

    python scripts/verify_hf.py MODEL OUT.safetensors [--tokens N] [--device cuda] [--dtype bfloat16]

MODEL is a checkpoint's folder, a hub id, or a GGUF file (for which transformers needs the packages gguf and accelerate). Give `spattn verify` the same --dtype. Without --tokens the text goes 64 tokens
beyond the length that the model was trained for, and to 2,112 tokens at most.

Tensors of the file, P positions of a text of T tokens, L layers, H numbers of a hidden state, V tokens of the vocabulary:
    ids         [T] i64         the text
    positions   [P] i64         rising; the first is 0
    logits      [P, V] f32      at these positions
    hidden      [L + 1, P, H] f32   the residual stream: the embedding, then behind each layer, before the last norm
    inv_freq    [head_dim / 2] f32  RoPE's frequencies for a text of T tokens, if the decoder has one set of them
    rows/NAME   [rows] f64      of each tensor of the state dict: per row, the sum of its numbers, each times a weight of its column
                                (`column_weights`), so that a row whose columns are in another order has another sum
Metadata `spattn_verify`: JSON with versions, config.json, what the tokenizer and the chat template make of fixed texts, and the greedy
continuation of a second prompt with its smallest gaps between the first and the second logit.
"""

import argparse
import datetime
import json
import pathlib

import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

FORMAT = 1
NEW_TOKENS = 24
MOST_TOKENS = 2048
BEYOND = 64

PARAGRAPH = (
    "Entry {i}. On day {d} the river stood {h} cm above the mark, and the keeper of the lock wrote: \u201cwind from the west, water "
    "clear; {b} boats passed before noon.\u201d He had counted them twice, as the rules asked, and put the book back on its shelf. "
)
PROMPT = "The keeper of the lock wrote down every boat that passed: its name, its load and the hour. On the first day"
USER = "What is the pass key? Answer with the number only: 4820117 or 9?"
LINES = [
    "Hello world",
    "The special magic numbers for violet-harbour are: 4820117, 9 and 3.14159.",
    "def f(a, b):\n    return a  + b  # why?\n\n\tx[i] += 1",
    "if (x != NULL && y->next) { printf(\"%d\\n\", x->n); }",
    "数字と漢字、そして仮名。中文没有空格。",
    "Привет, мир! naïve café – Ünïcödé",
    "emoji 🙂👩\u200d👩\u200d👧 and a flag 🇪🇺",
    "two  spaces, three   spaces\t\ttabs\r\n\r\nlines",
    "1234567890 12 345 6789 0.001 1e-5 2026-11-26",
    "I'm, you're, they'LL; don't",
    "مرحبا بالعالم",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


class FixedDate(datetime.datetime):
    """Templates that print the date get this one from spattn."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def column_weights(columns):
    """A number from -1 to 1 for each column: SplitMix64 of its index."""
    with numpy.errstate(over="ignore"):
        z = (numpy.arange(columns, dtype=numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return torch.from_numpy((z >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-52 - 1.0)


def row_sums(tensor):
    tensor = tensor.detach()
    matrix = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.reshape(-1, 1)
    weights = column_weights(matrix.shape[1])
    return torch.cat([part.cpu().double() @ weights for part in matrix.split(4096)])


def rows_of(model):
    """The sums of each tensor; a tensor with two names once, under its first."""
    seen, sums = set(), {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.is_floating_point() and tensor.numel() > 0 and place not in seen:
            seen.add(place)
            sums[f"rows/{name}"] = row_sums(tensor)
    return sums


def chosen_positions(tokens, trained):
    wanted = {0, 1, 2, 3, trained - 1, trained, tokens - 1} | {2**i for i in range(2, 40)}
    return sorted(p for p in wanted if 0 <= p < tokens)


def decoder_of(model):
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    return decoder if hasattr(decoder, "layers") else decoder.language_model


@torch.no_grad()
def residual_stream(model, ids, positions):
    """Hidden states [L + 1][P][H] and logits [P][V] of one pass over the text."""
    layers, states = decoder_of(model).layers, []
    keep = lambda x: states.append(x[0, positions].float().cpu())
    first = lambda out: out[0] if isinstance(out, tuple) else out
    hooks = [
        layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: keep(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    ]
    hooks += [layer.register_forward_hook(lambda _, __, out: keep(first(out))) for layer in layers]
    wanted = torch.tensor(positions, device=model.device)
    logits = model(ids, use_cache=False, logits_to_keep=wanted).logits[0]
    [hook.remove() for hook in hooks]
    if len(logits) != len(positions):
        raise SystemExit("this version of transformers does not take positions as logits_to_keep: install a newer one")
    return torch.stack(states), logits.float().cpu()


@torch.no_grad()
def greedy(model, prompt):
    """Ids that greedy decoding appends, and the gap between the first and the second logit of each."""
    out, ids, gaps = model(prompt, use_cache=True), [], []
    while True:
        top = out.logits[0, -1].float().topk(2)
        ids.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        if len(ids) == NEW_TOKENS:
            return ids, gaps
        token = torch.tensor([[ids[-1]]], device=model.device)
        # Newer versions have another name for keys and values.
        kept = "cache" if "cache" in out else "past_key_values"
        out = model(token, **{kept: out[kept]}, use_cache=True)


def line(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return {"text": text, "ids": ids, "decoded": decoded}


def front(tokenizer):
    """What the tokenizer puts in front of a text."""
    both, plain = tokenizer(LINES[0])["input_ids"], tokenizer(LINES[0], add_special_tokens=False)["input_ids"]
    starts = (i for i in range(len(both)) if both[i : i + len(plain)] == plain)
    return both[: next(starts, len(both) - len(plain))]


def chat(tokenizer):
    """The prompt of one user's turn; null without a template."""
    if not tokenizer.chat_template:
        return None
    import transformers.utils.chat_template_utils as utils

    utils.datetime = FixedDate
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": USER}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return {"user": USER, "text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]}


def ends(model, tokenizer):
    stated = model.generation_config.eos_token_id
    stated = [] if stated is None else stated if isinstance(stated, list) else [stated]
    return sorted(set(stated) | ({tokenizer.eos_token_id} - {None}))


def config_of(name, model, revision):
    """config.json as it is stored, where there is one."""
    path = pathlib.Path(name) / "config.json"
    if not path.is_file() and not name.endswith(".gguf"):
        path = pathlib.Path(transformers.utils.cached_file(name, "config.json", revision=revision))
    return json.loads(path.read_text()) if path.is_file() else model.config.to_dict()


def load(name, dtype, device, revision):
    kind, place = {"revision": revision} if revision else {}, name
    if name.endswith(".gguf"):
        kind, place = {"gguf_file": pathlib.Path(name).name}, str(pathlib.Path(name).parent)
    # Models that read images too are of another kind of class.
    of_text = type(AutoConfig.from_pretrained(place, **kind)) in MODEL_FOR_CAUSAL_LM_MAPPING
    auto = AutoModelForCausalLM if of_text else AutoModelForImageTextToText
    model = auto.from_pretrained(place, dtype=dtype, attn_implementation="eager", **kind)
    return model.eval().to(device), AutoTokenizer.from_pretrained(place, **kind)


def write_reference(name, out, tokens=None, dtype="float32", device="cpu", revision=None):
    model, tokenizer = load(name, getattr(torch, dtype), device, revision)
    config = model.config.get_text_config()
    trained = config.max_position_embeddings
    tokens = tokens or min(trained, MOST_TOKENS) + BEYOND
    paragraphs = (PARAGRAPH.format(i=i, d=i * 37 % 365 + 1, h=i * 7919 % 997, b=i * 31 % 17) for i in range(tokens))
    ids = []
    for paragraph in paragraphs:
        ids += tokenizer(paragraph, add_special_tokens=not ids)["input_ids"]
        if len(ids) >= tokens:
            break
    ids = ids[:tokens]
    positions = chosen_positions(tokens, trained)
    batch = torch.tensor([ids], device=model.device)
    hidden, logits = residual_stream(model, batch, positions)
    rope = getattr(decoder_of(model), "rotary_emb", None)
    frequencies = getattr(rope, "inv_freq", None)
    prompt = tokenizer(PROMPT)["input_ids"]
    continuation, gaps = greedy(model, torch.tensor([prompt], device=model.device))
    tensors = {
        "ids": torch.tensor(ids),
        "positions": torch.tensor(positions),
        "logits": logits.contiguous(),
        "hidden": hidden.contiguous(),
    } | rows_of(model)
    if frequencies is not None:
        tensors["inv_freq"] = frequencies.detach().float().cpu().contiguous()
    said = {
        "format": FORMAT,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": dtype,
        "config": config_of(name, model, revision),
        "trained": trained,
        "front": front(tokenizer),
        "lines": [line(tokenizer, text) for text in LINES],
        "chat": chat(tokenizer),
        "bos": tokenizer.bos_token_id,
        "eos": ends(model, tokenizer),
        "prompt": prompt,
        "continuation": continuation,
        "gaps": gaps,
    }
    metadata = {"spattn_verify": json.dumps(said, ensure_ascii=False)}
    save_file(tensors, out, metadata)


def main():
    parser = argparse.ArgumentParser(description="Write what transformers computes with a model, for `spattn verify --reference`.")
    parser.add_argument("model", help="a checkpoint's folder, a hub id, or a GGUF file")
    parser.add_argument("out", help="the safetensors file to write")
    parser.add_argument("--tokens", type=int, help="tokens of the text")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu", help="where PyTorch computes")
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    args = parser.parse_args()
    write_reference(args.model, args.out, args.tokens, args.dtype, args.device, args.revision)


if __name__ == "__main__":
    main()
