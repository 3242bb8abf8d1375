"""Times PyTorch on the CPU at the shapes of `cargo bench` (benches/kernels.rs), for ratios on one machine.

python scripts/bench_reference.py [threads]
"""

import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)


def median_ms(run, times=9):
    run()
    seen = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seen.append(time.perf_counter() - start)
    return 1e3 * sorted(seen)[len(seen) // 2]


for name, heads, kv_heads, d in [("builtin", 4, 2, 64), ("llama-3.1-8b", 32, 8, 128)]:
    n = 4096
    q, k, v = (torch.randn(1, h, n, d) for h in (heads, kv_heads, kv_heads))
    # Keys and values are repeated in advance, because the fast path does not support groups on the CPU.
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    ms = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    print(f"prefill_attention/{name}/{n}: {ms:.2f} ms, {n * n / 2 * heads * d * 4 / ms / 1e6:.0f} GFLOP/s")
    n = 16384
    q, k, v = (torch.randn(1, heads, m, d) for m in (1, n, n))
    ms = median_ms(lambda: F.scaled_dot_product_attention(q[:, : heads // kv_heads], k[:, : heads // kv_heads], v[:, : heads // kv_heads]))
    print(f"decode_attention/{name}/full/{n}, one group, f32: {ms:.3f} ms")

x, w = torch.randn(2048, 256), torch.randn(1536, 256)
ms = median_ms(lambda: x @ w.T)
print(f"linear/many/2048x256x1536: {ms:.2f} ms, {2 * 2048 * 256 * 1536 / ms / 1e6:.0f} GFLOP/s")
