#!/usr/bin/env bash
# Plants faults one at a time in crates/attention and src/eval (cargo-mutants), and says which ones the unit tests notice.
#
#     scripts/mutants.sh [i/n] [FOLDER]              the i-th of n shards (from 0; default 0/1: all)
#     scripts/mutants.sh sample N [SEED] [FOLDER]    N faults drawn at random, of each file in proportion to how many it has
#
# Results are in FOLDER (target/mutants), in `i-of-n` or `sample-N-SEED`: survivors.txt has the faults that no test noticed, one
# a line as `file:line:column: what was changed`, and attention/ and eval/ have cargo-mutants' own lists and logs. The last
# lines printed are the shares caught of those that could be built. Lists of several shards are put together by `sort -u`. A
# whole run is thousands of builds and takes days: shards and samples are for that. The exit status is 0 however many survive
# (1 if the tests fail without a fault, or nothing could be judged).
#
# cargo-mutants is installed if it is missing. Faults in crates/attention are judged by the tests of that crate, those in
# src/eval by the tests of the program under `eval`: a survivor may still be noticed by a test further off, or change nothing that can be
# observed. Each is worth a look, and a test or a word in the code. docs/mutants.md has those that were looked at.
#
# MUTANTS_JOBS    builds at a time (1)
# MUTANTS_TIMEOUT seconds for the tests of one fault (600)
# MUTANTS_MEMORY  GiB of addresses that one process may have (16): some faults ask for all there is
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."

usage() {
    echo "usage: scripts/mutants.sh [i/n] [FOLDER], with i from 0 to n - 1; or scripts/mutants.sh sample N [SEED] [FOLDER]" >&2
    exit 2
}

if [ "${1:-}" = sample ]; then
    size=${2:-} seed=${3:-1} out=${4:-target/mutants}
    [[ $size =~ ^[1-9][0-9]*$ && $seed =~ ^[0-9]+$ ]] || usage
    what="sample $size of seed $seed" folder=$out/sample-$size-$seed shard=0/1
else
    size='' shard=${1:-0/1} out=${2:-target/mutants}
    [[ $shard =~ ^([0-9]+)/([0-9]+)$ ]] && ((10#${BASH_REMATCH[1]} < 10#${BASH_REMATCH[2]})) || usage
    what="shard $shard" folder=$out/${shard/\//-of-}
fi
command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked

# This package is hardly optimised, and a change compiles only what it touches: building is what takes the time. Without any
# optimisation the tests take ten times as long, and with the usual step over all units when linking (lto) each build does.
# cargo-mutants copies the tree for each part; dependencies are built once for all of them.
export CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_INCREMENTAL=1
mkdir -p "$folder"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(cd "$out" && pwd)/build}
export CARGO_TARGET_DIR
ulimit -v $((${MUTANTS_MEMORY:-16} << 20))

# Where the part $1 lies, which package it is of, and which of that package's unit tests judge it.
folder_of() { [ "$1" = attention ] && echo crates/attention/src || echo src/eval; }
package_of() { [ "$1" = attention ] && echo spattn-attention || echo spattn; }
tests_of() { [ "$1" = attention ] && echo "" || echo "eval::"; }

# `cargo mutants` for the part $1 with further options.
mutants() {
    cargo mutants --package "$(package_of "$1")" --file "$(folder_of "$1")/**/*.rs" --exclude '**/tests.rs' --exclude '**/*_tests.rs' "${@:2}"
}

# N lines of those read, by a seed: files in a random order, each one's lines in a random order, and of all that every n-th.
draw() {
    sort -t: -k1,1R -k2R --random-source=<(yes "$2") |
        awk -v n="$1" '{ line[NR] = $0 } END { for (i = 0; i < n && n <= NR; i++) print line[int((i + 0.5) * NR / n) + 1] }'
}

# Lines of a list of outcomes, none if there is no such list.
lines() {
    if [ -f "$1" ]; then grep -c . "$1" || true; else echo 0; fi
}

# The share of $2 and $3 that $2 is, for a reader; $1 says of what.
share() {
    echo "$1: $2 of $(($2 + $3)) faults caught ($((100 * $2 / ($2 + $3))) %)"
}

if [ -n "$size" ]; then
    for part in attention eval; do mutants "$part" --list; done | sort >"$folder/all.txt"
    draw "$size" "$seed" <"$folder/all.txt" | sort >"$folder/drawn.txt"
fi

caught=0 missed=0 unbuilt=0
: >"$folder/survivors.txt"
for part in attention eval; do
    lists=$folder/$part/mutants.out
    options=()
    if [ -n "$size" ]; then
        # All others count as caught before. A pattern of names would do but for faults in fields, which no pattern leaves out.
        rm -rf "$folder/$part"
        mkdir -p "$lists"
        comm -23 "$folder/all.txt" "$folder/drawn.txt" >"$lists/caught.txt"
        options=(--iterate)
    fi
    # 0: all caught; 2: some missed; 3: some timed out, which is noticed too. Others are errors of the run itself.
    status=0
    mutants "$part" "${options[@]}" \
        --shard "$shard" --sharding round-robin --jobs "${MUTANTS_JOBS:-1}" --timeout "${MUTANTS_TIMEOUT:-600}" \
        --no-shuffle --output "$folder/$part" \
        --cargo-arg=--release --cargo-arg=--config --cargo-arg="profile.release.package.$(package_of "$part").opt-level=1" \
        -- --lib -- "$(tests_of "$part")" || status=$?
    case $status in
    0 | 2 | 3) ;;
    *)
        echo "cargo mutants failed on $(folder_of "$part") with status $status; its logs are in $folder/$part" >&2
        exit 1
        ;;
    esac
    noticed=$(($(lines "$lists/caught.txt") + $(lines "$lists/timeout.txt")))
    survived=$(lines "$lists/missed.txt")
    if ((noticed + survived > 0)); then share "$(folder_of "$part")" "$noticed" "$survived"; fi
    caught=$((caught + noticed)) missed=$((missed + survived))
    unbuilt=$((unbuilt + $(lines "$lists/unviable.txt")))
    if [ -f "$lists/missed.txt" ]; then cat "$lists/missed.txt" >>"$folder/survivors.txt"; fi
done

if ((caught + missed == 0)); then
    echo "no fault of $what could be judged" >&2
    exit 1
fi
echo "$(share "$what" "$caught" "$missed"), $unbuilt could not be built; survivors: $folder/survivors.txt"
