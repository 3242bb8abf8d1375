"""Write a checkpoint as a Hugging Face folder: config, bf16 weights, tokenizer, generation config.

  python3 export.py --checkpoint train_data/checkpoint --tokenizer train_data/tokenizer.json --out models/builtin
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

import model as M

NAMES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
         "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}


def full_name(name):
    if name in ("emb", "norm"):
        return {"emb": "model.embed_tokens.weight", "norm": "model.norm.weight"}[name]
    layer, part = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def config(c):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": c.vocab,
        "hidden_size": c.hidden, "intermediate_size": c.ff, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim,
        "hidden_act": "silu", "max_position_embeddings": c.positions, "rms_norm_eps": M.NORM_EPS,
        "rope_theta": c.theta, "rope_parameters": {"rope_type": "default", "rope_theta": c.theta},
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.02,
        "dtype": "bfloat16", "torch_dtype": "bfloat16", "use_cache": True,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    c, P, state = M.read_parameters(args.checkpoint)
    tensors = {full_name(k): v.to(torch.bfloat16).contiguous() for k, v in P.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=1) + "\n")
    write("config.json", config(c))
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "do_sample": False})
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "model_max_length": c.positions, "clean_up_tokenization_spaces": False})
    shutil.copyfile(args.tokenizer, out / "tokenizer.json")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out}: {size / 1e6:.2f} MB in all, after {state['batches']} batches, {state['step']} steps")


if __name__ == "__main__":
    main()
