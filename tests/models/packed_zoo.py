"""Layers as the makers of packed checkpoints write them, and the float32 matrix that each stands
for, by a straight statement of the layout: one weight after the other, in Python's integers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.packed import TABLES
from weft.importers.hf_config import Fields
from weft.importers.safetensors import save_file
from weft.models.arch.families import DECODERS
from weft.models.weights.decoder_names import decoder_layout

Tensors = dict[str, np.ndarray]
Made = tuple[Tensors, np.ndarray]  # by the rest of the name after the layer's; float32 [N, K]
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def words(codes: Sequence[int], bits: int, dtype: Any = np.int32) -> np.ndarray:
    """A dense stream of 32-bit words, the first code lowest."""
    number = sum(int(c) << bits * i for i, c in enumerate(codes))
    size = -(-len(codes) * bits // 32)
    return np.frombuffer(number.to_bytes(4 * size, "little"), np.uint32).astype(dtype)


def scales(rng: np.random.Generator, *shape: int, dtype: Any = np.float16) -> np.ndarray:
    return rng.uniform(0.01, 0.02, shape).astype(dtype)


def by_rule(n: int, k: int, rule: Callable[[int, int], Any]) -> np.ndarray:
    return np.array([[rule(i, j) for j in range(k)] for i in range(n)], np.float32)


def gptq(
    n: int, k: int, seed: int, bits: int = 4, group: int = 16, sym: bool = False,
    order: bool = False, version: int = 1,
) -> Made:  # fmt: skip
    rng, top = np.random.default_rng(seed), 1 << bits
    q = rng.integers(0, top, (k, n))
    z = np.full((k // group, n), top // 2) if sym else rng.integers(0, top, (k // group, n))
    s = scales(rng, k // group, n)
    index = np.arange(k) // group
    if order:
        index = rng.permutation(index)
    stored = (z - (version == 1)) % top
    tensors = {
        "qweight": np.stack([words(q[:, i], bits) for i in range(n)], axis=1),
        "qzeros": np.stack([words(row, bits) for row in stored]),
        "scales": s, "g_idx": index.astype(np.int32),
    }  # fmt: skip
    rule = lambda i, j: np.float32(q[j, i] - z[index[j], i]) * np.float32(s[index[j], i])  # noqa: E731
    return tensors, by_rule(n, k, rule)


def awq(n: int, k: int, seed: int, group: int = 16) -> Made:
    rng = np.random.default_rng(seed)
    q, z = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))
    s = scales(rng, k // group, n)
    held = [0, 2, 4, 6, 1, 3, 5, 7]  # which column of eight field i holds

    def packed(rows: np.ndarray) -> np.ndarray:
        return np.stack([
            words([row[c + held[i]] for c in range(0, n, 8) for i in range(8)], 4) for row in rows
        ])  # fmt: skip

    tensors = {"qweight": packed(q), "qzeros": packed(z), "scales": s}
    return tensors, by_rule(
        n, k, lambda i, j: np.float32(q[j, i] - z[j // group, i]) * np.float32(s[j // group, i])
    )


def pack_quantized(
    n: int, k: int, seed: int, bits: int = 4, group: int = 16, zeros: bool = False,
    order: bool = False,
) -> Made:  # fmt: skip
    rng, half = np.random.default_rng(seed), 1 << bits - 1
    q = rng.integers(-half, half, (n, k))
    z = rng.integers(-half, half, (n, k // group)) * zeros
    s = scales(rng, n, k // group, dtype=BF16)
    index = np.arange(k) // group
    if order:
        index = rng.permutation(index)
    tensors = {
        "weight_packed": np.stack([words(row + half, bits) for row in q]),
        "weight_scale": s, "weight_shape": np.array([n, k], np.int64),
    }  # fmt: skip
    if zeros:
        columns = [words(z[:, g] + half, bits) for g in range(k // group)]
        tensors["weight_zero_point"] = np.stack(columns, axis=1)
    if order:
        tensors["weight_g_idx"] = index.astype(np.int32)
    rule = lambda i, j: np.float32(q[i, j] - z[i, index[j]]) * np.float32(s[i, index[j]])  # noqa: E731
    return tensors, by_rule(n, k, rule)


def int_quantized(n: int, k: int, seed: int, zeros: bool = False) -> Made:
    rng = np.random.default_rng(seed)
    q = rng.integers(-128, 128, (n, k)).astype(np.int8)
    s = scales(rng, n, 1, dtype=BF16) / 8
    tensors = {"weight": q, "weight_scale": s}
    z = rng.integers(-5, 5, (n, 1)).astype(np.int8) * np.int8(zeros)
    if zeros:
        tensors["weight_zero_point"] = z
    return tensors, by_rule(
        n, k, lambda i, j: np.float32(int(q[i, j]) - int(z[i, 0])) * np.float32(s[i, 0])
    )


def fp8(n: int, k: int, seed: int, block: tuple[int, int] | None = None, name: str = "") -> Made:
    """A scale of all, or of every block."""
    rng = np.random.default_rng(seed)
    w = rng.uniform(-2, 2, (n, k)).astype(E4M3)
    height, width = block or (n, k)
    shape = (-(-n // height), -(-k // width)) if block else ()
    s = np.asarray(rng.uniform(0.01, 0.1, shape), np.float32)
    return {"weight": w, name or "weight_scale_inv": s}, by_rule(
        n, k, lambda i, j: np.float32(w[i, j]) * s.reshape(shape or (1, 1))[i // height, j // width]
    )


def float_quantized(n: int, k: int, seed: int) -> Made:
    tensors, _ = fp8(n, k, seed, (1, k), "weight_scale")
    tensors["weight_scale"] = tensors["weight_scale"].astype(BF16)
    w, s = tensors["weight"], tensors["weight_scale"]
    return tensors, by_rule(n, k, lambda i, j: np.float32(w[i, j]) * np.float32(s[i, 0]))


_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _fp4(code: int) -> np.float32:
    return np.float32(-_E2M1[code & 7] if code & 8 else _E2M1[code])


def mxfp4(n: int, k: int, seed: int) -> Made:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 16, (n, k))
    e = rng.integers(115, 122, (n, k // 32)).astype(np.uint8)
    e[0, 0] = 0
    tensors = {"weight_packed": (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8), "weight_scale": e}
    return tensors, by_rule(
        n, k, lambda i, j: _fp4(q[i, j]) * np.float32(2.0 ** (e[i, j // 32] - 127.0))
    )


def nvfp4(n: int, k: int, seed: int) -> Made:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 16, (n, k))
    s = rng.uniform(1, 400, (n, k // 16)).astype(E4M3)
    top = np.array([8000.0], np.float32)
    tensors = {
        "weight_packed": (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8), "weight_scale": s,
        "weight_global_scale": top,
    }  # fmt: skip
    return tensors, by_rule(n, k, lambda i, j: _fp4(q[i, j]) * (np.float32(s[i, j // 16]) / top[0]))


def mlx(n: int, k: int, seed: int, bits: int = 4, group: int = 32) -> Made:
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 1 << bits, (n, k))
    s = scales(rng, n, k // group, dtype=BF16) * rng.choice([-1, 1], (n, k // group)).astype(BF16)
    b = rng.standard_normal((n, k // group)).astype(BF16) / BF16(8)
    s32 = s.astype(np.float32)
    tensors = {
        "weight": np.stack([words(row, bits, np.uint32) for row in q]),
        "scales": s,
        "biases": b,
    }
    return tensors, by_rule(
        n, k, lambda i, j: np.float32(q[i, j]) * s32[i, j // group] + np.float32(b[i, j // group])
    )


def nf4(n: int, k: int, seed: int, nested: bool = False, block: int = 64) -> Made:
    rng, table = np.random.default_rng(seed), np.array(TABLES["nf4"], np.float32)
    q, count = rng.integers(0, 16, n * k), n * k // block
    absmax = rng.uniform(0.1, 0.2, count).astype(np.float32)
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": block,
        "shape": [n, k],
        "dtype": "bfloat16",
    }
    tensors = {
        "weight": (q[::2] << 4 | q[1::2]).astype(np.uint8)[:, None],
        "weight.quant_map": table,
    }
    if nested:
        code, top = (
            rng.integers(0, 256, count).astype(np.uint8),
            rng.uniform(0.1, 1, -(-count // 256)),
        )
        values = np.linspace(-1, 1, 256).astype(np.float32)
        top = top.astype(np.float32)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.75}
        tensors |= {"weight.nested_absmax": top, "weight.nested_quant_map": values}
        absmax = np.array(
            [values[c] * top[i // 256] + np.float32(0.75) for i, c in enumerate(code)], np.float32
        )
    tensors["weight.absmax"] = code if nested else absmax
    text = json.dumps(state).encode()
    tensors["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    return tensors, by_rule(n, k, lambda i, j: table[q[i * k + j]] * absmax[(i * k + j) // block])


def int8(n: int, k: int, seed: int) -> Made:
    rng = np.random.default_rng(seed)
    q = rng.integers(-127, 128, (n, k)).astype(np.int8)
    top = rng.uniform(0.5, 1, n).astype(np.float32)
    rule = lambda i, j: np.float32(q[i, j]) * (top[i] * np.float32(1 / 127))  # noqa: E731
    return {"weight": q, "SCB": top}, by_rule(n, k, rule)


def _ct(format: str, bits: int, kind: str = "int", **weights: Any) -> dict[str, Any]:
    given = {"num_bits": bits, "type": kind, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": given}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups}


def _gptq(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 16, **more}


_PACK = _ct("pack-quantized", 4, group_size=16)
# What it is called -> (quantization_config, what writes a layer of [N, K])
KINDS: dict[str, tuple[dict[str, Any], Callable[[int, int, int], Made]]] = {
    "gptq": (_gptq(4), gptq),
    "gptq symmetric": (_gptq(4, sym=True), lambda *a: gptq(*a, sym=True)),
    "gptq v2": (_gptq(4, checkpoint_format="gptq_v2"), lambda *a: gptq(*a, version=2)),
    "gptq act-order": (_gptq(4, desc_act=True), lambda *a: gptq(*a, order=True)),
    "gptq 8": (_gptq(8), lambda *a: gptq(*a, bits=8)),
    "gptq 3": (_gptq(3), lambda *a: gptq(*a, bits=3)),
    "gptq 2": (_gptq(2), lambda *a: gptq(*a, bits=2)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq),
    "pack": (_PACK, pack_quantized),
    "pack zeros": (_PACK, lambda *a: pack_quantized(*a, zeros=True)),
    "pack order": (_PACK, lambda *a: pack_quantized(*a, order=True)),
    "pack 8": (_ct("pack-quantized", 8, group_size=16), lambda *a: pack_quantized(*a, bits=8)),
    "pack 5": (_ct("pack-quantized", 5, group_size=32), lambda *a: pack_quantized(*a, 5, 32, True)),
    "int": (_ct("int-quantized", 8), int_quantized),
    "int zeros": (_ct("int-quantized", 8), lambda *a: int_quantized(*a, zeros=True)),
    "float": (_ct("float-quantized", 8, "float"), float_quantized),
    "float blocks": (
        _ct("float-quantized", 8, "float", block_structure=[32, 32], strategy="block"),
        lambda *a: fp8(*a, (32, 32), "weight_scale"),
    ),
    "mxfp4": (_ct("mxfp4-pack-quantized", 4, "float", group_size=32), mxfp4),
    "nvfp4": (_ct("nvfp4-pack-quantized", 4, "float", group_size=16), nvfp4),
    "fp8": ({"quant_method": "fp8"}, fp8),
    "fp8 blocks": (
        {"quant_method": "fp8", "weight_block_size": [24, 48]}, lambda *a: fp8(*a, (24, 48))
    ),
    "mlx": ({"bits": 4, "group_size": 32}, mlx),
    "mlx 8": ({"bits": 8, "group_size": 32}, lambda *a: mlx(*a, 8)),
    "mlx 6": ({"bits": 6, "group_size": 32}, lambda *a: mlx(*a, 6)),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4),
    "nf4 nested": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True}, lambda *a: nf4(*a, nested=True)
    ),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8),
}  # fmt: skip

CONFIG = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip


def checkpoint(kind: str) -> tuple[dict[str, Any], Tensors, Tensors]:
    """(config.json, tensors, the plain matrices by role) of a small decoder with packed layers; of
    MLX's embedding and head too. The rest is bfloat16."""
    given, write = KINDS[kind]
    is_mlx = kind.startswith("mlx")
    config = {**CONFIG, "quantization" if is_mlx else "quantization_config": given}
    tensors: Tensors = {}
    plain: Tensors = {}
    rng = np.random.default_rng(0)
    for seed, (role, spec) in enumerate(
        decoder_layout(DECODERS["llama"](Fields(CONFIG, ""))).weights.items()
    ):
        name = spec.name if role == "head" else f"model.{spec.name}"
        if len(spec.shape) == 1 or (role in ("embed", "head") and not is_mlx):
            plain[role] = tensors[name] = (rng.standard_normal(spec.shape) / 8).astype(BF16)
            continue
        made, plain[role] = write(*spec.shape, seed)
        tensors |= {f"{name.removesuffix('weight')}{rest}": value for rest, value in made.items()}
    return config, tensors, plain


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(folder / "model.safetensors", tensors)
    return folder
