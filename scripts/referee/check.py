"""A second implementation, in numpy, of things that spattn computes; compares the results.

    python3 scripts/referee/check.py DIR models/builtin/calibration
    python3 scripts/referee/check.py --picks DIR --calibration DIR
    python3 scripts/referee/check.py --outside DIR
    python3 scripts/referee/check.py --measured DIR --model FILE.gguf --text FILE --length 1024 --queries 16
    python3 scripts/referee/check.py --model FILE.gguf --data DIR --item topk/figure-2 --item topk/figure-6

In this order: `analyses.py`, five analyses of dumped queries and keys; `picks.py`, what Double Sparsity selects by such queries and
keys; `outside.py`, the same selection as a method of a run; `measured.py`, two analyses of Qwen2.5-Coder, from a text up; `pretrained.py`,
cells and records of its tables and figures, from the data files up. The last two also need the packages `gguf` and `tokenizers`. Records
are looked for in results/papers/runs/real/NAME, or in `--records`.

Prints a line for each number, with both results, and ends with status 1 if they differ.
"""

import argparse
import sys


def chosen(given):
    """The check that the flags name; None for that of analyses."""
    if given.picks:
        import picks

        return lambda: picks.check(given.picks, given.calibration)
    if given.outside:
        import outside

        return lambda: outside.check(given.outside)
    if given.measured:
        import measured

        return lambda: measured.check(given.measured, given.model, given.text, given.length, given.queries)
    if given.model:
        import pretrained

        return lambda: pretrained.check(given)
    return None


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("dumped", nargs="*", metavar="DIR", help="a folder of `spattn analyze --dump`, and the calibration")
    flags.add_argument("--picks", metavar="DIR", help="a folder of `spattn analyze --dump` with selections of Double Sparsity")
    flags.add_argument("--outside", metavar="DIR", help="a folder of `spattn eval` with `outside.py` as a method")
    flags.add_argument("--measured", metavar="DIR", help="a folder of `spattn analyze entropy geometry --text FILE`")
    flags.add_argument("--text", help="the text that was read")
    flags.add_argument("--length", type=int, help="its tokens")
    flags.add_argument("--queries", type=int, help="those of them whose queries are measured, from the end")
    flags.add_argument("--model", help="a GGUF file of Qwen2")
    flags.add_argument("--data", help="the data folder, with piqa/, mmlu/ and wikitext2/")
    flags.add_argument("--item", action="append", default=[], help="such as topk/figure-2 or magicpig/table-1")
    flags.add_argument("--records", help="the folder with the stored runs of this model")
    flags.add_argument("--calibration", help="the folder with the model's calibrations, for Double Sparsity")
    flags.add_argument("--limit", type=int, default=10**9, help="questions of each task, to try it out")
    flags.add_argument("--skip", type=int, default=0, help="answers to leave out from the front")
    flags.add_argument("--only", action="append", help="of a text, methods that have this in their names, such as ratio=0.5")
    flags.add_argument("--windows", type=int, default=1, help="windows of a text (each takes minutes)")
    given = flags.parse_args()
    if differ := chosen(given):
        sys.exit(1 if differ() else 0)
    import analyses

    analyses.main(*given.dumped)


if __name__ == "__main__":
    main()
