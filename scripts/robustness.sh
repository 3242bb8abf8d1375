#!/bin/sh
# Does a model depend on the generator's text and wording? Runs it on sets that each differ from `spattn eval --task ruler`
# in one thing, and prints one line for each task and length:
#   ruler      the reference: the generator's text and words
#   essays     published essays and word lists      (DATA/ruler_assets or DATA/essays, DATA/wordlists)
#   books      haystacks from anywhere in real books                         (DATA/books/*.txt)
#   words      other word lists, same text                                   (DATA/wordlists/*.txt)
#   reworded   other introductions, needles, questions and answer prefixes
#   kv         key-value retrieval, 75 and 140 pairs of uuids                (DATA/kv_retrieval/*.jsonl)
#   official   prepared RULER files                                          (DATA/ruler_ready/4096/*.jsonl)
# Sets whose data are not in DATA are left out, with a message. Existing runs are resumed.
#
#   scripts/robustness.sh MODEL DATA OUT            e.g. scripts/robustness.sh builtin data results/robustness
# SETS (all), SAMPLES (25), LENGTHS ("4096 8192"), METHODS ("full", space-separated specs) and SPATTN may be set in the
# environment.
set -eu
if [ $# -ne 3 ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
model=$1 data=$2 out=$3
: "${SETS:=ruler essays books words reworded kv official}"
: "${SPATTN:=target/release/spattn}" "${SAMPLES:=25}" "${LENGTHS:=4096 8192}" "${METHODS:=full}"

flags="--model $model --samples $SAMPLES --quiet"
for method in $METHODS; do flags="$flags -m $method"; done
sized=""
for length in $LENGTHS; do sized="$sized -l $length"; done
needles="-t ruler/niah_single_2 -t ruler/niah_single_3 -t ruler/niah_multikey_1 -t ruler/niah_multivalue -t ruler/niah_multiquery"

# One set: its name, then flags of `spattn eval`.
run() {
    set_name=$1
    shift
    case " $SETS " in *" $set_name "*) ;; *) return 0 ;; esac
    echo "== $set_name" >&2
    # shellcheck disable=SC2086
    "$SPATTN" eval $flags "$@" --out "$out/$set_name" --resume > "$out/$set_name.txt"
}

# A data folder with only one part of DATA, so that everything else is as in `ruler`.
only() {
    mkdir -p "$out/data/$1"
    ln -sfn "$(cd "$data/$1" && pwd)" "$out/data/$1/$1"
}

left_out() {
    echo "== $1: left out, no $2" >&2
}

mkdir -p "$out"
# shellcheck disable=SC2086
run ruler $sized -t ruler
if [ -e "$data/ruler_assets" ] || [ -e "$data/PaulGrahamEssays.json" ] || [ -e "$data/essays" ]; then
    # shellcheck disable=SC2086
    run essays $sized --data "$data" $needles -t ruler/niah_multikey_2 -t ruler/cwe
else
    left_out essays "$data/PaulGrahamEssays.json"
fi
if [ -e "$data/books" ]; then
    only books
    # shellcheck disable=SC2086
    run books $sized --data "$out/data/books" $needles
else
    left_out books "$data/books"
fi
if [ -e "$data/wordlists" ]; then
    only wordlists
    # shellcheck disable=SC2086
    run words $sized --data "$out/data/wordlists" $needles -t ruler/niah_multikey_2 -t ruler/cwe
else
    left_out words "$data/wordlists"
fi
# shellcheck disable=SC2086
run reworded $sized -t ruler_reworded
for set_name in kv official; do
    case $set_name in
    kv) files="$data/kv_retrieval" ;;
    official) files="$data/ruler_ready/4096" ;;
    esac
    if [ -e "$files" ]; then
        tasks=""
        for file in "$files"/*.jsonl; do tasks="$tasks -t jsonl:$file"; done
        # shellcheck disable=SC2086
        run $set_name $tasks
    else
        left_out $set_name "$files"
    fi
done

python3 - "$out" << 'END' | tee "$out/summary.md"
import csv, glob, os, sys
print("| set | task | tokens | method | n | score % | 95 % |\n|---|---|---:|---|---:|---:|---|")
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*", "summary.csv"))):
    for r in csv.DictReader(open(path, encoding="utf-8")):
        method = f"{r['method']} {r['params']}".strip()
        # One example has no interval.
        ends = [f"{float(r[k]):.0f}" for k in ("ci_low", "ci_high") if r[k]]
        name = os.path.basename(os.path.dirname(path))
        print(f"| {name} | {r['task']} | {r['length'] if r['length'] != '0' else ''} | {method} | {r['n']} "
              f"| {float(r['score']):.1f} | {' to '.join(ends)} |")
END
