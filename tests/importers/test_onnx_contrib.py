"""Operators of com.microsoft at many shapes, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_kit import MS, one, peer, rows, run, single

pytest.importorskip("onnxruntime")
F32 = np.float32
NONE = np.zeros(0, F32)


def codes(*shape: int, dtype: Any = np.uint8, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * 0.05 + 0.01).astype(F32)


# -- normalisation, activations -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 5, 16), (3, 1, 33)])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(shape: tuple[int, ...], bias: bool) -> None:
    d = shape[-1]
    arrays = {"x": rows(*shape), "s": rows(*shape, seed=1), "g": rows(d, seed=2)}
    arrays |= {"b": rows(d, seed=3)} | ({"more": rows(d, seed=4)} if bias else {})
    outputs = ["y", "", "", "total"]
    one(
        "SkipLayerNormalization",
        arrays,
        "g b more" if bias else "g b",
        epsilon=1e-5,
        outputs=outputs,
    )
    del arrays["b"]
    one("SkipSimplifiedLayerNormalization", arrays, "g more" if bias else "g", epsilon=1e-5,
        outputs=outputs)  # fmt: skip
    one("SkipLayerNormalization", {k: arrays[k] for k in ("x", "s", "g")}, "g")


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("segments", [False, True])
def test_embed_layer_normalization(mask: bool, segments: bool) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"ids": rng.integers(0, 20, (2, 5)).astype(np.int32)}
    arrays["seg" if segments else "_seg"] = rng.integers(0, 2, (2, 5)).astype(np.int32)
    arrays |= {"words": rows(20, 8), "places": rows(7, 8, seed=1)}
    arrays["kinds" if segments else "_kinds"] = rows(2, 8, seed=2)
    arrays |= {"g": rows(8, seed=3), "b": rows(8, seed=4)}
    if mask:
        arrays["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    weights = "words places g b" + (" kinds" if segments else "")
    one("EmbedLayerNormalization", arrays, weights, epsilon=1e-5, outputs=["y", "count"])


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
@pytest.mark.parametrize("shape", [(3,), (2, 7), (1, 4, 9)])
def test_activations(op: str, shape: tuple[int, ...]) -> None:
    arrays = {"x": rows(*shape) * 3}
    if op in ("FastGelu", "BiasGelu"):
        arrays["b"] = rows(shape[-1], seed=1)
    one(op, arrays, "b" if "b" in arrays else "", rtol=1e-3)
    if op == "QuickGelu":
        one(op, arrays, alpha=1.1)


# -- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 5])
@pytest.mark.parametrize("mask", [None, "lengths", "keys", "pairs"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(t: int, mask: str | None, causal: int) -> None:
    n, d = 2, 12
    arrays = {"x": rows(n, t, d), "w": rows(d, 3 * d, seed=1) * 0.3, "b": rows(3 * d, seed=2)}
    if mask == "lengths":
        arrays["m"] = np.array([t, max(t - 2, 1)], np.int32)
    elif mask:
        keys = np.ones((n, t), np.int32)
        keys[1, max(t - 2, 1) :] = 0
        arrays["m"] = keys if mask == "keys" else np.repeat(keys[:, None], t, 1)
    one("Attention", arrays, "w b", num_heads=3, unidirectional=causal)


def test_attention_with_a_past() -> None:
    d = 12
    arrays = {"x": rows(2, 3, d), "w": rows(d, 3 * d, seed=1) * 0.3, "b": rows(3 * d, seed=2)}
    arrays |= {"_m": NONE, "past": rows(2, 2, 3, 4, d // 3, seed=3)}
    one("Attention", arrays, "w b", num_heads=3, unidirectional=1, outputs=["y", "present"])


@pytest.mark.parametrize("packing", ["none", "kv", "qkv", "heads", "bias", "added"])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (4, 4), (3, 6)])
def test_multi_head_attention(packing: str, t: int, s: int) -> None:
    if packing == "qkv" and t != s:
        pytest.skip("one tensor has one length")
    n, h, d = 2, 2, 8
    q, k, v = (rows(n, c, h * d, seed=i) for i, c in enumerate((t, s, s)))
    split = [x.reshape(n, -1, h, d) for x in (q, k, v)]
    arrays = {"q": q, "k": k, "v": v}
    if packing in ("kv", "qkv"):  # which ONNX Runtime has on GPUs alone
        whole = single("MultiHeadAttention", arrays, (), MS, num_heads=h)
        parts = (
            {"q": np.stack(split, 3)} if packing == "qkv" else {"q": q, "k": np.stack(split[1:], 3)}
        )
        packed = single("MultiHeadAttention", parts, (), MS, num_heads=h)
        (want,), (have,) = peer(whole, q, k, v), run(packed, *parts.values())
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
        return
    if packing == "heads":  # as the cache of a cross attention has them
        arrays |= {x: np.moveaxis(y, 1, 2).copy() for x, y in zip("kv", split[1:])}
    if packing == "bias":
        arrays["b"] = rows(3 * h * d, seed=3)
    if packing == "added":
        keys = np.ones((n, s), np.int32)
        keys[0, s // 2 + 1 :] = 0
        arrays |= {"_b": NONE, "mask": keys, "more": rows(1, h, t, s, seed=5)}
    one("MultiHeadAttention", arrays, "b" if packing == "bias" else "", num_heads=h)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("t", "before"), [(5, 0), (1, 7)])
@pytest.mark.parametrize("options", [
    {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"softcap": 5.0},
    {"local_window_size": 3}, {"scale": 0.2, "smooth_softmax": 1},
])  # fmt: skip
def test_group_query_attention(packed: bool, t: int, before: int, options: dict[str, Any]) -> None:
    n, d, heads, groups = 2, 16, 4, 2
    q, k, v = (rows(n, t, c * d, seed=i) for i, c in enumerate((heads, groups, groups)))
    if packed:
        arrays = {"q": np.concatenate([q, k, v], -1), "_k": NONE, "_v": NONE}
    else:
        arrays = {"q": q, "k": k, "v": v}
    arrays |= {"pk": rows(n, groups, before, d, seed=3), "pv": rows(n, groups, before, d, seed=4)}
    arrays["last"] = np.array([t + before - 1] * n, np.int32)
    arrays["total"] = np.array(t + before, np.int32)
    if options.get("do_rotary"):
        angle = np.outer(np.arange(32), np.arange(d // 2) + 1) * 0.1
        arrays |= {"c": np.cos(angle).astype(F32), "s": np.sin(angle).astype(F32)}
    attrs = {"num_heads": heads, "kv_num_heads": groups, "outputs": ["y", "nk", "nv"]} | options
    one("GroupQueryAttention", arrays, "c s" if options.get("do_rotary") else "", **attrs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("each", [False, True])
def test_rotary_embedding(interleaved: int, ranks: int, each: bool) -> None:
    n, t, h, d = 2, 3, 2, 8
    angle = np.outer(np.arange(10), np.arange(d // 2) + 1) * 0.2
    at = np.array([[0, 1, 2], [4, 5, 6]], np.int64) if each else np.array([2], np.int64)
    x = rows(n, t, h * d) if ranks == 3 else rows(n, h, t, d)
    arrays = {"x": x, "at": at, "c": np.cos(angle).astype(F32), "s": np.sin(angle).astype(F32)}
    one("RotaryEmbedding", arrays, "c s", interleaved=interleaved)


# -- packed weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "float"])
@pytest.mark.parametrize(
    ("m", "k", "n", "block"), [(1, 64, 8, 16), (3, 96, 5, 32), (7, 40, 16, 32)]
)
def test_matmul_nbits(bits: int, zeros: str | None, m: int, k: int, n: int, block: int) -> None:
    groups = -(-k // block)
    arrays = {"x": rows(m, k), "w": codes(n, groups, block * bits // 8)}
    arrays["s"] = positive(n, groups, seed=1)
    if zeros == "packed":
        arrays["z"] = codes(n, -(-groups * bits // 8), seed=2)
    elif zeros == "float":
        if bits != 4:
            pytest.skip("ONNX Runtime has such zero points for 4 bits")
        arrays["z"] = (positive(n, groups, seed=2) * 100).astype(F32)
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
    one("MatMulNBits", arrays, "w s" + (" z" if zeros else ""), rtol=1e-3, atol=2e-3, **attrs)


def test_matmul_nbits_with_groups_out_of_order() -> None:
    """With zero points by NumPy: ONNX Runtime 1.32 reads others there."""
    k, n, block = 64, 8, 16
    order = np.random.default_rng(3).integers(0, 4, k).astype(np.int32)
    arrays = {"x": rows(3, k), "w": codes(n, 4, 8), "s": positive(n, 4), "_z": NONE, "g": order}
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    one("MatMulNBits", arrays | {"b": rows(n, seed=4)}, "w s g b", rtol=1e-3, atol=2e-3, **attrs)
    zeros = codes(n, 2, seed=2)
    code, zero = (np.stack([c & 15, c >> 4], -1).reshape(n, -1) for c in (arrays["w"], zeros))
    dense = (code.astype(F32) - zero[:, order]) * arrays["s"][:, order]
    del arrays["_z"]
    arrays = {"x": arrays["x"], "w": arrays["w"], "s": arrays["s"], "z": zeros, "g": order}
    model = single("MatMulNBits", arrays, ["w", "s", "z", "g"], MS, **attrs)
    np.testing.assert_allclose(
        run(model, arrays["x"])[0], arrays["x"] @ dense.T, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(bits: int, zeros: bool) -> None:
    arrays = {"w": codes(6, 32 * bits // 8), "at": np.array([[5, 0, 2]], np.int64)}
    arrays["s"] = positive(6, 2)
    if zeros:
        arrays["z"] = codes(6, -(-2 * bits // 8), seed=2)
    weights = "w s z" if zeros else "w s"
    one(
        "GatherBlockQuantized",
        arrays,
        weights,
        bits=bits,
        block_size=16,
        gather_axis=0,
        quantize_axis=1,
    )


# -- codes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("column", [False, True])
def test_integer_products(dtype: Any, column: bool) -> None:
    n = 6
    arrays = {"a": codes(3, 8), "b": codes(8, n, dtype=dtype, seed=1), "sa": np.array(0.03, F32)}
    arrays |= {"sb": positive(n) if column else np.array(0.02, F32), "za": np.array(120, np.uint8)}
    arrays["zb"] = np.full(n, 3, dtype) if column else np.array(3, dtype)
    arrays["bias"] = rows(n, seed=3)
    one("MatMulIntegerToFloat", arrays, "b sb zb bias", rtol=1e-4, atol=1e-3)
    arrays = {"a": rows(3, 8), "b": arrays["b"], "sb": arrays["sb"], "zb": arrays["zb"]}
    one("DynamicQuantizeMatMul", arrays | {"bias": rows(n, seed=3)}, "b sb zb bias", atol=1e-3)


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_gemm_of_codes(out: bool, columns: bool) -> None:
    n = 6
    arrays = {"a": codes(3, 8), "sa": np.array(0.02, F32), "za": np.array(120, np.uint8)}
    arrays |= {"b": codes(n, 8, dtype=np.int8, seed=1)}
    arrays |= {"sb": positive(n) if columns else np.array(0.01, F32)}
    arrays |= {"zb": np.zeros(n, np.int8) if columns else np.array(0, np.int8)}
    arrays["c"] = np.random.default_rng(2).integers(-900, 900, n).astype(np.int32)
    if out:
        arrays |= {"sy": np.array(0.5, F32), "zy": np.array(110, np.uint8)}
    weights = " ".join(name for name in arrays if name != "a")
    one("QGemm", arrays, weights, atol=1.01 if out else 1e-3, transB=1)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    "shapes", [((4, 9), (4, 9)), ((2, 3, 5), (5,)), ((2, 1), (2, 7)), ((6,), ())]
)
def test_codes_of_two(op: str, dtype: Any, shapes: Any) -> None:
    zero = np.array(5, dtype)
    arrays = {"a": codes(*shapes[0], dtype=dtype), "sa": np.array(0.05, F32), "za": zero}
    arrays |= {"b": codes(*shapes[1], dtype=dtype, seed=1), "sb": np.array(0.03, F32), "zb": zero}
    arrays |= {"sy": np.array(0.1, F32), "zy": np.array(-3 if dtype is np.int8 else 90, dtype)}
    one(op, arrays, "sa za sb zb sy zy", atol=1.01)


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool",
                                "QLinearAveragePool", "QLinearSoftmax"])  # fmt: skip
def test_codes_of_one(op: str) -> None:
    arrays = {"x": codes(2, 3, 6, 6), "sx": np.array(0.05, F32), "zx": np.array(100, np.uint8)}
    arrays |= {"sy": np.array(1 / 256 if op in ("QLinearSigmoid", "QLinearSoftmax") else 0.05, F32)}
    arrays["zy"] = np.array(0 if op in ("QLinearSigmoid", "QLinearSoftmax") else 90, np.uint8)
    attrs: dict[str, Any] = {"QLinearAveragePool": {"kernel_shape": [2, 3], "strides": [2, 1]},
                             "QLinearSoftmax": {"axis": -1, "opset": 13}}.get(op, {})  # fmt: skip
    one(op, arrays, "sx zx sy zy", atol=1.01, **attrs)


def test_codes_joined_and_chosen() -> None:
    arrays = {"sy": np.array(0.06, F32), "zy": np.array(90, np.uint8)}
    for i, n in enumerate((3, 2)):
        arrays |= {f"x{i}": codes(2, n, 4, seed=i), f"s{i}": np.array(0.03 + 0.02 * i, F32)}
        arrays[f"z{i}"] = np.array(100 + i, np.uint8)
    one("QLinearConcat", arrays, "sy zy s0 z0 s1 z1", atol=1.01, axis=1)
    scale, zero = np.array(0.05, F32), np.array(100, np.uint8)
    arrays = {"c": np.random.default_rng(0).random((3, 4)) > 0.5}
    arrays |= {"x": codes(3, 4), "sx": scale, "zx": zero, "v": codes(3, 4, seed=1), "sv": scale * 2}
    arrays |= {"zv": zero, "so": scale * 3, "zo": zero}
    one("QLinearWhere", arrays, "sx zx sv zv so zo", atol=1.01)


# -- fused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"transA": 1}, {"transB": 1, "alpha": 0.25}, {"transA": 1, "transB": 1},
    {"transBatchA": 1}, {"transBatchB": 1}, {"transBatchA": 1, "transBatchB": 1, "transB": 1},
])  # fmt: skip
def test_fused_matmul(options: dict[str, Any]) -> None:
    """a is [2, 3, m, k] and b [2, 3, k, n], with axes as the options have them."""
    a, b = rows(2, 3, 4, 5), rows(2, 3, 5, 6, seed=1)
    a = a.swapaxes(-1, -2) if options.get("transA") else a
    b = b.swapaxes(-1, -2) if options.get("transB") else b
    a = np.moveaxis(a, -2, 0) if options.get("transBatchA") else a
    b = np.moveaxis(b, -2, 0) if options.get("transBatchB") else b
    one("FusedMatMul", {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}, **options)


@pytest.mark.parametrize("kind", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"])
@pytest.mark.parametrize("more", [False, True])
def test_fused_conv(kind: str, more: bool) -> None:
    arrays = {"x": rows(1, 3, 6, 6), "w": rows(8, 3, 3, 3, seed=1), "b": rows(8, seed=2)}
    if more:
        arrays["z"] = rows(1, 8, 6, 6, seed=3)
    params = {"LeakyRelu": [0.1], "Clip": [-0.5, 0.5], "HardSigmoid": [0.2, 0.5]}.get(kind)
    attrs = {"activation": kind} | ({"activation_params": params} if params else {})
    one("FusedConv", arrays, "w b", pads=[1, 1, 1, 1], **attrs)


@pytest.mark.parametrize("kind", ["Relu", "LeakyRelu", "Sigmoid"])
def test_fused_gemm(kind: str) -> None:
    arrays = {"a": rows(3, 5), "b": rows(4, 5, seed=1), "c": rows(4, seed=2)}
    attrs = {"activation_alpha": 0.2} if kind == "LeakyRelu" else {}
    one("FusedGemm", arrays, "b c", transB=1, alpha=0.5, activation=kind, **attrs)


def test_nhwc_convolutions() -> None:
    """Beside exact integers: ONNX Runtime saturates here on x64 without VNNI."""
    arrays = {"x": codes(1, 6, 6, 4), "sx": np.array(0.02, F32), "zx": np.array(110, np.uint8)}
    arrays |= {"w": codes(8, 4, 3, 3, dtype=np.int8, seed=1), "sw": positive(8)}
    arrays |= {"zw": np.zeros(8, np.int8), "sy": np.array(0.4, F32), "zy": np.array(100, np.uint8)}
    weights = ["sx", "zx", "w", "sw", "zw", "sy", "zy"]
    model = single("QLinearConv", arrays, weights, MS, channels_last=1, pads=[1, 1, 1, 1])
    x, w = arrays["x"].astype(np.int64) - 110, arrays["w"].astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (1, 2)
    )
    total = np.einsum("nhwcij,ocij->nhwo", windows, w)
    real = total * (np.float64(arrays["sx"]) * arrays["sw"] / arrays["sy"])
    (have,) = run(model, arrays["x"])
    assert have.dtype == np.uint8
    want = np.clip(np.rint(real) + 100, 0, 255)
    assert np.abs(have - want).max() <= 1 and (have == want).mean() > 0.99
