#!/usr/bin/env bash
# Plants faults one at a time in crates/attention and crates/eval (cargo-mutants), and says which ones the unit tests notice.
#
#     scripts/mutants.sh [i/n] [FOLDER]              the i-th of n shards (from 0; default 0/1: all)
#     scripts/mutants.sh sample N [SEED] [FOLDER]    N random faults, from each file in proportion to its number of faults
#
# Results are in FOLDER (target/mutants), in `i-of-n` or `sample-N-SEED`: survivors.txt has the faults that no test noticed, one
# in each line as `file:line:column: change`; attention/ and eval/ have cargo-mutants' own lists and logs. The last lines of the
# output are the shares of buildable faults that were caught. Merge the lists of several shards with `sort -u`. A whole run needs
# thousands of builds and takes days, so use shards or samples. The exit status is 0 however many faults survive (1 if the tests
# fail without a fault, or nothing could be judged).
#
# cargo-mutants is installed if it is missing. Faults in crates/attention and crates/eval are judged by the unit tests
# of their crate. Other tests may still notice a survivor, or it may change nothing observable. Each one
# deserves a review, and then a test or a comment in the code. docs/mutants.md has the reviewed ones.
#
# MUTANTS_JOBS    builds at a time (1)
# MUTANTS_TIMEOUT seconds for the tests of one fault (600)
# MUTANTS_MEMORY  GiB of address space for one process (16), because some faults would use all memory
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

# Most of the time goes into building, so this package is built with little optimisation and incrementally. Without optimisation the
# tests would take ten times as long, and with link-time optimisation (lto) each build would. cargo-mutants copies the tree for each
# part; dependencies are built once for all of them.
export CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_INCREMENTAL=1
mkdir -p "$folder"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(cd "$out" && pwd)/build}
export CARGO_TARGET_DIR
ulimit -v $((${MUTANTS_MEMORY:-16} << 20))

# The folder of the part $1, its package, and the package's unit tests that judge it.
folder_of() { echo "crates/$1/src"; }
package_of() { echo "spattn-$1"; }

# `cargo mutants` for the part $1 with further options.
mutants() {
    cargo mutants --package "$(package_of "$1")" --file "$(folder_of "$1")/**/*.rs" --exclude '**/tests.rs' --exclude '**/*_tests.rs' "${@:2}"
}

# N lines of the input, by a seed: the files in random order, each file's lines in random order, and then every n-th line.
draw() {
    sort -t: -k1,1R -k2R --random-source=<(yes "$2") |
        awk -v n="$1" '{ line[NR] = $0 } END { for (i = 0; i < n && n <= NR; i++) print line[int((i + 0.5) * NR / n) + 1] }'
}

# The number of lines in a list of outcomes; 0 without the list.
lines() {
    if [ -f "$1" ]; then grep -c . "$1" || true; else echo 0; fi
}

# Prints $2 as a share of $2 + $3; $1 is the part's name.
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
        # Mark all other faults as caught already. A name pattern cannot exclude faults in fields.
        rm -rf "$folder/$part"
        mkdir -p "$lists"
        comm -23 "$folder/all.txt" "$folder/drawn.txt" >"$lists/caught.txt"
        options=(--iterate)
    fi
    # 0: all caught; 2: some missed; 3: some timed out, which counts as noticed. Other codes are errors of the run itself.
    status=0
    mutants "$part" "${options[@]}" \
        --shard "$shard" --sharding round-robin --jobs "${MUTANTS_JOBS:-1}" --timeout "${MUTANTS_TIMEOUT:-600}" \
        --no-shuffle --output "$folder/$part" \
        --cargo-arg=--release --cargo-arg=--config --cargo-arg="profile.release.package.$(package_of "$part").opt-level=1" \
        -- --lib || status=$?
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
