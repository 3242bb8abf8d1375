#!/usr/bin/env bash
# Installs a wheel as a user would, in a fresh virtual environment, and runs the program where there is neither Rust nor this repository:
#
#     scripts/check_wheel.sh WHEEL
set -euo pipefail

wheel=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$place"
# Of the environment nothing is left but where the programs of the virtual environment are: neither Rust nor the user's settings.
run() { env -i HOME="$place" PATH="$place/venv/bin" "$@"; }
run spattn --version
run spattn eval -q -t ruler/niah_single_2 -l 1K -n 2 -m quest:density=0.25 --out run > table
# It has the model inside: dense attention solves the task.
grep -q '^full .* 100\.0' table || { cat table >&2; exit 1; }
[ "$(wc -l < run/samples.jsonl)" = 4 ] && [ -s run/report.html ] || { ls run >&2; exit 1; }
"$place/venv/bin/pip" uninstall --quiet --yes spattn
if [ -e "$place/venv/bin/spattn" ]; then
    echo "pip left the program behind" >&2
    exit 1
fi
echo "$(basename "$wheel"): installed, ran, removed"
