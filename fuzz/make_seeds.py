#!/usr/bin/env python3
"""Write the first inputs of every fuzz target to fuzz/seeds, from the tests' rows and the project's own files.

Inputs that a fuzzer added (named `found-` for a fault, or by a hash if they reach more code) stay unchanged.
"""
import gzip
import io
import json
import re
import struct
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NEXT_FILE = b"\n=====\n"


def write(target, name, data):
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(data if isinstance(data, bytes) else data.encode())


def chosen(which, data, *more):
    """An input whose first bytes choose the reader."""
    return bytes([which, *more]) + (data if isinstance(data, bytes) else data.encode())


def specs():
    lines = (ROOT / "tests/golden/specs.txt").read_text().splitlines()
    methods = [line.split(" -> ")[0] for line in lines if " -> " in line]
    methods += ["topk:k={16,64}", "magicpig:K={8,9},L=75..150/25", "oracle_sampling:budget=16..64/16"]
    inputs = {
        0: methods,
        1: ["ruler", "ruler/niah_multikey_3", "ruler_reworded/vt", "needle:depths=0+50", "passkey:steps=5", "kv_retrieval:pairs=9",
            "longeval_lines:lines=7", "ppl/wikitext2:scored=8,stride=4", "mcq/mmlu:shots=5", "gen/gsm8k_cot", "longbench_e/hotpotqa/4-8k"],
        2: ["none", "0,1", "0+50%", "0-2", "3+7-9+100%"],
        3: ["question", "decode", "prefill", "last:32"],
        4: ["1/4", "4/4"],
        5: ["builtin", "./Llama-3.2-1B", "org/name@revision", "org/name"],
        6: ["data", "hub:org/name@main"],
        7: ["loki", "hash_attention:bits=32 loki", "double_sparsity"],
        8: ["qa_f1", "longbench/hotpotqa", "ruler/qa_1", "method,task", "model,protocol,length,k"],
    }
    for which, texts in inputs.items():
        for at, text in enumerate(texts):
            write("specs", f"{which}-{at}", chosen(which, text))


def configs():
    for path in sorted((ROOT / "configs").glob("*.toml")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        write("configs", path.stem, "\n".join(lines))
    every = (
        'model = ["builtin", "org/name"]\ntasks = ["ruler/vt"]\nlengths = [512, 1024]\nmethods = ["topk:k={8,16}"]\nsamples = 3\n'
        'seed = [1, 2]\nsparse_from = ["question", "last:4"]\nsink = [0, 4]\nlocal = 8\ndense_layers = ["none", "0"]\n'
        'fidelity = true\ndtype = "bf16"\ndata = "d"\ncalibration = "c"\npositions = "published"\nchat = false\nno_full = true\n'
        'allow_extrapolation = true\nskip_bad = true\nabout = "x"\n'
    )
    write("configs", "every-key", every)


def models():
    for path in sorted((ROOT / "tests/golden/models").glob("*/config.json")):
        write("models", f"config-{path.parent.name}", chosen(0, json.dumps(json.loads(path.read_text()))))
    index = {"metadata": {"total_size": 4}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    write("models", "index", chosen(1, json.dumps(index)))


def tokenizers():
    small = json.loads((HERE / "small-tokenizer.json").read_text())
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    generation = {"eos_token_id": [0, 2]}
    variants = {"word-level": small}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
           "fuse_unk": False, "byte_fallback": False, "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}
    variants["bpe"] = small | {"model": bpe, "pre_tokenizer": byte_level, "decoder": byte_level}
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["\u2581", -2.0]], "byte_fallback": False}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    variants["unigram"] = small | {"model": unigram, "pre_tokenizer": metaspace, "decoder": metaspace}
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|[^\\s]+"}, "behavior": "Isolated", "invert": False}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}
    normal = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]}
    variants["split"] = small | {"pre_tokenizer": split, "post_processor": template, "normalizer": normal}
    for name, tokenizer in variants.items():
        parts = [json.dumps(tokenizer), json.dumps(settings), json.dumps(generation)]
        write("tokenizers", name, NEXT_FILE.join(part.encode() for part in parts))
    for case in json.loads((ROOT / "tests/golden/chat.json").read_text()):
        if len(case["template"]) < 6000:
            write("tokenizers", f"chat-{case['name']}", b"" + NEXT_FILE + json.dumps(settings).encode() + NEXT_FILE * 2 + case["template"].encode())
    stated = settings | {"chat_template": "{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}{% endfor %}"}
    write("tokenizers", "chat-in-settings", NEXT_FILE + json.dumps(stated).encode())


def safetensors(tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def tensors():
    floats = struct.pack("<4f", 1, 2, 3, 4)
    one = safetensors({"a": ("F32", [2, 2], floats), "b": ("BF16", [4], floats[:8]), "c": ("F16", [4], floats[:8]), "d": ("I8", [1], b"x")})
    write("tensors", "weights", chosen(0, one))
    other = safetensors({"e": ("F16", [0, 3], b"")})
    index = json.dumps({"weight_map": {"a": "0", "e": "1"}}).encode()
    write("tensors", "shards", chosen(1, NEXT_FILE.join([index, one, other])))
    for kind, info, content in artefacts():
        write("tensors", f"artefact-{kind}", chosen(2, safetensors(content, {"spattn": json.dumps(info)})))


def artefacts():
    """The built-in model's artefacts, reduced to one layer with two heads of width 8."""
    for path in sorted((ROOT / "models/builtin/calibration").glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        info = json.loads(header.pop("__metadata__")["spattn"])
        size = {"F32": 4, "F16": 2}
        small = {}
        for name, tensor in header.items():
            if name.startswith("layers.0."):
                shape = [min(extent, 8) for extent in tensor["shape"]]
                count = 1
                for extent in shape:
                    count *= extent
                small[name] = (tensor["dtype"], shape, bytes(count * size[tensor["dtype"]]))
        info["model"] |= {"layers": 1, "head_dim": 8}
        yield path.stem, info, small


def gguf_file(keys, tensors):
    """A GGUF file; tensors have their extents in the format's order, the fastest first."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(it):
        if isinstance(it, list):
            kind = value(it[0])[:4] if it else struct.pack("<I", 8)
            return struct.pack("<I", 9) + kind + struct.pack("<Q", len(it)) + b"".join(value(one)[4:] for one in it)
        if isinstance(it, str):
            return struct.pack("<I", 8) + text(it)
        return struct.pack("<If", 6, it) if isinstance(it, float) else struct.pack("<II", 4, it)

    directory, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), b""
    for key, it in keys.items():
        directory += text(key) + value(it)
    for name, (extents, kind, numbers) in tensors.items():
        directory += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, len(data))
        data += numbers + b"\0" * (-len(numbers) % 32)
    return directory + b"\0" * (-len(directory) % 32) + data


def quantised():
    for case in sorted((ROOT / "tests/golden/quantised").iterdir()):
        weights = (case / "model.safetensors").read_bytes()
        if len(weights) < 4000:
            settings = json.loads((case / "config.json").read_text())["quantization_config"]
            write("quantised", case.name, json.dumps(settings).encode() + NEXT_FILE + weights)


def gguf():
    model = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32, "llama.block_count": 1,
             "llama.feed_forward_length": 32, "llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
             "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 16}
    bytes_ = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
              "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.bos_token_id": 3,
              "tokenizer.chat_template": "{{ messages[0].content }}"}
    pieces = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<0x0A>", "\u2581", "a", "\u2581a"],
              "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0], "tokenizer.ggml.token_type": [2, 6, 1, 1, 1],
              "tokenizer.ggml.unknown_token_id": 0}
    floats = struct.pack("<8f", 1, 1, 1, 1, 8, 8, 8, 8)
    tensors = {"token_embd.weight": ([32, 4], 8, bytes(136)), "blk.0.attn_q.weight": ([32, 32], 2, bytes(576)), "rope_freqs.weight": ([8], 0, floats)}
    write("gguf", "byte-level", gguf_file(model | bytes_, tensors))
    write("gguf", "pieces", gguf_file(model | pieces, {"output.weight": ([256, 1], 12, bytes(144))}))
    write("gguf", "split", gguf_file(model | bytes_ | {"split.no": 0, "split.count": 1, "split.tensors.count": 1}, {"output_norm.weight": ([8], 0, floats)}))


def readers():
    """The table of readers from the Rust source."""
    text = (ROOT / "crates/tasks/src/fuzz/readers.rs").read_text()
    string = r'(r#".*?"#|"(?:[^"\\]|\\.)*")'
    found = re.findall(rf"reader\(\s*{string},\s*{string},\s*{string},?\s*\)", text, re.S)

    def value(literal):
        return literal[3:-2] if literal.startswith("r#") else json.loads(literal)

    return [tuple(value(literal) for literal in row) for row in found]


def rows():
    table = readers()
    for which, (_, _, row) in enumerate(table):
        again = b"\n" + row.encode() if which < 22 else b""
        write("rows", f"{which:02}", chosen(which, row.encode() + again, which % 2))


def zipped(member, text):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(zipfile.ZipInfo(member), text)
    return archive.getvalue()


def archives():
    by_task = {task: row for task, _, row in readers()}
    write("archives", "longbench", chosen(0, zipped("data/qasper.jsonl", by_task["longbench/qasper"])))
    write("archives", "rows", chosen(1, zipped("a/rows.jsonl", by_task["longbench/lsht"])))
    write("archives", "wikitext2", chosen(2, zipped("wikitext-2-raw/wiki.test.raw", " = Title = \n\n Some words of a text , and more . \n")))
    write("archives", "winogrande", chosen(3, zipped("winogrande_1.1/dev.jsonl", by_task["mcq/winogrande"])))
    write("archives", "gzip", chosen(4, gzip.compress(b"Some words of a text, and more of them.", mtime=0)))
    tables = ROOT / "tests/golden/tables"
    for which, path in ((5, "data/validation"), (6, "ARC-Easy/test"), (7, "main/test")):
        write("archives", f"parquet-{which}", chosen(which, (tables / f"{path}-00000-of-00001.parquet").read_bytes()))
    write("archives", "parquet-zstd", chosen(5, (tables / "zstd.parquet").read_bytes()))


def record(**changes):
    return {
        "key": "k", "model": "builtin", "task": "ruler/vt", "length": 1024, "sample": 0, "seed": 42, "method": "full", "params": "",
        "protocol": "question", "source": "grammar", "prediction": "A", "references": ["A"], "score": 1.0, "metric": "string_match_all",
        "prompt_tokens": 1000, "prefix_tokens": 900, "new_tokens": 3, "max_new_tokens": 30, "stopped": True, "bos_tokens": 1,
        "density": 1.0, "density_sparse_layers": 1.0, "cost1": 0.0, "cost2": 1.0, "aux_bits": 0.0, "kv_bytes_per_token": 100.0,
        "kv_bytes_held": 1000, "prefill_s": 0.1, "index_s": 0.0, "decode_s": 0.1, "steps": 10,
    } | changes


def records():
    def run(lines, identities):
        manifest = {"program": {"name": "spattn", "version": "0.1.0"}, "identity": identities,
                    "methods": [{"method": "full", "params": ""}, {"method": "topk", "params": "k=8"}]}
        text = "\n".join(json.dumps(line) for line in lines) + "\n"
        return json.dumps(manifest).encode() + NEXT_FILE + text.encode()

    identity = {"model": "builtin", "protocol": "question", "seed": 42, "weights_sha256": "a", "data": None}
    pair = [record(key=f"{method}{sample}", sample=sample, method=method, params=params, score=score)
            for sample in (0, 1) for method, params, score in (("full", "", 1.0), ("topk", "k=8", 0.5))]
    write("records", "run", run(pair, identity))
    deep = [line | {"task": "needle", "depth": 50.0, "other_scores": {"qa_f1": 0.5}, "question": "Q?"} for line in pair]
    write("records", "depths", run(deep, [identity]))
    per_layer = {"output_error": [0.1, 0.2], "recall": [0.9, 0.8], "dropped_mass": [0.1, 0.1]}
    faithful = [line | {"fidelity": per_layer, "density_by_layer": [1.0, 0.5]} for line in pair]
    write("records", "fidelity", run(faithful, identity))
    sums = {"nll": 5.0, "tokens": 2, "words": 1, "bytes": 9, "same_top": 1, "kl_sum": 0.5, "kl": [0.25, 0.25]}
    perplexity = [line | {"task": "ppl/wikitext2", "measure": "perplexity", "score": 12.5, "likelihood": sums} for line in pair]
    write("records", "perplexity", run(perplexity, identity))
    options = {"log_likelihoods": [-1.0, -2.0], "characters": [3, 4], "right": 0, "most_likely": 0, "most_likely_by_length": 1}
    write("records", "options", run([line | {"task": "mcq/piqa", "choice": options} for line in pair], identity))
    other = identity | {"seed": 7, "weights_sha256": "b"}
    write("records", "two-runs", run(pair, identity) + NEXT_FILE + run([line | {"seed": 7} for line in pair], other))


def predictions():
    rows = {
        "plain": {"prediction": "Paris\nno", "answers": ["Paris", "paris"]},
        "classes": {"pred": "Lake", "answers": "Lake", "all_classes": ["Lake", "River"], "length": 5000, "dataset": "trec"},
        "numbers": {"pred": "Paragraph 3 and 7", "outputs": ["Paragraph 3"], "length": 10},
        "run": {"task": "ruler/vt", "length": 9, "method": "topk", "params": "k=8", "metric": "qa_f1", "first_line": True,
                "prediction": "a", "references": ["a"], "score": 1.0},
    }
    for at, (name, row) in enumerate(rows.items()):
        for which in (at, 6 + at, 12 + at, 18 + at):
            write("predictions", f"{name}-{which}", chosen(which, json.dumps(row) + "\n" + json.dumps(row)))


for make in (specs, configs, models, tokenizers, tensors, quantised, gguf, rows, archives, records, predictions):
    make()
