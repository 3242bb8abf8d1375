#!/usr/bin/env bash
# Evaluate a model with one process for each core, and merge the shards into one run.
#
#   evaluate.sh PROGRAM OUT ARGUMENTS...      (arguments of `spattn eval`, without --out and --shard)
#
# Shards that are stopped keep their records, and the same command resumes them. The merged run in OUT has all records so far;
# `PROGRAM eval --out OUT --resume ARGUMENTS...` computes what is missing and writes tables and plots.
set -euo pipefail
program=$1 out=$2
shift 2
shares=${SHARES:-$(nproc)}
mkdir -p "$out" "$out.shares"
merge() {
    cat "$out.shares"/*/samples.jsonl > "$out/samples.jsonl"
    cp "$out.shares/1/manifest.json" "$out/manifest.json"
}
trap 'kill $(jobs -p) 2> /dev/null; wait || true; merge; exit 130' INT TERM
for i in $(seq "$shares"); do
    share=$out.shares/$i
    again=$([ -e "$share/samples.jsonl" ] && echo --resume || true)
    "$program" eval --quiet --threads 1 --shard "$i/$shares" --out "$share" $again "$@" > "$out.shares/$i.log" 2>&1 &
done
wait
merge
wc -l < "$out/samples.jsonl"
