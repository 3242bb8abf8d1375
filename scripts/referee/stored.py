"""Stored results of the papers' tables and figures, and the records behind them."""

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Item:
    """A table or figure, such as `topk/figure-2`, as it was measured on one model."""

    def __init__(self, name, model, records):
        self.name = name
        self.plan = tomllib.loads((ROOT / f"configs/papers/{name}.toml").read_text())
        self.result = json.loads((ROOT / f"results/papers/{name}/result-real-{model}.json").read_text())
        folder = Path(records or ROOT / "results/papers/runs/real" / model, name)
        with open(folder / "samples.jsonl") as file:
            self.records = [json.loads(line) for line in file]

    def tasks(self):
        return list(dict.fromkeys(record["task"] for record in self.records))

    def sparse_from(self):
        """From which token on methods select: `question` or `prefill`."""
        return self.plan["real"]["sparse_from"]

    def columns(self):
        """Names and methods of the columns."""
        return [(column["name"], column["method"]) for column in self.plan["column"]]

    def cells(self):
        """Means of the row that was measured, by column."""
        (row,) = [row for row in self.result["rows"] if any(row["cells"])]
        return {name: cell["measured"]["mean"] for name, cell in zip(self.result["columns"], row["cells"])}

    def record(self, task, sample, spec):
        (found,) = [r for r in self.records if (r["task"], r["sample"], spec_of(r)) == (task, sample, spec)]
        return found

    def samples(self, task):
        return 1 + max(record["sample"] for record in self.records if record["task"] == task)


def spec_of(record):
    return f"{record['method']}:{record['params']}".rstrip(":")
