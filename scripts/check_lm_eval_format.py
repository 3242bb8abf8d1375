#!/usr/bin/env python3
"""Checks the files of `spattn report DIR --format lm-eval` with lm-evaluation-harness itself.

    python3 -m venv venv && venv/bin/pip install lm_eval
    venv/bin/python scripts/check_lm_eval_format.py DIR/lm-eval

lm-eval runs a task of its own with a stand-in for a model. Every field that it writes has to be in our files too, of the same type, but for
those of its own environment. Then its functions read our files: names of files, the table of results, means and standard errors from the
samples, hashes, and the samples as a data set. Exit status 1 and a line for each fault.
"""

import json
import sys
import tempfile
from pathlib import Path

import datasets
from lm_eval.api.metrics import mean_stderr
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import (
    get_file_datetime,
    get_file_task_name,
    get_latest_filename,
    get_results_filenames,
    get_sample_results_filenames,
    hash_string,
    make_table,
    sanitize_model_name,
)

# What lm-eval says of its own installation.
ENVIRONMENT = {"pretty_env_info", "transformers_version", "lm_eval_version", "upper_git_hash"}
# How lm-eval's task file makes prompts from documents, which is not how ours are made.
PROMPTS = {
    "custom_dataset", "test_split", "doc_to_text", "doc_to_target", "unsafe_code", "description", "target_delimiter", "fewshot_delimiter",
    "fewshot_config",
}

faults = []


def check(is_right, what):
    if not is_right:
        faults.append(what)


class StandIn(LM):
    """A model that always gives the same answer."""

    def loglikelihood(self, requests):
        return [(-1.0, False) for _ in requests]

    def loglikelihood_rolling(self, requests):
        return [-1.0 for _ in requests]

    def generate_until(self, requests):
        return ["12" for _ in requests]


def rows(**_):
    rows = [{"input": f"q{i}", "outputs": ["12"], "max_length": 4096} for i in range(3)]
    return {"test": datasets.Dataset.from_list(rows)}


def written_by_lm_eval():
    """The results and the first sample of a run of lm-eval."""
    config = {
        "task": "stand_in",
        "custom_dataset": rows,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{input}}",
        "doc_to_target": "{{outputs}}",
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": [], "max_gen_toks": 8},
        "metadata": {"version": 1.0},
    }
    with tempfile.TemporaryDirectory() as folder:
        tracker = EvaluationTracker(output_path=folder)
        results = simple_evaluate(
            model=StandIn(), tasks=[ConfigurableTask(config=config)], evaluation_tracker=tracker, log_samples=True, limit=2
        )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        tracker.save_results_samples(task_name="stand_in", samples=samples["stand_in"])
        (file,) = Path(folder).glob("*/results_*.json")
        (lines,) = Path(folder).glob("*/samples_*.jsonl")
        return json.loads(file.read_text()), json.loads(lines.read_text().splitlines()[0])


def kind(value):
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def check_fields(ours, theirs, place, left_out=frozenset()):
    """Every field of theirs is in ours, of the same type unless one of them is null."""
    for name, value in theirs.items():
        if name in left_out:
            continue
        check(name in ours, f"{place}: the field `{name}` is missing")
        if ours.get(name) is not None and value is not None and name in ours:
            check(kind(ours[name]) == kind(value), f"{place}: `{name}` is {kind(ours[name])}, not {kind(value)}")


def check_results(file, theirs):
    ours = json.loads(file.read_text())
    place = str(file)
    check_fields(ours, theirs, place, ENVIRONMENT)
    check_fields(ours["config"], theirs["config"], f"{place}: config")
    for task, result in ours["results"].items():
        check_fields(ours["configs"][task], theirs["configs"]["stand_in"], f"{place}: configs", PROMPTS)
        check_fields(ours["n-samples"][task], theirs["n-samples"]["stand_in"], f"{place}: n-samples")
        for name in ("name", "alias", "sample_len"):
            check(name in result, f"{place}: {task} has no `{name}`")
        for name in ("versions", "n-shot", "higher_is_better", "task_hashes"):
            check(task in ours[name], f"{place}: `{name}` has no {task}")
    table = make_table(ours)
    for task in ours["results"]:
        check(f"|{task}" in table, f"{place}: {task} is not in lm-eval's table")
    check(sanitize_model_name(ours["model_name"]) == ours["model_name_sanitized"], f"{place}: the name of the model")
    check(file.parent.name == ours["model_name_sanitized"], f"{place}: the name of the folder")
    return ours, table


def check_samples(file, results, theirs):
    place = str(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    task = get_file_task_name(file.name)
    check(task in results["results"], f"{place}: lm-eval reads the task `{task}`, which has no results")
    data = datasets.load_dataset("json", data_files=str(file), split="train")
    check(len(data) == len(lines), f"{place}: {len(data)} rows of {len(lines)}")
    for line in lines:
        check_fields(line, theirs, place, {"exact_match"})
        check(hash_string(json.dumps(line["doc"], indent=2, ensure_ascii=False)) == line["doc_hash"], f"{place}: doc_hash")
        check(hash_string(line["target"]) == line["target_hash"], f"{place}: target_hash")
        check(all(name in line for name in line["metrics"]), f"{place}: a metric has no value")
    joined = "".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in lines)
    check(hash_string(joined) == results["task_hashes"][task], f"{place}: task_hashes")
    for key, value in results["results"][task].items():
        metric, _, filter = key.partition(",")
        if not filter or metric.endswith("_stderr"):
            continue
        scores = [line[metric] for line in lines if line["filter"] == filter]
        if any(isinstance(score, list) for score in scores):
            continue
        # As lm-eval's RULER, whose scores of other lengths are -1.
        scores = [score for score in scores if score != -1]
        check(abs(sum(scores) / len(scores) - value) < 1e-9, f"{place}: {key} is {value}, its samples say otherwise")
        error = results["results"][task][f"{metric}_stderr,{filter}"]
        expected = mean_stderr(scores) if len(scores) > 1 else "N/A"
        is_same = error == expected if expected == "N/A" else abs(error - expected) < 1e-9
        check(is_same, f"{place}: {metric}_stderr is {error}, not {expected}")
    return len(lines)


def main():
    root = Path(sys.argv[1])
    theirs, their_sample = written_by_lm_eval()
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir()]
    check(folders, f"{root} has no folders")
    for folder in folders:
        files = [file.as_posix() for file in folder.iterdir()]
        result_files, sample_files = get_results_filenames(files), get_sample_results_filenames(files)
        check(len(result_files) + len(sample_files) == len(files), f"{folder}: lm-eval does not know all of its files")
        latest = Path(get_latest_filename(result_files))
        results, table = check_results(latest, theirs)
        check({get_file_task_name(Path(file).name) for file in sample_files} == set(results["results"]), f"{folder}: tasks")
        times = {get_file_datetime(Path(file).name) for file in sample_files}
        check(times == {get_file_datetime(latest.name).replace(".json", "")}, f"{folder}: times differ: {times}")
        count = sum(check_samples(Path(file), results, their_sample) for file in sample_files)
        print(f"{folder.name}: {len(sample_files)} tasks, {count} samples\n{table}")
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(folders)} folders, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
