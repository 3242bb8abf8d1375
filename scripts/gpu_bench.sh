#!/usr/bin/env bash
# Makes tables of how fast methods are on a GPU: scripts/gpu_bench.sh OUT [PROGRAM [PYTHON]]
#
# OUT gets a folder for each table, as `spattn bench --out` writes it, and log.txt with what was printed. PROGRAM is a build with the
# feature cuda (./target/release/spattn). PYTHON with PyTorch gives the other programs (python3); without it they are left out.
# TABLES names some of the tables (all): batch context small decode llama2 crossover.
set -euo pipefail

out=${1:?give a folder for the tables}
program=${2:-./target/release/spattn}
python=${3:-python3}
mkdir -p "$out"
peers=()
if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then peers=(--peers=gqa --python "$python"); fi

# One selection for the heads of a group, as the papers' kernels for grouped heads have it; hip with half of its keys, too.
methods=(-m streaming_llm -m hash_attention:per=kv_head -m hip:per=kv_head -m hip:per=kv_head,b_sk=2
    -m double_sparsity:per=kv_head -m quest:per=kv_head -m loki:per=kv_head -m topk:per=kv_head)

table() {
    local name=$1
    shift
    if [ -n "${TABLES:-}" ] && [[ " $TABLES " != *" $name "* ]]; then return; fi
    "$program" bench "$@" --device cuda --out "$out/$name" --overwrite --quiet 2>&1 | tee -a "$out/log.txt"
}

: >"$out/log.txt"
# The operators at 128K tokens, eight sequences at once: a layer of Llama-3.1-8B.
table batch attention -c 128K --batch 8 "${methods[@]}" --density 0.0625 --rounds 31 "${peers[@]}"
# One sequence, by context; and the densities between which one chooses.
table context attention -c 8K,32K,128K,512K "${methods[@]}" --density 0.0625 --rounds 21 "${peers[@]}"
table small attention -c 32K --batch 8 "${methods[@]}" --density 0.0156,0.0312,0.0625,0.125,0.25 --rounds 15 "${peers[@]}"
# Whole steps: weights and all 32 layers, as many sequences of 128K as fit beside the indexes; and one of 8K to 128K.
table decode decode --layers 32 -c 128K --batch 6 "${methods[@]}" --density 0.0625 --rounds 9
table crossover decode --layers 32 -c 8K,32K,128K "${methods[@]}" --density 0.0625 --rounds 9
# Llama-2-7B's heads, of which each has keys of its own, as the papers measured.
table llama2 decode --shape llama-2-7b --layers 32 -c 32K --batch 6 "${methods[@]}" --density 0.0625 --rounds 9
