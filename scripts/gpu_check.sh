#!/usr/bin/env bash
# Checks a GPU build on a machine with a GPU but without a compiler: kernels, agreement with the CPU, memory errors, speed.
#
#     scripts/gpu_check.sh pack FILE        on the machine with the toolkit: builds, and packs what is needed into FILE
#     scripts/gpu_check.sh run FILE OUT     on the machine with a GPU: unpacks FILE, runs everything, writes logs to OUT
#
# CHECK_SAMPLES   examples of each task for the comparison with the CPU (2)
# CHECK_LENGTHS   their lengths (4K)
# CHECK_CPU       folder of a run `spattn eval --config parity` on a CPU, instead of running it beside the GPU
# CHECK_CONTEXTS  prompts for times (8K 32K 128K)
# CHECK_SANITIZER most seconds for each of the sanitizer's tools (150)
#
# FILE is a .tar.xz that Python can unpack. A run ends with a table of passed and failed checks. If PyTorch and transformers are
# installed, they time the same shape for comparison; if compute-sanitizer is, it runs the kernels.
set -euo pipefail

pack() {
    cd "$(dirname "$0")/.."
    local file=$1 dir built
    dir=$(mktemp -d)
    cargo build --release --features cuda --bin spattn
    built=$(cargo test --release --features cuda --test gpu --bench gpu --no-run 2>&1 | sed -n 's/.*Executable [^(]*(\(.*\))/\1/p')
    strip -o "$dir/spattn" target/release/spattn
    for program in $built; do
        case $(basename "$program") in gpu-*) [ -e "$dir/tests" ] && strip -o "$dir/bench" "$program" || strip -o "$dir/tests" "$program" ;; esac
    done
    mkdir -p "$dir/golden/gguf"
    cp -r tests/golden/models "$dir/golden/"
    cp tests/golden/gguf/mixed.gguf "$dir/golden/gguf/"
    cp scripts/gpu_check.sh scripts/gpu_parity.py scripts/gpu_referee.py "$dir/"
    tar -C "$dir" -cf - . | xz -T1 --lzma2=preset=1,dict=192MiB >"$file"
    rm -r "$dir"
    ls -l "$file"
}

# The kernels' tests under a tool of compute-sanitizer, in the unpacked folder. The log ends with `clean` if it finished without
# findings.
sanitize() {
    local log=$OUT_DIR/$1.txt
    cd tests_root
    timeout "${CHECK_SANITIZER:-150}" compute-sanitizer --tool "$1" --error-exitcode 9 ../tests --ignored --test-threads=1 \
        products_of_one norms_gates rotation_with decode_attention keys_behind pages_of_rows the_likeliest scores_of bounds_of what_lists lists_of what_keys blocks_of prompts_are short_prompts heavy_hitters signatures_by each_kernel last_rows \
        >"$log" 2>&1 && echo clean >>"$log"
}

run() {
    local file=$1 out
    mkdir -p "$2"
    out=$(cd "$2" && pwd)
    export OUT_DIR=$out
    local dir=${TMPDIR:-/tmp}/gpu_check
    mkdir -p "$dir"
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$file" "$dir"
    cd "$dir"
    mkdir -p tests_root/tests && ln -sfn "$dir/golden" tests_root/tests/golden
    : >"$out/table.txt"
    note() { printf '%-9s %s\n' "$1" "$2" | tee -a "$out/table.txt"; }
    ./spattn doctor | sed -n '/^gpu/p' | tee "$out/doctor.txt"

    (cd tests_root && ../tests --ignored --test-threads=1) >"$out/tests.txt" 2>&1 && status=pass || status=FAIL
    note $status "kernels and the forward pass: $(sed -n 's/^test result: [A-Za-z]*\. //p' "$out/tests.txt")"

    # The sanitizers are slow and hardly use the GPU, so they run while answers are compared.
    local tool tools=()
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            sanitize $tool &
            tools+=($!)
        done
    fi

    # Use an earlier CPU run of the same examples if there is one, because it takes longest.
    if [ -n "${CHECK_CPU:-}" ]; then ln -sfn "$CHECK_CPU" "$out/cpu"; fi
    for device in cuda cpu; do
        [ $device = cpu ] && [ -n "${CHECK_CPU:-}" ] && continue
        ./spattn eval --config parity --device $device -l "${CHECK_LENGTHS:-4K}" -n "${CHECK_SAMPLES:-2}" --out "$out/$device" --overwrite \
            >"$out/$device.txt" 2>&1 || note FAIL "eval --device $device"
    done
    { python3 gpu_parity.py --gpu "$out/cuda" --cpu "$out/cpu" --table "$out/parity.md" || true; } |
        while IFS=$'\t' read -r status what; do note "$status" "$what"; done
    ./spattn eval --device cuda --dtype f32 -t ruler/vt -l 4K -n 3 -m topk:k=64 -m magicpig --out "$out/again" --overwrite >/dev/null 2>&1
    ./spattn eval --device cuda --dtype f32 -t ruler/vt -l 4K -n 3 -m topk:k=64 -m magicpig --out "$out/again2" --overwrite >/dev/null 2>&1
    python3 - "$out" <<'P' && note pass "the same command twice gives the same records" || note FAIL "the same command twice gives other records"
import json, sys
def read(run):
    keep = lambda r: {k: r[k] for k in ["task", "sample", "method", "params", "prediction", "score", "density", "cost1", "cost2"]}
    return sorted((json.dumps(keep(json.loads(l))) for l in open(f"{sys.argv[1]}/{run}/samples.jsonl")))
sys.exit(read("again") != read("again2"))
P

    # Nothing else may run during the timing.
    if [ ${#tools[@]} -gt 0 ]; then
        wait "${tools[@]}" || true
        for tool in memcheck racecheck; do
            status=pass
            grep -q '^clean$' "$out/$tool.txt" || status=FAIL
            note $status "$tool: $(grep -o 'ERROR SUMMARY.*\|RACECHECK SUMMARY.*' "$out/$tool.txt" | tail -1)"
        done
    fi

    ./bench --bench >"$out/kernels.txt" 2>&1 || note FAIL "the bench of kernels"
    for length in ${CHECK_CONTEXTS:-8K 32K 128K}; do
        ./spattn eval --device cuda --random-weights llama-3.1-8b -t ruler/niah_single_2 -l $length -n 3 -m full --sparse-from decode --out "$out/8b-$length" \
            --overwrite >"$out/8b-$length.txt" 2>&1 || note FAIL "llama-3.1-8b at $length"
    done
    # Methods that select on the device, all from one prefill, and `full` alone.
    local rows=(-m 'topk:density={0.015625,0.03125,0.0625,0.125}' -m 'topk:per=kv_head,density={0.015625,0.03125,0.0625,0.125}'
        -m 'quest:density={0.015625,0.03125,0.0625,0.125}' -m 'streaming_llm:density={0.015625,0.03125,0.0625,0.125}'
        -m 'a_shape:density={0.015625,0.03125,0.0625,0.125}')
    local name more
    for name in alone shared; do
        more=()
        if [ $name = shared ]; then more=("${rows[@]}"); fi
        ./spattn eval --device cuda --random-weights llama-3.1-8b -t ruler/niah_single_2 -l 32K -n 2 -m full --sparse-from decode \
            --out "$out/$name" --overwrite "${more[@]}" >"$out/$name.txt" 2>&1 || note FAIL "$name"
    done
    python3 - "$out" <<'P' | while IFS=$'\t' read -r status what; do note "$status" "$what"; done
import re, sys
alone, shared = (float(re.search(r"records\. ([\d.]+) s:", open(f"{sys.argv[1]}/{name}.txt").read()).group(1)) for name in ["alone", "shared"])
print(f"{'pass' if shared < 2 * alone else 'FAIL'}\t21 rows that select on the device at 32K, 8B: {shared / alone:.2f} x full alone (asked: below 2)")
P
    timeout 200 python3 gpu_referee.py ${CHECK_CONTEXTS:-8K 32K 128K} >"$out/referee.txt" 2>&1 || true
    python3 - "$out" ${CHECK_CONTEXTS:-8K 32K 128K} <<'P' | while IFS=$'\t' read -r status what; do note "$status" "$what"; done
import json, re, statistics, sys
out, lengths = sys.argv[1], sys.argv[2:]
referee = dict(re.findall(r"prefill (\w+) ([\d.]+) ms", open(f"{out}/referee.txt").read()))
copy = float(re.search(r"copies ([\d.]+) TB/s", open(f"{out}/doctor.txt").read()).group(1)) * 1e12
for length in lengths:
    rows = [json.loads(l) for l in open(f"{out}/8b-{length}/samples.jsonl")]
    # The first example includes loading the kernels.
    prefill = 1e3 * min(r["prefill_s"] for r in rows)
    step = 1e3 * min(r["decode_s"] / r["steps"] for r in rows)
    tokens = rows[0]["prompt_tokens"]
    limit = 1e3 * (16.06e9 + rows[0]["kv_bytes_per_token"]) / copy
    if length in referee:
        ratio = prefill / float(referee[length])
        print(f"{'pass' if ratio <= 1.15 else 'FAIL'}\tprefill of {tokens} tokens, 8B: {prefill:.0f} ms, {ratio:.2f} x transformers with cuDNN (asked: 1.15)")
    else:
        print(f"-\tprefill of {tokens} tokens, 8B: {prefill:.0f} ms, no referee")
    print(f"{'pass' if step <= 1.3 * limit else 'FAIL'}\ta step of full behind {tokens} tokens, 8B: {step:.2f} ms, {step / limit:.2f} x its byte limit (asked: 1.3)")
P
    echo
    cat "$out/table.txt"
}

case ${1:-} in
pack) pack "${2:?a file to write}" ;;
run) run "${2:?the packed file}" "${3:?a folder for logs}" ;;
*) sed -n '2,14s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
