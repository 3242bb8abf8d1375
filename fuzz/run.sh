#!/usr/bin/env bash
# Fuzz one target, and keep the inputs that reach more of its code: fuzz/run.sh TARGET MINUTES
#
# MINUTES are processor time, so that a busy machine fuzzes as much as an idle one. Stops at the first crash, hang of 10 s of wall
# time (SPATTN_FUZZ_HANG sets more seconds for busy machines), or use of 2 GiB; the input is then in fuzz/artifacts/TARGET.
# SPATTN_FUZZ_BIN names a folder with targets that are already built.
set -euo pipefail
cd "$(dirname "$0")"

target=${1:?give a target: $(ls fuzz_targets | sed 's/\.rs//' | xargs)}
minutes=${2:?give minutes of processor time}
if [ -z "${SPATTN_FUZZ_BIN:-}" ]; then
    # cargo-fuzz uses nightly flags, so a stable compiler needs RUSTC_BOOTSTRAP.
    (cd .. && RUSTC_BOOTSTRAP=1 cargo fuzz build -s none "$target")
    SPATTN_FUZZ_BIN=target/$(rustc -vV | sed -n 's/^host: //p')/release
fi
program=$SPATTN_FUZZ_BIN/$target
log=corpus/$target.log
mkdir -p "corpus/$target" "artifacts/$target" "seeds/$target"
limits=(-rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout="${SPATTN_FUZZ_HANG:-10}" -max_len=8192)

nice -n 19 "$program" "corpus/$target" "seeds/$target" "${limits[@]}" -artifact_prefix="artifacts/$target/" \
    -print_final_stats=1 >"$log" 2>&1 &
fuzzer=$!
trap 'kill -INT "$fuzzer" 2>/dev/null' INT TERM
# User and system time of the process, in seconds; empty after it has ended.
spent() { awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / hz }' "/proc/$fuzzer/stat" 2>/dev/null; }
seconds=0
while now=$(spent) && [ -n "$now" ]; do
    seconds=$now
    if awk "BEGIN { exit !($seconds >= $minutes * 60) }"; then kill -INT "$fuzzer"; fi
    sleep 2
done
status=0
wait "$fuzzer" || status=$?
# The exit status of libFuzzer after an interrupt.
[ "$status" = 72 ] && status=0
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
echo "$target: ${runs:-?} executions in $(awk "BEGIN { printf \"%.1f\", $seconds / 60 }") minutes of processor time, status $status"
[ "$status" = 0 ] || { grep -A1 -E 'panicked at|ERROR: libFuzzer' "$log" || true; exit "$status"; }

# Keep the smallest inputs that together reach all code that was reached, beside those of make_seeds.py.
few=$(mktemp -d)
nice -n 19 "$program" -set_cover_merge=1 "$few" "seeds/$target" "corpus/$target" "${limits[@]}" >>"$log" 2>&1
find "seeds/$target" -type f ! -name 'seed-*' ! -name 'found-*' -delete
find "$few" -type f -size -3k -printf '%s %p\n' | sort -n | awk 'NR <= 60 { print $2 }' | xargs -r cp -t "seeds/$target"
rm -r "$few"
