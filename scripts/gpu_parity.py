#!/usr/bin/env python3
"""Compares runs of the same examples on a GPU and on a CPU: gpu_parity.py --gpu FOLDER... --cpu FOLDER... [--table FILE]

Folders are runs of `spattn eval` or shards of one. Prints `pass` or `FAIL`, a tab, and the measurements: the share of equal texts
(at least 97 %) and the largest difference of a method's mean score, in points (at most 1). --table writes both for each
method and length, as Markdown.
"""

import argparse
import json
import pathlib
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--gpu", nargs="+", required=True)
parser.add_argument("--cpu", nargs="+", required=True)
parser.add_argument("--table")
options = parser.parse_args()


def records(folders):
    """The records of complete lines: a run may still be writing."""
    found = {}
    for folder in folders:
        with open(pathlib.Path(folder) / "samples.jsonl") as lines:
            for line in lines:
                if line.endswith("\n"):
                    r = json.loads(line)
                    found[r["length"], r["method"], r["params"], r["task"], r["sample"]] = r
    return found


gpu, cpu = records(options.gpu), records(options.cpu)
rows = {}
for key in sorted(gpu.keys() & cpu.keys()):
    rows.setdefault(key[:3], []).append((gpu[key], cpu[key]))
same = total = 0
worst, worst_row = 0.0, "none"
lines = ["| length | method | texts the same | mean on the GPU | on the CPU | off by |", "|--:|---|--:|--:|--:|--:|"]
for (length, method, params), pairs in rows.items():
    alike = sum(a["prediction"] == b["prediction"] for a, b in pairs)
    means = [100 * sum(r["score"] for r in side) / len(pairs) for side in zip(*pairs)]
    off = abs(means[0] - means[1])
    same, total = same + alike, total + len(pairs)
    if off > worst:
        worst, worst_row = off, f"{method} at {length}"
    lines.append(f"| {length} | {method} | {alike} of {len(pairs)} | {means[0]:.2f} | {means[1]:.2f} | {off:.2f} |")
if options.table:
    pathlib.Path(options.table).write_text("\n".join(lines) + "\n")
ok = total > 0 and same >= 0.97 * total and worst <= 1.0
share = 100 * same / max(total, 1)
print(
    f"{'pass' if ok else 'FAIL'}\t{same} of {total} predictions as on the CPU ({share:.1f} %, asked: 97); "
    f"mean score of a method off by {worst:.2f} points at most ({worst_row}; asked: 1)"
)
sys.exit(0 if ok else 1)
