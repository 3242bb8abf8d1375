"""Times a prefill of a random Llama-3.1-8B by Hugging Face transformers with cuDNN's attention: gpu_referee.py 8K 32K"""

import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    tie_word_embeddings=False,
    attn_implementation="sdpa",
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
with torch.inference_mode(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    for length in sys.argv[1:]:
        tokens = int(length.rstrip("K")) * 1024
        ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
        times = []
        for _ in range(4 if tokens <= 65536 else 2):
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(ids, logits_to_keep=1, use_cache=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        print(f"prefill {length} {1e3 * min(times[1:]):.1f} ms", flush=True)
