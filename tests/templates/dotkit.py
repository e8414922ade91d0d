"""Groups around dots, built by hand, played on any device and compared with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.graph.ir import Node
from weft.kernel.verify import verify
from weft.ops import functions as f
from weft.ops.evaluate import evaluate
from weft.program.device import Device
from weft.templates import registry
from weft.templates.group import Group

RNG = np.random.default_rng(7)


def source(name: str, shape: Sequence[int], dtype: DType = dt.float32, **attrs: Any) -> Node:
    """A value that a group finds in memory."""
    return Node("input", (), {"name": name, "role": "input", **attrs}, tuple(shape), dtype)


def scalar(name: str) -> Node:
    return Node("input", (), {"name": name, "role": "scalar"}, (), dt.int32)


def fill(node: Node, rng: np.random.Generator = RNG) -> np.ndarray:
    """Random content for a source."""
    if node.dtype.is_float:
        return rng.standard_normal(node.shape, np.float32).astype(node.dtype.numpy)
    return rng.integers(0 if node.dtype.kind == "uint" else -100, 100, node.shape).astype(
        node.dtype.numpy
    )


def play(
    device: Device,
    kind: str,
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    arrays: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    config: dict[str, Any] | None = None,
    **fields: Any,
) -> list[np.ndarray]:
    """Builds the group's kernel for the device, verifies it, runs it; returns the outputs."""
    call = next((x for x in outputs if x.op == "call"), None)
    group = Group(kind, tuple(inputs), tuple(outputs), call, name="k", **fields)
    kernel = registry.get(kind)(group, device.caps, config or {})
    verify(kernel)
    blanks = [np.full(o.shape, 77, o.dtype.numpy) for o in outputs]
    done = run_kernel(device, kernel, [*arrays, *blanks], scalars)
    return done[len(inputs) :]


def oracle(
    inputs: Sequence[Node], outputs: Sequence[Node], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """What the primitives' NumPy rules say."""
    from weft.graph.ir import Graph

    return [np.asarray(x) for x in evaluate(Graph(tuple(inputs), tuple(outputs)), list(arrays))]


def close(got: np.ndarray, want: np.ndarray, dtype: Any = np.float32, k: int = 1) -> None:
    """Equal within rounding: relative to the size of the terms that were added (k of them)."""
    dtype = as_dtype(dtype)
    unit = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}.get(dtype.name, 0.0)
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.sqrt(max(k, 1))
    np.testing.assert_allclose(got, want, rtol=4 * unit, atol=4 * unit * scale)


def number(value: float, like: Node) -> Node:
    """A 0-d constant broadcast to the shape of `like`."""
    one = Node("const", (), {"value": np.asarray(value, like.dtype.numpy)}, (), like.dtype)
    return f.broadcast(one, like.shape)


def gelu(x: Node) -> Node:
    """x Phi(x) from primitives."""
    inner = f.add(f.erf(f.mul(x, number(0.7071067811865476, x))), number(1.0, x))
    return f.mul(f.mul(x, number(0.5, x)), inner)


def silu(x: Node) -> Node:
    """x / (1 + exp(-x)) from primitives."""
    return f.div(x, f.add(f.exp(f.neg(x)), number(1.0, x)))


__all__ = [
    "RNG", "close", "f", "fill", "gelu", "number", "oracle", "play", "scalar", "silu", "source",
]  # fmt: skip
