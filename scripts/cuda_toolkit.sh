#!/usr/bin/env bash
# Installs the parts of a CUDA toolkit that compile the kernels, from NVIDIA's Python wheels, for machines without nvcc:
#
#     export CUDA_HOME=$(scripts/cuda_toolkit.sh)
#     cargo build --release --features cuda
#
# Takes a folder as argument; the default is target/cuda-toolkit. It needs 270 MB. No GPU or driver is needed: no CUDA library
# is linked, because the program loads those of the machine that it runs on (libcuda, and libcublas of CUDA 13).
set -euo pipefail

version=13.0.2
folder=${1:-$(dirname "$0")/../target/cuda-toolkit}
fail() { echo "no CUDA toolkit: $*" >&2; exit 1; }

home=$folder/nvidia/cu13
if [ ! -x "$home/bin/nvcc" ]; then
    [ "$(uname -s)" = Linux ] || fail "NVIDIA has wheels of nvcc for Linux alone"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to get one (or set CUDA_HOME)"
    mkdir -p "$(dirname "$folder")"
    # Install beside the folder first, so that an interrupted installation is not taken for a complete one.
    part=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile --retries 3 \
        --target "$part" "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==$version" >"$part/log" 2>&1 ||
        fail "pip cannot install cuda-toolkit $version: $(tail -n 1 "$part/log")"
    [ -x "$part/nvidia/cu13/bin/nvcc" ] || fail "the wheels of cuda-toolkit $version hold no nvidia/cu13/bin/nvcc"
    rm -rf "$folder"
    mv "$part" "$folder"
    chmod 755 "$folder"
fi
cd "$home"
pwd
