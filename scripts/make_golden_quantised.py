"""Makes the golden files that quantised checkpoints are held to; the references are the packages that write these formats.

Regenerate (CPU, some seconds; torch, transformers 5.x, compressed-tensors 0.20, gptqmodel 7.x):
    python scripts/make_golden_quantised.py
Everything goes to tests/golden/quantised/, a folder for each case:

config.json             its `quantization_config` says how the tensors are packed
model.safetensors       packed tensors: random bits, so that every number and zero point occurs
expected.safetensors    f32, under the names of unpacked tensors: what the package makes of the packed ones
model-awq/              tests/golden/models/llama-linear with its layers quantised to AWQ
model-awq-wide/         the same weights, not quantised (F16, which holds them exactly)

| case     | who unpacks it                                                                                  |
|----------|-------------------------------------------------------------------------------------------------|
| fp8-*    | transformers: Fp8Dequantize; with a scale for each row compressed-tensors: FloatQuantizationCompressor |
| *awq*    | gptqmodel: dequantize_gemm, which is AutoAWQ's                                                  |
| gptq-*   | gptqmodel: TorchLinear.dequantize_weight, and its conversion to the first version of the format |
| packed-* | compressed-tensors: PackedQuantizationCompressor; where inputs are ordered, which version 0.20 no longer reads, its unpack_from_int32 |

Packages compute in the type of the scales. They are given scales in f32 here, which files hold in F16 or BF16 without loss, so that
products are not rounded twice. MXFP4 is among the models of make_golden_models.py.
"""

import json
import pathlib
import shutil

import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm, pack_awq
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "quantised"
LLAMA = ROOT / "tests" / "golden" / "models" / "llama-linear"
RANDOM = torch.Generator().manual_seed(7)

E4M3 = torch.float8_e4m3fn


def save_case(name, settings, packed, expected):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}, indent=1) + "\n")
    save_file({key: value.contiguous() for key, value in packed.items()}, folder / "model.safetensors")
    wide = {key: value.to(torch.float32).contiguous() for key, value in expected.items()}
    save_file(wide, folder / "expected.safetensors")


def words(*shape):
    """Words of random bits."""
    return torch.randint(-(2**31), 2**31, shape, generator=RANDOM, dtype=torch.int64).to(torch.int32)


def scales(*shape, dtype=torch.float16):
    """Scales in f32 that `dtype` holds exactly."""
    return (torch.rand(shape, generator=RANDOM) * 0.09 + 0.01).to(dtype).to(torch.float32)


def group_of_input(inputs, size, ordered):
    groups = torch.arange(inputs, dtype=torch.int32) // size
    return groups[torch.randperm(inputs, generator=RANDOM)] if ordered else groups


# --- FP8 ---


def fp8_numbers(*shape):
    """Random numbers without NaN."""
    raw = torch.randint(0, 256, shape, generator=RANDOM, dtype=torch.int64).to(torch.uint8)
    raw[(raw & 0x7F) == 0x7F] = 0x38
    return raw.view(E4M3)


def dequantised_fp8(numbers, scale):
    return Fp8Dequantize(None)._dequantize_one(numbers, scale, torch.float32)


def make_fp8():
    # Every byte, with one scale for the matrix.
    numbers = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(E4M3).reshape(16, 16)
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    one = torch.tensor(0.75)
    parts = {
        "a.weight": numbers,
        "a.weight_scale_inv": one.to(torch.bfloat16),
        "a.activation_scale": one.to(torch.bfloat16),
    }
    save_case("fp8-values", settings, parts, {"a.weight": dequantised_fp8(numbers, one)})

    # Blocks, of which the last are cut on both axes; a bias and an output matrix are not quantised. The package reads whole blocks.
    (outputs, inputs), (rows, columns) = (40, 70), (16, 32)
    grid = scales(3, 3, dtype=torch.float32)
    whole = fp8_numbers(3 * rows, 3 * columns)
    numbers = whole.view(torch.uint8)[:outputs, :inputs].contiguous().view(E4M3)
    bias, head = scales(outputs, dtype=torch.bfloat16), scales(8, 5, dtype=torch.bfloat16)
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [rows, columns],
        "modules_to_not_convert": ["lm_head"],
    }
    parts = {
        "l.q_proj.weight": numbers,
        "l.q_proj.weight_scale_inv": grid,
        "l.q_proj.bias": bias.to(torch.bfloat16),
        "lm_head.weight": head.to(torch.bfloat16),
    }
    unpacked = dequantised_fp8(whole, grid)[:outputs, :inputs]
    save_case("fp8-block", settings, parts, {"l.q_proj.weight": unpacked, "l.q_proj.bias": bias, "lm_head.weight": head})

    # Scales that are powers of two, a byte each.
    numbers = fp8_numbers(6, 8)
    exponents = torch.tensor([[120, 127], [130, 0], [1, 125]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    parts = {"a.weight": numbers, "a.weight_scale_inv": exponents}
    settings = {"quant_method": "fp8", "weight_block_size": [2, 4], "scale_fmt": "ue8m0"}
    save_case("fp8-powers", settings, parts, {"a.weight": dequantised_fp8(numbers, exponents)})

    # A scale for each row.
    numbers, column = fp8_numbers(6, 10), scales(6, 1, dtype=torch.bfloat16)
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(num_bits=8, type="float", strategy="channel"),
        input_activations=QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True),
    )
    state = FloatQuantizationCompressor.decompress({"weight": numbers, "weight_scale": column}, scheme)
    parts = {"a.weight": numbers, "a.weight_scale": column.to(torch.bfloat16)}
    settings = compressed_tensors("float-quantized", scheme)
    save_case("fp8-rows", settings, parts, {"a.weight": state["weight"]})


def compressed_tensors(packing, scheme):
    """Settings as llm-compressor writes them."""
    return {
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
        "format": packing,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


# --- AWQ ---


def make_awq(outputs=24, inputs=48, size=16):
    parts = {"qweight": words(inputs, outputs // 8), "qzeros": words(inputs // size, outputs // 8)}
    scale = scales(inputs // size, outputs)
    unpacked = dequantize_gemm(parts["qweight"], parts["qzeros"], scale, 4, size).T
    parts["scales"] = scale.to(torch.float16)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    packed = {f"l.q_proj.{part}": value for part, value in parts.items()}
    save_case("awq", settings, packed, {"l.q_proj.weight": unpacked})


def quantised(weight, size):
    """Numbers, zero points and scales of 4 bits, to nearest. Scales have 6 bits, so that F16 holds the products."""
    groups = weight.reshape(weight.shape[0], -1, size)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    mantissa, exponent = torch.frexp((high - low) / 15)
    scale = torch.ldexp((mantissa * 64).ceil(), exponent - 6)
    zeros = (-low / scale).round().clamp(0, 15)
    numbers = (groups / scale[..., None]).round().add(zeros[..., None]).clamp(0, 15)
    return numbers.reshape(weight.shape).to(torch.int32), zeros.T.to(torch.int32), scale.T.contiguous()


def make_model(size=16):
    config = json.loads((LLAMA / "config.json").read_text())
    packed, wide = {}, {}
    for name, weight in load_file(LLAMA / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            packed[name] = wide[name] = weight.to(torch.float16)
            continue
        numbers, zeros, scale = quantised(weight, size)
        parts = dict(zip(["qweight", "qzeros"], pack_awq(numbers.T, zeros, 4)))
        unpacked = dequantize_gemm(parts["qweight"], parts["qzeros"], scale, 4, size).T
        assert (unpacked.to(torch.float16).to(torch.float32) == unpacked).all()
        assert (unpacked - weight).abs().max() < weight.abs().max() / 8
        parts["scales"] = scale.to(torch.float16)
        packed |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
        wide[name] = unpacked.to(torch.float16)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    for folder, tensors, own in [
        ("model-awq", packed, config | {"quantization_config": settings}),
        ("model-awq-wide", wide, config),
    ]:
        path = OUT / folder
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        own = own | {"torch_dtype": "float16"}
        (path / "config.json").write_text(json.dumps(own, indent=2) + "\n")
        save_file({key: value.contiguous() for key, value in tensors.items()}, path / "model.safetensors")


# --- GPTQ ---


def make_gptq(outputs=16, inputs=64):
    for name, bits, size, version, ordered, symmetric in [
        ("gptq-4", 4, 16, "gptq", False, False),
        ("gptq-4-second", 4, -1, "gptq_v2", False, False),
        ("gptq-4-symmetric", 4, 32, "gptq", False, True),
        ("gptq-8-ordered", 8, 16, "gptq", True, False),
    ]:
        layer = TorchLinear(
            bits=bits,
            group_size=size,
            sym=symmetric,
            desc_act=ordered,
            in_features=inputs,
            out_features=outputs,
            bias=False,
            pack_dtype=torch.int32,
            register_buffers=True,
        ).eval()
        layer.qweight.copy_(words(*layer.qweight.shape))
        layer.qzeros.copy_(words(*layer.qzeros.shape))
        if symmetric:
            layer.qzeros.fill_(np.uint32(0x88888888).view(np.int32).item())
        layer.scales = scales(*layer.scales.shape)
        layer.g_idx.copy_(group_of_input(inputs, inputs if size == -1 else size, ordered))
        layer.qzero_format(format=2)
        unpacked = layer.dequantize_weight().T
        second = layer.qzeros.clone()
        settings = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": ordered, "sym": symmetric}
        if version == "gptq":
            convert_gptq_v2_to_v1_format_module(layer, layer)
        else:
            settings["checkpoint_format"] = version
        parts = {"qweight": layer.qweight, "qzeros": layer.qzeros.clone(), "scales": layer.scales.to(torch.float16)}
        if ordered or symmetric:
            parts["g_idx"] = layer.g_idx
        if version == "gptq":
            convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)
        assert (layer.qzeros == second).all()
        save_case(name, settings, {f"l.q_proj.{part}": value for part, value in parts.items()}, {"l.q_proj.weight": unpacked})


# --- Integers of compressed-tensors ---


def make_packed():
    for name, bits, outputs, inputs, size, symmetric, ordered in [
        ("packed-4", 4, 12, 40, 20, True, False),
        ("packed-4-zero-points", 4, 12, 40, 20, False, False),
        ("packed-4-ordered", 4, 12, 40, 20, False, True),
        ("packed-8-channel", 8, 6, 30, None, False, False),
    ]:
        strategy = "group" if size else "channel"
        args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=size)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        count, shape = inputs // size if size else 1, torch.tensor([outputs, inputs])
        of_words = lambda numbers: -(-numbers * bits // 32)
        state = {
            "weight_packed": words(outputs, of_words(inputs)),
            "weight_scale": scales(outputs, count),
            "weight_shape": shape,
        }
        if not symmetric:
            state["weight_zero_point"] = words(of_words(outputs), count)
        settings = compressed_tensors("pack-quantized", scheme)
        if ordered:
            groups = group_of_input(inputs, size, True)
            numbers = unpack_from_int32(state["weight_packed"], bits, shape)
            zeros = unpack_from_int32(state["weight_zero_point"], bits, torch.Size([outputs, count]), packed_dim=0)
            unpacked = (numbers.float() - zeros.float()[:, groups]) * state["weight_scale"][:, groups]
            settings["config_groups"]["group_0"]["weights"]["actorder"] = "group"
        else:
            unpacked = PackedQuantizationCompressor.decompress(state, scheme)["weight"]
        parts = {f"a.{part}": value for part, value in state.items()}
        parts["a.weight_scale"] = state["weight_scale"].to(torch.float16)
        if ordered:
            parts["a.weight_g_idx"] = groups
        save_case(name, settings, parts, {"a.weight": unpacked})


if __name__ == "__main__":
    make_fp8()
    make_awq()
    make_gptq()
    make_packed()
    make_model()
    print(sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file()), "bytes in", OUT)
