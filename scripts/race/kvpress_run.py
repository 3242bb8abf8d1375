#!/usr/bin/env python3
"""Answers rows with kvpress' own pipeline, a press at a time, and times each call.

    python3 scripts/race/kvpress_run.py ROWS.jsonl OUT --model FILE.gguf [--device cuda] [--dtype bfloat16] [--most-seconds 240] [--alike] [NAME...]

kvpress, the transformers that it asks for (< 5.3), accelerate and, for a GGUF file, gguf have to be installed. MODEL is a GGUF file, a folder
or a hub id. The model is loaded once, and every press reads the first row once before the first call that counts. Rows are the outer loop: all
presses answer a row before the next begins, and begin at another press each time, so that a run that is stopped by --most-seconds has
answered the same rows with each.

OUT gets:
    answers.jsonl   a line for each row and press: row (its number), name, prediction, answers and dataset (for `spattn score`), seconds
    rows.jsonl      the rows that all presses have answered
    run.json        versions, what was loaded and how long that took, and of each press seconds and bytes on the GPU
"""

import argparse
import importlib.util
import json
import platform
import resource
import time
from importlib import metadata
from pathlib import Path

import torch
from pairs import chosen

PACKAGES = ["kvpress", "transformers", "torch", "tokenizers", "accelerate", "flash-attn"]
WARM_UP_TOKENS = 4


def reader(given):
    """Model and tokenizer, as transformers loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = given.model, {}
    if given.model.endswith(".gguf"):
        path = Path(given.model).resolve()
        where, file = str(path.parent), {"gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(where, **file)
    model = AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, given.dtype), attn_implementation=fastest(given), **file)
    return model.to(given.device).eval(), tokenizer


def fastest(given):
    """The attention that kvpress' own evaluation takes: Flash attention where it is installed, else PyTorch's."""
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return "flash_attention_2" if has_flash and given.device != "cpu" else "sdpa"


def end_at_both_marks(model, tokenizer):
    """Ends answers at the end of a text as well as of a turn, as the published generation config does. A GGUF file names one of them."""
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    model.generation_config.eos_token_id = sorted(ends - {None})
    return model.generation_config.eos_token_id


def press_of(pair):
    """The press of a pair; None for `full`."""
    import kvpress

    if not pair.press:
        return None
    press = getattr(kvpress, pair.press)(**pair.settings)
    return getattr(kvpress, pair.wrapped_in)(press) if pair.wrapped_in else press


class Runner:
    """A pipeline with its presses, their times and their memory."""

    def __init__(self, given, pairs):
        from transformers import pipeline

        began = time.perf_counter()
        self.model, self.tokenizer = reader(given)
        self.loading = time.perf_counter() - began
        self.ends = end_at_both_marks(self.model, self.tokenizer)
        self.pipeline = pipeline("kv-press-text-generation", model=self.model, tokenizer=self.tokenizer)
        self.attention = fastest(given)
        self.pairs, self.on_gpu = pairs, given.device != "cpu"
        self.seconds = {pair.name: 0.0 for pair in pairs}
        self.bytes = {pair.name: 0 for pair in pairs}

    def warm_up(self, row):
        """Runs each press once, for a short answer; nothing of it counts."""
        for pair in self.pairs:
            self.answer({**row, "max_new_tokens": WARM_UP_TOKENS}, pair)
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.bytes = dict.fromkeys(self.bytes, 0)

    def answer(self, row, pair):
        """The prediction for a row with a press, and the seconds that it took."""
        attention = pair.attention or self.attention
        if attention != self.model.config._attn_implementation:
            self.model.set_attn_implementation(attention)
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        prediction = self.pipeline(
            row["context"],
            question=row["question"],
            answer_prefix=row["answer_prefix"],
            press=press_of(pair),
            max_new_tokens=row["max_new_tokens"],
        )["answer"]
        if self.on_gpu:
            torch.cuda.synchronize()
            self.bytes[pair.name] = max(self.bytes[pair.name], torch.cuda.max_memory_allocated())
        seconds = time.perf_counter() - began
        self.seconds[pair.name] += seconds
        return prediction, seconds

    def tokens(self, row):
        """The tokens of context and question, and whether they are those of the whole prompt at once."""
        parts = self.pipeline.preprocess(row["context"], [row["question"]], row["answer_prefix"], int(1e10))
        context, question = parts["context_ids"][0].tolist(), parts["questions_ids"][0][0].tolist()
        text = self.tokenizer.decode(context) + self.tokenizer.decode(question)
        whole = self.tokenizer.encode(text, add_special_tokens=False)
        return {"context_tokens": len(context), "question_tokens": len(question), "as_a_whole": whole == context + question}


def versions():
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run(runner, rows, most_seconds, out):
    """Answers rows until the time is up; returns the rows that were answered."""
    began, done = time.perf_counter(), []
    for number, row in enumerate(rows):
        left = most_seconds - (time.perf_counter() - began)
        # A row takes about as long as the one before.
        if done and left < (most_seconds - left) / len(done):
            break
        first = number % len(runner.pairs)
        tokens = runner.tokens(row)
        for pair in runner.pairs[first:] + runner.pairs[:first]:
            prediction, seconds = runner.answer(row, pair)
            line = {"row": number, "name": pair.name, "prediction": prediction, "answers": row["answer"], "dataset": f"ruler/{row['task']}"}
            out.write(json.dumps({**line, "seconds": seconds, **tokens}) + "\n")
        out.flush()
        done.append(row)
    return done


def summary(runner, given, rows, done):
    """What run.json says."""
    on_gpu = runner.on_gpu
    return {
        "versions": versions(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "dtype": given.dtype,
        "attention": runner.attention,
        "ends": runner.ends,
        "loading_s": runner.loading,
        "rows": len(rows),
        "answered": len(done),
        "most_seconds": given.most_seconds,
        "seconds": runner.seconds,
        "gpu_bytes": runner.bytes if on_gpu else {},
        "gpu_bytes_reserved": torch.cuda.max_memory_reserved() if on_gpu else 0,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": torch.get_num_threads(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--most-seconds", type=float, default=1e9)
    parser.add_argument("--alike", action="store_true")
    given = parser.parse_args()
    import kvpress  # noqa: F401, which adds the pipeline to those of transformers

    rows = [json.loads(line) for line in open(given.rows)]
    given.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(given, chosen(given.names, given.alike))
    runner.warm_up(rows[0])
    with open(given.out / "answers.jsonl", "w") as out:
        done = run(runner, rows, given.most_seconds, out)
    (given.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in done))
    (given.out / "run.json").write_text(json.dumps(summary(runner, given, rows, done), indent=1) + "\n")
    print(f"{len(done)} of {len(rows)} rows, {len(runner.pairs)} presses: {sum(runner.seconds.values()):.1f} s, loading {runner.loading:.1f} s")


if __name__ == "__main__":
    main()
