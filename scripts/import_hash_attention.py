#!/usr/bin/env python3
"""Converts a checkpoint of nets that the authors of HashAttention released to a safetensors file, which spattn can import.

Checkpoints are in the folder `artifacts` of https://github.com/xAlg-ai/HashAttention-1.0 (files of Git LFS): the state of a list of
modules, one for each layer of the model, as `torch.save` writes it. Names and numbers are not changed.

    pip install torch safetensors numpy
    python3 scripts/import_hash_attention.py llama3.1-8b-patch.64K.v1.pt nets.safetensors
    spattn calibrate hash_attention --import nets.safetensors --model meta-llama/Llama-3.1-8B-Instruct --out released
    spattn eval --model meta-llama/Llama-3.1-8B-Instruct --calibration released -m hash_attention:preset=repo,trained=released

Only nets of three layers are supported (files of nets with two layers have `layers2` in their names).
"""

import sys

import torch
from safetensors.torch import save_file


def main(source, target):
    state = torch.load(source, map_location="cpu", weights_only=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, target)
    print(f"{target}: {len(state)} tensors")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
