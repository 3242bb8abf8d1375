"""Makes the golden files that quantised checkpoints are held to; the reference is the naive reader in this file.

Regenerate (numpy only, a second):  python scripts/make_golden_quantised.py
Everything goes to tests/golden/quantised/, a folder for each case:

config.json             its `quantization_config` says how the tensors are packed
model.safetensors       packed tensors
expected.safetensors    f32, under the names of unpacked tensors: what an independent reading of the packed ones gives
model-awq/              tests/golden/models/llama-linear with its layers quantised to AWQ
model-awq-wide/         the same weights, not quantised (F16, which holds them exactly)

Packed numbers are unpacked here as bit strings, one number at a time, and zero points are known from before they are packed.
Layouts: AutoAWQ (`gemm`), GPTQModel (`gptq`, `gptq_v2`), compressed-tensors (`pack-quantized`, `float-quantized`), transformers
(`fp8`, `mxfp4`).
"""

import json
import math
import pathlib
import shutil

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "quantised"
LLAMA = ROOT / "tests" / "golden" / "models" / "llama-linear"
RANDOM = np.random.default_rng(7)

TYPES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


# --- Files ---


def save(path, tensors):
    """Writes {name: (type, shape, bytes)} as safetensors."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in sorted(tensors.items()):
        assert len(raw) == TYPES[dtype] * math.prod(shape), name
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def load(path):
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    slices = {name: raw[end + t["data_offsets"][0] : end + t["data_offsets"][1]] for name, t in header.items()}
    assert all(t["dtype"] == "F32" for t in header.values())
    return {name: np.frombuffer(slices[name], "<f4").reshape(t["shape"]) for name, t in header.items()}


def f32(array):
    return "F32", array.shape, array.astype("<f4").tobytes()


def f16(array):
    return "F16", array.shape, array.astype("<f2").tobytes()


def bf16(array):
    """Of numbers that bf16 holds exactly."""
    words = array.astype("<f4").view("<u4")
    assert not (words & 0xFFFF).any()
    return "BF16", array.shape, (words >> 16).astype("<u2").tobytes()


def i32(array):
    return "I32", array.shape, (array.astype(np.int64) & 0xFFFFFFFF).astype("<u4").tobytes()


def save_case(name, settings, packed, expected):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}, indent=1) + "\n")
    save(folder / "model.safetensors", packed)
    save(folder / "expected.safetensors", {key: f32(value) for key, value in expected.items()})


# --- Numbers ---


def scales(shape, exact_in_bf16=False):
    """Scales that their type holds exactly."""
    values = RANDOM.uniform(0.01, 0.1, shape).astype("<f4")
    if exact_in_bf16:
        return (values.view("<u4") & 0xFFFF0000).view("<f4")
    return values.astype("<f2").astype("<f4")


def words_of(numbers, bits):
    """Packs a list of unsigned numbers into words, the first at the lowest bits; the last word is filled with zeros."""
    string = "".join(format(int(number), f"0{bits}b")[::-1] for number in numbers)
    string += "0" * (-len(string) % 32)
    return [int(string[at : at + 32][::-1], 2) for at in range(0, len(string), 32)]


def numbers_of(words, bits, count):
    """The reverse of `words_of`."""
    string = "".join(format(int(word) & 0xFFFFFFFF, "032b")[::-1] for word in words)
    return [int(string[at : at + bits][::-1], 2) for at in range(0, count * bits, bits)]


def e4m3(byte):
    sign, exponent, mantissa = -1 if byte >> 7 else 1, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, -9)
    return sign * math.ldexp(8 + mantissa, exponent - 10)


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


# --- FP8 ---


def fp8_bytes(rows, columns):
    """Random bytes without NaN."""
    raw = RANDOM.integers(0, 256, (rows, columns), np.uint8)
    raw[(raw & 0x7F) == 0x7F] = 0x38
    return raw


def fp8(raw, scale_of):
    rows, columns = raw.shape
    value = lambda row, column: np.float32(e4m3(int(raw[row, column]))) * np.float32(scale_of(row, column))
    return np.array([[value(row, column) for column in range(columns)] for row in range(rows)], "<f4")


def e4m3_tensor(raw):
    return "F8_E4M3", raw.shape, raw.tobytes()


def compressed(format, weights, activations=None, ignore=()):
    group = {"input_activations": activations, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": format,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def make_fp8():
    # Every byte, with one scale for the matrix.
    raw = np.arange(256, dtype=np.uint8).reshape(16, 16)
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    one = np.float32(0.75)
    parts = {
        "a.weight": e4m3_tensor(raw),
        "a.weight_scale_inv": bf16(np.array(one)),
        "a.activation_scale": bf16(np.array(one)),
    }
    save_case("fp8-values", settings, parts, {"a.weight": fp8(raw, lambda row, column: one)})

    # Blocks, of which the last are cut on both axes; a bias and an embedding are not quantised.
    raw, rows, columns = fp8_bytes(40, 70), 16, 32
    grid = scales((3, 3))
    bias = scales((40,), True)
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [rows, columns],
        "modules_to_not_convert": ["lm_head"],
    }
    parts = {
        "l.q_proj.weight": e4m3_tensor(raw),
        "l.q_proj.weight_scale_inv": f32(grid),
        "l.q_proj.bias": bf16(bias),
        "lm_head.weight": bf16(bias.reshape(8, 5)),
    }
    expected = {
        "l.q_proj.weight": fp8(raw, lambda row, column: grid[row // rows, column // columns]),
        "l.q_proj.bias": bias,
        "lm_head.weight": bias.reshape(8, 5),
    }
    save_case("fp8-block", settings, parts, expected)

    # Scales that are powers of two, a byte each.
    raw, exponents = fp8_bytes(6, 8), np.array([[120, 127], [130, 0], [1, 125]], np.uint8)
    parts = {
        "a.weight": e4m3_tensor(raw),
        "a.weight_scale_inv": ("F8_E8M0", exponents.shape, exponents.tobytes()),
    }
    settings = {"quant_method": "fp8", "weight_block_size": [2, 4], "scale_fmt": "ue8m0"}
    scale_of = lambda row, column: math.ldexp(1.0, int(exponents[row // 2, column // 4]) - 127)
    save_case("fp8-powers", settings, parts, {"a.weight": fp8(raw, scale_of)})

    # A scale for each row, by compressed-tensors.
    raw, column = fp8_bytes(6, 10), scales((6, 1), True)
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    parts = {"a.weight": e4m3_tensor(raw), "a.weight_scale": bf16(column), "a.input_scale": bf16(column[:1])}
    settings = compressed("float-quantized", weights, {"num_bits": 8, "type": "float"}, ["lm_head"])
    save_case("fp8-rows", settings, parts, {"a.weight": fp8(raw, lambda row, _: column[row, 0])})


# --- Integers ---


def dequantised(numbers, zeros, scale, group_of):
    """Of numbers [outputs][inputs], and zero points and scales [groups][outputs]."""
    outputs, inputs = numbers.shape
    out = np.empty((outputs, inputs), "<f4")
    for output in range(outputs):
        for column in range(inputs):
            group = group_of[column]
            steps = int(numbers[output, column]) - int(zeros[group, output])
            out[output, column] = np.float32(steps) * np.float32(scale[group, output])
    return out


# Which output each of the 8 numbers of a word holds.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq_words(rows):
    """Packs rows of 4-bit numbers, outputs along the row."""
    ordered = [[row[at + place] for at in range(0, len(row), 8) for place in AWQ_ORDER] for row in rows]
    return np.array([words_of(row, 4) for row in ordered])


def awq_parts(name, numbers, zeros, scale):
    return {
        f"{name}.qweight": i32(awq_words(numbers.T)),
        f"{name}.qzeros": i32(awq_words(zeros)),
        f"{name}.scales": f16(scale),
    }


def random_ints(bits, outputs, inputs, groups):
    return (
        RANDOM.integers(0, 2**bits, (outputs, inputs)),
        RANDOM.integers(0, 2**bits, (groups, outputs)),
        scales((groups, outputs)),
    )


def make_awq():
    outputs, inputs, size = 24, 48, 16
    numbers, zeros, scale = random_ints(4, outputs, inputs, inputs // size)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    groups = [column // size for column in range(inputs)]
    expected = {"l.q_proj.weight": dequantised(numbers, zeros, scale, groups)}
    save_case("awq", settings, awq_parts("l.q_proj", numbers, zeros, scale), expected)


def gptq_parts(name, bits, numbers, zeros, scale, less_one):
    columns = [words_of(column, bits) for column in numbers]
    packed_zeros = np.array([words_of(row, bits) for row in zeros])
    if less_one:
        ones = sum(1 << at for at in range(0, 32, bits))
        packed_zeros = (packed_zeros - ones) & 0xFFFFFFFF
    return {
        f"{name}.qweight": i32(np.array(columns).T),
        f"{name}.qzeros": i32(packed_zeros),
        f"{name}.scales": f16(scale),
    }


def make_gptq():
    for name, bits, size, less_one, ordered in [
        ("gptq-4", 4, 8, True, False),
        ("gptq-4-second", 4, -1, False, False),
        ("gptq-8-ordered", 8, 8, True, True),
    ]:
        outputs, inputs = 16, 32
        count = 1 if size == -1 else inputs // size
        numbers, zeros, scale = random_ints(bits, outputs, inputs, count)
        groups = [0 if size == -1 else column // size for column in range(inputs)]
        settings = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": ordered, "sym": False}
        if not less_one:
            settings["checkpoint_format"] = "gptq_v2"
        parts = gptq_parts("l.q_proj", bits, numbers, zeros, scale, less_one)
        if ordered:
            groups = [int(group) for group in RANDOM.permutation(groups)]
            parts["l.q_proj.g_idx"] = i32(np.array(groups))
        save_case(name, settings, parts, {"l.q_proj.weight": dequantised(numbers, zeros, scale, groups)})
    # Symmetric numbers, whose zero point is the middle.
    numbers, zeros, scale = random_ints(4, 16, 32, 1)
    zeros[:] = 8
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"}
    parts = gptq_parts("l.q_proj", 4, numbers, zeros, scale, True)
    parts["l.q_proj.g_idx"] = i32(np.zeros(32, int))
    save_case("gptq-4-symmetric", settings, parts, {"l.q_proj.weight": dequantised(numbers, zeros, scale, [0] * 32)})


def make_packed():
    for name, bits, outputs, inputs, size, symmetric, ordered in [
        ("packed-4", 4, 12, 40, 20, True, False),
        ("packed-4-zero-points", 4, 12, 40, 20, False, True),
        ("packed-8-channel", 8, 6, 30, None, False, False),
    ]:
        count = inputs // size if size else 1
        numbers, zeros, scale = random_ints(bits, outputs, inputs, count)
        if symmetric:
            zeros[:] = 2 ** (bits - 1)
        groups = [column // size if size else 0 for column in range(inputs)]
        if ordered:
            groups = [int(group) for group in RANDOM.permutation(groups)]
        parts = {
            "a.weight_packed": i32(np.array([words_of(row, bits) for row in numbers])),
            "a.weight_scale": f16(scale.T),
            "a.weight_shape": ("I64", (2,), np.array([outputs, inputs], "<i8").tobytes()),
        }
        if not symmetric:
            parts["a.weight_zero_point"] = i32(np.array([words_of(row, bits) for row in zeros]).T)
        if ordered:
            parts["a.weight_g_idx"] = i32(np.array(groups))
        weights = {
            "num_bits": bits,
            "type": "int",
            "strategy": "group" if size else "channel",
            "group_size": size,
            "symmetric": symmetric,
            "actorder": "group" if ordered else None,
            "dynamic": False,
        }
        expected = {"a.weight": dequantised(numbers, zeros, scale, groups)}
        save_case(name, compressed("pack-quantized", weights), parts, expected)


# --- MXFP4 ---


def make_mxfp4():
    experts, rows, columns = 2, 3, 64
    blocks = RANDOM.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
    exponents = RANDOM.integers(110, 140, (experts, rows, columns // 32), np.uint8)
    exponents[0, 0] = [0, 1]
    out = np.empty((experts, columns, rows), "<f4")
    for expert in range(experts):
        for row in range(rows):
            for column in range(columns):
                block, within = divmod(column, 32)
                nibble = numbers_of([blocks[expert, row, block, within // 2]], 4, 2)[within % 2]
                out[expert, column, row] = math.ldexp(E2M1[nibble], int(exponents[expert, row, block]) - 127)
    parts = {
        "e.gate_up_proj_blocks": ("U8", blocks.shape, blocks.tobytes()),
        "e.gate_up_proj_scales": ("U8", exponents.shape, exponents.tobytes()),
        "e.gate_up_proj_bias": bf16(scales((experts, rows), True)),
    }
    expected = {"e.gate_up_proj": out}
    save_case("mxfp4", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, parts, expected)


# --- A model ---


def quantised(weight, size):
    """Numbers, zero points and scales of 4 bits, to nearest. Scales have 6 bits, so that F16 holds the products."""
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // size, size)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    mantissa, exponent = np.frexp((high - low) / 15)
    scale = np.ldexp(np.ceil(mantissa * 64), exponent - 6).astype("<f4")
    zeros = np.clip(np.rint(-low / scale), 0, 15).astype(int)
    numbers = np.clip(np.rint(groups / scale[..., None]) + zeros[..., None], 0, 15).astype(int)
    return numbers.reshape(outputs, inputs), zeros.T, scale.T


def make_model(size=16):
    config = json.loads((LLAMA / "config.json").read_text())
    packed, wide = {}, {}
    for name, weight in load(LLAMA / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            numbers, zeros, scale = quantised(weight, size)
            groups = [column // size for column in range(weight.shape[1])]
            unpacked = dequantised(numbers, zeros, scale, groups)
            assert (unpacked.astype("<f2").astype("<f4") == unpacked).all()
            assert np.abs(unpacked - weight).max() < np.abs(weight).max() / 8
            packed |= awq_parts(name.removesuffix(".weight"), numbers, zeros, scale)
            wide[name] = f16(unpacked)
        else:
            packed[name] = wide[name] = f16(weight)
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
        save(path / "model.safetensors", tensors)


if __name__ == "__main__":
    make_fp8()
    make_awq()
    make_gptq()
    make_packed()
    make_mxfp4()
    make_model()
    print(sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file()), "bytes in", OUT)
