#!/usr/bin/env bash
# Builds the wheel that is published: for Linux on x86-64 with glibc 2.17 (2012) or later, with the engine for NVIDIA GPUs, which loads the
# driver where there is one.
#
#     scripts/build_wheel.sh [FOLDER]     the wheel goes into FOLDER (target/wheels)
#
# Needs Rust, python3 with pip and the internet, for maturin, zig (the linker that knows old versions of glibc) and, without CUDA_HOME, the
# compiler of CUDA kernels. It compiles everything anew: a quarter of an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-target/wheels}
most=$((60 * 1000 * 1000))
tools=target/wheel-tools
if [ ! -x "$tools/bin/maturin" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check maturin==1.16.0 ziglang==0.17.1
fi
CUDA_HOME=${CUDA_HOME:-$(scripts/cuda_toolkit.sh)}
export CUDA_HOME
rm -f "$out"/spattn-*.whl
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/maturin" build --profile dist --features cuda --zig --compatibility manylinux2014 --out "$out"

wheel=$(echo "$out"/spattn-*.whl)
bytes=$(stat -c %s "$wheel")
echo "$wheel: $((bytes / 1000000)) MB"
if [ "$bytes" -gt "$most" ]; then
    echo "the wheel has more than $((most / 1000000)) MB" >&2
    exit 1
fi
scripts/check_wheel.sh "$wheel"
