"""The cases of `weft bench gate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import weft
from weft import ops
from weft.bench.gate import Case, random, work_of
from weft.compile import compile_graph
from weft.conform.packed import random_weight
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.graph.ir import Graph
from weft.importers.packed import gguf
from weft.ops.packed import dequantize
from weft.ops.quantize import quantize, rescale
from weft.program.device import Device
from weft.program.session import Session
from weft.tensor import functional as F

_K = 4096
_FEW = 64  # rows of a weight that are drawn; the others repeat them
_FORMS = {name: gguf.FORMS[name][0] for name in ("Q8_0", "Q6_K", "Q4_K")}
_WEIGHT = 1 << 27  # bytes of a weight that is read from memory: no cache holds it


def cases(scale: int = 1) -> list[Case]:
    """Every case; `scale` divides the sizes (for tests, in which no time matters)."""
    n, rows, side = 1024 // scale, 4096 // scale, 56 // min(scale, 8)
    heads, length = 12, 1024 // scale
    images, filters = (4, 64, side, side), (64, 64, 3, 3)
    attention, conv = partial(F.attention, causal=True), partial(F.conv2d, padding=1)
    found = [
        _call("matmul f32", lambda x, y: x @ y, ((n, n),) * 2, "fma", 2.0 * n**3),
        _call("gradient of a matmul f32", _gradient, ((n, n),) * 2, "fma", 6.0 * n**3),
        _call("softmax", F.softmax, ((rows, rows),), "read", work_of((rows, rows))),
        _call("layer norm", F.layer_norm, ((rows, rows), (rows,), (rows,)), "read",
              work_of((rows, rows))),
        _call("attention, causal", attention, ((1, heads, length, 64),) * 3, "fma",
              2.0 * heads * length * (length + 1) * 64),
        _call("convolution 3 x 3", conv, (images, filters), "fma",
              2.0 * 4 * 64 * side * side * 64 * 9),
    ]  # fmt: skip
    weights: list[DType | str] = [dt.float32, dt.float16, dt.bfloat16, *_FORMS]
    found += [_product(weight, 1, 0, scale) for weight in weights]
    found += [_product(name, 1, 1, scale) for name in _FORMS]
    found.append(_product("Q4_K", 128, 0, scale))
    return found + [_product(name, 128, 1, scale) for name in ("Q8_0", "Q4_K")]


def _gradient(x: Any, y: Any) -> Any:
    return weft.value_and_grad(lambda a, b: (a @ b).sum(), argnums=(0, 1))(x, y)


def _call(
    name: str, fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], peak: str, work: float
) -> Case:
    def make(device: Device) -> Callable[[], object]:
        compiled = weft.compile(fn, device=device.info.id)
        return partial(compiled, *(random(shape, device) for shape in shapes))

    return Case(name, peak, work, make)


def _product(weight: DType | str, rows: int, planes: int, scale: int) -> Case:
    """`rows` of x times a weight [n, k] of a dtype or a packed form; with a plane, x is quantised
    to 8 bits first."""
    few = _few_rows(weight)
    each = sum(part.nbytes for part in few.values()) / _FEW  # bytes of a row of the weight
    least = _WEIGHT if rows == 1 else 1 << 22
    n = max(int(least / each) // scale // _FEW, 1) * _FEW
    label = weight if isinstance(weight, str) else weight.name
    name = f"{rows} row{'s' * (rows > 1)} by {label}" + ", int8 inputs" * planes
    peak = "read" if rows == 1 else "dot4" if planes else "fma"
    work = each * n if rows == 1 else 2.0 * rows * n * _K

    def make(device: Device) -> Callable[[], object]:
        parts = {p: np.resize(v, (n * len(v) // _FEW, *v.shape[1:])) for p, v in few.items()}
        x = ops.input_node("x", (rows, _K), dt.float32)
        nodes = {p: ops.input_node(p, v.shape, dt.as_dtype(v.dtype), "weight")
                 for p, v in parts.items()}  # fmt: skip
        with ops.building():
            form = _FORMS[weight] if isinstance(weight, str) else None
            w = dequantize(form, nodes) if form else ops.cast(nodes["w"], dt.float32)
            left = rescale(*quantize(x, planes)) if planes else x
            out = ops.dot(left, ops.transpose(w, perm=(1, 0)))
        graph = Graph((x, *nodes.values()), (out,), meta={"frozen": True})
        session = Session(compile_graph(graph, device.caps), device, parts, reuse_outputs=True)
        given = {"x": np.random.default_rng(1).standard_normal((rows, _K), np.float32)}
        return lambda: session.run(given)

    return Case(name, peak, work, make)


def _few_rows(weight: DType | str) -> Mapping[str, np.ndarray]:
    """The parts of the first rows of a weight, which repeat."""
    rng = np.random.default_rng(2)
    if isinstance(weight, str):
        return random_weight(_FORMS[weight], _FEW, _K, rng).parts
    return {"w": rng.standard_normal((_FEW, _K), np.float32).astype(weight.numpy)}
