"""Times causal attention through PyTorch's cuDNN backend at the shapes of kernels/tests/prefill_attention.cu.

usage: prefill_attention.py D ROWS [ROWS ...]   bf16, 32 query heads, 8 KV heads
"""

import os
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, KV_HEADS = 32, 8
BUDGET = float(os.environ.get("MILLISECONDS", 700))


def time_rows(d: int, rows: int) -> None:
    q = torch.randn(1, HEADS, rows, d, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, KV_HEADS, rows, d, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(1, KV_HEADS, rows, d, device="cuda", dtype=torch.bfloat16)
    times, spent = [], 0.0
    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for i in range(103):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            end.record()
            end.synchronize()
            if i >= 2:
                spent += start.elapsed_time(end)
                times.append(start.elapsed_time(end))
            if i >= 5 and spent > BUDGET:
                break
    times.sort()
    ms = times[len(times) // 2]
    flops = 4 * 0.5 * rows * rows * d * HEADS
    print(f"cudnn                       d={d:<3} heads {HEADS}/{KV_HEADS} rows {rows:6} first      0: {ms:9.4f} ms "
          f"(best {times[0]:9.4f}) {flops / ms * 1e-9:6.1f} TFLOP/s, {len(times)} launches", flush=True)


if __name__ == "__main__":
    for count in sys.argv[2:]:
        time_rows(int(sys.argv[1]), int(count))
