#!/usr/bin/env python3
"""The table of a race, from what race.sh left in a folder.

    python3 scripts/race/table.py OUT [--program spattn] [--alike]

Both sides' answers are scored by `spattn score`. An interval is Clopper and Pearson's for the sum of scores out of so many examples, at 95 %,
which for scores between 0 and 1 is rather too wide. Needs scipy.
"""

import argparse
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

from pairs import ONE, chosen
from scipy.stats import beta

ABSENT = "–"


# ---- intervals ----


def interval(scores):
    """Clopper and Pearson's 95 % interval for the mean of scores from 0 to 1."""
    right, n = sum(scores), len(scores)
    wrong = n - right
    low = beta.ppf(0.025, right, wrong + 1) if right > 1e-9 else 0.0
    high = beta.ppf(0.975, right + 1, wrong) if wrong > 1e-9 else 1.0
    return low, high


# ---- what was run ----


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def scored(program, path):
    """The score of each line of a file of predictions, from 0 to 1."""
    command = [program, "score", str(path), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["rows"]


def theirs(out, program):
    """Of each pair, by row: prediction, score, seconds and tokens."""
    path, found = out / "theirs/answers.jsonl", {}
    for line, score in zip(lines_of(path), scored(program, path)):
        found.setdefault(line["name"], {})[line["row"]] = {**line, "score": score}
    return found


class Ours:
    """A run of spattn, with the pairs that it answered."""

    def __init__(self, out, name, pairs, program):
        self.path, self.seconds = out / name, float((out / f"{name}.seconds").read_text())
        self.log, self.mib = (out / f"{name}.log").read_text(), memory(out, name)
        self.failed = "records. " not in self.log
        self.answers = {} if self.failed else self.by_row(pairs, program)
        rows = len(lines_of(out / "theirs/rows.jsonl"))
        # A run that was stopped writes what it has.
        self.failed |= any(len(self.answers.get(pair.name, {})) < rows for pair in pairs)
        # Without loading and writing tables.
        spent = re.search(r"records\. ([\d.]+) s: ", self.log)
        self.answering = float(spent.group(1)) if spent else float("nan")

    def by_row(self, pairs, program):
        """Of each pair, by row: prediction, score and tokens. Rows of a task are numbered in the order of the file."""
        names = self.names(pairs)
        places, seen = {}, Counter()
        for row, line in enumerate(lines_of(self.path.parent / "theirs/rows.jsonl")):
            places[line["task"], seen[line["task"]]] = row
            seen[line["task"]] += 1
        path, found = self.path / "samples.jsonl", {}
        for record, score in zip(lines_of(path), scored(program, path)):
            row = places[record["task"].split("/")[-1], record["sample"]]
            found.setdefault(names[record["method"], record["params"]], {})[row] = {**record, "score": score}
        return found

    def names(self, pairs):
        """The pair of each method and its parameters, by what was asked for."""
        manifest = json.loads((self.path / "manifest.json").read_text())
        ran = [(method["method"], method["params"]) for method in manifest["methods"]]
        asked = [spec for spec in manifest["config"]["methods"] if spec != "full"]
        of_spec = {pair.spec: pair.name for pair in pairs}
        named = zip([method for method in ran if method[0] != "full"], asked, strict=True)
        return {("full", ""): "full"} | {method: of_spec.get(spec, spec) for method, spec in named}

    def gpu(self):
        """What it said of the GPU's memory."""
        found = re.search(r"GPUs?: ([\d.]+) GB", self.log)
        return f"{found.group(1)} GB" if found else ABSENT


def memory(out, name):
    """The most memory of the GPU that was taken while a command ran, beyond what was taken before; in GB, None if it was not read."""
    path = out / f"{name}.mib"
    read = [int(line) for line in path.read_text().split() if line.isdigit()] if path.exists() else []
    return (max(read) - read[0]) * 2**20 / 1e9 if read else None


# ---- the table ----


def runs_of(out, names, pairs, program):
    """The runs of these names that were made to their end."""
    runs = [Ours(out, f"ours-{name}", pairs, program) for name in names if (out / f"ours-{name}.seconds").exists()]
    return [run for run in runs if not run.failed]


def percent(scores):
    low, high = interval(scores)
    return f"{100 * sum(scores) / len(scores):.1f} [{100 * low:.0f} {100 * high:.0f}]"


def seconds(value):
    return ABSENT if value is None else f"{value:.1f}"


def times(theirs, ours):
    return ABSENT if theirs is None or not ours else f"{theirs / ours:.1f}"


def share(flags):
    flags = list(flags)
    return f"{100 * sum(flags) / len(flags):.0f}"


def row_of_table(pair, theirs, ours, their_seconds, alone):
    """One method: scores of both, what they share, and times."""
    rows = sorted(theirs)
    mine = [ours[row] for row in rows]
    other = [theirs[row] for row in rows]
    same_score = share(abs(a["score"] - b["score"]) < 1e-9 for a, b in zip(other, mine))
    same_answer = share(a["prediction"].strip() == b["prediction"].strip() for a, b in zip(other, mine))
    scores = [percent([answer["score"] for answer in side]) for side in (other, mine)]
    cells = [pair.name, pair.likeness, *scores, same_score, same_answer, seconds(their_seconds), seconds(alone), times(their_seconds, alone)]
    return "| " + " | ".join(cells) + " |"


def tokens_agree(theirs, ours):
    """How many rows have the same numbers of tokens before and in the question on both sides, and how many are there."""
    pairs = [(answer, ours[row]) for row, answer in theirs.items()]
    same = sum(
        their["context_tokens"] == our["prefix_tokens"] and their["context_tokens"] + their["question_tokens"] == our["prompt_tokens"]
        for their, our in pairs
    )
    return same, len(pairs), sum(their["as_a_whole"] for their, _ in pairs)


def gigabytes(value):
    return ABSENT if not value else f"{value:.1f} GB"


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def total(what, their, loading, runs):
    """One method, or all: answering alone, and with the model's loading."""
    rows = []
    for extra, how, of_run in [(0.0, "answering", "answering"), (loading, "with loading the model", "seconds")]:
        our = mean(getattr(run, of_run) for run in runs)
        rows.append(f"| {what}, {how} | {seconds(their + extra)} | {seconds(our)} | {times(their + extra, our)} |")
    return rows


def totals(run, alone, together, copies):
    """Rows for one method and for all."""
    one, every, loading = run["seconds"][ONE.name], sum(run["seconds"].values()), run["loading_s"]
    all_of_them = f"`full` and {len(run['seconds']) - 1} methods"
    rows = ["| | theirs, s | ours, s | ours is so many times as fast |", "|---|---|---|---|"]
    rows += total(f"`{ONE.name}` alone", one, loading, alone)
    rows += total(all_of_them, every, loading, together)
    return rows + (total(f"{all_of_them}, ours with several copies of the model", every, loading, copies) if copies else [])


def facts(run, agreement, together, alone, out):
    """What was run, on what, and how much memory it took."""
    same, rows, whole = agreement
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    program = json.loads((together[-1].path / "manifest.json").read_text())["program"]
    most = max(run["gpu_bytes"].values(), default=0) / 1e9
    stopped = "" if run["answered"] == run["rows"] else f", in the {run['most_seconds']:.0f} s that theirs was given; ours is of the same rows"
    lines = [
        f"- Rows: {run['answered']} of {run['rows']}{stopped}. Tokens before and in the question are as many on both sides in {same} of {rows}; "
        f"context and question together have the tokens of both apart in {whole} of {rows}.",
        f"- Device: {run['device']}; {run['dtype']}; attention of theirs: {run['attention']}. {versions}. spattn {program['version']} ({program['commit']}).",
        f"- Theirs: one process, the model loaded once ({run['loading_s']:.1f} s), each press warmed up before it counts; the time of its calls of the pipeline. "
        "Ours: one command for all, which reads each prompt once; and one command for each method alone.",
    ]
    if most:
        lines.append(
            f"- GPU memory, theirs: {most:.1f} GB allocated, {run['gpu_bytes_reserved'] / 1e9:.1f} GB reserved by PyTorch, "
            f"{gigabytes(memory(out, 'theirs'))} taken of the GPU; ours: {together[-1].gpu()} allocated, {gigabytes(together[-1].mib)} taken for all "
            f"together, {gigabytes(alone[0].mib if alone else None)} for `{ONE.name}` alone."
        )
    else:
        peaks = [re.search(r"Peak memory ([\d.]+ GB)", each.log) for each in together[-1:]]
        lines.append(f"- Memory, theirs: {run['peak_bytes'] / 1e9:.1f} GB; ours: {peaks[0].group(1) if peaks[0] else ABSENT} for all together.")
    return lines


def differences(pairs):
    """A line for each method that is not the same in all."""
    methods = {pair.name.split()[0]: pair for pair in pairs if pair.differs}
    return [f"- `{method}` ({pair.likeness}): {pair.differs}." for method, pair in methods.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", default="spattn")
    parser.add_argument("--alike", action="store_true")
    given = parser.parse_args()
    out, pairs = given.out, chosen([], given.alike)
    run = json.loads((out / "theirs/run.json").read_text())
    their = theirs(out, given.program)

    together = runs_of(out, ["all-1", "all-2"], pairs, given.program)
    copies = runs_of(out, ["copies"], pairs, given.program)
    alone = {pair.name: runs_of(out, [f"alone-{pair.name.replace(' ', '-')}"], [pair], given.program) for pair in pairs}
    if not together:
        raise SystemExit(f"spattn did not answer with all methods: {out}/ours-all-1.log says why")

    print(f"# RULER by transformers with kvpress and by spattn: {run['answered']} rows\n")
    print("\n".join(totals(run, alone[ONE.name], together, copies)) + "\n")
    print("| method | algorithm | score of theirs, % | of ours, % | same score, % | same answer, % | theirs, s | ours alone, s | times |")
    print("|---|---|---|---|---|---|---|---|---|")
    answers = together[-1].answers
    for pair in pairs:
        own = mean(each.answering for each in alone[pair.name])
        print(row_of_table(pair, their[pair.name], answers[pair.name], run["seconds"][pair.name], own))
    print()
    print("\n".join(facts(run, tokens_agree(their["full"], answers["full"]), together, alone[ONE.name], out)))
    print("\n".join(differences(pairs)))


if __name__ == "__main__":
    main()
