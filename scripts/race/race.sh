#!/usr/bin/env bash
# RULER by transformers with kvpress and by spattn, on the same rows, model file and GPU: scripts/race/race.sh OUT MODEL [PROGRAM [PYTHON]]
#
# OUT gets the rows, what both answered, and table.md. MODEL is a GGUF file, a folder or a hub id. PROGRAM is spattn (./target/release/spattn);
# PYTHON has kvpress, a transformers that it accepts, scipy, and gguf for a GGUF file (python3). LENGTH is that of the prompts (16K), EXAMPLES says how
# many rows a task has (1), TASKS names some of RULER's tasks (all 13 with DATA, without it the 11 that need none), DATA is a folder for `--data`.
# DEVICE is cuda or cpu, DTYPE bf16, f16 or f32. GIVEN has more flags for `spattn eval` (--dequantise: weights in DTYPE, as transformers has them).
#
# kvpress answers first, in one process. MOST is the time that it may take (240 seconds): no row is begun that would not be done by then, and
# spattn answers the rows that kvpress has answered: with all methods in one command, then with each alone, then with all once more. ALL is the
# time for everything (520 seconds), in which the later of these commands may be left out or stopped. ALIKE=1 adds methods that share a name and
# differ; COPIES=4 adds a run of all methods with so many copies of the model on the GPU.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
out=${1:?give a folder for the results} model=${2:?give a model} program=${3:-./target/release/spattn} python=${4:-python3}
device=${DEVICE:-cuda} dtype=${DTYPE:-bf16} given=${GIVEN---dequantise} began=$SECONDS last=0
for package in kvpress scipy; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" ||
        { echo "$python has no package $package: pip install kvpress scipy gguf" >&2; exit 1; }
done
command -v "$program" >/dev/null || { echo "there is no program $program: cargo build --release" >&2; exit 1; }
mkdir -p "$out"
out=$(realpath "$out")
if [[ $program == */* ]]; then program=$(realpath "$program"); fi
if [[ -e $model ]]; then model=$(realpath "$model"); fi
declare -A types=([bf16]=bfloat16 [f16]=float16 [f32]=float32)
alike=() data=()
if [[ -n ${ALIKE:-} ]]; then alike=(--alike); fi
if [[ -n ${DATA:-} ]]; then data=(--data "$DATA"); fi

left() { echo $((began + ${ALL:-520} - SECONDS)); }

# Runs a command; its output, its seconds and the GPU's memory, read five times a second, go to OUT/NAME.log, .seconds and .mib.
watched() {
    local name=$1 start poll='' failed='' from=$SECONDS
    shift
    if [[ $device == cuda* ]] && command -v nvidia-smi >/dev/null; then
        local query=(nvidia-smi -i "${CUDA_VISIBLE_DEVICES:-0}" --query-gpu=memory.used --format=csv,noheader,nounits)
        # The first line is what was taken before.
        "${query[@]}" >"$out/$name.mib" 2>/dev/null || true
        "${query[@]}" -lms 200 >>"$out/$name.mib" 2>/dev/null &
        poll=$!
    fi
    start=$(date +%s.%N)
    "$@" >"$out/$name.log" 2>&1 || failed=yes
    echo "$start $(date +%s.%N)" | awk '{ printf "%.2f\n", $2 - $1 }' >"$out/$name.seconds"
    if [[ -n $poll ]]; then
        kill "$poll" 2>/dev/null || true
        wait "$poll" 2>/dev/null || true
    fi
    last=$((SECONDS - from))
    echo "$name: $(cat "$out/$name.seconds") s${failed:+, failed: $(tail -n 1 "$out/$name.log")}"
}

# Answers the rows with spattn, if there is as much time as the run before took: ours NAME SECONDS DEVICE FLAGS...
ours() {
    local name=ours-$1 expected=$2 where=$3
    shift 3
    if (($(left) < expected + 10)); then
        echo "$name: no time is left"
        return
    fi
    # shellcheck disable=SC2086
    watched "$name" timeout "$(left)" "$program" eval --model "$model" --device "$where" --dtype "$dtype" $given --sparse-from question \
        -t "jsonl:$out/theirs/rows.jsonl:layout=kvpress,task=each" -n 100000 "$@" --out "$out/$name" --overwrite --quiet
}

# shellcheck disable=SC2086
"$python" "$here/rows.py" "$out/rows.jsonl" --program "$program" --model "$model" --length "${LENGTH:-16K}" --samples "${EXAMPLES:-1}" \
    "${data[@]}" ${TASKS:+--task $TASKS}
names=() specs=() together=()
while IFS=$'\t' read -r name spec; do
    names+=("$name") specs+=("$spec") together+=(-m "$spec")
done < <("$python" "$here/pairs.py" "${alike[@]}")

PYTHONUNBUFFERED=1 TQDM_DISABLE=1 watched theirs "$python" "$here/kvpress_run.py" "$out/rows.jsonl" "$out/theirs" --model "$model" \
    --device "$device" --dtype "${types[$dtype]}" --most-seconds "${MOST:-240}" "${alike[@]}"
if [[ ! -e $out/theirs/run.json ]]; then
    tail -n 20 "$out/theirs.log" >&2
    exit 1
fi
ours all-1 0 "$device" "${together[@]}"
all=$last
if [[ -n ${COPIES:-} ]]; then ours copies "$all" "$device:all:$COPIES" "${together[@]}"; fi
last=0
for i in "${!names[@]}"; do
    ours "alone-${names[i]/ /-}" "$last" "$device" -m "${specs[i]}" --no-full
done
ours alone-full "$last" "$device" -m full
ours all-2 "$all" "$device" "${together[@]}"
"$python" "$here/table.py" "$out" --program "$program" "${alike[@]}" >"$out/table.md"
cat "$out/table.md"
