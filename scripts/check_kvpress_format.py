#!/usr/bin/env python3
"""Checks the files of `spattn report DIR --format kvpress` with kvpress' own evaluation code.

    git clone https://github.com/NVIDIA/kvpress
    python3 scripts/check_kvpress_format.py DIR/kvpress kvpress/evaluation      # needs pandas and PyYAML

Its scorer of RULER has to find the stored metrics in the stored predictions, its configuration has to have the fields of `config.yaml`, and
the names of folders have to be those that it makes. Exit status 1 and a line for each fault.
"""

import ast
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import yaml


def module(path):
    """A file of kvpress as a module, without its package."""
    spec = importlib.util.spec_from_file_location(path.parent.name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def fields(evaluation):
    """The fields of `EvaluationConfig`, in their order. Its file needs torch, so it is read and not run."""
    tree = ast.parse((evaluation / "evaluate.py").read_text())
    (config,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "EvaluationConfig"]
    return [node.target.id for node in config.body if isinstance(node, ast.AnnAssign)]


def own_name(evaluation, config):
    """The name that kvpress' own `get_results_dir` gives to a folder of results."""
    tree = ast.parse((evaluation / "evaluate.py").read_text())
    (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "get_results_dir"]
    scope = {"Path": Path}
    exec(compile(ast.Module([function], []), "evaluate.py", "exec"), scope)
    settings = {name: config.get(name) for name in fields(evaluation)}
    with tempfile.TemporaryDirectory() as folder:
        return scope["get_results_dir"](SimpleNamespace(**settings), Path(folder)).name


def main():
    root, evaluation = Path(sys.argv[1]), Path(sys.argv[2])
    score = module(evaluation / "benchmarks/ruler/calculate_metrics.py").calculate_metrics
    # These are left out where they are not set.
    known = [name for name in fields(evaluation) if name not in ("threshold", "head_compression_ratio")]
    faults, folders = [], [folder for folder in sorted(root.iterdir()) if folder.is_dir()]
    for folder in folders:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        metrics = json.loads((folder / "metrics.json").read_text())
        frame = pd.read_csv(folder / "predictions.csv", keep_default_na=False)
        if list(config) != known:
            faults.append(f"{folder.name}: config.yaml has {list(config)}, kvpress {known}")
        if config["dataset"] == "ruler":
            frame["answer"] = frame["answer"].apply(ast.literal_eval)
            found = score(frame.copy())
            if found != metrics:
                faults.append(f"{folder.name}: metrics.json has {metrics}, kvpress finds {found}")
        name = own_name(evaluation, config)
        if folder.name != name:
            faults.append(f"{folder.name}: kvpress names it {name}")
        if set(frame["compression_ratio"]) != {config["compression_ratio"]}:
            faults.append(f"{folder.name}: the compression ratios differ")
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(folders)} folders, {len(faults)} faults")
    sys.exit(1 if faults or not folders else 0)


if __name__ == "__main__":
    main()
