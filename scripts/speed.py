"""Times tables of `spattn eval`, and says how far `--dry-run` was off.

    python3 scripts/speed.py --spattn target/release/spattn --device cuda --out speed

Every table is planned and run, `--rounds` times in turns with the others, with random weights (`--random-weights`), which take as long as
trained ones. OUT/speed.csv has a line for each run, OUT/speed.md the medians. What is already in speed.csv is not run again. A table that the
program refuses, as one beyond a model's context, is left out.
"""

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

# The rows of a table: the dense reference, then methods that select in different ways.
METHODS = [
    "full",
    "quest:density=0.0625",
    "double_sparsity:kind=random,density=0.0625",
    "hip:density=0.0625",
    "topk:density=0.0625",
    "streaming_llm:density=0.0625",
    "lsh_bits:density=0.0625",
    "magicpig:K=10,L=150",
    "sparq:density=0.0625",
    "snapkv:density=0.0625",
]
PARTS = ["all", "prefill", "index", "steps"]
TASKS = "ruler/niah_multikey_1,ruler/vt"
TIMES = re.compile(r"records\. (.+?): prefill (.+?), indexes (.+?), steps (.+?), the rest")
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def seconds(text):
    """Seconds of what the program prints as a time: `1.3 s`, `2 min 5 s`, `0.8` (seconds)."""
    numbers = re.findall(r"([\d.]+)\s*(ms|s|min|h)?", text)
    return sum(float(number) * UNITS.get(unit, 1.0) for number, unit in numbers)


def command(options, table, *more):
    """The command of a table."""
    model, length, rows = table
    methods = [part for method in METHODS[:rows] for part in ("-m", method)]
    of_model = ["--model", model] if model == "builtin" or Path(model).exists() else ["--random-weights", model]
    asked = ["-t", TASKS, "-l", str(length), "-n", str(options.examples), "--sparse-from", "decode"]
    return [options.spattn, "eval", "--device", options.device, *of_model, *asked, *methods, *more]


class Refused(Exception):
    """A table that the program does not run: its exit status 2."""


def run(arguments):
    """Runs the program, and returns what it printed on both streams."""
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode == 2:
        raise Refused(done.stderr.strip())
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stderr.strip()}")
    return done.stdout, done.stderr


def planned(options, table):
    """The estimated seconds: of all, of prompts, of indexes, of steps."""
    plan = json.loads(run(command(options, table, "--dry-run", "--json"))[0])[0]
    return [plan["seconds"], plan["prefill_s"], plan["index_s"], plan["steps_s"]], plan["estimated_for"]


def measured(options, table):
    """The measured seconds, without loading the model."""
    out = str(Path(options.out) / "records")
    found = TIMES.search("".join(run(command(options, table, "--out", out, "--overwrite"))))
    if not found:
        sys.exit("the program printed no times")
    _, *parts = [seconds(text) for text in found.groups()]
    return [sum(parts), *parts]


def table_line(table, lines):
    """A line of the page: medians of all rounds, measured and estimated."""
    model, length, rows = table
    of = lambda what: [statistics.median(float(line[f"{what}_{part}_s"]) for line in lines) for part in PARTS]
    took, plan = of("measured"), of("estimated")
    per_example = took[0] / float(lines[0]["examples"])
    cells = [model, f"{int(length):,}", rows, f"{per_example:.2f}", *(f"{part:.2f}" for part in took), f"{plan[0]:.2f}"]
    return "| " + " | ".join(map(str, [*cells, f"{plan[0] / took[0]:.2f}"])) + " |"


def page(known):
    """The table of all that was measured."""
    head = ["model", "length", "rows", "s an example", "all s", "prompts s", "indexes s", "steps s", "estimated s", "estimated / measured"]
    text = "| " + " | ".join(head) + " |\n|---|" + "--:|" * (len(head) - 1) + "\n"
    tables = list(dict.fromkeys((line["model"], line["length"], line["rows"]) for line in known))
    of_table = lambda table: [line for line in known if (line["model"], line["length"], line["rows"]) == table]
    return text + "\n".join(table_line(table, of_table(table)) for table in tables) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spattn", default="target/release/spattn", help="the program")
    parser.add_argument("--device", default="cuda", help="as of spattn eval")
    parser.add_argument("--models", default="llama-3.2-1b,llama-3.1-8b", help="shapes, or files of models")
    parser.add_argument("--lengths", default="4096,16384,65536", help="tokens of a prompt")
    parser.add_argument("--rows", default="1,4,10", help=f"methods of a table, at most {len(METHODS)}")
    parser.add_argument("--examples", type=int, default=2, help="examples of each of the two tasks")
    parser.add_argument("--rounds", type=int, default=3, help="times that each table is planned and run")
    parser.add_argument("--out", default="speed", help="folder for speed.csv and speed.md")
    options = parser.parse_args()

    file = Path(options.out) / "speed.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    known = list(csv.DictReader(file.open())) if file.exists() else []
    names = ["round", "model", "length", "rows", "examples", "on"]
    names += [f"{what}_{part}_s" for what in ("measured", "estimated") for part in PARTS]
    split = lambda text: text.split(",")
    tables = [(m, l, r) for m in split(options.models) for l in split(options.lengths) for r in split(options.rows)]
    for number in range(options.rounds):
        for model, length, rows in tables:
            key = {"round": str(number), "model": model, "length": length, "rows": rows}
            if any(all(line[name] == value for name, value in key.items()) for line in known):
                continue
            table = (model, int(length), int(rows))
            try:
                (estimated, on), took = planned(options, table), measured(options, table)
            except Refused as error:
                print(f"{model} {length} {rows} rows is left out: {error}", flush=True)
                continue
            values = [f"{value:.4f}" for value in took + estimated]
            examples = str(options.examples * len(TASKS.split(",")))
            line = dict(key, examples=examples, on=on.get("gpu") or on["cpu"], **dict(zip(names[6:], values)))
            known.append(line)
            with file.open("w", newline="") as to:
                writer = csv.DictWriter(to, names)
                writer.writeheader()
                writer.writerows(known)
            print(f"{model} {length} {rows} rows: {took[0]:.2f} s, estimated {estimated[0]:.2f} s", flush=True)
    if not known:
        sys.exit("no table was timed")
    text = page(known)
    (file.parent / "speed.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
