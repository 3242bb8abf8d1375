"""A second implementation, in numpy, of things that spattn computes; compares the results.

    python3 scripts/referee/check.py DIR models/builtin/calibration
    python3 scripts/referee/check.py --model FILE.gguf --data DIR --item topk/figure-2 --item topk/figure-6

The first form is `analyses.py`: five analyses of dumped queries and keys. The second is `pretrained.py`: cells and records of
tables and figures on Qwen2.5-Coder, from the data files up. It also needs the packages `gguf` and `tokenizers`. Records are
looked for in results/papers/runs/real/NAME, or in `--records`.

Prints a line for each number, with both results, and ends with status 1 if they differ.
"""

import argparse
import sys


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("dumped", nargs="*", metavar="DIR", help="a folder of `spattn analyze --dump`, and the calibration")
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
    if given.model:
        import pretrained

        sys.exit(1 if pretrained.check(given) else 0)
    import analyses

    analyses.main(*given.dumped)


if __name__ == "__main__":
    main()
