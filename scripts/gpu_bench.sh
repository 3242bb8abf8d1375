#!/usr/bin/env bash
# Makes tables of how fast methods are on a GPU: scripts/gpu_bench.sh OUT [PROGRAM [PYTHON]]
#
# OUT gets a folder for each table, as `spattn bench --out` writes it, and log.txt with what was printed. PROGRAM is a build with the
# feature cuda (./target/release/spattn). PYTHON with PyTorch gives the other programs (python3); without it they are left out.
# TABLES names some of the tables (all): batch context small drawn evicting index decode llama2 crossover prefill prefill_density prefill_lines prefill_planned prefill_own, and of the papers' settings
# ds_figure5 ds_figure6 hash_figure4 hash_figure4_steps hash_table6 hip_decoding hip_table5 hip_table14 hip_table15 hip_table17 magicpig_figure7 magicpig_table6.
set -euo pipefail

out=${1:?give a folder for the tables}
program=${2:-./target/release/spattn}
python=${3:-python3}
mkdir -p "$out"
# Tables are written from within OUT, because manifests contain the command, and the location of OUT is private.
if [[ $program == */* ]]; then program=$(realpath "$program"); fi
if [[ $python == */* ]]; then python=$(realpath -s "$python"); fi
peers=()
if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then peers=(--peers=gqa --python "$python"); fi
# FlashInfer compiles itself at its first use.
decoders=("${peers[@]}")
if "$python" -c 'import flashinfer' 2>/dev/null; then decoders=("${peers[@]/=gqa/=gqa,flashinfer}"); fi

# One selection for all heads of a group, as in the papers' kernels for grouped heads, except for magicpig, whose heads sample
# separately; hip also with half of its keys.
steps=(-m streaming_llm -m hash_attention:per=kv_head -m hip:per=kv_head -m hip:per=kv_head,b_sk=2
    -m double_sparsity:per=kv_head -m quest:per=kv_head -m loki:per=kv_head -m topk:per=kv_head)
# Its signatures are computed on the host, which takes minutes for the 32 layers of a whole step.
methods=("${steps[@]}" -m lsh_bits:per=kv_head)
# For 32 layers and several sequences, its tables, and keys by channel, would need more memory than there is.
sampling=(-m magicpig:K=10,L=150)
by_channel=(-m sparq:per=kv_head -m sparq)

table() {
    local name=$1
    shift
    if [ -n "${TABLES:-}" ] && [[ " $TABLES " != *" $name "* ]]; then return; fi
    (cd "$out" && exec -a spattn "$program" bench "$@" --device cuda --out "$name" --overwrite --quiet) 2>&1 | tee -a "$out/log.txt"
}

: >"$out/log.txt"
# The operators at 128K tokens, eight sequences at once: a layer of Llama-3.1-8B.
table batch attention -c 128K --batch 8 "${methods[@]}" "${by_channel[@]}" "${sampling[@]}" --density 0.0625 --rounds 31 "${decoders[@]}"
# One sequence, by context; and a range of densities.
table context attention -c 8K,32K,128K,512K "${methods[@]}" "${by_channel[@]}" "${sampling[@]}" --density 0.0625 --rounds 21 "${decoders[@]}"
table small attention -c 32K --batch 8 "${methods[@]}" "${by_channel[@]}" --density 0.0156,0.0312,0.0625,0.125,0.25 --rounds 15 "${peers[@]}"
# Keys that the host clusters after prefill, and samples from exact attention.
table drawn attention -c 32K,128K --batch 1,8 -m topk:per=kv_head -m double_sparsity:per=kv_head -m quest:per=kv_head -m pqcache:per=kv_head,iterations=2 \
    -m pqcache:subspaces=16,bits=4,per=kv_head,iterations=2 -m oracle_sampling:budget=1024 -m streaming_llm --density 0.0625 --rounds 7
# Heavy hitters come from the prompt's attention, which the host computes in advance: seconds at 32K tokens, minutes at 128K.
table evicting attention -c 8K,32K --batch 1,8 -m h2o:per=kv_head -m h2o -m infllm:per=kv_head -m streaming_llm --density 0.0625 \
    --rounds 15 "${peers[@]}"
# Building the index of a layer.
table index index -c 32K,128K "${methods[@]}" "${by_channel[@]}" "${sampling[@]}" --rounds 7
# Whole steps: weights and all 32 layers, as many sequences of 128K as fit beside the indexes; and one of 8K to 128K.
table decode decode --layers 32 -c 128K --batch 6 "${steps[@]}" --density 0.0625 --rounds 9
table crossover decode --layers 32 -c 8K,32K,128K "${steps[@]}" --density 0.0625 --rounds 9
# Llama-2-7B, in which each head has its own keys, as in the papers' measurements.
table llama2 decode --shape llama-2-7b --layers 32 -c 32K --batch 6 "${steps[@]}" --density 0.0625 --rounds 9

# Attention of a whole prompt at one layer, by masks; hip as in its paper, and with one mask for the heads of a group.
table prefill prefill -c 8K,32K,128K -m hip:k=512 -m hip:k=512,per=kv_head -m streaming_llm:window=1024 -m bigbird:blocks=8,per=kv_head \
    --rounds 7 "${peers[@]/=gqa/=gqa,flex}"
# HiP, Table 17: the same, by the number of selected keys.
table hip_table17 prefill -c 32K,128K -m hip:k=512 -m hip:k=1024 -m hip:k=2048 --rounds 7 "${peers[@]}"
# Prefill time by density.
table prefill_density prefill -c 32K -m streaming_llm -m bigbird:per=kv_head -m hip:per=kv_head --density 0.0156,0.0312,0.0625,0.125,0.25 --rounds 7
# Lines that the attention of the last queries chooses.
table prefill_lines prefill -c 8K,32K -m vertical_slash:vertical=1000,slash=1000 -m hip:k=512,vd=true,vertical=1000,slash=1000 --rounds 5
# Masks that the host plans from the attention of the last queries and then uploads.
table prefill_planned prefill -c 8K,32K -m minference -m minference:k=7096,sink=30,local=100 -m flexprefill --rounds 5

# Masks with extra tokens for single rows, which the host lists one by one: hundreds of megabytes to gigabytes for each prompt.
table prefill_own prefill -c 8K,32K -m reformer:bucket=512 -m hyper_attention:sample=256,block=256,min_seq_len=4096 --rounds 3

# The papers' own settings and baselines: PyTorch's scaled_dot_product_attention, with copied KV heads as programs before enable_gqa
# needed, and cuDNN.
baselines=()
if [ ${#peers[@]} -gt 0 ]; then baselines=(--peers=sdpa --python "$python"); fi
# Double Sparsity, Figure 5 (the operator) and 6 a, b (whole steps): a sixteenth of the tokens, Llama-2-7B in f16.
table ds_figure5 attention --shape llama-2-7b --dtype f16 -c 1K,2K,4K,8K,16K --batch 4,32 -m double_sparsity --density 0.0625 --rounds 15 \
    "${baselines[@]}"
table ds_figure6 decode --shape llama-2-7b --dtype f16 --layers 32 -c 2K,4K,8K,16K --batch 4,8 -m double_sparsity --density 0.0625 --rounds 9
# HashAttention, Figure 4: 1/32 of the tokens, Llama-3.1-8B.
table hash_figure4 attention -c 4K,8K,16K,32K,64K,128K,256K -m hash_attention -m hash_attention:per=kv_head --density 0.03125 --rounds 15 \
    "${baselines[@]}"
table hash_figure4_steps decode --layers 32 -c 4K,8K,16K,32K,64K,128K -m hash_attention -m hash_attention:per=kv_head --density 0.03125 \
    --rounds 9
# HashAttention, Table 6: distances of packed bits and inner products, each separately, for 32 heads, each with its own keys.
table hash_table6 attention --shape llama-2-7b --dtype f16 -c 8K,16K,32K,64K,128K,256K -m topk -m lsh_bits:bits=64 -m lsh_bits:bits=128 -m lsh_bits:bits=256 \
    -m lsh_bits:bits=512 --density 0.03125 --rounds 11
# HiP, decoding in Figure 6 and Tables 2 and 3: 32 sequences with 512 selected keys each; and Table 5: whole steps by r_m.
table hip_decoding attention -c 4K,8K,16K,32K,64K,128K --batch 32 -m hip:k=512,r_m=1 -m hip:k=512,r_m=8 --rounds 11 "${baselines[@]}"
table hip_table5 decode --layers 32 -c 32K,128K -m hip:k=512,r_m=1 -m hip:k=512,r_m=2 -m hip:k=512,r_m=4 -m hip:k=512,r_m=8 --rounds 9
# HiP, Table 14: a query after 12K tokens, by the size of key blocks; 96 sequences whose heads have their own keys.
table hip_table14 attention --shape llama-2-7b --dtype f16 -c 12K --batch 96 -m hip:k=512,r_m=1,b_k=1,b_sk=1 -m hip:k=512,r_m=1,b_k=2 -m hip:k=512,r_m=1,b_k=4 \
    -m hip:k=512,r_m=1,b_k=8 --rounds 11 "${baselines[@]}"
# HiP, Table 15: the same for the last 32 rows at once, also by the size of row blocks.
hip15=()
for rows in "b_q=1,b_sq=1" b_q=2 b_q=4 b_q=8 b_q=16 b_q=32; do for keys in "b_k=1,b_sk=1" b_k=2 b_k=4 b_k=8; do hip15+=(-m "hip:k=512,$rows,$keys"); done; done
table hip_table15 prefill --shape llama-2-7b --dtype f16 -c 12K --batch 96 --last 32 "${hip15[@]}" --rounds 7 "${baselines[@]}"
# MagicPIG, Figure 7: (10,150) and others by context; the paper's tables are on the host.
table magicpig_figure7 attention -c 16K,32K,64K,96K,128K -m magicpig:K=10,L=150 -m magicpig:K=9,L=120 -m magicpig:K=8,L=75 --rounds 15 \
    "${baselines[@]}"
# MagicPIG, Table 6: the attention of all its settings.
table magicpig_table6 attention -c 96K -m 'magicpig:K=11,L=300' -m 'magicpig:K=10,L={150,170,220}' -m magicpig:K=9,L=120 -m magicpig:K=8,L=75 --rounds 15
