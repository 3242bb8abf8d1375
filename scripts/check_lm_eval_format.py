#!/usr/bin/env python3
"""Checks the files of `spattn report DIR --format lm-eval` with lm-evaluation-harness itself.

    python3 -m venv venv && venv/bin/pip install lm_eval wandb
    venv/bin/python scripts/check_lm_eval_format.py DIR/lm-eval [--zeno lm-evaluation-harness/scripts/zeno_visualize.py]
    venv/bin/python scripts/check_lm_eval_format.py --write-fields tests/golden/lm_eval_fields.json

lm-eval runs a task of its own of each kind with a stand-in for a model. Every field that it writes has to be in our files too, of the same type,
but for those of its own environment. Then its functions read our files: names of files, the table of results, means and standard errors from
the samples, hashes, the samples as a data set, its logger for Weights & Biases (offline, where `wandb` is installed), and the script that uploads
to Zeno (with a client that only looks; needs `zeno-client`). Exit status 1 and a line for each fault. --write-fields writes what fields lm-eval has
and of which types, for a test without Python.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
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


# A task of each kind. Of multiple choice, the documents are the same.
KINDS = {
    "generate_until": {
        "doc_to_target": "{{outputs}}",
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": [], "max_gen_toks": 8},
    },
    "loglikelihood_rolling": {
        "doc_to_target": "{{input}}",
        "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
    },
    "multiple_choice": {
        "doc_to_target": "{{0}}",
        "doc_to_choice": ["12", "13"],
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
}


def written_by_lm_eval(kind):
    """The results and the first sample of a run of lm-eval on a task of a kind."""
    config = {
        "task": "stand_in",
        "custom_dataset": rows,
        "test_split": "test",
        "output_type": kind,
        "doc_to_text": "" if kind == "loglikelihood_rolling" else "{{input}}",
        "metadata": {"version": 1.0},
        **KINDS[kind],
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


def own_fields(kind, results, sample):
    """The fields of lm-eval's files by place, without those of its own environment, its task file and its metrics."""
    metrics = set(sample["metrics"])
    return {
        "results": {name: value for name, value in results.items() if name not in ENVIRONMENT},
        "config": results["config"],
        "configs": {name: value for name, value in results["configs"]["stand_in"].items() if name not in PROMPTS},
        "n-samples": results["n-samples"]["stand_in"],
        "samples": {name: value for name, value in sample.items() if name not in metrics},
    }


def check_results(file, theirs):
    ours = json.loads(file.read_text())
    place = str(file)
    any_kind = theirs["generate_until"]
    check_fields(ours, any_kind["results"], place)
    check_fields(ours["config"], any_kind["config"], f"{place}: config")
    for task, result in ours["results"].items():
        of_kind = theirs[ours["configs"][task]["output_type"]]
        check_fields(ours["configs"][task], of_kind["configs"], f"{place}: configs")
        check_fields(ours["n-samples"][task], of_kind["n-samples"], f"{place}: n-samples")
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
    fields = theirs[results["configs"][task]["output_type"]]["samples"]
    for line in lines:
        check_fields(line, fields, place)
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


def in_memory(line):
    """A sample as lm-eval has it before it is stored: its requests as tuples."""
    return {**line, "arguments": [tuple(request.values()) for request in line["arguments"].values()]}


def check_wandb(folder, results, sample_files):
    """lm-eval's logger for Weights & Biases takes the results and the samples."""
    if importlib.util.find_spec("wandb") is None:
        return print("NOT CHECKED: Weights & Biases, since there is no wandb")
    from lm_eval.loggers import WandbLogger

    samples = {
        get_file_task_name(Path(file).name): [in_memory(json.loads(line)) for line in Path(file).read_text().splitlines()]
        for file in sample_files
    }
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=place)
        logger = WandbLogger(init_args={"project": "check", "mode": "offline", "dir": place})
        logger.post_init(results)
        logger.log_eval_result()
        logger.log_eval_samples(samples)
        check(set(samples) <= set(logger.task_names), f"{folder}: tasks of Weights & Biases")
        logger.run.finish()


class Zeno:
    """A client of Zeno that uploads nothing."""

    uploaded = []

    def __init__(self, key):
        self.key = key

    def create_project(self, name, view, metrics):
        # Perplexities are no means of examples, so lm-eval's script shows none of them.
        return self

    def upload_dataset(self, frame, id_column, data_column, label_column):
        check(frame[id_column].is_unique, "zeno: two examples have one id")
        # Given text is stored only with --keep-prompts.
        empty = frame[data_column].str.len() == 0
        check(not empty.any() or empty.all(), "zeno: some examples have no text")
        self.ids = set(frame[id_column])

    def upload_system(self, frame, name, id_column, output_column):
        check(set(frame[id_column]) == self.ids, f"zeno: {name} has other examples")
        check(not frame.isna().any().any(), f"zeno: {name} lacks values")
        Zeno.uploaded.append(name)


def check_zeno(root, script, folders):
    spec = importlib.util.spec_from_file_location("zeno_visualize", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ZenoClient = Zeno
    os.environ["ZENO_API_KEY"] = "none"
    sys.argv = ["zeno_visualize", "--data_path", str(root), "--project_name", "check"]
    module.main()
    check(set(Zeno.uploaded) == {folder.name for folder in folders}, f"zeno: uploaded {sorted(set(Zeno.uploaded))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", nargs="?", type=Path)
    parser.add_argument("--zeno", type=Path, metavar="SCRIPT")
    parser.add_argument("--write-fields", type=Path, metavar="FILE")
    args = parser.parse_args()
    theirs = {name: own_fields(name, *written_by_lm_eval(name)) for name in KINDS}
    if args.write_fields:
        kinds = {
            name: {place: {field: kind(value) for field, value in fields.items()} for place, fields in places.items()}
            for name, places in theirs.items()
        }
        written = {"lm_eval": importlib.metadata.version("lm_eval"), "kinds": kinds}
        args.write_fields.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
        return
    root = args.dir
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
        count = sum(check_samples(Path(file), results, theirs) for file in sample_files)
        check_wandb(folder, results, sample_files)
        print(f"{folder.name}: {len(sample_files)} tasks, {count} samples\n{table}")
    if args.zeno:
        check_zeno(root, args.zeno, folders)
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(folders)} folders, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
