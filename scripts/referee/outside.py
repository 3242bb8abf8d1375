"""Double Sparsity's selection in numpy, as a method of the program, so that it is the only thing that differs in a run.

    python3 scripts/referee/outside.py MEANS.safetensors RATIO double|single

MEANS is the calibration. `double` selects by scores in double precision; `single` sums in f32 in the program's order. They run beside the
program's own method, whose records `single` must give to the last bit:

    spattn eval ... -m double_sparsity:preset=paper,ratio=0.5,tail=exact --out DIR \\
        -m 'external:"python3 scripts/referee/outside.py MEANS.safetensors 0.5 single",ratio=0.5,sink=0,local=0'
    python3 scripts/referee/check.py --outside DIR
"""

import json
import sys
from pathlib import Path

import numpy as np

from captured import tensors
from labels import Labels, best, channels


def records(folder):
    """Records of Double Sparsity by ratio: the program's own, and those of this script by precision."""
    found = {}
    for record in map(json.loads, Path(folder, "samples.jsonl").read_text().splitlines()):
        ratio = record["params"].partition(",ratio=")[2].partition(",")[0]
        if record["method"] == "double_sparsity":
            found.setdefault((record["sample"], ratio), {})["own"] = record
        if record["method"] == "external":
            precision = record["params"].partition('",')[0].split()[-1]
            found.setdefault((record["sample"], ratio), {})[precision] = record
    return found


def check(folder):
    """Prints a line for each record. Returns how many of f32 are not the program's own to the last bit."""
    differ = 0
    for (sample, ratio), of in records(folder).items():
        own = of["own"]["likelihood"]
        for precision in ("single", "double"):
            other = of[precision]["likelihood"]
            same = other == own and of[precision]["density"] == of["own"]["density"]
            differ += precision == "single" and not same
            tokens = sum(one == two for one, two in zip(own["kl"], other["kl"]))
            mark = "same" if same else "OTHER" if precision == "single" else "near"
            print(
                f"{mark:6}window {sample}, ratio={ratio}, scores in {precision} precision: nll {own['nll']!r} and {other['nll']!r}, "
                f"KL of {own['kl_sum']:.6f} and {other['kl_sum']:.6f}, that of {tokens} of {own['tokens']} tokens alike"
            )
    return differ


def main(path, ratio, precision):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/external"))
    from spattn_external import serve

    means, _ = tensors(path)
    score = {"double": Labels.scores, "single": Labels.scores_in_f32}[precision]

    def prefix(message, arrays):
        keys = arrays["keys"]
        chosen = channels(means, message["layer"], message["kv_head"], keys.shape[1])
        return chosen, Labels.of(keys[:, chosen])

    def step(message, arrays, kept):
        chosen, labels = kept
        count = int(np.ceil(float(ratio) * message["context"]))
        assert count == message["budget"], f"{count} of {message}"
        return best(score(labels, arrays["queries"][:, chosen]), count)

    serve("double_sparsity_numpy", "1", "tokens", prefix, step)


if __name__ == "__main__":
    main(*sys.argv[1:])
