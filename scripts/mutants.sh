#!/usr/bin/env bash
# Plants faults one at a time in src/attention and src/eval (cargo-mutants), and says which ones the unit tests notice.
#
#     scripts/mutants.sh [i/n] [FOLDER]     the i-th of n shards (from 0; default 0/1: all), results in FOLDER (target/mutants)
#
# FOLDER/SHARD-OF-COUNT/survivors.txt gets the faults that no test noticed, one a line as `file:line:column: what was
# changed`; the last line printed is the share caught of those that could be built. Run on shards of several machines, the
# files are put together by `sort -u`. A whole run is thousands of builds and takes many hours: shards are for that. The exit
# status is 0 however many survive (1 if the tests fail without a fault, or nothing could be judged).
#
# cargo-mutants is installed if it is missing. Faults in src/attention are judged by the tests under `attention`, those in
# src/eval by the tests under `eval`: a survivor may still be noticed by a test further off, or change nothing that can be
# observed. Each is worth a look, and a test or a word in the code.
#
# MUTANTS_JOBS    builds at a time (1)
# MUTANTS_TIMEOUT seconds for the tests of one fault (600)
set -euo pipefail
cd "$(dirname "$0")/.."

shard=${1:-0/1}
out=${2:-target/mutants}
if ! [[ $shard =~ ^([0-9]+)/([0-9]+)$ ]] || ((BASH_REMATCH[1] >= BASH_REMATCH[2])); then
    echo "usage: scripts/mutants.sh [i/n] [FOLDER], with i from 0 to n - 1" >&2
    exit 2
fi
command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked

# Without optimising this package: building is what takes the time. Its dependencies, kernels' crates among them, keep theirs.
export CARGO_PROFILE_RELEASE_DEBUG=0
folder=$out/${shard/\//-of-}
mkdir -p "$folder"

# Lines of a list of outcomes, none if there is no such list.
lines() {
    if [ -f "$1" ]; then grep -c . "$1" || true; else echo 0; fi
}

caught=0 missed=0 unbuilt=0
: >"$folder/survivors.txt"
for part in attention eval; do
    # 0: all caught; 2: some missed; 3: some timed out, which is noticed too. Others are errors of the run itself.
    status=0
    cargo mutants --file "src/$part/**/*.rs" --exclude '**/tests.rs' --exclude '**/*_tests.rs' \
        --shard "$shard" --jobs "${MUTANTS_JOBS:-1}" --timeout "${MUTANTS_TIMEOUT:-600}" \
        --no-shuffle --output "$folder/$part" \
        --cargo-arg=--release --cargo-arg=--config --cargo-arg='profile.release.package.spattn.opt-level=0' \
        -- --lib -- "$part::" || status=$?
    case $status in
    0 | 2 | 3) ;;
    *)
        echo "cargo mutants failed on src/$part with status $status; its logs are in $folder/$part" >&2
        exit 1
        ;;
    esac
    lists=$folder/$part/mutants.out
    caught=$((caught + $(lines "$lists/caught.txt") + $(lines "$lists/timeout.txt")))
    missed=$((missed + $(lines "$lists/missed.txt")))
    unbuilt=$((unbuilt + $(lines "$lists/unviable.txt")))
    if [ -f "$lists/missed.txt" ]; then cat "$lists/missed.txt" >>"$folder/survivors.txt"; fi
done

judged=$((caught + missed))
if ((judged == 0)); then
    echo "no fault of shard $shard could be judged" >&2
    exit 1
fi
echo "shard $shard: $caught of $judged faults caught ($((100 * caught / judged)) %), $unbuilt could not be built; survivors: $folder/survivors.txt"
