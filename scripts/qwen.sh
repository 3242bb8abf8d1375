#!/usr/bin/env bash
# Which method is safe at which budget, for a pretrained model on RULER: scripts/qwen.sh OUT [PROGRAM]
#
# Qwen2.5-Coder-0.5B-Instruct in GGUF, quantised to Q4_K_M, is downloaded to OUT/model once (scripts/fetch_model.sh). `full` and ten methods, each
# at a budget of 5, 10 and 20 % of the context, then answer RULER's 13 tasks. PROGRAM is spattn (./target/release/spattn). LENGTH is that of
# the prompts (4K), EXAMPLES says how many questions a task has (20), DEVICE where to compute (cuda).
set -euo pipefail

out=${1:?give a folder for the model and the results}
program=${2:-./target/release/spattn}

mkdir -p "$out"
model=model/$(basename "$("$(dirname "$0")/fetch_model.sh" qwen2.5-coder-0.5b "$out/model")")
out=$(realpath "$out") program=$(realpath "$program")

methods=()
for method in topk magicpig double_sparsity loki hip quest pqcache infllm snapkv streaming_llm; do
    methods+=(-m "$method:density={0.05,0.1,0.2}")
done
cd "$out"
common=(--model "$model" --device "${DEVICE:-cuda}" --quiet)
(exec -a spattn "$program" calibrate "${common[@]}" -m double_sparsity -m loki)
(exec -a spattn "$program" eval "${common[@]}" -t ruler -l "${LENGTH:-4K}" -n "${EXAMPLES:-20}" "${methods[@]}" --out "ruler-${LENGTH:-4K}")
