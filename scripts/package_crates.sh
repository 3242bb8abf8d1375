#!/usr/bin/env bash
# Makes the packages of all crates as `cargo publish` would send them, into target/package, and checks that a registry takes them: crates.io
# takes 10 MB.
#
#     scripts/package_crates.sh [--verify]     --verify also compiles each from its package
#
# The weights of the built-in model do not compress to 10 MB, so that two packages hold a half each. The halves are cut here, and removed.
set -euo pipefail
cd "$(dirname "$0")/.."

most=$((10 * 1024 * 1024))
verify=--no-verify
[ "${1:-}" != --verify ] || verify=
weights=models/builtin/model.safetensors
first=$(($(stat -c %s "$weights") / 2))
trap 'rm -f models/builtin/weights-[12]/weights.bin' EXIT
head -c "$first" "$weights" > models/builtin/weights-1/weights.bin
tail -c +$((first + 1)) "$weights" > models/builtin/weights-2/weights.bin
target=${CARGO_TARGET_DIR:-target}
rm -f "$target"/package/*.crate
# The halves are not in git.
cargo package --workspace --allow-dirty --quiet $verify
status=0
for file in "$target"/package/*.crate; do
    bytes=$(stat -c %s "$file")
    printf '%9d %s\n' "$bytes" "$(basename "$file")"
    [ "$bytes" -le "$most" ] || { echo "$(basename "$file") has more than $most bytes" >&2; status=1; }
done
exit $status
