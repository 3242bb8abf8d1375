"""The tiny checkpoints that make_golden_models.py makes: their configurations, and how their files are written.

A model has every kind of layer that its family has, and positions beyond every window and trained length that it names.
"""

import dataclasses
import json
from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file

BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def default_rope(theta, **further):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | further}


def old_rope(config):
    """`rope_parameters` written as `rope_theta` and `rope_scaling`, as before transformers 5."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if "original_max_position_embeddings" in config:
        rope.pop("original_max_position_embeddings", None)
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")


def old_qwen3_moe(config):
    """As in Qwen3-MoE: transformers 5 has another name for the number of experts."""
    old_rope(config)
    config["num_experts"] = config.pop("num_local_experts")


def old_phi3(config):
    """As in Phi-3: the scaling's name is under `type`."""
    old_rope(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


def old_olmo3(config):
    """As in OLMo 3: the scaling is that of layers with full attention, which is not written down."""
    rope = config.pop("rope_parameters")["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")


def old_gemma3(config):
    """As in the first Gemma 3 with images: of the text model, only what is not as its class has it."""
    text = config["text_config"]
    rope = text.pop("rope_parameters")["full_attention"]
    text["rope_scaling"] = {"factor": rope["factor"], "rope_type": rope["rope_type"]}
    kept = ["hidden_size", "intermediate_size", "model_type", "num_hidden_layers", "rope_scaling", "sliding_window"]
    kept += ["vocab_size", "head_dim", "max_position_embeddings", "bos_token_id", "eos_token_id"]
    config["text_config"] = {key: text[key] for key in kept}
    config["torch_dtype"] = config.pop("dtype")


@dataclasses.dataclass
class Checkpoint:
    """A model, and what is special about its files."""

    model_type: str
    # What of the text model's configuration differs from BASE.
    changes: dict
    dtype: str = "float16"
    # Respells the saved config.json, in place.
    respelled: Callable[[dict], None] | None = None
    shard_size: str | None = None
    # Keys of a configuration that holds the text model's as `text_config`.
    wrapper: dict | None = None
    # Names of tensors as published, or as transformers 5 has them in memory.
    published_names: bool = True
    # Size of weights of the embedding table. If it is large and also the output matrix, each token is followed by itself.
    embedding: float = 0.3
    # Whether experts are stored as blocks of 32 numbers of 4 bits.
    mxfp4: bool = False

    def config(self):
        text = BASE | self.changes
        if self.wrapper is None:
            return self.model_type, text
        wrapper = {key: value for key, value in self.wrapper.items() if key != "model_type"}
        return self.wrapper["model_type"], wrapper | {"text_config": text | {"model_type": self.model_type}}

    def rewrite(self, folder, seed):
        """Changes files that transformers has saved."""
        path = folder / "config.json"
        config = json.loads(path.read_text())
        if self.respelled:
            self.respelled(config)
        if self.mxfp4:
            store_experts_in_mxfp4(folder / "model.safetensors", seed)
            kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
            config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
        if self.respelled or self.mxfp4:
            path.write_text(json.dumps(config, indent=2) + "\n")


def store_experts_in_mxfp4(path, seed):
    """Replaces matrices of experts, which are stored transposed, by random blocks of 32 numbers.

    Blocks are `[E, rows, columns / 32, 16]`, two 4-bit numbers a byte; a power of two for each is in
    `[E, rows, columns / 32]`.
    """
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(seed)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        of = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)
        tensors[f"{name}_blocks"] = of(0, 256, experts, rows, columns // 32, 16)
        tensors[f"{name}_scales"] = of(122, 124, experts, rows, columns // 32)
    save_file(tensors, path, metadata={"format": "pt"})


SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 16,
    "patch_size": 8,
    "model_type": "siglip_vision_model",
    "vision_use_head": False,
}
GEMMA3 = {
    "model_type": "gemma3",
    "vision_config": SIGLIP,
    "mm_tokens_per_image": 1,
    "image_token_index": 3,
    "tie_word_embeddings": True,
}
PIXTRAL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
    "model_type": "pixtral",
}
MISTRAL3 = {
    "model_type": "mistral3",
    "vision_config": PIXTRAL,
    "image_token_index": 3,
    "tie_word_embeddings": False,
}

SLIDING, FULL = "sliding_attention", "full_attention"

GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "sliding_window": 128,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 256,
        "rope_theta": 150000.0,
    },
}

MODELS = {
    "llama3": Checkpoint(
        "llama",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 256, "rope_theta": 500000.0},
            "eos_token_id": [2, 3],
        },
    ),
    "llama-linear": Checkpoint(
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}, "intermediate_size": 48},
        dtype="float32",
        respelled=old_rope,
    ),
    "llama-dynamic": Checkpoint(
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            "max_position_embeddings": 512,
        },
        dtype="bfloat16",
        respelled=old_rope,
    ),
    "llama-yarn": Checkpoint(
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 256,
                "rope_theta": 10000.0,
            }
        },
        respelled=old_rope,
    ),
    "llama-bias": Checkpoint("llama", {"attention_bias": True, "mlp_bias": True} | default_rope(10000.0)),
    "llama-sharded": Checkpoint("llama", {"num_hidden_layers": 3} | default_rope(10000.0), shard_size="150KB"),
    "mistral": Checkpoint("mistral", {"sliding_window": None} | default_rope(1000000.0), respelled=old_rope),
    "mistral-sliding": Checkpoint("mistral", {"sliding_window": 256} | default_rope(10000.0), respelled=old_rope),
    "mistral3": Checkpoint(
        "mistral", {"head_dim": 32, "sliding_window": None} | default_rope(1e9), wrapper=MISTRAL3
    ),
    "ministral3": Checkpoint(
        "ministral3",
        {
            "head_dim": 32,
            "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "rope_theta": 1000000.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        dtype="bfloat16",
        wrapper=MISTRAL3,
        published_names=False,
    ),
    "mixtral": Checkpoint(
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": None}
        | default_rope(1000000.0),
        respelled=old_rope,
    ),
    "qwen2": Checkpoint("qwen2", {"tie_word_embeddings": True} | default_rope(1000000.0), dtype="bfloat16"),
    "qwen2-sliding": Checkpoint(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 200,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
            "intermediate_size": 48,
        }
        | default_rope(1000000.0),
    ),
    "qwen3": Checkpoint(
        "qwen3", {"tie_word_embeddings": True, "head_dim": 32, "num_key_value_heads": 1} | default_rope(1000000.0)
    ),
    "qwen3-moe": Checkpoint(
        "qwen3_moe",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "intermediate_size": 48,
            "moe_intermediate_size": 24,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        }
        | default_rope(10000000.0),
        dtype="bfloat16",
        respelled=old_qwen3_moe,
    ),
    "qwen3-moe-fused": Checkpoint(
        "qwen3_moe",
        {
            "head_dim": 16,
            "decoder_sparse_step": 2,
            "moe_intermediate_size": 32,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
        }
        | default_rope(1000000.0),
        published_names=False,
    ),
    "phi3": Checkpoint(
        "phi3",
        {"sliding_window": 300, "num_key_value_heads": 4, "pad_token_id": 0} | default_rope(10000.0),
        respelled=old_rope,
    ),
    "phi3-long": Checkpoint(
        "phi3",
        {
            "pad_token_id": 0,
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.0, 1.05, 1.1, 1.25, 1.4, 1.5, 1.6],
                "long_factor": [1.0, 1.1, 1.6, 2.4, 4.0, 7.5, 8.0, 9.0],
            },
        },
        dtype="bfloat16",
        respelled=old_phi3,
    ),
    "phi4-mini": Checkpoint(
        "phi3",
        {
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8192,
            "original_max_position_embeddings": 2048,
            "sliding_window": 262144,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9],
                "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.5, 7.0, 9.0, 12.0, 16.0, 20.0],
            },
        },
        respelled=old_rope,
    ),
    "granite": Checkpoint(
        "granite",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        }
        | default_rope(10000000.0),
        dtype="bfloat16",
        respelled=old_rope,
    ),
    "smollm3": Checkpoint(
        "smollm3",
        {
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "intermediate_size": 64,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
        }
        | default_rope(5000000.0),
        respelled=old_rope,
    ),
    "seed-oss": Checkpoint(
        "seed_oss",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "attention_out_bias": False,
            "intermediate_size": 64,
        }
        | default_rope(10000000.0),
        dtype="bfloat16",
        respelled=old_rope,
    ),
    "glm": Checkpoint(
        "glm",
        {"head_dim": 16, "attention_bias": True, "pad_token_id": 0}
        | default_rope(10000.0, partial_rotary_factor=0.5),
        respelled=old_rope,
    ),
    "glm4": Checkpoint(
        "glm4",
        {"head_dim": 32, "num_key_value_heads": 1, "attention_bias": False, "intermediate_size": 64, "pad_token_id": 0}
        | default_rope(10000.0, partial_rotary_factor=0.5),
        dtype="bfloat16",
    ),
    "olmo2": Checkpoint("olmo2", default_rope(500000.0), respelled=old_rope),
    "olmo3": Checkpoint(
        "olmo3",
        {
            "layer_types": [SLIDING, FULL],
            "sliding_window": 128,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 256,
                    "attention_factor": 1.2079441541679836,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                },
            },
        },
        dtype="bfloat16",
        respelled=old_olmo3,
    ),
    "gemma2": Checkpoint(
        "gemma2",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "sliding_window": 128,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 6.0,
        }
        | default_rope(10000.0),
        embedding=0.12,
        respelled=old_rope,
    ),
    "gemma3": Checkpoint(
        "gemma3_text",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "layer_types": [SLIDING, FULL, SLIDING],
            "sliding_window": 128,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
        embedding=0.12,
        dtype="bfloat16",
    ),
    "gemma3-wrapped": Checkpoint(
        "gemma3_text",
        {
            "rms_norm_eps": 1e-6,
            "head_dim": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_hidden_layers": 6,
            "intermediate_size": 16,
            "sliding_window": 64,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
        embedding=0.12,
        dtype="bfloat16",
        respelled=old_gemma3,
        wrapper=GEMMA3,
    ),
    "gpt-oss": Checkpoint("gpt_oss", GPT_OSS, dtype="bfloat16"),
    "gpt-oss-mxfp4": Checkpoint("gpt_oss", GPT_OSS, dtype="bfloat16", mxfp4=True, respelled=old_rope),
}
